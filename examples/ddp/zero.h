/* zero.h - masters and moments in slices over ranks (ZeRO stage 1, Rajbhandari et al. 2020)

   Each rank has the whole model, and one part in N of masters, moments and gradient sums: with
   AdamW 2 + 16 / N bytes a parameter. A slice is a tensor of this rank's amp_optimizer, and ranks
   decide together in its reduce_fn: all is made of amp.h's public API. No network: the program
   brings functions (zero_ranks), as ddp_mpi.c and ddp_nccl.cu do. C99, and C++11.

   A run has the same bits on any number of ranks, since what is added, and in which order, follows
   from numbers that no rank decides:
     gradients  of M micro-batches are added in fp32, as a binary tree over 0 to M - 1. A rank has
                some in a row, in blocks of B: the largest power of two for which N B divides M (one
                rank: all). It adds those of a block and sends the sum, or if B is 1 the gradient as
                it is. Owners of slices add the blocks
     the norm   of sums of squares of chunks of 16384 elements, in the order of amp.h
   Data and dropout of a micro-batch must follow from its number alone.

   LOOP  zero_init, zero_add (each tensor), zero_prepare; then
           for m = z.first to z.first + z.each - 1:
             forward(zero_model(&z, i)); backward(loss * amp_optimizer_loss_scale(&z.opt) / M):
               for each tensor, the last one first: zero_wait(&z, i); write its gradient;
                 zero_gradient(&z, i, grad)
           zero_step(&z, lr)                 on all ranks, also with z.each 0
         zero_save, zero_load: on all ranks. After an error of any call zero_problem(&z) says more.

   LIMITS  All tensors learn, by a fused kind; none is own, or has rows; no scaler is shared. The
   tree of an M that is no power of two lacks branches: its sums are not those of another M. On
   another number of ranks than saved a checkpoint masters, moments, scaler, steps and skipped go
   on; other counters of amp_status, and reports, begin anew. A file of amp_optimizer_save_file is
   loaded by one rank, which sends masters (zero_add) and moments (set_steps and set_moments of
   z.opt). An error of the network or a backend, or no memory, ends the run.                     */

#ifndef ZERO_H
#define ZERO_H

#include "amp.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct zero_span { char *at; size_t bytes; } zero_span;

/* What the program brings. All ranks make the same calls in one order. reduce: as desc.reduce_fn,
   but num may be 0. exchange: of tensor i, its gradient or (model) its model; spans are of each
   rank, valid during the call. It may go on behind the call, until wait. Memory is host memory; or
   with desc.backend its own: then work is queued behind the backend's, and of the last five
   functions none is NULL. join: x, plus the sums that lie stride, 2 stride ... joins * stride
   elements below top, in this order, replaces the last of them; or top. */
typedef struct zero_ranks {
    int   rank, count;
    void *user;
    amp_result (*reduce)(void *user, double *sums, size_t num_sums, uint32_t *maxima, size_t num);
    amp_result (*exchange)(void *user, int i, int model, const zero_span *to,
                           const zero_span *from);
    amp_result (*wait)(void *user, int i);           /* NULL: nothing is open   */
    void *(*allocate)(void *user, size_t num_bytes); /* zeroed; NULL: none left */
    void (*release)(void *user, void *memory);
    amp_result (*copy)(void *user, void *to, const void *from, size_t num_bytes);
    amp_result (*join)(void *user, float *top, size_t stride, int joins, const void *x,
                       amp_dtype type, size_t n);
    amp_result (*total)(void *user, double *sum, const double *squares, size_t count);
} zero_ranks;

typedef struct zero_tensor {
    amp_tensor  like;        /* as it was added: what the slices have in common               */
    size_t      first, own;  /* this rank's slice                                             */
    size_t      chunk;       /* number of its first chunk among those of all tensors          */
    size_t      wide, sent_size; /* bytes of an element: of the model, and as it is sent      */
    int         at;          /* number of the slice in opt, if it is not empty                */
    int         given, sent, waits; /* micro-batches; blocks; is anything open?               */
    char       *model, *got; /* all of it; what the ranks sent of this slice                  */
    float      *master, *grad, *nodes;
    const void *leaf;        /* the last gradient                                             */
} zero_tensor;

typedef struct zero {
    zero_ranks         ranks;
    amp_optimizer_desc desc;
    amp_optimizer      opt;
    int                micro, block, blocks; /* M, B, M / B                                   */
    int                first, each, num;     /* this rank's micro-batches; tensors            */
    size_t             chunks, used;         /* used: bytes of memory                         */
    zero_tensor       *tensors;
    zero_span         *spans;
    double            *squares;              /* of each chunk; 0 where another rank has it    */
    float             *stack;                /* sums of blocks that wait, if more than one do */
    void              *memory;               /* all these arrays                              */
    char               problem[200];         /* of an error of zero.h's own; "": amp_problem  */
} zero;

enum { ZERO_CHUNK = 16384, ZERO_PATH = 4096 };

/* What was wrong in this rank's last call that returned an error. */
static inline const char *zero_problem(const zero *z) {
    return z->problem[0] ? z->problem : amp_problem();
}

static inline amp_result zero_refuse(zero *z, amp_result result, const char *text) {
    snprintf(z->problem, sizeof z->problem, "%s", text);
    return result;
}

#define ZERO_TRY(call) do { const amp_result zero_e = (call); if (zero_e) return zero_e; } while (0)

static inline amp_result zero_copy(zero *z, void *to, const void *from, size_t num_bytes) {
    if (num_bytes && z->ranks.copy) return z->ranks.copy(z->ranks.user, to, from, num_bytes);
    if (num_bytes) memcpy(to, from, num_bytes);
    return AMP_OK;
}

/* Adds leaf m of count to a binary tree whose sums wait one stride apart from base on. As in
   counting, each 1 at the end of m is a sum that joins it; at the last leaf all do. */
static inline amp_result zero_join(zero *z, float *base, size_t stride, int m, int count,
                                   const void *x, amp_dtype type, size_t n) {
    float sum[1024], *top = base;
    int   joins = 0;
    for (int k = m; k; k >>= 1) top += k & 1 ? stride : 0;
    for (int k = m; k & 1 || (k && m + 1 == count); k >>= 1) joins += k & 1;
    if (z->ranks.join) return z->ranks.join(z->ranks.user, top, stride, joins, x, type, n);
    for (size_t i = 0, some; i < n; i += some) {
        float *below = top + i;
        some = n - i < 1024 ? n - i : 1024;
        ZERO_TRY(amp_cast(sum, AMP_F32, (const char *)x + i * amp_dtype_size(type), type, some));
        for (int j = 0; j < joins; j++) {
            below -= stride;
            for (size_t k = 0; k < some; k++) sum[k] += below[k];
        }
        memcpy(below, sum, some * sizeof *sum);
    }
    return AMP_OK;
}

/* Number c joins lane c mod 256; lanes are added in pairs: the order of amp_optimizer_chunk_sums,
   so that one rank has the norm of an optimizer without ranks. */
static inline amp_result zero_total(zero *z, double *sum) {
    double lanes[256] = {0.0};
    if (z->ranks.total) return z->ranks.total(z->ranks.user, sum, z->squares, z->chunks);
    for (size_t c = 0; c < z->chunks; c++) lanes[c % 256] += z->squares[c];
    for (size_t pair = 128; pair; pair /= 2)
        for (size_t l = 0; l < pair; l++) lanes[l] += lanes[l + pair];
    *sum = lanes[0];
    return AMP_OK;
}

static inline void zero_free(zero *z) {
    amp_optimizer_free(&z->opt);
    if (z->ranks.release && z->memory) z->ranks.release(z->ranks.user, z->memory);
    else free(z->memory);
    free(z->tensors), free(z->spans), memset(z, 0, sizeof *z);
}

static inline int zero_first_block(const zero *z, int rank) {
    return (int)((int64_t)z->blocks * rank / z->ranks.count);
}

/* zero_free is safe after an error. */
static inline amp_result zero_init(zero *z, const amp_optimizer_desc *desc,
                                   const zero_ranks *ranks, int micro) {
    memset(z, 0, sizeof *z);
    z->desc = *desc, z->ranks = *ranks, z->micro = micro;
    if (desc->kind == AMP_KIND_OWN || desc->shared_scaler || desc->reduce_fn || micro < 1)
        return zero_refuse(z, AMP_ERROR_UNSUPPORTED, "desc.kind is AMP_KIND_OWN, desc.shared_scaler or "
                                                     "reduce_fn is set, or micro is below 1");
    for (z->block = 1; micro % (2 * z->block * ranks->count) == 0;) z->block *= 2;
    if (ranks->count == 1) z->block = micro;
    z->blocks = micro / z->block;
    z->first  = z->block * zero_first_block(z, ranks->rank);
    z->each   = z->block * zero_first_block(z, ranks->rank + 1) - z->first;
    z->spans  = (zero_span *)calloc(2 * (size_t)ranks->count, sizeof *z->spans);
    return z->spans ? AMP_OK : zero_refuse(z, AMP_ERROR_OUT_OF_MEMORY, "no memory for tables");
}

/* Of so many chunks that ranks are dealt in turn, those of all ranks below this one. */
static inline size_t zero_dealt(size_t chunks, size_t rank, size_t count) {
    const size_t rest = chunks % count;
    return chunks / count * rank + (rest < rank ? rest : rank);
}

/* Element where a rank's slice of a tensor begins; the next one's is its end. A slice is as many
   chunks in a row as the rank is dealt, so that ranks have equal parts of tensors in a row. */
static inline size_t zero_begin(const zero_tensor *t, int rank, int count) {
    const size_t r = (size_t)rank, all = (size_t)count;
    const size_t end = t->chunk + (t->like.n + ZERO_CHUNK - 1) / ZERO_CHUNK;
    const size_t at = (zero_dealt(end, r, all) - zero_dealt(t->chunk, r, all)) * ZERO_CHUNK;
    return at < t->like.n ? at : t->like.n;
}

/* weight is read in zero_prepare alone; name and storage must live as long as z. lr_scale,
   weight_decay, keep_fp32 and grad_type, that of the gradients, are used, too. */
static inline amp_result zero_add(zero *z, const amp_tensor *tensor) {
    zero_tensor *t = (zero_tensor *)realloc(z->tensors, ((size_t)z->num + 1) * sizeof *t);
    if (!t) return zero_refuse(z, AMP_ERROR_OUT_OF_MEMORY, "no memory for tables");
    z->tensors = t;
    t = (zero_tensor *)memset(t + z->num++, 0, sizeof *t);
    t->like = *tensor, t->chunk = z->chunks;
    t->wide      = tensor->keep_fp32 || z->desc.dtype == AMP_F32 ? 4 : 2;
    t->sent_size = z->block > 1 ? 4 : amp_dtype_size(tensor->grad_type);
    t->first     = zero_begin(t, z->ranks.rank, z->ranks.count);
    t->own       = zero_begin(t, z->ranks.rank + 1, z->ranks.count) - t->first;
    z->chunks += (tensor->n + ZERO_CHUNK - 1) / ZERO_CHUNK;
    if (!tensor->rows && !tensor->own && !tensor->frozen) return AMP_OK;
    return zero_refuse(z, AMP_ERROR_UNSUPPORTED, "a tensor has rows, or is own or frozen");
}

static inline void *zero_take(zero *z, size_t num_bytes) {
    void *here = z->memory ? (char *)z->memory + z->used : NULL;
    z->used += (num_bytes + 255) / 256 * 256;
    return here;
}

/* Gives all arrays their places in z->memory; or counts its bytes, before there is any. */
static inline void zero_layout(zero *z) {
    size_t most = 0, depth = 0, waiting = 0; /* sums at most of a rank's own tree; of the blocks' */
    while ((z->block - 1) >> depth) depth++;
    while ((z->blocks - 1) >> waiting) waiting++;
    z->used = 0;
    z->squares = (double *)zero_take(z, (2 * z->chunks + 2) * 8); /* and as many zeros */
    for (int i = 0; i < z->num; i++) {
        zero_tensor *t = &z->tensors[i];
        const size_t got = z->ranks.count > 1 ? (size_t)z->blocks * t->own * t->sent_size : 0;
        t->model = (char *)zero_take(z, t->like.n * t->wide);
        t->grad  = (float *)zero_take(z, t->own * 4);
        if (t->wide == 2) t->master = (float *)zero_take(z, t->own * 4);
        else if (t->model) t->master = (float *)(void *)t->model + t->first;
        t->nodes = (float *)zero_take(z, depth * t->like.n * 4);
        t->got   = (char *)zero_take(z, got);
        if (most < t->own) most = t->own;
    }
    z->stack = (float *)zero_take(z, waiting > 1 ? waiting * most * 4 : 0);
}

/* Makes an optimizer of a rank's slices: this one's; or on the CPU that of a rank that saved a
   file, with masters in pool, in fp32. */
static inline amp_result zero_build(zero *z, amp_optimizer *opt, const amp_optimizer_desc *desc,
                                    int rank, int count, float *pool) {
    amp_storage fp32;
    int         num = 0;
    ZERO_TRY(amp_optimizer_init(opt, desc));
    for (int i = 0; i < z->num; i++) {
        zero_tensor *t = &z->tensors[i];
        amp_tensor   s = t->like;
        s.key = (uint64_t)i + 1, s.first = zero_begin(t, rank, count);
        s.n   = zero_begin(t, rank + 1, count) - (size_t)s.first;
        s.grad = NULL, s.grad_type = AMP_F32, s.model = NULL, s.model_type = z->desc.dtype;
        if (!s.n) continue;
        if (pool) {
            s.weight = pool;
            pool += s.n;
            if (s.storage) fp32 = *s.storage, fp32.master = AMP_FORMAT_F32, s.storage = &fp32;
        } else {
            t->at = num++;
            s.weight = t->master, s.grad = t->grad;
            if (t->wide == 2) s.model = t->model + 2 * t->first;
        }
        ZERO_TRY(amp_optimizer_add(opt, &s));
    }
    return amp_optimizer_prepare(opt);
}

/* desc.reduce_fn. Each chunk's sum is 0 on all ranks but one, so that adding them over ranks is
   exact in any order. amp.h's own sum, over this rank alone, is replaced. */
static inline amp_result zero_reduce(void *user, double *sums, size_t num_sums, uint32_t *maxima,
                                     size_t num_maxima) {
    zero         *z = (zero *)user;
    size_t        num;
    const double *mine = amp_optimizer_chunk_sums(&z->opt, &num);
    (void)num_sums; /* 1 */
    ZERO_TRY(zero_copy(z, z->squares, z->squares + z->chunks + 2, z->chunks * sizeof *mine));
    for (int i = 0; i < z->num && num; i++) {
        const zero_tensor *t = &z->tensors[i];
        const size_t       n = (t->own + ZERO_CHUNK - 1) / ZERO_CHUNK;
        double            *there = z->squares + t->chunk + t->first / ZERO_CHUNK;
        ZERO_TRY(zero_copy(z, there, mine, n * sizeof *mine));
        mine += n;
    }
    ZERO_TRY(z->ranks.reduce(z->ranks.user, z->squares, z->chunks, maxima, num_maxima));
    return zero_total(z, sums);
}

/* Has any rank failed (result)? Then all have. Adds *sum over ranks. Keeps errno. */
static inline amp_result zero_agree(zero *z, amp_result result, double *sum) {
    const int  error = errno;
    double     all[2] = {result != AMP_OK ? 1.0 : 0.0, sum ? *sum : 0};
    amp_result met = zero_copy(z, z->squares, all, sizeof all);
    if (met == AMP_OK) met = z->ranks.reduce(z->ranks.user, z->squares, 2, NULL, 0);
    if (met == AMP_OK) met = zero_copy(z, all, z->squares, sizeof all);
    if (sum) *sum = all[1];
    errno = error;
    if (result != AMP_OK || met != AMP_OK) return result != AMP_OK ? result : met;
    if (!(all[0] > 0)) return AMP_OK;
    return zero_refuse(z, AMP_ERROR_MISMATCH, "another rank has failed: its own result says why");
}

/* Of what must be the same on all ranks; 32 bits, which ranks add exactly. */
static inline double zero_hash(const zero *z) {
#define ADD(x) (y = (double)(x), memcpy(&u, &y, 8), h = (h ^ u) * 0x9e3779b97f4a7c15u, h ^= h >> 32)
    const amp_optimizer_desc *d = &z->desc;
    const amp_scaler_desc    *s = &d->scaler;
    uint64_t                  h = 0, u;
    double                    y;
    ADD(z->micro), ADD(d->dtype), ADD(d->kind), ADD(d->beta1), ADD(d->beta2), ADD(d->eps);
    ADD(d->momentum), ADD(d->nesterov), ADD(d->weight_decay), ADD(d->max_norm), ADD(d->seed);
    ADD(s->preset), ADD(s->init_scale), ADD(s->growth_factor), ADD(s->backoff_factor);
    ADD(s->growth_interval), ADD(s->hysteresis), ADD(s->min_scale), ADD(s->max_scale);
    for (int i = -1; i < z->num; i++) {
        const amp_tensor  *t = i < 0 ? NULL : &z->tensors[i].like;
        const amp_storage *kept = t ? t->storage : d->storage;
        if (kept) ADD(kept->master), ADD(kept->moments);
        for (const char *p = t ? t->name : NULL; p && *p; p++) ADD(*p);
        if (t) ADD(t->n), ADD(t->grad_type), ADD(t->lr_scale), ADD(t->weight_decay);
        ADD(t ? t->keep_fp32 : s->disabled);
    }
    return (double)(h >> 32);
#undef ADD
}

/* A rank's next block goes to the owners, if it has one; or (model) an owner's slice to all. */
static inline amp_result zero_exchange(zero *z, int i, int model) {
    zero_tensor *t = &z->tensors[i];
    zero_span   *to = z->spans, *from = to + z->ranks.count;
    const size_t size = model ? t->wide : t->sent_size, all = t->own * size;
    const int    turn = model ? 0 : t->sent++, gives = turn * z->block < z->each;
    char        *mine = z->block > 1 ? (char *)t->nodes : (char *)(uintptr_t)t->leaf;
    for (int r = 0; r < z->ranks.count; r++) {
        const size_t at = zero_begin(t, r, z->ranks.count), other = r != z->ranks.rank;
        const size_t part = (zero_begin(t, r + 1, z->ranks.count) - at) * size;
        const int    number = zero_first_block(z, r) + turn;
        const int    comes = number < zero_first_block(z, r + 1);
        to[r].at      = model ? t->model + t->first * size : gives ? mine + at * size : NULL;
        to[r].bytes   = model ? all * other : gives ? part : 0;
        from[r].at    = model ? t->model + at * size : comes ? t->got + (size_t)number * all : NULL;
        from[r].bytes = model ? part * other : comes ? all : 0;
    }
    t->waits = 1;
    return z->ranks.count > 1 ? z->ranks.exchange(z->ranks.user, i, model, to, from) : AMP_OK;
}

static inline amp_result zero_gather(zero *z) { /* after set-up, a step or a load */
    for (int i = 0; i < z->num; i++) ZERO_TRY(zero_exchange(z, i, 1));
    return AMP_OK;
}

/* AMP_ERROR_MISMATCH: tensors, desc or numbers of micro-batches differ, or another rank failed. */
static inline amp_result zero_prepare(zero *z) {
    const double       hash = zero_hash(z);
    double             sum = hash;
    amp_optimizer_desc desc = z->desc;
    amp_result         result;
    z->problem[0] = '\0';
    desc.reduce_fn = zero_reduce, desc.reduce_user = z;
    zero_layout(z);
    z->memory = z->ranks.allocate ? z->ranks.allocate(z->ranks.user, z->used) : calloc(1, z->used);
    if (!z->memory) return zero_refuse(z, AMP_ERROR_OUT_OF_MEMORY, "no memory for its arrays");
    zero_layout(z);
    for (int i = 0; i < z->num; i++) {
        zero_tensor *t = &z->tensors[i];
        ZERO_TRY(zero_copy(z, t->master, t->like.weight + t->first, t->own * 4));
    }
    result = zero_build(z, &z->opt, &desc, z->ranks.rank, z->ranks.count, NULL);
    ZERO_TRY(zero_agree(z, result, &sum));
    if (sum >= hash * z->ranks.count && sum <= hash * z->ranks.count) return zero_gather(z);
    return zero_refuse(z, AMP_ERROR_MISMATCH,
                       "ranks differ in their tensors, desc or number of micro-batches");
}

/* Until what is open of a tensor, its model or an exchange, has come. */
static inline amp_result zero_wait(zero *z, int i) {
    const int open = z->tensors[i].waits && z->ranks.wait;
    z->tensors[i].waits = 0;
    return open ? z->ranks.wait(z->ranks.user, i) : AMP_OK;
}

/* What forward and backward read: all of a model, fp32 if keep_fp32 is set or dtype is AMP_F32.
   NULL: the network has failed. */
static inline const void *zero_model(zero *z, int i) {
    return zero_wait(z, i) == AMP_OK ? z->tensors[i].model : NULL;
}

/* The scaled gradient of the next micro-batch, all of it. It must stay as it is until zero_wait, or
   zero_step: while backward goes on, it may be on its way. */
static inline amp_result zero_gradient(zero *z, int i, const void *grad) {
    zero_tensor *t = &z->tensors[i];
    const size_t n = t->like.n;
    const int    m = t->given % z->block;
    if (t->given == z->each)
        return zero_refuse(z, AMP_ERROR_BAD_STATE, "a gradient of each micro-batch has been given");
    t->leaf = grad;
    t->given++;
    if (m == 0) ZERO_TRY(zero_wait(z, i)); /* the block before */
    if (z->block > 1)
        ZERO_TRY(zero_join(z, t->nodes, n, m, z->block, grad, t->like.grad_type, n));
    return m + 1 == z->block ? zero_exchange(z, i, 0) : AMP_OK;
}

/* Adds the blocks of a slice. */
static inline amp_result zero_add_blocks(zero *z, zero_tensor *t) {
    const amp_dtype type = z->block > 1 ? AMP_F32 : t->like.grad_type;
    const char     *all = z->block > 1 ? (const char *)t->nodes : (const char *)t->leaf;
    float          *sum = z->blocks > 2 ? z->stack : t->grad;
    if (z->ranks.count > 1) all = t->got;
    for (int b = 0; b < z->blocks; b++, all += t->own * t->sent_size)
        ZERO_TRY(zero_join(z, sum, t->own, b, z->blocks, all, type, t->own));
    return sum == t->grad ? AMP_OK : zero_copy(z, t->grad, sum, t->own * sizeof *sum);
}

/* Where a rank's step is refused (lr), all others skip theirs, and it returns why. */
static inline amp_result zero_step(zero *z, float lr) {
    const int  turns = (z->blocks - 1) / z->ranks.count + 1;
    amp_result result;
    z->problem[0] = '\0';
    for (int i = z->num - 1; i >= 0; i--) {
        if (z->tensors[i].given != z->each)
            return zero_refuse(z, AMP_ERROR_BAD_STATE, "a gradient is missing: call zero_gradient");
        if (z->tensors[i].sent < turns) ZERO_TRY(zero_exchange(z, i, 0));
    }
    for (int i = 0; i < z->num; i++) {
        ZERO_TRY(zero_wait(z, i));
        ZERO_TRY(zero_add_blocks(z, &z->tensors[i]));
        z->tensors[i].given = z->tensors[i].sent = 0;
    }
    result = amp_optimizer_step(&z->opt, lr);
    ZERO_TRY(zero_gather(z));
    return result;
}

/* ------------------------------------------------------------------------------ checkpoints
   path.a.R-of-N or path.b.R-of-N of each rank, and path, the index, which says which. It is a state
   file of one frozen tensor, so it changes as a whole, and a change of it is seen. A save writes
   the files that the index does not name, then the index: whatever fails, path names the old
   checkpoint or the new one, whole. All ranks see one directory. */

typedef struct zero_index { float letter, count, sum[4]; } zero_index; /* sum: of its files */

static inline amp_result zero_index_file(const char *path, zero_index *x, int save) {
    amp_optimizer      o;
    amp_optimizer_desc desc;
    amp_tensor         t;
    amp_result         result;
    memset(&desc, 0, sizeof desc), memset(&t, 0, sizeof t);
    t.name = "zero.h: index", t.n = sizeof *x / sizeof(float), t.weight = &x->letter;
    t.frozen = 1;
    amp_optimizer_init(&o, &desc), amp_optimizer_add(&o, &t);
    result = amp_optimizer_prepare(&o);
    if (result == AMP_OK)
        result = save ? amp_optimizer_save_file(&o, path) : amp_optimizer_load_file(&o, path);
    amp_optimizer_free(&o);
    return result;
}

static inline void zero_name(char *name, const char *path, const zero_index *x, int rank) {
    sprintf(name, "%.4000s.%c.%d-of-%d", path, x->letter > 0 ? 'b' : 'a', rank, (int)x->count);
}

/* A hash of the last eight bytes of all files: each is a sum of the others of its file. */
static inline amp_result zero_sum_files(zero *z, const char *path, zero_index *x) {
    uint64_t h = 0;
    for (int r = 0; r < (int)x->count; r++) {
        char          name[ZERO_PATH];
        unsigned char b[8];
        FILE         *f = (zero_name(name, path, x, r), fopen(name, "rb"));
        const int     ok = f && !fseek(f, -8, SEEK_END) && fread(b, 1, 8, f) == 8;
        if (f) fclose(f);
        if (!ok) {
            snprintf(z->problem, sizeof z->problem, "file %.150s cannot be read", name);
            return AMP_ERROR_NOT_FOUND;
        }
        for (int k = 0; k < 8; k++) h = (h ^ b[k]) * 0x9e3779b97f4a7c15u, h ^= h >> 32;
    }
    for (int k = 0; k < 4; k++) x->sum[k] = (float)(h >> 16 * k & 0xffff);
    return AMP_OK;
}

static inline amp_result zero_save(zero *z, const char *path) {
    char       name[ZERO_PATH];
    zero_index old = {1, 0, {0, 0, 0, 0}}, x = old;
    double     letter = 0;
    amp_result result = AMP_OK;
    z->problem[0] = '\0';
    if (z->ranks.rank == 0) {
        result = zero_index_file(path, &old, 0);
        if (result == AMP_ERROR_NOT_FOUND) result = AMP_OK; /* else path is another file: keep it */
        letter = 1 - old.letter;
    }
    ZERO_TRY(zero_agree(z, result, &letter));
    x.letter = (float)letter, x.count = (float)z->ranks.count;
    zero_name(name, path, &x, z->ranks.rank);
    ZERO_TRY(zero_agree(z, amp_optimizer_save_file(&z->opt, name), NULL));
    if (z->ranks.rank == 0) {
        result = zero_sum_files(z, path, &x);
        if (result == AMP_OK) result = zero_index_file(path, &x, 1);
        for (int r = 0; result == AMP_OK && r < (int)old.count; r++)
            zero_name(name, path, &old, r), remove(name);
    }
    return zero_agree(z, result, NULL);
}

/* Takes from an optimizer of another rank's slices what this rank now has. room: four moments. */
static inline amp_result zero_overlap(zero *z, amp_optimizer *o, int rank, int count, float *room) {
    const int two = z->desc.kind == AMP_KIND_ADAMW;
    const int one = two || z->desc.kind == AMP_KIND_LION || z->desc.momentum > 0;
    for (int i = 0, num = 0; i < z->num; i++) {
        zero_tensor *t = &z->tensors[i];
        const size_t first = zero_begin(t, rank, count), end = zero_begin(t, rank + 1, count);
        const size_t from = first > t->first ? first : t->first;
        const size_t to = end < t->first + t->own ? end : t->first + t->own;
        float       *a = room, *b = a + t->own, *x = b + t->own, *y = x + (end - first);
        num += first < end;
        if (from >= to) continue;
        ZERO_TRY(zero_copy(z, t->master + (from - t->first),
                           amp_optimizer_master(o, num - 1) + (from - first), (to - from) * 4));
        if (!one) continue;
        ZERO_TRY(amp_optimizer_moments(o, num - 1, x, two ? y : NULL));
        ZERO_TRY(amp_optimizer_moments(&z->opt, t->at, a, two ? b : NULL));
        memcpy(a + (from - t->first), x + (from - first), (to - from) * 4);
        if (two) memcpy(b + (from - t->first), y + (from - first), (to - from) * 4);
        ZERO_TRY(amp_optimizer_set_moments(&z->opt, t->at, a, two ? b : NULL));
    }
    return AMP_OK;
}

/* A checkpoint of another number of ranks: each rank reads the slices of all, and takes what it
   needs. Masters that are not fp32 take theirs as new weights. */
static inline amp_result zero_load_others(zero *z, const char *path, const zero_index *x) {
    const int          count = (int)x->count;
    amp_storage        fp32 = {AMP_FORMAT_F32, AMP_FORMAT_F32};
    amp_optimizer_desc desc = z->desc;
    amp_scaler         scaler;
    size_t             most = 1, own = 0;
    float             *pool; /* masters, and room for moments */
    amp_result         result;
    for (int i = 0; i < z->num; own += z->tensors[i++].own)
        most += z->tensors[i].like.n / (size_t)count + ZERO_CHUNK;
    if (desc.storage) fp32.moments = desc.storage->moments;
    desc.backend = NULL, desc.report = NULL, desc.storage = &fp32;
    pool   = (float *)calloc(3 * most + 2 * own, sizeof *pool);
    result = pool ? AMP_OK : zero_refuse(z, AMP_ERROR_OUT_OF_MEMORY, "no memory to read the files");
    for (int r = 0; r < count && result == AMP_OK; r++) {
        char          name[ZERO_PATH];
        amp_optimizer o;
        amp_status    s;
        zero_name(name, path, x, r);
        result = zero_build(z, &o, &desc, r, count, pool);
        if (result == AMP_OK) result = amp_optimizer_load_file(&o, name);
        if (result == AMP_OK) result = amp_optimizer_status(&o, &s);
        if (result == AMP_OK && r == 0)
            result = amp_optimizer_set_steps(&z->opt, s.steps, s.skipped);
        if (result == AMP_OK) result = zero_overlap(z, &o, r, count, pool + most);
        if (result == AMP_OK) scaler = *amp_optimizer_scaler(&o);
        amp_optimizer_free(&o);
    }
    free(pool);
    ZERO_TRY(result);
    for (int i = 0; i < z->num; i++)
        if (z->tensors[i].own)
            ZERO_TRY(amp_optimizer_rebind(&z->opt, z->tensors[i].at, z->tensors[i].master, NULL));
    ZERO_TRY(amp_optimizer_refresh(&z->opt));
    return zero_copy(z, amp_optimizer_scaler(&z->opt), &scaler, sizeof scaler);
}

/* Loads what any number of ranks has saved. After an error load again, before you go on. */
static inline amp_result zero_load(zero *z, const char *path) {
    char       name[ZERO_PATH];
    zero_index x = {0, 0, {0, 0, 0, 0}}, y;
    amp_result result = zero_index_file(path, &x, 0);
    z->problem[0] = '\0';
    y = x;
    if (result == AMP_OK) result = zero_sum_files(z, path, &y);
    if (result == AMP_OK && memcmp(&x, &y, sizeof x) != 0)
        result = zero_refuse(z, AMP_ERROR_MISMATCH, "its files are of another checkpoint");
    if (result == AMP_OK && (int)x.count == z->ranks.count) {
        zero_name(name, path, &x, z->ranks.rank);
        result = amp_optimizer_load_file(&z->opt, name);
    } else if (result == AMP_OK) result = zero_load_others(z, path, &x);
    ZERO_TRY(zero_agree(z, result, NULL));
    return zero_gather(z);
}

#endif /* ZERO_H */
