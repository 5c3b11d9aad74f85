/* ddp_report.h - the options of ddp_mpi.c and ddp_nccl.cu, and what rank 0 says of a run

   C and C++. Nothing here knows the network or how ranks talk.                                   */

#ifndef DDP_REPORT_H
#define DDP_REPORT_H

#include "amp.h"
#include "../support/train_cli.h"
#include "../support/train_files.h"
#include "zero.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_MICRO = 4096, ROWS = 12 };

static const char *const type_names[]   = {"fp32", "fp16", "bf16", NULL}; /* as amp_dtype */
static const char *const tensor_names[] = {"in",          "in bias", "hidden",
                                           "hidden bias", "out",     "out bias"};

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

/* ------------------------------------------------------------------------------- what both do */

static inline double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* What --plant writes. */
static inline const void *infinity_of(amp_dtype type) {
    static const uint32_t fp32 = 0x7f800000u;
    static const uint16_t fp16 = 0x7c00u, bf16 = 0x7f80u;
    return type == AMP_F32 ? (const void *)&fp32 : type == AMP_F16 ? &fp16 : &bf16;
}

static inline void cannot_save(const zero *z, const char *path, int full) {
    fail(1, path, full ? strerror(ENOSPC) : zero_problem(z),
         "choose a file that can be written with --save");
}

static inline void cannot_resume(const zero *z, const char *path, amp_result result) {
    fail(1, path, zero_problem(z),
         result == AMP_ERROR_MISMATCH ? "give the other options as when it was saved"
                                      : "give a file that --save wrote");
}

/* --------------------------------------------------------------------------------------- memory */

/* What one rank has in bytes, but for activations. */
typedef struct memory {
    double optimizer; /* models, 16 for each parameter of its own, tables                       */
    double models;    /* of these the models: 2 for each parameter, 4 for biases                */
    double own;       /* parameters whose master, moments and gradient sum are here: count      */
    double slices;    /* these, in bytes: 16 each, or 12 where the master is the model          */
    double sent;      /* gradients, sums to be sent, and what is received and waits to be added */
} memory;

/* What zero.h has; memory of the optimizer itself is counted already. */
static inline void count_memory(memory *m, const zero *z) {
    double depth = 0, waiting = 0, most = 0, sums = 0;
    while ((z->block - 1) >> (int)depth) depth++;
    while ((z->blocks - 1) >> (int)waiting) waiting++;
    for (int i = 0; i < z->num; i++) {
        const zero_tensor *t = &z->tensors[i];
        const double       n = (double)t->like.n, own = (double)t->own;
        m->models += n * (double)t->wide;
        m->own += own;
        m->slices += own * (t->wide == 2 ? 16 : 12);
        sums += 4.0 * depth * n;
        if (z->ranks.count > 1) sums += z->blocks * own * (double)t->sent_size;
        m->sent += n * (double)amp_dtype_size(t->like.grad_type);
        if (own > most) most = own;
    }
    if (z->blocks > 2) sums += 4.0 * waiting * most;
    m->sent += sums;
    m->optimizer += (double)z->used - sums;
}

/* Of the rank that has most, or of rank 0. */
static void print_memory(const memory *m, int ranks, size_t num_params) {
    const double p = (double)num_params, tables = m->optimizer - m->models - m->slices;
    printf("\n  bytes for each parameter, on one rank\n\n"
           "    model copies                        %8.4f\n"
           "    master, moments, gradient sum       %8.4f  of 16 / %d = %.4f\n"
           "    tables                              %8.4f\n"
           "    gradients sent and received         %8.4f\n"
           "memory ddp: ranks %d parameters %.0f optimizer %.0f = models %.0f + slices %.0f of %.0f "
           "+ tables %.0f; sent %.0f bytes\n",
           m->models / p, m->slices / p, ranks, 16.0 / ranks, tables / p, m->sent / p, ranks, p,
           m->optimizer, m->models, m->slices, m->own, tables, m->sent);
}

static void print_end(const options *o, int ranks, double loss, double right,
                      const amp_status *s) {
    printf("ddp: ranks %d micro %d %s steps %lu loss %.6f held-out %.2f %% skipped %lu\n", ranks,
           o->micro, type_names[o->dtype], (unsigned long)(s->steps + s->skipped), loss, right,
           (unsigned long)s->skipped);
}

#endif /* DDP_REPORT_H */
