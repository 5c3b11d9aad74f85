/* test_storage.c - storage formats: the codecs against formulas in double, chance
   against its mean and variance, and whole optimizers: split beside default, instruction sets, state
   files, slices, rows, and what is refused. */

#define _POSIX_C_SOURCE 200809L /* sigsetjmp in fp.h */
#define AMP_KERNELS /* the core: codecs */
#include "amp.h"
#include "../support/fp.h"
#include "../support/prepare.h"
#include "../support/random.h"
#include "../support/storage.h"
#include "../support/tape.h"
#include "../support/test.h"

#include <math.h>

#define OK(call) CHECK_EQ_INT((call), AMP_OK)
#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

static uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
static float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}
static int is_nan(uint32_t u) { return (u & 0x7fffffffu) > 0x7f800000u; }

/* Masters of fp32 with models of fp16; each storage with models of bf16. */
#define OF(master, moments) {AMP_FORMAT_##master, AMP_FORMAT_##moments}
#define FORM(name, master, moments) {OF(master, moments), AMP_BF16},
static const struct { amp_storage storage; amp_dtype type; } forms[] = {
    {OF(F32, F32), AMP_F16}, {OF(F32, BF16), AMP_F16}, {OF(F32, 8BIT), AMP_F16}, AMP_STORAGE_LIST(FORM)};
enum { FORMS = sizeof forms / sizeof forms[0] };
/* The first of them whose moments are not of fp32, and whose masters are not. */
enum { FEWER = 1, APART = 6 };

static int moments_of(size_t form) { return (int)forms[form].storage.moments; }
static int masters_of(size_t form) { return (int)forms[form].storage.master; }

/* ------------------------------------------------------------------------- codecs */

TEST(round_trip, "a master in two halves: all 2^32 floats come back; its model is the nearest bf16, halves "
                 "away from zero; a NaN stays a NaN") {
    const uint64_t apart = test_state.quick == 0 ? 1 : test_state.quick == 1 ? 199 : 49999;
    uint64_t       x, wrong = 0;
    for (x = 0; x < (uint64_t)1 << 32; x += apart) {
        const uint32_t u    = (uint32_t)x;
        uint32_t       rest;
        const uint16_t half = (uint16_t)ampi_model_of_bits(u, &rest, AMP_FORMAT_SPLIT);
        const uint16_t low  = (uint16_t)rest;
        const uint32_t back = bits_of(ampi_master(half, low, AMP_FORMAT_SPLIT));
        const uint32_t near = u + 0x8000u; /* of a finite one */
        if (is_nan(u)) {
            if (is_nan((uint32_t)half << 16) && is_nan(back) && !((back ^ u) >> 31)) continue;
            printf("     0x%08lx: half 0x%04x, back 0x%08lx\n", (unsigned long)u, half, (unsigned long)back);
            wrong++;
        } else if (back != u || half != (uint16_t)(near >> 16)) {
            CHECK_EQ_U32(back, u);
            CHECK_EQ_U32(half, near >> 16);
            wrong++;
        }
        if (wrong > 9) break;
    }
    CHECK_EQ_U64(wrong, 0);
}

static double size_of(double x) { return x < 0.0 ? -x : x; }

/* The value of a half; and a step of its type at x: from it to the next one away from zero. */
static double half_value(uint32_t h, int f16) {
    amp_f16  a;
    amp_bf16 b;
    a.bits = b.bits = (uint16_t)h;
    return f16 ? (double)amp_f16_to_f32(a) : (double)amp_bf16_to_f32(b);
}
static double half_step(double x, int f16) {
    int e;
    frexp(x, &e);
    e -= f16 ? 11 : 8;
    return ldexp(1.0, e < (f16 ? -24 : -133) ? (f16 ? -24 : -133) : e);
}

/* Finite values of all sizes, the ends of types among them. */
static uint32_t some_float(uint64_t *rng, uint32_t i) {
    static const uint32_t ends[] = {0,          1,          0x80000000, 0x33800000, 0x33000000, 0x33000001,
                                    0x387fc000, 0x387fe000, 0x387fffff, 0x38800000, 0x477fdfff, 0x477fe000,
                                    0x477ff000, 0x477fffff, 0x47800000, 0x7f7effff, 0x7f7f0000, 0x7f7f7fff,
                                    0x7f7fff80, 0x7f7fffff, 0x007fffff, 0x00800000, 0x3f800000, 0x3f80007f};
    uint32_t              u = random_next(rng);
    if (i < 2 * COUNT_OF(ends)) return ends[i / 2] | i << 31;
    if (i % 2) u = (u & 0x80ffffffu) | (90 + i % 60) << 23; /* around fp16's */
    return (u & 0x7f800000u) == 0x7f800000u ? u ^ 0x40000000u : u;
}

static void h_is_nan(uint32_t u, uint32_t random, int master) {
    uint32_t low = 0, h;
    h = u & 0x400000u ? ampi_model_of(float_of(u), random, &low, master)
                      : ampi_model_of_bits(u, &low, master); /* one that signals */
    low &= 0xffffu;
    CHECK((h & 0x7fffu) > 0x7f80u && h >> 15 == u >> 31);
    CHECK(is_nan(bits_of(ampi_master(h, low, master))));
}

TEST(masters, "masters in fewer bits, against double: stochastic is one of the two halves around; what is stored "
              "comes back; finite stays finite, inf and NaN stay") {
    static const double most = 3.3895313892515355e38;
    uint64_t            rng  = 4;
    uint32_t            i, low;
    int                 master;
    for (i = 0; i < (test_state.quick == 2 ? 10000u : test_state.quick ? 200000u : 20000000u); i++) {
        const uint32_t u = some_float(&rng, i), c = random_next(&rng) >> 16;
        const double   x = (double)float_of(u), size = size_of(x);
        const double   step = half_step(size < most ? x : most, 0);
        uint32_t       h = ampi_model_of(float_of(u), c, &low, AMP_FORMAT_SR);
        const double   w = half_value(h, 0);
        /* down for all random bits that are small, never farther than a step */
        CHECK(size >= most ? size_of(w) == most : size_of(w - x) < step && !is_nan(bits_of((float)w)));
        CHECK_EQ_U32(ampi_model_of(float_of(bits_of((float)w)), c, &low, AMP_FORMAT_SR), h);
        CHECK_EQ_F32(ampi_master(h, 0, AMP_FORMAT_SR), (float)w);
        h = ampi_model_of(float_of(u), 0, &low, AMP_FORMAT_SR);
        CHECK(size_of(half_value(h, 0)) <= size);
    }
    for (master = AMP_FORMAT_SPLIT; master <= AMP_FORMAT_SR; master++) {
        for (i = 0; i < 65536; i += 257) {
            low = 0;
            CHECK_EQ_U32(ampi_model_of(float_of(0xff800000u), i, &low, master), 0xff80u);
            low &= 0xffffu;
            CHECK_EQ_U32(bits_of(ampi_master(0xff80u, low, master)), 0xff800000u);
            h_is_nan(0x7fffffffu, i, master);
            h_is_nan(0xffc00001u, i, master);
        }
        h_is_nan(0x7f800001u, 0x8000u, master);
    }
}

/* Codes by their definition, in double: floats with 4 bits behind the point, from least on, evenly
   spaced below; the value of one, and the one below a magnitude. */
static double code_value(uint32_t q, double least) {
    return least * (ldexp(1.0 + (q % 16) / 16.0, (int)(q / 16)) - 1.0);
}
static uint32_t code_below(double y, double least, uint32_t last) {
    uint32_t q = 0;
    while (q < last && code_value(q + 1, least) <= y) q++;
    return q;
}

typedef struct scale { float down, up; } scale;
static scale scale_of(int exponent) {
    scale s;
    s.down = ampi_down_of((uint32_t)exponent);
    s.up   = ampi_up_of((uint32_t)exponent);
    return s;
}

TEST(exponents, "a group's exponent is the one in which its largest magnitude is below 1.93, so that codes "
                "end above it: from 2^-126 to 2^126") {
    uint32_t u;
    for (u = 0; u <= 0x7f800000u; u += test_state.quick ? 9973 : 101) {
        const int    e = (int)ampi_exponent_of(u);
        const scale  s = scale_of(e);
        const double y = (double)float_of(u) / (double)s.up;
        CHECK(e >= 1 && e <= 253 && s.up == (float)ldexp(1.0, e - 127) && s.down * s.up == 1.0f);
        CHECK(y < 2.0 - 9.0 / 128 || e == 253);
        CHECK(y >= 1.0 - 9.0 / 256 || e == 1);
    }
    CHECK_EQ_U32(ampi_exponent_of(0x7f800001u), 255);
    CHECK_EQ_U32(ampi_exponent_of(0x7fffffffu), 255);
    CHECK(is_nan(bits_of(ampi_up_of(255))) && ampi_down_of(255) == ampi_down_of(253));
}

TEST(codes, "codes of 8 bits are their definition's in double: each comes back as itself; magnitudes between "
            "go down or up with their chance, to 2^-15; signs and m's zeros stay, v is never 0") {
    static const uint8_t exponents[] = {30, 100, 126, 127, 128, 150, 220, 253};
    const double         least_m = ldexp(1.0, -7), least_v = ldexp(1.0, -15);
    uint64_t             rng = 1;
    size_t               k;
    uint32_t             q, i;
    const uint32_t       all = 0xffffu;
    volatile uint32_t    minus = 0x80000000u; /* -Ofast takes the sign from a constant */
    for (k = 0; k < COUNT_OF(exponents); k++) {
        const scale    s    = scale_of(exponents[k]);
        const double   unit = ldexp(1.0, exponents[k] - 127);
        for (q = 0; q < 256; q++) {
            const float m = ampi_decode(q, s.up, 0), v = ampi_decode(q, s.up, 1);
            CHECK((double)v == code_value(q, least_v) * unit);
            CHECK((double)m == (q < 128 ? 1.0 : -1.0) * code_value(q % 128, least_m) * unit);
            CHECK((bits_of(m) >> 31) == q / 128);
            /* the last ones are only rounded up to */
            if (q % 128 < 127) CHECK_EQ_U32(ampi_encode(m, s.down, all, 0) & 255u, q);
            if (q % 255 > 0) CHECK_EQ_U32(ampi_encode(v, s.down, all, 1) & 255u, q);
        }
        for (i = 0; i < (test_state.quick == 2 ? 1000u : test_state.quick ? 20000u : 2000000u); i++) {
            const double   y = ldexp(1.0 + random_next(&rng) / 4294967296.0, -(int)(i % 20));
            const float    x = (float)(y < 1.92 ? y * unit : y / 2 * unit);
            const uint32_t c = random_next(&rng) >> 16, sign = i % 3 == 0 ? 0x80u : 0u;
            const double   at = (double)x / unit;
            const uint32_t m = code_below(at, least_m, 127), v = code_below(at, least_v, 255);
            const double   pm = (at - code_value(m, least_m)) / (code_value(m + 1, least_m) - code_value(m, least_m));
            const double   pv = (at - code_value(v, least_v)) / (code_value(v + 1, least_v) - code_value(v, least_v));
            const uint32_t got_m = ampi_encode(sign ? -x : x, s.down, c, 0) & 255u;
            const uint32_t got_v = ampi_encode(x, s.down, c, 1) & 255u;
            const double   near = 1.0 / 32768; /* a sum rounded to 2^-24 of a step of 2^-4 */
            const double   down_m = pm + c / 65536.0, down_v = pv + c / 65536.0;
            CHECK(got_m == (m | sign) || got_m == ((m + 1) | sign));
            if (fabs(down_m - 1.0) > near) CHECK_EQ_U32(got_m, ((down_m >= 1.0) + m) | sign);
            CHECK(got_v == v || got_v == v + 1);
            if (fabs(down_v - 1.0) > near && v) CHECK_EQ_U32(got_v, (down_v >= 1.0) + v);
            CHECK(got_v >= 1);
        }
        CHECK_EQ_U32(ampi_encode(0.0f, s.down, all, 0) & 255u, 0);
        CHECK_EQ_U32(ampi_encode(float_of(minus), s.down, all, 0) & 255u, 128);
        CHECK_EQ_U32(ampi_encode(0.0f, s.down, all, 1) & 255u, 1);
        CHECK_EQ_U32(ampi_encode(float_of(1), s.down, 0, 1) & 255u, 1);
        CHECK_EQ_U32(ampi_encode(float_of(0xff800000u), s.down, 0, 0) & 255u, 255);
        CHECK_EQ_U32(ampi_encode(float_of(0x7f800000u), s.down, all, 0) & 255u, 127);
        CHECK_EQ_U32(ampi_encode(float_of(0x7f800000u), s.down, 0, 1) & 255u, 254);
        CHECK_EQ_U32(ampi_encode(float_of(0x7f800000u), s.down, all, 1) & 255u, 255);
    }
    CHECK(is_nan(bits_of(ampi_decode(0, ampi_up_of(255), 0))));
    CHECK(is_nan(bits_of(ampi_decode(0, ampi_up_of(255), 1))));
}

/* ------------------------------------------------------------------------- stochastic rounding */

/* The random bits of element i for the first array that is rounded with them, the second, the third. */
static uint32_t half_of(uint32_t i, uint64_t key, int array) {
    uint32_t x = ampi_random(i / 2, key);
    while (array--) x = ampi_next_random(x);
    return i % 2 ? x >> 16 : x & 0xffffu;
}

TEST(stochastic, "stochastic rounding: mean and variance of values of each kind within 4 sigma; what bf16 has, "
             "infinities and NaN stay; nothing finite becomes infinite") {
    static const uint32_t value[] = {0x3f800001, 0x3f808000, 0x3f80fffe, 0xbf804000, 0x00000001,
                                     0x00008000, 0x007fff00, 0x80012345, 0x00800001, 0x7f7e8000};
    const uint32_t        draws = test_state.quick == 0 ? 10000000 : test_state.quick == 1 ? 300000 : 20000;
    size_t                k;
    uint32_t              i;
    int                   which; /* of three arrays */
    for (k = 0; k < COUNT_OF(value); k++)
        for (which = 0; which < 3; which++) {
            const uint64_t s = ampi_random_key(7, k, 3, 0);
            const uint16_t   down = (uint16_t)(value[k] >> 16);
            const double     x = (double)float_of(value[k]);
            const double     at = half_value(down, 0), step = half_value(down + 1u, 0) - at;
            const double     p = (x - at) / step, n = (double)draws;
            double           ups = 0;
            for (i = 0; i < draws; i++) {
                const uint16_t h = (uint16_t)ampi_stochastic(value[k], half_of(i, s, which));
                if (h != down) CHECK_EQ_U32(h, down + 1u);
                ups += h != down;
            }
            /* a count of coins: its mean n p, its variance n p (1 - p); so of the rounded value */
            CHECK(p >= 0.0 && p < 1.0);
            CHECK(fabs(ups - n * p) <= 4.0 * sqrt(n * p * (1.0 - p)) + 1.0);
        }
    for (i = 0; i < 65536; i += 255) {
        CHECK_EQ_U32(ampi_stochastic(0x7f800000u, i), 0x7f80);
        CHECK_EQ_U32(ampi_stochastic(0xff800000u, i), 0xff80);
        CHECK_EQ_U32(ampi_stochastic(0x7fc00001u, i), 0x7fc0);
        CHECK_EQ_U32(ampi_stochastic(0x7fffffffu, i), 0x7fff);
        CHECK_EQ_U32(ampi_stochastic(0x7f7fffffu, i), 0x7f7f);
        CHECK_EQ_U32(ampi_stochastic(0x3f810000u, i), 0x3f81);
        CHECK_EQ_U32(ampi_stochastic(0x80000000u, i), 0x8000);
    }
}

enum { MANY_DRAWS = 1 << 18, FARTHEST = 4096 };

static void draw(uint16_t *h, const uint64_t of[4], uint32_t first, uint32_t n, int array) {
    const uint64_t key = ampi_random_key(of[0], of[1], of[2], of[3]);
    uint32_t         i;
    for (i = 0; i < n; i++) h[i] = (uint16_t)half_of(first + i, key, array);
}

/* Do n elements of x and of y depend on each other? Chi-square of their upper 5 bits, and the correlation of
   all 16: the worse of the two, in standard deviations. */
static double together(const uint16_t *x, const uint16_t *y, uint32_t n) {
    enum { CELLS = 1024 };
    uint32_t     cell[CELLS] = {0}, i;
    const double mean = (double)n / CELLS;
    double       sum = 0.0, product = 0.0;
    for (i = 0; i < n; i++) cell[x[i] >> 11 << 5 | y[i] >> 11]++;
    for (i = 0; i < n; i++) product += ((double)x[i] - 32767.5) * ((double)y[i] - 32767.5);
    for (i = 0; i < CELLS; i++) sum += ((double)cell[i] - mean) * ((double)cell[i] - mean);
    sum = (sum / mean - (CELLS - 1)) / sqrt(2.0 * (CELLS - 1));
    /* a product of two uniform numbers below 2^16 has variance (2^32 / 12)^2 */
    return fmax(fabs(sum), fabs(product) / (sqrt((double)n) * (4294967296.0 / 12)));
}

TEST(random_bits, "the random bits of an array are a uniform number's; those of elements up to 4096 or powers of two up "
                  "to 2^23 apart, of other arrays, tensors, steps, seeds and the next 2^24 elements do not depend on "
                  "each other: chi-square and correlation within 5 sigma") {
    const uint32_t        n = test_state.quick == 2 ? MANY_DRAWS / 32 : MANY_DRAWS;
    static const uint64_t other[][4] = {{1, 1, 1, 0}, {2, 1, 1, 0}, {1, 2, 1, 0}, {1, 1, 2, 0},
                                        {1, 1, 1, AMPI_PER_KEY}};
    static uint16_t       h[3][MANY_DRAWS + FARTHEST], g[MANY_DRAWS];
    static uint32_t       count[65536];
    uint32_t              i, lag;
    size_t                k;
    int                   a, b;
    for (a = 0; a < 3; a++) {
        double far = 0.0, below = 0.0;
        draw(h[a], other[0], 0, n + FARTHEST, a);
        memset(count, 0, sizeof count);
        for (i = 0; i < n; i++) count[h[a][i]]++;
        /* a value is rounded up if its distance and the bits are 1 or more: of each distance as often
           as it is long. Kolmogorov's test: above 2.2 once in 8000 samples. */
        for (i = 0; i < 65536; i++) {
            below += (double)count[i];
            far = fmax(far, fabs(below - (double)n * (i + 1) / 65536));
        }
        CHECK(far <= 2.2 * sqrt((double)n));
        for (lag = 1; lag <= FARTHEST; lag += lag < 64 ? 1 : 32)
            CHECK(together(h[a], h[a] + lag, n) <= 5.0);
        for (lag = FARTHEST * 2; lag < AMPI_PER_KEY; lag *= 2) {
            draw(g, other[0], lag, n, a);
            CHECK(together(h[a], g, n) <= 5.0);
        }
    }
    for (k = 0; k < COUNT_OF(other); k++)
        for (b = 0; b < 3; b++) {
            draw(g, other[k], (uint32_t)other[k][3], n, b);
            for (a = 0; a < 3; a++)
                if (k || a != b) CHECK(together(h[a], g, n) <= 5.0);
        }
}

/* ------------------------------------------------------------------------- optimizers */

enum { TENSORS = 4, LONGEST = 40000 };
static const size_t sizes[TENSORS] = {1000, 33, LONGEST, 7};

typedef struct run {
    amp_optimizer opt;
    amp_bf16     *grad[TENSORS];
    float        *weight[TENSORS];
} run;

static void *some(size_t n) {
    void *p = calloc(n ? n : 1, 1);
    if (!p) exit(2);
    return p;
}

static float unit(uint64_t *rng) { return (float)(int32_t)random_next(rng) / 2147483648.0f; }

static void fill(run *r, uint64_t step) { /* gradients of a step */
    uint64_t rng = step + 77;
    size_t   i, k;
    for (i = 0; i < TENSORS; i++)
        for (k = 0; k < sizes[i]; k++) r->grad[i][k] = amp_f32_to_bf16(unit(&rng) * 100.0f);
    if (step % 5 == 4) r->grad[2][123].bits = 0x7f80; /* an overflow */
}

static void begin_with(run *r, amp_optimizer_desc d, const amp_storage *const *stored, float *const *weights) {
    uint64_t rng = 5;
    size_t   i, k;
    if (d.kind == AMP_KIND_OWN) d.kind = AMP_KIND_ADAMW;
    d.weight_decay = 0.01f;
    OK(amp_optimizer_init(&r->opt, &d));
    for (i = 0; i < TENSORS; i++) {
        amp_tensor t;
        memset(&t, 0, sizeof t);
        r->grad[i]   = (amp_bf16 *)some(sizes[i] * 2);
        r->weight[i] = (float *)some(sizes[i] * 4);
        for (k = 0; k < sizes[i]; k++) r->weight[i][k] = weights ? weights[i][k] : unit(&rng);
        t.n         = sizes[i];
        t.weight    = r->weight[i];
        t.grad      = r->grad[i];
        t.grad_type = AMP_BF16;
        t.storage   = stored ? stored[i] : NULL;
        OK(amp_optimizer_add(&r->opt, &t));
    }
    OK(prepare_scaled(&r->opt));
}

static void begin(run *r, amp_optimizer_desc d, const amp_storage *const *stored) {
    begin_with(r, d, stored, NULL);
}

static amp_result fused(amp_optimizer *opt, float lr) {
    return amp_optimizer_step(opt, lr);
}

static void steps(run *r, uint64_t from, uint64_t to) {
    for (; from < to; from++) {
        fill(r, from);
        OK(fused(&r->opt, 0.01f));
    }
}

static void end(run *r) {
    size_t i;
    amp_optimizer_free(&r->opt);
    for (i = 0; i < TENSORS; i++) free(r->grad[i]), free(r->weight[i]);
}

/* Everything an optimizer keeps, as a state in memory. */
static tape saved(run *r) {
    tape b = {NULL, 0, 0, 0, 0};
    OK(amp_optimizer_save(&r->opt, tape_write, &b));
    return b;
}
static amp_result loaded(run *r, tape *b) {
    b->at = 0;
    return amp_optimizer_load(&r->opt, tape_read, b);
}
static int same(const tape *a, const tape *b) {
    return a->size == b->size && memcmp(a->bytes, b->bytes, a->size) == 0;
}
static int same_models(run *a, run *b) {
    int i;
    for (i = 0; i < TENSORS; i++)
        if (memcmp(amp_optimizer_model(&a->opt, i), amp_optimizer_model(&b->opt, i), sizes[i] * 2) != 0)
            return 0;
    return 1;
}

static amp_optimizer_desc desc_of(amp_kind kind, double momentum, const amp_storage *storage) {
    amp_optimizer_desc d;
    memset(&d, 0, sizeof d);
    d.kind     = kind;
    d.momentum = momentum;
    d.storage  = storage;
    d.dtype    = AMP_BF16;
    d.seed     = 11;
    return d;
}
static amp_optimizer_desc desc_in(amp_kind kind, double momentum, size_t form) {
    amp_optimizer_desc d = desc_of(kind, momentum, &forms[form].storage);
    d.dtype              = forms[form].type;
    return d;
}

/* Each kind of step in each state. */
static const struct { amp_kind kind; double momentum; } kinds[] = {
    {AMP_KIND_ADAMW, 0.0}, {AMP_KIND_SGD, 0.9}, {AMP_KIND_LION, 0.0}, {AMP_KIND_SGD, 0.0}};
enum { ROWS_OF_OPTIMIZERS = 3 }; /* the first ones */

TEST(split_is_fp32, "manual: with equal gradients split's masters and moments are fp32's bit for bit, and its files, "
                    "with moments of each format; each loads the other's; models differ on ties at most; without a "
                    "model, and with one of fp16, they are the same") {
    static const storage_row rows[][2] = {{FP32, SPLIT}, {FP32_BF16, SPLIT_BF16}, {FP32_8BIT, SPLIT_8BIT}};
    static const amp_dtype   types[]   = {AMP_BF16, AMP_BF16, AMP_F32, AMP_F16}; /* the second is split's */
    enum { RUNS = COUNT_OF(types), CASES = COUNT_OF(kinds) * COUNT_OF(rows) };
    size_t form, k, j;
    skip_if_emulated();
    for (form = 0; form < CASES; form++) {
        const size_t kind = form % COUNT_OF(kinds);
        run          r[RUNS];
        tape         x[RUNS];
        int          i;
        for (k = 0; k < RUNS; k++) {
            amp_optimizer_desc d = desc_of(kinds[kind].kind, kinds[kind].momentum,
                                           &storages[rows[form / COUNT_OF(kinds)][k == 1]]);
            d.dtype = types[k];
            begin(&r[k], d, NULL);
            steps(&r[k], 0, 12);
            x[k] = saved(&r[k]);
            CHECK(same(&x[k], &x[0]));
        }
        for (i = 0; i < TENSORS; i++) {
            const float    *master = amp_optimizer_master(&r[0].opt, i);
            const amp_bf16 *model  = (const amp_bf16 *)amp_optimizer_model(&r[1].opt, i);
            CHECK(master == r[0].weight[i] && amp_optimizer_master(&r[1].opt, i) == NULL);
            CHECK(amp_optimizer_model(&r[2].opt, i) == (const void *)r[2].weight[i]);
            for (j = 0; j < sizes[i]; j++)
                CHECK_EQ_U32(model[j].bits, (bits_of(master[j]) + 0x8000u) >> 16);
        }
        for (k = 0; k < RUNS; k++) {
            steps(&r[k], 12, 12 + k);
            OK(loaded(&r[k], &x[(k + 1) % RUNS]));
            steps(&r[k], 12, 20);
        }
        for (k = 0; k < RUNS; k++) {
            free(x[k].bytes);
            x[k] = saved(&r[k]);
            CHECK(same(&x[k], &x[0]));
        }
        for (k = 0; k < RUNS; k++) free(x[k].bytes), end(&r[k]);
    }
}

TEST(tiers, "law 7: every instruction set gives the same bits, in each state and kind") {
    static const char *const tier[] = {"avx512", "avx2", "neon"};
    const char *const        best   = amp_cpu_tier();
    size_t                   k, t, form;
    int                      any = 0;
    for (t = 0; t < COUNT_OF(tier); t++) {
        if (amp_cpu_force_tier(tier[t]) != AMP_OK) continue;
        any = 1;
        for (k = 0; k < COUNT_OF(kinds); k++)
            for (form = 0; form < FORMS; form++) {
                run  a, b;
                tape x, y;
                OK(amp_cpu_force_tier(tier[t]));
                begin(&a, desc_in(kinds[k].kind, kinds[k].momentum, form), NULL);
                steps(&a, 0, 8);
                OK(amp_cpu_force_tier("c"));
                begin(&b, desc_in(kinds[k].kind, kinds[k].momentum, form), NULL);
                steps(&b, 0, 8);
                x = saved(&a);
                y = saved(&b);
                CHECK(same(&x, &y) && same_models(&a, &b));
                free(x.bytes), free(y.bytes);
                end(&a), end(&b);
            }
    }
    OK(amp_cpu_force_tier(best));
    if (!any) SKIP("there is one instruction set");
}

/* An optimizer of one tensor, that brings a model, and weights or NULL. */
static void one_tensor(amp_optimizer *opt, amp_optimizer_desc d, size_t n, uint16_t *model, float *weight,
                       float *grad) {
    amp_tensor t;
    memset(&t, 0, sizeof t);
    t.n = n, t.grad = grad, t.weight = weight, t.model = model, t.model_type = d.dtype;
    OK(amp_optimizer_init(opt, &d));
    OK(amp_optimizer_add(opt, &t));
    OK(prepare_scaled(opt));
}

/* Signs and payloads of NaN are the compilers': of files, but for their sums, and models. */
static int half_is_nan(uint32_t h) { return (h & 0x7fffu) > 0x7f80u || (h & 0x7fffu) == 0x7e00u; }
static int last_codes(uint32_t x, uint32_t y) { /* of m, which NaN have, but for the sign */
    int i;
    for (i = 0; i < 32; i += 8)
        if ((x ^ y) >> i & 0xffu && ((x >> i | 0x80u) & (y >> i | 0x80u) & 0xffu) != 0xffu) return 0;
    return 1;
}
static int alike_but_nan(const void *a, const void *b, size_t num_bytes) {
    size_t i;
    for (i = 0; i + 4 <= num_bytes; i += 4) {
        uint32_t x, y;
        memcpy(&x, (const char *)a + i, 4);
        memcpy(&y, (const char *)b + i, 4);
        if (x == y || (is_nan(x) && is_nan(y)) || last_codes(x, y)) continue;
        if ((x ^ y) & 0xffffu && !(half_is_nan(x) && half_is_nan(y))) return 0;
        if ((x ^ y) >> 16 && !(half_is_nan(x >> 16) && half_is_nan(y >> 16))) return 0;
    }
    return 1;
}

TEST(ends, "law 7: instruction sets agree where numbers end, too: weights and gradients of all sizes, inf and NaN") {
    enum { N = 992 };
    static const char *const tier[] = {"avx512", "avx2", "neon"};
    static float             weight[N], grad[N];
    const char *const        best = amp_cpu_tier();
    size_t                   k, t, form;
    uint64_t                 rng = 8;
    uint32_t                 i;
    int                      any = 0;
    for (i = 0; i < N; i++) {
        weight[i] = float_of(i % 97 == 96 ? 0x7fc00000u : i % 31 == 30 ? 0xff800000u : some_float(&rng, i));
        grad[i]   = float_of(some_float(&rng, i % 5 ? i : i / 5)) * (i / 160 % 2 ? 1.0f : 1e-30f);
    }
    for (t = 0; t < COUNT_OF(tier); t++) {
        if (amp_cpu_force_tier(tier[t]) != AMP_OK) continue;
        any = 1;
        for (k = 0; k < COUNT_OF(kinds); k++)
            for (form = 0; form < FORMS; form++) {
                run  r[2];
                tape x[2];
                int  c, step;
                for (c = 0; c < 2; c++) {
                    amp_optimizer_desc d = desc_in(kinds[k].kind, kinds[k].momentum, form);
                    static float       own[N];
                    d.scaler.disabled = 1;
                    memcpy(own, weight, sizeof own);
                    OK(amp_cpu_force_tier(c ? "c" : tier[t]));
                    one_tensor(&r[c].opt, d, N, NULL, own, grad);
                    for (step = 0; step < 3; step++)
                        OK(fused(&r[c].opt, 1.0f));
                    x[c] = saved(&r[c]);
                }
                CHECK(x[0].size == x[1].size && alike_but_nan(x[0].bytes, x[1].bytes, x[0].size - 8));
                CHECK(alike_but_nan(amp_optimizer_model(&r[0].opt, 0), amp_optimizer_model(&r[1].opt, 0), N * 2));
                for (c = 0; c < 2; c++) free(x[c].bytes), amp_optimizer_free(&r[c].opt);
            }
    }
    OK(amp_cpu_force_tier(best));
    if (!any) SKIP("there is one instruction set");
}

TEST(resume, "law 12: saved, loaded and continued is never stopped, in each state and in a mixture, also "
             "into another seed; a skipped step changes nothing") {
    static const amp_storage *const mixed[2][TENSORS] = {
        {&storages[SPLIT_8BIT], &storages[SPLIT], &storages[SPLIT_BF16], NULL},
        {&storages[SR], &storages[SR_8BIT], &storages[FP32_8BIT], &storages[SR_BF16]}};
    size_t                 form;
    for (form = 0; form < FORMS + 2; form += test_state.quick == 2 && form < FORMS - 1 ? 3 : 1) {
        const amp_storage *const *stored = form < FORMS ? NULL : mixed[form - FORMS];
        amp_optimizer_desc        d = stored ? desc_of(AMP_KIND_ADAMW, 0.0, NULL) : desc_in(AMP_KIND_ADAMW, 0.0, form);
        run                a, b;
        tape               x, y;
        begin(&a, d, stored);
        d.seed = 12;
        begin(&b, d, stored);
        steps(&a, 0, 5); /* the last one is skipped */
        x = saved(&a);
        steps(&a, 5, 12);
        OK(loaded(&b, &x));
        steps(&b, 5, 12);
        free(x.bytes);
        x = saved(&a);
        y = saved(&b);
        CHECK(same(&x, &y) && same_models(&a, &b));
        free(x.bytes), free(y.bytes);
        end(&a), end(&b);
    }
}

TEST(moments_out, "manual: amp_optimizer_moments gives what is stored, as fp32: of bf16 its value, of 8 bits the "
                  "code's, group by group") {
    size_t form, i;
    int    k, t;
    for (form = 0; form < FORMS; form++) {
        run    a;
        float *out[2];
        begin(&a, desc_in(AMP_KIND_ADAMW, 0.0, form), NULL);
        steps(&a, 0, 3);
        for (t = 0; t < TENSORS; t++) {
            const ampi_slot *slot = &a.opt.plan->host_slots[t];
            if (!slot->moment[0].data) continue;
            for (k = 0; k < 2; k++) out[k] = (float *)malloc((size_t)slot->n * 4 + 4);
            OK(amp_optimizer_moments(&a.opt, t, out[0], out[1]));
            for (k = 0; k < 2; k++)
                for (i = 0; i < slot->n; i++) {
                    const ampi_stored *m = &slot->moment[k];
                    const uint8_t     *code = (const uint8_t *)m->data;
                    float              want;
                    if (m->format == AMP_FORMAT_F32) memcpy(&want, code + 4 * i, 4);
                    else if (m->format == AMP_FORMAT_BF16) want = amp_bf16_to_f32(((const amp_bf16 *)m->data)[i]);
                    else want = ampi_decode(code[i], ampi_up_of(m->scale[i / 32]), k);
                    CHECK_EQ_F32(out[k][i], want);
                }
            for (k = 0; k < 2; k++) free(out[k]);
        }
        end(&a);
    }
}

TEST(across, "manual: a file loads where formats of moments and masters are its own, or into all of fp32; else it "
             "is refused by name, and nothing changes") {
    size_t from, to;
    for (from = 0; from < FORMS; from += test_state.quick == 2 ? 3 : 1)
        for (to = 0; to < FORMS; to += test_state.quick == 2 && to < FORMS - 4 ? 4 : 1) {
            const int moments = moments_of(from) == moments_of(to), fp32 = masters_of(to) <= AMP_FORMAT_SPLIT;
            const int masters = fp32 || masters_of(from) == masters_of(to);
            const int alike   = moments && masters;
            run       a, b;
            tape      x, y, z;
            int       i;
            begin(&a, desc_in(AMP_KIND_ADAMW, 0.0, from), NULL);
            begin(&b, desc_in(AMP_KIND_ADAMW, 0.0, to), NULL);
            steps(&a, 0, 3);
            x = saved(&a);
            y = saved(&b);
            CHECK_EQ_INT(loaded(&b, &x), alike ? AMP_OK : AMP_ERROR_MISMATCH);
            CHECK(alike || (strstr(amp_problem(), "tensor 0") && strstr(amp_problem(), "set desc.storage") &&
                            strstr(amp_problem(), moments ? "amp_storage.master is" : "amp_storage.moments is")));
            z = saved(&b);
            if (alike && fp32 && masters_of(from) > AMP_FORMAT_SPLIT) { /* the same numbers under another name */
                CHECK(z.size == x.size || masters_of(from) == AMP_FORMAT_SR); /* a seed less */
                for (i = 0; i < TENSORS && masters_of(to) == AMP_FORMAT_SPLIT; i++)
                    CHECK(memcmp(amp_optimizer_model(&a.opt, i), amp_optimizer_model(&b.opt, i),
                                 sizes[i] * 2) == 0);
                if (masters_of(from) == AMP_FORMAT_SR && masters_of(to) == 0 && forms[from].type == forms[to].type)
                    CHECK(same_models(&a, &b)); /* halves are what they were */
            } else {
                CHECK(same(&z, alike ? &x : &y));
            }
            free(x.bytes), free(y.bytes), free(z.bytes);
            end(&a), end(&b);
        }
}

TEST(model_only, "manual: half weights alone are what a run begins with, zeros too: the bits of one that begins "
                 "with the same numbers in fp32") {
    enum { N = 300 };
    static float    weight[N], grad[N];
    static uint16_t model[N], other[N], before[N];
    size_t          k, form, i;
    for (k = 0; k < COUNT_OF(kinds); k++)
        for (form = FEWER; form < FORMS; form++) {
            const amp_optimizer_desc d   = desc_in(kinds[k].kind, kinds[k].momentum, form);
            const int                f16 = forms[form].type == AMP_F16;
            amp_optimizer            a, b;
            uint64_t                 rng = 5;
            for (i = 0; i < N; i++) {
                const float x = i % 9 ? unit(&rng) : i % 2 ? -0.0f : 0.0f;
                model[i]  = before[i] = f16 ? amp_f32_to_f16(x).bits : amp_f32_to_bf16(x).bits;
                weight[i] = (float)half_value(model[i], f16);
                grad[i]   = unit(&rng) * 65536.0f;
            }
            one_tensor(&a, d, N, model, NULL, grad);
            one_tensor(&b, d, N, other, weight, grad);
            CHECK(memcmp(model, before, sizeof model) == 0 && memcmp(other, before, sizeof other) == 0);
            for (i = 0; i < 5; i++) {
                OK(fused(&a, 0.001f));
                OK(fused(&b, 0.001f));
                CHECK(memcmp(model, other, sizeof model) == 0);
            }
            CHECK(memcmp(model, before, sizeof model) != 0);
            amp_optimizer_free(&a);
            amp_optimizer_free(&b);
        }
}

static void one_seed(storage_row row) {
    amp_optimizer_desc d = desc_of(AMP_KIND_ADAMW, 0.0, &storages[row]);
    run                a, b, c;
    tape               x, y, z;
    begin(&a, d, NULL);
    begin(&b, d, NULL);
    d.seed = 12;
    begin(&c, d, NULL);
    steps(&a, 0, 3), steps(&b, 0, 3), steps(&c, 0, 3);
    x = saved(&a), y = saved(&b), z = saved(&c);
    CHECK(same(&x, &y) && !same(&x, &z) && !same_models(&a, &c));
    free(x.bytes), free(y.bytes), free(z.bytes);
    end(&a), end(&b), end(&c);
}

TEST(seeds, "another seed is another rounding of moments or weights; the same one the same") {
    one_seed(FP32_8BIT);
    one_seed(SPLIT_BF16);
    one_seed(SPLIT_8BIT);
    one_seed(SR);
    one_seed(SR_8BIT);
}

TEST(twins, "tensors that are alike but for their number are rounded otherwise, in each stochastic format") {
    static const storage_row by_chance[] = {FP32_BF16, SPLIT_BF16, SPLIT_8BIT, SR};
    enum { N = 500 };
    static float weight[2][N], grad[2][N];
    size_t       k, i;
    for (k = 0; k < COUNT_OF(by_chance); k++) {
        amp_optimizer_desc d = desc_of(AMP_KIND_ADAMW, 0.0, &storages[by_chance[k]]);
        amp_optimizer      opt;
        int                twin;
        OK(amp_optimizer_init(&opt, &d));
        for (twin = 0; twin < 2; twin++) {
            uint64_t   rng = 6;
            amp_tensor t;
            memset(&t, 0, sizeof t);
            for (i = 0; i < N; i++) weight[twin][i] = unit(&rng), grad[twin][i] = unit(&rng) * 100.0f;
            t.n = N, t.weight = weight[twin], t.grad = grad[twin];
            OK(amp_optimizer_add(&opt, &t));
        }
        OK(prepare_scaled(&opt));
        for (i = 0; i < 10; i++) OK(amp_optimizer_step(&opt, 0.01f));
        CHECK(memcmp(amp_optimizer_model(&opt, 0), amp_optimizer_model(&opt, 1), N * 2) != 0);
        amp_optimizer_free(&opt);
    }
}

TEST(near_default, "moments of low precision are near default's: masters after 50 steps") {
    static const double most[] = {1e-6, 0.02, 0.1}; /* of the way that weights went, on average */
    size_t              form;
    skip_if_emulated();
    for (form = FEWER; form < FORMS; form++) {
        static float    begun[LONGEST];
        run             a, b;
        const float    *master;
        const amp_bf16 *model;
        const int       sr = masters_of(form) == AMP_FORMAT_SR;
        double          way = 0.0, off = 0.0, all = 0.0;
        size_t          j;
        begin(&a, desc_of(AMP_KIND_ADAMW, 0.0, NULL), NULL);
        memcpy(begun, a.weight[2], sizeof begun);
        begin(&b, desc_in(AMP_KIND_ADAMW, 0.0, form), NULL);
        steps(&a, 0, 50), steps(&b, 0, 50);
        master = amp_optimizer_master(&a.opt, 2);
        model  = (const amp_bf16 *)amp_optimizer_model(&b.opt, 2);
        for (j = 0; j < LONGEST; j++) {
            way += fabs((double)master[j] - (double)begun[j]);
            off += fabs((double)master[j] - half_value(model[j].bits, forms[form].type == AMP_F16));
        }
        /* bf16 is 2^-9 coarse; stochastic: a step in each of 50 steps that is wrong by half of one, of
           which there are about sqrt(50) more up than down */
        all = most[moments_of(form)] * way + LONGEST * (sr ? 0.002 * 8 : 0.002);
        CHECK(off <= all);
        if (off > all) printf("     form %d: %g of %g\n", (int)form, off, way);
        end(&a), end(&b);
    }
}

/* The means of the second moments and of the sizes of the first of every fourth element from k on. */
static void means_of(const amp_optimizer *opt, size_t k, double *m, double *v) {
    const ampi_slot *s = &opt->plan->host_slots[0];
    size_t           i;
    *m = *v = 0.0;
    for (i = k; i < s->n; i += 4) {
        *m += fabs((double)ampi_decode(((const uint8_t *)s->moment[0].data)[i],
                                       ampi_up_of(s->moment[0].scale[i / 32]), 0));
        *v += (double)ampi_decode(((const uint8_t *)s->moment[1].data)[i],
                                   ampi_up_of(s->moment[1].scale[i / 32]), 1);
    }
    *m /= (double)(s->n / 4);
    *v /= (double)(s->n / 4);
}

TEST(decays, "moments of 8 bits follow fp32's on average, in steps far smaller than their codes: constant, "
             "down to a 20th and to nothing while others of the group stay, and all of it down to a 100th") {
    /* v moves by a 1000th of itself in a step, and codes are up to 1/16 apart: chance adds a variance of
       1/16 times a 1000th of v^2 or less in each of about 1000 / 2 steps that v remembers, in all less
       than v^2 / 32: 18 %, and 4 sigma of the mean of a quarter of n elements. Where all of it falls for
       6000 steps, to a 400th, each of them adds 1/16000: 61 %. m moves by tenths: of about 5 steps it has
       at most a quarter of a code's square, 7 %. */
    enum { N = 4096, STEPS = 6000 };
    const double       sigmas = 4 / sqrt(N / 4.0), most_m = sigmas * 0.07;
    static amp_bf16    weight[N], grad[N];
    amp_optimizer_desc d = desc_of(AMP_KIND_ADAMW, 0.0, &storages[SPLIT_8BIT]);
    amp_optimizer      opt;
    amp_tensor         t;
    double             v[4] = {0, 0, 0, 0}, got_m, got_v;
    size_t             i, k, step;
    skip_if_emulated();
    d.scaler.preset     = AMP_PRESET_STATIC;
    d.scaler.init_scale = 1.0f;
    memset(&t, 0, sizeof t);
    t.n = N, t.model = weight, t.model_type = AMP_BF16, t.grad = grad, t.grad_type = AMP_BF16;
    OK(amp_optimizer_init(&opt, &d));
    OK(amp_optimizer_add(&opt, &t));
    OK(prepare_scaled(&opt));
    for (step = 0; step < 2 * STEPS; step++) {
        const float all   = step < STEPS ? 1.0f : 1.0f / 128;
        const float of[4] = {all, all, step < 100 ? all : all / 16, step < 100 ? all : 0.0f};
        if (step % STEPS == 0 || step == 100)
            for (i = 0; i < N; i++) grad[i] = amp_f32_to_bf16(of[i % 4]);
        for (k = 0; k < 4; k++) v[k] = 0.999 * v[k] + 0.001 * (double)of[k] * (double)of[k];
        OK(amp_optimizer_step(&opt, 1e-6f));
        if (step % STEPS != STEPS - 1) continue;
        for (k = 0; k < 4; k++) {
            const double most_v = sigmas * (step < STEPS ? 0.18 : 0.61);
            means_of(&opt, k, &got_m, &got_v);
            CHECK(fabs(got_m - (double)of[k]) <= most_m * (double)of[k]); /* of nothing, nothing */
            if (k < 3) CHECK(fabs(got_v / v[k] - 1.0) <= most_v);
            if (k < 3 && fabs(got_v / v[k] - 1.0) > most_v) printf("     %d: %g\n", (int)k, got_v / v[k]);
        }
    }
    amp_optimizer_free(&opt);
}

/* SGD with a gradient of 1 and steps of 2^-14 of the weight, far below a half's. */
TEST(small_steps, "steps too small for a half are not lost: stochastic rounding has them on average within 4 "
                  "sigma, all other masters have them") {
    enum { N = 20000, STEPS = 200 };
    size_t form;
    skip_if_emulated();
    for (form = FEWER; form < FORMS; form++) {
        amp_optimizer_desc d    = desc_in(AMP_KIND_SGD, 0.0, form);
        const int          f16  = forms[form].type == AMP_F16, sr = masters_of(form) == AMP_FORMAT_SR;
        float             *weight = (float *)some(N * 4), *grad = (float *)some(N * 4);
        const double       step = ldexp(1.0, -14), went = STEPS * step, half = half_step(1.0, f16);
        double             sum = 0.0, far = 0.0, worst = 0.0, sigma;
        const amp_bf16    *model;
        amp_optimizer      opt;
        amp_tensor         t;
        size_t             i;
        memset(&t, 0, sizeof t);
        d.scaler.preset     = AMP_PRESET_STATIC;
        d.scaler.init_scale = 1.0f;
        for (i = 0; i < N; i++) weight[i] = 1.25f, grad[i] = -1.25f;
        t.n = N, t.weight = weight, t.grad = grad;
        OK(amp_optimizer_init(&opt, &d));
        OK(amp_optimizer_add(&opt, &t));
        OK(prepare_scaled(&opt));
        for (i = 0; i < STEPS; i++) OK(amp_optimizer_step(&opt, (float)step));
        model = (const amp_bf16 *)amp_optimizer_model(&opt, 0);
        for (i = 0; i < N; i++) {
            far = half_value(model[i].bits, f16) - 1.25;
            sum += far;
            if (fabs(far - 1.25 * went) > worst) worst = fabs(far - 1.25 * went);
        }
        /* each step goes up with a chance p of the half's: variance p (1 - p) of its square */
        sigma = half * sqrt(STEPS * (1.25 * step / half) * (1.0 - 1.25 * step / half) / N);
        if (sr) CHECK(fabs(sum / N - 1.25 * went) <= 4.0 * sigma);
        else CHECK(worst <= half / 2 + STEPS * half / (f16 ? 4096 : 512)); /* of what else is kept */
        if (sr && fabs(sum / N - 1.25 * went) > 4.0 * sigma) printf("     form %d: %g\n", (int)form, sum / N);
        amp_optimizer_free(&opt);
        free(weight), free(grad);
    }
}

/* ------------------------------------------------------------------------- rows and slices */

TEST(rows, "gradients of few rows: where every row is there once, the bits of a dense step; rows that are "
           "not there keep every bit") {
    enum { LENGTH = 64, ROWS = 40, N = LENGTH * ROWS };
    size_t form;
    for (form = FEWER; form < FORMS; form++) {
        static float       grad[N], weight[2][N];
        static amp_bf16    before[N];
        uint32_t           rows[ROWS], num = ROWS, i;
        amp_rows           table;
        amp_optimizer_desc d = desc_in(form % 2 ? AMP_KIND_LION : AMP_KIND_ADAMW, 0.0, form);
        amp_optimizer      a, b;
        amp_tensor         t;
        uint64_t           rng = 3;
        for (i = 0; i < N; i++) grad[i] = unit(&rng) * 65536.0f, weight[0][i] = weight[1][i] = unit(&rng);
        for (i = 0; i < ROWS; i++) rows[i] = i;
        memset(&t, 0, sizeof t);
        t.n      = N;
        t.weight = weight[0];
        t.grad   = grad;
        OK(amp_optimizer_init(&a, &d));
        OK(amp_optimizer_add(&a, &t));
        OK(prepare_scaled(&a));
        t.weight = weight[1];
        t.rows   = &table;
        table.row_length = LENGTH;
        table.max_rows   = ROWS;
        table.rows       = rows;
        table.num_rows   = &num;
        OK(amp_optimizer_init(&b, &d));
        OK(amp_optimizer_add(&b, &t));
        OK(prepare_scaled(&b));
        for (i = 0; i < 4; i++) {
            OK(fused(&a, 0.01f));
            OK(fused(&b, 0.01f));
        }
        CHECK(memcmp(amp_optimizer_model(&a, 0), amp_optimizer_model(&b, 0), sizeof before) == 0);
        memcpy(before, amp_optimizer_model(&b, 0), sizeof before);
        num     = 1;
        rows[0] = 7;
        OK(fused(&b, 0.01f));
        CHECK(memcmp(before, amp_optimizer_model(&b, 0), 7 * LENGTH * 2) == 0);
        CHECK(memcmp(before + 7 * LENGTH, (const amp_bf16 *)amp_optimizer_model(&b, 0) + 7 * LENGTH,
                     LENGTH * 2) != 0);
        CHECK(memcmp(before + 8 * LENGTH, (const amp_bf16 *)amp_optimizer_model(&b, 0) + 8 * LENGTH,
                     (ROWS - 8) * LENGTH * 2) == 0);
        amp_optimizer_free(&a);
        amp_optimizer_free(&b);
    }
}

enum { SLICED = 2 * 16384 + 70, SHORT = 33 };
typedef struct sliced { amp_optimizer opt; float weight[SHORT + SLICED], grad[SHORT + SLICED]; } sliced;

/* Two tensors; or (from) the second one as slices that begin at 0 and from, in front of the first. */
static void begin_sliced(sliced *s, const amp_optimizer_desc *d, const float *weight, size_t from) {
    amp_tensor t[3];
    int        i;
    memset(t, 0, sizeof t);
    memcpy(s->weight, weight, sizeof s->weight);
    OK(amp_optimizer_init(&s->opt, d));
    t[0].n = SLICED - from, t[0].weight = s->weight + SHORT + from, t[0].grad = s->grad + SHORT + from;
    t[0].key = from ? 2 : 0, t[0].first = from;
    t[1].n = from, t[1].weight = s->weight + SHORT, t[1].grad = s->grad + SHORT, t[1].key = from ? 2 : 0;
    t[2].n = SHORT, t[2].weight = s->weight, t[2].grad = s->grad, t[2].key = from ? 1 : 0;
    if (!from) OK(amp_optimizer_add(&s->opt, &t[2]));
    for (i = 0; i < (from ? 3 : 1); i++) OK(amp_optimizer_add(&s->opt, &t[i]));
    OK(prepare_scaled(&s->opt));
}
static void step_sliced(sliced *s, uint64_t step) {
    uint64_t rng = step + 31;
    size_t   i;
    for (i = 0; i < SHORT + SLICED; i++) s->grad[i] = unit(&rng) * 100.0f;
    OK(fused(&s->opt, 0.01f));
}

/* Models, and moments, of the second tensor, from its slices or from the whole. */
static void gather_sliced(sliced *s, const amp_optimizer_desc *d, size_t from, char *model, float *m, float *v) {
    const size_t size = d->dtype == AMP_F32 ? 4 : 2;
    const int    two = d->kind == AMP_KIND_ADAMW, one = two || d->kind == AMP_KIND_LION || d->momentum > 0.0;
    memset(m, 0, SLICED * 4), memset(v, 0, SLICED * 4);
    memcpy(model + from * size, amp_optimizer_model(&s->opt, !from), (SLICED - from) * size);
    OK(amp_optimizer_moments(&s->opt, !from, one ? m + from : NULL, two ? v + from : NULL));
    if (!from) return;
    memcpy(model, amp_optimizer_model(&s->opt, 1), from * size);
    OK(amp_optimizer_moments(&s->opt, 1, one ? m : NULL, two ? v : NULL));
}
static void set_sliced(sliced *s, const amp_optimizer_desc *d, size_t from, const float *m, const float *v) {
    const int two = d->kind == AMP_KIND_ADAMW, one = two || d->kind == AMP_KIND_LION || d->momentum > 0.0;
    OK(amp_optimizer_set_steps(&s->opt, 3, 0));
    OK(amp_optimizer_set_moments(&s->opt, 0, one ? m + from : NULL, two ? v + from : NULL));
    OK(amp_optimizer_set_moments(&s->opt, 1, one ? m : NULL, two ? v : NULL));
    OK(amp_optimizer_set_moments(&s->opt, 2, one ? m : NULL, two ? v : NULL)); /* not compared */
}

TEST(slices, "manual: slices with key and first have the bits of the whole tensor, in each storage with each optimizer and both "
             "types of models, with other numbers and in another order; and go on elsewhere from its masters, steps and moments, "
             "of 8 bits, too; without key they have others where rounding is stochastic") {
    static sliced whole, parts;
    static float  weight[SHORT + SLICED], m[2][SLICED], v[2][SLICED];
    static char   model[2][SLICED * 4];
    uint64_t      rng = 9;
    size_t        form, i, at;
    for (i = 0; i < SHORT + SLICED; i++) weight[i] = unit(&rng);
    for (form = 0; form < (FORMS + 2) * ROWS_OF_OPTIMIZERS; form += test_state.quick == 2 ? 7 : 1) {
        const size_t       stored = form / ROWS_OF_OPTIMIZERS, kind = form % ROWS_OF_OPTIMIZERS;
        amp_optimizer_desc d = desc_in(kinds[kind].kind, kinds[kind].momentum, stored % FORMS);
        if (stored >= FORMS) /* all copies in fp32 */
            d.dtype = AMP_F32, d.storage = &storages[stored == FORMS ? FP32_BF16 : FP32_8BIT];
        memset(model, 0, sizeof model);
        begin_sliced(&whole, &d, weight, 0);
        begin_sliced(&parts, &d, weight, 16384);
        for (i = 0; i < 3; i++) step_sliced(&whole, i), step_sliced(&parts, i);
        for (at = 16384; at; at = at == 16384 && d.storage->master == AMP_FORMAT_F32 ? 32768 : 0) {
            if (at == 32768) { /* elsewhere */
                amp_optimizer_free(&parts.opt);
                begin_sliced(&parts, &d, whole.weight, at);
                set_sliced(&parts, &d, at, m[0], v[0]);
                for (i = 3; i < 6; i++) step_sliced(&whole, i), step_sliced(&parts, i);
            }
            gather_sliced(&whole, &d, 0, model[0], m[0], v[0]);
            gather_sliced(&parts, &d, at, model[1], m[1], v[1]);
            CHECK_MEM(model[1], model[0], sizeof model[0]);
            CHECK_MEM(m[1], m[0], sizeof m[0]);
            CHECK_MEM(v[1], v[0], sizeof v[0]);
        }
        amp_optimizer_free(&parts.opt), amp_optimizer_free(&whole.opt);
    }
}

TEST(moments_of_8_bits, "manual: moments of 8 bits are set to what amp_optimizer_moments gave, of groups whose largest was rounded "
                        "past an exponent, of zeros and NaN, too; to others they are not, and nothing changes") {
    enum { N = 32 * 64 + 5 };
    static float       w[2][N], g[N], m[2][N], v[2][N];
    amp_optimizer_desc d = desc_of(AMP_KIND_ADAMW, 0.0, &storages[FP32_8BIT]);
    amp_optimizer      opt[2];
    uint64_t           rng = 4;
    size_t             i;
    int                step, k;
    d.scaler.disabled = 1;
    for (k = 0; k < 2; k++) one_tensor(&opt[k], d, N, NULL, w[k], g);
    for (step = 0; step < 40; step++) {
        for (i = 0; i < N; i++) g[i] = ldexpf(unit(&rng), (int)(i / 32) * 2 - 64) * (step < 2 || i % 32 < 9 ? 1.0f : 0.1f);
        if (step == 30) g[100] = NAN;
        OK(fused(&opt[0], 0.0f));
        OK(amp_optimizer_moments(&opt[0], 0, m[0], v[0]));
        OK(amp_optimizer_set_steps(&opt[1], (uint64_t)step + 1, 0));
        OK(amp_optimizer_set_moments(&opt[1], 0, m[0], v[0]));
        OK(amp_optimizer_moments(&opt[1], 0, m[1], v[1]));
        CHECK_MEM(m[1], m[0], sizeof m[0]);
        CHECK_MEM(v[1], v[0], sizeof v[0]);
    }
    CHECK(is_nan(bits_of(m[0][100])) && is_nan(bits_of(v[0][96]))); /* of all 32 */
    v[0][1031] *= 1.01f;
    CHECK_EQ_INT(amp_optimizer_set_moments(&opt[1], 0, m[0], v[0]), AMP_ERROR_UNSUPPORTED);
    v[0][1031] = v[1][1031], m[0][N - 1] += m[0][N - 1] * 0.01f, m[0][3] = 0.0f;
    CHECK_EQ_INT(amp_optimizer_set_moments(&opt[1], 0, m[0], v[0]), AMP_ERROR_UNSUPPORTED);
    OK(amp_optimizer_moments(&opt[1], 0, m[0], v[0]));
    CHECK_MEM(m[1], m[0], sizeof m[0]);
    CHECK_MEM(v[1], v[0], sizeof v[0]);
    for (k = 0; k < 2; k++) amp_optimizer_free(&opt[k]);
}

/* ------------------------------------------------------------------------- what is not a master */

TEST(spent_weights, "manual: a weight that prepare has copied and no step writes is NaN, to its last element; "
                    "masters, and weights of tensors with keep_fp32, stay") {
    static const size_t lengths[] = {1, 1023, 1024, 1025, 5000, 70001};
    size_t              form, k, i;
    for (form = 0; form < FORMS; form++)
        for (k = 0; k < COUNT_OF(lengths); k++) {
            const size_t       n      = lengths[k];
            float             *weight = (float *)some((n + 1) * 4), kept[3] = {1.0f, 2.0f, 3.0f}, grad[3];
            amp_optimizer_desc d      = desc_in(AMP_KIND_ADAMW, 0.0, form);
            amp_optimizer      opt;
            amp_tensor         t;
            memset(&t, 0, sizeof t);
            for (i = 0; i <= n; i++) weight[i] = 0.5f;
            t.n = n, t.weight = weight;
            OK(amp_optimizer_init(&opt, &d));
            OK(amp_optimizer_add(&opt, &t));
            t.n = 3, t.weight = kept, t.grad = grad, t.keep_fp32 = 1;
            OK(amp_optimizer_add(&opt, &t));
            OK(prepare_scaled(&opt));
            for (i = 0; i < n; i++)
                if (is_nan(bits_of(weight[i])) != (form >= APART)) break;
            CHECK_EQ_INT(i, n);
            CHECK_EQ_F32(weight[n], 0.5f);
            CHECK(kept[0] == 1.0f && kept[1] == 2.0f && kept[2] == 3.0f);
            CHECK_EQ_F32((float)half_value(((const amp_bf16 *)amp_optimizer_model(&opt, 0))[n - 1].bits,
                                           forms[form].type == AMP_F16), 0.5f);
            amp_optimizer_free(&opt);
            free(weight);
        }
}

TEST(refresh, "manual: refresh takes weights that rebind has brought as prepare does: steps from there have the "
              "bits of an optimizer that begins with them; moments stay; nothing is taken twice, or after a load") {
    size_t form, i, k;
    for (form = APART; form < FORMS; form += test_state.quick == 2 ? 5 : 1) {
        const amp_optimizer_desc d = desc_in(AMP_KIND_ADAMW, 0.0, form);
        run                      a, b, c;
        float                   *brought[TENSORS];
        tape                     x, y;
        begin(&a, d, NULL), begin(&b, d, NULL), begin(&c, d, NULL);
        steps(&c, 0, 3);
        for (i = 0; i < TENSORS; i++) {
            uint64_t rng = i + 9;
            brought[i]   = (float *)some(sizes[i] * 4);
            for (k = 0; k < sizes[i]; k++) brought[i][k] = unit(&rng) * 3.0f;
        }
        CHECK_EQ_INT(amp_optimizer_refresh(&a.opt), AMP_ERROR_BAD_STATE);
        CHECK(strstr(amp_problem(), "tensor 0") == amp_problem() && strstr(amp_problem(), "rebind") != NULL);
        OK(amp_optimizer_rebind(&a.opt, 0, brought[0], NULL));
        CHECK_EQ_INT(amp_optimizer_refresh(&a.opt), AMP_ERROR_BAD_STATE);
        CHECK(strstr(amp_problem(), "tensor 1") == amp_problem() && same_models(&a, &b));
        OK(amp_optimizer_rebind_all(&a.opt, brought, NULL));
        CHECK(amp_optimizer_master(&a.opt, 0) == NULL);
        OK(amp_optimizer_refresh(&a.opt));
        CHECK_EQ_INT(amp_optimizer_refresh(&a.opt), AMP_ERROR_BAD_STATE);
        OK(amp_optimizer_rebind_all(&c.opt, brought, NULL));
        OK(amp_optimizer_refresh(&c.opt));
        CHECK(same_models(&a, &c) && !same_models(&a, &b));
        end(&b);
        begin_with(&b, d, NULL, brought);
        CHECK(same_models(&a, &b));
        steps(&a, 0, 7), steps(&b, 0, 7);
        x = saved(&a), y = saved(&b);
        CHECK(same(&x, &y) && same_models(&a, &b));
        OK(amp_optimizer_rebind_all(&c.opt, brought, NULL));
        OK(loaded(&c, &x));
        CHECK(same_models(&a, &c));
        CHECK_EQ_INT(amp_optimizer_refresh(&c.opt), AMP_ERROR_BAD_STATE);
        free(x.bytes), free(y.bytes);
        for (i = 0; i < TENSORS; i++) free(brought[i]);
        end(&a), end(&b), end(&c);
    }
}

static run refreshed;
static void refresh_it(void) { (void)amp_optimizer_refresh(&refreshed.opt); }

TEST(refresh_anywhere, "laws 2 and 13: a refresh of masters beside models has the same bits whatever the caller rounds to or "
                       "flushes, and traps nothing: subnormals, signaling NaN, what has no 16 bits") {
    size_t form, i, k;
    int    mode;
    if (!FP_CONTROL) SKIP(FP_WHY);
    for (form = APART; form < FORMS; form += test_state.quick == 2 ? 5 : 1) {
        const amp_optimizer_desc d = desc_in(AMP_KIND_ADAMW, 0.0, form);
        float                   *brought[TENSORS];
        run                      plain;
        tape                     x, y;
        begin(&plain, d, NULL);
        for (i = 0; i < TENSORS; i++) {
            brought[i] = (float *)some(sizes[i] * 4);
            for (k = 0; k < sizes[i]; k++) { /* of all exponents, and many that are subnormal in fp16 or fp32 */
                const uint32_t u = random_bits(), small = k % 4 == 1 ? 0x38ffffffu : k % 4 == 2 ? 0x00ffffffu : ~0u;
                const uint32_t v = k % 64 == 3 ? (u & 0x80000000u) | 0x7f812345u : (u & 0x80000000u) | (u & small);
                memcpy(&brought[i][k], &v, 4);
            }
        }
        OK(amp_optimizer_rebind_all(&plain.opt, brought, NULL));
        OK(amp_optimizer_refresh(&plain.opt));
        x = saved(&plain);
        for (mode = 0; mode < 17; mode += test_state.quick && mode < 15 ? 5 : 1) { /* 16: traps */
            const uint32_t before = fp_get(), set = FP_IEEE | ((uint32_t)mode & 3u) * FP_ROUNDING |
                                                    (mode & 4 ? FP_FTZ : 0u) | (mode & 8 ? FP_DAZ : 0u);
            uint32_t       after  = set;
            begin(&refreshed, d, NULL);
            OK(amp_optimizer_rebind_all(&refreshed.opt, brought, NULL));
            if (mode == 16) {
                if (FP_TRAPPING) CHECK(fp_runs_without_trap(refresh_it));
                else refresh_it();
            } else {
                fp_set(set);
                refresh_it();
                after = fp_get();
                fp_set(before);
            }
            CHECK_EQ_U32(after, set); /* no flag is raised */
            CHECK(same_models(&plain, &refreshed));
            y = saved(&refreshed);
            CHECK(same(&x, &y));
            free(y.bytes);
            end(&refreshed);
        }
        for (i = 0; i < TENSORS; i++) free(brought[i]);
        free(x.bytes);
        end(&plain);
    }
}

/* lion-pytorch's rule, in floats of one rounding each. */
static float rounded(double x) { /* of two floats a sum or product, which double has or rounds innocuously */
    volatile float y = (float)x;
    return y;
}
static void lion(float *p, float *m, float g, float lr, float decay) {
    const double b1 = (double)rounded(0.9), b2 = (double)rounded(0.99); /* 0.9f may have a double's bits */
    const double rest1 = (double)rounded(1.0 - 0.9), rest2 = (double)rounded(1.0 - 0.99);
    const float  keep = rounded(1.0 - (double)rounded((double)lr * (double)decay));
    const double u    = (double)rounded(b1 * (double)*m) + (double)rounded(rest1 * (double)g);
    *p = rounded((double)*p * (double)keep);
    *p = rounded((double)*p - (u > 0.0 ? (double)lr : u < 0.0 ? -(double)lr : 0.0));
    *m = rounded((double)rounded(b2 * (double)*m) + (double)rounded(rest2 * (double)g));
}

TEST(lion_steps, "Lion: bit for bit lion-pytorch's rule, weights decaying first; a sign of 0 is 0; the desc's default is "
                 "beta2 = 0.99; a NaN in m stays one") {
    enum { N = 999, STEPS = 20 };
    static float       weight[N], p[N], m[N], grad[N];
    amp_optimizer_desc d = desc_of(AMP_KIND_LION, 0.0, NULL);
    amp_optimizer      opt;
    amp_tensor         t;
    uint64_t           rng = 6;
    int                step;
    size_t             i;
    memset(&t, 0, sizeof t);
    memset(m, 0, sizeof m);
    d.dtype = AMP_F32, d.weight_decay = 0.1f, d.scaler.disabled = 1;
    OK(amp_optimizer_init(&opt, &d));
    for (i = 0; i < N; i++) p[i] = weight[i] = unit(&rng);
    t.n = N, t.weight = weight, t.grad = grad;
    OK(amp_optimizer_add(&opt, &t));
    OK(prepare_scaled(&opt));
    CHECK(opt.plan->host_slots[0].moment[0].data != NULL && opt.plan->host_slots[0].moment[1].data == NULL);
    for (step = 0; step < STEPS; step++) {
        for (i = 0; i < N; i++) grad[i] = i % 7 ? unit(&rng) : 0.0f; /* there m stays 0, and weights only decay */
        OK(amp_optimizer_step(&opt, 0.01f));
        for (i = 0; i < N; i++) lion(&p[i], &m[i], grad[i], 0.01f, 0.1f);
        CHECK_MEM(weight, p, sizeof p);
        CHECK_MEM(opt.plan->table[0].moment[0].data, m, sizeof m);
    }
    ((uint32_t *)opt.plan->table[0].moment[0].data)[3] = 0xffc00000u;
    OK(amp_optimizer_step(&opt, 0.01f));
    CHECK(is_nan(bits_of(weight[3])) && is_nan(bits_of(((float *)opt.plan->table[0].moment[0].data)[3])));
    amp_optimizer_free(&opt);
}

/* ------------------------------------------------------------------------- refusals */

static amp_result adding(amp_optimizer_desc d, amp_tensor t, const char *word) {
    amp_optimizer opt;
    amp_result    result;
    memset(&opt, 0, sizeof opt);
    result    = amp_optimizer_init(&opt, &d);
    if (result == AMP_OK) result = amp_optimizer_add(&opt, &t);
    CHECK(result == AMP_OK || strstr(amp_problem(), word));
    amp_optimizer_free(&opt);
    return result;
}

TEST(storage_by_tensor, "manual: storage is that of the tensor, or else of a flat array's whole, or else of desc, copied in "
                        "init and add; so a tensor returns to fp32 under any desc; with keep_fp32 it is fp32, but for "
                        "the moments of a storage of its own whose master is") {
    static float       weight[8][64], grad[8][64];
    amp_storage        s[4];
    amp_optimizer_desc d;
    amp_optimizer      opt;
    amp_tensor         t, parts[2];
    int                i;
    s[0] = storages[SPLIT_8BIT], s[1] = storages[FP32], s[2] = storages[SR], s[3] = storages[FP32_8BIT];
    d = desc_of(AMP_KIND_ADAMW, 0.0, &s[0]);
    memset(&t, 0, sizeof t);
    memset(parts, 0, sizeof parts);
    OK(amp_optimizer_init(&opt, &d));
    s[0] = storages[SR_BF16];
    for (i = 0; i < 3; i++) { /* desc's, and both of its own */
        t.n = 64, t.weight = weight[i], t.grad = grad[i];
        t.storage = i ? &s[i] : NULL;
        OK(amp_optimizer_add(&opt, &t));
    }
    t.n = 128, t.weight = weight[3], t.grad = grad[3];
    parts[0].n = parts[1].n = 64;
    parts[1].storage = &s[1];
    OK(amp_optimizer_add_flat(&opt, &t, parts, 2)); /* of sr, one in fp32 */
    for (i = 5; i < 8; i++) { /* desc's, of the master's words, and of fp32 */
        t.n = 64, t.weight = weight[i], t.grad = grad[i], t.keep_fp32 = 1;
        t.storage = i == 5 ? NULL : i == 6 ? &s[2] : &s[3];
        OK(amp_optimizer_add(&opt, &t));
    }
    memset(s, 0xff, sizeof s);
    OK(prepare_scaled(&opt));
    for (i = 0; i < 8; i++) {
        static const storage_row expected[] = {SPLIT_8BIT, FP32, SR, SR, FP32, FP32, FP32, FP32_8BIT};
        const ampi_slot         *slot = &opt.plan->host_slots[i];
        CHECK_EQ_INT(slot->master.format, storages[expected[i]].master);
        CHECK_EQ_INT(slot->moment[1].format, storages[expected[i]].moments);
        CHECK((amp_optimizer_master(&opt, i) == weight[i]) == (expected[i] <= FP32_8BIT));
        CHECK(is_nan(bits_of(weight[i][0])) == (expected[i] > FP32_8BIT));
    }
    amp_optimizer_free(&opt);
}

TEST(refusals, "manual: what a storage cannot be with is refused, and told; a pair that is no row, by name") {
    amp_optimizer_desc d = desc_of(AMP_KIND_OWN, 0.0, &storages[SPLIT]);
    float              weight[96], grad[96];
    uint32_t           rows[3] = {0, 1, 2}, num = 3;
    amp_rows           table;
    amp_storage        s;
    amp_result         result;
    const char        *text;
    int                master, moments;
    float             *moved = weight;
    amp_optimizer      opt;
    amp_tensor         t;
    memset(&t, 0, sizeof t);
    t.n = 96, t.weight = weight, t.grad = grad;
    memset(weight, 0, sizeof weight);
    memset(grad, 0, sizeof grad);
    d.dtype = AMP_BF16;
    CHECK_EQ_INT(adding(d, t, "storage is for"), AMP_ERROR_UNSUPPORTED);
    d.storage = NULL;
    t.storage = &storages[SPLIT_BF16];
    CHECK_EQ_INT(adding(d, t, "storage is for"), AMP_ERROR_UNSUPPORTED);
    t.storage = &storages[FP32_8BIT]; /* of moments that there are none of */
    CHECK_EQ_INT(adding(d, t, "storage is for"), AMP_ERROR_UNSUPPORTED);
    d.kind = AMP_KIND_ADAMW;
    CHECK_EQ_INT(adding(d, t, ""), AMP_OK);
    t.storage = &storages[SPLIT_BF16];
    CHECK_EQ_INT(adding(d, t, ""), AMP_OK);
    for (master = 0; master < 4; master++) { /* models of bf16 are what these masters are stored beside */
        d.dtype   = master % 2 ? AMP_F16 : AMP_F32;
        t.storage = &storages[master / 2 ? SPLIT_BF16 : SR];
        CHECK_EQ_INT(adding(d, t, "a model of AMP_BF16: set desc.dtype"), AMP_ERROR_UNSUPPORTED);
    }
    d.dtype = AMP_F32;
    d.storage = &storages[SR_8BIT], t.storage = &storages[FP32_8BIT];
    CHECK_EQ_INT(adding(d, t, ""), AMP_OK);
    d.storage = NULL, t.storage = &storages[SR];
    t.keep_fp32 = 1;
    CHECK_EQ_INT(adding(d, t, ""), AMP_OK);
    t.keep_fp32 = 0;
    t.model = weight, t.model_type = AMP_BF16;
    CHECK_EQ_INT(adding(d, t, "its model is its weight"), AMP_ERROR_INVALID_CONFIG);
    t.model = NULL;
    d.dtype     = AMP_BF16;
    for (master = 0; master <= (int)AMP_FORMAT_SR + 1; master++)
        for (moments = 0; moments <= (int)AMP_FORMAT_SR + 1; moments++) {
            const int known = master <= (int)AMP_FORMAT_SR && moments <= (int)AMP_FORMAT_SR;
            size_t    i;
            s.master = (amp_storage_format)master, s.moments = (amp_storage_format)moments;
            for (i = 0; i < STORAGES && memcmp(&storages[i], &s, sizeof s) != 0;) i++;
            result = i < STORAGES ? AMP_OK : known ? AMP_ERROR_INVALID_CONFIG : AMP_ERROR_INVALID_ENUM;
            text   = i < STORAGES ? "" : known ? ": take fp32, fp32+bf16, fp32+8bit, split," : "does not know";
            t.storage = &s, d.storage = NULL;
            CHECK_EQ_INT(adding(d, t, text), result);
            t.storage = NULL, d.storage = &s;
            CHECK_EQ_INT(adding(d, t, text), result);
        }
    s.master = AMP_FORMAT_8BIT, s.moments = AMP_FORMAT_BF16;
    CHECK_EQ_INT(adding(d, t, "amp_storage is 8bit+bf16: take fp32, fp32+bf16"), AMP_ERROR_INVALID_CONFIG);
    d.storage = &storages[SPLIT_8BIT];
    table.row_length = 48, table.max_rows = 2, table.rows = rows, table.num_rows = &num;
    t.rows = &table;
    CHECK_EQ_INT(adding(d, t, "multiple of 32"), AMP_ERROR_UNSUPPORTED);
    table.row_length = 32;
    CHECK_EQ_INT(adding(d, t, ""), AMP_OK);
    t.rows = NULL;
    OK(amp_optimizer_init(&opt, &d));
    OK(amp_optimizer_add(&opt, &t));
    OK(prepare_scaled(&opt));
    CHECK_EQ_INT(amp_optimizer_rebind(&opt, 0, moved, NULL), AMP_OK); /* for a refresh */
    CHECK_EQ_INT(amp_optimizer_rebind(&opt, 0, NULL, grad), AMP_OK);
    CHECK(amp_optimizer_master(&opt, 0) == NULL && amp_optimizer_model(&opt, 0) != NULL);
    amp_optimizer_free(&opt);
}

int main(int argc, char **argv) {
    const uint32_t fp = fp_get();
    test_begin(argc, argv);
    fp_set(FP_IEEE); /* the core alone: a program built with -ffast-math begins with subnormals flushed */
    RUN(round_trip);
    RUN(masters);
    RUN(exponents);
    RUN(codes);
    RUN(stochastic);
    fp_set(fp);
    RUN(random_bits);
    RUN(split_is_fp32);
    RUN(tiers);
    RUN(ends);
    RUN(resume);
    RUN(moments_out);
    RUN(across);
    RUN(model_only);
    RUN(seeds);
    RUN(twins);
    RUN(near_default);
    RUN(small_steps);
    RUN(decays);
    RUN(rows);
    RUN(slices);
    RUN(moments_of_8_bits);
    RUN(spent_weights);
    RUN(refresh);
    RUN(refresh_anywhere);
    RUN(lion_steps);
    RUN(storage_by_tensor);
    RUN(refusals);
    return test_end();
}
