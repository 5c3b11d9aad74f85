/* test_state.c - law 12: a run that is saved, loaded and continued has the bits of one that was
   not interrupted; every other file is refused, and nothing changes. And settings from the
   environment. */

#define _GNU_SOURCE /* sigjmp_buf, setenv, fork */
#define AMP_KERNELS /* the core: what objects are made of */
#include "amp.h"
#include "../support/fp.h"
#include "../support/posix.h"
#include "../support/prepare.h"
#include "../support/storage.h"
#include "../support/test.h"
#include "../support/heap.h"

#include <errno.h>
#include <math.h>

/* -------------------------------------------------------------------------- a file in memory */

typedef struct stream {
    unsigned char *bytes;
    size_t         size, capacity, at;
    int            calls, fail_at, after; /* after: calls after the one that failed */
} stream;

static int stream_fails(stream *s) {
    if (s->fail_at && s->calls >= s->fail_at) s->after++;
    return ++s->calls == s->fail_at;
}

static bool stream_write(void *user, const void *data, size_t num_bytes) {
    stream *s = (stream *)user;
    if (stream_fails(s)) return false;
    if (s->size + num_bytes > s->capacity) {
        s->capacity = 2 * (s->size + num_bytes);
        s->bytes    = (unsigned char *)realloc(s->bytes, s->capacity);
    }
    memcpy(s->bytes + s->size, data, num_bytes);
    s->size += num_bytes;
    return true;
}

static bool stream_read(void *user, void *data, size_t num_bytes) {
    stream *s = (stream *)user;
    if (stream_fails(s) || num_bytes > s->size - s->at) return false;
    memcpy(data, s->bytes + s->at, num_bytes);
    s->at += num_bytes;
    return true;
}

static amp_result save(const amp_optimizer *opt, stream *s) {
    s->size = s->at = 0;
    s->calls = s->after = 0;
    return amp_optimizer_save(opt, stream_write, s);
}

static amp_result load(amp_optimizer *opt, stream *s) {
    s->at    = 0;
    s->calls = s->after = 0;
    return amp_optimizer_load(opt, stream_read, s);
}

static void stream_free(stream *s) {
    free(s->bytes);
    memset(s, 0, sizeof *s);
}

static void stream_copy(stream *to, const stream *from) {
    to->size  = 0;
    to->calls = to->fail_at = 0;
    CHECK(stream_write(to, from->bytes, from->size));
}

static void stream_equal(const stream *a, const stream *b) {
    CHECK_EQ_U64(a->size, b->size);
    if (a->size == b->size) CHECK_MEM(a->bytes, b->bytes, a->size);
}

/* --------------------------------------------------------------------- tensors of every sort */

typedef struct spec {
    const char *name;
    size_t      n;
    int         weight, grad;
    amp_dtype   grad_type;
    int         model; /* the caller's */
    amp_dtype   model_type;
    int         keep_fp32;
    float       lr_scale, weight_decay;
} spec;

enum { COUNT = 9, FLAT = 5, FLAT_PARTS = 3, FLAT_N = 20, ELEMENTS = 85 };

static const spec specs[COUNT] = {
    {"odd", 37, 1, 1, AMP_F16, 0, AMP_F32, 0, 0.0f, 0.0f},
    {"empty", 0, 1, 1, AMP_F16, 0, AMP_F32, 0, 0.0f, 0.0f},
    {"bias", 5, 1, 1, AMP_F32, 0, AMP_F32, 1, 0.5f, -1.0f},
    {"frozen", 3, 1, 0, AMP_F32, 0, AMP_F32, 0, 0.0f, 0.0f},
    {"model only", 11, 0, 1, AMP_BF16, 1, AMP_F16, 0, -1.0f, 0.0f},
    {NULL, 7, 1, 1, AMP_F16, 0, AMP_F32, 0, 2.0f, 0.125f}, /* the flat group */
    {"flat.scale", 1, 1, 1, AMP_F16, 0, AMP_F32, 1, 0.0f, 0.0f},
    {"flat.last", 12, 1, 1, AMP_F16, 0, AMP_F32, 0, 0.0f, 0.0f},
    {"both", 9, 1, 1, AMP_F16, 1, AMP_BF16, 0, 0.25f, 0.0f}};

typedef struct rig {
    amp_optimizer opt;
    float         weights[ELEMENTS];
    unsigned char grads[4 * ELEMENTS], models[4 * ELEMENTS];
} rig;

static size_t offset_of(int i) {
    size_t offset = 0;
    while (i-- > 0) offset += specs[i].n;
    return offset;
}

static void *grad_of(rig *r, int i) {
    const int    first = i > FLAT && i < FLAT + FLAT_PARTS ? FLAT : i;
    const size_t inner = offset_of(i) - offset_of(first);
    if (!specs[i].grad) return NULL;
    return r->grads + 4 * offset_of(first) + inner * amp_dtype_size(specs[i].grad_type);
}

static amp_dtype model_type_of(const rig *r, int i) {
    if (specs[i].model) return specs[i].model_type;
    return specs[i].keep_fp32 ? AMP_F32 : r->opt.desc.dtype;
}

static uint32_t mix(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

/* In [-1, 1], a multiple of 1/1024. */
static float noise(uint32_t a, uint32_t b) {
    return (float)((int)(mix(a * 2654435761u + b) % 2049u) - 1024) / 1024.0f;
}

static amp_tensor rig_tensor(rig *r, int i, int other) {
    const spec *s = &specs[i];
    amp_tensor  t;
    memset(&t, 0, sizeof t);
    t.name            = s->name;
    t.n               = s->n;
    t.weight          = s->weight ? r->weights + offset_of(i) : NULL;
    t.grad            = grad_of(r, i);
    t.grad_type       = s->grad_type;
    t.model           = s->model ? r->models + 4 * offset_of(i) : NULL;
    t.model_type      = s->model_type;
    t.keep_fp32       = s->keep_fp32;
    t.frozen          = !s->grad;
    t.lr_scale        = other ? 3.0f : s->lr_scale;
    t.weight_decay    = other ? 0.5f : s->weight_decay;
    return t;
}

/* other: lr_scale and weight_decay are others than those of specs. */
static void rig_start(rig *r, const amp_optimizer_desc *desc, uint32_t seed, int other) {
    amp_tensor t[COUNT], whole;
    int        i;
    for (i = 0; i < ELEMENTS; i++) r->weights[i] = noise(seed, (uint32_t)i);
    memset(r->grads, 0, sizeof r->grads);
    amp_cast(r->models, AMP_F16, r->weights, AMP_F32, ELEMENTS);
    amp_cast(r->models + 2 * ELEMENTS, AMP_F16, r->weights, AMP_F32, ELEMENTS);
    CHECK_EQ_INT(amp_optimizer_init(&r->opt, desc), AMP_OK);
    for (i = 0; i < COUNT; i++) t[i] = rig_tensor(r, i, other);
    for (i = 0; i < COUNT; i++) {
        if (i > FLAT && i < FLAT + FLAT_PARTS) continue;
        if (i == FLAT) {
            whole   = t[i];
            whole.n = FLAT_N;
            CHECK_EQ_INT(amp_optimizer_add_flat(&r->opt, &whole, &t[i], FLAT_PARTS), AMP_OK);
        } else {
            CHECK_EQ_INT(amp_optimizer_add(&r->opt, &t[i]), AMP_OK);
        }
    }
    CHECK_EQ_INT(prepare_scaled(&r->opt), AMP_OK);
}

/* One step in eight, in pairs, which hysteresis does not tolerate. */
static int overflows(uint32_t k) { return mix(k / 2u ^ 0x5eedu) % 8u == 0u; }

/* The gradients of step k, scaled; where it overflows, with an inf in the larger tensors. */
static void rig_grads(rig *r, uint32_t k) {
    const float    scale = amp_optimizer_loss_scale(&r->opt);
    const uint32_t inf   = 0x7f800000u;
    float          x[64];
    size_t         j;
    int            i;
    for (i = 0; i < COUNT; i++) {
        for (j = 0; j < specs[i].n; j++)
            x[j] = 0.0625f * noise(k + 1000u, (uint32_t)(i * 64 + (int)j)) * scale;
        if (overflows(k) && specs[i].n > 4) memcpy(&x[k % 5u], &inf, 4);
        if (specs[i].grad) amp_cast(grad_of(r, i), specs[i].grad_type, x, AMP_F32, specs[i].n);
    }
}

/* The user's own optimizer: plain SGD, without state. */
static void own_step(rig *r, float lr) {
    size_t j;
    int    i;
    for (i = 0; i < COUNT; i++) {
        float       *w = amp_optimizer_master(&r->opt, i);
        const float *g = amp_optimizer_grad(&r->opt, i);
        for (j = 0; g && j < specs[i].n; j++) {
            volatile float change = lr * g[j]; /* rounded here, whatever the flags */
            w[j] -= change;
        }
    }
}

static void rig_step(rig *r, uint32_t k) {
    const float lr = 0.0078125f * (float)(1u + k % 5u);
    rig_grads(r, k);
    if (r->opt.desc.kind == AMP_KIND_ADAMW) {
        CHECK_EQ_INT(amp_optimizer_step(&r->opt, lr), AMP_OK);
    } else if (r->opt.desc.kind == AMP_KIND_SGD) {
        CHECK_EQ_INT(amp_optimizer_step(&r->opt, lr), AMP_OK);
    } else {
        if (amp_optimizer_begin_step(&r->opt)) own_step(r, lr);
        CHECK_EQ_INT(amp_optimizer_end_step(&r->opt), AMP_OK);
    }
}

/* Everything that the API shows: masters, model copies, status, scaler, gate. */
enum { SNAP = 1024 };

static size_t put(unsigned char *out, size_t at, const void *data, size_t num_bytes) {
    CHECK(at + num_bytes <= SNAP);
    if (num_bytes) memcpy(out + at, data, num_bytes);
    return at + num_bytes;
}

static void snapshot(const rig *r, unsigned char *out) {
    amp_status status;
    size_t     at = 0, n;
    int        i;
    memset(out, 0, SNAP);
    memset(&status, 0, sizeof status);
    for (i = 0; i < COUNT; i++) {
        n  = specs[i].n;
        at = put(out, at, amp_optimizer_master(&r->opt, i), 4 * n);
        n *= amp_dtype_size(model_type_of(r, i));
        at = put(out, at, amp_optimizer_model(&r->opt, i), n);
    }
    CHECK_EQ_INT(amp_optimizer_status(&r->opt, &status), AMP_OK);
    status.f16_overflows = 0; /* manual: 0 after a load */
    at = put(out, at, &status, sizeof status);
    at = put(out, at, amp_optimizer_scaler(&r->opt), sizeof(amp_scaler));
    put(out, at, amp_optimizer_gate(&r->opt), sizeof(amp_gate));
}

static void same_as(const rig *r, const unsigned char *wanted) {
    unsigned char now[SNAP];
    snapshot(r, now);
    CHECK_MEM(now, wanted, SNAP);
}

static amp_optimizer_desc desc_of(amp_kind kind, amp_preset preset) {
    amp_optimizer_desc d;
    memset(&d, 0, sizeof d);
    d.dtype                  = AMP_F16;
    d.kind                   = kind;
    d.allocator.allocate_fn  = heap_alloc;
    d.allocator.release_fn   = heap_free;
    d.allocator.user         = &the_heap;
    the_heap.poison          = 0x3c;
    d.scaler.preset          = preset;
    d.scaler.init_scale      = 8192.0f;
    d.scaler.growth_factor   = 3.0; /* with 1/3 as its inverse, wide scales are not powers of 2 */
    d.scaler.growth_interval = 6;
    d.scaler.hysteresis      = 2;
    d.momentum               = kind == AMP_KIND_SGD ? 0.875 : 0.0;
    d.nesterov               = kind == AMP_KIND_SGD;
    d.beta1                  = 0.8;
    d.beta2                  = 0.97;
    d.eps                    = 1e-6;
    d.weight_decay           = 0.0625f;
    d.max_norm               = 0.3125f; /* clips every other step or so */
    if (preset == AMP_PRESET_DEFAULT) d.scaler.max_scale = 262144.0f; /* fp16 holds all below */
    if (preset == AMP_PRESET_NONE) d.scaler.init_scale = 0.0f;
    return d;
}

/* The same kind with all other numbers: what a state must overwrite. */
static amp_optimizer_desc other_desc(const amp_optimizer_desc *desc) {
    const int          jmp   = desc->scaler.preset == AMP_PRESET_JMP;
    const int          fixed = desc->scaler.preset == AMP_PRESET_STATIC || desc->scaler.preset == AMP_PRESET_NONE;
    amp_optimizer_desc d     = *desc;
    d.scaler.preset          = fixed ? AMP_PRESET_STATIC : jmp ? AMP_PRESET_KERAS : AMP_PRESET_JMP;
    d.scaler.init_scale      = 64.0f;
    d.scaler.growth_factor   = 2.0;
    d.scaler.growth_interval = 3;
    d.momentum               = d.momentum > 0.0 ? 0.5 : 0.0;
    d.nesterov               = 0;
    d.beta1                  = 0.5;
    d.beta2                  = 0.75;
    d.eps                    = 0.125;
    d.weight_decay           = 1.0f;
    d.max_norm               = 2.0f;
    return d;
}

/* A prepared optimizer that has been through other weights, moments and steps. */
static void rig_start_other(rig *r, const amp_optimizer_desc *desc) {
    const amp_optimizer_desc other = other_desc(desc);
    uint32_t                 k;
    rig_start(r, &other, 99, 1);
    for (k = 5000; k < 5004; k++) rig_step(r, k);
}

static void rig_end(rig *r) {
    amp_optimizer_free(&r->opt);
    CHECK_EQ_INT(the_heap.live, 0);
}

/* ================================================================================== resuming */

enum { STEPS = 300 };

static stream        states[STEPS + 1];
static unsigned char snaps[STEPS + 1][SNAP];
static rig           one, two;

/* Run once, saving before every step; then start anew at every step. to_end: continue each to the
   last step, otherwise 3 steps and one in 25 to the last. */
static void resumes(const amp_optimizer_desc *desc, uint32_t steps, int to_end) {
    stream   again;
    uint32_t k, j;
    memset(&again, 0, sizeof again);
    rig_start(&one, desc, 1, 0);
    CHECK_EQ_INT(amp_optimizer_set_lr(&one.opt, 0.25f), AMP_OK); /* or the loader's would stay */
    for (k = 0; k <= steps; k++) {
        CHECK_EQ_INT(save(&one.opt, &states[k]), AMP_OK);
        snapshot(&one, snaps[k]);
        if (k < steps) rig_step(&one, k);
    }
    amp_optimizer_free(&one.opt);
    for (k = 0; k <= steps; k++) {
        const uint32_t end = to_end || k % 25 == 1 || k + 3 > steps ? steps : k + 3;
        rig_start_other(&two, desc);
        CHECK_EQ_INT(load(&two.opt, &states[k]), AMP_OK);
        CHECK_EQ_U64(states[k].at, states[k].size);
        same_as(&two, snaps[k]);
        CHECK_EQ_INT(save(&two.opt, &again), AMP_OK);
        stream_equal(&again, &states[k]);
        for (j = k; j < end; j++) {
            rig_step(&two, j);
            same_as(&two, snaps[j + 1]);
        }
        CHECK_EQ_INT(save(&two.opt, &again), AMP_OK);
        stream_equal(&again, &states[end]);
        amp_optimizer_free(&two.opt);
    }
    CHECK_EQ_INT(the_heap.live, 0);
    stream_free(&again);
    for (k = 0; k <= steps; k++) stream_free(&states[k]);
}

TEST(resume_adamw, "law 12: saving and loading at any step, right after a skip included, continues "
                   "bit for bit: AdamW, at each of 300 steps") {
    amp_optimizer_desc desc = desc_of(AMP_KIND_ADAMW, AMP_PRESET_DEFAULT);
    amp_status         status;
    uint32_t           k;
    rig_start(&one, &desc, 1, 0);
    for (k = 0; k < STEPS; k++) rig_step(&one, k);
    CHECK_EQ_INT(amp_optimizer_status(&one.opt, &status), AMP_OK);
    CHECK(status.skipped >= 30 && status.skipped <= 60);
    CHECK(amp_optimizer_scaler(&one.opt)->growths > 5);
    CHECK(amp_optimizer_scaler(&one.opt)->backoffs > 5);
    rig_end(&one);
    resumes(&desc, STEPS, !test_state.quick);
}

TEST(resume_sgd, "law 12: the same for SGD with momentum and Nesterov, at each of 300 steps") {
    amp_optimizer_desc desc = desc_of(AMP_KIND_SGD, AMP_PRESET_DEFAULT);
    resumes(&desc, STEPS, !test_state.quick);
}

TEST(resume_own, "law 12: the same for an optimizer of the user's, at each of 120 steps; for SGD "
                 "without momentum; for plain fp32; with a disabled scaler") {
    amp_optimizer_desc desc = desc_of(AMP_KIND_OWN, AMP_PRESET_DEFAULT);
    resumes(&desc, 120, !test_state.quick);
    desc.dtype = AMP_F32;
    resumes(&desc, 40, 0);
    desc          = desc_of(AMP_KIND_SGD, AMP_PRESET_DEFAULT);
    desc.momentum = 0.0;
    desc.nesterov = 0;
    resumes(&desc, 40, 0);
    desc.scaler.disabled = 1;
    resumes(&desc, 12, 0); /* the scaler's own bit travels too */
}

TEST(resume_extreme_scales, "law 12: a scale of 0 (TORCH), inf (KERAS) or at its floor, stuck "
                            "(DEFAULT) is a state like others") {
    static const amp_preset presets[] = {AMP_PRESET_TORCH, AMP_PRESET_KERAS, AMP_PRESET_DEFAULT};
    unsigned char           want[SNAP];
    stream                  s;
    int                     p, k;
    memset(&s, 0, sizeof s);
    for (p = 0; p < 3; p++) {
        amp_optimizer_desc desc = desc_of(AMP_KIND_SGD, presets[p]);
        amp_scaler        *scaler;
        rig_start(&one, &desc, 1, 0);
        scaler = amp_optimizer_scaler(&one.opt);
        for (k = 0; k < 1200; k++) {
            scaler->found_inf = presets[p] != AMP_PRESET_KERAS;
            CHECK_EQ_INT(amp_scaler_unscale(scaler, NULL, NULL, AMP_F32, 0), AMP_OK);
            CHECK_EQ_INT(amp_scaler_update(scaler), AMP_OK);
        }
        if (p == 0) CHECK_EQ_F32(scaler->scale, 0.0f);
        if (p == 1) CHECK(!amp_all_finite(&scaler->scale, AMP_F32, 1));
        if (p == 2) CHECK_EQ_U64(scaler->stuck, 1);
        CHECK_EQ_INT(save(&one.opt, &s), AMP_OK);
        rig_start_other(&two, &desc);
        CHECK_EQ_INT(load(&two.opt, &s), AMP_OK);
        snapshot(&one, want);
        same_as(&two, want);
        amp_optimizer_free(&one.opt);
        rig_end(&two);
    }
    stream_free(&s);
}

TEST(other_dtype, "manual: model copies are written anew from the masters, so dtype may differ") {
    static const amp_dtype types[] = {AMP_F32, AMP_F16, AMP_BF16};
    unsigned char          wanted[4 * ELEMENTS];
    stream                 s, again;
    int                    from, to, i;
    uint32_t               k;
    memset(&s, 0, sizeof s);
    memset(&again, 0, sizeof again);
    for (from = 0; from < 3; from++)
        for (to = 0; to < 3; to++) {
            amp_optimizer_desc desc = desc_of(AMP_KIND_ADAMW, AMP_PRESET_DEFAULT);
            desc.dtype              = types[from];
            rig_start(&one, &desc, 1, 0);
            for (k = 0; k < 9; k++) rig_step(&one, k);
            CHECK_EQ_INT(save(&one.opt, &s), AMP_OK);
            desc.dtype = types[to];
            rig_start_other(&two, &desc);
            CHECK_EQ_INT(load(&two.opt, &s), AMP_OK);
            for (i = 0; i < COUNT; i++) {
                const float    *master = amp_optimizer_master(&two.opt, i);
                const amp_dtype type   = model_type_of(&two, i);
                CHECK_MEM(master, amp_optimizer_master(&one.opt, i), 4 * specs[i].n);
                CHECK_EQ_INT(amp_cast(wanted, type, master, AMP_F32, specs[i].n), AMP_OK);
                CHECK_MEM(amp_optimizer_model(&two.opt, i), wanted,
                          specs[i].n * amp_dtype_size(type));
            }
            CHECK_EQ_INT(save(&two.opt, &again), AMP_OK); /* a state does not know of dtype */
            stream_equal(&again, &s);
            amp_optimizer_free(&one.opt);
            rig_end(&two);
        }
    stream_free(&s);
    stream_free(&again);
}

TEST(caller_keeps_memory, "contract: the caller's masters are loaded where they are, gradients are "
                          "not touched, and rebind afterwards keeps what was loaded") {
    amp_optimizer_desc desc = desc_of(AMP_KIND_ADAMW, AMP_PRESET_DEFAULT);
    unsigned char      want[SNAP], grads[sizeof one.grads];
    stream             s;
    float              moved[ELEMENTS];
    uint32_t           k;
    memset(&s, 0, sizeof s);
    rig_start(&one, &desc, 1, 0);
    for (k = 0; k < 9; k++) rig_step(&one, k);
    CHECK_EQ_INT(save(&one.opt, &s), AMP_OK);
    rig_start_other(&two, &desc);
    memcpy(grads, two.grads, sizeof grads);
    CHECK_EQ_INT(load(&two.opt, &s), AMP_OK);
    CHECK_MEM(grads, two.grads, sizeof grads);
    CHECK(amp_optimizer_master(&two.opt, 0) == two.weights);
    memcpy(moved, two.weights, sizeof moved);
    CHECK_EQ_INT(amp_optimizer_rebind(&two.opt, 0, moved, NULL), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_rebind(&two.opt, 2, two.weights + offset_of(2), NULL), AMP_OK);
    for (; k < 12; k++) {
        rig_step(&one, k);
        rig_step(&two, k);
        snapshot(&one, want);
        same_as(&two, want);
    }
    amp_optimizer_free(&one.opt);
    rig_end(&two);
    stream_free(&s);
}

/* ============================================================================ refusing a state */

/* What a refused load must leave: everything the API shows, and everything a save would write. */
typedef struct print { unsigned char shown[SNAP]; stream saved; } print;

static void print_take(const rig *r, print *p) {
    memset(p, 0, sizeof *p);
    snapshot(r, p->shown);
    CHECK_EQ_INT(save(&r->opt, &p->saved), AMP_OK);
}

static void print_same(const rig *r, const print *p) {
    static stream now;
    same_as(r, p->shown);
    CHECK_EQ_INT(save(&r->opt, &now), AMP_OK);
    stream_equal(&now, &p->saved);
}

static void refused(rig *r, const print *p, stream *s, amp_result expected) {
    const int live   = the_heap.live;
    const int failed = test_state.failures;
    CHECK_EQ_INT(load(&r->opt, s), expected);
    CHECK_EQ_INT(the_heap.live, live);
    if (test_state.failures == failed) print_same(r, p);
    if (test_state.failures > failed) { /* whole again for the next one */
        stream whole = p->saved;
        load(&r->opt, &whole);
    }
}

/* The state s of a run, in rig two another one, and its print. */
static void refusing_begin(amp_kind kind, stream *s, print *p) {
    amp_optimizer_desc desc = desc_of(kind, AMP_PRESET_DEFAULT);
    uint32_t           k;
    memset(s, 0, sizeof *s);
    rig_start(&one, &desc, 1, 0);
    for (k = 0; k < 12; k++) rig_step(&one, k);
    CHECK_EQ_INT(save(&one.opt, s), AMP_OK);
    amp_optimizer_free(&one.opt);
    rig_start_other(&two, &desc);
    print_take(&two, p);
}

static void refusing_end(stream *s, print *p) {
    CHECK_EQ_INT(load(&two.opt, s), AMP_OK); /* undamaged it is taken */
    stream_free(s);
    stream_free(&p->saved);
    rig_end(&two);
}

/* ------------------------------------------- the format again, written from its description */

enum {
    HEADER = 32, SCALER_AT = 2, PRESET_AT = 20, DISABLED_AT, CONTROL_AT, HAS_LR_AT = CONTROL_AT + 10, LR_AT,
    TENSORS_AT = 40
};

static uint64_t word_get(const unsigned char *p) {
    return (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24 |
           (uint64_t)p[4] << 32 | (uint64_t)p[5] << 40 | (uint64_t)p[6] << 48 |
           (uint64_t)p[7] << 56;
}

static void word_put(unsigned char *p, uint64_t x) {
    int i;
    for (i = 0; i < 8; i++) p[i] = (unsigned char)(x >> (8 * i) & 0xffu);
}

/* "h = (h ^ x) * odd and h ^= h >> 32", eight bytes at a time. */
static uint64_t sum_of(const unsigned char *p, size_t num_bytes) {
    uint64_t h = 0;
    size_t   i;
    for (i = 0; i < num_bytes; i += 8) {
        h = (h ^ word_get(p + i)) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 32;
    }
    return h;
}

static unsigned char *word_at(stream *s, size_t word) { return s->bytes + HEADER + 8 * word; }

/* Make the sums of a changed state right again. */
static void seal(stream *s) {
    word_put(s->bytes + 24, sum_of(s->bytes, 24));
    word_put(s->bytes + s->size - 8, sum_of(s->bytes + HEADER, s->size - HEADER - 8));
}

TEST(newer, "law 12: a newer file gives AMP_ERROR_NEWER, whatever follows its header") {
    static const uint64_t versions[] = {2, 255, 257, 512, UINT32_MAX, (UINT64_C(1) << 32) + 2,
                                        (UINT64_C(4) << 32) + 1, UINT64_MAX}; /* the last but one: a flag */
    stream                s;
    print                 p;
    size_t                v, whole;
    refusing_begin(AMP_KIND_ADAMW, &s, &p);
    whole = s.size;
    CHECK_EQ_U64(word_get(s.bytes + 8), 1);
    for (v = 0; v < sizeof versions / sizeof versions[0]; v++) {
        word_put(s.bytes + 8, versions[v]);
        seal(&s);
        refused(&two, &p, &s, AMP_ERROR_NEWER);
        word_put(s.bytes + 16, word_get(s.bytes + 16) + 8); /* its body may be longer */
        seal(&s);
        refused(&two, &p, &s, AMP_ERROR_NEWER);
        s.size = HEADER;
        refused(&two, &p, &s, AMP_ERROR_NEWER);
        s.size = whole;
        word_put(s.bytes + 16, word_get(s.bytes + 16) - 8);
    }
    word_put(s.bytes + 8, 0); /* there never was one */
    seal(&s);
    refused(&two, &p, &s, AMP_ERROR_CORRUPT);
    word_put(s.bytes + 8, 1);
    word_put(word_at(&s, PRESET_AT), AMP_PRESET_MXNET + 1); /* it would be looked up */
    seal(&s);
    refused(&two, &p, &s, AMP_ERROR_NEWER);
    word_put(word_at(&s, PRESET_AT), UINT32_MAX);
    seal(&s);
    refused(&two, &p, &s, AMP_ERROR_NEWER);
    word_put(word_at(&s, PRESET_AT), AMP_PRESET_DEFAULT);
    seal(&s);
    refusing_end(&s, &p);
}

TEST(bodies, "law 12: a header whose sum is right may tell any length of a body: that of none is AMP_ERROR_CORRUPT") {
    static const uint64_t versions[] = {1, (UINT64_C(3) << 32) + 1};
    stream                s;
    print                 p;
    size_t                v, right, kept;
    refusing_begin(AMP_KIND_ADAMW, &s, &p);
    right = (size_t)word_get(s.bytes + 16);
    kept  = (size_t)word_get(s.bytes + 8);
    for (v = 0; v < sizeof versions / sizeof versions[0]; v++) {
        uint64_t body = 0;
        for (; body < right + 16; body += test_state.quick && body > 700 ? 61 : 1) {
            word_put(s.bytes + 8, versions[v]);
            word_put(s.bytes + 16, body);
            word_put(s.bytes + 24, sum_of(s.bytes, 24));
            if (body % 8) refused(&two, &p, &s, AMP_ERROR_CORRUPT);
            else if (body != right) CHECK(load(&two.opt, &s) != AMP_OK);
        }
        word_put(s.bytes + 16, UINT64_MAX);
        word_put(s.bytes + 24, sum_of(s.bytes, 24));
        refused(&two, &p, &s, AMP_ERROR_CORRUPT);
    }
    word_put(s.bytes + 8, kept);
    word_put(s.bytes + 16, right);
    word_put(s.bytes + 24, sum_of(s.bytes, 24));
    refusing_end(&s, &p);
}

TEST(foreign, "law 12: a foreign file gives AMP_ERROR_FOREIGN, an empty or very short one "
              "AMP_ERROR_READ") {
    static const char others[][9] = {"\x89PNG\r\n\x1a\n", "amp.h is", "AMPSTATF", "BMPSTATE",
                                     "\0\0\0\0\0\0\0\0", "ampstate", "12345678", "ETATSPMA"};
    stream            s, bad;
    print             p;
    size_t            i;
    refusing_begin(AMP_KIND_OWN, &s, &p);
    memset(&bad, 0, sizeof bad);
    for (i = 0; i < sizeof others / sizeof others[0]; i++) {
        bad.size = 0;
        CHECK(stream_write(&bad, others[i], 8));
        refused(&two, &p, &bad, AMP_ERROR_FOREIGN);
        CHECK(stream_write(&bad, s.bytes, s.size)); /* a state does not start in the middle */
        refused(&two, &p, &bad, AMP_ERROR_FOREIGN);
    }
    bad.size = 0;
    refused(&two, &p, &bad, AMP_ERROR_READ);
    bad.size = 7;
    refused(&two, &p, &bad, AMP_ERROR_READ);
    stream_free(&bad);
    refusing_end(&s, &p);
}

static uint64_t bits32(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static uint64_t bits64(double x) {
    uint64_t u;
    memcpy(&u, &x, 8);
    return u;
}

TEST(formats_named, "law 19: a file with a storage format that is not the optimizer's, or that nobody knows, is refused by "
                    "name; masters of fp32 are loaded from every format") {
    unsigned char *word;
    stream         s;
    print          p;
    refusing_begin(AMP_KIND_ADAMW, &s, &p);
    word                 = word_at(&s, TENSORS_AT + 3);
    CHECK_EQ_U64(word_get(word), AMP_FORMAT_F32);
    word_put(word, AMP_FORMAT_SR);
    seal(&s);
    CHECK_EQ_INT(load(&two.opt, &s), AMP_OK);
    CHECK_EQ_INT(load(&two.opt, &p.saved), AMP_OK);
    word_put(word, AMP_FORMAT_F32);
    word = word_at(&s, TENSORS_AT + 2);
    word_put(word, AMP_FORMAT_8BIT);
    seal(&s);
    CHECK_EQ_INT(load(&two.opt, &s), AMP_ERROR_MISMATCH);
    CHECK(strstr(amp_problem(), "tensor 0 (odd): amp_storage.moments is 8bit in the file, not fp32") == amp_problem());
    word_put(word, UINT64_MAX);
    seal(&s);
    CHECK_EQ_INT(load(&two.opt, &s), AMP_ERROR_MISMATCH);
    CHECK(strstr(amp_problem(), "amp_storage.moments is unknown in the file, not fp32") != NULL);
    word_put(word, AMP_FORMAT_F32);
    seal(&s);
    refusing_end(&s, &p);
}

TEST(any_number, "law 12: bytes with right sums can make a bad number, never a bad address: whatever a number is, the file "
                 "loads, steps go on, and a save never refuses; what is saved again has its bytes") {
    static const uint64_t bits[] = {0, 1, 2, 0x7f800000, 0x7fc00000, 0x80000000, 0xbf800000, UINT32_MAX, UINT64_C(1) << 63,
                                    UINT64_C(0x7ff0000000000000), UINT64_C(0x7ff8000000000000), UINT64_MAX};
    enum { BITS = sizeof bits / sizeof *bits };
    stream                s, again;
    print                 p;
    size_t                at, k, w;
    memset(&again, 0, sizeof again);
    refusing_begin(AMP_KIND_ADAMW, &s, &p);
    for (at = SCALER_AT; at < TENSORS_AT + 6; at++) {
        const uint64_t is = word_get(word_at(&s, at));
        if (at == PRESET_AT || (at >= TENSORS_AT && at < TENSORS_AT + 4)) continue; /* n, moments, formats */
        for (k = 0; k < BITS; k++) {
            word_put(word_at(&s, at), bits[k]);
            seal(&s);
            CHECK_EQ_INT(load(&two.opt, &s), AMP_OK);
            CHECK_EQ_INT(save(&two.opt, &again), AMP_OK);
            for (w = SCALER_AT; w < TENSORS_AT + 6 && at != DISABLED_AT; w++) { /* of 4 bytes or 8 */
                const uint64_t got = word_get(word_at(&again, w)), want = word_get(word_at(&s, w));
                if (w == HAS_LR_AT || (at == HAS_LR_AT && w == LR_AT)) continue;
                CHECK(got == want || (w == at && got == (want & UINT32_MAX)));
            }
            rig_grads(&two, (uint32_t)k);
            CHECK_EQ_INT(amp_optimizer_step(&two.opt, 0.125f), AMP_OK);
            CHECK_EQ_INT(amp_optimizer_step(&two.opt, 0.125f), AMP_OK);
            CHECK_EQ_INT(save(&two.opt, &again), AMP_OK);
            CHECK_EQ_INT(load(&two.opt, &again), AMP_OK);
        }
        word_put(word_at(&s, at), is);
    }
    seal(&s);
    stream_free(&again);
    refusing_end(&s, &p);
}

/* --------------------------------------------------------------------------- another optimizer */

typedef struct shape { const char *name; size_t n; int grad; } shape; /* grad 2: and own */

static float shape_weights[64], shape_grads[64];

static void shape_start(amp_optimizer *opt, amp_kind kind, double momentum, const shape *shapes,
                        int count) {
    amp_optimizer_desc d = desc_of(kind, AMP_PRESET_DEFAULT);
    int                i;
    d.momentum = momentum;
    d.nesterov = 0;
    CHECK_EQ_INT(amp_optimizer_init(opt, &d), AMP_OK);
    for (i = 0; i < count; i++) {
        amp_tensor t;
        memset(&t, 0, sizeof t);
        t.name   = shapes[i].name;
        t.n      = shapes[i].n;
        t.weight = shape_weights + 16 * i;
        t.grad   = shapes[i].grad ? shape_grads + 16 * i : NULL;
        t.own    = shapes[i].grad == 2;
        t.frozen = !shapes[i].grad;
        CHECK_EQ_INT(amp_optimizer_add(opt, &t), AMP_OK);
    }
    CHECK_EQ_INT(prepare_scaled(opt), AMP_OK);
}

/* ============================================== what a file decides, and what the loader keeps */

/* An AdamW optimizer of one tensor, and what it takes to make a state of it. */
static float little_w[4], little_g[4];

static void little_start(amp_optimizer *opt, const amp_scaler_desc *scaler) {
    amp_optimizer_desc d;
    amp_tensor         t;
    memset(&d, 0, sizeof d);
    d.kind    = AMP_KIND_ADAMW;
    d.dtype   = AMP_F16;
    if (scaler) d.scaler = *scaler;
    CHECK_EQ_INT(amp_optimizer_init(opt, &d), AMP_OK);
    memset(&t, 0, sizeof t);
    t.name   = "w";
    t.n      = 4;
    t.weight = little_w;
    t.grad   = little_g;
    CHECK_EQ_INT(amp_optimizer_add(opt, &t), AMP_OK);
    CHECK_EQ_INT(prepare_scaled(opt), AMP_OK);
}

/* Scalers of the file and of the loader: one that moves, two fixed ones, none. */
enum { MOVES, FIXED, ONE, OFF, WAYS };
static amp_scaler_desc way_of(int way, float scale) {
    amp_scaler_desc d;
    memset(&d, 0, sizeof d);
    d.preset   = way == FIXED ? AMP_PRESET_STATIC : way == ONE ? AMP_PRESET_NONE : AMP_PRESET_DEFAULT;
    d.disabled = way == OFF;
    if (way < ONE) d.init_scale = scale;
    return d;
}

static void unscaled_start(amp_optimizer *opt, const amp_scaler_desc *scaler) {
    little_start(opt, scaler);
    opt->plan->scale_use = scaler->preset == AMP_PRESET_NONE || scaler->disabled ? AMPI_SCALE_KNOWN : AMPI_SCALE_UNREAD;
}

TEST(longer, "law 12: a file with more than the optimizer's arrays is another's, and its sum is not asked") {
    static const unsigned char more[8] = {1};
    amp_optimizer x;
    stream        s;
    uint32_t      before;
    memset(&s, 0, sizeof s);
    little_start(&x, NULL);
    CHECK_EQ_INT(save(&x, &s), AMP_OK);
    CHECK(stream_write(&s, more, sizeof more));
    word_put(s.bytes + 16, s.size - HEADER - 8);
    seal(&s);
    memcpy(&before, &little_w[0], 4);
    CHECK_EQ_INT(load(&x, &s), AMP_ERROR_MISMATCH);
    CHECK_MEM(&before, little_w, 4);
    amp_optimizer_free(&x);
    stream_free(&s);
}

TEST(whose_scaler, "manual: a load takes the file's scaler, unless one of file and desc has a scale that moves and the other has "
                   "none, or one is disabled; where the scale may be another than the loop's, steps are "
                   "AMP_ERROR_BAD_STATE until it is read") {
    int from, to, shared;
    for (from = 0; from < WAYS; from++)
        for (to = 0; to < WAYS; to++)
            for (shared = 0; shared < 2; shared++) {
                const amp_scaler_desc theirs = way_of(from, from == MOVES ? 1024.0f : 2048.0f), ours = way_of(to, 0.0f);
                const int             taken  = (from == MOVES) == (to == MOVES) && (from == OFF) == (to == OFF);
                const float           fresh  = to < ONE ? 65536.0f : 1.0f;
                const float           scale  = !taken ? fresh : from == MOVES ? 1024.0f : from == FIXED ? 2048.0f : 1.0f;
                const int             known  = shared || (from == MOVES && to == MOVES) || scale == 1.0f;
                const uint32_t        inf    = UINT32_C(0x7f800000);
                amp_scaler            mine;
                amp_optimizer         x, y;
                stream                s;
                float                 w;
                memset(&s, 0, sizeof s);
                little_start(&x, &theirs);
                CHECK_EQ_INT(amp_optimizer_step(&x, 0.5f), AMP_OK);
                CHECK_EQ_INT(save(&x, &s), AMP_OK);
                unscaled_start(&y, &ours);
                CHECK_EQ_INT(amp_scaler_init(&mine, &ours), AMP_OK);
                if (shared) y.plan->shared = 1, y.plan->scaler = &mine, y.plan->scale_use = AMPI_SCALE_KNOWN;
                CHECK_EQ_INT(load(&y, &s), AMP_OK);
                CHECK_EQ_F32(y.plan->scaler->scale, scale);
                CHECK_EQ_U32(y.plan->scaler->disabled, to == OFF);
                little_g[0] = 1.0f;
                memcpy(&little_g[1], &inf, 4);
                w = little_w[0];
                if (!known) CHECK_EQ_INT(amp_optimizer_step(&y, 0.5f), AMP_ERROR_BAD_STATE);
                if (!known) CHECK_EQ_F32(amp_optimizer_loss_scale(&y), scale);
                CHECK_EQ_INT(amp_optimizer_step(&y, 0.5f), AMP_OK);
                CHECK_EQ_INT(amp_optimizer_gate(&y)->skip != 0, to != OFF);
                if (to != OFF) CHECK_EQ_F32(little_w[0], w);
                memset(little_g, 0, sizeof little_g);
                memset(little_w, 0, sizeof little_w);
                amp_optimizer_free(&x);
                amp_optimizer_free(&y);
                stream_free(&s);
            }
}

TEST(known_scale_changes, "manual: a scale that desc gave, or that was read before a load, is not the loaded one: steps are "
                          "AMP_ERROR_BAD_STATE until it is read; a pointer shows it") {
    int way;
    for (way = 0; way < 4; way++) { /* init_scale of desc; loss_scale, loss_scale_ptr, scaler, each before the load */
        amp_scaler_desc theirs = way_of(way ? FIXED : ONE, 2048.0f), ours = way_of(way ? ONE : FIXED, 1024.0f);
        amp_optimizer   x, y;
        stream          s;
        memset(&s, 0, sizeof s);
        little_start(&x, &theirs);
        CHECK_EQ_INT(save(&x, &s), AMP_OK);
        unscaled_start(&y, &ours);
        y.plan->scale_use = AMPI_SCALE_KNOWN;
        if (way == 1) (void)amp_optimizer_loss_scale(&y);
        if (way == 2) (void)amp_optimizer_loss_scale_ptr(&y);
        if (way == 3) (void)amp_optimizer_scaler(&y);
        CHECK_EQ_INT(load(&y, &s), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_step(&y, 0.5f), way < 2 ? AMP_ERROR_BAD_STATE : AMP_OK);
        CHECK_EQ_F32(amp_optimizer_loss_scale(&y), way ? 2048.0f : 1.0f);
        CHECK_EQ_INT(amp_optimizer_step(&y, 0.5f), AMP_OK);
        amp_optimizer_free(&x);
        amp_optimizer_free(&y);
        stream_free(&s);
    }
}

TEST(moments_missing, "manual: AdamW that goes on from steps whose moments were not set is AMP_ERROR_BAD_STATE behind save and "
                      "load, too, until they are set or loaded") {
    static const float first[4] = {0.5f, 0.5f, 0.5f, 0.5f};
    amp_optimizer_desc d        = desc_of(AMP_KIND_ADAMW, AMP_PRESET_NONE);
    amp_optimizer      x[2];
    amp_tensor         t;
    stream             missing, set;
    int                k;
    memset(&missing, 0, sizeof missing);
    memset(&set, 0, sizeof set);
    memset(&t, 0, sizeof t);
    t.n                 = 4;
    t.weight            = little_w;
    t.grad              = little_g;
    for (k = 0; k < 2; k++) {
        CHECK_EQ_INT(amp_optimizer_init(&x[k], &d), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_add(&x[k], &t), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_prepare(&x[k]), AMP_OK);
    }
    CHECK_EQ_INT(amp_optimizer_set_steps(&x[0], 7, 0), AMP_OK);
    CHECK_EQ_INT(save(&x[0], &missing), AMP_OK);
    CHECK_EQ_U64(word_get(word_at(&missing, TENSORS_AT + 1)), 3 + 8);
    CHECK_EQ_INT(load(&x[1], &missing), AMP_OK);
    for (k = 0; k < 2; k++) {
        CHECK_EQ_INT(amp_optimizer_step(&x[k], 0.5f), AMP_ERROR_BAD_STATE);
        CHECK_EQ_INT(amp_optimizer_set_moments(&x[k], 0, first, first), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_step(&x[k], 0.5f), AMP_OK);
    }
    CHECK_EQ_INT(save(&x[1], &set), AMP_OK);
    CHECK_EQ_U64(word_get(word_at(&set, TENSORS_AT + 1)), 3);
    CHECK_EQ_INT(load(&x[0], &missing), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_step(&x[0], 0.5f), AMP_ERROR_BAD_STATE);
    CHECK_EQ_INT(load(&x[0], &set), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_step(&x[0], 0.5f), AMP_OK);
    memset(little_w, 0, sizeof little_w);
    for (k = 0; k < 2; k++) amp_optimizer_free(&x[k]);
    stream_free(&missing);
    stream_free(&set);
}

/* Memory that holds a file's body already: what is compared beyond the end of a shorter one would be alike. */
static const stream *prefill;
static void *prefilled_alloc(void *user, size_t num_bytes) {
    unsigned char *memory = (unsigned char *)malloc(num_bytes);
    (void)user;
    if (memory) memcpy(memory, prefill->bytes + HEADER, num_bytes < prefill->size - HEADER ? num_bytes : prefill->size - HEADER);
    return memory;
}
static void prefilled_free(void *user, void *memory) {
    (void)user;
    free(memory);
}

TEST(name_behind_the_end, "law 12: a body that ends in front of a name, or in it, is refused for that name, of which no byte "
                          "behind the end is read; a length that no memory has tells what is there") {
    stream s, cut;
    print  p;
    size_t k, whole;
    memset(&cut, 0, sizeof cut);
    refusing_begin(AMP_KIND_ADAMW, &s, &p);
    stream_copy(&cut, &s);
    whole                              = cut.size;
    prefill                            = &s;
    two.opt.desc.allocator.allocate_fn = prefilled_alloc;
    two.opt.desc.allocator.release_fn  = prefilled_free;
    for (k = 0; k < 2; k++) { /* tensor 4 is "model only": its name takes two words */
        const size_t end = TENSORS_AT + 4 * 8 + 7 + k; /* the names in front of it take a word each */
        cut.size         = HEADER + 8 * end + 8;
        word_put(cut.bytes + 16, 8 * end);
        word_put(cut.bytes + 24, sum_of(cut.bytes, 24));
        CHECK_EQ_INT(load(&two.opt, &cut), AMP_ERROR_MISMATCH);
        CHECK(strcmp(amp_problem(), k ? "tensor 4 (model only): its name in the file is \"model on\""
                            : "tensor 4 (model only): its name in the file is \"\"") == 0);
    }
    stream_copy(&cut, &s);
    CHECK_EQ_U64(cut.size, whole);
    for (k = 0; k < 3; k++) { /* its length is not what it has */
        const uint64_t lengths[] = {4, UINT64_C(1) << 32, UINT64_MAX};
        word_put(word_at(&cut, TENSORS_AT + 6), lengths[k]);
        seal(&cut);
        CHECK_EQ_INT(load(&two.opt, &cut), AMP_ERROR_MISMATCH);
        CHECK(strstr(amp_problem(), "tensor 0 (odd): its name in the file is \"odd") == amp_problem());
    }
    two.opt.desc.allocator.allocate_fn = heap_alloc;
    two.opt.desc.allocator.release_fn  = heap_free;
    stream_free(&cut);
    refusing_end(&s, &p);
}

TEST(large_integers, "law 19: integers are told to the last digit, those that no double has, too") {
    stream s;
    print  p;
    refusing_begin(AMP_KIND_ADAMW, &s, &p);
    word_put(word_at(&s, 1), UINT64_C(9007199254740993));
    seal(&s);
    CHECK_EQ_INT(load(&two.opt, &s), AMP_ERROR_MISMATCH);
    CHECK(strcmp(amp_problem(), "the number of tensors is 9007199254740993 in the file, not 9") == 0);
    word_put(word_at(&s, 1), UINT64_MAX);
    seal(&s);
    CHECK_EQ_INT(load(&two.opt, &s), AMP_ERROR_MISMATCH);
    CHECK(strcmp(amp_problem(), "the number of tensors is 18446744073709551615 in the file, not 9") == 0);
    word_put(word_at(&s, 1), COUNT);
    seal(&s);
    refusing_end(&s, &p);
}

static void told_between(amp_kind from, const shape *xs, int nx, const shape *ys, int ny, amp_kind kind,
                         const char *text) {
    amp_optimizer x, y;
    stream        s;
    memset(&s, 0, sizeof s);
    shape_start(&x, from, 0.0, xs, nx);
    shape_start(&y, kind, 0.0, ys, ny);
    CHECK_EQ_INT(save(&x, &s), AMP_OK);
    CHECK_EQ_INT(load(&y, &s), AMP_ERROR_MISMATCH);
    if (strcmp(amp_problem(), text) != 0) test_fail(__FILE__, __LINE__, text, amp_problem());
    amp_optimizer_free(&x);
    amp_optimizer_free(&y);
    stream_free(&s);
}

static void told_mismatch(const shape *xs, int nx, const shape *ys, int ny, amp_kind kind,
                          const char *text) {
    told_between(AMP_KIND_ADAMW, xs, nx, ys, ny, kind, text);
}

TEST(own_tensors, "law 12: a tensor that is own has 4 in a file, and its masters, no moments. It is loaded where the same "
                  "tensors are own, else AMP_ERROR_MISMATCH names the first that is on one side alone") {
    static const shape kind_of[] = {{"a", 3, 1}, {"b", 2, 1}}, own_b[] = {{"a", 3, 1}, {"b", 2, 2}};
    static const shape own_a[]   = {{"a", 3, 2}, {"b", 2, 1}}, frozen_b[] = {{"a", 3, 1}, {"b", 2, 0}};
    static const char  is[] = "tensor 1 (b): amp_tensor.own is 1 in the file, not 0";
    static const char  isnt[] = "tensor 1 (b): amp_tensor.own is 0 in the file, not 1";
    amp_optimizer      x, y;
    stream             s, again;
    int                kind;
    for (kind = AMP_KIND_ADAMW; kind <= AMP_KIND_LION; kind++) {
        const uint64_t has = kind == AMP_KIND_ADAMW ? 3 : kind == AMP_KIND_LION ? 1 : 0;
        memset(&s, 0, sizeof s);
        memset(&again, 0, sizeof again);
        shape_start(&x, (amp_kind)kind, 0.0, own_b, 2);
        CHECK_EQ_INT(amp_optimizer_set_lr(&x, 0.5f), AMP_OK);
        CHECK(amp_optimizer_begin_step(&x));
        shape_weights[16] = 5.0f;
        CHECK_EQ_INT(amp_optimizer_end_step(&x), AMP_OK);
        CHECK_EQ_INT(save(&x, &s), AMP_OK);
        CHECK_EQ_U64(word_get(word_at(&s, TENSORS_AT + 1)), has); /* of a */
        CHECK_EQ_U64(word_get(word_at(&s, TENSORS_AT + 9)), 4);   /* of b: no storage, no moments */
        CHECK_EQ_U64(word_get(word_at(&s, TENSORS_AT + 10)) | word_get(word_at(&s, TENSORS_AT + 11)), 0);
        CHECK_EQ_U64(s.size, HEADER + 8 * (TENSORS_AT + 16 + 2 * (1 + has / 2 + has % 2) + 1 + 1));
        shape_weights[16] = 0.0f;
        shape_start(&y, (amp_kind)kind, 0.0, own_b, 2);
        CHECK_EQ_INT(load(&y, &s), AMP_OK);
        CHECK_EQ_F32(shape_weights[16], 5.0f);
        CHECK_EQ_F32(amp_f16_to_f32(*(const amp_f16 *)amp_optimizer_model(&y, 1)), 5.0f);
        CHECK_EQ_INT(save(&y, &again), AMP_OK);
        stream_equal(&s, &again);
        amp_optimizer_free(&x);
        amp_optimizer_free(&y);
        stream_free(&s);
        stream_free(&again);
        told_between((amp_kind)kind, own_b, 2, kind_of, 2, (amp_kind)kind, is);
        told_between((amp_kind)kind, kind_of, 2, own_b, 2, (amp_kind)kind, isnt);
        told_between((amp_kind)kind, own_b, 2, frozen_b, 2, (amp_kind)kind, is);
        told_between((amp_kind)kind, own_a, 2, own_b, 2, (amp_kind)kind,
                         "tensor 0 (a): amp_tensor.own is 1 in the file, not 0");
    }
}

TEST(mismatch_named, "law 19: AMP_ERROR_MISMATCH says what is otherwise: kind, number, and of which "
                     "tensor the size, the name, the moments") {
    static const shape a[] = {{"fc1", 3, 1}, {"fc2", 5, 1}}, b[] = {{"fc1", 3, 1}, {"fc2", 4, 1}};
    static const shape c[] = {{"fc1", 3, 1}, {"fc3", 5, 1}}, d[] = {{"fc1", 3, 1}, {NULL, 5, 1}};
    static const shape e[] = {{"fc1", 3, 0}, {"fc2", 5, 1}}, f[] = {{"fc1", 3, 1}, {"last", 5, 1}};
    static const shape long_one[] = {
        {"a name that is longer than what is shown of the others, which is "
         "ninety-five bytes and no more, whatever comes", 1, 1}};
    static const shape one_of[]   = {{"x", 1, 1}};
    told_mismatch(a, 2, b, 2, AMP_KIND_ADAMW, "tensor 1 (fc2): its size is 5 in the file, not 4");
    told_mismatch(a, 2, c, 2, AMP_KIND_ADAMW, "tensor 1 (fc3): its name in the file is \"fc2\"");
    told_mismatch(a, 2, f, 2, AMP_KIND_ADAMW, "tensor 1 (last): its name in the file is \"fc2\"");
    told_mismatch(a, 2, d, 2, AMP_KIND_ADAMW, "tensor 1: its name in the file is \"fc2\"");
    told_mismatch(d, 2, a, 2, AMP_KIND_ADAMW, "tensor 1 (fc2): its name in the file is \"\"");
    told_mismatch(a, 2, e, 2, AMP_KIND_ADAMW,
               "tensor 0 (fc1): which moments it has (frozen: 0) is 3 in the file, not 0");
    told_mismatch(a, 2, a, 1, AMP_KIND_ADAMW, "the number of tensors is 2 in the file, not 1");
    told_mismatch(a, 1, a, 2, AMP_KIND_ADAMW, "the number of tensors is 1 in the file, not 2");
    told_mismatch(a, 2, a, 2, AMP_KIND_SGD, "desc.kind is 1 in the file, not 2");
    told_mismatch(long_one, 1, one_of, 1, AMP_KIND_ADAMW,
               "tensor 0 (x): its name in the file is "
               "\"a name that is longer than what is shown of the others, which is ninety-five bytes and no more,\"");
}

/* ================================================================================ the format */

/* Two tensors through a good step and an overflow. */
static float golden_w[3], golden_g[3], golden_bias[1];

static void golden_start(amp_optimizer *opt, double beta1, float fill) {
    amp_optimizer_desc d;
    amp_tensor         t;
    memset(&d, 0, sizeof d);
    d.kind                   = AMP_KIND_ADAMW;
    d.dtype                  = AMP_F16;
    d.beta1                  = beta1;
    d.weight_decay           = 0.5f;
    d.scaler.growth_interval = 10;
    golden_w[0] = golden_w[1] = golden_w[2] = golden_bias[0] = fill;
    CHECK_EQ_INT(amp_optimizer_init(opt, &d), AMP_OK);
    memset(&t, 0, sizeof t);
    t.name   = "layer.weight";
    t.n      = 3;
    t.weight = golden_w;
    t.grad   = golden_g;
    CHECK_EQ_INT(amp_optimizer_add(opt, &t), AMP_OK);
    t.name     = NULL;
    t.n        = 1;
    t.weight   = golden_bias;
    t.grad     = NULL;
    t.frozen   = 1;
    t.lr_scale = 0.25f;
    CHECK_EQ_INT(amp_optimizer_add(opt, &t), AMP_OK);
    CHECK_EQ_INT(prepare_scaled(opt), AMP_OK);
}

static void golden_run(amp_optimizer *opt) {
    static const float    g[] = {65536.0f, -131072.0f, 0.0f};
    static const uint32_t inf = 0x7f800000u;
    golden_start(opt, 0.75, 1.0f);
    memcpy(golden_g, g, sizeof g);
    CHECK_EQ_INT(amp_optimizer_step(opt, 0.25f), AMP_OK);
    memcpy(&golden_g[1], &inf, 4);
    CHECK_EQ_INT(amp_optimizer_step(opt, 0.25f), AMP_OK);
}

/* Version 1, a word a line. */
static const uint64_t golden[] = {
    UINT64_C(0x4554415453504d41), /* "AMPSTATE" */
    UINT64_C(0x0000000000000001), /* version; flags are the upper half */
    UINT64_C(0x00000000000001f8), /* bytes of the body */
    UINT64_C(0x616a24066ec33804), /* sum of the header */
    UINT64_C(0x0000000000000001), /* kind: AdamW */
    UINT64_C(0x0000000000000002), /* tensors */
    UINT64_C(0x0000000047000000), /* scale: 2^15 */
    UINT64_C(0x40e0000000000000), /* next_scale: 2^15 */
    UINT64_C(0x0000000000000000), /* found_inf */
    UINT64_C(0x0000000000000000), /* checked */
    UINT64_C(0x0000000000000000), /* stuck */
    UINT64_C(0x0000000000000001), /* good */
    UINT64_C(0x0000000000000001), /* skipped */
    UINT64_C(0x0000000000000001), /* skipped in a row */
    UINT64_C(0x0000000000000000), /* growths */
    UINT64_C(0x0000000000000001), /* backoffs */
    UINT64_C(0x4000000000000000), /* growth_factor: 2 */
    UINT64_C(0x3fe0000000000000), /* backoff_factor: 1/2 */
    UINT64_C(0x000000000000000a), /* growth_interval */
    UINT64_C(0x0000000000000000), /* growth_tracker */
    UINT64_C(0x0000000000000001), /* hysteresis */
    UINT64_C(0x0000000000000001), /* hysteresis_tracker */
    UINT64_C(0x0000000038800000), /* min_scale: 2^-14 */
    UINT64_C(0x000000004b800000), /* max_scale: 2^24 */
    UINT64_C(0x0000000000000000), /* preset: DEFAULT */
    UINT64_C(0x0000000000000000), /* disabled */
    UINT64_C(0x0000000000000001), /* steps that were taken */
    UINT64_C(0x0000000000000001), /* skipped */
    UINT64_C(0x0000000000000001), /* skipped in a row */
    UINT64_C(0x0000000000000000), /* missed updates of a shared scaler */
    UINT64_C(0x0000000000000001), /* of the last step: skip */
    UINT64_C(0x0000000037800000), /* inv_scale: 2^-16 */
    UINT64_C(0x3ff0000000000000), /* norm: 1, of the finite elements */
    UINT64_C(0x000000003f800000), /* clip_factor: 1 */
    UINT64_C(0x0000000000000001), /* found_inf */
    UINT64_C(0x0000000000000000), /* did_step */
    UINT64_C(0x0000000000000001), /* there is a learning rate */
    UINT64_C(0x000000003e800000), /* lr: 0.25 */
    UINT64_C(0x3fe8000000000000), /* beta1: 0.75 */
    UINT64_C(0x3feff7ced916872b), /* beta2: 0.999 */
    UINT64_C(0x00000000322bcc77), /* eps: 1e-8 */
    UINT64_C(0x0000000000000000), /* momentum */
    UINT64_C(0x0000000000000000), /* nesterov */
    UINT64_C(0x0000000000000000), /* max_norm */
    UINT64_C(0x0000000000000003), /* first tensor: elements */
    UINT64_C(0x0000000000000003), /* has m and v */
    UINT64_C(0x0000000000000000), /* of fp32 */
    UINT64_C(0x0000000000000000), /* masters of fp32 */
    UINT64_C(0x000000003f800000), /* lr_scale: 1 */
    UINT64_C(0x000000003f000000), /* weight_decay: 0.5 */
    UINT64_C(0x000000000000000c), /* bytes of the name */
    UINT64_C(0x65772e726579616c), /* "layer.we" */
    UINT64_C(0x0000000074686769), /* "ight" */
    UINT64_C(0x0000000000000001), /* second tensor: elements */
    UINT64_C(0x0000000000000000), /* is frozen */
    UINT64_C(0x0000000000000000), /* so no moments */
    UINT64_C(0x0000000000000000), /* masters of fp32 */
    UINT64_C(0x000000003e800000), /* lr_scale: 0.25 */
    UINT64_C(0x000000003f000000), /* weight_decay: 0.5 */
    UINT64_C(0x0000000000000000), /* no name */
    UINT64_C(0x3f9000003f200000), /* master: 0.625, 1.125 */
    UINT64_C(0x000000003f600000), /* 0.875 */
    UINT64_C(0xbf0000003e800000), /* m: 0.25, -0.5 */
    UINT64_C(0x0000000000000000), /* 0 */
    UINT64_C(0x3b83126f3a83126f), /* v: 0.001, 0.004 */
    UINT64_C(0x0000000000000000), /* 0 */
    UINT64_C(0x000000003f800000), /* master: 1 */
    UINT64_C(0x5429a1bf02f516ab)  /* sum of the body */
};

enum { GOLDEN = sizeof golden / sizeof golden[0] };

TEST(golden_written, "law 12: one little-endian format: the bytes of version 1 are these") {
    amp_optimizer opt;
    stream        s;
    size_t        i;
    memset(&s, 0, sizeof s);
    golden_run(&opt);
    CHECK_EQ_INT(save(&opt, &s), AMP_OK);
    CHECK_EQ_U64(s.size, 8 * GOLDEN);
    for (i = 0; i < GOLDEN && 8 * i < s.size; i++) {
        char what[32];
        snprintf(what, sizeof what, "word %d", (int)i);
        test_eq_u64(__FILE__, __LINE__, what, word_get(s.bytes + 8 * i), golden[i]);
    }
    amp_optimizer_free(&opt);
    stream_free(&s);
}

static void golden_goes_on(const stream *old) {
    amp_optimizer opt, fresh;
    amp_status    status;
    stream        s, go_on;
    float         w[3];
    memset(&s, 0, sizeof s);
    memset(&go_on, 0, sizeof go_on);
    stream_copy(&s, old);
    golden_run(&opt);
    golden_g[0] = golden_g[1] = golden_g[2] = 16384.0f;
    CHECK_EQ_INT(amp_optimizer_step(&opt, 0.125f), AMP_OK);
    CHECK_EQ_INT(save(&opt, &go_on), AMP_OK);
    memcpy(w, golden_w, sizeof w);
    amp_optimizer_free(&opt);

    golden_start(&fresh, 0.5, -3.0f);
    CHECK_EQ_INT(load(&fresh, &s), AMP_OK);
    CHECK_EQ_F32(golden_bias[0], 1.0f);
    CHECK_EQ_INT(amp_optimizer_status(&fresh, &status), AMP_OK);
    CHECK_EQ_U64(status.steps, 1);
    CHECK_EQ_U64(status.skipped, 1);
    CHECK_EQ_U64(status.did_step, 0);
    CHECK_EQ_U64(status.found_inf, 1);
    CHECK_EQ_F32(status.loss_scale, 32768.0f);
    CHECK_EQ_INT(amp_optimizer_step(&fresh, 0.125f), AMP_OK);
    CHECK_MEM(golden_w, w, sizeof w);
    CHECK_EQ_INT(save(&fresh, &s), AMP_OK);
    stream_equal(&s, &go_on);
    amp_optimizer_free(&fresh);
    stream_free(&s);
    stream_free(&go_on);
}

TEST(golden_read, "law 12: these bytes are read, and the run goes on as it would have") {
    stream s;
    size_t i;
    memset(&s, 0, sizeof s);
    for (i = 0; i < GOLDEN; i++) {
        unsigned char word[8];
        word_put(word, golden[i]);
        CHECK(stream_write(&s, word, 8));
    }
    golden_goes_on(&s);
    stream_free(&s);
}

/* An independent reader: walks a state by its description and compares it with what the API shows.
   Returns the place behind what it read. */
static size_t read_numbers(const stream *s, rig *r) {
    const amp_scaler    *scaler = amp_optimizer_scaler(&r->opt);
    const amp_gate      *gate   = amp_optimizer_gate(&r->opt);
    const unsigned char *p      = s->bytes + HEADER;
    amp_status           status;
    CHECK_EQ_INT(amp_optimizer_status(&r->opt, &status), AMP_OK);
    CHECK_MEM(s->bytes, "AMPSTATE", 8);
    CHECK_EQ_U64(word_get(s->bytes + 8), 1);
    CHECK_EQ_U64(word_get(s->bytes + 16), s->size - HEADER - 8);
    CHECK_EQ_U64(word_get(s->bytes + 24), sum_of(s->bytes, 24));
    CHECK_EQ_U64(word_get(s->bytes + s->size - 8),
                 sum_of(s->bytes + HEADER, s->size - HEADER - 8));
    CHECK_EQ_U64(word_get(p), r->opt.desc.kind);
    CHECK_EQ_U64(word_get(p + 8), COUNT);
    p += 8 * SCALER_AT;
    CHECK_EQ_U64(word_get(p), bits32(scaler->scale));
    CHECK_EQ_U64(word_get(p + 8), bits64(scaler->next_scale));
    CHECK_EQ_U64(word_get(p + 16), scaler->found_inf);
    CHECK_EQ_U64(word_get(p + 24), scaler->checked);
    CHECK_EQ_U64(word_get(p + 32), scaler->stuck);
    CHECK_EQ_U64(word_get(p + 40), scaler->good);
    CHECK_EQ_U64(word_get(p + 48), scaler->skipped);
    CHECK_EQ_U64(word_get(p + 56), scaler->skipped_in_a_row);
    CHECK_EQ_U64(word_get(p + 64), scaler->growths);
    CHECK_EQ_U64(word_get(p + 72), scaler->backoffs);
    CHECK_EQ_U64(word_get(p + 80), bits64(scaler->growth_factor));
    CHECK_EQ_U64(word_get(p + 88), bits64(scaler->backoff_factor));
    CHECK_EQ_U64(word_get(p + 96), (uint32_t)scaler->growth_interval);
    CHECK_EQ_U64(word_get(p + 104), (uint32_t)scaler->growth_tracker);
    CHECK_EQ_U64(word_get(p + 112), (uint32_t)scaler->hysteresis);
    CHECK_EQ_U64(word_get(p + 120), (uint32_t)scaler->hysteresis_tracker);
    CHECK_EQ_U64(word_get(p + 128), bits32(scaler->min_scale));
    CHECK_EQ_U64(word_get(p + 136), bits32(scaler->max_scale));
    CHECK_EQ_U64(word_get(p + 144), scaler->preset);
    CHECK_EQ_U64(word_get(p + 152), scaler->disabled);
    p = s->bytes + HEADER + 8 * CONTROL_AT;
    CHECK_EQ_U64(word_get(p), gate->step);
    CHECK_EQ_U64(word_get(p + 8), status.skipped);
    CHECK_EQ_U64(word_get(p + 16), status.skipped_in_a_row);
    CHECK_EQ_U64(word_get(p + 24), status.missed_updates);
    CHECK_EQ_U64(word_get(p + 32), gate->skip);
    CHECK_EQ_U64(word_get(p + 40), bits32(gate->inv_scale));
    CHECK_EQ_U64(word_get(p + 48), bits64(status.norm));
    CHECK_EQ_U64(word_get(p + 56), bits32(status.clip_factor));
    CHECK_EQ_U64(word_get(p + 64), status.found_inf);
    CHECK_EQ_U64(word_get(p + 72), status.did_step);
    CHECK_EQ_U64(word_get(p + 80), 1); /* there is a learning rate */
    CHECK_EQ_U64(word_get(p + 88), bits32(*amp_optimizer_lr_ptr(&r->opt)));
    CHECK_EQ_U64(word_get(p + 96), bits64(r->opt.desc.beta1));
    CHECK_EQ_U64(word_get(p + 104), bits64(r->opt.desc.beta2));
    CHECK_EQ_U64(word_get(p + 112), bits32((float)r->opt.desc.eps));
    CHECK_EQ_U64(word_get(p + 120), bits32((float)r->opt.desc.momentum));
    CHECK_EQ_U64(word_get(p + 128), (uint64_t)r->opt.desc.nesterov);
    CHECK_EQ_U64(word_get(p + 136), bits32(r->opt.desc.max_norm));
    return HEADER + 8 * TENSORS_AT;
}

static void expect_zeros(const stream *s, size_t *at) {
    for (; *at % 8; ++*at) CHECK_EQ_U64(s->bytes[*at], 0);
}

static size_t read_tensors(const stream *s, const rig *r, size_t at) {
    int i;
    for (i = 0; i < COUNT; i++) {
        const unsigned char *p      = s->bytes + at;
        const size_t         length = specs[i].name ? strlen(specs[i].name) : 0;
        const float rate  = specs[i].lr_scale, decay = specs[i].weight_decay; /* negative: 0 */
        const float all   = r->opt.desc.weight_decay;
        CHECK_EQ_U64(word_get(p), specs[i].n);
        CHECK_EQ_U64(word_get(p + 8), specs[i].grad ? 3 : 0);
        CHECK_EQ_U64(word_get(p + 16), 0); /* of fp32, moments and masters */
        CHECK_EQ_U64(word_get(p + 24), 0);
        CHECK_EQ_U64(word_get(p + 32),
                     bits32(rate > 0.0f ? rate : rate < 0.0f ? 0.0f : 1.0f));
        CHECK_EQ_U64(word_get(p + 40), bits32(decay > 0.0f ? decay : decay < 0.0f ? 0.0f : all));
        CHECK_EQ_U64(word_get(p + 48), length);
        if (length) CHECK_MEM(p + 56, specs[i].name, length);
        at += 56 + length;
        expect_zeros(s, &at);
    }
    return at;
}

/* A moment of tensor i: the first has both signs, the second none. */
static size_t read_moment(const stream *s, int i, int second, size_t at) {
    uint64_t signs = 0, any = 0;
    size_t   j;
    for (j = 0; j < specs[i].n; j++, at += 4) {
        signs += s->bytes[at + 3] >> 7;
        any |= (uint64_t)(s->bytes[at] | s->bytes[at + 1] | s->bytes[at + 2] | s->bytes[at + 3]);
    }
    if (specs[i].n) CHECK(any != 0);
    if (second) CHECK_EQ_U64(signs, 0);
    else if (specs[i].n > 8) CHECK(signs > 0 && signs < specs[i].n);
    expect_zeros(s, &at);
    return at;
}

TEST(layout, "law 12: the format is the one that is described: header, scaler, control, tensors, "
             "masters and moments, in words of eight bytes, padding zero") {
    amp_optimizer_desc desc = desc_of(AMP_KIND_ADAMW, AMP_PRESET_MXNET);
    stream             s;
    size_t             at, j;
    uint32_t           k;
    int                i;
    memset(&s, 0, sizeof s);
    rig_start(&one, &desc, 1, 0);
    for (k = 0; k < 20; k++) rig_step(&one, k);
    CHECK_EQ_INT(save(&one.opt, &s), AMP_OK);
    at = read_tensors(&s, &one, read_numbers(&s, &one));
    for (i = 0; i < COUNT; i++) {
        const float *master = amp_optimizer_master(&one.opt, i);
        for (j = 0; j < specs[i].n; j++, at += 4) {
            const uint64_t word = word_get(s.bytes + at / 8 * 8) >> (at % 8 * 8);
            CHECK_EQ_U64(word & 0xffffffffu, bits32(master[j]));
        }
        expect_zeros(&s, &at);
        if (specs[i].grad) at = read_moment(&s, i, 0, at);
        if (specs[i].grad) at = read_moment(&s, i, 1, at);
    }
    CHECK_EQ_U64(at + 8, s.size);
    rig_end(&one);
    stream_free(&s);
}

/* Numbers that a scaler and a control block may hold, no two alike but for flags, of which one is set. */
static void fill_members(amp_scaler *s, ampi_control *c, int flag) {
    s->scale              = 1024.0f;
    s->next_scale         = 2.0;
    s->found_inf          = 3;
    s->checked            = 4;
    s->stuck              = flag == 0;
    s->good               = 5;
    s->skipped            = 6;
    s->skipped_in_a_row   = 7;
    s->growths            = 8;
    s->backoffs           = 9;
    s->growth_factor      = 10.0;
    s->backoff_factor     = 0.125;
    s->growth_interval    = 11;
    s->growth_tracker     = 12;
    s->hysteresis         = 13;
    s->hysteresis_tracker = 14;
    s->min_scale          = 15.0f;
    s->max_scale          = 16.0f;
    s->preset             = AMP_PRESET_JMP;
    c->gate.step          = 17;
    c->skipped            = 18;
    c->skipped_in_a_row   = 19;
    c->missed_updates     = 20;
    c->gate.skip          = flag == 1;
    c->gate.inv_scale     = 21.0f;
    c->norm               = 22.0;
    c->clip_factor        = 0.375f;
    c->found_inf          = flag == 2;
    c->did_step           = flag == 3;
    c->rates.lr           = 23.0f;
    c->beta1              = 0.5;
    c->beta2              = 0.25;
    c->rates.eps          = 24.0f;
    c->rates.momentum     = 0.75f;
    c->nesterov           = flag == 4;
    c->rates.max_norm     = 25.0f;
}

static void members_are(uint64_t flag) {
    const uint64_t want[] = {
        bits32(1024.0f), bits64(2.0), 3, 4, flag == 0, 5, 6, 7, 8, 9, bits64(10.0), bits64(0.125), 11, 12, 13, 14,
        bits32(15.0f), bits32(16.0f), AMP_PRESET_JMP, 0 /* disabled */, 17, 18, 19, 20, flag == 1, bits32(21.0f),
        bits64(22.0), bits32(0.375f), flag == 2, flag == 3, 1 /* there is a learning rate */, bits32(23.0f), bits64(0.5),
        bits64(0.25), bits32(24.0f), bits32(0.75f), flag == 4, bits32(25.0f)};
    enum { WORDS = sizeof want / sizeof *want };
    amp_optimizer x, y;
    amp_scaler   *s;
    ampi_control *c;
    stream        file;
    size_t        i;
    CHECK_EQ_INT(SCALER_AT + (int)WORDS, TENSORS_AT);
    memset(&file, 0, sizeof file);
    little_start(&x, NULL);
    little_start(&y, NULL);
    CHECK_EQ_INT(amp_optimizer_set_lr(&x, 0.5f), AMP_OK);
    s = amp_optimizer_scaler(&x);
    c = x.plan->control;
    fill_members(s, c, (int)flag);
    CHECK_EQ_INT(save(&x, &file), AMP_OK);
    for (i = 0; i < WORDS; i++) {
        char what[32];
        snprintf(what, sizeof what, "number %d", (int)i);
        test_eq_u64(__FILE__, __LINE__, what, word_get(word_at(&file, SCALER_AT + i)), want[i]);
    }
    CHECK_EQ_INT(load(&y, &file), AMP_OK); /* and they come back */
    CHECK_MEM(amp_optimizer_scaler(&y), s, sizeof *s);
    CHECK_EQ_U64(y.plan->control->gate.step, 17);
    CHECK_EQ_F32(y.plan->control->gate.inv_scale, 21.0f);
    CHECK_EQ_F64(y.plan->control->norm, 22.0);
    CHECK_EQ_U64(y.plan->control->nesterov, flag == 4);
    CHECK_EQ_U64(y.plan->control->gate.skip, flag == 1);
    CHECK_EQ_F32(y.plan->control->rates.max_norm, 25.0f);
    CHECK_EQ_U64(y.plan->control->skipped_in_a_row, 19);
    amp_optimizer_free(&x);
    amp_optimizer_free(&y);
    stream_free(&file);
}

TEST(members, "law 21: each number of a file is that of its name: no two alike, in the order that the format has") {
    uint64_t flag;
    for (flag = 0; flag < 5; flag++) members_are(flag);
}

/* ------------------------------------------------------------------ more than one block */

enum { LONG_NAME = 300001, BIG = 70001 };

static char  long_name[LONG_NAME + 1];
static float big_w[2][BIG], big_g[BIG];

static void big_fill(void) {
    int i;
    for (i = 0; i < LONG_NAME; i++) long_name[i] = (char)('a' + i % 26);
    for (i = 0; i < BIG; i++) {
        big_w[0][i] = noise(7, (uint32_t)i);
        big_w[1][i] = 9.0f;
        big_g[i]    = noise(8, (uint32_t)i);
    }
}

static void big_start(amp_optimizer *opt, float *w) {
    amp_optimizer_desc d = desc_of(AMP_KIND_SGD, AMP_PRESET_DEFAULT);
    amp_tensor         t;
    CHECK_EQ_INT(amp_optimizer_init(opt, &d), AMP_OK);
    memset(&t, 0, sizeof t);
    t.name   = long_name;
    t.n      = BIG;
    t.weight = w;
    t.grad   = big_g;
    CHECK_EQ_INT(amp_optimizer_add(opt, &t), AMP_OK);
    CHECK_EQ_INT(prepare_scaled(opt), AMP_OK);
}

TEST(blocks, "law 12: names and arrays longer than what is written at once, of odd lengths") {
    amp_optimizer x, y;
    stream        s, again;
    size_t        at = HEADER + 8 * TENSORS_AT + 56;
    memset(&s, 0, sizeof s);
    memset(&again, 0, sizeof again);
    big_fill();
    big_start(&x, big_w[0]);
    big_start(&y, big_w[1]);
    CHECK_EQ_INT(amp_optimizer_step(&x, 0.5f), AMP_OK);
    CHECK_EQ_INT(save(&x, &s), AMP_OK);
    CHECK_MEM(s.bytes + at, long_name, LONG_NAME);
    at += (LONG_NAME + 7) / 8 * 8;
    CHECK_EQ_U64(word_get(s.bytes + at) & 0xffffffffu, bits32(big_w[0][0]));
    CHECK_EQ_U64(s.size, at + 2 * ((4 * BIG + 7) / 8 * 8) + 8);
    CHECK_EQ_U64(word_get(s.bytes + s.size - 8), sum_of(s.bytes + HEADER, s.size - HEADER - 8));
    CHECK_EQ_INT(load(&y, &s), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_step(&x, 0.25f), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_step(&y, 0.25f), AMP_OK);
    CHECK_MEM(big_w[0], big_w[1], sizeof big_w[0]);
    CHECK_EQ_INT(save(&x, &s), AMP_OK);
    CHECK_EQ_INT(save(&y, &again), AMP_OK);
    stream_equal(&s, &again);
    long_name[LONG_NAME - 1] = '!';
    CHECK_EQ_INT(load(&y, &s), AMP_ERROR_MISMATCH);
    big_fill();
    long_name[3] = '!';
    CHECK_EQ_INT(load(&y, &s), AMP_ERROR_MISMATCH);
    amp_optimizer_free(&x);
    amp_optimizer_free(&y);
    CHECK_EQ_INT(the_heap.live, 0);
    stream_free(&s);
    stream_free(&again);
}

TEST(any_bits, "law 12: masters keep every bit: NaN payloads, signalling ones, -0, subnormals") {
    static const uint32_t odd[]  = {0x7f800001u, 0xffbfffffu, 0x7fc12345u, 0x80000000u,
                                    1u,          0x807fffffu, 0x7f800000u, 0xff800000u};
    static const shape    only[] = {{"odd", 8, 1}};
    amp_optimizer         x, y;
    stream                s;
    memset(&s, 0, sizeof s);
    shape_start(&x, AMP_KIND_ADAMW, 0.0, only, 1);
    memcpy(shape_weights, odd, sizeof odd);
    CHECK_EQ_INT(save(&x, &s), AMP_OK);
    memset(shape_weights, 0, sizeof shape_weights);
    shape_start(&y, AMP_KIND_ADAMW, 0.0, only, 1);
    CHECK_EQ_INT(load(&y, &s), AMP_OK);
    CHECK_MEM(shape_weights, odd, sizeof odd);
    amp_optimizer_free(&x);
    amp_optimizer_free(&y);
    memset(shape_weights, 0, sizeof shape_weights);
    stream_free(&s);
}

/* ================================================================= failing streams and memory */

/* ====================================================================================== files */

static char the_path[512], new_path[520];

/* TMPDIR, or build/tests; the process number keeps programs that run side by side apart. */
static void choose_path(const char *name) {
    const char *dir = getenv("TMPDIR");
    if (!dir || !dir[0]) {
        mkdir("build", 0777);
        mkdir("build/tests", 0777);
        dir = "build/tests";
    }
    snprintf(the_path, sizeof the_path, "%s/state-%ld-%s", dir, (long)getpid(), name);
    snprintf(new_path, sizeof new_path, "%s.new", the_path);
    remove(the_path);
    remove(new_path);
}

static int exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0;
}

#if HAVE_POSIX
static int is_link(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
}

static int mode_of(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 ? (int)(st.st_mode & 07777) : -1;
}
#endif

static void read_file(const char *path, stream *s) {
    FILE         *file = fopen(path, "rb");
    unsigned char block[4096];
    size_t        n;
    s->size = 0;
    CHECK(file != NULL);
    if (!file) return;
    while ((n = fread(block, 1, sizeof block, file)) > 0) CHECK(stream_write(s, block, n));
    fclose(file);
}

static void write_stream(const char *path, const stream *s) {
    FILE *file = fopen(path, "wb");
    CHECK(file && fwrite(s->bytes, 1, s->size, file) == s->size);
    if (file) fclose(file);
}

static void write_text(const char *path, const char *text) {
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL);
    if (!file) return;
    CHECK(fputs(text, file) >= 0);
    CHECK_EQ_INT(fclose(file), 0);
}

static void file_holds(const char *path, const stream *wanted) {
    stream now;
    memset(&now, 0, sizeof now);
    read_file(path, &now);
    stream_equal(&now, wanted);
    stream_free(&now);
}

typedef amp_result (*action)(stream *s);

static amp_result do_save(stream *s) { return save(&two.opt, s); }
static amp_result do_load(stream *s) { return load(&two.opt, s); }
static amp_result do_save_file(stream *s) {
    (void)s;
    return amp_optimizer_save_file(&two.opt, the_path);
}
static amp_result do_load_file(stream *s) {
    (void)s;
    return amp_optimizer_load_file(&two.opt, the_path);
}

/* Let one allocation after the other fail until an action meets no more; returns how many did. */
static int runs_out_of_memory(action act, stream *s, const print *p) {
    amp_result result = AMP_ERROR_OUT_OF_MEMORY;
    int        k;
    for (k = 0; result != AMP_OK && k < 10; k++) {
        const int live      = the_heap.live;
        the_heap.calls      = 0;
        the_heap.fail_from  = k + 1;
        the_heap.fail_count = 1;
        result              = act(s);
        the_heap.fail_from  = 0;
        CHECK_EQ_INT(the_heap.live, live);
        if (result == AMP_OK) break;
        CHECK_EQ_INT(result, AMP_ERROR_OUT_OF_MEMORY);
        print_same(&two, p);
    }
    CHECK_EQ_INT(result, AMP_OK);
    return k;
}

TEST(out_of_memory, "law 9: an allocation that fails is AMP_ERROR_OUT_OF_MEMORY, in save and load, "
                    "of streams and files; nothing changed or leaked") {
    stream s, copy;
    print  p;
    refusing_begin(AMP_KIND_ADAMW, &s, &p);
    choose_path("memory");
    memset(&copy, 0, sizeof copy);
    CHECK(runs_out_of_memory(do_save, &copy, &p) >= 1);
    stream_equal(&copy, &p.saved);
    CHECK(runs_out_of_memory(do_save_file, NULL, &p) >= 2);
    file_holds(the_path, &p.saved);
    CHECK(!exists(new_path));
    CHECK(runs_out_of_memory(do_load_file, NULL, &p) >= 1);
    CHECK(runs_out_of_memory(do_load, &s, &p) >= 1);
    remove(the_path);
    stream_free(&copy);
    refusing_end(&s, &p);
}

TEST(files, "manual: the same with a file: the bytes are those of the stream, the run goes on from "
            "it; what is cut short, foreign or missing is refused") {
    stream s;
    print  p;
    size_t cut;
    refusing_begin(AMP_KIND_ADAMW, &s, &p);
    choose_path("file");
    CHECK_EQ_INT(amp_optimizer_load_file(&two.opt, the_path), AMP_ERROR_NOT_FOUND);
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, the_path), AMP_OK);
    file_holds(the_path, &p.saved);
    CHECK(!exists(new_path));
    rig_step(&two, 40);
    CHECK_EQ_INT(amp_optimizer_load_file(&two.opt, the_path), AMP_OK);
    print_same(&two, &p);
    for (cut = 0; cut < s.size; cut += 97) {
        CHECK_EQ_INT(truncate(the_path, (off_t)(s.size - 1 - cut)), 0);
        CHECK_EQ_INT(amp_optimizer_load_file(&two.opt, the_path), AMP_ERROR_TRUNCATED);
    }
    CHECK_EQ_INT(truncate(the_path, 0), 0);
    CHECK_EQ_INT(amp_optimizer_load_file(&two.opt, the_path), AMP_ERROR_TRUNCATED);
    write_text(the_path, "loss,step\n0.5,1\n");
    CHECK_EQ_INT(amp_optimizer_load_file(&two.opt, the_path), AMP_ERROR_FOREIGN);
    print_same(&two, &p);
    for (cut = 1; cut <= 8; cut += 7) { /* and what is too long */
        static const unsigned char more[8] = {0};
        stream                     longer_one;
        memset(&longer_one, 0, sizeof longer_one);
        stream_copy(&longer_one, &s);
        CHECK(stream_write(&longer_one, more, cut));
        write_stream(the_path, &longer_one);
        CHECK_EQ_INT(amp_optimizer_load_file(&two.opt, the_path), AMP_ERROR_CORRUPT);
        print_same(&two, &p);
        stream_free(&longer_one);
    }
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, the_path), AMP_OK); /* over another file */
    file_holds(the_path, &p.saved);
    remove(the_path);
    refusing_end(&s, &p);
}

TEST(old_or_new, "manual: path holds the old state or the new one: a path.new left by a crash does "
                 "not matter") {
#if HAVE_POSIX
    stream s, old;
    print  p;
    refusing_begin(AMP_KIND_ADAMW, &s, &p);
    memset(&old, 0, sizeof old);
    choose_path("old");
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, the_path), AMP_OK);
    read_file(the_path, &old);
    CHECK_EQ_INT(load(&two.opt, &s), AMP_OK); /* another state from here on */
    memset(long_name, 'x', LONG_NAME); /* longer than a state */
    write_text(new_path, long_name);
    file_holds(the_path, &old);
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, the_path), AMP_OK);
    file_holds(the_path, &s);
    CHECK(!exists(new_path));
    remove(the_path);
    stream_free(&old);
    refusing_end(&s, &p);
#else
    SKIP(POSIX_WHY);
#endif
}

TEST(unwritable, "manual: AMP_ERROR_WRITE where nothing can be written: a directory that is not "
                 "there, a file as a directory, a directory as the file") {
    char   path[600];
    stream s;
    print  p;
    refusing_begin(AMP_KIND_OWN, &s, &p);
    choose_path("dir");
    snprintf(path, sizeof path, "%s/state", the_path);
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, path), AMP_ERROR_WRITE);
    CHECK_EQ_INT(amp_optimizer_load_file(&two.opt, path), AMP_ERROR_NOT_FOUND);
    write_text(the_path, "a file");
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, path), AMP_ERROR_WRITE);
    CHECK_EQ_INT(amp_optimizer_load_file(&two.opt, path),
                 HAVE_POSIX ? AMP_ERROR_READ : AMP_ERROR_NOT_FOUND);
    remove(the_path);

    CHECK_EQ_INT(mkdir(the_path, 0777), 0);
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, the_path),
                 HAVE_POSIX ? AMP_ERROR_UNSUPPORTED : AMP_ERROR_WRITE);
    CHECK(exists(the_path) && !exists(new_path));
    CHECK_EQ_INT(amp_optimizer_load_file(&two.opt, the_path), AMP_ERROR_READ);
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, path), AMP_OK);
    file_holds(path, &p.saved);
    remove(path);
    rmdir(the_path);
    print_same(&two, &p);
    refusing_end(&s, &p);
}

TEST(rights, "manual: AMP_ERROR_WRITE where the directory may not be written to; one that may not be "
             "read is as good as others") {
#if HAVE_POSIX
    const uid_t me = geteuid(), other = me ? me : 65534; /* nothing is forbidden to root */
    char        path[600];
    int         seen;
    stream      s;
    print       p;
    refusing_begin(AMP_KIND_OWN, &s, &p);
    choose_path("rights");
    snprintf(path, sizeof path, "%s/state", the_path);
    CHECK_EQ_INT(mkdir(the_path, 0777), 0);
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, path), AMP_OK);
    CHECK_EQ_INT(chmod(the_path, 0555), 0);
    seen = seteuid(other) == 0 && exists(path);
    if (seen) {
        rig_step(&two, 3);
        CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, path), AMP_ERROR_WRITE);
        CHECK_EQ_INT(amp_optimizer_load_file(&two.opt, path), AMP_OK);
        print_same(&two, &p);
    }
    CHECK_EQ_INT(seteuid(me), 0);
    CHECK_EQ_INT(chmod(the_path, 0333), 0);
    if (seen) {
        CHECK_EQ_INT(remove(path), 0);
        CHECK_EQ_INT(seteuid(other), 0);
        CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, path), AMP_OK);
        CHECK_EQ_INT(seteuid(me), 0);
        file_holds(path, &p.saved);
    }
    remove(path);
    rmdir(the_path);
    refusing_end(&s, &p);
    if (!seen) SKIP("root cannot be another user here");
#else
    SKIP(POSIX_WHY);
#endif
}

TEST(not_ours, "law 18: a directory at path.new stops no save, and is still there afterwards") {
    stream s;
    print  p;
    refusing_begin(AMP_KIND_OWN, &s, &p);
    choose_path("ours");
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, the_path), AMP_OK);
    CHECK_EQ_INT(mkdir(new_path, 0777), 0);
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, the_path), AMP_OK);
    file_holds(the_path, &p.saved);
    CHECK(exists(new_path));
    rmdir(new_path);
    remove(the_path);
    refusing_end(&s, &p);
}

/* ------------------------------------------------------------------------------ law 18: files */

#if HAVE_POSIX
static const char *link_of(int number) {
    static char text[2][620]; /* of this one, and of the one before */
    snprintf(text[number % 2], sizeof text[0], "%s.%d", the_path, number);
    return text[number % 2];
}
#endif

TEST(chain_of_links, "law 18: 40 symbolic links, as many as Linux follows, lead to the file; the 41st is refused by ELOOP") {
#if HAVE_POSIX
    stream s;
    print  p;
    int    i;
    refusing_begin(AMP_KIND_ADAMW, &s, &p);
    choose_path("chain");
    for (i = 1; i <= 41; i++) /* number 1 leads to the file */
        CHECK_EQ_INT(symlink(strrchr(i > 1 ? link_of(i - 1) : the_path, '/') + 1, link_of(i)), 0);
    errno = 0;
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, link_of(41)), AMP_ERROR_WRITE);
    CHECK_EQ_INT(errno, ELOOP);
    CHECK(!exists(the_path));
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, link_of(40)), AMP_OK);
    file_holds(the_path, &p.saved);
#if defined(__linux__)
    CHECK_EQ_INT(amp_optimizer_load_file(&two.opt, link_of(40)), AMP_OK);
#endif
    for (i = 1; i <= 41; i++) {
        CHECK(is_link(link_of(i)));
        remove(link_of(i));
    }
    remove(the_path);
    refusing_end(&s, &p);
#else
    SKIP(POSIX_WHY);
#endif
}

TEST(links, "law 18: save replaces the file that a path leads to: symbolic links stay links, also "
            "in other directories and where they dangle; other names of a file keep the old state") {
#if HAVE_POSIX
    char   link_path[600], far[600], hard[600], other[700], up[610];
    stream s, old;
    print  p;
    refusing_begin(AMP_KIND_ADAMW, &s, &p);
    memset(&old, 0, sizeof old);
    choose_path("target");
    snprintf(link_path, sizeof link_path, "%s.link", the_path);
    snprintf(hard, sizeof hard, "%s.hard", the_path);
    snprintf(far, sizeof far, "%s.dir", the_path);
    snprintf(other, sizeof other, "%s/far.link", far);
    CHECK_EQ_INT(mkdir(far, 0777), 0);
    CHECK_EQ_INT(symlink(strrchr(the_path, '/') + 1, link_path), 0); /* relative, dangling */
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, link_path), AMP_OK);
    file_holds(the_path, &p.saved);
    CHECK_EQ_INT(link(the_path, hard), 0);
    snprintf(up, sizeof up, "..%s", strrchr(link_path, '/'));
    CHECK_EQ_INT(symlink(up, other), 0); /* a link to a link, elsewhere */
    read_file(the_path, &old);
    CHECK_EQ_INT(load(&two.opt, &s), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, other), AMP_OK);
    file_holds(the_path, &s);
    file_holds(hard, &old);
    CHECK(is_link(link_path) && is_link(other) && !is_link(the_path));
    CHECK(!exists(new_path));
    CHECK_EQ_INT(amp_optimizer_load_file(&two.opt, other), AMP_OK);
    remove(link_path);
    CHECK_EQ_INT(symlink(strrchr(link_path, '/') + 1, link_path), 0); /* round and round */
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, link_path), AMP_ERROR_WRITE);
    CHECK(is_link(link_path));
    remove(link_path);
    remove(other);
    remove(hard);
    rmdir(far);
    remove(the_path);
    stream_free(&old);
    refusing_end(&s, &p);
#else
    SKIP(POSIX_WHY);
#endif
}

TEST(modes, "law 18: a file keeps its mode, and a new one has that of any other") {
#if HAVE_POSIX
    const mode_t mask = umask(022);
    stream       s;
    print        p;
    refusing_begin(AMP_KIND_OWN, &s, &p);
    choose_path("mode");
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, the_path), AMP_OK);
    CHECK_EQ_INT(mode_of(the_path), 0644);
    CHECK_EQ_INT(chmod(the_path, 0600), 0);
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, the_path), AMP_OK);
    CHECK_EQ_INT(mode_of(the_path), 0600);
    CHECK_EQ_INT(chmod(the_path, 0666), 0);
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, the_path), AMP_OK);
    CHECK_EQ_INT(mode_of(the_path), 0666);
    umask(mask);
    remove(the_path);
    refusing_end(&s, &p);
#else
    SKIP(POSIX_WHY);
#endif
}

TEST(not_a_file, "law 18: what is not a regular file is refused and stays: FIFO, device, directory, "
                 "and a link to one") {
#if HAVE_POSIX
    char   link_path[600];
    stream s;
    print  p;
    refusing_begin(AMP_KIND_OWN, &s, &p);
    choose_path("fifo");
    snprintf(link_path, sizeof link_path, "%s.link", the_path);
    CHECK_EQ_INT(mkfifo(the_path, 0666), 0);
    CHECK_EQ_INT(symlink(strrchr(the_path, '/') + 1, link_path), 0);
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, the_path), AMP_ERROR_UNSUPPORTED);
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, link_path), AMP_ERROR_UNSUPPORTED);
    CHECK(exists(the_path) && is_link(link_path));
    CHECK(!exists(new_path));
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, "/dev/null"), AMP_ERROR_UNSUPPORTED);
    CHECK(exists("/dev/null") && !exists("/dev/null.new"));
    remove(link_path);
    remove(the_path);
    refusing_end(&s, &p);
#else
    SKIP(POSIX_WHY);
#endif
}

static void free_spoils(void *user, void *memory) {
    heap_free(user, memory);
    errno = EDOM;
}

TEST(errno_of_the_call, "law 18: errno is that of the call that failed, whatever cleaning up does") {
    char   path[700];
    stream s;
    print  p;
    refusing_begin(AMP_KIND_OWN, &s, &p);
    two.opt.desc.allocator.release_fn = free_spoils;
    choose_path("errno");
    snprintf(path, sizeof path, "%s/state", the_path);
    errno = 0;
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, path), AMP_ERROR_WRITE);
    CHECK_EQ_INT(errno, ENOENT);
    two.opt.desc.allocator.release_fn = heap_free;
    refusing_end(&s, &p);
}

#if HAVE_POSIX
TEST(errno_while_writing, "law 18: so it is of a link that leads round") {
    stream s;
    print  p;
    refusing_begin(AMP_KIND_OWN, &s, &p);
    two.opt.desc.allocator.release_fn = free_spoils;
    choose_path("round");
    CHECK_EQ_INT(symlink(strrchr(the_path, '/') + 1, the_path), 0);
    errno = 0;
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, the_path), AMP_ERROR_WRITE);
    CHECK_EQ_INT(errno, ELOOP);
    remove(the_path);
    two.opt.desc.allocator.release_fn = heap_free;
    refusing_end(&s, &p);
}

TEST(full_disk, "law 18: a disk that is full, wherever a save comes to it: AMP_ERROR_WRITE, errno of the call that "
                "failed, the old file, no path.new, all room again; and the run goes on") {
    char               dir[600];
    stream             s, old;
    print              p;
    unsigned long long room, free_before = 0, free_now = 0;
    int                small, error, full = 0, saved = 0;
    refusing_begin(AMP_KIND_ADAMW, &s, &p);
    memset(&old, 0, sizeof old);
    two.opt.desc.allocator.release_fn = free_spoils;
    choose_path("full");
    snprintf(dir, sizeof dir, "%.*s", (int)(strrchr(the_path, '/') - the_path), the_path);
    small = disk_is_small(dir, &free_before);
    for (room = 0; room <= 8192; room += 128) {
        amp_result result;
        if (room % 2048 == 0) CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, the_path), AMP_OK);
        read_file(the_path, &old);
        rig_step(&two, (uint32_t)room); /* another state than what is there */
        stream_free(&p.saved);
        print_take(&two, &p);
        small = disk_is_small(dir, &free_before);
        CHECK(disk_leaves(dir, room));
        errno  = 0;
        result = amp_optimizer_save_file(&two.opt, the_path);
        error  = errno;
        CHECK(disk_is_free());
        CHECK(!exists(new_path));
        CHECK(result == AMP_OK || result == AMP_ERROR_WRITE);
        saved += result == AMP_OK;
        if (result == AMP_ERROR_WRITE) {
            CHECK_EQ_INT(error, small ? ENOSPC : EFBIG);
            file_holds(the_path, &old);
            full++;
        } else {
            file_holds(the_path, &p.saved);
        }
        disk_is_small(dir, &free_now);
        if (small) CHECK_EQ_U64(free_now, free_before);
        print_same(&two, &p);
    }
    CHECK(full >= (small ? 1 : 15) && saved > 15); /* small: in pages */
    remove(the_path);
    stream_free(&old);
    two.opt.desc.allocator.release_fn = heap_free;
    refusing_end(&s, &p);
}

/* In place of the C library's, which every save asks: what has been flushed; and what happens meanwhile, once. */
static int  flushed_files, flushed_directories, flush_fails; /* flush_fails: the directory's, by EIO */
static int  while_renamed;
static void (*while_flushing)(void);

int fsync(int file) {
    void (*const now)(void) = while_flushing;
    struct stat st;
    while_flushing = NULL;
    if (now) now();
    if (fstat(file, &st) == 0) {
        flushed_files += S_ISREG(st.st_mode);
        flushed_directories += S_ISDIR(st.st_mode);
        if (S_ISDIR(st.st_mode) && flush_fails) {
            if (while_renamed) write_text(new_path, "another's");
            errno = EIO;
            return -1;
        }
    }
    return 0;
}

TEST(flushed, "law 18: save flushes the file, and the directory that has its name") {
    stream s;
    print  p;
    refusing_begin(AMP_KIND_OWN, &s, &p);
    choose_path("flushed");
    flushed_files = flushed_directories = 0;
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, the_path), AMP_OK);
    CHECK_EQ_INT(flushed_files, 1);
    CHECK_EQ_INT(flushed_directories, 1);
    remove(the_path);
    refusing_end(&s, &p);
}

static void save_one(void) {
    CHECK(exists(new_path)); /* the other's */
    CHECK_EQ_INT(amp_optimizer_save_file(&one.opt, the_path), AMP_OK);
    CHECK(exists(new_path));
}
static void fail_one(void) {
    CHECK(disk_leaves(".", 0));
    CHECK_EQ_INT(amp_optimizer_save_file(&one.opt, the_path), AMP_ERROR_WRITE);
    CHECK(disk_is_free());
}

TEST(two_savers, "law 12: several savers of one path never leave a torn file: one saves, or fails, while another flushes; each "
                 "that returns AMP_OK was there whole, and nothing is left beside it") {
    char   other[600];
    stream s;
    print  p;
    int    fails;
    for (fails = 0; fails < 2; fails++) {
        refusing_begin(AMP_KIND_ADAMW, &s, &p);
        rig_start_other(&one, &two.opt.desc);
        choose_path("savers");
        snprintf(other, sizeof other, "%s1", new_path);
        CHECK_EQ_INT(amp_optimizer_save_file(&one.opt, the_path), AMP_OK);
        while_flushing = fails ? fail_one : save_one;
        CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, the_path), AMP_OK);
        CHECK(while_flushing == NULL);
        file_holds(the_path, &p.saved);
        CHECK(!exists(new_path) && !exists(other));
        remove(the_path);
        amp_optimizer_free(&one.opt);
        refusing_end(&s, &p);
    }
}

TEST(renamed_is_let_go, "law 12: where the directory cannot be flushed, the file has its place already: the temporary name is "
                        "another save's from there on, and is not removed") {
    stream s;
    print  p;
    refusing_begin(AMP_KIND_OWN, &s, &p);
    choose_path("eio");
    flush_fails    = 1;
    while_renamed  = 1;
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, the_path), AMP_ERROR_WRITE);
    CHECK_EQ_INT(errno, EIO);
    flush_fails = while_renamed = 0;
    file_holds(the_path, &p.saved);
    CHECK(exists(new_path)); /* another's */
    remove(new_path);
    remove(the_path);
    refusing_end(&s, &p);
}

/* Another machine's save, on which no lock acts, has taken the file away, and has one of that name. */
static void take_away(void) {
    remove(new_path);
    write_text(new_path, "half of another state");
}

TEST(taken_away, "law 12: a save whose file another has replaced, where locks do not hold, fails, and leaves the other's") {
    stream s;
    print  p;
    refusing_begin(AMP_KIND_OWN, &s, &p);
    choose_path("away");
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, the_path), AMP_OK);
    while_flushing = take_away;
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, the_path), AMP_ERROR_WRITE);
    file_holds(the_path, &p.saved);
    CHECK(exists(new_path));
    remove(new_path);
    remove(the_path);
    refusing_end(&s, &p);
}

TEST(left_over, "law 12: what killed savers have left is removed by the next save, whatever it is: files, a link, of which the "
                "target stays; what another save has locked is not") {
    char   left[4][600], target[600];
    stream s;
    print  p;
    int    k, file;
    refusing_begin(AMP_KIND_OWN, &s, &p);
    choose_path("left");
    snprintf(target, sizeof target, "%s.target", the_path);
    for (k = 0; k < 4; k++) snprintf(left[k], sizeof left[k], k ? "%s.new%d" : "%s.new", the_path, k);
    write_text(target, "precious");
    for (k = 0; k < 4; k++)
        if (k == 2) CHECK_EQ_INT(symlink(strrchr(target, '/') + 1, left[k]), 0);
        else write_text(left[k], "half a state");
    file = open(left[1], O_WRONLY);
    CHECK_EQ_INT(flock(file, LOCK_EX | LOCK_NB), 0);
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, the_path), AMP_OK);
    file_holds(the_path, &p.saved);
    for (k = 0; k < 4; k++) CHECK(is_link(left[k]) + exists(left[k]) == (k == 1));
    close(file);
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, the_path), AMP_OK);
    CHECK(!exists(left[1]));
    {
        stream text;
        memset(&text, 0, sizeof text);
        read_file(target, &text);
        CHECK_EQ_U64(text.size, 8);
        stream_free(&text);
    }
    remove(target);
    remove(the_path);
    refusing_end(&s, &p);
}

TEST(long_paths, "manual: a name of 255 bytes, in letters of several bytes, too, and a path of 4079 are saved; a longer one is "
                 "AMP_ERROR_TOO_LARGE") {
    char   dir[200], deep[4200], back[4200], name[300];
    size_t length, k;
    stream s;
    print  p;
    refusing_begin(AMP_KIND_OWN, &s, &p);
    choose_path("deep");
    snprintf(dir, sizeof dir, "%s", the_path);
    CHECK_EQ_INT(mkdir(dir, 0777), 0);
    for (k = 0; k < 5; k++) { /* letters of 1 to 3 bytes, so that the name may be cut anywhere in one; and no UTF-8 */
        static const char *const letters[] = {"x", "\xc3\xa4", "\xe2\x82\xac", "\xe2\x82\xac", "\x81"};
        name[0] = 'n', name[k == 3] = 'n', name[1 + (k == 3)] = '\0';
        while (strlen(name) + strlen(letters[k]) <= 255) strcat(name, letters[k]);
        while (strlen(name) < 255) strcat(name, "y");
        snprintf(deep, sizeof deep, "%s/%s", dir, name);
        CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, deep), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_load_file(&two.opt, deep), AMP_OK);
        remove(deep);
    }
    snprintf(deep, sizeof deep, "%s", dir);
    for (length = strlen(deep); length + 201 < 4079; length = strlen(deep)) { /* directories in directories */
        memset(deep + length, 'd', 200);
        deep[length] = '/', deep[length + 200] = '\0';
        CHECK_EQ_INT(mkdir(deep, 0777), 0);
    }
    strcpy(back, deep);
    memset(deep + length, 'f', sizeof deep - length);
    deep[length] = '/', deep[4080] = '\0';
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, deep), AMP_ERROR_TOO_LARGE);
    deep[4079] = '\0';
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, deep), AMP_OK);
    file_holds(deep, &p.saved);
    remove(deep);
    for (; strlen(back) > strlen(dir); *strrchr(back, '/') = '\0') CHECK_EQ_INT(rmdir(back), 0);
    CHECK_EQ_INT(rmdir(dir), 0);
    refusing_end(&s, &p);
}

static void save_for_ever(rig *r, uint32_t k) {
    for (;; k++) {
        rig_step(r, k);
        if (amp_optimizer_save_file(&r->opt, the_path) != AMP_OK) _exit(1);
    }
}

TEST(savers_killed, "law 12: four savers of one path, killed again and again: it holds a whole state of one of them, each time; "
                    "the next save leaves nothing beside it") {
    const long         rounds = test_amount("AMP_KILLS", test_state.quick ? 20 : 60);
    amp_optimizer_desc desc   = desc_of(AMP_KIND_ADAMW, AMP_PRESET_DEFAULT);
    char               left[600];
    pid_t              savers[4];
    long               round;
    int                k, status, lost = 0;
    choose_path("four");
    rig_start(&one, &desc, 1, 0);
    CHECK_EQ_INT(amp_optimizer_save_file(&one.opt, the_path), AMP_OK);
    fflush(stdout);
    for (round = 0; round < rounds; round++) {
        for (k = 0; k < 4; k++)
            if ((savers[k] = fork()) == 0) save_for_ever(&one, (uint32_t)(round * 4 + k));
        if (savers[3] < 0) SKIP("fork failed");
        usleep((useconds_t)(2000 + 700 * (round % 15) + 37 * (round % 19)));
        for (k = 0; k < 4; k++) {
            CHECK_EQ_INT(kill(savers[k], SIGKILL), 0);
            CHECK_EQ_INT(waitpid(savers[k], &status, 0), savers[k]);
            CHECK(WIFSIGNALED(status)); /* and had no save that failed */
        }
        lost += amp_optimizer_load_file(&one.opt, the_path) != AMP_OK;
    }
    CHECK_EQ_INT(lost, 0);
    CHECK_EQ_INT(amp_optimizer_save_file(&one.opt, the_path), AMP_OK);
    for (k = 0; k < 8; k++) {
        snprintf(left, sizeof left, k ? "%s.new%d" : "%s.new", the_path, k);
        CHECK(!exists(left));
    }
    remove(the_path);
    rig_end(&one);
}

#else
TEST(two_savers, "law 12: several savers of one path") { SKIP(POSIX_WHY); }
TEST(renamed_is_let_go, "law 12: where the directory cannot be flushed") { SKIP(POSIX_WHY); }
TEST(taken_away, "law 12: a save whose file another has replaced") { SKIP(POSIX_WHY); }
TEST(left_over, "law 12: what killed savers have left") { SKIP(POSIX_WHY); }
TEST(long_paths, "manual: a path of 4079 bytes") { SKIP(POSIX_WHY); }
TEST(savers_killed, "law 12: four savers of one path, killed") { SKIP(POSIX_WHY); }
TEST(errno_while_writing, "law 18: errno of a link that leads round") { SKIP(POSIX_WHY); }
TEST(full_disk, "law 18: a disk that is full") { SKIP(POSIX_WHY); }
TEST(flushed, "law 18: save flushes file and directory") { SKIP(POSIX_WHY); }
#endif

TEST(open_step_keeps, "law 18: a save that is refused touches no file: during a step path.new is "
                      "whose it was") {
    char   path[4096 + 10];
    stream s;
    print  p;
    refusing_begin(AMP_KIND_OWN, &s, &p);
    choose_path("open");
    write_text(new_path, "somebody's");
    rig_grads(&two, 3);
    amp_optimizer_begin_step(&two.opt);
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, the_path), AMP_ERROR_STEP_OPEN);
    CHECK(exists(new_path) && !exists(the_path));
    CHECK_EQ_INT(amp_optimizer_end_step(&two.opt), AMP_OK);
    remove(new_path);
    memset(path, 'a', sizeof path);
    path[sizeof path - 1] = '\0';
    CHECK_EQ_INT(amp_optimizer_save_file(&two.opt, path), AMP_ERROR_TOO_LARGE);
    refusing_end(&s, &p);
}

#if HAVE_POSIX
static uint32_t step_of(const rig *r) {
    amp_status status;
    CHECK_EQ_INT(amp_optimizer_status(&r->opt, &status), AMP_OK);
    return (uint32_t)(status.steps + status.skipped);
}

static void save_until_killed(rig *r, int pipe_end) { /* it gets a byte for each save */
    uint32_t k;
    for (k = step_of(r);; k++) {
        rig_step(r, k);
        if (amp_optimizer_save_file(&r->opt, the_path) != AMP_OK || write(pipe_end, "", 1) != 1) _exit(1);
    }
}
#endif

TEST(killed, "manual: path holds the old state or the new one, whenever the program stops: a run that is killed while "
             "it saves goes on from there, again and again, with the bits of one that never stopped") {
#if HAVE_POSIX
    const long          rounds = test_amount("AMP_KILLS", test_state.quick ? 5 : 15);
    amp_optimizer_desc  desc   = desc_of(AMP_KIND_ADAMW, AMP_PRESET_DEFAULT);
    static unsigned char want[SNAP];
    uint32_t            before = 0, k = 0, changed = 0;
    long                round;
    int                 status, ends[2];
    char                byte;
    choose_path("killed");
    rig_start(&one, &desc, 1, 0);
    rig_start(&two, &desc, 1, 0); /* it never stops */
    CHECK_EQ_INT(amp_optimizer_save_file(&one.opt, the_path), AMP_OK);
    fflush(stdout);
    for (round = 0; round < rounds; round++) {
        pid_t child;
        CHECK_EQ_INT(pipe(ends), 0);
        child = fork();
        if (child == 0) save_until_killed(&one, ends[1]);
        close(ends[1]);
        if (child < 0) SKIP("fork failed");
        if (round % 2) CHECK_EQ_INT(read(ends[0], &byte, 1), 1); /* however slow the disk is */
        usleep((useconds_t)(1000 + 700 * (round % 15) + 37 * (round % 19)));
        CHECK_EQ_INT(kill(child, SIGKILL), 0);
        CHECK_EQ_INT(waitpid(child, &status, 0), child);
        CHECK(WIFSIGNALED(status));
        close(ends[0]);
        CHECK_EQ_INT(amp_optimizer_load_file(&one.opt, the_path), AMP_OK);
        for (; k < step_of(&one); k++) rig_step(&two, k);
        snapshot(&two, want);
        same_as(&one, want);
        changed += k != before;
        before = k;
    }
    CHECK(changed >= (uint32_t)rounds / 2);
    printf("# %ld kills, %lu of them after a save, up to step %lu\n", rounds, (unsigned long)changed, (unsigned long)k);
    remove(the_path);
    remove(new_path);
    amp_optimizer_free(&one.opt);
    rig_end(&two);
#else
    SKIP(POSIX_WHY);
#endif
}

/* ===================================================================================== misuse */

TEST(results_differ, "law 16: distinct results have distinct sentences") {
    int i, j;
    for (i = AMP_OK; i <= AMP_ERROR_CUBLAS; i++) {
        CHECK(strcmp(amp_result_string((amp_result)i), "unknown result") != 0);
        for (j = 0; j < i; j++)
            CHECK(strcmp(amp_result_string((amp_result)i), amp_result_string((amp_result)j)) != 0);
    }
    CHECK(strcmp(amp_result_string((amp_result)i), "unknown result") == 0);
}

/* ------------------------------------------------------------ floating-point environment */

static stream fp_state;

static void save_and_load(void) {
    static stream now;
    save(&two.opt, &now);
    load(&two.opt, &fp_state);
}

TEST(any_mode, "law 7, law 13: rounding mode, flushed subnormals and unmasked traps change nothing "
               "in a state or in what is loaded from it") {
    static const uint32_t modes[] = {FP_IEEE | FP_FTZ | FP_DAZ, FP_IEEE | FP_ROUNDING,
                                     FP_IEEE | 2 * FP_ROUNDING,
                                     FP_IEEE | 3 * FP_ROUNDING | FP_FTZ | FP_DAZ};
    static const uint32_t odd[]   = {0x007fffffu, 0x7f800001u, 0x49742400u, 0x3300d959u};
    unsigned char         want[SNAP];
    amp_optimizer_desc    desc = desc_of(AMP_KIND_ADAMW, AMP_PRESET_DEFAULT);
    stream                again;
    size_t                m;
    uint32_t              k;
    if (!FP_CONTROL) SKIP(FP_WHY);
    memset(&again, 0, sizeof again);
    rig_start(&one, &desc, 1, 0);
    for (k = 0; k < 12; k++) rig_step(&one, k);
    memcpy(&one.weights[1], odd, sizeof odd); /* subnormal, NaN, above and below fp16 */
    CHECK_EQ_INT(save(&one.opt, &fp_state), AMP_OK);
    rig_start_other(&two, &desc);
    CHECK_EQ_INT(load(&two.opt, &fp_state), AMP_OK); /* model copies follow these masters */
    snapshot(&two, want);
    for (m = 0; m < sizeof modes / sizeof modes[0]; m++) {
        const uint32_t saved = fp_get();
        amp_result     loaded, stored;
        amp_optimizer_free(&two.opt);
        rig_start_other(&two, &desc);
        fp_set(modes[m]);
        loaded = load(&two.opt, &fp_state);
        stored = save(&two.opt, &again);
        fp_set(saved);
        CHECK_EQ_INT(loaded, AMP_OK);
        CHECK_EQ_INT(stored, AMP_OK);
        same_as(&two, want);
        stream_equal(&again, &fp_state);
    }
    CHECK(fp_runs_without_trap(save_and_load));
    same_as(&two, want);
    amp_optimizer_free(&one.opt);
    rig_end(&two);
    stream_free(&again);
    stream_free(&fp_state);
}

/* ================================================================================ environment */

static const char *const variables[] = {"AMP_ENABLE", "AMP_DTYPE"};

static void env_set(const char *enable, const char *dtype) {
    if (enable) setenv("AMP_ENABLE", enable, 1);
    else unsetenv("AMP_ENABLE");
    if (dtype) setenv("AMP_DTYPE", dtype, 1);
    else unsetenv("AMP_DTYPE");
}

/* A zeroed desc, bf16 with a static scale, fp16 with Megatron's, plain fp32; fp32 and bf16 without a
   scale, fp32 and fp16 with one of 1. */
enum { BASES = 8 };
static amp_optimizer_desc base_desc(int which) {
    amp_optimizer_desc d;
    memset(&d, 0, sizeof d);
    d.scaler.disabled = which == 3;
    if (which == 4 || which == 5) d.scaler.preset = AMP_PRESET_NONE;
    if (which == 5) d.dtype = AMP_BF16;
    if (which == 6 || which == 7) d.scaler.preset = AMP_PRESET_STATIC, d.scaler.init_scale = 1.0f;
    if (which == 7) d.dtype = AMP_F16;
    if (which == 0 || which >= 3) return d;
    d.dtype                = which == 1 ? AMP_BF16 : AMP_F16;
    d.kind                 = AMP_KIND_ADAMW;
    d.beta1                = 0.5;
    d.max_norm             = 2.0f;
    d.scaler.preset        = which == 1 ? AMP_PRESET_STATIC : AMP_PRESET_MEGATRON;
    d.scaler.init_scale    = which == 1 ? 1.0f : 256.0f;
    d.scaler.hysteresis    = 3;
    d.scaler.growth_factor = 4.0;
    return d;
}

TEST(env_all, "manual: AMP_ENABLE and AMP_DTYPE, each unset or with any value that can be read; desc keeps what is not "
              "set; only a type that changes has another loss scale; AMP_ENABLE=0 is fp32 without one, whatever AMP_DTYPE is") {
    static const char *const enables[] = {NULL, "0", "1"};
    static const char *const dtypes[]  = {NULL, "fp32", "fp16", "bf16", "junk"};
    int                      c;
    for (c = 0; c < BASES * 3 * 5; c++) {
        const int base = c % BASES, e = c / BASES % 3, t = c / BASES / 3;
        amp_optimizer_desc want = base_desc(base), desc = want;
        const amp_dtype    was  = want.dtype;
        amp_optimizer      opt;
        int                zero, none;
        if (t == 4 && e != 1) continue; /* env_unreadable, below */
        env_set(enables[e], dtypes[t]);
        CHECK_EQ_INT(amp_optimizer_desc_from_env(&desc), AMP_OK);
        if (e > 0) want.scaler.disabled = e == 1;
        if (t > 0) want.dtype = (amp_dtype)(t - 1); /* ORDER of dtypes */
        if (e == 2 && t == 0 && was == AMP_F32) want.dtype = AMP_F16;
        if (e == 1) want.dtype = AMP_F32;
        zero = base == 0 || (base == 3 && e == 2);
        none = want.scaler.disabled || want.scaler.preset == AMP_PRESET_NONE;
        if (want.dtype != was && want.dtype == AMP_F16 && none) memset(&want.scaler, 0, sizeof want.scaler);
        if (want.dtype != was && want.dtype != AMP_F16 && e != 1 && zero) want.scaler.preset = AMP_PRESET_NONE;
        CHECK_MEM(&desc, &want, sizeof desc);
        CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
        CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
        if (want.scaler.disabled || want.scaler.preset == AMP_PRESET_NONE || base >= 6)
            CHECK_EQ_F32(amp_optimizer_loss_scale(&opt), 1.0f);
        else if (base == 0) CHECK_EQ_F32(amp_optimizer_loss_scale(&opt), 65536.0f);
        amp_optimizer_free(&opt);
    }
    env_set(NULL, NULL);
}

TEST(env_told, "law 19: amp_problem names the variable that cannot be read, what it may be, and its value") {
    static const struct { const char *enable, *dtype, *text; } cases[] = {
        {"2", NULL, "AMP_ENABLE must be 0 or 1, not \"2\""},
        {NULL, "fp8", "AMP_DTYPE must be fp32, fp16 or bf16, not \"fp8\""},
        {"1", " int8", "AMP_DTYPE must be fp32, fp16 or bf16, not \" int8\""},
        {"0", "fp8", TEST_OLDER},
        {NULL, "fp16", TEST_OLDER}};
    char               all[400];
    amp_optimizer_desc desc = base_desc(2);
    size_t             i;
    for (i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_older();
        env_set(cases[i].enable, cases[i].dtype);
        CHECK_EQ_INT(amp_optimizer_desc_from_env(&desc),
                     strcmp(cases[i].text, TEST_OLDER) ? AMP_ERROR_INVALID_CONFIG : AMP_OK);
        if (strcmp(amp_problem(), cases[i].text) != 0) test_fail(__FILE__, __LINE__, cases[i].text, amp_problem());
        desc = base_desc(2);
    }
    memset(all, 'x', sizeof all - 1); /* longer than there is room for */
    all[sizeof all - 1] = 0;
    env_set(NULL, all);
    CHECK_EQ_INT(amp_optimizer_desc_from_env(&desc), AMP_ERROR_INVALID_CONFIG);
    CHECK(strstr(amp_problem(), "AMP_DTYPE must be fp32, fp16 or bf16, not \"xxx") == amp_problem());
    CHECK_EQ_INT(strlen(amp_problem()), 199);
    env_set(NULL, NULL);
}

static void unreadable(int which, const char *text) {
    const amp_optimizer_desc before = base_desc(2);
    amp_optimizer_desc       desc   = before;
    char                     quoted[40];
    snprintf(quoted, sizeof quoted, "not \"%s\"", text);
    env_set(which == 0 ? text : "1", which == 1 ? text : "bf16");
    CHECK_EQ_INT(amp_optimizer_desc_from_env(&desc), AMP_ERROR_INVALID_CONFIG);
    CHECK_MEM(&desc, &before, sizeof desc);
    CHECK(strstr(amp_problem(), variables[which]) == amp_problem() && strstr(amp_problem(), quoted));
    env_set(which == 0 ? text : NULL, which == 1 ? text : NULL);
    CHECK_EQ_INT(amp_optimizer_desc_from_env(&desc), AMP_ERROR_INVALID_CONFIG);
    CHECK_MEM(&desc, &before, sizeof desc);
}

TEST(env_unreadable, "manual: a value that cannot be read is AMP_ERROR_INVALID_CONFIG, desc stays "
                     "as it was, and amp_problem names it") {
    static const char *const words[] = {"maybe", "2", "-1", "fp8", "fp16,", "01", "on", "float 16", "1 0", " ", "1 ",
                                        "fp16 ", "b", "fp16 bf16", "00", "10", "11"};
    size_t i;
    for (i = 0; i < sizeof words / sizeof words[0]; i++) {
        unreadable(0, words[i]);
        unreadable(1, words[i]);
    }
    unreadable(0, "fp16");
    unreadable(1, "1");
    unreadable(1, "0");
    CHECK_EQ_INT(amp_optimizer_desc_from_env(NULL), AMP_ERROR_INVALID_ARGUMENT);
    env_set(NULL, NULL);
}

TEST(env_readable, "manual: capitals do not matter, types may have the other names that policies know, and what is empty is "
                   "not set") {
    static const struct { const char *text; amp_dtype type; } types[] = {
        {"FP16", AMP_F16}, {"Float16", AMP_F16}, {"half", AMP_F16}, {"bfloat16", AMP_BF16}, {"BF16", AMP_BF16},
        {"float32", AMP_F32}, {"fp32", AMP_F32}, {"float", AMP_F32}, {"", AMP_F16}};
    size_t i;
    for (i = 0; i < sizeof types / sizeof types[0]; i++) {
        amp_optimizer_desc desc = base_desc(2);
        env_set("", types[i].text);
        CHECK_EQ_INT(amp_optimizer_desc_from_env(&desc), AMP_OK);
        CHECK_EQ_INT(desc.dtype, types[i].type);
    }
    env_set(NULL, NULL);
}

TEST(env_scale, "manual: bf16 that AMP_DTYPE brings has a scale of 1 that does not move, unless the program has chosen one; "
                "fp16 that it brings replaces none by the default") {
    amp_optimizer_desc desc = base_desc(0);
    amp_scaler         s;
    int                i;
    env_set(NULL, "bf16");
    CHECK_EQ_INT(amp_optimizer_desc_from_env(&desc), AMP_OK);
    CHECK_EQ_INT(amp_scaler_init(&s, &desc.scaler), AMP_OK);
    for (i = 0; i < 3000; i++) {
        s.found_inf = i % 1000 == 0;
        s.checked   = 1;
        CHECK_EQ_INT(amp_scaler_update(&s), AMP_OK);
        CHECK_EQ_F32(s.scale, 1.0f);
    }
    desc = base_desc(2);
    CHECK_EQ_INT(amp_optimizer_desc_from_env(&desc), AMP_OK);
    CHECK_EQ_INT(desc.scaler.preset, AMP_PRESET_MEGATRON);
    desc = base_desc(0);
    desc.scaler.growth_interval = 5;
    CHECK_EQ_INT(amp_optimizer_desc_from_env(&desc), AMP_OK);
    CHECK_EQ_INT(desc.scaler.preset, AMP_PRESET_DEFAULT);
    env_set(NULL, "fp16"); /* where the program has chosen bf16, and no scale */
    desc                 = base_desc(1);
    desc.scaler.disabled = 1;
    CHECK_EQ_INT(amp_optimizer_desc_from_env(&desc), AMP_OK);
    CHECK_EQ_INT(desc.dtype, AMP_F16);
    CHECK_EQ_INT(desc.scaler.preset, AMP_PRESET_DEFAULT);
    CHECK(!desc.scaler.disabled);
    desc                   = base_desc(1);
    desc.scaler.init_scale = 512.0f; /* a scale that somebody has thought about */
    CHECK_EQ_INT(amp_optimizer_desc_from_env(&desc), AMP_OK);
    CHECK_EQ_F32(desc.scaler.init_scale, 512.0f);
    env_set(NULL, NULL);
}

static int env_modes_kept;

static void env_run(void) {
    static const uint32_t numbers[] = {0x7f800001u, 0xffc00000u, 0x7f800000u, 0x00000001u};
    amp_optimizer_desc    desc;
    size_t                i;
    for (i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        const uint32_t before = fp_get();
        const uint64_t wide   = (uint64_t)numbers[i] << 32 | 1u;
        memset(&desc, 0, sizeof desc);
        memcpy(&desc.scaler.init_scale, &numbers[i], 4);
        memcpy(&desc.scaler.growth_factor, &wide, 8);
        amp_optimizer_desc_from_env(&desc);
        env_modes_kept += fp_get() >> 6 == before >> 6; /* below are flags */
    }
}

TEST(env_traps, "law 13: hosts that unmask floating-point traps keep running, whatever the "
                "desc's numbers are, and find them unmasked afterwards") {
    if (!FP_TRAPPING) SKIP(FP_WHY);
    env_set(NULL, "bf16");
    env_modes_kept = 0;
    CHECK(fp_runs_without_trap(env_run));
    CHECK_EQ_INT(env_modes_kept, 4);
    env_set(NULL, NULL);
}

/* A test that stopped early leaves memory behind; the next one does not count it. */
#define RUN_FRESH(name) (memset(&the_heap, 0, sizeof the_heap), RUN(name))

int main(int argc, char **argv) {
    test_begin(argc, argv);
    env_set(NULL, NULL);
    RUN_FRESH(resume_adamw);
    RUN_FRESH(resume_sgd);
    RUN_FRESH(resume_own);
    RUN_FRESH(resume_extreme_scales);
    RUN_FRESH(other_dtype);
    RUN_FRESH(caller_keeps_memory);
    RUN_FRESH(newer);
    RUN_FRESH(bodies);
    RUN_FRESH(foreign);
    RUN_FRESH(formats_named);
    RUN_FRESH(any_number);
    RUN_FRESH(longer);
    RUN_FRESH(whose_scaler);
    RUN_FRESH(known_scale_changes);
    RUN_FRESH(moments_missing);
    RUN_FRESH(name_behind_the_end);
    RUN_FRESH(large_integers);
    RUN_FRESH(own_tensors);
    RUN_FRESH(mismatch_named);
    RUN_FRESH(golden_written);
    RUN_FRESH(golden_read);
    RUN_FRESH(layout);
    RUN_FRESH(members);
    RUN_FRESH(blocks);
    RUN_FRESH(any_bits);
    RUN_FRESH(out_of_memory);
    RUN_FRESH(files);
    RUN_FRESH(old_or_new);
    RUN_FRESH(unwritable);
    RUN_FRESH(rights);
    RUN_FRESH(not_ours);
    RUN_FRESH(links);
    RUN_FRESH(chain_of_links);
    RUN_FRESH(modes);
    RUN_FRESH(not_a_file);
    RUN_FRESH(errno_of_the_call);
    RUN_FRESH(errno_while_writing);
    RUN_FRESH(full_disk);
    RUN_FRESH(open_step_keeps);
    RUN_FRESH(flushed);
    RUN_FRESH(two_savers);
    RUN_FRESH(renamed_is_let_go);
    RUN_FRESH(taken_away);
    RUN_FRESH(left_over);
    RUN_FRESH(long_paths);
    RUN_FRESH(savers_killed);
    RUN_FRESH(killed);
    RUN_FRESH(results_differ);
    RUN_FRESH(any_mode);
    RUN_FRESH(env_all);
    RUN_FRESH(env_told);
    RUN_FRESH(env_unreadable);
    RUN_FRESH(env_readable);
    RUN_FRESH(env_scale);
    RUN_FRESH(env_traps);
    return test_end();
}
