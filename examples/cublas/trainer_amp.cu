/* trainer_amp.cu - an ordinary CUDA trainer with mixed precision; trainer_fp32.cu has none

   A network of three layers learns to classify points as a random network does, which it never sees.
   In the middle layer each quarter of the outputs sees a quarter of the inputs: a batch of products.
   cuBLAS multiplies, except for the few outputs of the last layer. This file has the kernels for
   those and for everything else, Adam among them.

   An fp32 trainer adds the lines AMP 1 to AMP 30, which alone stand between #ifndef FP32 and #endif.
   With them cuBLAS's products run on fp16 tensor cores, the loss is scaled, and a step whose
   gradients overflow is skipped. The host never waits for the GPU, so Adam reads its step count,
   that of the steps taken, in device memory. Lines 11 to 18 (with 7 and 24, which they need) are
   optional: they add the first layer's bias inside its product.
   AMP_DTYPE=bf16 in the environment, or fp32, changes the type.

   BUILD AND RUN, in the directory of amp.h:

       nvcc -O3 -arch=native -I. examples/cublas/trainer_fp32.cu -lcublas -o trainer_fp32
       nvcc -O3 -arch=native -I. examples/cublas/trainer_amp.cu amp_kernels.cu \
           -lcublas -lcublasLt -o trainer_amp
       ./trainer_fp32            --small: a network and a set of points that fit anywhere
       ./trainer_amp

   Each prints the mean loss and the accuracy on all points, before and after. The accuracies after
   differ by less than 2 percent of the points. */

#include <cublas_v2.h>
#include <cuda_runtime.h>
#ifndef FP32
#define AMP_IMPLEMENTATION                                                              /* AMP 1 */
#define AMP_CUBLAS_DROP_IN                                                              /* AMP 2 */
#include "amp.h"                                                                        /* AMP 3 */
#endif

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------- kernels */

static __device__ int thread(void) { return (int)(blockIdx.x * blockDim.x + threadIdx.x); }

/* With ReLU. */
static __global__ void bias_kernel(float *y, const float *bias, int features, int n) {
    const int i = thread();
    if (i >= n) return;
    const float sum = y[i] + bias[i % features];
    y[i]            = sum < 0.0f ? 0.0f : sum;
}

/* Of the mean over the batch; one thread a sample. */
static __global__ void cross_entropy_kernel(float *grad, const float *logits, const int *labels,
                                            int classes, int batch, float *loss, int *correct) {
    const int s = thread();
    if (s >= batch) return;
    const float *z    = logits + s * classes;
    float        most = z[0], sum = 0.0f;
    int          best = 0;
    for (int c = 1; c < classes; c++)
        if (z[c] > most) most = z[best = c];
    for (int c = 0; c < classes; c++) sum += expf(z[c] - most);
    for (int c = 0; c < classes; c++)
        grad[s * classes + c] =
            (expf(z[c] - most) / sum - (c == labels[s] ? 1.0f : 0.0f)) / (float)batch;
    atomicAdd(loss, logf(sum) + most - z[labels[s]]);
    atomicAdd(correct, best == labels[s]);
}

static __global__ void relu_grad_kernel(float *grad, const float *y, int n) {
    const int i = thread();
    if (i < n && y[i] <= 0.0f) grad[i] = 0.0f;
}

static __global__ void bias_grad_kernel(float *bias_grad, const float *grad, int features,
                                        int batch) {
    const int f   = thread();
    float     sum = 0.0f;
    if (f >= features) return;
    for (int s = 0; s < batch; s++) sum += grad[s * features + f];
    bias_grad[f] = sum;
}

/* y = w x + bias of few outputs: a block for each sample, a thread for each output. */
static __global__ void narrow_kernel(float *y, const float *w, const float *bias, const float *x,
                                     int in) {
    extern __shared__ float sample[];
    const int o = (int)threadIdx.x, out = (int)blockDim.x, s = (int)blockIdx.x;
    float     sum = bias[o];
    for (int i = o; i < in; i += out) sample[i] = x[s * in + i];
    __syncthreads();
    for (int i = 0; i < in; i++) sum += w[i * out + o] * sample[i];
    y[s * out + o] = sum;
}

static __global__ void adam_kernel(float *w, float *m, float *v, const float *grad, float lr,
                                   int step, int n
#ifndef FP32
                                   , const amp_scaler *scaler                           /* AMP 4 */
#endif
) {
    const int i = thread();
    if (i >= n) return;
#ifndef FP32
    if (scaler->found_inf) return;                                                      /* AMP 5 */
    step = (int)scaler->good + 1;                                                       /* AMP 6 */
#endif
    const float t    = (float)step;
    const float rate = lr * sqrtf(1.0f - powf(0.999f, t)) / (1.0f - powf(0.9f, t));
    m[i] += 0.1f * (grad[i] - m[i]);
    v[i] += 0.001f * (grad[i] * grad[i] - v[i]);
    w[i] -= rate * m[i] / (sqrtf(v[i]) + 1e-8f);
}

/* -------------------------------------------------------------------------------------- errors */

template <class E> static const char *text_of(E) { return "of cuBLAS or amp.h"; }
static const char *text_of(cudaError_t error) {
    return error == cudaErrorInsufficientDriver ? "no NVIDIA driver, or one that is too old"
                                                : cudaGetErrorString(error);
}

/* What CUDA, cuBLAS and amp.h return is 0 if all went well. */
template <class E> static void ok(E error) {
    if ((int)error == 0) return;
    fprintf(stderr, "trainer: error %d of the GPU: %s\n", (int)error, text_of(error));
    exit(1);
}

/* ---------------------------------------------------------------------------------- the network */

enum { DEPTH = 3 };
static const int groups[DEPTH] = {1, 4, 1};

struct sizes { int width[DEPTH + 1], batch, samples, steps; float lr; };
static const sizes small_size = {{32, 64, 64, 8}, 64, 1024, 300, 0.003f};
static sizes       size       = {{256, 1024, 1024, 16}, 1024, 16384, 600, 0.001f};

static cudaStream_t   stream;
static cublasHandle_t blas;

/* Matrices are column-major, a column is a sample; weights are outputs x inputs, of each group. */
static int    num_params;
static float *params, *grads, *adam_m, *adam_v; /* of all layers, one behind the other */
static float *w[DEPTH], *bias[DEPTH], *w_grad[DEPTH], *bias_grad[DEPTH];
static float *x, *y[DEPTH + 1], *dy[DEPTH + 1]; /* y[0]: the batch's inputs, inside x */
static int    num[DEPTH + 1];                    /* elements of y[l] and dy[l] */
static int   *labels;
static float *loss;
static int   *correct;
#ifndef FP32
static cublasHandle_t amp_blas;                                                         /* AMP 7 */
static amp_backend gpu;                                                                 /* AMP 8 */
static amp_session mp;                                                                  /* AMP 9 */
#endif

static int blocks(int n) { return (n + 127) / 128; } /* of 128 threads, for n */

static void *on_device(const void *host, size_t bytes) { /* zeros if host is NULL */
    void *p = NULL;
    ok(cudaMalloc(&p, bytes));
    ok(host ? cudaMemcpy(p, host, bytes, cudaMemcpyHostToDevice) : cudaMemset(p, 0, bytes));
    return p;
}

static float *zeros(int n) { return (float *)on_device(NULL, (size_t)n * sizeof(float)); }

static float uniform(void) { /* in (-1, 1) */
    static uint32_t state = 1;
    state                 = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / 8388608.0f - 1.0f;
}

static void make_network(void) {
    float *host, *at;
    for (int l = 0; l < DEPTH; l++)
        num_params += (size.width[l] / groups[l] + 1) * size.width[l + 1];
    for (int l = 0; l <= DEPTH; l++) num[l] = size.width[l] * size.batch;
    host = at = (float *)calloc((size_t)num_params, sizeof *host);
    params    = zeros(num_params);
    grads     = zeros(num_params);
    adam_m    = zeros(num_params);
    adam_v    = zeros(num_params);
    for (int l = 0; l < DEPTH; l++) {
        const int n = size.width[l] / groups[l] * size.width[l + 1];
        w[l]         = params + (at - host);
        w_grad[l]    = grads + (at - host);
        bias[l]      = w[l] + n;
        bias_grad[l] = w_grad[l] + n;
#ifndef FP32
        ok(amp_session_add(&mp, w[l], (size_t)n));                                      /* AMP 10 */
#endif
        for (int i = 0; i < n; i++)
            at[i] = uniform() * sqrtf(6.0f * (float)groups[l] / (float)size.width[l]);
        at += n + size.width[l + 1];
        y[l + 1]  = zeros(num[l + 1]);
        dy[l + 1] = zeros(num[l + 1]);
    }
    ok(cudaMemcpy(params, host, (size_t)num_params * sizeof *host, cudaMemcpyHostToDevice));
    free(host);
}

static void make_points(void) {
    enum { HIDDEN = 16 };
    const int in = size.width[0], classes = size.width[DEPTH];
    float    *points = (float *)malloc((size_t)(in * size.samples) * sizeof *points);
    float    *u      = (float *)malloc((size_t)(HIDDEN * in) * sizeof *u);
    float    *v      = (float *)malloc((size_t)(HIDDEN * classes) * sizeof *v);
    int      *answer = (int *)malloc((size_t)size.samples * sizeof *answer);
    for (int i = 0; i < HIDDEN * in; i++) u[i] = uniform();
    for (int i = 0; i < HIDDEN * classes; i++) v[i] = uniform();
    for (int s = 0; s < size.samples; s++) {
        float h[HIDDEN], best = 0.0f;
        for (int i = 0; i < in; i++) points[s * in + i] = uniform();
        for (int j = 0; j < HIDDEN; j++) {
            h[j] = 0.0f;
            for (int i = 0; i < in; i++) h[j] += u[j * in + i] * points[s * in + i];
        }
        for (int c = 0; c < classes; c++) {
            float score = 0.0f;
            for (int j = 0; j < HIDDEN; j++) score += v[c * HIDDEN + j] * tanhf(h[j]);
            if (c == 0 || score > best) best = score, answer[s] = c;
        }
    }
    x       = (float *)on_device(points, (size_t)(in * size.samples) * sizeof *points);
    labels  = (int *)on_device(answer, (size_t)size.samples * sizeof *answer);
    loss    = zeros(1);
    correct = (int *)zeros(1);
    free(points), free(u), free(v), free(answer);
}

static const float one = 1.0f, zero = 0.0f;

/* C = op(A) op(B), for each group of a layer. */
static void multiply(int layer, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                     const float *a, int lda, int stride_a, const float *b, int ldb, int stride_b,
                     float *c, int ldc, int stride_c) {
    if (groups[layer] == 1)
        ok(cublasSgemm(blas, op_a, op_b, m, n, k, &one, a, lda, b, ldb, &zero, c, ldc));
    else
        ok(cublasSgemmStridedBatched(blas, op_a, op_b, m, n, k, &one, a, lda, stride_a, b, ldb,
                                     stride_b, &zero, c, ldc, stride_c, groups[layer]));
}

/* Of the batch that starts at sample first, up to the gradient of the logits. */
static void forward(int first) {
    y[0] = x + first * size.width[0];
    for (int l = 0; l < DEPTH; l++) {
        const int in = size.width[l], out = size.width[l + 1], i = in / groups[l],
                  o = out / groups[l];
        if (l == DEPTH - 1) {
            narrow_kernel<<<size.batch, out, in * sizeof(float), stream>>>(y[l + 1], w[l], bias[l],
                                                                           y[l], in);
            break;
        }
#ifndef FP32
        if (groups[l] == 1) {                                                           /* AMP 11 */
            amp_gemm_args g = {}; /* row-major: y = x w, a row is a sample */           /* AMP 12 */
            g.m = (size_t)size.batch, g.n = (size_t)out, g.k = (size_t)in;              /* AMP 13 */
            g.a = y[l], g.b = w[l], g.c = y[l + 1];                                     /* AMP 14 */
            g.bias = bias[l], g.activation = AMP_ACTIVATION_RELU;                       /* AMP 15 */
            ok(amp_gemm(&gpu, &g));                                                     /* AMP 16 */
            continue;                                                                   /* AMP 17 */
        }                                                                               /* AMP 18 */
#endif
        multiply(l, CUBLAS_OP_N, CUBLAS_OP_N, o, size.batch, i, w[l], o, o * i, y[l], in, i,
                 y[l + 1], out, o);
        bias_kernel<<<blocks(num[l + 1]), 128, 0, stream>>>(y[l + 1], bias[l], out, num[l + 1]);
    }
    cross_entropy_kernel<<<blocks(size.batch), 128, 0, stream>>>(
        dy[DEPTH], y[DEPTH], labels + first, size.width[DEPTH], size.batch, loss, correct);
    ok(cudaGetLastError());
}

static void backward(void) {
    for (int l = DEPTH - 1; l >= 0; l--) {
        const int in = size.width[l], out = size.width[l + 1], i = in / groups[l],
                  o = out / groups[l];
        bias_grad_kernel<<<blocks(out), 128, 0, stream>>>(bias_grad[l], dy[l + 1], out,
                                                          size.batch);
        multiply(l, CUBLAS_OP_N, CUBLAS_OP_T, o, i, size.batch, dy[l + 1], out, o, y[l], in, i,
                 w_grad[l], o, o * i);
        if (l == 0) return;
        multiply(l, CUBLAS_OP_T, CUBLAS_OP_N, i, size.batch, o, w[l], o, o * i, dy[l + 1], out, o,
                 dy[l], in, i);
        relu_grad_kernel<<<blocks(num[l]), 128, 0, stream>>>(dy[l], y[l], num[l]);
    }
}

static void train_step(int step) {
    forward(step * size.batch % size.samples);
#ifndef FP32
    ok(amp_cuda_scale_loss(dy[DEPTH], AMP_F32, num[DEPTH], &mp.scaler->scale, stream)); /* AMP 19 */
#endif
    backward();
#ifndef FP32
    ok(amp_cuda_scaler_unscale(mp.scaler, grads, grads, AMP_F32, num_params, stream));  /* AMP 20 */
#endif
    adam_kernel<<<blocks(num_params), 128, 0, stream>>>(
        params, adam_m, adam_v, grads, size.lr, step + 1, num_params
#ifndef FP32
        , mp.scaler                                                                     /* AMP 21 */
#endif
    );
    ok(cudaGetLastError());
#ifndef FP32
    ok(amp_cuda_scaler_update(mp.scaler, stream));                                      /* AMP 22 */
    amp_session_changed(&mp, 0);                                                        /* AMP 23 */
#endif
}

static void report(const char *when) {
    float sum   = 0.0f;
    int   right = 0;
    ok(cudaMemsetAsync(loss, 0, sizeof *loss, stream));
    ok(cudaMemsetAsync(correct, 0, sizeof *correct, stream));
    for (int first = 0; first < size.samples; first += size.batch) forward(first);
    ok(cudaStreamSynchronize(stream));
    ok(cudaMemcpy(&sum, loss, sizeof sum, cudaMemcpyDeviceToHost));
    ok(cudaMemcpy(&right, correct, sizeof right, cudaMemcpyDeviceToHost));
    printf("%-7s loss %.4f accuracy %.2f%%\n", when, sum / (float)size.samples,
           100.0 * right / size.samples);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--small") == 0) size = small_size;
    else if (argc > 1) {
        fprintf(stderr, "usage: trainer [--small]\n");
        return 2;
    }
    ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    ok(cublasCreate(&blas));
    ok(cublasSetStream(blas, stream));
#ifndef FP32
    ok(cublasCreate(&amp_blas));                                                        /* AMP 24 */
    ok(amp_cuda_backend(&gpu, stream, amp_blas));                                       /* AMP 25 */
    amp_session_desc room = {};                                                         /* AMP 26 */
    room.backend   = &gpu;                                                              /* AMP 27 */
    room.num_bytes = 100 << 20;                                                         /* AMP 28 */
    ok(amp_session_start(&mp, &room));                                                  /* AMP 29 */
#endif
    make_network();
    make_points();
    ok(cudaDeviceSynchronize());
    report("before");
    for (int step = 0; step < size.steps; step++) train_step(step);
    report("after");
#ifndef FP32
    amp_session_end(&mp);                                                               /* AMP 30 */
#endif
    return 0;
}
