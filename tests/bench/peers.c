/* peers.c - fp32 products of amp.h beside a CBLAS, one thread each: medians of runs in turns. Where the
   first product takes the CBLAS SLOW times as long (one without vectors), that is all that is said.
   usage: peers TIER [rounds]    set the BLAS's own instruction set with its variable: peers.sh */

#define _POSIX_C_SOURCE 200809L
#define AMP_IMPLEMENTATION
#include "amp.h"

#include <cblas.h>
#include <stdio.h>

#include "clock.h"

enum { ROOM = 2048 * 2048, MOST = 101, SLOW = 20 };

typedef struct shape { int ta, tb, m, n, k; } shape;

static void run(int ours, const shape *s, const float *a, const float *b, float *c) {
    const amp_gemm_args g = {.trans_a = s->ta, .trans_b = s->tb, .m = (size_t)s->m,
                             .n = (size_t)s->n, .k = (size_t)s->k, .a = a, .b = b, .c = c};
    if (ours)
        MUST(amp_gemm(NULL, &g));
    else
        cblas_sgemm(CblasRowMajor, s->ta ? CblasTrans : CblasNoTrans,
                    s->tb ? CblasTrans : CblasNoTrans, s->m, s->n, s->k, 1.0f, a,
                    s->ta ? s->m : s->k, b, s->tb ? s->k : s->n, 0.0f, c, s->n);
}

/* The better of two runs: the first one touches memory. */
static double best_of_two(int ours, const shape *s, const float *a, const float *b, float *c) {
    double t[2];
    int    i;
    for (i = 0; i < 2; i++) {
        const double start = seconds_of(CLOCK_MONOTONIC);
        run(ours, s, a, b, c);
        t[i] = seconds_of(CLOCK_MONOTONIC) - start;
    }
    return t[0] < t[1] ? t[0] : t[1];
}

int main(int argc, char **argv) {
    static const shape shapes[] = {{0, 0, 512, 512, 512},  {0, 0, 1024, 1024, 1024},
                                   {0, 0, 2048, 2048, 2048}, {0, 0, 256, 3072, 768},
                                   {0, 0, 64, 512, 784},   {1, 0, 784, 512, 64},
                                   {1, 0, 768, 768, 1024}, {0, 1, 1024, 768, 768}};
    const int          rounds = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 9;
    float             *a = (float *)malloc(ROOM * 4), *b = (float *)malloc(ROOM * 4);
    float             *c = (float *)calloc(ROOM, 4);
    size_t             i;
    if (argc < 2 || rounds < 1 || rounds > MOST || !a || !b || !c) return 2;
    if (amp_cpu_force_tier(argv[1]) != AMP_OK) {
        printf("skip %s: not on this processor\n", argv[1]);
        return 0;
    }
    for (i = 0; i < ROOM; i++) {
        a[i] = (float)(int)(i * 2654435761u >> 8 & 0xffffu) * 1e-5f - 0.3f;
        b[i] = (float)(int)(i * 2246822519u >> 8 & 0xffffu) * 1e-5f - 0.3f;
    }
    for (i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const shape *s    = &shapes[i];
        const double work = 2.0 * s->m * s->n * s->k;
        const int    reps = (int)(1e9 / work) + 1;
        double       t[2][MOST], ratio[MOST];
        int          r, who, q;
        t[1][0] = best_of_two(1, s, a, b, c);
        t[0][0] = best_of_two(0, s, a, b, c);
        if (t[0][0] > SLOW * t[1][0]) {
            printf("gemm fp32 %s / BLAS  %dx%dx%d  %.1f GFLOP/s  BLAS %.1f: over %d times slower, other "
                   "sizes left out\n", argv[1], s->m, s->n, s->k, work / t[1][0] * 1e-9,
                   work / t[0][0] * 1e-9, SLOW);
            break;
        }
        for (r = 0; r < rounds; r++) {
            for (who = 0; who < 2; who++) {
                double start;
                run(who, s, a, b, c);
                start = seconds_of(CLOCK_MONOTONIC);
                for (q = 0; q < reps; q++) run(who, s, a, b, c);
                t[who][r] = (seconds_of(CLOCK_MONOTONIC) - start) / reps;
            }
            ratio[r] = t[0][r] / t[1][r];
        }
        printf("gemm fp32 %s / BLAS  %c%c %dx%dx%d  %.1f GFLOP/s  BLAS %.1f  ratio=%.2f "
               "[%.2f %.2f]\n", argv[1], s->ta ? 'T' : 'N', s->tb ? 'T' : 'N', s->m, s->n, s->k,
               work / quantile(t[1], rounds, 0.5) * 1e-9, work / quantile(t[0], rounds, 0.5) * 1e-9,
               quantile(ratio, rounds, 0.5), quantile(ratio, rounds, 0.25),
               quantile(ratio, rounds, 0.75));
        fflush(stdout);
    }
    return 0;
}
