/* cuda_emu.h - run CUDA kernels on the CPU, for tests.

   An unchanged .cu compiles as C++ with this file in front of it and links with cuda_emu.cpp,
   which stands in for libcudart and libcublas. A kernel then is a function, a CUDA thread is a
   fiber, and sanitizers, debuggers and coverage tools see ordinary code:

       I=-Itests/gpu/emu/fake            or the include directory of a CUDA toolkit
       F="-std=c++14 -ffp-contract=off -fno-strict-aliasing $I -I."
       c++ -O2 $F -include tests/gpu/emu/cuda_emu.h -x c++ -c kernels.cu -o kernels.o
       c++ -O2 $F -c tests/gpu/emu/cuda_emu.cpp -o emu.o
       c++ -O2 $F -c test.cpp -o test.o && c++ test.o kernels.o emu.o -o test

   Sanitizers. Address and undefined: -fsanitize=address,undefined -DEMU_PLAIN_SHARED everywhere,
   and -DEMU_ASAN for cuda_emu.cpp; device memory may then only be touched by device work.
   Thread: -fsanitize=thread for all but cuda_emu.cpp, which takes -DEMU_TSAN instead; run once
   with EMU_RACE=shared (races inside a block) and once with EMU_RACE=global (races between
   blocks; shared memory is left out, because all blocks have theirs at the same address).
   Traffic: see emu_watch below.

   A kernel is launched by cudaLaunchKernel((const void *)kernel, grid, block, args, 0, stream),
   with the cast that every CUDA takes. What is not C++, kernel<<<grid, block>>>(arguments) and
   extern __shared__, plain.awk turns into it behind the preprocessor:

       c++ -E $F -include tests/gpu/emu/cuda_emu.h -x c++ main.cu | awk -f tests/gpu/emu/plain.awk |
           c++ -O2 $F -x c++-cpp-output -c - -o main.o

   Every misuse that
   leaves a real device hanging or undefined (divergent barriers, lanes missing from a
   collective, ...) ends the program with one line on stderr and abort().

   What it cannot show: atomics with an order of their own (they are relaxed, and fences between them
   release and acquire: TSan finds those that are missing or misplaced); anything that needs two
   blocks at the same time; time; the limits of ptxas and of the hardware (registers, shared memory, residency); the rounding of cuBLAS;
   kernels that touch pageable host memory. gcc does not put the __shared__ variables of templates
   into a section, so that there they are neither refilled nor left out of EMU_RACE=global. The
   emulated host program has one thread. */

#ifndef CUDA_EMU_H
#define CUDA_EMU_H

#ifdef EMU_PLAIN_SHARED /* address sanitizers put redzones round plain statics only */
#define __shared__ static
#else                   /* one section, so that it can be refilled with rubbish */
#define __shared__ static __attribute__((section("emu_shared")))
#endif
#define __launch_bounds__(...)

#include <cuda_runtime.h>
#include <cublas_v2.h>
#include <stddef.h>
#include <stdint.h>

/* ======================================================================================
   Control, for tests (C11 or C++)
   ====================================================================================== */

#ifdef __cplusplus
extern "C" {
#endif

/* Set everything below back to its default and forget counts, watches, the gemm log and the last
   error. Allocations, streams, graphs and events stay. */
void emu_reset(void);

extern unsigned emu_seed; /* 0: threads, blocks, streams, nodes in order; else shuffled by it */
extern int      emu_async; /* 0: work runs when it is submitted; 1: when the host waits for it */

/* Kernels are loaded when they are first launched or asked for their attributes. What the device does
   in a capture nobody has promised; set, it is the worst: the capture is spoilt. */
extern int emu_lazy;
void       emu_unload(void); /* all kernels */

extern int emu_per_thread; /* stream 0 is that of a --default-stream per-thread build; at first, and
                              after emu_reset, whether EMU_PER_THREAD is in the environment */

/* Blocks [emu_block_from, emu_block_to) of a grid run, others do not, for arrays of which only a part
   can be visited. emu_block_to = 0: all. */
extern size_t emu_block_from, emu_block_to;

/* Faults: API call number emu_fail_at, counted from emu_api_calls = 0, fails without effect: with
   emu_fail_error, or CUBLAS_STATUS_EXECUTION_FAILED. Functions that only report are not counted. */
extern unsigned long emu_api_calls, emu_fail_at;
extern cudaError_t   emu_fail_error;
extern const char   *emu_last_api;

/* The device that is reported. Memory is what cudaMalloc can hand out in total. */
extern int    emu_device_count, emu_device_sms, emu_device_major, emu_device_minor;
extern size_t emu_device_memory;

struct emu_counts {
    unsigned long api_calls;
    unsigned long launches;     /* cudaLaunchKernel: run, queued or captured */
    unsigned long kernels_run;  /* executed, also out of graphs */
    unsigned long graph_launches;
    unsigned long memcpys, memsets, gemms;
    unsigned long allocations;  /* cudaMalloc, cudaMallocHost, cudaHostAlloc */
    unsigned long synchronisations;     /* calls by which the host waits for the device */
    unsigned long captured_gemms_without_workspace;
};
extern struct emu_counts emu_count; /* may be zeroed at will */

size_t emu_live_allocations(void); /* device and page-locked */
size_t emu_live_bytes(void);       /* on the device */
size_t emu_live_streams(void);
size_t emu_live_events(void);
size_t emu_live_graphs(void);      /* graphs and executable graphs of the caller */
size_t emu_live_cublas(void);
size_t emu_pending(void);          /* operations that wait in streams */
int    emu_is_device(const void *p, size_t bytes); /* whether all of it is device memory */

/* The allocation that kernels may touch at p: 0: there is none. Memory that the caller has from
   elsewhere is lent to them until it is lent again with 0 bytes. */
int                  emu_allocation(const void *p, char **begin, char **end);
void                 emu_lend(void *p, size_t bytes);
extern unsigned long emu_heap_changes;

/* One entry per gemm call that was not refused. */
struct emu_gemm_call {
    const char         *name;
    cublasOperation_t   transa, transb;
    int                 m, n, k, lda, ldb, ldc, batch;
    long long           stridea, strideb, stridec;
    const void         *a, *b;
    void               *c;
    cudaDataType        atype, btype, ctype;
    cublasComputeType_t compute;
    cublasGemmAlgo_t    algo;
    cudaStream_t        stream;
    int                 captured;
    const void         *workspace; /* NULL: cuBLAS's own */
    size_t              workspace_bytes;
    cublasMath_t        math;
    cublasPointerMode_t pointer_mode;
    const void         *bias; /* of cublasLt: of C's type, one for each row; NULL: none */
    int                 relu;
    uint32_t            reductions; /* cublasLt: the schemes that were allowed */
    uint32_t            aligned[4]; /* and how the addresses of A, B, C and D are, as it was told */
};
/* What cublasLt does with everything. Its kernels want what they were asked for: an address that is
   less aligned than was said, or more workspace than was allowed, is an invalid value. */
enum emu_lt_answer { EMU_LT_WORKS, EMU_LT_UNSUPPORTED, EMU_LT_FINDS_NONE, EMU_LT_INVALID, EMU_LT_MISMATCH };
extern int                  emu_lt;
size_t                      emu_gemm_calls(void);
const struct emu_gemm_call *emu_gemm_call_at(size_t i);

/* Traffic, with traffic.cpp linked and the kernels compiled with -fsanitize=thread (for clang also
   -mllvm -tsan-instrument-read-before-write) but not linked with it: bytes that kernels load from
   and store to a range, and the 32-byte sectors that warps ask for to do so. An atomic operation is
   a load and a store, atomicCAS only the store. Sectors used in full: 32 times their number is
   the number of bytes. */
struct emu_traffic { unsigned long long loaded, stored, load_sectors, store_sectors; };
int                emu_watch(const void *begin, size_t bytes); /* a new index: 0, 1, 2, ... */
struct emu_traffic emu_watched(int index);
void               emu_unwatch_all(void);
/* Turns that the banks of shared memory take, and what they would take without conflicts. */
struct emu_shared_traffic { unsigned long long turns, least; };
struct emu_shared_traffic emu_watched_shared(void);
/* Atomic operations on a range since emu_unwatch_all, and the most on one address. */
unsigned long long emu_atomics(const void *begin, size_t bytes, unsigned long long *most);

#ifdef __cplusplus
} /* extern "C" */

/* ======================================================================================
   What kernels see
   ====================================================================================== */

#include <math.h>
#include <string.h>
#include <functional>
#include <tuple>
#include <utility>

struct emu_thread_view { uint3 index; };
extern emu_thread_view *emu_thread; /* the running one */
extern uint3            emu_block;
extern dim3             emu_block_dim, emu_grid_dim;

#define threadIdx (emu_thread->index)
#define blockIdx  emu_block
#define blockDim  emu_block_dim
#define gridDim   emu_grid_dim
static const int warpSize = 32;

enum emu_collective { EMU_SYNCWARP, EMU_SHUFFLE, EMU_BALLOT };

int         emu_barrier(int predicate, int line); /* the number of threads with a predicate */
uint64_t    emu_warp(emu_collective what, unsigned mask, uint64_t value, int source, int line);
int         emu_lane(void);
void        emu_fence(void);
void        emu_atomic(const void *p);
#if defined(__has_feature)
#define EMU_HAS_FEATURE(name) __has_feature(name)
#else
#define EMU_HAS_FEATURE(name) 0
#endif
#if defined(__SANITIZE_THREAD__) || EMU_HAS_FEATURE(thread_sanitizer) /* nobody else asks for their order */
#define EMU_ORDER(p) emu_atomic(p)
#else
#define EMU_ORDER(p) ((void)0)
#endif
void        emu_trap(int line);
void        emu_misaligned(int line);
cudaError_t emu_load(const void *kernel, size_t shared);
cudaError_t emu_launch(const std::function<void()> &kernel, dim3 grid, dim3 block, size_t shared,
                       cudaStream_t stream, const std::function<void()> &whole_block);

/* PTX, with ptx.cpp linked: what runs the current block of a kernel as PTX, with its arguments as
   they are now; empty: there is none, and its C++ body runs. */
std::function<void()> emu_ptx(const void *kernel, void **args);

/* What a launch asks for at run time; extern __shared__ arrays begin here. */
extern char   emu_dynamic_shared[];
extern size_t emu_dynamic_bytes; /* of the running kernel */

template <class T> struct emu_same { typedef T type; };

/* ---- barriers and warps; the caller's line tells one barrier from another ---- */

static inline void __syncthreads(int line = __builtin_LINE()) { (void)emu_barrier(0, line); }
static inline int  __syncthreads_count(int p, int line = __builtin_LINE()) {
    return emu_barrier(p != 0, line);
}
static inline int __syncthreads_or(int p, int line = __builtin_LINE()) {
    return emu_barrier(p != 0, line) != 0;
}
static inline int __syncthreads_and(int p, int line = __builtin_LINE()) {
    return emu_barrier(p == 0, line) == 0;
}
static inline void __syncwarp(unsigned mask = 0xffffffffu, int line = __builtin_LINE()) {
    (void)emu_warp(EMU_SYNCWARP, mask, 0, 0, line);
}
static inline unsigned __ballot_sync(unsigned mask, int p, int line = __builtin_LINE()) {
    return (unsigned)emu_warp(EMU_BALLOT, mask, p != 0, 0, line);
}
static inline int __any_sync(unsigned mask, int p, int line = __builtin_LINE()) {
    return __ballot_sync(mask, p, line) != 0;
}
static inline int __all_sync(unsigned mask, int p, int line = __builtin_LINE()) {
    return __ballot_sync(mask, p == 0, line) == 0;
}

template <class T> T emu_shuffle(unsigned mask, T value, int source, int line) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "CUDA shuffles 4 or 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = emu_warp(EMU_SHUFFLE, mask, bits, source, line);
    memcpy(&value, &bits, sizeof value);
    return value;
}
template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32, int line = __builtin_LINE()) {
    int first = emu_lane() & -width;
    return emu_shuffle(mask, value, first + (lane & (width - 1)), line);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, int line = __builtin_LINE()) {
    int lane = emu_lane(), source = lane - (int)by;
    return emu_shuffle(mask, value, source < (lane & -width) ? lane : source, line);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32,
                   int line = __builtin_LINE()) {
    int lane = emu_lane(), source = lane + (int)by;
    return emu_shuffle(mask, value, source > (lane | (width - 1)) ? lane : source, line);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, int line = __builtin_LINE()) {
    int lane = emu_lane(), source = lane ^ bits;
    return emu_shuffle(mask, value, source > (lane | (width - 1)) ? lane : source, line);
}

static inline void __threadfence() { emu_fence(); }
static inline void __threadfence_block() { emu_fence(); }
static inline void __threadfence_system() { emu_fence(); }
static inline void __trap(int line = __builtin_LINE()) { emu_trap(line); }

/* ---- atomics: relaxed, as CUDA's are; exactly CUDA's overloads ---- */

template <class T, class F> T emu_update(T *p, F next) {
    T old, now;
    EMU_ORDER(p);
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    do now = next(old);
    while (!__atomic_compare_exchange(p, &old, &now, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}
#define EMU_ATOMIC(name, T, next)                                    \
    static inline T name(T *p, T v) {                                \
        return emu_update(p, [v](T old) -> T { return next; });      \
    }
#define EMU_ATOMIC_INTEGERS(name, next)    \
    EMU_ATOMIC(name, int, next)            \
    EMU_ATOMIC(name, unsigned, next)       \
    EMU_ATOMIC(name, unsigned long long, next)
EMU_ATOMIC(atomicAdd, int, (int)((unsigned)old + (unsigned)v))
EMU_ATOMIC(atomicAdd, unsigned, old + v)
EMU_ATOMIC(atomicAdd, unsigned long long, old + v)
EMU_ATOMIC(atomicAdd, float, old + v)
EMU_ATOMIC(atomicAdd, double, old + v)
EMU_ATOMIC(atomicSub, int, (int)((unsigned)old - (unsigned)v))
EMU_ATOMIC(atomicSub, unsigned, old - v)
EMU_ATOMIC_INTEGERS(atomicMin, v < old ? v : old)
EMU_ATOMIC_INTEGERS(atomicMax, old < v ? v : old)
EMU_ATOMIC_INTEGERS(atomicAnd, old & v)
EMU_ATOMIC_INTEGERS(atomicOr, old | v)
EMU_ATOMIC_INTEGERS(atomicXor, old ^ v)
EMU_ATOMIC_INTEGERS(atomicExch, (void(old), v))
EMU_ATOMIC(atomicExch, float, (void(old), v))
EMU_ATOMIC(atomicInc, unsigned, old >= v ? 0 : old + 1)
EMU_ATOMIC(atomicDec, unsigned, old == 0 || old > v ? v : old - 1)
#undef EMU_ATOMIC_INTEGERS
#undef EMU_ATOMIC

template <class T> T emu_compare_and_swap(T *p, T expected, T v) {
    EMU_ORDER(p);
    __atomic_compare_exchange(p, &expected, &v, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}
static inline int atomicCAS(int *p, int expected, int v) {
    return emu_compare_and_swap(p, expected, v);
}
static inline unsigned atomicCAS(unsigned *p, unsigned expected, unsigned v) {
    return emu_compare_and_swap(p, expected, v);
}
static inline unsigned long long atomicCAS(unsigned long long *p, unsigned long long expected,
                                           unsigned long long v) {
    return emu_compare_and_swap(p, expected, v);
}

/* ---- loads and stores with cache hints; alignment is checked, as by a device ---- */

template <class T> T *emu_aligned(T *p, int line) {
    if ((uintptr_t)p % alignof(T) != 0) emu_misaligned(line);
    return p;
}
#define EMU_LOAD(name)                                                    \
    template <class T> T name(const T *p, int line = __builtin_LINE()) {  \
        return *emu_aligned(p, line);                                     \
    }
#define EMU_STORE(name)                                                                     \
    template <class T>                                                                      \
    void name(T *p, typename emu_same<T>::type v, int line = __builtin_LINE()) {            \
        *emu_aligned(p, line) = v;                                                          \
    }
EMU_LOAD(__ldg)
EMU_LOAD(__ldca)
EMU_LOAD(__ldcg)
EMU_LOAD(__ldcs)
EMU_LOAD(__ldlu)
EMU_LOAD(__ldcv)
EMU_STORE(__stwb)
EMU_STORE(__stcg)
EMU_STORE(__stcs)
EMU_STORE(__stwt)
#undef EMU_LOAD
#undef EMU_STORE

/* ---- bits ---- */

template <class To, class From> To emu_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline int       __float_as_int(float v) { return emu_bits<int>(v); }
static inline unsigned  __float_as_uint(float v) { return emu_bits<unsigned>(v); }
static inline float     __int_as_float(int v) { return emu_bits<float>(v); }
static inline float     __uint_as_float(unsigned v) { return emu_bits<float>(v); }
static inline long long __double_as_longlong(double v) { return emu_bits<long long>(v); }
static inline double    __longlong_as_double(long long v) { return emu_bits<double>(v); }

static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const uint64_t both = (uint64_t)y << 32 | x;
    unsigned       r    = 0;
    for (int b = 0; b < 4; b++)
        r |= (unsigned)(both >> 8 * (selector >> 4 * b & 7) & 255) << 8 * b;
    return r;
}
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
static inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz((unsigned)v); }
static inline int __clzll(long long v) {
    return v == 0 ? 64 : __builtin_clzll((unsigned long long)v);
}
static inline int      __ffs(int v) { return __builtin_ffs(v); }
static inline int      __ffsll(long long v) { return __builtin_ffsll(v); }
static inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)((unsigned long long)a * b >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

/* ---- arithmetic with a stated rounding; -ffp-contract=off keeps sums and products apart ---- */

static inline float  __fadd_rn(float a, float b) { return a + b; }
static inline float  __fsub_rn(float a, float b) { return a - b; }
static inline float  __fmul_rn(float a, float b) { return a * b; }
static inline float  __fdiv_rn(float a, float b) { return a / b; }
static inline float  __frcp_rn(float a) { return 1.0f / a; }
static inline float  __fsqrt_rn(float a) { return sqrtf(a); }
static inline float  __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline double __dsqrt_rn(double a) { return sqrt(a); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline float  __double2float_rn(double a) { return (float)a; }
static inline float  __uint2float_rn(unsigned a) { return (float)a; }
/* What is approximate on a device is correctly rounded here, or as the C library has it. The names
   are macros where a C library may have them, too. */
#define EMU_LIKE(type, name, value) static inline type emu_##name(type x) { return value; }
EMU_LIKE(float, rsqrtf, 1.0f / sqrtf(x))
EMU_LIKE(double, rsqrt, 1.0 / sqrt(x))
EMU_LIKE(float, exp, expf(x))
EMU_LIKE(float, log, logf(x))
EMU_LIKE(float, log2, log2f(x))
EMU_LIKE(float, sin, sinf(x))
EMU_LIKE(float, cos, cosf(x))
EMU_LIKE(float, tan, tanf(x))
EMU_LIKE(float, exp10, powf(10.0f, x))
#undef EMU_LIKE
#define rsqrtf       emu_rsqrtf
#define rsqrt        emu_rsqrt
#define __frsqrt_rn  emu_rsqrtf
#define __expf       emu_exp
#define __logf       emu_log
#define __log2f      emu_log2
#define __sinf       emu_sin
#define __cosf       emu_cos
#define __tanf       emu_tan
#define __exp10f     emu_exp10
#define __powf       powf
static inline float  __fdividef(float a, float b) { return a / b; }
static inline float  __saturatef(float a) { return a > 0.0f ? a < 1.0f ? a : 1.0f : 0.0f; }
#define EMU_LESSER(type, lesser, greater)                               \
    static inline type min(type a, type b) { return lesser; }           \
    static inline type max(type a, type b) { return greater; }
#define EMU_INTEGER(type) EMU_LESSER(type, b < a ? b : a, a < b ? b : a)
EMU_INTEGER(int)
EMU_INTEGER(unsigned)
EMU_INTEGER(long)
EMU_INTEGER(unsigned long)
EMU_INTEGER(long long)
EMU_INTEGER(unsigned long long)
EMU_LESSER(float, fminf(a, b), fmaxf(a, b))
EMU_LESSER(double, fmin(a, b), fmax(a, b))
#undef EMU_INTEGER
#undef EMU_LESSER
static inline float  cospif(float a) { return (float)cos(3.14159265358979324 * (double)a); }
static inline float  __int2float_rn(int a) { return (float)a; }

/* ---- launches ---- */

template <class... P, size_t... I>
cudaError_t emu_launch_typed(void (*kernel)(P...), dim3 grid, dim3 block, void **args,
                             size_t shared, cudaStream_t stream, std::index_sequence<I...>) {
    (void)args;
    std::tuple<P...> copy(*(P *)args[I]...); /* like the real one, at the call */
    return emu_launch([=] { kernel(std::get<I>(copy)...); }, grid, block, shared, stream,
                      emu_ptx((const void *)kernel, args));
}

template <class... P>
cudaError_t emu_launch_kernel(void (*kernel)(P...), dim3 grid, dim3 block, void **args,
                              size_t shared, cudaStream_t stream) {
    const cudaError_t e = emu_load((const void *)kernel, shared);
    if (e != cudaSuccess) return e;
    return emu_launch_typed(kernel, grid, block, args, shared, stream,
                            std::index_sequence_for<P...>());
}

/* The cast to const void * hides the types of the arguments; EMU_WITHOUT takes it off again, for
   EMU_WITHOUT (const void *)kernel expands to kernel. Without the cast, which CUDA before 12.6
   refuses, it does not compile here either. */
#define EMU_WITHOUT(cast)
#undef cudaLaunchKernel /* with --default-stream per-thread it is a macro */
#define cudaLaunchKernel(...) emu_launch_kernel(EMU_WITHOUT __VA_ARGS__)

/* kernel<<<...>>>(arguments), from plain.awk: emu_plain(typed, generic, config)(arguments). An error is
   the last error. The arguments take the kernel's types at the call; where the kernel is a template
   whose own arguments they decide, typed is no function for it, and they keep theirs. */
struct emu_config {
    dim3         grid, block;
    size_t       shared;
    cudaStream_t stream;
    emu_config(dim3 g, dim3 b, size_t bytes = 0, cudaStream_t s = 0)
        : grid(g), block(b), shared(bytes), stream(s) {}
};
template <class... P> struct emu_typed_call {
    void (*kernel)(P...);
    emu_config c;
    void operator()(typename emu_same<P>::type... a) const {
        void *args[] = {(void *)&a..., NULL};
        (void)emu_launch_kernel(kernel, c.grid, c.block, args, c.shared, c.stream);
    }
};
template <class K> struct emu_generic_call {
    K          kernel;
    emu_config c;
    template <class... A> void operator()(A... a) const {
        const K run = kernel;
        (void)emu_launch([=] { run(a...); }, c.grid, c.block, c.shared, c.stream, nullptr);
    }
};
template <class... P> emu_typed_call<P...> emu_typed(const emu_config &c, void (*kernel)(P...)) {
    return {kernel, c};
}
template <class T, class K> auto emu_choose(int, T typed, K, const emu_config &c) -> decltype(typed(c)) {
    return typed(c);
}
template <class T, class K> emu_generic_call<K> emu_choose(long, T, K generic, const emu_config &c) {
    return {generic, c};
}
#define EMU_CHOSEN emu_choose(0, typed, generic, c) /* 0 is an int rather than a long */
template <class T, class K> auto emu_plain(T typed, K generic, emu_config c) -> decltype(EMU_CHOSEN) {
    return EMU_CHOSEN;
}
#undef EMU_CHOSEN

#if CUDART_VERSION >= 12040
extern "C" void cudaGraphSetConditional(cudaGraphConditionalHandle handle, unsigned int value);
#endif

#endif /* __cplusplus */
#endif
