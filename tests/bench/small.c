/* small.c - products with few rows, with one, and small ones, in one tier: make bench-small

   A line is "tier row us rival us ratio, median [quartiles]": the fastest turn of each, then the rival's
   time over ours: of the fastest turns, and of all. Turns alternate. Rivals:

       row by row   ours, a product of one row for each
       fp32         ours, of fp32
       loop         what one would write, by -O3 -march=native with FMA; of two orders the faster one
       BLAS         OpenBLAS where it is, one thread, OPENBLAS_CORETYPE as the tier

   cc -O3 -march=native -ffp-contract=fast -I. tests/bench/small.c -o small -lm -ldl
   usage: small TIER [rounds]                                                                  */

#define _POSIX_C_SOURCE 200809L
#define AMP_IMPLEMENTATION
#include "amp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blas.h"
#include "clock.h"

enum { ROOM = 1 << 22, MOST = 201 };

static const double turn = 3e-4; /* seconds */

typedef enum rival { BY_ROW, FP32, LOOP, BLAS } rival;
static const char *const rivals[] = {"row by row", "fp32", "loop", "BLAS"};
static const char *const types[]  = {"fp32", "fp16", "bf16"};

static void          *a[3], *b[3]; /* the same numbers in each type */
static float         *c;
static int            rounds = 51;
static amp_gemm_args  g; /* the product of a row */

/* Two orders, of which the faster one counts: of rows of B, if they are that, or a sum after the other. */
static void loop_rows(void) {
    const size_t m = g.m, n = g.n, k = g.k;
    const float *restrict x = (const float *)g.a, *restrict y = (const float *)g.b;
    float *restrict       z = (float *)g.c;
    size_t                p, i, j, q;
    for (p = 0; p < g.count; p++, x += m * k, y += k * n, z += m * n)
        for (i = 0; i < m; i++) {
            for (j = 0; j < n; j++) z[i * n + j] = 0.0f;
            for (q = 0; q < k; q++)
                for (j = 0; j < n; j++) z[i * n + j] += x[i * k + q] * y[q * n + j];
        }
}
static void loop_sums(void) {
    const size_t m = g.m, n = g.n, k = g.k, bk = g.trans_b ? 1 : n, bn = g.trans_b ? k : 1;
    const float *restrict x = (const float *)g.a, *restrict y = (const float *)g.b;
    float *restrict       z = (float *)g.c;
    size_t                p, i, j, q;
    for (p = 0; p < g.count; p++, x += m * k, y += k * n, z += m * n)
        for (i = 0; i < m; i++)
            for (j = 0; j < n; j++) {
                float sum = 0.0f;
                for (q = 0; q < k; q++) sum += x[i * k + q] * y[q * bk + j * bn];
                z[i * n + j] = sum;
            }
}

static void by_row(void) {
    amp_gemm_args one = g;
    size_t        i;
    one.m = 1;
    for (i = 0; i < g.m; i++) {
        one.a = (const char *)g.a + i * g.k * amp_dtype_size(g.a_type);
        one.c = (float *)g.c + i * g.n;
        MUST(amp_gemm(NULL, &one));
    }
}

static void in_fp32(void) {
    amp_gemm_args q = g;
    q.a = a[0], q.b = b[0];
    q.a_type = q.b_type = q.compute = AMP_F32;
    MUST(amp_gemm(NULL, &q));
}

static void by_blas(void) {
    size_t i;
    for (i = 0; i < g.count; i++)
        blas(101, g.trans_a ? 112 : 111, g.trans_b ? 112 : 111, (int)g.m, (int)g.n, (int)g.k, 1.0f,
             (const float *)g.a + i * g.stride_a, (int)(g.trans_a ? g.m : g.k),
             (const float *)g.b + i * g.stride_b, (int)(g.trans_b ? g.k : g.n), 0.0f,
             (float *)g.c + i * g.stride_c, (int)g.n);
}

static void ours(void) { MUST(amp_gemm(NULL, &g)); }

static double seconds(void (*run)(void), int repeat) {
    const double start = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    int          i;
    for (i = 0; i < repeat; i++) run();
    return (seconds_of(CLOCK_PROCESS_CPUTIME_ID) - start) / repeat;
}

/* How often run fits into a turn. */
static int fits(void (*run)(void)) {
    double t;
    run();
    t = seconds(run, 1);
    t = seconds(run, t > turn ? 1 : 10);
    return t > turn ? 1 : (int)(turn / (t + 1e-8)) + 1;
}

static void beside(const char *what, rival who) {
    static void (*const runs[])(void) = {by_row, in_fp32, loop_rows, by_blas};
    void (*other)(void) = runs[who];
    double x[MOST], t[2][MOST];
    int    r, repeat[2];
    if (who == BLAS && !blas) return;
    if (who == LOOP && (g.trans_b || fits(loop_sums) > fits(loop_rows))) other = loop_sums;
    repeat[0] = fits(ours), repeat[1] = fits(other);
    for (r = 0; r < rounds; r++) {
        t[r % 2][r]  = seconds(r % 2 ? other : ours, repeat[r % 2]);
        t[!(r % 2)][r] = seconds(r % 2 ? ours : other, repeat[!(r % 2)]);
        x[r] = t[1][r] / t[0][r];
    }
    printf("%-11s %-36s %10.3f us  %-10s %10.3f  ratio=%.2f  median %.2f [%.2f %.2f]\n", amp_cpu_tier(), what,
           1e6 * quantile(t[0], rounds, 0.0), rivals[who], 1e6 * quantile(t[1], rounds, 0.0),
           quantile(t[1], rounds, 0.0) / quantile(t[0], rounds, 0.0), quantile(x, rounds, 0.5),
           quantile(x, rounds, 0.25), quantile(x, rounds, 0.75));
    fflush(stdout);
}

/* trans: 1 of A, 2 of B. */
static void product(const char *what, size_t m, size_t n, size_t k, size_t count, int trans, amp_dtype type,
                    amp_dtype compute, rival who) {
    char name[80], batch[16] = "";
    memset(&g, 0, sizeof g);
    g.m = m, g.n = n, g.k = k, g.count = count;
    g.trans_a = trans & 1, g.trans_b = trans >> 1;
    g.stride_a = m * k, g.stride_b = n * k, g.stride_c = m * n;
    g.a = a[type], g.b = b[type], g.c = c;
    g.a_type = g.b_type = type;
    g.compute = compute;
    if (count > 1) sprintf(batch, "%lu * ", (unsigned long)count);
    sprintf(name, "%s %s%lux%lux%lu %c%c %s%s", what, batch, (unsigned long)m, (unsigned long)n, (unsigned long)k,
            trans & 1 ? 'T' : 'N', trans >> 1 ? 'T' : 'N', compute ? "compute " : "", types[compute ? compute : type]);
    beside(name, who);
}

static void few_rows(void) {
    size_t m;
    int    trans, type, large;
    for (large = 0; large < 2; large++)
        for (m = 2; m <= 4; m++)
            for (trans = 0; trans <= 2; trans += 2)
                for (type = 0; type < 3; type++)
                    product("few", m, large ? 512 : 256, large ? 512 : 256, 1, trans, (amp_dtype)type, AMP_F32, BY_ROW);
}

static void one_row(void) {
    static const size_t sizes[][2] = {{256, 256}, {512, 512}, {1024, 1024}, {256, 1024}, {1024, 256}};
    size_t i;
    int    trans, type;
    for (i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (trans = 0; trans <= 2; trans += 2)
            for (type = 1; type < 3; type++) { /* rounded, and stored */
                product("one", 1, sizes[i][0], sizes[i][1], 1, trans, AMP_F32, (amp_dtype)type, FP32);
                product("one", 1, sizes[i][0], sizes[i][1], 1, trans, (amp_dtype)type, AMP_F32, FP32);
            }
}

static void small(void) {
    static const size_t sides[] = {2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128};
    size_t i, n;
    int    trans, type;
    for (i = 0; i < sizeof sides / sizeof sides[0]; i++) {
        n = sides[i];
        for (trans = 0; trans < 4; trans++) {
            if (!(trans & 1)) product("small", n, n, n, 1, trans, AMP_F32, AMP_F32, LOOP);
            product("small", n, n, n, 1, trans, AMP_F32, AMP_F32, BLAS);
        }
        for (type = 1; type < 3; type++) product("small", n, n, n, 1, 0, (amp_dtype)type, AMP_F32, FP32);
    }
    for (n = 8; n <= 16; n += 8) {
        product("batch", n, n, n, 200, 0, AMP_F32, AMP_F32, LOOP);
        for (type = 1; type < 3; type++) product("batch", n, n, n, 200, 0, (amp_dtype)type, AMP_F32, FP32);
    }
}

static void layers(void) {
    static const size_t sizes[][3] = {{32, 128, 128}, {64, 512, 784}, {256, 3072, 768}};
    size_t i;
    int    trans, type;
    for (i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (trans = 0; trans < 3; trans++)
            product("layer", sizes[i][0], sizes[i][1], sizes[i][2], 1, trans, AMP_F32, AMP_F32, BLAS);
        for (type = 1; type < 3; type++)
            product("layer", sizes[i][0], sizes[i][1], sizes[i][2], 1, 0, (amp_dtype)type, AMP_F32, FP32);
    }
}

int main(int argc, char **argv) {
    size_t i;
    int    t;
    if (argc > 2) rounds = (int)strtol(argv[2], NULL, 10);
    if (argc < 2 || rounds < 1 || rounds > MOST) {
        fprintf(stderr, "usage: small TIER [rounds 1..%d]\n", MOST);
        return 2;
    }
    if (amp_cpu_force_tier(argv[1]) != AMP_OK) {
        printf("skip %s: not on this processor\n", argv[1]);
        return 0;
    }
    for (t = 0; t < 3; t++) a[t] = malloc(ROOM * 4), b[t] = malloc(ROOM * 4);
    c = (float *)calloc(ROOM, 4);
    if (!a[0] || !a[1] || !a[2] || !b[0] || !b[1] || !b[2] || !c) return 1;
    for (i = 0; i < ROOM; i++) {
        ((float *)a[0])[i] = (float)(int)(i * 2654435761u >> 8 & 0xffffu) * 1e-5f - 0.3f;
        ((float *)b[0])[i] = (float)(int)(i * 2246822519u >> 8 & 0xffffu) * 1e-5f - 0.3f;
    }
    for (t = 1; t < 3; t++) {
        MUST(amp_cast(a[t], (amp_dtype)t, a[0], AMP_F32, ROOM));
        MUST(amp_cast(b[t], (amp_dtype)t, b[0], AMP_F32, ROOM));
    }
    find_blas(argv[1]);
    print_machine(amp_version(), amp_cpu_tier());
    few_rows();
    one_row();
    small();
    layers();
    return 0;
}
