/* step_cuda.cu - three ways to keep your own optimizer kernel when the loss scale lives on the GPU

   The GPU decides whether a step is skipped, because the gradients are there. Your kernel can learn
   of it in three ways. The words in capitals mark and number the lines that each changes or adds to
   a plain step:

       READ-BACK   the host asks, by amp_optimizer_begin_step, and launches the kernel or does not.
                   The least to change; the host waits for the GPU once a step.
       GATE        the kernel asks, by a pointer to an amp_gate: if (gate->skip) return. The host
                   never waits, and the whole step can be captured in a CUDA graph.
       NODE        the graph asks: a conditional node of the graph runs the kernel, unmodified, or
                   does not. For kernels that are not yours. CUDA 12.4. To copy are also the lines
                   under "a conditional node".

   Each fits 16 weights to the same 256 points by SGD with momentum, with weights and gradients in
   fp16, for 120 steps. In steps 5, 6 and 31 a gradient is 1e9, which is inf in fp16.

   BUILD AND RUN, in the directory of amp.h:

       nvcc -O3 -arch=native -I. examples/step_cuda.cu amp_kernels.cu \
           -lcublas -lcublasLt -o step_cuda
       ./step_cuda

   Exits with 1 unless all three end with the same bits in weights and momentum, have skipped those
   three steps and no other, and have fitted the points. */

#define AMP_IMPLEMENTATION
#include "amp.h"

#include <cuda_runtime.h>

#define PROGRAM "step_cuda"
#include "support/train_cli.h" /* fail, no_options, finish */
#include "support/cuda_must.cuh"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 16, SAMPLES = 256, STEPS = 120, OVERFLOWS = 3 };
static bool overflows_at(int step) { return step == 5 || step == 6 || step == 31; }
static const float learning_rate = 0.1f;

/* ------------------------------------------------------------------------------ your optimizer */

/* fmaf, so that no compiler rounds differently in one kernel than in another. */
static __device__ void momentum_step(float *w, float *m, const float *grad, int i, float lr) {
    m[i] = fmaf(0.9f, m[i], grad[i]);
    w[i] = fmaf(-lr, m[i], w[i]);
}

static __global__ void own_kernel(float *w, float *m, const float *grad, int n, float lr) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) momentum_step(w, m, grad, i, lr);
}

static __global__ void gated_kernel(const amp_gate *gate, float *w, float *m,      /* GATE 1 */
                                    const float *grad, int n, float lr) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (gate->skip) return;                                                        /* GATE 2 */
    if (i < n) momentum_step(w, m, grad, i, lr);
}

/* ------------------------------------------------------------------- your forward and backward */

static __global__ void error_kernel(float *error, const float *x, const float *y, const float *w) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= SAMPLES) return;
    error[i] = -y[i];
    for (int j = 0; j < DIM; j++) error[i] = fmaf(w[j], x[i * DIM + j], error[i]);
}

/* Of the mean squared error, times *scale, which is read on the GPU when this runs. */
static __global__ void gradient_kernel(float *grad, const float *x, const float *error,
                                       const float *scale, const uint32_t *spike) {
    const int j   = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    float     sum = 0.0f;
    if (j >= DIM) return;
    for (int i = 0; i < SAMPLES; i++) sum = fmaf(error[i], x[i * DIM + j], sum);
    grad[j] = *spike ? 1e9f : 2.0f / SAMPLES * sum * *scale;
}

/* ----------------------------------------------------------------------------- a conditional node

   In a capture of stream, what is captured on body until cudaStreamEndCapture becomes the body of a
   node of CUDA's, which runs it if *skip is 0 when the graph reaches the node. */

#if CUDART_VERSION >= 13000
#define EDGE_DATA NULL, /* newer functions want it; NULL: none has any */
#else
#define EDGE_DATA
#endif

#if CUDART_VERSION >= 12040
static __global__ void condition_kernel(cudaGraphConditionalHandle runs, const uint32_t *skip) {
    cudaGraphSetConditional(runs, *skip == 0);
}

static void begin_body(const uint32_t *skip, cudaStream_t stream, cudaStream_t body) {
    cudaStreamCaptureStatus    status;
    cudaGraph_t                graph; /* into which stream is captured */
    const cudaGraphNode_t     *before; /* what its next node waits for */
    size_t                     num_before;
    cudaGraphConditionalHandle runs;
    cudaGraphNode_t            node;
    cudaGraphNodeParams        params = {};
    must(cudaStreamGetCaptureInfo(stream, &status, NULL, &graph, &before, EDGE_DATA &num_before));
    must(cudaGraphConditionalHandleCreate(&runs, graph, 0, cudaGraphCondAssignDefault));
    condition_kernel<<<1, 1, 0, stream>>>(runs, skip);
    must(cudaGetLastError());
    must(cudaStreamGetCaptureInfo(stream, &status, NULL, &graph, &before, EDGE_DATA &num_before));
    params.type               = cudaGraphNodeTypeConditional;
    params.conditional.handle = runs;
    params.conditional.type   = cudaGraphCondTypeIf;
    params.conditional.size   = 1;
    must(cudaGraphAddNode(&node, graph, before, EDGE_DATA num_before, &params));
    must(cudaStreamUpdateCaptureDependencies(stream, &node, EDGE_DATA 1,
                                             cudaStreamSetCaptureDependencies));
    must(cudaStreamBeginCaptureToGraph(body, params.conditional.phGraph_out[0], NULL, NULL, 0,
                                       cudaStreamCaptureModeRelaxed));
}
#else
static void begin_body(const uint32_t *, cudaStream_t, cudaStream_t) {} /* run_all skips it */
#endif

/* -------------------------------------------------------------------------------- three steps */

static struct gpu {
    cudaStream_t  stream, body; /* body: where what is conditional is captured */
    amp_backend   backend;
    amp_optimizer opt;
    float        *x, *y, *w, *m, *w_read, *grad, *error; /* w_read: the fp16 weights, widened */
    void         *half_grad;
    uint32_t     *spike;
} g;

static void forward(void) {
    must(amp_cuda_cast(g.w_read, AMP_F32, amp_optimizer_model(&g.opt, 0), AMP_F16, DIM, g.stream));
    error_kernel<<<(SAMPLES + 127) / 128, 128, 0, g.stream>>>(g.error, g.x, g.y, g.w_read);
    must(cudaGetLastError());
}

static void forward_backward(void) {
    forward();
    gradient_kernel<<<(DIM + 127) / 128, 128, 0, g.stream>>>(g.grad, g.x, g.error,
        amp_optimizer_loss_scale_ptr(&g.opt), g.spike);
    must(cudaGetLastError());
    must(amp_cuda_cast(g.half_grad, AMP_F16, g.grad, AMP_F32, DIM, g.stream));
}

static void read_back_step(void) {
    forward_backward();
    if (amp_optimizer_begin_step(&g.opt))                                     /* READ-BACK 1 */
        own_kernel<<<(DIM + 127) / 128, 128, 0, g.stream>>>(g.w, g.m,
            amp_optimizer_grad(&g.opt, 0), DIM, learning_rate);
    must(amp_optimizer_end_step(&g.opt));                                     /* READ-BACK 2 */
}

/* A kernel that multiplies the gradients it reads by gate->inv_scale needs no unscale. */
static void gate_step(void) {
    forward_backward();
    must(amp_optimizer_check(&g.opt));                                             /* GATE 3 */
    must(amp_optimizer_unscale(&g.opt));                                           /* GATE 4 */
    gated_kernel<<<(DIM + 127) / 128, 128, 0, g.stream>>>(                         /* GATE 5 */
        amp_optimizer_gate(&g.opt), g.w, g.m, amp_optimizer_grad(&g.opt, 0), DIM, learning_rate);
    must(amp_optimizer_end_step(&g.opt));                                          /* GATE 6 */
}

static void node_step(void) {
    cudaGraph_t graph;
    forward_backward();
    must(amp_optimizer_check(&g.opt));                                             /* NODE 1 */
    must(amp_optimizer_unscale(&g.opt));                                           /* NODE 2 */
    begin_body(&amp_optimizer_gate(&g.opt)->skip, g.stream, g.body);               /* NODE 3 */
    own_kernel<<<(DIM + 127) / 128, 128, 0, g.body>>>(                             /* NODE 4 */
        g.w, g.m, amp_optimizer_grad(&g.opt, 0), DIM, learning_rate);
    must(cudaStreamEndCapture(g.body, &graph));                                    /* NODE 5 */
    must(amp_optimizer_end_step(&g.opt));                                          /* NODE 6 */
}

static const struct form {
    const char *name;
    void (*step)(void);
    bool graph;
    int  syncs, changed; /* times a step that the host waits for the GPU; lines, numbered above */
} forms[] = {{"read-back", read_back_step, false, 1, 2},
             {"gate", gate_step, true, 0, 6},
             {"conditional node", node_step, true, 0, 6 + 32}}; /* and a conditional node's */
enum { NUM_FORMS = sizeof forms / sizeof *forms };

/* Relaxed, since a kernel may be loaded at its first launch, and for some that is here. */
static cudaGraphExec_t capture(void (*step)(void)) {
    must(cudaStreamBeginCapture(g.stream, cudaStreamCaptureModeRelaxed));
    step();
    return end_capture(g.stream);
}

/* ------------------------------------------------------------------------------- run and check */

static struct result {
    float      w[DIM], m[DIM];
    double     loss;
    amp_status status;
} results[NUM_FORMS];

static double mean_loss(void) {
    float  error[SAMPLES];
    double sum = 0.0;
    forward();
    must(cudaStreamSynchronize(g.stream));
    must(cudaMemcpy(error, g.error, sizeof error, cudaMemcpyDeviceToHost));
    for (int i = 0; i < SAMPLES; i++) sum += (double)error[i] * (double)error[i];
    return sum / SAMPLES;
}

/* Returns the loss before the first step. */
static double run_form(const form *f, result *r) {
    amp_optimizer_desc desc   = {};
    amp_tensor         t      = {};
    cudaGraphExec_t    replay = NULL;
    double             first;
    must(cudaMemsetAsync(g.w, 0, DIM * sizeof(float), g.stream));
    must(cudaMemsetAsync(g.m, 0, DIM * sizeof(float), g.stream));
    desc.dtype             = AMP_F16;
    desc.backend           = &g.backend;
    desc.scaler.init_scale = 1024.0f;
    t.n                    = DIM;
    t.weight               = g.w;
    t.grad                 = g.half_grad;
    t.grad_type            = AMP_F16;
    must(amp_optimizer_init(&g.opt, &desc));
    must(amp_optimizer_add(&g.opt, &t));
    must(amp_optimizer_prepare(&g.opt));
    first = mean_loss();
    if (f->graph) replay = capture(f->step);
    for (int s = 0; s < STEPS; s++) {
        must(cudaMemsetAsync(g.spike, overflows_at(s), sizeof *g.spike, g.stream));
        if (replay) must(cudaGraphLaunch(replay, g.stream));
        else f->step();
    }
    must(cudaGetLastError());
    r->loss = mean_loss();
    must(amp_optimizer_status(&g.opt, &r->status));
    must(cudaMemcpy(r->w, g.w, sizeof r->w, cudaMemcpyDeviceToHost));
    must(cudaMemcpy(r->m, g.m, sizeof r->m, cudaMemcpyDeviceToHost));
    if (replay) must(cudaGraphExecDestroy(replay));
    amp_optimizer_free(&g.opt);
    return first;
}

static bool has_conditional_nodes(void) {
    int driver = 0;
    must(cudaDriverGetVersion(&driver));
    return CUDART_VERSION >= 12040 && driver >= 12040;
}

static bool run_all(void) {
    bool ok = true;
    printf("%-18s%12s%15s%7s%9s%12s%11s\n", "form", "syncs/step", "changed lines", "steps",
           "skipped", "final loss", "same bits");
    for (int i = 0; i < NUM_FORMS; i++) {
        const form *f = &forms[i];
        result     *r = &results[i];
        printf("%-18s", f->name);
        if (f->step == node_step && !has_conditional_nodes()) {
            printf("  skipped: needs CUDA 12.4\n");
            continue;
        }
        const double first = run_form(f, r);
        const bool   same  = memcmp(r->w, results[0].w, sizeof r->w) == 0 &&
                             memcmp(r->m, results[0].m, sizeof r->m) == 0;
        ok = ok && same && r->status.skipped == OVERFLOWS && r->loss < 1e-4 * first &&
             r->status.steps == STEPS - OVERFLOWS;
        printf("%12d%15d%7u%9u%12.2e%11s\n", f->syncs, f->changed, (unsigned)r->status.steps,
               (unsigned)r->status.skipped, r->loss, i == 0 ? "-" : same ? "yes" : "NO");
    }
    if (ok)
        printf("ok: the same weights and momentum; the %d overflows, and only they, skipped\n",
               OVERFLOWS);
    else
        printf("FAILED: the forms that ran must agree, skip %d steps of %d and fit the points\n",
               OVERFLOWS, STEPS);
    return ok;
}

/* --------------------------------------------------------------------------------------- main */

static float *device_floats(int n, const float *from) {
    float *p = NULL;
    must(cudaMalloc(&p, (size_t)n * sizeof *p));
    if (from) must(cudaMemcpy(p, from, (size_t)n * sizeof *p, cudaMemcpyHostToDevice));
    return p;
}

static void make_data(void) {
    static float x[SAMPLES * DIM], y[SAMPLES];
    uint32_t     state = 1;
    for (int i = 0; i < SAMPLES * DIM; i++) {
        state = state * 1664525u + 1013904223u;
        x[i]  = (float)(state >> 8) / 8388608.0f - 1.0f;
        y[i / DIM] += x[i] * (float)(i % DIM - 7) * 0.125f;
    }
    g.x         = device_floats(SAMPLES * DIM, x);
    g.y         = device_floats(SAMPLES, y);
    g.w         = device_floats(DIM, NULL);
    g.m         = device_floats(DIM, NULL);
    g.w_read    = device_floats(DIM, NULL);
    g.grad      = device_floats(DIM, NULL);
    g.error     = device_floats(SAMPLES, NULL);
    g.half_grad = device_floats(DIM / 2, NULL);
    g.spike     = (uint32_t *)device_floats(1, NULL);
}

int main(int argc, char **argv) {
    bool ok;
    no_options(argc, argv, "Run one optimizer kernel on a GPU in three ways that skip steps after an\n"
                           "overflow, and compare them.\n");
    (void)count_gpus();
    must(cudaStreamCreateWithFlags(&g.stream, cudaStreamNonBlocking));
    must(cudaStreamCreateWithFlags(&g.body, cudaStreamNonBlocking));
    must(amp_cuda_backend(&g.backend, g.stream, NULL));
    make_data();
    ok = run_all();
    void *const owned[] = {g.x, g.y, g.w, g.m, g.w_read, g.grad, g.error, g.half_grad, g.spike};
    for (void *p : owned) must(cudaFree(p));
    must(cudaStreamDestroy(g.stream));
    must(cudaStreamDestroy(g.body));
    return finish(!ok);
}
