/* linear.c - the short way to a faster trainer: a network 784-H-H-10 with plain loops, then with
   amp_linear in their place: in fp32, in bf16, and in fp16 with the loss scaler. All losses fall
   together; the last column is the fastest of 40 steps.
   Build and run:  cc -O3 -I. examples/linear.c -o linear && ./linear [H [B]]  (H units, B rows) */
#define AMP_IMPLEMENTATION
#include "amp.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#define PROGRAM "linear"
#include "support/train_cli.h" /* must, the values on the command line, finish */
enum { MAX_H = 2048, MAX_B = 512, IN = 784, OUT = 10, LAYERS = 3, WAYS = 4 };
static size_t            B, width[LAYERS + 1] = {IN, 0, 0, OUT};
static const char *const names[WAYS]       = {"loops", "amp fp32", "amp bf16", "amp fp16"};
static const amp_dtype   to[WAYS]          = {AMP_F32, AMP_F32, AMP_BF16, AMP_F16};
static float w[LAYERS][MAX_H * MAX_H + MAX_H], dw[LAYERS][MAX_H * MAX_H + MAX_H]; /* bias behind */
static float x[LAYERS + 1][MAX_B * MAX_H], dx[LAYERS + 1][MAX_B * MAX_H], image[OUT * IN];
static amp_scaler_desc scaling; /* disabled but for fp16 */
static amp_scaler      scaler;

static void fill(float *a, size_t n, float most) {
    while (n-- > 0) a[n] = most * (2.0f * (float)rand() / (float)RAND_MAX - 1.0f);
}

/* Of layer l: y = x w^T + b; then dx = dy w, dw = dy^T x, db = the sums of dy over the batch. */
static void loops(size_t l, size_t in, size_t out) {
    for (size_t i = 0; i < B * out; i++) {
        float y = w[l][in * out + i % out];
        for (size_t k = 0; k < in; k++) y += x[l][i / out * in + k] * w[l][i % out * in + k];
        x[l + 1][i] = y;
    }
}
static void loops_backward(size_t l, size_t in, size_t out) {
    memset(dx[l], 0, B * in * sizeof(float)), memset(dw[l], 0, (in + 1) * out * sizeof(float));
    for (size_t i = 0; i < B * out; i++) {
        const float d = dx[l + 1][i];
        dw[l][in * out + i % out] += d;
        for (size_t k = 0; k < in; k++) dx[l][i / out * in + k] += d * w[l][i % out * in + k];
        for (size_t k = 0; k < in; k++) dw[l][i % out * in + k] += d * x[l][i / out * in + k];
    }
}
static double step(int way, size_t label) { /* of SGD, on the squared error, which it returns */
    const amp_dtype type = to[way];
    double          loss = 0.0;
    for (size_t l = 0; l < LAYERS; l++) {
        const size_t in = width[l], out = width[l + 1];
        if (way == 0) loops(l, in, out);
        else must(amp_linear(x[l + 1], x[l], w[l], w[l] + in * out, B, in, out, type));
        for (size_t i = 0; i < B * out && l < 2; i++) x[l + 1][i] *= (float)(x[l + 1][i] > 0.0f);
    }
    for (size_t i = 0; i < B * OUT; i++) {
        const float error = x[LAYERS][i] - (i % OUT == (label + i / OUT) % OUT ? 1.0f : 0.0f);
        dx[LAYERS][i]     = 2.0f / (float)B * error * scaler.scale;
        loss += (double)(error * error) / (double)B;
    }
    for (size_t l = LAYERS; l-- > 0;) {
        const size_t in = width[l], out = width[l + 1];
        float       *db = dw[l] + in * out;
        if (way == 0) loops_backward(l, in, out);
        else must(amp_linear_backward(dx[l], dw[l], db, dx[l + 1], x[l], w[l], B, in, out, 0, type));
        for (size_t i = 0; i < B * in; i++) dx[l][i] *= (float)(x[l][i] > 0.0f);
        must(amp_scaler_unscale(&scaler, dw[l], dw[l], AMP_F32, in * out + out));
    }
    for (size_t l = 0; l < LAYERS && !scaler.found_inf; l++)
        for (size_t i = 0; i < (width[l] + 1) * width[l + 1]; i++) w[l][i] -= 0.05f * dw[l][i];
    must(amp_scaler_update(&scaler));
    return loss;
}
int main(int argc, char **argv) {
    int                units = 512, rows = 64;
    const known_option places[] = {count_option("H", &units, MAX_H), count_option("B", &rows, MAX_B)};
    parse_places(argc, argv, places, 2, " [H [B]]",
                 "Train with plain loops and with amp_linear in three types; time a step.\n\n"
                 "  H         units of a layer (512)\n"
                 "  B         rows of a batch (64)");
    width[1] = width[2] = (size_t)units;
    B = (size_t)rows;
    for (int way = 0; way < WAYS; way++) {
        double best = 1e9;
        srand(1), fill(image, OUT * IN, 1.0f), memset(w, 0, sizeof w);
        for (size_t l = 0; l < LAYERS; l++) fill(w[l], width[l] * width[l + 1], 0.05f);
        scaling.disabled = to[way] != AMP_F16;
        must(amp_scaler_init(&scaler, &scaling));
        printf("%-8s  loss", names[way]);
        for (size_t n = 1; n <= 40; n++) {
            fill(x[0], B * IN, 1.0f); /* noise, over an image of each class in turn */
            for (size_t i = 0; i < B * IN; i++) x[0][i] += image[(n * IN + i) % (OUT * IN)];
            const clock_t start = clock();
            double        loss  = step(way, n), ms = 1e3 * (double)(clock() - start) / CLOCKS_PER_SEC;
            best = ms < best ? ms : best;
            if (n % 10 == 0) printf("%8.4f", loss);
        }
        printf("%10.2f ms a step\n", best);
    }
    printf("amp_cpu_tier() is %s: %s\n", amp_cpu_tier(), products_in(amp_cpu_tier()));
    return finish(0);
}
