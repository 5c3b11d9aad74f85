/* test_model.c - random calls, legal and illegal, on an optimizer: of any kind, alone or as one of
   several ranks, with sparse gradients, storage formats, reports, scalers of its
   own and shared, files. model.h says what each call returns and what is there afterwards, bit for
   bit. What it does not compute (masters and moments in low precision) a second, plain optimizer
   does: its run has no saves in between, no new addresses, no report and no ranks.

       build/tests/o2/model                  the tests
       build/tests/o2/model SEED COUNT       sequences SEED to SEED + COUNT - 1; one that fails is
                                             printed, without the calls that it does not need
       ... SEED COUNT FAULT                  allocations, reads (and writes) or sums: each of a
                                             sequence fails in turn */

#define _POSIX_C_SOURCE 200809L
#include "amp.h"
#include "../support/gemm_args.h"
#include "../support/model.h"
#include "../support/posix.h"
#include "../support/random.h"
#include "../support/storage.h"
#include "../support/test.h"
#include "../support/values.h"

#include <stdarg.h>

enum { MAX_CALLS = 60, TWIN = 1, BODIES = 2, FILES = 3, FILE_SIZE = 1 << 16 };

/* ---------------------------------------------------------------------- what fails, and where */

typedef enum fault { NOTHING, ALLOCATION, TRANSFER, REDUCTION } fault;
static struct {
    fault kind;
    int at, calls, fired, armed;
} fail_at; /* at: the call that fails; 0: none */

#define OLDER "backend is NULL"

static jmp_buf  failed;
static int      verbose;
static char     why[512];
static uint64_t rng;

static unsigned below(unsigned n) { return random_next(&rng) % n; }
static int      one_in(unsigned n) { return below(n) == 0; }

static void stop(const char *text, ...) {
    va_list args;
    va_start(args, text);
    vsnprintf(why, sizeof why, text, args);
    va_end(args);
    longjmp(failed, 1);
}
static void say(const char *text, ...) {
    va_list args;
    if (!verbose) return;
    va_start(args, text);
    vprintf(text, args);
    va_end(args);
}

static int fires(fault kind) {
    if (!fail_at.armed || fail_at.kind != kind || ++fail_at.calls != fail_at.at) return 0;
    fail_at.fired = 1;
    return 1;
}

/* ------------------------------------------------------------------------------------ memory */

typedef struct block { struct block *next, **from; size_t size, pad; } block;
static block *blocks[BODIES + 2]; /* of each optimizer, of the test itself, of a session */

static void *take(block **list, size_t num_bytes) {
    block *b = (block *)malloc(sizeof *b + num_bytes);
    if (!b) abort();
    b->next = *list, b->from = list;
    if (*list) (*list)->from = &b->next;
    *list = b;
#ifndef TEST_RAW /* or nobody would know who reads what was never written */
    memset(b + 1, 0x5c, num_bytes);
#endif
    return b + 1;
}
static void drop(void *memory) {
    block *b = (block *)memory - 1;
    *b->from = b->next;
    if (b->next) b->next->from = b->from;
    free(b);
}
static int   allocations;
static void *heap_alloc(void *user, size_t num_bytes) {
    if (user == (void *)&blocks[0]) allocations++;
    return user == (void *)&blocks[0] && fires(ALLOCATION) ? NULL : take((block **)user, num_bytes);
}
static void heap_free(void *user, void *memory) {
    (void)user;
    drop(memory);
}

/* ------------------------------------------------------------------------------------- world */

typedef struct body { /* an optimizer, and what it works on */
    amp_optimizer opt;
    float        *weight[MAX_T];
    void         *grad[MAX_T], *model[MAX_T];
    uint32_t     *rows[MAX_T], *num_rows[MAX_T];
    amp_result    result;
    bool          truth;
} body;

typedef struct bytes { unsigned char data[FILE_SIZE]; size_t size, at; } bytes;
typedef enum content { EMPTY, GOOD, TORN, CHANGED } content;
typedef struct saved {
    content     is;
    int         on_disk;
    bytes       file, twin;
    m_optimizer m;
    m_scaler    scaler;
} saved;

static struct {
    uint64_t    shape;
    m_optimizer m;
    m_scaler    scaler; /* the shared one, as the model has it */
    amp_scaler  shared, twin_shared;
    int         alone;      /* is the twin left out for now? */
    int         two;        /* is there a twin, bodies[TWIN]? */
    body        bodies[BODIES];
    saved       saves[FILES];
    struct {              /* a session, as the model has it */
        int      runs;
        uint64_t rounded, hits, misses, transients;
        int      num;
        struct { const float *base; int has_copy; f32 copy[32]; } added[8];
    } session;
    int         overlaps; /* a gradient is in the memory of another */
    int         changed;  /* masters, since models were written from all of them */
    amp_optimizer_desc desc;
    amp_tensor  given[MAX_T];
    amp_rows    given_rows[MAX_T];
    amp_storage given_storage[MAX_T];
} w;

static m_scaler *scaler_of(void) { return m_scaler_of(&w.m, &w.scaler); }

static bool write_bytes(void *user, const void *data, size_t num_bytes) {
    bytes *f = (bytes *)user;
    if (fires(TRANSFER)) return false;
    if (num_bytes > FILE_SIZE - f->size) abort();
    memcpy(f->data + f->size, data, num_bytes);
    f->size += num_bytes;
    return true;
}
static bool read_bytes(void *user, void *data, size_t num_bytes) {
    bytes *f = (bytes *)user;
    if (fires(TRANSFER) || num_bytes > f->size - f->at) return false;
    memcpy(data, f->data + f->at, num_bytes);
    f->at += num_bytes;
    return true;
}

/* ------------------------------------------------------------------------------------- ranks */

/* This rank, of others that have their own tensors. */
static amp_result meet_others(void *user, double *sums, size_t num_sums, uint32_t *maxima, size_t num_maxima) {
    const f64 all = add64(bits64(*sums), w.m.more_norm2);
    (void)user;
    if (num_sums != 1 || num_maxima != 2) return AMP_ERROR_TOO_LARGE;
    memcpy(sums, &all, sizeof all);
    if (w.m.more_flag) maxima[0] = w.m.more_flag;
    if (!amp_optimizer_chunk_sums(&w.bodies[0].opt, NULL) && !amp_optimizer_chunk_sums(&w.bodies[TWIN].opt, NULL))
        return AMP_OK; /* the step is refused: its error is another one */
    return fires(REDUCTION) ? AMP_ERROR_CUBLAS : AMP_OK;
}

/* --------------------------------------------------------------------------- calls, performed */

typedef enum operation {
    INIT, ADD, FLAT, PREPARE, CHECK, BEGIN, UNSCALE, END, STEP, GRAPH, SET_LR, REBIND, REBIND_ALL,
    REFRESH, MOMENTS, SAVE, LOAD, SAVE_FILE, LOAD_FILE, SET_STEPS
} operation;

static struct {
    amp_optimizer_desc desc;
    amp_tensor         whole[BODIES], tensors[BODIES][4]; /* of each body */
    int                index, count, all_grads, all_weights;
    uint64_t           steps, skipped;
    float              rate;
    bytes             *file;
    const char        *path;
    float             *weights[BODIES][MAX_T];
    void              *grads[BODIES][MAX_T];
    const float       *moments[BODIES][2];
} job;

/* What is each one's own in a desc. */
static amp_result init_body(int k, body *b) {
    amp_optimizer_desc d = job.desc;
    if (d.allocator.allocate_fn) d.allocator.user = &blocks[k];
    if (d.shared_scaler && k == TWIN) d.shared_scaler = &w.twin_shared;
    if (k == TWIN) d.report = NULL;
    memset(&b->opt, 0xa5, sizeof b->opt); /* zeroed or not; one that is refused is zeroed */
    return amp_optimizer_init(&b->opt, &d);
}

static amp_result perform(operation op, body *b) {
    const int      k   = (int)(b - w.bodies);
    amp_optimizer *opt = &b->opt;
    switch (op) {
    case INIT: return init_body(k, b);
    case ADD: return amp_optimizer_add(opt, &job.whole[k]);
    case FLAT: return amp_optimizer_add_flat(opt, &job.whole[k], job.tensors[k], (size_t)job.count);
    case PREPARE: return amp_optimizer_prepare(opt);
    case CHECK: return amp_optimizer_check(opt);
    case BEGIN: b->truth = amp_optimizer_begin_step(opt); return AMP_OK;
    case UNSCALE: return amp_optimizer_unscale(opt);
    case END: return amp_optimizer_end_step(opt);
    case STEP: return amp_optimizer_step(opt, job.rate);
    case GRAPH: return amp_optimizer_step_graph(opt);
    case SET_LR: return amp_optimizer_set_lr(opt, job.rate);
    case REBIND: return amp_optimizer_rebind(opt, job.index, job.weights[k][0], job.grads[k][0]);
    case REBIND_ALL:
        return amp_optimizer_rebind_all(opt, job.all_weights ? job.weights[k] : NULL,
                                        job.all_grads ? job.grads[k] : NULL);
    case REFRESH: return amp_optimizer_refresh(opt);
    case MOMENTS:
        return amp_optimizer_set_moments(opt, job.index, job.moments[k][0], job.moments[k][1]);
    case SAVE: job.file->size = 0; return amp_optimizer_save(opt, write_bytes, job.file);
    case LOAD: job.file->at = 0; return amp_optimizer_load(opt, read_bytes, job.file);
    case SAVE_FILE: return amp_optimizer_save_file(opt, job.path);
    case LOAD_FILE: return amp_optimizer_load_file(opt, job.path);
    case SET_STEPS: return amp_optimizer_set_steps(opt, job.steps, job.skipped);
    }
    return AMP_OK;
}

/* What amp.h returns for a call. Where a fault was planted in it, it has failed and changed
   nothing, and is made again. */
static void observe(void);
static int  meets(operation op) { return op == STEP || op == GRAPH || op == CHECK || op == BEGIN; }
static bytes scratch[BODIES];

static void fails(operation op) {
    const amp_result error = fail_at.kind == ALLOCATION ? AMP_ERROR_OUT_OF_MEMORY
                             : fail_at.kind == REDUCTION ? AMP_ERROR_CUBLAS
                             : op == SAVE ? AMP_ERROR_WRITE : AMP_ERROR_READ;
    body      *b = &w.bodies[0];
    amp_result was;
    int        r, i;
    say(" = %s, as fault %d was planted;", amp_result_string(b->result), fail_at.at);
    fail_at.fired = 0;
    if (op == BEGIN && b->truth) stop("begin_step is true, but its reduction failed");
    if (op == BEGIN) b->result = amp_optimizer_end_step(&b->opt);
    if (b->result == AMP_OK || !m_tells(b->result, OLDER, amp_problem()))
        stop("\"%s\" after a fault, but its message is \"%s\"", amp_result_string(b->result),
             amp_problem());
    was = b->result;
    if (meets(op))
        for (r = 0; r < 1 + w.two; r++) { /* the twin, too, whose models are written anew */
            scratch[r].at = 0;
            if (amp_optimizer_load(&w.bodies[r].opt, read_bytes, &scratch[r]) != AMP_OK)
                stop("what was saved loads");
            w.m.seen_updates = w.m.overflows = 0;
            m_refresh(&w.m);
            for (i = 0; i < w.m.num; i++) w.m.t[i].brought = 0;
        }
    else observe();
    if (op == ADD || op == FLAT) b->opt.refused.result = w.m.refused; /* prepare would say this */
    (void)amp_cpu_backend(NULL); /* OLDER */
    b->result = perform(op, b);
    if (was == AMP_OK || (was != error && was != b->result)) /* what fails without it may fail so */
        stop("a fault gives \"%s\", not \"%s\"", amp_result_string(was), amp_result_string(error));
}

static void attempt(operation op) {
    body *b = &w.bodies[0];
    int   r;
    if (fail_at.kind == REDUCTION && meets(op) && m_ready(&w.m, BETWEEN) == AMP_OK)
        for (r = 0; r < 1 + w.two; r++) {
            scratch[r].size = 0;
            if (amp_optimizer_save(&w.bodies[r].opt, write_bytes, &scratch[r]) != AMP_OK)
                stop("save");
        }
    (void)amp_cpu_backend(NULL); /* OLDER */
    allocations   = 0;
    fail_at.armed = 1;
    b->result     = perform(op, b);
    fail_at.armed = 0;
    if (fail_at.fired) fails(op);
    else if (op >= CHECK && op <= MOMENTS && allocations) stop("it allocates");
}

/* That is what it should have returned. */
static amp_result expect(operation op, amp_result expected) {
    const body *b = &w.bodies[0];
    say(" = %s\n", amp_result_string(b->result));
    if (b->result != expected)
        stop("\"%s\" (%s), not \"%s\"", amp_result_string(b->result), amp_problem(),
             amp_result_string(expected));
    if (op != BEGIN && !m_tells(expected, OLDER, amp_problem())) /* end_step tells */
        stop("\"%s\", but its message is \"%s\"", amp_result_string(expected), amp_problem());
    if (op == BEGIN && w.m.pending != AMP_OK) return expected; /* the twin's scale was asked for */
    if (w.two && (expected == AMP_OK || op == END) && op != LOAD && op != LOAD_FILE &&
        op != SAVE && op != SAVE_FILE)
        (void)perform(op, &w.bodies[TWIN]);
    return expected;
}

/* ------------------------------------------------------------------------------- what is there */

static int same32(f32 a, f32 b) { return a == b || (nan32(a) && nan32(b)); }
static int same64(f64 a, double b) {
    const f64 x = bits64(b);
    return a == x ||
           ((a & ~((uint64_t)1 << 63)) > wide(INF) && (x & ~((uint64_t)1 << 63)) > wide(INF));
}
static f32 value_at(const void *x, int type, int k) {
    const uint32_t u = load_bits(x, (amp_dtype)type, (size_t)k);
    return type == AMP_F32 ? u : (f32)recast(F32, of_type(type), u);
}
static void put_value(void *x, int type, int k, f32 value) {
    store_bits(x, (amp_dtype)type, (size_t)k,
               type == AMP_F32 ? value : (uint32_t)recast(of_type(type), F32, value));
}

/* A call that changes nothing: its result, and what it tells. */
#define TELLS(what, call, should)                                                                  \
    do {                                                                                           \
        const amp_result should_ = (should);                                                       \
        (void)amp_cpu_backend(NULL); /* OLDER */                                                   \
        SAME(what, (call), should_);                                                               \
        if (!m_tells(should_, OLDER, amp_problem()))                                               \
            stop("%s, and its message is \"%s\"", what, amp_problem());                            \
    } while (0)
#define SAME(what, is, should)                                                                     \
    ((is) == (should) ? (void)0                                                                    \
                      : stop("%s is %lld, not %lld", what, (long long)(is), (long long)(should)))

/* n numbers of an array, beside the model's, or the twin's. */
static void same_array(const char *what, int i, const void *x, int type, int n, const f32 *model,
                       const void *twin) {
    int k;
    if (n && !x) stop("%s of tensor %d is not there", what, i);
    for (k = 0; k < n; k++) {
        const f32 is = value_at(x, type, k), should = twin ? value_at(twin, type, k) : model[k];
        if (!same32(is, should))
            stop("%s of tensor %d at %d is %08x, not %08x%s", what, i, k, is, should,
                 twin ? ", as in the plain run" : "");
    }
}

static void observe_tensor(body *b, int i) {
    const m_optimizer *m = &w.m;
    const m_tensor    *t = &m->t[i];
    amp_optimizer     *o = &b->opt, *twin = w.two && !m_plain(t) ? &w.bodies[TWIN].opt : NULL;
    const int type = t->has_model ? t->model_type : (int)AMP_F32, has = m_has(m, t);
    amp_grad_stats          stats;
    float              moment[2][MAX_E], twins[2][MAX_E];
    int                k, own;
    same_array("model", i, amp_optimizer_model(o, i), type, t->n,
               (t->has_model ? m->model : m->w) + t->at,
               twin ? amp_optimizer_model(twin, i) : NULL);
    if (m_coded(t) ? amp_optimizer_master(o, i) != NULL : 0) stop("tensor %d has a master", i);
    if (!m_coded(t))
        same_array("master", i, amp_optimizer_master(o, i), AMP_F32, t->n, m->w + t->at,
                   twin ? amp_optimizer_master(twin, i) : NULL);
    if (!m_coded(t) && t->own_weight && t->n &&
        amp_optimizer_master(o, i) != b->weight[i])
        stop("the master of tensor %d is elsewhere", i);
    TELLS("moments' result",
          amp_optimizer_moments(o, i, has ? moment[0] : NULL, has == 2 ? moment[1] : NULL), AMP_OK);
    if (has < 2)
        TELLS("moments' refusal", amp_optimizer_moments(o, i, NULL, moment[1]),
              AMP_ERROR_UNSUPPORTED);
    if (twin && has) (void)amp_optimizer_moments(twin, i, twins[0], has == 2 ? twins[1] : NULL);
    for (k = 0; k < has; k++)
        same_array(k ? "second moment" : "moment", i, moment[k], AMP_F32, t->n,
                   m->moment[k] + t->at, twin ? twins[k] : NULL);
    if (b->grad[i])
        same_array("gradient", i, b->grad[i], t->grad_type, t->values, m->grad + t->first, NULL);
    if (t->length && *b->num_rows[i] != m->num_rows[i])
        stop("num_rows of tensor %d", i);
    own = m_yours(m, t) && t->has_grad;
    if (t->n && (amp_optimizer_grad(o, i) != NULL) != own) stop("grad of tensor %d", i);
    if (own && !(m->in_place && t->grad_type == (int)AMP_F32))
        same_array("unscaled gradient", i, amp_optimizer_grad(o, i), AMP_F32, t->n,
                   m->unscaled + t->at, NULL);
    TELLS("stats' result", amp_optimizer_stats(o, i, &stats), AMP_OK);
    SAME("stats.bad_row", stats.bad_row, t->stats.bad_row);
    if (t->stats.bad_row) return;
    SAME("stats.nonfinite", stats.nonfinite, t->stats.nonfinite);
    SAME("stats.nan", stats.nan, t->stats.nan);
    SAME("stats.first_nonfinite", stats.first_nonfinite, t->stats.first);
    SAME("stats.zeros", stats.zeros, t->stats.zeros);
    SAME("stats.max_finite", bits32(stats.max_finite), t->stats.max);
}

static void observe_scaler(const m_scaler *s, const amp_scaler *is) {
    SAME("scaler.scale", bits32(is->scale), s->scale);
    SAME("scaler.next_scale", bits64(is->next_scale), s->next);
    SAME("scaler.growth_tracker", is->growth_tracker, s->tracker);
    SAME("scaler.hysteresis_tracker", is->hysteresis_tracker, s->left);
    SAME("scaler.found_inf", is->found_inf != 0, s->found != 0);
    SAME("scaler.checked", is->checked, s->checked);
    SAME("scaler.stuck", is->stuck, s->stuck);
    SAME("scaler.good", is->good, s->good);
    SAME("scaler.skipped", is->skipped, s->skipped);
    SAME("scaler.growths", is->growths, s->growths);
    SAME("scaler.backoffs", is->backoffs, s->backoffs);
    SAME("scaler.skipped_in_a_row", is->skipped_in_a_row, s->row);
    SAME("scaler.growth_interval", is->growth_interval, s->interval);
    SAME("scaler.preset", (int)is->preset, s->preset);
}

static void observe_report(const body *b) {
    const m_optimizer *m = &w.m;
    amp_report         report;
    amp_iteration      last[4];
    amp_tensor_report  tensor;
    size_t             count = 4;
    int                i;
    TELLS("report's result", amp_optimizer_report(&b->opt, &report), AMP_OK);
    SAME("report.iterations", report.iterations, m->step + m->skipped);
    SAME("report.steps", report.steps, m->step);
    SAME("report.overflows and .asked", report.overflows + report.asked,
         m->record.skips[0] + m->record.skips[1]);
    SAME("report.asked", report.asked, m->record.skips[1]); /* an overflow of another rank, too */
    TELLS("history's result", amp_optimizer_history(&b->opt, last, &count), AMP_OK);
    if (m->record.last.iteration && !count) stop("history is empty");
    if (m->record.last.iteration) {
        const amp_iteration *t = &last[count - 1];
        SAME("iteration", t->iteration, m->record.last.iteration);
        SAME("its skip", (int)t->skip, m->record.last.skip);
        SAME("its tensor", t->tensor, m->record.last.tensor);
        SAME("its scale", bits32(t->loss_scale), m->record.last.scale);
        SAME("its clip factor", bits32(t->clip_factor), m->record.last.clip);
        if (!same64(m->record.last.norm, t->norm)) stop("its norm is %g", t->norm);
    }
    for (i = 0; i < m->num; i++) {
        TELLS("report_tensor's result", amp_optimizer_report_tensor(&b->opt, i, &tensor), AMP_OK);
        SAME("its overflows", tensor.overflows, m->t[i].seen.overflows);
        SAME("its nans", tensor.nans, m->t[i].seen.nans);
        SAME("its first_iteration", tensor.first_iteration, m->t[i].seen.first);
        SAME("its last_iteration", tensor.last_iteration, m->t[i].seen.last);
    }
}

/* Calls without what they need: in each state they are refused, and say so. */
static void observe_refusals(const body *b) {
    const m_optimizer   *m     = &w.m;
    const amp_optimizer *o     = &b->opt;
    const amp_result     ready = m_ready(m, AFTER), between = m_ready(m, BETWEEN);
    const amp_result     null  = ready == AMP_OK ? AMP_ERROR_INVALID_ARGUMENT : ready;
    const amp_result     full  = between == AMP_OK ? AMP_ERROR_INVALID_ARGUMENT : between;
    size_t               some  = 1;
    TELLS("status without room", amp_optimizer_status(o, NULL), null);
    TELLS("stats of no tensor", amp_optimizer_stats(o, m->num, NULL), null);
    TELLS("moments of no tensor", amp_optimizer_moments(o, -1, NULL, NULL), null);
    TELLS("save to nowhere", amp_optimizer_save(o, NULL, NULL), full);
    TELLS("report without room", amp_optimizer_report(o, NULL), null);
    TELLS("report of no tensor", amp_optimizer_report_tensor(o, m->num, NULL), null);
    TELLS("history without room", amp_optimizer_history(o, NULL, &some), null);
}

static void observe_body(body *b) {
    m_optimizer   *m = &w.m;
    const m_scaler *s = scaler_of();
    amp_status     status;
    int            i;
    observe_refusals(b);
    if (!m->prepared) {
        const amp_result none = m->initialized ? AMP_ERROR_NOT_PREPARED : AMP_ERROR_NOT_INITIALIZED;
        TELLS("status' result", amp_optimizer_status(&b->opt, &status), none);
        if (amp_optimizer_loss_scale(&b->opt) > 0 || amp_optimizer_gate(&b->opt) ||
            amp_optimizer_model(&b->opt, 0) || amp_optimizer_scaler(&b->opt) ||
            amp_optimizer_grad(&b->opt, 0) || amp_optimizer_lr_ptr(&b->opt))
            stop("something is there before prepare");
        return;
    }
    for (i = 0; i < m->num; i++) observe_tensor(b, i);
    SAME("gate.skip", amp_optimizer_gate(&b->opt)->skip, m->skip);
    if (!same32(bits32(amp_optimizer_gate(&b->opt)->inv_scale), m->inv_scale))
        stop("gate.inv_scale");
    SAME("gate.step", amp_optimizer_gate(&b->opt)->step, m->step);
    if (m->report) observe_report(b);
    if (!m->asked) return; /* who asks has asked */
    observe_scaler(s, amp_optimizer_scaler(&b->opt));
    SAME("loss_scale", bits32(amp_optimizer_loss_scale(&b->opt)), s->scale);
    TELLS("status' result", amp_optimizer_status(&b->opt, &status), AMP_OK);
    SAME("status.clip_factor", bits32(status.clip_factor), m->clip);
    SAME("status.loss_scale", bits32(status.loss_scale), s->scale);
    SAME("status.did_step", status.did_step, m->did_step);
    SAME("status.found_inf", status.found_inf, m->found);
    SAME("status.stuck", status.stuck, s->stuck || m->row >= STUCK);
    SAME("status.steps", status.steps, m->step);
    SAME("status.skipped", status.skipped, m->skipped);
    SAME("status.skipped_in_a_row", status.skipped_in_a_row, m->row);
    SAME("status.missed_updates", status.missed_updates, m->missed);
    for (i = 0; i < m->num && m_plain(&m->t[i]); i++) { /* of others the model does not know masters */
    }
    if (i == m->num) SAME("status.f16_overflows", status.f16_overflows, m->overflows);
    if (!same64(m->norm, status.norm))
        stop("status.norm is %g (%llx), not %llx", status.norm,
             (unsigned long long)bits64(status.norm), (unsigned long long)m->norm);
}

static void observe(void) {
    if (!w.alone) observe_body(&w.bodies[0]); /* without the twin nobody knows all numbers */
}

/* --------------------------------------------------------------------------------------- calls */

static int chance(unsigned percent) { return below(100) < percent; }

/* A number of one of several kinds. */
static f32 any_number(int how) {
    const uint32_t random = random_next(&rng);
    switch (how) {
    case 0: return (random & 0x807fffff) | (118 + random_next(&rng) % 12) << 23; /* to 4 */
    case 1: return random & 0x80000000;
    case 2: return (random & 0x807fffff) | (253 - random_next(&rng) % 60) << 23;
    case 3: return (random & 0x80ffffff) >> random_next(&rng) % 3 * 8;
    default: return odd32(random) ? ONE : random;
    }
}

static void end_session(void);
static void call_free(void) {
    int r;
    say("free\n");
    end_session(); /* optimizers outlive it */
    for (r = 0; r < 1 + w.two; r++) {
        amp_optimizer_free(&w.bodies[r].opt);
        if (one_in(4)) amp_optimizer_free(&w.bodies[r].opt);
        if (blocks[r]) stop("free leaves memory");
    }
    memset(&w.m, 0, sizeof w.m);
    w.overlaps = w.changed = 0;
}

/* What the sequence is about, and what this call changes of it. */
static void some_desc(amp_optimizer_desc *d, amp_report_desc *report, amp_storage *storage) {
    static const double betas[] = {0, 0.5, 0.9, 0.999, -0.5};
    const uint64_t own = rng;
    memset(d, 0, sizeof *d), memset(report, 0, sizeof *report);
    rng     = w.shape;
    d->kind = (amp_kind)below(4);
    if (d->kind == AMP_KIND_SGD && chance(60)) d->momentum = 0.5 + 0.25 * below(3);
    d->nesterov = d->momentum > 0 && chance(40);
    d->dtype    = (amp_dtype)below(3);
    *storage    = storages[chance(50) ? 0 : below(STORAGES)];
    if (d->kind != AMP_KIND_OWN && chance(40)) d->storage = storage;
    if (d->storage && storage->master != AMP_FORMAT_F32) d->dtype = AMP_BF16;
    if (chance(20)) d->reduce_fn = meet_others;
    if (chance(15)) d->shared_scaler = &w.shared;
    if (chance(30)) d->report = report;
    d->zero_grad        = chance(30);
    d->unscale_in_place = chance(20);
    d->seed             = below(3);
    rng = own;
    if (chance(20) && d->dtype != AMP_BF16) d->dtype = (amp_dtype)below(3);
    if (chance(30)) d->report = d->report ? NULL : report;
    report->every    = (int)below(3);
    d->beta1         = betas[one_in(5) ? 4 : below(3)];
    d->beta2         = betas[one_in(5) ? 4 : below(4)];
    d->eps           = one_in(3) ? 0.001 : 0.0;
    d->weight_decay  = one_in(2) ? 0.125f * (float)below(4) - 0.125f : 0.0f;
    d->max_norm      = one_in(3) ? 0.5f * (float)below(4) : 0.0f;
    if (d->momentum > 0 && chance(20)) d->nesterov = !d->nesterov;
    if (d->momentum > 0 && chance(20)) d->momentum = 0.625;
    if (chance(15) && (d->momentum > 0 || d->kind == AMP_KIND_LION)) {
        d->kind     = d->kind == AMP_KIND_LION ? AMP_KIND_SGD : AMP_KIND_LION;
        d->momentum = 0.75 * (d->kind == AMP_KIND_SGD);
        d->nesterov = 0;
    }
    if (d->storage && chance(15)) *storage = storages[below(STORAGES)];
    if (d->storage && storage->master != AMP_FORMAT_F32) d->dtype = AMP_BF16;
    d->scaler.preset = (amp_preset)(chance(50) ? 0 : below(AMP_PRESET_MXNET + 1));
    d->scaler.growth_interval = (int)below(4);
    if (chance(60)) d->scaler.init_scale = chance(80) ? 1024.0f : 0.25f;
    if (chance(30)) d->scaler.growth_factor = 1.0 + 0.5 * below(7);
    if (chance(30)) d->scaler.backoff_factor = 0.25 * (1 + below(4));
    if (chance(20)) d->scaler.hysteresis = 1 + (int)below(3);
    if (chance(15)) d->scaler.max_scale = 4096.0f;
    if (chance(15))
        d->scaler.min_scale =
            d->scaler.init_scale > 0 && d->scaler.init_scale < 1 ? 0.125f : 512.0f;
    if (d->scaler.preset == AMP_PRESET_NONE)
        d->scaler.init_scale = (float)below(2), d->scaler.min_scale = d->scaler.max_scale = 0.0f;
    else if (d->scaler.preset != 0 && d->scaler.preset != AMP_PRESET_STATIC &&
        chance(20)) { /* to 0, to inf */
        const f32 x = one_in(2) ? 2 : 0x7f000000;
        memcpy(&d->scaler.init_scale, &x, 4);
        d->scaler.min_scale = 0.0f;
    }
    d->scaler.disabled = chance(10);
}

/* One thing that a desc must not say, and its error. */
static amp_result spoil_desc(amp_optimizer_desc *d) {
    static amp_storage none = {AMP_FORMAT_SR, AMP_FORMAT_SPLIT};
    f32                nan  = 0x7fc00000;
    switch (below(13)) {
    case 0: d->dtype = (amp_dtype)3; return AMP_ERROR_INVALID_ENUM;
    case 1: d->kind = (amp_kind)4; return AMP_ERROR_INVALID_ENUM;
    case 2: d->scaler.preset = (amp_preset)17; return AMP_ERROR_INVALID_ENUM;
    case 3: d->beta1 = 1.0; return AMP_ERROR_INVALID_CONFIG;
    case 4: d->eps = -0.5; return AMP_ERROR_INVALID_CONFIG;
    case 5: d->nesterov = 1, d->momentum = 0; return AMP_ERROR_INVALID_CONFIG;
    case 6: memcpy(&d->max_norm, &nan, 4); return AMP_ERROR_INVALID_CONFIG;
    case 7: memcpy(&d->weight_decay, &nan, 4); return AMP_ERROR_INVALID_CONFIG;
    case 8: d->allocator.release_fn = NULL; return AMP_ERROR_INVALID_ARGUMENT;
    case 9: d->scaler.growth_factor = 0.5; return AMP_ERROR_INVALID_CONFIG;
    case 10: d->storage = &none; return AMP_ERROR_INVALID_CONFIG;
    case 11:
        d->scaler.preset = AMP_PRESET_NONE, d->scaler.init_scale = 1024.0f;
        return AMP_ERROR_INVALID_CONFIG;
    default:
        d->scaler.min_scale = 8.0f, d->scaler.max_scale = 4.0f;
        return AMP_ERROR_INVALID_CONFIG;
    }
}

static void call_init(int illegal) {
    static amp_report_desc report;
    static amp_storage     storage;
    amp_optimizer_desc    *d = &job.desc;
    amp_result             expected = AMP_OK;
    call_free();
    some_desc(d, &report, &storage);
    d->allocator.allocate_fn = heap_alloc;
    d->allocator.release_fn  = heap_free;
    if (d->shared_scaler) {
        SAME("a shared scaler", amp_scaler_init(&w.shared, &d->scaler), AMP_OK);
        m_scaler_init(&w.scaler, &d->scaler);
    }
    if (illegal) expected = spoil_desc(d);
    w.two = 0;
    say("init kind %d dtype %d preset %d scale %g interval %d%s%s%s%s storage %s%s%s",
        (int)d->kind, (int)d->dtype, (int)d->scaler.preset, (double)d->scaler.init_scale,
        d->scaler.growth_interval, d->scaler.disabled ? " disabled" : "",
        d->shared_scaler ? " shared" : "", d->reduce_fn ? " ranks" : "",
        d->report ? " report" : "",
        d->storage ? "own" : "fp32", d->zero_grad ? " zero_grad" : "",
        d->unscale_in_place ? " in place" : "");
    attempt(INIT);
    if (expect(INIT, expected) != AMP_OK) return;
    w.desc = *d;
    m_init(&w.m, d);
    if (w.m.meets) w.m.more_norm2 = one_in(2) ? bits64(4.0) : 0;
    w.two = 1; /* until prepare knows that no tensor needs it */
    memset(&w.bodies[TWIN], 0, sizeof(body));
    w.twin_shared = w.shared;
    SAME("the twin's init", perform(INIT, &w.bodies[TWIN]), AMP_OK);
}

/* Memory of the test's own; what ASan guards ends with the last element. */
static void *array_of(size_t n, size_t size, int unaligned) {
    const size_t off = unaligned ? size / 2 : 0;
    return (char *)take(&blocks[BODIES], n * size + off) + off;
}

/* A tensor of the sequence, or (odd) another one. What may not be in one of this desc is seldom. */
static amp_tensor some_tensor(int place, int odd, amp_rows *rows, amp_storage *storage) {
    static const int         sizes[] = {0, 1, 3, 17, 32, 33, 64, 5};
    static const char *const names[] = {"w", "b", NULL, "a name that is longer than eight"};
    const uint64_t           own = rng;
    amp_tensor               t;
    memset(&t, 0, sizeof t), memset(rows, 0, sizeof *rows);
    if (!odd) rng = w.shape * 31 + (uint64_t)place;
    t.n         = (size_t)sizes[below(8)];
    t.name      = names[below(4)];
    t.grad_type = (amp_dtype)below(3);
    t.grad      = chance(80) ? &t : NULL; /* there will be one */
    t.weight    = chance(75) ? (float *)&t : NULL;
    t.model     = !t.weight || chance(20) ? rows : NULL;
    if (t.weight && chance(10)) t.model = t.weight;
    t.model_type = w.m.storage.master != AMP_FORMAT_F32 ? AMP_BF16 : (amp_dtype)below(3);
    t.keep_fp32 = chance(15);
    if (t.keep_fp32 || (t.model && t.model == (void *)t.weight && chance(90))) t.model_type = AMP_F32;
    t.frozen = chance(t.grad ? 5 : 60);
    t.own = chance((w.shape >> 12 & 3) == 0 ? 50 : 0); /* of every fourth sequence */
    if (w.m.kind != (int)AMP_KIND_OWN && (!t.own || chance(5)) &&
        !(w.m.kind == (int)AMP_KIND_SGD && w.m.moments) && chance(25)) {
        rows->row_length = w.m.storage.moments == AMP_FORMAT_8BIT || chance(20) ? 32 : 1 + below(3);
        rows->max_rows   = chance(20) ? 140 / rows->row_length + 1 : 1 + below(6);
        t.n              = rows->row_length * below(8);
        t.rows           = rows;
    }
    *storage = storages[below(STORAGES)];
    if (w.m.kind != (int)AMP_KIND_OWN && chance(10)) t.storage = storage;
    rng = own;
    if (chance(5)) t.frozen = !t.frozen;
    if (chance(20)) t.lr_scale = 0.5f * (float)below(5) - 0.5f;
    if (chance(30)) t.weight_decay = 0.25f * (float)below(4) - 0.25f;
    if (t.n > 40 && w.m.num > 5) t.n = t.rows ? 0 : 2;
    return t;
}

/* May it be added? */
static amp_result may_add(const amp_tensor *t, int flat) {
    const m_optimizer *m = &w.m;
    const amp_storage fp32 = {AMP_FORMAT_F32, AMP_FORMAT_F32},
                      s = t->own || (t->keep_fp32 &&
                                     !(t->storage && t->storage->master == AMP_FORMAT_F32))
                              ? fp32
                          : t->storage ? *t->storage
                                       : m->storage;
    const int type = (int)(t->model ? t->model == (void *)t->weight ? AMP_F32 : t->model_type
                                    : (amp_dtype)m->dtype);
    const int own = m->kind == (int)AMP_KIND_OWN,
              low = s.master != AMP_FORMAT_F32 || s.moments != AMP_FORMAT_F32;
    if ((unsigned)t->grad_type > 2u || (t->model && (unsigned)t->model_type > 2u))
        return AMP_ERROR_INVALID_ENUM;
    if (t->n && !t->weight && !t->model) return AMP_ERROR_INVALID_ARGUMENT;
    if (odd32(bits32(t->lr_scale)) || odd32(bits32(t->weight_decay))) return AMP_ERROR_INVALID_CONFIG;
    if (t->model && t->model_type != AMP_F32 && (t->keep_fp32 || t->model == (void *)t->weight))
        return AMP_ERROR_INVALID_CONFIG;
    if (t->own && t->rows) return AMP_ERROR_UNSUPPORTED;
    if (t->rows && (flat || own || (m->kind == (int)AMP_KIND_SGD && m->moments)))
        return AMP_ERROR_UNSUPPORTED;
    if (t->rows && (!t->rows->row_length || t->n % t->rows->row_length || !t->rows->max_rows))
        return AMP_ERROR_INVALID_CONFIG;
    if (low && own) return AMP_ERROR_UNSUPPORTED;
    if (s.master != AMP_FORMAT_F32 && type != (int)AMP_BF16) return AMP_ERROR_UNSUPPORTED;
    if (s.moments == AMP_FORMAT_8BIT && t->rows && t->rows->row_length % 32)
        return AMP_ERROR_UNSUPPORTED;
    return AMP_OK;
}

/* One thing that is wrong with a tensor. */
static void spoil_tensor(amp_tensor *t, amp_rows *rows) {
    f32 nan = 0x7fc00000;
    switch (below(6)) {
    case 0: t->grad_type = (amp_dtype)7; break;
    case 1: t->weight = NULL, t->model = NULL, t->n = 3, t->rows = NULL; break;
    case 2: memcpy(&t->lr_scale, &nan, 4); break;
    case 3: memcpy(&t->weight_decay, &nan, 4); break;
    case 4: t->model = t, t->model_type = AMP_F16, t->keep_fp32 = 1; break;
    default: t->rows = rows, rows->row_length = 2, rows->max_rows = 0; t->n = 4;
    }
}

/* The numbers of tensor i begin; arrays of each body. */
static void fill_tensor(int i, const amp_tensor *t) {
    m_optimizer    *m = &w.m;
    const m_tensor *x = &m->t[i];
    const int       type = t->model ? (int)t->model_type : (int)AMP_F32;
    int             k, r;
    for (k = 0; k < x->n; k++) {
        f32 *p = &m->w[x->at + k];
        *p     = any_number(one_in(10) ? (int)below(5) : 0);
        if (!t->weight) *p = rounded(type, *p);
    }
    for (k = 0; k < x->values; k++)
        m->grad[x->first + k] = rounded(x->grad_type, any_number(0));
    for (k = 0; k < x->most; k++) m->rows[x->first + k] = 0;
    m->num_rows[i] = 0;
    for (r = 0; r < 1 + w.two; r++) {
        body *b = &w.bodies[r];
        for (k = 0; k < x->n && t->weight; k++)
            put_value(b->weight[i], AMP_F32, k, m->w[x->at + k]);
        for (k = 0; k < x->n && t->model && t->model != (void *)t->weight; k++)
            put_value(b->model[i], type, k, m->w[x->at + k]);
        for (k = 0; k < x->values && b->grad[i]; k++)
            put_value(b->grad[i], x->grad_type, k, m->grad[x->first + k]);
    }
}

/* t's arrays in the memory of body k; what a flag said is an address then. Returns its tensor. */
static amp_tensor with_arrays(int k, int i, const amp_tensor *t, amp_rows *rows) {
    body        *b = &w.bodies[k];
    amp_tensor   x = *t;
    const size_t values = t->rows && !t->frozen ? rows->row_length * rows->max_rows : t->n;
    const int    odd = (int)(w.shape >> 7 & 1);
    b->rows[i] = b->num_rows[i] = NULL;
    if (t->weight) x.weight = (float *)array_of(t->n, 4, odd);
    if (t->grad || !t->frozen) b->grad[i] = array_of(values, size_of(t->grad_type), odd);
    else b->grad[i] = NULL;
    if (t->grad) x.grad = b->grad[i];
    if (t->model)
        x.model = t->model == (void *)t->weight ? (void *)x.weight
                                                : array_of(t->n, size_of(t->model_type), odd);
    if (t->rows) {
        rows->rows = b->rows[i] = (uint32_t *)array_of(rows->max_rows, 4, 0);
        rows->num_rows = b->num_rows[i] = (uint32_t *)array_of(1, 4, 0);
        *b->num_rows[i] = 0;
        x.rows = rows;
    }
    b->weight[i] = x.weight;
    b->model[i]  = x.model;
    return x;
}

static int has_room(size_t n) {
    return w.m.num < MAX_T && (size_t)w.m.elements + n < MAX_E &&
           (size_t)w.m.num_values + n < MAX_E;
}

/* Add t, of which flags tell what it has. */
static void add_tensor(const amp_tensor *t, amp_rows *of, amp_result expected, int overlaps) {
    static amp_rows rows[BODIES];
    const int       i = w.m.num;
    int             k;
    say("add%s n %d%s%s%s grad type %d model type %d rows of %d, at most %d, storage %d",
        t->own ? " own" : "", (int)t->n, t->weight ? " weight" : "", t->model ? " model" : "",
        t->frozen ? " frozen" : t->grad ? (overlaps ? " grad of the last" : " grad") : "",
        (int)t->grad_type, (int)t->model_type, t->rows ? (int)of->row_length : 0,
        t->rows ? (int)of->max_rows : 0,
        t->storage ? (int)t->storage->master * 8 + (int)t->storage->moments : -1);
    for (k = 0; k < 1 + w.two; k++) {
        rows[k]      = *of;
        job.whole[k] = *t;
        if (m_ready(&w.m, ADDING) == AMP_OK) job.whole[k] = with_arrays(k, i, t, &rows[k]);
        if (overlaps) job.whole[k].grad = w.bodies[k].grad[i - 1];
    }
    attempt(ADD);
    if (m_ready(&w.m, ADDING) == AMP_OK && !w.m.refused) w.m.refused = expected;
    if (expect(ADD, expected) != AMP_OK) return;
    w.overlaps |= overlaps;
    m_add(&w.m, t);
    fill_tensor(i, t);
    w.given[i] = *t; /* for again */
    if (t->rows) w.given_rows[i] = *t->rows, w.given[i].rows = &w.given_rows[i];
    if (t->storage) w.given_storage[i] = *t->storage, w.given[i].storage = &w.given_storage[i];
}

static void call_add(int illegal) {
    amp_rows    rows;
    amp_storage storage;
    amp_tensor  t        = some_tensor(w.m.num, one_in(10), &rows, &storage);
    amp_result  expected = m_ready(&w.m, ADDING);
    size_t      values;
    int         overlaps;
    if (illegal) spoil_tensor(&t, &rows);
    values = t.rows ? rows.row_length * rows.max_rows : t.n;
    if (!has_room(values) || !has_room(t.n)) return;
    if (expected == AMP_OK) expected = may_add(&t, 0);
    overlaps = one_in(60) && expected == AMP_OK && w.m.num && t.grad && !t.frozen && values &&
               w.m.t[w.m.num - 1].has_grad && w.m.t[w.m.num - 1].values;
    add_tensor(&t, &rows, expected, overlaps);
}

/* A tensor of an array: own, frozen and keep_fp32 are whole's, too. */
static amp_tensor part_of(const amp_tensor *whole, const amp_tensor *part) {
    amp_tensor t = *part;
    t.weight = whole->weight, t.grad = whole->grad, t.frozen = part->frozen || whole->frozen;
    t.grad_type = whole->grad_type, t.own = part->own || whole->own;
    t.keep_fp32 = part->keep_fp32 || whole->keep_fp32;
    return t;
}

/* Tensors that lie one behind the other. */
static void call_flat(int illegal) {
    const int  count = 1 + (int)below(4), first = w.m.num;
    amp_rows   rows;
    amp_storage storage;
    amp_tensor whole = some_tensor(first, 0, &rows, &storage), part[4];
    amp_result expected = m_ready(&w.m, ADDING);
    int        i, k;
    whole.rows = NULL, whole.storage = NULL, whole.model = NULL,
    whole.weight = (float *)(void *)&whole, whole.n = 0;
    for (i = 0; i < count; i++) {
        part[i] = some_tensor(first + i, 0, &rows, &storage);
        part[i].rows = NULL, part[i].storage = NULL, part[i].model = NULL;
        part[i].n %= 20;
        whole.n += part[i].n;
    }
    if (w.m.num + count > MAX_T || !has_room(whole.n)) return;
    say("add_flat of %d, n %d%s%s", count, (int)whole.n,
        whole.frozen ? " frozen" : whole.grad ? " grad" : "",
        illegal ? " and 1" : "");
    whole.n += (size_t)(illegal != 0);
    if (expected == AMP_OK) expected = may_add(&whole, 1);
    for (i = 0; i < count && expected == AMP_OK; i++) {
        const amp_tensor t = part_of(&whole, &part[i]);
        expected = may_add(&t, 1);
    }
    if (illegal && expected == AMP_OK) expected = AMP_ERROR_INVALID_ARGUMENT;
    for (k = 0; k < 1 + w.two; k++) {
        job.whole[k] = whole;
        memcpy(job.tensors[k], part, sizeof part);
        if (expected == AMP_OK) job.whole[k] = with_arrays(k, first, &whole, &rows);
    }
    job.count = count;
    attempt(FLAT);
    if (m_ready(&w.m, ADDING) == AMP_OK && !w.m.refused) w.m.refused = expected;
    if (expect(FLAT, expected) != AMP_OK) return;
    for (i = 0; i < count; i++) {
        amp_tensor t = part_of(&whole, &part[i]);
        size_t at =
            (size_t)(i ? w.m.t[first + i - 1].at + w.m.t[first + i - 1].n - w.m.t[first].at : 0);
        m_add(&w.m, &t);
        w.given[first + i] = t;
        for (k = 0; k < 1 + w.two; k++) {
            body     *b    = &w.bodies[k];
            const int type = (int)whole.grad_type;
            char *grads    = (char *)(i ? job.grads[k][0] : b->grad[first]);
            if (!i) job.grads[k][0] = grads, job.weights[k][0] = b->weight[first];
            b->weight[first + i] = job.weights[k][0] + at;
            b->grad[first + i]   = grads ? grads + at * size_of((amp_dtype)type) : NULL;
            b->model[first + i]  = NULL;
            b->rows[first + i] = b->num_rows[first + i] = NULL;
        }
    }
    for (i = 0; i < count; i++) fill_tensor(first + i, &whole);
}

static void call_prepare(void) {
    amp_result expected = m_ready(&w.m, ADDING);
    int        i, needs = 0;
    say("prepare");
    if (expected == AMP_OK) expected = w.m.refused;
    if (expected == AMP_OK && w.overlaps) expected = AMP_ERROR_OVERLAP;
    attempt(PREPARE);
    if (expect(PREPARE, expected) != AMP_OK) return;
    m_prepare(&w.m);
    for (i = 0; i < w.m.num; i++) needs |= !m_plain(&w.m.t[i]);
    if (!needs && w.two) amp_optimizer_free(&w.bodies[TWIN].opt), w.two = 0;
    if (w.two) (void)amp_optimizer_loss_scale_ptr(&w.bodies[TWIN].opt);
}

static void call_ask(void) {
    const amp_optimizer *o = &w.bodies[0].opt;
    const int            how = (int)below(4);
    amp_status           status;
    say("ask %d\n", how);
    if (how == 0) (void)amp_optimizer_loss_scale(o);
    else if (how == 1) (void)amp_optimizer_loss_scale_ptr(o);
    else if (how == 2) (void)amp_optimizer_scaler(o);
    else (void)amp_optimizer_status(o, &status);
    if (w.m.prepared && how < 3) w.m.asked = 1; /* status does not ask */
}

/* New gradients of one kind, written where amp.h reads them. */
static void write_grad(int i) {
    const m_tensor *t = &w.m.t[i];
    int             r, k;
    for (r = 0; r < 1 + w.two; r++) {
        body *b = &w.bodies[r];
        for (k = 0; k < t->values && b->grad[i]; k++)
            put_value(b->grad[i], t->grad_type, k, w.m.grad[t->first + k]);
        for (k = 0; k < t->most; k++) memcpy(&b->rows[i][k], &w.m.rows[t->first + k], 4);
        if (b->num_rows[i]) *b->num_rows[i] = w.m.num_rows[i];
    }
}

static void call_grads(int how, int all) {
    int i, k, at;
    say("gradients of kind %d\n", how);
    for (i = 0; i < w.m.num && m_ready(&w.m, BETWEEN) == AMP_OK; i++) {
        m_tensor *t = &w.m.t[i];
        if (!all && one_in(2)) continue;
        for (k = 0; k < t->values; k++) {
            f32 *g = &w.m.grad[t->first + k];
            *g     = rounded(t->grad_type, any_number(how > 4 ? 0 : how));
            if (odd32(*g) && how != 2) *g = 0;
        }
        at = t->values && how == 5 && one_in(2) ? t->first + (int)below((unsigned)t->values) : -1;
        if (at >= 0) w.m.grad[at] = one_in(2) ? 0x7fc00000 : 0xff800000;
        if (t->length)
            w.m.num_rows[i] = one_in(9) ? (uint32_t)t->most + 1 : below((unsigned)t->most + 1);
        if (!t->n) w.m.num_rows[i] = 0;
        for (k = 0; k < t->most; k++)
            w.m.rows[t->first + k] =
                t->n ? below((unsigned)(t->n / t->length) + (unsigned)one_in(40)) : 0;
        write_grad(i);
    }
}

/* The user's own optimizer: SGD on what amp_optimizer_grad has. */
static void own_optimizer(f32 lr) {
    int i, k, r;
    say("    own optimizer\n");
    for (r = 0; r < 1 + w.two; r++)
        for (i = 0; i < w.m.num; i++) {
            float       *p = amp_optimizer_master(&w.bodies[r].opt, i);
            const float *g = amp_optimizer_grad(&w.bodies[r].opt, i);
            for (k = 0; k < w.m.t[i].n && g; k++)
                put_value(p, AMP_F32, k,
                          sub32(value_at(p, AMP_F32, k), mul32(lr, value_at(g, AMP_F32, k))));
        }
    for (i = 0; i < w.m.num; i++)
        for (k = 0; k < w.m.t[i].n && w.m.t[i].has_grad && m_yours(&w.m, &w.m.t[i]); k++) {
            f32      *p = &w.m.w[w.m.t[i].at + k];
            const f32 g = w.m.in_place && w.m.t[i].grad_type == (int)AMP_F32
                              ? w.m.grad[w.m.t[i].first + k]
                              : w.m.unscaled[w.m.t[i].at + k];
            *p = sub32(*p, mul32(lr, g));
        }
}

static void call_begin(int steps) {
    int should;
    say("begin_step");
    attempt(BEGIN);
    should = m_begin_step(&w.m, scaler_of());
    expect(BEGIN, AMP_OK);
    if (w.bodies[0].truth != (should != 0)) stop("begin_step is %d", w.bodies[0].truth);
    if (should && steps) own_optimizer(0x3d000000);
}

static void call_check(void) {
    say("check");
    attempt(CHECK);
    expect(CHECK, m_open(&w.m, scaler_of()));
}
static void call_unscale(void) {
    say("unscale");
    attempt(UNSCALE);
    expect(UNSCALE, m_unscale(&w.m));
}
static void call_end(void) {
    say("end_step");
    attempt(END);
    expect(END, m_end_step(&w.m, scaler_of()));
}

static float some_rate(int illegal) {
    static const uint32_t bad[] = {0xbf800000, 0x7fc00000, 0x7f800000};
    f32 x = illegal ? bad[below(3)] : one_in(10) ? 0 : 0x3b000000 + below(0x3000000);
    float lr;
    memcpy(&lr, &x, 4);
    return lr;
}
static void call_step(int illegal) {
    amp_result expected;
    char       without[16];
    snprintf(without, sizeof without, "tensor %d", m_without_moments(&w.m));
    job.rate = some_rate(illegal);
    say("step %08x", bits32(job.rate));
    attempt(STEP);
    expected = m_step(&w.m, scaler_of(), &job.rate);
    if (m_can_step(&w.m, 1) == AMP_OK && m_without_moments(&w.m) >= 0 &&
        strncmp(amp_problem(), without, strlen(without)) != 0)
        stop("moments of %s were not set, but its message is \"%s\"", without, amp_problem());
    expect(STEP, expected);
}
static void call_graph(void) {
    say("step_graph");
    attempt(GRAPH);
    expect(GRAPH, m_step(&w.m, scaler_of(), NULL));
}
static void call_set_lr(int illegal) {
    amp_result expected = m_ready(&w.m, AFTER);
    job.rate = some_rate(illegal);
    if (expected == AMP_OK && m_bad_rate(job.rate)) expected = AMP_ERROR_INVALID_CONFIG;
    say("set_lr %08x", bits32(job.rate));
    attempt(SET_LR);
    if (expect(SET_LR, expected) == AMP_OK) w.m.lr = bits32(job.rate), w.m.has_lr = 1;
}

/* Moments of tensor i, which need not be there. */
static void call_moments(int i, int illegal) {
    static f32 values[2][MAX_E];
    const int  there = i >= 0 && i < w.m.num, n = there ? w.m.t[i].n : 1;
    int        has = there ? m_has(&w.m, &w.m.t[i]) : 0, r, k, j;
    const int  zeros = one_in(4); /* which a step of 0, and moments of 8 bits, take */
    if (illegal) has = (int)below(3);
    for (k = 0; k < 2; k++)
        for (j = 0; j < n; j++) {
            values[k][j] = zeros ? 0 : any_number(one_in(10) ? (int)below(5) : 0);
            if (k && !one_in(30)) values[k][j] &= SIGN_LESS;
        }
    for (r = 0; r < 1 + w.two; r++)
        for (k = 0; k < 2; k++) {
            float *x = NULL;
            if (k < has && (n || illegal || one_in(2)))
                x = (float *)array_of((size_t)n, 4, (int)(w.shape >> 6 & 1));
            for (j = 0; j < n && x; j++) put_value(x, AMP_F32, j, values[k][j]);
            job.moments[r][k] = x;
        }
    job.index = i;
    say("moments of %d, %d of them", i, has);
    attempt(MOMENTS);
    (void)expect(MOMENTS, m_set_moments(&w.m, i, has > 0 ? values[0] : NULL,
                                        has > 1 ? values[1] : NULL));
}

/* A run of another program, whose moments come, too, or do not. */
static void call_set_steps(int illegal) {
    static const uint64_t counts[] = {0, 1, 40, 0x7ffffffffffffff0u};
    job.steps = counts[below(4)], job.skipped = counts[below(3)];
    if (illegal) *(one_in(2) ? &job.steps : &job.skipped) |= (uint64_t)1 << 63;
    say("set_steps %llu, %llu skipped", (unsigned long long)job.steps, (unsigned long long)job.skipped);
    attempt(SET_STEPS);
    (void)expect(SET_STEPS, m_set_steps(&w.m, job.steps, job.skipped));
}

/* Of all tensors. */
static void call_all_moments(void) {
    int i;
    for (i = 0; i < w.m.num; i++) call_moments(i, 0);
}

/* Tensors move, or get a gradient (1), or lose it for a while (2). A weight that moves may have
   other numbers then. */
static amp_result may_bind(int i, int weight, int grad) {
    const m_tensor *t = &w.m.t[i];
    if (weight && !t->own_weight && !m_coded(t)) return AMP_ERROR_UNSUPPORTED;
    return grad == 1 && t->frozen ? AMP_ERROR_UNSUPPORTED : AMP_OK;
}
/* New arrays for tensor i, in place slot of the job. */
static void new_arrays(int slot, int i, int weight, int grad) {
    const m_tensor *t = &w.m.t[i];
    f32             values[MAX_E];
    int             r, k;
    for (k = 0; k < t->n && weight; k++)
        values[k] = one_in(3) || m_coded(t) ? any_number(0) : w.m.w[t->at + k];
    for (r = 0; r < 1 + w.two; r++) {
        float *x = weight ? (float *)array_of((size_t)t->n, 4, 0) : NULL;
        void  *g = NULL;
        if (grad == 1) g = array_of((size_t)t->values, size_of((amp_dtype)t->grad_type), 1);
        for (k = 0; k < t->n && x; k++) put_value(x, AMP_F32, k, values[k]);
        for (k = 0; k < t->values && g; k++)
            put_value(g, t->grad_type, k, w.m.grad[t->first + k]);
        job.weights[r][slot] = x;
        job.grads[r][slot]   = grad == 2 ? AMP_NO_GRAD : g;
    }
}

/* They are tensor i's. */
static void bound(int slot, int i, int weight, int grad) {
    m_tensor *t = &w.m.t[i];
    int       r, k;
    for (r = 0; r < 1 + w.two; r++) {
        if (weight) w.bodies[r].weight[i] = job.weights[r][slot];
        if (grad == 1) w.bodies[r].grad[i] = job.grads[r][slot];
    }
    for (k = 0; k < t->n && weight && !m_coded(t); k++)
        w.m.w[t->at + k] = value_at(job.weights[0][slot], AMP_F32, k);
    w.changed |= weight;
    if (weight && m_coded(t)) t->brought = 1;
    for (k = 0; k < t->n && weight && t->frozen && !m_coded(t); k++) m_write_model(&w.m, t, k);
    if (grad) t->given = 1, t->has_grad = grad == 1;
}

static void call_rebind(void) {
    const int  i = (int)below((unsigned)w.m.num + 2) - 1, weight = one_in(3), grad = (int)below(3);
    const int  there    = i >= 0 && i < w.m.num;
    amp_result expected = m_ready(&w.m, BETWEEN);
    int        r;
    if (expected == AMP_OK && !there) expected = AMP_ERROR_INVALID_ARGUMENT;
    if (expected == AMP_OK) expected = may_bind(i, weight, grad);
    say("rebind %d%s%s", i, weight ? " weight" : "", grad == 2 ? " no grad" : grad ? " grad" : "");
    for (r = 0; r < BODIES; r++) job.weights[r][0] = NULL, job.grads[r][0] = NULL;
    if (there) new_arrays(0, i, weight, grad);
    job.index = i;
    attempt(REBIND);
    if (expect(REBIND, expected) != AMP_OK) return;
    bound(0, i, weight, grad);
}

/* Of some tensors, or of all that may; or (2) gradients of those that still need one. */
static void call_rebind_all(int all) {
    const int  safe = all || !one_in(3);
    int        weights[MAX_T], grads[MAX_T], i;
    amp_result expected = m_ready(&w.m, BETWEEN);
    job.all_weights = all == 1 || (!all && one_in(2)), job.all_grads = all == 2 || (!all && one_in(2));
    for (i = 0; i < w.m.num; i++) {
        weights[i] =
            job.all_weights && (all || one_in(2)) && (!safe || may_bind(i, 1, 0) == AMP_OK);
        grads[i]   = job.all_grads && (all < 2 || !(w.m.t[i].given || w.m.t[i].frozen)) ? (int)below(3) : 0;
        if (safe && grads[i] == 1 && w.m.t[i].frozen) grads[i] = 2;
        if (expected == AMP_OK) expected = may_bind(i, weights[i], grads[i]);
        new_arrays(i, i, weights[i], grads[i]);
    }
    say("rebind_all%s%s", job.all_weights ? " weights" : "", job.all_grads ? " grads" : "");
    for (i = 0; i < w.m.num; i++) say(" %d/%d", weights[i], grads[i]);
    attempt(REBIND_ALL);
    if (expect(REBIND_ALL, expected) != AMP_OK) return;
    for (i = 0; i < w.m.num; i++) bound(i, i, weights[i], grads[i]);
}

/* The user writes to masters: an average, the best ones. */
static void call_masters(void) {
    int i, r, k;
    say("masters\n");
    w.changed = 1;
    for (i = 0; i < w.m.num && w.m.prepared; i++)
        for (k = 0; k < w.m.t[i].n && !m_coded(&w.m.t[i]); k++) {
            const f32 x = any_number(0);
            w.m.w[w.m.t[i].at + k] = x;
            for (r = 0; r < 1 + w.two; r++)
                put_value(amp_optimizer_master(&w.bodies[r].opt, i), AMP_F32, k, x);
        }
}

static void call_refresh(void) {
    amp_result expected = m_ready(&w.m, BETWEEN);
    int        i;
    for (i = 0; i < w.m.num && expected == AMP_OK; i++)
        if (m_coded(&w.m.t[i]) && w.m.t[i].n && !w.m.t[i].brought) expected = AMP_ERROR_BAD_STATE;
    say("refresh");
    attempt(REFRESH);
    if (expect(REFRESH, expected) != AMP_OK) return;
    w.changed = 0;
    for (i = 0; i < w.m.num; i++) {
        int k;
        for (k = 0; k < w.m.t[i].n && w.m.t[i].brought; k++)
            w.m.w[w.m.t[i].at + k] = value_at(w.bodies[0].weight[i], AMP_F32, k);
        w.m.t[i].brought = 0;
    }
    m_refresh(&w.m);
}

/* ------------------------------------------------------------------------------ state and files */

static char disk[4000];

static void path_of(char *path, size_t size, int slot) {
    snprintf(path, size, "%s.%d", disk, slot);
}

static void call_save(int slot) {
    saved           *f        = &w.saves[slot];
    const amp_result expected = m_ready(&w.m, BETWEEN);
    const int        on_disk  = one_in(8);
    const operation  op       = on_disk ? SAVE_FILE : SAVE;
    char             path[4096];
    path_of(path, sizeof path, slot);
    job.path = path, job.file = &f->file;
    say("save to %d%s", slot, on_disk ? " on disk" : "");
    if (expected == AMP_OK || !on_disk) f->is = EMPTY;
    attempt(op);
    if (expect(op, expected) != AMP_OK) return;
    f->is = GOOD, f->on_disk = on_disk, f->m = w.m, f->scaler = *scaler_of();
    f->file.at = f->twin.size = 0;
    job.file = &f->twin;
    if (w.two) SAME("the twin's save", perform(SAVE, &w.bodies[TWIN]), AMP_OK);
}

static void call_load(int slot) {
    saved          *f = &w.saves[slot];
    const operation op = f->on_disk ? LOAD_FILE : LOAD;
    amp_result      expected = m_ready(&w.m, BETWEEN), fits = AMP_OK, got;
    char            path[4096];
    int             i, k, lost = 0;
    if (f->is == EMPTY && f->on_disk) return;
    path_of(path, sizeof path, slot);
    job.path = path, job.file = &f->file;
    say("load from %d%s", slot, f->on_disk ? " on disk" : "");
    if (expected == AMP_OK && f->is != EMPTY) fits = m_fits(&w.m, &f->m);
    if (expected == AMP_OK)
        expected = f->is == EMPTY || f->is == TORN ? AMP_ERROR_READ
                   : f->is == CHANGED              ? AMP_ERROR_CORRUPT
                                                   : fits;
    attempt(op);
    got = w.bodies[0].result;
    if (f->is == CHANGED && expected == AMP_ERROR_CORRUPT &&
        (f->file.at <= 32 ? got == AMP_ERROR_FOREIGN || got == AMP_ERROR_CORRUPT
                          : fits != AMP_OK && got == AMP_ERROR_MISMATCH))
        expected = got;
    if (f->is == TORN && fits != AMP_OK && got == AMP_ERROR_MISMATCH) expected = got;
    if (expect(op, expected) != AMP_OK) return;
    m_load(&w.m, scaler_of(), &f->m, &f->scaler);
    job.file = &f->twin;
    if (w.two) {
        if (!f->twin.size) lost = 1;
        else SAME("the twin's load", perform(LOAD, &w.bodies[TWIN]), AMP_OK);
    }
    for (i = 0; i < w.m.num; i++) { /* numbers of a storage format that is not modelled */
        const float *master = amp_optimizer_master(&w.bodies[0].opt, i);
        const int    has = m_has(&w.m, &w.m.t[i]);
        float        moment[2][MAX_E];
        if (m_plain(&f->m.t[i]) || !m_plain(&w.m.t[i])) continue;
        if (!master) lost = 1;
        for (k = 0; k < w.m.t[i].n && master; k++)
            w.m.w[w.m.t[i].at + k] = value_at(master, AMP_F32, k);
        SAME("moments' result",
             amp_optimizer_moments(&w.bodies[0].opt, i, has ? moment[0] : NULL,
                                   has > 1 ? moment[1] : NULL),
             AMP_OK);
        for (k = 0; k < w.m.t[i].n * has; k++)
            w.m.moment[k / w.m.t[i].n][w.m.t[i].at + k % w.m.t[i].n] =
                value_at(moment[k / w.m.t[i].n], AMP_F32, k % w.m.t[i].n);
        m_refresh(&w.m);
    }
    if (lost) longjmp(failed, 2);
}

/* A file is cut, or a bit of it is another one; and then loaded, or later. */
static void call_damage(int slot) {
    int tries, at;
    for (tries = 0; tries < FILES && (w.saves[slot].is != GOOD || w.saves[slot].on_disk); tries++)
        slot = (slot + 1) % FILES;
    if (tries == FILES) return;
    at = (int)below(one_in(3) ? 32 : (unsigned)w.saves[slot].file.size);
    say("damage %d at %d of %d\n", slot, at, (int)w.saves[slot].file.size);
    w.saves[slot].is = one_in(2) ? TORN : CHANGED;
    if (w.saves[slot].is == TORN) w.saves[slot].file.size = (size_t)at;
    else w.saves[slot].file.data[at] ^= (unsigned char)(1u << below(8));
    if (one_in(2)) call_load(slot);
}

/* ------------------------------------------------------------------------------------- scalers */

static void call_scaler(void) {
    static const uint32_t inf[] = {0x7f800000, 0x3f800000};
    const int  what = (int)below(5);
    const float scale = what == 1 ? 2048.0f : 0.5f;
    int        r;
    amp_result is = AMP_OK, should = AMP_OK;
    if (!w.m.prepared || (!w.m.asked && !w.m.shared) || (w.m.open && (what != 3 || w.m.shared)))
        return;
    w.m.asked = 1;
    for (r = 0; r < 1 + w.two; r++) {
        amp_scaler *s = amp_optimizer_scaler(&w.bodies[r].opt);
        if (what <= 2 && w.m.shared) is = amp_scaler_update(s);
        else if (what <= 2) is = amp_scaler_set_scale(s, scale);
        else if (what == 3) s->found_inf = 7;
        else is = amp_scaler_unscale(s, NULL, &inf[w.m.step % 2], AMP_F32, 1);
        if (r) continue;
        if (what <= 2 && w.m.shared) {
            m_scaler *m = scaler_of();
            should = m->disabled || m->checked || m->found ? AMP_OK : AMP_ERROR_BAD_STATE;
            if (should == AMP_OK) m_scaler_update(m);
        } else if (what <= 2) should = m_set_scale(scaler_of(), scale);
        else if (what == 3) scaler_of()->found = 7;
        else if (!scaler_of()->disabled) {
            scaler_of()->checked++;
            scaler_of()->found |= w.m.step % 2 == 0;
        }
    }
    say("scaler %d (%s) = %s\n", what, w.m.shared ? "shared" : "own", amp_result_string(is));
    SAME("the scaler's result", is, should);
}

/* ------------------------------------------------------------------------------------ a session
   Products of the first 32 numbers of a weight, as 8 x 4, with 4 x 1024: copies of weights last
   until they change, or amp_session_changed says so. */

static amp_session the_session;
static float       activations[1024 * 4], product[2][1024 * 8];

static void end_session(void) {
    if (w.session.runs) amp_session_end(&the_session);
    if (blocks[BODIES + 1]) stop("a session leaves memory");
    memset(&w.session, 0, sizeof w.session);
}

static void observe_session(void) {
    int j, stale = 0;
    if (!w.session.runs) return;
    SAME("rounded", the_session.rounded, w.session.rounded);
    SAME("left_fp32", the_session.left_fp32, 0);
    SAME("hits", the_session.hits, w.session.hits);
    SAME("misses", the_session.misses, w.session.misses);
    SAME("transients", the_session.transients, w.session.transients);
    SAME("fallbacks", the_session.fallbacks, 0);
    for (j = 0; j < w.session.num; j++) {
        int k;
        if (!w.session.added[j].has_copy) continue;
        for (k = 0; k < 32; k++)
            stale |= w.session.added[j].copy[k] !=
                     rounded(AMP_F16, value_at(w.session.added[j].base, AMP_F32, k));
    }
    TELLS("session_check", amp_session_check(&the_session), stale ? AMP_ERROR_STALE : AMP_OK);
}

/* What the product with a weight has to be made of: the session's copy, or a new one. */
static void copy_of(const float *x, f32 *copy) {
    int j, k;
    for (k = 0; k < 32; k++) copy[k] = rounded(AMP_F16, value_at(x, AMP_F32, k));
    w.session.rounded += (uint64_t)w.session.runs;
    w.session.transients++; /* the activations */
    for (j = 0; j < w.session.num && w.session.added[j].base != x; j++) {}
    if (j == w.session.num) {
        w.session.transients++;
    } else if (w.session.added[j].has_copy) {
        memcpy(copy, w.session.added[j].copy, sizeof w.session.added[j].copy);
        w.session.hits++;
    } else {
        w.session.misses++;
        w.session.added[j].has_copy = 1;
        memcpy(w.session.added[j].copy, copy, sizeof w.session.added[j].copy);
    }
}

static void call_product(int i) {
    static amp_f16 a[1024 * 4], b[32];
    const float   *x = amp_optimizer_master(&w.bodies[0].opt, i);
    amp_autocast  *scope;
    f32            copy[32];
    int            k;
    if (!x || w.m.t[i].n < 32) return;
    say("product with %d\n", i);
    copy_of(x, copy);
    for (k = 0; k < 32; k++) put_value(b, AMP_F16, k, copy[k]);
    for (k = 0; k < 1024 * 4; k++) put_value(activations, AMP_F32, k, (f32)(0x3f800000 + 37 * k));
    for (k = 0; k < 1024 * 4; k++) put_value(a, AMP_F16, k, (f32)(0x3f800000 + 37 * k));
    SAME("a product", gemm_one(NULL, 1, 0, 8, 1024, 4, 1.0f, x, AMP_F32, 0, activations, AMP_F32, 0,
                               0.0f, product[0], AMP_F32, 0), AMP_OK);
    scope = amp_autocast_use(NULL);
    SAME("a product", gemm_one(NULL, 1, 0, 8, 1024, 4, 1.0f, b, AMP_F16, 0, a, AMP_F16, 0,
                               0.0f, product[1], AMP_F32, 0), AMP_OK);
    amp_autocast_use(scope);
    for (k = 0; k < 1024 * 8; k++)
        if (!same32(value_at(product[0], AMP_F32, k), value_at(product[1], AMP_F32, k)))
            stop("a product at %d is %08x, not %08x", k, value_at(product[0], AMP_F32, k),
                 value_at(product[1], AMP_F32, k));
}

static void call_session(int what, int i) {
    static const amp_allocator memory = {heap_alloc, heap_free, &blocks[BODIES + 1]};
    amp_session_desc of;
    const float *x = w.m.prepared ? amp_optimizer_master(&w.bodies[0].opt, i) : NULL;
    amp_result   should = AMP_OK;
    int          j;
    say("session %d of tensor %d\n", what, i);
    if (what == 0 && one_in(3)) {
        end_session();
        return;
    }
    if (what <= 1) {
        memset(&of, 0, sizeof of);
        of.num_bytes = 1 << 16;
        of.dtype     = AMP_F16;
        of.allocator = memory;
        SAME("session_start", amp_session_start(&the_session, &of),
             w.session.runs ? AMP_ERROR_BAD_STATE : AMP_OK);
        w.session.runs = 1;
    } else if (what <= 4 && x && w.m.t[i].n >= 32) {
        const size_t n = one_in(5) ? 0 : (size_t)w.m.t[i].n;
        should = w.session.runs ? AMP_OK : AMP_ERROR_NOT_INITIALIZED;
        if (w.session.num == 8) return;
        SAME("session_add", amp_session_add(&the_session, x, n), should);
        for (j = 0; j < w.session.num && w.session.added[j].base != x; j++) {}
        if (should == AMP_OK && j < w.session.num)
            w.session.added[j] = w.session.added[--w.session.num];
        if (should != AMP_OK || !n) return;
        w.session.added[w.session.num].base       = x;
        w.session.added[w.session.num++].has_copy = 0;
    } else if (what == 5) {
        const float *which = one_in(2) ? x : NULL;
        amp_session_changed(&the_session, which);
        for (j = 0; j < w.session.num; j++)
            if (!which || w.session.added[j].base == which) w.session.added[j].has_copy = 0;
    }
}

/* A session that knows most of what there is; or, if one runs, one thing about it. */
static void do_session(void) {
    int i;
    if (w.session.runs || one_in(6)) {
        const int what = (int)below(8);
        call_session(what, w.m.num ? (int)below((unsigned)w.m.num) : 0);
        return;
    }
    call_session(1, 0);
    for (i = 0; i < w.m.num; i++)
        if (!one_in(3)) call_session(3, i);
}

/* ----------------------------------------------------------------------------------- sequences */

typedef enum kind {
    DO_INIT, DO_FREE, DO_ADD, DO_FLAT, DO_PREPARE, DO_ASK, DO_GRADS, DO_STEP, DO_CHECK, DO_BEGIN,
    DO_UNSCALE, DO_END, DO_FUSED, DO_GRAPH, DO_SET_LR, DO_REBIND, DO_REBIND_ALL, DO_MASTERS,
    DO_REFRESH, DO_SAVE, DO_LOAD, DO_AGAIN, DO_DAMAGE, DO_SCALER, DO_SET_STEPS,
    DO_BRING, DO_SESSION, DO_MOMENTS, KINDS
} kind;
static const unsigned char shares[KINDS] = {1, 1, 2, 1, 2, 3, 6, 40, 2, 2, 2, 3, 3,
                                            3, 2, 4, 3, 2, 3, 4, 5, 5, 2, 5, 2, 3, 5, 3};

typedef struct sequence {
    uint64_t seed;
    int num;
    struct {
        kind what;
        uint64_t seed;
    } call[MAX_CALLS];
} sequence;

static void make_sequence(sequence *q, uint64_t seed) {
    int i;
    memset(q, 0, sizeof *q);
    rng     = seed * 0x9e3779b97f4a7c15u + 1;
    random_next(&rng);
    q->seed = (uint64_t)random_next(&rng) << 32 | seed;
    q->call[q->num++].what = DO_INIT;
    for (i = 1 + (int)below(4); i > 0; i--) q->call[q->num++].what = one_in(5) ? DO_FLAT : DO_ADD;
    for (i = one_in(30) ? 34 : 0; i > 0; i--) q->call[q->num++].what = DO_ADD;
    q->call[q->num++].what = DO_PREPARE;
    if (!one_in(8)) q->call[q->num++].what = DO_ASK;
    for (i = 5 + (int)below(16); i > 0 && q->num < MAX_CALLS; i--) {
        unsigned at, all = 0, k;
        for (k = 0; k < KINDS; k++) all += shares[k];
        for (at = below(all), k = 0; at >= shares[k]; k++) at -= shares[k];
        q->call[q->num++].what = (kind)k;
    }
    for (i = 0; i < q->num; i++)
        q->call[i].seed = (uint64_t)random_next(&rng) << 32 | random_next(&rng);
}

/* A step of the kind that it is, of new gradients. */
static void do_step(void) {
    static const unsigned char kinds[] = {0, 0, 0, 0, 5, 5, 1, 2, 3, 4};
    if (m_ready(&w.m, BETWEEN) != AMP_OK && w.m.open) {
        call_end();
        return;
    }
    if (!one_in(6)) {
        const int how = kinds[below(10)];
        call_grads(how, one_in(3));
    }
    if (m_without_moments(&w.m) >= 0 && !one_in(4)) call_all_moments();
    if (w.m.kind != (int)AMP_KIND_OWN && (!m_owns(&w.m) || one_in(20))) {
        call_step(0);
    } else {
        if (m_owns(&w.m) && (one_in(5) || (!w.m.has_lr && !one_in(8)))) call_set_lr(0);
        call_begin(1);
        if (!one_in(5)) call_end();
    }
    if (w.m.shared && w.m.prepared && one_in(2)) call_scaler();
}

/* Saved, freed, prepared anew as it was and loaded, but with another seed, which the file replaces;
   the twin goes on. */
static void again_alone(int slot) {
    static m_optimizer before;
    const int          num = w.m.num, two = w.two;
    int                i;
    before = w.m;
    w.two  = 0;
    w.alone = two;
    call_free();
    job.desc = w.desc;
    job.desc.seed++;
    say("init as before, seed %d", (int)job.desc.seed);
    attempt(INIT);
    expect(INIT, AMP_OK);
    m_init(&w.m, &job.desc);
    w.m.more_norm2 = before.more_norm2;
    for (i = 0; i < num; i++) add_tensor(&w.given[i], &w.given_rows[i], AMP_OK, 0);
    call_prepare();
    memcpy(w.m.grad, before.grad, sizeof w.m.grad);
    memcpy(w.m.rows, before.rows, sizeof w.m.rows);
    memcpy(w.m.num_rows, before.num_rows, sizeof w.m.num_rows);
    for (i = 0; i < num; i++) write_grad(i);
    call_load(slot);
    w.two   = two;
    w.alone = 0;
    for (i = 0; i < num; i++) write_grad(i);
}

/* Saved, freed, prepared anew and loaded. */
static void do_again(void) {
    const int slot = (int)below(FILES), num = w.m.num;
    int       i, same = !w.changed && !w.overlaps;
    const int ready = m_ready(&w.m, BETWEEN) == AMP_OK;
    call_save(slot);
    if (!ready || one_in(6)) return;
    observe();
    for (i = 0; i < num; i++)
        same &= w.m.t[i].has_grad == (w.given[i].grad && !w.given[i].frozen);
    same &= m_without_moments(&w.m) < 0; /* or the twin would lack what the file brings */
    if (same && one_in(2)) {
        again_alone(slot);
        return;
    }
    call_init(0);
    for (i = 0; i < num; i++) call_add(0);
    call_prepare();
    call_load(slot);
}

/* Weights are brought for a refresh; what comes in between may take them. */
static void do_bring(int slot) {
    call_rebind_all(1);
    if (one_in(3)) do_step();
    else if (one_in(2)) call_save(slot), call_load(slot);
    call_refresh();
}

static void do_call(kind what) {
    const int slot = (int)below(FILES), how = (int)below(6);
    switch (what) {
    case DO_INIT: call_init(one_in(12)); break;
    case DO_FREE: call_free(); break;
    case DO_ADD: call_add(one_in(12)); break;
    case DO_FLAT: call_flat(one_in(12)); break;
    case DO_PREPARE:
        call_prepare();
        if (!one_in(4)) call_rebind_all(2);
        break;
    case DO_ASK: call_ask(); break;
    case DO_GRADS: call_grads(how, one_in(2)); break;
    case DO_STEP: do_step(); break;
    case DO_CHECK: call_check(); break;
    case DO_BEGIN: call_begin(one_in(2)); break;
    case DO_UNSCALE: call_unscale(); break;
    case DO_END: call_end(); break;
    case DO_FUSED: call_step(one_in(3)); break;
    case DO_GRAPH: call_graph(); break;
    case DO_SET_LR: call_set_lr(one_in(4)); break;
    case DO_REBIND: call_rebind(); break;
    case DO_REBIND_ALL: call_rebind_all(0); break;
    case DO_MASTERS: call_masters(); break;
    case DO_REFRESH: call_refresh(); break;
    case DO_SAVE: call_save(slot); break;
    case DO_LOAD: call_load(slot); break;
    case DO_AGAIN: do_again(); break;
    case DO_DAMAGE: call_damage(slot); break;
    case DO_SCALER: call_scaler(); break;
    case DO_SET_STEPS: call_set_steps(one_in(8)); break;
    case DO_BRING: do_bring(slot); break;
    case DO_SESSION: do_session(); break;
    case DO_MOMENTS:
        if (one_in(3)) call_all_moments();
        else call_moments((int)below((unsigned)w.m.num + 2) - 1, one_in(4));
        break;
    case KINDS: break;
    }
}

/* Run it: 1 if a check has failed, and why says which. */
static int run(const sequence *q) {
    volatile int result = 0;
    int          i, k;
    memset(&w, 0, sizeof w);
    w.shape = q->seed;
    (void)amp_cpu_force_tier(q->seed >> 8 & 1 ? NULL : q->seed >> 9 & 1 ? "c" : "avx2");
    fail_at.calls = fail_at.fired = 0;
    switch (setjmp(failed)) {
    case 0:
        for (i = 0; i < q->num; i++) {
            rng = q->call[i].seed;
            do_call(q->call[i].what);
            observe();
            for (k = 0; k < w.m.num && w.session.runs; k++)
                if (w.m.prepared && one_in(2)) call_product(k);
            observe_session();
        }
        call_free();
        break;
    case 1: result = 1; break;
    default: break; /* the model does not go on */
    }
    amp_session_end(&the_session);
    for (i = 0; i < BODIES + 2; i++)
        while (blocks[i]) drop(blocks[i] + 1);
    return result;
}

/* Print what fails, with no call that it does not need. */
static void show(sequence q, uint64_t seed) {
    int i, n;
    for (n = q.num; n > 0; n /= 2)
        for (i = 0; i + n <= q.num;) {
            sequence less = q;
            memmove(&less.call[i], &q.call[i + n], sizeof q.call[0] * (size_t)(q.num - i - n));
            less.num -= n;
            if (run(&less)) q = less;
            else i += n;
        }
    printf("sequence %llu, fault %d of kind %d:\n", (unsigned long long)seed, fail_at.at,
           (int)fail_at.kind);
    verbose = 1;
    (void)run(&q);
    verbose = 0;
    printf("\n  %s\n", why);
}

/* Sequences from seed on, and with faults if kind says so. Returns how many have failed. */
static int run_many(uint64_t seed, int count, fault with) {
    static sequence q;
    uint64_t        i;
    int             failures = 0, last;
    for (i = seed; i < seed + (uint64_t)count && failures < 3; i++) {
        make_sequence(&q, i);
        fail_at.kind = with;
        for (fail_at.at = 0, last = 0; fail_at.at <= last; fail_at.at++) {
            const int bad = run(&q);
            if (!fail_at.at && with) last = fail_at.calls;
            if (!bad) continue;
            failures++;
            show(q, i);
            break;
        }
    }
    return failures;
}

/* How many of 10,000: emulated processors, and sanitizers, take ten times as long and thrice. */
static int how_many(int all) {
    int n = test_state.quick > 1 ? all / 20 : test_state.quick ? all : 4 * all;
#ifdef __SANITIZE_ADDRESS__
    n /= 3;
#endif
    return n;
}

TEST(sequences,
     "the manual: what each call returns in each state, and all numbers, by a model of it") {
    CHECK_EQ_INT(run_many(1, how_many(10000), NOTHING), 0);
}
TEST(allocations_fail,
     "law 9: an allocation that fails is told, changes nothing, and the call can be made again") {
    CHECK_EQ_INT(run_many(100001, how_many(100), ALLOCATION), 0);
}
TEST(
    files_fail,
    "law 18: a read or write that fails is told, changes nothing, and the call can be made again") {
    CHECK_EQ_INT(run_many(200001, how_many(100), TRANSFER), 0);
}
TEST(reductions_fail, "promises: a reduction that fails is told, and a state that was saved goes "
                      "on to the same bits") {
    CHECK_EQ_INT(run_many(300001, how_many(100), REDUCTION), 0);
}

int main(int argc, char **argv) {
    const char *directory = getenv("TMPDIR");
    snprintf(disk, sizeof disk, "%s/amp_model_%ld",
             directory                       ? directory
             : access("/dev/shm", W_OK) == 0 ? "/dev/shm"
                                             : ".",
             (long)getpid());
    if (argc >= 3 && argv[1][0] != '-') {
        const char *kinds = "nars", *with = strchr(kinds, argc > 3 ? argv[3][0] : 'n');
        const int bad = run_many(strtoull(argv[1], NULL, 10), atoi(argv[2]),
                                 with ? (fault)(with - kinds) : NOTHING);
        printf("%d failed\n", bad);
        return bad != 0;
    }
    test_begin(argc, argv);
    RUN(sequences);
    RUN(allocations_fail);
    RUN(files_fail);
    RUN(reductions_fail);
    return test_end();
}
