/* recipes_net.c - four situations of a network whose layers are products, each in one function

     a  layers that stay in fp32 in a half network
     b  inference in half from the state of a training run
     c  a weight cache, and a write to a weight that was not announced
     d  attention, forward and backward, with q, k and v side by side (support/attention.h)

   Build and run:
       cc -O2 -I. examples/recipes_net.c -o recipes_net -lm && ./recipes_net

   Each prints a few lines that end with "ok": the program checks what it says and exits with 1 if
   it does not hold. The network, z = relu(x W1) W2, learns the output of another one of its
   shape. recipes.c is about the loop, the scale and gradients. */

#define AMP_IMPLEMENTATION
#include "amp.h"
#define PROGRAM "recipes_net"
#include "support/attention.h"
#include "support/train_cli.h" /* must, no_options, finish */

#include <math.h>   /* fabs, sqrt */
#include <stdio.h>
#include <stdlib.h> /* exit, malloc */
#include <string.h> /* memcmp, memcpy, strcmp */

enum { ROWS = 64, IN = 32, HIDDEN = 64, OUT = 16, N1 = IN * HIDDEN, N2 = HIDDEN * OUT };

/* c = op(a) op(b) of packed matrices, each of its type. */
static void multiply(int trans_a, int trans_b, size_t m, size_t n, size_t k, const void *a,
                     amp_dtype a_type, const void *b, amp_dtype b_type, void *c, amp_dtype c_type) {
    const amp_gemm_args g = {.trans_a = trans_a, .trans_b = trans_b, .m = m, .n = n, .k = k, .a = a,
                             .a_type = a_type, .b = b, .b_type = b_type, .c = c, .c_type = c_type};
    must(amp_gemm(NULL, &g));
}

static void at_random(float *x, size_t n, float size, uint32_t *state) {
    for (size_t i = 0; i < n; i++) {
        *state = *state * 1664525u + 1013904223u;
        x[i]   = ((float)(*state >> 8) / 8388608.0f - 1.0f) * size;
    }
}

/* ------------------------------------------------------------------------------------- network */

typedef struct net {
    amp_dtype     head;              /* of the second layer; the first is in fp16               */
    float         unit;              /* in which its outputs and targets are counted            */
    float         x[ROWS * IN], y[ROWS * OUT];
    float         w1[N1], w2[N2];    /* masters                                                 */
    amp_f16       x16[ROWS * IN], hidden[ROWS * HIDDEN], hidden_grad[ROWS * HIDDEN], grad1[N1];
    float         z[ROWS * OUT], grad2[N2], room[ROWS * OUT], wide[ROWS * HIDDEN];
    amp_optimizer opt;
} net;

/* Outputs, in fp32, through what the layers store: in fp16 more than 65504 is inf. */
static void forward(net *n, const void *w1, const void *w2) {
    multiply(0, 0, ROWS, HIDDEN, IN, n->x16, AMP_F16, w1, AMP_F16, n->hidden, AMP_F16);
    for (int i = 0; i < ROWS * HIDDEN; i++)
        if (n->hidden[i].bits >> 15) n->hidden[i].bits = 0;
    multiply(0, 0, ROWS, OUT, HIDDEN, n->hidden, AMP_F16, w2, n->head, n->room, n->head);
    must(amp_cast(n->z, AMP_F32, n->room, n->head, ROWS * OUT));
}

/* The mean squared error in units, and scaled gradients: of the head in its own type. */
static double backward(net *n, const void *w2, float scale) {
    double loss = 0.0;
    for (int i = 0; i < ROWS * OUT; i++) {
        const float error = (n->z[i] - n->y[i]) / n->unit;
        loss += (double)error * (double)error / (ROWS * OUT);
        n->z[i] = 2.0f * error / n->unit / (ROWS * OUT) * scale;
    }
    must(amp_cast(n->room, n->head, n->z, AMP_F32, ROWS * OUT));
    multiply(1, 0, HIDDEN, OUT, ROWS, n->hidden, AMP_F16, n->room, n->head, n->grad2, n->head);
    multiply(0, 1, ROWS, HIDDEN, OUT, n->room, n->head, w2, n->head, n->hidden_grad, AMP_F16);
    for (int i = 0; i < ROWS * HIDDEN; i++)
        if (!n->hidden[i].bits) n->hidden_grad[i].bits = 0;
    multiply(1, 0, IN, HIDDEN, ROWS, n->x16, AMP_F16, n->hidden_grad, AMP_F16, n->grad1, AMP_F16);
    return loss;
}

static void start(net *n, amp_dtype head, float unit) {
    const amp_optimizer_desc desc = {.dtype = AMP_F16, .kind = AMP_KIND_ADAMW,
                                     .scaler = {.init_scale = 1048576.0f}};
    uint32_t                 state = 1;
    memset(n, 0, sizeof *n);
    n->head = head;
    n->unit = unit;
    at_random(n->x, ROWS * IN, 1.0f, &state);
    must(amp_cast(n->x16, AMP_F16, n->x, AMP_F32, ROWS * IN));
    for (int teacher = 1; teacher >= 0; teacher--) { /* then weights to start with */
        at_random(n->w1, N1, 0.3f, &state);
        at_random(n->w2, N2, 0.2f * unit, &state);
        must(amp_matmul(n->wide, n->x, n->w1, ROWS, HIDDEN, IN, AMP_F32));
        for (int i = 0; i < ROWS * HIDDEN; i++) n->wide[i] = n->wide[i] > 0.0f ? n->wide[i] : 0.0f;
        if (teacher)
            must(amp_matmul(n->y, n->wide, n->w2, ROWS, OUT, HIDDEN, AMP_F32));
    }
    const amp_tensor layer[2] = {
        {.name = "w1", .n = N1, .weight = n->w1, .grad = n->grad1, .grad_type = AMP_F16},
        {.name = "w2", .n = N2, .weight = n->w2, .grad = n->grad2, .grad_type = head,
         .keep_fp32 = head == AMP_F32, .lr_scale = unit}};
    must(amp_optimizer_init(&n->opt, &desc));
    for (int i = 0; i < 2; i++) must(amp_optimizer_add(&n->opt, &layer[i]));
    must(amp_optimizer_prepare(&n->opt));
}

/* Forward and backward of the whole batch, with what products read: copies, or masters where a
   layer keeps fp32. */
static double gradients(net *n) {
    const void *w1 = amp_optimizer_model(&n->opt, 0), *w2 = amp_optimizer_model(&n->opt, 1);
    forward(n, w1, w2);
    return backward(n, w2, amp_optimizer_loss_scale(&n->opt));
}

static amp_status status_of(const net *n) {
    amp_status status;
    must(amp_optimizer_status(&n->opt, &status));
    return status;
}

/* ------------------------------------------------------------------------------------- recipes */

/* a. A layer that stays in fp32: norms, biases, or as here a head whose outputs are in the hundred
   thousands. keep_fp32 in its tensor: no copy is made, amp_optimizer_model is the master. Its
   gradients are fp32, and so are its products, which may mix: here fp16 times fp32. Loss scale,
   clipping and step are shared with the layers in half. (With autocast, say "head=fp32".) */
static amp_status with_head(amp_dtype head, double *loss) {
    static net n;
    start(&n, head, 100000.0f);
    for (int step = 0; step < 200; step++) {
        *loss = gradients(&n);
        must(amp_optimizer_step(&n.opt, 0.005f));
    }
    const amp_status status = status_of(&n);
    amp_optimizer_free(&n.opt);
    return status;
}

static void recipe_a(void) {
    double           loss[2];
    const amp_status half = with_head(AMP_F16, &loss[0]), fp32 = with_head(AMP_F32, &loss[1]);
    printf("a. a layer in fp32: with outputs above 65504\n   a head in fp16 skipped %d of 200 steps;\n",
           (int)half.skipped);
    printf("   in fp32, below a layer in fp16, it skipped %d,\n   and the error is %.2g of a unit:",
           (int)fp32.skipped, sqrt(loss[1]));
    verdict(half.steps == 0 && half.skipped == 200 && fp32.skipped < 5 && sqrt(loss[1]) < 0.05);
}

/* b. Inference in half from a saved state. Hand prepare your own half memory as model and nothing
   else: it makes masters, load fills both, and amp_optimizer_free takes back all but what is yours,
   2 bytes per weight. (A state that lies in a file: amp_optimizer_load_file.) */
static size_t blocks, bytes; /* of memory that amp.h holds; that it has asked for */

static void *counted_malloc(void *user, size_t num_bytes) {
    (void)user;
    blocks++;
    bytes += num_bytes;
    return malloc(num_bytes);
}

static void counted_free(void *user, void *memory) {
    (void)user;
    blocks -= memory != NULL;
    free(memory);
}

static bool put(void *f, const void *data, size_t n) { return fwrite(data, 1, n, (FILE *)f) == n; }
static bool get(void *f, void *data, size_t n) { return fread(data, 1, n, (FILE *)f) == n; }

static void load_weights(FILE *state, amp_f16 *w1, amp_f16 *w2) {
    const amp_optimizer_desc desc = {.dtype = AMP_F16, .kind = AMP_KIND_ADAMW,
                                     .allocator = {counted_malloc, counted_free, NULL}};
    const amp_tensor layer[2] = { /* named as they were saved; no step is taken, so no gradient */
        {.name = "w1", .n = N1, .model = w1, .model_type = AMP_F16},
        {.name = "w2", .n = N2, .model = w2, .model_type = AMP_F16}};
    amp_optimizer opt;
    must(amp_optimizer_init(&opt, &desc));
    for (int i = 0; i < 2; i++) must(amp_optimizer_add(&opt, &layer[i]));
    must(amp_optimizer_prepare(&opt));
    must(amp_optimizer_load(&opt, get, state));
    amp_optimizer_free(&opt);
}

static void recipe_b(void) {
    static net     n;
    static amp_f16 w1[N1], w2[N2];
    static float   before[ROWS * OUT];
    FILE          *state = tmpfile();
    if (!state) must(AMP_ERROR_WRITE);
    start(&n, AMP_F16, 1.0f);
    for (int step = 0; step < 50; step++) {
        gradients(&n);
        must(amp_optimizer_step(&n.opt, 0.005f));
    }
    forward(&n, amp_optimizer_model(&n.opt, 0), amp_optimizer_model(&n.opt, 1));
    memcpy(before, n.z, sizeof before);
    must(amp_optimizer_save(&n.opt, put, state));
    amp_optimizer_free(&n.opt); /* the end of training */

    rewind(state);
    load_weights(state, w1, w2);
    fclose(state);
    forward(&n, w1, w2);
    printf("b. inference: %d bytes of half weights are left\n   of the %d that loading took,\n",
           (int)(sizeof w1 + sizeof w2), (int)(sizeof w1 + sizeof w2 + bytes));
    printf("   and all outputs have the bits they had in training:");
    verdict(blocks == 0 && bytes >= 12 * (N1 + N2) && memcmp(before, n.z, sizeof before) == 0);
}

/* c. A weight cache: products of fp32 arrays in a session cast a weight that was added once, until
   amp_session_changed says that it has changed. Where that call is missing, a copy is of the weight
   as it was, and the loss still looks right: while you debug, let amp_session_check look. Beside
   an optimizer of amp.h the cache has the copies: set dtype to AMP_F32, share the session's scaler,
   add the masters, and say behind each step that all have changed. */
static void recipe_c(void) {
    static float       x[4 * 256], w[256 * 64], grad[256 * 64], y[4 * 64];
    static amp_session session;
    amp_optimizer      opt;
    uint32_t           state = 1;
    if (amp_session_start(&session, &(amp_session_desc){.num_bytes = 1 << 20}) != AMP_OK)
        fail(2, "the environment", amp_problem(), "change it, or unset it");
    if (getenv("AMP_DTYPE") || getenv("AMP_ENABLE")) {
        puts("c. a weight cache: left out, for AMP_DTYPE and AMP_ENABLE change a session's type\n");
        amp_session_end(&session);
        return;
    }
    at_random(x, 4 * 256, 1.0f, &state);
    at_random(w, 256 * 64, 1.0f, &state);
    at_random(grad, 256 * 64, 1.0f, &state);
    must(amp_optimizer_init(&opt, &(amp_optimizer_desc){.kind = AMP_KIND_SGD,
                                                        .shared_scaler = session.scaler}));
    must(amp_optimizer_add(&opt, &(amp_tensor){.n = 256 * 64, .weight = w, .grad = grad}));
    must(amp_optimizer_prepare(&opt));
    must(amp_session_add(&session, amp_optimizer_master(&opt, 0), 256 * 64));
    for (int i = 0; i < 8; i++)
        multiply(0, 0, 4, 64, 256, x, AMP_F32, w, AMP_F32, y, AMP_F32);
    w[7] += 1.0f;
    const amp_result found = amp_session_check(&session);
    amp_session_changed(&session, w);
    const int casts = (int)session.misses, kept = (int)session.hits;
    for (int i = 0; i < 8; i++) {
        for (int again = 0; again < 2; again++) /* as forward and backward read it */
            multiply(0, 0, 4, 64, 256, x, AMP_F32, w, AMP_F32, y, AMP_F32);
        must(amp_optimizer_step(&opt, 0.005f));
        must(amp_scaler_update(session.scaler));
        amp_session_changed(&session, NULL);
    }
    printf("c. a weight cache: 8 products cast the weight %d time,\n"
           "   16 in 8 steps of an optimizer %d times;\n", casts, (int)session.misses - casts);
    printf("   a write that was not announced is found%s:",
           found == AMP_ERROR_STALE ? ", AMP_ERROR_STALE" : amp_result_string(found));
    verdict(casts == 1 && found == AMP_ERROR_STALE &&
          (int)session.misses == casts + 8 && (int)session.hits == kept + 8 &&
          amp_session_check(&session) == AMP_OK);
    amp_session_end(&session);
    amp_optimizer_free(&opt);
}

/* d. Attention on the layout that you have, as GPT-2's trainers store it: attend and attend_back stand
   in the place of their loops, with the scratch that these had. The check is one for any backward:
   along a direction the loss changes as the gradient says. Here it is a sum of out times factors. */
enum { TOKENS = 48, WIDTH = 32, SEQUENCES = 3, HEADS = 4, QKV = SEQUENCES * TOKENS * 3 * WIDTH,
       SQUARES = SEQUENCES * HEADS * TOKENS * TOKENS };

static double attention_loss(amp_dtype compute, float *qkv, float *dqkv) {
    static float    out[QKV / 3], factor[QKV / 3], prob[SQUARES], scratch[SQUARES / SEQUENCES];
    const attention t     = {SEQUENCES, TOKENS, WIDTH, HEADS, compute};
    uint32_t        state = 2;
    double          loss  = 0.0;
    at_random(factor, QKV / 3, 1.0f, &state);
    must(attend(&t, out, prob, qkv));
    for (int i = 0; i < QKV / 3; i++) loss += (double)out[i] * (double)factor[i];
    if (dqkv) must(attend_back(&t, dqkv, scratch, factor, prob, qkv));
    return loss;
}

static void recipe_d(void) {
    static float qkv[QKV], moved[QKV], direction[QKV], grad[QKV], rounded[QKV];
    const float  step  = 1.0f / 64.0f;
    uint32_t     state = 1;
    double       slope = 0.0, change = 0.0, error = 0.0, square = 0.0;
    at_random(qkv, QKV, 2.0f, &state);
    at_random(direction, QKV, 1.0f, &state);
    attention_loss(AMP_F32, qkv, grad);
    attention_loss(AMP_BF16, qkv, rounded);
    for (int side = -1; side <= 1; side += 2) {
        for (int i = 0; i < QKV; i++) moved[i] = qkv[i] + (float)side * step * direction[i];
        change += side * attention_loss(AMP_F32, moved, NULL) / (2.0 * (double)step);
    }
    for (int i = 0; i < QKV; i++) {
        slope += (double)grad[i] * (double)direction[i];
        square += (double)grad[i] * (double)grad[i];
        error += (double)(rounded[i] - grad[i]) * (double)(rounded[i] - grad[i]);
    }
    printf("d. attention: the loss changes by %.3f a unit,\n   as its gradient says (%.3f);\n", change,
           slope);
    printf("   rounded to bf16 the gradient is another by %.1f %%:", 100.0 * sqrt(error / square));
    verdict(fabs(change / slope - 1.0) < 0.002 && fabs(slope) > 1.0 && error > 0.0 &&
          error < 1e-4 * square);
}

int main(int argc, char **argv) {
    no_options(argc, argv, "Run four recipes, a to d.\n");
    recipe_a();
    recipe_b();
    recipe_c();
    recipe_d();
    return finish(0);
}
