/* fuzz_calls.c - public calls on one optimizer in any order, at wrong times too. A model of what an
   optimizer is in the middle of, five variables, predicts which results are allowed; and after each
   call: masters move only in a step that was taken, in prepare and in a load.

       case   calls, each a byte and the arguments that it takes (see call_once) */

#define AMP_KERNELS /* the core: what objects are made of */
#include "amp.h"
#include "fuzz.h"

#include <math.h> /* INFINITY */

enum { MAX_TENSORS = 40, N = 4, MAX_CALLS = 200, FILE_SIZE = 1 << 14, NUM_FILES = 3 };
enum { NUM_DESCS = 12 };

/* ------------------------------------------------------------------ memory, with failures */

typedef struct heap { int live, fail_in, failed; } heap; /* fail_in: allocations until one fails */

static void *heap_alloc(size_t num_bytes, void *user_data) {
    heap *h = (heap *)user_data;
    void *memory;
    if (h->fail_in && --h->fail_in == 0) {
        h->failed = 1;
        return NULL;
    }
    memory = malloc(num_bytes);
    if (!memory) abort();
    memset(memory, 0x5c, num_bytes);
    h->live++;
    return memory;
}

static void heap_free(void *memory, void *user_data) {
    ((heap *)user_data)->live--;
    free(memory);
}

typedef struct file {
    unsigned char bytes[FILE_SIZE];
    size_t        size, at;
    uint32_t      shape; /* of the optimizer that wrote it; 0: nothing was written */
} file;

static bool file_write(void *user, const void *data, size_t num_bytes) {
    file *f = (file *)user;
    if (num_bytes > FILE_SIZE - f->size) return false;
    memcpy(f->bytes + f->size, data, num_bytes);
    f->size += num_bytes;
    return true;
}

static bool file_read(void *user, void *data, size_t num_bytes) {
    file *f = (file *)user;
    if (num_bytes > f->size - f->at) return false;
    memcpy(data, f->bytes + f->at, num_bytes);
    f->at += num_bytes;
    return true;
}

/* ----------------------------------------------------------------------------------- the model */

typedef enum lr_is { LR_NONE, LR_SET, LR_MAYBE } lr_is; /* maybe: it came with a file */

static struct {
    amp_optimizer opt;
    amp_scaler    shared;
    heap          memory;
    /* the model */
    int         initialized, prepared, open; /* open: 1 checked, 2 and unscaled */
    int         carries; /* the last step was unscaled */
    amp_result  pending; /* what begin_step has failed with, for end_step */
    lr_is       lr;
    int         num_tensors, num_weights; /* the latter with elements */
    amp_kind    kind;
    int         disabled, is_shared, in_place;
    uint32_t    shape; /* a hash of the desc and the tensors */
    /* what it works on */
    float   weight[MAX_TENSORS][N], moved[MAX_TENSORS][N], grad[MAX_TENSORS][N];
    amp_f16 half[MAX_TENSORS][N];
    int     n[MAX_TENSORS], has_weight[MAX_TENSORS], has_grad[MAX_TENSORS];
    int     grad_now[MAX_TENSORS]; /* rebind_all may take gradients away for a while */
    float   masters[MAX_TENSORS][N]; /* as they were before a call */
} w;

static file files[NUM_FILES];

static const char *call_name; /* the call that is running, for messages */

static void hash(uint32_t x) { w.shape = ((w.shape ^ x) * 16777619u) | 1u; }

#define HOLDS(cond, text) PROPERTY_OF(cond, text, call_name)

/* One of two results that the model allows; and out of memory, if an allocation has failed. */
static void expect(amp_result result, amp_result one, amp_result other) {
    char text[128];
    if (w.memory.failed && result == AMP_ERROR_OUT_OF_MEMORY) return;
    if (result == one || result == other) return;
    snprintf(text, sizeof text, "%s returned %d, not %d or %d", call_name, (int)result, (int)one,
             (int)other);
    PROPERTY_OF(0, "a call returns what its time allows", text);
}

static int num_grads(void) {
    int i, count = 0;
    for (i = 0; i < w.num_tensors; i++) count += w.n[i] && w.grad_now[i];
    return count;
}

static int a_gradient_is_infinite(void) {
    int i, bad = 0;
    for (i = 0; i < w.num_tensors; i++)
        bad |= w.grad_now[i] && !amp_all_finite(w.grad[i], AMP_F32, (size_t)w.n[i]);
    return bad;
}

static amp_result before_step(amp_kind kind) {
    if (!w.initialized) return AMP_ERROR_NOT_INITIALIZED;
    if (!w.prepared) return AMP_ERROR_NOT_PREPARED;
    if (w.open) return AMP_ERROR_STEP_OPEN;
    if (w.kind != kind) return AMP_ERROR_UNSUPPORTED;
    return w.num_weights && !num_grads() ? AMP_ERROR_BAD_STATE : AMP_OK; /* nothing learns */
}

/* --------------------------------------------------------------------------------- properties */

static const float *master_of(int i) {
    return w.prepared ? amp_optimizer_master(&w.opt, i) : w.has_weight[i] ? w.weight[i] : NULL;
}

static void remember_masters(void) {
    int i;
    for (i = 0; i < w.num_tensors; i++)
        if (master_of(i) && w.n[i])
            memcpy(w.masters[i], master_of(i), sizeof(float) * (size_t)w.n[i]);
}

static void check_masters(void) {
    int i;
    for (i = 0; i < w.num_tensors; i++)
        if (master_of(i) && w.n[i])
            HOLDS(memcmp(w.masters[i], master_of(i), sizeof(float) * (size_t)w.n[i]) == 0,
                  "an error or a skipped step changes no master");
}

/* A file may bring a skip that was asked for, or of a shared scaler that nobody updated. */
static int scale_is_usual(void) {
    const float scale = amp_optimizer_loss_scale(&w.opt);
    return scale >= 1.0f && scale <= 4294967296.0f && !amp_optimizer_scaler(&w.opt)->found_inf;
}

/* Between steps the model copies are the masters, rounded. */
static void check_models(void) {
    int i, k;
    for (i = 0; i < w.num_tensors && w.prepared && !w.open; i++) {
        const float *master = amp_optimizer_master(&w.opt, i);
        const void  *model  = amp_optimizer_model(&w.opt, i);
        HOLDS(master || !w.n[i], "a tensor with elements has a master");
        for (k = 0; k < w.n[i] && model != (const void *)master; k++)
            HOLDS(((const amp_f16 *)model)[k].bits == amp_f32_to_f16(master[k]).bits,
                  "between steps a model copy is its master, rounded");
    }
}

static void check_status(void) {
    amp_status       status;
    amp_stats        stats;
    const amp_result result = amp_optimizer_status(&w.opt, &status);
    int              i;
    for (i = -1; i <= w.num_tensors; i++) {
        const int there = i >= 0 && i < w.num_tensors && w.initialized;
        amp_result of_i = amp_optimizer_stats(&w.opt, i, &stats);
        expect(of_i, !w.initialized ? AMP_ERROR_NOT_INITIALIZED
                     : !there ? AMP_ERROR_INVALID_ARGUMENT
                     : w.prepared ? AMP_OK : AMP_ERROR_NOT_PREPARED, AMP_OK);
        HOLDS((of_i == AMP_OK) == (there && w.prepared), "stats are those of a prepared tensor");
        if (of_i == AMP_OK)
            HOLDS(stats.nonfinite <= (uint64_t)w.n[i] && stats.nan <= stats.nonfinite &&
                      stats.first_nonfinite <= (uint64_t)w.n[i],
                  "stats count no more elements than there are");
    }
    HOLDS((result == AMP_OK) == w.prepared, "there is a status once prepared");
    HOLDS((amp_optimizer_scaler(&w.opt) != NULL) == w.prepared, "there is a scaler once prepared");
    HOLDS((amp_optimizer_gate(&w.opt) != NULL) == w.prepared, "there is a gate once prepared");
    HOLDS(w.prepared || amp_optimizer_loss_scale(&w.opt) == 0.0f, "no loss scale before prepare");
    if (result != AMP_OK) return;
    HOLDS(status.did_step <= 1u && status.found_inf <= 1u && status.stuck <= 1u,
          "flags are 0 or 1");
    HOLDS(status.clip_factor >= 0.0f && status.clip_factor <= 1.0f, "the clip factor is in [0, 1]");
    HOLDS(status.loss_scale >= 0.0f, "the loss scale is no NaN and not negative");
}

/* --------------------------------------------------------------------------------------- calls */

static void desc_of(unsigned which, amp_optimizer_desc *d) {
    static const amp_preset presets[] = {
        AMP_PRESET_DEFAULT, AMP_PRESET_STATIC, AMP_PRESET_TORCH,  AMP_PRESET_MEGATRON,
        AMP_PRESET_MXNET,   AMP_PRESET_KERAS,  AMP_PRESET_DEFAULT};
    memset(d, 0, sizeof *d);
    d->dtype                  = AMP_F16;
    d->kind                   = (amp_kind)(which % 3);
    d->momentum               = which % 2 ? 0.5 : 0.0;
    d->zero_grad              = which == 4;
    d->max_norm               = which == 5 ? 1.0f : 0.0f;
    d->unscale_in_place       = which == 6;
    d->scaler.preset          = presets[which % 7];
    d->scaler.growth_interval = 2;
    d->scaler.disabled        = which == 7;
    if (which == 8 || which == 9) d->shared_scaler = &w.shared;
    if (which == 10) d->beta1 = 1.0;
    if (which == 11) d->dtype = (amp_dtype)9;
    d->allocator.alloc_fn  = heap_alloc;
    d->allocator.free_fn   = heap_free;
    d->allocator.user_data = &w.memory;
}

static void call_free(void) {
    amp_optimizer_free(&w.opt);
    HOLDS(w.memory.live == 0, "free releases everything");
    w.initialized = w.prepared = w.open = 0;
    w.num_tensors = w.num_weights = 0;
    w.pending     = AMP_OK;
    w.lr          = LR_NONE;
}

static void call_init(fuzz_bytes *b) {
    const unsigned     which = fuzz_u8(b) % NUM_DESCS;
    amp_optimizer_desc d;
    amp_result         result;
    call_free();
    desc_of(which, &d);
    HOLDS(amp_scaler_init(&w.shared, &d.scaler) == AMP_OK, "a scaler");
    result = amp_optimizer_init(&w.opt, &d);
    HOLDS((result == AMP_OK) == (which < 10), "init takes a desc that is valid, and no other");
    w.initialized = result == AMP_OK;
    w.kind        = d.kind;
    w.disabled    = d.scaler.disabled;
    w.is_shared   = d.shared_scaler != NULL;
    w.in_place    = d.unscale_in_place;
    w.shape       = 2166136261u;
    hash(which);
}

/* Tensor i as the model has it: a master of the caller's or half weights; frozen, empty. */
static amp_tensor tensor_of(int i, unsigned how) {
    static const char *const names[] = {"w", "b", NULL, "a name that is longer than eight"};
    amp_tensor               t;
    int                      k;
    memset(&t, 0, sizeof t);
    w.has_weight[i] = how % 4 != 3;
    w.has_grad[i]   = how / 4 % 4 != 3;
    w.n[i]          = how / 16 % 4 == 3 ? 0 : N - (int)(how / 16 % 4);
    for (k = 0; k < N; k++) {
        w.weight[i][k] = (float)(k - i) * 0.5f;
        w.half[i][k]   = amp_f32_to_f16(w.weight[i][k]);
        w.grad[i][k]   = 16.0f;
    }
    t.name       = names[how / 64];
    t.n          = (size_t)w.n[i];
    t.weight     = w.has_weight[i] ? w.weight[i] : NULL;
    t.model      = w.has_weight[i] ? NULL : w.half[i];
    t.model_type = AMP_F16;
    t.grad       = w.has_grad[i] ? w.grad[i] : NULL;
    return t;
}

static void was_added(int i, unsigned how) {
    hash(how);
    w.num_weights += w.n[i] != 0;
    w.grad_now[i] = w.has_grad[i];
    w.num_tensors++;
}

static amp_result may_add(void) {
    if (!w.initialized) return AMP_ERROR_NOT_INITIALIZED;
    return w.prepared ? AMP_ERROR_PREPARED : AMP_OK;
}

static amp_result call_add(fuzz_bytes *b) {
    const unsigned how = fuzz_u8(b);
    const int      bad = how == 0xff || how == 0xfe;
    amp_tensor     t;
    amp_result     result;
    memset(&t, 0, sizeof t);
    if (w.num_tensors == MAX_TENSORS) return AMP_OK;
    if (may_add() == AMP_OK) t = tensor_of(w.num_tensors, how);
    if (how == 0xff) t.lr_scale = NAN;
    if (how == 0xfe) t.grad_type = (amp_dtype)7;
    result = amp_optimizer_add(&w.opt, &t);
    if (may_add() != AMP_OK) expect(result, may_add(), may_add());
    else if (bad) expect(result, AMP_ERROR_INVALID_CONFIG, AMP_ERROR_INVALID_ENUM);
    else expect(result, AMP_OK, AMP_OK);
    if (result == AMP_OK) was_added(w.num_tensors, how);
    return result;
}

/* Parts that lie in the memory of tensors that are neighbours; whole may be too long. */
static amp_result call_add_flat(fuzz_bytes *b) {
    const unsigned how   = fuzz_u8(b);
    const int      count = (int)(how % 4), first = w.num_tensors;
    const int      fits  = how / 4 % 8 != 7;
    amp_tensor     parts[4], whole;
    amp_result     result;
    int            i;
    if (first + count > MAX_TENSORS) return AMP_OK;
    memset(parts, 0, sizeof parts);
    for (i = 0; i < count && may_add() == AMP_OK; i++) {
        parts[i]               = tensor_of(first + i, how & 0xc0u);
        w.has_grad[first + i]  = how & 32u ? 1 : 0;
    }
    memset(&whole, 0, sizeof whole);
    whole.n      = (size_t)(count * N) + (fits ? 0u : 1u);
    whole.weight = w.weight[first < MAX_TENSORS ? first : 0];
    whole.grad   = how & 32u ? w.grad[first < MAX_TENSORS ? first : 0] : NULL;
    result       = amp_optimizer_add_flat(&w.opt, &whole, parts, (size_t)count);
    if (may_add() != AMP_OK) expect(result, may_add(), may_add());
    else if (!fits) expect(result, AMP_ERROR_INVALID_ARGUMENT, AMP_ERROR_INVALID_ARGUMENT);
    else expect(result, AMP_OK, AMP_OK);
    for (i = 0; i < count && result == AMP_OK; i++) was_added(first + i, how + 256u);
    return result;
}

static amp_result call_prepare(void) {
    const amp_result result = amp_optimizer_prepare(&w.opt);
    expect(result, may_add(), may_add());
    if (result == AMP_OK) {
        w.prepared = 1;
        w.carries  = 1;
        w.pending  = AMP_OK; /* what was wrong before is past */
        if (w.kind == AMP_KIND_OWN && !w.disabled && !w.is_shared && num_grads())
            HOLDS(amp_optimizer_check(&w.opt) == AMP_ERROR_BAD_STATE, "nobody knows the loss scale yet");
        (void)amp_optimizer_loss_scale_ptr(&w.opt); /* as what is checked between calls does, too */
    }
    return result;
}

static amp_result call_rebind(fuzz_bytes *b) {
    const int  i     = (int)(fuzz_u8(b) % (MAX_TENSORS + 2)) - 1;
    const int  what  = (int)fuzz_u8(b);
    const int  there = w.initialized && i >= 0 && i < w.num_tensors;
    float     *weight = NULL, *grad = NULL;
    amp_result allowed = AMP_OK, result;
    if (there && (what & 1)) {
        weight = w.opt.plan && amp_optimizer_master(&w.opt, i) == w.weight[i] ? w.moved[i]
                                                                              : w.weight[i];
        if (master_of(i)) memcpy(weight, master_of(i), sizeof(float) * (size_t)w.n[i]);
    }
    if (there && (what & 2)) grad = w.grad[i];
    if (!w.initialized) allowed = AMP_ERROR_NOT_INITIALIZED;
    else if (!there) allowed = AMP_ERROR_INVALID_ARGUMENT;
    else if (!w.prepared) allowed = AMP_ERROR_NOT_PREPARED;
    else if (w.open) allowed = AMP_ERROR_STEP_OPEN;
    else if ((weight && !w.has_weight[i]) || (grad && !w.has_grad[i]))
        allowed = AMP_ERROR_UNSUPPORTED;
    result = amp_optimizer_rebind(&w.opt, i, weight, grad);
    expect(result, allowed, allowed);
    if (result == AMP_OK && grad) w.grad_now[i] = 1;
    return result;
}

/* Gradients of some tensors, or of none that may have one, where they were; others stay, or go. */
static amp_result call_rebind_all(fuzz_bytes *b) {
    const unsigned how = fuzz_u8(b);
    void          *grads[MAX_TENSORS];
    amp_result     allowed = AMP_OK, result;
    int            i;
    for (i = 0; i < w.num_tensors; i++) {
        grads[i] = (how >> i % 7 & 1u) && (w.has_grad[i] || how == 0xff) ? (void *)w.grad[i]
                   : how & 0x80u                                             ? NULL
                                                                             : AMP_NO_GRAD;
        if (grads[i] == w.grad[i] && !w.has_grad[i]) allowed = AMP_ERROR_UNSUPPORTED;
    }
    if (w.open) allowed = AMP_ERROR_STEP_OPEN;
    if (!w.prepared) allowed = w.initialized ? AMP_ERROR_NOT_PREPARED : AMP_ERROR_NOT_INITIALIZED;
    result = amp_optimizer_rebind_all(&w.opt, NULL, grads);
    expect(result, allowed, allowed);
    for (i = 0; i < w.num_tensors && result == AMP_OK; i++)
        if (grads[i]) w.grad_now[i] = grads[i] != AMP_NO_GRAD;
    return result;
}

static void call_gradients(fuzz_bytes *b) {
    static const float values[] = {0.0f, 1.0f, -64.0f, 1024.0f, 3.0e38f, 1e-40f};
    const unsigned     which    = fuzz_u8(b);
    int                i, k;
    for (i = 0; i < w.num_tensors; i++)
        for (k = 0; k < w.n[i]; k++)
            w.grad[i][k] = values[(which + (unsigned)(i * 3 + k)) % (which & 128u ? 6u : 4u)];
    for (i = 0; i < w.num_tensors; i++) {
        if (!(which & 64u) || i != (int)(which % 64u) || !w.n[i]) continue;
        w.grad[i][w.n[i] - 1] = which & 32u ? NAN : INFINITY;
    }
}

/* What is known of a step that was checked. */
static void check_step(int taken, int inf, int usual) {
    if (inf && !w.disabled) HOLDS(!taken, "a step with an infinite gradient is skipped");
    if (!inf && usual && num_grads() && !w.is_shared)
        HOLDS(taken, "a step with finite gradients is taken");
}

static amp_result call_begin_step(void) {
    const int        usual   = w.prepared && scale_is_usual();
    const int        inf     = a_gradient_is_infinite();
    const amp_result allowed = before_step(AMP_KIND_OWN);
    const int        go      = amp_optimizer_begin_step(&w.opt);
    int              i, k;
    HOLDS(!go || allowed == AMP_OK, "begin_step is true only where a step may begin");
    w.pending = w.initialized ? allowed : AMP_OK;
    if (allowed != AMP_OK) return allowed;
    w.open = 2;
    check_step(go, inf, usual);
    for (i = 0; i < w.num_tensors && go; i++) {
        const float *grad = amp_optimizer_grad(&w.opt, i);
        for (k = 0; grad && k < w.n[i]; k++) amp_optimizer_master(&w.opt, i)[k] -= 0.5f * grad[k];
    }
    return go ? AMP_OK : AMP_ERROR_BAD_STATE; /* the latter: masters must be as they were */
}

static amp_result call_check(void) {
    const amp_result allowed = before_step(AMP_KIND_OWN);
    const amp_result result  = amp_optimizer_check(&w.opt);
    expect(result, allowed, allowed);
    if (result != AMP_OK) return result;
    w.open    = 1;
    w.pending = AMP_OK;
    return result;
}

static amp_result call_unscale(void) {
    const amp_result result  = amp_optimizer_unscale(&w.opt);
    amp_result       allowed = w.open == 2 ? AMP_ERROR_BAD_STATE : AMP_OK;
    if (!w.initialized) allowed = AMP_ERROR_NOT_INITIALIZED;
    else if (!w.prepared) allowed = AMP_ERROR_NOT_PREPARED;
    else if (!w.open) allowed = AMP_ERROR_STEP_NOT_OPEN;
    expect(result, allowed, allowed);
    if (result == AMP_OK) w.open = 2;
    return result;
}

static amp_result call_end_step(void) {
    const amp_result result  = amp_optimizer_end_step(&w.opt);
    amp_result       allowed = w.pending;
    if (!w.initialized) allowed = AMP_ERROR_NOT_INITIALIZED;
    else if (!w.open && w.pending == AMP_OK)
        allowed = w.prepared ? AMP_ERROR_STEP_NOT_OPEN : AMP_ERROR_NOT_PREPARED;
    expect(result, allowed, allowed);
    w.pending = AMP_OK;
    if (w.open) w.carries = w.open == 2;
    w.open = 0;
    return result;
}

/* step or step_graph (2); masters may have moved only if the step was taken. */
static amp_result call_fused(fuzz_bytes *b, int which) {
    static const float rates[] = {0.0f, 0.01f, 1.0f, -1.0f, NAN, INFINITY};
    const unsigned     r       = which == 2 ? 0u : fuzz_u8(b) % 6u;
    const int          usual   = w.prepared && scale_is_usual();
    const int          inf     = a_gradient_is_infinite();
    amp_result         allowed = before_step(w.kind), other, result;
    amp_status         status;
    if (allowed == AMP_OK && w.kind == AMP_KIND_OWN) allowed = AMP_ERROR_UNSUPPORTED;
    if (allowed == AMP_OK && r > 2) allowed = AMP_ERROR_INVALID_CONFIG;
    if (allowed == AMP_OK && which == 2 && w.lr == LR_NONE) allowed = AMP_ERROR_BAD_STATE;
    other = allowed;
    if (allowed == AMP_OK && which == 2 && w.lr == LR_MAYBE) other = AMP_ERROR_BAD_STATE;
    result = which == 2 ? amp_optimizer_step_graph(&w.opt) : amp_optimizer_step(&w.opt, rates[r]);
    expect(result, allowed, other);
    if (result != AMP_OK) return result;
    w.lr = LR_SET;
    amp_optimizer_status(&w.opt, &status);
    check_step((int)status.did_step, inf, usual);
    return status.did_step ? AMP_OK : AMP_ERROR_BAD_STATE;
}

static amp_result call_set_lr(fuzz_bytes *b) {
    static const float rates[] = {0.0f, 0.25f, -0.5f, INFINITY};
    const unsigned     r       = fuzz_u8(b) % 4u;
    const amp_result   result  = amp_optimizer_set_lr(&w.opt, rates[r]);
    amp_result         allowed = r < 2 ? AMP_OK : AMP_ERROR_INVALID_CONFIG;
    if (!w.prepared) allowed = w.initialized ? AMP_ERROR_NOT_PREPARED : AMP_ERROR_NOT_INITIALIZED;
    expect(result, allowed, allowed);
    if (result == AMP_OK) w.lr = LR_SET;
    return result;
}

/* Gradients become momentum times the last ones that were unscaled. */
static amp_result call_carry(fuzz_bytes *b) {
    static const float momenta[] = {0.0f, 0.5f, 1e30f, -0.5f, NAN};
    const unsigned     m         = fuzz_u8(b) % 5u;
    amp_result         allowed   = before_step(AMP_KIND_OWN), result;
    if (allowed == AMP_OK && m > 2) allowed = AMP_ERROR_INVALID_CONFIG;
    else if (allowed == AMP_OK && w.in_place) allowed = AMP_ERROR_UNSUPPORTED;
    else if (allowed == AMP_OK && !w.carries) allowed = AMP_ERROR_BAD_STATE;
    result = amp_optimizer_carry(&w.opt, momenta[m]);
    expect(result, allowed, allowed);
    return result;
}

static amp_result before_state(void) {
    if (!w.initialized) return AMP_ERROR_NOT_INITIALIZED;
    if (!w.prepared) return AMP_ERROR_NOT_PREPARED;
    return w.open ? AMP_ERROR_STEP_OPEN : AMP_OK;
}

static amp_result call_save(fuzz_bytes *b) {
    file      *f = &files[fuzz_u8(b) % NUM_FILES];
    amp_result result;
    f->size = 0;
    result  = amp_optimizer_save(&w.opt, file_write, f);
    expect(result, before_state(), before_state());
    f->shape = result == AMP_OK ? w.shape : 0;
    return result;
}

static amp_result call_load(fuzz_bytes *b) {
    file            *f      = &files[fuzz_u8(b) % NUM_FILES];
    const amp_result before = before_state();
    amp_result       result;
    f->at  = 0;
    result = amp_optimizer_load(&w.opt, file_read, f);
    if (before != AMP_OK) expect(result, before, before);
    else if (f->shape == 0) HOLDS(result != AMP_OK, "half a file is not loaded");
    else if (f->shape == w.shape) expect(result, AMP_OK, AMP_OK);
    else HOLDS(strcmp(amp_result_string(result), amp_result_string((amp_result)12345)) != 0,
               "the result is one that amp_result_string knows");
    if (result == AMP_OK) {
        w.disabled = (amp_optimizer_scaler(&w.opt)->rules & AMPI_DISABLED) != 0;
        if (w.lr == LR_NONE) w.lr = LR_MAYBE;
    }
    return result;
}

/* The scaler between steps: ended by the caller if shared, and found_inf if ranks say so. */
static void call_scaler(fuzz_bytes *b) {
    const unsigned what = fuzz_u8(b);
    amp_scaler    *s    = amp_optimizer_scaler(&w.opt);
    if (!s || w.open) return;
    if (w.is_shared) amp_scaler_update(s);
    else if (what % 4 == 1) amp_scaler_set_scale(s, 1024.0f);
    else amp_scaler_init(NULL, NULL);
}

static void call_getters(fuzz_bytes *b) {
    const int i = (int)fuzz_u8(b) - 2;
    if (i < 0 || i >= w.num_tensors || !w.prepared) {
        HOLDS(!amp_optimizer_model(&w.opt, i) && !amp_optimizer_master(&w.opt, i) &&
                  !amp_optimizer_grad(&w.opt, i),
              "getters are NULL before prepare and for a bad index");
    }
}

static void call_once(fuzz_bytes *b) {
    static const char *const names[] = {
        "init", "free", "add", "add_flat", "prepare", "rebind", "gradients", "begin_step", "check",
        "unscale", "end_step", "adamw", "sgd", "step", "set_lr", "save", "load", "scaler",
        "getters", "failing allocation", "the kind's own step",
        "rebind_all", "carry"};
    unsigned   call    = fuzz_u8(b) % 23u;
    amp_result result  = AMP_ERROR_BAD_STATE; /* unless it may have moved masters */
    int        forgets = 0;
    call_name = names[call];
    if (call == 20) call = w.kind == AMP_KIND_OWN ? (w.open ? 10u : 7u) : 10u + (unsigned)w.kind;
    remember_masters();
    switch (call) {
    case 0: call_init(b); break;
    case 1: call_free(); break;
    case 2: call_add(b), forgets = 1; break;
    case 3: call_add_flat(b), forgets = 1; break;
    case 4: result = call_prepare(); break;
    case 5: call_rebind(b); break;
    case 6: call_gradients(b); break;
    case 7: result = call_begin_step(); break;
    case 8: call_check(); break;
    case 9: call_unscale(); break;
    case 10: call_end_step(); break;
    case 11: result = call_fused(b, 0); break;
    case 12: result = call_fused(b, 1); break;
    case 13: result = call_fused(b, 2); break;
    case 14: call_set_lr(b); break;
    case 15: call_save(b); break;
    case 16: result = call_load(b); break;
    case 17: call_scaler(b); break;
    case 18: call_getters(b); break;
    case 21: call_rebind_all(b); break;
    case 22: call_carry(b); break;
    default: w.memory.fail_in = (int)(fuzz_u8(b) % 8u); break;
    }
    if (result != AMP_OK && !forgets) check_masters();
    check_models();
    check_status();
    w.memory.failed = 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_bytes b = {data, data + size};
    int        calls;
    memset(&w, 0, sizeof w);
    memset(files, 0, sizeof files);
    for (calls = 0; b.at < b.end && calls < MAX_CALLS; calls++) call_once(&b);
    w.memory.fail_in = 0;
    call_name        = "free";
    call_free();
    call_free();
    return 0;
}
