/* bench_cuda.cu - the fused step on a GPU, beside a copy of device memory in the same run.

   nvcc -O2 -arch=native -I. tests/bench/bench_cuda.cu amp_kernels.cu \
       -lcublas -lcublasLt -o bench_cuda
   ./bench_cuda [largest number of parameters, default 1000000000]

   Step and copy take turns; medians of all rounds, with quartiles. A step of AdamW with fp16
   gradients and fp16 model copies moves 30 bytes per parameter, a copy of n bytes 2 n. */

#define AMP_IMPLEMENTATION
#include "amp.h"

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>

enum { ROUNDS = 21, BYTES = 30 };

static void must(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "bench_cuda: %s failed (CUDA: %s)\n", what,
            cudaGetErrorString(cudaGetLastError()));
    exit(1);
}

static cudaStream_t stream;
static cudaEvent_t  before, after;

template <class F> static double milliseconds(int times, F work) {
    float ms = 0.0f;
    must(cudaEventRecord(before, stream) == cudaSuccess, "cudaEventRecord");
    for (int i = 0; i < times; i++) work();
    must(cudaEventRecord(after, stream) == cudaSuccess, "cudaEventRecord");
    must(cudaEventSynchronize(after) == cudaSuccess, "cudaEventSynchronize");
    must(cudaEventElapsedTime(&ms, before, after) == cudaSuccess, "cudaEventElapsedTime");
    return ms / times;
}

struct sample {
    double at[ROUNDS];
    double quantile(double q) {
        std::sort(at, at + ROUNDS);
        return at[(int)(q * (ROUNDS - 1) + 0.5)];
    }
};

/* One model of num_tensors equal tensors. */
static void measure(size_t n, size_t num_tensors, float max_norm) {
    const size_t       part = n / num_tensors;
    const int          times = n < 20000000 ? 50 : 5;
    amp_optimizer      opt;
    amp_optimizer_desc desc = {};
    amp_backend        gpu;
    cudaGraph_t        graph;
    cudaGraphExec_t    replay;
    sample             copy, step, check, graphed;
    void              *weights, *grads, *from, *to;
    n = part * num_tensors;
    must(amp_cuda_backend(&gpu, stream, NULL) == AMP_OK, "amp_cuda_backend");
    desc.backend  = &gpu;
    desc.dtype    = AMP_F16;
    desc.kind     = AMP_KIND_ADAMW;
    desc.max_norm = max_norm;
    must(amp_optimizer_init(&opt, &desc) == AMP_OK, "amp_optimizer_init");
    must(cudaMalloc(&weights, 4 * n) == cudaSuccess && cudaMalloc(&grads, 2 * n) == cudaSuccess &&
             cudaMalloc(&from, BYTES / 2 * n) == cudaSuccess &&
             cudaMalloc(&to, BYTES / 2 * n) == cudaSuccess,
         "cudaMalloc");
    must(cudaMemsetAsync(weights, 0x3c, 4 * n, stream) == cudaSuccess, "cudaMemset");
    must(cudaMemsetAsync(grads, 0x2c, 2 * n, stream) == cudaSuccess, "cudaMemset");
    for (size_t i = 0; i < num_tensors; i++) {
        amp_tensor t = {};
        t.n         = part;
        t.weight    = (float *)weights + i * part;
        t.grad      = (uint16_t *)grads + i * part;
        t.grad_type = AMP_F16;
        must(amp_optimizer_add(&opt, &t) == AMP_OK, "amp_optimizer_add");
    }
    must(amp_optimizer_prepare(&opt) == AMP_OK, "amp_optimizer_prepare");
    amp_optimizer_set_lr(&opt, 1e-4f);
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess &&
             amp_optimizer_step(&opt) == AMP_OK &&
             cudaStreamEndCapture(stream, &graph) == cudaSuccess &&
             cudaGraphInstantiate(&replay, graph, 0) == cudaSuccess,
         "capture");
    for (int r = -1; r < ROUNDS; r++) { /* round -1 warms up */
        const double a = milliseconds(times, [&] {
            cudaMemcpyAsync(to, from, BYTES / 2 * n, cudaMemcpyDeviceToDevice, stream);
        });
        const double b = milliseconds(times, [&] { amp_optimizer_adamw(&opt, 1e-4f); });
        const double c = milliseconds(times, [&] { gpu.check_fn(&opt.backend, opt.plan); });
        const double d = milliseconds(times, [&] { cudaGraphLaunch(replay, stream); });
        if (r < 0) continue;
        copy.at[r]    = a;
        step.at[r]    = b;
        check.at[r]   = c;
        graphed.at[r] = d;
    }
    printf("%10zu %7zu %5s %9.4f [%.4f %.4f] %8.4f %9.4f %9.4f %8.0f %8.3f\n", n, num_tensors,
           max_norm > 0.0f ? "yes" : "no", step.quantile(0.5), step.quantile(0.25),
           step.quantile(0.75), check.quantile(0.5), graphed.quantile(0.5), copy.quantile(0.5),
           BYTES * (double)n / step.quantile(0.5) / 1e6, copy.quantile(0.5) / step.quantile(0.5));
    amp_optimizer_free(&opt);
    cudaGraphExecDestroy(replay);
    cudaGraphDestroy(graph);
    cudaFree(weights);
    cudaFree(grads);
    cudaFree(from);
    cudaFree(to);
}

int main(int argc, char **argv) {
    static const size_t sizes[][2] = {{1000000, 20},    {10000000, 50},   {10000000, 10000},
                                      {100000000, 148}, {124475904, 148}, {1000000000, 580}};
    const size_t   most = argc > 1 ? (size_t)atof(argv[1]) : 1000000000;
    cudaDeviceProp device;
    int            driver = 0, runtime = 0;
    if (cudaGetDeviceProperties(&device, 0) != cudaSuccess) {
        fprintf(stderr, "bench_cuda: no CUDA device: %s\n",
                cudaGetErrorString(cudaGetLastError()));
        return 1;
    }
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    printf("# %s, compute capability %d.%d, driver %d, runtime %d\n", device.name, device.major,
           device.minor, driver, runtime);
    printf("# ms, medians of %d rounds; A is the check alone; ratio: copy / step, of %d bytes per "
           "parameter each\n", ROUNDS, BYTES);
    printf("%10s %7s %5s %9s %-17s %8s %9s %9s %8s %8s\n", "parameters", "tensors", "clip", "step",
           "[quartiles]", "A", "graph", "copy", "GB/s", "ratio");
    must(cudaStreamCreate(&stream) == cudaSuccess && cudaEventCreate(&before) == cudaSuccess &&
             cudaEventCreate(&after) == cudaSuccess, "cudaStreamCreate");
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int clip = 0; clip < 2; clip++)
            if (sizes[i][0] <= most) measure(sizes[i][0], sizes[i][1], clip ? 1.0f : 0.0f);
    return 0;
}
