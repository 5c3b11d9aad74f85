/* cblas_trainer.c - a trainer in fp32 that multiplies with cblas_sgemm alone: a network of three layers, by rows,
   and a recurrent one, by columns, learn what a network of their kind with random weights does. With -DAMP it has
   the lines that amp.h needs; the type is AMP_DTYPE's, the policy TRAINER_POLICY's.
   usage: cblas_trainer WIDTH BATCH STEPS SEED

   cblas_trainer 512 512 16 1, milliseconds of processor time a step on one core of an AMD EPYC (Zen 4), gcc 12.2
   -O3 -march=native, medians of three runs while other programs had the processor too:

                    OpenBLAS 0.3.21, one thread   amp.h, fp32 (AMP_ENABLE=0)   bf16 (AMP_DTYPE=bf16)
       layers                              34.2                         32.8    19.9   1.7x
       recurrent                          111.0                        113.5    65.4   1.7x */

#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef AMP
#define AMP_IMPLEMENTATION
#define AMP_CBLAS_DROP_IN
#include "amp.h"
#endif

static int width, batch;

static float uniform(void) { /* in (-1, 1) */
    static unsigned state = 1;
    state                 = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / 8388608.0f - 1.0f;
}

static float *array(int n, float size) {
    float *x = (float *)malloc(sizeof(float) * (size_t)n);
    int    i;
    if (!x) exit(1);
    for (i = 0; i < n; i++) x[i] = size * uniform();
    return x;
}

/* Square matrices, their gradients and Adam's moments. */
enum { MATRICES = 3, LENGTH = 6 };
typedef struct weights { float *w[MATRICES], *g[MATRICES], *m[MATRICES], *v[MATRICES]; } weights;

static weights fresh(void) {
    weights x;
    int     l;
    for (l = 0; l < MATRICES; l++) {
        x.w[l] = array(width * width, 1.7f / sqrtf((float)width));
        x.g[l] = array(width * width, 0.0f);
        x.m[l] = array(width * width, 0.0f);
        x.v[l] = array(width * width, 0.0f);
    }
    return x;
}

static void drop(weights *x) {
    int l;
    for (l = 0; l < MATRICES; l++) free(x->w[l]), free(x->g[l]), free(x->m[l]), free(x->v[l]);
}

static void adam(weights *x, int step) {
    const float rate = 2e-3f * sqrtf(1.0f - powf(0.999f, (float)step)) / (1.0f - powf(0.9f, (float)step));
    int         l, i;
    for (l = 0; l < MATRICES; l++) {
        float *w = x->w[l], *m = x->m[l], *v = x->v[l], *g = x->g[l];
        for (i = 0; i < width * width; i++) {
            m[i] = 0.9f * m[i] + 0.1f * g[i];
            v[i] = 0.999f * v[i] + 0.001f * g[i] * g[i];
            w[i] -= rate * m[i] / (sqrtf(v[i]) + 1e-8f);
            g[i] = 0.0f;
        }
    }
}

/* c = op(a) op(b), or c += it: of a layer's activations (a row is a sample), or of a time's (a column is one). */
static void by_rows(float *c, const float *a, int at, const float *b, int bt, int m, int k, float beta) {
    cblas_sgemm(CblasRowMajor, at ? CblasTrans : CblasNoTrans, bt ? CblasTrans : CblasNoTrans, m, width, k, 1.0f, a,
                width, b, width, beta, c, width);
}
static void by_columns(float *c, const float *a, int at, const float *b, int bt, int n, int k, float beta) {
    cblas_sgemm(CblasColMajor, at ? CblasTrans : CblasNoTrans, bt ? CblasTrans : CblasNoTrans, width, n, k, 1.0f, a,
                width, b, width, beta, c, width);
}

static float *y[LENGTH + 1], *x[LENGTH], *dy, *dx, *target; /* y[0] of the recurrent one is 0 */

static void softsign(float *a) { /* a / (1 + |a|), whose derivative is (1 - |result|)^2 */
    int i;
    for (i = 0; i < width * batch; i++) a[i] /= 1.0f + fabsf(a[i]);
}
static void through_softsign(float *d, const float *a) {
    int i;
    for (i = 0; i < width * batch; i++) d[i] *= (1.0f - fabsf(a[i])) * (1.0f - fabsf(a[i]));
}

static void layers_forward(const weights *p) { /* y[3] = s(s(x w0) w1) w2, s being softsign */
    int l;
    for (l = 0; l < MATRICES; l++) {
        by_rows(y[l + 1], l ? y[l] : x[0], 0, p->w[l], 0, batch, width, 0.0f);
        if (l + 1 < MATRICES) softsign(y[l + 1]);
    }
}
static void layers_backward(weights *p) {
    int l;
    for (l = MATRICES; l-- > 0;) {
        by_rows(p->g[l], l ? y[l] : x[0], 1, dy, 0, width, batch, 0.0f);
        if (l == 0) return;
        by_rows(dx, dy, 0, p->w[l], 1, batch, width, 0.0f);
        through_softsign(dx, y[l]);
        memcpy(dy, dx, sizeof(float) * (size_t)(width * batch));
    }
}

static void times_forward(const weights *p) { /* y[t] = s(w0 x[t - 1] + w1 y[t - 1]), then w2 y[LENGTH - 1] */
    int t;
    for (t = 0; t < LENGTH - 1; t++) {
        by_columns(y[t + 1], p->w[0], 0, x[t], 0, batch, width, 0.0f);
        by_columns(y[t + 1], p->w[1], 0, y[t], 0, batch, width, 1.0f);
        softsign(y[t + 1]);
    }
    by_columns(y[LENGTH], p->w[2], 0, y[LENGTH - 1], 0, batch, width, 0.0f);
}
static void times_backward(weights *p) {
    int t;
    by_columns(p->g[2], dy, 0, y[LENGTH - 1], 1, width, batch, 0.0f);
    by_columns(dx, p->w[2], 1, dy, 0, batch, width, 0.0f);
    for (t = LENGTH - 1; t > 0; t--) {
        through_softsign(dx, y[t]);
        by_columns(p->g[0], dx, 0, x[t - 1], 1, width, batch, 1.0f);
        by_columns(p->g[1], dx, 0, y[t - 1], 1, width, batch, 1.0f);
        by_columns(dy, p->w[1], 1, dx, 0, batch, width, 0.0f);
        memcpy(dx, dy, sizeof(float) * (size_t)(width * batch));
    }
}

/* The mean of the squared errors, as at the end: of the last eighth of the steps. */
static double train(int recurrent, int steps) {
    const float *out = y[recurrent ? LENGTH : MATRICES];
    weights      teacher = fresh(), p = fresh();
    double       sum = 0.0;
    int          step, t, i, n = 0;
    for (step = 1; step <= steps; step++) {
        for (t = 0; t < (recurrent ? LENGTH - 1 : 1); t++)
            for (i = 0; i < width * batch; i++) x[t][i] = uniform();
        for (i = 0; i < width * batch; i++) y[0][i] = 0.0f;
        if (recurrent) times_forward(&teacher);
        else layers_forward(&teacher);
        memcpy(target, out, sizeof(float) * (size_t)(width * batch));
        if (recurrent) times_forward(&p);
        else layers_forward(&p);
        for (i = 0; i < width * batch; i++) {
            const float error = out[i] - target[i];
            dy[i]             = error / (float)batch;
            if (step > steps - steps / 8) sum += (double)error * (double)error, n++;
        }
        if (recurrent) times_backward(&p);
        else layers_backward(&p);
        adam(&p, step);
    }
    drop(&teacher), drop(&p);
    return sum / n;
}

int main(int argc, char **argv) {
    int i, steps, seed, recurrent;
#ifdef AMP
    static amp_session      session;
    static amp_session_desc desc;
    desc.policy = getenv("TRAINER_POLICY");
    if (amp_session_start(&session, &desc) != AMP_OK) return 1;
#endif
    if (argc != 5) return 2;
    width = atoi(argv[1]), batch = atoi(argv[2]), steps = atoi(argv[3]), seed = atoi(argv[4]);
    for (i = 0; i < 1000 * seed; i++) uniform();
    for (i = 0; i <= LENGTH; i++) y[i] = array(width * batch, 0.0f);
    for (i = 0; i < LENGTH; i++) x[i] = array(width * batch, 0.0f);
    dy = array(width * batch, 0.0f), dx = array(width * batch, 0.0f), target = array(width * batch, 0.0f);
    for (recurrent = 0; recurrent <= 1; recurrent++) {
        const clock_t start = clock();
        const double  loss  = train(recurrent, steps);
        printf("%s %.6f %.2f ms\n", recurrent ? "rnn" : "mlp", loss,
               (double)(clock() - start) * 1000.0 / CLOCKS_PER_SEC / steps);
    }
    for (i = 0; i <= LENGTH; i++) free(y[i]);
    for (i = 0; i < LENGTH; i++) free(x[i]);
    free(dy), free(dx), free(target);
#ifdef AMP
    amp_session_end(&session);
#endif
    return 0;
}
