/* bugs.cu - a small program that is correct, and wrong in one way per -DBUG_...: for each there is
   a tool that must say so (emu.sh). It sums whole numbers, so that the sum is exact in any order.

   usage: bugs [SEED]; 0 if the sum is right, 1 with "wrong sum" or the error if it is not */

#include <cuda_runtime.h>
#include "cuda_emu.h"

#include <stdio.h>
#include <stdlib.h>

template <class T> struct same { typedef T type; };
template <class... P>
static cudaError_t launch(void (*k)(P...), unsigned grid, unsigned block, cudaStream_t s,
                          typename same<P>::type... a) {
    void *args[] = {(void *)&a...};
    return cudaLaunchKernel((const void *)k, dim3(grid), dim3(block), args, 0, s);
}

/* The sum over the block, in thread 0. */
static __device__ float block_sum(float v) {
    __shared__ float part[32];
    for (int d = 16; d > 0; d >>= 1) v += __shfl_down_sync(0xffffffffu, v, d);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
#ifndef BUG_BARRIER
    __syncthreads();
#endif
    v = 0;
    if (threadIdx.x == 0)
        for (unsigned i = 0; i < blockDim.x / 32; i++) v += part[i];
    __syncthreads();
    return v;
}

/* The last block to finish adds what the blocks have left in partial. */
static __global__ void __launch_bounds__(64)
    sum(const float *x, size_t n, float *partial, unsigned *done, float *out) {
    __shared__ bool last;
    const size_t    first = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const size_t    step = (size_t)gridDim.x * blockDim.x;
#ifdef BUG_ALIGNMENT
    const size_t vectors = n / 4;
#else
    const size_t vectors = (uintptr_t)x % 16 == 0 ? n / 4 : 0;
#endif
#ifdef BUG_TAIL
    const size_t end = n + 1;
#else
    const size_t end = n;
#endif
    float v = 0;
    for (size_t i = first; i < vectors; i += step) {
        float4 q = ((const float4 *)x)[i];
        v += q.x + q.y + q.z + q.w;
    }
    for (size_t i = 4 * vectors + first; i < end; i += step) v += x[i];
    v = block_sum(v);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = v;
#ifndef BUG_FENCE
        __threadfence();
#endif
#ifdef BUG_FENCE_EARLY
        partial[blockIdx.x] = v;
#endif
        last = atomicInc(done, gridDim.x - 1) == gridDim.x - 1;
#ifndef BUG_FENCE_BEHIND
        __threadfence();
#endif
    }
    __syncthreads();
    if (!last) return;
    v = block_sum(threadIdx.x < gridDim.x ? partial[threadIdx.x] : 0.0f);
    if (threadIdx.x == 0) *out = v;
}

#define TRY(call)                                                                  \
    do {                                                                           \
        cudaError_t e = (call);                                                    \
        if (e != cudaSuccess) {                                                    \
            printf("%s: %d %s\n", #call, (int)e, cudaGetErrorName(e));             \
            failed = 1;                                                            \
        }                                                                          \
    } while (0)

int main(int argc, char **argv) {
    enum { N = 1003, BLOCKS = 3 };
    static float    source[N + 1]; /* x begins at the second element: it is not aligned */
    float          *x = NULL, *partial = NULL, *out = NULL, expected = 0;
    static float    got;
    unsigned       *done = NULL;
    cudaStream_t    s;
    cudaGraph_t     graph = NULL;
    cudaGraphExec_t exec = NULL;
    int             failed = 0;
    for (int i = 1; i <= N; i++) expected += source[i] = (float)(i % 7);
    emu_seed  = argc > 1 ? (unsigned)atoi(argv[1]) : 0;
    emu_async = 1;
    TRY(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    TRY(cudaMalloc(&partial, BLOCKS * sizeof(float)));
    TRY(cudaMalloc(&done, sizeof(unsigned)));
    TRY(cudaMalloc(&out, sizeof(float)));
    TRY(cudaMalloc(&x, sizeof source));
    TRY(cudaMemcpyAsync(x, source, sizeof source, cudaMemcpyHostToDevice, s));
    TRY(cudaMemsetAsync(done, 0, sizeof(unsigned), s));

    TRY(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
#ifdef BUG_CAPTURE
    void *more = NULL;
    TRY(cudaMalloc(&more, 4));
#endif
    TRY(launch(sum, BLOCKS, 64, s, x + 1, N, partial, done, out));
    TRY(cudaStreamEndCapture(s, &graph));
    if (!failed) {
        TRY(cudaGraphInstantiate(&exec, graph, 0));
        TRY(cudaGraphLaunch(exec, s));
        TRY(cudaMemcpyAsync(&got, out, sizeof got, cudaMemcpyDeviceToHost, s));
#ifndef BUG_SYNCHRONISATION
        TRY(cudaStreamSynchronize(s));
#endif
#ifdef BUG_HOST_READ
        got = *out;
#endif
        if (got != expected) printf("wrong sum\n"), failed = 1;
        TRY(cudaGraphExecDestroy(exec));
        TRY(cudaGraphDestroy(graph));
    }
    TRY(cudaFree(x));
    TRY(cudaFree(out));
    TRY(cudaFree(done));
    TRY(cudaFree(partial));
    TRY(cudaStreamDestroy(s));
    return failed;
}
