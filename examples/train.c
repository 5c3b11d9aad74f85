/* train.c - the same network trained in fp32, fp16 and bf16, on real images, with amp.h

   A training loop in mixed precision, written by hand. Weights, activations and gradients are
   stored in half; products are summed in fp32 (amp_gemm); normalization, softmax and loss are
   computed in fp32. From the same seeds it trains the five variants of the table below, on two
   tasks: classify (cross-entropy) and reconstruct (an autoencoder, mean squared error).

   READ  variants[], forward, backward, optimizer_step, train_epoch; resume, for interrupted runs.
   Then come measuring, tables and options. train_data.h reads the data, train_plots.h draws.

   RUN   cc -O3 -I. examples/train.c -o train -lm && ./train         in the directory of amp.h

   Under a minute of progress, one table for each task with its reading, three pictures under
   build/, and at the end one line per task: how far fp16 and bf16 are from fp32. See also --help.

   COLUMNS  "flushed" and "lost" are counted on every SAMPLE_EVERY-th step.

       flushed     of all gradient values (of activations and of weights) that are nonzero in fp32,
                   the share that is zero once stored. The fp32 value is what the product or the
                   formula gave, just before it is rounded for storing. Zeros of ReLU do not count,
                   nor do values that are zero because their operands had been flushed before.
       lost        of all weights with a nonzero stored gradient, the share whose bits the step did
                   not change: of the master where there is one, else of the half weight. Skipped
                   steps do not count.
       bytes/param memory for weights, masters, gradients and moments, as allocated
       act KiB     activations that one batch keeps for the backward pass
       ms/step     processor time of the steps that are not sampled, their mean

   Biases (under 2 % of the parameters) stay fp32 in every variant, as is usual.                 */

#define _POSIX_C_SOURCE 200809L /* for train_data.h */

#define AMP_IMPLEMENTATION
#define AMP_STATIC
#include "amp.h"

#include "train_data.h"
#include "train_plots.h"

#include <math.h>
#include <time.h>

/* ------------------------------------------------------------------------------ what is trained */

typedef struct variant {
    const char *name;
    amp_dtype   type;    /* of weights, activations and gradients                                */
    int         master;  /* 0: no master weights; the stored weights are updated themselves      */
    int         scaling; /* 0: the loss scale is 1 and stays                                     */
} variant;

enum { FP32, FP16_ALONE, FP16_MASTER, FP16, BF16, NUM_VARIANTS };

static const variant variants[NUM_VARIANTS] = {
    {"fp32", AMP_F32, 1, 0},                /* the reference                                     */
    {"fp16 alone", AMP_F16, 0, 0},          /* fp16 weights, updated in fp16                     */
    {"fp16+master", AMP_F16, 1, 0},
    {"fp16+master+scaling", AMP_F16, 1, 1}, /* this is mixed precision as amp.h does it          */
    {"bf16+master", AMP_BF16, 1, 0},        /* bf16 has the range of fp32 and needs no scaling   */
};

enum { CLASSIFY, RECONSTRUCT, NUM_TASKS };
enum { LAYERS = 4, MAX_SEEDS = 20, MAX_EPOCHS = 1000, MAX_BATCH = 1024 };

typedef struct task {
    const char *name, *metric, *unit;
    int         decimals;           /* of the metric          */
    size_t      hidden[LAYERS - 1]; /* widths                 */
    int         epochs[2];          /* digits, Fashion-MNIST  */
    float       lr;
} task;

static const task tasks[NUM_TASKS] = {
    {"classify", "accuracy %", " %", 1, {128, 128, 128}, {20, 4}, 4e-3f},
    {"reconstruct", "error", "", 5, {128, 32, 128}, {30, 4}, 5e-3f},
};

static void check(amp_result r) {
    if (r != AMP_OK) fail(1, "amp.h", amp_result_string(r), "this is a bug in train.c");
}

/* ------------------------------------------------------------------------------------- network
   Layer l:  z = act[l] W + b;  the last layer's z, in fp32, is the output; otherwise
   act[l + 1] = normalize(relu(z)), over the row of one image, in fp32.                           */

/* What is counted on the way, see "measuring". */
typedef struct measures {
    int            sampling;       /* count in this step?                              */
    double         nonzero, flushed, updates, lost, ms, timed_steps;
    unsigned char *before[LAYERS]; /* sampled steps: the weights' bits before the step */
    double        *scales;         /* the loss scale of every step, or NULL            */
    clock_t        start;
} measures;

typedef struct net {
    const variant *v;
    int            task;
    size_t         width[LAYERS + 1], batch;
    void          *act[LAYERS];        /* type v->type: kept for the backward pass                */
    float         *rstd[LAYERS];       /* per image: 1 / standard deviation of act[l] before      */
    float         *least[LAYERS];      /* per image: what relu's 0 became in act[l]               */
    float         *out;                /* fp32 output: logits or pixels                           */
    void          *delta[2];           /* type v->type: gradient of a layer's z, and of the next  */
    float         *wide;               /* scratch: anything in fp32                               */
    amp_tensor     tensor[2 * LAYERS]; /* weight of layer l: 2 l, its bias: 2 l + 1               */
    float         *moments[2 * LAYERS]; /* without master: AdamW's m, then v                      */
    amp_optimizer  opt;
    uint64_t       steps, rng;         /* steps: also those that were skipped                     */
    measures       m;
    size_t         num_params, param_bytes, act_bytes, opt_bytes;
    void          *owned[12 * LAYERS];
    int            num_owned;
} net;

/* Memory that net_free releases and that *total, if any, counts. */
static void *net_alloc(net *n, size_t count, amp_dtype type, size_t *total) {
    if (total) *total += count * amp_dtype_size(type);
    return n->owned[n->num_owned++] = need(count, amp_dtype_size(type));
}

/* amp_optimizer's allocator: malloc that counts. */
static void *count_malloc(size_t num_bytes, void *total) {
    *(size_t *)total += num_bytes;
    return malloc(num_bytes);
}

static void count_free(void *memory, void *total) {
    (void)total;
    free(memory);
}

/* Describe tensor i, with its memory. A master is ours; amp_optimizer makes the half copy of it. */
static amp_tensor *add_tensor(net *n, size_t i, const char *name, size_t count, amp_dtype type) {
    amp_tensor *t = &n->tensor[i];
    t->name      = name;
    t->n         = count;
    t->grad      = net_alloc(n, count, type, &n->param_bytes);
    t->grad_type = t->model_type = type;
    if (n->v->master || type == AMP_F32) t->weight = net_alloc(n, count, AMP_F32, &n->param_bytes);
    else t->model = net_alloc(n, count, type, &n->param_bytes);
    if (!n->v->master) n->moments[i] = net_alloc(n, 2 * count, AMP_F32, &n->param_bytes);
    n->num_params += count;
    return t;
}

/* The weights of layer l, uniform with variance 1 / fan-in, and its biases, 0. A weight bears the
   name of its variant, so that the saved state of another variant is refused. */
static void add_layer(net *n, size_t l) {
    const size_t in = n->width[l], out = n->width[l + 1], count = in * out;
    amp_tensor  *w  = add_tensor(n, 2 * l, n->v->name, count, n->v->type);
    add_tensor(n, 2 * l + 1, "bias", out, AMP_F32)->keep_fp32 = 1;
    for (size_t i = 0; i < count; i++)
        n->wide[i] = sqrtf(3.0f / (float)in) * random_uniform(&n->rng);
    if (w->weight) memcpy(w->weight, n->wide, count * sizeof(float));
    else check(amp_cast(w->model, w->model_type, n->wide, AMP_F32, count));
    n->m.before[l] = net_alloc(n, count, AMP_F32, NULL);
}

/* Everything that differs between the variants, but for the one without master weights. */
static void setup_optimizer(net *n) {
    amp_optimizer_desc desc = {0};
    desc.dtype     = n->v->type;
    desc.kind      = AMP_KIND_ADAMW;
    desc.allocator = (amp_allocator){count_malloc, count_free, &n->opt_bytes};
    if (n->v->scaling) {
        desc.scaler.preset          = AMP_PRESET_DEFAULT; /* starts at 65536 */
        desc.scaler.growth_interval = 20; /* default 2000: for runs of more than 1000 steps */
    } else {
        desc.scaler.preset     = AMP_PRESET_STATIC;
        desc.scaler.init_scale = 1.0f;
    }
    check(amp_optimizer_init(&n->opt, &desc));
    for (int i = 0; i < 2 * LAYERS; i++) check(amp_optimizer_add(&n->opt, &n->tensor[i]));
    check(amp_optimizer_prepare(&n->opt));
    n->param_bytes += n->opt_bytes;
}

static void net_init(net *n, int which, int v, const dataset *data, size_t batch, int seed) {
    const amp_dtype T      = variants[v].type;
    size_t          widest = 0;
    memset(n, 0, sizeof *n);
    n->v     = &variants[v];
    n->task  = which;
    n->batch = batch;
    n->rng   = (uint64_t)seed * 1000003u + (uint64_t)which + 1;
    for (size_t l = 0; l <= LAYERS; l++) {
        n->width[l] = l > 0 && l < LAYERS ? tasks[which].hidden[l - 1] : data->pixels;
        if (l == LAYERS && which == CLASSIFY) n->width[l] = NUM_CLASSES;
        if (n->width[l] > widest) widest = n->width[l];
    }
    n->out      = net_alloc(n, batch * widest, AMP_F32, NULL);
    n->delta[0] = net_alloc(n, batch * widest, T, NULL);
    n->delta[1] = net_alloc(n, batch * widest, T, NULL);
    n->wide     = net_alloc(n, 2 * (batch > widest ? batch : widest) * widest, AMP_F32, NULL);
    for (size_t l = 0; l < LAYERS; l++) {
        n->act[l] = net_alloc(n, batch * n->width[l], T, &n->act_bytes);
        if (l > 0) n->rstd[l] = net_alloc(n, batch, AMP_F32, &n->act_bytes);
        if (l > 0) n->least[l] = net_alloc(n, batch, AMP_F32, &n->act_bytes);
        add_layer(n, l);
    }
    if (n->v->master) setup_optimizer(n);
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

/* ---------------------------------------------------------------------- forward, loss, backward */

static void count_flushed(net *n, const void *stored, const float *exact, size_t count);
static void measure_begin(net *n);
static void measure_end(net *n);

/* c = op(a) op(b), with a and b in the variant's type and sums in fp32. */
static void multiply(const net *n, int trans_a, int trans_b, size_t rows, size_t cols, size_t k,
                     const void *a, const void *b, void *c, amp_dtype c_type) {
    check(amp_gemm(NULL, trans_a, trans_b, rows, cols, k, 1.0f, a, n->v->type, 0, b, n->v->type, 0,
                   0.0f, c, c_type, 0));
}

/* relu(z + bias), then mean 0 and variance 1 over the row; what 0 became goes to *least. */
static void relu_normalize(float *z, const float *bias, size_t width, float *rstd, float *least) {
    float sum = 0.0f, squares = 0.0f;
    for (size_t i = 0; i < width; i++) {
        z[i] = z[i] + bias[i] > 0.0f ? z[i] + bias[i] : 0.0f;
        sum += z[i];
    }
    const float mean = sum / (float)width;
    for (size_t i = 0; i < width; i++) {
        z[i] -= mean;
        squares += z[i] * z[i];
    }
    *rstd  = 1.0f / sqrtf(squares / (float)width + 1e-5f);
    *least = -mean * *rstd;
    for (size_t i = 0; i < width; i++) z[i] *= *rstd;
}

/* The gradient by act[l] becomes the gradient by z: back through normalize and relu. */
static void relu_normalize_back(float *grad, const float *act, size_t width, float rstd,
                                float least) {
    float sum = 0.0f, product = 0.0f;
    for (size_t i = 0; i < width; i++) {
        sum += grad[i];
        product += grad[i] * act[i];
    }
    sum /= (float)width;
    product /= (float)width;
    for (size_t i = 0; i < width; i++)
        grad[i] = act[i] > least ? rstd * (grad[i] - sum - act[i] * product) : 0.0f;
}

static void load_images(net *n, const dataset *data, const size_t *pick, size_t rows) {
    const size_t width = n->width[0], row_bytes = width * amp_dtype_size(n->v->type);
    for (size_t i = 0; i < rows; i++)
        check(amp_cast((char *)n->act[0] + i * row_bytes, n->v->type,
                       data->image + pick[i] * width, AMP_F32, width));
}

static void forward(net *n, size_t rows) {
    const amp_dtype T = n->v->type;
    for (size_t l = 0; l < LAYERS; l++) {
        const size_t in = n->width[l], out = n->width[l + 1];
        const float *bias = n->tensor[2 * l + 1].weight;
        if (l + 1 == LAYERS) { /* the output stays in fp32, for softmax and loss */
            multiply(n, 0, 0, rows, out, in, n->act[l], weights(n, l), n->out, AMP_F32);
            for (size_t i = 0; i < rows; i++)
                for (size_t j = 0; j < out; j++) n->out[i * out + j] += bias[j];
            return;
        }
        multiply(n, 0, 0, rows, out, in, n->act[l], weights(n, l), n->act[l + 1], T);
        check(amp_cast(n->wide, AMP_F32, n->act[l + 1], T, rows * out));
        for (size_t i = 0; i < rows; i++)
            relu_normalize(n->wide + i * out, bias, out, &n->rstd[l + 1][i], &n->least[l + 1][i]);
        check(amp_cast(n->act[l + 1], T, n->wide, AMP_F32, rows * out));
        /* backward compares act with least, so least must be rounded as act was */
        check(amp_cast(n->delta[0], T, n->least[l + 1], AMP_F32, rows));
        check(amp_cast(n->least[l + 1], AMP_F32, n->delta[0], T, rows));
    }
}

/* Store fp32 gradients in the variant's type. This is where small ones become zero in fp16. */
static void store_gradient(net *n, void *dst, const float *src, size_t count) {
    check(amp_cast(dst, n->v->type, src, AMP_F32, count));
    if (n->m.sampling) count_flushed(n, dst, src, count);
}

/* Softmax and cross-entropy of one image; the logits become their gradient. */
static double cross_entropy(float *logit, size_t count, int label) {
    float max = logit[0], sum = 0.0f;
    for (size_t i = 1; i < count; i++)
        if (logit[i] > max) max = logit[i];
    for (size_t i = 0; i < count; i++) sum += logit[i] = expf(logit[i] - max);
    for (size_t i = 0; i < count; i++) logit[i] /= sum;
    const double p = (double)logit[label];
    logit[label] -= 1.0f;
    return -log(p > 1e-30 ? p : 1e-30);
}

static float sigmoid(float z) { return 1.0f / (1.0f + expf(-z)); }

/* Sigmoid and mean squared error of one image; the output becomes its gradient. */
static double squared_error(float *z, size_t count, const float *target) {
    double sum = 0.0;
    for (size_t i = 0; i < count; i++) {
        const float y = sigmoid(z[i]), d = y - target[i];
        sum += (double)d * (double)d;
        z[i] = 2.0f * d * y * (1.0f - y) / (float)count;
    }
    return sum / (double)count;
}

/* The mean loss of the batch; its gradient, times the loss scale, goes to delta[0]. */
static double loss_and_gradient(net *n, const dataset *data, const size_t *pick) {
    const size_t width = n->width[LAYERS];
    const float  scale = loss_scale(n);
    double       loss  = 0.0;
    for (size_t i = 0; i < n->batch; i++) {
        float *y = n->out + i * width;
        loss += n->task == CLASSIFY ? cross_entropy(y, width, data->label[pick[i]])
                                    : squared_error(y, width, data->image + pick[i] * width);
    }
    for (size_t i = 0; i < n->batch * width; i++) n->out[i] *= scale / (float)n->batch;
    store_gradient(n, n->delta[0], n->out, n->batch * width);
    return loss / (double)n->batch;
}

/* The gradients of a full batch, from delta[0], the scaled gradient of the loss by the output. */
static void backward(net *n) {
    const amp_dtype T = n->v->type;
    const size_t    rows = n->batch;
    for (size_t l = LAYERS; l-- > 0;) {
        const size_t in = n->width[l], out = n->width[l + 1];
        float       *grad_bias = n->tensor[2 * l + 1].grad;
        float       *grad = n->wide, *act = n->wide + rows * in;
        void        *above = n->delta[0], *below = n->delta[1];

        multiply(n, 1, 0, in, out, rows, n->act[l], above, n->wide, AMP_F32);
        store_gradient(n, n->tensor[2 * l].grad, n->wide, in * out);
        check(amp_cast(n->wide, AMP_F32, above, T, rows * out));
        memset(grad_bias, 0, out * sizeof(float));
        for (size_t i = 0; i < rows; i++)
            for (size_t j = 0; j < out; j++) grad_bias[j] += n->wide[i * out + j];
        if (l == 0) return;

        multiply(n, 0, 1, rows, in, out, above, weights(n, l), n->wide, AMP_F32);
        store_gradient(n, below, n->wide, rows * in);
        check(amp_cast(grad, AMP_F32, below, T, rows * in));
        check(amp_cast(act, AMP_F32, n->act[l], T, rows * in));
        for (size_t i = 0; i < rows; i++)
            relu_normalize_back(grad + i * in, act + i * in, in, n->rstd[l][i], n->least[l][i]);
        store_gradient(n, below, grad, rows * in);
        n->delta[0] = below;
        n->delta[1] = above;
    }
}

/* ---------------------------------------------------------------------------- optimizer, epochs */

/* AdamW for the variant without master weights: read half, compute in fp32, write half. An update
   below half an ulp of its weight is lost here. The formula and its constants are amp.h's. */
static void adamw_without_master(net *n, size_t i, float lr) {
    const amp_tensor *t = &n->tensor[i];
    const amp_dtype   type = t->model ? t->model_type : AMP_F32;
    void             *stored = t->model ? t->model : (void *)t->weight;
    float            *w = n->wide, *g = n->wide + t->n, *m = n->moments[i], *v = m + t->n;
    const float       c1 = (float)(1.0 - pow(0.9, (double)n->steps));
    const float       c2 = (float)(1.0 - pow(0.999, (double)n->steps));
    check(amp_cast(w, AMP_F32, stored, type, t->n));
    check(amp_cast(g, AMP_F32, t->grad, t->grad_type, t->n));
    for (size_t j = 0; j < t->n; j++) {
        m[j] = 0.9f * m[j] + 0.1f * g[j];
        v[j] = 0.999f * v[j] + 0.001f * g[j] * g[j];
        w[j] -= lr * (m[j] / c1) / (sqrtf(v[j] / c2) + 1e-8f);
    }
    check(amp_cast(stored, type, w, AMP_F32, t->n));
}

static void optimizer_step(net *n, float lr) {
    n->steps++;
    if (n->v->master) /* check, unscale, AdamW, new scale, new half copies */
        check(amp_optimizer_adamw(&n->opt, lr));
    else
        for (size_t i = 0; i < 2 * LAYERS; i++) adamw_without_master(n, i, lr);
}

/* One pass over the images, in the given order; returns the mean loss. The learning rate falls to 0
   over all_steps, counting skipped ones too. */
static double train_epoch(net *n, const dataset *data, const size_t *order, size_t all_steps) {
    const size_t batches = data->num_train / n->batch;
    double       loss    = 0.0;
    for (size_t b = 0; b < batches; b++) {
        const size_t *pick = order + b * n->batch;
        const float   lr   = tasks[n->task].lr * (1.0f - (float)n->steps / (float)all_steps);
        measure_begin(n);
        load_images(n, data, pick, n->batch);
        forward(n, n->batch);
        loss += loss_and_gradient(n, data, pick);
        backward(n);
        optimizer_step(n, lr);
        measure_end(n);
    }
    return loss / (double)batches;
}

static amp_status status_of(const net *n) {
    amp_status status = {0};
    status.did_step   = 1;
    if (n->v->master) check(amp_optimizer_status(&n->opt, &status));
    return status;
}

/* The state is amp.h's alone: masters, moments, scale, counts of steps. The epoch follows from the
   counts, the order of the images from seed and epoch. Returns the epochs that are done. */
static int resume(net *n, const char *path, size_t batches, int epochs) {
    const amp_result result = amp_optimizer_load_file(&n->opt, path);
    char             problem[128];
    if (result != AMP_OK)
        fail(1, path, amp_result_string(result),
             result == AMP_ERROR_MISMATCH ? "give --task, --dtype and --data as when it was saved"
                                          : "give a file that --save wrote");
    n->steps = status_of(n).steps + status_of(n).skipped;
    if (n->steps % batches != 0 || n->steps / batches > (uint64_t)epochs) {
        sprintf(problem, "is of step %lu, which is not the end of one of %d epochs of %lu steps",
                (unsigned long)n->steps, epochs, (unsigned long)batches);
        fail(1, path, problem, "give --epochs, --batch and --data as when it was saved");
    }
    return (int)(n->steps / batches);
}

static void save(const net *n, const char *path) {
    const amp_result result = amp_optimizer_save_file(&n->opt, path);
    if (result != AMP_OK)
        fail(1, path, amp_result_string(result), "choose a file that can be written with --save");
}

enum { ALL_TYPES = AMP_BF16 + 1 };
static const char *const task_names[] = {"classify", "reconstruct", "both", NULL};
static const char *const type_names[] = {"fp32", "fp16", "bf16", "all", NULL}; /* as amp_dtype */

typedef struct options {
    int         task, dtype;                      /* may be NUM_TASKS: both; ALL_TYPES */
    int         epochs, batch, seeds, stop_after; /* 0: as fits the data; never        */
    const char *data, *out, *save, *resume;
} options;

static int task_on(const options *o, int t) { return o->task == NUM_TASKS || o->task == t; }

/* A saved or resumed run is of one variant; of the three of fp16, of the one with everything. */
static int one_run(const options *o) { return o->save || o->resume || o->stop_after; }

static int the_variant(const options *o) {
    return o->dtype == AMP_F32 ? FP32 : o->dtype == AMP_F16 ? FP16 : BF16;
}

static int variant_on(const options *o, int v) {
    if (one_run(o)) return v == the_variant(o);
    return o->dtype == ALL_TYPES || (int)variants[v].type == o->dtype;
}

/* What the training runs leave behind. */
enum { METRIC, FLUSHED, LOST, SKIPPED, SCALE, PARAM_BYTES, ACT_BYTES, MS, NUM_COLUMNS };

typedef struct report {
    options o;
    double  results[NUM_TASKS][NUM_VARIANTS][NUM_COLUMNS][MAX_SEEDS];
    double  loss[NUM_TASKS][NUM_VARIANTS][MAX_EPOCHS]; /* mean over seeds                         */
    int     epochs[NUM_TASKS];
    size_t  steps[NUM_TASKS];                          /* in all epochs                           */
    double *scales[NUM_TASKS];                         /* per step: FP16's loss scale, first seed */
    size_t  shown[NUM_CLASSES];                        /* images for the picture                  */
    float  *picture[NUM_VARIANTS];                     /* reconstructions of them, first seed     */
    double  done, runs;                                /* how far we are                          */
} report;

static void record(report *r, net *n, const dataset *data, int v, int seed);
static void progress(const report *r, int which);

/* One run: a variant of a task from one seed. */
static void train_one(report *r, const dataset *data, int which, int v, int seed) {
    const options *o      = &r->o;
    const int      epochs = r->epochs[which];
    size_t        *order  = need(data->num_train, sizeof(size_t));
    int            first  = 0;
    net            n;
    net_init(&n, which, v, data, (size_t)o->batch, seed);
    if (v == FP16 && seed == 0) n.m.scales = r->scales[which];
    if (o->resume) first = resume(&n, o->resume, data->num_train / n.batch, epochs);
    for (size_t i = 0; i < data->num_train; i++) order[i] = i;
    for (int epoch = 0; epoch < epochs; epoch++) {
        shuffle(order, data->num_train, &n.rng); /* each order follows from the one before */
        r->done += 1.0 / epochs;
        if (epoch < first || (o->stop_after && epoch >= o->stop_after)) continue;
        r->loss[which][v][epoch] += train_epoch(&n, data, order, r->steps[which]) / o->seeds;
        if (o->save) save(&n, o->save);
        progress(r, which);
    }
    record(r, &n, data, v, seed);
    net_free(&n);
    free(order);
}

/* ----------------------------------------------------------------------------------- measuring */

enum { SAMPLE_EVERY = 11 }; /* shares no factor with the growth interval */

static void count_flushed(net *n, const void *stored, const float *exact, size_t count) {
    const uint16_t *half = stored;
    for (size_t i = 0; i < count; i++) {
        if (!(exact[i] < 0.0f) && !(exact[i] > 0.0f)) continue;
        n->m.nonzero += 1.0;
        if (n->v->type != AMP_F32 && (half[i] & 0x7fff) == 0) n->m.flushed += 1.0;
    }
}

/* What a step must change, of layer l: the master, or the half weight itself. */
static const unsigned char *updated_weights(const net *n, size_t l, size_t *size) {
    const amp_tensor *t = &n->tensor[2 * l];
    *size               = amp_dtype_size(n->v->master ? AMP_F32 : n->v->type);
    return n->v->master ? (const void *)t->weight : t->model;
}

static void measure_begin(net *n) {
    size_t size;
    n->m.sampling = n->steps % SAMPLE_EVERY == 0;
    if (n->m.scales) n->m.scales[n->steps] = (double)loss_scale(n);
    for (size_t l = 0; n->m.sampling && l < LAYERS; l++) {
        const unsigned char *weight = updated_weights(n, l, &size);
        memcpy(n->m.before[l], weight, n->tensor[2 * l].n * size);
    }
    n->m.start = clock();
}

static void measure_end(net *n) {
    size_t size;
    if (!n->m.sampling) {
        n->m.ms += 1e3 * (double)(clock() - n->m.start) / CLOCKS_PER_SEC;
        n->m.timed_steps += 1.0;
    }
    for (size_t l = 0; n->m.sampling && status_of(n).did_step && l < LAYERS; l++) {
        const amp_tensor    *t      = &n->tensor[2 * l];
        const unsigned char *weight = updated_weights(n, l, &size);
        check(amp_cast(n->wide, AMP_F32, t->grad, t->grad_type, t->n));
        for (size_t i = 0; i < t->n; i++) {
            if (!(n->wide[i] < 0.0f) && !(n->wide[i] > 0.0f)) continue;
            n->m.updates += 1.0;
            n->m.lost += memcmp(n->m.before[l] + i * size, weight + i * size, size) == 0;
        }
    }
}

/* Accuracy in percent, or mean squared error, on the images that training never sees. */
static double evaluate(net *n, const dataset *data) {
    const size_t width = n->width[LAYERS];
    double       right = 0.0, error = 0.0;
    size_t       rows, pick[MAX_BATCH];
    for (size_t first = 0; first < data->num_test; first += rows) {
        rows = data->num_test - first < n->batch ? data->num_test - first : n->batch;
        for (size_t i = 0; i < rows; i++) pick[i] = data->num_train + first + i;
        load_images(n, data, pick, rows);
        forward(n, rows);
        for (size_t i = 0; i < rows; i++) {
            float *y    = n->out + i * width;
            size_t best = 0;
            for (size_t j = 1; j < width; j++)
                if (y[j] > y[best]) best = j;
            if (n->task == CLASSIFY) right += (int)best == data->label[pick[i]];
            else error += squared_error(y, width, data->image + pick[i] * width);
        }
    }
    return (n->task == CLASSIFY ? 100.0 * right : error) / (double)data->num_test;
}

static double ratio(double part, double whole) { return whole > 0.0 ? part / whole : 0.0; }

/* Fill in the columns of this run, and its part of the picture. */
static void record(report *r, net *n, const dataset *data, int v, int seed) {
    double (*column)[MAX_SEEDS] = r->results[n->task][v];
    column[METRIC][seed]      = evaluate(n, data);
    column[FLUSHED][seed]     = ratio(100.0 * n->m.flushed, n->m.nonzero);
    column[LOST][seed]        = ratio(100.0 * n->m.lost, n->m.updates);
    column[SKIPPED][seed]     = (double)status_of(n).skipped;
    column[SCALE][seed]       = (double)loss_scale(n);
    column[PARAM_BYTES][seed] = (double)n->param_bytes / (double)n->num_params;
    column[ACT_BYTES][seed]   = (double)n->act_bytes;
    column[MS][seed]          = ratio(n->m.ms, n->m.timed_steps);
    for (size_t i = 0; i < NUM_CLASSES && n->task == RECONSTRUCT && seed == 0; i++) {
        float *pixel = r->picture[v] + i * data->pixels;
        load_images(n, data, &r->shown[i], 1);
        forward(n, 1);
        for (size_t j = 0; j < data->pixels; j++) pixel[j] = sigmoid(n->out[j]);
    }
}

/* On a terminal, a bar that is drawn over itself. */
static void progress(const report *r, int which) {
    static const char full[] = "########################################";
    const int         done   = (int)(40.0 * r->done / r->runs + 1e-6);
    if (on_terminal())
        fprintf(stderr, "\r[%-40.*s] %3d %%  %-12s", done, full, done * 5 / 2, tasks[which].name);
}

/* Elsewhere, one line per seed. */
static void say_seed(const report *r, int which, int seed) {
    if (on_terminal()) return;
    fprintf(stderr, "%s, seed %d of %d:", tasks[which].name, seed + 1, r->o.seeds);
    for (int v = 0; v < NUM_VARIANTS; v++)
        if (variant_on(&r->o, v))
            fprintf(stderr, "  %s %.*f", variants[v].name, tasks[which].decimals,
                    r->results[which][v][METRIC][seed]);
    fprintf(stderr, "\n");
}

/* -------------------------------------------------------------------------------------- tables */

typedef struct spread { double mean, sd, se; } spread;

/* Mean, standard deviation and standard error over the seeds of a column, or of its difference to
   another. One seed has no spread: sd and se are 0, and who prints them says so. */
static spread over_seeds(const double *x, const double *minus, int seeds) {
    spread s = {0.0, 0.0, 0.0};
    for (int i = 0; i < seeds; i++) s.mean += (x[i] - (minus ? minus[i] : 0.0)) / seeds;
    for (int i = 0; i < seeds; i++) {
        const double d = x[i] - (minus ? minus[i] : 0.0) - s.mean;
        s.sd += d * d;
    }
    s.sd = seeds > 1 ? sqrt(s.sd / (seeds - 1)) : 0.0;
    s.se = s.sd / sqrt(seeds);
    return s;
}

static double mean_of(const report *r, int which, int v, int column) {
    return over_seeds(r->results[which][v][column], NULL, r->o.seeds).mean;
}

static spread minus_fp32(const report *r, int which, int v) {
    return over_seeds(r->results[which][v][METRIC], r->results[which][FP32][METRIC], r->o.seeds);
}

static void print_table(const report *r, int which) {
    const int decimals = which == CLASSIFY ? 2 : 5;
    printf("\n%s: %s on held-out images, mean +- standard deviation over %d seed%s\n\n",
           tasks[which].name, which == CLASSIFY ? "accuracy in %" : "mean squared error",
           r->o.seeds, r->o.seeds > 1 ? "s" : "");
    printf("%-20s %-19s %9s %9s %8s %9s %11s %8s %8s\n", "", tasks[which].metric, "flushed %",
           "lost %", "skipped", "scale", "bytes/param", "act KiB", "ms/step");
    for (int v = 0; v < NUM_VARIANTS; v++) {
        const spread m = over_seeds(r->results[which][v][METRIC], NULL, r->o.seeds);
        char         sd[32] = "-";
        if (!variant_on(&r->o, v)) continue;
        if (r->o.seeds > 1) sprintf(sd, "%.*f", decimals, m.sd);
        printf("%-20s %-7.*f +- %-8s", variants[v].name, decimals, m.mean, sd);
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
    const int    classify = which == CLASSIFY, decimals = classify ? 2 : 6;
    const spread d    = minus_fp32(r, which, v);
    const double fp32 = mean_of(r, which, FP32, METRIC), size = fabs(d.mean);
    printf("  %s minus fp32: %+.*f%s", variants[v].name, decimals, d.mean,
           classify ? " points" : "");
    if (r->o.seeds > 1) printf(" (se %.*f)", decimals, d.se);
    if (!classify) printf(", %+.1f %%", 100.0 * d.mean / fp32);
    printf("%s %s\n", classify ? "," : ":",
           r->o.seeds < 2                     ? "one seed: no spread"
           : size <= 2.0 * d.se               ? "within two standard errors"
           : classify && size <= 0.3          ? "within 0.3 points"
           : !classify && size <= 0.02 * fp32 ? "within 2 % of fp32's error"
                                              : "more than the seeds explain");
    if (v == BF16 && !classify && d.mean > 0.0)
        printf("    bf16 has 8 bits of significand, fp16 has 11: stored activations are rounded\n"
               "    by up to 1 part in 256, not 2048; pixels show that more than classes do\n");
}

/* What the table says, in words that follow from its numbers. */
static void print_reading(const report *r, int which) {
    const double fp32_ms = mean_of(r, which, FP32, MS), fp16_ms = mean_of(r, which, FP16, MS);
    if (!variant_on(&r->o, FP16_ALONE)) return; /* one variant alone: nothing to compare */
    printf("\nreading\n");
    print_ratio("gradients flushed to zero", mean_of(r, which, FP16_MASTER, FLUSHED),
                mean_of(r, which, FP16, FLUSHED), "loss scaling");
    print_ratio("weight updates lost", mean_of(r, which, FP16_ALONE, LOST),
                mean_of(r, which, FP16_MASTER, LOST), "master weights");
    if (!variant_on(&r->o, FP32)) return;
    for (int v = FP32 + 1; v < NUM_VARIANTS; v++) print_verdict(r, which, v);
    printf("  fp16 keeps %.0f %% of fp32's bytes of activations; a step takes %.2f times as long",
           100.0 * mean_of(r, which, FP16, ACT_BYTES) / mean_of(r, which, FP32, ACT_BYTES),
           fp16_ms / fp32_ms);
    if (fp16_ms > fp32_ms)
        printf(":\n    amp_gemm converts to fp32 on the way; here half saves memory, not time");
    printf("\n");
}

static void print_parity(const report *r, int which) {
    const task *t = &tasks[which];
    printf("parity %s:", t->name);
    for (int v = 0; v < NUM_VARIANTS; v++) {
        const spread d = minus_fp32(r, which, v);
        if (v == FP16_ALONE || v == FP16_MASTER) continue;
        printf(" %s %.*f%s", type_names[variants[v].type], t->decimals,
               mean_of(r, which, v, METRIC), t->unit);
        if (v != FP32) printf(" d %+.*f se %.*f", t->decimals, d.mean, t->decimals, d.se);
    }
    printf(" seeds %d\n", r->o.seeds);
}

/* One run says how it ended with all digits, so that two of them can be compared. */
static void print_final(const report *r, int which, int v) {
    const options *o       = &r->o;
    const int      stopped = o->stop_after && o->stop_after < r->epochs[which];
    printf("final %s %s: epoch %d of %d, %s %.17g\n", tasks[which].name, variants[v].name,
           stopped ? o->stop_after : r->epochs[which], r->epochs[which], tasks[which].metric,
           r->results[which][v][METRIC][0]);
    if (stopped && o->save) printf("continue with the same options and --resume %s\n", o->save);
}

static void draw_pictures(const report *r, const dataset *data) {
    static const char *const titles[2][2] = {
        {"classify: cross-entropy", "reconstruct: mean squared error"},
        {"classify: loss scale", "reconstruct: loss scale"}};
    const char *const dir = r->o.out, *names[MAX_CURVES] = {0};
    plot        loss[2] = {{0}}, scale[2] = {{0}};
    image_row   rows[4] = {{"original", {0}}};
    int         num_rows = 1;
    char        title[96];
    for (int t = 0; t < NUM_TASKS; t++) {
        loss[t]  = (plot){task_on(&r->o, t) ? titles[0][t] : NULL, (size_t)r->epochs[t], {0}};
        scale[t] = (plot){titles[1][t], r->steps[t], {r->scales[t]}};
    }
    for (int i = 0; i < NUM_CLASSES; i++)
        rows[0].image[i] = data->image + r->shown[i] * data->pixels;
    for (int v = 0; v < NUM_VARIANTS; v++) {
        if (!variant_on(&r->o, v)) continue;
        names[v] = variants[v].name;
        for (int t = 0; t < NUM_TASKS; t++) loss[t].y[v] = r->loss[t][v];
        if (v == FP16_ALONE || v == FP16_MASTER) continue;
        for (int i = 0; i < NUM_CLASSES; i++)
            rows[num_rows].image[i] = r->picture[v] + (size_t)i * data->pixels;
        rows[num_rows++].label = type_names[variants[v].type];
    }
    draw_loss(dir, loss, names);
    draw_scale(dir, scale, 16777216.0); /* AMP_PRESET_DEFAULT's max_scale */
    sprintf(title, "Held-out images and their reconstructions through %lu numbers",
            (unsigned long)tasks[RECONSTRUCT].hidden[1]);
    if (task_on(&r->o, RECONSTRUCT)) draw_images(dir, title, rows, num_rows, data->side);
    printf("\npictures: %s/train_loss.svg, train_scale.svg%s\n\n", dir,
           task_on(&r->o, RECONSTRUCT) ? ", train_images.svg" : "");
}

static void print_results(const report *r, const dataset *data) {
    const options *o = &r->o;
    for (int t = 0; t < NUM_TASKS; t++) {
        if (!task_on(o, t)) continue;
        print_table(r, t);
        print_reading(r, t);
    }
    draw_pictures(r, data);
    if (o->dtype != ALL_TYPES)
        printf("no parity lines: they compare all variants, so they need --dtype all\n");
    for (int t = 0; t < NUM_TASKS; t++)
        if (task_on(o, t) && o->dtype == ALL_TYPES) print_parity(r, t);
    if (one_run(o)) print_final(r, o->task, the_variant(o));
}

/* ------------------------------------------------------------------------------- options, main */

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
           "  --help                             this text\n\n"
           "With one task, one type (fp16 is then fp16+master+scaling alone) and --seeds 1:\n\n"
           "  --save FILE                        write the state there at the end of every epoch\n"
           "  --resume FILE                      continue from it; with the same other options\n"
           "                                     the end has the bits of an uninterrupted run\n"
           "  --stop-after N                     end after epoch N, as an interruption would\n",
           tasks[CLASSIFY].epochs[0], tasks[RECONSTRUCT].epochs[0], tasks[CLASSIFY].epochs[1],
           tasks[RECONSTRUCT].epochs[1]);
}

static void bad_option(const char *option, const char *value, const char *wanted) {
    fprintf(stderr, "train: %s does not take '%s'; give %s (see --help)\n", option, value, wanted);
    exit(2);
}

static int parse_count(const char *option, const char *value, int max) {
    char wanted[64], *end;
    errno        = 0;
    const long n = strtol(value, &end, 10);
    if (end == value || *end || errno || n < 1 || n > max) {
        sprintf(wanted, "a whole number from 1 to %d", max);
        bad_option(option, value, wanted);
    }
    return (int)n;
}

static int parse_choice(const char *option, const char *value, const char *const *choices) {
    char wanted[64] = "";
    for (int i = 0; choices[i]; i++) {
        if (strcmp(value, choices[i]) == 0) return i;
        if (i > 0) strcat(wanted, choices[i + 1] ? ", " : " or ");
        strcat(wanted, choices[i]);
    }
    bad_option(option, value, wanted);
    return 0;
}

static options parse_options(int argc, char **argv) {
    options o = {NUM_TASKS, ALL_TYPES, 0, 64, 0, 0, NULL, "build", NULL, NULL};
    const struct {
        const char *name, **text, *const *choices;
        int        *number, max;
    } known[] = {
        {"--task", NULL, task_names, &o.task, 0},
        {"--dtype", NULL, type_names, &o.dtype, 0},
        {"--epochs", NULL, NULL, &o.epochs, MAX_EPOCHS},
        {"--stop-after", NULL, NULL, &o.stop_after, MAX_EPOCHS},
        {"--batch", NULL, NULL, &o.batch, MAX_BATCH},
        {"--seeds", NULL, NULL, &o.seeds, MAX_SEEDS},
        {"--data", &o.data, NULL, NULL, 0},
        {"--out", &o.out, NULL, NULL, 0},
        {"--save", &o.save, NULL, NULL, 0},
        {"--resume", &o.resume, NULL, NULL, 0}};
    const size_t num_known = sizeof known / sizeof *known;
    for (int i = 1; i < argc; i += 2) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        size_t      k    = 0;
        if (strcmp(name, "--help") == 0) {
            print_help();
            exit(0);
        }
        while (k < num_known && strcmp(name, known[k].name) != 0) k++;
        if (k == num_known) fail(2, name, "is not an option", "see --help");
        if (!*value) fail(2, name, "needs a value", "see --help");
        if (known[k].text) *known[k].text = value;
        else if (known[k].choices) *known[k].number = parse_choice(name, value, known[k].choices);
        else *known[k].number = parse_count(name, value, known[k].max);
    }
    if (one_run(&o) && (o.task == NUM_TASKS || o.dtype == ALL_TYPES || o.seeds != 1))
        fail(2, "--save, --resume, --stop-after", "they are for one run",
             "add --task classify or reconstruct, --dtype fp32, fp16 or bf16, and --seeds 1");
    return o;
}

/* Fill in what depends on the data, and make room for what the runs leave. */
static void report_init(report *r, const dataset *data) {
    const int fashion = data->side == 28;
    if (!r->o.seeds) r->o.seeds = fashion ? 3 : 5;
    if ((size_t)r->o.batch > data->num_train)
        fail(2, "--batch", "is more than there are training images", "choose a smaller one");
    for (int t = 0; t < NUM_TASKS; t++) {
        r->epochs[t] = r->o.epochs ? r->o.epochs : tasks[t].epochs[fashion];
        r->steps[t]  = data->num_train / (size_t)r->o.batch * (size_t)r->epochs[t];
        r->scales[t] = need(r->steps[t], sizeof(double));
        for (int v = 0; v < NUM_VARIANTS; v++)
            r->runs += task_on(&r->o, t) && variant_on(&r->o, v) ? r->o.seeds : 0;
    }
    for (int v = 0; v < NUM_VARIANTS; v++)
        r->picture[v] = need(NUM_CLASSES * data->pixels, sizeof(float));
    for (size_t i = 0; i < NUM_CLASSES; i++) { /* the first held-out image of class i */
        r->shown[i] = data->num_train + i;
        for (size_t k = data->num_test; k-- > 0;)
            if (data->label[data->num_train + k] == (int)i) r->shown[i] = data->num_train + k;
    }
}

/* What cannot be read or written shall be said now, not after the training. */
static void try_files(const report *r, const dataset *data) {
    const options *o = &r->o;
    net            n;
    try_pictures(o->out);
    if (!one_run(o)) return;
    net_init(&n, o->task, the_variant(o), data, (size_t)o->batch, 0);
    if (o->resume) resume(&n, o->resume, data->num_train / n.batch, r->epochs[o->task]);
    if (o->save) save(&n, o->save);
    net_free(&n);
}

int main(int argc, char **argv) {
    static report  r;
    static dataset data;
    r.o = parse_options(argc, argv);
    load_data(&data, r.o.data);
    report_init(&r, &data);
    try_files(&r, &data);
    printf("%s\n", data.name);
    for (int t = 0; t < NUM_TASKS; t++)
        if (task_on(&r.o, t))
            printf("%s: %d epochs of %lu steps, batch %d\n", tasks[t].name, r.epochs[t],
                   (unsigned long)(data.num_train / (size_t)r.o.batch), r.o.batch);
    fflush(stdout);
    for (int t = 0; t < NUM_TASKS; t++) {
        for (int seed = 0; task_on(&r.o, t) && seed < r.o.seeds; seed++) {
            for (int v = 0; v < NUM_VARIANTS; v++)
                if (variant_on(&r.o, v)) train_one(&r, &data, t, v, seed);
            say_seed(&r, t, seed);
        }
    }
    if (on_terminal()) fprintf(stderr, "\r%70s\r", "");
    print_results(&r, &data);
    for (int v = 0; v < NUM_VARIANTS; v++) free(r.picture[v]);
    for (int t = 0; t < NUM_TASKS; t++) free(r.scales[t]);
    free(data.image);
    free(data.label);
    return 0;
}
