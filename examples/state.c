/* state.c - low-precision masters and moments, side by side: the bytes that each state keeps and moves,
   the speed of its step, and how far the loss ends from fp32's

   READ  from top to bottom: a network of digits in bf16, with train.c's two tasks (classify and
   reconstruct); the third task, which is gpt.c's network; then one large tensor, stepped in turns.
   Only desc.storage differs; AMP_STORAGE_LIST has its rows.

   RUN   cc -O3 -I. examples/state.c -o state -lm && ./state          in the directory of amp.h

   After three minutes it prints a table with a row for each state, and last a line for each:

       state NAME kept BYTES moved BYTES speed RATIO d DIFFERENCE se ERROR

       kept    bytes for each parameter, as allocated: model copy, master, moments
       moved   bytes that a step reads and writes for each parameter, with gradients of halves
       speed   fp32's time of a step over this one's: medians of turns
       d       (loss - fp32's) / fp32's. The loss of a seed is the mean of the last sixth of its
               steps. The table has the mean over the seeds, the last lines that over the tasks, too
       se      its standard error, from how the seeds differ

   The table says "within" if |d| is at most 2 se or 0.003, else "beyond". A run begins with the
   weights of fp32's and sees the same batches. Two runs that differ in one bit drift apart slowly;
   se shows how far they get by chance.

   MEASURED   --elements 100: ten seeds of three tasks, steps of 10^8 parameters (gcc 12.2 -O3
   -march=native, one core of an Intel Xeon, AVX-512, shared with neighbours; version 0.5.0). In other
   runs split+bf16 had a speed of 1.02 to 1.16, split+8bit .77 to .92; in cache (50,000 parameters) .5 and .4.
   fp32+bf16 and fp32+8bit are of version 0.7.0, with steps of 2 * 10^7.

                      bytes kept  moved  speed        d      se   for whom
       fp32                 14.0   30.0   1.00        -       -   fp16, or an optimizer of your own
       fp32+bf16            10.0   22.0   1.15  -0.0004  0.0015   weights in fp32, with models or without:
       fp32+8bit             8.1   18.1   0.85  -0.0030  0.0013   without models both keep 2 bytes less
       split                12.0   28.0   1.10  +0.0005  0.0009   everyone in bf16: all of fp32
       split+bf16            8.0   20.0   1.02  +0.0005  0.0011   where moments fill memory
       split+8bit            6.1   16.1   0.80  -0.0012  0.0012   the least with an exact master
       sr                   10.0   24.0   1.22  +0.0028  0.0023   no master: noise in the weights
       sr+bf16               6.0   16.0   0.93  +0.0021  0.0020
       sr+8bit               4.1   12.1   0.75  +0.0005  0.0022   the least of all

   8-bit moments are rounded stochastically. With rounding to nearest, as published elsewhere, second
   moments at beta2 = .999 never came down after large gradients, and first moments below a 500th of
   their group's largest never moved: a classifier's loss was 27 % higher after 100 epochs (20 seeds,
   se 1.4 %). All 24 single tasks above are within two standard errors or .3 % of fp32. */

#define _POSIX_C_SOURCE 200809L /* for train_data.h */
#define PROGRAM "state"
#define DATA_HELP "give another --data, as build/train takes it"

int gpt_main(int argc, char **argv);
#define main gpt_main /* gpt.c is a program, of which the network is needed here; it brings amp.h */
#include "nets/gpt.c"
#undef main

#include "support/train_data.h"
#include "support/train_rows.h"
#include "support/train_storage.h"

enum { LAYERS = 4, WIDEST = 128, IMAGES = 64, MAX_TURNS = 101 };
enum { CLASSIFY, RECONSTRUCT, GPT, NUM_TASKS };

static const char *const task_names[] = {"classify", "reconstruct", "gpt"};
static const size_t      hidden[][LAYERS - 1] = {{WIDEST, WIDEST, WIDEST}, {WIDEST, 32, WIDEST}};

typedef struct plan {
    options     gpt; /* gpt.c's: the network, its text and steps; seeds: of all tasks */
    const char *data;
    int         epochs, turns;
    size_t      elements; /* of the large tensor */
} plan;

/* The mean loss of the last sixth of the steps. */
typedef struct last_losses { size_t steps, counted; double mean; } last_losses;

static void add_loss(last_losses *l, size_t step, double loss) {
    if (step < l->steps - (l->steps + 5) / 6) return;
    l->mean += (loss - l->mean) / (double)++l->counted;
}

/* ---------------------------------------------------------------------------- a network of digits
   act[l + 1] = normalize(relu(act[l] W + b)), in bf16; the last layer's act[l] W + b, in fp32, goes to
   a softmax, or to a sigmoid for each pixel.                                                      */

typedef struct mlp {
    int           task;
    size_t        width[LAYERS + 1];
    amp_bf16     *weight[LAYERS], *grad[LAYERS], *act[LAYERS], *delta[2];
    float        *bias[LAYERS], *grad_bias[LAYERS], *wide;
    float         rstd[LAYERS + 1][IMAGES], least[LAYERS + 1][IMAGES]; /* as in train.c */
    amp_optimizer opt;
} mlp;

static void add_layer(mlp *n, int l, uint64_t *rng) {
    const size_t in = n->width[l], out = n->width[l + 1];
    amp_tensor   w = {0}, b = {0};
    n->act[l]       = need(IMAGES * in, 2);
    n->weight[l]    = need(in * out, 2);
    n->grad[l]      = need(in * out, 2);
    n->bias[l]      = need(out, sizeof(float));
    n->grad_bias[l] = need(out, sizeof(float));
    for (size_t i = 0; i < in * out; i++)
        n->weight[l][i] = amp_f32_to_bf16(sqrtf(3.0f / (float)in) * random_uniform(rng));
    w.n = in * out, w.model = n->weight[l], w.model_type = AMP_BF16;
    w.grad = n->grad[l], w.grad_type = AMP_BF16;
    b.n = out, b.weight = n->bias[l], b.grad = n->grad_bias[l], b.keep_fp32 = 1;
    must(amp_optimizer_add(&n->opt, &w));
    must(amp_optimizer_add(&n->opt, &b));
}

static void mlp_init(mlp *n, const dataset *data, int task, int state, int seed) {
    const size_t       widest = data->pixels > WIDEST ? data->pixels : WIDEST;
    amp_optimizer_desc desc   = {0};
    uint64_t           rng    = seed_of_weights(seed);
    desc.dtype         = AMP_BF16;
    desc.kind          = AMP_KIND_ADAMW;
    desc.scaler.preset = AMP_PRESET_NONE; /* bf16 needs no scale */
    desc.storage       = &storages[state];
    desc.seed          = (uint64_t)seed;
    memset(n, 0, sizeof *n);
    must(amp_optimizer_init(&n->opt, &desc));
    n->task = task;
    for (int l = 1; l < LAYERS; l++) n->width[l] = hidden[task][l - 1];
    n->width[0]      = data->pixels;
    n->width[LAYERS] = task == CLASSIFY ? NUM_CLASSES : data->pixels;
    n->wide          = need((2 * IMAGES + widest) * widest, sizeof(float));
    for (int d = 0; d < 2; d++) n->delta[d] = need(IMAGES * widest, 2);
    for (int l = 0; l < LAYERS; l++) add_layer(n, l, &rng);
    must(amp_optimizer_prepare(&n->opt));
}

static void mlp_free(mlp *n) {
    amp_optimizer_free(&n->opt);
    free(n->wide), free(n->delta[0]), free(n->delta[1]);
    for (int l = 0; l < LAYERS; l++) {
        free(n->act[l]), free(n->weight[l]), free(n->grad[l]);
        free(n->bias[l]), free(n->grad_bias[l]);
    }
}

static void product(int trans_a, int trans_b, size_t rows, size_t cols, size_t k, const amp_bf16 *a,
                    const amp_bf16 *b, float *c) {
    const amp_gemm_args g = {.trans_a = trans_a, .trans_b = trans_b, .m = rows, .n = cols, .k = k,
                             .a = a, .a_type = AMP_BF16, .b = b, .b_type = AMP_BF16, .c = c};
    must(amp_gemm(NULL, &g));
}

static void narrow(amp_bf16 *to, const float *from, size_t n) {
    must(amp_cast(to, AMP_BF16, from, AMP_F32, n));
}

/* The output is left in wide. */
static void mlp_forward(mlp *n, const dataset *data, const size_t *pick) {
    for (size_t i = 0; i < IMAGES; i++)
        narrow(n->act[0] + i * data->pixels, data->image + pick[i] * data->pixels, data->pixels);
    for (int l = 0; l < LAYERS; l++) {
        const size_t in = n->width[l], out = n->width[l + 1];
        product(0, 0, IMAGES, out, in, n->act[l], n->weight[l], n->wide);
        for (size_t i = 0; i < IMAGES; i++) {
            float *z = n->wide + i * out, *least = &n->least[l + 1][i];
            if (l + 1 == LAYERS) {
                add_to(z, n->bias[l], out);
                continue;
            }
            relu_normalize(z, n->bias[l], out, &n->rstd[l + 1][i], least);
            *least = amp_bf16_to_f32(amp_f32_to_bf16(*least)); /* as act, with which it is compared */
        }
        if (l + 1 < LAYERS) narrow(n->act[l + 1], n->wide, IMAGES * out);
    }
}

/* The mean loss of the images in pick; its gradient, in bf16, goes to delta[0]. */
static double mlp_loss(mlp *n, const dataset *data, const size_t *pick) {
    const size_t out  = n->width[LAYERS];
    double       loss = 0.0;
    for (size_t i = 0; i < IMAGES; i++)
        loss += n->task == CLASSIFY
                    ? softmax_error(n->wide + i * out, out, data->label[pick[i]])
                    : squared_error(n->wide + i * out, out, data->image + pick[i] * out);
    for (size_t i = 0; i < IMAGES * out; i++) n->wide[i] /= IMAGES;
    narrow(n->delta[0], n->wide, IMAGES * out);
    return loss / IMAGES;
}

static void mlp_backward(mlp *n) {
    for (int l = LAYERS; l-- > 0;) {
        const size_t in = n->width[l], out = n->width[l + 1];
        float       *act = n->wide + IMAGES * in;
        product(1, 0, in, out, IMAGES, n->act[l], n->delta[0], n->wide);
        narrow(n->grad[l], n->wide, in * out);
        memset(n->grad_bias[l], 0, out * sizeof(float));
        for (size_t i = 0; i < IMAGES * out; i++)
            n->grad_bias[l][i % out] += amp_bf16_to_f32(n->delta[0][i]);
        if (l == 0) return;
        product(0, 1, IMAGES, in, out, n->delta[0], n->weight[l], n->wide);
        must(amp_cast(act, AMP_F32, n->act[l], AMP_BF16, IMAGES * in));
        for (size_t i = 0; i < IMAGES; i++)
            relu_normalize_back(n->wide + i * in, act + i * in, in, n->rstd[l][i], n->least[l][i]);
        narrow(n->delta[1], n->wide, IMAGES * in);
        amp_bf16 *below = n->delta[1];
        n->delta[1]     = n->delta[0];
        n->delta[0]     = below;
    }
}

/* Train one network, with a learning rate that goes down. */
static double train_mlp(const plan *p, const dataset *data, int task, int state, int seed) {
    const size_t batches = data->num_train / IMAGES;
    size_t      *order   = need(data->num_train, sizeof *order);
    uint64_t     rng     = (uint64_t)seed + 99;
    last_losses  last    = {batches * (size_t)p->epochs, 0, 0.0};
    mlp          n;
    mlp_init(&n, data, task, state, seed);
    for (size_t i = 0; i < data->num_train; i++) order[i] = i;
    for (size_t step = 0; step < last.steps; step++) {
        const size_t *pick = order + step % batches * IMAGES;
        if (step % batches == 0) shuffle(order, data->num_train, &rng);
        mlp_forward(&n, data, pick);
        add_loss(&last, step, mlp_loss(&n, data, pick));
        mlp_backward(&n);
        must(amp_optimizer_step(&n.opt, 2e-3f * (1.0f - (float)step / (float)last.steps)));
    }
    mlp_free(&n);
    free(order);
    return last.mean;
}

/* --------------------------------------------------------------------------------------- the GPT */

static double train_gpt(const plan *p, const text *t, int state, int seed) {
    static net  n;
    options     o    = p->gpt;
    last_losses last = {(size_t)o.steps, 0, 0.0};
    o.storage = state;
    net_init(&n, &o, t, AMP_BF16, seed);
    for (size_t step = 0; step < last.steps; step++) add_loss(&last, step, train_step(&n));
    net_free(&n);
    return last.mean;
}

/* ---------------------------------------------------------------------------------- one large step */

typedef struct large {
    amp_optimizer opt;
    amp_bf16     *model;
    size_t        bytes; /* that amp.h allocated */
    double        time[MAX_TURNS];
} large;

static void large_init(large *l, int state, amp_bf16 *grad, size_t count) {
    amp_optimizer_desc desc = {0};
    amp_tensor         t    = {0};
    memset(l, 0, sizeof *l);
    desc.dtype         = AMP_BF16;
    desc.kind          = AMP_KIND_ADAMW;
    desc.scaler.preset = AMP_PRESET_NONE; /* as above */
    desc.storage       = &storages[state];
    desc.allocator     = (amp_allocator){state_malloc, state_free, &l->bytes};
    l->model               = need(count, 2);
    for (size_t i = 0; i < count; i++) l->model[i] = grad[count - 1 - i];
    t.n = count, t.model = l->model, t.model_type = AMP_BF16;
    t.grad = grad, t.grad_type = AMP_BF16;
    must(amp_optimizer_init(&l->opt, &desc));
    must(amp_optimizer_add(&l->opt, &t));
    must(amp_optimizer_prepare(&l->opt));
}

static void large_free(large *l) {
    amp_optimizer_free(&l->opt);
    free(l->model);
}

static void large_step(large *l, int turn) {
    const double start = seconds();
    must(amp_optimizer_step(&l->opt, 1e-4f));
    if (turn >= 0) l->time[turn] = seconds() - start;
}

static double median(double *x, int count) {
    qsort(x, (size_t)count, sizeof *x, by_value);
    return x[count / 2];
}

/* Of each state the bytes kept for a parameter, and how many times as fast as fp32 a step is:
   beside fp32's, in turns, so that both meet the same machine. */
static void measure(const plan *p, double *kept, double *speed) {
    static large base, other;
    amp_bf16    *grad = need(p->elements, 2);
    for (size_t i = 0; i < p->elements; i++)
        grad[i] = amp_f32_to_bf16(1e-3f * (float)((int)(i * 7919 % 2001) - 1000));
    large_init(&base, 0, grad, p->elements);
    kept[0]  = 2.0 + (double)base.bytes / (double)p->elements;
    speed[0] = 1.0;
    for (int s = 1; s < NUM_STORAGES; s++) {
        progress((double)s / NUM_STORAGES, "large steps");
        large_init(&other, s, grad, p->elements);
        kept[s] = 2.0 + (double)other.bytes / (double)p->elements;
        for (int turn = -1; turn < p->turns; turn++) { /* the first one touches all pages */
            large_step(&base, turn);
            large_step(&other, turn);
        }
        speed[s] = median(base.time, p->turns) / median(other.time, p->turns);
        large_free(&other);
    }
    large_free(&base);
    free(grad);
}

/* --------------------------------------------------------------------------------- results, main */

typedef double losses[NUM_STORAGES][MAX_SEEDS]; /* of a task */

static void train_all(const plan *p, const dataset *data, const text *t, losses *loss) {
    const int runs = p->gpt.seeds * NUM_STORAGES * NUM_TASKS;
    int       done = 0;
    for (int seed = 0; seed < p->gpt.seeds; seed++)
        for (int s = 0; s < NUM_STORAGES; s++)
            for (int task = 0; task < NUM_TASKS; task++) {
                char now[40];
                sprintf(now, "%.12s, %.10s", task_names[task], storage_names[s]);
                progress((double)done++ / runs, now);
                loss[task][s][seed] = task == GPT ? train_gpt(p, t, s, seed)
                                                  : train_mlp(p, data, task, s, seed);
            }
}

/* Two seeds are no ground for a judgment. */
static const char *judge(spread d, int seeds) {
    if (seeds < 3) return "-";
    return fabs(d.mean) <= 2.0 * d.se || fabs(d.mean) <= 0.003 ? "within" : "beyond";
}

/* A row for each state; all[s][seed] becomes d, a mean over the tasks. */
static void print_losses(losses *loss, int seeds, losses all) {
    printf("\n%-12s", "loss, d");
    for (int task = 0; task < NUM_TASKS; task++) printf("  %-25s", task_names[task]);
    for (int s = 0; s < NUM_STORAGES; s++) {
        printf("\n%-12s", storage_names[s]);
        for (int task = 0; task < NUM_TASKS; task++) {
            double d[MAX_SEEDS];
            for (int seed = 0; seed < seeds; seed++) {
                d[seed] = loss[task][s][seed] / loss[task][0][seed] - 1.0;
                all[s][seed] += d[seed] / NUM_TASKS;
            }
            const spread of = over_seeds(d, NULL, seeds);
            if (s > 0) printf("  %+.4f +- %.4f %-7s", of.mean, of.se, judge(of, seeds));
            else printf("  %-25.5f", over_seeds(loss[task][0], NULL, seeds).mean);
        }
    }
    printf("\n\nwithin: the loss differs from fp32's by at most two standard errors, or 0.003 of it%s\n\n",
           seeds < 3 ? "\n(-: of fewer than three seeds nothing is said)" : "");
}

static void print_help_of_state(void) {
    fputs("usage: state [options]\n\n"
          "Train three tasks with each kind of optimizer state, and time one large step.\n\n"
          "  --seeds N         runs of each task (10)\n"
          "  --epochs N        passes over the digits (10)\n"
          "  --steps N         optimizer steps of the GPT (150)\n"
          "  --elements N      millions of parameters of the large step, of 28 bytes each (50)\n"
          "  --data digits|fashion|PATH          as build/train takes it (digits)\n"
          "  --text FILE       what the GPT learns (amp.h)\n"
          "  --quick           a toy of two seeds, which the other options change\n"
          "  --quiet           no progress\n"
          "  --help            this text\n", stdout);
}

static plan parse(int argc, char **argv) {
    plan p = {*standard(), "digits", 10, 15, 0};
    p.gpt.dtype = AMP_BF16;
    p.gpt.width = 128;
    p.gpt.seeds = 10;
    p.gpt.steps = 150;
    int                millions = 50, flag;
    const known_option known[] = {
        flag_option("--quick", &flag),
        count_option("--seeds", &p.gpt.seeds, MAX_SEEDS), count_option("--epochs", &p.epochs, 1000),
        count_option("--steps", &p.gpt.steps, MAX_STEPS), word_option("--data", &p.data),
        size_option("--elements", &millions, 2000), word_option("--text", &p.gpt.text)};
    if (is_given("--quick", argc, argv)) { /* first, wherever it is: options change it */
        make_quick(&p.gpt);
        p.epochs = 4, p.turns = 3, millions = 1;
    }
    parse_known(argc, argv, known, sizeof known / sizeof *known, print_help_of_state);
    p.elements = (size_t)millions * 1000000;
    return p;
}

int main(int argc, char **argv) {
    const plan    p = parse(argc, argv);
    static losses loss[NUM_TASKS];
    static losses all;
    static text   t;
    double        kept[NUM_STORAGES], speed[NUM_STORAGES];
    dataset       data;
    load_data(&data, p.data);
    load_text(&t, &p.gpt);
    measure(&p, kept, speed); /* first: memory may be missing */
    train_all(&p, &data, &t, loss);
    progress_end();
    printf("%s; %s\n", data.name, counted((size_t)p.epochs, "epoch"));
    printf("%s: %s of width %d; %s of %d x %d bytes\n", p.gpt.text,
           counted((size_t)p.gpt.layers, "block"), p.gpt.width, counted((size_t)p.gpt.steps, "step"),
           p.gpt.batch, p.gpt.context);
    printf("%s; a step of %lu parameters; %s\n", counted((size_t)p.gpt.seeds, "seed"), (unsigned long)p.elements,
           amp_cpu_tier());
    print_losses(loss, p.gpt.seeds, all);
    for (int s = 0; s < NUM_STORAGES; s++) {
        const spread d = over_seeds(all[s], NULL, p.gpt.seeds);
        printf("state %s kept %.1f moved %.1f speed %.2f d %+.4f se %.4f\n", storage_names[s], kept[s],
               bytes_moved(&storages[s]), speed[s], d.mean, d.se);
    }
    free(data.image);
    free(data.label);
    free(t.bytes);
    return finish(0);
}
