/* test_alloc.c - who allocates, when, and how many bytes a parameter costs; every allocation and every
   call of a backend that fails once or for ever, in each function: an error, nothing lost, nothing
   leaked; sizes that are too large; allocators and backends of the caller's own. */

#define _POSIX_C_SOURCE 200809L /* getpid */
#define AMP_KERNELS /* the core: what objects are made of */
#include "amp.h"
#include "../support/posix.h"
#include "../support/prepare.h"
#include "../support/test.h"
#include "../support/heap.h"

/* --------------------------------------------------- an allocator that counts, and may fail */

static amp_optimizer_desc heap_desc(amp_kind kind) {
    amp_optimizer_desc desc;
    memset(&desc, 0, sizeof desc);
    memset(&the_heap, 0, sizeof the_heap);
    the_heap.poison          = 0x3c;
    desc.dtype               = AMP_F16;
    desc.kind                = kind;
    desc.momentum            = 0.9;
    desc.allocator.allocate_fn = heap_alloc;
    desc.allocator.release_fn  = heap_free;
    desc.allocator.user        = &the_heap;
    return desc;
}

static void all_freed(void) {
    CHECK_EQ_INT(the_heap.live, 0);
    CHECK_EQ_INT(the_heap.strangers, 0);
}

/* ------------------------------------------------------------ tensors in memory of the test */

enum { SINGLES = 100, PARTS = 60, LENGTH = 9, TOTAL = SINGLES + PARTS };

static float weights[TOTAL * LENGTH], grads[TOTAL * LENGTH];

static void reset_tensors(void) {
    size_t i;
    for (i = 0; i < TOTAL * LENGTH; i++) {
        weights[i] = (float)(int)(i * 37 % 64) * 0.03125f - 1.0f;
        grads[i]   = (float)(int)(i * 53 % 128) * 1024.0f - 65536.0f;
    }
}

static amp_tensor tensor_at(size_t i) {
    amp_tensor t;
    memset(&t, 0, sizeof t);
    t.n      = LENGTH;
    t.weight = weights + i * LENGTH;
    t.grad   = grads + i * LENGTH;
    return t;
}

/* FNV-1a over masters, model copies and step count. */
static uint64_t digest_of(const amp_optimizer *opt, size_t count) {
    uint64_t h = 1469598103934665603ull;
    size_t   i, j;
    for (i = 0; i < count; i++) {
        const unsigned char *p = (const unsigned char *)amp_optimizer_master(opt, (int)i);
        const unsigned char *q = (const unsigned char *)amp_optimizer_model(opt, (int)i);
        for (j = 0; j < LENGTH * 4; j++) h = (h ^ p[j]) * 1099511628211ull;
        for (j = 0; j < LENGTH * 2; j++) h = (h ^ q[j]) * 1099511628211ull;
    }
    return (h ^ amp_optimizer_gate(opt)->step) * 1099511628211ull;
}

static amp_result add_parts(amp_optimizer *opt) {
    amp_tensor whole = tensor_at(SINGLES), parts[PARTS];
    size_t     i;
    whole.n = PARTS * LENGTH;
    memset(parts, 0, sizeof parts);
    for (i = 0; i < PARTS; i++) parts[i].n = LENGTH;
    return amp_optimizer_add_flat(opt, &whole, parts, PARTS);
}

/* Call again what ran out of memory; returns how often it did. */
static int steps_of(amp_optimizer *opt, int *give_up) {
    amp_tensor t;
    amp_result result;
    int        failures = 0;
    size_t     i;
    for (i = 0; i < SINGLES + 2; i++) {
        int tries;
        for (tries = 0; tries < 2; tries++) {
            if (i < SINGLES) {
                t      = tensor_at(i);
                result = amp_optimizer_add(opt, &t);
            } else {
                result = i == SINGLES ? add_parts(opt) : prepare_scaled(opt);
            }
            if (result == AMP_OK) break;
            CHECK_EQ_INT(result, AMP_ERROR_OUT_OF_MEMORY);
            forget_refused(opt);
            failures++;
            if (*give_up) return failures;
        }
        if (result != AMP_OK) return failures;
    }
    *give_up = 0;
    return failures;
}

/* ================================================================================= failing */

TEST(fails_once, "law 9: an allocation that fails is AMP_ERROR_OUT_OF_MEMORY and changes nothing: "
                 "the same call succeeds the next time, with the same results") {
    static const amp_kind kinds[] = {AMP_KIND_ADAMW, AMP_KIND_SGD};
    size_t                k;
    for (k = 0; k < 2; k++) {
        amp_optimizer_desc desc   = heap_desc(kinds[k]);
        uint64_t           wanted = 0;
        int                fail, failures = 1, step, give_up;
        for (fail = 0; failures > 0; fail++) {
            amp_optimizer opt;
            desc                = heap_desc(kinds[k]);
            the_heap.fail_from  = fail;
            the_heap.fail_count = 1;
            reset_tensors();
            CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
            give_up  = 0;
            failures = steps_of(&opt, &give_up);
            CHECK(amp_optimizer_master(&opt, TOTAL - 1) == weights + (TOTAL - 1) * LENGTH);
            CHECK(amp_optimizer_master(&opt, TOTAL) == NULL);
            for (step = 0; step < 3; step++)
                CHECK_EQ_INT(amp_optimizer_step(&opt, 0.1f), AMP_OK);
            if (fail == 0) {
                wanted   = digest_of(&opt, TOTAL);
                failures = 1; /* the first run has none: go on */
            } else {
                CHECK(failures <= 1);
                CHECK_EQ_U64(digest_of(&opt, TOTAL), wanted);
            }
            amp_optimizer_free(&opt);
            all_freed();
        }
        CHECK(fail >= 5); /* two tables and two arenas at least */
    }
}

TEST(fails_forever, "law 9: with no more memory from any call on, freeing gives everything back") {
    amp_optimizer_desc desc = heap_desc(AMP_KIND_ADAMW);
    int                fail, failures = 1, give_up;
    for (fail = 1; failures > 0; fail++) {
        amp_optimizer opt;
        desc                = heap_desc(AMP_KIND_ADAMW);
        the_heap.fail_from  = fail;
        the_heap.fail_count = FOREVER;
        CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
        give_up  = 1;
        failures = steps_of(&opt, &give_up);
        amp_optimizer_free(&opt);
        all_freed();
        CHECK_EQ_INT(the_heap.frees, fail - 1 < the_heap.calls ? fail - 1 : the_heap.calls);
    }
    CHECK(fail >= 6);
}

/* ================================================================================ counting */

TEST(when, "contract: prepare is the only allocation; add allocates only beyond "
           "AMP_INLINE_TENSORS; law 8: a step does no allocation") {
    static const amp_kind kinds[] = {AMP_KIND_OWN, AMP_KIND_ADAMW, AMP_KIND_SGD};
    size_t                k;
    for (k = 0; k < 3; k++) {
        amp_optimizer_desc desc = heap_desc(kinds[k]);
        amp_optimizer      opt;
        amp_status         status;
        amp_grad_stats          stats;
        amp_tensor         t;
        int                calls, step;
        size_t             i;
        reset_tensors();
        CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
        for (i = 0; i < AMP_INLINE_TENSORS; i++) {
            t = tensor_at(i);
            CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
        }
        CHECK_EQ_INT(the_heap.calls, 0);
        CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
        calls = the_heap.calls;
        CHECK(calls > 0);
        for (step = 0; step < 100; step++) {
            const uint32_t inf_or_one = step % 10 == 9 ? 0x7f800000u : 0x3f800000u;
            memcpy(&grads[5], &inf_or_one, 4);
            if (kinds[k] != AMP_KIND_OWN) {
                amp_optimizer_step(&opt, 0.1f);
            } else {
                amp_optimizer_begin_step(&opt);
                amp_optimizer_end_step(&opt);
            }
            CHECK_EQ_INT(amp_optimizer_status(&opt, &status), AMP_OK);
            CHECK_EQ_INT(amp_optimizer_stats(&opt, 0, &stats), AMP_OK);
            amp_optimizer_loss_scale(&opt);
            if (kinds[k] == AMP_KIND_ADAMW)
                CHECK_EQ_INT(amp_optimizer_set_moments(&opt, 0, weights, weights), AMP_OK);
            CHECK_EQ_INT(amp_optimizer_rebind(&opt, 1, weights + LENGTH, NULL), AMP_OK);
        }
        CHECK_EQ_U64(status.skipped, 10);
        CHECK_EQ_INT(the_heap.calls, calls);
        CHECK_EQ_INT(the_heap.frees, 0);
        amp_optimizer_free(&opt);
        CHECK_EQ_INT(the_heap.frees, calls); /* each block once */
        all_freed();
        amp_optimizer_free(&opt); /* twice is once */
        CHECK_EQ_INT(the_heap.frees, calls);
    }
}

TEST(errors_allocate_nothing, "law 9: what is refused allocates nothing") {
    amp_optimizer_desc desc = heap_desc(AMP_KIND_ADAMW), bad = desc;
    amp_optimizer      opt;
    amp_tensor         t = tensor_at(0);
    int                calls;
    memset(&opt, 0, sizeof opt);
    bad.max_norm = -1.0f;
    CHECK_EQ_INT(amp_optimizer_init(&opt, &bad), AMP_ERROR_INVALID_CONFIG);
    amp_optimizer_free(&opt);
    CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
    t.weight = NULL;
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(the_heap.calls, 0);
    t = tensor_at(0);
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
    forget_refused(&opt);
    CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
    calls = the_heap.calls;
    CHECK_EQ_INT(amp_optimizer_prepare(&opt), AMP_ERROR_PREPARED);
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_ERROR_PREPARED);
    CHECK_EQ_INT(the_heap.calls, calls);
    amp_optimizer_free(&opt);
    all_freed();
}

TEST(default_allocator, "contract: allocator zero: malloc and free") {
    amp_optimizer opt;
    amp_tensor    t;
    size_t        i;
    reset_tensors();
    CHECK_EQ_INT(amp_optimizer_init(&opt, NULL), AMP_OK);
    for (i = 0; i < SINGLES; i++) {
        t = tensor_at(i);
        CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
    }
    CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
    CHECK(amp_optimizer_begin_step(&opt));
    CHECK_EQ_INT(amp_optimizer_end_step(&opt), AMP_OK);
    amp_optimizer_free(&opt);
}

TEST(any_memory, "contract: memory from the allocator may hold anything") {
    static const amp_kind kinds[]   = {AMP_KIND_OWN, AMP_KIND_ADAMW, AMP_KIND_SGD};
    static const int      poisons[] = {0, 0x3c, 0xff};
    size_t                k, p;
    for (k = 0; k < 3; k++) {
        uint64_t digest[3];
        for (p = 0; p < 3; p++) {
            amp_optimizer_desc desc    = heap_desc(kinds[k]);
            int                give_up = 0, step;
            amp_optimizer      opt;
            amp_status         status;
            amp_grad_stats          stats;
            the_heap.poison = poisons[p];
            reset_tensors();
            CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
            CHECK_EQ_INT(steps_of(&opt, &give_up), 0);
            CHECK_EQ_INT(amp_optimizer_status(&opt, &status), AMP_OK);
            CHECK_EQ_U64(status.steps + status.skipped + status.did_step + status.found_inf, 0);
            CHECK_EQ_F64(status.norm, 0.0);
            CHECK_EQ_F32(status.clip_factor, 1.0f);
            CHECK_EQ_INT(amp_optimizer_stats(&opt, 3, &stats), AMP_OK);
            CHECK_EQ_U64(stats.nonfinite, 0);
            for (step = 0; step < 3; step++) {
                if (kinds[k] != AMP_KIND_OWN) {
                    amp_optimizer_step(&opt, 0.1f);
                } else {
                    CHECK(amp_optimizer_begin_step(&opt));
                    weights[7] -= amp_optimizer_grad(&opt, 0)[7];
                    CHECK_EQ_INT(amp_optimizer_end_step(&opt), AMP_OK);
                }
            }
            digest[p] = digest_of(&opt, TOTAL);
            CHECK_EQ_U64(digest[p], digest[0]);
            amp_optimizer_free(&opt);
            all_freed();
        }
    }
}

TEST(free_safe, "manual: free is safe on NULL, on a zeroed object, before prepare and twice; the "
                "object can be used again") {
    amp_optimizer_desc desc = heap_desc(AMP_KIND_SGD);
    amp_optimizer      opt;
    amp_tensor         t = tensor_at(0);
    int                round;
    reset_tensors();
    amp_optimizer_free(NULL);
    memset(&opt, 0, sizeof opt);
    amp_optimizer_free(&opt);
    for (round = 0; round < 3; round++) {
        CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
        if (round > 0) CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
        if (round > 1) CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
        amp_optimizer_free(&opt);
        amp_optimizer_free(&opt);
        CHECK_EQ_INT(amp_optimizer_prepare(&opt), AMP_ERROR_NOT_INITIALIZED);
    }
    all_freed();
}

TEST(failed_init, "manual: an init that is refused leaves its object zeroed, whatever it held: it may be freed, and "
                  "a call says that it is not initialized") {
    static amp_optimizer opt, zero;
    amp_optimizer_desc   bad = heap_desc(AMP_KIND_SGD);
    amp_tensor           t   = tensor_at(0);
    reset_tensors();
    bad.max_norm = -1.0f;
    memset(&opt, 0xa5, sizeof opt);
    CHECK_EQ_INT(amp_optimizer_init(&opt, &bad), AMP_ERROR_INVALID_CONFIG);
    CHECK_MEM(&opt, &zero, sizeof opt);
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_ERROR_NOT_INITIALIZED);
    amp_optimizer_free(&opt);
    CHECK_EQ_INT(the_heap.calls, 0);
    CHECK_EQ_INT(the_heap.frees, 0);
    all_freed();
}

/* ============================================================================ sizes too large */

TEST(too_large, "law 11: sizes that do not fit size_t are AMP_ERROR_TOO_LARGE, not a small block") {
    const size_t       most = SIZE_MAX / 64;
    amp_optimizer_desc desc = heap_desc(AMP_KIND_OWN);
    amp_optimizer      opt;
    amp_tensor         t;
    size_t             count, i;
    for (count = 1; count <= 200; count++) {
        CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
        for (i = 0; i < count; i++) {
            t      = tensor_at(0);
            t.n    = most; /* is never touched: there is no memory for its copy */
            t.frozen = 1;
            CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
        }
        the_heap.largest = 0;
        if (count < 15) CHECK_EQ_INT(amp_optimizer_prepare(&opt), AMP_ERROR_OUT_OF_MEMORY);
        else if (count > 16) CHECK_EQ_INT(amp_optimizer_prepare(&opt), AMP_ERROR_TOO_LARGE);
        if (count < 15) CHECK(the_heap.largest >= count * 2 * most);
        amp_optimizer_free(&opt);
        all_freed();
    }
}

/* 15 tensors of the largest size and one of n; 44 more of the largest size, with a model copy of
   their own (so that none is made) or without. */
static amp_result prepare_huge(size_t n, int own_model) {
    amp_optimizer_desc desc = heap_desc(AMP_KIND_OWN);
    amp_optimizer      opt;
    amp_result         result;
    int                i;
    CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
    for (i = 0; i < 60; i++) {
        amp_tensor t = tensor_at(0);
        t.frozen     = 1;
        t.n          = i == 15 ? n : SIZE_MAX / 64;
        if (i > 15 && own_model) t.model = weights;
        CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
    }
    result = prepare_scaled(&opt);
    amp_optimizer_free(&opt);
    all_freed();
    return result;
}

TEST(too_large_edge, "law 11: also when the sum meets the limit within the last few bytes") {
    size_t fits = 1, exceeds = SIZE_MAX / 64;
    CHECK_EQ_INT(prepare_huge(fits, 1), AMP_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_INT(prepare_huge(exceeds, 1), AMP_ERROR_TOO_LARGE);
    while (exceeds - fits > 1) {
        const size_t n = fits + (exceeds - fits) / 2;
        if (prepare_huge(n, 1) == AMP_ERROR_TOO_LARGE) exceeds = n;
        else fits = n;
    }
    CHECK_EQ_INT(prepare_huge(fits, 0), AMP_ERROR_TOO_LARGE);
    CHECK_EQ_INT(prepare_huge(exceeds, 0), AMP_ERROR_TOO_LARGE);
}

/* ========================================================================== a custom backend */

/* The CPU's, with every function counted; call number fail_at fails, before doing anything. */
typedef struct wrapped {
    ampi_functions functions;
    amp_backend cpu;
    int         calls, fail_at;
    const char *failed; /* the function that did */
    unsigned    strangers;
    int         live, allocs;
} wrapped;

static int fails(const amp_backend *self, const char *name) {
    wrapped *w = (wrapped *)self->context;
    if (++w->calls != w->fail_at) return 0;
    w->failed = name;
    return 1;
}

static amp_result wrapped_alloc(const amp_backend *self, size_t num_bytes, void **memory) {
    wrapped *w = (wrapped *)self->context;
    if (fails(self, "alloc")) return AMP_ERROR_UNSUPPORTED;
    *memory = calloc(1, num_bytes);
    if (!*memory) return AMP_ERROR_OUT_OF_MEMORY;
    w->allocs++;
    w->live++;
    return AMP_OK;
}
static void wrapped_free(const amp_backend *self, void *memory) {
    wrapped *w = (wrapped *)self->context;
    if (!memory) w->strangers++;
    w->live--;
    free(memory);
}
static amp_result wrapped_copy(const amp_backend *self, void *dst, const void *src, size_t num_bytes,
                               ampi_copy direction) {
    const wrapped *w = (const wrapped *)self->context;
    if (fails(self, "copy")) return AMP_ERROR_UNSUPPORTED;
    return w->cpu.functions->copy_fn(&w->cpu, dst, src, num_bytes, direction);
}
static amp_result wrapped_cast(const amp_backend *self, void *dst, amp_dtype dst_type, const void *src,
                               amp_dtype src_type, size_t n) {
    const wrapped *w = (const wrapped *)self->context;
    if (fails(self, "cast")) return AMP_ERROR_UNSUPPORTED;
    return w->cpu.functions->cast_fn(&w->cpu, dst, dst_type, src, src_type, n);
}
static amp_result wrapped_check(const amp_backend *self, const amp_plan *plan) {
    const wrapped *w = (const wrapped *)self->context;
    if (fails(self, "check")) return AMP_ERROR_UNSUPPORTED;
    return w->cpu.functions->check_fn(&w->cpu, plan);
}
static amp_result wrapped_update(const amp_backend *self, const amp_plan *plan, ampi_job job) {
    const wrapped *w = (const wrapped *)self->context;
    if (fails(self, "update")) return AMP_ERROR_UNSUPPORTED;
    return w->cpu.functions->update_fn(&w->cpu, plan, job);
}
static amp_result wrapped_split(const amp_backend *self, void *model, const ampi_stored *master, const void *src,
                                size_t n) {
    const wrapped *w = (const wrapped *)self->context;
    if (fails(self, "split")) return AMP_ERROR_UNSUPPORTED;
    return w->cpu.functions->encode_fn(&w->cpu, model, master, src, n);
}
static amp_backend wrap(wrapped *w) {
    amp_backend b;
    memset(w, 0, sizeof *w);
    amp_cpu_backend(&w->cpu);
    w->functions           = *w->cpu.functions;
    w->functions.alloc_fn  = wrapped_alloc;
    w->functions.free_fn   = wrapped_free;
    w->functions.copy_fn   = wrapped_copy;
    w->functions.cast_fn   = wrapped_cast;
    w->functions.check_fn  = wrapped_check;
    w->functions.update_fn = wrapped_update;
    w->functions.encode_fn  = wrapped_split;
    b                      = w->cpu;
    b.context              = w;
    b.functions            = &w->functions;
    return b;
}

enum { FEW = 5 };

static amp_result fused(amp_optimizer *opt) {
    const amp_result result = amp_optimizer_step(opt, 0.1f);
    if (result != AMP_OK) CHECK_EQ_INT(result, AMP_ERROR_UNSUPPORTED);
    return result;
}

static uint64_t weights_digest(void) {
    uint64_t h = 1469598103934665603ull;
    size_t   i;
    for (i = 0; i < sizeof weights; i++)
        h = (h ^ ((const unsigned char *)weights)[i]) * 1099511628211ull;
    return h;
}

/* A life: prepare, three steps with everything around them, and a digest. An operation that fails
   must say UNSUPPORTED and change nothing; it is called again. Only after a step whose second half
   failed are the scale and the step count ahead, since the first half had ended: *half is set. */
static uint64_t life(amp_kind kind, wrapped *w, const amp_backend *b, int *half) {
    amp_optimizer_desc desc = heap_desc(kind);
    amp_optimizer      opt;
    uint64_t           digest, before, masters;
    int                step, i, errors = 0;
    float              moments[2][LENGTH];
    desc.backend = b;
    reset_tensors();
    CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
    for (i = 0; i < FEW; i++) {
        const amp_tensor t = tensor_at((size_t)i);
        CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
    }
#define TRY(call)                                             \
    do {                                                      \
        const amp_result result = (call);                     \
        if (result == AMP_OK) break;                          \
        CHECK_EQ_INT(result, AMP_ERROR_UNSUPPORTED);          \
        CHECK(errors++ == 0);                                 \
        CHECK_EQ_INT((call), AMP_OK);                         \
    } while (0)
    TRY(prepare_scaled(&opt));
    CHECK_EQ_INT(w->live, b && b->functions->alloc_fn);
    for (step = 0; step < 3; step++) {
        amp_status status;
        amp_grad_stats  stats;
        if (amp_optimizer_loss_scale(&opt) < 1.0f) { /* 0: the only sign of an error here */
            CHECK(errors++ == 0);
            CHECK_EQ_F32(amp_optimizer_loss_scale(&opt), 65536.0f);
        }
        before  = digest_of(&opt, 0); /* the step count alone */
        masters = weights_digest();
        if (kind == AMP_KIND_OWN) {
            while (!amp_optimizer_begin_step(&opt)) {
                CHECK(errors++ == 0);
                CHECK_EQ_INT(amp_optimizer_unscale(&opt), AMP_ERROR_STEP_NOT_OPEN);
                CHECK_EQ_INT(amp_optimizer_end_step(&opt), AMP_ERROR_UNSUPPORTED);
                *half = digest_of(&opt, 0) != before;
                CHECK_EQ_U64(weights_digest(), masters);
            }
            for (i = 0; i < LENGTH; i++) weights[i] -= amp_optimizer_grad(&opt, 0)[i];
            TRY(amp_optimizer_end_step(&opt));
        } else {
            if (fused(&opt) != AMP_OK) {
                CHECK(errors++ == 0);
                *half = digest_of(&opt, 0) != before;
                CHECK_EQ_U64(weights_digest(), masters);
                CHECK_EQ_INT(fused(&opt), AMP_OK);
            }
        }
        TRY(amp_optimizer_status(&opt, &status));
        TRY(amp_optimizer_stats(&opt, 1, &stats));
        TRY(amp_optimizer_rebind(&opt, 1, weights + LENGTH, grads + LENGTH));
        if (kind != AMP_KIND_ADAMW) continue;
        TRY(amp_optimizer_moments(&opt, 1, moments[0], moments[1])); /* as they are: half of a call shall not matter */
        TRY(amp_optimizer_set_moments(&opt, 1, moments[0], moments[1]));
    }
#undef TRY
    digest = digest_of(&opt, FEW);
    CHECK_EQ_INT(errors, w->failed != NULL);
    amp_optimizer_free(&opt);
    CHECK_EQ_INT(w->live, 0);
    CHECK_EQ_U64(w->strangers, 0);
    all_freed();
    return digest;
}

TEST(backend_fails, "contract: errors of the backend surface: begin_step's in end_step, which then has no step to "
                    "end, the others at once; nothing leaks and the next call works") {
    static const amp_kind kinds[] = {AMP_KIND_OWN, AMP_KIND_ADAMW, AMP_KIND_SGD};
    size_t                k;
    for (k = 0; k < 3; k++) {
        wrapped  w;
        uint64_t wanted = 0, digest;
        int      fail, total = 1, half;
        for (fail = 0; fail <= total; fail++) {
            amp_backend b = wrap(&w);
            w.fail_at     = fail;
            half          = 0;
            digest        = life(kinds[k], &w, &b, &half);
            if (fail == 0) {
                wanted = digest;
                total  = w.calls;
                CHECK(total > 20);
            } else if (!half) {
                CHECK_EQ_U64(digest, wanted);
            } else { /* check_fn had ended: update_fn, or reading its result, has failed */
                CHECK(w.failed[0] == 'u' || kinds[k] == AMP_KIND_OWN);
            }
        }
    }
}

TEST(backend_memory, "manual: alloc_fn returns zeroed memory; where memory comes from does not "
                     "change a bit of the results") {
    static const amp_kind kinds[] = {AMP_KIND_OWN, AMP_KIND_ADAMW, AMP_KIND_SGD};
    size_t                k;
    for (k = 0; k < 3; k++) {
        wrapped     w;
        uint64_t    digest;
        int         half = 0;
        amp_backend b    = wrap(&w);
        digest           = life(kinds[k], &w, &b, &half);
        CHECK_EQ_INT(w.allocs, 1);
        b          = wrap(&w);
        w.functions.alloc_fn = NULL;
        w.functions.free_fn  = NULL;
        CHECK_EQ_U64(life(kinds[k], &w, &b, &half), digest);
        CHECK_EQ_INT(w.allocs, 0);
        CHECK_EQ_U64(life(kinds[k], &w, NULL, &half), digest);
    }
}

static void      *aligned_block;
static amp_result aligned_alloc_fn(const amp_backend *self, size_t num_bytes, void **memory) {
    (void)self;
    aligned_block = calloc(1, num_bytes + 4096);
    *memory       = aligned_block ? (char *)aligned_block + (4096 - (uintptr_t)aligned_block % 4096) : NULL;
    return aligned_block ? AMP_OK : AMP_ERROR_OUT_OF_MEMORY;
}
static void aligned_free_fn(const amp_backend *self, void *memory) {
    (void)self;
    if (memory) free(aligned_block);
}

TEST(models_aligned, "cuBLAS chooses by alignments up to 256 bytes: in memory that has them, a model copy begins at a multiple "
                     "of 256, whatever there is beside it; parts of a flat array follow one another") {
    static const size_t sizes[] = {1, 3, 7, 64, 9, 5, 2, 8};
    int                 storage, i;
    for (storage = 0; storage < 2; storage++) {
        static const amp_storage split = {AMP_FORMAT_SPLIT, AMP_FORMAT_F32};
        wrapped                  w;
        amp_backend              b    = wrap(&w);
        amp_optimizer_desc       desc = heap_desc(AMP_KIND_ADAMW);
        amp_optimizer            opt;
        amp_tensor               whole = tensor_at(50), parts[3];
        w.functions.alloc_fn = aligned_alloc_fn;
        w.functions.free_fn  = aligned_free_fn;
        desc.backend         = &b;
        desc.dtype           = AMP_BF16;
        desc.storage         = storage ? &split : NULL;
        reset_tensors();
        CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
        for (i = 0; i < 8; i++) {
            amp_tensor t = tensor_at((size_t)i * 8); /* of up to 64 elements */
            t.n          = sizes[i];
            t.keep_fp32  = i == 2 || i == 5;
            CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
        }
        for (i = 0; i < 3; i++) {
            parts[i]        = tensor_at(80 + (size_t)i);
            parts[i].n      = 3;
            parts[i].weight = NULL;
            parts[i].grad   = NULL;
        }
        whole.n = 9;
        CHECK_EQ_INT(amp_optimizer_add_flat(&opt, &whole, parts, 3), AMP_OK);
        CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
        for (i = 0; i < 11; i++) {
            const char *model = (const char *)amp_optimizer_model(&opt, i);
            if (i == 2 || i == 5) continue; /* the caller's weight */
            if (i < 9) CHECK_EQ_INT((int)((uintptr_t)model % 256), 0);
            else CHECK(model == (const char *)amp_optimizer_model(&opt, i - 1) + 6);
        }
        amp_optimizer_free(&opt);
        all_freed();
    }
}

TEST(prepare_fails, "a prepare in which the backend fails leaves weights of which there are other masters as they were, "
                    "and works again") {
    static const amp_storage split = {AMP_FORMAT_SPLIT, AMP_FORMAT_BF16};
    int fail, total = 1, spoiled = 0;
    for (fail = 0; fail <= total; fail++) {
        amp_optimizer_desc desc = heap_desc(AMP_KIND_ADAMW);
        float              w[2][40], before[2][40];
        uint16_t           g[2][40];
        amp_optimizer      opt;
        amp_tensor         t = {0};
        wrapped            machine;
        amp_backend        b = wrap(&machine);
        amp_result         result;
        int                i, k;
        desc.backend = &b;
        desc.dtype   = AMP_BF16;
        desc.storage = &split;
        memset(g, 0, sizeof g);
        for (i = 0; i < 2; i++)
            for (k = 0; k < 40; k++) w[i][k] = before[i][k] = (float)(i + 1) + (float)k / 64.0f;
        CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
        for (i = 0; i < 2; i++) {
            t.n = 40, t.weight = w[i], t.grad = g[i], t.grad_type = AMP_BF16;
            CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
        }
        machine.calls   = 0;
        machine.fail_at = fail;
        result          = amp_optimizer_prepare(&opt);
        if (fail == 0) total = machine.calls;
        CHECK_EQ_INT(result, fail ? AMP_ERROR_UNSUPPORTED : AMP_OK);
        for (i = 0; i < 2 && result != AMP_OK; i++) spoiled += memcmp(w[i], before[i], sizeof w[i]) != 0;
        if (result != AMP_OK && machine.failed[0] != 'c') CHECK_EQ_INT(spoiled, 0); /* but for a copy that spoils */
        if (result != AMP_OK && spoiled == 0) CHECK_EQ_INT(amp_optimizer_prepare(&opt), AMP_OK);
        amp_optimizer_free(&opt);
        CHECK_EQ_INT(machine.live, 0);
        if (machine.failed && machine.failed[0] == 's') CHECK_EQ_INT(spoiled, 0);
        if (fail == total) break;
    }
    CHECK(total > 6);
}

TEST(backend_without_memory, "manual: alloc_fn and free_fn may both be NULL: then memory comes "
                             "from desc.allocator; a backend that nobody made is an error") {
    wrapped            w;
    amp_backend        b    = wrap(&w);
    amp_optimizer_desc desc = heap_desc(AMP_KIND_ADAMW);
    amp_optimizer      opt;
    amp_tensor         t = tensor_at(0);
    memset(&opt, 0, sizeof opt);
    desc.backend = &b;
    b.functions  = NULL;
    CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_ERROR_INVALID_ARGUMENT);
    b.functions          = &w.functions;
    w.functions.alloc_fn = NULL;
    w.functions.free_fn  = NULL;
    CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
    memset(&b, 0, sizeof b); /* it was copied */
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
    CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
    CHECK_EQ_INT(amp_optimizer_step(&opt, 0.1f), AMP_OK);
    CHECK(w.calls > 0);
    CHECK(the_heap.live > 0);
    amp_optimizer_free(&opt);
    CHECK_EQ_INT(w.live, 0);
    all_freed();
}

/* ------------------------------------------------------------------- the manual's table of bytes */

TEST(bytes_a_parameter, "manual, >>memory: what prepare adds, in bytes a parameter, to weights and gradients of the "
                        "caller's") {
    enum { MANY = 1 << 18 };
    static float w[MANY], g[MANY];
    static const struct { amp_kind kind; amp_dtype grad, dtype; int in_place; double added; } rows[] = {
        {AMP_KIND_OWN, AMP_F32, AMP_BF16, 0, 6},   {AMP_KIND_OWN, AMP_F32, AMP_BF16, 1, 2},
        {AMP_KIND_OWN, AMP_BF16, AMP_BF16, 0, 6},  {AMP_KIND_OWN, AMP_F32, AMP_F32, 1, 0},
        {AMP_KIND_ADAMW, AMP_F32, AMP_F16, 0, 10}, {AMP_KIND_ADAMW, AMP_F16, AMP_F16, 0, 10}};
    size_t i;
    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        amp_optimizer_desc desc = heap_desc(rows[i].kind);
        amp_optimizer      opt;
        amp_tensor         t;
        double             added;
        memset(&t, 0, sizeof t);
        desc.dtype            = rows[i].dtype;
        desc.unscale_in_place = rows[i].in_place;
        t.n = MANY, t.weight = w, t.grad = g, t.grad_type = rows[i].grad;
        CHECK_EQ_INT(amp_optimizer_init(&opt, &desc), AMP_OK);
        CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
        CHECK_EQ_INT(prepare_scaled(&opt), AMP_OK);
        added = (double)the_heap.bytes / MANY;
        CHECK(added >= rows[i].added && added < rows[i].added + 0.05); /* and tables */
        amp_optimizer_free(&opt);
        all_freed();
    }
}

int main(int argc, char **argv) {
    test_begin(argc, argv);
    RUN(fails_once);
    RUN(fails_forever);
    RUN(when);
    RUN(errors_allocate_nothing);
    RUN(default_allocator);
    RUN(any_memory);
    RUN(free_safe);
    RUN(failed_init);
    RUN(too_large);
    RUN(too_large_edge);
    RUN(backend_fails);
    RUN(prepare_fails);
    RUN(backend_memory);
    RUN(models_aligned);
    RUN(backend_without_memory);
    RUN(bytes_a_parameter);
    return test_end();
}
