/* test_optimizer.c - amp_optimizer on one rank, in fp32 storage: who owns which memory, a step of
   every kind bit for bit, norm and clipping, skipped steps, statistics, rebind, refresh, and
   what is refused. References stand here a second time: in floats, one rounding per operation (every
   bit must agree), and in doubles (torch's formulas). */

#define _GNU_SOURCE /* sigsetjmp in fp.h, memfd_create in huge.h */
#define AMP_KERNELS /* the core: what objects are made of */
#include "amp.h"
#include "../support/huge.h"
#include "../support/posix.h"
#include "../support/prepare.h"
#include "../support/tape.h"
#include "../support/test.h"
#include "../support/values.h"
#include "../support/fp.h"

#include <math.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

/* ----------------------------------------------------- the caller's floating-point settings */

enum { FP_FLAGS = 0x3f }; /* sticky, and not a setting */

static uint32_t environment = FP_IEEE; /* in which amp.h is called from now on */

static void enter(void) { fp_set(environment); }

static void leave(void) {
    const uint32_t now = fp_get() & ~(uint32_t)FP_FLAGS;
    fp_set(FP_IEEE);
    if (FP_CONTROL) CHECK_EQ_U32(now, environment); /* the caller's settings return */
}

/* ------------------------------------------------------------- arithmetic, one rounding each */

/* Operands and results are volatile, so that no flag contracts, reorders or replaces anything.
   Quotients and roots are taken in double, where rounding a second time does no harm. */
#define OPERATION(name, result, type, expression)        \
    static result name(result a, result b) {             \
        volatile type x = (type)a, y = (type)b, r;       \
        r = expression;                                  \
        return (result)r;                                \
    }
OPERATION(f_mul, float, float, x * y)
OPERATION(f_add, float, float, x + y)
OPERATION(f_sub, float, float, x - y)
OPERATION(f_div, float, double, x / y)
OPERATION(d_mul, double, double, x * y)
OPERATION(d_add, double, double, x + y)
OPERATION(d_div, double, double, x / y)

static double d_sqrt(double a) {
    volatile double x = a, r;
    r = sqrt(x);
    return r;
}
static float f_sqrt(float a) { return (float)d_sqrt((double)a); }

static uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static float from_bits(uint32_t bits) {
    volatile uint32_t v = bits;
    const uint32_t    u = v;
    float             x;
    memcpy(&x, &u, 4);
    return x;
}

static double double_from_bits(uint64_t bits) {
    volatile uint64_t v = bits;
    const uint64_t    u = v;
    double            x;
    memcpy(&x, &u, 8);
    return x;
}

static int finite_bits(uint32_t u) { return (u & 0x7fffffffu) < 0x7f800000u; }

/* inf, -inf, NaN, signalling NaN, NaN with all bits set; then the largest finite one. */
enum { NUM_NONFINITE = 5, PATTERN_LARGEST = 5 };
static const uint32_t patterns[3][6] = {
    {0x7f800000u, 0xff800000u, 0x7fc00000u, 0x7f800001u, 0xffffffffu, 0x7f7fffffu},
    {0x7c00u, 0xfc00u, 0x7e00u, 0x7c01u, 0xffffu, 0x7bffu},
    {0x7f80u, 0xff80u, 0x7fc0u, 0x7f81u, 0xffffu, 0x7f7fu}};

static int nonfinite_at(const void *base, amp_dtype type, size_t i) {
    const uint32_t exponent = patterns[type][0];
    return (load_bits(base, type, i) & exponent) == exponent;
}

static uint32_t mix(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t h = a * 0x9e3779b1u ^ b * 0x85ebca77u ^ c * 0xc2b2ae3du;
    h ^= h >> 15;
    h *= 0x2c1b3c6du;
    h ^= h >> 12;
    h *= 0x297a2d39u;
    return h ^ (h >> 15);
}

/* In (-1, 1), exact in any rounding mode. */
static float value(uint32_t a, uint32_t b, uint32_t c) {
    return (float)((int32_t)(mix(a, b, c) >> 8) - 8388608) * 1.1920929e-7f;
}

/* The rule of zero: a negative number is exactly 0. */
static float or_default(float x, float otherwise) { return x > 0.0f ? x : x < 0.0f ? 0.0f : otherwise; }

/* ------------------------------------------------------- a rig: an optimizer and its tensors */

enum { WEIGHT = 1, MODEL = 2, GRAD = 4 };

typedef struct rig {
    amp_optimizer opt;
    amp_kind      kind;
    size_t        count;
    amp_tensor   *tensor;
    void        **block; /* three per tensor, to free */
} rig;

static void rig_begin(rig *r, size_t count) {
    memset(r, 0, sizeof *r);
    r->count  = count;
    r->tensor = (amp_tensor *)calloc(count + 1, sizeof *r->tensor);
    r->block  = (void **)calloc(3 * count + 1, sizeof *r->block);
}

/* n elements, offset bytes behind an aligned address, and not a byte more. */
static void *make_array(rig *r, size_t which, size_t n, amp_dtype type, size_t offset) {
    r->block[which] = malloc(n * size_of(type) + offset + (n == 0));
    return (char *)r->block[which] + offset;
}

static void rig_tensor(rig *r, size_t i, size_t n, int parts, amp_dtype grad_type,
                       amp_dtype model_type, size_t offset) {
    amp_tensor *t = &r->tensor[i];
    void       *weight;
    size_t      j;
    t->n          = n;
    t->grad_type  = grad_type;
    t->model_type = model_type;
    t->frozen     = !(parts & GRAD);
    if (parts & WEIGHT) {
        weight    = make_array(r, 3 * i, n, AMP_F32, offset);
        t->weight = (float *)weight;
        for (j = 0; j < n; j++) store(weight, AMP_F32, j, value(1000, (uint32_t)i, (uint32_t)j));
    }
    if (parts & MODEL) {
        t->model = make_array(r, 3 * i + 1, n, model_type, offset);
        for (j = 0; j < n; j++)
            store(t->model, model_type, j, value(1000, (uint32_t)i, (uint32_t)j));
    }
    if (parts & GRAD) {
        t->grad = make_array(r, 3 * i + 2, n, grad_type, offset);
        memset(t->grad, 0, n * size_of(grad_type));
    }
}

static void rig_prepare(rig *r, const amp_optimizer_desc *desc) {
    amp_result result;
    size_t     i;
    r->kind = desc->kind;
    enter();
    result = amp_optimizer_init(&r->opt, desc);
    for (i = 0; i < r->count && result == AMP_OK; i++)
        result = amp_optimizer_add(&r->opt, &r->tensor[i]);
    if (result == AMP_OK) result = prepare_scaled(&r->opt);
    leave();
    CHECK_EQ_INT(result, AMP_OK);
}

static void rig_end(rig *r) {
    size_t i;
    amp_optimizer_free(&r->opt);
    for (i = 0; i < 3 * r->count; i++) free(r->block[i]);
    free(r->block);
    free(r->tensor);
}

/* One tensor with a weight and a gradient. */
static void rig_single(rig *r, const amp_optimizer_desc *desc, size_t n, amp_dtype grad_type) {
    rig_begin(r, 1);
    rig_tensor(r, 0, n, WEIGHT | GRAD, grad_type, AMP_F32, 0);
    rig_prepare(r, desc);
}

/* One whose master is the caller's, one whose master is not, and one that is frozen; before prepare. */
static void rig_three(rig *r) {
    rig_begin(r, 3);
    rig_tensor(r, 0, 5, WEIGHT | GRAD, AMP_F32, AMP_F32, 0);
    rig_tensor(r, 1, 5, MODEL | GRAD, AMP_F32, AMP_F16, 0);
    rig_tensor(r, 2, 5, WEIGHT, AMP_F32, AMP_F32, 0);
}

static void fill_grads(rig *r, uint32_t step, float scale) {
    size_t i, j;
    for (i = 0; i < r->count; i++) {
        const amp_tensor *t = &r->tensor[i];
        for (j = 0; t->grad && j < t->n; j++)
            store(t->grad, t->grad_type, j,
                  value(step, (uint32_t)i, (uint32_t)j) * 0.0625f * scale);
    }
}

/* The user's own optimizer: p -= lr * g. */
static void own_sgd(rig *r, float lr) {
    size_t i, j;
    for (i = 0; i < r->count; i++) {
        float       *p = amp_optimizer_master(&r->opt, (int)i);
        const float *g = amp_optimizer_grad(&r->opt, (int)i);
        for (j = 0; g && j < r->tensor[i].n; j++)
            store(p, AMP_F32, j, f_sub(load(p, AMP_F32, j), f_mul(lr, load(g, AMP_F32, j))));
    }
}

/* A step of the rig's kind; true if the weights moved. */
static int rig_step(rig *r, float lr) {
    amp_status status;
    amp_result result;
    bool       go = false;
    memset(&status, 0, sizeof status);
    enter();
    if (r->kind != AMP_KIND_OWN) result = amp_optimizer_step(&r->opt, lr);
    else {
        go = amp_optimizer_begin_step(&r->opt);
        leave();
        if (go) own_sgd(r, lr);
        enter();
        result = amp_optimizer_end_step(&r->opt);
    }
    if (result == AMP_OK) result = amp_optimizer_status(&r->opt, &status);
    leave();
    CHECK_EQ_INT(result, AMP_OK);
    if (r->kind == AMP_KIND_OWN) CHECK_EQ_INT(go, status.did_step);
    CHECK(status.did_step <= 1);
    return status.did_step != 0;
}

static amp_status status_of(const rig *r) {
    amp_status status;
    memset(&status, 0, sizeof status);
    CHECK_EQ_INT(amp_optimizer_status(&r->opt, &status), AMP_OK);
    return status;
}

/* The moments have no getter. */
static const float *moment(const rig *r, size_t i, int which) {
    const ampi_slot *slot = &r->opt.plan->host_slots[i];
    return (const float *)slot->moment[which].data;
}

static amp_dtype copy_type(const rig *r, size_t i) { /* of what amp_optimizer_model returns */
    const amp_tensor *t = &r->tensor[i];
    if (t->model) return t->model_type;
    return t->keep_fp32 ? AMP_F32 : r->opt.desc.dtype;
}

/* FNV-1a over words, low byte first. */
static uint64_t hash_word(uint64_t h, uint64_t word, int num_bytes) {
    int i;
    for (i = 0; i < num_bytes; i++) h = (h ^ ((word >> (8 * i)) & 0xff)) * 1099511628211ull;
    return h;
}

static uint64_t hash_array(uint64_t h, const void *base, amp_dtype type, size_t n) {
    size_t j;
    for (j = 0; base && j < n; j++)
        h = hash_word(h, load_bits(base, type, j), (int)size_of(type));
    return h;
}

/* Masters, model copies, moments and step count: what a skipped step must not touch. */
static uint64_t state_digest(const rig *r) {
    uint64_t h = 1469598103934665603ull;
    size_t   i;
    for (i = 0; i < r->count; i++) {
        const size_t n = r->tensor[i].n;
        h = hash_array(h, amp_optimizer_master(&r->opt, (int)i), AMP_F32, n);
        h = hash_array(h, amp_optimizer_model(&r->opt, (int)i), copy_type(r, i), n);
        h = hash_array(h, moment(r, i, 0), AMP_F32, n);
        h = hash_array(h, moment(r, i, 1), AMP_F32, n);
    }
    return hash_word(h, amp_optimizer_gate(&r->opt)->step, 8);
}

/* Two rigs take the same step, and are the same. */
static void step_alike(rig *a, rig *b, uint32_t step) {
    fill_grads(a, step, 65536.0f);
    fill_grads(b, step, 65536.0f);
    CHECK(rig_step(a, 0.1f));
    CHECK(rig_step(b, 0.1f));
    CHECK_EQ_U64(state_digest(a), state_digest(b));
}

/* ------------------------------------------- the reference: all of a step, written once more */

typedef struct ref {
    amp_optimizer_desc desc;
    const rig         *of;
    size_t             count;
    float            **p, **m, **v;
    float              scale;
    int                tracker;
    uint64_t           step;
    double             norm;
    float              clip, factor;
    int                found;
} ref;

static float *ref_array(size_t n) { return (float *)calloc(n + 1, sizeof(float)); }

static void ref_begin(ref *f, const rig *r, const amp_optimizer_desc *desc) {
    size_t i, j;
    memset(f, 0, sizeof *f);
    f->desc  = *desc;
    f->of    = r;
    f->count = r->count;
    f->scale = desc->scaler.init_scale > 0.0f ? desc->scaler.init_scale : 65536.0f;
    f->p     = (float **)calloc(r->count + 1, sizeof(float *));
    f->m     = (float **)calloc(r->count + 1, sizeof(float *));
    f->v     = (float **)calloc(r->count + 1, sizeof(float *));
    for (i = 0; i < r->count; i++) {
        const amp_tensor *t = &r->tensor[i];
        f->p[i]             = ref_array(t->n);
        f->m[i]             = ref_array(t->n);
        f->v[i]             = ref_array(t->n);
        for (j = 0; j < t->n; j++)
            f->p[i][j] = t->weight ? load(t->weight, AMP_F32, j) : load(t->model, t->model_type, j);
    }
}

static void ref_end(ref *f) {
    size_t i;
    for (i = 0; i < f->count; i++) {
        free(f->p[i]);
        free(f->m[i]);
        free(f->v[i]);
    }
    free(f->p);
    free(f->m);
    free(f->v);
}

/* Lane l of width lanes: pairs (l, l + 128), then (l, l + 64) ... down to one. */
static float fold(const float *lanes, size_t l, size_t width) {
    if (width == 256) return lanes[l];
    return f_add(fold(lanes, l, 2 * width), fold(lanes, l + width, 2 * width));
}

static double fold64(const double *lanes, size_t l, size_t width) {
    if (width == 256) return lanes[l];
    return d_add(fold64(lanes, l, 2 * width), fold64(lanes, l + width, 2 * width));
}

/* An infinite sum of a chunk, or one below 2^-100 that is not of zeros, is summed again, rescaled. */
static double chunk_squares(const amp_tensor *t, size_t begin, size_t end) {
    float  lanes[256], sum;
    int    exponent = 0, zeros;
    size_t j;
    for (;;) {
        volatile uint32_t bits; /* or fast-math knows that a sum is finite */
        memset(lanes, 0, sizeof lanes);
        zeros = 1;
        for (j = begin; j < end; j++) {
            float x = 0.0f;
            if (!nonfinite_at(t->grad, t->grad_type, j))
                x = f_mul(load(t->grad, t->grad_type, j), (float)ldexp(1.0, exponent));
            if (bits_of(x) << 1) zeros = 0;
            lanes[(j - begin) % 256] = f_add(lanes[(j - begin) % 256], f_mul(x, x));
        }
        sum  = fold(lanes, 0, 1);
        bits = bits_of(sum);
        if (exponent != 0) return d_mul((double)sum, ldexp(1.0, -2 * exponent));
        if (!finite_bits(bits)) exponent = -96;
        else if (sum < (float)ldexp(1.0, -100) && !zeros) exponent = 96;
        else return (double)sum;
    }
}

enum { CHUNK = 16384 };

/* sqrt of the sum of squares of all gradients, still scaled, in the canonical order. */
static double canonical_norm(const rig *r) {
    double   lanes[256];
    uint64_t chunk = 0;
    size_t   i, begin;
    memset(lanes, 0, sizeof lanes);
    for (i = 0; i < r->count; i++) {
        const amp_tensor *t = &r->tensor[i];
        for (begin = 0; begin < t->n; begin += CHUNK, chunk++) {
            const size_t end = t->n - begin > CHUNK ? begin + CHUNK : t->n;
            if (!t->grad) continue; /* frozen: its chunks count, and add nothing */
            lanes[chunk % 256] = d_add(lanes[chunk % 256], chunk_squares(t, begin, end));
        }
    }
    return d_sqrt(fold64(lanes, 0, 1));
}

/* Norm, clip factor and whether to skip. */
static void ref_check(ref *f) {
    const rig *r = f->of;
    float      inv, max = 0.0f;
    size_t     i, j;
    f->found = 0;
    for (i = 0; i < r->count; i++) {
        const amp_tensor *t = &r->tensor[i];
        for (j = 0; t->grad && j < t->n; j++) {
            if (nonfinite_at(t->grad, t->grad_type, j)) f->found = 1;
            else if (fabsf(load(t->grad, t->grad_type, j)) > max)
                max = fabsf(load(t->grad, t->grad_type, j));
        }
    }
    inv     = (float)d_div(1.0, (double)f->scale);
    f->norm = d_mul(canonical_norm(r), (double)inv);
    f->clip = 1.0f;
    if (f->desc.max_norm > 0.0f) {
        const double clip = d_div((double)f->desc.max_norm, d_add(f->norm, 1e-6));
        if (clip < 1.0) f->clip = (float)clip;
    }
    f->factor = f_mul(inv, f->clip);
    if (!finite_bits(bits_of(f_mul(max, inv)))) f->found = 1;
    if (bits_of(f->factor) == 0) f->found = 1;
}

/* Documented formulas: beta and 1 - beta are rounded from double, and so is 1 / (1 - beta^t). */
static void ref_adamw(const ref *f, float lr, float wd, float g, float *p, float *m, float *v) {
    const double b1 = f->desc.beta1 > 0.0 ? f->desc.beta1 : 0.9;
    const double b2 = f->desc.beta2 > 0.0 ? f->desc.beta2 : 0.999;
    const float  e  = (float)(f->desc.eps > 0.0 ? f->desc.eps : 1e-8);
    double       power1 = 1.0, power2 = 1.0, square1 = b1, square2 = b2;
    uint64_t     t;
    float        mhat, vhat, u;
    for (t = f->step; t > 0; t /= 2) {
        if (t % 2) {
            power1 = d_mul(power1, square1);
            power2 = d_mul(power2, square2);
        }
        square1 = d_mul(square1, square1);
        square2 = d_mul(square2, square2);
    }
    *m   = f_add(f_mul((float)b1, *m), f_mul((float)d_add(1.0, -b1), g));
    *v   = f_add(f_mul((float)b2, *v), f_mul(f_mul((float)d_add(1.0, -b2), g), g));
    mhat = f_mul(*m, (float)d_div(1.0, d_add(1.0, -power1)));
    vhat = f_mul(*v, (float)d_div(1.0, d_add(1.0, -power2)));
    u    = f_add(f_div(mhat, f_add(f_sqrt(vhat), e)), f_mul(wd, *p));
    *p   = f_sub(*p, f_mul(lr, u));
}

static void ref_sgd(const ref *f, float lr, float wd, float g, float *p, float *m) {
    const float momentum = (float)f->desc.momentum;
    g                    = f_add(g, f_mul(wd, *p));
    if (momentum > 0.0f) {
        *m = f_add(f_mul(momentum, *m), g);
        g  = f->desc.nesterov ? f_add(g, f_mul(momentum, *m)) : *m;
    }
    *p = f_sub(*p, f_mul(lr, g));
}

/* The weights move, unless skipped; then the scale by DEFAULT's rules. */
static void ref_step(ref *f, float lr) {
    const int interval = f->desc.scaler.growth_interval ? f->desc.scaler.growth_interval : 2000;
    size_t    i, j;
    ref_check(f);
    if (f->found) {
        f->tracker = 0;
        if (f->scale > 6.103515625e-5f) f->scale = f->scale * 0.5f;
        return;
    }
    f->step++;
    for (i = 0; i < f->count; i++) {
        const amp_tensor *t  = &f->of->tensor[i];
        const float       wd   = or_default(t->weight_decay, f->desc.weight_decay);
        const float       rate = f_mul(lr, or_default(t->lr_scale, 1.0f));
        for (j = 0; t->grad && j < t->n; j++) {
            const float g = f_mul(load(t->grad, t->grad_type, j), f->factor);
            float      *p = &f->p[i][j];
            if (f->desc.kind == AMP_KIND_ADAMW)
                ref_adamw(f, rate, wd, g, p, &f->m[i][j], &f->v[i][j]);
            else if (f->desc.kind == AMP_KIND_SGD) ref_sgd(f, rate, wd, g, p, &f->m[i][j]);
            else *p = f_sub(*p, f_mul(lr, g));
        }
    }
    if (++f->tracker == interval) {
        f->tracker = 0;
        if (f->scale < 16777216.0f) f->scale = f->scale * 2.0f;
    }
}

/* Is the rig where the reference is, bit for bit? */
static void ref_compare(const ref *f) {
    const rig       *r      = f->of;
    const amp_status status = status_of(r);
    size_t           i, j;
    CHECK_EQ_F64(status.norm, f->norm);
    CHECK_EQ_F32(status.clip_factor, f->clip);
    CHECK_EQ_F32(status.loss_scale, f->scale);
    CHECK_EQ_INT(status.found_inf, f->found);
    CHECK_EQ_U64(status.steps, f->step);
    for (i = 0; i < f->count; i++) {
        const size_t n = r->tensor[i].n;
        CHECK_MEM(amp_optimizer_master(&r->opt, (int)i), f->p[i], n * 4);
        if (moment(r, i, 0)) CHECK_MEM(moment(r, i, 0), f->m[i], n * 4);
        if (moment(r, i, 1)) CHECK_MEM(moment(r, i, 1), f->v[i], n * 4);
        for (j = 0; j < n; j++) {
            float wanted;
            store(&wanted, copy_type(r, i), 0, f->p[i][j]);
            CHECK_EQ_U32(load_bits(amp_optimizer_model(&r->opt, (int)i), copy_type(r, i), j),
                         load_bits(&wanted, copy_type(r, i), 0));
        }
    }
}

/* Steps of rig and reference side by side, with overflows at steps 3 and 7. */
static void compare_run(rig *r, const amp_optimizer_desc *desc, int num_steps) {
    ref f;
    int step;
    ref_begin(&f, r, desc);
    for (step = 0; step < num_steps; step++) {
        fill_grads(r, (uint32_t)step, f.scale);
        if (step == 3 || step == 7) {
            size_t i = r->count;
            while (i-- > 0) {
                const amp_tensor *t = &r->tensor[i];
                if (!t->n || !t->grad) continue;
                store_bits(t->grad, t->grad_type, t->n - 1, patterns[t->grad_type][step % 5]);
                break;
            }
        }
        ref_step(&f, 0.01f);
        CHECK_EQ_INT(rig_step(r, 0.01f), !f.found);
        ref_compare(&f);
    }
    ref_end(&f);
}

/* Ten tensors of all sorts: sizes around the limits of lanes and pieces, the three ways of owning
   memory, a frozen one, and options of every kind. */
static void rig_mixed(rig *r, amp_dtype grad_type, amp_dtype model_type, size_t offset) {
    static const size_t sizes[] = {0, 1, 7, 255, 256, 257, 1023, 1024, 1025, 300};
    static const int    ways[]  = {WEIGHT, MODEL, WEIGHT | MODEL};
    static const float  rates[] = {0.0f, 0.5f, 2.0f};
    size_t              i;
    rig_begin(r, COUNT_OF(sizes));
    for (i = 0; i < r->count; i++) {
        amp_tensor *t = &r->tensor[i];
        rig_tensor(r, i, sizes[i], ways[i % 3] | (i == 4 ? 0 : GRAD), grad_type, model_type,
                   offset);
        t->lr_scale     = i == 8 ? -3.0f : rates[i % 3];
        t->weight_decay = i % 5 == 2 ? -0.5f : i % 4 == 1 ? 0.25f : 0.0f;
        t->keep_fp32    = i % 2 && !t->model;
    }
}

/* The kinds of step, each with decay, as descs. */
enum { NUM_KINDS = 5 };
static amp_optimizer_desc kind_desc(int kind) {
    amp_optimizer_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.dtype        = AMP_F16;
    desc.weight_decay = 0.0625f;
    switch (kind) {
    case 0: desc.kind = AMP_KIND_OWN; break;
    case 1: desc.kind = AMP_KIND_ADAMW; break;
    case 2: desc.kind = AMP_KIND_SGD; break;
    case 3:
        desc.kind     = AMP_KIND_SGD;
        desc.momentum = 0.9;
        break;
    default:
        desc.kind     = AMP_KIND_SGD;
        desc.momentum = 0.9;
        desc.nesterov = 1;
        break;
    }
    return desc;
}

/* ========================================================================= who owns memory */

TEST(weight_is_model, "manual: what forward reads is the master where there is no copy: desc.dtype "
                      "AMP_F32, keep_fp32, model == weight") {
    amp_optimizer_desc desc = kind_desc(1);
    rig                r;
    size_t             i;
    desc.dtype = AMP_BF16;
    rig_begin(&r, 3);
    for (i = 0; i < 3; i++) rig_tensor(&r, i, 33, WEIGHT | GRAD, AMP_F32, AMP_F32, 0);
    r.tensor[0].keep_fp32 = 1;
    r.tensor[1].model     = r.tensor[1].weight;
    rig_prepare(&r, &desc);
    CHECK(amp_optimizer_model(&r.opt, 0) == (const void *)r.tensor[0].weight);
    CHECK(amp_optimizer_model(&r.opt, 1) == (const void *)r.tensor[1].weight);
    CHECK(amp_optimizer_model(&r.opt, 2) != (const void *)r.tensor[2].weight);
    compare_run(&r, &desc, 10);
    rig_end(&r);
}

TEST(nothing, "law 11: zero tensors and n == 0 are ordinary") {
    int kind;
    for (kind = 0; kind < NUM_KINDS; kind++) {
        amp_optimizer_desc desc  = kind_desc(kind);
        amp_tensor         empty = {0};
        rig                r;
        desc.max_norm = 1.0f;
        rig_begin(&r, 0);
        rig_prepare(&r, &desc);
        CHECK(rig_step(&r, 0.1f));
        CHECK_EQ_F64(status_of(&r).norm, 0.0);
        CHECK(amp_optimizer_model(&r.opt, 0) == NULL);
        rig_end(&r);
        rig_begin(&r, 2);
        r.tensor[0] = r.tensor[1] = empty;
        rig_prepare(&r, &desc);
        CHECK(rig_step(&r, 0.1f));
        CHECK(rig_step(&r, 0.1f));
        CHECK_EQ_U64(status_of(&r).steps, 2);
        CHECK_EQ_F32(status_of(&r).clip_factor, 1.0f);
        rig_end(&r);
    }
}

/* ================================================================ a step, against the reference */

static void compare_kind(int kind) {
    int    grad_type, model_type;
    size_t offset;
    for (grad_type = AMP_F32; grad_type <= AMP_BF16; grad_type++)
        for (model_type = AMP_F32; model_type <= AMP_BF16; model_type++)
            for (offset = 0; offset < 4; offset++) {
                amp_optimizer_desc desc = kind_desc(kind);
                rig                r;
                if (test_state.quick && offset != (size_t)((grad_type + model_type) % 4)) continue;
                desc.dtype                  = (amp_dtype)model_type;
                desc.scaler.growth_interval = 3;
                desc.max_norm               = offset % 2 ? 0.5f : 0.0f;
                desc.unscale_in_place       = 0;
                rig_mixed(&r, (amp_dtype)grad_type, (amp_dtype)model_type, offset);
                rig_prepare(&r, &desc);
                compare_run(&r, &desc, 10);
                rig_end(&r);
            }
}

TEST(own_step, "manual: begin_step, your optimizer, end_step equals unscaling by hand, bit for "
               "bit; law 11: unaligned pointers and odd counts") {
    compare_kind(0);
}
TEST(adamw_bits, "law 7: adamw equals check + unscale + the documented formula, bit for bit, for "
                 "all types, ways of owning memory and alignments") {
    compare_kind(1);
}
TEST(sgd_bits, "law 7: sgd equals check + unscale + the documented formula, bit for bit") {
    compare_kind(2);
}
TEST(momentum_bits, "law 7: sgd with momentum, bit for bit") { compare_kind(3); }
TEST(nesterov_bits, "law 7: sgd with Nesterov momentum, bit for bit") { compare_kind(4); }

/* The gradients of the double models: magnitudes in [1/4, 1], random signs. */
static float model_grad(uint32_t step, uint32_t j) {
    const float x = value(step, 77, j);
    return x < 0.0f ? -0.25f + 0.75f * x : 0.25f + 0.75f * x;
}

/* With e = 2^-24 and |g| <= 1: a sum of t terms of one sign has relative error <= 5 t e, so the
   root of v^ has <= 4 t e; m^ has absolute error <= 50 e (five roundings a step, decaying by 0.9);
   |m^| <= 1 and sqrt(v^) >= 1/4, so u = m^ / sqrt(v^) is off by <= (300 + 16 t) e. p takes lr
   times that and two roundings of |p| <= 4. */
TEST(adamw_double, "torch: p -= lr * (m^ / (sqrt(v^) + eps) + weight_decay * p), in doubles, 200 "
                   "steps") {
    enum { N = 64 };
    amp_optimizer_desc desc = kind_desc(1);
    rig                r;
    double             p[N], m[N], v[N], e = ldexp(1.0, -24), error = 0.0;
    const double       lr = (double)0.01f;
    uint32_t           j;
    int                t;
    rig_single(&r, &desc, N, AMP_F32);
    for (j = 0; j < N; j++) {
        p[j] = (double)load(r.tensor[0].weight, AMP_F32, j);
        m[j] = v[j] = 0.0;
    }
    for (t = 1; t <= 200; t++) {
        for (j = 0; j < N; j++)
            store(r.tensor[0].grad, AMP_F32, j, model_grad((uint32_t)t, j) * 65536.0f);
        CHECK(rig_step(&r, 0.01f));
        error += lr * ((300.0 + 16.0 * t) * e + 0.0625 * error) + 8.0 * e;
        for (j = 0; j < N; j++) {
            const double g = (double)model_grad((uint32_t)t, j);
            m[j]           = 0.9 * m[j] + 0.1 * g;
            v[j]           = 0.999 * v[j] + 0.001 * g * g;
            p[j] -= lr * (m[j] / (1.0 - pow(0.9, t)) / (sqrt(v[j] / (1.0 - pow(0.999, t))) + 1e-8) +
                          0.0625 * p[j]);
            CHECK(fabs((double)load(r.tensor[0].weight, AMP_F32, j) - p[j]) <= error);
        }
    }
    CHECK(error < 1e-3);
    rig_end(&r);
}

/* |m| <= M = (1 + decay) / (1 - momentum); each of its steps rounds four times. */
TEST(sgd_double, "torch: g += weight_decay * p; m = momentum * m + g; Nesterov g += momentum * m; "
                 "p -= lr * g, in doubles, 200 steps") {
    enum { N = 64 };
    int kind;
    for (kind = 2; kind < NUM_KINDS; kind++) {
        amp_optimizer_desc desc = kind_desc(kind);
        rig                r;
        double             p[N], m[N], e = ldexp(1.0, -24), error = 0.0, error_m = 0.0;
        const double       lr = (double)0.01f, mu = desc.momentum;
        const double       most = 1.25 / (1.0 - mu);
        uint32_t           j;
        int                t;
        rig_single(&r, &desc, N, AMP_F32);
        for (j = 0; j < N; j++) {
            p[j] = (double)load(r.tensor[0].weight, AMP_F32, j);
            m[j] = 0.0;
        }
        for (t = 1; t <= 200; t++) {
            for (j = 0; j < N; j++)
                store(r.tensor[0].grad, AMP_F32, j, model_grad((uint32_t)t, j) * 65536.0f);
            CHECK(rig_step(&r, 0.01f));
            error_m = mu * error_m + 4.0 * most * e + 0.0625 * error;
            error += lr * (2.0 * error_m + 8.0 * most * e + 0.0625 * error) + 8.0 * e;
            for (j = 0; j < N; j++) {
                double g = (double)model_grad((uint32_t)t, j) + 0.0625 * p[j];
                m[j]     = mu * m[j] + g;
                if (desc.nesterov) g += mu * m[j];
                else if (mu > 0.0) g = m[j];
                p[j] -= lr * g;
                CHECK(fabs((double)load(r.tensor[0].weight, AMP_F32, j) - p[j]) <= error);
            }
        }
        CHECK(error < 1e-3);
        rig_end(&r);
    }
}

TEST(many_tensors, "manual: add holds any number of tensors, 1, 100 or 10000, in order") {
    static const size_t counts[] = {1, 31, 32, 33, 100, 10000};
    size_t              c, i;
    for (c = 0; c < COUNT_OF(counts); c++) {
        amp_optimizer_desc desc = kind_desc(3);
        rig                r;
        rig_begin(&r, counts[c]);
        for (i = 0; i < counts[c]; i++)
            rig_tensor(&r, i, i % 6, WEIGHT | GRAD, AMP_BF16, AMP_F32, 0);
        rig_prepare(&r, &desc);
        for (i = 0; i < counts[c]; i++)
            CHECK(amp_optimizer_master(&r.opt, (int)i) == r.tensor[i].weight);
        CHECK(amp_optimizer_master(&r.opt, (int)counts[c]) == NULL);
        CHECK(amp_optimizer_master(&r.opt, -1) == NULL);
        compare_run(&r, &desc, 5);
        rig_end(&r);
    }
}

/* =================================================================================== flat */

enum { NUM_PARTS = 6 };
static const size_t part_sizes[NUM_PARTS] = {5, 0, 300, 1, 1025, 64};

static void flat_parts(amp_tensor *parts, size_t *total) {
    size_t i;
    memset(parts, 0, NUM_PARTS * sizeof *parts);
    for (*total = 0, i = 0; i < NUM_PARTS; i++) {
        parts[i].n            = part_sizes[i];
        parts[i].lr_scale     = i % 2 ? 2.0f : 0.0f;
        parts[i].weight_decay = i == 4 ? -1.0f : i % 3 == 1 ? 0.5f : 0.0f;
        *total += part_sizes[i];
    }
}

/* Adds the rig's only array as parts. */
static void prepare_flat(rig *r, const amp_optimizer_desc *desc, const amp_tensor *parts) {
    r->kind = desc->kind;
    CHECK_EQ_INT(amp_optimizer_init(&r->opt, desc), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_add_flat(&r->opt, &r->tensor[0], parts, NUM_PARTS), AMP_OK);
    CHECK_EQ_INT(prepare_scaled(&r->opt), AMP_OK);
}

static void *advance(void *base, amp_dtype type, size_t n) {
    return base ? (char *)base + n * size_of(type) : NULL;
}

TEST(flat_equals_separate, "contract: add_flat gives the same tensors as adding them one by one, "
                           "with contiguous copies: model(first) + offset is valid") {
    int kind, way;
    for (kind = 0; kind < NUM_KINDS; kind++)
        for (way = WEIGHT; way <= (WEIGHT | MODEL); way++) {
            amp_optimizer_desc desc = kind_desc(kind);
            rig                flat, whole, separate;
            amp_tensor         parts[NUM_PARTS];
            size_t             total, i, at, offset = (size_t)(kind % 4);
            int                step;
            flat_parts(parts, &total);
            if (way == WEIGHT) parts[2].keep_fp32 = 1;
            desc.max_norm = 1.0f;
            rig_begin(&flat, 1);
            rig_tensor(&flat, 0, total, way | GRAD, AMP_F16, AMP_BF16, offset);
            prepare_flat(&flat, &desc, parts);

            rig_begin(&whole, 1); /* the arrays of separate */
            rig_tensor(&whole, 0, total, way | GRAD, AMP_F16, AMP_BF16, offset);
            rig_begin(&separate, NUM_PARTS);
            for (i = 0, at = 0; i < NUM_PARTS; at += part_sizes[i++]) {
                const amp_tensor *w = &whole.tensor[0];
                separate.tensor[i]  = parts[i];
                separate.tensor[i].grad_type  = AMP_F16;
                separate.tensor[i].model_type = AMP_BF16;
                separate.tensor[i].weight     = (float *)advance(w->weight, AMP_F32, at);
                separate.tensor[i].model      = advance(w->model, AMP_BF16, at);
                separate.tensor[i].grad       = advance(w->grad, AMP_F16, at);
            }
            rig_prepare(&separate, &desc);
            flat.count = NUM_PARTS; /* from here on flat's tensors are the parts */
            free(flat.tensor);
            flat.tensor = (amp_tensor *)calloc(NUM_PARTS, sizeof(amp_tensor));
            flat.block  = (void **)realloc(flat.block, 3 * NUM_PARTS * sizeof(void *));
            for (i = 3; i < 3 * NUM_PARTS; i++) flat.block[i] = NULL;
            for (i = 0, at = 0; i < NUM_PARTS; at += part_sizes[i++]) {
                flat.tensor[i]      = separate.tensor[i];
                flat.tensor[i].grad = advance((char *)flat.block[2] + offset, AMP_F16, at);
                CHECK(amp_optimizer_master(&flat.opt, (int)i) ==
                      (float *)advance(amp_optimizer_master(&flat.opt, 0), AMP_F32, at));
                if (!parts[i].keep_fp32) {
                    const amp_dtype type = way == WEIGHT ? AMP_F16 : AMP_BF16;
                    const char *first = (const char *)amp_optimizer_model(&flat.opt, 0);
                    CHECK(amp_optimizer_model(&flat.opt, (int)i) ==
                          (const void *)(first + at * size_of(type)));
                } else {
                    CHECK(amp_optimizer_model(&flat.opt, (int)i) ==
                          (const void *)amp_optimizer_master(&flat.opt, (int)i));
                }
            }
            CHECK(amp_optimizer_master(&flat.opt, NUM_PARTS) == NULL);
            CHECK_EQ_U64(state_digest(&flat), state_digest(&separate));
            for (step = 0; step < 8; step++) {
                fill_grads(&flat, (uint32_t)step, step == 3 ? 1e9f : 65536.0f);
                fill_grads(&separate, (uint32_t)step, step == 3 ? 1e9f : 65536.0f);
                CHECK_EQ_INT(rig_step(&flat, 0.01f), step != 3);
                CHECK_EQ_INT(rig_step(&separate, 0.01f), step != 3);
                CHECK_EQ_F64(status_of(&flat).norm, status_of(&separate).norm);
                CHECK_EQ_U64(state_digest(&flat), state_digest(&separate));
            }
            rig_end(&flat);
            rig_end(&separate);
            rig_end(&whole);
        }
}

TEST(flat_takes_whole, "manual: keep_fp32 and own of the whole are those of each part; lr_scale is not") {
    float              w[4] = {1.0f, 1.0f, 1.0f, 1.0f}, g[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    amp_optimizer_desc desc  = {0};
    amp_optimizer      opt;
    amp_tensor         whole = {0}, part[2] = {{0}, {0}};
    desc.kind = AMP_KIND_SGD, desc.dtype = AMP_F16;
    whole.n = 4, whole.weight = w, whole.grad = g, whole.lr_scale = 2.0f;
    whole.keep_fp32 = 1;
    part[0].n = part[1].n = 2;
    part[1].lr_scale = 4.0f;
    CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_add_flat(&opt, &whole, part, 2), AMP_OK);
    CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
    CHECK(amp_optimizer_model(&opt, 0) == w);
    g[0] = g[1] = g[2] = g[3] = amp_optimizer_loss_scale(&opt);
    CHECK_EQ_INT(amp_optimizer_step(&opt, 0.125f), AMP_OK);
    CHECK_EQ_F32(w[1], 1.0f - 0.125f);
    CHECK_EQ_F32(w[2], 1.0f - 0.125f * 4.0f);
    amp_optimizer_free(&opt);
    whole.own = 1;
    CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_add_flat(&opt, &whole, part, 2), AMP_OK);
    CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_step(&opt, 0.125f), AMP_ERROR_UNSUPPORTED); /* own: begin_step, end_step */
    amp_optimizer_free(&opt);
}

TEST(late_gradient, "manual: AdamW's first update of a gradient that comes 1000 steps late is 2.5 lr, and at most lr after "
                    "set_moments") {
    int set;
    for (set = 0; set < 2; set++) {
        float              w[2] = {1.0f, 1.0f}, g[2] = {0.25f, 0.25f}, m = 0.25f, v = 0.0625f, moved;
        amp_optimizer_desc desc = {0};
        amp_optimizer      opt;
        amp_tensor         t = {0};
        int                i;
        desc.kind = AMP_KIND_ADAMW, desc.scaler.preset = AMP_PRESET_NONE;
        CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
        t.n = 1, t.weight = w, t.grad = g;
        CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
        t.weight = w + 1, t.grad = NULL;
        CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
        CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_rebind(&opt, 1, NULL, AMP_NO_GRAD), AMP_OK);
        for (i = 0; i < 999; i++) CHECK_EQ_INT(amp_optimizer_step(&opt, 1e-3f), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_rebind(&opt, 1, NULL, g + 1), AMP_OK);
        if (set) CHECK_EQ_INT(amp_optimizer_set_moments(&opt, 1, &m, &v), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_step(&opt, 1e-3f), AMP_OK);
        moved = (1.0f - w[1]) * 1e3f;
        CHECK(set ? moved > 0.75f && moved < 1.0f : moved > 2.45f && moved < 2.55f);
        amp_optimizer_free(&opt);
    }
}

TEST(silent_mistakes, "manual: a 16-bit model on its weight, and rates that overflow, are refused before a weight changes") {
    float              w[2] = {1.0f, -1.0f}, g[2] = {1.0f, 1.0f};
    const float        before[2] = {1.0f, -1.0f};
    amp_optimizer_desc desc = {0};
    amp_optimizer      opt;
    amp_tensor         t = {0};
    int                k;
    desc.kind = AMP_KIND_LION;
    t.n = 2, t.weight = w, t.grad = g, t.model = w, t.model_type = AMP_F16;
    CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_ERROR_INVALID_CONFIG);
    amp_optimizer_free(&opt);
    t.model_type = AMP_F32;
    for (k = 0; k < 2; k++) {
        t.lr_scale     = k ? 1.0f : 1e30f;
        t.weight_decay = k ? 1e30f : 0.0f;
        CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
        CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_step(&opt, 1e10f), AMP_ERROR_INVALID_CONFIG);
        CHECK_EQ_INT(amp_optimizer_set_lr(&opt, 1e10f), AMP_ERROR_INVALID_CONFIG);
        CHECK_MEM(w, before, sizeof w);
        CHECK_EQ_INT(amp_optimizer_step(&opt, 1e-3f), AMP_OK);
        memcpy(w, before, sizeof w);
        amp_optimizer_free(&opt);
    }
}

TEST(flat_wrong_sums, "contract: the parts' n must add up to whole's; an error changes nothing") {
    amp_optimizer      opt;
    amp_optimizer_desc desc = kind_desc(0);
    amp_tensor         parts[NUM_PARTS], whole = {0}, one = {0};
    float              w[2000], g[2000], x = 1.0f;
    size_t             total;
    flat_parts(parts, &total);
    memset(w, 0, sizeof w);
    whole.weight = w;
    whole.grad   = g;
    CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
    whole.n = total + 1;
    CHECK_EQ_INT(amp_optimizer_add_flat(&opt, &whole, parts, NUM_PARTS),
                 AMP_ERROR_INVALID_ARGUMENT);
    whole.n = total - 1;
    CHECK_EQ_INT(amp_optimizer_add_flat(&opt, &whole, parts, NUM_PARTS),
                 AMP_ERROR_INVALID_ARGUMENT);
    whole.n    = total;
    parts[1].n = SIZE_MAX; /* the sum must not wrap around */
    parts[2].n += 1;
    CHECK_EQ_INT(amp_optimizer_add_flat(&opt, &whole, parts, NUM_PARTS),
                 AMP_ERROR_INVALID_ARGUMENT);
    flat_parts(parts, &total);
    CHECK_EQ_INT(amp_optimizer_add_flat(&opt, &whole, parts, 0), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_optimizer_add_flat(&opt, &whole, NULL, 1), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_optimizer_add_flat(&opt, NULL, parts, 1), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_optimizer_add_flat(NULL, &whole, parts, 1), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_optimizer_add_flat(&opt, &whole, parts, SIZE_MAX / 3 / sizeof *parts),
                 AMP_ERROR_TOO_LARGE); /* before one is read */
    parts[5].lr_scale = from_bits(0x7f800000u); /* the last part is wrong: none may be added */
    CHECK_EQ_INT(amp_optimizer_add_flat(&opt, &whole, parts, NUM_PARTS), AMP_ERROR_INVALID_CONFIG);
    whole.n = 0;
    CHECK_EQ_INT(amp_optimizer_add_flat(&opt, &whole, NULL, 0), AMP_OK);
    one.n      = 1;
    one.weight = &x;
    CHECK_EQ_INT(amp_optimizer_add(&opt, &one), AMP_OK);
    forget_refused(&opt);
    CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
    CHECK(amp_optimizer_master(&opt, 0) == &x);
    CHECK(amp_optimizer_master(&opt, 1) == NULL);
    amp_optimizer_free(&opt);
}

/* ============================================================================ wrap and scale */

/* =========================================================================== norm and clipping */

static const size_t norm_sizes[] = {0,    1,    7,     255,   256,   257,
                                    1023, 1024, 1025, 16383, 16384, 16385, 65537, 200000};

TEST(norm_order, "law 7: one canonical reduction: lane = index mod 256 over chunks of 16384, fixed "
                 "pairs, partials in double by the same rule") {
    size_t s, i;
    int    type;
    for (type = AMP_F32; type <= AMP_BF16; type++) {
        amp_optimizer_desc desc = kind_desc(0);
        rig                r;
        for (s = 0; s < COUNT_OF(norm_sizes); s++) {
            rig_single(&r, &desc, norm_sizes[s], (amp_dtype)type);
            fill_grads(&r, (uint32_t)s + 40, 65536.0f);
            CHECK(rig_step(&r, 0.0f));
            CHECK_EQ_F64(status_of(&r).norm, d_mul(canonical_norm(&r), 1.0 / 65536.0));
            CHECK_EQ_F32(status_of(&r).clip_factor, 1.0f);
            rig_end(&r);
        }
        rig_begin(&r, COUNT_OF(norm_sizes) + 300); /* more than 256 chunks */
        for (i = 0; i < r.count; i++)
            rig_tensor(&r, i, i < 300 ? i % 70 : norm_sizes[i - 300],
                       i % 11 == 10 ? WEIGHT : WEIGHT | GRAD, (amp_dtype)type, AMP_F32, 0);
        rig_prepare(&r, &desc);
        fill_grads(&r, 90, 65536.0f);
        CHECK(rig_step(&r, 0.0f));
        CHECK_EQ_F64(status_of(&r).norm, d_mul(canonical_norm(&r), 1.0 / 65536.0));
        rig_end(&r);
    }
}

TEST(norm_partials, "law 7: partials are added in doubles in the same order; their sizes differ so "
                    "much here that doubles round") {
    amp_optimizer_desc desc = kind_desc(0);
    uint32_t           fill;
    rig                r;
    size_t             i;
    rig_begin(&r, 700);
    for (i = 0; i < r.count; i++)
        rig_tensor(&r, i, 1, WEIGHT | GRAD, AMP_F32, AMP_F32, 0);
    rig_prepare(&r, &desc);
    for (fill = 0; fill < 50; fill++) {
        for (i = 0; i < r.count; i++)
            store(r.tensor[i].grad, AMP_F32, 0,
                  value(fill, (uint32_t)i, 1) *
                      (float)ldexp(1.0, (int)(mix(fill, (uint32_t)i, 2) % 24)));
        CHECK(rig_step(&r, 0.0f));
        CHECK_EQ_F64(status_of(&r).norm, d_mul(canonical_norm(&r), 1.0 / 65536.0));
    }
    rig_end(&r);
}

TEST(norm_overflow_mixed, "law 11: one chunk that overflows among chunks that do not, with "
                          "subnormals and an inf beside it") {
    amp_optimizer_desc desc = kind_desc(0);
    rig                r;
    desc.scaler.preset = AMP_PRESET_STATIC;
    rig_single(&r, &desc, 200000, AMP_F32);
    fill_grads(&r, 3, 1.0f);
    store(r.tensor[0].grad, AMP_F32, 70000, 3e38f);
    store_bits(r.tensor[0].grad, AMP_F32, 5, 1);
    CHECK(rig_step(&r, 0.0f));
    CHECK_EQ_F64(status_of(&r).norm, d_mul(canonical_norm(&r), 1.0 / 65536.0));
    store_bits(r.tensor[0].grad, AMP_F32, 70001, 0x7f800000u);
    CHECK(!rig_step(&r, 0.0f));
    CHECK_EQ_F64(status_of(&r).norm, d_mul(canonical_norm(&r), 1.0 / 65536.0));
    CHECK(fabs(status_of(&r).norm - 3e38 / 65536.0) < 1e28);
    rig_end(&r);
}

/* ================================================================================= skipping */

/* One bad element: the step must be skipped and leave no trace, the statistics must be exact. */
static void skip_at(rig *r, size_t tensor, size_t index, int pattern) {
    const amp_tensor *t     = &r->tensor[tensor];
    const uint32_t    saved = load_bits(t->grad, t->grad_type, index);
    const uint64_t    before = state_digest(r), skipped = status_of(r).skipped;
    amp_grad_stats         stats;
    store_bits(t->grad, t->grad_type, index, patterns[t->grad_type][pattern]);
    CHECK(!rig_step(r, 0.1f));
    CHECK_EQ_U64(state_digest(r), before);
    CHECK_EQ_U64(status_of(r).skipped, skipped + 1);
    CHECK_EQ_INT(status_of(r).found_inf, 1);
    CHECK_EQ_INT(amp_optimizer_stats(&r->opt, (int)tensor, &stats), AMP_OK);
    CHECK_EQ_U64(stats.nonfinite, 1);
    CHECK_EQ_U64(stats.nan, pattern >= 2);
    CHECK_EQ_U64(stats.first_nonfinite, index);
    CHECK_EQ_U64(load_bits(t->grad, t->grad_type, index), patterns[t->grad_type][pattern]);
    store_bits(t->grad, t->grad_type, index, saved);
}

TEST(skip_every_index, "law 4: a skipped step leaves model copy, master, moments and step count "
                       "bitwise unchanged: inf, -inf, NaN, sNaN at every index") {
    static const size_t sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 31, 257};
    static const int    kinds[] = {0, 1, 4};
    size_t              k, s, j;
    int                 type, pattern;
    for (k = 0; k < COUNT_OF(kinds); k++)
        for (type = AMP_F32; type <= AMP_BF16; type++)
            for (s = 0; s < COUNT_OF(sizes); s++) {
                amp_optimizer_desc desc = kind_desc(kinds[k]);
                rig                r;
                desc.scaler.preset = AMP_PRESET_STATIC;
                rig_single(&r, &desc, sizes[s], (amp_dtype)type);
                fill_grads(&r, 1, 65536.0f);
                CHECK(rig_step(&r, 0.1f)); /* moments are not zero any more */
                for (j = 0; j < sizes[s]; j++)
                    for (pattern = 0; pattern < NUM_NONFINITE; pattern++)
                        skip_at(&r, 0, j, pattern);
                store_bits(r.tensor[0].grad, (amp_dtype)type, sizes[s] - 1,
                           patterns[type][PATTERN_LARGEST]);
                CHECK(rig_step(&r, 0.1f)); /* the largest finite number is finite */
                rig_end(&r);
            }
}

TEST(skip_every_tensor, "law 4: in every tensor of a list of 30, and around the limits of pieces "
                        "and chunks") {
    static const size_t edges[] = {0, 1023, 1024, 1025, 16383, 16384, 16385, 69999};
    int                 kind, type;
    size_t              i;
    for (kind = 0; kind < NUM_KINDS; kind++)
        for (type = AMP_F32; type <= AMP_BF16; type++) {
            amp_optimizer_desc desc = kind_desc(kind);
            rig                r;
            rig_begin(&r, 30);
            for (i = 0; i < 30; i++)
                rig_tensor(&r, i, i + 1, WEIGHT | GRAD, (amp_dtype)type, AMP_F32, i % 4);
            rig_prepare(&r, &desc);
            fill_grads(&r, 1, 65536.0f);
            CHECK(rig_step(&r, 0.1f));
            for (i = 0; i < 30; i++) skip_at(&r, i, i / 2, (int)(i % NUM_NONFINITE));
            rig_end(&r);
        }
    for (type = AMP_F32; type <= AMP_BF16; type++) {
        amp_optimizer_desc desc = kind_desc(1);
        rig                r;
        rig_single(&r, &desc, 70000, (amp_dtype)type);
        fill_grads(&r, 1, 65536.0f);
        CHECK(rig_step(&r, 0.1f));
        for (i = 0; i < COUNT_OF(edges); i++) skip_at(&r, 0, edges[i], (int)(i % NUM_NONFINITE));
        rig_end(&r);
    }
}

#if HAVE_HUGE
TEST(more_than_2_32, "law 11: of a tensor of more than 2^32 elements the last ones are checked, counted and stepped on") {
    const size_t       first = (size_t)1 << 32, few = 2 * 16384 + 5, n = first + few;
    uint16_t          *grad;
    float             *weight;
    amp_optimizer_desc desc;
    amp_optimizer      opt;
    amp_tensor         t;
    amp_grad_stats          stats;
    amp_status         status;
    size_t             i;
    if (test_state.quick) SKIP("takes seconds, under sanitizers a minute: not in quick runs");
    grad   = (uint16_t *)huge_zeros(2 * n);
    weight = (float *)huge_repeated(4 * first, 4 * few); /* in front of few zeros, which stay */
    if (!grad || !weight) SKIP(HUGE_WHY);
    huge_read(grad, 2 * n);
    memset(&desc, 0, sizeof desc);
    memset(&t, 0, sizeof t);
    desc.kind              = AMP_KIND_SGD;
    desc.scaler.init_scale = 4.0f;
    t.n = n, t.weight = weight, t.grad = grad, t.grad_type = AMP_BF16;
    CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
    CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
    for (i = 0; i < few; i++) grad[first + i] = (uint16_t)(i % 3 ? 0x4080 : 0); /* 4 */
    for (i = 0; i < 3; i++) { /* an infinity and a NaN; one NaN; none */
        grad[n - 2] = (uint16_t)(i == 0 ? 0xff80 : 0x4080);
        grad[n - 1] = (uint16_t)(i < 2 ? 0x7fc0 : 0x4080);
        CHECK_EQ_INT(amp_optimizer_step(&opt, 0.5f), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_stats(&opt, 0, &stats), AMP_OK);
        CHECK_EQ_U64(stats.nonfinite, 2 - i);
        CHECK_EQ_U64(stats.nan, i < 2);
        CHECK_EQ_U64(stats.first_nonfinite, n - 2 + i);
        CHECK_EQ_U64(stats.zeros, first + (few + 2) / 3 - (few % 3 == 1) - (few % 3 == 2));
        CHECK_EQ_F32(stats.max_finite, 4.0f);
    }
    CHECK_EQ_INT(amp_optimizer_status(&opt, &status), AMP_OK);
    CHECK_EQ_U64(status.skipped, 2);
    for (i = 0; i < few; i++) CHECK_EQ_F32(weight[first + i], i % 3 || i + 2 >= few ? -2.0f : 0.0f); /* scale 1 */
    for (i = 0; i < HUGE_PERIOD / 4; i++) CHECK_EQ_F32(weight[i], 0.0f);
    amp_optimizer_free(&opt);
    huge_free(grad, 2 * n);
    huge_free(weight, 4 * n);
}
#else
TEST(more_than_2_32, "law 11: of a tensor of more than 2^32 elements the last ones") { SKIP(HUGE_WHY); }
#endif

TEST(stats_exact, "manual: statistics of a gradient: nonfinite, nan, first_nonfinite, zeros, "
                  "max_finite") {
    int type;
    for (type = AMP_F32; type <= AMP_BF16; type++) {
        static const uint32_t minus_zero[3] = {0x80000000u, 0x8000u, 0x8000u};
        amp_optimizer_desc    desc = kind_desc(1);
        amp_grad_stats             stats;
        rig                   r;
        size_t                j;
        void                 *g;
        rig_begin(&r, 3);
        rig_tensor(&r, 0, 5000, WEIGHT | GRAD, (amp_dtype)type, AMP_F32, 1);
        rig_tensor(&r, 1, 3, WEIGHT | GRAD, (amp_dtype)type, AMP_F32, 0);
        rig_tensor(&r, 2, 4, WEIGHT, (amp_dtype)type, AMP_F32, 0);
        rig_prepare(&r, &desc);
        g = r.tensor[0].grad;
        for (j = 0; j < 5000; j++) store(g, (amp_dtype)type, j, j % 2 ? -1.0f : 0.5f);
        for (j = 0; j < 5000; j += 1000) store_bits(g, (amp_dtype)type, j, 0);
        store_bits(g, (amp_dtype)type, 2047, minus_zero[type]);
        store_bits(g, (amp_dtype)type, 2048, 1); /* a subnormal is not zero */
        store(g, (amp_dtype)type, 4999, -48.0f);
        store_bits(g, (amp_dtype)type, 1500, patterns[type][1]);
        store_bits(g, (amp_dtype)type, 1501, patterns[type][3]);
        store_bits(g, (amp_dtype)type, 4998, patterns[type][4]);
        CHECK(!rig_step(&r, 0.1f));
        CHECK_EQ_INT(amp_optimizer_stats(&r.opt, 0, &stats), AMP_OK);
        CHECK_EQ_U64(stats.nonfinite, 3);
        CHECK_EQ_U64(stats.nan, 2);
        CHECK_EQ_U64(stats.first_nonfinite, 1500);
        CHECK_EQ_U64(stats.zeros, 6);
        CHECK_EQ_F32(stats.max_finite, 48.0f);
        CHECK_EQ_INT(amp_optimizer_stats(&r.opt, 1, &stats), AMP_OK);
        CHECK_EQ_U64(stats.nonfinite, 0);
        CHECK_EQ_U64(stats.first_nonfinite, 3); /* none: n */
        CHECK_EQ_U64(stats.zeros, 3);
        CHECK_EQ_F32(stats.max_finite, 0.0f);
        CHECK_EQ_INT(amp_optimizer_stats(&r.opt, 2, &stats), AMP_OK);
        CHECK_EQ_U64(stats.nonfinite, 0);
        CHECK_EQ_U64(stats.first_nonfinite, 4);
        /* they are those of the last check, not a sum */
        store(g, (amp_dtype)type, 1500, 1.0f);
        store(g, (amp_dtype)type, 1501, 1.0f);
        CHECK(!rig_step(&r, 0.1f));
        CHECK_EQ_INT(amp_optimizer_stats(&r.opt, 0, &stats), AMP_OK);
        CHECK_EQ_U64(stats.nonfinite, 1);
        CHECK_EQ_U64(stats.nan, 1);
        CHECK_EQ_U64(stats.first_nonfinite, 4998);
        rig_end(&r);
    }
}

/* ==================================================================== law 13: traps unmasked */

static rig        trap_rig;
static int        trap_kind;
static amp_dtype  trap_type;
static amp_status trap_status;

/* All of the interface on NaN, infinities and the largest number, in the masters too. */
static void steps_with_traps(void) {
    amp_optimizer     *opt  = &trap_rig.opt;
    amp_optimizer_desc desc = kind_desc(trap_kind);
    const uint32_t     lr   = 0x7f7fffffu;
    float              rate;
    int                pattern;
    memcpy(&rate, &lr, 4);
    desc.max_norm = 1.0f;
    amp_optimizer_init(opt, &desc);
    amp_optimizer_add(opt, &trap_rig.tensor[0]);
    amp_optimizer_add(opt, &trap_rig.tensor[1]);
    prepare_scaled(opt);
    for (pattern = 0; pattern <= PATTERN_LARGEST; pattern++) {
        store_bits(trap_rig.tensor[0].grad, trap_type, 200, patterns[trap_type][pattern]);
        store_bits(trap_rig.tensor[1].grad, trap_type, 3, patterns[trap_type][pattern]);
        amp_optimizer_loss_scale(opt);
        if (desc.kind != AMP_KIND_OWN) {
            amp_optimizer_step(opt, rate);
        } else {
            amp_optimizer_begin_step(opt);
            amp_optimizer_end_step(opt);
        }
        amp_optimizer_status(opt, &trap_status);
    }
}

TEST(traps, "law 13: hosts that unmask floating-point traps (KANN does) keep running") {
    int type;
    if (!FP_TRAPPING) SKIP(FP_WHY);
    for (trap_kind = 0; trap_kind < NUM_KINDS; trap_kind++)
        for (type = AMP_F32; type <= AMP_BF16; type++) {
            trap_type = (amp_dtype)type;
            rig_begin(&trap_rig, 2);
            rig_tensor(&trap_rig, 0, 300, WEIGHT | GRAD, trap_type, AMP_F32, 0);
            rig_tensor(&trap_rig, 1, 300, WEIGHT | GRAD, trap_type, AMP_F32, 0);
            store_bits(trap_rig.tensor[0].weight, AMP_F32, 0, 0x7f800001u);
            store_bits(trap_rig.tensor[0].weight, AMP_F32, 1, 0x7f800000u);
            CHECK(fp_runs_without_trap(steps_with_traps));
            CHECK_EQ_U64(trap_status.skipped, NUM_NONFINITE);
            CHECK_EQ_INT(trap_status.did_step, 1);
            rig_end(&trap_rig);
        }
}

/* =============================================================== law 14, zero_grad, whose scale */

TEST(carried_momentum, "law 14: a gradient buffer that also carries momentum is left alone; with "
                       "unscale_in_place it is divided") {
    enum { N = 40 };
    int in_place, step;
    for (in_place = 0; in_place < 2; in_place++) {
        amp_optimizer_desc desc = kind_desc(0);
        float              carried[N];
        rig                r;
        uint32_t           j;
        desc.unscale_in_place = in_place;
        memset(carried, 0, sizeof carried);
        rig_single(&r, &desc, N, AMP_F32);
        for (step = 0; step < 10; step++) {
            float *g = (float *)r.tensor[0].grad;
            for (j = 0; j < N; j++) { /* Darknet: grad = momentum * grad + new, never zeroed */
                const float fresh = f_mul(value((uint32_t)step, 9, j), 65536.0f);
                carried[j] = f_add(f_mul(0.9f, carried[j]), fresh);
                g[j]       = in_place ? carried[j] : f_add(f_mul(0.9f, g[j]), fresh);
            }
            CHECK_MEM(g, carried, sizeof carried);
            CHECK(amp_optimizer_begin_step(&r.opt));
            CHECK_EQ_INT(amp_optimizer_grad(&r.opt, 0) == g, in_place);
            for (j = 0; j < N; j++)
                CHECK_EQ_F32(amp_optimizer_grad(&r.opt, 0)[j], f_mul(carried[j], 1.0f / 65536.0f));
            own_sgd(&r, 0.1f);
            CHECK_EQ_INT(amp_optimizer_end_step(&r.opt), AMP_OK);
            if (!in_place) CHECK_MEM(g, carried, sizeof carried);
        }
        /* a skipped step divides nothing */
        store_bits(r.tensor[0].grad, AMP_F32, 3, 0x7f800000u);
        memcpy(carried, r.tensor[0].grad, sizeof carried);
        CHECK(!amp_optimizer_begin_step(&r.opt));
        CHECK_MEM(r.tensor[0].grad, carried, sizeof carried);
        CHECK_EQ_INT(amp_optimizer_end_step(&r.opt), AMP_OK);
        CHECK_MEM(r.tensor[0].grad, carried, sizeof carried);
        rig_end(&r);
    }
}

/* What the other rank has found; or an error of the collective. */
typedef struct other_rank { double norm2; uint32_t maxima[2]; amp_result fails; int calls; } other_rank;

static amp_result meet(void *user, double *norm2, size_t num_sums, uint32_t *maxima, size_t num_maxima) {
    other_rank *other = (other_rank *)user;
    int         i;
    CHECK_EQ_U64(num_sums, 1);
    CHECK_EQ_U64(num_maxima, 2);
    other->calls++;
    if (other->fails != AMP_OK) return other->fails;
    *norm2 += other->norm2;
    for (i = 0; i < 2; i++)
        if (other->maxima[i] > maxima[i]) maxima[i] = other->maxima[i];
    return AMP_OK;
}

static void meets(amp_optimizer_desc *d, amp_result (*reduce_fn)(void *, double *, size_t, uint32_t *, size_t), void *user) {
    d->reduce_fn   = reduce_fn;
    d->reduce_user = user;
}

TEST(ranks, "contract: reduce_fn meets in the middle of a check: norms add up, an overflow anywhere "
            "skips everywhere, an error is returned") {
    int kind;
    for (kind = 0; kind < NUM_KINDS; kind++) {
        amp_optimizer_desc desc = kind_desc(kind);
        other_rank         other;
        rig                r;
        uint64_t           before;
        memset(&other, 0, sizeof other);
        meets(&desc, meet, &other);
        desc.max_norm = 2.5f;
        rig_single(&r, &desc, 2, AMP_F32);
        store(r.tensor[0].grad, AMP_F32, 0, 3.0f * 65536.0f);
        other.norm2 = 16.0 * 65536.0 * 65536.0;
        CHECK(rig_step(&r, 0.1f));
        CHECK_EQ_INT(other.calls, 1);
        CHECK_EQ_F64(status_of(&r).norm, 5.0);
        CHECK_EQ_F32(status_of(&r).clip_factor, (float)(2.5 / 5.000001));
        before          = state_digest(&r);
        other.maxima[0] = 1;
        store(r.tensor[0].grad, AMP_F32, 0, 3.0f * 65536.0f);
        CHECK(!rig_step(&r, 0.1f));
        CHECK_EQ_U64(state_digest(&r), before);
        CHECK_EQ_F32(status_of(&r).loss_scale, 32768.0f);
        other.maxima[0] = 0;
        other.fails     = AMP_ERROR_UNSUPPORTED;
        if (kind == 0) CHECK_EQ_INT(amp_optimizer_check(&r.opt), AMP_ERROR_UNSUPPORTED);
        else CHECK_EQ_INT(amp_optimizer_step(&r.opt, 0.1f), AMP_ERROR_UNSUPPORTED);
        CHECK_EQ_U64(state_digest(&r), before);
        rig_end(&r);
    }
}

/* Two ranks in turn: this one's sums by chunk, which it must be able to add as amp.h does. */
typedef struct chunked { amp_optimizer *opt; int calls; size_t n; double sums[8], norm2; uint32_t maxima[2]; } chunked;
static amp_result meet_chunks(void *user, double *norm2, size_t num_sums, uint32_t *maxima, size_t num_maxima) {
    chunked      *c = (chunked *)user;
    const double *sums = amp_optimizer_chunk_sums(c->opt, &c->n);
    (void)num_sums, (void)num_maxima;
    c->calls++;
    c->norm2 = *norm2;
    CHECK(c->n <= 8 && (sums != NULL) == (c->n != 0));
    if (sums) memcpy(c->sums, sums, c->n * sizeof *sums);
    memcpy(c->maxima, maxima, sizeof c->maxima);
    return AMP_OK;
}

TEST(chunk_sums, "manual: amp_optimizer_chunk_sums gives reduce_fn the sum of squares of each chunk, tensor after tensor, also of own "
                 "tensors, of which sums[0] is the sum; elsewhere NULL and 0") {
    enum { N = 16384 + 3 };
    static float       w[2][N], g[2][N];
    amp_optimizer_desc desc = kind_desc(1);
    chunked            seen = {0};
    amp_optimizer      opt;
    amp_tensor         t = {0};
    size_t             n = 9;
    meets(&desc, meet_chunks, &seen);
    seen.opt = &opt;
    CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
    t.n = N, t.weight = w[0], t.grad = g[0], t.own = 1;
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
    t.n = 2, t.weight = w[1], t.grad = NULL, t.own = 0, t.frozen = 1; /* 0 */
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
    t.n = N - 2, t.weight = w[1] + 2, t.grad = g[1], t.frozen = 0;
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
    CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
    CHECK(!amp_optimizer_chunk_sums(&opt, &n) && !n && !amp_optimizer_chunk_sums(NULL, NULL));
    CHECK_EQ_INT(amp_optimizer_set_lr(&opt, 0.1f), AMP_OK);
    g[0][5] = 1.0f, g[0][N - 1] = 2.0f, g[1][2] = 3.0f, g[1][N - 3] = 4.0f;
    CHECK(amp_optimizer_begin_step(&opt));
    CHECK_EQ_INT(amp_optimizer_end_step(&opt), AMP_OK);
    CHECK(seen.calls == 1 && seen.n == 5);
    CHECK(seen.sums[0] == 1.0 && seen.sums[1] == 4.0 && seen.sums[2] == 0.0 && seen.sums[3] == 9.0 && seen.sums[4] == 16.0);
    CHECK_EQ_F64(seen.norm2, 30.0);
    CHECK(!amp_optimizer_chunk_sums(&opt, &n) && !n);
    amp_optimizer_free(&opt);
}

TEST(refused_ranks, "manual: a rank whose step is refused before the check reduces once, with AMP_ASK_SKIP and no sums, and returns its "
                    "error; in an open step it does not; what asks is obeyed with a disabled scaler, too") {
    int kind;
    for (kind = 0; kind < NUM_KINDS; kind++) {
        amp_optimizer_desc desc = kind_desc(kind);
        chunked            seen = {0};
        other_rank         other = {0};
        const float        lr = kind ? -1.0f : 0.1f;
        rig                r;
        uint64_t           before;
        meets(&desc, meet_chunks, &seen);
        seen.opt = &r.opt;
        rig_single(&r, &desc, 5, AMP_F32);
        fill_grads(&r, 1, 65536.0f);
        CHECK(rig_step(&r, 0.1f));
        before = state_digest(&r);
        if (kind) CHECK_EQ_INT(amp_optimizer_step(&r.opt, lr), AMP_ERROR_INVALID_CONFIG);
        else CHECK_EQ_INT(amp_optimizer_step(&r.opt, lr), AMP_ERROR_UNSUPPORTED);
        CHECK(seen.calls == 2 && !seen.n && seen.maxima[0] == AMP_ASK_SKIP && !seen.maxima[1]);
        CHECK_EQ_F64(seen.norm2, 0.0);
        CHECK_EQ_U64(state_digest(&r), before);
        if (!kind) {
            CHECK(amp_optimizer_begin_step(&r.opt));
            CHECK(!amp_optimizer_begin_step(&r.opt));
            CHECK_EQ_INT(amp_optimizer_check(&r.opt), AMP_ERROR_STEP_OPEN);
            CHECK_EQ_INT(seen.calls, 3);
            CHECK_EQ_INT(amp_optimizer_end_step(&r.opt), AMP_ERROR_STEP_OPEN);
        }
        rig_end(&r);
        meets(&desc, meet, &other);
        desc.scaler.disabled = 1;
        rig_single(&r, &desc, 5, AMP_F32);
        fill_grads(&r, 1, 1.0f);
        other.maxima[0] = 1; /* an overflow elsewhere */
        CHECK(rig_step(&r, 0.1f));
        before = state_digest(&r);
        fill_grads(&r, 1, 1.0f);
        other.maxima[0] = AMP_ASK_SKIP;
        CHECK(!rig_step(&r, 0.1f));
        CHECK_EQ_U64(state_digest(&r), before);
        rig_end(&r);
    }
}

TEST(ranks_magnitude, "law 5: the largest magnitude of all ranks is checked as a product") {
    amp_optimizer_desc desc = kind_desc(1);
    const float        large = 3e38f;
    other_rank         other;
    rig                r;
    memset(&other, 0, sizeof other);
    memcpy(&other.maxima[1], &large, 4);
    meets(&desc, meet, &other);
    desc.scaler.init_scale = 0.25f;
    rig_single(&r, &desc, 2, AMP_F32);
    CHECK(!rig_step(&r, 0.1f));
    rig_end(&r);
}

/* ================================================================================== refresh */

static uint64_t moments(const rig *r, size_t i) {
    const uint64_t h = hash_array(1469598103934665603ull, moment(r, i, 0), AMP_F32, r->tensor[i].n);
    return hash_array(h, moment(r, i, 1), AMP_F32, r->tensor[i].n);
}

TEST(refresh, "contract: model copies from masters, now: 0 bits off those of the step whose masters are put "
              "back, and of a cast of any bits; moments, scale and counters stay") {
    static const size_t lengths[] = {0, 1, 1000, 40001};
    int                 kind, type;
    size_t              i, k;
    for (kind = AMP_KIND_OWN; kind <= AMP_KIND_ADAMW; kind++)
        for (type = AMP_F32; type <= AMP_BF16; type++) {
            amp_optimizer_desc desc = {0};
            rig                r;
            float             *best[4];
            void              *copy[4], *cast = malloc(4 * 40001);
            amp_status         before, after;
            uint64_t           moved[4];
            desc.kind  = (amp_kind)kind;
            desc.dtype = (amp_dtype)type;
            rig_begin(&r, 4);
            for (i = 0; i < 4; i++)
                rig_tensor(&r, i, lengths[i], i == 2 ? MODEL | GRAD : WEIGHT | GRAD, AMP_F32, AMP_F16, 0);
            r.tensor[1].keep_fp32 = 1;
            rig_prepare(&r, &desc);
            for (k = 0; k < 4; k++) {
                fill_grads(&r, (uint32_t)k, 65536.0f);
                CHECK(rig_step(&r, 0.25f));
                for (i = 0; i < 4 && k == 1; i++) {
                    const size_t bytes = lengths[i] * size_of(copy_type(&r, i));
                    best[i]            = (float *)malloc(4 * lengths[i] + 1);
                    copy[i]            = malloc(bytes + 1);
                    memcpy(best[i], amp_optimizer_master(&r.opt, (int)i), 4 * lengths[i]);
                    memcpy(copy[i], amp_optimizer_model(&r.opt, (int)i), bytes);
                }
            }
            before = status_of(&r);
            for (i = 0; i < 4; i++) moved[i] = moments(&r, i);
            for (i = 0; i < 4; i++)
                memcpy(amp_optimizer_master(&r.opt, (int)i), best[i], 4 * lengths[i]);
            CHECK_EQ_INT(amp_optimizer_refresh(&r.opt), AMP_OK);
            after = status_of(&r);
            CHECK_EQ_F32(after.loss_scale, before.loss_scale);
            CHECK(after.steps == before.steps && after.skipped == before.skipped && after.did_step);
            for (i = 0; i < 4 && kind == AMP_KIND_ADAMW; i++) CHECK_EQ_U64(moments(&r, i), moved[i]);
            for (i = 0; i < 4; i++)
                CHECK_MEM(amp_optimizer_model(&r.opt, (int)i), copy[i],
                          lengths[i] * size_of(copy_type(&r, i)));
            for (k = 0; k < 40001; k++)
                store(amp_optimizer_master(&r.opt, 3), AMP_F32, k,
                      from_bits(mix((uint32_t)k, 5, (uint32_t)type) | (k % 9 ? 0u : 0x7f800000u)));
            CHECK_EQ_INT(amp_optimizer_refresh(&r.opt), AMP_OK);
            CHECK_EQ_INT(amp_cast(cast, desc.dtype, amp_optimizer_master(&r.opt, 3), AMP_F32, 40001), AMP_OK);
            CHECK_MEM(amp_optimizer_model(&r.opt, 3), cast, 40001 * size_of(desc.dtype));
            for (i = 0; i < 4; i++) free(best[i]), free(copy[i]);
            free(cast);
            rig_end(&r);
        }
}

/* =================================================================================== rebind */

TEST(rebind, "contract: rebind after a realloc of the host's; results equal the run without a "
             "move") {
    int kind, in_place, type;
    for (kind = 0; kind < NUM_KINDS; kind++)
        for (in_place = 0; in_place < 2; in_place++)
            for (type = AMP_F32; type <= AMP_F16; type++) {
                amp_optimizer_desc desc = kind_desc(kind);
                rig                still, moving;
                int                step;
                desc.unscale_in_place = in_place;
                rig_single(&still, &desc, 100, (amp_dtype)type);
                rig_single(&moving, &desc, 100, (amp_dtype)type);
                for (step = 0; step < 9; step++) {
                    amp_tensor *t = &moving.tensor[0];
                    size_t      which;
                    for (which = 0; which < 3; which += 2) { /* weight, then gradient */
                        const size_t size  = which == 0 ? 400 : 100 * size_of((amp_dtype)type);
                        void        *fresh = malloc(size);
                        if (step % 3 != 1 && which == 0) {
                            free(fresh);
                            continue;
                        }
                        memcpy(fresh, moving.block[which], size);
                        memset(moving.block[which], 0xff, size);
                        free(moving.block[which]);
                        moving.block[which] = fresh;
                        if (which == 0) t->weight = (float *)fresh;
                        else t->grad = fresh;
                    }
                    CHECK_EQ_INT(amp_optimizer_rebind(&moving.opt, 0,
                                                      step % 3 == 1 ? t->weight : NULL, t->grad),
                                 AMP_OK);
                    CHECK(amp_optimizer_master(&moving.opt, 0) == t->weight);
                    if (in_place && kind == 0 && type == AMP_F32)
                        CHECK(amp_optimizer_grad(&moving.opt, 0) == (float *)t->grad);
                    step_alike(&moving, &still, (uint32_t)step);
                }
                CHECK_EQ_INT(amp_optimizer_rebind(&moving.opt, 0, NULL, NULL), AMP_OK);
                CHECK(amp_optimizer_master(&moving.opt, 0) == moving.tensor[0].weight);
                rig_end(&still);
                rig_end(&moving);
            }
}

/* =================================================================================== misuse */

TEST(uninitialized, "law 16: a zeroed object and NULL are answered, not followed") {
    amp_optimizer opt;
    amp_tensor    t = {0};
    amp_status    status;
    amp_grad_stats     stats;
    memset(&opt, 0, sizeof opt);
    CHECK_EQ_INT(amp_optimizer_init(NULL, NULL), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_optimizer_add(NULL, &t), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_ERROR_NOT_INITIALIZED);
    CHECK_EQ_INT(amp_optimizer_add_flat(&opt, &t, &t, 1), AMP_ERROR_NOT_INITIALIZED);
    CHECK_EQ_INT(amp_optimizer_prepare(NULL), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_optimizer_prepare(&opt), AMP_ERROR_NOT_INITIALIZED);
    CHECK_EQ_INT(amp_optimizer_step(NULL, 1.0f), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_optimizer_step(&opt, 1.0f), AMP_ERROR_NOT_INITIALIZED);
    CHECK(!amp_optimizer_begin_step(NULL));
    CHECK(!amp_optimizer_begin_step(&opt));
    CHECK_EQ_INT(amp_optimizer_end_step(NULL), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_optimizer_end_step(&opt), AMP_ERROR_NOT_INITIALIZED);
    CHECK_EQ_INT(amp_optimizer_status(NULL, &status), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_optimizer_status(&opt, NULL), AMP_ERROR_NOT_INITIALIZED);
    CHECK_EQ_INT(amp_optimizer_stats(NULL, 0, &stats), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_optimizer_status(&opt, &status), AMP_ERROR_NOT_INITIALIZED);
    CHECK_EQ_INT(amp_optimizer_stats(&opt, 0, &stats), AMP_ERROR_NOT_INITIALIZED);
    CHECK_EQ_INT(amp_optimizer_rebind(NULL, 0, NULL, NULL), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_optimizer_rebind(&opt, 0, NULL, NULL), AMP_ERROR_NOT_INITIALIZED);
    CHECK(amp_optimizer_model(NULL, 0) == NULL && amp_optimizer_model(&opt, 0) == NULL);
    CHECK(amp_optimizer_grad(NULL, 0) == NULL && amp_optimizer_grad(&opt, 0) == NULL);
    CHECK(amp_optimizer_master(NULL, 0) == NULL && amp_optimizer_master(&opt, 0) == NULL);
    CHECK(amp_optimizer_scaler(NULL) == NULL && amp_optimizer_loss_scale_ptr(NULL) == NULL);
    CHECK(amp_optimizer_scaler(&opt) == NULL && amp_optimizer_gate(&opt) == NULL);
    CHECK_EQ_F32(amp_optimizer_loss_scale(NULL), 0.0f);
    CHECK(amp_optimizer_gate(NULL) == NULL && amp_optimizer_lr_ptr(NULL) == NULL);
    amp_optimizer_free(NULL);
    amp_optimizer_free(&opt);
}

/* ================================================================================ bad input */

static amp_result init_result(const amp_optimizer_desc *desc) {
    amp_optimizer zero, opt;
    amp_result    result;
    memset(&zero, 0, sizeof zero);
    memset(&opt, 0, sizeof opt);
    result = amp_optimizer_init(&opt, desc);
    if (result != AMP_OK) CHECK_MEM(&opt, &zero, sizeof opt);
    amp_optimizer_free(&opt);
    return result;
}

static void *never_alloc(void *user, size_t num_bytes) {
    (void)num_bytes;
    (void)user;
    return NULL;
}
static void never_free(void *user, void *memory) {
    (void)memory;
    (void)user;
}

TEST(bad_desc, "law 9: every field of the desc that is NaN, infinite, an unknown enum or, where that does not mean "
               "0, negative is an error, and nothing is changed") {
    const double       doubles[] = {double_from_bits(0x7ff8000000000000ull),
                                    double_from_bits(0x7ff0000000000001ull),
                                    double_from_bits(0x7ff0000000000000ull),
                                    double_from_bits(0xfff0000000000000ull), -1.0, -1e-300};
    const float        floats[]  = {from_bits(0x7fc00000u), from_bits(0x7f800001u),
                                    from_bits(0x7f800000u), from_bits(0xff800000u), -1.0f,
                                    from_bits(0x80000001u)};
    amp_optimizer_desc good, d;
    amp_backend        backend;
    size_t             k;
    memset(&good, 0, sizeof good);
    CHECK_EQ_INT(init_result(&good), AMP_OK);
    CHECK_EQ_INT(init_result(NULL), AMP_OK);
#define BAD(field, bad_value, wanted)             \
    do {                                          \
        d       = good;                           \
        d.field = bad_value;                      \
        CHECK_EQ_INT(init_result(&d), wanted);    \
    } while (0)
    for (k = 0; k < COUNT_OF(doubles); k++) {
        const amp_result below = k < 4 ? AMP_ERROR_INVALID_CONFIG : AMP_OK; /* -1: 0 */
        BAD(beta1, doubles[k], below);
        BAD(beta2, doubles[k], below);
        BAD(eps, doubles[k], AMP_ERROR_INVALID_CONFIG);
        BAD(momentum, doubles[k], AMP_ERROR_INVALID_CONFIG);
        BAD(scaler.growth_factor, doubles[k], AMP_ERROR_INVALID_CONFIG);
        BAD(scaler.backoff_factor, doubles[k], AMP_ERROR_INVALID_CONFIG);
    }
    for (k = 0; k < COUNT_OF(floats); k++) {
        BAD(weight_decay, floats[k], k < 4 ? AMP_ERROR_INVALID_CONFIG : AMP_OK);
        BAD(max_norm, floats[k], AMP_ERROR_INVALID_CONFIG);
        BAD(scaler.init_scale, floats[k], AMP_ERROR_INVALID_CONFIG);
        BAD(scaler.min_scale, floats[k], AMP_ERROR_INVALID_CONFIG);
        BAD(scaler.max_scale, floats[k], AMP_ERROR_INVALID_CONFIG);
    }
    BAD(beta1, 1.0, AMP_ERROR_INVALID_CONFIG);
    BAD(beta2, 1.0, AMP_ERROR_INVALID_CONFIG);
    BAD(beta2, 2.0, AMP_ERROR_INVALID_CONFIG);
    BAD(eps, 1e39, AMP_ERROR_INVALID_CONFIG); /* infinite as a float */
    BAD(momentum, 1e39, AMP_ERROR_INVALID_CONFIG);
    BAD(nesterov, 1, AMP_ERROR_INVALID_CONFIG); /* without momentum */
    BAD(scaler.growth_interval, -1, AMP_ERROR_INVALID_CONFIG);
    BAD(scaler.hysteresis, -1, AMP_ERROR_INVALID_CONFIG);
    BAD(scaler.preset, (amp_preset)99, AMP_ERROR_INVALID_ENUM);
    BAD(dtype, (amp_dtype)3, AMP_ERROR_INVALID_ENUM);
    BAD(dtype, (amp_dtype)-1, AMP_ERROR_INVALID_ENUM);
    BAD(kind, (amp_kind)99, AMP_ERROR_INVALID_ENUM);
    BAD(kind, (amp_kind)-1, AMP_ERROR_INVALID_ENUM);
    BAD(allocator.allocate_fn, never_alloc, AMP_ERROR_INVALID_ARGUMENT);
    BAD(allocator.release_fn, never_free, AMP_ERROR_INVALID_ARGUMENT);
#undef BAD
    memset(&backend, 0, sizeof backend);
    d         = good;
    d.backend = &backend; /* which nobody made */
    CHECK_EQ_INT(init_result(&d), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_cpu_backend(NULL), AMP_ERROR_INVALID_ARGUMENT);
}

TEST(refused_is_remembered, "manual: a tensor that add refuses is remembered: prepare returns its error and says which, until free; "
                            "later ones would have its number") {
    float              w[4] = {0}, g[4] = {0};
    amp_optimizer_desc d = {0};
    amp_optimizer      opt;
    amp_tensor         t = {0}, bad;
    int                flat;
    t.n = 4, t.weight = w, t.grad = g;
    bad          = t;
    bad.lr_scale = from_bits(0x7f800000u);
    for (flat = 0; flat < 2; flat++) {
        CHECK_EQ_INT(amp_optimizer_init(&opt, &d), AMP_OK);
        if (flat) CHECK_EQ_INT(amp_optimizer_add_flat(&opt, &t, NULL, 0), AMP_ERROR_INVALID_ARGUMENT);
        else CHECK_EQ_INT(amp_optimizer_add(&opt, &bad), AMP_ERROR_INVALID_CONFIG);
        CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
        SAYS(amp_optimizer_prepare(&opt), flat ? AMP_ERROR_INVALID_ARGUMENT : AMP_ERROR_INVALID_CONFIG,
             flat ? "tensor 0: the tensors' n do not add up to whole's 4" : "tensor 0: lr_scale is inf, and must be finite");
        SAYS(amp_optimizer_prepare(&opt), flat ? AMP_ERROR_INVALID_ARGUMENT : AMP_ERROR_INVALID_CONFIG, "tensor 0");
        CHECK(amp_optimizer_model(&opt, 0) == NULL);
        amp_optimizer_free(&opt);
        CHECK_EQ_INT(amp_optimizer_init(&opt, &d), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_prepare(&opt), AMP_OK);
        SAYS(amp_optimizer_add(&opt, &t), AMP_ERROR_PREPARED, NULL); /* no refusal to remember */
        amp_optimizer_free(&opt);
    }
}

TEST(bad_tensor, "law 9: a tensor with a bad field is not added") {
    const float        floats[] = {from_bits(0x7fc00000u), from_bits(0x7f800001u),
                                   from_bits(0x7f800000u), from_bits(0xff800000u)};
    amp_optimizer_desc desc     = kind_desc(1);
    amp_optimizer      opt;
    amp_tensor         good, t;
    float              w[4] = {1, 2, 3, 4}, g[4] = {0, 0, 0, 0};
    amp_f16            h[4];
    amp_grad_stats          stats;
    size_t             k;
    memset(&good, 0, sizeof good);
    memset(h, 0, sizeof h);
    good.n      = 4;
    good.weight = w;
    good.grad   = g;
    CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_add(&opt, NULL), AMP_ERROR_INVALID_ARGUMENT);
#define BAD(field, bad_value, wanted)                       \
    do {                                                    \
        t       = good;                                     \
        t.field = bad_value;                                \
        CHECK_EQ_INT(amp_optimizer_add(&opt, &t), wanted);  \
    } while (0)
    for (k = 0; k < COUNT_OF(floats); k++) {
        BAD(lr_scale, floats[k], AMP_ERROR_INVALID_CONFIG);
        BAD(weight_decay, floats[k], AMP_ERROR_INVALID_CONFIG);
    }
    BAD(weight, NULL, AMP_ERROR_INVALID_ARGUMENT);
    BAD(grad_type, (amp_dtype)7, AMP_ERROR_INVALID_ENUM);
    BAD(grad_type, (amp_dtype)-1, AMP_ERROR_INVALID_ENUM);
    BAD(n, SIZE_MAX, AMP_ERROR_TOO_LARGE);
    BAD(n, SIZE_MAX / 2, AMP_ERROR_TOO_LARGE);
    BAD(first, 16383, AMP_ERROR_INVALID_CONFIG);
    BAD(first, (uint64_t)1 << 63, AMP_ERROR_INVALID_CONFIG);
#undef BAD
    t            = good;
    t.model      = h;
    t.model_type = (amp_dtype)7;
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_ERROR_INVALID_ENUM);
    t.model_type = AMP_F16;
    t.keep_fp32  = 1; /* contradicts a half model */
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_ERROR_INVALID_CONFIG);
    CHECK_EQ_INT(amp_optimizer_add(&opt, &good), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_stats(&opt, 0, &stats), AMP_ERROR_NOT_PREPARED);
    forget_refused(&opt);
    CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
    CHECK(amp_optimizer_master(&opt, 0) == w);
    CHECK(amp_optimizer_master(&opt, 1) == NULL);
    CHECK_EQ_INT(amp_optimizer_stats(&opt, 0, NULL), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_optimizer_stats(&opt, 1, &stats), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_optimizer_stats(&opt, -1, &stats), AMP_ERROR_INVALID_ARGUMENT);
    CHECK(amp_optimizer_model(&opt, 1) == NULL && amp_optimizer_model(&opt, -1) == NULL);
    amp_optimizer_free(&opt);
}

TEST(model_type_ignored, "manual: model_type is ignored if model is NULL") {
    amp_optimizer_desc desc = kind_desc(1);
    amp_optimizer      opt;
    amp_tensor         t;
    float              w[1] = {1.0f};
    memset(&t, 0, sizeof t);
    t.n          = 1;
    t.weight     = w;
    t.model_type = (amp_dtype)7;
    CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
    amp_optimizer_free(&opt);
}

/* ============================================================================ law 7: one digest */

/* 50 steps of everything, with overflows, growth, clipping, subnormals; norm, clip factor and scale
   of every step are in it. */
static uint64_t long_run(int kind) {
    amp_optimizer_desc desc = kind_desc(kind);
    uint64_t           h    = 1469598103934665603ull, norm_bits;
    rig                r;
    uint32_t           step;
    size_t             i;
    desc.max_norm               = 1.5f;
    desc.scaler.growth_interval = 7;
    rig_begin(&r, 6);
    rig_tensor(&r, 0, 3000, WEIGHT | GRAD, AMP_F16, AMP_F32, 0);
    rig_tensor(&r, 1, 1025, WEIGHT | GRAD, AMP_BF16, AMP_F32, 1);
    rig_tensor(&r, 2, 1001, MODEL | GRAD, AMP_F32, AMP_BF16, 2);
    rig_tensor(&r, 3, 257, WEIGHT | MODEL | GRAD, AMP_F16, AMP_F16, 3);
    rig_tensor(&r, 4, 64, WEIGHT | GRAD, AMP_F32, AMP_F32, 0);
    rig_tensor(&r, 5, 9, WEIGHT, AMP_F32, AMP_F32, 0);
    r.tensor[1].lr_scale        = 0.3f;
    r.tensor[2].weight_decay    = 0.1f;
    r.tensor[3].weight_decay    = -1.0f;
    r.tensor[4].keep_fp32       = 1;
    for (i = 0; i < 32; i++) store_bits(r.tensor[4].weight, AMP_F32, i, (uint32_t)i * 70001u);
    rig_prepare(&r, &desc);
    for (step = 0; step < 50; step++) {
        const float scale = amp_optimizer_loss_scale(&r.opt);
        amp_status  status;
        fill_grads(&r, step, step % 9 == 8 ? scale * 0.001f : scale);
        for (i = 0; i < 32; i++) /* subnormal, and subnormal once unscaled */
            store_bits(r.tensor[4].grad, AMP_F32, i, mix(step, 3, (uint32_t)i) % 0x04000000u);
        if (step % 11 == 5) store_bits(r.tensor[step % 4].grad, r.tensor[step % 4].grad_type, step,
                                       patterns[r.tensor[step % 4].grad_type][step % 5]);
        if (step == 30) store(r.tensor[2].grad, AMP_F32, 0, 2e38f); /* norm^2 overflows */
        CHECK_EQ_INT(rig_step(&r, 0.003f), step % 11 != 5);
        status = status_of(&r);
        h      = hash_word(h, (uint64_t)bits_of(status.clip_factor) << 32 | bits_of(scale), 8);
        memcpy(&norm_bits, &status.norm, 8);
        h = hash_word(h, norm_bits, 8);
    }
    h = hash_word(h, state_digest(&r), 8);
    rig_end(&r);
    return h;
}

/* From gcc 12 -O0; the reference above confirms every formula in it bit by bit. */
static const uint64_t wanted_digests[NUM_KINDS] = {
    0xe76366552d400bdeull, 0x6a9cd4a68b09858cull, 0xbc382d31c576428eull, 0xa115af4d5ee655f8ull,
    0xfd830f0fde019bf5ull};

TEST(digest, "law 7: the same step gives the same bits for any compiler and any of its flags") {
    int kind;
    for (kind = 0; kind < NUM_KINDS; kind++) CHECK_EQ_U64(long_run(kind), wanted_digests[kind]);
}

TEST(digest_environment, "law 7: and under any settings of the caller: flushed subnormals, another "
                         "rounding mode; they return with the call") {
    static const uint32_t settings[] = {FP_FTZ | FP_DAZ, FP_ROUNDING, 2 * FP_ROUNDING,
                                        3 * FP_ROUNDING, FP_FTZ | FP_DAZ | 2 * FP_ROUNDING};
    size_t                k;
    int                   kind;
    if (!FP_CONTROL) SKIP(FP_WHY);
    for (k = 0; k < COUNT_OF(settings); k++)
        for (kind = 0; kind < NUM_KINDS; kind++) {
            uint64_t h;
            environment = FP_IEEE | settings[k];
            h           = long_run(kind);
            environment = FP_IEEE;
            CHECK_EQ_U64(h, wanted_digests[kind]);
        }
}

TEST(least_momentum, "law 7: the least momentum above 0, 4.9e-324, has its moment, and so where a caller has "
                     "subnormals count as 0") {
    const uint64_t least = 1;
    int            daz;
    for (daz = 0; daz <= FP_CONTROL; daz++) {
        amp_optimizer_desc desc;
        float              moment[5] = {0};
        amp_result         result;
        rig                r;
        memset(&desc, 0, sizeof desc);
        desc.kind = AMP_KIND_SGD;
        memcpy(&desc.momentum, &least, 8);
        environment = FP_IEEE | (daz ? FP_FTZ | FP_DAZ : 0u);
        rig_single(&r, &desc, 5, AMP_F32);
        fill_grads(&r, 1, 65536.0f);
        CHECK(rig_step(&r, 0.1f));
        enter();
        result = amp_optimizer_moments(&r.opt, 0, moment, NULL);
        leave();
        environment = FP_IEEE;
        CHECK_EQ_INT(result, AMP_OK);
        CHECK_EQ_F32(moment[3], value(1, 0, 3) * 0.0625f);
        rig_end(&r);
    }
}

/* ============================================================ laws 17 and 19, and what they bring */

/* A step of any kind: its result. */
static amp_result step_result(amp_optimizer *opt, float lr) {
    if (opt->desc.kind != AMP_KIND_OWN) return amp_optimizer_step(opt, lr);
    amp_optimizer_begin_step(opt);
    return amp_optimizer_end_step(opt);
}

static amp_result ask_skip(void *user, double *norm2, size_t num_sums, uint32_t *maxima, size_t num_maxima) {
    uint32_t *seen = (uint32_t *)user;
    (void)norm2, (void)num_sums, (void)num_maxima;
    *seen = maxima[0];
    if (*seen == 0) maxima[0] = 4; /* a consensus of our own: skip */
    return AMP_OK;
}

TEST(found_inf_before_ranks, "contract: a found_inf written by hand is there before reduce_fn, so "
                             "that all ranks skip; and reduce_fn may set maxima[0]") {
    int kind;
    for (kind = 0; kind < NUM_KINDS; kind++) {
        amp_optimizer_desc desc = kind_desc(kind);
        uint32_t           seen = 99;
        rig                r;
        meets(&desc, ask_skip, &seen);
        rig_single(&r, &desc, 5, AMP_F32);
        fill_grads(&r, 1, 65536.0f);
        amp_optimizer_scaler(&r.opt)->found_inf = 2;
        CHECK(!rig_step(&r, 0.1f));
        CHECK(seen != 0 && seen != 99);
        CHECK_EQ_INT(amp_optimizer_scaler(&r.opt)->found_inf, 0);
        CHECK(!rig_step(&r, 0.1f)); /* reduce_fn's own */
        CHECK_EQ_INT(seen, 0);
        CHECK_EQ_U64(status_of(&r).skipped, 2);
        rig_end(&r);
    }
}

/* ------------------------------------------------------------- a loss that nobody has scaled */

#define UNSCALED                                                                               \
    "the loss was not scaled: multiply it by amp_optimizer_loss_scale, or set "                \
    "desc.scaler.preset to AMP_PRESET_NONE"

static void one_tensor(amp_optimizer *opt, const amp_optimizer_desc *desc, size_t n, float *w, float *g) {
    amp_tensor t;
    memset(&t, 0, sizeof t);
    t.n = n, t.weight = w, t.grad = g;
    CHECK_EQ_INT(amp_optimizer_init(opt, desc), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_add(opt, &t), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_prepare(opt), AMP_OK);
}

static void ask_by(amp_optimizer *opt, int way) {
    switch (way) {
    case 0: CHECK_EQ_F32(amp_optimizer_loss_scale(opt), 65536.0f); break;
    case 1: CHECK_EQ_F32(*amp_optimizer_loss_scale_ptr(opt), 65536.0f); break;
    default: CHECK_EQ_F32(amp_optimizer_scaler(opt)->scale, 65536.0f);
    }
}

TEST(unscaled_loss, "law 17: where nobody has asked for the loss scale, in one of three ways, no step begins, and "
                    "nothing changes; status, which a run that resumes needs, does not ask") {
    int way;
    for (way = 0; way < 3; way++) {
        amp_status         status;
        float              w[2] = {1, 2}, g[2] = {65536, 0};
        amp_optimizer_desc desc = {0};
        amp_optimizer      opt;
        desc.kind    = AMP_KIND_SGD;
        one_tensor(&opt, &desc, 2, w, g);
        CHECK(amp_optimizer_gate(&opt)->skip == 0 && amp_optimizer_lr_ptr(&opt) && amp_optimizer_model(&opt, 0));
        CHECK_EQ_INT(amp_optimizer_status(&opt, &status), AMP_OK);
        SAYS(amp_optimizer_step(&opt, 0.5f), AMP_ERROR_BAD_STATE, "multiply it by amp_optimizer_loss_scale");
        CHECK_EQ_F32(w[0], 1.0f);
        ask_by(&opt, way);
        *amp_optimizer_lr_ptr(&opt) = 0.5f;
        SAYS(amp_optimizer_step_graph(&opt), AMP_OK, NULL);
        CHECK_EQ_F32(w[0], 0.5f);
        amp_optimizer_free(&opt);
    }
}

TEST(scale_was_set, "law 17: whose scale is 1, shared, or set by desc or file need not ask; a preset is no "
                    "scale, nor the default that AMP_DTYPE brings, nor is a file whose scaler was disabled") {
    enum { PLAIN, PRESET, ONE, NO_SCALE, GIVEN, CAPPED, DISABLED, SHARED, REDUCED, NONE, EMPTY, ENV_BF16,
           ENV_FP16, FILED, FILED_DISABLED, COUNT };
    static const int refused[] = {PLAIN, PRESET, ENV_FP16, FILED_DISABLED};
    amp_scaler       shared;
    int              kind, way;
    for (kind = 0; kind < 2; kind++)
        for (way = 0; way < COUNT; way++) {
            float              w[2] = {1, 2}, g[2] = {0, 0};
            static tape file;
            other_rank         other;
            amp_optimizer_desc desc;
            amp_optimizer      opt;
            amp_result         want = AMP_OK;
            size_t             k;
            for (k = 0; k < sizeof refused / sizeof *refused; k++)
                if (way == refused[k]) want = AMP_ERROR_BAD_STATE;
            memset(&desc, 0, sizeof desc);
            memset(&other, 0, sizeof other);
            file.size = file.at = 0;
            desc.kind = kind ? AMP_KIND_SGD : AMP_KIND_OWN;
            if (way == PRESET) desc.scaler.preset = AMP_PRESET_STATIC;
            if (way == ONE) desc.scaler.preset = AMP_PRESET_STATIC, desc.scaler.init_scale = 1.0f;
            if (way == NO_SCALE || way == ENV_FP16) desc.scaler.preset = AMP_PRESET_NONE;
            if (way == GIVEN) desc.scaler.init_scale = 65536.0f;
            if (way == CAPPED) desc.scaler.max_scale = 1.0f;
            if (way == DISABLED || way == FILED_DISABLED) desc.scaler.disabled = 1;
            CHECK_EQ_INT(amp_scaler_init(&shared, NULL), AMP_OK);
            if (way == SHARED) desc.shared_scaler = &shared;
            if (way == REDUCED) meets(&desc, meet, &other);
            if (way == ENV_BF16 || way == ENV_FP16) {
                setenv("AMP_DTYPE", way == ENV_BF16 ? "bf16" : "fp16", 1);
                CHECK_EQ_INT(amp_optimizer_desc_from_env(&desc), AMP_OK);
                unsetenv("AMP_DTYPE");
            }
            if (way == NONE) {
                CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
                CHECK_EQ_INT(amp_optimizer_prepare(&opt), AMP_OK);
            } else one_tensor(&opt, &desc, way == EMPTY ? 0 : 2, w, g);
            if (way >= FILED) {
                CHECK_EQ_INT(amp_optimizer_save(&opt, tape_write, &file), AMP_OK);
                amp_optimizer_free(&opt);
                desc.scaler.disabled = 0;
                one_tensor(&opt, &desc, 2, w, g);
                CHECK_EQ_INT(amp_optimizer_load(&opt, tape_read, &file), AMP_OK);
            }
            CHECK_EQ_INT(step_result(&opt, 0.5f), want);
            (void)amp_optimizer_loss_scale_ptr(&opt);
            CHECK_EQ_INT(step_result(&opt, 0.5f), AMP_OK);
            amp_optimizer_free(&opt);
        }
}

TEST(rebind_all_errors, "contract: rebind_all changes all or nothing, and amp_problem names the tensor") {
    amp_optimizer_desc desc = kind_desc(0);
    float              w[5], g[5], *weights[3];
    void              *grads[3];
    rig                r;
    memset(w, 0, sizeof w);
    memset(g, 0, sizeof g);
    rig_three(&r);
    r.tensor[1].name = "head";
    r.tensor[2].name = "tail";
    CHECK_EQ_INT(amp_optimizer_rebind_all(NULL, NULL, NULL), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_optimizer_init(&r.opt, &desc), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_rebind_all(&r.opt, NULL, NULL), AMP_ERROR_NOT_PREPARED);
    amp_optimizer_free(&r.opt);
    CHECK_EQ_INT(amp_optimizer_rebind_all(&r.opt, NULL, NULL), AMP_ERROR_NOT_INITIALIZED);
    rig_prepare(&r, &desc);
    weights[0] = weights[1] = w;
    weights[2] = NULL;
    CHECK_EQ_INT(amp_optimizer_rebind_all(&r.opt, weights, NULL), AMP_ERROR_UNSUPPORTED);
    CHECK(strstr(amp_problem(), "tensor 1 (head)") != NULL && strstr(amp_problem(), "master") != NULL);
    CHECK(amp_optimizer_master(&r.opt, 0) == r.tensor[0].weight);
    grads[0] = grads[2] = g;
    grads[1] = NULL;
    CHECK_EQ_INT(amp_optimizer_rebind_all(&r.opt, NULL, grads), AMP_ERROR_UNSUPPORTED);
    CHECK(strstr(amp_problem(), "tensor 2 (tail)") != NULL && strstr(amp_problem(), "it is frozen") != NULL);
    CHECK(r.opt.plan->table[0].grad == r.tensor[0].grad);
    CHECK(r.opt.plan->table[1].grad == r.tensor[1].grad);
    fill_grads(&r, 1, 65536.0f);
    CHECK(amp_optimizer_begin_step(&r.opt));
    CHECK_EQ_INT(amp_optimizer_rebind_all(&r.opt, NULL, NULL), AMP_ERROR_STEP_OPEN);
    CHECK_EQ_INT(amp_optimizer_end_step(&r.opt), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_rebind_all(&r.opt, NULL, NULL), AMP_OK);
    rig_end(&r);
}

/* Darknet's loop: gradients are added to a buffer that still holds momentum times the last ones.
   By a scaler alone the unscaled ones have a buffer of the caller's, as recipe g says. */
TEST(carry, "law 14: a buffer that carries momentum, written anew from amp_optimizer_grad behind each step, trains "
            "as in fp32, bit for bit, while the scale grows and overflows are planted") {
    enum { N = 37, STEPS = 120, OWN, SHARED, ALONE };
    static const float lr = 0.05f, momentum = 0.875f;
    int                how;
    for (how = OWN; how <= ALONE; how++) {
        amp_optimizer_desc desc = kind_desc(0);
        amp_scaler         s;
        float              w[N], u[N], buffer[N];
        uint32_t           step, j, overflows = 0;
        rig                r;
        desc.scaler.growth_interval = 7;
        desc.scaler.init_scale      = 1024.0f;
        desc.scaler.max_scale       = 65536.0f;
        CHECK_EQ_INT(amp_scaler_init(&s, &desc.scaler), AMP_OK);
        if (how == SHARED) desc.shared_scaler = &s;
        rig_single(&r, &desc, N, AMP_F32);
        memcpy(w, r.tensor[0].weight, sizeof w);
        memset(u, 0, sizeof u);
        memset(buffer, 0, sizeof buffer);
        memset(r.tensor[0].grad, 0, sizeof u);
        for (step = 0; step < STEPS; step++) {
            float       *g     = (float *)r.tensor[0].grad;
            const float *last  = how == ALONE ? buffer : amp_optimizer_grad(&r.opt, 0);
            float        scale = how == ALONE ? s.scale : amp_optimizer_loss_scale(&r.opt);
            const int    bad   = step % 11 == 4 || step == 0;
            for (j = 0; j < N; j++) g[j] = f_add(g[j], f_mul(value(step, 3, j), scale));
            if (bad) store_bits(g, AMP_F32, step % N, patterns[AMP_F32][step % NUM_NONFINITE]);
            if (how != ALONE) CHECK_EQ_INT(amp_optimizer_begin_step(&r.opt), !bad);
            else {
                CHECK_EQ_INT(amp_scaler_unscale(&s, NULL, g, AMP_F32, N), AMP_OK);
                CHECK_EQ_INT(s.found_inf != 0, bad);
                if (!bad) CHECK_EQ_INT(amp_scaler_unscale(&s, buffer, g, AMP_F32, N), AMP_OK);
            }
            for (j = 0; j < N && !bad; j++) {
                r.tensor[0].weight[j] = f_sub(r.tensor[0].weight[j], f_mul(lr, last[j]));
                u[j] = f_add(f_mul(momentum, u[j]), value(step, 3, j));
                w[j] = f_sub(w[j], f_mul(lr, u[j]));
            }
            if (how != ALONE) CHECK_EQ_INT(amp_optimizer_end_step(&r.opt), AMP_OK);
            if (how != OWN) CHECK_EQ_INT(amp_scaler_update(&s), AMP_OK);
            scale = how == ALONE ? s.scale : amp_optimizer_loss_scale(&r.opt);
            for (j = 0; j < N; j++) g[j] = f_mul(last[j], f_mul(momentum, scale));
            CHECK_MEM(w, r.tensor[0].weight, sizeof w);
            overflows += (uint32_t)bad;
        }
        if (how == OWN) s = *amp_optimizer_scaler(&r.opt);
        if (how != ALONE) CHECK_EQ_U64(status_of(&r).skipped, overflows);
        CHECK(s.growths > 5 && s.backoffs > 5);
        rig_end(&r);
    }
}

static void told(amp_optimizer_desc *d, const char *field, const char *value_text) {
    amp_optimizer opt;
    amp_result    result;
    test_older();
    result     = amp_optimizer_init(&opt, d);
    CHECK(result != AMP_OK);
    if (strstr(amp_problem(), field) && strstr(amp_problem(), value_text)) return;
    test_fail(__FILE__, __LINE__, field, amp_problem());
}

/* Calls of gcc's OpenMP for several threads, on their way to it. */
#if defined(_OPENMP) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__)
#define HAVE_TEAMS __GLIBC_PREREQ(2, 34) /* dlsym is part of libc */
#else
#define HAVE_TEAMS 0
#endif
#if HAVE_TEAMS
#include <dlfcn.h>

typedef void (*parallel_fn)(void (*run)(void *), void *data, unsigned threads, unsigned flags);
static int teams;
void GOMP_parallel(void (*run)(void *), void *data, unsigned threads, unsigned flags);
void GOMP_parallel(void (*run)(void *), void *data, unsigned threads, unsigned flags) {
    void       *at = dlsym(RTLD_NEXT, "GOMP_parallel");
    parallel_fn parallel;
    memcpy(&parallel, &at, sizeof at);
    teams += threads != 1;
    parallel(run, data, threads, flags);
}

static int teams_of_step(amp_kind kind, size_t n) {
    amp_optimizer_desc desc = {0};
    rig                r;
    desc.kind        = kind;
    desc.dtype       = AMP_BF16;
    desc.scaler.init_scale = 1.0f;
    rig_single(&r, &desc, n, AMP_F32);
    fill_grads(&r, 1, 1.0f);
    teams = 0;
    CHECK(rig_step(&r, 0.1f));
    n = (size_t)teams;
    rig_end(&r);
    return (int)n;
}

TEST(teams, "tensors below four chunks are one thread's: to call others would take longer; larger ones are shared") {
    static const size_t alone[] = {1, CHUNK, CHUNK + 616, 2 * CHUNK, 3 * CHUNK};
    size_t              k;
    for (k = 0; k < sizeof alone / sizeof *alone; k++) {
        CHECK_EQ_INT(teams_of_step(AMP_KIND_OWN, alone[k]), 0);
        CHECK_EQ_INT(teams_of_step(AMP_KIND_ADAMW, alone[k]), 0);
    }
    CHECK_EQ_INT(teams_of_step(AMP_KIND_OWN, 4 * CHUNK), 3); /* check, unscale, model */
    CHECK_EQ_INT(teams_of_step(AMP_KIND_ADAMW, 4 * CHUNK), 2);
}
#else
TEST(teams, "tensors below four chunks are one thread's") { SKIP("no OpenMP of gcc whose calls can be counted"); }
#endif

TEST(problems, "law 19: an error names what was wrong: which field of which desc, its value and its "
               "bounds; which tensor") {
    amp_optimizer_desc d;
    amp_scaler_desc    s;
    amp_scaler         scaler;
    amp_optimizer      opt;
    amp_tensor         t, whole;
    float              w[2] = {0.0f, 0.0f};
#define TOLD(member, bad, text)           \
    do {                                  \
        memset(&d, 0, sizeof d);          \
        d.member = bad;                   \
        told(&d, "." #member " is ", text); \
    } while (0)
    TOLD(beta1, 2.0, "2, and must be less than 1 (0: the default, negative: 0)");
    TOLD(beta2, double_from_bits(0x7ff8000000000000ull), "NaN, and must be");
    TOLD(beta1, double_from_bits(0xfff0000000000000ull), "-inf, and must be");
    TOLD(eps, 1e39, "1e39, and must be 0 or more, and finite");
    TOLD(eps, 1e-60, "1e-60, and must be more than 0 in fp32");
    TOLD(momentum, -16777216.0, "-16777216, and must be");
    TOLD(max_norm, -0.1f, "-0.1, and must be");
    TOLD(weight_decay, from_bits(0xff800000u), "-inf, and must be finite");
    TOLD(dtype, (amp_dtype)7, "7, which amp.h does not know");
    TOLD(kind, (amp_kind)99, "99, which amp.h does not know");
    memset(&d, 0, sizeof d);
    d.nesterov = 1;
    told(&d, "amp_optimizer_desc.momentum is 0", "nesterov");
    memset(&d, 0, sizeof d);
    d.allocator.allocate_fn = never_alloc;
    told(&d, "amp_optimizer_desc.allocator", "both");
    memset(&d, 0, sizeof d);
    d.scaler.growth_factor = 0.5;
    told(&d, "amp_scaler_desc.growth_factor is 0.5", "1 or more");
    d.scaler.growth_factor = 0.0;
    d.scaler.hysteresis    = -3;
    told(&d, "amp_scaler_desc.hysteresis is -3", "1 or more");
    d.scaler.hysteresis = 0;
    d.scaler.min_scale  = 33554432.0f;
    told(&d, "amp_scaler_desc.min_scale is 33554432", "at most max_scale");
    d.scaler.min_scale  = 0.0f;
    d.scaler.init_scale = 1e10f;
    told(&d, "amp_scaler_desc.init_scale is 10000000000", "between min_scale and max_scale");
#undef TOLD
    memset(&s, 0, sizeof s); /* a scaler of one's own */
    s.backoff_factor = 1.5;
    CHECK_EQ_INT(amp_scaler_init(&scaler, &s), AMP_ERROR_INVALID_CONFIG);
    CHECK(strcmp(amp_problem(), "amp_scaler_desc.backoff_factor is 1.5, and must be more than 0 and at most 1 "
                      "(0: the default)") == 0);
    s.backoff_factor = 0.5;
    CHECK_EQ_INT(amp_scaler_init(&scaler, &s), AMP_OK);

    memset(&d, 0, sizeof d);
    CHECK_EQ_INT(amp_optimizer_init(&opt, &d), AMP_OK);
    memset(&t, 0, sizeof t);
    t.n      = 2;
    t.weight = w;
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
#if SIZE_MAX / 64 > 9007199254740993
    whole   = t;
    whole.n = 9007199254740993u;
    CHECK_EQ_INT(amp_optimizer_add_flat(&opt, &whole, &t, 1), AMP_ERROR_INVALID_ARGUMENT);
    CHECK(strcmp(amp_problem(), "tensor 1: the tensors' n do not add up to whole's 9.007199e15") == 0);
#else
    (void)whole;
#endif
    t.name     = "fc1";
    t.lr_scale = from_bits(0x7f800000u);
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_ERROR_INVALID_CONFIG);
    CHECK(strcmp(amp_problem(), "tensor 1 (fc1): lr_scale is inf, and must be finite") == 0);
    t.lr_scale = 0.0f;
    t.weight   = NULL;
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_ERROR_INVALID_ARGUMENT);
    CHECK(strstr(amp_problem(), "tensor 1 (fc1): ") == amp_problem());
    forget_refused(&opt);
    CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_step(&opt, 0.1f), AMP_ERROR_UNSUPPORTED);
    CHECK(strstr(amp_problem(), "kind") != NULL);
    CHECK_EQ_INT(amp_optimizer_set_lr(&opt, -0.25f), AMP_ERROR_INVALID_CONFIG);
    CHECK(strcmp(amp_problem(), "lr is -0.25, and must be 0 or more, and finite") == 0);
    amp_optimizer_free(&opt);
}

TEST(missing_calls, "law 16: begin_step before prepare, or after a step that was not ended, says which call is missing, "
                    "and end_step says it again; each wrong call has one sentence of its own") {
    float              w[4] = {1, 2, 3, 4}, g[4] = {0, 0, 0, 0};
    amp_optimizer_desc d = {0};
    amp_optimizer      opt;
    amp_tensor         t = {0};
    t.n = 4, t.weight = w, t.grad = g;
    CHECK_EQ_INT(amp_optimizer_init(&opt, &d), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
    CHECK(!amp_optimizer_begin_step(&opt));
    CHECK(strstr(amp_problem(), "call amp_optimizer_prepare") != NULL);
    SAYS(amp_optimizer_end_step(&opt), AMP_ERROR_NOT_PREPARED, "call amp_optimizer_prepare");
    SAYS(amp_optimizer_end_step(&opt), AMP_ERROR_NOT_PREPARED, "call amp_optimizer_prepare");
    SAYS(amp_optimizer_check(&opt), AMP_ERROR_NOT_PREPARED, "call amp_optimizer_prepare");
    SAYS(amp_optimizer_unscale(&opt), AMP_ERROR_NOT_PREPARED, "call amp_optimizer_prepare");
    SAYS(amp_optimizer_set_lr(&opt, 1.0f), AMP_ERROR_NOT_PREPARED, "call amp_optimizer_prepare");
    SAYS(amp_optimizer_rebind(&opt, 0, w, NULL), AMP_ERROR_NOT_PREPARED, "call amp_optimizer_prepare");
    CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
    SAYS(amp_optimizer_add(&opt, &t), AMP_ERROR_PREPARED, "before amp_optimizer_prepare");
    SAYS(amp_optimizer_end_step(&opt), AMP_ERROR_STEP_NOT_OPEN, "call amp_optimizer_begin_step");
    SAYS(amp_optimizer_unscale(&opt), AMP_ERROR_STEP_NOT_OPEN, "call amp_optimizer_begin_step");
    CHECK(amp_optimizer_begin_step(&opt));
    SAYS(amp_optimizer_rebind_all(&opt, NULL, NULL), AMP_ERROR_STEP_OPEN, "call amp_optimizer_end_step");
    SAYS(amp_optimizer_unscale(&opt), AMP_ERROR_BAD_STATE, "amp_optimizer_unscale once");
    CHECK(!amp_optimizer_begin_step(&opt)); /* forgotten */
    CHECK(strstr(amp_problem(), "call amp_optimizer_end_step after every begin_step") != NULL);
    SAYS(amp_optimizer_end_step(&opt), AMP_ERROR_STEP_OPEN, "call amp_optimizer_end_step after every begin_step");
    CHECK(amp_optimizer_begin_step(&opt));
    CHECK_EQ_INT(amp_optimizer_end_step(&opt), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_check(&opt), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_end_step(&opt), AMP_OK);
    SAYS(amp_optimizer_step(&opt, 1.0f), AMP_ERROR_UNSUPPORTED,
         "desc.kind is AMP_KIND_OWN: call amp_optimizer_begin_step, or set AMP_KIND_ADAMW");
    SAYS(amp_optimizer_step_graph(&opt), AMP_ERROR_UNSUPPORTED, "desc.kind is AMP_KIND_OWN: call amp_optimizer_begin");
    amp_optimizer_free(&opt);
}

static bool refuse_bytes(void *user, const void *data, size_t num_bytes) { return user && !data && num_bytes == 1; }
static bool refuse_read(void *user, void *data, size_t num_bytes) { return user && !data && num_bytes == 1; }
static void *no_memory(void *user, size_t num_bytes) { return num_bytes ? NULL : user; }
static void  no_free(void *user, void *memory) { (void)memory, (void)user; }

/* Three tensors of two elements, the last of which is frozen, and one of none, in front. */
static void begin_moments(amp_optimizer *opt, const amp_optimizer_desc *desc, float w[][2], float *g) {
    static const char *const names[] = {"none", "first", "second", "frozen"};
    amp_tensor               t;
    int                      i;
    CHECK_EQ_INT(amp_optimizer_init(opt, desc), AMP_OK);
    for (i = 0; i < 4; i++) {
        memset(&t, 0, sizeof t);
        t.name   = names[i];
        t.n      = i ? 2 : 0;
        t.weight = w[i];
        if (i == 1) t.grad = g;
        t.frozen = i == 3;
        CHECK_EQ_INT(amp_optimizer_add(opt, &t), AMP_OK);
    }
    CHECK_EQ_INT(prepare_scaled(opt), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_rebind(opt, 2, NULL, AMP_NO_GRAD), AMP_OK);
}

TEST(moments_refused, "contract: a moment that the tensor does not have, one that is missing, 8 bits, no prepare, an open "
                      "step: each has its result, tells why and changes nothing; of no element they may be NULL") {
    static const amp_storage eight_bit = {AMP_FORMAT_F32, AMP_FORMAT_8BIT};
    int                      kind;
    for (kind = 0; kind <= NUM_KINDS; kind++) {
        amp_optimizer_desc desc   = kind_desc(kind);
        const int          one    = kind > 2, two = kind == 1;
        float              w[4][2] = {{0, 0}, {1, 1}, {2, 2}, {3, 3}}, g[2] = {0, 0}, m[2] = {5, 6}, got[2] = {7, 7};
        amp_optimizer      opt;
        if (kind == NUM_KINDS) desc.kind = AMP_KIND_LION;
        memset(&opt, 0, sizeof opt);
        CHECK_EQ_INT(amp_optimizer_moments(NULL, 0, m, NULL), AMP_ERROR_INVALID_ARGUMENT);
        CHECK_EQ_INT(amp_optimizer_set_moments(NULL, 0, m, NULL), AMP_ERROR_INVALID_ARGUMENT);
        CHECK_EQ_INT(amp_optimizer_moments(&opt, 0, m, NULL), AMP_ERROR_NOT_INITIALIZED);
        CHECK_EQ_INT(amp_optimizer_set_moments(&opt, 0, m, NULL), AMP_ERROR_NOT_INITIALIZED);
        CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_moments(&opt, 0, m, NULL), AMP_ERROR_NOT_PREPARED);
        CHECK_EQ_INT(amp_optimizer_set_moments(&opt, 0, m, NULL), AMP_ERROR_NOT_PREPARED);
        amp_optimizer_free(&opt);
        begin_moments(&opt, &desc, w, g);
        SAYS(amp_optimizer_set_steps(&opt, 3, UINT64_MAX), AMP_ERROR_INVALID_CONFIG,
             "skipped is 18446744073709551615, and must be less than 2^63");
        SAYS(amp_optimizer_set_steps(&opt, 3, 0), AMP_OK, NULL);
        SAYS(amp_optimizer_moments(&opt, 4, m, NULL), AMP_ERROR_INVALID_ARGUMENT, "there is no tensor 4");
        SAYS(amp_optimizer_set_moments(&opt, 4, m, NULL), AMP_ERROR_INVALID_ARGUMENT, "there is no tensor 4");
        SAYS(amp_optimizer_moments(&opt, 3, m, NULL), AMP_ERROR_UNSUPPORTED, "tensor 3 (frozen): it has no such moment");
        SAYS(amp_optimizer_set_moments(&opt, 3, m, NULL), AMP_ERROR_UNSUPPORTED, "tensor 3 (frozen): it has no such moment");
        SAYS(amp_optimizer_set_moments(&opt, 3, NULL, m), AMP_ERROR_UNSUPPORTED, "tensor 3 (frozen): it has no such moment");
        CHECK_EQ_INT(amp_optimizer_moments(&opt, 3, NULL, NULL), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_set_moments(&opt, 3, NULL, NULL), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_moments(&opt, 1, NULL, NULL), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_set_moments(&opt, 0, NULL, NULL), AMP_OK);
        if (!two) SAYS(amp_optimizer_set_moments(&opt, 1, m, m), AMP_ERROR_UNSUPPORTED, "tensor 1 (first): it has no such");
        if (!one && !two) SAYS(amp_optimizer_set_moments(&opt, 1, m, NULL), AMP_ERROR_UNSUPPORTED, "it has no such moment");
        if (one || two)
            SAYS(amp_optimizer_set_moments(&opt, 1, NULL, two ? m : NULL), AMP_ERROR_INVALID_ARGUMENT,
                 "tensor 1 (first): first is NULL");
        if (two)
            SAYS(amp_optimizer_set_moments(&opt, 1, m, NULL), AMP_ERROR_INVALID_ARGUMENT,
                 "tensor 1 (first): second is NULL");
        if (one || two) {
            CHECK_EQ_INT(amp_optimizer_moments(&opt, 1, got, NULL), AMP_OK);
            CHECK(got[0] >= 0.0f && got[0] <= 0.0f);
            SAYS(amp_optimizer_set_moments(&opt, 1, m, two ? m : NULL), AMP_OK, "");
            CHECK_EQ_INT(amp_optimizer_moments(&opt, 1, got, NULL), AMP_OK);
            CHECK_MEM(got, m, sizeof m);
        }
        if (!kind) {
            CHECK(amp_optimizer_begin_step(&opt));
            SAYS(amp_optimizer_set_moments(&opt, 1, NULL, NULL), AMP_ERROR_STEP_OPEN, NULL);
            CHECK_EQ_INT(amp_optimizer_moments(&opt, 1, NULL, NULL), AMP_OK);
        }
        amp_optimizer_free(&opt);
        if (!one && !two) continue;
        desc.storage = &eight_bit;
        begin_moments(&opt, &desc, w, g);
        CHECK_EQ_INT(amp_optimizer_set_steps(&opt, 3, 0), AMP_OK);
        m[0] = 0.3f;
        SAYS(amp_optimizer_set_moments(&opt, 1, m, two ? m : NULL), AMP_ERROR_UNSUPPORTED, "tensor 1 (first): moments of 8 bits");
        CHECK_EQ_INT(amp_optimizer_set_moments(&opt, 3, NULL, NULL), AMP_OK);
        amp_optimizer_free(&opt);
    }
}

TEST(set_steps, "law 17: after amp_optimizer_set_steps AdamW takes no step until each tensor that learns has its moments, by a "
                "call or a state; moments of no step are refused, unless they are zeros") {
    static tape        file;
    static const float zeros[2] = {0.0f, -0.0f};
    float              w[4][2] = {{0, 0}, {1, 1}, {2, 2}, {3, 3}}, g[2] = {0, 0}, m[2] = {5, 6};
    amp_optimizer_desc desc = kind_desc(1);
    amp_optimizer      opt;
    amp_status         status;
    begin_moments(&opt, &desc, w, g);
    SAYS(amp_optimizer_set_moments(&opt, 1, m, m), AMP_ERROR_INVALID_CONFIG,
         "tensor 1 (first): these moments are of no step: call amp_optimizer_set_steps");
    SAYS(amp_optimizer_set_moments(&opt, 1, zeros, zeros), AMP_OK, NULL); /* too early to count */
    SAYS(amp_optimizer_set_steps(&opt, 3, 2), AMP_OK, NULL);
    CHECK_EQ_INT(amp_optimizer_status(&opt, &status), AMP_OK);
    CHECK(status.steps == 3 && status.skipped == 2 && !status.skipped_in_a_row);
    SAYS(amp_optimizer_step(&opt, 0.1f), AMP_ERROR_BAD_STATE, "tensor 1 (first): after amp_optimizer_set_steps");
    CHECK_EQ_INT(amp_optimizer_set_lr(&opt, 0.1f), AMP_OK);
    SAYS(amp_optimizer_step_graph(&opt), AMP_ERROR_BAD_STATE, "call amp_optimizer_set_moments, or load");
    CHECK_EQ_INT(amp_optimizer_save(&opt, tape_write, &file), AMP_OK); /* as it is */
    CHECK_EQ_INT(amp_optimizer_set_moments(&opt, 1, m, m), AMP_OK);
    SAYS(amp_optimizer_step(&opt, 0.1f), AMP_ERROR_BAD_STATE, "tensor 2 (second)");
    CHECK_EQ_INT(amp_optimizer_set_moments(&opt, 2, m, m), AMP_OK);
    SAYS(amp_optimizer_step(&opt, 0.1f), AMP_OK, NULL);
    CHECK_EQ_U64(amp_optimizer_gate(&opt)->step, 4);
    SAYS(amp_optimizer_set_steps(&opt, 0, 0), AMP_OK, NULL); /* and again from the beginning */
    SAYS(amp_optimizer_step(&opt, 0.1f), AMP_ERROR_BAD_STATE, "tensor 1 (first)");
    CHECK_EQ_INT(amp_optimizer_set_moments(&opt, 1, zeros, zeros), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_set_moments(&opt, 2, zeros, zeros), AMP_OK);
    SAYS(amp_optimizer_step(&opt, 0.1f), AMP_OK, NULL);
    CHECK_EQ_INT(amp_optimizer_load(&opt, tape_read, &file), AMP_OK);
    SAYS(amp_optimizer_step(&opt, 0.1f), AMP_ERROR_BAD_STATE, "tensor 1 (first)"); /* still */
    amp_optimizer_free(&opt);
    desc.kind = AMP_KIND_SGD; /* whose moments may begin as zeros */
    begin_moments(&opt, &desc, w, g);
    CHECK_EQ_INT(amp_optimizer_set_steps(&opt, 3, 0), AMP_OK);
    SAYS(amp_optimizer_step(&opt, 0.1f), AMP_OK, NULL);
    amp_optimizer_free(&opt);
}

TEST(every_call_tells, "law 19: each call that returns an error tells what was wrong, and one that succeeds leaves the text; "
                       "arguments that are NULL by name, and what a result alone says in its words") {
    float              w[4] = {1, 2, 3, 4}, g[4] = {1, 1, 1, 1}, m[4];
    amp_report_desc    watch = {0};
    amp_optimizer_desc d = {0}, bare = {0};
    amp_optimizer      opt, poor;
    amp_tensor         t = {0};
    amp_status         status;
    amp_grad_stats          stats;
    amp_report         report;
    amp_tensor_report  of_one;
    amp_iteration      history[2];
    amp_scaler         s;
    size_t             count = 2;
    static tape file;
    file.size = file.at = 0;
    d.kind = AMP_KIND_SGD, d.momentum = 0.5, d.report = &watch;
    d.scaler.preset = AMP_PRESET_NONE;
    t.n = 4, t.weight = w, t.grad = g, t.name = "w";
    SAYS(amp_scaler_init(&s, &d.scaler), AMP_OK, "");
    SAYS(amp_scaler_init(NULL, &d.scaler), AMP_ERROR_INVALID_ARGUMENT, "s is NULL");
    SAYS(amp_optimizer_init(NULL, &d), AMP_ERROR_INVALID_ARGUMENT, "opt is NULL");
    SAYS(amp_optimizer_init(&opt, &d), AMP_OK, "");
    SAYS(amp_optimizer_add(&opt, NULL), AMP_ERROR_INVALID_ARGUMENT, "tensor is NULL");
    SAYS(amp_optimizer_add_flat(&opt, NULL, &t, 1), AMP_ERROR_INVALID_ARGUMENT, "whole is NULL");
    SAYS(amp_optimizer_add_flat(&opt, &t, NULL, 1), AMP_ERROR_INVALID_ARGUMENT, "tensors is NULL");
    SAYS(amp_optimizer_add_flat(&opt, &t, &t, SIZE_MAX), AMP_ERROR_TOO_LARGE, NULL);
    SAYS(amp_optimizer_status(&opt, &status), AMP_ERROR_NOT_PREPARED, "call amp_optimizer_prepare");
    SAYS(amp_optimizer_report(&opt, &report), AMP_ERROR_NOT_PREPARED, "call amp_optimizer_prepare");
    SAYS(amp_optimizer_add(&opt, &t), AMP_OK, "");
    SAYS(amp_optimizer_stats(&opt, 0, &stats), AMP_ERROR_NOT_PREPARED, "call amp_optimizer_prepare");
    forget_refused(&opt);
    SAYS(amp_optimizer_prepare(&opt), AMP_OK, "");
    SAYS(amp_optimizer_step(&opt, 0.5f), AMP_OK, "");
    SAYS(amp_optimizer_status(&opt, &status), AMP_OK, "");
    SAYS(amp_optimizer_status(&opt, NULL), AMP_ERROR_INVALID_ARGUMENT, "status is NULL");
    SAYS(amp_optimizer_stats(&opt, 0, &stats), AMP_OK, "");
    SAYS(amp_optimizer_stats(&opt, 0, NULL), AMP_ERROR_INVALID_ARGUMENT, "stats is NULL");
    SAYS(amp_optimizer_stats(&opt, 9, &stats), AMP_ERROR_INVALID_ARGUMENT, "there is no tensor 9");
    SAYS(amp_optimizer_moments(&opt, 0, m, NULL), AMP_OK, "");
    SAYS(amp_optimizer_moments(&opt, 9, m, NULL), AMP_ERROR_INVALID_ARGUMENT, "there is no tensor 9");
    SAYS(amp_optimizer_moments(&opt, 0, m, m), AMP_ERROR_UNSUPPORTED, "tensor 0 (w): it has no such moment");
    SAYS(amp_optimizer_set_moments(&opt, 0, m, NULL), AMP_OK, "");
    SAYS(amp_optimizer_set_moments(&opt, 0, NULL, NULL), AMP_ERROR_INVALID_ARGUMENT, "tensor 0 (w): first is NULL");
    SAYS(amp_optimizer_set_lr(&opt, 0.5f), AMP_OK, "");
    SAYS(amp_optimizer_refresh(&opt), AMP_OK, "");
    SAYS(amp_optimizer_rebind(&opt, 0, w, g), AMP_OK, "");
    SAYS(amp_optimizer_rebind_all(&opt, NULL, NULL), AMP_OK, "");
    SAYS(amp_optimizer_history(&opt, history, &count), AMP_ERROR_BAD_STATE, "call amp_optimizer_report first");
    SAYS(amp_optimizer_report(&opt, NULL), AMP_ERROR_INVALID_ARGUMENT, "report is NULL");
    SAYS(amp_optimizer_report(&opt, &report), AMP_OK, "");
    SAYS(amp_optimizer_report_tensor(&opt, 0, NULL), AMP_ERROR_INVALID_ARGUMENT, "report is NULL");
    SAYS(amp_optimizer_report_tensor(&opt, 9, &of_one), AMP_ERROR_INVALID_ARGUMENT, "there is no tensor 9");
    SAYS(amp_optimizer_report_tensor(&opt, 0, &of_one), AMP_OK, "");
    SAYS(amp_optimizer_history(&opt, history, NULL), AMP_ERROR_INVALID_ARGUMENT, "count is NULL");
    SAYS(amp_optimizer_history(&opt, NULL, &count), AMP_ERROR_INVALID_ARGUMENT, "history is NULL");
    SAYS(amp_optimizer_history(&opt, history, &count), AMP_OK, "");
    SAYS(amp_optimizer_save(&opt, NULL, NULL), AMP_ERROR_INVALID_ARGUMENT, "write_fn is NULL");
    SAYS(amp_optimizer_save(&opt, refuse_bytes, NULL), AMP_ERROR_WRITE, "could not be written");
    SAYS(amp_optimizer_save(&opt, tape_write, &file), AMP_OK, "");
    SAYS(amp_optimizer_load(&opt, NULL, NULL), AMP_ERROR_INVALID_ARGUMENT, "read_fn is NULL");
    SAYS(amp_optimizer_load(&opt, refuse_read, NULL), AMP_ERROR_READ, "could not be read");
    SAYS(amp_optimizer_load(&opt, tape_read, &file), AMP_OK, "");
    file.bytes[file.size - 1] ^= 1, file.at = 0;
    SAYS(amp_optimizer_load(&opt, tape_read, &file), AMP_ERROR_CORRUPT, "checksum");
    file.bytes[0] = 'a', file.at = 0;
    SAYS(amp_optimizer_load(&opt, tape_read, &file), AMP_ERROR_FOREIGN, "not a state");
    SAYS(amp_optimizer_save_file(&opt, NULL), AMP_ERROR_INVALID_ARGUMENT, "path is NULL");
    SAYS(amp_optimizer_load_file(&opt, NULL), AMP_ERROR_INVALID_ARGUMENT, "path is NULL");
    SAYS(amp_optimizer_load_file(&opt, "no_such_directory/f"), AMP_ERROR_NOT_FOUND, "no such file");
    SAYS(amp_optimizer_save_file(&opt, "no_such_directory/f"), AMP_ERROR_WRITE, "could not be written");
    amp_optimizer_free(&opt);
    bare.allocator.allocate_fn = no_memory, bare.allocator.release_fn = no_free;
    SAYS(amp_optimizer_init(&poor, &bare), AMP_OK, "");
    SAYS(amp_optimizer_add(&poor, &t), AMP_OK, "");
    SAYS(amp_optimizer_prepare(&poor), AMP_ERROR_OUT_OF_MEMORY, "allocator");
    amp_optimizer_free(&poor);
}

TEST(told_numbers, "law 19: an error names the value, with a point and seven digits or an exponent") {
    static const struct { double x; const char *text; } cases[] = {
        {1.5, "is 1.5,"}, {1.05, "is 1.05,"}, {10.5, "is 10.5,"}, {1e9 + 0.5, "is 1000000000,"}, {-0.25, "is -0.25,"},
        {-0.00105, "is -0.00105,"}, {-1.05e-7, "is -1.05e-7,"}, {-1e-5, "is -1e-5,"}, {1e20, "is 1e20,"},
        {1.25e15, "is 1250000000000000,"}, {109.99999999, "is 110,"}, {2.0, "is 2,"}, {100.25, "is 100.25,"}};
    amp_optimizer      opt;
    amp_optimizer_desc d;
    size_t             i;
    memset(&d, 0, sizeof d);
    for (i = 0; i < sizeof cases / sizeof *cases; i++) {
        d.scaler.backoff_factor = cases[i].x;
        SAYS(amp_optimizer_init(&opt, &d), AMP_ERROR_INVALID_CONFIG, cases[i].text);
    }
}

TEST(one_cause, "law 19: UNSUPPORTED and BAD_STATE of an optimizer say one cause and one remedy") {
    float              w[4] = {1, 2, 3, 4}, g[4] = {0, 0, 0, 0};
    uint32_t           rows[2] = {0, 1}, num = 2;
    amp_rows           table;
    void              *none[1] = {AMP_NO_GRAD};
    amp_optimizer_desc d = {0};
    amp_optimizer      opt;
    amp_scaler         shared;
    amp_tensor         t = {0}, part;
    d.unscale_in_place = 1;
    t.n = 4, t.weight = w, t.grad = g;
    CHECK_EQ_INT(amp_optimizer_init(&opt, &d), AMP_OK);
    part = t, part.rows = &table;
    table.row_length = table.max_rows = 2, table.rows = rows, table.num_rows = &num;
    SAYS(amp_optimizer_add(&opt, &part), AMP_ERROR_UNSUPPORTED, "desc.kind is AMP_KIND_OWN");
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
    forget_refused(&opt);
    CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_rebind_all(&opt, NULL, none), AMP_OK);
    CHECK(!amp_optimizer_begin_step(&opt));
    SAYS(amp_optimizer_end_step(&opt), AMP_ERROR_BAD_STATE, "bring one by amp_optimizer_rebind");
    amp_optimizer_free(&opt);
    d.kind     = AMP_KIND_SGD;
    d.momentum = 0.5;
    t.grad     = NULL;
    CHECK_EQ_INT(amp_optimizer_init(&opt, &d), AMP_OK);
    SAYS(amp_optimizer_add(&opt, &part), AMP_ERROR_UNSUPPORTED, "set desc.momentum to 0");
    t.grad = AMP_NO_GRAD;
    SAYS(amp_optimizer_add(&opt, &t), AMP_ERROR_INVALID_ARGUMENT, "leave grad NULL, or set frozen");
    t.grad = NULL;
    SAYS(amp_optimizer_add_flat(&opt, &t, &part, 1), AMP_ERROR_UNSUPPORTED, "add that tensor by amp_optimizer_add");
    t.frozen = 1;
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
    forget_refused(&opt);
    CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
    SAYS(amp_optimizer_step(&opt, 0.5f), AMP_ERROR_BAD_STATE, "each is frozen");
    SAYS(amp_optimizer_rebind(&opt, 0, NULL, g), AMP_ERROR_UNSUPPORTED, "add it unfrozen");
    SAYS(amp_optimizer_rebind(&opt, 9, NULL, g), AMP_ERROR_INVALID_ARGUMENT, "there is no tensor 9");
    CHECK(!amp_optimizer_begin_step(&opt));
    SAYS(amp_optimizer_end_step(&opt), AMP_ERROR_UNSUPPORTED,
         "desc.kind is AMP_KIND_SGD: call amp_optimizer_step, or set AMP_KIND_OWN, or amp_tensor.own");
    amp_optimizer_free(&opt);
    memset(&shared, 0, sizeof shared);
    d.shared_scaler = &shared;
    t.frozen        = 0;
    t.grad          = g;
    CHECK_EQ_INT(amp_optimizer_init(&opt, &d), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
    SAYS(amp_optimizer_prepare(&opt), AMP_ERROR_NOT_INITIALIZED, "desc.shared_scaler is not initialized");
    CHECK_EQ_INT(amp_scaler_init(&shared, NULL), AMP_OK);
    forget_refused(&opt);
    CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
    SAYS(amp_optimizer_step_graph(&opt), AMP_ERROR_BAD_STATE, "call amp_optimizer_set_lr");
    amp_optimizer_free(&opt);
}
/* ------------------------------------------------- tensors of one's own beside a fused kind */

/* rig_mixed with every second tensor own, and the frozen one; each kind, as desc says. */
static void rig_own(rig *r, const amp_optimizer_desc *desc, amp_dtype grad_type) {
    size_t i;
    rig_mixed(r, grad_type, AMP_BF16, 0);
    for (i = 0; i < r->count; i++) r->tensor[i].own = i % 2 == 1 || i == 4;
    rig_prepare(r, desc);
    CHECK_EQ_INT(amp_optimizer_set_lr(&r->opt, 0.01f), AMP_OK);
}

/* The user's optimizer is the formula of the fused kind, with moments of its own. */
static void own_formula(rig *r, ref *mine, float lr) {
    size_t i, j;
    mine->step = amp_optimizer_gate(&r->opt)->step;
    for (i = 0; i < r->count; i++) {
        const amp_tensor *t    = &r->tensor[i];
        float            *p    = amp_optimizer_master(&r->opt, (int)i), x;
        const float      *g    = amp_optimizer_grad(&r->opt, (int)i);
        const float       rate = f_mul(lr, or_default(t->lr_scale, 1.0f));
        const float       wd   = or_default(t->weight_decay, mine->desc.weight_decay);
        CHECK_EQ_INT(g != NULL, t->own && t->grad);
        for (j = 0; g && j < t->n; j++) {
            x = load(p, AMP_F32, j);
            if (mine->desc.kind == AMP_KIND_ADAMW)
                ref_adamw(mine, rate, wd, load(g, AMP_F32, j), &x, &mine->m[i][j], &mine->v[i][j]);
            else ref_sgd(mine, rate, wd, load(g, AMP_F32, j), &x, &mine->m[i][j]);
            store(p, AMP_F32, j, x);
        }
    }
}

/* Gradients of tensors that are not own: a hash of their bits. */
static uint64_t others_grads(const rig *r) {
    uint64_t h = 0;
    size_t   i;
    for (i = 0; i < r->count; i++)
        if (!r->tensor[i].own)
            h = hash_array(h, r->tensor[i].grad, r->tensor[i].grad_type, r->tensor[i].n);
    return h;
}

TEST(own_tensors, "contract: amp_tensor.own: one check, norm, clip factor, skip and scale for tensors of your optimizer "
                  "and those of a fused kind; by the kind's formula yours have the bits of a fused step; gradients of "
                  "the others stay until end_step, zero_grad clears all") {
    int kind, way, step;
    for (kind = 1; kind < NUM_KINDS; kind++)
        for (way = 0; way < 12; way++) { /* types; begin_step or its parts; zero_grad or in place */
            amp_optimizer_desc desc = kind_desc(kind);
            ref                f, mine;
            rig                r;
            desc.max_norm               = 0.5f;
            desc.scaler.growth_interval = 2;
            desc.zero_grad              = way / 6 == 0;
            desc.unscale_in_place       = way / 6 == 1;
            rig_own(&r, &desc, (amp_dtype)(way % 3));
            ref_begin(&f, &r, &desc);
            ref_begin(&mine, &r, &desc);
            for (step = 0; step < 10; step++) {
                const size_t bad = step == 3 ? 9 : 8; /* an own one; one of the kind */
                uint64_t     before;
                size_t       i, j;
                int          go;
                fill_grads(&r, (uint32_t)step, f.scale);
                if (step == 3 || step == 7)
                    store_bits(r.tensor[bad].grad, r.tensor[bad].grad_type, 200, patterns[way % 3][2]);
                before = others_grads(&r);
                ref_step(&f, 0.01f);
                enter();
                if (way / 3 % 2) {
                    CHECK_EQ_INT(amp_optimizer_check(&r.opt), AMP_OK);
                    CHECK_EQ_INT(amp_optimizer_unscale(&r.opt), AMP_OK);
                    go = !amp_optimizer_gate(&r.opt)->skip;
                } else {
                    go = amp_optimizer_begin_step(&r.opt);
                }
                leave();
                CHECK_EQ_INT(go, step != 3 && step != 7);
                CHECK_EQ_U64(others_grads(&r), before);
                if (go) own_formula(&r, &mine, 0.01f);
                CHECK_EQ_U64(others_grads(&r), before);
                CHECK_EQ_INT(amp_optimizer_end_step(&r.opt), AMP_OK);
                ref_compare(&f);
                if (!desc.zero_grad) CHECK_EQ_U64(others_grads(&r), before);
                for (i = 0; i < r.count && desc.zero_grad; i++)
                    for (j = 0; r.tensor[i].grad && j < r.tensor[i].n; j++)
                        CHECK_EQ_U32(load_bits(r.tensor[i].grad, r.tensor[i].grad_type, j), 0);
            }
            CHECK_EQ_U64(amp_optimizer_scaler(&r.opt)->backoffs, 2);
            CHECK_EQ_U64(amp_optimizer_scaler(&r.opt)->growths, 3);
            ref_end(&f);
            ref_end(&mine);
            rig_end(&r);
        }
}

TEST(own_and_the_rest, "contract: end_step reads the others' gradients again, and takes the learning rate that is there then; "
                       "own ones stand still without a gradient, and each end_step writes their copy; storage and moments "
                       "are of the others") {
    static const amp_storage small = {AMP_FORMAT_SPLIT, AMP_FORMAT_8BIT};
    float                    w[3][32], g[3][32], moments[32];
    amp_optimizer_desc       d = {0};
    amp_optimizer            opt;
    amp_tensor               t = {0}, parts[2];
    size_t                   i, j;
    d.kind           = AMP_KIND_SGD;
    d.momentum       = 0.5;
    d.dtype          = AMP_BF16;
    d.scaler.preset  = AMP_PRESET_NONE;
    d.storage        = &small;
    d.unscale_in_place = 1;
    for (i = 0; i < 3; i++)
        for (j = 0; j < 32; j++) w[i][j] = 1.0f, g[i][j] = 0.5f;
    CHECK_EQ_INT(amp_optimizer_init(&opt, &d), AMP_OK);
    t.n = 32, t.weight = w[0], t.grad = g[0], t.own = 1;
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
    parts[0] = parts[1] = t;
    parts[0].own = 0;
    t.n = 64, t.weight = w[1], t.grad = g[1], t.own = 0;
    CHECK_EQ_INT(amp_optimizer_add_flat(&opt, &t, parts, 2), AMP_OK); /* the second is own */
    CHECK_EQ_INT(amp_optimizer_prepare(&opt), AMP_OK);
    CHECK(amp_optimizer_master(&opt, 0) == w[0]);
    CHECK(amp_optimizer_master(&opt, 1) == NULL); /* of split */
    CHECK(amp_optimizer_master(&opt, 2) == w[2]);
    CHECK_EQ_INT(amp_optimizer_moments(&opt, 0, moments, NULL), AMP_ERROR_UNSUPPORTED);
    CHECK_EQ_INT(amp_optimizer_moments(&opt, 1, moments, NULL), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_moments(&opt, 2, moments, NULL), AMP_ERROR_UNSUPPORTED);
    CHECK_EQ_INT(amp_optimizer_set_lr(&opt, 0.25f), AMP_OK);
    CHECK(amp_optimizer_begin_step(&opt));
    CHECK(amp_optimizer_grad(&opt, 0) == g[0] && amp_optimizer_grad(&opt, 2) == g[2]); /* in place */
    CHECK(amp_optimizer_grad(&opt, 1) == NULL);
    w[0][3] = 3.0f, w[2][3] = 5.0f;
    for (j = 0; j < 32; j++) g[1][j] = j < 16 ? 0.0f : 2.0f; /* what the manual warns of */
    CHECK_EQ_INT(amp_optimizer_set_lr(&opt, 0.5f), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_end_step(&opt), AMP_OK);
    for (j = 0; j < 32; j++)
        for (i = 0; i < 3; i++) {
            const float own = i == 0 && j == 3 ? 3.0f : i == 2 && j == 3 ? 5.0f : 1.0f;
            CHECK_EQ_F32(load(amp_optimizer_model(&opt, (int)i), AMP_BF16, j),
                         i != 1 ? own : j < 16 ? 1.0f : 0.0f);
        }
    CHECK_EQ_INT(amp_optimizer_rebind(&opt, 0, NULL, AMP_NO_GRAD), AMP_OK);
    CHECK(amp_optimizer_begin_step(&opt));
    CHECK(amp_optimizer_grad(&opt, 0) == NULL);
    w[0][3] = 7.0f; /* a master is the user's to write */
    CHECK_EQ_INT(amp_optimizer_end_step(&opt), AMP_OK);
    CHECK_EQ_F32(load(amp_optimizer_model(&opt, 0), AMP_BF16, 3), 7.0f);
    amp_optimizer_free(&opt);
}

TEST(own_reports, "contract: a sampled step counts each weight once, own or not, and a step that is skipped none") {
    static const amp_report_desc watch = {1};
    float                        w[2][40], g[2][40];
    amp_optimizer_desc           d = {0};
    amp_optimizer                opt;
    amp_tensor                   t = {0};
    amp_report                   report;
    int                          i, j, step;
    d.kind          = AMP_KIND_LION;
    d.dtype         = AMP_F16;
    d.scaler.preset = AMP_PRESET_NONE;
    d.report        = &watch;
    CHECK_EQ_INT(amp_optimizer_init(&opt, &d), AMP_OK);
    for (i = 0; i < 2; i++) {
        for (j = 0; j < 40; j++) w[i][j] = 1.0f;
        t.n = 40, t.weight = w[i], t.grad = g[i], t.own = i == 0;
        CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
    }
    CHECK_EQ_INT(amp_optimizer_prepare(&opt), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_set_lr(&opt, 0.125f), AMP_OK);
    for (step = 0; step < 3; step++) {
        const int skip = step == 2;
        for (i = 0; i < 2; i++)
            for (j = 0; j < 40; j++) g[i][j] = j % 4 ? 0.5f : 0.0f;
        amp_optimizer_scaler(&opt)->found_inf = (uint32_t)skip;
        CHECK_EQ_INT(amp_optimizer_begin_step(&opt), !skip);
        for (j = 0; j < 40 && !skip; j++) w[0][j] -= j < 10 ? 0.25f * g[0][j] : 0.0f;
        CHECK_EQ_INT(amp_optimizer_end_step(&opt), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_report(&opt, &report), AMP_OK);
        CHECK_EQ_U64(report.iterations, (uint64_t)step + 1);
        CHECK_EQ_U64(report.sampled, (uint64_t)step + 1);
        CHECK_EQ_U64(report.asked, (uint64_t)skip);
        for (i = 0; i < 2; i++) {
            amp_tensor_report of;
            uint64_t          weights = 0, k;
            CHECK_EQ_INT(amp_optimizer_report_tensor(&opt, i, &of), AMP_OK);
            for (k = 0; k < AMP_BINS; k++) weights += of.weights[k];
            CHECK_EQ_U64(weights, skip ? 0 : 40);
            CHECK_EQ_U64(of.updates, skip ? 0 : 30);
            if (i == 0) CHECK_EQ_U64(of.lost, skip ? 0 : 23); /* of 10 that moved 7 have a gradient */
            else CHECK_EQ_U64(of.lost, 0);
        }
    }
    CHECK_EQ_F32(w[0][1], 0.75f);
    amp_optimizer_free(&opt);
}

TEST(own_refused, "law 19: what an optimizer with own tensors does not offer says which way to go, and changes nothing") {
    float                  w[8] = {1, 2, 3, 4, 5, 6, 7, 8}, g[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    uint32_t               rows[2] = {0, 1}, num = 2;
    amp_rows               table;
    amp_optimizer_desc     d = {0};
    amp_optimizer          opt;
    amp_tensor             t = {0};
    d.kind    = AMP_KIND_ADAMW;
    CHECK_EQ_INT(amp_optimizer_init(&opt, &d), AMP_OK);
    t.n = 4, t.weight = w, t.grad = g, t.own = 1, t.rows = &table;
    table.row_length = table.max_rows = 2, table.rows = rows, table.num_rows = &num;
    SAYS(amp_optimizer_add(&opt, &t), AMP_ERROR_UNSUPPORTED, "own is for a tensor without rows");
    t.rows = NULL;
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
    t.weight = w + 4, t.grad = g + 4, t.own = 0;
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
    forget_refused(&opt);
    CHECK_EQ_INT(amp_optimizer_prepare(&opt), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_set_steps(&opt, 3, 0), AMP_OK);
    SAYS(amp_optimizer_step(&opt, 0.5f), AMP_ERROR_UNSUPPORTED,
         "call amp_optimizer_set_lr, amp_optimizer_begin_step and _end_step");
    SAYS(amp_optimizer_step_graph(&opt), AMP_ERROR_UNSUPPORTED, "some tensors are own");
    SAYS(amp_optimizer_check(&opt), AMP_ERROR_BAD_STATE, "tensor 1: after amp_optimizer_set_steps its moments");
    CHECK_EQ_INT(amp_optimizer_set_moments(&opt, 1, g, g), AMP_OK);
    SAYS(amp_optimizer_check(&opt), AMP_ERROR_BAD_STATE, "call amp_optimizer_set_lr");
    CHECK(!amp_optimizer_begin_step(&opt));
    SAYS(amp_optimizer_end_step(&opt), AMP_ERROR_BAD_STATE, "call amp_optimizer_set_lr");
    CHECK_EQ_INT(amp_optimizer_set_lr(&opt, 0.5f), AMP_OK);
    SAYS(amp_optimizer_check(&opt), AMP_ERROR_BAD_STATE, "the loss was not scaled");
    SAYS(amp_optimizer_moments(&opt, 0, w, NULL), AMP_ERROR_UNSUPPORTED, "own");
    CHECK_EQ_F32(w[4], 5.0f);
    amp_optimizer_free(&opt);
    d.kind = AMP_KIND_OWN, t.own = 1; /* where all are own, it says nothing more */
    CHECK_EQ_INT(amp_optimizer_init(&opt, &d), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
    CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
    CHECK(amp_optimizer_begin_step(&opt));
    CHECK_EQ_INT(amp_optimizer_end_step(&opt), AMP_OK);
    amp_optimizer_free(&opt);
}

/* What prepare answers to two tensors, and whether it says so in these words. */
TEST(copied_structs, "amp.h optimizer: init and add copy what report and rows point to") {
    float              w[8] = {0}, g[4] = {1, 1, 1, 1};
    const uint32_t     at[2] = {3, 1};
    uint32_t           num = 2;
    amp_report_desc    watch = {1};
    amp_rows           rows  = {2, 2, at, &num};
    amp_optimizer_desc d = {0};
    amp_optimizer      opt, moved;
    amp_tensor         t = {0};
    amp_report         report;
    d.kind = AMP_KIND_SGD, d.scaler.disabled = 1, d.report = &watch;
    t.n = 8, t.weight = w, t.grad = g, t.rows = &rows;
    CHECK_EQ_INT(amp_optimizer_init(&opt, &d), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
    memset(&watch, 0xff, sizeof watch); /* nobody has them any more */
    memset(&rows, 0xff, sizeof rows);
    moved = opt; /* nor the place of the optimizer */
    memset(&opt, 0xff, sizeof opt);
    CHECK_EQ_INT(prepare_scaled(&moved), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_step(&moved, 1.0f), AMP_OK);
    CHECK(w[0] == 0.0f && w[2] == -1.0f && w[5] == 0.0f && w[7] == -1.0f);
    CHECK_EQ_INT(amp_optimizer_report(&moved, &report), AMP_OK);
    CHECK_EQ_U64(report.sampled, 1);
    amp_optimizer_free(&moved);
}

static amp_result apart(const amp_tensor *one, const amp_tensor *two, const char *text) {
    amp_optimizer_desc d = {0};
    amp_optimizer      opt;
    amp_result         result;
    d.dtype   = AMP_F16;
    d.kind    = AMP_KIND_ADAMW;
    CHECK_EQ_INT(amp_optimizer_init(&opt, &d), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_add(&opt, one), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_add(&opt, two), AMP_OK);
    result = prepare_scaled(&opt);
    if (result != AMP_OK && !strstr(amp_problem(), text)) test_fail(__FILE__, __LINE__, text, amp_problem());
    if (result != AMP_OK) CHECK(!amp_optimizer_begin_step(&opt) && !amp_optimizer_model(&opt, 0));
    amp_optimizer_free(&opt);
    return result;
}

TEST(arrays_apart, "manual: prepare refuses gradients that overlap, a weight that was added twice, a gradient "
                   "that is a weight, by name; what only touches, and rows and num_rows, may be shared") {
    static float w[64], g[64];
    uint32_t     rows[2] = {0, 1}, num = 2;
    amp_rows     table;
    amp_tensor   a = {0}, b = {0};
    int          k;
    a.name = "first", a.n = 16, a.weight = w, a.grad = g;
    b.name = "second", b.n = 16, b.weight = w + 16, b.grad = g + 16;
    CHECK_EQ_INT(apart(&a, &b, ""), AMP_OK); /* one behind the other */
    CHECK_EQ_INT(apart(&b, &a, ""), AMP_OK);
    for (k = 1; k < 32; k += 30) {
        b.weight = w + (k == 1 ? 15 : 1); /* by one element, and by all but one */
        b.grad   = g + 32;
        CHECK_EQ_INT(apart(&a, &b, "tensor 1 (second): its weight overlaps the weight of tensor 0 (first): "),
                     AMP_ERROR_OVERLAP);
        CHECK_EQ_INT(apart(&b, &a, "tensor 1 (first): its weight overlaps the weight of tensor 0 (second): "),
                     AMP_ERROR_OVERLAP);
        b.weight = w + 16, b.grad = g + (k == 1 ? 15 : 1);
        CHECK_EQ_INT(apart(&a, &b, "tensor 1 (second): its grad overlaps the grad of tensor 0 (first): "),
                     AMP_ERROR_OVERLAP);
    }
    b.grad = g + 16;
    CHECK_EQ_INT(apart(&a, &a, "overlaps the "), AMP_ERROR_OVERLAP);
    a.name = NULL;
    CHECK_EQ_INT(apart(&a, &a, " of tensor 0: give each its own memory"), AMP_ERROR_OVERLAP);
    a.name = "first";
    b.grad = w;
    CHECK_EQ_INT(apart(&a, &b, "tensor 1 (second): its grad overlaps the weight of tensor 0 (first): "),
                 AMP_ERROR_OVERLAP);
    b.grad = b.weight;
    CHECK_EQ_INT(apart(&a, &b, "tensor 1 (second): its "), AMP_ERROR_OVERLAP);
    b.grad = g + 8, b.grad_type = AMP_F16; /* 16 halves take 8 floats */
    a.n = 8;
    CHECK_EQ_INT(apart(&a, &b, ""), AMP_OK);
    b.grad = (char *)(g + 8) - 2;
    CHECK_EQ_INT(apart(&a, &b, "its grad overlaps the grad of tensor 0"), AMP_ERROR_OVERLAP);
    b.grad = g + 16, b.model = (char *)(w + 7) + 2, b.model_type = AMP_BF16;
    CHECK_EQ_INT(apart(&a, &b, "its model overlaps the weight of tensor 0"), AMP_ERROR_OVERLAP);
    b.model = b.weight, b.model_type = AMP_F32; /* the weights themselves */
    CHECK_EQ_INT(apart(&a, &b, ""), AMP_OK);
    b.model = NULL, b.grad = NULL, b.weight = w + 15, a.n = 15;
    CHECK_EQ_INT(apart(&a, &b, ""), AMP_OK);
    b.weight = w;
    CHECK_EQ_INT(apart(&a, &b, "its weight overlaps"), AMP_ERROR_OVERLAP);
    b.n = 0, b.weight = w + 1; /* nothing, in the middle of something */
    CHECK_EQ_INT(apart(&a, &b, ""), AMP_OK);
    CHECK_EQ_INT(apart(&b, &a, ""), AMP_OK);
    /* of few rows a gradient is as long as max_rows says, whatever n is */
    a.n = 16, a.rows = &table;
    table.row_length = 4, table.max_rows = 2, table.rows = rows, table.num_rows = &num;
    b = a;
    b.name = "second", b.weight = w + 16, b.grad = g + 8;
    CHECK_EQ_INT(apart(&a, &b, ""), AMP_OK);
    b.grad = g + 7;
    CHECK_EQ_INT(apart(&a, &b, "tensor 1 (second): its grad overlaps the grad of tensor 0 (first): "),
                 AMP_ERROR_OVERLAP);
}

TEST(many_apart, "manual: of 10^4 tensors in any order, two that overlap by one element are found") {
    enum { MANY = 10000 };
    static float       w[2 * MANY], g[2 * MANY];
    amp_optimizer_desc d = {0};
    int                round, i;
    for (round = 0; round < 4; round++) {
        amp_optimizer opt;
        CHECK_EQ_INT(amp_optimizer_init(&opt, &d), AMP_OK);
        for (i = 0; i < MANY; i++) {
            const int  at = (i * 7919 + 3) % MANY; /* a prime: a permutation */
            amp_tensor t  = {0};
            t.n      = round && i == MANY / 4 * round ? 3 : 2; /* into the next one's weight or gradient */
            t.weight = w + 2 * (MANY - 1 - at);
            t.grad   = g + 2 * at;
            CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
        }
        CHECK_EQ_INT(amp_optimizer_prepare(&opt), round ? AMP_ERROR_OVERLAP : AMP_OK);
        if (round) CHECK(strstr(amp_problem(), "overlaps the ") != NULL);
        amp_optimizer_free(&opt);
    }
}

TEST(zero_desc, "law 15: `= {0}` is what users write: no desc begins with an enum") {
    const amp_optimizer_desc d = {0};
    const amp_scaler_desc    s = {0};
    const amp_tensor         t = {0};
    amp_optimizer            opt;
    amp_scaler               scaler;
    CHECK_EQ_INT(amp_scaler_init(&scaler, &s), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_init(&opt, &d), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
    amp_optimizer_free(&opt);
}

/* ---------------------------------------------------------------------- the rule of zero, frozen */

/* Runs one tensor of 5 elements for three steps, by desc and t; its moments into m, its weights into w. */
static void run_little(const amp_optimizer_desc *desc, amp_tensor t, float *w, float m[2][5], tape *file) {
    float          g[5];
    amp_optimizer  opt;
    int            step, j;
    const amp_kind kind = desc->kind;
    for (j = 0; j < 5; j++) w[j] = (float)(j + 1);
    t.n = 5, t.weight = w, t.grad = g;
    CHECK_EQ_INT(amp_optimizer_init(&opt, desc), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
    CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
    if (file && file->size) CHECK_EQ_INT(amp_optimizer_load(&opt, tape_read, file), AMP_OK);
    else if (file) CHECK_EQ_INT(amp_optimizer_save(&opt, tape_write, file), AMP_OK);
    for (step = 0; step < 3; step++) {
        for (j = 0; j < 5; j++) g[j] = 0.25f * (float)(j - 2 + step);
        CHECK_EQ_INT(amp_optimizer_step(&opt, 0.125f), AMP_OK);
    }
    CHECK_EQ_INT(amp_optimizer_moments(&opt, 0, m[0], kind == AMP_KIND_ADAMW ? m[1] : NULL), AMP_OK);
    amp_optimizer_free(&opt);
}

TEST(rule_of_zero, "manual: a negative beta1, beta2, weight_decay or lr_scale is exactly 0, and -0 the default, in desc and "
                   "tensor; a file has what it means") {
    static const float below[] = {-1.0f, -0.5f, -3.40282347e38f, -1.17549435e-38f, -1.40129846e-45f};
    amp_optimizer_desc d = {0}, other;
    amp_tensor         t = {0}, of;
    float              w[2][5], m[2][2][5], last[5];
    static tape        file;
    size_t             k;
    int                j;
    d.kind = AMP_KIND_ADAMW, d.scaler.preset = AMP_PRESET_NONE;
    for (j = 0; j < 5; j++) last[j] = 0.25f * (float)j; /* the last gradient */
    for (k = 0; k < COUNT_OF(below); k++) {
        other       = d;
        other.beta1 = k % 2 ? (double)below[k] : -1e-300;
        other.beta2 = (double)below[k];
        run_little(&other, t, w[0], m[0], k ? NULL : &file);
        CHECK_MEM(m[0][0], last, sizeof last); /* nothing is left of the ones before */
        for (j = 0; j < 5; j++) CHECK_EQ_F32(m[0][1][j], last[j] * last[j]);
        of = t;
        of.lr_scale = below[k];
        run_little(&d, of, w[0], m[0], NULL);
        run_little(&d, t, w[1], m[1], NULL);
        for (j = 0; j < 5; j++) CHECK_EQ_F32(w[0][j], (float)(j + 1));
        CHECK(w[1][0] < 1.0f || w[1][0] > 1.0f);
        CHECK_MEM(m[0], m[1], sizeof m[0]); /* which go on */
        other              = d;
        other.weight_decay = 0.5f;
        of                 = t;
        of.weight_decay    = below[k];
        run_little(&other, of, w[0], m[0], NULL);
        CHECK_MEM(w[0], w[1], sizeof w[0]); /* as without any */
        run_little(&other, t, w[0], m[0], NULL);
        CHECK(memcmp(w[0], w[1], sizeof w[0]) != 0);
        other.weight_decay = below[k];
        run_little(&other, t, w[0], m[0], NULL);
        CHECK_MEM(w[0], w[1], sizeof w[0]);
    }
    other = d, of = t;
    other.beta1 = other.beta2 = -0.0, other.weight_decay = of.lr_scale = of.weight_decay = from_bits(0x80000000u);
    run_little(&other, of, w[0], m[0], NULL);
    CHECK(memcmp(w[0], w[1], sizeof w[0]) == 0 && memcmp(m[0], m[1], sizeof m[0]) == 0);
    other = d;
    other.beta1 = -1e-300, other.beta2 = -1.0;
    run_little(&other, t, w[1], m[1], NULL);
    run_little(&d, t, w[0], m[0], &file); /* loads that run's betas */
    CHECK(memcmp(w[0], w[1], sizeof w[0]) == 0 && memcmp(m[0], m[1], sizeof m[0]) == 0);
}

/* What a step that is refused must leave: all that training goes on with. */
static void same_state(amp_optimizer *opt, const tape *before) {
    static tape now;
    now.size = now.at = 0;
    CHECK_EQ_INT(amp_optimizer_save(opt, tape_write, &now), AMP_OK);
    CHECK(now.size == before->size);
    CHECK_MEM(now.bytes, before->bytes, before->size);
}

static amp_result count_and_ask(void *user, double *sums, size_t num_sums, uint32_t *maxima, size_t num_maxima) {
    (void)sums, (void)num_sums, (void)num_maxima;
    ((uint32_t *)user)[0]++;
    ((uint32_t *)user)[1] = maxima[0];
    return AMP_OK;
}

TEST(gradient_not_given, "manual: a step before each tensor that is not frozen was given a gradient, or AMP_NO_GRAD, is "
                         "AMP_ERROR_BAD_STATE, names the first such tensor and changes nothing, whichever call takes it; ranks "
                         "are asked to skip") {
    static const char *const names[] = {"embedding", "head", "tail", "empty"};
    int                      kind, ranks, mixed;
    for (kind = 0; kind < NUM_KINDS; kind++)
        for (ranks = 0; ranks < 2; ranks++)
            for (mixed = 0; mixed < 1 + (kind > 0); mixed++) {
                static tape        before;
                amp_optimizer_desc desc = kind_desc(kind);
                float              w[4][3], g[4][3] = {{0}};
                uint32_t           met[2] = {0, 0};
                void              *grads[4];
                amp_optimizer      opt;
                int                i, k;
                if (ranks) meets(&desc, count_and_ask, met);
                CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
                for (i = 0; i < 4; i++) {
                    amp_tensor t = {0};
                    for (k = 0; k < 3; k++) w[i][k] = (float)(i + k);
                    t.name = names[i], t.n = i < 3 ? 3 : 0, t.weight = w[i], t.own = mixed && i == 1;
                    if (i == 0) t.grad = g[0];
                    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
                }
                CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
                CHECK_EQ_INT(amp_optimizer_set_lr(&opt, 0.5f), AMP_OK);
                before.size = before.at = 0;
                CHECK_EQ_INT(amp_optimizer_save(&opt, tape_write, &before), AMP_OK);
                for (i = 1; i < 3; i++) {
                    for (k = 0; k < 2; k++) {
                        const char *name = i == 1 ? "tensor 1 (head): its gradient was never given"
                                                  : "tensor 2 (tail): its gradient was never given";
                        if (kind && !mixed && k) SAYS(amp_optimizer_step_graph(&opt), AMP_ERROR_BAD_STATE, name);
                        else if (kind && !mixed) SAYS(amp_optimizer_step(&opt, 0.5f), AMP_ERROR_BAD_STATE, name);
                        else if (k) SAYS(amp_optimizer_check(&opt), AMP_ERROR_BAD_STATE, name);
                        else {
                            CHECK(!amp_optimizer_begin_step(&opt));
                            SAYS(amp_optimizer_end_step(&opt), AMP_ERROR_BAD_STATE, name);
                        }
                        SAYS(amp_optimizer_unscale(&opt), AMP_ERROR_STEP_NOT_OPEN, NULL);
                        same_state(&opt, &before);
                    }
                    CHECK_EQ_INT(amp_optimizer_rebind(&opt, 0, w[0], NULL), AMP_OK); /* brings none */
                    CHECK_EQ_INT(amp_optimizer_refresh(&opt), AMP_OK);
                    if (i == 1) CHECK_EQ_INT(amp_optimizer_rebind(&opt, 1, NULL, g[1]), AMP_OK);
                }
                CHECK_EQ_U64(met[0], ranks ? 4 : 0);
                CHECK_EQ_U64(met[1], ranks ? AMP_ASK_SKIP : 0);
                grads[0] = grads[1] = grads[3] = NULL, grads[2] = AMP_NO_GRAD;
                CHECK_EQ_INT(amp_optimizer_rebind_all(&opt, NULL, grads), AMP_OK);
                for (k = 0; k < 3; k++) g[1][k] = amp_optimizer_loss_scale(&opt);
                if (kind && !mixed) CHECK_EQ_INT(amp_optimizer_step(&opt, 0.5f), AMP_OK);
                else CHECK(amp_optimizer_begin_step(&opt));
                if (!kind || mixed) CHECK_EQ_INT(amp_optimizer_end_step(&opt), AMP_OK);
                for (k = 0; k < 3; k++) CHECK_EQ_F32(w[2][k], (float)(2 + k));
                CHECK(!kind || mixed || w[1][0] < 1.0f);
                amp_optimizer_free(&opt);
            }
}

/* Is the copy of tensor i what x is as fp16, in all elements? */
static int copy_is(const amp_optimizer *opt, int i, float x, size_t n) {
    const amp_f16 *h = (const amp_f16 *)amp_optimizer_model(opt, i);
    size_t         j;
    for (j = 0; j < n && h[j].bits == amp_f32_to_f16(x).bits; j++) {}
    return j == n;
}
static void fill_with(float *w, float x, size_t n) {
    while (n-- > 0) w[n] = x;
}

TEST(frozen, "manual: a frozen tensor's gradient is ignored, steps of no kind read it or write its copy, and count no "
             "overflow; prepare, refresh, load and a rebind that moves it do; AMP_NO_GRAD is not frozen") {
    enum { N = 300 };
    int kind, own;
    for (kind = 0; kind <= NUM_KINDS; kind++)
        for (own = 0; own < 1 + (kind > 0); own++) {
            static tape        file;
            static float       w[2][N], moved[N], g[2][N];
            amp_optimizer_desc desc = kind_desc(kind % NUM_KINDS);
            amp_optimizer      opt;
            amp_tensor         t = {0};
            int                step;
            if (kind == NUM_KINDS) desc.kind = AMP_KIND_LION;
            desc.zero_grad = 1;
            fill_with(w[0], 1.0f, N), fill_with(w[1], 2.0f, N), fill_with(g[1], 0.0f, N);
            CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
            t.n = N, t.weight = w[0], t.grad = g[0], t.frozen = 1, t.own = own;
            CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
            t.weight = w[1], t.grad = g[1], t.frozen = 0;
            CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
            t.n = 4, t.grad = g[0], t.weight = g[0], t.frozen = 1; /* a gradient is no array of a step's */
            CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
            CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
            CHECK(copy_is(&opt, 0, 1.0f, N));
            file.size = file.at = 0;
            CHECK_EQ_INT(amp_optimizer_save(&opt, tape_write, &file), AMP_OK);
            if (own) CHECK_EQ_INT(amp_optimizer_set_lr(&opt, 0.5f), AMP_OK);
            for (step = 0; step < 3; step++) {
                amp_status status;
                fill_with(w[0], step == 1 ? 1e9f : 3.0f, N); /* inf as fp16 */
                store_bits(g[0], AMP_F32, 7, 0x7fc00000u); /* skips nothing */
                if (!own && desc.kind != AMP_KIND_OWN) CHECK_EQ_INT(amp_optimizer_step(&opt, 0.5f), AMP_OK);
                else {
                    CHECK(amp_optimizer_begin_step(&opt));
                    CHECK(amp_optimizer_grad(&opt, 0) == NULL && amp_optimizer_grad(&opt, 1) != NULL);
                    fill_with(w[1], 5.0f, N);
                    CHECK_EQ_INT(amp_optimizer_end_step(&opt), AMP_OK);
                    CHECK(copy_is(&opt, 1, 5.0f, N));
                }
                CHECK(copy_is(&opt, 0, 1.0f, N));
                CHECK_EQ_INT(amp_optimizer_status(&opt, &status), AMP_OK);
                CHECK(status.f16_overflows == 0 && status.did_step == 1);
                CHECK_EQ_U32(load_bits(g[0], AMP_F32, 7), 0x7fc00000u); /* nor is it cleared */
                CHECK_EQ_INT(amp_optimizer_rebind(&opt, 0, w[0], AMP_NO_GRAD), AMP_OK); /* where it was */
                CHECK(copy_is(&opt, 0, 1.0f, N));
            }
            CHECK_EQ_INT(amp_optimizer_refresh(&opt), AMP_OK);
            CHECK(copy_is(&opt, 0, 3.0f, N));
            fill_with(moved, 7.0f, N);
            CHECK_EQ_INT(amp_optimizer_rebind(&opt, 0, moved, NULL), AMP_OK);
            CHECK(copy_is(&opt, 0, 7.0f, N) && amp_optimizer_master(&opt, 0) == moved);
            CHECK_EQ_INT(amp_optimizer_load(&opt, tape_read, &file), AMP_OK);
            CHECK(copy_is(&opt, 0, 1.0f, N) && moved[0] >= 1.0f && moved[0] <= 1.0f);
            if (own || desc.kind == AMP_KIND_OWN) { /* none this time: your optimizer may still move it */
                CHECK_EQ_INT(amp_optimizer_rebind(&opt, 1, NULL, AMP_NO_GRAD), AMP_OK);
                CHECK_EQ_INT(amp_optimizer_rebind(&opt, 0, NULL, g[1]), AMP_ERROR_UNSUPPORTED);
            }
            amp_optimizer_free(&opt);
        }
}

TEST(flat_and_frozen, "manual: add_flat takes frozen of each tensor, or of the whole; gradients of your own keep their offsets") {
    static float       w[60], g[60];
    amp_optimizer_desc desc = {0};
    amp_optimizer      opt;
    amp_tensor         whole = {0}, part[3] = {{0}, {0}, {0}};
    int                kind, j;
    for (kind = 0; kind < 2; kind++) {
        desc.kind = kind ? AMP_KIND_SGD : AMP_KIND_OWN, desc.scaler.preset = AMP_PRESET_NONE;
        for (j = 0; j < 60; j++) w[j] = 1.0f, g[j] = 0.5f;
        whole.n = 60, whole.weight = w, whole.grad = g, whole.frozen = 0;
        part[0].n = 17, part[1].n = 20, part[2].n = 23;
        part[1].frozen = 1;
        CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_add_flat(&opt, &whole, part, 3), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_prepare(&opt), AMP_OK);
        if (kind) CHECK_EQ_INT(amp_optimizer_step(&opt, 1.0f), AMP_OK);
        else {
            CHECK(amp_optimizer_begin_step(&opt));
            CHECK(amp_optimizer_grad(&opt, 1) == NULL);
            CHECK(amp_optimizer_grad(&opt, 2) == amp_optimizer_grad(&opt, 0) + 37);
            for (j = 0; j < 23; j++) CHECK_EQ_F32(amp_optimizer_grad(&opt, 2)[j], 0.5f);
            CHECK_EQ_INT(amp_optimizer_end_step(&opt), AMP_OK);
        }
        for (j = 0; j < 60 && kind; j++) CHECK_EQ_F32(w[j], j < 17 || j >= 37 ? 0.5f : 1.0f);
        amp_optimizer_free(&opt);
    }
    whole.frozen = 1;
    CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_add_flat(&opt, &whole, part, 3), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_prepare(&opt), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_step(&opt, 1.0f), AMP_ERROR_BAD_STATE); /* of all */
    amp_optimizer_free(&opt);
}

int main(int argc, char **argv) {
    test_begin(argc, argv);
    fp_set(FP_IEEE); /* -Ofast links flush subnormals from the start */
    RUN(weight_is_model);
    RUN(nothing);
    RUN(own_step);
    RUN(adamw_bits);
    RUN(sgd_bits);
    RUN(momentum_bits);
    RUN(nesterov_bits);
    RUN(adamw_double);
    RUN(sgd_double);
    RUN(many_tensors);
    RUN(flat_equals_separate);
    RUN(flat_takes_whole);
    RUN(late_gradient);
    RUN(rule_of_zero);
    RUN(gradient_not_given);
    RUN(frozen);
    RUN(flat_and_frozen);
    RUN(silent_mistakes);
    RUN(flat_wrong_sums);
    RUN(norm_order);
    RUN(norm_partials);
    RUN(norm_overflow_mixed);
    RUN(skip_every_index);
    RUN(skip_every_tensor);
    RUN(more_than_2_32);
    RUN(stats_exact);
    RUN(traps);
    RUN(carried_momentum);
    RUN(ranks);
    RUN(chunk_sums);
    RUN(refused_ranks);
    RUN(ranks_magnitude);
    RUN(refresh);
    RUN(rebind);
    RUN(uninitialized);
    RUN(bad_desc);
    RUN(refused_is_remembered);
    RUN(bad_tensor);
    RUN(model_type_ignored);
    RUN(found_inf_before_ranks);
    RUN(unscaled_loss);
    RUN(scale_was_set);
    RUN(rebind_all_errors);
    RUN(carry);
    RUN(moments_refused);
    RUN(set_steps);
    RUN(teams);
    RUN(problems);
    RUN(missing_calls);
    RUN(every_call_tells);
    RUN(told_numbers);
    RUN(one_cause);
    RUN(own_tensors);
    RUN(own_and_the_rest);
    RUN(own_reports);
    RUN(own_refused);
    RUN(copied_structs);
    RUN(arrays_apart);
    RUN(many_apart);
    RUN(zero_desc);
    RUN(digest);
    RUN(digest_environment);
    RUN(least_momentum);
    return test_end();
}
