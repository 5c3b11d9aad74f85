/* train_rows.h - what train.c, state.c and ddp_mpi.c compute in fp32, row by row: relu with normalization,
   softmax and the losses of train.c's two tasks                                                  */

#ifndef TRAIN_ROWS_H
#define TRAIN_ROWS_H

#include <math.h>

/* relu(z + bias), then mean 0 and variance 1 over the row; what 0 became goes to *least. */
static inline void relu_normalize(float *z, const float *bias, size_t width, float *rstd, float *least) {
    float sum = 0.0f, squares = 0.0f;
    for (size_t i = 0; i < width; i++) {
        z[i] = z[i] + bias[i] > 0.0f ? z[i] + bias[i] : 0.0f;
        sum += z[i];
    }
    const float mean = sum / (float)width;
    for (size_t i = 0; i < width; i++) {
        z[i] -= mean;
        squares += z[i] * z[i];
    }
    *rstd  = 1.0f / sqrtf(squares / (float)width + 1e-5f);
    *least = -mean * *rstd;
    for (size_t i = 0; i < width; i++) z[i] *= *rstd;
}

/* The gradient by act[l] becomes the gradient by z: back through normalize and relu. */
static inline void relu_normalize_back(float *grad, const float *act, size_t width, float rstd,
                                float least) {
    float sum = 0.0f, product = 0.0f;
    for (size_t i = 0; i < width; i++) {
        sum += grad[i];
        product += grad[i] * act[i];
    }
    sum /= (float)width;
    product /= (float)width;
    for (size_t i = 0; i < width; i++) grad[i] = rstd * (grad[i] - sum - act[i] * product);
    for (size_t i = 0; i < width; i++) grad[i] = act[i] > least ? grad[i] : 0.0f;
}

/* Softmax and cross-entropy of one image; the logits become their gradient. */
static inline double softmax_error(float *logit, size_t count, int label) {
    float max = logit[0], sum = 0.0f;
    for (size_t i = 1; i < count; i++)
        if (logit[i] > max) max = logit[i];
    for (size_t i = 0; i < count; i++) sum += logit[i] = expf(logit[i] - max);
    for (size_t i = 0; i < count; i++) logit[i] /= sum;
    const double p = (double)logit[label];
    logit[label] -= 1.0f;
    return -log(p > 1e-30 ? p : 1e-30);
}

static inline float sigmoid(float z) { return 1.0f / (1.0f + expf(-z)); }

/* Sigmoid and mean squared error of one image; the output becomes its gradient. */
static inline double squared_error(float *z, size_t count, const float *target) {
    double sum = 0.0;
    for (size_t i = 0; i < count; i++) {
        const float y = sigmoid(z[i]), d = y - target[i];
        sum += (double)d * (double)d;
        z[i] = 2.0f * d * y * (1.0f - y) / (float)count;
    }
    return sum / (double)count;
}

#endif /* TRAIN_ROWS_H */
