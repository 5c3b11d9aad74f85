/* bench_cuda.cu - the fused step on a GPU, beside a copy of device memory and many small kernels

   nvcc -O2 -arch=native -I. tests/bench/bench_cuda.cu amp_kernels.cu \
       -lcublas -lcublasLt -o bench_cuda
   ./bench_cuda [--quick | --once] [largest number of parameters, default 1000000000]

   Prints rows (gpu.h), between comments that start with #; torch_step.py prints the same of
   PyTorch. Everything that is measured takes turns with everything else of its model. AdamW with
   fp16 gradients and fp16 copies moves 30 bytes for each parameter in a step, as a copy of 15 bytes
   does. What:

       step, step-clip      amp_optimizer_step, without and with clipping; two launches
       graph, graph-clip    the same, replayed from a CUDA graph
       cold                 graph behind a write of 256 MB, so that no cache has anything of it
       overflow             a step that finds an inf and is skipped
       check                the first of a step's two launches alone
       state-default, ...   the first with models of bf16 and desc.storage: split, bf16, 8bit and so on
       report, sampled      state-default with a report that samples one turn in 100, or each
       rows, rows-same      the step of an embedding of 50257 rows of 768, whose gradient is of 8192
                            rows: any, or one and the same; rows-all: an array, as others have it
       copy                 cudaMemcpyAsync from device to device: reads and writes 15 bytes each
       cast, scale-loss, ...  functions for single arrays, in GB/s read and written

   name "unfused" has the step as loops have it without a library: for each tensor one kernel that
   unscales and looks for inf, one that adds squares if it clips, AdamW, a cast; nothing waits there
   either. That is 40 bytes for each parameter, 44 with clipping. What both compute is compared.

   --quick: small models and few rounds, to see that it works. --once: the first model, without a
   second time, for a profiler of kernels. */

#define AMP_IMPLEMENTATION
#include "amp.h"

#include <cuda_runtime.h>
#include <math.h>

#define PROGRAM "bench_cuda"
#include "gpu.h"
#include "../support/prepare.h"
#include "../support/storage.h"

enum { BYTES = 30, SECONDS = 5 /* for one model */ };
static const float learning_rate = 1e-4f;

/* ----------------------------------------------------------------- gradients as they occur */

/* fp16 of both signs over nine powers of two, the middle ones most often; one in eight is zero, and
   so is one row of 512 in four, as of an embedding whose token did not occur. */
static __global__ void fill_halves(uint16_t *grads, uint64_t n) {
    FOR_EACH(i, n) {
        const uint32_t u        = scrambled(i);
        uint32_t       exponent = 9;
        for (int b = 0; b < 8; b++) exponent += u >> (16 + b) & 1u;
        const bool zero = (u >> 24 & 7u) == 0 || (scrambled(~(i / 512)) & 3u) == 0;
        grads[i]        = zero ? 0 : (uint16_t)((u >> 31) << 15 | exponent << 10 | (u & 1023u));
    }
}

/* ---------------------------------------------------------------------- a step of many kernels */

/* What a step decides, on the device. */
struct control {
    float        scale, factor, bias1, bias2; /* factor: on unscaled gradients, to clip */
    unsigned     found, steps, skipped;
    double       norm2;
};

static __global__ void unscale_kernel(float *to, const uint16_t *grad, uint64_t n, control *c) {
    const float inv = 1.0f / c->scale;
    FOR_EACH(i, n) {
        const uint32_t bits = ampi_f32_from_f16(grad[i]);
        if ((bits & 0x7f800000u) == 0x7f800000u) c->found = 1;
        to[i] = ampi_f32_from_bits(bits) * inv;
    }
}

static __global__ void norm_kernel(const float *grad, uint64_t n, control *c) {
    float sum = 0.0f;
    FOR_EACH(i, n) sum += grad[i] * grad[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) atomicAdd(&c->norm2, (double)sum);
}

static __global__ void decide_kernel(control *c, float max_norm) {
    if (threadIdx.x > 0) return;
    const float norm = (float)sqrt(c->norm2);
    c->factor        = max_norm > 0.0f && norm > max_norm ? max_norm / (norm + 1e-6f) : 1.0f;
    c->norm2         = 0.0;
    c->steps += !c->found;
    c->skipped += c->found;
    c->bias1 = (float)(1.0 / (1.0 - pow(0.9, c->steps)));
    c->bias2 = (float)(1.0 / (1.0 - pow(0.999, c->steps)));
}

static __global__ void adamw_kernel(float *weight, float *m, float *v, const float *grad,
                                    uint64_t n, const control *c) {
    if (c->found) return;
    FOR_EACH(i, n) {
        const float g = grad[i] * c->factor;
        m[i]          = 0.9f * m[i] + 0.1f * g;
        v[i]          = 0.999f * v[i] + 0.001f * g * g;
        weight[i] -= learning_rate * (m[i] * c->bias1 / (sqrtf(v[i] * c->bias2) + 1e-8f));
    }
}

static __global__ void cast_kernel(uint16_t *half, const float *weight, uint64_t n) {
    FOR_EACH(i, n) half[i] = ampi_f16_from_f32(ampi_bits_of_f32(weight[i]));
}

/* Where it works: arrays of n numbers, 14 bytes each. Equal tensors. */
struct unfused {
    control        *c;
    float          *weight, *m, *v, *unscaled;
    const uint16_t *grad;
    uint16_t       *half;
    size_t          part, tensors;

    void step(float max_norm) const {
        good(cudaMemsetAsync(&c->found, 0, sizeof c->found, stream));
        for (size_t i = 0; i < tensors * part; i += part)
            launch(unscale_kernel, part, unscaled + i, grad + i, part, c);
        if (max_norm > 0.0f)
            for (size_t i = 0; i < tensors * part; i += part)
                launch(norm_kernel, part / 16, unscaled + i, part, c);
        launch(decide_kernel, 0, c, max_norm);
        for (size_t i = 0; i < tensors * part; i += part)
            launch(adamw_kernel, part, weight + i, m + i, v + i, unscaled + i, part, c);
        for (size_t i = 0; i < tensors * part; i += part)
            launch(cast_kernel, part, half + i, weight + i, part);
    }
};

static unfused make_unfused(void *memory, float *weight, const uint16_t *grad, size_t part,
                            size_t tensors) {
    const size_t n     = part * tensors;
    control      first = {};
    unfused      u     = {on_device<control>(1), weight, (float *)memory, (float *)memory + n,
                          (float *)memory + 2 * n, grad, (uint16_t *)memory + 6 * n, part, tensors};
    first.scale = 65536.0f;
    good(cudaMemcpy(u.c, &first, sizeof first, cudaMemcpyHostToDevice));
    good(cudaMemset(memory, 0, 14 * n));
    return u;
}

/* ------------------------------------------------------------------------------ models */

struct model {
    amp_optimizer   opt;
    cudaGraphExec_t replay;
};

/* Equal tensors in one array of weights and one of gradients. */
static void prepare(model *m, amp_backend *gpu, float *weights, uint16_t *grads, size_t part,
                    size_t num_tensors, float max_norm, amp_dtype type = AMP_F16,
                    storage_row state = FP32, int every = 0) {
    amp_optimizer_desc desc  = {};
    amp_report_desc    watch = {};
    watch.every   = every;
    desc.report   = every ? &watch : NULL;
    desc.backend  = gpu;
    desc.dtype    = type;
    desc.storage  = &storages[state];
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
    good(prepare_scaled(&m->opt));
    good(amp_optimizer_set_lr(&m->opt, learning_rate));
    m->replay = captured([&] { good(amp_optimizer_step_graph(&m->opt)); });
}

static void release(model *m) {
    cudaGraphExecDestroy(m->replay);
    amp_optimizer_free(&m->opt);
}

/* The one is worth as a baseline of the other what it computes: the same weights after three steps,
   one of them skipped. A step moves a weight by at most a few learning rates, with the relative
   error of some ten roundings, and rounds the weight. */
static bool compare_steps(amp_backend *gpu) {
    enum { PART = 1000, TENSORS = 3, N = PART * TENSORS };
    const float        most    = 1e-4f; /* so that it clips */
    const uint16_t     inf     = 0x7c00;
    float             *weights = on_device<float>(2 * N);
    uint16_t          *grads   = on_device<uint16_t>(N);
    void              *memory  = on_device<char>(14 * N);
    std::vector<float> fused(N), other(N);
    uint16_t           first = 0;
    model              m;
    launch(fill_floats, N, weights, N, 1, 0.04f);
    launch(fill_floats, N, weights + N, N, 1, 0.04f);
    launch(fill_halves, N, grads, N);
    prepare(&m, gpu, weights, grads, PART, TENSORS, most);
    const unfused u = make_unfused(memory, weights + N, grads, PART, TENSORS);
    for (int step = 0; step < 3; step++) {
        good(cudaStreamSynchronize(stream));
        if (step == 0) good(cudaMemcpy(&first, grads, 2, cudaMemcpyDeviceToHost));
        good(cudaMemcpy(grads, step == 1 ? &inf : &first, 2, cudaMemcpyHostToDevice));
        good(amp_optimizer_step(&m.opt, learning_rate));
        const float halved = step == 2 ? 32768.0f : 65536.0f; /* after the overflow */
        good(cudaMemcpyAsync(&u.c->scale, &halved, sizeof halved, cudaMemcpyHostToDevice, stream));
        u.step(most);
    }
    good(cudaStreamSynchronize(stream));
    good(cudaMemcpy(fused.data(), weights, 4 * N, cudaMemcpyDeviceToHost));
    good(cudaMemcpy(other.data(), weights + N, 4 * N, cudaMemcpyDeviceToHost));
    int differ = 0;
    for (int i = 0; i < N; i++) {
        const float step = fabsf(fused[i]) * 2.4e-7f + learning_rate * 1e-5f;
        differ += !(fabsf(fused[i] - other[i]) <= 3.0f * step);
    }
    if (differ) printf("# FAIL: the unfused step ends with %d other weights than the fused one\n", differ);
    release(&m);
    for (void *p : {(void *)weights, (void *)grads, memory, (void *)u.c}) cudaFree(p);
    return differ == 0;
}

/* One model with and without clipping: what is measured takes turns. */
static void measure(amp_backend *gpu, size_t n, size_t tensors) {
    const size_t   part  = n / tensors;
    const int      times = several(n < 20000000 ? 50 : 5);
    const size_t   washed = quick ? 1 << 20 : 1 << 28;
    const int      fewer = std::max(1, times / (1 + (int)(tensors / 100)));
    const uint16_t inf   = 0x7c00;
    model          plain, clip;
    amp_status     status;
    size_t         have = 0, total = 0;
    n = part * tensors;
    good(cudaMemGetInfo(&have, &total));
    if (have / 62 < n) { /* weights, gradients, two times moments and copies, two sides of a copy */
        printf("# no memory for %zu parameters\n", n);
        return;
    }
    float    *weights = on_device<float>(n);
    uint16_t *grads   = on_device<uint16_t>(n);
    char     *from = on_device<char>(BYTES / 2 * n), *to = on_device<char>(BYTES / 2 * n);
    char     *wash = on_device<char>(washed);
    launch(fill_floats, n, weights, n, 1, 0.04f);
    launch(fill_halves, n, grads, n);
    prepare(&plain, gpu, weights, grads, part, tensors, 0.0f);
    prepare(&clip, gpu, weights, grads, part, tensors, 1.0f);
    const unfused         many = make_unfused(from, weights, grads, part, tensors);
    const cudaGraphExec_t many_plain = captured([&] { many.step(0.0f); });
    const cudaGraphExec_t many_clip  = captured([&] { many.step(1.0f); });

    const auto stepping = [&] { good(amp_optimizer_step(&plain.opt, learning_rate)); };
    std::vector<turn> turns = {
        {"amp", "step", times, stepping},
        {"amp", "graph", times, [&] { good(cudaGraphLaunch(plain.replay, stream)); }},
        {"amp", "cold", 1, [&] { good(cudaGraphLaunch(plain.replay, stream)); },
         [&] { good(cudaMemsetAsync(wash, 0, washed, stream)); }},
        {"amp", "step-clip", times, [&] { good(amp_optimizer_step(&clip.opt, learning_rate)); }},
        {"amp", "graph-clip", times, [&] { good(cudaGraphLaunch(clip.replay, stream)); }},
        {"amp", "check", times,
         [&] { good(gpu->functions->check_fn(&plain.opt.backend, plain.opt.plan)); }},
        {"amp", "copy", times,
         [&] {
             good(cudaMemcpyAsync(to, from, BYTES / 2 * n, cudaMemcpyDeviceToDevice, stream));
         }},
        {"unfused", "step", fewer, [&] { many.step(0.0f); }},
        {"unfused", "graph", fewer, [&] { good(cudaGraphLaunch(many_plain, stream)); }},
        {"unfused", "step-clip", fewer, [&] { many.step(1.0f); }},
        {"unfused", "graph-clip", fewer, [&] { good(cudaGraphLaunch(many_clip, stream)); }}};
    take_turns(turns, SECONDS, n, tensors);

    good(amp_optimizer_status(&plain.opt, &status));
    must(status.skipped == 0, "a finite step was skipped");
    good(cudaMemcpy(grads + n / 2, &inf, 2, cudaMemcpyHostToDevice));
    turns = {{"amp", "overflow", times, stepping}, {"unfused", "overflow", fewer, [&] { many.step(0.0f); }}};
    take_turns(turns, 0.0, n, tensors);
    good(amp_optimizer_status(&plain.opt, &status));
    must(status.skipped >= (uint64_t)(once ? 1 : 4 * times), "an overflow was not found");
    cudaGraphExecDestroy(many_plain);
    cudaGraphExecDestroy(many_clip);
    release(&plain);
    release(&clip);
    for (void *p : {(void *)weights, (void *)grads, (void *)from, (void *)to, (void *)wash, (void *)many.c})
        cudaFree(p);
}

/* The step in all states, in turns; weights are the default's, and what others begin with, of whom
   each leaves NaN. */
static void measure_states(amp_backend *gpu, size_t n, size_t tensors) {
    struct kept { const char *what; storage_row state; int every = 0; };
    static const kept states[] = {
        {"state-default", FP32},    {"state-split", SPLIT},
        {"state-bf16", SPLIT_BF16}, {"state-8bit", SPLIT_8BIT},
        {"state-sr", SR},           {"state-sr-bf16", SR_BF16},
        {"state-sr-8bit", SR_8BIT}, {"report", FP32, 100},
        {"sampled", FP32, 1}};
    enum { STATES = sizeof states / sizeof *states };
    const int         times = several(5);
    size_t            have = 0, total = 0;
    model             models[STATES];
    std::vector<turn> turns;
    n -= n % tensors;
    good(cudaMemGetInfo(&have, &total));
    if (have / 150 < n) { /* 6 for weights and gradients, in all about 130 for states */
        printf("# no memory for %zu parameters in all states\n", n);
        return;
    }
    float    *weights = on_device<float>(n);
    uint16_t *grads   = on_device<uint16_t>(n);
    launch(fill_halves, n, grads, n);
    for (int i = 0; i < STATES; i++) {
        amp_optimizer *opt = &models[i].opt;
        launch(fill_floats, n, weights, n, 1, 0.04f);
        prepare(&models[i], gpu, weights, grads, n / tensors, tensors, 0.0f, AMP_BF16,
                states[i].state, states[i].every);
        turns.push_back({"amp", states[i].what, times,
                         [opt] { good(amp_optimizer_step(opt, learning_rate)); }});
    }
    launch(fill_floats, n, weights, n, 1, 0.04f);
    take_turns(turns, 3.0, n, tensors);
    for (model &m : models) {
        amp_status status;
        good(amp_optimizer_status(&m.opt, &status));
        must(status.skipped == 0 && status.steps > 0, "a finite step was skipped");
        release(&m);
    }
    for (void *p : {(void *)weights, (void *)grads}) cudaFree(p);
}

/* An embedding: its optimizer is that of prepare, but for the gradient. */
static void measure_rows(amp_backend *gpu) {
    const uint32_t        table = quick ? 100 : 50257, most = quick ? 32 : 8192, same = 7;
    const size_t          length = quick ? 64 : 768, n = table * length;
    std::vector<uint32_t> any(most), one(most, same);
    model                 whole;
    amp_optimizer         few;
    amp_optimizer_desc    desc = {};
    amp_tensor            t    = {};
    float    *weights = on_device<float>(2 * n);
    uint16_t *grads   = on_device<uint16_t>(n);
    uint32_t *rows = on_device<uint32_t>(3 * most + 1), *count = rows + 3 * most;
    for (uint32_t i = 0; i < most; i++) any[i] = scrambled(i) % table;
    launch(fill_floats, 2 * n, weights, 2 * n, 1, 0.04f);
    launch(fill_halves, n, grads, n);
    good(cudaStreamSynchronize(stream));
    good(cudaMemcpy(rows, any.data(), 4 * most, cudaMemcpyHostToDevice));
    good(cudaMemcpy(rows + most, any.data(), 4 * most, cudaMemcpyHostToDevice));
    good(cudaMemcpy(rows + 2 * most, one.data(), 4 * most, cudaMemcpyHostToDevice));
    good(cudaMemcpy(count, &most, 4, cudaMemcpyHostToDevice));
    prepare(&whole, gpu, weights, grads, n, 1, 0.0f);
    desc.backend = gpu;
    desc.dtype   = AMP_F16;
    desc.kind    = AMP_KIND_ADAMW;
    good(amp_optimizer_init(&few, &desc));
    t.n = n, t.weight = weights + n, t.grad = grads, t.grad_type = AMP_F16;
    const amp_rows touched = {length, most, rows, count};
    t.rows = &touched;
    good(amp_optimizer_add(&few, &t));
    good(prepare_scaled(&few));
    const auto touch = [=](const uint32_t *which) {
        good(cudaMemcpyAsync(rows, which, 4 * most, cudaMemcpyDeviceToDevice, stream));
    };
    const auto        step  = [&] { good(amp_optimizer_step(&few, learning_rate)); };
    std::vector<turn> turns = {
        {"amp", "rows", several(5), step, [=] { touch(rows + most); }},
        {"amp", "rows-same", several(5), step, [=] { touch(rows + 2 * most); }},
        {"amp", "rows-all", several(5),
         [&] { good(amp_optimizer_step(&whole.opt, learning_rate)); }}};
    take_turns(turns, 1.0, n, 1);
    amp_status status;
    good(amp_optimizer_status(&few, &status));
    must(status.skipped == 0 && status.steps > 0, "a step of few rows was skipped");
    release(&whole);
    amp_optimizer_free(&few);
    for (void *p : {(void *)weights, (void *)grads, (void *)rows}) cudaFree(p);
}

/* ------------------------------------------------------------------------ single arrays */

static void measure_arrays(size_t n) {
    amp_scaler *scaler  = on_device<amp_scaler>(1);
    float      *weights = on_device<float>(n), *to = on_device<float>(n);
    uint16_t   *grads = on_device<uint16_t>(n);
    amp_scaler  initial;
    const auto  rate = [&](const char *what, double bytes, const std::function<void()> &work) {
        std::vector<turn> turns = {{"amp", what, several(5), work}};
        take_turns(turns, 0.2, n, 1, bytes * (double)n);
    };
    good(amp_scaler_init(&initial, NULL));
    initial.scale = 1.0f; /* so that unscaling again and again changes nothing */
    good(cudaMemcpy(scaler, &initial, sizeof initial, cudaMemcpyHostToDevice));
    launch(fill_floats, n, weights, n, 1, 0.04f);
    launch(fill_halves, n, grads, n);
    rate("array-copy", 4,
         [&] { good(cudaMemcpyAsync(to, grads, 2 * n, cudaMemcpyDeviceToDevice, stream)); });
    rate("cast-f32-f16", 6,
         [&] { good(amp_cuda_cast(to, AMP_F16, weights, AMP_F32, n, stream)); });
    rate("cast-f16-f32", 6, [&] { good(amp_cuda_cast(to, AMP_F32, grads, AMP_F16, n, stream)); });
    rate("scaler-check", 2,
         [&] { good(amp_cuda_scaler_unscale(scaler, NULL, grads, AMP_F16, n, stream)); });
    rate("scaler-unscale", 8,
         [&] { good(amp_cuda_scaler_unscale(scaler, weights, weights, AMP_F32, n, stream)); });
    rate("scaler-unscale-to", 6,
         [&] { good(amp_cuda_scaler_unscale(scaler, to, grads, AMP_F16, n, stream)); });
    rate("scale-loss", 4,
         [&] { good(amp_cuda_scale_loss(grads, AMP_F16, n, &scaler->scale, stream)); });
    for (void *p : {(void *)scaler, (void *)weights, (void *)grads, (void *)to}) cudaFree(p);
}

int main(int argc, char **argv) {
    /* the most wanted first: a visit to a GPU may be short */
    static const size_t full[][2]  = {{124468000, 148}, {1000000, 20},    {10000000, 10000},
                                      {10000000, 50},   {999920000, 580}};
    static const size_t small[][2] = {{20000, 20}, {5000, 100}};
    size_t              most = 1000000000;
    amp_backend         gpu;
    bool                same = true;
    for (int i = 1; i < argc; i++) {
        char *end = NULL;
        if (strcmp(argv[i], "--quick") == 0) quick = true;
        else if (strcmp(argv[i], "--once") == 0) once = true;
        else if ((most = (size_t)strtod(argv[i], &end)) == 0 || *end != '\0') {
            fprintf(stderr, "usage: bench_cuda [--quick | --once] [largest number of parameters]\n");
            return 2;
        }
    }
    begin();
    good(amp_cuda_backend(&gpu, stream, NULL));
    const size_t(*sizes)[2] = quick ? small : full;
    const size_t num_sizes  = quick ? sizeof small / sizeof *small : sizeof full / sizeof *full;
    for (size_t i = 0; i < num_sizes; i++) {
        if (sizes[i][0] <= most) measure(&gpu, sizes[i][0], sizes[i][1]);
        if (i > 0) continue;
        if (!once) same = compare_steps(&gpu); /* if not, what is measured is worth it still */
        measure_states(&gpu, std::min(most, sizes[i][0]), sizes[i][1]);
        if (once) break;
        measure_rows(&gpu);
        measure_arrays(quick ? 20000 : std::min(most, (size_t)124468000));
    }
    return !same;
}
