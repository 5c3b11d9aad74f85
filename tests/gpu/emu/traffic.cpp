/* traffic.cpp - count what kernels load and store, and what a GPU would pay for it, by standing in for
   TSan's runtime.

   Code compiled with -fsanitize=thread calls __tsan_read4(p) before it reads four bytes at p, and
   so on. Linked with this file instead of TSan those calls add to the counters of watched ranges.
   Only the kernels are compiled so; this file and the rest are not.

   What is counted is what the compiler left over: a value that it kept in a register is not loaded
   twice, as on a device. Use -O1; higher levels may merge accesses into forms that TSan's pass does
   not see.

   Requests: the same instruction in the threads of a warp, for the same time, is one request, and
   pays for the 32-byte sectors that it touches, used or not. The compiler here takes a vector of 16
   bytes to pieces, so accesses of one thread that follow each other in one aligned group of 16 bytes
   count as one instruction. Shared memory pays for turns: a request takes as many as the words
   that the busiest of 32 banks has to hand out. */

#include "cuda_emu.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

extern "C" char __start_emu_shared[] __attribute__((weak));
extern "C" char __stop_emu_shared[] __attribute__((weak));

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

/* What a warp asks for by one instruction, at one time: units are sectors, or words of shared
   memory. The key is made of the warp, the place in the code, and how often it has been there. */
struct request { std::vector<uintptr_t> units; };
std::unordered_map<uint64_t, request> requests; /* of the running block */

struct lane { /* a thread of the running block */
    std::unordered_map<const void *, unsigned> times; /* that it has been at a place */
    uintptr_t next; /* where an access would go on with the last one */
    request  *last;
};
std::vector<lane> lanes(1024);
uint3             running;
unsigned long     running_kernel;
std::unordered_map<uintptr_t, unsigned long long> atomics;
emu_shared_traffic                                shared;

/* Blocks run one after the other: another block, or kernel, forgets the last one's requests. */
void forget() {
    requests.clear();
    for (lane &l : lanes) l.times.clear(), l.next = 0, l.last = NULL;
}
void begin_block() {
    if (emu_block.x == running.x && emu_block.y == running.y && emu_block.z == running.z &&
        emu_count.kernels_run == running_kernel)
        return;
    running        = emu_block;
    running_kernel = emu_count.kernels_run;
    forget();
}

/* The request that the running thread's access is part of. */
request *request_of(uintptr_t begin, uintptr_t end, const void *place) {
    begin_block();
    const uint3    at     = emu_thread->index;
    const unsigned number = at.x + emu_block_dim.x * (at.y + emu_block_dim.y * at.z);
    lane          &l      = lanes.at(number);
    if (begin != l.next || begin % 16 == 0 || l.last == NULL)
        l.last = &requests[(uint64_t)(uintptr_t)place << 24 |
                           (uint64_t)(l.times[place]++ & 0x7ffff) << 5 | number / 32];
    l.next = end;
    return l.last;
}

unsigned add_units(request *r, uintptr_t begin, uintptr_t end, unsigned unit) {
    unsigned more = 0;
    for (uintptr_t u = begin / unit; u <= (end - 1) / unit; u++)
        if (std::find(r->units.rbegin(), r->units.rend(), u) == r->units.rend())
            r->units.push_back(u), more++;
    return more;
}

unsigned turns(const request &r) {
    unsigned words[32] = {0}, most = 0;
    for (uintptr_t u : r.units) most = std::max(most, ++words[u % 32]);
    return most;
}

void count_shared(request *r, uintptr_t begin, uintptr_t end) {
    const unsigned before = turns(*r), least = (unsigned)(r->units.size() + 31) / 32;
    add_units(r, begin, end, 4);
    shared.turns += turns(*r) - before;
    shared.least += (unsigned)(r->units.size() + 31) / 32 - least;
}

void count_at(const volatile void *p, size_t bytes, bool load, bool store, const void *place) {
    const uintptr_t begin = (uintptr_t)p, end = begin + bytes;
    if (emu_thread == NULL) return; /* the host */
    if (begin >= (uintptr_t)__start_emu_shared && end <= (uintptr_t)__stop_emu_shared)
        return count_shared(request_of(begin, end, place), begin, end);
    if (begin >= highest || end <= lowest) return;
    const unsigned sectors = add_units(request_of(begin, end, place), begin, end, 32);
    for (range &in : ranges) {
        const uintptr_t n = overlap(in, begin, end);
        if (n && load) in.traffic.loaded += n, in.traffic.load_sectors += sectors;
        if (n && store) in.traffic.stored += n, in.traffic.store_sectors += sectors;
    }
}

void count_atomic(const volatile void *p) { atomics[(uintptr_t)p]++; }

#define count(p, bytes, load, store) \
    count_at(p, bytes, load, store, __builtin_return_address(0))

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
struct emu_shared_traffic emu_watched_shared(void) { return shared; }
unsigned long long emu_atomics(const void *begin, size_t bytes, unsigned long long *most) {
    unsigned long long all = 0, largest = 0;
    for (const auto &a : atomics)
        if (a.first - (uintptr_t)begin < bytes) {
            all += a.second;
            largest = std::max(largest, a.second);
        }
    if (most) *most = largest;
    return all;
}
void emu_unwatch_all(void) {
    atomics.clear();
    forget();
    shared = emu_shared_traffic();
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
        if (same) count(p, sizeof(T), false, true), count_atomic(p);                           \
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
