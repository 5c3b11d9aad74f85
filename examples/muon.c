/* muon.c - two optimizers behind one gate: Muon for the hidden matrices, AdamW for the rest

   amp_tensor.own marks the tensors that Muon steps. One check sees all gradients, one norm clips
   them, one NaN skips both optimizers. Muon's momentum is a frozen tensor of the same optimizer,
   so one file saves all.

   RUN   cc -O3 -march=native -I. examples/muon.c -o muon -lm && ./muon   in the directory of amp.h

   It prints what both reach on handwritten digits, and the time of a step; how orthogonal a step
   of Muon is; and that a NaN in a gradient of Muon's leaves all of AdamW's state as it was. */

#define _POSIX_C_SOURCE 200809L /* for train_data.h */
#define PROGRAM "muon"
#define DATA_HELP "restore it" /* there is no --data */
#define AMP_IMPLEMENTATION
#include "amp.h"

#include "support/muon.h"
#include "support/train_data.h"
#include "support/train_rows.h" /* softmax_error */

enum { LAYERS = 3, HEAD = LAYERS - 1, IN = 64, HIDDEN = 128, MOST = HIDDEN * HIDDEN, ROWS = 64 };
enum { ADAMW, MUON, WAYS };

static const size_t width[LAYERS + 1] = {IN, HIDDEN, HIDDEN, NUM_CLASSES};
static const float  decay             = 0.01f;

/* ------------------------------------------------------------------------------------- network */

typedef struct weights { /* w is out x in */
    float w[LAYERS][MOST], b[LAYERS][HIDDEN], momentum[HEAD][MOST];
} weights;

typedef struct net {
    int           way;
    weights       p;
    float         dw[LAYERS][MOST], db[LAYERS][HIDDEN];
    float         x[LAYERS + 1][ROWS * HIDDEN], dx[LAYERS + 1][ROWS * HIDDEN];
    amp_bf16      room[4 * MOST];
    amp_optimizer opt;
} net;

static void add(net *n, size_t count, float *weight, float *grad, int own) {
    const amp_tensor t = {.n = count, .weight = weight, .grad = grad, .frozen = !grad,
                          .own = own};
    must(amp_optimizer_add(&n->opt, &t));
}

/* Tensors 2 l and 2 l + 1 are matrix and bias of layer l; behind them are momenta. Products are in
   bf16, so there is no loss scale; a step with a NaN is skipped all the same. */
static void start(net *n, int way, int seed) {
    const amp_optimizer_desc desc = {.kind = AMP_KIND_ADAMW, .weight_decay = decay,
                                     .max_norm = 1.0f, .scaler.preset = AMP_PRESET_NONE};
    uint64_t                 rng  = (uint64_t)seed + 1;
    memset(n, 0, sizeof *n);
    n->way = way;
    must(amp_optimizer_init(&n->opt, &desc));
    for (int l = 0; l < LAYERS; l++) {
        const size_t count = width[l] * width[l + 1];
        for (size_t i = 0; i < count; i++)
            n->p.w[l][i] = sqrtf(3.0f / (float)width[l]) * random_uniform(&rng);
        add(n, count, n->p.w[l], n->dw[l], way == MUON && l < HEAD);
        add(n, width[l + 1], n->p.b[l], n->db[l], 0);
    }
    for (int l = 0; l < HEAD && way == MUON; l++)
        add(n, width[l] * width[l + 1], n->p.momentum[l], NULL, 0);
    must(amp_optimizer_prepare(&n->opt));
}

/* Of images in pick: their mean loss, and how many are right. The logits become its gradient. */
static double forward(net *n, const dataset *d, const size_t *pick, size_t rows, size_t *right) {
    double loss = 0.0;
    for (size_t i = 0; i < rows; i++)
        memcpy(n->x[0] + i * IN, d->image + pick[i] * IN, IN * sizeof(float));
    for (int l = 0; l < LAYERS; l++) {
        const size_t in = width[l], out = width[l + 1];
        float       *y  = n->x[l + 1];
        must(amp_linear(y, n->x[l], n->p.w[l], n->p.b[l], rows, in, out, AMP_BF16));
        for (size_t i = 0; i < rows * out && l < HEAD; i++) y[i] *= (float)(y[i] > 0.0f);
    }
    for (size_t i = 0; i < rows; i++) {
        float    *z     = n->x[LAYERS] + i * NUM_CLASSES;
        const int label = d->label[pick[i]];
        int       best  = 0;
        for (int k = 1; k < NUM_CLASSES; k++) best = z[k] > z[best] ? k : best;
        *right += best == label;
        loss += softmax_error(z, NUM_CLASSES, label) / (double)rows;
    }
    return loss;
}

static void gradients(net *n, const dataset *d, const size_t *pick) {
    size_t right = 0;
    forward(n, d, pick, ROWS, &right);
    for (size_t i = 0; i < ROWS * NUM_CLASSES; i++) n->dx[LAYERS][i] = n->x[LAYERS][i] / ROWS;
    for (int l = LAYERS; l-- > 0;) {
        const size_t in = width[l], out = width[l + 1];
        must(amp_linear_backward(n->dx[l], n->dw[l], n->db[l], n->dx[l + 1], n->x[l], n->p.w[l],
                                  ROWS, in, out, 0, AMP_BF16));
        for (size_t i = 0; i < ROWS * in; i++) n->dx[l][i] *= (float)(n->x[l][i] > 0.0f);
    }
}

/* ------------------------------------------------------------------------------------ the step */

/* Muon steps what is own between begin_step and end_step, which takes AdamW's step. */
static void step(net *n, float lr) {
    if (n->way == ADAMW) {
        must(amp_optimizer_step(&n->opt, lr));
        return;
    }
    must(amp_optimizer_set_lr(&n->opt, lr));
    if (amp_optimizer_begin_step(&n->opt))
        for (int l = 0; l < HEAD; l++)
            muon_step(NULL, n->p.w[l], amp_optimizer_grad(&n->opt, 2 * l), n->p.momentum[l],
                      width[l + 1], width[l], lr, decay, n->room);
    must(amp_optimizer_end_step(&n->opt));
}

typedef struct result { double loss[99], accuracy[99], ms; } result;

/* The learning rate falls linearly to 0; ms is of the fastest step. */
static void train(net *n, const dataset *d, int epochs, float lr, int seed, result *r) {
    const size_t batches = d->num_train / ROWS, steps = (size_t)epochs * batches;
    size_t      *order = need(d->num_train, sizeof *order), test[ROWS], right = 0;
    uint64_t     rng   = (uint64_t)seed + 100;
    for (size_t i = 0; i < d->num_train; i++) order[i] = i;
    for (size_t s = 0; s < steps; s++) {
        const clock_t begin = clock();
        if (s % batches == 0) shuffle(order, d->num_train, &rng);
        gradients(n, d, order + s % batches * ROWS);
        step(n, lr * (1.0f - (float)s / (float)steps));
        const double ms = 1e3 * (double)(clock() - begin) / CLOCKS_PER_SEC;
        if (r->ms <= 0.0 || ms < r->ms) r->ms = ms;
    }
    free(order);
    for (size_t i = 0, k = 0; i < d->num_test; i++) {
        test[k++] = d->num_train + i;
        if (k < ROWS && i + 1 < d->num_test) continue;
        r->loss[seed] += forward(n, d, test, k, &right) * (double)k / (double)d->num_test;
        k = 0;
    }
    r->accuracy[seed] = 100.0 * (double)right / (double)d->num_test;
}

/* ------------------------------------------------------------------------------------ measured */

/* How orthogonal is x? Its largest singular value, by iterations of x' x; and its stable rank, the
   squares of all singular values over that of the largest: HIDDEN where x is orthogonal. */
static double stable_rank(const float *x, double *largest) {
    double v[HIDDEN], next[HIDDEN], all = 0.0, norm = 1.0;
    for (int j = 0; j < HIDDEN; j++) v[j] = 1.0 + j % 7;
    for (int turn = 0; turn < 50; turn++) {
        memset(next, 0, sizeof next);
        for (const float *row = x; row < x + MOST; row += HIDDEN) {
            double y = 0.0;
            for (int j = 0; j < HIDDEN; j++) y += (double)row[j] * v[j] / norm;
            for (int j = 0; j < HIDDEN; j++) next[j] += (double)row[j] * y;
        }
        norm = 0.0;
        for (int j = 0; j < HIDDEN; j++) norm += next[j] * next[j];
        norm = sqrt(norm);
        memcpy(v, next, sizeof v);
    }
    for (int i = 0; i < MOST; i++) all += (double)x[i] * (double)x[i];
    *largest = sqrt(norm);
    return all / norm;
}

/* Of the middle matrix: its momentum, and the step of Muon that begins with it. */
static void show_orthogonality(net *n) {
    static float w[MOST], grad[MOST], momentum[MOST];
    double       largest;
    memcpy(grad, n->dw[1], sizeof grad);
    memcpy(momentum, n->p.momentum[1], sizeof momentum);
    printf("stable rank of %d: momentum %.1f,", HIDDEN, stable_rank(momentum, &largest));
    muon_step(NULL, w, grad, momentum, HIDDEN, HIDDEN, 1.0f, 0.0f, n->room);
    printf(" Muon's step %.1f", stable_rank(grad, &largest));
    printf(", whose largest singular value is %.2f\n", largest);
}

/* All that decides how the run goes on: weights, Muon's momentum, AdamW's moments. */
typedef struct state {
    weights    p;
    float      moments[2 * LAYERS][2][MOST];
    amp_status status;
} state;

static void look(const net *n, state *s) {
    s->p = n->p;
    for (int i = 0; i < 2 * LAYERS; i++)
        if (i % 2 || i == 2 * HEAD)
            must(amp_optimizer_moments(&n->opt, i, s->moments[i][0], s->moments[i][1]));
    must(amp_optimizer_status(&n->opt, &s->status));
}

/* Does a NaN in a gradient of Muon's leave all as it was, and the next step move all? */
static int survives(net *n, float lr) {
    static state before, skipped, after;
    look(n, &before);
    const float kept = n->dw[0][7];
    n->dw[0][7]      = NAN;
    step(n, lr);
    look(n, &skipped);
    n->dw[0][7] = kept;
    step(n, lr);
    look(n, &after);
    return before.status.skipped + 1 == skipped.status.skipped &&
           memcmp(&before.p, &skipped.p, sizeof before.p) == 0 &&
           memcmp(before.moments, skipped.moments, sizeof before.moments) == 0 &&
           after.status.steps == before.status.steps + 1 &&
           memcmp(before.p.w[0], after.p.w[0], sizeof before.p.w[0]) != 0 &&
           memcmp(before.p.b[0], after.p.b[0], sizeof before.p.b[0]) != 0;
}

/* --------------------------------------------------------------------------------------- main */

static void print_help(void) {
    printf("usage: " PROGRAM " [options]\n\n"
           "Train a network on digits with AdamW alone, and with Muon and AdamW together.\n\n"
           "  --seeds N    (5)  --epochs N  (20)\n"
           "  --lr X       of both (AdamW alone 0.003, Muon and AdamW 0.005)\n");
}

int main(int argc, char **argv) {
    static const char *const names[WAYS] = {"AdamW", "Muon, AdamW"};
    static const float       best[WAYS]  = {0.003f, 0.005f}; /* of nine from 0.001 to 0.05 */
    static result            r[WAYS];
    static net               n;
    dataset                  d;
    int                      seeds = 5, epochs = 20, good;
    float                    lr    = 0.0f;
    const known_option       known[] = {count_option("--seeds", &seeds, 99),
                                        count_option("--epochs", &epochs, 1000),
                                        real_option("--lr", &lr, 1.0)};
    parse_known(argc, argv, known, sizeof known / sizeof *known, print_help);
    load_data(&d, "digits");
    printf("%s\n\n             held-out loss     accuracy %%   ms a step\n", d.name);
    for (int way = 0; way < WAYS; way++) {
        const float rate = lr > 0.0f ? lr : best[way];
        for (int seed = 0; seed < seeds; seed++) {
            if (seed + way > 0) amp_optimizer_free(&n.opt);
            start(&n, way, seed);
            train(&n, &d, epochs, rate, seed, &r[way]);
        }
        const spread loss  = over_seeds(r[way].loss, NULL, seeds);
        const spread right = over_seeds(r[way].accuracy, NULL, seeds);
        printf("%-12s %.3f +- %.3f   %5.2f +- %.2f   %9.2f\n", names[way], loss.mean, loss.sd,
               right.mean, right.sd, r[way].ms);
    }
    putchar('\n');
    show_orthogonality(&n);
    good = survives(&n, best[MUON]);
    printf("a NaN in a gradient of Muon's: skipped; weights and moments of both as before: %s\n",
           good ? "ok" : "NOT AS CLAIMED");
    amp_optimizer_free(&n.opt);
    free(d.image), free(d.label);
    return finish(!good);
}
