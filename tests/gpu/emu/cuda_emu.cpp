/* cuda_emu.cpp - the runtime under cuda_emu.h: fibers, blocks, memory, streams, graphs, and
   stand-ins for the entry points of libcudart and libcublas. Where NVIDIA's headers are used, they
   check the prototypes of everything here.

   This file is never compiled with -fsanitize=thread: it is the machine, not the program, and tells
   TSan (-DEMU_TSAN) what the program's fibers and fences are. */

#include "cuda_emu.h"
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#if !defined(__x86_64__) && !defined(EMU_UCONTEXT)
#define EMU_UCONTEXT
#endif
#ifdef EMU_UCONTEXT
#include <ucontext.h>
#endif

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <vector>

#ifdef EMU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef EMU_TSAN
extern "C" {
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned flags);
void  __tsan_switch_to_fiber(void *fiber, unsigned flags);
void  __tsan_acquire(void *address);
void  __tsan_release(void *address);
void  AnnotateBenignRaceSized(const char *file, int line, const volatile void *address, long bytes,
                              const char *text);
}
#endif

/* ======================================================================================
   Control
   ====================================================================================== */

unsigned      emu_seed;
int           emu_async, emu_lazy, emu_per_thread = getenv("EMU_PER_THREAD") != NULL;
size_t        emu_block_from, emu_block_to;
int           emu_lt;
unsigned long emu_api_calls, emu_fail_at;
cudaError_t   emu_fail_error = cudaErrorUnknown;
const char   *emu_last_api   = "";
int           emu_device_count, emu_device_sms, emu_device_major, emu_device_minor;
size_t        emu_device_memory;
unsigned long emu_heap_changes;
emu_counts    emu_count;

/* Overridden by traffic.cpp and ptx.cpp where they are linked. */
extern "C" __attribute__((weak)) void emu_unwatch_all(void) {}
__attribute__((weak)) std::function<void()> emu_ptx(const void *, void **) { return nullptr; }

namespace {

std::vector<emu_gemm_call> gemm_log;
cudaError_t                last_error;
/* What this thread has said of its own calls: relaxed, that they have no part in any capture. */
cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;
bool                       defaults_set = (emu_reset(), true);

unsigned random_state, random_seed; /* of the generator, and the emu_seed it was started with */

unsigned random_below(unsigned n) { /* xorshift */
    if (random_state == 0 || random_seed != emu_seed) {
        random_seed  = emu_seed;
        random_state = emu_seed * 2654435761u | 1;
    }
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return (unsigned)((unsigned long long)random_state * n >> 32);
}

} // namespace

void emu_reset(void) {
    emu_seed = 0;
    emu_async = emu_lazy = 0;
    emu_per_thread = getenv("EMU_PER_THREAD") != NULL;
    emu_block_from = emu_block_to = 0;
    emu_api_calls = emu_fail_at = 0;
    emu_fail_error = cudaErrorUnknown;
    emu_last_api = "";
    emu_device_count = 1;
    emu_device_sms = 4; /* few, so that grid-stride loops go round with little data */
    emu_device_major = 9;
    emu_device_minor = 0;
    emu_device_memory = (size_t)8 << 30;
    emu_lt = EMU_LT_WORKS;
    emu_count = emu_counts();
    emu_unwatch_all();
    gemm_log.clear();
    last_error   = cudaSuccess;
    thread_mode  = cudaStreamCaptureModeGlobal;
    random_state = 0;
}

/* ======================================================================================
   Fibers
   ====================================================================================== */

emu_thread_view *emu_thread;
uint3            emu_block;
dim3             emu_block_dim, emu_grid_dim;

/* Start and end of all __shared__ variables; the linker provides these names if the section is. */
extern "C" char __start_emu_shared[] __attribute__((weak));
extern "C" char __stop_emu_shared[] __attribute__((weak));

/* What a launch asks for at run time: all that a block of a device can have. */
alignas(256) char emu_dynamic_shared[227 << 10];
size_t            emu_dynamic_bytes;

namespace {

struct fiber {
    char  *stack;
    size_t stack_bytes;
#ifdef EMU_UCONTEXT
    ucontext_t context;
#else
    void *stack_pointer;
#endif
    void *asan_stack, *tsan;
};

const unsigned MAX_THREADS = 1024; /* of a block */
const size_t   STACK_BYTES = 256 << 10;
#ifdef EMU_TSAN
/* What one TSan fiber does is ordered, so a fiber that runs threads of two blocks hides races
   between them: let many others go first before one is used again. */
const unsigned SPARE_FIBERS = 1536;
#else
const unsigned SPARE_FIBERS = 0;
#endif
const unsigned POOL = 4096; /* a power of two above MAX_THREADS + SPARE_FIBERS */

fiber   *pool[POOL]; /* a ring, first in first out; no allocator calls on fibers */
unsigned pool_first, pool_size;
fiber    host;       /* the caller's own stack */
fiber   *left;       /* a fiber that ended; its stack is free once another one runs */

#ifdef EMU_UCONTEXT
void switch_stacks(fiber *from, fiber *to) { swapcontext(&from->context, &to->context); }
#else
extern "C" void emu_switch_stacks(void **save, void *load);
__asm__(".text\n.globl emu_switch_stacks\n.type emu_switch_stacks,@function\n"
        "emu_switch_stacks:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size emu_switch_stacks,.-emu_switch_stacks\n");
void switch_stacks(fiber *from, fiber *to) {
    emu_switch_stacks(&from->stack_pointer, to->stack_pointer);
}
#endif

/* The first thing on a stack that has just got control. */
void arrive(void *asan_stack) {
    (void)asan_stack;
#ifdef EMU_ASAN
    const void *bottom;
    size_t      bytes;
    __sanitizer_finish_switch_fiber(asan_stack, &bottom, &bytes);
    if (host.stack == NULL) { /* the first switch ever came from the host's stack */
        host.stack       = (char *)bottom;
        host.stack_bytes = bytes;
    }
#endif
    if (left != NULL) pool[(pool_first + pool_size++) % POOL] = left;
    left = NULL;
}

void switch_fibers(fiber *from, fiber *to, bool ending) {
    if (ending) left = from;
#ifdef EMU_ASAN
    __sanitizer_start_switch_fiber(ending ? NULL : &from->asan_stack, to->stack, to->stack_bytes);
#endif
#ifdef EMU_TSAN
    __tsan_switch_to_fiber(to->tsan, 1 /* no ordering by the switch itself */);
#endif
    switch_stacks(from, to);
    arrive(from->asan_stack);
}

fiber *take_fiber(void (*entry)()) {
    fiber *f;
    if (pool_size > SPARE_FIBERS) {
        f = pool[pool_first++ % POOL];
        pool_size--;
    } else {
        f        = new fiber();
        f->stack = (char *)mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (f->stack == MAP_FAILED) {
            perror("cuda_emu: mmap");
            abort();
        }
        f->stack_bytes = STACK_BYTES;
        mprotect(f->stack, 4096, PROT_NONE); /* an overflow faults */
#ifdef EMU_TSAN
        f->tsan = __tsan_create_fiber(0);
#endif
    }
#ifdef EMU_UCONTEXT
    getcontext(&f->context);
    f->context.uc_stack.ss_sp   = f->stack;
    f->context.uc_stack.ss_size = f->stack_bytes;
    f->context.uc_link          = NULL;
    makecontext(&f->context, entry, 0);
#else
    void **top = (void **)(f->stack + f->stack_bytes);
    *--top     = NULL; /* entry's return address; it starts with the stack as after a call */
    *--top     = (void *)entry;
    for (int i = 0; i < 6; i++) *--top = NULL;
    f->stack_pointer = top;
#endif
    return f;
}

/* ======================================================================================
   Threads of a block
   ====================================================================================== */

enum waiting { RUNNING, AT_BARRIER, IN_WARP, GONE };

struct thread : emu_thread_view {
    fiber   *on;
    unsigned number; /* in the block */
    waiting  state;
    int      line;   /* of the barrier or collective */
    int      source; /* lane of a shuffle */
    uint64_t value, result;
#ifdef EMU_TSAN
    unsigned mark;  /* of its last fence; 0: none */
    bool     reads; /* marks, since then */
#endif
};

/* Lanes that wait for the rest of their mask. A warp may have several: parts of it, and lanes that
   wait for all while others still are in their part. */
struct group {
    emu_collective what;
    int            line;
    unsigned       mask, arrived;
};
struct warp {
    group    groups[32];
    unsigned num_groups;
    unsigned gone; /* lanes */
};

thread   threads[MAX_THREADS];
warp     warps[MAX_THREADS / 32];
unsigned num_threads, num_started, num_gone;
unsigned start_order[MAX_THREADS];
thread  *ready[MAX_THREADS]; /* a ring */
unsigned ready_first, num_ready;
unsigned at_barrier, barrier_count, barrier_result;
int      barrier_line;

const std::function<void()> *kernel;

#ifdef EMU_TSAN
bool within(const void *p, const char *begin, const char *end) {
    return (const char *)p >= begin && (const char *)p < end;
}

/* Addresses that carry happens-before edges. Those of blocks differ, or one block's barrier would
   seem to order another block. */
char     sync_begin, sync_end, sync_block[4096][33];
unsigned block_number;
#define SYNC_WARP(i)  (&sync_block[block_number % 4096][i])
#define SYNC_BARRIER  SYNC_WARP(32)
#define RELEASE(what) __tsan_release(what)
#define ACQUIRE(what) __tsan_acquire(what)

/* Fences release and acquire, as PTX has it: what a thread's atomics write behind a fence bears this
   fence's mark; a fence acquires the marks that the thread's atomics have read in front of it. Marks
   and where they were left are numbered in each launch from 1 on. */
const unsigned MARKS = 1 << 16, PLACES = 4096;
char     sync_mark[MARKS];
unsigned num_fences, num_marks, last_at[PLACES]; /* of addresses that share a place, the last left */
struct { const void *at; unsigned mark, next; } marks[MARKS];
uint64_t marks_read[MAX_THREADS][MARKS / 64]; /* bits */

void forget_marks_of_thread(thread *t, bool acquire) {
    for (unsigned w = 0; t->reads && w <= num_fences / 64; w++) {
        uint64_t &bits = marks_read[t->number][w];
        for (; acquire && bits != 0; bits &= bits - 1)
            __tsan_acquire(&sync_mark[64 * w + (unsigned)__builtin_ctzll(bits)]);
        bits = 0;
    }
    t->reads = false;
}
#else
#define RELEASE(what) ((void)0)
#define ACQUIRE(what) ((void)0)
#endif

thread *self() { return static_cast<thread *>(emu_thread); }

[[noreturn]] void die(const char *what, const thread *t, int line) {
    fprintf(stderr, "cuda_emu: %s (block %u,%u,%u thread %u line %d)\n", what, emu_block.x,
            emu_block.y, emu_block.z, t->number, line);
    abort();
}

void make_ready(thread *t) {
    t->state = RUNNING;
    ready[(ready_first + num_ready++) % MAX_THREADS] = t;
}

void fiber_main();

[[noreturn]] void die_of_deadlock() {
    unsigned i = 0;
    while (threads[i].state == GONE || threads[i].state == RUNNING) i++;
    die(threads[i].state == AT_BARRIER ? "deadlock: waits at __syncthreads for ever"
                                       : "deadlock: waits in a warp collective for ever",
        &threads[i], threads[i].line);
}

/* Leave this fiber for a thread that can run, or for the host when all have gone. */
void run_another(fiber *from, bool ending) {
    fiber *to = &host;
    if (num_ready > 0) {
        if (emu_seed != 0) {
            unsigned other = ready_first + random_below(num_ready);
            std::swap(ready[ready_first % MAX_THREADS], ready[other % MAX_THREADS]);
        }
        emu_thread = ready[ready_first++ % MAX_THREADS];
        num_ready--;
        to = self()->on;
    } else if (num_started < num_threads) {
        emu_thread = &threads[start_order[num_started++]];
        if (self()->on == NULL) self()->on = take_fiber(fiber_main);
        to = self()->on;
    } else if (num_gone < num_threads) {
        die_of_deadlock();
    }
    if (to != from) switch_fibers(from, to, ending);
}

/* All that have not ended have come: as on a device since 7.0, the others do not count. */
bool pass_barrier() {
    if (at_barrier == 0 || at_barrier + num_gone < num_threads) return false;
    at_barrier     = 0;
    barrier_result = barrier_count;
    for (unsigned i = 0; i < num_threads; i++)
        if (threads[i].state == AT_BARRIER) make_ready(&threads[i]);
    return true;
}

void leave_block(thread *t) {
    warp    *w = &warps[t->number / 32];
    unsigned lane = 1u << t->number % 32;
    for (unsigned i = 0; i < w->num_groups; i++)
        if (w->groups[i].mask & lane)
            die("a lane ends that a warp collective waits for", t, w->groups[i].line);
    t->state = GONE;
    w->gone |= lane;
    num_gone++;
    pass_barrier();
}

/* A fiber's life. A thread that ends before any other has waited hands on its stack, so that
   kernels without barriers never switch; not under TSan, where a thread must be a fiber. */
void fiber_main() {
    arrive(NULL);
    for (;;) {
        fiber *on = self()->on;
        ACQUIRE(&sync_begin);
        (*kernel)();
        RELEASE(&sync_end);
        leave_block(self());
#ifndef EMU_TSAN
        if (num_ready == 0 && num_started < num_threads) {
            emu_thread = &threads[start_order[num_started++]];
            self()->on = on;
            continue;
        }
#endif
        run_another(on, true);
    }
}

void refill(volatile char *p, const char *end) { /* with NaNs; byte by byte, because TSan watches memset */
    while (p < end) *p++ = (char)0xff;
}

void run_block() {
    unsigned x = 0, y = 0, z = 0;
    for (unsigned i = 0; i < num_threads; i++) {
        threads[i].index  = make_uint3(x, y, z);
        threads[i].on     = NULL;
        threads[i].number = i;
        threads[i].state  = RUNNING;
        start_order[i]    = i;
#ifdef EMU_TSAN
        threads[i].mark = 0;
#endif
        if (++x == emu_block_dim.x) x = 0, y++;
        if (y == emu_block_dim.y) y = 0, z++;
    }
    if (emu_seed != 0)
        for (unsigned i = num_threads; i > 1; i--)
            std::swap(start_order[i - 1], start_order[random_below(i)]);
    for (warp &w : warps) w.num_groups = w.gone = 0;
    num_started = num_gone = num_ready = at_barrier = 0;
    refill(__start_emu_shared, __stop_emu_shared);
    refill(emu_dynamic_shared, emu_dynamic_shared + emu_dynamic_bytes);
#ifdef EMU_TSAN
    static const char *race = getenv("EMU_RACE");
    host.tsan = __tsan_get_current_fiber();
    if (race == NULL || strcmp(race, "global") != 0)
        ACQUIRE(&sync_end); /* orders the blocks: their shared memory is at one address */
    else if (block_number == 0) {
        AnnotateBenignRaceSized(__FILE__, __LINE__, __start_emu_shared,
                                __stop_emu_shared - __start_emu_shared, "shared memory");
        AnnotateBenignRaceSized(__FILE__, __LINE__, emu_dynamic_shared, sizeof emu_dynamic_shared,
                                "shared memory");
    }
    block_number++;
    RELEASE(&sync_begin);
    /* A fiber is ordered after its creator, which so must not be a thread of the block. */
    for (unsigned i = 0; i < num_threads; i++) threads[i].on = take_fiber(fiber_main);
#endif
    run_another(&host, false);
#ifdef EMU_TSAN
    for (unsigned i = 0; i < num_threads; i++) forget_marks_of_thread(&threads[i], false);
#endif
}

size_t gcd(size_t a, size_t b) { return b == 0 ? a : gcd(b, a % b); }

/* whole: runs a block, if it is not empty; else the body runs in a fiber for each thread. */
void run_grid(const std::function<void()> &body, dim3 grid, dim3 block,
              const std::function<void()> &whole) {
    const size_t blocks = (size_t)grid.x * grid.y * grid.z;
    size_t       first = 0, step = 1;
    emu_count.kernels_run++;
    emu_grid_dim  = grid;
    emu_block_dim = block;
    num_threads   = block.x * block.y * block.z;
    kernel        = &body;
#ifdef EMU_TSAN
    num_fences = num_marks = 0;
    for (unsigned &last : last_at) last = 0;
#endif
    if (emu_seed != 0) { /* any step without a factor in common with the number visits all */
        first = random_below((unsigned)blocks);
        for (step = 1 + random_below((unsigned)blocks); gcd(step, blocks) != 1;) step++;
    }
    for (size_t k = 0, i = first; k < blocks; k++, i = (i + step) % blocks) {
        if (emu_block_to != 0 && (i < emu_block_from || i >= emu_block_to)) continue;
        emu_block = make_uint3((unsigned)(i % grid.x), (unsigned)(i / grid.x % grid.y),
                               (unsigned)(i / grid.x / grid.y));
        if (whole) whole();
        else run_block();
    }
    ACQUIRE(&sync_end);
    emu_thread = NULL;
}

void wait_turn(thread *t, waiting state) {
    t->state = state;
    run_another(t->on, false);
}

/* Go on, but behind the others where the order is shuffled. */
void yield_turn(thread *t) {
    if (emu_seed == 0) return;
    make_ready(t);
    run_another(t->on, false);
}

} // namespace

int  emu_lane(void) { return (int)(self()->number % 32); }
void emu_trap(int line) { die("__trap", self(), line); }
void emu_misaligned(int line) { die("misaligned load or store", self(), line); }

void emu_fence(void) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#ifdef EMU_TSAN
    thread *t = self();
    forget_marks_of_thread(t, true);
    if (++num_fences == MARKS) die("too many fences in one launch", t, 0);
    t->mark = num_fences;
    RELEASE(&sync_mark[t->mark]);
#endif
}

void emu_atomic(const void *p) {
#ifdef EMU_TSAN
    thread   *t    = self();
    unsigned *last = &last_at[(uintptr_t)p / 4 % PLACES];
    bool      left = t->mark == 0;
    if (within(p, __start_emu_shared, __stop_emu_shared) ||
        within(p, emu_dynamic_shared, emu_dynamic_shared + sizeof emu_dynamic_shared))
        return;
    for (unsigned m = *last; m != 0; m = marks[m].next) {
        if (marks[m].at != p) continue;
        marks_read[t->number][marks[m].mark / 64] |= (uint64_t)1 << marks[m].mark % 64;
        t->reads = true;
        left     = left || marks[m].mark == t->mark;
    }
    if (left) return;
    if (++num_marks == MARKS) die("too many atomics behind fences", t, 0);
    marks[num_marks].at   = p;
    marks[num_marks].mark = t->mark;
    marks[num_marks].next = *last;
    *last = num_marks;
#else
    (void)p;
#endif
}

int emu_barrier(int predicate, int line) {
    thread *t = self();
    if (at_barrier == 0) {
        barrier_line  = line;
        barrier_count = 0;
    } else if (line != barrier_line) {
        die("threads of one block wait at different __syncthreads", t, line);
    }
    t->line = line;
    RELEASE(SYNC_BARRIER);
    barrier_count += predicate != 0;
    at_barrier++;
    if (pass_barrier()) yield_turn(t);
    else wait_turn(t, AT_BARRIER);
    ACQUIRE(SYNC_BARRIER);
    return (int)barrier_result;
}

/* All lanes of the group have come: give each its result. */
static void complete(const group &g, thread *base) {
    unsigned ballot = 0, rest;
    for (rest = g.mask; rest != 0; rest &= rest - 1)
        if (base[__builtin_ctz(rest)].value != 0) ballot |= rest & -rest;
    for (rest = g.mask; rest != 0; rest &= rest - 1) {
        thread *t = &base[__builtin_ctz(rest)];
        t->result = ballot;
        if (g.what != EMU_SHUFFLE) continue;
        if (t->source < 0 || t->source > 31 || !(g.mask >> t->source & 1))
            die("shuffle from a lane outside the mask", t, g.line);
        t->result = base[t->source].value;
    }
}

/* The group that a lane joins, perhaps as the first. Two groups that wait for lanes of each other
   would do so for ever. */
static group *join(warp *w, const group &wanted, unsigned lane, const thread *t) {
    group *found = NULL;
    for (unsigned i = 0; i < w->num_groups; i++) {
        group *g = &w->groups[i];
        if (g->mask == wanted.mask && g->line == wanted.line && g->what == wanted.what)
            found = g;
        else if ((g->mask & lane) && (g->arrived & wanted.mask))
            die(g->mask != wanted.mask ? "lanes that wait for each other name different masks"
                                       : "lanes of one mask are in different collectives",
                t, wanted.line);
    }
    if (found == NULL) *(found = &w->groups[w->num_groups++]) = wanted;
    found->arrived |= lane;
    return found;
}

uint64_t emu_warp(emu_collective what, unsigned mask, uint64_t value, int source, int line) {
    thread  *t    = self();
    thread  *base = &threads[t->number & ~31u];
    warp    *w    = &warps[t->number / 32];
    unsigned lane = 1u << t->number % 32, lanes = num_threads - base->number;
    if (lanes < 32) mask &= (1u << lanes) - 1; /* the last warp of an odd block */
    if (!(mask & lane)) die("lane is not in its own mask", t, line);
    if (mask & w->gone) die("a lane named in the mask has ended", t, line);
    t->value  = value;
    t->source = source;
    t->line   = line;
    RELEASE(SYNC_WARP(base->number / 32));
    group *g = join(w, group{what, line, mask, 0}, lane, t);
    if (g->arrived != mask) {
        wait_turn(t, IN_WARP);
    } else {
        complete(*g, base);
        *g = w->groups[--w->num_groups];
        for (unsigned rest = mask & ~lane; rest != 0; rest &= rest - 1)
            make_ready(&base[__builtin_ctz(rest)]);
        yield_turn(t);
    }
    ACQUIRE(SYNC_WARP(base->number / 32));
    return t->result;
}

/* ======================================================================================
   Memory
   ====================================================================================== */

namespace {

struct allocation {
    size_t bytes;
    bool   device;
};
std::map<char *, allocation> heap, lent;
size_t                       device_bytes;

enum place { HOST, PINNED, DEVICE, OVERRUN };

/* Where [p, p + bytes) lies. It must not leave an allocation that it begins in or touches. */
place find(const void *p, size_t bytes) {
    char *begin = (char *)p;
    auto  after = heap.upper_bound(begin);
    if (after != heap.begin()) {
        auto  own = std::prev(after);
        char *end = own->first + own->second.bytes;
        if (begin < end)
            return begin + bytes > end ? OVERRUN : own->second.device ? DEVICE : PINNED;
    }
    return after != heap.end() && begin + bytes > after->first ? OVERRUN : HOST;
}

#ifdef EMU_ASAN
/* Outside of device work, device memory is poisoned: the host that looks at it is caught. */
void poison_device(bool on) {
    for (auto &a : heap) {
        if (!a.second.device) continue;
        if (on) ASAN_POISON_MEMORY_REGION(a.first, a.second.bytes);
        else ASAN_UNPOISON_MEMORY_REGION(a.first, a.second.bytes);
    }
}
#else
void poison_device(bool) {}
#endif

cudaError_t allocate(void **p, size_t bytes, bool device) {
    void *memory = NULL;
    if (p == NULL) return cudaErrorInvalidValue;
    *p = NULL;
    if (bytes == 0) return cudaSuccess;
    if (device && (device_bytes > emu_device_memory || bytes > emu_device_memory - device_bytes))
        return cudaErrorMemoryAllocation;
    if (posix_memalign(&memory, 256, bytes) != 0) return cudaErrorMemoryAllocation;
    memset(memory, 0xff, bytes);
    heap[(char *)memory] = allocation{bytes, device};
    emu_heap_changes++;
    if (device) device_bytes += bytes;
    poison_device(true);
    *p = memory;
    return cudaSuccess;
}

cudaError_t release(void *p, bool device) {
    auto it = heap.find((char *)p);
    if (it == heap.end() || it->second.device != device) return cudaErrorInvalidValue;
    poison_device(false);
    if (device) device_bytes -= it->second.bytes;
    heap.erase(it);
    emu_heap_changes++;
    poison_device(true);
    free(p);
    return cudaSuccess;
}

/* ======================================================================================
   Streams: queues of operations
   ====================================================================================== */

struct queue;
typedef std::shared_ptr<queue> queue_ref;

struct point { /* "the first n operations of a queue are done": what an event records */
    queue_ref     of;
    unsigned long n;
};
struct operation {
    std::function<void()> run; /* may be empty */
    std::vector<point>    needs;
};
struct queue {
    std::deque<operation> waiting;
    unsigned long         added, done;
    bool                  blocking; /* ordered with the legacy default stream */
};

std::vector<queue_ref> queues; /* of all streams, and of destroyed ones with work left */
queue_ref              legacy, per_thread;

queue_ref new_queue(bool blocking) {
    queue_ref q(new queue());
    q->blocking = blocking;
    queues.push_back(q);
    return q;
}

void run_until(const point &p) {
    while (p.of->done < p.n) {
        operation now = std::move(p.of->waiting.front());
        p.of->waiting.pop_front();
        for (const point &other : now.needs) run_until(other);
        if (now.run) {
            poison_device(false);
            now.run();
            poison_device(true);
        }
        p.of->done++;
    }
}

bool run_one(const queue_ref &q) {
    if (q->done == q->added) return false;
    run_until(point{q, q->done + 1});
    return true;
}

/* The host waits for a point. If shuffled, other streams get on meanwhile. */
void wait_for(const point &p) {
    while (p.of->done < p.n) {
        if (emu_seed != 0 && random_below(2) != 0)
            run_one(queues[random_below((unsigned)queues.size())]);
        else
            run_one(p.of);
    }
}

void wait_for_all() {
    if (emu_seed != 0)
        for (size_t left_over; (left_over = emu_pending()) > 0;)
            run_one(queues[random_below((unsigned)queues.size())]);
    for (size_t i = 0; i < queues.size(); i++) wait_for(point{queues[i], queues[i]->added});
    for (size_t i = queues.size(); i-- > 0;)
        if (queues[i].use_count() == 1) queues.erase(queues.begin() + (long)i);
}

void add(const queue_ref &q, operation op) {
    if (q == legacy) {
        for (const queue_ref &other : queues)
            if (other != q && other->blocking && other->done < other->added)
                op.needs.push_back(point{other, other->added});
    } else if (q->blocking && legacy->done < legacy->added) {
        op.needs.push_back(point{legacy, legacy->added});
    }
    q->waiting.push_back(std::move(op));
    q->added++;
    if (emu_async == 0) run_until(point{q, q->added});
}

} // namespace

/* ======================================================================================
   Graphs and capture
   ====================================================================================== */

typedef std::vector<cudaGraphNode_t> node_list;

struct CUgraphNode_st {
    std::function<void()> run;
    node_list             needs;
    /* of a conditional node */
    cudaGraphConditionalHandle condition;
    cudaGraph_t                body;
    ~CUgraphNode_st();
};

typedef std::vector<std::shared_ptr<CUgraphNode_st> > node_refs;

struct CUgraph_st {
    node_refs nodes; /* every node after those that it needs */
};

CUgraphNode_st::~CUgraphNode_st() { delete body; }

struct CUgraphExec_st {
    node_refs nodes;
    std::vector<cudaGraphConditionalHandle> conditions;
    point     last_launch; /* launches of one executable graph never overlap */
};

struct capture {
    cudaGraph_t               graph;
    bool                      to_graph; /* of the caller */
    bool                      invalid;
    cudaStreamCaptureMode     mode;
    unsigned long long        id;
    cudaStream_t              origin;
    std::vector<cudaStream_t> streams;  /* the origin, and those that joined by an event */
};

struct CUstream_st {
    queue_ref                      q;
    std::shared_ptr<capture>       captured_by;
    node_list                      tail; /* what the next captured node needs */
    std::vector<cudaGraphEdgeData> tail_edges;
};

struct CUevent_st {
    unsigned                 flags;
    point                    at; /* at.of is empty before the first record */
    std::shared_ptr<capture> captured_by;
    node_list                tail;
};

struct cublasContext {
    cudaStream_t        stream;
    void               *workspace;
    size_t              workspace_bytes;
    cublasMath_t        math;
    cublasPointerMode_t pointer_mode;
};

namespace {

std::set<cudaStream_t>                  streams;
std::set<cudaEvent_t>                   events;
std::set<cudaGraph_t>                   graphs; /* without the bodies of conditional nodes */
std::set<cudaGraphExec_t>               execs;
std::set<cublasHandle_t>                handles;
std::vector<std::shared_ptr<capture> >  captures; /* under way */
unsigned long long                      num_captures;

struct condition {
    unsigned value, at_launch;
    bool     assign;
};
std::vector<condition> conditions; /* a handle is an index + 1 */

CUstream_st legacy_stream, per_thread_stream;

/* The stream of a handle, or NULL if there is none. */
cudaStream_t resolve(cudaStream_t s) {
    if (legacy == NULL) {
        legacy_stream.q = legacy = new_queue(true);
        per_thread_stream.q = per_thread = new_queue(true);
    }
    if (s == NULL) s = emu_per_thread ? cudaStreamPerThread : cudaStreamLegacy;
    if (s == cudaStreamLegacy) return &legacy_stream;
    if (s == cudaStreamPerThread) return &per_thread_stream;
    return streams.count(s) != 0 ? s : NULL;
}

/* A call that is not possible while some capture is under way: it breaks the capture. Relaxed
   captures only mind a wait for the whole device. */
cudaError_t refuse_in_capture(bool even_relaxed) {
    cudaError_t e = cudaSuccess;
    if (thread_mode == cudaStreamCaptureModeRelaxed && !even_relaxed) return e;
    for (auto &c : captures) {
        if (c->mode == cudaStreamCaptureModeRelaxed && !even_relaxed) continue;
        c->invalid = true;
        e          = cudaErrorStreamCaptureUnsupported;
    }
    return e;
}

cudaError_t refuse_in_capture_of(cudaStream_t s) {
    if (s->captured_by == NULL) return cudaSuccess;
    s->captured_by->invalid = true;
    return cudaErrorStreamCaptureUnsupported;
}

/* The legacy stream would wait for a blocking stream that captures. */
cudaError_t refuse_implicit_wait(cudaStream_t s) {
    cudaError_t e = cudaSuccess;
    if (s != &legacy_stream) return e;
    for (auto &c : captures)
        for (cudaStream_t member : c->streams)
            if (member->q->blocking) c->invalid = true, e = cudaErrorStreamCaptureImplicit;
    return e;
}

void append_node(cudaStream_t s, std::shared_ptr<CUgraphNode_st> node) {
    node->needs = s->tail;
    s->tail.assign(1, node.get());
    s->captured_by->graph->nodes.push_back(node);
}

/* Queue work on a stream, run it or capture it. */
cudaError_t submit(cudaStream_t s, const std::function<void()> &run) {
    if (s->captured_by != NULL) {
        if (s->captured_by->invalid) return cudaErrorStreamCaptureInvalidated;
        std::shared_ptr<CUgraphNode_st> node(new CUgraphNode_st());
        node->run = run;
        append_node(s, node);
        return cudaSuccess;
    }
    if (cudaError_t e = refuse_implicit_wait(s)) return e;
    add(s->q, operation{run, std::vector<point>()});
    return cudaSuccess;
}

void merge(node_list *into, const node_list &from) {
    for (cudaGraphNode_t node : from)
        if (std::find(into->begin(), into->end(), node) == into->end()) into->push_back(node);
}

/* All work of the capture leads to the end of its origin. */
bool all_joined(const capture &c) {
    std::set<cudaGraphNode_t> seen;
    node_list                 todo = c.origin->tail;
    while (!todo.empty()) {
        cudaGraphNode_t node = todo.back();
        todo.pop_back();
        if (seen.insert(node).second)
            todo.insert(todo.end(), node->needs.begin(), node->needs.end());
    }
    for (cudaStream_t s : c.streams)
        for (cudaGraphNode_t node : s->tail)
            if (seen.count(node) == 0) return false;
    return true;
}

void end_capture(const std::shared_ptr<capture> &c) {
    for (cudaStream_t s : c->streams) {
        s->captured_by.reset();
        s->tail.clear();
    }
    captures.erase(std::find(captures.begin(), captures.end(), c));
}

void run_nodes(const node_refs &nodes);

void run_node(const CUgraphNode_st &node) {
    if (node.run) node.run();
    if (node.condition != 0 && conditions[node.condition - 1].value != 0) run_nodes(node.body->nodes);
}

/* In order, or in any order that the edges allow. */
void run_nodes(const node_refs &nodes) {
    std::set<cudaGraphNode_t> waiting;
    node_list                 free_to_run;
    if (emu_seed == 0) {
        for (auto &node : nodes) run_node(*node);
        return;
    }
    for (auto &node : nodes) waiting.insert(node.get());
    while (!waiting.empty()) {
        free_to_run.clear();
        for (auto &node : nodes) {
            bool is_free = waiting.count(node.get()) != 0;
            for (cudaGraphNode_t need : node->needs) is_free &= waiting.count(need) == 0;
            if (is_free) free_to_run.push_back(node.get());
        }
        cudaGraphNode_t next = free_to_run[random_below((unsigned)free_to_run.size())];
        run_node(*next);
        waiting.erase(next);
    }
}

void collect_conditions(const node_refs &nodes, std::vector<cudaGraphConditionalHandle> *into) {
    for (auto &node : nodes) {
        if (node->condition == 0) continue;
        into->push_back(node->condition);
        collect_conditions(node->body->nodes, into);
    }
}

/* ======================================================================================
   Entry points
   ====================================================================================== */

cudaError_t result(cudaError_t e) {
    if (e != cudaSuccess) last_error = e;
    return e;
}

bool injected(const char *name) {
    emu_last_api = name;
    emu_count.api_calls++;
    return ++emu_api_calls == emu_fail_at;
}

cudaError_t enter(const char *name) {
    if (injected(name)) return result(emu_fail_error);
    return result(emu_device_count > 0 ? cudaSuccess : cudaErrorNoDevice);
}

#define ENTER(name)                             \
    do {                                        \
        cudaError_t entered = enter(name);      \
        if (entered != cudaSuccess) return entered; \
    } while (0)
/* Return e, as the last error too, if it is one. */
#define TRY(e)                                  \
    do {                                        \
        cudaError_t tried = (e);                \
        if (tried != cudaSuccess) return result(tried); \
    } while (0)
#define REQUIRE(condition, e) TRY((condition) ? cudaSuccess : (e))
/* Replace a stream's handle by the stream. */
#define RESOLVE(s) REQUIRE(((s) = resolve(s)) != NULL, cudaErrorInvalidResourceHandle)

} // namespace

cudaError_t emu_launch(const std::function<void()> &body, dim3 grid, dim3 block, size_t shared,
                       cudaStream_t s, const std::function<void()> &whole) {
    ENTER("cudaLaunchKernel");
    RESOLVE(s);
    REQUIRE(shared <= sizeof emu_dynamic_shared && grid.x - 1 < 0x7fffffffu && grid.y - 1 < 65535 && grid.z - 1 < 65535 &&
                block.x - 1 < 1024 && block.y - 1 < 1024 && block.z - 1 < 64 &&
                block.x * block.y * block.z <= MAX_THREADS,
            cudaErrorInvalidConfiguration);
    TRY(submit(s, [=] {
        emu_dynamic_bytes = shared;
#ifdef EMU_ASAN
        ASAN_UNPOISON_MEMORY_REGION(emu_dynamic_shared, shared);
        ASAN_POISON_MEMORY_REGION(emu_dynamic_shared + shared, sizeof emu_dynamic_shared - shared);
#endif
        run_grid(body, grid, block, whole);
    }));
    emu_count.launches++;
    return cudaSuccess;
}

static std::set<const void *>         loaded;
static std::map<const void *, size_t> dynamic_limits; /* where a program has set one */

cudaError_t emu_load(const void *function, size_t shared) {
    const auto limit = dynamic_limits.find(function);
    if (loaded.count(function) == 0 && emu_lazy) TRY(refuse_in_capture(false));
    loaded.insert(function);
    REQUIRE(shared <= (limit == dynamic_limits.end() ? 48 << 10 : limit->second), cudaErrorInvalidValue);
    return cudaSuccess;
}

extern "C" {

/* ---- state of the emulator ---- */

void emu_unload(void) { loaded.clear(); }

size_t emu_live_allocations(void) { return heap.size(); }
size_t emu_live_bytes(void) { return device_bytes; }
size_t emu_live_streams(void) { return streams.size(); }
size_t emu_live_events(void) { return events.size(); }
size_t emu_live_graphs(void) { return graphs.size() + execs.size(); }
size_t emu_live_cublas(void) { return handles.size(); }
size_t emu_pending(void) {
    size_t n = 0;
    for (const queue_ref &q : queues) n += q->added - q->done;
    return n;
}
int    emu_is_device(const void *p, size_t bytes) { return find(p, bytes) == DEVICE; }
int    emu_allocation(const void *p, char **begin, char **end) {
    for (const auto *all : {&heap, &lent}) {
        auto after = all->upper_bound((char *)p);
        if (after == all->begin() || (char *)p >= (--after)->first + after->second.bytes) continue;
        *begin = after->first;
        *end   = after->first + after->second.bytes;
        return 1;
    }
    return 0;
}
void emu_lend(void *p, size_t bytes) {
    if (bytes == 0) lent.erase((char *)p);
    else lent[(char *)p] = allocation{bytes, true};
    emu_heap_changes++;
}
size_t emu_gemm_calls(void) { return gemm_log.size(); }
const struct emu_gemm_call *emu_gemm_call_at(size_t i) { return &gemm_log.at(i); }

/* ---- errors ---- */

cudaError_t cudaPeekAtLastError(void) { return last_error; }
cudaError_t cudaGetLastError(void) {
    cudaError_t e = last_error;
    last_error    = cudaSuccess;
    return e;
}

const char *cudaGetErrorName(cudaError_t e) {
#define NAME(error) case error: return #error
    switch (e) {
    NAME(cudaSuccess);
    NAME(cudaErrorInvalidValue);
    NAME(cudaErrorMemoryAllocation);
    NAME(cudaErrorInvalidConfiguration);
    NAME(cudaErrorInsufficientDriver);
    NAME(cudaErrorNoDevice);
    NAME(cudaErrorInvalidDevice);
    NAME(cudaErrorInvalidResourceHandle);
    NAME(cudaErrorIllegalState);
    NAME(cudaErrorNotReady);
    NAME(cudaErrorIllegalAddress);
    NAME(cudaErrorLaunchFailure);
    NAME(cudaErrorNotSupported);
    NAME(cudaErrorStreamCaptureUnsupported);
    NAME(cudaErrorStreamCaptureInvalidated);
    NAME(cudaErrorStreamCaptureMerge);
    NAME(cudaErrorStreamCaptureUnmatched);
    NAME(cudaErrorStreamCaptureUnjoined);
    NAME(cudaErrorStreamCaptureIsolation);
    NAME(cudaErrorStreamCaptureImplicit);
    NAME(cudaErrorCapturedEvent);
    NAME(cudaErrorUnknown);
    default: return "unrecognized error code";
    }
#undef NAME
}
const char *cudaGetErrorString(cudaError_t e) {
    return e == cudaSuccess ? "no error" : cudaGetErrorName(e);
}

/* ---- device ---- */

cudaError_t cudaGetDeviceCount(int *count) {
    *count = emu_device_count;
    ENTER("cudaGetDeviceCount");
    return cudaSuccess;
}
static int current_device;
cudaError_t cudaGetDevice(int *device) {
    ENTER("cudaGetDevice");
    *device = current_device;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
    ENTER("cudaSetDevice");
    REQUIRE(device >= 0 && device < emu_device_count, cudaErrorInvalidDevice);
    current_device = device;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    ENTER("cudaGetDeviceProperties");
    REQUIRE(device >= 0 && device < emu_device_count, cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    strcpy(p->name, "CUDA on CPU");
    p->totalGlobalMem              = emu_device_memory;
    p->sharedMemPerBlock           = 48 << 10;
    p->warpSize                    = 32;
    p->maxThreadsPerBlock          = (int)MAX_THREADS;
    p->major                       = emu_device_major;
    p->minor                       = emu_device_minor;
    p->multiProcessorCount         = emu_device_sms;
    p->l2CacheSize                 = 32 << 20;
    p->maxThreadsPerMultiProcessor = 2048;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    ENTER("cudaDeviceGetAttribute");
    REQUIRE(device >= 0 && device < emu_device_count, cudaErrorInvalidDevice);
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = (int)MAX_THREADS; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMultiProcessorCount: *value = emu_device_sms; break;
    case cudaDevAttrL2CacheSize: *value = 32 << 20; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrComputeCapabilityMajor: *value = emu_device_major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = emu_device_minor; break;
    default: return result(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version) {
    if (injected("cudaDriverGetVersion")) return result(emu_fail_error);
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version) {
    if (injected("cudaRuntimeGetVersion")) return result(emu_fail_error);
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) {
    ENTER("cudaDeviceSynchronize");
    TRY(refuse_in_capture(true));
    emu_count.synchronisations++;
    wait_for_all();
    return cudaSuccess;
}

/* ---- memory ---- */

cudaError_t cudaMalloc(void **p, size_t bytes) {
    ENTER("cudaMalloc");
    TRY(refuse_in_capture(false));
    TRY(allocate(p, bytes, true));
    emu_count.allocations++;
    return cudaSuccess;
}
static cudaError_t release_and_wait(const char *name, void *p, bool device) {
    ENTER(name);
    if (p == NULL) return cudaSuccess;
    TRY(refuse_in_capture(false));
    emu_count.synchronisations++;
    wait_for_all();
    return result(release(p, device));
}
cudaError_t cudaFree(void *p) { return release_and_wait("cudaFree", p, true); }
cudaError_t cudaFreeHost(void *p) { return release_and_wait("cudaFreeHost", p, false); }

static cudaError_t allocate_host(const char *name, void **p, size_t bytes) {
    ENTER(name);
    TRY(refuse_in_capture(false));
    TRY(allocate(p, bytes, false));
    emu_count.allocations++;
    return cudaSuccess;
}
cudaError_t cudaMallocHost(void **p, size_t bytes) {
    return allocate_host("cudaMallocHost", p, bytes);
}
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned int) {
    return allocate_host("cudaHostAlloc", p, bytes);
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    ENTER("cudaMemGetInfo");
    *total      = emu_device_memory;
    *free_bytes = emu_device_memory - std::min(device_bytes, emu_device_memory);
    return cudaSuccess;
}

/* The real one has staged so little of the host's before it returns, and it may arrive later. */
static bool is_staged(place target, place source, size_t bytes) {
    return source == HOST && target == DEVICE && bytes <= 64 << 10;
}
static cudaError_t copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                        cudaStream_t s) {
    const place target = find(to, bytes), source = find(from, bytes);
    if (bytes > 0) {
        REQUIRE(target != OVERRUN && source != OVERRUN, cudaErrorInvalidValue);
        if (kind != cudaMemcpyDefault) {
            bool to_device   = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
            bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
            REQUIRE(to_device == (target == DEVICE) && from_device == (source == DEVICE),
                    cudaErrorInvalidValue);
        }
    }
    if (is_staged(target, source, bytes) && s->captured_by == NULL) {
        std::vector<char> staged((const char *)from, (const char *)from + bytes);
        TRY(submit(s, [=] { memcpy(to, staged.data(), staged.size()); }));
    } else {
        TRY(submit(s, [=] { memmove(to, from, bytes); }));
    }
    emu_count.memcpys++;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t s) {
    ENTER("cudaMemcpyAsync");
    RESOLVE(s);
    return copy(to, from, bytes, kind, s);
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
    cudaStream_t s = NULL;
    ENTER("cudaMemcpy");
    RESOLVE(s);
    TRY(refuse_in_capture(false));
    cudaError_t e = copy(to, from, bytes, kind, s);
    if (e != cudaSuccess) return e;
    emu_count.synchronisations++;
    if (!is_staged(find(to, bytes), find(from, bytes), bytes)) wait_for(point{s->q, s->q->added});
    return cudaSuccess;
}

static cudaError_t set(void *p, int value, size_t bytes, cudaStream_t s) {
    if (bytes > 0) {
        place target = find(p, bytes);
        REQUIRE(target == DEVICE || target == PINNED, cudaErrorInvalidValue);
    }
    TRY(submit(s, [=] { memset(p, value, bytes); }));
    emu_count.memsets++;
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s) {
    ENTER("cudaMemsetAsync");
    RESOLVE(s);
    return set(p, value, bytes, s);
}
cudaError_t cudaMemset(void *p, int value, size_t bytes) {
    cudaStream_t s = NULL;
    ENTER("cudaMemset");
    RESOLVE(s);
    TRY(refuse_in_capture(false));
    return set(p, value, bytes, s); /* it does not wait */
}

/* ---- streams ---- */

static cudaError_t create_stream(const char *name, cudaStream_t *s, unsigned flags) {
    ENTER(name);
    resolve(NULL); /* the default streams come first */
    *s      = new CUstream_st();
    (*s)->q = new_queue((flags & cudaStreamNonBlocking) == 0);
    streams.insert(*s);
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *s) { return create_stream("cudaStreamCreate", s, 0); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned int flags) {
    return create_stream("cudaStreamCreateWithFlags", s, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t s) { /* it does not wait: its work goes on */
    ENTER("cudaStreamDestroy");
    REQUIRE(streams.count(s) != 0, cudaErrorInvalidResourceHandle);
    TRY(refuse_in_capture_of(s));
    streams.erase(s);
    delete s;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    ENTER("cudaStreamSynchronize");
    RESOLVE(s);
    TRY(refuse_in_capture_of(s));
    TRY(refuse_implicit_wait(s));
    emu_count.synchronisations++;
    add(s->q, operation()); /* on the legacy stream this waits for the others */
    wait_for(point{s->q, s->q->added});
    return cudaSuccess;
}

/* A query tells the present state and then lets some work be done, so that polling ends. */
static cudaError_t query(const point &p) {
    if (p.of == NULL || p.of->done >= p.n) return cudaSuccess;
    run_one(p.of);
    return result(cudaErrorNotReady);
}
cudaError_t cudaStreamQuery(cudaStream_t s) {
    ENTER("cudaStreamQuery");
    RESOLVE(s);
    TRY(refuse_in_capture_of(s));
    TRY(refuse_implicit_wait(s));
    return query(point{s->q, s->q->added});
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned int) {
    ENTER("cudaStreamWaitEvent");
    RESOLVE(s);
    REQUIRE(events.count(e) != 0, cudaErrorInvalidResourceHandle);
    std::shared_ptr<capture> by = e->captured_by;
    if (by != NULL) {
        REQUIRE(!by->invalid, cudaErrorStreamCaptureInvalidated);
        REQUIRE(s != &legacy_stream, cudaErrorStreamCaptureImplicit);
        if (std::find(captures.begin(), captures.end(), by) == captures.end())
            return result(cudaErrorCapturedEvent); /* of a capture that has ended */
        if (s->captured_by == NULL) {
            s->captured_by = by;
            by->streams.push_back(s);
        } else if (s->captured_by != by) {
            s->captured_by->invalid = by->invalid = true;
            return result(cudaErrorStreamCaptureMerge);
        }
        merge(&s->tail, e->tail);
        return cudaSuccess;
    }
    if (s->captured_by != NULL && e->at.of != NULL) { /* a graph cannot wait for what is outside */
        s->captured_by->invalid = true;
        return result(cudaErrorStreamCaptureIsolation);
    }
    if (e->at.of != NULL) add(s->q, operation{std::function<void()>(), {e->at}});
    return cudaSuccess;
}

/* ---- events ---- */

static cudaError_t create_event(const char *name, cudaEvent_t *e, unsigned flags) {
    ENTER(name);
    *e          = new CUevent_st();
    (*e)->flags = flags;
    events.insert(*e);
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *e) { return create_event("cudaEventCreate", e, 0); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned int flags) {
    return create_event("cudaEventCreateWithFlags", e, flags);
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    ENTER("cudaEventDestroy");
    REQUIRE(events.erase(e) != 0, cudaErrorInvalidResourceHandle);
    delete e;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    ENTER("cudaEventRecord");
    RESOLVE(s);
    REQUIRE(events.count(e) != 0, cudaErrorInvalidResourceHandle);
    if (s->captured_by != NULL) {
        REQUIRE(!s->captured_by->invalid, cudaErrorStreamCaptureInvalidated);
        e->captured_by = s->captured_by;
        e->tail        = s->tail;
        return cudaSuccess;
    }
    TRY(refuse_implicit_wait(s));
    add(s->q, operation());
    e->captured_by.reset();
    e->at = point{s->q, s->q->added};
    return cudaSuccess;
}
static cudaError_t usable_event(cudaEvent_t e) {
    if (events.count(e) == 0) return cudaErrorInvalidResourceHandle;
    if (e->captured_by != NULL) {
        e->captured_by->invalid = true;
        return cudaErrorCapturedEvent;
    }
    return refuse_in_capture(false);
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
    ENTER("cudaEventQuery");
    TRY(usable_event(e));
    return query(e->at);
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    ENTER("cudaEventSynchronize");
    TRY(usable_event(e));
    emu_count.synchronisations++;
    if (e->at.of != NULL) wait_for(e->at);
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end) {
    ENTER("cudaEventElapsedTime");
    for (cudaEvent_t e : {begin, end}) {
        TRY(usable_event(e));
        REQUIRE(e->at.of != NULL && !(e->flags & cudaEventDisableTiming),
                cudaErrorInvalidResourceHandle);
        REQUIRE(e->at.of->done >= e->at.n, cudaErrorNotReady);
    }
    *ms = 1.0f; /* there is no time here */
    return cudaSuccess;
}

/* ---- capture ---- */

static cudaError_t begin_capture(cudaStream_t s, cudaGraph_t graph, const node_list &needs,
                                 cudaStreamCaptureMode mode) {
    RESOLVE(s);
    REQUIRE(s != &legacy_stream, cudaErrorStreamCaptureUnsupported);
    REQUIRE(s->captured_by == NULL, cudaErrorIllegalState);
    std::shared_ptr<capture> c(new capture());
    c->to_graph = graph != NULL;
    c->graph    = graph != NULL ? graph : new CUgraph_st();
    c->mode     = mode;
    c->id       = ++num_captures;
    c->origin   = s;
    c->streams.push_back(s);
    captures.push_back(c);
    s->captured_by = c;
    s->tail        = needs;
    return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode) {
    ENTER("cudaStreamBeginCapture");
    return begin_capture(s, NULL, node_list(), mode);
}
cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t s, cudaGraph_t graph,
                                          const cudaGraphNode_t *needs, const cudaGraphEdgeData *,
                                          size_t num_needs, enum cudaStreamCaptureMode mode) {
    ENTER("cudaStreamBeginCaptureToGraph");
    REQUIRE(graph != NULL, cudaErrorInvalidValue);
    return begin_capture(s, graph, node_list(needs, needs + num_needs), mode);
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph) {
    ENTER("cudaStreamEndCapture");
    RESOLVE(s);
    std::shared_ptr<capture> c = s->captured_by;
    REQUIRE(c != NULL, cudaErrorIllegalState);
    REQUIRE(c->origin == s, cudaErrorStreamCaptureUnmatched);
    const bool joined = all_joined(*c);
    end_capture(c);
    *graph = NULL;
    if (c->invalid || !joined) {
        if (!c->to_graph) delete c->graph;
        return result(c->invalid ? cudaErrorStreamCaptureInvalidated
                                 : cudaErrorStreamCaptureUnjoined);
    }
    if (!c->to_graph) graphs.insert(c->graph);
    *graph = c->graph;
    return cudaSuccess;
}
static cudaStreamCaptureStatus status_of(cudaStream_t s) {
    return s->captured_by == NULL     ? cudaStreamCaptureStatusNone
           : s->captured_by->invalid ? cudaStreamCaptureStatusInvalidated
                                     : cudaStreamCaptureStatusActive;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode) {
    ENTER("cudaThreadExchangeStreamCaptureMode");
    std::swap(*mode, thread_mode);
    return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function) {
    ENTER("cudaFuncGetAttributes");
    REQUIRE(function != NULL, cudaErrorInvalidValue);
    TRY(emu_load(function, 0));
    memset((void *)attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = 1024;
    attributes->ptxVersion = attributes->binaryVersion = 10 * emu_device_major + emu_device_minor;
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value) {
    ENTER("cudaFuncSetAttribute");
    REQUIRE(function != NULL && value >= 0, cudaErrorInvalidValue);
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    REQUIRE((size_t)value <= sizeof emu_dynamic_shared, cudaErrorInvalidValue);
    dynamic_limits[function] = (size_t)value;
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status) {
    ENTER("cudaStreamIsCapturing");
    RESOLVE(s);
    TRY(refuse_implicit_wait(s));
    *status = status_of(s);
    return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **needs,
                                     const cudaGraphEdgeData **edges, size_t *num_needs) {
    ENTER("cudaStreamGetCaptureInfo");
    RESOLVE(s);
    TRY(refuse_implicit_wait(s));
    *status = status_of(s);
    if (*status != cudaStreamCaptureStatusActive) return cudaSuccess;
    s->tail_edges.assign(s->tail.size(), cudaGraphEdgeData());
    if (id != NULL) *id = s->captured_by->id;
    if (graph != NULL) *graph = s->captured_by->graph;
    if (needs != NULL) *needs = s->tail.data();
    if (edges != NULL) *edges = s->tail_edges.data();
    if (num_needs != NULL) *num_needs = s->tail.size();
    return cudaSuccess;
}
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t s, cudaGraphNode_t *needs,
                                                const cudaGraphEdgeData *, size_t num_needs,
                                                unsigned int flags) {
    ENTER("cudaStreamUpdateCaptureDependencies");
    RESOLVE(s);
    REQUIRE(s->captured_by != NULL, cudaErrorIllegalState);
    REQUIRE(!s->captured_by->invalid, cudaErrorStreamCaptureInvalidated);
    REQUIRE(flags <= cudaStreamSetCaptureDependencies, cudaErrorInvalidValue);
    if (flags == cudaStreamSetCaptureDependencies) s->tail.clear();
    merge(&s->tail, node_list(needs, needs + num_needs));
    return cudaSuccess;
}

/* ---- graphs ---- */

cudaError_t cudaGraphCreate(cudaGraph_t *graph, unsigned int flags) {
    ENTER("cudaGraphCreate");
    REQUIRE(flags == 0, cudaErrorInvalidValue);
    *graph = new CUgraph_st();
    graphs.insert(*graph);
    return cudaSuccess;
}
cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle *handle, cudaGraph_t graph,
                                             unsigned int at_launch, unsigned int flags) {
    ENTER("cudaGraphConditionalHandleCreate");
    REQUIRE(graph != NULL && flags <= cudaGraphCondAssignDefault, cudaErrorInvalidValue);
    conditions.push_back(condition{0, at_launch, flags == cudaGraphCondAssignDefault});
    *handle = conditions.size();
    return cudaSuccess;
}
void cudaGraphSetConditional(cudaGraphConditionalHandle handle, unsigned int value) {
    if (handle == 0 || handle > conditions.size())
        die("cudaGraphSetConditional: no such handle", self(), 0);
    conditions[handle - 1].value = value;
}
cudaError_t cudaGraphAddNode(cudaGraphNode_t *out, cudaGraph_t graph, const cudaGraphNode_t *needs,
                             const cudaGraphEdgeData *, size_t num_needs,
                             struct cudaGraphNodeParams *p) {
    ENTER("cudaGraphAddNode");
    REQUIRE(graph != NULL && p != NULL, cudaErrorInvalidValue);
    std::shared_ptr<CUgraphNode_st> node(new CUgraphNode_st());
    node->needs.assign(needs, needs + num_needs);
    if (p->type == cudaGraphNodeTypeConditional) {
        const cudaConditionalNodeParams &c = p->conditional;
        REQUIRE(c.handle - 1 < conditions.size() && c.size == 1, cudaErrorInvalidValue);
        REQUIRE(c.type == cudaGraphCondTypeIf, cudaErrorNotSupported);
        node->condition            = c.handle;
        node->body                 = new CUgraph_st();
        p->conditional.phGraph_out = &node->body;
    } else {
        REQUIRE(p->type == cudaGraphNodeTypeEmpty, cudaErrorNotSupported);
    }
    graph->nodes.push_back(node);
    *out = node.get();
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long) {
    ENTER("cudaGraphInstantiate");
    REQUIRE(graphs.count(graph) != 0, cudaErrorInvalidValue);
    *exec          = new CUgraphExec_st();
    (*exec)->nodes = graph->nodes;
    collect_conditions(graph->nodes, &(*exec)->conditions);
    execs.insert(*exec);
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s) {
    ENTER("cudaGraphLaunch");
    RESOLVE(s);
    REQUIRE(execs.count(exec) != 0, cudaErrorInvalidValue);
    CUgraphExec_st now = *exec; /* its own nodes, should exec be destroyed before they run */
    if (s->captured_by == NULL && exec->last_launch.of != NULL)
        add(s->q, operation{std::function<void()>(), {exec->last_launch}});
    TRY(submit(s, [=] {
        for (cudaGraphConditionalHandle h : now.conditions)
            if (conditions[h - 1].assign) conditions[h - 1].value = conditions[h - 1].at_launch;
        run_nodes(now.nodes);
    }));
    exec->last_launch = point{s->q, s->q->added};
    emu_count.graph_launches++;
    return cudaSuccess;
}
/* They count alone where there is no array. */
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
    ENTER("cudaGraphGetNodes");
    const size_t room = nodes ? *count : 0;
    *count            = graph->nodes.size();
    for (size_t i = 0; i < *count && i < room; i++) nodes[i] = graph->nodes[i].get();
    return cudaSuccess;
}
cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t *from, cudaGraphNode_t *to,
                              cudaGraphEdgeData *data, size_t *count) {
    ENTER("cudaGraphGetEdges");
    const size_t room = from ? *count : 0;
    *count            = 0;
    for (const std::shared_ptr<CUgraphNode_st> &node : graph->nodes)
        for (cudaGraphNode_t need : node->needs) {
            if (*count < room) {
                from[*count] = need, to[*count] = node.get();
                if (data) data[*count] = cudaGraphEdgeData();
            }
            ++*count;
        }
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    ENTER("cudaGraphDestroy");
    REQUIRE(graphs.erase(graph) != 0, cudaErrorInvalidValue);
    delete graph;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    ENTER("cudaGraphExecDestroy");
    REQUIRE(execs.erase(exec) != 0, cudaErrorInvalidValue);
    delete exec;
    return cudaSuccess;
}

} /* extern "C" */

/* ======================================================================================
   cuBLAS
   ====================================================================================== */

namespace {

size_t size_of(cudaDataType type) { return type == CUDA_R_32F ? 4 : 2; }

float load(const void *base, cudaDataType type, size_t i) {
    __half        f16;
    __nv_bfloat16 bf16;
    if (type == CUDA_R_32F) return ((const float *)base)[i];
    memcpy((void *)&f16, (const char *)base + 2 * i, 2);
    memcpy((void *)&bf16, (const char *)base + 2 * i, 2);
    return type == CUDA_R_16F ? __half2float(f16) : __bfloat162float(bf16);
}

void store(void *base, cudaDataType type, size_t i, float v) {
    const __half        f16  = __float2half_rn(v);
    const __nv_bfloat16 bf16 = __float2bfloat16_rn(v);
    if (type == CUDA_R_32F) ((float *)base)[i] = v;
    else memcpy((char *)base + 2 * i, type == CUDA_R_16F ? (const void *)&f16 : &bf16, 2);
}

/* A matrix as floats, column by column, transposed if asked. */
std::vector<float> unpack(const void *base, cudaDataType type, size_t offset, int ld,
                          cublasOperation_t op, int rows, int columns) {
    std::vector<float> v((size_t)rows * (size_t)columns);
    for (size_t j = 0; j < (size_t)columns; j++)
        for (size_t i = 0; i < (size_t)rows; i++)
            v[j * (size_t)rows + i] =
                load(base, type, offset + (op == CUBLAS_OP_N ? j * (size_t)ld + i
                                                             : i * (size_t)ld + j));
    return v;
}

/* Sums in the order of k in fp32, each result rounded once to its type. */
void run_gemm(const emu_gemm_call &g, float alpha, float beta) {
    const size_t m = (size_t)g.m, k = alpha != 0 ? (size_t)g.k : 0;
    for (int batch = 0; batch < g.batch; batch++) {
        std::vector<float> a, b, sum(m);
        if (k > 0) {
            a = unpack(g.a, g.atype, (size_t)(g.stridea * batch), g.lda, g.transa, g.m, g.k);
            b = unpack(g.b, g.btype, (size_t)(g.strideb * batch), g.ldb, g.transb, g.k, g.n);
        }
        for (size_t j = 0; j < (size_t)g.n; j++) {
            std::fill(sum.begin(), sum.end(), 0.0f);
            for (size_t l = 0; l < k; l++)
                for (size_t i = 0; i < m; i++) sum[i] += a[l * m + i] * b[j * k + l];
            for (size_t i = 0; i < m; i++) {
                const size_t at = (size_t)(g.stridec * batch) + j * (size_t)g.ldc + i;
                float        v  = alpha * sum[i];
                if (beta != 0) v += beta * load(g.c, g.ctype, at);
                if (g.bias != NULL) v += load(g.bias, g.ctype, i);
                if (g.relu && v <= 0) v = 0;
                store(g.c, g.ctype, at, v);
            }
        }
    }
}

bool known(cublasOperation_t op) {
    return op == CUBLAS_OP_N || op == CUBLAS_OP_T || op == CUBLAS_OP_C;
}

/* The combinations of types that cuBLAS has for sums in fp32. */
bool supported(const emu_gemm_call &g) {
    const bool narrow = g.atype == CUDA_R_16F || g.atype == CUDA_R_16BF;
    switch (g.compute) {
    case CUBLAS_COMPUTE_32F:
    case CUBLAS_COMPUTE_32F_PEDANTIC:
        return g.atype == g.btype && (narrow || g.atype == CUDA_R_32F) &&
               (g.ctype == g.atype || g.ctype == CUDA_R_32F);
    case CUBLAS_COMPUTE_32F_FAST_16F:
    case CUBLAS_COMPUTE_32F_FAST_16BF:
    case CUBLAS_COMPUTE_32F_FAST_TF32:
        return g.atype == CUDA_R_32F && g.btype == CUDA_R_32F && g.ctype == CUDA_R_32F;
    default: return false;
    }
}

/* A device would fault, now or later; here is the place to look at. */
void require_device(const char *name, const char *what, const void *p, long long elements,
                    size_t size) {
    char *begin, *end; /* of memory that was lent */
    if (find(p, (size_t)elements * size) == DEVICE) return;
    if (emu_allocation(p, &begin, &end) && (size_t)elements * size <= (size_t)(end - (char *)p) && lent.count(begin))
        return;
    fprintf(stderr, "cuda_emu: %s: %s is not %lld elements of device memory\n", name, what,
            elements);
    abort();
}

long long extent(int rows, int columns, int ld, long long stride, int batch) {
    return stride * (batch - 1) + (long long)ld * (columns - 1) + rows;
}

cublasStatus_t gemm(cublasHandle_t h, emu_gemm_call g, const void *alpha, const void *beta) {
    if (injected(g.name)) return CUBLAS_STATUS_EXECUTION_FAILED;
    if (handles.count(h) == 0) return CUBLAS_STATUS_NOT_INITIALIZED;
    const int a_rows = g.transa == CUBLAS_OP_N ? g.m : g.k, a_columns = g.m + g.k - a_rows;
    const int b_rows = g.transb == CUBLAS_OP_N ? g.k : g.n, b_columns = g.k + g.n - b_rows;
    if (!known(g.transa) || !known(g.transb) || g.m < 0 || g.n < 0 || g.k < 0 || g.batch < 0 ||
        g.lda < std::max(1, a_rows) || g.ldb < std::max(1, b_rows) || g.ldc < std::max(1, g.m) ||
        alpha == NULL || beta == NULL)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!supported(g)) return CUBLAS_STATUS_NOT_SUPPORTED;
    cudaStream_t s = resolve(h->stream);
    if (s == NULL) return CUBLAS_STATUS_EXECUTION_FAILED;
    g.stream          = h->stream;
    g.captured        = s->captured_by != NULL;
    g.workspace       = h->workspace;
    g.workspace_bytes = h->workspace_bytes;
    g.math            = h->math;
    g.pointer_mode    = h->pointer_mode;
    if (g.m > 0 && g.n > 0 && g.batch > 0) {
        std::function<void()> run;
        require_device(g.name, "C", g.c, extent(g.m, g.n, g.ldc, g.stridec, g.batch),
                       size_of(g.ctype));
        if (g.k > 0) {
            require_device(g.name, "A", g.a, extent(a_rows, a_columns, g.lda, g.stridea, g.batch),
                           size_of(g.atype));
            require_device(g.name, "B", g.b, extent(b_rows, b_columns, g.ldb, g.strideb, g.batch),
                           size_of(g.btype));
        }
        if (g.pointer_mode == CUBLAS_POINTER_MODE_DEVICE) {
            require_device(g.name, "alpha", alpha, 1, 4);
            require_device(g.name, "beta", beta, 1, 4);
            run = [=] { run_gemm(g, *(const float *)alpha, *(const float *)beta); };
        } else {
            const float alpha_now = *(const float *)alpha, beta_now = *(const float *)beta;
            run = [=] { run_gemm(g, alpha_now, beta_now); };
        }
        if (result(submit(s, run)) != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
    }
    emu_count.gemms++;
    emu_count.captured_gemms_without_workspace += g.captured && g.workspace == NULL;
    gemm_log.push_back(g);
    return CUBLAS_STATUS_SUCCESS;
}

#define ENTER_CUBLAS(name, handle)                                        \
    do {                                                                  \
        if (injected(name)) return CUBLAS_STATUS_EXECUTION_FAILED;        \
        if (handles.count(handle) == 0) return CUBLAS_STATUS_NOT_INITIALIZED; \
    } while (0)

} // namespace

extern "C" {

const char *cublasGetStatusName(cublasStatus_t status) {
    return status == CUBLAS_STATUS_SUCCESS ? "CUBLAS_STATUS_SUCCESS" : "CUBLAS_STATUS_(emulated)";
}
const char *cublasGetStatusString(cublasStatus_t status) { return cublasGetStatusName(status); }

cublasStatus_t cublasCreate(cublasHandle_t *h) {
    if (injected("cublasCreate")) return CUBLAS_STATUS_EXECUTION_FAILED;
    if (emu_device_count == 0) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (refuse_in_capture(false) != cudaSuccess) return CUBLAS_STATUS_ALLOC_FAILED;
    *h = new cublasContext();
    handles.insert(*h);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy(cublasHandle_t h) { /* frees device memory, so it waits */
    ENTER_CUBLAS("cublasDestroy", h);
    if (refuse_in_capture(false) != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
    emu_count.synchronisations++;
    wait_for_all();
    handles.erase(h);
    delete h;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream(cublasHandle_t h, cudaStream_t s) {
    ENTER_CUBLAS("cublasSetStream", h);
    h->stream          = s;
    h->workspace       = NULL; /* back to its own */
    h->workspace_bytes = 0;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetStream(cublasHandle_t h, cudaStream_t *s) {
    ENTER_CUBLAS("cublasGetStream", h);
    *s = h->stream;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace(cublasHandle_t h, void *workspace, size_t bytes) {
    ENTER_CUBLAS("cublasSetWorkspace", h);
    if ((uintptr_t)workspace % 256 != 0) return CUBLAS_STATUS_INVALID_VALUE;
    if (workspace != NULL)
        require_device("cublasSetWorkspace", "it", workspace, (long long)bytes, 1);
    h->workspace       = workspace;
    h->workspace_bytes = bytes;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t h, cublasMath_t mode) {
    ENTER_CUBLAS("cublasSetMathMode", h);
    h->math = mode;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetMathMode(cublasHandle_t h, cublasMath_t *mode) {
    ENTER_CUBLAS("cublasGetMathMode", h);
    *mode = h->math;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetPointerMode(cublasHandle_t h, cublasPointerMode_t mode) {
    ENTER_CUBLAS("cublasSetPointerMode", h);
    h->pointer_mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetPointerMode(cublasHandle_t h, cublasPointerMode_t *mode) {
    ENTER_CUBLAS("cublasGetPointerMode", h);
    *mode = h->pointer_mode;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t gemm_ex(const char *name, cublasHandle_t h, cublasOperation_t transa,
                              cublasOperation_t transb, int m, int n, int k, const void *alpha,
                              const void *a, cudaDataType atype, int lda, long long stridea,
                              const void *b, cudaDataType btype, int ldb, long long strideb,
                              const void *beta, void *c, cudaDataType ctype, int ldc,
                              long long stridec, int batch, cublasComputeType_t compute,
                              cublasGemmAlgo_t algo) {
    emu_gemm_call g = emu_gemm_call();
    g.name = name;
    g.transa = transa, g.transb = transb;
    g.m = m, g.n = n, g.k = k;
    g.lda = lda, g.ldb = ldb, g.ldc = ldc;
    g.stridea = stridea, g.strideb = strideb, g.stridec = stridec;
    g.a = a, g.b = b, g.c = c;
    g.atype = atype, g.btype = btype, g.ctype = ctype;
    g.batch   = batch;
    g.compute = compute;
    g.algo    = algo;
    return gemm(h, g, alpha, beta);
}

/* cublasLt: what is set in a descriptor lies in its opaque words. */
struct lt_product { uint32_t compute, scale, transa, transb, epilogue, unused; const void *bias; };
struct lt_layout { uint64_t type, rows, columns; int64_t ld, stride, count; };

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t d, size_t size,
                                               cublasComputeType_t compute, cudaDataType_t scale) {
    const lt_product p = {(uint32_t)compute, (uint32_t)scale, CUBLAS_OP_N, CUBLAS_OP_N,
                          CUBLASLT_EPILOGUE_DEFAULT, 0, NULL};
    if (injected("cublasLtMatmulDescInit")) return CUBLAS_STATUS_EXECUTION_FAILED;
    if (size < sizeof p || scale != CUDA_R_32F) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy((void *)d, &p, sizeof p);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t size) {
    lt_product p;
    if (injected("cublasLtMatmulDescSetAttribute")) return CUBLAS_STATUS_EXECUTION_FAILED;
    memcpy(&p, d, sizeof p);
    const bool  pointer = attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER;
    void *const to      = attribute == CUBLASLT_MATMUL_DESC_TRANSA     ? (void *)&p.transa
                          : attribute == CUBLASLT_MATMUL_DESC_TRANSB   ? (void *)&p.transb
                          : attribute == CUBLASLT_MATMUL_DESC_EPILOGUE ? (void *)&p.epilogue
                          : pointer                                    ? (void *)&p.bias
                                                                       : NULL;
    if (to == NULL || size != (pointer ? sizeof p.bias : 4)) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, value, size);
    memcpy((void *)d, &p, sizeof p);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t d, size_t size,
                                                 cudaDataType type, uint64_t rows, uint64_t columns,
                                                 int64_t ld) {
    const lt_layout l = {(uint64_t)type, rows, columns, ld, 0, 1};
    if (injected("cublasLtMatrixLayoutInit")) return CUBLAS_STATUS_EXECUTION_FAILED;
    if (size < sizeof l || ld < (int64_t)rows) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy((void *)d, &l, sizeof l);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t          d,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t size) {
    lt_layout l;
    int32_t   count;
    if (injected("cublasLtMatrixLayoutSetAttribute")) return CUBLAS_STATUS_EXECUTION_FAILED;
    memcpy(&l, d, sizeof l);
    if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT && size == 4) {
        memcpy(&count, value, 4);
        l.count = count;
    } else if (attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET && size == 8) {
        memcpy(&l.stride, value, 8);
    } else {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    memcpy((void *)d, &l, sizeof l);
    return CUBLAS_STATUS_SUCCESS;
}
/* What a caller promises and allows, as an array that the attribute is an index of. It is handed on
   in the opaque words of what the heuristic finds. */
struct lt_wish { uint64_t word[8]; };
static_assert(sizeof(lt_wish) <= sizeof(cublasLtMatmulPreferenceOpaque_t) &&
                  sizeof(lt_wish) <= sizeof(cublasLtMatmulAlgo_t), "fits");

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t d, size_t size) {
    const lt_wish w = {{0, 0, CUBLASLT_REDUCTION_SCHEME_MASK, 256, 256, 256, 256, 0}};
    if (injected("cublasLtMatmulPreferenceInit")) return CUBLAS_STATUS_EXECUTION_FAILED;
    if (size < sizeof w) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy((void *)d, &w, sizeof w);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t d,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t size) {
    lt_wish  w;
    uint32_t narrow;
    if (injected("cublasLtMatmulPreferenceSetAttribute")) return CUBLAS_STATUS_EXECUTION_FAILED;
    memcpy(&w, (void *)d, sizeof w);
    if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
        if (size != 8) return CUBLAS_STATUS_INVALID_VALUE;
        memcpy(&w.word[0], value, 8);
    } else {
        const int index = attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK ? 2
                                                                                  : attribute - 2;
        if (size != 4 || index < 2 || index > 6) return CUBLAS_STATUS_INVALID_VALUE;
        memcpy(&narrow, value, 4);
        w.word[index] = narrow;
    }
    memcpy((void *)d, &w, sizeof w);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t light, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t wish, int wanted,
                                              cublasLtMatmulHeuristicResult_t *found, int *count) {
    if (injected("cublasLtMatmulAlgoGetHeuristic")) return CUBLAS_STATUS_EXECUTION_FAILED;
    if (handles.count((cublasHandle_t)light) == 0) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
    if (emu_lt == EMU_LT_UNSUPPORTED) return CUBLAS_STATUS_NOT_SUPPORTED;
    memset((void *)found, 0, sizeof *found);
    memcpy((void *)&found->algo, (void *)wish, sizeof(lt_wish));
    *count = emu_lt != EMU_LT_FINDS_NONE;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t light, cublasLtMatmulDesc_t product,
                              const void *alpha, const void *a, cublasLtMatrixLayout_t a_layout,
                              const void *b, cublasLtMatrixLayout_t b_layout, const void *beta,
                              const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t bytes, cudaStream_t stream) {
    const cublasHandle_t h = (cublasHandle_t)light;
    emu_gemm_call        g = emu_gemm_call();
    lt_product           p;
    lt_layout            la, lb, lc;
    if (handles.count(h) == 0) return CUBLAS_STATUS_NOT_INITIALIZED;
    memcpy(&p, product, sizeof p);
    memcpy(&la, a_layout, sizeof la);
    memcpy(&lb, b_layout, sizeof lb);
    memcpy(&lc, c_layout, sizeof lc);
    if (c != d || memcmp(&lc, d_layout, sizeof lc) != 0) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (emu_lt == EMU_LT_INVALID) return CUBLAS_STATUS_INVALID_VALUE;
    if (emu_lt == EMU_LT_MISMATCH) return CUBLAS_STATUS_ARCH_MISMATCH;
    lt_wish wish = {{0, 0, CUBLASLT_REDUCTION_SCHEME_MASK, 256, 256, 256, 256, 0}};
    if (algo != NULL) memcpy(&wish, algo, sizeof wish);
    if ((uintptr_t)a % wish.word[3] || (uintptr_t)b % wish.word[4] ||
        (uintptr_t)c % wish.word[5] || (uintptr_t)d % wish.word[6] || bytes > wish.word[0] ||
        (uintptr_t)workspace % 256)
        return CUBLAS_STATUS_INVALID_VALUE;
    if ((uintptr_t)p.bias % 16) return CUBLAS_STATUS_EXECUTION_FAILED; /* of which nobody tells it */
    g.reductions = (uint32_t)wish.word[2];
    for (int i = 0; i < 4; i++) g.aligned[i] = (uint32_t)wish.word[3 + i];
    g.name   = "cublasLtMatmul";
    g.transa = (cublasOperation_t)p.transa, g.transb = (cublasOperation_t)p.transb;
    g.m = (int)lc.rows, g.n = (int)lc.columns;
    g.k = (int)(g.transa == CUBLAS_OP_N ? la.columns : la.rows);
    if ((g.transa == CUBLAS_OP_N ? la.rows : la.columns) != lc.rows ||
        (g.transb == CUBLAS_OP_N ? lb.columns : lb.rows) != lc.columns ||
        (g.transb == CUBLAS_OP_N ? lb.rows : lb.columns) != (uint64_t)g.k)
        return CUBLAS_STATUS_INVALID_VALUE;
    g.lda = (int)la.ld, g.ldb = (int)lb.ld, g.ldc = (int)lc.ld;
    g.a = a, g.b = b, g.c = d;
    g.atype = (cudaDataType)la.type, g.btype = (cudaDataType)lb.type;
    g.ctype   = (cudaDataType)lc.type;
    if (lc.count < 1 || la.count != lc.count || lb.count != lc.count)
        return CUBLAS_STATUS_INVALID_VALUE;
    g.batch   = (int)lc.count;
    g.stridea = la.stride, g.strideb = lb.stride, g.stridec = lc.stride;
    g.compute = (cublasComputeType_t)p.compute;
    g.relu    = (p.epilogue & CUBLASLT_EPILOGUE_RELU) != 0;
    if (p.epilogue & CUBLASLT_EPILOGUE_BIAS) {
        if (p.bias == NULL) return CUBLAS_STATUS_INVALID_VALUE;
        require_device(g.name, "bias", p.bias, g.m, size_of(g.ctype));
        g.bias = p.bias;
    }
    /* cublasLt knows no handle's stream and workspace, only those of the call */
    const cublasContext kept = *h;
    h->stream                = stream;
    h->workspace             = workspace;
    h->workspace_bytes       = bytes;
    const cublasStatus_t status = gemm(h, g, alpha, beta);
    h->stream          = kept.stream;
    h->workspace       = kept.workspace;
    h->workspace_bytes = kept.workspace_bytes;
    return status;
}

/* y = alpha x + y; without x, y = alpha y */
static cublasStatus_t vectors(const char *name, cublasHandle_t h, int n, const float *alpha,
                              const float *x, int x_step, float *y, int y_step) {
    ENTER_CUBLAS(name, h);
    cudaStream_t s = resolve(h->stream);
    if (alpha == NULL) return CUBLAS_STATUS_INVALID_VALUE;
    if (s == NULL) return CUBLAS_STATUS_EXECUTION_FAILED;
    if (n <= 0) return CUBLAS_STATUS_SUCCESS;
    if (x_step <= 0 || y_step <= 0) return CUBLAS_STATUS_NOT_SUPPORTED; /* cuBLAS goes backwards */
    if (x != NULL) require_device(name, "x", x, (long long)(n - 1) * x_step + 1, sizeof *x);
    require_device(name, "y", y, (long long)(n - 1) * y_step + 1, sizeof *y);
    const bool  late = h->pointer_mode == CUBLAS_POINTER_MODE_DEVICE;
    const float now  = late ? 0.0f : *alpha;
    const auto  run  = [=] {
        const float a = late ? *alpha : now;
        for (ptrdiff_t i = 0; i < n; i++) {
            float *to = y + i * y_step;
            *to       = x == NULL ? a * *to : fmaf(a, x[i * x_step], *to);
        }
    };
    return result(submit(s, run)) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                 : CUBLAS_STATUS_EXECUTION_FAILED;
}
cublasStatus_t cublasSaxpy(cublasHandle_t h, int n, const float *alpha, const float *x, int incx,
                           float *y, int incy) {
    return vectors("cublasSaxpy", h, n, alpha, x, incx, y, incy);
}
cublasStatus_t cublasSscal(cublasHandle_t h, int n, const float *alpha, float *x, int incx) {
    return vectors("cublasSscal", h, n, alpha, NULL, 1, x, incx);
}
cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m,
                            int n, int k, const void *alpha, const void *a, cudaDataType at,
                            int lda, const void *b, cudaDataType bt, int ldb, const void *beta,
                            void *c, cudaDataType ct, int ldc, cublasComputeType_t compute,
                            cublasGemmAlgo_t algo) {
    return gemm_ex("cublasGemmEx", h, ta, tb, m, n, k, alpha, a, at, lda, 0, b, bt, ldb, 0, beta,
                   c, ct, ldc, 0, 1, compute, algo);
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t h, cublasOperation_t ta,
                                          cublasOperation_t tb, int m, int n, int k,
                                          const void *alpha, const void *a, cudaDataType at,
                                          int lda, long long int sa, const void *b,
                                          cudaDataType bt, int ldb, long long int sb,
                                          const void *beta, void *c, cudaDataType ct, int ldc,
                                          long long int sc, int batch, cublasComputeType_t compute,
                                          cublasGemmAlgo_t algo) {
    return gemm_ex("cublasGemmStridedBatchedEx", h, ta, tb, m, n, k, alpha, a, at, lda, sa, b, bt,
                   ldb, sb, beta, c, ct, ldc, sc, batch, compute, algo);
}
cublasStatus_t cublasSgemm(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m,
                           int n, int k, const float *alpha, const float *a, int lda,
                           const float *b, int ldb, const float *beta, float *c, int ldc) {
    return gemm_ex("cublasSgemm", h, ta, tb, m, n, k, alpha, a, CUDA_R_32F, lda, 0, b, CUDA_R_32F,
                   ldb, 0, beta, c, CUDA_R_32F, ldc, 0, 1, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}
cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t h, cublasOperation_t ta,
                                         cublasOperation_t tb, int m, int n, int k,
                                         const float *alpha, const float *a, int lda,
                                         long long int sa, const float *b, int ldb,
                                         long long int sb, const float *beta, float *c, int ldc,
                                         long long int sc, int batch) {
    return gemm_ex("cublasSgemmStridedBatched", h, ta, tb, m, n, k, alpha, a, CUDA_R_32F, lda, sa,
                   b, CUDA_R_32F, ldb, sb, beta, c, CUDA_R_32F, ldc, sc, batch, CUBLAS_COMPUTE_32F,
                   CUBLAS_GEMM_DEFAULT);
}

} /* extern "C" */
