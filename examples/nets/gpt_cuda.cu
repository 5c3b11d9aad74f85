/* gpt_cuda.cu - the GPT of gpt.c on a GPU: a whole step, without the host, in one CUDA graph

   The same network on the same text from the same seeds: blocks of causal attention and GELU, in
   fp32, fp16 and bf16, forward and backward by hand. cuBLAS multiplies, through amp_gemm; the
   kernels here do the rest, in fp32 arithmetic, on what is stored in the type of the run; amp.h's
   AdamW checks, clips and steps, and moves the loss scale.

   A step draws a batch of the text, which is on the GPU, then runs forward, loss, backward, AdamW.
   All of it is captured once and replayed. What changes from step to step is read on the GPU: the
   loss scale, and the number of steps taken (amp_optimizer_gate), which gives the batch and the
   learning rate. So nothing waits: the host queues replays, and asks every few steps how far it is.
   No kernel adds floats by atomics: a replayed run gives the same bits.

   BUILD AND RUN, in the directory of amp.h:

       nvcc -O3 -arch=native -I. examples/nets/gpt_cuda.cu amp_kernels.cu \
           -lcublas -lcublasLt -o gpt_cuda
       ./gpt_cuda                                                               see also --help

   READ  from top to bottom: the network, forward, backward, train_step and capture; then runs. The
   kernels are in gpt_kernels.cuh. Mixed precision is in training_in (gpt_setup.h), weight,
   batch_kernel, which reads the loss scale, and at T, the type in which the run stores. Options,
   tables and the text are in gpt_report.h, which gpt.c has, too.

   COLUMNS  as in gpt.c; tokens/s from events around replays, the types in turns. fp32 is fp32, not
   TF32.

   ROWS  A row is a token: row = position * sequences + sequence. In a row of qkv, column = head * 3
   depth + (query, key, value) * depth. So tokens of one position lie side by side, and so do query,
   key and value of a head. The matrices of all heads of all sequences then are one strided batch,
   with a stride of 3 depth, and nothing is transposed. */

#define PROGRAM "gpt_cuda"
#define AMP_IMPLEMENTATION
#include "amp.h"

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include "gpt_kernels.cuh"
#include "gpt_report.h" /* options, text, report */
#include "gpt_setup.h"  /* tensors, how they begin, the optimizer */
#include "../support/cuda_must.cuh"

enum { EVERY = 10, WORKSPACE = 32 << 20 }; /* steps between two waits; bytes for products */

static const options *standard(void) {
    static const options o = {"amp.h", NULL, NULL, NULL, "build", NULL, NULL,
                              6, 384, 6, 256, 16, 250, 3, ALL_TYPES, 0, 25, 0, 0, 0, 1.5e-3f,
                              1, NULL, 0, 0};
    return &o;
}

/* -------------------------------------------------------------------------------------- the GPU */

static struct gpu {
    cudaStream_t   stream;
    cublasHandle_t blas;
    amp_backend    backend;       /* with a workspace for products */
    cudaDeviceProp device;
    unsigned char *train, *held;  /* the text */
} gpu;

/* Device memory whose elements have the type of the run: a pointer to whatever is asked for. */
struct memory {
    void *p;
    template <class T> operator T *() const { return (T *)p; }
};

static memory device_alloc(size_t num_bytes) {
    memory m = {NULL};
    char   size[64];
    if (cudaMalloc(&m.p, num_bytes) == cudaSuccess) {
        must(cudaMemsetAsync(m.p, 0, num_bytes, gpu.stream));
        return m;
    }
    sprintf(size, "%.1f MiB more do not fit", (double)num_bytes / 1048576.0);
    fail(1, "GPU memory", size, "choose a smaller --batch, --layers, --width");
    return m;
}

static unsigned over(size_t n, size_t part) { return (unsigned)((n + part - 1) / part); }
static dim3     for_rows(int rows) { return dim3(over((size_t)rows, WARPS)); }
static dim3     for_quads(size_t n) { return dim3(over(n, 4 * THREADS)); }
static dim3     for_strips(int rows, int cols) {
    const unsigned slices = over((size_t)rows, 64);
    return dim3(over((size_t)cols, STRIP), slices < MAX_SLICES ? slices : (unsigned)MAX_SLICES);
}

/* -------------------------------------------------------------------------------------- network */

/* What a block keeps for its backward pass. The one behind the last is the head: of it in, norm1
   and stats1 are used. */
struct layer {
    memory in, mid;        /* residual stream: before the block, and between its halves     */
    memory norm1, norm2;   /* rows x width                                                  */
    memory qkv, mix;       /* rows x 3 width; rows x width: what heads took from the values */
    memory prob;           /* for each sequence and head: context x context                 */
    memory up, gelu;       /* rows x 4 width: before GELU; after                            */
    memory stats1, stats2; /* of each row before the norm: mean, 1 / standard deviation     */
};

struct gpt {
    const options  *o;
    amp_dtype       type;
    int             layers, width, heads, context, batch;
    layer           at[MAX_LAYERS + 1];
    amp_tensor      tensor[MAX_TENSORS];
    char            names[MAX_TENSORS][128], run[RUN_SIZE];
    amp_optimizer   opt;
    memory          token, target, one_hot;        /* the batch                                   */
    memory          stream_grad, y, logits;        /* fp32: rows x width; rows x 256              */
    memory          stream_low, mix_grad, wide;    /* gradients for products; widest: 4 width     */
    memory          score, score_grad;             /* fp32; for products: batch heads context^2   */
    memory          losses, held_losses, factor;   /* of each step; of batches of held-out text   */
    room            sums;
    void          (*forward)(gpt *, int sequences);
    cudaGraphExec_t step;                          /* a whole one                                 */
    uint64_t        rng;
    size_t          num_params, bytes[NUM_MEMORIES];
    memory          owned[3 * MAX_TENSORS + 16 * MAX_LAYERS];
    int             num_owned;
};

/* Zeros on the device that gpt_free releases and the table shows. */
static memory gpt_alloc(gpt *n, int kind, size_t count, amp_dtype type) {
    n->bytes[kind] += count * amp_dtype_size(type);
    return n->owned[n->num_owned++] = device_alloc(count * amp_dtype_size(type));
}

/* As gpt.c has it, column j of qkv is one of all queries, all keys, all values; here they lie by
   heads. */
static size_t qkv_column(const gpt *n, size_t j) {
    const size_t c = (size_t)n->width, depth = c / (size_t)n->heads;
    return j % c / depth * 3 * depth + j / c * depth + j % depth;
}

/* Describe tensor i, with its memory: a master, and gradients of its type, but fp32 where few or
   where several products meet. */
static void add_tensor(gpt *n, int i, const beginning *b) {
    const size_t qkv    = 3 * (size_t)n->width;
    const int    part   = part_of(i), is_weight = b->deviation > 0.0f;
    amp_tensor  *t      = &n->tensor[i];
    float       *master = (float *)need(b->count, sizeof *master);
    sprintf(n->names[i], "%s%s", b->name, part == QKV ? " by heads" : "");
    t->name            = n->names[i];
    t->n               = b->count;
    t->weight_decay    = is_weight ? 0.0f : -1.0f; /* -1: none */
    t->keep_fp32       = !is_weight && part != QKV_BIAS && part != UP_BIAS; /* of 16-bit sums */
    t->grad_type       = is_weight && part >= 0 ? n->type : AMP_F32;
    t->weight          = gpt_alloc(n, STATE, t->n, AMP_F32);
    t->grad            = gpt_alloc(n, STATE, t->n, t->grad_type);
    for (size_t j = 0; j < t->n; j++)
        master[part == QKV ? j / qkv * qkv + qkv_column(n, j % qkv) : j] =
            random_weight(b, &n->rng);
    must(cudaMemcpyAsync(t->weight, master, t->n * sizeof *master, cudaMemcpyHostToDevice,
                         gpu.stream));
    must(cudaStreamSynchronize(gpu.stream));
    free(master);
    n->num_params += t->n;
    n->bytes[STATE] += t->n * 8; /* what amp.h will have for it: moments, and the copy */
    if (n->type != AMP_F32 && !t->keep_fp32) n->bytes[STATE] += t->n * amp_dtype_size(n->type);
}

static void setup_optimizer(gpt *n) {
    amp_optimizer_desc desc = training_in(n->type);
    desc.backend = &gpu.backend;
    must(amp_optimizer_init(&n->opt, &desc));
    for (int i = 0; i < num_tensors(n->o); i++) must(amp_optimizer_add(&n->opt, &n->tensor[i]));
    must(name_run(&n->opt, n->run));
    must(amp_optimizer_prepare(&n->opt));
}

/* All that a step needs besides weights. In fp32, products read the stream's gradient itself. */
static void allocate(gpt *n) {
    const size_t rows = (size_t)n->batch * n->context, c = (size_t)n->width;
    const size_t square = (size_t)n->batch * n->heads * n->context * n->context;
    const size_t widest = 4 * c > VOCABULARY ? 4 * c : (size_t)VOCABULARY;
    for (int l = 0; l <= n->layers; l++) {
        layer *b = &n->at[l];
        b->in     = gpt_alloc(n, ACTIVATIONS, rows * c, n->type);
        b->norm1  = gpt_alloc(n, ACTIVATIONS, rows * c, n->type);
        b->stats1 = gpt_alloc(n, ACTIVATIONS, rows * 2, AMP_F32);
        if (l == n->layers) break;
        b->qkv    = gpt_alloc(n, ACTIVATIONS, rows * 3 * c, n->type);
        b->prob   = gpt_alloc(n, ACTIVATIONS, square, n->type);
        b->mix    = gpt_alloc(n, ACTIVATIONS, rows * c, n->type);
        b->mid    = gpt_alloc(n, ACTIVATIONS, rows * c, n->type);
        b->norm2  = gpt_alloc(n, ACTIVATIONS, rows * c, n->type);
        b->stats2 = gpt_alloc(n, ACTIVATIONS, rows * 2, AMP_F32);
        b->up     = gpt_alloc(n, ACTIVATIONS, rows * 4 * c, n->type);
        b->gelu   = gpt_alloc(n, ACTIVATIONS, rows * 4 * c, n->type);
    }
    n->token        = gpt_alloc(n, WORK, over(rows, 4), AMP_F32);
    n->target       = gpt_alloc(n, WORK, over(rows, 4), AMP_F32);
    n->one_hot      = gpt_alloc(n, WORK, rows * VOCABULARY, n->type);
    n->stream_grad  = gpt_alloc(n, WORK, rows * c, AMP_F32);
    n->stream_low   = n->type == AMP_F32 ? n->stream_grad : gpt_alloc(n, WORK, rows * c, n->type);
    n->y            = gpt_alloc(n, WORK, rows * c, AMP_F32);
    n->logits       = gpt_alloc(n, WORK, rows * VOCABULARY, AMP_F32);
    n->mix_grad     = gpt_alloc(n, WORK, rows * c, n->type);
    n->wide         = gpt_alloc(n, WORK, rows * widest, n->type);
    n->score        = gpt_alloc(n, WORK, square, AMP_F32);
    n->score_grad   = gpt_alloc(n, WORK, square, n->type);
    n->losses       = gpt_alloc(n, WORK, 2 * ((size_t)n->o->steps + 1), AMP_F32); /* doubles */
    n->held_losses  = gpt_alloc(n, WORK, 2 * HELD_WINDOWS, AMP_F32);
    n->factor       = gpt_alloc(n, WORK, 1, AMP_F32);
    n->sums.part    = gpt_alloc(n, WORK, MAX_SLICES * 4 * (c + STRIP), AMP_F32);
    n->sums.loss    = gpt_alloc(n, WORK, 2 * over(rows, WARPS), AMP_F32);
    n->sums.counter = gpt_alloc(n, WORK, over(4 * c, STRIP), AMP_F32);
    n->bytes[WORK] += gpu.backend.workspace_size;
}

/* What products read, the half copy or the master; what kernels read; what both write. */
static memory weight(const gpt *n, int i) {
    const memory m = {(void *)amp_optimizer_model(&n->opt, i)};
    return m;
}
static float *master(const gpt *n, int i) { return n->tensor[i].weight; }
static memory grad(const gpt *n, int i) {
    const memory m = {n->tensor[i].grad};
    return m;
}

static amp_status status_of(const gpt *n) {
    amp_status status;
    must(amp_optimizer_status(&n->opt, &status));
    return status;
}

/* ------------------------------------------------------------------------------------- products */

/* c = op(a) op(b) + beta c + bias, rows x cols, over k; a and b of the run's type, bias of c's, sums
   in fp32. */
static void multiply(const gpt *n, int trans_a, int trans_b, int rows, int cols, int k,
                     const void *a, const void *b, void *c, amp_dtype c_type, float beta = 0.0f,
                     const void *bias = NULL) {
    amp_gemm_args g = {};
    g.trans_a = trans_a, g.trans_b = trans_b;
    g.m = (size_t)rows, g.n = (size_t)cols, g.k = (size_t)k, g.beta = beta;
    g.a = a, g.b = b, g.c = c, g.bias = bias;
    g.a_type = g.b_type = n->type, g.c_type = g.bias_type = c_type;
    must(amp_gemm(&gpu.backend, &g));
}

/* A matrix for each head of each sequence: rows ld apart, matrices stride apart. */
struct per_head {
    void     *x;
    amp_dtype type;
    size_t    ld, stride;
};

static void multiply_heads(const gpt *n, int sequences, int trans_a, int trans_b, int rows,
                           int cols, int k, float alpha, per_head a, per_head b, per_head c) {
    amp_gemm_args g = {};
    g.trans_a = trans_a, g.trans_b = trans_b;
    g.m = (size_t)rows, g.n = (size_t)cols, g.k = (size_t)k, g.alpha = alpha;
    g.a = a.x, g.a_type = a.type, g.lda = a.ld, g.stride_a = a.stride;
    g.b = b.x, g.b_type = b.type, g.ldb = b.ld, g.stride_b = b.stride;
    g.c = c.x, g.c_type = c.type, g.ldc = c.ld, g.stride_c = c.stride;
    g.count = (size_t)(sequences * n->heads);
    must(amp_gemm(&gpu.backend, &g));
}

/* Query, key or value (part 0, 1, 2) in a matrix as qkv; what is mixed of values; scores. */
static per_head head_of_qkv(const gpt *n, memory qkv, int sequences, int part) {
    const size_t   depth = (size_t)(n->width / n->heads);
    const per_head h     = {(char *)qkv.p + part * depth * amp_dtype_size(n->type), n->type,
                            (size_t)(sequences * 3 * n->width), 3 * depth};
    return h;
}

static per_head head_of_mix(const gpt *n, memory mix, int sequences) {
    const per_head h = {mix, n->type, (size_t)(sequences * n->width),
                        (size_t)(n->width / n->heads)};
    return h;
}

static per_head head_of_square(const gpt *n, memory square, amp_dtype type) {
    const per_head h = {square, type, (size_t)n->context, (size_t)(n->context * n->context)};
    return h;
}

/* -------------------------------------------------------------------------------------- forward */

/* The next norm, of what the stream becomes with y. */
template <class T>
static void norm(gpt *n, int rows, memory in, const float *y, memory out, memory to, memory stats,
                 int gain) {
    norm_kernel<T><<<for_rows(rows), THREADS, 0, gpu.stream>>>(in, y, out, to, stats,
        master(n, gain), master(n, gain + 1), rows, n->width);
}

template <class T> static void block_forward(gpt *n, int l, int sequences) {
    layer         *b = &n->at[l];
    const int      t = n->context, c = n->width, depth = c / n->heads, rows = sequences * t;
    const per_head q = head_of_qkv(n, b->qkv, sequences, 0);
    const per_head k = head_of_qkv(n, b->qkv, sequences, 1);
    const per_head v = head_of_qkv(n, b->qkv, sequences, 2);

    multiply(n, 0, 0, rows, 3 * c, c, b->norm1, weight(n, tensor_of(l, QKV)), b->qkv, n->type, 0.0f,
             weight(n, tensor_of(l, QKV_BIAS)));
    multiply_heads(n, sequences, 0, 1, t, t, depth, 1.0f / sqrtf((float)depth), q, k,
                   head_of_square(n, n->score, AMP_F32));
    softmax_kernel<T><<<for_rows(sequences * n->heads * t), THREADS, 0, gpu.stream>>>(b->prob,
        n->score, sequences * n->heads * t, t);
    multiply_heads(n, sequences, 0, 0, t, depth, t, 1.0f, head_of_square(n, b->prob, n->type), v,
                   head_of_mix(n, b->mix, sequences));
    multiply(n, 0, 0, rows, c, c, b->mix, weight(n, tensor_of(l, OUT)), n->y, AMP_F32, 0.0f,
             master(n, tensor_of(l, OUT_BIAS)));
    norm<T>(n, rows, b->in, n->y, b->mid, b->norm2, b->stats2, tensor_of(l, GAIN2));

    multiply(n, 0, 0, rows, 4 * c, c, b->norm2, weight(n, tensor_of(l, UP)), b->up, n->type, 0.0f,
             weight(n, tensor_of(l, UP_BIAS)));
    gelu_kernel<T><<<for_quads((size_t)rows * 4 * c), THREADS, 0, gpu.stream>>>(b->gelu, b->up,
        (size_t)rows * 4 * c);
    multiply(n, 0, 0, rows, c, 4 * c, b->gelu, weight(n, tensor_of(l, DOWN)), n->y, AMP_F32, 0.0f,
             master(n, tensor_of(l, DOWN_BIAS)));
    norm<T>(n, rows, b->mid, n->y, b[1].in, b[1].norm1, b[1].stats1,
            l + 1 < n->layers ? tensor_of(l + 1, GAIN1) : LAST_GAIN);
}

/* From tokens to logits. */
template <class T> static void forward(gpt *n, int sequences) {
    const int rows = sequences * n->context, c = n->width;
    layer    *first = &n->at[0];
    embed_kernel<T><<<for_rows(rows), THREADS, 0, gpu.stream>>>(first->in, weight(n, EMBEDDING),
        weight(n, POSITIONS), n->token, sequences, rows, c);
    norm<T>(n, rows, first->in, NULL, first->in, first->norm1, first->stats1, tensor_of(0, GAIN1));
    for (int l = 0; l < n->layers; l++) block_forward<T>(n, l, sequences);
    multiply(n, 0, 1, rows, VOCABULARY, c, n->at[n->layers].norm1, weight(n, EMBEDDING), n->logits,
             AMP_F32);
}

/* ------------------------------------------------------------------------------------- backward */

/* From y, the gradient behind a norm, to that of the stream before it, with those of the norm and
   of the bias which was added there. */
template <class T>
static void norm_back(gpt *n, memory in, memory stats, int gain, int stream_bias) {
    const int rows = n->batch * n->context, c = n->width;
    norm_back_kernel<T><<<for_rows(rows), THREADS, 0, gpu.stream>>>(n->stream_grad,
        n->stream_low, n->y, in, stats, master(n, gain), gain == LAST_GAIN, rows, c);
    norm_sums_kernel<T><<<for_strips(rows, c), THREADS, 0, gpu.stream>>>(n->y, in, stats,
        n->stream_grad, grad(n, gain), grad(n, gain + 1),
        stream_bias ? grad(n, stream_bias) : memory(), rows, c, n->sums);
}

/* From the gradient by mix, in mix_grad, to that by qkv, in wide. */
template <class T> static void attention_back(gpt *n, int l) {
    layer      *b = &n->at[l];
    const int   batch = n->batch, t = n->context, c = n->width, depth = c / n->heads;
    const int   rows = batch * t, squares = batch * n->heads * t;
    const float alpha = 1.0f / sqrtf((float)depth);
    const per_head q = head_of_qkv(n, b->qkv, batch, 0), k = head_of_qkv(n, b->qkv, batch, 1);
    const per_head v = head_of_qkv(n, b->qkv, batch, 2);
    const per_head dq = head_of_qkv(n, n->wide, batch, 0), dk = head_of_qkv(n, n->wide, batch, 1);
    const per_head dv = head_of_qkv(n, n->wide, batch, 2);
    const per_head p = head_of_square(n, b->prob, n->type);
    const per_head ds = head_of_square(n, n->score_grad, n->type);
    const per_head dmix = head_of_mix(n, n->mix_grad, batch);

    multiply_heads(n, batch, 0, 1, t, t, depth, 1.0f, dmix, v,
                   head_of_square(n, n->score, AMP_F32));
    multiply_heads(n, batch, 1, 0, t, depth, t, 1.0f, p, dmix, dv);
    softmax_back_kernel<T><<<for_rows(squares), THREADS, 0, gpu.stream>>>(n->score_grad,
        b->prob, n->score, squares, t);
    multiply_heads(n, batch, 0, 0, t, depth, t, alpha, ds, k, dq);
    multiply_heads(n, batch, 1, 0, t, depth, t, alpha, ds, q, dk);
    bias_grad_kernel<T><<<for_strips(rows, 3 * c), THREADS, 0, gpu.stream>>>(n->wide,
        grad(n, tensor_of(l, QKV_BIAS)), rows, 3 * c, n->sums);
}

template <class T> static void block_back(gpt *n, int l) {
    layer    *b = &n->at[l];
    const int rows = n->batch * n->context, c = n->width, part = tensor_of(l, 0);

    multiply(n, 1, 0, 4 * c, c, rows, b->gelu, n->stream_low, grad(n, part + DOWN), n->type);
    multiply(n, 0, 1, rows, 4 * c, c, n->stream_low, weight(n, part + DOWN), n->wide, n->type);
    gelu_back_kernel<T><<<for_strips(rows, 4 * c), THREADS, 0, gpu.stream>>>(n->wide, b->up,
        grad(n, part + UP_BIAS), rows, 4 * c, n->sums);
    multiply(n, 1, 0, c, 4 * c, rows, b->norm2, n->wide, grad(n, part + UP), n->type);
    multiply(n, 0, 1, rows, c, 4 * c, n->wide, weight(n, part + UP), n->y, AMP_F32);
    norm_back<T>(n, b->mid, b->stats2, part + GAIN2, part + OUT_BIAS);

    multiply(n, 1, 0, c, c, rows, b->mix, n->stream_low, grad(n, part + OUT), n->type);
    multiply(n, 0, 1, rows, c, c, n->stream_low, weight(n, part + OUT), n->mix_grad, n->type);
    attention_back<T>(n, l);
    multiply(n, 1, 0, c, 3 * c, rows, b->norm1, n->wide, grad(n, part + QKV), n->type);
    multiply(n, 0, 1, rows, c, 3 * c, n->wide, weight(n, part + QKV), n->y, AMP_F32);
    norm_back<T>(n, b->in, b->stats1, part + GAIN1, l ? tensor_of(l - 1, DOWN_BIAS) : 0);
}

/* From the gradient by the logits, in wide, which carries the loss scale. The embedding is the
   head, too: the gradients of both are products, summed in fp32 in one place. */
template <class T> static void backward(gpt *n) {
    const int rows = n->batch * n->context, c = n->width;
    layer    *head = &n->at[n->layers];
    multiply(n, 1, 0, VOCABULARY, c, rows, n->wide, head->norm1, grad(n, EMBEDDING), AMP_F32);
    multiply(n, 0, 0, rows, c, VOCABULARY, n->wide, weight(n, EMBEDDING), n->y, AMP_F32);
    norm_back<T>(n, head->in, head->stats1, LAST_GAIN, tensor_of(n->layers - 1, DOWN_BIAS));
    for (int l = n->layers; l-- > 0;) block_back<T>(n, l);
    multiply(n, 1, 0, VOCABULARY, c, rows, n->one_hot, n->stream_low, grad(n, EMBEDDING), AMP_F32,
             1.0f);
    position_grad_kernel<<<for_quads((size_t)n->context * c), THREADS, 0, gpu.stream>>>(
        grad(n, POSITIONS), n->stream_grad, n->batch, n->context, c);
}

/* ------------------------------------------------------------------------------------- the step */

/* All of it is queued, and every replay is the next step: the host says nothing more. */
template <class T> static void train_step(gpt *n, schedule when, size_t num_train) {
    const int rows = n->batch * n->context;
    batch_kernel<T><<<for_quads((size_t)rows * VOCABULARY), THREADS, 0, gpu.stream>>>(when,
        gpu.train, num_train, n->batch, n->context, n->token, n->target, n->one_hot);
    forward<T>(n, n->batch);
    loss_kernel<T><<<for_rows(rows), THREADS, 0, gpu.stream>>>(n->logits, n->target, rows,
        n->wide, n->factor, n->sums, n->losses, when.gate);
    backward<T>(n);
    must(cudaGetLastError());
    must(amp_optimizer_step_graph(&n->opt)); /* check, clip, unscale, AdamW, new scale, new copies */
}

/* Relaxed, since a kernel may be loaded at its first launch, and that is here. */
template <class T> static void capture(gpt *n, int seed, const text *t) {
    const schedule when = {amp_optimizer_gate(&n->opt), amp_optimizer_scaler(&n->opt),
                           amp_optimizer_lr_ptr(&n->opt), n->factor, n->o->lr, n->o->steps,
                           n->o->overflow, (uint64_t)seed};
    n->forward = forward<T>;
    must(cudaStreamBeginCapture(gpu.stream, cudaStreamCaptureModeRelaxed));
    train_step<T>(n, when, t->num_train);
    n->step = end_capture(gpu.stream);
}

/* The network in a type, ready to be replayed. */
static void gpt_init(gpt *n, const options *o, const text *t, amp_dtype type, int seed) {
    memset(n, 0, sizeof *n);
    n->o = o, n->type = type;
    n->layers = o->layers, n->width = o->width, n->heads = o->heads, n->context = o->context;
    n->batch = o->batch, n->rng = seed_of_weights(seed);
    for (int i = 0; i < num_tensors(o); i++) {
        const beginning b = beginning_of(o, i);
        add_tensor(n, i, &b);
    }
    describe_run(n->run, o, t, type);
    allocate(n);
    setup_optimizer(n);
    if (type == AMP_F32) capture<float>(n, seed, t);
    else if (type == AMP_F16) capture<__half>(n, seed, t);
    else capture<__nv_bfloat16>(n, seed, t);
}

static void gpt_free(gpt *n) {
    if (n->step) must(cudaGraphExecDestroy(n->step));
    amp_optimizer_free(&n->opt);
    while (n->num_owned > 0) must(cudaFree(n->owned[--n->num_owned]));
    n->step = NULL;
}

/* ----------------------------------------------------------------------------------------- runs */

/* The mean loss of windows all over the text that training never sees; one wait. */
static double evaluate(gpt *n, const text *t) {
    const int windows = (int)held_windows(t, (size_t)n->context);
    double   *out = n->held_losses, losses[HELD_WINDOWS], loss = 0.0;
    for (int w = 0; w < windows; w += n->batch) {
        const int some = windows - w < n->batch ? windows - w : n->batch, rows = some * n->context;
        held_kernel<<<dim3(over((size_t)rows, THREADS)), THREADS, 0, gpu.stream>>>(gpu.held,
            t->num_held, w, windows, some, n->context, n->token, n->target);
        n->forward(n, some);
        loss_kernel<float><<<for_rows(rows), THREADS, 0, gpu.stream>>>(n->logits, n->target,
            rows, NULL, NULL, n->sums, out + w, NULL);
        must(cudaGetLastError());
    }
    must(cudaMemcpyAsync(losses, out, sizeof losses, cudaMemcpyDeviceToHost, gpu.stream));
    must(cudaStreamSynchronize(gpu.stream));
    for (int w = 0; w < windows; w += n->batch)
        loss += losses[w] * (windows - w < n->batch ? windows - w : n->batch);
    return loss / windows;
}

/* Replays of the step; returns the seconds of one of them, by the GPU's clock. */
static double replay(gpt *n, int turns) {
    cudaEvent_t begin, end;
    float       ms;
    must(cudaEventCreate(&begin));
    must(cudaEventCreate(&end));
    must(cudaEventRecord(begin, gpu.stream));
    for (int i = 0; i < turns; i++) must(cudaGraphLaunch(n->step, gpu.stream));
    must(cudaEventRecord(end, gpu.stream));
    must(cudaEventSynchronize(end));
    must(cudaEventElapsedTime(&ms, begin, end));
    must(cudaEventDestroy(begin));
    must(cudaEventDestroy(end));
    return (double)ms / 1000.0 / turns;
}

/* Until so many steps were taken, at most EVERY: those that are skipped are made up for. */
static void train_until(report *r, gpt *n, int seed, int until) {
    const int from  = (int)status_of(n).steps;
    int       turns = 0; /* halving goes from the largest scale to the least in 38 */
    double    losses[EVERY], time = 0.0;
    for (int left = until - from; left > 0; left = until - (int)status_of(n).steps) {
        if (turns > EVERY + 40)
            fail(1, type_names[n->type], "gradients are not finite, at any loss scale",
                 "choose a smaller --lr");
        time = replay(n, left);
        turns += left;
    }
    must(cudaMemcpyAsync(losses, (double *)n->losses + from,
                         (size_t)(until - from) * sizeof *losses, cudaMemcpyDeviceToHost,
                         gpu.stream));
    must(cudaStreamSynchronize(gpu.stream));
    for (int i = from; i < until; i++) report_step(r, n->type, seed, i, losses[i - from], time);
}

/* What cannot be read or written shall be said now, not after the training. */
static void try_all(const options *o, const text *t, gpt *n) {
    try_picture(o->out, PICTURE);
    for (int v = 0; v < 3; v++) {
        if (!type_on(o, v)) continue;
        gpt_init(n, o, t, (amp_dtype)v, 0);
        if (o->resume) resume(&n->opt, o->resume, n->run);
        if (o->save) save(&n->opt, o->save);
        gpt_free(n);
    }
}

/* All types from one seed, in turns, so that all meet the same machine. */
static void train_seed(report *r, const text *t, int seed, gpt nets[3]) {
    const options *o    = &r->o;
    int            last = o->stop_after ? o->stop_after : o->steps;
    for (int v = 0; v < 3; v++) {
        if (!type_on(o, v)) continue;
        gpt_init(&nets[v], o, t, (amp_dtype)v, seed);
        if (o->resume) resume(&nets[v].opt, o->resume, nets[v].run);
    }
    polled = o->dtype != ALL_TYPES && o->seeds == 1;
    for (int step = 1; step <= last; step++) {
        last = report_last(r, last, step);
        const bool save_now = o->save && (step % o->save_every == 0 || step == last);
        const bool held_now = held_point(o, step - 1);
        if (step % EVERY != 0 && step != last && !save_now && !held_now) continue;
        for (int v = 0; v < 3; v++) {
            gpt *n = &nets[v];
            if (!type_on(o, v) || (int)status_of(n).steps >= step) continue; /* resumed */
            train_until(r, n, seed, step);
            if (save_now) save(&n->opt, o->save);
            if (held_now) report_held(r, v, seed, step - 1, evaluate(n, t));
            report_progress(r, v, seed, step - 1, status_of(n).skipped);
        }
    }
    polled = 0;
    for (int v = 0; v < 3; v++) {
        if (!type_on(o, v)) continue;
        const amp_status status = status_of(&nets[v]);
        report_end(r, v, seed, evaluate(&nets[v], t), &status, nets[v].bytes, nets[v].num_params);
        gpt_free(&nets[v]);
    }
}

/* What vector loads, tensor cores and rows in registers ask for. */
static void refuse_sizes(const options *o) {
    char value[64];
    sprintf(value, "--width %d --heads %d", o->width, o->heads);
    if (o->width % (8 * o->heads) != 0 || o->width > MAX_ROW)
        fail(2, value, "the width must be a multiple of 8 times the heads, at most 1024",
             "choose others");
    sprintf(value, "--context %d", o->context);
    if (o->context % 8 != 0 || o->context > MAX_ROW)
        fail(2, value, "it must be a multiple of 8, at most 1024", "choose another");
}

/* Find the GPU, set up a stream and cuBLAS with room for its products, and lay the text there. */
static void open_gpu(const options *o, const text *t) {
    (void)count_gpus();
    must(cudaGetDeviceProperties(&gpu.device, 0));
    must(cudaStreamCreateWithFlags(&gpu.stream, cudaStreamNonBlocking));
    must(cublasCreate(&gpu.blas));
    must(amp_cuda_backend(&gpu.backend, gpu.stream, gpu.blas));
    gpu.backend.workspace_size = WORKSPACE + (size_t)o->batch * o->context * o->width * 16;
    gpu.backend.workspace      = device_alloc(gpu.backend.workspace_size);
    gpu.train                  = device_alloc(t->num_train);
    gpu.held                   = device_alloc(t->num_held);
    must(cudaMemcpyAsync(gpu.train, t->train, t->num_train, cudaMemcpyHostToDevice, gpu.stream));
    must(cudaMemcpyAsync(gpu.held, t->held, t->num_held, cudaMemcpyHostToDevice, gpu.stream));
    must(cudaStreamSynchronize(gpu.stream));
}

static void close_gpu(void) {
    must(cudaFree(gpu.backend.workspace));
    must(cudaFree(gpu.train));
    must(cudaFree(gpu.held));
    must(cublasDestroy(gpu.blas));
    must(cudaStreamDestroy(gpu.stream));
}

int main(int argc, char **argv) {
    static report r;
    static text   t;
    static gpt    nets[3];
    r.o = parse_options(argc, argv);
    refuse_sizes(&r.o);
    load_text(&t, &r.o);
    open_gpu(&r.o, &t);
    try_all(&r.o, &t, &nets[0]);
    report_text(&r, &t, gpu.device.name);
    for (int seed = 0; seed < r.o.seeds; seed++) train_seed(&r, &t, seed, nets);
    print_results(&r);
    print_last_lines(&r);
    close_gpu();
    report_free(&r);
    free(t.bytes);
    return finish(0);
}
