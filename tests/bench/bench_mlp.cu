/* bench_mlp.cu - a training step of a whole network, and products, beside cuBLAS

   nvcc -O2 -arch=native -I. tests/bench/bench_mlp.cu amp_kernels.cu \
       -lcublas -lcublasLt -o bench_mlp
   ./bench_mlp [--quick]

   The network of the R torch article on automatic mixed precision: three linear layers of 4096,
   with biases, ReLU between, mean squared error, SGD; batches of 512, 513, 256 and 128. Prints rows
   (gpu.h) whose n is the batch and whose tensors are the network's; torch_mlp.py prints the same of
   PyTorch. Everything of one batch takes turns. What, each also with -graph behind it, replayed
   from a CUDA graph:

       mlp-fp32, mlp-tf32   all in fp32
       mlp-autocast         halves, fp32 masters; nobody looks whether gradients are finite
       mlp-norm             the fused step without a scaler: it has the gradients' norm
       mlp-scaler           the fused step with dynamic loss scaling

   In the first three the optimizer is the second of the fused step's two launches alone.
   Products of n x n matrices: amp_sgemm with copies of both operands in its cache
   (sgemm-kept), of one (sgemm-weight) and of none (sgemm-cast); name cublas has cublasGemmEx on
   halves that somebody else has cast, with sums in fp32 (halves), and cublasSgemm (fp32). */

#include <cublas_v2.h>
#include <cuda_runtime.h>
#define AMP_IMPLEMENTATION
#define AMP_CUBLAS
#include "amp.h"

#include <math.h>

#define PROGRAM "bench_mlp"
#include "gpu.h"
#include "../support/prepare.h"

enum { LAYERS = 3, WORKSPACE = 32 << 20, SECONDS = 5 /* for one batch, or one size */ };
static const float learning_rate = 0.1f;

static amp_backend gpu;

static void good(cublasStatus_t status) {
    must(status == CUBLAS_STATUS_SUCCESS, cublasGetStatusString(status));
}

/* ------------------------------------------------------------------------------ kernels */

static __device__ float number(float x) { return x; }
static __device__ float number(uint16_t x) { return ampi_f32_from_bits(ampi_f32_from_f16(x)); }
static __device__ void  put(float *to, float x) { *to = x; }
static __device__ void  put(uint16_t *to, float x) {
    *to = ampi_f16_from_f32(ampi_bits_of_f32(x));
}

/* The loss, and the gradient of its mean, in fp32 and only then rounded, times *scale. */
template <class T>
static __global__ void loss_kernel(T *delta, const float *out, const float *target, uint64_t n,
                                   const float *scale, float *loss) {
    const float factor = 2.0f / (float)n * (scale ? *scale : 1.0f);
    float       sum    = 0.0f;
    FOR_EACH(i, n) {
        const float error = out[i] - target[i];
        sum += error * error;
        put(&delta[i], error * factor);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) atomicAdd(loss, sum / (float)n);
}

template <class T> static __global__ void relu_back_kernel(T *delta, const T *act, uint64_t n) {
    FOR_EACH(i, n)
        if (act[i] == 0) delta[i] = 0;
}

/* Sums over the batch: a block has 32 columns, a warp every eighth row of them. */
template <class T>
static __global__ void bias_grad_kernel(T *grad, const T *delta, int batch, int width) {
    __shared__ float sums[8][32];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    for (int first = (int)blockIdx.x * 32; first < width; first += (int)gridDim.x * 32) {
        const int column = first + lane;
        float     sum    = 0.0f;
        if (column < width)
#pragma unroll 8
            for (int row = warp; row < batch; row += 8)
                sum += number(delta[(size_t)row * (size_t)width + (size_t)column]);
        sums[warp][lane] = sum;
        __syncthreads();
        for (int w = 1; warp == 0 && w < 8; w++) sum += sums[w][lane];
        if (warp == 0 && column < width) put(&grad[column], sum);
        __syncthreads();
    }
}

/* ------------------------------------------------------------------------------ network */

/* Matrices are row-major: a sample a row of act and delta, an output a row of weights. */
struct net {
    const char   *what;
    amp_dtype     type; /* of products' operands, activations and gradients */
    int           tf32, checks;
    int           batch, width;
    float        *input, *target, *out, *loss;
    float        *weight[LAYERS], *bias[LAYERS];
    char         *weight_grad[LAYERS], *bias_grad[LAYERS];
    char         *act[LAYERS], *delta[LAYERS]; /* what layer l reads; the gradient of its product */
    amp_optimizer opt;
    cudaGraphExec_t replay;

    size_t size(void) const { return (size_t)batch * (size_t)width; }

    void product(int trans_a, int trans_b, int m, int n, int k, const void *a, const void *b,
                 void *c, amp_dtype c_type, const void *bias_, int relu) const {
        amp_gemm_args g = {};
        g.trans_a = trans_a, g.trans_b = trans_b;
        g.m = (size_t)m, g.n = (size_t)n, g.k = (size_t)k;
        g.a = a, g.b = b, g.c = c;
        g.a_type = g.b_type = type, g.c_type = g.bias_type = c_type;
        g.bias = bias_, g.tf32 = tf32;
        g.activation = relu ? AMP_ACTIVATION_RELU : AMP_ACTIVATION_NONE;
        good(amp_gemm(&gpu, &g));
    }
    void forward(void) const {
        good(amp_cuda_cast(act[0], type, input, AMP_F32, size(), stream));
        for (int l = 0; l < LAYERS; l++) {
            const bool last = l + 1 == LAYERS; /* in fp32, and so is its bias */
            product(0, 1, batch, width, width, act[l], amp_optimizer_model(&opt, 2 * l),
                    last ? (void *)out : act[l + 1], last ? AMP_F32 : type,
                    amp_optimizer_model(&opt, 2 * l + 1), !last);
        }
    }
    template <class T> void backward(void) const {
        launch(loss_kernel<T>, size() / 16, (T *)delta[LAYERS - 1], out, target, size(),
               amp_optimizer_loss_scale_ptr(&opt), loss);
        for (int l = LAYERS - 1; l >= 0; l--) {
            launch(bias_grad_kernel<T>, (size_t)width * 8 - 1, (T *)bias_grad[l],
                   (const T *)delta[l], batch, width);
            product(1, 0, width, width, batch, delta[l], act[l], weight_grad[l], type, NULL, 0);
            if (l == 0) return;
            product(0, 0, batch, width, width, delta[l], amp_optimizer_model(&opt, 2 * l),
                    delta[l - 1], type, NULL, 0);
            launch(relu_back_kernel<T>, size(), (T *)delta[l - 1], (const T *)act[l], size());
        }
    }
    void step(void) {
        forward();
        if (type == AMP_F32) backward<float>();
        else backward<uint16_t>();
        if (checks) good(amp_optimizer_step_graph(&opt));
        else good(gpu.functions->update_fn(&opt.backend, opt.plan, AMPI_JOB_FUSED));
    }
};

static float loss_of(net *f) { /* of one step */
    float loss = 0.0f;
    good(cudaMemsetAsync(f->loss, 0, sizeof loss, stream));
    f->step();
    good(cudaStreamSynchronize(stream));
    good(cudaMemcpy(&loss, f->loss, sizeof loss, cudaMemcpyDeviceToHost));
    return loss;
}

/* What all forms read and what they leave behind is shared with the first of them. */
static void start(net *f, const net *first) {
    const size_t       w = (size_t)f->width, bytes = f->type == AMP_F32 ? 4 : 2;
    amp_optimizer_desc desc = {};
    desc.dtype           = f->type;
    desc.kind            = AMP_KIND_SGD;
    desc.backend         = &gpu;
    desc.scaler.disabled = f->checks < 2;
    good(amp_optimizer_init(&f->opt, &desc));
    f->input  = f == first ? on_device<float>(f->size()) : first->input;
    f->target = f == first ? on_device<float>(f->size()) : first->target;
    f->out    = f == first ? on_device<float>(f->size()) : first->out;
    f->loss   = f == first ? on_device<float>(1) : first->loss;
    if (f == first) {
        launch(fill_floats, f->size(), f->input, f->size(), 1, 1.7f);
        launch(fill_floats, f->size(), f->target, f->size(), 2, 1.7f);
    }
    for (int l = 0; l < LAYERS; l++) {
        amp_tensor t      = {};
        f->act[l]         = f == first ? on_device<char>(4 * f->size()) : first->act[l];
        f->delta[l]       = f == first ? on_device<char>(4 * f->size()) : first->delta[l];
        f->weight_grad[l] = f == first ? on_device<char>(4 * w * w) : first->weight_grad[l];
        f->bias_grad[l]   = f == first ? on_device<char>(4 * w) : first->bias_grad[l];
        f->weight[l]      = on_device<float>(w * w);
        f->bias[l]        = on_device<float>(w);
        launch(fill_floats, w * w, f->weight[l], w * w, 3 + (uint64_t)l, 1.0f / sqrtf((float)w));
        launch(fill_floats, w, f->bias[l], w, 6 + (uint64_t)l, 1.0f / sqrtf((float)w));
        t.n = w * w, t.weight = f->weight[l], t.grad = f->weight_grad[l], t.grad_type = f->type;
        good(amp_optimizer_add(&f->opt, &t));
        t.n = w, t.weight = f->bias[l], t.grad = f->bias_grad[l], t.keep_fp32 = l + 1 == LAYERS;
        good(amp_optimizer_add(&f->opt, &t));
        good(cudaMemsetAsync(f->weight_grad[l], 0, bytes * w * w, stream));
        good(cudaMemsetAsync(f->bias_grad[l], 0, bytes * w, stream));
    }
    good(prepare_scaled(&f->opt));
    good(amp_optimizer_set_lr(&f->opt, learning_rate));
    good(amp_optimizer_step_graph(&f->opt)); /* of zeros: the gate is open now, even if nobody checks */
}

static void drop(net *f, const net *first) {
    cudaGraphExecDestroy(f->replay);
    amp_optimizer_free(&f->opt);
    for (int l = 0; l < LAYERS; l++) {
        cudaFree(f->weight[l]), cudaFree(f->bias[l]);
        if (f != first) continue;
        cudaFree(f->weight_grad[l]), cudaFree(f->bias_grad[l]);
        cudaFree(f->act[l]), cudaFree(f->delta[l]);
    }
    if (f != first) return;
    cudaFree(f->input), cudaFree(f->target), cudaFree(f->out), cudaFree(f->loss);
}

static std::vector<float> weights_of(const net *f) {
    const size_t       w = (size_t)f->width, part = w * w + w;
    std::vector<float> x(LAYERS * part);
    for (size_t l = 0; l < LAYERS; l++) {
        good(cudaMemcpy(&x[l * part], f->weight[l], 4 * w * w, cudaMemcpyDeviceToHost));
        good(cudaMemcpy(&x[l * part + w * w], f->bias[l], 4 * w, cudaMemcpyDeviceToHost));
    }
    return x;
}

/* Are the gradients those of the loss? To first order a small step lowers it by the rate times the
   sum of their squares; what that leaves out is less than 1 % here, with the rounding of halves. */
static void check_gradients(net *f) {
    const std::vector<float> from   = weights_of(f);
    const float              loss   = loss_of(f);
    const std::vector<float> to     = weights_of(f);
    double                   square = 0.0;
    for (size_t i = 0; i < from.size(); i++)
        square += (double)(from[i] - to[i]) * (double)(from[i] - to[i]);
    const double fall = (double)loss - (double)loss_of(f), expected = square / learning_rate;
    must(fabs(fall - expected) < 0.02 * expected, "gradients are not those of the loss");
}

static void measure_network(int batch, int width) {
    static const struct form {
        const char *eager, *graph;
        amp_dtype   type;
        int         tf32, checks; /* 0: never, 1: without a scaler, 2: with one */
    } forms[]  = {{"mlp-scaler", "mlp-scaler-graph", AMP_F16, 0, 2},
                  {"mlp-autocast", "mlp-autocast-graph", AMP_F16, 0, 0},
                  {"mlp-norm", "mlp-norm-graph", AMP_F16, 0, 1},
                  {"mlp-tf32", "mlp-tf32-graph", AMP_F32, 1, 0},
                  {"mlp-fp32", "mlp-fp32-graph", AMP_F32, 0, 0}};
    enum { COUNT = sizeof forms / sizeof *forms };
    static net        nets[COUNT];
    std::vector<turn> turns;
    amp_status        status;
    float             loss[COUNT];
    for (int i = 0; i < COUNT; i++) {
        net *f = &nets[i];
        *f     = net();
        f->type = forms[i].type, f->tf32 = forms[i].tf32, f->checks = forms[i].checks;
        f->batch = batch, f->width = width;
        start(f, nets);
        loss[i]   = loss_of(f);
        f->replay = captured([=] { f->step(); });
        turns.push_back(turn("amp", forms[i].eager, quick ? 1 : 5, [=] { f->step(); }));
        turns.push_back(turn("amp", forms[i].graph, quick ? 1 : 5,
                             [=] { good(cudaGraphLaunch(f->replay, stream)); }));
    }
    for (int i = 0; i < COUNT; i++) /* halves round to 11 bits, and errors cancel in a mean */
        must(fabsf(loss[i] - loss[COUNT - 1]) <= 0.001f * loss[COUNT - 1],
             "the loss of the first step is not fp32's");
    if (quick) /* with a scaler, and in fp32 */
        for (int i = 0; i < COUNT; i += COUNT - 1) check_gradients(&nets[i]);
    take_turns(turns, SECONDS, (size_t)batch, 2 * LAYERS);
    good(amp_optimizer_status(&nets[0].opt, &status));
    must(status.skipped == 0, "a step with a scaler was skipped");
    for (int i = 0; i < COUNT; i++)
        must(loss_of(&nets[i]) <= loss[i], "a loss has not fallen");
    for (int i = COUNT - 1; i >= 0; i--) drop(&nets[i], nets);
}

/* ----------------------------------------------------------------------------- products */

/* Two sums of the same n products in [-1, 1], a quarter on average, in other orders, differ by at
   most 2 n roundings of what is summed. */
static void compare_products(const float *a, const float *b, size_t n) {
    std::vector<float> x(n), y(n);
    const float        bound = 2.0f * (float)n * 6e-8f * (float)n / 4.0f;
    good(cudaStreamSynchronize(stream));
    good(cudaMemcpy(x.data(), a + (n - 1) * n, 4 * n, cudaMemcpyDeviceToHost));
    good(cudaMemcpy(y.data(), b + (n - 1) * n, 4 * n, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < n; i++)
        must(fabsf(x[i] - y[i]) <= bound, "amp_sgemm and cublasGemmEx disagree");
}

static void measure_products(cublasHandle_t blas, int n) {
    const size_t size = (size_t)n * (size_t)n;
    const int    times = quick ? 1 : n < 4096 ? 20 : 5;
    const float  one = 1.0f, zero = 0.0f;
    float       *x[4], *c = on_device<float>(size), *d = on_device<float>(size);
    uint16_t    *half[2];
    static amp_session session;
    amp_session_desc   desc = {};
    for (int i = 0; i < 4; i++) {
        x[i] = on_device<float>(size);
        launch(fill_floats, size, x[i], size, 1 + (uint64_t)i % 2, 1.0f);
        if (i >= 2) continue;
        half[i] = on_device<uint16_t>(size);
        good(amp_cuda_cast(half[i], AMP_F16, x[i], AMP_F32, size, stream));
    }
    desc.backend   = &gpu;
    desc.num_bytes = 8 * size + (1 << 20);
    good(amp_session_start(&session, &desc));
    good(amp_session_add(&session, x[0], size));
    good(amp_session_add(&session, x[1], size));

    const auto sgemm = [=](const float *a, const float *b) {
        good(amp_sgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, a, n, b, n, &zero, c, n));
    };
    const auto halves = [=] {
        good(cublasGemmEx(blas, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, half[0], CUDA_R_16F, n,
                          half[1], CUDA_R_16F, n, &zero, d, CUDA_R_32F, n, CUBLAS_COMPUTE_32F,
                          CUBLAS_GEMM_DEFAULT));
    };
    std::vector<turn> turns = {
        {"amp", "sgemm-kept", times, [=] { sgemm(x[0], x[1]); }},
        {"amp", "sgemm-weight", times, [=] { sgemm(x[0], x[3]); }},
        {"amp", "sgemm-cast", times, [=] { sgemm(x[2], x[3]); }},
        {"cublas", "halves", times, halves},
        {"cublas", "fp32", times, [=] {
             good(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, x[0], n, x[1], n,
                              &zero, d, n));
         }}};
    halves();
    for (int i = 0; i < 3; i++) {
        turns[(size_t)i].work();
        compare_products(c, d, (size_t)n);
    }
    must(session.fallbacks == 0 && session.misses == 2, "amp_sgemm has not cast as it should");
    take_turns(turns, SECONDS, (size_t)n, 1);
    amp_session_end(&session);
    for (int i = 0; i < 4; i++) cudaFree(x[i]);
    for (void *p : {(void *)c, (void *)d, (void *)half[0], (void *)half[1]}) cudaFree(p);
}

int main(int argc, char **argv) {
    cublasHandle_t   plain, mixed; /* amp.h sets modes on its own */
    static const int batches[] = {512, 513, 256, 128}, sizes[] = {4096, 2048, 8192, 1024};
    static const int small[]   = {32, 33};
    if (argc == 2 && strcmp(argv[1], "--quick") == 0) quick = true;
    else if (argc > 1) {
        fprintf(stderr, "usage: bench_mlp [--quick]\n");
        return 2;
    }
    begin();
    good(cublasCreate(&plain));
    good(cublasCreate(&mixed));
    good(cublasSetStream(plain, stream));
    good(amp_cuda_backend(&gpu, stream, mixed));
    gpu.workspace      = on_device<char>(WORKSPACE);
    gpu.workspace_size = WORKSPACE;
    for (int i = 0; i < (quick ? 2 : 4); i++) {
        measure_network(quick ? small[i] : batches[i], quick ? 64 : 4096);
        if (i == 0) measure_products(plain, quick ? 64 : sizes[0]);
    }
    for (int i = 1; i < (quick ? 1 : 4); i++) measure_products(plain, sizes[i]);
    cublasDestroy(plain);
    cublasDestroy(mixed);
    return 0;
}
