/* compare_side.c - a version of amp.h for compare.c: compiled with -I where its amp.h is and
   -DSIDE=side_new or side_ref, and -DGEMM as its product is called. What differs between versions stands
   here and nowhere else. */

#define AMP_STATIC
#define AMP_IMPLEMENTATION
#include <amp.h>

#include "compare.h"

#define AT_LEAST(minor) (AMP_VERSION_MAJOR > 0 || AMP_VERSION_MINOR >= (minor))

static amp_scaler    scaler;
static amp_optimizer opt;

static void must(amp_result result) { /* a figure of a call that was refused would be none */
    if (result == AMP_OK) return;
    fprintf(stderr, "amp.h %s: %s\n", amp_version(), amp_result_string(result));
    exit(1);
}

static int force(const char *tier) { return amp_cpu_force_tier(tier) == AMP_OK; }

#if AT_LEAST(6)
#define STORAGE(name, master, moments) {name, {AMP_FORMAT_##master, AMP_FORMAT_##moments}},
static const struct { const char *name; amp_storage storage; } formats[] = {AMP_STORAGE_LIST(STORAGE)};
#else
static const struct { const char *name; amp_state storage; } formats[] = {
    {"split", AMP_STATE_SPLIT}, {"split+bf16", AMP_STATE_BF16}, {"split+8bit", AMP_STATE_8BIT},
    {"sr", AMP_STATE_SR}, {"sr+bf16", AMP_STATE_SR_BF16}, {"sr+8bit", AMP_STATE_SR_8BIT}};
#endif

static int set_storage(amp_optimizer_desc *desc, const char *name) {
    size_t i;
    for (i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (strcmp(formats[i].name, name) == 0) {
#if AT_LEAST(6)
            desc->storage = &formats[i].storage;
#else
            desc->state = formats[i].storage;
#endif
            return 1;
        }
    return 0;
}

static int begin_step(const row *r) {
    amp_optimizer_desc desc;
    amp_tensor         t;
    memset(&desc, 0, sizeof desc);
    memset(&t, 0, sizeof t);
    desc.dtype             = r->storage ? AMP_BF16 : AMP_F16;
    desc.scaler.init_scale = 1;
    desc.kind              = (amp_kind)r->kind;
    desc.momentum          = 0.9;
    if (r->storage && !set_storage(&desc, r->storage)) return 0;
    t.n         = r->n;
    t.weight    = (float *)r->c;
    t.grad      = (void *)(size_t)r->b;
    t.grad_type = (amp_dtype)r->type;
    return amp_optimizer_init(&opt, &desc) == AMP_OK && amp_optimizer_add(&opt, &t) == AMP_OK &&
           amp_optimizer_prepare(&opt) == AMP_OK;
}

static void run_step(const row *r) {
    const float lr = 1e-6f;
    if (r->kind == AMP_KIND_OWN) {
        amp_optimizer_begin_step(&opt);
        must(amp_optimizer_end_step(&opt));
    }
#if AT_LEAST(7)
    else must(amp_optimizer_step(&opt, lr));
#else
    else if (r->kind == AMP_KIND_ADAMW) amp_optimizer_adamw(&opt, lr);
    else if (r->kind == AMP_KIND_SGD) amp_optimizer_sgd(&opt, lr);
#if AT_LEAST(6)
    else amp_optimizer_lion(&opt, lr);
#endif
#endif
}

static int begin(const row *r) {
    amp_scaler_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.init_scale = 1;
    if (r->what == STEP) return begin_step(r);
#if !AT_LEAST(6)
    if (r->what == PRODUCT && r->to) return 0;
#endif
    return amp_scaler_init(&scaler, &desc) == AMP_OK;
}

static void run(const row *r) {
    const amp_dtype type = (amp_dtype)r->type;
    amp_gemm_args   g;
    switch (r->what) {
    case CAST: must(amp_cast(r->c, (amp_dtype)r->to, r->a, type, r->n)); break;
    case CHECK: must(amp_scaler_unscale(&scaler, NULL, r->a, type, r->n)); break;
#if AT_LEAST(9)
    case UNSCALE: must(amp_scaler_unscale(&scaler, r->c, r->a, type, r->n)); break;
#else
    case UNSCALE: amp_scaler_unscale_to(&scaler, (float *)r->c, r->a, type, r->n); break;
#endif
    case STEP: run_step(r); break;
    case PRODUCT:
        memset(&g, 0, sizeof g);
        g.trans_a = r->trans_a, g.trans_b = r->trans_b, g.tf32 = r->tf32;
        g.m = r->m, g.n = r->cols, g.k = r->k, g.count = r->count;
        g.a = r->a, g.b = r->b, g.c = r->c;
        g.lda = r->lda, g.ldb = r->ldb, g.ldc = r->ldc;
        g.a_type = g.b_type = type;
        if (r->count > 1) g.stride_a = r->m * r->k, g.stride_b = r->k * r->cols, g.stride_c = r->m * r->cols;
#if AT_LEAST(6)
        g.compute = (amp_dtype)r->to;
#endif
        must(GEMM(NULL, &g));
    }
}

static void end(void) { amp_optimizer_free(&opt); }

#define STRING(x) #x
#define JOIN(major, minor, patch) STRING(major) "." STRING(minor) "." STRING(patch)

const side SIDE = {JOIN(AMP_VERSION_MAJOR, AMP_VERSION_MINOR, AMP_VERSION_PATCH), force, begin, run, end};
