/* traffic.cpp - count the bytes that kernels load and store, by standing in for TSan's runtime.

   Code compiled with -fsanitize=thread calls __tsan_read4(p) before it reads four bytes at p, and
   so on. Linked with this file instead of TSan those calls add to the counters of watched ranges.
   Only the kernels are compiled so; this file and the rest are not.

   What is counted is what the compiler left over: a value that it kept in a register is not loaded
   twice, as on a device. Use -O1; higher levels may merge accesses into forms that TSan's pass does
   not see. */

#include "cuda_emu.h"

#include <vector>

namespace {

struct range {
    uintptr_t   begin, end;
    emu_traffic traffic;
};
std::vector<range> ranges;
uintptr_t          lowest = UINTPTR_MAX, highest; /* of all ranges: most accesses stop here */

uintptr_t overlap(const range &r, uintptr_t begin, uintptr_t end) {
    if (begin < r.begin) begin = r.begin;
    if (end > r.end) end = r.end;
    return begin < end ? end - begin : 0;
}

void count(const volatile void *p, size_t bytes, bool load, bool store) {
    const uintptr_t begin = (uintptr_t)p, end = begin + bytes;
    if (begin >= highest || end <= lowest) return;
    for (range &r : ranges) {
        uintptr_t n = overlap(r, begin, end);
        if (load) r.traffic.loaded += n;
        if (store) r.traffic.stored += n;
    }
}

} // namespace

extern "C" {

int emu_watch(const void *begin, size_t bytes) {
    const uintptr_t at = (uintptr_t)begin;
    ranges.push_back(range{at, at + bytes, emu_traffic()});
    if (at < lowest) lowest = at;
    if (at + bytes > highest) highest = at + bytes;
    return (int)ranges.size() - 1;
}
struct emu_traffic emu_watched(int index) { return ranges.at((size_t)index).traffic; }
void               emu_unwatch_all(void) {
    ranges.clear();
    lowest  = UINTPTR_MAX;
    highest = 0;
}

/* ---- what the compilers call ---- */

void __tsan_init(void) {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit(void) {}
void __tsan_ignore_thread_begin(void) {}
void __tsan_ignore_thread_end(void) {}
void __tsan_vptr_read(void **p) { count(p, sizeof *p, true, false); }
void __tsan_vptr_update(void **p, void *) { count(p, sizeof *p, false, true); }
void __tsan_read_range(void *p, size_t bytes) { count(p, bytes, true, false); }
void __tsan_write_range(void *p, size_t bytes) { count(p, bytes, false, true); }

#define PLAIN(n)                                                                      \
    void __tsan_read##n(void *p) { count(p, n, true, false); }                        \
    void __tsan_write##n(void *p) { count(p, n, false, true); }                       \
    void __tsan_read_write##n(void *p) { count(p, n, true, true); }                   \
    void __tsan_unaligned_read##n(void *p) { count(p, n, true, false); }              \
    void __tsan_unaligned_write##n(void *p) { count(p, n, false, true); }             \
    void __tsan_unaligned_read_write##n(void *p) { count(p, n, true, true); }         \
    void __tsan_volatile_read##n(void *p) { count(p, n, true, false); }               \
    void __tsan_volatile_write##n(void *p) { count(p, n, false, true); }              \
    void __tsan_unaligned_volatile_read##n(void *p) { count(p, n, true, false); }     \
    void __tsan_unaligned_volatile_write##n(void *p) { count(p, n, false, true); }
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)

void *__tsan_memcpy(void *to, const void *from, size_t bytes) {
    count(from, bytes, true, false);
    count(to, bytes, false, true);
    return memcpy(to, from, bytes);
}
void *__tsan_memmove(void *to, const void *from, size_t bytes) {
    count(from, bytes, true, false);
    count(to, bytes, false, true);
    return memmove(to, from, bytes);
}
void *__tsan_memset(void *to, int value, size_t bytes) {
    count(to, bytes, false, true);
    return memset(to, value, bytes);
}

/* The emulator makes atomic operations of a load and compare-and-swaps, of which the last succeeds:
   the load counts as the load, the success as the store. The memory order is the strongest. */
#define ATOMIC(bits, T)                                                                        \
    T __tsan_atomic##bits##_load(const volatile T *p, int) {                                   \
        count(p, sizeof(T), true, false);                                                      \
        return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                           \
    }                                                                                          \
    void __tsan_atomic##bits##_store(volatile T *p, T v, int) {                                \
        count(p, sizeof(T), false, true);                                                      \
        __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                              \
    }                                                                                          \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile T *p, T *expected, T v, int,    \
                                                      int) {                                   \
        bool same = __atomic_compare_exchange_n(p, expected, v, false, __ATOMIC_SEQ_CST,       \
                                                __ATOMIC_SEQ_CST);                             \
        if (same) count(p, sizeof(T), false, true);                                            \
        return same;                                                                           \
    }                                                                                          \
    int __tsan_atomic##bits##_compare_exchange_weak(volatile T *p, T *expected, T v, int a,    \
                                                    int b) {                                   \
        return __tsan_atomic##bits##_compare_exchange_strong(p, expected, v, a, b);            \
    }                                                                                          \
    T __tsan_atomic##bits##_compare_exchange_val(volatile T *p, T expected, T v, int a,        \
                                                 int b) {                                      \
        __tsan_atomic##bits##_compare_exchange_strong(p, &expected, v, a, b);                  \
        return expected;                                                                       \
    }
#define UPDATE(bits, T, name, builtin)                              \
    T __tsan_atomic##bits##_##name(volatile T *p, T v, int) {       \
        count(p, sizeof(T), true, true);                            \
        return builtin(p, v, __ATOMIC_SEQ_CST);                     \
    }
#define UPDATES(bits, T)                                  \
    ATOMIC(bits, T)                                       \
    UPDATE(bits, T, exchange, __atomic_exchange_n)        \
    UPDATE(bits, T, fetch_add, __atomic_fetch_add)        \
    UPDATE(bits, T, fetch_sub, __atomic_fetch_sub)        \
    UPDATE(bits, T, fetch_and, __atomic_fetch_and)        \
    UPDATE(bits, T, fetch_or, __atomic_fetch_or)          \
    UPDATE(bits, T, fetch_xor, __atomic_fetch_xor)
UPDATES(8, unsigned char)
UPDATES(16, unsigned short)
UPDATES(32, unsigned)
UPDATES(64, unsigned long long)

void __tsan_atomic_thread_fence(int) {}
void __tsan_atomic_signal_fence(int) {}

} /* extern "C" */
