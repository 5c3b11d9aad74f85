/* test_plain.cu - plain CUDA, as users write it, on the emulator: see self.sh */

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include "../../support/test.h"

namespace cg = cooperative_groups;

#define OK(call) CHECK_EQ_INT(call, 0)

static float *managed(int n) { /* page-locked: kernels and host see it */
    float *p = NULL;
    OK(cudaMallocHost((void **)&p, (size_t)n * sizeof *p));
    for (int i = 0; i < n; i++) p[i] = (float)i;
    return p;
}

/* ---- launches ---- */

struct pair { float a, b; };

__global__ static void k_put(float *x, float v) { x[blockIdx.x * blockDim.x + threadIdx.x] = v; }
__global__ static void k_pair(float *x, pair p, const float *null) {
    x[threadIdx.x] = null == NULL ? p.a + p.b : -1.0f;
}
template <class T> __global__ static void k_deduced(T *x, T v) { x[threadIdx.x] = v; }
template <int N, class T> __global__ static void k_half_deduced(T *x) { x[threadIdx.x] = N; }

static int calls;
static int count(void) { return ++calls; }

template <class T> static void from_template(T *x, cudaStream_t s) {
    k_deduced<T><<<1, 4, 0, s>>>(x, (T)9);
}

TEST(launches, "kernel<<<grid, block, shared, stream>>>(arguments), in all its forms") {
    float       *x = managed(64);
    cudaStream_t s;
    OK(cudaStreamCreate(&s));
    k_put<<<2, 32>>>(x, 3); /* an int for a float */
    OK(cudaDeviceSynchronize());
    CHECK_EQ_F32(x[63], 3.0f);
    k_put<<<dim3(2, 1, 1), dim3(8), 0, s>>>(x, 4.0f), k_put <<<1, 4, 0, 0>>> (x, 5.0f);
    OK(cudaDeviceSynchronize());
    CHECK_EQ_F32(x[3], 5.0f);
    CHECK_EQ_F32(x[15], 4.0f);
    CHECK_EQ_F32(x[16], 3.0f);
    for (int i = 0; i < 2; i++)
        k_pair<<<
            1,
            i + 1
        >>>(x, pair{1.0f, (float)i},
            NULL);
    OK(cudaDeviceSynchronize());
    CHECK_EQ_F32(x[1], 2.0f);
    CHECK_EQ_F32(x[2], 5.0f);
    k_deduced<<<1, 2>>>(x, 6.0f);
    k_deduced<float><<<1, 1>>>(x, 7);
    k_half_deduced<8><<<1, 1>>>(x + 2);
    from_template(x + 4, s);
    OK(cudaDeviceSynchronize());
    CHECK_EQ_F32(x[0], 7.0f);
    CHECK_EQ_F32(x[1], 6.0f);
    CHECK_EQ_F32(x[2], 8.0f);
    CHECK_EQ_F32(x[7], 9.0f);
    void (*const kernel)(float *, float) = k_put;
    kernel<<<1, 1>>>(x, (float)count());
    OK(cudaDeviceSynchronize());
    CHECK_EQ_F32(x[0], 1.0f);
    CHECK_EQ_INT(calls, 1);
    OK(cudaStreamDestroy(s));
    OK(cudaFreeHost(x));
}

TEST(arguments, "arguments are those of the call, however late the kernel runs") {
    float *x = managed(4), v = 1.0f;
    emu_async = 1;
    k_put<<<1, 1>>>(x, v);
    k_deduced<<<1, 1>>>(x + 1, v);
    v = 2.0f;
    CHECK_EQ_F32(x[1], 1.0f);
    CHECK_EQ_F32(x[0], 0.0f);
    OK(cudaDeviceSynchronize());
    CHECK_EQ_F32(x[0], 1.0f);
    OK(cudaFreeHost(x));
}

TEST(errors, "a launch that is refused is the last error, and runs nothing") {
    float *x = managed(4);
    k_put<<<1, 2000>>>(x, 1.0f);
    CHECK_EQ_INT(cudaGetLastError(), cudaErrorInvalidConfiguration);
    k_deduced<<<0, 1>>>(x, 1.0f);
    CHECK_EQ_INT(cudaGetLastError(), cudaErrorInvalidConfiguration);
    CHECK_EQ_INT(cudaGetLastError(), cudaSuccess);
    CHECK_EQ_F32(x[0], 0.0f);
    OK(cudaFreeHost(x));
}

/* ---- shared memory whose size a launch says ---- */

extern __shared__ __align__(16) unsigned char whole[];

__global__ static void k_reverse(float *x, int n) {
    extern __shared__ float tile[];
    const int i = (int)threadIdx.x;
    tile[i]     = x[i];
    __syncthreads();
    x[i] = tile[n - 1 - i];
}
template <class T> __global__ static void k_rubbish(T *out, int n, int *all) {
    extern __shared__ T room[];
    for (int i = 0; i < n; i++) *all += whole[i] == 0xff;
    room[0] = *out = 0;
}
__global__ static void k_far(float *out, int n) {
    extern __shared__ float tile[];
#ifdef BUG_DYNAMIC
    n++;
#endif
    for (int i = 0; i < n; i++) tile[i] = 1.0f;
    *out = tile[n - 1];
}

TEST(dynamic, "extern __shared__ arrays have the launch's bytes, and hold rubbish in each block") {
    float *x = managed(33), *all = managed(1);
    k_reverse<<<1, 33, 33 * sizeof(float)>>>(x, 33);
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < 33; i++) CHECK_EQ_F32(x[i], (float)(32 - i));
    for (int n = 8; n <= 4096; n *= 8) {
        memset(all, 0, sizeof *all);
        k_rubbish<<<2, 1, n>>>(x, n, (int *)all);
        OK(cudaDeviceSynchronize());
        CHECK_EQ_INT(*(int *)all, 2 * n);
    }
    k_far<<<1, 1, 48 << 10>>>(x, 12 << 10);
    OK(cudaGetLastError());
    CHECK_EQ_F32(x[0], 1.0f);
    k_far<<<1, 1, (48 << 10) + 1>>>(x, 1);
    CHECK_EQ_INT(cudaGetLastError(), cudaErrorInvalidValue);
    OK(cudaFuncSetAttribute((const void *)k_far, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 << 10));
    k_far<<<1, 1, 227 << 10>>>(x, 227 << 8);
    OK(cudaGetLastError());
    CHECK_EQ_INT(cudaFuncSetAttribute((const void *)k_far, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (227 << 10) + 1), cudaErrorInvalidValue);
    cudaGetLastError();
    OK(cudaFreeHost(x));
    OK(cudaFreeHost(all));
}

/* ---- barriers, groups, numbers ---- */

__global__ static void k_some_leave(float *x, int leave, int before) {
    __shared__ float first;
    const int i = (int)threadIdx.x;
    if (before && i % leave == 0 && i > 0) return;
    if (i == 0) first = 5.0f;
    x[i] = (float)__syncthreads_count(1);
    if (i % leave == 0 && i > 0) return;
    x[i] += first;
    __syncthreads();
    if (i == 0) first = 7.0f;
    __syncthreads();
    x[i] += first;
}

TEST(barriers, "a barrier does not count threads that have ended, in any order") {
    for (unsigned seed = 0; seed < 4; seed++) {
        emu_seed = seed;
        for (int before = 0; before < 2; before++) {
            float *x = managed(70);
            k_some_leave<<<1, 70>>>(x, 3, before);
            OK(cudaDeviceSynchronize());
            for (int i = 0; i < 70; i++)
                CHECK_EQ_F32(x[i], i % 3 == 0 && i > 0 ? before ? (float)i : 70.0f
                                                       : (before ? 47.0f : 70.0f) + 12.0f);
            OK(cudaFreeHost(x));
        }
    }
}

template <unsigned N> __global__ static void k_tiles(float *x) {
    const cg::thread_block             block = cg::this_thread_block();
    const cg::thread_block_tile<N> tile  = cg::tiled_partition<N>(block);
    const float                        r     = (float)block.thread_rank();
    float *const                       out   = x + 8 * block.thread_rank();
    out[0] = cg::reduce(tile, r, cg::plus<float>());
    out[1] = cg::reduce(tile, r, cg::greater<float>()) - cg::reduce(tile, r, cg::less<float>());
    out[2] = tile.shfl(r, 1);
    out[3] = tile.shfl_xor(r, N / 2);
    out[4] = (float)(tile.meta_group_rank() * 100 + tile.thread_rank());
    out[5] = tile.shfl_up(r, 1) - 100.0f * tile.shfl_down(r, 1);
    out[6] = (float)(tile.any(tile.thread_rank() == 2) + 2 * tile.all(tile.thread_rank() < N));
    out[7] = (float)(tile.ballot(tile.thread_rank() < 3) + 10 * block.num_threads());
    tile.sync();
    block.sync();
}

template <unsigned N> static void tiles(void) {
    float *x = managed(64 * 8);
    k_tiles<N><<<1, dim3(16, 4)>>>(x);
    OK(cudaDeviceSynchronize());
    for (unsigned i = 0; i < 64; i++) {
        const float *const at = x + 8 * i;
        const unsigned     lane = i % N, first = i - lane;
        CHECK_EQ_F32(at[0], (float)(N * first + N * (N - 1) / 2));
        CHECK_EQ_F32(at[1], (float)(N - 1));
        CHECK_EQ_F32(at[2], (float)(first + 1));
        CHECK_EQ_F32(at[3], (float)(i ^ N / 2));
        CHECK_EQ_F32(at[4], (float)(i / N * 100 + lane));
        CHECK_EQ_F32(at[5], (float)(lane > 0 ? i - 1 : i) - 100.0f * (float)(lane + 1 < N ? i + 1 : i));
        CHECK_EQ_F32(at[6], 3.0f);
        CHECK_EQ_F32(at[7], 647.0f);
    }
    OK(cudaFreeHost(x));
}

TEST(groups, "tiles of a warp reduce, shuffle and vote among themselves") {
    for (unsigned seed = 0; seed < 3; seed++) {
        emu_seed = seed;
        tiles<32>();
        tiles<16>();
        tiles<4>();
    }
}

__global__ static void k_numbers(float *x) {
    x[0] = rsqrtf(16.0f), x[1] = (float)rsqrt(0.25), x[2] = __expf(0.0f), x[3] = __logf(1.0f);
    x[4] = __powf(2.0f, 5.0f), x[5] = __fdividef(3.0f, 4.0f), x[6] = __saturatef(1.5f);
    x[7] = __saturatef(-1.0f), x[8] = max(1.0f, NAN), x[9] = (float)min(3u, 2u);
    x[10] = (float)max(-1, 2), x[11] = __sinf(0.0f) + __cosf(0.0f), x[12] = __frsqrt_rn(4.0f);
    x[13] = __saturatef(NAN), x[14] = __saturatef(0.25f), x[15] = __log2f(8.0f) + __exp10f(2.0f);
}

TEST(numbers, "what CUDA's mathematical functions have and C's have not") {
    const float wanted[] = {0.25f, 2, 1, 0, 32, 0.75f, 1, 0, 1, 2, 2, 1, 0.5f, 0, 0.25f, 103};
    float *x = managed(16);
    k_numbers<<<1, 1>>>(x);
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < 16; i++) CHECK_EQ_F32(x[i], wanted[i]);
    OK(cudaFreeHost(x));
}

TEST(blas, "cublasSaxpy and cublasSscal, with steps, alpha on the host or the device, and refusals") {
    cublasHandle_t h;
    float         *x, *y, two = 2.0f, host[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    OK(cudaMalloc((void **)&x, sizeof host));
    OK(cudaMalloc((void **)&y, sizeof host));
    OK(cudaMemcpy(x, host, sizeof host, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(y, host, sizeof host, cudaMemcpyHostToDevice));
    OK(cublasCreate(&h));
    emu_async = 1;
    OK(cublasSaxpy(h, 8, &two, x, 1, y, 1));
    two = 3.0f;
    OK(cublasSscal(h, 3, &two, y + 1, 3));
    OK(cublasSaxpy(h, 1, &two, y, 1, y, 1));
    OK(cublasSaxpy(h, 4, &two, x, 2, y, 1));
    OK(cublasSetPointerMode(h, CUBLAS_POINTER_MODE_DEVICE));
    OK(cublasSscal(h, 1, x + 4, y + 7, 1));
    CHECK_EQ_INT(cublasSscal(h, 1, NULL, y, 1), CUBLAS_STATUS_INVALID_VALUE);
    CHECK_EQ_INT(cublasSaxpy(NULL, 1, &two, x, 1, y, 1), CUBLAS_STATUS_NOT_INITIALIZED);
    OK(cublasSaxpy(h, 0, x, x, 1, y, 1));
    OK(cudaMemcpy(host, y, sizeof host, cudaMemcpyDeviceToHost));
    const float wanted[] = {0, 9 + 6, 6 + 12, 9 + 18, 36, 15, 18, 63 * 4};
    for (int i = 0; i < 8; i++) CHECK_EQ_F32(host[i], wanted[i]);
    OK(cublasDestroy(h));
    OK(cudaFree(x));
    OK(cudaFree(y));
}

#define RUN_CLEAN(name) (emu_reset(), RUN(name))

int main(int argc, char **argv) {
    test_begin(argc, argv);
    RUN_CLEAN(launches);
    RUN_CLEAN(arguments);
    RUN_CLEAN(errors);
    RUN_CLEAN(dynamic);
    RUN_CLEAN(barriers);
    RUN_CLEAN(groups);
    RUN_CLEAN(numbers);
    RUN_CLEAN(blas);
    return test_end();
}
