/* gpt_kernels.cuh - the kernels of gpt_cuda.cu: what happens between the products

   Each is one idea, a template of T, the type in which the run stores; all compute in fp32.

   Matrices are row-major, and a row of an activation is a token: row = position * sequences +
   sequence. No kernel adds floats by atomics, so that the same input gives the same bits.        */

#ifndef GPT_KERNELS_CUH
#define GPT_KERNELS_CUH

#include "amp.h"       /* amp_gate, amp_scaler */
#include "gpt_setup.h" /* VOCABULARY */

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <math.h>
#include <stdint.h>

/* ------------------------------------------------------------------------------- rows and strips
   Kernels have blocks of 256 threads and read four elements at once. Those that need a row as a
   whole keep it in the registers of one warp. Those that need sums over all rows cut the columns
   into strips of 128, which a warp reads at once, and add up in an order that does not change.   */

enum { THREADS = 256, WARPS = THREADS / 32, QUADS = 8, STRIP = 128, MAX_ROW = QUADS * STRIP };
enum { MAX_SLICES = 64 };

struct quad { float x[4]; };
template <class T> struct alignas(4 * sizeof(T)) packed { T x[4]; };

static __device__ float widen(float x) { return x; }
static __device__ float widen(__half x) { return __half2float(x); }
static __device__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
static __device__ void  narrow(float *y, float x) { *y = x; }
static __device__ void  narrow(__half *y, float x) { *y = __float2half_rn(x); }
static __device__ void  narrow(__nv_bfloat16 *y, float x) { *y = __float2bfloat16_rn(x); }

template <class T> static __device__ quad load(const T *p) {
    const packed<T> from = *(const packed<T> *)p;
    quad            q;
    for (int e = 0; e < 4; e++) q.x[e] = widen(from.x[e]);
    return q;
}

/* Returns what was stored: q, rounded. */
template <class T> static __device__ quad store(T *p, quad q) {
    packed<T> to;
    for (int e = 0; e < 4; e++) {
        narrow(&to.x[e], q.x[e]);
        q.x[e] = widen(to.x[e]);
    }
    *(packed<T> *)p = to;
    return q;
}

static __device__ size_t thread(void) { return (size_t)blockIdx.x * THREADS + threadIdx.x; }
static __device__ int    lane(void) { return threadIdx.x % 32; }
static __device__ int    warp(void) { return threadIdx.x / 32; }
static __device__ int    row_of_warp(void) { return blockIdx.x * WARPS + warp(); }

/* The quads of a row of n that are this lane's: quad k is at column j. */
#define FOR_ROW(k, j, n)                                                          \
    _Pragma("unroll") for (int k = 0, j = 4 * lane(); k < QUADS; k++, j += STRIP) \
        if (j < (n))

/* All lanes get the result, with the same bits. */
template <class T> static __device__ T warp_sum(T x) {
    for (int by = 16; by > 0; by /= 2) x += __shfl_xor_sync(0xffffffffu, x, by);
    return x;
}

static __device__ float warp_max(float x) {
    for (int by = 16; by > 0; by /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, by));
    return x;
}

/* Is this the last of so many blocks that come here? It sees what all of them have written before;
   the counter is 0 again. Once in a kernel. */
static __device__ bool last_of(unsigned *counter, unsigned blocks) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicInc(counter, blocks - 1) == blocks - 1;
    __syncthreads();
    __threadfence();
    return last;
}

/* Room for sums that are not finished, of one kernel after the other. */
struct room {
    float    *part;
    double   *loss;
    unsigned *counter;
};

/* Block (strip, slice) has N sums of its slice of rows in the lanes of its warps; the last block of
   a strip adds those of all slices, and writes each to where out points, if it does. */
template <int N>
static __device__ void add_slices(const quad (&sum)[N], float *const (&out)[N], int cols, room r) {
    __shared__ float of_warp[N][WARPS][STRIP];
    const int        column = blockIdx.x * STRIP + threadIdx.x;
    float           *part   = r.part + (size_t)blockIdx.x * gridDim.y * N * STRIP;
    for (int n = 0; n < N; n++) store(&of_warp[n][warp()][4 * lane()], sum[n]);
    __syncthreads();
    for (int n = 0; n < N && threadIdx.x < STRIP; n++) {
        float total = 0.0f;
        for (int w = 0; w < WARPS; w++) total += of_warp[n][w][threadIdx.x];
        part[(blockIdx.y * N + n) * STRIP + threadIdx.x] = total;
    }
    if (!last_of(&r.counter[blockIdx.x], gridDim.y) || threadIdx.x >= STRIP || column >= cols)
        return;
    for (int n = 0; n < N; n++) {
        float total = 0.0f;
        for (unsigned slice = 0; slice < gridDim.y; slice++)
            total += __ldcg(&part[(slice * N + n) * STRIP + threadIdx.x]);
        if (out[n]) out[n][column] = total;
    }
}

/* The rows of this warp in its slice, and where its lane is in them. */
#define FOR_SLICE(i, rows)                                                                   \
    for (int i = (int)((size_t)(rows) * blockIdx.y / gridDim.y) + warp(),                    \
             end_of_slice = (int)((size_t)(rows) * (blockIdx.y + 1) / gridDim.y);            \
         i < end_of_slice; i += WARPS)
static __device__ int column_in_strip(void) { return blockIdx.x * STRIP + 4 * lane(); }

/* ------------------------------------------------------------------------------- kernels: batch */

/* What a replayed step must find out by itself. */
struct schedule {
    const amp_gate   *gate;   /* its step: how many were taken                  */
    const amp_scaler *scaler;
    float            *lr, *factor; /* for AdamW; for the gradient of the loss        */
    float             peak;
    int               steps, overflow;
    uint64_t          seed;
};

/* Linear warm-up, then a cosine down to a tenth, by steps that were taken. */
static __device__ float rate_of(const schedule &p, uint64_t step) {
    const float warm = 0.1f * (float)p.steps + 1.0f, x = (float)step;
    if (x < warm) return p.peak * (x + 1.0f) / (warm + 1.0f);
    return p.peak * (0.55f + 0.45f * cospif((x - warm) / ((float)p.steps - warm)));
}

/* The nth number of train_numbers.h's random_u64 from a state. */
static __device__ uint64_t random_nth(uint64_t state, uint64_t n) {
    uint64_t z = state + (n + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Windows of the text at random, those that gpt.c draws: they follow from the seed and the steps
   taken, so that a step that was skipped meets the same text again. Each row's token is also
   written as a row of zeros and a one, for the gradient of the embedding. The first thread says
   what the step is to go by. */
template <class T>
static __global__ void batch_kernel(schedule p, const unsigned char *train, size_t num_train,
                                    int sequences, int context, unsigned char *token,
                                    unsigned char *target, T *one_hot) {
    const uint64_t step = p.gate->step;
    const int      i = (int)(thread() / (VOCABULARY / 4)), j = (int)(thread() % (VOCABULARY / 4));
    if (thread() == 0) {
        const uint64_t turn = p.scaler->good + p.scaler->skipped + 1;
        *p.lr     = rate_of(p, step);
        *p.factor = turn == (uint64_t)p.overflow ? INFINITY : p.scaler->scale;
    }
    if (i >= sequences * context) return;
    const uint64_t state = (p.seed << 32) + step * 0x2545f4914f6cdd1du + 7;
    const size_t   first = random_nth(state, (uint64_t)(i % sequences)) % (num_train - context);
    const unsigned char *here = train + first + i / sequences;
    quad                 q;
    for (int e = 0; e < 4; e++) q.x[e] = here[0] == 4 * j + e ? 1.0f : 0.0f;
    store(one_hot + 4 * thread(), q);
    if (j > 0) return;
    token[i]  = here[0];
    target[i] = here[1];
}

/* Windows all over the text that training never sees, from number first of so many. */
static __global__ void held_kernel(const unsigned char *held, size_t num_held, int first,
                                   int windows, int sequences, int context, unsigned char *token,
                                   unsigned char *target) {
    const int i = (int)thread(), w = first + i % sequences;
    if (i >= sequences * context) return;
    const size_t at = (num_held - context - 1) * w / windows + i / sequences;
    token[i]  = held[at];
    target[i] = held[at + 1];
}

/* ----------------------------------------------------------------------------- kernels: forward */

template <class T>
static __global__ void embed_kernel(T *x, const T *embedding, const T *positions,
                                    const unsigned char *token, int sequences, int rows, int c) {
    const int i = row_of_warp();
    if (i >= rows) return;
    const T *of_token = embedding + (size_t)token[i] * c;
    const T *of_place = positions + (size_t)(i / sequences) * c;
    FOR_ROW(k, j, c) {
        quad       q    = load(of_token + j);
        const quad more = load(of_place + j);
        for (int e = 0; e < 4; e++) q.x[e] += more.x[e];
        store(x + (size_t)i * c + j, q);
    }
}

/* The residual stream goes on with what a product gave, still fp32, rounded once; and the norm of
   it. Without y, only the norm of what is there. */
template <class T>
static __global__ void norm_kernel(const T *in, const float *y, T *out, T *norm, float2 *stats,
                                   const float *gain, const float *bias, int rows, int c) {
    const int    i     = row_of_warp();
    const size_t start = (size_t)i * c;
    quad         x[QUADS];
    float        sum = 0.0f, square = 0.0f;
    if (i >= rows) return;
    FOR_ROW(k, j, c) { /* all loads come before the first store, so that they overlap */
        x[k] = load(in + start + j);
        if (y) {
            const quad more = load(y + start + j);
            for (int e = 0; e < 4; e++) x[k].x[e] += more.x[e];
        }
    }
    FOR_ROW(k, j, c) {
        if (y) x[k] = store(out + start + j, x[k]);
        for (int e = 0; e < 4; e++) sum += x[k].x[e];
    }
    const float mean = warp_sum(sum) / (float)c;
    FOR_ROW(k, j, c)
        for (int e = 0; e < 4; e++) {
            x[k].x[e] -= mean;
            square += x[k].x[e] * x[k].x[e];
        }
    const float rstd = 1.0f / sqrtf(warp_sum(square) / (float)c + 1e-5f);
    FOR_ROW(k, j, c) {
        const quad g = load(gain + j), b = load(bias + j);
        for (int e = 0; e < 4; e++) x[k].x[e] = x[k].x[e] * rstd * g.x[e] + b.x[e];
        store(norm + start + j, x[k]);
    }
    if (lane() == 0) stats[i] = make_float2(mean, rstd);
}

/* Of row i, what comes at a position up to its own; what comes later in the text gets none. */
template <class T>
static __global__ void softmax_kernel(T *prob, const float *score, int rows, int context) {
    const int    i = row_of_warp(), own = i % context;
    const size_t start = (size_t)i * context;
    quad         p[QUADS];
    float        max = -INFINITY, sum = 0.0f;
    if (i >= rows) return;
    FOR_ROW(k, j, own + 1) {
        p[k] = load(score + start + j);
        for (int e = 0; e < 4; e++)
            if (j + e <= own) max = fmaxf(max, p[k].x[e]);
    }
    max = warp_max(max);
    FOR_ROW(k, j, own + 1)
        for (int e = 0; e < 4; e++) {
            p[k].x[e] = j + e <= own ? expf(p[k].x[e] - max) : 0.0f;
            sum += p[k].x[e];
        }
    const float scale = 1.0f / warp_sum(sum);
    FOR_ROW(k, j, context) {
        for (int e = 0; e < 4; e++) p[k].x[e] = j <= own ? p[k].x[e] * scale : 0.0f;
        store(prob + start + j, p[k]);
    }
}

/* x times the logistic function of 2 sqrt(2 / pi) (x + 0.044715 x^3): GELU as in GPT-2. */
static __device__ float gate_of(float x) {
    return 1.0f / (1.0f + expf(-1.59576912f * (x + 0.044715f * x * x * x)));
}

template <class T>
static __global__ void gelu_kernel(T *__restrict__ y, const T *__restrict__ up, size_t n) {
    const size_t at = 4 * thread();
    if (at >= n) return;
    quad q = load(up + at);
    for (int e = 0; e < 4; e++) q.x[e] *= gate_of(q.x[e]);
    store(y + at, q);
}

/* The mean cross-entropy, to loss[gate->step] or loss[0], and the gradient by the logits, times
   *factor, if it is wanted. */
template <class T>
static __global__ void loss_kernel(const float *logits, const unsigned char *target, int rows,
                                   T *gradient, const float *factor, room r, double *loss,
                                   const amp_gate *gate) {
    __shared__ float of_row[WARPS];
    const int        i = row_of_warp();
    if (lane() == 0) of_row[warp()] = 0.0f;
    if (i < rows) {
        const size_t start = (size_t)i * VOCABULARY;
        quad         p[QUADS];
        float        max = -INFINITY, sum = 0.0f;
        FOR_ROW(k, j, VOCABULARY) {
            p[k] = load(logits + start + j);
            for (int e = 0; e < 4; e++) max = fmaxf(max, p[k].x[e]);
        }
        max = warp_max(max);
        FOR_ROW(k, j, VOCABULARY)
            for (int e = 0; e < 4; e++) sum += p[k].x[e] = expf(p[k].x[e] - max);
        sum = warp_sum(sum);
        if (lane() == 0) of_row[warp()] = logf(sum) + max - logits[start + target[i]];
        if (gradient) {
            const float one = *factor / (float)rows, scale = one / sum;
            FOR_ROW(k, j, VOCABULARY) {
                for (int e = 0; e < 4; e++)
                    p[k].x[e] = p[k].x[e] * scale - (j + e == target[i] ? one : 0.0f);
                store(gradient + start + j, p[k]);
            }
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        double sum = 0.0;
        for (int w = 0; w < WARPS; w++) sum += (double)of_row[w];
        r.loss[blockIdx.x] = sum;
    }
    if (!last_of(r.counter, gridDim.x) || warp() > 0) return;
    double sum = 0.0;
    for (unsigned b = lane(); b < gridDim.x; b += 32) sum += __ldcg(&r.loss[b]);
    sum = warp_sum(sum);
    if (lane() == 0) loss[gate ? gate->step : 0] = sum / rows;
}

/* ---------------------------------------------------------------------------- kernels: backward */

/* The gradient by the rows before a norm, added to that of the stream, unless this is the first;
   and the sum in the type of products. */
template <class T>
static __global__ void norm_back_kernel(float *stream_grad, T *stream_low, const float *dy,
                                        const T *in, const float2 *stats, const float *gain,
                                        int first, int rows, int c) {
    const int    i     = row_of_warp();
    const size_t start = (size_t)i * c;
    quad         d[QUADS], z[QUADS];
    float        of_mean = 0.0f, of_deviation = 0.0f;
    if (i >= rows) return;
    const float2 s = stats[i];
    FOR_ROW(k, j, c) {
        const quad g = load(gain + j);
        d[k] = load(dy + start + j);
        z[k] = load(in + start + j);
        for (int e = 0; e < 4; e++) {
            d[k].x[e] *= g.x[e];
            z[k].x[e] = (z[k].x[e] - s.x) * s.y;
            of_mean += d[k].x[e];
            of_deviation += d[k].x[e] * z[k].x[e];
        }
    }
    of_mean      = warp_sum(of_mean) / (float)c;
    of_deviation = warp_sum(of_deviation) / (float)c;
    FOR_ROW(k, j, c) {
        quad dx = {};
        if (!first) dx = load(stream_grad + start + j);
        for (int e = 0; e < 4; e++)
            dx.x[e] += s.y * (d[k].x[e] - of_mean - z[k].x[e] * of_deviation);
        store(stream_grad + start + j, dx);
        store(stream_low + start + j, dx);
    }
}

/* Sums over rows: the gradients of gain and bias of a norm, and of the bias that was added to the
   stream before it. */
template <class T>
static __global__ void norm_sums_kernel(const float *dy, const T *in, const float2 *stats,
                                        const float *stream_grad, float *gain_grad,
                                        float *bias_grad, float *stream_bias_grad, int rows, int c,
                                        room r) {
    quad         sum[3] = {};
    const int    j      = column_in_strip();
    float *const out[3] = {gain_grad, bias_grad, stream_bias_grad};
    if (j < c) {
        FOR_SLICE(i, rows) {
            const size_t at = (size_t)i * c + j;
            const float2 s  = stats[i];
            const quad   d = load(dy + at), x = load(in + at), stream = load(stream_grad + at);
            for (int e = 0; e < 4; e++) {
                sum[0].x[e] += d.x[e] * ((x.x[e] - s.x) * s.y);
                sum[1].x[e] += d.x[e];
                sum[2].x[e] += stream.x[e];
            }
        }
    }
    add_slices(sum, out, c, r);
}

static __device__ float gelu_slope(float x) {
    const float s = gate_of(x);
    return s + x * s * (1.0f - s) * 1.59576912f * (1.0f + 0.134145f * x * x);
}

/* The gradient before GELU, in place, and its sum over rows, which is the bias's. */
template <class T>
static __global__ void gelu_back_kernel(T *d, const T *up, float *bias_grad, int rows, int cols,
                                        room r) {
    quad         sum[1] = {};
    const int    j      = column_in_strip();
    float *const out[1] = {bias_grad};
    if (j < cols) {
        FOR_SLICE(i, rows) {
            const size_t at = (size_t)i * cols + j;
            const quad   x  = load(up + at);
            quad         q  = load(d + at);
            for (int e = 0; e < 4; e++) sum[0].x[e] += q.x[e] *= gelu_slope(x.x[e]);
            store(d + at, q);
        }
    }
    add_slices(sum, out, cols, r);
}

template <class T>
static __global__ void bias_grad_kernel(const T *d, float *bias_grad, int rows, int cols, room r) {
    quad         sum[1] = {};
    const int    j      = column_in_strip();
    float *const out[1] = {bias_grad};
    if (j < cols) {
        FOR_SLICE(i, rows) {
            const quad q = load(d + (size_t)i * cols + j);
            for (int e = 0; e < 4; e++) sum[0].x[e] += q.x[e];
        }
    }
    add_slices(sum, out, cols, r);
}

/* From the gradient by probabilities to that by scores; 0 for what comes later. */
template <class T>
static __global__ void softmax_back_kernel(T *d, const T *prob, const float *dprob, int rows,
                                           int context) {
    const int    i = row_of_warp(), own = i % context;
    const size_t start = (size_t)i * context;
    quad         p[QUADS], dp[QUADS];
    float        sum = 0.0f;
    if (i >= rows) return;
    FOR_ROW(k, j, own + 1) {
        p[k]  = load(prob + start + j);
        dp[k] = load(dprob + start + j);
        for (int e = 0; e < 4; e++)
            if (j + e <= own) sum += p[k].x[e] * dp[k].x[e];
    }
    sum = warp_sum(sum);
    FOR_ROW(k, j, context) {
        quad q = {};
        for (int e = 0; e < 4; e++)
            if (j + e <= own) q.x[e] = p[k].x[e] * (dp[k].x[e] - sum);
        store(d + start + j, q);
    }
}

/* The rows of a position lie one behind the other. */
static __global__ void position_grad_kernel(float *grad, const float *stream_grad, int sequences,
                                            int context, int c) {
    const int at = 4 * (int)thread(), t = at / c, j = at % c;
    quad      sum = {};
    if (t >= context) return;
    for (int s = 0; s < sequences; s++) {
        const quad q = load(stream_grad + ((size_t)t * sequences + s) * c + j);
        for (int e = 0; e < 4; e++) sum.x[e] += q.x[e];
    }
    store(grad + at, sum);
}

#endif /* GPT_KERNELS_CUH */
