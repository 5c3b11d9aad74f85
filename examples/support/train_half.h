/* train_half.h - what gpt.c, cnn.c and ncf.c share of training in half: memory, --report, the
   policy's answers, rows of halves, gradients, the schedule, time

   It needs amp.h with its implementation, and train_compare.h for the options. The program has a
   struct net as train_runs.h says, and defines the functions that are declared here.             */

#ifndef TRAIN_HALF_H
#define TRAIN_HALF_H

#include "train_compare.h"
#include "train_lines.h" /* --report */

#ifdef _OPENMP
#include <omp.h>
#else
#include <time.h>
#endif

static amp_status status_of(const amp_optimizer *opt) {
    amp_status status;
    must(amp_optimizer_status(opt, &status));
    return status;
}

/* A batch follows from the seed and the count of steps taken. So a step that was skipped, after an overflow,
   is done again with the same data and a smaller scale; all types see the same data in the same steps; and a
   resumed run needs no state but amp.h's. */
static void   load_batch(net *n, uint64_t step);
static double batch_loss(net *n); /* of the batch at hand, by forward                              */
static void   backward(net *n);   /* from there to gradients, scaled                               */

/* ----------------------------------------------------------------------------- memory, optimizer */

static inline size_t max_of(size_t a, size_t b) { return a > b ? a : b; }

/* Memory that net_free releases and the table shows. */
static void *net_alloc(net *n, int memory, size_t count, amp_dtype type) {
    n->bytes[memory] += count * amp_dtype_size(type);
    return n->owned[n->num_owned++] = need(count, amp_dtype_size(type));
}

/* amp_gemm_args.tf32 of all products: fp16 takes three of bf16 parts instead of four where there is AMX. The
   fourth is below 2^-16 of the sum. fp32 stays fp32. */
static inline int takes_three(amp_dtype type) { return type == AMP_F16; }

/* With a workspace no product of a step allocates. */
static void make_workspace(net *n, size_t most) {
    must(amp_cpu_backend(&n->backend));
    n->backend.workspace_size = amp_gemm_workspace(most, most, most);
    n->backend.workspace      = net_alloc(n, WORK, n->backend.workspace_size / 4 + 1, AMP_F32);
}

/* One of all runs writes the lines of --report. */
static int reports(const net *n) {
    const int all = n->o->dtype == ALL_TYPES;
    return n->o->report && n->seed == 0 && (int)n->type == (all ? (int)AMP_F16 : n->o->dtype);
}

static void begin_optimizer(net *n, amp_optimizer_desc *desc) {
    lines_open(&n->lines, reports(n) ? n->o->report : NULL, n->o->resume != NULL,
               (size_t)n->o->steps, type_names[n->type]);
    if (n->lines.file) desc->report = &n->lines.watch;
    desc->allocator = (amp_allocator){state_malloc, state_free, &n->bytes[STATE]};
    must(amp_optimizer_init(&n->opt, desc));
    for (int i = 0; i < n->num_tensors; i++) must(amp_optimizer_add(&n->opt, &n->tensor[i]));
    must(name_run(&n->opt, n->run));
    must(amp_optimizer_prepare(&n->opt));
}

static void net_free(net *n) {
    lines_close(&n->lines, &n->opt);
    amp_optimizer_free(&n->opt);
    while (n->num_owned > 0) free(n->owned[--n->num_owned]);
}

static float loss_scale(const net *n) { return amp_optimizer_loss_scale(&n->opt); }

/* Of a batch, scaled; returns its loss. */
static double gradients(net *n, uint64_t step) {
    load_batch(n, step);
    const double loss = batch_loss(n);
    backward(n);
    return loss;
}

/* --------------------------------------------------------------------------------- types, policy
   In which type does the policy have an op of a layer compute its products? First policy_begin,
   then a question for each layer; policy_end finds words that were about no layer.               */

static void policy_begin(amp_autocast *policy, const options *o, amp_dtype type) {
    must(amp_autocast_init(policy, AMP_POLICY_DEFAULT, type));
    if (!o->policy || type == AMP_F32) return;
    if (amp_autocast_override(policy, o->policy) != AMP_OK)
        fail(2, "--policy", amp_problem(),
             "write op:bmm=fp32 or LAYER=fp32; the types are fp32, fp16, bf16, low");
}

static amp_dtype ask(amp_autocast *policy, const options *o, amp_dtype of_weights,
                     const char *layer, amp_op op) {
    const amp_dtype in[2] = {AMP_F32, AMP_F32};
    const amp_scope scope = {layer, of_weights == AMP_F32 ? AMP_AUTOCAST_OFF : AMP_AUTOCAST_ON,
                             of_weights};
    amp_dtype       type  = AMP_F32;
    must(amp_autocast_push(policy, &scope));
    const amp_result result = amp_autocast_dtype(policy, op, in, 2, &type, NULL);
    if (result != AMP_OK)
        fail(2, o->policy, amp_problem(), "see amp_autocast_override in amp.h");
    must(amp_autocast_pop(policy));
    if (type != AMP_F32 && type != of_weights)
        fail(2, o->policy, "asks for another half type than that of the weights",
             "leave the type to --dtype");
    return type;
}

static bool find_unmatched(void *user, const void *line, size_t num_bytes) {
    char row[160];
    sprintf(row, "%.*s", (int)(num_bytes < 160 ? num_bytes : 159), (const char *)line);
    if (!strstr(row, "matched nothing yet")) return true;
    sscanf(row, "layers %63s", (char *)user);
    return false;
}

static void policy_end(const amp_autocast *policy, amp_dtype type, const char *layers) {
    char pattern[AMP_MAX_PATTERN];
    if (type != AMP_F32 && amp_autocast_dump(policy, find_unmatched, pattern) != AMP_OK)
        fail(2, pattern, "matches no layer", layers);
}

/* ------------------------------------------------------------------------------------------ rows
   What is stored in half goes through fp32 row by row, while it is in the first-level cache. In
   fp32 a row is read and computed where it lies, and nothing is moved.                           */

static void *at(void *x, amp_dtype type, size_t i) { return (char *)x + i * amp_dtype_size(type); }

static const float *read_row(const void *x, amp_dtype type, size_t first, size_t count,
                             float *room) {
    if (type == AMP_F32) return (const float *)x + first;
    must(amp_cast(room, AMP_F32, (const char *)x + first * amp_dtype_size(type), type, count));
    return room;
}

/* Where to compute a row; write_row then rounds it. */
static float *place_row(void *x, amp_dtype type, size_t first, float *room) {
    return type == AMP_F32 ? (float *)x + first : room;
}

static void write_row(void *x, amp_dtype type, size_t first, size_t count, const float *row) {
    if (type != AMP_F32) must(amp_cast(at(x, type, first), type, row, AMP_F32, count));
}

/* ------------------------------------------------------------------------------- schedule, time */

/* Linear warm-up, then a cosine down to a tenth: by the steps that were taken (amp_status.steps),
   which is what AdamW counts too. Turns of the loop would also count those that were skipped. */
static float learning_rate(const options *o, uint64_t step) {
    const double warm = 0.1 * o->steps + 1.0, x = (double)step, peak = (double)o->lr;
    if (x < warm) return (float)(peak * (x + 1.0) / (warm + 1.0));
    return (float)(peak * (0.55 + 0.45 * cos(3.14159265 * (x - warm) / (o->steps - warm))));
}

/* Of processor time, which does not count while other programs run; with threads, of time. */
static double seconds(void) {
#ifdef _OPENMP
    return omp_get_wtime();
#else
    return (double)clock() / CLOCKS_PER_SEC;
#endif
}

#endif /* TRAIN_HALF_H */
