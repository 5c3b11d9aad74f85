/* blas.h - OpenBLAS as a rival, where it is: one thread, OPENBLAS_CORETYPE as the tier. Link with -ldl */

#ifndef BENCH_BLAS_H
#define BENCH_BLAS_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* cblas_sgemm; NULL: there is none. */
static void (*blas)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a, int lda,
                    const float *b, int ldb, float beta, float *c, int ldc);

static void find_blas(const char *tier) {
    static const char *const files[] = {"libopenblas.so.0", "libopenblas.so", "libopenblas.dylib"};
    size_t i;
    void  *library = NULL, *symbol = NULL;
    setenv("OPENBLAS_CORETYPE", strcmp(tier, "avx2") == 0 ? "HASWELL" : "SKYLAKEX", 0);
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    for (i = 0; i < sizeof files / sizeof files[0] && !library; i++) library = dlopen(files[i], RTLD_NOW);
    if (library) symbol = dlsym(library, "cblas_sgemm");
    if (symbol) memcpy(&blas, &symbol, sizeof blas); /* C has no cast from an object's pointer to a function's */
    else printf("skip BLAS: no libopenblas\n");
}

#endif
