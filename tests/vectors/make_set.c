/* make_set.c - make_set PATH: a step of AdamW by one optimizer, saved as PATH.one, and the same step by three ranks, as
   threads, saved as the set PATH. state.py must read the same from both. */

#define _GNU_SOURCE /* barriers */
#include "amp.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 3, TENSORS = 4, MOST = 70000 };
static const size_t      sizes[TENSORS] = {40000, 5, 16384, MOST};
static pthread_barrier_t barrier;
static double            all_sums[64];
static uint32_t          all_maxima[2];
static pthread_mutex_t   lock = PTHREAD_MUTEX_INITIALIZER;
static const char       *path;

/* Sums and maxima of all ranks. */
static amp_result meet(void *user, double *sums, size_t num_sums, uint32_t *maxima, size_t num_maxima) {
    size_t i;
    (void)user;
    if (num_sums > 64 || num_maxima > 2) return AMP_ERROR_TOO_LARGE;
    if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD) {
        memset(all_sums, 0, sizeof all_sums);
        memset(all_maxima, 0, sizeof all_maxima);
    }
    pthread_barrier_wait(&barrier);
    pthread_mutex_lock(&lock);
    for (i = 0; i < num_sums; i++) all_sums[i] += sums[i];
    for (i = 0; i < num_maxima; i++) all_maxima[i] = maxima[i] > all_maxima[i] ? maxima[i] : all_maxima[i];
    pthread_mutex_unlock(&lock);
    pthread_barrier_wait(&barrier);
    memcpy(sums, all_sums, num_sums * sizeof *sums);
    memcpy(maxima, all_maxima, num_maxima * sizeof *maxima);
    return AMP_OK;
}

/* rank -1: one optimizer. */
static void *run(void *which) {
    const int          rank = *(int *)which;
    amp_storage        storage = {AMP_FORMAT_SR, AMP_FORMAT_8BIT};
    float             *weights = (float *)malloc(TENSORS * MOST * sizeof(float));
    float             *grads = (float *)calloc(TENSORS * MOST, sizeof(float));
    amp_optimizer      opt;
    amp_optimizer_desc d;
    amp_ranks          ranks;
    char               name[512];
    amp_result         result;
    size_t             i, k, first, n;
    memset(&d, 0, sizeof d);
    memset(&ranks, 0, sizeof ranks);
    d.kind       = AMP_KIND_ADAMW;
    d.dtype      = AMP_BF16;
    d.storage    = &storage;
    d.seed       = 5;
    ranks.rank   = rank;
    ranks.count  = RANKS;
    ranks.reduce_fn = meet;
    if (rank >= 0) d.ranks = &ranks;
    result = amp_optimizer_init(&opt, &d);
    for (k = 0; k < TENSORS && result == AMP_OK; k++) {
        amp_tensor t;
        memset(&t, 0, sizeof t);
        for (i = 0; i < sizes[k]; i++) {
            weights[k * MOST + i] = (float)((int)(i * 7919 % 2001) - 1000) / 512.0f;
            grads[k * MOST + i]   = (float)((int)((i + k) * 104729 % 4001) - 2000) / 3.0f;
        }
        t.n      = sizes[k];
        t.weight = weights + k * MOST;
        t.grad   = grads + k * MOST;
        result   = amp_optimizer_add(&opt, &t);
    }
    if (result == AMP_OK) result = amp_optimizer_prepare(&opt);
    for (i = 0; i < TENSORS * MOST && result == AMP_OK; i++) grads[i] *= amp_optimizer_loss_scale(&opt);
    for (k = 0; k < TENSORS && result == AMP_OK && rank >= 0; k++) {
        amp_optimizer_range(&opt, (int)k, &first, &n);
        result = amp_optimizer_accumulate(&opt, (int)k, grads + k * MOST + first, n, 1, AMP_F32);
    }
    if (result == AMP_OK) result = amp_optimizer_step(&opt, 0.01f);
    snprintf(name, sizeof name, rank < 0 ? "%s.one" : "%s", path);
    if (result == AMP_OK) result = amp_optimizer_save_file(&opt, name);
    if (result != AMP_OK) printf("FAIL rank %d: %s\n", rank, amp_result_string(result));
    amp_optimizer_free(&opt);
    free(weights);
    free(grads);
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[RANKS];
    int       ranks[RANKS], one = -1, k;
    path = argc > 1 ? argv[1] : "set";
    run(&one);
    pthread_barrier_init(&barrier, NULL, RANKS);
    for (k = 0; k < RANKS; k++) {
        ranks[k] = k;
        pthread_create(&threads[k], NULL, run, &ranks[k]);
    }
    for (k = 0; k < RANKS; k++) pthread_join(threads[k], NULL);
    return 0;
}
