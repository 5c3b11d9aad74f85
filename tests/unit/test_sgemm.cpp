/* test_sgemm.cpp - amp_sgemm and amp_sgemm_strided_batched in place of cuBLAS's: in a scope they
   are the product of operands rounded to halves, elsewhere exactly the call that they replace.

   Runs in the emulator, whose cuBLAS notes every call and sums in the order of k, in fp32. */

#include <cublas_v2.h>
#include <cuda_runtime.h>

#define AMP_CUBLAS
#define AMP_IMPLEMENTATION
#include "amp.h"
#include "../support/gemm_args.h"
#include "../support/random.h"
#include "../support/test.h"

#include <algorithm>
#include <math.h>
#include <vector>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
#define OK(call) CHECK_EQ_INT((call), AMP_OK)
#define CUDA(call) CHECK_EQ_INT((call), cudaSuccess)
#define BLAS(call) CHECK_EQ_INT((call), CUBLAS_STATUS_SUCCESS)

static int below(int n) { return (int)random_below((size_t)n); }

enum { ELEMENTS = 1 << 15, WORKSPACE = 1 << 16 };

/* A stream, a handle with a workspace, three arrays on both sides and a session. */
static struct world {
    cudaStream_t       stream;
    cublasHandle_t     blas;
    amp_backend        gpu;
    amp_session        session;
    float             *a, *b, *c, *scalars;
    void              *workspace;
    std::vector<float> host_a, host_b, host_c;
} w;

static float *device_floats(size_t n) {
    void *p = NULL;
    CUDA(cudaMalloc(&p, n * sizeof(float)));
    return (float *)p;
}

static void upload(float *device, const float *host, size_t n) {
    CUDA(cudaMemcpyAsync(device, host, n * sizeof *host, cudaMemcpyHostToDevice, w.stream));
    CUDA(cudaStreamSynchronize(w.stream));
}

static std::vector<float> download(const float *device, size_t n) {
    std::vector<float> host(n);
    CUDA(cudaStreamSynchronize(w.stream));
    CUDA(cudaMemcpy(host.data(), device, n * sizeof(float), cudaMemcpyDeviceToHost));
    return host;
}

static void randomize(float *device, std::vector<float> &host) {
    host.resize(ELEMENTS);
    for (float &x : host) x = random_value();
    upload(device, host.data(), ELEMENTS);
}

static void enter(amp_autocast_mode mode, amp_dtype type, const char *layer) {
    amp_scope scope = {};
    scope.mode      = mode;
    scope.dtype     = type;
    scope.layer     = layer;
    OK(amp_autocast_push(&w.session.autocast, &scope));
}

static void end(void) {
    amp_autocast_use(NULL);
    emu_fail_at = 0;
    if (!w.stream) return;
    CUDA(cudaStreamSynchronize(w.stream));
    amp_session_end(&w.session);
    for (void *p : {(void *)w.a, (void *)w.b, (void *)w.c, (void *)w.scalars, w.workspace})
        CUDA(cudaFree(p));
    BLAS(cublasDestroy(w.blas));
    CUDA(cudaStreamDestroy(w.stream));
    w.stream = NULL;
}

static amp_result start(amp_session *session, const amp_backend *backend, size_t room) {
    amp_session_desc desc = {};
    desc.backend          = backend;
    desc.num_bytes        = room;
    return amp_session_start(session, &desc);
}

/* The world, and a session whose scope, which is current, says type. */
static void begin(size_t room, amp_dtype type) {
    end();
    emu_reset();
    random_state = 1;
    CUDA(cudaStreamCreateWithFlags(&w.stream, cudaStreamNonBlocking));
    BLAS(cublasCreate(&w.blas));
    BLAS(cublasSetStream(w.blas, w.stream));
    w.workspace = device_floats(WORKSPACE / 4);
    BLAS(cublasSetWorkspace(w.blas, w.workspace, WORKSPACE));
    w.a       = device_floats(ELEMENTS);
    w.b       = device_floats(ELEMENTS);
    w.c       = device_floats(ELEMENTS);
    w.scalars = device_floats(2);
    OK(amp_cuda_backend(&w.gpu, w.stream, NULL));
    OK(start(&w.session, &w.gpu, room));
    OK(amp_autocast_override(&w.session.autocast, type == AMP_F16 ? "fp16" : "bf16"));
    randomize(w.a, w.host_a);
    randomize(w.b, w.host_b);
    randomize(w.c, w.host_c);
}

enum { ROOM = 1 << 20 };

/* A call; batch 0 is amp_sgemm, else its strided sister. */
struct call {
    cublasOperation_t ta, tb;
    int               m, n, k, lda, ldb, ldc, batch;
    long long         sa, sb, sc;
    float             alpha, beta;
    const float      *a, *b;
};

static call make_call(int trans, int m, int n, int k, int extra, int batch) {
    call c  = {};
    c.ta    = trans % 2 ? CUBLAS_OP_T : CUBLAS_OP_N;
    c.tb    = trans / 2 == 2 ? CUBLAS_OP_C : trans / 2 ? CUBLAS_OP_T : CUBLAS_OP_N;
    c.m     = m;
    c.n     = n;
    c.k     = k;
    c.lda   = (trans % 2 ? k : m) + extra;
    c.ldb   = (trans / 2 ? n : k) + extra;
    c.ldc   = m + extra;
    c.batch = batch;
    c.sa    = c.lda * (trans % 2 ? m : k) + extra;
    c.sb    = c.ldb * (trans / 2 ? k : n) + extra;
    c.sc    = c.ldc * n + extra;
    c.alpha = 1.0f;
    c.a     = w.a;
    c.b     = w.b;
    return c;
}

static cublasStatus_t run(const call &c, bool original = false, const float *scalars = NULL) {
    const float *alpha = scalars ? scalars : &c.alpha, *beta = scalars ? scalars + 1 : &c.beta;
    if (c.batch == 0)
        return (original ? cublasSgemm : amp_sgemm)(w.blas, c.ta, c.tb, c.m, c.n, c.k, alpha, c.a,
                                                   c.lda, c.b, c.ldb, beta, w.c, c.ldc);
    return (original ? cublasSgemmStridedBatched : amp_sgemm_strided_batched)(
        w.blas, c.ta, c.tb, c.m, c.n, c.k, alpha, c.a, c.lda, c.sa, c.b, c.ldb, c.sb, beta, w.c,
        c.ldc, c.sc, c.batch);
}

static double rounded(float x, amp_dtype type) {
    uint16_t half;
    if (type == AMP_F32) return (double)x;
    amp_cast(&half, type, &x, AMP_F32, 1);
    amp_cast(&x, AMP_F32, &half, type, 1);
    return (double)x;
}

/* C must be the product in double of operands rounded to type: off by k products and k sums in
   fp32, e = 2^-24 each, and alpha, beta, the last sum; what is not C's must not have changed. */
static void check_product(int line, const call &c, amp_dtype type, const std::vector<float> &a,
                          const std::vector<float> &b, const std::vector<float> &before) {
    const double       e   = 5.9604644775390625e-8;
    std::vector<float> got = download(w.c, ELEMENTS);
    std::vector<char>  is_c(ELEMENTS);
    const size_t       a_at = (size_t)(c.a - w.a), b_at = (size_t)(c.b - w.b);
    int                wrong = 0, count = c.batch ? c.batch : 1;
    for (int g = 0; g < count; g++)
        for (int j = 0; j < c.n; j++)
            for (int i = 0; i < c.m; i++) {
                const size_t at  = (size_t)(g * c.sc + j * c.ldc + i);
                double       sum = 0.0, size = 0.0;
                for (int l = 0; l < c.k; l++) {
                    const int    ia = c.ta == CUBLAS_OP_N ? l * c.lda + i : i * c.lda + l;
                    const int    ib = c.tb == CUBLAS_OP_N ? j * c.ldb + l : l * c.ldb + j;
                    const double ab = rounded(a[a_at + (size_t)(g * c.sa + ia)], type) *
                                      rounded(b[b_at + (size_t)(g * c.sb + ib)], type);
                    sum += ab;
                    size += fabs(ab);
                }
                double wanted = (double)c.alpha * sum, bound = (c.k + 3) * e * fabs(c.alpha) * size;
                if (c.beta != 0.0f) {
                    wanted += (double)c.beta * before[at];
                    bound += 3 * e * fabs((double)c.beta * before[at]);
                }
                bound = bound * 1.001 + e * fabs(wanted) + 1e-44;
                wrong += !(fabs(got[at] - wanted) <= bound);
                is_c[at] = 1;
            }
    for (size_t i = 0; i < ELEMENTS; i++)
        wrong += !is_c[i] && memcmp(&got[i], &before[i], sizeof got[i]) != 0;
    if (wrong == 0) return;
    char what[128];
    snprintf(what, sizeof what, "%d wrong: %dx%dx%d, ops %d %d, ld %d %d %d, batch %d", wrong, c.m,
             c.n, c.k, (int)c.ta, (int)c.tb, c.lda, c.ldb, c.ldc, c.batch);
    test_fail(__FILE__, line, "C = alpha op(A) op(B) + beta C", what);
}

static bool ours(const void *p) { /* in the session's memory */
    const char *at = (const char *)p;
    return at >= w.session.memory && at < w.session.memory + w.session.size;
}

/* The cuBLAS call that was noted last must be what the type asks for, and nothing of the handle
   may have been touched. AMP_F32: the very call that was replaced. */
static void check_log(int line, const call &c, amp_dtype type, bool tf32 = false) {
    const emu_gemm_call  g    = *emu_gemm_call_at(emu_gemm_calls() - 1);
    const bool           half = type != AMP_F32;
    const cudaDataType_t t    = type == AMP_F16    ? CUDA_R_16F
                                : type == AMP_BF16 ? CUDA_R_16BF
                                                   : CUDA_R_32F;
    const char *const name = half || tf32 ? c.batch ? "cublasGemmStridedBatchedEx" : "cublasGemmEx"
                             : c.batch    ? "cublasSgemmStridedBatched"
                                          : "cublasSgemm";
    cudaStream_t        stream = NULL;
    cublasMath_t        math   = CUBLAS_DEFAULT_MATH;
    cublasPointerMode_t mode   = CUBLAS_POINTER_MODE_HOST;
    bool ok = strcmp(g.name, name) == 0 && g.transa == c.ta && g.transb == c.tb && g.m == c.m &&
              g.n == c.n && g.k == c.k && g.ldc == c.ldc && g.c == w.c && g.atype == t &&
              g.btype == t && g.ctype == CUDA_R_32F && g.algo == CUBLAS_GEMM_DEFAULT &&
              g.batch == (c.batch ? c.batch : 1);
    ok = ok && g.compute == (tf32 && !half ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F);
    if (c.batch) ok = ok && g.stridea == c.sa && g.strideb == c.sb && g.stridec == c.sc;
    if (!half || (c.batch > 1 && c.sa)) ok = ok && g.lda == c.lda;
    else ok = ok && g.lda % 8 == 0; /* rows of a single matrix start at 16 bytes */
    if (!half || (c.batch > 1 && c.sb)) ok = ok && g.ldb == c.ldb;
    else ok = ok && g.ldb % 8 == 0;
    if (half) ok = ok && (uintptr_t)g.a % 16 == 0 && (uintptr_t)g.b % 16 == 0;
    else ok = ok && g.a == c.a && g.b == c.b;
    BLAS(cublasGetStream(w.blas, &stream));
    BLAS(cublasGetMathMode(w.blas, &math));
    BLAS(cublasGetPointerMode(w.blas, &mode));
    ok = ok && stream == w.stream && g.stream == w.stream && g.workspace == w.workspace &&
         g.workspace_bytes == WORKSPACE && math == g.math && mode == g.pointer_mode;
    if (!ok) test_fail(__FILE__, line, "the noted call", g.name);
}

/* One call under the scope: right, and done in type. */
static void product_at(int line, const call &c, amp_dtype type, bool tf32 = false) {
    const size_t             calls  = emu_gemm_calls();
    const std::vector<float> before = download(w.c, ELEMENTS);
    const cublasStatus_t     status = run(c);
    if (status != CUBLAS_STATUS_SUCCESS)
        test_fail(__FILE__, line, "amp_sgemm", cublasGetStatusString(status));
    CHECK_EQ_U64(emu_gemm_calls(), calls + 1);
    check_log(line, c, type, tf32);
    check_product(line, c, type, w.host_a, w.host_b, before);
}
#define PRODUCT(...) product_at(__LINE__, __VA_ARGS__)

static void check_counts(int line, uint64_t hits, uint64_t misses, uint64_t transients,
                         uint64_t fallbacks) {
    const amp_session &s = w.session;
    char               values[160];
    if (s.hits == hits && s.misses == misses && s.transients == transients &&
        s.fallbacks == fallbacks)
        return;
    snprintf(values, sizeof values, "%d %d %d %d is not %d %d %d %d", (int)s.hits, (int)s.misses,
             (int)s.transients, (int)s.fallbacks, (int)hits, (int)misses, (int)transients,
             (int)fallbacks);
    test_fail(__FILE__, line, "hits, misses, transients, fallbacks", values);
}
#define COUNTS(...) check_counts(__LINE__, __VA_ARGS__)

/* ---------------------------------------------------------------------------------------- tests */

TEST(products, "manual: products of operands rounded to halves, summed in fp32: all transposes, "
               "leading dimensions, alpha and beta, NaN in a C that is not read, batches") {
    static const float alphas[] = {1.0f, -0.5f, 0.0f}, betas[] = {0.0f, 1.0f, 0.25f};
    const int          step = test_state.quick ? 3 : 1;
    int                number = 0;
    for (amp_dtype type : {AMP_F16, AMP_BF16}) {
        begin(ROOM, type);
        for (int trans = 0; trans < 6; trans++)
            for (int extra : {0, 1, 3, 8})
                for (int x = 0; x < 9; x++)
                    for (int batch : {0, 1 + x % 2}) {
                        if (number++ % step != 0) continue;
                        call c = make_call(trans, 32 + below(4), 32 + below(3), 32 + below(9),
                                           extra, batch);
                        c.alpha = alphas[x / 3];
                        c.beta  = betas[x % 3];
                        if (number % 4 == 0) c.a += 1, c.b += 2; /* not where cudaMalloc aligns */
                        if (c.beta == 0.0f)
                            CUDA(cudaMemsetAsync(w.c, 0xff, ELEMENTS * 4, w.stream));
                        else upload(w.c, w.host_c.data(), ELEMENTS);
                        PRODUCT(c, type);
                    }
        CHECK_EQ_U64(w.session.fallbacks, 0);
    }
    end();
}

TEST(pointer_modes, "manual: alpha and beta in device memory are left there; modes of the handle "
                    "stay as they were") {
    for (amp_dtype type : {AMP_F16, AMP_BF16})
        for (int batch = 0; batch < 3; batch++) {
            begin(ROOM, type);
            call               c          = make_call(1, 33, 34, 35, 1, batch);
            const float        scalars[2] = {c.alpha = 0.75f, c.beta = -0.5f};
            std::vector<float> before     = download(w.c, ELEMENTS);
            upload(w.scalars, scalars, 2);
            BLAS(cublasSetPointerMode(w.blas, CUBLAS_POINTER_MODE_DEVICE));
            BLAS(cublasSetMathMode(w.blas, CUBLAS_TF32_TENSOR_OP_MATH));
            BLAS(run(c, false, w.scalars));
            check_log(__LINE__, c, type);
            CHECK_EQ_INT(emu_gemm_call_at(0)->math, CUBLAS_TF32_TENSOR_OP_MATH);
            CHECK_EQ_INT(emu_gemm_call_at(0)->pointer_mode, CUBLAS_POINTER_MODE_DEVICE);
            check_product(__LINE__, c, type, w.host_a, w.host_b, before);
        }
    end();
}

TEST(outside, "manual: outside scopes, and where autocast says fp32, it is the original: one call "
              "with the same arguments, no launch") {
    for (int how = 0; how < 8; how++)
        for (int batch = 0; batch < 3; batch++) {
            begin(ROOM, AMP_F16);
            const char *words = how == 4 ? "off" : how == 5 ? "op:gemm=fp32"
                              : how == 6 ? "op:gemm=banned" : how == 7 ? "apex_o0" : "";
            OK(amp_autocast_override(&w.session.autocast, words));
            if (how == 0) amp_autocast_use(NULL);
            if (how == 1) OK(amp_autocast_pop(&w.session.autocast));
            if (how == 2) enter(AMP_AUTOCAST_OFF, AMP_F32, NULL);
            static amp_autocast copy;
            copy = w.session.autocast;
            if (how == 3) amp_autocast_use(&copy); /* it has no cache */
            OK(amp_session_add(&w.session, w.b, ELEMENTS));
            emu_count = emu_counts();
            const call          c     = make_call(batch, 40, 41, 42, 1, batch);
            const unsigned long calls = emu_api_calls;
            BLAS(run(c));
            CHECK_EQ_U64(emu_api_calls, calls + 1);
            CHECK_EQ_U64(emu_count.launches, 0);
            COUNTS(0, 0, 0, 0);
            PRODUCT(c, AMP_F32);
        }
    end();
}

TEST(policies, "manual: words and scopes choose the type: fp16, bf16, tf32, fp32") {
    static const struct { const char *words, *layer; amp_dtype type; bool tf32; } cases[] = {
        {"", NULL, AMP_F16, false},
        {"bf16", NULL, AMP_BF16, false},
        {"tf32", NULL, AMP_F16, false}, /* of what stays in fp32 it speaks only */
        {"tf32,op:gemm=fp32", NULL, AMP_F32, true},
        {"op:gemm=fp32", NULL, AMP_F32, false},
        {"op:gemm=bf16", NULL, AMP_BF16, false},
        {"torch_cpu", NULL, AMP_BF16, false},
        {"apex_o0,tf32", NULL, AMP_F32, true},
        {"off,tf32", NULL, AMP_F32, false},
        {"head*=fp32", "head.weight", AMP_F32, false},
        {"head*=bf16", "head.weight", AMP_BF16, false},
        {"head*=fp32,tf32", "head.weight", AMP_F32, true},
        {"head*=fp32", "body", AMP_F16, false}};
    for (const auto &p : cases)
        for (int batch = 0; batch < 3; batch += 2) {
            begin(ROOM, AMP_F16);
            OK(amp_autocast_override(&w.session.autocast, p.words));
            if (p.layer) enter(AMP_AUTOCAST_INHERIT, AMP_F32, p.layer);
            PRODUCT(make_call(below(4), 33, 34, 35, below(3), batch), p.type, p.tf32);
        }
    begin(ROOM, AMP_F16);
    enter(AMP_AUTOCAST_INHERIT, AMP_BF16, NULL); /* scopes in scopes */
    PRODUCT(make_call(0, 33, 34, 35, 0, 0), AMP_BF16);
    enter(AMP_AUTOCAST_OFF, AMP_F32, NULL);
    PRODUCT(make_call(0, 33, 34, 35, 0, 0), AMP_F32);
    OK(amp_autocast_pop(&w.session.autocast));
    PRODUCT(make_call(0, 33, 34, 35, 0, 0), AMP_BF16);
    OK(amp_autocast_pop(&w.session.autocast));
    PRODUCT(make_call(0, 33, 34, 35, 0, 0), AMP_F16);
    end();
}

TEST(small, "manual: products with n k below 2^10 are the originals, and counted") {
    for (int batch = 0; batch < 3; batch++) {
        begin(ROOM, AMP_F16);
        PRODUCT(make_call(0, 32, 32, 32, 0, batch), AMP_F16);
        CHECK_EQ_U64(w.session.left_fp32, 0);
        PRODUCT(make_call(1, 33, 31, 33, 1, batch), AMP_F32);
        PRODUCT(make_call(2, 1, 1, 1, 0, batch), AMP_F32);
        CHECK_EQ_U64(w.session.left_fp32, 2);
        OK(amp_autocast_override(&w.session.autocast, "tf32"));
        PRODUCT(make_call(3, 16, 16, 16, 0, batch), AMP_F32, true);
        CHECK_EQ_U64(w.session.left_fp32, 3);
        CHECK_EQ_U64(w.session.fallbacks, 0);
    }
    end();
}

TEST(no_room, "manual: where there is no room it is the original, and counted; a smaller product "
              "after it has room") {
    for (int batch = 0; batch < 3; batch++) {
        begin(9000, AMP_BF16);
        PRODUCT(make_call(0, 64, 64, 64, 0, batch), AMP_F32); /* B does not fit */
        CHECK_EQ_U64(w.session.fallbacks, 1);
        CHECK_EQ_U64(w.session.transients, batch < 2);
        OK(amp_autocast_override(&w.session.autocast, "tf32"));
        PRODUCT(make_call(0, 64, 64, 64, 0, batch), AMP_F32, true);
        CHECK_EQ_U64(w.session.fallbacks, 2);
        if (batch < 2) PRODUCT(make_call(0, 32, 32, 32, 0, batch), AMP_BF16);
        CHECK_EQ_U64(w.session.fallbacks, 2);
    }
    end();
}

/* An operand, row by row as the manual has it (to cuBLAS, column by column), and its bytes. */
struct operand {
    float    *x;
    int       rows, cols, ld, count;
    long long stride;
};

static operand an_operand(float *x, int rows, int cols, int count) {
    operand o = {x, rows, cols, cols + below(2) * below(40), count, 0};
    if (below(3) == 0) o.ld = (o.ld + 7) / 8 * 8;
    o.stride = (long long)rows * o.ld + below(2) * below(50);
    return o;
}

static size_t elements_of(const operand &o) { return (size_t)(o.count * o.rows * o.cols); }

static size_t bytes_of(const operand &o) {
    const size_t extent = (size_t)((o.count - 1) * o.stride + (o.rows - 1) * o.ld + o.cols);
    return 2 * extent + (size_t)(14 * o.count * o.rows + 256);
}

/* op(a) op(b), by one call for all; what was multiplied lies in the session's memory, or none of it. */
static void multiply(const operand &a, bool ta, const operand &b, bool tb) {
    const uint64_t fallbacks = w.session.fallbacks;
    call           c         = {};
    c.ta    = tb ? CUBLAS_OP_T : CUBLAS_OP_N; /* c' = op(b)' op(a)' */
    c.tb    = ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    c.m     = tb ? b.rows : b.cols;
    c.n     = ta ? a.cols : a.rows;
    c.k     = ta ? a.rows : a.cols;
    c.lda   = b.ld;
    c.ldb   = a.ld;
    c.ldc   = c.m;
    c.batch = a.count > 1 ? a.count : below(2);
    c.sa    = b.stride;
    c.sb    = a.stride;
    c.sc    = (long long)c.m * c.n;
    c.alpha = 1.0f;
    c.a     = b.x;
    c.b     = a.x;
    BLAS(run(c));
    const emu_gemm_call g      = *emu_gemm_call_at(emu_gemm_calls() - 1);
    const bool          half   = w.session.fallbacks == fallbacks;
    const size_t        last_a = (size_t)((b.count - 1) * g.stridea + (b.rows - 1) * g.lda + b.cols);
    const size_t        last_b = (size_t)((a.count - 1) * g.strideb + (a.rows - 1) * g.ldb + a.cols);
    CHECK_EQ_INT(g.atype != CUDA_R_32F, half);
    CHECK_EQ_INT(ours(g.a) && ours((const char *)g.a + 2 * last_a - 1), half);
    CHECK_EQ_INT(ours(g.b) && ours((const char *)g.b + 2 * last_b - 1), half);
}

/* A session of so many bytes in place of the world's. */
static void restart(size_t num_bytes, amp_dtype type) {
    amp_session_end(&w.session);
    OK(start(&w.session, &w.gpu, num_bytes));
    OK(amp_autocast_override(&w.session.autocast, type == AMP_F16 ? "fp16" : "bf16"));
}

TEST(enough_room, "manual: for each weight, and for both operands of the largest product, 2 bytes an "
                  "element from the first to the last, 14 a row, and 256: then no product is left in "
                  "fp32 for want of room; and with less than 2 an element one is") {
    enum { LAYERS = 3, MOST = 1 << 15 };
    const int nets = test_state.quick ? 40 : 200;
    begin(ROOM, AMP_F16);
    float *const all = device_floats((LAYERS + 2) * MOST);
    float *const x   = all + LAYERS * MOST, *const dy = x + MOST;
    for (int net = 0; net < nets; net++) {
        const amp_dtype type  = net % 2 ? AMP_BF16 : AMP_F16;
        const int       count = below(3) ? 1 : 4, rows = 32 + below(32);
        operand         weights[LAYERS], ins[LAYERS], outs[LAYERS];
        size_t          bytes = 0, most = 0;
        for (int i = 0; i < LAYERS; i++) {
            const int in = 32 + below(32), out = 32 + below(32);
            weights[i] = an_operand(all + i * MOST, out, in, count);
            ins[i]     = an_operand(x, rows, in, count);
            outs[i]    = an_operand(dy, rows, out, count);
            bytes += bytes_of(weights[i]);
            most = std::max(most, bytes_of(ins[i]) + bytes_of(outs[i]));
        }
        restart(bytes + most, type);
        for (const operand &weight : weights) OK(amp_session_add(&w.session, weight.x, MOST));
        for (int round = 0; round < 2 * LAYERS; round++) {
            const int i = net % 3 ? round % LAYERS : below(LAYERS);
            multiply(ins[i], false, weights[i], true);   /* y  = x w' */
            multiply(outs[i], false, weights[i], false); /* dx = dy w */
            multiply(outs[i], true, ins[i], false);      /* dw = dy' x */
        }
        CHECK_EQ_U64(w.session.fallbacks, 0);
        CHECK(w.session.misses <= LAYERS); /* each is cast once */
        restart(2 * (elements_of(ins[0]) + elements_of(weights[0])) - 257, type); /* it gets 256 more */
        multiply(ins[0], false, weights[0], true);
        CHECK_EQ_U64(w.session.fallbacks, 1);
    }
    /* Rows far apart: a copy's are as far. Two of 57,298 bytes, each rounded up to a multiple of 256. */
    const operand wide = {all, 10, 1001, 3072, 1, 0}, few = {x, 10, 1001, 3072, 1, 0};
    for (const size_t room : {bytes_of(wide) + bytes_of(few), (size_t)(2 * 57344 - 256),
                              (size_t)(2 * 57344 - 257)}) {
        restart(room, AMP_F16);
        OK(amp_session_add(&w.session, wide.x, MOST));
        multiply(few, false, wide, true);
        CHECK_EQ_U64(w.session.fallbacks, room == 2 * 57344 - 257);
        CHECK_EQ_U64(w.session.misses, 1);
    }
    CUDA(cudaStreamSynchronize(w.stream));
    CUDA(cudaFree(all));
    end();
}

TEST(cached, "manual: a weight is cast once until it changes, and never under a stale name") {
    for (int batch = 0; batch < 2; batch++) {
        begin(ROOM, AMP_F16);
        const call c = make_call(0, 33, 34, 35, 1, batch);
        OK(amp_session_add(&w.session, w.a, ELEMENTS));
        for (int i = 0; i < 3; i++) PRODUCT(c, AMP_F16);
        COUNTS(2, 1, 3, 0);
        randomize(w.a, w.host_a);
        amp_session_changed(&w.session, w.a);
        PRODUCT(c, AMP_F16);
        COUNTS(2, 2, 4, 0);
        OK(amp_session_add(&w.session, w.a, 0));
        randomize(w.a, w.host_a);
        PRODUCT(c, AMP_F16);
        COUNTS(2, 2, 6, 0);
        enter(AMP_AUTOCAST_OFF, AMP_F32, NULL);
        PRODUCT(c, AMP_F32);
        COUNTS(2, 2, 6, 0);
    }
    begin(ROOM, AMP_F16); /* A' A */
    OK(amp_session_add(&w.session, w.a, ELEMENTS));
    for (int i = 0; i < 3; i++) {
        call               c      = make_call(1, 40, 40, 40, 0, 0);
        std::vector<float> before = download(w.c, ELEMENTS);
        c.lda = 43;
        BLAS(amp_sgemm(w.blas, c.ta, c.tb, 40, 40, 40, &c.alpha, w.a, 43, w.a, 40, &c.beta, w.c,
                       c.ldc));
        check_product(__LINE__, c, AMP_F16, w.host_a, w.host_a, before);
    }
    COUNTS(2, 1, 3, 0);
    end();
}

TEST(batches, "manual: strides of 0, far ones, and matrices that overlap; negative strides and a "
              "batch of none are left to cuBLAS") {
    begin(ROOM, AMP_F16);
    call c = make_call(0, 32, 33, 34, 0, 3);
    c.sb = 0;
    PRODUCT(c, AMP_F16);
    c.sa = 7;
    PRODUCT(c, AMP_F16);
    COUNTS(0, 0, 4, 0);
    c.batch = 1;
    c.sa    = 0;
    PRODUCT(c, AMP_F16);
    call far = make_call(0, 32, 32, 32, 0, 2);
    far.sa   = 8 * 1024;
    PRODUCT(far, AMP_F16);
    call negative  = make_call(0, 32, 33, 34, 0, 2);
    negative.a     = w.a + 4096;
    negative.sa    = -2048;
    const size_t n = emu_gemm_calls();
    CHECK_EQ_INT(run(negative), CUBLAS_STATUS_SUCCESS);
    check_log(__LINE__, negative, AMP_F32);
    CHECK_EQ_U64(emu_gemm_calls(), n + 1);
    call none = make_call(0, 32, 33, 34, 0, 1);
    for (int batch : {0, -1}) {
        std::vector<float> before = download(w.c, ELEMENTS);
        cublasStatus_t     got[2];
        for (int i = 0; i < 2; i++)
            got[i] = (i ? cublasSgemmStridedBatched : amp_sgemm_strided_batched)(
                w.blas, none.ta, none.tb, 32, 33, 34, &none.alpha, w.a, 32, 0, w.b, 34, 5000,
                &none.beta, w.c, 32, 2000, batch);
        CHECK_EQ_INT(got[0], got[1]);
        CHECK_MEM(before.data(), download(w.c, ELEMENTS).data(), ELEMENTS * 4);
    }
    end();
}

/* --------------------------------------------------------------------------- graphs and streams */

static cudaGraphExec_t end_capture(void) {
    cudaGraph_t     graph = NULL;
    cudaGraphExec_t exec  = NULL;
    CUDA(cudaStreamEndCapture(w.stream, &graph));
#if CUDART_VERSION >= 12000
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
#else
    CUDA(cudaGraphInstantiate(&exec, graph, NULL, NULL, 0));
#endif
    CUDA(cudaGraphDestroy(graph));
    return exec;
}

TEST(captures, "law: a weight that was cast outside a capture is cast again in it, once; replays "
               "see changed weights; what a capture cast is not believed outside or in the next") {
    for (int batch = 0; batch < 2; batch++)
        for (int async = 0; async < 2; async++) {
            begin(ROOM, AMP_F16);
            emu_async    = async;
            const call c = make_call(1, 33, 34, 35, 1, batch);
            OK(amp_session_add(&w.session, w.a, ELEMENTS));
            PRODUCT(c, AMP_F16);
            COUNTS(0, 1, 1, 0);
            CUDA(cudaStreamBeginCapture(w.stream, cudaStreamCaptureModeGlobal));
            BLAS(run(c));
            BLAS(run(c));
            cudaGraphExec_t exec = end_capture();
            COUNTS(1, 2, 3, 0);
            CHECK_EQ_U64(emu_count.captured_gemms_without_workspace, 0);
            for (int replay = 0; replay < 3; replay++) {
                randomize(w.a, w.host_a);
                randomize(w.b, w.host_b);
                std::vector<float> before = download(w.c, ELEMENTS);
                CUDA(cudaGraphLaunch(exec, w.stream));
                check_product(__LINE__, c, AMP_F16, w.host_a, w.host_b, before);
            }
            randomize(w.a, w.host_a);
            PRODUCT(c, AMP_F16); /* not what the capture noted */
            COUNTS(1, 3, 4, 0);
            CUDA(cudaStreamBeginCapture(w.stream, cudaStreamCaptureModeGlobal));
            BLAS(run(c));
            cudaGraphExec_t next = end_capture();
            COUNTS(1, 4, 5, 0);
            randomize(w.a, w.host_a);
            std::vector<float> before = download(w.c, ELEMENTS);
            CUDA(cudaGraphLaunch(next, w.stream));
            check_product(__LINE__, c, AMP_F16, w.host_a, w.host_b, before);
            CUDA(cudaGraphExecDestroy(exec));
            CUDA(cudaGraphExecDestroy(next));
            for (int i = 0; i < 2; i++) { /* two captures in a row, the first never launched */
                CUDA(cudaStreamBeginCapture(w.stream, cudaStreamCaptureModeGlobal));
                BLAS(run(c));
                exec = end_capture();
                if (i == 0) CUDA(cudaGraphExecDestroy(exec));
            }
            COUNTS(1, 6, 7, 0);
            randomize(w.a, w.host_a);
            before = download(w.c, ELEMENTS);
            CUDA(cudaGraphLaunch(exec, w.stream));
            check_product(__LINE__, c, AMP_F16, w.host_a, w.host_b, before);
            CUDA(cudaGraphExecDestroy(exec));
        }
    end();
}

TEST(order, "manual: all work is in the order of the handle's stream: nothing waits, and copies "
            "follow the weights that were queued before them") {
    begin(ROOM, AMP_F16);
    const call         c     = make_call(0, 33, 34, 35, 1, 0);
    float             *other = device_floats(ELEMENTS), *kept = device_floats(ELEMENTS);
    std::vector<float> host_other;
    randomize(other, host_other);
    OK(amp_session_add(&w.session, w.a, ELEMENTS));
    for (unsigned seed = 0; seed < 4; seed++) {
        upload(w.a, w.host_a.data(), ELEMENTS);
        upload(w.c, w.host_c.data(), ELEMENTS);
        amp_session_changed(&w.session, w.a);
        emu_seed  = seed;
        emu_async = 1;
        emu_count = emu_counts();
        BLAS(run(c));
        CUDA(cudaMemcpyAsync(kept, w.c, ELEMENTS * 4, cudaMemcpyDeviceToDevice, w.stream));
        CUDA(cudaMemcpyAsync(w.a, other, ELEMENTS * 4, cudaMemcpyDeviceToDevice, w.stream));
        amp_session_changed(&w.session, w.a);
        BLAS(run(c));
        CHECK_EQ_U64(emu_count.synchronisations, 0);
        CHECK_EQ_U64(emu_count.allocations, 0);
        check_product(__LINE__, c, AMP_F16, host_other, w.host_b, w.host_c);
        std::swap(kept, w.c);
        check_product(__LINE__, c, AMP_F16, w.host_a, w.host_b, w.host_c);
        std::swap(kept, w.c);
    }
    CUDA(cudaFree(other));
    CUDA(cudaFree(kept));
    end();
}

TEST(streams, "manual: products on another stream than that of the session's backend stay in fp32, "
              "where they were queued, and are counted") {
    cudaStream_t   mine = NULL, second = NULL;
    cublasHandle_t own  = NULL;
    begin(ROOM, AMP_F16);
    mine = w.stream;
    CUDA(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    BLAS(cublasCreate(&own));
    emu_async    = 1;
    const call c = make_call(0, 33, 34, 35, 1, 0);
    for (int round = 0; round < 2; round++) {
        amp_backend other;
        w.stream = second; /* of the handle */
        BLAS(cublasSetStream(w.blas, second));
        BLAS(cublasSetWorkspace(w.blas, w.workspace, WORKSPACE));
        PRODUCT(c, AMP_F32);
        PRODUCT(make_call(0, 33, 34, 35, 1, 2), AMP_F32);
        CHECK_EQ_U64(w.session.fallbacks, 3 * (uint64_t)round + 2);
        for (int i = 0; i < 2; i++) { /* amp_gemm on the session's stream, and not on it */
            w.stream = i ? second : mine;
            upload(w.c, w.host_c.data(), ELEMENTS);
            OK(amp_cuda_backend(&other, w.stream, own));
            OK(gemm_one(&other, 0, 0, 34, 33, 35, 1.0f, w.b, AMP_F32, 36, w.a, AMP_F32, 34, 0.0f,
                        w.c, AMP_F32, 34));
            check_product(__LINE__, c, i ? AMP_F32 : AMP_F16, w.host_a, w.host_b, w.host_c);
        }
        CHECK_EQ_U64(w.session.fallbacks, 3 * (uint64_t)round + 3);
        w.stream = mine;
        BLAS(cublasSetStream(w.blas, mine));
        BLAS(cublasSetWorkspace(w.blas, w.workspace, WORKSPACE));
        PRODUCT(c, AMP_F16);
    }
    CUDA(cudaStreamSynchronize(second));
    CUDA(cudaStreamDestroy(second));
    BLAS(cublasDestroy(own));
    end();
}

/* --------------------------------------------------------------------------------------- errors */

TEST(faults, "law: whatever call fails, cuBLAS's errors come back, a cast that failed leaves the "
             "product in fp32, nothing leaks, and the next call is right") {
    for (int batch = 0; batch < 2; batch++)
        for (int warm = 0; warm < 2; warm++) {
            unsigned long fail, calls = 1;
            int           errors = 0, in_fp32 = 0;
            for (fail = 1; fail <= calls; fail++) {
                begin(ROOM, AMP_F16);
                const call c = make_call(2, 33, 34, 35, 1, batch);
                OK(amp_session_add(&w.session, w.a, ELEMENTS));
                if (warm) {
                    PRODUCT(c, AMP_F16);
                    upload(w.c, w.host_c.data(), ELEMENTS);
                }
                const size_t live = emu_live_allocations(), noted = emu_gemm_calls();
                emu_api_calls  = 0;
                emu_fail_at    = 0;
                emu_fail_error = cudaErrorUnknown;
                if (fail == 1) { /* how many calls there are */
                    BLAS(run(c));
                    calls = emu_api_calls;
                    upload(w.c, w.host_c.data(), ELEMENTS);
                    if (!warm) amp_session_changed(&w.session, w.a);
                }
                emu_api_calls               = 0;
                emu_fail_at                 = fail;
                const cublasStatus_t status = run(c);
                emu_fail_at                 = 0;
                if (status == CUBLAS_STATUS_SUCCESS) {
                    const bool fp32 =
                        emu_gemm_call_at(emu_gemm_calls() - 1)->atype == CUDA_R_32F;
                    in_fp32 += fp32;
                    check_product(__LINE__, c, fp32 ? AMP_F32 : AMP_F16, w.host_a, w.host_b,
                                  w.host_c);
                } else {
                    errors++;
                    CHECK_EQ_INT(status, CUBLAS_STATUS_EXECUTION_FAILED);
                    CHECK_EQ_U64(emu_gemm_calls(), noted + (fail == 1));
                    CHECK_MEM(download(w.c, ELEMENTS).data(), w.host_c.data(), ELEMENTS * 4);
                }
                CHECK_EQ_U64(emu_live_allocations(), live);
                CHECK_EQ_INT(cudaGetLastError(), cudaSuccess);
                upload(w.c, w.host_c.data(), ELEMENTS);
                PRODUCT(c, AMP_F16);
            }
            CHECK(calls >= 4u - (unsigned)warm);
            CHECK_EQ_INT(errors, 2); /* of cublasGetStream and of the product */
            CHECK(in_fp32 >= 2 - warm);
        }
    end();
    CHECK_EQ_U64(emu_live_allocations(), 0);
    CHECK_EQ_U64(emu_live_cublas(), 0);
    CHECK_EQ_U64(emu_live_streams(), 0);
}

TEST(statuses, "manual: wrong arguments have the status that cuBLAS gives them, in a scope too, "
               "and touch nothing") {
    begin(ROOM, AMP_F16);
    for (int batch = 0; batch < 3; batch++)
        for (int number = 0; number < 12; number++) {
            call                 c      = make_call(0, 33, 34, 35, 1, batch);
            std::vector<float>   before = download(w.c, ELEMENTS);
            const cublasHandle_t handle = w.blas;
            if (number == 0) c.m = -33;
            if (number == 1) c.m = -33, c.n = -34;
            if (number == 2) c.k = -35;
            if (number == 3) c.lda = 32;
            if (number == 4) c.ldb = 34;
            if (number == 5) c.ldc = 32;
            if (number == 6) c.ta = (cublasOperation_t)3;
            if (number == 7) c.k = 0, c.beta = 1.0f;
            if (number == 8) c.m = 0;
            if (number == 9) c.alpha = 0.0f, c.beta = 1.0f;
            if (number == 10) w.blas = NULL;
            if (number == 11) c.lda = c.ldb = c.ldc = 0;
            const cublasStatus_t got = run(c), wanted = run(c, true);
            w.blas = handle;
            CHECK_EQ_INT(got, wanted);
            CHECK_MEM(before.data(), download(w.c, ELEMENTS).data(), ELEMENTS * 4);
        }
    const float one = 1.0f;
    for (int number = 0; number < 2; number++)
        CHECK_EQ_INT(amp_sgemm(w.blas, CUBLAS_OP_N, CUBLAS_OP_N, 33, 34, 35, number ? NULL : &one,
                               w.a, 33, w.b, 35, number ? &one : NULL, w.c, 33),
                     CUBLAS_STATUS_INVALID_VALUE);
    end();
}

/* ----------------------------------------------------------------------------- amp_gemm on CUDA */

TEST(gemm, "law 7: amp_gemm in a scope has the bits of the CPU's, with the types and the compute "
           "type that the policy says; so have batches") {
    cublasHandle_t own = NULL;
    for (int t = 0; t < 5; t++) {
        static const char *const words[] = {"", "bf16", "op:gemm=fp32", "tf32,op:gemm=fp32", "off"};
        const amp_dtype          type    = t == 0 ? AMP_F16 : t == 1 ? AMP_BF16 : AMP_F32;
        begin(ROOM, AMP_F16);
        BLAS(cublasCreate(&own));
        static amp_session cpu;
        OK(start(&cpu, NULL, ROOM));
        OK(amp_cuda_backend(&w.gpu, w.stream, own));
        OK(amp_autocast_override(&w.session.autocast, words[t]));
        OK(amp_autocast_override(&cpu.autocast, words[t]));
        OK(amp_session_add(&w.session, w.b, ELEMENTS));
        OK(amp_session_add(&cpu, w.host_b.data(), ELEMENTS));
        for (int trans = 0; trans < 4; trans++)
            for (int round = 0; round < 6; round++) {
                const size_t m = 32 + (size_t)below(12), n = 32 + (size_t)below(12),
                             k = 32 + (size_t)below(12); /* worth their casts */
                const size_t lda = (trans % 2 ? m : k) + (size_t)below(3),
                             ldb = (trans / 2 ? k : n) + (size_t)below(3), ldc = n;
                const size_t count = 1 + (size_t)round % 3, sa = (trans % 2 ? k : m) * lda + 1;
                const size_t sb    = round > 3 ? 0 : (trans / 2 ? n : k) * ldb + 2;
                const float  beta  = round % 2 ? 0.5f : 0.0f;
                upload(w.c, w.host_c.data(), ELEMENTS);
                std::vector<float> c = w.host_c;
                amp_autocast_use(&w.session.autocast);
                OK(gemm_batched(&w.gpu, trans % 2, trans / 2, m, n, k, 0.75f, w.a, AMP_F32, lda,
                                    sa, w.b, AMP_F32, ldb, sb, beta, w.c, AMP_F32, ldc, m * n,
                                    count));
                const emu_gemm_call g = *emu_gemm_call_at(emu_gemm_calls() - 1);
                amp_autocast_use(&cpu.autocast);
                OK(gemm_batched(NULL, trans % 2, trans / 2, m, n, k, 0.75f, w.host_a.data(),
                                    AMP_F32, lda, sa, w.host_b.data(), AMP_F32, ldb, sb, beta,
                                    c.data(), AMP_F32, ldc, m * n, count));
                CHECK_MEM(download(w.c, ELEMENTS).data(), c.data(), ELEMENTS * 4);
                CHECK_EQ_INT(g.atype, type == AMP_F16    ? CUDA_R_16F
                                      : type == AMP_BF16 ? CUDA_R_16BF
                                                         : CUDA_R_32F);
                CHECK_EQ_INT(g.compute, t == 3 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F);
            }
        CHECK_EQ_U64(w.session.hits, cpu.hits);
        CHECK_EQ_U64(w.session.misses, cpu.misses);
        CHECK_EQ_U64(w.session.transients, cpu.transients);
        amp_session_end(&cpu);
        BLAS(cublasDestroy(own));
    }
    end();
}

TEST(gemm_half_c, "manual: amp_gemm into a half C works for any size in a scope: only products that "
                  "are fp32 throughout are too small for casts") {
    cublasHandle_t own = NULL;
    begin(ROOM, AMP_F16);
    BLAS(cublasCreate(&own));
    OK(amp_cuda_backend(&w.gpu, w.stream, own));
    for (size_t n = 1; n < 40; n += 3) {
        const uint64_t small = w.session.left_fp32;
        OK(gemm_one(&w.gpu, 0, 0, n, n, n, 1.0f, w.a, AMP_F32, 0, w.b, AMP_F32, 0, 0.0f, w.c,
                    AMP_F16, 0));
        CHECK_EQ_U64(w.session.left_fp32, small);
        OK(gemm_one(&w.gpu, 0, 0, n, n, n, 1.0f, w.a, AMP_F32, 0, w.b, AMP_F32, 0, 0.0f, w.c,
                    AMP_F32, 0));
        CHECK_EQ_U64(w.session.left_fp32, small + (n < 32));
    }
    BLAS(cublasDestroy(own));
    end();
}

TEST(copies, "law 7: a cached copy on CUDA has the bits of the CPU's for all leading dimensions; "
             "amp_cuda_code tells what failed") {
    begin(ROOM, AMP_F16);
    for (amp_dtype type : {AMP_F16, AMP_BF16})
        for (size_t cols : {1u, 7u, 8u, 9u, 64u, 1030u})
            for (size_t extra : {0u, 1u, 3u, 8u}) {
                const void           *copy = NULL;
                size_t                ld   = 0;
                const ampi_matrices   of   = {w.a + 3, AMP_F32, 5, cols, cols + extra, 0};
                uint16_t              line[1030];
                std::vector<uint16_t> got;
                emu_count = emu_counts();
                OK(ampi_cache_get(&w.session, &of, 1, type, &copy, &ld));
                CHECK_EQ_U64(emu_count.launches, 1); /* whatever lies between rows */
                CHECK(ld % 8 == 0 && ours(copy) && (uintptr_t)copy % 16 == 0);
                got.resize(5 * ld);
                CUDA(cudaStreamSynchronize(w.stream));
                CUDA(cudaMemcpy(got.data(), copy, 2 * (4 * ld + cols), cudaMemcpyDeviceToHost));
                for (size_t r = 0; r < 5; r++) {
                    amp_cast(line, type, &w.host_a[3 + r * (cols + extra)], AMP_F32, cols);
                    CHECK_MEM(&got[r * ld], line, 2 * cols);
                }
                w.session.top = w.session.size; /* the next product */
            }
    static amp_session s;
    for (unsigned long fail = 1; fail < 3; fail++) { /* cudaMalloc, then what zeroes it */
        emu_api_calls  = 0;
        emu_fail_at    = fail;
        emu_fail_error = cudaErrorMemoryAllocation;
        CHECK(start(&s, &w.gpu, ROOM) != AMP_OK);
    }
    emu_fail_at = 0;
    amp_session_end(&s);
    end();
    CHECK_EQ_U64(emu_live_allocations(), 0);
}

TEST(session, "manual: amp_session_start makes a scope with cache and a scaler on the device; if "
              "a call in it fails nothing is left; ending twice is safe") {
    static amp_session session;
    amp_scaler         scaler;
    begin(ROOM, AMP_BF16);
    amp_autocast_use(NULL);
    const size_t live = emu_live_allocations();
    setenv("AMP_DTYPE", "fp15", 1);
    CHECK_EQ_INT(start(&session, &w.gpu, ROOM), AMP_ERROR_INVALID_CONFIG);
    unsetenv("AMP_DTYPE");
    CHECK_EQ_INT(start(&session, &w.gpu, 0), AMP_ERROR_INVALID_ARGUMENT);
    emu_fail_error = cudaErrorUnknown;
    for (int fail = 1;; fail++) {
        emu_api_calls           = 0;
        emu_fail_at             = (unsigned long)fail;
        const amp_result result = start(&session, &w.gpu, ROOM);
        const bool       failed = emu_api_calls >= emu_fail_at;
        emu_fail_at             = 0;
        CHECK_EQ_INT(result != AMP_OK, failed);
        if (!failed) break;
        CHECK_EQ_U64(emu_live_allocations(), live);
        CHECK(ampi_autocast_current() == NULL);
    }
    CUDA(cudaStreamSynchronize(w.stream));
    CUDA(cudaMemcpy(&scaler, session.scaler, sizeof scaler, cudaMemcpyDeviceToHost));
    CHECK_EQ_F32(scaler.scale, 65536.0f);
    PRODUCT(make_call(0, 33, 34, 35, 1, 0), AMP_F16);
    CHECK_EQ_U64(session.transients, 2);
    amp_session_end(&session);
    amp_session_end(&session);
    CHECK(ampi_autocast_current() == NULL);
    CHECK_EQ_U64(emu_live_allocations(), live);
    end();
}

int main(int argc, char **argv) {
    test_begin(argc, argv);
    if (amp_cpu_force_tier("c") != AMP_OK) return 1; /* the emulated cuBLAS sums as plain C does */
    RUN(products);
    RUN(pointer_modes);
    RUN(outside);
    RUN(policies);
    RUN(small);
    RUN(no_room);
    RUN(enough_room);
    RUN(cached);
    RUN(batches);
    RUN(captures);
    RUN(order);
    RUN(streams);
    RUN(faults);
    RUN(statuses);
    RUN(gemm);
    RUN(gemm_half_c);
    RUN(copies);
    RUN(session);
    end();
    return test_end();
}
