/* recipes.c - eleven situations beyond the plain loop, one function each; see recipes_net.c, too

     a  gradient accumulation: the batch does not fit in memory
     b  several losses or optimizers on one loss scale
     c  a gradient penalty: gradients are needed unscaled in the middle of an iteration
     d  a loss scale set by hand
     e  a learning-rate schedule and an average of weights that respect skipped steps
     f  several runs in one program, the type from the environment
     g  gradients that carry momentum from step to step
     h  clipping: after unscaling, before the step
     i  the batch of a skipped step, repeated until the step is taken; spikes are skipped
     j  another program's run continues here, then there again, with its moments and step count
     k  a scaler alone, around an optimizer that divides gradients by the scale itself

   Build and run:
       cc -O2 -I. examples/recipes.c -o recipes -lm && ./recipes

   Each prints a few lines that end with "ok": the program checks what it says and exits with 1 if
   it does not hold. For f, try AMP_DTYPE=bf16 ./recipes, or AMP_DTYPE=fp8, which is refused.
   Each recipe fits y = w x with a half-precision copy of w. */

#define AMP_IMPLEMENTATION
#include "amp.h"
#define PROGRAM "recipes"
#include "support/train_cli.h" /* must, no_options, finish */

#include <math.h>   /* sqrt, fabs, fmax, pow */
#include <stdio.h>
#include <string.h> /* memcmp, memcpy, strcmp */

enum { DIM = 16, SAMPLES = 256 };
static float data_x[SAMPLES][DIM], data_y[SAMPLES];

static void make_data(void) {
    uint32_t state = 1;
    for (int i = 0; i < SAMPLES; i++) {
        data_y[i] = 0.0f;
        for (int j = 0; j < DIM; j++) {
            state        = state * 1664525u + 1013904223u;
            data_x[i][j] = (float)(state >> 8) / 8388608.0f - 1.0f;
            data_y[i] += data_x[i][j] * (float)(j - 7) * 0.125f;
        }
    }
}

/* The mean squared error over count samples; with grad, its gradient times dloss, in fp16. */
static double loss_of(const void *model, amp_dtype type, int first, int count, float dloss,
                      amp_f16 *grad) {
    float  w[DIM], g[DIM] = {0.0f};
    double sum = 0.0;
    must(amp_cast(w, AMP_F32, model, type, DIM));
    for (int i = first; i < first + count; i++) {
        float error = -data_y[i];
        for (int j = 0; j < DIM; j++) error += w[j] * data_x[i][j];
        for (int j = 0; j < DIM; j++) g[j] += 2.0f * error * data_x[i][j];
        sum += (double)error * (double)error;
    }
    for (int j = 0; j < DIM && grad; j++) grad[j] = amp_f32_to_f16(g[j] / (float)count * dloss);
    return sum / count;
}

static void overflow(amp_f16 *grad) { grad[3] = amp_f32_to_f16(1e9f); } /* inf */

/* One tensor of DIM weights on an optimizer, prepared. */
static void start(amp_optimizer *opt, const amp_optimizer_desc *desc, float *w, void *grad,
                  amp_dtype grad_type) {
    const amp_tensor t = {.name = "w", .n = DIM, .weight = w, .grad = grad,
                          .grad_type = grad_type};
    must(amp_optimizer_init(opt, desc));
    must(amp_optimizer_add(opt, &t));
    must(amp_optimizer_prepare(opt));
}

/* a. Gradient accumulation, when the batch you want does not fit in memory. Divide the loss by the
   number of micro-batches and add their gradients up; they are all scaled alike, since the scale
   moves only with the step. One step for all of them. Add in fp32: an fp16 sum rounds each time, to
   1/2048 of the sum, and can overflow where no addend did. */
static double accumulate(int parts, amp_dtype sum_type, float *w) {
    const amp_optimizer_desc desc = {.dtype = AMP_F16, .kind = AMP_KIND_SGD, .zero_grad = 1,
                                     .scaler = {.init_scale = 1024.0f}};
    amp_optimizer opt;
    amp_f16       grad[DIM];
    float         sum[DIM] = {0.0f}, part[DIM];
    start(&opt, &desc, w, sum, AMP_F32);
    for (int step = 0; step < 10; step++) {
        const float scale = amp_optimizer_loss_scale(&opt); /* stays until the step below */
        for (int m = 0; m < parts; m++) {
            const int count = SAMPLES / parts;
            loss_of(amp_optimizer_model(&opt, 0), AMP_F16, m * count, count,
                    scale / (float)parts, grad);
            must(amp_cast(part, AMP_F32, grad, AMP_F16, DIM));
            for (int j = 0; j < DIM; j++) sum[j] += part[j];
            if (sum_type != AMP_F16) continue; /* what recipe a warns of: */
            for (int j = 0; j < DIM; j++) sum[j] = amp_f16_to_f32(amp_f32_to_f16(sum[j]));
        }
        must(amp_optimizer_step(&opt, 0.25f)); /* once; zero_grad empties sum */
    }
    amp_optimizer_free(&opt);
    return loss_of(w, AMP_F32, 0, SAMPLES, 0.0f, NULL);
}

static void recipe_a(void) {
    float        one[DIM] = {0.0f}, wide[DIM] = {0.0f}, half[DIM] = {0.0f};
    double       off_wide = 0.0, off_half = 0.0;
    const double loss      = accumulate(1, AMP_F32, one);
    const double loss_wide = accumulate(256, AMP_F32, wide);
    accumulate(256, AMP_F16, half);
    for (int j = 0; j < DIM; j++) {
        off_wide += fabs((double)(wide[j] - one[j])) / DIM;
        off_half += fabs((double)(half[j] - one[j])) / DIM;
    }
    printf("a. accumulation: loss %.3g in one batch, %.3g in 256 micro-batches\n", loss, loss_wide);
    printf("   weights are off by %.1e if summed in fp32, by %.1e in fp16:", off_wide, off_half);
    verdict(fabs(loss_wide - loss) < 0.001 * loss && off_wide < 0.5 * off_half);
}

/* b. Several losses, or optimizers, on one loss scale: generator and discriminator, actor and
   critic. Each is skipped on its own overflow only. The scale is shared, so you say when the
   iteration ends: amp_scaler_update, once. */
static void recipe_b(void) {
    amp_scaler         scaler;
    amp_optimizer      opt[2];
    amp_status         status[2];
    float              w[2][DIM]   = {{0.0f}};
    amp_f16            grad[2][DIM];
    amp_optimizer_desc desc        = {.dtype = AMP_F16, .kind = AMP_KIND_SGD};
    double             loss[2];
    must(amp_scaler_init(&scaler, &(amp_scaler_desc){.init_scale = 1024.0f}));
    desc.shared_scaler = &scaler;
    for (int i = 0; i < 2; i++) start(&opt[i], &desc, w[i], grad[i], AMP_F16);
    for (int step = 0; step < 50; step++) {
        for (int i = 0; i < 2; i++) {
            loss[i] = loss_of(amp_optimizer_model(&opt[i], 0), AMP_F16, 128 * i, 128,
                              scaler.scale, grad[i]);
            if (i == 1 && step == 20) overflow(grad[i]);
            must(amp_optimizer_step(&opt[i], 0.25f));
        }
        must(amp_scaler_update(&scaler)); /* both have stepped */
    }
    for (int i = 0; i < 2; i++) must(amp_optimizer_status(&opt[i], &status[i]));
    printf("b. shared scale: first took %d steps, loss %.2g;\n"
           "   second took %d, skipped %d, loss %.2g;\n",
           (int)status[0].steps, loss[0], (int)status[1].steps, (int)status[1].skipped, loss[1]);
    printf("   the scale backed off once, from 1024 to %g:", (double)scaler.scale);
    verdict(status[0].steps == 50 && status[1].steps == 49 && status[1].skipped == 1 &&
          scaler.backoffs == 1 && scaler.scale == 512.0f && loss[0] < 0.01 && loss[1] < 0.01);
    for (int i = 0; i < 2; i++) amp_optimizer_free(&opt[i]);
}

/* c. A gradient penalty (WGAN-GP, R1) depends on a gradient by its true size. Unscale that one into
   another buffer: what backward still needs stays scaled, and fp16 loses nothing. If it holds an
   inf, the scaler remembers, and the step is skipped as for any other. The penalty's own gradient
   is scaled like every loss. Here the gradient of w x with respect to x, which is w, shall have
   norm 1. */
static double with_penalty(float strength, float *w) {
    const amp_optimizer_desc desc = {.dtype = AMP_F16, .kind = AMP_KIND_SGD,
                                     .scaler = {.init_scale = 512.0f}};
    amp_optimizer opt;
    amp_f16       grad[DIM], inner[DIM];
    float         g[DIM];
    double        norm = 0.0;
    start(&opt, &desc, w, grad, AMP_F16);
    for (int step = 0; step < 100; step++) {
        const amp_f16 *model = (const amp_f16 *)amp_optimizer_model(&opt, 0);
        const float    scale = amp_optimizer_loss_scale(&opt);
        loss_of(model, AMP_F16, 0, SAMPLES, scale, grad);
        for (int j = 0; j < DIM; j++) inner[j] = amp_f32_to_f16(scale * amp_f16_to_f32(model[j]));
        must(amp_scaler_unscale(amp_optimizer_scaler(&opt), g, inner, AMP_F16, DIM));
        norm = 0.0;
        for (int j = 0; j < DIM; j++) norm += (double)g[j] * (double)g[j];
        norm = sqrt(norm);
        for (int j = 0; j < DIM && norm > 0.0; j++) { /* of strength * (norm - 1)^2 */
            const float penalty = strength * 2.0f * (float)((norm - 1.0) / norm) * g[j];
            grad[j] = amp_f32_to_f16(amp_f16_to_f32(grad[j]) + scale * penalty);
        }
        must(amp_optimizer_step(&opt, 0.05f));
    }
    amp_optimizer_free(&opt);
    return norm;
}

static void recipe_c(void) {
    float        w[2][DIM] = {{0.0f}};
    const double without = with_penalty(0.0f, w[0]), with = with_penalty(9.0f, w[1]);
    printf("c. gradient penalty: the norm is %.3f without it,\n", without);
    printf("   %.3f with a penalty of 9 (norm - 1)^2:", with);
    verdict(without > 2.0 && fabs(with - 1.0) < 0.1);
}

/* d. A loss scale by hand, when a paper gives it or you want a run without surprises. STATIC never
   moves the scale, yet an overflowing step is still skipped. amp_scaler_set_scale moves it between
   two iterations, in every preset; 0, NaN and what has no normal reciprocal are refused. */
static void recipe_d(void) {
    const amp_optimizer_desc desc = {
        .dtype = AMP_F16, .kind = AMP_KIND_SGD,
        .scaler = {.preset = AMP_PRESET_STATIC, .init_scale = 16777216.0f}};
    amp_optimizer opt;
    amp_status    status[2];
    float         w[DIM] = {0.0f};
    amp_f16       grad[DIM];
    double        loss = 0.0;
    start(&opt, &desc, w, grad, AMP_F16);
    for (int step = 0; step < 100; step++) {
        if (step == 50) { /* by hand */
            must(amp_optimizer_status(&opt, &status[0]));
            must(amp_scaler_set_scale(amp_optimizer_scaler(&opt), 1024.0f));
        }
        loss = loss_of(amp_optimizer_model(&opt, 0), AMP_F16, 0, SAMPLES,
                       amp_optimizer_loss_scale(&opt), grad);
        must(amp_optimizer_step(&opt, 0.25f));
    }
    must(amp_optimizer_status(&opt, &status[1]));
    printf("d. by hand: at a scale of 2^24, %d of 50 steps were skipped,\n",
           (int)status[0].skipped);
    printf("   at 1024 %d; the loss is %.2g:", (int)(status[1].skipped - status[0].skipped), loss);
    verdict(status[0].skipped == 50 && status[0].loss_scale == 16777216.0f &&
          status[1].skipped == 50 && status[1].loss_scale == 1024.0f && loss < 0.01 &&
          amp_scaler_set_scale(amp_optimizer_scaler(&opt), 0.0f) == AMP_ERROR_INVALID_CONFIG);
    amp_optimizer_free(&opt);
}

/* e. A learning-rate schedule and an exponential moving average of the weights. Drive both by the
   steps that were taken, not by iterations: status.steps, status.did_step. Then a run that
   overflows on the way ends where one that does not ends. To evaluate the average as training
   computes, write it over the masters and refresh the copies; to train on, bring the masters back. */
static amp_status averaged_run(int trouble, float *w, float *average, double *loss) {
    const amp_optimizer_desc desc = {.dtype = AMP_F16, .kind = AMP_KIND_ADAMW,
                                     .scaler = {.init_scale = 16384.0f}};
    amp_optimizer opt;
    amp_status    status = {0};
    amp_f16       grad[DIM];
    start(&opt, &desc, w, grad, AMP_F16);
    for (int i = 0; status.steps < 60; i++) {
        const float warm = (float)(status.steps + 1) / 20.0f; /* 20 steps of warm-up */
        loss_of(amp_optimizer_model(&opt, 0), AMP_F16, 0, SAMPLES, amp_optimizer_loss_scale(&opt),
                grad);
        if (trouble && (i == 0 || i == 7 || i == 8 || i == 40)) overflow(grad);
        must(amp_optimizer_step(&opt, 0.05f * (warm < 1.0f ? warm : 1.0f)));
        must(amp_optimizer_status(&opt, &status));
        for (int j = 0; j < DIM && status.did_step; j++) average[j] += (w[j] - average[j]) * 0.05f;
    }
    float kept[DIM], *master = amp_optimizer_master(&opt, 0); /* here w; prepare may have made it */
    memcpy(kept, master, sizeof kept);
    memcpy(master, average, sizeof kept);
    must(amp_optimizer_refresh(&opt));
    *loss = loss_of(amp_optimizer_model(&opt, 0), AMP_F16, 0, SAMPLES, 0.0f, NULL);
    memcpy(master, kept, sizeof kept);
    amp_optimizer_free(&opt);
    return status;
}

static void recipe_e(void) {
    float            w[2][DIM] = {{0.0f}}, average[2][DIM] = {{0.0f}};
    double           loss;
    const amp_status clean = averaged_run(0, w[0], average[0], &loss);
    const amp_status rough = averaged_run(1, w[1], average[1], &loss);
    printf("e. schedule and average: %d steps;\n   again with %d skipped ones, to a scale of %g:\n",
           (int)clean.steps, (int)rough.skipped, (double)rough.loss_scale);
    printf("   the same weights and averages to the last bit, loss %.2g:", loss);
    verdict(clean.skipped == 0 && rough.skipped == 4 && rough.steps == clean.steps && loss < 0.02 &&
          memcmp(w[0], w[1], sizeof w[0]) == 0 &&
          memcmp(average[0], average[1], sizeof average[0]) == 0);
}

/* f. Several runs in one program: a sweep, an ensemble, a service. Whoever starts the program may
   choose the type; a value that cannot be read must not pass unnoticed. */
static amp_optimizer_desc settings(void) {
    amp_optimizer_desc desc = {.dtype = AMP_F16, .kind = AMP_KIND_ADAMW};
    if (amp_optimizer_desc_from_env(&desc) != AMP_OK)
        fail(2, "the environment", amp_problem(), "change it, or unset it");
    return desc;
}

static void iterate(amp_optimizer *opt, amp_dtype type, float rate, amp_f16 *grad) {
    loss_of(amp_optimizer_model(opt, 0), type, 0, SAMPLES, amp_optimizer_loss_scale(opt), grad);
    must(amp_optimizer_step(opt, rate));
}

/* Nothing is shared between optimizers, unless you share it: each run starts with a scaler of its
   own at the first scale, and two that take turns do not disturb each other. */
static void recipe_f(const amp_optimizer_desc *desc) {
    amp_optimizer opt[3];
    amp_status    status;
    float         w[3][DIM] = {{0.0f}};
    amp_f16       grad[DIM];
    for (int i = 0; i < 2; i++) start(&opt[i], desc, w[i], grad, AMP_F16);
    const float first = amp_optimizer_loss_scale(&opt[0]);
    for (int step = 0; step < 300; step++) { /* 0 and 1 take turns */
        iterate(&opt[0], desc->dtype, 0.05f, grad);
        iterate(&opt[1], desc->dtype, 0.01f, grad);
    }
    start(&opt[2], desc, w[2], grad, AMP_F16); /* 0 again, alone, after both have ended */
    const float third = amp_optimizer_loss_scale(&opt[2]);
    for (int step = 0; step < 300; step++) iterate(&opt[2], desc->dtype, 0.05f, grad);
    must(amp_optimizer_status(&opt[0], &status));
    printf("f. several runs: %s, first scale %g, last %g, %d steps skipped,\n",
           desc->dtype == AMP_F16 ? "fp16" : desc->dtype == AMP_BF16 ? "bf16" : "fp32",
           (double)first, (double)status.loss_scale, (int)status.skipped);
    printf("   losses %.2g and %.2g; the first run again has the same bits:",
           loss_of(w[0], AMP_F32, 0, SAMPLES, 0.0f, NULL),
           loss_of(w[1], AMP_F32, 0, SAMPLES, 0.0f, NULL));
    verdict(memcmp(w[0], w[2], sizeof w[0]) == 0 && third == first);
    for (int i = 0; i < 3; i++) amp_optimizer_free(&opt[i]);
}

/* g. Gradients that carry momentum from step to step, as Darknet's do: backward adds to a buffer
   that still holds momentum times the last gradients. With a loss scale that goes wrong twice: an
   overflow stays in the buffer for ever, and what was carried is in the units of the old scale when
   the scale moves. In place of the line that multiplies the buffer by momentum, a loop mends both:
   after each end_step, also of a skipped step, it writes the buffer anew from amp_optimizer_grad,
   which has the last good gradients, and the present scale. On CUDA that is a kernel which reads
   *amp_optimizer_loss_scale_ptr. To resume, save amp_optimizer_grad beside the state, too, write it
   back after the load, and run that loop. With amp_scaler alone, or in a session: check all; if
   found_inf is 0, unscale each gradient to a buffer of its own (zero at first), and step; update;
   then this loop, from that buffer. */
enum { CARRY_FP32, CARRY_BY_HAND, CARRY };

static amp_status carrying_run(int how, float *w) {
    const float momentum = 0.8f, lr = 0.02f;
    const amp_optimizer_desc desc = {.dtype = how == CARRY_FP32 ? AMP_F32 : AMP_F16,
                                     .scaler = {.growth_interval = 12, .init_scale = 256.0f,
                                                .disabled = how == CARRY_FP32}};
    amp_optimizer opt;
    amp_status    status;
    amp_f16       fresh[DIM];
    float         grad[DIM] = {0.0f}, part[DIM];
    start(&opt, &desc, w, grad, AMP_F32);
    for (int step = 0; step < 120; step++) {
        loss_of(amp_optimizer_model(&opt, 0), desc.dtype, 0, SAMPLES,
                amp_optimizer_loss_scale(&opt), fresh);
        if (step % 30 == 7 && how != CARRY_FP32) overflow(fresh);
        must(amp_cast(part, AMP_F32, fresh, AMP_F16, DIM));
        for (int j = 0; j < DIM; j++) grad[j] += part[j]; /* backward adds */
        if (amp_optimizer_begin_step(&opt))
            for (int j = 0; j < DIM; j++) w[j] -= lr * amp_optimizer_grad(&opt, 0)[j];
        must(amp_optimizer_end_step(&opt));
        const float *last = amp_optimizer_grad(&opt, 0), scale = amp_optimizer_loss_scale(&opt);
        for (int j = 0; j < DIM; j++)
            grad[j] = momentum * (how == CARRY ? scale * last[j] : grad[j]);
    }
    must(amp_optimizer_status(&opt, &status));
    amp_optimizer_free(&opt);
    return status;
}

static void recipe_g(void) {
    float            w[3][DIM] = {{0.0f}};
    const amp_status fp32 = carrying_run(CARRY_FP32, w[CARRY_FP32]);
    const amp_status hand = carrying_run(CARRY_BY_HAND, w[CARRY_BY_HAND]);
    const amp_status good = carrying_run(CARRY, w[CARRY]);
    const double     want = loss_of(w[CARRY_FP32], AMP_F32, 0, SAMPLES, 0.0f, NULL);
    const double     loss = loss_of(w[CARRY], AMP_F32, 0, SAMPLES, 0.0f, NULL);
    printf("g. gradients that carry momentum: in fp32 loss %.2g after %d steps;\n"
           "   with an overflow every 30 steps ", want, (int)fp32.steps);
    printf("%d of 120 are taken;\n   with this loop %d, loss %.2g:",
           (int)hand.steps, (int)good.steps, loss);
    verdict(hand.steps == 7 && good.steps == 116 && good.skipped == 4 && good.loss_scale > 256.0f &&
          want < 1e-6 && loss < 1e-6);
}

/* h. Clipping. max_norm is about true gradients: unscale, clip, step. desc.max_norm does it in that
   order; for a clipping of your own (by value, by layer) write to amp_optimizer_grad between
   begin_step and end_step. Clip what backward wrote, and every step is max_norm / scale long. */
enum { CLIP_FP32, CLIP_DESC, CLIP_BY_HAND, CLIP_SCALED, NUM_CLIPS };

static double norm_of(const float *x) {
    double square = 0.0;
    for (int j = 0; j < DIM; j++) square += (double)x[j] * (double)x[j];
    return sqrt(square);
}

static void clip(float *grad, double max_norm) {
    const float factor = (float)(max_norm / (norm_of(grad) + 1e-6));
    for (int j = 0; j < DIM && factor < 1.0f; j++) grad[j] *= factor;
}

static double clipped_run(int how, float *w) {
    const float max_norm = 0.5f, lr = 0.25f;
    const amp_optimizer_desc desc = {.dtype = how == CLIP_FP32 ? AMP_F32 : AMP_F16,
                                     .max_norm = how <= CLIP_DESC ? max_norm : 0.0f,
                                     .unscale_in_place = 1, /* grad is written anew each time */
                                     .scaler = {.init_scale = 1024.0f,
                                                .disabled = how == CLIP_FP32}};
    amp_optimizer opt;
    amp_f16       half[DIM];
    float         grad[DIM];
    start(&opt, &desc, w, grad, AMP_F32);
    for (int step = 0; step < 100; step++) {
        loss_of(amp_optimizer_model(&opt, 0), desc.dtype, 0, SAMPLES,
                amp_optimizer_loss_scale(&opt), half);
        must(amp_cast(grad, AMP_F32, half, AMP_F16, DIM));
        if (how == CLIP_SCALED) clip(grad, (double)max_norm); /* too early */
        if (amp_optimizer_begin_step(&opt)) {
            float *g = amp_optimizer_grad(&opt, 0);
            if (how == CLIP_BY_HAND) clip(g, (double)max_norm);
            for (int j = 0; j < DIM; j++) w[j] -= lr * g[j];
        }
        must(amp_optimizer_end_step(&opt));
    }
    amp_optimizer_free(&opt);
    return loss_of(w, AMP_F32, 0, SAMPLES, 0.0f, NULL);
}

static void recipe_h(void) {
    float  w[NUM_CLIPS][DIM] = {{0.0f}};
    double loss[NUM_CLIPS];
    for (int how = 0; how < NUM_CLIPS; how++) loss[how] = clipped_run(how, w[how]);
    printf("h. clipping: loss %.2g in fp32, %.2g by max_norm,\n   %.2g by hand behind begin_step;\n",
           loss[CLIP_FP32], loss[CLIP_DESC], loss[CLIP_BY_HAND]);
    printf("   in the wrong order, of scaled gradients,\n   weights came to %.4f instead of %.4f:",
           norm_of(w[CLIP_SCALED]), norm_of(w[CLIP_FP32]));
    /* 100 steps of at most 0.25 * 0.5 / 1024 */
    verdict(loss[CLIP_DESC] < 1e-4 && loss[CLIP_BY_HAND] < 1e-4 && loss[CLIP_FP32] < 1e-4 &&
          norm_of(w[CLIP_SCALED]) < 100.0 * 0.25 * 0.5 / 1024.0 * 1.001);
}

/* i. The batch of a skipped step again, with the smaller scale, until the step is taken: no sample
   is lost, and the order of batches is that of a run without overflows. Take the batch from the
   steps taken, not from the loop's iterations. A gradient that is NaN at any scale must end it.

   A finite one that is far too large is skipped, too, if you ask for it: reduce_fn sees the norm
   before the decision. Here a limit, and standard deviations above the mean of the last norms. It
   lowers the scale as an overflow does (AMP_PRESET_NONE has none). On CUDA sums and maxima are
   device memory: do this in a kernel of one thread. Save the struct beside the state. */
enum { CALM, OVERFLOWS, SPIKES };

typedef struct norms { const amp_optimizer *opt; double mean, variance; int n; } norms;

static amp_result skip_spikes(void *user, double *sums, size_t num_sums, uint32_t *maxima,
                              size_t num_maxima) {
    norms       *x    = (norms *)user;
    const double norm = sqrt(sums[0]) / (double)amp_optimizer_scaler(x->opt)->scale;
    const double over = norm - x->mean;
    (void)num_sums, (void)num_maxima;
    if (maxima[0]) return AMP_OK; /* an overflow, which is skipped anyway */
    if (norm > 8.0 || (x->n == 128 && over > 6.0 * sqrt(x->variance))) {
        maxima[0] |= AMP_ASK_SKIP;
        return AMP_OK;
    }
    x->n += x->n < 128;
    x->mean += over / x->n;
    x->variance += (over * (norm - x->mean) - x->variance) / x->n;
    return AMP_OK;
}

/* What desc.report remembers: the last iterations, and why steps were skipped. */
static double largest_spike(const amp_optimizer *opt) {
    amp_report    report;
    amp_iteration last[AMP_HISTORY];
    size_t        count = AMP_HISTORY;
    double        norm  = 0.0;
    must(amp_optimizer_report(opt, &report));
    must(amp_optimizer_history(opt, last, &count));
    for (size_t i = 0; i < count; i++)
        if (last[i].skip == AMP_SKIP_ASKED) norm = fmax(norm, last[i].norm);
    return norm;
}

static amp_status replayed_run(int trouble, int replay, float *w, double *spike) {
    amp_optimizer opt;
    norms         usual = {.opt = &opt};
    const amp_report_desc    report = {0};
    const amp_optimizer_desc desc   = {.dtype = AMP_F16, .kind = AMP_KIND_ADAMW,
                                       .report = &report,
                                       .reduce_fn = skip_spikes, .reduce_user = &usual,
                                       .scaler = {.init_scale = trouble == OVERFLOWS ? 65536.0f
                                                                                     : 1024.0f}};
    amp_status    status = {0};
    amp_f16       grad[DIM];
    int           tries = 0;
    start(&opt, &desc, w, grad, AMP_F16);
    for (int iteration = 0; replay ? status.steps < 48 : iteration < 48; iteration++) {
        const int batch = replay ? (int)status.steps : iteration;
        loss_of(amp_optimizer_model(&opt, 0), AMP_F16, batch % 16 * 16, 16,
                amp_optimizer_loss_scale(&opt), grad);
        if (trouble == OVERFLOWS && iteration % 20 == 9) overflow(grad);
        if (trouble == SPIKES && iteration % 20 == 9) grad[3] = amp_f32_to_f16(16.0f * 1024.0f);
        must(amp_optimizer_step(&opt, 0.02f));
        must(amp_optimizer_status(&opt, &status));
        tries = status.did_step ? 0 : tries + 1;
        if (tries > 40) verdict(0); /* 38 halvings go from the largest scale to the least */
    }
    *spike = largest_spike(&opt);
    amp_optimizer_free(&opt);
    return status;
}

static void recipe_i(void) {
    float            w[4][DIM] = {{0.0f}};
    double           none, spike;
    const amp_status clean = replayed_run(CALM, 1, w[0], &none);
    const amp_status rough = replayed_run(OVERFLOWS, 1, w[1], &none);
    const amp_status lossy = replayed_run(OVERFLOWS, 0, w[2], &none);
    const amp_status spiky = replayed_run(SPIKES, 1, w[3], &spike);
    printf("i. batch replay:\n   %d batches, %d skipped steps done again: all bits as without "
           "overflows,\n", (int)rough.steps, (int)rough.skipped);
    printf("   and with %d spikes, of norms up to %.0f;\n", (int)spiky.skipped, spike);
    printf("   a loop that goes on to the next batch loses %d of %d:", (int)lossy.skipped,
           (int)(lossy.steps + lossy.skipped));
    verdict(clean.skipped == 0 && rough.steps == 48 && rough.skipped > 2 && spiky.skipped == 3 &&
          none <= 0.0 && spike > 8.0 &&
          lossy.skipped > 2 && memcmp(w[0], w[1], sizeof w[0]) == 0 &&
          memcmp(w[0], w[3], sizeof w[0]) == 0 && memcmp(w[0], w[2], sizeof w[0]) != 0);
}

/* j. The run of another program goes on here, from its moments (amp_optimizer_set_moments) and steps
   (amp_optimizer_set_steps); and there again, with what amp_optimizer_moments writes. It has all weights in one array, as many
   programs do, and here the two tensors that lie in it are added at once. Without moments and steps
   the optimizer would begin anew. */
typedef struct flat { float w[DIM], m[DIM], v[DIM], grad[DIM]; } flat;

static void flat_gradients(flat *f) {
    amp_f16 grad[DIM];
    loss_of(f->w, AMP_F32, 0, SAMPLES, 1.0f, grad);
    must(amp_cast(f->grad, AMP_F32, grad, AMP_F16, DIM));
}

static void their_adam(flat *f, int first, int last) {
    for (int t = first; t <= last; t++) {
        flat_gradients(f);
        for (int j = 0; j < DIM; j++) {
            f->m[j] = 0.9f * f->m[j] + 0.1f * f->grad[j];
            f->v[j] = 0.999f * f->v[j] + 0.001f * f->grad[j] * f->grad[j];
            const double m = (double)f->m[j] / (1.0 - pow(0.9, t));
            const double v = (double)f->v[j] / (1.0 - pow(0.999, t));
            f->w[j] -= (float)(0.05 * m / (sqrt(v) + 1e-8));
        }
    }
}

static void goes_on(flat *f, int moments, int steps) {
    const amp_optimizer_desc desc = {.kind = AMP_KIND_ADAMW, .scaler = {.disabled = 1}};
    const amp_tensor whole = {.n = DIM, .weight = f->w, .grad = f->grad};
    const amp_tensor parts[2] = {{.name = "lower", .n = 4}, {.name = "upper", .n = DIM - 4}};
    amp_optimizer opt;
    must(amp_optimizer_init(&opt, &desc));
    must(amp_optimizer_add_flat(&opt, &whole, parts, 2));
    must(amp_optimizer_prepare(&opt));
    if (moments) {
        must(amp_optimizer_set_steps(&opt, 20, 0));
        must(amp_optimizer_set_moments(&opt, 0, f->m, f->v));
        must(amp_optimizer_set_moments(&opt, 1, f->m + parts[0].n, f->v + parts[0].n));
    }
    while (steps-- > 0) {
        flat_gradients(f);
        must(amp_optimizer_step(&opt, 0.05f));
    }
    must(amp_optimizer_moments(&opt, 0, f->m, f->v));
    must(amp_optimizer_moments(&opt, 1, f->m + parts[0].n, f->v + parts[0].n));
    amp_optimizer_free(&opt);
}

static void recipe_j(void) {
    static flat f[3];
    double      off[3] = {0.0};
    their_adam(&f[0], 1, 20);
    f[1] = f[2] = f[0];
    their_adam(&f[0], 21, 60);
    for (int k = 1; k < 3; k++) {
        goes_on(&f[k], k == 1, 20);
        their_adam(&f[k], 41, 60);
        for (int j = 0; j < DIM; j++) off[k] = fmax(off[k], fabs((double)(f[k].w[j] - f[0].w[j])));
    }
    printf("j. another program's Adam: after 20 steps there, 20 here, 20 there\n"
           "   weights are off by %.1e,", off[1]);
    printf(" without its moments and steps by %.1e:", off[2]);
    verdict(off[1] < 1e-5 && off[2] > 1e-3);
}

/* k. A scaler alone, around an optimizer that reads scaled gradients and divides by the scale on the
   way, as fused kernels do. amp_scaler_unscale to NULL looks for overflows and writes nothing; the
   optimizer runs only if there was none (found_inf is 0); _update moves the scale, once an
   iteration. */
typedef struct fused { float w[DIM]; amp_f16 grad[DIM]; float scale; int steps; } fused;

static void fused_sgd(fused *f) {
    for (int j = 0; j < DIM; j++) f->w[j] -= 0.25f * (amp_f16_to_f32(f->grad[j]) / f->scale);
    f->steps++;
}

static void recipe_k(void) {
    fused      f = {.steps = 0};
    amp_scaler scaler;
    double     loss = 0.0;
    must(amp_scaler_init(&scaler, &(amp_scaler_desc){.init_scale = 1048576.0f}));
    for (int step = 0; step < 60; step++) {
        f.scale = scaler.scale;
        loss = loss_of(f.w, AMP_F32, 0, SAMPLES, f.scale, f.grad);
        must(amp_scaler_unscale(&scaler, NULL, f.grad, AMP_F16, DIM)); /* of each gradient */
        if (!scaler.found_inf) fused_sgd(&f);
        must(amp_scaler_update(&scaler));
    }
    printf("k. a scaler alone: %d steps taken, %d skipped, to a scale of %g;\n", f.steps,
           (int)scaler.skipped, (double)scaler.scale);
    printf("   the loss is %.2g:", loss);
    verdict(scaler.skipped > 0 && f.steps + (int)scaler.skipped == 60 && loss < 0.01);
}

int main(int argc, char **argv) {
    no_options(argc, argv, "Run eleven recipes, a to k. Recipe f reads AMP_ENABLE and AMP_DTYPE.\n");
    const amp_optimizer_desc desc = settings();
    make_data();
    recipe_a();
    recipe_b();
    recipe_c();
    recipe_d();
    recipe_e();
    recipe_f(&desc);
    recipe_g();
    recipe_h();
    recipe_i();
    recipe_j();
    recipe_k();
    return finish(0);
}
