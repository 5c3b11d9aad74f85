/* state.c - masters and moments in fewer bytes, side by side: what each state keeps and moves, how fast
   a step is with it, and how far the loss it trains to is from the default's

   READ  from top to bottom: a classifier of digits in bf16, trained from the same seeds in each state;
   then one large tensor, stepped in all states in turns. All that differs is desc.state.

   RUN   cc -O3 -I. examples/state.c -o state -lm && ./state          in the directory of amp.h

   About two minutes on two cores. The last lines, one for each state:

       state NAME kept BYTES moved BYTES speed RATIO d DIFFERENCE se ERROR

       kept    bytes for each parameter, as allocated: model copy, master, moments
       moved   bytes that a step reads and writes for each parameter, with gradients of halves
       speed   the default's time of a step over this one's: medians over turns
       d       of the mean training loss of the last epochs, the difference to the default's, over the
               default's: a mean over the seeds, and se its standard error                          */

#define _POSIX_C_SOURCE 200809L /* for train_data.h */
#define PROGRAM "state"

#define AMP_IMPLEMENTATION
#define AMP_STATIC
#include "amp.h"

#include "train_data.h"

#include <math.h>
#include <time.h>

enum { LAYERS = 3, HIDDEN = 128, BATCH = 64, MAX_SEEDS = 20, MAX_TURNS = 101, NUM_STATES = 4 };

static const struct { const char *name; amp_state state; double moved; } states[NUM_STATES] = {
    {"default", AMP_STATE_DEFAULT, 30},
    {"split", AMP_STATE_SPLIT, 28},
    {"bf16", AMP_STATE_BF16, 20},
    {"8bit", AMP_STATE_8BIT, 16.25},
};

typedef struct options {
    const char *data;
    int         seeds, epochs, tail, turns; /* tail: epochs whose losses count */
    size_t      elements;                   /* of the large tensor             */
} options;

static void check(amp_result r) {
    if (r != AMP_OK) fail(1, "amp.h", amp_result_string(r), "this is a bug in state.c");
}

/* ------------------------------------------------------------------------------------- network
   act[l + 1] = relu(act[l] W + b), in bf16; the last layer's output in fp32 is that of softmax. */

typedef struct net {
    size_t        width[LAYERS + 1];
    amp_bf16     *weight[LAYERS], *grad[LAYERS], *act[LAYERS], *delta[2];
    float        *bias[LAYERS], *grad_bias[LAYERS], *wide;
    amp_optimizer opt;
} net;

static void net_init(net *n, const dataset *data, int state, int seed) {
    amp_optimizer_desc desc = {0};
    uint64_t           rng  = (uint64_t)seed * 1000003u + 1;
    desc.dtype              = AMP_BF16;
    desc.kind               = AMP_KIND_ADAMW;
    desc.scaler.preset      = AMP_PRESET_STATIC; /* bf16 needs no moving scale */
    desc.scaler.init_scale  = 1.0f;
    desc.state              = states[state].state;
    desc.seed               = (uint64_t)seed;
    memset(n, 0, sizeof *n);
    check(amp_optimizer_init(&n->opt, &desc));
    for (int l = 0; l <= LAYERS; l++)
        n->width[l] = l == 0 ? data->pixels : l == LAYERS ? NUM_CLASSES : HIDDEN;
    n->wide = need(BATCH * data->pixels + 2 * data->pixels * HIDDEN + BATCH * HIDDEN, sizeof(float));
    for (int d = 0; d < 2; d++) n->delta[d] = need(BATCH * (data->pixels + HIDDEN), 2);
    for (int l = 0; l < LAYERS; l++) {
        const size_t in = n->width[l], out = n->width[l + 1];
        amp_tensor   w = {0}, b = {0};
        n->act[l]       = need(BATCH * in, 2);
        n->weight[l]    = need(in * out, 2);
        n->grad[l]      = need(in * out, 2);
        n->bias[l]      = need(out, sizeof(float));
        n->grad_bias[l] = need(out, sizeof(float));
        for (size_t i = 0; i < in * out; i++)
            n->weight[l][i] = amp_f32_to_bf16(sqrtf(3.0f / (float)in) * random_uniform(&rng));
        w.n = in * out, w.model = n->weight[l], w.model_type = AMP_BF16;
        w.grad = n->grad[l], w.grad_type = AMP_BF16;
        b.n = out, b.weight = n->bias[l], b.grad = n->grad_bias[l], b.keep_fp32 = 1;
        check(amp_optimizer_add(&n->opt, &w));
        check(amp_optimizer_add(&n->opt, &b));
    }
    check(amp_optimizer_prepare(&n->opt));
}

static void net_free(net *n) {
    amp_optimizer_free(&n->opt);
    free(n->wide), free(n->delta[0]), free(n->delta[1]);
    for (int l = 0; l < LAYERS; l++) {
        free(n->act[l]), free(n->weight[l]), free(n->grad[l]);
        free(n->bias[l]), free(n->grad_bias[l]);
    }
}

static void multiply(int trans_a, int trans_b, size_t rows, size_t cols, size_t k, const amp_bf16 *a,
                     const amp_bf16 *b, float *c) {
    check(amp_gemm(NULL, trans_a, trans_b, rows, cols, k, 1.0f, a, AMP_BF16, 0, b, AMP_BF16, 0, 0.0f,
                   c, AMP_F32, 0));
}

static void narrow(amp_bf16 *to, const float *from, size_t n) {
    check(amp_cast(to, AMP_BF16, from, AMP_F32, n));
}

/* Softmax and cross-entropy of one image; the logits become their gradient. */
static double cross_entropy(float *z, int label) {
    float max = z[0], sum = 0.0f;
    for (int i = 1; i < NUM_CLASSES; i++) max = z[i] > max ? z[i] : max;
    for (int i = 0; i < NUM_CLASSES; i++) sum += z[i] = expf(z[i] - max);
    for (int i = 0; i < NUM_CLASSES; i++) z[i] /= sum;
    const double p = (double)z[label];
    z[label] -= 1.0f;
    for (int i = 0; i < NUM_CLASSES; i++) z[i] /= BATCH;
    return -log(p > 1e-30 ? p : 1e-30);
}

/* Forward, loss and backward of the images in pick; the gradients go to where the optimizer reads. */
static double gradients(net *n, const dataset *data, const size_t *pick) {
    double loss = 0.0;
    for (size_t i = 0; i < BATCH; i++)
        narrow(n->act[0] + i * data->pixels, data->image + pick[i] * data->pixels, data->pixels);
    for (int l = 0; l < LAYERS; l++) {
        const size_t in = n->width[l], out = n->width[l + 1];
        multiply(0, 0, BATCH, out, in, n->act[l], n->weight[l], n->wide);
        for (size_t i = 0; i < BATCH * out; i++) {
            n->wide[i] += n->bias[l][i % out];
            if (l + 1 < LAYERS && n->wide[i] < 0.0f) n->wide[i] = 0.0f;
        }
        if (l + 1 < LAYERS) narrow(n->act[l + 1], n->wide, BATCH * out);
    }
    for (size_t i = 0; i < BATCH; i++)
        loss += cross_entropy(n->wide + i * NUM_CLASSES, data->label[pick[i]]);
    narrow(n->delta[0], n->wide, BATCH * NUM_CLASSES);
    for (int l = LAYERS; l-- > 0;) {
        const size_t in = n->width[l], out = n->width[l + 1];
        multiply(1, 0, in, out, BATCH, n->act[l], n->delta[0], n->wide);
        narrow(n->grad[l], n->wide, in * out);
        memset(n->grad_bias[l], 0, out * sizeof(float));
        for (size_t i = 0; i < BATCH * out; i++)
            n->grad_bias[l][i % out] += amp_bf16_to_f32(n->delta[0][i]);
        if (l == 0) break;
        multiply(0, 1, BATCH, in, out, n->delta[0], n->weight[l], n->wide);
        for (size_t i = 0; i < BATCH * in; i++)
            if (n->act[l][i].bits == 0) n->wide[i] = 0.0f; /* relu */
        narrow(n->delta[1], n->wide, BATCH * in);
        amp_bf16 *below = n->delta[1];
        n->delta[1]     = n->delta[0];
        n->delta[0]     = below;
    }
    return loss / BATCH;
}

/* Train one network; the mean loss of the last epochs, in which the learning rate goes down. */
static double train(const options *o, const dataset *data, int state, int seed) {
    size_t  *order   = need(data->num_train, sizeof *order), steps = 0;
    uint64_t shuffles = (uint64_t)seed + 99;
    double   loss    = 0.0;
    net      n;
    net_init(&n, data, state, seed);
    for (size_t i = 0; i < data->num_train; i++) order[i] = i;
    for (int epoch = 0; epoch < o->epochs; epoch++) {
        const float rate = 1e-3f * (float)(o->epochs - epoch) / (float)o->epochs;
        shuffle(order, data->num_train, &shuffles);
        for (size_t i = 0; i + BATCH <= data->num_train; i += BATCH) {
            const double l = gradients(&n, data, order + i);
            check(amp_optimizer_adamw(&n.opt, rate));
            if (epoch < o->epochs - o->tail) continue;
            loss += l;
            steps++;
        }
    }
    net_free(&n);
    free(order);
    return loss / (double)steps;
}

/* ---------------------------------------------------------------------------------- one large step */

static void *count_malloc(size_t num_bytes, void *total) {
    *(size_t *)total += num_bytes;
    return malloc(num_bytes);
}

static void count_free(void *memory, void *total) {
    (void)total;
    free(memory);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Of each state the bytes kept for a parameter, and how many times as fast as the default a step is. */
static void measure(const options *o, double *kept, double *speed) {
    static double times[NUM_STATES][MAX_TURNS];
    static size_t bytes[NUM_STATES];
    amp_optimizer opt[NUM_STATES];
    amp_bf16     *model[NUM_STATES], *grad = need(o->elements, 2);
    for (size_t i = 0; i < o->elements; i++)
        grad[i] = amp_f32_to_bf16(1e-3f * (float)((int)(i * 7919 % 2001) - 1000));
    for (int s = 0; s < NUM_STATES; s++) {
        amp_optimizer_desc desc = {0};
        amp_tensor         t    = {0};
        desc.dtype     = AMP_BF16;
        desc.kind      = AMP_KIND_ADAMW;
        desc.state     = states[s].state;
        desc.allocator = (amp_allocator){count_malloc, count_free, &bytes[s]};
        model[s]       = need(o->elements, 2);
        for (size_t i = 0; i < o->elements; i++) model[s][i] = grad[o->elements - 1 - i];
        t.n = o->elements, t.model = model[s], t.model_type = AMP_BF16;
        t.grad = grad, t.grad_type = AMP_BF16;
        check(amp_optimizer_init(&opt[s], &desc));
        check(amp_optimizer_add(&opt[s], &t));
        check(amp_optimizer_prepare(&opt[s]));
        kept[s] = 2.0 + (double)bytes[s] / (double)o->elements;
    }
    for (int turn = -1; turn < o->turns; turn++) /* the first one touches all pages */
        for (int s = 0; s < NUM_STATES; s++) {
            const double start = now();
            check(amp_optimizer_adamw(&opt[s], 1e-4f));
            if (turn >= 0) times[s][turn] = now() - start;
        }
    for (int s = 0; s < NUM_STATES; s++) {
        qsort(times[s], (size_t)o->turns, sizeof(double), by_value);
        speed[s] = times[0][o->turns / 2] / times[s][o->turns / 2];
        amp_optimizer_free(&opt[s]);
        free(model[s]);
    }
    free(grad);
}

/* ------------------------------------------------------------------------------------------ main */

static const char help_text[] =
    "usage: state [--quick] [--seeds N] [--epochs N] [--elements MILLIONS] [--data PATH]\n"
    "Trains a classifier in each of amp.h's states, and times one large step in each.\n"
    "  --quick      two seeds, few epochs and a small step: what it prints then means little\n"
    "  --seeds      5: of which d is the mean\n"
    "  --epochs     30\n"
    "  --elements   50: parameters of the large step, in millions; 14 + 12 + 8 + 6 bytes for each\n"
    "  --data       digits, fashion or a path, as in train --help\n";

static options parse(int argc, char **argv) {
    options o = {"digits", 5, 30, 5, 15, 50000000};
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(name, "--help") == 0) printf("%s", help_text), exit(0);
        if (strcmp(name, "--quick") == 0) {
            o.seeds = 2, o.epochs = 4, o.tail = 1, o.turns = 3, o.elements = 1000000;
            continue;
        }
        if (strcmp(name, "--seeds") == 0) o.seeds = parse_count(name, value, MAX_SEEDS);
        else if (strcmp(name, "--epochs") == 0) o.epochs = parse_count(name, value, 1000);
        else if (strcmp(name, "--elements") == 0)
            o.elements = (size_t)parse_count(name, value, 2000) * 1000000;
        else if (strcmp(name, "--data") == 0 && *value) o.data = value;
        else fail(2, name, "unknown option, or no value", "see --help");
        i++;
    }
    if (o.tail > o.epochs) o.tail = o.epochs;
    return o;
}

int main(int argc, char **argv) {
    const options o = parse(argc, argv);
    static double loss[NUM_STATES][MAX_SEEDS];
    double        kept[NUM_STATES], speed[NUM_STATES];
    dataset       data;
    load_data(&data, o.data);
    for (int seed = 0; seed < o.seeds; seed++)
        for (int s = 0; s < NUM_STATES; s++) {
            progress((double)(seed * NUM_STATES + s) / (o.seeds * NUM_STATES), states[s].name);
            loss[s][seed] = train(&o, &data, s, seed);
        }
    progress(1.0, "large steps");
    measure(&o, kept, speed);
    progress_end();
    printf("%s; %d seeds, %d epochs; a step of %lu parameters, %s\n", data.name, o.seeds, o.epochs,
           (unsigned long)o.elements, amp_cpu_tier());
    printf("loss with the default state: %.5f\n", over_seeds(loss[0], NULL, o.seeds).mean);
    for (int s = 0; s < NUM_STATES; s++) {
        const double base = over_seeds(loss[0], NULL, o.seeds).mean;
        const spread d    = over_seeds(loss[s], loss[0], o.seeds);
        printf("state %s kept %.1f moved %.1f speed %.2f d %+.4f se %.4f\n", states[s].name, kept[s],
               states[s].moved, speed[s], d.mean / base, d.se / base);
    }
    free(data.image);
    free(data.label);
    return 0;
}
