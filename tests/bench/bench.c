/* bench.c - how close amp.h comes to what the memory of this machine allows.

   Every row has its own ceiling: a loop that moves the same bytes and computes nothing, measured in
   the same process, in turns with the function itself. A row is "name n=... GB/s ceiling ratio":
   medians over the rounds, bytes read plus written, and in brackets the quartiles of the ratio.
   "rows" touches one row of 64 in a hundred: beside a loop that moves these rows, and beside the step
   of all. "split", "bf16" and "8bit" are states, beside the default's step. The row "/ C" has the plain
   C tier in the ceiling's place, "/ fp32" the same in fp32. Time is the processor's, on one thread;
   with -fopenmp the last rows set two beside one.

   cc -O3 -march=native -I. tests/bench/bench.c -o bench && ./bench [n] [rounds]
   (-march=native is for the ceilings; amp.h chooses its instructions when it runs) */

#define _POSIX_C_SOURCE 200809L
#define AMP_IMPLEMENTATION
#include "amp.h"

#include "../support/gemm_args.h"
#include "../support/prepare.h"

#include <stdio.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "clock.h"

enum { MAX_ROUNDS = 101 };

static size_t    n, n_small = 100000;
static size_t    at; /* where small arrays begin: another place in each round, for pages differ */
static int       rounds = 9;
static float    *p, *m, *v; /* fp32 streams                       */
static uint16_t *g, *w;     /* half streams: gradients, weights   */

/* Of this process: other programs do not count, and all but the last rows have one thread. */
static clockid_t clock_used = CLOCK_PROCESS_CPUTIME_ID;

static double seconds(void (*run)(void), int repeat) {
    const double start = seconds_of(clock_used);
    int          i;
    for (i = 0; i < repeat; i++) run();
    return (seconds_of(clock_used) - start) / repeat;
}

/* One row: run, which does `work`, beside another, in turns. */
static void compare(const char *name, size_t size, double work, const char *unit,
                    const char *beside, int repeat, void (*run)(void), void (*other)(void)) {
    double a[MAX_ROUNDS], b[MAX_ROUNDS], ratio[MAX_ROUNDS];
    int    r;
    for (r = 0; r < rounds; r++) {
        at = n < 4 * n_small ? 0 : (size_t)(r + 1) * 12345677 % (n - 2 * n_small);
        seconds(run, 1);
        a[r] = seconds(run, repeat);
        seconds(other, 1);
        b[r]     = seconds(other, repeat);
        ratio[r] = b[r] / a[r];
    }
    printf("%-22s n=%-10lu %6.1f %-5s %-7s %6.1f  ratio=%.2f [%.2f %.2f]\n", name,
           (unsigned long)size, 1e-9 * work / quantile(a, rounds, 0.5), unit, beside,
           1e-9 * work / quantile(b, rounds, 0.5), quantile(ratio, rounds, 0.5),
           quantile(ratio, rounds, 0.25), quantile(ratio, rounds, 0.75));
    fflush(stdout);
}

/* Beside its ceiling. */
static void row(const char *name, size_t count, double bytes, void (*run)(void),
                void (*ceiling)(void)) {
    compare(name, count, bytes * (double)count, "GB/s", "loop", count < 1000000 ? 300 : 1, run,
            ceiling);
}

/* ------------------------------------------------------------ ceilings: bytes without arithmetic */

static volatile uint64_t sink;

static uint64_t read_bytes(const void *from, size_t num_bytes) {
    const uint64_t *q = (const uint64_t *)from;
    uint64_t        s0 = 0, s1 = 0, s2 = 0, s3 = 0, s4 = 0, s5 = 0, s6 = 0, s7 = 0;
    size_t          i;
    for (i = 0; i + 64 <= num_bytes / 8; i += 64) {
        size_t k;
        for (k = 0; k < 64; k += 8) {
            s0 |= q[i + k];
            s1 |= q[i + k + 1];
            s2 |= q[i + k + 2];
            s3 |= q[i + k + 3];
            s4 |= q[i + k + 4];
            s5 |= q[i + k + 5];
            s6 |= q[i + k + 6];
            s7 |= q[i + k + 7];
        }
    }
    return s0 | s1 | s2 | s3 | s4 | s5 | s6 | s7;
}

static void read_half(void) { sink = read_bytes(g, 2 * n); }

static void narrow(const uint32_t *from, uint16_t *to, size_t count) {
    size_t i;
    for (i = 0; i < count; i++) to[i] = (uint16_t)from[i];
}

static void widen(const uint16_t *from, uint32_t *to, size_t count) {
    size_t i;
    for (i = 0; i < count; i++) to[i] = from[i];
}

static void move_narrow(void) { narrow((const uint32_t *)(const void *)p, w, n); }
static void move_widen(void) { widen(g, (uint32_t *)(void *)m, n); }
static void move_narrow_small(void) { narrow((const uint32_t *)(const void *)(p + at), w + at, n_small); }
static void move_widen_small(void) { widen(g + at, (uint32_t *)(void *)(m + at), n_small); }

/* The five streams of an AdamW step: gradients read; p, m, v read and written; weights written. */
static void five_streams(void) {
    uint32_t *a = (uint32_t *)(void *)p, *b = (uint32_t *)(void *)m, *c = (uint32_t *)(void *)v;
    size_t    i;
    for (i = 0; i < n; i++) {
        const uint32_t x = a[i];
        a[i]             = b[i];
        b[i]             = c[i];
        c[i]             = x;
        w[i]             = g[i];
    }
}

static void read_and_five_streams(void) {
    read_half();
    five_streams();
}

/* ------------------------------------------------------------------------------ what is measured */

static amp_optimizer opt;

static void cast_f32_f16(void) { MUST(amp_cast(w, AMP_F16, p, AMP_F32, n)); }
static void cast_f16_f32(void) { MUST(amp_cast(m, AMP_F32, g, AMP_F16, n)); }
static void cast_f32_bf16(void) { MUST(amp_cast(w, AMP_BF16, p, AMP_F32, n)); }
static void cast_bf16_f32(void) { MUST(amp_cast(m, AMP_F32, g, AMP_BF16, n)); }
static void small_f32_f16(void) { MUST(amp_cast(w + at, AMP_F16, p + at, AMP_F32, n_small)); }
static void small_f16_f32(void) { MUST(amp_cast(m + at, AMP_F32, g + at, AMP_F16, n_small)); }
static void small_f32_bf16(void) { MUST(amp_cast(w + at, AMP_BF16, p + at, AMP_F32, n_small)); }
static void small_bf16_f32(void) { MUST(amp_cast(m + at, AMP_F32, g + at, AMP_BF16, n_small)); }
static void check(void) { sink = amp_all_finite(g, AMP_F16, n); }
static void normcheck(void) { opt.backend.functions->check_fn(&opt.backend, opt.plan); }
static void update(void) { opt.backend.functions->update_fn(&opt.backend, opt.plan, AMPI_JOB_FUSED); }
static void step(void) { MUST(amp_optimizer_step(&opt, 1e-4f)); }
static void step_in_c(void) {
    MUST(amp_cpu_force_tier("c"));
    MUST(amp_optimizer_step(&opt, 1e-4f));
    MUST(amp_cpu_force_tier(NULL));
}

/* Weights and gradients of an ordinary size; the five_streams loop has stirred them. */
static void reset(void) {
    uint32_t x = 1;
    size_t   i;
    for (i = 0; i < n; i++) {
        x    = x * 1664525u + 1013904223u;
        p[i] = (float)(int32_t)x * 1e-10f;
        m[i] = (float)(int32_t)x * 1e-12f;
        v[i] = 1e-4f;
        g[i] = (uint16_t)(0x3000u | (x >> 16 & 0x8fffu));
    }
}

static void prepare(void) {
    amp_optimizer_desc desc;
    amp_tensor         t;
    memset(&desc, 0, sizeof desc);
    memset(&t, 0, sizeof t);
    desc.dtype   = AMP_F16;
    desc.kind    = AMP_KIND_ADAMW;
    t.n          = n;
    t.weight     = p;
    t.grad       = g;
    t.grad_type  = AMP_F16;
    t.model      = w;
    t.model_type = AMP_F16;
    MUST(amp_optimizer_init(&opt, &desc));
    MUST(amp_optimizer_add(&opt, &t));
    if (prepare_scaled(&opt) != AMP_OK) {
        fprintf(stderr, "bench: no memory for the moments of %lu parameters; give a smaller n\n",
                (unsigned long)n);
        exit(1);
    }
    opt.plan->table[0].moment[0].data = m; /* the streams that five_streams moves */
    opt.plan->table[0].moment[1].data = v;
}

/* ------------------------------------------------------------- gradients of few rows: 1 in 100 */

enum { LENGTH = 64 };
static amp_optimizer table;
static uint32_t     *touched, num_touched;

static void step_rows(void) { MUST(amp_optimizer_step(&table, 1e-4f)); }

/* The rows of gradient, weight, moments and copy, in the same order, without arithmetic. */
static void move_rows(void) {
    uint32_t i;
    size_t   j;
    for (i = 0; i < num_touched; i++) {
        const size_t    at_row = (size_t)touched[i] * LENGTH;
        uint32_t       *a = (uint32_t *)(void *)(p + at_row), *b = (uint32_t *)(void *)(m + at_row);
        uint32_t       *c = (uint32_t *)(void *)(v + at_row);
        const uint16_t *from = g + (size_t)i * LENGTH;
        for (j = 0; j < LENGTH; j++) {
            const uint32_t x = a[j];
            a[j]             = b[j];
            b[j]             = c[j];
            c[j]             = x;
            w[at_row + j]    = from[j];
        }
    }
}

static void rows(void) {
    amp_optimizer_desc desc;
    amp_tensor         t;
    amp_rows           few;
    uint32_t           i, x = 7, all = (uint32_t)(n / LENGTH);
    num_touched = all / 100;
    touched     = (uint32_t *)malloc(4 * (size_t)num_touched + 4);
    if (!num_touched || !touched) return;
    for (i = 0; i < num_touched; i++) {
        x          = x * 1664525u + 1013904223u;
        touched[i] = (uint32_t)((uint64_t)x * all >> 32);
    }
    memset(&desc, 0, sizeof desc);
    memset(&t, 0, sizeof t);
    desc.dtype   = AMP_F16;
    desc.kind    = AMP_KIND_ADAMW;
    t.n          = (size_t)all * LENGTH;
    t.rows       = &few;
    few.row_length = LENGTH;
    few.max_rows   = num_touched;
    few.rows       = touched;
    few.num_rows   = &num_touched;
    t.weight     = p;
    t.grad       = g;
    t.grad_type  = AMP_F16;
    t.model      = w;
    t.model_type = AMP_F16;
    MUST(amp_optimizer_init(&table, &desc));
    MUST(amp_optimizer_add(&table, &t));
    if (prepare_scaled(&table) != AMP_OK) return;
    table.plan->table[0].moment[0].data = m;
    table.plan->table[0].moment[1].data = v;
    reset();
    row("rows adamw-step f16", (size_t)num_touched * LENGTH, 28, step_rows, move_rows);
    reset();
    compare("rows adamw-step f16", (size_t)num_touched * LENGTH, 28e-2 * (double)n, "GB/s", "dense",
            1, step_rows, step);
    amp_optimizer_free(&table);
    free(touched);
}

/* A step in each storage format, beside one in fp32. */
static amp_optimizer stored;

static void step_storage(void) { MUST(amp_optimizer_step(&stored, 1e-4f)); }

static void states(void) {
#define KIND(name, master, moments) {name " adamw-step f16", {AMP_FORMAT_##master, AMP_FORMAT_##moments}},
    static const struct { const char *name; amp_storage storage; } kinds[] = {AMP_STORAGE_LIST(KIND)};
    static const double kept[] = {4, 2, 1 + 1.0 / 32, 2, 0}; /* of amp_storage_format; beside models */
    size_t k;
    for (k = 1; k < sizeof kinds / sizeof kinds[0]; k++) {
        const amp_storage *s     = &kinds[k].storage;
        const double       model = s->master == AMP_FORMAT_F32 ? 2 : 4; /* which fp32 only writes */
        const double       bytes = 2 * 2 + model + 2 * kept[s->master] + 4 * kept[s->moments];
        amp_optimizer_desc desc;
        amp_tensor         t;
        amp_result         result;
        memset(&desc, 0, sizeof desc);
        memset(&t, 0, sizeof t);
        desc.dtype  = AMP_BF16;
        desc.kind   = AMP_KIND_ADAMW;
        desc.storage = &kinds[k].storage;
        t.n         = n;
        t.weight    = p;
        t.grad      = g;
        t.grad_type = AMP_F16;
        MUST(amp_optimizer_init(&stored, &desc));
        MUST(amp_optimizer_add(&stored, &t));
        reset();
        result = prepare_scaled(&stored);
        reset(); /* weights, of which it has made NaN */
        if (result == AMP_OK)
            compare(kinds[k].name, n, bytes * (double)n, "GB/s", "default", 1, step_storage,
                    step);
        amp_optimizer_free(&stored);
    }
}

/* --------------------------------------- a report that samples one turn in a hundred, and none */

enum { WATCHED = 20, WATCHED_N = 50000, TURNS = 100 };
static amp_optimizer watched, unwatched;

static void hundred_steps(amp_optimizer *o) {
    int i;
    for (i = 0; i < TURNS; i++) MUST(amp_optimizer_step(o, 1e-6f));
}
static void steps_watched(void) { hundred_steps(&watched); }
static void steps_unwatched(void) { hundred_steps(&unwatched); }

static int prepare_watched(amp_optimizer *o, amp_dtype type, const amp_report_desc *report) {
    amp_optimizer_desc desc;
    amp_tensor         t;
    size_t             i;
    memset(&desc, 0, sizeof desc);
    memset(&t, 0, sizeof t);
    desc.kind   = AMP_KIND_ADAMW;
    desc.dtype  = type == AMP_BF16 ? AMP_BF16 : AMP_F16;
    desc.report = report;
    MUST(amp_optimizer_init(o, &desc));
    for (i = 0; i < WATCHED; i++) {
        t.n         = WATCHED_N;
        t.weight    = p + i * WATCHED_N;
        t.grad      = type == AMP_F32 ? (void *)(m + i * WATCHED_N) : (void *)(g + i * WATCHED_N);
        t.grad_type = type;
        MUST(amp_optimizer_add(o, &t));
    }
    return prepare_scaled(o) == AMP_OK;
}

static void reports(void) {
    static const char *const names[] = {"report f32", "report f16", "report bf16"};
    amp_report_desc          watch;
    int                      type;
    memset(&watch, 0, sizeof watch);
    watch.every = TURNS;
    for (type = 0; type < 3 && n >= (size_t)WATCHED * WATCHED_N; type++) {
        reset();
        if (prepare_watched(&watched, (amp_dtype)type, &watch) &&
            prepare_watched(&unwatched, (amp_dtype)type, NULL))
            compare(names[type], (size_t)WATCHED * WATCHED_N, 1.0 * WATCHED * WATCHED_N * TURNS, "Gel/s", "without",
                    1, steps_watched, steps_unwatched);
        amp_optimizer_free(&watched);
        amp_optimizer_free(&unwatched);
    }
}

#include "products.h"
#include "thin.h"

int main(int argc, char **argv) {
    n = argc > 1 ? (size_t)strtoul(argv[1], NULL, 10) : 100000000;
    if (argc > 2) rounds = (int)strtol(argv[2], NULL, 10);
    if (n_small > n) n_small = n;
    if (n < 1000 || rounds < 1 || rounds > MAX_ROUNDS) {
        fprintf(stderr, "usage: bench [n >= 1000] [rounds 1..%d]\n", MAX_ROUNDS);
        return 2;
    }
    p = (float *)malloc(4 * n);
    m = (float *)malloc(4 * n);
    v = (float *)malloc(4 * n);
    g = (uint16_t *)malloc(2 * n);
    w = (uint16_t *)malloc(2 * n);
    if (!p || !m || !v || !g || !w) {
        fprintf(stderr, "bench: no memory for %lu parameters; give a smaller n\n",
                (unsigned long)n);
        return 1;
    }
#ifdef _OPENMP
    omp_set_num_threads(1);
#endif
    reset();
    prepare();
    print_machine(amp_version(), amp_cpu_tier());
    row("cast f32-f16", n, 6, cast_f32_f16, move_narrow);
    row("cast f16-f32", n, 6, cast_f16_f32, move_widen);
    row("cast f32-bf16", n, 6, cast_f32_bf16, move_narrow);
    row("cast bf16-f32", n, 6, cast_bf16_f32, move_widen);
    row("cast f32-f16", n_small, 6, small_f32_f16, move_narrow_small);
    row("cast f16-f32", n_small, 6, small_f16_f32, move_widen_small);
    row("cast f32-bf16", n_small, 6, small_f32_bf16, move_narrow_small);
    row("cast bf16-f32", n_small, 6, small_bf16_f32, move_widen_small);
    row("check f16", n, 2, check, read_half);
    reset();
    row("normcheck f16", n, 2, normcheck, read_half);
    row("adamw f16", n, 28, update, five_streams);
    reset();
    row("adamw-step f16", n, 30, step, read_and_five_streams);
    rows();
    reports();
    states();
    reset();
    row("adamw-step f16 / C", n, 30, step, step_in_c);
    if (amp_cpu_force_tier("avx2") == AMP_OK) {
        print_machine(amp_version(), amp_cpu_tier());
        row("normcheck f16", n, 2, normcheck, read_half);
        row("adamw f16", n, 28, update, five_streams);
        MUST(amp_cpu_force_tier(NULL));
    }
    products();
    thin();
    return 0;
}
