/* amp_kernels.cu - the CUDA backend of amp.h
   SPDX-License-Identifier: MIT OR Unlicense (your choice, see the end of amp.h)

   BUILD   nvcc -arch=native -c amp_kernels.cu       and link with -lcublas -lcublasLt

   CUDA 11.8 and newer; compute capability 7.5 and newer (7.0 with a toolkit that still has it:
   code was made by clang and the ptxas of 11.8 to 12.6, and has not run). The declarations are
   in amp.h under ">>api cuda"; the formulas in its >>core, which this file shares with the CPU.
   This file is memory traffic: load, call the core, store.

   ONE STEP is two launches, however many tensors there are:

       A  ampi_check_kernel    reads the gradients once: finite? norm, statistics; its last block
          (_by_four)           decides: the gate, this step's numbers, the next scale
       B  ampi_update_kernel   reads the gradients again, unless the step is skipped, and unscales
                               them on the way into the optimizer; publishes the next scale

   With AdamW, gradients and model copies in fp16, this moves 30 bytes a parameter: A reads a
   gradient, 2; B reads it again, a master, m and v, 2 + 4 + 4 + 4, and writes these three and a
   copy, 4 + 4 + 4 + 2.

   What a step costs, AdamW, fp16 gradients and copies (counted in the emulator or read in SASS):

       launches for 1 to 10,000 tensors   2; 3 if ranks agree; 4 with own; 6 to 9 with few rows
       host synchronisations              0
       registers, spills                  at most 64, in other storage 80; none (13.0: make cuda)
       instructions                       B 191 to 212 for 4 elements, A 5.8 to 6.5 for one

   B in other storage: tests/bench/README.md has bytes, instructions, and a step by a model.

   HOW WORK IS CUT   Tensors are cut into chunks of AMPI_CHUNK elements. In A a warp takes a chunk,
   because the canonical sum goes through it in order, 256 lanes wide: each of its 32 threads has 8
   lanes. If there are few chunks, four warps take one, with 2 lanes a thread. In B a block takes a
   quarter of a chunk; all of it if tensors are small; and if quarters would be less than two waves
   of blocks on an H200, a sixteenth, which is one iteration of its threads instead of four. Loops
   are grid-strided: every grid and block size gives the same bits.

   HOW LOOPS ARE WRITTEN   All loads of an iteration are under way before the first is used, and
   types are distinguished before the loop. tests/gpu/nvcc.sh checks both in SASS and counts
   instructions. It also finds the stack of a loop over registers that was not unrolled; short ones
   of constant length are unrolled without a pragma. */

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define AMP_KERNELS
#include "amp.h"

#define AMPI_DEVICE static __device__ __forceinline__
#define AMPI_MEMBER __device__ __forceinline__

/* Blocks have up to 256 threads, and at least per_sm of them fit on a multiprocessor. per_sm is
   chosen so that nvcc 13.0 spills nothing from sm_75 to sm_120. */
#define AMPI_KERNEL(per_sm) static __global__ void __launch_bounds__(256, per_sm)

/* ------------------------------------------------------------- results and launches */

static thread_local int ampi_code; /* the code of the last AMP_ERROR_CUDA or AMP_ERROR_CUBLAS */

int amp_cuda_code(void) { return ampi_code; }

/* The runtime forgets an error that is returned here, so that no later call reports it again. */
static amp_result ampi_cuda(cudaError_t error) {
    if (error == cudaSuccess) return AMP_OK;
    ampi_code = (int)error;
    (void)cudaGetLastError();
    return AMP_ERROR_CUDA;
}

static amp_result ampi_cublas(cublasStatus_t status) {
    if (status == CUBLAS_STATUS_SUCCESS) return AMP_OK;
    ampi_code = (int)status;
    return AMP_ERROR_CUBLAS;
}

template <class T> struct ampi_identity { typedef T type; };

/* Makes a call that would break a capture in this or another thread; meanwhile this thread says
   that it takes part in none. */
template <class F> static cudaError_t ampi_outside_captures(const F &call) {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    const cudaError_t     error = cudaThreadExchangeStreamCaptureMode(&mode);
    if (error != cudaSuccess) return error;
    const cudaError_t done = call(), back = cudaThreadExchangeStreamCaptureMode(&mode);
    return done != cudaSuccess ? done : back;
}

/* CUDA loads a kernel when it is first used, which should not be during a capture. */
static amp_result ampi_load_kernel(const void *kernel) {
    cudaFuncAttributes code;
    return ampi_cuda(ampi_outside_captures([&] { return cudaFuncGetAttributes(&code, kernel); }));
}

/* The number of the capture under way on a stream; 0: none. Captures have numbers because work
   queued in one has not been done outside it. */
static amp_result ampi_capture_on(amp_stream stream, uint64_t *capture) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long      id     = 0;
    const amp_result        result = ampi_cuda(cudaStreamGetCaptureInfo(stream, &status, &id));
    *capture = status == cudaStreamCaptureStatusNone ? 0 : (uint64_t)id + 1;
    return result;
}

struct ampi_grid {
    unsigned   blocks, threads;
    amp_stream stream;
};

static ampi_grid ampi_grid_on(amp_stream stream, uint64_t blocks, unsigned threads) {
    const uint64_t most = 0x7fffffff;
    return {(unsigned)(blocks == 0 ? 1 : blocks < most ? blocks : most), threads, stream};
}

/* The most blocks of a launch, and the threads of a block (32, 64, 128 or 256), where tests set
   them. No bit of a result depends on either. */
#ifdef AMPI_GRIDS
unsigned ampi_most_blocks, ampi_block_size;
#else
enum : unsigned { ampi_most_blocks = 0, ampi_block_size = 0 };
#endif

static unsigned ampi_threads(unsigned best) { return ampi_block_size ? ampi_block_size : best; }

static ampi_grid ampi_grid_of(const amp_backend *backend, uint64_t blocks, unsigned best) {
    const uint64_t most = ampi_most_blocks ? (uint64_t)ampi_most_blocks : blocks;
    return ampi_grid_on(backend->stream, blocks < most ? blocks : most, ampi_threads(best));
}

/* kernel<<<blocks, threads, 0, stream>>>(arguments), with its error, as plain C++. */
template <class... P>
static amp_result ampi_launch(const ampi_grid &grid, void (*kernel)(P...),
                              typename ampi_identity<P>::type... arguments) {
    void *pointers[] = {(void *)&arguments...};
    return ampi_cuda(cudaLaunchKernel((const void *)kernel, dim3(grid.blocks), dim3(grid.threads),
                                      pointers, 0, grid.stream));
}

/* A launch where there may be no backend, which would have loaded the kernel. */
template <class K, class... P>
static amp_result ampi_launch_alone(const ampi_grid &grid, K kernel, P... arguments) {
    uint64_t capture;
    AMPI_TRY(ampi_capture_on(grid.stream, &capture));
    if (capture) AMPI_TRY(ampi_load_kernel((const void *)kernel));
    return ampi_launch(grid, kernel, arguments...);
}

/* The fence between two blocks that meet at a counter, by relaxed atomics. In PTX's memory model,
   a fence before the addition makes it a release, and one after it an acquire. A block that adds
   later reads what the earlier one has added, and so synchronizes with it: it sees all that was
   written before that one's fence, also by other threads of its block, after a barrier. Unlike
   __threadfence, this asks for no order of all fences. */
AMPI_DEVICE void ampi_device_fence(void) {
#if defined(__CUDA_ARCH__)
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
#else
    __threadfence();
#endif
}

/* ------------------------------------------------------------------- hardware conversions */

/* cvt gives the bits of the core's conversions for all numbers, also subnormal ones, but only one
   NaN. Callers look for NaN and then use the core's. The emulator does what cvt is documented to
   do. sm_75 has no cvt for bf16, and needs none: rounding is an addition. */
AMPI_DEVICE void ampi_cvt_from_f16(uint32_t word, uint32_t *low, uint32_t *high) {
    const __half_raw l = {(uint16_t)word}, h = {(uint16_t)(word >> 16)};
    *low  = ampi_bits_of_f32(__half2float(l));
    *high = ampi_bits_of_f32(__half2float(h));
}
AMPI_DEVICE uint32_t ampi_cvt_to_f16(uint32_t low, uint32_t high) {
    const __half2 two = __floats2half2_rn(ampi_f32_from_bits(low), ampi_f32_from_bits(high));
    return ampi_load_u32(&two, 0);
}
AMPI_DEVICE uint32_t ampi_cvt_to_bf16(uint32_t low, uint32_t high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    return ampi_bf16_from_f32(low) | (uint32_t)ampi_bf16_from_f32(high) << 16;
#else
    const __nv_bfloat162 two =
        __floats2bfloat162_rn(ampi_f32_from_bits(low), ampi_f32_from_bits(high));
    return ampi_load_u32(&two, 0);
#endif
}
/* In PTX, because --use_fast_math would flush the operands of a comparison in C++. */
AMPI_DEVICE bool ampi_any_nan(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
#if defined(__CUDA_ARCH__)
    uint32_t any;
    asm("{ .reg .pred p; .reg .f32 a, b; mov.b32 a, %1; mov.b32 b, %2; setp.nan.f32 p, a, b;"
        " mov.b32 a, %3; mov.b32 b, %4; setp.nan.or.f32 p, a, b, p; selp.u32 %0, 1, 0, p; }"
        : "=r"(any)
        : "r"(a), "r"(b), "r"(c), "r"(d));
    return any != 0;
#else
    return ampi_is_nan(a) || ampi_is_nan(b) || ampi_is_nan(c) || ampi_is_nan(d);
#endif
}

/* Hides where an address comes from: before 8.0 its halves would be copied for each use. */
template <class T> AMPI_DEVICE void ampi_hide_address(T *&address) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    asm("" : "+l"(address));
#else
    (void)address;
#endif
}

/* Is any of four NaN, or of a magnitude from LIMIT on (bits of fp32)? */
template <uint32_t LIMIT> AMPI_DEVICE bool ampi_any_from(const float *x) {
#if defined(__CUDA_ARCH__)
    uint32_t any;
    asm("{ .reg .pred p; .reg .f32 a; abs.f32 a, %1; setp.geu.f32 p, a, %5;"
        " abs.f32 a, %2; setp.geu.or.f32 p, a, %5, p; abs.f32 a, %3; setp.geu.or.f32 p, a, %5, p;"
        " abs.f32 a, %4; setp.geu.or.f32 p, a, %5, p; selp.u32 %0, 1, 0, p; }"
        : "=r"(any)
        : "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "f"(ampi_f32_from_bits(LIMIT)));
    return any != 0;
#else
    uint32_t most = 0;
    for (int k = 0; k < 4; k++) most = ampi_most(most, ampi_size(ampi_bits_of_f32(x[k])));
    return most >= LIMIT;
#endif
}

/* Counts elements of a model that become inf or NaN in fp16. */
AMPI_DEVICE void ampi_count_f16_overflows(ampi_control *control, const uint32_t *u, size_t n) {
    const uint32_t more = ampi_f16_overflows(u, n);
#if defined(__CUDA_ARCH__) /* atomicAdd would add up over the warp first, in code of the loop */
    if (more)
        asm volatile("red.global.add.u64 [%0], %1;"
                     : : "l"(&control->f16_overflows), "l"((unsigned long long)more) : "memory");
#else
    if (more) atomicAdd(&control->f16_overflows, (unsigned long long)more);
#endif
}

/* One element, which may be NaN. */
AMPI_DEVICE uint32_t ampi_f32_from_half(uint32_t half) {
    uint32_t u, none;
    ampi_cvt_from_f16(half, &u, &none);
    if (ampi_is_nan(u)) u = ampi_f32_from_f16((uint16_t)(half | 0x7c00u)); /* known exponent */
    return u;
}
AMPI_DEVICE uint32_t ampi_half_from_f32(uint32_t type, uint32_t u) {
    if (ampi_is_nan(u)) return type == AMP_F16 ? ampi_f16_from_f32(u) : ampi_bf16_from_f32(u);
    return (type == AMP_F16 ? ampi_cvt_to_f16(u, 0) : ampi_cvt_to_bf16(u, 0)) & 0xffffu;
}

/* ------------------------------------------------------------------- elementwise access */

/* Arrays are processed in ranges: groups of four or eight elements in a row, whose addresses in
   all arrays are multiples of a group's size, and a rest of single elements before and after. If
   arrays do not agree, all is rest. Groups have a loop for each combination of types, with one
   transaction for each array; the rest has one loop for all types.

   A loop treats each group in two steps, fetch and finish. Fetching leaves elements packed as in
   memory: an instruction that unpacked them would wait for its load before the next begins. */
enum {
    AMPI_ANY    = 3, /* besides amp_dtype: known at run time */
    AMPI_ABSENT = 4,
    AMPI_SPAN   = AMPI_CHUNK / 2
};

/* Arrays are in global memory. The compiler cannot see that of pointers from a table. */
template <class T> AMPI_DEVICE T *ampi_global(const char *p) {
#if defined(__CUDA_ARCH__)
    __builtin_assume(__isGlobal(p));
#endif
    return (T *)p;
}

/* An element that is not aligned. It is a loop, because nvcc makes four loads in a row
   conditional, which takes a register each, or one load, as in the branch for aligned ones. */
AMPI_DEVICE uint32_t ampi_by_bytes(const char *p, unsigned size) {
    uint32_t u = 0;
#pragma unroll 1
    while (size--) u = u << 8 | *ampi_global<const uint8_t>(p + size);
    return u;
}

/* The words of one transaction. ONCE: they are not read again soon, and may leave the caches
   first. */
template <int WORDS> struct ampi_raw { uint32_t w[WORDS]; };
template <int WORDS> struct ampi_vector;
template <> struct ampi_vector<1> { typedef uint32_t type; };
template <> struct ampi_vector<2> { typedef uint2 type; };
template <> struct ampi_vector<4> { typedef uint4 type; };

template <bool ONCE, int WORDS> AMPI_DEVICE void ampi_fetch(const char *p, uint32_t *w) {
    typedef typename ampi_vector<WORDS>::type vector;
    const vector q = ONCE ? __ldcs(ampi_global<const vector>(p)) : *ampi_global<const vector>(p);
    memcpy(w, &q, sizeof q);
}
template <bool ONCE, int WORDS> AMPI_DEVICE void ampi_put_vector(char *p, const uint32_t *w) {
    typename ampi_vector<WORDS>::type q;
    memcpy(&q, w, sizeof q);
    if (ONCE) __stcs(ampi_global<decltype(q)>(p), q);
    else *ampi_global<decltype(q)>(p) = q;
}

template <int TYPE, bool ONCE = false> struct ampi_array;

/* A range of an array of any type, at any address: by elements or, if unaligned, by bytes. */
template <bool ONCE> struct ampi_array<AMPI_ANY, ONCE> {
    char    *base; /* NULL: absent */
    uint32_t type;
    uint32_t by_element; /* not bool: shared memory gets no padding, which nothing writes */

    template <int N> using raw = ampi_raw<1>;

    AMPI_MEMBER unsigned size() const { return type == AMP_F32 ? 4 : 2; }
    /* Elements before the first group of n. */
    AMPI_MEMBER unsigned head(unsigned n) const {
        const unsigned past = (unsigned)((uintptr_t)base % (n * size()));
        return (n * size() - past) % (n * size()) / size();
    }
    AMPI_MEMBER bool has_group(unsigned n, unsigned i) const {
        return !base || ((uintptr_t)base + i * size()) % (n * size()) == 0;
    }
    template <int N> AMPI_MEMBER raw<N> fetch(size_t i) const {
        raw<N> r;
        if (!by_element) r.w[0] = ampi_by_bytes(base + i * size(), size());
        else if (type == AMP_F32) r.w[0] = *ampi_global<const uint32_t>(base + i * 4);
        else r.w[0] = *ampi_global<const uint16_t>(base + i * 2);
        return r;
    }
    template <int N> AMPI_MEMBER void expand(const uint32_t *w, uint32_t *u) const {
        *u = type == AMP_F32   ? *w
             : type == AMP_F16 ? ampi_f32_from_half(*w)
                               : ampi_f32_from_bf16((uint16_t)*w);
    }
    AMPI_MEMBER uint32_t get(size_t i) const {
        uint32_t u;
        expand<1>(fetch<1>(i).w, &u);
        return u;
    }
    AMPI_MEMBER void put_one(size_t i, uint32_t u) const {
        const uint16_t half = type == AMP_F32 ? (uint16_t)0 : (uint16_t)ampi_half_from_f32(type, u);
        if (!base) return;
        if (by_element && type == AMP_F32) *ampi_global<uint32_t>(base + i * 4) = u;
        else if (by_element) *ampi_global<uint16_t>(base + i * 2) = half;
        else if (type == AMP_F32) ampi_store_u32(base, i, u);
        else ampi_store_u16(base, i, half);
    }
    template <int N> AMPI_MEMBER void put(size_t i, const uint32_t *u) const { put_one(i, *u); }
    template <int N>
    AMPI_MEMBER void put_model(size_t i, const uint32_t *u, ampi_control *control) const {
        put_one(i, *u);
        if (base && type == AMP_F16) ampi_count_f16_overflows(control, u, 1);
    }
};
typedef ampi_array<AMPI_ANY> ampi_any;

/* A range of an array in groups. u is always bits of fp32. */
template <int TYPE, bool ONCE> struct ampi_array {
    enum { type = TYPE, SIZE = TYPE == AMP_F32 ? 4 : 2 };
    char *base;

    AMPI_MEMBER explicit ampi_array(char *from) : base(from) {}
    AMPI_MEMBER ampi_array(const ampi_any &a) : base(a.base) { ampi_hide_address(base); }

    template <int N> using raw = ampi_raw<N * SIZE / 4>;

    template <int N> AMPI_MEMBER raw<N> fetch(size_t i) const {
        raw<N> r;
        ampi_fetch<ONCE, N * SIZE / 4>(base + i * SIZE, r.w);
        return r;
    }
    template <int N> AMPI_MEMBER void expand(const uint32_t *w, uint32_t *u) const {
        enum { ASKED = N < 4 ? 2 : 4 };
        for (int k = 0; k < N; k += TYPE == AMP_F32 ? 1 : 2) {
            const uint32_t x = w[k * SIZE / 4];
            if (TYPE == AMP_F32) u[k] = x;
            else if (TYPE == AMP_F16) ampi_cvt_from_f16(x, &u[k], &u[k + 1]);
            else u[k] = x << 16, u[k + 1] = x & 0xffff0000u;
        }
#pragma unroll
        for (int k = 0; TYPE == AMP_F16 && k < N; k += ASKED)
            if (ampi_any_nan(u[k], u[k + 1], u[k + ASKED - 2], u[k + ASKED - 1])) {
#pragma unroll
                for (int j = k; j < k + ASKED; j++)
                    u[j] = ampi_f32_from_half(w[j / 2] >> 16 * (j % 2) & 0xffffu);
            }
    }
    template <int N> AMPI_MEMBER void put(size_t i, const uint32_t *u) const {
        put_model<N, false>(i, u, NULL);
    }
    /* One branch finds NaN, and in a model of fp16 what is to be counted. */
    template <int N, bool MODEL = true>
    AMPI_MEMBER void put_model(size_t i, const uint32_t *u, ampi_control *control) const {
        enum { COUNTS = MODEL && TYPE == AMP_F16 };
        raw<N> r;
        for (int k = 0; k < N; k += TYPE == AMP_F32 ? 1 : 2) {
            uint32_t &w = r.w[k * SIZE / 4];
            if (TYPE == AMP_F32) w = u[k];
            else if (TYPE == AMP_F16) w = ampi_cvt_to_f16(u[k], u[k + 1]);
            else w = ampi_cvt_to_bf16(u[k], u[k + 1]);
        }
#pragma unroll
        for (int k = 0; TYPE != AMP_F32 && k < N; k += 4) {
            float x[4];
            for (int j = 0; j < 4; j++) x[j] = ampi_f32_from_bits(u[k + j]);
            if (COUNTS ? ampi_any_from<AMPI_F16_INF_FROM>(x)
                       : ampi_any_nan(u[k], u[k + 1], u[k + 2], u[k + 3])) {
#pragma unroll
                for (int j = k; j < k + 4; j += 2)
                    r.w[j / 2] = ampi_half_from_f32(TYPE, u[j]) |
                                 ampi_half_from_f32(TYPE, u[j + 1]) << 16;
                if (COUNTS) ampi_count_f16_overflows(control, u + k, 4);
            }
        }
        ampi_put_vector<ONCE, N * SIZE / 4>(base + i * SIZE, r.w);
    }
    AMPI_MEMBER void put_one(size_t i, uint32_t u) const {
        if (TYPE == AMP_F32) *ampi_global<uint32_t>(base + i * SIZE) = u;
        else *ampi_global<uint16_t>(base + i * SIZE) = (uint16_t)ampi_half_from_f32(TYPE, u);
    }
};

/* An array without elements: nothing is written. */
template <bool ONCE> struct ampi_array<AMPI_ABSENT, ONCE> {
    AMPI_MEMBER ampi_array(const ampi_any &) {}
    template <int N> AMPI_MEMBER void put(size_t, const uint32_t *) const {}
    template <int N> AMPI_MEMBER void put_model(size_t, const uint32_t *, ampi_control *) const {}
};

/* A range that begins at element begin. */
AMPI_DEVICE ampi_any ampi_array_at(const void *base, uint32_t type, uint64_t begin) {
    const unsigned size = type == AMP_F32 ? 4 : 2;
    char *const    at   = base ? (char *)base + begin * size : NULL;
    return {at, type, (uintptr_t)at % size == 0};
}

AMPI_DEVICE unsigned ampi_count_from(uint64_t begin, uint64_t n, unsigned most) {
    return begin >= n ? 0 : n - begin < most ? (unsigned)(n - begin) : most;
}

/* Elements [first, behind) of a range are groups, all others its rest. */
struct ampi_segment { unsigned first, behind; };

/* Groups of n from element first on, if all arrays have groups there. */
template <class... A>
AMPI_DEVICE ampi_segment ampi_groups_in(unsigned n, unsigned first, unsigned count,
                                        const A &...arrays) {
    const bool   have[] = {arrays.has_group(n, first)...};
    ampi_segment s      = {first, first + (count - first) / n * n};
    bool         agree  = first <= count;
    for (const bool has : have) agree = agree && has;
    return agree ? s : ampi_segment();
}

/* Shares groups of N elements among a block. Each thread fetches UNDER_WAY of them before it
   finishes one. They are side by side in a warp, so that their distances are constants. */
template <int N, int UNDER_WAY, class W>
AMPI_DEVICE void ampi_each_group(const W &work, ampi_segment s) {
    const unsigned apart = 32 * N, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    unsigned       i     = s.first + (warp * UNDER_WAY * 32 + lane) * N;
    for (; i + (UNDER_WAY - 1) * apart < s.behind; i += blockDim.x * UNDER_WAY * N) {
        typename W::template raw<N> r[UNDER_WAY];
#pragma unroll
        for (unsigned k = 0; k < UNDER_WAY; k++)
            r[k] = work.template fetch<N>((size_t)i + k * apart);
#pragma unroll
        for (unsigned k = 0; k < UNDER_WAY; k++)
            work.template finish<N>((size_t)i + k * apart, r[k]);
    }
    for (; UNDER_WAY > 1 && i < s.behind; i += apart) /* fewer than that */
        work.template finish<N>(i, work.template fetch<N>(i));
}

/* The rest of a range of count elements, in one loop for any types. */
template <int UNDER_WAY, class W>
AMPI_DEVICE void ampi_map_rest(const W &work, ampi_segment s, unsigned count) {
    const unsigned groups = s.behind - s.first, others = count - groups;
    for (unsigned e = threadIdx.x; e < others; e += UNDER_WAY * blockDim.x) {
        typename W::template raw<1> r[UNDER_WAY];
#pragma unroll
        for (unsigned k = 0, o = e; k < UNDER_WAY; k++, o += blockDim.x)
            if (o < others) r[k] = work.template fetch<1>(o < s.first ? o : o + groups);
#pragma unroll
        for (unsigned k = 0, o = e; k < UNDER_WAY; k++, o += blockDim.x)
            if (o < others) work.template finish<1>(o < s.first ? o : o + groups, r[k]);
    }
}

AMPI_DEVICE bool ampi_first_thread(void) { return blockIdx.x == 0 && threadIdx.x == 0; }

/* Does op leave an element as it is, in a dst of this type? */
template <class OP> AMPI_DEVICE bool ampi_keeps(const OP &, uint32_t, uint32_t) { return false; }

/* dst = op(src), element by element, in bits of fp32. Most ops ignore dst's type. */
template <class OP, int DST, int SRC> struct ampi_mapper {
    ampi_array<DST> dst;
    ampi_array<SRC> src;
    const OP       &op;

    template <int N> using raw = typename ampi_array<SRC>::template raw<N>;

    template <int N> AMPI_MEMBER raw<N> fetch(size_t i) const { return src.template fetch<N>(i); }
    template <int N> AMPI_MEMBER void finish(size_t i, const raw<N> &r) const {
        uint32_t from[N], to[N];
        bool     all = true;
        src.template expand<N>(r.w, from);
#pragma unroll
        for (int k = 0; k < N; k++) {
            to[k] = op(from[k], dst.type);
            all   = all && !ampi_keeps(op, from[k], dst.type);
        }
        if (all) {
            dst.template put<N>(i, to);
        } else {
#pragma unroll
            for (int k = 0; k < N; k++)
                if (!ampi_keeps(op, from[k], dst.type)) dst.put_one(i + k, to[k]);
        }
    }
};

/* A thread fetches 64 bytes of src at once. Beside fp32, 16-bit types go by four, so that a warp's
   accesses leave no gaps in any array. In place, too: by eight the compiler is short of predicates,
   and fetches late. */
template <int DST, int SRC, class OP>
AMPI_DEVICE ampi_segment ampi_map_groups(const ampi_any &dst, const ampi_any &src, unsigned count,
                                         const OP &op) {
    enum {
        N         = DST == AMP_F32 || SRC == AMP_F32 || DST == SRC ? 4 : 8,
        UNDER_WAY = 64 / (N * ampi_array<SRC>::SIZE)
    };
    const unsigned     first = dst.base ? dst.head(N) : src.head(N);
    const ampi_segment s     = ampi_groups_in(N, first, count, dst, src);
    ampi_each_group<N, UNDER_WAY>(ampi_mapper<OP, DST, SRC>{dst, src, op}, s);
    return s;
}

/* Types for which a kernel has loops; all others are rest. */
template <int DST, int SRC> struct ampi_pair {};
template <class... P> struct ampi_pairs {};
typedef ampi_pairs<ampi_pair<AMP_F16, AMP_F32>, ampi_pair<AMP_BF16, AMP_F32>,
                   ampi_pair<AMP_F32, AMP_F16>, ampi_pair<AMP_F32, AMP_BF16>,
                   ampi_pair<AMP_BF16, AMP_F16>, ampi_pair<AMP_F16, AMP_BF16>> ampi_casts;

typedef ampi_pairs<ampi_pair<AMP_F32, AMP_F16>, ampi_pair<AMP_F32, AMP_BF16>,
                   ampi_pair<AMP_F32, AMP_F32>> ampi_to_fp32;

template <class OP>
AMPI_DEVICE ampi_segment ampi_map_pairs(const ampi_any &, const ampi_any &, unsigned, const OP &,
                                        ampi_pairs<>) {
    return ampi_segment();
}
template <int DST, int SRC, class... P, class OP>
AMPI_DEVICE ampi_segment ampi_map_pairs(const ampi_any &dst, const ampi_any &src, unsigned count,
                                        const OP &op, ampi_pairs<ampi_pair<DST, SRC>, P...>) {
    if (src.type == SRC && dst.type == DST)
        return ampi_map_groups<DST, SRC>(dst, src, count, op);
    return ampi_map_pairs(dst, src, count, op, ampi_pairs<P...>());
}

template <class OP, class PAIRS>
AMPI_DEVICE void ampi_map(const ampi_any &dst, const ampi_any &src, unsigned count, const OP &op,
                          PAIRS pairs) {
    const ampi_segment s = ampi_map_pairs(dst, src, count, op, pairs);
    ampi_map_rest<4>(ampi_mapper<OP, AMPI_ANY, AMPI_ANY>{dst, src, op}, s, count);
}

/* Sets count elements to zero. */
AMPI_DEVICE void ampi_clear(const ampi_any &x, unsigned count) {
    const unsigned  n = 16 / x.size(), first = x.head(n);
    const ampi_segment s = ampi_groups_in(n, first, count, x);
    for (unsigned i = s.first + n * threadIdx.x; i < s.behind; i += n * blockDim.x)
        ampi_put_vector<false, 4>(x.base + i * x.size(), ampi_raw<4>().w);
    for (unsigned e = threadIdx.x; e < count - (s.behind - s.first); e += blockDim.x)
        x.put_one(e < s.first ? e : e + (s.behind - s.first), 0);
}

/* ------------------------------------------------------------------- A: check */

/* A team of WARPS warps takes a chunk, in rows of 256 elements, of which each thread has 8 /
   WARPS. Rows begin at a multiple of 16 bytes, so a thread's e-th element need not be of the lane
   with that number. But it is of the same lane in every row, and a rotation of all lanes changes
   no pair of them. */
template <int WARPS> struct ampi_found {
    float    lane[8 / WARPS];
    uint32_t max;     /* bits of the largest magnitude */
    uint32_t nonzero; /* two counts of 16 bits, to be added */
    uint32_t nonfinite, nan;
    int      first;   /* the first that is not finite */
};

enum { AMPI_NONE = 0x7fffffff };
static_assert(AMPI_LANES == 8 * 32, "a warp has eight lanes in each thread");
static_assert(AMPI_CHUNK <= 0xffff, "a thread, and a team, counts its elements in 16 bits");

/* What the warps of a team exchange. */
struct ampi_warps {
    float    lanes[AMPI_LANES];
    uint32_t word[4];
};

template <int WARPS> AMPI_DEVICE void ampi_barrier(void) {
    if (WARPS == 1) __syncwarp();
    else __syncthreads();
}

/* The place in a row of a thread's e-th element, if a load brings per_load elements. */
template <int WARPS> AMPI_DEVICE int ampi_place_of(int e, int per_load) {
    const int member = (int)threadIdx.x % (32 * WARPS);
    return e / per_load * per_load * 32 * WARPS + member * per_load + e % per_load;
}

template <int WARPS>
AMPI_DEVICE void ampi_take_one(ampi_found<WARPS> *f, int e, uint32_t magnitude, float t) {
    f->max     = magnitude > f->max ? magnitude : f->max;
    f->lane[e] = ampi_add(f->lane[e], ampi_mul(t, t));
}

/* Takes what one load has brought, from the thread's e-th element on. 16 bits are compared with
   zero two at a time: adding 0x7fff carries into the top bit of all except zero. */
template <int TYPE, int WARPS, int WORDS>
AMPI_DEVICE void ampi_take_load(ampi_found<WARPS> *f, int e, const ampi_raw<WORDS> &r) {
    for (int k = 0; k < WORDS; k++) {
        if (TYPE == AMP_F32) {
            const uint32_t u = r.w[k] & 0x7fffffffu;
            f->nonzero += u != 0;
            ampi_take_one(f, e + k, u, ampi_f32_from_bits(u));
        } else {
            const uint32_t w = r.w[k] & 0x7fff7fffu;
            uint32_t       low = w << 16, high = w & 0xffff0000u;
            f->nonzero += ((w + 0x7fff7fffu) & 0x80008000u) >> 15;
            if (TYPE == AMP_F16) ampi_cvt_from_f16(w, &low, &high);
            ampi_take_one(f, e + 2 * k, low, ampi_f32_from_bits(low));
            ampi_take_one(f, e + 2 * k + 1, high, ampi_f32_from_bits(high));
        }
    }
}

/* Takes rows [from, to) element by element: incomplete ones at the ends, all of a chunk that
   needs care, and all of one whose elements are not aligned. */
template <int PER_LOAD, int WARPS>
AMPI_DEVICE void ampi_take_ragged(ampi_found<WARPS> *f, const ampi_any &grads, int head, int from,
                                  int to, int count, bool careful, float rescale) {
    for (int row = from; row < to; row++) {
#pragma unroll
        for (int e = 0; e < 8 / WARPS; e++) {
            const int i = head + row * AMPI_LANES + ampi_place_of<WARPS>(e, PER_LOAD);
            if (i < 0 || i >= count) continue;
            const uint32_t u = grads.get((unsigned)i) & 0x7fffffffu;
            if (careful && ampi_nonfinite(u)) {
                f->nonfinite++;
                f->nan += u > AMPI_F32_INF;
                f->first = i < f->first ? i : f->first;
            } else {
                f->nonzero += u != 0;
                ampi_take_one(f, e, u, ampi_mul(ampi_f32_from_bits(u), rescale));
            }
        }
    }
}

/* Adds the lanes of a team in the canonical pairs. Every thread gets the sum. */
template <int WARPS>
AMPI_DEVICE float ampi_add_lanes(const ampi_found<WARPS> *f, int per_load, ampi_warps *team) {
    const int thread = (int)threadIdx.x % 32;
    float     v[8];
    ampi_barrier<WARPS>();
    for (int e = 0; e < 8 / WARPS; e++) team->lanes[ampi_place_of<WARPS>(e, per_load)] = f->lane[e];
    ampi_barrier<WARPS>();
    for (int k = 0; k < 8; k++) v[k] = team->lanes[thread + 32 * k];
    for (int half = 4; half; half /= 2)
        for (int k = 0; k < half; k++) v[k] = ampi_add(v[k], v[k + half]);
    for (int half = 16; half; half /= 2)
        v[0] = ampi_add(v[0], __shfl_down_sync(0xffffffffu, v[0], half));
    return __shfl_sync(0xffffffffu, v[0], 0);
}

/* Every thread of a team gets the sum of all threads' numbers, or the largest of them. */
template <int WARPS, bool SUM> AMPI_DEVICE uint32_t ampi_reduce(uint32_t x, ampi_warps *team) {
    uint32_t all = 0;
    for (int half = 16; half; half /= 2) {
        const uint32_t y = __shfl_xor_sync(0xffffffffu, x, half);
        x = SUM ? x + y : ampi_most(x, y);
    }
    if (WARPS == 1) return x;
    __syncthreads();
    if (threadIdx.x % 32 == 0) team->word[threadIdx.x / 32] = x;
    __syncthreads();
    for (int k = 0; k < WARPS; k++) all = SUM ? all + team->word[k] : ampi_most(all, team->word[k]);
    return all;
}

/* One thread of each team reports what was found. For a tensor of one chunk, that is all. For
   others, the thread that reports the last chunk publishes what all have gathered, and clears it
   for the next step. So no block has to go through all tensors at the end. */
AMPI_DEVICE void ampi_report_tally(const amp_plan &plan, uint32_t i, const ampi_tally &found) {
    ampi_slot     *slot   = &plan.table[i];
    const unsigned chunks = (unsigned)ampi_chunks(slot->n);
    ampi_tally    *tally  = &slot->tally;
    ampi_tally     all    = found;
    if (chunks > 1) {
        if (found.zeros) atomicAdd(&tally->zeros, found.zeros);
        if (found.max) atomicMax(&tally->max, found.max);
        if (found.nonfinite) {
            atomicAdd(&tally->nonfinite, found.nonfinite);
            if (found.nan) atomicAdd(&tally->nan, found.nan);
            atomicMax(&tally->late, found.late);
        }
        ampi_device_fence();
        if (atomicInc(&slot->arrived, chunks - 1) != chunks - 1) return;
        ampi_device_fence();
        all    = *tally;
        *tally = ampi_tally();
    }
    slot->stats.nonfinite       = all.nonfinite;
    slot->stats.nan             = all.nan;
    slot->stats.zeros           = all.zeros;
    slot->stats.first_nonfinite = slot->n - all.late; /* n if there is none */
    slot->stats.max_finite      = ampi_f32_from_bits(all.max);
    if (all.nonfinite && plan.record) {
        ampi_count_overflow(&plan, i, all.nan);
        atomicMax(&plan.record->bad, (uint32_t)plan.num_slots - i);
    }
}

/* How a team takes rows of a type. */
template <int TYPE, int WARPS> struct ampi_row_of {
    enum {
        IN_ROW   = 8 / WARPS * ampi_array<TYPE>::SIZE, /* bytes of a thread */
        PER_LOAD = (IN_ROW < 16 ? IN_ROW : 16) / ampi_array<TYPE>::SIZE,
        LOADS    = 8 / WARPS / PER_LOAD,
        APART    = PER_LOAD * 32 * WARPS, /* between a thread's loads in a row */
        ROWS     = 128 / IN_ROW           /* whose loads a thread has under way at once */
    };
};

/* Takes ROWS complete rows, from number row on. */
template <int TYPE, int WARPS, int ROWS>
AMPI_DEVICE void ampi_take_rows(ampi_found<WARPS> *f, const ampi_array<TYPE> &mine, int row) {
    typedef ampi_row_of<TYPE, WARPS> of;
    typename ampi_array<TYPE>::template raw<of::PER_LOAD> r[ROWS * of::LOADS];
#pragma unroll
    for (int k = 0; k < ROWS * of::LOADS; k++)
        r[k] = mine.template fetch<of::PER_LOAD>((size_t)row * AMPI_LANES +
                                                 k / of::LOADS * AMPI_LANES +
                                                 k % of::LOADS * of::APART);
    if (ROWS > 1) __syncwarp(); /* else the compiler uses the first before it loads the last */
#pragma unroll
    for (int k = 0; k < ROWS * of::LOADS; k++)
        ampi_take_load<TYPE>(f, k % of::LOADS * of::PER_LOAD, r[k]);
}

/* What a team found in count elements; rest is all that the tensor has from start on. */
template <int WARPS>
AMPI_DEVICE void ampi_report_found(const ampi_found<WARPS> &f, uint64_t rest, int count,
                                   ampi_warps *team, ampi_tally *found) {
    const uint32_t nonzero = (f.nonzero & 0xffffu) + (f.nonzero >> 16);
    const uint32_t both    = ampi_reduce<WARPS, true>(nonzero + (f.nonfinite << 16), team);
    found->max       = f.max;
    found->nonfinite = both >> 16;
    found->zeros     = (unsigned)count - (both >> 16) - (both & 0xffffu);
    if (both >> 16) {
        const uint32_t late = (uint32_t)(AMPI_NONE - f.first);
        found->nan  = ampi_reduce<WARPS, true>(f.nan, team);
        found->late = rest - AMPI_NONE + ampi_reduce<WARPS, false>(late, team);
    }
}

/* A team checks count elements from start on, as the CPU's ampi_check_chunk does, and in the same
   order. Returns the sum of squares; *found is what this chunk adds to the tensor's tally. */
template <int TYPE, int WARPS>
AMPI_DEVICE double ampi_check_by_team(const ampi_slot *slot, uint64_t start, int count,
                                      ampi_warps *team, ampi_tally *found) {
    typedef ampi_array<TYPE>         array;
    typedef ampi_row_of<TYPE, WARPS> of;
    enum { PER_LOAD = of::PER_LOAD, ROWS = of::ROWS };
    const ampi_any grads = ampi_array_at(slot->grad, TYPE, start);
    const int      head  = grads.by_element ? (int)grads.head(16 / array::SIZE) : 0;
    const int      full  = grads.by_element && count > head ? (count - head) / AMPI_LANES : 0;
    const int      rows  = (count - head + AMPI_LANES - 1) / AMPI_LANES;
    const array    mine(grads.base +
                     (head + ampi_place_of<WARPS>(0, PER_LOAD)) * (int)array::SIZE);
    float          rescale = 1.0f, sum;
    double         back    = 1.0;
    ampi_found<WARPS> f;
    for (int attempt = 0;; attempt++) {
        const bool careful = attempt > 0;
        int        row     = 0;
        f       = ampi_found<WARPS>();
        f.first = AMPI_NONE;
        if (head || careful)
            ampi_take_ragged<PER_LOAD>(&f, grads, head, -1, careful ? rows : 0, count, careful,
                                       rescale);
        if (!careful) {
            for (; row + ROWS <= full; row += ROWS)
                ampi_take_rows<TYPE, WARPS, ROWS>(&f, mine, row);
            for (; row + ROWS / 2 <= full; row += ROWS / 2) /* each batch of loads is waited for */
                ampi_take_rows<TYPE, WARPS, ROWS / 2>(&f, mine, row);
            for (; row < full; row++) ampi_take_rows<TYPE, WARPS, 1>(&f, mine, row);
            ampi_take_ragged<PER_LOAD>(&f, grads, head, full, rows, count, false, 1.0f);
        }
        f.max = ampi_reduce<WARPS, false>(f.max, team);
        if (!careful && f.max >= AMPI_F32_INF) continue; /* sums and zeros are of no use */
        sum = ampi_add_lanes(&f, PER_LOAD, team);
        if (back != 1.0 || !ampi_sums_again(sum, f.max, &rescale, &back)) break;
    }
    ampi_report_found(f, slot->n - start, count, team, found);
    return ampi_mul64(ampi_double(sum), back);
}

/* One block sums the chunks, for its first thread. */
AMPI_DEVICE double ampi_sum_partials(const amp_plan *plan, double *lanes) {
    for (unsigned l = threadIdx.x; l < AMPI_LANES; l += blockDim.x) {
        double sum = 0.0;
#pragma unroll 8
        for (uint64_t i = l; i < plan->num_chunks; i += AMPI_LANES)
            sum = ampi_add64(sum, plan->sums[i]);
        lanes[l] = sum;
    }
    for (unsigned half = AMPI_LANES / 2; half; half /= 2) {
        __syncthreads();
        for (unsigned l = threadIdx.x; l < half; l += blockDim.x)
            lanes[l] = ampi_add64(lanes[l], lanes[l + half]);
    }
    __syncthreads();
    return lanes[0];
}

/* The end of A, by one block. It decides, unless ranks have to meet first. */
AMPI_DEVICE void ampi_end_check(const amp_plan *plan, double *lanes) {
    const double  norm2 = ampi_sum_partials(plan, lanes);
    ampi_control *c     = plan->control;
    if (threadIdx.x == 0) {
        c->norm2    = norm2;
        c->maxima[0] = c->seen[0] | ampi_found_by_user(plan);
        c->maxima[1] = c->seen[1];
        c->seen[0] = c->seen[1] = 0;
        if (!plan->reduces) ampi_decide(plan);
    }
}

/* ------------------------------------------------------------------- samples

   A sampled step goes through its arrays once more, element by element: it is one in many. A block
   counts in shared memory, then adds to the tensor's histogram. (That memory is never declared in a
   template, where the emulator would not know that it is a block's own.) */

AMPI_DEVICE uint32_t *ampi_begin_counts(void) {
    __shared__ uint32_t counts[AMPI_COUNTS];
    for (unsigned k = threadIdx.x; k < AMPI_COUNTS; k += blockDim.x) counts[k] = 0;
    __syncthreads();
    return counts;
}

AMPI_DEVICE void ampi_end_counts(const uint32_t *counts, ampi_histogram *histogram) {
    __syncthreads();
    for (unsigned k = threadIdx.x; k < AMPI_COUNTS; k += blockDim.x)
        if (counts[k]) atomicAdd(&histogram->count[k], (unsigned long long)counts[k]);
    __syncthreads();
}

AMPI_DEVICE void ampi_count_bin(uint32_t *counts, int first, uint32_t magnitude) {
    if (magnitude && magnitude < AMPI_F32_INF)
        atomicAdd(&counts[first + ampi_bin(magnitude)], 1u);
}

AMPI_DEVICE void ampi_count_grad(uint32_t *counts, uint32_t magnitude) {
    ampi_count_bin(counts, AMPI_GRADS, magnitude);
    if (!magnitude || magnitude >= AMPI_F16_NORMAL_FROM) return;
    atomicAdd(&counts[magnitude <= AMPI_F16_ZERO_TO ? AMPI_F16_ZERO : AMPI_F16_SMALL], 1u);
    if (magnitude >= AMPI_BF16_NORMAL_FROM) return;
    atomicAdd(&counts[magnitude <= AMPI_BF16_ZERO_TO ? AMPI_BF16_ZERO : AMPI_BF16_SMALL], 1u);
}

/* What a block processes at a time. */
struct ampi_share {
    ampi_slot *slot;
    uint64_t   begin;
    unsigned   count; /* 0 after the end of a tensor */
    ampi_any   grad;
};

/* A share is a chunk, or one of its 2^split equal parts. */
AMPI_DEVICE ampi_share ampi_share_of(const amp_plan &plan, uint64_t number) {
    const unsigned length = AMPI_CHUNK >> plan.share_bits;
    ampi_share     s;
    s.slot  = &plan.table[plan.chunk_slots[number >> plan.share_bits]];
    s.begin = number * length - s.slot->first_chunk * (uint64_t)AMPI_CHUNK;
    s.count = ampi_count_from(s.begin, s.slot->n, length);
    s.grad  = ampi_array_at(s.slot->grad, s.slot->grad_type, s.begin);
    return s;
}

/* Samples all gradients, after they have been checked. */
AMPI_DEVICE void ampi_sample_shares(const amp_plan &plan) {
    for (uint64_t k = blockIdx.x; k < plan.num_chunks << plan.share_bits; k += gridDim.x) {
        const ampi_share s = ampi_share_of(plan, k);
        if (!s.grad.base) continue;
        uint32_t *counts = ampi_begin_counts();
        for (unsigned e = threadIdx.x; e < s.count; e += blockDim.x)
            ampi_count_grad(counts, s.grad.get(e) & 0x7fffffffu);
        ampi_end_counts(counts, ampi_histogram_of(&plan, ~plan.record->which,
                                                  (size_t)(s.slot - plan.table)));
    }
}

/* Clears the histogram that the next sample will fill. */
AMPI_DEVICE void ampi_clear_histograms(const amp_plan *plan) {
    ampi_histogram *next = ampi_histogram_of(plan, ~plan->record->which, 0);
    const uint64_t all  = (uint64_t)plan->num_slots * AMPI_COUNTS;
    for (uint64_t k = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; k < all;
         k += (uint64_t)gridDim.x * blockDim.x)
        next[k / AMPI_COUNTS].count[k % AMPI_COUNTS] = 0;
}

/* Is this the last of so many blocks to arrive? It sees what all others have written: one thread
   of each block fences before it arrives and after, and the block's barriers pass that on. */
AMPI_DEVICE bool ampi_is_last(uint32_t *arrived, uint32_t blocks, uint32_t *shared) {
    __syncthreads();
    if (threadIdx.x == 0) {
        ampi_device_fence();
        *shared = atomicInc(arrived, blocks - 1) == blocks - 1;
        ampi_device_fence();
    }
    __syncthreads();
    return *shared != 0;
}

/* Shared memory of a block: at most eight teams of one warp, or one team of four. */
template <int WARPS> struct ampi_check_room {
    ampi_warps teams[WARPS == 1 ? 8 : 1];
    double     sums[AMPI_LANES];
    uint32_t   last;
};

template <int WARPS>
AMPI_DEVICE void ampi_check_chunks(const amp_plan &plan, ampi_check_room<WARPS> *room) {
    const unsigned per_block = blockDim.x / (32 * WARPS);
    const unsigned number    = threadIdx.x / (32 * WARPS);
    const bool     leads     = threadIdx.x % (32 * WARPS) == 0;
    ampi_warps    *team      = &room->teams[number];
    uint32_t       bad = 0, largest = 0;
    uint64_t       c = (uint64_t)blockIdx.x * per_block + number;
    for (; c < plan.num_chunks; c += (uint64_t)gridDim.x * per_block) {
        const uint32_t i     = plan.chunk_slots[c];
        ampi_slot     *slot  = &plan.table[i];
        const uint64_t start = (c - slot->first_chunk) * AMPI_CHUNK;
        const int      count = (int)ampi_count_from(start, slot->n, AMPI_CHUNK);
        ampi_tally     found = {};
        double         sum   = 0.0;
        if (!slot->grad || count == 0) /* a sparse slot may be shorter than it was */
            ;
        else if (slot->grad_type == AMP_F16)
            sum = ampi_check_by_team<AMP_F16, WARPS>(slot, start, count, team, &found);
        else if (slot->grad_type == AMP_BF16)
            sum = ampi_check_by_team<AMP_BF16, WARPS>(slot, start, count, team, &found);
        else
            sum = ampi_check_by_team<AMP_F32, WARPS>(slot, start, count, team, &found);
        if (!leads) continue;
        plan.sums[slot->first_sum + (c - slot->first_chunk)] = sum;
        if (count == 0) continue;
        bad |= found.nonfinite != 0;
        largest = found.max > largest ? found.max : largest;
        ampi_report_tally(plan, i, found);
    }
    if (ampi_samples(&plan)) ampi_sample_shares(plan);
    if (leads && bad) atomicOr(&plan.control->seen[0], 1u);
    if (leads && largest) atomicMax(&plan.control->seen[1], largest);
    if (ampi_is_last(&plan.control->arrived, gridDim.x, &room->last))
        ampi_end_check(&plan, room->sums);
}

AMPI_KERNEL(2) ampi_check_kernel(amp_plan plan) {
    __shared__ ampi_check_room<1> room;
    ampi_check_chunks<1>(plan, &room);
}
AMPI_KERNEL(2) ampi_check_by_four_kernel(amp_plan plan) {
    __shared__ ampi_check_room<4> room;
    ampi_check_chunks<4>(plan, &room);
}

/* After the ranks' reduction, by one block. */
AMPI_KERNEL(2) ampi_decide_kernel(amp_plan plan) {
    if (threadIdx.x == 0) ampi_decide(&plan);
}

/* ------------------------------------------------------------------- gradients of few rows */

/* Before A they are sorted by row, stably, and summed; A sees the sums. A block takes a tile of
   AMPI_TILE entries. What spans the tiles of a table is done by the last block there. A tile is
   processed in rounds of a block, and in a round in the order of threads. */
AMPI_DEVICE ampi_sparse *ampi_sparse_at(const amp_plan *plan, uint32_t tile) {
    ampi_sparse *s = plan->sparse + plan->num_sparse - 1;
    while (s->first_tile > tile) s--;
    return s;
}

/* Entries of tile number tile of a tensor: [first, behind). */
struct ampi_tile {
    uint32_t number, first, behind;
    AMPI_MEMBER ampi_tile(const ampi_sparse *s, uint32_t tile, uint32_t given) {
        number = tile - s->first_tile;
        first  = number * AMPI_TILE;
        behind = first < given ? first + ampi_count_from(first, given, AMPI_TILE) : first;
    }
};

/* Turns counts of digits in each tile into the places where a tile's digits go. */
AMPI_DEVICE void ampi_place_digits(uint32_t *counts, uint32_t tiles, uint32_t *total) {
    for (unsigned d = threadIdx.x; d < AMPI_DIGITS; d += blockDim.x) {
        uint32_t sum = 0;
#pragma unroll 8
        for (uint32_t k = 0; k < tiles; k++) sum += counts[k * AMPI_DIGITS + d];
        total[d] = sum;
    }
    __syncthreads();
    for (unsigned d = threadIdx.x; d < AMPI_DIGITS; d += blockDim.x) {
        uint32_t before = 0;
        for (unsigned k = 0; k < d; k++) before += total[k];
#pragma unroll 8
        for (uint32_t k = 0; k < tiles; k++) {
            const uint32_t n = counts[k * AMPI_DIGITS + d];
            counts[k * AMPI_DIGITS + d] = before;
            before += n;
        }
    }
    __syncthreads();
}

/* Counts the first digits in each tile. Scattering counts later ones. */
AMPI_KERNEL(4) ampi_count_kernel(amp_plan plan) {
    __shared__ uint32_t digits[AMPI_DIGITS], last;
    for (uint32_t tile = blockIdx.x; tile < plan.num_tiles; tile += gridDim.x) {
        ampi_sparse    *s = ampi_sparse_at(&plan, tile);
        const ampi_tile t(s, tile, ampi_given(&plan.table[s->slot], s));
        for (unsigned d = threadIdx.x; d < AMPI_DIGITS; d += blockDim.x) digits[d] = 0;
        __syncthreads();
        for (uint32_t i = t.first + threadIdx.x; i < t.behind; i += blockDim.x)
            atomicAdd(&digits[ampi_row(s, i) & 255u], 1u);
        __syncthreads();
        for (unsigned d = threadIdx.x; d < AMPI_DIGITS; d += blockDim.x)
            s->counts[0][t.number * AMPI_DIGITS + d] = digits[d];
        if (ampi_is_last(&s->arrived, s->num_tiles, &last))
            ampi_place_digits(s->counts[0], s->num_tiles, digits);
    }
}

/* After sorting: how many rows begin before each AMPI_SEGMENT entries? And what A has to know. */
AMPI_DEVICE void ampi_count_rows(const amp_plan *plan, ampi_sparse *s, const uint32_t *keys,
                                 uint32_t *total) {
    const uint32_t given = s->given, all = (given + AMPI_SEGMENT - 1) / AMPI_SEGMENT;
    const uint32_t each = (all + blockDim.x - 1) / blockDim.x, first = threadIdx.x * each;
    uint32_t       sum = 0, before = 0;
    for (uint32_t k = first; k < first + each && k < all; k++) {
        s->begins[k] = sum;
#pragma unroll 16
        for (uint32_t i = k * AMPI_SEGMENT; i < (k + 1) * AMPI_SEGMENT; i++)
            sum += i < given && ampi_begins(keys, i);
    }
    total[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned k = 0; k < threadIdx.x; k++) before += total[k];
    for (uint32_t k = first; k < first + each && k < all; k++) s->begins[k] += before;
    if (threadIdx.x != blockDim.x - 1) return;
    s->touched = before + sum;
    ampi_begin_sums(&plan->table[s->slot], s);
    if (s->early) atomicOr(&plan->control->seen[0], (uint32_t)AMPI_BAD_ROW);
    if (s->early && plan->record) {
        ampi_count_overflow(plan, s->slot, 0);
        atomicMax(&plan->record->bad, (uint32_t)plan->num_slots - s->slot);
    }
    s->early = 0;
}

/* The threads of the warp that have the same digit; none for a thread without an entry. */
AMPI_DEVICE uint32_t ampi_same_digit(uint32_t digit, bool has) {
    uint32_t alike = __ballot_sync(0xffffffffu, has);
    for (int bit = 0; bit < 8; bit++) {
        const uint32_t ones = __ballot_sync(0xffffffffu, digit >> bit & 1u);
        alike &= digit >> bit & 1u ? ones : ~ones;
    }
    return has ? alike : 0u;
}

/* next: where the block's next entry of each digit goes. after: counts for the next pass. */
struct ampi_scatter_room { uint32_t next[AMPI_DIGITS], found[8][AMPI_DIGITS], last; };
AMPI_DEVICE void ampi_scatter_tile(const ampi_sparse *s, const ampi_tile &t, uint32_t pass,
                                   uint32_t *after, ampi_scatter_room *room) {
    const unsigned  warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const uint32_t  lower = (1u << threadIdx.x % 32) - 1u;
    const uint32_t *keys = s->keys[1 - pass % 2], *places = s->places[1 - pass % 2];
    for (uint32_t begin = t.first; begin < t.behind; begin += blockDim.x) {
        const uint32_t i     = begin + threadIdx.x;
        const bool     has   = i < t.behind;
        const uint32_t key   = !has ? 0u : pass ? keys[i] : ampi_row(s, i);
        const uint32_t digit = key >> 8 * pass & 255u;
        const uint32_t alike = ampi_same_digit(digit, has);
        if (has && !(alike & lower)) room->found[warp][digit] = (uint32_t)__popc(alike);
        __syncthreads();
        if (has) {
            uint32_t to = room->next[digit] + (uint32_t)__popc(alike & lower);
            for (unsigned w = 0; w < warp; w++) to += room->found[w][digit];
            s->keys[pass % 2][to]   = key;
            s->places[pass % 2][to] = pass ? places[i] : i;
            if (after)
                atomicAdd(&after[to / AMPI_TILE * AMPI_DIGITS + (key >> 8 * (pass + 1) & 255u)],
                          1u);
        }
        __syncthreads();
        for (unsigned d = threadIdx.x; d < AMPI_DIGITS; d += blockDim.x)
            for (unsigned w = 0; w < warps; w++) {
                room->next[d] += room->found[w][d];
                room->found[w][d] = 0;
            }
        __syncthreads();
    }
}

/* Counts are cleared after they have been read. */
AMPI_KERNEL(4) ampi_scatter_kernel(amp_plan plan, uint32_t pass) {
    __shared__ ampi_scatter_room room;
    for (uint32_t tile = blockIdx.x; tile < plan.num_tiles; tile += gridDim.x) {
        ampi_sparse     *s     = ampi_sparse_at(&plan, tile);
        const ampi_slot *slot  = &plan.table[s->slot];
        const uint32_t   given = pass ? s->given : ampi_given(slot, s);
        const ampi_tile  t(s, tile, given);
        uint32_t *counts = s->counts[pass % 2] + t.number * AMPI_DIGITS;
        uint32_t *after  = pass + 1 < plan.passes ? s->counts[1 - pass % 2] : NULL;
        if (pass == 0 && t.number == 0 && threadIdx.x == 0) {
            s->given = given;
            if (slot->values && *s->num_rows > s->most) atomicMax(&s->early, 1u);
        }
        for (uint32_t i = t.first + threadIdx.x; pass == 0 && i < t.behind; i += blockDim.x)
            if (s->rows[i] >= s->table) atomicMax(&s->early, s->most + 1u - i); /* a bad row */
        for (unsigned d = threadIdx.x; d < AMPI_DIGITS; d += blockDim.x) {
            for (unsigned w = 0; w < blockDim.x / 32; w++) room.found[w][d] = 0;
            room.next[d] = counts[d];
            counts[d]    = 0;
        }
        __syncthreads();
        ampi_scatter_tile(s, t, pass, after, &room);
        if (!ampi_is_last(&s->arrived, s->num_tiles, &room.last)) continue;
        if (after) ampi_place_digits(after, s->num_tiles, room.next);
        else ampi_count_rows(&plan, s, s->keys[pass % 2], room.next);
        __syncthreads();
    }
}

/* The first of sorted keys [first, behind) that is key or more, or behind if there is none. A
   warp reads 32 at a time. */
AMPI_DEVICE uint32_t ampi_first_of(const uint32_t *keys, uint32_t key, uint32_t first,
                                   uint32_t behind) {
    while (first < behind) {
        const uint32_t apart = (behind - first + 31) / 32, at = first + threadIdx.x % 32 * apart;
        const uint32_t less =
            (uint32_t)__popc(__ballot_sync(0xffffffffu, at < behind && keys[at] < key));
        if (less == 0) break;
        behind = behind - first < less * apart ? behind : first + less * apart;
        first += (less - 1) * apart + 1;
    }
    return first;
}

/* What is added up: count values to what is there; or instead of it, those at places, of which
   each lane of a warp has two, 32 apart. */
struct ampi_addends {
    ampi_any to, values;
    uint64_t length; /* from one to the next */
    uint32_t count, low, high;
};
enum ampi_addition { AMPI_IN_ORDER, AMPI_BY_PLACES };

AMPI_DEVICE uint32_t ampi_sum_of(uint32_t x, uint32_t y) {
    return ampi_bits_of_f32(ampi_add(ampi_f32_from_bits(x), ampi_f32_from_bits(y)));
}

/* Adds them up, for N elements of the row from i on. All threads of a warp take part. */
template <int TYPE, int N, int HOW> struct ampi_row_adder {
    enum { SUM = TYPE == AMPI_ANY ? (int)AMPI_ANY : (int)AMP_F32, PLACES = HOW == AMPI_BY_PLACES };
    typedef ampi_array<TYPE> source;
    const ampi_addends      &a;
    uint32_t                 sum[N], k; /* values that are added */
    bool                     fresh;     /* does the next value begin a sum? */

    AMPI_MEMBER ampi_row_adder(const ampi_addends &x) : a(x) {}
    /* Adds the next M, all of which are loaded before the first is used. */
    template <int M> AMPI_MEMBER void add(unsigned i) {
        typename source::template raw<N> r[M];
        const uint32_t                   held = k < 32 ? a.low : a.high;
#pragma unroll
        for (int j = 0; j < M; j++) {
            const uint64_t place = PLACES ? __shfl_sync(0xffffffffu, held, (int)k % 32 + j) : k + j;
            const source   from(ampi_array_at(a.values.base, a.values.type, place * a.length));
            r[j] = from.template fetch<N>(i);
        }
#pragma unroll
        for (int j = 0; j < M; j++, k++) {
            uint32_t x[N];
            source(a.values).template expand<N>(r[j].w, x);
            for (int e = 0; e < N; e++) sum[e] = fresh ? x[e] : ampi_sum_of(sum[e], x[e]);
            fresh = false;
        }
    }
    AMPI_MEMBER void run(unsigned i, bool within) {
        const ampi_array<SUM> to(a.to);
        if (HOW == AMPI_IN_ORDER) to.template expand<N>(to.template fetch<N>(i).w, sum);
        fresh = HOW != AMPI_IN_ORDER;
        for (k = 0; a.count - k >= 8;) add<8>(i);
        if (a.count & 4) add<4>(i);
        if (a.count & 2) add<2>(i);
        if (a.count & 1) add<1>(i);
        if (within) to.template put<N>(i, sum);
    }
};

/* Groups of a range of count elements, or its rest. Lanes beyond its end read the first element
   of their warp, because loads without a condition take fewer registers. */
template <int TYPE, int N, int HOW>
AMPI_DEVICE void ampi_sum_addends(const ampi_addends &a, ampi_segment s, unsigned count) {
    const unsigned lane = threadIdx.x % 32, groups = s.behind - s.first;
    const unsigned all  = N > 1 ? groups : count - groups;
    ampi_row_adder<TYPE, N, HOW> adder(a);
    for (unsigned first = (threadIdx.x - lane) * N; first < all; first += blockDim.x * N) {
        const bool     within = first + lane * N < all;
        const unsigned e      = within ? first + lane * N : first;
        adder.run(N > 1 || e >= s.first ? e + (N > 1 ? s.first : groups) : e, within);
    }
}

template <int HOW> AMPI_DEVICE void ampi_add_up(const ampi_addends &a, unsigned count) {
    const unsigned n = a.values.type == AMP_F32 ? 2 : 4; /* 8 bytes */
    ampi_segment   s = {};
    if (a.length % n == 0) s = ampi_groups_in(n, a.to.head(n), count, a.to, a.values);
    if (a.values.type == AMP_F16) ampi_sum_addends<AMP_F16, 4, HOW>(a, s, count);
    else if (a.values.type == AMP_BF16) ampi_sum_addends<AMP_BF16, 4, HOW>(a, s, count);
    else ampi_sum_addends<AMP_F32, 2, HOW>(a, s, count);
    ampi_sum_addends<AMPI_ANY, 1, HOW>(a, s, count);
}

/* A block takes sorted entry i. If a segment of a row begins there, it adds that up. If a row has
   several, the last block that is done with one adds their sums. */
AMPI_DEVICE void ampi_sum_segment(const amp_plan &plan, const ampi_sparse *s, uint32_t i,
                                  uint32_t *last) {
    const ampi_slot *slot  = &plan.table[s->slot];
    const uint32_t  *keys  = s->keys[(plan.passes - 1) % 2], key = keys[i], given = s->given;
    const uint32_t   place = i / AMPI_SEGMENT, lane = threadIdx.x % 32;
    uint32_t         row = s->begins[place], begin = i + 1;
    ampi_addends     a   = {};
    a.values = ampi_array_at(slot->values, slot->values_type, 0);
    a.length = s->length;
#pragma unroll
    for (uint32_t k = 0; k < AMPI_SEGMENT; k += 32) {
        const uint32_t at = place * AMPI_SEGMENT + k + lane;
        const uint32_t b  = __ballot_sync(0xffffffffu, at <= i && ampi_begins(keys, at));
        row += (uint32_t)__popc(b);
        if (b) begin = at - lane + 31u - (uint32_t)__clz((int)b);
        const bool mine = i + k + lane < given && keys[i + k + lane] == key;
        if (mine) (k ? a.high : a.low) = s->places[(plan.passes - 1) % 2][i + k + lane];
        a.count += (uint32_t)__popc(__ballot_sync(0xffffffffu, mine));
    }
    row--;
    if (begin > i) begin = ampi_first_of(keys, key, 0, i);
    if ((i - begin) % AMPI_SEGMENT != 0) return;
    a.to    = ampi_array_at(slot->grad, AMP_F32, row * (uint64_t)s->length);
    if (i != begin) a.to = ampi_array_at(s->spare, AMP_F32, place * (uint64_t)s->length);
    else if (threadIdx.x == 0) s->unique[row] = key;
    ampi_add_up<AMPI_BY_PLACES>(a, s->length);
    if (i == begin && (i + AMPI_SEGMENT >= given || keys[i + AMPI_SEGMENT] != key)) return;
    a.count = (ampi_first_of(keys, key + 1, i, given) - begin - 1) / AMPI_SEGMENT;
    if (!ampi_is_last(&s->done[begin / AMPI_SEGMENT], a.count + 1, last)) return;
    a.to     = ampi_array_at(slot->grad, AMP_F32, row * (uint64_t)s->length);
    a.values = ampi_array_at(s->spare, AMP_F32, (begin / AMPI_SEGMENT + 1) * (uint64_t)s->length);
    ampi_add_up<AMPI_IN_ORDER>(a, s->length);
}

AMPI_KERNEL(2) ampi_sum_rows_kernel(amp_plan plan) {
    __shared__ uint32_t last;
    for (size_t k = 0; k < plan.num_sparse; k++)
        for (uint32_t i = blockIdx.x; i < plan.sparse[k].given; i += gridDim.x)
            ampi_sum_segment(plan, &plan.sparse[k], i, &last);
}

/* ------------------------------------------------------------------- B: update */

/* A range of one tensor, and what an optimizer needs for it. */
struct ampi_tensor_range {
    ampi_any   grad, master, m, v, model;
    ampi_rates rates;
    float      factor;
    bool       zero; /* clear gradients after they are read */
    ampi_control *control;
};

/* An optimizer, for gradients of type GRAD and a model copy of type MODEL. Arrays that the next
   forward does not read bypass the caches. */
template <int KIND, int GRAD, int MODEL> struct ampi_stepper {
    enum { STATE = GRAD == AMPI_ANY ? (int)AMPI_ANY : (int)AMP_F32, ONCE = GRAD != AMPI_ANY };
    enum { HAS_V = AMPI_SECOND >> KIND & 1 };
    typedef ampi_array<GRAD, ONCE>                          grad_array;
    typedef ampi_array<STATE, ONCE && MODEL != AMPI_ABSENT> master_array;
    typedef ampi_array<STATE, ONCE>                         moment_array;
    const ampi_tensor_range &t;
    const bool         has_m;
    grad_array         grad;
    master_array       master;
    moment_array       m, v;
    ampi_array<MODEL>  model;

    AMPI_MEMBER ampi_stepper(const ampi_tensor_range &t)
        : t(t), has_m(AMPI_FIRST >> KIND & 1 || t.m.base),
          grad(t.grad), master(t.master), m(t.m), v(t.v), model(t.model) {}

    template <int N> struct raw {
        typename grad_array::template raw<N>   grad;
        typename master_array::template raw<N> master, m, v;
    };
    template <int N> AMPI_MEMBER raw<N> fetch(size_t i) const {
        raw<N> r = {};
        r.grad   = grad.template fetch<N>(i);
        r.master = master.template fetch<N>(i);
        if (has_m) r.m = m.template fetch<N>(i);
        if (HAS_V) r.v = v.template fetch<N>(i);
        return r;
    }
    template <int N> AMPI_MEMBER void finish(size_t i, const raw<N> &r) const {
        uint32_t g[N], p[N], x[N], y[N];
        grad.template expand<N>(r.grad.w, g);
        master.template expand<N>(r.master.w, p);
        m.template expand<N>(r.m.w, x);
        v.template expand<N>(r.v.w, y);
#pragma unroll
        for (int k = 0; k < N; k++) {
            const float gk = ampi_unscale(g[k], t.factor);
            float       pk = ampi_f32_from_bits(p[k]);
            float       mk = ampi_f32_from_bits(x[k]), vk = ampi_f32_from_bits(y[k]);
            ampi_optimize((amp_kind)KIND, has_m, &t.rates, gk, &pk, &mk, &vk);
            if (HAS_V) y[k] = ampi_bits_of_f32(vk);
            p[k] = ampi_bits_of_f32(pk);
            x[k] = ampi_bits_of_f32(mk);
            g[k] = 0;
        }
        master.template put<N>(i, p);
        if (has_m) m.template put<N>(i, x);
        if (HAS_V) v.template put<N>(i, y);
        model.template put_model<N>(i, p, t.control);
        if (t.zero) grad.template put<N>(i, g);
    }
};

template <int KIND, int GRAD>
AMPI_DEVICE void ampi_step_groups(const ampi_tensor_range &t, ampi_segment s) {
    if (!t.model.base)
        ampi_each_group<4, 1>(ampi_stepper<KIND, GRAD, AMPI_ABSENT>(t), s);
    else if (t.model.type == AMP_F16)
        ampi_each_group<4, 1>(ampi_stepper<KIND, GRAD, AMP_F16>(t), s);
    else
        ampi_each_group<4, 1>(ampi_stepper<KIND, GRAD, AMP_BF16>(t), s);
}

/* All of a range: groups, for which the types are distinguished here and not in a loop, and the
   rest. With a model copy in fp32, which is rare, all is rest. */
template <int KIND> AMPI_DEVICE void ampi_step(const ampi_tensor_range &t, unsigned count) {
    const bool     rare  = t.model.base && t.model.type == AMP_F32;
    const unsigned first = rare ? count + 1 : t.master.head(4); /* after the end: no groups */
    const ampi_segment s = ampi_groups_in(4, first, count, t.grad, t.master, t.m, t.v, t.model);
    ampi_map_rest<1>(ampi_stepper<KIND, AMPI_ANY, AMPI_ANY>(t), s, count); /* two would spill */
    if (t.grad.type == AMP_F16) ampi_step_groups<KIND, AMP_F16>(t, s);
    else if (t.grad.type == AMP_BF16) ampi_step_groups<KIND, AMP_BF16>(t, s);
    else ampi_step_groups<KIND, AMP_F32>(t, s);
}

/* A block's first share of B, or of the touched rows. Shares count down to 0: A has left the last
   gradients in the cache, and a number that counts down needs no bound beside it. */
AMPI_DEVICE int64_t ampi_first_share(const amp_plan &plan, bool rows) {
    uint64_t all = rows ? 0 : plan.num_chunks << plan.share_bits;
    for (size_t i = 0; rows && i < plan.num_sparse; i++) all += plan.sparse[i].touched;
    return (int64_t)all - 1 - (int64_t)blockIdx.x;
}

/* Share k, which exists. (If the function also said whether it does, nvcc 13.5 would keep the last
   share in registers that the next needs.) */
AMPI_DEVICE ampi_share ampi_share_at(const amp_plan &plan, bool rows, uint64_t k) {
    const ampi_sparse *table = plan.sparse;
    ampi_share         s;
    if (!rows) {
        s = ampi_share_of(plan, k);
        if (s.slot->sparse) s.count = 0;
        return s;
    }
    while (k >= table->touched) k -= table++->touched;
    s.slot  = &plan.table[table->slot];
    s.begin = (uint64_t)table->unique[k] * table->length;
    s.count = table->length;
    s.grad  = ampi_array_at(s.slot->grad, AMP_F32, k * table->length);
    return s;
}

AMPI_DEVICE ampi_tensor_range ampi_tensor_range_of(const amp_plan &plan, const ampi_share &s) {
    const ampi_slot *slot = s.slot;
    ampi_tensor_range t;
    t.grad   = s.grad;
    t.master = ampi_array_at(slot->master.data, AMP_F32, s.begin);
    t.m      = ampi_array_at(slot->moment[0].data, AMP_F32, s.begin);
    t.v      = ampi_array_at(slot->moment[1].data, AMP_F32, s.begin);
    t.model  = ampi_array_at(slot->model, slot->model_type, s.begin);
    t.rates  = ampi_rates_of(plan.control, slot);
    t.factor = plan.control->gate.inv_scale;
    t.zero   = plan.zero_grad != 0;
    t.control = plan.control;
    return t;
}

/* In a sampled step work(i) updates element i of share k. Values before and after are counted.
   Addresses are computed for each element anew: a step leaves no registers for them. */
template <class W>
AMPI_DEVICE void ampi_count_updates(const amp_plan &plan, const ampi_share &s, uint64_t k,
                                    const W &work) {
    uint32_t        *counts = ampi_begin_counts();
    const ampi_slot *slot   = s.slot;
    for (unsigned i = threadIdx.x; i < s.count; i += blockDim.x) {
        const uint64_t at    = s.begin + i;
        ampi_any       model = ampi_array_at(slot->model, slot->model_type, at);
        uint32_t       g = 0, before = 0, p;
        if (model.base && model.type != AMP_F32) { /* read before the gradient is cleared */
            g      = ampi_array_at(slot->grad, slot->grad_type, at).get(0);
            before = model.fetch<1>(0).w[0];
        }
        work(i);
        p = ampi_array_at(slot->master.data, AMP_F32, at).get(0);
        ampi_count_bin(counts, AMPI_WEIGHTS, p & 0x7fffffffu);
        if ((g & 0x7fffffffu) == 0) continue;
        model = ampi_array_at(slot->model, slot->model_type, at);
        atomicAdd(&counts[AMPI_UPDATES], 1u);
        if (model.fetch<1>(0).w[0] == before) atomicAdd(&counts[AMPI_LOST], 1u);
        if (model.get(0) == p) atomicAdd(&counts[AMPI_ROUNDED], 1u);
    }
    ampi_end_counts(counts, ampi_histogram_of(&plan, plan.record->which,
                                              plan.chunk_slots[k >> plan.share_bits]));
}

/* B in a sampled step, for tensors whose masters and moments are fp32. */
template <int KIND> AMPI_DEVICE void ampi_update_sampled(const amp_plan &plan) {
    ampi_clear_histograms(&plan);
    for (int64_t k = ampi_first_share(plan, false); k >= 0; k -= gridDim.x) {
        const ampi_share s = ampi_share_at(plan, false, (uint64_t)k);
        if (s.count == 0 || !ampi_counts_updates(s.slot)) continue;
        if (plan.control->gate.skip && plan.zero_grad) ampi_clear(s.grad, s.count);
        if (plan.control->gate.skip) continue;
        ampi_count_updates(plan, s, (uint64_t)k, [&](unsigned i) {
            const ampi_tensor_range t = ampi_tensor_range_of(plan, s);
            const ampi_stepper<KIND, AMPI_ANY, AMPI_ANY> step(t);
            step.template finish<1>(i, step.template fetch<1>(i));
        });
    }
}

/* The end of B. Kernels after it do not read how many rows are given. */
AMPI_DEVICE void ampi_end_update(const amp_plan &plan) {
    if (!ampi_first_thread()) return;
    ampi_publish(&plan);
    for (size_t k = 0; plan.zero_grad && k < plan.num_sparse; k++) *plan.sparse[k].num_rows = 0;
}

/* ROWS: the launch after B. It is a constant, because a variable would spill registers. */
template <int KIND, bool ROWS = false>
AMPI_KERNEL(AMPI_SECOND >> KIND & 1 ? 4 : 3) ampi_update_kernel(amp_plan plan, bool) {
    const bool sampled = !ROWS && ampi_sampled(&plan);
    if (sampled) ampi_update_sampled<KIND>(plan);
    for (int64_t k = ampi_first_share(plan, ROWS); !sampled && k >= 0; k -= gridDim.x) {
        const ampi_share s = ampi_share_at(plan, ROWS, (uint64_t)k);
        if (s.count == 0 || !s.grad.base) continue;
        if (!plan.control->gate.skip) ampi_step<KIND>(ampi_tensor_range_of(plan, s), s.count);
        else if (plan.zero_grad) ampi_clear(s.grad, s.count);
    }
    if (!ROWS) ampi_end_update(plan);
}

#ifndef AMPI_NO_STORAGE /* only tests define it */

/* B where not all arrays are fp32. A thread has N elements of a group of 32, so that 32 / N lanes
   agree on the group's largest magnitude. N is four if arrays are aligned for it, with formats
   that are constants; else one, with any format.

   What a block knows of its range is in shared memory, written by one thread. It would take too
   many registers: 80 of them let three blocks share a multiprocessor. */
struct ampi_encoded_task {
    ampi_share       share;
    int64_t          next;  /* number of the next share */
    bool             there; /* is there one? */
    bool             sampled;
    ampi_any         model;
    ampi_stored      master, moment[2];
    ampi_control    *control;
    uint32_t         at;              /* number of the range's first element, for random bits */
    uint64_t         key;
    ampi_rates       rates;
    float            factor;
    int              row;             /* both formats */
    bool             zero;
    unsigned         from, behind;    /* elements of one key; from first to rest: groups */
    unsigned         first, rest;
};

AMPI_DEVICE ampi_encoded_task *ampi_encoded_of_block(void) {
    __shared__ ampi_encoded_task task;
    return &task;
}

/* One byte of each of four words. */
AMPI_DEVICE uint32_t ampi_four_bytes(const uint32_t *u, uint32_t from) {
    const uint32_t two = from | (from + 4) << 4;
    return __byte_perm(__byte_perm(u[0], u[1], two), __byte_perm(u[2], u[3], two), 0x5410);
}

/* Four elements of BYTES bytes, packed as in memory, if there are any; or one of ANY size. */
template <int BYTES, int N, bool ONCE = true> struct ampi_packed {
    enum {
        ANY   = BYTES == AMPI_ANY,
        WORDS = ANY || BYTES == 0 ? 1 : BYTES * N / 4,
        MASK  = ANY || BYTES == 4 ? -1 : (1 << 8 * BYTES % 32) - 1
    };
    uint32_t w[WORDS];

    AMPI_MEMBER void fetch(const void *base, size_t i, uint32_t size) {
        if (ANY) w[0] = ampi_load_low(base, i, size);
        else if (BYTES) ampi_fetch<ONCE, WORDS>((const char *)base + i * BYTES, w);
    }
    AMPI_MEMBER uint32_t of(int k) const {
        return w[k * BYTES / 4] >> 8 * BYTES * k % 32 & (uint32_t)MASK;
    }
    AMPI_MEMBER static void put(void *base, size_t i, uint32_t size, const uint32_t *u) {
        uint32_t to[WORDS] = {};
        for (int k = 0; N == 4 && k < WORDS; k++)
            to[k] = BYTES == 4   ? u[k]
                    : BYTES == 2 ? __byte_perm(u[2 * k], u[2 * k + 1], 0x5410)
                                 : ampi_four_bytes(u, 0);
        if (ANY) ampi_store_low(base, i, size, *u);
        else if (BYTES) ampi_put_vector<ONCE, WORDS>((char *)base + i * BYTES, to);
    }
};

/* Writes four elements, or one, to an array that may be absent, as fp32 or 16 bits. A model has a
   control that counts. */
template <int N, bool ONCE>
AMPI_DEVICE void ampi_put_elements(const ampi_any &a, size_t i, const uint32_t *u,
                                   ampi_control *control) {
    if (N == 1 && ONCE) a.put_one(i, u[0]);
    else if (N == 1) a.put_model<1>(i, u, control);
    else if (!a.base) return;
    else if (a.type == AMP_F16)
        ampi_array<AMP_F16, ONCE>(a).template put_model<4, !ONCE>(i, u, control);
    else if (a.type == AMP_BF16) ampi_array<AMP_BF16, ONCE>(a).template put<4>(i, u);
    else ampi_array<AMP_F32, ONCE>(a).template put<4>(i, u);
}

/* A gradient, whose type is known at run time. */
template <int N> struct ampi_packed_grad {
    uint32_t w[4];

    AMPI_MEMBER void fetch(const ampi_any &a, size_t i) {
        if (N == 1) w[0] = a.fetch<1>(i).w[0];
        else if (a.type == AMP_F32) ampi_fetch<true, 4>(a.base + 4 * i, w);
        else ampi_fetch<true, 2>(a.base + 2 * i, w);
    }
    AMPI_MEMBER void expand(const ampi_any &a, uint32_t *u) const { /* u has room for four */
        if (N == 1) a.expand<1>(w, u);
        else if (a.type == AMP_F16) ampi_array<AMP_F16>(a).template expand<4>(w, u);
        else if (a.type == AMP_BF16) ampi_array<AMP_BF16>(a).template expand<4>(w, u);
        else ampi_array<AMP_F32>(a).template expand<4>(w, u);
    }
};

/* The random bits of N elements, from an even element on unless N is 1: words of pairs, for one
   array after the other. */
template <int N> struct ampi_draws {
    uint32_t word[(N + 1) / 2], odd;

    AMPI_MEMBER void begin(uint32_t number, uint64_t key) {
        odd = number & 1u;
        for (int k = 0; k < N; k += 2) word[k / 2] = ampi_random(number / 2 + k / 2, key);
    }
    AMPI_MEMBER uint32_t of(int k) const {
        return (N == 1 ? odd : k & 1u) ? word[k / 2] >> 16 : word[k / 2] & 0xffffu;
    }
    AMPI_MEMBER void next() {
        for (int k = 0; k < N; k += 2) word[k / 2] = ampi_next_random(word[k / 2]);
    }
};

/* Codes of 8 bits in few instructions. A group whose exponent passes this test has no NaN, and no
   number that the core would clamp. Its codes are read and made at its own scale: instead of a
   multiplication by a power of two, the core's `least` is given the group's exponent. Only the
   exponents of results change, because nothing is subnormal: least is 2^-126 or more. */
AMPI_DEVICE bool ampi_is_plain(uint32_t exponent, uint32_t other) {
    return ((exponent - 16u) | (other - 16u)) < 128u;
}

/* N moments and the exponent of their group. */
template <int BYTES, int N, bool SECOND> struct ampi_moments {
    ampi_packed<BYTES, N> packed;
    uint32_t              exponent;

    AMPI_MEMBER void fetch(const ampi_stored &s, size_t i, uint32_t size) {
        packed.fetch(s.data, i, size);
        if (size == 1) exponent = *ampi_global<const uint8_t>((char *)s.scale + i / AMPI_GROUP);
    }
    AMPI_MEMBER void expand(float *x, uint32_t size) const {
        const float up = ampi_up_of(size == 1 ? exponent : 1u);
        for (int k = 0; k < N; k++) {
            const uint32_t u = packed.of(k);
            x[k] = size == 4   ? ampi_f32_from_bits(u)
                   : size == 2 ? ampi_f32_from_bits(u << 16)
                               : ampi_decode(u, up, SECOND);
        }
    }
    AMPI_MEMBER uint32_t least() const {
        return (exponent << 23) + (SECOND ? AMPI_LEAST_V : AMPI_LEAST_M) - (127u << 23);
    }
    AMPI_MEMBER void expand_plain(float *x) const {
        const uint32_t all = packed.w[0], codes = SECOND ? all : all & 0x7f7f7f7fu;
        for (int k = 0; k < 4; k++) {
            const uint32_t sign = SECOND ? 0u : all << (24 - 8 * k) & 0x80000000u;
            const uint32_t z    = (__byte_perm(codes, 0, 0x4440u + (uint32_t)k) << 19) + least();
            const float    y    = ampi_sub(ampi_f32_from_bits(z), ampi_f32_from_bits(least()));
            x[k] = ampi_f32_from_bits(ampi_bits_of_f32(y) | sign);
        }
    }
    /* The largest magnitude of a group, by all lanes of a warp. v's only sign is a NaN's. */
    AMPI_MEMBER uint32_t largest(const float *x, bool here) const {
        uint32_t most = 0;
        for (int k = 0; k < N; k++) {
            const uint32_t u = ampi_bits_of_f32(x[k]);
            most = ampi_most(most, SECOND ? u : ampi_size(u));
        }
        if (!here) most = 0;
        for (int lanes = 16 / N; lanes; lanes /= 2)
            most = ampi_most(most, __shfl_xor_sync(0xffffffffu, most, lanes));
        return most;
    }
    AMPI_MEMBER void put(const ampi_stored &s, size_t i, uint32_t size, const float *x,
                         ampi_draws<N> *draws) const {
        const float down = ampi_down_of(size == 1 ? exponent : 1u);
        uint32_t    u[N];
        for (int k = 0; k < N; k++) {
            u[k] = ampi_bits_of_f32(x[k]);
            if (size == 2) u[k] = ampi_stochastic(u[k], draws->of(k));
            else if (size == 1) u[k] = ampi_encode(x[k], down, draws->of(k), SECOND);
        }
        if (size != 4) draws->next();
        ampi_packed<BYTES, N>::put(s.data, i, size, u);
    }
    /* A code is in the upper byte of a word, random bits in the two bytes below. The upper byte
       of less subtracts the group's exponent. */
    AMPI_MEMBER void put_plain(const ampi_stored &s, size_t i, const float *x,
                               ampi_draws<N> *draws) const {
        const uint32_t less = least() * -32u;
        uint32_t       code[4];
        for (int k = 0; k < 4; k++) {
            const uint32_t u = ampi_bits_of_f32(x[k]), a = SECOND ? u : ampi_size(u);
            const float    z = ampi_add(ampi_f32_from_bits(a), ampi_f32_from_bits(least()));
            code[k] = (ampi_bits_of_f32(z) << 5) +
                      __byte_perm(draws->word[k / 2], less, k & 1 ? 0x7324 : 0x7104);
            code[k] = SECOND ? ampi_most(code[k], 1u << 24) : code[k] | (u & 0x80000000u);
        }
        draws->next();
        code[0] = ampi_four_bytes(code, 3);
        ampi_put_vector<true, 1>((char *)s.data + i, code);
    }
};

/* The moments that there are; t is what a block knows of them. */
template <int KIND, int BYTES, int N> struct ampi_all_moments {
    enum { HAS_V = AMPI_SECOND >> KIND & 1 };
    const ampi_encoded_task      &t;
    const bool                    has_m;
    const uint32_t                size;
    ampi_moments<BYTES, N, false> m;
    ampi_moments<BYTES, N, true>  v;

    AMPI_MEMBER explicit ampi_all_moments(const ampi_encoded_task &t)
        : t(t), has_m(AMPI_FIRST >> KIND & 1 || t.moment[0].data),
          size(N == 1 ? t.moment[0].size : (uint32_t)BYTES), m(), v() {}
    AMPI_MEMBER bool plain() const {
        return BYTES == 1 && ampi_is_plain(m.exponent, HAS_V ? v.exponent : m.exponent);
    }
    AMPI_MEMBER void fetch(size_t i) {
        if (has_m) m.fetch(t.moment[0], i, size);
        if (HAS_V) v.fetch(t.moment[1], i, size);
    }
    AMPI_MEMBER void expand(float *x, float *y) const {
        if (plain()) {
            m.expand_plain(x);
            v.expand_plain(y);
        } else {
            m.expand(x, size);
            v.expand(y, size);
        }
    }
    AMPI_MEMBER void put_exponents(size_t i) const {
        if (i % AMPI_GROUP) return;
        if (has_m) t.moment[0].scale[i / AMPI_GROUP] = (uint8_t)m.exponent;
        if (HAS_V) t.moment[1].scale[i / AMPI_GROUP] = (uint8_t)v.exponent;
    }
    /* All lanes of a warp take part. */
    AMPI_MEMBER void put(size_t i, bool here, const float *x, const float *y,
                         ampi_draws<N> *draws) {
        const uint32_t of_m = size == 1 && has_m ? m.largest(x, here) : 0u;
        const uint32_t of_v = size == 1 && HAS_V ? v.largest(y, here) : 0u;
        m.exponent = (of_m + AMPI_HEADROOM) >> 23;
        v.exponent = (of_v + AMPI_HEADROOM) >> 23;
        if (plain()) {
            m.put_plain(t.moment[0], i, x, draws);
            if (HAS_V) v.put_plain(t.moment[1], i, y, draws);
        } else if (here) {
            m.exponent = ampi_exponent_of(of_m);
            v.exponent = ampi_exponent_of(of_v);
            if (has_m) m.put(t.moment[0], i, size, x, draws);
            if (HAS_V) v.put(t.moment[1], i, size, y, draws);
        }
        if (size == 1 && here) put_exponents(i);
    }
};

/* While a loop over groups runs, there are registers enough for it. */
template <bool IN_REGISTERS> struct ampi_encoded_in { typedef const ampi_encoded_task &type; };
template <> struct ampi_encoded_in<true> { typedef const ampi_encoded_task type; };

/* Bytes of an element in a format. */
AMPI_DEVICE constexpr int ampi_bytes_of(int format) {
    return format == AMP_FORMAT_F32    ? 4
           : format == AMP_FORMAT_SR   ? 0
           : format == AMP_FORMAT_8BIT ? 1
                                       : 2;
}

/* N models and low bits, as by the core's ampi_model_of. If none of four masters is so large that
   the core does not round it up, rounding is one addition. */
template <int N>
AMPI_DEVICE void ampi_models_of(const float *p, const ampi_draws<N> &draws, int master,
                                uint32_t *model, uint32_t *low) {
    bool plain = N == 4; /* not const: nvcc would warn of what N = 1 never reaches */
    if (plain) plain = !ampi_any_from<0x7f7f0000u>(p);
    if (!plain) {
        for (int k = 0; k < N; k++)
            model[k] = ampi_model_of(p[k], draws.of(k), &low[k], master);
        return;
    }
    for (int k = 0; k < N; k++) {
        const uint32_t u = ampi_bits_of_f32(p[k]);
        low[k]   = u + (master == AMP_FORMAT_SR ? draws.of(k) : 0x8000u);
        model[k] = low[k] >> 16;
    }
}

/* The groups of a range, or with N = 1 its other elements. */
template <int KIND, int MASTER, int MOMENTS, int N>
AMPI_DEVICE void ampi_step_encoded_as(typename ampi_encoded_in<N == 4>::type t) {
    enum { /* bytes of a moment, of what a master stores beside the model, of the model */
        SIZE = N == 1 ? (int)AMPI_ANY : ampi_bytes_of(MOMENTS),
        LOW  = N == 1 ? (int)AMPI_ANY : ampi_bytes_of(MASTER),
        HIGH = N == 1 ? (int)AMPI_ANY : MASTER == AMP_FORMAT_F32 ? 0 : 2
    };
    const int        master = N == 1 ? (int)t.master.format : MASTER;
    const int        wide   = master == AMP_FORMAT_F32;
    const unsigned   first  = N == 1 ? t.from : t.first;
    const unsigned   behind = N == 1 ? t.behind - (t.rest - t.first) : t.rest;
    const unsigned   lane   = N == 1 ? threadIdx.x % 32 : 0; /* groups fill all lanes of a warp */
    for (unsigned base = first + (threadIdx.x - lane) * N; base < behind; base += blockDim.x * N) {
        const unsigned              other = base + lane;
        const bool                  here  = N > 1 || other < behind;
        const unsigned              o     = here ? other : base; /* or the warp's first */
        const unsigned              i     = N == 1 && o >= t.first ? o + t.rest - t.first : o;
        ampi_packed_grad<N>         grad  = {};
        ampi_packed<HIGH, N, false> high  = {};
        ampi_packed<LOW, N>         low   = {};
        ampi_all_moments<KIND, SIZE, N> both(t);
        ampi_draws<N>               draws = {};
        uint32_t                    g[4], h[N], l[4];
        float                       p[N], m[N], v[N];
        grad.fetch(t.share.grad, i);
        if (!wide) high.fetch(t.model.base, i, 2);
        low.fetch(t.master.data, i, t.master.size);
        both.fetch(i);
        __syncwarp();
        if (both.size != 4 || master == AMP_FORMAT_SR) draws.begin(t.at + i, t.key);
        grad.expand(t.share.grad, g);
        both.expand(m, v);
#pragma unroll
        for (int k = 0; k < N; k++) {
            p[k] = wide ? ampi_f32_from_bits(low.of(k))
                        : ampi_master(high.of(k), low.of(k), master);
            ampi_optimize((amp_kind)KIND, both.has_m, &t.rates, ampi_unscale(g[k], t.factor),
                          &p[k], &m[k], &v[k]);
            l[k] = ampi_bits_of_f32(p[k]);
            g[k] = 0;
        }
        if (!wide) ampi_models_of<N>(p, draws, master, h, l);
        if (master == AMP_FORMAT_SR) draws.next();
        if (here) {
            if (!wide) ampi_packed<HIGH, N, false>::put(t.model.base, i, 2, h);
            else ampi_put_elements<N, false>(t.model, i, l, t.control);
            ampi_packed<LOW, N>::put(t.master.data, i, t.master.size, l);
            if (t.zero) ampi_put_elements<N, true>(t.share.grad, i, g, NULL);
        }
        both.put(i, here, m, v, &draws);
    }
}

/* An array from element i on. */
AMPI_DEVICE ampi_stored ampi_stored_at(ampi_stored s, uint64_t i) {
    if (s.data) s.data = (char *)s.data + s.size * i;
    s.scale += i / AMPI_GROUP;
    return s;
}

/* Does a group of n begin at element i? Without bytes: yes. */
struct ampi_codes {
    const ampi_stored &s;
    AMPI_MEMBER bool has_group(unsigned n, unsigned i) const {
        return (((uintptr_t)s.data + (size_t)i * s.size) & (n * (uintptr_t)s.size - 1)) == 0;
    }
};

/* Sets t to the next elements of a share that have one key; by one thread. */
AMPI_DEVICE void ampi_next_elements(ampi_encoded_task *t, const amp_plan &plan) {
    const ampi_control *c     = plan.control;
    const ampi_slot    *slot  = t->share.slot;
    const uint64_t      begin = t->share.begin;
    const uint64_t      at    = slot->first + begin + t->behind;
    ampi_segment        s     = {};
    t->from   = t->behind;
    t->behind += ampi_count_from(at % AMPI_PER_KEY, AMPI_PER_KEY, t->share.count - t->from);
    t->at     = (uint32_t)(slot->first + begin);
    t->key    = ampi_random_key(c->seed, slot->key, c->gate.step, at);
    t->rates  = ampi_rates_of(c, slot);
    t->factor = c->gate.inv_scale;
    t->zero   = plan.zero_grad != 0;
    t->control = plan.control;
    t->row    = (int)slot->master.format * 8 + (int)slot->moment[0].format;
    t->model  = ampi_array_at(slot->model, slot->model_type, begin);
    t->master = ampi_stored_at(slot->master, begin);
#pragma unroll 1
    for (int k = 0; k < 2; k++) t->moment[k] = ampi_stored_at(slot->moment[k], begin);
    t->first = t->from;
    if (!ampi_is_encoded(&t->master))
        t->first += ampi_array_at(t->master.data, AMP_F32, t->from).head(4);
    if (!t->model.base || t->model.type != AMP_F32)
        s = ampi_groups_in(4, t->first, t->behind, t->share.grad, t->model, ampi_codes{t->master},
                           ampi_codes{t->moment[0]}, ampi_codes{t->moment[1]});
    if (s.behind == 0) t->first = t->from;
    t->rest = t->first + (s.behind - s.first) / (4 * 32) * (4 * 32); /* of whole warps */
}

/* Updates all of a share. */
template <int KIND> AMPI_DEVICE void ampi_step_encoded(const amp_plan &plan, ampi_encoded_task *t) {
    do {
        __syncthreads();
        if (threadIdx.x == 0) ampi_next_elements(t, plan);
        __syncthreads();
        switch (t->row) {
#define AMPI_STEP_AS(name, MASTER, MOMENTS)                                                     \
    case AMP_FORMAT_##MASTER * 8 + AMP_FORMAT_##MOMENTS:                                        \
        ampi_step_encoded_as<KIND, AMP_FORMAT_##MASTER, AMP_FORMAT_##MOMENTS, 4>(*t);           \
        break;
            AMP_STORAGE_LIST(AMPI_STEP_AS)
#undef AMPI_STEP_AS
        }
        ampi_step_encoded_as<KIND, AMPI_ANY, AMPI_ANY, 1>(*t);
    } while (t->behind < t->share.count);
}

template <int KIND> AMPI_KERNEL(3) ampi_encoded_kernel(amp_plan plan, bool rows) {
    ampi_encoded_task *t = ampi_encoded_of_block();
    if (threadIdx.x == 0) {
        t->next    = ampi_first_share(plan, rows);
        t->sampled = !rows && ampi_sampled(&plan); /* for all: one pointer less in registers */
    }
    __syncthreads();
    if (t->sampled) ampi_update_sampled<KIND>(plan);
    for (;;) {
        __syncthreads();
        if (threadIdx.x == 0) {
            t->there = t->next >= 0;
            if (t->there) t->share = ampi_share_at(plan, rows, (uint64_t)t->next);
            t->behind = 0;
            t->next -= gridDim.x;
        }
        __syncthreads();
        if (!t->there) break;
        if (t->share.count == 0 || !t->share.grad.base) continue;
        if (!plan.control->gate.skip) {
            if (!t->sampled || !ampi_counts_updates(t->share.slot))
                ampi_step_encoded<KIND>(plan, t);
        } else if (plan.zero_grad) {
            ampi_clear(t->share.grad, t->share.count);
        }
    }
    if (!rows) ampi_end_update(plan);
}

/* Only set-up, refresh and loads need it. */
AMPI_KERNEL(3) ampi_encode_kernel(void *model, ampi_stored master, const void *src, uint64_t n) {
    uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < n; i += (uint64_t)gridDim.x * blockDim.x)
        ampi_encode_weight(model, &master, src, i);
}

static amp_result ampi_cuda_encode(const amp_backend *self, void *model, const ampi_stored *master,
                                   const void *src, size_t n) {
    return ampi_launch(ampi_grid_of(self, n / 256 + 1, 256), ampi_encode_kernel, model, *master,
                       src, n);
}

#else
#define ampi_encoded_kernel ampi_update_kernel
#define ampi_encode_kernel  ampi_decide_kernel
#define ampi_cuda_encode    NULL
#endif /* AMPI_NO_STORAGE */

/* The jobs around an optimizer of the user's own. OWN: only for own slots, which have the last
   chunks. (The scale is published here, and B does not publish it again.) */
template <int JOB, bool OWN = false> AMPI_KERNEL(3) ampi_around_kernel(amp_plan plan) {
    const uint64_t all     = plan.num_chunks << plan.share_bits;
    const uint64_t others  = OWN ? plan.table[plan.owns - 1].first_chunk << plan.share_bits : 0;
    const float    factor  = plan.control->gate.inv_scale;
    const auto     unscale = [=](uint32_t u, uint32_t) {
        return ampi_bits_of_f32(ampi_unscale(u, factor));
    };
    ampi_control  *control = plan.control;
    const auto     copy    = [=](uint32_t u, uint32_t type) {
        if (type == AMP_F16) ampi_count_f16_overflows(control, &u, 1);
        return u;
    };
    const bool     skip    = plan.control->gate.skip != 0;
    const bool     sampled = JOB == AMPI_JOB_PUBLISH && ampi_sampled(&plan);
    if (sampled) ampi_clear_histograms(&plan);
    for (uint64_t k = blockIdx.x; k < all - others; k += gridDim.x) {
        const ampi_share s        = ampi_share_of(plan, all - 1 - k);
        const ampi_slot *slot     = s.slot;
        const ampi_any   grad     = s.grad;
        const ampi_any   unscaled = ampi_array_at(slot->unscaled, AMP_F32, s.begin);
        const ampi_any   master   = ampi_array_at(slot->master.data, AMP_F32, s.begin);
        const ampi_any   model    = ampi_array_at(slot->model, slot->model_type, s.begin);
        if (s.count == 0) continue;
        if (JOB == AMPI_JOB_UNSCALE && !skip && grad.base)
            ampi_map(unscaled, grad, s.count, unscale, ampi_to_fp32());
        if (sampled && !skip && ampi_counts_updates(slot))
            ampi_count_updates(plan, s, all - 1 - k, [&](unsigned i) {
                const uint32_t u = master.get(i);
                model.put_model<1>(i, &u, control);
            });
        else if (JOB == AMPI_JOB_PUBLISH && !skip && slot->model && !slot->frozen &&
                 !ampi_is_encoded(&slot->master))
            ampi_map(model, master, s.count, copy,
                     ampi_pairs<ampi_pair<AMP_F16, AMP_F32>, ampi_pair<AMP_BF16, AMP_F32>>());
        if (JOB == AMPI_JOB_PUBLISH && plan.zero_grad && grad.base) ampi_clear(grad, s.count);
    }
    if (JOB == AMPI_JOB_PUBLISH && ampi_first_thread()) ampi_publish(&plan);
}

/* ------------------------------------------------------------------- single rooms */

/* Casts a matrix with leading dimensions. A block takes ranges of rows, or several short rows. */
enum { AMPI_SHORT = 2048 };
AMPI_KERNEL(3) ampi_cast_kernel(void *dst, uint32_t dst_type, uint64_t dst_ld, const void *src,
                                uint32_t src_type, uint64_t src_ld, uint64_t rows, uint64_t cols) {
    const uint64_t per_row = (cols + AMPI_SPAN - 1) / AMPI_SPAN;
    const unsigned several = rows > 1 && cols < AMPI_SHORT ? AMPI_SPAN / (unsigned)cols : 1;
    const auto     copy    = [](uint32_t u, uint32_t) { return u; };
    uint64_t       row     = (uint64_t)blockIdx.x * several;
    for (; several > 1 && row < rows; row += (uint64_t)gridDim.x * several) {
        const unsigned count = ampi_count_from(row, rows, several) * (unsigned)cols;
        for (unsigned e = threadIdx.x; e < count; e += blockDim.x) {
            const uint64_t r = row + e / (unsigned)cols, c = e % (unsigned)cols;
            ampi_array_at(dst, dst_type, r * dst_ld + c)
                .put_one(0, ampi_array_at(src, src_type, r * src_ld + c).get(0));
        }
    }
    for (uint64_t k = blockIdx.x; several == 1 && k < rows * per_row; k += gridDim.x) {
        const uint64_t r = k / per_row, begin = k % per_row * AMPI_SPAN;
        ampi_map(ampi_array_at(dst, dst_type, r * dst_ld + begin),
                 ampi_array_at(src, src_type, r * src_ld + begin),
                 ampi_count_from(begin, cols, AMPI_SPAN), copy, ampi_casts());
    }
}

AMPI_KERNEL(3) ampi_scale_kernel(void *x, uint32_t type, uint64_t n, const float *scale) {
    const float factor = *scale;
    const auto  op     = [=](uint32_t u, uint32_t) {
        return ampi_bits_of_f32(ampi_mul(ampi_f32_from_bits(u), factor));
    };
    uint64_t begin = (uint64_t)blockIdx.x * AMPI_SPAN;
    for (; begin < n; begin += (uint64_t)gridDim.x * AMPI_SPAN) {
        const ampi_any span = ampi_array_at(x, type, begin);
        ampi_map(span, span, ampi_count_from(begin, n, AMPI_SPAN), op,
                 ampi_pairs<ampi_pair<AMP_F32, AMP_F32>, ampi_pair<AMP_F16, AMP_F16>,
                            ampi_pair<AMP_BF16, AMP_BF16>>());
    }
}

/* Checks and, if dst is given, unscales, as the CPU's ampi_scaler_pass does. Inf and NaN stay so
   when they are unscaled. In place, those of bf16 are not written: a NaN keeps bits that a
   conversion would not. */
struct ampi_scaler_op {
    float inv;
    bool  safe, writes, *bad;
    AMPI_MEMBER uint32_t operator()(uint32_t u, uint32_t type) const {
        const uint32_t to   = ampi_bits_of_f32(ampi_unscale(u, inv));
        const uint32_t kept = type == AMP_BF16 ? ampi_f32_from_bf16(ampi_bf16_from_f32(to)) : to;
        *bad = *bad || ampi_nonfinite(safe ? kept : u);
        return to;
    }
};
AMPI_DEVICE bool ampi_keeps(const ampi_scaler_op &op, uint32_t u, uint32_t type) {
    return !op.writes || (type == AMP_BF16 && ampi_nonfinite(u));
}

AMPI_KERNEL(3) ampi_scaler_kernel(amp_scaler *s, void *dst, uint32_t dst_type, const void *src,
                                  uint32_t src_type, uint64_t n) {
    const bool           check = ampi_is_initialized(s) && !s->disabled;
    bool                 bad   = false;
    const ampi_scaler_op op    = {check ? ampi_inv_scale(s->scale) : 1.0f,
                                  (ampi_rules(s) & AMPI_SAFE) != 0, dst != NULL, &bad};
    uint64_t             begin = (uint64_t)blockIdx.x * AMPI_SPAN;
    if (!check && (!dst || dst == src)) return;
    for (; begin < n; begin += (uint64_t)gridDim.x * AMPI_SPAN)
        ampi_map(ampi_array_at(dst, dst_type, begin), ampi_array_at(src, src_type, begin),
                 ampi_count_from(begin, n, AMPI_SPAN), op,
                 ampi_pairs<ampi_pair<AMP_F32, AMP_F16>, ampi_pair<AMP_F32, AMP_BF16>,
                            ampi_pair<AMP_F32, AMP_F32>, ampi_pair<AMP_BF16, AMP_BF16>>());
    if (!check) return;
    if (bad) atomicOr(&s->found_inf, 1u);
    if (ampi_first_thread()) ampi_scaler_record(s, 0u);
}

AMPI_KERNEL(4) ampi_scaler_update_kernel(amp_scaler *s) {
    if (!ampi_is_initialized(s)) return;
    if (s->disabled || s->checked || s->found_inf) ampi_scaler_transition(s);
}

/* New addresses for slots [first, first + count), as an argument of a launch: nothing waits, and
   the argument stays below the limit of 4 KiB. */
enum { AMPI_BINDS = 240 };
struct ampi_binds {
    ampi_slot *table;
    float     *weight[AMPI_BINDS];
    void      *grad[AMPI_BINDS];
    uint32_t   count;
};

AMPI_KERNEL(4) ampi_bind_kernel(ampi_binds b) {
    if (threadIdx.x < b.count)
        ampi_bind(&b.table[threadIdx.x], b.weight[threadIdx.x], b.grad[threadIdx.x]);
}

/* num_bytes <= 8 are passed as a kernel argument. So nothing waits for host memory, and a graph
   stores the value, not the address of something on a stack. */
AMPI_KERNEL(4) ampi_store_kernel(void *dst, uint64_t value, int num_bytes) {
    for (int b = 0; b < num_bytes; b++) ((unsigned char *)dst)[b] = (unsigned char)(value >> 8 * b);
}

static bool ampi_type_ok(amp_dtype type) { return (unsigned)type <= (unsigned)AMP_BF16; }

/* The number of spans in n elements; each takes a block. */
static uint64_t ampi_num_spans(uint64_t n) { return n / AMPI_SPAN + (n % AMPI_SPAN != 0); }

amp_result amp_cuda_cast(void *dst, amp_dtype dst_type, const void *src, amp_dtype src_type,
                         size_t n, amp_stream stream) {
    if (!ampi_type_ok(dst_type) || !ampi_type_ok(src_type)) return AMP_ERROR_INVALID_ENUM;
    if (n && (!dst || !src)) return AMP_ERROR_INVALID_ARGUMENT;
    if (n == 0 || (dst == src && dst_type == src_type)) return AMP_OK;
    if (dst == src && (dst_type == AMP_F32 || src_type == AMP_F32)) return AMP_ERROR_UNSUPPORTED;
    if (dst_type == src_type)
        return ampi_cuda(cudaMemcpyAsync(dst, src, n * (dst_type == AMP_F32 ? 4 : 2),
                                         cudaMemcpyDeviceToDevice, stream));
    return ampi_launch_alone(ampi_grid_on(stream, ampi_num_spans(n), 256), ampi_cast_kernel, dst,
                             dst_type, n, src, src_type, n, 1, n);
}

amp_result amp_cuda_scaler_unscale(amp_scaler *s, void *dst, const void *src, amp_dtype src_type,
                                   size_t n, amp_stream stream) {
    if (!s || (n && !src)) return AMP_ERROR_INVALID_ARGUMENT;
    if (!ampi_type_ok(src_type)) return AMP_ERROR_INVALID_ENUM;
    if (dst && dst == src && src_type == AMP_F16) return AMP_ERROR_UNSUPPORTED;
    if (ampi_overlaps(dst, dst == src ? src_type : AMP_F32, src, src_type, n))
        return AMP_ERROR_OVERLAP;
    return ampi_launch_alone(ampi_grid_on(stream, ampi_num_spans(n), 256), ampi_scaler_kernel, s,
                             dst, dst == src ? src_type : AMP_F32, src, src_type, n);
}

amp_result amp_cuda_scaler_update(amp_scaler *s, amp_stream stream) {
    if (!s) return AMP_ERROR_INVALID_ARGUMENT;
    return ampi_launch_alone(ampi_grid_on(stream, 1, 1), ampi_scaler_update_kernel, s);
}

amp_result amp_cuda_scale_loss(void *x, amp_dtype type, size_t n, const float *scale,
                               amp_stream stream) {
    if (!scale || (n && !x)) return AMP_ERROR_INVALID_ARGUMENT;
    if (!ampi_type_ok(type)) return AMP_ERROR_INVALID_ENUM;
    if (n == 0) return AMP_OK;
    return ampi_launch_alone(ampi_grid_on(stream, ampi_num_spans(n), 256), ampi_scale_kernel, x,
                             type, n, scale);
}

/* ------------------------------------------------------------------- the backend */

/* Refuses calls that wait, or that use host memory later, before they can break a capture. */
static amp_result ampi_not_capturing(amp_stream stream) {
    uint64_t capture;
    AMPI_TRY(ampi_capture_on(stream, &capture));
    return capture ? AMP_ERROR_UNSUPPORTED : AMP_OK;
}

static void ampi_cuda_free(const amp_backend *self, void *memory) {
    (void)self;
    if (ampi_outside_captures([&] { return cudaFree(memory); }) != cudaSuccess)
        (void)cudaGetLastError();
}

static amp_result ampi_cuda_alloc(const amp_backend *self, size_t num_bytes, void **memory) {
    void *p = NULL;
    AMPI_TRY(ampi_not_capturing(self->stream));
    const cudaError_t error = ampi_outside_captures([&] { return cudaMalloc(&p, num_bytes); });
    amp_result        result = ampi_cuda(error);
    if (error == cudaErrorMemoryAllocation && !p) return AMP_ERROR_OUT_OF_MEMORY;
    if (result == AMP_OK) result = ampi_cuda(cudaMemsetAsync(p, 0, num_bytes, self->stream));
    if (result == AMP_OK) *memory = p;
    else if (p) ampi_cuda_free(self, p);
    return result;
}

static amp_result ampi_cuda_copy(const amp_backend *self, void *dst, const void *src,
                                 size_t num_bytes, ampi_copy direction) {
    const bool to_host = direction == AMPI_TO_HOST;
    uint64_t   value   = 0;
    if (num_bytes == 0) return AMP_OK;
    if (!to_host && num_bytes <= sizeof value) {
        memcpy(&value, src, num_bytes);
        return ampi_launch(ampi_grid_on(self->stream, 1, 1), ampi_store_kernel, dst, value,
                           (int)num_bytes);
    }
    AMPI_TRY(ampi_not_capturing(self->stream));
    AMPI_TRY(ampi_cuda(cudaMemcpyAsync(
        dst, src, num_bytes, to_host ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice,
        self->stream)));
    /* the caller may read dst, or change src, after this returns */
    return ampi_cuda(cudaStreamSynchronize(self->stream));
}

static amp_result ampi_cuda_cast(const amp_backend *self, void *dst, amp_dtype dst_type,
                                 const void *src, amp_dtype src_type, size_t n) {
    return amp_cuda_cast(dst, dst_type, src, src_type, n, self->stream);
}

static amp_result ampi_cuda_cast_rows(const amp_backend *self, void *dst, amp_dtype dst_type,
                                      size_t dst_ld, const void *src, amp_dtype src_type,
                                      size_t src_ld, size_t rows, size_t cols) {
    uint64_t blocks;
    if (rows == 0 || cols == 0) return AMP_OK;
    blocks = cols < AMPI_SHORT ? rows / (AMPI_SPAN / cols) + 1 : rows * ampi_num_spans(cols);
    return ampi_launch(ampi_grid_of(self, blocks, 256), ampi_cast_kernel, dst, dst_type, dst_ld,
                       src, src_type, src_ld, rows, cols);
}

static uint64_t ampi_cuda_capture(const amp_backend *self) {
    uint64_t capture;
    (void)ampi_capture_on(self->stream, &capture);
    return capture;
}

static amp_result ampi_cuda_bind(const amp_backend *self, const amp_plan *plan, size_t first,
                                 size_t count, float *const *weights, void *const *grads) {
    AMPI_TRY(ampi_not_capturing(self->stream));
    for (size_t k = 0; k < count; k += AMPI_BINDS) {
        ampi_binds b = {};
        b.table = plan->table + first + k;
        b.count = (uint32_t)(count - k < AMPI_BINDS ? count - k : (size_t)AMPI_BINDS);
        if (weights) memcpy(b.weight, weights + k, b.count * sizeof *weights);
        if (grads) memcpy(b.grad, grads + k, b.count * sizeof *grads);
        AMPI_TRY(ampi_launch(ampi_grid_on(self->stream, 1, AMPI_BINDS), ampi_bind_kernel, b));
    }
    return AMP_OK;
}

/* A block for each of the most rows of a table, with threads enough for the longest row. */
static ampi_grid ampi_grid_of_rows(const amp_backend *self, const amp_plan *plan) {
    uint64_t most = 0;
    for (size_t k = 0; k < plan->num_sparse; k++)
        if (plan->host_sparse[k].most > most) most = plan->host_sparse[k].most;
    return ampi_grid_of(self, most, plan->longest <= 128 ? 32 : plan->longest <= 256 ? 64 : 128);
}

/* Everything before A, for gradients of few rows. */
static amp_result ampi_cuda_sum_rows(const amp_backend *self, const amp_plan *plan) {
    const ampi_grid tiles = ampi_grid_of(self, plan->num_tiles, 256);
    AMPI_TRY(ampi_launch(tiles, ampi_count_kernel, *plan));
    for (uint32_t pass = 0; pass < plan->passes; pass++)
        AMPI_TRY(ampi_launch(tiles, ampi_scatter_kernel, *plan, pass));
    return ampi_launch(ampi_grid_of_rows(self, plan), ampi_sum_rows_kernel, *plan);
}

static amp_result ampi_cuda_check(const amp_backend *self, const amp_plan *plan) {
    /* Few chunks (four for each of 128 multiprocessors): four warps take one together. More: a
       warp takes one, in small blocks, which use more multiprocessors. Many: in blocks of 128
       threads, which leave room for most. */
    const bool     few     = plan->num_chunks < 512;
    const unsigned threads = ampi_threads(few || plan->num_chunks >= 2048 ? 128 : 64);
    const uint64_t teams   = few && threads == 128 ? 1 : threads / 32;
    if (plan->num_sparse) AMPI_TRY(ampi_cuda_sum_rows(self, plan));
    return ampi_launch(ampi_grid_of(self, (plan->num_chunks + teams - 1) / teams, threads),
                       few && threads == 128 ? ampi_check_by_four_kernel : ampi_check_kernel,
                       *plan);
}

/* B of each kind, and the launch after it for rows: in fp32, and in any storage. */
typedef void (*ampi_step_kernel)(amp_plan plan, bool rows);
#define AMPI_STEP_KERNELS(kind, step, moments, always, beta2)                                \
    {{ampi_update_kernel<AMP_KIND_##kind>, ampi_update_kernel<AMP_KIND_##kind, true>},       \
     {ampi_encoded_kernel<AMP_KIND_##kind>, ampi_encoded_kernel<AMP_KIND_##kind>}},
static const ampi_step_kernel ampi_step_kernels[][2][2] = {{{NULL}},
                                                           AMPI_OPTIMIZERS(AMPI_STEP_KERNELS)};

static amp_result ampi_cuda_update(const amp_backend *self, const amp_plan *plan, ampi_job job) {
    static void (*const of_jobs[][2])(amp_plan) = {
        {ampi_decide_kernel, ampi_decide_kernel},
        {NULL, ampi_around_kernel<AMPI_JOB_PUBLISH, true>},
        {ampi_around_kernel<AMPI_JOB_UNSCALE>, ampi_around_kernel<AMPI_JOB_UNSCALE, true>},
        {ampi_around_kernel<AMPI_JOB_PUBLISH>, NULL}};
    const ampi_step_kernel *steps  = ampi_step_kernels[plan->kind][plan->encoded];
    const uint64_t          shares = plan->num_chunks << plan->share_bits;
    const uint64_t          blocks = job == AMPI_JOB_DECIDE ? 1 : shares;
    const auto              kernel = of_jobs[job][plan->owns != 0];
    const ampi_grid         grid   = ampi_grid_of(self, blocks, 256);
    amp_plan                behind = *plan;
    if (kernel) AMPI_TRY(ampi_launch(grid, kernel, *plan));
    if (job != AMPI_JOB_FUSED) return AMP_OK;
    if (plan->owns) behind.num_chunks = plan->host_slots[plan->owns - 1].first_chunk;
    AMPI_TRY(ampi_launch(grid, steps[0], behind, false));
    if (!plan->num_sparse) return AMP_OK;
    behind.zero_grad = 0; /* sums of rows are not cleared */
    return ampi_launch(ampi_grid_of_rows(self, plan), steps[1], behind, true);
}

/* The epilogue that cublasLt could not do: from an fp32 product, in the workspace or in g.c, to
   g.c. */
AMPI_KERNEL(4) ampi_epilogue_kernel(amp_gemm_args g, amp_gemm_args product) {
    const bool     reads_c = product.c != g.c && !ampi_is_zero(g.beta);
    const uint64_t all     = g.m * g.n * g.count;
    uint64_t       i       = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < all; i += (uint64_t)gridDim.x * blockDim.x) {
        const uint64_t line = i / g.n, col = i % g.n, matrix = line / g.m, row = line % g.m;
        const ampi_any to = ampi_array_at(g.c, g.c_type, matrix * g.stride_c + row * g.ldc + col);
        const ampi_any bias = ampi_array_at(g.bias, g.bias_type, col);
        float x = ((const float *)product.c)[matrix * product.stride_c + row * product.ldc + col];
        if (reads_c) x = ampi_add(x, ampi_mul(g.beta, ampi_f32_from_bits(to.get(0))));
        if (bias.base) x = ampi_add(x, ampi_f32_from_bits(bias.get(0)));
        if (g.activation == AMP_ACTIVATION_RELU) x = ampi_relu(x);
        to.put_one(0, ampi_bits_of_f32(x));
    }
}

static cudaDataType_t ampi_data_type(amp_dtype type) {
    return type == AMP_F16 ? CUDA_R_16F : type == AMP_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* Sets an attribute of a cublasLt descriptor, unless there was an error before. */
template <class D, class A, class T>
static void ampi_lt_set(cublasStatus_t *status, cublasStatus_t (*set)(D, A, const void *, size_t),
                        D descriptor, A attribute, const T &value) {
    if (*status == CUBLAS_STATUS_SUCCESS)
        *status = set(descriptor, attribute, &value, sizeof value);
}

/* The layout of a batch's matrices, column-major, stride apart. */
static void ampi_set_layout(cublasStatus_t *status, cublasLtMatrixLayoutOpaque_t *layout,
                            amp_dtype type, uint64_t rows, uint64_t cols, size_t ld, size_t count,
                            size_t stride) {
    if (*status == CUBLAS_STATUS_SUCCESS)
        *status = cublasLtMatrixLayoutInit(layout, ampi_data_type(type), rows, cols, (int64_t)ld);
    if (count == 1) return;
    ampi_lt_set(status, cublasLtMatrixLayoutSetAttribute, layout,
                CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, (int32_t)count);
    ampi_lt_set(status, cublasLtMatrixLayoutSetAttribute, layout,
                CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, (int64_t)stride);
}

/* The largest power of two that divides an address, up to 256, the most that cublasLt needs. */
static uint32_t ampi_alignment(const void *p) {
    const uint32_t low = (uint32_t)(uintptr_t)p | 256u;
    return low & (0u - low);
}

/* A product with its epilogue in one kernel. No descriptor is allocated. By default, cublasLt
   assumes that every address is a multiple of 256 and that there is no workspace, and may round
   partial sums to C's type. It cannot be told a bias's alignment. All matrices of a batch have
   the same bias, whose stride is 0 unless it is set. */
static cublasStatus_t ampi_lt_matmul(const amp_backend *self, const amp_gemm_args *g,
                                     cublasComputeType_t type) {
    const cublasLtHandle_t       lt   = (cublasLtHandle_t)self->context;
    const uint64_t               m = g->m, n = g->n, k = g->k;
    const cublasLtEpilogue_t     end  = !g->bias        ? CUBLASLT_EPILOGUE_RELU
                                        : g->activation ? CUBLASLT_EPILOGUE_RELU_BIAS
                                                        : CUBLASLT_EPILOGUE_BIAS;
    const uint64_t               room = self->workspace ? self->workspace_size : 0;
    cublasLtMatmulDescOpaque_t       product;
    cublasLtMatrixLayoutOpaque_t     a, b, c;
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasLtMatmulHeuristicResult_t  found;
    int                              num_found = 0;
    cublasStatus_t status = cublasLtMatmulDescInit(&product, type, CUDA_R_32F);
    const auto set = [&](cublasLtMatmulDescAttributes_t what, const auto &value) {
        ampi_lt_set(&status, cublasLtMatmulDescSetAttribute, &product, what, value);
    };
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, const auto &value) {
        ampi_lt_set(&status, cublasLtMatmulPreferenceSetAttribute, &preference, what, value);
    };
    if (g->bias && (g->bias_type != g->c_type || ampi_alignment(g->bias) < 16))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    set(CUBLASLT_MATMUL_DESC_TRANSA, g->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, g->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, end);
    if (g->bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, g->bias);
    ampi_set_layout(&status, &b, g->b_type, g->trans_b ? k : n, g->trans_b ? n : k, g->ldb,
                    g->count, g->stride_b);
    ampi_set_layout(&status, &a, g->a_type, g->trans_a ? m : k, g->trans_a ? k : m, g->lda,
                    g->count, g->stride_a);
    ampi_set_layout(&status, &c, g->c_type, n, m, g->ldc, g->count, g->stride_c);
    if (status == CUBLAS_STATUS_SUCCESS) status = cublasLtMatmulPreferenceInit(&preference);
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, room);
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, /* INPLACE would be in C's type */
          (uint32_t)CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, ampi_alignment(g->b));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, ampi_alignment(g->a));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, ampi_alignment(g->c));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, ampi_alignment(g->c));
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulAlgoGetHeuristic(lt, &product, &b, &a, &c, &c, &preference, 1,
                                                &found, &num_found);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (num_found == 0 || found.state != CUBLAS_STATUS_SUCCESS) return CUBLAS_STATUS_NOT_SUPPORTED;
    return cublasLtMatmul(lt, &product, &g->alpha, g->b, &b, g->a, &a, &g->beta, g->c, &c, g->c,
                          &c, &found.algo, self->workspace, (size_t)room, self->stream);
}

/* Both in two kernels: the product in fp32, in c or in the workspace, then the rest. */
static amp_result ampi_gemm_then_epilogue(const amp_backend *self, const amp_gemm_args *g) {
    const size_t  one   = g->m * g->n, all = one * g->count;
    const size_t  bytes = (all * sizeof(float) + 255) / 256 * 256;
    amp_backend   rest  = *self;
    amp_gemm_args plain = *g;
    plain.bias       = NULL;
    plain.activation = AMP_ACTIVATION_NONE;
    if (g->c_type != AMP_F32) {
        if (!self->workspace || self->workspace_size <= bytes) return AMP_ERROR_WORKSPACE;
        plain.c             = self->workspace;
        plain.c_type        = AMP_F32;
        plain.ldc           = g->n;
        plain.stride_c      = one;
        plain.beta          = 0.0f;
        rest.workspace      = (char *)self->workspace + bytes;
        rest.workspace_size = self->workspace_size - bytes;
    }
    AMPI_TRY(self->functions->gemm_fn(&rest, &plain));
    return ampi_launch(ampi_grid_of(self, all / 256 + 1, 256), ampi_epilogue_kernel, *g, plain);
}

/* cuBLAS sees a row-major matrix as the transpose of a column-major one: C' = op(B)' op(A)'. */
static amp_result ampi_cuda_gemm(const amp_backend *self, const amp_gemm_args *g) {
    const cublasHandle_t      handle  = (cublasHandle_t)self->context;
    const size_t              largest = 0x7fffffff;
    const cublasOperation_t   ta      = g->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t   tb      = g->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasComputeType_t type    = g->tf32 && g->a_type == AMP_F32
                                            ? CUBLAS_COMPUTE_32F_FAST_TF32
                                            : CUBLAS_COMPUTE_32F;
    uint64_t                  capture = 0;
    if (!handle || (g->compute && (g->a_type == AMP_F32 || g->b_type == AMP_F32)))
        return AMP_ERROR_UNSUPPORTED;
    if (g->a_type != g->b_type || (g->c_type != AMP_F32 && g->c_type != g->a_type))
        return AMP_ERROR_MIXED_TYPES;
    if (g->m > largest || g->n > largest || g->k > largest || g->lda > largest ||
        g->ldb > largest || g->ldc > largest || g->count > largest)
        return AMP_ERROR_TOO_LARGE;
    if (!self->workspace) AMPI_TRY(ampi_capture_on(self->stream, &capture));
    if (capture) return AMP_ERROR_WORKSPACE; /* cuBLAS would allocate one for every graph */
    AMPI_TRY(ampi_cublas(cublasSetStream(handle, self->stream))); /* resets the workspace */
    if (self->workspace)
        AMPI_TRY(ampi_cublas(cublasSetWorkspace(handle, self->workspace, self->workspace_size)));
    if (g->bias || g->activation) {
        const cublasStatus_t status = g->k ? ampi_lt_matmul(self, g, type)
                                           : CUBLAS_STATUS_NOT_SUPPORTED;
        /* whatever the error, unless the product began: cuBLAS can do all */
        if (status != CUBLAS_STATUS_SUCCESS && status != CUBLAS_STATUS_EXECUTION_FAILED)
            return ampi_gemm_then_epilogue(self, g);
        return ampi_cublas(status);
    }
    if (g->count == 1)
        return ampi_cublas(cublasGemmEx(
            handle, tb, ta, (int)g->n, (int)g->m, (int)g->k, &g->alpha, g->b,
            ampi_data_type(g->b_type), (int)g->ldb, g->a, ampi_data_type(g->a_type), (int)g->lda,
            &g->beta, g->c, ampi_data_type(g->c_type), (int)g->ldc, type, CUBLAS_GEMM_DEFAULT));
    return ampi_cublas(cublasGemmStridedBatchedEx(
        handle, tb, ta, (int)g->n, (int)g->m, (int)g->k, &g->alpha, g->b, ampi_data_type(g->b_type),
        (int)g->ldb, (long long)g->stride_b, g->a, ampi_data_type(g->a_type), (int)g->lda,
        (long long)g->stride_a, &g->beta, g->c, ampi_data_type(g->c_type), (int)g->ldc,
        (long long)g->stride_c, (int)g->count, type, CUBLAS_GEMM_DEFAULT));
}

template <class... K> static amp_result ampi_loads(K *...kernels) {
    const void *const all[] = {(const void *)kernels...};
    for (const void *kernel : all) AMPI_TRY(ampi_load_kernel(kernel));
    return AMP_OK;
}

/* All kernels that a backend launches. */
static amp_result ampi_load_kernels(void) {
    AMPI_TRY(ampi_loads(ampi_check_kernel, ampi_check_by_four_kernel, ampi_decide_kernel,
                        ampi_around_kernel<AMPI_JOB_UNSCALE>, ampi_around_kernel<AMPI_JOB_PUBLISH>,
                        ampi_around_kernel<AMPI_JOB_UNSCALE, true>,
                        ampi_around_kernel<AMPI_JOB_PUBLISH, true>,
                        ampi_bind_kernel, ampi_store_kernel, ampi_cast_kernel, ampi_count_kernel,
                        ampi_scatter_kernel, ampi_sum_rows_kernel, ampi_encode_kernel,
                        ampi_epilogue_kernel));
    for (size_t i = 4; i < sizeof ampi_step_kernels / sizeof(ampi_step_kernel); i++)
        AMPI_TRY(ampi_load_kernel((const void *)ampi_step_kernels[i / 4][i / 2 % 2][i % 2]));
    return AMP_OK;
}

static const ampi_functions ampi_cuda_functions = {
    ampi_cuda_alloc,     ampi_cuda_free,    ampi_cuda_copy, ampi_cuda_cast,  ampi_cuda_encode,
    ampi_cuda_cast_rows, ampi_cuda_capture, ampi_cuda_bind, ampi_cuda_check, ampi_cuda_update,
    ampi_cuda_gemm};

amp_result amp_cuda_backend(amp_backend *backend, amp_stream stream, void *cublas_handle) {
    const cublasHandle_t handle = (cublasHandle_t)cublas_handle;
    if (!backend) return AMP_ERROR_INVALID_ARGUMENT;
    memset(backend, 0, sizeof *backend);
    if (handle) AMPI_TRY(ampi_cublas(cublasSetPointerMode(handle, CUBLAS_POINTER_MODE_HOST)));
    if (handle) /* else partial sums might be rounded to fp16 */
        AMPI_TRY(ampi_cublas(
            cublasSetMathMode(handle, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)));
    AMPI_TRY(ampi_load_kernels());
    backend->context   = cublas_handle;
    backend->stream    = stream;
    backend->functions = &ampi_cuda_functions;
    return AMP_OK;
}
