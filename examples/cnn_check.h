/* cnn_check.h - cnn --check: are the gradients of cnn.c right, and does a step allocate nothing?

   The end of cnn.c, in a file of its own because a trainer does not need it.                     */

#ifndef CNN_CHECK_H
#define CNN_CHECK_H

#include "train_check.h" /* direction_error, add_differences */

static double batch_loss(void *of) {
    net   *n = of;
    size_t right = 0;
    forward(n, n->batch, 1);
    return loss_of(n, n->batch, 1.0f, &right);
}

/* What amp.h takes from malloc in three steps of products that are large enough to need room, with
   our workspace and without. */
static size_t allocations_of(const options *o, const dataset *data, int task, amp_dtype type,
                             int workspace) {
    static net n;
    options    large = *o;
    size_t    *order = need(data->num_train, sizeof *order);
    large.width = 32;
    large.batch = 32;
    net_init(&n, &large, data, task, type, 0);
    if (!workspace) n.backend.workspace_size = 0;
    const size_t before = allocations;
    for (int i = 0; i < 3; i++) train_step(&n, data, order, 0);
    net_free(&n);
    free(order);
    return allocations - before;
}

/* How far a tensor's gradient in fp32 is from finite differences, in the mean of some directions. A
   step of h carries a share of about h of the units over the bend of their ReLU, which spoils each
   single difference by some percent. */
static double tensor_error(net *n, const amp_tensor *t, uint64_t *rng) {
    enum { DIRECTIONS = 8 };
    double mean = 0.0;
    for (int k = 0; k < DIRECTIONS; k++)
        mean += direction_error(t, 3e-4f, batch_loss, n, rng) / DIRECTIONS;
    return mean;
}

/* Are fp32's gradients those of the loss, the halves' near them, and does a step allocate? A unit
   within the rounding of the bend, a share of about 2^-11 in fp16 and 2^-8 in bf16, may be taken
   for one of the other side: then the gradient is off by the roots of these, of its norm. */
static int check_network(const options *o, const dataset *data, int task) {
    static net  n[3];
    uint64_t    rng = 1;
    double      worst = 0.0, far[3] = {0};
    const char *where = "";
    int         failures = 0, checked = 0;
    size_t      right = 0, *order = need(data->num_train, sizeof *order);
    for (int type = AMP_F32; type <= AMP_BF16; type++) {
        double apart = 0.0, square = 0.0;
        net_init(&n[type], o, data, task, (amp_dtype)type, 0);
        load_batch(&n[type], data, order, 0, 0);
        forward(&n[type], n[type].batch, 1);
        loss_of(&n[type], n[type].batch, loss_scale(&n[type]), &right);
        backward(&n[type]);
        for (int i = 0; i < n->num_tensors; i++) {
            const amp_tensor *a = &n[AMP_F32].tensor[i];
            if (!a->grad) continue; /* statistics */
            add_differences(&n[type].tensor[i], loss_scale(&n[type]), a, &apart, &square);
            if (type != AMP_F32) continue;
            const double error = tensor_error(n, a, &rng);
            checked++;
            if (error <= worst) continue;
            worst = error;
            where = a->name;
        }
        far[type] = sqrt(apart / square);
    }
    printf("%s: gradients of %d tensors in fp32 beside finite differences: the worst is off by\n"
           "%.1e of its norm, in the mean of random directions (%.*s)\n", task_names[task], checked,
           worst, (int)strcspn(where, " "), where);
    printf("gradients beside fp32's: fp16 off by %.1e of the norm, bf16 by %.1e\n", far[AMP_F16],
           far[AMP_BF16]);
    failures = !(worst < 6e-2) + !(far[AMP_F16] < 2.0 / 45.25) + !(far[AMP_BF16] < 2.0 / 16.0);
    for (int type = AMP_F32; type <= AMP_BF16; type++) {
        const size_t none = allocations_of(o, data, task, (amp_dtype)type, 1);
        printf("allocations in three steps in %s: %lu, without a workspace %lu\n",
               type_names[type], (unsigned long)none,
               (unsigned long)allocations_of(o, data, task, (amp_dtype)type, 0));
        failures += none > 0;
        net_free(&n[type]);
    }
    free(order);
    printf("check %s: %s\n", task_names[task], failures ? "FAILED" : "ok");
    return failures;
}

static int check_networks(const options *o, const dataset *data) {
    int failures = 0;
    for (int task = 0; task < NUM_TASKS; task++)
        if (task_on(o, task)) failures += check_network(o, data, task);
    return failures != 0;
}

#endif /* CNN_CHECK_H */
