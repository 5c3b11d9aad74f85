/* test_report.c - what a report says is so: who overflowed, in which step, what casts would do to
   gradients and a step did to weights, counted here a second time in doubles; the history across
   overflows, wrap, save and load; for each advice a run that must be given it, and
   twenty healthy ones that must be given none. */

#define _POSIX_C_SOURCE 200809L /* sigsetjmp in fp.h */
#define AMP_KERNELS /* the core: moments, for the bits of a run */
#include "amp.h"
#include "examples/amp_report.h"
#include "../support/fp.h"
#include "../support/prepare.h"
#include "../support/random.h"
#include "../support/storage.h"
#include "../support/tape.h"
#include "../support/test.h"
#include "../support/values.h"
#include "../support/heap.h"

#include <locale.h>
#include <math.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
#define OK(call)    CHECK_EQ_INT((call), AMP_OK)

enum { MOST = 8 };

/* An optimizer, its tensors, and memory for them. */
typedef struct rig {
    amp_optimizer_desc desc;
    amp_report_desc    watch;
    amp_tensor         tensor[MOST];
    int                count;
    amp_optimizer      opt;
    uint16_t          *before[MOST]; /* half copies in front of a step */
    uint64_t           told;         /* iterations in lines before     */
} rig;

static const char *const names[MOST] = {"a", "b", "c", "d", "e", "f", "g", "h"};

static void *fresh(size_t n) { return calloc(n + 1, 4); }

/* A rig for tensors of AdamW, on fp16 gradients, to be changed before it is prepared. */
static void begin(rig *r) {
    memset(r, 0, sizeof *r);
    r->desc.dtype   = AMP_F16;
    r->desc.kind    = AMP_KIND_ADAMW;
    r->desc.report  = &r->watch;
}

static amp_tensor *put(rig *r, size_t n, amp_dtype grad_type) {
    amp_tensor *t = &r->tensor[r->count];
    size_t      i;
    t->name      = names[r->count];
    t->n         = n;
    t->weight    = (float *)fresh(n);
    t->grad      = fresh(n);
    t->grad_type = grad_type;
    for (i = 0; i < n; i++) t->weight[i] = random_value();
    r->before[r->count++] = (uint16_t *)fresh(n);
    return t;
}

static void prepare(rig *r) {
    int i;
    OK(amp_optimizer_init(&r->opt, &r->desc));
    for (i = 0; i < r->count; i++) OK(amp_optimizer_add(&r->opt, &r->tensor[i]));
    OK(prepare_scaled(&r->opt));
}

static void end(rig *r) {
    int i;
    amp_optimizer_free(&r->opt);
    for (i = 0; i < r->count; i++) {
        free(r->tensor[i].weight);
        free(r->tensor[i].grad);
        free(r->before[i]);
    }
}

/* A step of any kind; one of the user's own is plain descent. */
static void step(rig *r, float lr) {
    int    i;
    size_t k;
    if (r->desc.kind == AMP_KIND_ADAMW) {
        OK(amp_optimizer_step(&r->opt, lr));
    } else if (r->desc.kind == AMP_KIND_SGD) {
        OK(amp_optimizer_step(&r->opt, lr));
    } else {
        if (amp_optimizer_begin_step(&r->opt))
            for (i = 0; i < r->count; i++)
                for (k = 0; k < r->tensor[i].n && r->tensor[i].grad; k++)
                    amp_optimizer_master(&r->opt, i)[k] -= lr * amp_optimizer_grad(&r->opt, i)[k];
        OK(amp_optimizer_end_step(&r->opt));
    }
}

/* All gradients of tensor i are x, before they are stored. */
static void fill(rig *r, int i, float x) {
    size_t k;
    for (k = 0; k < r->tensor[i].n; k++) store(r->tensor[i].grad, r->tensor[i].grad_type, k, x);
}

/* Of magnitudes around scale, over four powers of two. */
static void scatter(rig *r, int i, float scale) {
    size_t k;
    for (k = 0; k < r->tensor[i].n; k++)
        store(r->tensor[i].grad, r->tensor[i].grad_type, k,
              scale * (random_bits() % 2 ? 1.0f : -1.0f) * (0.25f + 0.75f * fabsf(random_value())));
}

static amp_report report_of(rig *r) {
    amp_report report;
    memset(&report, 0, sizeof report);
    OK(amp_optimizer_report(&r->opt, &report));
    return report;
}

static amp_tensor_report tensor_of(rig *r, int i) {
    amp_tensor_report report;
    memset(&report, 0, sizeof report);
    OK(amp_optimizer_report_tensor(&r->opt, i, &report));
    return report;
}

static amp_iteration last_iteration(rig *r) {
    amp_iteration last;
    size_t   count = 1;
    memset(&last, 0, sizeof last);
    report_of(r);
    OK(amp_optimizer_history(&r->opt, &last, &count));
    CHECK_EQ_U64(count, 1);
    return last;
}

static const uint32_t infinity_of[3]  = {0x7f800000u, 0x7c00u, 0x7f80u};
static const uint32_t not_a_number[3] = {0xffc01234u, 0xfe01u, 0x7fc1u};

/* ------------------------------------------------------------------------- who overflowed */

/* One element of one tensor is not finite in the step after next; what is told of it? */
static void plant(amp_dtype type, int victim, size_t place, int nan) {
    static const size_t sizes[4] = {1, 37, 16390, 300};
    rig               r;
    amp_report        report;
    amp_tensor_report t;
    int               i;
    begin(&r);
    for (i = 0; i < 4; i++) put(&r, sizes[i], type);
    prepare(&r);
    for (i = 0; i < 4; i++) scatter(&r, i, 1.0f);
    step(&r, 0.01f);
    store_bits(r.tensor[victim].grad, type, place, nan ? not_a_number[type] : infinity_of[type]);
    step(&r, 0.01f);
    report = report_of(&r);
    t      = tensor_of(&r, victim);
    CHECK_EQ_U64(report.iterations, 2);
    CHECK_EQ_U64(report.steps, 1);
    CHECK_EQ_U64(report.overflows, 1);
    CHECK_EQ_INT(report.first_tensor, victim);
    CHECK_EQ_INT(report.most_tensor, victim);
    CHECK_EQ_U64(report.first_iteration, 2);
    CHECK_EQ_U64(report.most_overflows, 1);
    CHECK_EQ_U64(t.stats.nonfinite, 1);
    CHECK_EQ_U64(t.stats.nan, nan);
    CHECK_EQ_U64(t.stats.first_nonfinite, place);
    CHECK_EQ_U64(t.overflows, 1);
    CHECK_EQ_U64(t.nans, nan);
    CHECK_EQ_U64(t.first_iteration, 2);
    CHECK_EQ_U64(t.last_iteration, 2);
    CHECK_EQ_INT(last_iteration(&r).tensor, victim);
    CHECK_EQ_INT(last_iteration(&r).skip, AMP_SKIP_OVERFLOW);
    for (i = 0; i < 4; i++)
        if (i != victim) CHECK_EQ_U64(tensor_of(&r, i).overflows, 0);
    end(&r);
}

TEST(attribution, "a planted NaN or infinity is told with its tensor, index and step") {
    static const size_t sizes[4] = {1, 37, 16390, 300};
    int type, victim, nan;
    skip_if_emulated();
    for (type = AMP_F32; type <= AMP_BF16; type++)
        for (victim = 0; victim < 4; victim++)
            for (nan = 0; nan < 2; nan++) {
                const size_t n = sizes[victim];
                size_t       i;
                for (i = 0; i < n; i += i < 64 || i > n - 9 ? 1 : test_state.quick ? 2501 : 13)
                    plant((amp_dtype)type, victim, i, nan);
                plant((amp_dtype)type, victim, n - 1, nan);
            }
}

TEST(first_and_most, "which tensor overflowed first, which most often, and the first in each step") {
    static const int planted[9][2] = {{2, -1}, {-1, -1}, {1, 3}, {3, -1}, {1, -1}, {-1, -1},
                                      {3, -1}, {0, 3}, {-1, -1}}; /* two tensors of each step */
    rig        r;
    amp_iteration records[AMP_HISTORY];
    amp_report report;
    size_t     count = AMP_HISTORY;
    int        i, k;
    begin(&r);
    for (i = 0; i < 4; i++) put(&r, 20, AMP_F16);
    prepare(&r);
    for (k = 0; k < 9; k++) {
        for (i = 0; i < 4; i++) scatter(&r, i, 1.0f);
        for (i = 0; i < 2; i++)
            if (planted[k][i] >= 0) store_bits(r.tensor[planted[k][i]].grad, AMP_F16, 7, 0x7c00u);
        step(&r, 0.01f);
    }
    report = report_of(&r);
    OK(amp_optimizer_history(&r.opt, records, &count));
    CHECK_EQ_U64(count, 9);
    for (k = 0; k < 9; k++) {
        CHECK_EQ_U64(records[k].iteration, k + 1);
        CHECK_EQ_INT(records[k].tensor, planted[k][0]);
        CHECK_EQ_INT(records[k].skip, planted[k][0] < 0 ? AMP_SKIP_NONE : AMP_SKIP_OVERFLOW);
    }
    CHECK_EQ_INT(report.first_tensor, 2);
    CHECK_EQ_U64(report.first_iteration, 1);
    CHECK_EQ_INT(report.most_tensor, 3);
    CHECK_EQ_U64(report.most_overflows, 4);
    CHECK_EQ_U64(report.overflows, 6);
    CHECK_EQ_U64(report.backoffs, 6);
    CHECK_EQ_U64(tensor_of(&r, 3).first_iteration, 3);
    CHECK_EQ_U64(tensor_of(&r, 3).last_iteration, 8);
    CHECK_EQ_U64(tensor_of(&r, 1).overflows, 2);
    end(&r);
}

TEST(asked, "a found_inf that the user writes is a skip that was asked for, of no tensor") {
    rig r;
    begin(&r);
    put(&r, 8, AMP_F16);
    prepare(&r);
    fill(&r, 0, 1.0f);
    amp_optimizer_scaler(&r.opt)->found_inf = 4;
    step(&r, 0.01f);
    CHECK_EQ_INT(last_iteration(&r).skip, AMP_SKIP_ASKED);
    CHECK_EQ_INT(last_iteration(&r).tensor, -1);
    CHECK_EQ_U64(report_of(&r).asked, 1);
    CHECK_EQ_U64(report_of(&r).overflows, 0);
    end(&r);
}

TEST(headroom, "headroom: 2^headroom times the largest gradient fits its type, twice that does not") {
    static const float ends[3] = {3.4028235e38f, 65504.0f, 3.3895314e38f};
    rig r;
    int type, k;
    for (type = AMP_F32; type <= AMP_BF16; type++) {
        for (k = 0; k < 60; k++) {
            const float x = ldexpf(1.0f + (float)(random_bits() % 128) / 128.0f,
                                   (int)random_below(30) - 14);
            int         room;
            begin(&r);
            put(&r, 3, (amp_dtype)type);
            prepare(&r);
            store(r.tensor[0].grad, (amp_dtype)type, 1, -x);
            step(&r, 0.01f);
            room = report_of(&r).headroom;
            CHECK_EQ_INT(tensor_of(&r, 0).headroom, room);
            CHECK(ldexp((double)x, room) <= (double)ends[type]);
            CHECK(ldexp((double)x, room + 1) > (double)ends[type]);
            end(&r);
        }
    }
}

/* --------------------------------------------------------------- counts, a second time */

/* The magnitude of fp32 bits, whatever flags say of subnormals. */
static double magnitude(uint32_t bits) {
    const uint32_t a = bits & 0x7fffffffu, e = a >> 23;
    return e ? ldexp((double)((a & 0x7fffffu) | 0x800000u), (int)e - 150) : ldexp((double)a, -149);
}

static uint32_t bits_at(const void *x, amp_dtype type, size_t i) {
    const uint32_t u = load_bits(x, type, i);
    float          f;
    amp_f16        h;
    uint32_t       bits;
    if (type == AMP_F32) return u;
    if (type == AMP_BF16) return u << 16;
    h.bits = (uint16_t)u;
    f      = amp_f16_to_f32(h);
    memcpy(&bits, &f, 4);
    return bits;
}

static int bin_of(double x) {
    int e, b;
    frexp(x, &e); /* x is from 2^(e - 1) to 2^e */
    b = (e - 1 + 127) / 4;
    return e - 1 + 127 < 0 ? 0 : b;
}

/* What tensor i should tell of its gradient, as it is now. */
static void expect_grads(rig *r, int i, amp_tensor_report *want) {
    const amp_tensor *t = &r->tensor[i];
    size_t            k;
    memset(want, 0, sizeof *want);
    for (k = 0; k < t->n && t->grad; k++) {
        const uint32_t bits = bits_at(t->grad, t->grad_type, k);
        const double   x    = magnitude(bits);
        if ((bits & 0x7fffffffu) >= 0x7f800000u || (bits & 0x7fffffffu) == 0) continue;
        want->grads[bin_of(x)]++;
        if (x <= ldexp(1.0, -25)) want->f16_zero++;
        else if (x < ldexp(1.0, -14) - ldexp(1.0, -25)) want->f16_small++;
        if (x <= ldexp(1.0, -134)) want->bf16_zero++;
        else if (x < ldexp(1.0, -126) - ldexp(1.0, -134)) want->bf16_small++;
    }
}

/* And of its weights, behind a step that was taken. */
static void expect_weights(rig *r, int i, amp_tensor_report *want) {
    const amp_tensor *t     = &r->tensor[i];
    const void       *model = amp_optimizer_model(&r->opt, i);
    const amp_dtype   type  = t->model ? t->model_type : r->desc.dtype;
    const int half = model != (const void *)amp_optimizer_master(&r->opt, i) && type != AMP_F32;
    size_t    k;
    for (k = 0; k < t->n && t->grad; k++) {
        const uint32_t bits = bits_at(amp_optimizer_master(&r->opt, i), AMP_F32, k);
        if ((bits & 0x7fffffffu) != 0 && (bits & 0x7fffffffu) < 0x7f800000u)
            want->weights[bin_of(magnitude(bits))]++;
        if (!half || (bits_at(t->grad, t->grad_type, k) & 0x7fffffffu) == 0) continue;
        want->updates++;
        want->lost += load_bits(model, type, k) == r->before[i][k];
        want->rounded += bits_at(model, type, k) == bits;
    }
}

static void check_counts(const amp_tensor_report *got, const amp_tensor_report *want) {
    CHECK_EQ_U64(got->f16_zero, want->f16_zero);
    CHECK_EQ_U64(got->f16_small, want->f16_small);
    CHECK_EQ_U64(got->bf16_zero, want->bf16_zero);
    CHECK_EQ_U64(got->bf16_small, want->bf16_small);
    CHECK_EQ_U64(got->updates, want->updates);
    CHECK_EQ_U64(got->lost, want->lost);
    CHECK_EQ_U64(got->rounded, want->rounded);
    CHECK_MEM(got->grads, want->grads, sizeof got->grads);
    CHECK_MEM(got->weights, want->weights, sizeof got->weights);
}

/* Any bits, those at the edges of casts more often; finite ones if they shall make a step. */
static uint32_t any_bits(amp_dtype type, int finite) {
    static const uint32_t edges[] = {0x33000000u, 0x33000001u, 0x32ffffffu, 0x387fe000u, 0x387fdfffu,
                                     0x38800000u, 0x387fffffu, 0x00008000u, 0x00008001u, 0x007f8000u,
                                     0x007f7fffu, 0x00800000u, 1u, 0u, 0x80000000u, 0x7f7fffffu};
    uint32_t u = random_bits();
    if (random_bits() % 4 == 0) u = edges[u % COUNT_OF(edges)] ^ (random_bits() & 0x80000000u);
    if (random_bits() % 4 == 0) u = (u & 0x807fffffu) | (96u + u % 24u) << 23; /* around fp16's end */
    if (type == AMP_F16) { /* its own edges: all of 16 bits */
        u >>= 16;
        return finite && (u & 0x7c00u) == 0x7c00u ? u ^ 0x4000u : u;
    }
    if (finite && (u >> 23 & 255u) > 150u) u = (u & 0x807fffffu) | 150u << 23; /* squares are finite */
    return type == AMP_BF16 ? u >> 16 : u;
}

static void step_and_compare(rig *r, int finite, uint64_t number) {
    amp_tensor_report want[MOST], got;
    amp_report        report;
    amp_status        status;
    uint64_t          f16_small = 0, lost = 0, updates = 0;
    int               i;
    size_t            k;
    for (i = 0; i < r->count; i++) {
        const amp_tensor *t = &r->tensor[i];
        for (k = 0; k < t->n && t->grad; k++)
            store_bits(t->grad, t->grad_type, k, any_bits(t->grad_type, finite));
        if (r->desc.dtype != AMP_F32)
            for (k = 0; k < t->n; k++)
                r->before[i][k] = (uint16_t)load_bits(amp_optimizer_model(&r->opt, i), AMP_F16, k);
        expect_grads(r, i, &want[i]);
    }
    step(r, 0.001f);
    report = report_of(r);
    OK(amp_optimizer_status(&r->opt, &status));
    CHECK_EQ_U64(report.sampled, number);
    for (i = 0; i < r->count; i++) {
        if (status.did_step) expect_weights(r, i, &want[i]);
        got = tensor_of(r, i);
        check_counts(&got, &want[i]);
        f16_small += want[i].f16_small;
        lost += want[i].lost;
        updates += want[i].updates;
    }
    CHECK_EQ_U64(report.f16_small, f16_small);
    CHECK_EQ_U64(report.lost, lost);
    CHECK_EQ_U64(report.updates, updates);
}

static void count_all(amp_kind kind, amp_dtype dtype, const char *tier) {
    static const size_t sizes[MOST] = {0, 1, 33, 1023, 16384 + 5, 1024 + 31, 7, 70000}; /* the last for threads */
    rig r;
    int i, number;
    begin(&r);
    r.desc.kind         = kind;
    r.desc.dtype        = dtype;
    r.desc.momentum     = random_bits() % 2 ? 0.9 : 0.0;
    r.desc.scaler.preset = AMP_PRESET_STATIC;
    r.watch.every       = 1;
    for (i = 0; i < MOST; i++) put(&r, sizes[i], (amp_dtype)(random_bits() % 3));
    r.tensor[2].keep_fp32 = 1;
    r.tensor[3].keep_fp32 = kind == AMP_KIND_OWN;
    free(r.tensor[6].grad); /* frozen */
    r.tensor[6].grad = NULL, r.tensor[6].frozen = 1;
    if (tier) OK(amp_cpu_force_tier(tier));
    prepare(&r);
    for (number = 1; number <= 4; number++) step_and_compare(&r, number != 3, (uint64_t)number);
    end(&r);
    OK(amp_cpu_force_tier(NULL));
}

TEST(counts, "what casts would do, histograms and lost updates are those of plain loops in doubles: "
             "all kinds, types and tiers") {
    static const char *const tiers[] = {"c", "avx2", "avx512", "neon"};
    size_t t;
    int    kind, dtype;
    for (t = 0; t < COUNT_OF(tiers); t++) {
        if (amp_cpu_force_tier(tiers[t]) != AMP_OK) continue;
        for (kind = AMP_KIND_OWN; kind <= AMP_KIND_SGD; kind++)
            for (dtype = AMP_F32; dtype <= AMP_BF16; dtype++)
                count_all((amp_kind)kind, (amp_dtype)dtype, tiers[t]);
    }
    OK(amp_cpu_force_tier(NULL));
}

TEST(casts, "as many become 0 or subnormal as amp_cast makes so, at every edge") {
    enum { N = 4096 };
    static uint32_t bits[N];
    static amp_f16  f16[N];
    static amp_bf16 bf16[N];
    rig               r;
    amp_tensor_report got;
    uint64_t          want[4] = {0, 0, 0, 0};
    size_t            k;
    static const uint32_t edges[4] = {0x33000000u, 0x387fe000u, 0x00008000u, 0x007f8000u};
    begin(&r);
    r.watch.every        = 1;
    r.desc.scaler.preset = AMP_PRESET_STATIC;
    put(&r, N, AMP_F32);
    prepare(&r);
    for (k = 0; k < N; k++) bits[k] = edges[k % 4] + (uint32_t)(k / 4) - N / 8;
    memcpy(r.tensor[0].grad, bits, sizeof bits);
    OK(amp_cast(f16, AMP_F16, bits, AMP_F32, N));
    OK(amp_cast(bf16, AMP_BF16, bits, AMP_F32, N));
    for (k = 0; k < N; k++) {
        want[0] += (f16[k].bits & 0x7fffu) == 0;
        want[1] += (f16[k].bits & 0x7fffu) != 0 && (f16[k].bits & 0x7fffu) < 0x400u;
        want[2] += (bf16[k].bits & 0x7fffu) == 0;
        want[3] += (bf16[k].bits & 0x7fffu) != 0 && (bf16[k].bits & 0x7fffu) < 0x80u;
    }
    step(&r, 0.01f);
    report_of(&r);
    got = tensor_of(&r, 0);
    CHECK_EQ_U64(got.f16_zero, want[0]);
    CHECK_EQ_U64(got.f16_small, want[1]);
    CHECK_EQ_U64(got.bf16_zero, want[2]);
    CHECK_EQ_U64(got.bf16_small, want[3]);
    end(&r);
}

TEST(every, "samples are of steps 1, 1 + every, ...; between them the last one stays") {
    rig      r;
    uint64_t small[2] = {0, 0};
    int      number;
    begin(&r);
    r.watch.every        = 3;
    r.desc.scaler.preset = AMP_PRESET_STATIC;
    put(&r, 100, AMP_F16);
    prepare(&r);
    for (number = 1; number <= 11; number++) {
        scatter(&r, 0, number % 2 ? 1e-4f : 1.0f);
        step(&r, 0.01f);
        CHECK_EQ_U64(report_of(&r).sampled, (number - 1) / 3 * 3 + 1);
        small[number % 2] = tensor_of(&r, 0).f16_small;
        if (number % 3 != 1) CHECK_EQ_U64(small[number % 2], small[!(number % 2)]);
        CHECK((small[number % 2] > 0) == ((number - 1) / 3 % 2 == 0));
    }
    end(&r);
}

/* ----------------------------------------------------- nothing else changes by a report */

static void save(rig *r, tape *t) {
    t->size = t->at = 0;
    OK(amp_optimizer_save(&r->opt, tape_write, t));
}

static amp_result load_tape(rig *r, tape *t) {
    t->at = 0;
    return amp_optimizer_load(&r->opt, tape_read, t);
}

/* Three tensors and some steps, of which a few overflow. */
static void some_run(rig *r, int steps) {
    int i;
    for (; steps; steps--) {
        for (i = 0; i < r->count; i++) scatter(r, i, 2.0f);
        if (random_bits() % 5 == 0)
            store_bits(r->tensor[random_below((size_t)r->count)].grad, AMP_F16, 3, 0x7c00u);
        step(r, 0.01f);
    }
}

static void three(rig *r) {
    begin(r);
    r->desc.scaler.growth_interval = 4;
    r->desc.max_norm               = 1.0f;
    put(r, 50, AMP_F16);
    put(r, 20000, AMP_F16);
    put(r, 9, AMP_F16)->keep_fp32 = 1;
}

static void same_weights(rig *a, rig *b) {
    int i, k;
    for (i = 0; i < a->count; i++) {
        const ampi_slot *s = &a->opt.plan->host_slots[i], *t = &b->opt.plan->host_slots[i];
        CHECK_MEM(s->master.data, t->master.data, 4 * (size_t)s->n);
        for (k = 0; k < 2; k++)
            if (s->moment[k].data) CHECK_MEM(s->moment[k].data, t->moment[k].data, 4 * (size_t)s->n);
        if (s->model)
            CHECK_MEM(s->model, t->model, amp_dtype_size((amp_dtype)s->model_type) * (size_t)s->n);
    }
    CHECK_MEM(amp_optimizer_scaler(&a->opt), amp_optimizer_scaler(&b->opt), sizeof(amp_scaler));
}

TEST(nothing_else, "with a report a run has the bits of one without; without, a state its bytes") {
    static const int kinds[] = {AMP_KIND_OWN, AMP_KIND_ADAMW, AMP_KIND_SGD};
    size_t           k;
    for (k = 0; k < COUNT_OF(kinds); k++) {
        rig  a, b;
        tape t = {NULL, 0, 0, 0, 0};
        random_state = 5 + k;
        three(&a);
        a.desc.kind   = (amp_kind)kinds[k];
        a.desc.report = NULL;
        prepare(&a);
        some_run(&a, 30);
        random_state = 5 + k;
        three(&b);
        b.desc.kind     = (amp_kind)kinds[k];
        b.watch.every = 2;
        prepare(&b);
        some_run(&b, 30);
        same_weights(&a, &b);
        CHECK(report_of(&b).overflows > 0);
        save(&a, &t);
        CHECK_EQ_U64(t.bytes[12], 0); /* the flags of one without */
        free(t.bytes);
        end(&a);
        end(&b);
    }
}

TEST(no_allocation, "steps allocate nothing, reports neither; all is freed") {
    rig        r;
    amp_report report;
    amp_advice advice[AMP_NUM_ADVICE];
    int        calls, count;
    memset(&the_heap, 0, sizeof the_heap);
    the_heap.poison = 0xa5;
    three(&r);
    r.watch.every              = 1;
    r.desc.allocator.allocate_fn = heap_alloc;
    r.desc.allocator.release_fn  = heap_free;
    r.desc.allocator.user        = &the_heap;
    prepare(&r);
    calls = the_heap.calls;
    some_run(&r, 5);
    OK(amp_optimizer_report(&r.opt, &report));
    OK(amp_report_advice(&r.opt, advice, &count));
    CHECK_EQ_INT(the_heap.calls, calls);
    CHECK_EQ_U64(report.iterations, 5);
    end(&r);
    CHECK_EQ_INT(the_heap.live, 0);
    CHECK_EQ_INT(the_heap.strangers, 0);
}

TEST(refused, "without desc.report, unprepared or with wrong numbers: errors that name the field") {
    rig        r;
    amp_report report;
    amp_tensor_report tensor;
    amp_iteration last;
    size_t     count = 1;
    amp_advice advice[AMP_NUM_ADVICE];
    int        num;
    begin(&r);
    r.desc.report = NULL;
    put(&r, 4, AMP_F16);
    CHECK_EQ_INT(amp_optimizer_report(NULL, &report), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_optimizer_report(&r.opt, &report), AMP_ERROR_NOT_INITIALIZED);
    CHECK_EQ_INT(amp_optimizer_report_tensor(&r.opt, 0, &tensor), AMP_ERROR_NOT_INITIALIZED);
    CHECK_EQ_INT(amp_optimizer_report_tensor(NULL, 0, &tensor), AMP_ERROR_INVALID_ARGUMENT);
    OK(amp_optimizer_init(&r.opt, &r.desc));
    CHECK_EQ_INT(amp_optimizer_report(&r.opt, &report), AMP_ERROR_NOT_PREPARED);
    CHECK_EQ_INT(amp_optimizer_history(&r.opt, &last, &count), AMP_ERROR_NOT_PREPARED);
    prepare(&r);
    CHECK_EQ_INT(amp_optimizer_report(&r.opt, &report), AMP_ERROR_UNSUPPORTED);
    CHECK(strstr(amp_problem(), "desc.report") != NULL);
    CHECK_EQ_INT(amp_report_advice(&r.opt, advice, &num), AMP_ERROR_UNSUPPORTED);
    CHECK_EQ_INT(amp_optimizer_history(&r.opt, &last, &count), AMP_ERROR_UNSUPPORTED);
    CHECK_EQ_INT(amp_optimizer_report(&r.opt, NULL), AMP_ERROR_INVALID_ARGUMENT);
    end(&r);
    begin(&r);
    r.watch.every = -1;
    CHECK_EQ_INT(amp_optimizer_init(&r.opt, &r.desc), AMP_ERROR_INVALID_CONFIG);
    CHECK(strstr(amp_problem(), "amp_report_desc.every is -1") != NULL);
}

/* --------------------------------------------------- history: wrap, save and load */

static size_t history(rig *r, amp_iteration *records) {
    size_t count = AMP_HISTORY;
    report_of(r);
    OK(amp_optimizer_history(&r->opt, records, &count));
    return count;
}

TEST(ring, "the last 256 steps, across overflows and wrap; the scale's path can be read off them") {
    static amp_iteration all[700], seen[AMP_HISTORY];
    rig      r;
    size_t   count, i;
    uint64_t number;
    skip_if_emulated();
    three(&r);
    prepare(&r);
    for (number = 1; number <= 700; number++) {
        amp_status status;
        const float scale = amp_optimizer_loss_scale(&r.opt);
        some_run(&r, 1);
        OK(amp_optimizer_status(&r.opt, &status));
        all[number - 1].iteration   = number;
        all[number - 1].norm        = status.norm;
        all[number - 1].loss_scale  = scale;
        all[number - 1].clip_factor = status.clip_factor;
        all[number - 1].skip        = status.found_inf ? AMP_SKIP_OVERFLOW : AMP_SKIP_NONE;
        if (number != 1 && number != 255 && number != 256 && number != 257 && number % 100) continue;
        count = history(&r, seen);
        CHECK_EQ_U64(count, number < AMP_HISTORY ? number : AMP_HISTORY);
        for (i = 0; i < count; i++) {
            const amp_iteration *want = &all[number - count + i];
            CHECK_EQ_U64(seen[i].iteration, want->iteration);
            CHECK_EQ_F64(seen[i].norm, want->norm);
            CHECK_EQ_F32(seen[i].loss_scale, want->loss_scale);
            CHECK_EQ_F32(seen[i].clip_factor, want->clip_factor);
            CHECK_EQ_U32(seen[i].skip, want->skip);
            CHECK_EQ_INT(seen[i].tensor >= 0, want->skip != 0);
        }
    }
    CHECK(report_of(&r).overflows > 100);
    count = 10; /* only the last ones */
    OK(amp_optimizer_history(&r.opt, seen, &count));
    CHECK_EQ_U64(count, 10);
    CHECK_EQ_U64(seen[0].iteration, 691);
    end(&r);
}

TEST(saved, "a run that is saved and loaded has the history of one that was not; other files too") {
    static amp_iteration records[2][AMP_HISTORY];
    rig        a, b, c;
    tape       with = {NULL, 0, 0, 0, 0}, without = {NULL, 0, 0, 0, 0}, again = {NULL, 0, 0, 0, 0};
    amp_report reports[2];
    uint64_t   dice;
    random_state = 77;
    three(&a);
    a.watch.every = 5;
    prepare(&a);
    three(&b);
    b.watch = a.watch;
    prepare(&b);
    three(&c);
    c.desc.report = NULL;
    prepare(&c);
    some_run(&c, 3);
    save(&c, &without);
    some_run(&a, 400);
    some_run(&b, 41); /* is forgotten */
    save(&a, &with);
    OK(load_tape(&b, &with));
    save(&b, &again);
    CHECK_EQ_U64(again.size, with.size);
    CHECK_MEM(again.bytes, with.bytes, with.size);
    CHECK_EQ_U64(report_of(&b).sampled, 0); /* histograms are not saved */
    CHECK_EQ_U64(tensor_of(&b, 1).grads[31] + tensor_of(&b, 1).weights[31], 0);
    dice = random_state;
    some_run(&a, 30);
    random_state = dice;
    some_run(&b, 30);
    same_weights(&a, &b);
    CHECK_EQ_U64(history(&a, records[0]), AMP_HISTORY);
    CHECK_EQ_U64(history(&b, records[1]), AMP_HISTORY);
    CHECK_MEM(records[0], records[1], sizeof records[0]);
    reports[0] = report_of(&a);
    reports[1] = report_of(&b);
    CHECK_MEM(&reports[0], &reports[1], sizeof reports[0]);
    CHECK_EQ_U64(reports[0].sampled, 426);

    OK(load_tape(&c, &with)); /* who wants no report leaves it */
    some_run(&c, 1);
    OK(load_tape(&b, &without)); /* and one that was not made begins anew */
    CHECK_EQ_U64(history(&b, records[1]), 0);
    CHECK_EQ_U64(report_of(&b).overflows, 0);
    CHECK_EQ_U64(report_of(&b).iterations, 3);
    CHECK_EQ_INT(report_of(&b).first_tensor, -1);
    some_run(&b, 2);
    CHECK_EQ_U64(history(&b, records[1]), 2);
    CHECK_EQ_U64(records[1][0].iteration, 4);
    free(with.bytes);
    free(without.bytes);
    free(again.bytes);
    end(&a);
    end(&b);
    end(&c);
}

/* A processor whose next check, or update, tells of an error when it has done its work, or nothing of it; or the
   copy after so many more does. */
static struct { int check, update, copy; ampi_functions functions; amp_backend cpu, backend; } broken;

static amp_result broken_check(const amp_backend *self, const amp_plan *plan) {
    OK(broken.cpu.functions->check_fn(self, plan));
    return broken.check-- == 1 ? AMP_ERROR_CUDA : AMP_OK;
}
static amp_result broken_update(const amp_backend *self, const amp_plan *plan, ampi_job job) {
    const int how = broken.update;
    broken.update = 0;
    if (how < 2) OK(broken.cpu.functions->update_fn(self, plan, job));
    return how ? AMP_ERROR_CUDA : AMP_OK;
}
static amp_result broken_copy(const amp_backend *self, void *dst, const void *src, size_t num_bytes,
                              ampi_copy direction) {
    if (broken.copy && --broken.copy == 0) return AMP_ERROR_CUDA;
    return broken.cpu.functions->copy_fn(self, dst, src, num_bytes, direction);
}
static void break_backend(rig *r) {
    memset(&broken, 0, sizeof broken);
    OK(amp_cpu_backend(&broken.cpu));
    broken.functions           = *broken.cpu.functions;
    broken.functions.check_fn  = broken_check;
    broken.functions.update_fn = broken_update;
    broken.functions.copy_fn   = broken_copy;
    broken.backend             = broken.cpu;
    broken.backend.functions   = &broken.functions;
    r->desc.backend            = &broken.backend;
}

/* Two runs are told the same of their last step and of all tensors. */
static void same_reports(rig *a, rig *b) {
    const amp_report first = report_of(a), second = report_of(b);
    int              i;
    CHECK_MEM(&first, &second, sizeof first);
    for (i = 0; i < a->count; i++) {
        const amp_tensor_report t = tensor_of(a, i), u = tensor_of(b, i);
        CHECK_MEM(&t, &u, sizeof t);
    }
}

TEST(loaded_after_a_failure, "what steps that failed have counted is gone after a load, and the first step behind it is "
                             "counted as in a run that never failed") {
    int before, how, i, bin;
    for (before = 0; before < 2; before++)
        for (how = 0; how < 3; how++) {
            rig      other, a, b;
            tape     t = {NULL, 0, 0, 0, 0};
            uint64_t dice;
            three(&other);
            other.watch.every = 1;
            prepare(&other);
            some_run(&other, 5);
            save(&other, &t);
            end(&other);
            three(&a);
            a.watch.every = 1;
            prepare(&a);
            three(&b);
            b.watch = a.watch;
            break_backend(&b);
            prepare(&b);
            some_run(&b, 2 + before);
            for (i = 0; i < b.count; i++) scatter(&b, i, 0.5f);
            if (how == 0) broken.check = 1;
            else broken.update = how;
            CHECK_EQ_INT(amp_optimizer_step(&b.opt, 0.01f), AMP_ERROR_CUDA);
            OK(load_tape(&a, &t));
            OK(load_tape(&b, &t));
            CHECK_EQ_U64(report_of(&b).sampled + report_of(&b).grads + report_of(&b).updates, 0);
            for (i = 0; i < b.count; i++) {
                const amp_tensor_report u = tensor_of(&b, i);
                for (bin = 0; bin < AMP_BINS; bin++) CHECK_EQ_U64(u.grads[bin] + u.weights[bin], 0);
            }
            dice = random_state;
            some_run(&a, 1);
            random_state = dice;
            some_run(&b, 1);
            same_reports(&a, &b);
            free(t.bytes);
            end(&a);
            end(&b);
        }
}

TEST(failing_copies, "manual: a report whose copies fail says so, writes nothing, and leaves no moment that tensors and "
                     "steps could be of") {
    rig               r;
    amp_report        report, kept;
    amp_tensor_report tensor;
    amp_iteration     last;
    amp_advice        advice[AMP_NUM_ADVICE];
    size_t            count;
    int               fails, num, failed = 0;
    three(&r);
    r.watch.every = 1;
    break_backend(&r);
    prepare(&r);
    for (fails = 1; failed == fails - 1; fails++) {
        some_run(&r, 1);
        kept = report_of(&r);
        OK(amp_optimizer_report_tensor(&r.opt, 0, &tensor));
        some_run(&r, 1);
        memset(&report, 0xa5, sizeof report);
        memset(&kept, 0xa5, sizeof kept);
        broken.copy = fails;
        if (amp_optimizer_report(&r.opt, &report) == AMP_OK) break;
        failed++;
        CHECK_MEM(&report, &kept, sizeof kept);
        CHECK_EQ_INT(amp_optimizer_report_tensor(&r.opt, 0, &tensor), AMP_ERROR_BAD_STATE);
        count = 1;
        CHECK_EQ_INT(amp_optimizer_history(&r.opt, &last, &count), AMP_ERROR_BAD_STATE);
        broken.copy = fails;
        CHECK_EQ_INT(amp_report_advice(&r.opt, advice, &num), AMP_ERROR_CUDA);
        CHECK_EQ_INT(amp_optimizer_report_tensor(&r.opt, 0, &tensor), AMP_ERROR_BAD_STATE);
        CHECK_EQ_U64(report_of(&r).iterations, 2 * fails);
    }
    CHECK_EQ_INT(failed, 5); /* control, scaler, record, tensors, histograms */
    end(&r);
}

TEST(saved_without_tensors, "law 11: a run without tensors is saved with its report, and loads") {
    rig  r;
    tape t = {NULL, 0, 0, 0, 0};
    begin(&r);
    prepare(&r);
    step(&r, 0.01f);
    save(&r, &t);
    OK(load_tape(&r, &t));
    CHECK_EQ_U64(report_of(&r).iterations, 1);
    free(t.bytes);
    end(&r);
}

/* Little-endian numbers of 8 bytes, and a state's sum of them. */
static uint64_t number_at(const unsigned char *p) {
    uint64_t x = 0;
    int      i;
    for (i = 7; i >= 0; i--) x = x << 8 | p[i];
    return x;
}

static void put_number(unsigned char *p, uint64_t x) {
    int i;
    for (i = 0; i < 8; i++, x >>= 8) p[i] = (unsigned char)x;
}

static uint64_t sum_of(const unsigned char *p, size_t n) {
    uint64_t sum = 0;
    for (; n; n -= 8, p += 8) {
        sum = (sum ^ number_at(p)) * 0x9e3779b97f4a7c15u;
        sum ^= sum >> 32;
    }
    return sum;
}

TEST(torn, "a report in a file whose numbers would lead outside an array is refused, and nothing changes") {
    static amp_iteration records[2][AMP_HISTORY];
    rig    r;
    tape   t = {NULL, 0, 0, 0, 0};
    size_t at, body, refused = 0, apart = test_state.quick == 2 ? 200 : 8;
    three(&r);
    prepare(&r);
    some_run(&r, 300);
    save(&r, &t);
    body = t.size - 40;
    CHECK_EQ_U64(history(&r, records[0]), AMP_HISTORY);
    /* each number of the report, which lies in front of masters and moments: the largest there is */
    for (at = 32; at + 8 <= 32 + body; at += apart) {
        const uint64_t was = number_at(t.bytes + at);
        amp_result     result;
        if (at > 32 + 8 * (60 + 2 + 6 * 256 + 12)) break;
        put_number(t.bytes + at, UINT64_MAX);
        put_number(t.bytes + 32 + body, sum_of(t.bytes + 32, body));
        result = load_tape(&r, &t);
        refused += result != AMP_OK;
        CHECK(result == AMP_OK || result == AMP_ERROR_CORRUPT || result == AMP_ERROR_MISMATCH || result == AMP_ERROR_NEWER);
        put_number(t.bytes + at, was);
        if (result != AMP_OK) continue;
        put_number(t.bytes + 32 + body, sum_of(t.bytes + 32, body));
        OK(load_tape(&r, &t));
    }
    CHECK(refused > (apart == 8 ? 255u : 255 / 25 - 1u)); /* why each was skipped */
    put_number(t.bytes + 32 + body, sum_of(t.bytes + 32, body));
    CHECK_EQ_U64(history(&r, records[1]), AMP_HISTORY);
    CHECK_MEM(records[0], records[1], sizeof records[0]);
    t.bytes[14] = 1; /* a flag that nobody knows */
    put_number(t.bytes + 24, sum_of(t.bytes, 24));
    CHECK_EQ_INT(load_tape(&r, &t), AMP_ERROR_NEWER);
    free(t.bytes);
    end(&r);
}

static uint64_t bits_of_double(double x) {
    uint64_t u;
    memcpy(&u, &x, 8);
    return u;
}
static uint64_t bits_of_float(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

TEST(members, "law 21: each number of a report in a file is that of its name: no two alike, in the format's order") {
    enum { AT = 32 + 8 * (40 + 8) }; /* behind the header, the numbers of a run and one tensor, of a short name */
    const uint64_t want[] = {11, 12};
    const uint64_t turn[] = {257, bits_of_double(8.0), bits_of_float(9.0f), bits_of_float(0.75f), 2, 0};
    const uint64_t last[] = {14, 15, 16, 17};
    ampi_record    *record;
    ampi_overflows *o;
    amp_iteration  *h;
    rig             r;
    tape            t = {NULL, 0, 0, 0, 0};
    size_t          k;
    begin(&r);
    put(&r, 1, AMP_F32);
    prepare(&r);
    record                    = r.opt.plan->record;
    o                         = &r.opt.plan->table[0].overflows;
    h                         = &record->history[1];
    record->skips[0]          = 11;
    record->skips[1]          = 12;
    h->iteration              = 257;
    h->norm                   = 8.0;
    h->loss_scale             = 9.0f;
    h->clip_factor            = 0.75f;
    h->skip                   = 2;
    o->overflows              = 14;
    o->nans                   = 15;
    o->first                  = 16;
    o->last                   = 17;
    save(&r, &t);
    CHECK_EQ_U64(t.bytes[12], 1); /* there is a report */
    for (k = 0; k < COUNT_OF(want); k++) CHECK_EQ_U64(number_at(t.bytes + AT + 8 * k), want[k]);
    for (k = 0; k < COUNT_OF(turn); k++) CHECK_EQ_U64(number_at(t.bytes + AT + 8 * (2 + 6 + k)), turn[k]);
    for (k = 0; k < COUNT_OF(last); k++)
        CHECK_EQ_U64(number_at(t.bytes + AT + 8 * (2 + 6 * AMP_HISTORY + k)), last[k]);
    memset(record, 0, sizeof *record);
    memset(o, 0, sizeof *o);
    OK(load_tape(&r, &t));
    CHECK_EQ_U64(record->skips[1], 12);
    CHECK_EQ_U64(h->iteration, 257);
    CHECK_EQ_F32(h->clip_factor, 0.75f);
    CHECK_EQ_U64(o->last, 17);
    free(t.bytes);
    end(&r);
}

TEST(crafted_reports, "law 12: in a report of a file what indexes an array is in its bounds, or the file is AMP_ERROR_CORRUPT: why a "
                      "step was skipped, and its tensor; other numbers may be any") {
    enum { REPORT = 32 + 8 * (40 + 8), ITERATION = 2, TENSORS = 2 + 6 * AMP_HISTORY }; /* behind one tensor of a short name */
    const size_t second = ITERATION + 6 * 2, never = ITERATION + 6 * 9; /* of iteration 2; of none yet */
    const uint64_t bad = UINT64_MAX, nan = UINT64_C(0x7ff8000000000000);
    const struct { size_t word; uint64_t x; amp_result result; } cases[] = {
        {second + 4, 2, AMP_OK}, {second + 4, 3, AMP_ERROR_CORRUPT}, {second + 4, 0xffffffffu, AMP_ERROR_CORRUPT},
        {second + 5, 0, AMP_OK}, {second + 5, 1, AMP_ERROR_CORRUPT}, {second + 5, 0xfffffffeu, AMP_ERROR_CORRUPT},
        {second + 5, 0xffffffffu, AMP_OK}, {second + 5, 0x7fffffffu, AMP_ERROR_CORRUPT}, {never + 4, 4, AMP_OK},
        {never + 5, 1, AMP_OK}, {0, bad, AMP_OK}, {1, bad, AMP_OK},
        {second, bad, AMP_OK}, {second, 3, AMP_OK}, {second + 1, nan, AMP_OK}, {second + 2, bad, AMP_OK}, {second + 3, bad, AMP_OK},
        {TENSORS, bad, AMP_OK}, {TENSORS + 2, bad, AMP_OK}};
    amp_iteration all[AMP_HISTORY];
    rig           r;
    tape          t = {NULL, 0, 0, 0, 0};
    size_t        k, body;
    begin(&r);
    put(&r, 1, AMP_F32);
    prepare(&r);
    for (k = 0; k < COUNT_OF(cases); k++) {
        while (amp_optimizer_scaler(&r.opt)->good < 3) fill(&r, 0, 1.0f), step(&r, 0.01f);
        save(&r, &t);
        body = t.size - 40;
        CHECK_EQ_U64(number_at(t.bytes + REPORT + 8 * second), 2);
        put_number(t.bytes + REPORT + 8 * cases[k].word, cases[k].x);
        put_number(t.bytes + 32 + body, sum_of(t.bytes + 32, body));
        CHECK_EQ_INT(load_tape(&r, &t), cases[k].result);
        if (cases[k].result) CHECK(strcmp(amp_problem(), "its report names a tensor, or a reason to skip, that is not there") == 0);
        CHECK(history(&r, all) <= AMP_HISTORY);
        save(&r, &t); /* never refused */
        OK(load_tape(&r, &t));
        end(&r);
        begin(&r);
        put(&r, 1, AMP_F32);
        prepare(&r);
    }
    free(t.bytes);
    end(&r);
}

/* ------------------------------------------------------------------------------ advice */

/* In words. */
static const char *sentence(rig *r, const amp_advice *a) {
    static char text[400];
    return amp_report_sentence(&r->opt, a, text, sizeof text);
}

/* The only advice there is, or with number -1 there shall be none. The host rounds down, and still does. */
static amp_advice only(rig *r, int code) {
    const uint32_t before = fp_get();
    amp_advice     advice[AMP_NUM_ADVICE];
    int            count = -1, i;
    memset(advice, 0, sizeof advice);
    fp_set(FP_IEEE | FP_ROUNDING);
    OK(amp_report_advice(&r->opt, advice, &count));
    CHECK(!FP_CONTROL || (fp_get() & ~0x3fu) == (FP_IEEE | FP_ROUNDING));
    fp_set(before);
    CHECK_EQ_INT(count, code >= 0);
    for (i = 0; i < count; i++) {
        if ((int)advice[i].code == code) continue;
        CHECK_EQ_INT(advice[i].code, code);
        printf("     advice %d: %s\n", (int)advice[i].code, sentence(r, &advice[i]));
    }
    return advice[0];
}

/* Two tensors of 64 with fp16 gradients. */
static void two(rig *r) {
    begin(r);
    r->watch.every = 1;
    put(r, 64, AMP_F16);
    put(r, 64, AMP_F16);
}

static void steps_of(rig *r, int steps, float first, float second) {
    for (; steps; steps--) {
        scatter(r, 0, first);
        scatter(r, 1, second);
        step(r, 0.01f);
    }
}

TEST(advice_nan, "NaN in ten overflows in a row, or at a scale of 1: it comes from the model") {
    amp_advice a;
    rig        r;
    int        i, bf16;
    for (bf16 = 0; bf16 < 2; bf16++) {
        two(&r);
        if (bf16) r.desc.scaler.preset = AMP_PRESET_STATIC, r.desc.scaler.init_scale = 1.0f;
        prepare(&r);
        steps_of(&r, 5, 1.0f, 1.0f);
        for (i = 0; i < (bf16 ? 1 : 10); i++) {
            only(&r, -1);
            scatter(&r, 0, 1.0f);
            store_bits(r.tensor[1].grad, AMP_F16, 9, 0x7e00u);
            store_bits(r.tensor[1].grad, AMP_F16, 11, 0x7e00u);
            step(&r, 0.01f);
        }
        a = only(&r, AMP_ADVICE_NAN);
        CHECK_EQ_INT(a.tensor, 1);
        CHECK_EQ_F64(a.number, 2.0);
        CHECK(strstr(sentence(&r, &a), "tensor 1 (b): the NaN comes from the model") == sentence(&r, &a));
        steps_of(&r, 1, 1.0f, 1.0f);
        only(&r, -1);
        end(&r);
    }
}

TEST(advice_nan_in_a_weight, "a weight that is not finite makes all gradients NaN: its tensor is named, in every state") {
    static const storage_row states[] = {FP32, FP32_8BIT, SPLIT, SR};
    const uint32_t         inf = 0x7f800000u;
    size_t                 k;
    int                    i;
    for (k = 0; k < sizeof states / sizeof states[0]; k++) {
        amp_advice a;
        rig        r;
        begin(&r);
        r.watch.every            = 1;
        r.desc.kind              = AMP_KIND_ADAMW;
        r.desc.dtype             = AMP_BF16;
        r.desc.storage           = &storages[states[k]];
        r.desc.scaler.preset     = AMP_PRESET_STATIC;
        r.desc.scaler.init_scale = 1.0f;
        for (i = 0; i < 3; i++) put(&r, 3000, AMP_F16);
        memcpy(&r.tensor[2].weight[2999], &inf, 4);
        prepare(&r);
        for (i = 0; i < 3; i++) {
            scatter(&r, i, 1.0f);
            store_bits(r.tensor[i].grad, AMP_F16, 9, 0x7e00u);
        }
        step(&r, 0.01f);
        a = only(&r, AMP_ADVICE_BAD_WEIGHTS);
        CHECK_EQ_INT(a.tensor, 2);
        CHECK_EQ_F64(a.number, 3.0);
        CHECK(strstr(sentence(&r, &a), "tensor 2 (c): its weights are not all finite") == sentence(&r, &a));
        CHECK_EQ_U64(tensor_of(&r, 0).bad_weights, 0);
        CHECK_EQ_U64(tensor_of(&r, 2).bad_weights, 1);
        CHECK_EQ_U64(report_of(&r).nans, 3);
        for (i = 0; i < 3; i++) scatter(&r, i, 1.0f);
        step(&r, 0.01f); /* no NaN in a gradient: nobody looks at weights */
        CHECK_EQ_U64(report_of(&r).nans, 0);
        CHECK_EQ_U64(tensor_of(&r, 2).bad_weights, 0);
        end(&r);
    }
}

TEST(advice_weight_overflow, "manual: fp16 copies that a step makes inf are counted in the status of that step, and its report names "
                             "the tensor; a skipped step leaves the count, one that writes finite copies clears it") {
    static const amp_storage storages[] = {{AMP_FORMAT_F32, AMP_FORMAT_F32}, {AMP_FORMAT_F32, AMP_FORMAT_8BIT}};
    int kind, i, sampled;
    for (kind = 0; kind < 4; kind++)
        for (sampled = 0; sampled < 2; sampled++) {
            amp_status s;
            amp_advice a;
            rig        r;
            begin(&r);
            r.watch.every            = sampled;
            r.desc.kind              = kind == 3 ? AMP_KIND_ADAMW : (amp_kind)kind; /* own, AdamW, SGD */
            r.desc.storage           = kind ? &storages[kind == 3] : NULL;
            r.desc.scaler.preset     = AMP_PRESET_STATIC;
            r.desc.scaler.init_scale = 1.0f;
            for (i = 0; i < 3; i++) put(&r, 40001, AMP_F16);
            for (i = 1; i < 3; i++) r.tensor[i].weight[7] = 65519.0f, r.tensor[i].weight[40000] = -65515.0f;
            r.tensor[2].keep_fp32 = 1;
            prepare(&r);
            for (i = 0; i < 3; i++) {
                scatter(&r, i, 1.0f);
                store(r.tensor[i].grad, AMP_F16, 7, -1.0f);
                store(r.tensor[i].grad, AMP_F16, 40000, 1.0f);
            }
            step(&r, 1e-3f);
            OK(amp_optimizer_status(&r.opt, &s));
            CHECK_EQ_U64(s.f16_overflows, 0);
            only(&r, -1);
            step(&r, 8.0f);
            OK(amp_optimizer_status(&r.opt, &s));
            CHECK_EQ_U64(s.did_step, 1);
            CHECK_EQ_U64(s.f16_overflows, 2);
            a = only(&r, AMP_ADVICE_WEIGHT_OVERFLOW);
            CHECK_EQ_INT(a.tensor, 1);
            CHECK_EQ_F64(a.number, 2.0);
            CHECK(strstr(sentence(&r, &a), "tensor 1 (b): weight overflow in fp16: 2 of its copies") == sentence(&r, &a));
            CHECK_EQ_U64(tensor_of(&r, 1).bad_copies, 2);
            CHECK_EQ_U64(tensor_of(&r, 1).bad_weights, 0);
            CHECK_EQ_U64(tensor_of(&r, 0).bad_copies, 0);
            store_bits(r.tensor[0].grad, AMP_F16, 9, 0x7e00u);
            step(&r, 1e-3f);
            OK(amp_optimizer_status(&r.opt, &s));
            CHECK_EQ_U64(s.did_step, 0);
            CHECK_EQ_U64(s.f16_overflows, 2);
            only(&r, AMP_ADVICE_WEIGHT_OVERFLOW);
            r.tensor[1].weight[7] = r.tensor[1].weight[40000] = 1.0f;
            scatter(&r, 0, 1.0f);
            step(&r, 1e-3f);
            OK(amp_optimizer_status(&r.opt, &s));
            CHECK_EQ_U64(s.f16_overflows, 0);
            end(&r);
        }
}

TEST(moments_that_are_inf, "manual: a finite gradient of 5.9e20 makes AdamW's second moment inf: the report counts it, whenever it was") {
    static const amp_storage storages[] = {{AMP_FORMAT_F32, AMP_FORMAT_F32}, {AMP_FORMAT_F32, AMP_FORMAT_BF16}};
    int k, i;
    for (k = 0; k < 2; k++) {
        rig r;
        begin(&r);
        r.desc.storage           = &storages[k];
        r.desc.scaler.preset     = AMP_PRESET_STATIC;
        r.desc.scaler.init_scale = 1.0f;
        for (i = 0; i < 2; i++) {
            put(&r, 3000, AMP_F32);
            r.tensor[i].weight[2] = 1.0f;
        }
        prepare(&r);
        for (i = 0; i < 2; i++) scatter(&r, i, 1.0f);
        store(r.tensor[0].grad, AMP_F32, 2, 5e20f);
        store(r.tensor[1].grad, AMP_F32, 2, 6e20f);
        step(&r, 0.01f);
        CHECK_EQ_U64(report_of(&r).steps, 1);
        scatter(&r, 0, 1.0f);
        scatter(&r, 1, 1.0f);
        step(&r, 0.01f);
        CHECK_EQ_U64(report_of(&r).steps, 2);
        CHECK_EQ_U64(tensor_of(&r, 0).bad_moments, 0);
        CHECK_EQ_U64(tensor_of(&r, 1).bad_moments, 1);
        CHECK_EQ_F32(r.tensor[1].weight[2], 1.0f); /* it does not move */
        end(&r);
    }
}

TEST(for_advice, "a report has a copy of the scaler, knows whether its scale moves, and the type of each gradient") {
    int kind;
    for (kind = 0; kind < 3; kind++) {
        amp_report report;
        rig        r;
        begin(&r);
        r.desc.scaler.preset     = kind == 0 ? AMP_PRESET_DEFAULT : AMP_PRESET_STATIC;
        r.desc.scaler.init_scale = 4096.0f;
        r.desc.scaler.disabled   = kind == 2;
        put(&r, 64, AMP_F16);
        put(&r, 64, AMP_BF16);
        put(&r, 64, AMP_F32);
        prepare(&r);
        scatter(&r, 0, 1.0f);
        step(&r, 0.01f);
        report = report_of(&r);
        CHECK_MEM(&report.scaler, amp_optimizer_scaler(&r.opt), sizeof report.scaler);
        CHECK_EQ_F32(report.scaler.scale, kind == 2 ? 1.0f : 4096.0f);
        CHECK_EQ_U64(report.fixed_scale, kind > 0);
        CHECK_EQ_INT(tensor_of(&r, 0).grad_type, AMP_F16);
        CHECK_EQ_INT(tensor_of(&r, 1).grad_type, AMP_BF16);
        CHECK_EQ_INT(tensor_of(&r, 2).grad_type, AMP_F32);
        memset(&r.tensor[1].weight[5], 0xff, 4); /* a NaN: whose weights are looked at where a scale is no reason */
        store_bits(r.tensor[0].grad, AMP_F16, 9, 0x7e00u);
        step(&r, 0.0f);
        CHECK_EQ_U64(report_of(&r).nans, 1);
        CHECK_EQ_U64(tensor_of(&r, 1).bad_weights, kind == 2);
        end(&r);
    }
}

TEST(one_moment, "manual: tensors and steps are of the moment of the last amp_optimizer_report, whatever was saved or "
                 "stepped since; before it, and after a load, there is none") {
    amp_tensor_report first, again;
    amp_iteration     records[4];
    amp_iteration     later[4];
    size_t            count = 4;
    tape              t;
    rig               r;
    memset(&t, 0, sizeof t);
    two(&r);
    prepare(&r);
    steps_of(&r, 3, 1.0f, 1.0f);
    CHECK_EQ_INT(amp_optimizer_report_tensor(&r.opt, 0, &first), AMP_ERROR_BAD_STATE);
    CHECK(strstr(amp_problem(), "call amp_optimizer_report first") != NULL);
    CHECK_EQ_INT(amp_optimizer_history(&r.opt, records, &count), AMP_ERROR_BAD_STATE);
    CHECK(strstr(amp_problem(), "call amp_optimizer_report first") != NULL);
    CHECK_EQ_U64(report_of(&r).iterations, 3);
    first = tensor_of(&r, 0);
    OK(amp_optimizer_history(&r.opt, records, &count));
    CHECK_EQ_U64(count, 3);
    store_bits(r.tensor[0].grad, AMP_F16, 5, 0x7c00u);
    step(&r, 0.01f);
    save(&r, &t); /* tells nobody what has happened */
    again = tensor_of(&r, 0);
    CHECK_MEM(&again, &first, sizeof first);
    CHECK_EQ_U64(again.overflows, 0);
    count = 4;
    OK(amp_optimizer_history(&r.opt, later, &count));
    CHECK_EQ_U64(count, 3);
    CHECK_EQ_U64(later[2].iteration, 3);
    CHECK_EQ_U64(report_of(&r).iterations, 4);
    CHECK_EQ_U64(tensor_of(&r, 0).overflows, 1);
    OK(load_tape(&r, &t));
    CHECK_EQ_INT(amp_optimizer_report_tensor(&r.opt, 0, &again), AMP_ERROR_BAD_STATE);
    CHECK_EQ_INT(amp_optimizer_history(&r.opt, records, &count), AMP_ERROR_BAD_STATE);
    CHECK_EQ_U64(report_of(&r).iterations, 4);
    CHECK_EQ_U64(tensor_of(&r, 0).overflows, 1);
    free(t.bytes);
    end(&r);
}

TEST(advice_stuck, "five overflows in a row at the least scale") {
    amp_advice a;
    rig        r;
    int        i;
    two(&r);
    r.desc.scaler.min_scale  = 8192.0f;
    prepare(&r);
    for (i = 0; i < 8; i++) { /* 65536, 32768, 16384, then five at 8192 */
        only(&r, -1);
        scatter(&r, 0, 1.0f);
        store_bits(r.tensor[0].grad, AMP_F16, 5, 0x7c00u);
        step(&r, 0.01f);
    }
    a = only(&r, AMP_ADVICE_STUCK);
    CHECK_EQ_F64(a.number, 5.0);
    CHECK_EQ_INT(a.tensor, -1);
    CHECK(strstr(sentence(&r, &a), "5 overflows in a row at the least loss scale, 8192") != NULL);
    end(&r);
}

TEST(advice_skips, "more than one step in ten overflows, and twice what growth explains") {
    static const int intervals[] = {2000, 8, 2};
    amp_advice a;
    size_t     k;
    int        i;
    for (k = 0; k < COUNT_OF(intervals); k++) {
        rig r;
        two(&r);
        r.desc.scaler.growth_interval = intervals[k];
        r.desc.scaler.min_scale       = 1.0f / 1024.0f;
        prepare(&r);
        for (i = 0; i < 300; i++) {
            scatter(&r, 0, 1.0f);
            scatter(&r, 1, 1.0f);
            if (i % 4 == 0) store_bits(r.tensor[1].grad, AMP_F16, 0, 0xfc00u);
            step(&r, 0.01f);
            if (i < 191) only(&r, -1);
        }
        if (intervals[k] == 2) { /* a growth in three steps explains a third */
            only(&r, -1);
        } else {
            a = only(&r, AMP_ADVICE_TOO_MANY_SKIPS);
            CHECK_EQ_F64(a.number, 32.0);
            CHECK_EQ_INT(a.tensor, 1);
        }
        end(&r);
    }
}

TEST(advice_too_high, "a scale that never moves and overflows") {
    amp_advice a;
    rig        r;
    int        i;
    two(&r);
    r.desc.scaler.preset     = AMP_PRESET_STATIC;
    r.desc.scaler.init_scale = 4096.0f;
    prepare(&r);
    steps_of(&r, 10, 1.0f, 1.0f);
    fill(&r, 1, 1e6f);
    step(&r, 0.01f);
    only(&r, -1);
    steps_of(&r, 100, 1.0f, 1.0f);
    fill(&r, 1, 1e6f);
    step(&r, 0.01f);
    a = only(&r, AMP_ADVICE_SCALE_TOO_HIGH);
    CHECK_EQ_INT(a.tensor, 1);
    CHECK_EQ_F64(a.number, 4096.0);
    CHECK(strstr(sentence(&r, &a), "the loss scale 4096 is too high") != NULL);
    for (i = 0; i < 6; i++) { /* it has no floor to be stuck at */
        fill(&r, 1, 1e6f);
        step(&r, 0.01f);
        only(&r, AMP_ADVICE_SCALE_TOO_HIGH);
    }
    for (i = 0; i < 12; i++) { /* inf - inf: NaN that a lower scale cures */
        fill(&r, 1, 1e6f);
        store_bits(r.tensor[0].grad, AMP_F16, 9, 0x7e00u);
        step(&r, 0.01f);
        only(&r, AMP_ADVICE_SCALE_TOO_HIGH);
    }
    steps_of(&r, 128, 1.0f, 1.0f);
    only(&r, -1);
    end(&r);
}

TEST(advice_too_low, "subnormal gradients and headroom, at a scale that does not grow") {
    amp_advice a;
    rig        r;
    two(&r);
    r.desc.scaler.preset     = AMP_PRESET_STATIC;
    r.desc.scaler.init_scale = 2.0f;
    prepare(&r);
    steps_of(&r, 1, 1.0f, 1e-4f); /* all below 2^-13, most below 2^-14 */
    a = only(&r, AMP_ADVICE_SCALE_TOO_LOW);
    CHECK_EQ_INT(a.tensor, 1);
    CHECK_EQ_F64(a.number, 16.0); /* 1 is 2^-1 or more: 2^15 in 16 more */
    steps_of(&r, 1, 1.0f, 1e-2f);
    only(&r, -1);
    end(&r);
    two(&r); /* one that moves will find its place; at its largest it will not */
    r.desc.scaler.max_scale = 131072.0f;
    r.desc.scaler.growth_interval = 4;
    prepare(&r);
    steps_of(&r, 3, 1.0f, 1e-4f);
    only(&r, -1);
    steps_of(&r, 1, 1.0f, 1e-4f);
    CHECK_EQ_INT(only(&r, AMP_ADVICE_SCALE_TOO_LOW).tensor, 1);
    end(&r);
}

TEST(advice_underflow, "subnormal gradients in X while others are near the end of fp16") {
    amp_advice a;
    rig        r;
    int        i;
    begin(&r);
    r.watch.every = 1;
    for (i = 0; i < 4; i++) put(&r, 64, AMP_F16);
    prepare(&r);
    scatter(&r, 0, 30000.0f);
    scatter(&r, 1, 20000.0f);
    scatter(&r, 2, 1e-4f);
    scatter(&r, 3, 1.0f);
    step(&r, 0.01f);
    a = only(&r, AMP_ADVICE_UNDERFLOW);
    CHECK_EQ_INT(a.tensor, 2);
    CHECK_EQ_F64(a.number, (double)tensor_of(&r, 2).f16_small / 64.0);
    CHECK(strstr(sentence(&r, &a), "at the loss scale 65536") != NULL);
    end(&r);
}

TEST(advice_keep_fp32, "one tensor is so far above all others that these underflow") {
    amp_advice a;
    rig        r;
    two(&r);
    prepare(&r);
    steps_of(&r, 1, 30000.0f, 1e-4f);
    a = only(&r, AMP_ADVICE_KEEP_FP32);
    CHECK_EQ_INT(a.tensor, 0);
    CHECK_EQ_F64(a.number, (double)(tensor_of(&r, 1).headroom - tensor_of(&r, 0).headroom));
    CHECK(a.number > 26.0);
    end(&r);
}

TEST(advice_use_bf16, "the tensors that underflow hold half of the weights, and have large ones, too") {
    amp_advice a;
    rig        r;
    size_t     k;
    two(&r);
    prepare(&r);
    scatter(&r, 0, 1e-4f);
    scatter(&r, 1, 1e-4f);
    for (k = 0; k < 8; k++) {
        store(r.tensor[0].grad, AMP_F16, k, 30000.0f);
        store(r.tensor[1].grad, AMP_F16, k, 30000.0f);
    }
    step(&r, 0.01f);
    a = only(&r, AMP_ADVICE_USE_BF16);
    CHECK_EQ_INT(a.tensor, -1);
    CHECK_EQ_F64(a.number, (double)report_of(&r).f16_small / 128.0);
    end(&r);
}

TEST(advice_masters, "a step of the user's own that rounds masters to 16 bits") {
    amp_advice a;
    rig        r;
    int        round, i;
    size_t     k;
    for (round = 1; round >= 0; round--) {
        two(&r);
        r.desc.kind = AMP_KIND_OWN;
        prepare(&r);
        scatter(&r, 0, 1000.0f);
        scatter(&r, 1, 1000.0f);
        CHECK(amp_optimizer_begin_step(&r.opt));
        for (i = 0; i < 2; i++)
            for (k = 0; k < 64; k++) {
                float *w = amp_optimizer_master(&r.opt, i) + k;
                *w -= 0.01f * amp_optimizer_grad(&r.opt, i)[k];
                if (round) *w = amp_f16_to_f32(amp_f32_to_f16(*w));
            }
        OK(amp_optimizer_end_step(&r.opt));
        if (round) {
            a = only(&r, AMP_ADVICE_MASTERS);
            CHECK_EQ_INT(a.tensor, 0);
            CHECK_EQ_F64(a.number, (double)tensor_of(&r, 0).lost / 64.0);
        } else {
            only(&r, -1);
        }
        end(&r);
    }
}

/* A network of one hidden layer learns sin(3x); the gradients of a step, times the loss scale. */
enum { HIDDEN = 40, POINTS = 32 };
static float network(rig *r, uint64_t *dice) {
    float  w[3][HIDDEN], g[3][HIDDEN], h[HIDDEN], loss = 0.0f;
    const float scale = amp_optimizer_loss_scale(&r->opt);
    int    t, i, j;
    memset(g, 0, sizeof g);
    for (t = 0; t < 3; t++)
        OK(amp_cast(w[t], AMP_F32, amp_optimizer_model(&r->opt, t), r->desc.dtype, HIDDEN));
    for (i = 0; i < POINTS; i++) {
        const float x = (float)(int32_t)(random_next(dice) >> 8) / 8388608.0f - 1.0f;
        float       error = -sinf(3.0f * x);
        for (j = 0; j < HIDDEN; j++) {
            h[j] = w[0][j] * x + w[1][j] > 0.0f ? w[0][j] * x + w[1][j] : 0.0f;
            error += w[2][j] * h[j];
        }
        for (j = 0; j < HIDDEN; j++) {
            const float d = 2.0f / POINTS * error * scale;
            g[0][j] += h[j] > 0.0f ? d * w[2][j] * x : 0.0f;
            g[1][j] += h[j] > 0.0f ? d * w[2][j] : 0.0f;
            g[2][j] += d * h[j];
        }
        loss += error * error / POINTS;
    }
    for (t = 0; t < 3; t++)
        OK(amp_cast(r->tensor[t].grad, r->tensor[t].grad_type, g[t], AMP_F32, HIDDEN));
    return loss;
}

TEST(healthy, "twenty runs that learn are given no advice, in no step; their states tell no lie") {
    static const amp_preset presets[] = {AMP_PRESET_DEFAULT, AMP_PRESET_TORCH, AMP_PRESET_MEGATRON,
                                         AMP_PRESET_DEEPSPEED, AMP_PRESET_STATIC};
    int run;
    skip_if_emulated();
    for (run = 0; run < 20; run++) {
        rig      r;
        uint64_t dice  = (uint64_t)run + 1;
        float    first = 0.0f, loss = 0.0f;
        int      i, steps = 600;
        random_state = (uint64_t)run + 1;
        begin(&r);
        r.watch.every   = run % 3 ? 7 : 1;
        r.desc.dtype    = (amp_dtype)(1 + run % 2);
        r.desc.kind     = (amp_kind)(run / 2 % 3);
        r.desc.momentum = 0.9;
        r.desc.max_norm = run % 5 ? 0.0f : 1.0f;
        r.desc.scaler.preset = presets[run % 5];
        r.desc.scaler.growth_interval = run % 3 == 1 ? 50 : 0;
        if (r.desc.scaler.preset == AMP_PRESET_STATIC)
            r.desc.scaler.init_scale = r.desc.dtype == AMP_F16 ? 1024.0f : 1.0f;
        for (i = 0; i < 3; i++) put(&r, HIDDEN, r.desc.dtype);
        for (i = 0; i < HIDDEN; i++) r.tensor[1].weight[i] = 0.25f;
        for (i = 0; i < HIDDEN; i++) r.tensor[2].weight[i] *= 0.3f;
        prepare(&r);
        for (i = 0; i < steps; i++) {
            loss = network(&r, &dice);
            if (i == 0) first = loss;
            step(&r, r.desc.kind == AMP_KIND_ADAMW ? 0.005f : r.desc.kind == AMP_KIND_SGD ? 0.01f
                                                                                          : 0.05f);
            only(&r, -1);
        }
        CHECK(loss < 0.5f * first);
        CHECK_EQ_U64(report_of(&r).iterations, steps);
        end(&r);
    }
}

/* ------------------------------------------------------------------------------ output */

/* A value of JSON from p on: what is behind it, or NULL. */
static const char *json_string(const char *p) {
    if (*p++ != '"') return NULL;
    for (; *p != '"'; p++) {
        if ((unsigned char)*p < ' ') return NULL;
        if (*p == '\\' && !strchr("\"\\u", *++p)) return NULL;
    }
    return p + 1;
}

static const char *json_number(const char *p) {
    const char *start = p;
    if (*p == '-') p++;
    if (*p == '0' && p[1] >= '0' && p[1] <= '9') return NULL;
    while (*p >= '0' && *p <= '9') p++;
    if (*p == '.')
        for (p++; *p >= '0' && *p <= '9'; p++) {}
    if (*p == 'e') {
        p += p[1] == '-' || p[1] == '+' ? 2 : 1;
        while (*p >= '0' && *p <= '9') p++;
    }
    return p > start && p[-1] >= '0' && p[-1] <= '9' ? p : NULL;
}

static const char *json(const char *p) {
    if (!p || !*p) return NULL;
    if (*p == '"') return json_string(p);
    if (strncmp(p, "null", 4) == 0) return p + 4;
    if (*p == '{' || *p == '[') {
        const char end_of = *p == '{' ? '}' : ']';
        const int  object = *p == '{';
        if (p[1] == end_of) return p + 2;
        do {
            p++;
            if (object) p = json_string(p);
            if (object && (!p || *p++ != ':')) return NULL;
            p = json(p);
        } while (p && *p == ',');
        return p && *p == end_of ? p + 1 : NULL;
    }
    return json_number(p);
}

/* The number behind a key. */
static double number_of(const char *line, const char *key) {
    char        quoted[64];
    const char *p;
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    p = strstr(line, quoted);
    CHECK(p != NULL);
    return p ? atof(p + strlen(quoted)) : -1.0;
}

/* A text that was written, and the end of its file. */
static const char *from_file(tape *t, FILE *f) {
    char   piece[1024];
    size_t n;
    t->size = 0;
    rewind(f);
    while ((n = fread(piece, 1, sizeof piece, f)) > 0) CHECK(tape_write(t, piece, n));
    CHECK(tape_write(t, "", 1));
    fclose(f);
    return (const char *)t->bytes;
}

static const char *write_json(rig *r, tape *t) {
    FILE *f = tmpfile();
    CHECK(f != NULL);
    OK(amp_report_json(&r->opt, f, &r->told));
    return from_file(t, f);
}

static void write_table(rig *r, tape *t) {
    FILE *f = tmpfile();
    CHECK(f != NULL);
    OK(amp_report_table(&r->opt, f));
    from_file(t, f);
}

TEST(lines, "a line of JSON is JSON, whatever a tensor is called; lines have each step once") {
    rig         r;
    tape        t = {NULL, 0, 0, 0, 0};
    const char *line, *p;
    FILE       *f;
    int         k, number = 0;
    three(&r);
    r.tensor[0].name = "say \"hi\" \\ \n\x01 \xc3\xa9";
    r.tensor[1].name = NULL;
    r.watch.every    = 2;
    prepare(&r);
    for (k = 0; k < 6; k++) {
        const int steps = k == 4 ? 300 : k; /* more than are remembered */
        some_run(&r, steps);
        line = write_json(&r, &t);
        p    = json(line);
        CHECK(p != NULL && strcmp(p, "\n") == 0);
        CHECK_EQ_F64(number_of(line, "iterations"), (double)(number + steps));
        CHECK(strstr(line, "\"name\":\"say \\\"hi\\\" \\\\ \\u000a\\u0001 \xc3\xa9\"") != NULL);
        p = strstr(line, "\"history\":[") + 11;
        if (steps > AMP_HISTORY) number += steps - AMP_HISTORY;
        for (; *p == '['; p = strchr(p, ']') + (strchr(p, ']')[1] == ',' ? 2 : 1))
            CHECK_EQ_INT(atoi(p + 1), ++number);
    }
    CHECK_EQ_INT(number, 1 + 2 + 3 + 300 + 5);
    line = write_json(&r, &t); /* nothing has happened since */
    CHECK(strstr(line, "\"history\":[]") != NULL);
    r.told = 1000; /* as where a state of before was loaded */
    line   = write_json(&r, &t);
    CHECK(strstr(line, "\"history\":[[56,") != NULL);
    CHECK_EQ_U64(r.told, number);
    some_run(&r, 1);
    f = fopen("/dev/null", "r"); /* nothing can be written there, and the next line has all */
    if (f) {
        CHECK_EQ_INT(amp_report_json(&r.opt, f, &r.told), AMP_ERROR_WRITE);
        CHECK_EQ_U64(r.told, number);
        CHECK_EQ_INT(amp_report_table(&r.opt, f), AMP_ERROR_WRITE);
        fclose(f);
    }
    free(t.bytes);
    end(&r);
}

TEST(no_norm, "what is not finite is null in JSON, for people NaN: at a scale of 0 so is the norm") {
    rig         r;
    tape        t = {NULL, 0, 0, 0, 0};
    const char *line;
    three(&r);
    r.desc.scaler.preset     = AMP_PRESET_TORCH;
    r.desc.scaler.init_scale = 1e-45f;
    prepare(&r);
    fill(&r, 0, INFINITY); /* the scale backs off to 0 */
    step(&r, 0.1f);
    fill(&r, 0, 0.0f);
    step(&r, 0.1f);
    line = write_json(&r, &t);
    CHECK(json(line) != NULL && strstr(line, "\"norm\":null,\"loss_scale\":0,") != NULL);
    write_table(&r, &t);
    CHECK(strstr((char *)t.bytes, "NaN\n") != NULL && strstr((char *)t.bytes, "null") == NULL);
    free(t.bytes);
    end(&r);
}

TEST(numbers, "whole numbers to the last digit, others to seven, with a point in every locale") {
    static const char *const locales[] = {"de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8", "ps_AF"};
    static const struct { double x; const char *text, *json; } of[] = {
        {0.0, "0", "0"}, {-3.0, "-3", "-3"}, {123456789012.0, "123456789012", "123456789012"},
        {0.1, "0.1", "0.1"}, {-1234.5678, "-1234.568", "-1234.568"},
        {3.4028234663852886e38, "3.402823e+38", "3.402823e+38"}, {1e-45, "1e-45", "1e-45"},
        {INFINITY, "inf", "null"}, {-INFINITY, "-inf", "null"}, {NAN, "NaN", "null"}};
    char   text[AMP_REPORT_NUMBER];
    size_t i, k = 0;
    while (k < COUNT_OF(locales) && !setlocale(LC_NUMERIC, locales[k])) k++;
    for (i = 0; i < COUNT_OF(of); i++) {
        CHECK(strcmp(amp_report_number(text, of[i].x, false), of[i].text) == 0);
        CHECK(strcmp(amp_report_number(text, of[i].x, true), of[i].json) == 0);
    }
    setlocale(LC_NUMERIC, "C");
    if (k == COUNT_OF(locales)) SKIP("a locale with a comma: none is installed; others pass");
}

TEST(names, "RFC 8259: JSON is UTF-8, so a name that is not is written as Latin-1, byte by byte; a "
            "character that advice has cut too") {
    static const char *const name[][2] = {
        {"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x99\x82 \xf4\x8f\xbf\xbf",
         "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x99\x82 \xf4\x8f\xbf\xbf"},
        {"gr\xf6\xdf" "e", "gr\\u00f6\\u00dfe"},          /* Latin-1 */
        {"\xe9", "\\u00e9"},                              /* cut short */
        {"\xe2\x82", "\\u00e2\\u0082"},
        {"a\xe2\x82z", "a\\u00e2\\u0082z"},
        {"\xc3\xa9\x80\xc3\xa9", "\xc3\xa9\\u0080\xc3\xa9"},
        {"\xc1\xbf", "\\u00c1\\u00bf"},                   /* longer than it has to be */
        {"\xe0\x9f\xbf", "\\u00e0\\u009f\\u00bf"},
        {"\xf0\x8f\xbf\xbf", "\\u00f0\\u008f\\u00bf\\u00bf"},
        {"\xed\xa0\x80", "\\u00ed\\u00a0\\u0080"},         /* a surrogate */
        {"\xf4\x90\x80\x80", "\\u00f4\\u0090\\u0080\\u0080"}, /* beyond 10ffff */
        {"\xff\xfe", "\\u00ff\\u00fe"}};
    char        long_name[402], wanted[64];
    const char *line;
    size_t      i, k;
    tape        t = {NULL, 0, 0, 0, 0};
    for (i = 0; i < COUNT_OF(name); i++) {
        rig r;
        two(&r);
        r.tensor[0].name = name[i][0];
        prepare(&r);
        line = write_json(&r, &t);
        snprintf(wanted, sizeof wanted, "\"name\":\"%s\",", name[i][1]);
        CHECK(strstr(line, wanted) != NULL);
        end(&r);
    }
    for (k = 0; k < 2; k++) { /* of two lengths, one is cut within a character */
        rig r;
        two(&r);
        r.desc.scaler.preset = AMP_PRESET_STATIC, r.desc.scaler.init_scale = 1.0f;
        memset(long_name, 'x', sizeof long_name);
        for (i = 1; i < 401; i++) long_name[i] = i % 2 ? '\xc3' : '\xa9';
        long_name[401]   = '\0';
        r.tensor[0].name = long_name + k;
        prepare(&r);
        store_bits(r.tensor[0].grad, AMP_F16, 9, 0x7e00u);
        step(&r, 0.01f);
        line = strstr(write_json(&r, &t), "\"advice\":[{");
        CHECK(line != NULL);
        for (i = 0; line && line[i]; i++) {
            if (line[i] == '\xc3') CHECK(line[++i] == '\xa9');
            else CHECK((unsigned char)line[i] < 0x80);
        }
        end(&r);
    }
    free(t.bytes);
}

TEST(line_numbers, "the numbers of a line are those of amp_report and amp_tensor_report") {
    rig               r;
    tape              t = {NULL, 0, 0, 0, 0};
    amp_report        report;
    amp_tensor_report tensor;
    const char       *line, *p;
    three(&r);
    r.watch.every = 1;
    prepare(&r);
    some_run(&r, 40);
    report = report_of(&r);
    tensor = tensor_of(&r, 0);
    line   = write_json(&r, &t);
    CHECK_EQ_F64(number_of(line, "overflows"), (double)report.overflows);
    CHECK_EQ_F64(number_of(line, "loss_scale"), (double)report.loss_scale);
    CHECK_EQ_F64(number_of(line, "backoffs"), (double)report.backoffs);
    CHECK_EQ_F64(number_of(line, "grads"), (double)report.grads);
    CHECK_EQ_F64(number_of(line, "updates"), (double)report.updates);
    CHECK_EQ_F64(number_of(line, "lost"), (double)report.lost);
    p = strstr(line, "\"name\":\"a\"");
    CHECK(p != NULL);
    CHECK_EQ_F64(number_of(p, "n"), 50.0);
    CHECK_EQ_F64(number_of(p, "zeros"), (double)tensor.stats.zeros);
    CHECK_EQ_F64(number_of(p, "lost"), (double)tensor.lost);
    p = strstr(p, "\"grads\":[[");
    CHECK(p != NULL && tensor.grads[atoi(p + 10)] == (uint64_t)atoi(strchr(p, ',') + 1));
    free(t.bytes);
    end(&r);
}

TEST(table, "the table has a row for each tensor, what was skipped, and the advice") {
    rig  r;
    tape t = {NULL, 0, 0, 0, 0};
    two(&r);
    r.desc.scaler.preset     = AMP_PRESET_STATIC;
    r.desc.scaler.init_scale = 2.0f;
    prepare(&r);
    steps_of(&r, 3, 1.0f, 1e-4f);
    write_table(&r, &t);
    CHECK(strstr((char *)t.bytes, "iterations 3, steps 3, skipped 0 (") == (char *)t.bytes);
    CHECK(strstr((char *)t.bytes, "\n  a  ") != NULL);
    CHECK(strstr((char *)t.bytes, "\n  b  ") != NULL);
    CHECK(strstr((char *)t.bytes, "\nscale_too_low: tensor 1 (b): ") != NULL);
    free(t.bytes);
    end(&r);
}

TEST(rows, "gradients of few rows: sums of rows are counted, and a row that is not there is told") {
    enum { ROWS = 6, LENGTH = 4 };
    static const uint32_t at[3] = {4, 1, 4};
    uint32_t          num_rows = 3, rows[3];
    amp_rows          table;
    amp_tensor_report t;
    amp_tensor       *x;
    rig               r;
    size_t            k;
    begin(&r);
    r.watch.every = 1;
    put(&r, 5, AMP_F16);
    x = put(&r, ROWS * LENGTH, AMP_F16);
    memcpy(rows, at, sizeof rows);
    x->rows = &table;
    table.row_length = LENGTH;
    table.max_rows   = 3;
    table.rows       = rows;
    table.num_rows   = &num_rows;
    prepare(&r);
    fill(&r, 0, 1.0f);
    for (k = 0; k < 3 * LENGTH; k++) store(x->grad, AMP_F16, k, k < LENGTH ? 3.0f : 1.0f);
    step(&r, 0.01f);
    CHECK_EQ_U64(report_of(&r).overflows, 0);
    t = tensor_of(&r, 1);
    CHECK_EQ_U64(t.grads[31], LENGTH);     /* row 1: 1, from 2^-3 on */
    CHECK_EQ_U64(t.grads[32], LENGTH);     /* row 4: 3 + 1, from 2 on */
    CHECK_EQ_U64(t.updates, 0);            /* weights are not looked at */
    CHECK_EQ_U64(report_of(&r).updates, 5);
    store_bits(x->grad, AMP_F16, 2 * LENGTH + 1, 0x7e00u); /* in row 4 */
    step(&r, 0.01f);
    report_of(&r);
    CHECK_EQ_U64(tensor_of(&r, 1).stats.first_nonfinite, 4 * LENGTH + 1);
    CHECK_EQ_U64(tensor_of(&r, 1).nans, 1);
    store(x->grad, AMP_F16, 2 * LENGTH + 1, 1.0f);
    rows[1] = ROWS;
    step(&r, 0.01f);
    CHECK_EQ_INT(last_iteration(&r).skip, AMP_SKIP_OVERFLOW);
    CHECK_EQ_INT(last_iteration(&r).tensor, 1);
    CHECK_EQ_U64(tensor_of(&r, 1).overflows, 2);
    CHECK_EQ_U64(tensor_of(&r, 1).nans, 1);
    end(&r);
}

int main(int argc, char **argv) {
    test_begin(argc, argv);
    RUN(attribution);
    RUN(first_and_most);
    RUN(asked);
    RUN(headroom);
    RUN(counts);
    RUN(casts);
    RUN(every);
    RUN(nothing_else);
    RUN(no_allocation);
    RUN(refused);
    RUN(ring);
    RUN(saved);
    RUN(loaded_after_a_failure);
    RUN(failing_copies);
    RUN(saved_without_tensors);
    RUN(torn);
    RUN(members);
    RUN(crafted_reports);
    RUN(advice_nan);
    RUN(advice_nan_in_a_weight);
    RUN(advice_weight_overflow);
    RUN(moments_that_are_inf);
    RUN(for_advice);
    RUN(one_moment);
    RUN(advice_stuck);
    RUN(advice_skips);
    RUN(advice_too_high);
    RUN(advice_too_low);
    RUN(advice_underflow);
    RUN(advice_keep_fp32);
    RUN(advice_use_bf16);
    RUN(advice_masters);
    RUN(healthy);
    RUN(lines);
    RUN(no_norm);
    RUN(numbers);
    RUN(names);
    RUN(line_numbers);
    RUN(table);
    RUN(rows);
    return test_end();
}
