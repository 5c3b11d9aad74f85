/* ncf_check.h - ncf --check: are the gradients of ncf.c right, and does a step allocate nothing?

   The end of ncf.c, in a file of its own because a trainer does not need it.                     */

#ifndef NCF_CHECK_H
#define NCF_CHECK_H

#include "train_check.h" /* direction_error, add_differences */

static double batch_loss(void *of) {
    ncf *n = of;
    forward(n, n->rows);
    return cross_entropy(n, 1.0f);
}

/* What amp.h takes from malloc in three steps of products that are large enough to need room, with
   our workspace and without. */
static size_t allocations_of(const options *o, const interactions *data, amp_dtype type,
                             int workspace) {
    static ncf n;
    options    large = *o;
    deck       cards = {data, need(data->num_train, sizeof(size_t)), 0, 0};
    large.width = 256;
    large.batch = 64;
    ncf_init(&n, &large, data, type, 0);
    if (!workspace) n.backend.workspace_size = 0;
    const size_t before = allocations;
    for (int i = 0; i < 3; i++) train_step(&n, &cards);
    ncf_free(&n);
    free(cards.order);
    return allocations - before;
}

/* The tensor with all of its gradient, in fp32: rows are added where they belong. To be freed. */
static amp_tensor dense(const amp_tensor *t) {
    amp_tensor   d = *t;
    const size_t count = t->row_length ? *t->num_rows * t->row_length : t->n;
    float       *grad = need(t->n, sizeof(float)), *part = need(count, sizeof(float));
    check(amp_cast(part, AMP_F32, t->grad, t->grad_type, count));
    for (size_t i = 0; i < count; i++)
        grad[t->row_length ? t->rows[i / t->row_length] * t->row_length + i % t->row_length : i] +=
            part[i];
    free(part);
    d.grad      = grad;
    d.grad_type = AMP_F32;
    return d;
}

/* How far a tensor's gradient in fp32 is from finite differences: the median of some directions.
   Between w - h d and w + h d a share of about h of the units passes the bend of its ReLU, which
   spoils a difference by some percent; a wrong gradient is wrong by its norm. */
static double tensor_error(ncf *n, const amp_tensor *t, uint64_t *rng) {
    enum { DIRECTIONS = 9 };
    double error[DIRECTIONS];
    for (int k = 0; k < DIRECTIONS; k++) error[k] = direction_error(t, 2e-4f, batch_loss, n, rng);
    qsort(error, DIRECTIONS, sizeof *error, by_value);
    return error[DIRECTIONS / 2];
}

/* How far amp.h's norm of the gradients, whose rows it adds up, is from another. */
static double norm_error(ncf *n, double norm) {
    check(amp_optimizer_adamw(&n->opt, 0.0f)); /* moves nothing */
    return fabs(status_of(&n->opt).norm - norm) / norm;
}

/* Are fp32's gradients those of the loss, the halves' near them, and does a step allocate? A unit
   within the rounding of the bend, a share of about 2^-11 in fp16 and 2^-8 in bf16, may be taken
   for one of the other side: then the gradient is off by the roots of these, of its norm. (And the
   norms are no farther apart than the gradients.) */
static int check_network(const options *o, const interactions *data) {
    static ncf  n[3];
    amp_tensor  exact[NUM_TENSORS];
    uint64_t    rng = 1;
    double      worst = 0.0, far[3] = {0}, norm[3] = {0};
    const char *where = "";
    int         failures = 0;
    deck        cards = {data, need(data->num_train, sizeof(size_t)), 0, 0};
    for (int type = AMP_F32; type <= AMP_BF16; type++) {
        double apart = 0.0, square = 0.0;
        ncf_init(&n[type], o, data, (amp_dtype)type, 0);
        load_batch(&n[type], &cards, 0);
        forward(&n[type], n[type].rows);
        cross_entropy(&n[type], loss_scale(&n[type]));
        backward(&n[type]);
        for (int i = 0; i < NUM_TENSORS; i++) {
            amp_tensor here = dense(&n[type].tensor[i]);
            if (type == AMP_F32) exact[i] = here;
            add_differences(&here, loss_scale(&n[type]), &exact[i], &apart, &square);
            if (type != AMP_F32) free(here.grad);
            const double error = type == AMP_F32 ? tensor_error(&n[type], &here, &rng) : 0.0;
            if (error <= worst) continue;
            worst = error;
            where = here.name;
        }
        far[type]  = sqrt(apart / square);
        norm[type] = norm_error(&n[type], sqrt(square));
    }
    printf("gradients of %d tensors in fp32 beside finite differences: the worst is off by\n"
           "%.1e of its norm, in the median of 9 random directions (%.*s)\n", NUM_TENSORS, worst,
           (int)strcspn(where, " "), where);
    printf("gradients beside fp32's: fp16 off by %.1e of the norm, bf16 by %.1e\n", far[AMP_F16],
           far[AMP_BF16]);
    printf("norms, of rows that amp.h adds up, beside dense fp32's: off by %.1e, %.1e, %.1e\n",
           norm[AMP_F32], norm[AMP_F16], norm[AMP_BF16]);
    for (int type = AMP_F32; type <= AMP_BF16; type++) failures += !(norm[type] < far[type] + 1e-5);
    failures += !(worst < 5e-2) + !(far[AMP_F16] < 2.0 / 45.25) + !(far[AMP_BF16] < 2.0 / 16.0);
    for (int type = AMP_F32; type <= AMP_BF16; type++) {
        const size_t none = allocations_of(o, data, (amp_dtype)type, 1);
        printf("allocations in three steps in %s: %lu, without a workspace %lu\n",
               type_names[type], (unsigned long)none,
               (unsigned long)allocations_of(o, data, (amp_dtype)type, 0));
        failures += none > 0;
        ncf_free(&n[type]);
    }
    for (int i = 0; i < NUM_TENSORS; i++) free(exact[i].grad);
    free(cards.order);
    printf("check ncf: %s\n", failures ? "FAILED" : "ok");
    return failures != 0;
}

#endif /* NCF_CHECK_H */
