/* ddp_net.h - the network of ddp_mpi.c: images in, two hidden layers, ten classes

   Layer l:  z = act[l] W + b;  the last layer's z, in fp32, is the output; otherwise
   act[l + 1] = dropout(relu(z)). Activations and gradients are in the type of the run, products are
   summed in fp32. The file knows nothing of ranks: its caller passes weights, and where gradients
   go. It needs check, which ends the program if a call of amp.h failed.                          */

#ifndef DDP_NET_H
#define DDP_NET_H

#include "amp.h"
#include "../support/train_data.h"
#include "../support/train_rows.h" /* softmax_error */

#include <math.h>

enum { LAYERS = 3 };
static const float dropped = 0.1f; /* share of units, in training */

typedef struct mlp {
    const dataset *data;
    amp_dtype      type;
    size_t         width[LAYERS + 1], rows;
    void          *act[LAYERS]; /* of that type                                                 */
    void          *delta[2];    /* likewise: gradient by z of a layer, and of the one below     */
    float         *wide;        /* room for two of either in fp32                               */
    float         *out, *sum;   /* logits of the batch; a row                                   */
    size_t        *pick;        /* the images of the batch                                      */
    void         (*pause)(void); /* called often in products: MPI moves data while it is called */
} mlp;

static void mlp_init(mlp *m, const dataset *data, amp_dtype type, int rows, int width) {
    const size_t widest = data->pixels > (size_t)width ? data->pixels : (size_t)width;
    const size_t size = amp_dtype_size(type);
    m->data = data;
    m->type = type;
    m->rows = (size_t)rows;
    for (int l = 0; l <= LAYERS; l++)
        m->width[l] = l == 0 ? data->pixels : (size_t)(l == LAYERS ? NUM_CLASSES : width);
    for (int l = 0; l < LAYERS; l++) m->act[l] = need(m->rows * m->width[l], size);
    for (int i = 0; i < 2; i++) m->delta[i] = need(m->rows * widest, size);
    m->wide = need(2 * m->rows * widest, sizeof(float));
    m->out  = need(m->rows * NUM_CLASSES, sizeof(float));
    m->sum  = need(widest, sizeof(float));
    m->pick = need(m->rows, sizeof(size_t));
}

static void mlp_free(mlp *m) {
    for (int l = 0; l < LAYERS; l++) free(m->act[l]);
    free(m->delta[0]);
    free(m->delta[1]);
    free(m->wide);
    free(m->out);
    free(m->sum);
    free(m->pick);
}

/* What layer l begins with; the caller frees it. (Biases begin with 0.) */
static float *mlp_weight(const mlp *m, size_t l, uint64_t *rng) {
    const size_t count = m->width[l] * m->width[l + 1];
    float       *w     = need(count, sizeof *w);
    const float  size  = sqrtf(6.0f / (float)m->width[l]);
    for (size_t i = 0; i < count; i++) w[i] = size * random_uniform(rng);
    return w;
}

static void multiply(const mlp *m, int trans_a, int trans_b, size_t rows, size_t cols, size_t k,
                     const void *a, const void *b, void *c, amp_dtype c_type) {
    const size_t next = trans_a ? 1 : k, c_size = amp_dtype_size(c_type); /* from row to row of a */
    for (size_t i = 0, some; i < rows; i += some) {
        some = rows - i < 256 ? rows - i : 256;
        const amp_gemm_args g = {
            .trans_a = trans_a, .trans_b = trans_b, .m = some, .n = cols, .k = k,
            .a = (const char *)a + i * next * amp_dtype_size(m->type), .a_type = m->type,
            .lda = trans_a ? rows : k, .b = b, .b_type = m->type,
            .c = (char *)c + i * cols * c_size, .c_type = c_type};
        check(amp_gemm(NULL, &g));
        m->pause();
    }
}

/* Images and dropout follow from the number of a micro-batch, never from the rank that has it. */
static uint64_t stream_of(uint64_t number, uint64_t what) {
    uint64_t rng = 1000003u * number + what;
    return random_u64(&rng);
}

static void load_picked(mlp *m, size_t rows) {
    const size_t width = m->width[0], bytes = width * amp_dtype_size(m->type);
    for (size_t i = 0; i < rows; i++)
        check(amp_cast((char *)m->act[0] + i * bytes, m->type, m->data->image + m->pick[i] * width,
                       AMP_F32, width));
}

static void mlp_load(mlp *m, uint64_t number) {
    uint64_t rng = stream_of(number, 0);
    for (size_t i = 0; i < m->rows; i++)
        m->pick[i] = (size_t)(random_u64(&rng) % m->data->num_train);
    load_picked(m, m->rows);
}

/* Layer l of micro-batch *number; for NULL without dropout. */
static void mlp_forward(mlp *m, size_t l, size_t rows, const void *weight, const float *bias,
                        const uint64_t *number) {
    const size_t out = m->width[l + 1];
    const int    last = l + 1 == LAYERS;
    float       *z = last ? m->out : m->wide;
    uint64_t     rng = number ? stream_of(*number, l + 1) : 0;
    multiply(m, 0, 0, rows, out, m->width[l], m->act[l], weight, z, AMP_F32);
    for (size_t i = 0; i < rows * out; i++) {
        z[i] += bias[i % out];
        if (last) continue;
        const int drop = number && random_uniform(&rng) < 2.0f * dropped - 1.0f;
        z[i] = drop || !(z[i] > 0.0f) ? 0.0f : number ? z[i] / (1.0f - dropped) : z[i];
    }
    if (!last) check(amp_cast(m->act[l + 1], m->type, z, AMP_F32, rows * out));
}

/* The sum of the losses; its gradient, times scale, is where backward begins. */
static double mlp_loss(mlp *m, float scale) {
    double loss = 0.0;
    for (size_t i = 0; i < m->rows; i++)
        loss += softmax_error(m->out + i * NUM_CLASSES, NUM_CLASSES, m->data->label[m->pick[i]]);
    for (size_t i = 0; i < m->rows * NUM_CLASSES; i++) m->out[i] *= scale;
    check(amp_cast(m->delta[0], m->type, m->out, AMP_F32, m->rows * NUM_CLASSES));
    return loss;
}

/* Of layer l the gradients by weight and bias: sums over the rows, rounded once. */
static void mlp_gradient(mlp *m, size_t l, void *by_weight, void *by_bias) {
    const size_t out = m->width[l + 1];
    multiply(m, 1, 0, m->width[l], out, m->rows, m->act[l], m->delta[0], by_weight, m->type);
    check(amp_cast(m->wide, AMP_F32, m->delta[0], m->type, m->rows * out));
    memset(m->sum, 0, out * sizeof *m->sum);
    for (size_t i = 0; i < m->rows; i++)
        for (size_t j = 0; j < out; j++) m->sum[j] += m->wide[i * out + j];
    check(amp_cast(by_bias, m->type, m->sum, AMP_F32, out));
}

/* Down to the layer below: back through dropout and relu, whose zeros are those of act[l]. */
static void mlp_back(mlp *m, size_t l, const void *weight) {
    const size_t in = m->width[l], count = m->rows * in;
    void        *above = m->delta[0], *below = m->delta[1];
    float       *grad = m->wide, *act = m->wide + count;
    multiply(m, 0, 1, m->rows, in, m->width[l + 1], above, weight, grad, AMP_F32);
    check(amp_cast(act, AMP_F32, m->act[l], m->type, count));
    for (size_t i = 0; i < count; i++)
        grad[i] = act[i] > 0.0f ? grad[i] / (1.0f - dropped) : 0.0f;
    check(amp_cast(below, m->type, grad, AMP_F32, count));
    m->delta[0] = below;
    m->delta[1] = above;
}

/* The held-out images first, first + 1 ...; returns how many there are, at most a batch. */
static size_t mlp_load_held_out(mlp *m, size_t first) {
    const size_t left = m->data->num_test - first, rows = left < m->rows ? left : m->rows;
    for (size_t i = 0; i < rows; i++) m->pick[i] = m->data->num_train + first + i;
    load_picked(m, rows);
    return rows;
}

/* How many logits of the batch are largest where the label is. */
static size_t mlp_right(const mlp *m, size_t rows) {
    size_t right = 0;
    for (size_t i = 0; i < rows; i++) {
        const float *z = m->out + i * NUM_CLASSES;
        int          best = 0;
        for (int j = 1; j < NUM_CLASSES; j++)
            if (z[j] > z[best]) best = j;
        right += best == m->data->label[m->pick[i]];
    }
    return right;
}

#endif /* DDP_NET_H */
