/* make_old.c - the state files of a release, and values.txt, which says what they hold (old.h). Those of 0.6.0 so, those of 0.7.0
   with 0.7 and 501d709, into an empty directory:
       git show b4274e7:amp.h > build/old/amp.h && cc -std=c99 -Ibuild/old tests/vectors/state/make_old.c -o build/old/make_old \
           -lm -lpthread && build/old/make_old tests/vectors/state/0.6 */

#define _GNU_SOURCE /* barriers */
#define AMP_IMPLEMENTATION
#include "amp.h"
#include "old.h"
#include <pthread.h>

enum { RANKS = 2 };
static const char       *directory;
static old_run           members[RANKS];
static pthread_barrier_t barrier;
static pthread_mutex_t   lock = PTHREAD_MUTEX_INITIALIZER;
static double            all_sums[64];
static uint32_t          all_flags[2];

static int failed(const char *what, amp_result result) {
    if (result != AMP_OK) printf("%s: %s\n", what, amp_result_string(result));
    return result != AMP_OK;
}

/* Sums, and the largest of flags, of all ranks. */
static amp_result meet(void *user, double *sums, size_t count, uint32_t *flags) {
    size_t i;
    (void)user;
    if (count > 64) return AMP_ERROR_TOO_LARGE;
    if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD) {
        memset(all_sums, 0, sizeof all_sums);
        memset(all_flags, 0, sizeof all_flags);
    }
    pthread_barrier_wait(&barrier);
    pthread_mutex_lock(&lock);
    for (i = 0; i < count; i++) all_sums[i] += sums[i];
    for (i = 0; i < 2; i++) all_flags[i] = flags[i] > all_flags[i] ? flags[i] : all_flags[i];
    pthread_mutex_unlock(&lock);
    pthread_barrier_wait(&barrier);
    memcpy(sums, all_sums, count * sizeof *sums);
    memcpy(flags, all_flags, sizeof all_flags);
    return AMP_OK;
}

/* The first run again, by ranks, up to the file: a set. */
static void *run_rank(void *member) {
    old_run   *r = (old_run *)member;
    amp_ranks  ranks;
    amp_result result;
    char       path[512];
    size_t     first, n;
    int        step, i;
    memset(&ranks, 0, sizeof ranks);
    ranks.rank   = (int)(r - members);
    ranks.count  = RANKS;
    ranks.sum_fn = meet;
    result       = old_open(r, &old_setups[0], 0.0f, &ranks);
    for (step = 0; step < OLD_SAVED && result == AMP_OK; step++) {
        old_gradients(r, step);
        for (i = 0; i < OLD_COUNT - 1 && result == AMP_OK; i++) {
            amp_optimizer_range(&r->opt, i, &first, &n);
            result = amp_optimizer_accumulate(&r->opt, i, r->gradients[i] + first, n, 1, AMP_F32);
        }
        if (result == AMP_OK) result = old_fused(&r->opt, AMP_KIND_ADAMW, 0.03125f / (float)(1 << step / 4));
    }
    snprintf(path, sizeof path, "%s/set", directory);
    if (result == AMP_OK) result = amp_optimizer_save_file(&r->opt, path);
    failed("set", result);
    amp_optimizer_free(&r->opt);
    return NULL;
}

int main(int argc, char **argv) {
    static old_text text;
    static old_run  r;
    pthread_t       threads[RANKS];
    char            path[512];
    FILE           *file;
    int             k, step;
    directory = argc > 1 ? argv[1] : ".";
    for (k = 0; k < OLD_SETUPS; k++) {
        amp_result result = old_open(&r, &old_setups[k], 0.0f, NULL);
        for (step = 0; step < OLD_STEPS && result == AMP_OK; step++) {
            result = old_step(&r, step);
            if (result != AMP_OK || step != OLD_SAVED - 1) continue;
            snprintf(path, sizeof path, "%s/%s.state", directory, old_setups[k].name);
            result = amp_optimizer_save_file(&r.opt, path);
            old_show(&text, &r, "saved");
        }
        old_show(&text, &r, "three steps on");
        if (failed(old_setups[k].name, result)) return 1;
        amp_optimizer_free(&r.opt);
    }
    pthread_barrier_init(&barrier, NULL, RANKS);
    for (k = 0; k < RANKS; k++) pthread_create(&threads[k], NULL, run_rank, &members[k]);
    for (k = 0; k < RANKS; k++) pthread_join(threads[k], NULL);
    snprintf(path, sizeof path, "%s/values.txt", directory);
    file = fopen(path, "w");
    return !file || fwrite(text.bytes, 1, text.used, file) != text.used || fclose(file) != 0;
}
