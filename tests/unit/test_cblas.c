/* test_cblas.c - AMP_CBLAS_DROP_IN: cblas_sgemm beside sums in double and beside amp_gemm. Linked with
   --wrap=cblas_sgemm, so that what goes to the original is seen. */

#define _GNU_SOURCE /* setenv */
#include <cblas.h>
#define AMP_CBLAS_DROP_IN
#define AMP_IMPLEMENTATION
#include "amp.h"
#include "../support/gemm_args.h"
#include "../support/random.h"
#include "../support/test.h"
#include "../support/values.h"

#include <math.h>
#include <pthread.h>

/* What went to the original, last. */
void __wrap_cblas_sgemm(unsigned order, unsigned ta, unsigned tb, int m, int n, int k, float alpha,
                        const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
static struct { unsigned order, ta, tb; int m, n, k, lda, ldb, ldc, calls; const float *a, *b, *c; } original;
void __wrap_cblas_sgemm(unsigned order, unsigned ta, unsigned tb, int m, int n, int k, float alpha,
                        const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc) {
    original.order = order, original.ta = ta, original.tb = tb;
    original.m = m, original.n = n, original.k = k;
    original.lda = lda, original.ldb = ldb, original.ldc = ldc;
    original.a = a, original.b = b, original.c = c;
    original.calls++;
    (void)alpha, (void)beta;
}

static amp_autocast autocast;

/* Products of this thread in type from here on, on any CPU; AMP_F32: no scope. */
static void compute_in(amp_dtype type) {
    const amp_scope scope = {NULL, AMP_AUTOCAST_ON, type};
    amp_autocast_use(NULL);
    if (type == AMP_F32) return;
    CHECK_EQ_INT(amp_autocast_init(&autocast, AMP_POLICY_DEFAULT, type), AMP_OK);
    CHECK_EQ_INT(amp_autocast_override(&autocast, "op:gemm=low"), AMP_OK);
    CHECK_EQ_INT(amp_autocast_push(&autocast, &scope), AMP_OK);
    amp_autocast_use(&autocast);
}

/* A matrix in rows or columns, or its transpose; rows and cols are those of op(X). */
typedef struct matrix { float *x; int ld; size_t size, rs, cs; } matrix;

static matrix make(int by_cols, int trans, int rows, int cols) {
    const int lines = by_cols != trans ? cols : rows, length = by_cols != trans ? rows : cols;
    matrix    m;
    size_t    i;
    m.ld   = (length ? length : 1) + (int)(random_bits() % 4);
    m.rs   = by_cols != trans ? 1 : (size_t)m.ld;
    m.cs   = by_cols != trans ? (size_t)m.ld : 1;
    m.size = (size_t)m.ld * (size_t)lines;
    m.x    = (float *)malloc(m.size * 4 + 4);
    for (i = 0; i < m.size; i++) m.x[i] = random_value();
    return m;
}

/* op(X) in packed rows. */
static float *packed(const matrix *m, int rows, int cols) {
    float *x = (float *)malloc((size_t)rows * (size_t)cols * 4 + 4);
    int    i, j;
    for (i = 0; i < rows; i++)
        for (j = 0; j < cols; j++) x[i * cols + j] = m->x[(size_t)i * m->rs + (size_t)j * m->cs];
    return x;
}

static int any_size(void) {
    const uint32_t r = random_bits() % 64;
    return (int)(r == 0 ? 0 : r < 4 ? 1 : r < 40 ? 1 + random_bits() % 20 : r < 62 ? 1 + random_bits() % 60
                                                                           : 60 + random_bits() % 140);
}

/* One call; the bits of amp_gemm on op(A) and op(B) in packed rows, rounded by amp_cast where 32^3 products or
   more are wanted in type; in columns of C' = op(B)' op(A)', as fp16 in tiles adds up otherwise. With e = 2^-24: k products and k sums in any order are off by at most k e / (1 - k e)
   times the sum of |a||b|; alpha, beta and the last sum round three times more. */
static void one_call(amp_dtype type) {
    static const float alphas[] = {1.0f, -0.5f, 0.0f, 1.75f}, betas[] = {0.0f, 1.0f, 0.25f, -1.0f};
    const double e = 5.9604644775390625e-8;
    const int    by_cols = (int)(random_bits() % 2), ta = (int)(random_bits() % 3), tb = (int)(random_bits() % 3);
    const int    m = any_size(), n = any_size(), k = any_size();
    const float  alpha = alphas[random_bits() % 16 ? random_bits() % 2 * 3 : random_bits() % 4];
    const float  beta  = betas[random_bits() % 4];
    matrix       a = make(by_cols, ta != 0, m, k), b = make(by_cols, tb != 0, k, n), c = make(by_cols, 0, m, n);
    matrix       ct = {c.x, c.ld, c.size, c.cs, c.rs}; /* C' */
    float       *pa = packed(&a, m, k), *pb = packed(&b, k, n), *pd = packed(&c, m, n);
    float       *pc = by_cols ? packed(&ct, n, m) : packed(&c, m, n);
    float       *before = (float *)malloc(c.size * 4 + 4);
    size_t       i, j, l, wrong = 0, off = 0;
    amp_dtype    in = (by_cols ? m : n) * k < 1024 ? AMP_F32 : type; /* m and n of amp_gemm's C */
    if (in != AMP_F32) { /* in place: rounded, and for the sums in double back in fp32 */
        CHECK_EQ_INT(amp_cast(pa, in, pa, AMP_F32, (size_t)m * (size_t)k), AMP_OK);
        CHECK_EQ_INT(amp_cast(pb, in, pb, AMP_F32, (size_t)k * (size_t)n), AMP_OK);
    }
    memcpy(before, c.x, c.size * 4);
    compute_in(AMP_F32);
    if (by_cols) CHECK_EQ_INT(gemm_one(NULL, 1, 1, (size_t)n, (size_t)m, (size_t)k, alpha, pb, in, 0, pa, in, 0, beta,
                                       pc, AMP_F32, 0), AMP_OK);
    else CHECK_EQ_INT(gemm_one(NULL, 0, 0, (size_t)m, (size_t)n, (size_t)k, alpha, pa, in, 0, pb, in, 0, beta, pc,
                               AMP_F32, 0), AMP_OK);
    compute_in(type);
    cblas_sgemm(by_cols ? CblasColMajor : CblasRowMajor, ta == 2 ? CblasConjTrans : ta ? CblasTrans : CblasNoTrans,
                tb == 2 ? CblasConjTrans : tb ? CblasTrans : CblasNoTrans, m, n, k, alpha, a.x, a.ld, b.x, b.ld,
                beta, c.x, c.ld);
    compute_in(AMP_F32);
    for (i = 0; i < (size_t)m; i++)
        for (j = 0; j < (size_t)n; j++) {
            const size_t at = i * c.rs + j * c.cs;
            double       sum = 0.0, size = 0.0, wanted, bound, x, y;
            for (l = 0; l < (size_t)k; l++) {
                x = (double)load(pa, in, i * (size_t)k + l);
                y = (double)load(pb, in, l * (size_t)n + j);
                sum += x * y, size += fabs(x * y);
            }
            wanted = (double)alpha * sum + (double)beta * (double)pd[i * (size_t)n + j];
            bound  = ((double)k + 3.0) * e * 1.001 * fabs((double)alpha) * size;
            bound += 3.0 * e * fabs((double)beta * (double)pd[i * (size_t)n + j]);
            bound += e * (fabs(wanted) + bound) + (double)k * 1.2e-38; /* 16-bit products may flush sums */
            wrong += memcmp(&c.x[at], &pc[by_cols ? j * (size_t)m + i : i * (size_t)n + j], 4) != 0;
            off += !(fabs((double)c.x[at] - wanted) <= bound);
            before[at] = c.x[at];
        }
    CHECK_MEM(c.x, before, c.size * 4); /* what lies between rows is as it was */
    if (wrong || off) {
        char what[128];
        snprintf(what, sizeof what, "type %d, columns %d, trans %d%d, %d x %d x %d: %lu bits, %lu sums", (int)type,
                 by_cols, ta, tb, m, n, k, (unsigned long)wrong, (unsigned long)off);
        test_fail(__FILE__, __LINE__, "cblas_sgemm", what);
    }
    free(a.x), free(b.x), free(c.x), free(pa), free(pb), free(pc), free(pd), free(before);
}

TEST(calls, "contract: random calls in both orders, every transpose, alpha, beta and odd leading dimensions have "
            "amp_gemm's bits (in columns, of the transposes), in fp32 and rounded in a scope, and are sums in "
            "double within the bound") {
    const int calls = test_state.quick ? 4000 : 40000;
    int       i;
    original.calls = 0;
    for (i = 0; i < calls; i++) one_call((amp_dtype)(i % 4 < 2 ? AMP_F32 : i % 4 - 1));
    CHECK_EQ_INT(original.calls, 0);
}

TEST(refused, "contract: bad input goes to the original as it came, and amp.h writes nothing") {
    enum { N = 4 };
    static const struct { unsigned order, ta, tb; int m, n, k, lda, ldb, ldc; } bad[] = {
        {100, 111, 111, N, N, N, N, N, N}, {0, 111, 111, N, N, N, N, N, N},     {101, 110, 111, N, N, N, N, N, N},
        {101, 111, 115, N, N, N, N, N, N}, {102, 114, 111, N, N, N, N, N, N},   {101, 111, 111, -1, N, N, N, N, N},
        {102, 111, 111, N, -1, N, N, N, N}, {101, 111, 111, N, N, -7, N, N, N}, {101, 111, 111, N, N, N, N - 1, N, N},
        {102, 112, 111, N, N, N, N, 0, N}, {101, 111, 112, N, N, N, N, -N, N},  {102, 111, 111, N, N, N, N, N, N - 1},
        {101, 111, 111, 0, N, N, 1, N, N}, {101, 111, 111, N, 1, N, N, 1, 0}};
    float  a[64] = {0}, b[64] = {0}, c[64];
    size_t i, k;
    for (i = 0; i < 64; i++) c[i] = 3.0f;
    for (i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const unsigned order = bad[i].order, ta = bad[i].ta, tb = bad[i].tb;
        memset(&original, 0, sizeof original);
        amp_cblas_sgemm(order, ta, tb, bad[i].m, bad[i].n, bad[i].k, 1.0f, a, bad[i].lda, b, bad[i].ldb, 0.0f, c,
                        bad[i].ldc);
        CHECK_EQ_INT(original.calls, 1);
        CHECK(original.order == order && original.ta == ta && original.tb == tb && original.m == bad[i].m &&
              original.n == bad[i].n && original.k == bad[i].k && original.a == a && original.lda == bad[i].lda &&
              original.b == b && original.ldb == bad[i].ldb && original.c == c && original.ldc == bad[i].ldc);
    }
    for (k = 0; k < 64; k++) CHECK_EQ_F32(c[k], 3.0f);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, N, N, N, 1.0f, a, N, b, N, 0.0f, a + 3, N); /* overlap */
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, N, N, N, 1.0f, NULL, N, b, N, 0.0f, c, N);
    CHECK_EQ_INT(original.calls, 3);
    cblas_sgemm(CblasColMajor, CblasNoTrans, CblasTrans, 0, N, 0, 1.0f, NULL, 1, NULL, N, 0.0f, NULL, 1);
    CHECK_EQ_INT(original.calls, 3);
}

TEST(not_read, "contract: an alpha of 0, of either sign, is a factor, as in BLAS: A and B are not read, may be NULL, "
               "and are no overlap; a leading dimension is then bad as ever") {
    float  nan[4], c[4] = {1, 2, 3, 4};
    size_t i;
    memset(nan, 0xff, sizeof nan);
    original.calls = 0;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 2, 2, 2, 0.0f, nan, 2, nan, 2, 2.0f, c, 2);
    cblas_sgemm(CblasColMajor, CblasTrans, CblasNoTrans, 2, 2, 2, -0.0f, NULL, 2, c, 2, 2.0f, c, 2);
    for (i = 0; i < 4; i++) CHECK_EQ_F32(c[i], 4.0f * (float)(i + 1));
    CHECK_EQ_INT(original.calls, 0);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 2, 2, 2, 0.0f, nan, 1, nan, 2, 2.0f, c, 2);
    CHECK_EQ_INT(original.calls, 1);
}

enum { SIDE = 40 };
typedef struct product { float a[SIDE * SIDE], b[SIDE * SIDE], c[SIDE * SIDE]; } product;

static void run(product *p) {
    cblas_sgemm(CblasColMajor, CblasTrans, CblasNoTrans, SIDE, SIDE, SIDE, 1.0f, p->a, SIDE, p->b, SIDE, 0.0f, p->c,
                SIDE);
}
static void *worker(void *p) {
    run((product *)p);
    return NULL;
}
static void *worker_with_autocast(void *p) {
    amp_autocast mine = autocast;
    amp_autocast_use(&mine);
    run((product *)p);
    return NULL;
}

TEST(threads, "contract: a worker thread computes in fp32, until it uses a copy of the autocast") {
    static product fp32, bf16, work;
    pthread_t      thread;
    size_t         i;
    for (i = 0; i < SIDE * SIDE; i++) fp32.a[i] = random_value(), fp32.b[i] = random_value();
    bf16 = work = fp32;
    run(&fp32);
    compute_in(AMP_BF16);
    run(&bf16);
    CHECK(memcmp(fp32.c, bf16.c, sizeof fp32.c) != 0);
    CHECK_EQ_INT(pthread_create(&thread, NULL, worker, &work), 0);
    pthread_join(thread, NULL);
    CHECK_MEM(work.c, fp32.c, sizeof work.c);
    CHECK_EQ_INT(pthread_create(&thread, NULL, worker_with_autocast, &work), 0);
    pthread_join(thread, NULL);
    CHECK_MEM(work.c, bf16.c, sizeof work.c);
    compute_in(AMP_F32);
}

/* Large enough for fp16 where that pays, in the session of README. */
static void in_session(const char *dtype, float *c) {
    static float       a[64 * 64], b[64 * 64];
    static amp_session s;
    size_t             i;
    for (i = 0; i < 64 * 64; i++) a[i] = (float)(i % 61) / 59.0f, b[i] = (float)(i % 67) / 63.0f - 0.5f;
    if (dtype) CHECK_EQ_INT(setenv("AMP_DTYPE", dtype, 1), 0);
    CHECK_EQ_INT(amp_session_start(&s, NULL), AMP_OK);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 64, 64, 64, 1.0f, a, 64, b, 64, 0.0f, c, 64);
    amp_session_end(&s);
    unsetenv("AMP_DTYPE");
}

TEST(where_it_pays, "README: products are in bf16 where that pays, else in fp32; with AMP_DTYPE=fp16 in fp16 where "
                    "that pays, else in fp32") {
    static float   c[4][64 * 64];
    amp_capability cpu;
    CHECK_EQ_INT(amp_capability_of(0, 0, &cpu), AMP_OK);
    compute_in(AMP_F32);
    in_session("fp32", c[0]);
    in_session(NULL, c[1]);
    in_session("bf16", c[2]);
    in_session("fp16", c[3]);
    CHECK_EQ_INT(memcmp(c[1], c[0], sizeof c[0]) != 0, cpu.bf16);
    CHECK_EQ_INT(memcmp(c[2], c[0], sizeof c[0]) != 0, cpu.bf16);
    CHECK_EQ_INT(memcmp(c[3], c[0], sizeof c[0]) != 0, cpu.fp16);
    CHECK_MEM(c[1], c[2], sizeof c[0]);
}

int main(int argc, char **argv) {
    test_begin(argc, argv);
    RUN(calls);
    RUN(refused);
    RUN(not_read);
    RUN(threads);
    RUN(where_it_pays);
    return test_end();
}
