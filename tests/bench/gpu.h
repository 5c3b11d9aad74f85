/* gpu.h - what the benches for a GPU share: errors, a clock, turns, rows, realistic numbers.
   Include it behind amp.h and <cuda_runtime.h>. PROGRAM is the name in front of an error.

   A row is "name,what,n,tensors,unit,value,low,high": the median of all rounds and its quartiles.
   name says who did it: amp, or a peer, beside whose row amp's of the same what, n and tensors
   stands. */

#ifndef BENCH_GPU_H_INCLUDED
#define BENCH_GPU_H_INCLUDED

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#define ROW_HEAD "name,what,n,tensors,unit,value,low,high\n"

static bool quick; /* small sizes and few rounds, to see that it works */
static bool once;  /* all once, for a profiler */

static int several(int times) { return quick || once ? 1 : times; }

static void must(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, PROGRAM ": %s\n", what);
    exit(1);
}

static void good(cudaError_t error) { must(error == cudaSuccess, cudaGetErrorString(error)); }
static void good(amp_result result) {
    if (result == AMP_ERROR_CUDA) good((cudaError_t)amp_cuda_code());
    must(result == AMP_OK, amp_result_string(result));
}

static cudaStream_t stream;
static cudaEvent_t  before, after;

static double seconds(void) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

/* What the device is; a stream; a clock that has risen, which takes an idle one its time. */
static void begin(void) {
    const size_t   bytes = (size_t)1 << 28;
    cudaDeviceProp device;
    int            driver = 0, runtime = 0;
    void          *p      = NULL;
    good(cudaGetDeviceProperties(&device, 0));
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    printf("# %s, compute capability %d.%d, driver %d, runtime %d\n" ROW_HEAD, device.name,
           device.major, device.minor, driver, runtime);
    fflush(stdout);
    good(cudaStreamCreate(&stream));
    good(cudaEventCreate(&before));
    good(cudaEventCreate(&after));
    if (quick || once) return;
    good(cudaMalloc(&p, bytes));
    for (const double start = seconds(); seconds() - start < 0.5;) {
        for (int i = 0; i < 8; i++) good(cudaMemsetAsync(p, 0, bytes, stream));
        good(cudaStreamSynchronize(stream));
    }
    cudaFree(p);
}

template <class T> static T *on_device(size_t count) {
    void *p = NULL;
    good(cudaMalloc(&p, count * sizeof(T)));
    return (T *)p;
}

template <class T> struct same { typedef T type; };

/* kernel<<<blocks for n threads of which each takes what the grid leaves, 256, 0, stream>>> */
template <class... P>
static void launch(void (*kernel)(P...), size_t n, typename same<P>::type... arguments) {
    void        *pointers[] = {(void *)&arguments...};
    const size_t blocks     = n / 256 + 1;
    good(cudaLaunchKernel((const void *)kernel, dim3(blocks < 16384 ? (unsigned)blocks : 16384u),
                          dim3(256), pointers, 0, stream));
}

#define FOR_EACH(i, n)                                                    \
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; \
         i += (size_t)gridDim.x * blockDim.x)

/* The sum over a block of 256 threads, in its first: one atomic operation then, not 256, which would
   stand in line at one address. */
static __device__ float block_sum(float x) {
    __shared__ float sums[8];
    for (int half = 16; half; half /= 2) x += __shfl_down_sync(0xffffffffu, x, half);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
    __syncthreads();
    for (int w = 1; threadIdx.x == 0 && w < 8; w++) x += sums[w];
    return x;
}

/* A graph of what work queues. */
static cudaGraphExec_t captured(const std::function<void()> &work) {
    cudaGraph_t     graph;
    cudaGraphExec_t replay;
    good(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    work();
    good(cudaStreamEndCapture(stream, &graph));
#if CUDART_VERSION >= 12000
    good(cudaGraphInstantiate(&replay, graph, 0));
#else
    good(cudaGraphInstantiate(&replay, graph, NULL, NULL, 0));
#endif
    cudaGraphDestroy(graph);
    return replay;
}

/* ------------------------------------------------------------------------------- turns */

struct turn {
    const char           *name, *what;
    int                   times; /* in a row */
    std::function<void()> work, first; /* first: in front, not measured */
    std::vector<double>   ms;

    turn(const char *name_, const char *what_, int times_, std::function<void()> work_,
         std::function<void()> first_ = nullptr)
        : name(name_), what(what_), times(times_), work(work_), first(first_) {}

    void take(void) {
        float all = 0.0f;
        if (first) first();
        good(cudaEventRecord(before, stream));
        for (int i = 0; i < times; i++) work();
        good(cudaEventRecord(after, stream));
        good(cudaEventSynchronize(after));
        good(cudaEventElapsedTime(&all, before, after));
        ms.push_back(all / times);
    }
    /* in ms or, if one time moves bytes, in GB/s */
    void print(size_t n, size_t tensors, double bytes) {
        const size_t last = ms.size() - 1;
        if (bytes > 0.0)
            for (double &x : ms) x = x > 0.0 ? bytes / x / 1e6 : 0.0;
        std::sort(ms.begin(), ms.end());
        printf("%s,%s,%zu,%zu,%s,%.5g,%.5g,%.5g\n", name, what, n, tensors,
               bytes > 0.0 ? "GB/s" : "ms", ms[(last + 1) / 2], ms[(last + 2) / 4],
               ms[(3 * last + 2) / 4]);
        fflush(stdout);
    }
};

/* All take turns: a round to warm up, then at most 21 or, after five, as many as there is time. */
static void take_turns(std::vector<turn> &turns, double most_seconds, size_t n, size_t tensors,
                       double bytes = 0.0) {
    const int    rounds = once ? 1 : quick ? 3 : 21;
    const double start  = seconds();
    for (int r = once ? 0 : -1; r < rounds; r++) {
        for (turn &t : turns) t.take();
        if (r < 0)
            for (turn &t : turns) t.ms.clear();
        if (r >= 4 && seconds() - start > most_seconds) break;
    }
    for (turn &t : turns) t.print(n, tensors, bytes);
}

/* ----------------------------------------------------------------------------- numbers */

static __host__ __device__ uint32_t scrambled(uint64_t i) {
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    return (uint32_t)(x >> 32);
}

/* Uniform in +-size. */
static __global__ void fill_floats(float *x, uint64_t n, uint64_t seed, float size) {
    FOR_EACH(i, n) x[i] = (float)(int32_t)scrambled(i + (seed << 40)) * (size / 2147483648.0f);
}

#endif
