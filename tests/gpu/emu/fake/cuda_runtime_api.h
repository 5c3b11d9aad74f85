/* cuda_runtime_api.h - the little of CUDA 13.0's runtime API that the tests use, for machines
   without a toolkit. Types, values and prototypes are NVIDIA's: with a toolkit the same sources
   compile against its headers instead, and test_emu.cpp asserts the numbers against both. */

#ifndef FAKE_CUDA_RUNTIME_API_H
#define FAKE_CUDA_RUNTIME_API_H

#include <stddef.h>

#define CUDART_VERSION 13000
#define CUDARTAPI

#define __host__
#define __device__
#define __global__
#define __constant__
#define __grid_constant__
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __align__(n)    __attribute__((aligned(n)))
#ifndef __shared__
#define __shared__
#endif
#ifndef __launch_bounds__
#define __launch_bounds__(...)
#endif

#ifdef __cplusplus
#define FAKE_DEFAULT(value) = value
extern "C" {
#else
#define FAKE_DEFAULT(value)
#endif

/* ---- vector types ---- */

typedef struct uint3 { unsigned int x, y, z; } uint3;
typedef struct __attribute__((aligned(4))) uchar4 { unsigned char x, y, z, w; } uchar4;
typedef struct __attribute__((aligned(4))) ushort2 { unsigned short x, y; } ushort2;
typedef struct __attribute__((aligned(8))) ushort4 { unsigned short x, y, z, w; } ushort4;
typedef struct __attribute__((aligned(8))) int2 { int x, y; } int2;
typedef struct __attribute__((aligned(16))) int4 { int x, y, z, w; } int4;
typedef struct __attribute__((aligned(8))) uint2 { unsigned int x, y; } uint2;
typedef struct __attribute__((aligned(16))) uint4 { unsigned int x, y, z, w; } uint4;
typedef struct __attribute__((aligned(8))) float2 { float x, y; } float2;
typedef struct __attribute__((aligned(16))) float4 { float x, y, z, w; } float4;
typedef struct __attribute__((aligned(16))) double2 { double x, y; } double2;

typedef struct dim3 {
    unsigned int x, y, z;
#ifdef __cplusplus
    constexpr dim3(unsigned int vx = 1, unsigned int vy = 1, unsigned int vz = 1)
        : x(vx), y(vy), z(vz) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return uint3{x, y, z}; }
#endif
} dim3;

/* ---- types and values ---- */

typedef enum cudaError {
    cudaSuccess                       = 0,
    cudaErrorInvalidValue             = 1,
    cudaErrorMemoryAllocation         = 2,
    cudaErrorInitializationError      = 3,
    cudaErrorCudartUnloading          = 4,
    cudaErrorInvalidConfiguration     = 9,
    cudaErrorInvalidMemcpyDirection   = 21,
    cudaErrorInsufficientDriver       = 35,
    cudaErrorNoDevice                 = 100,
    cudaErrorInvalidDevice            = 101,
    cudaErrorNoKernelImageForDevice   = 209,
    cudaErrorInvalidResourceHandle    = 400,
    cudaErrorIllegalState             = 401,
    cudaErrorNotReady                 = 600,
    cudaErrorIllegalAddress           = 700,
    cudaErrorLaunchOutOfResources     = 701,
    cudaErrorLaunchFailure            = 719,
    cudaErrorNotPermitted             = 800,
    cudaErrorNotSupported             = 801,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
    cudaErrorStreamCaptureMerge       = 902,
    cudaErrorStreamCaptureUnmatched   = 903,
    cudaErrorStreamCaptureUnjoined    = 904,
    cudaErrorStreamCaptureIsolation   = 905,
    cudaErrorStreamCaptureImplicit    = 906,
    cudaErrorCapturedEvent            = 907,
    cudaErrorUnknown                  = 999
} cudaError_t;

typedef enum cudaDataType_t {
    CUDA_R_32F  = 0,
    CUDA_R_64F  = 1,
    CUDA_R_16F  = 2,
    CUDA_R_16BF = 14
} cudaDataType;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost     = 0,
    cudaMemcpyHostToDevice   = 1,
    cudaMemcpyDeviceToHost   = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault        = 4
};

enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock          = 1,
    cudaDevAttrWarpSize                    = 10,
    cudaDevAttrMultiProcessorCount         = 16,
    cudaDevAttrL2CacheSize                 = 38,
    cudaDevAttrMaxThreadsPerMultiProcessor = 39,
    cudaDevAttrComputeCapabilityMajor      = 75,
    cudaDevAttrComputeCapabilityMinor      = 76
};

struct cudaDeviceProp { /* the real one has many more fields */
    char   name[256];
    size_t totalGlobalMem;
    size_t sharedMemPerBlock;
    int    warpSize;
    int    maxThreadsPerBlock;
    int    major;
    int    minor;
    int    multiProcessorCount;
    int    l2CacheSize;
    int    maxThreadsPerMultiProcessor;
};

enum cudaStreamCaptureStatus {
    cudaStreamCaptureStatusNone        = 0,
    cudaStreamCaptureStatusActive      = 1,
    cudaStreamCaptureStatusInvalidated = 2
};

struct cudaFuncAttributes { /* the real one has more fields */
    size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
    int    maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion;
};
enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize    = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9
};
enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal      = 0,
    cudaStreamCaptureModeThreadLocal = 1,
    cudaStreamCaptureModeRelaxed     = 2
};

enum cudaStreamUpdateCaptureDependenciesFlags {
    cudaStreamAddCaptureDependencies = 0,
    cudaStreamSetCaptureDependencies = 1
};

enum cudaGraphNodeType {
    cudaGraphNodeTypeKernel      = 0,
    cudaGraphNodeTypeMemcpy      = 1,
    cudaGraphNodeTypeMemset      = 2,
    cudaGraphNodeTypeEmpty       = 5,
    cudaGraphNodeTypeConditional = 13
};

enum cudaGraphConditionalHandleFlags { cudaGraphCondAssignDefault = 1 };

enum cudaGraphConditionalNodeType {
    cudaGraphCondTypeIf = 0
};

typedef struct CUstream_st    *cudaStream_t;
typedef struct CUevent_st     *cudaEvent_t;
typedef struct CUgraph_st     *cudaGraph_t;
typedef struct CUgraphNode_st *cudaGraphNode_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;
typedef unsigned long long     cudaGraphConditionalHandle;

typedef struct cudaGraphEdgeData_st {
    unsigned char from_port, to_port, type, reserved[5];
} cudaGraphEdgeData;

struct cudaConditionalNodeParams {
    cudaGraphConditionalHandle        handle;
    enum cudaGraphConditionalNodeType type;
    unsigned int                      size;
    cudaGraph_t                      *phGraph_out;
};

struct cudaGraphNodeParams {
    enum cudaGraphNodeType type;
    int                    reserved0[3];
    union {
        long long                        reserved1[29];
        struct cudaConditionalNodeParams conditional;
    };
    long long reserved2;
};

#define cudaStreamDefault      0x00
#define cudaStreamNonBlocking  0x01
#define cudaStreamLegacy       ((cudaStream_t)0x1)
#define cudaStreamPerThread    ((cudaStream_t)0x2)
#define cudaEventDefault       0x00
#define cudaEventBlockingSync  0x01
#define cudaEventDisableTiming 0x02
#define cudaHostAllocDefault   0x00

/* ---- functions ---- */

cudaError_t cudaGetLastError(void);
cudaError_t cudaFuncSetAttribute(const void *func, enum cudaFuncAttribute attr, int value);
cudaError_t cudaPeekAtLastError(void);
const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);

cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attr, const void *func);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device);
cudaError_t cudaDriverGetVersion(int *driverVersion);
cudaError_t cudaRuntimeGetVersion(int *runtimeVersion);
cudaError_t cudaDeviceSynchronize(void);

cudaError_t cudaMalloc(void **devPtr, size_t size);
cudaError_t cudaFree(void *devPtr);
cudaError_t cudaMallocHost(void **ptr, size_t size);
cudaError_t cudaHostAlloc(void **pHost, size_t size, unsigned int flags);
cudaError_t cudaFreeHost(void *ptr);
cudaError_t cudaMemGetInfo(size_t *free, size_t *total);
cudaError_t cudaMemcpy(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind,
                            cudaStream_t stream FAKE_DEFAULT(0));
cudaError_t cudaMemset(void *devPtr, int value, size_t count);
cudaError_t cudaMemsetAsync(void *devPtr, int value, size_t count,
                            cudaStream_t stream FAKE_DEFAULT(0));

cudaError_t cudaStreamCreate(cudaStream_t *pStream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *pStream, unsigned int flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned int flags FAKE_DEFAULT(0));

cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream FAKE_DEFAULT(0));
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end);

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                          const cudaGraphNode_t *dependencies,
                                          const cudaGraphEdgeData *dependencyData,
                                          size_t numDependencies,
                                          enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *pGraph);
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status);
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id FAKE_DEFAULT(0),
                                     cudaGraph_t *graph FAKE_DEFAULT(0),
                                     const cudaGraphNode_t **dependencies FAKE_DEFAULT(0),
                                     const cudaGraphEdgeData **edgeData FAKE_DEFAULT(0),
                                     size_t *numDependencies FAKE_DEFAULT(0));
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t *dependencies,
                                                const cudaGraphEdgeData *dependencyData,
                                                size_t numDependencies,
                                                unsigned int flags FAKE_DEFAULT(0));

cudaError_t cudaGraphCreate(cudaGraph_t *pGraph, unsigned int flags);
cudaError_t cudaGraphAddNode(cudaGraphNode_t *pGraphNode, cudaGraph_t graph,
                             const cudaGraphNode_t *pDependencies,
                             const cudaGraphEdgeData *dependencyData, size_t numDependencies,
                             struct cudaGraphNodeParams *nodeParams);
cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle *handle, cudaGraph_t graph,
                                             unsigned int defaultLaunchValue FAKE_DEFAULT(0),
                                             unsigned int flags FAKE_DEFAULT(0));
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *pGraphExec, cudaGraph_t graph,
                                 unsigned long long flags FAKE_DEFAULT(0));
cudaError_t cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t stream);
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *numNodes);
cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t *from, cudaGraphNode_t *to,
                              cudaGraphEdgeData *edgeData, size_t *numEdges);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graphExec);

#ifdef __cplusplus
}
#endif
#endif
