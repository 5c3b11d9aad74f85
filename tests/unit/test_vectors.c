/* test_vectors.c - vectors/: amp.h beside the originals' answers, and scalers with the faults of the wild,
   each of which a case finds whose tag names the fault. */

#define _GNU_SOURCE /* sigsetjmp */
#include "amp.h"
#include "../support/fp.h"
#include "../support/test.h"
#include "../vectors/amp_subject.h"
#include "../vectors/golden.h"

#include <math.h>

#ifndef AMP_TESTS_DIR
#define AMP_TESTS_DIR "tests"
#endif

/* What follows computes what a scaler should give, so no fast-math here; it runs in FP_IEEE. */
#if defined(__clang__)
#ifndef __arm__
#pragma float_control(precise, on)
#endif
#pragma clang fp contract(off)
#elif defined(__GNUC__) && !defined(__TINYC__)
#pragma GCC optimize("no-fast-math,fp-contract=off")
#endif

static void complain(void *user, const json *c, int row) {
    char text[256];
    (void)user;
    snprintf(text, sizeof text, "%s, %s, row %d", json_get(c, "id")->text, json_get(c, "system")->text, row);
    test_fail(__FILE__, __LINE__, text, "");
}

static vectors_result run(const char *family, vectors_subject *s, vectors_failed failed, void *user) {
    vectors_result r = {0, 0, 0, 0, 0};
    char           path[256], *text;
    json          *file;
    snprintf(path, sizeof path, "%s/vectors/%s.json", AMP_TESTS_DIR, family);
    text = json_file(path);
    file = text ? json_parse(text) : NULL;
    CHECK(file != NULL);
    if (file) r = vectors_run(file, s, failed, user);
    free(file);
    free(text);
    return r;
}

/* All cases of a family pass, but for those of systems that amp.h does not have, and that cannot be asked. */
static void conforms(const char *family, int wrap, int lacking, int absent) {
    static subject_state state;
    vectors_subject      subject = amp_subject(&state, wrap);
    vectors_result       r;
    subject.samples = test_state.quick;
    r               = run(family, &subject, complain, NULL);
    CHECK(r.passed > 0);
    CHECK_EQ_INT(r.lacking, lacking);
    CHECK_EQ_INT(r.absent, absent);
    CHECK_EQ_INT(r.others, wrap || strcmp(family, "order") ? 0 : 1); /* a step that unscales is the optimizer's */
    amp_optimizer_free(&state.opt);
}

TEST(scale, "the scale after each update is the original's, in all systems that amp.h has; counters, too; saved "
            "and loaded in the middle; with found_inf summed over ranks: by amp_scaler, and by amp_optimizer") {
    /* it does not have fairseq, Marian, flashlight, tiny-cuda-nn, nor DeepSpeed 0.17 with a hysteresis */
    enum { LACKING = 20 + 7 + 3 + 1 + 38 };
    conforms("scale", 0, LACKING, 8);
    conforms("scale", 1, LACKING, 13); /* a scale of inf takes no step */
}

TEST(order, "calls in their order, and out of it, as torch answers: gradients by their bits, the scale") {
    conforms("order", 0, 0, 9); /* it does not know which gradient was unscaled, and which step is the second */
    conforms("order", 1, 0, 6);
}

TEST(skip, "an inf or NaN anywhere leaves weights, moments, copies and count; the step after is torch's") {
    conforms("skip", 1, 0, 0);
}

TEST(clip, "norm, factor and clipped gradients are torch's, and to the bit those of README's order; "
           "an overflow is skipped") {
    conforms("clip", 1, 4, 0); /* torch alone has a norm of inf or 0, and clips to a max_norm of 0 */
}

TEST(convert, "the floats that break implementations, both ways, and all 2^32: torch's, and x86's of NaN") {
    conforms("convert", 1, 0, test_state.quick ? 2 : 0);
}

TEST(files, "amp.h writes the bytes of vectors/state; other optimizers load them, write models of them, and save the same") {
    static golden        made, again;
    static unsigned char bytes[GOLDEN_MOST];
    char                 path[256];
    int                  which, k;
    for (which = 0; which < GOLDEN_FILES; which++) {
        FILE  *file;
        size_t size;
        snprintf(path, sizeof path, "%s/vectors/state/%s.state", AMP_TESTS_DIR, golden_names[which]);
        file = fopen(path, "rb");
        size = file ? fread(bytes, 1, sizeof bytes, file) : 0;
        if (file) fclose(file);
        CHECK(size > 0);
        CHECK_EQ_INT(golden_make(&made, which), AMP_OK);
        CHECK(made.size == size && memcmp(made.bytes, bytes, size) == 0);
        CHECK_EQ_INT(golden_again(&again, which, bytes, size), AMP_OK);
        CHECK(again.size == size && memcmp(again.bytes, bytes, size) == 0);
        for (k = 0; k < GOLDEN_TENSORS; k++)
            CHECK(memcmp(made.models[k], again.models[k], golden_n[k] * sizeof(uint16_t)) == 0);
        amp_optimizer_free(&made.opt);
        amp_optimizer_free(&again.opt);
    }
}

static int parses(const char *text, size_t n) {
    char *copy = (char *)malloc(n + 1); /* of that length, so that a sanitizer sees what reads on */
    json *j;
    if (!copy) return -1;
    memcpy(copy, text, n);
    copy[n] = '\0';
    j       = json_parse(copy);
    free(j);
    free(copy);
    return j != NULL;
}

TEST(reader, "json.h: values of all kinds; a text that ends early, at any byte, is none, nor is what is nested deeply") {
    static const char text[] = "{\"a\": [1, -2.5e3, \"0x1p-3\", null, {}], \"b\\\"\": \"inf\", \"c\": []}";
    char              copy[sizeof text], deep[401];
    json             *j;
    size_t            n;
    for (n = 0; n < sizeof text - 1; n++) CHECK_EQ_INT(parses(text, n), 0);
    memcpy(copy, text, sizeof text);
    j = json_parse(copy);
    CHECK(j != NULL && j->size == 3 && json_get(j, "a")->size == 5 && json_get(j, "d") == NULL);
    if (!j) return;
    CHECK(json_number(json_at(json_get(j, "a"), 1)) == -2500.0);
    CHECK(json_number(json_at(json_get(j, "a"), 2)) == 0.125);
    CHECK(json_number(json_at(json_get(j, "a"), 3)) == 0.0);
    CHECK(json_number(json_get(j, "b\"")) > 1e300 && json_get(j, "c")->size == 0);
    free(j);
    memset(deep, '[', 200);
    memset(deep + 200, ']', 200);
    CHECK_EQ_INT(parses(deep, 400), 0);
    CHECK_EQ_INT(parses(deep + 140, 120), 1);
}

/* ------------------------------------------------------------------------- faults */

typedef enum fault {
    NO_FAULT, GROWTH_BY_SCALE, GROWS_LATE, NO_RESET, NEVER_REFILLED, BLIND_TO_NAN, EQUAL_TO_ONE, NOT_SAVED,
    NO_CAP, NO_FLOOR, UNSCALES_AGAIN, NEW_SCALE, SUM_IS_FINITE, SPOILT_MOMENTS, SKIP_COUNTS, ROUNDS_NAN,
    SQUARED_NORM, FOURTH_POWER, NAN_PASSES, FAULTS
} fault;

static const struct { const char *family, *tag, *text; } faults[FAULTS] = {
    {"", "", "none"},
    {"scale", "growth-by-scale", "flashlight: growth compares the scale with the interval"},
    {"scale", "off-by-one", "growth after one good step too many"},
    {"scale", "reset", "an overflow leaves the count of good steps"},
    {"scale", "refill", "hysteresis is never given back"},
    {"scale", "nan", "llm.c, PufferLib: a comparison with NaN passes"},
    {"scale", "by-hand", "torch's fused kernels: found_inf == 1, where ranks summed up 2"},
    {"scale", "resume", "Marian: scale and count are not saved"},
    {"scale", "cap", "torch before 98876: growth to inf"},
    {"scale", "floor", "jmp through jit: min_scale is forgotten"},
    {"order", "unscale-twice", "slime: gradients are unscaled twice"},
    {"order", "old-scale", "DeepSpeed: unscaled by the scale of the next step"},
    {"order", "finite-sum", "DeepSpeed, apex: the sum is looked at, not the gradients"},
    {"skip", "moments", "DeepSpeed: an inf gets into the moments"},
    {"skip", "step-count", "tf_keras: a skipped step counts"},
    {"convert", "nan", "InfiniTrain: NaN is rounded as a number is"},
    {"clip", "norm", "norm^2 is compared with max_norm"},
    {"clip", "norm", "norm^4 for norm^2"},
    {"clip", "norm-nan", "a NaN norm is not above max_norm, and passes"}};

/* A scaler as README.md has it, of three systems, an optimizer, a conversion; and their faults. */
typedef struct model {
    vectors_config c;
    fault          fault;
    float          scale;
    int            good, left, checked;
    double         found;
} model;

static void model_show(vectors_subject *v) {
    const model *m = (const model *)v->self;
    v->scale = (double)m->scale;
    v->good  = m->good;
    v->left  = m->left;
}

static int model_start(vectors_subject *v, const vectors_config *c) {
    model *m = (model *)v->self;
    if (strcmp(c->system, "torch") && strcmp(c->system, "apex_hysteresis") && strcmp(c->system, "megatron"))
        return VECTORS_LACKING;
    m->c       = *c;
    if (strcmp(c->system, "megatron") == 0) {
        volatile float growth = (float)c->growth_factor, backoff = (float)c->backoff_factor;
        m->c.growth_factor  = (double)growth; /* gcc 12 -O2 leaves (double)(float) of two neighbours out */
        m->c.backoff_factor = (double)backoff;
    }
    m->scale   = (float)c->init_scale;
    m->left    = c->hysteresis > 0 ? c->hysteresis - 1 : 0;
    m->good    = 0;
    m->checked = 0;
    m->found   = 0.0;
    model_show(v);
    return VECTORS_OK;
}

static int model_unscale(vectors_subject *v, uint32_t *g, size_t n) {
    model      *m     = (model *)v->self;
    const int   grows = m->fault == NEW_SCALE && m->good + 1 == m->c.growth_interval;
    const float inv   = (float)(1.0 / (double)m->scale / (grows ? m->c.growth_factor : 1.0));
    float       sum   = 0.0f, x;
    size_t      i;
    if (m->checked && m->fault != UNSCALES_AGAIN) return VECTORS_REFUSED;
    m->checked = 1;
    for (i = 0; i < n; i++) {
        const uint32_t size = g[i] & 0x7fffffffu;
        if (size == 0x7f800000u || (size > 0x7f800000u && m->fault != BLIND_TO_NAN)) m->found = 1.0;
        memcpy(&x, &g[i], 4);
        sum += x;
        x *= inv;
        if (size < 0x7f800000u) memcpy(&g[i], &x, 4);
    }
    if (m->fault == SUM_IS_FINITE) m->found = sum - sum == 0.0f ? 0.0 : 1.0;
    return VECTORS_OK;
}

static int model_found(const model *m) { return m->fault == EQUAL_TO_ONE ? m->found == 1.0 : m->found != 0.0; }

static int model_step(vectors_subject *v) {
    model *m = (model *)v->self;
    if (m->checked != 1) return VECTORS_REFUSED;
    m->checked = 2;
    return model_found(m) ? VECTORS_SKIPPED : VECTORS_OK;
}

static void model_back_off(model *m) {
    if (m->fault != NO_RESET) m->good = 0;
    if (m->left > 0) {
        m->left--;
        return;
    }
    m->scale = (float)((double)m->scale * m->c.backoff_factor);
    if ((double)m->scale < m->c.min_scale && m->fault != NO_FLOOR) m->scale = (float)m->c.min_scale;
}

static int model_update(vectors_subject *v) {
    model      *m         = (model *)v->self;
    const int   torch     = strcmp(m->c.system, "torch") == 0;
    const int   by_growth = strcmp(m->c.system, "megatron") == 0;
    const int   counted   = m->good + 1 == m->c.growth_interval + (m->fault == GROWS_LATE);
    const int   grows     = m->fault == GROWTH_BY_SCALE ? (int)m->scale == m->c.growth_interval : counted;
    const float next      = (float)((double)m->scale * m->c.growth_factor);
    if (!m->checked) return VECTORS_REFUSED;
    if (model_found(m)) model_back_off(m);
    else {
        m->good = grows ? 0 : m->good + 1;
        if (grows && (by_growth || next <= 3.40282347e38f || m->fault == NO_CAP)) m->scale = next;
        if (!torch && (grows || !by_growth) && m->fault != NEVER_REFILLED)
            m->left = m->c.hysteresis - 1;
    }
    m->found   = 0.0;
    m->checked = 0;
    model_show(v);
    return VECTORS_OK;
}

static int model_set(vectors_subject *v, const char *what, double value) {
    model               *m = (model *)v->self;
    const vectors_config c = m->c;
    if (strcmp(what, "scale") == 0) m->scale = (float)value;
    else if (strcmp(what, "growth_interval") == 0) m->c.growth_interval = (int)value;
    else if (strcmp(what, "found_inf") == 0) m->found = value;
    else if (m->fault == NOT_SAVED) model_start(v, &c);
    model_show(v);
    return VECTORS_OK;
}

static int model_begin(vectors_subject *v, vectors_state *t) {
    (void)v;
    amp_cast(t->copies, subject_dtype(t->dtype), t->weights, AMP_F32, t->n);
    return VECTORS_OK;
}

static int model_adamw(vectors_subject *v, vectors_state *t, void *gradients) {
    const model    *m    = (const model *)v->self;
    const amp_dtype type = subject_dtype(t->dtype);
    static float    g[VECTORS_MOST];
    const int       bad  = !amp_all_finite(gradients, type, t->n);
    double          one1 = 1.0, one2 = 1.0;
    size_t          i;
    int             k;
    amp_cast(g, AMP_F32, gradients, type, t->n);
    if (!bad || m->fault == SKIP_COUNTS) t->steps++;
    for (k = 0; k < t->steps; k++) one1 *= t->beta1, one2 *= t->beta2;
    for (i = 0; i < t->n && (!bad || m->fault == SPOILT_MOMENTS); i++) {
        const double x = (double)g[i] / t->scale;
        t->m[i] = (float)((double)t->m[i] + (1.0 - t->beta1) * (x - (double)t->m[i]));
        t->v[i] = (float)(t->beta2 * (double)t->v[i] + (1.0 - t->beta2) * x * x);
        if (!bad)
            t->weights[i] = (float)((double)t->weights[i] * (1.0 - t->lr * t->weight_decay) -
                                    t->lr * ((double)t->m[i] / (1.0 - one1)) /
                                        (sqrt((double)t->v[i] / (1.0 - one2)) + t->eps));
    }
    if (bad) t->scale *= 0.5;
    else model_begin(v, t);
    return bad ? VECTORS_SKIPPED : VECTORS_OK;
}

static int model_clip_begin(vectors_subject *v, vectors_clip *t) {
    (void)v;
    return strcmp(t->system, "any") ? VECTORS_LACKING : VECTORS_OK;
}

static int model_clip(vectors_subject *v, vectors_clip *t) {
    const model    *m    = (const model *)v->self;
    const amp_dtype type = subject_dtype(t->dtype);
    double          sum = 0.0, limit;
    int             bad = 0;
    size_t          k, i;
    for (k = 0; k < t->count; k++) {
        amp_cast(t->after[k], AMP_F32, t->gradients[k], type, t->n[k]);
        bad |= !amp_all_finite(t->gradients[k], type, t->n[k]);
        for (i = 0; i < t->n[k]; i++) {
            const double x = (double)t->after[k][i] / t->scale;
            sum += m->fault == FOURTH_POWER ? x * x * x * x : x * x;
        }
    }
    t->norm = sqrt(sum);
    if (bad && m->fault != NAN_PASSES) {
        t->scale *= 0.5;
        return VECTORS_SKIPPED;
    }
    limit     = t->max_norm / (t->norm + 1e-6);
    t->factor = (m->fault == SQUARED_NORM ? sum > t->max_norm : limit < 1.0) ? (float)limit : 1.0f;
    for (k = 0; k < t->count; k++)
        for (i = 0; i < t->n[k]; i++)
            t->after[k][i] = (float)((double)t->after[k][i] / t->scale * (double)t->factor);
    return VECTORS_OK;
}

static void model_end(vectors_subject *v) { (void)v; }

static void model_convert(void *dst, const char *to, const void *src, const char *from, size_t n) {
    amp_cast(dst, subject_dtype(to), src, subject_dtype(from), n);
}

/* To nearest even, by an addition that a NaN runs over with. */
static void nan_convert(void *dst, const char *to, const void *src, const char *from, size_t n) {
    size_t i;
    model_convert(dst, to, src, from, n);
    for (i = 0; i < n && strcmp(to, "bf16") == 0; i++) {
        uint32_t u;
        uint16_t h;
        memcpy(&u, (const char *)src + 4 * i, 4);
        h = (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
        memcpy((char *)dst + 2 * i, &h, 2);
    }
}

typedef struct caught { const char *tag; int by_tag, all; } caught;

static void catch_it(void *user, const json *c, int row) {
    caught     *k    = (caught *)user;
    const json *tags = json_get(c, "tags");
    size_t      i;
    (void)row;
    k->all++;
    for (i = 0; i < tags->size; i++) k->by_tag += strcmp(json_at(tags, i)->text, k->tag) == 0;
}

static caught run_fault(int f, const char *family) {
    model           m;
    vectors_subject s;
    caught          k = {"", 0, 0};
    vectors_result  r;
    memset(&m, 0, sizeof m);
    memset(&s, 0, sizeof s);
    m.fault   = (fault)f;
    k.tag     = faults[f].tag;
    s.samples    = 1;
    s.self       = &m;
    s.start      = model_start;
    s.unscale    = model_unscale;
    s.step       = model_step;
    s.update     = model_update;
    s.set        = model_set;
    s.begin      = model_begin;
    s.adamw      = model_adamw;
    s.end        = model_end;
    s.clip_begin = model_clip_begin;
    s.clip       = model_clip;
    s.convert    = f == ROUNDS_NAN ? nan_convert : model_convert;
    r = run(family, &s, f == NO_FAULT ? complain : catch_it, &k);
    CHECK(r.passed + r.failed > 0);
    return k;
}

TEST(faults, "scalers with one fault of the wild each are found by a case whose tag names it; without, by none") {
    static const char *const families[] = {"scale", "order", "skip", "convert", "clip"};
    int                      f;
    for (f = 0; f < 5; f++) run_fault(NO_FAULT, families[f]);
    for (f = NO_FAULT + 1; f < FAULTS; f++) {
        const caught k = run_fault(f, faults[f].family);
        if (k.by_tag == 0) printf("     not found by its tag: %s (%d cases)\n", faults[f].text, k.all);
        CHECK(k.by_tag > 0);
    }
}

int main(int argc, char **argv) {
    test_begin(argc, argv);
    fp_set(FP_IEEE);
    RUN(scale);
    RUN(order);
    RUN(skip);
    RUN(clip);
    RUN(convert);
    RUN(files);
    RUN(reader);
    RUN(faults);
    return test_end();
}
