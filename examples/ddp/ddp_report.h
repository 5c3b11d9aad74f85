/* ddp_report.h - the options of ddp_mpi.c and ddp_nccl.cu, who adds which micro-batches, and what
   rank 0 says of a run

   C and C++. Nothing here knows the network or how ranks talk.                                   */

#ifndef DDP_REPORT_H
#define DDP_REPORT_H

#include "amp.h"
#include "../support/train_cli.h"
#include "../support/train_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MICRO = 4096, ROWS = 12 };

static const char *const type_names[] = {"fp32", "fp16", "bf16", NULL}; /* as amp_dtype */

/* -------------------------------------------------------------------------------------- options */

typedef struct options {
    const char *data, *save, *resume;
    int         micro, batch, width, steps, save_every, deadline, dtype, help, late;
    int         plant_step, plant_rank; /* -1: none */
    float       clip;
} options;

static const options standard = {NULL, NULL, NULL, 8, 32, 256, 60, 20, 10, AMP_F16, 0, 0,
                                 -1, -1, 0.0f};

static void print_help(const char *how) {
    const options *o = &standard;
    printf("usage: %s\n\n"
           "Train a network on images of digits, on several ranks; the bits of its weights\n"
           "do not depend on how many there are.\n\n"
           "  --micro M         micro-batches in a step, of all ranks together (%d)\n"
           "  --batch N         images in a micro-batch (%d)\n"
           "  --width N         units of the two hidden layers (%d)\n"
           "  --steps N         steps, counting what a resumed run has done (%d)\n"
           "  --dtype T         fp16, bf16 or fp32 (%s)\n"
           "  --clip X          clip the global norm of the gradient to X (do not)\n"
           "  --save PATH       write the state there, every %d steps (--save-every N)\n"
           "  --resume PATH     continue from it; it may be of another number of ranks\n"
           "  --plant STEP:RANK an infinity in the gradient of this rank alone, in this step\n"
           "  --late            send gradients after backward, not during it (ddp_mpi)\n"
           "  --deadline N      seconds after which a rank that is silent ends the run (%d)\n"
           "  --data WHAT       digits, fashion, or a path, as for train (fashion, if there)\n"
           "  --help            this text\n",
           how, o->micro, o->batch, o->width, o->steps, type_names[o->dtype], o->save_every,
           o->deadline);
}

static void parse_plant(options *o, const char *option, const char *value) {
    char rest;
    if (sscanf(value, "%d:%d%c", &o->plant_step, &o->plant_rank, &rest) != 2 ||
        o->plant_step < 0 || o->plant_rank < 0)
        bad_option(option, value, "STEP:RANK, both from 0");
}

static options parse_options(int argc, char **argv) {
    options            o = standard;
    const known_option known[] = {
        flag_option("--late", &o.late), word_option("--data", &o.data), word_option("--save", &o.save),
        word_option("--resume", &o.resume), choice_option("--dtype", type_names, &o.dtype),
        count_option("--micro", &o.micro, MAX_MICRO), count_option("--batch", &o.batch, 4096),
        count_option("--width", &o.width, 4096), count_option("--steps", &o.steps, 1000000),
        count_option("--save-every", &o.save_every, 1000000),
        count_option("--deadline", &o.deadline, 86400), real_option("--clip", &o.clip, 1e6)};
    begin(argc, argv);
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (is_help(argv[i])) o.help = 1;
        else if (strcmp(argv[i], "--plant") == 0) parse_plant(&o, argv[i++], value);
        else if (strcmp(argv[i], "--steps") == 0 && strcmp(value, "0") == 0) /* to load and save */
            o.steps = 0, i++;
        else if (!is_among(known, sizeof known / sizeof *known, argv, &i))
            unexpected(argv[i]);
    }
    needs(argc, argv, "--save-every", "--save");
    refuse_overwriting("--save", o.save, data_path(o.data));
    return o;
}

static void refuse_contradictions(const options *o, int ranks) {
    char value[32];
    sprintf(value, "%d:%d", o->plant_step, o->plant_rank);
    if (o->plant_rank >= ranks || o->plant_rank >= o->micro)
        bad_option("--plant", value, "a rank that there is, and that has a micro-batch");
}

/* ------------------------------------------------------------------------------------- who adds
   Where the ranks are a power of two that divides the micro-batches of a step, each takes so many of
   them in a row and adds their gradients: run of them in order, then two such sums, and two of these
   (amp.h, >>api ranks). Sums that wait for their pair are a stack; the whole is left in sum 0.
   Elsewhere (each is 1) a gradient travels by itself.                                            */

typedef struct adding { int each, run, sums; } adding; /* sums: how many wait at once */

static adding adding_of(int micro, int ranks) {
    adding a = {1, 1, 0};
    if (micro % ranks || (ranks & (ranks - 1)) || micro == ranks) return a;
    a.each = a.run = micro / ranks;
    while (a.run % 2 == 0) a.run /= 2;
    a.sums = a.run > 1;
    for (int k = a.each / a.run; k > 1; k /= 2) a.sums++;
    return a;
}

/* Which micro-batch of the step a rank has in a round; it may be none: micro or more. */
static int micro_of(const adding *a, int ranks, int rank, int round) {
    return a->each > 1 ? rank * a->each + round : round * ranks + rank;
}

static int rounds_of(const adding *a, int micro, int ranks) {
    return a->each > 1 ? a->each : (micro - 1) / ranks + 1;
}

/* To which sum a gradient is added, cleared if it is the first there; then it is added to the one
   below, so many times. Where a run is one, the second of a pair needs no sum of its own. */
typedef struct addend { int sum, first, pairs; } addend;

static addend addend_of(const adding *a, int round) {
    const int number = round / a->run, second = a->run == 1 && number % 2;
    addend    x      = {-second, round % a->run == 0 && !second, 0};
    for (int k = number; k; k /= 2) x.sum += k % 2;
    if ((round + 1) % a->run == 0)
        for (int k = number >> second; k % 2; k /= 2) x.pairs++;
    return x;
}

/* ---------------------------------------------------------------------------------------- table */

/* A row for every so many steps, and for the last. */
static int has_row(const options *o, int step) {
    const int every = (o->steps + ROWS - 1) / ROWS;
    return (step + 1) % every == 0 || step + 1 == o->steps;
}

static void print_plan(const options *o, int ranks, size_t num_params, const char *data) {
    printf("%s\n%s in %s on %s; a step is %d micro-batch%s of %s", data, counted(num_params, "parameter"),
           type_names[o->dtype], counted((size_t)ranks, "rank"), o->micro, o->micro == 1 ? "" : "es",
           counted((size_t)o->batch, "image"));
    if (o->clip > 0.0f) printf(", clipped to %g", (double)o->clip);
    printf("\n\n  %6s  %8s  %10s  %8s  %8s  %8s\n", "step", "loss", "scale", "norm", "clipped",
           "skipped");
    fflush(stdout);
}

static void print_row(int step, double loss, const amp_status *s) {
    printf("  %6d  %8.4f  %10g  %8.4f  %8.4f  %8lu\n", step + 1, loss, (double)s->loss_scale,
           s->norm, (double)s->clip_factor, (unsigned long)s->skipped);
    fflush(stdout);
}

/* --------------------------------------------------------------------------------------- memory */

/* What one rank has in bytes, but for activations. */
typedef struct memory {
    double optimizer; /* asked of desc.allocator: models, 16 for each of its own, tables */
    double models;    /* of these the models: 2 for each parameter, 4 for biases */
    double own;       /* parameters whose master, moments and accumulator are here: count */
    double halves;    /* gradients and sums to be sent, and parts that are received */
} memory;

/* Of the rank that has most, or of rank 0. */
static void print_memory(const memory *m, int ranks, size_t num_params) {
    const double p = (double)num_params, fp32 = 16.0 * m->own;
    printf("\n  bytes for each parameter, on one rank\n\n"
           "    model copies                        %8.4f\n"
           "    master, moments, accumulator        %8.4f  of 16 / %d = %.4f\n"
           "    tables                              %8.4f\n"
           "    gradients sent and received         %8.4f\n"
           "memory ddp: ranks %d parameters %.0f optimizer %.0f = models %.0f + 16 * own %.0f + "
           "tables %.0f; halves %.0f bytes\n",
           m->models / p, fp32 / p, ranks, 16.0 / ranks, (m->optimizer - m->models - fp32) / p,
           m->halves / p, ranks, p, m->optimizer, m->models, m->own,
           m->optimizer - m->models - fp32, m->halves);
}

static void print_end(const options *o, int ranks, double loss, double right,
                      const amp_status *s) {
    printf("ddp: ranks %d micro %d %s steps %lu loss %.6f held-out %.2f %% skipped %lu\n", ranks,
           o->micro, type_names[o->dtype], (unsigned long)(s->steps + s->skipped), loss, right,
           (unsigned long)s->skipped);
}

#endif /* DDP_REPORT_H */
