/* wrap_step.c - an fp32 training loop, and the 12 lines that make it mixed precision, and fast

   train_fp32 fits sin(3x) cos(2y) by three layers, written by hand with loops that one has.
   train_mixed is the same trainer; the 12 lines that were added or changed are numbered. Products
   round their operands to fp16 on the way in (amp_linear), the loss is scaled, and a step whose
   gradients overflow is skipped. Weights stay fp32, in the same array. (The first scale is larger
   than the default one, so that a step is skipped.) Last, train_fp32 runs once more with
   amp_linear in fp32: its time says how much of the gain is a faster product.

   Build and run:  cc -O2 -I. examples/wrap_step.c -o wrap_step -lm && ./wrap_step
   Both losses should fall together; the first mixed step overflows and is skipped, which halves
   the loss scale. Exits with 1 unless fp32 ends below 1% of its start, mixed within 2% of fp32. */

#define AMP_IMPLEMENTATION                                                          /* AMP 1 */
#include "amp.h"                                                                    /* AMP 2 */
#include <math.h>   /* sinf, cosf, tanhf, fabs */
#include <stdio.h>
#include <string.h> /* memset */
#include <time.h>   /* clock */
#define PROGRAM "wrap_step"
#include "support/train_cli.h" /* must, no_options, finish */

enum { SIDE = 16, POINTS = SIDE * SIDE, LAYERS = 3, IN = 3, HIDDEN = 64, ROW = 100 };
enum { SECOND = IN * HIDDEN, THIRD = SECOND + HIDDEN * HIDDEN, WEIGHTS = THIRD + HIDDEN };
enum { EPOCHS = 800, MOST = POINTS * HIDDEN };
static const size_t width[LAYERS + 1] = {IN, HIDDEN, HIDDEN, 1}, at[LAYERS] = {0, SECOND, THIRD};
static float x[LAYERS + 1][MOST], dx[LAYERS + 1][MOST], target[POINTS], dw[WEIGHTS];
enum { LOOPS, MIXED, AMP_FP32, WAYS };
static double        losses[WAYS][EPOCHS + 1], ms[WAYS];
static int           way;
static amp_optimizer opt;                                                           /* AMP 3 */

/* y = a w^T; then da = dy w and dv = dy^T a; w and dv are out x in, as PyTorch stores them. */
static void linear(float *y, const float *a, const float *w, size_t in, size_t out) {
    for (size_t i = 0; i < POINTS * out; i++) {
        y[i] = 0.0f;
        for (size_t k = 0; k < in; k++) y[i] += a[i / out * in + k] * w[i % out * in + k];
    }
}
static void linear_backward(float *da, float *dv, const float *dy, const float *a, const float *w,
                            size_t in, size_t out) {
    memset(da, 0, POINTS * in * sizeof *da), memset(dv, 0, in * out * sizeof *dv);
    for (size_t i = 0; i < POINTS * out; i++)
        for (size_t k = 0; k < in; k++) {
            da[i / out * in + k] += dy[i] * w[i % out * in + k];
            dv[i % out * in + k] += dy[i] * a[i / out * in + k];
        }
}

static double forward(const float *w) {
    double sum = 0.0;
    for (size_t l = 0; l < LAYERS; l++) {
        const size_t in = width[l], out = width[l + 1];
        if (way == LOOPS) linear(x[l + 1], x[l], w + at[l], in, out);
        else must(amp_linear(x[l + 1], x[l], w + at[l], NULL, POINTS, in, out,
                             way == MIXED ? AMP_F16 : AMP_F32));                    /* AMP 4 */
        for (size_t i = 0; i < POINTS * out && l < 2; i++) x[l + 1][i] = tanhf(x[l + 1][i]);
    }
    for (size_t i = 0; i < POINTS; i++) {
        const double error = (double)x[LAYERS][i] - (double)target[i];
        sum += error * error / POINTS;
    }
    return sum;
}

static void backward(const float *w, float dloss) {
    for (size_t i = 0; i < POINTS; i++)
        dx[LAYERS][i] = dloss * 2.0f / POINTS * (x[LAYERS][i] - target[i]);
    for (size_t l = LAYERS; l-- > 0;) {
        const size_t in = width[l], out = width[l + 1];
        float *const v  = dw + at[l];
        if (way == LOOPS) linear_backward(dx[l], v, dx[l + 1], x[l], w + at[l], in, out);
        else must(amp_linear_backward(dx[l], v, NULL, dx[l + 1], x[l], w + at[l], POINTS, in, out,
                                      0, way == MIXED ? AMP_F16 : AMP_F32));        /* AMP 5 */
        for (size_t i = 0; i < POINTS * in; i++) dx[l][i] *= 1.0f - x[l][i] * x[l][i];
    }
}

static void sgd_step(float *w, const float *grad) {
    for (size_t i = 0; i < WEIGHTS; i++) w[i] -= 0.05f * grad[i];
}

static void report(int epoch, double loss) { /* only for the table, which the second loop prints */
    static clock_t start;
    amp_status     status;
    if (epoch == 0) start = clock();
    ms[way]            = 1e3 / EPOCHS * (double)(clock() - start) / CLOCKS_PER_SEC;
    losses[way][epoch] = loss;
    if (way != MIXED || epoch % ROW) return;
    must(amp_optimizer_status(&opt, &status));
    printf("%5d %10.6f  %10.6f %11g  %7u\n", epoch, losses[LOOPS][epoch], loss,
           (double)status.loss_scale, (unsigned)status.skipped);
}

static void train_fp32(float *w) {
    for (int epoch = 0; epoch <= EPOCHS; epoch++) {
        float dloss = 1.0f;
        report(epoch, forward(w));
        backward(w, dloss);
        sgd_step(w, dw);
    }
}

static void train_mixed(float *w) {
    must(amp_optimizer_init(&opt, &(amp_optimizer_desc){.scaler.init_scale = 1 << 21})); /* AMP 6 */
    must(amp_optimizer_add(&opt, &(amp_tensor){.n = WEIGHTS, .weight = w, .grad = dw})); /* AMP 7 */
    must(amp_optimizer_prepare(&opt));                                              /* AMP 8 */
    for (int epoch = 0; epoch <= EPOCHS; epoch++) {
        float dloss = 1.0f;
        report(epoch, forward(w));
        dloss *= amp_optimizer_loss_scale(&opt);                                    /* AMP 9 */
        backward(w, dloss);
        if (amp_optimizer_begin_step(&opt)) sgd_step(w, amp_optimizer_grad(&opt, 0)); /* AMP 10 */
        must(amp_optimizer_end_step(&opt));                                         /* AMP 11 */
    }
    amp_optimizer_free(&opt);                                                       /* AMP 12 */
}

int main(int argc, char **argv) {
    static float w[WAYS][WEIGHTS];
    no_options(argc, argv, "Train in fp32 and in mixed precision.\n");
    for (uint32_t i = 0, state = 1; i < WEIGHTS; i++) {
        state   = state * 1664525u + 1013904223u;
        w[LOOPS][i] = w[MIXED][i] = w[AMP_FP32][i] =
            ((float)(state >> 8) / 8388608.0f - 1.0f) * (i < SECOND ? 1.5f : 0.3f);
    }
    for (size_t i = 0; i < POINTS; i++) { /* points on a square; the third input is 1 */
        float *p  = x[0] + i * IN;
        p[0]      = (float)(i % SIDE) / (0.5f * (SIDE - 1)) - 1.0f;
        p[1]      = (float)(i / SIDE) / (0.5f * (SIDE - 1)) - 1.0f;
        p[2]      = 1.0f;
        target[i] = sinf(3.0f * p[0]) * cosf(2.0f * p[1]);
    }
    amp_capability cpu;
    amp_capability_of(0, 0, &cpu);
    printf("amp.h %s on this processor:", amp_version());
    for (const char *text = cpu.advice; *text;) { /* in lines of at most 72 characters */
        size_t fits = strlen(text) < 72 ? strlen(text) : 72;
        while (text[fits] && text[fits] != ' ') fits--;
        printf("\n    %.*s", (int)fits, text);
        text += fits + (text[fits] == ' ');
    }
    puts("\n");
    puts("epoch  fp32 loss  mixed loss  loss scale  skipped");
    train_fp32(w[LOOPS]);
    way = MIXED;
    train_mixed(w[MIXED]);
    way = AMP_FP32;
    train_fp32(w[AMP_FP32]);
    const double apart = fabs(losses[MIXED][EPOCHS] / losses[LOOPS][EPOCHS] - 1.0);
    const int    ok    = apart <= 0.02 && losses[LOOPS][EPOCHS] < 0.01 * losses[LOOPS][0];
    printf("%s: the last losses differ by %.2f%%;\n"
           "a mixed step takes %.2f ms: %.2f times as fast as plain loops in fp32 (%.2f ms),\n"
           "%.2f times as fast as amp_linear in fp32 (%.2f ms)\n", ok ? "ok" : "FAILED",
           100.0 * apart, ms[MIXED], ms[LOOPS] / ms[MIXED], ms[LOOPS], ms[AMP_FP32] / ms[MIXED],
           ms[AMP_FP32]);
    return finish(!ok);
}
