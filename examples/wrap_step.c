/* wrap_step.c - an fp32 training loop, and the 12 lines that make it mixed precision

   train_fp32 fits sin(3x) cos(2y) by two layers, written by hand, whose products take fp32 or half
   operands. train_mixed is the same loop; the 12 lines that were added or changed are numbered.

   Build and run:  cc -O2 -I. examples/wrap_step.c -o wrap_step -lm && ./wrap_step
   Both losses should fall together; the first mixed step overflows and is skipped, which halves
   the loss scale. Exits with 1 unless fp32 ends below 1% of its start, mixed within 2% of fp32. */

#define AMP_IMPLEMENTATION                                                          /* AMP 1 */
#include "amp.h"                                                                    /* AMP 2 */
#include <math.h>   /* sinf, cosf, tanhf, fabs */
#include <stdio.h>
#include <stdlib.h> /* exit */
#include <string.h> /* strcmp */

enum { SIDE = 12, POINTS = SIDE * SIDE, IN = 2, HIDDEN = 24, BIG = POINTS * HIDDEN };
enum { FIRST = IN * HIDDEN, WEIGHTS = FIRST + HIDDEN, EPOCHS = 2500, ROW = 250 };

/* What the products read and write: room for fp32, elements of type. Then what is always fp32. */
static struct {
    amp_dtype   type;
    size_t      second;  /* where the second layer starts, in bytes */
    const void *weights;
    float       x[POINTS * IN], hidden[BIG], dhidden[BIG], dy[POINTS], grad[WEIGHTS];
    float       target[POINTS], error[POINTS], wide[BIG], act[BIG];
} net;
static double        losses[2][EPOCHS + 1]; /* fp32, mixed */
static amp_optimizer opt;                                                           /* AMP 3 */

static void must(amp_result result) {
    if (result == AMP_OK) return;
    fprintf(stderr, "wrap_step: amp.h: %s\n", amp_result_string(result));
    exit(1);
}

/* net.wide = op(a) op(b), summed in fp32; a and b hold elements of net.type. */
static void matmul(int ta, int tb, size_t m, size_t n, size_t k, const void *a, const void *b) {
    float wa[BIG], wb[BIG];
    must(amp_cast(wa, AMP_F32, a, net.type, m * k));
    must(amp_cast(wb, AMP_F32, b, net.type, k * n));
    for (size_t i = 0; i < m * n; i++) {
        const size_t row = i / n, col = i % n;
        net.wide[i] = 0.0f;
        for (size_t p = 0; p < k; p++)
            net.wide[i] += wa[ta ? p * m + row : row * k + p] * wb[tb ? col * k + p : p * n + col];
    }
}

static void store(void *dst, size_t n) { must(amp_cast(dst, net.type, net.wide, AMP_F32, n)); }

/* Choose what the products read, and lay the points on a square. */
static void use(amp_dtype type, const void *weights) {
    net.type    = type;
    net.weights = weights;
    net.second  = FIRST * amp_dtype_size(type);
    for (size_t i = 0; i < POINTS; i++) {
        float *x = net.wide + i * IN;
        x[0] = (float)(i % SIDE) / 5.5f - 1.0f;
        x[1] = (float)(i / SIDE) / 5.5f - 1.0f;
        net.target[i] = sinf(3.0f * x[0]) * cosf(2.0f * x[1]);
    }
    store(net.x, POINTS * IN);
}

static double forward(void) {
    double sum = 0.0;
    matmul(0, 0, POINTS, HIDDEN, IN, net.x, net.weights);
    for (size_t i = 0; i < BIG; i++) net.wide[i] = net.act[i] = tanhf(net.wide[i]);
    store(net.hidden, BIG);
    matmul(0, 0, POINTS, 1, HIDDEN, net.hidden, (const char *)net.weights + net.second);
    for (size_t i = 0; i < POINTS; i++) net.error[i] = net.wide[i] - net.target[i];
    for (size_t i = 0; i < POINTS; i++) sum += (double)net.error[i] * (double)net.error[i];
    return sum / POINTS;
}

static void backward(float dloss) {
    for (size_t i = 0; i < POINTS; i++) net.wide[i] = dloss * 2.0f / POINTS * net.error[i];
    store(net.dy, POINTS);
    matmul(1, 0, HIDDEN, 1, POINTS, net.hidden, net.dy);
    store((char *)net.grad + net.second, HIDDEN);
    matmul(0, 1, POINTS, HIDDEN, 1, net.dy, (const char *)net.weights + net.second);
    for (size_t i = 0; i < BIG; i++) net.wide[i] *= 1.0f - net.act[i] * net.act[i];
    store(net.dhidden, BIG);
    matmul(1, 0, IN, HIDDEN, POINTS, net.x, net.dhidden);
    store(net.grad, FIRST);
}

static void sgd_step(float *w, const float *grad) {
    for (size_t i = 0; i < WEIGHTS; i++) w[i] -= 0.1f * grad[i];
}

static void report(int epoch, double loss) { /* only for the table, which the second loop prints */
    amp_status status;
    losses[net.type != AMP_F32][epoch] = loss;
    if (net.type == AMP_F32 || epoch % ROW) return;
    must(amp_optimizer_status(&opt, &status));
    printf("%5d %10.6f  %10.6f %11g  %7u\n", epoch, losses[0][epoch], loss,
           (double)status.loss_scale, (unsigned)status.skipped);
}

static void train_fp32(float *w) {
    use(AMP_F32, w);
    for (int epoch = 0; epoch <= EPOCHS; epoch++) {
        float dloss = 1.0f;
        report(epoch, forward());
        backward(dloss);
        sgd_step(w, net.grad);
    }
}

static void train_mixed(float *w) {
    amp_tensor t = {.n = WEIGHTS, .weight = w, .grad = net.grad, .grad_type = AMP_F16}; /* AMP 4 */
    must(amp_optimizer_init(&opt, &(amp_optimizer_desc){.dtype = AMP_F16}));        /* AMP 5 */
    must(amp_optimizer_add(&opt, &t));                                              /* AMP 6 */
    must(amp_optimizer_prepare(&opt));                                              /* AMP 7 */
    use(AMP_F16, amp_optimizer_model(&opt, 0));                                     /* AMP 8 */
    for (int epoch = 0; epoch <= EPOCHS; epoch++) {
        float dloss = 1.0f;
        report(epoch, forward());
        dloss *= amp_optimizer_loss_scale(&opt);                                    /* AMP 9 */
        backward(dloss);
        if (amp_optimizer_begin_step(&opt)) sgd_step(w, amp_optimizer_grad(&opt, 0)); /* AMP 10 */
        must(amp_optimizer_end_step(&opt));                                         /* AMP 11 */
    }
    amp_optimizer_free(&opt);                                                       /* AMP 12 */
}

int main(int argc, char **argv) {
    float w[2][WEIGHTS];
    if (argc > 1) {
        const int help = strcmp(argv[1], "--help") == 0;
        if (help) puts("usage: wrap_step\nTrains in fp32 and mixed precision; takes no options.");
        else fprintf(stderr, "wrap_step: unknown option '%s'; run it without any\n", argv[1]);
        return help ? 0 : 2;
    }
    for (uint32_t i = 0, state = 1; i < WEIGHTS; i++) {
        state   = state * 1664525u + 1013904223u;
        w[0][i] = w[1][i] = (float)(state >> 8) / 8388608.0f - 1.0f;
    }
    puts("epoch  fp32 loss  mixed loss  loss scale  skipped");
    train_fp32(w[0]);
    train_mixed(w[1]);
    const double apart = fabs(losses[1][EPOCHS] / losses[0][EPOCHS] - 1.0);
    const int    ok    = apart <= 0.02 && losses[0][EPOCHS] < 0.01 * losses[0][0];
    printf("%s: the last losses differ by %.2f%%; weight copies take %d bytes instead of %d\n",
           ok ? "ok" : "FAILED", 100.0 * apart, 2 * WEIGHTS, 4 * WEIGHTS);
    if (fflush(stdout) != 0) perror("wrap_step: standard output");
    return !ok || ferror(stdout);
}
