/* gpt_check.h - gpt --check: are the gradients of gpt.c right, and does a step allocate nothing?

   The end of gpt.c, in a file of its own because a trainer does not need it.                     */

#ifndef GPT_CHECK_H
#define GPT_CHECK_H

#include "train_check.h" /* direction_error, add_differences */

/* The network with what it is shown. */
typedef struct shown {
    gpt           *n;
    unsigned char *token, *target;
} shown;

static double loss_of(void *of) {
    const shown *s = of;
    forward(s->n, s->token, s->n->batch);
    return cross_entropy(s->n, s->target, s->n->rows, 1.0f);
}

/* What amp.h takes from malloc in three steps of products that are large enough to need room, with
   our workspace and without. */
static size_t allocations_of(const options *o, const text *t, amp_dtype type, int workspace) {
    static gpt     n;
    options        large  = *o;
    unsigned char *token  = need(16 * 64, 1), *target = need(16 * 64, 1);
    large.layers  = 1;
    large.width   = 128;
    large.context = 64;
    large.batch   = 16;
    gpt_init(&n, &large, t, type, 0);
    if (!workspace) n.backend.workspace_size = 0;
    const size_t before = allocations;
    for (int i = 0; i < 3; i++) train_step(&n, t, 0, token, target);
    gpt_free(&n);
    free(token);
    free(target);
    return allocations - before;
}

/* Are fp32's gradients those of the loss, the halves' near them, and does a step allocate? */
static int check_network(const options *o, const text *t) {
    enum { DIRECTIONS = 3 };
    static gpt     n[3];
    uint64_t       rng = 1;
    double         worst = 0.0, far[3] = {0};
    const char    *where = "";
    int            failures = 0;
    unsigned char *token = need((size_t)(o->batch * o->context), 1);
    unsigned char *target = need((size_t)(o->batch * o->context), 1);
    for (int type = AMP_F32; type <= AMP_BF16; type++) {
        double apart = 0.0, square = 0.0;
        gpt_init(&n[type], o, t, (amp_dtype)type, 0);
        load_batch(&n[type], t, 0, 0, token, target);
        forward(&n[type], token, n[type].batch);
        cross_entropy(&n[type], target, n[type].rows, loss_scale(&n[type]));
        backward(&n[type], token);
        for (size_t i = 0; i < FIRST_BLOCK + n->layers * PER_BLOCK; i++) {
            const amp_tensor *a = &n[AMP_F32].tensor[i];
            shown             s = {&n[AMP_F32], token, target};
            add_differences(&n[type].tensor[i], loss_scale(&n[type]), a, &apart, &square);
            for (int k = 0; type == AMP_F32 && k < DIRECTIONS; k++) {
                const double error = direction_error(a, 1e-3f, loss_of, &s, &rng);
                if (error <= worst) continue;
                worst = error;
                where = a->name;
            }
        }
        far[type] = sqrt(apart / square);
    }
    printf("gradients in fp32 beside finite differences: %lu tensors, %d directions each;\n"
           "the worst is off by %.1e of its norm (%s)\n",
           (unsigned long)(FIRST_BLOCK + n->layers * PER_BLOCK), DIRECTIONS, worst, where);
    printf("gradients beside fp32's: fp16 off by %.1e of the norm, bf16 by %.1e\n", far[AMP_F16],
           far[AMP_BF16]);
    failures = !(worst < 5e-3) + !(far[AMP_F16] < 1e-2) + !(far[AMP_BF16] < 5e-2);
    for (int type = AMP_F32; type <= AMP_BF16; type++) {
        const size_t none = allocations_of(o, t, (amp_dtype)type, 1);
        printf("allocations in three steps in %s: %lu, without a workspace %lu\n",
               type_names[type], (unsigned long)none,
               (unsigned long)allocations_of(o, t, (amp_dtype)type, 0));
        failures += none > 0;
        gpt_free(&n[type]);
    }
    free(token);
    free(target);
    printf("check gpt: %s\n", failures ? "FAILED" : "ok");
    return failures != 0;
}

#endif /* GPT_CHECK_H */
