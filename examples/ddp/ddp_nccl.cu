/* ddp_nccl.cu - ddp_mpi.c on NVIDIA GPUs, one for each rank: the exchanges are NCCL's

   Network, steps, order of sums and files are the same, with everything on the GPU. Loss scale, sums
   over the ranks and the decision to skip never wait for the host, which is one step ahead.

   READ  ddp_mpi.c first: its head says what travels and how far that scales. Here: ranks (how NCCL
   is watched), kernels, what zero.h asks of a GPU and of NCCL, the network, a micro-batch, steps.

   BUILD AND RUN, in the directory of amp.h; the variables are named as torchrun names them:

       nvcc -O3 -std=c++14 -arch=native -I. examples/ddp/ddp_nccl.cu amp_kernels.cu \
           -lcublas -lcublasLt -lnccl -o ddp_nccl
       for r in 0 1 2 3; do
           RANK=$r WORLD_SIZE=4 LOCAL_RANK=$r DDP_ID=ddp.id ./ddp_nccl & done; wait

   DDP_ID names a file that all ranks see and that does not exist yet. Rank 0 writes NCCL's number
   of the run into it, and each rank its pulse into DDP_ID.RANK. Without these variables there is
   one rank; with DDP_ID alone there is one that goes through NCCL.

   OVERLAP  Exchanges run on a stream of their own. It waits for the event behind a gradient, and
   the stream of the products for the event behind an exchange, before blocks are added or a model
   is read. That costs the memory that ddp_mpi.c gives, and the multiprocessors on which NCCL copies.

   FAILURE  The host never waits for a stream blindly: it polls an event, and NCCL's own errors,
   until the deadline; then it says whose pulse is oldest, aborts the communicator and ends. Each
   rank does so by itself; one that was stopped is left to whoever started it.

   BITS  are the same on any number of GPUs of one kind with one version of cuBLAS.               */

#define PROGRAM "ddp_nccl"
#define END(code) end_rank(code)
static void end_rank(int code);

#define AMP_IMPLEMENTATION
#include "amp.h"

#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <nccl.h>

#include "../support/train_data.h"
#include "ddp_report.h" /* options, table, memory; zero.h */
#include "../support/cuda_must.cuh"

#include <math.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LAYERS = 3, TENSORS = 2 * LAYERS, HANG_SECONDS = 10 };
static const float learning_rate = 2e-3f, dropped = 0.1f;

/* --------------------------------------------------------------------------------------- ranks */

static struct ranks {
    int          rank, count;
    double       deadline, waited, beat; /* beat: when the last pulse was written */
    uint64_t     step;
    const char  *id;
    ncclComm_t   comm;
    cudaStream_t work, wire;             /* products and optimizer; exchanges     */
    cudaEvent_t  done, stepped[2];
    amp_backend  backend;
    cublasHandle_t cublas;
    int          patient; /* in set-up, save, load: amp.h and zero.h would wait blindly */
} ranks;

static void end_rank(int code) {
    if (ranks.comm) ncclCommAbort(ranks.comm);
    _exit(code); /* no destructor waits for a stream that never ends */
}

static void pulse_path(char *path, int rank) { sprintf(path, "%.480s.%d", ranks.id, rank); }

/* Be seen: twenty times within a deadline. */
static void beat(void) {
    char path[512];
    if (ranks.count == 1 || seconds() - ranks.beat < ranks.deadline / 20) return;
    ranks.beat = seconds();
    alarm((unsigned)ranks.deadline + HANG_SECONDS); /* for what cannot be polled: a file system */
    pulse_path(path, ranks.rank);
    FILE *f = fopen(path, "w");
    if (!f) fail(1, path, strerror(errno), "choose a DDP_ID that all ranks can write beside");
    fprintf(f, "%lu\n", (unsigned long)ranks.step);
    fclose(f);
}

/* Of the others, the one whose pulse is oldest. */
static void give_up(const char *what) {
    char   path[512], subject[64], problem[160];
    int    silent = -1;
    time_t oldest = 0;
    for (int r = 0; r < ranks.count; r++) {
        struct stat s;
        pulse_path(path, r);
        const time_t heard = stat(path, &s) == 0 ? s.st_mtime : 0;
        if (r == ranks.rank || (silent >= 0 && heard >= oldest)) continue;
        silent = r;
        oldest = heard;
    }
    sprintf(subject, "rank %d in step %lu", ranks.rank, (unsigned long)ranks.step);
    const int length = sprintf(problem, "%.40s took longer than %g s, and rank %d was ", what,
                               ranks.deadline, silent);
    if (oldest)
        sprintf(problem + length, "last heard of %.0f s ago", difftime(time(NULL), oldest));
    else sprintf(problem + length, "never heard of");
    fail(3, subject, problem, "the last checkpoint is whole; --resume it");
}

/* Poll until ready says so. A pause of more than a second between two looks is no waiting. */
template <class READY>
static void wait_until(READY ready, const char *what) {
    double looked = seconds(), waited = 0.0;
    while (!ready()) {
        ncclResult_t state = ncclSuccess;
        if (ranks.comm) ncclCommGetAsyncError(ranks.comm, &state);
        if (state != ncclSuccess && state != ncclInProgress)
            fail(3, "NCCL", ncclGetErrorString(state), "a rank or a link has failed; --resume");
        if (waited > ranks.deadline) give_up(what);
        beat();
        sched_yield();
        const double now = seconds();
        if (now - looked < 1.0) waited += now - looked;
        looked = now;
    }
    ranks.waited += waited;
}

/* A communicator that does not block answers "in progress", and later how it ended. */
static void must(ncclResult_t result) {
    if (result == ncclInProgress)
        wait_until([&] {
            return ncclCommGetAsyncError(ranks.comm, &result) == ncclSuccess &&
                   result != ncclInProgress;
        }, "a call of NCCL");
    if (result != ncclSuccess)
        fail(3, "NCCL", ncclGetErrorString(result), "NCCL_DEBUG=INFO says more");
}

/* Inside of a group nothing has begun yet. */
static void queue(ncclResult_t result) {
    if (result != ncclInProgress) must(result);
}

static bool reached(cudaEvent_t event) {
    const cudaError_t error = cudaEventQuery(event);
    if (error != cudaErrorNotReady) must(error);
    return error == cudaSuccess;
}

/* All that was queued has ended, or this does not return. Calls of amp.h that wait come behind. */
static void settle(const char *what) {
    must(cudaEventRecord(ranks.done, ranks.work));
    wait_until([] { return reached(ranks.done); }, what);
    must(cudaEventRecord(ranks.done, ranks.wire));
    wait_until([] { return reached(ranks.done); }, what);
}

/* Rank 0 makes the number, and renames a file when all of it is there. */
static void share_id(ncclUniqueId *id) {
    char path[512];
    sprintf(path, "%.480s.new", ranks.id);
    if (ranks.rank == 0) {
        FILE *f = access(ranks.id, F_OK) == 0 ? NULL : fopen(path, "wb");
        if (!f) fail(1, ranks.id, "is there, or cannot be written", "choose another DDP_ID");
        must(ncclGetUniqueId(id));
        if (fwrite(id, sizeof *id, 1, f) != 1 || fclose(f) != 0 || rename(path, ranks.id) != 0)
            fail(1, ranks.id, strerror(errno), "choose another DDP_ID");
        return;
    }
    wait_until([] { return access(ranks.id, F_OK) == 0; }, "the file DDP_ID");
    FILE *f = fopen(ranks.id, "rb");
    if (!f || fread(id, sizeof *id, 1, f) != 1)
        fail(1, ranks.id, "cannot be read", "choose another DDP_ID");
    fclose(f);
}

static int number_from(const char *name, int otherwise, int max) {
    const char        *value  = getenv(name);
    int                number = 0;
    const known_option k      = count_option(name, &number, max);
    if (!value || !*value) return otherwise;
    if (strcmp(value, "0") != 0) take_value(&k, value);
    return number;
}

static void join_ranks(const options *o) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    int          gpus = 0;
    ranks.deadline = o->deadline;
    ranks.count    = number_from("WORLD_SIZE", 1, 65536);
    ranks.rank     = number_from("RANK", 0, 65536);
    ranks.id       = getenv("DDP_ID");
    if (ranks.rank >= ranks.count || (ranks.count > 1 && !ranks.id))
        fail(2, "RANK, WORLD_SIZE, DDP_ID", "do not name a rank below a size, and a file",
             "see the head of ddp_nccl.cu");
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0)
        fail(1, "CUDA", "there is no GPU", "ddp_mpi does the same without");
    must(cudaSetDevice(number_from("LOCAL_RANK", 0, 65536) % gpus));
    must(cudaStreamCreateWithFlags(&ranks.work, cudaStreamNonBlocking));
    must(cudaStreamCreateWithFlags(&ranks.wire, cudaStreamNonBlocking));
    must(cudaEventCreateWithFlags(&ranks.done, cudaEventDisableTiming));
    for (int i = 0; i < 2; i++)
        must(cudaEventCreateWithFlags(&ranks.stepped[i], cudaEventDisableTiming));
    if (cublasCreate(&ranks.cublas) != CUBLAS_STATUS_SUCCESS)
        fail(1, "cuBLAS", "does not start", "is its library that of the toolkit?");
    must(amp_cuda_backend(&ranks.backend, ranks.work, ranks.cublas));
    if (!ranks.id) return;
    share_id(&id);
    config.blocking = 0;
    must(ncclCommInitRankConfig(&ranks.comm, ranks.count, id, ranks.rank, &config));
    if (ranks.rank == 0) remove(ranks.id); /* all have read it */
}

static void leave_ranks(void) {
    char path[512];
    settle("the end");
    if (!ranks.comm) return;
    must(ncclCommFinalize(ranks.comm));
    must(ncclCommDestroy(ranks.comm));
    ranks.comm = NULL;
    pulse_path(path, ranks.rank);
    remove(path);
}

/* Queued behind the check and in front of the decision, on one stream. */
static amp_result reduce_over_ranks(void *, double *sums, size_t num_sums, uint32_t *maxima,
                                    size_t num_maxima) {
    if (!ranks.comm) return AMP_OK;
    queue(ncclGroupStart());
    queue(ncclAllReduce(sums, sums, num_sums, ncclDouble, ncclSum, ranks.comm, ranks.work));
    if (num_maxima)
        queue(ncclAllReduce(maxima, maxima, num_maxima, ncclUint32, ncclMax, ranks.comm,
                            ranks.work));
    must(ncclGroupEnd());
    if (ranks.patient) settle("the sum over the ranks");
    return AMP_OK;
}

/* ------------------------------------------------------------------------------------- kernels */

/* Number i of a stream, which follows from the number of a micro-batch, never from its rank. */
static __device__ uint64_t draw(uint64_t number, uint64_t stream, uint64_t i) {
    uint64_t u = (number * 8 + stream) * 0x2545f4914f6cdd1du + i * 0x9e3779b97f4a7c15u;
    u = (u ^ (u >> 30)) * 0xbf58476d1ce4e5b9u;
    u = (u ^ (u >> 27)) * 0x94d049bb133111ebu;
    return u ^ (u >> 31);
}

/* Images first, first + 1 ..., or at random if count is not 0. */
static __global__ void load_kernel(float *out, int *label, const float *image, const int *labels,
                                   size_t rows, size_t pixels, uint64_t number, size_t first,
                                   size_t count) {
    FOR_EACH(i, rows * pixels) {
        const size_t row = i / pixels, pick = count ? draw(number, 0, row) % count : first + row;
        out[i] = image[pick * pixels + i % pixels];
        if (i % pixels == 0) label[row] = labels[pick];
    }
}

/* dropout(relu(z + bias)), without dropout if keep is 1; the last layer adds the bias alone. */
static __global__ void activate_kernel(float *z, const float *bias, size_t n, size_t width,
                                       uint64_t number, uint64_t layer, float keep, int last) {
    FOR_EACH(i, n) {
        const float x = z[i] + bias[i % width];
        const int   stays = (float)(draw(number, layer + 1, i) >> 40) < keep * 16777216.0f;
        z[i] = last ? x : x > 0.0f && stays ? x / keep : 0.0f;
    }
}

/* The gradient by act becomes that by z. */
static __global__ void relu_back_kernel(float *grad, const float *act, size_t n, float keep) {
    FOR_EACH(i, n) grad[i] = act[i] > 0.0f ? grad[i] / keep : 0.0f;
}

/* Softmax and cross-entropy, a thread for an image: logits become their gradient, that of a mean
   over all images of the step, times the loss scale. */
static __global__ void loss_kernel(float *logits, const int *label, size_t rows, double *loss,
                                   const float *scale, float images) {
    FOR_EACH(row, rows) {
        float *z = logits + row * NUM_CLASSES, max = z[0], sum = 0.0f;
        for (int i = 1; i < NUM_CLASSES; i++) max = z[i] > max ? z[i] : max;
        for (int i = 0; i < NUM_CLASSES; i++) sum += expf(z[i] - max);
        const float right = z[label[row]];
        loss[row] = ((double)(max - right) + (double)logf(sum)) / (double)images;
        for (int i = 0; i < NUM_CLASSES; i++)
            z[i] = (expf(z[i] - max) / sum - (i == label[row] ? 1.0f : 0.0f)) * *scale / images;
    }
}

/* In the order of rows, whatever the grid: losses of images, or columns of gradients. */
static __global__ void add_losses_kernel(double *sum, const double *loss, size_t rows) {
    FOR_EACH(once, 1) {
        double s = 0.0;
        for (size_t i = 0; i < rows; i++) s += loss[i];
        *sum = s;
    }
}

static __global__ void add_rows_kernel(float *sum, const float *z, size_t rows, size_t width) {
    FOR_EACH(j, width) {
        float s = 0.0f;
        for (size_t i = 0; i < rows; i++) s += z[i * width + j];
        sum[j] = s;
    }
}

/* zero_join, an element for a thread. */
static __global__ void join_kernel(float *top, size_t stride, int joins, const void *x, int type,
                                   size_t n) {
    FOR_EACH(i, n) {
        float *below = top + i;
        float  sum = type == AMP_F16    ? __half2float(((const __half *)x)[i])
                     : type == AMP_BF16 ? __bfloat162float(((const __nv_bfloat16 *)x)[i])
                                        : ((const float *)x)[i];
        for (int j = 0; j < joins; j++) {
            below -= stride;
            sum += *below;
        }
        *below = sum;
    }
}

/* zero_total, by a block of 256: a lane for a thread. */
static __global__ void total_kernel(double *sum, const double *squares, size_t count) {
    __shared__ double lanes[256];
    double            lane = 0.0;
    for (size_t c = threadIdx.x; c < count; c += 256) lane += squares[c];
    lanes[threadIdx.x] = lane;
    for (unsigned pair = 128; pair; pair /= 2) {
        __syncthreads();
        if (threadIdx.x < pair) lanes[threadIdx.x] += lanes[threadIdx.x + pair];
    }
    if (threadIdx.x == 0) *sum = lanes[0];
}

/* ------------------------------------------------------------------------------------- network
   Layer l:  z = act[l] W + b;  the last layer's z, in fp32, is the output; otherwise
   act[l + 1] = dropout(relu(z)). Tensor 2 l is the weight of layer l, 2 l + 1 its bias.          */

typedef struct route {
    char       *grad;
    cudaEvent_t ready, over; /* what is sent is there; what is open of the tensor is over */
} route;

static struct net {
    const options *o;
    const dataset *data;
    amp_dtype      type;
    size_t         size, width[LAYERS + 1], rows, num_params;
    float         *image, *wide, *sum, *out; /* all images; two batches; a row; logits */
    int           *labels, *label;
    void          *act[LAYERS], *delta[2];
    double        *loss, *row_loss;
    route          routes[TENSORS];
    zero           z;
    memory         bytes;
} net;

static void *device_alloc(size_t count, size_t size) {
    void *p = NULL;
    if (cudaMalloc(&p, count && size ? count * size : 1) != cudaSuccess)
        fail(1, "GPU memory", "there is not enough", "choose a smaller --width or --batch");
    must(cudaMemsetAsync(p, 0, count * size, ranks.work));
    return p;
}

static void to_device(void *dst, const void *src, size_t num_bytes) {
    must(cudaMemcpyAsync(dst, src, num_bytes, cudaMemcpyHostToDevice, ranks.work));
    settle("a copy to the GPU");
}

/* ---------------------------------------------------------- what zero.h asks of a GPU and NCCL */

static void *allocate(void *, size_t num_bytes) { return device_alloc(num_bytes, 1); }

static void release(void *, void *memory) { cudaFree(memory); }

static amp_result copy(void *, void *to, const void *from, size_t num_bytes) {
    if (ranks.patient) settle("a copy");
    if (ranks.patient) must(cudaMemcpy(to, from, num_bytes, cudaMemcpyDefault));
    else must(cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyDefault, ranks.work));
    return AMP_OK;
}

static amp_result join(void *, float *top, size_t stride, int joins, const void *x,
                       amp_dtype type, size_t n) {
    if (n) join_kernel<<<blocks_for(n), 256, 0, ranks.work>>>(top, stride, joins, x, (int)type, n);
    return AMP_OK;
}

static amp_result total(void *, double *sum, const double *squares, size_t count) {
    total_kernel<<<1, 256, 0, ranks.work>>>(sum, squares, count);
    return AMP_OK;
}

/* It begins when the work that is queued by now is done, and goes on beside it. */
static amp_result exchange(void *, int i, int, const zero_span *to, const zero_span *from) {
    must(cudaEventRecord(net.routes[i].ready, ranks.work));
    must(cudaStreamWaitEvent(ranks.wire, net.routes[i].ready, 0));
    queue(ncclGroupStart());
    for (int r = 0; r < ranks.count; r++) {
        if (to[r].bytes)
            queue(ncclSend(to[r].at, to[r].bytes, ncclUint8, r, ranks.comm, ranks.wire));
        if (from[r].bytes)
            queue(ncclRecv(from[r].at, from[r].bytes, ncclUint8, r, ranks.comm, ranks.wire));
    }
    must(ncclGroupEnd());
    must(cudaEventRecord(net.routes[i].over, ranks.wire));
    return AMP_OK;
}

static amp_result wait_for_tensor(void *, int i) { /* the host does not */
    must(cudaStreamWaitEvent(ranks.work, net.routes[i].over, 0));
    return AMP_OK;
}

static void add_layers(void) { /* the same on all ranks, which keep what is theirs */
    float   *weight[TENSORS];
    uint64_t rng = 1;
    size_t   before, after, total_bytes;
    for (int i = 0; i < TENSORS; i++) {
        const size_t in = net.width[i / 2], out = net.width[i / 2 + 1];
        amp_tensor   t = {};
        t.name      = tensor_names[i];
        t.n         = i % 2 ? out : in * out;
        t.grad_type = net.type;
        t.keep_fp32 = i % 2;
        t.weight = weight[i] = (float *)need(t.n, sizeof(float)); /* zero.h copies it */
        for (size_t k = 0; k < t.n && i % 2 == 0; k++)
            weight[i][k] = sqrtf(6.0f / (float)in) * random_uniform(&rng);
        must(zero_add(&net.z, &t));
        net.routes[i].grad = (char *)device_alloc(t.n, net.size);
        must(cudaEventCreateWithFlags(&net.routes[i].ready, cudaEventDisableTiming));
        must(cudaEventCreateWithFlags(&net.routes[i].over, cudaEventDisableTiming));
        net.num_params += t.n;
    }
    must(cudaMemGetInfo(&before, &total_bytes));
    const amp_result result = zero_prepare(&net.z);
    if (result != AMP_OK)
        fail(1, amp_result_string(result), zero_problem(&net.z), "start all ranks alike");
    must(cudaMemGetInfo(&after, &total_bytes));
    net.bytes.optimizer = (double)(before - after) - (double)net.z.used; /* in whole pages */
    count_memory(&net.bytes, &net.z);
    for (int i = 0; i < TENSORS; i++) free(weight[i]);
}

static void make_optimizer(void) {
    const zero_ranks   network = {ranks.rank, ranks.count, NULL, reduce_over_ranks, exchange,
                                  wait_for_tensor, allocate, release, copy, join, total};
    amp_optimizer_desc desc = {};
    desc.backend  = &ranks.backend;
    desc.dtype    = net.type;
    desc.kind     = AMP_KIND_ADAMW;
    desc.max_norm = net.o->clip;
    if (net.type == AMP_F16) desc.scaler.growth_interval = 20; /* default 2000: for longer runs */
    else desc.scaler.preset = AMP_PRESET_NONE;
    must(zero_init(&net.z, &desc, &network, net.o->micro));
    add_layers();
}

static void net_init(const options *o, const dataset *data) {
    const size_t images = data->num_train + data->num_test;
    net.o    = o;
    net.data = data;
    net.type = (amp_dtype)o->dtype;
    net.size = amp_dtype_size(net.type);
    net.rows = (size_t)o->batch;
    for (int l = 0; l <= LAYERS; l++)
        net.width[l] = l == 0 ? data->pixels : (size_t)(l == LAYERS ? NUM_CLASSES : o->width);
    make_optimizer();
    const size_t widest = net.width[0] > net.width[1] ? net.width[0] : net.width[1];
    net.image    = (float *)device_alloc(images * data->pixels, sizeof(float));
    net.labels   = (int *)device_alloc(images, sizeof(int));
    net.label    = (int *)device_alloc(net.rows, sizeof(int));
    net.wide     = (float *)device_alloc(2 * net.rows * widest, sizeof(float));
    net.sum      = (float *)device_alloc(widest, sizeof(float));
    net.out      = (float *)device_alloc(net.rows * NUM_CLASSES, sizeof(float));
    net.loss     = (double *)device_alloc((size_t)o->micro, sizeof(double));
    net.row_loss = (double *)device_alloc(net.rows, sizeof(double));
    for (int l = 0; l < LAYERS; l++) net.act[l] = device_alloc(net.rows * net.width[l], net.size);
    for (int i = 0; i < 2; i++) net.delta[i] = device_alloc(net.rows * widest, net.size);
    to_device(net.image, data->image, images * data->pixels * sizeof(float));
    to_device(net.labels, data->label, images * sizeof(int));
}

static amp_status status(void) {
    amp_status s;
    settle("a step");
    must(amp_optimizer_status(&net.z.opt, &s));
    return s;
}

/* ---------------------------------------------------- a micro-batch: forward, loss and backward */

static void multiply(int trans_a, int trans_b, size_t rows, size_t cols, size_t k, const void *a,
                     const void *b, void *c, amp_dtype c_type) {
    amp_gemm_args g = {};
    g.trans_a = trans_a, g.trans_b = trans_b;
    g.m = rows, g.n = cols, g.k = k;
    g.a = a, g.b = b, g.c = c;
    g.a_type = g.b_type = net.type, g.c_type = c_type;
    must(amp_gemm(&ranks.backend, &g));
}

static void cast(void *dst, amp_dtype dst_type, const void *src, amp_dtype src_type, size_t n) {
    must(amp_cuda_cast(dst, dst_type, src, src_type, n, ranks.work));
}

/* Micro-batch `number` at random, or for NULL images first, first + 1 ... */
static void load_images(size_t rows, const uint64_t *number, size_t first) {
    const size_t pixels = net.width[0];
    load_kernel<<<blocks_for(rows * pixels), 256, 0, ranks.work>>>(net.wide, net.label,
        (const float *)net.image, (const int *)net.labels, rows, pixels, number ? *number : 0,
        first, number ? net.data->num_train : 0);
    cast(net.act[0], net.type, net.wide, AMP_F32, rows * pixels);
}

static void forward(size_t rows, const uint64_t *number) {
    const float keep = number ? 1.0f - dropped : 1.0f;
    for (int l = 0; l < LAYERS; l++) {
        const size_t in = net.width[l], out = net.width[l + 1];
        const int    last = l + 1 == LAYERS;
        float       *z = last ? net.out : net.wide;
        multiply(0, 0, rows, out, in, net.act[l], zero_model(&net.z, 2 * l), z, AMP_F32);
        activate_kernel<<<blocks_for(rows * out), 256, 0, ranks.work>>>(z,
            (const float *)zero_model(&net.z, 2 * l + 1), rows * out, out, number ? *number : 0,
            (uint64_t)l, keep, last);
        if (!last) cast(net.act[l + 1], net.type, z, AMP_F32, rows * out);
    }
}

/* --plant: what this rank itself owns overflows, and nobody else's check will see it. */
static void plant(int i) {
    if (net.z.tensors[i].own)
        to_device(net.routes[i].grad + net.z.tensors[i].first * net.size, infinity_of(net.type),
                  net.size);
}

static void backward(int planted) {
    for (int l = LAYERS; l-- > 0;) {
        const size_t in = net.width[l], out = net.width[l + 1], count = net.rows * in;
        void        *above = net.delta[0], *below = net.delta[1];
        for (int i = 2 * l; i < 2 * l + 2; i++) must(zero_wait(&net.z, i)); /* the one before */
        multiply(1, 0, in, out, net.rows, net.act[l], above, net.routes[2 * l].grad, net.type);
        cast(net.wide, AMP_F32, above, net.type, net.rows * out);
        add_rows_kernel<<<blocks_for(out), 256, 0, ranks.work>>>(net.sum,
            (const float *)net.wide, net.rows, out);
        cast(net.routes[2 * l + 1].grad, net.type, net.sum, AMP_F32, out);
        for (int i = 2 * l + 1; i >= 2 * l; i--) {
            if (planted) plant(i);
            must(zero_gradient(&net.z, i, net.routes[i].grad));
        }
        if (l == 0) return;
        multiply(0, 1, net.rows, in, out, above, zero_model(&net.z, 2 * l), net.wide, AMP_F32);
        cast(net.wide + count, AMP_F32, net.act[l], net.type, count);
        relu_back_kernel<<<blocks_for(count), 256, 0, ranks.work>>>(net.wide,
            (const float *)net.wide + count, count, 1.0f - dropped);
        cast(below, net.type, net.wide, AMP_F32, count);
        net.delta[0] = below;
        net.delta[1] = above;
    }
}

/* --------------------------------------------------------------------------------------- steps */

static void run_micro(uint64_t step, int micro) {
    const options *o      = net.o;
    const uint64_t number = step * (uint64_t)o->micro + (uint64_t)micro;
    load_images(net.rows, &number, 0);
    forward(net.rows, &number);
    loss_kernel<<<blocks_for(net.rows), 256, 0, ranks.work>>>(net.out, (const int *)net.label,
        net.rows, net.row_loss, amp_optimizer_loss_scale_ptr(&net.z.opt),
        (float)net.rows * (float)o->micro);
    add_losses_kernel<<<blocks_for(1), 256, 0, ranks.work>>>(net.loss + micro,
        (const double *)net.row_loss, net.rows);
    cast(net.delta[0], net.type, net.out, AMP_F32, net.rows * NUM_CLASSES);
    backward(micro == net.z.first && (uint64_t)o->plant_step == step &&
             o->plant_rank == ranks.rank);
    must(cudaGetLastError());
}

/* The host queues one step while the GPU is in the one before, and looks that it gets on. */
static void train_step(uint64_t step) {
    ranks.step = step;
    must(cudaMemsetAsync(net.loss, 0, (size_t)net.o->micro * sizeof(double), ranks.work));
    for (int m = net.z.first; m < net.z.first + net.z.each; m++) run_micro(step, m);
    must(zero_step(&net.z, learning_rate));
    must(cudaEventRecord(ranks.stepped[step % 2], ranks.work));
    wait_until([=] { return reached(ranks.stepped[(step + 1) % 2]); }, "a step");
}

/* The mean of the step, of which each rank has a part: added in the order of micro-batches. */
static double loss_of_step(void) {
    const size_t count = (size_t)net.o->micro;
    double      *all = (double *)need(count, sizeof *all), loss = 0.0;
    must(reduce_over_ranks(NULL, net.loss, count, NULL, 0));
    settle("the loss");
    must(cudaMemcpy(all, net.loss, count * sizeof *all, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < count; i++) loss += all[i];
    free(all);
    return loss;
}

/* ----------------------------------------------------------------------------- interrupted runs */

static void save(const char *path) {
    settle("a step");
    ranks.patient = 1;
    errno = 0;
    const amp_result result = zero_save(&net.z, path);
    ranks.patient = 0;
    if (result != AMP_OK) cannot_save(&net.z, path, errno == ENOSPC);
}

static void resume(const char *path) {
    ranks.patient = 1;
    const amp_result result = zero_load(&net.z, path);
    ranks.patient = 0;
    if (result != AMP_OK) cannot_resume(&net.z, path, result);
}

/* ----------------------------------------------------------------------------- what rank 0 says */

/* Percent of the images that training never sees; every rank has all of the model. */
static double evaluate(void) {
    const dataset *d = net.data;
    float         *logits = (float *)need(net.rows * NUM_CLASSES, sizeof *logits);
    size_t         right = 0;
    for (size_t first = 0, rows; first < d->num_test; first += rows) {
        rows = d->num_test - first < net.rows ? d->num_test - first : net.rows;
        load_images(rows, NULL, d->num_train + first);
        forward(rows, NULL);
        settle("the held-out images");
        must(cudaMemcpy(logits, net.out, rows * NUM_CLASSES * sizeof *logits,
                        cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < rows; i++) {
            const float *z = logits + i * NUM_CLASSES;
            int          best = 0;
            for (int j = 1; j < NUM_CLASSES; j++)
                if (z[j] > z[best]) best = j;
            right += best == d->label[d->num_train + first + i];
        }
    }
    free(logits);
    return 100.0 * (double)right / (double)d->num_test;
}

static void train(void) {
    const options *o    = net.o;
    const int      says = ranks.rank == 0;
    const double   start = seconds();
    double         loss = 0.0;
    amp_status     s    = status();
    if (says) print_plan(o, ranks.count, net.num_params, net.data->name);
    ranks.waited = 0.0; /* until now to get ready */
    for (uint64_t step = s.steps + s.skipped; step < (uint64_t)o->steps; step++) {
        train_step(step);
        if (o->save && (step + 1) % (uint64_t)o->save_every == 0) save(o->save);
        if (!has_row(o, (int)step)) continue;
        loss = loss_of_step();
        s    = status();
        if (says) print_row((int)step, loss, &s);
    }
    if (o->save) save(o->save);
    settle("the last step");
    if (!says) return;
    printf("\n  %.2f s, of which the host waited %.2f s\n", seconds() - start, ranks.waited);
    print_memory(&net.bytes, ranks.count, net.num_params);
    print_end(o, ranks.count, loss, evaluate(), &s);
}

int main(int argc, char **argv) {
    static dataset data;
    const options  o = parse_options(argc, argv);
    if (o.help) {
        print_help("RANK=R WORLD_SIZE=N LOCAL_RANK=R DDP_ID=FILE ddp_nccl [options]");
        return finish(0);
    }
    join_ranks(&o);
    load_data(&data, o.data);
    refuse_contradictions(&o, ranks.count);
    ranks.patient = 1;
    net_init(&o, &data);
    ranks.patient = 0;
    if (o.resume) resume(o.resume);
    if (o.save) save(o.save); /* what cannot be written shall be said now */
    train();
    leave_ranks();
    zero_free(&net.z);
    return finish(0);
}
