/* gemm_args.h - amp_gemm by arguments, as tests like it. */

#ifndef GEMM_ARGS_H_INCLUDED
#define GEMM_ARGS_H_INCLUDED

#include "amp.h"

#include <string.h>

/* A batch; alpha is that of amp_gemm_args, where 0 means 1. */
static inline amp_result gemm_batched(const amp_backend *backend, int trans_a, int trans_b, size_t m,
                                      size_t n, size_t k, float alpha, const void *a,
                                      amp_dtype a_type, size_t lda, size_t stride_a, const void *b,
                                      amp_dtype b_type, size_t ldb, size_t stride_b, float beta,
                                      void *c, amp_dtype c_type, size_t ldc, size_t stride_c,
                                      size_t count) {
    amp_gemm_args g;
    memset(&g, 0, sizeof g);
    g.trans_a = trans_a, g.trans_b = trans_b;
    g.m = m, g.n = n, g.k = k;
    g.alpha = alpha, g.beta = beta;
    g.a = a, g.a_type = a_type, g.lda = lda, g.stride_a = stride_a;
    g.b = b, g.b_type = b_type, g.ldb = ldb, g.stride_b = stride_b;
    g.c = c, g.c_type = c_type, g.ldc = ldc, g.stride_c = stride_c;
    g.count = count;
    return amp_gemm(backend, &g);
}

/* One product, with BLAS's alpha: 0 is a k of 0. */
static inline amp_result gemm_one(const amp_backend *backend, int trans_a, int trans_b, size_t m,
                                  size_t n, size_t k, float alpha, const void *a, amp_dtype a_type,
                                  size_t lda, const void *b, amp_dtype b_type, size_t ldb,
                                  float beta, void *c, amp_dtype c_type, size_t ldc) {
    uint32_t bits;
    memcpy(&bits, &alpha, sizeof bits);
    return gemm_batched(backend, trans_a, trans_b, m, n, bits << 1 ? k : 0, alpha, a, a_type, lda, 0,
                        b, b_type, ldb, 0, beta, c, c_type, ldc, 0, 1);
}

/* With bias and ReLU. */
static inline amp_result gemm_bias(const amp_backend *backend, int trans_a, int trans_b, size_t m,
                                   size_t n, size_t k, float alpha, const void *a, amp_dtype a_type,
                                   size_t lda, const void *b, amp_dtype b_type, size_t ldb,
                                   float beta, void *c, amp_dtype c_type, size_t ldc,
                                   const void *bias, int relu) {
    amp_gemm_args g;
    memset(&g, 0, sizeof g);
    g.trans_a = trans_a, g.trans_b = trans_b;
    g.m = m, g.n = n, g.k = k;
    g.alpha = alpha, g.beta = beta;
    g.a = a, g.a_type = a_type, g.lda = lda;
    g.b = b, g.b_type = b_type, g.ldb = ldb;
    g.c = c, g.c_type = c_type, g.ldc = ldc;
    g.bias = bias, g.bias_type = c_type;
    g.activation = relu ? AMP_ACTIVATION_RELU : AMP_ACTIVATION_NONE;
    return amp_gemm(backend, &g);
}

#endif
