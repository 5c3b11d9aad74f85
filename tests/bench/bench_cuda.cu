/* bench_cuda.cu - the fused step on a GPU, beside a copy of device memory in the same run.

   nvcc -O2 -arch=native -I. tests/bench/bench_cuda.cu amp_kernels.cu \
       -lcublas -lcublasLt -o bench_cuda
   ./bench_cuda [--quick] [largest number of parameters, default 1000000000]

   Prints rows "name,what,n,tensors,unit,value,low,high", like torch_step.py: medians of all rounds,
   with quartiles, between comments that start with #. Everything that is measured takes turns with
   everything else of its model. AdamW with fp16 gradients and fp16 copies moves 30 bytes for each
   parameter in a step, as a copy of 15 bytes does. What:

       step, step-clip      amp_optimizer_adamw, without and with clipping; two launches
       graph, graph-clip    the same, replayed from a CUDA graph
       overflow             a step that finds an inf and is skipped
       check                the first of a step's two launches alone
       copy                 cudaMemcpyAsync from device to device: reads and writes 15 bytes each
       cast, scale-loss, ...  functions for single arrays, in GB/s read and written

   --quick: small models and few rounds, to see that it works. */

#define AMP_IMPLEMENTATION
#include "amp.h"

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <chrono>
#include <vector>

enum { BYTES = 30, ROUNDS = 21, LEAST_ROUNDS = 5, SECONDS = 6 /* for one model */ };

static bool quick;

static void must(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "bench_cuda: %s\n", what);
    exit(1);
}

static void good(cudaError_t error) { must(error == cudaSuccess, cudaGetErrorString(error)); }
static void good(amp_result result) {
    if (result == AMP_ERROR_CUDA) good((cudaError_t)amp_cuda_code());
    must(result == AMP_OK, amp_result_string(result));
}

static cudaStream_t stream;
static cudaEvent_t  before, after;

static double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

template <class F> static double milliseconds(int times, F work) {
    float ms = 0.0f;
    good(cudaEventRecord(before, stream));
    for (int i = 0; i < times; i++) good(work());
    good(cudaEventRecord(after, stream));
    good(cudaEventSynchronize(after));
    good(cudaEventElapsedTime(&ms, before, after));
    return ms / times;
}

struct sample {
    std::vector<double> at;

    double quantile(double q) {
        std::sort(at.begin(), at.end());
        return at[(size_t)(q * (double)(at.size() - 1) + 0.5)];
    }
    /* in ms or, if a run moves bytes, in GB/s */
    void print(const char *what, size_t n, size_t tensors, double bytes = 0.0) {
        if (bytes > 0.0)
            for (double &x : at) x = x > 0.0 ? bytes / x / 1e6 : 0.0;
        printf("amp,%s,%zu,%zu,%s,%.5g,%.5g,%.5g\n", what, n, tensors, bytes > 0.0 ? "GB/s" : "ms",
               quantile(0.5), quantile(0.25), quantile(0.75));
        fflush(stdout);
    }
};

/* ------------------------------------------------------- gradients and weights as they occur */

static __device__ uint32_t scrambled(uint64_t i) {
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    return (uint32_t)(x >> 32);
}

/* fp16 of both signs over nine powers of two, the middle ones most often; one in eight is zero, and
   so is one row of 512 in four, as of an embedding whose token did not occur. */
static __global__ void fill(float *weights, uint16_t *grads, uint64_t n) {
    uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < n; i += (uint64_t)gridDim.x * blockDim.x) {
        const uint32_t u = scrambled(i);
        uint32_t       exponent = 9;
        for (int b = 0; b < 8; b++) exponent += u >> (16 + b) & 1u;
        const bool zero = (u >> 24 & 7u) == 0 || (scrambled(~(i / 512)) & 3u) == 0;
        grads[i]        = zero ? 0 : (uint16_t)((u >> 31) << 15 | exponent << 10 | (u & 1023u));
        weights[i]      = (float)(int32_t)u * 2e-11f;
    }
}

static void fill_on_device(float *weights, uint16_t *grads, uint64_t n) {
    void          *arguments[] = {&weights, &grads, &n};
    const unsigned blocks      = n < 1000000 ? 4 : 4096;
    good(cudaLaunchKernel((const void *)fill, dim3(blocks), dim3(256), arguments, 0, stream));
}

/* ------------------------------------------------------------------------------ models */

struct model {
    amp_optimizer   opt;
    cudaGraphExec_t replay;
};

/* Equal tensors in one array of weights and one of gradients. */
static void prepare(model *m, amp_backend *gpu, float *weights, uint16_t *grads, size_t part,
                    size_t num_tensors, float max_norm) {
    amp_optimizer_desc desc = {};
    cudaGraph_t        graph;
    desc.backend  = gpu;
    desc.dtype    = AMP_F16;
    desc.kind     = AMP_KIND_ADAMW;
    desc.max_norm = max_norm;
    good(amp_optimizer_init(&m->opt, &desc));
    for (size_t i = 0; i < num_tensors; i++) {
        amp_tensor t = {};
        t.n         = part;
        t.weight    = weights + i * part;
        t.grad      = grads + i * part;
        t.grad_type = AMP_F16;
        good(amp_optimizer_add(&m->opt, &t));
    }
    good(amp_optimizer_prepare(&m->opt));
    good(amp_optimizer_set_lr(&m->opt, 1e-4f));
    good(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    good(amp_optimizer_step(&m->opt));
    good(cudaStreamEndCapture(stream, &graph));
#if CUDART_VERSION >= 12000
    good(cudaGraphInstantiate(&m->replay, graph, 0));
#else
    good(cudaGraphInstantiate(&m->replay, graph, NULL, NULL, 0));
#endif
    cudaGraphDestroy(graph);
}

static void release(model *m) {
    cudaGraphExecDestroy(m->replay);
    amp_optimizer_free(&m->opt);
}

/* One model with and without clipping: what is measured takes turns. */
static void measure(amp_backend *gpu, size_t n, size_t num_tensors) {
    const size_t   part  = n / num_tensors;
    const int      times = quick ? 1 : n < 20000000 ? 50 : 5;
    const uint16_t inf   = 0x7c00;
    const double   start = seconds();
    model          plain, clip;
    amp_status     status;
    void          *weights = NULL, *grads = NULL, *from = NULL, *to = NULL;
    size_t         have = 0, total = 0;
    sample         copy, check, step, step_clip, graph, graph_clip, overflow;
    n = part * num_tensors;
    good(cudaMemGetInfo(&have, &total));
    if (have / 62 < n) { /* weights, gradients, two times moments and copies, two sides of a copy */
        printf("# no memory for %zu parameters\n", n);
        return;
    }
    good(cudaMalloc(&weights, 4 * n));
    good(cudaMalloc(&grads, 2 * n));
    good(cudaMalloc(&from, BYTES / 2 * n));
    good(cudaMalloc(&to, BYTES / 2 * n));
    fill_on_device((float *)weights, (uint16_t *)grads, n);
    prepare(&plain, gpu, (float *)weights, (uint16_t *)grads, part, num_tensors, 0.0f);
    prepare(&clip, gpu, (float *)weights, (uint16_t *)grads, part, num_tensors, 1.0f);

    const auto copying = [&] {
        return cudaMemcpyAsync(to, from, BYTES / 2 * n, cudaMemcpyDeviceToDevice, stream);
    };
    const auto stepping = [&] { return amp_optimizer_adamw(&plain.opt, 1e-4f); };
    const int rounds = quick ? 3 : ROUNDS;
    for (int r = -1; r < rounds; r++) { /* round -1 warms up, and fills the moments */
        const double a = milliseconds(times, copying);
        const double b = milliseconds(times, stepping);
        const double c = milliseconds(times, [&] { return cudaGraphLaunch(plain.replay, stream); });
        const double d = milliseconds(times, [&] { return amp_optimizer_adamw(&clip.opt, 1e-4f); });
        const double e = milliseconds(times, [&] { return cudaGraphLaunch(clip.replay, stream); });
        const double f =
            milliseconds(times, [&] { return gpu->functions->check_fn(&plain.opt.backend, plain.opt.plan); });
        if (r < 0) continue;
        copy.at.push_back(a), step.at.push_back(b), graph.at.push_back(c);
        step_clip.at.push_back(d), graph_clip.at.push_back(e), check.at.push_back(f);
        if (r >= LEAST_ROUNDS && seconds() - start > SECONDS) break;
    }
    good(amp_optimizer_status(&plain.opt, &status));
    must(status.skipped == 0, "a finite step was skipped");
    good(cudaMemcpy((uint16_t *)grads + n / 2, &inf, 2, cudaMemcpyHostToDevice));
    for (int r = 0; r < LEAST_ROUNDS; r++)
        overflow.at.push_back(milliseconds(times, stepping));
    good(amp_optimizer_status(&plain.opt, &status));
    must(status.skipped == (uint64_t)(LEAST_ROUNDS * times), "an overflow was not found");
    step.print("step", n, num_tensors);
    graph.print("graph", n, num_tensors);
    step_clip.print("step-clip", n, num_tensors);
    graph_clip.print("graph-clip", n, num_tensors);
    overflow.print("overflow", n, num_tensors);
    check.print("check", n, num_tensors);
    copy.print("copy", n, num_tensors);
    release(&plain);
    release(&clip);
    cudaFree(weights);
    cudaFree(grads);
    cudaFree(from);
    cudaFree(to);
}

/* ------------------------------------------------------------------------ single arrays */

template <class F> static void rate(const char *what, size_t n, double bytes, F work) {
    sample s;
    for (int r = -1; r < (quick ? 3 : ROUNDS); r++) {
        const double ms = milliseconds(quick ? 1 : 5, work);
        if (r >= 0) s.at.push_back(ms);
    }
    s.print(what, n, 1, bytes * (double)n);
}

static void measure_arrays(size_t n) {
    amp_scaler *scaler  = NULL;
    void       *weights = NULL, *grads = NULL, *to = NULL;
    amp_scaler  initial;
    good(amp_scaler_init(&initial, NULL));
    initial.scale = 1.0f; /* so that unscaling again and again changes nothing */
    good(cudaMalloc((void **)&scaler, sizeof *scaler));
    good(cudaMalloc(&weights, 4 * n));
    good(cudaMalloc(&grads, 2 * n));
    good(cudaMalloc(&to, 4 * n));
    good(cudaMemcpy(scaler, &initial, sizeof initial, cudaMemcpyHostToDevice));
    fill_on_device((float *)weights, (uint16_t *)grads, n);
    rate("array-copy", n, 4, [&] {
        return cudaMemcpyAsync(to, grads, 2 * n, cudaMemcpyDeviceToDevice, stream);
    });
    rate("cast-f32-f16", n, 6, [&] {
        return amp_cuda_cast(to, AMP_F16, weights, AMP_F32, n, stream);
    });
    rate("cast-f16-f32", n, 6, [&] {
        return amp_cuda_cast(to, AMP_F32, grads, AMP_F16, n, stream);
    });
    rate("scaler-check", n, 2, [&] {
        return amp_cuda_scaler_check(scaler, grads, AMP_F16, n, stream);
    });
    rate("scaler-unscale", n, 8, [&] {
        return amp_cuda_scaler_unscale(scaler, weights, AMP_F32, n, stream);
    });
    rate("scaler-unscale-to", n, 6, [&] {
        return amp_cuda_scaler_unscale_to(scaler, (float *)to, grads, AMP_F16, n, stream);
    });
    rate("scale-loss", n, 4, [&] {
        return amp_cuda_scale_loss(grads, AMP_F16, n, &scaler->scale, stream);
    });
    cudaFree(scaler);
    cudaFree(weights);
    cudaFree(grads);
    cudaFree(to);
}

/* A clock that was idle takes its time to rise. */
static void spin(void) {
    const size_t bytes = (size_t)1 << 28;
    const double start = seconds();
    void        *p     = NULL;
    good(cudaMalloc(&p, bytes));
    while (seconds() - start < 0.5)
        milliseconds(8, [&] { return cudaMemsetAsync(p, 0, bytes, stream); });
    cudaFree(p);
}

int main(int argc, char **argv) {
    /* the most wanted first: a visit to a GPU may be short */
    static const size_t full[][2]  = {{124475904, 148}, {1000000, 20},     {10000000, 10000},
                                      {10000000, 50},   {1000000000, 580}};
    static const size_t small[][2] = {{20000, 20}, {5000, 100}};
    size_t         most = 1000000000;
    cudaDeviceProp device;
    amp_backend    gpu;
    int            driver = 0, runtime = 0;
    for (int i = 1; i < argc; i++) {
        char *end = NULL;
        if (strcmp(argv[i], "--quick") == 0) quick = true;
        else if ((most = (size_t)strtod(argv[i], &end)) == 0 || *end != '\0') {
            fprintf(stderr, "usage: bench_cuda [--quick] [largest number of parameters]\n");
            return 2;
        }
    }
    good(cudaGetDeviceProperties(&device, 0));
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    printf("# %s, compute capability %d.%d, driver %d, runtime %d\n", device.name, device.major,
           device.minor, driver, runtime);
    printf("name,what,n,tensors,unit,value,low,high\n");
    good(cudaStreamCreate(&stream));
    good(cudaEventCreate(&before));
    good(cudaEventCreate(&after));
    good(amp_cuda_backend(&gpu, stream, NULL));
    if (!quick) spin();
    const size_t(*sizes)[2] = quick ? small : full;
    const size_t num_sizes  = quick ? sizeof small / sizeof *small : sizeof full / sizeof *full;
    for (size_t i = 0; i < num_sizes; i++) {
        if (sizes[i][0] <= most) measure(&gpu, sizes[i][0], sizes[i][1]);
        if (i == 0) measure_arrays(quick ? 20000 : std::min(most, (size_t)124475904));
    }
    return 0;
}
