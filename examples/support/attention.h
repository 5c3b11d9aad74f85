/* attention.h - causal attention of an fp32 trainer, forward and backward: to include, or to copy

   The layout is that of GPT-2's trainers. A row of qkv has 3 width numbers: q, k and v, each with
   one head after another. A row of out has width. prob, which backward reads again, has tokens x
   tokens for each head of each sequence; scratch has that for one sequence. Heads are a batch of
   amp_gemm with strides: nothing is transposed or copied. C and C++. A call: recipes_net.c. */

#ifndef ATTENTION_H
#define ATTENTION_H

#include "amp.h"

#include <math.h>   /* expf, sqrtf */
#include <string.h> /* memset */

typedef struct attention {
    size_t    sequences, tokens, width, heads;
    amp_dtype compute; /* what products round q, k, v, prob and gradients to; AMP_F32: nothing */
} attention;

/* A matrix for each head: rows ld apart, heads stride apart. */
typedef struct attention_matrix {
    float *x;
    size_t ld, stride;
} attention_matrix;

/* c = alpha op(a) op(b) for each head of a sequence; c is tokens x n. */
static inline amp_result attention_product(const attention *t, int trans_a, int trans_b, size_t n,
                                           size_t k, float alpha, attention_matrix a,
                                           attention_matrix b, attention_matrix c) {
    amp_gemm_args g;
    memset(&g, 0, sizeof g);
    g.trans_a = trans_a, g.trans_b = trans_b;
    g.m = t->tokens, g.n = n, g.k = k, g.count = t->heads;
    g.alpha = alpha, g.compute = t->compute;
    g.a = a.x, g.lda = a.ld, g.stride_a = a.stride;
    g.b = b.x, g.ldb = b.ld, g.stride_b = b.stride;
    g.c = c.x, g.ldc = c.ld, g.stride_c = c.stride;
    return amp_gemm(NULL, &g);
}

/* Writes out and prob. */
static inline amp_result attend(const attention *t, float *out, float *prob, float *qkv) {
    const size_t n = t->tokens, w = t->width, depth = w / t->heads;
    const float  alpha = 1.0f / sqrtf((float)depth);
    amp_result   result;
    for (size_t s = 0; s < t->sequences; s++) {
        const attention_matrix q = {qkv, 3 * w, depth}, k = {qkv + w, 3 * w, depth};
        const attention_matrix v = {qkv + 2 * w, 3 * w, depth}, y = {out, w, depth};
        const attention_matrix p = {prob, n, n * n};
        result = attention_product(t, 0, 1, n, depth, alpha, q, k, p);
        if (result != AMP_OK) return result;
        for (size_t i = 0; i < t->heads * n; i++) { /* softmax of what is not later in the text */
            const size_t seen = i % n + 1;
            float       *row = prob + i * n, max = row[0], sum = 0.0f;
            for (size_t j = 1; j < seen; j++) max = row[j] > max ? row[j] : max;
            for (size_t j = 0; j < seen; j++) row[j] = expf(row[j] - max);
            for (size_t j = 0; j < seen; j++) sum += row[j];
            for (size_t j = 0; j < seen; j++) row[j] /= sum;
            for (size_t j = seen; j < n; j++) row[j] = 0.0f;
        }
        result = attention_product(t, 0, 0, depth, n, 1.0f, p, v, y);
        if (result != AMP_OK) return result;
        qkv += 3 * n * w, out += n * w, prob += t->heads * n * n;
    }
    return AMP_OK;
}

/* Writes dqkv, from the gradient by out; it does not add to it. */
static inline amp_result attend_back(const attention *t, float *dqkv, float *scratch, float *dout,
                                     float *prob, float *qkv) {
    const size_t           n = t->tokens, w = t->width, depth = w / t->heads;
    const float            alpha = 1.0f / sqrtf((float)depth);
    const attention_matrix d = {scratch, n, n * n}; /* the gradient by prob, then by the scores */
    amp_result             result;
    for (size_t s = 0; s < t->sequences; s++) {
        const attention_matrix q = {qkv, 3 * w, depth}, dq = {dqkv, 3 * w, depth};
        const attention_matrix k = {qkv + w, 3 * w, depth}, dk = {dqkv + w, 3 * w, depth};
        const attention_matrix v = {qkv + 2 * w, 3 * w, depth}, dv = {dqkv + 2 * w, 3 * w, depth};
        const attention_matrix p = {prob, n, n * n}, dy = {dout, w, depth};
        if ((result = attention_product(t, 0, 1, n, depth, 1.0f, dy, v, d)) != AMP_OK ||
            (result = attention_product(t, 1, 0, depth, n, 1.0f, p, dy, dv)) != AMP_OK)
            return result;
        for (size_t i = 0; i < t->heads * n; i++) { /* back through the softmax */
            const size_t seen = i % n + 1;
            const float *of = prob + i * n;
            float       *row = scratch + i * n, mean = 0.0f;
            for (size_t j = 0; j < seen; j++) mean += of[j] * row[j];
            for (size_t j = 0; j < seen; j++) row[j] = of[j] * (row[j] - mean);
            for (size_t j = seen; j < n; j++) row[j] = 0.0f;
        }
        if ((result = attention_product(t, 0, 0, depth, n, alpha, d, k, dq)) != AMP_OK ||
            (result = attention_product(t, 1, 0, depth, n, alpha, d, q, dk)) != AMP_OK)
            return result;
        qkv += 3 * n * w, dqkv += 3 * n * w, dout += n * w, prob += t->heads * n * n;
    }
    return AMP_OK;
}

#endif
