/* cuda_must.cuh - end a CUDA example if a call of CUDA, cuBLAS or amp.h fails; sizes of grids

   Include it after their headers and train_cli.h.                                                */

#ifndef CUDA_MUST_CUH
#define CUDA_MUST_CUH

static inline void must(cudaError_t error) {
    if (error == cudaSuccess) return;
    fail(1, "CUDA", cudaGetErrorString(error),
         error == cudaErrorNoKernelImageForDevice ? "compile with -arch=native for this GPU"
         : error == cudaErrorMemoryAllocation     ? "nvidia-smi shows who uses the GPU's memory"
                                                  : "compute-sanitizer can say where");
}

#ifdef CUBLAS_VER_MAJOR
static inline void must(cublasStatus_t status) {
    if (status != CUBLAS_STATUS_SUCCESS)
        fail(1, "cuBLAS", cublasGetStatusString(status),
             status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ARCH_MISMATCH
                 ? "a GPU before 8.0 may have no bf16; choose --dtype fp32 or fp16"
                 : "is its library that of the toolkit?");
}
#endif

static inline void must(amp_result result) {
    if (result == AMP_ERROR_CUDA) must((cudaError_t)amp_cuda_code());
#ifdef CUBLAS_VER_MAJOR
    if (result == AMP_ERROR_CUBLAS) must((cublasStatus_t)amp_cuda_code());
#endif
    if (result == AMP_ERROR_OUT_OF_MEMORY)
        fail(1, "GPU memory", "the optimizer's does not fit", "choose a smaller --width, --layers");
    if (result != AMP_OK)
        fail(1, amp_result_string(result), amp_problem(), "this is a bug in " PROGRAM ".cu");
}

/* CUDA's own text for a machine without a driver is that its version is insufficient. */
static inline int count_gpus(void) {
    int               count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaErrorInsufficientDriver)
        fail(1, "no GPU", "no driver, or one older than this program's CUDA",
             "install NVIDIA's, or run it where there is one");
    if (error != cudaSuccess || count == 0)
        fail(1, "no GPU", error != cudaSuccess ? cudaGetErrorString(error) : "the driver knows none",
             "run it where nvidia-smi lists one");
    return count;
}

/* All of n elements, whatever the grid. */
#define FOR_EACH(i, n)                                                  \
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; \
         i += (size_t)gridDim.x * blockDim.x)

/* Of 256 threads for n elements: what FOR_EACH goes on from. */
static inline dim3 blocks_for(size_t n) {
    return dim3(n < 262144 ? (unsigned)(n + 255) / 256 : 1024u);
}

/* What was captured on the stream since cudaStreamBeginCapture. */
static inline cudaGraphExec_t end_capture(cudaStream_t stream) {
    cudaGraph_t     graph;
    cudaGraphExec_t replay;
    must(cudaStreamEndCapture(stream, &graph));
#if CUDART_VERSION >= 12000
    must(cudaGraphInstantiate(&replay, graph, 0));
#else
    must(cudaGraphInstantiate(&replay, graph, NULL, NULL, 0));
#endif
    must(cudaGraphDestroy(graph));
    return replay;
}

#endif /* CUDA_MUST_CUH */
