/* test_recipes.c - what examples/recipes.c and recipes_net.c rely on, to the last bit: accumulation,
   a shared scaler, penalties, steps by hand, runs in one object, clipping, inference, moments of one's
   own, averages, the environment, what a session counts, and attention. */

#define _GNU_SOURCE /* setenv */
#define AMP_KERNELS /* the core: what objects are made of */
#include "amp.h"
#include "../../examples/support/attention.h"
#include "../support/fp.h"
#include "../support/posix.h"
#include "../support/prepare.h"
#include "../support/random.h"
#include "../support/test.h"
#include "../support/tiles.h" /* tiles_fmaf */

#include <fenv.h> /* feholdexcept, fesetenv */

enum { N = 37, STEPS = 60 };

static const uint32_t f32_inf = 0x7f800000u, f32_nan = 0x7fc00000u;

static const amp_kind kinds[] = {AMP_KIND_OWN, AMP_KIND_ADAMW, AMP_KIND_SGD};

/* ------------------------------------------------------------- one tensor on an optimizer */

typedef struct run {
    amp_optimizer opt;
    float         w[N], grad[N], average[N];
    amp_f16       half[N]; /* the gradient where its type is fp16 */
} run;

static amp_optimizer_desc desc_of(amp_kind kind) {
    amp_optimizer_desc d;
    memset(&d, 0, sizeof d);
    d.dtype                  = AMP_F16;
    d.kind                   = kind;
    d.momentum               = kind == AMP_KIND_SGD ? 0.5 : 0.0;
    d.weight_decay           = kind == AMP_KIND_OWN ? 0.0f : 0.0625f;
    d.scaler.init_scale      = 1024.0f;
    d.scaler.growth_interval = 1000;
    return d;
}

static void run_start(run *r, const amp_optimizer_desc *desc, amp_dtype grad_type) {
    amp_tensor t;
    int        i;
    memset(r, 0, sizeof *r);
    for (i = 0; i < N; i++) r->w[i] = (float)(i - 18) * 0.0625f;
    memset(&t, 0, sizeof t);
    t.name      = "w";
    t.n         = N;
    t.weight    = r->w;
    t.grad      = grad_type == AMP_F16 ? (void *)r->half : (void *)r->grad;
    t.grad_type = grad_type;
    CHECK_EQ_INT(amp_optimizer_init(&r->opt, desc), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_add(&r->opt, &t), AMP_OK);
    CHECK_EQ_INT(prepare_scaled(&r->opt), AMP_OK);
}

/* One step of any kind; AMP_KIND_OWN: w -= lr * g. */
static void run_step(run *r, float lr) {
    if (r->opt.desc.kind == AMP_KIND_ADAMW) {
        CHECK_EQ_INT(amp_optimizer_step(&r->opt, lr), AMP_OK);
    } else if (r->opt.desc.kind == AMP_KIND_SGD) {
        CHECK_EQ_INT(amp_optimizer_step(&r->opt, lr), AMP_OK);
    } else {
        const float *g = amp_optimizer_grad(&r->opt, 0);
        int          i;
        if (amp_optimizer_begin_step(&r->opt))
            for (i = 0; i < N; i++) {
                volatile float change = lr * g[i]; /* rounded here, whatever the flags */
                r->w[i] -= change;
            }
        CHECK_EQ_INT(amp_optimizer_end_step(&r->opt), AMP_OK);
    }
}

/* A multiple of 1/32 in [-8, 8]: 32 of them, and 1024 times one, are exact in fp16. */
static float noise(uint32_t a, uint32_t b) {
    uint32_t x = (a + 1u) * 2654435761u + b * 40503u;
    x          = (x ^ (x >> 15)) * 0x2c1b3c6du;
    return (float)((int)((x ^ (x >> 13)) % 513u) - 256) / 32.0f;
}

static amp_status status_of(const run *r) {
    amp_status s;
    memset(&s, 0, sizeof s);
    CHECK_EQ_INT(amp_optimizer_status(&r->opt, &s), AMP_OK);
    return s;
}

/* Weights, model copies, status and scaler. */
static void same_runs(const run *a, const run *b) {
    const amp_status s = status_of(a), t = status_of(b);
    CHECK_MEM(a->w, b->w, sizeof a->w);
    CHECK_MEM(amp_optimizer_model(&a->opt, 0), amp_optimizer_model(&b->opt, 0),
              N * amp_dtype_size(a->opt.desc.dtype));
    CHECK_MEM(&s, &t, sizeof s);
    CHECK_MEM(amp_optimizer_scaler(&a->opt), amp_optimizer_scaler(&b->opt), sizeof(amp_scaler));
}

/* ============================================================================ a  accumulation */

/* Steps over batches of 32 samples in parts micro-batches, each loss divided by parts. spoil: an
   inf in that micro-batch of step 2. */
static void accumulate(run *r, amp_kind kind, int parts, int spoil) {
    amp_optimizer_desc desc = desc_of(kind);
    uint32_t           step;
    int                m, i, j;
    desc.zero_grad = 1;
    run_start(r, &desc, AMP_F32);
    for (step = 0; step < 6; step++) {
        const float scale = amp_optimizer_loss_scale(&r->opt);
        for (m = 0; m < parts; m++) {
            CHECK_EQ_F32(amp_optimizer_loss_scale(&r->opt), scale);
            for (i = 0; i < N; i++)
                for (j = 0; j < 32 / parts; j++) {
                    const uint32_t sample = (uint32_t)(m * (32 / parts) + j);
                    /* the mean over the micro-batch, of a loss divided by parts */
                    r->grad[i] += noise(step * 64 + (uint32_t)i, sample) * scale / 32.0f;
                }
            if (spoil == m && step == 2) memcpy(&r->grad[5], &f32_inf, 4);
        }
        run_step(r, 0.125f);
        for (i = 0; i < N; i++) CHECK_EQ_F32(r->grad[i], 0.0f); /* empty, also after a skip */
    }
}

TEST(accumulation, "recipe a: for exact numbers, k micro-batches with the loss divided by k are "
                   "one large batch, bit for bit") {
    static run one, many;
    int        k, parts;
    for (k = 0; k < 3; k++) {
        accumulate(&one, kinds[k], 1, -1);
        CHECK_EQ_U64(status_of(&one).steps, 6);
        for (parts = 2; parts <= 32; parts *= 2) {
            accumulate(&many, kinds[k], parts, -1);
            same_runs(&many, &one);
            amp_optimizer_free(&many.opt);
        }
        amp_optimizer_free(&one.opt);
    }
}

TEST(accumulation_overflow, "recipe a: an overflow in any micro-batch skips the large step, once; "
                            "zero_grad empties the sum, so that the next step recovers") {
    static run one, many;
    int        k, spoil;
    for (k = 0; k < 3; k++) {
        accumulate(&one, kinds[k], 1, 0);
        for (spoil = 0; spoil < 8; spoil++) {
            accumulate(&many, kinds[k], 8, spoil);
            CHECK_EQ_U64(status_of(&many).steps, 5);
            CHECK_EQ_U64(status_of(&many).skipped, 1);
            CHECK_EQ_F32(amp_optimizer_loss_scale(&many.opt), 512.0f);
            same_runs(&many, &one);
            amp_optimizer_free(&many.opt);
        }
        amp_optimizer_free(&one.opt);
    }
}

TEST(accumulation_type, "recipe a: an fp16 sum loses addends 4096 times smaller, and overflows "
                        "where no addend does; an fp32 sum does neither") {
    amp_f16 sum  = amp_f32_to_f16(2048.0f);
    float   wide = 2048.0f;
    int     i;
    for (i = 0; i < 1000; i++) {
        sum = amp_f32_to_f16(amp_f16_to_f32(sum) + 0.5f);
        wide += 0.5f;
    }
    CHECK_EQ_F32(amp_f16_to_f32(sum), 2048.0f);
    CHECK_EQ_F32(wide, 2548.0f);
    sum = amp_f32_to_f16(40000.0f);
    CHECK(amp_all_finite(&sum, AMP_F16, 1));
    sum  = amp_f32_to_f16(amp_f16_to_f32(sum) + 40000.0f);
    wide = 80000.0f;
    CHECK(!amp_all_finite(&sum, AMP_F16, 1));
    CHECK(amp_all_finite(&wide, AMP_F32, 1));
}

/* =========================================================================== b  shared scaler */

TEST(shared_scaler, "recipe b: each optimizer is skipped on its own overflow only; whoever "
                    "overflowed, and in any number, the scale backs off once, by one update") {
    static run r[3];
    int        k, pattern, i, j;
    for (k = 0; k < 3; k++)
        for (pattern = 0; pattern < 8; pattern++) {
            amp_optimizer_desc desc = desc_of(kinds[k]);
            amp_scaler         s;
            CHECK_EQ_INT(amp_scaler_init(&s, &desc.scaler), AMP_OK);
            desc.shared_scaler = &s;
            for (i = 0; i < 3; i++) run_start(&r[i], &desc, AMP_F32);
            for (i = 0; i < 3; i++) {
                float before[N];
                memcpy(before, r[i].w, sizeof before);
                for (j = 0; j < N; j++) r[i].grad[j] = noise((uint32_t)i, (uint32_t)j) * s.scale;
                if (pattern >> i & 1) memcpy(&r[i].grad[N - 1], i == 1 ? &f32_nan : &f32_inf, 4);
                run_step(&r[i], 0.25f);
                CHECK_EQ_U64(status_of(&r[i]).did_step, !(pattern >> i & 1));
                CHECK_EQ_U64(status_of(&r[i]).skipped, pattern >> i & 1);
                CHECK_EQ_INT(memcmp(before, r[i].w, sizeof before) == 0, pattern >> i & 1);
                CHECK_EQ_F32(s.scale, 1024.0f); /* nobody has moved it yet */
                CHECK_EQ_U64(s.found_inf != 0, (pattern & ((2 << i) - 1)) != 0);
            }
            CHECK_EQ_INT(amp_scaler_update(&s), AMP_OK);
            CHECK_EQ_F32(s.scale, pattern ? 512.0f : 1024.0f);
            CHECK_EQ_U64(s.backoffs, pattern != 0);
            CHECK_EQ_U64(s.good + s.skipped, 1);
            CHECK_EQ_U64(s.found_inf, 0);
            CHECK_EQ_INT(amp_scaler_update(&s), AMP_ERROR_BAD_STATE); /* once per iteration */
            for (i = 0; i < 3; i++) {
                CHECK_EQ_F32(amp_optimizer_loss_scale(&r[i].opt), s.scale);
                amp_optimizer_free(&r[i].opt);
            }
        }
}

TEST(shared_growth, "recipe b: good steps are counted by iteration, not by optimizer, and the "
                    "weights are those of optimizers with scalers of their own") {
    static run         together[2], alone[2];
    amp_optimizer_desc desc = desc_of(AMP_KIND_ADAMW), shared;
    amp_scaler         s;
    int                i, j;
    uint32_t           step;
    desc.scaler.growth_interval = 10;
    CHECK_EQ_INT(amp_scaler_init(&s, &desc.scaler), AMP_OK);
    shared               = desc;
    shared.shared_scaler = &s;
    for (i = 0; i < 2; i++) run_start(&together[i], &shared, AMP_F32);
    for (i = 0; i < 2; i++) run_start(&alone[i], &desc, AMP_F32);
    for (step = 0; step < 35; step++) {
        for (i = 0; i < 2; i++) {
            for (j = 0; j < N; j++)
                together[i].grad[j] = noise(step * 2 + (uint32_t)i, (uint32_t)j) * s.scale;
            memcpy(alone[i].grad, together[i].grad, sizeof alone[i].grad);
            run_step(&together[i], 0.01f);
            run_step(&alone[i], 0.01f);
        }
        CHECK_EQ_INT(amp_scaler_update(&s), AMP_OK);
        for (i = 0; i < 2; i++) {
            CHECK_MEM(together[i].w, alone[i].w, sizeof alone[i].w);
            CHECK_EQ_F32(amp_optimizer_loss_scale(&alone[i].opt), s.scale);
        }
    }
    CHECK_EQ_F32(s.scale, 8192.0f);
    CHECK_EQ_U64(s.good, 35);
    for (i = 0; i < 2; i++) amp_optimizer_free(&together[i].opt);
    for (i = 0; i < 2; i++) amp_optimizer_free(&alone[i].opt);
}

/* ======================================================================== c  gradient penalty */

TEST(penalty_unscale, "recipe c: amp_scaler_unscale leaves its source as it was and loses "
                      "nothing; fp16 in place is refused, since it would") {
    amp_scaler s;
    amp_f16    inner[N], kept[N];
    float      g[N];
    int        i;
    CHECK_EQ_INT(amp_scaler_init(&s, NULL), AMP_OK);
    for (i = 0; i < N; i++) inner[i].bits = (uint16_t)(i * 1771 % 0x7c00 + (i % 2 ? 0x8000 : 0));
    memcpy(kept, inner, sizeof kept);
    CHECK_EQ_INT(amp_scaler_unscale(&s, g, inner, AMP_F16, N), AMP_OK);
    CHECK_MEM(inner, kept, sizeof kept);
    for (i = 0; i < N; i++) CHECK_EQ_F32(g[i] * s.scale, amp_f16_to_f32(inner[i]));
    CHECK_EQ_U64(s.found_inf, 0);
    CHECK_EQ_F32(s.scale, 65536.0f);
    CHECK_EQ_INT(amp_scaler_unscale(&s, inner, inner, AMP_F16, N), AMP_ERROR_UNSUPPORTED);
    CHECK_MEM(inner, kept, sizeof kept);
}

TEST(penalty_overflow, "recipe c: an inf in the inner gradient skips the step of the optimizer "
                       "whose scaler saw it, though the outer gradient is finite; the next one "
                       "goes on") {
    static run r;
    int        k, i, step;
    for (k = 0; k < 3; k++) {
        amp_optimizer_desc desc = desc_of(kinds[k]);
        float              before[N], inner[N], out[N];
        run_start(&r, &desc, AMP_F32);
        for (step = 0; step < 4; step++) {
            for (i = 0; i < N; i++) r.grad[i] = inner[i] = noise((uint32_t)step, (uint32_t)i);
            if (step == 1) memcpy(&inner[7], &f32_inf, 4);
            if (step == 2) memcpy(&inner[8], &f32_nan, 4);
            memcpy(before, r.w, sizeof before);
            CHECK_EQ_INT(amp_scaler_unscale(amp_optimizer_scaler(&r.opt), out, inner, AMP_F32,
                                               N), AMP_OK);
            run_step(&r, 0.25f);
            CHECK_EQ_INT(memcmp(before, r.w, sizeof before) != 0, step == 0 || step == 3);
            CHECK_EQ_U64(status_of(&r).did_step, step == 0 || step == 3);
        }
        CHECK_EQ_U64(status_of(&r).steps, 2);
        CHECK_EQ_F32(amp_optimizer_loss_scale(&r.opt), 256.0f);
        amp_optimizer_free(&r.opt);
    }
}

/* ================================================================================= d  by hand */

static uint64_t bits64(double x) {
    uint64_t u;
    memcpy(&u, &x, 8);
    return u;
}

TEST(by_hand, "recipe d: amp_scaler_set_scale replaces the scale, keeps growth_tracker and clears "
              "stuck, in every preset; nothing else changes") {
    int preset, i;
    for (preset = 0; preset <= (int)AMP_PRESET_MXNET; preset++) {
        amp_scaler_desc desc;
        amp_scaler      s, want;
        if (preset == (int)AMP_PRESET_NONE) continue; /* it has no other scale than 1 */
        memset(&desc, 0, sizeof desc);
        desc.preset = (amp_preset)preset;
        CHECK_EQ_INT(amp_scaler_init(&s, &desc), AMP_OK);
        for (i = 0; i < 7; i++) {
            CHECK_EQ_INT(amp_scaler_unscale(&s, NULL, NULL, AMP_F32, 0), AMP_OK);
            CHECK_EQ_INT(amp_scaler_update(&s), AMP_OK);
        }
        s.stuck         = 1;
        want            = s;
        want.scale      = 48.0f;
        want.next_scale = 48.0;
        want.stuck      = 0;
        CHECK_EQ_INT(amp_scaler_set_scale(&s, 48.0f), AMP_OK);
        CHECK_MEM(&s, &want, sizeof s);
        CHECK_EQ_INT(amp_scaler_unscale(&s, NULL, NULL, AMP_F32, 0), AMP_OK);
        CHECK_EQ_INT(amp_scaler_update(&s), AMP_OK);
        CHECK_EQ_F32(s.scale, 48.0f); /* and stays, until the rules move it */
        CHECK_EQ_U64(bits64(s.next_scale), bits64(48.0));
    }
}

TEST(by_hand_refused, "recipe d: 0, negative, NaN, inf and, in DEFAULT and STATIC, what has no "
                      "normal reciprocal or is outside the limits, is refused; nothing changes") {
    static const uint32_t never[] = {0, 0x80000000u, 0xbf800000u, 0x7f800000u, 0xff800000u,
                                     0x7fc00000u, 0xffc00000u};
    static const uint32_t safe[]  = {1, 0x007fffffu, 0x7f7fffffu, 0x7e800001u};
    static const float    limits[] = {6.0e-5f, 16777218.0f};
    amp_scaler_desc       desc;
    int                   preset;
    size_t                i;
    float                 x;
    memset(&desc, 0, sizeof desc);
    for (preset = 0; preset <= (int)AMP_PRESET_MXNET; preset++) {
        amp_scaler s, before;
        desc.preset = (amp_preset)preset;
        CHECK_EQ_INT(amp_scaler_init(&s, &desc), AMP_OK);
        before = s;
        for (i = 0; i < sizeof never / sizeof never[0]; i++) {
            memcpy(&x, &never[i], 4);
            CHECK_EQ_INT(amp_scaler_set_scale(&s, x), AMP_ERROR_INVALID_CONFIG);
        }
        for (i = 0; i < 4 && (preset == 0 || preset == (int)AMP_PRESET_STATIC); i++) {
            memcpy(&x, &safe[i], 4);
            CHECK_EQ_INT(amp_scaler_set_scale(&s, x), AMP_ERROR_INVALID_CONFIG);
        }
        for (i = 0; i < 2 && preset == 0; i++)
            CHECK_EQ_INT(amp_scaler_set_scale(&s, limits[i]), AMP_ERROR_INVALID_CONFIG);
        CHECK_MEM(&s, &before, sizeof s);
    }
    CHECK_EQ_INT(amp_scaler_set_scale(NULL, 1.0f), AMP_ERROR_INVALID_ARGUMENT);
}

TEST(by_hand_static, "recipe d: STATIC never moves the scale, and skips what overflows; gradients "
                     "meet the new scale from the next backward on") {
    static run         r;
    amp_optimizer_desc desc = desc_of(AMP_KIND_OWN);
    uint32_t           step;
    int                i;
    desc.scaler.preset          = AMP_PRESET_STATIC;
    desc.scaler.growth_interval = 3;
    run_start(&r, &desc, AMP_F32);
    for (step = 0; step < 300; step++) {
        float scale;
        if (step == 150)
            CHECK_EQ_INT(amp_scaler_set_scale(amp_optimizer_scaler(&r.opt), 24.0f), AMP_OK);
        scale = amp_optimizer_loss_scale(&r.opt);
        CHECK_EQ_F32(scale, step < 150 ? 1024.0f : 24.0f);
        for (i = 0; i < N; i++) r.grad[i] = 3.0f * scale;
        if (step % 4 == 1) memcpy(&r.grad[0], &f32_inf, 4);
        CHECK_EQ_INT(amp_optimizer_begin_step(&r.opt), step % 4 != 1);
        if (step % 4 != 1) CHECK_EQ_F32(amp_optimizer_grad(&r.opt, 0)[N - 1], 3.0f);
        CHECK_EQ_INT(amp_optimizer_end_step(&r.opt), AMP_OK);
    }
    CHECK_EQ_U64(status_of(&r).skipped, 75);
    CHECK_EQ_U64(status_of(&r).steps, 225);
    amp_optimizer_free(&r.opt);
}

/* ==================================================================== e  schedule and average */

static void average_of(run *r, float *average) {
    int i;
    for (i = 0; i < N; i++) {
        volatile float gap = r->w[i] - average[i], part = gap * 0.125f;
        average[i] += part;
    }
}

/* STEPS taken steps; iterations whose bit in trouble is set overflow and try the step again. */
static void scheduled(run *r, amp_kind kind, uint64_t trouble) {
    amp_optimizer_desc desc   = desc_of(kind);
    amp_status         status;
    int                iteration, i;
    run_start(r, &desc, AMP_F16);
    memset(&status, 0, sizeof status);
    for (iteration = 0; status.steps < STEPS; iteration++) {
        const float    warm  = status.steps < 16 ? (float)(status.steps + 1) * 0.0625f : 1.0f;
        const uint64_t taken = status.steps;
        const int      bad   = iteration < 64 && (trouble >> iteration & 1) != 0;
        for (i = 0; i < N; i++)
            r->half[i] = amp_f32_to_f16(noise((uint32_t)taken, (uint32_t)i) *
                                        amp_optimizer_loss_scale(&r->opt));
        if (bad) r->half[iteration % N].bits = 0x7c00;
        run_step(r, 0.125f * warm);
        status = status_of(r);
        CHECK_EQ_U64(status.did_step, !bad);
        CHECK_EQ_U64(status.steps, taken + !bad);
        CHECK_EQ_U64(status.steps + status.skipped, iteration + 1);
        CHECK_EQ_U64(amp_optimizer_gate(&r->opt)->step, status.steps);
        if (status.did_step) average_of(r, r->average);
    }
}

TEST(skipped_steps, "recipe e: a skipped step does not advance steps; schedules and averages "
                    "driven by status end where a run without overflows ends, bit for bit") {
    static const uint64_t troubles[] = {1, 0x80, 0x8000000000000001u, 0x0000030000c00000u, 0x1f};
    static run            clean, rough;
    size_t                k, t;
    for (k = 0; k < 3; k++) {
        scheduled(&clean, kinds[k], 0);
        CHECK_EQ_U64(status_of(&clean).skipped, 0);
        for (t = 0; t < sizeof troubles / sizeof troubles[0]; t++) {
            scheduled(&rough, kinds[k], troubles[t]);
            CHECK(status_of(&rough).skipped >= 1);
            CHECK_MEM(rough.w, clean.w, sizeof clean.w);
            CHECK_MEM(rough.average, clean.average, sizeof clean.average);
            CHECK_MEM(amp_optimizer_model(&rough.opt, 0), amp_optimizer_model(&clean.opt, 0),
                      2 * N);
            amp_optimizer_free(&rough.opt);
        }
        amp_optimizer_free(&clean.opt);
    }
}

/* ============================================================================ f  several runs */

static void one_iteration(run *r, uint32_t seed, uint32_t k) {
    int i;
    for (i = 0; i < N; i++)
        r->grad[i] = noise(k + 1000 * seed, (uint32_t)i) * amp_optimizer_loss_scale(&r->opt);
    if ((k + seed) % 9 == 4) memcpy(&r->grad[k % N], &f32_inf, 4);
    run_step(r, 0.03125f);
}

TEST(several_runs, "recipe f: runs in one process share nothing: taking turns they have the bits "
                   "of each alone, in any order, and a run that is repeated has them again") {
    static run turns[3], alone;
    int        i;
    uint32_t   k;
    for (i = 0; i < 3; i++) {
        amp_optimizer_desc desc     = desc_of(kinds[i]);
        desc.scaler.growth_interval = 4 + i;
        run_start(&turns[i], &desc, AMP_F32);
    }
    for (k = 0; k < 100; k++)
        for (i = 0; i < 3; i++) {
            const uint32_t who = (k + (uint32_t)i) % 3u;
            one_iteration(&turns[who], who, k);
        }
    for (i = 2; i >= 0; i--) {
        amp_optimizer_desc desc     = turns[i].opt.desc;
        amp_scaler         first;
        desc.scaler.growth_interval = 4 + i;
        run_start(&alone, &desc, AMP_F32);
        CHECK_EQ_INT(amp_scaler_init(&first, &desc.scaler), AMP_OK);
        CHECK_MEM(amp_optimizer_scaler(&alone.opt), &first, sizeof first); /* a fresh scaler */
        for (k = 0; k < 100; k++) one_iteration(&alone, (uint32_t)i, k);
        same_runs(&alone, &turns[i]);
        CHECK(amp_optimizer_scaler(&alone.opt)->backoffs > 5);
        amp_optimizer_free(&alone.opt);
        amp_optimizer_free(&turns[i].opt); /* does not disturb the others */
    }
}

TEST(same_object, "recipe f: an optimizer that was freed starts again as if it were new") {
    static run         first, again;
    amp_optimizer_desc desc = desc_of(AMP_KIND_ADAMW);
    uint32_t           k;
    run_start(&first, &desc, AMP_F32);
    for (k = 0; k < 50; k++) one_iteration(&first, 1, k);
    run_start(&again, &desc, AMP_F32);
    for (k = 0; k < 20; k++) one_iteration(&again, 2, k);
    amp_optimizer_free(&again.opt);
    run_start(&again, &desc, AMP_F32);
    for (k = 0; k < 50; k++) one_iteration(&again, 1, k);
    same_runs(&again, &first);
    amp_optimizer_free(&first.opt);
    amp_optimizer_free(&again.opt);
}

TEST(from_environment, "recipe f: one desc from the environment serves several runs; what cannot "
                       "be read is named, with the value, and desc stays as it was") {
    static run         a, b;
    amp_optimizer_desc desc = desc_of(AMP_KIND_ADAMW), before;
    uint32_t           k;
    unsetenv("AMP_ENABLE");
    setenv("AMP_DTYPE", "bf16", 1);
    desc.scaler.preset     = AMP_PRESET_STATIC;
    desc.scaler.init_scale = 256.0f;
    CHECK_EQ_INT(amp_optimizer_desc_from_env(&desc), AMP_OK);
    run_start(&a, &desc, AMP_F32);
    run_start(&b, &desc, AMP_F32);
    for (k = 0; k < 20; k++) one_iteration(&a, 1, k);
    for (k = 0; k < 20; k++) one_iteration(&b, 1, k);
    same_runs(&a, &b);
    CHECK_EQ_F32(amp_optimizer_loss_scale(&a.opt), 256.0f);
    CHECK_EQ_U64(((const amp_bf16 *)amp_optimizer_model(&a.opt, 0))[1].bits,
                 amp_f32_to_bf16(a.w[1]).bits);
    amp_optimizer_free(&a.opt);
    amp_optimizer_free(&b.opt);
    setenv("AMP_DTYPE", "12abc", 1);
    before = desc;
    CHECK_EQ_INT(amp_optimizer_desc_from_env(&desc), AMP_ERROR_INVALID_CONFIG);
    CHECK(strstr(amp_problem(), "AMP_DTYPE must be ") == amp_problem() && strstr(amp_problem(), "\"12abc\""));
    CHECK_MEM(&desc, &before, sizeof desc);
    unsetenv("AMP_DTYPE");
}

/* ================================================================================ h  clipping */

TEST(clipping_order, "recipe h: max_norm, and a clipping of one's own behind begin_step, meet "
                     "unscaled gradients: factor and gradients have the same bits at every scale") {
    static run         r;
    static const float scales[] = {1.0f, 0.125f, 1024.0f, 65536.0f, 16777216.0f};
    float              first[N], by_hand[N], factor = 0.0f;
    int                k, i;
    for (k = 0; k < 5; k++) {
        amp_optimizer_desc desc = desc_of(AMP_KIND_OWN);
        desc.scaler.init_scale  = scales[k];
        run_start(&r, &desc, AMP_F32);
        for (i = 0; i < N; i++) r.grad[i] = noise(3, (uint32_t)i) * scales[k];
        CHECK(amp_optimizer_begin_step(&r.opt));
        memcpy(by_hand, amp_optimizer_grad(&r.opt, 0), sizeof by_hand);
        for (i = 0; i < N; i++) CHECK_EQ_F32(by_hand[i], noise(3, (uint32_t)i));
        CHECK_EQ_INT(amp_optimizer_end_step(&r.opt), AMP_OK);
        amp_optimizer_free(&r.opt);

        desc.max_norm = 0.5f;
        run_start(&r, &desc, AMP_F32);
        for (i = 0; i < N; i++) r.grad[i] = noise(3, (uint32_t)i) * scales[k];
        CHECK(amp_optimizer_begin_step(&r.opt));
        if (k == 0) memcpy(first, amp_optimizer_grad(&r.opt, 0), sizeof first);
        CHECK_MEM(first, amp_optimizer_grad(&r.opt, 0), sizeof first);
        CHECK_EQ_INT(amp_optimizer_end_step(&r.opt), AMP_OK);
        if (k == 0) factor = status_of(&r).clip_factor;
        CHECK(factor > 0.0f && factor < 0.1f); /* a norm of about 4.6 sqrt(37) */
        CHECK_EQ_F32(status_of(&r).clip_factor, factor);
        amp_optimizer_free(&r.opt);
    }
}

/* ================================================================== recipes_net b  inference */

static unsigned char saved[8192];
static size_t        saved_size, saved_read;

static bool to_saved(void *user, const void *data, size_t n) {
    (void)user;
    if (n > sizeof saved - saved_size) return false;
    memcpy(saved + saved_size, data, n);
    saved_size += n;
    return true;
}

static bool from_saved(void *user, void *data, size_t n) {
    (void)user;
    if (n > saved_size - saved_read) return false;
    memcpy(data, saved + saved_read, n);
    saved_read += n;
    return true;
}

TEST(inference, "recipes_net b: a state loaded into half memory of the caller's leaves there what "
                "training read, or its masters rounded to another type, after free") {
    static const amp_dtype types[] = {AMP_F16, AMP_BF16};
    static run             r;
    uint16_t               half[N], want[N];
    int                    k, t;
    uint32_t               step;
    for (k = 0; k < 3; k++)
        for (t = 0; t < 2; t++) {
            amp_optimizer_desc desc = desc_of(kinds[k]);
            amp_optimizer      opt;
            amp_tensor         tensor;
            run_start(&r, &desc, AMP_F32);
            for (step = 0; step < 9; step++) one_iteration(&r, 1, step);
            saved_size = saved_read = 0;
            CHECK_EQ_INT(amp_optimizer_save(&r.opt, to_saved, NULL), AMP_OK);
            CHECK_EQ_INT(amp_cast(want, types[t], r.w, AMP_F32, N), AMP_OK);
            if (t == 0) CHECK_MEM(want, amp_optimizer_model(&r.opt, 0), sizeof want);
            amp_optimizer_free(&r.opt);

            memset(&tensor, 0, sizeof tensor);
            memset(half, 0, sizeof half);
            tensor.name       = "w";
            tensor.n          = N;
            tensor.model      = half;
            tensor.model_type = desc.dtype = types[t];
            CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
            CHECK_EQ_INT(amp_optimizer_add(&opt, &tensor), AMP_OK);
            CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
            CHECK_EQ_INT(amp_optimizer_load(&opt, from_saved, NULL), AMP_OK);
            amp_optimizer_free(&opt);
            CHECK_MEM(half, want, sizeof want);
        }
}

/* ======================================================================= muon.c */

/* STEPS taken steps of momentum kept behind the gate; bad iterations have an inf or a NaN. */
static void gated(run *r, float *momentum, int every) {
    amp_optimizer_desc desc = desc_of(AMP_KIND_OWN);
    int                iteration, i;
    run_start(r, &desc, AMP_F32);
    memset(momentum, 0, N * sizeof *momentum);
    for (iteration = 0; status_of(r).steps < STEPS; iteration++) {
        const float    scale = amp_optimizer_loss_scale(&r->opt);
        const uint32_t taken = (uint32_t)status_of(r).steps;
        const int      bad   = every && iteration % every == 1;
        for (i = 0; i < N; i++) r->grad[i] = noise(taken, (uint32_t)i) * scale;
        if (bad) memcpy(&r->grad[iteration % N], iteration & 2 ? &f32_nan : &f32_inf, 4);
        CHECK_EQ_INT(amp_optimizer_begin_step(&r->opt), !bad);
        for (i = 0; i < N && !bad; i++) {
            volatile float kept = 0.875f * momentum[i], change; /* rounded here */
            momentum[i] = kept + amp_optimizer_grad(&r->opt, 0)[i];
            change      = 0.0625f * momentum[i];
            r->w[i] -= change;
        }
        CHECK_EQ_INT(amp_optimizer_end_step(&r->opt), AMP_OK);
    }
}

TEST(gated_momentum, "muon.c: a momentum that is changed behind begin_step alone has, with "
                     "any overflows, the bits of a run without") {
    static run clean, rough;
    float      momentum[2][N];
    int        every;
    gated(&clean, momentum[0], 0);
    for (every = 2; every < 40; every += 6) {
        gated(&rough, momentum[1], every);
        CHECK(status_of(&rough).skipped >= 1);
        CHECK_MEM(momentum[1], momentum[0], sizeof momentum[0]);
        CHECK_MEM(rough.w, clean.w, sizeof clean.w);
        amp_optimizer_free(&rough.opt);
    }
    amp_optimizer_free(&clean.opt);
}

/* ================================================================== recipes_net d  attention */

enum { ROOM = 4096 }; /* numbers in the largest array of each case */

/* Plain loops in double: out, and prob if there is one. Element i of qkv is moved by change. */
static void plain_attention(const attention *t, const float *qkv, size_t moved, double change, double *out,
                            double *prob) {
    static double  x[ROOM], score[ROOM];
    const size_t   n = t->tokens, w = t->width, depth = w / t->heads;
    size_t         s, h, i, j, d;
    for (i = 0; i < t->sequences * n * 3 * w; i++) x[i] = (double)qkv[i] + (i == moved ? change : 0.0);
    for (s = 0; s < t->sequences; s++)
        for (h = 0; h < t->heads; h++)
            for (i = 0; i < n; i++) {
                const double *q = x + (s * n + i) * 3 * w + h * depth;
                double        sum = 0.0;
                for (j = 0; j <= i; j++) {
                    const double *k = x + (s * n + j) * 3 * w + w + h * depth;
                    for (score[j] = 0.0, d = 0; d < depth; d++) score[j] += q[d] * k[d];
                    score[j] = exp(score[j] / sqrt((double)depth));
                    sum += score[j];
                }
                for (d = 0; d < depth; d++) {
                    double *y = out + (s * n + i) * w + h * depth + d;
                    for (*y = 0.0, j = 0; j <= i; j++)
                        *y += score[j] / sum * x[(s * n + j) * 3 * w + 2 * w + h * depth + d];
                }
                for (j = 0; prob && j < n; j++)
                    prob[((s * t->heads + h) * n + i) * n + j] = j <= i ? score[j] / sum : 0.0;
            }
}

static int within(float x, double want, double limit) { return fabs((double)x - want) <= limit; }

/* alpha times the sum of a b in order, rounded as products of fp32 are in this tier. */
static float plain_sum(const float *a, size_t step_a, const float *b, size_t step_b, size_t n, float alpha) {
    const int      fused = strcmp(amp_cpu_tier(), "c") != 0;
    volatile float s     = 0.0f, product;
    size_t         i;
    for (i = 0; i < n; i++, a += step_a, b += step_b) {
        product = *a * *b;
        s       = fused ? tiles_fmaf(*a, *b, s) : s + product;
    }
    s = s * alpha;
    return s;
}

/* out and dqkv by loops from what attend and attend_back left in prob and scratch, sequence s. */
static void same_products(const attention *t, size_t s, const float *out, const float *dqkv, const float *dout,
                          const float *prob, const float *scratch, const float *qkv) {
    const size_t n = t->tokens, w = t->width, depth = w / t->heads;
    const float  alpha = 1.0f / sqrtf((float)depth);
    size_t       h, i, d;
    for (h = 0; h < t->heads; h++)
        for (i = 0; i < n; i++)
            for (d = 0; d < depth; d++) {
                const size_t at = h * depth + d, row = s * n * 3 * w + at;
                const float *p = prob + (s * t->heads + h) * n * n, *ds = scratch + h * n * n;
                const float *dy = dout + s * n * w + at, *dx = dqkv + row + i * 3 * w;
                CHECK_EQ_F32(out[(s * n + i) * w + at],
                             plain_sum(p + i * n, 1, qkv + row + 2 * w, 3 * w, i + 1, 1.0f));
                CHECK_EQ_F32(dx[2 * w], plain_sum(p + i * n + i, n, dy + i * w, w, n - i, 1.0f));
                CHECK_EQ_F32(dx[0], plain_sum(ds + i * n, 1, qkv + row + w, 3 * w, i + 1, alpha));
                CHECK_EQ_F32(dx[w], plain_sum(ds + i * n + i, n, qkv + row + i * 3 * w, 3 * w, n - i, alpha));
            }
}

TEST(attention, "recipes_net d: probabilities and outputs of plain loops, gradients by finite differences, in fp32 the "
                "bits of loops; rounded to 16 bits near them") {
    static const size_t sizes[][4] = {{1, 1, 1, 1}, {2, 7, 15, 3}, {1, 33, 32, 2}, {3, 8, 24, 1}, {2, 5, 6, 6}};
    static float        qkv[ROOM], out[ROOM], prob[ROOM], dqkv[ROOM], scratch[ROOM], dout[ROOM], low[ROOM];
    static double       want[ROOM], want_prob[ROOM], up[ROOM], down[ROOM];
    static const double near[] = {2e-6, 4e-3, 3e-2}; /* of 1: fp32, fp16, bf16 with some roundings each */
    size_t              c, i, j;
    int                 type;
    for (c = 0; c < sizeof sizes / sizeof *sizes; c++) {
        const attention t = {sizes[c][0], sizes[c][1], sizes[c][2], sizes[c][3], AMP_F32};
        const size_t    rows = t.sequences * t.tokens, outs = rows * t.width, one = t.heads * t.tokens * t.tokens;
        attention       of   = t;
        for (i = 0; i < 3 * outs; i++) qkv[i] = random_value();
        for (i = 0; i < outs; i++) dout[i] = random_value();
        for (i = 0; i < ROOM; i++) out[i] = prob[i] = dqkv[i] = scratch[i] = 7.0f;
        plain_attention(&t, qkv, 0, 0.0, want, want_prob);
        CHECK_EQ_INT(attend(&t, out, prob, qkv), AMP_OK);
        for (i = 0; i < outs; i++) CHECK(within(out[i], want[i], near[0]));
        for (i = 0; i < t.sequences * one; i++) CHECK(within(prob[i], want_prob[i], near[0]));
        for (i = 0; i < t.sequences * one; i++) CHECK(want_prob[i] > 0.0 || prob[i] == 0.0f);
        CHECK_EQ_INT(attend_back(&t, dqkv, scratch, dout, prob, qkv), AMP_OK);
        same_products(&t, t.sequences - 1, out, dqkv, dout, prob, scratch, qkv);
        for (i = 0; i < 3 * outs; i += c == 2 ? 7 : 1) {
            const double h     = 1.0 / 1024.0; /* of which the square is left, and what fp32 rounds */
            double       slope = 0.0;
            plain_attention(&t, qkv, i, h, up, NULL), plain_attention(&t, qkv, i, -h, down, NULL);
            for (j = 0; j < outs; j++) slope += (up[j] - down[j]) / (2.0 * h) * (double)dout[j];
            CHECK(within(dqkv[i], slope, 1e-5));
        }
        CHECK(out[outs] == 7.0f && prob[t.sequences * one] == 7.0f && dqkv[3 * outs] == 7.0f && scratch[one] == 7.0f);
        for (type = AMP_F16; type <= AMP_BF16; type++) {
            of.compute = (amp_dtype)type;
            CHECK_EQ_INT(attend(&of, out, prob, qkv), AMP_OK);
            for (i = 0; i < outs; i++) CHECK(within(out[i], want[i], near[type]));
            CHECK_EQ_INT(attend_back(&of, low, scratch, dout, prob, qkv), AMP_OK);
            for (i = 0; i < 3 * outs; i++) CHECK(within(low[i], dqkv[i], near[type] * 4.0));
        }
    }
    {
        attention wrong = {1, 2, 4, 2, (amp_dtype)9}, steep = {1, 4, 1, 1, AMP_F32};
        for (i = 0; i < 4; i++) qkv[3 * i] = 1000.0f, qkv[3 * i + 1] = (float)(i % 3), qkv[3 * i + 2] = (float)i;
        CHECK_EQ_INT(attend(&steep, out, prob, qkv), AMP_OK); /* scores to 2000: the largest takes all */
        for (i = 0; i < 4; i++) CHECK_EQ_F32(out[i], i < 2 ? (float)i : 2.0f);
        CHECK_EQ_INT(attend(&wrong, out, prob, qkv), AMP_ERROR_INVALID_ENUM);
        CHECK_EQ_INT(attend_back(&wrong, dqkv, scratch, dout, prob, qkv), AMP_ERROR_INVALID_ENUM);
    }
}

/* ====================================================================================== FAQ */

/* An Adam of the user's own, whose moments are frozen tensors of the same optimizer. */
typedef struct adam { amp_optimizer opt; float w[N], grad[N], m[N], v[N]; } adam;

static void adam_start(adam *a) {
    amp_optimizer_desc desc = desc_of(AMP_KIND_OWN);
    amp_tensor         t[3];
    int                i;
    memset(a, 0, sizeof *a);
    memset(t, 0, sizeof t);
    for (i = 0; i < N; i++) a->w[i] = (float)(i - 18) * 0.0625f;
    t[0].weight = a->w, t[0].grad = a->grad;
    t[1].weight = a->m, t[1].keep_fp32 = t[1].frozen = 1;
    t[2].weight = a->v, t[2].keep_fp32 = t[2].frozen = 1;
    CHECK_EQ_INT(amp_optimizer_init(&a->opt, &desc), AMP_OK);
    for (i = 0; i < 3; i++) {
        t[i].n = N;
        CHECK_EQ_INT(amp_optimizer_add(&a->opt, &t[i]), AMP_OK);
    }
    CHECK_EQ_INT(prepare_scaled(&a->opt), AMP_OK);
}

static void adam_step(adam *a, uint32_t step) {
    const float *g = amp_optimizer_grad(&a->opt, 0);
    int          i;
    for (i = 0; i < N; i++) a->grad[i] = noise(step, (uint32_t)i) * amp_optimizer_loss_scale(&a->opt);
    if (step % 4 == 3) memcpy(&a->grad[5], &f32_inf, 4);
    if (amp_optimizer_begin_step(&a->opt))
        for (i = 0; i < N; i++) { /* each rounded here, whatever the flags */
            volatile float m = 0.75f * a->m[i], v = 0.875f * a->v[i], gg = g[i] * g[i], change;
            a->m[i] = m + 0.25f * g[i];
            a->v[i] = v + 0.125f * gg;
            change  = a->m[i] / (a->v[i] + 1.0f);
            change  = change * 0.125f;
            a->w[i] -= change;
        }
    CHECK_EQ_INT(amp_optimizer_end_step(&a->opt), AMP_OK);
}

TEST(own_moments, "README: moments of an optimizer of one's own are frozen tensors: no step touches them, they have no "
                  "copy, and one file holds them with the rest") {
    static adam       all, half, again;
    const amp_scaler *s;
    uint32_t          step;
    adam_start(&all), adam_start(&half), adam_start(&again);
    for (step = 0; step < 12; step++) adam_step(&all, step);
    for (step = 0; step < 8; step++) adam_step(&half, step); /* the last one is skipped */
    saved_size = saved_read = 0;
    CHECK_EQ_INT(amp_optimizer_save(&half.opt, to_saved, NULL), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_load(&again.opt, from_saved, NULL), AMP_OK);
    CHECK_MEM(again.v, half.v, sizeof half.v);
    for (; step < 12; step++) adam_step(&again, step);
    CHECK_MEM(again.w, all.w, sizeof all.w);
    CHECK_MEM(again.m, all.m, sizeof all.m);
    CHECK_MEM(again.v, all.v, sizeof all.v);
    CHECK(amp_optimizer_model(&all.opt, 1) == (const void *)all.m && amp_optimizer_grad(&all.opt, 1) == NULL);
    s = amp_optimizer_scaler(&again.opt);
    CHECK(s->good == 9 && s->skipped == 3);
    amp_optimizer_free(&all.opt), amp_optimizer_free(&half.opt), amp_optimizer_free(&again.opt);
}

TEST(average_evaluated, "README: an average of weights is evaluated through the masters and refresh; put back, the run "
                        "has the bits of one that was left alone") {
    static run         r, alone;
    static amp_f16     cast[N];
    float              kept[N];
    amp_optimizer_desc desc;
    uint32_t           step;
    int                k, i;
    for (k = 0; k < 3; k++) {
        desc = desc_of(kinds[k]);
        run_start(&r, &desc, AMP_F32), run_start(&alone, &desc, AMP_F32);
        for (step = 0; step < 12; step++) {
            for (i = 0; i < N; i++)
                r.grad[i] = alone.grad[i] = noise(step, (uint32_t)i) * amp_optimizer_loss_scale(&r.opt);
            if (step == 7) memcpy(&r.grad[3], &f32_nan, 4), memcpy(&alone.grad[3], &f32_nan, 4);
            run_step(&r, 0.125f), run_step(&alone, 0.125f);
            for (i = 0; i < N; i++) r.average[i] = 0.5f * r.average[i] + 0.5f * r.w[i];
            memcpy(kept, r.w, sizeof kept);
            memcpy(r.w, r.average, sizeof r.w);
            CHECK_EQ_INT(amp_optimizer_refresh(&r.opt), AMP_OK);
            CHECK_EQ_INT(amp_cast(cast, AMP_F16, r.average, AMP_F32, N), AMP_OK);
            CHECK_MEM(amp_optimizer_model(&r.opt, 0), cast, sizeof cast);
            memcpy(r.w, kept, sizeof kept);
            CHECK_EQ_INT(amp_optimizer_refresh(&r.opt), AMP_OK);
            same_runs(&r, &alone);
        }
        amp_optimizer_free(&r.opt), amp_optimizer_free(&alone.opt);
    }
}

/* A host that allocates gradients in its first backward, or hands out others in every step. */
TEST(gradients_late, "manual: grad NULL, then rebind once or rebind_all in every step: the bits of gradients that were "
                     "there from the start; one that is absent leaves its tensor alone") {
    static run         known;
    static float       w[2][N], idle[2][N], g[2][N];
    void              *grads[2];
    amp_optimizer      opt;
    amp_optimizer_desc desc;
    amp_tensor         t[2];
    amp_status         a, b;
    uint32_t           step;
    int                k, all, i;
    for (k = 0; k < 3; k++)
        for (all = 0; all < 2; all++) {
            desc = desc_of(kinds[k]);
            run_start(&known, &desc, AMP_F32);
            memcpy(w[all], known.w, sizeof known.w);
            memcpy(idle[0], known.w, sizeof known.w), memcpy(idle[1], known.w, sizeof known.w);
            memset(t, 0, sizeof t);
            t[0].n = t[1].n = N;
            t[0].weight = w[all], t[1].weight = idle[0];
            CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
            for (i = 0; i < 2; i++) CHECK_EQ_INT(amp_optimizer_add(&opt, &t[i]), AMP_OK);
            CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
            for (step = 0; step < 8; step++) {
                const float scale = amp_optimizer_loss_scale(&opt);
                grads[0]          = g[all ? step % 2 : 0]; /* where this backward has put it */
                grads[1]          = AMP_NO_GRAD;
                for (i = 0; i < N; i++) known.grad[i] = noise(step, (uint32_t)i) * scale;
                if (step == 3) memcpy(&known.grad[9], &f32_inf, 4);
                memcpy(grads[0], known.grad, sizeof known.grad);
                run_step(&known, 0.125f);

                if (all) CHECK_EQ_INT(amp_optimizer_rebind_all(&opt, NULL, grads), AMP_OK);
                else if (step == 0) {
                    CHECK_EQ_INT(amp_optimizer_rebind(&opt, 0, NULL, grads[0]), AMP_OK);
                    CHECK_EQ_INT(amp_optimizer_rebind(&opt, 1, NULL, AMP_NO_GRAD), AMP_OK);
                }
                if (kinds[k] == AMP_KIND_ADAMW) CHECK_EQ_INT(amp_optimizer_step(&opt, 0.125f), AMP_OK);
                else if (kinds[k] == AMP_KIND_SGD) CHECK_EQ_INT(amp_optimizer_step(&opt, 0.125f), AMP_OK);
                else {
                    if (amp_optimizer_begin_step(&opt))
                        for (i = 0; i < N; i++) {
                            volatile float change = 0.125f * amp_optimizer_grad(&opt, 0)[i];
                            w[all][i] -= change;
                        }
                    CHECK_EQ_INT(amp_optimizer_end_step(&opt), AMP_OK);
                }
                CHECK_MEM(w[all], known.w, sizeof known.w);
            }
            CHECK_EQ_INT(amp_optimizer_status(&opt, &a), AMP_OK);
            b = status_of(&known);
            CHECK_EQ_F64(a.norm, b.norm);
            CHECK(a.steps == 7 && b.steps == 7 && a.skipped == 1 && a.loss_scale == b.loss_scale);
            CHECK_MEM(idle[0], idle[1], sizeof idle[0]);
            amp_optimizer_free(&opt), amp_optimizer_free(&known.opt);
        }
}

/* One array for all weights, of which biases and norms stay in fp32: the copies have the masters'
   offsets, with a hole where a tensor has none. */
TEST(flat_with_fp32, "manual: over one flat array weights are at model(first) + offset, whether or not others keep_fp32, "
                     "and those are read in the master, at the same offset") {
    enum { PARTS = 5, ALL = 90 };
    static const size_t sizes[PARTS] = {40, 3, 30, 2, 15};
    static float        w[ALL], g[ALL];
    amp_tensor          whole, parts[PARTS];
    amp_optimizer_desc  desc = desc_of(AMP_KIND_SGD);
    amp_optimizer       opt;
    uint32_t            step;
    size_t              i, at;
    int                 p;
    memset(&whole, 0, sizeof whole), memset(parts, 0, sizeof parts);
    whole.n = ALL, whole.weight = w, whole.grad = g;
    for (p = 0; p < PARTS; p++) parts[p].n = sizes[p], parts[p].keep_fp32 = p % 2;
    for (i = 0; i < ALL; i++) w[i] = noise(99, (uint32_t)i);
    CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_add_flat(&opt, &whole, parts, PARTS), AMP_OK);
    CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
    for (step = 0; step < 4; step++) {
        const amp_f16 *model = (const amp_f16 *)amp_optimizer_model(&opt, 0);
        for (p = 0, at = 0; p < PARTS; at += sizes[p++])
            if (parts[p].keep_fp32) {
                CHECK(amp_optimizer_model(&opt, p) == (const void *)(w + at));
            } else {
                CHECK(amp_optimizer_model(&opt, p) == (const void *)(model + at));
                for (i = at; i < at + sizes[p]; i++) CHECK_EQ_U32(model[i].bits, amp_f32_to_f16(w[i]).bits);
            }
        for (i = 0; i < ALL; i++) g[i] = noise(step, (uint32_t)i) * amp_optimizer_loss_scale(&opt);
        if (step == 2) memcpy(&g[41], &f32_nan, 4);
        CHECK_EQ_INT(amp_optimizer_step(&opt, 0.125f), AMP_OK);
        if (step == 1) {
            w[50] = 3.0f; /* by hand */
            CHECK_EQ_INT(amp_optimizer_refresh(&opt), AMP_OK);
        }
    }
    amp_optimizer_free(&opt);
}

/* A host that traps inf - inf and division by 0 (KANN does): an overflow is ordinary under a loss
   scale, and its own code computes inf - inf from it. Its traps are off from forward to the end of
   backward; they stay in its optimizer, which sees finite gradients only. */
#if FP_TRAPPING
static run trapping;
static int with_traps, held;

static void host_backward(float *grad, uint32_t step, float dloss) {
    int i;
    for (i = 0; i < N; i++) { /* inf - inf where fp16 overflows */
        volatile float a = amp_f16_to_f32(amp_f32_to_f16(noise(step, (uint32_t)i) * dloss));
        volatile float b = amp_f16_to_f32(amp_f32_to_f16(noise(step, (uint32_t)i) * 0.5f * dloss));
        grad[i]          = a - b;
    }
}

static void trapping_run(void) {
    amp_optimizer_desc desc = desc_of(AMP_KIND_OWN);
    uint32_t           step;
    desc.scaler.init_scale = 65536.0f;
    run_start(&trapping, &desc, AMP_F32);
    fp_set(with_traps ? FP_IEEE & ~0x280u : FP_IEEE); /* KANN's: invalid, and division by 0 */
    for (step = 0; step < 10; step++) {
        const float scale = amp_optimizer_loss_scale(&trapping.opt);
        fenv_t      traps;
        if (held) feholdexcept(&traps); /* no traps from here */
        host_backward(trapping.grad, step, scale);
        if (held) fesetenv(&traps);     /* to here */
        run_step(&trapping, 0.125f);
    }
}

TEST(trapping_host, "manual: a host that traps floating-point exceptions switches them off around forward and backward "
                    "alone; the run has the bits of one without traps, and without that it dies") {
    static float w[N];
    amp_status   status;
    fenv_t       traps;
    int          masked;
    fp_set(FP_IEEE & ~0x280u);
    feholdexcept(&traps);
    masked = (fp_get() & 0x280u) == 0x280u;
    fp_set(FP_IEEE);
    if (!masked) SKIP("feholdexcept of this C library leaves traps as they are (musl)");
    held = 0, with_traps = 1;
    CHECK(!fp_runs_without_trap(trapping_run)); /* what the two lines are for */
    amp_optimizer_free(&trapping.opt);
    with_traps = 0;
    trapping_run();
    status = status_of(&trapping);
    CHECK_EQ_U64(status.skipped, 4); /* at 2^16 to 2^13: noise comes to 8 */
    CHECK_EQ_U64(status.steps, 6);
    memcpy(w, trapping.w, sizeof w);
    amp_optimizer_free(&trapping.opt);
    held = with_traps = 1;
    CHECK(fp_runs_without_trap(trapping_run));
    status = status_of(&trapping);
    CHECK_EQ_U64(status.skipped, 4);
    CHECK_MEM(trapping.w, w, sizeof w);
    amp_optimizer_free(&trapping.opt);
}
#else
TEST(trapping_host, "manual: a host that traps floating-point exceptions") { SKIP(FP_WHY); }
#endif

TEST(session_counts, "manual: a loop's own Adam is at step scaler->good + 1 in a session, with AMP_ENABLE=0 too, where "
                     "what is not finite is a step as it always was; skipped_in_a_row ends a run that is stuck") {
    static amp_session session;
    float              grad[3] = {1.0f, 2.0f, 3.0f};
    int                off, step;
    for (off = 0; off < 2; off++) {
        if (off) setenv("AMP_ENABLE", "0", 1);
        CHECK_EQ_INT(amp_session_start(&session, NULL), AMP_OK);
        unsetenv("AMP_ENABLE");
        for (step = 0; step < 6; step++) {
            CHECK_EQ_U64(session.scaler->good, off || step < 3 ? step : step < 5 ? 2 : step - 2);
            if (off) CHECK_EQ_F32(session.scaler->scale, 1.0f);
            grad[1] = 2.0f;
            if (step == 2 || step == 3) memcpy(&grad[1], &f32_inf, 4);
            CHECK_EQ_U64(session.scaler->skipped_in_a_row, off || step < 3 || step > 4 ? 0 : step - 2);
            CHECK_EQ_INT(amp_scaler_unscale(session.scaler, grad, grad, AMP_F32, 3), AMP_OK);
            CHECK_EQ_INT(session.scaler->found_inf != 0, !off && (step == 2 || step == 3));
            CHECK_EQ_INT(amp_scaler_update(session.scaler), AMP_OK);
        }
        CHECK_EQ_U64(session.scaler->skipped, off ? 0 : 2);
        CHECK_EQ_U64(session.scaler->skipped_in_a_row, 0);
        amp_session_end(&session);
    }
}

int main(int argc, char **argv) {
    test_begin(argc, argv);
    RUN(accumulation);
    RUN(accumulation_overflow);
    RUN(accumulation_type);
    RUN(shared_scaler);
    RUN(shared_growth);
    RUN(penalty_unscale);
    RUN(penalty_overflow);
    RUN(by_hand);
    RUN(by_hand_refused);
    RUN(by_hand_static);
    RUN(skipped_steps);
    RUN(several_runs);
    RUN(same_object);
    RUN(from_environment);
    RUN(clipping_order);
    RUN(inference);
    RUN(gated_momentum);
    RUN(attention);
    RUN(own_moments);
    RUN(average_evaluated);
    RUN(gradients_late);
    RUN(flat_with_fp32);
    RUN(trapping_host);
    RUN(session_counts);
    return test_end();
}
