/* test_errors.c - amp_problem: each error of each function names what was wrong, with its value. (Of numbers in the desc
   of a scaler and an optimizer test_optimizer.c has more; of files test_state.c.) compile.sh asks that every function that
   returns an amp_result is here. */

#define _POSIX_C_SOURCE 200809L /* setenv */
#include "amp.h"
#include "../support/posix.h"
#include "../support/prepare.h"
#include "../support/test.h"

#include <pthread.h>
#include <stdint.h>

#if SIZE_MAX > 0xffffffffu /* SIZE_MAX, and its half and third, as texts have them */
#define MOST  "1.844674e19"
#define HALF  "9.223372e18"
#define THIRD "6.148915e18"
#else
#define MOST  "4294967295"
#define HALF  "2147483647"
#define THIRD "1431655765"
#endif

static float numbers[256], grads[64];

static void *no_memory(void *user, size_t num_bytes) { return num_bytes ? NULL : user; }
static void  no_free(void *user, void *memory) { (void)memory, (void)user; }
static bool  no_write(void *user, const void *data, size_t num_bytes) { return user && !data && num_bytes == 1; }
static bool  no_read(void *user, void *data, size_t num_bytes) { return user && !data && num_bytes == 1; }

TEST(none_yet, "contract: amp_problem is never NULL, and empty in a thread that has had no error") {
    amp_scaler s;
    CHECK(amp_problem() != NULL && amp_problem()[0] == '\0');
    CHECK_EQ_INT(amp_scaler_init(&s, NULL), AMP_OK);
    CHECK(amp_problem()[0] == '\0');
}

TEST(numbers_and_scaler, "law 19: casts, scalers and backends name the argument, its value and its bounds") {
    amp_scaler_desc d = {0};
    amp_scaler      s = {0}, none = {0};
    SAYS(amp_cast(numbers, (amp_dtype)7, numbers, AMP_F32, 4), AMP_ERROR_INVALID_ENUM, "dst_type is 7, which");
    SAYS(amp_cast(numbers, AMP_F32, numbers, (amp_dtype)9, 4), AMP_ERROR_INVALID_ENUM, "src_type is 9, which");
    SAYS(amp_cast(NULL, AMP_F32, numbers, AMP_F32, 4), AMP_ERROR_INVALID_ARGUMENT, "dst is NULL, and n is 4");
    SAYS(amp_cast(numbers, AMP_F32, NULL, AMP_F32, 5), AMP_ERROR_INVALID_ARGUMENT, "src is NULL, and n is 5");
    SAYS(amp_cast(NULL, AMP_F32, NULL, AMP_F32, 0), AMP_OK, NULL);
    SAYS(amp_cast(numbers, AMP_F32, numbers, AMP_F16, 1), AMP_ERROR_OVERLAP, "dst overlaps src");
    SAYS(amp_cast((char *)numbers + 6, AMP_F16, numbers, AMP_F32, 2), AMP_ERROR_OVERLAP, "dst overlaps src");
    SAYS(amp_cast((char *)numbers + 8, AMP_F16, numbers, AMP_F32, 2), AMP_OK, NULL);
    SAYS(amp_cast(numbers, AMP_F16, numbers, AMP_F32, 4), AMP_OK, NULL);
    SAYS(amp_scaler_init(NULL, &d), AMP_ERROR_INVALID_ARGUMENT, "s is NULL");
    d.preset = (amp_preset)77;
    SAYS(amp_scaler_init(&s, &d), AMP_ERROR_INVALID_ENUM, "amp_scaler_desc.preset is 77, which");
    d.preset = AMP_PRESET_DEFAULT, d.growth_interval = -3;
    SAYS(amp_scaler_init(&s, &d), AMP_ERROR_INVALID_CONFIG, "amp_scaler_desc.growth_interval is -3, and must be 1 or more");
    CHECK_EQ_INT(amp_scaler_init(&s, NULL), AMP_OK);
    SAYS(amp_scaler_unscale(NULL, NULL, numbers, AMP_F32, 4), AMP_ERROR_INVALID_ARGUMENT, "s is NULL");
    SAYS(amp_scaler_unscale(&none, NULL, numbers, AMP_F32, 4), AMP_ERROR_NOT_INITIALIZED, "call amp_scaler_init first");
    SAYS(amp_scaler_unscale(&s, NULL, numbers, (amp_dtype)5, 4), AMP_ERROR_INVALID_ENUM, "src_type is 5, which");
    SAYS(amp_scaler_unscale(&s, NULL, NULL, AMP_F32, 6), AMP_ERROR_INVALID_ARGUMENT, "src is NULL, and n is 6");
    SAYS(amp_scaler_unscale(&s, numbers, numbers, AMP_F16, 4), AMP_ERROR_UNSUPPORTED, "dst is src, of fp16");
    SAYS(amp_scaler_unscale(&s, numbers + 1, numbers, AMP_F32, 4), AMP_ERROR_OVERLAP, "dst overlaps src");
    SAYS(amp_scaler_update(NULL), AMP_ERROR_INVALID_ARGUMENT, "s is NULL");
    SAYS(amp_scaler_update(&none), AMP_ERROR_NOT_INITIALIZED, "call amp_scaler_init first");
    SAYS(amp_scaler_update(&s), AMP_ERROR_BAD_STATE, "call amp_scaler_unscale first");
    SAYS(amp_scaler_set_scale(NULL, 1.0f), AMP_ERROR_INVALID_ARGUMENT, "s is NULL");
    SAYS(amp_scaler_set_scale(&none, 1.0f), AMP_ERROR_NOT_INITIALIZED, "call amp_scaler_init first");
    SAYS(amp_scaler_set_scale(&s, -2.5f), AMP_ERROR_INVALID_CONFIG, "scale is -2.5, and must be finite, more than 0");
    SAYS(amp_scaler_set_scale(&s, 1e30f), AMP_ERROR_INVALID_CONFIG, "scale is 1e30, and must be");
    CHECK_EQ_INT(amp_scaler_update(NULL), AMP_ERROR_INVALID_ARGUMENT);
    CHECK(strcmp(amp_problem(), "s is NULL") == 0);
    SAYS(amp_cpu_backend(NULL), AMP_ERROR_INVALID_ARGUMENT, "backend is NULL"); /* what SAYS begins with */
    CHECK(strcmp(amp_problem(), TEST_OLDER) == 0);
}

TEST(products, "law 19: products name the argument as the caller does, its value and its bounds") {
    float *const  a = numbers, *const b = numbers + 64, *const c = numbers + 128;
    amp_gemm_args g = {0}, bad;
    amp_backend   none = {0};
    amp_autocast  ac;
    amp_scope     on = {0};
    g.a = a, g.b = b, g.c = c, g.m = 2, g.n = 3, g.k = 4;
#define PRODUCT(member, value, result, words) \
    do { bad = g, bad.member = value; SAYS(amp_gemm(NULL, &bad), result, words); } while (0)
    SAYS(amp_gemm(NULL, NULL), AMP_ERROR_INVALID_ARGUMENT, "args is NULL");
    SAYS(amp_gemm(&none, &g), AMP_ERROR_INVALID_ARGUMENT, "backend was not made by amp_cuda_backend");
    PRODUCT(a, NULL, AMP_ERROR_INVALID_ARGUMENT, "a is NULL");
    PRODUCT(b, NULL, AMP_ERROR_INVALID_ARGUMENT, "b is NULL");
    PRODUCT(c, NULL, AMP_ERROR_INVALID_ARGUMENT, "c is NULL");
    PRODUCT(a_type, (amp_dtype)3, AMP_ERROR_INVALID_ENUM, "a_type is 3, which");
    PRODUCT(b_type, (amp_dtype)4, AMP_ERROR_INVALID_ENUM, "b_type is 4, which");
    PRODUCT(c_type, (amp_dtype)5, AMP_ERROR_INVALID_ENUM, "c_type is 5, which");
    PRODUCT(compute, (amp_dtype)6, AMP_ERROR_INVALID_ENUM, "compute is 6, which");
    PRODUCT(activation, (amp_activation)8, AMP_ERROR_INVALID_ENUM, "activation is 8, which");
    PRODUCT(lda, 3, AMP_ERROR_INVALID_ARGUMENT, "lda is 3, and must be 4 or more");
    PRODUCT(ldb, 2, AMP_ERROR_INVALID_ARGUMENT, "ldb is 2, and must be 3 or more");
    PRODUCT(ldc, 1, AMP_ERROR_INVALID_ARGUMENT, "ldc is 1, and must be 3 or more");
    PRODUCT(lda, SIZE_MAX / 2, AMP_ERROR_TOO_LARGE, "a is too large: 2 rows");
    PRODUCT(ldc, SIZE_MAX / 2, AMP_ERROR_TOO_LARGE, "c is too large: 2 rows");
    bad = g, bad.bias = b, bad.bias_type = (amp_dtype)9;
    SAYS(amp_gemm(NULL, &bad), AMP_ERROR_INVALID_ENUM, "bias_type is 9, which");
    bad = g, bad.compute = AMP_BF16, bad.b_type = AMP_F16;
    SAYS(amp_gemm(NULL, &bad), AMP_ERROR_MIXED_TYPES, "compute is bf16, and a_type fp32, b_type fp16");
    bad = g, bad.count = 2, bad.stride_a = SIZE_MAX / 3;
    SAYS(amp_gemm(NULL, &bad), AMP_ERROR_TOO_LARGE, "a is too large: 2 rows, 4 apart; stride " THIRD);
    bad = g, bad.count = 2, bad.stride_c = 5;
    SAYS(amp_gemm(NULL, &bad), AMP_ERROR_OVERLAP, "stride_c is 5, with m 2 and ldc 3");
    PRODUCT(a, c, AMP_ERROR_OVERLAP, "c begins at an element of a");
    PRODUCT(b, c, AMP_ERROR_OVERLAP, "c begins at an element of b");
    PRODUCT(bias, c, AMP_ERROR_OVERLAP, "c begins at an element of bias");
    PRODUCT(m, 0, AMP_OK, NULL);
#undef PRODUCT
    SAYS(amp_matmul(c, a, NULL, 2, 3, 4, AMP_F32), AMP_ERROR_INVALID_ARGUMENT, "b is NULL");
    SAYS(amp_matmul(c, a, b, 2, 3, 4, (amp_dtype)7), AMP_ERROR_INVALID_ENUM, "compute is 7, which");
    SAYS(amp_linear(NULL, a, b, NULL, 2, 3, 4, AMP_F32), AMP_ERROR_INVALID_ARGUMENT, "y is NULL");
    SAYS(amp_linear(c, NULL, b, NULL, 2, 3, 4, AMP_F32), AMP_ERROR_INVALID_ARGUMENT, "x is NULL");
    SAYS(amp_linear(c, a, NULL, NULL, 2, 3, 4, AMP_F32), AMP_ERROR_INVALID_ARGUMENT, "w is NULL");
    SAYS(amp_linear(c, c, b, NULL, 2, 3, 4, AMP_F32), AMP_ERROR_OVERLAP, "y begins at an element of x");
    SAYS(amp_linear(c, a, b, c, 2, 3, 4, AMP_F32), AMP_ERROR_OVERLAP, "y begins at an element of bias");
    SAYS(amp_linear(c, a, b, NULL, SIZE_MAX / 2, 3, 4, AMP_F32), AMP_ERROR_TOO_LARGE, "y is too large: " HALF " rows");
    SAYS(amp_linear_backward(c, NULL, NULL, NULL, a, b, 2, 3, 4, 0, AMP_F32), AMP_ERROR_INVALID_ARGUMENT, "dy is NULL");
    SAYS(amp_linear_backward(c, NULL, NULL, a, a, NULL, 2, 3, 4, 0, AMP_F32), AMP_ERROR_INVALID_ARGUMENT, "w is NULL");
    SAYS(amp_linear_backward(NULL, c, NULL, a, NULL, b, 2, 3, 4, 0, AMP_F32), AMP_ERROR_INVALID_ARGUMENT, "x is NULL");
    SAYS(amp_linear_backward(NULL, NULL, c, NULL, a, b, 2, 3, 4, 0, AMP_F32), AMP_ERROR_INVALID_ARGUMENT, "dy is NULL");
    SAYS(amp_linear_backward(NULL, c, NULL, a, b, c, 2, 3, 4, 0, AMP_F32), AMP_ERROR_OVERLAP, "dw overlaps w");
    SAYS(amp_linear_backward(c, c, NULL, a, b, b, 2, 3, 4, 0, AMP_F32), AMP_ERROR_OVERLAP, "dw overlaps dx");
    SAYS(amp_linear_backward(NULL, NULL, a, a, b, b, 2, 3, 4, 0, AMP_F32), AMP_ERROR_OVERLAP, "dbias overlaps dy");
    SAYS(amp_linear_backward(NULL, c, c + 2, a, b, b, 2, 3, 4, 0, AMP_F32), AMP_ERROR_OVERLAP, "dbias overlaps dw");
    SAYS(amp_linear_backward(c, NULL, NULL, a, b, b, 2, 3, 4, 0, (amp_dtype)8), AMP_ERROR_INVALID_ENUM, "compute is 8,");
    CHECK_EQ_INT(amp_autocast_init(&ac, AMP_POLICY_DEFAULT, AMP_F16), AMP_OK); /* what a policy says of a product */
    CHECK_EQ_INT(amp_autocast_push(&ac, &on), AMP_OK);
    CHECK_EQ_INT(amp_autocast_override(&ac, "op:gemm=banned"), AMP_OK);
    if (amp_autocast_use(&ac) == NULL) SAYS(amp_gemm(NULL, &g), AMP_ERROR_BANNED, "GEMM is not safe in 16 bits");
    CHECK_EQ_INT(amp_autocast_override(&ac, "op:gemm=promote"), AMP_OK);
    bad = g, bad.b_type = AMP_BF16;
    SAYS(amp_gemm(NULL, &bad), AMP_ERROR_MIXED_TYPES, "GEMM has an input of bf16, where low is fp16");
    amp_autocast_use(NULL);
}

TEST(policies, "law 19: policies and ops name the word, the enum, the op, the limit") {
    static amp_autocast none;
    amp_dtype    in[2] = {AMP_F32, (amp_dtype)6};
    amp_autocast ac;
    amp_scope    s = {0};
    amp_op       op;
    int          i;
    SAYS(amp_autocast_init(NULL, AMP_POLICY_DEFAULT, AMP_F16), AMP_ERROR_INVALID_ARGUMENT, "ac is NULL");
    SAYS(amp_autocast_init(&ac, (amp_policy)99, AMP_F16), AMP_ERROR_INVALID_ENUM, "policy is 99, which");
    SAYS(amp_autocast_init(&ac, AMP_POLICY_DEFAULT, (amp_dtype)4), AMP_ERROR_INVALID_ENUM, "dtype is 4, which");
    CHECK_EQ_INT(amp_autocast_init(&ac, AMP_POLICY_DEFAULT, AMP_F16), AMP_OK);
    SAYS(amp_autocast_push(&none, &s), AMP_ERROR_NOT_INITIALIZED, "call amp_autocast_init first");
    SAYS(amp_autocast_pop(&none), AMP_ERROR_NOT_INITIALIZED, "call amp_autocast_init first");
    SAYS(amp_autocast_override(&none, "bf16"), AMP_ERROR_NOT_INITIALIZED, "call amp_autocast_init first");
    SAYS(amp_autocast_dump(&none, no_write, NULL), AMP_ERROR_NOT_INITIALIZED, "call amp_autocast_init first");
    SAYS(amp_autocast_push(NULL, &s), AMP_ERROR_INVALID_ARGUMENT, "ac is NULL");
    SAYS(amp_autocast_push(&ac, NULL), AMP_ERROR_INVALID_ARGUMENT, "scope is NULL");
    s.dtype = (amp_dtype)5;
    SAYS(amp_autocast_push(&ac, &s), AMP_ERROR_INVALID_ENUM, "amp_scope.dtype is 5, which");
    s.dtype = AMP_F32, s.mode = (amp_autocast_mode)8;
    SAYS(amp_autocast_push(&ac, &s), AMP_ERROR_INVALID_ENUM, "amp_scope.mode is 8, which");
    SAYS(amp_autocast_pop(NULL), AMP_ERROR_INVALID_ARGUMENT, "ac is NULL");
    SAYS(amp_autocast_pop(&ac), AMP_ERROR_BAD_STATE, "call amp_autocast_push first");
    s.mode = AMP_AUTOCAST_ON;
    for (i = 0; i < AMP_MAX_SCOPES; i++) CHECK_EQ_INT(amp_autocast_push(&ac, &s), AMP_OK);
    SAYS(amp_autocast_push(&ac, &s), AMP_ERROR_TOO_LARGE, "32 scopes are open");
    SAYS(amp_autocast_override(NULL, "bf16"), AMP_ERROR_INVALID_ARGUMENT, "ac is NULL");
    SAYS(amp_autocast_override(&ac, NULL), AMP_ERROR_INVALID_ARGUMENT, "text is NULL");
    SAYS(amp_autocast_override(&ac, "bf16 op:relu=lwo"), AMP_ERROR_PARSE, "text, character 14: not understood: \"lwo\"");
    SAYS(amp_autocast_dump(NULL, no_write, NULL), AMP_ERROR_INVALID_ARGUMENT, "ac is NULL");
    SAYS(amp_autocast_dump(&ac, NULL, NULL), AMP_ERROR_INVALID_ARGUMENT, "write_fn is NULL");
    SAYS(amp_autocast_dump(&ac, no_write, NULL), AMP_ERROR_WRITE, "write_fn returned false");
    SAYS(amp_op_from_string(NULL, &op), AMP_ERROR_INVALID_ARGUMENT, "name is NULL");
    SAYS(amp_op_from_string("relu", NULL), AMP_ERROR_INVALID_ARGUMENT, "op is NULL");
    SAYS(amp_op_from_string("softmaxx", &op), AMP_ERROR_INVALID_ARGUMENT, "\"softmaxx\" is no op");
    SAYS(amp_autocast_dtype(&ac, (amp_op)999, in, 1, NULL, NULL), AMP_ERROR_INVALID_ENUM, "op is 999, which");
    SAYS(amp_autocast_dtype(&ac, AMP_OP_ADD, in, -1, NULL, NULL), AMP_ERROR_INVALID_ARGUMENT, "count is -1, and must be 0");
    SAYS(amp_autocast_dtype(&ac, AMP_OP_ADD, NULL, 1, NULL, NULL), AMP_ERROR_INVALID_ARGUMENT, "inputs is NULL");
    SAYS(amp_autocast_dtype(&ac, AMP_OP_ADD, in, 2, NULL, NULL), AMP_ERROR_INVALID_ENUM, "one of inputs is 6, which");
    in[1] = AMP_BF16;
    SAYS(amp_autocast_dtype(&ac, AMP_OP_ADD, in, 2, NULL, NULL), AMP_ERROR_MIXED_TYPES,
         "ADD has an input of bf16, where low is fp16");
    SAYS(amp_autocast_dtype(&ac, AMP_OP_BINARY_CROSS_ENTROPY, in, 1, NULL, NULL), AMP_ERROR_BANNED,
         "BINARY_CROSS_ENTROPY is not safe in 16 bits");
}

TEST(machines, "law 19: capability, tiers and the environment name what is not there") {
    amp_capability     c;
    amp_optimizer_desc d = {0};
    SAYS(amp_capability_of(0, 0, NULL), AMP_ERROR_INVALID_ARGUMENT, "capability is NULL");
    SAYS(amp_capability_of(8, -6, &c), AMP_ERROR_INVALID_ARGUMENT, "version 8.-6: neither may be negative");
    SAYS(amp_cpu_force_tier("avx9"), AMP_ERROR_UNSUPPORTED, "tier \"avx9\" is not there: the best is \"");
    SAYS(amp_optimizer_desc_from_env(NULL), AMP_ERROR_INVALID_ARGUMENT, "desc is NULL");
    setenv("AMP_DTYPE", "fp8", 1);
    SAYS(amp_optimizer_desc_from_env(&d), AMP_ERROR_INVALID_CONFIG, "AMP_DTYPE must be fp32, fp16 or bf16, not \"fp8\"");
    unsetenv("AMP_DTYPE");
}

TEST(sessions, "law 19: sessions name the member, the missing call, the weight") {
    static amp_session session, inner;
    static float       more[AMP_MAX_CACHED + 1], w[96 * 96], y[2 * 96];
    amp_session_desc   d = {0};
    amp_backend        none = {0};
    amp_gemm_args      g = {0};
    int                i;
    SAYS(amp_session_start(NULL, &d), AMP_ERROR_INVALID_ARGUMENT, "session is NULL");
    SAYS(amp_session_add(NULL, w, 4), AMP_ERROR_INVALID_ARGUMENT, "session is NULL");
    SAYS(amp_session_add(&session, w, 4), AMP_ERROR_NOT_INITIALIZED, "call amp_session_start first");
    SAYS(amp_session_changed(NULL, w), AMP_ERROR_INVALID_ARGUMENT, "session is NULL");
    SAYS(amp_session_changed(&session, w), AMP_ERROR_NOT_INITIALIZED, "call amp_session_start first");
    SAYS(amp_session_check(NULL), AMP_ERROR_INVALID_ARGUMENT, "session is NULL");
    SAYS(amp_session_check(&session), AMP_ERROR_NOT_INITIALIZED, "call amp_session_start first");
    d.backend = &none;
    SAYS(amp_session_start(&session, &d), AMP_ERROR_INVALID_ARGUMENT, "amp_session_desc.backend was not made by");
    d.backend = NULL, d.num_bytes = SIZE_MAX;
    SAYS(amp_session_start(&session, &d), AMP_ERROR_TOO_LARGE, "amp_session_desc.num_bytes is " MOST ": too large");
    d.num_bytes = 1 << 16, d.allocator.allocate_fn = no_memory;
    SAYS(amp_session_start(&session, &d), AMP_ERROR_INVALID_ARGUMENT, "amp_session_desc.allocator needs both functions");
    d.allocator.release_fn = no_free;
    SAYS(amp_session_start(&session, &d), AMP_ERROR_OUT_OF_MEMORY, "allocator returned NULL");
    memset(&d.allocator, 0, sizeof d.allocator);
    d.dtype = (amp_dtype)3;
    SAYS(amp_session_start(&session, &d), AMP_ERROR_INVALID_ENUM, "amp_session_desc.dtype is 3, which");
    d.dtype = AMP_F16, d.policy = "tf32 bf16";
    SAYS(amp_session_start(&session, &d), AMP_ERROR_MIXED_TYPES,
         "amp_session_desc.policy, character 6: not of the session's dtype: \"bf16\"");
    d.policy = "tf32 bf61";
    SAYS(amp_session_start(&session, &d), AMP_ERROR_PARSE, "amp_session_desc.policy, character 6: not understood: \"bf61\"");
    d.policy = NULL, d.scaler.min_scale = -1.0f;
    SAYS(amp_session_start(&session, &d), AMP_ERROR_INVALID_CONFIG, "amp_scaler_desc.min_scale is -1, and must be finite");
    d.scaler.min_scale = 0.0f;
    SAYS(amp_session_start(&session, &d), AMP_OK, NULL);
    SAYS(amp_session_start(&session, &d), AMP_ERROR_BAD_STATE, "call amp_session_end first");
    SAYS(amp_session_add(&session, NULL, 4), AMP_ERROR_INVALID_ARGUMENT, "weight is NULL");
    SAYS(amp_session_add(&session, w, 96 * 96), AMP_OK, NULL);
    g.a = y, g.b = w, g.c = numbers, g.m = 1, g.n = g.k = 96;
    SAYS(amp_gemm(NULL, &g), AMP_OK, NULL);
    w[5] += 1.0f;
    SAYS(amp_session_changed(&session, more), AMP_ERROR_INVALID_ARGUMENT, "weight is of no array that amp_session_add was");
    SAYS(amp_session_check(&session), AMP_ERROR_STALE, "weight 0 of those added, of 9216 elements, was written to: call amp_");
    for (i = 1; i < AMP_MAX_CACHED; i++) CHECK_EQ_INT(amp_session_add(&session, &more[i], 1), AMP_OK);
    SAYS(amp_session_add(&session, more, 1), AMP_ERROR_TOO_LARGE, "256 weights are added");
    SAYS(amp_session_start(&inner, NULL), AMP_OK, NULL);
    SAYS(amp_session_end(&session), AMP_ERROR_BAD_STATE, "another session was started after this one: end that first");
    CHECK(session.scaler != NULL);
    SAYS(amp_session_end(&inner), AMP_OK, NULL);
    SAYS(amp_session_end(&session), AMP_OK, NULL);
    SAYS(amp_session_end(NULL), AMP_OK, NULL);
}

static amp_result reduce_result;
static amp_result reduce(void *user, double *sums, size_t num_sums, uint32_t *maxima, size_t num_maxima) {
    (void)user, (void)sums, (void)num_sums, (void)maxima, (void)num_maxima;
    (void)amp_capability_of(0, 0, NULL); /* an error of its own */
    return reduce_result;
}

/* Optimizers with one tensor, "w". */
static amp_result start(amp_optimizer *opt, const amp_optimizer_desc *d, const amp_tensor *t) {
    const amp_result result = amp_optimizer_init(opt, d);
    if (result != AMP_OK) return result;
    CHECK_EQ_INT(amp_optimizer_add(opt, t), AMP_OK);
    return prepare_scaled(opt);
}

static amp_tensor tensor(void) {
    amp_tensor t = {0};
    t.name = "w", t.n = 4, t.weight = numbers, t.grad = grads;
    return t;
}

TEST(tensors, "law 19: a tensor that add refuses is named, with its member and value; so is one that a call is about; prepare "
              "repeats the text of the first add that was refused, whatever was told since") {
    uint32_t           row = 0;
    amp_rows           rows = {2, 1, &row, &row};
    const amp_storage  unknown = {(amp_storage_format)9, AMP_FORMAT_F32}, odd = {AMP_FORMAT_8BIT, AMP_FORMAT_F32};
    const amp_storage  split = {AMP_FORMAT_SPLIT, AMP_FORMAT_F32};
    amp_optimizer_desc d = {0};
    amp_optimizer      opt = {0};
    amp_tensor         t, part[2];
    float             *weights[1] = {numbers};
    void              *none[1] = {grads};
    char               text[256];
    static char        long_name[400];
    d.kind = AMP_KIND_ADAMW;
    SAYS(amp_optimizer_init(NULL, &d), AMP_ERROR_INVALID_ARGUMENT, "opt is NULL");
    SAYS(amp_optimizer_add(NULL, &t), AMP_ERROR_INVALID_ARGUMENT, "opt is NULL");
    SAYS(amp_optimizer_add(&opt, &t), AMP_ERROR_NOT_INITIALIZED, "call amp_optimizer_init first");
    SAYS(amp_optimizer_prepare(&opt), AMP_ERROR_NOT_INITIALIZED, "call amp_optimizer_init first");
    CHECK_EQ_INT(amp_optimizer_init(&opt, &d), AMP_OK);
    CHECK_EQ_INT((t = tensor(), amp_optimizer_add(&opt, &t)), AMP_OK);
#define REFUSED(change, result, words) \
    do { t = tensor(), change; SAYS(amp_optimizer_add(&opt, &t), result, "tensor 1 (w): " words); } while (0)
    REFUSED(t.grad_type = (amp_dtype)3, AMP_ERROR_INVALID_ENUM, "grad_type is 3, which");
    strcpy(text, amp_problem());
    memset(long_name, 'L', sizeof long_name - 1);
    t = tensor(), t.name = long_name, t.grad_type = (amp_dtype)3;
    SAYS(amp_optimizer_add(&opt, &t), AMP_ERROR_INVALID_ENUM, "LL...): grad_type is 3, which");
    REFUSED((t.model = grads, t.model_type = (amp_dtype)4), AMP_ERROR_INVALID_ENUM, "model_type is 4, which");
    REFUSED((t.model = numbers, t.model_type = AMP_F16), AMP_ERROR_INVALID_CONFIG, "its model is its weight");
    REFUSED(t.grad = AMP_NO_GRAD, AMP_ERROR_INVALID_ARGUMENT, "AMP_NO_GRAD is for rebind");
    REFUSED(t.weight = NULL, AMP_ERROR_INVALID_ARGUMENT, "it has neither a weight nor a model");
    REFUSED((t.keep_fp32 = 1, t.model = grads, t.model_type = AMP_F16), AMP_ERROR_INVALID_CONFIG, "keep_fp32 is set");
    REFUSED(t.n = SIZE_MAX / 2, AMP_ERROR_TOO_LARGE, "n is " HALF);
    REFUSED(t.first = 5, AMP_ERROR_INVALID_CONFIG, "first is 5, and must be a multiple of 16384");
    REFUSED(t.storage = &unknown, AMP_ERROR_INVALID_ENUM, "amp_storage.master is 9, which");
    REFUSED(t.storage = &odd, AMP_ERROR_INVALID_CONFIG, "amp_storage is 8bit+fp32: take fp32, fp32+bf16");
    REFUSED(t.storage = &split, AMP_ERROR_UNSUPPORTED, "its masters are stored beside a model of AMP_BF16");
    REFUSED((t.rows = &rows, t.own = 1), AMP_ERROR_UNSUPPORTED, "own is for a tensor without rows");
    REFUSED((t.rows = &rows, rows.row_length = 3), AMP_ERROR_INVALID_CONFIG, "row_length is 3, and must be 1 or more, and divide n");
    REFUSED((t.rows = &rows, rows.row_length = 2, rows.max_rows = 0), AMP_ERROR_INVALID_CONFIG, "max_rows is 0, and must be 1");
    REFUSED((t.rows = &rows, rows.max_rows = 1, rows.rows = NULL), AMP_ERROR_INVALID_ARGUMENT, "rows is NULL");
    REFUSED((t.rows = &rows, rows.rows = &row, rows.num_rows = NULL), AMP_ERROR_INVALID_ARGUMENT, "num_rows is NULL");
    REFUSED((t.rows = &rows, rows.num_rows = &row, rows.max_rows = (size_t)1 << 31), AMP_ERROR_TOO_LARGE,
            "row_length is 2, with n 4 and max_rows 2147483648: too large");
#undef REFUSED
    SAYS(amp_optimizer_add(&opt, NULL), AMP_ERROR_INVALID_ARGUMENT, "tensor 1: tensor is NULL");
    t = tensor();
    SAYS(amp_optimizer_add_flat(NULL, &t, &t, 1), AMP_ERROR_INVALID_ARGUMENT, "opt is NULL");
    SAYS(amp_optimizer_add_flat(&opt, NULL, &t, 1), AMP_ERROR_INVALID_ARGUMENT, "tensor 1: whole is NULL");
    SAYS(amp_optimizer_add_flat(&opt, &t, NULL, 1), AMP_ERROR_INVALID_ARGUMENT, "tensor 1: tensors is NULL");
    SAYS(amp_optimizer_add_flat(&opt, &t, &t, SIZE_MAX), AMP_ERROR_TOO_LARGE, "tensor 1: count is " MOST);
    SAYS(amp_optimizer_add_flat(&opt, &t, &t, 0), AMP_ERROR_INVALID_ARGUMENT, "the tensors' n do not add up to whole's 4");
    part[0] = part[1] = t, part[0].n = part[1].n = 2, part[1].first = 5; /* the first one does not stay */
    SAYS(amp_optimizer_add_flat(&opt, &t, part, 2), AMP_ERROR_INVALID_CONFIG, "tensor 2 (w): first is 5, and must be");
    SAYS(amp_optimizer_add_flat(&opt, &t, &t, 0), AMP_ERROR_INVALID_ARGUMENT, "tensor 1: the tensors' n");
    t.rows = &rows;
    SAYS(amp_optimizer_add_flat(&opt, &t, &t, 1), AMP_ERROR_UNSUPPORTED, "tensor 1 (w): rows are not for amp_optimizer_add_flat");
    SAYS(amp_optimizer_prepare(&opt), AMP_ERROR_INVALID_ENUM, text); /* of the first that was refused */
    CHECK(strcmp(amp_problem(), text) == 0);
    SAYS(amp_optimizer_prepare(&opt), AMP_ERROR_INVALID_ENUM, text);
    amp_optimizer_free(&opt);
    t = tensor();
    CHECK_EQ_INT(amp_optimizer_init(&opt, &d), AMP_OK); /* nor does the next one know of it */
    CHECK_EQ_INT(amp_optimizer_add(&opt, &t), AMP_OK);
    SAYS(amp_optimizer_rebind(&opt, 0, numbers, NULL), AMP_ERROR_NOT_PREPARED, "call amp_optimizer_prepare");
    SAYS(amp_optimizer_prepare(&opt), AMP_OK, NULL);
    SAYS(amp_optimizer_prepare(&opt), AMP_ERROR_PREPARED, "before amp_optimizer_prepare");
    SAYS(amp_optimizer_rebind(&opt, 7, numbers, NULL), AMP_ERROR_INVALID_ARGUMENT, "there is no tensor 7: there are 1");
    SAYS(amp_optimizer_rebind_all(NULL, weights, none), AMP_ERROR_INVALID_ARGUMENT, "opt is NULL");
    SAYS(amp_optimizer_refresh(NULL), AMP_ERROR_INVALID_ARGUMENT, "opt is NULL");
    amp_optimizer_free(&opt);
    d.allocator.allocate_fn = no_memory, d.allocator.release_fn = no_free;
    CHECK_EQ_INT(amp_optimizer_init(&opt, &d), AMP_OK);
    SAYS(amp_optimizer_prepare(&opt), AMP_ERROR_OUT_OF_MEMORY, "the allocator returned NULL");
    amp_optimizer_free(&opt);
}

TEST(steps, "law 19: a step tells the missing call, the rate, the tensor; end_step repeats what begin_step has told, whatever was "
            "told since; reduce_fn's own errors are not taken for the step's") {
    amp_optimizer_desc d = {0};
    amp_optimizer      opt, none = {0};
    amp_tensor         t = tensor();
    amp_status         status;
    amp_grad_stats     stats;
    SAYS(amp_optimizer_check(NULL), AMP_ERROR_INVALID_ARGUMENT, "opt is NULL");
    SAYS(amp_optimizer_unscale(&none), AMP_ERROR_NOT_INITIALIZED, "call amp_optimizer_init first");
    SAYS(amp_optimizer_end_step(NULL), AMP_ERROR_INVALID_ARGUMENT, "opt is NULL");
    SAYS(amp_optimizer_end_step(&none), AMP_ERROR_NOT_INITIALIZED, "call amp_optimizer_init first");
    CHECK(!amp_optimizer_begin_step(NULL) && strcmp(amp_problem(), "opt is NULL") == 0);
    CHECK_EQ_INT(start(&opt, &d, &t), AMP_OK);
    SAYS(amp_optimizer_step(&opt, 0.1f), AMP_ERROR_UNSUPPORTED, "desc.kind is AMP_KIND_OWN: call amp_optimizer_begin_step");
    SAYS(amp_optimizer_end_step(&opt), AMP_ERROR_STEP_NOT_OPEN, "call amp_optimizer_begin_step");
    CHECK(amp_optimizer_begin_step(&opt));
    CHECK(!amp_optimizer_begin_step(&opt)); /* and what it has told is told again */
    SAYS(amp_optimizer_end_step(&opt), AMP_ERROR_STEP_OPEN, "call amp_optimizer_end_step after every begin_step");
    SAYS(amp_optimizer_status(&opt, NULL), AMP_ERROR_INVALID_ARGUMENT, "status is NULL");
    SAYS(amp_optimizer_status(&none, &status), AMP_ERROR_NOT_INITIALIZED, "call amp_optimizer_init first");
    SAYS(amp_optimizer_stats(&opt, 3, &stats), AMP_ERROR_INVALID_ARGUMENT, "there is no tensor 3: there are 1");
    amp_optimizer_free(&opt);
    d.kind = AMP_KIND_SGD;
    CHECK_EQ_INT(start(&opt, &d, &t), AMP_OK);
    CHECK(!amp_optimizer_begin_step(&opt));
    SAYS(amp_optimizer_end_step(&opt), AMP_ERROR_UNSUPPORTED, "desc.kind is AMP_KIND_SGD: call amp_optimizer_step");
    SAYS(amp_optimizer_end_step(&opt), AMP_ERROR_STEP_NOT_OPEN, "call amp_optimizer_begin_step"); /* once */
    SAYS(amp_optimizer_step_graph(&opt), AMP_ERROR_BAD_STATE, "call amp_optimizer_set_lr");
    SAYS(amp_optimizer_step(&opt, -0.5f), AMP_ERROR_INVALID_CONFIG, "lr is -0.5, and must be 0 or more");
    SAYS(amp_optimizer_set_lr(&opt, -1.5f), AMP_ERROR_INVALID_CONFIG, "lr is -1.5, and must be 0 or more");
    SAYS(amp_optimizer_set_steps(&opt, UINT64_MAX, 0), AMP_ERROR_INVALID_CONFIG, "steps is 18446744073709551615, and must be");
    amp_optimizer_free(&opt);
    t.lr_scale = 1e30f;
    CHECK_EQ_INT(start(&opt, &d, &t), AMP_OK);
    SAYS(amp_optimizer_step(&opt, 1e20f), AMP_ERROR_INVALID_CONFIG, "tensor 0 (w): with an lr of 1e20, lr * lr_scale");
    amp_optimizer_free(&opt);
    d.reduce_fn = reduce, d.kind = AMP_KIND_OWN;
    CHECK_EQ_INT(start(&opt, &d, (t = tensor(), &t)), AMP_OK);
    reduce_result = AMP_ERROR_CUBLAS;
    SAYS(amp_optimizer_check(&opt), AMP_ERROR_CUBLAS, "desc.reduce_fn returned: a cuBLAS call failed");
    CHECK(!amp_optimizer_begin_step(&opt));
    SAYS(amp_optimizer_end_step(&opt), AMP_ERROR_CUBLAS, "desc.reduce_fn returned: a cuBLAS call failed");
    reduce_result = AMP_OK;
    amp_optimizer_free(&opt);
    d.kind = AMP_KIND_SGD;
    CHECK_EQ_INT(start(&opt, &d, &t), AMP_OK);
    SAYS(amp_optimizer_step(&opt, -0.25f), AMP_ERROR_INVALID_CONFIG, "lr is -0.25, and must be 0 or more");
    amp_optimizer_free(&opt);
}

TEST(states, "law 19: moments, reports and files name the tensor, the argument, the path's fault") {
    static const char  directory[] = "test_errors_directory";
    static char        path[5000];
    amp_report_desc    watch = {0};
    amp_optimizer_desc d = {0};
    amp_optimizer      opt;
    amp_tensor         t = tensor();
    amp_report         report;
    amp_tensor_report  of_one;
    amp_iteration      last[2];
    size_t             count = 2;
    float              m[4] = {1, 2, 3, 4};
    d.kind = AMP_KIND_ADAMW;
    CHECK_EQ_INT(start(&opt, &d, &t), AMP_OK);
    SAYS(amp_optimizer_moments(&opt, 5, m, NULL), AMP_ERROR_INVALID_ARGUMENT, "there is no tensor 5: there are 1");
    SAYS(amp_optimizer_set_moments(&opt, 0, m, NULL), AMP_ERROR_INVALID_ARGUMENT, "tensor 0 (w): second is NULL");
    SAYS(amp_optimizer_set_moments(&opt, 0, m, m), AMP_ERROR_INVALID_CONFIG, "tensor 0 (w): these moments are of no step");
    SAYS(amp_optimizer_report(&opt, &report), AMP_ERROR_UNSUPPORTED, "set amp_optimizer_desc.report");
    SAYS(amp_optimizer_report_tensor(&opt, 0, &of_one), AMP_ERROR_UNSUPPORTED, "set amp_optimizer_desc.report");
    SAYS(amp_optimizer_history(&opt, last, &count), AMP_ERROR_UNSUPPORTED, "set amp_optimizer_desc.report");
    SAYS(amp_optimizer_save(&opt, NULL, NULL), AMP_ERROR_INVALID_ARGUMENT, "write_fn is NULL");
    SAYS(amp_optimizer_save(&opt, no_write, NULL), AMP_ERROR_WRITE, "could not be written");
    SAYS(amp_optimizer_load(&opt, NULL, NULL), AMP_ERROR_INVALID_ARGUMENT, "read_fn is NULL");
    SAYS(amp_optimizer_load(&opt, no_read, NULL), AMP_ERROR_READ, "could not be read");
    SAYS(amp_optimizer_save_file(&opt, NULL), AMP_ERROR_INVALID_ARGUMENT, "path is NULL");
    SAYS(amp_optimizer_load_file(&opt, NULL), AMP_ERROR_INVALID_ARGUMENT, "path is NULL");
    SAYS(amp_optimizer_load_file(&opt, "no_such_directory/f"), AMP_ERROR_NOT_FOUND, "there is no such file");
    SAYS(amp_optimizer_save_file(&opt, "no_such_directory/f"), AMP_ERROR_WRITE, "could not be written");
    memset(path, 'x', sizeof path - 1);
    SAYS(amp_optimizer_save_file(&opt, path), AMP_ERROR_TOO_LARGE, "path has 4999 bytes, and must have less than 4080");
    if (mkdir(directory, 0700) == 0) {
        SAYS(amp_optimizer_save_file(&opt, directory), HAVE_POSIX ? AMP_ERROR_UNSUPPORTED : AMP_ERROR_WRITE,
             HAVE_POSIX ? "path leads to something that is not a file" : "could not be written");
        rmdir(directory);
    }
    amp_optimizer_free(&opt);
    watch.every = -2, d.report = &watch;
    SAYS(amp_optimizer_init(&opt, &d), AMP_ERROR_INVALID_CONFIG, "amp_report_desc.every is -2, and must be 0 or more");
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t  changed = PTHREAD_COND_INITIALIZER;
static int             turn;
static char            seen[2][3][80];

/* The two take turns: each has an error, then looks when the other has had one. */
static void *one_of_two(void *number) {
    const int me = number ? 1 : 0;
    int       round;
    for (round = 0; round < 3; round++) {
        pthread_mutex_lock(&lock);
        while (turn % 2 != me) pthread_cond_wait(&changed, &lock);
        snprintf(seen[me][round], sizeof seen[me][round], "%s", amp_problem());
        (void)amp_cast(NULL, AMP_F32, NULL, AMP_F32, (size_t)(10 * round + me + 1));
        turn++;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

TEST(two_threads, "contract: each thread has the text of its own last error, of which the first is empty") {
    pthread_t other;
    int       me, round;
    char      text[80];
    if (amp_autocast_use(NULL) != NULL) SKIP("an autocast is in use");
    turn = 0;
    memset(seen, 'x', sizeof seen);
    CHECK_EQ_INT(amp_cpu_backend(NULL), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(pthread_create(&other, NULL, one_of_two, &turn), 0);
    (void)one_of_two(NULL);
    pthread_join(other, NULL);
    for (me = 0; me < 2; me++)
        for (round = 0; round < 3; round++) {
            snprintf(text, sizeof text, "src is NULL, and n is %d", 10 * (round - 1) + me + 1);
            if (!round) strcpy(text, me ? "" : "backend is NULL");
            CHECK(strcmp(seen[me][round], text) == 0);
        }
}

int main(int argc, char **argv) {
    test_begin(argc, argv);
    RUN(none_yet);
    RUN(numbers_and_scaler);
    RUN(products);
    RUN(policies);
    RUN(machines);
    RUN(sessions);
    RUN(tensors);
    RUN(steps);
    RUN(states);
    RUN(two_threads);
    return test_end();
}
