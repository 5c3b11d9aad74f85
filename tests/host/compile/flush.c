/* A host that counts subnormals as 0 (an -Ofast link does) gives alphas that are subnormal: they are
   no 0, which would mean 1. In one file with the functions, where a compiler may see that the integer
   test of alpha is one of a float; clang 19 did. */
#define AMP_STATIC
#define AMP_IMPLEMENTATION
#include "amp.h"

#if defined(__x86_64__)
#include <xmmintrin.h>

static __attribute__((noinline)) void product(float alpha, const float *a, const float *b, float *c) {
    amp_gemm_args g;
    memset(&g, 0, sizeof g);
    g.alpha = alpha;
    g.a = a, g.b = b, g.c = c;
    g.m = g.n = g.k = 1;
    (void)amp_gemm(NULL, &g);
}

int main(void) {
    volatile uint32_t bits = 0x00100000u; /* 2^-129; times 2^8 */
    const uint32_t    u = bits;
    float             alpha, a = 16.0f, b = 16.0f, c = 5.0f;
    uint32_t          result;
    memcpy(&alpha, &u, sizeof alpha);
    _mm_setcsr(0x9fc0u); /* both flags */
    product(alpha, &a, &b, &c);
    _mm_setcsr(0x1f80u);
    memcpy(&result, &c, sizeof result);
    return result != 0x03000000u;
}
#else
int main(void) { return 0; }
#endif
