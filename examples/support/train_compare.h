/* train_compare.h - training in three types, compared: what gpt.c, gpt_cuda.cu, cnn.c, ncf.c share

   It has the common options, then tables, their reading, curves and the last lines. Nothing here
   knows a network: a run passes losses, times, counts and bytes. A subject has the words for what is
   trained. C and C++.

   Before this is included, a program defines PROGRAM and options, a struct that has at least

       const char *policy, *tier, *out, *save, *resume;
       int         batch, steps, seeds, dtype, save_every, stop_after, check;
       float       lr;                                                                            */

#ifndef TRAIN_COMPARE_H
#define TRAIN_COMPARE_H

#include "amp.h"
#include "train_cli.h"
#include "train_numbers.h"
#include "train_pictures.h"
#include "train_save.h"

#include <math.h>
#include <string.h>

enum { MAX_SEEDS = 20, MAX_BATCH = 4096, MAX_STEPS = 1000000, HELD_POINTS = 10 };
enum { STATE, ACTIVATIONS, WORK, NUM_MEMORIES };

/* What is trained, and its words. */
typedef struct subject {
    const char *name;                 /* in the last lines                                        */
    const char *metric, *unit;        /* what held-out data give: "loss", " in nats per byte"     */
    int         decimals, short_decimals; /* of it: in the table, in the last lines               */
    double      bar;                  /* how far from fp32 is near: points, or a share of fp32's  */
    int         in_points;            /* nonzero: the metric is a percentage                      */
    const char *items;                /* what a step takes, and how many of them                  */
    double      items_per_step;
    const char *picture;              /* its file                                                 */
    const char *held_y, *learned_y;   /* what its plots show: held-out loss, loss in training     */
} subject;

/* -------------------------------------------------------------------------------------- options */

/* A saved or resumed run is of one type and one seed. */
static int one_run(const options *o) { return o->save || o->resume || o->stop_after; }

static int type_on(const options *o, int type) {
    return o->dtype == ALL_TYPES || o->dtype == type;
}

/* The instructions that amp.h can use on this machine. */
static const char *tiers_here(void) {
    static const char *const tiers[] = {"amx",  "avx512_bf16", "avx512", "avx2", "neon_bf16",
                                        "neon", "c"};
    static char here[64] = "";
    for (int i = 0; i < 7; i++)
        if (amp_cpu_force_tier(tiers[i]) == AMP_OK)
            strcat(strcat(here, *here ? ", " : ""), tiers[i]);
    amp_cpu_force_tier(NULL);
    return here;
}

/* What all programs say of these options: in front of those of their own, and behind. */
static void print_first_options(const options *o, const char *steps) {
    printf("  --dtype fp32|fp16|bf16|all          (all)\n"
           "  --steps N         optimizer steps (%s)\n"
           "  --seeds N         runs of each type (3; 1 of a run that is saved or resumed)\n"
           "  --batch N         of a step (%d)\n"
           "  --lr X            largest learning rate (%g)\n"
           "  --out DIR         where pictures go, made if missing (%s)\n"
           "  --quick           a toy, in seconds, which the other options change\n"
           "  --quiet           no progress\n",
           steps, o->batch, (double)o->lr, o->out);
}

static void print_last_options(const options *o, const char *policy, const char *one) {
    if (policy)
        printf("  --policy WORDS    types of products, as amp_autocast_override reads them:\n"
               "                    %s (all in half)\n"
               "  --tier NAME       instructions of amp.h (the best):\n"
               "                    %s\n"
               "  --check           gradients beside finite differences, allocations of a step\n"
               "  --report FILE     lines of amp.h's report, for examples/report.c: of fp16, if\n"
               "                    it runs, and of the first seed\n",
               policy, tiers_here());
    printf("  --help            this text\n\n"
           "With one %s:\n\n"
           "  --save FILE       write the state there, every %d steps (--save-every N)\n"
           "  --resume FILE     continue from it; with the same other options the end has\n"
           "                    the bits of an uninterrupted run\n"
           "  --stop-after N    end after step N, as Ctrl-C does after the one at hand\n", one,
           o->save_every);
}

/* The options of the program and of all; quick and check say what --quick and --check mean. A
   program without check is for a GPU, and has no --policy, --tier and --report either. */
static void parse_all(options *o, int argc, char **argv, const known_option *own, size_t num_own,
                      void (*help)(void), void (*quick)(options *), void (*check)(options *)) {
    int                seeds = 0, flag; /* of what is looked for first */
    const known_option common[] = {
        flag_option("--quick", &flag), word_option("--out", &o->out), word_option("--save", &o->save),
        word_option("--resume", &o->resume), choice_option("--dtype", type_names, &o->dtype),
        size_option("--batch", &o->batch, MAX_BATCH), size_option("--steps", &o->steps, MAX_STEPS),
        count_option("--seeds", &seeds, MAX_SEEDS),
        count_option("--save-every", &o->save_every, MAX_STEPS),
        count_option("--stop-after", &o->stop_after, MAX_STEPS), real_option("--lr", &o->lr, 1.0),
        flag_option("--check", &flag), word_option("--policy", &o->policy),
        word_option("--tier", &o->tier), word_option("--report", &o->report)};
    const size_t num_common = sizeof common / sizeof *common - (check ? 0 : 4);
    if (is_given("--quick", argc, argv)) quick(o); /* first, wherever it is: options change it */
    if (check && is_given("--check", argc, argv)) check(o);
    parse_both(argc, argv, own, num_own, common, num_common, help);
    needs(argc, argv, "--save-every", "--save");
    if (o->steps) refuse_stop(o->stop_after, o->steps, "step");
    if (one_run(o) && (o->dtype == ALL_TYPES || seeds > 1))
        fail(2, "--save, --resume, --stop-after", "need a single run",
             "add --dtype fp32, fp16 or bf16, and leave out --seeds");
    if (o->tier && amp_cpu_force_tier(o->tier) != AMP_OK)
        bad_option("--tier", o->tier, tiers_here());
    o->seeds = one_run(o) ? 1 : seeds ? seeds : o->seeds;
}

/* ------------------------------------------------------------------------------------ optimizer */

/* AdamW, with a loss scale where the type wants one. */
static amp_optimizer_desc adamw_in(amp_dtype type) {
    amp_optimizer_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.dtype = type; /* of the copies that products read; the masters are fp32 */
    desc.kind  = AMP_KIND_ADAMW;
    if (type == AMP_F16) { /* a moving scale, which starts at 65536 */
        desc.scaler.growth_interval = 50; /* default 2000: for runs of more than 1000 steps */
    } else { /* fp32 and bf16 need none; steps that are not finite are skipped */
        desc.scaler.preset = AMP_PRESET_NONE;
    }
    return desc;
}

/* --------------------------------------------------------------------------------------- report */

typedef struct report {
    options  o;
    subject  of;
    const char *machine;                 /* amp.h's tier, or a GPU                                */
    double  *loss[3], *held[3];          /* training loss of each step, held-out loss at points,
                                            of one seed behind the other                          */
    double  *time[3];                    /* seconds of each step of each seed                     */
    size_t   num_times[3];
    double   last[3][MAX_SEEDS];         /* the metric at the end                                 */
    double   skipped[3], scale[3];       /* means over the seeds                                  */
    size_t   bytes[3][NUM_MEMORIES], params;
    uint64_t steps;                      /* taken by the last run                                 */
} report;

/* The held-out loss is also taken HELD_POINTS times on the way. */
static int held_every(const options *o) {
    return o->steps > HELD_POINTS ? o->steps / HELD_POINTS : 1;
}

static int held_point(const options *o, int step) { return (step + 1) % held_every(o) == 0; }

static void report_init(report *r, const subject *of, double items_per_step, const char *machine) {
    const options *o = &r->o;
    r->of                = *of;
    r->of.items_per_step = items_per_step;
    r->machine           = machine;
    for (int v = 0; v < 3; v++) {
        r->loss[v] = (double *)need((size_t)o->steps * (size_t)o->seeds, sizeof(double));
        r->held[v] = (double *)need((size_t)o->steps * (size_t)o->seeds, sizeof(double));
        r->time[v] = (double *)need((size_t)o->steps * (size_t)o->seeds, sizeof(double));
    }
}

static void report_free(report *r) {
    for (int v = 0; v < 3; v++) {
        free(r->loss[v]);
        free(r->held[v]);
        free(r->time[v]);
    }
}

static void report_step(report *r, int v, int seed, int step, double loss, double time) {
    r->loss[v][seed * r->o.steps + step] = loss;
    r->time[v][r->num_times[v]++] = time;
}

static void report_held(report *r, int v, int seed, int step, double loss) {
    r->held[v][seed * r->o.steps + (step + 1) / held_every(&r->o) - 1] = loss;
}

/* Of one run, after a step that is done now: the one after which it ends. */
static int report_last(report *r, int last, int step) {
    const int now = last_of(last, step, r->o.steps, "step");
    if (now < last) r->o.stop_after = now;
    return now;
}

/* After a step of type v. */
static void report_progress(const report *r, int v, int seed, int step, uint64_t skipped) {
    const options *o = &r->o;
    const double   time = r->time[v][r->num_times[v] - 1];
    char           run[48];
    sprintf(run, "%.16s %s seed %d/%d", r->of.name, type_names[v], seed + 1, o->seeds);
    progress_step((seed + (step + 1.0) / o->steps) / o->seeds, run, step + 1, o->steps,
                  r->loss[v][seed * o->steps + step], time > 0.0 ? r->of.items_per_step / time : 0.0,
                  r->of.items, (unsigned long)skipped);
}

static void report_end(report *r, int v, int seed, double metric, const amp_status *status,
                       const size_t *bytes, size_t params) {
    r->last[v][seed] = metric;
    r->skipped[v] += (double)status->skipped / r->o.seeds;
    r->scale[v] += (double)status->loss_scale / r->o.seeds;
    memcpy(r->bytes[v], bytes, sizeof r->bytes[v]);
    r->params = params;
    r->steps  = status->steps;
}

/* Items per second, by the median of all steps; 0 if there were none. */
static double speed(const report *r, int v) {
    double *time = r->time[v];
    if (r->num_times[v] == 0) return 0.0;
    qsort(time, r->num_times[v], sizeof *time, by_value);
    const double median = time[r->num_times[v] / 2];
    return median > 0.0 ? r->of.items_per_step / median : 0.0;
}

static double mebibytes(const report *r, int v) {
    double sum_of = 0.0;
    for (int i = 0; i < NUM_MEMORIES; i++) sum_of += (double)r->bytes[v][i];
    return sum_of / 1048576.0;
}

/* ----------------------------------------------------------------------------- tables, pictures */

static void print_table(const report *r) {
    printf("\nheld-out %s%s:\n%s %s; %s per s; bytes of state per\n"
           "parameter; MiB of activations, of all\n\n",
           r->of.metric, r->of.unit,
           r->o.seeds > 1 ? "mean +- standard deviation over" : "of", counted((size_t)r->o.seeds, "seed"),
           r->of.items);
    printf("%-4s %-18s %7s %8s %8s %6s %8s %7s %6s\n", "", r->of.metric, "skipped", "scale", "per s",
           "speed", "B/param", "act MiB", "MiB");
    for (int v = 0; v < 3; v++) {
        const spread s = over_seeds(r->last[v], NULL, r->o.seeds);
        char         metric[64], times[32] = "-"; /* one seed has no spread */
        if (!type_on(&r->o, v)) continue;
        sprintf(metric, "%.*f", r->of.decimals, s.mean);
        if (r->o.seeds > 1) sprintf(metric + strlen(metric), " +- %.*f", r->of.decimals, s.sd);
        if (speed(r, 0) > 0.0) sprintf(times, "%.2fx", speed(r, v) / speed(r, 0));
        printf("%-4s %-18s %7.1f %8.0f %8.0f %6s %8.2f %7.1f %6.1f\n", type_names[v],
               metric, r->skipped[v], r->scale[v], speed(r, v), times,
               (double)r->bytes[v][STATE] / (double)r->params,
               (double)r->bytes[v][ACTIVATIONS] / 1048576.0, mebibytes(r, v));
    }
    if (*products_in(r->machine))
        printf("amp_cpu_tier() is %s: %s\n", r->machine, products_in(r->machine));
}

/* Fewer than three seeds say too little about their spread. */
static void print_judgment(const report *r, const spread *d, double fp32) {
    const double bar = r->of.in_points ? r->of.bar : r->of.bar * fp32;
    if (r->of.in_points) printf(" points");
    else printf(", %+.2f %% of the %s", 100.0 * d->mean / fp32, r->of.metric);
    if (r->o.seeds <= 2) printf("\n");
    else if (fabs(d->mean) <= 2.0 * d->se) printf(": within 2 se\n");
    else if (fabs(d->mean) > bar) printf(": more than 2 se\n");
    else if (r->of.in_points) printf(": within %g\n", bar);
    else printf(": within %g %%\n", 100.0 * r->of.bar);
}

/* What the table says, in words that follow from its numbers. */
static void print_reading(const report *r) {
    const double fp32 = over_seeds(r->last[0], NULL, r->o.seeds).mean;
    if (r->o.dtype != ALL_TYPES) return;
    printf("\nreading: means over the seeds\n");
    for (int v = AMP_F16; v <= AMP_BF16; v++) {
        const spread d = over_seeds(r->last[v], r->last[0], r->o.seeds);
        printf("  %s minus fp32: %+.*f", type_names[v], r->of.decimals, d.mean);
        if (r->o.seeds > 2) printf(" (se %.*f)", r->of.decimals, d.se);
        print_judgment(r, &d, fp32);
    }
    for (int v = AMP_F16; v <= AMP_BF16; v++)
        printf("  %s trains %.2f times as fast as fp32, with %.0f %% of its bytes of activations\n",
               type_names[v], speed(r, v) / speed(r, 0),
               100.0 * (double)r->bytes[v][ACTIVATIONS] / (double)r->bytes[0][ACTIVATIONS]);
}

/* Of a curve, over the seeds, the mean of every so many values, and between what they are. Where a run has
   stopped among them there is none. */
static void add_curve(plot *p, int curve, const double *x, int each, size_t every, int seeds,
                      int band) {
    double *y = (double *)need(3 * p->count, sizeof *y), *low = y + p->count, *high = low + p->count;
    for (size_t i = 0; i < p->count; i++) {
        for (int seed = 0; seed < seeds; seed++) {
            const double *value = x + (size_t)(seed * each) + i * every;
            double        mean  = 0.0;
            int           whole = 1;
            for (size_t j = 0; j < every; j++) whole &= drawable(value[j]), mean += value[j] / (double)every;
            if (!whole) mean = 0.0;
            y[i] += mean / seeds;
            if (seed == 0 || mean < low[i]) low[i] = mean;
            if (seed == 0 || mean > high[i]) high[i] = mean;
        }
    }
    p->y[curve] = y;
    if (band && seeds > 1) p->low[curve] = low, p->high[curve] = high;
}

/* By how many percent the ends of two curves are from fp32's; an end is the mean of so many values. */
static double apart_at_end(const plot *p, const int *curve, size_t values) {
    const double fp32 = end_of(p, curve[AMP_F32], values);
    return 100.0 * fmax(fabs(end_of(p, curve[AMP_F16], values) / fp32 - 1.0),
                        fabs(end_of(p, curve[AMP_BF16], values) / fp32 - 1.0));
}

/* Held-out loss by seconds: steps times the median of a step. Then the loss in training by steps, which
   is noisy: means of as many steps as make about a hundred points, and at the end of a tenth of all. */
static void draw_picture(const report *r) {
    const options *o     = &r->o;
    const subject *s     = &r->of;
    const size_t   every = (size_t)(o->steps + 99) / 100;
    const int      curve[3] = {0, 3, 4}; /* in the colors that train.c has for them */
    char           title[2][160], what[2][240];
    plot           plots[2];
    memset(plots, 0, sizeof plots);
    for (int p = 0; p < 2; p++) {
        const size_t width = p ? every : (size_t)held_every(o);
        plots[p].count   = (size_t)o->steps / width;
        plots[p].x_title = p ? "step" : "seconds of training";
        for (int v = 0; v < 3; v++) {
            if (!type_on(o, v)) continue;
            const double rate = speed(r, v);
            plots[p].name[curve[v]] = type_names[v];
            plots[p].step[curve[v]] =
                (double)width * (p || rate <= 0.0 ? 1.0 : s->items_per_step / rate);
            add_curve(&plots[p], curve[v], p ? r->loss[v] : r->held[v], o->steps, p ? every : 1,
                      o->seeds, !p && v != AMP_F16);
        }
        plots[p].minus = p && coincide(&plots[p]);
        sprintf(title[p], p ? "%.20s, in training" : "%.20s, held out", s->name);
        describe(what[p], p ? s->learned_y : s->held_y, &plots[p], o->seeds, o->resume != NULL);
        plots[p].title = title[p];
        plots[p].what  = what[p];
    }
    if (o->dtype == ALL_TYPES) {
        const size_t last = (plots[1].count + 9) / 10;
        const double fp32 = over_seeds(r->last[0], NULL, o->seeds).mean;
        double       apart = 0.0; /* as the table has it */
        for (int v = AMP_F16; v <= AMP_BF16; v++)
            apart = fmax(apart, fabs(over_seeds(r->last[v], r->last[0], o->seeds).mean));
        sprintf(title[0], "%.20s: bf16 is %s as fp32, fp16 %s; both end within %.2g %s of its %.*s", s->name,
                times_as_fast(speed(r, AMP_BF16) / speed(r, AMP_F32)),
                times_as_fast(speed(r, AMP_F16) / speed(r, AMP_F32)),
                s->in_points ? apart : 100.0 * apart / fp32, s->in_points ? "points" : "%",
                (int)strcspn(s->metric, "%,"), s->metric);
        sprintf(title[1], "%.20s: the mean of the last %s is within %.2g %% of fp32's", s->name,
                counted(last * every, "step"), apart_at_end(&plots[1], curve, last));
    }
    draw_curves(o->out, s->picture, plots);
    for (int k = 0; k < 2 * MAX_CURVES; k++) free((void *)(uintptr_t)plots[k % 2].y[k / 2]);
    printf("\npicture: %s/%s\n\n", o->out, s->picture);
}

static void print_results(const report *r) {
    progress_end();
    print_table(r);
    print_reading(r);
    draw_picture(r);
}

/* In forms that do not change, for programs. One run says how it ended with all digits. */
static void print_last_lines(const report *r) {
    const options *o    = &r->o;
    const char    *name = r->of.name;
    if (one_run(o))
        printf("final %s %s: step %lu of %d, held-out %s %.17g\n", name, type_names[o->dtype],
               (unsigned long)r->steps, o->steps, r->of.metric, r->last[o->dtype][0]);
    if (one_run(o) && o->save && r->steps < (uint64_t)o->steps)
        printf("continue with the same options and --resume %s\n", o->save);
    if (o->dtype != ALL_TYPES) return; /* nothing to compare */
    const int digits = r->of.short_decimals;
    printf("parity %s:", name);
    for (int v = 0; v < 3; v++) {
        const spread d = over_seeds(r->last[v], r->last[0], o->seeds);
        printf(" %s %.*f", type_names[v], digits, over_seeds(r->last[v], NULL, o->seeds).mean);
        if (v != AMP_F32) print_difference(&d, digits, o->seeds);
    }
    printf(" seeds %d\nspeed %s:", o->seeds, name);
    for (int v = 0; v < 3; v++) printf(" %s %.0f", type_names[v], speed(r, v));
    printf(" %s/s\nmemory %s:", r->of.items, name);
    for (int v = 0; v < 3; v++) printf(" %s %.0f", type_names[v], mebibytes(r, v));
    printf(" MiB\n");
}

#endif /* TRAIN_COMPARE_H */
