/* train.c - the same network trained in fp32, fp16 and bf16, on real images, with amp.h

   A training loop in mixed precision, written by hand. Weights, activations and gradients are
   stored in half. Products are summed in fp32 (amp_gemm). Normalization, softmax and loss are
   computed in fp32. It trains the five variants of train_report.h from the same seeds, on two
   tasks: classify (cross-entropy) and reconstruct (an autoencoder, mean squared error).

   READ  from top to bottom: the network, forward, loss and backward, the step, an epoch; then
   save and resume, for interrupted runs. Loss scaling and masters are in setup_optimizer,
   loss_scale and optimizer_step; measure_... only counts. train_rows.h has what is computed in fp32,
   row by row; train_report.h variants, options, counts and tables; train_pictures.h pictures;
   train_data.h the data; train_numbers.h random numbers; train_cli.h errors and progress.

   RUN   cc -O3 -I. examples/digits/train.c -o train -lm && ./train         in the directory of amp.h

   In under a minute it prints a table for each task with its reading, writes four pictures into
   build/, and ends with one line per task: how far fp16 and bf16 are from fp32. See also --help.

   COLUMNS  "flushed" and "lost" are counted on every SAMPLE_EVERY-th step.

       flushed     share of the gradients (of activations and of weights) that are nonzero in fp32
                   and zero as stored. The fp32 value is the result of the product or the formula,
                   before it is rounded for storing. Zeros of ReLU do not count, nor do values that
                   are zero because their operands had been flushed before.
       lost        share of the weights with a nonzero stored gradient whose bits the step did not
                   change: bits of the master, or of the half weight if there is none. Skipped
                   steps do not count.
       bytes/param memory for weights, masters, gradients and moments, as allocated
       act KiB     activations that one batch keeps for the backward pass
       ms/step     processor time of a step: the median of rounds in which the variants take turns
       speed       fp32's ms over the variant's: how many times as fast as fp32 it is
       wide ms     the same for the network with 8 times the hidden units and 256 images a step,
                   which is only timed: there products are most of the work

   Biases (under 2 % of the parameters) stay fp32 in every variant, as is usual.                 */

#define _POSIX_C_SOURCE 200809L /* for train_data.h */
#define PROGRAM "train"

#define AMP_IMPLEMENTATION
#include "amp.h"

#include "../support/train_data.h"
#include "train_report.h" /* variants, tasks, measures, report */
#include "../support/train_rows.h"   /* relu and normalization, softmax and losses, of a row in fp32 */
#include "../support/train_lines.h"  /* --report */

#include <math.h>

/* ------------------------------------------------------------------------------------- network
   Layer l:  z = act[l] W + b;  the last layer's z, in fp32, is the output; otherwise
   act[l + 1] = normalize(relu(z)), over the row of one image, in fp32.                           */

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
    char           run[RUN_SIZE];      /* what identifies it                                      */
    lines         *lines;              /* of --report, or NULL                                    */
    size_t         num_params, param_bytes, act_bytes, opt_bytes;
    void          *owned[12 * LAYERS];
    int            num_owned;
} net;

/* Memory that net_free releases and that *total, if any, counts. */
static void *net_alloc(net *n, size_t count, amp_dtype type, size_t *total) {
    if (total) *total += count * amp_dtype_size(type);
    return n->owned[n->num_owned++] = need(count, amp_dtype_size(type));
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

/* The weights of layer l, uniform with variance 1 / fan-in, and its biases, 0. */
static void add_layer(net *n, size_t l) {
    static const char *const names[LAYERS][2] = {{"layer0", "layer0.bias"}, {"layer1", "layer1.bias"},
                                                 {"layer2", "layer2.bias"}, {"layer3", "layer3.bias"}};
    const size_t in = n->width[l], out = n->width[l + 1], count = in * out;
    amp_tensor  *w  = add_tensor(n, 2 * l, names[l][0], count, n->v->type);
    add_tensor(n, 2 * l + 1, names[l][1], out, AMP_F32)->keep_fp32 = 1;
    for (size_t i = 0; i < count; i++)
        n->wide[i] = sqrtf(3.0f / (float)in) * random_uniform(&n->rng);
    if (w->weight) memcpy(w->weight, n->wide, count * sizeof(float));
    else must(amp_cast(w->model, w->model_type, n->wide, AMP_F32, count));
    n->m.weight[l] = w;
    n->m.before[l] = net_alloc(n, count, AMP_F32, NULL);
}

/* Everything that differs between the variants, but for the one without master weights. */
static void setup_optimizer(net *n) {
    amp_optimizer_desc desc = {0};
    desc.dtype     = n->v->type;
    desc.kind      = AMP_KIND_ADAMW;
    desc.allocator = (amp_allocator){state_malloc, state_free, &n->opt_bytes};
    desc.report    = n->lines && n->lines->file ? &n->lines->watch : NULL;
    if (n->v->scaling) {
        desc.scaler.preset          = AMP_PRESET_DEFAULT; /* starts at 65536 */
        desc.scaler.growth_interval = GROWTH_INTERVAL;
    } else {
        desc.scaler.preset = AMP_PRESET_NONE;
    }
    must(amp_optimizer_init(&n->opt, &desc));
    for (int i = 0; i < 2 * LAYERS; i++) must(amp_optimizer_add(&n->opt, &n->tensor[i]));
    must(name_run(&n->opt, n->run));
    must(amp_optimizer_prepare(&n->opt));
    n->param_bytes += n->opt_bytes;
}

/* Hidden layers are `wider` times what the task says. */
static void net_init(net *n, int which, int v, const dataset *data, size_t batch, size_t wider,
                     int epochs, int seed, lines *to) {
    const amp_dtype T      = variants[v].type;
    size_t          widest = 0;
    memset(n, 0, sizeof *n);
    n->v     = &variants[v];
    n->lines = to;
    n->task  = which;
    n->batch = batch;
    n->rng   = (uint64_t)seed * 1000003u + (uint64_t)which + 1;
    for (size_t l = 0; l <= LAYERS; l++) {
        n->width[l] = l > 0 && l < LAYERS ? wider * tasks[which].hidden[l - 1]
                                           : data->pixels;
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
    sprintf(n->run, "run of train --task %s --dtype %s --batch %d --epochs %d --data of-checksum-%08lx;",
            tasks[which].name, type_names[n->v->type], (int)batch, epochs, checksum(data));
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

static amp_status status_of(const net *n) {
    amp_status status = {0};
    status.did_step   = 1;
    if (n->v->master) must(amp_optimizer_status(&n->opt, &status));
    return status;
}

/* ---------------------------------------------------------------------- forward, loss, backward */

/* c = op(a) op(b), with a and b in the variant's type and sums in fp32. */
static void multiply(const net *n, int trans_a, int trans_b, size_t rows, size_t cols, size_t k,
                     const void *a, const void *b, void *c, amp_dtype c_type) {
    const amp_gemm_args g = {.trans_a = trans_a, .trans_b = trans_b, .m = rows, .n = cols, .k = k,
                             .a = a, .a_type = n->v->type, .b = b, .b_type = n->v->type,
                             .c = c, .c_type = c_type};
    must(amp_gemm(NULL, &g));
}

static void load_images(net *n, const dataset *data, const size_t *pick, size_t rows) {
    const size_t width = n->width[0], row_bytes = width * amp_dtype_size(n->v->type);
    for (size_t i = 0; i < rows; i++)
        must(amp_cast((char *)n->act[0] + i * row_bytes, n->v->type,
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
        must(amp_cast(n->wide, AMP_F32, n->act[l + 1], T, rows * out));
        for (size_t i = 0; i < rows; i++)
            relu_normalize(n->wide + i * out, bias, out, &n->rstd[l + 1][i], &n->least[l + 1][i]);
        must(amp_cast(n->act[l + 1], T, n->wide, AMP_F32, rows * out));
        /* backward compares act with least, so least must be rounded as act was */
        must(amp_cast(n->delta[0], T, n->least[l + 1], AMP_F32, rows));
        must(amp_cast(n->least[l + 1], AMP_F32, n->delta[0], T, rows));
    }
}

/* Store fp32 gradients in the variant's type. This is where small ones become zero in fp16. */
static void store_gradient(net *n, void *dst, const float *src, size_t count) {
    must(amp_cast(dst, n->v->type, src, AMP_F32, count));
    measure_stored(&n->m, dst, n->v->type, src, count);
}

/* The mean loss of the batch; its gradient, times the loss scale, goes to delta[0]. */
static double loss_and_gradient(net *n, const dataset *data, const size_t *pick) {
    const size_t width = n->width[LAYERS];
    const float  scale = loss_scale(n);
    double       loss  = 0.0;
    for (size_t i = 0; i < n->batch; i++) {
        float *y = n->out + i * width;
        loss += n->task == CLASSIFY ? softmax_error(y, width, data->label[pick[i]])
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
        must(amp_cast(n->wide, AMP_F32, above, T, rows * out));
        memset(grad_bias, 0, out * sizeof(float));
        for (size_t i = 0; i < rows; i++)
            for (size_t j = 0; j < out; j++) grad_bias[j] += n->wide[i * out + j];
        if (l == 0) return;

        multiply(n, 0, 1, rows, in, out, above, weights(n, l), n->wide, AMP_F32);
        store_gradient(n, below, n->wide, rows * in);
        must(amp_cast(grad, AMP_F32, below, T, rows * in));
        must(amp_cast(act, AMP_F32, n->act[l], T, rows * in));
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
    must(amp_cast(w, AMP_F32, stored, type, t->n));
    must(amp_cast(g, AMP_F32, t->grad, t->grad_type, t->n));
    for (size_t j = 0; j < t->n; j++) {
        m[j] = 0.9f * m[j] + 0.1f * g[j];
        v[j] = 0.999f * v[j] + 0.001f * g[j] * g[j];
        w[j] -= lr * (m[j] / c1) / (sqrtf(v[j] / c2) + 1e-8f);
    }
    must(amp_cast(stored, type, w, AMP_F32, t->n));
}

static void optimizer_step(net *n, float lr) {
    n->steps++;
    if (n->v->master) /* check, unscale, AdamW, new scale, new half copies */
        must(amp_optimizer_step(&n->opt, lr));
    else
        for (size_t i = 0; i < 2 * LAYERS; i++) adamw_without_master(n, i, lr);
}

/* One step on one batch of images; returns its mean loss. */
static double train_step(net *n, const dataset *data, const size_t *pick, float lr) {
    const clock_t start = clock();
    load_images(n, data, pick, n->batch);
    forward(n, n->batch);
    const double loss = loss_and_gradient(n, data, pick);
    backward(n);
    optimizer_step(n, lr);
    if (n->lines) lines_step(n->lines, &n->opt, loss, 1e-3 * milliseconds_since(start));
    return loss;
}

/* One pass over the images, in the given order; returns the mean loss. The learning rate falls to 0
   over all_steps, counting skipped ones too. */
static double train_epoch(net *n, const dataset *data, const size_t *order, size_t all_steps) {
    const size_t batches = data->num_train / n->batch;
    double       loss    = 0.0;
    for (size_t b = 0; b < batches; b++) {
        const size_t *pick = order + b * n->batch;
        const float   lr   = tasks[n->task].lr * (1.0f - (float)n->steps / (float)all_steps);
        measure_begin(&n->m, n->steps, (double)loss_scale(n));
        loss += train_step(n, data, pick, lr);
        measure_end(&n->m, (int)status_of(n).did_step);
    }
    return loss / (double)batches;
}

/* ----------------------------------------------------------------------------- interrupted runs */

/* The state is amp.h's alone: masters, moments, scale, counts of steps. The epoch follows from the
   counts, the order of the images from seed and epoch. Returns the epochs that are done. */
static int go_on(net *n, const char *path, size_t batches) {
    resume(&n->opt, path, n->run);
    n->steps = status_of(n).steps + status_of(n).skipped;
    return (int)(n->steps / batches);
}

/* ------------------------------------------------------------------------------ held-out images */

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
    for (size_t i = 0; i < NUM_CLASSES && n->task == RECONSTRUCT && seed == 0; i++) {
        float *pixel = r->picture[v] + i * data->pixels;
        load_images(n, data, &r->shown[i], 1);
        forward(n, 1);
        for (size_t j = 0; j < data->pixels; j++) pixel[j] = sigmoid(n->out[j]);
    }
}

/* ---------------------------------------------------------------------------------- runs, main */

/* One run: a variant of a task from one seed. */
static void train_one(report *r, const dataset *data, int which, int v, int seed) {
    const options *o      = &r->o;
    const int      epochs = r->epochs[which];
    size_t        *order  = need(data->num_train, sizeof(size_t));
    int            first  = 0, last = o->stop_after ? o->stop_after : epochs;
    lines          l;
    net            n;
    lines_open(&l, reports(o, which, v, seed) ? o->report : NULL, o->resume != NULL,
               r->steps[which], variants[v].name);
    net_init(&n, which, v, data, (size_t)o->batch, 1, epochs, seed, &l);
    if (v == FP16 && seed == 0) n.m.scales = r->scales[which];
    if (o->resume) first = go_on(&n, o->resume, data->num_train / n.batch);
    for (size_t i = 0; i < data->num_train; i++) order[i] = i;
    polled = one_run(o);
    for (int epoch = 0; epoch < epochs; epoch++) {
        shuffle(order, data->num_train, &n.rng); /* each order follows from the one before */
        if (epoch >= first && epoch < last) {
            const clock_t start = clock();
            const double  loss  = train_epoch(&n, data, order, r->steps[which]);
            const double  ms    = milliseconds_since(start);
            char          run[64];
            sprintf(run, "%s %s seed %d/%d", tasks[which].name, variants[v].name, seed + 1, o->seeds);
            if (polled) r->o.stop_after = last = last_of(last, epoch + 1, epochs, "epoch");
            report_loss(r, which, v, seed, epoch, loss);
            r->done += 1.0 / epochs;
            progress_step(r->done / r->runs, run, (int)n.steps, (int)r->steps[which], loss,
                          ms > 0.0 ? 1e3 * (double)data->num_train / ms : 0.0, "images",
                          (unsigned long)status_of(&n).skipped);
            if (o->save) save(&n.opt, o->save);
        }
    }
    polled = 0;
    record(r, &n, data, v, seed);
    lines_close(&l, &n.opt);
    net_free(&n);
    free(order);
}

/* How long a step takes, of the network that is trained or of the wide one: the variants in turns,
   so that all meet the same machine. The first round warms up. */
static void time_steps(report *r, const dataset *data, int which, int size) {
    const size_t batch = size == WIDE ? WIDE_BATCH : (size_t)r->o.batch;
    const int    steps = size == WIDE ? 1 : 20;
    net          nets[NUM_VARIANTS];
    size_t       pick[MAX_BATCH];
    for (size_t i = 0; i < batch; i++) pick[i] = i % data->num_train;
    for (int v = 0; v < NUM_VARIANTS; v++)
        if (variant_on(&r->o, v))
            net_init(&nets[v], which, v, data, batch, size == WIDE ? WIDER : 1, 0, 0, NULL);
    for (int round = -1; round < ROUNDS; round++) {
        for (int v = 0; v < NUM_VARIANTS; v++) {
            const clock_t start = clock();
            if (!variant_on(&r->o, v)) continue;
            for (int i = 0; i < steps; i++) train_step(&nets[v], data, pick, 1e-4f);
            if (round >= 0) r->ms[which][v][size][round] = milliseconds_since(start) / steps;
        }
        progress((r->done += TIMED_RUNS / (ROUNDS + 1.0)) / r->runs, "the time of steps");
    }
    for (int v = 0; v < NUM_VARIANTS; v++)
        if (variant_on(&r->o, v)) net_free(&nets[v]);
}

/* What cannot be read or written shall be said now, not after the training. */
static void try_files(const report *r, const dataset *data) {
    const options *o = &r->o;
    net            n;
    try_picture(o->out, "train_loss.svg");
    lines_try(o->report);
    if (!one_run(o)) return;
    net_init(&n, o->task, the_variant(o), data, (size_t)o->batch, 1, r->epochs[o->task], 0, NULL);
    if (o->resume) go_on(&n, o->resume, data->num_train / n.batch);
    if (o->save) save(&n.opt, o->save);
    net_free(&n);
}

int main(int argc, char **argv) {
    static report  r;
    static dataset data;
    r.o = parse_options(argc, argv);
    load_data(&data, r.o.data);
    report_init(&r, &data);
    try_files(&r, &data);
    print_plan(&r, &data);
    for (int t = 0; t < NUM_TASKS; t++) {
        for (int seed = 0; task_on(&r.o, t) && seed < r.o.seeds; seed++) {
            for (int v = 0; v < NUM_VARIANTS; v++)
                if (variant_on(&r.o, v)) train_one(&r, &data, t, v, seed);
        }
        for (int size = 0; timed(&r.o, t) && size < NUM_SIZES; size++)
            time_steps(&r, &data, t, size);
    }
    print_results(&r, &data);
    report_free(&r);
    free(data.image);
    free(data.label);
    return finish(0);
}
