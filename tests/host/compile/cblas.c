/* AMP_CBLAS: amp_gemm multiplies with the BLAS. */
#include <cblas.h>
#define AMP_CBLAS
#define AMP_IMPLEMENTATION
#include "amp.h"

int main(void) {
    static const float a[4] = {1, 2, 3, 4}, b[4] = {5, 6, 7, 8};
    float              c[4] = {0, 0, 0, 0};
    if (amp_matmul(c, a, b, 2, 2, 2, AMP_F32)) return 1;
    return c[0] < 18.5f || c[0] > 19.5f || c[3] < 49.5f || c[3] > 50.5f;
}
