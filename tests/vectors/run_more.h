/* run_more.h - runs a case of the families skip, convert and store; and a file of any family. */

#ifndef VECTORS_RUN_MORE_H
#define VECTORS_RUN_MORE_H

#include "run.h"

enum { VECTORS_MOST = 16385, VECTORS_PIECE = 1 << 16 };

/* n elements that are alike. */
static void vec_fill(void *x, size_t n, uint32_t bits, size_t size) {
    size_t         i;
    const uint16_t half = (uint16_t)bits;
    for (i = 0; i < n; i++) memcpy((char *)x + i * size, size == 2 ? (const void *)&half : (const void *)&bits, size);
}

static int vec_alike(const void *x, size_t n, uint32_t bits, size_t size) {
    size_t i;
    for (i = 0; i < n; i++) {
        uint32_t u = 0;
        uint16_t h;
        if (size == 2) memcpy(&h, (const char *)x + 2 * i, 2), u = h;
        else memcpy(&u, (const char *)x + 4 * i, 4);
        if (u != bits) return 0;
    }
    return 1;
}

static int vec_skip(vectors_subject *s, const json *c) {
    static float   w[VECTORS_MOST], m[VECTORS_MOST], v[VECTORS_MOST], g[VECTORS_MOST], copies[VECTORS_MOST];
    const json    *j = json_get(c, "config"), *x = json_get(c, "expect"), *skip = json_get(x, "skipped"),
               *take = json_get(x, "taken");
    const size_t   at = (size_t)vec_number(j, "at"), size = vec_is(json_get(j, "dtype"), "fp32") ? 4 : 2;
    vectors_state  t;
    uint32_t       got, near;
    int            result;
    t.dtype = json_get(j, "dtype")->text, t.n = (size_t)vec_number(j, "n"), t.lr = vec_number(j, "lr");
    t.beta1 = vec_number(j, "beta1"), t.beta2 = vec_number(j, "beta2"), t.eps = vec_number(j, "eps");
    t.weight_decay = vec_number(j, "weight_decay"), t.scale = vec_number(j, "scale");
    t.steps = (int)vec_number(j, "steps"), t.weights = w, t.m = m, t.v = v, t.copies = copies;
    vec_fill(w, t.n, vec_bits(json_get(j, "weight")), 4);
    vec_fill(m, t.n, vec_bits(json_get(j, "m")), 4);
    vec_fill(v, t.n, vec_bits(json_get(j, "v")), 4);
    vec_fill(g, t.n, vec_bits(json_get(j, "gradient")), size);
    if (!s->begin || s->begin(s, &t) != VECTORS_OK) return VECTORS_ABSENT;
    vec_fill((char *)g + at * size, 1, vec_bits(json_get(j, "bad")), size);
    result = s->adamw(s, &t, g) == VECTORS_SKIPPED && vec_alike(w, t.n, vec_bits(json_get(skip, "weight")), 4) &&
             (!t.m || vec_alike(t.m, t.n, vec_bits(json_get(skip, "m")), 4)) &&
             (!t.v || vec_alike(t.v, t.n, vec_bits(json_get(skip, "v")), 4)) &&
             vec_alike(copies, t.n, vec_bits(json_get(skip, "copy")), size) &&
             t.steps == (int)vec_number(skip, "steps") && t.scale <= vec_number(skip, "scale") &&
             t.scale >= vec_number(skip, "scale");
    vec_fill((char *)g + at * size, 1, vec_bits(json_get(j, "gradient")), size);
    result = result && s->adamw(s, &t, g) == VECTORS_OK && t.steps == (int)vec_number(take, "steps");
    memcpy(&got, w, 4);
    near = got - vec_bits(json_get(take, "weight")) + (uint32_t)vec_number(take, "ulp");
    s->end(s);
    return result && vec_alike(w, t.n, got, 4) && near <= 2 * (uint32_t)vec_number(take, "ulp");
}

/* Do two results say the same? Where a payload is not asked for, any NaN of the type is one. */
static int vec_same(uint32_t a, uint32_t b, const char *type, int payload) {
    const uint32_t inf = strcmp(type, "fp16") == 0 ? 0x7c00u : strcmp(type, "bf16") == 0 ? 0x7f80u : 0x7f800000u;
    const uint32_t size = inf > 0xffffu ? 0x7fffffffu : 0x7fffu;
    return a == b || (!payload && (a & size) > inf && (b & size) > inf);
}

static int vec_digest(vectors_subject *s, const json *d, const char *from, const char *to) {
    static uint32_t x[VECTORS_PIECE];
    static uint16_t y[VECTORS_PIECE];
    const uint64_t  step = (uint64_t)vec_number(d, "step");
    uint64_t        i = 0, begin, sum = 0;
    char            text[24];
    if (step == 1 && s->samples) return VECTORS_ABSENT;
    while (i >> 32 == 0) {
        size_t n = 0, k;
        for (begin = i; n < VECTORS_PIECE && i >> 32 == 0; i += step) x[n++] = (uint32_t)i;
        s->convert(y, to, x, from, n);
        for (k = 0; k < n; k++) sum += (2 * (begin + k * step) + 1) * ((uint64_t)y[k] + 1);
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
        const json    *pair = json_at(pairs, *row);
        const uint32_t in = vec_bits(json_at(pair, 0));
        const uint16_t half = (uint16_t)in;
        uint32_t       out = 0;
        uint16_t       narrow = 0;
        if (strcmp(to, "fp32") == 0) s->convert(&out, to, &half, from, 1);
        else s->convert(&narrow, to, &in, from, 1), out = narrow;
        same = vec_same(out, vec_bits(json_at(pair, 1)), to, payload);
    }
    return same;
}

static int vec_store(vectors_subject *s, const json *c, size_t *row) {
    const json *pairs = json_get(c, "pairs"), *pair = json_first(pairs);
    int         ok = s->store ? VECTORS_OK : VECTORS_ABSENT;
    for (*row = 0; *row < pairs->size && ok == VECTORS_OK; ++*row, pair = json_behind(pair)) {
        const json *given = json_at(pair, 0), *wanted = json_at(pair, 1);
        uint32_t    in[8] = {0}, out[8] = {0};
        size_t      i;
        for (i = 0; i < given->size; i++) in[i] = vec_bits(json_at(given, i));
        ok = s->store(json_get(c, "system")->text, in, out);
        for (i = 0; i < wanted->size && ok == VECTORS_OK; i++) ok = out[i] == vec_bits(json_at(wanted, i));
    }
    return ok;
}

typedef struct vectors_result { int passed, failed, absent; } vectors_result;

static vectors_result vectors_run(const json *file, vectors_subject *s, vectors_failed failed, void *user) {
    const json    *cases = json_get(file, "cases"), *c = json_first(cases), *family = json_get(file, "family");
    vectors_result r = {0, 0, 0};
    size_t         i, row;
    for (i = 0; i < cases->size; i++, c = json_behind(c)) {
        int ok;
        row = 0;
        ok  = vec_is(family, "skip") ? vec_skip(s, c) : vec_is(family, "convert") ? vec_convert(s, c, &row)
            : vec_is(family, "store") ? vec_store(s, c, &row) : vec_rows(s, c, &row);
        r.passed += ok == 1;
        r.failed += ok == 0;
        r.absent += ok == VECTORS_ABSENT;
        if (ok == 0) failed(user, c, (int)row);
    }
    return r;
}

#endif
