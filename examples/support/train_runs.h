/* train_runs.h - what gpt.c, cnn.c and ncf.c do with their networks: train one in three types, from
   several seeds, in turns; and --check

   Nothing here knows a network. Before it includes this, a program defines options (see
   train_compare.h), corpus (what is learned), and net, a struct that has at least

       amp_dtype      type;
       amp_tensor     tensor[];    (num_tensors of them; frozen: not trained)
       int            num_tensors;
       amp_optimizer  opt;
       amp_backend    backend;
       lines          lines;                               (train_lines.h)
       size_t         num_params, bytes[NUM_MEMORIES];
       char           run[];       (what identifies it, train_save.h)
       void          *owned[];     (num_owned pieces of memory)
       int            num_owned;

   and the functions that are declared here.                                                      */

#ifndef TRAIN_RUNS_H
#define TRAIN_RUNS_H

#include "train_half.h"

static void   net_init(net *n, const options *o, const corpus *d, amp_dtype type, int seed);
static double train_step(net *n);               /* one step, taken or skipped; returns its loss    */
static double evaluate(net *n, int at_end);     /* on held-out data: for the table, or the curve   */
static void   enlarge(options *o);              /* to products that need room while they work      */

/* ------------------------------------------------------------------------------------- training */

/* What cannot be read or written shall be said now, not after the training. */
static void try_all(const options *o, const corpus *d, const char *picture) {
    static net n;
    try_picture(o->out, picture);
    for (int v = 0; v < 3; v++) {
        if (!type_on(o, v)) continue;
        net_init(&n, o, d, (amp_dtype)v, 0);
        if (o->resume) resume(&n.opt, o->resume, n.run);
        if (o->save) save(&n.opt, o->save);
        net_free(&n);
    }
}

/* A step that is taken, at the scale that it needs; returns its loss. */
static double take_step(net *n) {
    const uint64_t before = status_of(&n->opt).steps;
    double         loss   = 0.0;
    int            tries  = 0; /* halving goes from the largest scale to the least in 38 */
    while (status_of(&n->opt).steps == before) {
        const double start = seconds();
        loss = train_step(n);
        lines_step(&n->lines, &n->opt, loss, seconds() - start);
        if (++tries > 40)
            fail(1, type_names[n->type], "gradients are not finite, at any loss scale",
                 "choose a smaller --lr");
    }
    return loss;
}

/* All types from one seed, in turns, so that all meet the same machine: each until it has taken as
   many steps as the others. The networks are left as they are then. */
static void train_seed(report *r, const corpus *d, int seed, net nets[3]) {
    const options *o    = &r->o;
    int            last = o->stop_after ? o->stop_after : o->steps;
    for (int v = 0; v < 3; v++) {
        if (!type_on(o, v)) continue;
        net_init(&nets[v], o, d, (amp_dtype)v, seed);
        if (o->resume) resume(&nets[v].opt, o->resume, nets[v].run);
    }
    polled = o->dtype != ALL_TYPES && o->seeds == 1;
    for (int step = 0; step < last; step++) {
        for (int v = 0; v < 3; v++) {
            net *n = &nets[v];
            if (!type_on(o, v) || status_of(&n->opt).steps > (uint64_t)step) continue; /* resumed */
            last = report_last(r, last, step + 1);
            const double start = seconds();
            const double loss  = take_step(n);
            report_step(r, v, seed, step, loss, seconds() - start);
            if (o->save && ((step + 1) % o->save_every == 0 || step + 1 == last))
                save(&n->opt, o->save);
            if (held_point(o, step)) report_held(r, v, seed, step, evaluate(n, 0));
            report_progress(r, v, seed, step, status_of(&n->opt).skipped);
        }
    }
    polled = 0;
    for (int v = 0; v < 3; v++) {
        if (!type_on(o, v)) continue;
        const amp_status status = status_of(&nets[v].opt);
        report_end(r, v, seed, evaluate(&nets[v], 1), &status, nets[v].bytes, nets[v].num_params);
    }
}

/* ----------------------------------------------------------------------------------------- check
   Are the gradients right, and does a step allocate nothing?                                     */

enum { DIRECTIONS = 9 };

/* How far a gradient may be from finite differences, and in fp16 and bf16 from fp32's, by its norm;
   and how far weights go for a difference. */
typedef struct bounds { float step; double fp32, fp16, bf16; } bounds;

/* A tensor's gradient along a direction of random signs, and what the loss itself says of it,
   (loss(w + h d) - loss(w - h d)) / 2 h: how far they are apart, by the norm of the gradient. With
   half the h it is a quarter, but where a unit passes the bend of its ReLU between the two, a share
   of about h of all, which spoils a difference by some percent: hence the median of some directions.
   A wrong gradient is wrong by its norm. */
static double tensor_error(net *n, const amp_tensor *t, float h, uint64_t *rng) {
    const float *grad  = t->grad;
    float       *saved = need(t->n, sizeof(float)), *dir = need(t->n, sizeof(float));
    double       error[DIRECTIONS], value[2];
    memcpy(saved, t->weight, t->n * sizeof(float));
    for (int k = 0; k < DIRECTIONS; k++) {
        double exact = 0.0, square = 0.0;
        for (size_t i = 0; i < t->n; i++) {
            dir[i] = random_u64(rng) >> 63 ? 1.0f : -1.0f;
            exact += (double)(dir[i] * grad[i]);
            square += (double)grad[i] * (double)grad[i];
        }
        for (int side = 0; side < 2; side++) {
            for (size_t i = 0; i < t->n; i++) t->weight[i] = saved[i] + (side ? -h : h) * dir[i];
            value[side] = batch_loss(n);
        }
        error[k] = fabs((value[0] - value[1]) / (2.0 * (double)h) - exact) / sqrt(square);
    }
    memcpy(t->weight, saved, t->n * sizeof(float));
    free(saved);
    free(dir);
    qsort(error, DIRECTIONS, sizeof *error, by_value);
    return error[DIRECTIONS / 2];
}

/* The tensor with all of its gradient, in fp32 and unscaled: rows are added where they belong. To be
   freed. */
static amp_tensor dense(const amp_tensor *t, float scale) {
    amp_tensor      d = *t;
    const amp_rows *r = t->rows;
    const size_t    count = r ? *r->num_rows * r->row_length : t->n;
    float          *grad = need(t->n, sizeof(float)), *part = need(count, sizeof(float));
    must(amp_cast(part, AMP_F32, t->grad, t->grad_type, count));
    for (size_t i = 0; i < count; i++)
        grad[r ? r->rows[i / r->row_length] * r->row_length + i % r->row_length : i] +=
            part[i] / scale;
    free(part);
    d.grad = grad;
    return d;
}

/* What amp.h takes from malloc in three steps, with our workspace and without. */
static size_t allocations_of(const options *o, const corpus *d, int type, int workspace) {
    static net n;
    options    large = *o;
    enlarge(&large);
    net_init(&n, &large, d, (amp_dtype)type, 0);
    if (!workspace) n.backend.workspace_size = 0;
    const size_t before = allocations;
    for (int i = 0; i < 3; i++) train_step(&n);
    net_free(&n);
    return allocations - before;
}

/* A unit within the rounding of the bend, a share of about 2^-11 in fp16 and 2^-8 in bf16, may be
   taken for one of the other side: then the gradient is off by the roots of these, of its norm.
   (Norms, of rows that amp.h adds up, are no farther apart than the gradients.) */
static int check_network(const options *o, const corpus *d, const char *name, bounds most) {
    static net  n;
    uint64_t    rng = 1;
    double      worst = 0.0, far[3] = {0}, norm[3] = {0};
    char        where[128] = "";
    int         count = 0, failures = 0;
    amp_tensor *exact = need(sizeof n.tensor / sizeof *n.tensor, sizeof *exact);
    for (int type = AMP_F32; type <= AMP_BF16; type++) {
        double apart = 0.0, square = 0.0;
        net_init(&n, o, d, (amp_dtype)type, 0);
        gradients(&n, 0);
        for (int i = 0; i < n.num_tensors; i++) {
            if (n.tensor[i].frozen) continue;
            amp_tensor here = dense(&n.tensor[i], amp_optimizer_loss_scale(&n.opt));
            if (type == AMP_F32) exact[i] = here;
            for (size_t k = 0; k < here.n; k++) {
                const double x = (double)((float *)exact[i].grad)[k];
                apart += pow((double)((float *)here.grad)[k] - x, 2.0);
                square += x * x;
            }
            if (type != AMP_F32) free(here.grad);
            const double error = type == AMP_F32 ? tensor_error(&n, &here, most.step, &rng) : 0.0;
            count += type == AMP_F32;
            if (error > worst) sprintf(where, "%.100s", here.name), worst = error;
        }
        far[type] = sqrt(apart / square);
        must(amp_optimizer_step(&n.opt, 0.0f)); /* moves nothing, and counts the norm */
        norm[type] = fabs(status_of(&n.opt).norm / sqrt(square) - 1.0);
        failures += !(norm[type] < far[type] + 1e-5);
        net_free(&n);
    }
    printf("%s: gradients of %d tensors in fp32 beside finite differences: the worst is off by\n"
           "%.1e of its norm, in the median of %d random directions (%s)\n"
           "gradients beside fp32's: fp16 off by %.1e of the norm, bf16 by %.1e\n"
           "norms of amp.h beside fp32's: off by %.1e, %.1e, %.1e\n", name, count, worst,
           DIRECTIONS, where, far[AMP_F16], far[AMP_BF16], norm[0], norm[1], norm[2]);
    failures += !(worst < most.fp32) + !(far[AMP_F16] < most.fp16) + !(far[AMP_BF16] < most.bf16);
    for (int type = AMP_F32; type <= AMP_BF16; type++) {
        const size_t none = allocations_of(o, d, type, 1), some = allocations_of(o, d, type, 0);
        printf("allocations in three steps in %s: %lu, without a workspace %lu\n",
               type_names[type], (unsigned long)none, (unsigned long)some);
        failures += none > 0;
    }
    for (size_t i = 0; i < sizeof n.tensor / sizeof *n.tensor; i++) free(exact[i].grad);
    free(exact);
    printf("check %s: %s\n", name, failures ? "FAILED" : "ok");
    return failures != 0;
}

#endif /* TRAIN_RUNS_H */
