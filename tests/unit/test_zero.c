/* test_zero.c - examples/ddp/zero.h, with threads as ranks: the bits of one optimizer; skips; ranks that
   differ; checkpoints loaded on another number of ranks, damaged, and killed at each write. */

#define _GNU_SOURCE /* usleep, barriers */
#include "amp.h"
#include "../support/test.h"
#include "../support/posix.h"
#include "../support/random.h"
#include "../support/storage.h"

/* A save may die, or fail, in front of a rank's file, behind it and behind its index, and where it
   removes an old one. */
typedef enum point { NOWHERE, BEFORE_FILE, AFTER_FILE, AFTER_INDEX, REMOVES } point;
static point kill_at;
static int   kill_rank, kill_after; /* the rank that dies there, after so many of its like */
static void  at_point(point p, int rank) {
    if (p == kill_at && rank == kill_rank && kill_after-- == 0) _exit(9);
}
static amp_result save_at_points(const amp_optimizer *opt, const char *path) {
    const char *rank = strstr(path, "-of-");
    amp_result  result;
    while (rank && rank[-1] != '.') rank--;
    if (rank) at_point(BEFORE_FILE, atoi(rank));
    result = amp_optimizer_save_file(opt, path);
    if (rank) at_point(AFTER_FILE, atoi(rank));
    else at_point(AFTER_INDEX, 0);
    return result;
}
static void remove_at_points(const char *path) {
    remove(path);
    at_point(REMOVES, 0);
}
#define amp_optimizer_save_file(opt, path) save_at_points(opt, path)
#define remove(path) remove_at_points(path)
#include "examples/ddp/zero.h"
#undef remove

#if HAVE_POSIX
#include <pthread.h>

enum { MAX_RANKS = 16, TENSORS = 6, LONGEST = 70001, ELEMENTS = LONGEST + 37 + 32768 + 5 + 16385 + 20000 };
static const struct { const char *name; size_t n; int keep; float lr_scale; } layout[TENSORS] = {
    {"a", LONGEST, 0, 0}, {"bias", 37, 1, 0}, {"b", 32768, 0, 0.5f}, {"tiny", 5, 0, 0}, {"c", 16385, 0, 0},
    {"norm", 20000, 1, 0}};
static const float rate = 0.01f;

/* ---- the network: barriers. A rank that others wait for in vain ends the test. */

typedef struct world {
    int                count;
    pthread_barrier_t  barrier;
    double            *sums[MAX_RANKS];
    uint32_t          *maxima[MAX_RANKS];
    const zero_span   *to[MAX_RANKS];
    size_t             num[MAX_RANKS][2];
} world;
typedef struct rank_of { world *w; int rank; size_t bytes; } rank_of;

static void meet(world *w) { pthread_barrier_wait(&w->barrier); }

static amp_result net_reduce(void *user, double *sums, size_t num_sums, uint32_t *maxima, size_t num_maxima) {
    rank_of *me = (rank_of *)user;
    world   *w = me->w;
    double   s[64] = {0};
    uint32_t m[8] = {0};
    if (num_sums > 64 || num_maxima > 8) _exit(3);
    w->sums[me->rank] = sums, w->maxima[me->rank] = maxima;
    w->num[me->rank][0] = num_sums, w->num[me->rank][1] = num_maxima;
    meet(w);
    for (int k = 0; k < w->count; k++) { /* each rank in another order */
        const int r = (me->rank * 7 + k) % w->count;
        if (w->num[r][0] != num_sums || w->num[r][1] != num_maxima) _exit(3);
        for (size_t i = 0; i < num_sums; i++) s[i] += w->sums[r][i];
        for (size_t i = 0; i < num_maxima; i++) m[i] = w->maxima[r][i] > m[i] ? w->maxima[r][i] : m[i];
    }
    meet(w);
    if (num_sums) memcpy(sums, s, num_sums * sizeof *s);
    if (num_maxima) memcpy(maxima, m, num_maxima * sizeof *m);
    return AMP_OK;
}
static amp_result net_exchange(void *user, int tensor, int model, const zero_span *to, const zero_span *from) {
    rank_of *me = (rank_of *)user;
    world   *w = me->w;
    (void)tensor;
    w->to[me->rank] = to;
    meet(w);
    for (int r = 0; r < w->count; r++) {
        const zero_span *sent = &w->to[r][me->rank];
        if (sent->bytes != from[r].bytes) _exit(3);
        if (sent->bytes) memcpy(from[r].at, sent->at, sent->bytes);
        if (r != me->rank && !model) me->bytes += sent->bytes;
    }
    meet(w);
    return AMP_OK;
}

/* ---- a run, and what came out of it */

typedef struct outcome {
    float      master[ELEMENTS], model[ELEMENTS], moment[2][ELEMENTS];
    double     norms[16];
    amp_status status;
    amp_scaler scaler;
} outcome;

typedef struct job {
    amp_optimizer_desc desc;
    amp_storage        storage;
    amp_dtype          grad_type;
    int                micro, ranks, steps;
    int                plant_step, plant_tensor; /* an infinity in element plant_at; step -1: none */
    size_t             plant_at;
    int                differs;                  /* what the last rank has another one of           */
    const char        *load, *save;              /* saved at the end, or (every) after each step     */
    int                every;
    amp_result         prepared[MAX_RANKS], result[MAX_RANKS];
    char               problem[200];               /* of rank 0 */
    int                disagree;
    size_t             bytes;                    /* that rank 0 got in exchanges */
    outcome           *out;
} job;
enum { SAME, MAX_NORM, SIZE, MICRO, REFUSED };

static float *weights_of(int i) {
    float   *w = (float *)malloc(layout[i].n * sizeof *w);
    uint64_t rng = 77 + (uint64_t)i;
    for (size_t k = 0; k < layout[i].n; k++) w[k] = (float)(random_next(&rng) >> 8) / 16777216.0f - 0.5f;
    return w;
}

/* The scaled gradient of a micro-batch. It depends on the model, so that any wrong bit stays. */
static void make_grad(const job *j, void *grad, const void *model, int i, int step, int m, float factor) {
    const size_t n = layout[i].n;
    float       *x = (float *)malloc(n * sizeof *x);
    uint64_t     rng = (uint64_t)(step * 1000003 + m * 7919 + i * 104729);
    amp_cast(x, AMP_F32, model, layout[i].keep ? AMP_F32 : j->desc.dtype, n);
    for (size_t k = 0; k < n; k++)
        x[k] = (x[k] * 0.5f + ((float)(random_next(&rng) >> 8) / 16777216.0f - 0.5f)) * factor;
    if (step == j->plant_step && i == j->plant_tensor && m == j->micro - 1) {
        const uint32_t inf = 0x7f800000u;
        memcpy(&x[j->plant_at], &inf, 4);
    }
    amp_cast(grad, j->grad_type, x, AMP_F32, n);
    free(x);
}

static amp_tensor tensor_of(const job *j, int i, float *w) {
    amp_tensor t;
    memset(&t, 0, sizeof t);
    t.name = layout[i].name, t.n = layout[i].n, t.weight = w, t.grad_type = j->grad_type;
    t.keep_fp32 = layout[i].keep, t.lr_scale = layout[i].lr_scale;
    return t;
}

static void read_out(const job *j, amp_optimizer *opt, int number, int i, size_t first, size_t n, size_t base) {
    const amp_kind kind = j->desc.kind;
    const int      two = kind == AMP_KIND_ADAMW, one = two || kind == AMP_KIND_LION || j->desc.momentum > 0;
    const float   *master = amp_optimizer_master(opt, number);
    outcome       *o = j->out;
    if (master) memcpy(o->master + base + first, master, n * sizeof *master);
    if (amp_optimizer_moments(opt, number, one ? o->moment[0] + base + first : NULL,
                              two ? o->moment[1] + base + first : NULL) != AMP_OK)
        _exit(4);
    (void)i;
}

static void collect(job *j, zero *z) {
    for (size_t i = 0, base = 0; i < TENSORS; base += layout[i++].n) {
        const zero_tensor *t = &z->tensors[i];
        if (t->own) read_out(j, &z->opt, t->at, (int)i, t->first, t->own, base);
        if (z->ranks.rank == 0)
            amp_cast(j->out->model + base, AMP_F32, zero_model(z, (int)i),
                     layout[i].keep ? AMP_F32 : j->desc.dtype, layout[i].n);
    }
}

static int same_status(const amp_status *a, const amp_status *b) { /* it has padding */
    return memcmp(&a->norm, &b->norm, 8) == 0 && memcmp(&a->clip_factor, &b->clip_factor, 4) == 0 &&
           memcmp(&a->loss_scale, &b->loss_scale, 4) == 0 && a->did_step == b->did_step &&
           a->found_inf == b->found_inf && a->steps == b->steps && a->skipped == b->skipped;
}

typedef struct thread { pthread_t id; job *j; rank_of me; zero z; void *grad[TENSORS]; } thread;

/* Do all ranks have one status, scaler and model? */
static void compare_ranks(thread *t, const amp_status *s) {
    static const void *models[TENSORS];
    job               *j = t->j;
    if (t->me.rank == 0) j->out->status = *s, j->out->scaler = *amp_optimizer_scaler(&t->z.opt), j->bytes = t->me.bytes;
    for (int i = 0; i < TENSORS && t->me.rank == 0; i++) models[i] = zero_model(&t->z, i);
    meet(t->me.w);
    if (!same_status(s, &j->out->status) || memcmp(amp_optimizer_scaler(&t->z.opt), &j->out->scaler, sizeof(amp_scaler)))
        j->disagree |= 1;
    for (int i = 0; i < TENSORS; i++)
        if (memcmp(models[i], zero_model(&t->z, i), layout[i].n * t->z.tensors[i].wide)) j->disagree |= 2;
    collect(j, &t->z);
    meet(t->me.w);
}

static amp_result iterate(thread *t, int step) {
    zero         *z = &t->z;
    const job    *j = t->j;
    const int     refused = j->differs == REFUSED && t->me.rank == j->ranks - 1 && step == 3;
    for (int m = z->first; m < z->first + z->each; m++)
        for (int i = TENSORS - 1; i >= 0; i--) {
            const void *model = zero_model(z, i);
            make_grad(j, t->grad[i], model, i, step, m, amp_optimizer_loss_scale(&z->opt) / (float)j->micro);
            if (zero_gradient(z, i, t->grad[i]) != AMP_OK) return AMP_ERROR_BAD_STATE;
            if (z->block > 1 || m + 1 < z->first + z->each) /* it may be written again */
                if (zero_wait(z, i) == AMP_OK) memset(t->grad[i], 0x5a, layout[i].n * 2);
        }
    return zero_step(z, refused ? -1.0f : rate);
}

static amp_result run_rank(thread *t, int odd) {
    job               *j = t->j;
    zero              *z = &t->z;
    zero_ranks         ranks = {0, 0, NULL, net_reduce, net_exchange, NULL, NULL, NULL, NULL, NULL, NULL};
    amp_optimizer_desc d = j->desc;
    amp_status         s;
    amp_result         result;
    float             *w[TENSORS];
    ranks.rank = t->me.rank, ranks.count = j->ranks, ranks.user = &t->me;
    d.storage  = &j->storage;
    if (odd == MAX_NORM) d.max_norm += 1.0f;
    result = zero_init(z, &d, &ranks, j->micro + (odd == MICRO) * j->ranks);
    for (int i = 0; i < TENSORS && result == AMP_OK; i++) {
        amp_tensor x = tensor_of(j, i, w[i] = weights_of(i));
        if (odd == SIZE && i == 2) x.n -= 3;
        result = zero_add(z, &x);
    }
    j->prepared[t->me.rank] = result = zero_prepare(z);
    for (int i = 0; i < TENSORS; i++) free(w[i]);
    if (result == AMP_OK && j->load) result = zero_load(z, j->load);
    if (result == AMP_OK) result = amp_optimizer_status(&z->opt, &s);
    for (int step = result == AMP_OK ? (int)(s.steps + s.skipped) : j->steps; step < j->steps && result == AMP_OK; step++) {
        result = iterate(t, step);
        if (result == AMP_OK) result = amp_optimizer_status(&z->opt, &s);
        if (t->me.rank == 0) j->out->norms[step % 16] = s.norm;
        if (j->save && j->every && result == AMP_OK) result = zero_save(z, j->save);
    }
    if (result == AMP_OK && j->save && !j->every) result = zero_save(z, j->save);
    if (result == AMP_OK && j->differs == SAME) compare_ranks(t, &s);
    return result;
}

static void *rank_main(void *arg) {
    thread *t = (thread *)arg;
    job    *j = t->j;
    for (int i = 0; i < TENSORS; i++) t->grad[i] = malloc(layout[i].n * 4);
    j->result[t->me.rank] = run_rank(t, t->me.rank == j->ranks - 1 ? j->differs : SAME);
    if (t->me.rank == 0) snprintf(j->problem, sizeof j->problem, "%s", zero_problem(&t->z));
    for (int i = 0; i < TENSORS; i++) free(t->grad[i]);
    zero_free(&t->z);
    return NULL;
}

static outcome outcomes[8];

static void run(job *j, outcome *out) {
    static thread threads[MAX_RANKS];
    static world  w;
    j->out = out, j->disagree = 0;
    memset(out, 0, sizeof *out);
    w.count = j->ranks;
    pthread_barrier_init(&w.barrier, NULL, (unsigned)j->ranks);
    for (int r = 0; r < j->ranks; r++) {
        threads[r].j = j, threads[r].me.w = &w, threads[r].me.rank = r, threads[r].me.bytes = 0;
        if (pthread_create(&threads[r].id, NULL, rank_main, &threads[r]) != 0) exit(2);
    }
    for (int r = 0; r < j->ranks; r++) pthread_join(threads[r].id, NULL);
    pthread_barrier_destroy(&w.barrier);
}

static void ran(job *j, outcome *out) { /* and all went well */
    run(j, out);
    for (int r = 0; r < j->ranks; r++) CHECK_EQ_INT(j->result[r], AMP_OK);
    if (j->result[0] != AMP_OK) printf("     %s\n", j->problem);
    CHECK_EQ_INT(j->disagree, 0);
}

static void same_state(const outcome *a, const outcome *b) {
    CHECK_MEM(b->model, a->model, sizeof a->model);
    CHECK_MEM(b->master, a->master, sizeof a->master);
    CHECK_MEM(b->moment, a->moment, sizeof a->moment);
    CHECK(b->status.steps == a->status.steps && b->status.skipped == a->status.skipped);
    CHECK_MEM(&b->scaler, &a->scaler, sizeof a->scaler);
}
static void same(const outcome *a, const outcome *b) { /* after a step */
    same_state(a, b);
    CHECK(same_status(&b->status, &a->status));
}

/* One optimizer without ranks, whose gradients are added as a tree by halves. */
static void add_tree(float *sum, float **x, int first, int count, size_t n) {
    static float *room[16];
    int           half = 1, level = 0;
    if (count == 1) {
        memcpy(sum, x[first], n * sizeof *sum);
        return;
    }
    while (half * 2 < count) half *= 2, level++;
    if (!room[level]) room[level] = (float *)malloc(LONGEST * sizeof *sum);
    add_tree(sum, x, first, half, n);
    add_tree(room[level], x, first + half, count - half, n);
    for (size_t i = 0; i < n; i++) sum[i] += room[level][i];
}

static void run_plain(job *j, outcome *out) {
    amp_optimizer      o;
    amp_optimizer_desc d = j->desc;
    float             *w[TENSORS], *g[TENSORS], *x[16];
    void              *h = malloc(LONGEST * 4);
    j->out = out;
    memset(out, 0, sizeof *out);
    d.storage = &j->storage;
    CHECK_EQ_INT(amp_optimizer_init(&o, &d), AMP_OK);
    for (int i = 0; i < TENSORS; i++) {
        amp_tensor t = tensor_of(j, i, w[i] = weights_of(i));
        t.grad = g[i] = (float *)malloc(layout[i].n * 4), t.grad_type = AMP_F32;
        CHECK_EQ_INT(amp_optimizer_add(&o, &t), AMP_OK);
    }
    CHECK_EQ_INT(amp_optimizer_prepare(&o), AMP_OK);
    for (int m = 0; m < j->micro; m++) x[m] = (float *)malloc(LONGEST * 4);
    for (int step = 0; step < j->steps; step++) {
        for (int i = 0; i < TENSORS; i++) {
            for (int m = 0; m < j->micro; m++) {
                make_grad(j, h, amp_optimizer_model(&o, i), i, step, m, amp_optimizer_loss_scale(&o) / (float)j->micro);
                amp_cast(x[m], AMP_F32, h, j->grad_type, layout[i].n);
            }
            add_tree(g[i], x, 0, j->micro, layout[i].n);
        }
        CHECK_EQ_INT(amp_optimizer_step(&o, rate), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_status(&o, &out->status), AMP_OK);
        out->norms[step % 16] = out->status.norm;
    }
    for (size_t i = 0, base = 0; i < TENSORS; base += layout[i++].n) {
        read_out(j, &o, (int)i, (int)i, 0, layout[i].n, base);
        amp_cast(out->model + base, AMP_F32, amp_optimizer_model(&o, (int)i), layout[i].keep ? AMP_F32 : d.dtype, layout[i].n);
    }
    out->scaler = *amp_optimizer_scaler(&o);
    amp_optimizer_free(&o);
    for (int i = 0; i < TENSORS; i++) free(w[i]), free(g[i]);
    for (int m = 0; m < j->micro; m++) free(x[m]);
    free(h);
}

typedef struct sort { amp_kind kind; double momentum; float clip; amp_dtype type; int row, micro; } sort;
static const sort sorts[] = {
    {AMP_KIND_ADAMW, 0, 0.5f, AMP_F16, FP32, 8},     {AMP_KIND_ADAMW, 0, 0.5f, AMP_F16, FP32, 12},
    {AMP_KIND_ADAMW, 0, 0.5f, AMP_F16, FP32, 7},     {AMP_KIND_ADAMW, 0, 0, AMP_BF16, FP32, 8},
    {AMP_KIND_ADAMW, 0, 0.5f, AMP_F32, FP32, 1},     {AMP_KIND_SGD, 0, 0.5f, AMP_F16, FP32, 8},
    {AMP_KIND_SGD, 0.9, 0.5f, AMP_F16, FP32, 8},     {AMP_KIND_LION, 0, 0.5f, AMP_F16, FP32, 5},
    {AMP_KIND_ADAMW, 0, 0.5f, AMP_BF16, SPLIT, 8},   {AMP_KIND_ADAMW, 0, 0.5f, AMP_F16, FP32_BF16, 3},
    {AMP_KIND_ADAMW, 0, 0.5f, AMP_F16, FP32_8BIT, 8}, {AMP_KIND_LION, 0, 0.5f, AMP_BF16, SPLIT_8BIT, 8},
    {AMP_KIND_ADAMW, 0, 0.5f, AMP_BF16, SPLIT_BF16, 4}, {AMP_KIND_SGD, 0.9, 0.5f, AMP_BF16, SR_BF16, 6},
    {AMP_KIND_ADAMW, 0, 0.5f, AMP_BF16, SR_8BIT, 8}};
enum { SORTS = sizeof sorts / sizeof *sorts };

static job job_of(const sort *s) {
    job j;
    memset(&j, 0, sizeof j);
    j.desc.dtype = j.grad_type = s->type;
    j.desc.kind = s->kind, j.desc.momentum = s->momentum, j.desc.nesterov = s->momentum > 0;
    j.desc.max_norm = s->clip, j.desc.weight_decay = 0.01f, j.desc.seed = 5;
    j.desc.scaler.init_scale = 1024.0f, j.desc.scaler.growth_interval = 4;
    j.storage = storages[s->row], j.micro = s->micro, j.steps = 5, j.plant_step = -1, j.ranks = 1;
    return j;
}

static const int counts[] = {1, 2, 3, 4, 8, 16};

TEST(same_bits, "any number of ranks has the masters, models, moments and norms of one optimizer, bit for bit: clipped and "
                "not, of each kind, type and storage, and of any number of micro-batches, also fewer than ranks") {
    for (size_t c = 0; c < SORTS; c += test_state.quick == 2 ? 5 : 1) {
        job plain = job_of(&sorts[c]);
        run_plain(&plain, &outcomes[0]);
        for (int k = 0; k < 6; k += test_state.quick && c > 3 ? 2 : 1) {
            job j = job_of(&sorts[c]);
            j.ranks = counts[k];
            ran(&j, &outcomes[1]);
            same(&outcomes[0], &outcomes[1]);
            CHECK_MEM(outcomes[1].norms, outcomes[0].norms, sizeof outcomes[0].norms);
            if (c == 0 && (j.ranks & (j.ranks - 1)) == 0 && j.ranks <= 8) /* a sum of fp32, or if each rank has one micro-batch 16 bits */
                CHECK(j.bytes <= (size_t)((ELEMENTS / j.ranks + 3 * ZERO_CHUNK) * (j.ranks - 1) * (j.ranks < 8 ? 4 : 2) * j.steps));
        }
    }
}

TEST(overflows, "an overflow in one slice skips the step on all ranks, which then have one scale, model and count") {
    static const struct { int tensor; size_t at; } where[] = {{0, 3}, {0, 70000}, {1, 36}, {3, 0}, {4, 16384}};
    for (int k = 0; k < 5; k++)
        for (int n = 0; n < 5; n++) {
            job j = job_of(&sorts[0]);
            j.ranks = counts[n], j.plant_step = 3, j.plant_tensor = where[k].tensor, j.plant_at = where[k].at;
            ran(&j, &outcomes[n != 0]);
            CHECK(outcomes[n != 0].status.skipped == 1 && outcomes[n != 0].status.steps == 4);
            if (n) same(&outcomes[0], &outcomes[1]);
        }
}

TEST(ranks_that_differ, "ranks with another desc, tensor or number of micro-batches are told in zero_prepare, all of them; where the "
                        "step of one is refused the others skip, and it alone has the error") {
    for (int what = MAX_NORM; what <= REFUSED; what++)
        for (int n = 2; n <= 4; n += 2) {
            job j = job_of(&sorts[0]);
            j.ranks = n, j.differs = what, j.steps = 4;
            run(&j, &outcomes[0]);
            for (int r = 0; r < n; r++) {
                CHECK_EQ_INT(j.prepared[r], what == REFUSED ? AMP_OK : AMP_ERROR_MISMATCH);
                CHECK_EQ_INT(j.result[r], what != REFUSED ? AMP_ERROR_MISMATCH : r == n - 1 ? AMP_ERROR_INVALID_CONFIG : AMP_OK);
            }
            if (what != REFUSED) CHECK(strstr(j.problem, "ranks differ in their tensors, desc or number"));
        }
}

/* ---- checkpoints */

static char folder[96], path[128];

static int shell(const char *command) {
    char line[512];
    snprintf(line, sizeof line, "cd '%s' && %s", folder, command);
    return system(line);
}

TEST(other_counts, "a checkpoint goes on with any number of ranks, with the bits of a run that never stopped, in each storage and "
                   "after a skip; also one of step 0") {
    static const int some[] = {1, 3, 4, 16};
    for (size_t c = 0; c < SORTS; c += test_state.quick == 2 ? 5 : 1) {
        job full = job_of(&sorts[c]);
        full.plant_step = 2, full.plant_tensor = 0, full.plant_at = 20000; /* a skip, so that counters matter */
        if (sorts[c].row == SR_BF16 || sorts[c].row == SR_8BIT) full.plant_step = -1;
        ran(&full, &outcomes[0]);
        for (int from = 0; from < 4; from++) {
            job a = full;
            if (test_state.quick && c && from != (int)c % 4) continue;
            a.ranks = some[from], a.steps = c == 1 ? 0 : 3, a.save = path;
            CHECK_EQ_INT(shell("rm -f ck*"), 0);
            ran(&a, &outcomes[1]);
            for (int to = 0; to < 4; to++) {
                job b = full;
                b.ranks = some[to], b.load = path;
                ran(&b, &outcomes[2]);
                same(&outcomes[0], &outcomes[2]);
            }
        }
    }
}

TEST(long_run, "law 12: many steps with overflows, on changing numbers of ranks that go on from checkpoints, have the bits of a run "
               "that never stopped") {
    const int steps = (int)test_amount("AMP_STEPS", test_state.quick ? 30 : 1000);
    job       full = job_of(&sorts[0]);
    uint64_t  rng = 5;
    full.desc.scaler.growth_interval = 1;
    full.steps = steps;
    CHECK_EQ_INT(shell("rm -f ck*"), 0);
    for (int at = 0; at < steps;) {
        job b = full;
        b.ranks = counts[random_next(&rng) % 6], b.load = at ? path : NULL, b.save = path;
        b.steps = at + 1 + (int)(random_next(&rng) % 20);
        at      = b.steps = b.steps < steps ? b.steps : steps;
        ran(&b, &outcomes[1]);
    }
    ran(&full, &outcomes[0]);
    same(&outcomes[0], &outcomes[1]);
    CHECK((int)outcomes[0].status.skipped > steps / 20 && outcomes[0].scaler.growths > (uint64_t)steps / 20);
    printf("# %d steps, %d skipped\n", steps, (int)outcomes[0].status.skipped);
}

TEST(kills, "where a process dies in a save, of another number of ranks, path names the old checkpoint or the new one, "
            "which goes on, and is saved again") {
    int old = 0, renewed = 0;
    for (int k = 0; k < 2; k++) {
        job want = job_of(&sorts[0]);
        want.steps = 2 + k;
        ran(&want, &outcomes[k]);
    }
    for (int p = BEFORE_FILE; p <= REMOVES; p++)
        for (int rank = 0; rank < (p <= AFTER_FILE ? 3 : 1); rank++)
            for (int after = 0; after < (p == REMOVES ? 4 : 1); after++) {
                job   a = job_of(&sorts[0]), b, c;
                int   status;
                pid_t child;
                b = c = a;
                CHECK_EQ_INT(shell("rm -f ck*"), 0);
                a.ranks = 4, a.steps = 2, a.save = path;
                ran(&a, &outcomes[2]);
                fflush(stdout);
                child = fork();
                if (child == 0) {
                    kill_at = (point)p, kill_rank = rank, kill_after = after;
                    b.ranks = 3, b.steps = 3, b.load = b.save = path;
                    run(&b, &outcomes[2]);
                    _exit(4);
                }
                CHECK_EQ_INT(waitpid(child, &status, 0), child);
                CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 9);
                c.ranks = 2, c.steps = 0, c.load = path;
                ran(&c, &outcomes[2]);
                same_state(&outcomes[outcomes[2].status.steps == 3], &outcomes[2]);
                old += outcomes[2].status.steps == 2, renewed += outcomes[2].status.steps == 3;
                c.ranks = 8, c.steps = 4, c.save = path;
                ran(&c, &outcomes[2]);
            }
    CHECK(old >= 6 && renewed >= 5);
}

TEST(random_kills, "processes that save after each step, on changing numbers of ranks, and are killed at any time: none loses what "
                   "one before has saved") {
    static const int n[] = {4, 3, 8, 2, 1};
    const long       rounds = test_amount("AMP_KILLS", test_state.quick ? 4 : 20);
    int              last = 0, tried = 0;
    useconds_t       least = 20000;
    skip_if_emulated();
    CHECK_EQ_INT(shell("rm -f ck*"), 0);
    for (long k = 0; tried < rounds; k++) {
        job   c = job_of(&sorts[0]), want = c;
        int   status;
        pid_t child;
        fflush(stdout);
        child = fork();
        if (child == 0) {
            job b = job_of(&sorts[0]);
            b.ranks = n[k % 5], b.steps = 1000000, b.load = last ? path : NULL, b.save = path, b.every = 1;
            run(&b, &outcomes[2]);
            _exit(4);
        }
        usleep(least + (useconds_t)(random_next(&random_state) % 60000));
        CHECK_EQ_INT(kill(child, SIGKILL), 0); /* this child alone */
        CHECK_EQ_INT(waitpid(child, &status, 0), child);
        CHECK(WIFSIGNALED(status));
        c.ranks = 2, c.steps = 0, c.load = path;
        run(&c, &outcomes[2]);
        if (c.result[0] == AMP_ERROR_NOT_FOUND && !last) { /* before the first save, which takes longer in an emulator */
            least *= 2;
            continue;
        }
        CHECK_EQ_INT(c.result[0], AMP_OK);
        want.steps = (int)(outcomes[2].status.steps + outcomes[2].status.skipped);
        CHECK(want.steps >= last);
        last = want.steps;
        if (++tried % 8 == 0 || tried == rounds) ran(&want, &outcomes[0]), same_state(&outcomes[0], &outcomes[2]);
    }
    printf("# %d kills, up to step %d\n", tried, last);
}

TEST(damaged, "an index or a file that is missing, changed, of another checkpoint or in another's place is told on all ranks, "
              "on any number; a rank that cannot save, and a full disk, leave the old checkpoint") {
    static const struct { const char *what, *command; int loads; amp_result told; } faults[] = {
        {"nothing", "true", 1, AMP_OK},
        {"no index", "rm ck", 0, AMP_ERROR_NOT_FOUND},
        {"index is text", "seq 99 > ck", 0, AMP_ERROR_FOREIGN},
        {"index of another program", "cp ck.a.1-of-3 ck", 0, AMP_ERROR_MISMATCH},
        {"rank 1's file is missing", "rm ck.a.1-of-3", 0, AMP_ERROR_NOT_FOUND},
        {"rank 1's file is changed", "printf x | dd of=ck.a.1-of-3 bs=1 seek=40000 conv=notrunc 2> dd", 0, AMP_ERROR_CORRUPT},
        {"two files have changed places", "mv ck.a.1-of-3 x && mv ck.a.2-of-3 ck.a.1-of-3 && mv x ck.a.2-of-3", 0, AMP_ERROR_MISMATCH},
        {"rank 1's file is of another run", "cp other ck.a.1-of-3", 0, AMP_ERROR_MISMATCH}};
    for (size_t k = 0; k < sizeof faults / sizeof *faults; k++) {
        job a = job_of(&sorts[0]);
        a.ranks = 3, a.steps = 2, a.save = path, a.desc.max_norm = 1.0f;
        CHECK_EQ_INT(shell("rm -rf ck*"), 0);
        ran(&a, &outcomes[0]);
        CHECK_EQ_INT(shell("cp ck.a.1-of-3 other && rm -f ck*"), 0);
        a.desc.max_norm = 0.5f;
        ran(&a, &outcomes[0]);
        CHECK_EQ_INT(shell(faults[k].command), 0);
        for (int n = 2; n <= 3; n++) {
            job b = job_of(&sorts[0]);
            b.ranks = n, b.steps = 0, b.load = path;
            run(&b, &outcomes[1]);
            if (k != 5) CHECK_EQ_INT(b.result[0], faults[k].told);
            for (int r = 0; r < n; r++) CHECK_EQ_INT(b.result[r] == AMP_OK, faults[k].loads);
            if (faults[k].loads) same_state(&outcomes[0], &outcomes[1]);
            else CHECK(b.problem[0]);
        }
    }
    for (int k = 0; k < 2; k++) { /* one rank cannot write; none has room */
        job a = job_of(&sorts[0]), b, c;
        b = c = a;
        CHECK_EQ_INT(shell("rm -rf ck*"), 0);
        a.ranks = b.ranks = 3, a.steps = 2, a.save = path;
        ran(&a, &outcomes[0]);
        if (k == 0) CHECK_EQ_INT(shell("mkdir ck.b.1-of-3"), 0);
        else CHECK(disk_leaves(folder, 8192));
        b.steps = 3, b.load = b.save = path;
        run(&b, &outcomes[1]);
        if (k == 1) CHECK(disk_is_free());
        for (int r = 0; r < 3; r++)
            CHECK_EQ_INT(b.result[r], k == 1 ? AMP_ERROR_WRITE : r == 1 ? AMP_ERROR_UNSUPPORTED : AMP_ERROR_MISMATCH);
        c.ranks = 2, c.steps = 0, c.load = path;
        ran(&c, &outcomes[1]);
        same_state(&outcomes[0], &outcomes[1]);
    }
}

int main(int argc, char **argv) {
    const char *dir = getenv("TMPDIR");
    char        command[160];
    test_begin(argc, argv);
    snprintf(folder, sizeof folder, "%.60s/zero_%ld", dir ? dir : "/tmp", (long)getpid());
    snprintf(path, sizeof path, "%s/ck", folder);
    CHECK_EQ_INT(mkdir(folder, 0777), 0);
    RUN(same_bits);
    RUN(overflows);
    RUN(ranks_that_differ);
    RUN(other_counts);
    RUN(long_run);
    RUN(kills);
    RUN(random_kills);
    RUN(damaged);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    CHECK_EQ_INT(system(command), 0);
    return test_end();
}

#else
int main(void) {
    puts("skip zero: no fork and no POSIX threads on this system\n0 passed, 0 failed, 1 skipped");
    return 0;
}
#endif
