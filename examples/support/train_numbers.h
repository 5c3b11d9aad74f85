/* train_numbers.h - room for numbers, numbers and orders at random, what the seeds say           */

#ifndef TRAIN_NUMBERS_H
#define TRAIN_NUMBERS_H

#include "train_cli.h" /* no_memory */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static void *need(size_t count, size_t size) {
    void *p = calloc(count ? count : 1, size);
    if (!p) no_memory();
    return p;
}

/* amp_optimizer's allocator: malloc that counts what is in use. The size stands in front. */
enum { IN_FRONT = 64 };

static inline void *state_malloc(void *total, size_t num_bytes) {
    char *memory = (char *)malloc(num_bytes + IN_FRONT);
    if (!memory) return NULL;
    memcpy(memory, &num_bytes, sizeof num_bytes);
    *(size_t *)total += num_bytes;
    return memory + IN_FRONT;
}

static inline void state_free(void *total, void *memory) {
    size_t num_bytes;
    if (!memory) return;
    memory = (char *)memory - IN_FRONT;
    memcpy(&num_bytes, memory, sizeof num_bytes);
    *(size_t *)total -= num_bytes;
    free(memory);
}

/* splitmix64: the same numbers everywhere, unlike rand(). */
static uint64_t random_u64(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static float random_uniform(uint64_t *state) { /* in [-1, 1) */
    return (float)(random_u64(state) >> 40) / 8388608.0f - 1.0f;
}

/* (Inline: not all programs shuffle.) */
static inline void shuffle(size_t *order, size_t n, uint64_t *state) {
    for (; n > 1; n--) {
        const size_t j = (size_t)(random_u64(state) % n), other = order[j];
        order[j]       = order[n - 1];
        order[n - 1]   = other;
    }
}

typedef struct spread { double mean, sd, se; } spread;

/* Mean, standard deviation and standard error over the seeds of a column, or of its difference to
   another. One seed has no spread: sd and se are 0, and who prints them says so. */
static inline spread over_seeds(const double *x, const double *minus, int seeds) {
    spread s = {0.0, 0.0, 0.0};
    for (int i = 0; i < seeds; i++) s.mean += (x[i] - (minus ? minus[i] : 0.0)) / seeds;
    for (int i = 0; i < seeds; i++) {
        const double d = x[i] - (minus ? minus[i] : 0.0) - s.mean;
        s.sd += d * d;
    }
    s.sd = seeds > 1 ? sqrt(s.sd / (seeds - 1)) : 0.0;
    s.se = s.sd / sqrt(seeds);
    return s;
}

/* A difference in a line for programs: of one seed there is no standard error. */
static inline void print_difference(const spread *d, int digits, int seeds) {
    if (seeds > 1) printf(" d %+.*f se %.*f", digits, d->mean, digits, d->se);
    else printf(" d %+.*f se -", digits, d->mean);
}

static inline int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#endif /* TRAIN_NUMBERS_H */
