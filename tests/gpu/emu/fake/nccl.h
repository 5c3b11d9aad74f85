/* nccl.h - as much of NCCL as ddp_nccl.cu calls, on MPI, for tests: ranks are processes, and device
   memory of the emulator is memory. Work is done when it is submitted (emu_async 0), and what is
   sent and received when its group ends: it shows what is exchanged, not when. One communicator. */

#ifndef NCCL_H_
#define NCCL_H_

#include <cuda_runtime.h>
#include <mpi.h>
#include <stddef.h>

#define NCCL_CONFIG_INITIALIZER {1}
typedef struct ncclConfig_t { int blocking; } ncclConfig_t;
typedef struct ncclUniqueId { char internal[128]; } ncclUniqueId;
typedef enum ncclResult_t { ncclSuccess = 0, ncclSystemError = 2, ncclInProgress = 7 } ncclResult_t;
typedef enum ncclDataType_t { ncclUint8 = 1, ncclUint32 = 3, ncclDouble = 8 } ncclDataType_t;
typedef enum ncclRedOp_t { ncclSum = 0, ncclMax = 2 } ncclRedOp_t;
typedef struct ncclComm { int num; MPI_Request requests[1024]; } *ncclComm_t;

static ncclComm fake_nccl;

static inline ncclResult_t fake_nccl_result(int mpi) {
    return mpi == MPI_SUCCESS ? ncclSuccess : ncclSystemError;
}

static inline MPI_Datatype fake_nccl_type(ncclDataType_t type) {
    return type == ncclDouble ? MPI_DOUBLE : type == ncclUint32 ? MPI_UINT32_T : MPI_BYTE;
}

static inline const char *ncclGetErrorString(ncclResult_t r) {
    return r == ncclSuccess ? "no error" : r == ncclInProgress ? "in progress" : "MPI failed";
}

static inline ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    for (size_t i = 0; i < sizeof id->internal; i++) id->internal[i] = (char)i;
    return ncclSuccess;
}

/* The number of the run has to have come through whole, and MPI has to agree about who is who. */
static inline ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int count, ncclUniqueId id,
                                                  int rank, ncclConfig_t *config) {
    int here = -1, size = 0;
    (void)config;
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &here);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (size_t i = 0; i < sizeof id.internal; i++)
        if (id.internal[i] != (char)i) return ncclSystemError;
    *comm = &fake_nccl;
    MPI_Barrier(MPI_COMM_WORLD);
    return here == rank && size == count ? ncclSuccess : ncclSystemError;
}

static inline ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result) {
    (void)comm;
    *result = ncclSuccess;
    return ncclSuccess;
}

static inline ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    (void)comm;
    return fake_nccl_result(MPI_Barrier(MPI_COMM_WORLD));
}

static inline ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    (void)comm;
    return fake_nccl_result(MPI_Finalize());
}

static inline ncclResult_t ncclCommAbort(ncclComm_t comm) {
    (void)comm;
    return fake_nccl_result(MPI_Abort(MPI_COMM_WORLD, 3));
}

static inline ncclResult_t ncclGroupStart(void) { return ncclSuccess; }

static inline ncclResult_t ncclGroupEnd(void) {
    const int num = fake_nccl.num;
    fake_nccl.num = 0;
    return fake_nccl_result(MPI_Waitall(num, fake_nccl.requests, MPI_STATUSES_IGNORE));
}

static inline ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer,
                                    ncclComm_t comm, cudaStream_t stream) {
    (void)stream;
    return fake_nccl_result(MPI_Isend(from, (int)count, fake_nccl_type(type), peer, 0,
                                      MPI_COMM_WORLD, &comm->requests[comm->num++]));
}

static inline ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer,
                                    ncclComm_t comm, cudaStream_t stream) {
    (void)stream;
    return fake_nccl_result(MPI_Irecv(to, (int)count, fake_nccl_type(type), peer, 0,
                                      MPI_COMM_WORLD, &comm->requests[comm->num++]));
}

/* In place, as ddp_nccl.cu calls it. */
static inline ncclResult_t ncclAllReduce(const void *from, void *to, size_t count,
                                         ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                         cudaStream_t stream) {
    (void)comm;
    (void)stream;
    if (from != to) return ncclSystemError;
    return fake_nccl_result(MPI_Allreduce(MPI_IN_PLACE, to, (int)count, fake_nccl_type(type),
                                          op == ncclSum ? MPI_SUM : MPI_MAX, MPI_COMM_WORLD));
}

#endif
