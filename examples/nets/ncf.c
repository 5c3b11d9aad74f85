/* ncf.c - a recommender learns who likes what, in fp32, fp16 and bf16, with amp.h

   Neural collaborative filtering (NeuMF; He et al., 2017; MLPerf's recommender): each user and each
   item has a row in two of four tables. One pair of rows is multiplied, the other goes through three
   layers; one more layer makes the logit that this user has met this item. A step touches few rows,
   so the gradients of the tables are sparse: one row for each interaction of the batch, and its row
   index (amp_tensor.rows). amp.h adds rows of the same index and steps these rows alone. Tables,
   weights, activations and their gradients are stored in half, products are summed in fp32
   (amp_gemm), sigmoid and cross-entropy are fp32.

   READ  from top to bottom: the network, forward, loss, backward, the step; then held-out
   interactions, tables beside dense ones, main. Sparse gradients are in add_table and backward,
   mixed precision in choose_types (what the policy says of the products), setup_optimizer,
   loss_scale and amp_optimizer_step. ncf_data.h has what is learned and how it
   is judged, ncf_report.h options, train_runs.h the loop over seeds, types and steps, and --check;
   train_half.h memory, the policy's answers, rows of halves, the schedule. The other train_*.h say in
   their first line what they have.

   RUN   cc -O3 -march=native -I. examples/nets/ncf.c -o ncf -lm && ./ncf      in the directory of amp.h

   In under two minutes it prints a table with its reading, writes a picture into build/, and ends
   with three lines: parity with fp32, speed, memory. See also --help.

   COLUMNS  hit rate at 10: share of the users whose held-out interaction is among the first 10 of
   100; the 99 others are items that the user has not met. interactions/s: with those sampled, from
   the processor time of whole steps, medians, the types in turns. bytes/param: weights, copies,
   gradients, moments. activations: what forward keeps for backward. total: these, and what all
   steps share: gradients of activations, workspace. */

#define _POSIX_C_SOURCE 200809L /* isatty, mkdir */
#define PROGRAM "ncf"

#include "../support/train_count.h" /* amp.h, with a malloc that counts */
#include "ncf_report.h" /* options, interactions, report */
#include "../support/train_lines.h" /* --report */

typedef interactions corpus;

/* ------------------------------------------------------------------------------------- network
   Activations are matrices with a row for each interaction of the batch.                         */

/* The tensors: tables of users and items, twice; a weight and a bias of each layer; and the last
   layer, whose weight is in two parts: of what was multiplied, and of what went through layers. */
enum { FACTOR_USER, FACTOR_ITEM, LAYER_USER, LAYER_ITEM, NUM_TABLES };
enum { LAYERS = 3, FIRST_LAYER = NUM_TABLES, PREDICT_FACTOR = FIRST_LAYER + 2 * LAYERS,
       PREDICT_LAYER, PREDICT_BIAS, NUM_TENSORS };
enum { PIECE = 4096 };

typedef struct net {
    const options *o;
    const interactions *data;
    size_t        *order;                    /* in which an epoch shows the interactions         */
    uint64_t       shuffled;                 /* one more than its epoch; 0: none yet             */
    double         ndcg;                     /* of the last evaluation                           */
    int            seed, num_tensors;
    amp_dtype      type;                     /* of weights, activations, gradients               */
    amp_dtype      product[LAYERS + 1];      /* of the operands of products, as the policy says  */
    size_t         batch, rows;              /* interactions of a step; with those sampled       */
    size_t         size[NUM_TABLES];         /* of a row of a table                              */
    size_t         in[LAYERS], out[LAYERS];
    amp_tensor     tensor[NUM_TENSORS];
    amp_rows       touched[NUM_TABLES];
    char           names[NUM_TENSORS][64], run[RUN_SIZE];
    amp_optimizer  opt;
    amp_backend    backend;                  /* with a workspace for products                    */
    lines          lines;                    /* of --report                                      */
    uint32_t      *index[2];                 /* the batch: its users, its items; and how many of */
    uint32_t       count[NUM_TABLES];        /* these there are (amp_rows.rows, num_rows)        */
    float         *label;                    /* 1, or 0 of those sampled                         */
    void          *factor[2], *product_of;   /* rows of the first two tables, and their product  */
    void          *x[LAYERS + 1];            /* rows of the others, side by side; behind layers  */
    float         *logit;                    /* then its gradient                                */
    void          *low, *ones, *d[2];        /* that for products; 1 each; by activations        */
    void          *wide[2];                  /* operands that must be fp32                       */
    float         *room[3];                  /* pieces in fp32, as they are computed             */
    uint64_t       rng;
    size_t         num_params, bytes[NUM_MEMORIES];
    void          *owned[3 * NUM_TENSORS + 24];
    int            num_owned;
} net;

#include "../support/train_half.h" /* memory, the policy's answers, rows of halves, gradients, the schedule */

/* By default all products are in half; --policy "layer0=fp32" has the first layer in fp32,
   "predict=fp32" the last. */
static void choose_types(net *n) {
    static const char *const layer[LAYERS + 1] = {"layer0", "layer1", "layer2", "predict"};
    amp_autocast policy;
    policy_begin(&policy, n->o, n->type);
    for (int l = 0; l <= LAYERS; l++)
        n->product[l] = ask(&policy, n->o, n->type, layer[l], AMP_OP_LINEAR);
    policy_end(&policy, n->type, "the layers are layer0, layer1, layer2 and predict");
}

/* Describe tensor i, with its master. In --check all are random and large, or a wrong gradient of a
   bias that is 0 might not show. */
static amp_tensor *add_tensor(net *n, int i, const char *name, size_t count, float deviation) {
    amp_tensor *t = &n->tensor[i];
    sprintf(n->names[i], "%.63s", name);
    t->name      = n->names[i];
    t->n         = count;
    t->grad_type = i == PREDICT_BIAS ? AMP_F32 : n->type;
    t->keep_fp32 = i == PREDICT_BIAS; /* it is added to logits, which are fp32 */
    t->weight    = net_alloc(n, STATE, count, AMP_F32);
    if (deviation <= 0.0f) t->weight_decay = -1.0f; /* a bias: none */
    if (n->o->check) deviation = 0.3f;
    for (size_t j = 0; j < count; j++)
        t->weight[j] = 1.7320508f * deviation * random_uniform(&n->rng);
    n->num_params += count;
    return t;
}

/* A table, whose gradient is of few rows: as many as there are interactions in a batch. Which rows
   they belong to is the batch itself: amp.h does not mind that a row is there more than once. */
static void add_table(net *n, int i, const char *name, size_t num_rows) {
    amp_tensor *t = add_tensor(n, i, name, num_rows * n->size[i], 0.05f);
    n->touched[i] = (amp_rows){.row_length = n->size[i], .max_rows = n->rows,
                               .rows = n->index[i % 2], .num_rows = &n->count[i]};
    t->rows = &n->touched[i];
    t->grad = net_alloc(n, STATE, n->rows * n->size[i], n->type);
}

static void add_layer(net *n, int i, const char *name, size_t count, float deviation) {
    amp_tensor *t = add_tensor(n, i, name, count, deviation);
    t->grad = net_alloc(n, STATE, count, t->grad_type);
}

static void add_tensors(net *n, const interactions *data) {
    const size_t factors = n->size[FACTOR_USER];
    char         name[64];
    add_table(n, FACTOR_USER, "factor.user", data->num_users);
    add_table(n, FACTOR_ITEM, "factor.item", data->num_items);
    add_table(n, LAYER_USER, "layer.user", data->num_users);
    add_table(n, LAYER_ITEM, "layer.item", data->num_items);
    for (int l = 0; l < LAYERS; l++) { /* He's start */
        const int i = FIRST_LAYER + 2 * l;
        sprintf(name, "layer%d", l);
        add_layer(n, i, name, n->out[l] * n->in[l], sqrtf(2.0f / (float)n->in[l]));
        sprintf(name, "layer%d.bias", l);
        add_layer(n, i + 1, name, n->out[l], 0.0f);
    }
    add_layer(n, PREDICT_FACTOR, "predict.factor", factors, 1.0f);
    add_layer(n, PREDICT_LAYER, "predict.layer", n->out[LAYERS - 1],
              sqrtf(1.0f / (float)n->out[LAYERS - 1]));
    add_layer(n, PREDICT_BIAS, "predict.bias", 1, 0.0f);
}

static void setup_optimizer(net *n) {
    amp_optimizer_desc desc = adamw_in(n->type);
    desc.weight_decay = 0.01f; /* of layers; sparse tensors take part in none of it */
    begin_optimizer(n, &desc);
}

/* For batches, and for all candidates of at least one user. */
static void make_buffers(net *n) {
    const size_t rows = max_of(n->rows, CANDIDATES), factors = n->size[FACTOR_USER];
    /* a policy may have some products in fp32, so with one there is room for that */
    const amp_dtype any = n->o->policy ? AMP_F32 : n->type;
    const size_t    most = max_of(rows, n->in[0]), extra = n->o->policy ? rows * n->in[0] : 0;
    for (int i = 0; i < 2; i++) {
        n->index[i]  = net_alloc(n, ACTIVATIONS, rows, AMP_F32); /* as large */
        n->factor[i] = net_alloc(n, ACTIVATIONS, rows * factors, n->type);
        n->d[i]      = net_alloc(n, WORK, rows * n->in[0], n->type);
    }
    n->label      = net_alloc(n, ACTIVATIONS, rows, AMP_F32);
    n->product_of = net_alloc(n, ACTIVATIONS, rows * factors, n->type);
    for (int l = 0; l <= LAYERS; l++)
        n->x[l] = net_alloc(n, ACTIVATIONS, rows * (l ? n->out[l - 1] : n->in[0]), n->type);
    n->logit = net_alloc(n, WORK, rows, AMP_F32);
    n->low   = net_alloc(n, WORK, rows, any);
    n->ones  = net_alloc(n, WORK, rows, n->type);
    for (size_t i = 0; i < rows; i++) {
        const float one = 1.0f;
        must(amp_cast(at(n->ones, n->type, i), n->type, &one, AMP_F32, 1));
    }
    for (int i = 0; i < 2; i++) n->wide[i] = net_alloc(n, WORK, extra, AMP_F32);
    for (int i = 0; i < 3; i++) n->room[i] = net_alloc(n, WORK, PIECE, AMP_F32);
    make_workspace(n, most);
}

/* The network in a type. */
static void net_init(net *n, const options *o, const interactions *data, amp_dtype type, int seed) {
    const size_t width = (size_t)o->width;
    memset(n, 0, sizeof *n);
    n->o = o, n->data = data, n->seed = seed, n->type = type;
    n->num_tensors = NUM_TENSORS;
    n->order = n->owned[n->num_owned++] = need(data->num_train, sizeof *n->order);
    n->batch = (size_t)o->batch;
    n->rows  = n->batch * (1 + NEGATIVES);
    n->rng   = (uint64_t)seed * 1000003u + 1;
    for (int i = 0; i < NUM_TABLES; i++) n->size[i] = i < LAYER_USER ? width / 4 : width / 2;
    for (int l = 0; l < LAYERS; l++) {
        n->in[l]  = width >> (l ? l - 1 : 0);
        n->out[l] = width >> l;
    }
    choose_types(n);
    make_buffers(n);
    sprintf(n->run, "run of ncf --dtype %s --users %lu --items %lu --width %d --batch %d --steps %d "
                    "--lr %.6g --data of-checksum-%08lx;", type_names[type], (unsigned long)data->num_users,
            (unsigned long)data->num_items, o->width, o->batch, o->steps, (double)o->lr, data->checksum);
    add_tensors(n, data);
    setup_optimizer(n);
}

/* What is read in this type: the half copy, or the master. */
static const void *weight(const net *n, int i, amp_dtype type) {
    return type == AMP_F32 ? n->tensor[i].weight : amp_optimizer_model(&n->opt, i);
}

/* A product of two matrices of one type, summed in fp32. */
static void multiply(const net *n, amp_gemm_args g) {
    g.tf32 = takes_three(g.a_type);
    must(amp_gemm(&n->backend, &g));
}

/* x in the type of a product; where to put it, if the policy has that in fp32. */
static const void *operand(const net *n, const void *x, size_t count, amp_dtype product,
                           void *wide) {
    if (product == n->type) return x;
    must(amp_cast(wide, AMP_F32, x, n->type, count));
    return wide;
}

/* ------------------------------------------------------------------------------------- forward */

/* Copies rows of a table; to has rows of stride elements. */
static void gather(const net *n, int table, size_t rows, void *to, size_t stride) {
    const size_t    size = n->size[table] * amp_dtype_size(n->type);
    const char     *from = weight(n, table, n->type);
    const uint32_t *row  = n->touched[table].rows;
    for (size_t i = 0; i < rows; i++)
        memcpy(at(to, n->type, i * stride), from + row[i] * size, size);
}

static void multiply_factors(net *n, size_t rows) {
    const size_t total = rows * n->size[FACTOR_USER];
    for (size_t i = 0, now; i < total; i += now) {
        now = total - i < PIECE ? total - i : PIECE;
        const float *p = read_row(n->factor[0], n->type, i, now, n->room[0]);
        const float *q = read_row(n->factor[1], n->type, i, now, n->room[1]);
        float       *y = place_row(n->product_of, n->type, i, n->room[0]);
        for (size_t j = 0; j < now; j++) y[j] = p[j] * q[j];
        write_row(n->product_of, n->type, i, now, y);
    }
}

/* A layer with bias and ReLU, in one call. */
static void layer_forward(const net *n, int l, size_t rows) {
    const amp_dtype product = n->product[l];
    const int       w = FIRST_LAYER + 2 * l;
    multiply(n, (amp_gemm_args){
        .m = rows, .n = n->out[l], .k = n->in[l], .trans_b = 1, .activation = AMP_ACTIVATION_RELU,
        .a = operand(n, n->x[l], rows * n->in[l], product, n->wide[0]), .a_type = product,
        .b = weight(n, w, product), .b_type = product,
        .bias = weight(n, w + 1, n->type), .bias_type = n->type,
        .c = n->x[l + 1], .c_type = n->type});
}

/* Adds a part of the last layer to the logits. */
static void predict_forward(const net *n, int w, const void *x, float beta, size_t rows) {
    const amp_dtype product = n->product[LAYERS];
    const size_t    size = n->tensor[w].n;
    multiply(n, (amp_gemm_args){
        .m = rows, .n = 1, .k = size, .trans_b = 1, .beta = beta,
        .a = operand(n, x, rows * size, product, n->wide[0]), .a_type = product,
        .b = weight(n, w, product), .b_type = product, .c = n->logit});
}

/* The logits of as many pairs of users and items, in index. */
static void forward(net *n, size_t rows) {
    const size_t half = n->size[LAYER_USER], factors = n->size[FACTOR_USER];
    gather(n, FACTOR_USER, rows, n->factor[0], factors);
    gather(n, FACTOR_ITEM, rows, n->factor[1], factors);
    gather(n, LAYER_USER, rows, n->x[0], 2 * half);
    gather(n, LAYER_ITEM, rows, at(n->x[0], n->type, half), 2 * half);
    multiply_factors(n, rows);
    for (int l = 0; l < LAYERS; l++) layer_forward(n, l, rows);
    predict_forward(n, PREDICT_FACTOR, n->product_of, 0.0f, rows);
    predict_forward(n, PREDICT_LAYER, n->x[LAYERS], 1.0f, rows);
    for (size_t i = 0; i < rows; i++) n->logit[i] += n->tensor[PREDICT_BIAS].weight[0];
}

/* Binary cross-entropy of the sigmoids of logits, mean over the batch, in fp32; logit becomes its
   gradient, times the factor. e^-|z| is never an infinity. */
static double cross_entropy(net *n, float factor) {
    double loss = 0.0;
    for (size_t i = 0; i < n->rows; i++) {
        const float z = n->logit[i], y = n->label[i], e = expf(-fabsf(z));
        const float sigmoid = (z < 0.0f ? e : 1.0f) / (1.0f + e);
        loss += (double)((z < 0.0f ? 0.0f : z) - z * y + log1pf(e)) / (double)n->rows;
        n->logit[i] = (sigmoid - y) * factor / (float)n->rows;
    }
    return loss;
}

/* ------------------------------------------------------------------------------------- backward
   From the gradient of the logits, which carries the loss scale. What a product leaves is rounded
   to the type of gradients, or of activations, at once.                                          */

/* The gradient of a part of the last layer, and by what it was given. */
static void predict_back(const net *n, int w, const void *x, void *dx) {
    const amp_dtype product = n->product[LAYERS];
    const size_t    size = n->tensor[w].n;
    multiply(n, (amp_gemm_args){
        .m = 1, .n = size, .k = n->rows, .a = n->low, .a_type = product,
        .b = operand(n, x, n->rows * size, product, n->wide[0]), .b_type = product,
        .c = n->tensor[w].grad, .c_type = n->type});
    multiply(n, (amp_gemm_args){
        .m = n->rows, .n = size, .k = 1, .a = n->low, .a_type = product,
        .b = weight(n, w, product), .b_type = product, .c = dx, .c_type = n->type});
}

/* The tables' gradients: for each row of the batch, the other row times d. */
static void factors_back(net *n, const void *d) {
    const size_t total = n->rows * n->size[FACTOR_USER];
    for (size_t i = 0, now; i < total; i += now) {
        now = total - i < PIECE ? total - i : PIECE;
        const float *dy = read_row(d, n->type, i, now, n->room[0]);
        for (int side = 0; side < 2; side++) {
            void        *grad  = n->tensor[FACTOR_USER + side].grad;
            const float *other = read_row(n->factor[!side], n->type, i, now, n->room[1]);
            float       *g     = place_row(grad, n->type, i, n->room[2]);
            for (size_t j = 0; j < now; j++) g[j] = dy[j] * other[j];
            write_row(grad, n->type, i, now, g);
        }
    }
}

/* d becomes 0 where the ReLU was. */
static void relu_back(const net *n, const void *y, void *d, size_t count) {
    if (n->type == AMP_F32) {
        const float *out = y;
        float       *dy  = d;
        for (size_t i = 0; i < count; i++) dy[i] = out[i] > 0.0f ? dy[i] : 0.0f;
    } else {
        const uint16_t *out = y;
        uint16_t       *dy  = d;
        for (size_t i = 0; i < count; i++) dy[i] = out[i] ? dy[i] : 0;
    }
}

/* A layer's gradients, from d; returns d as products by the weights want it. */
static const void *layer_back(const net *n, int l, void *d) {
    const amp_dtype product = n->product[l];
    const int       w = FIRST_LAYER + 2 * l;
    const size_t    in = n->in[l], out = n->out[l];
    relu_back(n, n->x[l + 1], d, n->rows * out);
    multiply(n, (amp_gemm_args){
        .m = 1, .n = out, .k = n->rows, .a = n->ones, .a_type = n->type, .b = d,
        .b_type = n->type, .c = n->tensor[w + 1].grad, .c_type = n->type});
    const void *dy = operand(n, d, n->rows * out, product, n->wide[1]);
    multiply(n, (amp_gemm_args){
        .m = out, .n = in, .k = n->rows, .trans_a = 1, .a = dy, .a_type = product,
        .b = operand(n, n->x[l], n->rows * in, product, n->wide[0]), .b_type = product,
        .c = n->tensor[w].grad, .c_type = n->type});
    return dy;
}

/* Of the gradient by what a layer was given, count columns from first on. */
static void input_back(const net *n, int l, const void *dy, size_t first, size_t count, void *dx) {
    const amp_dtype product = n->product[l];
    const char     *w       = weight(n, FIRST_LAYER + 2 * l, product);
    multiply(n, (amp_gemm_args){
        .m = n->rows, .n = count, .k = n->out[l], .a = dy, .a_type = product,
        .b = w + first * amp_dtype_size(product), .b_type = product, .ldb = n->in[l],
        .c = dx, .c_type = n->type});
}

/* What comes out of the first layer goes straight to the tables' gradients, users left, items
   right; and then the count says that these are there. */
static void backward(net *n) {
    const size_t half = n->size[LAYER_USER];
    float        sum  = 0.0f;
    void        *d = n->d[0], *next = n->d[1];
    for (size_t i = 0; i < n->rows; i++) sum += n->logit[i];
    *(float *)n->tensor[PREDICT_BIAS].grad = sum;
    must(amp_cast(n->low, n->product[LAYERS], n->logit, AMP_F32, n->rows));
    predict_back(n, PREDICT_FACTOR, n->product_of, d);
    factors_back(n, d);
    predict_back(n, PREDICT_LAYER, n->x[LAYERS], d);
    for (int l = LAYERS - 1; l > 0; l--) {
        input_back(n, l, layer_back(n, l, d), 0, n->in[l], next);
        void *other = d;
        d    = next;
        next = other;
    }
    const void *dy = layer_back(n, 0, d);
    input_back(n, 0, dy, 0, half, n->tensor[LAYER_USER].grad);
    input_back(n, 0, dy, half, half, n->tensor[LAYER_ITEM].grad);
    for (int i = 0; i < NUM_TABLES; i++) n->count[i] = (uint32_t)n->rows;
}

/* ------------------------------------------------------------------------------------- the step */

static void shuffle_epoch(net *n, uint64_t epoch) {
    const size_t count = n->data->num_train;
    uint64_t     rng   = ((uint64_t)n->seed << 32) + epoch * 0x2545f4914f6cdd1du + 7;
    if (n->shuffled == epoch + 1) return;
    memcpy(n->order, n->data->train, count * sizeof *n->order);
    shuffle(n->order, count, &rng);
    n->shuffled = epoch + 1;
}

static void load_pair(net *n, size_t to, uint32_t user, uint32_t item, float label) {
    n->index[0][to] = user;
    n->index[1][to] = item;
    n->label[to]    = label;
}

static void load_batch(net *n, uint64_t step) {
    const interactions *d = n->data;
    const uint64_t      steps = d->num_train / n->batch; /* of an epoch */
    uint64_t            rng   = ((uint64_t)n->seed << 32) + (step + 1) * 0x9fb21c651e98df25u;
    shuffle_epoch(n, step / steps);
    for (size_t i = 0, to = 0; i < n->batch; i++) {
        const pair *p = &d->pairs[n->order[step % steps * n->batch + i]];
        load_pair(n, to++, p->user, p->item, 1.0f);
        for (int k = 0; k < NEGATIVES; k++)
            load_pair(n, to++, p->user, random_stranger(d, p->user, &rng), 0.0f);
    }
}

static double batch_loss(net *n) {
    forward(n, n->rows);
    return cross_entropy(n, loss_scale(n));
}

/* One step, taken or skipped; returns the loss of its batch. */
static double train_step(net *n) {
    const uint64_t step = status_of(&n->opt).steps;
    const double   loss = gradients(n, step);
    must(amp_optimizer_step(&n->opt, learning_rate(n->o, step))); /* check, unscale, AdamW, new
                                                 scale, new copies: of tables, rows in the batch */
    return loss;
}

/* ------------------------------------------------------------------------ held-out interactions */

/* Of all users, or of some: where among 100 candidates is the one that was held out? */
static double evaluate(net *n, int at_end) {
    const interactions *d = n->data;
    const size_t users = !at_end && d->num_held > ON_THE_WAY ? (size_t)ON_THE_WAY : d->num_held;
    const size_t at_once = max_of(n->rows / CANDIDATES, 1);
    hits         h = {0.0, 0.0};
    for (size_t u = 0, now; u < users; u += now) {
        now = users - u < at_once ? users - u : at_once;
        for (size_t i = 0; i < now * CANDIDATES; i++)
            load_pair(n, i, d->held[u + i / CANDIDATES], d->candidate[u * CANDIDATES + i], 0.0f);
        forward(n, now * CANDIDATES);
        for (size_t k = 0; k < now; k++) count_hit(&h, n->logit + k * CANDIDATES, users);
    }
    n->ndcg = h.ndcg;
    return h.rate;
}

/* --------------------------------------------------------------------- tables beside dense ones */

/* An optimizer of the tables alone, with the gradients of the last step, or with dense ones of
   nothing, which cost as much as any. */
static void tables_init(amp_optimizer *opt, const net *n, void *const dense[NUM_TABLES]) {
    amp_optimizer_desc desc = {0};
    desc.dtype = n->type;
    desc.kind  = AMP_KIND_ADAMW;
    desc.scaler.init_scale = 65536.0f; /* set, for no loss is scaled here */
    must(amp_optimizer_init(opt, &desc));
    for (int i = 0; i < NUM_TABLES; i++) {
        amp_tensor t = n->tensor[i];
        if (dense) {
            t.rows = NULL;
            t.grad = dense[i];
        }
        must(amp_optimizer_add(opt, &t));
    }
    must(amp_optimizer_prepare(opt));
}

/* Of 100 rows of the tables, how many were in the last batch? */
static double rows_touched(const net *n) {
    size_t touched = 0, all = 0;
    for (int i = FACTOR_USER; i <= FACTOR_ITEM; i++) { /* the other two have the same */
        const size_t rows = n->tensor[i].n / n->size[i];
        char        *seen = need(rows, 1);
        for (size_t k = 0; k < n->rows; k++) {
            touched += !seen[n->index[i][k]];
            seen[n->index[i][k]] = 1;
        }
        all += rows;
        free(seen);
    }
    return 100.0 * (double)touched / (double)all;
}

/* How many times as fast as a dense step of the tables is a sparse one, by medians of processor
   time, in turns? With a learning rate of 0 both compute all and move nothing. */
static double compare_tables(const net *n) {
    enum { TIMES = 101 };
    amp_optimizer opt[2];
    double        time[2][TIMES];
    void         *dense[NUM_TABLES];
    for (int i = 0; i < NUM_TABLES; i++)
        dense[i] = need(n->tensor[i].n, amp_dtype_size(n->type));
    for (int k = 0; k < 2; k++) tables_init(&opt[k], n, k ? dense : NULL);
    for (int i = 0; i < TIMES; i++) {
        for (int k = 0; k < 2; k++) {
            const double start = seconds();
            must(amp_optimizer_step(&opt[k], 0.0f));
            time[k][i] = seconds() - start;
        }
    }
    for (int k = 0; k < 2; k++) {
        amp_optimizer_free(&opt[k]);
        qsort(time[k], TIMES, sizeof(double), by_value);
    }
    for (int i = 0; i < NUM_TABLES; i++) free(dense[i]);
    return time[0][TIMES / 2] > 0.0 ? time[1][TIMES / 2] / time[0][TIMES / 2] : 0.0;
}

/* ---------------------------------------------------------------------------------- runs, main */

static void enlarge(options *o) { o->width = 256, o->batch = 64; }

#include "../support/train_runs.h" /* all types in turns; --check */

/* What a seed has come to. */
static void end_seed(const report *r, summary *s, int seed, net nets[3]) {
    for (int v = 0; v < 3; v++) {
        if (!type_on(&r->o, v)) continue;
        s->ndcg[v] += nets[v].ndcg / r->o.seeds;
        if (seed == 0) {
            load_batch(&nets[v], 0);
            s->touched  = rows_touched(&nets[v]);
            s->speed[v] = compare_tables(&nets[v]);
        }
        net_free(&nets[v]);
    }
}

int main(int argc, char **argv) {
    static report       r;
    static summary      s;
    static interactions data;
    static net          nets[3];
    r.o = parse_options(argc, argv);
    load_interactions(&data, &r.o);
    if (r.o.check)
        return finish(check_network(&r.o, &data, PROGRAM, (bounds){2e-4f, 5e-2, 2.0 / 45.25, 2.0 / 16.0}));
    try_all(&r.o, &data, PICTURE);
    report_interactions(&r, &data);
    for (int seed = 0; seed < r.o.seeds; seed++) {
        train_seed(&r, &data, seed, nets);
        end_seed(&r, &s, seed, nets);
    }
    print_results(&r);
    print_summary(&r, &s);
    print_last_lines(&r);
    report_free(&r);
    free_interactions(&data);
    return finish(0);
}
