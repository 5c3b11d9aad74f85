/* gpt_check.h - gpt --check: are the gradients of gpt.c right, and does a step allocate nothing?

   The end of gpt.c, in a file of its own because a trainer does not need it.                     */

#ifndef GPT_CHECK_H
#define GPT_CHECK_H

static double loss_of(gpt *n, const unsigned char *token, const unsigned char *target) {
    forward(n, token, n->batch);
    return cross_entropy(n, target, n->rows, 1.0f);
}

/* The gradient of a tensor along a direction d of random signs, and what the loss itself says of
   it, (loss(w + h d) - loss(w - h d)) / 2 h: how far they are apart, by the norm of the gradient.
   With half the h it is a quarter: what is left is the bend of the loss. */
static double direction_error(gpt *n, const amp_tensor *t, const unsigned char *token,
                              const unsigned char *target, uint64_t *rng) {
    const float  h = 1e-3f, *grad = t->grad;
    double       exact = 0.0, square = 0.0, loss[2];
    float       *saved = need(t->n, sizeof(float)), *d = need(t->n, sizeof(float));
    memcpy(saved, t->weight, t->n * sizeof(float));
    for (size_t i = 0; i < t->n; i++) {
        d[i] = random_u64(rng) >> 63 ? 1.0f : -1.0f;
        exact += (double)(d[i] * grad[i]);
        square += (double)grad[i] * (double)grad[i];
    }
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < t->n; i++) t->weight[i] = saved[i] + (side ? -h : h) * d[i];
        loss[side] = loss_of(n, token, target);
    }
    memcpy(t->weight, saved, t->n * sizeof(float));
    free(saved);
    free(d);
    return fabs((loss[0] - loss[1]) / (2.0 * (double)h) - exact) / sqrt(square);
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
            const amp_tensor *a = &n[AMP_F32].tensor[i], *b = &n[type].tensor[i];
            float            *exact = a->grad, *grad = need(a->n, sizeof(float));
            check(amp_cast(grad, AMP_F32, b->grad, b->grad_type, a->n));
            for (size_t j = 0; j < a->n; j++) {
                const double d = (double)(grad[j] / loss_scale(&n[type]) - exact[j]);
                apart += d * d;
                square += (double)exact[j] * (double)exact[j];
            }
            free(grad);
            for (int k = 0; type == AMP_F32 && k < DIRECTIONS; k++) {
                const double error = direction_error(&n[AMP_F32], a, token, target, &rng);
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
