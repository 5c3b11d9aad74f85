/* AMP_CBLAS on Apple (tests/host/arm.sh compiles it with __APPLE__ and without): a scope leaves products of
   fp32 to Accelerate, where elsewhere it rounds them for BFMMLA. Tiers are the model's; this BLAS
   counts its calls. The exit status is the line of what was wrong. */
#ifdef __APPLE__
#define ON_APPLE 1
#else
#define ON_APPLE 0
#endif
typedef enum { CblasRowMajor = 101, CblasNoTrans = 111, CblasTrans = 112 } of_cblas;
static unsigned calls;
static void     cblas_sgemm(of_cblas order, of_cblas ta, of_cblas tb, int m, int n, int k, float alpha,
                            const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc) {
    (void)order, (void)ta, (void)tb, (void)m, (void)n, (void)k, (void)alpha, (void)a, (void)lda;
    (void)b, (void)ldb, (void)beta, (void)ldc;
    calls++;
    c[0] = 0.0f;
}
#define AMP_CBLAS
#define AMPI_TILES_MODEL "tests/support/tiles.h"
#define AMPI_PROCESSOR(features) (96u | (features & 0u)) /* neon_bf16 */
#define AMP_IMPLEMENTATION
#include "amp.h"

int sysctlbyname(const char *name, void *value, size_t *size, void *changed, size_t changed_size);
int sysctlbyname(const char *name, void *value, size_t *size, void *changed, size_t changed_size) {
    return name && value && size && !changed && !changed_size ? -1 : -2; /* where the processor is Arm's */
}

enum { N = 64 };
static float       a[N * N], b[N * N], c[N * N], rounded[N * N];
static uint16_t    a16[N * N];
static amp_session session;

/* One product; how many of them the BLAS got. Those that it did not get were rounded. */
static unsigned product(amp_dtype a_type, amp_dtype compute) {
    const unsigned before = calls;
    amp_gemm_args  g;
    memset(&g, 0, sizeof g);
    g.m = g.n = g.k = N;
    g.a       = a_type == AMP_F32 ? (const void *)a : (const void *)a16;
    g.a_type  = a_type;
    g.b       = b;
    g.c       = c;
    g.compute = compute;
    if (amp_gemm(NULL, &g) != AMP_OK) return 99;
    return calls == before && memcmp(c, rounded, sizeof c) != 0 ? 98 : calls - before;
}

#define WANT(x) do if (!(x)) return __LINE__; while (0)

int main(void) {
    amp_session_desc cached;
    amp_capability   cpu;
    int              i;
    memset(&cached, 0, sizeof cached);
    cached.num_bytes = 1 << 16;
    for (i = 0; i < N * N; i++) a[i] = (float)(i % 1000 - 500) / 777.0f, b[i] = (float)(i % 999 - 500) / 333.0f;
    amp_cast(a16, AMP_BF16, a, AMP_F32, N * N);
    amp_matmul(rounded, a, b, N, N, N, AMP_BF16);
    WANT(calls == 0 && strcmp(amp_cpu_tier(), "neon_bf16") == 0);
    WANT(product(AMP_F32, AMP_F32) == 1);
    WANT(amp_capability_of(0, 0, &cpu) == AMP_OK && cpu.bf16 == !ON_APPLE && !cpu.fp16);
    WANT(cpu.dtype == (ON_APPLE ? AMP_F32 : AMP_BF16));
    WANT(amp_session_start(&session, NULL) == AMP_OK);
    WANT(amp_autocast_override(&session.autocast, "bf16") == AMP_OK);
    WANT(product(AMP_F32, AMP_F32) == ON_APPLE);
    WANT(amp_autocast_override(&session.autocast, "op:gemm=low") == AMP_OK);
    WANT(product(AMP_F32, AMP_F32) == ON_APPLE);
    WANT(product(AMP_F32, AMP_BF16) == 0);
    WANT(product(AMP_BF16, AMP_F32) == 0); /* it is none of fp32 */
    amp_session_end(&session);
    WANT(amp_session_start(&session, &cached) == AMP_OK);
    WANT(amp_autocast_override(&session.autocast, "bf16") == AMP_OK);
    WANT(product(AMP_F32, AMP_F32) == ON_APPLE);
    WANT(session.left_fp32 == ON_APPLE && session.transients == 2 * !ON_APPLE && session.fallbacks == 0);
    amp_session_end(&session);
    return 0;
}
