/* gpt.c - a GPT that learns the bytes of a text, in fp32, fp16 and bf16, with amp.h

   The network is GPT-2's, with bytes for tokens: an embedding, blocks of causal attention and a
   GELU network, layer norm before each, and the embedding again as the head. Weights, activations
   and gradients that feed products are stored in half. Products are summed in fp32 (amp_gemm).
   Softmax, norms, GELU and loss are computed in fp32, and so is the gradient of the residual
   stream, to which every block adds. Biases and norms stay fp32 (keep_fp32).

   READ  from top to bottom: vectors, the network, forward, loss, backward, the step; then held-out
   text, writing, main. Mixed precision is in choose_types (what the policy says of the
   products), training_in (gpt_setup.h), loss_scale and amp_optimizer_step; a GPT in fp32 needs the
   rest, too. gpt_setup.h has the tensors and how they begin, gpt_report.h options and the
   text, train_runs.h the loop over seeds, types and steps, and --check;
   train_half.h memory, the policy's answers, rows of halves, the schedule. The other train_*.h say in
   their first line what they have. gpt_cuda.cu is the same on a GPU.

   RUN   cc -O3 -march=native -I. examples/nets/gpt.c -o gpt -lm && ./gpt      in the directory of amp.h

   In two or three minutes it prints a table with its reading and some text that the network wrote,
   writes a picture into build/, and ends with three lines: parity with fp32, speed, memory (--help).

   COLUMNS  tokens/s from the processor time of whole steps, medians, the types in turns.
   bytes/param: weights, copies, gradients, moments. activations: what forward keeps for backward.
   total: these, and what all steps share: gradients of activations, workspace. */

#define _POSIX_C_SOURCE 200809L /* isatty, mkdir */
#ifndef PROGRAM /* state.c compares states with this network, too */
#define PROGRAM "gpt"
#endif

#include "../support/train_count.h" /* amp.h, with a malloc that counts */
#include "gpt_report.h" /* options, text, report */
#include "gpt_setup.h"  /* tensors, how they begin, the optimizer */
#include "../support/train_lines.h" /* --report */

typedef text corpus;

static const options *standard(void) {
    static const options o = {"amp.h", "/* ", NULL, NULL, "build", NULL, NULL,
                              2, 256, 4, 64, 8, 250, 3, ALL_TYPES, 400, 25, 0, 0, 0, 1.5e-3f,
                              0, NULL, 0, 0};
    return &o;
}

/* ------------------------------------------------------------------------------------- vectors
   Sums in LANES parts and an exponential without branches: loops that a compiler can turn into
   vector instructions without being allowed to change the order of sums (-ffast-math).          */

enum { LANES = 16 };

static float dot(const float *x, const float *y, size_t n) {
    float  part[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t j = 0; j < LANES; j++) part[j] += x[i + j] * y[i + j];
    for (; i < n; i++) part[0] += x[i] * y[i];
    for (size_t j = 1; j < LANES; j++) part[0] += part[j];
    return part[0];
}

static float sum(const float *x, size_t n) {
    float  part[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t j = 0; j < LANES; j++) part[j] += x[i + j];
    for (; i < n; i++) part[0] += x[i];
    for (size_t j = 1; j < LANES; j++) part[0] += part[j];
    return part[0];
}

static float largest(const float *x, size_t n) {
    float max = x[0];
    for (size_t i = 1; i < n; i++) max = x[i] > max ? x[i] : max;
    return max;
}

static void add_to(float *sums, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) sums[i] += x[i];
}

/* e^x to 3e-7: 2^k e^r with |r| below 0.35. |x| is cut to 87 as an integer, since compilers make no
   vectors of comparisons of floats without -ffast-math; x - x brings back a NaN. */
static float exponential(float x) {
    uint32_t bits;
    float    in_range, power;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t size = bits & 0x7fffffffu, most = 0x42ae0000u; /* 87.0f */
    bits = (bits & 0x80000000u) | (size < most ? size : most);
    memcpy(&in_range, &bits, sizeof in_range);
    const int32_t k    = (int32_t)(in_range * 1.44269504f + 127.5f) - 127;
    const float   r    = in_range - (float)k * 0.693145752f - (float)k * 1.42860677e-6f;
    const float   tail = 0.5f + r * (1.66666667e-1f + r * (4.16666667e-2f + r * (8.33333333e-3f +
                         r * 1.38888889e-3f)));
    bits = (uint32_t)(k + 127) << 23;
    memcpy(&power, &bits, sizeof power);
    return power * (1.0f + r * (1.0f + r * tail)) + (x - x);
}

/* ------------------------------------------------------------------------------------- network */

/* What a block keeps for its backward pass; rows are tokens, one batch of them. The block behind
   the last is the head: of it in, norm1 and stats1 are used. */
typedef struct block {
    amp_dtype linear, attention; /* of the operands of its products, as the policy says          */
    void     *in, *mid;          /* residual stream: before the block, and between its halves    */
    void     *norm1, *norm2;     /* rows x width, linear                                         */
    void     *qkv;               /* rows x 3 width, attention                                    */
    void     *prob;              /* for each sequence and head: context x context, attention     */
    void     *mix;               /* rows x width, linear: what the heads took from the values    */
    void     *up, *gelu;         /* rows x 4 width: before bias and GELU; after, linear          */
    float    *stats1, *stats2;   /* of each row before the norm: mean, 1 / standard deviation    */
} block;

typedef struct net {
    const options *o;
    const text    *text;
    int            seed, num_tensors;
    amp_dtype      type;                             /* of weights, activations, gradients       */
    size_t         layers, width, heads, context, batch, rows;
    block          block[MAX_LAYERS + 1];
    amp_tensor     tensor[MAX_TENSORS];
    char           names[MAX_TENSORS][96], run[RUN_SIZE];
    amp_optimizer  opt;
    amp_backend    backend;                          /* with a workspace for products            */
    float         *stream_grad, *y;                  /* rows x width                             */
    float         *logits, *table_grad;              /* rows x 256; that of the embedding        */
    void          *stream_low, *mix_grad, *wide;     /* gradients for products; widest: 4 width  */
    float         *score;                            /* heads x context x context                */
    void          *score_grad;                       /* the same, for products                   */
    float         *room[3];                          /* rows in fp32, as they are computed       */
    void          *muon_room;
    unsigned char *token, *target;                   /* of a batch: bytes, and those behind them */
    uint64_t       rng;
    lines          lines;                            /* of --report                              */
    size_t         num_params, bytes[NUM_MEMORIES];
    void          *owned[3 * MAX_TENSORS + 16 * MAX_LAYERS];
    int            num_owned;
} net;

#include "../support/train_half.h" /* memory, the policy's answers, rows of halves, gradients, the schedule */
#include "../support/muon.h" /* --muon */

/* How are masters and moments stored? Are masters other than fp32, so that models take the place of
   weights? */
static const amp_storage *storage_of(const net *n) { return &storages[n->o->storage]; }
static int has_no_masters(const net *n) { return storage_of(n)->master != AMP_FORMAT_F32; }

/* By default all products are in half; --policy "op:bmm=fp32" has attention in fp32, "block0=fp32"
   a whole block, "head=fp32" the logits. */
static void choose_types(net *n) {
    amp_autocast policy;
    char         layer[32];
    policy_begin(&policy, n->o, n->type);
    for (size_t l = 0; l <= n->layers; l++) {
        if (l < n->layers) sprintf(layer, "block%d", (int)l);
        else strcpy(layer, "head");
        n->block[l].linear    = ask(&policy, n->o, n->type, layer, AMP_OP_LINEAR);
        n->block[l].attention = ask(&policy, n->o, n->type, layer, AMP_OP_BMM);
        if (has_no_masters(n) && n->block[l].linear == AMP_F32)
            fail(2, n->o->policy, "asks for weights in fp32, of which --storage keeps none",
                 "leave out one of them, or have only op:bmm in fp32");
    }
    policy_end(&policy, n->type, "the layers are block0, block1, ... and head");
}

/* Describe tensor i, with its memory: a master, and gradients of its type. In --check all masters
   are random, or a wrong gradient of a bias that is 0 might not show. */
static void add_tensor(net *n, int i, beginning b) {
    amp_tensor *t = &n->tensor[i];
    strcpy(n->names[i], b.name);
    t->name      = n->names[i];
    t->n         = b.count;
    t->grad_type = b.deviation > 0.0f ? n->type : AMP_F32;
    t->weight    = net_alloc(n, STATE, t->n, AMP_F32);
    t->grad      = net_alloc(n, STATE, t->n, t->grad_type);
    t->own       = is_muons(n->o, i);
    if (b.deviation <= 0.0f) t->keep_fp32 = 1, t->weight_decay = -1.0f; /* a norm or a bias */
    if (n->o->check) b.deviation = 0.2f;
    for (size_t j = 0; j < t->n; j++) t->weight[j] = random_weight(&b, &n->rng);
    n->num_params += t->n;
}

/* The momentum of a matrix of Muon's: a frozen tensor, so that --save has it. */
static void add_momentum(net *n, const amp_tensor *of) {
    const int   i = n->num_tensors++;
    amp_tensor *t = &n->tensor[i];
    sprintf(n->names[i], "%.80s.momentum", of->name);
    t->name      = n->names[i];
    t->n         = of->n;
    t->weight    = net_alloc(n, STATE, t->n, AMP_F32);
    t->keep_fp32 = t->frozen = 1;
}

/* A master in fewer bytes was copied when the optimizer was prepared; forward reads its model. */
static void drop_masters(net *n) {
    for (int i = 0; i < n->num_tensors; i++) {
        amp_tensor *t = &n->tensor[i];
        if (!has_no_masters(n) || t->keep_fp32 || t->own) continue;
        for (int k = 0; k < n->num_owned; k++)
            if (n->owned[k] == t->weight) n->owned[k] = NULL;
        free(t->weight);
        t->weight = NULL;
        n->bytes[STATE] -= t->n * sizeof(float);
    }
}

static void setup_optimizer(net *n, int seed) {
    amp_optimizer_desc desc = training_in(n->type);
    desc.storage = storage_of(n);
    desc.seed    = (uint64_t)seed; /* of moments that are rounded by chance */
    /* Of --check's one step none may overflow, whatever the text; training would skip it. */
    if (n->o->check && n->type == AMP_F16) desc.scaler.init_scale = 256.0f;
    begin_optimizer(n, &desc);
    drop_masters(n);
}

/* The network in a type. */
static void net_init(net *n, const options *o, const text *t, amp_dtype type, int seed) {
    memset(n, 0, sizeof *n);
    n->o = o, n->text = t, n->seed = seed, n->type = type;
    n->num_tensors = num_tensors(o);
    n->layers = (size_t)o->layers, n->width = (size_t)o->width, n->heads = (size_t)o->heads;
    n->context = (size_t)o->context, n->batch = (size_t)o->batch;
    n->rows = n->batch * n->context;
    n->rng  = seed_of_weights(seed);
    describe_run(n->run, o, t, type);
    choose_types(n);
    for (int i = 0; i < num_tensors(o); i++) add_tensor(n, i, beginning_of(o, i));
    for (int i = 0; i < num_tensors(o); i++)
        if (n->tensor[i].own) add_momentum(n, &n->tensor[i]);

    const size_t rows = n->rows, c = n->width, square = n->heads * n->context * n->context;
    const size_t widest = 4 * c > VOCABULARY ? 4 * c : VOCABULARY;
    for (size_t l = 0; l <= n->layers; l++) {
        block *b = &n->block[l];
        b->in     = net_alloc(n, ACTIVATIONS, rows * c, type);
        b->norm1  = net_alloc(n, ACTIVATIONS, rows * c, b->linear);
        b->stats1 = net_alloc(n, ACTIVATIONS, rows * 2, AMP_F32);
        if (l == n->layers) break;
        b->qkv    = net_alloc(n, ACTIVATIONS, rows * 3 * c, b->attention);
        b->prob   = net_alloc(n, ACTIVATIONS, n->batch * square, b->attention);
        b->mix    = net_alloc(n, ACTIVATIONS, rows * c, b->linear);
        b->mid    = net_alloc(n, ACTIVATIONS, rows * c, type);
        b->norm2  = net_alloc(n, ACTIVATIONS, rows * c, b->linear);
        b->stats2 = net_alloc(n, ACTIVATIONS, rows * 2, AMP_F32);
        b->up     = net_alloc(n, ACTIVATIONS, rows * 4 * c, type);
        b->gelu   = net_alloc(n, ACTIVATIONS, rows * 4 * c, b->linear);
    }
    /* a policy may have some products in fp32, so with one there is room for that */
    const amp_dtype any = o->policy ? AMP_F32 : type;
    n->stream_grad = net_alloc(n, WORK, rows * c, AMP_F32);
    n->y           = net_alloc(n, WORK, rows * c, AMP_F32);
    n->logits      = net_alloc(n, WORK, rows * VOCABULARY, AMP_F32);
    n->table_grad  = net_alloc(n, WORK, (VOCABULARY + n->context) * c, AMP_F32);
    n->stream_low  = net_alloc(n, WORK, rows * c, any);
    n->mix_grad    = net_alloc(n, WORK, rows * c, any);
    n->wide        = net_alloc(n, WORK, rows * widest, any);
    n->muon_room   = net_alloc(n, WORK, o->muon ? muon_room(c, 4 * c) : 0, AMP_BF16);
    n->score       = net_alloc(n, WORK, square, AMP_F32);
    n->token       = n->owned[n->num_owned++] = need(2 * rows, 1);
    n->target      = n->token + rows;
    n->score_grad  = net_alloc(n, WORK, square, any);
    for (int i = 0; i < 3; i++)
        n->room[i] = net_alloc(n, WORK, widest > n->context ? widest : n->context, AMP_F32);

    const size_t most = rows > widest ? rows : widest;
    make_workspace(n, most);
    setup_optimizer(n, seed);
}

/* What products of this type read: the half copy, or the master. */
static const void *weight(const net *n, int i, amp_dtype type) {
    return type == AMP_F32 ? n->tensor[i].weight : amp_optimizer_model(&n->opt, i);
}

/* ------------------------------------------------------------------------------------- products */

/* c = op(a) op(b), rows x cols, over k; a and b of one type, sums in fp32. */
static void multiply(const net *n, int trans_a, int trans_b, size_t rows, size_t cols, size_t k,
                     const void *a, const void *b, amp_dtype type, void *c, amp_dtype c_type) {
    const amp_gemm_args g = {.trans_a = trans_a, .trans_b = trans_b, .m = rows, .n = cols, .k = k,
                             .a = a, .a_type = type, .b = b, .b_type = type, .c = c,
                             .c_type = c_type, .tf32 = takes_three(type)};
    must(amp_gemm(&n->backend, &g));
}

/* A matrix for each head: rows ld apart, heads stride apart. Those of q, k and v lie side by side
   in the rows of one matrix, so that nothing is transposed or copied. */
typedef struct per_head {
    void     *x;
    amp_dtype type;
    size_t    ld, stride;
} per_head;

static void multiply_heads(const net *n, int trans_a, int trans_b, size_t rows, size_t cols,
                           size_t k, float alpha, per_head a, per_head b, per_head c) {
    const amp_gemm_args g = {
        .trans_a = trans_a, .trans_b = trans_b, .m = rows, .n = cols, .k = k, .alpha = alpha,
        .a = a.x, .a_type = a.type, .lda = a.ld, .stride_a = a.stride,
        .b = b.x, .b_type = b.type, .ldb = b.ld, .stride_b = b.stride,
        .c = c.x, .c_type = c.type, .ldc = c.ld, .stride_c = c.stride,
        .count = n->heads, .tf32 = a.type == AMP_F16};
    must(amp_gemm(&n->backend, &g));
}

/* Of sequence s: q, k or v (part 0, 1, 2) in a matrix as qkv; what is mixed of v; scores. */
static per_head head_of_qkv(const net *n, void *qkv, amp_dtype type, size_t s, size_t part) {
    const size_t c = n->width;
    return (per_head){at(qkv, type, s * n->context * 3 * c + part * c), type, 3 * c, c / n->heads};
}

static per_head head_of_mix(const net *n, void *mix, amp_dtype type, size_t s) {
    const size_t c = n->width;
    return (per_head){at(mix, type, s * n->context * c), type, c, c / n->heads};
}

static per_head head_of_square(const net *n, void *square, amp_dtype type, size_t s) {
    const size_t one = n->context * n->context;
    return (per_head){at(square, type, s * n->heads * one), type, n->context, one};
}

/* -------------------------------------------------------------------------------------- forward */

static void embed(net *n, const unsigned char *token, size_t rows) {
    const size_t c = n->width;
    for (size_t i = 0; i < rows; i++) {
        const float *e = read_row(weight(n, EMBEDDING, n->type), n->type, token[i] * c, c,
                                  n->room[0]);
        const float *p = read_row(weight(n, POSITIONS, n->type), n->type, i % n->context * c, c,
                                  n->room[1]);
        float *x = place_row(n->block[0].in, n->type, i * c, n->room[2]);
        for (size_t j = 0; j < c; j++) x[j] = e[j] + p[j];
        write_row(n->block[0].in, n->type, i * c, c, x);
    }
}

/* y = (x - mean) / deviation * gain + bias, by row; the bias is the tensor behind the gain. */
static void norm(net *n, const void *in, size_t rows, int gain, float *stats, void *out,
                 amp_dtype out_type) {
    const size_t c = n->width;
    const float *g = n->tensor[gain].weight, *bias = n->tensor[gain + 1].weight;
    for (size_t i = 0; i < rows; i++) {
        const float *x = read_row(in, n->type, i * c, c, n->room[0]);
        float       *y = place_row(out, out_type, i * c, n->room[1]);
        const float  mean = sum(x, c) / (float)c;
        for (size_t j = 0; j < c; j++) y[j] = x[j] - mean;
        const float rstd = 1.0f / sqrtf(dot(y, y, c) / (float)c + 1e-5f);
        for (size_t j = 0; j < c; j++) y[j] = y[j] * rstd * g[j] + bias[j];
        write_row(out, out_type, i * c, c, y);
        stats[2 * i]     = mean;
        stats[2 * i + 1] = rstd;
    }
}

/* The stream goes on with what a product gave, still fp32, and its bias: rounded once. */
static void add_to_stream(net *n, const void *in, const float *y, const float *bias, size_t rows,
                          void *out) {
    const size_t c = n->width;
    for (size_t i = 0; i < rows; i++, y += c) {
        const float *x = read_row(in, n->type, i * c, c, n->room[0]);
        float       *z = place_row(out, n->type, i * c, n->room[1]);
        for (size_t j = 0; j < c; j++) z[j] = x[j] + y[j] + bias[j];
        write_row(out, n->type, i * c, c, z);
    }
}

/* Softmax of the first n; what comes after them, later in the text, gets none. */
static void causal_softmax(const float *score, size_t n, size_t all, float *p) {
    const float max = largest(score, n);
    for (size_t j = 0; j < n; j++) p[j] = exponential(score[j] - max);
    const float scale = 1.0f / sum(p, n);
    for (size_t j = 0; j < n; j++) p[j] *= scale;
    for (size_t j = n; j < all; j++) p[j] = 0.0f;
}

static void attention(net *n, block *b, size_t seqs) {
    const size_t    c = n->width, T = n->context, depth = c / n->heads;
    const amp_dtype A = b->attention;
    const float    *bias = n->tensor[tensor_of((size_t)(b - n->block), QKV_BIAS)].weight;
    for (size_t i = 0; i < seqs * T; i++) {
        const float *x = read_row(b->qkv, A, i * 3 * c, 3 * c, n->room[0]);
        float       *y = place_row(b->qkv, A, i * 3 * c, n->room[0]);
        for (size_t j = 0; j < 3 * c; j++) y[j] = x[j] + bias[j];
        write_row(b->qkv, A, i * 3 * c, 3 * c, y);
    }
    for (size_t s = 0; s < seqs; s++) {
        const per_head q = head_of_qkv(n, b->qkv, A, s, 0), k = head_of_qkv(n, b->qkv, A, s, 1);
        const per_head v = head_of_qkv(n, b->qkv, A, s, 2), p = head_of_square(n, b->prob, A, s);
        multiply_heads(n, 0, 1, T, T, depth, 1.0f / sqrtf((float)depth), q, k,
                       head_of_square(n, n->score, AMP_F32, 0));
        for (size_t i = 0; i < n->heads * T; i++) {
            float *row = place_row(p.x, A, i * T, n->room[0]);
            causal_softmax(n->score + i * T, i % T + 1, T, row);
            write_row(p.x, A, i * T, T, row);
        }
        multiply_heads(n, 0, 0, T, depth, T, 1.0f, p, v, head_of_mix(n, b->mix, b->linear, s));
    }
}

/* x times the logistic function of 2 sqrt(2 / pi) (x + 0.044715 x^3): GELU as in GPT-2. */
static float gate_of(float x) {
    return 1.0f / (1.0f + exponential(-1.59576912f * (x + 0.044715f * x * x * x)));
}

static float gelu_slope(float x) {
    const float s = gate_of(x);
    return s + x * s * (1.0f - s) * 1.59576912f * (1.0f + 0.134145f * x * x);
}

static void gelu(net *n, block *b, const float *bias, size_t rows) {
    const size_t c = 4 * n->width;
    for (size_t i = 0; i < rows; i++) {
        const float *x = read_row(b->up, n->type, i * c, c, n->room[0]);
        float       *y = place_row(b->gelu, b->linear, i * c, n->room[1]);
        for (size_t j = 0; j < c; j++) y[j] = (x[j] + bias[j]) * gate_of(x[j] + bias[j]);
        write_row(b->gelu, b->linear, i * c, c, y);
    }
}

/* From tokens to logits; seqs sequences of context tokens. */
static void forward(net *n, const unsigned char *token, size_t seqs) {
    const size_t rows = seqs * n->context, c = n->width;
    embed(n, token, rows);
    for (size_t l = 0; l < n->layers; l++) {
        block          *b = &n->block[l];
        const amp_dtype L = b->linear;
        norm(n, b->in, rows, tensor_of(l, GAIN1), b->stats1, b->norm1, L);
        multiply(n, 0, 0, rows, 3 * c, c, b->norm1, weight(n, tensor_of(l, QKV), L), L, b->qkv,
                 b->attention);
        attention(n, b, seqs);
        multiply(n, 0, 0, rows, c, c, b->mix, weight(n, tensor_of(l, OUT), L), L, n->y, AMP_F32);
        add_to_stream(n, b->in, n->y, n->tensor[tensor_of(l, OUT_BIAS)].weight, rows, b->mid);

        norm(n, b->mid, rows, tensor_of(l, GAIN2), b->stats2, b->norm2, L);
        multiply(n, 0, 0, rows, 4 * c, c, b->norm2, weight(n, tensor_of(l, UP), L), L, b->up,
                 n->type);
        gelu(n, b, n->tensor[tensor_of(l, UP_BIAS)].weight, rows);
        multiply(n, 0, 0, rows, c, 4 * c, b->gelu, weight(n, tensor_of(l, DOWN), L), L, n->y,
                 AMP_F32);
        add_to_stream(n, b->mid, n->y, n->tensor[tensor_of(l, DOWN_BIAS)].weight, rows, b[1].in);
    }
    block *head = &n->block[n->layers];
    norm(n, head->in, rows, LAST_GAIN, head->stats1, head->norm1, head->linear);
    multiply(n, 0, 1, rows, VOCABULARY, c, head->norm1, weight(n, EMBEDDING, head->linear),
             head->linear, n->logits, AMP_F32);
}

/* The mean cross-entropy; each row of logits becomes its gradient, times the factor. */
static double cross_entropy(net *n, size_t rows, float factor) {
    double loss = 0.0;
    for (size_t i = 0; i < rows; i++) {
        float      *z = n->logits + i * VOCABULARY;
        const float max = largest(z, VOCABULARY), wanted = z[n->target[i]] - max;
        for (size_t j = 0; j < VOCABULARY; j++) z[j] = exponential(z[j] - max);
        const float total = sum(z, VOCABULARY), scale = factor / ((float)rows * total);
        loss += (double)(logf(total) - wanted);
        for (size_t j = 0; j < VOCABULARY; j++) z[j] *= scale;
        z[n->target[i]] -= factor / (float)rows;
    }
    return loss / (double)rows;
}

/* ------------------------------------------------------------------------------------- backward
   Of a full batch, from the gradient of the logits, which carries the loss scale.               */

/* The gradient by the rows before a norm, added to that of the stream, and by gain and bias. */
static void norm_back(net *n, const float *dy, const void *in, const float *stats, int gain) {
    const size_t c = n->width;
    const float *g = n->tensor[gain].weight;
    float       *gain_grad = n->tensor[gain].grad, *bias_grad = n->tensor[gain + 1].grad;
    float       *d = n->room[1], *z = n->room[2], *dx = n->stream_grad;
    memset(gain_grad, 0, c * sizeof(float));
    memset(bias_grad, 0, c * sizeof(float));
    for (size_t i = 0; i < n->rows; i++, dy += c, dx += c) {
        const float *x = read_row(in, n->type, i * c, c, n->room[0]);
        const float  mean = stats[2 * i], rstd = stats[2 * i + 1];
        for (size_t j = 0; j < c; j++) {
            z[j] = (x[j] - mean) * rstd;
            d[j] = dy[j] * g[j];
            gain_grad[j] += dy[j] * z[j];
            bias_grad[j] += dy[j];
        }
        const float of_mean = sum(d, c) / (float)c, of_deviation = dot(d, z, c) / (float)c;
        for (size_t j = 0; j < c; j++) dx[j] += rstd * (d[j] - of_mean - z[j] * of_deviation);
    }
}

/* The stream's gradient as an operand; that of the bias which was added there is its sum. */
static void stream_to_low(net *n, amp_dtype type, float *bias_grad) {
    const size_t c = n->width;
    memset(bias_grad, 0, c * sizeof(float));
    for (size_t i = 0; i < n->rows; i++) add_to(bias_grad, n->stream_grad + i * c, c);
    must(amp_cast(n->stream_low, type, n->stream_grad, AMP_F32, n->rows * c));
}

static void gelu_back(net *n, const block *b, const float *bias, float *bias_grad) {
    const size_t    c = 4 * n->width;
    const amp_dtype L = b->linear;
    memset(bias_grad, 0, c * sizeof(float));
    for (size_t i = 0; i < n->rows; i++) {
        const float *x  = read_row(b->up, n->type, i * c, c, n->room[0]);
        const float *dy = read_row(n->wide, L, i * c, c, n->room[1]);
        float       *dx = place_row(n->wide, L, i * c, n->room[1]);
        for (size_t j = 0; j < c; j++) dx[j] = dy[j] * gelu_slope(x[j] + bias[j]);
        add_to(bias_grad, dx, c);
        write_row(n->wide, L, i * c, c, dx);
    }
}

/* From the gradient by mix, in mix_grad, to that by qkv, in wide. */
static void attention_back(net *n, block *b, float *bias_grad) {
    const size_t    c = n->width, T = n->context, depth = c / n->heads;
    const amp_dtype A = b->attention, L = b->linear;
    const float     alpha = 1.0f / sqrtf((float)depth);
    const per_head  score = head_of_square(n, n->score, AMP_F32, 0);
    const per_head  ds = head_of_square(n, n->score_grad, A, 0);
    for (size_t s = 0; s < n->batch; s++) {
        const per_head q = head_of_qkv(n, b->qkv, A, s, 0), k = head_of_qkv(n, b->qkv, A, s, 1);
        const per_head v = head_of_qkv(n, b->qkv, A, s, 2), p = head_of_square(n, b->prob, A, s);
        const per_head dmix = head_of_mix(n, n->mix_grad, A, s);
        multiply_heads(n, 0, 1, T, T, depth, 1.0f, dmix, v, score);
        multiply_heads(n, 1, 0, T, depth, T, 1.0f, p, dmix, head_of_qkv(n, n->wide, L, s, 2));
        for (size_t i = 0; i < n->heads * T; i++) { /* back through the softmax */
            const float *prob = read_row(p.x, A, i * T, T, n->room[0]);
            const float *dp = n->score + i * T, mean = dot(prob, dp, i % T + 1);
            float       *row = place_row(ds.x, A, i * T, n->room[1]);
            for (size_t j = 0; j < T; j++) row[j] = prob[j] * (dp[j] - mean); /* 0 if later */
            write_row(ds.x, A, i * T, T, row);
        }
        multiply_heads(n, 0, 0, T, depth, T, alpha, ds, k, head_of_qkv(n, n->wide, L, s, 0));
        multiply_heads(n, 1, 0, T, depth, T, alpha, ds, q, head_of_qkv(n, n->wide, L, s, 1));
    }
    memset(bias_grad, 0, 3 * c * sizeof(float));
    for (size_t i = 0; i < n->rows; i++)
        add_to(bias_grad, read_row(n->wide, L, i * 3 * c, 3 * c, n->room[0]), 3 * c);
}

static void block_back(net *n, size_t l) {
    block          *b = &n->block[l];
    const amp_dtype L = b->linear, T = n->type;
    const size_t    rows = n->rows, c = n->width;
    amp_tensor     *t = &n->tensor[tensor_of(l, 0)];

    stream_to_low(n, L, t[DOWN_BIAS].grad);
    multiply(n, 1, 0, 4 * c, c, rows, b->gelu, n->stream_low, L, t[DOWN].grad, T);
    multiply(n, 0, 1, rows, 4 * c, c, n->stream_low, weight(n, tensor_of(l, DOWN), L), L, n->wide,
             L);
    gelu_back(n, b, t[UP_BIAS].weight, t[UP_BIAS].grad);
    multiply(n, 1, 0, c, 4 * c, rows, b->norm2, n->wide, L, t[UP].grad, T);
    multiply(n, 0, 1, rows, c, 4 * c, n->wide, weight(n, tensor_of(l, UP), L), L, n->y, AMP_F32);
    norm_back(n, n->y, b->mid, b->stats2, tensor_of(l, GAIN2));

    stream_to_low(n, L, t[OUT_BIAS].grad);
    multiply(n, 1, 0, c, c, rows, b->mix, n->stream_low, L, t[OUT].grad, T);
    multiply(n, 0, 1, rows, c, c, n->stream_low, weight(n, tensor_of(l, OUT), L), L, n->mix_grad,
             b->attention);
    attention_back(n, b, t[QKV_BIAS].grad);
    multiply(n, 1, 0, c, 3 * c, rows, b->norm1, n->wide, L, t[QKV].grad, T);
    multiply(n, 0, 1, rows, c, 3 * c, n->wide, weight(n, tensor_of(l, QKV), L), L, n->y, AMP_F32);
    norm_back(n, n->y, b->in, b->stats1, tensor_of(l, GAIN1));
}

static void backward(net *n) {
    block          *head = &n->block[n->layers];
    const amp_dtype L = head->linear;
    const size_t    rows = n->rows, c = n->width;
    float          *table = n->table_grad, *positions = n->table_grad + VOCABULARY * c;

    must(amp_cast(n->wide, L, n->logits, AMP_F32, rows * VOCABULARY));
    multiply(n, 1, 0, VOCABULARY, c, rows, n->wide, head->norm1, L, table, AMP_F32);
    multiply(n, 0, 0, rows, c, VOCABULARY, n->wide, weight(n, EMBEDDING, L), L, n->y, AMP_F32);
    memset(n->stream_grad, 0, rows * c * sizeof(float));
    norm_back(n, n->y, head->in, head->stats1, LAST_GAIN);
    for (size_t l = n->layers; l-- > 0;) block_back(n, l);

    /* the embedding is the head, too: both its gradients are added in fp32, then rounded */
    memset(positions, 0, n->context * c * sizeof(float));
    for (size_t i = 0; i < rows; i++) {
        add_to(table + n->token[i] * c, n->stream_grad + i * c, c);
        add_to(positions + i % n->context * c, n->stream_grad + i * c, c);
    }
    must(amp_cast(n->tensor[EMBEDDING].grad, n->type, table, AMP_F32, VOCABULARY * c));
    must(amp_cast(n->tensor[POSITIONS].grad, n->type, positions, AMP_F32, n->context * c));
}

/* ------------------------------------------------------------------------------------- the step */

static void load_batch(net *n, uint64_t step) {
    const text *t = n->text;
    uint64_t    rng = ((uint64_t)n->seed << 32) + step * 0x2545f4914f6cdd1du + 7;
    for (size_t s = 0; s < n->batch; s++) {
        const size_t first = (size_t)(random_u64(&rng) % (t->num_train - n->context));
        memcpy(n->token + s * n->context, t->train + first, n->context);
        memcpy(n->target + s * n->context, t->train + first + 1, n->context);
    }
}

static double batch_loss(net *n) {
    forward(n, n->token, n->batch);
    return cross_entropy(n, n->rows, loss_scale(n));
}

/* Muon steps the matrices of blocks, which are its own, if begin_step finds all gradients finite and
   has unscaled and clipped them; end_step takes AdamW's step of all others. */
static void step_with_muon(net *n, float lr) {
    const amp_tensor *momentum = &n->tensor[num_tensors(n->o)];
    must(amp_optimizer_set_lr(&n->opt, lr));
    if (amp_optimizer_begin_step(&n->opt))
        for (int i = 0; i < num_tensors(n->o); i++) {
            const amp_tensor *t    = &n->tensor[i];
            const size_t      rows = part_of(i) == DOWN ? 4 * n->width : n->width;
            if (!t->own) continue;
            muon_step(&n->backend, t->weight, amp_optimizer_grad(&n->opt, i), momentum->weight, rows,
                      t->n / rows, lr, training_in(n->type).weight_decay, n->muon_room);
            momentum++;
        }
    must(amp_optimizer_end_step(&n->opt));
}

/* One step, taken or skipped; returns the loss of its batch. */
static double train_step(net *n) {
    const uint64_t step = status_of(&n->opt).steps;
    const double   loss = gradients(n, step);
    const float    lr   = learning_rate(n->o, step);
    if (n->o->muon) step_with_muon(n, lr);
    else must(amp_optimizer_step(&n->opt, lr)); /* check, clip, unscale, AdamW, new scale, copies */
    return loss;
}

/* ---------------------------------------------------------------------- held-out text, writing */

/* The mean loss of windows all over the text that training never sees. */
static double evaluate(net *n, int at_end) {
    const text  *t = n->text;
    const size_t windows = held_windows(t, n->context);
    double       loss    = 0.0;
    (void)at_end; /* it is the curve's, too */
    for (size_t w = 0, seqs; w < windows; w += seqs) {
        seqs = windows - w < n->batch ? windows - w : n->batch;
        for (size_t s = 0; s < seqs; s++) {
            const size_t first = (t->num_held - n->context - 1) * (w + s) / windows;
            memcpy(n->token + s * n->context, t->held + first, n->context);
            memcpy(n->target + s * n->context, t->held + first + 1, n->context);
        }
        forward(n, n->token, seqs);
        loss += cross_entropy(n, seqs * n->context, 1.0f) * (double)seqs;
    }
    return loss / (double)windows;
}

/* Inference in the type of training: byte after byte, each drawn by its probability, the unlikely
   made less so (temperature 0.8). */
static void write_text(net *n, int count) {
    unsigned char *window = need(n->context, 1);
    size_t         length = 0;
    uint64_t       rng    = 20;
    for (const char *c = n->o->prompt; *c; c++) { /* the last of the prompt, if it is too long */
        if (length == n->context) memmove(window, window + 1, --length);
        window[length++] = (unsigned char)*c;
    }
    printf("%s goes on from \"%s\":\n\n    %s", type_names[n->type], n->o->prompt, n->o->prompt);
    for (int i = 0; i < count; i++) {
        float *z, draw = (0.5f + 0.5f * random_uniform(&rng));
        int    byte = 0;
        forward(n, window, 1); /* what comes behind length does not matter: attention is causal */
        z = n->logits + (length - 1) * VOCABULARY;
        for (int j = 0; j < VOCABULARY; j++) z[j] /= 0.8f;
        causal_softmax(z, VOCABULARY, VOCABULARY, z);
        while (byte < VOCABULARY - 1 && (draw -= z[byte]) > 0.0f) byte++;
        if (byte == '\n') printf("\n    ");
        else putchar(byte >= ' ' && byte < 127 ? byte : '?');
        if (length == n->context) memmove(window, window + 1, --length);
        window[length++] = (unsigned char)byte;
    }
    printf("\n\n");
    free(window);
}

/* ---------------------------------------------------------------------------------- runs, main */

static void enlarge(options *o) { o->layers = 1, o->width = 128, o->context = 64, o->batch = 16; }

#include "../support/train_runs.h" /* all types in turns; --check */

int main(int argc, char **argv) {
    static report r;
    static text   t;
    static net    nets[3];
    r.o = parse_options(argc, argv);
    load_text(&t, &r.o);
    if (r.o.check)
        return finish(check_network(&r.o, &t, PROGRAM, (bounds){1e-3f, 5e-3, 1e-2, 5e-2}));
    try_all(&r.o, &t, PICTURE);
    report_text(&r, &t, amp_cpu_tier());
    for (int seed = 0; seed < r.o.seeds; seed++) {
        for (int v = 0; v < 3; v++) net_free(&nets[v]); /* the last seed's write at the end */
        train_seed(&r, &t, seed, nets);
    }
    print_results(&r);
    for (int v = AMP_BF16; v >= AMP_F32; v--) {
        if (!type_on(&r.o, v)) continue;
        write_text(&nets[v], r.o.write);
        break;
    }
    print_last_lines(&r);
    for (int v = 0; v < 3; v++) net_free(&nets[v]);
    report_free(&r);
    free(t.bytes);
    return finish(0);
}
