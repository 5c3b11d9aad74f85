/* sweep.c - fp32 products of the shapes that trainers have, in one tier: make bench-sweep

   A line is "tier mxnxk op(A)op(B) lda/ldb/ldc us GFLOP/s", then the time of each rival over ours: another
   version of amp.h (REF), OpenBLAS if it is there (one thread, OPENBLAS_CORETYPE as the tier), and the
   faster of two plain loops by -O3 -march=native with FMA. All take turns; the fastest turn of each counts.
   At the end stand the geometric means, the ten shapes that are slowest beside OpenBLAS or the loop, and
   the steps: where a size one larger takes 1.5 times as long as its work has grown.
   usage: sweep TIER [rounds]    compare.sh links it with a version, or with two                       */

#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blas.h"
#include "clock.h"
#include "compare.h"

enum { ROOM = 1 << 22, MOST = 400, OURS = 0, REF, BLAS, LOOP, SIDES };

typedef struct result { char name[72]; double least, ratio[SIDES]; } result;

static const char *const names[SIDES] = {"", "ref", "blas", "loop"};
static const double      turn = 3e-4; /* seconds */
static float            *a, *b, *c;
static row               now;
static const char       *tier;
static int               rounds = 15, num_results;
static result            results[MOST];

/* By rows of B where they lie side by side, or a sum after the other. */
static void loop_rows(void) {
    const size_t m = now.m, n = now.cols, k = now.k;
    const size_t ai = now.trans_a ? 1 : now.lda, ak = now.trans_a ? now.lda : 1;
    const float *restrict x = a, *restrict y = b;
    float *restrict       z = c;
    size_t                i, j, q;
    for (i = 0; i < m; i++) {
        for (j = 0; j < n; j++) z[i * now.ldc + j] = 0.0f;
        for (q = 0; q < k; q++)
            for (j = 0; j < n; j++) z[i * now.ldc + j] += x[i * ai + q * ak] * y[q * now.ldb + j];
    }
}
static void loop_sums(void) {
    const size_t m = now.m, n = now.cols, k = now.k;
    const size_t ai = now.trans_a ? 1 : now.lda, ak = now.trans_a ? now.lda : 1;
    const size_t bj = now.trans_b ? now.ldb : 1, bk = now.trans_b ? 1 : now.ldb;
    size_t       i, j, q;
    for (i = 0; i < m; i++)
        for (j = 0; j < n; j++) {
            float sum = 0.0f;
            for (q = 0; q < k; q++) sum += a[i * ai + q * ak] * b[j * bj + q * bk];
            c[i * now.ldc + j] = sum;
        }
}

static void run(int side) {
    switch (side) {
    case OURS: side_new.run(&now); break;
#ifndef ALONE
    case REF: side_ref.run(&now); break;
#endif
    case BLAS:
        blas(101, now.trans_a ? 112 : 111, now.trans_b ? 112 : 111, (int)now.m, (int)now.cols, (int)now.k, 1.0f, a,
             (int)now.lda, b, (int)now.ldb, 0.0f, c, (int)now.ldc);
        break;
    default: now.trans_b ? loop_sums() : loop_rows();
    }
}

static double seconds(int side, int repeat) {
    double start;
    int    i;
    run(side); /* its caches, not those of the side before */
    start = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    for (i = 0; i < repeat; i++) run(side);
    return (seconds_of(CLOCK_PROCESS_CPUTIME_ID) - start) / repeat;
}

/* The fastest turn of each side that is not left out; 0 of one that is. */
static void measure(size_t m, size_t n, size_t k, const char *trans, const size_t *ld, int sides, double *t) {
    int repeat[SIDES], i, s;
    memset(&now, 0, sizeof now);
    now.what = PRODUCT;
    now.m = m, now.cols = n, now.k = k, now.count = 1;
    now.trans_a = trans[0] == 'T', now.trans_b = trans[1] == 'T';
    now.lda = now.trans_a ? m : k, now.ldb = now.trans_b ? k : n, now.ldc = n;
    if (ld) now.lda = ld[0], now.ldb = ld[1], now.ldc = ld[2];
    now.a = a, now.b = b, now.c = c;
    for (s = 0; s < SIDES; s++) {
        t[s] = 0.0;
        if (s >= sides || (s == BLAS && !blas)) continue;
#ifdef ALONE
        if (s == REF) continue;
#endif
        if (s == LOOP && (double)m * (double)n * (double)k > 1 << 23) continue;
        t[s] = seconds(s, 1);
        if (t[s] < turn) t[s] = seconds(s, 4);
        repeat[s] = t[s] > turn ? 1 : (int)(turn / (t[s] + 1e-9)) + 1;
    }
    for (i = 0; i < rounds; i++)
        for (s = 0; s < SIDES; s++)
            if (t[s] > 0.0) t[s] = fmin(t[s], seconds(s, repeat[s]));
}

static void shape(size_t m, size_t n, size_t k, const char *trans, const size_t *ld) {
    result *r = &results[num_results];
    double  t[SIDES];
    int     s;
    if (num_results == MOST) return;
    num_results++;
    measure(m, n, k, trans, ld, SIDES, t);
    sprintf(r->name, "%lux%lux%lu %s %lu/%lu/%lu", (unsigned long)m, (unsigned long)n, (unsigned long)k, trans,
            (unsigned long)now.lda, (unsigned long)now.ldb, (unsigned long)now.ldc);
    printf("%-7s %-36s %10.2f us %6.1f GFLOP/s", tier, r->name, 1e6 * t[OURS],
           2e-9 * (double)m * (double)n * (double)k / t[OURS]);
    r->least = 1e9;
    for (s = 1; s < SIDES; s++) {
        r->ratio[s] = t[s] / t[OURS];
        if (t[s] > 0.0) printf("  %s %.2f", names[s], r->ratio[s]);
        if (t[s] > 0.0 && s != REF) r->least = fmin(r->least, r->ratio[s]);
    }
    puts("");
    fflush(stdout);
}

static void three(size_t m, size_t n, size_t k) {
    shape(m, n, k, "NN", NULL);
    shape(m, n, k, "NT", NULL);
    shape(m, n, k, "TN", NULL);
}

static void shapes(void) {
    static const size_t batch[]    = {2, 3, 4, 6, 7, 8, 12, 16, 32, 64, 128, 512};
    static const size_t layer[][2] = {{256, 256}, {512, 512}, {128, 784}, {1024, 1024}, {3072, 768}, {64, 4096}};
    static const size_t last[][3]  = {{4096, 8, 256}, {1000, 10, 784}, {784, 10, 1000}, {4096, 16, 64}, {128, 10, 512},
                                      {512, 10, 128}, {32, 10, 64}};
    static const size_t heads[][3] = {{64, 64, 64}, {128, 128, 64}, {1024, 1024, 64}};
    static const size_t conv[][3]  = {{16, 1024, 27}, {32, 256, 144}, {64, 64, 576}, {96, 49, 256}, {128, 49, 1152}};
    static const size_t sides[]    = {4, 7, 8, 12, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 96, 97, 100, 127, 128, 129,
                                      200, 255, 256, 257, 512, 513};
    static const size_t lds[]      = {256, 512, 1000, 1024, 1040, 2048, 4096};
    static const size_t thin[][3]  = {{512, 512, 1}, {512, 512, 2}, {2048, 64, 1}, {2, 2, 4096}, {4, 4, 4096}, {8, 8, 4096},
                                      {32, 32, 4096}, {64, 64, 4096}, {64, 2, 64}, {4096, 2, 64}, {4096, 4, 64}};
    static const char *const ways[] = {"NN", "NT", "TN", "TT"};
    size_t i, j, l;
    for (l = 0; l < 6; l++)
        for (i = 0; i < 12; i++) {
            if (batch[i] > 64 && layer[l][0] * layer[l][1] > 300000) continue;
            shape(batch[i], layer[l][0], layer[l][1], "NT", NULL); /* forward */
            if (i % 3 != 1) continue;
            shape(batch[i], layer[l][1], layer[l][0], "NN", NULL); /* dx */
            shape(layer[l][0], layer[l][1], batch[i], "TN", NULL); /* dw */
        }
    for (i = 0; i < 7; i++) three(last[i][0], last[i][1], last[i][2]);
    for (i = 0; i < 3; i++) { /* q k^T, p v, of 4 heads side by side */
        const size_t t = heads[i][0], d = heads[i][2], qk[3] = {4 * d, 4 * d, t}, pv[3] = {t, 4 * d, 4 * d};
        shape(t, t, d, "NT", qk);
        shape(t, d, t, "NN", pv);
        shape(t, d, t, "TN", pv);
    }
    for (i = 0; i < 5; i++) three(conv[i][0], conv[i][1], conv[i][2]);
    for (i = 0; i < 26; i++) shape(sides[i], sides[i], sides[i], ways[i % 4], NULL);
    for (i = 0; i < 7; i++)
        for (j = 0; j < 4; j++) {
            const size_t ld[3] = {lds[i], lds[i], lds[i]};
            shape(128, 128, 128, ways[j], ld);
            if (j == 0) shape(64, 64, 64, "NN", ld);
        }
    for (i = 0; i < 11; i++) three(thin[i][0], thin[i][1], thin[i][2]);
}

/* Sizes one larger, along each side of some products, in turns of ours alone. */
static void steps(void) {
    static const size_t base[][3] = {{64, 64, 64}, {8, 512, 512}, {512, 8, 512}, {256, 256, 256}, {16, 16, 1024}};
    static const size_t at[]      = {1, 2, 3, 4, 6, 7, 8, 12, 15, 16, 18, 24, 31, 32, 48, 63, 64, 96, 127, 128, 255, 256, 512};
    static const char *const ways[] = {"NN", "NT", "TN"};
    size_t i, j, d, w;
    printf("steps of %s: where one more takes over 1.5 times as long as its work has grown\n", tier);
    for (i = 0; i < 5; i++)
        for (d = 0; d < 3; d++)
            for (j = 0; j < 23; j++)
                for (w = 0; w < 3; w++) {
                    size_t s[3] = {base[i][0], base[i][1], base[i][2]};
                    double t[2][SIDES], jump;
                    int    again;
                    for (again = 0; again < 3; again++) { /* noise does not come three times */
                        s[d] = at[j];
                        measure(s[0], s[1], s[2], ways[w], NULL, 1, t[0]);
                        s[d]++;
                        measure(s[0], s[1], s[2], ways[w], NULL, 1, t[1]);
                        jump = t[1][0] / t[0][0] * (double)at[j] / (double)(at[j] + 1);
                        if (jump <= 1.5) break;
                    }
                    if (again == 3)
                        printf("step    %lux%lux%lu %s: %c %lu to %lu, %.2f to %.2f us, %.2f of its work\n",
                               (unsigned long)s[0], (unsigned long)s[1], (unsigned long)s[2], ways[w], "mnk"[d],
                               (unsigned long)at[j], (unsigned long)at[j] + 1, 1e6 * t[0][0], 1e6 * t[1][0], jump);
                }
}

static int by_least(const void *x, const void *y) {
    const double p = ((const result *)x)->least, q = ((const result *)y)->least;
    return (p > q) - (p < q);
}

int main(int argc, char **argv) {
    size_t i;
    int    s, k, count, below;
    tier = argc > 1 ? argv[1] : "";
    if (argc > 2) rounds = (int)strtol(argv[2], NULL, 10);
    if (!side_new.force(tier)) {
        printf("skip %s: not on this machine\n", tier);
        return 0;
    }
    a = (float *)malloc(ROOM * 4), b = (float *)malloc(ROOM * 4), c = (float *)calloc(ROOM, 4);
    if (!a || !b || !c || rounds < 1) return 2;
#ifndef ALONE
    if (!side_ref.force(tier)) return 2;
#endif
    for (i = 0; i < ROOM; i++) a[i] = b[i] = (float)(i * 2654435761u >> 8 & 0xffffu) * 1e-5f - 0.3f;
    print_machine(side_new.version, tier);
    find_blas(tier);
    shapes();
    steps();
    for (s = 1; s < SIDES; s++) {
        double sum = 0.0;
        for (k = count = below = 0; k < num_results; k++)
            if (results[k].ratio[s] > 0.0)
                sum += log(results[k].ratio[s]), count++, below += results[k].ratio[s] < 0.97;
        if (count)
            printf("mean    %s %s: %.3f of %d shapes, %d below .97\n", tier, names[s], exp(sum / count), count, below);
    }
    qsort(results, (size_t)num_results, sizeof *results, by_least);
    for (k = 0; k < 10 && k < num_results; k++)
        printf("worst   %s %s: blas %.2f loop %.2f\n", tier, results[k].name, results[k].ratio[BLAS], results[k].ratio[LOOP]);
    return 0;
}
