/* test_emu.cpp - tests of the emulator itself. Kernels and host code in one file, compiled like
   a .cu: c++ -std=c++14 -include cuda_emu.h -x c++ test_emu.cpp; see emu.sh. */

#include "../../support/random.h"
#include "../../support/test.h"
#include "cuda_emu.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

/* The numbers of CUDA 13, whichever headers are in use. */
static_assert(cudaErrorInvalidResourceHandle == 400 && cudaErrorNotReady == 600 &&
                  cudaErrorStreamCaptureUnsupported == 900 && cudaErrorCapturedEvent == 907 &&
                  cudaErrorInvalidConfiguration == 9 && cudaErrorNoDevice == 100 &&
                  cudaErrorIllegalState == 401 && cudaErrorNotSupported == 801,
              "errors");
static_assert(CUBLAS_COMPUTE_32F == 68 && CUBLAS_COMPUTE_32F_FAST_TF32 == 77 &&
                  CUBLAS_STATUS_NOT_SUPPORTED == 15 && CUDA_R_16BF == 14 && CUDA_R_16F == 2 &&
                  CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION == 16,
              "cuBLAS");
static_assert(cudaDevAttrMultiProcessorCount == 16 && cudaDevAttrComputeCapabilityMajor == 75 &&
                  cudaGraphNodeTypeConditional == 13 && cudaStreamSetCaptureDependencies == 1,
              "enumerations");
static_assert(sizeof(cudaGraphNodeParams) == 256 && sizeof(cudaGraphEdgeData) == 8 &&
                  sizeof(dim3) == 12 && alignof(uint4) == 16 && alignof(float2) == 8 &&
                  alignof(ushort4) == 8 && sizeof(cudaConditionalNodeParams) == 24,
              "layouts");

#define OK(call)          CHECK_EQ_INT(call, cudaSuccess)
#define FAILS(call, with) CHECK_EQ_INT(call, with)

template <class T> struct same { typedef T type; };
template <class... P>
static cudaError_t launch(void (*k)(P...), unsigned grid, unsigned block, cudaStream_t s,
                          typename same<P>::type... a) {
    void *args[] = {(void *)&a...};
    return cudaLaunchKernel((const void *)k, dim3(grid), dim3(block), args, 0, s);
}

/* Device memory that the host reads and writes by copies. */
template <class T> struct device {
    T     *p;
    size_t n;
    explicit device(size_t count) : p(NULL), n(count) { cudaMalloc((void **)&p, n * sizeof(T)); }
    device(const std::vector<T> &v) : p(NULL), n(v.size()) {
        cudaMalloc((void **)&p, n * sizeof(T));
        cudaMemcpy(p, v.data(), n * sizeof(T), cudaMemcpyHostToDevice);
    }
    ~device() { cudaFree(p); }
    void zero() { cudaMemset(p, 0, n * sizeof(T)); }
    std::vector<T> get() const {
        std::vector<T> v(n);
        cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost);
        return v;
    }
    T at(size_t i) const { return get()[i]; }
  private:
    device(const device &);
};

static const unsigned seeds[] = {0, 1, 2, 77};

/* ======================================================================================
   Kernels
   ====================================================================================== */

__global__ static void k_index(uint4 *out) {
    unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] =
        make_uint4(threadIdx.x, threadIdx.y, threadIdx.z, blockIdx.x | blockIdx.z << 8);
}

__global__ static void k_order(unsigned *next, unsigned *order) {
    order[atomicAdd(next, 1u)] = blockIdx.x * blockDim.x + threadIdx.x;
}

struct big { int a[28]; const int *in; };

template <class T>
__global__ __launch_bounds__(256) static void k_struct(big b, T *__restrict__ out, float scale) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < 28) out[i] = (T)(b.a[i] + __ldg(b.in + i)) * (T)scale;
}

/* A shared array in a function that is not a template, so that gcc puts it into the section. */
__device__ static float block_sum(float v) {
    __shared__ float part[32];
    for (int d = 16; d > 0; d >>= 1) v += __shfl_down_sync(0xffffffffu, v, d);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0.0f;
    if (threadIdx.x < 32)
        for (int d = 16; d > 0; d >>= 1) v += __shfl_down_sync(0xffffffffu, v, d);
    __syncthreads();
    return v;
}

__global__ static void k_sum(const float *x, unsigned n, float *out) {
    float v = 0;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        v += __ldcg(x + i);
    v = block_sum(v);
    if (threadIdx.x == 0) atomicAdd(out, v);
}

__global__ static void k_barriers(int *out) {
    int count = __syncthreads_count(threadIdx.x % 3 == 0);
    int any   = __syncthreads_or(threadIdx.x == 5) + 2 * __syncthreads_or(0);
    int all   = __syncthreads_and(1) + 2 * __syncthreads_and(threadIdx.x != 5);
    out[threadIdx.x] = count * 100 + any * 10 + all;
}

/* One row of results per collective. */
__global__ static void k_warp(unsigned *out) {
    const unsigned t = threadIdx.x, n = blockDim.x, lane = t % 32, full = 0xffffffffu;
    unsigned       v = 1000 + t, *row = out + t;
    row[0 * n] = __shfl_sync(full, v, 7);
    row[1 * n] = __shfl_sync(full, v, 3, 8);
    row[2 * n] = __shfl_up_sync(full, v, 2);
    row[3 * n] = __shfl_down_sync(full, v, 2, 8);
    row[4 * n] = __shfl_xor_sync(full, v, 5);
    row[5 * n] = __ballot_sync(full, lane % 2);
    row[6 * n] = (unsigned)(__any_sync(full, lane == 9) + 2 * __any_sync(full, 0) +
                            4 * __all_sync(full, 1) + 8 * __all_sync(full, lane != 9));
    if (lane < 4) row[7 * n] = __ballot_sync(0xfu, lane != 1); /* two masks, different lines */
    else row[7 * n] = __shfl_sync(0xfffffff0u, v, 31);
    __syncwarp();
    row[8 * n] = (unsigned)(__shfl_sync(full, (unsigned long long)v << 32, 1) >> 32);
    row[9 * n] = (unsigned)__shfl_sync(full, (float)v, 2);
}

__global__ static void k_atomics(int *i, unsigned *u, unsigned long long *l, float *f, double *d) {
    const unsigned t = threadIdx.x;
    atomicAdd(i + 0, 2);
    atomicMax(i + 1, (int)t);
    atomicMin(i + 2, -(int)t);
    atomicAdd(u + 0, 3u);
    atomicMax(u + 1, t);
    atomicMin(u + 2, t + 5);
    atomicOr(u + 3, 1u << t % 32);
    atomicAnd(u + 4, ~(1u << t % 8));
    atomicInc(u + 5, 9u);
    atomicAdd(u + 6, atomicExch(u + 7, 1u));
    atomicAdd(u + 8, atomicCAS(u + 9, 0u, 1u));
    atomicAdd(l + 0, 1ull << 33);
    atomicMax(l + 1, (unsigned long long)t << 32);
    atomicAdd(f, 0.5f);
    atomicAdd(d, 0.25);
}

__global__ static void k_shared(unsigned *out) {
    __shared__ unsigned word[64];
    out[blockIdx.x * blockDim.x + threadIdx.x] = word[threadIdx.x];
    word[threadIdx.x] = 5;
}

__global__ static void k_add(float *x, float v) { x[threadIdx.x] += v; }
__global__ static void k_scale(float *x, float v) { x[threadIdx.x] *= v; }
__global__ static void k_condition(cudaGraphConditionalHandle h, const int *flag) {
    if (threadIdx.x == 0) cudaGraphSetConditional(h, (unsigned)*flag);
}

/* ======================================================================================
   Threads
   ====================================================================================== */

TEST(indices, "threads and blocks in three dimensions have their indices") {
    for (unsigned seed : seeds) {
        emu_seed = seed;
        device<uint4> out(5 * 2 * 3 * 4 * 3 * 2);
        uint4        *p = out.p;
        void         *args[] = {&p};
        OK(cudaLaunchKernel((const void *)k_index, dim3(5, 2, 3), dim3(4, 3, 2), args, 0,
                            (cudaStream_t)0));
        std::vector<uint4> got = out.get();
        int                wrong = 0;
        for (unsigned i = 0; i < got.size(); i++) {
            unsigned t = i % 24, b = i / 24;
            wrong += got[i].x != t % 4 || got[i].y != t / 4 % 3 || got[i].z != t / 12 ||
                     got[i].w != (b % 5 | b / 10 << 8);
        }
        CHECK_EQ_INT(wrong, 0);
    }
    emu_seed = 0;
}

TEST(order, "emu_seed shuffles blocks and threads, 0 leaves them in order, all run once") {
    const unsigned        n = 6 * 64;
    std::vector<unsigned> first;
    for (unsigned seed : seeds) {
        emu_seed = seed;
        device<unsigned> next(1), order(n);
        next.zero();
        OK(launch(k_order, 6, 64, 0, next.p, order.p));
        std::vector<unsigned> got = order.get(), seen(n);
        unsigned              inversions = 0;
        for (unsigned i = 0; i < n; i++) {
            seen[got[i]]++;
            if (i > 0) inversions += got[i] < got[i - 1];
        }
        for (unsigned i = 0; i < n; i++) CHECK_EQ_INT(seen[i], 1);
        CHECK(seed == 0 ? inversions == 0 : inversions > 50);
        CHECK(seed == 0 || got != first);
        first = got;
    }
    emu_seed = 0;
}

TEST(arguments, "kernels may be templates and take structs by value, copied at the launch") {
    std::vector<int> in(28, 100);
    device<int>      d(in);
    device<double>   out(28);
    big              b;
    for (int i = 0; i < 28; i++) b.a[i] = i;
    b.in = d.p;
    emu_async = 1;
    OK(launch(k_struct<double>, 2, 16, 0, b, out.p, 2));
    b.a[3] = 1000;
    emu_async = 0;
    CHECK_EQ_F64(out.at(3), 206.0);
    CHECK_EQ_F64(out.at(27), 254.0);
}

TEST(reduction, "barriers, shuffles and shared memory sum a vector, in any order") {
    std::vector<float> x(10007);
    double             sum = 0;
    for (size_t i = 0; i < x.size(); i++) sum += x[i] = (float)(i % 17);
    device<float> d(x);
    for (unsigned seed : seeds)
        for (unsigned block = 32; block <= 512; block *= 2) {
            emu_seed = seed;
            device<float> out(1);
            out.zero();
            OK(launch(k_sum, 3, block, 0, d.p, (unsigned)x.size(), out.p));
            CHECK_EQ_F32(out.at(0), (float)sum);
        }
    emu_seed = 0;
}

TEST(barrier_votes, "__syncthreads_count, _or and _and") {
    for (unsigned seed : seeds) {
        emu_seed = seed;
        device<int> out(100);
        OK(launch(k_barriers, 1, 100, 0, out.p));
        for (int v : out.get()) CHECK_EQ_INT(v, 34 * 100 + 1 * 10 + 1);
    }
    emu_seed = 0;
}

TEST(warps, "shuffles, votes and disjoint masks") {
    const unsigned n = 96;
    for (unsigned seed : seeds) {
        emu_seed = seed;
        device<unsigned> out(10 * n);
        OK(launch(k_warp, 1, n, 0, out.p));
        std::vector<unsigned> r = out.get();
        for (unsigned t = 0; t < n; t++) {
            const unsigned lane = t % 32, warp = 1000 + t - lane;
            CHECK_EQ_U32(r[0 * n + t], warp + 7);
            CHECK_EQ_U32(r[1 * n + t], warp + lane / 8 * 8 + 3);
            CHECK_EQ_U32(r[2 * n + t], warp + (lane < 2 ? lane : lane - 2));
            CHECK_EQ_U32(r[3 * n + t], warp + (lane % 8 < 6 ? lane + 2 : lane));
            CHECK_EQ_U32(r[4 * n + t], warp + (lane ^ 5));
            CHECK_EQ_U32(r[5 * n + t], 0xaaaaaaaau);
            CHECK_EQ_U32(r[6 * n + t], 1 + 4);
            CHECK_EQ_U32(r[7 * n + t], lane < 4 ? 0xdu : warp + 31);
            CHECK_EQ_U32(r[8 * n + t], warp + 1);
            CHECK_EQ_U32(r[9 * n + t], warp + 2);
        }
    }
    emu_seed = 0;
}

TEST(atomics, "atomic operations") {
    std::vector<unsigned> u0(10);
    u0[2] = 1000, u0[4] = 0xffffffffu, u0[7] = 7;
    device<int>                i(std::vector<int>(3));
    device<unsigned>           u(u0);
    device<unsigned long long> l(std::vector<unsigned long long>(2));
    device<float>              f(std::vector<float>(1));
    device<double>             d(std::vector<double>(1));
    OK(launch(k_atomics, 1, 100, 0, i.p, u.p, l.p, f.p, d.p));
    CHECK_EQ_INT(i.at(0), 200);
    CHECK_EQ_INT(i.at(1), 99);
    CHECK_EQ_INT(i.at(2), -99);
    const unsigned expected[10] = {300, 99, 5, 0xffffffffu, 0xffffff00u, 0, 7 + 99, 1, 99, 1};
    for (size_t j = 0; j < 10; j++) CHECK_EQ_U32(u.at(j), expected[j]);
    CHECK_EQ_U64(l.at(0), 100ull << 33);
    CHECK_EQ_U64(l.at(1), 99ull << 32);
    CHECK_EQ_F32(f.at(0), 50.0f);
    CHECK_EQ_F64(d.at(0), 25.0);
}

TEST(intrinsics, "bit and rounding intrinsics") {
    CHECK_EQ_U32(__float_as_uint(-1.0f), 0xbf800000u);
    CHECK_EQ_F32(__uint_as_float(0x40400000u), 3.0f);
    CHECK_EQ_INT(__float_as_int(0.0f), 0);
    CHECK_EQ_INT(__popc(0xf0f0u), 8);
    CHECK_EQ_INT(__clz(0), 32);
    CHECK_EQ_INT(__clz(1), 31);
    CHECK_EQ_INT(__clz(-1), 0);
    CHECK_EQ_INT(__clzll(1), 63);
    CHECK_EQ_INT(__ffs(0), 0);
    CHECK_EQ_INT(__ffs(8), 4);
    CHECK_EQ_U32(__umulhi(0x80000000u, 6u), 3);
    CHECK_EQ_U64(__umul64hi(1ull << 63, 6), 3);
    const float x = 1.0f + 1.0f / 8192, square = __fmul_rn(x, x); /* rounds 2^-26 away */
    CHECK_EQ_F32(__fsub_rn(square, __fadd_rn(1.0f, 1.0f / 4096)), 0.0f);
    CHECK_EQ_F32(__fmaf_rn(x, x, -square), 1.0f / 67108864);
    CHECK_EQ_F32(__fsqrt_rn(__fdiv_rn(9.0f, 4.0f)), 1.5f);
    CHECK_EQ_F32(cospif(0.0f), 1.0f);
    CHECK_EQ_F32(cospif(1.0f), -1.0f);
}

TEST(shared_rubbish, "shared memory is filled with 0xff before each block") {
#ifdef EMU_PLAIN_SHARED
    SKIP("plain statics in this build");
#endif
    device<unsigned> out(3 * 64);
    OK(launch(k_shared, 3, 64, 0, out.p));
    for (unsigned v : out.get()) CHECK_EQ_U32(v, 0xffffffffu);
}

TEST(launch_errors, "impossible launches are refused and remembered as the last error") {
    const unsigned bad[][3] = {{0, 1, 0}, {1, 0, 0}, {1, 1025, 0}, {65536, 2048, 0}};
    for (auto &b : bad) {
        device<float> x(2048);
        float        *p = x.p, v = 1;
        void         *args[] = {&p, &v};
        CHECK_EQ_INT(cudaLaunchKernel((const void *)k_add, dim3(b[0]), dim3(b[1]), args, b[2],
                                      (cudaStream_t)0),
                     cudaErrorInvalidConfiguration);
        CHECK_EQ_INT(cudaPeekAtLastError(), cudaErrorInvalidConfiguration);
        CHECK_EQ_INT(cudaGetLastError(), cudaErrorInvalidConfiguration);
        CHECK_EQ_INT(cudaGetLastError(), cudaSuccess);
    }
    CHECK(strcmp(cudaGetErrorName(cudaErrorNotReady), "cudaErrorNotReady") == 0);
    CHECK(strcmp(cudaGetErrorString(cudaSuccess), "no error") == 0);
}

/* ---- misuse ends the program ---- */

__global__ static void k_two_barriers(int) {
    if (threadIdx.x < 5) __syncthreads();
    else
        __syncthreads();
}
__global__ static void k_deadlock(int) { /* lanes 4 to 7 are at the barrier */
    if (threadIdx.x < 4) __ballot_sync(0xffu, 1);
    __syncthreads();
}
__global__ static void k_not_in_mask(int) { __ballot_sync(0xfffffffeu, 1); }
__global__ static void k_gone_lane(int which) {
    if ((int)threadIdx.x == which) return;
    __ballot_sync(0xffffffffu, 1);
}
__global__ static void k_two_collectives(int) {
    if (threadIdx.x % 2) __ballot_sync(0xffffffffu, 1);
    else __shfl_sync(0xffffffffu, 1, 0);
}
__global__ static void k_two_masks(int) {
    __ballot_sync(threadIdx.x < 3 ? 0xffffffffu : 0xfffffffeu, 1);
}
__global__ static void k_shuffle_outside(int source) {
    if (threadIdx.x < 8) __shfl_sync(0xffu, 1, source);
}
__global__ static void k_trap(int) { __trap(); }
__global__ static void k_misaligned(int offset) {
    __align__(16) float x[8] = {0};
    __stcs((float4 *)(x + offset), make_float4(0, 0, 0, 0));
}

static void dies(void (*kernel)(int), int argument, unsigned block, const char *text) {
    char    output[512];
    ssize_t n = 0, more;
    int     ends[2], status;
    fflush(stdout);
    if (pipe(ends) != 0) SKIP("no pipe");
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        close(ends[0]);
        signal(SIGABRT, SIG_DFL);
        launch(kernel, 1, block, 0, argument);
        _exit(0);
    }
    close(ends[1]);
    while (n < 511 && (more = read(ends[0], output + n, (size_t)(511 - n))) > 0) n += more;
    output[n] = '\0';
    close(ends[0]);
    waitpid(child, &status, 0);
    if (strstr(output, text) == NULL || strncmp(output, "cuda_emu: ", 10) != 0)
        test_fail(__FILE__, __LINE__, text, output[0] != '\0' ? output : "(no message)");
    CHECK(!WIFEXITED(status));
}

TEST(misuse, "misuse of barriers and warps aborts with one line that says what and where") {
    for (unsigned seed : {0u, 1u}) {
        emu_seed = seed;
        dies(k_two_barriers, 0, 32, "threads of one block wait at different __syncthreads");
        dies(k_deadlock, 0, 64, "deadlock: waits");
        dies(k_not_in_mask, 0, 32, "lane is not in its own mask");
        dies(k_two_collectives, 0, 32, "lanes of one mask are in different collectives");
        dies(k_shuffle_outside, 8, 32, "shuffle from a lane outside the mask");
        dies(k_trap, 0, 1, "__trap");
        dies(k_misaligned, 1, 1, "misaligned load or store");
    }
    emu_seed = 0;
    dies(k_two_masks, 0, 32, "lanes that wait for each other name different masks");
    dies(k_gone_lane, 0, 32, "a lane named in the mask has ended");
    dies(k_gone_lane, 31, 32, "a lane ends that a warp collective waits for");
}

/* ======================================================================================
   Memory
   ====================================================================================== */

TEST(memory, "device memory holds rubbish, is of exact size, and bounded in total") {
    size_t before = emu_live_allocations(), free_bytes, total;
    void  *p = NULL, *q = NULL, *h = NULL;
    OK(cudaMalloc(&p, 100));
    CHECK_EQ_INT(emu_is_device(p, 100), 1);
    CHECK_EQ_INT(emu_is_device(p, 101), 0);
    CHECK_EQ_INT(emu_is_device(&p, 1), 0);
    unsigned char bytes[100];
    OK(cudaMemcpy(bytes, p, 100, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 100; i++) CHECK_EQ_INT(bytes[i], 0xff);
    emu_device_memory = 1000;
    FAILS(cudaMalloc(&q, 901), cudaErrorMemoryAllocation);
    CHECK(q == NULL);
    OK(cudaMalloc(&q, 900));
    OK(cudaMemGetInfo(&free_bytes, &total));
    CHECK_EQ_U64(free_bytes, 0);
    CHECK_EQ_U64(total, 1000);
    OK(cudaMallocHost(&h, 5000));
    CHECK_EQ_U64(emu_live_allocations(), before + 3);
    CHECK_EQ_U64(emu_live_bytes(), 1000);
    FAILS(cudaFree(h), cudaErrorInvalidValue);
    FAILS(cudaFree((char *)p + 4), cudaErrorInvalidValue);
    OK(cudaFreeHost(h));
    OK(cudaFree(p));
    OK(cudaFree(q));
    OK(cudaFree(NULL));
    FAILS(cudaFree(p), cudaErrorInvalidValue);
    OK(cudaMalloc(&p, 0));
    CHECK(p == NULL);
    CHECK_EQ_U64(emu_live_allocations(), before);
}

TEST(copies, "copies check the kinds of both pointers and the sizes") {
    device<float> a(4), b(4);
    float         h[4] = {1, 2, 3, 4}, g[4];
    void         *pinned = NULL;
    OK(cudaMallocHost(&pinned, 16));
    OK(cudaMemcpy(a.p, h, 16, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(b.p, a.p, 16, cudaMemcpyDeviceToDevice));
    OK(cudaMemcpyAsync(pinned, b.p, 16, cudaMemcpyDeviceToHost, 0));
    OK(cudaMemcpy(g, pinned, 16, cudaMemcpyHostToHost));
    CHECK_MEM(g, h, 16);
    OK(cudaMemset(a.p, 0, 8));
    OK(cudaMemcpy(g, a.p, 16, cudaMemcpyDefault));
    CHECK_EQ_F32(g[1], 0.0f);
    CHECK_EQ_F32(g[2], 3.0f);
    FAILS(cudaMemcpy(h, g, 16, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    FAILS(cudaMemcpy(a.p, b.p, 16, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    FAILS(cudaMemcpy(a.p, b.p, 16, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    FAILS(cudaMemcpy(a.p, h, 16, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
    FAILS(cudaMemcpy(a.p + 1, h, 16, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    FAILS(cudaMemset(h, 0, 4), cudaErrorInvalidValue);
    FAILS(cudaMemsetAsync(a.p, 0, 17, 0), cudaErrorInvalidValue);
    OK(cudaFreeHost(pinned));
}

TEST(device, "the device is what the test says") {
    struct cudaDeviceProp p;
    int                   n = 0, v = 0;
    OK(cudaGetDeviceCount(&n));
    CHECK_EQ_INT(n, 1);
    emu_device_sms = 132;
    emu_device_major = 7;
    OK(cudaGetDeviceProperties(&p, 0));
    CHECK_EQ_INT(p.multiProcessorCount, 132);
    CHECK_EQ_INT(p.major, 7);
    CHECK_EQ_INT(p.warpSize, 32);
    OK(cudaDeviceGetAttribute(&v, cudaDevAttrMultiProcessorCount, 0));
    CHECK_EQ_INT(v, 132);
    FAILS(cudaGetDeviceProperties(&p, 1), cudaErrorInvalidDevice);
    FAILS(cudaSetDevice(1), cudaErrorInvalidDevice);
    OK(cudaRuntimeGetVersion(&v));
    CHECK_EQ_INT(v, 13000);
    emu_device_count = 0;
    FAILS(cudaGetDeviceCount(&n), cudaErrorNoDevice);
    CHECK_EQ_INT(n, 0);
    FAILS(cudaGetDevice(&n), cudaErrorNoDevice);
}

/* ======================================================================================
   Streams
   ====================================================================================== */

struct two_streams {
    cudaStream_t a, b;
    two_streams() {
        cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
        cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
    }
    ~two_streams() {
        cudaStreamDestroy(a);
        cudaStreamDestroy(b);
    }
};

TEST(deferred, "deferred work runs when the host waits, and not before") {
    two_streams   s;
    device<float> d(std::vector<float>(32, 1.0f));
    float         h[32] = {0};
    emu_async = 1;
    OK(launch(k_add, 1, 32, s.a, d.p, 1));
    OK(cudaMemcpyAsync(h, d.p, sizeof h, cudaMemcpyDeviceToHost, s.a));
    CHECK_EQ_F32(h[5], 0.0f);
    CHECK_EQ_U64(emu_pending(), 2);
    FAILS(cudaStreamQuery(s.a), cudaErrorNotReady);
    CHECK_EQ_INT(cudaGetLastError(), cudaErrorNotReady);
    OK(cudaStreamSynchronize(s.b));
    CHECK_EQ_F32(h[5], 0.0f);
    OK(cudaStreamSynchronize(s.a));
    CHECK_EQ_F32(h[5], 2.0f);
    OK(cudaStreamQuery(s.a));
    OK(launch(k_add, 1, 32, s.a, d.p, 1));
    while (cudaStreamQuery(s.a) == cudaErrorNotReady) {} /* ends */
    CHECK_EQ_U64(emu_pending(), 0);
    CHECK_EQ_INT(cudaGetLastError(), cudaErrorNotReady);
}

TEST(staging, "small pageable sources are read at the call, large and page-locked ones later") {
    two_streams            s;
    const size_t           large = (64 << 10) / sizeof(int) + 1;
    device<int>            a(1), b(large), c(1);
    int                    small = 1, *pinned = NULL;
    std::vector<int>       big_source(large, 1);
    OK(cudaMallocHost((void **)&pinned, sizeof(int)));
    *pinned   = 1;
    emu_async = 1;
    OK(cudaMemcpyAsync(a.p, &small, sizeof(int), cudaMemcpyHostToDevice, s.a));
    OK(cudaMemcpyAsync(b.p, big_source.data(), large * sizeof(int), cudaMemcpyHostToDevice, s.a));
    OK(cudaMemcpyAsync(c.p, pinned, sizeof(int), cudaMemcpyHostToDevice, s.a));
    small = big_source[large - 1] = *pinned = 2;
    OK(cudaStreamSynchronize(s.a));
    CHECK_EQ_INT(a.at(0), 1);
    CHECK_EQ_INT(b.at(large - 1), 2);
    CHECK_EQ_INT(c.at(0), 2);
    OK(cudaFreeHost(pinned));
}

TEST(stream_events, "an event orders two streams, at the point where it was recorded") {
    for (unsigned seed : seeds) {
        two_streams   s;
        device<float> d(std::vector<float>(32, 1.0f));
        cudaEvent_t   e, never;
        float         ms = 0;
        emu_seed = seed;
        OK(cudaEventCreateWithFlags(&e, cudaEventDefault));
        OK(cudaEventCreateWithFlags(&never, cudaEventDisableTiming));
        emu_async = 1;
        OK(cudaEventQuery(never));
        OK(cudaStreamWaitEvent(s.b, never, 0));
        OK(launch(k_add, 1, 32, s.a, d.p, 1));
        OK(cudaEventRecord(e, s.a));
        FAILS(cudaEventQuery(e), cudaErrorNotReady);
        FAILS(cudaEventElapsedTime(&ms, e, e), cudaErrorNotReady);
        OK(cudaStreamWaitEvent(s.b, e, 0));
        OK(launch(k_scale, 1, 32, s.b, d.p, 10));
        OK(cudaStreamSynchronize(s.b)); /* runs what it needs of a */
        OK(cudaEventSynchronize(e));
        OK(cudaEventQuery(e));
        OK(cudaEventElapsedTime(&ms, e, e));
        CHECK(ms > 0);
        FAILS(cudaEventElapsedTime(&ms, e, never), cudaErrorInvalidResourceHandle);
        CHECK_EQ_F32(d.at(0), 20.0f);
        OK(cudaEventDestroy(e));
        OK(cudaEventDestroy(never));
        FAILS(cudaEventRecord(e, s.a), cudaErrorInvalidResourceHandle);
        emu_async = 0;
    }
}

TEST(legacy_stream, "the default stream is ordered with blocking streams, not with others") {
    cudaStream_t  blocking;
    two_streams   s;
    device<float> d(std::vector<float>(32, 1.0f));
    OK(cudaStreamCreate(&blocking));
    emu_async = 1;
    OK(launch(k_add, 1, 32, blocking, d.p, 1));
    OK(launch(k_scale, 1, 32, s.a, d.p, 100));
    OK(launch(k_scale, 1, 32, 0, d.p, 10));
    OK(launch(k_add, 1, 32, blocking, d.p, 5));
    OK(cudaStreamSynchronize(blocking));
    CHECK_EQ_U64(emu_pending(), 1);
    CHECK_EQ_F32(d.at(0), 25.0f);
    OK(cudaDeviceSynchronize());
    CHECK_EQ_F32(d.at(0), 2500.0f);
    OK(launch(k_add, 1, 32, blocking, d.p, 1));
    OK(cudaStreamDestroy(blocking)); /* its work goes on */
    CHECK_EQ_U64(emu_pending(), 1);
    FAILS(cudaStreamSynchronize(blocking), cudaErrorInvalidResourceHandle);
    CHECK_EQ_F32(d.at(0), 2501.0f);
    OK(cudaDeviceSynchronize());
    CHECK_EQ_U64(emu_live_streams(), 2);
}

TEST(per_thread_stream, "a default stream per thread waits for no other, nor cudaMemcpy for what it has staged") {
    const std::vector<float> two(32, 2.0f);
    for (int per_thread = 0; per_thread < 2; per_thread++) {
        cudaStream_t  blocking;
        device<float> d(std::vector<float>(32, 1.0f));
        OK(cudaDeviceSynchronize());
        OK(cudaStreamCreate(&blocking));
        emu_async      = 1;
        emu_per_thread = per_thread;
        OK(launch(k_add, 1, 32, blocking, d.p, 1));
        OK(cudaMemcpy(d.p, two.data(), 32 * sizeof(float), cudaMemcpyHostToDevice));
        CHECK_EQ_U64(emu_pending(), 2);
        OK(cudaStreamSynchronize(0));
        CHECK_EQ_U64(emu_pending(), per_thread ? 1 : 0);
        OK(cudaDeviceSynchronize());
        CHECK_EQ_F32(d.at(0), per_thread ? 3.0f : 2.0f); /* the copy was first, or second */
        OK(cudaStreamDestroy(blocking));
        emu_async = emu_per_thread = 0;
    }
}

TEST(unordered, "streams without an event run in either order") {
    int add_first = 0, scale_first = 0;
    for (unsigned seed = 1; seed <= 20; seed++) {
        two_streams   s;
        device<float> d(std::vector<float>(32, 1.0f));
        OK(cudaDeviceSynchronize()); /* or its numbers may come last */
        emu_seed  = seed;
        emu_async = 1;
        OK(launch(k_add, 1, 32, s.a, d.p, 1));
        OK(launch(k_scale, 1, 32, s.b, d.p, 10));
        OK(cudaDeviceSynchronize());
        add_first += d.at(0) == 20.0f;
        scale_first += d.at(0) == 11.0f;
    }
    CHECK(add_first > 0 && scale_first > 0);
    CHECK_EQ_INT(add_first + scale_first, 20);
}

/* ======================================================================================
   Graphs
   ====================================================================================== */

TEST(replay, "a captured graph does nothing until launched, then the same each time") {
    two_streams     s;
    device<float>   d(std::vector<float>(32, 1.0f));
    cudaGraph_t     g;
    cudaGraphExec_t x;
    float           source = 5, back = 0;
    for (int deferred = 0; deferred < 2; deferred++) {
        emu_async = deferred;
        OK(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeThreadLocal));
        OK(launch(k_add, 1, 32, s.a, d.p, 1));
        OK(cudaMemcpyAsync(d.p, &source, 4, cudaMemcpyHostToDevice, s.a));
        OK(launch(k_scale, 1, 32, s.a, d.p, 2));
        OK(cudaMemcpyAsync(&back, d.p, 4, cudaMemcpyDeviceToHost, s.a));
        OK(cudaStreamEndCapture(s.a, &g));
        OK(cudaGraphInstantiate(&x, g, 0));
        OK(cudaGraphDestroy(g));
        CHECK_EQ_F32(d.at(0), deferred ? 14.0f : 1.0f);
        for (int i = 6; i < 8; i++) {
            source = (float)i;
            OK(cudaGraphLaunch(x, s.b));
            OK(cudaStreamSynchronize(s.b));
            CHECK_EQ_F32(back, (float)(2 * i)); /* its source is read at the launch */
        }
        OK(cudaGraphExecDestroy(x));
    }
    CHECK_EQ_F32(d.at(1), 1.0f * 16 + 2 + 4 + 8 + 16);
    CHECK_EQ_U64(emu_live_graphs(), 0);
}

TEST(fork_join, "a stream joins a capture by an event and must come back") {
    for (unsigned seed : seeds) {
        two_streams                  s;
        std::vector<float>           ones(32, 1.0f);
        device<float>                d(ones), f(ones);
        cudaEvent_t                  fork_event, join_event;
        cudaGraph_t                  g;
        cudaGraphExec_t              x;
        enum cudaStreamCaptureStatus status;
        emu_seed = seed;
        OK(cudaEventCreateWithFlags(&fork_event, cudaEventDisableTiming));
        OK(cudaEventCreateWithFlags(&join_event, cudaEventDisableTiming));
        OK(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeGlobal));
        OK(launch(k_add, 1, 32, s.a, d.p, 1));
        OK(cudaEventRecord(fork_event, s.a));
        OK(cudaStreamWaitEvent(s.b, fork_event, 0));
        OK(cudaStreamIsCapturing(s.b, &status));
        CHECK_EQ_INT(status, cudaStreamCaptureStatusActive);
        OK(launch(k_scale, 1, 32, s.b, d.p, 3));
        OK(launch(k_add, 1, 32, s.a, f.p, 4));
        OK(cudaEventRecord(join_event, s.b));
        FAILS(cudaStreamEndCapture(s.b, &g), cudaErrorStreamCaptureUnmatched);
        OK(cudaStreamWaitEvent(s.a, join_event, 0));
        OK(launch(k_add, 1, 32, s.a, d.p, 10));
        OK(cudaStreamEndCapture(s.a, &g));
        OK(cudaStreamIsCapturing(s.b, &status));
        CHECK_EQ_INT(status, cudaStreamCaptureStatusNone);
        OK(cudaGraphInstantiate(&x, g, 0));
        OK(cudaGraphLaunch(x, s.a));
        CHECK_EQ_F32(d.at(0), 16.0f);
        CHECK_EQ_F32(f.at(0), 5.0f);

        OK(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeGlobal));
        OK(cudaEventRecord(fork_event, s.a));
        OK(cudaStreamWaitEvent(s.b, fork_event, 0));
        OK(launch(k_scale, 1, 32, s.b, d.p, 3));
        cudaGraph_t none = g;
        FAILS(cudaStreamEndCapture(s.a, &none), cudaErrorStreamCaptureUnjoined);
        CHECK(none == NULL);
        OK(cudaGraphExecDestroy(x));
        OK(cudaGraphDestroy(g));
        OK(cudaEventDestroy(fork_event));
        OK(cudaEventDestroy(join_event));
    }
}

static cudaError_t call_forbidden(int which, two_streams *s, cudaEvent_t e, float *d) {
    void *p = NULL;
    float h = 0;
    switch (which) {
    case 0: return cudaMalloc(&p, 4);
    case 1: return cudaFree(d);
    case 2: return cudaMemcpy(&h, d, 4, cudaMemcpyDeviceToHost);
    case 3: return cudaMemset(d, 0, 4);
    case 4: return cudaStreamSynchronize(s->a);
    case 5: return cudaDeviceSynchronize();
    case 6: return cudaEventQuery(e);
    case 7: return cudaEventSynchronize(e);
    case 8: return cudaStreamQuery(s->a);
    case 9: return cudaMallocHost(&p, 4);
    default: return cudaSuccess;
    }
}

TEST(forbidden, "calls that a capture forbids return 900 and break it: 901 at its end") {
    two_streams                  s;
    device<float>                d(std::vector<float>(32, 1.0f));
    cudaEvent_t                  e;
    enum cudaStreamCaptureStatus status;
    OK(cudaEventCreate(&e));
    OK(cudaEventRecord(e, s.b));
    for (int which = 0; which < 10; which++) {
        cudaGraph_t g = (cudaGraph_t)&g;
        OK(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeThreadLocal));
        CHECK_EQ_INT(call_forbidden(which, &s, e, d.p), 900);
        OK(cudaStreamIsCapturing(s.a, &status));
        CHECK_EQ_INT(status, cudaStreamCaptureStatusInvalidated);
        CHECK_EQ_INT(launch(k_add, 1, 32, s.a, d.p, 1), 901);
        CHECK_EQ_INT(cudaStreamEndCapture(s.a, &g), 901);
        CHECK(g == NULL);
    }
    cudaGraph_t g;
    OK(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeThreadLocal));
    OK(cudaStreamSynchronize(s.b)); /* another stream may be waited for */
    CHECK_EQ_INT(cudaStreamWaitEvent(s.a, e, 0), cudaErrorStreamCaptureIsolation);
    CHECK_EQ_INT(cudaStreamEndCapture(s.a, &g), 901);
    OK(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeRelaxed));
    void *p = NULL;
    OK(cudaMalloc(&p, 4)); /* as a relaxed capture allows */
    OK(cudaEventRecord(e, s.a));
    FAILS(cudaEventQuery(e), cudaErrorCapturedEvent);
    CHECK_EQ_INT(cudaStreamEndCapture(s.a, &g), 901);
    OK(cudaFree(p));
    FAILS(cudaStreamBeginCapture(0, cudaStreamCaptureModeGlobal), 900);
    FAILS(cudaStreamEndCapture(s.a, &g), cudaErrorIllegalState);
    cudaStream_t blocking;
    OK(cudaStreamCreate(&blocking));
    OK(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeGlobal));
    CHECK_EQ_INT(launch(k_add, 1, 32, 0, d.p, 1), cudaErrorStreamCaptureImplicit);
    CHECK_EQ_INT(cudaStreamEndCapture(blocking, &g), 901);
    OK(cudaStreamDestroy(blocking));
    OK(cudaEventDestroy(e));
    CHECK_EQ_F32(d.at(0), 1.0f);
}

/* if (flag) scale by 10; on both sides an addition. The graph is captured, the node added to it. */
TEST(conditional, "a conditional node in the middle of a capture") {
    two_streams   s;
    device<float> d(std::vector<float>(32, 1.0f));
    for (unsigned seed : seeds)
        for (unsigned flags = 0; flags < 2; flags++) {
            device<int>                  flag(1);
            cudaGraph_t                  g, same_graph;
            cudaGraphExec_t              x;
            const cudaGraphNode_t       *needs;
            const cudaGraphEdgeData     *edges;
            cudaGraphNode_t              node;
            size_t                       num_needs;
            unsigned long long           id = 0;
            enum cudaStreamCaptureStatus status;
            cudaGraphConditionalHandle   h;
            emu_seed = seed;
            OK(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeThreadLocal));
            OK(launch(k_add, 1, 32, s.a, d.p, 1));
            OK(cudaStreamGetCaptureInfo(s.a, &status, &id, &g, &needs, &edges, &num_needs));
            CHECK_EQ_INT(status, cudaStreamCaptureStatusActive);
            CHECK_EQ_U64(num_needs, 1);
            CHECK(id != 0);
            OK(cudaGraphConditionalHandleCreate(&h, g, 1, flags));
            if (flags == 0) OK(launch(k_condition, 1, 32, s.a, h, flag.p));
            OK(cudaStreamGetCaptureInfo(s.a, &status, NULL, &g, &needs, NULL, &num_needs));
            cudaGraphNodeParams p = {};
            p.type               = cudaGraphNodeTypeConditional;
            p.conditional.handle = h;
            p.conditional.type   = cudaGraphCondTypeIf;
            p.conditional.size   = 1;
            OK(cudaGraphAddNode(&node, g, needs, NULL, num_needs, &p));
            cudaGraph_t body = p.conditional.phGraph_out[0];
            OK(cudaStreamBeginCaptureToGraph(s.b, body, NULL, NULL, 0,
                                             cudaStreamCaptureModeThreadLocal));
            OK(launch(k_scale, 1, 32, s.b, d.p, 10));
            OK(cudaStreamEndCapture(s.b, &same_graph));
            CHECK(same_graph == body);
            OK(cudaStreamUpdateCaptureDependencies(s.a, &node, NULL, 1,
                                                   cudaStreamSetCaptureDependencies));
            OK(launch(k_add, 1, 32, s.a, d.p, 2));
            OK(cudaStreamEndCapture(s.a, &g));
            OK(cudaGraphInstantiate(&x, g, 0));
            for (int on = 0; on < 2; on++) {
                std::vector<float> ones(32, 1.0f);
                OK(cudaMemcpy(flag.p, &on, sizeof on, cudaMemcpyHostToDevice));
                OK(cudaMemcpy(d.p, ones.data(), 128, cudaMemcpyHostToDevice));
                OK(cudaGraphLaunch(x, s.b));
                OK(cudaStreamSynchronize(s.b));
                CHECK_EQ_F32(d.at(7), flags == 1 || on ? 22.0f : 4.0f);
            }
            OK(cudaGraphExecDestroy(x));
            OK(cudaGraphDestroy(g));
        }
    CHECK_EQ_U64(emu_live_graphs(), 0);
}

/* ======================================================================================
   Faults and counts
   ====================================================================================== */

/* A small program that cleans up; its first error, or success. */
static int program(void) {
    cudaStream_t   s = NULL;
    cublasHandle_t h = NULL;
    float         *d = NULL, x = 3, one = 1;
    int            e = 0;
#define STEP(call) if (e == 0) e = (int)(call)
    STEP(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    STEP(cublasCreate(&h));
    STEP(cublasSetStream(h, s));
    STEP(cudaMalloc((void **)&d, 4));
    STEP(cudaMemcpyAsync(d, &x, 4, cudaMemcpyHostToDevice, s));
    STEP(launch(k_add, 1, 1, s, d, 1));
    STEP(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, d, 1, d, 1, &one, d, 1));
    STEP(cudaMemcpyAsync(&x, d, 4, cudaMemcpyDeviceToHost, s));
    STEP(cudaStreamSynchronize(s));
    STEP(x != 20);
#undef STEP
    emu_fail_at = 0;
    if (h != NULL) cublasDestroy(h);
    cudaFree(d);
    if (s != NULL) cudaStreamDestroy(s);
    return e;
}

TEST(faults, "call number emu_fail_at fails, whichever it is, without effect") {
    CHECK_EQ_INT(program(), 0);
    CHECK_EQ_U64(emu_api_calls, 12);
    for (unsigned long n = 1; n <= 9; n++) {
        emu_api_calls  = 0;
        emu_fail_at    = n;
        emu_fail_error = cudaErrorLaunchFailure;
        const bool cublas = n == 2 || n == 3 || n == 7;
        CHECK_EQ_INT(program(), cublas ? (int)CUBLAS_STATUS_EXECUTION_FAILED
                                       : (int)cudaErrorLaunchFailure);
        CHECK_EQ_INT(cudaGetLastError(), cublas ? cudaSuccess : cudaErrorLaunchFailure);
        CHECK_EQ_U64(emu_live_allocations() + emu_live_streams() + emu_live_cublas(), 0);
    }
    CHECK(strcmp(emu_last_api, "cudaStreamDestroy") == 0);
}

TEST(counts, "counters count calls, kernels and waits") {
    emu_count = emu_counts();
    CHECK_EQ_INT(program(), 0);
    CHECK_EQ_U64(emu_count.api_calls, 12);
    CHECK_EQ_U64(emu_count.launches, 1);
    CHECK_EQ_U64(emu_count.kernels_run, 1);
    CHECK_EQ_U64(emu_count.memcpys, 2);
    CHECK_EQ_U64(emu_count.gemms, 1);
    CHECK_EQ_U64(emu_count.allocations, 1);
    CHECK_EQ_U64(emu_count.synchronisations, 3); /* one asked for, cublasDestroy and cudaFree */
    emu_reset();
    CHECK_EQ_U64(emu_count.launches + emu_api_calls + emu_gemm_calls(), 0);
}

/* ======================================================================================
   cuBLAS
   ====================================================================================== */

static int small_random(void) { /* -8 .. 8: products and sums of these are exact everywhere */
    return (int)random_below(17) - 8;
}

/* Whole numbers up to 256 as any of the types. */
static void put(std::vector<char> *v, cudaDataType type, size_t i, float x) {
    uint32_t u = __float_as_uint(x);
    uint16_t h = type == CUDA_R_16BF ? (uint16_t)(u >> 16)
                 : x == 0            ? 0
                                     : (uint16_t)((u >> 16 & 0x8000) |
                                                  ((u >> 13 & 0x3ffff) - (112 << 10)));
    if (type == CUDA_R_32F) memcpy(&(*v)[4 * i], &u, 4);
    else memcpy(&(*v)[2 * i], &h, 2);
}

static void gemm_case(cublasHandle_t h, cudaDataType in, cudaDataType out, bool ta, bool tb,
                      bool batched, bool device_scalars) {
    const int    m = 5, n = 4, k = 3, lda = 7, ldb = 6, ldc = 8, batch = batched ? 3 : 1;
    const size_t sin = in == CUDA_R_32F ? 4 : 2, sout = out == CUDA_R_32F ? 4 : 2;
    const float  alpha = 2, beta = -1;
    const long long sa = lda * 5 + 1, sb = ldb * 4 + 2, sc = ldc * n + 3;
    std::vector<char>  a((size_t)(sa * batch) * sin), b((size_t)(sb * batch) * sin);
    std::vector<char>  c((size_t)(sc * batch) * sout), expected;
    std::vector<float> fa((size_t)(sa * batch)), fb((size_t)(sb * batch)), fc((size_t)(sc * batch));
    for (size_t i = 0; i < fa.size(); i++) put(&a, in, i, fa[i] = (float)small_random());
    for (size_t i = 0; i < fb.size(); i++) put(&b, in, i, fb[i] = (float)small_random());
    for (size_t i = 0; i < fc.size(); i++) put(&c, out, i, fc[i] = (float)small_random());
    expected = c;
    for (int q = 0; q < batch; q++)
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++) {
                float sum = 0;
                for (int l = 0; l < k; l++)
                    sum += fa[(size_t)(q * sa + (ta ? l + i * lda : i + l * lda))] *
                           fb[(size_t)(q * sb + (tb ? j + l * ldb : l + j * ldb))];
                size_t at = (size_t)(q * sc + i + j * ldc);
                put(&expected, out, at, alpha / 2 * sum + beta * fc[at]);
            }
    device<char>  da(a), db(b), dc(c);
    device<float> scalars(std::vector<float>{alpha / 2, beta});
    const float   host[2] = {alpha / 2, beta};
    const void   *pa = device_scalars ? scalars.p : host;
    const void   *pb = device_scalars ? scalars.p + 1 : host + 1;
    const cublasOperation_t opa = ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t opb = tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    CHECK_EQ_INT(cublasSetPointerMode(h, device_scalars ? CUBLAS_POINTER_MODE_DEVICE
                                                        : CUBLAS_POINTER_MODE_HOST), 0);
    if (batched)
        CHECK_EQ_INT(cublasGemmStridedBatchedEx(h, opa, opb, m, n, k, pa, da.p, in, lda, sa, db.p,
                                                in, ldb, sb, pb, dc.p, out, ldc, sc, batch,
                                                CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT), 0);
    else
        CHECK_EQ_INT(cublasGemmEx(h, opa, opb, m, n, k, pa, da.p, in, lda, db.p, in, ldb, pb, dc.p,
                                  out, ldc, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT), 0);
    std::vector<char> got = dc.get();
    CHECK_MEM(got.data(), expected.data(), got.size());
}

TEST(gemm, "products in all types, transpositions, strides and pointer modes") {
    cublasHandle_t h;
    CHECK_EQ_INT(cublasCreate(&h), 0);
    for (int i = 0; i < 3 * 2 * 16; i++) {
        const cudaDataType types[3] = {CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF};
        gemm_case(h, types[i % 3], i / 3 % 2 ? CUDA_R_32F : types[i % 3], i / 6 & 1, i / 12 & 1,
                  i / 24 & 1, i / 48 & 1);
    }
    CHECK_EQ_U64(emu_gemm_calls(), 96);
    CHECK_EQ_INT(cublasDestroy(h), 0);
}

/* c = x * a, in one type */
static cublasStatus_t scale(cublasHandle_t h, int m, float x, const void *a, const void *one,
                            cudaDataType type, void *c) {
    const float zero = 0;
    return cublasGemmEx(h, CUBLAS_OP_N, CUBLAS_OP_N, m, 1, 1, &x, a, type, m, one, type, 1, &zero,
                        c, type, m, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}

TEST(gemm_rounding, "sums in fp32, one rounding to fp16 or bf16, ties to even") {
    cublasHandle_t h;
    const uint16_t one_half = 0x3c00, one_bfloat = 0x3f80;
    const struct { float x; unsigned half, bfloat; } table[] = {
        {1.0f + 1.0f / 2048, 0x3c00, 0x3f80},       {1.0f + 3.0f / 2048, 0x3c02, 0x3f80},
        {1.0f + 1.0f / 256, 0x3c04, 0x3f80},        {1.0f + 3.0f / 256, 0x3c0c, 0x3f82},
        {65519.0f, 0x7bff, 0x4780},                 {65520.0f, 0x7c00, 0x4780},
        {-5.9604645e-8f, 0x8001, 0xb380},           {2.9802322e-8f, 0x0000, 0x3300},
        {8.9406967e-8f, 0x0002, 0x33c0},            {6.1035156e-5f, 0x0400, 0x3880},
        {6.0975552e-5f, 0x03ff, 0x3880},        {-INFINITY, 0xfc00, 0xff80},
        {3.4e38f, 0x7c00, 0x7f80},                  {-0.0f, 0x8000, 0x8000},
    };
    CHECK_EQ_INT(cublasCreate(&h), 0);
    device<uint16_t> a(std::vector<uint16_t>{one_half, one_bfloat}), c(2);
    for (auto &t : table) {
        CHECK_EQ_INT(scale(h, 1, t.x, a.p, a.p, CUDA_R_16F, c.p), 0);
        CHECK_EQ_INT(scale(h, 1, t.x, a.p + 1, a.p + 1, CUDA_R_16BF, c.p + 1), 0);
        CHECK_EQ_U32(c.at(0), t.half); /* beta is 0: the NaNs in c are not read */
        CHECK_EQ_U32(c.at(1), t.bfloat);
    }
    CHECK_EQ_INT(scale(h, 1, NAN, a.p, a.p, CUDA_R_16F, c.p), 0);
    CHECK_EQ_U32(c.at(0), 0x7fff);
    /* all halves but NaNs go through fp32 and back */
    std::vector<uint16_t> all;
    for (unsigned i = 0; i < 65536; i++)
        if ((i & 0x7fff) <= 0x7c00) all.push_back((uint16_t)i);
    device<uint16_t> from(all), to(all.size());
    CHECK_EQ_INT(scale(h, (int)all.size(), 1.0f, from.p, a.p, CUDA_R_16F, to.p), 0);
    std::vector<uint16_t> got = to.get();
    got[31745] = all[31745]; /* 0 + -0 * 1 is +0 */
    CHECK_MEM(got.data(), all.data(), 2 * all.size());
    CHECK_EQ_INT(cublasDestroy(h), 0);
}

TEST(gemm_state, "handle state, refusals, the log, deferral and capture") {
    cublasHandle_t      h;
    two_streams         s;
    cudaGraph_t         g;
    cudaGraphExec_t     x;
    cublasPointerMode_t mode;
    cublasMath_t        math;
    cudaStream_t        stream;
    const float         one = 1, zero = 0;
    device<float>       a(std::vector<float>(4, 2.0f)), c(std::vector<float>(4, NAN));
    device<char>        workspace(1024);
    CHECK_EQ_INT(cublasCreate(&h), 0);
    CHECK_EQ_INT(cublasSetWorkspace(h, workspace.p, 1024), 0);
    CHECK_EQ_INT(cublasSetWorkspace(h, workspace.p + 8, 1000), CUBLAS_STATUS_INVALID_VALUE);
    CHECK_EQ_INT(cublasSetStream(h, s.a), 0); /* resets the workspace */
    CHECK_EQ_INT(cublasGetStream(h, &stream), 0);
    CHECK(stream == s.a);
    CHECK_EQ_INT(cublasSetMathMode(h, CUBLAS_PEDANTIC_MATH), 0);
    CHECK_EQ_INT(cublasGetMathMode(h, &math), 0);
    CHECK_EQ_INT(math, CUBLAS_PEDANTIC_MATH);
    CHECK_EQ_INT(cublasGetPointerMode(h, &mode), 0);
    CHECK_EQ_INT(mode, CUBLAS_POINTER_MODE_HOST);
    emu_async = 1;
    for (int i = 0; i < 2; i++) {
        if (i == 1) CHECK_EQ_INT(cublasSetWorkspace(h, workspace.p, 1024), 0);
        OK(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeThreadLocal));
        CHECK_EQ_INT(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_T, 2, 2, 2, &one, a.p, 2, a.p, 2, &zero,
                                 c.p, 2), 0);
        OK(cudaStreamEndCapture(s.a, &g));
        if (i == 0) OK(cudaGraphDestroy(g));
        CHECK_EQ_U64(emu_count.captured_gemms_without_workspace, 1);
    }
    CHECK(isnan(c.at(0)));
    OK(cudaGraphInstantiate(&x, g, 0));
    OK(cudaGraphLaunch(x, s.a));
    CHECK(isnan(c.at(0)));
    OK(cudaStreamSynchronize(s.a));
    CHECK_EQ_F32(c.at(0), 8.0f);
    const emu_gemm_call *call = emu_gemm_call_at(1);
    CHECK_EQ_U64(emu_gemm_calls(), 2);
    CHECK(strcmp(call->name, "cublasSgemm") == 0);
    CHECK_EQ_INT(call->transb, CUBLAS_OP_T);
    CHECK_EQ_INT(call->m * 100 + call->n * 10 + call->k, 222);
    CHECK_EQ_INT(call->captured, 1);
    CHECK_EQ_U64(call->workspace_bytes, 1024);
    CHECK_EQ_INT(call->math, CUBLAS_PEDANTIC_MATH);
    CHECK(call->stream == s.a && call->a == a.p && call->c == c.p);
    CHECK_EQ_INT(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, a.p, 1, a.p, 2, &zero, c.p,
                             2), CUBLAS_STATUS_INVALID_VALUE);
    CHECK_EQ_INT(cublasGemmEx(h, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, a.p, CUDA_R_32F, 2, a.p,
                              CUDA_R_16F, 2, &zero, c.p, CUDA_R_32F, 2, CUBLAS_COMPUTE_32F,
                              CUBLAS_GEMM_DEFAULT), CUBLAS_STATUS_NOT_SUPPORTED);
    CHECK_EQ_INT(cublasSgemmStridedBatched(h, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 0, &one, NULL, 1, 1,
                                           NULL, 1, 1, &zero, c.p, 1, 1, 4), 0);
    OK(cudaStreamSynchronize(s.a));
    CHECK_EQ_F32(c.at(3), 0.0f);
    OK(cudaGraphExecDestroy(x));
    OK(cudaGraphDestroy(g));
    CHECK_EQ_INT(cublasDestroy(h), 0);
    CHECK_EQ_INT(cublasDestroy(h), CUBLAS_STATUS_NOT_INITIALIZED);
    CHECK_EQ_U64(emu_live_cublas(), 0);
}

/* ======================================================================================
   Traffic
   ====================================================================================== */

#ifdef EMU_TRAFFIC
__global__ static void k_copy(const float4 *in, float4 *out, unsigned n, unsigned *done) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) __stcs(out + i, __ldcs(in + i));
    if (threadIdx.x == 0) atomicAdd(done, 1u);
}
__global__ static void k_touch(float *x, const unsigned short *h, unsigned n) {
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) x[i] = x[i] * 2 + h[i];
}

__global__ static void k_stride(const float *in, float *out, unsigned stride) {
    out[threadIdx.x] = in[threadIdx.x * stride];
}
__global__ static void k_banks(float *out, unsigned stride) {
    __shared__ float room[1024];
    room[threadIdx.x * stride] = 1.0f;
    __syncthreads();
    out[threadIdx.x] = room[threadIdx.x];
}
__global__ static void k_counters(unsigned *x) { atomicAdd(&x[threadIdx.x % 4], 1u); }

TEST(sectors, "sectors of a warp's request, turns of banks, atomics per address") {
    device<float4>   in4(1000), out4(1000);
    device<float>    in(std::vector<float>(1024, 1.0f)), out(64);
    device<unsigned> x(std::vector<unsigned>(4)), done(std::vector<unsigned>(1));
    unsigned long long most;
    const int        i4 = emu_watch(in4.p, 16000), o4 = emu_watch(out4.p, 16000);
    const int        i = emu_watch(in.p, 4096), o = emu_watch(out.p, 256);
    OK(launch(k_copy, 10, 128, 0, in4.p, out4.p, 1000u, done.p));
    CHECK_EQ_U64(emu_watched(i4).load_sectors, 500); /* vectors in pieces are one request */
    CHECK_EQ_U64(emu_watched(o4).store_sectors, 500);
    OK(launch(k_stride, 1, 64, 0, in.p, out.p, 1u));
    CHECK_EQ_U64(emu_watched(i).load_sectors, 8);
    OK(launch(k_stride, 1, 64, 0, in.p, out.p, 2u));
    CHECK_EQ_U64(emu_watched(i).load_sectors, 8 + 16);
    OK(launch(k_stride, 1, 64, 0, in.p, out.p, 16u));
    CHECK_EQ_U64(emu_watched(i).load_sectors, 8 + 16 + 64);
    CHECK_EQ_U64(emu_watched(o).store_sectors, 3 * 8);
    CHECK_EQ_U64(emu_watched_shared().turns, 0);
    OK(launch(k_banks, 1, 32, 0, out.p, 1u));
    CHECK_EQ_U64(emu_watched_shared().turns, 2);
    OK(launch(k_banks, 1, 32, 0, out.p, 8u));
    CHECK_EQ_U64(emu_watched_shared().turns, 2 + 8 + 1);
    CHECK_EQ_U64(emu_watched_shared().least, 4);
    OK(launch(k_counters, 2, 33, 0, x.p));
    CHECK_EQ_U64(emu_atomics(x.p, 16, &most), 66);
    CHECK_EQ_U64(most, 18);
}

TEST(traffic, "bytes loaded and stored in watched ranges, and in no others") {
    device<float4>   in(std::vector<float4>(1000, make_float4(1, 2, 3, 4))), out(1000);
    device<unsigned> done(std::vector<unsigned>(1));
    const int        i = emu_watch(in.p, 16000), o = emu_watch(out.p, 16000);
    const int        d = emu_watch(done.p, 4), part = emu_watch(in.p + 10, 16 * 5 + 8);
    OK(launch(k_copy, 10, 128, 0, in.p, out.p, 1000u, done.p));
    CHECK_EQ_U64(emu_watched(i).loaded, 16000);
    CHECK_EQ_U64(emu_watched(i).stored, 0);
    CHECK_EQ_U64(emu_watched(o).loaded, 0);
    CHECK_EQ_U64(emu_watched(o).stored, 16000);
    CHECK_EQ_U64(emu_watched(d).loaded, 40);
    CHECK_EQ_U64(emu_watched(d).stored, 40);
    CHECK_EQ_U64(emu_watched(part).loaded, 16 * 5 + 8);
    device<float>          x(std::vector<float>(999, 1.0f));
    device<unsigned short> h(std::vector<unsigned short>(999, 3));
    const int              ix = emu_watch(x.p, 999 * 4), ih = emu_watch(h.p, 999 * 2);
    OK(launch(k_touch, 1, 64, 0, x.p, h.p, 999u));
    CHECK_EQ_F32(x.at(998), 5.0f);
    CHECK_EQ_U64(emu_watched(ix).loaded, 999 * 4);
    CHECK_EQ_U64(emu_watched(ix).stored, 999 * 4);
    CHECK_EQ_U64(emu_watched(ih).loaded, 999 * 2);
    CHECK_EQ_U64(emu_watched(i).loaded, 16000);
    emu_unwatch_all();
}
#endif

#define RUN_CLEAN(name) (emu_reset(), RUN(name))

int main(int argc, char **argv) {
    test_begin(argc, argv);
    RUN_CLEAN(indices);
    RUN_CLEAN(order);
    RUN_CLEAN(arguments);
    RUN_CLEAN(reduction);
    RUN_CLEAN(barrier_votes);
    RUN_CLEAN(warps);
    RUN_CLEAN(atomics);
    RUN_CLEAN(intrinsics);
    RUN_CLEAN(shared_rubbish);
    RUN_CLEAN(launch_errors);
    RUN_CLEAN(misuse);
    RUN_CLEAN(memory);
    RUN_CLEAN(copies);
    RUN_CLEAN(device);
    RUN_CLEAN(deferred);
    RUN_CLEAN(staging);
    RUN_CLEAN(stream_events);
    RUN_CLEAN(legacy_stream);
    RUN_CLEAN(per_thread_stream);
    RUN_CLEAN(unordered);
    RUN_CLEAN(replay);
    RUN_CLEAN(fork_join);
    RUN_CLEAN(forbidden);
    RUN_CLEAN(conditional);
    RUN_CLEAN(faults);
    RUN_CLEAN(counts);
    RUN_CLEAN(gemm);
    RUN_CLEAN(gemm_rounding);
    RUN_CLEAN(gemm_state);
#ifdef EMU_TRAFFIC
    RUN_CLEAN(sectors);
    RUN_CLEAN(traffic);
#endif
    return test_end();
}
