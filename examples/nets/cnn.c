/* cnn.c - a residual classifier and a denoiser learn images, in fp32, fp16 and bf16, with amp.h

   Two small convolutional networks. cnn has two residual blocks and classifies an image. unet
   removes noise from an image; it goes down to half the size and up again, with a connection
   across. A convolution is a product: im2col writes the neighborhood of each pixel as a row, in
   the type of the product, and amp_gemm does the rest, forward and backward. Weights,
   activations and gradients that feed products are stored in half, products are summed in fp32.
   Batch norm stays in fp32: its parameters (keep_fp32), its statistics, its arithmetic. So do the
   losses, and the gradients that flow from layer to layer, to which every branch adds.

   READ  from top to bottom: the networks, products, convolution, norm, what changes sizes,
   forward, losses, backward, the step; then held-out images, main. Mixed precision is in
   choose_types (what the policy says of the products), setup_optimizer, loss_scale and train_step;
   a trainer in fp32 needs the rest, too. cnn_report.h has options and pictures,
   train_data.h the images, train_runs.h the loop over seeds, types and steps, and --check;
   train_half.h memory, the policy's answers, rows of halves, the schedule. The other train_*.h say in
   their first line what they have.

   RUN   cc -O3 -march=native -I. examples/nets/cnn.c -o cnn -lm && ./cnn      in the directory of amp.h

   In under two minutes it prints a table of each network with its reading, writes pictures into
   build/, and ends with three lines for each: parity with fp32, speed, memory. See also --help.

   COLUMNS  images/s from the processor time of whole steps, medians, the types in turns.
   bytes/param: weights, copies, gradients, moments. activations: what forward keeps for backward.
   total: these, and what all steps share: gradients of activations, workspace. */

#define _POSIX_C_SOURCE 200809L /* popen, isatty, mkdir */
#define PROGRAM "cnn"

#include "../support/train_count.h" /* amp.h, with a malloc that counts */
#include "cnn_report.h" /* options, images, report, pictures */
#include "../support/train_lines.h" /* --report */

typedef dataset corpus;

/* ------------------------------------------------------------------------------------ networks
   Activations are matrices: a row for each pixel of each image, a column for each channel.      */

/* A unit is a convolution (of 3x3, zeros around the image, or of 1x1) and a batch norm; the last
   one of a network has a bias instead of the norm. Channels are in widths; 0: one channel. */
typedef struct plan {
    const char *name;
    int         level; /* 0: of all pixels; 1: of half the height and width; 2: of whole images */
    int         in, out, taps, norm;
} plan;

enum { STEM, A1, A2, B1, B2, SHORTCUT, HEAD, MAX_UNITS }; /* of cnn  */
enum { DOWN1, DOWN2, MIDDLE1, MIDDLE2, UP, LAST };        /* of unet */

static const plan cnn_plan[] = {
    {"stem", 0, 0, 1, 9, 1},     {"block1.1", 0, 1, 1, 9, 1},    {"block1.2", 0, 1, 1, 9, 1},
    {"block2.1", 1, 1, 2, 9, 1}, {"block2.2", 1, 2, 2, 9, 1},    {"shortcut", 1, 1, 2, 1, 1},
    {"head", 2, 2, 0, 1, 0}};

static const plan unet_plan[] = {
    {"down1", 0, 0, 1, 9, 1},   {"down2", 0, 1, 1, 9, 1}, {"middle1", 1, 1, 2, 9, 1},
    {"middle2", 1, 2, 2, 9, 1}, {"up", 0, 3, 1, 9, 1},    {"last", 0, 1, 0, 1, 0}};

/* The tensors of a unit; one without norm has the first two. Means and variances of all batches,
   for images that are judged alone, are tensors without gradient: amp.h does not move them, and
   saves and loads them with the rest. */
enum { WEIGHT, BIAS, GAIN, MEAN, VARIANCE, PER_UNIT };
enum { MAX_TENSORS = MAX_UNITS * PER_UNIT, PIECE = 4096, COLUMNS = 1 << 19 };

typedef struct unit {
    const char *name;
    size_t      side, in, out, taps;
    int         norm;
    amp_dtype   product;  /* of the operands of its products, as the policy says                 */
    int         first;    /* of its tensors                                                      */
    const void *x;        /* what it was given: pixels x in                                      */
    void       *z, *y;    /* pixels x out: before the norm; behind it, an addition and a ReLU    */
    float      *stats;    /* of each channel: the batch's mean, and 1 / standard deviation       */
} unit;

typedef struct net {
    const options *o;
    const dataset *data;
    size_t        *order;                            /* of the training images, in an epoch      */
    int            seed, task, num_units, num_tensors;
    amp_dtype      type;                             /* of weights, activations, gradients       */
    size_t         side, width, batch;
    unit           unit[MAX_UNITS];
    amp_tensor     tensor[MAX_TENSORS];
    char           names[MAX_TENSORS][32], run[RUN_SIZE];
    amp_optimizer  opt;
    amp_backend    backend;                          /* with a workspace for products            */
    lines          lines;                            /* of --report                              */
    void          *input, *pooled;                   /* images; pixels of half the size          */
    void          *joined;                           /* unet: what came up and what came across  */
    void          *feature;                          /* cnn: of each image, means of channels    */
    float         *out, *target;                     /* logits or pixels, then their gradient;
                                                        pixels without noise                     */
    int           *label;
    float         *grad[3];                          /* by activations                           */
    void          *low, *columns, *flipped;          /* gradients for products; im2col; weights
                                                        for the gradient by x                    */
    float         *wide, *weight_grad;               /* an operand, a sum, that must be fp32     */
    float         *room[3];                          /* pieces in fp32, as they are computed     */
    uint64_t       rng;
    size_t         num_params, bytes[NUM_MEMORIES];
    void          *owned[2 * MAX_TENSORS + 3 * MAX_UNITS + 24];
    int            num_owned;
} net;

#include "../support/train_half.h" /* memory, the policy's answers, rows of halves, gradients, the schedule */

/* By default all products are in half; --policy "op:linear=fp32" has cnn's head in fp32,
   "block1.*=fp32" a block. */
static void choose_types(net *n) {
    amp_autocast policy;
    policy_begin(&policy, n->o, n->type);
    for (int i = 0; i < n->num_units; i++) {
        unit *u = &n->unit[i];
        u->product = ask(&policy, n->o, n->type, u->name,
                         u->side > 1 ? AMP_OP_CONV2D : AMP_OP_LINEAR);
    }
    policy_end(&policy, n->type, n->task == CNN
                   ? "cnn has stem, block1.1, block1.2, block2.1, block2.2, shortcut and head"
                   : "unet has down1, down2, middle1, middle2, up and last");
}

/* Describe a tensor, with its memory: a master, and gradients of its type. Masters are random
   around mean; in --check all are, or a wrong gradient of a bias that is 0 might not show. */
static void add_tensor(net *n, const char *name, size_t count, float mean, float deviation,
                       int moves) {
    amp_tensor *t = &n->tensor[n->num_tensors];
    t->name      = strcpy(n->names[n->num_tensors++], name);
    t->n         = count;
    t->grad_type = deviation > 0.0f ? n->type : AMP_F32;
    t->weight    = net_alloc(n, STATE, count, AMP_F32);
    t->frozen    = !moves;
    if (moves) t->grad = net_alloc(n, STATE, count, t->grad_type);
    if (deviation <= 0.0f) t->keep_fp32 = 1, t->weight_decay = -1.0f; /* a norm or a bias */
    if (n->o->check && moves) deviation = 0.2f;
    for (size_t j = 0; j < count; j++)
        t->weight[j] = mean + 1.7320508f * deviation * random_uniform(&n->rng);
    if (moves) n->num_params += count;
}

/* He's start: what enters a unit leaves it as large, in spite of the ReLU. */
static void add_tensors(net *n, unit *u) {
    static const char *const part[PER_UNIT] = {"weight", "bias", "gain", "mean", "variance"};
    char name[32];
    u->first = n->num_tensors;
    for (int k = 0; k < (u->norm ? PER_UNIT : GAIN); k++) {
        sprintf(name, "%.16s.%s", u->name, part[k]);
        if (k == WEIGHT)
            add_tensor(n, name, u->out * u->taps * u->in, 0.0f,
                       sqrtf(2.0f / (float)(u->taps * u->in)), 1);
        else
            add_tensor(n, name, u->out, k == GAIN || k == VARIANCE ? 1.0f : 0.0f, 0.0f,
                       k != MEAN && k != VARIANCE);
    }
}

static size_t channels(const net *n, int widths, int last) {
    return widths ? (size_t)widths * n->width : last && n->task == CNN ? NUM_CLASSES : 1;
}

static void add_units(net *n) {
    const plan *p = n->task == CNN ? cnn_plan : unet_plan;
    n->num_units = n->task == CNN ? HEAD + 1 : LAST + 1;
    for (int i = 0; i < n->num_units; i++, p++) {
        unit *u = &n->unit[i];
        u->name = p->name;
        u->side = p->level == 0 ? n->side : p->level == 1 ? n->side / 2 : 1;
        u->in   = channels(n, p->in, 0);
        u->out  = channels(n, p->out, i + 1 == n->num_units);
        u->taps = (size_t)p->taps;
        u->norm = p->norm;
    }
    choose_types(n);
    for (int i = 0; i < n->num_units; i++) {
        unit        *u      = &n->unit[i];
        const size_t values = n->batch * u->side * u->side * u->out;
        add_tensors(n, u);
        if (!u->norm) continue;
        u->z     = net_alloc(n, ACTIVATIONS, values, n->type);
        u->y     = net_alloc(n, ACTIVATIONS, values, n->type);
        u->stats = net_alloc(n, ACTIVATIONS, 2 * u->out, AMP_F32);
    }
}

static void setup_optimizer(net *n) {
    amp_optimizer_desc desc = adamw_in(n->type);
    desc.weight_decay = 0.05f;
    desc.max_norm     = 5.0f;
    begin_optimizer(n, &desc);
}

/* How many images go through im2col at a time: as many as fill a cache, but at least one. */
static size_t images_at_once(const unit *u, size_t channels_of_x) {
    const size_t one = u->side * u->side * u->taps * channels_of_x;
    return one < COLUMNS ? COLUMNS / one : 1;
}

static void make_buffers(net *n) {
    /* a policy may have some products in fp32, so with one there is room for that */
    const amp_dtype any  = n->o->policy ? AMP_F32 : n->type;
    const size_t    wide = n->width * (n->task == UNET ? 3 : 1), pixels = n->side * n->side;
    const size_t    rows = n->batch * pixels;
    size_t          columns = COLUMNS, weights = 0, most = rows;
    for (int i = 0; i < n->num_units; i++) {
        const unit *u = &n->unit[i];
        columns = max_of(columns, u->side * u->side * u->taps * max_of(u->in, u->out));
        weights = max_of(weights, n->tensor[u->first].n);
        most    = max_of(most, u->taps * max_of(u->in, u->out));
    }
    n->input   = net_alloc(n, ACTIVATIONS, rows, n->type);
    n->pooled  = net_alloc(n, ACTIVATIONS, rows / 4 * n->width, n->type);
    n->joined  = net_alloc(n, ACTIVATIONS, n->task == UNET ? rows * wide : 0, n->type);
    n->feature = net_alloc(n, ACTIVATIONS, n->task == CNN ? n->batch * 2 * n->width : 0, n->type);
    n->out     = net_alloc(n, WORK, max_of(rows, n->batch * NUM_CLASSES), AMP_F32);
    n->target  = net_alloc(n, WORK, n->task == UNET ? rows : 0, AMP_F32);
    n->label   = net_alloc(n, WORK, n->batch, AMP_F32); /* ints are as large */
    for (int i = 0; i < 3; i++)
        n->grad[i] = net_alloc(n, WORK, rows * (i == 0 ? wide : n->width), AMP_F32);
    n->low         = net_alloc(n, WORK, max_of(rows * n->width, n->batch * NUM_CLASSES), any);
    n->columns     = net_alloc(n, WORK, columns, any);
    n->flipped     = net_alloc(n, WORK, weights, any);
    n->wide        = net_alloc(n, WORK, n->o->policy ? rows * wide : 0, AMP_F32);
    n->weight_grad = net_alloc(n, WORK, n->type == AMP_F32 ? 0 : weights, AMP_F32);
    for (int i = 0; i < 3; i++) /* a piece, or two rows of an image of 3 widths */
        n->room[i] = net_alloc(n, WORK, max_of(PIECE, 2 * n->side * 3 * n->width), AMP_F32);
    make_workspace(n, most);
}

/* The network in a type. */
static void net_init(net *n, const options *o, const dataset *data, amp_dtype type, int seed) {
    memset(n, 0, sizeof *n);
    n->o = o, n->data = data, n->seed = seed, n->task = o->task, n->type = type;
    n->side = data->side, n->width = (size_t)o->width, n->batch = (size_t)o->batch;
    n->rng  = (uint64_t)seed * 1000003u + 1;
    sprintf(n->run, "run of cnn --task %s --dtype %s --width %d --batch %d --steps %d --lr %.6g --data "
                    "of-checksum-%08lx;", task_names[o->task], type_names[type], o->width, o->batch,
            o->steps, (double)o->lr, checksum(data));
    n->order = n->owned[n->num_owned++] = need(data->num_train, sizeof *n->order);
    add_units(n);
    make_buffers(n);
    setup_optimizer(n);
}

/* What products of a unit read: the half copy, or the master. */
static const void *weight(const net *n, const unit *u) {
    return u->product == AMP_F32 ? n->tensor[u->first].weight
                                 : amp_optimizer_model(&n->opt, u->first);
}

/* ------------------------------------------------------------------------ products, convolution */

/* c = op(a) op(b) + beta c, rows x cols, over k; a and b of one type, sums in fp32. */
static void multiply(const net *n, int trans_a, int trans_b, size_t rows, size_t cols, size_t k,
                     const void *a, const void *b, amp_dtype type, float beta, void *c,
                     amp_dtype c_type) {
    const amp_gemm_args g = {.trans_a = trans_a, .trans_b = trans_b, .m = rows, .n = cols, .k = k,
                             .beta = beta, .a = a, .a_type = type, .b = b, .b_type = type, .c = c,
                             .c_type = c_type, .tf32 = takes_three(type)};
    must(amp_gemm(&n->backend, &g));
}

/* For each pixel, size bytes each, a row of its 3x3 neighborhood. Three neighbors side by side lie
   so in the image, too. */
static void im2col(const char *x, size_t size, size_t images, size_t side, char *row) {
    for (size_t i = 0; i < images * side * side; i++) {
        const size_t at_x = i % side, at_y = i / side % side;
        const size_t left = at_x == 0, right = at_x + 1 == side; /* neighbors that are outside */
        for (size_t ky = 0; ky < 3; ky++, row += 3 * size) {
            if (at_y + ky == 0 || at_y + ky > side) {
                memset(row, 0, 3 * size);
                continue;
            }
            if (left) memset(row, 0, size);
            if (right) memset(row + 2 * size, 0, size);
            memcpy(row + left * size, x + (i + ky * side + left - side - 1) * size,
                   (3 - left - right) * size);
        }
    }
}

/* Rows of the operand of a product, for some images of x, of type: x itself, or its im2col. */
static const void *rows_of(net *n, const unit *u, const void *x, size_t channels_of_x, size_t first,
                           size_t images) {
    const size_t size = channels_of_x * amp_dtype_size(u->product), pixels = u->side * u->side;
    const char  *from = (const char *)x + first * pixels * size;
    if (u->taps == 1) return from;
    im2col(from, size, images, u->side, n->columns);
    return n->columns;
}

/* x, or in fp32 if the policy has the products of this unit so. */
static const void *operand(net *n, const unit *u, const void *x, size_t count) {
    if (u->product == n->type) return x;
    must(amp_cast(n->wide, AMP_F32, x, n->type, count));
    return n->wide;
}

static void convolve(net *n, const unit *u, size_t images, void *z, amp_dtype z_type) {
    const size_t pixels = u->side * u->side, most = images_at_once(u, u->in);
    const void  *x = operand(n, u, u->x, images * pixels * u->in);
    for (size_t i = 0, now; i < images; i += now) {
        now = images - i < most ? images - i : most;
        multiply(n, 0, 1, now * pixels, u->out, u->taps * u->in, rows_of(n, u, x, u->in, i, now),
                 weight(n, u), u->product, 0.0f, at(z, z_type, i * pixels * u->out), z_type);
    }
}

/* The gradient by the weights, from that by z in low: summed in fp32, then rounded. */
static void weight_back(net *n, const unit *u) {
    const size_t pixels = u->side * u->side, most = images_at_once(u, u->in);
    amp_tensor  *t = &n->tensor[u->first];
    const void  *x = operand(n, u, u->x, n->batch * pixels * u->in);
    float       *sum = n->type == AMP_F32 ? t->grad : n->weight_grad;
    for (size_t i = 0, now; i < n->batch; i += now) {
        now = n->batch - i < most ? n->batch - i : most;
        multiply(n, 1, 0, u->out, u->taps * u->in, now * pixels,
                 at(n->low, u->product, i * pixels * u->out), rows_of(n, u, x, u->in, i, now),
                 u->product, i > 0 ? 1.0f : 0.0f, sum, AMP_F32);
    }
    if (n->type != AMP_F32) must(amp_cast(t->grad, n->type, sum, AMP_F32, t->n));
}

/* The gradient by x: a convolution of low, with the weights of tap t at tap 8 - t, and outputs for
   inputs. It is added to dx if beta is 1. */
static void input_back(net *n, const unit *u, float beta, float *dx) {
    const size_t pixels = u->side * u->side, most = images_at_once(u, u->out);
    const size_t size = u->in * amp_dtype_size(u->product);
    const char  *w = weight(n, u);
    for (size_t o = 0; o < u->out; o++)
        for (size_t t = 0; t < u->taps; t++, w += size)
            memcpy((char *)n->flipped + ((u->taps - 1 - t) * u->out + o) * size, w, size);
    for (size_t i = 0, now; i < n->batch; i += now) {
        now = n->batch - i < most ? n->batch - i : most;
        multiply(n, 0, 0, now * pixels, u->in, u->taps * u->out,
                 rows_of(n, u, n->low, u->out, i, now), n->flipped, u->product, beta,
                 dx + i * pixels * u->in, AMP_F32);
    }
}

/* ----------------------------------------------------------------------------------------- norm
   All of it in fp32, in pieces of whole rows.                                                    */

static size_t piece(size_t rows, size_t columns) {
    return rows < PIECE / columns ? rows : PIECE / columns;
}

/* Means and deviations of the batch, of each channel. */
static void batch_statistics(net *n, const unit *u, size_t rows) {
    const size_t c = u->out;
    float       *mean = u->stats, *rstd = u->stats + c;
    memset(u->stats, 0, 2 * c * sizeof(float));
    for (int pass = 0; pass < 2; pass++) { /* of the squares of differences to the mean */
        for (size_t i = 0, now; i < rows; i += now) {
            now = piece(rows - i, c);
            const float *z = read_row(u->z, n->type, i * c, now * c, n->room[0]);
            for (const float *end = z + now * c; z < end; z += c) {
                for (size_t j = 0; !pass && j < c; j++) mean[j] += z[j];
                for (size_t j = 0; pass && j < c; j++) {
                    const float d = z[j] - mean[j];
                    rstd[j] += d * d;
                }
            }
        }
        for (size_t j = 0; !pass && j < c; j++) mean[j] /= (float)rows;
    }
    for (size_t j = 0; j < c; j++) rstd[j] = 1.0f / sqrtf(rstd[j] / (float)rows + 1e-5f);
}

/* Those of all batches follow those of a batch, once its step was taken: an infinity in a forward
   pass that is skipped would stay in them for good. */
static void follow_statistics(net *n) {
    for (const unit *u = n->unit; u < n->unit + n->num_units; u++) {
        float *mean = n->tensor[u->first + MEAN].weight, *variance = mean;
        if (!u->norm) continue;
        variance = n->tensor[u->first + VARIANCE].weight;
        for (size_t j = 0; j < u->out; j++) {
            const float rstd = u->stats[u->out + j];
            mean[j] += 0.1f * (u->stats[j] - mean[j]);
            variance[j] += 0.1f * (1.0f / (rstd * rstd) - 1e-5f - variance[j]);
        }
    }
}

static void stored_statistics(net *n, const unit *u) {
    memcpy(u->stats, n->tensor[u->first + MEAN].weight, u->out * sizeof(float));
    for (size_t j = 0; j < u->out; j++)
        u->stats[u->out + j] = 1.0f / sqrtf(n->tensor[u->first + VARIANCE].weight[j] + 1e-5f);
}

/* y = relu((z - mean) / deviation * gain + bias + skip), without the ReLU for the shortcut, which
   is a skip itself. */
static void normalize(net *n, const unit *u, const void *skip, int relu, size_t rows) {
    const size_t c = u->out;
    float       *factor = n->room[1], *shift = n->room[1] + c;
    for (size_t j = 0; j < c; j++) {
        factor[j] = n->tensor[u->first + GAIN].weight[j] * u->stats[c + j];
        shift[j]  = n->tensor[u->first + BIAS].weight[j] - u->stats[j] * factor[j];
    }
    for (size_t i = 0, now; i < rows; i += now) {
        now = piece(rows - i, c);
        const float *z = read_row(u->z, n->type, i * c, now * c, n->room[0]);
        const float *s = skip ? read_row(skip, n->type, i * c, now * c, n->room[2]) : NULL;
        float       *y = place_row(u->y, n->type, i * c, n->room[0]);
        for (size_t k = 0; k < now * c; k += c)
            for (size_t j = 0; j < c; j++) y[k + j] = z[k + j] * factor[j] + shift[j];
        for (size_t k = 0; s && k < now * c; k++) y[k] += s[k];
        for (size_t k = 0; relu && k < now * c; k++) y[k] = y[k] < 0.0f ? 0.0f : y[k];
        write_row(u->y, n->type, i * c, now * c, y);
    }
}

/* From the gradient by y to that by z, which goes to low. dy becomes 0 where the ReLU was, and is
   then the gradient by the skip, too. */
static void norm_back(net *n, const unit *u, int relu, float *dy) {
    const size_t c = u->out, rows = n->batch * u->side * u->side;
    const float *gain = n->tensor[u->first + GAIN].weight, *mean = u->stats, *rstd = u->stats + c;
    float       *gain_grad = n->tensor[u->first + GAIN].grad;
    float       *bias_grad = n->tensor[u->first + BIAS].grad;
    memset(gain_grad, 0, c * sizeof(float));
    memset(bias_grad, 0, c * sizeof(float));
    for (size_t i = 0, now; i < rows; i += now) {
        float *d = dy + i * c;
        now = piece(rows - i, c);
        const float *z = read_row(u->z, n->type, i * c, now * c, n->room[0]);
        const float *y = read_row(u->y, n->type, i * c, now * c, n->room[1]);
        for (size_t k = 0; relu && k < now * c; k++) d[k] = y[k] > 0.0f ? d[k] : 0.0f;
        for (size_t k = 0; k < now * c; k += c) {
            for (size_t j = 0; j < c; j++) {
                gain_grad[j] += d[k + j] * (z[k + j] - mean[j]);
                bias_grad[j] += d[k + j];
            }
        }
    }
    /* by z: gain / deviation (d - mean of d - z' mean of d z'), z' = (z - mean) / deviation */
    float *of_d = n->room[1], *of_z = n->room[1] + c, *shift = n->room[1] + 2 * c;
    for (size_t j = 0; j < c; j++) {
        gain_grad[j] *= rstd[j];
        of_d[j]  = gain[j] * rstd[j];
        of_z[j]  = -of_d[j] * rstd[j] * gain_grad[j] / (float)rows;
        shift[j] = -of_d[j] * bias_grad[j] / (float)rows - of_z[j] * mean[j];
    }
    for (size_t i = 0, now; i < rows; i += now) {
        now = piece(rows - i, c);
        const float *z  = read_row(u->z, n->type, i * c, now * c, n->room[0]), *d = dy + i * c;
        float       *dz = place_row(n->low, u->product, i * c, n->room[0]);
        for (size_t k = 0; k < now * c; k += c)
            for (size_t j = 0; j < c; j++)
                dz[k + j] = d[k + j] * of_d[j] + z[k + j] * of_z[j] + shift[j];
        write_row(n->low, u->product, i * c, now * c, dz);
    }
}

/* ------------------------------------------------------------------------ what changes the size */

/* Means of 2x2 pixels. */
static void pool(net *n, const void *x, size_t channels_of_x, size_t images) {
    const size_t line = n->side * channels_of_x, half = line / 2;
    for (size_t i = 0; i < images * n->side / 2; i++) {
        const float *a = read_row(x, n->type, 2 * i * line, 2 * line, n->room[0]), *b = a + line;
        float       *y = place_row(n->pooled, n->type, i * half, n->room[1]);
        for (size_t k = 0; k < n->side / 2; k++, a += 2 * channels_of_x, b += 2 * channels_of_x)
            for (size_t j = 0; j < channels_of_x; j++)
                y[k * channels_of_x + j] = 0.25f * (a[j] + a[channels_of_x + j] + b[j] +
                                                    b[channels_of_x + j]);
        write_row(n->pooled, n->type, i * half, half, y);
    }
}

/* A pixel's own, of the four that share one of half the size. */
static size_t half_of(size_t pixel, size_t side) {
    return (pixel / side / 2) * (side / 2) + pixel % side / 2; /* lines go on through all images */
}

static void pool_back(const net *n, const float *dy, size_t c, float beta, float *dx) {
    for (size_t i = 0; i < n->batch * n->side * n->side; i++) {
        const float *d = dy + half_of(i, n->side) * c;
        for (size_t j = 0; j < c; j++) dx[i * c + j] = beta * dx[i * c + j] + 0.25f * d[j];
    }
}

/* For each pixel what came up, from half the size, and beside it what came across. */
static void join(net *n, const void *up, size_t c_up, const void *across, size_t c, size_t images) {
    const size_t size_up = c_up * amp_dtype_size(n->type), size = c * amp_dtype_size(n->type);
    char        *y = n->joined;
    for (size_t i = 0; i < images * n->side * n->side; i++, y += size_up + size) {
        memcpy(y, (const char *)up + half_of(i, n->side) * size_up, size_up);
        memcpy(y + size_up, (const char *)across + i * size, size);
    }
}

static void join_back(const net *n, const float *dy, float *up, size_t c_up, float *across,
                      size_t c) {
    const size_t rows = n->batch * n->side * n->side;
    memset(up, 0, rows / 4 * c_up * sizeof(float));
    for (size_t i = 0; i < rows; i++, dy += c_up + c) {
        float *sum = up + half_of(i, n->side) * c_up;
        for (size_t j = 0; j < c_up; j++) sum[j] += dy[j];
        memcpy(across + i * c, dy + c_up, c * sizeof(float));
    }
}

/* Of each image the means of its channels. */
static void average(net *n, const void *x, size_t pixels, size_t c, size_t images) {
    for (size_t i = 0; i < images; i++) {
        float *y = place_row(n->feature, n->type, i * c, n->room[1]);
        memset(y, 0, c * sizeof(float));
        for (size_t p = 0, now; p < pixels; p += now) {
            now = piece(pixels - p, c);
            const float *v = read_row(x, n->type, (i * pixels + p) * c, now * c, n->room[0]);
            for (size_t k = 0; k < now; k++)
                for (size_t j = 0; j < c; j++) y[j] += v[k * c + j] / (float)pixels;
        }
        write_row(n->feature, n->type, i * c, c, y);
    }
}

static void average_back(const net *n, const float *dy, size_t pixels, size_t c, float *dx) {
    for (size_t i = 0; i < n->batch * pixels; i++)
        for (size_t j = 0; j < c; j++) dx[i * c + j] = dy[i / pixels * c + j] / (float)pixels;
}

/* -------------------------------------------------------------------------------------- forward
   training: by the statistics of the batch; else by those of all batches.                        */

static void *unit_forward(net *n, int i, const void *x, const void *skip, size_t images,
                          int training) {
    unit        *u    = &n->unit[i];
    const size_t rows = images * u->side * u->side;
    const int    relu = n->task == UNET || i != SHORTCUT;
    u->x = x;
    convolve(n, u, images, u->z, n->type);
    if (training) batch_statistics(n, u, rows);
    else stored_statistics(n, u);
    normalize(n, u, skip, relu, rows);
    return u->y;
}

/* The last unit of a network: a product and a bias, in fp32. */
static void last_forward(net *n, int i, const void *x, size_t images) {
    unit        *u    = &n->unit[i];
    const float *bias = n->tensor[u->first + BIAS].weight;
    u->x = x;
    convolve(n, u, images, n->out, AMP_F32);
    for (size_t k = 0; k < images * u->side * u->side; k++)
        for (size_t j = 0; j < u->out; j++) n->out[k * u->out + j] += bias[j];
}

static void cnn_forward(net *n, size_t images, int t) {
    const size_t half = n->side / 2 * (n->side / 2);
    const void  *stem = unit_forward(n, STEM, n->input, NULL, images, t);
    const void  *a = unit_forward(n, A1, stem, NULL, images, t);
    a = unit_forward(n, A2, a, stem, images, t);
    pool(n, a, n->width, images);
    const void *shortcut = unit_forward(n, SHORTCUT, n->pooled, NULL, images, t);
    const void *b = unit_forward(n, B1, n->pooled, NULL, images, t);
    b = unit_forward(n, B2, b, shortcut, images, t);
    average(n, b, half, 2 * n->width, images);
    last_forward(n, HEAD, n->feature, images);
}

static void unet_forward(net *n, size_t images, int t) {
    const void *x = unit_forward(n, DOWN1, n->input, NULL, images, t);
    const void *across = unit_forward(n, DOWN2, x, NULL, images, t);
    pool(n, across, n->width, images);
    x = unit_forward(n, MIDDLE1, n->pooled, NULL, images, t);
    x = unit_forward(n, MIDDLE2, x, NULL, images, t);
    join(n, x, 2 * n->width, across, n->width, images);
    x = unit_forward(n, UP, n->joined, NULL, images, t);
    last_forward(n, LAST, x, images);
}

static void forward(net *n, size_t images, int training) {
    (n->task == CNN ? cnn_forward : unet_forward)(n, images, training);
}

/* ---------------------------------------------------------------------------------------- losses
   The mean of some images, in fp32; out becomes its gradient, times the factor.                  */

static double cross_entropy(net *n, size_t images, float factor, size_t *right) {
    double loss = 0.0;
    for (size_t i = 0; i < images; i++) {
        float *z = n->out + i * NUM_CLASSES, max = z[0], total = 0.0f;
        int    best = 0;
        for (int j = 1; j < NUM_CLASSES; j++)
            if (z[j] > max) max = z[best = j];
        *right += best == n->label[i];
        const float wanted = z[n->label[i]] - max;
        for (int j = 0; j < NUM_CLASSES; j++) total += z[j] = expf(z[j] - max);
        loss += (double)(logf(total) - wanted) / (double)images;
        for (int j = 0; j < NUM_CLASSES; j++) z[j] *= factor / ((float)images * total);
        z[n->label[i]] -= factor / (float)images;
    }
    return loss;
}

static double squared_error(net *n, size_t images, float factor) {
    const size_t count = images * n->side * n->side;
    double       loss = 0.0;
    for (size_t i = 0; i < count; i++) {
        const float d = n->out[i] - n->target[i];
        loss += (double)(d * d) / (double)count;
        n->out[i] = 2.0f * d * factor / (float)count;
    }
    return loss;
}

/* Also counts images that were told right, if the network tells. */
static double loss_of(net *n, size_t images, float factor, size_t *right) {
    return n->task == CNN ? cross_entropy(n, images, factor, right)
                          : squared_error(n, images, factor);
}

/* ------------------------------------------------------------------------------------- backward
   Of a full batch, from the gradient of out, which carries the loss scale.                       */

/* From dy to dx (added to it if beta is 1; NULL: nobody asks). */
static void unit_back(net *n, int i, float *dy, float beta, float *dx) {
    const unit *u = &n->unit[i];
    norm_back(n, u, n->task == UNET || i != SHORTCUT, dy);
    weight_back(n, u);
    if (dx) input_back(n, u, beta, dx);
}

static void last_back(net *n, int i, float *dx) {
    const unit  *u = &n->unit[i];
    const size_t rows = n->batch * u->side * u->side;
    float       *bias_grad = n->tensor[u->first + BIAS].grad;
    memset(bias_grad, 0, u->out * sizeof(float));
    for (size_t k = 0; k < rows; k++)
        for (size_t j = 0; j < u->out; j++) bias_grad[j] += n->out[k * u->out + j];
    must(amp_cast(n->low, u->product, n->out, AMP_F32, rows * u->out));
    weight_back(n, u);
    input_back(n, u, 0.0f, dx);
}

static void cnn_back(net *n) {
    float *g = n->grad[0], *h = n->grad[1], *k = n->grad[2];
    last_back(n, HEAD, h);
    average_back(n, h, n->side / 2 * (n->side / 2), 2 * n->width, g);
    unit_back(n, B2, g, 0.0f, h);
    unit_back(n, B1, h, 0.0f, k);
    unit_back(n, SHORTCUT, g, 1.0f, k);
    pool_back(n, k, n->width, 0.0f, g);
    unit_back(n, A2, g, 0.0f, h);
    unit_back(n, A1, h, 1.0f, g); /* g has what came by the skip */
    unit_back(n, STEM, g, 0.0f, NULL);
}

static void unet_back(net *n) {
    float *g = n->grad[0], *h = n->grad[1], *across = n->grad[2];
    last_back(n, LAST, h);
    unit_back(n, UP, h, 0.0f, g);
    join_back(n, g, h, 2 * n->width, across, n->width);
    unit_back(n, MIDDLE2, h, 0.0f, g);
    unit_back(n, MIDDLE1, g, 0.0f, h);
    pool_back(n, h, n->width, 1.0f, across);
    unit_back(n, DOWN2, across, 0.0f, g);
    unit_back(n, DOWN1, g, 0.0f, NULL);
}

static void backward(net *n) { (n->task == CNN ? cnn_back : unet_back)(n); }

/* ------------------------------------------------------------------------------------- the step */

/* An image goes in; for the denoiser with noise, whose deviation is NOISE: three numbers that are
   even between -1 and 1 add up to deviation 1. */
static void load_image(net *n, size_t image, size_t to, uint64_t rng) {
    const size_t pixels = n->side * n->side;
    const float *clean  = n->data->image + image * pixels;
    float       *x      = place_row(n->input, n->type, to * pixels, n->room[0]);
    n->label[to] = n->data->label[image];
    memcpy(x, clean, pixels * sizeof(float));
    if (n->task == UNET) {
        memcpy(n->target + to * pixels, clean, pixels * sizeof(float));
        for (size_t i = 0; i < pixels; i++)
            x[i] += NOISE * (random_uniform(&rng) + random_uniform(&rng) + random_uniform(&rng));
    }
    write_row(n->input, n->type, to * pixels, pixels, x);
}

/* The order of an epoch, and noise. */
static void load_batch(net *n, uint64_t step) {
    const size_t   images = n->data->num_train;
    const uint64_t steps = images / n->batch; /* of an epoch */
    uint64_t       rng = ((uint64_t)n->seed << 32) + step / steps * 0x2545f4914f6cdd1du + 7;
    for (size_t i = 0; i < images; i++) n->order[i] = i;
    shuffle(n->order, images, &rng);
    rng += step;
    for (size_t i = 0; i < n->batch; i++)
        load_image(n, n->order[step % steps * n->batch + i], i, random_u64(&rng));
}

static double batch_loss(net *n) {
    size_t right = 0;
    forward(n, n->batch, 1);
    return loss_of(n, n->batch, loss_scale(n), &right);
}

/* One step, taken or skipped; returns the loss of its batch. */
static double train_step(net *n) {
    const uint64_t step = status_of(&n->opt).steps;
    const double   loss = gradients(n, step);
    must(amp_optimizer_step(&n->opt, learning_rate(n->o, step))); /* check, clip, unscale, AdamW,
                                                                       new scale, new copies */
    if (status_of(&n->opt).did_step) follow_statistics(n);
    return loss;
}

/* ------------------------------------------------------------------------------ held-out images */

/* The mean loss of some images that training never sees; at the end of all, and of cnn how many of
   100 were told right. */
static double evaluate(net *n, int at_end) {
    const dataset *d = n->data;
    const size_t   images = !at_end && d->num_test > ON_THE_WAY ? (size_t)ON_THE_WAY : d->num_test;
    double         loss = 0.0;
    size_t         right = 0;
    for (size_t i = 0, now; i < images; i += now) {
        now = images - i < n->batch ? images - i : n->batch;
        for (size_t k = 0; k < now; k++) load_image(n, d->num_train + i + k, k, i + k + 1);
        forward(n, now, 0);
        loss += loss_of(n, now, 1.0f, &right) * (double)now / (double)images;
    }
    return at_end && n->task == CNN ? 100.0 * (double)right / (double)images : loss;
}

/* What the picture shows: an image of each class with noise, and what is left of the noise. */
static void denoise(net *n, const dataset *data, gallery *g) {
    for (size_t i = 0; i < NUM_CLASSES; i++) {
        load_image(n, g->shown[i], 0, g->shown[i] - data->num_train + 1);
        forward(n, 1, 0);
        must(amp_cast(g->noisy[i], AMP_F32, n->input, n->type, data->pixels));
        memcpy(g->result[n->type][i], n->out, data->pixels * sizeof(float));
    }
}

/* ---------------------------------------------------------------------------------- runs, main */

static void enlarge(options *o) { o->width = o->batch = 32; }

#include "../support/train_runs.h" /* all types in turns; --check */

static void train(report *r, const dataset *data, net nets[3]) {
    const int task = r->o.task;
    gallery   g;
    report_images(r, data, task);
    gallery_init(&g, data);
    for (int seed = 0; seed < r->o.seeds; seed++) {
        train_seed(r, data, seed, nets);
        for (int v = 0; v < 3; v++) {
            if (!type_on(&r->o, v)) continue;
            if (task == UNET && seed == 0) denoise(&nets[v], data, &g);
            net_free(&nets[v]);
        }
    }
    print_results(r);
    if (task == UNET) draw_gallery(&r->o, data, &g);
    gallery_free(&g);
}

int main(int argc, char **argv) {
    static report  r[NUM_TASKS];
    static dataset data;
    static net     nets[3];
    const options  o = parse_options(argc, argv);
    int            failures = 0;
    load_images(&data, &o);
    for (int task = 0; task < NUM_TASKS; task++) {
        r[task].o = options_of(&o, task, &data);
        if (task_on(&o, task) && o.check)
            failures += check_network(&r[task].o, &data, task_names[task],
                                      (bounds){3e-4f, 6e-2, 2.0 / 45.25, 2.0 / 16.0});
        else if (task_on(&o, task)) try_all(&r[task].o, &data, subjects[task].picture);
    }
    if (o.check) return finish(failures);
    for (int task = 0; task < NUM_TASKS; task++)
        if (task_on(&o, task)) train(&r[task], &data, nets);
    for (int task = 0; task < NUM_TASKS; task++) {
        if (!task_on(&o, task)) continue;
        print_last_lines(&r[task]);
        report_free(&r[task]);
    }
    free(data.image);
    free(data.label);
    return finish(0);
}
