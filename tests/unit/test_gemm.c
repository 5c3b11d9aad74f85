/* test_gemm.c - products: amp_gemm against sums in double, with a bound that follows from the rounding;
   bit by bit against the definition of each tier's; special values, settings of the caller, workspace,
   what is not read or overlaps, and amp_linear and its backward pass. */

#define _GNU_SOURCE /* sigsetjmp in fp.h, sigaltstack */
#define AMP_KERNELS /* the core: its conversions and operations, for the models */
#include "amp.h"
#include "../support/gemm_args.h"
#include "../support/huge.h"
#include "../support/posix.h"
#include "../support/test.h"
#include "../support/values.h"
#include "../support/fp.h"
#include "../support/gemm_bits.h"
#if defined(__linux__)
#include <signal.h>   /* sigaltstack */
#include <sys/wait.h> /* waitpid */
#include <unistd.h>   /* fork */
#endif

#include <math.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

static const uint32_t nan_bits[3]   = {0x7fc00000u, 0x7e00u, 0x7fc0u};
static const uint32_t inf_bits[3]   = {0x7f800000u, 0x7c00u, 0x7f80u};
static const uint32_t guard_bits[3] = {0x7fabcdefu, 0x7dabu, 0x7fabu}; /* signalling NaNs */

static int is_nonfinite(const void *base, amp_dtype type, size_t i) {
    return (load_bits(base, type, i) & inf_bits[type]) == inf_bits[type];
}

/* A matrix of rows x cols; row r starts at r * ld. The room between rows, and a row on either side
   of the matrix, holds guards. */
typedef struct matrix {
    amp_dtype type;
    size_t    rows, cols, ld, size; /* size: of the whole, in elements */
    void     *memory, *at;
} matrix;

static matrix make(amp_dtype type, size_t rows, size_t cols, size_t ld) {
    matrix m;
    size_t i, j;
    m.type   = type;
    m.rows   = rows;
    m.cols   = cols;
    m.ld     = ld ? ld : cols;
    m.size   = (rows + 2) * m.ld;
    m.memory = malloc(m.size * size_of(type) + 1);
    m.at     = (char *)m.memory + m.ld * size_of(type);
    for (i = 0; i < m.size; i++) store_bits(m.memory, type, i, guard_bits[type]);
    for (i = 0; i < rows; i++)
        for (j = 0; j < cols; j++) store(m.at, type, i * m.ld + j, random_value());
    return m;
}

static void fill(const matrix *m, uint32_t bits) {
    size_t i, j;
    for (i = 0; i < m->rows; i++)
        for (j = 0; j < m->cols; j++) store_bits(m->at, m->type, i * m->ld + j, bits);
}

/* Element (r, c) of the matrix or of its transpose. */
static double element(const matrix *m, int trans, size_t r, size_t c) {
    return (double)load(m->at, m->type, trans ? c * m->ld + r : r * m->ld + c);
}

static void check_guards(const matrix *m) {
    size_t i, wrong = 0;
    for (i = 0; i < m->size; i++) {
        const size_t row = i / m->ld, col = i % m->ld;
        if (row > 0 && row <= m->rows && col < m->cols) continue;
        wrong += load_bits(m->memory, m->type, i) != guard_bits[m->type];
    }
    CHECK_EQ_U64(wrong, 0);
}

typedef struct problem {
    int       trans_a, trans_b;
    size_t    m, n, k, extra_a, extra_b, extra_c; /* extra: added to the packed row; 0: ld 0 */
    amp_dtype a_type, b_type, c_type;
    float     alpha, beta;
    matrix    a, b, c;
} problem;

static void problem_make(problem *p) {
    const size_t a_cols = p->trans_a ? p->m : p->k, b_cols = p->trans_b ? p->k : p->n;
    p->a = make(p->a_type, p->trans_a ? p->k : p->m, a_cols, p->extra_a ? a_cols + p->extra_a : 0);
    p->b = make(p->b_type, p->trans_b ? p->n : p->k, b_cols, p->extra_b ? b_cols + p->extra_b : 0);
    p->c = make(p->c_type, p->m, p->n, p->extra_c ? p->n + p->extra_c : 0);
}

static amp_result problem_run(const problem *p) {
    return gemm_one(NULL, p->trans_a, p->trans_b, p->m, p->n, p->k, p->alpha, p->a.at, p->a_type,
                    p->extra_a ? p->a.ld : 0, p->b.at, p->b_type, p->extra_b ? p->b.ld : 0,
                    p->beta, p->c.at, p->c_type, p->extra_c ? p->c.ld : 0);
}

static void problem_end(const problem *p) {
    free(p->a.memory);
    free(p->b.memory);
    free(p->c.memory);
}

/* Run, and compare with double. With e = 2^-24: k products and k sums in any order are off by at
   most k e / (1 - k e) times the sum of |a||b|; alpha, beta and the last sum round three times
   more; storing rounds by half a unit of C's type, at least half its least subnormal. */
static void problem_check(problem *p) {
    static const double units[3]  = {5.9604644775390625e-8, 4.8828125e-4, 3.90625e-3};
    static const double floors[3] = {7.1e-46, 2.98023223876953125e-8, 4.6e-41};
    const double        e         = units[AMP_F32];
    double             *before    = (double *)malloc((p->m * p->n + 1) * sizeof(double));
    size_t              i, j, l, wrong = 0;
    if (p->beta < 0.0f || p->beta > 0.0f) {
        for (i = 0; i < p->m; i++)
            for (j = 0; j < p->n; j++) before[i * p->n + j] = element(&p->c, 0, i, j);
    } else { /* C is not read */
        for (i = 0; i < p->m * p->n; i++) before[i] = 0.0;
        fill(&p->c, nan_bits[p->c_type]);
    }
    CHECK_EQ_INT(problem_run(p), AMP_OK);
    for (i = 0; i < p->m; i++)
        for (j = 0; j < p->n; j++) {
            double       sum = 0.0, size = 0.0, wanted, bound;
            const double alpha = (double)p->alpha, beta = (double)p->beta;
            for (l = 0; l < p->k; l++) {
                const double ab =
                    element(&p->a, p->trans_a, i, l) * element(&p->b, p->trans_b, l, j);
                sum += ab;
                size += fabs(ab);
            }
            wanted = alpha * sum + beta * before[i * p->n + j];
            bound  = ((double)p->k + 3.0) * e * 1.001 * fabs(alpha) * size;
            bound += 3.0 * e * fabs(beta * before[i * p->n + j]);
            bound += units[p->c_type] * (fabs(wanted) + bound) + floors[p->c_type];
            if (is_nonfinite(p->c.at, p->c_type, i * p->c.ld + j)) wrong++;
            else wrong += !(fabs(element(&p->c, 0, i, j) - wanted) <= bound);
        }
    if (wrong) {
        char what[128];
        snprintf(what, sizeof what, "%lu wrong in %lux%lux%lu, trans %d%d, types %d %d %d",
                 (unsigned long)wrong, (unsigned long)p->m, (unsigned long)p->n,
                 (unsigned long)p->k, p->trans_a, p->trans_b, (int)p->a_type, (int)p->b_type,
                 (int)p->c_type);
        test_fail(__FILE__, __LINE__, "C = alpha op(A) op(B) + beta C", what);
    }
    check_guards(&p->a);
    check_guards(&p->b);
    check_guards(&p->c);
    free(before);
}

static const float alphas[] = {1.0f, -0.5f, 0.0f};
static const float betas[]  = {0.0f, 1.0f, 0.25f};

/* Everything but the sizes, from a running number. */
static problem variant(uint32_t number) {
    problem p;
    memset(&p, 0, sizeof p);
    p.trans_a = number % 2;
    p.trans_b = number / 2 % 2;
    p.a_type  = (amp_dtype)(number / 4 % 3);
    p.b_type  = (amp_dtype)(number / 12 % 3);
    p.c_type  = (amp_dtype)(number / 36 % 3);
    p.alpha   = alphas[random_bits() % 16 ? random_bits() % 2 : 2];
    p.beta    = betas[random_bits() % 3];
    p.extra_a = random_bits() % 3;
    p.extra_b = random_bits() % 3;
    p.extra_c = random_bits() % 3;
    return p;
}

enum { NUM_VARIANTS = 108 }; /* transposes and types */

TEST(small, "manual: C = alpha op(A) op(B) + beta C for all sizes 1..9, transposes and types, with "
            "and without gaps between rows; nothing outside C is written") {
    uint32_t number, last = test_state.quick ? 6 : 9, m, n, k, count = 0;
    random_state = 1;
    for (m = 1; m <= last; m++)
        for (n = 1; n <= last; n++)
            for (k = 1; k <= last; k++)
                for (number = 0; number < NUM_VARIANTS; number++) {
                    problem p;
                    if (test_state.quick && ++count % 5) continue;
                    p   = variant(number);
                    p.m = m;
                    p.n = n;
                    p.k = k;
                    problem_make(&p);
                    problem_check(&p);
                    problem_end(&p);
                }
}

TEST(large, "manual: the same around the limits of tiles and blocks") {
    static const size_t sizes[] = {1, 5, 63, 64, 65, 127, 128, 129, 200};
    uint32_t            number, rounds = test_state.quick ? 1 : 2;
    random_state = 2;
    for (number = 0; number < rounds * NUM_VARIANTS; number++) {
        problem p = variant(number % NUM_VARIANTS);
        if (test_state.quick && number % (test_state.quick > 1 ? 13 : 4)) continue;
        p.m = sizes[random_bits() % COUNT_OF(sizes)];
        p.n = sizes[random_bits() % COUNT_OF(sizes)];
        p.k = sizes[random_bits() % COUNT_OF(sizes)];
        problem_make(&p);
        problem_check(&p);
        problem_end(&p);
    }
}

TEST(alpha_beta, "manual: every alpha in {1, -0.5, 0} with every beta in {0, 1, 0.25}, every type "
                 "of C") {
    uint32_t x, y, c;
    random_state = 3;
    for (x = 0; x < 3; x++)
        for (y = 0; y < 3; y++)
            for (c = 0; c < 3; c++) {
                problem p = variant(x + 5 * y);
                p.alpha   = alphas[x];
                p.beta    = betas[y];
                p.c_type  = (amp_dtype)c;
                p.m       = 66;
                p.n       = 10;
                p.k       = 130;
                problem_make(&p);
                problem_check(&p);
                problem_end(&p);
            }
}

TEST(not_read, "manual: C is not read if beta is 0; A and B are not read if k is 0") {
    uint32_t number;
    random_state = 4;
    for (number = 0; number < NUM_VARIANTS; number++) {
        problem p = variant(number);
        size_t  i, j;
        int     zero;
        p.m = 9;
        p.n = 17;
        p.k = 5;
        for (zero = 0; zero < 2; zero++) {
            p.alpha = zero ? -0.0f : 0.0f;
            p.beta  = number % 2 ? 1.0f : zero ? -0.0f : 0.0f;
            problem_make(&p);
            fill(&p.a, zero ? inf_bits[p.a_type] : nan_bits[p.a_type]);
            fill(&p.b, nan_bits[p.b_type]);
            fill(&p.c, number % 2 ? 0u : nan_bits[p.c_type]);
            for (i = 0; number % 2 && i < p.m; i++)
                store(p.c.at, p.c_type, i * p.c.ld + 3, 0.75f);
            CHECK_EQ_INT(problem_run(&p), AMP_OK);
            for (i = 0; i < p.m; i++)
                for (j = 0; j < p.n; j++)
                    CHECK_EQ_F32(fabsf(load(p.c.at, p.c_type, i * p.c.ld + j)),
                                 number % 2 && j == 3 ? 0.75f : 0.0f);
            check_guards(&p.c);
            problem_end(&p);
        }
    }
}

TEST(empty, "law 11: k = 0 leaves beta C; m or n = 0 writes nothing; then pointers may be NULL") {
    uint32_t c;
    random_state = 5;
    for (c = 0; c < 3; c++) {
        problem p = variant(36 * c);
        size_t  i;
        p.alpha = 1.0f;
        p.beta  = 0.25f;
        p.m     = 5;
        p.n     = 7;
        problem_make(&p);
        fill(&p.c, 0);
        for (i = 0; i < 5; i++) store(p.c.at, p.c_type, i * p.c.ld, 8.0f);
        CHECK_EQ_INT(gemm_one(NULL, 0, 0, 5, 7, 0, 1.0f, NULL, AMP_F16, 0, NULL, AMP_F16, 0, 0.25f,
                              p.c.at, p.c_type, p.c.ld),
                     AMP_OK);
        for (i = 0; i < 35; i++)
            CHECK_EQ_F32(load(p.c.at, p.c_type, i / 7 * p.c.ld + i % 7), i % 7 ? 0.0f : 2.0f);
        fill(&p.c, nan_bits[p.c_type]);
        CHECK_EQ_INT(gemm_one(NULL, 1, 1, 5, 7, 0, 1.0f, NULL, AMP_F16, 0, NULL, AMP_F16, 0, 0.0f,
                              p.c.at, p.c_type, p.c.ld),
                     AMP_OK);
        for (i = 0; i < 35; i++)
            CHECK_EQ_F32(load(p.c.at, p.c_type, i / 7 * p.c.ld + i % 7), 0.0f);
        CHECK_EQ_INT(gemm_one(NULL, 0, 0, 0, 7, 3, 1.0f, NULL, AMP_F32, 0, NULL, AMP_F32, 0, 0.0f,
                              NULL, AMP_F32, 0),
                     AMP_ERROR_INVALID_ARGUMENT); /* B is 3 x 7, and NULL */
        CHECK_EQ_INT(gemm_one(NULL, 0, 0, 0, 7, 3, 1.0f, NULL, AMP_F32, 0, p.c.at, AMP_F16, 0, 0.0f,
                              NULL, AMP_F32, 0),
                     AMP_OK);
        CHECK_EQ_INT(gemm_one(NULL, 0, 0, 7, 0, 3, 1.0f, p.c.at, AMP_F16, 0, NULL, AMP_F32, 0, 0.0f,
                              NULL, AMP_F32, 0),
                     AMP_OK);
        CHECK_EQ_INT(gemm_one(NULL, 0, 0, 0, 0, 0, 1.0f, NULL, AMP_F32, 0, NULL, AMP_F32, 0, 0.0f,
                              NULL, AMP_F32, 0),
                     AMP_OK);
        check_guards(&p.c);
        problem_end(&p);
    }
}

TEST(subnormal_alpha, "law 11: an alpha that is subnormal is no 0, though the host flushes") {
    const uint32_t alpha_bits = 0x00100000u, want_bits = 0x03000000u; /* 2^-129, 2^-121 */
    const float    a = 16.0f, b = 16.0f;
    float          c = 5.0f;
    amp_gemm_args  g;
    amp_result     result;
    if (!FP_CONTROL) SKIP(FP_WHY);
    memset(&g, 0, sizeof g);
    memcpy(&g.alpha, &alpha_bits, sizeof g.alpha);
    g.a = &a, g.b = &b, g.c = &c;
    g.m = g.n = g.k = 1;
    fp_set(FP_IEEE | FP_FTZ | FP_DAZ);
    result = amp_gemm(NULL, &g);
    fp_set(FP_IEEE);
    CHECK_EQ_INT(result, AMP_OK);
    CHECK_EQ_INT(memcmp(&c, &want_bits, sizeof c), 0);
}

/* Kind of a result: finite, inf, -inf or NaN. */
static char class_of(const matrix *m, size_t r, size_t c) {
    const uint32_t u = load_bits(m->at, m->type, r * m->ld + c), inf = inf_bits[m->type];
    const uint32_t sign = m->type == AMP_F32 ? 0x80000000u : 0x8000u;
    if ((u & inf) != inf) return 'f';
    if ((u & ~sign) != inf) return 'n';
    return u & sign ? '-' : '+';
}

TEST(infinities, "manual: infinities and NaN in A and B reach exactly the elements that they "
                 "should") {
    uint32_t number;
    random_state = 6;
    for (number = 0; number < NUM_VARIANTS; number++) {
        problem p = variant(number);
        size_t  i, j;
        p.alpha = 1.0f;
        p.beta  = 0.0f;
        p.m = p.n = p.k = 6;
        problem_make(&p);
        for (i = 0; i < 6; i++)
            for (j = 0; j < 6; j++) {
                store(p.a.at, p.a_type, i * p.a.ld + j, 1.0f);
                store(p.b.at, p.b_type, i * p.b.ld + j, 1.0f);
            }
        /* op(A): row 1 has inf, row 2 inf and -inf, row 3 NaN; op(B): column 4 has 0 and -1 */
#define AT(x, r, c) (p.trans_##x ? (c) * p.x.ld + (r) : (r) * p.x.ld + (c))
        store_bits(p.a.at, p.a_type, AT(a, 1, 2), inf_bits[p.a_type]);
        store_bits(p.a.at, p.a_type, AT(a, 2, 0), inf_bits[p.a_type]);
        store_bits(p.a.at, p.a_type, AT(a, 2, 1),
                   inf_bits[p.a_type] | (p.a_type == AMP_F32 ? 0x80000000u : 0x8000u));
        store_bits(p.a.at, p.a_type, AT(a, 3, 5), nan_bits[p.a_type]);
        store(p.b.at, p.b_type, AT(b, 2, 4), 0.0f);
        store(p.b.at, p.b_type, AT(b, 2, 3), -1.0f);
#undef AT
        CHECK_EQ_INT(problem_run(&p), AMP_OK);
        for (i = 0; i < 6; i++)
            for (j = 0; j < 6; j++) {
                char wanted = 'f';
                if (i == 1) wanted = j == 4 ? 'n' : j == 3 ? '-' : '+';
                if (i == 2 || i == 3) wanted = 'n';
                CHECK_EQ_INT(class_of(&p.c, i, j), wanted);
            }
        check_guards(&p.c);
        problem_end(&p);
    }
}

TEST(nan_factors, "manual: C = alpha op(A) op(B) + beta C: alpha or beta NaN gives NaN, not 0") {
    volatile uint32_t bits = 0x7fc00000u;
    const uint32_t    u    = bits;
    float             nan;
    int               which;
    memcpy(&nan, &u, 4);
    random_state = 7;
    for (which = 0; which < 2; which++) {
        problem p = variant(0);
        p.m = p.n = p.k = 3;
        p.alpha   = which ? 1.0f : nan;
        p.beta    = which ? nan : 1.0f;
        problem_make(&p);
        CHECK_EQ_INT(problem_run(&p), AMP_OK);
        CHECK_EQ_INT(class_of(&p.c, 0, 0), 'n');
        problem_end(&p);
    }
}

TEST(overflow, "manual: a sum beyond the type of C is stored as infinity, 65504 is not") {
    float   a[2] = {65504.0f, 32.0f}, b[2] = {1.0f, 0.0f};
    amp_f16 c    = {0};
    gemm_one(NULL, 0, 0, 1, 1, 2, 1.0f, a, AMP_F32, 0, b, AMP_F32, 0, 0.0f, &c, AMP_F16, 0);
    CHECK_EQ_U32(c.bits, 0x7bff);
    b[1] = 1.0f;
    gemm_one(NULL, 0, 0, 1, 1, 2, 1.0f, a, AMP_F32, 0, b, AMP_F32, 0, 0.0f, &c, AMP_F16, 0);
    CHECK_EQ_U32(c.bits, 0x7c00);
    gemm_one(NULL, 0, 0, 1, 1, 2, -1.0f, a, AMP_F32, 0, b, AMP_F32, 0, 0.0f, &c, AMP_F16, 0);
    CHECK_EQ_U32(c.bits, 0xfc00);
}

TEST(bad_arguments, "law 9: bad arguments give distinct results, and C stays as it was") {
    float          a[64], b[64], c[64], kept[64];
    const amp_dtype bad = (amp_dtype)3;
    amp_backend    backend;
    size_t         i;
    for (i = 0; i < 64; i++) a[i] = b[i] = c[i] = kept[i] = (float)(int)i;
    CHECK_EQ_INT(amp_cpu_backend(&backend), AMP_OK);
#define GEMM(back, ta, tb, m, n, k, a, at, lda, b, bt, ldb, c, ct, ldc) \
    gemm_one(back, ta, tb, m, n, k, 1.0f, a, at, lda, b, bt, ldb, 0.0f, c, ct, ldc)
#define BAD(wanted, ...) CHECK_EQ_INT(GEMM(__VA_ARGS__), wanted)
    BAD(AMP_ERROR_INVALID_ENUM, NULL, 0, 0, 2, 3, 4, a, bad, 0, b, AMP_F32, 0, c, AMP_F32, 0);
    BAD(AMP_ERROR_INVALID_ENUM, NULL, 0, 0, 2, 3, 4, a, AMP_F32, 0, b, bad, 0, c, AMP_F32, 0);
    BAD(AMP_ERROR_INVALID_ENUM, NULL, 0, 0, 2, 3, 4, a, AMP_F32, 0, b, AMP_F32, 0, c, bad, 0);
    BAD(AMP_ERROR_INVALID_ENUM, NULL, 0, 0, 2, 3, 4, a, (amp_dtype)-1, 0, b, AMP_F32, 0, c,
        AMP_F32, 0);
    BAD(AMP_ERROR_INVALID_ARGUMENT, NULL, 0, 0, 2, 3, 4, NULL, AMP_F32, 0, b, AMP_F32, 0, c,
        AMP_F32, 0);
    BAD(AMP_ERROR_INVALID_ARGUMENT, NULL, 0, 0, 2, 3, 4, a, AMP_F32, 0, NULL, AMP_F32, 0, c,
        AMP_F32, 0);
    BAD(AMP_ERROR_INVALID_ARGUMENT, NULL, 0, 0, 2, 3, 4, a, AMP_F32, 0, b, AMP_F32, 0, NULL,
        AMP_F32, 0);
    /* rows overlap: A is 2 x 4 or 4 x 2, B is 4 x 3 or 3 x 4, C is 2 x 3 */
    BAD(AMP_ERROR_INVALID_ARGUMENT, NULL, 0, 0, 2, 3, 4, a, AMP_F32, 3, b, AMP_F32, 0, c, AMP_F32,
        0);
    BAD(AMP_ERROR_INVALID_ARGUMENT, NULL, 1, 0, 2, 3, 4, a, AMP_F32, 1, b, AMP_F32, 0, c, AMP_F32,
        0);
    BAD(AMP_ERROR_INVALID_ARGUMENT, NULL, 0, 0, 2, 3, 4, a, AMP_F32, 0, b, AMP_F32, 2, c, AMP_F32,
        0);
    BAD(AMP_ERROR_INVALID_ARGUMENT, NULL, 0, 1, 2, 3, 4, a, AMP_F32, 0, b, AMP_F32, 3, c, AMP_F32,
        0);
    BAD(AMP_ERROR_INVALID_ARGUMENT, NULL, 0, 0, 2, 3, 4, a, AMP_F32, 0, b, AMP_F32, 0, c, AMP_F32,
        2);
    BAD(AMP_ERROR_TOO_LARGE, NULL, 0, 0, 2, 3, 4, a, AMP_F32, SIZE_MAX / 2, b, AMP_F32, 0, c,
        AMP_F32, 0);
    BAD(AMP_ERROR_TOO_LARGE, NULL, 0, 0, SIZE_MAX / 8, 3, 4, a, AMP_F32, 0, b, AMP_F32, 0, c,
        AMP_F32, 0);
    BAD(AMP_ERROR_TOO_LARGE, NULL, 0, 0, 2, SIZE_MAX / 4, 4, a, AMP_F32, 0, b, AMP_F32, 0, c,
        AMP_F32, 0);
    BAD(AMP_ERROR_TOO_LARGE, NULL, 0, 0, 2, 3, SIZE_MAX, a, AMP_F32, 0, b, AMP_F32, 0, c, AMP_F32,
        0);
    CHECK_MEM(c, kept, sizeof c);
#undef BAD
}

/* A product of no columns, or of no rows, in which one thing has a rows that lie b apart, or a matrices that do. */
static amp_result sides(int what, size_t a, size_t b) {
    amp_gemm_args g;
    float         x[1] = {0};
    memset(&g, 0, sizeof g);
    g.a = g.b = x, g.c = x;
    g.k = g.count = 1;
    if (what == 0) g.m = a, g.lda = b;
    if (what == 1) g.k = a, g.lda = b, g.trans_a = 1;
    if (what == 2) g.k = a, g.ldb = b, g.lda = 0;
    if (what == 3) g.n = a, g.ldb = b, g.trans_b = 1;
    if (what == 4) g.m = a, g.ldc = b;
    if (what == 5) g.count = a, g.stride_a = b;
    if (what == 6) g.count = a, g.stride_b = b;
    if (what == 7) g.count = a, g.stride_c = b;
    return amp_gemm(NULL, &g);
}

TEST(large_sides, "law 11: matrices of up to SIZE_MAX / 8 elements are ordinary, larger ones are AMP_ERROR_TOO_LARGE, also "
                  "where each side has 32 bits") {
    const int half = (int)sizeof(size_t) * 4; /* bits of one */
    int       what, i, k;
    for (what = 0; what < 8; what++)
        for (i = half - 3; i <= half + 3; i++)
            for (k = half - 6; k <= half + 3; k++) {
                const size_t     a = (size_t)1 << i, b = (size_t)1 << k;
                const amp_result wanted = i + k >= 2 * half - 3 ? AMP_ERROR_TOO_LARGE : AMP_OK;
                CHECK_EQ_INT(sides(what, a, b), wanted);
                if (i + k == 2 * half - 3) CHECK_EQ_INT(sides(what, a, b - 1), AMP_OK);
                if (i + k == 2 * half - 3) CHECK_EQ_INT(sides(what, a - 1, b), AMP_OK);
                if (i + k == 2 * half - 4) CHECK_EQ_INT(sides(what, 2 * a - 1, 2 * b - 1), AMP_ERROR_TOO_LARGE);
            }
}

#if HAVE_HUGE
enum { FAR_M = 66, FAR_N = 70, FAR_K = 72, FAR_COUNT = 2 };

/* Rows of a matrix that are far apart, in place of n elements that lie together. */
static void spread(char *to, size_t ld, const char *from, size_t rows, size_t cols, size_t size) {
    size_t i;
    for (i = 0; i < rows; i++) memcpy(to + i * ld * size, from + i * cols * size, cols * size);
}

/* Matrices of a batch so far apart, or of one product rows; by one thread, or as a team of three shares it: columns of C,
   or (2) rows. */
static void one_far(int trans, amp_dtype type, amp_dtype c_type, size_t apart, int shared, char *far[3]) {
    static unsigned char near[3][FAR_COUNT * FAR_N * FAR_K * 4], far_c[sizeof near[2]];
    const size_t         size = size_of(type), c_size = size_of(c_type), rows = (size_t)1 << 27;
    amp_gemm_args        g;
    size_t               ar, br, i, k;
    memset(&g, 0, sizeof g);
    g.m = shared > 1 ? FAR_N : FAR_M, g.n = shared > 1 ? FAR_M : FAR_N, g.k = FAR_K;
    g.trans_a = trans & 1, g.trans_b = trans >> 1;
    g.a_type = g.b_type = type, g.c_type = c_type;
    g.a = near[0], g.b = near[1], g.c = near[2];
    g.alpha = 1.0f;
    g.beta  = shared ? 0.0f : 1.0f;
    g.count = apart ? FAR_COUNT : 1;
    ar = g.trans_a ? g.k : g.m, br = g.trans_b ? g.n : g.k;
    g.stride_a = g.m * g.k, g.stride_b = g.n * g.k, g.stride_c = g.m * g.n;
    for (k = 0; k < FAR_COUNT * FAR_N * FAR_K; k++)
        for (i = 0; i < 3; i++) store(near[i], i < 2 ? type : c_type, k, random_value());
    g.lda = g.m * g.k / ar, g.ldb = g.n * g.k / br, g.ldc = g.n;
    for (i = 0; i < g.count; i++) {
        spread(far[0] + i * apart * size, apart ? g.lda : rows, (char *)near[0] + i * g.stride_a * size, ar, g.lda, size);
        spread(far[1] + i * apart * size, apart ? g.ldb : rows, (char *)near[1] + i * g.stride_b * size, br, g.ldb, size);
        spread(far[2] + i * apart * c_size, apart ? g.ldc : rows, (char *)near[2] + i * g.stride_c * c_size, g.m, g.n,
               c_size);
    }
    CHECK_EQ_INT(amp_gemm(NULL, &g), AMP_OK);
    g.a = far[0], g.b = far[1], g.c = far[2];
    if (apart) g.stride_a = g.stride_b = g.stride_c = apart;
    else g.lda = g.ldb = g.ldc = rows;
    if (shared) CHECK(white_gemm_shares(&g, 3));
    else CHECK_EQ_INT(amp_gemm(NULL, &g), AMP_OK);
    for (i = 0; i < g.count; i++)
        for (k = 0; k < g.m; k++)
            memcpy(far_c + (i * g.m + k) * g.n * c_size, far[2] + (i * apart + k * g.ldc) * c_size, g.n * c_size);
    CHECK_MEM(far_c, near[2], g.count * g.m * g.n * c_size);
}

TEST(far_apart, "law 11: elements more than 2^32 behind the first, in rows or in matrices that are far apart, are those of a "
                "product whose rows lie together") {
    const size_t   bytes = (FAR_K * ((size_t)1 << 27)) * 4;
    char          *far[3];
    int            i, trans, shared;
    amp_dtype      type;
    for (i = 0; i < 3; i++) far[i] = (char *)huge_zeros(bytes);
    for (trans = 0; trans < 4 && far[0] && far[1] && far[2]; trans++)
        for (type = AMP_F32; type <= AMP_BF16; type = (amp_dtype)((int)type + 1)) {
            for (shared = 0; shared < 3; shared++) {
                one_far(trans, type, AMP_F32, 0, shared, far);
                one_far(trans, type, type, ((size_t)1 << 32) + 7, shared, far);
            }
        }
    trans = far[0] && far[1] && far[2];
    for (i = 0; i < 3; i++) huge_free(far[i], bytes);
    if (!trans) SKIP(HUGE_WHY);
}
#else
TEST(far_apart, "law 11: elements more than 2^32 behind the first") { SKIP(HUGE_WHY); }
#endif

static int        fake_calls;
static amp_result fake_gemm(const amp_backend *self, const amp_gemm_args *args) {
    fake_calls++;
    CHECK(self->context == (void *)&fake_calls);
    CHECK_EQ_U64(args->m * 100 + args->n * 10 + args->k, 234);
    CHECK_EQ_U64(args->lda * 100 + args->ldb * 10 + args->ldc, 435); /* 0 was replaced */
    return AMP_ERROR_OUT_OF_MEMORY;
}

TEST(other_backend, "contract: a backend gets checked arguments, and its error surfaces") {
    float          x[64];
    amp_backend    backend;
    ampi_functions functions;
    memset(x, 0, sizeof x);
    CHECK_EQ_INT(amp_cpu_backend(&backend), AMP_OK);
    CHECK_EQ_INT(GEMM(&backend, 0, 0, 2, 3, 4, x, AMP_F32, 0, x, AMP_F32, 0, x + 30, AMP_F32, 5),
                 AMP_OK);
    functions         = *backend.functions;
    functions.gemm_fn = fake_gemm;
    backend.functions = &functions;
    backend.context   = &fake_calls;
    CHECK_EQ_INT(GEMM(&backend, 0, 0, 2, 3, 4, x, AMP_F32, 0, x, AMP_F32, 0, x + 30, AMP_F32, 5),
                 AMP_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_INT(GEMM(&backend, 0, 0, 2, 3, 4, x, AMP_F32, 1, x, AMP_F32, 0, x + 30, AMP_F32, 5),
                 AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(GEMM(&backend, 0, 0, 0, 3, 4, x, AMP_F32, 0, x, AMP_F32, 0, x, AMP_F32, 0),
                 AMP_OK);
    CHECK_EQ_INT(fake_calls, 1);
}

TEST(exact, "manual: sums that fp32 holds exactly are exact, in any order and with any flags") {
    uint32_t number;
    random_state = 8;
    for (number = 0; number < NUM_VARIANTS; number++) {
        problem p = variant(number);
        size_t  i, j, l;
        p.alpha = 1.0f;
        p.beta  = number % 2 ? 1.0f : 0.0f;
        p.m     = 3 + number % 70;
        p.n     = 70 - number % 67;
        p.k     = 1 + number % 131;
        p.c_type = AMP_F32;
        problem_make(&p);
        for (i = 0; i < p.a.rows * p.a.cols; i++)
            store(p.a.at, p.a_type, i / p.a.cols * p.a.ld + i % p.a.cols,
                  (float)((int)random_below(15) - 7));
        for (i = 0; i < p.b.rows * p.b.cols; i++)
            store(p.b.at, p.b_type, i / p.b.cols * p.b.ld + i % p.b.cols,
                  (float)((int)random_below(15) - 7));
        for (i = 0; i < p.m * p.n; i++) store(p.c.at, AMP_F32, i / p.n * p.c.ld + i % p.n, 5.0f);
        CHECK_EQ_INT(problem_run(&p), AMP_OK);
        for (i = 0; i < p.m; i++)
            for (j = 0; j < p.n; j++) {
                double sum = number % 2 ? 5.0 : 0.0;
                for (l = 0; l < p.k; l++)
                    sum += element(&p.a, p.trans_a, i, l) * element(&p.b, p.trans_b, l, j);
                CHECK(fabs(element(&p.c, 0, i, j) - sum) < 0.5);
                CHECK_EQ_F64(element(&p.c, 0, i, j) + 0.0, sum + 0.0);
            }
        problem_end(&p);
    }
}

/* Bit by bit, in each tier. What a tier rounds, and how many random products it gets. */
static void bits_in_tier(const char *tier, int rule) {
    const int count = test_state.quick > 1 ? 25 : test_state.quick ? 100 : 1200;
    int       i;
    if (amp_cpu_force_tier(tier) != AMP_OK) SKIP("not on this processor");
    if (test_state.quick > 1) bits_most = 60;
    for (i = 0; i < count; i++) {
        const int big = i % 40 == 7 ? 1 : i == 20 ? test_state.quick > 1 ? 3 : 2 : 0;
        bits_one(rule, big, rule >= BITS_TILES ? i % 3 : 0, BITS_MEMORIES, 50000);
        if (i % 10 == 3 && test_state.quick < 2)
            bits_one(rule, BITS_STEPS + i / 10 % 3, rule >= BITS_TILES ? 1 + i / 30 % 2 : 0,
                     BITS_MEMORIES, 50000);
        if (i % 4 == 1) bits_one(rule, BITS_THIN, i / 4 % 2, 1, 50000);
    }
    CHECK_EQ_INT(strcmp(amp_cpu_tier(), tier), 0);
    amp_cpu_force_tier(NULL);
}

TEST(bits_c, "law 7: in plain C products are rounded, then added, in the order of k") {
    bits_in_tier("c", BITS_C);
}
TEST(bits_avx2, "law 7: in AVX2 products are fmaf in the order of k") {
    bits_in_tier("avx2", BITS_FMA);
}
TEST(bits_avx512, "law 7: in AVX-512 products are fmaf in the order of k") {
    bits_in_tier("avx512", BITS_FMA);
}
TEST(bits_neon, "law 7: in NEON products are fmaf in the order of k") {
    bits_in_tier("neon", BITS_FMA);
}
TEST(bits_mmla, "law 7: in BFMMLA products of bf16 equal the model of it, others are fmaf") {
    bits_in_tier("neon_bf16", BITS_MMLA);
}
TEST(bits_pairs, "law 7: in AVX512_BF16 products of bf16 equal the model of pairs, others are fmaf") {
    bits_in_tier("avx512_bf16", BITS_PAIRS);
}
TEST(bits_amx, "law 7: in AMX products of halves equal the model of the tiles, others are fmaf") {
    bits_in_tier("amx", BITS_TILES);
}

TEST(activation, "law 9: an activation that there is not is refused, and C stays as it was") {
    float         a[1] = {-3}, c[1] = {7};
    amp_gemm_args g;
    memset(&g, 0, sizeof g);
    g.m = g.n = g.k = 1, g.a = g.b = a, g.c = c;
    g.alpha      = -1.0f;
    g.activation = (amp_activation)(AMP_ACTIVATION_RELU + 1);
    CHECK_EQ_INT(amp_gemm(NULL, &g), AMP_ERROR_INVALID_ENUM);
    g.activation = (amp_activation)-1;
    CHECK_EQ_INT(amp_gemm(NULL, &g), AMP_ERROR_INVALID_ENUM);
    CHECK_EQ_F32(c[0], 7.0f);
    g.activation = AMP_ACTIVATION_NONE;
    CHECK_EQ_INT(amp_gemm(NULL, &g), AMP_OK);
    CHECK_EQ_F32(c[0], -9.0f);
    g.activation = AMP_ACTIVATION_RELU;
    CHECK_EQ_INT(amp_gemm(NULL, &g), AMP_OK);
    CHECK_EQ_F32(c[0], 0.0f);
}

TEST(rounded, "manual: compute rounds fp32 operands to 16 bits: in every tier the bits of amp_cast and "
              "then the product, hostile values included; the other 16-bit type is refused by name") {
    static const char *const tiers[] = {"c", "avx2", "avx512", "avx512_bf16", "amx", "neon", "neon_bf16"};
    const int                count   = test_state.quick > 1 ? 50 : test_state.quick ? 1000 : 25000;
    static uint32_t          x[64]; /* of any type */
    static float             y[64], z[64];
    amp_gemm_args            g;
    size_t                   t;
    int                      i;
    for (t = 0; t < COUNT_OF(tiers); t++) {
        if (amp_cpu_force_tier(tiers[t]) != AMP_OK) continue;
        random_state = 12;
        for (i = 0; i < count; i++)
            bits_rounded(i % 3 ? AMP_BF16 : AMP_F16,
                         i % 100 == 7 ? 1 : i % 50 == 9 ? BITS_LINES : 0, i % 2 ? 2 : 0);
    }
    amp_cpu_force_tier(NULL);
    memset(&g, 0, sizeof g);
    g.m = g.n = g.k = 8;
    g.a = x, g.b = y, g.c = z;
    for (i = 0; i < 16; i++) {
        const amp_dtype compute = (amp_dtype)(i / 4), a = (amp_dtype)(i % 4);
        const int       mixed = compute != AMP_F32 && a != AMP_F32 && a != compute;
        z[0]      = 77.0f;
        g.a_type  = a;
        g.compute = compute;
        CHECK_EQ_INT(amp_gemm(NULL, &g), i / 4 == 3 || i % 4 == 3 ? AMP_ERROR_INVALID_ENUM
                                            : mixed ? AMP_ERROR_MIXED_TYPES : AMP_OK);
        CHECK_EQ_F32(z[0], i / 4 == 3 || i % 4 == 3 || mixed ? 77.0f : 0.0f);
        g.a = y, g.b = x; /* the other one */
        g.a_type = AMP_F32, g.b_type = a;
        if (i / 4 < 3 && i % 4 < 3)
            CHECK_EQ_INT(amp_gemm(NULL, &g), mixed ? AMP_ERROR_MIXED_TYPES : AMP_OK);
        g.a = x, g.b = y;
        g.b_type = AMP_F32;
    }
}

#if defined(__linux__)
/* The system, or the model of it, will refuse the tiles. */
static int refuse_tiles(void) {
    static char small[4096];
    stack_t     s;
    memset(&s, 0, sizeof s);
    s.ss_sp   = small;
    s.ss_size = sizeof small;
    if (white_tiles_granted) *white_tiles_granted = 0;
    return white_tiles_granted || sigaltstack(&s, NULL) == 0;
}
static int fell_back(void) { return strcmp(amp_cpu_tier(), "avx512") == 0; }

/* In a child: the permission is for good. 0: products fell back, and were right. */
static int refused_child(void) {
    static uint16_t a[64 * 64];
    static float    c[64 * 64];
    size_t          i;
    if (!refuse_tiles()) return 2;
    for (i = 0; i < 64 * 64; i++) a[i] = 0x3f80;
    if (strcmp(amp_cpu_tier(), "amx") != 0) return 3;
    gemm_one(NULL, 0, 0, 64, 64, 64, 1.0f, a, AMP_BF16, 0, a, AMP_BF16, 0, 0.0f, c, AMP_F32, 0);
    if (!fell_back()) return 4;
    for (i = 0; i < 64 * 64; i++)
        if (c[i] < 64.0f || c[i] > 64.0f) return 5;
    return 0;
}

/* The same of fp32 in a scope of type, where nothing asks before. */
static int refused_in_scope(amp_dtype type) {
    static float    a[64 * 64], c[3][64 * 64];
    const amp_scope scope = {NULL, AMP_AUTOCAST_ON, type};
    amp_autocast    ac;
    size_t          i;
    if (!refuse_tiles()) return 2;
    for (i = 0; i < 64 * 64; i++) a[i] = random_value();
    amp_autocast_init(&ac, AMP_POLICY_DEFAULT, AMP_F32);
    amp_autocast_push(&ac, &scope);
    if (strcmp(amp_cpu_tier(), "amx") != 0) return 3;
    for (i = 0; i < 3; i++) {
        amp_autocast_use(i < 2 ? &ac : NULL);
        amp_matmul(c[i], a, a, 64, 64, 64, AMP_F32);
        if (!fell_back()) return 4;
    }
    return memcmp(c[0], c[1], sizeof c[0]) ? 5 : memcmp(c[1], c[2], sizeof c[1]) ? 6 : 0;
}
#endif

TEST(refusal, "manual: where Linux refuses the tiles, as it does to a thread with a small alternate "
              "signal stack, products fall back to avx512; in a scope the first has the bits of all others") {
#if defined(__linux__)
    amp_dtype type;
    int       status = 1;
    pid_t     child;
    if (amp_cpu_force_tier("amx") != AMP_OK) SKIP("no AMX here");
    for (type = AMP_F32; type <= AMP_BF16; type = (amp_dtype)(type + 1)) {
        fflush(stdout);
        child = fork();
        if (child == 0) _exit(type == AMP_F32 ? refused_child() : refused_in_scope(type));
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        if (WEXITSTATUS(status) == 2) SKIP("this system wants a larger signal stack anyway");
        CHECK_EQ_INT(status, 0);
    }
#else
    SKIP("no AMX here");
#endif
}

TEST(transposes, "manual: a transpose's product B' A' has the bits of A B, but for fp16 in tiles, where a product "
                 "of parts takes its place in the sum by which operand it is of") {
    static const char *const tiers[] = {"c", "avx2", "avx512", "avx512_bf16", "amx", "neon", "neon_bf16"};
    enum { M = 37, N = 45, K = 70 };
    static uint32_t a[M * K], b[K * N];
    static float    c[M * N], d[N * M];
    size_t          t, i;
    int             types;
    for (t = 0; t < COUNT_OF(tiers); t++) {
        if (amp_cpu_force_tier(tiers[t]) != AMP_OK) continue;
        for (types = 0; types < 9; types++) {
            const amp_dtype p = (amp_dtype)(types / 3), q = (amp_dtype)(types % 3);
            const int parts = (p == AMP_F16 || q == AMP_F16) && p != AMP_F32 && q != AMP_F32;
            int       differ = 0;
            for (i = 0; i < M * K; i++) store(a, p, i, random_value());
            for (i = 0; i < K * N; i++) store(b, q, i, random_value());
            gemm_one(NULL, 0, 0, M, N, K, 1.0f, a, p, 0, b, q, 0, 0.0f, c, AMP_F32, 0);
            gemm_one(NULL, 1, 1, N, M, K, 1.0f, b, q, 0, a, p, 0, 0.0f, d, AMP_F32, 0);
            for (i = 0; i < M * N; i++)
                differ += tiles_bits(c[i]) != tiles_bits(d[i % N * M + i / N]);
            CHECK_EQ_INT(differ != 0, parts && strcmp(tiers[t], "amx") == 0);
        }
    }
    amp_cpu_force_tier(NULL);
}

/* ------------------------------------------------------------ the caller's floating point */

static problem    fp_problem;
static amp_result fp_result;
static void       run_fp_problem(void) { fp_result = problem_run(&fp_problem); }

TEST(traps, "law 13: hosts that unmask floating-point traps keep running, whatever A, B and C "
            "hold") {
    uint32_t number;
    if (!FP_TRAPPING) SKIP(FP_WHY);
    random_state = 10;
    for (number = 0; number < NUM_VARIANTS; number++) {
        fp_problem       = variant(number);
        fp_problem.m     = 3;
        fp_problem.n     = 9;
        fp_problem.k     = 5;
        fp_problem.alpha = number % 5 ? 0.3f : 0.0f;
        fp_problem.beta  = number % 7 ? 0.1f : 0.0f;
        problem_make(&fp_problem);
        store_bits(fp_problem.a.at, fp_problem.a_type, 0, guard_bits[fp_problem.a_type]);
        store_bits(fp_problem.a.at, fp_problem.a_type, 1, inf_bits[fp_problem.a_type]);
        store_bits(fp_problem.b.at, fp_problem.b_type, 1, guard_bits[fp_problem.b_type]);
        store(fp_problem.b.at, fp_problem.b_type, 0, 0.0f);
        store_bits(fp_problem.c.at, fp_problem.c_type, 0, guard_bits[fp_problem.c_type]);
        fp_result = AMP_ERROR_BAD_STATE;
        CHECK(fp_runs_without_trap(run_fp_problem));
        CHECK_EQ_INT(fp_result, AMP_OK);
        problem_end(&fp_problem);
    }
}

TEST(environment, "manual: rounding is to nearest and subnormals count, whatever the caller's "
                  "settings; they return with the call") {
    static const uint32_t settings[] = {FP_FTZ | FP_DAZ, FP_ROUNDING, 2 * FP_ROUNDING,
                                        3 * FP_ROUNDING, FP_FTZ | FP_DAZ | FP_ROUNDING};
    uint32_t              number;
    size_t                k;
    if (!FP_CONTROL) SKIP(FP_WHY);
    random_state = 11;
    for (number = 0; number < NUM_VARIANTS; number++) {
        problem p = variant(number);
        void   *wanted, *before;
        size_t  size, i;
        p.m     = 7;
        p.n     = 11;
        p.k     = 70;
        p.alpha = 0.7f;
        p.beta  = 0.3f;
        problem_make(&p);
        for (i = 0; i < p.n; i++) /* a column of op(A) and a row of op(B) full of subnormals */
            store_bits(p.b.at, p.b_type, p.trans_b ? i * p.b.ld : i, 1u + random_bits() % 100u);
        size   = p.c.size * size_of(p.c_type);
        before = malloc(size);
        wanted = malloc(size);
        memcpy(before, p.c.memory, size);
        CHECK_EQ_INT(problem_run(&p), AMP_OK);
        memcpy(wanted, p.c.memory, size);
        for (k = 0; k < COUNT_OF(settings); k++) {
            uint32_t now;
            memcpy(p.c.memory, before, size);
            fp_set(FP_IEEE | settings[k]);
            problem_run(&p);
            now = fp_get() & ~(uint32_t)0x3f;
            fp_set(FP_IEEE);
            CHECK_EQ_U32(now, FP_IEEE | settings[k]);
            CHECK_MEM(p.c.memory, wanted, size);
        }
        free(before);
        free(wanted);
        problem_end(&p);
    }
}

/* Small integers, so that every sum is exact and only the last rounding shows. */
TEST(gemm_bias, "manual: amp_gemm adds bias, then ReLU, in fp32, rounds once; NaN stays") {
    static const amp_dtype types[3] = {AMP_F32, AMP_F16, AMP_BF16};
    static unsigned char   a[70 * 40 * 4], b[70 * 40 * 4], c[70 * 80 * 4], bias[80 * 4];
    static float           fa[70 * 40], fb[70 * 40]; /* a and b */
    int                    mode, t, u;
    for (mode = 0; mode < 16; mode++)
        for (t = 0; t < 3; t++)
            for (u = 0; u < 3; u++) {
                const int    ta = mode & 1, tb = mode >> 1 & 1, relu = mode >> 2 & 1;
                const int    has_bias = mode >> 3 & 1;
                const size_t m = 70, n = 67, k = 33, ldc = 71;
                const size_t lda = ta ? m : k, ldb = tb ? k : n;
                size_t       i, j, p;
                uint32_t     r = (uint32_t)(mode * 9 + t * 3 + u + 1);
                float        expected[70][67], x, y;
#define NEXT() (r = r * 1664525u + 1013904223u, (float)(int)(r >> 29) - 3.0f)
                for (i = 0; i < m * k; i++) {
                    x = NEXT();
                    amp_cast(a + i * amp_dtype_size(types[t]), types[t], &x, AMP_F32, 1);
                }
                for (i = 0; i < n * k; i++) {
                    x = NEXT();
                    amp_cast(b + i * amp_dtype_size(types[t]), types[t], &x, AMP_F32, 1);
                }
                for (i = 0; i < m * ldc; i++) {
                    x = NEXT();
                    amp_cast(c + i * amp_dtype_size(types[u]), types[u], &x, AMP_F32, 1);
                }
                for (j = 0; j < n; j++) {
                    x = NEXT() * 0.0078125f; /* with it, sums do not fit halves */
                    amp_cast(bias + j * amp_dtype_size(types[u]), types[u], &x, AMP_F32, 1);
                }
                amp_cast(fa, AMP_F32, a, types[t], m * k);
                amp_cast(fb, AMP_F32, b, types[t], n * k);
                for (i = 0; i < m; i++)
                    for (j = 0; j < n; j++) {
                        float sum = 0.0f;
                        for (p = 0; p < k; p++)
                            sum += fa[ta ? p * lda + i : i * lda + p] *
                                   fb[tb ? j * ldb + p : p * ldb + j];
                        amp_cast(&x, AMP_F32, c + (i * ldc + j) * amp_dtype_size(types[u]),
                                 types[u], 1);
                        amp_cast(&y, AMP_F32, bias + j * amp_dtype_size(types[u]), types[u], 1);
                        sum = 0.5f * sum + 2.0f * x + (has_bias ? y : 0.0f);
                        expected[i][j] = relu && sum <= 0.0f ? 0.0f : sum;
                    }
                CHECK_EQ_INT(gemm_bias(NULL, ta, tb, m, n, k, 0.5f, a, types[t], 0, b, types[t],
                                           0, 2.0f, c, types[u], ldc, has_bias ? bias : NULL, relu),
                             AMP_OK);
                for (i = 0; i < m; i++)
                    for (j = 0; j < n; j++) {
                        amp_cast(&y, types[u], &expected[i][j], AMP_F32, 1);
                        CHECK(memcmp(&y, c + (i * ldc + j) * amp_dtype_size(types[u]),
                                     amp_dtype_size(types[u])) == 0);
                    }
#undef NEXT
            }
    {
        const uint32_t bits[6] = {0x7fc00000u, 0xffc00001u, 0xff800000u, 0x7f800000u, 0x80000000u,
                                  0x80000001u};
        const uint32_t wanted[6] = {0x7fc00000u, 0xffc00001u, 0, 0x7f800000u, 0, 0};
        float          one = 0.0f, zero[6], z[6];
        memset(zero, 0, sizeof zero);
        CHECK_EQ_INT(gemm_bias(NULL, 0, 0, 1, 6, 1, 0.0f, &one, AMP_F32, 0, zero, AMP_F32, 0, 0.0f,
                                   z, AMP_F32, 0, bits, 1), AMP_OK);
        CHECK_MEM(z, wanted, sizeof z);
    }
}

TEST(heads, "manual: matrices of C may lie side by side in rows that hold them all, as heads do; those "
            "of A and B too, and may overlap") {
    enum { HEADS = 3, DIM = 5, ROWS = 7, K = 6, LD = HEADS * DIM };
    float  a[ROWS * HEADS * K], b[HEADS * K * DIM], c[ROWS * LD + 4], one[ROWS * DIM];
    size_t h, i, j;
    for (i = 0; i < ROWS * HEADS * K; i++) a[i] = (float)(i % 11) - 5.0f;
    for (i = 0; i < HEADS * K * DIM; i++) b[i] = (float)(i % 7) - 3.0f;
    for (i = 0; i < ROWS * LD + 4; i++) c[i] = 77.0f;
    CHECK_EQ_INT(gemm_batched(NULL, 0, 0, ROWS, DIM, K, 1.0f, a, AMP_F32, HEADS * K, K, b,
                                  AMP_F32, DIM, K * DIM, 0.0f, c, AMP_F32, LD, DIM, HEADS),
                 AMP_OK);
    for (h = 0; h < HEADS; h++) {
        CHECK_EQ_INT(gemm_one(NULL, 0, 0, ROWS, DIM, K, 1.0f, a + h * K, AMP_F32, HEADS * K,
                              b + h * K * DIM, AMP_F32, DIM, 0.0f, one, AMP_F32, 0),
                     AMP_OK);
        for (i = 0; i < ROWS; i++)
            for (j = 0; j < DIM; j++) CHECK_EQ_F32(c[i * LD + h * DIM + j], one[i * DIM + j]);
    }
    for (i = 0; i < 4; i++) CHECK_EQ_F32(c[ROWS * LD + i], 77.0f);
#define BATCH(ld, stride, count)                                                              \
    gemm_batched(NULL, 0, 0, ROWS, DIM, K, 1.0f, a, AMP_F32, HEADS * K, 1, b, AMP_F32,    \
                     DIM, 0, 0.0f, c, AMP_F32, ld, stride, count)
    CHECK_EQ_INT(BATCH(LD, DIM, 4), AMP_ERROR_OVERLAP);     /* the fourth has no place */
    CHECK_EQ_INT(BATCH(LD, DIM - 1, 3), AMP_ERROR_OVERLAP); /* they would overlap */
    CHECK_EQ_INT(BATCH(LD - 1, DIM, 3), AMP_ERROR_OVERLAP);
    CHECK_EQ_INT(BATCH(DIM, ROWS * DIM - 1, 2), AMP_ERROR_OVERLAP);
    CHECK_EQ_INT(BATCH(LD, DIM, 3), AMP_OK);
    CHECK_EQ_INT(BATCH(DIM, ROWS * DIM, 2), AMP_OK);
#undef BATCH
}

TEST(workspace, "manual: a smaller product never needs a larger workspace, whatever the sizes") {
    static const size_t sizes[] = {0, 1, 7, 64, 300, 4096, 1 << 20, SIZE_MAX / 2, SIZE_MAX - 1,
                                   SIZE_MAX};
    size_t i, m, n, k, before[3] = {0, 0, 0};
    for (i = 0; i < COUNT_OF(sizes); i++) {
        m = amp_gemm_workspace(sizes[i], 512, 512);
        n = amp_gemm_workspace(512, sizes[i], 512);
        k = amp_gemm_workspace(512, 512, sizes[i]);
        CHECK(m >= before[0] && n >= before[1] && k >= before[2]);
        before[0] = m, before[1] = n, before[2] = k;
    }
    CHECK(amp_gemm_workspace(SIZE_MAX, SIZE_MAX, SIZE_MAX) >= before[0]);
    CHECK(amp_gemm_workspace(SIZE_MAX, SIZE_MAX, SIZE_MAX) < (size_t)1 << 30);
}

TEST(layout, "contract: every engine's strip, panel and sums have room in the workspace, and on the stack") {
    static const size_t sizes[] = {1, 17, 32, 33, 250, 1025, 9000};
    size_t              engine, k, room;
    int                 i, kind;
    for (engine = 0; white_gemm_room(engine, 1, 1, 1, AMP_F32, 1, 0); engine++)
        for (i = 0; i < 49; i++)
            for (k = 1; k < 5000; k += k / 3 + 1)
                for (kind = 0; kind < 6; kind++) {
                    room = white_gemm_room(engine, sizes[i / 7], sizes[i % 7], k,
                                           kind % 3 == 1 ? AMP_F16 : kind % 3 ? AMP_BF16 : AMP_F32, kind / 3, 0);
                    CHECK(room < SIZE_MAX);
                }
    CHECK(engine >= 2);
}

TEST(nothing_to_read, "law 11: batches of n = 0 with packed strides are ordinary; what a k of 0 does "
                      "not read may be NULL") {
    float c[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    CHECK_EQ_INT(gemm_batched(NULL, 0, 0, 4, 0, 3, 1.0f, c, AMP_F32, 0, 12, NULL, AMP_F32, 0, 0,
                                  0.0f, NULL, AMP_F32, 0, 0, 5),
                 AMP_OK);
    CHECK_EQ_INT(gemm_batched(NULL, 0, 0, 0, 4, 3, 1.0f, NULL, AMP_F32, 0, 0, c, AMP_F32, 0, 12,
                                  0.0f, NULL, AMP_F32, 0, 0, 5),
                 AMP_OK);
    CHECK_EQ_INT(gemm_one(NULL, 0, 1, 3, 4, 0, 1.0f, NULL, AMP_F16, 0, NULL, AMP_BF16, 0, 0.5f, c,
                          AMP_F32, 0),
                 AMP_OK);
    CHECK_EQ_F32(c[3], 2.0f);
    CHECK_EQ_F32(c[11], 6.0f);
    CHECK_EQ_INT(gemm_one(NULL, 0, 1, 3, 4, 5, 1.0f, NULL, AMP_F16, 0, c, AMP_BF16, 0, 0.5f, c,
                          AMP_F32, 0),
                 AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(gemm_one(NULL, 0, 1, 3, 4, 0, 1.0f, NULL, (amp_dtype)9, 0, NULL, AMP_BF16, 0, 0.5f,
                          c, AMP_F32, 0),
                 AMP_ERROR_INVALID_ENUM);
}

/* Bytes of a batch of matrices, marked. Says with what they were marked before. */
static int mark(unsigned char *marks, size_t at, amp_dtype type, size_t rows, size_t cols, size_t ld,
                size_t stride, size_t count, unsigned char value) {
    int    twice = 0;
    size_t i, r, b;
    for (i = 0; i < count; i++)
        for (r = 0; r < rows; r++)
            for (b = 0; b < cols * amp_dtype_size(type); b++) {
                unsigned char *to = marks + at + (i * stride + r * ld) * amp_dtype_size(type) + b;
                twice |= *to;
                *to |= value;
            }
    return twice;
}

TEST(overlap, "manual: a C whose first element is one of A or B is refused and nothing is written; matrices "
              "interleaved in one buffer are not, and give what they give apart") {
    static unsigned char bytes[4096], apart[3][4096], marks[4096];
    unsigned             r = 1, run, refused = 0, shared = 0;
#define BELOW(n) (r = r * 1664525u + 1013904223u, (size_t)(r >> 8) % (n))
    for (run = 0; run < 20000; run++) {
        amp_gemm_args g;
        size_t        at[3], a_rows, a_cols, b_rows, b_cols, i;
        int           meets, first;
        memset(&g, 0, sizeof g);
        g.m = 1 + BELOW(5), g.n = 1 + BELOW(5), g.k = BELOW(8);
        g.trans_a = (int)BELOW(2), g.trans_b = (int)BELOW(2), g.count = 1 + BELOW(3);
        g.a_type = (amp_dtype)BELOW(3), g.b_type = (amp_dtype)BELOW(3);
        g.c_type = (amp_dtype)BELOW(3);
        a_rows = g.trans_a ? g.k : g.m, a_cols = g.m + g.k - a_rows;
        b_rows = g.trans_b ? g.n : g.k, b_cols = g.n + g.k - b_rows;
        g.ldc = g.n + BELOW(20), g.lda = a_cols + BELOW(20) + 1, g.ldb = b_cols + BELOW(20) + 1;
        if (BELOW(2)) g.lda = g.ldb = g.ldc = 12 + BELOW(12);
        g.stride_a = BELOW(3) ? BELOW(40) : 0, g.stride_b = BELOW(3) ? BELOW(40) : 0;
        g.stride_c = g.n + BELOW(20);
        if (BELOW(2)) g.stride_c = (g.m - 1) * g.ldc + g.n + BELOW(6);
        if (g.count == 1) g.stride_c = SIZE_MAX / 2 + 1; /* of no meaning */
        for (i = 0; i < 3; i++) at[i] = 2 * BELOW(200);
        if (g.count > 1 && g.stride_c < (g.m - 1) * g.ldc + g.n &&
            g.stride_c * (g.count - 1) + g.n > g.ldc)
            continue; /* the test of heads */
        memset(marks, 0, sizeof marks);
        mark(marks, at[2], g.c_type, g.m, g.n, g.ldc, g.stride_c, g.count, 1);
        meets = mark(marks, at[0], g.a_type, a_rows, a_cols, g.lda, g.stride_a, g.count, 2) & 1;
        meets |= mark(marks, at[1], g.b_type, b_rows, b_cols, g.ldb, g.stride_b, g.count, 2) & 1;
        first = marks[at[2]] & 2;
        if (meets && !first) continue; /* nobody says what that gives */
        for (i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(BELOW(64) + 1);
        for (i = 0; i < 3; i++) memcpy(apart[i], bytes, sizeof bytes);
        g.a = bytes + at[0], g.b = bytes + at[1], g.c = bytes + at[2];
        CHECK_EQ_INT(amp_gemm(NULL, &g), first ? AMP_ERROR_OVERLAP : AMP_OK);
        refused += first != 0, shared += first == 0;
        g.a = apart[0] + at[0], g.b = apart[1] + at[1], g.c = apart[2] + at[2];
        if (!first) CHECK_EQ_INT(amp_gemm(NULL, &g), AMP_OK);
        CHECK_MEM(bytes, apart[2], sizeof bytes);
    }
    CHECK(refused > 500 && shared > 2000);
#undef BELOW
    {
        float x[4] = {1, 2, 3, 4};
        CHECK_EQ_INT(gemm_one(NULL, 0, 0, 2, 2, 2, 1.0f, x, AMP_F32, 0, x, AMP_F32, 0, 0.0f, x,
                              AMP_F32, 0), AMP_ERROR_OVERLAP);
        CHECK_EQ_F32(x[3], 4.0f);
        CHECK_EQ_INT(gemm_one(NULL, 0, 0, 2, 2, 0, 1.0f, x, AMP_F32, 0, x, AMP_F32, 0, 2.0f, x,
                              AMP_F32, 0), AMP_OK); /* they are not read */
        CHECK_EQ_F32(x[3], 8.0f);
    }
}

/* n floats, no larger than 1. */
static float *some_floats(size_t n) {
    float *x = (float *)malloc((n + 1) * sizeof *x);
    size_t i;
    for (i = 0; i < n; i++) x[i] = random_value();
    return x;
}

/* The product that amp_matmul and a layer stand for, by amp_cast to compute, or as it is. */
static void cast_product(float *c, const float *a, int trans_a, const float *b, int trans_b, size_t m,
                         size_t n, size_t k, const float *bias, float beta, amp_dtype compute) {
    void         *as = malloc(m * k * 4 + 1), *bs = malloc(k * n * 4 + 1);
    amp_gemm_args g;
    CHECK_EQ_INT(amp_cast(as, compute, a, AMP_F32, m * k), AMP_OK);
    CHECK_EQ_INT(amp_cast(bs, compute, b, AMP_F32, k * n), AMP_OK);
    memset(&g, 0, sizeof g);
    g.trans_a = trans_a, g.trans_b = trans_b;
    g.m = m, g.n = n, g.k = k;
    g.a = as, g.b = bs, g.c = c;
    g.a_type = g.b_type = compute;
    g.beta = beta, g.bias = bias;
    CHECK_EQ_INT(amp_gemm(NULL, &g), AMP_OK);
    free(as), free(bs);
}

static void one_layer(size_t rows, size_t in, size_t out, amp_dtype compute) {
    float *x = some_floats(rows * in), *w = some_floats(out * in), *bias = some_floats(out);
    float *dy = some_floats(rows * out), *y = some_floats(rows * out), *y2 = some_floats(rows * out);
    float *dx = some_floats(rows * in), *dx2 = some_floats(rows * in), *wt = some_floats(in * out);
    float *dw = some_floats(out * in), *dw2 = some_floats(out * in), *db = some_floats(out);
    float *db2 = some_floats(out);
    size_t i, j;
    int    accumulate;
    CHECK_EQ_INT(amp_linear(y, x, w, bias, rows, in, out, compute), AMP_OK);
    cast_product(y2, x, 0, w, 1, rows, out, in, bias, 0.0f, compute);
    CHECK_MEM(y, y2, rows * out * 4);
    for (i = 0; i < out; i++)
        for (j = 0; j < in; j++) wt[j * out + i] = w[i * in + j];
    CHECK_EQ_INT(amp_matmul(y, x, wt, rows, out, in, compute), AMP_OK);
    cast_product(y2, x, 0, wt, 0, rows, out, in, NULL, 0.0f, compute);
    CHECK_MEM(y, y2, rows * out * 4);
    for (accumulate = 0; accumulate < 2; accumulate++) {
        memcpy(dw2, dw, out * in * 4), memcpy(db2, db, out * 4);
        if (!accumulate) memset(db2, 0, out * 4);
        CHECK_EQ_INT(amp_linear_backward(dx, dw, db, dy, x, w, rows, in, out, accumulate, compute),
                     AMP_OK);
        cast_product(dx2, dy, 0, w, 0, rows, in, out, NULL, 0.0f, compute);
        cast_product(dw2, dy, 1, x, 0, out, in, rows, NULL, (float)accumulate, compute);
        for (i = 0; i < rows; i++)
            for (j = 0; j < out; j++) db2[j] = ampi_add(db2[j], dy[i * out + j]);
        CHECK_MEM(dx, dx2, rows * in * 4);
        CHECK_MEM(dw, dw2, out * in * 4);
        CHECK_MEM(db, db2, out * 4);
    }
    CHECK_EQ_INT(amp_linear_backward(NULL, NULL, NULL, dy, x, w, rows, in, out, 0, compute), AMP_OK);
    free(x), free(w), free(bias), free(dy), free(y), free(y2), free(dx), free(dx2), free(wt);
    free(dw), free(dw2), free(db), free(db2);
}

TEST(layers, "manual: amp_matmul and a linear layer's products have the bits of casts and amp_gemm; "
             "dbias is summed row after row; accumulate adds to what was there") {
    static const size_t sizes[][3] = {{1, 1, 1}, {3, 5, 2}, {17, 40, 33}, {64, 64, 64}, {5, 0, 3},
                                      {0, 4, 3}, {4, 6, 0}};
    amp_dtype type;
    size_t    i;
    for (i = 0; i < COUNT_OF(sizes); i++)
        for (type = AMP_F32; type <= AMP_BF16; type = (amp_dtype)(type + 1))
            one_layer(sizes[i][0], sizes[i][1], sizes[i][2], type);
}

TEST(layers_in_place, "manual: dx may be x: gradients are those of a dx of its own") {
    float     x[6], dx[6], w[6], dw[6], again[6], dy[4];
    amp_dtype type;
    int       i;
    for (type = AMP_F32; type <= AMP_BF16; type = (amp_dtype)(type + 1)) {
        for (i = 0; i < 6; i++) x[i] = (float)i - 2.0f, w[i] = 0.5f * (float)(i % 4);
        for (i = 0; i < 4; i++) dy[i] = (float)(i * i) - 3.0f;
        CHECK_EQ_INT(amp_linear_backward(dx, dw, NULL, dy, x, w, 2, 3, 2, 0, type), AMP_OK);
        CHECK_EQ_INT(amp_linear_backward(x, again, NULL, dy, x, w, 2, 3, 2, 0, type), AMP_OK);
        CHECK_MEM(x, dx, sizeof x);
        CHECK_MEM(again, dw, sizeof dw);
    }
}

TEST(layers_refuse, "law 9: a layer with a bad argument is refused, and none of its outputs changes") {
    float a[64], c[64], before[64];
    int   i;
    for (i = 0; i < 64; i++) a[i] = 1.0f, c[i] = before[i] = (float)i;
    CHECK_EQ_INT(amp_matmul(c, NULL, a, 2, 2, 2, AMP_F32), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_matmul(c, a, a, 2, 2, 2, (amp_dtype)9), AMP_ERROR_INVALID_ENUM);
    CHECK_EQ_INT(amp_matmul(c, c, a, 2, 2, 2, AMP_BF16), AMP_ERROR_OVERLAP);
    CHECK_EQ_INT(amp_linear(c, a, NULL, NULL, 2, 2, 2, AMP_F32), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_linear_backward(c, c + 8, c + 16, NULL, a, a, 2, 2, 2, 0, AMP_F32),
                 AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_linear_backward(c, c + 8, c + 16, a, NULL, a, 2, 2, 2, 0, AMP_F32),
                 AMP_ERROR_INVALID_ARGUMENT); /* dx could be had, but not dw */
    CHECK_EQ_INT(amp_linear_backward(c, c + 8, c + 16, a, c + 8, a, 2, 2, 2, 0, AMP_F32),
                 AMP_ERROR_OVERLAP);
    CHECK_EQ_INT(amp_linear_backward(c, c + 8, c + 16, a, a, c + 9, 2, 2, 2, 0, AMP_F32),
                 AMP_ERROR_OVERLAP);
    CHECK_EQ_INT(amp_linear_backward(c, c + 3, c + 16, a, a, a, 2, 2, 2, 0, AMP_F32),
                 AMP_ERROR_OVERLAP);
    CHECK_EQ_INT(amp_linear_backward(NULL, NULL, c + 3, a, a, c, 2, 2, 2, 0, AMP_F32),
                 AMP_ERROR_OVERLAP); /* dbias in w, then in x; dw on w, which is not read */
    CHECK_EQ_INT(amp_linear_backward(NULL, NULL, c + 3, a, c, a, 2, 2, 2, 0, AMP_F32),
                 AMP_ERROR_OVERLAP);
    CHECK_EQ_INT(amp_linear_backward(NULL, c, NULL, a, a, c, 2, 2, 2, 0, AMP_F32), AMP_ERROR_OVERLAP);
    CHECK_EQ_INT(amp_linear_backward(NULL, NULL, c, NULL, a, a, 2, 2, 2, 0, AMP_F32),
                 AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_linear_backward(c, c + 8, c + 16, a, a, a, (size_t)-1 / 2, 2, 2, 0, AMP_F32),
                 AMP_ERROR_TOO_LARGE);
    CHECK_MEM(c, before, sizeof c);
}

TEST(layers_bias, "manual: a C that begins in its bias, and a dbias that shares an element with dy, dx or dw, are refused and "
                  "nothing is written; those beside it are not; dbias alone is checked as all else is") {
    const size_t  huge = (size_t)-1 / 8 + 1;
    float         a[64], c[64], before[64];
    amp_gemm_args g;
    size_t        i;
    for (i = 0; i < 64; i++) a[i] = 1.0f, c[i] = before[i] = (float)i;
    for (i = 0; i < 16; i++) { /* y is c + 4 to c + 8, bias two floats */
        const int meet = i == 3 || i == 4;
        if (i > 4 && i < 8) continue;
        CHECK_EQ_INT(amp_linear(c + 4, a, a, c + i, 2, 2, 2, i % 2 ? AMP_BF16 : AMP_F32),
                     meet ? AMP_ERROR_OVERLAP : AMP_OK);
        if (!meet) CHECK_EQ_F32(c[4], 2.0f + c[i]);
        memcpy(c + 4, before + 4, 16);
        CHECK_MEM(c, before, sizeof c);
    }
    memset(&g, 0, sizeof g);
    g.m = 3, g.n = 2, g.k = 0, g.ldc = 4; /* without k, too, it is read */
    g.count = 2, g.stride_c = 16;
    g.a = a, g.b = a, g.c = c + 4, g.bias = c + 4;
    g.bias_type = AMP_BF16;
    CHECK_EQ_INT(amp_gemm(NULL, &g), AMP_ERROR_OVERLAP);
    CHECK_MEM(c, before, sizeof c);
    g.bias = c + 6; /* between two rows */
    CHECK_EQ_INT(amp_gemm(NULL, &g), AMP_OK);
    memcpy(c, before, sizeof c);
    for (i = 0; i < 16; i++) { /* dy, dx or dw is c + 4 to c + 8 */
        const int        accumulate = i % 2;
        const amp_result wanted     = i > 2 && i < 8 ? AMP_ERROR_OVERLAP : AMP_OK;
        CHECK_EQ_INT(amp_linear_backward(NULL, NULL, c + i, c + 4, a, a, 2, 2, 2, accumulate, AMP_F32), wanted);
        if (wanted != AMP_OK) CHECK_MEM(c, before, sizeof c);
        memcpy(c, before, sizeof c);
        CHECK_EQ_INT(amp_linear_backward(c + 4, NULL, c + i, a, NULL, a, 2, 2, 2, accumulate, AMP_BF16), wanted);
        if (wanted != AMP_OK) CHECK_MEM(c, before, sizeof c);
        memcpy(c, before, sizeof c);
        CHECK_EQ_INT(amp_linear_backward(NULL, c + 4, c + i, a, a, NULL, 2, 2, 2, accumulate, AMP_F32), wanted);
        if (wanted != AMP_OK) CHECK_MEM(c, before, sizeof c);
        memcpy(c, before, sizeof c);
    }
    CHECK_EQ_INT(amp_linear_backward(NULL, NULL, c, a, NULL, NULL, 2, 2, 2, 0, (amp_dtype)9), AMP_ERROR_INVALID_ENUM);
    CHECK_EQ_INT(amp_linear_backward(NULL, NULL, NULL, a, a, a, 2, 2, 2, 0, (amp_dtype)3), AMP_ERROR_INVALID_ENUM);
    CHECK_EQ_INT(amp_linear_backward(NULL, NULL, c, a, NULL, NULL, huge, 2, 2, 0, AMP_F32), AMP_ERROR_TOO_LARGE);
    CHECK_EQ_INT(amp_linear_backward(NULL, NULL, c, a, NULL, NULL, 0, 2, huge, 0, AMP_F32), AMP_ERROR_TOO_LARGE);
    CHECK_MEM(c, before, sizeof c);
    CHECK_EQ_INT(amp_linear_backward(NULL, NULL, c, NULL, NULL, NULL, 0, 2, 3, 0, AMP_F32), AMP_OK);
    for (i = 0; i < 3; i++) CHECK_EQ_F32(c[i], 0.0f);
}

/* ------------------------------------------------------- between pages that nobody may touch */

#if HAVE_POSIX
enum { GUARD_ROOM = 1 << 22, GUARD_A = 0, GUARD_B, GUARD_C, GUARD_BIAS, GUARD_SPACE, GUARDS };
static char *guard_pages[GUARDS]; /* with one in front and one behind */

/* Bytes that end where the page behind begins, or begin where the one in front ends. */
static char *guarded(int which, size_t bytes, int at_end) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char       **at   = &guard_pages[which];
    int          zero;
    if (!*at) {
        zero = open("/dev/zero", O_RDWR);
        *at  = (char *)mmap(NULL, GUARD_ROOM + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE, zero, 0) + page;
        close(zero);
        CHECK(mprotect(*at - page, page, PROT_NONE) == 0 && mprotect(*at + GUARD_ROOM, page, PROT_NONE) == 0);
    }
    CHECK(bytes <= GUARD_ROOM);
    return at_end ? *at + (GUARD_ROOM - bytes) : *at;
}

/* The elements of a matrix and of those that follow it in a batch, the last row without what is behind it. */
static size_t guarded_size(size_t rows, size_t cols, size_t ld, size_t stride, size_t count) {
    return rows && cols ? (count - 1) * stride + (rows - 1) * ld + cols : 0;
}
static void *guarded_matrix(int which, size_t n, amp_dtype type, int kind, int at_end) {
    char  *x = guarded(which, n * size_of(type), at_end);
    size_t i;
    for (i = 0; i < n; i++) ampi_store(x, type, i, bits_value(kind));
    return x;
}

/* One of m, n, k up to 130, in any way, beside the model; where fp32 counts as 16 bits, beside it on casts. */
static void guarded_one(int rule) {
    amp_gemm_args  g = bits_problem(0, 0), cast;
    const int      kind = (int)random_below(3), at_end = random_below(3) != 0;
    const int      memory = (int)random_below(BITS_MEMORIES);
    int            round  = (int)random_below(3);
    const size_t   c_size = size_of(g.c_type), most = bits_coin() ? 130 : 20;
    size_t         an, bn, cn, room;
    unsigned char *old, *a16 = NULL, *b16 = NULL;
    amp_backend    backend;
    g.m = 1 + random_below(most), g.n = 1 + random_below(most), g.k = 1 + random_below(bits_coin() ? 130 : 20);
    if (random_below(8) == 0) *(bits_coin() ? &g.m : &g.n) = 1 + random_below(4);
    if (random_below(8) == 0) { /* few rows, of a B whose rows lie along k; or few columns */
        g.m = 3 + random_below(bits_coin() ? 15 : 32), g.n = 20 + random_below(110), g.k = 185 + random_below(500);
        if (random_below(3)) g.trans_b = 1;
        else g.n = g.m, g.m = 130 + random_below(130), g.k += 400;
        if (random_below(3)) g.a_type = g.b_type = AMP_F32, round = 0;
    }
    g.lda = (g.trans_a ? g.m : g.k) + random_below(3) * random_below(9);
    g.ldb = (g.trans_b ? g.k : g.n) + random_below(3) * random_below(9);
    g.ldc = g.n + random_below(3) * random_below(9);
    g.stride_a = (g.trans_a ? g.k : g.m) * g.lda, g.stride_b = (g.trans_b ? g.n : g.k) * g.ldb;
    g.stride_c = g.m * g.ldc;
    an = guarded_size(g.trans_a ? g.k : g.m, g.trans_a ? g.m : g.k, g.lda, g.stride_a, g.count);
    bn = guarded_size(g.trans_b ? g.n : g.k, g.trans_b ? g.k : g.n, g.ldb, g.stride_b, g.count);
    cn = guarded_size(g.m, g.n, g.ldc, g.stride_c, g.count);
    if (round) {
        g.compute = (amp_dtype)round;
        if (g.a_type != AMP_F32) g.a_type = g.compute;
        if (g.b_type != AMP_F32) g.b_type = g.compute;
    }
    g.bias_type = (amp_dtype)random_below(3);
    g.a = guarded_matrix(GUARD_A, an, g.a_type, kind, at_end);
    g.b = guarded_matrix(GUARD_B, bn, g.b_type, kind, at_end);
    g.c = guarded_matrix(GUARD_C, cn, g.c_type, kind == 1, at_end);
    if (bits_coin()) g.bias = guarded_matrix(GUARD_BIAS, g.n, g.bias_type, 0, at_end);
    old = (unsigned char *)malloc(cn * c_size);
    memcpy(old, g.c, cn * c_size);
    amp_cpu_backend(&backend);
    room = amp_gemm_workspace(g.m, g.n, g.k);
    if (memory == BITS_WORKSPACE) backend.workspace = guarded(GUARD_SPACE, room, at_end), backend.workspace_size = room;
    white_malloc_fails = memory == BITS_STACK;
    if (memory == BITS_MALLOC && bits_coin()) CHECK(white_gemm_shares(&g, 3));
    else CHECK_EQ_INT(backend.functions->gemm_fn(&backend, &g), AMP_OK);
    white_malloc_fails = 0;
    cast = g;
    if (round) {
        a16 = (unsigned char *)malloc(2 * an), b16 = (unsigned char *)malloc(2 * bn);
        amp_cast(a16, g.compute, g.a, g.a_type, an);
        amp_cast(b16, g.compute, g.b, g.b_type, bn);
        cast.a = a16, cast.b = b16;
        cast.a_type = cast.b_type = g.compute;
    }
    bits_compare(&cast, old, rule, 1 << 18);
    bits_outside(&g, old, cn);
    free(old), free(a16), free(b16);
}

TEST(guarded, "law 11: random products of up to 260 rows, 130 columns and 1,100 k, in every type, way and tier, have the model's bits, "
              "and touch no page beside their matrices and their workspace (AMP_PRODUCTS: how many)") {
    static const struct { const char *tier; int rule; } tiers[] = {
        {"c", BITS_C}, {"avx2", BITS_FMA}, {"avx512", BITS_FMA}, {"avx512_bf16", BITS_PAIRS}, {"amx", BITS_TILES},
        {"neon", BITS_FMA}, {"neon_bf16", BITS_MMLA}};
    const long count = test_amount("AMP_PRODUCTS", test_state.quick > 1 ? 15 : test_state.quick ? 150 : 1000);
    size_t     t;
    long       i;
    for (t = 0; t < COUNT_OF(tiers); t++) {
        if (amp_cpu_force_tier(tiers[t].tier) != AMP_OK) continue;
        random_state = 58;
        for (i = 0; i < count; i++) guarded_one(tiers[t].rule);
    }
    amp_cpu_force_tier(NULL);
}
#else
TEST(guarded, "law 11: random products touch no page beside their matrices") { SKIP(POSIX_WHY); }
#endif

/* ---------------------------------------------------- a row of C does not know its batch */

enum { BATCH = 300 };

/* How a product is asked for: as it stands, by amp_linear, in a scope, in one whose policy names the op,
   with a session's cache. */
enum { BATCH_PLAIN, BATCH_LINEAR, BATCH_SCOPE, BATCH_NAMED, BATCH_CACHE };

typedef struct batch_kind {
    int         way;
    amp_dtype   a_type, b_type, type; /* type: compute, or that of the scope or session */
    int         tf32;
    const char *name;
} batch_kind;

static amp_autocast  batch_own;
static amp_session   batch_session;
static amp_autocast *batch_scope; /* in use while a product runs, and no longer; or NULL */

static void batch_begin(const batch_kind *kind) {
    amp_scope        scope;
    amp_session_desc desc;
    memset(&scope, 0, sizeof scope);
    memset(&desc, 0, sizeof desc);
    desc.dtype     = kind->type;
    desc.num_bytes = 4 << 20;
    batch_scope    = kind->way < BATCH_SCOPE ? NULL : kind->way == BATCH_CACHE ? &batch_session.autocast : &batch_own;
    if (kind->way == BATCH_CACHE) CHECK_EQ_INT(amp_session_start(&batch_session, &desc), AMP_OK);
    amp_autocast_use(NULL);
    CHECK_EQ_INT(amp_autocast_init(&batch_own, AMP_POLICY_DEFAULT, kind->type), AMP_OK);
    if (kind->way == BATCH_NAMED) CHECK_EQ_INT(amp_autocast_override(&batch_own, "op:gemm=low"), AMP_OK);
    CHECK_EQ_INT(amp_autocast_push(&batch_own, &scope), AMP_OK);
}

static amp_result batch_run(int way, const amp_gemm_args *g) {
    amp_result result;
    amp_autocast_use(batch_scope);
    if (way == BATCH_LINEAR)
        result = amp_linear((float *)g->c, (const float *)g->a, (const float *)g->b, (const float *)g->bias, g->m,
                            g->k, g->n, g->compute);
    else result = amp_gemm(NULL, g);
    amp_autocast_use(NULL);
    return result;
}

static amp_gemm_args batch_problem(const batch_kind *kind, size_t n, size_t k) {
    const int     linear = kind->way == BATCH_LINEAR;
    amp_gemm_args g;
    memset(&g, 0, sizeof g);
    g.m = BATCH, g.n = n, g.k = k;
    g.trans_a = !linear && bits_coin(), g.trans_b = linear || bits_coin();
    g.a_type = kind->a_type, g.b_type = kind->b_type, g.tf32 = kind->tf32;
    g.lda = g.trans_a ? g.m : k, g.ldb = g.trans_b ? k : n, g.ldc = n;
    g.alpha = 1.0f;
    if (kind->way <= BATCH_LINEAR) g.compute = kind->type;
    if (linear) return g;
    g.c_type = (amp_dtype)(random_below(3) ? 0 : random_below(3));
    g.lda += random_below(3), g.ldb += random_below(3), g.ldc += random_below(3);
    g.activation = random_below(4) ? AMP_ACTIVATION_NONE : AMP_ACTIVATION_RELU;
    if (bits_coin()) g.alpha = 0.75f, g.beta = 0.5f;
    return g;
}

/* All rows at once, then some of them: few, many, and around 2^15 of work. How many products have a row of
   other bits; *seen is the first. Tiles and BFMMLA promise one set of bits from there on, for m of at least 2. */
static int batch_one(const batch_kind *kind, int tiles, size_t n, size_t k, amp_gemm_args *seen) {
    static const size_t few[] = {1, 1, 2, 3, 4, 5, 8, 13, 17, 33, 64, 150};
    const int           small = random_below(4) == 0, cached = kind->way == BATCH_CACHE && bits_coin();
    amp_gemm_args       all = batch_problem(kind, n, k), some;
    const size_t        row = size_of(all.c_type) * all.ldc, least = 32768 / (n * k);
    unsigned char *a = bits_matrix((all.trans_a ? k : all.m) * all.lda, all.a_type, small, 0);
    unsigned char *b = bits_matrix((all.trans_b ? n : k) * all.ldb, all.b_type, small, 0);
    unsigned char *old = bits_matrix(all.m * all.ldc, all.c_type, small, 0), *bias = bits_matrix(n, AMP_F32, small, 0);
    unsigned char *c = (unsigned char *)malloc(2 * all.m * row), *part = c + all.m * row;
    size_t         i, at;
    int            wrong = 0;
    all.a = a, all.b = b, all.c = memcpy(c, old, all.m * row);
    if (bits_coin()) all.bias = bias;
    if (cached) CHECK_EQ_INT(amp_session_add(&batch_session, (const float *)(void *)b, (all.trans_b ? n : k) * all.ldb), AMP_OK);
    CHECK_EQ_INT(batch_run(kind->way, &all), AMP_OK);
    for (some = all, some.c = part, i = 0; i < COUNT_OF(few) + 4; i += test_state.quick > 1 ? 2 : 1) {
        some.m = i < COUNT_OF(few) ? few[i] : i == COUNT_OF(few) ? 1 + random_below(BATCH) : least + i - COUNT_OF(few) - 1;
        if (some.m < 1 || some.m > BATCH || (tiles && (some.m == 1 || some.m * n * k < 32768))) continue;
        if (tiles && kind->type == AMP_F16 && kind->way == BATCH_SCOPE && (some.m <= 16 || some.m * n * k < 131072))
            continue; /* a scope does not round them */
        at     = random_below(BATCH - some.m + 1);
        some.a = a + size_of(all.a_type) * at * (all.trans_a ? 1 : all.lda);
        memcpy(part, old + at * row, some.m * row);
        CHECK_EQ_INT(batch_run(kind->way, &some), AMP_OK);
        if (memcmp(part, c + at * row, some.m * row) != 0 && !wrong++) *seen = some;
    }
    if (cached) CHECK_EQ_INT(amp_session_add(&batch_session, (const float *)(void *)b, 0), AMP_OK);
    free(a), free(b), free(c), free(old), free(bias);
    return wrong;
}

static void batch_rows(const batch_kind *kinds, size_t num_kinds) {
    static const char *const tiers[] = {"c", "avx2", "avx512", "avx512_bf16", "amx", "neon", "neon_bf16"};
    static const size_t sizes[][2] = {{1, 1}, {1, 113}, {3, 5}, {16, 16}, {17, 33}, {300, 7}, {7, 300}, {40, 130},
                                      {64, 256}, {130, 251}, {96, 400}, {20, 1100}};
    const int   times = test_state.quick ? 1 : 8, step = test_state.quick > 1 ? 6 : 1;
    size_t      t, i, s;
    int         z;
    for (t = 0; t < COUNT_OF(tiers); t++) {
        const int     tiles = strcmp(tiers[t], "amx") == 0 || strcmp(tiers[t], "neon_bf16") == 0;
        char          text[400] = "";
        amp_gemm_args first;
        int           all = 0;
        random_state = 57;
        if (amp_cpu_force_tier(tiers[t]) != AMP_OK) continue;
        for (i = 0; i < num_kinds; i++) {
            amp_gemm_args seen;
            int           wrong = 0;
            batch_begin(&kinds[i]);
            for (z = 0; z < times; z++)
                for (s = (i + t) % (size_t)step; s < COUNT_OF(sizes); s += (size_t)step)
                    wrong += batch_one(&kinds[i], tiles, sizes[s][0], sizes[s][1], &seen);
            if (kinds[i].way == BATCH_CACHE) CHECK_EQ_U64(batch_session.fallbacks, 0);
            if (kinds[i].way == BATCH_CACHE) amp_session_end(&batch_session);
            if (!wrong) continue;
            if (!all) first = seen;
            all += wrong;
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s %d", *text ? ", " : "", kinds[i].name, wrong);
        }
        CHECK_EQ_INT(strcmp(amp_cpu_tier(), tiers[t]), 0);
        if (!all) continue;
        snprintf(text + strlen(text), sizeof text - strlen(text), "; at first %lux%lux%lu trans %d%d", (unsigned long)first.m,
                 (unsigned long)first.n, (unsigned long)first.k, first.trans_a, first.trans_b);
        test_fail(__FILE__, __LINE__, tiers[t], text);
    }
    amp_cpu_force_tier(NULL);
}

TEST(batch_stored, "manual: a row of C has the same bits in any batch and at any place in it, whatever the types are; in tiles "
                   "and by BFMMLA from m n k of 2^15 on") {
    static const batch_kind kinds[] = {{BATCH_PLAIN, AMP_F32, AMP_F32, AMP_F32, 0, "fp32"},
                                       {BATCH_PLAIN, AMP_F16, AMP_F16, AMP_F32, 0, "fp16"},
                                       {BATCH_PLAIN, AMP_BF16, AMP_BF16, AMP_F32, 0, "bf16"},
                                       {BATCH_PLAIN, AMP_F32, AMP_F16, AMP_F32, 0, "fp32 fp16"},
                                       {BATCH_PLAIN, AMP_BF16, AMP_F32, AMP_F32, 0, "bf16 fp32"},
                                       {BATCH_PLAIN, AMP_F16, AMP_BF16, AMP_F32, 0, "fp16 bf16"},
                                       {BATCH_PLAIN, AMP_F32, AMP_F32, AMP_F32, 1, "tf32"},
                                       {BATCH_PLAIN, AMP_F16, AMP_F32, AMP_F32, 1, "tf32 fp16"}};
    batch_rows(kinds, COUNT_OF(kinds));
}

TEST(batch_rounded, "manual: the same where compute rounds to 16 bits, by amp_gemm and amp_linear") {
    static const batch_kind kinds[] = {{BATCH_PLAIN, AMP_F32, AMP_F32, AMP_F16, 0, "fp16"},
                                       {BATCH_PLAIN, AMP_F32, AMP_F32, AMP_BF16, 0, "bf16"},
                                       {BATCH_PLAIN, AMP_F16, AMP_F32, AMP_F16, 0, "stored fp16"},
                                       {BATCH_PLAIN, AMP_F32, AMP_BF16, AMP_BF16, 0, "stored bf16"},
                                       {BATCH_LINEAR, AMP_F32, AMP_F32, AMP_F32, 0, "linear fp32"},
                                       {BATCH_LINEAR, AMP_F32, AMP_F32, AMP_F16, 0, "linear fp16"},
                                       {BATCH_LINEAR, AMP_F32, AMP_F32, AMP_BF16, 0, "linear bf16"}};
    batch_rows(kinds, COUNT_OF(kinds));
}

TEST(batch_scope, "manual: the same in a scope of autocast, also where the policy names the op") {
    static const batch_kind kinds[] = {{BATCH_SCOPE, AMP_F32, AMP_F32, AMP_F16, 0, "fp16"},
                                       {BATCH_SCOPE, AMP_F32, AMP_F32, AMP_BF16, 0, "bf16"},
                                       {BATCH_SCOPE, AMP_F32, AMP_F16, AMP_F16, 0, "stored fp16"},
                                       {BATCH_SCOPE, AMP_BF16, AMP_F32, AMP_BF16, 0, "stored bf16"},
                                       {BATCH_NAMED, AMP_F32, AMP_F32, AMP_F16, 0, "named fp16"},
                                       {BATCH_NAMED, AMP_F32, AMP_F32, AMP_BF16, 0, "named bf16"},
                                       {BATCH_NAMED, AMP_F32, AMP_BF16, AMP_BF16, 0, "named, stored bf16"}};
    batch_rows(kinds, COUNT_OF(kinds));
}

TEST(batch_cache, "manual: the same with a session's weight cache, of weights that were added and of others") {
    static const batch_kind kinds[] = {{BATCH_CACHE, AMP_F32, AMP_F32, AMP_F16, 0, "fp16"},
                                       {BATCH_CACHE, AMP_F32, AMP_F32, AMP_BF16, 0, "bf16"},
                                       {BATCH_CACHE, AMP_F16, AMP_F32, AMP_F16, 0, "stored fp16"},
                                       {BATCH_CACHE, AMP_BF16, AMP_F32, AMP_BF16, 0, "stored bf16"}};
    batch_rows(kinds, COUNT_OF(kinds));
}

TEST(batch_zero, "manual: the same where what a row adds last underflows: its zero has the same sign") {
    static const char *const tiers[] = {"c", "avx2", "avx512", "avx512_bf16", "amx", "neon", "neon_bf16"};
    enum { M = 35, N = 20, K = 37 };
    static const size_t few[] = {1, 2, 3, 17};
    static float a[M * K], b[N * K], c[M * N], part[M * N];
    size_t       t, i, n, k;
    int          way;
    for (t = 0; t < COUNT_OF(tiers); t++) {
        if (amp_cpu_force_tier(tiers[t]) != AMP_OK) continue;
        for (k = 1; k <= K; k++)
            for (n = 1; n <= N; n += n < 2 ? 6 : 13)
                for (way = 0; way < 8; way++) { /* transposed, compute bf16 or stored so */
                    amp_gemm_args g;
                    memset(&g, 0, sizeof g);
                    memset(a, 0, sizeof a), memset(b, 0, sizeof b);
                    g.m = M, g.n = n, g.k = k, g.trans_a = way & 1, g.trans_b = way >> 1 & 1;
                    g.a = a, g.b = b, g.c = c, g.compute = AMP_BF16;
                    g.a_type = way & 4 ? AMP_BF16 : AMP_F32;
                    for (i = 0; i < M; i++)
                        ampi_store(a, g.a_type, g.trans_a ? (k - 1) * M + i : i * k + k - 1, 0x0da20000u); /* 1e-30 */
                    for (i = 0; i < n; i++) b[g.trans_b ? i * k + k - 1 : (k - 1) * n + i] = -1e-10f;
                    CHECK_EQ_INT(amp_gemm(NULL, &g), AMP_OK);
                    g.c = part, g.lda = g.trans_a ? M : 0;
                    for (i = 0; i < COUNT_OF(few); i++) {
                        g.m = few[i];
                        CHECK_EQ_INT(amp_gemm(NULL, &g), AMP_OK);
                        CHECK_MEM(part, c, few[i] * n * sizeof *c);
                    }
                }
    }
    amp_cpu_force_tier(NULL);
}

static float      alpha_seen;
static amp_result see_alpha(const amp_backend *self, const amp_gemm_args *args) {
    (void)self;
    alpha_seen = args->alpha;
    return AMP_OK;
}

TEST(alpha, "manual: in amp_gemm_args an alpha of 0, of either sign, means 1; C = beta C is a k of 0") {
    float          a[1] = {3}, b[1] = {5}, c[1] = {7};
    amp_backend    backend;
    ampi_functions functions;
    amp_gemm_args  g;
    memset(&g, 0, sizeof g);
    g.m = g.n = g.k = 1, g.a = a, g.b = b, g.c = c;
    CHECK_EQ_INT(amp_gemm(NULL, &g), AMP_OK);
    CHECK_EQ_F32(c[0], 15.0f);
    g.alpha = -0.0f, g.beta = 2.0f;
    CHECK_EQ_INT(amp_gemm(NULL, &g), AMP_OK);
    CHECK_EQ_F32(c[0], 45.0f);
    g.k = 0;
    CHECK_EQ_INT(amp_gemm(NULL, &g), AMP_OK);
    CHECK_EQ_F32(c[0], 90.0f);
    CHECK_EQ_INT(amp_cpu_backend(&backend), AMP_OK);
    functions         = *backend.functions;
    functions.gemm_fn = see_alpha;
    backend.functions = &functions;
    CHECK_EQ_INT(amp_gemm(&backend, &g), AMP_OK);
    CHECK_EQ_F32(alpha_seen, 1.0f);
    g.alpha = 0.0f;
    CHECK_EQ_INT(amp_gemm(&backend, &g), AMP_OK);
    CHECK_EQ_F32(alpha_seen, 1.0f);
}

int main(int argc, char **argv) {
    test_begin(argc, argv);
    fp_set(FP_IEEE); /* -Ofast links flush subnormals from the start */
    RUN(refusal); /* before anybody uses tiles */
    RUN(small);
    RUN(large);
    RUN(alpha_beta);
    RUN(not_read);
    RUN(empty);
    RUN(subnormal_alpha);
    RUN(infinities);
    RUN(nan_factors);
    RUN(overflow);
    RUN(bad_arguments);
    RUN(large_sides);
    RUN(far_apart);
    RUN(other_backend);
    RUN(exact);
    RUN(bits_c);
    RUN(bits_avx2);
    RUN(bits_avx512);
    RUN(bits_neon);
    RUN(bits_mmla);
    RUN(bits_pairs);
    RUN(bits_amx);
    RUN(activation);
    RUN(rounded);
    RUN(transposes);
    RUN(traps);
    RUN(environment);
    RUN(gemm_bias);
    RUN(heads);
    RUN(workspace);
    RUN(layout);
    RUN(nothing_to_read);
    RUN(overlap);
    RUN(alpha);
    RUN(layers);
    RUN(layers_in_place);
    RUN(layers_refuse);
    RUN(layers_bias);
    RUN(guarded);
    RUN(batch_stored);
    RUN(batch_rounded);
    RUN(batch_scope);
    RUN(batch_cache);
    RUN(batch_zero);
    return test_end();
}
