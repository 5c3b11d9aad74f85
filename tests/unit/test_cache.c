/* test_cache.c - sessions and their 16-bit copies for products: when a copy is made anew, when it is
   the one of before, and that amp_gemm in a scope is amp_gemm on copies that were cast by hand. */

#define _GNU_SOURCE /* sysconf, mmap, setenv */
#define AMP_KERNELS /* the core: what objects are made of */
#include "amp.h"
#include "../support/gemm_args.h"
#include "../support/posix.h"
#include "../support/random.h"
#include "../support/test.h"
#include "../support/values.h"
#include "../support/white.h"

#include <math.h>

static amp_autocast *current(void) {
    amp_autocast *ac = amp_autocast_use(NULL);
    amp_autocast_use(ac);
    return ac;
}

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
#define OK(call) CHECK_EQ_INT((call), AMP_OK)

static const amp_dtype halves[2] = {AMP_F16, AMP_BF16};

/* Every tier that somebody may ask for by name. */
static const char *const tier_names[] = {"amx", "avx512_bf16", "avx512", "avx2", "neon_bf16", "neon",
                                         "c"};
static int in_tiles(void) { return strcmp(amp_cpu_tier(), "amx") == 0; }
static int pays_in_tier(amp_dtype type) { /* manual: amp_capability_of */
    return in_tiles() || (type == AMP_BF16 && (strcmp(amp_cpu_tier(), "avx512_bf16") == 0 ||
                                               strcmp(amp_cpu_tier(), "neon_bf16") == 0));
}

static void randomize(float *x, size_t n) {
    size_t i;
    for (i = 0; i < n; i++) x[i] = random_value();
}

static amp_session session;

static void *no_memory(void *user, size_t num_bytes) { return num_bytes ? NULL : user; }
static void  no_free(void *user, void *memory) { (void)memory, (void)user; }

static void end(void) { /* also of a test that stopped early */
    amp_autocast_use(NULL);
    amp_session_end(&session);
}

static amp_result start(amp_session *s, const amp_backend *backend, size_t num_bytes, const amp_allocator *allocator,
                        const amp_scaler_desc *scaler) {
    amp_session_desc d;
    memset(&d, 0, sizeof d);
    d.backend   = backend;
    d.num_bytes = num_bytes;
    if (allocator) d.allocator = *allocator;
    if (scaler) d.scaler = *scaler;
    return amp_session_start(s, &d);
}

/* Room for whatever a test does, on a backend of its own or NULL. */
static void begin_on(const amp_backend *backend, size_t num_bytes) {
    end();
    random_state = 1;
    OK(start(&session, backend, num_bytes, NULL, NULL));
}
static void begin(size_t num_bytes) { begin_on(NULL, num_bytes); }

static void enter(amp_autocast_mode mode, amp_dtype type, const char *layer) {
    amp_scope scope;
    memset(&scope, 0, sizeof scope);
    scope.mode  = mode;
    scope.dtype = type;
    scope.layer = layer;
    OK(amp_autocast_push(&session.autocast, &scope));
}

/* begin, of a session that says type. */
static void begin_scope(size_t num_bytes, amp_dtype type) {
    begin(num_bytes);
    OK(amp_autocast_override(&session.autocast, type == AMP_F16 ? "fp16" : "bf16"));
}

static void check_counts(int line, uint64_t hits, uint64_t misses, uint64_t transients,
                         uint64_t fallbacks) {
    char values[160];
    if (session.hits == hits && session.misses == misses && session.transients == transients &&
        session.fallbacks == fallbacks)
        return;
    snprintf(values, sizeof values, "%lu %lu %lu %lu is not %lu %lu %lu %lu",
             (unsigned long)session.hits, (unsigned long)session.misses, (unsigned long)session.transients,
             (unsigned long)session.fallbacks, (unsigned long)hits, (unsigned long)misses,
             (unsigned long)transients, (unsigned long)fallbacks);
    test_fail(__FILE__, line, "hits, misses, transients, fallbacks", values);
}
#define COUNTS(h, m, t, f) check_counts(__LINE__, h, m, t, f)

/* A copy must be row by row what amp_cast writes. */
static int same_bits(const void *copy, size_t copy_ld, const float *x, size_t rows, size_t cols,
                     size_t ld, amp_dtype type) {
    uint16_t line[256];
    size_t   r;
    for (r = 0; r < rows; r++) {
        amp_cast(line, type, x + r * ld, AMP_F32, cols);
        if (memcmp(line, (const uint16_t *)copy + r * copy_ld, 2 * cols) != 0) return 0;
    }
    return 1;
}

/* Get a copy, which must be right and suit tensor cores. */
static const void *get_at(int line, const float *x, size_t rows, size_t cols, size_t ld,
                          amp_dtype type) {
    const void      *copy    = NULL;
    size_t           copy_ld = 0;
    const amp_result result  = white_cache_get(&session, x, rows, cols, ld, type, &copy, &copy_ld);
    if (result != AMP_OK) test_fail(__FILE__, line, "a copy", amp_result_string(result));
    else if (copy_ld % 8 != 0 || copy_ld < cols || (uintptr_t)copy % 16 != 0)
        test_fail(__FILE__, line, "rows that start at multiples of 16 bytes", "");
    else if (!same_bits(copy, copy_ld, x, rows, cols, ld, type))
        test_fail(__FILE__, line, "the copy has the bits of amp_cast", "");
    return copy;
}
#define GET(x, rows, cols, ld, type) get_at(__LINE__, x, rows, cols, ld, type)

/* ------------------------------------------------------------------------ weights added by hand */

TEST(cast_once, "manual: a weight that was added is cast once and found again; all else is cast "
                "every time; the counters are exact") {
    float       w[24 * 40], x[24 * 40];
    const void *first, *other;
    int         t;
    for (t = 0; t < 2; t++) {
        begin(1 << 16);
        randomize(w, COUNT_OF(w));
        randomize(x, COUNT_OF(x));
        OK(amp_session_add(&session, w, COUNT_OF(w)));
        COUNTS(0, 0, 0, 0);
        first = GET(w, 24, 40, 40, halves[t]);
        COUNTS(0, 1, 0, 0);
        CHECK(GET(w, 24, 40, 40, halves[t]) == first);
        white_cache_reset(&session);
        CHECK(GET(w, 24, 40, 40, halves[t]) == first);
        COUNTS(2, 1, 0, 0);
        other = GET(x, 24, 40, 40, halves[t]);
        CHECK(GET(x, 24, 40, 40, halves[t]) != other); /* both are right until the reset */
        CHECK(same_bits(other, 40, x, 24, 40, 40, halves[t]));
        COUNTS(2, 1, 2, 0);
        white_cache_reset(&session);
        GET(w, 24, 40, 40, halves[1 - t]); /* the other type is another copy */
        white_cache_reset(&session);
        GET(w, 24, 40, 40, halves[t]);
        COUNTS(2, 3, 2, 0);
        end();
    }
}

TEST(padding, "manual: rows of a copy are padded to multiples of 16 bytes and hold what they "
              "should, for all leading dimensions") {
    static float w[9 * 64];
    size_t       rows, cols, extra;
    int          t, added;
    begin(1 << 16);
    randomize(w, COUNT_OF(w));
    for (added = 0; added < 2; added++) {
        if (added) OK(amp_session_add(&session, w, COUNT_OF(w)));
        for (rows = 1; rows <= 9; rows += 4)
            for (cols = 1; cols <= 41; cols += cols < 18 ? 1 : 11)
                for (extra = 0; extra < 20; extra += extra < 9 ? 1 : 5)
                    for (t = 0; t < 2; t++) {
                        white_cache_reset(&session);
                        GET(w, rows, cols, cols + extra, halves[t]);
                        GET(w + 1, rows, cols, cols + extra, halves[t]);
                    }
    }
    CHECK_EQ_U64(session.fallbacks, 0);
    end();
}

TEST(special_values, "law 2: copies keep infinities, subnormals and signs, and NaN stays NaN") {
    static const uint32_t bits[] = {0x7f800000u, 0xff800000u, 0x7fc00000u, 0x7f800001u,
                                    0x80000000u, 1u, 0x33000000u, 0x33000001u, 0x477fefffu,
                                    0x477ff000u, 0x387fffffu, 0x3f801000u, 0x3f803000u};
    float                 w[COUNT_OF(bits)];
    int                   t;
    begin(4096);
    memcpy(w, bits, sizeof w);
    for (t = 0; t < 2; t++) GET(w, 1, COUNT_OF(w), COUNT_OF(w), halves[t]);
    end();
}

TEST(changed, "law: a weight edited by hand is cast again after amp_session_changed, one or all") {
    float w[3][80];
    int   i;
    begin(1 << 16);
    randomize(w[0], 3 * 80);
    for (i = 0; i < 3; i++) OK(amp_session_add(&session, w[i], 80));
    for (i = 0; i < 3; i++) GET(w[i], 8, 10, 10, AMP_F16);
    randomize(w[1], 80);
    amp_session_changed(&session, w[1]);
    for (i = 0; i < 3; i++) GET(w[i], 8, 10, 10, AMP_F16);
    COUNTS(2, 4, 0, 0);
    randomize(w[0], 3 * 80);
    amp_session_changed(&session, NULL);
    for (i = 0; i < 3; i++) GET(w[i], 8, 10, 10, AMP_F16);
    COUNTS(2, 7, 0, 0);
    amp_session_changed(&session, w[1] + 79); /* anywhere in a weight is in that weight */
    for (i = 0; i < 3; i++) GET(w[i], 8, 10, 10, AMP_F16);
    COUNTS(4, 8, 0, 0);
    amp_session_changed(&session, w[2] + 80); /* in none */
    for (i = 0; i < 3; i++) GET(w[i], 8, 10, 10, AMP_F16);
    COUNTS(7, 8, 0, 0);
    amp_session_changed(NULL, w[0]);
    end();
}

TEST(same_address, "law: memory that was freed and handed out again is not taken for the old "
                   "weight after amp_session_add of 0 elements; the others keep their copies") {
    float       w[4][64];
    const void *kept;
    begin(1 << 16);
    randomize(w[0], 4 * 64);
    OK(amp_session_add(&session, w[0], 64));
    OK(amp_session_add(&session, w[1], 64));
    OK(amp_session_add(&session, w[2], 64));
    GET(w[0], 8, 8, 8, AMP_F16);
    GET(w[1], 8, 8, 8, AMP_F16);
    kept = GET(w[2], 8, 8, 8, AMP_F16);
    OK(amp_session_add(&session, w[1], 0));
    randomize(w[1], 64); /* another array, same address, which nobody has added */
    white_cache_reset(&session);
    GET(w[1], 8, 8, 8, AMP_F16);
    CHECK(GET(w[2], 8, 8, 8, AMP_F16) == kept);
    COUNTS(1, 3, 1, 0);
    OK(amp_session_add(&session, w[1], 64));
    white_cache_reset(&session);
    GET(w[1], 8, 8, 8, AMP_F16);
    COUNTS(1, 4, 1, 0);
    randomize(w[1], 64);
    OK(amp_session_add(&session, w[1], 0));
    OK(amp_session_add(&session, w[1], 64)); /* removed and added: nothing is left of the first */
    GET(w[1], 8, 8, 8, AMP_F16);
    GET(w[0], 8, 8, 8, AMP_F16);
    COUNTS(2, 5, 1, 0);
    OK(amp_session_add(&session, w[3], 0)); /* was never added */
    CHECK(GET(w[2], 8, 8, 8, AMP_F16) == kept);
    end();
}

TEST(added_twice, "a weight that was added twice, and a part of one, are still right") {
    float w[256];
    begin(1 << 16);
    randomize(w, 256);
    OK(amp_session_add(&session, w, 256));
    OK(amp_session_add(&session, w, 256));
    OK(amp_session_add(&session, w + 64, 64));
    GET(w, 16, 16, 16, AMP_F16);
    GET(w + 64, 8, 8, 8, AMP_F16);
    randomize(w, 256);
    amp_session_changed(&session, w);
    amp_session_changed(&session, w + 64);
    GET(w, 16, 16, 16, AMP_F16);
    GET(w + 64, 8, 8, 8, AMP_F16);
    CHECK_EQ_INT(session.num_entries, 2); /* what was said last is what holds */
    OK(amp_session_add(&session, w, 0));
    CHECK_EQ_INT(session.num_entries, 1);
    GET(w, 16, 16, 16, AMP_F16);
    end();
}

TEST(two_shapes, "one weight as both operands of a product, in two shapes: both copies are right "
                 "at the same time") {
    float       w[96];
    const void *a, *b;
    begin(1 << 16);
    randomize(w, 96);
    OK(amp_session_add(&session, w, 96));
    a = GET(w, 8, 12, 12, AMP_F16);
    b = GET(w, 12, 8, 8, AMP_F16);
    CHECK(a != b);
    CHECK(same_bits(a, 16, w, 8, 12, 12, AMP_F16));
    COUNTS(0, 1, 1, 0);
    CHECK(GET(w, 8, 12, 12, AMP_F16) == a);
    white_cache_reset(&session);
    CHECK(GET(w, 8, 12, 12, AMP_F16) == a);
    GET(w, 12, 8, 8, AMP_F16);
    CHECK(same_bits(a, 16, w, 8, 12, 12, AMP_F16));
    COUNTS(2, 1, 2, 0);
    end();
}

TEST(sub_blocks, "a block inside a weight has a copy of its own; what reaches beyond a weight is "
                 "no part of it") {
    float       w[320];
    const void *block;
    begin(1 << 16);
    randomize(w, 320);
    OK(amp_session_add(&session, w, 256)); /* 16 x 16 */
    block = GET(w + 4 * 16 + 8, 8, 8, 16, AMP_F16);
    white_cache_reset(&session);
    CHECK(GET(w + 4 * 16 + 8, 8, 8, 16, AMP_F16) == block);
    COUNTS(1, 1, 0, 0);
    white_cache_reset(&session);
    GET(w + 4 * 16, 8, 8, 16, AMP_F16);
    white_cache_reset(&session);
    GET(w + 8 * 16 + 8, 8, 8, 16, AMP_F16); /* ends with the weight's last element */
    COUNTS(1, 3, 0, 0);
    white_cache_reset(&session);
    GET(w + 8 * 16 + 8, 8, 9, 16, AMP_F16); /* one beyond it */
    GET(w + 256, 8, 8, 8, AMP_F16);
    COUNTS(1, 3, 2, 0);
    amp_session_changed(&session, w);
    w[4 * 16 + 8] += 1.0f;
    white_cache_reset(&session);
    GET(w + 4 * 16 + 8, 8, 8, 16, AMP_F16);
    COUNTS(1, 4, 2, 0);
    end();
}

/* -------------------------------------------------------------------------- optimizers' weights */

TEST(steps, "manual: with an amp_optimizer of AMP_F32 whose masters are added, and amp_session_changed of NULL behind "
            "each step, each is cast once a step, and no copy is stale") {
    static const amp_kind kinds[] = {AMP_KIND_OWN, AMP_KIND_ADAMW, AMP_KIND_SGD};
    static float          w[2][96], grad[2][96];
    size_t                kind;
    int                   step, i, k;
    for (kind = 0; kind < COUNT_OF(kinds); kind++) {
        amp_optimizer_desc desc;
        amp_optimizer      opt;
        amp_tensor         t;
        begin(1 << 16);
        memset(&desc, 0, sizeof desc);
        memset(&t, 0, sizeof t);
        desc.kind          = kinds[kind];
        desc.shared_scaler = session.scaler;
        OK(amp_optimizer_init(&opt, &desc));
        for (i = 0; i < 2; i++) {
            randomize(w[i], 96);
            t.n = 96, t.weight = w[i], t.grad = grad[i];
            OK(amp_optimizer_add(&opt, &t));
        }
        OK(amp_optimizer_prepare(&opt));
        for (i = 0; i < 2; i++) OK(amp_session_add(&session, amp_optimizer_master(&opt, i), 96));
        for (step = 0; step < 4; step++) {
            for (k = 0; k < 2; k++) {
                white_cache_reset(&session);
                for (i = 0; i < 2; i++) GET(w[i], 8, 12, 12, AMP_F16);
            }
            COUNTS(2 * (uint64_t)(step + 1), 2 * (uint64_t)(step + 1), 0, 0);
            OK(amp_session_check(&session));
            randomize(grad[0], 2 * 96);
            if (kinds[kind] == AMP_KIND_OWN) {
                CHECK(amp_optimizer_begin_step(&opt));
                for (i = 0; i < 2; i++)
                    for (k = 0; k < 96; k++) w[i][k] -= 0.1f * amp_optimizer_grad(&opt, i)[k];
                OK(amp_optimizer_end_step(&opt));
            } else {
                OK(amp_optimizer_step(&opt, 0.1f));
            }
            OK(amp_scaler_update(session.scaler));
            CHECK_EQ_INT(amp_session_check(&session), AMP_ERROR_STALE);
            amp_session_changed(&session, NULL);
        }
        amp_optimizer_free(&opt);
        end();
    }
}

/* ------------------------------------------------------------------------------ room and limits */

TEST(room, "manual: AMP_ERROR_OUT_OF_MEMORY if there is no room, and nothing else goes wrong: what "
           "was handed out stays right, a reset makes room again") {
    float       w[256], x[1024];
    const void *kept, *copy, *copies[8];
    size_t      copy_ld, i;
    begin(1024); /* 1280 bytes: whole steps of 256, and one */
    randomize(w, 256);
    randomize(x, 1024);
    OK(amp_session_add(&session, w, 256));
    kept = GET(w, 16, 16, 16, AMP_F16); /* 512 bytes */
    copy = GET(x, 16, 16, 16, AMP_F16);
    CHECK_EQ_INT(white_cache_get(&session, x, 16, 16, 16, AMP_F16, &copy, &copy_ld),
                 AMP_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_INT(white_cache_get(&session, x, 32, 32, 32, AMP_F16, &copy, &copy_ld),
                 AMP_ERROR_OUT_OF_MEMORY);
    COUNTS(0, 1, 1, 0);
    CHECK(GET(w, 16, 16, 16, AMP_F16) == kept);
    white_cache_reset(&session);
    GET(x, 16, 16, 16, AMP_F16);
    CHECK(GET(w, 16, 16, 16, AMP_F16) == kept);
    white_cache_reset(&session);
    OK(amp_session_add(&session, x, 1024));
    GET(x, 16, 16, 16, AMP_F16); /* 256 bytes are left */
    white_cache_reset(&session);
    CHECK_EQ_INT(white_cache_get(&session, x, 32, 16, 16, AMP_F16, &copy, &copy_ld),
                 AMP_ERROR_OUT_OF_MEMORY);
    GET(x, 16, 16, 16, AMP_F16);
    GET(w, 16, 16, 16, AMP_F16);
    OK(amp_session_add(&session, w, 0));
    OK(amp_session_add(&session, x, 0)); /* the last one: all room is there again */
    white_cache_reset(&session);
    GET(x, 32, 16, 16, AMP_BF16);
    begin(8 * 512); /* as many as fit, all of them right */
    for (i = 0; white_cache_get(&session, x + i, 16, 16, 16, AMP_F16, &copy, &copy_ld) == AMP_OK; i++) {
        CHECK(i < 8);
        copies[i % 8] = copy;
    }
    CHECK_EQ_U64(i, 8);
    while (i-- > 0) CHECK(same_bits(copies[i % 8], 16, x + i, 16, 16, 16, AMP_F16));
    begin(1); /* the least there is */
    GET(w, 1, 16, 16, AMP_F16);
    end();
}

TEST(limits, "manual: AMP_MAX_CACHED weights, then AMP_ERROR_TOO_LARGE, and nothing changes") {
    static float w[AMP_MAX_CACHED + 1][8];
    int          i;
    begin(1 << 20);
    randomize(w[0], sizeof w / sizeof w[0][0]);
    for (i = 0; i < AMP_MAX_CACHED; i++) OK(amp_session_add(&session, w[i], 8));
    CHECK_EQ_INT(amp_session_add(&session, w[AMP_MAX_CACHED], 8), AMP_ERROR_TOO_LARGE);
    for (i = 0; i <= AMP_MAX_CACHED; i++) GET(w[i], 1, 8, 8, AMP_F16);
    COUNTS(0, AMP_MAX_CACHED, 1, 0);
    OK(amp_session_add(&session, w[100], 0));
    OK(amp_session_add(&session, w[AMP_MAX_CACHED], 8));
    for (i = 0; i < AMP_MAX_CACHED; i++)
        if (i != 100) GET(w[i], 1, 8, 8, AMP_F16);
    COUNTS(AMP_MAX_CACHED - 1, AMP_MAX_CACHED, 1, 0);
    end();
}

TEST(bad_arguments, "manual: errors for NULL, for sizes of 0 and "
                    "for objects without init; nothing changes, nothing is written") {
    float         w[64] = {0};
    const void   *copy    = w;
    size_t        copy_ld = 77;
    static amp_session zero;
    begin(4096);
    CHECK_EQ_INT(start(NULL, NULL, 64, NULL, NULL), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(start(&zero, NULL, SIZE_MAX, NULL, NULL), AMP_ERROR_TOO_LARGE);
    CHECK_EQ_INT(amp_session_add(NULL, w, 64), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_session_add(&session, NULL, 64), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_session_add(&session, NULL, 0), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_session_add(&zero, w, 64), AMP_ERROR_NOT_INITIALIZED);
#define BAD(cache, x, rows, cols, ld, type, error) \
    CHECK_EQ_INT(white_cache_get(cache, x, rows, cols, ld, type, &copy, &copy_ld), error)
    BAD(&session, NULL, 8, 8, 8, AMP_F16, AMP_ERROR_INVALID_ARGUMENT);
    BAD(&session, w, 0, 8, 8, AMP_F16, AMP_ERROR_INVALID_ARGUMENT);
    BAD(&session, w, 8, 0, 8, AMP_F16, AMP_ERROR_INVALID_ARGUMENT);
    BAD(&session, w, 8, 8, 7, AMP_F16, AMP_ERROR_INVALID_ARGUMENT);
    BAD(&session, w, SIZE_MAX / 8, 8, 8, AMP_F16, AMP_ERROR_TOO_LARGE);
    BAD(&session, w, 8, 8, SIZE_MAX / 8, AMP_F16, AMP_ERROR_TOO_LARGE);
    BAD(&session, w, 1, SIZE_MAX / 2, SIZE_MAX / 2, AMP_F16, AMP_ERROR_TOO_LARGE);
#undef BAD
    CHECK(copy == w && copy_ld == 77);
    COUNTS(0, 0, 0, 0);
    CHECK_EQ_INT(session.num_entries, 0);
    amp_session_changed(&zero, w);
    end();
}

static int   live_blocks, refuse;
static void *counting_alloc(void *user, size_t n) {
    void *p = refuse ? NULL : malloc(n);
    live_blocks += p != NULL;
    *(size_t *)user += n;
    return p;
}
static void counting_free(void *user, void *p) {
    (void)user;
    live_blocks -= p != NULL;
    free(p);
}

TEST(memory, "manual: one allocation, by the allocator given; its failure leaves an object that "
             "may be ended; ending twice is safe") {
    static amp_session s;
    amp_allocator      allocator;
    float              w[64];
    const void        *copy;
    size_t             asked = 0, ld;
    allocator.allocate_fn = counting_alloc;
    allocator.release_fn  = counting_free;
    allocator.user        = &asked;
    randomize(w, 64);
    refuse = 1;
    CHECK_EQ_INT(start(&s, NULL, 4096, &allocator, NULL), AMP_ERROR_OUT_OF_MEMORY);
    amp_session_end(&s);
    CHECK_EQ_INT(amp_session_add(&s, w, 64), AMP_ERROR_NOT_INITIALIZED);
    refuse = 0;
    asked  = 0;
    OK(start(&s, NULL, 4096, &allocator, NULL));
    CHECK_EQ_INT(live_blocks, 1);
    CHECK(asked >= 4096 && asked < 4096 + 1024);
    OK(amp_session_add(&s, w, 64));
    OK(white_cache_get(&s, w, 8, 8, 8, AMP_F16, &copy, &ld));
    CHECK_EQ_INT(live_blocks, 1);
    amp_session_end(&s);
    CHECK_EQ_INT(live_blocks, 0);
    amp_session_end(&s);
    amp_session_end(NULL);
    CHECK_EQ_INT(live_blocks, 0);
}

/* ------------------------------------------------------------------------- backends of your own */

static uint64_t   capture_now;
static amp_result cast_fails;
static uint64_t   capture_number(const amp_backend *self) { (void)self; return capture_now; }
static amp_result failing_cast(const amp_backend *self, void *dst, amp_dtype dst_type,
                               const void *src, amp_dtype src_type, size_t n) {
    (void)self;
    if (cast_fails) memset(dst, 0xee, 2 * n); /* it got as far as that */
    return cast_fails ? cast_fails : amp_cast(dst, dst_type, src, src_type, n);
}

/* The CPU with a function or two of a test's own. */
static ampi_functions functions;
static amp_backend    backend_of(void) {
    amp_backend backend;
    OK(amp_cpu_backend(&backend));
    functions         = *backend.functions;
    backend.functions = &functions;
    return backend;
}

TEST(own_backend, "law: a backend without cast_rows_fn casts row by row; a cast that fails is "
                  "answered, and what it left is not believed") {
    float       w[96];
    const void *copy;
    size_t      copy_ld;
    amp_backend backend = backend_of();
    functions.cast_fn      = failing_cast;
    functions.cast_rows_fn = NULL;
    begin_on(&backend, 4096);
    randomize(w, 96);
    OK(amp_session_add(&session, w, 96));
    GET(w, 8, 11, 12, AMP_F16);
    GET(w, 8, 8, 8, AMP_F16);
    COUNTS(0, 1, 1, 0);
    amp_session_changed(&session, w);
    randomize(w, 96);
    cast_fails = AMP_ERROR_CUDA;
    CHECK_EQ_INT(white_cache_get(&session, w, 8, 11, 12, AMP_F16, &copy, &copy_ld), AMP_ERROR_CUDA);
    white_cache_reset(&session);
    CHECK_EQ_INT(white_cache_get(&session, w, 12, 8, 8, AMP_F16, &copy, &copy_ld), AMP_ERROR_CUDA);
    cast_fails = AMP_OK;
    white_cache_reset(&session);
    GET(w, 8, 11, 12, AMP_F16);
    GET(w, 12, 8, 8, AMP_F16);
    COUNTS(0, 2, 2, 0);
    white_cache_reset(&session);
    cast_fails = AMP_ERROR_CUDA; /* over a copy that was right */
    CHECK_EQ_INT(white_cache_get(&session, w, 8, 8, 8, AMP_F16, &copy, &copy_ld), AMP_ERROR_CUDA);
    cast_fails = AMP_OK;
    white_cache_reset(&session);
    GET(w, 8, 11, 12, AMP_F16);
    COUNTS(0, 3, 2, 0);
    end();
}

TEST(captures, "law: what was cast in a capture is not believed outside it or in another, and "
               "nothing from outside is believed in one") {
    static const uint64_t numbers[] = {0, 0, 7, 7, 0, 7, 8, 8, 0};
    static const int      anew[]    = {1, 0, 1, 0, 1, 1, 1, 0, 1};
    float                 w[64];
    uint64_t              misses = 0;
    size_t                i;
    amp_backend           backend = backend_of();
    functions.capture_fn = capture_number;
    begin_on(&backend, 4096);
    randomize(w, 64);
    OK(amp_session_add(&session, w, 64));
    for (i = 0; i < COUNT_OF(numbers); i++) {
        white_cache_reset(&session);
        capture_now = numbers[i];
        GET(w, 8, 8, 8, AMP_F16);
        misses += (uint64_t)anew[i];
        COUNTS(i + 1 - misses, misses, 0, 0);
    }
    end();
}

TEST(after_capture, "after a capture too, one weight in two shapes has two copies in one product") {
    float       w[96];
    const void *a, *b;
    amp_backend backend = backend_of();
    functions.capture_fn = capture_number;
    begin_on(&backend, 4096);
    randomize(w, 96);
    OK(amp_session_add(&session, w, 96));
    capture_now = 7;
    GET(w, 8, 12, 12, AMP_F16);
    capture_now = 0;
    white_cache_reset(&session);
    a = GET(w, 8, 12, 12, AMP_F16);
    b = GET(w, 12, 8, 8, AMP_F16);
    CHECK(a != b);
    CHECK(same_bits(a, 16, w, 8, 12, 12, AMP_F16));
    end();
}

TEST(checked_behind_capture, "after a capture no copy is believed in a later product, so none is stale: replays may change "
                             "weights; before it, one is") {
    float       w[2][64];
    int         i;
    amp_backend backend = backend_of();
    functions.capture_fn = capture_number;
    capture_now          = 0;
    begin_on(&backend, 4096);
    for (i = 0; i < 2; i++) {
        randomize(w[i], 64);
        OK(amp_session_add(&session, w[i], 64));
    }
    GET(w[0], 8, 8, 8, AMP_F16);
    w[0][9] += 1.0f;
    CHECK_EQ_INT(amp_session_check(&session), AMP_ERROR_STALE);
    capture_now = 7; /* of w[1] the copy is a capture's */
    GET(w[1], 8, 8, 8, AMP_F16);
    w[1][9] += 1.0f;
    OK(amp_session_check(&session));
    capture_now = 0;
    OK(amp_session_check(&session));
    white_cache_reset(&session);
    for (i = 0; i < 2; i++) { /* and a product has today's numbers */
        GET(w[i], 8, 8, 8, AMP_F16);
        w[i][10] += 1.0f;
        OK(amp_session_check(&session));
    }
    end();
}

/* ----------------------------------------------------------------- random sequences and a model */

enum { ARRAYS = 6, ELEMENTS = 200, SHAPES = 5 };
static const size_t shapes[SHAPES][4] = { /* start, rows, cols, ld */
    {0, 12, 16, 16}, {0, 16, 12, 12}, {8, 11, 10, 16}, {3, 14, 13, 13}, {64, 8, 8, 8}};

/* The model: for each weight that was added, what the copy of a weight was last cast from. */
typedef struct known {
    int array, has_copy, shape, type, product;
} known;

/* Copies that must stay right, since the same product may read them. */
typedef struct handed { const void *copy; size_t bytes; unsigned char content[1024]; } handed;

TEST(random_sequences, "10^4 random sequences of add, get, change and remove do "
                       "what a model of 20 lines says: hit, cast and kept, or for one product") {
    static float  memory[ARRAYS][ELEMENTS];
    static handed live[64];
    int           sequence, count = test_state.quick ? 1000 : 10000;
    random_state = 7;
    for (sequence = 0; sequence < count; sequence++) {
        known    model[64];
        int      num = 0, num_live = 0, product = 0, added, op, i, k, ops;
        uint64_t expected[3] = {0, 0, 0}; /* hits, misses, transients */
        uint64_t seed        = random_state;
        begin_scope(1 << 15, AMP_F16);
        random_state = seed;
        for (ops = 10 + (int)random_below(30), op = 0; op < ops; op++) {
            const int array = (int)random_below(ARRAYS);
            float    *x     = memory[array];
            switch (random_below(15)) {
            case 0: case 1: case 2: case 3:
                added = random_below(4) != 0; /* anew, or no more */
                OK(amp_session_add(&session, x, added ? ELEMENTS : 0));
                for (i = k = 0; i < num; i++)
                    if (model[i].array != array) model[k++] = model[i];
                num = k;
                memset(&model[num], 0, sizeof model[0]);
                model[num].array = array;
                num += added;
                num_live = 0;
                white_cache_reset(&session);
                product++;
                break;
            case 4:
                randomize(x, ELEMENTS);
                i = (int)random_below(4) == 0;
                amp_session_changed(&session, i ? NULL : x);
                for (k = 0; k < num; k++)
                    if (i || model[k].array == array) model[k].has_copy = 0;
                num_live = 0;
                break;
            case 5: case 6: case 7: case 8:
                white_cache_reset(&session);
                product++;
                num_live = 0;
                break;
            default: {
                const int     type = (int)random_below(2), shape = (int)random_below(SHAPES);
                const size_t *s    = shapes[shape];
                const size_t  rows = s[1];
                known        *w    = NULL;
                const void   *copy = GET(x + s[0], rows, s[2], s[3], halves[type]);
                for (i = 0; i < num && !w; i++)
                    if (model[i].array == array) w = &model[i];
                if (w && w->has_copy && w->shape == shape && w->type == type) {
                    expected[0]++;
                    w->product = product;
                } else if (w && !(w->has_copy && w->product == product)) {
                    const known now = {array, 1, shape, type, product};
                    expected[1]++;
                    *w = now;
                } else {
                    expected[2]++;
                }
                if (num_live < 64) {
                    handed *h = &live[num_live++];
                    h->copy  = copy;
                    h->bytes = 2 * ((rows - 1) * ((s[3] + 7) / 8 * 8) + s[2]);
                    if (s[3] % 8 != 0) h->bytes = 2 * s[2]; /* its first row */
                    memcpy(h->content, copy, h->bytes);
                }
            } break;
            }
            for (i = 0; i < num_live; i++)
                if (memcmp(live[i].copy, live[i].content, live[i].bytes) != 0)
                    test_fail(__FILE__, __LINE__, "copies of one product do not overlap", "");
            COUNTS(expected[0], expected[1], expected[2], 0);
        }
        end();
    }
}

/* ------------------------------------------------------------------------------------- amp_gemm */

typedef struct product {
    int       trans_a, trans_b;
    size_t    m, n, k, lda, ldb, ldc;
    float     alpha, beta;
    amp_dtype a_type, b_type, c_type;
    float     a[4608], b[4608]; /* as they are, or as converted to their types */
    unsigned char a_half[9216], b_half[9216], c[2][16384]; /* C in the scope, C by hand */
} product;
static product p;

static size_t a_size(void) { return (p.trans_a ? p.k : p.m) * p.lda; }
static size_t b_size(void) { return (p.trans_b ? p.n : p.k) * p.ldb; }

static void product_make(int trans, size_t m, size_t n, size_t k, size_t extra, amp_dtype c_type) {
    static const uint32_t nan_bits = 0x7fc00000u;
    size_t                i;
    float                 nan;
    memcpy(&nan, &nan_bits, 4);
    p.trans_a = trans % 2;
    p.trans_b = trans / 2;
    p.m       = m;
    p.n       = n;
    p.k       = k;
    p.lda     = (p.trans_a ? m : k) + extra;
    p.ldb     = (p.trans_b ? k : n) + extra * 2;
    p.ldc     = n + extra;
    p.alpha   = 1.0f;
    p.beta    = 0.0f;
    p.a_type = p.b_type = AMP_F32;
    p.c_type            = c_type;
    randomize(p.a, a_size());
    randomize(p.b, b_size());
    for (i = 0; i < m * p.ldc; i++)
        amp_cast(p.c[0] + i * size_of(c_type), c_type, &nan, AMP_F32, 1);
    memcpy(p.c[1], p.c[0], sizeof p.c[0]);
}

/* The product as the scope has it, into c[0]. */
static amp_result product_run(void) {
    return gemm_one(NULL, p.trans_a, p.trans_b, p.m, p.n, p.k, p.alpha,
                    p.a_type == AMP_F32 ? (void *)p.a : p.a_half, p.a_type, p.lda,
                    p.b_type == AMP_F32 ? (void *)p.b : p.b_half, p.b_type, p.ldb, p.beta, p.c[0],
                    p.c_type, p.ldc);
}

/* The product of operands that are cast to type by hand (AMP_F32: as they are, and by TF32 if the
   scope's policy has it), into c[1]. */
static void product_by_hand(amp_dtype type) {
    amp_autocast *before = amp_autocast_use(NULL);
    amp_gemm_args g;
    if (type != AMP_F32) {
        if (p.a_type == AMP_F32) amp_cast(p.a_half, type, p.a, AMP_F32, a_size());
        if (p.b_type == AMP_F32) amp_cast(p.b_half, type, p.b, AMP_F32, b_size());
    }
    if (type == AMP_F32 && before && before->tf32 && !before->off) {
        memset(&g, 0, sizeof g);
        g.trans_a = p.trans_a, g.trans_b = p.trans_b;
        g.m = p.m, g.n = p.n, g.k = p.k;
        g.alpha = p.alpha, g.beta = p.beta; /* not 0, which would be 1 */
        g.a = p.a, g.b = p.b, g.c = p.c[1];
        g.a_type = p.a_type, g.b_type = p.b_type, g.c_type = p.c_type;
        g.lda = p.lda, g.ldb = p.ldb, g.ldc = p.ldc;
        g.tf32 = 1;
        OK(amp_gemm(NULL, &g));
    } else {
        OK(gemm_one(NULL, p.trans_a, p.trans_b, p.m, p.n, p.k, p.alpha,
                    type == AMP_F32 ? (void *)p.a : p.a_half, type == AMP_F32 ? p.a_type : type,
                    p.lda, type == AMP_F32 ? (void *)p.b : p.b_half,
                    type == AMP_F32 ? p.b_type : type, p.ldb, p.beta, p.c[1], p.c_type, p.ldc));
    }
    amp_autocast_use(before);
}

static void product_check(int line, amp_dtype type) {
    const int        reads   = fabsf(p.alpha) > 0.0f; /* A and B */
    const int        counts  = reads && current() == &session.autocast && (p.a_type == AMP_F32 || p.b_type == AMP_F32);
    const uint64_t   rounded = session.rounded + (uint64_t)(counts && type != AMP_F32);
    const uint64_t   left    = session.left_fp32 + (uint64_t)(counts && type == AMP_F32);
    const amp_result result  = product_run();
    if (result != AMP_OK) test_fail(__FILE__, line, "amp_gemm", amp_result_string(result));
    if (session.rounded != rounded || session.left_fp32 != left)
        test_fail(__FILE__, line, "one product of fp32 is counted as rounded, or left in fp32", "");
    product_by_hand(type);
    if (memcmp(p.c[0], p.c[1], p.m * p.ldc * size_of(p.c_type)) != 0)
        test_fail(__FILE__, line, "amp_gemm in the scope == amp_gemm on cast operands", "");
}
#define SAME_AS(type) product_check(__LINE__, type)

TEST(gemm_bits, "manual: in a scope amp_gemm has the bits of amp_gemm on operands cast by hand: "
                "transposes, leading dimensions, alpha, beta, types of C, NaN in an unread C") {
    static const float  alphas[] = {1.0f, -0.5f, 0.0f}, betas[] = {0.0f, 1.0f, 0.25f};
    static const size_t sizes[]  = {32, 33, 36, 41, 47}; /* smaller ones are not cast */
    uint64_t            products = 0;
    int                 trans, t, c, x, y, extra, weights, number = 0;
    size_t              i;
    for (t = 0; t < 2; t++)
        for (weights = 0; weights < 2; weights++) {
            begin_scope(1 << 16, halves[t]);
            if (weights) OK(amp_session_add(&session, p.b, COUNT_OF(p.b)));
            for (trans = 0; trans < 4; trans++)
                for (extra = 0; extra < 9; extra += extra < 1 ? 1 : 7)
                    for (c = 0; c < 3; c++)
                        for (x = 0; x < 3; x++)
                            for (y = 0; y < 3; y++) {
                                if (test_state.quick > 1 && ++number % 5) continue;
                                product_make(trans, sizes[random_below(5)], sizes[random_below(5)],
                                             sizes[random_below(5)], (size_t)extra, (amp_dtype)c);
                                p.alpha = alphas[x];
                                p.beta  = betas[y];
                                for (i = 0; y > 0 && i < p.m * p.ldc; i++)
                                    amp_cast(p.c[0] + i * size_of(p.c_type), p.c_type, &p.a[i % 7],
                                             AMP_F32, 1);
                                memcpy(p.c[1], p.c[0], sizeof p.c[0]);
                                amp_session_changed(&session, NULL);
                                SAME_AS(halves[t]);
                                products++;
                            }
            CHECK_EQ_U64(session.fallbacks, 0);
            CHECK(session.misses + session.transients <= 2 * products);
            CHECK_EQ_U64(session.misses != 0, weights);
            end();
        }
}

TEST(gemm_alpha_zero, "manual: A and B are not read if alpha is 0, in a scope neither") {
    size_t i;
    begin_scope(1 << 16, AMP_F16);
    product_make(0, 8, 8, 8, 0, AMP_F32);
    p.alpha = 0.0f;
    OK(product_run());
    for (i = 0; i < 64; i++) {
        float zero;
        memcpy(&zero, p.c[0] + 4 * i, 4);
        CHECK_EQ_F32(zero, 0.0f);
    }
    end();
}

TEST(gemm_cached, "a weight in products is cast once; as both operands "
                  "of one product it is right in both shapes") {
    int i;
    begin_scope(1 << 16, AMP_F16);
    product_make(0, 32, 48, 32, 0, AMP_F32);
    OK(amp_session_add(&session, p.b, COUNT_OF(p.b)));
    for (i = 0; i < 4; i++) {
        randomize(p.a, a_size());
        SAME_AS(AMP_F16);
    }
    COUNTS(3, 1, 4, 0);
    for (i = 0; i < 2; i++) { /* w' w: 32 x 48 and 48 x 32 */
        amp_autocast *before;
        OK(gemm_one(NULL, 0, 0, 32, 32, 48, 1.0f, p.b, AMP_F32, 0, p.b, AMP_F32, 0, 0.0f, p.c[0],
                    AMP_F32, 0));
        before = amp_autocast_use(NULL);
        amp_cast(p.b_half, AMP_F16, p.b, AMP_F32, 48 * 32);
        OK(gemm_one(NULL, 0, 0, 32, 32, 48, 1.0f, p.b_half, AMP_F16, 0, p.b_half, AMP_F16, 0, 0.0f,
                    p.c[1], AMP_F32, 0));
        CHECK_MEM(p.c[0], p.c[1], 32 * 32 * 4);
        amp_autocast_use(before);
    }
    COUNTS(5, 1, 6, 0);
    end();
}

TEST(gemm_copy, "manual: a copy of a session's autocast has no weight cache: its products neither read the "
                "session nor count in it, after its end, too") {
    amp_autocast copy;
    begin_scope(1 << 16, AMP_F16);
    product_make(0, 32, 48, 32, 0, AMP_F32);
    OK(amp_session_add(&session, p.b, COUNT_OF(p.b)));
    SAME_AS(AMP_F16);
    OK(amp_autocast_override(&session.autocast, "op:gemm=low"));
    copy = session.autocast;
    amp_autocast_use(&copy);
    p.b[7] += 1.0f; /* and nobody says so */
    SAME_AS(AMP_F16);
    COUNTS(0, 1, 1, 0);
    CHECK_EQ_INT(amp_session_check(&session), AMP_ERROR_STALE);
    amp_session_end(&session);
    SAME_AS(AMP_F16);
    COUNTS(0, 0, 0, 0);
    end();
}

TEST(gemm_policy, "manual: what the policy says of gemm, by op, by layer and by scope, is what "
                  "amp_gemm does") {
    static const struct { const char *words, *layer; amp_dtype type; } cases[] = {
        {"", NULL, AMP_F16},
        {"bf16", NULL, AMP_BF16},
        {"op:gemm=fp32", NULL, AMP_F32},
        {"op:gemm=pass", NULL, AMP_F32},
        {"op:gemm=promote", NULL, AMP_F32},
        {"op:gemm=keep", NULL, AMP_F32},
        {"op:gemm=bf16", NULL, AMP_BF16},
        {"op:linear=fp32", NULL, AMP_F16},
        {"tf32", NULL, AMP_F16},
        {"tf32 op:gemm=fp32", NULL, AMP_F32},
        {"off", NULL, AMP_F32},
        {"apex_o0", NULL, AMP_F32},
        {"torch_cpu", NULL, AMP_BF16},
        {"head*=fp32", "head.1", AMP_F32},
        {"head*=fp32", "body.1", AMP_F16},
        {"op:gemm=fp32 *.1=bf16", "body.1", AMP_BF16}};
    size_t   i;
    uint64_t misses;
    for (i = 0; i < COUNT_OF(cases); i++) {
        begin_scope(1 << 16, AMP_F16);
        OK(amp_autocast_override(&session.autocast, cases[i].words));
        CHECK(session.autocast.session == &session); /* also when the words name another policy */
        if (cases[i].layer) enter(AMP_AUTOCAST_INHERIT, AMP_F32, cases[i].layer);
        product_make((int)random_below(4), 36, 31, 40, 3, AMP_F32);
        SAME_AS(cases[i].type);
        CHECK_EQ_U64(session.transients, cases[i].type == AMP_F32 ? 0 : 2);
        end();
    }
    begin_scope(1 << 16, AMP_F16);
    OK(amp_session_add(&session, p.b, COUNT_OF(p.b)));
    product_make(1, 36, 31, 40, 3, AMP_F32);
    SAME_AS(AMP_F16);
    misses = session.misses;
    enter(AMP_AUTOCAST_OFF, AMP_F32, NULL);
    SAME_AS(AMP_F32);
    enter(AMP_AUTOCAST_ON, AMP_BF16, NULL);
    SAME_AS(AMP_BF16);
    OK(amp_autocast_pop(&session.autocast));
    OK(amp_autocast_pop(&session.autocast));
    SAME_AS(AMP_F16);
    CHECK_EQ_U64(session.misses, misses + 2);
    CHECK_EQ_INT(amp_autocast_override(&session.autocast, "op:gemm=banned"), AMP_OK);
    memcpy(p.c[1], p.c[0], sizeof p.c[0]);
    CHECK_EQ_INT(product_run(), AMP_ERROR_BANNED);
    CHECK_MEM(p.c[0], p.c[1], sizeof p.c[0]);
    OK(amp_autocast_pop(&session.autocast));
    SAME_AS(AMP_F32); /* outside all scopes */
    end();
}

TEST(gemm_without_cache, "manual: in a scope without a cache a CPU rounds fp32 operands by itself, to the bits of "
                         "casts, where that is faster or an override names the op; what is small or sets "
                         "compute stays as it is") {
    amp_capability cpu;
    size_t         i;
    int            t, named;
    for (i = 0; i < COUNT_OF(tier_names); i++) {
        if (amp_cpu_force_tier(tier_names[i]) != AMP_OK) continue;
        OK(amp_capability_of(0, 0, &cpu));
        CHECK_EQ_INT(cpu.fp16, pays_in_tier(AMP_F16));
        CHECK_EQ_INT(cpu.bf16, pays_in_tier(AMP_BF16));
        for (t = 0; t < 2; t++)
            for (named = 0; named < 2; named++) {
                const amp_dtype low     = halves[t];
                const int       pays    = low == AMP_BF16 && cpu.bf16; /* fp16 is faster only where m n k >= 2^17 */
                const amp_dtype becomes = pays || named ? low : AMP_F32;
                begin_scope(0, low);
                if (named) OK(amp_autocast_override(&session.autocast, "op:gemm=low"));
                product_make((int)random_below(4), 36, 31, 40, 3, AMP_F32);
                SAME_AS(becomes);
                product_make((int)random_below(4), 20, 20, 20, 0, AMP_F32);
                SAME_AS(AMP_F32);
                product_make((int)random_below(4), 20, 20, 20, 0, AMP_F16); /* not all is fp32 */
                SAME_AS(named ? low : AMP_F32);
                enter(AMP_AUTOCAST_OFF, AMP_F32, NULL);
                product_make((int)random_below(4), 36, 31, 40, 3, AMP_F32);
                SAME_AS(AMP_F32);
                OK(amp_autocast_pop(&session.autocast));
                end();
            }
    }
    OK(amp_cpu_force_tier(NULL));
}

/* Products larger than those above: in a scope, and as they should be. */
enum { ROOM = 1 << 16 };
static struct { float a[ROOM], b[ROOM]; uint16_t a16[ROOM], b16[ROOM]; float c[2][ROOM]; } large;

static amp_gemm_args large_make(size_t m, size_t n, size_t k, amp_dtype a_type, amp_dtype c_type, float *c) {
    amp_gemm_args g;
    CHECK(m * k <= ROOM && k * n <= ROOM && m * n <= ROOM);
    memset(&g, 0, sizeof g);
    g.m = m, g.n = n, g.k = k;
    g.a = a_type == AMP_F32 ? (void *)large.a : (void *)large.a16;
    g.b = large.b;
    g.c = c;
    g.a_type = a_type, g.c_type = c_type;
    if (a_type != AMP_F32) amp_cast(large.a16, a_type, large.a, AMP_F32, ROOM);
    memset(c, 0, sizeof large.c[0]);
    return g;
}

TEST(counted, "manual: a session without a cache counts what it rounds and what it leaves in fp32, also where its scope is off; "
              "what another thread multiplies, and what sets compute, is not its own") {
    static float   x[64 * 64], w[64 * 64], y[64 * 64];
    amp_capability cpu;
    size_t         i;
    for (i = 0; i < COUNT_OF(tier_names); i++) {
        if (amp_cpu_force_tier(tier_names[i]) != AMP_OK) continue;
        OK(amp_capability_of(0, 0, &cpu));
        OK(start(&session, NULL, 0, NULL, NULL));
        OK(amp_autocast_override(&session.autocast, "bf16"));
        OK(amp_matmul(y, x, w, 64, 64, 64, AMP_F32));
        CHECK(session.rounded == (uint64_t)cpu.bf16 && session.left_fp32 == (uint64_t)!cpu.bf16);
        OK(amp_matmul(y, x, w, 8, 8, 8, AMP_F32)); /* small */
        OK(amp_matmul(y, x, w, 64, 64, 64, AMP_BF16));
        OK(amp_matmul(y, x, w, 0, 64, 64, AMP_F32));
        CHECK(session.rounded == (uint64_t)cpu.bf16 && session.left_fp32 == 1 + (uint64_t)!cpu.bf16);
        OK(amp_autocast_override(&session.autocast, "off"));
        OK(amp_linear(y, x, w, NULL, 64, 64, 64, AMP_F32));
        CHECK(session.rounded == (uint64_t)cpu.bf16 && session.left_fp32 == 2 + (uint64_t)!cpu.bf16);
        amp_autocast_use(NULL); /* what another thread has */
        OK(amp_linear(y, x, w, NULL, 64, 64, 64, AMP_F32));
        CHECK(session.rounded == (uint64_t)cpu.bf16 && session.left_fp32 == 2 + (uint64_t)!cpu.bf16);
        COUNTS(0, 0, 0, 0);
        amp_session_end(&session);
    }
    OK(amp_cpu_force_tier(NULL));
}

TEST(gemm_where_faster, "manual: in a scope without a cache nothing is rounded where that is no faster: a matrix times "
                        "a vector; bf16 where n k is below 2^10; fp16 where m n k is below 2^17, where m or n is 16 or "
                        "less, and beside an operand of fp16 where k is below 32") {
    static const struct { size_t m, n, k; int bf16, fp16, beside_fp16; } cases[] = { /* 2: in pairs alone */
        {1, 256, 256, 2, 0, 0}, {256, 1, 256, 0, 0, 0}, {1, 200, 300, 2, 0, 0}, {64, 32, 31, 0, 0, 0},
        {9, 32, 32, 2, 0, 0},   {2, 256, 64, 1, 0, 0},  {256, 2, 64, 0, 0, 0},  {33, 33, 33, 1, 0, 0},  {50, 51, 51, 1, 0, 0},
        {51, 51, 51, 1, 1, 1},  {16, 91, 91, 1, 0, 0},  {91, 16, 91, 1, 0, 0},  {17, 88, 88, 1, 1, 1},
        {88, 17, 88, 1, 1, 1},  {68, 68, 31, 1, 1, 0},  {64, 64, 32, 1, 1, 1},  {128, 128, 8, 1, 1, 0}};
    size_t i, s;
    int    t, c16, a16;
    randomize(large.a, ROOM);
    randomize(large.b, ROOM);
    for (i = 0; i < COUNT_OF(tier_names); i++) {
        if (amp_cpu_force_tier(tier_names[i]) != AMP_OK) continue;
        for (s = 0; s < COUNT_OF(cases); s++)
            for (t = 0; t < 2; t++)
                for (c16 = 0; c16 < 2; c16++)
                    for (a16 = 0; a16 < 2; a16++) {
                        const amp_dtype low  = halves[t];
                        const int       pays = t ? cases[s].bf16 : a16 ? cases[s].beside_fp16 : cases[s].fp16;
                        const size_t    m = cases[s].m, n = cases[s].n, k = cases[s].k;
                        amp_gemm_args   g;
                        begin_scope(0, low);
                        g = large_make(m, n, k, a16 ? low : AMP_F32, c16 ? low : AMP_F32, large.c[0]);
                        OK(amp_gemm(NULL, &g));
                        amp_autocast_use(NULL);
                        g = large_make(m, n, k, a16 ? low : AMP_F32, c16 ? low : AMP_F32, large.c[1]);
                        g.compute = pays && (pays < 2 || !strcmp(tier_names[i], "avx512_bf16")) &&
                                    pays_in_tier(low) ? low : AMP_F32;
                        OK(amp_gemm(NULL, &g));
                        CHECK_MEM(large.c[0], large.c[1], m * n * size_of(g.c_type));
                        CHECK(session.rounded == (g.compute != 0) && session.left_fp32 == !g.compute);
                        g.compute = g.compute ? AMP_F32 : low; /* and the other has other bits */
                        OK(amp_gemm(NULL, &g));
                        CHECK(c16 || memcmp(large.c[0], large.c[1], m * n * 4) != 0);
                        end();
                    }
    }
    OK(amp_cpu_force_tier(NULL));
}

TEST(gemm_tf32, "manual: a policy's tf32 is for products that stay in fp32; one whose operands are rounded, by itself or "
                "into a cache, has the caller's own") {
    static float first[ROOM];
    const size_t m = 52, n = 51, k = 50;
    size_t       i;
    int          cached, t, a16, own;
    randomize(large.a, ROOM);
    randomize(large.b, ROOM);
    for (i = 0; i < COUNT_OF(tier_names); i++) {
        if (amp_cpu_force_tier(tier_names[i]) != AMP_OK) continue;
        for (cached = 0; cached < 2; cached++)
            for (t = 0; t < 2; t++)
                for (a16 = 0; a16 < 2; a16++)
                    for (own = 0; own < 2; own++) {
                        const amp_dtype a_type = a16 ? halves[t] : AMP_F32;
                        amp_gemm_args   g;
                        begin_scope(cached ? 1 << 16 : 0, halves[t]);
                        OK(amp_autocast_override(&session.autocast, "tf32 op:gemm=low"));
                        g = large_make(m, n, k, a_type, AMP_F32, large.c[0]);
                        g.tf32 = own;
                        OK(amp_gemm(NULL, &g));
                        OK(amp_autocast_override(&session.autocast, "op:gemm=fp32")); /* and what stays in fp32 */
                        g.c = large.c[1];
                        OK(amp_gemm(NULL, &g));
                        amp_autocast_use(NULL);
                        g = large_make(m, n, k, a_type, AMP_F32, first);
                        g.tf32 = 1;
                        OK(amp_gemm(NULL, &g));
                        CHECK_MEM(large.c[1], first, m * n * 4);
                        amp_cast(large.a16, halves[t], large.a, AMP_F32, m * k);
                        amp_cast(large.b16, halves[t], large.b, AMP_F32, k * n);
                        g.a = large.a16, g.b = large.b16;
                        g.a_type = g.b_type = halves[t];
                        g.tf32 = own;
                        OK(amp_gemm(NULL, &g));
                        CHECK_MEM(large.c[0], first, m * n * 4);
                        g.c    = large.c[1];
                        g.tf32 = !own; /* which shows in fp16, in tiles */
                        OK(amp_gemm(NULL, &g));
                        CHECK_EQ_INT(memcmp(large.c[1], first, m * n * 4) != 0, in_tiles() && !t);
                        end();
                    }
        for (cached = 0; cached < 2; cached++) { /* what has no room, and what is no faster in fp16 */
            amp_gemm_args g;
            begin_scope((size_t)cached, AMP_F16);
            OK(amp_autocast_override(&session.autocast, "tf32"));
            g = large_make(40, 40, 40, AMP_F32, AMP_F32, large.c[0]);
            OK(amp_gemm(NULL, &g));
            amp_autocast_use(NULL);
            g.c    = large.c[1];
            g.tf32 = 1;
            OK(amp_gemm(NULL, &g));
            CHECK_MEM(large.c[0], large.c[1], 40 * 40 * 4);
            g.tf32 = 0;
            OK(amp_gemm(NULL, &g));
            CHECK_EQ_INT(memcmp(large.c[0], large.c[1], 40 * 40 * 4) != 0, in_tiles());
            end();
        }
        for (a16 = 0; a16 < 2; a16++) { /* of one operand in fp32, and of none */
            amp_gemm_args g;
            begin_scope(0, AMP_F16);
            OK(amp_autocast_override(&session.autocast, "tf32 op:gemm=fp32"));
            amp_cast(large.b16, AMP_F16, large.b, AMP_F32, k * n);
            g = large_make(m, n, k, a16 ? AMP_F16 : AMP_F32, AMP_F32, large.c[0]);
            g.b = large.b16, g.b_type = AMP_F16;
            OK(amp_gemm(NULL, &g));
            amp_autocast_use(NULL);
            g.c    = large.c[1];
            g.tf32 = !a16;
            OK(amp_gemm(NULL, &g));
            CHECK_MEM(large.c[0], large.c[1], m * n * 4);
            g.tf32 = a16;
            OK(amp_gemm(NULL, &g));
            CHECK_EQ_INT(memcmp(large.c[0], large.c[1], m * n * 4) != 0, in_tiles());
            end();
        }
    }
    OK(amp_cpu_force_tier(NULL));
}

TEST(gemm_types, "an operand that is half already stays; another half than the scope's is left "
                 "alone, or an error where gemm promotes; k = 0 and empty products cast nothing") {
    int t;
    for (t = 0; t < 2; t++) {
        begin_scope(0, halves[t]); /* nor does it round the other operand, without a cache */
        OK(amp_autocast_override(&session.autocast, "op:gemm=low"));
        product_make(0, 36, 31, 40, 0, AMP_F32);
        p.a_type = halves[1 - t];
        amp_cast(p.a_half, halves[1 - t], p.a, AMP_F32, a_size());
        OK(product_run());
        amp_autocast_use(NULL);
        memcpy(p.c[1], p.c[0], sizeof p.c[0]);
        OK(product_run());
        CHECK_MEM(p.c[0], p.c[1], p.m * p.ldc * 4);
        end();
        begin_scope(1 << 16, halves[t]);
        product_make(0, 9, 10, 40, 0, AMP_F32);
        amp_cast(p.a_half, halves[t], p.a, AMP_F32, a_size());
        p.a_type = halves[t];
        OK(product_run());
        p.a_type = AMP_F32;
        product_by_hand(halves[t]);
        CHECK_MEM(p.c[0], p.c[1], p.m * p.ldc * 4);
        COUNTS(0, 0, 1, 0);
        p.a_type = halves[1 - t]; /* a is not of the scope's type: the product as it is */
        amp_cast(p.a_half, halves[1 - t], p.a, AMP_F32, a_size());
        OK(product_run());
        amp_autocast_use(NULL);
        memcpy(p.c[1], p.c[0], sizeof p.c[0]);
        OK(product_run());
        CHECK_MEM(p.c[0], p.c[1], p.m * p.ldc * 4);
        amp_autocast_use(&session.autocast);
        p.b_type = halves[t];
        amp_cast(p.b_half, halves[t], p.b, AMP_F32, b_size());
        OK(amp_autocast_override(&session.autocast, "op:gemm=promote"));
        memcpy(p.c[1], p.c[0], sizeof p.c[0]);
        CHECK_EQ_INT(product_run(), AMP_ERROR_MIXED_TYPES);
        CHECK_MEM(p.c[0], p.c[1], sizeof p.c[0]);
        end();
        begin_scope(1 << 16, halves[t]);
        OK(gemm_one(NULL, 0, 0, 5, 7, 0, 1.0f, NULL, AMP_F32, 0, NULL, AMP_F32, 0, 0.0f, p.c[0],
                    AMP_F32, 0));
        OK(gemm_one(NULL, 0, 0, 0, 7, 3, 1.0f, NULL, AMP_F32, 0, p.b, AMP_F32, 0, 0.0f, NULL,
                    AMP_F32, 0));
        OK(gemm_one(NULL, 0, 0, 5, 0, 3, 1.0f, p.a, AMP_F32, 0, NULL, AMP_F32, 0, 0.0f, NULL,
                    AMP_F32, 0));
        COUNTS(0, 0, 0, 0);
        CHECK(!session.left_fp32 && !session.rounded); /* nor is there what could be rounded */
        end();
    }
}

TEST(gemm_no_room, "manual: where there is no room the product stays in fp32, bit for bit, and is "
                   "counted") {
    begin_scope(3900, AMP_F16); /* 4096 bytes */
    product_make(0, 32, 32, 32, 0, AMP_F32);
    SAME_AS(AMP_F16);
    COUNTS(0, 0, 2, 0);
    product_make(0, 32, 32, 80, 0, AMP_F32); /* neither operand has room */
    SAME_AS(AMP_F32);
    CHECK_EQ_U64(session.fallbacks, 1);
    product_make(0, 32, 48, 32, 0, AMP_F32); /* B has none */
    SAME_AS(AMP_F32);
    CHECK_EQ_U64(session.fallbacks, 2);
    product_make(0, 32, 32, 32, 0, AMP_F32);
    SAME_AS(AMP_F16);
    CHECK_EQ_U64(session.fallbacks, 2);
    product_make(0, 80, 31, 33, 0, AMP_F32); /* n k is 1023: not worth a cast */
    SAME_AS(AMP_F32);
    COUNTS(0, 0, 5, 2); /* what more room would mend, */
    CHECK_EQ_U64(session.left_fp32, 3); /* and beside these what is so by design */
    CHECK_EQ_U64(session.rounded, 2);
    end();
}

/* An operand of products: count matrices of rows x cols, and what the manual says of its bytes. */
typedef struct operand { float *x; size_t rows, cols, ld, stride, count; } operand;

static size_t bytes_of(const operand *o) {
    return 2 * ((o->count - 1) * o->stride + (o->rows - 1) * o->ld + o->cols) + 14 * o->count * o->rows + 256;
}
static operand an_operand(float *x, size_t rows, size_t cols, size_t count) {
    operand o;
    o.x      = x;
    o.rows   = rows;
    o.cols   = cols;
    o.ld     = cols + (random_below(2) ? random_below(40) : 0);
    o.ld     = random_below(3) ? o.ld : (o.ld + 7) / 8 * 8;
    o.stride = rows * o.ld + (random_below(2) ? random_below(50) : 0);
    o.count  = count;
    return o;
}
static void multiply(const operand *a, int ta, const operand *b, int tb, float *c) {
    const size_t m = ta ? a->cols : a->rows, n = tb ? b->rows : b->cols, k = ta ? a->rows : a->cols;
    OK(gemm_batched(NULL, ta, tb, m, n, k, 1.0f, a->x, AMP_F32, a->ld, a->stride, b->x, AMP_F32, b->ld, b->stride,
                        0.0f, c, AMP_F32, 0, m * n, a->count));
}

TEST(enough_room, "manual: for each weight, and for both operands of the largest product, 2 bytes an element from the "
                  "first to the last, 14 a row, and 256: then no product is left in fp32 for want of room") {
    enum { LAYERS = 4, MOST = 60000 };
    static float w[LAYERS][MOST], x[MOST], dy[MOST], c[MOST];
    const int    nets = test_state.quick > 1 ? 6 : test_state.quick ? 60 : 600;
    const operand wide = {w[0], 10, 1001, 3072, 0, 1}, few = {x, 10, 1001, 3072, 0, 1};
    uint64_t      state;
    int           net, round, i;
    for (net = 0; net < nets; net++) {
        operand      weights[LAYERS], ins[LAYERS], outs[LAYERS];
        size_t       bytes = 0, most = 0;
        const size_t rows = 12 + random_below(70), count = 1 + random_below(4) / 3 * 3;
        for (i = 0; i < LAYERS; i++) {
            const size_t in = 20 + random_below(60), out = 20 + random_below(60);
            weights[i] = an_operand(w[i], out, in, count);
            ins[i]     = an_operand(x, rows, in, count);
            outs[i]    = an_operand(dy, rows, out, count);
            bytes += bytes_of(&weights[i]);
            if (bytes_of(&ins[i]) + bytes_of(&outs[i]) > most) most = bytes_of(&ins[i]) + bytes_of(&outs[i]);
        }
        state = random_state;
        begin_scope(bytes + most, halves[net % 2]);
        random_state = state;
        for (i = 0; i < LAYERS; i++) OK(amp_session_add(&session, w[i], MOST));
        for (round = 0; round < 3 * LAYERS; round++) {
            i = net % 3 ? round % LAYERS : (int)random_below(LAYERS);
            multiply(&ins[i], 0, &weights[i], 1, c);  /* y  = x w' */
            multiply(&outs[i], 0, &weights[i], 0, c); /* dx = dy w */
            multiply(&outs[i], 1, &ins[i], 0, c);     /* dw = dy' x */
        }
        CHECK_EQ_U64(session.fallbacks, 0);
        CHECK(session.misses <= LAYERS); /* each is cast once */
        end();
    }
    begin_scope(bytes_of(&wide) + bytes_of(&few), AMP_F16); /* rows far apart, no multiple of 8 */
    OK(amp_session_add(&session, wide.x, MOST));
    multiply(&few, 0, &wide, 1, c);
    COUNTS(0, 1, 1, 0);
    begin_scope(2 * 4 * 10 * 1001, AMP_F16); /* 2 for each element alone is not enough */
    OK(amp_session_add(&session, wide.x, MOST));
    multiply(&few, 0, &wide, 1, c);
    CHECK_EQ_U64(session.fallbacks, 1);
    end();
}

TEST(gemm_batched, "manual: count products, their matrices stride elements apart, also 0: one by "
                   "one or together, in a scope or outside, they have the same bits") {
    static float a[8192], b[8192], c[2][8192];
    size_t       count, i;
    int          trans, active, zero, round, number = 0;
    begin_scope(1 << 16, AMP_F16);
    for (trans = 0; trans < 4; trans++)
        for (active = 0; active < 2; active++)
            for (zero = 0; zero < 4; zero++)
                for (count = 1; count < 5; count++)
                    for (round = 0; round < 3; round++) {
                        const int    ta = trans % 2, tb = trans / 2;
                        const size_t m = 32 + random_below(4), n = 32 + random_below(5);
                        const size_t k = 32 + random_below(8);
                        const size_t lda = (ta ? m : k) + random_below(3);
                        const size_t ldb = (tb ? k : n) + random_below(3);
                        const size_t ldc = n + random_below(3);
                        const size_t sa = zero & 1 ? 0 : (ta ? k : m) * lda + random_below(4);
                        const size_t sb = zero & 2 ? 0 : (tb ? n : k) * ldb + random_below(4);
                        const size_t sc = m * ldc + random_below(4);
                        const float  beta = round ? 0.5f : 0.0f;
                        if (test_state.quick > 1 && ++number % 5) continue;
                        amp_autocast_use(active ? &session.autocast : NULL);
                        randomize(a, COUNT_OF(a));
                        randomize(b, COUNT_OF(b));
                        randomize(c[0], COUNT_OF(c[0]));
                        memcpy(c[1], c[0], sizeof c[0]);
                        OK(gemm_batched(NULL, ta, tb, m, n, k, 0.75f, a, AMP_F32, lda, sa, b,
                                            AMP_F32, ldb, sb, beta, c[0], AMP_F32, ldc, sc, count));
                        for (i = 0; i < count; i++)
                            OK(gemm_one(NULL, ta, tb, m, n, k, 0.75f, a + i * sa, AMP_F32, lda,
                                        b + i * sb, AMP_F32, ldb, beta, c[1] + i * sc, AMP_F32,
                                        ldc));
                        CHECK_MEM(c[0], c[1], sizeof c[0]);
                    }
    CHECK(session.transients > 0);
    CHECK_EQ_U64(session.fallbacks, 0);
    OK(amp_session_add(&session, b, COUNT_OF(b))); /* one weight for all: cast once */
    amp_autocast_use(&session.autocast);
    for (i = 0; i < 3; i++) {
        const uint64_t misses = session.misses;
        OK(gemm_batched(NULL, 0, 0, 32, 32, 32, 1.0f, a, AMP_F32, 0, 1024, b, AMP_F32, 0, 0,
                            0.0f, c[0], AMP_F32, 0, 1024, 5));
        CHECK_EQ_U64(session.misses, misses + (i == 0));
    }
    CHECK_EQ_INT(gemm_batched(NULL, 0, 0, 4, 8, 16, 1.0f, a, AMP_F32, 0, 64, b, AMP_F32, 0, 0,
                                  0.0f, c[0], AMP_F32, 0, 31, 2),
                 AMP_ERROR_OVERLAP); /* products would write over one another */
    CHECK_EQ_INT(gemm_batched(NULL, 0, 0, 4, 8, 16, 1.0f, a, AMP_F32, 0, SIZE_MAX / 4, b,
                                  AMP_F32, 0, 0, 0.0f, c[0], AMP_F32, 0, 32, 4),
                 AMP_ERROR_TOO_LARGE);
    end();
}

#if HAVE_POSIX
/* A product of count a's in pages_with_guards, as it is and on a packed copy; weight: added. */
static void between_guards(float *at, size_t rows, size_t cols, size_t ld, size_t stride, size_t count, int weight) {
    enum { N = 64 };
    const size_t size = rows * cols, all = count > 1 ? count : 1;
    float       *packed = (float *)malloc(all * size * sizeof *packed), *b, *c, *wanted;
    size_t       i, r, t;
    b      = (float *)malloc(cols * N * sizeof *b);
    c      = (float *)malloc(all * rows * N * sizeof *c);
    wanted = (float *)malloc(all * rows * N * sizeof *c);
    randomize(b, cols * N);
    for (t = 0; t < 2; t++) {
        begin_scope(1 << 22, halves[t]);
        if (weight) OK(amp_session_add(&session, at, (all - 1) * stride + (rows - 1) * ld + cols));
        for (i = 0; i < all; i++)
            for (r = 0; r < rows; r++) randomize(at + i * stride + r * ld, cols);
        for (i = 0; i < all; i++)
            for (r = 0; r < rows; r++)
                memcpy(packed + i * size + r * cols, at + i * stride + r * ld, cols * sizeof *packed);
        OK(gemm_batched(NULL, 0, 0, rows, N, cols, 1.0f, packed, AMP_F32, 0, size, b, AMP_F32, 0, 0, 0.0f, wanted,
                        AMP_F32, 0, rows * N, all));
        COUNTS(0, 0, 2, 0);
        OK(gemm_batched(NULL, 0, 0, rows, N, cols, 1.0f, at, AMP_F32, ld, stride, b, AMP_F32, 0, 0, 0.0f, c, AMP_F32,
                        0, rows * N, all));
        COUNTS(0, (uint64_t)weight, 4 - (uint64_t)weight, 0);
        CHECK_MEM(c, wanted, all * rows * N * sizeof *c);
        OK(amp_session_check(&session));
        at[(all - 1) * stride + (rows - 1) * ld + cols - 1] += 1.0f; /* the last element */
        CHECK_EQ_INT(amp_session_check(&session), weight ? AMP_ERROR_STALE : AMP_OK);
        end();
    }
    free(packed), free(b), free(c), free(wanted);
}
#endif

TEST(gemm_between, "manual: what lies between the rows of a matrix, or between the matrices of a batch, is not read by "
                   "a cast, nor by amp_session_check") {
#if HAVE_POSIX
    const size_t page = (size_t)sysconf(_SC_PAGESIZE) / 4, wide = page - 3, tall = page / 64;
    float *const x    = pages_with_guards(64);
    int          weight;
    CHECK(x != NULL);
    for (weight = 0; x != NULL && weight < 2; weight++) {
        between_guards(x, tall, 64, 64, 2 * page, 3, weight);                  /* matrix, guard, matrix */
        between_guards(x + 1, tall, 60, 61, 2 * page, 3, weight);              /* padded ones */
        between_guards(x, 5, page, 2 * page, 0, 0, weight);                    /* one matrix: row, guard, row */
        between_guards(x + 3, 5, wide, 2 * page, 10 * page, 3, weight);        /* three, equally far apart */
        between_guards(x + 3, 5, wide, 2 * page, 14 * page, 3, weight);        /* or farther apart than their rows */
        between_guards(x, 4, wide, 6 * page, 2 * page, 3, weight);             /* side by side: their rows alternate */
        between_guards(x, 4, wide, 8 * page, 2 * page, 3, weight);             /* where there is room for a fourth */
        between_guards(x, 4, page / 2, 2 * page, page / 4, 3, weight);         /* over one another */
        between_guards(x, 4, page / 4, 2 * page, page / 4, 4, weight);         /* heads, which fill a row */
    }
#else
    SKIP(POSIX_WHY);
#endif
}

/* An operand in a half is off by at most u |x| and half its least subnormal, so that a product is
   off by d = |a| eb + |b| ea + ea eb; with e = 2^-24 sums of k in fp32, in any order, add at most
   k e / (1 - k e) of the sum of |a b| + d, and alpha and the store three roundings. */
TEST(gemm_bound, "law: products in a scope are as far from double precision as the rounding of "
                 "operands to halves explains, and no farther") {
    static const double u[2]     = {4.8828125e-4, 3.90625e-3};
    static const double least[2] = {2.9802322387695312e-8, 4.6e-41};
    const double        e        = 5.9604644775390625e-8;
    int                 t, trans;
    size_t              i, j, l, wrong = 0;
    double              worst = 0.0;
    for (t = 0; t < 2; t++)
        for (trans = 0; trans < 4; trans++) {
            begin_scope(1 << 16, halves[t]);
            product_make(trans, 33, 30, 60, 3, AMP_F32);
            p.a[3] = 1e-6f;
            p.alpha = -0.7f;
            OK(product_run());
            for (i = 0; i < p.m; i++)
                for (j = 0; j < p.n; j++) {
                    double sum = 0.0, size = 0.0, bound = 0.0, error;
                    float  c;
                    memcpy(&c, p.c[0] + 4 * (i * p.ldc + j), 4);
                    for (l = 0; l < p.k; l++) {
                        const double a = (double)p.a[p.trans_a ? l * p.lda + i : i * p.lda + l];
                        const double b = (double)p.b[p.trans_b ? j * p.ldb + l : l * p.ldb + j];
                        const double ea = u[t] * fabs(a) + least[t], eb = u[t] * fabs(b) + least[t];
                        sum += a * b;
                        bound += fabs(a) * eb + fabs(b) * ea + ea * eb;
                        size += fabs(a * b);
                    }
                    bound += ((double)p.k + 3.0) * e * 1.001 * (size + bound);
                    bound *= 0.7000001;
                    error = fabs((double)c - (double)p.alpha * sum);
                    wrong += !(error <= bound);
                    if (error / bound > worst) worst = error / bound;
                }
            end();
        }
    CHECK_EQ_U64(wrong, 0);
    CHECK(worst > 0.01); /* and they were rounded */
}

TEST(gemm_backends, "a product on another backend than that of the cache is as without autocast") {
    amp_backend other;
    begin_scope(1 << 16, AMP_F16);
    product_make(0, 32, 32, 32, 0, AMP_F32);
    amp_cpu_backend(&other);
    OK(gemm_one(&other, 0, 0, 32, 32, 32, 1.0f, p.a, AMP_F32, 0, p.b, AMP_F32, 0, 0.0f, p.c[0],
                AMP_F32, 0));
    COUNTS(0, 0, 2, 0); /* the CPU by another name */
    other = backend_of();
    OK(gemm_one(&other, 0, 0, 32, 32, 32, 1.0f, p.a, AMP_F32, 0, p.b, AMP_F32, 0, 0.0f, p.c[0],
                AMP_F32, 0));
    COUNTS(0, 0, 2, 1);
    product_by_hand(AMP_F32);
    CHECK_MEM(p.c[0], p.c[1], 32 * 32 * 4);
    end();
}

/* ------------------------------------------------------------------- sessions, capabilities */

TEST(a_session, "manual: amp_session_start makes a scaler, cache and a scope of 16 bits that is current "
                "in this thread; it ends with nothing left") {
    amp_scaler_desc desc;
    amp_capability  cpu;
    amp_dtype       inputs[2] = {AMP_F32, AMP_F32}, compute = AMP_F32;
    memset(&desc, 0, sizeof desc);
    desc.init_scale = 8.0f;
    OK(amp_capability_of(0, 0, &cpu));
    OK(start(&session, NULL, 1 << 16, NULL, &desc));
    CHECK(current() == &session.autocast);
    CHECK(session.autocast.session == &session);
    CHECK_EQ_F32(session.scaler->scale, 8.0f);
    OK(amp_autocast_dtype(NULL, AMP_OP_GEMM, inputs, 2, &compute, NULL));
    CHECK_EQ_INT(compute, cpu.bf16 ? AMP_BF16 : AMP_F16);
    OK(amp_scaler_unscale(session.scaler, NULL, NULL, AMP_F32, 0));
    OK(amp_scaler_update(session.scaler));
    amp_session_end(&session);
    amp_session_end(&session);
    CHECK(current() == NULL && session.scaler == NULL);
    OK(start(&session, NULL, 0, NULL, &desc)); /* without a cache: products round by themselves */
    CHECK(current() == &session.autocast && session.autocast.session == &session);
    CHECK_EQ_F32(session.scaler->scale, 8.0f);
    amp_session_end(&session);
    OK(start(&session, NULL, 0, NULL, NULL)); /* the type that pays here */
    OK(amp_autocast_dtype(NULL, AMP_OP_GEMM, inputs, 2, &compute, NULL));
    CHECK_EQ_INT(compute, cpu.bf16 ? AMP_BF16 : AMP_F16);
    CHECK_EQ_F32(session.scaler->scale, cpu.bf16 ? 1.0f : 65536.0f);
    amp_session_end(&session);
    memset(&desc, 0, sizeof desc); /* all zero is as NULL; any number is a choice */
    OK(start(&session, NULL, 0, NULL, &desc));
    CHECK_EQ_F32(session.scaler->scale, cpu.bf16 ? 1.0f : 65536.0f);
    CHECK_EQ_U32(session.scaler->preset, cpu.bf16 ? AMP_PRESET_NONE : AMP_PRESET_DEFAULT);
    amp_session_end(&session);
    desc.growth_interval = 7;
    OK(start(&session, NULL, 0, NULL, &desc));
    CHECK_EQ_F32(session.scaler->scale, 65536.0f);
    amp_session_end(&session);
    memset(&desc, 0, sizeof desc);
    desc.backoff_factor = -1.0;
    CHECK_EQ_INT(start(&session, NULL, 0, NULL, &desc), AMP_ERROR_INVALID_CONFIG);
    memset(&desc, 0, sizeof desc);
    desc.init_scale = -1.0f;
    CHECK_EQ_INT(start(&session, NULL, 1 << 16, NULL, &desc), AMP_ERROR_INVALID_CONFIG);
    CHECK_EQ_INT(start(NULL, NULL, 1 << 16, NULL, NULL), AMP_ERROR_INVALID_ARGUMENT);
    CHECK(current() == NULL && session.scaler == NULL);
}

TEST(a_session_tells, "law 19: amp_session_start tells what was wrong: "
                      "a variable of the environment, a number, an argument") {
    static const struct { const char *variable, *value, *text; amp_result result; } cases[] = {
        {"AMP_DTYPE", "junk", "AMP_DTYPE must be fp32, fp16 or bf16, not \"junk\"", AMP_ERROR_INVALID_CONFIG},
        {"AMP_ENABLE", "maybe", "AMP_ENABLE must be 0 or 1, not \"maybe\"", AMP_ERROR_INVALID_CONFIG},
        {"AMP_DTYPE", "fp16", TEST_OLDER, AMP_OK}};
    static amp_session other;
    amp_session_desc   desc;
    amp_backend        none;
    size_t             i, touched;
    for (touched = 0; touched < 2; touched++)
        for (i = 0; i < COUNT_OF(cases); i++) {
            memset(&desc, 0, sizeof desc);
            if (touched) desc.scaler.growth_interval = 7;
            test_older();
            setenv(cases[i].variable, cases[i].value, 1);
            CHECK_EQ_INT(amp_session_start(&session, &desc), cases[i].result);
            CHECK_EQ_INT(amp_session_start(&other, NULL), cases[i].result);
            unsetenv(cases[i].variable);
            if (strstr(amp_problem(), cases[i].text) != amp_problem())
                test_fail(__FILE__, __LINE__, cases[i].text, amp_problem());
            amp_session_end(&other);
            amp_session_end(&session);
        }
    memset(&none, 0, sizeof none);
    SAYS(amp_session_start(NULL, &desc), AMP_ERROR_INVALID_ARGUMENT, "session is NULL");
    desc.backend = &none;
    SAYS(amp_session_start(&session, &desc), AMP_ERROR_INVALID_ARGUMENT, "desc.backend was not made");
    desc.backend               = NULL;
    desc.allocator.allocate_fn = no_memory;
    SAYS(amp_session_start(&session, &desc), AMP_ERROR_INVALID_ARGUMENT, "desc.allocator needs both functions");
    desc.num_bytes = SIZE_MAX;
    SAYS(amp_session_start(&session, &desc), AMP_ERROR_TOO_LARGE, "desc.num_bytes");
    desc.num_bytes            = 64;
    desc.allocator.release_fn = no_free;
    SAYS(amp_session_start(&session, &desc), AMP_ERROR_OUT_OF_MEMORY, "allocator");
    memset(&desc.allocator, 0, sizeof desc.allocator);
    desc.scaler.init_scale = -1.0f;
    SAYS(amp_session_start(&session, &desc), AMP_ERROR_INVALID_CONFIG, "init_scale is -1");
    desc.scaler.init_scale = 0.0f;
    desc.dtype             = (amp_dtype)3;
    SAYS(amp_session_start(&session, &desc), AMP_ERROR_INVALID_ENUM, "amp_session_desc.dtype is 3");
    desc.dtype  = AMP_BF16;
    desc.policy = "op:softmax=fp32,op:gemm=fp16";
    SAYS(amp_session_start(&session, &desc), AMP_ERROR_MIXED_TYPES,
         "amp_session_desc.policy, character 17: not of the session's dtype: \"op:gemm=fp16\"");
    desc.policy = "off junk";
    setenv("AMP_DTYPE", "bf16", 1); /* it does not make good what the program says */
    SAYS(amp_session_start(&session, &desc), AMP_ERROR_PARSE, "amp_session_desc.policy, character 5: not understood: \"junk\"");
    unsetenv("AMP_DTYPE");
    CHECK(!session.scaler && !current());
    desc.policy = NULL;
    SAYS(amp_session_start(&session, &desc), AMP_OK, "");
    SAYS(amp_session_start(&session, &desc), AMP_ERROR_BAD_STATE, "amp_session_end");
    amp_session_end(&session);
}

TEST(a_session_without_scale, "manual: AMP_PRESET_NONE of a session is a scale of 1, in every type; AMP_DTYPE=fp16 where it was bf16 "
                              "asks for a scale") {
    amp_scaler_desc desc;
    amp_capability  cpu;
    memset(&desc, 0, sizeof desc);
    desc.preset = AMP_PRESET_NONE;
    OK(start(&session, NULL, 1 << 16, NULL, &desc));
    CHECK_EQ_F32(session.scaler->scale, 1.0f);
    CHECK_EQ_U32(session.scaler->preset, AMP_PRESET_NONE);
    amp_session_end(&session);
    OK(amp_capability_of(0, 0, &cpu));
    setenv("AMP_DTYPE", "fp16", 1);
    OK(start(&session, NULL, 0, NULL, &desc));
    CHECK_EQ_F32(session.scaler->scale, cpu.bf16 ? 65536.0f : 1.0f);
    amp_session_end(&session);
    desc.preset     = AMP_PRESET_STATIC;
    desc.init_scale = 1.0f;
    setenv("AMP_DTYPE", "bf16", 1);
    OK(start(&session, NULL, 1 << 16, NULL, &desc));
    CHECK_EQ_F32(session.scaler->scale, 1.0f);
    amp_session_end(&session);
    unsetenv("AMP_DTYPE");
}

TEST(capabilities, "manual: tensor cores have fp16 from 7.0 on, bf16 and TF32 from 8.0 on") {
    static const struct { int major, minor, fp16, bf16; amp_dtype dtype; int scaler; } rows[] = {
        {0, 0, 0, 0, AMP_F32, 0},  {5, 2, 0, 0, AMP_F32, 0}, {6, 1, 0, 0, AMP_F32, 0},
        {7, 0, 1, 0, AMP_F16, 1},  {7, 5, 1, 0, AMP_F16, 1}, {8, 0, 1, 1, AMP_BF16, 0},
        {9, 0, 1, 1, AMP_BF16, 0}, {12, 0, 1, 1, AMP_BF16, 0}};
    amp_capability cpu;
    size_t         i;
    OK(amp_capability_of(0, 0, &cpu));
    if (strcmp(amp_cpu_tier(), "amx") == 0) {
        CHECK(cpu.fp16 && cpu.bf16 && cpu.tf32 && cpu.dtype == AMP_BF16 && !cpu.scaler);
        CHECK(strlen(cpu.advice) > 20);
    }
    CHECK_EQ_INT(amp_cpu_force_tier("c"), AMP_OK);
    for (i = 0; i < COUNT_OF(rows); i++) {
        amp_capability c;
        OK(amp_capability_of(rows[i].major, rows[i].minor, &c));
        CHECK_EQ_INT(c.fp16, rows[i].fp16);
        CHECK_EQ_INT(c.bf16, rows[i].bf16);
        CHECK_EQ_INT(c.tf32, rows[i].bf16);
        CHECK_EQ_INT(c.dtype, rows[i].dtype);
        CHECK_EQ_INT(c.scaler, rows[i].scaler);
        CHECK(strlen(c.advice) > 20);
    }
    CHECK_EQ_INT(amp_cpu_force_tier(NULL), AMP_OK);
    CHECK_EQ_INT(amp_capability_of(-1, 0, NULL), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_capability_of(9, 0, NULL), AMP_ERROR_INVALID_ARGUMENT);
}

/* -------------------------------------------------------------------- what cannot have worked */

TEST(refused_at_init, "manual: an allocator of one function and a backend that lacks some are refused, "
                      "and nothing is written") {
    static amp_session s, before;
    amp_allocator      half;
    amp_backend        zero_backend;
    memset(&zero_backend, 0, sizeof zero_backend);
    memset(&s, 0x5a, sizeof s);
    before = s;
    memset(&half, 0, sizeof half);
    half.allocate_fn = counting_alloc;
    CHECK_EQ_INT(start(&s, NULL, 4096, &half, NULL), AMP_ERROR_INVALID_ARGUMENT);
    half.allocate_fn = NULL;
    half.release_fn  = counting_free;
    CHECK_EQ_INT(start(&s, NULL, 4096, &half, NULL), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(start(&s, &zero_backend, 4096, NULL, NULL), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_MEM(&s, &before, sizeof s);
}

TEST(room_again, "law: the room of a removed copy, and of one that has outgrown it, is used again: "
                 "10^4 weights come and go in the room for four") {
    static float w[8][512];
    size_t       i;
    begin(4 * 1024);
    for (i = 0; i < 10000; i++) {
        const size_t rows = i % 3 == 1 ? 16 : 32;
        float       *x    = w[i % 8];
        randomize(x, 512);
        if (i >= 2) OK(amp_session_add(&session, w[(i - 2) % 8], 0));
        white_cache_reset(&session);
        OK(amp_session_add(&session, x, 512));
        GET(x, rows, 16, 16, AMP_F16);
        if (i % 5 == 0) GET(x, 32, 16, 16, AMP_BF16);
        if (i > 0) CHECK_EQ_INT(session.num_entries, 2);
    }
    CHECK_EQ_U64(session.transients, 2000); /* two types in one product */
    end();
}

TEST(overlaps, "law: what is said of one weight is true of all that overlap it: no copy is stale") {
    static const size_t at[3][2] = {{0, 64}, {32, 64}, {64, 64}};
    float               w[128];
    const void         *copy;
    size_t              i, k;
    for (i = 0; i < 3; i++) {
        begin(1 << 14);
        randomize(w, 128);
        for (k = 0; k < 3; k++) OK(amp_session_add(&session, w + at[k][0], at[k][1]));
        GET(w, 4, 16, 16, AMP_F16);
        white_cache_reset(&session);
        copy = GET(w + 64, 4, 16, 16, AMP_F16);
        white_cache_reset(&session);
        CHECK(GET(w + 64, 4, 16, 16, AMP_F16) == copy);
        randomize(w, 128);
        white_cache_reset(&session);
        amp_session_changed(&session, w + at[i][0]);
        if (i < 2) CHECK(same_bits(GET(w, 4, 16, 16, AMP_F16), 16, w, 4, 16, 16, AMP_F16));
        if (i > 0)
            CHECK(same_bits(GET(w + 64, 4, 16, 16, AMP_F16), 16, w + 64, 4, 16, 16, AMP_F16));
        end();
    }
}

TEST(outputs_untouched, "law 9: an error writes nothing into copy and copy_ld") {
    float       w[256];
    const void *copy = w;
    size_t      copy_ld = 12345;
    begin(256);
    randomize(w, 256);
    CHECK_EQ_INT(white_cache_get(&session, w, 64, 4, 4, AMP_F16, &copy, &copy_ld),
                 AMP_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_INT(white_cache_get(&session, w, SIZE_MAX / 64, 4, 4, AMP_F16, &copy, &copy_ld),
                 AMP_ERROR_TOO_LARGE);
    CHECK_EQ_INT(white_cache_get(&session, w, SIZE_MAX / 16 - 1, 1, 1, AMP_F16, &copy, &copy_ld),
                 AMP_ERROR_TOO_LARGE); /* rows of 8 would wrap */
    CHECK(copy == w && copy_ld == 12345);
    end();
}

TEST(checked, "law 17: a cached copy of a weight that changed unannounced is found by "
              "amp_session_check, which names the weight") {
    static float w[3][40 * 33];
    const void  *copy;
    size_t       i, at, copy_ld;
    begin(1 << 15);
    for (i = 0; i < 3; i++) {
        randomize(w[i], 40 * 33);
        OK(amp_session_add(&session, w[i], 40 * 33));
        GET(w[i], 40, 31, 33, i == 1 ? AMP_BF16 : AMP_F16);
    }
    OK(amp_session_check(&session));
    for (i = 0; i < 3; i++)
        for (at = 0; at < 39 * 33 + 31; at += at < 33 ? 1 : 97) {
            const float was    = w[i][at];
            const int   padded = at % 33 >= 31; /* between rows: not in the copy */
            w[i][at] += 1.0f;
            char      text[40];
            snprintf(text, sizeof text, "weight %d of those added, of 1320 ", (int)i);
            SAYS(amp_session_check(&session), padded ? AMP_OK : AMP_ERROR_STALE, padded ? NULL : text);
            w[i][at] = was;
        }
    w[2][5] = 99.0f;
    CHECK_EQ_INT(amp_session_check(&session), AMP_ERROR_STALE);
    amp_session_changed(&session, w[2]); /* announced: nothing is wrong */
    OK(amp_session_check(&session));
    randomize(large.b, 2 * 3000); /* rows of several pieces */
    OK(amp_session_add(&session, large.b, 2 * 3000));
    OK(white_cache_get(&session, large.b, 2, 2999, 3000, AMP_F16, &copy, &copy_ld));
    OK(amp_session_check(&session));
    large.b[5998] += 1.0f;
    SAYS(amp_session_check(&session), AMP_ERROR_STALE, "weight 3 of those added, of 6000 elements, was written to: call "
                                                       "amp_session_changed");
    OK(amp_session_add(&session, w[1], 40 * 33)); /* again: it is the last now */
    SAYS(amp_session_check(&session), AMP_ERROR_STALE, "weight 2 of those added, of 6000");
    CHECK_EQ_INT(amp_session_check(NULL), AMP_ERROR_INVALID_ARGUMENT);
    end();
    CHECK_EQ_INT(amp_session_check(&session), AMP_ERROR_NOT_INITIALIZED);
}

TEST(session_before, "manual: ending a session makes the autocast current that was so before; an "
                     "allocator serves it; one that fails to start has changed nothing") {
    static amp_session s, before;
    amp_autocast       mine;
    amp_allocator      allocator;
    size_t             asked = 0;
    OK(amp_autocast_init(&mine, AMP_POLICY_DEFAULT, AMP_BF16));
    amp_autocast_use(&mine);
    allocator.allocate_fn = counting_alloc;
    allocator.release_fn  = counting_free;
    allocator.user        = &asked;
    memset(&s, 0x5a, sizeof s);
    before = s;
    refuse = 1;
    CHECK_EQ_INT(start(&s, NULL, 4096, &allocator, NULL), AMP_ERROR_OUT_OF_MEMORY);
    refuse = 0;
    CHECK_MEM(&s, &before, sizeof s);
    CHECK(current() == &mine);
    OK(start(&s, NULL, 4096, &allocator, NULL));
    CHECK(asked >= 4096);
    CHECK_EQ_U64(s.size, 4096 + 256);
    CHECK(current() == &s.autocast);
    CHECK_EQ_INT(start(&s, NULL, 4096, NULL, NULL), AMP_ERROR_BAD_STATE); /* running */
    amp_session_end(&s);
    CHECK(current() == &mine);
    CHECK_EQ_INT(live_blocks, 0);
    amp_autocast_use(NULL);
}

TEST(session_twice, "manual: a session that runs is not started again, neither directly nor below another one or "
                    "another autocast, nor in another thread: no block is lost") {
    static amp_session s, other;
    amp_autocast       mine;
    amp_allocator      allocator;
    size_t             asked = 0;
    int                i;
    allocator.allocate_fn = counting_alloc;
    allocator.release_fn  = counting_free;
    allocator.user        = &asked;
    OK(amp_autocast_init(&mine, AMP_POLICY_DEFAULT, AMP_BF16));
    for (i = 0; i < 4; i++) {
        const size_t room = i % 2 ? 4096 : 0; /* with a cache and without */
        memset(&s, 0xa5, sizeof s);
        memset(&other, i < 2 ? 0 : 0xff, sizeof other);
        OK(start(&s, NULL, room, &allocator, NULL));
        CHECK_EQ_INT(start(&s, NULL, room, &allocator, NULL), AMP_ERROR_BAD_STATE);
        OK(start(&other, NULL, 4096 - room, &allocator, NULL));
        CHECK_EQ_INT(live_blocks, 2);
        CHECK_EQ_INT(start(&s, NULL, room, &allocator, NULL), AMP_ERROR_BAD_STATE);
        CHECK_EQ_INT(start(&other, NULL, room, &allocator, NULL), AMP_ERROR_BAD_STATE);
        CHECK(current() == &other.autocast);
        amp_session_end(&other);
        amp_autocast_use(&mine);
        CHECK_EQ_INT(start(&s, NULL, room, &allocator, NULL), AMP_ERROR_BAD_STATE);
        amp_autocast_use(NULL); /* which is what another thread has */
        CHECK_EQ_INT(start(&s, NULL, room, &allocator, NULL), AMP_ERROR_BAD_STATE);
        CHECK(current() == NULL);
        amp_autocast_use(&s.autocast);
        CHECK_EQ_INT(live_blocks, 1);
        amp_session_end(&s);
        CHECK(current() == NULL);
        CHECK_EQ_INT(live_blocks, 0);
        OK(start(&s, NULL, room, &allocator, NULL)); /* ended, it may start again */
        amp_session_end(&s);
        CHECK(current() == NULL);
    }
    CHECK_EQ_INT(live_blocks, 0);
}

int main(int argc, char **argv) {
    test_begin(argc, argv);
    RUN(cast_once);
    RUN(padding);
    RUN(special_values);
    RUN(changed);
    RUN(same_address);
    RUN(added_twice);
    RUN(two_shapes);
    RUN(sub_blocks);
    RUN(steps);
    RUN(room);
    RUN(limits);
    RUN(bad_arguments);
    RUN(memory);
    RUN(own_backend);
    RUN(captures);
    RUN(after_capture);
    RUN(checked_behind_capture);
    RUN(random_sequences);
    RUN(gemm_bits);
    RUN(gemm_alpha_zero);
    RUN(gemm_cached);
    RUN(gemm_copy);
    RUN(gemm_policy);
    RUN(gemm_without_cache);
    RUN(counted);
    RUN(gemm_where_faster);
    RUN(gemm_tf32);
    RUN(gemm_types);
    RUN(gemm_no_room);
    RUN(enough_room);
    RUN(gemm_batched);
    RUN(gemm_between);
    RUN(gemm_bound);
    RUN(gemm_backends);
    RUN(a_session);
    RUN(a_session_tells);
    RUN(a_session_without_scale);
    RUN(capabilities);
    RUN(refused_at_init);
    RUN(room_again);
    RUN(overlaps);
    RUN(outputs_untouched);
    RUN(checked);
    RUN(session_before);
    RUN(session_twice);
    return test_end();
}
