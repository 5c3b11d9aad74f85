/* run_more.h - runs a case of the families skip, clip and convert; and a file of any family. */

#ifndef VECTORS_RUN_MORE_H
#define VECTORS_RUN_MORE_H

#include "run.h"

enum { VECTORS_MOST = 16385, VECTORS_PIECE = 1 << 16 };

static void vec_put(void *x, size_t i, uint32_t bits, size_t size) {
    const uint16_t half = (uint16_t)bits;
    memcpy((char *)x + i * size, size == 2 ? (const void *)&half : (const void *)&bits, size);
}

/* The words of a list, repeated over n elements of `size` bytes. */
static void vec_fill(void *x, size_t n, const json *list, size_t size) {
    uint32_t bits[8];
    size_t   i, count = list->size < 8 ? list->size : 8;
    for (i = 0; i < count; i++) bits[i] = vec_bits(json_at(list, i));
    for (i = 0; i < n; i++) vec_put(x, i, bits[i % count], size);
}

/* Are they the list's, but for so many units in the last place? x may be NULL: not shown. */
static int vec_near(const void *x, size_t n, const json *list, size_t size, uint32_t ulp) {
    static char wanted[4 * VECTORS_MOST];
    size_t      i;
    uint32_t    a, b;
    if (!x) return 1;
    vec_fill(wanted, n, list, size);
    for (i = 0; i < n && ulp && size == 4; i++) {
        memcpy(&a, (const char *)x + 4 * i, 4);
        memcpy(&b, wanted + 4 * i, 4);
        if (a - b + ulp > 2 * ulp) return 0;
    }
    return (ulp && size == 4) || memcmp(x, wanted, n * size) == 0;
}

/* A row: gradients; [index, bits] of the bad one; answer; weights, m, v, copies (null where the step is skipped:
   as they were, bit for bit); steps; scale. */
static int vec_step(vectors_subject *s, vectors_state *t, const json *row, size_t size, uint32_t ulp) {
    static float g[VECTORS_MOST], before[4][VECTORS_MOST];
    const json  *bad  = json_at(row, 1), *answer = json_at(row, 2);
    const int    skip = vec_is(answer, "skipped");
    void        *now[4];
    int          same, k;
    now[0] = t->weights, now[1] = t->m, now[2] = t->v, now[3] = t->copies;
    for (k = 0; k < 4 && skip; k++)
        if (now[k]) memcpy(before[k], now[k], t->n * (k < 3 ? 4 : size));
    vec_fill(g, t->n, json_at(row, 0), size);
    if (bad->size) vec_put(g, (size_t)json_number(json_at(bad, 0)), vec_bits(json_at(bad, 1)), size);
    same = s->adamw(s, t, g) == (skip ? VECTORS_SKIPPED : VECTORS_OK);
    for (k = 0; k < 4; k++)
        same = same && (skip ? !now[k] || memcmp(before[k], now[k], t->n * (k < 3 ? 4 : size)) == 0
                             : vec_near(now[k], t->n, json_at(row, 3 + (size_t)k), k < 3 ? 4 : size, ulp));
    return same && t->steps == (int)json_number(json_at(row, 7)) && t->scale <= json_number(json_at(row, 8)) &&
           t->scale >= json_number(json_at(row, 8));
}

static int vec_skip(vectors_subject *s, const json *c, size_t *row) {
    static float  w[VECTORS_MOST], m[VECTORS_MOST], v[VECTORS_MOST], copies[VECTORS_MOST];
    const json   *j = json_get(c, "config"), *rows = json_get(c, "rows");
    const size_t  size = vec_is(json_get(j, "dtype"), "fp32") ? 4 : 2;
    vectors_state t;
    int           result = VECTORS_OK;
    t.dtype = json_get(j, "dtype")->text, t.n = (size_t)vec_number(j, "n"), t.lr = vec_number(j, "lr");
    t.beta1 = vec_number(j, "beta1"), t.beta2 = vec_number(j, "beta2"), t.eps = vec_number(j, "eps");
    t.weight_decay = vec_number(j, "weight_decay"), t.scale = vec_number(j, "scale");
    t.steps = (int)vec_number(j, "steps"), t.weights = w, t.m = m, t.v = v, t.copies = copies;
    vec_fill(w, t.n, json_get(j, "weight"), 4);
    vec_fill(m, t.n, json_get(j, "m"), 4);
    vec_fill(v, t.n, json_get(j, "v"), 4);
    if (!s->begin || s->begin(s, &t) != VECTORS_OK) return VECTORS_ABSENT;
    for (*row = 0; *row < rows->size && result; ++*row)
        result = vec_step(s, &t, json_at(rows, *row), size, (uint32_t)vec_number(j, "ulp"));
    s->end(s);
    return result;
}

/* Are two floats so many units in the last place apart, or fewer? */
static int vec_close(float x, uint32_t wanted, uint32_t ulp) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits - wanted + ulp <= 2 * ulp;
}

/* A row: gradients of each tensor; [tensor, index, bits] of the bad one; answer; norm, factor and gradients after it
   (null where the step is skipped); scale. Without ulp the norm is looked at as a double. */
static int vec_clip_row(vectors_subject *s, vectors_clip *t, const json *row, size_t size, uint32_t ulp) {
    const json  *bad  = json_at(row, 1), *after = json_at(row, 5);
    const int    skip = vec_is(json_at(row, 2), "skipped");
    const double norm = skip ? 0.0 : json_number(json_at(row, 3));
    const double scale = json_number(json_at(row, 6));
    const float  single = (float)norm;
    uint32_t     wanted;
    size_t       k;
    int          same;
    for (k = 0; k < t->count; k++) vec_fill(t->gradients[k], t->n[k], json_at(json_at(row, 0), k), size);
    if (bad->size) {
        k = (size_t)json_number(json_at(bad, 0));
        vec_put(t->gradients[k], (size_t)json_number(json_at(bad, 1)), vec_bits(json_at(bad, 2)), size);
    }
    t->norm   = -1.0;
    t->factor = -1.0f;
    same      = s->clip(s, t) == (skip ? VECTORS_SKIPPED : VECTORS_OK);
    same      = same && !memcmp(&t->scale, &scale, sizeof scale);
    if (skip || !same) return same;
    memcpy(&wanted, &single, 4);
    if (t->norm >= 0.0) same = ulp ? vec_close((float)t->norm, wanted, ulp) : !memcmp(&t->norm, &norm, sizeof norm);
    if (t->factor >= 0.0f) same = same && vec_close(t->factor, vec_bits(json_at(row, 4)), ulp);
    for (k = 0; k < t->count; k++)
        same = same && vec_near(t->after[k], t->n[k], json_at(after, k), 4, ulp);
    return same;
}

static int vec_clip(vectors_subject *s, const json *c, size_t *row) {
    static float gradients[3][VECTORS_MOST], after[3][VECTORS_MOST];
    const json  *j = json_get(c, "config"), *rows = json_get(c, "rows"), *n = json_get(j, "n");
    const size_t size = vec_is(json_get(j, "dtype"), "fp32") ? 4 : 2;
    vectors_clip t;
    size_t       k;
    int          result;
    memset(&t, 0, sizeof t);
    t.system = json_get(c, "system")->text, t.dtype = json_get(j, "dtype")->text, t.count = n->size;
    t.max_norm = vec_number(j, "max_norm"), t.scale = vec_number(j, "scale");
    for (k = 0; k < t.count; k++)
        t.n[k] = (size_t)json_number(json_at(n, k)), t.gradients[k] = gradients[k], t.after[k] = after[k];
    result = s->clip_begin ? s->clip_begin(s, &t) : VECTORS_ABSENT;
    if (result != VECTORS_OK) return result == VECTORS_REFUSED ? 0 : result;
    for (*row = 0; *row < rows->size && result; ++*row)
        result = vec_clip_row(s, &t, json_at(rows, *row), size, (uint32_t)vec_number(j, "ulp"));
    s->end(s);
    return result;
}

/* A number of the type, but of any NaN the same one, where a payload is not asked for. */
static uint32_t vec_plain(uint32_t x, const char *type, int payload) {
    const uint32_t inf = strcmp(type, "fp16") == 0 ? 0x7c00u : strcmp(type, "bf16") == 0 ? 0x7f80u : 0x7f800000u;
    if (payload || (x & (inf > 0xffffu ? 0x7fffffffu : 0x7fffu)) <= inf) return x;
    return inf == 0x7c00u ? 0x7e00u : inf == 0x7f80u ? 0x7fc0u : 0x7fc00000u;
}

static void vec_one(vectors_subject *s, uint32_t *x, size_t n, const char *from, const char *to) {
    static uint16_t half[VECTORS_PIECE];
    const int       wide = strcmp(to, "fp32") == 0;
    size_t          i;
    for (i = 0; i < n && wide; i++) half[i] = (uint16_t)x[i];
    if (wide) s->convert(x, to, half, from, n);
    else s->convert(half, to, x, from, n);
    for (i = 0; i < n && !wide; i++) x[i] = half[i];
}

static int vec_digest(vectors_subject *s, const json *d, const char *from, const char *to) {
    static uint32_t x[VECTORS_PIECE];
    const uint64_t  step = (uint64_t)vec_number(d, "step"), end = strcmp(from, "fp32") == 0 ? (uint64_t)1 << 32 : 65536;
    const int       payload = vec_is(json_get(d, "nan"), "kept");
    uint64_t        i = 0, begin, sum = 0;
    char            text[24];
    if (end > 65536 && step == 1 && s->samples) return VECTORS_ABSENT;
    while (i < end) {
        size_t n = 0, k;
        for (begin = i; n < VECTORS_PIECE && i < end; i += step) x[n++] = (uint32_t)i;
        vec_one(s, x, n, from, to);
        for (k = 0; k < n; k++) sum += (2 * (begin + k * step) + 1) * ((uint64_t)vec_plain(x[k], to, payload) + 1);
    }
    sprintf(text, "0x%08lx%08lx", (unsigned long)(sum >> 32), (unsigned long)(sum & 0xffffffffu));
    return strcmp(text, json_get(d, "sum")->text) == 0;
}

static int vec_convert(vectors_subject *s, const json *c, size_t *row) {
    const json *j = json_get(c, "config"), *pairs = json_get(c, "pairs"), *digest = json_get(c, "digest");
    const char *from = json_get(j, "from")->text, *to = json_get(j, "to")->text;
    const int   payload = !vec_is(json_at(json_get(c, "tags"), 0), "nan");
    int         same = 1;
    if (!s->convert) return VECTORS_ABSENT;
    if (digest) return vec_digest(s, digest, from, to);
    for (*row = 0; *row < pairs->size && same; ++*row) {
        const json *pair = json_at(pairs, *row);
        uint32_t    x    = vec_bits(json_at(pair, 0));
        vec_one(s, &x, 1, from, to);
        same = vec_plain(x, to, payload) == vec_plain(vec_bits(json_at(pair, 1)), to, payload);
    }
    return same;
}

/* lacking: of systems that the subject does not have; absent: what it cannot be asked. Of cases that may be so, others
   are no failure. */
typedef struct vectors_result { int passed, failed, lacking, absent, others; } vectors_result;

static vectors_result vectors_run(const json *file, vectors_subject *s, vectors_failed failed, void *user) {
    const json    *cases = json_get(file, "cases"), *c = json_first(cases), *family = json_get(file, "family");
    vectors_result r = {0, 0, 0, 0, 0};
    size_t         i, row;
    for (i = 0; i < cases->size; i++, c = json_behind(c)) {
        const int may = vec_is(json_get(c, "demand"), "may");
        int       ok;
        row = 0;
        ok  = vec_is(family, "skip") ? vec_skip(s, c, &row) : vec_is(family, "clip") ? vec_clip(s, c, &row)
            : vec_is(family, "convert") ? vec_convert(s, c, &row) : vec_rows(s, c, &row);
        r.passed += ok == 1;
        r.failed += ok == 0 && !may;
        r.others += ok == 0 && may;
        r.lacking += ok == VECTORS_LACKING;
        r.absent += ok == VECTORS_ABSENT;
        if (ok == 0 && !may) failed(user, c, (int)row);
    }
    return r;
}

#endif
