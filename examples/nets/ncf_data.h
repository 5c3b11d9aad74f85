/* ncf_data.h - who liked what: interactions from a random process or a file, and the held-out ones

   Both give ordered pairs of a user and an item. The last pair of each user is held out, and must be
   found among 99 items that the user has not met: the protocol of He et al., "Neural Collaborative
   Filtering", 2017.                                                                             */

#ifndef NCF_DATA_H
#define NCF_DATA_H

#include "../support/train_cli.h"     /* fail */
#include "../support/train_numbers.h" /* need, random_u64 */

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CANDIDATES = 100, TOP = 10, FACTORS = 4, LEAST = 32, MOST = 47 };

typedef struct pair { uint32_t user, item; size_t place; } pair;

typedef struct interactions {
    char      name[512];              /* says what they are, in one line                          */
    size_t    num_users, num_items;
    pair     *pairs;                  /* by user, then by item; none twice                        */
    size_t    num_pairs, *first;      /* of each user, and one more                               */
    size_t   *train, num_train;       /* those that are learned                                   */
    uint32_t *held, num_held;         /* users of whom one is held out                            */
    uint32_t *candidate;              /* of each of these: the item held out, then 99 others      */
    double    by_popularity, by_process; /* hit rates: of the most popular, of the truth     */
    unsigned long checksum;
} interactions;

/* ------------------------------------------------------------------------------------ hit rates */

typedef struct hits { double rate, ndcg; } hits; /* in percent; 0 to 1 */

/* Counts one user more of num: where is the first candidate among all, by these scores? Others that
   are as good stand before it, and all do if a score is NaN. */
static void count_hit(hits *h, const float *score, size_t num) {
    size_t rank = 0;
    for (size_t c = 1; c < CANDIDATES; c++) rank += !(score[c] < score[0]);
    if (rank >= TOP) return;
    h->rate += 100.0 / (double)num;
    h->ndcg += log(2.0) / log((double)rank + 2.0) / (double)num;
}

/* What the most popular items alone would hit: what a recommender has to beat. */
static double hits_by_popularity(const interactions *d) {
    hits   h = {0.0, 0.0};
    float *times = need(d->num_items, sizeof(float)), score[CANDIDATES];
    for (size_t k = 0; k < d->num_train; k++) times[d->pairs[d->train[k]].item] += 1.0f;
    for (size_t u = 0; u < d->num_held; u++) {
        for (size_t c = 0; c < CANDIDATES; c++)
            score[c] = times[d->candidate[u * CANDIDATES + c]];
        count_hit(&h, score, d->num_held);
    }
    free(times);
    return h.rate;
}

/* ---------------------------------------------------------------------------------- arrangement */

static int by_user_and_item(const void *a, const void *b) {
    const pair *x = a, *y = b;
    if (x->user != y->user) return x->user < y->user ? -1 : 1;
    if (x->item != y->item) return x->item < y->item ? -1 : 1;
    return (x->place > y->place) - (x->place < y->place);
}

/* Has the user met the item? */
static int has_met(const interactions *d, uint32_t user, uint32_t item) {
    size_t low = d->first[user], high = d->first[user + 1];
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (d->pairs[middle].item == item) return 1;
        if (d->pairs[middle].item < item) low = middle + 1;
        else high = middle;
    }
    return 0;
}

static uint32_t random_stranger(const interactions *d, uint32_t user, uint64_t *rng) {
    uint32_t item;
    do item = (uint32_t)((random_u64(rng) >> 32) * d->num_items >> 32);
    while (has_met(d, user, item));
    return item;
}

/* The 99, all different and always the same. */
static void choose_candidates(const interactions *d, size_t u, uint32_t *candidate) {
    uint64_t rng = (uint64_t)u * 1000003u + 1;
    for (size_t c = 1, same; c < CANDIDATES; c += !same) {
        candidate[c] = random_stranger(d, d->held[u], &rng);
        same = 0;
        for (size_t k = 1; k < c; k++) same |= candidate[k] == candidate[c];
    }
}

/* Somebody must have met two items, and nobody almost all, who could not be given 99 others. */
static void check_users(const interactions *d) {
    char   problem[128];
    size_t most = 0;
    for (size_t u = 0; u < d->num_users; u++)
        if (d->first[u + 1] - d->first[u] > most) most = d->first[u + 1] - d->first[u];
    if (most < 2) fail(1, d->name, "has no user of two items", "give more lines");
    if (most + CANDIDATES - 1 <= d->num_items) return;
    sprintf(problem, "a user has met %lu of %lu items, and 99 others are needed",
            (unsigned long)most, (unsigned long)d->num_items);
    fail(1, d->name, problem, "give more items");
}

/* From pairs in their order, perhaps more than once, to what is learned and what is held out: of
   each user with at least two, the last one. */
static void arrange(interactions *d) {
    size_t kept = 0;
    qsort(d->pairs, d->num_pairs, sizeof *d->pairs, by_user_and_item);
    for (size_t k = 0; k < d->num_pairs; k++)
        if (k == 0 || d->pairs[k].user != d->pairs[k - 1].user ||
            d->pairs[k].item != d->pairs[k - 1].item)
            d->pairs[kept++] = d->pairs[k];
    d->num_pairs = kept;
    d->first     = need(d->num_users + 1, sizeof *d->first);
    d->train     = need(kept, sizeof *d->train);
    d->held      = need(d->num_users, sizeof *d->held);
    d->candidate = need(d->num_users * CANDIDATES, sizeof *d->candidate);
    d->checksum  = 2166136261u; /* FNV-1a */
    for (size_t k = 0; k < kept; k++) {
        d->first[d->pairs[k].user + 1] = k + 1;
        d->checksum = ((d->checksum ^ d->pairs[k].item) * 16777619u) & 0xffffffffu;
    }
    check_users(d);
    for (uint32_t u = 0; u < d->num_users; u++) {
        size_t last = d->first[u];
        for (size_t k = last; k < d->first[u + 1]; k++)
            if (d->pairs[k].place > d->pairs[last].place) last = k;
        const int hold = d->first[u + 1] - d->first[u] >= 2;
        for (size_t k = d->first[u]; k < d->first[u + 1]; k++)
            if (!hold || k != last) d->train[d->num_train++] = k;
        if (!hold) continue;
        d->candidate[d->num_held * CANDIDATES] = d->pairs[last].item;
        d->held[d->num_held++] = u;
    }
    for (size_t u = 0; u < d->num_held; u++)
        choose_candidates(d, u, d->candidate + u * CANDIDATES);
    d->by_popularity = hits_by_popularity(d);
}

/* ---------------------------------------------------------------------------------- the process
   A user is a point of FACTORS normal numbers, and so is an item. How much a user likes an item is

       2 * (user . item) / sqrt(FACTORS) - 0.7 * ln(1 + the item's place in popularity)

   and a user meets LEAST to MOST items, drawn one by one and not put back, each with probability in
   proportion to e^liking: those with the largest sums of liking and Gumbel's noise. One of them, at
   random, is the last. The same ones come out whenever and wherever it runs.                     */

typedef struct process { float *user, *item, *popularity; } process;

static float random_normal(uint64_t *rng) { /* Box and Muller */
    const double u = ((double)(random_u64(rng) >> 11) + 0.5) / 9007199254740992.0;
    const double v = (double)(random_u64(rng) >> 11) / 9007199254740992.0;
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}

static float random_gumbel(uint64_t *rng) {
    return -logf(-logf(((float)(random_u64(rng) >> 41) + 0.5f) / 8388608.0f));
}

static float liking(const process *p, size_t user, size_t item) {
    float dot = 0.0f;
    for (size_t f = 0; f < FACTORS; f++)
        dot += p->user[user * FACTORS + f] * p->item[item * FACTORS + f];
    return 2.0f * dot / sqrtf((float)FACTORS) + p->popularity[item];
}

/* The items that a user meets, best first: an insertion for each that is among the best so far. */
static void meet(interactions *d, const process *p, uint32_t user, size_t count, uint64_t *rng) {
    float  best[MOST];
    pair  *met = d->pairs + d->num_pairs;
    size_t have = 0;
    for (uint32_t i = 0; i < d->num_items; i++) {
        const float score = liking(p, user, i) + random_gumbel(rng);
        size_t      k     = have;
        if (have == count && score <= best[count - 1]) continue;
        if (have < count) have++;
        else k--;
        for (; k > 0 && best[k - 1] < score; k--) {
            best[k] = best[k - 1];
            met[k]  = met[k - 1];
        }
        best[k] = score;
        met[k]  = (pair){user, i, (size_t)(random_u64(rng) >> 33)};
    }
    d->num_pairs += count;
}

static double hits_by_process(const interactions *d, const process *p) {
    hits  h = {0.0, 0.0};
    float score[CANDIDATES];
    for (size_t u = 0; u < d->num_held; u++) {
        for (size_t c = 0; c < CANDIDATES; c++)
            score[c] = liking(p, d->held[u], d->candidate[u * CANDIDATES + c]);
        count_hit(&h, score, d->num_held);
    }
    return h.rate;
}

static void draw_interactions(interactions *d, size_t users, size_t items) {
    uint64_t rng = 1;
    process  p;
    p.user       = need(users * FACTORS, sizeof(float));
    p.item       = need(items * FACTORS, sizeof(float));
    p.popularity = need(items, sizeof(float));
    d->pairs     = need(users * MOST, sizeof(pair));
    d->num_users = users;
    d->num_items = items;
    sprintf(d->name, "drawn from a process of %d factors", FACTORS);
    for (size_t i = 0; i < users * FACTORS; i++) p.user[i] = random_normal(&rng);
    for (size_t i = 0; i < items * FACTORS; i++) p.item[i] = random_normal(&rng);
    for (size_t i = 0; i < items; i++) p.popularity[i] = -0.7f * logf(1.0f + (float)i);
    for (uint32_t u = 0; u < users; u++)
        meet(d, &p, u, LEAST + (size_t)(random_u64(&rng) % (MOST - LEAST + 1)), &rng);
    arrange(d);
    d->by_process = hits_by_process(d, &p);
    free(p.user);
    free(p.item);
    free(p.popularity);
}

/* ---------------------------------------------------------------------------------------- a file
   Lines of a user and an item, whole numbers with blanks, tabs, commas or colons between; what
   follows them (a rating, a time) is ignored. Lines stand in the order of time, at least of each
   user, since the last one is held out: sort -snk4 u.data does it for MovieLens.                 */

/* A number, and where it ends; NULL if there is none. */
static const char *read_number(const char *at, uint32_t *number) {
    char *end;
    at += strspn(at, " \t,:");
    if (*at < '0' || *at > '9') return NULL;
    errno = 0;
    const unsigned long long value = strtoull(at, &end, 10);
    if (errno || value > 0xffffffffu || !strchr(" \t,:\r\n", *end)) return NULL;
    *number = (uint32_t)value;
    return end;
}

static void read_pairs(interactions *d, FILE *f, const char *path) {
    char   line[256], problem[128];
    size_t number = 0, room = 1 << 16;
    int    begins = 1, parts = 0; /* of a line, of which the first is read */
    d->pairs = need(room, sizeof(pair));
    while (fgets(line, sizeof line, f)) {
        pair        p  = {0, 0, d->num_pairs};
        const int   is = begins;
        const char *at;
        begins = strchr(line, '\n') != NULL;
        parts  = is ? 0 : parts + 1;
        if (parts > 256 || number == 200000000)
            fail(1, path, "has more than 200 million lines, or one of 64 KB", "give a text file with --data");
        if (!is) continue;
        number++;
        if (line[strspn(line, " \t\r\n")] == '\0') continue;
        at = read_number(line, &p.user);
        if (!at || !read_number(at, &p.item)) {
            line[strcspn(line, "\r\n")] = '\0';
            sprintf(problem, "line %lu is no user and item: '%.40s'", (unsigned long)number, line);
            fail(1, path, problem, "give two whole numbers below 2^32 in each line");
        }
        d->pairs[d->num_pairs++] = p;
        if (d->num_pairs < room) continue;
        d->pairs = realloc(d->pairs, (room *= 2) * sizeof(pair));
        if (!d->pairs) fail(1, path, "is too large for memory", "give a smaller file");
    }
    if (ferror(f)) fail(1, path, "cannot be read", "give a text file with --data");
}

static int by_number(const void *a, const void *b) {
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Numbers become places among those that are there, which are counted. */
static size_t renumber(interactions *d, int items) {
    uint32_t *all = need(d->num_pairs, sizeof *all);
    size_t    kept = 0;
    for (size_t k = 0; k < d->num_pairs; k++) all[k] = items ? d->pairs[k].item : d->pairs[k].user;
    qsort(all, d->num_pairs, sizeof *all, by_number);
    for (size_t k = 0; k < d->num_pairs; k++)
        if (k == 0 || all[k] != all[kept - 1]) all[kept++] = all[k];
    for (size_t k = 0; k < d->num_pairs; k++) {
        uint32_t *x = items ? &d->pairs[k].item : &d->pairs[k].user;
        *x = (uint32_t)((uint32_t *)bsearch(x, all, kept, sizeof *all, by_number) - all);
    }
    free(all);
    return kept;
}

static void read_interactions(interactions *d, const char *path) {
    FILE *f = fopen(path, "r");
    if (!f) fail(1, path, strerror(errno), "give a file of users and items with --data");
    read_pairs(d, f, path);
    fclose(f);
    d->num_users = renumber(d, 0);
    d->num_items = renumber(d, 1);
    if (snprintf(d->name, sizeof d->name, "%s", path) >= (int)sizeof d->name)
        strcpy(d->name, "--data");
    arrange(d);
}

static void free_interactions(interactions *d) {
    free(d->pairs);
    free(d->first);
    free(d->train);
    free(d->held);
    free(d->candidate);
}

#endif /* NCF_DATA_H */
