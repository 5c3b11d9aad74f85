/* train_cuda.cu - what half precision brings on a GPU, and what its loss scaler costs

   The workload of the R torch article on automatic mixed precision: three linear layers of 4096
   units (here without biases) with ReLU between, batches of 512, mean squared error, SGD with
   learning rate 0.1, 50 batches, 3 epochs, synthetic data. The same training runs in five forms:

       fp32               cuBLAS and an SGD kernel of this file; nothing of amp.h
       TF32               the same on tensor cores, which round operands to 11 bits
       half, no scaler    half operands, activations and gradients, fp32 masters, fused SGD
       half + scaler      the same with dynamic loss scaling; the scale never leaves the GPU
       half + scaler, graph    its whole step captured once in a CUDA graph and replayed

   BUILD AND RUN, in the directory of amp.h:

       nvcc -O3 -arch=native -I. examples/cublas/train_cuda.cu amp_kernels.cu \
           -lcublas -lcublasLt -o train_cuda
       ./train_cuda                                         see also --help; needs 2 GB on the GPU

   READ  forward, backward, train_step, capture; the kernels show how a loop with its own kernels
   meets amp.h: no kernel here converts a number, amp_gemm and amp_cuda_cast do.

   COLUMNS AND LINES

       speed-up      against fp32
       first, last   mean loss of the first epoch and of the last
       learned       by how much the loss fell between them, as a share of fp32's fall
       flushed       of the gradients (of activations; of weights) that are not zero in fp32, the
                     share that half makes zero, in the first step. They are the reason for the
                     scale: the loss is a mean over batch times outputs, so the gradients start at
                     about 1e-6, where fp16 has hardly any bits left; see examples/pitfalls.c
       scaler's share    (half + scaler - half, no scaler) / half + scaler, from the seconds
       the check     amp_cuda_scaler_unscale of all gradients to NULL, in the same number of steps.
                     The fused step makes it without a scaler too, for the norm, so the share above
                     leaves it out

   Weight gradients are half, as in the article. Little is lost once they are scaled, since they are
   summed in fp32 and rounded once. amp_gemm can also write them in fp32 (AMP_F32 as c_type, and as
   grad_type of the tensor); writing, checking and updating then move 6 bytes more for each
   parameter.

   Exits with 1 unless all forms end where fp32 ends (see loss_bound and fall_bound) and no step is
   skipped once the scale has settled. */

#define AMP_IMPLEMENTATION
#include "amp.h"

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROGRAM "train_cuda"
#include "../support/train_cli.h" /* fail, options, progress */
#include "../support/cuda_must.cuh"

enum form { FP32, TF32, HALF, SCALED, GRAPH, NUM_FORMS };
enum { MAX_LAYERS = 32, WARM_UP = 10, WORKSPACE = 32 << 20 };
static const float learning_rate = 0.1f;

static struct options {
    int       layers, width, batch, batches, epochs, seed;
    amp_dtype dtype;
} o = {3, 4096, 512, 50, 3, 1, AMP_F16};

/* ------------------------------------------------------------------------------------ the GPU */

static struct gpu {
    cudaStream_t   stream;
    cublasHandle_t plain; /* for fp32; amp.h sets modes on its own handle */
    cublasHandle_t mixed;
    amp_backend    backend;
} gpu;

static void *device_alloc(size_t num_bytes) {
    void *p = NULL;
    char  size[64];
    if (cudaMalloc(&p, num_bytes) == cudaSuccess) return p;
    sprintf(size, "%.1f MiB more do not fit", (double)num_bytes / (1 << 20));
    fail(1, "GPU memory", size, "choose a smaller --width, --batch or --batches");
    return NULL;
}

/* ------------------------------------------------------------------------------------ kernels */

/* x[i] = a number of variance 1, uniform, that depends on seed and i alone (splitmix64); times
   size. */
static __global__ void fill_kernel(float *x, size_t n, uint64_t seed, float size) {
    FOR_EACH(i, n) {
        uint64_t u = (seed << 40) + i * 0x9e3779b97f4a7c15u;
        u    = (u ^ (u >> 30)) * 0xbf58476d1ce4e5b9u;
        u    = (u ^ (u >> 27)) * 0x94d049bb133111ebu;
        u    = u ^ (u >> 31);
        x[i] = size * 3.4641016f * ((float)(u >> 40) / 16777216.0f - 0.5f);
    }
}

/* ReLU needs no arithmetic: numbers of any type from -0 to -inf, as bits, become 0; NaN stays. */
template <class BITS>
static __global__ void relu_kernel(BITS *x, size_t n, BITS minus_zero, BITS minus_inf) {
    FOR_EACH(i, n)
        if (x[i] >= minus_zero && x[i] <= minus_inf) x[i] = 0;
}

template <class BITS>
static __global__ void relu_back_kernel(BITS *delta, const BITS *act, size_t n) {
    FOR_EACH(i, n)
        if (act[i] == 0) delta[i] = 0;
}

/* The gradient of the mean of (out - target)^2, in fp32, times *scale, replaces out. The scale is
   read here, when the kernel runs: no host has to know it, and a graph sees every new one. Each
   thread adds its squares to a sum of its own, so that their order never changes. */
static __global__ void loss_kernel(float *out, const float *target, size_t n, const float *scale,
                                   double *sum) {
    const float factor = 2.0f / (float)n * (scale ? *scale : 1.0f);
    double      mine   = 0.0;
    FOR_EACH(i, n) {
        const float error = out[i] - target[i];
        mine += (double)error * (double)error;
        out[i] = error * factor;
    }
    sum[(size_t)blockIdx.x * blockDim.x + threadIdx.x] += mine / (double)n;
}

static __global__ void sgd_kernel(float *weight, const float *grad, size_t n, float lr) {
    FOR_EACH(i, n) weight[i] -= lr * grad[i];
}

/* Add to count[0] the gradients that are not zero in fp32 and to count[1] those of them that are
   zero in half; not those which a ReLU has closed (active is 0) in half alone. */
static __global__ void flushed_kernel(const float *exact, const uint16_t *half,
                                      const uint16_t *active, size_t n,
                                      unsigned long long *count) {
    unsigned long long nonzero = 0, flushed = 0;
    FOR_EACH(i, n) {
        if (exact[i] == 0.0f || (active && active[i] == 0)) continue;
        nonzero++;
        flushed += (half[i] & 0x7fffu) == 0;
    }
    if (nonzero) atomicAdd(&count[0], nonzero);
    if (flushed) atomicAdd(&count[1], flushed);
}

/* ------------------------------------------------------------------------------------ network */

/* Matrices are row-major: a batch has one sample in a row, a weight one output in a row. Layer l:
   act[l + 1] = ReLU(act[l] weight[l]'); the last one's product is out, in fp32. */
static struct net {
    size_t    num_weights, num_acts; /* elements of one matrix                                */
    amp_dtype type;                  /* of act, delta, grad, and of what weights are read as  */
    float    *inputs, *targets;      /* all batches                                           */
    float    *target, *out;          /* of this batch; backward starts with a gradient in out */
    void     *act[MAX_LAYERS];       /* what layer l reads                                    */
    void     *delta[MAX_LAYERS];     /* gradient of layer l's product; the last, in fp32: out */
    void     *half_delta;            /* the last one, in half                                 */
    float    *weight[MAX_LAYERS];    /* masters                                               */
    void     *grad[MAX_LAYERS];
    float    *exact_delta[MAX_LAYERS], *exact_grad[MAX_LAYERS]; /* fp32's, of the first step  */
    double             *sum, *first_sum; /* of this epoch's losses, and of the first epoch's  */
    amp_scaler         *halfway;         /* the scaler after half of the steps                */
    unsigned long long *count;
    amp_optimizer       opt;
} net;

enum { SUMS = 1024 * 256 }; /* as many as there are threads */

static struct result {
    double   seconds, first, last; /* losses */
    double   flushed[2];           /* activations, weights */
    unsigned skipped, late;        /* steps; late: of the second half */
    unsigned growths;              /* of the scale */
    float    scale;
} results[NUM_FORMS];

static const char *form_name(int f) {
    static char name[32];
    const char *type = o.dtype == AMP_F16 ? "fp16" : "bf16";
    if (f == FP32) return "fp32";
    if (f == TF32) return "TF32";
    sprintf(name, "%s%s", type,
            f == HALF ? ", no scaler" : f == SCALED ? " + scaler" : " + scaler, graph");
    return name;
}

static void make_net(void) {
    const size_t data = (size_t)o.batches * o.batch * o.width;
    net.num_weights   = (size_t)o.width * o.width;
    net.num_acts      = (size_t)o.batch * o.width;
    net.inputs        = (float *)device_alloc(data * 4);
    net.targets       = (float *)device_alloc(data * 4);
    net.target        = (float *)device_alloc(net.num_acts * 4);
    net.out           = (float *)device_alloc(net.num_acts * 4);
    net.half_delta    = device_alloc(net.num_acts * 2);
    net.sum           = (double *)device_alloc(SUMS * sizeof *net.sum);
    net.first_sum     = (double *)device_alloc(SUMS * sizeof *net.first_sum);
    net.halfway       = (amp_scaler *)device_alloc(sizeof *net.halfway);
    net.count         = (unsigned long long *)device_alloc(4 * sizeof *net.count);
    for (int l = 0; l < o.layers; l++) { /* room for fp32, which half shares */
        net.act[l]         = device_alloc(net.num_acts * 4);
        net.delta[l]       = l + 1 < o.layers ? device_alloc(net.num_acts * 4) : NULL;
        net.weight[l]      = (float *)device_alloc(net.num_weights * 4);
        net.grad[l]        = device_alloc(net.num_weights * 4);
        net.exact_delta[l] = (float *)device_alloc(net.num_acts * 4);
        net.exact_grad[l]  = (float *)device_alloc(net.num_weights * 4);
    }
    fill_kernel<<<blocks_for(data), 256, 0, gpu.stream>>>(net.inputs, data,
                                                          (uint64_t)o.seed * 1000, 1.0f);
    fill_kernel<<<blocks_for(data), 256, 0, gpu.stream>>>(net.targets, data,
                                                          (uint64_t)o.seed * 1000 + 1, 1.0f);
}

/* The weights as they are before the first step: uniform in +-1 / sqrt(width), as torch's Linear.
   For half forms, the optimizer that owns the half copies, the scaler and the step. */
static void start(form f) {
    amp_optimizer_desc desc = {};
    for (int l = 0; l < o.layers; l++)
        fill_kernel<<<blocks_for(net.num_weights), 256, 0, gpu.stream>>>(net.weight[l],
            net.num_weights, (uint64_t)o.seed * 1000 + 2 + l,
            1.0f / sqrtf(3.0f * (float)o.width));
    amp_optimizer_free(&net.opt);
    net.type                = f < HALF ? AMP_F32 : o.dtype;
    net.delta[o.layers - 1] = f < HALF ? net.out : net.half_delta;
    if (f < HALF) return;
    desc.dtype           = o.dtype;
    desc.kind            = AMP_KIND_SGD;
    desc.backend         = &gpu.backend;
    desc.scaler.disabled = f == HALF;
    must(amp_optimizer_init(&net.opt, &desc));
    for (int l = 0; l < o.layers; l++) {
        amp_tensor t = {};
        t.n          = net.num_weights;
        t.weight     = net.weight[l];
        t.grad       = net.grad[l];
        t.grad_type  = o.dtype;
        must(amp_optimizer_add(&net.opt, &t));
    }
    must(amp_optimizer_prepare(&net.opt));
    must(amp_optimizer_set_lr(&net.opt, learning_rate));
}

/* c = op(a) op(b); c is m x n and row-major. */
static void product(form f, int trans_a, int trans_b, int m, int n, int k, const void *a,
                    const void *b, void *c, amp_dtype c_type) {
    const float one = 1.0f, zero = 0.0f;
    amp_gemm_args g = {};
    g.trans_a = trans_a, g.trans_b = trans_b;
    g.m = (size_t)m, g.n = (size_t)n, g.k = (size_t)k;
    g.a = a, g.b = b, g.c = c;
    g.a_type = g.b_type = net.type, g.c_type = c_type;
    if (f >= HALF) must(amp_gemm(&gpu.backend, &g));
    else /* cuBLAS is column-major: it sees all transposed, and computes c' = op(b)' op(a)' */
        must(cublasGemmEx(gpu.plain, trans_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                          trans_a ? CUBLAS_OP_T : CUBLAS_OP_N, n, m, k, &one, b, CUDA_R_32F,
                          trans_b ? k : n, a, CUDA_R_32F, trans_a ? m : k, &zero, c, CUDA_R_32F, n,
                          f == TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                          CUBLAS_GEMM_DEFAULT));
}

static const void *weights_of(form f, int l) {
    return f < HALF ? net.weight[l] : amp_optimizer_model(&net.opt, l);
}

/* Put a batch where the step reads it; a graph has one place for it. This is where fp32 data
   becomes half. */
static void load_batch(form f, int batch) {
    const float *input  = net.inputs + batch * net.num_acts;
    const float *target = net.targets + batch * net.num_acts;
    must(cudaMemcpyAsync(net.target, target, net.num_acts * 4, cudaMemcpyDeviceToDevice,
                         gpu.stream));
    if (f >= HALF)
        must(amp_cuda_cast(net.act[0], net.type, input, AMP_F32, net.num_acts, gpu.stream));
    else
        must(cudaMemcpyAsync(net.act[0], input, net.num_acts * 4, cudaMemcpyDeviceToDevice,
                             gpu.stream));
}

static void forward(form f) {
    const int last = o.layers - 1;
    for (int l = 0; l < last; l++) {
        product(f, 0, 1, o.batch, o.width, o.width, net.act[l], weights_of(f, l), net.act[l + 1],
                net.type);
        if (f >= HALF)
            relu_kernel<uint16_t><<<blocks_for(net.num_acts), 256, 0, gpu.stream>>>(
                (uint16_t *)net.act[l + 1], net.num_acts, (uint16_t)0x8000,
                (uint16_t)(net.type == AMP_F16 ? 0xfc00 : 0xff80));
        else
            relu_kernel<uint32_t><<<blocks_for(net.num_acts), 256, 0, gpu.stream>>>(
                (uint32_t *)net.act[l + 1], net.num_acts, 0x80000000u, 0xff800000u);
    }
    product(f, 0, 1, o.batch, o.width, o.width, net.act[last], weights_of(f, last), net.out,
            AMP_F32);
}

static void backward(form f) {
    const float *scale = f < HALF ? NULL : amp_optimizer_loss_scale_ptr(&net.opt);
    loss_kernel<<<blocks_for(net.num_acts), 256, 0, gpu.stream>>>(net.out,
        (const float *)net.target, net.num_acts, scale, net.sum);
    /* Scaled in fp32, and only then rounded to half. Where the loss comes from a kernel that cannot
       be changed, amp_cuda_scale_loss multiplies its gradient. */
    if (f >= HALF)
        must(amp_cuda_cast(net.delta[o.layers - 1], net.type, net.out, AMP_F32, net.num_acts,
                           gpu.stream));
    for (int l = o.layers - 1; l >= 0; l--) {
        product(f, 1, 0, o.width, o.width, o.batch, net.delta[l], net.act[l], net.grad[l],
                net.type);
        if (l == 0) break;
        product(f, 0, 0, o.batch, o.width, o.width, net.delta[l], weights_of(f, l),
                net.delta[l - 1], net.type);
        if (f >= HALF)
            relu_back_kernel<uint16_t><<<blocks_for(net.num_acts), 256, 0, gpu.stream>>>(
                (uint16_t *)net.delta[l - 1], (const uint16_t *)net.act[l], net.num_acts);
        else
            relu_back_kernel<uint32_t><<<blocks_for(net.num_acts), 256, 0, gpu.stream>>>(
                (uint32_t *)net.delta[l - 1], (const uint32_t *)net.act[l], net.num_acts);
    }
}

/* Everything is queued on the stream; the host never waits for it and reads nothing back. */
static void train_step(form f) {
    forward(f);
    backward(f);
    must(cudaGetLastError());
    if (f == GRAPH)
        must(amp_optimizer_step_graph(&net.opt)); /* the rate is the one that set_lr put on the GPU */
    else if (f >= HALF)
        must(amp_optimizer_step(&net.opt, learning_rate));
    else
        for (int l = 0; l < o.layers; l++)
            sgd_kernel<<<blocks_for(net.num_weights), 256, 0, gpu.stream>>>(net.weight[l],
                (const float *)net.grad[l], net.num_weights, learning_rate);
}

/* All kernels have been loaded by the steps of the warm-up. */
static cudaGraphExec_t capture(void) {
    must(cudaStreamBeginCapture(gpu.stream, cudaStreamCaptureModeThreadLocal));
    train_step(GRAPH);
    return end_capture(gpu.stream);
}

/* ---------------------------------------------------------------------------------- measuring */

/* After the first step: keep what fp32 has, and compare half with it. */
static void compare_gradients(form f) {
    unsigned long long count[4];
    must(cudaMemsetAsync(net.count, 0, sizeof count, gpu.stream));
    for (int l = 0; l < o.layers; l++) {
        if (f == FP32) {
            must(cudaMemcpyAsync(net.exact_delta[l], net.delta[l], net.num_acts * 4,
                                 cudaMemcpyDeviceToDevice, gpu.stream));
            must(cudaMemcpyAsync(net.exact_grad[l], net.grad[l], net.num_weights * 4,
                                 cudaMemcpyDeviceToDevice, gpu.stream));
        } else if (f >= HALF) {
            const void *active = l + 1 < o.layers ? net.act[l + 1] : NULL;
            flushed_kernel<<<blocks_for(net.num_acts), 256, 0, gpu.stream>>>(
                (const float *)net.exact_delta[l], (const uint16_t *)net.delta[l],
                (const uint16_t *)active, net.num_acts, net.count);
            flushed_kernel<<<blocks_for(net.num_weights), 256, 0, gpu.stream>>>(
                (const float *)net.exact_grad[l], (const uint16_t *)net.grad[l],
                (const uint16_t *)NULL, net.num_weights, net.count + 2);
        }
    }
    must(cudaMemcpyAsync(count, net.count, sizeof count, cudaMemcpyDeviceToHost, gpu.stream));
    must(cudaStreamSynchronize(gpu.stream));
    for (int i = 0; i < 2; i++)
        results[f].flushed[i] =
            count[2 * i] ? (double)count[2 * i + 1] / (double)count[2 * i] : 0.0;
}

/* Of one epoch: its losses' mean. */
static double mean_loss(const double *sum) {
    static double host[SUMS];
    double        total = 0.0;
    must(cudaMemcpyAsync(host, sum, sizeof host, cudaMemcpyDeviceToHost, gpu.stream));
    must(cudaStreamSynchronize(gpu.stream));
    for (int i = 0; i < SUMS; i++) total += host[i];
    return total / o.batches;
}

/* The seconds between two events on the stream. */
struct stopwatch {
    cudaEvent_t begin, end;
    stopwatch(void) {
        must(cudaEventCreate(&begin));
        must(cudaEventCreate(&end));
        must(cudaEventRecord(begin, gpu.stream));
    }
    double stop(void) {
        float ms;
        must(cudaEventRecord(end, gpu.stream));
        must(cudaEventSynchronize(end));
        must(cudaEventElapsedTime(&ms, begin, end));
        must(cudaEventDestroy(begin));
        must(cudaEventDestroy(end));
        return ms / 1000.0;
    }
};

static void run_form(form f) {
    const int       steps  = o.batches * o.epochs;
    cudaGraphExec_t replay = NULL;
    result         *r      = &results[f];
    amp_scaler      halfway, end;
    start(f);
    for (int s = 0; s < WARM_UP; s++) {
        load_batch(f, s % o.batches);
        train_step(f);
        if (s == 0) compare_gradients(f);
    }
    start(f);
    if (f == GRAPH) replay = capture();
    stopwatch watch;
    for (int s = 0; s < steps; s++) {
        if (s == o.batches)
            must(cudaMemcpyAsync(net.first_sum, net.sum, SUMS * sizeof *net.sum,
                                 cudaMemcpyDeviceToDevice, gpu.stream));
        if (s % o.batches == 0)
            must(cudaMemsetAsync(net.sum, 0, SUMS * sizeof *net.sum, gpu.stream));
        if (s == steps / 2 && f >= SCALED) /* plain data, the same bytes on GPU and host */
            must(cudaMemcpyAsync(net.halfway, amp_optimizer_scaler(&net.opt), sizeof halfway,
                                 cudaMemcpyDeviceToDevice, gpu.stream));
        load_batch(f, s % o.batches);
        if (f == GRAPH) must(cudaGraphLaunch(replay, gpu.stream));
        else train_step(f);
    }
    r->seconds = watch.stop();
    r->last    = mean_loss(net.sum);
    r->first   = o.epochs > 1 ? mean_loss(net.first_sum) : r->last;
    if (replay) must(cudaGraphExecDestroy(replay));
    if (f < SCALED) return;
    must(cudaMemcpy(&halfway, net.halfway, sizeof halfway, cudaMemcpyDeviceToHost));
    must(cudaMemcpy(&end, amp_optimizer_scaler(&net.opt), sizeof end, cudaMemcpyDeviceToHost));
    r->skipped = (unsigned)end.skipped;
    r->late    = (unsigned)(end.skipped - halfway.skipped);
    r->growths = (unsigned)end.growths;
    r->scale   = end.scale;
}

/* Finding overflows, and nothing else, in the gradients that the last form left. */
static double time_checks(void) {
    amp_scaler host, *scaler = (amp_scaler *)device_alloc(sizeof *scaler);
    double     seconds = 0.0;
    must(amp_scaler_init(&host, NULL));
    must(cudaMemcpy(scaler, &host, sizeof host, cudaMemcpyHostToDevice));
    for (int part = 0; part < 2; part++) { /* the first warms up */
        stopwatch watch;
        for (int s = 0; s < (part ? o.batches * o.epochs : WARM_UP); s++) {
            for (int l = 0; l < o.layers; l++)
                must(amp_cuda_scaler_unscale(scaler, NULL, net.grad[l], o.dtype, net.num_weights,
                                             gpu.stream));
            must(amp_cuda_scaler_update(scaler, gpu.stream));
        }
        seconds = watch.stop();
    }
    must(cudaFree(scaler));
    return seconds;
}

/* ------------------------------------------------------------------------------------- report */

static double roundoff(int f) { /* relative, of one operand of a product */
    return f == FP32 ? 0.0 : f >= HALF && o.dtype == AMP_BF16 ? 1 / 256.0 : 1 / 2048.0;
}

/* How far from fp32's may the last loss be, in parts of it? Rounding an operand to p bits changes
   it by up to u = 2^-p of its size: 2^-11 for TF32 and fp16, 2^-8 for bf16. A layer rounds two,
   weights and activations, so that outputs after all layers are off by up to 2 layers u of their
   size. The loss is the mean square of an error e that, with random targets, is larger than the
   outputs; if these are off by d, it is off by up to 2 d / e of itself, that is 4 layers u. The
   gradients are off by as large a part, hence what was learned, which is less than the loss: twice
   as much in all. */
static double loss_bound(int f) { return 8.0 * o.layers * roundoff(f); }

/* And its fall? Random targets are hardly learned in a few epochs, so that weights that never move
   could pass for equal losses. The fall is as wrong as the gradients are, in parts of itself; a
   skipped step takes its share away. What the outputs are off by averages out over all the errors
   of an epoch, to which the last term leaves five standard deviations. Half without a scaler may
   lose more, which is what the scaler is for. */
static double fall_bound(int f) {
    const result *r      = results;
    const double  errors = (double)o.batches * (double)net.num_acts;
    return (r[FP32].first - r[FP32].last) *
               (loss_bound(f) + 2.0 * r[f].skipped / (o.batches * o.epochs)) +
           5.0 * r[FP32].last * 4.0 * o.layers * roundoff(f) / sqrt(errors);
}

static double percent(double part, double whole) { return whole != 0.0 ? 100 * part / whole : 0; }

static int report(double checks) {
    const result *r     = results;
    const int     steps = o.batches * o.epochs;
    const double  mib   = (double)o.layers * (double)net.num_acts / (1 << 20);
    const double  fall  = r[FP32].first - r[FP32].last;
    int           ok    = 1;
    printf("%-22s%9s%10s%9s%10s%10s%10s%18s\n", "form", "seconds", "speed-up", "ms/step", "first",
           "last", "learned", "flushed");
    for (int f = 0; f < NUM_FORMS; f++) {
        printf("%-22s%9.4f%9.2fx%9.3f%10.6f%10.6f", form_name(f), r[f].seconds,
               r[FP32].seconds / r[f].seconds, 1000 * r[f].seconds / steps, r[f].first, r[f].last);
        if (o.epochs > 1) printf("%8.1f %%", percent(r[f].first - r[f].last, fall));
        else printf("%10s", "-");
        if (f < HALF) printf("%18s\n", "-");
        else printf("%7.2f %%;%6.2f %%\n", 100 * r[f].flushed[0], 100 * r[f].flushed[1]);
    }
    printf("\nscaler's share: %.1f %% of a step; the check, which both forms make: %.4f seconds, "
           "%.1f %%\n", percent(r[SCALED].seconds - r[HALF].seconds, r[SCALED].seconds), checks,
           percent(checks, r[SCALED].seconds));
    for (int f = SCALED; f < NUM_FORMS; f++)
        printf("%s: %u of %d steps skipped, last loss scale %g\n", form_name(f), r[f].skipped,
               steps, (double)r[f].scale);
    printf("activations kept for backward: %.1f MiB in fp32, %.1f in half; bytes that an optimizer "
           "step moves per\nparameter: 12 in fp32, 14 in half (2 of them to check)\n",
           4 * mib, 2 * mib);
    for (int f = TF32; f < NUM_FORMS; f++) {
        const double apart = fabs(r[f].last - r[FP32].last) / r[FP32].last;
        const double less  = fabs(r[f].first - r[f].last - fall);
        if (!(apart <= loss_bound(f))) { /* or NaN */
            printf("FAILED: the last loss of %s is %g, fp32's %g: %.3g of it apart, more than "
                   "%.3g\n", form_name(f), r[f].last, r[FP32].last, apart, loss_bound(f));
            ok = 0;
        }
        if (f != HALF && !(less <= fall_bound(f))) {
            printf("FAILED: the loss of %s falls by %g, fp32's by %g: %.3g apart, more than "
                   "%.3g\n", form_name(f), r[f].first - r[f].last, fall, less, fall_bound(f));
            ok = 0;
        }
    }
    for (int f = SCALED; f < NUM_FORMS; f++) {
        if (r[f].late <= r[f].growths) continue; /* a scale that grew may try too much, once */
        printf("FAILED: %s skipped %u steps of the second half; if --epochs is small, give more, "
               "so that the scale can settle\n", form_name(f), r[f].late);
        ok = 0;
    }
    if (ok)
        printf("ok: last losses within %.2g of fp32's, falls within %.2g, no skips once the scale "
               "had settled\n", loss_bound(GRAPH), fall_bound(GRAPH));
    return ok;
}

/* ------------------------------------------------------------------------------- options, main */

static void print_help(void) {
    printf("usage: train_cuda [options]\n\n"
           "Train layers of width x width with ReLU on a GPU in fp32, TF32 and half, without and\n"
           "with a loss scaler and as a CUDA graph; print times, losses and what the scaler costs."
           "\n\n"
           "  --layers N         linear layers (%d)\n"
           "  --width N          units of each (%d)\n"
           "  --batch N          samples in a batch (%d)\n"
           "  --batches N        batches in an epoch (%d)\n"
           "  --epochs N         passes over them (%d)\n"
           "  --dtype fp16|bf16  the half type (fp16)\n"
           "  --seed N           of data and weights (%d)\n"
           "  --quiet            no progress\n"
           "  --help             this text\n",
           o.layers, o.width, o.batch, o.batches, o.epochs, o.seed);
}

static void parse_options(int argc, char **argv) {
    static const char *const types[] = {"fp16", "bf16", NULL};
    int                      type    = 0;
    const known_option known[] = {
        count_option("--layers", &o.layers, MAX_LAYERS), count_option("--width", &o.width, 1 << 15),
        count_option("--batch", &o.batch, 1 << 15), count_option("--batches", &o.batches, 10000),
        count_option("--epochs", &o.epochs, 10000), count_option("--seed", &o.seed, 10000),
        choice_option("--dtype", types, &type)};
    parse_known(argc, argv, known, sizeof known / sizeof *known, print_help);
    o.dtype = type ? AMP_BF16 : AMP_F16;
}

/* Find the GPU, say what it is, and set up a stream and cuBLAS. */
static void open_gpu(void) {
    cudaDeviceProp device;
    int            driver = 0, runtime = 0;
    (void)count_gpus();
    must(cudaGetDeviceProperties(&device, 0));
    must(cudaDriverGetVersion(&driver));
    must(cudaRuntimeGetVersion(&runtime));
    printf("%s, CUDA driver %d.%d, runtime %d.%d: %s %d x %d, %d batch%s of %d, %s, %s\n\n", device.name,
           driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10,
           counted((size_t)o.layers, "layer"), o.width, o.width, o.batches, o.batches == 1 ? "" : "es",
           o.batch, counted((size_t)o.epochs, "epoch"), o.dtype == AMP_F16 ? "fp16" : "bf16");
    fflush(stdout);
    must(cudaStreamCreateWithFlags(&gpu.stream, cudaStreamNonBlocking));
    must(cublasCreate(&gpu.plain));
    must(cublasSetStream(gpu.plain, gpu.stream));
    must(cublasCreate(&gpu.mixed));
    must(amp_cuda_backend(&gpu.backend, gpu.stream, gpu.mixed));
    gpu.backend.workspace      = device_alloc(WORKSPACE); /* for the products in the graph */
    gpu.backend.workspace_size = WORKSPACE;
}

static void free_all(void) {
    amp_optimizer_free(&net.opt);
    for (int l = 0; l < o.layers; l++) {
        void *const owned[] = {net.act[l],  net.weight[l],      net.exact_delta[l],
                               net.grad[l], net.exact_grad[l]};
        for (void *p : owned) must(cudaFree(p));
        if (l + 1 < o.layers) must(cudaFree(net.delta[l]));
    }
    void *const owned[] = {net.inputs,     net.targets,   net.target,  net.out,
                           net.half_delta, net.sum,       net.count,   net.first_sum,
                           net.halfway,    gpu.backend.workspace};
    for (void *p : owned) must(cudaFree(p));
    must(cublasDestroy(gpu.plain));
    must(cublasDestroy(gpu.mixed));
    must(cudaStreamDestroy(gpu.stream));
}

int main(int argc, char **argv) {
    parse_options(argc, argv);
    open_gpu();
    make_net();
    for (int f = 0; f < NUM_FORMS; f++) {
        progress((double)f / NUM_FORMS, form_name(f));
        run_form((form)f);
    }
    progress_end();
    const int ok = report(time_checks());
    free_all();
    return finish(!ok);
}
