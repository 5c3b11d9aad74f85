/* products.h - part of bench.c: products in half beside products in fp32, and whole training steps.
   A row is "name / fp32 n=... GFLOP/s fp32 GFLOP/s ratio": medians of runs in turns, and in brackets
   the quartiles of the ratio. */

enum { MLP_BATCH = 256, MLP_IN = 784, MLP_HIDDEN = 1024, MLP_OUT = 10, PRODUCT_ROOM = 2048 * 2048 };

static const char *const product_types[] = {"fp32", "fp16", "bf16"};

typedef struct product { size_t m, n, k; int trans_a, trans_b; } product;
static product          product_now;
static void            *product_a[3], *product_b[3];
static float           *product_c;

static void product_run(amp_dtype type, amp_dtype c_type) {
    const product *q = &product_now;
    MUST(gemm_one(NULL, q->trans_a, q->trans_b, q->m, q->n, q->k, 1.0f, product_a[type], type, 0,
                  product_b[type], type, 0, 0.0f, product_c, c_type, 0));
}
static void product_f32(void) { product_run(AMP_F32, AMP_F32); }
static void product_f16(void) { product_run(AMP_F16, AMP_F32); }
static void product_bf16(void) { product_run(AMP_BF16, AMP_F32); }
static void product_tf32_of(amp_dtype type) { /* as exact as TF32 */
    amp_gemm_args q;
    memset(&q, 0, sizeof q);
    q.trans_a = product_now.trans_a;
    q.trans_b = product_now.trans_b;
    q.m       = product_now.m;
    q.n       = product_now.n;
    q.k       = product_now.k;
    q.a       = product_a[type];
    q.b       = product_b[type];
    q.c       = product_c;
    q.a_type  = type;
    q.b_type  = type;
    q.tf32    = 1;
    MUST(amp_gemm(NULL, &q));
}
static void product_tf32(void) { product_tf32_of(AMP_F32); }
static void product_f16_tf32(void) { product_tf32_of(AMP_F16); }

static void product_row(const char *name, const char *unit, size_t size, double work,
                        void (*run)(void), void (*fp32)(void)) {
    compare(name, size, work, unit, "fp32", work > 5e8 ? 1 : (int)(5e8 / work) + 1, run, fp32);
}

/* A network of three layers in one type, AdamW with fp32 masters; the data are fixed. */
typedef struct mlp {
    amp_dtype     type;
    amp_optimizer opt;
    float        *weight[3], *logits;
    void         *grad[3], *act[3], *error[3]; /* act[0]: the input; error[i]: of layer i's output */
} mlp;
static mlp          mlps[3];
static const size_t mlp_sizes[4] = {MLP_IN, MLP_HIDDEN, MLP_HIDDEN, MLP_OUT};

static void mlp_make(mlp *net, amp_dtype type) {
    amp_optimizer_desc desc;
    amp_tensor         t;
    uint32_t           x = 7;
    size_t             l, i;
    memset(&desc, 0, sizeof desc);
    net->type  = type;
    desc.dtype = type;
    desc.kind  = AMP_KIND_ADAMW;
    MUST(amp_optimizer_init(&net->opt, &desc));
    for (l = 0; l < 3; l++) {
        const size_t count = mlp_sizes[l] * mlp_sizes[l + 1];
        net->weight[l] = (float *)malloc(4 * count);
        net->grad[l]   = calloc(count, 4);
        net->act[l]    = calloc(MLP_BATCH * mlp_sizes[l], 4);
        net->error[l]  = calloc(MLP_BATCH * mlp_sizes[l + 1], 4);
        for (i = 0; i < count; i++) {
            x                 = x * 1664525u + 1013904223u;
            net->weight[l][i] = (float)(int32_t)x * 2e-11f;
        }
        memset(&t, 0, sizeof t);
        t.n         = count;
        t.weight    = net->weight[l];
        t.grad      = net->grad[l];
        t.grad_type = type;
        MUST(amp_optimizer_add(&net->opt, &t));
    }
    net->logits = (float *)calloc(MLP_BATCH * MLP_OUT, 4);
    MUST(amp_cast(net->act[0], type, product_a[AMP_F32], AMP_F32, MLP_BATCH * MLP_IN));
    if (amp_optimizer_prepare(&net->opt) != AMP_OK) exit(1);
}

/* Zero the errors whose activation ReLU had set to zero. */
static void mlp_mask(const mlp *net, size_t l) {
    const size_t count = MLP_BATCH * mlp_sizes[l];
    size_t       i;
    if (net->type == AMP_F32) {
        const float *y = (const float *)net->act[l];
        float       *e = (float *)net->error[l - 1];
        for (i = 0; i < count; i++) e[i] = y[i] > 0.0f ? e[i] : 0.0f;
    } else {
        const uint16_t *y = (const uint16_t *)net->act[l];
        uint16_t       *e = (uint16_t *)net->error[l - 1];
        for (i = 0; i < count; i++) e[i] = y[i] ? e[i] : 0;
    }
}

static void mlp_step(mlp *net) {
    const amp_dtype type  = net->type;
    const float     scale = amp_optimizer_loss_scale(&net->opt) / MLP_BATCH;
    size_t          l, i;
    for (l = 0; l < 3; l++)
        gemm_bias(NULL, 0, 0, MLP_BATCH, mlp_sizes[l + 1], mlp_sizes[l], 1.0f, net->act[l],
                      type, 0, amp_optimizer_model(&net->opt, (int)l), type, 0, 0.0f,
                      l < 2 ? net->act[l + 1] : (void *)net->logits, l < 2 ? type : AMP_F32, 0,
                      NULL, l < 2);
    for (i = 0; i < MLP_BATCH * MLP_OUT; i++) /* of squares: the targets are one-hot */
        net->logits[i] = (net->logits[i] - (i % MLP_OUT == i / MLP_OUT % MLP_OUT ? 1.0f : 0.0f)) *
                         scale;
    MUST(amp_cast(net->error[2], type, net->logits, AMP_F32, MLP_BATCH * MLP_OUT));
    for (l = 3; l-- > 0;) {
        MUST(gemm_one(NULL, 1, 0, mlp_sizes[l], mlp_sizes[l + 1], MLP_BATCH, 1.0f, net->act[l], type, 0,
                      net->error[l], type, 0, 0.0f, net->grad[l], type, 0));
        if (l == 0) break;
        MUST(gemm_one(NULL, 0, 1, MLP_BATCH, mlp_sizes[l], mlp_sizes[l + 1], 1.0f, net->error[l], type,
                      0, amp_optimizer_model(&net->opt, (int)l), type, 0, 0.0f, net->error[l - 1], type,
                      0));
        mlp_mask(net, l);
    }
    MUST(amp_optimizer_step(&net->opt, 1e-4f));
}
static void mlp_f32(void) { mlp_step(&mlps[AMP_F32]); }
static void mlp_f16(void) { mlp_step(&mlps[AMP_F16]); }
static void mlp_bf16(void) { mlp_step(&mlps[AMP_BF16]); }

static void products(void) {
    static const product shapes[] = {{512, 512, 512, 0, 0}, {1024, 1024, 1024, 0, 0},
                                     {64, 512, 784, 0, 0},  {784, 512, 64, 1, 0},
                                     {1024, 768, 768, 0, 1}};
    static const char *const names[]      = {"fp16", "fp16 tf32", "bf16", "tf32"};
    static void (*const runs[])(void)     = {product_f16, product_f16_tf32, product_bf16, product_tf32};
    const double steps = 1e9; /* so that a row shows steps a second */
    char         name[64];
    size_t       i;
    int          t;
    product_c = (float *)calloc(PRODUCT_ROOM, 4);
    for (t = 0; t < 3; t++) {
        product_a[t] = malloc(PRODUCT_ROOM * 4);
        product_b[t] = malloc(PRODUCT_ROOM * 4);
    }
    for (i = 0; i < PRODUCT_ROOM; i++) {
        ((float *)product_a[0])[i] = (float)(int)(i * 2654435761u >> 8 & 0xffffu) * 1e-5f - 0.3f;
        ((float *)product_b[0])[i] = (float)(int)(i * 2246822519u >> 8 & 0xffffu) * 1e-5f - 0.3f;
    }
    for (t = 1; t < 3; t++) {
        MUST(amp_cast(product_a[t], (amp_dtype)t, product_a[0], AMP_F32, PRODUCT_ROOM));
        MUST(amp_cast(product_b[t], (amp_dtype)t, product_b[0], AMP_F32, PRODUCT_ROOM));
    }
    for (i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (t = 0; t < 4; t++) {
            product_now = shapes[i];
            sprintf(name, "gemm %s %lux%lu %c%c / fp32", names[t], (unsigned long)shapes[i].m,
                    (unsigned long)shapes[i].n, shapes[i].trans_a ? 'T' : 'N',
                    shapes[i].trans_b ? 'T' : 'N');
            product_row(name, "GFLOP/s", shapes[i].k,
                        2.0 * (double)shapes[i].m * (double)shapes[i].n * (double)shapes[i].k,
                        runs[t], product_f32);
        }
    for (t = 0; t < 3; t++) mlp_make(&mlps[t], (amp_dtype)t);
    product_row("mlp-step fp16 / fp32", "steps/s", MLP_BATCH, steps, mlp_f16, mlp_f32);
    product_row("mlp-step bf16 / fp32", "steps/s", MLP_BATCH, steps, mlp_bf16, mlp_f32);
    if (amp_cpu_force_tier("avx512") == AMP_OK) { /* rows of tiers that there are */
        product_row("mlp-step fp16 / avx512", "steps/s", MLP_BATCH, steps, mlp_f16, mlp_f32);
        product_row("mlp-step bf16 / avx512", "steps/s", MLP_BATCH, steps, mlp_bf16, mlp_f32);
    }
    if (amp_cpu_force_tier("avx2") == AMP_OK)
        product_row("mlp-step bf16 / avx2", "steps/s", MLP_BATCH, steps, mlp_bf16, mlp_f32);
    MUST(amp_cpu_force_tier(NULL));
}
