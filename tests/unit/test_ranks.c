/* test_ranks.c - masters and moments in shards: every rank is a thread, and they meet at a barrier.
   The bits of one rank; order of sums; what each rank keeps; sets of files, saved on N and loaded on M,
   damaged, of two runs, with ranks that fail or do not come; what is refused. */

#define _GNU_SOURCE /* usleep */
#include "amp.h"
#include "../support/prepare.h"
#include "../support/storage.h"
#include "../support/test.h"
#include "../support/posix.h"
#include "../support/random.h"
#include "../support/values.h"
#include <math.h>

/* ------------------------------------------------------------------------------- misuse */

static amp_result init_shard(amp_optimizer_desc *desc, int rank, int count) {
    amp_optimizer opt;
    amp_ranks     ranks = {0, 0, NULL, NULL, 0};
    ranks.rank  = rank;
    ranks.count = count;
    desc->ranks = &ranks;
    return amp_optimizer_init(&opt, desc);
}

TEST(misuse, "amp.h ranks: what cannot be in shards says so") {
    amp_optimizer_desc desc;
    amp_optimizer      opt;
    amp_tensor         t;
    float              x[4]    = {1, 2, 3, 4}, other[4] = {5, 6, 7, 8};
    void              *grad    = x, *none[2] = {NULL, NULL};
    float             *weights = x;
    const amp_ranks    alone   = {0, 1, NULL, NULL, 0};
    static amp_session session;
    char               problem[AMP_PROBLEM_SIZE];
    memset(&desc, 0, sizeof desc);
    desc.problem = problem;
    CHECK_EQ_INT(init_shard(&desc, 0, 1), AMP_ERROR_UNSUPPORTED);
    desc.kind = AMP_KIND_ADAMW;
    CHECK_EQ_INT(init_shard(&desc, 0, 1), AMP_OK);
    CHECK_EQ_INT(init_shard(&desc, 1, 1), AMP_ERROR_INVALID_CONFIG);
    CHECK(strstr(problem, "amp_ranks.rank is 1") != NULL);
    CHECK_EQ_INT(init_shard(&desc, -1, 2), AMP_ERROR_INVALID_CONFIG);
    CHECK_EQ_INT(init_shard(&desc, 0, -2), AMP_ERROR_INVALID_CONFIG);
    CHECK_EQ_INT(init_shard(&desc, 65535, 65536), AMP_ERROR_INVALID_CONFIG);
    CHECK(strstr(problem, "reduce_fn") != NULL); /* as many as there may be */
    CHECK_EQ_INT(init_shard(&desc, 65536, 65536), AMP_ERROR_INVALID_CONFIG);
    CHECK(strstr(problem, "amp_ranks.rank is 65536") != NULL);
    CHECK_EQ_INT(init_shard(&desc, 0, 65537), AMP_ERROR_INVALID_CONFIG);
    CHECK(strstr(problem, "amp_ranks.count is 65537") != NULL);
    CHECK_EQ_INT(init_shard(&desc, 0, 2), AMP_ERROR_INVALID_CONFIG);
    CHECK(strstr(problem, "reduce_fn") != NULL);

    desc.ranks = &alone;
    CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
    memset(&t, 0, sizeof t);
    t.n      = 4;
    t.weight = x;
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK); /* frozen */
    t.weight = other;
    t.grad   = other; /* but a flag */
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_accumulate(&opt, 1, x, 0, 1, AMP_F32), AMP_ERROR_NOT_PREPARED);
    CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
    CHECK(amp_optimizer_master(&opt, 1) != other);
    CHECK_EQ_INT(amp_optimizer_accumulate(NULL, 1, x, 0, 1, AMP_F32), AMP_ERROR_INVALID_ARGUMENT);
    strcpy(problem, "an older text");
    CHECK_EQ_INT(amp_optimizer_accumulate(&opt, 2, x, 0, 1, AMP_F32), AMP_ERROR_INVALID_ARGUMENT);
    CHECK(strcmp(problem, "there is no tensor 2") == 0);
    CHECK_EQ_INT(amp_optimizer_accumulate(&opt, 1, NULL, 0, 1, AMP_F32), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_optimizer_accumulate(&opt, 1, x, 0, 1, (amp_dtype)9), AMP_ERROR_INVALID_ENUM);
    CHECK_EQ_INT(amp_optimizer_accumulate(&opt, 1, x, 0, 65537, AMP_F32), AMP_ERROR_TOO_LARGE);
    CHECK_EQ_INT(amp_optimizer_accumulate(&opt, 1, x, 0, 65536, AMP_F32), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_accumulate(&opt, 0, x, 0, 1, AMP_F32), AMP_ERROR_UNSUPPORTED);
    CHECK(strstr(problem, "frozen") != NULL);
    CHECK_EQ_INT(amp_optimizer_rebind(&opt, 1, x, NULL), AMP_ERROR_UNSUPPORTED);
    CHECK_EQ_INT(amp_optimizer_rebind(&opt, 1, NULL, grad), AMP_ERROR_UNSUPPORTED);
    CHECK_EQ_INT(amp_optimizer_rebind_all(&opt, &weights, NULL), AMP_ERROR_UNSUPPORTED);
    CHECK_EQ_INT(amp_optimizer_rebind_all(&opt, NULL, none), AMP_ERROR_UNSUPPORTED);
    CHECK_EQ_INT(amp_optimizer_accumulate(&opt, 1, x, 0, 1, AMP_F32), AMP_OK);
    CHECK_EQ_INT(amp_session_start(&session, NULL), AMP_OK);
    CHECK_EQ_INT(amp_session_add_optimizer(&session, &opt), AMP_ERROR_UNSUPPORTED);
    amp_session_end(&session);
    amp_optimizer_free(&opt);
    CHECK_EQ_INT(amp_optimizer_accumulate(&opt, 1, x, 0, 1, AMP_F32), AMP_ERROR_NOT_INITIALIZED);

    desc.ranks = NULL;
    t.grad           = x;
    CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
    CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_accumulate(&opt, 0, x, 0, 1, AMP_F32), AMP_ERROR_UNSUPPORTED);
    amp_optimizer_free(&opt);
}

/* The sum of count numbers: of an odd count one after the other, or else of two halves. */
static float sum_in_sequence(const float *x, int count) {
    volatile float sum = x[0]; /* or -Ofast takes an order of its own */
    int            i;
    for (i = 1; i < count; i++) sum += x[i];
    return sum;
}
static float sum_of(const float *x, int count) {
    volatile float sum;
    if (count % 2) return sum_in_sequence(x, count);
    sum = sum_of(x, count / 2);
    sum += sum_of(x + count / 2, count / 2);
    return sum;
}

/* One rank, with a tensor of zeros whose parts come by accumulate: after a step with lr 1 it holds minus
   their sum. */
static void begin_alone(amp_optimizer *opt, float *weight, size_t n) {
    static const amp_ranks alone = {0, 1, NULL, NULL, 0};
    amp_optimizer_desc     desc  = {0};
    amp_tensor             t     = {0};
    memset(weight, 0, n * sizeof *weight);
    desc.kind            = AMP_KIND_SGD;
    desc.scaler.disabled = 1;
    desc.ranks           = &alone;
    t.n                  = n;
    t.weight             = weight;
    t.grad_later         = 1;
    CHECK_EQ_INT(amp_optimizer_init(opt, &desc), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_add(opt, &t), AMP_OK);
    CHECK_EQ_INT(prepare_scaled(opt), AMP_OK);
}

TEST(orders, "amp.h ranks: parts are added as a binary tree over their numbers") {
    enum { N = 300, MOST = 65536 };
    static const int counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 15, 16, 24, 32, 40, 64, 96, 1000, 4096, MOST};
    static float     x[MOST], weight[N];
    void            *parts = malloc((size_t)MOST * 7 * 4);
    size_t           i, k, which, differ = 0;
    int              type;
    for (which = 0; which < sizeof counts / sizeof *counts; which++)
        for (type = 0; type < 3; type++) {
            const int          count = counts[which];
            const size_t       n = count > 1000 ? 5 : N, stride = n + (size_t)(which % 3);
            amp_optimizer opt;
            uint64_t      rng = which;
            begin_alone(&opt, weight, n);
            for (i = 0; i < (size_t)count * stride; i++)
                store(parts, (amp_dtype)type, i, ldexpf((float)(int16_t)(random_next(&rng) | 1), -(int)(i % 24)));
            CHECK_EQ_INT(amp_optimizer_accumulate(&opt, 0, parts, stride, (size_t)count, (amp_dtype)type), AMP_OK);
            CHECK_EQ_INT(amp_optimizer_step(&opt, 1.0f), AMP_OK);
            for (i = 0; i < n; i++) {
                for (k = 0; k < (size_t)count; k++) x[k] = load(parts, (amp_dtype)type, k * stride + i);
                CHECK_EQ_F32(-amp_optimizer_master(&opt, 0)[i], sum_of(x, count));
                differ += sum_in_sequence(x, count) != sum_of(x, count);
            }
            amp_optimizer_free(&opt);
        }
    CHECK(differ > 1000); /* or the numbers do not tell orders apart */
    free(parts);
}

TEST(several_calls, "amp.h ranks: each call's parts are a tree of their own, whose sum is added to those before it: two "
                    "calls of k are the tree of 2 k") {
    enum { N = 700, CALLS = 5, MOST = 12 };
    static const int plans[][CALLS] = {{4, 4}, {1, 1, 2, 4}, {8, 3}, {3, 6, 1}, {2, 2, 2, 2, 2}, {12, 5, 7, 1, 9}};
    static float     parts[CALLS * MOST * N], weight[N];
    size_t           which, i, differ = 0;
    int              call, k, n;
    for (which = 0; which < sizeof plans / sizeof *plans; which++) {
        amp_optimizer opt;
        uint64_t      rng = which;
        begin_alone(&opt, weight, N);
        for (i = 0; i < sizeof parts / sizeof *parts; i++)
            parts[i] = ldexpf((float)(int16_t)(random_next(&rng) | 1), -(int)(i % 24));
        for (call = n = 0; call < CALLS; n += plans[which][call++])
            CHECK_EQ_INT(amp_optimizer_accumulate(&opt, 0, parts + n * N, N, (size_t)plans[which][call], AMP_F32), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_step(&opt, 1.0f), AMP_OK);
        for (i = 0; i < N; i++) {
            float          x[CALLS * MOST];
            volatile float sum = 0.0f;
            for (k = 0; k < n; k++) x[k] = parts[(size_t)k * N + i];
            for (call = k = 0; call < CALLS; k += plans[which][call++])
                if (plans[which][call]) sum += sum_of(x + k, plans[which][call]);
            CHECK_EQ_F32(-amp_optimizer_master(&opt, 0)[i], sum);
            if (which == 0) CHECK_EQ_F32(sum, sum_of(x, 8));
            differ += sum != sum_in_sequence(x, n);
        }
        amp_optimizer_free(&opt);
    }
    CHECK(differ > 1000);
}

static amp_result nobody(void *user, double *sums, size_t num_sums, uint32_t *maxima, size_t num_maxima) {
    (void)user, (void)sums, (void)num_sums, (void)maxima, (void)num_maxima;
    return AMP_OK;
}

TEST(all_frozen, "law 17: a step of ranks in which no tensor learns is refused, as without ranks") {
    static const amp_ranks ranks[] = {{0, 0, NULL, NULL, 0}, {0, 1, NULL, NULL, 0}, {0, 1, nobody, NULL, 0}};
    size_t                 k;
    for (k = 0; k < sizeof ranks / sizeof *ranks; k++) {
        float              weight[4] = {1, 2, 3, 4};
        char               problem[AMP_PROBLEM_SIZE];
        amp_optimizer_desc desc;
        amp_optimizer      opt;
        amp_tensor         t;
        memset(&desc, 0, sizeof desc);
        memset(&t, 0, sizeof t);
        desc.kind    = AMP_KIND_SGD;
        desc.ranks   = &ranks[k];
        desc.problem = problem;
        t.n          = 4;
        t.weight     = weight;
        CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
        CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_step(&opt, 0.5f), AMP_ERROR_BAD_STATE);
        CHECK(strstr(problem, "all tensors are frozen") != NULL);
        amp_optimizer_free(&opt);
    }
}

TEST(no_shards, "amp.h ranks: with a count of 0 all of the state is here, whatever rank says") {
    static const amp_ranks ranks[] = {{1, 0, NULL, NULL, 0}, {-1, 0, NULL, NULL, 0}, {INT32_MAX, 0, NULL, NULL, 0}};
    size_t           k;
    int              kind;
    for (kind = AMP_KIND_OWN; kind <= (int)AMP_KIND_SGD; kind++)
        for (k = 0; k < sizeof ranks / sizeof *ranks; k++) {
            float              weight[3] = {1, 2, 3}, grad[3] = {1, 1, 1};
            amp_optimizer_desc desc;
            amp_optimizer      opt;
            amp_tensor         t;
            amp_status         status;
            amp_bf16           model;
            memset(&desc, 0, sizeof desc);
            desc.kind       = (amp_kind)kind;
            desc.dtype      = AMP_BF16;
            desc.ranks      = &ranks[k];
            desc.scaler.disabled = 1;
            memset(&t, 0, sizeof t);
            t.n      = 3;
            t.weight = weight;
            t.grad   = grad;
            CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
            CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
            CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
            memcpy(&model, (const amp_bf16 *)amp_optimizer_model(&opt, 0) + 2, sizeof model);
            CHECK_EQ_F32(amp_bf16_to_f32(model), 3.0f);
            if (kind == (int)AMP_KIND_OWN) {
                CHECK(amp_optimizer_begin_step(&opt));
                CHECK_EQ_F32(amp_optimizer_grad(&opt, 0)[2], 1.0f);
                CHECK_EQ_INT(amp_optimizer_end_step(&opt), AMP_OK);
            } else if (kind == (int)AMP_KIND_ADAMW) {
                CHECK_EQ_INT(amp_optimizer_step(&opt, 0.5f), AMP_OK);
                CHECK(weight[2] < 3.0f);
            } else {
                CHECK_EQ_INT(amp_optimizer_step(&opt, 0.5f), AMP_OK);
                CHECK_EQ_F32(weight[2], 2.5f);
            }
            CHECK_EQ_INT(amp_optimizer_status(&opt, &status), AMP_OK);
            CHECK(status.norm > 1.73 && status.norm < 1.74); /* the root of 3 */
            amp_optimizer_free(&opt);
        }
}

#if HAVE_POSIX
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#ifdef _OPENMP
#include <omp.h>
#endif

/* ------------------------------------------------------------------------ ranks that meet */

enum { MAX_RANKS = 8, MAX_MICRO = 12, MAX_SUMS = 64, CHUNK = 16384, NUM_TENSORS = 6 };

/* Who comes last adds up; a rank that has left for good ends all meetings with an error. */
typedef struct crew {
    pthread_mutex_t lock;
    pthread_cond_t  changed;
    int             count, arrived, left, meetings;
    double          sums[MAX_SUMS], total[MAX_SUMS];
    uint32_t        maxima[2], largest[2];
} crew;

typedef struct member {
    crew         *all;
    int           rank;
    amp_ranks     ranks;
    amp_optimizer opt;
    size_t        bytes; /* that its allocator was asked for */
    int           allocations, fail_at; /* so often; the one that fails, plus one */
    int           deaf, slow; /* it learns nothing, from this meeting on; in this one it lets others end */
    int           misses;     /* in this meeting alone it learns nothing */
    amp_result    result;
    int           error; /* errno of a save */
    char          problem[AMP_PROBLEM_SIZE];
} member;

static amp_result meet(void *user, double *sums, size_t num_sums, uint32_t *maxima, size_t num_maxima) {
    member *m = (member *)user;
    crew   *c = m->all;
    size_t  i;
    int     meeting, together;
    if (num_sums > MAX_SUMS || num_maxima > 2) return AMP_ERROR_TOO_LARGE;
    if (m->deaf < 0) return AMP_ERROR_CUDA;
    pthread_mutex_lock(&c->lock);
    meeting = c->meetings;
    for (i = 0; i < num_sums; i++) c->sums[i] = (c->arrived ? c->sums[i] : 0.0) + sums[i];
    for (i = 0; i < num_maxima; i++)
        c->maxima[i] = c->arrived && c->maxima[i] > maxima[i] ? c->maxima[i] : maxima[i];
    if (++c->arrived == c->count) {
        memcpy(c->total, c->sums, num_sums * sizeof *sums);
        memcpy(c->largest, c->maxima, sizeof c->maxima);
        c->arrived = 0;
        c->meetings++;
        pthread_cond_broadcast(&c->changed);
    }
    while (c->meetings == meeting && !c->left) pthread_cond_wait(&c->changed, &c->lock);
    together = c->meetings != meeting;
    if (m->deaf && --m->deaf == 0) together = 0, m->deaf = -1;
    if (m->misses && --m->misses == 0) together = 0;
    if (m->slow && --m->slow == 0)
        while (!c->left) pthread_cond_wait(&c->changed, &c->lock);
    memcpy(sums, c->total, num_sums * sizeof *sums);
    for (i = 0; i < num_maxima; i++) maxima[i] = c->largest[i];
    pthread_mutex_unlock(&c->lock);
    errno = EAGAIN; /* as what a host calls here may leave it */
    return together ? AMP_OK : AMP_ERROR_CUDA;
}

static void *counting_alloc(void *user, size_t num_bytes) {
    member *m = (member *)user;
    m->bytes += num_bytes;
    return ++m->allocations == m->fail_at ? NULL : malloc(num_bytes);
}

static void plain_free(void *user, void *memory) {
    (void)user;
    free(memory);
}

static member       members[MAX_RANKS];
static crew         the_crew;
static void       (*work)(member *m);

static __thread int this_rank = -1;

static void *run_member(void *user) {
    member *m = (member *)user;
    this_rank = m->rank;
    work(m);
    pthread_mutex_lock(&m->all->lock);
    m->all->left++;
    pthread_cond_broadcast(&m->all->changed);
    pthread_mutex_unlock(&m->all->lock);
    return NULL;
}

/* All of count ranks do that at the same time; optimizers stay as they are. */
static void together(int count, void (*function)(member *m)) {
    pthread_t threads[MAX_RANKS];
    int       r;
    work             = function;
    the_crew.count   = count;
    the_crew.arrived = the_crew.left = 0;
    for (r = 0; r < count; r++) {
        members[r].all    = &the_crew;
        members[r].rank   = r;
        members[r].result = AMP_OK;
        CHECK_EQ_INT(pthread_create(&threads[r], NULL, run_member, &members[r]), 0);
    }
    for (r = 0; r < count; r++) pthread_join(threads[r], NULL);
}

static void all_are(int count, amp_result result) {
    int r;
    for (r = 0; r < count; r++) {
        CHECK_EQ_INT(members[r].result, result);
        if (members[r].result != result) printf("     rank %d: %s\n", r, members[r].problem);
    }
}

static void all_free(void) {
    int r;
    for (r = 0; r < MAX_RANKS; r++) amp_optimizer_free(&members[r].opt);
}

/* ------------------------------------------------------------- the model, and its gradients */

/* Of several chunks, of one, of a part of one, empty, frozen. */
static const size_t sizes[NUM_TENSORS] = {5 * CHUNK + 100, 777, 0, CHUNK, 3 * CHUNK - 1, 2000};
enum { FROZEN = 3, NORM = 1, LEAST = 5 * CHUNK + 100 };
static float initial[NUM_TENSORS][LEAST], masters[NUM_TENSORS][LEAST];
static const char *const names[NUM_TENSORS] = {"large", "norm", "empty", "frozen", "middle", NULL};

static struct {
    amp_dtype type;
    int       micro, clip, planted, kind; /* planted: the step and micro-batch of an overflow */
    size_t    other;                      /* a rank that has something else, plus one: what   */
    int       what, plain;                /* plain: SGD without momentum                      */
    char      path[128];
    amp_report_desc watch;
    uint64_t  first_step;
} task;

static size_t total_size(void) {
    size_t i, n = 0;
    for (i = 0; i < NUM_TENSORS; i++) n += sizes[i];
    return n;
}

/* Elements [first, first + n) of the gradient of a micro-batch, which depends on its number alone. Chunks are so
   unlike that the norm tells in which order they are added, and elements that sums do. */
static void gradient(void *to, int step, int number, int tensor, size_t first, size_t n) {
    const uint64_t seed = (uint64_t)(1 + step * 1000 + number * 10 + tensor) << 32;
    size_t         i;
    for (i = 0; i < n; i++) {
        uint64_t    at = (seed + first + i) * 0x9e3779b97f4a7c15u;
        const float x  = (float)(int32_t)(random_next(&at) >> 8) * 1.1920929e-7f - 1.0f;
        const int   by = -3 - (int)((first + i) / CHUNK % 3) * 7 - 3 * (int)(random_next(&at) % 6);
        store(to, task.type, i, (first + i) % 11 ? ldexpf(x, by) : -0.0f);
    }
    if (task.planted == step * 100 + number && tensor == 4 && 40000 >= first && 40000 - first < n)
        store_bits(to, task.type, 40000 - first, task.type == AMP_F16 ? 0x7c00 : 0x7f80);
}

static amp_optimizer_desc desc_of(member *m, int count) {
    amp_optimizer_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.dtype              = task.type;
    desc.kind               = task.kind ? (amp_kind)task.kind : AMP_KIND_ADAMW;
    desc.momentum           = task.plain ? 0.0 : 0.9;
    desc.weight_decay       = 0.01f;
    desc.scaler.init_scale  = 1024.0f;
    desc.scaler.growth_interval = 3;
    desc.max_norm           = task.clip ? 0.01f : 0.0f;
    desc.first_step         = task.first_step;
    desc.problem            = m->problem;
    desc.report             = task.watch.every ? &task.watch : NULL;
    desc.allocator.allocate_fn = counting_alloc;
    desc.allocator.release_fn  = plain_free;
    desc.allocator.user        = m;
    if (count) {
        m->ranks.rank   = m->rank;
        m->ranks.count  = count;
        m->ranks.reduce_fn = count > 1 ? meet : NULL;
        m->ranks.user   = m;
        desc.ranks      = &m->ranks;
    }
    return desc;
}

/* In what a rank differs from all others; WHATS: no more of it. */
enum {
    W_SIZE, W_NAME, W_GRAD, W_LR_SCALE, W_DECAY, W_KEEP_FP32, W_GRAD_TYPE, W_STATE, W_MODEL_TYPE,
    W_DTYPE, W_KIND, W_MOMENTUM, W_NESTEROV, W_BETA1, W_BETA2, W_EPS, W_MAX_NORM, W_SEED, W_FIRST_STEP,
    W_SCALE, W_GROWTH, W_INTERVAL, W_DISABLED, W_PRESET, W_SPIKE, WHATS,
    W_NO_REPORT /* which is no error */
};

static void differ_in_desc(amp_optimizer_desc *desc) {
    static const amp_report_desc spike = {100, 3.0f, 0.0f};
    if (task.what == W_DTYPE) desc->dtype = AMP_F16;
    if (task.what == W_KIND) desc->kind = AMP_KIND_SGD;
    if (task.what == W_MOMENTUM) desc->momentum = 0.5;
    if (task.what == W_NESTEROV) desc->nesterov = 1;
    if (task.what == W_BETA1) desc->beta1 = 0.8;
    if (task.what == W_BETA2) desc->beta2 = 0.95;
    if (task.what == W_EPS) desc->eps = 1e-6;
    if (task.what == W_MAX_NORM) desc->max_norm = 2.0f;
    if (task.what == W_SEED) desc->seed = (uint64_t)1 << 63;
    if (task.what == W_FIRST_STEP) desc->first_step = 5;
    if (task.what == W_SCALE) desc->scaler.init_scale = 2048.0f;
    if (task.what == W_GROWTH) desc->scaler.growth_factor = 4.0;
    if (task.what == W_INTERVAL) desc->scaler.growth_interval = 7;
    if (task.what == W_DISABLED) desc->scaler.disabled = 1;
    if (task.what == W_PRESET) desc->scaler.preset = AMP_PRESET_STATIC;
    if (task.what == W_SPIKE) desc->report = &spike;
    if (task.what == W_NO_REPORT) desc->report = NULL;
}

static void differ_in_tensor(amp_tensor *t, int i) {
    static amp_f16 model[LEAST];
    if (i == NUM_TENSORS - 1 && task.what == W_LR_SCALE) t->lr_scale = 0.5f;
    if (i != 4) return;
    if (task.what == W_SIZE) t->n--;
    if (task.what == W_NAME) t->name = "Middle";
    if (task.what == W_GRAD) t->grad_later = 0;
    if (task.what == W_DECAY) t->no_weight_decay = 1;
    if (task.what == W_KEEP_FP32) t->keep_fp32 = 1;
    if (task.what == W_GRAD_TYPE) t->grad_type = AMP_BF16;
    if (task.what == W_STATE) t->storage = &storages[SPLIT];
    if (task.what == W_MODEL_TYPE) t->model = model, t->model_type = AMP_F16;
}

/* grads: NULL for shards, where a tensor needs no gradient of its own. */
static amp_result set_up(member *m, int count, float *const *grads) {
    const int          differs = task.other == (size_t)m->rank + 1;
    amp_optimizer_desc desc    = desc_of(m, count);
    amp_result         result;
    int                i;
    if (differs) differ_in_desc(&desc);
    result   = amp_optimizer_init(&m->opt, &desc);
    m->bytes = 0;
    for (i = 0; i < NUM_TENSORS && result == AMP_OK; i++) {
        amp_tensor t;
        memset(&t, 0, sizeof t);
        t.name       = names[i];
        t.n          = sizes[i];
        t.weight     = grads ? masters[i] : initial[i];
        t.keep_fp32  = i == NORM;
        t.grad_later = i != FROZEN;
        if (grads) t.grad = i == FROZEN ? NULL : grads[i];
        if (differs) differ_in_tensor(&t, i);
        result = amp_optimizer_add(&m->opt, &t);
    }
    return result == AMP_OK ? prepare_scaled(&m->opt) : result;
}

static amp_result take_step(amp_optimizer *opt) {
    return amp_optimizer_step(opt, 0.01f);
}

/* Elements [first, first + n) of the sum of count micro-batches in fp32, as the rank that has them adds it. */
static void gradients(float *to, int step, int number, int count, int tensor, size_t first, size_t n) {
    void  *half = malloc(LEAST * 4);
    float *all  = (float *)malloc(LEAST * sizeof(float) * (size_t)count), x[MAX_MICRO];
    size_t i;
    int    k;
    for (k = 0; k < count; k++) {
        gradient(half, step, number + k, tensor, first, n);
        for (i = 0; i < n; i++) all[(size_t)k * n + i] = load(half, task.type, i);
    }
    for (i = 0; i < n; i++) {
        for (k = 0; k < count; k++) x[k] = all[(size_t)k * n + i];
        to[i] = sum_of(x, count);
    }
    free(half);
    free(all);
}

/* A tensor of 4 elements, which one rank has, frozen and without an fp32 master. */
static amp_result few_elements(member *m) {
    static const amp_storage sr   = {AMP_FORMAT_SR, AMP_FORMAT_F32};
    static float             x[4] = {1, 2, 3, 4};
    amp_optimizer_desc       desc = desc_of(m, the_crew.count);
    amp_tensor               t    = {0};
    float                    weight[4];
    memcpy(weight, x, sizeof weight);
    t.n       = 4;
    t.weight  = weight;
    t.storage = &sr;
    CHECK_EQ_INT(amp_optimizer_init(&m->opt, &desc), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_add(&m->opt, &t), AMP_OK);
    return prepare_scaled(&m->opt);
}

static void step_frozen(member *m) {
    m->result = few_elements(m);
    if (m->result == AMP_OK) m->result = amp_optimizer_step(&m->opt, 0.5f);
}
static void refresh_few(member *m) {
    m->result = few_elements(m);
    if (m->result == AMP_OK) m->result = amp_optimizer_refresh(&m->opt);
}

TEST(ranks_without_elements, "law 17: what is refused to one rank is refused to one that has no elements, which would "
                             "go on, and wait for the others in its next meeting") {
    task.type = AMP_BF16;
    together(3, step_frozen);
    all_are(3, AMP_ERROR_BAD_STATE);
    all_free();
    together(3, refresh_few);
    all_are(3, AMP_ERROR_BAD_STATE);
    CHECK(strstr(members[0].problem, "load a state") && !strstr(members[0].problem, "rebind")); /* which shards refuse */
    all_free();
}

/* What every rank is sent: its range of each micro-batch, in the order of numbers; or in every other step, where
   ranks are a power of two that divides them, one sum of each rank. */
static amp_result shard_step(member *m, int step) {
    const int     count  = the_crew.count;
    const int     sums   = step % 2 && task.micro % count == 0 && (count & (count - 1)) == 0;
    const int     each   = sums ? task.micro / count : 1, parts = task.micro / each;
    const size_t  stride = LEAST + 3, bytes = stride * (each > 1 ? 4 : amp_dtype_size(task.type));
    unsigned char *half  = (unsigned char *)malloc(bytes * (size_t)parts);
    amp_result    result = AMP_OK;
    int           i, k;
    for (i = 0; i < NUM_TENSORS && result == AMP_OK; i++) {
        size_t first, n;
        if (i == FROZEN) continue;
        amp_optimizer_range(&m->opt, i, &first, &n);
        for (k = 0; k < parts && result == AMP_OK; k++) {
            void *at = half + (size_t)k * bytes;
            if (each > 1) gradients((float *)at, step, k * each, each, i, first, n);
            else gradient(at, step, k, i, first, n);
        }
        if (result == AMP_OK)
            result = amp_optimizer_accumulate(&m->opt, i, half, stride, (size_t)parts, each > 1 ? AMP_F32 : task.type);
    }
    free(half);
    return result == AMP_OK ? take_step(&m->opt) : result;
}

/* --------------------------------------------------------------------------- the reference */

/* One optimizer without shards, whose fp32 gradients are summed by a plain loop. */
static float *sums[NUM_TENSORS];

static void plain_step(member *m, int step) {
    int i;
    for (i = 0; i < NUM_TENSORS; i++) gradients(sums[i], step, 0, task.micro, i, 0, sizes[i]);
    CHECK_EQ_INT(take_step(&m->opt), AMP_OK);
}

enum { STEPS = 4 };

static void shard_run(member *m) {
    int step;
    m->result = set_up(m, the_crew.count, NULL);
    for (step = 0; step < STEPS && m->result == AMP_OK; step++) m->result = shard_step(m, step);
}

static member reference;

static void plain_run(void) {
    int step, i;
    amp_optimizer_free(&reference.opt);
    memset(&reference, 0, sizeof reference);
    memcpy(masters, initial, sizeof masters);
    for (i = 0; i < NUM_TENSORS; i++)
        sums[i] = (float *)realloc(sums[i], (sizes[i] + 1) * sizeof(float));
    CHECK_EQ_INT(set_up(&reference, 0, sums), AMP_OK);
    for (step = 0; step < STEPS; step++) plain_step(&reference, step);
}

/* Do all ranks together have what the reference has? */
static void compare(int count) {
    amp_status a, b;
    int        i, r;
    CHECK_EQ_INT(amp_optimizer_status(&reference.opt, &a), AMP_OK);
    for (r = 0; r < count; r++) {
        CHECK_EQ_INT(amp_optimizer_status(&members[r].opt, &b), AMP_OK);
        CHECK_EQ_F64(a.norm, b.norm);
        CHECK_EQ_F32(a.clip_factor, b.clip_factor);
        CHECK_EQ_F32(a.loss_scale, b.loss_scale);
        CHECK_EQ_U64(a.steps, b.steps);
        CHECK_EQ_U64(a.skipped, b.skipped);
        for (i = 0; i < NUM_TENSORS; i++) {
            const amp_optimizer *opt = &members[r].opt;
            const size_t         size = i == NORM ? 4 : size_of(task.type);
            size_t               first, n;
            amp_optimizer_range(opt, i, &first, &n);
            CHECK_MEM(amp_optimizer_master(opt, i),
                      amp_optimizer_master(&reference.opt, i) + first, n * sizeof(float));
            CHECK_MEM((const char *)amp_optimizer_model(opt, i) + first * size,
                      (const char *)amp_optimizer_model(&reference.opt, i) + first * size, n * size);
        }
    }
}

/* The loss, and so its scale, may be rank 0's alone. */
static void one_asks(member *m) {
    static float       weights[MAX_RANKS][4];
    amp_optimizer_desc desc = desc_of(m, m->all->count);
    amp_tensor         t;
    memset(&t, 0, sizeof t);
    desc.scaler.init_scale = 0.0f;
    t.n          = 4;
    t.weight     = weights[m->rank];
    t.grad_later = 1;
    m->result    = amp_optimizer_init(&m->opt, &desc);
    if (m->result == AMP_OK) m->result = amp_optimizer_add(&m->opt, &t);
    if (m->result == AMP_OK) m->result = amp_optimizer_prepare(&m->opt);
    if (m->result == AMP_OK && m->rank == 0) (void)amp_optimizer_loss_scale(&m->opt);
    if (m->result == AMP_OK) m->result = take_step(&m->opt);
}

TEST(one_has_the_loss, "manual: of several ranks one may ask for the loss scale for all") {
    together(2, one_asks);
    all_are(2, AMP_OK);
    all_free();
}

TEST(same_bits, "issue of ranks, law 7: masters, models, norm, clip factor and scale have the same bits on 1 to 8 "
                "ranks as in one optimizer, whose gradients a plain loop adds as a tree") {
    int count;
    static const int runs[] = {6, 7, 8, 12};
    size_t k;
    skip_if_emulated();
    for (k = 0; k < sizeof runs / sizeof *runs; k++) {
        task.kind    = k % 2 ? AMP_KIND_SGD : AMP_KIND_ADAMW;
        task.micro   = runs[k];
        task.type    = k % 3 == 0 ? AMP_F16 : AMP_BF16;
        task.clip    = k % 3 == 0;
        task.planted = 2 * 100 + 5; /* in the third step, by one micro-batch alone */
        plain_run();
        for (count = 1; count <= MAX_RANKS; count++) {
            if (test_state.quick && count > 4 && count < 8) continue;
            together(count, shard_run);
            all_are(count, AMP_OK);
            compare(count);
            all_free();
        }
    }
    task.kind = task.clip = task.planted = 0;
}

TEST(ranges, "amp.h ranks: a range is one run of whole chunks, every element has one owner, and a tensor's "
             "chunks are shared out to within one") {
    static const size_t three[3][NUM_TENSORS] = {{0, 777, 0, CHUNK, 0, 0}, /* of the smaller ones, */
                                                 {0, 0, 0, 0, 0, 2000},    /* each of which is one rank's */
                                                 {0, 0, 0, 0, 0, 0}};
    int count, r, i;
    skip_if_emulated();
    for (count = 1; count <= MAX_RANKS; count++) {
        int    owners[NUM_TENSORS][LEAST / CHUNK + 1];
        size_t c, most = 0;
        memset(owners, 0, sizeof owners);
        together(count, shard_run);
        all_are(count, AMP_OK);
        for (r = 0; r < count; r++) {
            size_t own = 0;
            for (i = 0; i < NUM_TENSORS; i++) {
                const size_t chunks = (sizes[i] + CHUNK - 1) / CHUNK;
                size_t       first, n, mine;
                amp_optimizer_range(&members[r].opt, i, &first, &n);
                mine = (n + CHUNK - 1) / CHUNK;
                CHECK(first % CHUNK == 0 || n == 0);
                CHECK(n % CHUNK == 0 || first + n == sizes[i]);
                CHECK(mine == chunks / (size_t)count || mine == chunks / (size_t)count + 1);
                for (c = first / CHUNK; n && c < first / CHUNK + mine; c++) owners[i][c]++;
                if (count == 3 && sizes[i] <= CHUNK) CHECK_EQ_U64(n, three[r][i]);
                own += n;
            }
            most = own > most ? own : most;
        }
        for (i = 0; i < NUM_TENSORS; i++)
            for (c = 0; c < (sizes[i] + CHUNK - 1) / CHUNK; c++) CHECK_EQ_INT(owners[i][c], 1);
        CHECK(most < total_size() / (size_t)count + 2 * CHUNK);
        all_free();
    }
}

enum { BUCKETS = 12, WIDE = 9 * CHUNK, BIAS = 384 };
static float wide[2 * BUCKETS][WIDE];

static void prepare_layers(member *m) {
    amp_optimizer_desc desc = desc_of(m, the_crew.count);
    amp_tensor         t;
    int                i;
    memset(&t, 0, sizeof t);
    m->result = amp_optimizer_init(&m->opt, &desc);
    for (i = 0; i < 2 * BUCKETS && m->result == AMP_OK; i++) {
        t.n          = i % 2 ? BIAS : WIDE;
        t.weight     = wide[i];
        t.grad_later = 1;
        m->result    = amp_optimizer_add(&m->opt, &t);
    }
    if (m->result == AMP_OK) m->result = prepare_scaled(&m->opt);
}

TEST(balance, "issue of ranks: of any layers in a row a rank has at most a chunk, and the biases, more than its share, "
              "so that an exchange of them keeps all links busy") {
    int count, r, i, k;
    skip_if_emulated();
    task.type = AMP_F16;
    for (count = 2; count <= MAX_RANKS; count++) {
        together(count, prepare_layers);
        all_are(count, AMP_OK);
        for (r = 0; r < count; r++)
            for (i = 0; i < BUCKETS; i++) {
                size_t own = 0, all = 0;
                for (k = 2 * i; k < 2 * BUCKETS; k++) {
                    size_t first, n;
                    amp_optimizer_range(&members[r].opt, k, &first, &n);
                    own += n;
                    all += k % 2 ? BIAS : WIDE;
                    if (k % 2 == 0) continue;
                    CHECK(own <= all / (size_t)count + CHUNK + BUCKETS * BIAS);
                }
            }
        all_free();
    }
}

TEST(bytes, "issue of ranks: a rank has 2 + 12/N bytes of state for each parameter, 4/N to add up "
            "gradients in, and less than 40 KB of tables") {
    int count, r;
    task.type = AMP_BF16;
    for (count = 1; count <= MAX_RANKS; count *= 2) {
        together(count, shard_run);
        all_are(count, AMP_OK);
        for (r = 0; r < count; r++) {
            size_t own = 0, frozen = 0, n, first;
            int    i;
            for (i = 0; i < NUM_TENSORS; i++) {
                amp_optimizer_range(&members[r].opt, i, &first, &n);
                own += n;
                if (i == FROZEN) frozen = n;
            }
            CHECK(members[r].bytes >= 2 * total_size() + 16 * own - 12 * frozen);
            CHECK(members[r].bytes < 2 * total_size() + 16 * own - 12 * frozen + 40000);
        }
        all_free();
    }
}

static void prepare_only(member *m) { m->result = set_up(m, the_crew.count, NULL); }

static void same_rank(member *m) {
    m->rank   = 0;
    m->result = set_up(m, the_crew.count, NULL);
}

static void rank_1_twice(member *m) {
    if (m->rank == 2) m->rank = 1;
    m->result = set_up(m, the_crew.count, NULL);
}

TEST(tables, "amp.h ranks: prepare tells MISMATCH on all ranks if one has other tensors or numbers, or "
             "if two have one rank") {
    task.type  = AMP_BF16;
    task.other = 3;
    for (task.what = 0; task.what < WHATS; task.what++) {
        task.plain = task.what == W_GRAD; /* where no moments tell */
        task.kind  = task.plain ? AMP_KIND_SGD : 0;
        together(3, prepare_only);
        all_are(3, AMP_ERROR_MISMATCH);
        if (members[0].result == AMP_OK) printf("     what %d\n", task.what);
        CHECK(strstr(members[0].problem, "other tensors") != NULL);
        CHECK(strstr(members[0].problem, "max_norm") != NULL);
        CHECK(amp_optimizer_model(&members[0].opt, 0) == NULL); /* it is not prepared */
        all_free();
    }
    task.other = 0;
    together(2, same_rank);
    all_are(2, AMP_ERROR_MISMATCH);
    CHECK(strstr(members[0].problem, "amp_ranks.rank is 0") != NULL);
    together(3, rank_1_twice);
    all_are(3, AMP_ERROR_MISMATCH);
    CHECK(strstr(members[2].problem, "amp_ranks.rank is 1") != NULL);
    together(2, prepare_only);
    all_are(2, AMP_OK);
    all_free();
}

/* Ranks whose seeds differ, with a weight and a model of theirs, and a weight that prepare would spoil. */
static amp_bf16 own_models[MAX_RANKS][8];
static float    own_weights[MAX_RANKS][8];
static void differing_seeds(member *m) {
    static const amp_storage sr = {AMP_FORMAT_SR, AMP_FORMAT_F32};
    amp_optimizer_desc desc = desc_of(m, the_crew.count);
    amp_tensor         t    = {0};
    desc.seed    = m->rank == 1;
    t.n          = 4;
    t.grad_later = 1;
    t.weight     = own_weights[m->rank];
    t.model      = own_models[m->rank];
    t.model_type = AMP_BF16;
    m->result    = amp_optimizer_init(&m->opt, &desc);
    if (m->result == AMP_OK) m->result = amp_optimizer_add(&m->opt, &t);
    t.weight += 4;
    t.model   = own_models[m->rank] + 4;
    t.storage = &sr;
    if (m->result == AMP_OK) m->result = amp_optimizer_add(&m->opt, &t);
    if (m->result == AMP_OK) m->result = amp_optimizer_prepare(&m->opt);
}

TEST(nothing_written, "law 9: where prepare tells MISMATCH, it has written to no model and no weight of any rank") {
    static amp_bf16 models[MAX_RANKS][8];
    static float    weights[MAX_RANKS][8];
    int             r, i;
    task.type = AMP_BF16;
    for (r = 0; r < 3; r++)
        for (i = 0; i < 8; i++) {
            models[r][i].bits = (uint16_t)(0xa500 + 16 * r + i);
            weights[r][i]     = (float)(1 + r + i);
        }
    memcpy(own_models, models, sizeof models);
    memcpy(own_weights, weights, sizeof weights);
    together(3, differing_seeds);
    all_are(3, AMP_ERROR_MISMATCH);
    CHECK_MEM(own_models, models, sizeof models);
    CHECK_MEM(own_weights, weights, sizeof weights);
    all_free();
}

TEST(which_element, "amp.h ranks: the stats of a rank are those of its part, with the index in the "
                    "whole tensor") {
    amp_grad_stats stats;
    int       r, found = 0;
    task.type    = AMP_F16;
    task.micro   = 6;
    task.planted = (STEPS - 1) * 100 + 5;
    together(3, shard_run);
    all_are(3, AMP_OK);
    for (r = 0; r < 3; r++) {
        size_t first, n;
        amp_optimizer_range(&members[r].opt, 4, &first, &n);
        CHECK_EQ_INT(amp_optimizer_stats(&members[r].opt, 4, &stats), AMP_OK);
        CHECK_EQ_U64(stats.nonfinite, 40000 >= first && 40000 - first < n);
        CHECK_EQ_U64(stats.first_nonfinite, stats.nonfinite ? 40000 : sizes[4]);
        found += stats.nonfinite != 0;
    }
    CHECK_EQ_INT(found, 1);
    all_free();
    task.planted = 0;
}

/* ------------------------------------------------------------------------------- moments */

/* n floats, and behind them memory that nobody may touch. */
static size_t page_bytes(size_t n) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (n * sizeof(float) + page - 1) / page * page;
}
static float *guarded(size_t n) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = page_bytes(n);
    char        *at   = (char *)mmap(NULL, bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != (char *)MAP_FAILED && mprotect(at + bytes, page, PROT_NONE) == 0);
    return (float *)(void *)(at + bytes) - n;
}
static void unguard(float *x, size_t n) {
    const size_t bytes = page_bytes(n);
    CHECK_EQ_INT(munmap((char *)(x + n) - bytes, bytes + (size_t)sysconf(_SC_PAGESIZE)), 0);
}

/* Two tensors, one behind the other; masters and moments of all ranks. */
enum { PAIR = 2, PAIR_TOTAL = LEAST + 3 * CHUNK - 1 };
static const int  pair_tensor[PAIR] = {0, 4};
static float      pair_weight[PAIR_TOTAL], pair_moment[2][PAIR_TOTAL];
static amp_status pair_status; /* where they were */
static int        pair_fewer;  /* moments of bf16 */

static amp_result begin_pair(member *m, uint64_t first_step, float scale) {
    static const amp_storage fewer = {AMP_FORMAT_F32, AMP_FORMAT_BF16};
    amp_optimizer_desc       desc  = desc_of(m, the_crew.count);
    amp_tensor               t;
    amp_result               result;
    int                      k;
    desc.first_step        = first_step;
    desc.scaler.init_scale = scale;
    desc.storage           = pair_fewer ? &fewer : NULL;
    result                 = amp_optimizer_init(&m->opt, &desc);
    for (k = 0; k < PAIR && result == AMP_OK; k++) {
        memset(&t, 0, sizeof t);
        t.n          = sizes[pair_tensor[k]];
        t.weight     = pair_weight + (k ? LEAST : 0);
        t.grad_later = 1;
        result       = amp_optimizer_add(&m->opt, &t);
    }
    return result == AMP_OK ? prepare_scaled(&m->opt) : result;
}

static void pair_steps(member *m, int from, int to) {
    void  *grads = malloc(LEAST * 4);
    size_t first, n;
    int    k;
    for (; from < to && m->result == AMP_OK; from++) {
        for (k = 0; k < PAIR && m->result == AMP_OK; k++) {
            amp_optimizer_range(&m->opt, k, &first, &n);
            gradient(grads, from, 0, pair_tensor[k], first, n);
            m->result = amp_optimizer_accumulate(&m->opt, k, grads, 0, 1, task.type);
        }
        if (m->result == AMP_OK) m->result = take_step(&m->opt);
    }
    free(grads);
}

/* This rank's ranges of moments from pair_moment (set) or to it, of which the optimizer has one or two; memory that no call
   goes beyond. */
static void pair_moments(member *m, int set) {
    const int two     = task.kind == AMP_KIND_ADAMW;
    float    *range[2] = {NULL, NULL};
    size_t    first, n;
    int       k, j;
    for (k = 0; k < PAIR && m->result == AMP_OK; k++) {
        amp_optimizer_range(&m->opt, k, &first, &n);
        for (j = 0; j <= two; j++) {
            range[j] = guarded(n);
            if (set) memcpy(range[j], pair_moment[j] + (k ? LEAST : 0) + first, n * sizeof(float));
        }
        m->result = set ? amp_optimizer_set_moments(&m->opt, k, range[0], range[1])
                        : amp_optimizer_moments(&m->opt, k, range[0], range[1]);
        for (j = 0; j <= two; j++) {
            if (!set) memcpy(pair_moment[j] + (k ? LEAST : 0) + first, range[j], n * sizeof(float));
            unguard(range[j], n);
        }
    }
}

/* Steps 0 to STEPS, and what is there then; two steps more; another optimizer that takes them. */
static void pair_run(member *m) {
    m->result = begin_pair(m, 0, 1024.0f);
    pair_steps(m, 0, STEPS);
    pair_moments(m, 0);
}
static void pair_more(member *m) { pair_steps(m, STEPS, STEPS + 2); }
static void pair_goes_on(member *m) {
    size_t before;
    m->result = begin_pair(m, pair_status.steps, pair_status.loss_scale);
    before    = m->bytes;
    pair_moments(m, 1);
    CHECK_EQ_U64(m->bytes, before);
    pair_more(m);
}

/* Masters of all ranks. */
static void pair_weights(int count, float *to) {
    size_t first, n;
    int    r, k;
    for (r = 0; r < count; r++)
        for (k = 0; k < PAIR; k++) {
            amp_optimizer_range(&members[r].opt, k, &first, &n);
            memcpy(to + (k ? LEAST : 0) + first, amp_optimizer_master(&members[r].opt, k), n * sizeof(float));
        }
}

TEST(moments, "manual: in shards amp_optimizer_moments gives this rank's range, and set_moments takes it, no float more and no "
              "memory: on any number of ranks a run goes on with the same bits, with moments of fp32 and bf16") {
    static const int kinds[] = {AMP_KIND_ADAMW, AMP_KIND_SGD, AMP_KIND_LION};
    static float     wanted[PAIR_TOTAL], got[PAIR_TOTAL];
    int              way, count;
    task.type = AMP_BF16;
    for (way = 0; way < 6; way++) {
        pair_fewer = way % 2;
        task.kind  = kinds[way / 2];
        memcpy(pair_weight, initial[0], sizeof initial[0]);
        memcpy(pair_weight + LEAST, initial[4], (PAIR_TOTAL - LEAST) * sizeof(float));
        together(3, pair_run);
        all_are(3, AMP_OK);
        CHECK_EQ_INT(amp_optimizer_status(&members[2].opt, &pair_status), AMP_OK);
        pair_weights(3, pair_weight);
        together(3, pair_more);
        all_are(3, AMP_OK);
        pair_weights(3, wanted);
        all_free();
        for (count = 1; count <= 4; count++) {
            together(count, pair_goes_on);
            all_are(count, AMP_OK);
            pair_weights(count, got);
            all_free();
            CHECK_MEM(got, wanted, sizeof got);
        }
    }
    task.kind = 0;
}

/* An optimizer of which one tensor is so short that most ranks have nothing of it. */
static void short_begins(member *m) {
    static float       weight[8];
    amp_optimizer_desc desc = desc_of(m, the_crew.count);
    amp_tensor         t;
    desc.first_step = 3;
    memset(&t, 0, sizeof t);
    t.n          = 8;
    t.name       = "short";
    t.weight     = weight;
    t.grad_later = 1;
    m->result    = amp_optimizer_init(&m->opt, &desc);
    if (m->result == AMP_OK) m->result = amp_optimizer_add(&m->opt, &t);
    if (m->result == AMP_OK) m->result = prepare_scaled(&m->opt);
}
static void short_step(member *m) { m->result = take_step(&m->opt); }
static void short_sets(member *m) {
    static const float moments[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    size_t             first, n;
    amp_optimizer_range(&m->opt, 0, &first, &n);
    m->result = amp_optimizer_set_moments(&m->opt, 0, n ? moments : NULL, n ? moments : NULL);
    if (m->result == AMP_OK) m->result = take_step(&m->opt);
}

TEST(moments_forgotten, "law 17: where first_step is above 0 and moments were not set, each rank says so, also one whose range is "
                        "empty: none waits for others") {
    int r;
    together(3, short_begins);
    all_are(3, AMP_OK);
    together(3, short_step);
    all_are(3, AMP_ERROR_BAD_STATE);
    for (r = 0; r < 3; r++) CHECK(strstr(members[r].problem, "tensor 0 (short): after amp_optimizer_set_steps"));
    together(3, short_sets);
    all_are(3, AMP_OK);
    all_free();
}

/* --------------------------------------------------------------------------------- files */

static char folder[96];

static const char *path_of(const char *name) {
    static char paths[4][128];
    static int  next;
    char       *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void use(const char *name) { snprintf(task.path, sizeof task.path, "%s/%s", folder, name); }

static int file_exists(const char *path) {
    struct stat s;
    return stat(path, &s) == 0;
}

static int mode_of(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 ? (int)(s.st_mode & 0777) : -1;
}

static unsigned char *file_bytes(const char *path, size_t *size) {
    FILE          *file  = fopen(path, "rb");
    unsigned char *bytes = (unsigned char *)malloc(8 << 20);
    *size                = file && bytes ? fread(bytes, 1, 8 << 20, file) : 0;
    if (file) fclose(file);
    return bytes;
}

static void copy_file(const char *from, const char *to) {
    size_t         n;
    unsigned char *bytes = file_bytes(from, &n);
    FILE          *file  = fopen(to, "wb");
    CHECK(file && fwrite(bytes, 1, n, file) == n);
    if (file) fclose(file);
    free(bytes);
}

static void same_files(const char *a, const char *b) {
    size_t         n, m;
    unsigned char *x = file_bytes(a, &n), *y = file_bytes(b, &m);
    CHECK(n > 100);
    CHECK_EQ_U64(n, m);
    if (n == m) CHECK_MEM(x, y, n);
    free(x);
    free(y);
}

/* In place of the C library's: what one rank (plus one; 0: none) finds at a path, and which time from now that
   rank 0 flushes a directory it cannot. */
static struct {
    int         rank, error, unflushed;
    const char *path, *instead;
} planted;

/* A file of which nothing can be read, and whose close leaves an errno of its own. */
#if defined(__linux__)
static ssize_t unread(void *cookie, char *to, size_t n) {
    (void)cookie, (void)to, (void)n;
    errno = EIO;
    return -1;
}
static int loud_close(void *cookie) {
    (void)cookie;
    errno = EAGAIN;
    return 0;
}
static FILE *unreadable(void) {
    cookie_io_functions_t functions = {unread, NULL, NULL, loud_close};
    return fopencookie(NULL, "rb", functions);
}
#else
static FILE *unreadable(void) {
    errno = EIO;
    return NULL;
}
#endif

FILE *fopen(const char *path, const char *mode) {
    const int writes = mode[0] == 'w' ? O_WRONLY | O_CREAT | O_TRUNC : strchr(mode, '+') ? O_RDWR : O_RDONLY;
    int       file;
    if (planted.rank && planted.rank == this_rank + 1 && writes == O_RDONLY && strcmp(path, planted.path) == 0) {
        errno = planted.error;
        if (planted.error) return NULL;
        if (!planted.instead) return unreadable();
        path = planted.instead;
    }
    file = open(path, writes, 0666);
    return file < 0 ? NULL : fdopen(file, mode);
}

int fsync(int file) {
    struct stat st;
    if (this_rank != 0 || fstat(file, &st) != 0 || !S_ISDIR(st.st_mode) || !planted.unflushed ||
        --planted.unflushed)
        return 0;
    errno = EIO;
    return -1;
}

static void run_and_save(member *m) {
    shard_run(m);
    if (m->result == AMP_OK) m->result = amp_optimizer_save_file(&m->opt, task.path);
}
static void only_save(member *m) {
    m->result = amp_optimizer_save_file(&m->opt, task.path);
    m->error  = errno;
}
static void load_alone(member *m) { m->result = amp_optimizer_load_file(&m->opt, task.path); }
static void only_load(member *m) {
    m->result = set_up(m, the_crew.count, NULL);
    if (m->result == AMP_OK) m->result = amp_optimizer_load_file(&m->opt, task.path);
}
static void go_on(member *m) {
    int step;
    for (step = STEPS; step < 2 * STEPS && m->result == AMP_OK; step++)
        m->result = shard_step(m, step);
}

/* In TMPDIR, or build/tests. */
static int lowest; /* free file number: what saves and loads open, they close */

static int lowest_file(void) {
    const int file = dup(0);
    close(file);
    return file;
}

static void begin_files(void) {
    const char *dir = getenv("TMPDIR");
    if (!dir || !dir[0] || strlen(dir) > 60) {
        mkdir("build", 0777);
        mkdir("build/tests", 0777);
        dir = "build/tests";
    }
    snprintf(folder, sizeof folder, "%s/ranks_%ld", dir, (long)getpid());
    CHECK_EQ_INT(mkdir(folder, 0777), 0);
    lowest     = lowest_file();
    task.type  = AMP_F16;
    task.micro = 6;
    task.clip  = 1;
    task.planted = 1 * 100 + 2;
}

static void end_files(void) {
    char command[128];
    CHECK_EQ_INT(lowest_file(), lowest);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    CHECK_EQ_INT(system(command), 0);
    task.clip = task.planted = 0;
    task.first_step = 0;
}

/* Another rank, which has found a sum of squares. */
typedef struct met_rank { double norm2; int calls; size_t count; } met_rank;
static amp_result meet_whole(void *user, double *sums, size_t num_sums, uint32_t *maxima, size_t num_maxima) {
    met_rank *other = (met_rank *)user;
    other->calls++;
    other->count = num_sums;
    *sums += other->norm2;
    return num_maxima != 2 || maxima[0] > 1 ? AMP_ERROR_WRITE : AMP_OK; /* it is no hash of prepare or of a file */
}

TEST(whole, "amp.h ranks: with whole only checks meet, over one double; prepare, rebind and files "
            "are as of one rank, for your own optimizer, too") {
    const char *file, *plain;
    int         own;
    begin_files();
    file = path_of("whole"), plain = path_of("plain");
    for (own = 0; own < 2; own++) {
        const float        scale = 65536.0f;
        float              w[2][4] = {{1, 2, 3, 4}, {1, 2, 3, 4}}, g[2][4], moved[4] = {5, 6, 7, 8};
        char               problem[AMP_PROBLEM_SIZE];
        met_rank           other;
        amp_ranks          ranks;
        amp_optimizer_desc desc;
        amp_optimizer      opt[2];
        amp_tensor         t;
        amp_status         status[2];
        size_t             first, n;
        int                k, i;
        memset(&other, 0, sizeof other);
        memset(&ranks, 0, sizeof ranks);
        memset(&desc, 0, sizeof desc);
        desc.problem = problem;
        desc.kind    = own ? AMP_KIND_OWN : AMP_KIND_ADAMW;
        ranks.whole  = 1;
        ranks.rank   = 7, ranks.count = -3; /* not read */
        desc.ranks   = &ranks;
        CHECK_EQ_INT(amp_optimizer_init(&opt[0], &desc), AMP_ERROR_INVALID_CONFIG);
        CHECK(strstr(problem, "reduce_fn") != NULL);
        ranks.reduce_fn = meet_whole;
        ranks.user   = &other;
        memset(&t, 0, sizeof t);
        t.n = 4;
        for (k = 0; k < 2; k++) {
            if (k) desc.ranks = NULL;
            t.weight = w[k], t.grad = g[k];
            for (i = 0; i < 4; i++) g[k][i] = scale * (float)(k && i == 3 ? 5 : i);
            CHECK_EQ_INT(amp_optimizer_init(&opt[k], &desc), AMP_OK);
            CHECK_EQ_INT(amp_optimizer_add(&opt[k], &t), AMP_OK);
            CHECK_EQ_INT(prepare_scaled(&opt[k]), AMP_OK);
        }
        CHECK_EQ_INT(other.calls, 0);
        CHECK(amp_optimizer_master(&opt[0], 0) == w[0]);
        amp_optimizer_range(&opt[0], 0, &first, &n);
        CHECK(first == 0 && n == 4);
        CHECK_EQ_INT(amp_optimizer_accumulate(&opt[0], 0, moved, 0, 1, AMP_F32),
                     AMP_ERROR_UNSUPPORTED);
        other.norm2 = 16.0 * (double)scale * (double)scale; /* 0 1 4 9 and this, or 0 1 4 25 */
        for (k = 0; k < 2; k++) {
            CHECK_EQ_INT(own ? amp_optimizer_check(&opt[k]) : amp_optimizer_step(&opt[k], 0.5f),
                         AMP_OK);
            if (own) CHECK_EQ_INT(amp_optimizer_end_step(&opt[k]), AMP_OK);
            CHECK_EQ_INT(amp_optimizer_status(&opt[k], &status[k]), AMP_OK);
        }
        CHECK_EQ_INT(other.calls, 1);
        CHECK_EQ_U64(other.count, 1);
        CHECK_EQ_F64(status[0].norm, status[1].norm);
        CHECK_EQ_U32(status[0].did_step, 1);
        CHECK_EQ_INT(amp_optimizer_rebind(&opt[0], 0, moved, NULL), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_save_file(&opt[0], file), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_load_file(&opt[1], file), AMP_OK);
        CHECK_EQ_F32(w[1][3], 8.0f);
        CHECK_EQ_INT(amp_optimizer_save_file(&opt[1], plain), AMP_OK);
        same_files(file, plain);
        CHECK_EQ_INT(amp_optimizer_load_file(&opt[0], plain), AMP_OK);
        CHECK_EQ_INT(other.calls, 1);
        amp_optimizer_free(&opt[0]);
        amp_optimizer_free(&opt[1]);
    }
    end_files();
}

TEST(sets, "issue of ranks: a set loads on any number of ranks, and on one it is saved again with "
           "the bytes of one optimizer's file; a run goes on with the same bits") {
    static const int counts[] = {4, 3, 1, 2};
    const size_t     most     = test_state.quick == 2 ? 2 : 4;
    size_t           k, j;
    int              step;
    begin_files();
    plain_run();
    CHECK_EQ_INT(amp_optimizer_save_file(&reference.opt, path_of("plain")), AMP_OK);
    for (k = 0; k < most; k++) {
        use("set");
        together(counts[k], run_and_save);
        all_are(counts[k], AMP_OK);
        all_free();
        for (j = test_state.quick == 2 ? 3 : 0; j < 4; j++) {
            use("set");
            together(counts[j], only_load);
            all_are(counts[j], AMP_OK);
            compare(counts[j]);
            use("again");
            together(counts[j], only_save);
            all_are(counts[j], AMP_OK);
            all_free();
            use("again"); /* by then of another number of ranks */
            together(1, only_load);
            all_are(1, AMP_OK);
            use("one");
            together(1, only_save);
            same_files(path_of("one"), path_of("plain"));
            all_free();
        }
    }
    for (step = STEPS; step < 2 * STEPS; step++) plain_step(&reference, step);
    for (k = 0; k < most; k++) { /* from one optimizer's file, too */
        use(k % 2 ? "plain" : "set");
        together(counts[k], only_load);
        all_are(counts[k], AMP_OK);
        together(counts[k], go_on);
        all_are(counts[k], AMP_OK);
        compare(counts[k]);
        all_free();
    }
    end_files();
}

TEST(reports, "amp.h report: each rank tells of its part, its own history is saved in its part, and the set "
              "loads on another number of ranks, too") {
    amp_report        report;
    amp_tensor_report tensor;
    int               r, found = 0;
    begin_files();
    task.watch.every = 1;
    use("r");
    together(3, run_and_save);
    all_are(3, AMP_OK);
    for (r = 0; r < 3; r++) {
        CHECK_EQ_INT(amp_optimizer_report(&members[r].opt, &report), AMP_OK);
        CHECK_EQ_U64(report.iterations, STEPS);
        CHECK_EQ_U64(report.overflows + report.asked, 1); /* elsewhere, or here */
        CHECK_EQ_INT(amp_optimizer_report_tensor(&members[r].opt, 4, &tensor), AMP_OK);
        found += tensor.overflows == 1;
    }
    CHECK_EQ_INT(found, 1);
    all_free();
    together(3, only_load);
    all_are(3, AMP_OK);
    for (r = 0, found = 0; r < 3; r++) {
        CHECK_EQ_INT(amp_optimizer_report(&members[r].opt, &report), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_report_tensor(&members[r].opt, 4, &tensor), AMP_OK);
        found += tensor.overflows == 1 && tensor.first_iteration == 2;
    }
    CHECK_EQ_INT(found, 1);
    all_free();
    together(2, only_load);
    all_are(2, AMP_OK);
    CHECK_EQ_INT(amp_optimizer_report(&members[1].opt, &report), AMP_OK);
    CHECK_EQ_U64(report.iterations, STEPS);
    all_free();
    task.watch.every = 0;
    end_files();
}

TEST(spikes, "law 17: ranks whose files have not all a report may not look for spikes, which one would find and another "
             "not, but where each rank reads all files") {
    begin_files();
    task.watch.every = 1;
    task.other       = 2;
    task.what        = W_NO_REPORT;
    use("s");
    together(2, run_and_save);
    all_are(2, AMP_OK);
    all_free();
    task.other = 0;
    together(2, only_load);
    all_are(2, AMP_OK);
    all_free();
    for (task.what = 0; task.what < 2; task.what++) {
        task.watch.spike_z    = task.what ? 3.0f : 0.0f;
        task.watch.spike_norm = task.what ? 0.0f : 100.0f;
        together(2, only_load);
        all_are(2, AMP_ERROR_MISMATCH);
        CHECK(strstr(members[1].problem, "report"));
        all_free();
        together(3, only_load);
        all_are(3, AMP_OK);
        all_free();
    }
    memset(&task.watch, 0, sizeof task.watch);
    end_files();
}

/* Two tensors, each on one of two ranks; in these iterations their gradients overflow. */
static const struct { unsigned overflows[2]; } lonely[] = {{{0x5, 0}}, {{0, 0x5}}, {{0x5, 0x2}}, {{0x2, 0x5}}};
static size_t the_lonely;

static void lonely_prepare(member *m) {
    static const amp_report_desc report  = {1, 0.0f, 0.0f};
    static float                 weights[MAX_RANKS][2][100];
    amp_optimizer_desc           desc    = desc_of(m, the_crew.count);
    amp_tensor                   t       = {0};
    int                          i;
    desc.report  = &report;
    t.n          = 100;
    t.grad_later = 1;
    m->result    = amp_optimizer_init(&m->opt, &desc);
    for (i = 0; i < 2 && m->result == AMP_OK; i++) {
        t.weight  = weights[m->rank][i];
        m->result = amp_optimizer_add(&m->opt, &t);
    }
    if (m->result == AMP_OK) m->result = prepare_scaled(&m->opt);
}
static void lonely_save(member *m) {
    int step, i, k;
    lonely_prepare(m);
    for (step = 0; step < STEPS && m->result == AMP_OK; step++) {
        for (i = 0; i < 2; i++) {
            float  grad[100];
            size_t first, n;
            amp_optimizer_range(&m->opt, i, &first, &n);
            CHECK_EQ_U64(n, i == m->rank ? 100 : 0);
            for (k = 0; k < 100; k++) grad[k] = lonely[the_lonely].overflows[i] >> step & 1 ? HUGE_VALF : 1.0f;
            if (m->result == AMP_OK) m->result = amp_optimizer_accumulate(&m->opt, i, grad, 0, 1, AMP_F32);
        }
        if (m->result == AMP_OK) m->result = take_step(&m->opt);
    }
    if (m->result == AMP_OK) m->result = amp_optimizer_save_file(&m->opt, task.path);
}
static void lonely_load(member *m) {
    lonely_prepare(m);
    if (m->result == AMP_OK) m->result = amp_optimizer_load_file(&m->opt, task.path);
}

TEST(reports_elsewhere, "manual: on another number of ranks a run goes on with the report that counts most overflows, and each "
                        "tensor with the one that counts most in it, whichever file is the last") {
    amp_iteration     history[STEPS];
    amp_report        report;
    amp_tensor_report tensor;
    size_t            count;
    int               r, i, ranks;
    begin_files();
    use("lonely");
    for (the_lonely = 0; the_lonely < sizeof lonely / sizeof *lonely; the_lonely++)
        for (ranks = 1; ranks <= 3; ranks += 2) {
            const int most = lonely[the_lonely].overflows[0] == 0x5 ? 0 : 1, other = lonely[the_lonely].overflows[!most] != 0;
            together(2, lonely_save);
            all_are(2, AMP_OK);
            all_free();
            together(ranks, lonely_load);
            all_are(ranks, AMP_OK);
            for (r = 0; r < ranks; r++) {
                CHECK_EQ_INT(amp_optimizer_report(&members[r].opt, &report), AMP_OK);
                CHECK_EQ_U64(report.iterations, STEPS);
                CHECK_EQ_U64(report.overflows, 2);
                CHECK_EQ_U64(report.asked, other);
                CHECK_EQ_INT(report.first_tensor, most);
                CHECK_EQ_U64(report.first_iteration, 1);
                CHECK_EQ_INT(report.most_tensor, most);
                CHECK_EQ_U64(report.most_overflows, 2);
                for (i = 0; i < 2; i++) {
                    CHECK_EQ_INT(amp_optimizer_report_tensor(&members[r].opt, i, &tensor), AMP_OK);
                    CHECK_EQ_U64(tensor.overflows, i == most ? 2 : other);
                    CHECK_EQ_U64(tensor.last_iteration, i == most ? 3 : 2 * other);
                }
                count = STEPS;
                CHECK_EQ_INT(amp_optimizer_history(&members[r].opt, history, &count), AMP_OK);
                CHECK_EQ_U64(count, STEPS);
                CHECK_EQ_INT(history[0].tensor, most);
                CHECK_EQ_INT(history[2].tensor, most);
            }
            all_free();
        }
    end_files();
}

TEST(names, "amp.h ranks: files are path.T.R-of-COUNT; a set goes when the next one is complete, "
            "and a second one of the same step is another edition") {
    begin_files();
    use("s");
    together(3, run_and_save);
    all_are(3, AMP_OK);
    CHECK(file_exists(path_of("s.4.0-of-3")) && file_exists(path_of("s.4.2-of-3")));
    CHECK_EQ_INT(chmod(path_of("s"), 0600), 0); /* of which they keep the mode, law 18 */
    together(3, only_save);
    all_are(3, AMP_OK);
    CHECK_EQ_INT(mode_of(path_of("s")), 0600);
    CHECK_EQ_INT(mode_of(path_of("s.4-1.0-of-3")), 0600);
    CHECK(!file_exists(path_of("s.4.0-of-3")) && !file_exists(path_of("s.4.2-of-3")));
    CHECK(file_exists(path_of("s.4-1.0-of-3")) && file_exists(path_of("s.4-1.2-of-3")));
    all_free();
    together(2, only_load);
    all_are(2, AMP_OK);
    together(2, go_on);
    together(2, only_save);
    all_are(2, AMP_OK);
    CHECK(!file_exists(path_of("s.4-1.0-of-3")) && !file_exists(path_of("s.4-1.2-of-3")));
    CHECK(file_exists(path_of("s.8.0-of-2")) && file_exists(path_of("s.8.1-of-2")));
    all_free();
    together(1, only_load);
    all_are(1, AMP_OK);
    together(1, only_save); /* one file again */
    all_are(1, AMP_OK);
    CHECK(!file_exists(path_of("s.8.0-of-2")) && !file_exists(path_of("s.8.1-of-2")));
    all_free();
    end_files();
}

static void overwrite(const char *path, size_t at, const void *bytes, size_t n) {
    FILE *file = fopen(path, "r+b");
    CHECK(file != NULL);
    if (!file) return;
    fseek(file, (long)at, SEEK_SET);
    CHECK_EQ_U64(fwrite(bytes, 1, n, file), n);
    fclose(file);
}

/* The sum of what stands from one place to another is there behind it (amp.h, >>impl state). */
static void seal(unsigned char *bytes, size_t from, size_t to) {
    uint64_t sum = 0, x;
    size_t   at;
    int      k;
    for (at = from; at < to; at += 8, sum ^= sum >> 32) {
        for (k = 7, x = 0; k >= 0; k--) x = x << 8 | bytes[at + (size_t)k];
        sum = (sum ^ x) * 0x9e3779b97f4a7c15u;
    }
    for (k = 0; k < 8; k++, sum >>= 8) bytes[to + (size_t)k] = (unsigned char)sum;
}

TEST(damaged, "law 18: what is wrong with a set is told on every rank, which all stay as they were") {
    unsigned char *bytes;
    size_t         n;
    begin_files();
    use("d");
    together(2, run_and_save);
    all_are(2, AMP_OK);
    all_free();
    bytes = file_bytes(path_of("d.4.1-of-2"), &n);

    overwrite(path_of("d.4.1-of-2"), n / 2, "\x55\xaa\x55", 3);
    together(2, only_load);
    CHECK_EQ_INT(members[1].result, AMP_ERROR_CORRUPT);
    CHECK_EQ_INT(members[0].result, AMP_ERROR_READ); /* which has read only its own */
    CHECK(strstr(members[0].problem, "another rank") != NULL);
    CHECK(strstr(members[1].problem, "d.4.1-of-2") != NULL);
    { /* nothing was taken over */
        amp_status s;
        CHECK_EQ_INT(amp_optimizer_status(&members[0].opt, &s), AMP_OK);
        CHECK_EQ_U64(s.steps, 0);
    }
    all_free();
    CHECK_EQ_INT(truncate(path_of("d.4.1-of-2"), (off_t)n / 3), 0);
    together(1, only_load);
    all_are(1, AMP_ERROR_TRUNCATED);
    all_free();
    CHECK_EQ_INT(remove(path_of("d.4.1-of-2")), 0);
    together(1, only_load);
    all_are(1, AMP_ERROR_NOT_FOUND);
    CHECK(strcmp(members[0].problem, "file d.4.1-of-2: there is no such file") == 0);
    all_free();
    { /* a part of another moment */
        FILE *file = fopen(path_of("d.4.1-of-2"), "wb");
        CHECK(file && fwrite(bytes, 1, n, file) == n);
        if (file) fclose(file);
    }
    together(2, only_load);
    all_are(2, AMP_OK);
    together(2, go_on);
    use("e");
    together(2, only_save);
    all_are(2, AMP_OK);
    all_free();
    CHECK_EQ_INT(rename(path_of("e.8.1-of-2"), path_of("d.4.1-of-2")), 0);
    use("d");
    together(1, only_load);
    all_are(1, AMP_ERROR_MISMATCH);
    CHECK(strstr(members[0].problem, "one moment") != NULL);
    all_free();
    together(2, only_load); /* of which a rank reads that part alone */
    CHECK_EQ_INT(members[1].result, AMP_ERROR_MISMATCH);
    CHECK(strstr(members[1].problem, "one moment") != NULL);
    CHECK_EQ_INT(members[0].result, AMP_ERROR_READ);
    all_free();
    plain_run(); /* one optimizer's file is no part */
    CHECK_EQ_INT(amp_optimizer_save_file(&reference.opt, path_of("d.4.1-of-2")), AMP_OK);
    together(2, only_load);
    CHECK_EQ_INT(members[1].result, AMP_ERROR_MISMATCH);
    CHECK_EQ_INT(members[0].result, AMP_ERROR_READ);
    all_free();
    CHECK_EQ_INT(truncate(path_of("d.4.1-of-2"), 0), 0);
    together(1, only_load);
    all_are(1, AMP_ERROR_TRUNCATED);
    all_free();
    use("d.4.0-of-2"); /* a part is not a state of one rank */
    together(1, only_load);
    all_are(1, AMP_ERROR_MISMATCH);
    CHECK(strstr(members[0].problem, "number of ranks is 2") != NULL);
    all_free();

    free(bytes);
    end_files();
}

/* Is the set that was saved in step 4 all there is? */
static void only_old_set(const unsigned char *before, size_t n) {
    size_t         m;
    unsigned char *bytes = file_bytes(path_of("u"), &m);
    CHECK_EQ_U64(n, m);
    if (n == m) CHECK_MEM(bytes, before, n);
    free(bytes);
    CHECK(file_exists(path_of("u.4.0-of-2")) && file_exists(path_of("u.4.1-of-2")));
    CHECK(!file_exists(path_of("u.4-1.0-of-2")) && !file_exists(path_of("u.4-1.1-of-2")));
}

static void scale_and_save(member *m) {
    if (m->rank == 1) CHECK_EQ_INT(amp_scaler_set_scale(amp_optimizer_scaler(&m->opt), 64.0f), AMP_OK);
    only_save(m);
}

TEST(unsaved, "law 18: a save that fails on one rank fails on all, leaves the set that was there, and "
              "nothing of its own; errno says why") {
    unsigned char *before;
    size_t         n;
    begin_files();
    use("u");
    together(2, run_and_save);
    all_are(2, AMP_OK);
    before = file_bytes(path_of("u"), &n);
    CHECK_EQ_INT(mkdir(path_of("u.4-1.1-of-2.new"), 0777), 0); /* a shard that cannot be written */
    together(2, only_save);
    all_are(2, AMP_ERROR_WRITE);
    only_old_set(before, n);
    CHECK_EQ_INT(rmdir(path_of("u.4-1.1-of-2.new")), 0);
    CHECK_EQ_INT(mkdir(path_of("u.new"), 0777), 0); /* what names the set */
    together(2, only_save);
    all_are(2, AMP_ERROR_WRITE);
    only_old_set(before, n);
    CHECK_EQ_INT(members[0].error, EEXIST); /* of what failed, whatever reduce_fn leaves */
    CHECK_EQ_INT(rmdir(path_of("u.new")), 0);
    CHECK_EQ_INT(symlink("round", path_of("round")), 0);
    use("round");
    together(2, only_save);
    all_are(2, AMP_ERROR_WRITE);
    CHECK(members[0].error == ELOOP && members[1].error == ELOOP);
    use("u");
    together(2, scale_and_save); /* a set that no other number of ranks could load */
    all_are(2, AMP_ERROR_MISMATCH);
    CHECK(strstr(members[0].problem, "loss scale") && strstr(members[1].problem, "loss scale"));
    only_old_set(before, n);
    all_free();
    free(before);
    end_files();
}

static int unheard_from; /* the meeting of a save after which rank 1 is gone */

static void save_unheard(member *m) {
    m->deaf = m->rank == 1 ? unheard_from : 0;
    m->slow = m->rank == 0 ? unheard_from : 0;
    only_save(m);
    m->deaf = m->slow = 0;
}

TEST(unheard, "law 18: where ranks fail to meet in a save, path names the old set or the new one, and that "
              "is whole") {
    static const char *const files[][4] = { /* the old set's, the new one's */
        {"u.4.0-of-2", "u.4.1-of-2", NULL, NULL},
        {"u.4.0-of-2", "u.4.1-of-2", "u.4-1.0-of-2", NULL}, /* rank 0 alone has written */
        {"u.4.0-of-2", "u.4.1-of-2", "u.4-1.0-of-2", "u.4-1.1-of-2"},
        {NULL, "u.4-1.1-of-2", "u.4-2.0-of-2", "u.4-2.1-of-2"}};
    int k, i;
    begin_files();
    use("u");
    together(2, run_and_save);
    all_are(2, AMP_OK);
    for (k = 0; k < 4; k++) {
        unheard_from = k + 1;
        together(2, save_unheard);
        CHECK_EQ_INT(members[0].result, k < 3 ? AMP_ERROR_CUDA : AMP_OK); /* by then path names it */
        CHECK_EQ_INT(members[1].result, AMP_ERROR_CUDA);
        for (i = 0; i < 4; i++) CHECK(!files[k][i] || file_exists(path_of(files[k][i])));
        together(2, load_alone);
        all_are(2, AMP_OK);
    }
    CHECK(!file_exists(path_of("u.4-1.0-of-2")));
    all_free();
    end_files();
}

static void save_missing(member *m) {
    m->misses = m->rank == unheard_from % 2 ? 1 + unheard_from / 2 : 0;
    only_save(m);
    m->misses = 0;
}

TEST(missed, "amp.h ranks: a rank whose reduce_fn fails in one meeting of a save tells the others in the next, and none waits for "
             "another; path names the old set or the new one, and that is whole") {
    unsigned char *before = NULL;
    size_t         n      = 0;
    begin_files();
    use("u");
    together(2, run_and_save);
    all_are(2, AMP_OK);
    before = file_bytes(path_of("u"), &n);
    for (unheard_from = 0; unheard_from < 8; unheard_from++) {
        const int meeting = 1 + unheard_from / 2, one = unheard_from % 2, first = the_crew.meetings;
        together(2, save_missing);
        CHECK_EQ_INT(the_crew.meetings - first, 4);
        CHECK_EQ_INT(members[one].result, AMP_ERROR_CUDA);
        CHECK_EQ_INT(members[!one].result, meeting < 4 ? AMP_ERROR_WRITE : AMP_OK);
        if (meeting < 4) CHECK(strstr(members[!one].problem, "another rank has failed") != NULL);
        if (meeting < 3 || (meeting == 3 && one == 0)) only_old_set(before, n); /* rank 0 has not named it */
        together(2, load_alone);
        all_are(2, AMP_OK);
    }
    all_free();
    free(before);
    end_files();
}

/* Saved twice in one step: what is there, and whether it loads. */
static void saved_and_loads(const char *part) {
    CHECK(file_exists(path_of(part)));
    together(2, only_load);
    all_are(2, AMP_OK);
    all_free();
    together(1, only_load);
    all_are(1, AMP_OK);
    all_free();
}

TEST(agreed, "law 18: a set that is saved twice in one step stays whole where one rank cannot read path, or "
             "sees it one save old") {
    static const int errors[] = {EMFILE, ESTALE, EACCES, 0};
    unsigned char   *before;
    size_t           k, n;
    int              opens;
    for (k = test_state.quick == 2 ? 2 : 0; k < sizeof errors / sizeof *errors; k++) {
        begin_files();
        use("u");
        together(2, run_and_save);
        all_are(2, AMP_OK);
        copy_file(path_of("u"), path_of("old"));
        copy_file(path_of("u"), path_of("u.4.2-of-2")); /* of no set */
        if (!errors[k]) together(2, only_save); /* u names another set than old */
        planted.path    = task.path;
        planted.instead = path_of("old");
        planted.error   = errors[k];
        planted.rank    = 2;
        together(2, only_save);
        planted.rank = 0;
        all_are(2, AMP_OK);
        CHECK(!file_exists(path_of("u.4.0-of-2")) && !file_exists(path_of("u.4.1-of-2")));
        CHECK_EQ_INT(remove(path_of("u.4.2-of-2")), 0);
        if (!errors[k]) {
            CHECK(file_exists(path_of("u.4-2.0-of-2")) && !file_exists(path_of("u.4-1.1-of-2")));
            all_free();
            saved_and_loads("u.4-2.1-of-2");
            end_files();
            continue;
        }
        before       = file_bytes(path_of("u"), &n); /* and rank 0 fails, before anything is written */
        planted.rank = 1;
        for (opens = 0; opens < 3; opens++) { /* not at all; then what no byte can be read of */
            planted.error   = opens ? 0 : errors[k];
            planted.instead = opens < 2 ? folder : NULL;
            together(2, only_save);
            CHECK_EQ_INT(members[0].result, AMP_ERROR_READ);
            CHECK(strstr(members[0].problem, "cannot be read") != NULL);
            CHECK_EQ_INT(members[0].error, opens == 0 ? errors[k] : opens == 1 ? EISDIR : EIO);
            CHECK_EQ_INT(members[1].result, AMP_ERROR_WRITE);
            CHECK(strstr(members[1].problem, "another rank") != NULL);
            CHECK(!file_exists(path_of("u.4.0-of-2")) && !file_exists(path_of("u.4-2.1-of-2")));
            CHECK(file_exists(path_of("u.4-1.0-of-2")));
        }
        planted.error = errors[k];
        all_free();
        together(1, shard_run);
        together(1, only_save); /* one file replaces what it cannot read, and removes nothing */
        all_are(1, AMP_OK);
        planted.rank = 0;
        all_free();
        CHECK_EQ_INT(remove(path_of("u")), 0);
        CHECK_EQ_INT(rename(path_of("old"), path_of("u")), 0);
        overwrite(path_of("u"), 0, before, n);
        free(before);
        saved_and_loads("u.4-1.1-of-2");
        end_files();
    }
}

TEST(named, "law 18: a set that path names stays whole though the save has failed, and one rank sees path as "
            "it was") {
    begin_files();
    use("u");
    together(2, run_and_save);
    all_are(2, AMP_OK);
    copy_file(path_of("u"), path_of("old"));
    planted.path      = task.path;
    planted.instead   = path_of("old");
    planted.error     = 0;
    planted.rank      = 2;
    planted.unflushed = 2; /* that of its part, then that of path */
    together(2, only_save);
    all_are(2, AMP_ERROR_WRITE);
    planted.rank = 0;
    CHECK_EQ_INT(planted.unflushed, 0);
    CHECK(file_exists(path_of("u.4-1.0-of-2")) && file_exists(path_of("u.4-1.1-of-2")));
    all_free();
    together(2, only_load);
    all_are(2, AMP_OK);
    all_free();
    end_files();
}

TEST(unseen, "law 18: a set that is saved again in its step stays whole where rank 0 does not find path") {
    unsigned char *before;
    size_t         n;
    int            unwritten;
    begin_files();
    use("u");
    together(2, run_and_save);
    all_are(2, AMP_OK);
    before        = file_bytes(path_of("u"), &n);
    planted.path  = task.path;
    planted.error = ENOENT;
    for (unwritten = 0; unwritten < 2; unwritten++) { /* nor could rank 0 write */
        if (unwritten) CHECK_EQ_INT(mkdir(path_of("u.4.0-of-2.new"), 0777), 0);
        planted.rank = 1;
        together(2, only_save);
        planted.rank = 0;
        all_are(2, AMP_ERROR_WRITE);
        CHECK(strstr(members[1].problem, "rank 0 does not see") != NULL);
        only_old_set(before, n);
    }
    free(before);
    CHECK_EQ_INT(rmdir(path_of("u.4.0-of-2.new")), 0);
    together(2, only_save);
    all_are(2, AMP_OK);
    all_free();
    saved_and_loads("u.4-1.1-of-2");
    end_files();
}

/* Ranks from which a call is refused before they meet, in one way each. */
static int refusal;

static void refused_save(member *m) {
    const int   one   = m->rank == 1;
    amp_scaler *s     = amp_optimizer_scaler(&m->opt);
    const float scale = s->scale;
    m->fail_at        = one && refusal == 0 ? m->allocations + 1 : 0;
    if (one && refusal == 1) s->growth_factor = 0.5;
    m->result = amp_optimizer_save_file(&m->opt, !one || refusal < 2 ? task.path : refusal == 2 ? folder : NULL);
    if (one && refusal == 1) s->growth_factor = 2.0;
    CHECK_EQ_F32(s->scale, scale);
    m->fail_at = 0;
}

static void refused_load(member *m) {
    const int one = m->rank == 0;
    m->fail_at    = one && refusal == 0 ? m->allocations + 1 : 0;
    m->result     = amp_optimizer_load_file(&m->opt, !one || refusal == 0 ? task.path : refusal == 1 ? folder : NULL);
    m->fail_at    = 0;
}

static void refused_prepare(member *m) {
    static amp_scaler  none;
    amp_optimizer_desc desc = desc_of(m, the_crew.count);
    amp_tensor         t;
    m->allocations = 0;
    m->fail_at     = m->rank == 1 && refusal < 2 ? refusal + 1 : 0;
    if (m->rank == 1 && refusal == 2) desc.shared_scaler = &none;
    m->result = amp_optimizer_init(&m->opt, &desc);
    memset(&t, 0, sizeof t);
    t.n          = LEAST;
    t.weight     = initial[0];
    t.grad_later = 1;
    if (m->result == AMP_OK) m->result = amp_optimizer_add(&m->opt, &t);
    if (m->rank != 1 || refusal != 3) t.weight = initial[4];
    if (m->result == AMP_OK) m->result = amp_optimizer_add(&m->opt, &t);
    if (m->result == AMP_OK) m->result = amp_optimizer_prepare(&m->opt);
    m->fail_at = 0;
}

TEST(refusals, "amp.h ranks: a rank that prepare, save_file or load_file refuses brings its error where ranks "
               "meet, so that no other waits for it") {
    static const amp_result saves[] = {AMP_ERROR_OUT_OF_MEMORY, AMP_ERROR_INVALID_CONFIG, AMP_ERROR_UNSUPPORTED,
                                       AMP_ERROR_INVALID_ARGUMENT};
    static const amp_result loads[] = {AMP_ERROR_OUT_OF_MEMORY, AMP_ERROR_READ, AMP_ERROR_INVALID_ARGUMENT};
    static const amp_result prepares[] = {AMP_ERROR_OUT_OF_MEMORY, AMP_ERROR_OUT_OF_MEMORY,
                                          AMP_ERROR_NOT_INITIALIZED, AMP_ERROR_OVERLAP};
    unsigned char *before;
    size_t         n;
    begin_files();
    use("u");
    together(2, run_and_save);
    all_are(2, AMP_OK);
    before = file_bytes(path_of("u"), &n);
    for (refusal = 0; refusal < 4; refusal++) {
        together(2, refused_save);
        CHECK_EQ_INT(members[1].result, saves[refusal]);
        CHECK_EQ_INT(members[0].result, AMP_ERROR_WRITE);
        CHECK(strstr(members[0].problem, "another rank") != NULL);
        only_old_set(before, n);
    }
    for (refusal = 0; refusal < 3; refusal++) {
        together(2, refused_load);
        CHECK_EQ_INT(members[0].result, loads[refusal]);
        CHECK_EQ_INT(members[1].result, AMP_ERROR_READ);
        CHECK(strstr(members[1].problem, "another rank") != NULL);
    }
    together(2, load_alone); /* they are as they were */
    all_are(2, AMP_OK);
    all_free();
    for (refusal = 0; refusal < 4; refusal++) {
        together(3, refused_prepare);
        CHECK_EQ_INT(members[1].result, prepares[refusal]);
        CHECK_EQ_INT(members[0].result, AMP_ERROR_MISMATCH);
        CHECK_EQ_INT(members[2].result, AMP_ERROR_MISMATCH);
        CHECK(strstr(members[0].problem, "another rank") != NULL);
        CHECK(amp_optimizer_model(&members[0].opt, 0) == NULL);
        all_free();
    }
    free(before);
    end_files();
}

static void ask_one(member *m) { /* of what ranks may have of their own, before and after a step */
    m->result = set_up(m, the_crew.count, NULL);
    if (m->rank == 0) CHECK(amp_optimizer_lr_ptr(&m->opt) != NULL);
    if (m->result == AMP_OK) m->result = amp_optimizer_save_file(&m->opt, task.path);
}
static void skip_one(member *m) {
    static const float more = 1.0f; /* a gradient beside those of the optimizer */
    shard_run(m);
    if (m->result == AMP_OK && m->rank == 0) {
        amp_optimizer_scaler(&m->opt)->found_inf = 1;
        m->result = amp_scaler_check(amp_optimizer_scaler(&m->opt), &more, AMP_F32, 1);
    }
    if (m->result == AMP_OK) m->result = amp_optimizer_save_file(&m->opt, task.path);
}
static void one_step(member *m) { m->result = shard_step(m, STEPS); }
static void step_as_set(member *m) { m->result = amp_optimizer_step_graph(&m->opt); }

TEST(of_one_rank, "amp.h state: what one rank alone has written or asked for before a save is there after "
                  "a load on any number of ranks") {
    static const int counts[] = {2, 1, 3};
    amp_status       status;
    int              k, r;
    begin_files();
    use("asked");
    together(2, ask_one);
    all_are(2, AMP_OK);
    all_free();
    use("skip");
    together(2, skip_one);
    all_are(2, AMP_OK);
    all_free();
    for (k = 0; k < 3; k++) {
        use("skip");
        together(counts[k], only_load);
        all_are(counts[k], AMP_OK);
        CHECK_EQ_U64(amp_optimizer_scaler(&members[0].opt)->checked, 1);
        together(counts[k], one_step);
        all_are(counts[k], AMP_OK);
        for (r = 0; r < counts[k]; r++) {
            CHECK_EQ_INT(amp_optimizer_status(&members[r].opt, &status), AMP_OK);
            CHECK_EQ_U64(status.skipped, 2); /* with the planted one */
            CHECK_EQ_U64(status.steps, STEPS - 1);
        }
        all_free();
        use("asked");
        together(counts[k], only_load);
        all_are(counts[k], AMP_OK);
        if (counts[k] == 1) together(1, step_as_set);
        all_are(counts[k], AMP_OK);
        all_free();
    }
    end_files();
}

static void begin_and_save(member *m) { /* before step 1 */
    m->result = set_up(m, the_crew.count, NULL);
    if (m->result == AMP_OK) m->result = amp_optimizer_save_file(&m->opt, task.path);
}

TEST(two_beginnings, "law 12: parts of two runs that were saved before step 1, and differ in one weight, are no set") {
    const float was = initial[0][0];
    int         count;
    begin_files();
    use("a");
    together(2, begin_and_save);
    all_are(2, AMP_OK);
    all_free();
    use("b");
    initial[0][0] += 0.5f;
    together(2, begin_and_save);
    initial[0][0] = was;
    all_are(2, AMP_OK);
    all_free();
    for (count = 1; count <= 3; count++) {
        use("b");
        together(count, only_load);
        all_are(count, AMP_OK);
        all_free();
    }
    copy_file(path_of("b.0.0-of-2"), path_of("a.0.0-of-2"));
    use("a");
    for (count = 1; count <= 3; count++) {
        together(count, only_load);
        all_are(count, AMP_ERROR_MISMATCH);
        CHECK(strstr(members[count - 1].problem, "one moment") != NULL);
        all_free();
    }
    end_files();
}

TEST(two_runs, "law 12: parts of two runs in the same step are no set, also where each rank reads one") {
    int count;
    begin_files();
    use("a");
    together(2, run_and_save);
    all_are(2, AMP_OK);
    all_free();
    use("b");
    task.micro = 7;
    together(2, run_and_save);
    all_are(2, AMP_OK);
    all_free();
    copy_file(path_of("b.4.1-of-2"), path_of("a.4.1-of-2"));
    use("a");
    for (count = 1; count <= 2; count++) {
        together(count, only_load);
        all_are(count, AMP_ERROR_MISMATCH);
        CHECK(strstr(members[count - 1].problem, "one moment") != NULL);
        all_free();
    }
    end_files();
}

TEST(hostile, "law 18: a file that names a set of more than 65536 ranks, or an edition beyond 2^62, is refused "
              "at once, one whose files are not there says so by name, and each is written over") {
    static const unsigned char numbers[6][8] = {{0xff, 0xff, 0xff, 0x7f}, {1, 0, 1}, {0, 0, 0, 0, 0, 0, 0, 64}, {0, 0, 1},
                                                {1, 0, 0, 0, 0, 0, 32}, {1, 0, 0, 0, 0, 0, 32}}; /* 2^62; 2^53 + 1 */
    static const char *const   files[3] = {"h.4.0-of-65536", "h.9007199254740993.0-of-2", "h.4-9007199254740993.0-of-2"};
    static const int           at[6]    = {48, 48, 40, 48, 32, 40};
    unsigned char *bytes;
    char           text[128];
    size_t         n, i;
    begin_files();
    use("h");
    together(2, run_and_save);
    all_are(2, AMP_OK);
    for (i = 0; i < 6; i++) {
        bytes = file_bytes(path_of("h"), &n);
        CHECK_EQ_U64(n, 72);
        memcpy(bytes + at[i], numbers[i], 8);
        seal(bytes, 32, 64);
        overwrite(path_of("h"), 0, bytes, 72);
        free(bytes);
        all_free();
        together(1, only_load);
        all_are(1, i < 3 ? AMP_ERROR_CORRUPT : AMP_ERROR_NOT_FOUND);
        snprintf(text, sizeof text, "file %s: there is no such file", files[i % 3]);
        CHECK(i < 3 || strcmp(members[0].problem, text) == 0);
        all_free();
        together(2, shard_run);
        together(2, only_save);
        all_are(2, AMP_OK);
        if (i == 5) CHECK(file_exists(path_of("h.4-9007199254740994.0-of-2"))); /* the next edition */
    }
    all_free();
    end_files();
}

/* Is there a file of rank 0 of 2, of such a step? */
static int late_file(uint64_t step, const char *edition) {
    char name[64];
    snprintf(name, sizeof name, "s.%llu%s.0-of-2", (unsigned long long)step, edition);
    return file_exists(path_of(name));
}

/* On so many ranks the set loads, with that step. */
static void late_load(int count, uint64_t step) {
    amp_status s;
    task.first_step = 0;
    together(count, only_load);
    all_are(count, AMP_OK);
    CHECK_EQ_INT(amp_optimizer_status(&members[count - 1].opt, &s), AMP_OK);
    CHECK_EQ_U64(s.steps + s.skipped, step);
}

TEST(late_steps, "law 18: at steps that no double tells, up to first_step's end: files of a set have all digits in their "
                 "names, a second save leaves its own files, the set loads on any number of ranks, and the next one removes it") {
    static const uint64_t first[] = {UINT64_C(8999999999999998), UINT64_C(9007199254740992), UINT64_C(9007199254740993),
                                     UINT64_C(1234567890123456789), UINT64_MAX / 2};
    size_t                k;
    task.kind = AMP_KIND_SGD; /* AdamW would want moments */
    for (k = test_state.quick == 2 ? 4 : 0; k < sizeof first / sizeof *first; k += test_state.quick ? 2 : 1) {
        const uint64_t step = first[k] + STEPS;
        begin_files();
        task.first_step = first[k];
        use("s");
        together(2, run_and_save);
        all_are(2, AMP_OK);
        CHECK(late_file(step, ""));
        together(2, only_save);
        all_are(2, AMP_OK);
        CHECK(!late_file(step, "") && late_file(step, "-1"));
        all_free();
        late_load(1, step);
        all_free();
        late_load(2, step);
        together(2, go_on);
        together(2, only_save);
        all_are(2, AMP_OK);
        CHECK(!late_file(step, "-1") && late_file(step + STEPS, ""));
        all_free();
        late_load(3, step + STEPS);
        all_free();
        end_files();
    }
    task.kind = 0;
}

TEST(longer, "state-file.md: bytes behind the end are an error, in the file of a rank and in that which names a set") {
    size_t n;
    begin_files();
    use("l");
    together(2, run_and_save);
    all_are(2, AMP_OK);
    all_free();
    free(file_bytes(path_of("l.4.1-of-2"), &n));
    overwrite(path_of("l.4.1-of-2"), n, "12345678", 8);
    together(2, only_load);
    CHECK_EQ_INT(members[1].result, AMP_ERROR_CORRUPT);
    CHECK_EQ_INT(members[0].result, AMP_ERROR_READ);
    all_free();
    together(1, only_load);
    all_are(1, AMP_ERROR_CORRUPT);
    CHECK(strcmp(members[0].problem, "file l.4.1-of-2: there are bytes behind its end") == 0);
    all_free();
    CHECK_EQ_INT(truncate(path_of("l.4.1-of-2"), (off_t)n), 0);
    overwrite(path_of("l"), 72, "1", 1);
    together(2, only_load);
    all_are(2, AMP_ERROR_CORRUPT);
    CHECK(strcmp(members[0].problem, "there are bytes behind its end") == 0);
    all_free();
    CHECK_EQ_INT(truncate(path_of("l"), 72), 0);
    together(2, only_load);
    all_are(2, AMP_OK);
    all_free();
    end_files();
}

static void accumulate_and_load(member *m) { /* half of a step, which is then given up */
    static const float huge[CHUNK] = {1e4f, 1e4f, 1e4f};
    size_t             first, n;
    amp_optimizer_range(&m->opt, 5, &first, &n);
    if (n) m->result = amp_optimizer_accumulate(&m->opt, 5, huge, 0, 1, AMP_F32);
    if (m->result == AMP_OK) m->result = amp_optimizer_load_file(&m->opt, task.path);
    if (m->result == AMP_OK) go_on(m);
}

TEST(given_up, "law 12: a load between two micro-batches leaves nothing of them") {
    int step;
    skip_if_emulated();
    begin_files();
    plain_run();
    for (step = STEPS; step < 2 * STEPS; step++) plain_step(&reference, step);
    use("g");
    together(2, run_and_save);
    all_are(2, AMP_OK);
    together(2, accumulate_and_load);
    all_are(2, AMP_OK);
    compare(2);
    all_free();
    end_files();
}

static bool refuse(void *user, const void *data, size_t num_bytes) {
    (void)user;
    (void)data;
    (void)num_bytes;
    return false;
}

static bool read_file(void *user, void *data, size_t num_bytes) { return fread(data, 1, num_bytes, (FILE *)user) == num_bytes; }

/* One rank whose state cannot be saved by a callback is its own affair: no meeting. */
static void save_nothing(member *m) { m->result = amp_optimizer_save(&m->opt, refuse, NULL); }

TEST(callbacks, "amp.h ranks: save and load with callbacks are of one rank, and do not meet") {
    task.type = AMP_BF16;
    together(2, shard_run);
    together(1, save_nothing);
    all_are(1, AMP_ERROR_WRITE);
    all_free();
    begin_files();
    use("s");
    together(2, run_and_save);
    all_are(2, AMP_OK);
    { /* a callback cannot open the files that this one names */
        FILE *file = fopen(task.path, "rb");
        CHECK_EQ_INT(amp_optimizer_load(&members[0].opt, read_file, file), AMP_ERROR_MISMATCH);
        CHECK(strstr(members[0].problem, "names a set") != NULL);
        if (file) fclose(file);
    }
    all_free();
    end_files();
}
/* ---------------------------------------------------------- a long run, kills, a disk that is full

   A small network that learns for as long as it is let: rows of an embedding, ReLU, a layer, squared error, in
   fp16. What a micro-batch has, and which overflows, depends on the number of the step alone. Each rank computes
   all micro-batches; the embedding has two chunks. */

enum { WORDS = 1100, DIM = 16, HIDDEN = 24, OUTPUTS = 4, BATCH = 4, MICRO = 4, NET = 5, NET_BIAS = 2, NET_RANKS = 4 };
static const size_t net_sizes[NET] = {WORDS * DIM, DIM * HIDDEN, HIDDEN, HIDDEN * OUTPUTS, OUTPUTS};
enum { NET_N = WORDS * DIM + DIM * HIDDEN + HIDDEN + HIDDEN * OUTPUTS + OUTPUTS, NET_DENSE = WORDS * DIM };

typedef struct net {
    float   weights[NET_N], models[NET_N], sums[NET_N];
    amp_f16 parts[MICRO][NET_N];
    size_t  rows[MICRO * BATCH]; /* of the embedding, whose gradients the last step had */
} net;
static net       nets[NET_RANKS + 2];  /* of the ranks, and of these: */
static member    net_plain, net_check; /* the run that never stops; who looks at what others have saved */
static int       net_count; /* ranks of the run; 0: a plain optimizer */
static uint64_t  net_at, net_end; /* steps from which to which it goes */

static net *net_of(const member *m) {
    return &nets[m == &net_plain ? NET_RANKS : m == &net_check ? NET_RANKS + 1 : m->rank];
}

static amp_result net_set_up(member *m, int count) {
    net               *w = net_of(m);
    amp_optimizer_desc desc;
    amp_result         result;
    uint64_t           rng = 44;
    size_t             i, at;
    amp_optimizer_free(&m->opt);
    memset(w->parts, 0, sizeof w->parts);
    memset(w->sums, 0, sizeof w->sums);
    memset(w->rows, 0, sizeof w->rows);
    for (i = 0; i < NET_N; i++) w->weights[i] = (float)(int32_t)(random_next(&rng) >> 8) * 0x1p-25f - 0.25f;
    desc = desc_of(m, count);
    desc.dtype                  = AMP_F16;
    desc.max_norm               = 1.0f;
    desc.scaler.init_scale      = 65536.0f;
    desc.scaler.growth_interval = 20; /* it comes to what overflows, again and again */
    result = amp_optimizer_init(&m->opt, &desc);
    for (i = at = 0; i < NET && result == AMP_OK; at += net_sizes[i++]) {
        amp_tensor t;
        memset(&t, 0, sizeof t);
        t.n          = net_sizes[i];
        t.weight     = w->weights + at;
        t.grad       = count ? NULL : w->sums + at;
        t.grad_later = count > 0;
        t.model      = w->models + at;
        t.model_type = i == NET_BIAS ? AMP_F32 : AMP_F16;
        t.storage    = i == 0 ? &storages[FP32_8BIT] : NULL;
        result       = amp_optimizer_add(&m->opt, &t);
    }
    return result == AMP_OK ? amp_optimizer_prepare(&m->opt) : result;
}

/* The gradients of one micro-batch, scaled. */
static void net_micro(net *w, uint64_t step, int k, float scale) {
    const amp_f16 *table = (const amp_f16 *)w->models;
    const float   *w1 = w->models + NET_DENSE, *b1 = w1 + DIM * HIDDEN, *w2 = b1 + HIDDEN;
    const amp_f16 *b2 = (const amp_f16 *)(w2 + HIDDEN * OUTPUTS);
    amp_f16       *g  = w->parts[k], *g1 = g + NET_DENSE, *gb1 = g1 + DIM * HIDDEN;
    amp_f16       *g2 = gb1 + HIDDEN, *gb2 = g2 + HIDDEN * OUTPUTS;
    amp_f16        x[BATCH * DIM], h[BATCH * HIDDEN], dy[BATCH * OUTPUTS], dh[BATCH * HIDDEN], dx[BATCH * DIM];
    float          y[BATCH * HIDDEN];
    uint64_t       rng = (step * MICRO + (uint64_t)k) * 0x9e3779b97f4a7c15u;
    size_t        *rows = w->rows + k * BATCH, i, j, row;
    row = random_next(&rng) % WORDS;
    for (i = 0; i < BATCH; i++, row = (row + 251) % WORDS) {
        memset(g + rows[i] * DIM, 0, DIM * sizeof *g);
        memcpy(x + i * DIM, table + row * DIM, DIM * sizeof *x);
        rows[i] = row;
    }
    amp_gemm(NULL, 0, 0, BATCH, HIDDEN, DIM, 1.0f, x, AMP_F16, 0, w1, AMP_F16, 0, 0.0f, y, AMP_F32, 0);
    for (i = 0; i < BATCH * HIDDEN; i++) h[i] = amp_f32_to_f16(y[i] + b1[i % HIDDEN] > 0 ? y[i] + b1[i % HIDDEN] : 0);
    amp_gemm(NULL, 0, 0, BATCH, OUTPUTS, HIDDEN, 1.0f, h, AMP_F16, 0, w2, AMP_F16, 0, 0.0f, y, AMP_F32, 0);
    for (i = 0; i < BATCH * OUTPUTS; i++) {
        const float noise = (float)(random_next(&rng) % 64) / 64.0f;
        const float want = (float)((rows[i / OUTPUTS] * 7 + i % OUTPUTS * 13) % 17) / 8.0f - 1.5f + noise;
        dy[i] = amp_f32_to_f16((y[i] + amp_f16_to_f32(b2[i % OUTPUTS]) - want) * scale);
    }
    amp_gemm(NULL, 1, 0, HIDDEN, OUTPUTS, BATCH, 1.0f, h, AMP_F16, 0, dy, AMP_F16, 0, 0.0f, g2, AMP_F16, 0);
    amp_gemm(NULL, 0, 1, BATCH, HIDDEN, OUTPUTS, 1.0f, dy, AMP_F16, 0, w2, AMP_F16, 0, 0.0f, dh, AMP_F16, 0);
    for (i = 0; i < BATCH * HIDDEN; i++)
        if (!h[i].bits) dh[i].bits = 0;
    amp_gemm(NULL, 1, 0, DIM, HIDDEN, BATCH, 1.0f, x, AMP_F16, 0, dh, AMP_F16, 0, 0.0f, g1, AMP_F16, 0);
    amp_gemm(NULL, 0, 1, BATCH, DIM, HIDDEN, 1.0f, dh, AMP_F16, 0, w1, AMP_F16, 0, 0.0f, dx, AMP_F16, 0);
    memcpy(gb1, dh, HIDDEN * sizeof *gb1); /* of one example: enough to learn */
    memcpy(gb2, dy, OUTPUTS * sizeof *gb2);
    for (i = 0; i < BATCH; i++) memcpy(g + rows[i] * DIM, dx + i * DIM, DIM * sizeof *g);
    j = random_next(&rng);
    if (j % 256 == 0) g1[j / 256 % (DIM * HIDDEN)].bits = 0x7c00;
}

/* Where gradients of the step are: in the rows of all micro-batches, and behind the embedding. */
static void net_sum(net *w, size_t from, size_t n) {
    float  x[MICRO];
    size_t i, k;
    for (i = from; i < from + n; i++) {
        for (k = 0; k < MICRO; k++) x[k] = amp_f16_to_f32(w->parts[k][i]);
        w->sums[i] = sum_of(x, MICRO);
    }
}

/* Models are whole again after a step or a load, by the ranges of the others. */
static amp_result net_gather(member *m) {
    const amp_ranks *ranks = m->opt.desc.ranks;
    net             *w = net_of(m);
    double           nothing = 0.0;
    size_t           first, n, at;
    amp_result       result;
    int              i, r;
    if (!ranks || ranks->count < 2) return AMP_OK;
    result = meet(m, &nothing, 1, NULL, 0); /* all have written theirs */
    for (r = 0; r < ranks->count && result == AMP_OK; r++)
        for (i = 0, at = 0; r != m->rank && i < NET; at += net_sizes[i++]) {
            const size_t size = i == NET_BIAS ? sizeof(float) : sizeof(amp_f16);
            amp_optimizer_range(&members[r].opt, i, &first, &n);
            memcpy((char *)(w->models + at) + first * size, (char *)(nets[r].models + at) + first * size, n * size);
        }
    return result == AMP_OK ? meet(m, &nothing, 1, NULL, 0) : result; /* and read */
}

static amp_result net_step(member *m, uint64_t step) {
    net             *w     = net_of(m);
    const float      scale = amp_optimizer_loss_scale(&m->opt);
    const amp_ranks *ranks = m->opt.desc.ranks;
    amp_result       result = AMP_OK;
    size_t           first, n, at, old[MICRO * BATCH];
    int              i, k;
    memcpy(old, w->rows, sizeof old);
    for (k = 0; k < MICRO; k++) net_micro(w, step, k, scale);
    if (!ranks) {
        for (k = 0; k < MICRO * BATCH; k++) memset(w->sums + old[k] * DIM, 0, DIM * sizeof(float));
        for (k = 0; k < MICRO * BATCH; k++) net_sum(w, w->rows[k] * DIM, DIM);
        net_sum(w, NET_DENSE, NET_N - NET_DENSE);
    }
    for (i = 0, at = 0; ranks && i < NET && result == AMP_OK; at += net_sizes[i++]) {
        amp_optimizer_range(&m->opt, i, &first, &n);
        result = amp_optimizer_accumulate(&m->opt, i, w->parts[0] + at + first, NET_N, MICRO, AMP_F16);
    }
    if (result == AMP_OK) result = amp_optimizer_step(&m->opt, 0.002f);
    return result == AMP_OK ? net_gather(m) : result;
}

/* Steps from net_at to net_end, in an optimizer that knows nothing but what the last run has saved. */
static void net_resume(member *m) {
    m->result = net_set_up(m, net_count);
    if (m->result == AMP_OK && net_at) m->result = amp_optimizer_load_file(&m->opt, task.path);
    if (m->result == AMP_OK) m->result = net_gather(m);
}
static void net_go(member *m) {
    uint64_t step;
    net_resume(m);
    for (step = net_at; step < net_end && m->result == AMP_OK; step++) m->result = net_step(m, step);
}
static void net_go_and_save(member *m) {
    net_go(m);
    if (m->result == AMP_OK) m->result = amp_optimizer_save_file(&m->opt, task.path);
}
static void net_run(int count, uint64_t from, uint64_t to, void (*function)(member *m)) {
    net_count = count, net_at = from, net_end = to;
    together(count ? count : 1, function);
}

static uint64_t net_steps(const member *m) {
    amp_status status;
    CHECK_EQ_INT(amp_optimizer_status(&m->opt, &status), AMP_OK);
    return status.steps + status.skipped;
}

/* What a state has, as a file in memory. */
typedef struct kept { unsigned char bytes[1 << 18]; size_t size; } kept;
static bool put_kept(void *user, const void *data, size_t n) {
    kept *s = (kept *)user;
    if (n > sizeof s->bytes - s->size) return false;
    memcpy(s->bytes + s->size, data, n);
    s->size += n;
    return true;
}
static void save_to(kept *s, const member *m) {
    s->size = 0;
    CHECK_EQ_INT(amp_optimizer_save(&m->opt, put_kept, s), AMP_OK);
}

/* What is at task.path is what the run that never stops has in that step, or comes to. Returns the step. */
static uint64_t net_verify(uint64_t at_least) {
    static kept now, want;
    uint64_t     step;
    net_check.problem[0] = '\0';
    CHECK_EQ_INT(net_set_up(&net_check, 0), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_load_file(&net_check.opt, task.path), AMP_OK);
    if (net_check.problem[0]) printf("     %s\n", net_check.problem);
    CHECK(net_steps(&net_check) >= at_least);
    for (step = net_steps(&net_plain); step < net_steps(&net_check); step++)
        CHECK_EQ_INT(net_step(&net_plain, step), AMP_OK);
    CHECK_EQ_U64(net_steps(&net_plain), net_steps(&net_check));
    save_to(&now, &net_check);
    save_to(&want, &net_plain);
    CHECK_EQ_U64(now.size, want.size);
    CHECK_MEM(now.bytes, want.bytes, want.size);
    return step;
}

static void net_begin(const char *name) {
    begin_files();
    use(name);
    CHECK_EQ_INT(net_set_up(&net_plain, 0), AMP_OK);
}
static void net_end_all(void) {
    all_free();
    amp_optimizer_free(&net_plain.opt);
    amp_optimizer_free(&net_check.opt);
    end_files();
}

static long resident(void) { /* KiB; 0 where nobody says */
    FILE *file  = fopen("/proc/self/statm", "r");
    long  pages = 0, all;
    if (file && fscanf(file, "%ld %ld", &all, &pages) != 2) pages = 0;
    if (file) fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

TEST(long_run, "law 12: steps with overflows, planted and grown into, saved and loaded now and then by none, or "
               "another number of ranks or threads: at each save the bits of the run that never stopped; memory is flat") {
    const uint64_t steps = (uint64_t)test_amount("AMP_STEPS", test_state.quick ? 1500 : 20000), early = 10000;
    uint64_t       at = 0, rng = 5;
    long           runs = 0, memory = 0, now;
    amp_status     status;
    skip_if_emulated();
    net_begin("long");
    while (at < steps) {
        const uint64_t to = at + 1 + random_next(&rng) % 150;
#ifdef _OPENMP
        omp_set_num_threads(1 + (int)(random_next(&rng) % 3));
#endif
        net_run((int)(random_next(&rng) % (NET_RANKS + 1)), at, to, net_go_and_save);
        all_are(net_count ? net_count : 1, AMP_OK);
        all_free();
        CHECK_EQ_U64(net_verify(to), to);
        if (at < early && to >= early) memory = resident();
        at = to;
        runs++;
    }
    now = resident();
    CHECK_EQ_INT(amp_optimizer_status(&net_plain.opt, &status), AMP_OK);
    CHECK(status.skipped > at / 200 && status.skipped < at / 4);
    CHECK(amp_optimizer_scaler(&net_plain.opt)->growths > at / 500); /* so some overflows are of large scales */
    if (memory && steps >= 10 * early) CHECK(now - memory < (long)(steps / 1024)); /* less than a byte a step */
    printf("# %llu steps, %llu skipped, %ld runs; %ld KiB after %llu steps, %ld in the end\n", (unsigned long long)at,
           (unsigned long long)status.skipped, runs, memory, (unsigned long long)early, now);
    net_end_all();
}

static void net_until_killed(member *m) {
    net_resume(m);
    while (m->result == AMP_OK) {
        m->result = net_step(m, net_steps(m));
        if (m->result == AMP_OK) m->result = amp_optimizer_save_file(&m->opt, task.path);
    }
}

TEST(killed, "law 12: up to four ranks that save after each step, in a process that is killed: path has a whole set, "
             "with which another number of ranks goes on, again and again, with the bits of a run that never stopped") {
    const long rounds = test_amount("AMP_KILLS", test_state.quick ? 4 : 20);
    uint64_t   at, next;
    long       round, changed = 0;
    int        status;
    skip_if_emulated();
    net_begin("killed");
    net_run(3, 0, 2, net_go_and_save);
    all_are(3, AMP_OK);
    all_free();
    at = net_verify(2);
    for (round = 0; round < rounds; round++, at = next) {
        pid_t child;
        fflush(stdout);
        child = fork();
        if (child == 0) {
            net_run((int)(round % (NET_RANKS + 1)), at, 0, net_until_killed);
            _exit(1);
        }
        CHECK(child > 0);
        usleep((useconds_t)(3000 + 1000 * (round % 15) + 37 * (round % 19)));
        CHECK_EQ_INT(kill(child, SIGKILL), 0);
        CHECK_EQ_INT(waitpid(child, &status, 0), child);
        CHECK(WIFSIGNALED(status));
        next = net_verify(at);
        changed += next > at;
    }
    printf("# %ld kills, %ld of them after a save, up to step %llu\n", rounds, changed, (unsigned long long)at);
    net_end_all();
}

TEST(full_disk, "law 18: a disk that is full, wherever the save of a set comes to it: AMP_ERROR_WRITE on all ranks, the "
                "old set, all room again; the run goes on, and its next save has the bits") {
    unsigned long long room, before = 0, now = 0;
    uint64_t           at = 2;
    int                k, full = 0, saved = 0;
    skip_if_emulated();
    net_begin("full");
    net_run(2, 0, at, net_go_and_save);
    all_are(2, AMP_OK);
    all_free();
    for (k = 0; k <= 20; k++, at++) {
        const int count = k % (NET_RANKS + 1), ranks = count ? count : 1;
        room = (unsigned long long)k * 8192;
        net_run(count, at, at + 1, net_go);
        all_are(ranks, AMP_OK);
        disk_is_small(folder, &before);
        CHECK(disk_leaves(folder, room));
        together(ranks, only_save);
        CHECK(disk_is_free());
        if (members[0].result == AMP_OK) {
            all_are(ranks, AMP_OK);
            saved++;
        } else {
            all_are(ranks, AMP_ERROR_WRITE);
            if (disk_is_small(folder, &now)) CHECK_EQ_U64(now, before);
            CHECK_EQ_U64(net_verify(at), at);
            together(ranks, only_save);
            all_are(ranks, AMP_OK);
            full++;
        }
        all_free();
        CHECK_EQ_U64(net_verify(at + 1), at + 1);
    }
    CHECK(full > 4 && saved > 4);
    net_end_all();
}

#else
TEST(threads, "ranks are threads") { SKIP("no POSIX threads on this system"); }
#endif

int main(int argc, char **argv) {
    test_begin(argc, argv);
    RUN(misuse);
    RUN(orders);
    RUN(several_calls);
    RUN(all_frozen);
    RUN(no_shards);
#if HAVE_POSIX
    {
        int i;
        size_t k;
        pthread_mutex_init(&the_crew.lock, NULL);
        pthread_cond_init(&the_crew.changed, NULL);
        for (i = 0; i < NUM_TENSORS; i++)
            for (k = 0; k < sizes[i]; k++) initial[i][k] = random_value();
        task.type  = AMP_F16; /* of each test alone, too (--filter) */
        task.micro = 6;
    }
    RUN(ranks_without_elements);
    RUN(whole);
    RUN(ranges);
    RUN(balance);
    RUN(bytes);
    RUN(one_has_the_loss);
    RUN(same_bits);
    RUN(tables);
    RUN(nothing_written);
    RUN(which_element);
    RUN(moments);
    RUN(moments_forgotten);
    RUN(sets);
    RUN(reports);
    RUN(spikes);
    RUN(reports_elsewhere);
    RUN(names);
    RUN(damaged);
    RUN(unsaved);
    RUN(unheard);
    RUN(missed);
    RUN(unseen);
    RUN(agreed);
    RUN(named);
    RUN(refusals);
    RUN(of_one_rank);
    RUN(two_runs);
    RUN(two_beginnings);
    RUN(hostile);
    RUN(late_steps);
    RUN(longer);
    RUN(given_up);
    RUN(callbacks);
    RUN(long_run);
    RUN(killed);
    RUN(full_disk);
    for (task.micro = 0; task.micro < NUM_TENSORS; task.micro++) free(sums[task.micro]);
    amp_optimizer_free(&reference.opt);
#else
    RUN(threads);
#endif
    return test_end();
}
