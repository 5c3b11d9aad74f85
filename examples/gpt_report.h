/* gpt_report.h - the options of gpt.c, the text, and what is said of the runs

   Nothing here knows the network: a run hands over losses, times, counts and bytes.              */

#ifndef GPT_REPORT_H
#define GPT_REPORT_H

#include "amp.h"
#include "train_cli.h"
#include "train_numbers.h"
#include "train_svg.h"

#include <math.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#else
#include <time.h>
#endif

#define PICTURE "gpt_loss.svg"

enum { MAX_LAYERS = 48, MAX_SEEDS = 20, MAX_STEPS = 1000000, HELD_POINTS = 6, HELD_WINDOWS = 64 };
enum { STATE, ACTIVATIONS, WORK, NUM_MEMORIES };
enum { ALL_TYPES = AMP_BF16 + 1 };

static const char *const type_names[] = {"fp32", "fp16", "bf16", "all", NULL}; /* as amp_dtype */

static void *need(size_t count, size_t size) {
    void *p = calloc(count ? count : 1, size);
    if (!p) fail(1, "memory", "there is not enough", "choose a smaller --batch, --layers, --width");
    return p;
}

/* -------------------------------------------------------------------------------------- options */

typedef struct options {
    const char *text, *prompt, *policy, *tier, *out, *save, *resume;
    int         layers, width, heads, context, batch, steps, seeds, dtype, write;
    int         save_every, stop_after, check;
    float       lr;
} options;

static const options standard = {"amp.h", "/* ", NULL, NULL, "build", NULL, NULL,
                                 2, 256, 4, 64, 8, 250, 0, ALL_TYPES, 400, 25, 0, 0, 1.5e-3f};

/* A saved or resumed run is of one type and one seed. */
static int one_run(const options *o) { return o->save || o->resume || o->stop_after; }

static int type_on(const options *o, int type) {
    return o->dtype == ALL_TYPES || o->dtype == type;
}

static void print_help(void) {
    const options *o = &standard;
    printf("usage: gpt [options]\n\n"
           "Train a GPT on the bytes of a text in fp32, fp16 and bf16; compare; let it write.\n\n"
           "  --text FILE       what to learn; a tenth of it is held out (%s)\n"
           "  --dtype fp32|fp16|bf16|all          (all)\n"
           "  --steps N         optimizer steps (%d)\n"
           "  --seeds N         runs of each type (3; 1 of a run that is saved or resumed)\n"
           "  --layers N  --width N  --heads N    the network (%d, %d, %d)\n"
           "  --context N  --batch N              bytes in a sequence, sequences in a step (%d, "
           "%d)\n"
           "  --lr X            largest learning rate (%g)\n"
           "  --policy WORDS    types of products, as amp_autocast_override reads them:\n"
           "                    op:bmm=fp32, block0=fp32, head=fp32 (all in half)\n"
           "  --tier NAME       instructions of amp.h: amx, avx512, avx2, neon, c (the best)\n"
           "  --prompt TEXT     what the writing continues (\"%s\")\n"
           "  --write N         bytes to write (%d)\n"
           "  --out DIR         where the picture goes (%s)\n"
           "  --quick           a toy, in seconds; options after it change it\n"
           "  --check           gradients beside finite differences, allocations of a step\n"
           "  --help            this text\n\n"
           "With one --dtype:\n\n"
           "  --save FILE       write the state there, every %d steps (--save-every N)\n"
           "  --resume FILE     continue from it; with the same other options the end has the\n"
           "                    bits of an uninterrupted run\n"
           "  --stop-after N    end after step N, as an interruption would\n",
           o->text, o->steps, o->layers, o->width, o->heads, o->context, o->batch, (double)o->lr,
           o->prompt, o->write, o->out, o->save_every);
}

/* Products too small for tiles, and few steps: the machinery runs, and nothing is learned well. */
static void make_quick(options *o) {
    o->layers  = 2;
    o->width   = 64;
    o->context = 32;
    o->batch   = 4;
    o->steps   = 40;
    o->seeds   = 2;
    o->write   = 80;
}

static void make_check(options *o) {
    o->check   = 1;
    o->layers  = 2;
    o->width   = 32;
    o->heads   = 2;
    o->context = 16;
    o->batch   = 3;
    o->steps   = 10;
}

static float parse_rate(const char *option, const char *value) {
    char        *end;
    const double x = strtod(value, &end);
    if (end == value || *end || !(x > 0.0) || !(x <= 1.0))
        bad_option(option, value, "a number above 0 and at most 1");
    return (float)x;
}

static int parse_type(const char *option, const char *value) {
    int type = 0;
    while (type_names[type] && strcmp(value, type_names[type]) != 0) type++;
    if (!type_names[type]) bad_option(option, value, "fp32, fp16, bf16 or all");
    return type;
}

static void refuse_contradictions(options *o) {
    char value[64];
    sprintf(value, "--width %d --heads %d", o->width, o->heads);
    if (o->width % o->heads != 0)
        fail(2, value, "the width is no multiple of the heads", "choose another --width");
    if (one_run(o) && (o->dtype == ALL_TYPES || o->seeds > 1))
        fail(2, "--save, --resume, --stop-after", "they are for one run",
             "add --dtype fp32, fp16 or bf16, and leave out --seeds");
    if (o->tier && amp_cpu_force_tier(o->tier) != AMP_OK)
        bad_option("--tier", o->tier, "one that this machine has: amx, avx512, avx2, neon or c");
    if (!o->seeds) o->seeds = one_run(o) ? 1 : 3;
}

static options parse_options(int argc, char **argv) {
    options o = standard;
    const struct {
        const char *name, **words;
        int        *number, max;
    } known[] = {
        {"--text", &o.text, NULL, 0},           {"--prompt", &o.prompt, NULL, 0},
        {"--policy", &o.policy, NULL, 0},       {"--tier", &o.tier, NULL, 0},
        {"--out", &o.out, NULL, 0},
        {"--save", &o.save, NULL, 0},           {"--resume", &o.resume, NULL, 0},
        {"--layers", NULL, &o.layers, MAX_LAYERS}, {"--width", NULL, &o.width, 4096},
        {"--heads", NULL, &o.heads, 256},       {"--context", NULL, &o.context, 4096},
        {"--batch", NULL, &o.batch, 4096},      {"--steps", NULL, &o.steps, MAX_STEPS},
        {"--seeds", NULL, &o.seeds, MAX_SEEDS}, {"--write", NULL, &o.write, 1000000},
        {"--save-every", NULL, &o.save_every, MAX_STEPS},
        {"--stop-after", NULL, &o.stop_after, MAX_STEPS}};
    const size_t num_known = sizeof known / sizeof *known;
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        size_t      k    = 0;
        if (strcmp(name, "--help") == 0) {
            print_help();
            exit(0);
        }
        if (strcmp(name, "--quick") == 0 || strcmp(name, "--check") == 0) {
            (name[2] == 'q' ? make_quick : make_check)(&o);
            continue;
        }
        while (k < num_known && strcmp(name, known[k].name) != 0) k++;
        const int other = strcmp(name, "--lr") == 0 ? 1 : strcmp(name, "--dtype") == 0 ? 2 : 0;
        if (k == num_known && !other) fail(2, name, "is not an option", "see --help");
        if (i + 1 == argc || !*argv[i + 1]) fail(2, name, "needs a value", "see --help");
        const char *value = argv[++i];
        if (other == 1) o.lr = parse_rate(name, value);
        else if (other == 2) o.dtype = parse_type(name, value);
        else if (known[k].words) *known[k].words = value;
        else *known[k].number = parse_count(name, value, known[k].max);
    }
    if (one_run(&o) && o.dtype != ALL_TYPES && o.seeds == 2) o.seeds = 0; /* --quick's */
    refuse_contradictions(&o);
    return o;
}

/* ----------------------------------------------------------------------------------------- text */

typedef struct text {
    unsigned char *bytes, *train, *held;
    size_t         num_train, num_held;
    unsigned long  checksum; /* of the file */
} text;

static size_t held_windows(const text *t, size_t context) {
    const size_t windows = (t->num_held - 1) / context;
    return windows < HELD_WINDOWS ? windows : HELD_WINDOWS;
}

/* Every tenth piece of 2048 bytes is held out (of less in a short text), so that both parts are of
   the same kind. */
static void load_text(text *t, const options *o) {
    char   problem[96];
    FILE  *f = fopen(o->text, "rb");
    size_t room = 1 << 16, size = 0, got, piece;
    if (!f) fail(1, o->text, strerror(errno), "give a file with --text, or run this beside amp.h");
    unsigned char *all = need(room, 1);
    while ((got = fread(all + size, 1, room - size, f)) > 0) {
        size += got;
        if (size < room) continue;
        all = realloc(all, room *= 2);
        if (!all) fail(1, o->text, "is too large for memory", "give a smaller file");
    }
    if (ferror(f)) fail(1, o->text, "cannot be read", "give a text file with --text");
    fclose(f);
    piece = size / 10 < 2048 ? size / 10 : 2048;
    if (piece < (size_t)o->context + 2) {
        sprintf(problem, "has %lu bytes, fewer than ten contexts", (unsigned long)size);
        fail(1, o->text, problem, "give a longer --text, or a smaller --context");
    }
    t->bytes = need(size, 1);
    t->train = t->bytes;
    for (int held = 0; held < 2; held++) {
        if (held) t->held = t->bytes + t->num_train;
        for (size_t i = 0; i < size; i += piece) {
            const size_t count = size - i < piece ? size - i : piece;
            if ((i / piece % 10 == 9) != held) continue;
            if (held) memcpy(t->held + t->num_held, all + i, count);
            else memcpy(t->train + t->num_train, all + i, count);
            *(held ? &t->num_held : &t->num_train) += count;
        }
    }
    t->checksum = 2166136261u; /* FNV-1a */
    for (size_t i = 0; i < size; i++)
        t->checksum = ((t->checksum ^ all[i]) * 16777619u) & 0xffffffffu;
    free(all);
}

/* --------------------------------------------------------------------------------------- report */

typedef struct report {
    options o;
    double *loss[3], *held[3];           /* training loss of each step, held-out loss at points;
                                            means over the seeds                                  */
    double *time[3];                     /* seconds of each step of each seed                     */
    size_t  num_times[3];
    double  last[3][MAX_SEEDS];          /* held-out loss at the end                              */
    double  skipped[3], scale[3];        /* means over the seeds                                  */
    size_t  bytes[3][NUM_MEMORIES], params;
    uint64_t steps;                      /* taken by the last run                                 */
} report;

/* Of processor time, which does not count while other programs run; with threads, of time. */
static double seconds(void) {
#ifdef _OPENMP
    return omp_get_wtime();
#else
    return (double)clock() / CLOCKS_PER_SEC;
#endif
}

/* The held-out loss is also taken HELD_POINTS times on the way. */
static int held_every(const options *o) {
    return o->steps > HELD_POINTS ? o->steps / HELD_POINTS : 1;
}

static int held_point(const options *o, int step) { return (step + 1) % held_every(o) == 0; }

static void report_init(report *r, const text *t) {
    const options *o = &r->o;
    for (int v = 0; v < 3; v++) {
        r->loss[v] = need((size_t)o->steps, sizeof(double));
        r->held[v] = need((size_t)o->steps, sizeof(double));
        r->time[v] = need((size_t)o->steps * (size_t)o->seeds, sizeof(double));
    }
    printf("%s: %lu bytes to learn, %lu held out\n", o->text, (unsigned long)t->num_train,
           (unsigned long)t->num_held);
    printf("%d blocks of width %d, %d heads; %d steps of %d x %d bytes; products by %s\n",
           o->layers, o->width, o->heads, o->steps, o->batch, o->context, amp_cpu_tier());
    fflush(stdout);
}

static void report_free(report *r) {
    for (int v = 0; v < 3; v++) {
        free(r->loss[v]);
        free(r->held[v]);
        free(r->time[v]);
    }
}

static void report_step(report *r, int v, int step, double loss, double time) {
    r->loss[v][step] += loss / r->o.seeds;
    r->time[v][r->num_times[v]++] = time;
}

static void report_held(report *r, int v, int step, double loss) {
    r->held[v][(step + 1) / held_every(&r->o) - 1] += loss / r->o.seeds;
}

static void report_progress(const report *r, int seed, int step) {
    char now[64];
    sprintf(now, "seed %d of %d", seed + 1, r->o.seeds);
    progress((seed + (step + 1.0) / r->o.steps) / r->o.seeds, now);
}

static void report_end(report *r, int v, int seed, double held, const amp_status *status,
                       const size_t *bytes, size_t params) {
    r->last[v][seed] = held;
    r->skipped[v] += (double)status->skipped / r->o.seeds;
    r->scale[v] += (double)status->loss_scale / r->o.seeds;
    memcpy(r->bytes[v], bytes, sizeof r->bytes[v]);
    r->params = params;
    r->steps  = status->steps;
}

/* Where there is no bar, one line per seed. */
static void say_seed(const report *r, int seed) {
    if (on_terminal()) return;
    fprintf(stderr, "seed %d of %d:", seed + 1, r->o.seeds);
    for (int v = 0; v < 3; v++)
        if (type_on(&r->o, v)) fprintf(stderr, "  %s %.4f", type_names[v], r->last[v][seed]);
    fprintf(stderr, "\n");
}

/* Tokens per second, by the median of all steps; 0 if there were none. */
static double speed(const report *r, int v) {
    double *time = r->time[v];
    if (r->num_times[v] == 0) return 0.0;
    qsort(time, r->num_times[v], sizeof *time, by_value);
    const double median = time[r->num_times[v] / 2];
    return median > 0.0 ? (double)r->o.batch * r->o.context / median : 0.0;
}

static double mebibytes(const report *r, int v) {
    double sum_of = 0.0;
    for (int i = 0; i < NUM_MEMORIES; i++) sum_of += (double)r->bytes[v][i];
    return sum_of / 1048576.0;
}

/* ----------------------------------------------------------------------------- tables, pictures */

static void print_table(const report *r) {
    printf("\nheld-out loss in nats per byte, mean +- standard deviation over %d seed%s\n\n",
           r->o.seeds, r->o.seeds > 1 ? "s" : "");
    printf("%-6s %-17s %8s %9s %10s %7s %12s %16s %11s\n", "", "loss", "skipped", "scale",
           "tokens/s", "speed", "bytes/param", "activations MiB", "total MiB");
    for (int v = 0; v < 3; v++) {
        const spread s = over_seeds(r->last[v], NULL, r->o.seeds);
        char         sd[32] = "-", times[32] = "-";
        if (!type_on(&r->o, v)) continue;
        if (r->o.seeds > 1) sprintf(sd, "%.4f", s.sd);
        if (speed(r, 0) > 0.0) sprintf(times, "%.2fx", speed(r, v) / speed(r, 0));
        printf("%-6s %.4f +- %-7s %8.1f %9.0f %10.0f %7s %12.2f %16.1f %11.1f\n", type_names[v],
               s.mean, sd, r->skipped[v], r->scale[v], speed(r, v), times,
               (double)r->bytes[v][STATE] / (double)r->params,
               (double)r->bytes[v][ACTIVATIONS] / 1048576.0, mebibytes(r, v));
    }
}

/* What the table says, in words that follow from its numbers. Fewer than three seeds say too little
   about their spread. */
static void print_reading(const report *r) {
    const double fp32 = over_seeds(r->last[0], NULL, r->o.seeds).mean;
    if (r->o.dtype != ALL_TYPES) return;
    printf("\nreading\n");
    for (int v = AMP_F16; v <= AMP_BF16; v++) {
        const spread d = over_seeds(r->last[v], r->last[0], r->o.seeds);
        printf("  %s minus fp32, seed by seed: %+.4f", type_names[v], d.mean);
        if (r->o.seeds > 2) printf(" (se %.4f)", d.se);
        printf(", %+.2f %% of the loss%s\n", 100.0 * d.mean / fp32,
               r->o.seeds <= 2                  ? ""
               : fabs(d.mean) <= 2.0 * d.se     ? ": within two standard errors"
               : fabs(d.mean) <= 0.005 * fp32   ? ": within 0.5 %"
                                                : ": more than the seeds explain");
    }
    for (int v = AMP_F16; v <= AMP_BF16; v++)
        printf("  %s trains %.2f times as fast as fp32, with %.0f %% of its bytes of activations\n",
               type_names[v], speed(r, v) / speed(r, 0),
               100.0 * (double)r->bytes[v][ACTIVATIONS] / (double)r->bytes[0][ACTIVATIONS]);
}

/* Training losses are means of as many steps as make about a hundred points. */
static void draw_picture(report *r) {
    const options *o      = &r->o;
    const size_t   every  = (size_t)(o->steps + 99) / 100, count = (size_t)o->steps / every;
    const int      curve[3] = {0, 3, 4}; /* a broad band, and two lines that can be seen on it */
    const char    *names[MAX_CURVES] = {0};
    plot plots[2] = {{"text that is learned", count, {0}, "step",
                      "loss, nats per byte, mean of the seeds", (double)every},
                     {"text that is held out", (size_t)(o->steps / held_every(o)), {0}, "step",
                      "loss, nats per byte, mean of the seeds", held_every(o)}};
    for (int v = 0; v < 3; v++) {
        if (!type_on(o, v)) continue;
        for (size_t i = 0; i < count; i++) {
            double mean = 0.0;
            for (size_t j = 0; j < every; j++) mean += r->loss[v][i * every + j] / (double)every;
            r->loss[v][i] = mean;
        }
        names[curve[v]]      = type_names[v];
        plots[0].y[curve[v]] = r->loss[v];
        plots[1].y[curve[v]] = r->held[v];
    }
    draw_curves(o->out, PICTURE, plots, names);
    printf("\npicture: %s/%s\n\n", o->out, PICTURE);
}

static void print_results(report *r) {
    progress_end();
    print_table(r);
    print_reading(r);
    draw_picture(r);
}

/* In forms that do not change, for programs. One run says how it ended with all digits. */
static void print_last_lines(const report *r) {
    const options *o = &r->o;
    if (one_run(o))
        printf("final gpt %s: step %lu of %d, held-out loss %.17g\n", type_names[o->dtype],
               (unsigned long)r->steps, o->steps, r->last[o->dtype][0]);
    if (one_run(o) && o->save && r->steps < (uint64_t)o->steps)
        printf("continue with the same options and --resume %s\n", o->save);
    if (o->dtype != ALL_TYPES) return; /* nothing to compare */
    printf("parity gpt:");
    for (int v = 0; v < 3; v++) {
        const spread d = over_seeds(r->last[v], r->last[0], o->seeds);
        printf(" %s %.3f", type_names[v], over_seeds(r->last[v], NULL, o->seeds).mean);
        if (v != AMP_F32) printf(" d %+.3f se %.3f", d.mean, d.se);
    }
    printf(" seeds %d\nspeed gpt:", o->seeds);
    for (int v = 0; v < 3; v++) printf(" %s %.0f", type_names[v], speed(r, v));
    printf(" tokens/s\nmemory gpt:");
    for (int v = 0; v < 3; v++) printf(" %s %.0f", type_names[v], mebibytes(r, v));
    printf(" MiB\n");
}

#endif /* GPT_REPORT_H */
