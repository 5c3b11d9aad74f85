/* train.c - the same network trained in fp32, fp16 and bf16, on real images, with amp.h

   WHAT IT SHOWS  A training loop in mixed precision, written by hand. Weights, activations and
   gradients are stored in half; products are summed in fp32 (amp_gemm); normalization, softmax and
   loss are computed in fp32. From the same seeds it trains five variants:

       fp32                     everything in fp32: the reference
       fp16 alone               fp16 weights, updated in fp16; no master weights, no loss scaling
       fp16+master              fp32 master weights, no loss scaling
       fp16+master+scaling      both: this is mixed precision as amp.h does it
       bf16+master              master weights; bf16 has the range of fp32 and needs no scaling

   on two tasks: classify (cross-entropy) and reconstruct (an autoencoder, mean squared error).
   Read variants[], forward, backward, optimizer_step and train_one; the rest is data and paper.

   BUILD AND RUN  from the directory of amp.h:

       cc -O3 -I. examples/train.c -o train -lm && ./train

   Add -DAMP_ZLIB and -lz to unpack .gz files with zlib rather than with the gzip program.
   The data are Fashion-MNIST's IDX files or the 1,797 digits in examples/digits.csv.gz; see --help.

   WHAT YOU SHOULD SEE  Under a minute of progress, one table for each task with its reading, three
   pictures under build/, and at the end one line per task: how far fp16 and bf16 are from fp32.

   HOW THE COLUMNS ARE MEASURED  "flushed" and "lost" are counted on every SAMPLE_EVERY-th step.

       flushed     of all gradient values (of activations and of weights) that are nonzero in fp32,
                   the share that is zero once stored. The fp32 value is what the product or the
                   formula gave, just before it is rounded for storing. Zeros of ReLU do not count,
                   nor do values that are zero because their operands had been flushed before.
       lost        of all weights with a nonzero stored gradient, the share whose bits the step did
                   not change: of the master where there is one, else of the half weight. Skipped
                   steps do not count.
       bytes/param memory for weights, masters, gradients and moments, as allocated
       act KiB     activations that one batch keeps for the backward pass
       ms/step     median of the steps that are not sampled

   Biases (under 2 % of the parameters) stay fp32 in every variant, as is usual.                 */

#if defined(__unix__) || defined(__APPLE__)
#define _POSIX_C_SOURCE 200809L /* popen, isatty, mkdir, clock_gettime */
#define ON_POSIX 1
#else
#define ON_POSIX 0
#endif

#define AMP_IMPLEMENTATION
#define AMP_STATIC
#include "amp.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if ON_POSIX
#include <sys/stat.h>
#include <unistd.h>
#endif
#ifdef AMP_ZLIB
#include <zlib.h>
#endif

#ifndef AMP_EXAMPLES_DIR
#define AMP_EXAMPLES_DIR "examples"
#endif

enum {
    MAX_LAYERS    = 4,
    MAX_SEEDS     = 20,
    MAX_EPOCHS    = 1000,
    MAX_BATCH     = 1024,
    SAMPLE_EVERY  = 11, /* shares no factor with the growth interval */
    FASHION_TRAIN = 6000,
    FASHION_TEST  = 2000,
    PICTURES      = 10 /* columns of the picture: one image of each class */
};

/* ------------------------------------------------------------------------------ what is trained */

typedef struct variant {
    const char *name, *color;
    amp_dtype   type;    /* of weights, activations and gradients                                */
    int         master;  /* 0: no master weights; the stored weights are updated themselves      */
    int         scaling; /* 0: the loss scale is 1 and stays                                     */
} variant;

enum { FP32, FP16_ALONE, FP16_MASTER, FP16, BF16, NUM_VARIANTS };

static const variant variants[NUM_VARIANTS] = {
    {"fp32", "#222222", AMP_F32, 1, 0},
    {"fp16 alone", "#cc79a7", AMP_F16, 0, 0},
    {"fp16+master", "#e69f00", AMP_F16, 1, 0},
    {"fp16+master+scaling", "#0072b2", AMP_F16, 1, 1},
    {"bf16+master", "#009e73", AMP_BF16, 1, 0},
};

typedef struct task {
    const char *name, *metric;
    size_t      hidden[MAX_LAYERS - 1], num_hidden;
    int         epochs[2]; /* digits, Fashion-MNIST */
    float       lr;
} task;

enum { CLASSIFY, RECONSTRUCT, NUM_TASKS };

static const task tasks[NUM_TASKS] = {
    {"classify", "accuracy %", {128, 128, 128}, 3, {20, 4}, 4e-3f},
    {"reconstruct", "error", {128, 32, 128}, 3, {30, 4}, 5e-3f},
};

typedef struct dataset {
    char    name[512];
    size_t  num_train, num_test, side, pixels; /* pixels = side * side            */
    float  *image;                             /* 0..1; training images first     */
    int    *label;
} dataset;

/* What one training run leaves behind. */
enum { METRIC, FLUSHED, LOST, SKIPPED, SCALE, PARAM_BYTES, ACT_BYTES, MS, NUM_COLUMNS };

typedef struct report {
    int     task_on[NUM_TASKS], variant_on[NUM_VARIANTS], seeds, epochs[NUM_TASKS];
    size_t  batch;
    double  results[NUM_TASKS][NUM_VARIANTS][NUM_COLUMNS][MAX_SEEDS];
    double  loss[NUM_TASKS][NUM_VARIANTS][MAX_EPOCHS]; /* mean over seeds                         */
    double *scale[NUM_TASKS];                          /* per step: FP16's loss scale, first seed */
    size_t  num_steps[NUM_TASKS];
    float  *picture[NUM_VARIANTS];                     /* PICTURES reconstructions, first seed    */
    size_t  shown[PICTURES];                           /* the images they were made from          */
    double  work_done, work_total;
} report;

/* ------------------------------------------------------------------------------------- helpers */

/* One line that says what was wrong, with which value, and what to do; then the end. */
static void fail(int code, const char *subject, const char *problem, const char *remedy) {
    fprintf(stderr, "train: %s: %s; %s\n", subject, problem, remedy);
    exit(code);
}

static void check(amp_result r) {
    if (r != AMP_OK) fail(1, "amp.h", amp_result_string(r), "this is a bug in train.c");
}

static void *need(size_t count, size_t size) {
    void *p = calloc(count ? count : 1, size);
    if (!p) fail(1, "memory", "there is not enough", "choose a smaller --batch");
    return p;
}

static double seconds(void) {
#if ON_POSIX
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
#else
    return (double)clock() / CLOCKS_PER_SEC;
#endif
}

/* splitmix64: the same numbers everywhere, unlike rand(). */
static uint64_t random_u64(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static float random_uniform(uint64_t *state) { /* in [-1, 1) */
    return (float)(random_u64(state) >> 40) / 8388608.0f - 1.0f;
}

static void shuffle(size_t *order, size_t n, uint64_t *state) {
    size_t i;
    for (i = n; i > 1; i--) {
        const size_t j = (size_t)(random_u64(state) % i), other = order[j];
        order[j]       = order[i - 1];
        order[i - 1]   = other;
    }
}

/* ------------------------------------------------------------------------------------- network
   Layer l:  z = act[l] W + b;  the last layer's z, in fp32, is the output; otherwise
   act[l + 1] = normalize(relu(z)), over the row of one image, in fp32.                           */

typedef struct net {
    const variant *v;
    int            task;
    size_t         layers, width[MAX_LAYERS + 1], batch;
    void          *act[MAX_LAYERS];   /* type v->type: kept for the backward pass                 */
    float         *rstd[MAX_LAYERS];  /* per image: 1 / standard deviation of act[l] before       */
    float         *least[MAX_LAYERS]; /* per image: what relu's 0 became in act[l]                */
    float         *out;               /* fp32 output: logits or pixels                            */
    void          *delta[2];          /* type v->type: gradient of a layer's z, and the one below */
    float         *wide;              /* scratch: anything in fp32                                */
    amp_tensor     tensor[2 * MAX_LAYERS]; /* weight of layer l: 2 l, its bias: 2 l + 1           */
    float         *moments[2 * MAX_LAYERS]; /* without master: AdamW's m, then v                  */
    unsigned char *before;            /* sampled steps: the weights' bits before the step         */
    amp_optimizer  opt;
    uint64_t       steps;
    int            sampling;          /* count in this step?                                      */
    double         nonzero, flushed, updates, lost;
    size_t         act_bytes, param_bytes, opt_bytes, num_params;
    void          *owned[10 * MAX_LAYERS + 5];
    int            num_owned;
} net;

static void *net_alloc(net *n, size_t count, size_t size) {
    return n->owned[n->num_owned++] = need(count, size);
}

/* The element type of everything that is stored, and where an element stands. */
static size_t elem_size(const net *n) { return amp_dtype_size(n->v->type); }

/* amp_optimizer's allocator: malloc that counts. */
static void *count_malloc(size_t num_bytes, void *total) {
    *(size_t *)total += num_bytes;
    return malloc(num_bytes);
}

static void count_free(void *memory, void *total) {
    (void)total;
    free(memory);
}

/* Describe and fill the weights of layer l: uniform with variance 1 / fan-in. */
static void add_layer(net *n, size_t l, uint64_t *rng) {
    const size_t in = n->width[l], out = n->width[l + 1], count = in * out;
    const float  limit = sqrtf(3.0f / (float)in);
    amp_tensor  *w = &n->tensor[2 * l], *b = &n->tensor[2 * l + 1];
    float       *init = (float *)net_alloc(n, count, sizeof(float));
    size_t       i;
    for (i = 0; i < count; i++) init[i] = limit * random_uniform(rng);
    w->name      = "weight";
    w->n         = count;
    w->grad      = net_alloc(n, count, elem_size(n));
    w->grad_type = n->v->type;
    b->name      = "bias";
    b->n         = out;
    b->weight    = (float *)net_alloc(n, out, sizeof(float));
    b->grad      = net_alloc(n, out, sizeof(float));
    b->grad_type = AMP_F32;
    b->keep_fp32 = 1;
    n->param_bytes += count * elem_size(n) + out * 2 * sizeof(float);
    n->num_params += count + out;
    if (n->v->master) {
        w->weight = init; /* amp_optimizer makes the half copy of it */
        n->param_bytes += count * sizeof(float);
    } else {
        w->model          = net_alloc(n, count, elem_size(n));
        w->model_type     = n->v->type;
        n->moments[2 * l] = (float *)net_alloc(n, 2 * count, sizeof(float));
        n->moments[2 * l + 1] = (float *)net_alloc(n, 2 * out, sizeof(float));
        check(amp_cast(w->model, n->v->type, init, AMP_F32, count));
        n->param_bytes += count * elem_size(n) + 2 * (count + out) * sizeof(float);
    }
}

/* Everything that differs between the variants, but for the one without master weights. */
static void setup_optimizer(net *n) {
    amp_optimizer_desc desc;
    size_t             i;
    memset(&desc, 0, sizeof desc);
    desc.dtype               = n->v->type;
    desc.kind                = AMP_KIND_ADAMW;
    desc.allocator.alloc_fn  = count_malloc;
    desc.allocator.free_fn   = count_free;
    desc.allocator.user_data = &n->opt_bytes;
    if (n->v->scaling) {
        desc.scaler.preset          = AMP_PRESET_DEFAULT; /* starts at 65536 */
        desc.scaler.growth_interval = 20; /* default 2000: for runs of more than 1000 steps */
    } else {
        desc.scaler.preset     = AMP_PRESET_STATIC;
        desc.scaler.init_scale = 1.0f;
    }
    check(amp_optimizer_init(&n->opt, &desc));
    for (i = 0; i < 2 * n->layers; i++) check(amp_optimizer_add(&n->opt, &n->tensor[i]));
    check(amp_optimizer_prepare(&n->opt));
    n->param_bytes += n->opt_bytes;
}

static void net_init(net *n, const variant *v, int which, const dataset *data, size_t batch,
                     uint64_t *rng) {
    const task *t = &tasks[which];
    size_t      l, widest = 0, largest = 0, total = 0;
    memset(n, 0, sizeof *n);
    n->v      = v;
    n->task   = which;
    n->batch  = batch;
    n->layers = t->num_hidden + 1;
    for (l = 0; l < t->num_hidden; l++) n->width[l + 1] = t->hidden[l];
    n->width[0]         = data->pixels;
    n->width[n->layers] = which == CLASSIFY ? 10 : data->pixels;
    for (l = 0; l < n->layers; l++) {
        n->act[l]   = net_alloc(n, batch * n->width[l], elem_size(n));
        n->rstd[l]  = (float *)net_alloc(n, batch, sizeof(float));
        n->least[l] = (float *)net_alloc(n, batch, sizeof(float));
        n->act_bytes += batch * n->width[l] * elem_size(n);
        if (l > 0) n->act_bytes += batch * 2 * sizeof(float);
        add_layer(n, l, rng);
        if (n->tensor[2 * l].n > largest) largest = n->tensor[2 * l].n;
        total += n->tensor[2 * l].n;
    }
    for (l = 0; l <= n->layers; l++)
        if (n->width[l] > widest) widest = n->width[l];
    if (batch * widest > largest) largest = batch * widest;
    n->out      = (float *)net_alloc(n, batch * n->width[n->layers], sizeof(float));
    n->delta[0] = net_alloc(n, batch * widest, elem_size(n));
    n->delta[1] = net_alloc(n, batch * widest, elem_size(n));
    n->wide     = (float *)net_alloc(n, 2 * largest, sizeof(float));
    n->before   = (unsigned char *)net_alloc(n, total, sizeof(float));
    if (v->master) setup_optimizer(n);
}

static void net_free(net *n) {
    amp_optimizer_free(&n->opt);
    while (n->num_owned > 0) free(n->owned[--n->num_owned]);
}

/* What the products read: the half copy of the master, or the half weights themselves. */
static const void *weights(const net *n, size_t l) {
    return n->v->master ? amp_optimizer_model(&n->opt, (int)(2 * l)) : n->tensor[2 * l].model;
}

static float loss_scale(const net *n) {
    return n->v->master ? amp_optimizer_loss_scale(&n->opt) : 1.0f;
}

/* relu(z + bias), then mean 0 and variance 1 over the row; what 0 became goes to *least. */
static void relu_normalize(float *z, const float *bias, size_t width, float *rstd, float *least) {
    float  sum = 0.0f, squares = 0.0f, mean;
    size_t i;
    for (i = 0; i < width; i++) {
        z[i] = z[i] + bias[i] > 0.0f ? z[i] + bias[i] : 0.0f;
        sum += z[i];
    }
    mean = sum / (float)width;
    for (i = 0; i < width; i++) {
        z[i] -= mean;
        squares += z[i] * z[i];
    }
    *rstd  = 1.0f / sqrtf(squares / (float)width + 1e-5f);
    *least = -mean * *rstd;
    for (i = 0; i < width; i++) z[i] *= *rstd;
}

/* The gradient by act[l] becomes the gradient by z: back through normalize and relu. */
static void relu_normalize_back(float *grad, const float *act, size_t width, float rstd,
                                float least) {
    float  sum = 0.0f, product = 0.0f;
    size_t i;
    for (i = 0; i < width; i++) {
        sum += grad[i];
        product += grad[i] * act[i];
    }
    sum /= (float)width;
    product /= (float)width;
    for (i = 0; i < width; i++)
        grad[i] = act[i] > least ? rstd * (grad[i] - sum - act[i] * product) : 0.0f;
}

static void load_images(net *n, const dataset *data, const size_t *pick, size_t rows) {
    size_t i, w = n->width[0];
    for (i = 0; i < rows; i++)
        check(amp_cast((char *)n->act[0] + i * w * elem_size(n), n->v->type,
                       data->image + pick[i] * w, AMP_F32, w));
}

static void forward(net *n, size_t rows) {
    const amp_dtype T = n->v->type;
    size_t          l, i, j;
    for (l = 0; l < n->layers; l++) {
        const size_t in = n->width[l], out = n->width[l + 1];
        const float *bias = n->tensor[2 * l + 1].weight;
        if (l + 1 == n->layers) { /* the output stays in fp32, for softmax and loss */
            check(amp_gemm(NULL, 0, 0, rows, out, in, 1.0f, n->act[l], T, 0, weights(n, l), T, 0,
                           0.0f, n->out, AMP_F32, 0));
            for (i = 0; i < rows; i++)
                for (j = 0; j < out; j++) n->out[i * out + j] += bias[j];
            return;
        }
        check(amp_gemm(NULL, 0, 0, rows, out, in, 1.0f, n->act[l], T, 0, weights(n, l), T, 0,
                       0.0f, n->act[l + 1], T, 0));
        check(amp_cast(n->wide, AMP_F32, n->act[l + 1], T, rows * out));
        for (i = 0; i < rows; i++)
            relu_normalize(n->wide + i * out, bias, out, &n->rstd[l + 1][i], &n->least[l + 1][i]);
        check(amp_cast(n->act[l + 1], T, n->wide, AMP_F32, rows * out));
        /* backward compares act with least, so least must be rounded as act was */
        check(amp_cast(n->delta[0], T, n->least[l + 1], AMP_F32, rows));
        check(amp_cast(n->least[l + 1], AMP_F32, n->delta[0], T, rows));
    }
}

/* Store count fp32 gradients in the variant's type; sampled steps count what becomes zero. */
static void store_gradient(net *n, void *dst, const float *src, size_t count) {
    const uint16_t *half = (const uint16_t *)dst;
    size_t          i;
    check(amp_cast(dst, n->v->type, src, AMP_F32, count));
    if (!n->sampling) return;
    for (i = 0; i < count; i++) {
        if (src[i] < 0.0f || src[i] > 0.0f) {
            n->nonzero += 1.0;
            if (n->v->type != AMP_F32 && (half[i] & 0x7fff) == 0) n->flushed += 1.0;
        }
    }
}

/* A product that gives gradients: c = op(a) op(b). A sampled step takes the way over fp32, which
   gives the same bits, since amp_gemm also sums in fp32 and rounds once. */
static void gradient_product(net *n, int trans_a, int trans_b, size_t rows, size_t cols, size_t k,
                             const void *a, const void *b, void *c) {
    const amp_dtype T = n->v->type, to = n->sampling ? AMP_F32 : T;
    check(amp_gemm(NULL, trans_a, trans_b, rows, cols, k, 1.0f, a, T, 0, b, T, 0, 0.0f,
                   n->sampling ? n->wide : c, to, 0));
    if (n->sampling) store_gradient(n, c, n->wide, rows * cols);
}

/* The gradients of a full batch, from delta[0], the scaled gradient of the loss by the output. */
static void backward(net *n) {
    const amp_dtype T = n->v->type;
    const size_t    rows = n->batch;
    size_t          l, i, j;
    for (l = n->layers; l-- > 0;) {
        const size_t in = n->width[l], out = n->width[l + 1];
        float       *grad_bias = (float *)n->tensor[2 * l + 1].grad;
        float       *grad = n->wide, *act = n->wide + rows * in;
        void        *above = n->delta[0], *below = n->delta[1];

        gradient_product(n, 1, 0, in, out, rows, n->act[l], above, n->tensor[2 * l].grad);
        check(amp_cast(n->wide, AMP_F32, above, T, rows * out));
        memset(grad_bias, 0, out * sizeof(float));
        for (i = 0; i < rows; i++)
            for (j = 0; j < out; j++) grad_bias[j] += n->wide[i * out + j];
        if (l == 0) break;

        gradient_product(n, 0, 1, rows, in, out, above, weights(n, l), below);
        check(amp_cast(grad, AMP_F32, below, T, rows * in));
        check(amp_cast(act, AMP_F32, n->act[l], T, rows * in));
        for (i = 0; i < rows; i++)
            relu_normalize_back(grad + i * in, act + i * in, in, n->rstd[l][i], n->least[l][i]);
        store_gradient(n, below, grad, rows * in);
        n->delta[0] = below;
        n->delta[1] = above;
    }
}

/* Softmax and cross-entropy of one image; the logits become their gradient. */
static double cross_entropy(float *logit, size_t count, int label) {
    float  max = logit[0], sum = 0.0f;
    size_t i;
    for (i = 1; i < count; i++)
        if (logit[i] > max) max = logit[i];
    for (i = 0; i < count; i++) sum += logit[i] = expf(logit[i] - max);
    for (i = 0; i < count; i++) logit[i] /= sum;
    {
        const float p = logit[label];
        logit[label] -= 1.0f;
        return -log((double)p > 1e-30 ? (double)p : 1e-30);
    }
}

/* Sigmoid and mean squared error of one image; the output becomes its gradient, pixel the image. */
static double squared_error(float *z, size_t count, const float *target, float *pixel) {
    double sum = 0.0;
    size_t i;
    for (i = 0; i < count; i++) {
        const float y = 1.0f / (1.0f + expf(-z[i])), d = y - target[i];
        sum += (double)d * (double)d;
        z[i] = 2.0f * d * y * (1.0f - y) / (float)count;
        if (pixel) pixel[i] = y;
    }
    return sum / (double)count;
}

/* The mean loss of the batch; its gradient, times the loss scale, goes to delta[0]. */
static double loss_and_gradient(net *n, const dataset *data, const size_t *pick, float scale) {
    const size_t width = n->width[n->layers], count = n->batch * width;
    double       loss  = 0.0;
    size_t       i;
    for (i = 0; i < n->batch; i++) {
        float *y = n->out + i * width;
        loss += n->task == CLASSIFY
                    ? cross_entropy(y, width, data->label[pick[i]])
                    : squared_error(y, width, data->image + pick[i] * data->pixels, NULL);
    }
    for (i = 0; i < count; i++) n->out[i] *= scale / (float)n->batch;
    store_gradient(n, n->delta[0], n->out, count);
    return loss / (double)n->batch;
}

/* AdamW for the variant without master weights: read half, compute in fp32, write half. An update
   below half an ulp of its weight is lost here. The formula and its constants are amp.h's. */
static void adamw_without_master(net *n, size_t i, float lr) {
    amp_tensor     *t = &n->tensor[i];
    void           *stored = t->model ? t->model : (void *)t->weight;
    const amp_dtype type = t->model ? t->model_type : AMP_F32;
    float          *w = n->wide, *g = n->wide + t->n, *m = n->moments[i], *v = m + t->n;
    const float     c1 = (float)(1.0 - pow(0.9, (double)n->steps));
    const float     c2 = (float)(1.0 - pow(0.999, (double)n->steps));
    size_t          j;
    check(amp_cast(w, AMP_F32, stored, type, t->n));
    check(amp_cast(g, AMP_F32, t->grad, t->grad_type, t->n));
    for (j = 0; j < t->n; j++) {
        m[j] = 0.9f * m[j] + 0.1f * g[j];
        v[j] = 0.999f * v[j] + 0.001f * g[j] * g[j];
        w[j] -= lr * (m[j] / c1) / (sqrtf(v[j] / c2) + 1e-8f);
    }
    check(amp_cast(stored, type, w, AMP_F32, t->n));
}

static void optimizer_step(net *n, float lr) {
    size_t i;
    n->steps++;
    if (n->v->master) {
        check(amp_optimizer_adamw(&n->opt, lr)); /* check, unscale, AdamW, new scale, new copies */
        return;
    }
    for (i = 0; i < 2 * n->layers; i++) adamw_without_master(n, i, lr);
}

/* The bits that a step must change, for weight l: of the master, or of the half weight itself. */
static const unsigned char *stored_bits(const net *n, size_t l, size_t *elem) {
    const amp_tensor *t = &n->tensor[2 * l];
    *elem               = t->weight ? sizeof(float) : elem_size(n);
    return (const unsigned char *)(t->weight ? (const void *)t->weight : t->model);
}

/* A step that also counts the weights that it should change and does not. */
static void sampled_step(net *n, float lr) {
    unsigned char *before = n->before;
    amp_status     status = {0};
    size_t         l, i, size;
    for (l = 0; l < n->layers; before += n->tensor[2 * l].n * size, l++) {
        const unsigned char *bits = stored_bits(n, l, &size);
        memcpy(before, bits, n->tensor[2 * l].n * size);
    }
    optimizer_step(n, lr);
    if (n->v->master) check(amp_optimizer_status(&n->opt, &status));
    if (n->v->master && !status.did_step) return;
    before = n->before;
    for (l = 0; l < n->layers; before += n->tensor[2 * l].n * size, l++) {
        const amp_tensor    *t    = &n->tensor[2 * l];
        const unsigned char *bits = stored_bits(n, l, &size);
        check(amp_cast(n->wide, AMP_F32, t->grad, t->grad_type, t->n));
        for (i = 0; i < t->n; i++) {
            if (n->wide[i] < 0.0f || n->wide[i] > 0.0f) {
                n->updates += 1.0;
                n->lost += memcmp(before + i * size, bits + i * size, size) == 0;
            }
        }
    }
}

/* Accuracy in percent, or mean squared error, on the images that training never sees. */
static double evaluate(net *n, const dataset *data) {
    const size_t width = n->width[n->layers];
    double       right = 0.0, error = 0.0;
    size_t       first, i, j, pick[MAX_BATCH];
    for (first = 0; first < data->num_test; first += n->batch) {
        const size_t left = data->num_test - first, rows = left < n->batch ? left : n->batch;
        for (i = 0; i < rows; i++) pick[i] = data->num_train + first + i;
        load_images(n, data, pick, rows);
        forward(n, rows);
        for (i = 0; i < rows; i++) {
            float *y    = n->out + i * width;
            size_t best = 0;
            for (j = 1; j < width; j++)
                if (y[j] > y[best]) best = j;
            if (n->task == CLASSIFY) right += (int)best == data->label[pick[i]];
            else error += squared_error(y, width, data->image + pick[i] * data->pixels, NULL);
        }
    }
    return (n->task == CLASSIFY ? 100.0 * right : error) / (double)data->num_test;
}

/* ------------------------------------------------------------------------------------ training */

static void progress(report *r, const char *what);

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, size_t count) {
    qsort(x, count, sizeof *x, compare);
    return count ? x[count / 2] : 0.0;
}

/* One run: a variant of a task from one seed. */
static void train_one(report *r, const dataset *data, int which, int variant_index, int seed) {
    const task *t       = &tasks[which];
    uint64_t    rng     = (uint64_t)seed * 1000003u + (uint64_t)which + 1;
    const size_t batches = data->num_train / r->batch;
    const size_t steps   = batches * (size_t)r->epochs[which];
    size_t      *order   = (size_t *)need(data->num_train, sizeof(size_t)), b, i, step = 0;
    double      *ms    = (double *)need(steps, sizeof(double));
    size_t       timed = 0;
    amp_status   status = {0};
    double     (*column)[MAX_SEEDS] = r->results[which][variant_index];
    net          n;
    int          epoch;

    net_init(&n, &variants[variant_index], which, data, r->batch, &rng);
    for (i = 0; i < data->num_train; i++) order[i] = i;
    for (epoch = 0; epoch < r->epochs[which]; epoch++) {
        double loss = 0.0;
        shuffle(order, data->num_train, &rng);
        for (b = 0; b < batches; b++, step++) {
            const size_t *pick  = order + b * r->batch;
            const float   lr    = t->lr * (1.0f - (float)step / (float)steps);
            const float   scale = loss_scale(&n);
            const double  start = seconds();
            n.sampling          = step % SAMPLE_EVERY == 0;

            load_images(&n, data, pick, r->batch);
            forward(&n, r->batch);
            loss += loss_and_gradient(&n, data, pick, scale);
            backward(&n);
            if (n.sampling) sampled_step(&n, lr);
            else optimizer_step(&n, lr);

            if (!n.sampling) ms[timed++] = 1e3 * (seconds() - start);
            if (variant_index == FP16 && seed == 0) r->scale[which][step] = (double)scale;
        }
        r->loss[which][variant_index][epoch] += loss / (double)batches / (double)r->seeds;
        r->work_done += 1.0 / r->epochs[which];
        progress(r, t->name);
    }
    if (n.v->master) check(amp_optimizer_status(&n.opt, &status));
    column[METRIC][seed]      = evaluate(&n, data);
    column[FLUSHED][seed]     = n.nonzero > 0.0 ? 100.0 * n.flushed / n.nonzero : 0.0;
    column[LOST][seed]        = n.updates > 0.0 ? 100.0 * n.lost / n.updates : 0.0;
    column[SKIPPED][seed]     = (double)status.skipped;
    column[SCALE][seed]       = (double)loss_scale(&n);
    column[PARAM_BYTES][seed] = (double)n.param_bytes / (double)n.num_params;
    column[ACT_BYTES][seed]   = (double)n.act_bytes;
    column[MS][seed]          = median(ms, timed);
    for (i = 0; which == RECONSTRUCT && seed == 0 && i < PICTURES; i++) {
        load_images(&n, data, &r->shown[i], 1);
        forward(&n, 1);
        squared_error(n.out, data->pixels, data->image + r->shown[i] * data->pixels,
                      r->picture[variant_index] + i * data->pixels);
    }
    net_free(&n);
    free(order);
    free(ms);
}

/* ---------------------------------------------------------------------------------------- data */

static int ends_with(const char *s, const char *end) {
    const size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

static int file_exists(const char *path) {
    FILE *f = fopen(path, "rb");
    if (f) fclose(f);
    return f != NULL;
}

static const char data_help[] =
    "set --data (or AMP_DATA) to digits, fashion, a directory with Fashion-MNIST's four IDX files, "
    "or a digits .csv or .csv.gz";

/* A file, unpacked on the way if its name ends in .gz. The three functions are all that is needed
   of zlib, of the gzip program, or of stdio, whichever the build has. */
#ifdef AMP_ZLIB
typedef gzFile stream;
static stream stream_open(const char *path) { return gzopen(path, "rb"); }
static size_t stream_read(stream s, void *buf, unsigned n) {
    const int got = gzread(s, buf, n);
    return got > 0 ? (size_t)got : 0;
}
static int stream_close(stream s) {
    int error;
    gzerror(s, &error);
    return gzclose(s) == Z_OK && error == Z_OK;
}
#else
typedef struct stream_state { FILE *f; int is_pipe; } *stream;

static FILE *open_gzip(const char *path) {
#if ON_POSIX
    char  *command = (char *)need(4 * strlen(path) + 64, 1), *p = command;
    FILE  *f;
    p += sprintf(p, "exec gzip -dc 2>/dev/null < '");
    for (; *path; path++) { /* inside single quotes, only the single quote is special */
        if (*path == '\'') p += sprintf(p, "'\\''");
        else *p++ = *path;
    }
    *p++ = '\'';
    f    = popen(command, "r");
    free(command);
    return f;
#else
    fail(1, path, "cannot unpack .gz here", "unpack it, or compile with -DAMP_ZLIB and -lz");
    return NULL;
#endif
}

static stream stream_open(const char *path) {
    stream s   = (stream)need(1, sizeof *s);
    s->is_pipe = ends_with(path, ".gz");
    s->f       = s->is_pipe ? open_gzip(path) : fopen(path, "rb");
    if (s->f) return s;
    free(s);
    return NULL;
}

static size_t stream_read(stream s, void *buf, unsigned n) { return fread(buf, 1, n, s->f); }

static int stream_close(stream s) {
    int good = !ferror(s->f);
#if ON_POSIX
    if (s->is_pipe) good = pclose(s->f) == 0 && good;
    else
#endif
        good = fclose(s->f) == 0 && good;
    free(s);
    return good;
}
#endif

/* The whole file, followed by a 0 byte. */
static unsigned char *read_file(const char *path, size_t *size) {
    size_t         room = 1 << 16, got;
    unsigned char *bytes = (unsigned char *)need(room, 1);
    stream         s     = file_exists(path) ? stream_open(path) : NULL;
    if (!s) fail(1, path, strerror(errno ? errno : ENOENT), data_help);
    for (*size = 0; (got = stream_read(s, bytes + *size, 1 << 15)) > 0;) {
        *size += got;
        if (room - *size <= 1 << 15) {
            unsigned char *more = (unsigned char *)realloc(bytes, room *= 2);
            if (!more) fail(1, path, "too large for the memory", data_help);
            bytes = more;
        }
    }
    bytes[*size] = 0;
    if (!stream_close(s))
        fail(1, path, "cannot be read to its end (truncated, not a file, or no gzip here)",
             "fetch it again, or unpack it and give the plain file");
    return bytes;
}

static size_t big_endian(const unsigned char *p) {
    return ((size_t)p[0] << 24) | ((size_t)p[1] << 16) | ((size_t)p[2] << 8) | p[3];
}

/* One IDX file: magic 08 03 (images: count, rows, columns) or 08 01 (labels: count), then bytes. */
static unsigned char *read_idx(const char *dir, const char *name, size_t dims, size_t *count,
                               size_t *side, unsigned char **file) {
    const size_t   header = 4 + 4 * dims;
    char           path[1024], problem[160];
    size_t         size, item = 1;
    if (strlen(dir) + strlen(name) + 8 > sizeof path) fail(1, dir, "path too long", data_help);
    sprintf(path, "%s/%s", dir, name);
    if (!file_exists(path)) strcat(path, ".gz");
    if (!file_exists(path)) fail(1, path, "is not there, nor without .gz", data_help);
    *file = read_file(path, &size);
    if (size < header || big_endian(*file) != 0x800 + dims)
        fail(1, path, dims == 3 ? "is not an IDX file of images (it does not begin with 0 0 8 3)"
                                : "is not an IDX file of labels (it does not begin with 0 0 8 1)",
             data_help);
    *count = big_endian(*file + 4);
    if (dims == 3) {
        *side = big_endian(*file + 8);
        if (*side != 28 || big_endian(*file + 12) != 28)
            fail(1, path, "does not hold images of 28x28 pixels", data_help);
        item = 28 * 28;
    }
    if (size - header != *count * item) {
        sprintf(problem, "has %lu bytes, but its header promises %lu", (unsigned long)size,
                (unsigned long)(header + *count * item));
        fail(1, path, problem, "it is truncated or damaged: fetch it again");
    }
    return *file + header;
}

/* Append the first `use` images of one half of Fashion-MNIST; returns how many the files have. */
static size_t append_idx(dataset *d, const char *dir, const char *part, size_t first, size_t use) {
    char           name[64];
    unsigned char *files[2], *image, *label;
    size_t         count, labels, i;
    sprintf(name, "%s-images-idx3-ubyte", part);
    image = read_idx(dir, name, 3, &count, &d->side, &files[0]);
    sprintf(name, "%s-labels-idx1-ubyte", part);
    label = read_idx(dir, name, 1, &labels, &d->side, &files[1]);
    if (count != labels || count < use)
        fail(1, dir, "too few images, or not as many labels as images", data_help);
    for (i = 0; i < use * d->pixels; i++)
        d->image[first * d->pixels + i] = (float)image[i] / 255.0f;
    for (i = 0; i < use; i++) {
        if (label[i] > 9) fail(1, dir, "a label is not in 0..9", data_help);
        d->label[first + i] = label[i];
    }
    free(files[0]);
    free(files[1]);
    return count;
}

static void load_fashion(dataset *d, const char *dir) {
    size_t of_train, of_test;
    d->side      = 28;
    d->pixels    = 28 * 28;
    d->num_train = FASHION_TRAIN;
    d->num_test  = FASHION_TEST;
    d->image     = (float *)need((d->num_train + d->num_test) * d->pixels, sizeof(float));
    d->label     = (int *)need(d->num_train + d->num_test, sizeof(int));
    of_train     = append_idx(d, dir, "train", 0, d->num_train);
    of_test      = append_idx(d, dir, "t10k", d->num_train, d->num_test);
    snprintf(d->name, sizeof d->name,
             "IDX images in %.300s: the first %lu of %lu to train, the first %lu of %lu held out",
             dir, (unsigned long)d->num_train, (unsigned long)of_train,
             (unsigned long)d->num_test, (unsigned long)of_test);
}

/* One row of the digits file, 64 pixels of 0..16 and a label; NULL if it is anything else. */
static char *parse_row(char *p, float *image, int *label) {
    int i;
    for (i = 0; i < 65; i++) {
        char      *end;
        const long x = strtol(p, &end, 10);
        if (end == p || x < 0 || x > (i < 64 ? 16 : 9)) return NULL;
        if (i < 64 ? *end != ',' : *end != '\n' && *end != '\r' && *end != 0) return NULL;
        if (i < 64) image[i] = (float)x / 16.0f;
        else *label = (int)x;
        p = end + (i < 64);
    }
    while (*p == '\r' || *p == '\n') p++;
    return p;
}

/* Every fifth digit is held out, so that both parts have digits of all writers. */
static void load_digits(dataset *d, const char *path) {
    size_t size, rows = 0, row, train = 0, test, i;
    char  *text = (char *)read_file(path, &size), *p, problem[96];
    for (i = 0; i < size; i++) rows += text[i] == '\n';
    rows += size > 0 && text[size - 1] != '\n';
    if (rows < 5 * PICTURES) fail(1, path, "has fewer than 50 rows", data_help);
    d->side      = 8;
    d->pixels    = 64;
    d->num_test  = rows / 5;
    d->num_train = rows - d->num_test;
    d->image     = (float *)need(rows * d->pixels, sizeof(float));
    d->label     = (int *)need(rows, sizeof(int));
    test         = d->num_train;
    for (p = text, row = 0; row < rows; row++) {
        const size_t to = row % 5 == 4 ? test++ : train++;
        p = parse_row(p, d->image + to * d->pixels, &d->label[to]);
        if (!p) {
            sprintf(problem, "row %lu is not 64 pixels of 0..16 and a label of 0..9",
                    (unsigned long)row + 1);
            fail(1, path, problem, data_help);
        }
    }
    free(text);
    snprintf(d->name, sizeof d->name, "%lu digits of 8x8 pixels in %.300s: every fifth held out",
             (unsigned long)rows, path);
}

/* --data, else AMP_DATA, else Debian's Fashion-MNIST, else the digits of this repository. */
static void load_data(dataset *d, const char *choice) {
    static const char debian[] = "/usr/share/datasets/fashion-mnist";
    const char       *digits   = "examples/digits.csv.gz";
    if (!choice) choice = getenv("AMP_DATA");
    if (!choice || !*choice)
        choice = file_exists("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz")
                     ? "fashion" : "digits";
    if (!file_exists(digits)) digits = AMP_EXAMPLES_DIR "/digits.csv.gz";
    memset(d, 0, sizeof *d);
    if (strcmp(choice, "digits") == 0) load_digits(d, digits);
    else if (strcmp(choice, "fashion") == 0) load_fashion(d, debian);
    else if (ends_with(choice, ".csv") || ends_with(choice, ".csv.gz")) load_digits(d, choice);
    else load_fashion(d, choice);
}

/* ---------------------------------------------------------------------------- progress, tables */

/* On a terminal, a bar that is drawn over itself. */
static void progress(report *r, const char *what) {
#if ON_POSIX
    static const char full[] = "########################################";
    const int         done   = (int)(40.0 * r->work_done / r->work_total + 1e-6);
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r[%-40.*s] %3d %%  %-12s", done, full, done * 5 / 2, what);
#else
    (void)r;
    (void)what;
#endif
}

static void progress_end(void) {
#if ON_POSIX
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\r%70s\r", "");
#endif
}

/* One line per seed, where there is no bar. */
static void say_seed(const report *r, int which, int seed) {
    int v;
#if ON_POSIX
    if (isatty(STDERR_FILENO)) return;
#endif
    fprintf(stderr, "%s, seed %d of %d:", tasks[which].name, seed + 1, r->seeds);
    for (v = 0; v < NUM_VARIANTS; v++)
        if (r->variant_on[v])
            fprintf(stderr, which == CLASSIFY ? "  %s %.1f" : "  %s %.5f", variants[v].name,
                    r->results[which][v][METRIC][seed]);
    fprintf(stderr, "\n");
}

typedef struct spread { double mean, sd; } spread;

/* Mean and standard deviation over the seeds of a column, or of its difference to another. */
static spread over_seeds(const double *x, const double *minus, int seeds) {
    spread s = {0.0, 0.0};
    int  i;
    for (i = 0; i < seeds; i++) s.mean += (x[i] - (minus ? minus[i] : 0.0)) / seeds;
    for (i = 0; i < seeds; i++) {
        const double d = x[i] - (minus ? minus[i] : 0.0) - s.mean;
        s.sd += d * d;
    }
    s.sd = seeds > 1 ? sqrt(s.sd / (seeds - 1)) : (double)NAN; /* one seed has no spread */
    return s;
}

static double mean_of(const report *r, int which, int v, int column) {
    return over_seeds(r->results[which][v][column], NULL, r->seeds).mean;
}

static void print_table(const report *r, int which) {
    const int digits = which == CLASSIFY ? 2 : 5;
    int       v;
    printf("\n%s: %s on held-out images, mean +- standard deviation over %d seed%s\n\n",
           tasks[which].name, which == CLASSIFY ? "accuracy in %" : "mean squared error",
           r->seeds, r->seeds > 1 ? "s" : "");
    printf("%-20s %-19s %9s %9s %8s %9s %11s %8s %8s\n", "", tasks[which].metric, "flushed %",
           "lost %", "skipped", "scale", "bytes/param", "act KiB", "ms/step");
    for (v = 0; v < NUM_VARIANTS; v++) {
        const spread m = over_seeds(r->results[which][v][METRIC], NULL, r->seeds);
        if (!r->variant_on[v]) continue;
        printf("%-20s %-7.*f +- %-8.*f", variants[v].name, digits, m.mean, digits, m.sd);
        printf(" %9.4f %9.3f %8.1f %9.0f %11.2f %8.1f %8.2f\n", mean_of(r, which, v, FLUSHED),
               mean_of(r, which, v, LOST), mean_of(r, which, v, SKIPPED),
               mean_of(r, which, v, SCALE), mean_of(r, which, v, PARAM_BYTES),
               mean_of(r, which, v, ACT_BYTES) / 1024.0, mean_of(r, which, v, MS));
    }
}

static void print_ratio(const char *what, double without, double with, const char *by) {
    printf("  %s: %.3g %% without %s, %.3g %% with", what, without, by, with);
    if (with > 0.0 && without > with) printf(" (%.0f times less)", without / with);
    printf("\n");
}

/* Is the difference to fp32 more than the seeds (2 standard errors) or the allowance explain? */
static void print_verdict(const report *r, int which, int v) {
    const double *fp32 = r->results[which][FP32][METRIC];
    const spread d    = over_seeds(r->results[which][v][METRIC], fp32, r->seeds);
    const double  se = d.sd / sqrt(r->seeds), reference = mean_of(r, which, FP32, METRIC);
    const double  allowance = which == CLASSIFY ? 0.3 : 0.02 * reference;
    const char   *verdict   = "more than the seeds explain";
    if (r->seeds < 2) verdict = "but one seed says nothing about noise";
    else if (fabs(d.mean) <= 2.0 * se) verdict = "within two standard errors";
    else if (fabs(d.mean) <= allowance)
        verdict = which == CLASSIFY ? "within 0.3 points" : "within 2 % of fp32's error";
    if (which == CLASSIFY)
        printf("  %s minus fp32: %+.2f points (se %.2f), %s\n", variants[v].name, d.mean, se,
               verdict);
    else
        printf("  %s minus fp32: %+.6f (se %.6f), %+.1f %%: %s\n", variants[v].name, d.mean, se,
               100.0 * d.mean / reference, verdict);
    if (v == BF16 && which == RECONSTRUCT && d.mean > 0.0)
        printf("    bf16 has 8 bits of significand, fp16 has 11: stored activations are rounded\n"
               "    by up to 1 part in 256, not 2048; pixels show that more than classes do\n");
}

/* What the table says, in words that follow from its numbers. */
static void print_reading(const report *r, int which) {
    const double fp32_ms = mean_of(r, which, FP32, MS), fp16_ms = mean_of(r, which, FP16, MS);
    int          v;
    printf("\nreading\n");
    if (r->variant_on[FP16]) {
        print_ratio("gradients flushed to zero", mean_of(r, which, FP16_MASTER, FLUSHED),
                    mean_of(r, which, FP16, FLUSHED), "loss scaling");
        print_ratio("weight updates lost", mean_of(r, which, FP16_ALONE, LOST),
                    mean_of(r, which, FP16_MASTER, LOST), "master weights");
    }
    if (!r->variant_on[FP32]) return;
    for (v = FP32 + 1; v < NUM_VARIANTS; v++)
        if (r->variant_on[v]) print_verdict(r, which, v);
    if (!r->variant_on[FP16]) return;
    printf("  fp16 keeps %.0f %% of fp32's bytes of activations; a step takes %.2f times as long",
           100.0 * mean_of(r, which, FP16, ACT_BYTES) / mean_of(r, which, FP32, ACT_BYTES),
           fp16_ms / fp32_ms);
    if (fp16_ms > fp32_ms)
        printf(":\n    amp_gemm converts to fp32 on the way; here half saves memory, not time");
    printf("\n");
}

static void print_parity(const report *r, int which) {
    static const int half[2] = {FP16, BF16};
    const int        digits  = which == CLASSIFY ? 1 : 5;
    const char      *unit    = which == CLASSIFY ? " %" : "";
    int              i;
    printf("parity %s: fp32 %.*f%s", tasks[which].name, digits, mean_of(r, which, FP32, METRIC),
           unit);
    for (i = 0; i < 2; i++) {
        const double *x = r->results[which][half[i]][METRIC];
        const spread d = over_seeds(x, r->results[which][FP32][METRIC], r->seeds);
        printf(" %s %.*f%s d %+.*f se %.*f", i ? "bf16" : "fp16", digits,
               mean_of(r, which, half[i], METRIC), unit, digits, d.mean, digits,
               d.sd / sqrt(r->seeds));
    }
    printf(" seeds %d\n", r->seeds);
}

/* ------------------------------------------------------------------------------------ pictures
   SVG is text: a curve is a list of points, and a browser draws it.                              */

typedef struct panel {
    double x, y, width, height; /* of the plot, in pixels                            */
    double right, low, high;    /* x runs from 0 to right; y's logarithm, low..high  */
    double base;                /* of that logarithm: 10 or 2                        */
} panel;

static double panel_x(const panel *p, double x) { return p->x + p->width * x / p->right; }

static double panel_y(const panel *p, double value) {
    return p->y + p->height * (p->high - log(value) / log(p->base)) / (p->high - p->low);
}

static FILE *svg_open(const char *dir, const char *name, int width, int height) {
    char  path[1024];
    FILE *f;
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        fail(2, "--out", "path too long", "choose a shorter one");
    f = fopen(path, "wb");
    if (!f) fail(1, path, strerror(errno), "choose a directory that can be written with --out DIR");
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
               "viewBox=\"0 0 %d %d\" font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\" "
               "font-size=\"13\" fill=\"#333\">\n"
               "<rect width=\"%d\" height=\"%d\" fill=\"#fcfcfa\"/>\n",
            width, height, width, height, width, height);
    return f;
}

static void svg_close(FILE *f, const char *dir) {
    int good;
    fprintf(f, "</svg>\n");
    good = !ferror(f);
    if (fclose(f) != 0 || !good) fail(1, dir, "cannot write a picture", "is the disk full?");
}

static void svg_text(FILE *f, double x, double y, const char *style, const char *text) {
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" %s>%s</text>\n", x, y, style, text);
}

static void svg_line(FILE *f, double x1, double y1, double x2, double y2, const char *style) {
    fprintf(f, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x1, y1, x2, y2,
            style);
}

/* A horizontal grid line with its value: 2^16 in base 2, 0.02 in base 10. */
static void svg_y_tick(FILE *f, const panel *p, double value, int exponent) {
    const double y = panel_y(p, value);
    char         text[64];
    if (y < p->y - 0.1 || y > p->y + p->height + 0.1) return;
    if (p->base > 2.0) sprintf(text, "%g", value);
    else sprintf(text, "2<tspan dy=\"-5\" font-size=\"10\">%d</tspan>", exponent);
    svg_line(f, p->x, y, p->x + p->width, y, "stroke=\"#ddd\"");
    svg_text(f, p->x - 8.0, y + 4.5, "text-anchor=\"end\"", text);
}

/* Grid, tick values, frame and titles. */
static void svg_panel(FILE *f, const panel *p, const char *title, const char *x_title,
                      const char *y_title) {
    static const double mantissa[3] = {1.0, 2.0, 5.0};
    double step = 1.0, x;
    int    i, e;
    char   text[64];
    for (i = 1; p->right / step > 8.0; i++) step = mantissa[i % 3] * pow(10.0, i / 3);
    for (x = 0.0; x <= p->right + 1e-9; x += step) {
        sprintf(text, "%g", x);
        svg_line(f, panel_x(p, x), p->y, panel_x(p, x), p->y + p->height, "stroke=\"#eee\"");
        svg_text(f, panel_x(p, x), p->y + p->height + 18.0, "text-anchor=\"middle\"", text);
    }
    for (e = (int)floor(p->low); e <= (int)ceil(p->high); e++)
        for (i = 0; i < (p->base > 2.0 ? 3 : 1); i++)
            svg_y_tick(f, p, mantissa[i] * pow(p->base, e), e);
    fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"none\" "
               "stroke=\"#888\"/>\n", p->x, p->y, p->width, p->height);
    svg_text(f, p->x + p->width / 2.0, p->y - 10.0,
             "text-anchor=\"middle\" font-size=\"15\" font-weight=\"bold\"", title);
    svg_text(f, p->x + p->width / 2.0, p->y + p->height + 40.0, "text-anchor=\"middle\"", x_title);
    fprintf(f, "<text transform=\"translate(%.1f %.1f) rotate(-90)\" text-anchor=\"middle\">%s"
               "</text>\n", p->x - 52.0, p->y + p->height / 2.0, y_title);
}

static int drawable(double x) { return x > 0.0 && x < 1e30; }

/* Let the panel's y axis hold these values, with a margin. */
static void panel_include(panel *p, const double *y, size_t count) {
    const double margin = p->base > 2.0 ? 0.05 : 0.7;
    size_t       i;
    for (i = 0; i < count; i++) {
        const double at = drawable(y[i]) ? log(y[i]) / log(p->base) : p->low;
        if (at - margin < p->low) p->low = at - margin;
        if (at + margin > p->high) p->high = at + margin;
    }
}

/* Value i stands at x = i + first. Steps: each value holds until the next. */
static void svg_curve(FILE *f, const panel *p, const double *y, size_t count, double first,
                      int steps, const char *style) {
    size_t i;
    fprintf(f, "<polyline fill=\"none\" stroke-linejoin=\"round\" %s points=\"", style);
    for (i = 0; i < count; i++) {
        const double x = panel_x(p, (double)i + first);
        if (!drawable(y[i])) continue;
        if (steps && i > 0 && (y[i] < y[i - 1] || y[i] > y[i - 1]))
            fprintf(f, "%.1f,%.1f ", x, panel_y(p, y[i - 1]));
        if (!steps || i == 0 || i + 1 == count || y[i] < y[i - 1] || y[i] > y[i - 1])
            fprintf(f, "%.1f,%.1f ", x, panel_y(p, y[i]));
    }
    fprintf(f, "\"/>\n");
}

/* The training loss of every variant, one panel for each task; the legend stands above both. */
static void draw_loss(const report *r, const char *dir) {
    static const char *titles[2] = {"classify: cross-entropy", "reconstruct: mean squared error"};
    /* fp32 is a broad band, so that curves which lie on it can be seen on it */
    static const char *strokes[NUM_VARIANTS] = {
        "stroke-width=\"7\" stroke-opacity=\"0.25\"", "stroke-width=\"2\" stroke-dasharray=\"2 4\"",
        "stroke-width=\"2\" stroke-dasharray=\"8 5\"", "stroke-width=\"2\"",
        "stroke-width=\"2\" stroke-dasharray=\"10 4 2 4\""};
    FILE  *f = svg_open(dir, "train_loss.svg", 1000, 440);
    double x = 82.0;
    char   style[128];
    int    t, v;
    for (v = 0; v < NUM_VARIANTS; v++) {
        if (!r->variant_on[v]) continue;
        sprintf(style, "stroke=\"%s\" %s", variants[v].color, strokes[v]);
        svg_line(f, x, 24.0, x + 32.0, 24.0, style);
        svg_text(f, x + 40.0, 28.5, "", variants[v].name);
        x += 78.0 + 7.6 * (double)strlen(variants[v].name);
    }
    for (t = 0; t < NUM_TASKS; t++) {
        const size_t epochs = (size_t)r->epochs[t];
        panel        p = {82.0 + 500.0 * t, 80.0, 395.0, 295.0, 0.0, 1e9, -1e9, 10.0};
        if (!r->task_on[t]) continue;
        p.right = (double)epochs;
        for (v = 0; v < NUM_VARIANTS; v++)
            if (r->variant_on[v]) panel_include(&p, r->loss[t][v], epochs);
        if (p.low > p.high) continue;
        svg_panel(f, &p, titles[t], "epoch", "training loss, mean of the seeds");
        for (v = 0; v < NUM_VARIANTS; v++) {
            if (!r->variant_on[v]) continue;
            sprintf(style, "stroke=\"%s\" %s", variants[v].color, strokes[v]);
            svg_curve(f, &p, r->loss[t][v], epochs, 1.0, 0, style);
        }
    }
    svg_close(f, dir);
}

/* fp16's loss scale over the steps; a dot where an overflow made a step be skipped. */
static void draw_scale(const report *r, const char *dir) {
    FILE  *f = svg_open(dir, "train_scale.svg", 1000, 440);
    char   title[96];
    size_t i;
    int    t;
    svg_line(f, 82.0, 24.0, 114.0, 24.0, "stroke=\"#0072b2\" stroke-width=\"2\"");
    svg_text(f, 122.0, 28.5, "", "loss scale of fp16+master+scaling, first seed");
    fprintf(f, "<circle cx=\"450\" cy=\"24\" r=\"4\" fill=\"#d55e00\"/>\n");
    svg_text(f, 462.0, 28.5, "", "overflow: this step is skipped and the scale halved");
    for (t = 0; t < NUM_TASKS; t++) {
        const double *scale = r->scale[t];
        const size_t  steps = r->num_steps[t];
        panel         p = {82.0 + 500.0 * t, 80.0, 395.0, 295.0, 0.0, 1e9, -1e9, 2.0};
        if (!r->task_on[t] || !r->variant_on[FP16]) continue;
        p.right = (double)steps;
        panel_include(&p, scale, steps);
        sprintf(title, "%s: loss scale", tasks[t].name);
        svg_panel(f, &p, title, "step", "loss scale");
        if (p.high > 24.0) { /* AMP_PRESET_DEFAULT's max_scale */
            const double y = panel_y(&p, 16777216.0);
            svg_line(f, p.x, y, p.x + p.width, y, "stroke=\"#888\" stroke-dasharray=\"4 4\"");
            svg_text(f, p.x + 6.0, y - 5.0, "font-size=\"12\" fill=\"#666\"", "max_scale");
        }
        svg_curve(f, &p, scale, steps, 0.0, 1, "stroke=\"#0072b2\" stroke-width=\"2\"");
        for (i = 1; i < steps; i++)
            if (scale[i] < scale[i - 1])
                fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"#d55e00\"/>\n",
                        panel_x(&p, (double)(i - 1)), panel_y(&p, scale[i - 1]));
    }
    svg_close(f, dir);
}

/* 64 shades are enough for the eye. */
static int shade_of(float gray) { return (int)(63.0f * gray) * 4; }

/* One gray image; neighbors of one shade share a rectangle. */
static void svg_image(FILE *f, const float *image, size_t side, double x, double y, double size) {
    const double px = size / (double)side;
    size_t       row, col, end;
    fprintf(f, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"#000\"/>\n", x,
            y, size, size);
    for (row = 0; row < side; row++) {
        for (col = 0; col < side; col = end) {
            const int shade = shade_of(image[row * side + col]);
            for (end = col + 1; end < side && shade_of(image[row * side + end]) == shade;) end++;
            if (shade > 0)
                fprintf(f, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" "
                           "fill=\"#%02x%02x%02x\"/>\n",
                        x + px * (double)col, y + px * (double)row, px * (double)(end - col), px,
                        shade, shade, shade);
        }
    }
}

/* Held-out images, and what the autoencoders of the first seed make of them. */
static void draw_images(const report *r, const dataset *data, const char *dir) {
    static const int   rows[4]   = {-1, FP32, FP16, BF16};
    static const char *labels[4] = {"original", "fp32", "fp16", "bf16"};
    const double       size = 76.0, gap = 8.0, left = 92.0, top = 56.0;
    FILE              *f;
    size_t             i;
    int                row, shown = 0;
    char               text[96];
    if (!r->task_on[RECONSTRUCT]) return;
    f = svg_open(dir, "train_images.svg", (int)(left + PICTURES * (size + gap)) + 12, 408);
    sprintf(text, "Held-out images and their reconstructions through %lu numbers",
            (unsigned long)tasks[RECONSTRUCT].hidden[1]);
    svg_text(f, left, 34.0, "font-size=\"15\" font-weight=\"bold\"", text);
    fprintf(f, "<g shape-rendering=\"crispEdges\">\n");
    for (row = 0; row < 4; row++) {
        const double y = top + shown * (size + gap);
        if (rows[row] >= 0 && !r->variant_on[rows[row]]) continue;
        svg_text(f, left - 14.0, y + size / 2.0 + 5.0, "text-anchor=\"end\"", labels[row]);
        for (i = 0; i < PICTURES; i++)
            svg_image(f, rows[row] < 0 ? data->image + r->shown[i] * data->pixels
                                       : r->picture[rows[row]] + i * data->pixels,
                      data->side, left + (double)i * (size + gap), y, size);
        shown++;
    }
    fprintf(f, "</g>\n");
    svg_close(f, dir);
}

/* ---------------------------------------------------------------------------------------- main */

typedef struct options {
    const char *data, *out;
    long        epochs, batch, seeds; /* 0: the default of task and data */
    int         task_on[NUM_TASKS], variant_on[NUM_VARIANTS];
} options;

static void print_help(void) {
    printf("usage: train [options]\n\n"
           "Train the same network in fp32, fp16 and bf16 and compare what comes out.\n\n"
           "  --task classify|reconstruct|both   what to train (both)\n"
           "  --dtype fp32|fp16|bf16|all         which variants; fp16 are three (all)\n"
           "  --epochs N                         passes over the data (%d and %d; Fashion-MNIST: "
           "%d and %d)\n"
           "  --batch N                          images per step (64)\n"
           "  --seeds N                          runs of each variant (5; Fashion-MNIST: 3)\n"
           "  --data digits|fashion|PATH         digits: the 1,797 in examples/digits.csv.gz;\n"
           "                                     fashion: Debian's dataset-fashion-mnist; or a\n"
           "                                     directory of IDX files; or a .csv, .csv.gz\n"
           "                                     (AMP_DATA if set, else fashion if installed,\n"
           "                                     else digits)\n"
           "  --out DIR                          where the pictures go (build)\n"
           "  --help                             this text\n",
           tasks[CLASSIFY].epochs[0], tasks[RECONSTRUCT].epochs[0], tasks[CLASSIFY].epochs[1],
           tasks[RECONSTRUCT].epochs[1]);
}

static void bad_option(const char *option, const char *value, const char *wanted) {
    fprintf(stderr, "train: %s does not take '%s'; give %s (see --help)\n", option, value, wanted);
    exit(2);
}

static long parse_count(const char *option, const char *value, long max) {
    char  wanted[64], *end;
    long  n;
    errno = 0;
    n     = strtol(value, &end, 10);
    if (end == value || *end || errno || n < 1 || n > max) {
        sprintf(wanted, "a whole number from 1 to %ld", max);
        bad_option(option, value, wanted);
    }
    return n;
}

static void parse_dtype(options *o, const char *value) {
    static const char *const names[] = {"fp32", "fp16", "bf16"}; /* in the order of amp_dtype */
    int v, d = -1;
    for (v = 0; v < 3; v++)
        if (strcmp(value, names[v]) == 0) d = v;
    if (d < 0 && strcmp(value, "all") != 0)
        bad_option("--dtype", value, "fp32, fp16, bf16 or all");
    for (v = 0; v < NUM_VARIANTS; v++) o->variant_on[v] = d < 0 || (int)variants[v].type == d;
}

static void parse_task(options *o, const char *value) {
    const int both = strcmp(value, "both") == 0;
    int       t;
    for (t = 0; t < NUM_TASKS; t++) o->task_on[t] = both || strcmp(value, tasks[t].name) == 0;
    if (!o->task_on[0] && !o->task_on[1])
        bad_option("--task", value, "classify, reconstruct or both");
}

static options parse_options(int argc, char **argv) {
    static const char *const names[] = {"--task", "--dtype", "--epochs", "--batch", "--seeds",
                                        "--data", "--out"};
    options o = {NULL, "build", 0, 0, 0, {1, 1}, {1, 1, 1, 1, 1}};
    int     i, k;
    for (i = 1; i < argc; i += 2) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(name, "--help") == 0) {
            print_help();
            exit(0);
        }
        for (k = 0; k < 7 && strcmp(name, names[k]) != 0;) k++;
        if (k == 7) fail(2, name, "is not an option", "see --help");
        if (!*value) fail(2, name, "needs a value", "see --help");
        switch (k) {
        case 0: parse_task(&o, value); break;
        case 1: parse_dtype(&o, value); break;
        case 2: o.epochs = parse_count(name, value, MAX_EPOCHS); break;
        case 3: o.batch = parse_count(name, value, MAX_BATCH); break;
        case 4: o.seeds = parse_count(name, value, MAX_SEEDS); break;
        case 5: o.data = value; break;
        default: o.out = value; break;
        }
    }
    return o;
}

/* Fill in what depends on the data, and make room for what the runs leave. */
static void report_init(report *r, const options *o, const dataset *data) {
    const int fashion = data->side == 28;
    size_t    i, k;
    int       t, v, variants_on = 0;
    memset(r, 0, sizeof *r);
    memcpy(r->task_on, o->task_on, sizeof r->task_on);
    memcpy(r->variant_on, o->variant_on, sizeof r->variant_on);
    r->batch = o->batch ? (size_t)o->batch : 64;
    r->seeds = o->seeds ? (int)o->seeds : fashion ? 3 : 5;
    if (r->batch > data->num_train)
        fail(2, "--batch", "is more than there are training images", "choose a smaller one");
    for (v = 0; v < NUM_VARIANTS; v++) {
        variants_on += r->variant_on[v];
        r->picture[v] = (float *)need(PICTURES * data->pixels, sizeof(float));
    }
    for (t = 0; t < NUM_TASKS; t++) {
        r->epochs[t]    = o->epochs ? (int)o->epochs : tasks[t].epochs[fashion];
        r->num_steps[t] = data->num_train / r->batch * (size_t)r->epochs[t];
        r->scale[t]     = (double *)need(r->num_steps[t], sizeof(double));
        if (r->task_on[t]) r->work_total += variants_on * r->seeds;
    }
    for (i = 0; i < PICTURES; i++) { /* the first held-out image of class i */
        r->shown[i] = data->num_train + i;
        for (k = data->num_test; k-- > 0;)
            if (data->label[data->num_train + k] == (int)i) r->shown[i] = data->num_train + k;
    }
}

static void report_free(report *r) {
    int i;
    for (i = 0; i < NUM_VARIANTS; i++) free(r->picture[i]);
    for (i = 0; i < NUM_TASKS; i++) free(r->scale[i]);
}

/* Make the directory if it is missing, and fail now rather than after the training. */
static void prepare_out(const char *dir) {
#if ON_POSIX
    mkdir(dir, 0777);
#endif
    svg_close(svg_open(dir, "train_loss.svg", 10, 10), dir);
}

static void print_results(const report *r, const dataset *data, const char *out) {
    int t, all = 1;
    for (t = 0; t < NUM_TASKS; t++) {
        if (!r->task_on[t]) continue;
        print_table(r, t);
        print_reading(r, t);
    }
    draw_loss(r, out);
    draw_scale(r, out);
    draw_images(r, data, out);
    printf("\npictures: %s/train_loss.svg, train_scale.svg%s\n\n", out,
           r->task_on[RECONSTRUCT] ? ", train_images.svg" : "");
    for (t = 0; t < NUM_VARIANTS; t++) all = all && r->variant_on[t];
    if (!all) printf("no parity lines: they compare all variants, so they need --dtype all\n");
    for (t = 0; all && t < NUM_TASKS; t++)
        if (r->task_on[t]) print_parity(r, t);
}

int main(int argc, char **argv) {
    const options o = parse_options(argc, argv);
    report       *r = (report *)need(1, sizeof *r);
    dataset       data;
    int           t, v, seed;
    load_data(&data, o.data);
    report_init(r, &o, &data);
    prepare_out(o.out);
    printf("%s\n", data.name);
    for (t = 0; t < NUM_TASKS; t++)
        if (r->task_on[t])
            printf("%s: %d epochs of %lu steps, batch %lu\n", tasks[t].name, r->epochs[t],
                   (unsigned long)(data.num_train / r->batch), (unsigned long)r->batch);
    fflush(stdout);
    for (t = 0; t < NUM_TASKS; t++) {
        for (seed = 0; r->task_on[t] && seed < r->seeds; seed++) {
            for (v = 0; v < NUM_VARIANTS; v++)
                if (r->variant_on[v]) train_one(r, &data, t, v, seed);
            say_seed(r, t, seed);
        }
    }
    progress_end();
    print_results(r, &data, o.out);
    report_free(r);
    free(r);
    free(data.image);
    free(data.label);
    return 0;
}
