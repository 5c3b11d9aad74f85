/* train_check.h - gradients beside finite differences and beside fp32's, for --check             */

#ifndef TRAIN_CHECK_H
#define TRAIN_CHECK_H

#include "amp.h"
#include "train_numbers.h"

#include <string.h>

/* The gradient of a tensor along a direction d of random signs, and what the loss itself says of
   it, (loss(w + h d) - loss(w - h d)) / 2 h: how far they are apart, by the norm of the gradient.
   With half the h it is a quarter: what is left is the bend of the loss. */
static double direction_error(const amp_tensor *t, float h, double (*loss)(void *of), void *of,
                              uint64_t *rng) {
    const float *grad = (const float *)t->grad;
    double       exact = 0.0, square = 0.0, value[2];
    float       *saved = (float *)need(t->n, sizeof(float));
    float       *d     = (float *)need(t->n, sizeof(float));
    memcpy(saved, t->weight, t->n * sizeof(float));
    for (size_t i = 0; i < t->n; i++) {
        d[i] = random_u64(rng) >> 63 ? 1.0f : -1.0f;
        exact += (double)(d[i] * grad[i]);
        square += (double)grad[i] * (double)grad[i];
    }
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < t->n; i++) t->weight[i] = saved[i] + (side ? -h : h) * d[i];
        value[side] = loss(of);
    }
    memcpy(t->weight, saved, t->n * sizeof(float));
    free(saved);
    free(d);
    return fabs((value[0] - value[1]) / (2.0 * (double)h) - exact) / sqrt(square);
}

/* Adds up the squares of the differences between a tensor's gradients, divided by their scale, and
   fp32's; and of fp32's. */
static void add_differences(const amp_tensor *t, float scale, const amp_tensor *fp32, double *apart,
                            double *square) {
    const float *exact = (const float *)fp32->grad;
    float       *grad  = (float *)need(t->n, sizeof(float));
    amp_cast(grad, AMP_F32, t->grad, t->grad_type, t->n);
    for (size_t i = 0; i < t->n; i++) {
        const double d = (double)(grad[i] / scale - exact[i]);
        *apart += d * d;
        *square += (double)exact[i] * (double)exact[i];
    }
    free(grad);
}

#endif /* TRAIN_CHECK_H */
