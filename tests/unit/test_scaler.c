/* test_scaler.c - the loss scale: every preset beside model.h (vectors/ has the originals' answers), and
   what guards it. */

#define _GNU_SOURCE /* sigsetjmp */
#include "amp.h"

#include "../support/fp.h"
#ifdef __GNUC__
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function" /* the model has an optimizer, too */
#endif
#include "../support/model.h"
#ifdef __GNUC__
#pragma GCC diagnostic pop
#endif
#include "../support/random.h"
#include "../support/test.h"

/* What follows computes what amp.h should give, so no fast-math here; it runs in FP_IEEE. */
#if defined(__clang__)
#pragma float_control(precise, on)
#pragma clang fp contract(off)
#elif defined(__GNUC__) && !defined(__TINYC__)
#pragma GCC optimize("no-fast-math,fp-contract=off")
#endif

static const char *const preset_names[] = {
    "default", "static", "none", "torch", "apex", "apex_hysteresis", "megatron", "deepspeed",
    "deepspeed_consecutive", "deepspeed_fused", "flax", "jmp", "keras", "tf_keras", "mxnet"};
enum { NUM_PRESETS = 15 };
/* All but NONE, which is STATIC with 1. */
#define EACH_PRESET(p) for (p = 0; p < NUM_PRESETS; p += 1 + (p == AMP_PRESET_STATIC))

static const amp_dtype dtypes[3] = {AMP_F32, AMP_F16, AMP_BF16};

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
static uint32_t bits_of(const float *x) {
    uint32_t u;
    memcpy(&u, x, 4);
    return u;
}
static int finite_bits(uint32_t u) { return (u & 0x7f800000u) != 0x7f800000u; }

/* Rounded here, whatever the flags are. */
static float single(double a) {
    volatile float r = (float)a;
    return r;
}

static amp_scaler_desc desc_of(amp_preset preset) {
    amp_scaler_desc d;
    memset(&d, 0, sizeof d);
    d.preset = preset;
    return d;
}

static amp_scaler scaler_of(amp_preset preset, float scale, int interval) {
    amp_scaler_desc d = desc_of(preset);
    amp_scaler      s;
    d.init_scale      = scale;
    d.growth_interval = interval;
    memset(&s, 0xa5, sizeof s);
    CHECK_EQ_INT(amp_scaler_init(&s, &d), AMP_OK);
    return s;
}

/* One iteration: an overflow or not, then the update. */
static void iterate(amp_scaler *s, int bad) {
    const uint32_t inf = 0x7f800000u;
    CHECK_EQ_INT(amp_scaler_unscale(s, NULL, &inf, AMP_F32, bad ? 1 : 0), AMP_OK);
    CHECK_EQ_INT(amp_scaler_update(s), AMP_OK);
}

TEST(preset_defaults, "a zeroed desc is the preset: its first scale, interval, limits, factors") {
    static const struct {
        double init, min, max;
        int    interval, hysteresis;
    } rows[NUM_PRESETS] = {
        {65536, 6.103515625e-05, 16777216, 2000, 1}, /* default: 2^-14, 2^24      */
        {65536, 0, 0, 0, 0},                         /* static                    */
        {1, 0, 0, 0, 0},                             /* none                      */
        {65536, 0, 0, 2000, 1},                      /* torch                     */
        {65536, 0, 16777216, 2000, 1},               /* apex                      */
        {65536, 0, 0, 2000, 1},                      /* apex hysteresis           */
        {4294967296.0, 1, 0, 1000, 2},               /* megatron                  */
        {65536, 1, 0, 1000, 2},                      /* deepspeed                 */
        {65536, 1, 0, 1000, 2},                      /* deepspeed consecutive     */
        {4294967296.0, 1, 0, 1000, 1},               /* deepspeed fused           */
        {65536, 1.17549435082e-38, 3.40282346639e38, 2000, 1}, /* flax            */
        {65536, 1, 0, 2000, 1},                      /* jmp                       */
        {32768, 0, 0, 2000, 1},                      /* keras                     */
        {32768, 1, 0, 2000, 1},                      /* tf_keras                  */
        {65536, 0, 16777216, 2000, 1}};              /* mxnet                     */
    int i;
    for (i = 0; i < NUM_PRESETS; i++) {
        const amp_scaler s = scaler_of((amp_preset)i, 0.0f, 0);
        CHECK_EQ_F32(s.scale, (float)rows[i].init);
        CHECK_EQ_F64(s.growth_factor, 2.0);
        CHECK_EQ_F64(s.backoff_factor, 0.5);
        CHECK_EQ_INT(s.growth_tracker, 0);
        CHECK_EQ_U32(s.found_inf | s.checked | s.stuck, 0);
        CHECK_EQ_U64(s.good + s.skipped + s.skipped_in_a_row + s.growths + s.backoffs, 0);
        CHECK_EQ_U32(s.preset, i);
        CHECK_EQ_U32(s.disabled, 0);
        CHECK_EQ_U64(s.reserved[0] | s.reserved[1] | s.reserved[2] | s.reserved[3], 0);
        if (i == AMP_PRESET_STATIC || i == AMP_PRESET_NONE) continue;
        CHECK_EQ_F32(s.min_scale, (float)rows[i].min);
        CHECK_EQ_F32(s.max_scale, (float)rows[i].max);
        CHECK_EQ_INT(s.growth_interval, rows[i].interval);
        CHECK_EQ_INT(s.hysteresis_tracker, rows[i].hysteresis);
    }
}

TEST(null_desc, "law 10: \"A zeroed desc is the documented default\", and so is NULL") {
    amp_scaler_desc d = desc_of(AMP_PRESET_DEFAULT);
    amp_scaler      a, b;
    memset(&a, 0, sizeof a);
    memset(&b, 0xff, sizeof b);
    CHECK_EQ_INT(amp_scaler_init(&a, &d), AMP_OK);
    CHECK_EQ_INT(amp_scaler_init(&b, NULL), AMP_OK);
    CHECK_MEM(&a, &b, sizeof a); /* not a byte is left from before either */
    CHECK_EQ_F32(a.scale, 65536.0f);
}

/* ----------------------------------------------------------------- random steps beside the model */

static int is_deepspeed(int preset) {
    return preset >= AMP_PRESET_DEEPSPEED && preset <= AMP_PRESET_DEEPSPEED_FUSED;
}

static const double growths[]  = {2.0, 1.5, 4.0, 3.0, 1.25};
static const double backoffs[] = {0.5, 0.25, 0.75, 0.3, 1.0 / 3.0};
static const float  firsts[]   = {1.0f, 65536.0f, 1024.0f, 3.7f, 12345.678f, 1.5e6f};

/* A random configuration, for both. */
static void random_setup(int preset, amp_scaler *s, m_scaler *m) {
    amp_scaler_desc d = desc_of((amp_preset)preset);
    d.init_scale      = firsts[random_below(6)];
    d.growth_factor   = growths[random_below(5)];
    d.backoff_factor  = backoffs[random_below(5)];
    d.growth_interval = 1 + (int)random_below(6);
    d.hysteresis      = 1 + (int)random_below(4);
    if (random_below(2)) d.min_scale = 0.3f;
    if (random_below(2)) d.max_scale = 3e6f;
    if (random_below(4) == 0 && preset != AMP_PRESET_DEFAULT && preset != AMP_PRESET_STATIC) {
        d.init_scale = random_below(2) ? 1e-37f : 1e38f;
        d.min_scale = d.max_scale = 0.0f;
    }
    CHECK_EQ_INT(amp_scaler_init(s, &d), AMP_OK);
    m_scaler_init(m, &d);
}

/* A step of both under a random floating-point environment of the host; 0 if they differ. */
static int random_step(amp_scaler *s, m_scaler *m, int bad) {
    static const uint32_t any_bits[4] = {1u, 2u, 0x80000000u, 0xffffffffu};
    uint32_t              mode, mode_after;
    amp_result            result;
    if (random_below(64) == 0) s->growth_interval = m->interval = 1 + (int)random_below(6);
    if (random_below(128) == 0) m->growth = bits64(s->growth_factor = growths[random_below(5)]);
    if (random_below(128) == 0) m->backoff = bits64(s->backoff_factor = backoffs[random_below(5)]);
    if (random_below(200) == 0) {
        const float to = firsts[random_below(6)];
        CHECK_EQ_INT(amp_scaler_set_scale(s, to), AMP_OK);
        CHECK_EQ_INT(m_set_scale(m, to), AMP_OK);
    }
    mode = FP_IEEE;
    if (random_below(4) == 0) mode |= FP_FTZ | FP_DAZ | (uint32_t)random_below(4) * FP_ROUNDING;
    if (bad && random_below(2)) s->found_inf = any_bits[random_below(4)]; /* another rank's */
    else {
        const uint32_t inf[2] = {0u, 0xff800000u};
        amp_scaler_unscale(s, NULL, inf, AMP_F32, bad ? 2 : 1);
    }
    m->found = (uint32_t)bad;
    m_scaler_update(m);
    fp_set(mode);
    result     = amp_scaler_update(s);
    mode_after = fp_get();
    fp_set(FP_IEEE);
    if (result != AMP_OK || (FP_CONTROL && mode_after != mode)) return 0;
    return bits_of(&s->scale) == m->scale && !s->found_inf && !s->checked && s->stuck == m->stuck &&
           s->good == m->good && s->skipped == m->skipped && s->skipped_in_a_row == m->row &&
           s->growths == m->growths && s->backoffs == m->backoffs &&
           s->growth_tracker == m->tracker && s->hysteresis_tracker == m->left;
}

static void differ(int preset, long steps) {
    static const uint32_t percent[4] = {2, 20, 50, 95};
    const uint32_t        mode = fp_get();
    long                  done, step;
    fp_set(FP_IEEE);
    for (done = 0; done < steps; done += step) {
        const uint32_t bad_percent = percent[random_below(4)];
        const uint64_t seed        = random_state;
        amp_scaler     s;
        m_scaler       m;
        random_setup(preset, &s, &m);
        for (step = 0; step < 400; step++) {
            char what[160];
            if (random_step(&s, &m, random_below(100) < bad_percent)) continue;
            sprintf(what, "%s, seed %lu, step %ld: scale %.9g, tracker %d, stuck %d, growths %lu; "
                    "model: scale %.9g, tracker %d, stuck %d",
                    preset_names[preset], (unsigned long)seed, step, (double)s.scale, s.growth_tracker,
                    (int)s.stuck, (unsigned long)s.growths, (double)float_of(m.scale), m.tracker, (int)m.stuck);
            fp_set(mode);
            test_fail(__FILE__, __LINE__, "not as the model", what);
            fp_set(FP_IEEE);
            break; /* this run is lost */
        }
    }
    fp_set(mode);
}

TEST(models_agree, "scale, counters and stuck equal the model's bit for bit: 10^6 random steps of each system, "
                   "random factors, intervals changed while running, FTZ, DAZ and rounding modes of the host") {
    int preset;
    EACH_PRESET(preset)
        differ(preset, test_state.quick ? 100000 : 1000000);
}

TEST(one_factor, "without a backoff_factor, systems that have one factor divide by it") {
    int preset, step;
    EACH_PRESET(preset) {
        const int one = preset == AMP_PRESET_APEX || is_deepspeed(preset) ||
                        preset == AMP_PRESET_JMP || preset == AMP_PRESET_TF_KERAS ||
                        preset == AMP_PRESET_MXNET;
        amp_scaler_desc d = desc_of((amp_preset)preset);
        amp_scaler      s;
        d.growth_factor = 4.0;
        d.hysteresis    = 1;
        CHECK_EQ_INT(amp_scaler_init(&s, &d), AMP_OK);
        CHECK_EQ_F64(s.backoff_factor, one ? 0.25 : 0.5);
        if (preset == AMP_PRESET_STATIC) continue;
        CHECK_EQ_INT(amp_scaler_set_scale(&s, 65536.0f), AMP_OK);
        for (step = 0; step < 3; step++) iterate(&s, 1);
        if (preset == AMP_PRESET_MXNET) iterate(&s, 0);
        CHECK_EQ_F32(s.scale, one ? 1024.0f : 8192.0f);
    }
}

TEST(one_factor_divides, "a factor whose reciprocal is not exact is divided by, as the original "
                         "does, unless a backoff_factor is given") {
    amp_scaler_desc d = desc_of(AMP_PRESET_APEX);
    amp_scaler      s;
    double          state = 65536.0;
    int             step, differ = 0;
    d.growth_factor = 3.0;
    CHECK_EQ_INT(amp_scaler_init(&s, &d), AMP_OK);
    CHECK_EQ_INT(amp_scaler_set_scale(&s, 65536.0f), AMP_OK);
    for (step = 0; step < 20; step++) {
        volatile double third = state / 3.0, product = state * (1.0 / 3.0);
        differ += third != product;
        state = third;
        iterate(&s, 1);
        CHECK_EQ_F64(s.next_scale, state);
    }
    CHECK(differ > 0); /* or this test would say nothing */
    d.backoff_factor = 1.0 / 3.0;
    CHECK_EQ_INT(amp_scaler_init(&s, &d), AMP_OK);
    CHECK_EQ_F64(s.backoff_factor, 1.0 / 3.0);
}

TEST(default_init_gives_way, "min_scale and max_scale bound a default init_scale; one that was "
                             "asked for and contradicts them is refused in DEFAULT") {
    amp_scaler_desc d;
    amp_scaler      s;
    memset(&d, 0, sizeof d);
    d.max_scale = 1024.0f;
    CHECK_EQ_INT(amp_scaler_init(&s, &d), AMP_OK);
    CHECK_EQ_F32(s.scale, 1024.0f);
    d.init_scale = 2048.0f;
    CHECK_EQ_INT(amp_scaler_init(&s, &d), AMP_ERROR_INVALID_CONFIG);
    d.max_scale  = 0.0f;
    d.min_scale  = 1048576.0f;
    d.init_scale = 0.0f;
    CHECK_EQ_INT(amp_scaler_init(&s, &d), AMP_OK);
    CHECK_EQ_F32(s.scale, 1048576.0f);
}

/* ----------------------------------------------------------------- floors and caps */

TEST(torch_sinks_to_zero, "law 6: \"TORCH reaches 0 after 166 backoffs; the default never does\"; "
                          "also while FTZ and DAZ are set") {
    const uint32_t before = fp_get();
    int            flush, i;
    for (flush = 0; flush < 2; flush++) {
        amp_scaler t = scaler_of(AMP_PRESET_TORCH, 65536.0f, 4);
        amp_scaler d = scaler_of(AMP_PRESET_DEFAULT, 65536.0f, 4);
        uint32_t   torch[170], def[170];
        for (i = 0; i < 170; i++) {
            fp_set(flush ? FP_IEEE | FP_FTZ | FP_DAZ : FP_IEEE);
            iterate(&t, 1);
            iterate(&d, 1);
            fp_set(before);
            torch[i] = bits_of(&t.scale);
            def[i]   = bits_of(&d.scale);
        }
        for (i = 0; i < 170; i++) { /* 2^(15-i), a subnormal 2^-149 last, then 0 */
            uint32_t want = 0;
            if (15 - i >= -126) want = (uint32_t)(15 - i + 127) << 23;
            else if (15 - i >= -149) want = 1u << (15 - i + 149);
            CHECK_EQ_U32(torch[i], want);
            CHECK_EQ_U32(def[i], (uint32_t)((15 - i > -14 ? 15 - i : -14) + 127) << 23);
        }
        CHECK_EQ_U32(torch[164], 1);
        CHECK_EQ_U32(torch[165], 0);
        CHECK_EQ_U64(t.backoffs, 166);
        CHECK(t.stuck);
        CHECK_EQ_U64(d.backoffs, 30);
        CHECK(d.stuck);
        iterate(&t, 0);
        CHECK_EQ_F32(t.scale, 0.0f);
    }
}

TEST(default_stays_in_range, "law 6: \"A scale never leaves the range where both it and its "
                             "reciprocal are normal floats\": [2^-14, 2^24] by default") {
    amp_scaler s = scaler_of(AMP_PRESET_DEFAULT, 65536.0f, 1);
    int        i;
    for (i = 0; i < 100; i++) {
        iterate(&s, 0);
        CHECK(s.scale <= 16777216.0f);
    }
    CHECK_EQ_F32(s.scale, 16777216.0f);
    CHECK_EQ_U64(s.growths, 8);
    CHECK_EQ_U32(s.stuck, 0);
    for (i = 0; i < 38; i++) {
        iterate(&s, 1);
        CHECK_EQ_U32(s.stuck, 0);
        CHECK(s.scale >= 6.103515625e-05f);
    }
    CHECK_EQ_F32(s.scale, 6.103515625e-05f);
    iterate(&s, 1);
    CHECK_EQ_F32(s.scale, 6.103515625e-05f);
    CHECK(s.stuck);
    iterate(&s, 0); /* grows again, and stuck stays readable ... */
    CHECK_EQ_F32(s.scale, 2 * 6.103515625e-05f);
    CHECK(s.stuck);
    CHECK_EQ_INT(amp_scaler_set_scale(&s, 2.0f), AMP_OK); /* ... until somebody acts */
    CHECK_EQ_U32(s.stuck, 0);
    s.growth_factor = 1e300; /* extreme factors do not leave the range either */
    iterate(&s, 0);
    CHECK_EQ_F32(s.scale, 16777216.0f);
    s.backoff_factor = 1e-300;
    iterate(&s, 1);
    CHECK_EQ_F32(s.scale, 6.103515625e-05f);
}

TEST(floor_instead_of_error, "at a floor where the original would raise an error, the scale stays, "
                             "stuck is set, and the result is AMP_OK") {
    static const amp_preset presets[] = {AMP_PRESET_DEEPSPEED, AMP_PRESET_DEEPSPEED_CONSECUTIVE,
                                         AMP_PRESET_DEEPSPEED_FUSED, AMP_PRESET_MEGATRON,
                                         AMP_PRESET_JMP, AMP_PRESET_TF_KERAS};
    size_t p;
    int    i;
    for (p = 0; p < sizeof presets / sizeof presets[0]; p++) {
        amp_scaler_desc d = desc_of(presets[p]);
        amp_scaler      s;
        d.init_scale = 4.0f;
        d.hysteresis = 1;
        CHECK_EQ_INT(amp_scaler_init(&s, &d), AMP_OK);
        iterate(&s, 1);
        iterate(&s, 1);
        CHECK_EQ_F32(s.scale, 1.0f);
        CHECK_EQ_U32(s.stuck, 0);
        for (i = 0; i < 3; i++) {
            iterate(&s, 1); /* checks for AMP_OK */
            CHECK_EQ_F32(s.scale, 1.0f);
            CHECK(s.stuck);
        }
        CHECK_EQ_U64(s.backoffs, 2);
        CHECK_EQ_U64(s.skipped, 5);
    }
}

TEST(caps, "APEX and MXNET stop at 2^24, FLAX at FLT_MAX, TORCH, JMP, TF_KERAS and "
           "APEX_HYSTERESIS at 2^127; MEGATRON and KERAS reach inf") {
    static const uint32_t limit[NUM_PRESETS] = {
        0x4b800000, 0x47800000, 0x3f800000, 0x7f000000, 0x4b800000, 0x7f000000, 0x7f800000,
        0x7f800000, 0x7f800000, 0x7f800000, 0x7f7fffff, 0x7f000000, 0x7f800000, 0x7f000000,
        0x4b800000};
    int preset, i;
    EACH_PRESET(preset) {
        amp_scaler s = scaler_of((amp_preset)preset, 65536.0f, 1);
        for (i = 0; i < 300; i++) iterate(&s, 0);
        CHECK_EQ_U32(bits_of(&s.scale), limit[preset]);
        CHECK_EQ_U32(s.stuck, 0);
    }
}

TEST(user_limits, "min_scale and max_scale are kept by every preset that moves") {
    int preset, i;
    EACH_PRESET(preset) {
        amp_scaler_desc d = desc_of((amp_preset)preset);
        amp_scaler      s;
        if (preset == AMP_PRESET_STATIC) continue;
        d.init_scale      = 1024.0f;
        d.growth_interval = 1;
        d.min_scale       = 100.0f;
        d.max_scale       = 5000.0f;
        CHECK_EQ_INT(amp_scaler_init(&s, &d), AMP_OK);
        for (i = 0; i < 9; i++) iterate(&s, 0);
        CHECK_EQ_F32(s.scale, 5000.0f);
        for (i = 0; i < 15; i++) iterate(&s, 1);
        CHECK_EQ_F32(s.scale, 100.0f);
        CHECK(s.stuck);
    }
}

TEST(interval_lowered, "an interval lowered below the tracker: TF_KERAS grows at once (>=), TORCH "
                       "waits for the next overflow (==)") {
    amp_scaler t = scaler_of(AMP_PRESET_TORCH, 65536.0f, 10);
    amp_scaler k = scaler_of(AMP_PRESET_TF_KERAS, 65536.0f, 10);
    int        i;
    for (i = 0; i < 5; i++) {
        iterate(&t, 0);
        iterate(&k, 0);
    }
    t.growth_interval = k.growth_interval = 3;
    iterate(&t, 0);
    iterate(&k, 0);
    CHECK_EQ_F32(t.scale, 65536.0f);
    CHECK_EQ_F32(k.scale, 131072.0f);
    for (i = 0; i < 50; i++) iterate(&t, 0);
    CHECK_EQ_F32(t.scale, 65536.0f);
    iterate(&t, 1);
    for (i = 0; i < 3; i++) iterate(&t, 0);
    CHECK_EQ_F32(t.scale, 65536.0f); /* once down, once up */
    CHECK_EQ_U64(t.growths, 1);
}

TEST(static_never_moves, "STATIC: the scale never moves, overflowing steps are still skipped") {
    amp_scaler s = scaler_of(AMP_PRESET_STATIC, 100.0f, 1);
    int        i;
    for (i = 0; i < 50; i++) {
        iterate(&s, i % 3 == 0);
        CHECK_EQ_F32(s.scale, 100.0f);
    }
    CHECK_EQ_U64(s.skipped, 17);
    CHECK_EQ_U64(s.good, 33);
    CHECK_EQ_U64(s.growths + s.backoffs + s.stuck, 0);
}

TEST(no_scale, "manual: AMP_PRESET_NONE: a scale of 1 never moves, overflowing steps are still skipped; init_scale is 0 or 1; "
               "no other scale is set") {
    static const float bad[] = {2.0f, 0.5f, 65536.0f, 1.0000001f, 0.99999994f};
    amp_scaler_desc    d = desc_of(AMP_PRESET_NONE);
    amp_scaler         s;
    int                i;
    for (i = 0; i < 2; i++) {
        d.init_scale = (float)(1 - i);
        CHECK_EQ_INT(amp_scaler_init(&s, &d), AMP_OK);
        CHECK_EQ_U32(s.preset, AMP_PRESET_NONE);
    }
    CHECK_EQ_INT(amp_scaler_set_scale(&s, 2.0f), AMP_ERROR_INVALID_CONFIG);
    CHECK_EQ_INT(amp_scaler_set_scale(&s, 1.0f), AMP_OK);
    for (i = 0; i < 3000; i++) {
        iterate(&s, i % 3 == 0);
        CHECK_EQ_F32(s.scale, 1.0f);
    }
    CHECK_EQ_U64(s.skipped, 1000);
    CHECK_EQ_U64(s.growths + s.backoffs + s.stuck, 0);
    for (i = 0; i < 5; i++) {
        d.init_scale = bad[i];
        test_older();
        CHECK_EQ_INT(amp_scaler_init(&s, &d), AMP_ERROR_INVALID_CONFIG);
        CHECK(strstr(amp_problem(), "amp_scaler_desc.init_scale is ") == amp_problem());
        CHECK(strstr(amp_problem(), ", and must be 0 or 1 for AMP_PRESET_NONE") != NULL);
    }
    d.init_scale = 0.0f; /* what excludes 1 contradicts it */
    d.min_scale  = 2.0f;
    CHECK_EQ_INT(amp_scaler_init(&s, &d), AMP_ERROR_INVALID_CONFIG);
    d.min_scale = 0.0f;
    d.max_scale = 0.5f;
    CHECK_EQ_INT(amp_scaler_init(&s, &d), AMP_ERROR_INVALID_CONFIG);
}

TEST(counters_end, "law 11: counters stay at their ends: checks at 2^32 - 1, which are not none; good steps at 2^31 - 1, "
                   "whichever rule counts them") {
    const float g = 1.0f;
    int         preset, i;
    EACH_PRESET(preset) {
        amp_scaler s = scaler_of((amp_preset)preset, 1024.0f, 2147483647);
        s.checked    = UINT32_MAX - 1;
        for (i = 0; i < 3; i++) {
            CHECK_EQ_INT(amp_scaler_unscale(&s, NULL, &g, AMP_F32, 1), AMP_OK);
            CHECK_EQ_U32(s.checked, UINT32_MAX);
        }
        s.growth_tracker = 2147483646;
        CHECK_EQ_INT(amp_scaler_update(&s), AMP_OK);
        CHECK_EQ_U32(s.checked, 0);
        CHECK(s.growth_tracker == 2147483647 || s.growth_tracker == 0);
        s.growth_interval = 2000;
        s.growth_tracker  = 2147483647;
        iterate(&s, 0);
        CHECK(s.growth_tracker >= 0);
        if (preset == AMP_PRESET_STATIC || preset == AMP_PRESET_DEFAULT)
            CHECK_EQ_INT(s.growth_tracker, 2147483647);
        if (preset == AMP_PRESET_JMP) CHECK_EQ_INT(s.growth_tracker, 2147483647 % 2000);
    }
}

/* ----------------------------------------------------------------- check and unscale */

enum { MAX_N = 3000, GUARD = 16 };

static void put(void *base, amp_dtype type, size_t i, uint32_t bits) {
    const uint16_t h = (uint16_t)bits;
    if (type == AMP_F32) memcpy((unsigned char *)base + 4 * i, &bits, 4);
    else memcpy((unsigned char *)base + 2 * i, &h, 2);
}

static uint32_t get(const void *base, amp_dtype type, size_t i) {
    uint32_t u;
    uint16_t h;
    memcpy(&h, (const unsigned char *)base + 2 * i, 2);
    if (type != AMP_F32) return h;
    memcpy(&u, (const unsigned char *)base + 4 * i, 4);
    return u;
}

/* Any bits of a type as fp32 bits, and the reverse, by the conversions of test_numbers.c. */
static uint32_t widen(amp_dtype type, uint32_t bits) {
    uint32_t u = bits;
    uint16_t h = (uint16_t)bits;
    if (type != AMP_F32) amp_cast(&u, AMP_F32, &h, type, 1);
    return u;
}
static uint32_t narrow_to(amp_dtype type, uint32_t u) {
    uint16_t h;
    if (type == AMP_F32) return u;
    amp_cast(&h, type, &u, AMP_F32, 1);
    return h;
}

static int is_finite(amp_dtype type, uint32_t bits) { return finite_bits(widen(type, bits)); }

/* g * inv, each rounded to fp32 once: products of two floats are exact in double. */
static uint32_t unscale_reference(uint32_t g, float scale) {
    volatile double one = 1.0, exact;
    const float     inv = single(one / (double)scale);
    float           product;
    if (!finite_bits(g)) return g;
    exact   = (double)float_of(g) * (double)inv;
    product = single(exact);
    return bits_of(&product);
}

static const uint32_t specials[3][10] = {
    {0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001, 0x7f800001, 0xffbfffff, /* not finite */
     0x7f7fffff, 0x80000000, 0x00000001, 0x807fffff},
    {0x7c00, 0xfc00, 0x7e00, 0xfe01, 0x7c01, 0xfdff, 0x7bff, 0x8000, 0x0001, 0x83ff},
    {0x7f80, 0xff80, 0x7fc0, 0xffc1, 0x7f81, 0xffbf, 0x7f7f, 0x8000, 0x0001, 0x807f}};

TEST(check_every_index, "law 1: inf, NaN and signaling NaN are found at every index of n <= 300, "
                        "in every type, at odd addresses; not before or behind; one of them stays "
                        "found over all further tensors") {
    static unsigned char x[4 * 303 + 8];
    size_t               n, i;
    int                  t, step;
    amp_scaler           s = scaler_of(AMP_PRESET_DEFAULT, 65536.0f, 1000);
    for (t = 0; t < 3; t++)
        for (n = 1; n <= 300; n += test_state.quick && n > 20 ? 31 : 1) {
            unsigned char *const at = x + 4 + n % 4; /* an element of 2 or 4 bytes before */
            for (i = 0; i < sizeof x; i++) x[i] = 0xff; /* NaN */
            for (i = 0; i < n; i++) put(at, dtypes[t], i, specials[t][6 + i % 4]);
            amp_scaler_unscale(&s, NULL, at, dtypes[t], n);
            CHECK_EQ_U32(s.found_inf, 0);
            for (i = 0; i < n; i++) {
                put(at, dtypes[t], i, specials[t][(i + n) % 6]);
                amp_scaler_unscale(&s, NULL, at, dtypes[t], n);
                if (s.found_inf == 0) CHECK_EQ_U64(i, n); /* it was missed */
                put(at, dtypes[t], i, specials[t][6]);
                amp_scaler_unscale(&s, NULL, at, dtypes[t], n);
                if (s.found_inf == 0) CHECK_EQ_U64(i, n + 1); /* it was forgotten */
                s.found_inf = 0;
            }
        }
    for (step = 0; step < 4; step++) { /* in the first, the last, both or neither of 20 tensors */
        amp_scaler a = scaler_of(AMP_PRESET_DEFAULT, 0.0f, 1000);
        for (i = 0; i < 20; i++) {
            const uint32_t g = (i == 0 && (step & 1)) || (i == 19 && (step & 2)) ? 0x7fc00000 : 0;
            CHECK_EQ_INT(amp_scaler_unscale(&a, NULL, &g, AMP_F32, 1), AMP_OK);
        }
        CHECK_EQ_U32(a.checked, 20);
        CHECK_EQ_INT(a.found_inf != 0, step != 0);
    }
}

TEST(finite_is_not_flagged, "finite values whose sum overflows are no overflow; nor are -0 and "
                            "subnormals, in any type and preset") {
    static unsigned char x[4 * MAX_N];
    int                  t, preset, special;
    size_t               i;
    EACH_PRESET(preset)
        for (t = 0; t < 3; t++)
            for (special = 6; special < 10; special++) {
                amp_scaler s = scaler_of((amp_preset)preset, 1.0f, 4);
                for (i = 0; i < MAX_N; i++) put(x, dtypes[t], i, specials[t][special]);
                CHECK_EQ_INT(amp_scaler_unscale(&s, NULL, x, dtypes[t], MAX_N), AMP_OK);
                CHECK_EQ_U32(s.found_inf, 0);
                CHECK_EQ_U32(s.checked, 1);
            }
}

TEST(empty_tensor, "law 11: \"Zero tensors, n == 0 are ordinary\": NULL with n == 0 counts as "
                   "checked") {
    amp_scaler s = scaler_of(AMP_PRESET_DEFAULT, 0.0f, 4);
    int        t;
    CHECK_EQ_INT(amp_scaler_update(&s), AMP_ERROR_BAD_STATE);
    for (t = 0; t < 3; t++) {
        CHECK_EQ_INT(amp_scaler_unscale(&s, NULL, NULL, dtypes[t], 0), AMP_OK);
        CHECK_EQ_INT(amp_scaler_update(&s), AMP_OK);
    }
    CHECK_EQ_U64(s.good, 3);
    CHECK_EQ_INT(amp_scaler_update(&s), AMP_ERROR_BAD_STATE);
}

static unsigned char src_bytes[4 * MAX_N + 2 * GUARD + 8];
static unsigned char dst_bytes[4 * MAX_N + 2 * GUARD + 8];
static unsigned char want_bytes[4 * MAX_N + 2 * GUARD + 8];

/* Fill x with random numbers of all magnitudes, and one in special_every with special ones. */
static void random_grads(unsigned char *x, amp_dtype type, size_t n, uint32_t special_every) {
    size_t i;
    for (i = 0; i < n; i++) {
        uint32_t u;
        do u = random_bits();
        while (!is_finite(type, type == AMP_F32 ? u : u & 0xffffu));
        if (special_every && random_below(special_every) == 0)
            u = specials[type][random_below(10)];
        put(x, type, i, u);
    }
}

/* One gradient through unscale, in place or not, against the reference. */
static void check_unscale(amp_preset preset, float scale, amp_dtype type, size_t n,
                          size_t src_offset, size_t dst_offset, int in_place) {
    amp_scaler           s    = scaler_of(preset, scale, 4);
    unsigned char *const src  = src_bytes + GUARD + src_offset;
    unsigned char *const dst  = dst_bytes + GUARD + dst_offset;
    const amp_dtype      to   = in_place ? type : AMP_F32;
    const uint32_t       mode = fp_get();
    uint32_t             bad  = 0;
    amp_result           result;
    size_t               i;
    memset(dst_bytes, 0xa5, sizeof dst_bytes);
    if (in_place) memcpy(dst, src, n * (type == AMP_F32 ? 4 : 2));
    memcpy(want_bytes, dst_bytes, sizeof want_bytes);
    fp_set(FP_IEEE);
    for (i = 0; i < n; i++) {
        const uint32_t bits = get(src, type, i);
        const uint32_t g    = widen(type, bits);
        const uint32_t want = narrow_to(to, unscale_reference(g, scale));
        bad |= !finite_bits(g);
        if (preset == AMP_PRESET_DEFAULT) bad |= !is_finite(to, want);
        /* what is not finite stays as it is, to the bit where the type stays */
        put(want_bytes + GUARD + dst_offset, to, i, in_place && !finite_bits(g) ? bits : want);
    }
    fp_set(mode); /* with -Ofast that flushes: not amp.h's results */
    result = in_place ? amp_scaler_unscale(&s, dst, dst, type, n)
                      : amp_scaler_unscale(&s, (float *)(void *)dst, src, type, n);
    CHECK_EQ_INT(result, AMP_OK);
    CHECK_MEM(dst_bytes, want_bytes, sizeof dst_bytes);
    CHECK_EQ_U32(s.found_inf, bad);
    CHECK_EQ_U32(s.checked, 1);
}

static const float scales[] = {65536.0f, 1.0f, 6.103515625e-05f, 16777216.0f, 3.0f,
                               0.1f, 1e-3f, 12345.678f, 0.9978f, 1.0000001f};
enum { NUM_SCALES = sizeof scales / sizeof scales[0] };

TEST(unscale_values, "unscale, in place or not, gives g * (1 / scale), each rounded once, bit for bit: "
                     "every type, odd counts, odd addresses, subnormal results; inf and NaN stay "
                     "as they are; nothing around is touched") {
    static const size_t lengths[] = {0, 1, 2, 3, 7, 8, 9, 31, 67, 255, 300, 1024, 1025, 3000};
    size_t              l, offset;
    int                 t, k;
    for (t = 0; t < 3; t++)
        for (k = 0; k < NUM_SCALES; k++)
            for (l = 0; l < sizeof lengths / sizeof lengths[0]; l++)
                for (offset = 0; offset < 8; offset++) {
                    const size_t     n = lengths[l];
                    const amp_preset p = offset & 1 ? AMP_PRESET_DEFAULT : AMP_PRESET_TORCH;
                    const uint32_t   every = offset & 2 ? 9 : 0;
                    if (n > 100 && test_state.quick && offset != (size_t)k % 8) continue;
                    random_grads(src_bytes + GUARD + offset, dtypes[t], n, every);
                    check_unscale(p, scales[k], dtypes[t], n, offset, (offset * 3) % 8, 0);
                    if (dtypes[t] == AMP_F16) continue;
                    check_unscale(p, scales[k], dtypes[t], n, offset, offset, 1);
                }
}

TEST(unscale_any_scale, "10^5 random scales: the reciprocal is rounded once, from the exact one") {
    const uint32_t grads[3] = {0x3f800000u, 0xc7c35123u, 0x00012345u};
    const uint32_t mode     = fp_get();
    amp_scaler     s        = scaler_of(AMP_PRESET_TORCH, 1.0f, 4);
    int            i, k;
    for (i = 0; i < 100000; i++) {
        const uint32_t scale = (90u + random_below(80)) << 23 | (random_bits() >> 9);
        uint32_t       y[3], want[3];
        CHECK_EQ_INT(amp_scaler_set_scale(&s, float_of(scale)), AMP_OK);
        CHECK_EQ_INT(amp_scaler_unscale(&s, (float *)(void *)y, grads, AMP_F32, 3), AMP_OK);
        fp_set(FP_IEEE);
        for (k = 0; k < 3; k++) want[k] = unscale_reference(grads[k], float_of(scale));
        fp_set(mode);
        CHECK_MEM(y, want, sizeof y);
    }
}

TEST(unscale_every_half, "all 2^16 fp16 and bf16 gradients unscaled by 65536, 1000 and 1/8") {
    static const float by[3] = {65536.0f, 1000.0f, 0.125f};
    static uint16_t    x[65536];
    static uint32_t    y[65536];
    int                t, k;
    uint32_t           h;
    for (t = 1; t < 3; t++)
        for (k = 0; k < 3; k++) {
            const uint32_t mode = fp_get();
            amp_scaler     s    = scaler_of(AMP_PRESET_TORCH, by[k], 4);
            for (h = 0; h < 65536; h++) x[h] = (uint16_t)h;
            CHECK_EQ_INT(amp_scaler_unscale(&s, (float *)(void *)y, x, dtypes[t], 65536),
                         AMP_OK);
            fp_set(FP_IEEE);
            for (h = 0; h < 65536; h++)
                CHECK_EQ_U32(y[h], unscale_reference(widen(dtypes[t], h), by[k]));
            fp_set(mode);
        }
}

TEST(nonfinite_stays, "\"Elements that are inf or NaN stay as they are\": all 256 bf16 patterns "
                      "and fp32 payloads, in place") {
    amp_scaler s = scaler_of(AMP_PRESET_DEFAULT, 65536.0f, 4);
    uint16_t   x[256], want[256];
    uint32_t   y[64], wanted[64], i;
    for (i = 0; i < 256; i++)
        x[i] = want[i] = (uint16_t)((i & 0x80u) << 8 | 0x7f80u | (i & 0x7fu));
    for (i = 0; i < 64; i++) y[i] = wanted[i] = 0x7f800000u | i << 31 | (i * 0x20c49u & 0x7fffffu);
    CHECK_EQ_INT(amp_scaler_unscale(&s, y, y, AMP_F32, 64), AMP_OK);
    CHECK_MEM(y, wanted, sizeof y);
    CHECK_EQ_INT(amp_scaler_unscale(&s, x, x, AMP_BF16, 256), AMP_OK);
    for (i = 0; i < 256; i++) CHECK_EQ_U32(x[i], want[i]);
}

TEST(unscale_same_memory, "dst may be src") {
    static uint32_t x[MAX_N], want[MAX_N];
    amp_scaler      s    = scaler_of(AMP_PRESET_DEFAULT, 1000.0f, 4);
    const uint32_t  mode = fp_get();
    size_t          i;
    random_grads((unsigned char *)x, AMP_F32, MAX_N, 50);
    fp_set(FP_IEEE);
    for (i = 0; i < MAX_N; i++) want[i] = unscale_reference(x[i], 1000.0f);
    fp_set(mode);
    CHECK_EQ_INT(amp_scaler_unscale(&s, (float *)(void *)x, x, AMP_F32, MAX_N), AMP_OK);
    CHECK_MEM(x, want, sizeof x);
}

TEST(f16_in_place_refused, "fp16 in place is AMP_ERROR_UNSUPPORTED, nothing is changed") {
    amp_scaler s = scaler_of(AMP_PRESET_DEFAULT, 0.0f, 4), before;
    uint16_t   x[3] = {0x3c00, 0x7c00, 0x0001};
    memcpy(&before, &s, sizeof s);
    CHECK_EQ_INT(amp_scaler_unscale(&s, x, x, AMP_F16, 3), AMP_ERROR_UNSUPPORTED);
    CHECK_MEM(&s, &before, sizeof s);
    CHECK_EQ_U32(x[0], 0x3c00);
    CHECK_EQ_U32(x[1], 0x7c00);
    CHECK_EQ_U32(x[2], 0x0001);
}

TEST(product_is_checked, "law 5: \"The product is checked as well as the input: a scale below one "
                         "must not let an infinity through. Exact presets keep their original's "
                         "blindness\"") {
    static float    x[MAX_N], y[MAX_N];
    static uint16_t b[300];
    const float     big = float_of(0x7b800000u); /* 2^120, by 2^14 it is inf */
    size_t          i;
    int             preset, how;
    EACH_PRESET(preset)
        for (how = 0; how < 3; how++) {
            const int  safe = preset == AMP_PRESET_DEFAULT || preset == AMP_PRESET_STATIC;
            amp_scaler s    = scaler_of((amp_preset)preset, 6.103515625e-05f, 4);
            float      g[3] = {1.0f, -1.0f, 0.0f};
            g[how]          = how == 1 ? -big : big;
            if (how == 0) CHECK_EQ_INT(amp_scaler_unscale(&s, NULL, g, AMP_F32, 3), AMP_OK);
            if (how == 1) CHECK_EQ_INT(amp_scaler_unscale(&s, g, g, AMP_F32, 3), AMP_OK);
            if (how == 2) CHECK_EQ_INT(amp_scaler_unscale(&s, y, g, AMP_F32, 3), AMP_OK);
            CHECK_EQ_INT(s.found_inf != 0, safe);
        }
    for (i = 0; i < MAX_N; i += i < 300 ? 1 : 61) { /* wherever it is */
        amp_scaler s = scaler_of(AMP_PRESET_DEFAULT, 6.103515625e-05f, 4);
        memset(x, 0, sizeof x);
        x[i] = i & 1 ? big : -big;
        CHECK_EQ_INT(amp_scaler_unscale(&s, NULL, x, AMP_F32, MAX_N), AMP_OK);
        CHECK(s.found_inf != 0);
    }
    /* the very edge: FLT_MAX and the float below, by a scale just below one */
    for (i = 0; i < 2; i++) {
        amp_scaler     s = scaler_of(AMP_PRESET_DEFAULT, float_of(0x3f7fffffu), 4);
        const uint32_t g = 0x7f7fffffu - (uint32_t)i * 3u;
        CHECK_EQ_INT(amp_scaler_unscale(&s, NULL, &g, AMP_F32, 1), AMP_OK);
        CHECK_EQ_INT(s.found_inf != 0, i == 0);
    }
    /* bf16 in place: the product is a finite float, but rounds to inf as bf16 */
    for (i = 0; i < 300; i++) {
        amp_scaler s = scaler_of(AMP_PRESET_DEFAULT, 0.9978f, 4);
        memset(b, 0, sizeof b);
        b[i] = (uint16_t)(0x7f7f | (i & 1) << 15);
        CHECK_EQ_INT(amp_scaler_unscale(&s, b, b, AMP_BF16, 300), AMP_OK);
        CHECK_EQ_U32(b[i] & 0x7fff, 0x7f80);
        CHECK(s.found_inf != 0);
    }
    /* fp16 cannot overflow fp32 */
    {
        amp_scaler     s = scaler_of(AMP_PRESET_DEFAULT, 6.103515625e-05f, 4);
        const uint16_t h = 0x7bff;
        CHECK_EQ_INT(amp_scaler_unscale(&s, y, &h, AMP_F16, 1), AMP_OK);
        CHECK_EQ_U32(s.found_inf, 0);
        CHECK_EQ_F32(y[0], 65504.0f * 16384.0f);
    }
}

TEST(torch_at_zero, "at scale 0, as TORCH gets there, a zero gradient is not found (its input "
                    "check), and nothing traps or divides") {
    amp_scaler     s = scaler_of(AMP_PRESET_TORCH, 1.0f, 4);
    const uint32_t g[2] = {0u, 0x80000000u};
    uint32_t       y[2];
    int            i;
    for (i = 0; i < 150; i++) iterate(&s, 1);
    CHECK_EQ_F32(s.scale, 0.0f);
    CHECK_EQ_INT(amp_scaler_unscale(&s, (float *)(void *)y, g, AMP_F32, 2), AMP_OK);
    CHECK((y[0] & 0x7fffffffu) > 0x7f800000u);
    CHECK_EQ_U32(s.found_inf, 0);
    CHECK_EQ_INT(amp_scaler_set_scale(&s, 8.0f), AMP_OK);
    iterate(&s, 1);
    CHECK_EQ_F32(s.scale, 4.0f);
}

/* ----------------------------------------------------------------- update, set_scale */

TEST(old_scale_on_growth, "law 3: \"Gradients are unscaled with the scale of their backward, even "
                          "on the step where the scale grows\"") {
    amp_scaler s = scaler_of(AMP_PRESET_DEFAULT, 1024.0f, 3);
    int        i;
    for (i = 1; i <= 9; i++) {
        const float scale = s.scale; /* backward uses it */
        float       g[2]  = {0.0f, 0.0f}, y[2];
        g[0]              = scale * 5.0f;
        g[1]              = scale * 7.0f;
        CHECK_EQ_INT(amp_scaler_unscale(&s, y, g, AMP_F32, 2), AMP_OK);
        CHECK_EQ_INT(amp_scaler_unscale(&s, g, g, AMP_F32, 2), AMP_OK);
        CHECK_EQ_F32(s.scale, scale); /* only update moves it */
        CHECK_EQ_INT(amp_scaler_update(&s), AMP_OK);
        CHECK_EQ_F32(s.scale, i % 3 == 0 ? 2 * scale : scale);
        CHECK_EQ_F32(y[0], 5.0f);
        CHECK_EQ_F32(g[0], 5.0f);
        CHECK_EQ_F32(g[1], 7.0f);
    }
}

TEST(any_nonzero_skips, "law 4: \"Any non-zero found_inf skips (never == 1)\": written by the user "
                        "as 2, 0x80000000 or any bit, with and without a check") {
    int bit, checked;
    for (bit = 0; bit < 33; bit++)
        for (checked = 0; checked < 2; checked++) {
            const float g = 1.0f;
            amp_scaler  s = scaler_of(AMP_PRESET_DEFAULT, 1024.0f, 4);
            if (checked) CHECK_EQ_INT(amp_scaler_unscale(&s, NULL, &g, AMP_F32, 1), AMP_OK);
            s.found_inf = bit < 32 ? 1u << bit : 0xffffffffu;
            CHECK_EQ_INT(amp_scaler_update(&s), AMP_OK);
            CHECK_EQ_F32(s.scale, 512.0f);
            CHECK_EQ_U64(s.skipped, 1);
            CHECK_EQ_U32(s.found_inf, 0);
        }
}

TEST(set_scale_keeps_tracker, "amp_scaler_set_scale keeps growth_tracker, clears stuck, and "
                              "refuses what init refuses") {
    static const uint32_t bad[] = {0u, 0x80000000u, 0xbf800000u, 0x7f800000u, 0xff800000u,
                                   0x7fc00000u, 0x7f800001u, 0x80000001u};
    int                   preset;
    size_t                i;
    EACH_PRESET(preset) {
        amp_scaler s = scaler_of((amp_preset)preset, 1024.0f, 5), before;
        for (i = 0; i < 3; i++) iterate(&s, 0);
        s.stuck = 1;
        CHECK_EQ_INT(amp_scaler_set_scale(&s, 256.0f), AMP_OK);
        CHECK_EQ_F32(s.scale, 256.0f);
        CHECK_EQ_INT(s.growth_tracker, 3);
        CHECK_EQ_U32(s.stuck, 0);
        memcpy(&before, &s, sizeof s);
        for (i = 0; i < sizeof bad / sizeof bad[0]; i++)
            CHECK_EQ_INT(amp_scaler_set_scale(&s, float_of(bad[i])), AMP_ERROR_INVALID_CONFIG);
        CHECK_MEM(&s, &before, sizeof s);
        iterate(&s, 0);
        if (preset != AMP_PRESET_DEEPSPEED_FUSED && preset != AMP_PRESET_FLAX) iterate(&s, 0);
        else { iterate(&s, 0); iterate(&s, 0); }
        if (preset == AMP_PRESET_MXNET) iterate(&s, 0);
        CHECK_EQ_F32(s.scale, preset == AMP_PRESET_STATIC ? 256.0f : 512.0f);
    }
    {
        amp_scaler s = scaler_of(AMP_PRESET_DEFAULT, 1024.0f, 5);
        CHECK_EQ_INT(amp_scaler_set_scale(&s, 16777216.0f), AMP_OK);
        CHECK_EQ_INT(amp_scaler_set_scale(&s, 16777218.0f), AMP_ERROR_INVALID_CONFIG);
        CHECK_EQ_INT(amp_scaler_set_scale(&s, 6.1035e-05f), AMP_ERROR_INVALID_CONFIG);
        CHECK_EQ_F32(s.scale, 16777216.0f);
        s = scaler_of(AMP_PRESET_STATIC, 1.0f, 0); /* 2^-126 to 2^126: both reciprocals normal */
        CHECK_EQ_INT(amp_scaler_set_scale(&s, float_of(0x7e800000u)), AMP_OK);
        CHECK_EQ_INT(amp_scaler_set_scale(&s, float_of(0x7e800001u)), AMP_ERROR_INVALID_CONFIG);
        CHECK_EQ_INT(amp_scaler_set_scale(&s, float_of(0x00800000u)), AMP_OK);
        CHECK_EQ_INT(amp_scaler_set_scale(&s, float_of(0x007fffffu)), AMP_ERROR_INVALID_CONFIG);
    }
}

TEST(disabled, "disabled: the scale is 1, nothing is checked, no step is skipped, and of the "
               "scaler nothing changes but its counts of updates, which a run with scaler has, too") {
    const uint32_t inf  = 0x7f800000u;
    uint32_t       g[3] = {0x7f800000u, 0x3f800000u, 0x7fc00000u}, y[3] = {0, 0, 0};
    const uint16_t h[3] = {0x3c00, 0x7c00, 0x0001};
    int            preset;
    EACH_PRESET(preset) {
        amp_scaler_desc d = desc_of((amp_preset)preset);
        amp_scaler      s, before;
        d.disabled = 2;
        CHECK_EQ_INT(amp_scaler_init(&s, &d), AMP_OK);
        CHECK_EQ_F32(s.scale, 1.0f);
        memcpy(&before, &s, sizeof s);
        CHECK_EQ_INT(amp_scaler_update(&s), AMP_OK);
        CHECK_EQ_INT(amp_scaler_unscale(&s, NULL, &inf, AMP_F32, 1), AMP_OK);
        CHECK_EQ_INT(amp_scaler_unscale(&s, g, g, AMP_F32, 3), AMP_OK);
        CHECK_EQ_INT(amp_scaler_unscale(&s, (float *)(void *)y, g, AMP_F32, 3), AMP_OK);
        CHECK_MEM(y, g, sizeof y);
        CHECK_EQ_U32(g[0] == inf && g[1] == 0x3f800000u && g[2] == 0x7fc00000u, 1);
        CHECK_EQ_INT(amp_scaler_unscale(&s, (float *)(void *)y, h, AMP_F16, 3), AMP_OK);
        CHECK_EQ_U32(y[0], 0x3f800000u);
        CHECK_EQ_U32(y[1], 0x7f800000u);
        CHECK_EQ_U32(y[2], 0x33800000u);
        CHECK_EQ_U32(s.found_inf, 0); /* a disabled scaler finds nothing: the host steps */
        CHECK_EQ_INT(amp_scaler_set_scale(&s, 8.0f), AMP_OK);
        CHECK_EQ_INT(amp_scaler_update(&s), AMP_OK);
        CHECK_EQ_U64(s.good, 2);
        CHECK_EQ_U64(s.skipped, 0);
        s.found_inf = 1; /* by hand */
        CHECK_EQ_INT(amp_scaler_update(&s), AMP_OK);
        CHECK_EQ_U64(s.good, 2);
        CHECK_EQ_U64(s.skipped, 1);
        CHECK_EQ_U64(s.skipped_in_a_row, 1);
        s.good = s.skipped = s.skipped_in_a_row = 0;
        CHECK_MEM(&s, &before, sizeof s);
    }
}

/* ----------------------------------------------------------------- bad input */

TEST(unscale_overlap, "dst is src, or shares no byte with it: else AMP_ERROR_OVERLAP, nothing changed; dst NULL checks") {
    size_t k;
    int    t;
    for (t = 0; t < 3; t++) {
        const amp_dtype type = dtypes[t];
        const size_t    size = type == AMP_F32 ? 4 : 2, n = 10;
        for (k = 0; k <= 80; k++) { /* src from 40 bytes on; dst is 40 bytes */
            const bool  apart = k + 40 <= 40 || k >= 40 + n * size;
            amp_scaler  s     = scaler_of(AMP_PRESET_DEFAULT, 1024.0f, 4), before;
            amp_result  want  = k == 40 ? type == AMP_F16 ? AMP_ERROR_UNSUPPORTED : AMP_OK
                                : apart ? AMP_OK : AMP_ERROR_OVERLAP;
            memset(src_bytes, 0, 128);
            memcpy(want_bytes, src_bytes, 128);
            memset(src_bytes + k, 0x11, want == AMP_OK && k != 40 ? 40 : 0);
            memcpy(&before, &s, sizeof s);
            CHECK_EQ_INT(amp_scaler_unscale(&s, src_bytes + k, src_bytes + 40, type, n), want);
            CHECK_MEM(src_bytes, want_bytes, 128); /* zeros, unscaled */
            if (want != AMP_OK) CHECK_MEM(&s, &before, sizeof s);
            else CHECK_EQ_U32(s.checked, 1);
        }
        {
            amp_scaler s = scaler_of(AMP_PRESET_DEFAULT, 1024.0f, 4);
            memset(src_bytes, 0xff, 128); /* NaN */
            memcpy(want_bytes, src_bytes, 128);
            CHECK_EQ_INT(amp_scaler_unscale(&s, NULL, src_bytes, type, n), AMP_OK);
            CHECK_MEM(src_bytes, want_bytes, 128);
            CHECK_EQ_U32(s.found_inf, 1);
        }
    }
}

TEST(bad_state, "law 16: \"Misuse is answered\": before init, and with nothing checked since the "
                "last update, each with its own result, and no byte changed") {
    amp_scaler s, before;
    float      g[2] = {1.0f, 2.0f}, y[2] = {3.0f, 4.0f};
    int        round;
    memset(&s, 0, sizeof s);
    memcpy(&before, &s, sizeof s);
    CHECK_EQ_INT(amp_scaler_unscale(&s, NULL, g, AMP_F32, 2), AMP_ERROR_NOT_INITIALIZED);
    CHECK_EQ_INT(amp_scaler_unscale(&s, g, g, AMP_F32, 2), AMP_ERROR_NOT_INITIALIZED);
    CHECK_EQ_INT(amp_scaler_unscale(&s, y, g, AMP_F32, 2), AMP_ERROR_NOT_INITIALIZED);
    CHECK_EQ_INT(amp_scaler_update(&s), AMP_ERROR_NOT_INITIALIZED);
    CHECK_EQ_INT(amp_scaler_set_scale(&s, 2.0f), AMP_ERROR_NOT_INITIALIZED);
    CHECK_MEM(&s, &before, sizeof s);
    CHECK_EQ_INT(amp_scaler_init(&s, NULL), AMP_OK);
    for (round = 0; round < 2; round++) {
        memcpy(&before, &s, sizeof s);
        CHECK_EQ_INT(amp_scaler_update(&s), AMP_ERROR_BAD_STATE);
        CHECK_MEM(&s, &before, sizeof s);
        iterate(&s, round == 0); /* and after a good or a skipped step it is the same */
    }
    CHECK_EQ_F32(g[0] + y[0] + y[1], 8.0f);
}

TEST(bad_arguments, "NULL and unknown types: distinct results, no byte changed") {
    static const int unknown[] = {3, 99, -1};
    amp_scaler       s         = scaler_of(AMP_PRESET_DEFAULT, 1024.0f, 4), before;
    float            g[2] = {1.0f, 2.0f}, y[2] = {3.0f, 4.0f};
    size_t           i;
    int              t;
    memcpy(&before, &s, sizeof s);
    for (t = 0; t < 3; t++) {
        const amp_dtype type = dtypes[t];
        CHECK_EQ_INT(amp_scaler_unscale(NULL, NULL, g, type, 1), AMP_ERROR_INVALID_ARGUMENT);
        CHECK_EQ_INT(amp_scaler_unscale(&s, NULL, NULL, type, 1), AMP_ERROR_INVALID_ARGUMENT);
        CHECK_EQ_INT(amp_scaler_unscale(&s, NULL, NULL, type, 999), AMP_ERROR_INVALID_ARGUMENT);
        CHECK_EQ_INT(amp_scaler_unscale(NULL, g, g, type, 1), AMP_ERROR_INVALID_ARGUMENT);
        CHECK_EQ_INT(amp_scaler_unscale(NULL, y, g, type, 1), AMP_ERROR_INVALID_ARGUMENT);
        CHECK_EQ_INT(amp_scaler_unscale(&s, y, NULL, type, 1), AMP_ERROR_INVALID_ARGUMENT);
    }
    for (i = 0; i < 3; i++) {
        const amp_dtype type = (amp_dtype)unknown[i];
        CHECK_EQ_INT(amp_scaler_unscale(&s, NULL, g, type, 1), AMP_ERROR_INVALID_ENUM);
        CHECK_EQ_INT(amp_scaler_unscale(&s, NULL, NULL, type, 0), AMP_ERROR_INVALID_ENUM);
        CHECK_EQ_INT(amp_scaler_unscale(&s, g, g, type, 1), AMP_ERROR_INVALID_ENUM);
        CHECK_EQ_INT(amp_scaler_unscale(&s, y, g, type, 1), AMP_ERROR_INVALID_ENUM);
    }
    CHECK_EQ_INT(amp_scaler_update(NULL), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_scaler_set_scale(NULL, 2.0f), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_scaler_init(NULL, NULL), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_MEM(&s, &before, sizeof s);
    CHECK_EQ_F32(g[0], 1.0f);
    CHECK_EQ_F32(g[1], 2.0f);
    CHECK_EQ_F32(y[0], 3.0f);
    CHECK_EQ_F32(y[1], 4.0f);
}

/* The desc is refused with result, and the scaler is zeroed then; or accepted if that is AMP_OK. */
static void check_desc(int line, const amp_scaler_desc *d, amp_result result) {
    static const amp_scaler zero;
    amp_scaler              s;
    amp_scaler_desc         given;
    char                    what[64];
    memset(&s, 0xa5, sizeof s);
    memcpy(&given, d, sizeof given);
    sprintf(what, "init with the desc of line %d, preset %d", line, (int)d->preset);
    test_eq_int(__FILE__, __LINE__, what, amp_scaler_init(&s, d), result);
    CHECK_MEM(d, &given, sizeof given);
    if (result != AMP_OK) CHECK_MEM(&s, &zero, sizeof s);
}

#define DESC(member, value, result)                      \
    do {                                                 \
        amp_scaler_desc desc = desc_of((amp_preset)p);   \
        desc.member          = (value);                  \
        check_desc(__LINE__, &desc, result);             \
    } while (0)
#define DESC2(member, value, member2, value2, result)    \
    do {                                                 \
        amp_scaler_desc desc = desc_of((amp_preset)p);   \
        desc.member          = (value);                  \
        desc.member2         = (value2);                 \
        check_desc(__LINE__, &desc, result);             \
    } while (0)

static double double_of(uint64_t bits) {
    double x;
    memcpy(&x, &bits, 8);
    return x;
}

TEST(bad_descs, "law 9: \"Every fallible call returns amp_result and changes nothing when it "
                "fails\", but init zeroes its object: every desc field NaN, inf, negative, contradictory, unknown") {
    static const uint32_t bad32[] = {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0x7f800000u,
                                     0xff800000u, 0xbf800000u, 0x80000001u, 0xff7fffffu};
    static const uint64_t bad64[] = {0x7ff8000000000000u, 0x7ff0000000000001u,
                                     0x7ff0000000000000u, 0xfff0000000000000u,
                                     0xbff0000000000000u, 0x8000000000000001u};
    static const int      unknown[] = {15, 16, 99, -1, -2147483647 - 1};
    const amp_result      bad       = AMP_ERROR_INVALID_CONFIG;
    int                   p;
    size_t                i;
    for (i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        amp_scaler_desc d = desc_of((amp_preset)unknown[i]);
        check_desc(__LINE__, &d, AMP_ERROR_INVALID_ENUM);
    }
    EACH_PRESET(p) {
        const int safe = p == AMP_PRESET_DEFAULT || p == AMP_PRESET_STATIC;
        for (i = 0; i < sizeof bad32 / sizeof bad32[0]; i++) {
            DESC(init_scale, float_of(bad32[i]), bad);
            DESC(min_scale, float_of(bad32[i]), bad);
            DESC(max_scale, float_of(bad32[i]), bad);
            DESC2(init_scale, float_of(bad32[i]), disabled, 1, bad);
        }
        for (i = 0; i < sizeof bad64 / sizeof bad64[0]; i++) {
            DESC(growth_factor, double_of(bad64[i]), bad);
            DESC(backoff_factor, double_of(bad64[i]), bad);
        }
        DESC(growth_factor, 0.999, bad);
        DESC(growth_factor, 1e-300, bad);
        DESC(growth_factor, 1.0, AMP_OK);
        DESC(growth_factor, 1.7e308, AMP_OK);
        DESC(backoff_factor, 1.0000001, bad);
        DESC(backoff_factor, 1.0, AMP_OK);
        DESC(backoff_factor, 1e-300, AMP_OK);
        DESC(growth_interval, -1, bad);
        DESC(growth_interval, -2147483647 - 1, bad);
        DESC(growth_interval, 2147483647, AMP_OK);
        DESC(hysteresis, -1, bad);
        DESC(hysteresis, 2147483647, AMP_OK);
        DESC(init_scale, -0.0f, AMP_OK); /* a zero */
        DESC2(min_scale, 8.0f, max_scale, 4.0f, bad);
        if (!safe) continue;
        DESC2(init_scale, 2.0f, min_scale, 4.0f, bad);
        DESC2(init_scale, 8.0f, max_scale, 4.0f, bad);
        DESC2(init_scale, float_of(0x00800000u), min_scale, float_of(0x00800000u), AMP_OK);
        DESC2(init_scale, 1.0f, min_scale, float_of(0x007fffffu), bad);
        DESC2(init_scale, float_of(0x7e800000u), max_scale, float_of(0x7e800000u), AMP_OK);
        DESC2(init_scale, 1.0f, max_scale, float_of(0x7e800001u), bad);
    }
    p = AMP_PRESET_DEFAULT;
    DESC(init_scale, 16777218.0f, bad);
    DESC(init_scale, 6.1e-05f, bad);
    p = AMP_PRESET_TORCH;
    DESC(init_scale, float_of(0x7f7fffffu), AMP_OK);
    DESC(init_scale, float_of(0x00000001u), AMP_OK);
}

/* ----------------------------------------------------------------- traps, copies */

static const uint32_t trap_grads[] = {0x7f800000u, 0xff800000u, 0x7fc00000u, 0x7f800001u,
                                      0xffbfffffu, 0x7f7fffffu, 0x00000001u, 0x80000000u};
enum { NUM_TRAP_GRADS = sizeof trap_grads / sizeof trap_grads[0] };
static uint32_t run_errors, run_found;

/* Every scaler function on everything that could trap. */
static void run_everything(void) {
    static uint32_t x[NUM_TRAP_GRADS * 150], y[NUM_TRAP_GRADS * 150];
    static uint16_t b[NUM_TRAP_GRADS * 150];
    enum { N = NUM_TRAP_GRADS * 150 };
    static const uint32_t init_bits[] = {0x47800000u, 0x38800000u, 0x3dcccccdu};
    uint32_t              preset, k, i, loss = 0x7f800001u;
    run_errors = run_found = 0;
    EACH_PRESET(preset)
        for (k = 0; k < 3; k++) {
            amp_scaler_desc d;
            amp_scaler      s;
            float           f;
            memset(&d, 0, sizeof d);
            d.preset = (amp_preset)preset;
            memcpy(&d.init_scale, &init_bits[k], 4);
            d.growth_interval = 1;
            run_errors += amp_scaler_init(&s, &d) != AMP_OK;
            for (i = 0; i < N; i++) {
                x[i] = trap_grads[i % NUM_TRAP_GRADS];
                b[i] = (uint16_t)((x[i] >> 16) | (x[i] & 1u));
            }
            run_errors += amp_scaler_unscale(&s, NULL, x, AMP_F32, N) != AMP_OK;
            run_errors += amp_scaler_unscale(&s, NULL, b, AMP_F16, N) != AMP_OK;
            run_errors += amp_scaler_unscale(&s, NULL, b, AMP_BF16, N) != AMP_OK;
            run_errors += amp_scaler_unscale(&s, (float *)(void *)y, b, AMP_F16, N) != AMP_OK;
            run_errors += amp_scaler_unscale(&s, (float *)(void *)y, x, AMP_F32, N) != AMP_OK;
            run_errors += amp_scaler_unscale(&s, b, b, AMP_BF16, N) != AMP_OK;
            run_errors += amp_scaler_unscale(&s, x, x, AMP_F32, N) != AMP_OK;
            run_found += s.found_inf != 0;
            run_errors += amp_scaler_update(&s) != AMP_OK;
            for (i = 0; i < 400; i++) { /* to the floor (0 for some), to the cap (inf for some) */
                s.found_inf = i < 200;
                s.checked   = 1;
                run_errors += amp_scaler_update(&s) != AMP_OK;
                if (i % 50 == 49)
                    run_errors +=
                        amp_scaler_unscale(&s, (float *)(void *)y, x, AMP_F32, N) != AMP_OK;
            }
            memcpy(&f, &loss, 4);
            run_errors += amp_scaler_set_scale(&s, f) != AMP_ERROR_INVALID_CONFIG;
            loss = loss == 0x7f800001u ? 0x7f800000u : 0x7f800001u;
        }
}

TEST(no_traps, "law 13: \"Hosts that unmask floating-point traps keep running\": inf, NaN and "
               "signaling NaN through every scaler function and preset") {
    if (!FP_TRAPPING) SKIP(FP_WHY);
    CHECK(fp_runs_without_trap(run_everything));
    CHECK_EQ_U32(run_errors, 0);
    CHECK_EQ_U32(run_found, 3 * (NUM_PRESETS - 1));
}

TEST(environment_restored, "rounding, flushing, masks and flags of the host are as before after "
                           "every call") {
    uint32_t mode, after[16];
    if (!FP_CONTROL) SKIP(FP_WHY);
    for (mode = 0; mode < 16; mode++) {
        const uint32_t before = fp_get();
        const uint32_t set    = (mode & 1u ? FP_IEEE : FP_TRAPS) | (mode >> 1 & 3u) * FP_ROUNDING |
                             (mode & 8u ? FP_FTZ | FP_DAZ | 0x20u : 0u); /* inexact was raised */
        fp_set(set & 0x1000u ? set : set & ~0x3fu);
        run_everything();
        after[mode] = fp_get();
        fp_set(before);
        CHECK_EQ_U32(after[mode], set & 0x1000u ? set : set & ~0x3fu);
    }
}

TEST(struct_is_plain, "the scaler is plain bytes: copied at any step, the copy goes on alike") {
    static unsigned char elsewhere[sizeof(amp_scaler)];
    int                  preset, i;
    EACH_PRESET(preset) {
        amp_scaler_desc d = desc_of((amp_preset)preset);
        amp_scaler      a, b;
        d.growth_interval = 3;
        d.hysteresis      = 2;
        CHECK_EQ_INT(amp_scaler_init(&a, &d), AMP_OK);
        for (i = 0; i < 300; i++) {
            const int bad = random_below(4) == 0;
            memcpy(elsewhere, &a, sizeof a);
            memset(&b, 0xee, sizeof b);
            memcpy(&b, elsewhere, sizeof b);
            iterate(&a, bad);
            iterate(&b, bad);
            CHECK_MEM(&a, &b, sizeof a);
        }
    }
}

#define RUN_IN_TIER(name, tier)                            \
    do {                                                   \
        char label[80];                                    \
        sprintf(label, "%s/%s", #name, tier);              \
        test_run(label, test_text_##name, test_##name);    \
    } while (0)

int main(int argc, char **argv) {
    static const char *const tiers[] = {"avx512", "avx2", "neon", "c"};
    char                     best[16];
    size_t                   i;
    test_begin(argc, argv);
    sprintf(best, "%.15s", amp_cpu_tier());
    printf("# tier %s\n", best);
    RUN(preset_defaults);
    RUN(null_desc);
    RUN(models_agree);
    RUN(one_factor);
    RUN(one_factor_divides);
    RUN(default_init_gives_way);
    RUN(torch_sinks_to_zero);
    RUN(default_stays_in_range);
    RUN(floor_instead_of_error);
    RUN(caps);
    RUN(user_limits);
    RUN(interval_lowered);
    RUN(static_never_moves);
    RUN(no_scale);
    RUN(counters_end);
    RUN(check_every_index);
    RUN(finite_is_not_flagged);
    RUN(empty_tensor);
    RUN(unscale_values);
    RUN(unscale_any_scale);
    RUN(unscale_every_half);
    RUN(nonfinite_stays);
    RUN(unscale_same_memory);
    RUN(f16_in_place_refused);
    RUN(product_is_checked);
    RUN(torch_at_zero);
    RUN(old_scale_on_growth);
    RUN(any_nonzero_skips);
    RUN(set_scale_keeps_tracker);
    RUN(disabled);
    RUN(unscale_overlap);
    RUN(bad_state);
    RUN(bad_arguments);
    RUN(bad_descs);
    RUN(no_traps);
    RUN(environment_restored);
    RUN(struct_is_plain);
    for (i = 0; i < sizeof tiers / sizeof tiers[0]; i++) {
        if (strcmp(tiers[i], best) == 0 || amp_cpu_force_tier(tiers[i]) != AMP_OK) continue;
        RUN_IN_TIER(check_every_index, tiers[i]);
        RUN_IN_TIER(finite_is_not_flagged, tiers[i]);
        RUN_IN_TIER(unscale_values, tiers[i]);
        RUN_IN_TIER(unscale_every_half, tiers[i]);
        RUN_IN_TIER(nonfinite_stays, tiers[i]);
        RUN_IN_TIER(unscale_same_memory, tiers[i]);
        RUN_IN_TIER(product_is_checked, tiers[i]);
        RUN_IN_TIER(no_traps, tiers[i]);
        RUN_IN_TIER(environment_restored, tiers[i]);
    }
    return test_end();
}
