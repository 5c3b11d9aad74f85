/* bench_ranks.c - what desc.ranks costs where there is one rank

   The same step twice, in turns: AdamW on fp32 gradients that micro-batches were added to. Without
   shard the loop adds them itself, and zero_grad clears them; with it amp_optimizer_accumulate adds
   them to accumulators of the optimizer's own. A row has the medians of the step, and of one
   micro-batch's adding, and the quartiles of the step's ratio. Both must end with the same bits.
   Exits with 1 if they do not.

   cc -O3 -I. tests/bench/bench_ranks.c -o bench_ranks -lm && ./bench_ranks [rounds]              */

#define _POSIX_C_SOURCE 200809L
#define AMP_IMPLEMENTATION
#include "amp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "clock.h"
#include "../support/prepare.h"

enum { TENSORS = 8, MICRO = 4, MAX_ROUNDS = 201, PLAIN = 0, SHARDED };

static size_t        n; /* elements of a tensor */
static amp_f16      *half;
static float        *weight, *grad;
static amp_optimizer opt[2];

static void must(amp_result r) {
    if (r == AMP_OK) return;
    fprintf(stderr, "bench_ranks: %s\n", amp_result_string(r));
    exit(1);
}

static void *need(size_t count, size_t size) {
    void *p = calloc(count, size);
    if (!p) must(AMP_ERROR_OUT_OF_MEMORY);
    return p;
}

static void begin(size_t size) {
    int i, s;
    n      = size;
    half   = (amp_f16 *)need(n, sizeof *half);
    weight = (float *)need(TENSORS * n, sizeof(float));
    grad   = (float *)need(TENSORS * n, sizeof(float));
    for (size_t k = 0; k < n; k++) half[k] = amp_f32_to_f16((float)(k * 7919 % 2001) - 1000.0f);
    for (size_t k = 0; k < TENSORS * n; k++) weight[k] = (float)(k % 1001) * 1e-3f;
    for (s = 0; s < 2; s++) {
        static const amp_ranks alone = {0, 1, NULL, NULL, 0};
        amp_optimizer_desc desc;
        memset(&desc, 0, sizeof desc);
        desc.dtype       = AMP_F16;
        desc.kind        = AMP_KIND_ADAMW;
        desc.max_norm    = 1.0f;
        desc.zero_grad   = s == PLAIN;
        if (s == SHARDED) desc.ranks = &alone;
        must(amp_optimizer_init(&opt[s], &desc));
        for (i = 0; i < TENSORS; i++) {
            amp_tensor t;
            memset(&t, 0, sizeof t);
            t.n      = n;
            t.weight = weight + (size_t)i * n;
            if (s == PLAIN) t.grad = grad + (size_t)i * n;
            t.grad_later = 1;
            must(amp_optimizer_add(&opt[s], &t));
        }
        must(prepare_scaled(&opt[s]));
    }
}

static void end(void) {
    amp_optimizer_free(&opt[PLAIN]);
    amp_optimizer_free(&opt[SHARDED]);
    free(half);
    free(weight);
    free(grad);
}

/* One micro-batch's halves; the plain loop's way to fp32 is exact, so the sums are the same. */
static void add(int s) {
    static float wide[4096];
    for (int i = 0; i < TENSORS; i++) {
        float *sum = grad + (size_t)i * n;
        if (s == SHARDED) must(amp_optimizer_accumulate(&opt[s], i, half, 0, 1, AMP_F16));
        for (size_t at = 0; s == PLAIN && at < n; at += 4096) {
            const size_t count = n - at < 4096 ? n - at : 4096;
            must(amp_cast(wide, AMP_F32, half + at, AMP_F16, count));
            for (size_t k = 0; k < count; k++) sum[at + k] += wide[k];
        }
    }
}

/* Seconds of MICRO micro-batches and a step of it. */
static void turn(int s, double *adding, double *step) {
    const double start = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < MICRO; i++) add(s);
    const double added = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    must(amp_optimizer_step(&opt[s], 1e-3f));
    *adding = (added - start) / MICRO;
    *step   = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - added;
}

static int same_bits(void) {
    int same = 1;
    for (int i = 0; i < TENSORS; i++)
        same &= memcmp(amp_optimizer_master(&opt[PLAIN], i), amp_optimizer_master(&opt[SHARDED], i),
                       n * sizeof(float)) == 0;
    return same;
}

static int row(size_t size, int rounds) {
    static double adding[2][MAX_ROUNDS], step[2][MAX_ROUNDS], ratio[MAX_ROUNDS];
    double        ignored[2];
    int           s, r;
    begin(size);
    for (s = 0; s < 2; s++) turn(s, &ignored[0], &ignored[1]); /* pages, caches */
    for (r = 0; r < rounds; r++) {
        for (s = 0; s < 2; s++) turn((s + r) % 2, &adding[(s + r) % 2][r], &step[(s + r) % 2][r]);
        ratio[r] = step[SHARDED][r] / step[PLAIN][r];
    }
    const int    same   = same_bits();
    const double median = quantile(ratio, rounds, 0.5);
    printf("ranks 1, %lu parameters: step %.3f ms, unsharded %.3f ms, ratio %.3f [%.3f %.3f]; a "
           "micro-batch added %.3f and %.3f ms; bits %s\n",
           (unsigned long)(TENSORS * n), 1e3 * quantile(step[SHARDED], rounds, 0.5),
           1e3 * quantile(step[PLAIN], rounds, 0.5), median, quantile(ratio, rounds, 0.25),
           quantile(ratio, rounds, 0.75), 1e3 * quantile(adding[SHARDED], rounds, 0.5),
           1e3 * quantile(adding[PLAIN], rounds, 0.5), same ? "alike" : "differ");
    end();
    return same;
}

int main(int argc, char **argv) {
    const int rounds = argc > 1 ? atoi(argv[1]) : 51;
    if (rounds < 1 || rounds > MAX_ROUNDS) {
        fprintf(stderr, "bench_ranks: give 1 to %d rounds, not %s\n", MAX_ROUNDS, argv[1]);
        return 2;
    }
    print_machine(amp_version(), amp_cpu_tier());
    const int small = row(20000, 4 * rounds < MAX_ROUNDS ? 4 * rounds : MAX_ROUNDS);
    const int large = row(1000000, rounds);
    return !(small && large);
}
