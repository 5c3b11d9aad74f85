/* pitfalls.c - why mixed precision needs more than replacing float by half

   Seven short sections, each with numbers computed here:
     a  a small update to a weight of 1 is rounded away in fp16 and bf16
     b  a small gradient becomes zero in fp16, unless the loss is scaled
     c  1000 updates of 0.0001 do not move a weight without an fp32 master; with one they do
     d  fp16 cannot train a network without a loss scale; with one it equals fp32
     e  after -Ofast the usual test for inf finds none; amp_all_finite does
     f  in bf16 one inf in a gradient ruins a run that only clips, or only looks at its loss
     g  two optimizers share a step: gradients that are zeroed before end_step are lost

   Build and run:
       cc -O2 -I. examples/pitfalls.c -o pitfalls -lm && ./pitfalls

   Every section ends with "ok": the program checks its own claims and exits with 1 if one fails.
   It takes about a second, nearly all of it in section d. */

#define AMP_IMPLEMENTATION
#include "amp.h"
#define PROGRAM "pitfalls"
#include "support/train_cli.h" /* must, no_options, finish */

#include <math.h>   /* sinf, sqrtf, fabsf, tanhf */
#include <stdio.h>
#include <stdlib.h> /* calloc, free, exit */
#include <string.h> /* memcpy, strcmp */

/* ------------------------------------------------------------------ a, b, c: single numbers */

static float f16_at(int bits) {
    amp_f16 h;
    h.bits = (uint16_t)bits;
    return amp_f16_to_f32(h);
}

static float bf16_at(int bits) {
    amp_bf16 h;
    h.bits = (uint16_t)bits;
    return amp_bf16_to_f32(h);
}

static int section_a(void) {
    const int   f16_one  = amp_f32_to_f16(1.0f).bits;
    const int   bf16_one = amp_f32_to_bf16(1.0f).bits;
    const float f16_sum  = amp_f16_to_f32(amp_f32_to_f16(1.0f + 0.0001f));
    const float bf16_sum = amp_bf16_to_f32(amp_f32_to_bf16(1.0f + 0.003f));
    printf("a. A small step away from 1 is lost: the next number is too far\n"
           "          just below 1    just above 1\n");
    printf("   fp16   %.11f   %.11f   1 + 0.0001 = %g\n", (double)f16_at(f16_one - 1),
           (double)f16_at(f16_one + 1), (double)f16_sum);
    printf("   bf16   %.11f   %.11f   1 + 0.003  = %g\n", (double)bf16_at(bf16_one - 1),
           (double)bf16_at(bf16_one + 1), (double)bf16_sum);
    return verdict(f16_sum == 1.0f && bf16_sum == 1.0f);
}

/* Numbers below half the least fp16 subnormal, 2^-25 = 2.98e-8, are rounded to zero. What lies a
   little above survives as one or two units, which is far from what it was. */
static int section_b(void) {
    static const float grad[3] = {1e-7f, 5e-8f, 2e-8f};
    amp_scaler scaler;
    amp_f16    scaled[3];
    float      plain[3], unscaled[3];
    int        i, ok = 1;
    must(amp_scaler_init(&scaler, NULL));
    for (i = 0; i < 3; i++) {
        plain[i]  = amp_f16_to_f32(amp_f32_to_f16(grad[i]));
        scaled[i] = amp_f32_to_f16(scaler.scale * grad[i]);
    }
    must(amp_scaler_unscale(&scaler, unscaled, scaled, AMP_F16, 3));
    printf("b. fp16 counts in steps of %.3g here: gradients below half of that vanish,\n"
           "   those near it are coarse. Scaled by %g they survive, and unscaling\n"
           "   in fp32 gives them back\n"
           "   gradient   in fp16      scaled, in fp16, unscaled\n",
           (double)f16_at(1), (double)scaler.scale);
    for (i = 0; i < 3; i++) {
        printf("   %-8.0e   %-10.4g   %.4g\n", (double)grad[i], (double)plain[i],
               (double)unscaled[i]);
        if (!(fabsf(unscaled[i] - grad[i]) < 0.0005f * grad[i])) ok = 0;
    }
    return verdict(ok && plain[2] == 0.0f);
}

/* A gradient of -1 and a learning rate of 0.0001, once with the weight itself in fp16 and once
   with the fp32 master of amp_optimizer, whose fp16 copy moves as soon as it can. */
static int section_c(void) {
    amp_f16            weight = amp_f32_to_f16(1.0f), grad = amp_f32_to_f16(-1.0f), model;
    float              master = 1.0f, alone, copy;
    amp_optimizer      opt;
    amp_optimizer_desc desc = {.dtype = AMP_F16, .kind = AMP_KIND_SGD,
                               .scaler = {.preset = AMP_PRESET_NONE}};
    amp_tensor         tensor = {.n = 1, .weight = &master, .grad = &grad, .grad_type = AMP_F16};
    int                i;
    must(amp_optimizer_init(&opt, &desc));
    must(amp_optimizer_add(&opt, &tensor));
    must(amp_optimizer_prepare(&opt));
    for (i = 0; i < 1000; i++) {
        weight = amp_f32_to_f16(amp_f16_to_f32(weight) - 0.0001f * amp_f16_to_f32(grad));
        must(amp_optimizer_step(&opt, 0.0001f));
    }
    memcpy(&model, amp_optimizer_model(&opt, 0), sizeof model);
    alone = amp_f16_to_f32(weight);
    copy  = amp_f16_to_f32(model);
    amp_optimizer_free(&opt);
    printf("c. A weight of 1 after 1000 updates of +0.0001, which should make it 1.1\n"
           "   fp16 alone                  %.6f\n"
           "   fp32 master, its fp16 copy  %.6f, %.6f\n",
           (double)alone, (double)master, (double)copy);
    return verdict(alone == 1.0f && fabsf(master - 1.1f) < 0.0005f &&
                   fabsf(copy - 1.1f) < 0.001f);
}

/* ------------------------------------------------------------------ d: a network

   A synthesizer: 8 controls (and a constant 1, the bias) -> 32 -> 32 -> 32 -> the 4096 samples of
   a quiet clip, with tanh between, a small last layer at the start, and the mean squared error
   over batch and samples. Weights, activations and gradients are really stored in the type; both
   fp16 runs have fp32 masters and differ in nothing but the loss scale.

   Why fp16 fails without one: the mean divides every error by 256 * 4096 / 2 = 524288. Clips of
   rms 0.004 (-48 dB of full scale) give output gradients of rms 7.5e-9, below the 2.98e-8 where
   fp16 rounds to zero; only errors above 0.0156 come through, which are 0.009% at the start. What
   is zero at the output is zero in every layer and weight gradient, so next to nothing is learned.
   With the scale, the same gradients have rms 4.9e-4 and all survive but the 0.01% whose errors
   are next to nothing. Nothing about this is peculiar to clips: in a batch of sixteen RGB images of
   1024 x 1024, errors of 0.19 flush as these do.

   Plain SGD, because there the size of a gradient matters. Its learning rate looks large because
   it undoes part of the mean: 1200 is 0.3 per output. AdamW divides by the gradient's size, so it
   is nearly blind to the scale and hides a partial underflow; a total one, as here, it suffers
   like SGD (measured at 1e-3: 99.5% of the first loss is left without a scale, 7.3% in fp32). */

enum { BATCH = 256, CONTROLS = 8, HIDDEN = 32, SAMPLES = 4096, LAYERS = 4, STEPS = 25 };

static const size_t width[LAYERS + 1] = {CONTROLS + 1, HIDDEN, HIDDEN, HIDDEN, SAMPLES};

typedef struct tally { double nonzero, flushed, zero, total; } tally; /* counts of gradients */

typedef struct network {
    amp_dtype     type;             /* of everything that follows but weight and wide     */
    amp_optimizer opt;
    float        *weight[LAYERS];   /* the masters                                        */
    void         *grad[LAYERS];
    void         *act[LAYERS + 1];  /* act[0] is the input, act[LAYERS] the output        */
    void         *dact[LAYERS + 1]; /* gradients of these, scaled; dact[0] is not needed  */
    float        *wide;             /* fp32 results before they are stored in type        */
    tally         acts, weights;    /* how their gradients were stored, over all steps    */
} network;

typedef struct report {
    double   first_loss, loss, act_flushed, weight_zero, first_rms;
    float    scale;
    unsigned skipped;
} report;

static void *allocate(size_t count, size_t size) {
    void *memory = calloc(count, size);
    if (memory) return memory;
    fprintf(stderr, "pitfalls: out of memory: %lu bytes\n", (unsigned long)(count * size));
    exit(1);
}

/* Uniform in [-1, 1); the same everywhere. */
static float uniform(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / 8388608.0f - 1.0f;
}

/* Clips are sums of eight sines; how loud each is follows from the controls, not quite linearly. */
static void make_task(float *controls, float *clips) {
    uint32_t state = 1;
    size_t   b, i, j;
    float   *wave = (float *)allocate(CONTROLS * SAMPLES, sizeof *wave);
    for (i = 0; i < CONTROLS; i++)
        for (j = 0; j < SAMPLES; j++)
            wave[i * SAMPLES + j] =
                0.0033f * sinf(0.00614f * (float)((i + 1) * (i + 2) * j) + (float)i);
    for (b = 0; b < BATCH; b++) {
        float *c = controls + b * (CONTROLS + 1), *clip = clips + b * SAMPLES;
        for (i = 0; i < CONTROLS; i++) c[i] = uniform(&state);
        c[CONTROLS] = 1.0f;
        for (i = 0; i < CONTROLS; i++) {
            const float loud = c[i] + 0.3f * c[(i + 1) % CONTROLS] * c[(i + 3) % CONTROLS];
            for (j = 0; j < SAMPLES; j++) clip[j] += loud * wave[i * SAMPLES + j];
        }
    }
    free(wave);
}

static void net_init(network *net, amp_dtype type, amp_preset preset) {
    const amp_optimizer_desc desc = {.dtype = type, .kind = AMP_KIND_SGD,
                                     .scaler = {.preset = preset}};
    const size_t size  = amp_dtype_size(type);
    uint32_t     state = 7;
    size_t       l, i;
    memset(net, 0, sizeof *net);
    net->type = type;
    net->wide = (float *)allocate(BATCH * SAMPLES, sizeof(float));
    must(amp_optimizer_init(&net->opt, &desc));
    for (l = 0; l <= LAYERS; l++) {
        net->act[l]  = allocate(BATCH * width[l], size);
        net->dact[l] = allocate(BATCH * width[l], size);
    }
    for (l = 0; l < LAYERS; l++) {
        const float  bound = l + 1 < LAYERS ? 1.7f / sqrtf((float)width[l]) : 0.0005f;
        const size_t n     = width[l] * width[l + 1];
        amp_tensor   tensor = {.n = n, .grad_type = type};
        tensor.weight = net->weight[l] = (float *)allocate(n, sizeof(float));
        tensor.grad   = net->grad[l]   = allocate(n, size);
        for (i = 0; i < n; i++) net->weight[l][i] = bound * uniform(&state);
        must(amp_optimizer_add(&net->opt, &tensor));
    }
    must(amp_optimizer_prepare(&net->opt));
}

static void net_free(network *net) {
    int l;
    amp_optimizer_free(&net->opt);
    for (l = 0; l < LAYERS; l++) {
        free(net->weight[l]);
        free(net->grad[l]);
    }
    for (l = 0; l <= LAYERS; l++) {
        free(net->act[l]);
        free(net->dact[l]);
    }
    free(net->wide);
}

/* Store n fp32 results as gradients and count which of them became zero by that. */
static void store_grad(network *net, void *dst, size_t n, tally *t) {
    float  stored[1024];
    size_t at, i;
    for (at = 0; at < n; at += 1024) {
        const size_t part = n - at < 1024 ? n - at : 1024;
        char        *to   = (char *)dst + at * amp_dtype_size(net->type);
        must(amp_cast(to, net->type, net->wide + at, AMP_F32, part));
        must(amp_cast(stored, AMP_F32, to, net->type, part));
        for (i = 0; i < part; i++) {
            const int nonzero = net->wide[at + i] != 0.0f, zero = stored[i] == 0.0f;
            t->nonzero += nonzero;
            t->flushed += nonzero && zero;
            t->zero    += zero;
        }
    }
    t->total += (double)n;
}

/* c = op(a) op(b), summed in fp32; a and b have the network's type. */
static void product(const network *net, int trans_a, int trans_b, size_t m, size_t n, size_t k,
                    const void *a, const void *b, void *c, amp_dtype c_type) {
    const amp_gemm_args g = {.trans_a = trans_a, .trans_b = trans_b, .m = m, .n = n, .k = k,
                             .a = a, .a_type = net->type, .b = b, .b_type = net->type,
                             .c = c, .c_type = c_type};
    must(amp_gemm(NULL, &g));
}

static void forward(network *net, const float *controls) {
    int    l;
    size_t i;
    must(amp_cast(net->act[0], net->type, controls, AMP_F32, BATCH * width[0]));
    for (l = 0; l < LAYERS; l++) {
        const int    last = l == LAYERS - 1;
        const size_t n    = BATCH * width[l + 1];
        product(net, 0, 0, BATCH, width[l + 1], width[l], net->act[l],
                amp_optimizer_model(&net->opt, l), last ? net->act[l + 1] : net->wide,
                last ? net->type : AMP_F32);
        if (last) break;
        for (i = 0; i < n; i++) net->wide[i] = tanhf(net->wide[i]);
        must(amp_cast(net->act[l + 1], net->type, net->wide, AMP_F32, n));
    }
}

/* The mean squared error; its gradient, times the loss scale, goes to the output's. */
static double loss_and_gradient(network *net, const float *clips, double *rms) {
    const size_t n     = (size_t)BATCH * SAMPLES;
    const float  dloss = 2.0f / (float)n * amp_optimizer_loss_scale(&net->opt);
    double       sum   = 0.0;
    size_t       i;
    must(amp_cast(net->wide, AMP_F32, net->act[LAYERS], net->type, n));
    for (i = 0; i < n; i++) {
        const float error = net->wide[i] - clips[i];
        sum += (double)error * (double)error;
        net->wide[i] = dloss * error;
    }
    store_grad(net, net->dact[LAYERS], n, &net->acts);
    *rms = 2.0 / (double)n * sqrt(sum / (double)n);
    return sum / (double)n;
}

static void backward(network *net) {
    float  h[HIDDEN];
    size_t b, i;
    int    l;
    for (l = LAYERS - 1; l >= 0; l--) {
        product(net, 1, 0, width[l], width[l + 1], BATCH, net->act[l], net->dact[l + 1], net->wide,
                AMP_F32);
        store_grad(net, net->grad[l], width[l] * width[l + 1], &net->weights);
        if (l == 0) break;
        product(net, 0, 1, BATCH, width[l], width[l + 1], net->dact[l + 1],
                amp_optimizer_model(&net->opt, l), net->wide, AMP_F32);
        for (b = 0; b < BATCH; b++) {
            const char *row = (const char *)net->act[l] + b * HIDDEN * amp_dtype_size(net->type);
            must(amp_cast(h, AMP_F32, row, net->type, HIDDEN));
            for (i = 0; i < HIDDEN; i++) net->wide[b * HIDDEN + i] *= 1.0f - h[i] * h[i];
        }
        store_grad(net, net->dact[l], BATCH * width[l], &net->acts);
    }
}

static report train(const char *name, amp_dtype type, amp_preset preset, const float *controls,
                    const float *clips) {
    network    net;
    report     r;
    amp_status status;
    double     rms;
    int        step;
    net_init(&net, type, preset);
    forward(&net, controls);
    r.first_loss = r.loss = loss_and_gradient(&net, clips, &r.first_rms);
    for (step = 0; step < STEPS; step++) {
        backward(&net);
        must(amp_optimizer_step(&net.opt, 1200.0f));
        forward(&net, controls);
        r.loss = loss_and_gradient(&net, clips, &rms);
    }
    must(amp_optimizer_status(&net.opt, &status));
    r.scale       = status.loss_scale;
    r.skipped     = (unsigned)status.skipped;
    r.act_flushed = 100.0 * net.acts.flushed / net.acts.nonzero;
    r.weight_zero = 100.0 * net.weights.zero / net.weights.total;
    net_free(&net);
    printf("   %-14s %.4e %.4e %4.1f%% %7.2f%% %7.2f%% %7u %6g\n", name, r.first_loss, r.loss,
           100.0 * r.loss / r.first_loss, r.act_flushed, r.weight_zero, r.skipped,
           (double)r.scale);
    return r;
}

static int section_d(void) {
    float *controls = (float *)allocate(BATCH * (CONTROLS + 1), sizeof(float));
    float *clips    = (float *)allocate(BATCH * SAMPLES, sizeof(float));
    report full, unscaled, scaled;
    make_task(controls, clips);
    printf("d. A network with 4096 outputs, %d steps of SGD. Lost: gradients of activations\n"
           "   that are 0 as stored, and not in fp32. Zero: gradients of weights that are 0.\n"
           "                  first loss last loss  left     lost     zero skipped  scale\n",
           STEPS);
    full     = train("fp32", AMP_F32, AMP_PRESET_NONE, controls, clips);
    unscaled = train("fp16, scale 1", AMP_F16, AMP_PRESET_NONE, controls, clips);
    scaled   = train("fp16, dynamic", AMP_F16, AMP_PRESET_DEFAULT, controls, clips);
    printf("   output gradients at the start: rms %.2g; fp16 keeps what is above %.3g\n",
           full.first_rms, (double)(0.5f * f16_at(1)));
    free(controls);
    free(clips);
    return verdict(full.loss < 0.3 * full.first_loss && unscaled.loss > 0.97 * full.first_loss &&
                   fabs(scaled.loss - full.loss) < 0.01 * full.loss &&
                   unscaled.act_flushed > 99.0 && scaled.act_flushed < 1.0);
}

/* ------------------------------------------------------------------ e: finding an inf

   Compilers may assume under -Ofast that no number is inf or NaN. isfinite(x), and the x - x that
   stands for it here, are then constants; a loss scaler built on them never skips a step. */
static int section_e(void) {
    static const uint32_t inf_bits = 0x7f800000u;
    float grad[5] = {0.5f, -1.0f, 0.0f, 2.0f, 0.25f};
    int   i, usual = 1, amp;
    memcpy(&grad[3], &inf_bits, sizeof inf_bits);
    for (i = 0; i < 5; i++)
        if (!(grad[i] - grad[i] == 0.0f)) usual = 0;
    amp = amp_all_finite(grad, AMP_F32, 5);
    printf("e. One of five gradients is inf. x - x == 0 finds %s, amp_all_finite finds %s\n",
           usual ? "nothing (fast-math)" : "it", amp ? "nothing" : "it");
    return verdict(!amp);
}

/* ------------------------------------------------------------------ f: one inf, in bf16

   bf16 needs no scale, and yet a gradient may be inf for once: a bad sample, a division, a flipped
   bit. A clip that trusts the norm divides by inf: 0 times inf is NaN, and a NaN passes every later
   comparison. Who looks at the loss alone sees it one step late, and then skips for ever. */
enum { WEIGHTS = 16, POINTS = 64, BEFORE = 10, AFTER = 100 };
enum { BY_CLIP, BY_LOSS, BY_AMP, WITHOUT_IT, WAYS };

/* Fit y = sum of w x by SGD on copies and gradients in bf16. */
static void fit(int way, float *w, int *taken, double *loss) {
    static const uint32_t inf = 0x7f800000u;
    amp_bf16              grad[WEIGHTS];
    float                 model[WEIGHTS], g[WEIGHTS];
    amp_optimizer         opt;
    amp_optimizer_desc    desc   = {.dtype = AMP_BF16, .max_norm = 1.0f,
                                    .scaler = {.preset = AMP_PRESET_NONE}};
    amp_tensor            tensor = {.n = WEIGHTS, .weight = w, .grad = grad, .grad_type = AMP_BF16};
    must(amp_optimizer_init(&opt, &desc));
    must(amp_optimizer_add(&opt, &tensor));
    must(amp_optimizer_prepare(&opt));
    for (int step = 0; step <= BEFORE + AFTER; step++) {
        uint32_t state = (uint32_t)step % 4;
        float    norm = 0.0f, sum = 0.0f;
        int      go;
        if (way == WITHOUT_IT && step == BEFORE) continue;
        for (int j = 0; j < WEIGHTS; j++) model[j] = amp_bf16_to_f32(amp_f32_to_bf16(w[j]));
        memset(g, 0, sizeof g);
        for (int i = 0; i < POINTS; i++) {
            float x[WEIGHTS], error = 0.0f;
            for (int j = 0; j < WEIGHTS; j++) {
                x[j] = uniform(&state);
                error += (model[j] - (float)(j - 7) * 0.125f) * x[j];
            }
            for (int j = 0; j < WEIGHTS; j++) g[j] += 2.0f / POINTS * error * x[j];
            sum += error * error / POINTS;
        }
        *loss = (double)sum;
        if (step == BEFORE) memcpy(&g[3], &inf, sizeof inf);
        must(amp_cast(grad, AMP_BF16, g, AMP_F32, WEIGHTS));
        if (way >= BY_AMP) {
            go = amp_optimizer_begin_step(&opt);
            memcpy(g, amp_optimizer_grad(&opt, 0), sizeof g); /* clipped, if it is to be read */
        } else {
            must(amp_cast(g, AMP_F32, grad, AMP_BF16, WEIGHTS));
            for (int j = 0; j < WEIGHTS; j++) norm += g[j] * g[j];
            norm = sqrtf(norm);
            if (norm > 1.0f)
                for (int j = 0; j < WEIGHTS; j++) g[j] *= 1.0f / norm;
            go = way == BY_CLIP || amp_all_finite(&sum, AMP_F32, 1);
        }
        *taken += go;
        for (int j = 0; j < WEIGHTS && go; j++) w[j] -= 0.2f * g[j];
        if (way >= BY_AMP) must(amp_optimizer_end_step(&opt));
    }
    amp_optimizer_free(&opt);
}

static int section_f(void) {
    static const char *const name[WAYS] = {"clip by the norm", "check of the loss", "amp.h",
                                           "without that batch"};
    float  w[WAYS][WEIGHTS] = {{0.0f}};
    int    taken[WAYS]      = {0}, lost[WAYS] = {0};
    double loss[WAYS];
    printf("f. bf16, one inf in the gradient of step %d, then %d steps more\n"
           "                        taken  skipped  weights lost  loss\n", BEFORE + 1, AFTER);
    for (int way = 0; way < WAYS; way++) {
        fit(way, w[way], &taken[way], &loss[way]);
        for (int j = 0; j < WEIGHTS; j++) lost[way] += !amp_all_finite(&w[way][j], AMP_F32, 1);
        printf("   %-18s %8d %8d %8d of %d  ", name[way], taken[way],
               BEFORE + AFTER + (way < WITHOUT_IT) - taken[way], lost[way], WEIGHTS);
        if (lost[way]) puts("nan");
        else printf("%.2g\n", loss[way]);
    }
    printf("   amp.h has %s of the run without that batch\n",
           memcmp(w[BY_AMP], w[WITHOUT_IT], sizeof w[0]) ? "NOT the bits" : "the bits");
    return verdict(lost[BY_CLIP] && lost[BY_LOSS] && taken[BY_LOSS] == BEFORE + 1 && !lost[BY_AMP] &&
                   taken[BY_AMP] == BEFORE + AFTER && loss[BY_AMP] < 1e-3 &&
                   memcmp(w[BY_AMP], w[WITHOUT_IT], sizeof w[0]) == 0);
}

/* ------------------------------------------------------------------ g: two optimizers

   amp_optimizer_step reads every gradient twice: to check it, and to step by it. With a tensor of
   your own (amp_tensor.own) your optimizer runs between the two, and a loop that zeroes all
   gradients there, as one that is used to do so behind its optimizer, zeroes those of the others
   before they were used. No error tells: a step by zeros is a step. */
enum { TOO_EARLY, BEHIND, ZERO_GRAD, TIMES };

/* 100 steps towards 1 of two weights: w[0] is own. */
static void two_optimizers(int when, float *w) {
    float              grad[2];
    amp_optimizer      opt;
    amp_optimizer_desc desc = {.kind = AMP_KIND_SGD, .zero_grad = when == ZERO_GRAD,
                               .scaler = {.preset = AMP_PRESET_NONE}};
    must(amp_optimizer_init(&opt, &desc));
    for (int i = 0; i < 2; i++) {
        amp_tensor tensor = {.n = 1, .weight = &w[i], .grad = &grad[i], .own = i == 0};
        must(amp_optimizer_add(&opt, &tensor));
    }
    must(amp_optimizer_prepare(&opt));
    must(amp_optimizer_set_lr(&opt, 0.1f));
    memset(grad, 0, sizeof grad);
    for (int step = 0; step < 100; step++) {
        for (int i = 0; i < 2; i++) grad[i] += w[i] - 1.0f;
        if (amp_optimizer_begin_step(&opt)) w[0] -= 0.1f * *amp_optimizer_grad(&opt, 0);
        if (when == TOO_EARLY) memset(grad, 0, sizeof grad);
        must(amp_optimizer_end_step(&opt));
        if (when == BEHIND) memset(grad, 0, sizeof grad);
    }
    amp_optimizer_free(&opt);
}

static int section_g(void) {
    static const char *const name[TIMES] = {"before end_step", "behind end_step", "by zero_grad"};
    float w[TIMES][2] = {{0.0f}};
    printf("g. Two weights go to 1 in 100 steps, one by an optimizer of the program's own\n"
           "   gradients are zeroed    own       the other\n");
    for (int when = 0; when < TIMES; when++) {
        two_optimizers(when, w[when]);
        printf("   %-20s %8.4f %12.4f\n", name[when], (double)w[when][0], (double)w[when][1]);
    }
    return verdict(w[TOO_EARLY][1] == 0.0f && w[BEHIND][1] > 0.9999f &&
                   w[TOO_EARLY][0] == w[BEHIND][0] &&
                   memcmp(w[ZERO_GRAD], w[BEHIND], sizeof w[0]) == 0);
}

int main(int argc, char **argv) {
    int ok;
    no_options(argc, argv,
               "Show, with numbers computed here, why mixed precision needs masters and a loss\n"
               "scale. It exits with 1 if one of its claims does not hold.\n");
    ok = section_a();
    ok &= section_b();
    ok &= section_c();
    ok &= section_d();
    ok &= section_e();
    ok &= section_f();
    ok &= section_g();
    return finish(ok ? 0 : 1);
}
