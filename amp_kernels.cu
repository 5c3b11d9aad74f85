/* amp_kernels.cu - the CUDA backend of amp.h
   SPDX-License-Identifier: MIT OR Unlicense (your choice, see the end of amp.h)

   BUILD   nvcc -arch=native -c amp_kernels.cu       and link with -lcublas -lcublasLt

   CUDA 11.8 and newer; compute capability 7.5 and newer (7.0 with a toolkit that still has it:
   code was made by clang and the ptxas of 11.8 to 12.6, and has not run). The declarations are
   in amp.h under ">>api  cuda"; the formulas in its >>core, which this file shares with the CPU.
   What stands here is memory traffic: load, call the core, store.

   ONE STEP is two launches, however many tensors there are:

       A  ampi_check_kernel    reads the gradients once: finite? norm, statistics; its last block
                               decides: the gate, this step's numbers, the next scale
       B  ampi_update_kernel   unless the gate says skip, reads the gradients again and unscales
                               them on the way into the optimizer; publishes the next scale

   Bytes per parameter, AdamW with fp16 gradients and fp16 model copies:

                   reads                             writes
       A           gradient 2
       B           gradient 2, master 4, m 4, v 4    master 4, m 4, v 4, model 2
       together    16                                14                             = 30

   HOW WORK IS CUT   Tensors are cut into chunks of AMPI_CHUNK elements. In A a warp takes a chunk,
   because the canonical sum goes through it in order, 256 lanes wide: each of the 32 threads holds
   8 lanes. In B a block takes a quarter of a chunk, or all of it if tensors are small. Loops are
   grid-strided: every grid and block size gives the same bits.

   OTHER STREAMS   A reads what backward wrote. If that ran on another stream, or a collective did,
   let the optimizer's stream wait for it:

       cudaEventRecord(ready, backward_stream);
       cudaStreamWaitEvent(optimizer_stream, ready, 0);

   The same in the other direction before the next forward reads the model copies. */

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_runtime.h>

#define AMP_KERNELS
#include "amp.h"

#define AMPI_DEVICE static __device__ __forceinline__

/* Blocks have up to 256 threads; an SM shall hold at least so many of them. Chosen so that nothing
   spills from sm_75 to sm_120. */
#define AMPI_KERNEL(per_sm) static __global__ void __launch_bounds__(256, per_sm)

/* ------------------------------------------------------------- results and launches */

static thread_local int ampi_code; /* behind the last AMP_ERROR_CUDA or AMP_ERROR_CUBLAS */

int amp_cuda_code(void) { return ampi_code; }

/* What was told is taken off the runtime's record, so that nobody hears of it twice. */
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

template <class T> struct ampi_same { typedef T type; };

/* kernel<<<blocks, threads, 0, stream>>>(arguments), with its error, as plain C++. */
template <class... P>
static amp_result ampi_launch(void (*kernel)(P...), unsigned blocks, unsigned threads,
                              amp_stream stream, typename ampi_same<P>::type... arguments) {
    void *pointers[] = {(void *)&arguments...};
    return ampi_cuda(cudaLaunchKernel((const void *)kernel, dim3(blocks), dim3(threads), pointers,
                                      0, stream));
}

static unsigned ampi_threads(const amp_backend *backend, unsigned best) {
    const int size = backend->block_size;
    return size == 32 || size == 64 || size == 128 || size == 256 ? (unsigned)size : best;
}

static unsigned ampi_blocks(const amp_backend *backend, uint64_t wanted) {
    const uint64_t most = backend->max_blocks ? (uint64_t)backend->max_blocks : 0x7fffffffu;
    return (unsigned)(wanted == 0 ? 1 : wanted < most ? wanted : most);
}

/* ------------------------------------------------------------------- elementwise access */

/* Arrays are visited in parts, usually of AMPI_PART elements. This is one part of one array, of any
   type, and how it may be accessed: by groups of four elements in one transaction, by elements or,
   where not even these are aligned, by bytes. */
enum { AMPI_PART = AMPI_CHUNK / 4 };

struct ampi_array {
    char    *base; /* NULL: absent */
    uint32_t type;
    bool     by_group, by_element;
};

/* The part that starts at element begin; its groups start at its element first. */
AMPI_DEVICE ampi_array ampi_array_of(const void *base, uint32_t type, uint64_t begin,
                                     unsigned first) {
    const unsigned size = type == AMP_F32 ? 4 : 2;
    ampi_array     a;
    a.base       = base ? (char *)base + begin * size : NULL;
    a.type       = type;
    a.by_element = (uintptr_t)a.base % size == 0;
    a.by_group   = ((uintptr_t)a.base + first * size) % (4 * size) == 0;
    return a;
}

/* Arrays are in global memory, which the compiler cannot see of pointers found in a table. */
template <class T> AMPI_DEVICE T *ampi_global(const char *p) {
#if defined(__CUDA_ARCH__)
    __builtin_assume(__isGlobal(p));
#endif
    return (T *)p;
}

/* The bits of a fp16 moved into place are those of the number times 2^-112, also when it is
   subnormal: a product instead of the core's search for the leading bit, with the same result. inf
   and NaN come out as finite numbers of 2^16 and more. */
AMPI_DEVICE uint32_t ampi_magnitude(uint32_t moved) {
    return ampi_bits_of_f32(
        ampi_mul(ampi_f32_from_bits(moved), ampi_f32_from_bits(0x77800000u))); /* 2^112 */
}

AMPI_DEVICE uint32_t ampi_widen(uint32_t type, uint32_t half) {
    const uint32_t moved = half << 13 & 0x0fffe000u, inf = 0x0f800000u;
    uint32_t       u;
    if (type != AMP_F16) return ampi_f32_from_bf16((uint16_t)half);
    u = moved >= inf ? moved + 0x70000000u : ampi_magnitude(moved);
    if (moved > inf) u |= 0x400000u; /* quiet */
    return u | (half & 0x8000u) << 16;
}

AMPI_DEVICE uint32_t ampi_narrow(uint32_t type, uint32_t u) {
    return type == AMP_F16 ? ampi_f16_from_f32(u) : ampi_bf16_from_f32(u);
}

/* Elements [i, i + N) as they lie in memory, so that all loads can be under way before the first
   conversion waits for one. */
template <int N> struct ampi_raw { uint32_t u[N]; };

template <int N> AMPI_DEVICE ampi_raw<N> ampi_fetch(const ampi_array &a, unsigned i) {
    ampi_raw<N> r;
    if (N == 4 && a.by_group && a.type == AMP_F32) {
        const uint4 q = *ampi_global<const uint4>(a.base + i * 4u);
        r.u[0] = q.x, r.u[1 % N] = q.y, r.u[2 % N] = q.z, r.u[3 % N] = q.w;
    } else if (N == 4 && a.by_group) {
        const uint2 q = *ampi_global<const uint2>(a.base + i * 2u);
        r.u[0] = q.x & 0xffffu, r.u[1 % N] = q.x >> 16;
        r.u[2 % N] = q.y & 0xffffu, r.u[3 % N] = q.y >> 16;
    } else {
#pragma unroll
        for (unsigned k = 0; k < N; k++) {
            if (a.type == AMP_F32)
                r.u[k] = a.by_element ? *ampi_global<const uint32_t>(a.base + (i + k) * 4u)
                                      : ampi_load_u32(a.base, i + k);
            else
                r.u[k] = a.by_element ? *ampi_global<const uint16_t>(a.base + (i + k) * 2u)
                                      : ampi_load_u16(a.base, i + k);
        }
    }
    return r;
}

/* As bits of fp32. */
template <int N>
AMPI_DEVICE void ampi_expand(const ampi_array &a, const ampi_raw<N> &r, uint32_t *u) {
#pragma unroll
    for (unsigned k = 0; k < N; k++) u[k] = a.type == AMP_F32 ? r.u[k] : ampi_widen(a.type, r.u[k]);
}

template <int N> AMPI_DEVICE void ampi_get(const ampi_array &a, unsigned i, uint32_t *u) {
    ampi_expand<N>(a, ampi_fetch<N>(a, i), u);
}

template <int N> AMPI_DEVICE void ampi_put(const ampi_array &a, unsigned i, const uint32_t *u) {
    if (N == 4 && a.by_group && a.type == AMP_F32) {
        *ampi_global<uint4>(a.base + i * 4u) = make_uint4(u[0], u[1], u[2], u[3]);
    } else if (N == 4 && a.by_group) {
        *ampi_global<uint2>(a.base + i * 2u) =
            make_uint2(ampi_narrow(a.type, u[0]) | ampi_narrow(a.type, u[1]) << 16,
                       ampi_narrow(a.type, u[2]) | ampi_narrow(a.type, u[3]) << 16);
    } else {
#pragma unroll
        for (unsigned k = 0; k < N; k++) {
            if (!a.by_element)
                ampi_store(a.base, (amp_dtype)a.type, i + k, u[k]);
            else if (a.type == AMP_F32)
                *ampi_global<uint32_t>(a.base + (i + k) * 4u) = u[k];
            else
                *ampi_global<uint16_t>(a.base + (i + k) * 2u) =
                    (uint16_t)ampi_narrow(a.type, u[k]);
        }
    }
}

/* Elements of a part in front of its first group, if the groups follow the alignment of base. */
AMPI_DEVICE unsigned ampi_head_of(const void *base, uint32_t type, uint64_t begin,
                                  unsigned count) {
    const unsigned size = type == AMP_F32 ? 4 : 2;
    const unsigned past = (unsigned)(((uintptr_t)base + begin * size) % (4 * size));
    const unsigned head = past % size ? 0 : (4 * size - past) % (4 * size) / size;
    return head < count ? head : count;
}

/* Share a part of count elements among the block: work.run<4>(i) for groups, run<1>(i) for the
   elements in front of the first one, and behind the last. */
template <class W> AMPI_DEVICE void ampi_each(const W &work, unsigned first, unsigned count) {
    const unsigned behind = first + (count - first) / 4 * 4;
    for (unsigned i = first + 4 * threadIdx.x; i < behind; i += 4 * blockDim.x)
        work.template run<4>(i);
    if (threadIdx.x < first) work.template run<1>(threadIdx.x);
    if (threadIdx.x < count - behind) work.template run<1>(behind + threadIdx.x);
}

AMPI_DEVICE unsigned ampi_part_of(uint64_t begin, uint64_t n, unsigned most) {
    return begin >= n ? 0 : n - begin < most ? (unsigned)(n - begin) : most;
}

AMPI_DEVICE bool ampi_first_thread(void) { return blockIdx.x == 0 && threadIdx.x == 0; }

/* ------------------------------------------------------------------- A: check */

/* What a warp finds in a chunk, which it takes in rows of 256 elements, 8 for each thread. Rows
   start at a 16-byte boundary, so that e-th of a thread need not be the lane of that number; but
   it is the same lane in every row, and turning all lanes round changes no pair of them. */
struct ampi_found {
    float    lane[8];
    uint32_t max; /* bits of the largest magnitude */
    uint32_t zeros, nonfinite, nan;
    int      first; /* not finite */
};

enum {
    AMPI_ROW     = AMPI_LANES,
    AMPI_VECTORS = 8, /* 16-byte loads that a thread may have under way */
    AMPI_NONE    = 0x7fffffff
};

/* Which element of a row is e-th of a thread, if a vector has per_vector elements. */
AMPI_DEVICE int ampi_place(int thread, int e, int per_vector) {
    return e / per_vector * per_vector * 32 + thread * per_vector + e % per_vector;
}

template <bool RESCALE>
AMPI_DEVICE void ampi_take(ampi_found *f, int e, uint32_t magnitude, float rescale) {
    const float x = ampi_f32_from_bits(magnitude);
    const float t = RESCALE ? ampi_mul(x, rescale) : x;
    f->max        = magnitude > f->max ? magnitude : f->max;
    f->zeros += magnitude == 0;
    f->lane[e] = ampi_add(f->lane[e], ampi_mul(t, t));
}

/* fp32 bits of the magnitudes of two halves in a word; for fp16 as ampi_magnitude has them. */
template <int TYPE> AMPI_DEVICE void ampi_magnitudes(uint32_t word, uint32_t *low, uint32_t *high) {
    if (TYPE == AMP_BF16) {
        *low  = word << 16 & 0x7fff0000u;
        *high = word & 0x7fff0000u;
    } else {
        *low  = ampi_magnitude(word << 13 & 0x0fffe000u);
        *high = ampi_magnitude(word >> 3 & 0x0fffe000u);
    }
}

/* Eight elements of a thread in one row: two vectors of fp32, one of halves. */
template <int TYPE> AMPI_DEVICE void ampi_take_row(ampi_found *f, const uint4 *v) {
#pragma unroll
    for (int j = 0; j < (TYPE == AMP_F32 ? 2 : 1); j++) {
        const uint32_t word[4] = {v[j].x, v[j].y, v[j].z, v[j].w};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (TYPE == AMP_F32) {
                ampi_take<false>(f, 4 * j + k, word[k] & 0x7fffffffu, 1.0f);
            } else {
                uint32_t low, high;
                ampi_magnitudes<TYPE>(word[k], &low, &high);
                ampi_take<false>(f, 2 * k, low, 1.0f);
                ampi_take<false>(f, 2 * k + 1, high, 1.0f);
            }
        }
    }
}

/* Rows [from, to) element by element: those that stick out at the ends, those of a chunk that
   needs care, and all of one whose elements are not aligned. */
template <int TYPE>
AMPI_DEVICE void ampi_take_ragged(ampi_found *f, const ampi_array &grads, int head, int from,
                                  int to, int count, bool careful, float rescale) {
    const int per_vector = TYPE == AMP_F32 ? 4 : 8;
    for (int row = from; row < to; row++) {
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const int i = head + row * AMPI_ROW + ampi_place((int)threadIdx.x % 32, e, per_vector);
            uint32_t  u;
            if (i < 0 || i >= count) continue;
            ampi_get<1>(grads, (unsigned)i, &u);
            u &= 0x7fffffffu;
            if (careful && ampi_nonfinite(u)) {
                f->nonfinite++;
                f->nan += u > AMPI_F32_INF;
                f->first = i < f->first ? i : f->first;
            } else {
                ampi_take<true>(f, e, u, rescale);
            }
        }
    }
}

/* Add the lanes of a warp in the canonical pairs; every thread gets the sum. */
AMPI_DEVICE float ampi_add_lanes(const ampi_found *f, int per_vector, float *lanes) {
    const int thread = (int)threadIdx.x % 32;
    float     v[8];
    __syncwarp();
#pragma unroll
    for (int e = 0; e < 8; e++) lanes[ampi_place(thread, e, per_vector)] = f->lane[e];
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 8; k++) v[k] = lanes[thread + 32 * k];
#pragma unroll
    for (int half = 4; half; half /= 2)
#pragma unroll
        for (int k = 0; k < half; k++) v[k] = ampi_add(v[k], v[k + half]);
#pragma unroll
    for (int half = 16; half; half /= 2)
        v[0] = ampi_add(v[0], __shfl_down_sync(0xffffffffu, v[0], half));
    return __shfl_sync(0xffffffffu, v[0], 0);
}

AMPI_DEVICE uint32_t ampi_warp_max(uint32_t x) {
#pragma unroll
    for (int half = 16; half; half /= 2) {
        const uint32_t other = __shfl_xor_sync(0xffffffffu, x, half);
        x = other > x ? other : x;
    }
    return x;
}

AMPI_DEVICE uint32_t ampi_warp_sum(uint32_t x) {
#pragma unroll
    for (int half = 16; half; half /= 2) x += __shfl_xor_sync(0xffffffffu, x, half);
    return x;
}

/* A warp checks count elements, start being the first: what the CPU's ampi_check_chunk does, in the
   same order. Returns the sum of squares; what is found goes to tally. */
template <int TYPE>
AMPI_DEVICE double ampi_check_chunk(const ampi_slot *slot, uint64_t start, int count,
                                    float *lanes, ampi_tally *tally) {
    const int        size       = TYPE == AMP_F32 ? 4 : 2;
    const int        per_vector = 16 / size;
    const int        per_row    = 8 / per_vector; /* vectors of a thread */
    const uint32_t   limit      = TYPE == AMP_F16 ? 0x47800000u : AMPI_F32_INF;
    const int        thread     = (int)threadIdx.x % 32;
    const ampi_array grads      = ampi_array_of(slot->grad, TYPE, start, 0);
    const int        past       = (int)((uintptr_t)grads.base % 16);
    const int        head       = grads.by_element ? (16 - past) % 16 / size : 0;
    const int        full       = grads.by_element && count > head ? (count - head) / AMPI_ROW : 0;
    const int        rows       = (count - head + AMPI_ROW - 1) / AMPI_ROW;
    const uint4     *vectors    = ampi_global<const uint4>(grads.base + head * size) + thread;
    float            rescale    = 1.0f, sum;
    double           back       = 1.0;
    ampi_found       f;
    for (int attempt = 0;; attempt++) {
        const bool careful = attempt > 0;
        int        row     = 0;
#pragma unroll
        for (int e = 0; e < 8; e++) f.lane[e] = 0.0f;
        f.max = f.zeros = f.nonfinite = f.nan = 0;
        f.first = AMPI_NONE;
        if (head || careful)
            ampi_take_ragged<TYPE>(&f, grads, head, -1, careful ? rows : 0, count, careful,
                                   rescale);
        if (!careful) {
            for (; row + AMPI_VECTORS / per_row <= full; row += AMPI_VECTORS / per_row) {
                uint4 v[AMPI_VECTORS];
#pragma unroll
                for (int k = 0; k < AMPI_VECTORS; k++)
                    v[k] = vectors[(row * per_row + k) * 32];
#pragma unroll
                for (int k = 0; k < AMPI_VECTORS; k += per_row) ampi_take_row<TYPE>(&f, v + k);
            }
            for (; row < full; row++) {
                uint4 v[2];
#pragma unroll
                for (int k = 0; k < per_row; k++) v[k] = vectors[(row * per_row + k) * 32];
                ampi_take_row<TYPE>(&f, v);
            }
            ampi_take_ragged<TYPE>(&f, grads, head, full, rows, count, false, 1.0f);
        }
        f.max = ampi_warp_max(f.max);
        if (!careful && f.max >= limit) continue; /* sums and zeros say nothing now */
        sum = ampi_add_lanes(&f, per_vector, lanes);
        if (back != 1.0) break;
        if (ampi_nonfinite(ampi_bits_of_f32(sum))) {
            rescale = AMPI_DOWN;
            back    = AMPI_UP_64;
        } else if (ampi_bits_of_f32(sum) < ampi_bits_of_f32(AMPI_TINY) && f.max != 0) {
            rescale = AMPI_UP;
            back    = AMPI_DOWN_64;
        } else {
            break;
        }
    }
    f.zeros = ampi_warp_sum(f.zeros);
    if (thread == 0 && f.zeros) atomicAdd(&tally->zeros, (unsigned long long)f.zeros);
    if (thread == 0 && f.max) atomicMax(&tally->max, f.max);
    if (f.nonfinite) {
        atomicAdd(&tally->nonfinite, (unsigned long long)f.nonfinite);
        if (f.nan) atomicAdd(&tally->nan, (unsigned long long)f.nan);
        atomicMax(&tally->late, (unsigned long long)(slot->n - start - (unsigned)f.first));
    }
    return ampi_mul64(ampi_double(sum), back);
}

/* The end of A, by one block: statistics are published, and their atomics cleared for the next
   step; chunks are summed; the scaler runs, unless ranks have to meet first. */
AMPI_DEVICE void ampi_end_check(const amp_plan *plan, double *lanes, uint32_t *flags) {
    const unsigned thread = threadIdx.x, threads = blockDim.x;
    uint32_t       bad = 0, largest = 0;
    for (size_t t = thread; t < plan->num_slots; t += threads) {
        ampi_slot       *slot  = &plan->slots[t];
        const ampi_tally tally = slot->tally;
        slot->stats.zeros      = tally.zeros;
        slot->stats.max_finite = ampi_f32_from_bits(tally.max);
        slot->tally.zeros      = 0;
        slot->tally.max        = 0;
        if (tally.nonfinite || slot->stats.nonfinite) { /* rarely: now, or in the step before */
            slot->stats.nonfinite       = tally.nonfinite;
            slot->stats.nan             = tally.nan;
            slot->stats.first_nonfinite = slot->n - tally.late; /* n if there is none */
            slot->tally.nonfinite = slot->tally.nan = slot->tally.late = 0;
        }
        bad |= tally.nonfinite != 0;
        largest = tally.max > largest ? tally.max : largest;
    }
    if (bad) atomicOr(&flags[0], 1u);
    if (largest) atomicMax(&flags[1], largest);
    for (unsigned l = thread; l < AMPI_LANES; l += threads) {
        double sum = 0.0;
        for (uint64_t c = l; c < plan->num_chunks; c += AMPI_LANES)
            sum = ampi_add64(sum, plan->partials[c]);
        lanes[l] = sum;
    }
    for (unsigned half = AMPI_LANES / 2; half; half /= 2) {
        __syncthreads();
        for (unsigned l = thread; l < half; l += threads)
            lanes[l] = ampi_add64(lanes[l], lanes[l + half]);
    }
    __syncthreads();
    if (thread == 0) {
        plan->control->norm2    = lanes[0];
        plan->control->flags[0] = flags[0] | ampi_found_by_user(plan);
        plan->control->flags[1] = flags[1];
        if (!plan->reduces) ampi_decide(plan);
    }
}

AMPI_KERNEL(2) ampi_check_kernel(amp_plan plan) {
    __shared__ float    lanes[256 / 32][AMPI_LANES];
    __shared__ double   sums[AMPI_LANES];
    __shared__ uint32_t flags[2];
    __shared__ bool     last;
    const unsigned      warps = blockDim.x / 32, warp = threadIdx.x / 32;
    uint64_t            c = (uint64_t)blockIdx.x * warps + warp;
    for (; c < plan.num_chunks; c += (uint64_t)gridDim.x * warps) {
        ampi_slot     *slot  = &plan.slots[plan.chunk_slots[c]];
        const uint64_t start = (c - slot->first_chunk) * AMPI_CHUNK;
        const uint64_t rest  = slot->n - start;
        const int      count = rest < AMPI_CHUNK ? (int)rest : (int)AMPI_CHUNK;
        double         sum   = 0.0;
        if (!slot->grad) /* a tensor may have had one in the step before */
            ;
        else if (slot->grad_type == AMP_F16)
            sum = ampi_check_chunk<AMP_F16>(slot, start, count, lanes[warp], &slot->tally);
        else if (slot->grad_type == AMP_BF16)
            sum = ampi_check_chunk<AMP_BF16>(slot, start, count, lanes[warp], &slot->tally);
        else
            sum = ampi_check_chunk<AMP_F32>(slot, start, count, lanes[warp], &slot->tally);
        if (threadIdx.x % 32 == 0) plan.partials[c] = sum;
    }
    /* Whoever arrives last sees what all others have written: one thread of each block fences
       before it arrives and after, and the block's barriers hand that on; the last fence of every
       thread is for what its cache may hold. */
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last     = atomicInc(&plan.control->arrived, gridDim.x - 1) == gridDim.x - 1;
        __threadfence();
        flags[0] = flags[1] = 0;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    ampi_end_check(&plan, sums, flags);
}

AMPI_KERNEL(4) ampi_decide_kernel(amp_plan plan) { ampi_decide(&plan); }

/* ------------------------------------------------------------------- B: update */

enum ampi_work { AMPI_ADAMW, AMPI_SGD, AMPI_UNSCALE, AMPI_MODEL, AMPI_CARRY };

/* The arrays of one tensor, and what to do to elements [i, i + N) of them. */
template <int WORK> struct ampi_updater {
    ampi_rates rates;
    float      factor;
    bool       skip, zero;
    ampi_array grad, master, m, v, model, unscaled;

    template <int N> __device__ __forceinline__ void run(unsigned i) const {
        uint32_t   g[N], p[N], x[N], y[N];
        const bool moves = !skip;
        if (moves && WORK == AMPI_UNSCALE) {
            ampi_get<N>(grad, i, g);
#pragma unroll
            for (int k = 0; k < N; k++) p[k] = ampi_bits_of_f32(ampi_unscale(g[k], factor));
            ampi_put<N>(unscaled, i, p);
        } else if (moves && WORK == AMPI_CARRY) {
            ampi_get<N>(unscaled, i, p);
#pragma unroll
            for (int k = 0; k < N; k++) g[k] = ampi_bits_of_f32(ampi_unscale(p[k], factor));
            ampi_put<N>(grad, i, g);
        } else if (moves && WORK == AMPI_MODEL) {
            ampi_get<N>(master, i, p);
            ampi_put<N>(model, i, p);
        } else if (moves) {
            const bool        has_m = WORK == AMPI_ADAMW || m.base;
            const ampi_raw<N> raw   = ampi_fetch<N>(grad, i);
            ampi_get<N>(master, i, p);
            if (has_m) ampi_get<N>(m, i, x);
            if (WORK == AMPI_ADAMW) ampi_get<N>(v, i, y);
            ampi_expand<N>(grad, raw, g);
#pragma unroll
            for (int k = 0; k < N; k++) {
                const float gk = ampi_unscale(g[k], factor);
                float       pk = ampi_f32_from_bits(p[k]), mk = 0.0f, vk = 0.0f;
                if (has_m) mk = ampi_f32_from_bits(x[k]);
                if (WORK == AMPI_ADAMW) {
                    vk = ampi_f32_from_bits(y[k]);
                    ampi_adamw(&rates, gk, &pk, &mk, &vk);
                    y[k] = ampi_bits_of_f32(vk);
                } else if (has_m) {
                    ampi_sgd(&rates, gk, &pk, &mk);
                } else {
                    ampi_sgd(&rates, gk, &pk, NULL);
                }
                p[k] = ampi_bits_of_f32(pk);
                x[k] = ampi_bits_of_f32(mk);
            }
            ampi_put<N>(master, i, p);
            if (has_m) ampi_put<N>(m, i, x);
            if (WORK == AMPI_ADAMW) ampi_put<N>(v, i, y);
            if (model.base) ampi_put<N>(model, i, p);
        }
        if (zero) {
#pragma unroll
            for (int k = 0; k < N; k++) g[k] = 0;
            ampi_put<N>(grad, i, g);
        }
    }
};

template <int WORK> AMPI_KERNEL(WORK == AMPI_SGD ? 3 : 4) ampi_update_kernel(amp_plan plan) {
    const ampi_control *c         = plan.control;
    const unsigned      per_chunk = plan.parts, length = AMPI_CHUNK / per_chunk;
    const uint64_t      parts     = plan.num_chunks * per_chunk;
    const bool          skip      = c->gate.skip != 0 && WORK != AMPI_CARRY;
    const bool          ends      = WORK != AMPI_UNSCALE && WORK != AMPI_CARRY;
    for (uint64_t k = blockIdx.x; k < parts; k += gridDim.x) {
        const uint64_t     part  = parts - 1 - k; /* A has left the last gradients in the cache */
        const uint64_t     chunk = part / per_chunk;
        const ampi_slot   *slot  = &plan.slots[plan.chunk_slots[chunk]];
        const uint64_t     begin = (chunk - slot->first_chunk) * AMPI_CHUNK +
                                   part % per_chunk * length;
        const unsigned     count = ampi_part_of(begin, slot->n, length);
        const void        *needs = WORK == AMPI_MODEL ? slot->model : slot->grad;
        const float       *lead  = WORK == AMPI_UNSCALE || WORK == AMPI_CARRY ? slot->unscaled
                                                                              : slot->master;
        const unsigned     first = ampi_head_of(lead, AMP_F32, begin, count);
        ampi_updater<WORK> update;
        update.skip = skip || !needs;
        update.zero = ends && plan.zero_grad && slot->grad;
        if (count == 0 || (update.skip && !update.zero)) continue;
        update.factor   = WORK == AMPI_CARRY ? ampi_carry_factor(&plan) : c->gate.inv_scale;
        update.rates    = ampi_rates_of(c, slot);
        update.grad     = ampi_array_of(slot->grad, slot->grad_type, begin, first);
        update.master   = ampi_array_of(slot->master, AMP_F32, begin, first);
        update.m        = ampi_array_of(slot->m, AMP_F32, begin, first);
        update.v        = ampi_array_of(slot->v, AMP_F32, begin, first);
        update.model    = ampi_array_of(slot->model, slot->model_type, begin, first);
        update.unscaled = ampi_array_of(slot->unscaled, AMP_F32, begin, first);
        ampi_each(update, first, count);
    }
    if (ends && ampi_first_thread()) ampi_publish(&plan);
}

/* ------------------------------------------------------------------- single rooms */

struct ampi_caster {
    ampi_array dst, src;
    template <int N> __device__ __forceinline__ void run(unsigned i) const {
        uint32_t u[N];
        ampi_get<N>(src, i, u);
        ampi_put<N>(dst, i, u);
    }
};

AMPI_KERNEL(4) ampi_cast_kernel(void *dst, uint32_t dst_type, const void *src, uint32_t src_type,
                                uint64_t n) {
    uint64_t begin = (uint64_t)blockIdx.x * AMPI_PART;
    for (; begin < n; begin += (uint64_t)gridDim.x * AMPI_PART) {
        const unsigned count = ampi_part_of(begin, n, AMPI_PART);
        const unsigned first = ampi_head_of(dst, dst_type, begin, count);
        ampi_caster    cast;
        cast.dst = ampi_array_of(dst, dst_type, begin, first);
        cast.src = ampi_array_of(src, src_type, begin, first);
        ampi_each(cast, first, count);
    }
}

/* A matrix whose rows lie apart; a block takes parts of rows, or several rows that are short. */
AMPI_KERNEL(4) ampi_cast_rows_kernel(void *dst, uint32_t dst_type, uint64_t dst_ld,
                                     const void *src, uint32_t src_type, uint64_t src_ld,
                                     uint64_t rows, uint64_t cols) {
    const uint64_t per_row = (cols + AMPI_PART - 1) / AMPI_PART;
    const unsigned several = cols < AMPI_PART / 2 ? AMPI_PART / (unsigned)cols : 1;
    uint64_t       row     = (uint64_t)blockIdx.x * several;
    for (; several > 1 && row < rows; row += (uint64_t)gridDim.x * several) {
        const unsigned count = ampi_part_of(row, rows, several) * (unsigned)cols;
        for (unsigned e = threadIdx.x; e < count; e += blockDim.x) {
            const uint64_t r = row + e / (unsigned)cols, c = e % (unsigned)cols;
            uint32_t       u;
            ampi_get<1>(ampi_array_of(src, src_type, r * src_ld + c, 0), 0, &u);
            ampi_put<1>(ampi_array_of(dst, dst_type, r * dst_ld + c, 0), 0, &u);
        }
    }
    for (uint64_t part = blockIdx.x; several == 1 && part < rows * per_row; part += gridDim.x) {
        const uint64_t begin    = part % per_row * AMPI_PART;
        const uint64_t in_row   = part / per_row;
        const unsigned count    = ampi_part_of(begin, cols, AMPI_PART);
        const uint64_t dst_from = in_row * dst_ld + begin;
        const unsigned first    = ampi_head_of(dst, dst_type, dst_from, count);
        ampi_caster    cast;
        cast.dst = ampi_array_of(dst, dst_type, dst_from, first);
        cast.src = ampi_array_of(src, src_type, in_row * src_ld + begin, first);
        ampi_each(cast, first, count);
    }
}

struct ampi_scale_by {
    ampi_array x;
    float      scale;
    template <int N> __device__ __forceinline__ void run(unsigned i) const {
        uint32_t u[N];
        ampi_get<N>(x, i, u);
#pragma unroll
        for (int k = 0; k < N; k++)
            u[k] = ampi_bits_of_f32(ampi_mul(ampi_f32_from_bits(u[k]), scale));
        ampi_put<N>(x, i, u);
    }
};

AMPI_KERNEL(4) ampi_scale_kernel(void *x, uint32_t type, uint64_t n, const float *scale) {
    uint64_t begin = (uint64_t)blockIdx.x * AMPI_PART;
    for (; begin < n; begin += (uint64_t)gridDim.x * AMPI_PART) {
        const unsigned count = ampi_part_of(begin, n, AMPI_PART);
        const unsigned first = ampi_head_of(x, type, begin, count);
        ampi_scale_by  work;
        work.x     = ampi_array_of(x, type, begin, first);
        work.scale = *scale;
        ampi_each(work, first, count);
    }
}

/* Check src and, if there is a dst, write it unscaled, as the CPU's ampi_scaler_pass does. In place
   an element that is not finite is not touched: a NaN keeps bits that a conversion would not. */
struct ampi_scaler_work {
    ampi_array src, dst;
    float      inv;
    bool       safe, check, in_place, *bad;
    template <int N> __device__ __forceinline__ void run(unsigned i) const {
        uint32_t u[N], r[N];
        bool     all_finite = true, overflow = false;
        ampi_get<N>(src, i, u);
#pragma unroll
        for (int k = 0; k < N; k++) {
            const bool finite = !ampi_nonfinite(u[k]);
            r[k] = check ? ampi_bits_of_f32(ampi_unscale(u[k], inv)) : u[k];
            all_finite = all_finite && finite;
            overflow   = overflow || ampi_nonfinite(r[k]);
            if (in_place && dst.type == AMP_BF16)
                overflow = overflow || ampi_nonfinite(
                    ampi_f32_from_bf16(ampi_bf16_from_f32(r[k])));
        }
        if (!all_finite || (safe && overflow)) *bad = true;
        if (!dst.base) return;
        if (all_finite || !in_place) {
            ampi_put<N>(dst, i, r);
        } else {
#pragma unroll
            for (int k = 0; k < N; k++)
                if (!ampi_nonfinite(u[k])) ampi_put<1>(dst, i + k, &r[k]);
        }
    }
};

AMPI_KERNEL(4) ampi_scaler_kernel(amp_scaler *s, void *dst, uint32_t dst_type, const void *src,
                                  uint32_t src_type, uint64_t n) {
    uint64_t         begin = (uint64_t)blockIdx.x * AMPI_PART;
    bool             bad   = false;
    ampi_scaler_work work;
    work.inv      = ampi_inv_scale(s->scale);
    work.safe     = (s->rules & AMPI_SAFE) != 0;
    work.check    = s->rules != 0 && !(s->rules & AMPI_DISABLED);
    work.in_place = dst == src;
    work.bad      = &bad;
    if (!work.check && (!dst || work.in_place)) return;
    for (; begin < n; begin += (uint64_t)gridDim.x * AMPI_PART) {
        const unsigned count = ampi_part_of(begin, n, AMPI_PART);
        const unsigned first = ampi_head_of(src, src_type, begin, count);
        work.src = ampi_array_of(src, src_type, begin, first);
        work.dst = ampi_array_of(dst, dst_type, begin, first);
        ampi_each(work, first, count);
    }
    if (!work.check) return;
    if (bad) atomicOr(&s->found_inf, 1u);
    if (ampi_first_thread() && s->checked != UINT32_MAX) s->checked++;
}

AMPI_KERNEL(4) ampi_scaler_update_kernel(amp_scaler *s) {
    if (s->rules == 0 || (s->rules & AMPI_DISABLED)) return;
    if (s->checked || s->found_inf) ampi_scaler_transition(s);
}

/* New addresses for slots [first, first + count), as an argument of a launch: nothing waits, and it
   stays below the 4 KiB that a launch may have. */
enum { AMPI_BINDS = 240 };
struct ampi_binds {
    ampi_slot *slots;
    float     *weight[AMPI_BINDS];
    void      *grad[AMPI_BINDS];
    uint32_t   count, grads; /* grads: set the gradients, also to NULL */
};

AMPI_KERNEL(4) ampi_bind_kernel(ampi_binds b) {
    if (threadIdx.x < b.count)
        ampi_bind(&b.slots[threadIdx.x], b.weight[threadIdx.x], (int)b.grads,
                  b.grad[threadIdx.x]);
}

/* num_bytes <= 8 travel as a kernel argument: nothing has to wait for host memory, and a graph
   keeps the value, not the address of something on a stack. */
AMPI_KERNEL(4) ampi_store_kernel(void *dst, uint64_t value, int num_bytes) {
    for (int b = 0; b < num_bytes; b++) ((unsigned char *)dst)[b] = (unsigned char)(value >> 8 * b);
}

static bool ampi_type_ok(amp_dtype type) { return (unsigned)type <= (unsigned)AMP_BF16; }

/* A block for each part of n elements. */
static unsigned ampi_blocks_for(uint64_t n) {
    const uint64_t parts = (n + AMPI_PART - 1) / AMPI_PART;
    return parts == 0 ? 1 : parts < 0x7fffffff ? (unsigned)parts : 0x7fffffffu;
}

amp_result amp_cuda_cast(void *dst, amp_dtype dst_type, const void *src, amp_dtype src_type,
                         size_t n, amp_stream stream) {
    if (!ampi_type_ok(dst_type) || !ampi_type_ok(src_type)) return AMP_ERROR_INVALID_ENUM;
    if (n && (!dst || !src)) return AMP_ERROR_INVALID_ARGUMENT;
    if (n == 0 || (dst == src && dst_type == src_type)) return AMP_OK;
    if (dst == src && (dst_type == AMP_F32 || src_type == AMP_F32)) return AMP_ERROR_UNSUPPORTED;
    if (dst_type == src_type)
        return ampi_cuda(cudaMemcpyAsync(dst, src, n * (dst_type == AMP_F32 ? 4 : 2),
                                         cudaMemcpyDeviceToDevice, stream));
    return ampi_launch(ampi_cast_kernel, ampi_blocks_for(n), 256, stream, dst, (uint32_t)dst_type,
                       src, (uint32_t)src_type, (uint64_t)n);
}

static amp_result ampi_scaler_on(amp_scaler *s, void *dst, amp_dtype dst_type, const void *src,
                                 amp_dtype src_type, size_t n, amp_stream stream) {
    if (!s || (n && !src)) return AMP_ERROR_INVALID_ARGUMENT;
    if (!ampi_type_ok(src_type)) return AMP_ERROR_INVALID_ENUM;
    return ampi_launch(ampi_scaler_kernel, ampi_blocks_for(n), 256, stream, s, dst,
                       (uint32_t)dst_type, src, (uint32_t)src_type, (uint64_t)n);
}

amp_result amp_cuda_scaler_check(amp_scaler *s, const void *grad, amp_dtype type, size_t n,
                                 amp_stream stream) {
    return ampi_scaler_on(s, NULL, AMP_F32, grad, type, n, stream);
}

amp_result amp_cuda_scaler_unscale(amp_scaler *s, void *grad, amp_dtype type, size_t n,
                                   amp_stream stream) {
    if (s && type == AMP_F16) return AMP_ERROR_UNSUPPORTED;
    return ampi_scaler_on(s, grad, type, grad, type, n, stream);
}

amp_result amp_cuda_scaler_unscale_to(amp_scaler *s, float *dst, const void *src,
                                      amp_dtype src_type, size_t n, amp_stream stream) {
    if (n && !dst) return AMP_ERROR_INVALID_ARGUMENT;
    return ampi_scaler_on(s, dst, AMP_F32, src, src_type, n, stream);
}

amp_result amp_cuda_scaler_update(amp_scaler *s, amp_stream stream) {
    if (!s) return AMP_ERROR_INVALID_ARGUMENT;
    return ampi_launch(ampi_scaler_update_kernel, 1, 1, stream, s);
}

amp_result amp_cuda_scale_loss(void *x, amp_dtype type, size_t n, const float *scale,
                               amp_stream stream) {
    if (!scale || (n && !x)) return AMP_ERROR_INVALID_ARGUMENT;
    if (!ampi_type_ok(type)) return AMP_ERROR_INVALID_ENUM;
    if (n == 0) return AMP_OK;
    return ampi_launch(ampi_scale_kernel, ampi_blocks_for(n), 256, stream, x, (uint32_t)type,
                       (uint64_t)n, scale);
}

/* ------------------------------------------------------------------- the backend */

static amp_result ampi_is_capturing(amp_stream stream, bool *capturing) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const amp_result        result = ampi_cuda(cudaStreamIsCapturing(stream, &status));
    *capturing = status != cudaStreamCaptureStatusNone;
    return result;
}

/* What waits, or holds on to host memory, is refused before it can spoil a capture. */
static amp_result ampi_not_capturing(amp_stream stream) {
    bool             capturing;
    const amp_result result = ampi_is_capturing(stream, &capturing);
    return result == AMP_OK && capturing ? AMP_ERROR_UNSUPPORTED : result;
}

static amp_result ampi_cuda_wait(const amp_backend *self) {
    const amp_result result = ampi_not_capturing(self->stream);
    return result == AMP_OK ? ampi_cuda(cudaStreamSynchronize(self->stream)) : result;
}

/* cudaMalloc and cudaFree would spoil a capture that is under way in this or another thread, unless
   this thread says that it knows what it is doing: this memory has no part in any capture. */
static cudaError_t ampi_outside_captures(void **memory, size_t num_bytes) {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    const cudaError_t     said = cudaThreadExchangeStreamCaptureMode(&mode);
    const cudaError_t     done = num_bytes ? cudaMalloc(memory, num_bytes) : cudaFree(*memory);
    const cudaError_t     back = said == cudaSuccess ? cudaThreadExchangeStreamCaptureMode(&mode)
                                                     : said;
    return done != cudaSuccess ? done : back;
}

static void ampi_cuda_free(const amp_backend *self, void *memory) {
    (void)self;
    if (ampi_outside_captures(&memory, 0) != cudaSuccess) (void)cudaGetLastError();
}

template <class... P> static amp_result ampi_preload(void (*kernel)(P...)) {
    cudaFuncAttributes attributes;
    return ampi_cuda(cudaFuncGetAttributes(&attributes, (const void *)kernel));
}

static amp_result ampi_cuda_alloc(const amp_backend *self, size_t num_bytes, void **memory) {
    amp_result  result = ampi_not_capturing(self->stream);
    cudaError_t error;
    void       *p = NULL;
    /* Kernels are loaded lazily, which had better not be in a capture of the first step. */
    if (result == AMP_OK) result = ampi_preload(ampi_check_kernel);
    if (result == AMP_OK) result = ampi_preload(ampi_update_kernel<AMPI_ADAMW>);
    if (result == AMP_OK) result = ampi_preload(ampi_update_kernel<AMPI_SGD>);
    if (result == AMP_OK) result = ampi_preload(ampi_update_kernel<AMPI_UNSCALE>);
    if (result == AMP_OK) result = ampi_preload(ampi_update_kernel<AMPI_MODEL>);
    if (result == AMP_OK) result = ampi_preload(ampi_update_kernel<AMPI_CARRY>);
    if (result != AMP_OK) return result;
    error  = ampi_outside_captures(&p, num_bytes);
    result = ampi_cuda(error);
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
    amp_result result;
    if (num_bytes == 0) return AMP_OK;
    if (!to_host && num_bytes <= sizeof value) {
        memcpy(&value, src, num_bytes);
        return ampi_launch(ampi_store_kernel, 1, 1, self->stream, dst, value, (int)num_bytes);
    }
    result = ampi_not_capturing(self->stream);
    if (result == AMP_OK)
        result = ampi_cuda(cudaMemcpyAsync(dst, src, num_bytes, to_host ? cudaMemcpyDeviceToHost
                                                                        : cudaMemcpyHostToDevice,
                                           self->stream));
    /* the caller may change src when this returns */
    if (result == AMP_OK && !to_host) result = ampi_cuda(cudaStreamSynchronize(self->stream));
    return result;
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
    blocks = cols < AMPI_PART / 2 ? rows / (AMPI_PART / cols) + 1
                                  : rows * ((cols + AMPI_PART - 1) / AMPI_PART);
    return ampi_launch(ampi_cast_rows_kernel, ampi_blocks(self, blocks), ampi_threads(self, 256),
                       self->stream, dst, (uint32_t)dst_type, (uint64_t)dst_ld, src,
                       (uint32_t)src_type, (uint64_t)src_ld, (uint64_t)rows, (uint64_t)cols);
}

/* One query, three names. In 12.x the plain one is what 11.x calls _v2; that name itself is gone
   from headers that are told --default-stream per-thread. */
static amp_result ampi_capture_info(amp_stream stream, cudaStreamCaptureStatus *status,
                                    unsigned long long *id, cudaGraph_t *graph,
                                    const cudaGraphNode_t **nodes, size_t *num_nodes) {
#if CUDART_VERSION >= 13000
    const cudaGraphEdgeData *edges;
    return ampi_cuda(cudaStreamGetCaptureInfo(stream, status, id, graph, nodes,
                                              nodes ? &edges : NULL, num_nodes));
#elif CUDART_VERSION >= 12000
    return ampi_cuda(cudaStreamGetCaptureInfo(stream, status, id, graph, nodes, num_nodes));
#else
    return ampi_cuda(cudaStreamGetCaptureInfo_v2(stream, status, id, graph, nodes, num_nodes));
#endif
}

/* What was queued in a capture has not happened outside it, so captures have numbers. */
static uint64_t ampi_cuda_capture(const amp_backend *self) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long      id     = 0;
    const amp_result result = ampi_capture_info(self->stream, &status, &id, NULL, NULL, NULL);
    if (result != AMP_OK || status == cudaStreamCaptureStatusNone) return 0;
    return (uint64_t)id + 1;
}

static amp_result ampi_cuda_bind(const amp_backend *self, const amp_plan *plan, size_t first,
                                 size_t count, float *const *weights, void *const *grads) {
    amp_result result = ampi_not_capturing(self->stream);
    ampi_binds b;
    while (count && result == AMP_OK) {
        memset(&b, 0, sizeof b);
        b.slots = plan->slots + first;
        b.count = (uint32_t)(count < AMPI_BINDS ? count : (size_t)AMPI_BINDS);
        b.grads = grads != NULL;
        if (weights) memcpy(b.weight, weights, b.count * sizeof *weights), weights += b.count;
        if (grads) memcpy(b.grad, grads, b.count * sizeof *grads), grads += b.count;
        result = ampi_launch(ampi_bind_kernel, 1, AMPI_BINDS, self->stream, b);
        first += b.count;
        count -= b.count;
    }
    return result;
}

static amp_result ampi_cuda_check(const amp_backend *self, const amp_plan *plan) {
    /* few chunks: small blocks reach more multiprocessors; many: 128 threads leave room for most */
    const unsigned threads = ampi_threads(self, plan->num_chunks < 2048 ? 64 : 128);
    const uint64_t warps   = threads / 32;
    return ampi_launch(ampi_check_kernel,
                       ampi_blocks(self, (plan->num_chunks + warps - 1) / warps), threads,
                       self->stream, *plan);
}

static amp_result ampi_cuda_decide(const amp_backend *self, const amp_plan *plan) {
    return ampi_launch(ampi_decide_kernel, 1, 1, self->stream, *plan);
}

static amp_result ampi_cuda_update(const amp_backend *self, const amp_plan *plan, ampi_job job) {
    void (*kernel)(amp_plan) = job == AMPI_JOB_UNSCALE           ? ampi_update_kernel<AMPI_UNSCALE>
                               : job == AMPI_JOB_PUBLISH             ? ampi_update_kernel<AMPI_MODEL>
                               : job == AMPI_JOB_CARRY           ? ampi_update_kernel<AMPI_CARRY>
                               : plan->kind == AMP_KIND_ADAMW   ? ampi_update_kernel<AMPI_ADAMW>
                                                                : ampi_update_kernel<AMPI_SGD>;
    return ampi_launch(kernel, ampi_blocks(self, plan->num_chunks * plan->parts),
                       ampi_threads(self, 256), self->stream, *plan);
}

/* What cublasLt would have done: sum is the product in fp32, in memory of its own or in c. */
AMPI_KERNEL(4) ampi_epilogue_kernel(void *c, uint32_t c_type, uint64_t ldc, const float *sum,
                                    uint64_t ld_sum, float beta, const void *bias, int relu,
                                    uint64_t rows, uint64_t cols) {
    const bool reads_c = (ampi_bits_of_f32(beta) & 0x7fffffffu) != 0u;
    uint64_t   i       = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < rows * cols; i += (uint64_t)gridDim.x * blockDim.x) {
        const uint64_t   row = i / cols, col = i % cols;
        const ampi_array to = ampi_array_of(c, c_type, row * ldc + col, 0);
        uint32_t         u, extra = 0;
        float            x = sum[row * ld_sum + col];
        if (reads_c) {
            ampi_get<1>(to, 0, &u);
            x = ampi_add(x, ampi_mul(beta, ampi_f32_from_bits(u)));
        }
        if (bias) {
            ampi_get<1>(ampi_array_of(bias, c_type, col, 0), 0, &extra);
            const float b = ampi_f32_from_bits(extra);
            x             = ampi_epilogue(x, &b, relu);
        } else {
            x = ampi_epilogue(x, NULL, relu);
        }
        u = ampi_bits_of_f32(x);
        ampi_put<1>(to, 0, &u);
    }
}

static cudaDataType_t ampi_data_type(amp_dtype type) {
    return type == AMP_F16 ? CUDA_R_16F : type == AMP_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* An attribute of a cublasLt descriptor, unless an error came before. */
template <class D, class A, class T>
static void ampi_set(cublasStatus_t *status, cublasStatus_t (*set)(D, A, const void *, size_t),
                     D descriptor, A attribute, const T &value) {
    if (*status == CUBLAS_STATUS_SUCCESS)
        *status = set(descriptor, attribute, &value, sizeof value);
}

/* A product with its epilogue in one kernel. No descriptor is allocated. */
static cublasStatus_t ampi_lt_matmul(const amp_backend *self, const amp_gemm_args *g, int k,
                                     cublasComputeType_t type) {
    const cublasOperation_t      ta   = g->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t      tb   = g->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cudaDataType_t         ab   = ampi_data_type(g->a_type), cd = ampi_data_type(g->c_type);
    const uint64_t               m = g->m, n = g->n, kk = (uint64_t)k;
    const cublasLtEpilogue_t     end  = !g->bias  ? CUBLASLT_EPILOGUE_RELU
                                        : g->relu ? CUBLASLT_EPILOGUE_RELU_BIAS
                                                  : CUBLASLT_EPILOGUE_BIAS;
    cublasLtMatmulDescOpaque_t   product;
    cublasLtMatrixLayoutOpaque_t a, b, c;
    cublasStatus_t               status = cublasLtMatmulDescInit(&product, type, CUDA_R_32F);
    ampi_set(&status, cublasLtMatmulDescSetAttribute, &product, CUBLASLT_MATMUL_DESC_TRANSA, tb);
    ampi_set(&status, cublasLtMatmulDescSetAttribute, &product, CUBLASLT_MATMUL_DESC_TRANSB, ta);
    ampi_set(&status, cublasLtMatmulDescSetAttribute, &product, CUBLASLT_MATMUL_DESC_EPILOGUE,
             end);
    if (g->bias)
        ampi_set(&status, cublasLtMatmulDescSetAttribute, &product,
                 CUBLASLT_MATMUL_DESC_BIAS_POINTER, g->bias);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatrixLayoutInit(&b, ab, g->trans_b ? kk : n, g->trans_b ? n : kk,
                                          (int64_t)g->ldb);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatrixLayoutInit(&a, ab, g->trans_a ? m : kk, g->trans_a ? kk : m,
                                          (int64_t)g->lda);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatrixLayoutInit(&c, cd, n, m, (int64_t)g->ldc);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    return cublasLtMatmul((cublasLtHandle_t)self->context, &product, &g->alpha, g->b, &b, g->a, &a,
                          &g->beta, g->c, &c, g->c, &c, NULL, self->workspace,
                          self->workspace_size, self->stream);
}

/* The same in two: the product in fp32, in c or in the workspace, then the rest. */
static amp_result ampi_gemm_then_epilogue(const amp_backend *self, const amp_gemm_args *g) {
    const size_t  bytes = (g->m * g->n * sizeof(float) + 255) / 256 * 256;
    amp_backend   rest  = *self;
    amp_gemm_args plain = *g;
    float         beta  = 0.0f;
    amp_result    result;
    plain.bias = NULL;
    plain.relu = 0;
    if (g->c_type != AMP_F32) {
        if (!self->workspace || self->workspace_size <= bytes) return AMP_ERROR_UNSUPPORTED;
        plain.c             = self->workspace;
        plain.c_type        = AMP_F32;
        plain.ldc           = g->n;
        plain.beta          = 0.0f;
        beta                = g->beta;
        rest.workspace      = (char *)self->workspace + bytes;
        rest.workspace_size = self->workspace_size - bytes;
    }
    result = self->functions->gemm_fn(&rest, &plain);
    if (result != AMP_OK) return result;
    return ampi_launch(ampi_epilogue_kernel, ampi_blocks(self, ((uint64_t)g->m * g->n + 255) / 256),
                       256, self->stream, g->c, (uint32_t)g->c_type, (uint64_t)g->ldc,
                       (const float *)plain.c, (uint64_t)plain.ldc, beta, g->bias, g->relu,
                       (uint64_t)g->m, (uint64_t)g->n);
}

/* cuBLAS sees a row-major matrix as the transpose of a column-major one: C' = op(B)' op(A)'. */
static amp_result ampi_cuda_gemm(const amp_backend *self, const amp_gemm_args *g) {
    const cublasHandle_t handle    = (cublasHandle_t)self->context;
    const bool           nothing   = (ampi_load_u32(&g->alpha, 0) & 0x7fffffffu) == 0u;
    const size_t         k         = nothing ? 0 : g->k; /* alpha 0: A and B are not read */
    const size_t         largest   = 0x7fffffff;
    bool                 capturing = false;
    amp_result           result;
    cublasOperation_t    ta, tb;
    cublasComputeType_t  type;
    if (!handle || g->a_type != g->b_type) return AMP_ERROR_UNSUPPORTED;
    if (g->c_type != AMP_F32 && g->c_type != g->a_type) return AMP_ERROR_UNSUPPORTED;
    if (g->m > largest || g->n > largest || g->k > largest || g->lda > largest ||
        g->ldb > largest || g->ldc > largest || g->count > largest)
        return AMP_ERROR_TOO_LARGE;
    if (!self->workspace) { /* cuBLAS would allocate one for every graph */
        result = ampi_is_capturing(self->stream, &capturing);
        if (result != AMP_OK) return result;
        if (capturing) return AMP_ERROR_BAD_STATE;
    }
    result = ampi_cublas(cublasSetStream(handle, self->stream)); /* resets the workspace */
    if (result == AMP_OK && self->workspace)
        result = ampi_cublas(cublasSetWorkspace(handle, self->workspace, self->workspace_size));
    if (result != AMP_OK) return result;
    ta   = g->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    tb   = g->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    type = g->tf32 && g->a_type == AMP_F32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    if (g->bias || g->relu) {
        const cublasStatus_t status = k ? ampi_lt_matmul(self, g, (int)k, type)
                                        : CUBLAS_STATUS_NOT_SUPPORTED;
        return status == CUBLAS_STATUS_NOT_SUPPORTED ? ampi_gemm_then_epilogue(self, g)
                                                     : ampi_cublas(status);
    }
    if (g->count == 1)
        return ampi_cublas(cublasGemmEx(
            handle, tb, ta, (int)g->n, (int)g->m, (int)k, &g->alpha, g->b,
            ampi_data_type(g->b_type), (int)g->ldb, g->a, ampi_data_type(g->a_type), (int)g->lda,
            &g->beta, g->c, ampi_data_type(g->c_type), (int)g->ldc, type, CUBLAS_GEMM_DEFAULT));
    return ampi_cublas(cublasGemmStridedBatchedEx(
        handle, tb, ta, (int)g->n, (int)g->m, (int)k, &g->alpha, g->b, ampi_data_type(g->b_type),
        (int)g->ldb, (long long)g->stride_b, g->a, ampi_data_type(g->a_type), (int)g->lda,
        (long long)g->stride_a, &g->beta, g->c, ampi_data_type(g->c_type), (int)g->ldc,
        (long long)g->stride_c, (int)g->count, type, CUBLAS_GEMM_DEFAULT));
}

static const ampi_functions ampi_cuda_functions = {
    ampi_cuda_alloc, ampi_cuda_free, ampi_cuda_copy, ampi_cuda_cast, ampi_cuda_cast_rows,
    ampi_cuda_capture, ampi_cuda_bind, ampi_cuda_check, ampi_cuda_decide, ampi_cuda_update,
    ampi_cuda_gemm, ampi_cuda_wait};

amp_result amp_cuda_backend(amp_backend *backend, amp_stream stream, void *cublas_handle) {
    const cublasHandle_t handle = (cublasHandle_t)cublas_handle;
    amp_result           result = AMP_OK;
    if (!backend) return AMP_ERROR_INVALID_ARGUMENT;
    if (handle) result = ampi_cublas(cublasSetPointerMode(handle, CUBLAS_POINTER_MODE_HOST));
    if (handle && result == AMP_OK) /* or parts of a sum might be rounded to fp16 */
        result = ampi_cublas(
            cublasSetMathMode(handle, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
    if (result != AMP_OK) return result;
    memset(backend, 0, sizeof *backend);
    backend->context      = cublas_handle;
    backend->stream       = stream;
    backend->functions    = &ampi_cuda_functions;
    return AMP_OK;
}

amp_result amp_cuda_capability(int device, amp_capability *capability) {
    int        major = 0, minor = 0;
    amp_result result;
    if (!capability) return AMP_ERROR_INVALID_ARGUMENT;
    result = device < 0 ? ampi_cuda(cudaGetDevice(&device)) : AMP_OK;
    if (result == AMP_OK)
        result = ampi_cuda(
            cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    if (result == AMP_OK)
        result = ampi_cuda(
            cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    return result == AMP_OK ? ampi_capability(major, minor, capability) : result;
}

/* ------------------------------------------------------------------- conditional nodes */

#if CUDART_VERSION >= 12040 && !defined(AMP_NO_CONDITIONAL)

AMPI_KERNEL(4) ampi_condition_kernel(cudaGraphConditionalHandle handle, const uint32_t *skip) {
    cudaGraphSetConditional(handle, *skip == 0u);
}

/* The graph that stream is being captured into, and the nodes that what comes next depends on. */
static amp_result ampi_capture_of(amp_stream stream, cudaGraph_t *graph,
                                  const cudaGraphNode_t **nodes, size_t *num_nodes) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long      id;
    const amp_result        result =
        ampi_capture_info(stream, &status, &id, graph, nodes, num_nodes);
    return result == AMP_OK && status != cudaStreamCaptureStatusActive ? AMP_ERROR_BAD_STATE
                                                                      : result;
}

amp_result amp_cuda_if_begin(const uint32_t *skip, amp_stream stream, amp_stream body) {
    cudaGraphConditionalHandle handle;
    cudaGraphNodeParams        params = {};
    cudaGraph_t                graph = NULL;
    cudaGraphNode_t            node;
    const cudaGraphNode_t     *before;
    size_t                     num_before;
    int                        driver = 0;
    amp_result                 result;
    if (!skip || !body || body == stream) return AMP_ERROR_INVALID_ARGUMENT;
    result = ampi_cuda(cudaDriverGetVersion(&driver));
    if (result == AMP_OK && driver < 12040) return AMP_ERROR_UNSUPPORTED;
    if (result == AMP_OK) result = ampi_not_capturing(body);
    if (result == AMP_OK) result = ampi_capture_of(stream, &graph, &before, &num_before);
    if (result == AMP_OK)
        result = ampi_cuda(
            cudaGraphConditionalHandleCreate(&handle, graph, 0, cudaGraphCondAssignDefault));
    if (result == AMP_OK)
        result = ampi_launch(ampi_condition_kernel, 1, 1, stream, handle, skip);
    if (result == AMP_OK) result = ampi_capture_of(stream, &graph, &before, &num_before);
    if (result != AMP_OK) return result;
    params.type               = cudaGraphNodeTypeConditional;
    params.conditional.handle = handle;
    params.conditional.type   = cudaGraphCondTypeIf;
    params.conditional.size   = 1;
#if CUDART_VERSION >= 13000
    result = ampi_cuda(cudaGraphAddNode(&node, graph, before, NULL, num_before, &params));
    if (result == AMP_OK)
        result = ampi_cuda(cudaStreamUpdateCaptureDependencies(
            stream, &node, NULL, 1, cudaStreamSetCaptureDependencies));
#else
    result = ampi_cuda(cudaGraphAddNode(&node, graph, before, num_before, &params));
    if (result == AMP_OK)
        result = ampi_cuda(cudaStreamUpdateCaptureDependencies(
            stream, &node, 1, cudaStreamSetCaptureDependencies));
#endif
    if (result == AMP_OK)
        result = ampi_cuda(cudaStreamBeginCaptureToGraph(
            body, params.conditional.phGraph_out[0], NULL, NULL, 0,
            cudaStreamCaptureModeRelaxed));
    return result;
}

amp_result amp_cuda_if_end(amp_stream body) {
    cudaGraph_t graph;
    return ampi_cuda(cudaStreamEndCapture(body, &graph));
}

#else

amp_result amp_cuda_if_begin(const uint32_t *skip, amp_stream stream, amp_stream body) {
    (void)skip;
    (void)stream;
    (void)body;
    return AMP_ERROR_UNSUPPORTED;
}

amp_result amp_cuda_if_end(amp_stream body) {
    (void)body;
    return AMP_ERROR_UNSUPPORTED;
}

#endif
