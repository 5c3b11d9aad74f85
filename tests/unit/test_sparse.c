/* test_sparse.c - gradients that touch few rows of a tensor: beside the same ones with all rows, bit for
   bit; places twice and in any order, sums beyond fp16, statistics, what untouched rows keep, gradients
   that move, files, large tables, and what is refused. */

#define _GNU_SOURCE /* memfd_create in huge.h */
#define AMP_KERNELS /* moments, to see that untouched rows keep theirs */
#include "amp.h"
#include "../support/huge.h"
#include "../support/prepare.h"
#include "../support/test.h"
#include "../support/random.h"
#include "../support/tape.h"
#include "../support/values.h"
#include <math.h>

enum { ROWS = 700, LENGTH = 48, MOST = 900, N = ROWS * LENGTH };

/* A table whose gradient is of few rows, and beside it a tensor as others are. */
typedef struct rig {
    amp_optimizer opt;
    float         weight[N], other[64], other_grad[64];
    unsigned char values[MOST * LENGTH * 4];
    uint32_t      rows[MOST + 8], count;
} rig;

static rig one, two;

static amp_optimizer_desc desc_of(amp_kind kind, amp_dtype dtype) {
    amp_optimizer_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.kind              = kind;
    desc.dtype             = dtype;
    desc.scaler.init_scale = 256.0f;
    return desc;
}

static amp_rows rows_of(size_t length, size_t most, const uint32_t *rows, uint32_t *count) {
    amp_rows r;
    r.row_length = length;
    r.max_rows   = most;
    r.rows       = rows;
    r.num_rows   = count;
    return r;
}

static void start(rig *r, const amp_optimizer_desc *desc, amp_dtype type, int sparse) {
    amp_tensor t;
    amp_rows   table;
    size_t     i;
    CHECK_EQ_INT(amp_optimizer_init(&r->opt, desc), AMP_OK);
    memset(&t, 0, sizeof t);
    for (i = 0; i < N; i++) r->weight[i] = (float)(int)(i * 37 % 64) * 0.03125f - 1.0f;
    for (i = 0; i < 64; i++) r->other[i] = 0.5f;
    t.name      = "table";
    t.n         = N;
    t.weight    = r->weight;
    t.grad      = r->values;
    t.grad_type = type;
    if (sparse) {
        table = rows_of(LENGTH, MOST, r->rows, &r->count);
        t.rows = &table;
    }
    CHECK_EQ_INT(amp_optimizer_add(&r->opt, &t), AMP_OK);
    memset(&t, 0, sizeof t);
    t.name   = "other";
    t.n      = 64;
    t.weight = r->other;
    t.grad   = r->other_grad;
    CHECK_EQ_INT(amp_optimizer_add(&r->opt, &t), AMP_OK);
    CHECK_EQ_INT(prepare_scaled(&r->opt), AMP_OK);
}

static amp_result step(rig *r) {
    return amp_optimizer_step(&r->opt, 0.01f);
}

static void random_values(rig *r, amp_dtype type, size_t rows) {
    size_t i;
    for (i = 0; i < rows * LENGTH; i++) store(r->values, type, i, i % 13 ? random_value() : -0.0f);
    for (i = 0; i < 64; i++) r->other_grad[i] = random_value();
}

/* Every row once, in a random order. */
static void permute(uint32_t *rows) {
    uint32_t i;
    for (i = 0; i < ROWS; i++) rows[i] = i;
    for (i = ROWS; i > 1; i--) {
        const size_t   k = random_below(i);
        const uint32_t t = rows[k];
        rows[k]          = rows[i - 1];
        rows[i - 1]      = t;
    }
}

static void same_state(const rig *a, const rig *b) {
    const ampi_slot *s = &a->opt.plan->host_slots[0], *t = &b->opt.plan->host_slots[0];
    amp_status       x, y;
    amp_grad_stats        p, q;
    CHECK_EQ_INT(amp_optimizer_status(&a->opt, &x), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_status(&b->opt, &y), AMP_OK);
    CHECK_EQ_F64(x.norm, y.norm);
    CHECK_EQ_F32(x.clip_factor, y.clip_factor);
    CHECK_EQ_F32(x.loss_scale, y.loss_scale);
    CHECK_EQ_INT(amp_optimizer_stats(&a->opt, 0, &p), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_stats(&b->opt, 0, &q), AMP_OK);
    CHECK_MEM(&p, &q, sizeof p);
    CHECK_MEM(s->master.data, t->master.data, N * 4);
    if (s->moment[0].data) CHECK_MEM(s->moment[0].data, t->moment[0].data, N * 4);
    if (s->moment[1].data) CHECK_MEM(s->moment[1].data, t->moment[1].data, N * 4);
    if (s->model) CHECK_MEM(s->model, t->model, N * size_of((amp_dtype)s->model_type));
    CHECK_MEM(a->other, b->other, sizeof a->other);
}

TEST(as_dense, "issue of rows: every row once and no decay: the bits of a tensor without rows") {
    int kind, type, k;
    for (kind = AMP_KIND_ADAMW; kind <= (int)AMP_KIND_SGD; kind++)
        for (type = 0; type < 3; type++) {
            amp_optimizer_desc desc = desc_of((amp_kind)kind, (amp_dtype)((type + 1) % 3));
            desc.max_norm           = type ? 3.0f : 0.0f;
            start(&one, &desc, (amp_dtype)type, 1);
            start(&two, &desc, (amp_dtype)type, 0);
            for (k = 0; k < 5; k++) {
                size_t i, bytes = LENGTH * size_of((amp_dtype)type);
                permute(one.rows);
                one.count = ROWS;
                random_values(&one, (amp_dtype)type, ROWS);
                memcpy(two.other_grad, one.other_grad, sizeof two.other_grad);
                if (k == 2) /* an overflow */
                    store_bits(one.values, (amp_dtype)type, 5 * LENGTH + 7,
                               type == AMP_F32 ? 0x7f800000u : type == AMP_F16 ? 0xfc00u : 0x7f80u);
                for (i = 0; i < ROWS; i++)
                    memcpy(two.values + one.rows[i] * bytes, one.values + i * bytes, bytes);
                CHECK_EQ_INT(step(&one), AMP_OK);
                CHECK_EQ_INT(step(&two), AMP_OK);
                same_state(&one, &two);
            }
            amp_optimizer_free(&one.opt);
            amp_optimizer_free(&two.opt);
        }
}

/* What a step should do, in plain double precision and in no clever order. */
static double model_m[N], model_v[N], model_w[N];

static void plain_adamw(const rig *r, amp_dtype type, double scale, int t) {
    static float sums[N];
    static char  there[ROWS];
    size_t       i, j;
    memset(sums, 0, sizeof sums);
    memset(there, 0, sizeof there);
    for (i = 0; i < r->count; i++) {
        for (j = 0; j < LENGTH; j++)
            sums[r->rows[i] * LENGTH + j] += load(r->values, type, i * LENGTH + j);
        there[r->rows[i]] = 1;
    }
    for (i = 0; i < N; i++) {
        const double g = (double)sums[i] / scale;
        if (!there[i / LENGTH]) continue;
        model_m[i] = 0.9 * model_m[i] + 0.1 * g;
        model_v[i] = 0.999 * model_v[i] + 0.001 * g * g;
        model_w[i] -= 0.01 * (model_m[i] / (1 - pow(0.9, t))) /
                      (sqrt(model_v[i] / (1 - pow(0.999, t))) + 1e-8);
    }
}

TEST(duplicates, "amp.h sparse: rows in any order, some often: summed, stepped with the count of all "
                 "steps, as in double precision; the others keep every bit") {
    static float     weight[N], m[N], v[N];
    static uint16_t  model[N];
    amp_dtype        type;
    int              k;
    for (type = AMP_F32; type <= AMP_BF16; type = (amp_dtype)((int)type + 1)) {
        amp_optimizer_desc desc = desc_of(AMP_KIND_ADAMW, AMP_F16);
        const ampi_slot   *s;
        size_t             i;
        start(&one, &desc, type, 1);
        s = &one.opt.plan->host_slots[0];
        memset(model_m, 0, sizeof model_m);
        memset(model_v, 0, sizeof model_v);
        for (i = 0; i < N; i++) model_w[i] = (double)one.weight[i];
        for (k = 1; k <= 6; k++) {
            char there[ROWS] = {0};
            one.count = k == 4 ? 0 : 1 + (uint32_t)random_below(MOST);
            for (i = 0; i < one.count; i++) {
                one.rows[i] = (uint32_t)random_below(k % 2 ? ROWS : 20);
                there[one.rows[i]] = 1;
            }
            random_values(&one, type, one.count);
            memcpy(weight, s->master.data, sizeof weight);
            memcpy(m, s->moment[0].data, sizeof m);
            memcpy(v, s->moment[1].data, sizeof v);
            memcpy(model, s->model, sizeof model);
            plain_adamw(&one, type, 256.0, k);
            CHECK_EQ_INT(step(&one), AMP_OK);
            for (i = 0; i < N; i++) {
                /* a few roundings of the weight; the update is at most about 10 * lr */
                const double error = fabs((double)one.weight[i] - model_w[i]);
                const amp_f16 half = amp_f32_to_f16(one.weight[i]);
                if (there[i / LENGTH]) {
                    CHECK(error < 1e-5);
                    CHECK_EQ_U32(((const uint16_t *)s->model)[i], half.bits);
                    continue;
                }
                CHECK_MEM(&weight[i], (const float *)s->master.data + i, 4);
                CHECK_MEM(&m[i], (const float *)s->moment[0].data + i, 4);
                CHECK_MEM(&v[i], (const float *)s->moment[1].data + i, 4);
                CHECK_MEM(&model[i], (const uint16_t *)s->model + i, 2);
            }
        }
        amp_optimizer_free(&one.opt);
    }
}

TEST(order_of_places, "amp.h sparse: what belongs to one row is added in fp32 in the order of places, up to 64") {
    amp_optimizer_desc desc = desc_of(AMP_KIND_SGD, AMP_F32);
    size_t             j;
    int                k;
    desc.scaler.init_scale = 1.0f;
    start(&one, &desc, AMP_F32, 1);
    for (k = 0; k < 4; k++) one.rows[k] = k == 1 ? 3 : 9;
    for (j = 0; j < LENGTH; j++) {
        store(one.values, AMP_F32, 0 * LENGTH + j, 1.0f);
        store(one.values, AMP_F32, 1 * LENGTH + j, 0.25f);
        store(one.values, AMP_F32, 2 * LENGTH + j, 3e8f);
        store(one.values, AMP_F32, 3 * LENGTH + j, -3e8f);
    }
    one.count = 4; /* (1 + 3e8) - 3e8 is 0 in fp32 */
    CHECK_EQ_INT(step(&one), AMP_OK);
    CHECK_EQ_F32(one.weight[9 * LENGTH], (float)(int)(9 * LENGTH * 37 % 64) * 0.03125f - 1.0f);
    CHECK_EQ_F32(one.weight[3 * LENGTH], (float)(int)(3 * LENGTH * 37 % 64) * 0.03125f - 1.0f -
                                             0.01f * 0.25f);
    amp_optimizer_free(&one.opt);
}

/* What is promised, written as it is promised. */
static float sum_of_row(const rig *r, amp_dtype type, uint32_t row, size_t element) {
    volatile float sum = 0.0f, segment = 0.0f;
    uint32_t       i, found = 0;
    for (i = 0; i < r->count; i++) {
        if (r->rows[i] != row) continue;
        if (found % 64 == 0) {
            if (found > 64) sum = sum + segment;
            else if (found) sum = segment;
            segment = load(r->values, type, i * LENGTH + element);
        } else {
            segment = segment + load(r->values, type, i * LENGTH + element);
        }
        found++;
    }
    if (found > 64) return sum + segment;
    return segment;
}

TEST(segments, "amp.h sparse: a row's places are added 64 at a time, in order, and then these sums in order, "
               "whatever other rows lie between them") {
    static const uint32_t often[] = {1, 63, 64, 65, 127, 128, 129, 130, 193}; /* MOST together */
    amp_optimizer_desc    desc    = desc_of(AMP_KIND_SGD, AMP_F32);
    amp_dtype             type;
    desc.scaler.init_scale = 1.0f;
    for (type = AMP_F32; type <= AMP_BF16; type = (amp_dtype)((int)type + 1)) {
        uint32_t k, i, other;
        size_t   j;
        start(&one, &desc, type, 1);
        for (k = 0, i = 0; k < sizeof often / sizeof *often; k++) {
            for (other = 0; other < often[k]; other++) one.rows[i++] = 7 * k;
        }
        CHECK_EQ_U32(i, MOST);
        one.count = MOST;
        for (i = MOST; i > 1; i--) {
            const size_t at   = random_below(i);
            other             = one.rows[at];
            one.rows[at]      = one.rows[i - 1];
            one.rows[i - 1]   = other;
        }
        random_values(&one, type, MOST);
        memset(one.weight, 0, sizeof one.weight);
        CHECK_EQ_INT(amp_optimizer_step(&one.opt, 1.0f), AMP_OK);
        for (k = 0; k < sizeof often / sizeof *often; k++)
            for (j = 0; j < LENGTH; j++)
                CHECK_EQ_F32(one.weight[7 * k * LENGTH + j], 0.0f - sum_of_row(&one, type, 7 * k, j));
        amp_optimizer_free(&one.opt);
    }
}

TEST(segments_behind, "amp.h sparse: a row of many places behind many rows of one leaves all numbers as they are") {
    amp_optimizer_desc desc = desc_of(AMP_KIND_SGD, AMP_F32);
    uint32_t           i;
    desc.scaler.init_scale = 1.0f;
    start(&one, &desc, AMP_F32, 1);
    for (i = 0; i < MOST; i++) one.rows[i] = i < ROWS ? i : ROWS - 1;
    one.count = MOST;
    random_values(&one, AMP_F32, MOST);
    memset(one.weight, 0, sizeof one.weight);
    CHECK_EQ_INT(amp_optimizer_step(&one.opt, 1.0f), AMP_OK);
    for (i = 0; i < ROWS; i++)
        CHECK_EQ_F32(one.weight[i * LENGTH + i % LENGTH], 0.0f - sum_of_row(&one, AMP_F32, i, i % LENGTH));
    amp_optimizer_free(&one.opt);
}

TEST(sums_beyond_fp16, "amp.h sparse: sums may be beyond fp16") {
    amp_optimizer_desc desc = desc_of(AMP_KIND_SGD, AMP_F16);
    amp_status         status;
    size_t             i;
    start(&one, &desc, AMP_F16, 1);
    for (i = 0; i < 10 * LENGTH; i++) store(one.values, AMP_F16, i, 65504.0f);
    for (i = 0; i < 10; i++) one.rows[i] = 4;
    one.count = 10;
    CHECK_EQ_INT(step(&one), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_status(&one.opt, &status), AMP_OK);
    CHECK_EQ_U32(status.did_step, 1);
    amp_optimizer_free(&one.opt);
}

TEST(statistics, "amp.h sparse: non-finite elements are named by their index in the tensor") {
    amp_optimizer_desc desc = desc_of(AMP_KIND_ADAMW, AMP_F16);
    amp_grad_stats          stats;
    amp_status         status;
    start(&one, &desc, AMP_BF16, 1);
    random_values(&one, AMP_BF16, 4);
    one.rows[0] = 600, one.rows[1] = 2, one.rows[2] = 77, one.rows[3] = 2;
    one.count   = 4;
    store_bits(one.values, AMP_BF16, 0 * LENGTH + 3, 0x7f80);  /* inf in row 600 */
    store_bits(one.values, AMP_BF16, 2 * LENGTH + 40, 0x7fc0); /* NaN in row 77  */
    store_bits(one.values, AMP_BF16, 2 * LENGTH + 41, 0xff80);
    CHECK_EQ_INT(step(&one), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_stats(&one.opt, 0, &stats), AMP_OK);
    CHECK_EQ_U64(stats.nonfinite, 3);
    CHECK_EQ_U64(stats.nan, 1);
    CHECK_EQ_U64(stats.first_nonfinite, 77 * LENGTH + 40);
    CHECK_EQ_U32(stats.bad_row, 0);
    CHECK_EQ_INT(amp_optimizer_status(&one.opt, &status), AMP_OK);
    CHECK_EQ_U32(status.did_step, 0);
    one.count = 0; /* nothing there: nothing wrong, and a step */
    CHECK_EQ_INT(step(&one), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_stats(&one.opt, 0, &stats), AMP_OK);
    CHECK_EQ_U64(stats.nonfinite + stats.zeros, 0);
    CHECK_EQ_U64(stats.first_nonfinite, N);
    CHECK_EQ_INT(amp_optimizer_status(&one.opt, &status), AMP_OK);
    CHECK_EQ_U32(status.did_step, 1);
    amp_optimizer_free(&one.opt);
}

TEST(bad_rows, "amp.h sparse: a row that is not there, or too many, skips the step and is named") {
    amp_optimizer_desc desc = desc_of(AMP_KIND_ADAMW, AMP_F16);
    static float       before[N];
    amp_grad_stats          stats;
    amp_status         status;
    uint32_t           i;
    int                which;
    start(&one, &desc, AMP_F32, 1);
    random_values(&one, AMP_F32, MOST);
    memcpy(before, one.weight, sizeof before);
    for (which = 0; which < 4; which++) {
        for (i = 0; i < MOST; i++) one.rows[i] = i % ROWS;
        one.count = which == 3 ? MOST + 1 : MOST;
        if (which == 0) one.rows[0] = ROWS;
        if (which == 1) one.rows[MOST - 1] = UINT32_MAX;
        if (which == 2) one.rows[30] = one.rows[31] = one.rows[800] = ROWS + 5;
        CHECK_EQ_INT(step(&one), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_stats(&one.opt, 0, &stats), AMP_OK);
        CHECK_EQ_U32(stats.bad_row, which == 0 ? 1 : which == 1 ? MOST : which == 2 ? 31 : MOST + 1);
        CHECK_EQ_INT(amp_optimizer_status(&one.opt, &status), AMP_OK);
        CHECK_EQ_U32(status.did_step, 0);
        CHECK_EQ_U32(status.found_inf, 1);
        CHECK_MEM(one.weight, before, sizeof before);
    }
    one.count = MOST;
    for (i = 0; i < MOST; i++) one.rows[i] = i % ROWS;
    CHECK_EQ_INT(step(&one), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_stats(&one.opt, 0, &stats), AMP_OK);
    CHECK_EQ_U32(stats.bad_row, 0);
    amp_optimizer_free(&one.opt);
}

TEST(never_stepped_on, "amp.h sparse: a row that is not there skips where the scaler is disabled, too, and "
                       "where the table is empty") {
    amp_optimizer_desc desc = desc_of(AMP_KIND_SGD, AMP_F32);
    static float       values[2][5000];
    int                empty;
    desc.scaler.disabled = 1;
    for (empty = 0; empty < 2; empty++) {
        float      table[6] = {1, 1, 1, 1, 1, 1}, other[6] = {1, 1, 1, 1, 1, 1};
        uint32_t   rows[2]  = {1, 3}, count = 2; /* of both */
        amp_rows   few;
        amp_tensor t;
        amp_grad_stats  stats;
        amp_status status;
        size_t     i;
        for (i = 0; i < 5000; i++) values[0][i] = values[1][i] = 1.0f;
        memset(&t, 0, sizeof t);
        few = rows_of(empty ? 2500 : 2, 2, rows, &count);
        t.n = empty ? 0 : 6, t.weight = table, t.grad = values[0], t.rows = &few;
        CHECK_EQ_INT(amp_optimizer_init(&one.opt, &desc), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_add(&one.opt, &t), AMP_OK);
        t.n = 6, few.row_length = 2; /* law 17: something has to learn */
        t.weight = other, t.grad = values[1];
        CHECK_EQ_INT(amp_optimizer_add(&one.opt, &t), AMP_OK);
        CHECK_EQ_INT(prepare_scaled(&one.opt), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_step(&one.opt, 1.0f), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_stats(&one.opt, 0, &stats), AMP_OK);
        CHECK_EQ_U32(stats.bad_row, empty ? 1 : 2);
        CHECK_EQ_INT(amp_optimizer_status(&one.opt, &status), AMP_OK);
        CHECK_EQ_U32(status.did_step, 0);
        for (i = 0; i < 6; i++) CHECK(table[i] == 1.0f && other[i] == 1.0f);
        rows[1] = 2; /* what is not finite is stepped on, as in any tensor */
        if (empty) count = 0;
        values[0][0] = -INFINITY;
        CHECK_EQ_INT(amp_optimizer_step(&one.opt, 1.0f), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_status(&one.opt, &status), AMP_OK);
        CHECK_EQ_U32(status.did_step, 1);
        amp_optimizer_free(&one.opt);
    }
}

TEST(decay_and_zero_grad, "amp.h sparse: the optimizer's weight decay is not a table's; its own acts "
                          "on rows that are there; zero_grad clears the count, on a skip too") {
    amp_optimizer_desc desc = desc_of(AMP_KIND_SGD, AMP_F32);
    int                own;
    desc.weight_decay      = 0.5f;
    desc.zero_grad         = 1;
    desc.scaler.init_scale = 1.0f;
    for (own = 0; own < 2; own++) {
        amp_tensor t;
        float      table[8] = {1, 1, 1, 1, 1, 1, 1, 1};
        uint32_t   row = 2, count = 1;
        amp_rows   few;
        float      grad[8] = {0, 0};
        memset(&t, 0, sizeof t);
        few = rows_of(2, 4, &row, &count);
        t.n = 8, t.weight = table, t.grad = grad, t.rows = &few;
        t.weight_decay = own ? 0.25f : 0.0f;
        CHECK_EQ_INT(amp_optimizer_init(&one.opt, &desc), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_add(&one.opt, &t), AMP_OK);
        CHECK_EQ_INT(prepare_scaled(&one.opt), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_step(&one.opt, 1.0f), AMP_OK);
        CHECK_EQ_F32(table[3], 1.0f);
        CHECK_EQ_F32(table[4], own ? 0.75f : 1.0f);
        CHECK_EQ_F32(table[6], 1.0f);
        CHECK_EQ_U32(count, 0);
        count = 1, row = 9;
        CHECK_EQ_INT(amp_optimizer_step(&one.opt, 1.0f), AMP_OK);
        CHECK_EQ_U32(count, 0);
        amp_optimizer_free(&one.opt);
    }
}

TEST(moving_gradients, "amp.h sparse: rebind moves values; a table without a gradient stands still") {
    static unsigned char elsewhere[4 * LENGTH * 4];
    amp_optimizer_desc   desc = desc_of(AMP_KIND_SGD, AMP_F32);
    void                *grads[2];
    static float         before[N];
    size_t               i;
    desc.scaler.init_scale = 1.0f;
    start(&one, &desc, AMP_F32, 1);
    random_values(&one, AMP_F32, 1);
    for (i = 0; i < LENGTH; i++) store(elsewhere, AMP_F32, i, 100.0f);
    one.rows[0] = 5;
    one.count   = 1;
    memcpy(before, one.weight, sizeof before);
    CHECK_EQ_INT(amp_optimizer_rebind(&one.opt, 0, NULL, elsewhere), AMP_OK);
    CHECK_EQ_INT(step(&one), AMP_OK);
    CHECK_EQ_F32(one.weight[5 * LENGTH], before[5 * LENGTH] - 0.01f * 100.0f);
    memcpy(before, one.weight, sizeof before);
    grads[0] = AMP_NO_GRAD;
    grads[1] = NULL;
    CHECK_EQ_INT(amp_optimizer_rebind_all(&one.opt, NULL, grads), AMP_OK);
    CHECK_EQ_INT(step(&one), AMP_OK);
    CHECK_MEM(one.weight, before, sizeof before);
    grads[1] = AMP_NO_GRAD;
    CHECK_EQ_INT(amp_optimizer_rebind_all(&one.opt, NULL, grads), AMP_OK);
    CHECK_EQ_INT(step(&one), AMP_ERROR_BAD_STATE); /* law 17 */
    amp_optimizer_free(&one.opt);
}

static tape saved, again;

static void same_batch(uint32_t k) {
    uint32_t i;
    random_state = 100 + k;
    one.count    = 300;
    for (i = 0; i < one.count; i++) one.rows[i] = (uint32_t)random_below(ROWS);
    random_values(&one, AMP_F16, one.count);
    if (k % 4 == 3) store_bits(one.values, AMP_F16, 12, 0x7c00);
}

TEST(resumed, "law 12: saved, loaded and continued, also after a skip, a run has the bits of one that "
              "never stopped") {
    amp_optimizer_desc desc = desc_of(AMP_KIND_ADAMW, AMP_BF16);
    uint32_t           k, stop;
    for (stop = 2; stop < 6; stop++) {
        saved.size = saved.at = again.size = 0;
        start(&one, &desc, AMP_F16, 1);
        for (k = 0; k < 8; k++) {
            if (k == stop) CHECK_EQ_INT(amp_optimizer_save(&one.opt, tape_write, &saved), AMP_OK);
            same_batch(k);
            CHECK_EQ_INT(step(&one), AMP_OK);
        }
        memcpy(&two, &one, sizeof two); /* weights */
        CHECK_EQ_INT(amp_optimizer_save(&one.opt, tape_write, &again), AMP_OK);
        amp_optimizer_free(&one.opt);
        start(&one, &desc, AMP_F16, 1);
        CHECK_EQ_INT(amp_optimizer_load(&one.opt, tape_read, &saved), AMP_OK);
        for (k = stop; k < 8; k++) {
            same_batch(k);
            CHECK_EQ_INT(step(&one), AMP_OK);
        }
        saved.size = 0;
        CHECK_EQ_INT(amp_optimizer_save(&one.opt, tape_write, &saved), AMP_OK);
        CHECK_EQ_U64(saved.size, again.size);
        CHECK_MEM(saved.bytes, again.bytes, saved.size);
        CHECK_MEM(one.weight, two.weight, sizeof one.weight);
        amp_optimizer_free(&one.opt);
    }
}

TEST(large_tables, "amp.h sparse: tables of more than 2^8, 2^16 and 2^24 rows are sorted, too") {
    static const uint32_t tables[] = {256, 257, 65536, 65537, 1u << 24, (1u << 24) + 1};
    amp_optimizer_desc    desc     = desc_of(AMP_KIND_SGD, AMP_F32);
    size_t                k;
    desc.scaler.init_scale = 1.0f;
    for (k = 0; k < sizeof tables / sizeof *tables; k++) {
        float     *table = (float *)calloc(tables[k], sizeof(float));
        float      values[6] = {1, 2, 3, 4, 5, 6};
        uint32_t   rows[6], count = 6;
        amp_rows   few;
        amp_tensor t;
        amp_status status;
        rows[0] = tables[k] - 1, rows[1] = 0, rows[2] = 1, rows[3] = tables[k] - 2;
        rows[4] = tables[k] / 2, rows[5] = tables[k] - 1;
        memset(&t, 0, sizeof t);
        few = rows_of(1, 6, rows, &count);
        t.n = tables[k], t.weight = table, t.grad = values, t.rows = &few;
        CHECK_EQ_INT(amp_optimizer_init(&one.opt, &desc), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_add(&one.opt, &t), AMP_OK);
        CHECK_EQ_INT(prepare_scaled(&one.opt), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_step(&one.opt, 1.0f), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_status(&one.opt, &status), AMP_OK);
        CHECK_EQ_F64(status.norm, sqrt(2 * 2 + 3 * 3 + 4 * 4 + 5 * 5 + 7 * 7)); /* a row is there once */
        CHECK_EQ_F32(table[0], -2.0f);
        CHECK_EQ_F32(table[tables[k] - 2], -4.0f);
        CHECK_EQ_F32(table[tables[k] / 2], -5.0f);
        CHECK_EQ_F32(table[1], -3.0f);
        CHECK_EQ_F32(table[tables[k] - 1], -7.0f); /* 1 and 6 */
        amp_optimizer_free(&one.opt);
        free(table);
    }
}

#if HAVE_HUGE
/* A table of so many rows of length, stepped on once by SGD with a rate of 0.5: count places. */
static void huge_table(size_t rows, size_t length, amp_dtype type, const void *values, const uint32_t *places,
                       uint32_t count, float *weight) {
    amp_optimizer_desc desc = desc_of(AMP_KIND_SGD, AMP_F32);
    amp_rows           few  = rows_of(length, count, places, &count);
    amp_tensor         t;
    desc.scaler.init_scale = 1.0f;
    memset(&t, 0, sizeof t);
    t.n = rows * length, t.weight = weight, t.grad_type = type, t.rows = &few;
    memcpy(&t.grad, &values, sizeof t.grad); /* it is only read */
    CHECK_EQ_INT(amp_optimizer_init(&one.opt, &desc), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_add(&one.opt, &t), AMP_OK);
    CHECK_EQ_INT(prepare_scaled(&one.opt), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_step(&one.opt, 0.5f), AMP_OK);
}

TEST(table_beyond_2_32, "law 11: a row more than 2^32 elements behind the first is stepped on, and an overflow in it is where "
                        "it is") {
    enum { WIDE = 1 << 16 };
    static float          values[3 * WIDE];
    static const uint32_t rows[3] = {WIDE + 1, 2, WIDE + 1};
    const size_t          length = WIDE, n = (length + 2) * length;
    float                *table = (float *)huge_zeros(4 * n);
    amp_grad_stats             stats;
    size_t                i;
    if (!table) SKIP(HUGE_WHY);
    for (i = 0; i < 3 * WIDE; i++) values[i] = (float)(int)(1 + i / WIDE); /* 1, 2, 3 */
    huge_table(length + 2, length, AMP_F32, values, rows, 3, table);
    amp_optimizer_free(&one.opt);
    for (i = 0; i < length; i++) {
        CHECK_EQ_F32(table[i], 0.0f);
        CHECK_EQ_F32(table[length + i], 0.0f); /* 2^32 in front of the last */
        CHECK_EQ_F32(table[2 * length + i], -1.0f);
        CHECK_EQ_F32(table[(length + 1) * length + i], -2.0f);
    }
    store_bits(values, AMP_F32, 2 * WIDE + 5, 0xff800000u);
    huge_table(length + 2, length, AMP_F32, values, rows, 3, table);
    CHECK_EQ_INT(amp_optimizer_stats(&one.opt, 0, &stats), AMP_OK);
    CHECK_EQ_U64(stats.first_nonfinite, (length + 1) * length + 5);
    CHECK_EQ_U64(stats.nonfinite, 1);
    amp_optimizer_free(&one.opt);
    huge_free(table, 4 * n);
}

TEST(values_beyond_2_32, "law 11: places more than 2^32 values behind the first belong to their rows") {
    enum { PLACES = 1026 };
    static uint32_t rows[PLACES];
    const size_t    length = (size_t)1 << 22, bytes = 2 * PLACES * length;
    uint16_t       *values;
    float          *table;
    size_t          i;
    if (test_state.quick) SKIP("a second and 300 MB, under sanitizers ten: not in quick runs");
    values = (uint16_t *)huge_zeros(bytes);
    table  = (float *)huge_zeros(8 * length);
    if (!values || !table) SKIP(HUGE_WHY);
    huge_read(values, bytes);
    rows[PLACES - 2] = rows[PLACES - 1] = 1; /* the others are of row 0 */
    for (i = 0; i < 3; i++) values[(PLACES - 2) * length + i] = 0x4000;     /* 2 */
    for (i = 0; i < 3; i++) values[(PLACES - 1) * length + i + 1] = 0x4080; /* 4 */
    huge_table(2, length, AMP_BF16, values, rows, PLACES, table);
    for (i = 0; i < 6; i++) CHECK_EQ_F32(table[length + i], i == 0 ? -1.0f : i < 3 ? -3.0f : i < 4 ? -2.0f : 0.0f);
    for (i = 0; i < length; i++) CHECK_EQ_F32(table[i], 0.0f);
    amp_optimizer_free(&one.opt);
    huge_free(values, bytes);
    huge_free(table, 8 * length);
}
#else
TEST(table_beyond_2_32, "law 11: a row more than 2^32 elements behind the first is stepped on") { SKIP(HUGE_WHY); }
TEST(values_beyond_2_32, "law 11: places more than 2^32 values behind the first") { SKIP(HUGE_WHY); }
#endif

TEST(misuse, "amp.h sparse: what is not offered, and tables that cannot be") {
    amp_optimizer_desc desc = desc_of(AMP_KIND_ADAMW, AMP_F16);
    float              x[12] = {0}, grad[12] = {0};
    uint32_t           rows[4] = {0}, count = 0;
    amp_rows           few;
    amp_tensor         good, t;
    int                which;
    memset(&good, 0, sizeof good);
    good.n = 12, good.weight = x, good.grad = grad, good.rows = &few;
    for (which = 0; which < 12 - (sizeof(size_t) < 8 ? 2 : 0); which++) {
        amp_result expected = AMP_ERROR_INVALID_CONFIG;
        desc         = desc_of(AMP_KIND_ADAMW, AMP_F16);
        t            = good;
        few          = rows_of(3, 4, rows, &count);
        if (which == 0) few.row_length = 5;
        if (which == 1) few.max_rows = 0;
        if (which == 2) few.rows = NULL, expected = AMP_ERROR_INVALID_ARGUMENT;
        if (which == 3) few.num_rows = NULL, expected = AMP_ERROR_INVALID_ARGUMENT;
        if (which == 4) desc.kind = AMP_KIND_OWN, expected = AMP_ERROR_UNSUPPORTED;
        if (which == 5) desc.kind = AMP_KIND_SGD, desc.momentum = 0.9, expected = AMP_ERROR_UNSUPPORTED;
        if (which == 6) few.max_rows = (size_t)1 << 31, expected = AMP_ERROR_TOO_LARGE;
        if (which == 7) desc.kind = AMP_KIND_SGD, expected = AMP_OK;
        if (which == 8) t.frozen = 1, few.rows = NULL, expected = AMP_OK;
        if (which == 9) t.n = few.row_length = (size_t)1 << 31, expected = AMP_ERROR_TOO_LARGE;
        if (which > 9) { /* the most there can be, and one more */
            t.n = few.row_length = ((size_t)1 << 31) - 1;
            few.max_rows = ((size_t)1 << 27) + (which == 11);
            expected     = which == 11 ? AMP_ERROR_TOO_LARGE : AMP_OK;
        }
        CHECK_EQ_INT(amp_optimizer_init(&one.opt, &desc), AMP_OK);
        SAYS(amp_optimizer_add(&one.opt, &t), expected, NULL);
        amp_optimizer_free(&one.opt);
    }
    desc = desc_of(AMP_KIND_ADAMW, AMP_F16);
    CHECK_EQ_INT(amp_optimizer_init(&one.opt, &desc), AMP_OK);
    t   = good;
    few = rows_of(3, 4, rows, &count);
    CHECK_EQ_INT(amp_optimizer_add_flat(&one.opt, &good, &t, 1), AMP_ERROR_UNSUPPORTED);
    amp_optimizer_free(&one.opt);
}

int main(int argc, char **argv) {
    test_begin(argc, argv);
    RUN(as_dense);
    RUN(duplicates);
    RUN(order_of_places);
    RUN(segments);
    RUN(segments_behind);
    RUN(sums_beyond_fp16);
    RUN(statistics);
    RUN(bad_rows);
    RUN(never_stepped_on);
    RUN(decay_and_zero_grad);
    RUN(moving_gradients);
    RUN(resumed);
    RUN(large_tables);
    RUN(table_beyond_2_32);
    RUN(values_beyond_2_32);
    RUN(misuse);
    return test_end();
}
