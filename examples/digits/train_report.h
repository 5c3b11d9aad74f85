/* train_report.h - what train.c compares, what it counts while it trains, and what it says

   It has the five variants and the two tasks, the options, the counts of a run (measures), then
   tables, their reading and the pictures (train_pictures.h). Nothing here knows the network: a run
   passes its tensors, its gradients as stored, and its results.                                  */

#ifndef TRAIN_REPORT_H
#define TRAIN_REPORT_H

#include "amp.h"
#include "../support/train_data.h"
#include "../support/train_pictures.h"
#include "../support/train_save.h" /* type_names */

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

/* Steps are timed in two sizes: as trained, and wide, where products are most of the work. */
enum { TRAINED, WIDE, NUM_SIZES };
enum { WIDER = 8, WIDE_BATCH = 256, ROUNDS = 15, TIMED_RUNS = 5 /* of progress, for each size */ };

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

/* -------------------------------------------------------------------------------------- options */

static const char *const task_names[] = {"classify", "reconstruct", "both", NULL};

typedef struct options {
    int         task, dtype;                      /* may be NUM_TASKS: both; ALL_TYPES */
    int         epochs, batch, seeds, stop_after; /* 0: as fits the data; never        */
    const char *data, *out, *save, *resume, *report;
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

/* One of all runs writes the lines of --report. */
static int reports(const options *o, int t, int v, int seed) {
    return o->report && seed == 0 && t == (o->task == NUM_TASKS ? (int)CLASSIFY : o->task) &&
           v == (o->dtype == ALL_TYPES ? (int)FP16 : the_variant(o));
}

static int timed(const options *o, int t) { return task_on(o, t) && !one_run(o); }

static void print_help(void) {
    printf("usage: train [options]\n\n"
           "Train the same network in fp32, fp16 and bf16 and compare what comes out.\n\n"
           "  --task classify|reconstruct|both   what to train (both)\n"
           "  --dtype fp32|fp16|bf16|all         which variants; fp16 are three (all)\n"
           "  --epochs N               passes over the data (%d, %d; Fashion-MNIST: %d, %d)\n"
           "  --batch N                images per step (64)\n"
           "  --seeds N                runs of each variant (5; Fashion-MNIST: 3)\n"
           "  --data digits|fashion|PATH\n"
           "                           digits: the 1,797 in examples/digits/digits.csv.gz; fashion:\n"
           "                           Debian's dataset-fashion-mnist; or a directory of IDX\n"
           "                           files; or a .csv, .csv.gz (AMP_DATA if set, else\n"
           "                           fashion if installed, else digits)\n"
           "  --out DIR                where the pictures go, made if missing (build)\n"
           "  --report FILE            lines of amp.h's report, for examples/report.c: of\n"
           "                           the first task, the first seed, and\n"
           "                           fp16+master+scaling unless --dtype is another\n"
           "  --quiet                  no progress\n"
           "  --help                   this text\n\n"
           "With one task, one type (fp16 is then fp16+master+scaling alone) and --seeds 1:\n\n"
           "  --save FILE              write the state there at the end of every epoch\n"
           "  --resume FILE            continue from it; with the same other options the end\n"
           "                           has the bits of an uninterrupted run\n"
           "  --stop-after N           end after epoch N, as Ctrl-C does after the one at hand\n",
           tasks[CLASSIFY].epochs[0], tasks[RECONSTRUCT].epochs[0], tasks[CLASSIFY].epochs[1],
           tasks[RECONSTRUCT].epochs[1]);
}

static options parse_options(int argc, char **argv) {
    options o = {NUM_TASKS, ALL_TYPES, 0, 64, 0, 0, NULL, "build", NULL, NULL, NULL};
    const known_option known[] = {
        choice_option("--task", task_names, &o.task), choice_option("--dtype", type_names, &o.dtype),
        size_option("--epochs", &o.epochs, MAX_EPOCHS),
        count_option("--stop-after", &o.stop_after, MAX_EPOCHS),
        size_option("--batch", &o.batch, MAX_BATCH), count_option("--seeds", &o.seeds, MAX_SEEDS),
        word_option("--data", &o.data), word_option("--out", &o.out),
        word_option("--report", &o.report), word_option("--save", &o.save),
        word_option("--resume", &o.resume)};
    parse_known(argc, argv, known, sizeof known / sizeof *known, print_help);
    keep_inputs(data_path(o.data), o.resume, o.save, o.report);
    if (one_run(&o) && (o.task == NUM_TASKS || o.dtype == ALL_TYPES || o.seeds != 1))
        fail(2, "--save, --resume, --stop-after", "need a single run",
             "add --task classify or reconstruct, --dtype fp32, fp16 or bf16, and --seeds 1");
    return o;
}

/* ------------------------------------------------------------------------------------ measuring */

/* Counted on every SAMPLE_EVERY-th step, which shares no factor with the growth interval. That is
   amp.h's default, 2000, only for runs of more than 1000 steps. */
enum { SAMPLE_EVERY = 11, GROWTH_INTERVAL = 20 };

typedef struct measures {
    const amp_tensor *weight[LAYERS]; /* what is watched                                       */
    unsigned char    *before[LAYERS]; /* sampled steps: the weights' bits before the step      */
    double           *scales;         /* the loss scale of every step, or NULL                 */
    int               sampling;       /* count in this step?                                   */
    double            nonzero, flushed, updates, lost;
} measures;

static int is_zero(const void *x, amp_dtype type, size_t i) {
    if (type == AMP_F32) return ((const float *)x)[i] == 0.0f;
    return (((const uint16_t *)x)[i] & 0x7fff) == 0;
}

/* Some gradients, as they are stored and as they were just before. */
static void measure_stored(measures *m, const void *stored, amp_dtype type, const float *exact,
                           size_t count) {
    for (size_t i = 0; m->sampling && i < count; i++) {
        if (is_zero(exact, AMP_F32, i)) continue;
        m->nonzero += 1.0;
        m->flushed += is_zero(stored, type, i);
    }
}

/* What a step must change: the master, or the half weight where that is all there is. */
static const unsigned char *updated_weights(const amp_tensor *t, size_t *size) {
    *size = amp_dtype_size(t->weight ? AMP_F32 : t->model_type);
    return t->weight ? (const void *)t->weight : t->model;
}

static void measure_begin(measures *m, uint64_t step, double scale) {
    size_t size;
    m->sampling = step % SAMPLE_EVERY == 0;
    if (m->scales) m->scales[step] = scale;
    for (size_t l = 0; m->sampling && l < LAYERS; l++) {
        const unsigned char *now = updated_weights(m->weight[l], &size);
        memcpy(m->before[l], now, m->weight[l]->n * size);
    }
}

static void measure_end(measures *m, int did_step) {
    size_t size;
    for (size_t l = 0; m->sampling && did_step && l < LAYERS; l++) {
        const amp_tensor    *t   = m->weight[l];
        const unsigned char *now = updated_weights(t, &size);
        for (size_t i = 0; i < t->n; i++) {
            if (is_zero(t->grad, t->grad_type, i)) continue;
            m->updates += 1.0;
            m->lost += memcmp(m->before[l] + i * size, now + i * size, size) == 0;
        }
    }
}

static double ratio(double part, double whole) { return whole > 0.0 ? part / whole : 0.0; }

/* Of processor time, which does not count while other programs run. */
static double milliseconds_since(clock_t start) {
    return 1e3 * (double)(clock() - start) / CLOCKS_PER_SEC;
}

/* --------------------------------------------------------------------------------------- report */

/* What the training runs leave behind. */
enum { METRIC, FLUSHED, LOST, SKIPPED, SCALE, PARAM_BYTES, ACT_BYTES, NUM_COLUMNS };

typedef struct report {
    options o;
    double  results[NUM_TASKS][NUM_VARIANTS][NUM_COLUMNS][MAX_SEEDS];
    double  loss[NUM_TASKS][NUM_VARIANTS][3][MAX_EPOCHS]; /* mean, least, largest over the seeds  */
    double  ms[NUM_TASKS][NUM_VARIANTS][NUM_SIZES][ROUNDS]; /* of a step                          */
    int     epochs[NUM_TASKS];
    size_t  steps[NUM_TASKS];                          /* in all epochs                           */
    double *scales[NUM_TASKS];                         /* per step: FP16's loss scale, first seed */
    size_t  shown[NUM_CLASSES];                        /* images for the picture                  */
    float  *picture[NUM_VARIANTS];                     /* reconstructions of them, first seed     */
    double  done, runs;                                /* how far we are                          */
} report;

/* Fill in what depends on the data, and make room for what the runs leave. */
static void report_init(report *r, const dataset *data) {
    const int fashion = data->side == 28;
    if (!r->o.seeds) r->o.seeds = fashion ? 3 : 5;
    refuse_batch(data->name, data->num_train, "image", r->o.batch);
    for (int t = 0; t < NUM_TASKS; t++) {
        r->epochs[t] = r->o.epochs ? r->o.epochs : tasks[t].epochs[fashion];
        if (t == r->o.task) refuse_stop(r->o.stop_after, r->epochs[t], "epoch");
        r->steps[t]  = data->num_train / (size_t)r->o.batch * (size_t)r->epochs[t];
        r->scales[t] = need(r->steps[t], sizeof(double));
        for (int v = 0; v < NUM_VARIANTS; v++)
            r->runs += task_on(&r->o, t) && variant_on(&r->o, v) ? r->o.seeds : 0;
        r->runs += timed(&r->o, t) ? NUM_SIZES * TIMED_RUNS : 0;
    }
    for (int v = 0; v < NUM_VARIANTS; v++)
        r->picture[v] = need(NUM_CLASSES * data->pixels, sizeof(float));
    for (size_t i = 0; i < NUM_CLASSES; i++) { /* the first held-out image of class i */
        r->shown[i] = data->num_train + i;
        for (size_t k = data->num_test; k-- > 0;)
            if (data->label[data->num_train + k] == (int)i) r->shown[i] = data->num_train + k;
    }
}

static void report_free(report *r) {
    for (int v = 0; v < NUM_VARIANTS; v++) free(r->picture[v]);
    for (int t = 0; t < NUM_TASKS; t++) free(r->scales[t]);
}

static void print_plan(const report *r, const dataset *data) {
    printf("%s\n", data->name);
    for (int t = 0; t < NUM_TASKS; t++)
        if (task_on(&r->o, t))
            printf("%s: %s of %s, batch %d\n", tasks[t].name, counted((size_t)r->epochs[t], "epoch"),
                   counted(data->num_train / (size_t)r->o.batch, "step"), r->o.batch);
    fflush(stdout);
}

/* The mean loss of an epoch of a run. */
static void report_loss(report *r, int which, int v, int seed, int epoch, double loss) {
    double(*of)[MAX_EPOCHS] = r->loss[which][v];
    of[0][epoch] += loss / r->o.seeds;
    if (seed == 0 || loss < of[1][epoch]) of[1][epoch] = loss;
    if (seed == 0 || loss > of[2][epoch]) of[2][epoch] = loss;
}

/* -------------------------------------------------------------------------------------- tables */

static double mean_of(const report *r, int which, int v, int column) {
    return over_seeds(r->results[which][v][column], NULL, r->o.seeds).mean;
}

/* Milliseconds of a step, and how many times as fast as fp32's that is; 0 if not timed. */
static double median_ms(const report *r, int which, int v, int size) {
    double ms[ROUNDS];
    memcpy(ms, r->ms[which][v][size], sizeof ms);
    qsort(ms, ROUNDS, sizeof *ms, by_value);
    return ms[ROUNDS / 2];
}

static double speed(const report *r, int which, int v, int size) {
    return ratio(median_ms(r, which, FP32, size), median_ms(r, which, v, size));
}

static spread minus_fp32(const report *r, int which, int v) {
    return over_seeds(r->results[which][v][METRIC], r->results[which][FP32][METRIC], r->o.seeds);
}

/* The last columns of a row: for each size, how long a step takes, and how many times as fast as one
   in fp32 that is. */
static void print_times(const report *r, int which, int v) {
    for (int size = 0; size < NUM_SIZES; size++) {
        const double ms = median_ms(r, which, v, size), times = speed(r, which, v, size);
        if (ms > 0.0) printf(" %8.2f", ms);
        else printf(" %8s", "-");
        if (times > 0.0) printf(" %6.2fx", times);
        else printf(" %7s", "-");
    }
    printf("\n");
}

static void print_table(const report *r, int which) {
    const int decimals = which == CLASSIFY ? 2 : 5;
    printf("\n%s: held-out %s, %s %s\n\n", tasks[which].name,
           which == CLASSIFY ? "accuracy in %" : "mean squared error",
           r->o.seeds > 1 ? "mean +- standard deviation over" : "of", counted((size_t)r->o.seeds, "seed"));
    printf("%-19s %-18s %9s %7s %7s %8s\n", "", tasks[which].metric, "flushed %", "lost %", "skipped",
           "scale");
    for (int v = 0; v < NUM_VARIANTS; v++) {
        const spread m = over_seeds(r->results[which][v][METRIC], NULL, r->o.seeds);
        char         sd[32] = ""; /* one seed has none */
        if (!variant_on(&r->o, v)) continue;
        if (r->o.seeds > 1) sprintf(sd, "+- %.*f", decimals, m.sd);
        printf("%-19s %-7.*f %-10s", variants[v].name, decimals, m.mean, sd);
        printf(" %9.4f %7.3f %7.1f %8.0f\n", mean_of(r, which, v, FLUSHED),
               mean_of(r, which, v, LOST), mean_of(r, which, v, SKIPPED),
               mean_of(r, which, v, SCALE));
    }
    printf("\n%-19s %11s %8s %8s %7s %8s %7s\n", "", "bytes/param", "act KiB", "ms/step", "speed",
           "wide ms", "speed");
    for (int v = 0; v < NUM_VARIANTS; v++) {
        if (!variant_on(&r->o, v)) continue;
        printf("%-19s %11.2f %8.1f", variants[v].name, mean_of(r, which, v, PARAM_BYTES),
               mean_of(r, which, v, ACT_BYTES) / 1024.0);
        print_times(r, which, v);
    }
    printf("amp_cpu_tier() is %s: %s\n", amp_cpu_tier(), products_in(amp_cpu_tier()));
}

static void print_ratio(const char *what, double without, double with, const char *by) {
    printf("  %s: %.2g %% without %s, %.2g %% with", what, without, by, with);
    if (with > 0.0 && without > with) printf(", %.0f times less", without / with);
    printf("\n");
}

/* Is the difference to fp32 more than the seeds (2 standard errors) or the allowance explain? Fewer
   than three seeds say too little about their spread to answer. */
static void print_verdict(const report *r, int which, int v) {
    const int    classify = which == CLASSIFY, decimals = classify ? 2 : 6;
    const spread d    = minus_fp32(r, which, v);
    const double fp32 = mean_of(r, which, FP32, METRIC), size = fabs(d.mean);
    printf("  %s minus fp32: %+.*f%s", variants[v].name, decimals, d.mean,
           classify ? " points" : "");
    if (r->o.seeds > 2) printf(" (se %.*f)", decimals, d.se);
    if (!classify) printf(", %+.1f %%", 100.0 * d.mean / fp32);
    if (r->o.seeds > 2)
        printf("%s %s", classify ? "," : ":",
               size <= 2.0 * d.se                 ? "within 2 se"
               : classify && size <= 0.3          ? "within 0.3 points"
               : !classify && size <= 0.02 * fp32 ? "within 2 % of fp32's error"
                                                  : "more than 2 se");
    printf("\n");
    if (v == BF16 && !classify && d.mean > 0.0)
        printf("    bf16 has 8 bits of significand, fp16 has 11: stored activations are rounded\n"
               "    by up to 1 part in 256, not 2048; pixels show that more than classes do\n");
}

static void print_speed(const report *r, int which) {
    printf("  a step in bf16 is %.2f times as fast as in fp32, in scaled fp16 %.2f times;\n",
           speed(r, which, BF16, TRAINED), speed(r, which, FP16, TRAINED));
    printf("  wide (%d times the hidden units, %d images a step) %.2f and %.2f times\n",
           WIDER, WIDE_BATCH, speed(r, which, BF16, WIDE), speed(r, which, FP16, WIDE));
}

/* What the table says, in words that follow from its numbers. */
static void print_reading(const report *r, int which) {
    if (!variant_on(&r->o, FP16_ALONE)) return; /* one variant alone: nothing to compare */
    printf("\nreading\n");
    print_ratio("gradients flushed to zero", mean_of(r, which, FP16_MASTER, FLUSHED),
                mean_of(r, which, FP16, FLUSHED), "loss scaling");
    print_ratio("weight updates lost", mean_of(r, which, FP16_ALONE, LOST),
                mean_of(r, which, FP16_MASTER, LOST), "master weights");
    if (!variant_on(&r->o, FP32)) return;
    for (int v = FP32 + 1; v < NUM_VARIANTS; v++) print_verdict(r, which, v);
    printf("  fp16 keeps %.0f %% of fp32's bytes of activations\n",
           100.0 * mean_of(r, which, FP16, ACT_BYTES) / mean_of(r, which, FP32, ACT_BYTES));
    print_speed(r, which);
}

static void print_parity(const report *r, int which) {
    const task *t = &tasks[which];
    printf("parity %s:", t->name);
    for (int v = 0; v < NUM_VARIANTS; v++) {
        const spread d = minus_fp32(r, which, v);
        if (v == FP16_ALONE || v == FP16_MASTER) continue;
        printf(" %s %.*f%s", type_names[variants[v].type], t->decimals,
               mean_of(r, which, v, METRIC), t->unit);
        if (v != FP32) print_difference(&d, t->decimals, r->o.seeds);
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

/* What each variant costs, as bars under a heading. WIDE_MS is no column of the results. */
enum { BAR_HEIGHT = 19, BARS_HEAD = 28, WIDE_MS = NUM_COLUMNS };

static double draw_bars(FILE *f, double y, const report *r, int which, int column,
                        const char *heading) {
    double value[NUM_VARIANTS], most = 1e-9;
    for (int v = 0; v < NUM_VARIANTS; v++) {
        value[v] = column == WIDE_MS ? median_ms(r, which, v, WIDE) : mean_of(r, which, v, column);
        if (value[v] > most) most = value[v];
    }
    svg_text(f, 12.0, y + BARS_HEAD - 8.0, "class=\"soft\"", heading);
    y += BARS_HEAD;
    for (int v = 0; v < NUM_VARIANTS; v++) {
        const double width = 1.0 + 170.0 * value[v] / most;
        char         text[64];
        if (!variant_on(&r->o, v)) continue;
        sprintf(text, "%.2g %%", value[v]);
        if (column == WIDE_MS) sprintf(text, "%.3g ms", value[v]);
        if (column == WIDE_MS && v != FP32 && speed(r, which, v, WIDE) > 0.0)
            sprintf(text + strlen(text), ", %.2fx", speed(r, which, v, WIDE));
        svg_text(f, 172.0, y + 11.0, "text-anchor=\"end\"", variants[v].name);
        fprintf(f, "<rect x=\"180\" y=\"%.1f\" width=\"%.1f\" height=\"13\" class=\"b%d\"/>\n", y,
                width, v);
        svg_text(f, 186.0 + width, y + 11.0, "", text);
        y += BAR_HEIGHT;
    }
    return y;
}

/* What differs between the variants, while their losses are alike. */
static void draw_costs(const report *r) {
    const char *const heading[] = {
        "gradients flushed to zero", "weight updates lost",
        r->o.dtype == ALL_TYPES ? "a step of the wide network, and how many times as fast as fp32"
                                : "a step of the wide network"};
    static const int column[] = {FLUSHED, LOST, WIDE_MS};
    const int        as_fp32 = multiplies_as_fp32(amp_cpu_tier());
    char             title[NUM_TASKS][240];
    int              height = 12, rows = 0;
    for (int v = 0; v < NUM_VARIANTS; v++) rows += variant_on(&r->o, v);
    for (int t = 0; t < NUM_TASKS; t++) {
        if (!task_on(&r->o, t)) continue;
        sprintf(title[t], "%s", tasks[t].name);
        if (variant_on(&r->o, FP16_ALONE))
            sprintf(title[t] + strlen(title[t]), ": fp16 alone loses %.2g %% of its updates",
                    mean_of(r, t, FP16_ALONE, LOST));
        if (r->o.dtype == ALL_TYPES)
            sprintf(title[t] + strlen(title[t]), "; wide steps in bf16 are %s as in fp32%s%s%s",
                    times_as_fast(speed(r, t, BF16, WIDE)), as_fp32 ? ", as which " : "",
                    as_fp32 ? amp_cpu_tier() : "", as_fp32 ? " multiplies it" : "");
        height += 16 + LEADING * svg_lines(NULL, 0.0, 15.0, 1, title[t]) +
                  (2 + timed(&r->o, t)) * (BARS_HEAD + rows * BAR_HEIGHT);
    }
    output to = svg_begin(r->o.out, "train_costs.svg", height);
    double y  = 8.0;
    for (int t = 0; t < NUM_TASKS; t++) {
        if (!task_on(&r->o, t)) continue;
        y += LEADING * svg_lines(to.f, y + 16.0, 15.0, 1, title[t]);
        for (int c = 0; c < 2 + timed(&r->o, t); c++)
            y = draw_bars(to.f, y, r, t, column[c], heading[c]);
        y += 16.0;
    }
    svg_end(&to, 1);
}

/* Behind the task's name: how far from fp32's the mean losses of the last epoch are. */
static void say_end(char *title, const report *r, int which, const plot *p) {
    int    far  = FP32;
    double most = 1.0; /* times fp32's */
    for (int v = FP32 + 1; v < NUM_VARIANTS; v++) {
        const double times = end_of(p, v, 1) / end_of(p, FP32, 1);
        if (fabs(times - 1.0) > fabs(most - 1.0)) far = v, most = times;
    }
    if (fabs(most - 1.0) < 0.1)
        title += sprintf(title, ": all end within %.2g %% of fp32's loss", 100.0 * fabs(most - 1.0));
    else title += sprintf(title, ": %s ends at %.2f times fp32's loss", variants[far].name, most);
    sprintf(title, " (mean of the last %s)",
            counted(r->steps[which] / (size_t)r->epochs[which], "step"));
}

static void draw_losses(const report *r) {
    plot p[2];
    char title[2][160], what[2][240], axis[2][32]; /* of its own: tasks differ in length */
    memset(p, 0, sizeof p);
    for (int t = 0; t < NUM_TASKS; t++) {
        if (!task_on(&r->o, t)) continue;
        p[t].count = (size_t)r->epochs[t];
        for (int v = 0; v < NUM_VARIANTS; v++) {
            const double(*of)[MAX_EPOCHS] = r->loss[t][v];
            if (!variant_on(&r->o, v)) continue;
            p[t].name[v] = variants[v].scaling ? "fp16, scaled" : variants[v].name;
            p[t].y[v]    = of[0];
            if (r->o.seeds > 1 && v <= FP16_ALONE) p[t].low[v] = of[1], p[t].high[v] = of[2];
        }
        p[t].minus = coincide(&p[t]);
        sprintf(title[t], "%s", tasks[t].name);
        if (r->o.dtype == ALL_TYPES) say_end(title[t] + strlen(title[t]), r, t, &p[t]);
        describe(what[t], t == CLASSIFY ? "cross-entropy in training"
                                        : "mean squared error in training",
                 &p[t], r->o.seeds, r->o.resume != NULL);
        sprintf(axis[t], "epoch of %s", tasks[t].name);
        p[t].title   = title[t];
        p[t].what    = what[t];
        p[t].x_title = axis[t];
    }
    draw_curves(r->o.out, "train_loss.svg", p);
}

static void draw_pictures(const report *r, const dataset *data) {
    const char *const dir = r->o.out;
    plot              scale[2];
    image_row         rows[4] = {{"original", {0}}};
    char              title[2][64], what[160], axis[2][32];
    int               num_rows = 1;
    memset(scale, 0, sizeof scale);
    sprintf(what, "loss scale of fp16, first seed; a dot: overflow, step skipped; growth_interval %d "
                  "(default 2000)", GROWTH_INTERVAL);
    for (int t = 0; t < NUM_TASKS; t++) {
        int overflows = 0;
        if (!task_on(&r->o, t)) continue;
        for (size_t i = 1; i < r->steps[t]; i++)
            overflows += drawable(r->scales[t][i]) && r->scales[t][i] < r->scales[t][i - 1];
        if (!overflows) sprintf(title[t], "%s: the scale is never halved", tasks[t].name);
        else
            sprintf(title[t], "%s: the scale is halved %s", tasks[t].name,
                    counted((size_t)overflows, "time"));
        sprintf(axis[t], "step of %s", tasks[t].name);
        scale[t].title   = title[t];
        scale[t].what    = what;
        scale[t].x_title = axis[t];
        scale[t].count   = r->steps[t];
        scale[t].y[0]    = r->scales[t];
    }
    for (int i = 0; i < SHOWN; i++) rows[0].image[i] = data->image + r->shown[i] * data->pixels;
    for (int v = 0; v < NUM_VARIANTS; v++) {
        if (!variant_on(&r->o, v) || v == FP16_ALONE || v == FP16_MASTER) continue;
        for (int i = 0; i < SHOWN; i++) rows[num_rows].image[i] = r->picture[v] + (size_t)i * data->pixels;
        rows[num_rows++].label = type_names[variants[v].type];
    }
    draw_costs(r);
    draw_losses(r);
    const int scales = draw_scales(dir, "train_scale.svg", scale);
    if (task_on(&r->o, RECONSTRUCT))
        draw_images(dir, "train_images.svg", "Held-out images, reconstructed", rows, num_rows,
                    r->o.dtype == ALL_TYPES ? 1 : -1, data->side);
    printf("\npictures: %s/train_costs.svg, train_loss.svg%s%s\n\n", dir,
           scales ? ", train_scale.svg" : "", task_on(&r->o, RECONSTRUCT) ? ", train_images.svg" : "");
}

static void print_results(const report *r, const dataset *data) {
    const options *o = &r->o;
    progress_end();
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

#endif /* TRAIN_REPORT_H */
