/* golden.h - the files in state/: the optimizers that write them, and read them. */

#ifndef VECTORS_GOLDEN_H
#define VECTORS_GOLDEN_H

#include "amp.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GOLDEN_FILES = 5, GOLDEN_TENSORS = 3, GOLDEN_N = 37, GOLDEN_MOST = 16384 };

static const char *const golden_names[GOLDEN_FILES] = {"fp32", "split-bf16", "sr-8bit", "report", "first-step"};
enum golden_name { GOLDEN_F32, GOLDEN_SPLIT, GOLDEN_SR, GOLDEN_REPORT, GOLDEN_FIRST_STEP };

/* An optimizer, its arrays, and the bytes of a file. */
typedef struct golden {
    amp_optimizer opt;
    float         weights[GOLDEN_TENSORS][GOLDEN_N];
    uint16_t      models[GOLDEN_TENSORS][GOLDEN_N], grads[GOLDEN_TENSORS][GOLDEN_N];
    unsigned char bytes[GOLDEN_MOST];
    size_t        size, at;
} golden;

static const size_t golden_n[GOLDEN_TENSORS] = {GOLDEN_N, 3, 2};

/* Bits of number i of a tensor: of a weight, with all of its fraction, or of a gradient, with 7 bits of it, which
   fp16 and bf16 have. Magnitudes are from 1/8 or 1 on, below 16 times that. golden.py has the same. */
static uint32_t golden_bits(uint32_t tensor, uint32_t i, int gradient) {
    uint32_t x = (tensor << 16 | i << 1 | (uint32_t)gradient) + 1u;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    x = x ^ x >> 16;
    return (x & (gradient ? 0x807f0000u : 0x807fffffu)) | ((gradient ? 127u : 124u) + (x >> 23 & 3u)) << 23;
}

/* The gradients of a step, in the type of models. */
static void golden_gradients(golden *g, amp_dtype type) {
    uint32_t k, i;
    for (k = 0; k < GOLDEN_TENSORS; k++)
        for (i = 0; i < golden_n[k]; i++) {
            const uint32_t bits = golden_bits(k, i, 1);
            amp_cast(&g->grads[k][i], type, &bits, AMP_F32, 1);
        }
}

static amp_dtype golden_type(int which) { return which == GOLDEN_F32 ? AMP_F16 : AMP_BF16; }

static amp_result golden_add(golden *g, int which, uint32_t k, int other) {
    static const char *const names[GOLDEN_TENSORS] = {"layer.weight", "layer.bias", NULL};
    amp_tensor t;
    uint32_t   i;
    for (i = 0; i < golden_n[k]; i++) {
        const uint32_t bits = golden_bits(k, i, 0), one = 0x3f800000u;
        memcpy(&g->weights[k][i], other ? &one : &bits, 4);
        if (which == GOLDEN_SR) amp_cast(&g->models[k][i], AMP_BF16, &g->weights[k][i], AMP_F32, 1);
        if (which == GOLDEN_SR) amp_cast(&g->weights[k][i], AMP_F32, &g->models[k][i], AMP_BF16, 1);
    }
    memset(&t, 0, sizeof t);
    t.name   = names[k];
    t.n      = golden_n[k];
    t.weight = g->weights[k];
    if (k < 2) t.grad = g->grads[k];
    t.frozen    = k == 2;
    t.grad_type = golden_type(which);
    if (which != GOLDEN_FIRST_STEP) {
        t.model      = g->models[k];
        t.model_type = t.grad_type;
    }
    t.own = which == GOLDEN_REPORT && k == 1;
    if (which == GOLDEN_REPORT && k == 0) t.lr_scale = 0.75f;
    if (which == GOLDEN_REPORT && k == 0) t.weight_decay = 0.125f;
    return amp_optimizer_add(&g->opt, &t);
}

/* Prepares the optimizer of a file. other: with weights that the file does not have. */
static amp_result golden_open(golden *g, int which, int other) {
    amp_storage        storage = {AMP_FORMAT_F32, AMP_FORMAT_F32};
    amp_report_desc    report;
    amp_optimizer_desc d;
    amp_result         result;
    uint32_t           k;
    memset(g, 0, sizeof *g);
    memset(&d, 0, sizeof d);
    memset(&report, 0, sizeof report);
    d.kind    = AMP_KIND_ADAMW;
    d.dtype   = golden_type(which);
    d.beta1   = 0.5;
    d.beta2   = 0.75;
    d.storage = &storage;
    d.scaler.init_scale = 1024.0f;
    if (which == GOLDEN_SPLIT) {
        storage.master  = AMP_FORMAT_SPLIT;
        storage.moments = AMP_FORMAT_BF16;
        d.seed          = 7;
        d.scaler.hysteresis = 3;
    } else if (which == GOLDEN_SR) {
        storage.master  = AMP_FORMAT_SR;
        storage.moments = AMP_FORMAT_8BIT;
        d.seed          = ((uint64_t)1 << 40) + 9;
    } else if (which == GOLDEN_REPORT) {
        storage.moments     = AMP_FORMAT_BF16;
        d.kind              = AMP_KIND_SGD;
        d.momentum          = 0.875;
        d.nesterov          = 1;
        d.max_norm          = 0.0078125f;
        d.eps               = 0.125;
        d.seed              = ~(uint64_t)4;
        d.scaler.preset     = AMP_PRESET_MXNET;
        d.scaler.growth_interval = 77;
        d.report            = &report;
    } else if (which == GOLDEN_FIRST_STEP) {
        d.dtype             = AMP_F32;
        d.scaler.preset     = AMP_PRESET_NONE;
        d.scaler.init_scale = 0.0f;
    }
    result = amp_optimizer_init(&g->opt, &d);
    for (k = 0; k < GOLDEN_TENSORS && result == AMP_OK; k++) result = golden_add(g, which, k, other);
    if (result == AMP_OK) result = amp_optimizer_prepare(&g->opt);
    if (which == GOLDEN_FIRST_STEP && result == AMP_OK)
        result = amp_optimizer_set_steps(&g->opt, ((uint64_t)1 << 32) + 3, 0);
    return result;
}

/* An overflow, a step, one that is asked to be skipped, a step, an overflow: of the last, the scale moves one update later. The trainer's own
   optimizer, of tensor 1, leaves its weights. */
static amp_result golden_report(golden *g) {
    amp_result result = amp_optimizer_set_lr(&g->opt, 0.5f);
    int        step;
    for (step = 0; step < 5 && result == AMP_OK; step++) {
        golden_gradients(g, AMP_BF16);
        if (step % 4 == 0) g->grads[1][2] = 0x7f80; /* inf */
        amp_optimizer_scaler(&g->opt)->found_inf = step == 2;
        (void)amp_optimizer_begin_step(&g->opt);
        result = amp_optimizer_end_step(&g->opt);
    }
    return result;
}

/* What has happened before a file is saved. A step with a rate of 0 leaves weights: m = g / 2, v = g g / 4. */
static amp_result golden_train(golden *g, int which) {
    float      first[GOLDEN_N], second[GOLDEN_N];
    uint32_t   i, bits;
    amp_result result;
    if (which == GOLDEN_REPORT) return golden_report(g);
    if (which == GOLDEN_FIRST_STEP) { /* the moments of one tensor are set, those of the other are missing */
        for (i = 0; i < GOLDEN_N; i++) {
            bits = golden_bits(0, i, 1);
            memcpy(&first[i], &bits, 4);
            bits &= 0x7fffffffu;
            memcpy(&second[i], &bits, 4);
        }
        return amp_optimizer_set_moments(&g->opt, 0, first, second);
    }
    golden_gradients(g, golden_type(which));
    result = amp_optimizer_step(&g->opt, 0.0f);
    if (which != GOLDEN_SPLIT || result != AMP_OK) return result;
    g->grads[0][0] = 0x7f80; /* an overflow that the scaler tolerates */
    return amp_optimizer_step(&g->opt, 0.0f);
}

static bool golden_write(void *user, const void *data, size_t num_bytes) {
    golden *g = (golden *)user;
    if (num_bytes > sizeof g->bytes - g->size) return false;
    memcpy(g->bytes + g->size, data, num_bytes);
    g->size += num_bytes;
    return true;
}

static bool golden_read(void *user, void *data, size_t num_bytes) {
    golden *g = (golden *)user;
    if (num_bytes > g->size - g->at) return false;
    memcpy(data, g->bytes + g->at, num_bytes);
    g->at += num_bytes;
    return true;
}

/* The bytes of a file, as amp.h writes them. */
static amp_result golden_make(golden *g, int which) {
    amp_result result = golden_open(g, which, 0);
    if (result == AMP_OK) result = golden_train(g, which);
    return result == AMP_OK ? amp_optimizer_save(&g->opt, golden_write, g) : result;
}

/* The bytes that are saved after these were loaded into an optimizer of other weights. */
static amp_result golden_again(golden *g, int which, const unsigned char *bytes, size_t size) {
    amp_result result = golden_open(g, which, 1);
    memcpy(g->bytes, bytes, size);
    g->size = size;
    if (result == AMP_OK) result = amp_optimizer_load(&g->opt, golden_read, g);
    memset(g->bytes, 0, sizeof g->bytes);
    g->size = 0;
    return result == AMP_OK ? amp_optimizer_save(&g->opt, golden_write, g) : result;
}

#endif
