/* which_tensor.c - which tensor overflowed, at which index, and was it inf or NaN?

   A small network learns sin(3x) in mixed precision. In step 100 a gradient of hidden.weight is
   too large for fp16, in step 200 one of output.weight is NaN. Both steps are skipped, and
   print_table shows what amp_optimizer_stats found. It shows gradients as stored, scaled; the
   zeros are those of three hidden units that never fire. The report of the whole run comes last.

   Build and run:  cc -O2 -I. examples/which_tensor.c -o which_tensor -lm && ./which_tensor
   Exits with 1 unless the tables name what was planted and the loss falls below 0.01. */

#define AMP_IMPLEMENTATION
#include "amp.h"
#include "amp_report.h" /* amp_report_table */
#define PROGRAM "which_tensor"
#include "support/train_cli.h" /* no_options, finish */
#include <math.h>   /* sinf */
#include <stdio.h>
#include <string.h> /* strcmp, strstr */

enum { HIDDEN = 32, POINTS = 64, STEPS = 1500 };
static const char *const names[3] = {"hidden.weight", "hidden.bias", "output.weight"};
static float             master[3][HIDDEN];
static amp_f16           grad[3][HIDDEN];

/* The mean squared error of the half weights; its gradients, times the loss scale, go to grad. */
static float forward_backward(const amp_optimizer *opt, int step) {
    float w[3][HIDDEN], g[3][HIDDEN] = {{0}}, h[HIDDEN], loss = 0.0f;
    for (int t = 0; t < 3; t++)
        amp_cast(w[t], AMP_F32, amp_optimizer_model(opt, t), AMP_F16, HIDDEN);
    for (int i = 0; i < POINTS; i++) {
        const float x = (float)i / 32.0f - 1.0f;
        float       error = -sinf(3.0f * x);
        for (int j = 0; j < HIDDEN; j++) {
            h[j] = w[0][j] * x + w[1][j] > 0.0f ? w[0][j] * x + w[1][j] : 0.0f;
            error += w[2][j] * h[j];
        }
        for (int j = 0; j < HIDDEN; j++) {
            const float dloss = 2.0f / POINTS * error * amp_optimizer_loss_scale(opt);
            g[0][j] += h[j] > 0.0f ? dloss * w[2][j] * x : 0.0f;
            g[1][j] += h[j] > 0.0f ? dloss * w[2][j] : 0.0f;
            g[2][j] += dloss * h[j];
        }
        loss += error * error / POINTS;
    }
    if (step == 100) g[0][17] = 1e6f; /* fp16 ends at 65504 */
    for (int t = 0; t < 3; t++) amp_cast(grad[t], AMP_F16, g[t], AMP_F32, HIDDEN);
    if (step == 200) grad[2][5].bits = 0x7e00; /* a NaN */
    return loss;
}

/* What the last check saw, tensor by tensor; the one that was not finite goes to *found. */
static void print_table(const amp_optimizer *opt, char *found) {
    puts("  tensor          first   is   largest finite   zeros");
    for (int t = 0; t < 3; t++) {
        amp_grad_stats s;
        char      at[24] = "-     -";
        amp_optimizer_stats(opt, t, &s);
        if (s.nonfinite) sprintf(at, "%u   %s", (unsigned)s.first_nonfinite, s.nan ? "NaN" : "inf");
        if (s.nonfinite) sprintf(found, "%s %s", names[t], at);
        printf("  %-13s %12s %16g %4u/%d\n", names[t], at, (double)s.max_finite, (unsigned)s.zeros,
               HIDDEN);
    }
}

int main(int argc, char **argv) {
    char               found[2][64] = {"", ""};
    float              loss = 0.0f;
    amp_optimizer      opt;
    amp_status         status = {0};
    amp_tensor_report  output;
    amp_report_desc    watch  = {.every = 100}; /* count magnitudes in one step of 100 */
    amp_optimizer_desc desc = {.dtype = AMP_F16, .kind = AMP_KIND_ADAMW, .report = &watch};
    no_options(argc, argv, "Find two planted overflows.\n");
    desc.beta1 = 2.0; /* for once, to see what is said */
    int ok = amp_optimizer_init(&opt, &desc) != AMP_OK && strstr(amp_problem(), "beta1 is 2,") != NULL;
    printf("A setting that cannot be meant is refused, with its name, value and bounds:\n  %s\n\n"
           "Now training; an infinity and a NaN are planted in two gradients.\n", amp_problem());
    desc.beta1 = 0.0; /* the default */
    ok &= amp_optimizer_init(&opt, &desc) == AMP_OK;
    for (int t = 0; t < 3; t++) {
        for (int j = 0; j < HIDDEN; j++)
            master[t][j] = t != 1 ? 0.5f * sinf((float)(50 * t + 2 * j)) : j < 3 ? -9.0f : 0.25f;
        ok &= amp_optimizer_add(&opt, &(amp_tensor){.name = names[t], .n = HIDDEN, .grad = grad[t],
                                    .grad_type = AMP_F16, .weight = master[t]}) == AMP_OK;
    }
    ok &= amp_optimizer_prepare(&opt) == AMP_OK;
    for (int step = 0; step < STEPS && ok; step++) {
        loss = forward_backward(&opt, step);
        ok   = amp_optimizer_step(&opt, 0.01f) == AMP_OK;
        amp_optimizer_status(&opt, &status);
        if (!ok || status.did_step) continue;
        printf("\niteration %d is skipped; the loss scale is %g now\n", step + 1,
               (double)status.loss_scale);
        print_table(&opt, found[status.skipped > 1]);
    }
    puts("");
    ok &= amp_report_table(&opt, stdout) == AMP_OK;
    puts("  room: factors of two before overflow; subnormal: rounded coarsely in fp16;\n"
         "  lost: updates too small for the fp16 copy alone, which the fp32 master keeps");
    ok &= amp_optimizer_report_tensor(&opt, 2, &output) == AMP_OK && output.nans == 1 &&
          output.first_iteration == 201; /* what the table says, for a program */
    amp_optimizer_free(&opt);
    ok = ok && strcmp(found[0], "hidden.weight 17   inf") == 0 && status.skipped == 2 &&
         strcmp(found[1], "output.weight 5   NaN") == 0 && loss < 0.01f;
    printf("\n%s: the loss ends at %.4f\n", ok ? "ok" : "FAILED", (double)loss);
    return finish(!ok);
}
