/* muon.h - Muon, for matrices: the step is their momentum, made orthogonal by products in bf16

   The rule is that of torch.optim.Muon (PyTorch 2.15, torch/optim/_muon.py; Keller Jordan,
   kellerjordan.github.io/posts/muon): momentum .95 as a mean, Nesterov, five iterations of Newton
   and Schulz, decoupled weight decay. adjust_lr_fn is "match_rms_adamw", so that learning rate and
   decay are those of the AdamW beside it. A step differs from torch's by 2 % (32 x 64, 64 x 32),
   since bf16 is rounded in other places. It needs amp.h in front.                               */

#ifndef MUON_H
#define MUON_H

#include "train_cli.h" /* must */

#include <math.h>
#include <string.h>

enum { MUON_ITERATIONS = 5 };

/* How many bf16 numbers muon_step needs beside a matrix. */
static inline size_t muon_room(size_t rows, size_t cols) {
    const size_t k = rows < cols ? rows : cols;
    return 2 * (rows * cols + k * k);
}

/* C = alpha A B + beta C, in bf16; sums in fp32. */
static void muon_product(const amp_backend *backend, int trans_a, int trans_b, size_t m, size_t n,
                         size_t k, float alpha, const amp_bf16 *a, const amp_bf16 *b, float beta,
                         amp_bf16 *c) {
    amp_gemm_args g;
    memset(&g, 0, sizeof g);
    g.trans_a = trans_a, g.trans_b = trans_b;
    g.m = m, g.n = n, g.k = k;
    g.alpha = alpha, g.beta = beta;
    g.a = a, g.b = b, g.c = c;
    g.a_type = g.b_type = g.c_type = AMP_BF16;
    must(amp_gemm(backend, &g));
}

/* The singular values of x, whose norm is 1, come near 1: with a = x x',
   x = 3.4445 x + (-4.775 a + 2.0315 a a) x. Where rows are longer than columns a is x' x, the
   smaller one, and x stands in front. */
static void muon_orthogonalize(const amp_backend *backend, amp_bf16 *x, size_t rows, size_t cols,
                               amp_bf16 *room) {
    const int    wide = rows < cols;
    const size_t k = wide ? rows : cols, n = rows * cols;
    amp_bf16    *y = room, *a = y + n, *p = a + k * k;
    for (int i = 0; i < MUON_ITERATIONS; i++) {
        muon_product(backend, !wide, wide, k, k, n / k, 1.0f, x, x, 0.0f, a);
        memcpy(p, a, k * k * sizeof *p);
        muon_product(backend, 0, 0, k, k, k, 2.0315f, a, a, -4.775f, p);
        memcpy(y, x, n * sizeof *y);
        muon_product(backend, 0, 0, rows, cols, k, 1.0f, wide ? p : x, wide ? x : p, 3.4445f, y);
        memcpy(x, y, n * sizeof *x);
    }
}

/* One step of w, rows x cols, from its gradient, unscaled and clipped, which becomes the update. */
static void muon_step(const amp_backend *backend, float *w, float *grad, float *momentum,
                      size_t rows, size_t cols, float lr, float decay, amp_bf16 *room) {
    const size_t n    = rows * cols;
    const float  step = lr * 0.2f * sqrtf((float)(rows > cols ? rows : cols));
    double       square = 0.0;
    for (size_t i = 0; i < n; i++) {
        momentum[i] += 0.05f * (grad[i] - momentum[i]);
        grad[i] += 0.95f * (momentum[i] - grad[i]);
        square += (double)grad[i] * (double)grad[i];
    }
    const float norm = (float)sqrt(square), inv = 1.0f / (norm > 1e-7f ? norm : 1e-7f);
    for (size_t i = 0; i < n; i++) grad[i] *= inv;
    must(amp_cast(room, AMP_BF16, grad, AMP_F32, n));
    muon_orthogonalize(backend, room, rows, cols, room + n);
    must(amp_cast(grad, AMP_F32, room, AMP_BF16, n));
    for (size_t i = 0; i < n; i++) w[i] = w[i] * (1.0f - lr * decay) - step * grad[i];
}

#endif /* MUON_H */
