/* saxpy_amp.cu - a cuBLAS trainer without a kernel of its own, with mixed precision

   A linear model of several outputs learns by SGD with momentum. Products are cublasSgemm, the step
   is cublasSscal and cublasSaxpy. No kernel could look at found_inf, so the host reads it: one
   cudaMemcpy, which waits for the GPU once a step. The trainer adds the lines AMP 1 to AMP 20, and
   prints the scaler at its end. With them the products run on fp16 tensor cores, and a step whose
   gradients overflow is skipped. In step 100 they overflow on purpose.

   BUILD AND RUN, in the directory of amp.h:

       nvcc -O3 -arch=native -I. examples/cublas/saxpy_amp.cu amp_kernels.cu \
           -lcublas -lcublasLt -o saxpy_amp
       ./saxpy_amp

   It prints the mean squared error before and after, and the number of skipped steps. The error
   after is below 1e-4. At least one step is skipped, more if the first scale is too large. */

#include <cublas_v2.h>
#include <cuda_runtime.h>
#define AMP_IMPLEMENTATION                                                              /* AMP 1 */
#define AMP_CUBLAS_DROP_IN                                                              /* AMP 2 */
#include "amp.h"                                                                        /* AMP 3 */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { IN = 64, OUT = 32, SAMPLES = 256, STEPS = 300 };

/* What CUDA, cuBLAS and amp.h return is 0 if all went well. */
template <class E> static void ok(E error) {
    if ((int)error == 0) return;
    fprintf(stderr, "saxpy_amp: error %d of the GPU or its driver\n", (int)error);
    exit(1);
}

static float uniform(void) { /* in (-1, 1) */
    static uint32_t state = 1;
    state                 = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / 8388608.0f - 1.0f;
}

static float *on_device(const float *host, int n) { /* zeros if host is NULL */
    float       *p     = NULL;
    const size_t bytes = (size_t)n * sizeof *p;
    ok(cudaMalloc((void **)&p, bytes));
    ok(host ? cudaMemcpy(p, host, bytes, cudaMemcpyHostToDevice) : cudaMemset(p, 0, bytes));
    return p;
}

static cublasHandle_t blas;
static float         *x, *y, *w, *grad, *momentum, *error; /* column-major; a column is a sample */

/* error = w x - y */
static void forward(void) {
    const float one = 1.0f, minus = -1.0f;
    ok(cudaMemcpyAsync(error, y, OUT * SAMPLES * sizeof *y, cudaMemcpyDeviceToDevice));
    ok(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, OUT, SAMPLES, IN, &one, w, OUT, x, IN, &minus,
                   error, OUT));
}

static double mean_square(void) {
    static float host[OUT * SAMPLES];
    double       sum = 0.0;
    forward();
    ok(cudaMemcpy(host, error, sizeof host, cudaMemcpyDeviceToHost));
    for (float e : host) sum += (double)e * (double)e;
    return sum / (OUT * SAMPLES);
}

int main(void) {
    static float host_x[IN * SAMPLES], host_y[OUT * SAMPLES], truth[OUT * IN];
    const float  mean = 2.0f / SAMPLES, zero = 0.0f, keep = 0.9f, one = 1.0f, rate = -0.05f;
    for (float &v : host_x) v = uniform();
    for (float &v : truth) v = uniform();
    for (int s = 0; s < SAMPLES; s++)
        for (int o = 0; o < OUT; o++)
            for (int i = 0; i < IN; i++)
                host_y[s * OUT + o] += truth[i * OUT + o] * host_x[s * IN + i];
    ok(cublasCreate(&blas));
    x = on_device(host_x, IN * SAMPLES), y = on_device(host_y, OUT * SAMPLES);
    w = on_device(NULL, OUT * IN), grad = on_device(NULL, OUT * IN);
    momentum = on_device(NULL, OUT * IN), error = on_device(NULL, OUT * SAMPLES);
    amp_backend gpu;                                                                    /* AMP 4 */
    amp_session mp = {};                                                                /* AMP 5 */
    ok(amp_cuda_backend(&gpu, NULL, NULL));                                             /* AMP 6 */
    amp_session_desc room = {};                                                         /* AMP 7 */
    room.backend   = &gpu;                                                              /* AMP 8 */
    room.num_bytes = 1 << 20;                                                           /* AMP 9 */
    ok(amp_session_start(&mp, &room));                                                  /* AMP 10 */
    ok(amp_session_add(&mp, w, OUT * IN));                                              /* AMP 11 */
    printf("before  error %.6f\n", mean_square());
    for (int step = 0; step < STEPS; step++) {
        forward();
        if (step == 100) ok(cudaMemset(error, 0x7f, sizeof *error)); /* 3.4e38 */
        ok(amp_cuda_scale_loss(error, AMP_F32, OUT * SAMPLES, &mp.scaler->scale, NULL));/* AMP 12 */
        ok(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_T, OUT, IN, SAMPLES, &mean, error, OUT, x, IN,
                       &zero, grad, OUT));
        uint32_t found_inf;                                                             /* AMP 13 */
        ok(amp_cuda_scaler_unscale(mp.scaler, grad, grad, AMP_F32, OUT * IN, NULL));    /* AMP 14 */
        ok(cudaMemcpy(&found_inf, &mp.scaler->found_inf, 4, cudaMemcpyDeviceToHost));   /* AMP 15 */
        if (!found_inf) {                                                               /* AMP 16 */
            ok(cublasSscal(blas, OUT * IN, &keep, momentum, 1));
            ok(cublasSaxpy(blas, OUT * IN, &one, grad, 1, momentum, 1));
            ok(cublasSaxpy(blas, OUT * IN, &rate, momentum, 1, w, 1));
        }                                                                               /* AMP 17 */
        ok(amp_cuda_scaler_update(mp.scaler, NULL));                                    /* AMP 18 */
        amp_session_changed(&mp, w);                                                    /* AMP 19 */
    }
    amp_scaler scaler;
    ok(cudaMemcpy(&scaler, mp.scaler, sizeof scaler, cudaMemcpyDeviceToHost));
    printf("after   error %.6f\nskipped %d of %d, scale %g\n", mean_square(), (int)scaler.skipped,
           STEPS, (double)scaler.scale);
    amp_session_end(&mp);                                                               /* AMP 20 */
    return 0;
}
