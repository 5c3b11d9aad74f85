/* Says the tier, and makes one product, for tests/host/arm.sh to count instructions. */
#include "amp.h"
#include <stdio.h>
#include <string.h>

enum { N = 128 };
static float    a[N * N], b[N * N], c[N * N];
static uint16_t a16[N * N], b16[N * N];

int main(int argc, char **argv) {
    const char *way = argc > 1 ? argv[1] : "none";
    const amp_gemm_args g = {.m = N, .n = N, .k = N, .a = a16, .a_type = AMP_BF16,
                             .b = b16, .b_type = AMP_BF16, .c = c};
    int         i;
    puts(amp_cpu_tier());
    for (i = 0; i < N * N; i++) a[i] = (float)(i % 7), b[i] = (float)(i % 5) - 2.0f;
    amp_cast(a16, AMP_BF16, a, AMP_F32, N * N);
    amp_cast(b16, AMP_BF16, b, AMP_F32, N * N);
    if (!strcmp(way, "fp32")) amp_matmul(c, a, b, N, N, N, AMP_F32);
    if (!strcmp(way, "rounded")) amp_matmul(c, a, b, N, N, N, AMP_BF16);
    if (!strcmp(way, "bf16")) amp_gemm(NULL, &g);
    return 0;
}
