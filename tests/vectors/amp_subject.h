/* amp_subject.h - amp.h as a subject of the vectors: its scaler alone, and its optimizer around it. */

#ifndef AMP_SUBJECT_H
#define AMP_SUBJECT_H

#include "amp.h"
#include "run_more.h"

typedef struct subject_state {
    amp_scaler         scaler; /* the one */
    amp_optimizer      opt;    /* the other */
    amp_optimizer_desc desc;
    float              weights[3], gradients[3];
    int                wide; /* the system holds s as a double, and amp.h is given floats */
    int                unscaled, stepped; /* in this iteration */
    int                disabled;
    unsigned char      file[8192];
    size_t             at;
} subject_state;

static int subject_wide(const char *system) {
    return !strncmp(system, "deepspeed", 9) || !strcmp(system, "apex") || !strcmp(system, "mxnet");
}

static int subject_answer(amp_result result) { return result == AMP_OK ? VECTORS_OK : VECTORS_REFUSED; }

static int subject_shows(vectors_subject *v, const amp_scaler *s, amp_result result) {
    v->scale = (double)s->scale;
    v->good  = s->growth_tracker;
    v->left  = s->hysteresis_tracker - 1;
    return subject_answer(result);
}

/* May a scale be this? amp.h takes a float; a system that holds a double would have to be given one. */
static int subject_takes(const subject_state *t, double scale) {
    return !t->wide || ((double)(float)scale <= scale && (double)(float)scale >= scale);
}

/* Rounded to a float. Two in a row, where it depends, gcc 12 -O2 and -O3 leave as they are. */
static double subject_single(double x) {
    volatile float single = (float)x;
    return (double)single;
}

/* False: amp.h has no preset for the system. */
static int subject_desc(amp_scaler_desc *d, const vectors_config *c) {
    static const char *const presets[] = {
        "default", "static", "none", "torch", "apex", "apex_hysteresis", "megatron", "deepspeed",
        "deepspeed_consecutive", "deepspeed_fused", "flax", "jmp", "keras", "tf_keras", "mxnet"};
    const char *system = c->system;
    int         preset = 0, hysteresis = c->hysteresis, n = (int)(sizeof presets / sizeof *presets);
    const int floats = !strcmp(system, "megatron") || !strcmp(system, "flax");
    /* without a preset, but by the rules of another */
    if (strncmp(system, "deepspeed_0.17", 14) == 0 && hysteresis == 1) system = "deepspeed_fused";
    memset(d, 0, sizeof *d);
    while (preset < n && strcmp(system, presets[preset]) != 0) preset++;
    d->preset          = (amp_preset)preset;
    d->init_scale      = (float)c->init_scale;
    d->growth_factor   = floats ? subject_single(c->growth_factor) : c->growth_factor;
    d->backoff_factor  = floats ? subject_single(c->backoff_factor) : c->backoff_factor;
    d->min_scale       = (float)c->min_scale;
    d->max_scale       = (float)c->max_scale;
    d->growth_interval = c->growth_interval;
    d->hysteresis      = hysteresis;
    return preset < n;
}

/* ------------------------------------------------------------------------ amp_scaler */

static int scaler_start(vectors_subject *v, const vectors_config *c) {
    subject_state  *t = (subject_state *)v->self;
    amp_scaler_desc d;
    t->wide     = subject_wide(c->system);
    t->unscaled = t->stepped = 0;
    if (!subject_desc(&d, c)) return VECTORS_LACKING;
    if (!subject_takes(t, c->init_scale)) return VECTORS_ABSENT;
    t->disabled = d.disabled;
    return subject_shows(v, &t->scaler, amp_scaler_init(&t->scaler, &d));
}

/* It sees tensors one by one, and not which: a second time is another tensor to it. */
static int scaler_unscale(vectors_subject *v, uint32_t *gradients, size_t n) {
    subject_state *t = (subject_state *)v->self;
    if (t->unscaled) return VECTORS_ABSENT;
    t->unscaled = 1;
    return subject_shows(v, &t->scaler, amp_scaler_unscale(&t->scaler, gradients, gradients, AMP_F32, n));
}

static int scaler_step(vectors_subject *v) {
    subject_state    *t = (subject_state *)v->self;
    const amp_scaler *s = &t->scaler;
    if (t->stepped) return VECTORS_ABSENT; /* the caller's, who may step twice */
    t->stepped = 1;
    if (s->found_inf || s->checked || t->disabled) subject_shows(v, s, AMP_OK);
    else return subject_shows(v, s, AMP_ERROR_BAD_STATE), VECTORS_REFUSED;
    return s->found_inf ? VECTORS_SKIPPED : VECTORS_OK;
}

static int scaler_update(vectors_subject *v) {
    subject_state   *t      = (subject_state *)v->self;
    const amp_result result = amp_scaler_update(&t->scaler);
    t->unscaled = t->stepped = 0;
    return subject_shows(v, &t->scaler, result);
}

static int set_scaler(amp_scaler *s, const char *what, double value) {
    if (strcmp(what, "scale") == 0) return amp_scaler_set_scale(s, (float)value) == AMP_OK;
    if (strcmp(what, "growth_interval") == 0) s->growth_interval = (int)value;
    else s->found_inf = value > 0.0 && value < 1.0 ? 1u : (uint32_t)value;
    return 1;
}

static int scaler_set(vectors_subject *v, const char *what, double value) {
    subject_state   *t = (subject_state *)v->self;
    amp_scaler      *s = &t->scaler;
    const amp_scaler saved = *s;
    amp_result       result = AMP_OK;
    if (!strcmp(what, "scale") && !subject_takes(t, value)) return VECTORS_ABSENT;
    if (strcmp(what, "resume") != 0) result = set_scaler(s, what, value) ? AMP_OK : AMP_ERROR_INVALID_CONFIG;
    else memset(s, 0xa5, sizeof *s), *s = saved; /* plain data: its bytes are its state */
    return subject_shows(v, s, result);
}

/* --------------------------------------------------------------------- amp_optimizer */

static amp_result wrap_open(subject_state *t) {
    amp_tensor tensor;
    amp_result result = amp_optimizer_init(&t->opt, &t->desc);
    memset(&tensor, 0, sizeof tensor);
    tensor.n      = 3;
    tensor.weight = t->weights;
    tensor.grad   = t->gradients;
    if (result == AMP_OK) result = amp_optimizer_add(&t->opt, &tensor);
    return result == AMP_OK ? amp_optimizer_prepare(&t->opt) : result;
}

static int wrap_start(vectors_subject *v, const vectors_config *c) {
    subject_state *t = (subject_state *)v->self;
    amp_result     result;
    amp_optimizer_free(&t->opt);
    memset(t, 0, sizeof *t);
    t->wide = subject_wide(c->system);
    if (!subject_desc(&t->desc.scaler, c)) return VECTORS_LACKING;
    if (!subject_takes(t, c->init_scale)) return VECTORS_ABSENT;
    result = wrap_open(t);
    return result == AMP_OK ? subject_shows(v, amp_optimizer_scaler(&t->opt), result) : subject_answer(result);
}

static int wrap_unscale(vectors_subject *v, uint32_t *gradients, size_t n) {
    subject_state *t = (subject_state *)v->self;
    amp_result     result;
    memcpy(t->gradients, gradients, 4 * n);
    result = amp_optimizer_check(&t->opt);
    if (result == AMP_OK) result = amp_optimizer_unscale(&t->opt);
    if (result == AMP_OK) memcpy(gradients, amp_optimizer_grad(&t->opt, 0), 4 * n);
    if (result == AMP_OK) t->unscaled = 1;
    return subject_shows(v, amp_optimizer_scaler(&t->opt), result);
}

/* The step is the caller's, behind the gate: amp.h does not see it twice. With a scale of inf, which some
   systems reach, there is none: all gradients would be 0. */
static int wrap_step(vectors_subject *v) {
    subject_state *t = (subject_state *)v->self;
    const amp_gate *gate = amp_optimizer_gate(&t->opt);
    if (!t->unscaled || t->stepped || gate->inv_scale <= 0.0f) return VECTORS_ABSENT;
    t->stepped = 1;
    return gate->skip ? VECTORS_SKIPPED : VECTORS_OK;
}

static int wrap_update(vectors_subject *v) {
    subject_state   *t      = (subject_state *)v->self;
    const amp_result result = amp_optimizer_end_step(&t->opt);
    t->unscaled = t->stepped = 0;
    return subject_shows(v, amp_optimizer_scaler(&t->opt), result);
}

static bool wrap_write(void *user, const void *data, size_t num_bytes) {
    subject_state *t = (subject_state *)user;
    if (num_bytes > sizeof t->file - t->at) return false;
    memcpy(t->file + t->at, data, num_bytes);
    t->at += num_bytes;
    return true;
}

static bool wrap_read(void *user, void *data, size_t num_bytes) {
    subject_state *t = (subject_state *)user;
    if (num_bytes > sizeof t->file - t->at) return false;
    memcpy(data, t->file + t->at, num_bytes);
    t->at += num_bytes;
    return true;
}

static int wrap_set(vectors_subject *v, const char *what, double value) {
    subject_state *t = (subject_state *)v->self;
    amp_result     result = AMP_OK;
    if (!strcmp(what, "scale") && !subject_takes(t, value)) return VECTORS_ABSENT;
    if (!strcmp(what, "found_inf") && t->unscaled) return VECTORS_ABSENT; /* the gate is decided: the next step's */
    if (strcmp(what, "resume") != 0)
        result = set_scaler(amp_optimizer_scaler(&t->opt), what, value) ? AMP_OK : AMP_ERROR_INVALID_CONFIG;
    else {
        t->at  = 0;
        result = amp_optimizer_save(&t->opt, wrap_write, t);
        amp_optimizer_free(&t->opt);
        t->at = 0;
        if (result == AMP_OK) result = wrap_open(t);
        if (result == AMP_OK) result = amp_optimizer_load(&t->opt, wrap_read, t);
    }
    return result == AMP_OK ? subject_shows(v, amp_optimizer_scaler(&t->opt), result) : subject_answer(result);
}

/* ------------------------------------------------------------------ steps and numbers */

static amp_dtype subject_dtype(const char *name) {
    return strcmp(name, "fp16") == 0 ? AMP_F16 : strcmp(name, "bf16") == 0 ? AMP_BF16 : AMP_F32;
}

static amp_tensor step_tensor(const vectors_state *state, void *gradients) {
    amp_tensor tensor;
    memset(&tensor, 0, sizeof tensor);
    tensor.n          = state->n;
    tensor.weight     = state->weights;
    tensor.grad       = gradients;
    tensor.grad_type  = subject_dtype(state->dtype);
    tensor.model      = state->copies;
    tensor.model_type = tensor.grad_type;
    return tensor;
}

static int step_begin(vectors_subject *v, vectors_state *state) {
    static float       gradients[VECTORS_MOST]; /* until the first step brings its own */
    subject_state     *t = (subject_state *)v->self;
    amp_tensor         tensor = step_tensor(state, gradients);
    amp_optimizer_desc d;
    amp_result         result;
    memset(&d, 0, sizeof d);
    d.dtype             = subject_dtype(state->dtype);
    d.kind              = AMP_KIND_ADAMW;
    d.beta1             = state->beta1;
    d.beta2             = state->beta2;
    d.eps               = state->eps;
    d.weight_decay      = (float)state->weight_decay;
    d.scaler.init_scale = (float)state->scale;
    result              = amp_optimizer_init(&t->opt, &d);
    if (result == AMP_OK) result = amp_optimizer_add(&t->opt, &tensor);
    if (result == AMP_OK) result = amp_optimizer_prepare(&t->opt);
    if (result == AMP_OK) result = amp_optimizer_set_steps(&t->opt, (uint64_t)state->steps, 0);
    if (result == AMP_OK && state->steps > 0) result = amp_optimizer_set_moments(&t->opt, 0, state->m, state->v);
    return subject_answer(result);
}

static int step_adamw(vectors_subject *v, vectors_state *state, void *gradients) {
    subject_state *t = (subject_state *)v->self;
    amp_status     status;
    amp_result     result = amp_optimizer_rebind(&t->opt, 0, NULL, gradients);
    if (result == AMP_OK) result = amp_optimizer_step(&t->opt, (float)state->lr);
    if (result == AMP_OK) result = amp_optimizer_status(&t->opt, &status);
    if (result == AMP_OK) result = amp_optimizer_moments(&t->opt, 0, state->m, state->v);
    if (result != AMP_OK) return VECTORS_REFUSED;
    state->steps = (int)amp_optimizer_gate(&t->opt)->step;
    state->scale = (double)status.loss_scale;
    return status.did_step ? VECTORS_OK : VECTORS_SKIPPED;
}

static void step_end(vectors_subject *v) { amp_optimizer_free(&((subject_state *)v->self)->opt); }

/* An optimizer of the caller's own, which is handed gradients that are unscaled and clipped. */
static int clip_begin(vectors_subject *v, vectors_clip *clip) {
    static float       weights[3][VECTORS_MOST];
    subject_state     *t = (subject_state *)v->self;
    amp_optimizer_desc d;
    amp_result         result;
    size_t             k;
    if (strcmp(clip->system, "torch") == 0) return VECTORS_LACKING;
    memset(&d, 0, sizeof d);
    d.max_norm          = (float)clip->max_norm;
    d.scaler.init_scale = (float)clip->scale;
    result              = amp_optimizer_init(&t->opt, &d);
    for (k = 0; k < clip->count && result == AMP_OK; k++) {
        amp_tensor tensor;
        memset(&tensor, 0, sizeof tensor);
        tensor.n         = clip->n[k];
        tensor.weight    = weights[k];
        tensor.grad      = clip->gradients[k];
        tensor.grad_type = subject_dtype(clip->dtype);
        result           = amp_optimizer_add(&t->opt, &tensor);
    }
    if (result == AMP_OK) result = amp_optimizer_prepare(&t->opt);
    return subject_answer(result);
}

static int clip_step(vectors_subject *v, vectors_clip *clip) {
    subject_state *t     = (subject_state *)v->self;
    const int      taken = amp_optimizer_begin_step(&t->opt);
    amp_status     status;
    size_t         k;
    amp_result     result;
    for (k = 0; k < clip->count && taken; k++)
        memcpy(clip->after[k], amp_optimizer_grad(&t->opt, (int)k), 4 * clip->n[k]);
    result = amp_optimizer_end_step(&t->opt);
    if (result == AMP_OK) result = amp_optimizer_status(&t->opt, &status);
    if (result != AMP_OK) return VECTORS_REFUSED;
    clip->norm   = status.norm;
    clip->factor = status.clip_factor;
    clip->scale  = (double)status.loss_scale;
    return taken ? VECTORS_OK : VECTORS_SKIPPED;
}

static void subject_convert(void *dst, const char *to, const void *src, const char *from, size_t n) {
    amp_cast(dst, subject_dtype(to), src, subject_dtype(from), n);
}

static vectors_subject amp_subject(subject_state *state, int wrap) {
    vectors_subject v;
    memset(&v, 0, sizeof v);
    memset(state, 0, sizeof *state);
    v.name       = wrap ? "amp_optimizer" : "amp_scaler";
    v.self       = state;
    v.start      = wrap ? wrap_start : scaler_start;
    v.unscale    = wrap ? wrap_unscale : scaler_unscale;
    v.step       = wrap ? wrap_step : scaler_step;
    v.update     = wrap ? wrap_update : scaler_update;
    v.set        = wrap ? wrap_set : scaler_set;
    v.begin      = step_begin;
    v.adamw      = step_adamw;
    v.end        = step_end;
    v.clip_begin = clip_begin;
    v.clip       = clip_step;
    v.convert    = subject_convert;
    v.samples    = 1;
    return v;
}

#endif
