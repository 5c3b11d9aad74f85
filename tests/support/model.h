/* model.h - what amp.h's manual says, as a second program: the oracle of test_model.c. It takes the
   types of the public interface and none of its code, and computes in integers alone (numbers
   below), so that no compiler flag, rounding mode or flushed subnormal reaches it.

       number     floats of any format: each operation rounded once, to nearest even
       scaler     the loss scale of every preset
       optimizer  which result each call has in each state; check, decision, step, files */

#ifndef MODEL_H_INCLUDED
#define MODEL_H_INCLUDED

#include <stdint.h>
#include <string.h>

/* ---------------------------------------------------------------------------------- numbers */

typedef struct format { int bits, fraction; } format;
static const format F32 = {32, 23}, F64 = {64, 52}, F16 = {16, 10}, BF16 = {16, 7};

enum { ZERO, FINITE, INFINITE, NOT_A_NUMBER };
/* m * 2^e with the highest bit of m set; more: and a little besides, less than its last bit. */
typedef struct number { int kind, sign, e, more; uint64_t m; } number;

static int      bias_of(format f) { return (1 << (f.bits - f.fraction - 2)) - 1; }
static uint64_t inf_of(format f) { return (uint64_t)(2 * bias_of(f) + 1) << f.fraction; }

static number normal(number x) {
    int by;
    if (x.m == 0) x.kind = ZERO;
    for (by = 32; by && x.m; by /= 2)
        if (!(x.m >> (64 - by))) x.m <<= by, x.e -= by;
    return x;
}

static number unpack(format f, uint64_t u) {
    const uint64_t size = u & (((uint64_t)1 << (f.bits - 1)) - 1);
    const int      e    = (int)(size >> f.fraction);
    number         x    = {FINITE, (int)(u >> (f.bits - 1) & 1), 0, 0, 0};
    x.m = size & (((uint64_t)1 << f.fraction) - 1);
    if (size >= inf_of(f)) x.kind = size > inf_of(f) ? NOT_A_NUMBER : INFINITE;
    if (e) x.m |= (uint64_t)1 << f.fraction;
    x.e = (e ? e : 1) - bias_of(f) - f.fraction;
    return x.kind == FINITE ? normal(x) : x;
}

/* The nearest number of the format, ties to even. */
static uint64_t pack(format f, number x) {
    const uint64_t sign = (uint64_t)x.sign << (f.bits - 1), inf = inf_of(f);
    int            e = x.e + 63 + bias_of(f), drop = 63 - f.fraction;
    uint64_t       q = 0, rest, half, u;
    if (x.kind == ZERO) return sign;
    if (x.kind == NOT_A_NUMBER) return sign | inf | (uint64_t)1 << (f.fraction - 1);
    if (x.kind == INFINITE || e >= 2 * bias_of(f) + 1) return sign | inf;
    if (e < 1) {
        drop += 1 - e;
        e = 0;
    }
    if (drop > 64) return sign;
    if (drop < 64) q = x.m >> drop;
    rest = drop < 64 ? x.m & (((uint64_t)1 << drop) - 1) : x.m;
    half = (uint64_t)1 << (drop - 1);
    u    = e ? ((uint64_t)e << f.fraction) + (q - ((uint64_t)1 << f.fraction)) : q;
    return sign | (u + (rest > half || (rest == half && (x.more || (q & 1)))));
}

static uint64_t recast(format to, format from, uint64_t u) { return pack(to, unpack(from, u)); }

static number nan_of(void) {
    const number x = {NOT_A_NUMBER, 0, 0, 0, 0};
    return x;
}

static number sum_of(number a, number b) {
    const int larger = a.e > b.e || (a.e == b.e && a.m >= b.m);
    number    x = larger ? a : b, y = larger ? b : a;
    int       d;
    if (a.kind == NOT_A_NUMBER || b.kind == NOT_A_NUMBER) return nan_of();
    if (a.kind == INFINITE || b.kind == INFINITE)
        return a.kind == b.kind && a.sign != b.sign ? nan_of() : a.kind == INFINITE ? a : b;
    if (a.kind == ZERO && b.kind == ZERO) {
        a.sign &= b.sign;
        return a;
    }
    if (a.kind == ZERO || b.kind == ZERO) return a.kind == ZERO ? b : a;
    d = x.e - y.e;
    x.m >>= 1, x.e++, y.m >>= 1; /* of 53 bits, so that nothing is lost */
    x.more = d > 62 || (y.m & (((uint64_t)1 << d) - 1)) != 0;
    y.m    = d > 62 ? 0 : y.m >> d;
    if (x.sign == y.sign) x.m += y.m;
    else x.m -= y.m + (uint64_t)x.more;
    x = normal(x);
    if (x.kind == ZERO) x.sign = 0;
    return x;
}

static number product_of(number a, number b) {
    const uint64_t al = a.m & 0xffffffffu, ah = a.m >> 32, bl = b.m & 0xffffffffu, bh = b.m >> 32;
    const uint64_t low = al * bl, mid = ah * bl + (low >> 32),
                   cross = al * bh + (mid & 0xffffffffu);
    number         x = {FINITE, 0, 0, 0, 0};
    x.sign = a.sign ^ b.sign;
    if (a.kind == NOT_A_NUMBER || b.kind == NOT_A_NUMBER ||
        (a.kind == ZERO && b.kind == INFINITE) || (a.kind == INFINITE && b.kind == ZERO))
        return nan_of();
    x.kind = a.kind == INFINITE || b.kind == INFINITE ? INFINITE
             : a.kind == ZERO || b.kind == ZERO       ? ZERO : FINITE;
    x.m    = ah * bh + (mid >> 32) + (cross >> 32);
    x.more = (cross & 0xffffffffu) || (low & 0xffffffffu);
    x.e    = a.e + b.e + 64;
    return x.kind == FINITE ? normal(x) : x;
}

static number quotient_of(number a, number b) {
    number   x = {FINITE, 0, 0, 0, 0};
    uint64_t rest = a.m, top;
    int      i;
    x.sign = a.sign ^ b.sign;
    if (a.kind == NOT_A_NUMBER || b.kind == NOT_A_NUMBER || (a.kind == b.kind && a.kind != FINITE))
        return nan_of();
    x.kind = a.kind == INFINITE || b.kind == ZERO   ? INFINITE
             : a.kind == ZERO || b.kind == INFINITE ? ZERO : FINITE;
    if (x.kind != FINITE) return x;
    for (i = 0, top = 0; i < 64; i++, top = rest >> 63, rest <<= 1) {
        const int fits = top || rest >= b.m;
        x.m = x.m << 1 | (uint64_t)fits;
        if (fits) rest -= b.m;
        if (i == 63) break;
    }
    x.more = rest != 0;
    x.e    = a.e - b.e - 63;
    return normal(x);
}

static number root_of(number a) {
    number   x = {FINITE, 0, 0, 0, 0};
    uint64_t rest = 0;
    int      i;
    if (a.kind == ZERO || (a.kind == INFINITE && !a.sign)) return a;
    if (a.kind != FINITE || a.sign) return nan_of();
    if (a.e % 2) a.m >>= 1, a.e++;
    for (i = 0; i < 58; i++) {
        const uint64_t next = x.m << 2 | 1;
        rest = rest << 2 | (i < 32 ? a.m >> (62 - 2 * i) & 3 : 0);
        x.m <<= 1;
        if (rest >= next) rest -= next, x.m |= 1;
    }
    x.more = rest != 0;
    x.e    = a.e / 2 - 26;
    return normal(x);
}

typedef uint32_t f32; /* the bits of one */
typedef uint64_t f64;
enum { ONE = 0x3f800000, SIGN_LESS = 0x7fffffff, INF = 0x7f800000 };
#define ONE64 0x3ff0000000000000u
static f32 add32(f32 a, f32 b) { return (f32)pack(F32, sum_of(unpack(F32, a), unpack(F32, b))); }
static f32 sub32(f32 a, f32 b) { return add32(a, b ^ 0x80000000u); }
static f32 mul32(f32 a, f32 b) {
    return (f32)pack(F32, product_of(unpack(F32, a), unpack(F32, b)));
}
static f32 div32(f32 a, f32 b) {
    return (f32)pack(F32, quotient_of(unpack(F32, a), unpack(F32, b)));
}
static f32 sqrt32(f32 a) { return (f32)pack(F32, root_of(unpack(F32, a))); }
static f64 add64(f64 a, f64 b) { return pack(F64, sum_of(unpack(F64, a), unpack(F64, b))); }
static f64 sub64(f64 a, f64 b) { return add64(a, b ^ (uint64_t)1 << 63); }
static f64 mul64(f64 a, f64 b) { return pack(F64, product_of(unpack(F64, a), unpack(F64, b))); }
static f64 div64(f64 a, f64 b) { return pack(F64, quotient_of(unpack(F64, a), unpack(F64, b))); }
static f64 sqrt64(f64 a) { return pack(F64, root_of(unpack(F64, a))); }
static f64 wide(f32 a) { return recast(F64, F32, a); }
static f32 narrow(f64 a) { return (f32)recast(F32, F64, a); }
static f64 whole(uint64_t n) {
    number x = {FINITE, 0, 0, 0, 0};
    x.m = n;
    return pack(F64, normal(x));
}
static f32 bits32(float x) {
    f32 u;
    memcpy(&u, &x, 4);
    return u;
}
static f64 bits64(double x) {
    f64 u;
    memcpy(&u, &x, 8);
    return u;
}
static int odd32(f32 x) { return (x & INF) == INF; } /* infinite or no number */
static int nan32(f32 x) { return (x & SIGN_LESS) > INF; }

static format of_type(int type) { return type == AMP_F32 ? F32 : type == AMP_F16 ? F16 : BF16; }
/* fp32 rounded to a type, as fp32. */
static f32 rounded(int type, f32 x) {
    return type == AMP_F32 ? x : (f32)recast(F32, of_type(type), recast(of_type(type), F32, x));
}

/* ----------------------------------------------------------------------------------- scaler */

typedef struct m_scaler {
    int      preset, disabled, tracker, interval, hysteresis, left;
    f32      scale, min, max; /* 0: none */
    f64      next, growth, backoff; /* backoff 0: divide by growth */
    uint32_t found, checked, stuck;
    uint64_t good, skipped, growths, backoffs, row;
} m_scaler;

/* First scale, interval, limits, hysteresis of each preset, as amp_preset lists them; does the
   original have one factor? */
static const struct { double first; int interval; double min, max; int hysteresis, one_factor; }
    m_presets[] = {
        {65536, 2000, 6.103515625e-5, 16777216, 1, 0},
        {65536, 2000, 1.17549435e-38, 8.50705917e37, 0, 0}, {1, 2000, 1, 1, 0, 0},
        {65536, 2000, 0, 0, 0, 0},
        {65536, 2000, 0, 16777216, 0, 1},               {65536, 2000, 0, 0, 1, 0},
        {4294967296.0, 1000, 1, 0, 2, 0},               {65536, 1000, 1, 0, 2, 1},
        {65536, 1000, 1, 0, 2, 1},                      {4294967296.0, 1000, 1, 0, 0, 1},
        {65536, 2000, 1.17549435e-38, 3.40282347e38, 0, 0}, {65536, 2000, 1, 0, 0, 1},
        {32768, 2000, 0, 0, 0, 0},                      {32768, 2000, 1, 0, 0, 1},
        {65536, 2000, 0, 16777216, 0, 1}};

static void m_scaler_init(m_scaler *s, const amp_scaler_desc *d) {
    const int p = (int)d->preset;
    memset(s, 0, sizeof *s);
    s->preset   = p;
    s->disabled = d->disabled != 0;
    s->interval = d->growth_interval ? d->growth_interval : m_presets[p].interval;
    s->growth   = bits64(d->growth_factor > 0 ? d->growth_factor : 2.0);
    s->backoff  = bits64(d->backoff_factor);
    if (!s->backoff && !m_presets[p].one_factor) s->backoff = bits64(0.5);
    if (!s->backoff && !(s->growth << 12)) s->backoff = div64(ONE64, s->growth);
    s->hysteresis = !m_presets[p].hysteresis ? 1
                    : d->hysteresis          ? d->hysteresis
                                             : m_presets[p].hysteresis;
    s->left       = s->hysteresis;
    s->min        = bits32(bits32(d->min_scale) ? d->min_scale : (float)m_presets[p].min);
    s->max        = bits32(bits32(d->max_scale) ? d->max_scale : (float)m_presets[p].max);
    s->scale      = bits32(bits32(d->init_scale) ? d->init_scale : (float)m_presets[p].first);
    if (s->max && s->scale > s->max && (!bits32(d->init_scale) || p == AMP_PRESET_APEX))
        s->scale = s->max;
    if (!bits32(d->init_scale) && s->scale < s->min) s->scale = s->min;
    if (s->disabled) s->scale = ONE;
    s->next = wide(s->scale);
}

static int m_fixed(const m_scaler *s) {
    return s->preset == AMP_PRESET_STATIC || s->preset == AMP_PRESET_NONE;
}

/* DEFAULT, STATIC and NONE check the product, too. */
static int m_safe(const m_scaler *s) { return s->preset == AMP_PRESET_DEFAULT || m_fixed(s); }

/* Do originals hold the scale in a double on the host? */
static int m_holds_double(const m_scaler *s) {
    return s->preset == AMP_PRESET_APEX || s->preset == AMP_PRESET_DEEPSPEED ||
           s->preset == AMP_PRESET_DEEPSPEED_CONSECUTIVE ||
           s->preset == AMP_PRESET_DEEPSPEED_FUSED || s->preset == AMP_PRESET_MXNET;
}

/* After a good step: does the scale grow? */
static int m_grows(m_scaler *s) {
    const int before = s->tracker, interval = s->interval;
    int       grows  = 0;
    s->tracker++;
    switch (s->preset) {
    case AMP_PRESET_STATIC:
    case AMP_PRESET_NONE: return 0;
    case AMP_PRESET_DEEPSPEED:
    case AMP_PRESET_DEEPSPEED_CONSECUTIVE: return s->tracker % interval == 0;
    case AMP_PRESET_DEEPSPEED_FUSED: return before > 0 && before % interval == 0;
    case AMP_PRESET_JMP:
        s->tracker %= interval;
        return before == interval - 1;
    case AMP_PRESET_FLAX: grows = before == interval; break;
    case AMP_PRESET_TF_KERAS: grows = s->tracker >= interval; break;
    default: grows = s->tracker == interval;
    }
    if (grows) s->tracker = 0;
    return grows;
}

static f64 m_lower(const m_scaler *s) {
    const f64 low = wide(s->min),
              next = s->backoff ? mul64(s->next, s->backoff) : div64(s->next, s->growth);
    return next < low ? low : next;
}

static void m_scaler_update(m_scaler *s) {
    const uint32_t bad  = s->found;
    const f64      live = s->next, high = wide(s->max);
    f64            next = live;
    s->found = s->checked = 0;
    if (bad) s->skipped++, s->row++;
    else s->good++, s->row = 0;
    if (s->disabled) return;
    if (bad) {
        s->tracker = 0;
        if (s->left > 1) {
            s->left--;
        } else if (!m_fixed(s)) {
            next = m_lower(s);
            if (!m_holds_double(s)) next = wide(narrow(next));
            if (next < live) s->backoffs++;
            else s->stuck = 1;
        }
    } else {
        const int grows = m_grows(s), p = s->preset;
        const int by_growth = p == AMP_PRESET_MEGATRON || p == AMP_PRESET_DEEPSPEED;
        if (grows || !by_growth) s->left = s->hysteresis;
        if (grows) {
            next = mul64(live, s->growth);
            if (s->max && next > high) next = high;
            if (!m_holds_double(s)) next = wide(narrow(next));
            if ((p == AMP_PRESET_TORCH || p == AMP_PRESET_APEX_HYSTERESIS || p == AMP_PRESET_JMP ||
                 p == AMP_PRESET_TF_KERAS) && odd32(narrow(next)))
                next = live;
            if (next > live) s->growths++;
        }
    }
    s->next  = next;
    s->scale = narrow(s->preset == AMP_PRESET_MXNET ? live : next);
}

static f32 m_inverse(f32 scale) {
    return scale & SIGN_LESS ? narrow(div64(ONE64, wide(scale))) : INF;
}
/* A gradient times a factor; what is not finite stays. */
static f32 m_times(f32 g, f32 factor) { return odd32(g) ? g : mul32(g, factor); }

static amp_result m_set_scale(m_scaler *s, float scale) {
    const f32 x = bits32(scale);
    if (s->disabled) return AMP_OK;
    if (x == 0 || x >= INF || (m_safe(s) && (x < s->min || x > s->max)))
        return AMP_ERROR_INVALID_CONFIG;
    s->scale = x;
    s->next  = wide(x);
    s->stuck = 0;
    return AMP_OK;
}

/* -------------------------------------------------------------------------------- optimizer */

/* What a call that returns a result leaves in amp_problem, where there was older: with an error what was
   wrong, with AMP_OK what there was. 0: something else. */
static int m_tells(amp_result result, const char *older, const char *problem) {
    return result == AMP_OK ? strcmp(problem, older) == 0 : problem[0] && strcmp(problem, older) != 0;
}

enum { MAX_T = 36, MAX_E = 1400, CHUNK = 16384, LANES = 256, STUCK = 40 };

typedef struct m_tensor {
    const char *name;
    int         n, at;         /* elements; of all numbers, where its own begin               */
    int         values, first; /* of its gradient as it comes, and where these begin          */
    int         own_weight;    /* brought in add                                              */
    int         frozen, given, has_grad, grad_type; /* given: a gradient, or that it has none    */
    int         own;           /* the user's optimizer changes it, beside a fused kind        */
    int         has_model, model_type;
    int         length, most;  /* of rows; 0: a gradient of all elements                      */
    int         touched, reach; /* rows in the last check; chunks that its numbers may have   */
    int         brought;       /* a rebind has brought weights for a refresh                  */
    int         missing;       /* its moments, of steps before                                */
    amp_storage storage;
    f32         lr_scale, decay;
    struct { uint64_t nonfinite, nan, first, zeros; f32 max; uint32_t bad_row; } stats;
    struct { uint64_t overflows, nans, first, last; } seen;
} m_tensor;

typedef struct m_record { /* of a report */
    uint64_t skips[2];
    struct { uint64_t iteration; f64 norm; f32 scale, clip; int skip, tensor; } last;
} m_record;

typedef struct m_optimizer {
    int        initialized, prepared, open; /* open: 1 checked, 2 and unscaled */
    amp_result pending;
    int        asked, has_lr;
    amp_result refused; /* the first add that was */
    /* as the desc says, and files */
    int        kind, dtype, zero_grad, in_place, shared, meets, report, nesterov;
    f64        beta1, beta2;
    f32        eps, momentum, max_norm, decay, lr;
    int        moments;
    uint64_t   seed;
    amp_storage     storage;
    amp_scaler_desc scaler_desc;
    m_scaler   own, next; /* next waits for the end of the step, if moves */
    int        moves;
    /* what a step decides */
    uint32_t   skip, found, did_step;
    f32        inv_scale, clip;
    f64        norm, more_norm2; /* more: of other ranks */
    uint32_t   more_flag;
    uint64_t   step, skipped, row, missed, seen_updates, overflows;
    m_record   record;
    int        num, elements, num_values;
    m_tensor   t[MAX_T];
    f32        w[MAX_E], moment[2][MAX_E], model[MAX_E], grad[MAX_E], unscaled[MAX_E], sums[MAX_E];
    uint32_t   rows[MAX_E], unique[MAX_E], num_rows[MAX_T];
} m_optimizer;

typedef enum m_when { ADDING, AFTER, BETWEEN, WITHIN } m_when;
static amp_result m_ready(const m_optimizer *m, m_when when) {
    if (!m->initialized) return AMP_ERROR_NOT_INITIALIZED;
    if (when == ADDING) return m->prepared ? AMP_ERROR_PREPARED : AMP_OK;
    if (!m->prepared) return AMP_ERROR_NOT_PREPARED;
    if (when == BETWEEN && m->open) return AMP_ERROR_STEP_OPEN;
    return when == WITHIN && !m->open ? AMP_ERROR_STEP_NOT_OPEN : AMP_OK;
}

static m_scaler *m_scaler_of(m_optimizer *m, m_scaler *shared) {
    return m->shared ? shared : &m->own;
}

/* 0 is the default, and a negative number exactly 0. */
static f64 m_or(f64 x, f64 otherwise) { return !(x << 1) ? otherwise : x >> 63 ? 0 : x; }
static f32 m_or32(f32 x, f32 otherwise) { return !(x << 1) ? otherwise : x >> 31 ? 0 : x; }

static void m_init(m_optimizer *m, const amp_optimizer_desc *d) {
    memset(m, 0, sizeof *m);
    m->initialized = 1;
    m->kind      = (int)d->kind;
    m->dtype     = (int)d->dtype;
    m->zero_grad = d->zero_grad;
    m->in_place  = d->unscale_in_place;
    m->shared    = d->shared_scaler != NULL;
    m->nesterov  = d->nesterov != 0;
    m->beta1     = m_or(bits64(d->beta1), bits64(0.9));
    m->beta2     = m_or(bits64(d->beta2), bits64(m->kind == AMP_KIND_LION ? 0.99 : 0.999));
    m->eps       = narrow(bits64(d->eps > 0 ? d->eps : 1e-8));
    m->momentum  = narrow(bits64(d->momentum));
    m->max_norm  = bits32(d->max_norm);
    m->decay     = m_or32(bits32(d->weight_decay), 0);
    m->seed      = d->seed;
    m->moments   = m->kind == AMP_KIND_ADAMW ? 2 : m->kind == AMP_KIND_LION ||
                   (m->kind == AMP_KIND_SGD && m->momentum) ? 1 : 0;
    m->meets  = d->reduce_fn != NULL;
    m->report = d->report != NULL;
    if (d->storage) m->storage = *d->storage;
    m->scaler_desc = d->scaler;
    m_scaler_init(&m->own, &d->scaler);
    m->clip      = ONE;
    m->inv_scale = ONE;
    m->record.last.tensor = -1;
}

static int m_coded(const m_tensor *t) { return t->storage.master != AMP_FORMAT_F32; }
/* Does the model compute the numbers of this tensor? Else a second optimizer does. */
static int m_plain(const m_tensor *t) {
    return (!m_coded(t) || t->storage.master == AMP_FORMAT_SPLIT) &&
           t->storage.moments == AMP_FORMAT_F32;
}

/* A model copy is its master, rounded: to nearest even, but in SPLIT ties away from zero. */
static void m_write_model(m_optimizer *m, const m_tensor *t, int i) {
    const f32 w = m->w[t->at + i];
    const int split = t->storage.master == AMP_FORMAT_SPLIT && !nan32(w);
    m->model[t->at + i] = split ? (w + 0x8000) & 0xffff0000 : rounded(t->model_type, w);
}

/* Are some tensors own? Does the user's optimizer change this one? How many moments has it? */
static int m_owns(const m_optimizer *m) {
    int i, owns = 0;
    for (i = 0; i < m->num; i++) owns |= m->t[i].own;
    return owns;
}
static int m_yours(const m_optimizer *m, const m_tensor *t) {
    return m->kind == (int)AMP_KIND_OWN || t->own;
}
static int m_has(const m_optimizer *m, const m_tensor *t) {
    return t->own || t->frozen ? 0 : m->moments;
}

/* A tensor, but for its numbers. */
static m_tensor *m_add(m_optimizer *m, const amp_tensor *a) {
    static const amp_storage fp32 = {AMP_FORMAT_F32, AMP_FORMAT_F32};
    m_tensor  *t    = &m->t[m->num++];
    const int  kept = a->storage && a->storage->master == AMP_FORMAT_F32;
    const int  same = a->model && a->model == (void *)a->weight;
    long       most;
    memset(t, 0, sizeof *t);
    t->name       = a->name;
    t->n          = (int)a->n;
    t->at         = m->elements;
    t->first      = m->num_values;
    t->own_weight = a->weight != NULL;
    t->frozen     = a->frozen != 0;
    t->given      = t->has_grad = a->grad && !t->frozen;
    t->grad_type  = (int)a->grad_type;
    t->has_model  = a->model ? !same : m->dtype != (int)AMP_F32 && !a->keep_fp32;
    t->model_type = a->model ? (int)a->model_type : a->keep_fp32 ? (int)AMP_F32 : m->dtype;
    t->own        = a->own && m->kind != (int)AMP_KIND_OWN;
    t->storage    = a->storage ? *a->storage : m->storage;
    if (a->own || (a->keep_fp32 && !kept)) t->storage = fp32;
    t->lr_scale   = m_or32(bits32(a->lr_scale), ONE);
    t->decay      = m_or32(bits32(a->weight_decay), a->rows ? 0 : m->decay);
    if (a->rows && !t->frozen)
        t->length = (int)a->rows->row_length, t->most = (int)a->rows->max_rows;
    t->values = t->length ? t->length * t->most : t->n;
    most = t->length && t->values < (t->n ? t->n : t->length) ? t->values : t->n ? t->n : t->length;
    t->reach  = (int)((most + CHUNK - 1) / CHUNK);
    t->stats.first = (uint64_t)t->n;
    m->elements += t->n;
    m->num_values += t->values;
    return t;
}

static amp_result m_prepare(m_optimizer *m) {
    int i, k;
    m->prepared = 1;
    m->pending  = AMP_OK;
    m->asked = m->shared || m->meets || bits32(m->scaler_desc.init_scale) || m->own.scale == ONE;
    for (i = 0; i < m->num; i++)
        for (k = 0; k < m->t[i].n; k++)
            m_write_model(m, &m->t[i], k);
    return AMP_OK;
}

/* May a step begin? */
static amp_result m_can_step(const m_optimizer *m, int fused) {
    amp_result ready = m_ready(m, BETWEEN);
    int        i, weights = 0, grads = 0;
    if (ready != AMP_OK) return ready;
    if (fused == (m->kind == (int)AMP_KIND_OWN || m_owns(m))) return AMP_ERROR_UNSUPPORTED;
    for (i = 0; i < m->num; i++) {
        if (m->t[i].n && !m->t[i].frozen && !m->t[i].given) return AMP_ERROR_BAD_STATE;
        weights += m->t[i].n != 0;
        grads += m->t[i].n && m->t[i].has_grad;
    }
    return weights && !grads && !m->meets ? AMP_ERROR_BAD_STATE : AMP_OK;
}

/* The tensor whose moments are missing, or -1: AdamW's behind m_set_steps. */
static int m_without_moments(const m_optimizer *m) {
    int i;
    for (i = 0; i < m->num; i++)
        if (m->t[i].missing) return i;
    return -1;
}

/* Another run's counts. */
static amp_result m_set_steps(m_optimizer *m, uint64_t steps, uint64_t skipped) {
    const amp_result ready = m_ready(m, BETWEEN);
    int              i;
    if (ready != AMP_OK) return ready;
    if ((steps | skipped) >> 63) return AMP_ERROR_INVALID_CONFIG;
    for (i = 0; i < m->num; i++) {
        m->t[i].missing = (steps || m->step) && m->t[i].n && m_has(m, &m->t[i]) == 2;
        memset(&m->t[i].seen, 0, sizeof m->t[i].seen);
    }
    m->step    = steps;
    m->skipped = skipped;
    m->row     = 0;
    memset(&m->record, 0, sizeof m->record);
    m->record.last.tensor = -1;
    return AMP_OK;
}

/* New moments for tensor i, of which NULL are none. */
static amp_result m_set_moments(m_optimizer *m, int i, const f32 *first, const f32 *second) {
    const amp_result ready = m_ready(m, BETWEEN);
    const f32 *const from[2] = {first, second};
    m_tensor        *t     = i >= 0 && i < m->num ? &m->t[i] : NULL;
    const int        has   = t ? m_has(m, t) : 0;
    int              k, j, type, any = 0;
    if (ready != AMP_OK) return ready;
    if (!t) return AMP_ERROR_INVALID_ARGUMENT;
    for (k = 0; k < 2; k++)
        if (from[k] && has <= k) return AMP_ERROR_UNSUPPORTED;
    for (k = 0; k < has; k++)
        if (t->n && !from[k]) return AMP_ERROR_INVALID_ARGUMENT;
    for (k = 0; k < has; k++)
        for (j = 0; j < t->n; j++) any |= from[k][j] << 1 != 0;
    if (any && has == 2 && !m->step) return AMP_ERROR_INVALID_CONFIG;
    if (any && t->storage.moments == AMP_FORMAT_8BIT) return AMP_ERROR_UNSUPPORTED; /* no codes' values */
    type = t->storage.moments == AMP_FORMAT_BF16 ? (int)AMP_BF16 : (int)AMP_F32;
    for (k = 0; k < has; k++)
        for (j = 0; j < t->n; j++) m->moment[k][t->at + j] = rounded(type, from[k][j]);
    t->missing = 0;
    return AMP_OK;
}

/* Sums of squares in lanes of 256, which are added in pairs. */
static f32 m_lanes(const f32 *x, int n, f32 rescale) {
    f32 lane[LANES] = {0};
    int i, half;
    for (i = 0; i < n; i++)
        if (!odd32(x[i])) {
            const f32 a = mul32(x[i] & SIGN_LESS, rescale);
            lane[i % LANES] = add32(lane[i % LANES], mul32(a, a));
        }
    for (half = LANES / 2; half; half /= 2)
        for (i = 0; i < half; i++)
            if (lane[i + half]) lane[i] = add32(lane[i], lane[i + half]);
    return lane[0];
}

/* Of a chunk: again at another magnitude if squares overflow, or all but vanish. */
static f64 m_squares(const f32 *x, int n, f32 max) {
    const f32 sum = m_lanes(x, n, ONE);
    if (odd32(sum)) return mul64(wide(m_lanes(x, n, 0x0f800000)), bits64(6.277101735386681e+57));
    if (sum < 0x0d800000 && max)
        return mul64(wide(m_lanes(x, n, 0x6f800000)), bits64(1.5930919111324523e-58));
    return wide(sum);
}

/* The row of entry k: the last one, if there is none such (the step will be skipped). */
static int      m_table(const m_tensor *t) { return t->n ? t->n / t->length : 1; }
static uint32_t m_row(const m_optimizer *m, const m_tensor *t, int k) {
    const uint32_t row = m->rows[t->first + k], last = (uint32_t)m_table(t) - 1;
    return row < last ? row : last;
}

/* What belongs to one row is added: each 64 of its entries, then these sums. */
static f32 m_sum_of_row(const m_optimizer *m, const m_tensor *t, int given, uint32_t row, int j) {
    f32 all = 0, part = 0;
    int k, count = 0;
    for (k = 0; k < given; k++) {
        const f32 x = m->grad[t->first + k * t->length + j];
        if (m_row(m, t, k) != row) continue;
        if (count && count % 64 == 0) all = count == 64 ? part : add32(all, part);
        part = count % 64 ? add32(part, x) : x;
        count++;
    }
    return count > 64 ? add32(all, part) : part;
}

static void m_sum_rows(m_optimizer *m, int i) {
    m_tensor  *t     = &m->t[i];
    const int given = !t->has_grad                         ? 0
                      : m->num_rows[i] < (uint32_t)t->most ? (int)m->num_rows[i]
                                                           : t->most;
    uint32_t   row;
    int        k, j;
    t->touched       = 0;
    t->stats.bad_row =
        t->has_grad && m->num_rows[i] > (uint32_t)t->most ? (uint32_t)t->most + 1 : 0;
    for (k = given; k-- > 0;)
        if (m->rows[t->first + k] >= (uint32_t)(t->n / t->length))
            t->stats.bad_row = (uint32_t)k + 1;
    for (row = 0; row < (uint32_t)m_table(t); row++) {
        for (k = 0; k < given && m_row(m, t, k) != row; k++) {}
        if (k == given) continue;
        for (j = 0; j < t->length; j++)
            m->sums[t->first + t->touched * t->length + j] = m_sum_of_row(m, t, given, row, j);
        m->unique[t->first + t->touched++] = row;
    }
}

/* Statistics of one gradient, its sum of squares into lanes, by the numbers of chunks. Returns
   whether it is bad. */
static int m_check_tensor(m_optimizer *m, int i, int chunk, f64 *lanes) {
    m_tensor  *t = &m->t[i];
    const f32 *x = t->length ? m->sums + t->first : m->grad + t->first;
    int        k, n, from;
    if (t->length) m_sum_rows(m, i);
    n = t->length ? t->touched * t->length : t->has_grad ? t->n : 0;
    t->stats.nonfinite = t->stats.nan = t->stats.zeros = t->stats.max = 0;
    t->stats.first     = (uint64_t)t->n;
    for (k = 0; k < n; k++) {
        if (!odd32(x[k]) && (x[k] & SIGN_LESS) > t->stats.max) t->stats.max = x[k] & SIGN_LESS;
        t->stats.zeros += !(x[k] & SIGN_LESS);
        t->stats.nan += (uint64_t)nan32(x[k]);
        if (odd32(x[k]) && !t->stats.nonfinite++)
            t->stats.first = t->length ? m->unique[t->first + k / t->length] * (uint64_t)t->length +
                                             (uint64_t)(k % t->length) : (uint64_t)k;
    }
    for (from = 0; from < n; from += CHUNK, chunk++) {
        const int size = n - from < CHUNK ? n - from : CHUNK;
        f32       max  = 0;
        for (k = from; k < from + size; k++)
            if (!odd32(x[k]) && (x[k] & SIGN_LESS) > max) max = x[k] & SIGN_LESS;
        lanes[chunk % LANES] = add64(lanes[chunk % LANES], m_squares(x + from, size, max));
    }
    return t->stats.nonfinite || t->stats.bad_row;
}

/* The iteration enters the report. */
static void m_report_step(m_optimizer *m, const m_scaler *s, int tensor, int flag) {
    m_record *r   = &m->record;
    int       why = AMP_SKIP_NONE;
    if (m->skip) why = tensor >= 0 || !flag ? AMP_SKIP_OVERFLOW : AMP_SKIP_ASKED;
    if (why) r->skips[why - 1]++;
    r->last.iteration = m->step + m->skipped + 1;
    r->last.norm      = m->norm;
    r->last.scale     = s->scale;
    r->last.clip      = m->clip;
    r->last.skip      = why;
    r->last.tensor    = tensor;
}

static void m_decide(m_optimizer *m, m_scaler *s, f64 norm2, f32 largest, int bad, int bad_row,
                     int tensor) {
    const f32 inverse = m_inverse(s->scale);
    const int flag    = bad;
    m->norm = mul64(sqrt64(norm2), wide(inverse));
    m->clip = ONE;
    if (m->max_norm) {
        const f64 clip = div64(wide(m->max_norm), add64(m->norm, bits64(1e-6)));
        if (clip < ONE64) m->clip = narrow(clip);
    }
    m->inv_scale = mul32(inverse, m->clip);
    bad |= m_safe(s) && odd32(mul32(largest, inverse));
    bad |= !(m->inv_scale & SIGN_LESS);
    m->found = (uint32_t)bad;
    m->skip  = (uint32_t)(s->disabled ? bad_row : bad);
    if (m->report) m_report_step(m, s, tensor, flag);
    m->did_step = !m->skip;
    m->skipped += m->skip;
    m->row = m->skip ? m->row + 1 : 0;
    m->step += m->did_step;
    if (m->did_step) m->overflows = 0;
    m->moves = !m->shared;
    if (m->moves) {
        m->next       = *s;
        m->next.found = (uint32_t)(s->disabled ? bad_row : bad);
        s->found      = 0;
        m_scaler_update(&m->next);
    } else if (!s->disabled) {
        const uint64_t updates = s->good + s->skipped + 1;
        m->missed += m->seen_updates == updates;
        m->seen_updates = updates;
        s->found |= (uint32_t)bad;
        s->checked++;
    }
}

/* A check of all gradients, and the decision. */
static amp_result m_check(m_optimizer *m, m_scaler *s) {
    f64 lanes[LANES] = {0};
    f32 largest = 0;
    int i, half, chunk = 0, bad = 0, bad_row = 0, tensor = -1;
    for (i = 0; i < m->num; i++) bad |= m->t[i].n != 0;
    if (!m->asked && bad) return AMP_ERROR_BAD_STATE;
    for (i = bad = 0; i < m->num; chunk += m->t[i++].reach) {
        m_tensor *t = &m->t[i];
        if (t->stats.max > largest) largest = t->stats.max;
        if (!m_check_tensor(m, i, chunk, lanes)) continue;
        bad = 1;
        bad_row |= t->stats.bad_row != 0;
        if (tensor < 0) tensor = i;
        if (!t->seen.overflows) t->seen.first = m->step + m->skipped + 1;
        t->seen.overflows++;
        t->seen.last = m->step + m->skipped + 1;
        t->seen.nans += t->stats.nan != 0;
    }
    for (largest = 0, i = 0; i < m->num; i++)
        if (m->t[i].stats.max > largest) largest = m->t[i].stats.max;
    for (half = LANES / 2; half; half /= 2)
        for (i = 0; i < half; i++)
            if (lanes[i + half]) lanes[i] = add64(lanes[i], lanes[i + half]);
    if (m->meets) lanes[0] = add64(lanes[0], m->more_norm2), bad |= m->more_flag != 0;
    bad |= !m->shared && s->found;
    m_decide(m, s, lanes[0], largest, bad, bad_row, tensor);
    return AMP_OK;
}

/* One number of a fused step. */
static void m_learn(const m_optimizer *m, const m_tensor *t, f32 g, f32 *p, f32 *m1, f32 *m2) {
    const f32 lr = mul32(m->lr, t->lr_scale), beta1 = narrow(m->beta1), beta2 = narrow(m->beta2);
    const f32 rest1 = narrow(sub64(ONE64, m->beta1)), rest2 = narrow(sub64(ONE64, m->beta2));
    f64       power[2] = {ONE64, ONE64}, beta[2];
    uint64_t  n;
    f32       u, root;
    beta[0] = m->beta1, beta[1] = m->beta2;
    switch (m->kind) {
    case AMP_KIND_ADAMW:
        for (n = m->step; n; n >>= 1) {
            if (n & 1) power[0] = mul64(power[0], beta[0]), power[1] = mul64(power[1], beta[1]);
            beta[0] = mul64(beta[0], beta[0]), beta[1] = mul64(beta[1], beta[1]);
        }
        *m1  = add32(mul32(beta1, *m1), mul32(rest1, g));
        *m2  = add32(mul32(beta2, *m2), mul32(mul32(rest2, g), g));
        root = sqrt32(mul32(narrow(div64(ONE64, sub64(ONE64, power[1]))), *m2));
        u    = div32(mul32(narrow(div64(ONE64, sub64(ONE64, power[0]))), *m1), add32(root, m->eps));
        u    = add32(u, mul32(t->decay, *p));
        break;
    case AMP_KIND_SGD:
        u = add32(g, mul32(t->decay, *p));
        if (!m->moments) break;
        *m1 = add32(mul32(m->momentum, *m1), u);
        u   = m->nesterov ? add32(u, mul32(m->momentum, *m1)) : *m1;
        break;
    default: /* Lion */
        u   = add32(mul32(beta1, *m1), mul32(rest1, g));
        u   = nan32(u) ? 0x7fc00000 : u & SIGN_LESS ? (u & 0x80000000u) | ONE : 0;
        *p  = mul32(*p, sub32(ONE, mul32(lr, t->decay)));
        *m1 = add32(mul32(beta2, *m1), mul32(rest2, g));
    }
    *p = sub32(*p, mul32(lr, u));
}


/* The end of a step: gradients become 0 if they shall, and the next scale is the scale. */
static void m_publish(m_optimizer *m, m_scaler *s) {
    int i;
    for (i = 0; i < m->num && m->zero_grad; i++)
        if (m->t[i].length) m->num_rows[i] = 0;
        else if (m->t[i].has_grad)
            memset(&m->grad[m->t[i].first], 0, sizeof(f32) * (size_t)m->t[i].n);
    if (!m->moves) return;
    m->next.found = s->found;
    *s            = m->next;
    m->moves      = 0;
}

static void m_write_counted(m_optimizer *m, const m_tensor *t, int i) {
    m_write_model(m, t, i);
    m->overflows += t->has_model && t->model_type == (int)AMP_F16 && (m->w[t->at + i] & SIGN_LESS) >= 0x477ff000u;
}

/* All of a step behind its check; own tensors have been changed, and have a new model copy. */
static void m_update(m_optimizer *m) {
    int i, k, j;
    for (i = 0; i < m->num && !m->skip; i++) {
        m_tensor *t     = &m->t[i];
        const int count = t->length ? t->touched * t->length
                          : (t->own && !t->frozen) || t->has_grad ? t->n : 0;
        for (j = 0; j < count; j++) {
            const f32 g = t->length ? m->sums[t->first + j] : m->grad[t->first + j];
            k = t->length ? (int)m->unique[t->first + j / t->length] * t->length + j % t->length
                          : j;
            if (m_plain(t) && !t->own)
                m_learn(m, t, m_times(g, m->inv_scale), &m->w[t->at + k], &m->moment[0][t->at + k],
                        &m->moment[1][t->at + k]);
            m_write_counted(m, t, k);
        }
    }
}

/* A fused step; rate NULL: with the learning rate that is there. */
static amp_result m_step(m_optimizer *m, m_scaler *s, const float *rate) {
    amp_result result = m_can_step(m, 1);
    if (result != AMP_OK) return result;
    if (m_without_moments(m) >= 0) return AMP_ERROR_BAD_STATE;
    if (rate && (bits32(*rate) & SIGN_LESS) != 0 && bits32(*rate) >= INF)
        return AMP_ERROR_INVALID_CONFIG;
    if (!rate && !m->has_lr) return AMP_ERROR_BAD_STATE;
    if (!m->asked) {
        result = m_check(m, s);
        if (result != AMP_OK) return result;
    } else m_check(m, s);
    m->has_lr = 1;
    if (rate) m->lr = bits32(*rate);
    m_update(m);
    m_publish(m, s);
    return AMP_OK;
}

static amp_result m_open(m_optimizer *m, m_scaler *s) { /* amp_optimizer_check */
    amp_result result = m_can_step(m, 0);
    if (result == AMP_OK && m_owns(m) && (m_without_moments(m) >= 0 || !m->has_lr))
        result = AMP_ERROR_BAD_STATE;
    if (result == AMP_OK) result = m_check(m, s);
    if (result != AMP_OK) return result;
    m->open    = 1;
    m->pending = AMP_OK;
    return AMP_OK;
}

static amp_result m_unscale(m_optimizer *m) {
    const amp_result result = m_ready(m, WITHIN);
    int              i, k;
    if (result != AMP_OK) return result;
    if (m->open == 2) return AMP_ERROR_BAD_STATE;
    m->open = 2;
    for (i = 0; i < m->num && !m->skip; i++)
        for (k = 0; k < m->t[i].n && m->t[i].has_grad && m_yours(m, &m->t[i]); k++) {
            f32 *g = &m->grad[m->t[i].first + k], *to = &m->unscaled[m->t[i].at + k];
            *to    = m_times(*g, m->inv_scale);
            if (m->in_place && m->t[i].grad_type == (int)AMP_F32) *g = *to;
        }
    return AMP_OK;
}

static int m_begin_step(m_optimizer *m, m_scaler *s) {
    m->pending = m_open(m, s);
    return m->pending == AMP_OK && m_unscale(m) == AMP_OK && !m->skip;
}

static void m_refresh(m_optimizer *m) {
    int i, k;
    for (i = 0; i < m->num; i++)
        for (k = 0; k < m->t[i].n; k++) m_write_model(m, &m->t[i], k);
}

static amp_result m_end_step(m_optimizer *m, m_scaler *s) {
    const amp_result pending = m->pending;
    int              i, k;
    if (!m->initialized) return AMP_ERROR_NOT_INITIALIZED;
    m->pending = AMP_OK;
    if (!m->open) return pending != AMP_OK ? pending : m_ready(m, WITHIN);
    if (m_owns(m)) m_update(m);
    else
        for (i = 0; i < m->num && !m->skip; i++)
            for (k = 0; k < m->t[i].n && !m->t[i].frozen; k++) m_write_counted(m, &m->t[i], k);
    m_publish(m, s);
    m->open = 0;
    return pending;
}

static int m_bad_rate(float x) { return bits32(x) >= INF && bits32(x) != 0x80000000u; }

/* A state that loads: what a file brings. Which file fits? */
static int m_filed_master(const m_tensor *t) {
    const int f = (int)t->storage.master;
    return f == AMP_FORMAT_SPLIT ? 0 : f;
}

static amp_result m_fits(const m_optimizer *m, const m_optimizer *file) {
    int i;
    if (m->kind != file->kind || m->num != file->num) return AMP_ERROR_MISMATCH;
    for (i = 0; i < m->num; i++) {
        const m_tensor *a = &m->t[i], *b = &file->t[i];
        const char     *x = a->name ? a->name : "", *y = b->name ? b->name : "";
        const int       has = m_has(m, a);
        if (a->n != b->n || a->own != b->own || has != m_has(file, b) || strcmp(x, y) != 0)
            return AMP_ERROR_MISMATCH;
        if (has && a->storage.moments != b->storage.moments) return AMP_ERROR_MISMATCH;
        if (m_filed_master(a) && m_filed_master(a) != m_filed_master(b)) return AMP_ERROR_MISMATCH;
    }
    return AMP_OK;
}

static amp_result m_load(m_optimizer *m, m_scaler *s, const m_optimizer *file,
                         const m_scaler *theirs) {
    const int moves = !m_fixed(s) && !s->disabled, move = !m_fixed(theirs) && !theirs->disabled;
    int       i, k;
    if (m_fits(m, file) != AMP_OK) return AMP_ERROR_MISMATCH;
    if (moves == move && theirs->disabled == s->disabled) *s = *theirs;
    else if (!m->shared) m_scaler_init(s, &m->scaler_desc);
    m->asked |= (moves && move) || s->scale == ONE;
    m->skip = file->skip, m->inv_scale = file->inv_scale, m->step = file->step,
    m->norm = file->norm;
    m->clip = file->clip, m->found = file->found, m->did_step = file->did_step;
    m->nesterov = file->nesterov, m->skipped = file->skipped, m->row = file->row,
    m->missed = file->missed, m->overflows = 0;
    m->beta1 = file->beta1, m->beta2 = file->beta2, m->eps = file->eps,
    m->momentum = file->momentum;
    m->max_norm = file->max_norm;
    if (file->has_lr) m->has_lr = 1, m->lr = file->lr;
    m->seen_updates = 0;
    for (i = 0; i < m->num; i++) {
        m_tensor       *a = &m->t[i];
        const m_tensor *b = &file->t[i];
        a->lr_scale = b->lr_scale;
        a->decay    = b->decay;
        a->brought  = 0;
        a->missing  = b->missing;
        memset(&a->seen, 0, sizeof a->seen);
        if (file->report) a->seen = b->seen;
        memcpy(&m->w[a->at], &file->w[b->at], sizeof(f32) * (size_t)a->n);
        for (k = 0; k < 2; k++)
            memcpy(&m->moment[k][a->at], &file->moment[k][b->at], sizeof(f32) * (size_t)a->n);
    }
    memset(&m->record, 0, sizeof m->record);
    m->record.last.tensor = -1;
    if (file->report) m->record = file->record;
    m_refresh(m);
    return AMP_OK;
}

#endif
