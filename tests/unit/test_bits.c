/* Law 7: the same step gives the same bits. Every operation that the law covers runs on fixed data
   for each instruction set, alignment and floating-point mode of the caller; all must give one
   digest, which stands here. Products have three: of plain C, of all FMA tiers, and of tiles.
   tests/host/bits.sh builds this file with each compiler and set of flags and runs it with 1 to 4
   threads. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sigsetjmp in fp.h */
#endif
#define AMP_KERNELS /* the core: its loads, stores and conversions */
#include "amp.h"
#include "../support/gemm_args.h"
#include "../support/prepare.h"
#include "../support/storage.h"
#include "../support/test.h"
#include "../support/fp.h"
#include "../support/random.h"

#define EXPECTED       0x0b9e079c9a990808ull
#define EXPECTED_SUMS  0xfb466c53f62dbc2eull
#define EXPECTED_DRAWN 0x33480c0387e151c8ull /* states that are rounded with random bits */
#define EXPECTED_C     0x412367cb029dd163ull
#define EXPECTED_FMA   0xfa277ae451ee0cf1ull
#define EXPECTED_PAIRS 0xfa2bd00ea6fcca84ull
#define EXPECTED_MMLA  0xf713238ef4e1ae75ull
#define EXPECTED_TILES 0xc6211db70f2b200dull

enum { MOST = 3 * 65536 + 77, ROOM = 4 * MOST + 64 };

static uint64_t digest;

/* FNV-1a over count numbers of a size, each from its low byte up on any machine. */
static void take(const void *data, size_t size, size_t count) {
    const unsigned char *p   = (const unsigned char *)data;
    const uint16_t       one = 1;
    unsigned char        low;
    size_t               i, k;
    memcpy(&low, &one, 1);
    for (i = 0; i < count; i++, p += size)
        for (k = 0; k < size; k++)
            digest = (digest ^ p[low ? k : size - 1 - k]) * 1099511628211ull;
}

static void take_scaler(const amp_scaler *s) {
    const uint32_t rules = ampi_rules(s) | s->disabled << 9;
    take(&s->scale, 4, 1);
    take(&s->growth_tracker, 4, 1);
    take(&s->found_inf, 4, 1);
    take(&s->checked, 4, 1);
    take(&s->hysteresis_tracker, 4, 1);
    take(&s->stuck, 4, 1);
    take(&s->next_scale, 8, 1);
    take(&s->good, 8, 2); /* and skipped */
    take(&s->growths, 8, 4); /* backoffs, the factors */
    take(&s->growth_interval, 4, 1);
    take(&s->hysteresis, 4, 1);
    take(&s->min_scale, 4, 3); /* max_scale, preset */
    take(&rules, 4, 1);
}

/* Memory for an array, off the usual alignment by a number of bytes. */
static unsigned char storage[8][ROOM];
static void *array(int which, int offset) { return storage[which] + offset; }

/* n floats with exponents from 2^low to 2^high, as bits, so that no arithmetic makes them. */
static void fill(void *dst, amp_dtype type, size_t n, int low, int high) {
    size_t i;
    for (i = 0; i < n; i++) {
        const uint32_t r        = random_bits();
        const uint32_t spread   = (uint32_t)(high - low + 1);
        const uint32_t exponent = (uint32_t)(127 + low) + random_bits() % spread;
        const uint32_t u        = (r & 0x807fffffu) | exponent << 23;
        if (type == AMP_F32) ampi_store_u32(dst, i, random_bits() % 50 ? u : 0u);
        else if (type == AMP_F16) ampi_store_u16(dst, i, ampi_f16_from_f32(u));
        else ampi_store_u16(dst, i, ampi_bf16_from_f32(u));
    }
}

static void casts(int offset) {
    static const amp_dtype types[] = {AMP_F32, AMP_F16, AMP_BF16};
    void                  *a = array(0, offset), *b = array(1, offset ^ 3);
    size_t                 i, n;
    int                    s, d;
    for (s = 0; s < 3; s++) {
        for (d = 0; d < 3; d++) {
            n = 5000 + (size_t)(s * 3 + d);
            for (i = 0; i < n; i++) { /* any bits: subnormals, infinities, NaNs */
                if (types[s] == AMP_F32) ampi_store_u32(a, i, random_bits());
                else ampi_store_u16(a, i, (uint16_t)random_bits());
            }
            amp_cast(b, types[d], a, types[s], n);
            take(b, amp_dtype_size(types[d]), n);
        }
    }
}

static void scalers(int offset) {
    amp_scaler_desc d;
    amp_scaler      s;
    void           *a = array(0, offset), *b = array(1, offset ^ 5);
    const size_t    n = 3001;
    size_t          i;
    int             round;
    memset(&d, 0, sizeof d);
    d.growth_factor   = 1.7;
    d.backoff_factor  = 0.3;
    d.growth_interval = 2;
    d.init_scale      = 1000.3f;
    amp_scaler_init(&s, &d);
    for (round = 0; round < 12; round++) {
        const amp_dtype type = round % 3 == 0 ? AMP_F32 : round % 3 == 1 ? AMP_F16 : AMP_BF16;
        fill(a, type, n, round % 2 ? -130 + 4 : -20, 12);
        if (round % 5 == 3) /* a NaN or an infinity */
            ampi_store(a, type, (size_t)round * 97, round % 2 ? 0x7fc12345u : 0xff800000u);
        amp_scaler_unscale(&s, (float *)b, a, type, n);
        take(b, 4, n);
        if (type != AMP_F16) amp_scaler_unscale(&s, a, a, type, n);
        take(a, amp_dtype_size(type), n);
        amp_scaler_unscale(&s, NULL, a, type, n);
        take_scaler(&s);
        amp_scaler_update(&s);
        take_scaler(&s);
    }
    for (i = 0; i < 300; i++) { /* down to the floor and up again, with subnormals in TORCH */
        if (i == 0) {
            d.preset = AMP_PRESET_TORCH;
            amp_scaler_init(&s, &d);
        }
        s.found_inf = i < 140;
        s.checked   = 1;
        amp_scaler_update(&s);
        take(&s.scale, 4, 1);
    }
}

typedef struct setting {
    amp_kind  kind;
    amp_dtype model, grad;
    int       low, high; /* exponents of the gradients */
    float     max_norm;
} setting;

static void optimizers(int offset) {
    static const size_t  sizes[]    = {0, 1, 7, 255, 256, 257, 1025, 65536, MOST};
    static const setting settings[] = {
        {AMP_KIND_ADAMW, AMP_F16, AMP_F16, -12, 4, 0.0f},
        {AMP_KIND_ADAMW, AMP_BF16, AMP_BF16, -40, 6, 0.5f},
        {AMP_KIND_SGD, AMP_F16, AMP_F32, -30, 10, 2.0f},
        {AMP_KIND_SGD, AMP_BF16, AMP_F16, -12, 4, 0.0f},
        {AMP_KIND_ADAMW, AMP_F32, AMP_F32, 60, 127, 1.0f}, /* squares overflow */
        {AMP_KIND_OWN, AMP_F16, AMP_BF16, -20, 6, 1.0f}};
    size_t k, t, i;
    int    step;
    for (k = 0; k < sizeof settings / sizeof settings[0]; k++) {
        const setting     *set = &settings[k];
        amp_optimizer      opt;
        amp_optimizer_desc d;
        amp_tensor         tensor;
        amp_status         status;
        amp_grad_stats          stats;
        unsigned char     *w = (unsigned char *)array(0, offset);
        unsigned char     *g = (unsigned char *)array(1, offset ^ 1);
        const size_t       gsize = amp_dtype_size(set->grad);
        size_t             total = 0;
        memset(&d, 0, sizeof d);
        d.dtype        = set->model;
        d.kind         = set->kind;
        d.max_norm     = set->max_norm;
        d.weight_decay = 0.01f;
        d.momentum     = k == 3 ? 0.0 : 0.9;
        d.nesterov     = k == 2;
        d.scaler.growth_interval = 3;
        d.scaler.init_scale      = k == 4 ? 1.0f : 1024.0f;
        amp_optimizer_init(&opt, &d);
        for (t = 0; t < sizeof sizes / sizeof sizes[0]; t++) {
            memset(&tensor, 0, sizeof tensor);
            tensor.n         = sizes[t] < MOST ? sizes[t] : MOST - total;
            tensor.weight    = (float *)(void *)(w + 4 * total);
            tensor.grad      = g + gsize * total;
            tensor.grad_type = set->grad;
            tensor.lr_scale  = t == 5 ? 0.3f : 0.0f;
            tensor.keep_fp32 = t == 3;
            total += tensor.n;
            amp_optimizer_add(&opt, &tensor);
        }
        fill(w, AMP_F32, total, -8, 0);
        CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
        for (step = 0; step < 5; step++) {
            fill(g, set->grad, total, set->low, set->high);
            if (step == 2) ampi_store(g, set->grad, total - 5, 0x7f800000u);
            if (set->kind == AMP_KIND_ADAMW) {
                CHECK_EQ_INT(amp_optimizer_step(&opt, 0.001f), AMP_OK);
            } else if (set->kind == AMP_KIND_SGD) {
                CHECK_EQ_INT(amp_optimizer_step(&opt, 0.01f), AMP_OK);
            } else {
                if (amp_optimizer_begin_step(&opt))
                    for (t = 0; t < sizeof sizes / sizeof sizes[0]; t++)
                        take(amp_optimizer_grad(&opt, (int)t), 4, sizes[t] < MOST ? sizes[t] : 1);
                CHECK_EQ_INT(amp_optimizer_end_step(&opt), AMP_OK);
            }
            amp_optimizer_status(&opt, &status);
            take(&status.norm, 8, 1);
            take(&status.clip_factor, 4, 1);
            take(&status.loss_scale, 4, 1);
            take(&status.skipped, 8, 1);
            for (i = 0; i < 9; i++) {
                amp_optimizer_stats(&opt, (int)i, &stats);
                take(&stats.nonfinite, 8, 4); /* to zeros */
                take(&stats.max_finite, 4, 1);
            }
        }
        take(w, 4, total);
        for (t = 0; t < 9; t++)
            take(amp_optimizer_model(&opt, (int)t), t == 3 ? 4 : amp_dtype_size(set->model),
                 sizes[t] < MOST ? sizes[t] : 1000);
        amp_optimizer_free(&opt);
    }
}

static unsigned char file[1 << 19];
static bool append(void *user, const void *data, size_t num_bytes) {
    size_t *used = (size_t *)user;
    if (num_bytes > sizeof file - *used) return false;
    memcpy(file + *used, data, num_bytes);
    *used += num_bytes;
    return true;
}

/* Masters and moments as a state file has them, the same on all machines, behind a header of 4 words and 52 numbers,
   or 53 with a seed. */
static void take_arrays(const amp_optimizer *opt) {
    size_t used = 0, tables;
    CHECK_EQ_INT(amp_optimizer_save(opt, append, &used), AMP_OK);
    tables = 8 * (size_t)(file[12] & 2 ? 52 : 51); /* with a seed: one number more */
    take(file + tables, 1, used - 8 - tables);
}

/* Storage formats. The first
   DRAWN settings are rounded with random bits. */
enum { DRAWN = 10, SETTINGS = 11 };
static void in_storage(int offset, size_t k, size_t end) {
    static const struct { amp_kind kind; storage_row row; amp_dtype type; } settings[SETTINGS] = {
        {AMP_KIND_ADAMW, SPLIT_BF16, AMP_BF16},       {AMP_KIND_ADAMW, SPLIT_8BIT, AMP_BF16},
        {AMP_KIND_SGD, SPLIT_BF16, AMP_BF16},         {AMP_KIND_SGD, SPLIT_8BIT, AMP_BF16},
        {AMP_KIND_ADAMW, FP32_BF16, AMP_F16},         {AMP_KIND_ADAMW, FP32_8BIT, AMP_F16},
        {AMP_KIND_ADAMW, SR, AMP_BF16},               {AMP_KIND_SGD, SR, AMP_BF16},
        {AMP_KIND_ADAMW, SR_BF16, AMP_BF16},          {AMP_KIND_ADAMW, SR_8BIT, AMP_BF16},
        {AMP_KIND_ADAMW, SPLIT, AMP_BF16}};
    enum { SOME = 20000 };
    int step;
    for (; k < end; k++) {
        amp_optimizer      opt;
        amp_optimizer_desc d;
        amp_tensor         tensor;
        memset(&d, 0, sizeof d);
        d.dtype        = settings[k].type;
        d.kind         = settings[k].kind;
        d.storage      = &storages[settings[k].row];
        d.momentum     = 0.9;
        d.weight_decay = 0.01f;
        d.seed         = 0x123456789abcdefu;
        amp_optimizer_init(&opt, &d);
        memset(&tensor, 0, sizeof tensor);
        tensor.n         = SOME + k; /* groups that are not whole */
        tensor.weight    = (float *)array(0, offset);
        tensor.grad      = array(1, offset ^ 1);
        tensor.grad_type = k % 2 ? AMP_F16 : AMP_F32;
        amp_optimizer_add(&opt, &tensor);
        fill(tensor.weight, AMP_F32, tensor.n, -8, 0);
        CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
        for (step = 0; step < 4; step++) {
            fill(tensor.grad, tensor.grad_type, tensor.n, k % 2 ? -10 : -120, 6);
            CHECK_EQ_INT(amp_optimizer_step(&opt, settings[k].kind == AMP_KIND_ADAMW ? 0.001f : 0.01f), AMP_OK);
        }
        take_arrays(&opt);
        take(amp_optimizer_model(&opt, 0), 2, tensor.n);
        amp_optimizer_free(&opt);
    }
}

static uint64_t digest_of(int offset) {
    digest       = 1469598103934665603ull;
    random_state = 1;
    casts(offset);
    scalers(offset);
    optimizers(offset);
    return digest;
}

/* What is added up before a step: the rows of a table. */
static void sums(int offset) {
    enum { ROWS = 1700, LENGTH = 52, MANY = 2500 };
    static const amp_dtype types[] = {AMP_F16, AMP_BF16, AMP_F32};
    static uint32_t        rows[MANY];
    unsigned char         *w = (unsigned char *)array(0, offset);
    unsigned char         *g = (unsigned char *)array(1, offset ^ 1);
    int                    k, step, i;
    for (k = 0; k < 3; k++) {
        const amp_dtype    type = types[k];
        uint32_t           count = 0;
        amp_rows           touched;
        amp_optimizer      opt;
        amp_optimizer_desc d;
        amp_tensor         t;
        amp_status         status;
        memset(&d, 0, sizeof d);
        memset(&t, 0, sizeof t);
        touched.row_length = LENGTH;
        touched.max_rows   = MANY;
        touched.rows       = rows;
        touched.num_rows   = &count;
        d.kind        = AMP_KIND_ADAMW;
        d.dtype       = k % 2 ? AMP_BF16 : AMP_F16;
        d.max_norm    = 0.5f;
        t.n           = (size_t)ROWS * LENGTH;
        t.weight      = (float *)(void *)w;
        t.grad        = g;
        t.grad_type   = type;
        t.rows        = &touched;
        fill(w, AMP_F32, t.n, -8, 0);
        CHECK_EQ_INT(amp_optimizer_init(&opt, &d), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
        CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
        for (step = 0; step < 4; step++) {
            count = (uint32_t)(step == 1 ? MANY : 1000);
            for (i = 0; i < MANY; i++) rows[i] = random_bits() % ROWS;
            fill(g, type, count * LENGTH, -14, 2);
            CHECK_EQ_INT(amp_optimizer_step(&opt, 0.01f), AMP_OK);
            CHECK_EQ_INT(amp_optimizer_status(&opt, &status), AMP_OK);
            take(&status.norm, 8, 1);
            take(&status.clip_factor, 4, 1);
        }
        take(amp_optimizer_master(&opt, 0), 4, t.n);
        take(amp_optimizer_model(&opt, 0), 2, t.n);
        amp_optimizer_free(&opt);
    }
}

static uint64_t digest_of_sums(int offset) {
    digest       = 1469598103934665603ull;
    random_state = 3;
    sums(offset);
    in_storage(offset, DRAWN, SETTINGS);
    return digest;
}

static uint64_t digest_of_drawn(int offset) {
    digest       = 1469598103934665603ull;
    random_state = 5;
    in_storage(offset, 0, DRAWN);
    return digest;
}

/* Products of all pairs of types, in blocks, thin and tiny; some large enough for several threads. */
static void products(int offset) {
    static const size_t shapes[][3] = {{61, 47, 601}, {1, 77, 300}, {77, 1, 300}, {5, 6, 7},
                                       {193, 170, 131}};
    static const amp_dtype types[] = {AMP_F32, AMP_F16, AMP_BF16};
    int                    s, pair, c;
    for (s = 0; s < 5; s++)
        for (pair = 0; pair < 9; pair++) {
            const size_t    m = shapes[s][0], n = shapes[s][1], k = shapes[s][2];
            const amp_dtype ta = types[pair / 3], tb = types[pair % 3];
            void           *x = array(0, offset), *y = array(1, offset ^ 1), *z = array(2, offset);
            fill(x, ta, m * k, -6, 3);
            fill(y, tb, k * n, -6, 3);
            for (c = 0; c < 3; c++) {
                const amp_dtype tc = types[c];
                fill(z, tc, m * n, -3, 3);
                fill(array(3, 1), tc, n, -3, 3);
                gemm_bias(NULL, pair % 2, s % 2, m, n, k, 0.7f, x, ta, 0, y, tb, 0, 0.3f, z, tc,
                              0, array(3, 1), c % 2);
                take(z, amp_dtype_size(tc), m * n);
            }
        }
}

static uint64_t digest_of_products(int offset) {
    digest       = 1469598103934665603ull;
    random_state = 2;
    products(offset);
    return digest;
}

TEST(products, "law 7: products have one digest in plain C, one in all FMA tiers, one in pairs, one "
               "in fours, one in tiles") {
    static const char *const tiers[] = {"c", "avx2", "avx512", "avx512_bf16", "neon", "amx", "neon_bf16"};
    const uint32_t           saved = fp_get();
    size_t                   t;
    int                      offset;
    skip_if_emulated();
    for (t = 0; t < 7; t++) {
        const uint64_t expected = t == 0 ? EXPECTED_C : t == 5 ? EXPECTED_TILES : t == 6 ? EXPECTED_MMLA
                                  : t == 3 ? EXPECTED_PAIRS : EXPECTED_FMA;
        if (amp_cpu_force_tier(tiers[t]) != AMP_OK) continue;
        for (offset = 0; offset < (test_state.quick ? 2 : 8); offset++) {
            uint64_t seen;
            fp_set(FP_IEEE | (offset % 2 ? FP_FTZ | FP_DAZ : FP_ROUNDING));
            seen = digest_of_products(offset);
            fp_set(saved);
            CHECK_EQ_U64(seen, expected);
        }
        CHECK(strcmp(amp_cpu_tier(), tiers[t]) == 0);
    }
    amp_cpu_force_tier(NULL);
}

TEST(tiers, "law 7: one digest for every instruction set, at every alignment") {
    static const char *const tiers[] = {"c", "avx2", "avx512", "avx512_bf16", "neon", "amx", "neon_bf16"};
    size_t                   t;
    int                      offset;
    for (t = 0; t < 7; t++) {
        if (amp_cpu_force_tier(tiers[t]) != AMP_OK) continue;
        printf("#    %s\n", tiers[t]);
        for (offset = 0; offset < (test_state.quick > 1 ? 1 : test_state.quick ? 2 : 8); offset++)
            CHECK_EQ_U64(digest_of(offset), EXPECTED);
        for (offset = 0; offset < (test_state.quick ? 2 : 8); offset++)
            CHECK_EQ_U64(digest_of_sums(offset), EXPECTED_SUMS);
        for (offset = 0; offset < (test_state.quick ? 2 : 8); offset++)
            CHECK_EQ_U64(digest_of_drawn(offset), EXPECTED_DRAWN);
    }
    amp_cpu_force_tier(NULL);
}

TEST(modes, "law 7: nor does it change with FTZ, DAZ and rounding modes of the caller") {
    const uint32_t saved = fp_get();
    uint64_t       seen, sums_seen, drawn_seen;
    int            mode;
    if (!FP_CONTROL) SKIP(FP_WHY);
    for (mode = 0; mode < 5; mode++) {
        const uint32_t flags = mode == 4 ? FP_FTZ | FP_DAZ : (uint32_t)FP_ROUNDING * (uint32_t)mode;
        fp_set(FP_IEEE | flags);
        seen = digest_of(mode);
        sums_seen = digest_of_sums(mode);
        drawn_seen = digest_of_drawn(mode);
        CHECK_EQ_U32(fp_get() & 0xffc0u, FP_IEEE | flags);
        fp_set(saved);
        CHECK_EQ_U64(seen, EXPECTED);
        CHECK_EQ_U64(sums_seen, EXPECTED_SUMS);
        CHECK_EQ_U64(drawn_seen, EXPECTED_DRAWN);
    }
}

int main(int argc, char **argv) {
    test_begin(argc, argv);
    RUN(tiers);
    RUN(products);
    RUN(modes);
    return test_end();
}
