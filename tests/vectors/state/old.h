/* old.h - runs of which releases have left files here, in a directory of each release. make_old.c makes the files, compiled
   with the amp.h of the release, and values.txt beside them: what each run came to where it was saved, and three steps on.
   test_state.c loads the files with the amp.h of today, which must come to the same. */

#ifndef OLD_H
#define OLD_H

#include <stdio.h>
#include <string.h>

enum { OLD_COUNT = 3, OLD_MOST = 37, OLD_SAVED = 5, OLD_STEPS = 8 };

typedef struct old_setup {
    const char *name;
    amp_kind    kind;
    amp_dtype   dtype;
    amp_format  master, moments;
    amp_preset  preset;
    int         reports;
} old_setup;

static const old_setup old_setups[] = {
    {"adamw", AMP_KIND_ADAMW, AMP_F16, AMP_FORMAT_F32, AMP_FORMAT_F32, AMP_PRESET_DEFAULT, 0},
    {"sgd", AMP_KIND_SGD, AMP_BF16, AMP_FORMAT_SPLIT, AMP_FORMAT_BF16, AMP_PRESET_MXNET, 0},
    {"lion", AMP_KIND_LION, AMP_BF16, AMP_FORMAT_SR, AMP_FORMAT_8BIT, AMP_PRESET_FAIRSEQ, 0},
    {"24bit", AMP_KIND_ADAMW, AMP_F16, AMP_FORMAT_24BIT, AMP_FORMAT_8BIT, AMP_PRESET_MEGATRON, 0},
    {"report", AMP_KIND_ADAMW, AMP_F32, AMP_FORMAT_F32, AMP_FORMAT_F32, AMP_PRESET_TORCH, 1},
    {"own", AMP_KIND_OWN, AMP_F16, AMP_FORMAT_F32, AMP_FORMAT_F32, AMP_PRESET_DEEPSPEED, 0}};

enum { OLD_SETUPS = sizeof old_setups / sizeof old_setups[0] };

static const size_t old_sizes[OLD_COUNT] = {OLD_MOST, 5, 3}; /* the last is frozen */

typedef struct old_run {
    const old_setup *setup;
    amp_optimizer    opt;
    float            weights[OLD_COUNT][OLD_MOST], gradients[OLD_COUNT][OLD_MOST];
} old_run;

/* fill: where it is not 0, all weights, of a run that is to load. */
static amp_result old_open(old_run *r, const old_setup *setup, float fill, const struct amp_ranks *ranks) {
    static const char *const names[OLD_COUNT] = {"layer.weight", NULL, "frozen"};
    const amp_report_desc    report             = {0};
    amp_storage              storage;
    amp_optimizer_desc       d;
    amp_result               result;
    size_t                   i, k;
    memset(r, 0, sizeof *r);
    memset(&d, 0, sizeof d);
    r->setup                 = setup;
    storage.master           = setup->master;
    storage.moments          = setup->moments;
    d.kind                   = setup->kind;
    d.dtype                  = setup->dtype;
    d.storage                = setup->kind == AMP_KIND_OWN ? NULL : &storage;
    d.report                 = setup->reports ? &report : NULL;
    d.ranks                  = ranks;
    d.scaler.preset          = setup->preset;
    d.scaler.growth_interval = 2;
    d.scaler.tolerance       = setup->preset == AMP_PRESET_FAIRSEQ ? 0.25 : 0.0;
    d.momentum               = setup->kind == AMP_KIND_SGD ? 0.875 : 0.0;
    d.nesterov               = setup->kind == AMP_KIND_SGD;
    d.weight_decay           = 0.125f;
    d.max_norm               = 0.015625f;
    d.seed                   = UINT64_C(0x1234567890abcdef);
    result                   = amp_optimizer_init(&r->opt, &d);
    for (i = 0; i < OLD_COUNT && result == AMP_OK; i++) {
        amp_tensor t;
        memset(&t, 0, sizeof t);
        for (k = 0; k < old_sizes[i]; k++)
            r->weights[i][k] = fill != 0.0f ? fill : (float)((int)(k * 79 + i * 31) % 101 - 50) / 64.0f;
        t.name      = names[i];
        t.n         = old_sizes[i];
        t.weight    = r->weights[i];
        t.grad      = i < OLD_COUNT - 1 ? r->gradients[i] : NULL;
        t.keep_fp32 = i == 1;
        t.lr_scale  = i == 1 ? 0.5f : 0.0f;
        result      = amp_optimizer_add(&r->opt, &t);
    }
    return result == AMP_OK ? amp_optimizer_prepare(&r->opt) : result;
}

static amp_result old_fused(amp_optimizer *opt, amp_kind kind, float lr) {
#if AMP_VERSION_MAJOR == 0 && AMP_VERSION_MINOR < 7
    return kind == AMP_KIND_ADAMW ? amp_optimizer_adamw(opt, lr) : kind == AMP_KIND_SGD ? amp_optimizer_sgd(opt, lr)
                                                                                        : amp_optimizer_lion(opt, lr);
#else
    (void)kind;
    return amp_optimizer_step(opt, lr);
#endif
}

/* Scaled gradients of a step; the third and the fifth, after which the file is saved, overflow, and the seventh. */
static void old_gradients(old_run *r, int step) {
    static const uint32_t inf = UINT32_C(0x7f800000);
    size_t                i, k;
    (void)amp_optimizer_loss_scale(&r->opt);
    for (i = 0; i < OLD_COUNT; i++)
        for (k = 0; k < old_sizes[i]; k++)
            r->gradients[i][k] = (float)((step * 13 + (int)(k * 29 + i * 7)) % 41 - 20) * 8.0f;
    if (step % 2 == 0 && step > 0) memcpy(&r->gradients[step / 2 % 2][step / 2], &inf, 4);
}

static amp_result old_step(old_run *r, int step) {
    const float lr = 0.03125f / (float)(1 << step / 4);
    int         k;
    old_gradients(r, step);
    if (r->setup->kind != AMP_KIND_OWN) return old_fused(&r->opt, r->setup->kind, lr);
    if (amp_optimizer_begin_step(&r->opt))
        for (k = 0; k < OLD_MOST; k++) amp_optimizer_master(&r->opt, 0)[k] += lr;
    return amp_optimizer_end_step(&r->opt);
}

typedef struct old_text {
    char   bytes[1 << 15];
    size_t used;
} old_text;

#define OLD_SAY(t, ...) \
    ((t)->used += (size_t)snprintf((t)->bytes + (t)->used, sizeof (t)->bytes - (t)->used, __VA_ARGS__))

/* The bits of n numbers, a line. */
static void old_bits(old_text *t, const char *what, const void *x, size_t n, size_t size) {
    size_t   k;
    uint32_t u;
    uint16_t h;
    OLD_SAY(t, "%s", what);
    for (k = 0; k < n; k++) {
        if (size == 2) {
            memcpy(&h, (const char *)x + k * size, 2);
            OLD_SAY(t, " %04lx", (unsigned long)h);
        } else {
            memcpy(&u, (const char *)x + k * size, 4);
            OLD_SAY(t, " %08lx", (unsigned long)u);
        }
    }
    OLD_SAY(t, "\n");
}

/* All that a run has come to, by what may be asked of it. */
static void old_show(old_text *t, old_run *r, const char *when) {
    const amp_scaler *s = amp_optimizer_scaler(&r->opt);
    amp_status        a;
    float             norm;
    int               i;
    if (amp_optimizer_status(&r->opt, &a) != AMP_OK) return;
    norm = (float)a.norm;
    OLD_SAY(t, "%s, %s: %lu taken, %lu skipped, %lu in a row; of the scaler %lu good, %lu skipped, %lu up, %lu down, %lu in a "
               "row, %d towards growth\n",
            r->setup->name, when, (unsigned long)a.steps, (unsigned long)a.skipped, (unsigned long)a.skipped_in_a_row,
            (unsigned long)s->good, (unsigned long)s->skipped, (unsigned long)s->growths, (unsigned long)s->backoffs,
            (unsigned long)s->skipped_in_a_row, s->growth_tracker);
    old_bits(t, "scale", &a.loss_scale, 1, 4);
    old_bits(t, "norm", &norm, 1, 4);
    old_bits(t, "clip", &a.clip_factor, 1, 4);
    old_bits(t, "lr", amp_optimizer_lr_ptr(&r->opt), 1, 4);
    for (i = 0; i < OLD_COUNT; i++) {
        const size_t n    = old_sizes[i], size = r->setup->dtype == AMP_F32 || i == 1 ? 4 : 2;
        const float *master = amp_optimizer_master(&r->opt, i);
        if (master) old_bits(t, "master", master, n, 4);
        old_bits(t, "model", amp_optimizer_model(&r->opt, i), n, size);
    }
}

#endif
