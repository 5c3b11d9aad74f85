/* test_cuda.cpp - the CUDA backend gives the bits of the CPU backend (law 7) and keeps what it
   promises: nothing waits, nothing allocates, graphs may hold it, failing calls are answered.

   One source for two programs: on a GPU it is compiled by nvcc; without one, by a C++ compiler with
   tests/gpu/emu/cuda_emu.h in front. The CPU backend is compiled as C, in a unit of its own. What can only be
   seen in the emulator (counts of calls, faults, bytes moved) is skipped on a GPU.

   A run is one configuration, driven through its steps on both backends; then everything that the
   backends own or write is compared byte by byte. */

#define AMP_KERNELS /* for the tables of an optimizer: moments, tallies */
#include "amp.h"
#include "../support/gemm_args.h"
#include "../support/prepare.h"
#include "../support/random.h"
#include "../support/storage.h"
#include "../support/test.h"

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <chrono>
#include <math.h>
#include <string>
#include <unistd.h>
#ifdef CUDA_EMU_H
#include <sys/mman.h>
#endif

#ifdef CUDA_EMU_H
enum { EMULATED = 1 };
#else
enum { EMULATED = 0 };
#endif

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
#define OK(call) CHECK_EQ_INT((call), AMP_OK)
#define CUDA(call) CHECK_EQ_INT((call), cudaSuccess)

static const char        *program_path;
static cudaError_t        lost; /* the device, by this */
static unsigned long      runs;
static unsigned long long differing; /* bytes, of all runs */
static unsigned long      samples; /* comparisons with reports of some */

/* ------------------------------------------------------------------------- small tools */

struct dice { /* each with a sequence of its own */
    uint64_t s;
    explicit dice(uint64_t seed) : s(seed * 0x9e3779b97f4a7c15u + 0x1234567u) {}
    uint32_t next() { return random_next(&s); }
    unsigned below(size_t n) { return (unsigned)((uint64_t)next() * n >> 32); }
    bool     one_in(unsigned n) { return below(n) == 0; }
    float    signed_unit() { return (float)(int32_t)next() * (1.0f / 2147483648.0f); }
    template <class T, size_t N> T of(const T (&choices)[N]) { return choices[below(N)]; }
};

static size_t size_of(int type) { return type == AMP_F32 ? 4 : 2; }

static uint32_t float_to_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

/* Launches have at most so many blocks, of so many threads; 0: as is best. */
extern unsigned ampi_most_blocks, ampi_block_size; /* AMPI_GRIDS */
static void in_grids(int blocks, int threads) {
    ampi_most_blocks = (unsigned)blocks;
    ampi_block_size  = (unsigned)threads;
}

static void emulate(unsigned seed, int async) {
#ifdef CUDA_EMU_H
    emu_seed  = seed;
    emu_async = async;
#else
    (void)seed, (void)async;
#endif
    in_grids(0, 0);
}

static void *fresh(size_t bytes) {
    void *p = calloc(1, bytes + 1);
    if (!p) abort();
    return p;
}

static unsigned char *on_device(size_t bytes) {
    void *p = NULL;
    CUDA(cudaMalloc(&p, bytes ? bytes : 1));
    return (unsigned char *)p;
}

/* A default stream per thread is not ordered with main_stream, and cudaMemcpy may return before what it
   copies has arrived: so what came before has ended, and so has the copy. */
static void all_done() { CUDA(cudaDeviceSynchronize()); }

static void upload(void *device, const void *host, size_t bytes) {
    all_done();
    if (bytes) CUDA(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
    all_done();
}

static void download(void *host, const void *device, size_t bytes) {
    all_done();
    if (bytes) CUDA(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
}

static void set_bytes(void *device, int value, size_t bytes) {
    all_done();
    CUDA(cudaMemset(device, value, bytes));
    all_done();
}

template <class T> struct same { typedef T type; };

template <class... P>
static void launch(void (*kernel)(P...), unsigned blocks, unsigned threads, cudaStream_t stream,
                   typename same<P>::type... arguments) {
    void *pointers[] = {(void *)&arguments...};
    CUDA(cudaLaunchKernel((const void *)kernel, dim3(blocks), dim3(threads), pointers, 0, stream));
}

struct counted { size_t nodes, edges; };

static counted count(cudaGraph_t graph) {
    counted c = {0, 0};
    CUDA(cudaGraphGetNodes(graph, NULL, &c.nodes));
#if CUDART_VERSION >= 13000
    CUDA(cudaGraphGetEdges(graph, NULL, NULL, NULL, &c.edges));
#else
    CUDA(cudaGraphGetEdges(graph, NULL, NULL, &c.edges));
#endif
    return c;
}

static cudaGraphExec_t end_capture(cudaStream_t stream, counted *counts = NULL) {
    cudaGraph_t     graph = NULL;
    cudaGraphExec_t exec  = NULL;
    CUDA(cudaStreamEndCapture(stream, &graph));
    if (counts) *counts = count(graph);
#if CUDART_VERSION >= 12000
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
#else
    CUDA(cudaGraphInstantiate(&exec, graph, NULL, NULL, 0));
#endif
    CUDA(cudaGraphDestroy(graph));
    return exec;
}

static void begin_capture(cudaStream_t stream) {
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
}

static bool is_nan(const void *p, size_t i, int type) {
    static const unsigned inf[] = {0x7f800000, 0x7c00, 0x7f80};
    uint32_t              w     = 0;
    uint16_t              h     = 0;
    if (type == AMP_F32) memcpy(&w, (const char *)p + 4 * i, 4);
    else memcpy(&h, (const char *)p + 2 * i, 2), w = h;
    return (w & (type == AMP_F32 ? 0x7fffffff : 0x7fff)) > inf[type];
}

/* Bytes that differ. Where the promise ends at NaN-ness, a NaN on both sides counts as equal;
   unit: bytes of a floating-point number. */
static size_t differ(const void *a, const void *b, size_t bytes, int nan_type, bool nan_ok) {
    const unsigned char *p = (const unsigned char *)a, *q = (const unsigned char *)b;
    const size_t         unit  = nan_type < 0 ? 8 : size_of(nan_type);
    size_t               count = 0;
    if (bytes == 0 || memcmp(a, b, bytes) == 0) return 0;
    for (size_t i = 0; i < bytes; i += unit) {
        const size_t n = bytes - i < unit ? bytes - i : unit;
        if (memcmp(p + i, q + i, n) == 0) continue;
        if (nan_ok && n == unit) {
            uint64_t x = 0, y = 0;
            if (nan_type >= 0 && is_nan(p + i, 0, nan_type) && is_nan(q + i, 0, nan_type)) continue;
            if (nan_type < 0) { /* a double, or two floats, or something beside one */
                memcpy(&x, p + i, unit);
                memcpy(&y, q + i, unit);
                const uint64_t inf = (uint64_t)0x7ff << 52, all = ~((uint64_t)1 << 63);
                if ((x & all) > inf && (y & all) > inf) continue;
                size_t bad = differ(p + i, q + i, 4, AMP_F32, true) +
                             differ(p + i + 4, q + i + 4, 4, AMP_F32, true);
                count += bad;
                continue;
            }
        }
        for (size_t k = 0; k < n; k++) count += p[i + k] != q[i + k];
    }
    return count;
}

/* --------------------------------------------------------------------- kernels of a user */

__device__ static inline float take(const unsigned char *p) {
    return __uint_as_float((unsigned)p[0] | (unsigned)p[1] << 8 | (unsigned)p[2] << 16 |
                           (unsigned)p[3] << 24);
}

__device__ static inline void leave(unsigned char *p, float x) {
    const unsigned u = __float_as_uint(x);
    for (int b = 0; b < 4; b++) p[b] = (unsigned char)(u >> 8 * b);
}

/* Somebody's optimizer, w -= lr * g, at any address; with a gate or as it was. */
static __global__ void user_step(unsigned char *w, const unsigned char *g, uint64_t n, float lr,
                                 const amp_gate *gate) {
    uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (gate && gate->skip) return;
    for (; i < n; i += (uint64_t)gridDim.x * blockDim.x)
        leave(w + 4 * i, __fsub_rn(take(w + 4 * i), __fmul_rn(lr, take(g + 4 * i))));
}

static void user_step_on_host(unsigned char *w, const unsigned char *g, size_t n, float lr) {
    for (size_t i = 0; i < n; i++) {
        float x, y;
        memcpy(&x, w + 4 * i, 4);
        memcpy(&y, g + 4 * i, 4);
        volatile float moved = lr * y;
        volatile float now   = x - moved;
        x = now;
        memcpy(w + 4 * i, &x, 4);
    }
}

/* Another rank's share of a check. */
static __global__ void user_reduce(double *norm2, uint32_t *maxima, double other, uint32_t overflow,
                                   uint32_t largest) {
    *norm2 = __dadd_rn(*norm2, other);
    if (overflow > maxima[0]) maxima[0] = overflow;
    if (largest > maxima[1]) maxima[1] = largest;
}

static __global__ void user_store(uint32_t *p, uint32_t value) { *p = value; }

/* ---------------------------------------------------------------------------- numbers */

enum pattern {
    NORMAL, /* of one magnitude           */
    TINY,   /* the norm must be rescaled  */
    VAST,   /* squares overflow           */
    ZEROS,  /* of both signs              */
    SPARSE, /* few that are not zero      */
    MIXED,  /* tiny beside huge           */
    BITS,   /* any finite bits            */
    NUM_FINITE,
    ANY_BITS = NUM_FINITE /* not finite, too */
};

static void put(unsigned char *at, int type, size_t i, uint32_t bits) {
    if (type == AMP_F32) {
        memcpy(at + 4 * i, &bits, 4);
    } else {
        const uint16_t half = (uint16_t)bits;
        memcpy(at + 2 * i, &half, 2);
    }
}

static uint32_t half_of(int type, float x) {
    if (type == AMP_F16) return amp_f32_to_f16(x).bits;
    if (type == AMP_BF16) return amp_f32_to_bf16(x).bits;
    return float_to_bits(x);
}

/* Sums of a few steps of such numbers stay finite: no exponent above 2^120. */
static uint32_t finite_bits(int type, uint32_t u) {
    if (type == AMP_F16) return (u & 0x7c00u) == 0x7c00u ? u ^ 0x4000u : u;
    const unsigned shift = type == AMP_F32 ? 23 : 7;
    return (u >> shift & 0xffu) >= 247u ? u ^ 0x20u << shift : u;
}

/* Where casts to halves begin to give 0, or subnormal numbers, and bins of histograms end. */
static const uint32_t edges[] = {0x33000000u, 0x33000001u, 0x387fdfffu, 0x387fe000u, 0x00008000u, 0x00008001u,
                                 0x007f7fffu, 0x007f8000u, 0x3dffffffu, 0x3e000000u, 0x41ffffffu, 0x42000000u};

static int magnitude; /* of NORMAL numbers, as a power of two; 0: any from -8 to 7; 128: fp32's largest, half
                         of which bf16 rounds to infinity */

static void fill(unsigned char *at, int type, size_t n, int pattern, dice &r) {
    const int   any  = (int)r.below(16) - 8;
    const float unit = ldexpf(1.0f, magnitude ? magnitude : any);
    for (size_t i = 0; i < n; i++) {
        const int      p = pattern == MIXED ? (r.one_in(2) ? TINY : VAST) : pattern;
        const uint32_t sign = r.one_in(2) ? (type == AMP_F32 ? 0x80000000u : 0x8000u) : 0u;
        uint32_t       u    = 0;
        if (p == NORMAL && magnitude == 128) u = (0x7f7e0000u + r.below(0x20000)) | sign;
        else if (p == NORMAL) u = half_of(type, r.signed_unit() * unit);
        else if (p == TINY && type == AMP_F16) u = r.below(0x400) | sign;
        else if (p == TINY) u = half_of(type, ldexpf(r.signed_unit(), -60 - (int)r.below(90)));
        else if (p == VAST && type == AMP_F16) u = (0x7000u + r.below(0xc00)) | sign;
        else if (p == VAST) u = half_of(type, ldexpf(r.signed_unit(), 60 + (int)r.below(60)));
        else if (p == ZEROS) u = sign;
        else if (p == SPARSE) u = r.one_in(50) ? half_of(type, r.signed_unit() * unit) : sign;
        else if (p == BITS && type == AMP_F32 && r.one_in(8)) u = r.of(edges) | sign;
        else if (p == BITS) u = finite_bits(type, r.next() >> (type == AMP_F32 ? 0 : 16));
        else u = r.next() >> (type == AMP_F32 ? 0 : 16);
        put(at, type, i, u);
    }
}

static uint32_t not_finite(int type, dice &r) {
    const unsigned bits = type == AMP_F16 ? 10 : type == AMP_F32 ? 23 : 7;
    const uint32_t inf  = type == AMP_F16 ? 0x7c00u : type == AMP_F32 ? 0x7f800000u : 0x7f80u;
    const uint32_t sign = r.one_in(2) ? (type == AMP_F32 ? 0x80000000u : 0x8000u) : 0u;
    return inf | sign | (r.one_in(2) ? 0u : r.next() & ((1u << bits) - 1u));
}

static void spoil(unsigned char *at, int type, size_t n, dice &r) {
    for (unsigned k = 1 + r.below(3); k && n; k--) {
        const size_t special[] = {0, n - 1, n / 2, 7 % n, (n + 4) % n, 16383 % n, 16384 % n,
                                  r.below(n)};
        put(at, type, r.of(special), not_finite(type, r));
    }
}

/* ------------------------------------------------------------------------------ twins
   The same optimizer on both backends, with arrays at the same offsets. */

enum { MOST = 300, CPU = 0, DEV = 1 };

enum path { /* how a step is driven on the device                                         */
    PLAIN,  /* adamw(lr), sgd(lr); begin_step, a kernel, end_step                         */
    PARTS,  /* set_lr and step; check, unscale, a kernel that reads the gate, end_step     */
    GRAPH,  /* the same, captured once and replayed; the learning rate is set outside      */
    FROZEN  /* captured with the learning rate                                            */
};

struct shape { /* of one tensor */
    size_t    n;
    amp_dtype grad_type, model_type;
    int       weight, grad, model; /* which arrays are given */
    int       keep_fp32, own;
    uint64_t  key, first;
    float     lr_scale, weight_decay;
    const amp_storage *storage;
};

struct setup {
    amp_optimizer_desc desc;
    shape              tensors[MOST];
    int                count, flat, apart, align; /* 1: no odd addresses; 2: all as from cudaMalloc */
    int                path, max_blocks, block_size, async, default_stream, shared;
    unsigned           seed;
    int                steps, swaps, twice; /* twice: two steps with the same gradients */
    int                every, overflows;    /* compare, overflow: one step in so many   */
    amp_result       (*reduce_fn)(void *, double *, size_t, uint32_t *, size_t); /* NULL: one rank */
    void              *reduce_user[2];      /* of each side                             */
    int                watches;             /* with a report                            */
    amp_report_desc    watch;
};

struct block { unsigned char *host, *device; size_t size; };
struct array { int block; size_t offset; };

struct twins {
    setup           s;
    block           blocks[3 * MOST];
    int             num_blocks;
    array           weight[MOST], grad[MOST], model[MOST];
    amp_optimizer   opt[2];
    amp_backend     backend;
    cudaStream_t    stream;
    cudaGraphExec_t exec;
    float           lr;
    bool            nan_ok, spoilt;
};

static twins        pair, second; /* large */
static setup        base;
static cudaStream_t main_stream, other_stream;
static amp_scaler   shared_host, *shared_device, last_scaler;

static void describe(const twins *t, char *text, size_t size) {
    const setup *s = &t->s;
    snprintf(text, size,
             "kind %d dtype %d preset %d tensors %d n %lu grad %d offsets %lu %lu %lu path %d "
             "blocks %d x %d seed %u async %d flat %d apart %d zero %d place %d norm %g twice %d",
             (int)s->desc.kind, (int)s->desc.dtype, (int)s->desc.scaler.preset, s->count,
             (unsigned long)s->tensors[0].n, (int)s->tensors[0].grad_type,
             (unsigned long)t->weight[0].offset, (unsigned long)t->grad[0].offset,
             (unsigned long)t->model[0].offset, s->path, s->max_blocks, s->block_size, s->seed,
             s->async, s->flat, s->apart, s->desc.zero_grad, s->desc.unscale_in_place,
             (double)s->desc.max_norm, s->twice);
}

static void same_bytes(twins *t, const char *what, const void *cpu, const void *device,
                       size_t bytes, int nan_type) {
    const size_t bad = differ(cpu, device, bytes, nan_type, t->nan_ok);
    char         text[512], where[64];
    if (bad == 0) return;
    differing += bad;
    describe(t, text, sizeof text);
    snprintf(where, sizeof where, "%s: %lu bytes differ", what, (unsigned long)bad);
    test_fail(__FILE__, __LINE__, where, text);
}

/* Reserve n elements: at any phase, now and then at an address that no type is aligned to. */
static array reserve(twins *t, int block, int type, size_t n, dice &r) {
    array a;
    if (t->s.apart) block = t->num_blocks++;
    struct block *b = &t->blocks[block];
    a.block         = block;
    a.offset = (b->size + 63) / 64 * 64;
    if (t->s.align < 2) a.offset += r.below(8) * size_of(type);
    if (!t->s.align && r.one_in(8)) a.offset += 1 + r.below(size_of(type) - 1);
    b->size = a.offset + n * size_of(type);
    if (!t->s.apart) b->size += r.below(40);
    return a;
}

static unsigned char *at(const twins *t, const array &a, int side) {
    const block *b = &t->blocks[a.block];
    return (side == CPU ? b->host : b->device) + a.offset;
}

static amp_tensor tensor_of(const twins *t, int i, int side) {
    const shape *s = &t->s.tensors[i];
    amp_tensor   x;
    memset(&x, 0, sizeof x);
    x.n               = s->n;
    x.weight          = s->weight ? (float *)(void *)at(t, t->weight[i], side) : NULL;
    x.grad            = s->grad ? at(t, t->grad[i], side) : NULL;
    x.grad_type       = s->grad_type;
    x.model           = s->model ? at(t, t->model[i], side) : NULL;
    x.model_type      = s->model_type;
    x.lr_scale        = s->lr_scale;
    x.weight_decay    = s->weight_decay;
    x.frozen          = !s->grad;
    x.keep_fp32       = s->keep_fp32;
    x.own             = s->own;
    x.key             = s->key;
    x.first           = s->first;
    x.storage         = s->storage;
    return x;
}

static amp_result add_tensors(twins *t, int side) {
    amp_result result = AMP_OK;
    if (t->s.flat) { /* the first tensor is the whole; parts of it */
        static amp_tensor parts[MOST];
        amp_tensor        whole = tensor_of(t, 0, side);
        whole.n                 = 0;
        for (int i = 0; i < t->s.count; i++) {
            parts[i] = tensor_of(t, 0, side);
            parts[i].n = t->s.tensors[i].n;
            parts[i].lr_scale = t->s.tensors[i].lr_scale;
            parts[i].keep_fp32 = t->s.tensors[i].keep_fp32;
            parts[i].own = t->s.tensors[i].own;
            parts[i].frozen = !t->s.tensors[i].grad;
            whole.n += parts[i].n;
        }
        return amp_optimizer_add_flat(&t->opt[side], &whole, parts, (size_t)t->s.count);
    }
    for (int i = 0; i < t->s.count && result == AMP_OK; i++) {
        const amp_tensor x = tensor_of(t, i, side);
        result             = amp_optimizer_add(&t->opt[side], &x);
    }
    return result;
}

static void reserve_all(twins *t, dice &r) {
    const setup *s     = &t->s;
    size_t       total = 0;
    t->num_blocks      = s->apart ? 0 : 2;
    for (int i = 0; i < s->count; i++) total += s->tensors[i].n;
    for (int i = 0; i < s->count; i++) {
        const shape *x = &s->tensors[i];
        const size_t n = s->flat ? total : x->n;
        if (s->flat && i) break;
        if (x->weight) t->weight[i] = reserve(t, 0, AMP_F32, n, r);
        if (x->model) t->model[i] = reserve(t, 0, x->model_type, n, r);
        if (x->grad) t->grad[i] = reserve(t, 1, x->grad_type, n, r);
    }
    for (int b = 0; b < t->num_blocks; b++) {
        block *k  = &t->blocks[b];
        k->host   = (unsigned char *)fresh(k->size);
        k->device = on_device(k->size);
        for (size_t i = 0; i < k->size; i++) k->host[i] = (unsigned char)r.next();
    }
    for (int i = 0; i < s->count; i++) {
        const shape *x = &s->tensors[i];
        const size_t n = s->flat ? total : x->n;
        if (s->flat && i) break;
        if (x->weight) fill(at(t, t->weight[i], CPU), AMP_F32, n, NORMAL, r);
        if (x->model) fill(at(t, t->model[i], CPU), x->model_type, n, NORMAL, r);
        if (x->grad) fill(at(t, t->grad[i], CPU), x->grad_type, n, NORMAL, r);
    }
    for (int b = 0; b < t->num_blocks; b++)
        upload(t->blocks[b].device, t->blocks[b].host, t->blocks[b].size);
}

/* A step with nothing but frozen weights is refused: let all of them learn then. */
static void let_learn(setup *s) {
    bool any = false;
    for (int i = 0; i < s->count; i++)
        any = any || (s->tensors[i].n && s->tensors[s->flat ? 0 : i].grad);
    for (int i = 0; i < s->count && !any; i++) s->tensors[i].grad = 1;
}

/* False if amp.h does not accept the configuration (on both sides alike). */
static bool start(twins *t, const setup *s, dice &r) {
    amp_result result[2];
    memset(t, 0, sizeof *t);
    t->s      = *s;
    let_learn(&t->s);
    t->lr     = 0.01f;
    t->stream = s->default_stream ? NULL : main_stream;
    emulate(s->seed, s->async);
    OK(amp_cuda_backend(&t->backend, t->stream, NULL));
    in_grids(s->max_blocks, s->block_size);
    for (int side = CPU; side <= DEV; side++) {
        amp_optimizer_desc d = s->desc;
        d.backend            = side == CPU ? NULL : &t->backend;
        d.reduce_fn   = s->reduce_fn;
        d.reduce_user = s->reduce_user[side];
        if (s->watches) d.report = &t->s.watch;
        if (s->shared) d.shared_scaler = side == CPU ? &shared_host : shared_device;
        result[side] = amp_optimizer_init(&t->opt[side], &d);
    }
    CHECK_EQ_INT(result[CPU], result[DEV]);
    if (result[CPU] != AMP_OK) return false;
    reserve_all(t, r);
    for (int side = CPU; side <= DEV; side++) {
        OK(add_tensors(t, side));
        OK(prepare_scaled(&t->opt[side]));
    }
    return true;
}

static void finish(twins *t) {
    if (t->exec) CUDA(cudaGraphExecDestroy(t->exec));
    amp_optimizer_free(&t->opt[CPU]);
    amp_optimizer_free(&t->opt[DEV]);
    for (int b = 0; b < t->num_blocks; b++) {
        free(t->blocks[b].host);
        CUDA(cudaFree(t->blocks[b].device));
    }
    emulate(0, 0);
}

/* New gradients, the same on both sides. */
static void new_gradients(twins *t, bool overflow, dice &r) {
    const setup *s       = &t->s;
    int          victims = 0;
    size_t       total   = 0;
    for (int i = 0; i < s->count; i++) total += s->tensors[i].n;
    for (int i = 0; i < (s->flat ? 1 : s->count); i++) {
        const shape   *x = &s->tensors[i];
        const size_t   n = s->flat ? total : x->n;
        unsigned char *p = at(t, t->grad[i], CPU);
        if (!x->grad) continue;
        fill(p, x->grad_type, n, r.one_in(2) || magnitude ? NORMAL : (int)r.below(NUM_FINITE), r);
        if (!overflow || n == 0 || (victims && !r.one_in(8))) continue;
        if (i + 1 < s->count && !s->flat && r.one_in(2)) continue; /* not always the first */
        victims++;
        if (r.one_in(6)) fill(p, x->grad_type, n, ANY_BITS, r);
        spoil(p, x->grad_type, n, r);
    }
    if (!s->apart) {
        upload(t->blocks[1].device, t->blocks[1].host, t->blocks[1].size);
    } else {
        for (int i = 0; i < (s->flat ? 1 : s->count); i++) {
            const block *b = &t->blocks[t->grad[i].block];
            if (s->tensors[i].grad) upload(b->device, b->host, b->size);
        }
    }
}

/* Is there something that the user's optimizer changes? */
static bool has_own(const setup *s) {
    bool any = s->desc.kind == AMP_KIND_OWN;
    for (int i = 0; i < s->count; i++) any = any || s->tensors[i].own;
    return any;
}

static amp_result fused(amp_optimizer *opt, float lr) {
    return amp_optimizer_step(opt, lr);
}

static void step_on_cpu(twins *t) {
    amp_optimizer *opt = &t->opt[CPU];
    if (!has_own(&t->s)) {
        OK(fused(opt, t->lr));
        return;
    }
    if (amp_optimizer_begin_step(opt))
        for (int i = 0; i < t->s.count; i++)
            if (amp_optimizer_grad(opt, i))
                user_step_on_host((unsigned char *)amp_optimizer_master(opt, i),
                                  (unsigned char *)amp_optimizer_grad(opt, i),
                                  t->s.tensors[i].n, t->lr);
    OK(amp_optimizer_end_step(opt));
}

static void user_steps(twins *t, const amp_gate *gate, cudaStream_t stream) {
    amp_optimizer *opt = &t->opt[DEV];
    for (int i = 0; i < t->s.count; i++)
        if (amp_optimizer_grad(opt, i) && t->s.tensors[i].n)
            launch(user_step, 1 + (unsigned)(t->s.tensors[i].n / 4096), 64, stream,
                   (unsigned char *)amp_optimizer_master(opt, i),
                   (const unsigned char *)amp_optimizer_grad(opt, i),
                   (uint64_t)t->s.tensors[i].n, t->lr, gate);
}

/* What a capture would hold. */
static void queue_step(twins *t) {
    amp_optimizer *opt = &t->opt[DEV];
    if (!has_own(&t->s)) {
        OK(t->s.path == FROZEN || t->s.path == PLAIN ? fused(opt, t->lr) : amp_optimizer_step_graph(opt));
        return;
    }
    if (t->s.path == PLAIN) {
        const bool goes = amp_optimizer_begin_step(opt);
        if (goes) user_steps(t, NULL, t->stream);
        OK(amp_optimizer_end_step(opt));
        return;
    }
    OK(amp_optimizer_check(opt));
    OK(amp_optimizer_unscale(opt));
    user_steps(t, amp_optimizer_gate(opt), t->stream);
    OK(amp_optimizer_end_step(opt));
}

static void step_on_device(twins *t) {
    const bool graph = (t->s.path == GRAPH || t->s.path == FROZEN) && !t->s.default_stream;
    if (t->s.path == PARTS || t->s.path == GRAPH) {
        OK(amp_optimizer_set_lr(&t->opt[DEV], t->lr));
        if (t->s.desc.kind == AMP_KIND_OWN) OK(amp_optimizer_set_lr(&t->opt[CPU], t->lr));
    }
    if (!graph) {
        queue_step(t);
        return;
    }
    if (!t->exec) {
        begin_capture(t->stream);
        queue_step(t);
        t->exec = end_capture(t->stream);
    }
    CUDA(cudaGraphLaunch(t->exec, t->stream));
}

/* A file in memory. */
struct tape { unsigned char *bytes; size_t size, capacity, place; };
static tape tapes[2], scratch;

static void hold(tape *f, size_t bytes) {
    if (bytes <= f->capacity) return;
    f->capacity = bytes * 2;
    f->bytes    = (unsigned char *)realloc(f->bytes, f->capacity);
    if (!f->bytes) abort();
}

static bool write_tape(void *user, const void *data, size_t bytes) {
    tape *f = (tape *)user;
    hold(f, f->size + bytes);
    memcpy(f->bytes + f->size, data, bytes);
    f->size += bytes;
    return true;
}

static bool read_tape(void *user, void *data, size_t bytes) {
    tape *f = (tape *)user;
    if (bytes > f->size - f->place) return false;
    memcpy(data, f->bytes + f->place, bytes);
    f->place += bytes;
    return true;
}

static void save(amp_optimizer *opt, tape *f) {
    f->size = f->place = 0;
    OK(amp_optimizer_save(opt, write_tape, f));
}

static const void *from_device(const void *device, size_t bytes) {
    hold(&scratch, bytes);
    download(scratch.bytes, device, bytes);
    return scratch.bytes;
}

/* What the two sides tell of it. */
static void compare_reports(amp_optimizer *opt, int tensors) {
    static amp_iteration     history[2][AMP_HISTORY];
    static amp_tensor_report of[2];
    amp_report               reports[2];
    size_t                   count[2] = {AMP_HISTORY, AMP_HISTORY};
    memset(reports, 0, sizeof reports);
    for (int side = CPU; side <= DEV; side++) {
        OK(amp_optimizer_report(&opt[side], &reports[side]));
        OK(amp_optimizer_history(&opt[side], history[side], &count[side]));
    }
    CHECK_MEM(&reports[CPU], &reports[DEV], sizeof reports[CPU]);
    CHECK_EQ_U64(count[CPU], count[DEV]);
    CHECK_MEM(history[CPU], history[DEV], count[CPU] * sizeof history[0][0]);
    for (int i = 0; i < tensors; i++) {
        for (int side = CPU; side <= DEV; side++)
            OK(amp_optimizer_report_tensor(&opt[side], i, &of[side]));
        CHECK_EQ_U64(of[CPU].stats.first_nonfinite, of[DEV].stats.first_nonfinite);
        CHECK_MEM(&of[CPU].overflows, &of[DEV].overflows,
                  sizeof of[CPU] - offsetof(amp_tensor_report, overflows));
    }
    samples += reports[CPU].sampled != 0;
}

/* Has a step computed a NaN, whose sign and payload are each processor's own? It stays in weights
   or moments. */
static bool computed_nan(const twins *t) {
    const amp_optimizer *opt = &t->opt[CPU];
    bool                 found = false;
    for (int i = 0; i < t->s.count && !found; i++) {
        const ampi_slot *s = &opt->plan->host_slots[i];
        const bool       m = s->moment[0].data != NULL, v = s->moment[1].data != NULL;
        const size_t     n = (size_t)s->n;
        float           *both = (float *)fresh(8 * n);
        memset(both, 0, 8 * n);
        OK(amp_optimizer_moments(opt, i, m ? both : NULL, v ? both + n : NULL));
        for (size_t k = 0; k < n; k++)
            found = found || is_nan(both, k, AMP_F32) || is_nan(both + n, k, AMP_F32) ||
                    is_nan(amp_optimizer_model(opt, i), k, s->model ? (int)s->model_type : AMP_F32);
        free(both);
    }
    return found;
}

/* Everything that the two sides have, after a step. */
static uint64_t seen_overflows; /* of fp16 copies, in all that was compared */

static void compare(twins *t) {
    t->nan_ok |= computed_nan(t);
    amp_optimizer *cpu = &t->opt[CPU], *dev = &t->opt[DEV];
    amp_status     status[2];
    amp_grad_stats      stats[2];
    memset(status, 0, sizeof status);
    for (int side = CPU; side <= DEV; side++) {
        OK(amp_optimizer_status(&t->opt[side], &status[side]));
        save(&t->opt[side], &tapes[side]);
    }
    seen_overflows += status[DEV].f16_overflows;
    same_bytes(t, "status", &status[CPU], &status[DEV], sizeof status[CPU], -1);
    CHECK_EQ_U64(tapes[CPU].size, tapes[DEV].size);
    same_bytes(t, "state", tapes[CPU].bytes, tapes[DEV].bytes, tapes[CPU].size - 8, -1);
    if (!t->nan_ok)
        same_bytes(t, "sum of the state", tapes[CPU].bytes + tapes[CPU].size - 8,
                   tapes[DEV].bytes + tapes[CPU].size - 8, 8, -1);
    same_bytes(t, "gate", amp_optimizer_gate(cpu),
               from_device(amp_optimizer_gate(dev), sizeof(amp_gate)), sizeof(amp_gate), AMP_F32);
    same_bytes(t, "found_inf", &cpu->plan->control->found_inf,
               from_device(&dev->plan->control->found_inf, 4), 4, AMP_F32);
    same_bytes(t, "scaler", amp_optimizer_scaler(cpu),
               from_device(amp_optimizer_scaler(dev), sizeof(amp_scaler)), sizeof(amp_scaler), -1);
    CHECK_EQ_F32(amp_optimizer_loss_scale(cpu), amp_optimizer_loss_scale(dev));
    for (int i = 0; i < t->s.count; i++) {
        const ampi_slot *s    = &cpu->plan->host_slots[i];
        const bool       m    = s->moment[0].data != NULL, v = s->moment[1].data != NULL;
        const size_t     n    = (size_t)s->n;
        float           *both = (float *)fresh(16 * n);
        OK(amp_optimizer_moments(cpu, i, m ? both : NULL, v ? both + n : NULL));
        OK(amp_optimizer_moments(dev, i, m ? both + 2 * n : NULL, v ? both + 3 * n : NULL));
        same_bytes(t, "moments", both, both + 2 * n, 8 * n, AMP_F32);
        free(both);
    }
    if (t->s.watches && !t->nan_ok) {
        const int failures = test_state.failures;
        compare_reports(t->opt, t->s.count);
        if (test_state.failures > failures) same_bytes(t, "reports", "a", "b", 1, -1);
    }
    for (int b = 0; b < t->num_blocks; b++) {
        const block *k = &t->blocks[b];
        if (k->size && !t->nan_ok)
            same_bytes(t, b == 0 ? "weights" : "gradients or beside", k->host,
                       from_device(k->device, k->size), k->size, AMP_F32);
    }
    for (int i = 0; i < t->s.count; i++) {
        const ampi_slot *c = &cpu->plan->host_slots[i], *d = &dev->plan->host_slots[i];
        const size_t     n = t->s.tensors[i].n;
        ampi_slot        s;
        download(&s, &dev->plan->table[i], sizeof s);
        CHECK_EQ_U64(s.tally.nonfinite | s.tally.nan | s.tally.zeros | s.tally.late, 0);
        CHECK_EQ_U32(s.tally.max | s.arrived, 0);
        OK(amp_optimizer_stats(cpu, i, &stats[CPU]));
        stats[DEV] = s.stats;
        if (i < 3) OK(amp_optimizer_stats(dev, i, &stats[DEV]));
        same_bytes(t, "stats", &stats[CPU], &stats[DEV], offsetof(amp_grad_stats, max_finite) + 4, -1);
        if (c->model)
            same_bytes(t, "model", c->model, from_device(d->model, n * size_of((int)c->model_type)),
                       n * size_of((int)c->model_type), (int)c->model_type);
        if (c->unscaled)
            same_bytes(t, "unscaled", c->unscaled, from_device(d->unscaled, 4 * n), 4 * n, AMP_F32);
        if (t->nan_ok && c->master.format == AMP_FORMAT_F32) /* others are compared in the state */
            same_bytes(t, "master", c->master.data, from_device(d->master.data, 4 * n), 4 * n, AMP_F32);
    }
}

/* What one side saved, the other loads. */
static void swap_states(twins *t) {
    save(&t->opt[CPU], &tapes[CPU]);
    save(&t->opt[DEV], &tapes[DEV]);
    OK(amp_optimizer_load(&t->opt[CPU], read_tape, &tapes[DEV]));
    OK(amp_optimizer_load(&t->opt[DEV], read_tape, &tapes[CPU]));
}

/* One run. False: not a configuration. */
static bool run(const setup *s, dice &r) {
    static const float rates[] = {0.01f, 0.5f, 0.0f, 0.003f};
    twins             *t       = &pair;
    if (!start(t, s, r)) return false;
    for (int step = 0; step < s->steps; step++) {
        const bool keep = step && r.one_in(6); /* the gradients */
        if (!keep) new_gradients(t, s->overflows && r.one_in((unsigned)s->overflows), r);
        if (s->path != FROZEN && !(has_own(s) && s->path == GRAPH)) t->lr = r.of(rates);
        for (int k = 0; k <= s->twice; k++) {
            for (int side = CPU; side <= DEV && has_own(s) && s->desc.kind != AMP_KIND_OWN; side++)
                OK(amp_optimizer_set_lr(&t->opt[side], t->lr));
            step_on_cpu(t);
            step_on_device(t);
        }
        if ((step + 1) % s->every != 0 && step + 1 < s->steps) continue;
        compare(t);
        if (s->swaps && step == s->steps / 2) swap_states(t);
    }
    last_scaler = *amp_optimizer_scaler(&t->opt[CPU]);
    finish(t);
    runs++;
    return true;
}

/* --------------------------------------------------------------- any configuration */

static const size_t sizes[] = {0,    1,    2,    3,    4,    5,    7,     8,     9,
                               31,   32,   33,   63,   255,  256,  257,   1023,  4095,
                               4096, 4097, 16383, 16384, 16385, 40000, 70001};

static shape any_shape(const amp_optimizer_desc *d, size_t n, int grad_type, dice &r) {
    static const float scales[] = {0.0f, 0.0f, 0.5f, 3.0f};
    shape              x;
    memset(&x, 0, sizeof x);
    x.n               = n;
    x.grad_type       = (amp_dtype)grad_type;
    x.grad            = !r.one_in(12);
    x.weight          = 1;
    x.lr_scale        = r.of(scales);
    x.weight_decay    = r.one_in(4) ? 0.02f : 0.0f;
    if (r.one_in(6)) x.weight_decay = -1.0f; /* none */
    x.model           = r.one_in(3);
    x.model_type      = (amp_dtype)r.below(3);
    if (x.model && r.one_in(3)) x.weight = 0;
    x.keep_fp32 = r.one_in(8) && (!x.model || x.model_type == AMP_F32);
    if (r.one_in(4)) x.key = 1 + r.below(5), x.first = (r.one_in(2) ? 1023 : r.below(3)) * 16384u; /* up to 2^24 */
    (void)d;
    return x;
}

static amp_scaler_desc any_scaler(dice &r) {
    static const float  scales[]    = {0.0f, 0.0f, 1.0f, 1024.0f, 3.7f, 0.125f, 0.002f, 1e9f};
    static const double growths[]   = {0.0, 0.0, 2.0, 1.5, 3.0};
    static const double backoffs[]  = {0.0, 0.0, 0.5, 0.3, 0.9};
    static const int    intervals[] = {0, 1, 2, 3};
    amp_scaler_desc     d;
    memset(&d, 0, sizeof d);
    d.preset          = (amp_preset)(r.one_in(2) ? 0 : r.below(AMP_PRESET_MXNET + 1));
    d.init_scale      = r.of(scales);
    d.growth_factor   = r.of(growths);
    d.backoff_factor  = r.of(backoffs);
    d.growth_interval = r.of(intervals);
    d.hysteresis      = r.one_in(3) ? 2 : 0;
    d.disabled        = r.one_in(16);
    return d;
}

enum { OWN, ADAMW, SGD, MOMENTUM, NESTEROV, LION, NUM_KINDS };

/* A storage that goes with models of type. */
static const amp_storage *any_storage(amp_dtype type, dice &r) {
    static const storage_row states[] = {
        FP32, FP32_BF16, FP32_8BIT, SR, SR_BF16, SR_8BIT, SPLIT, SPLIT_BF16, SPLIT_8BIT};
    return &storages[states[r.below(type == AMP_BF16 ? STORAGES : 3)]];
}

/* A configuration of one kind; its tensors are still to come. */
static setup any_setup(int kind, dice &r) {
    static const float norms[]  = {0.0f, 0.0f, 1.0f, 1e-3f, 1e6f};
    static const int   blocks[] = {0, 0, 1, 2, 3, 64};
    static const int   widths[] = {0, 0, 32, 64, 128, 256};
    setup              s;
    memset(&s, 0, sizeof s);
    s.desc.kind     = kind == OWN     ? AMP_KIND_OWN
                      : kind == ADAMW ? AMP_KIND_ADAMW
                      : kind == LION  ? AMP_KIND_LION
                                      : AMP_KIND_SGD;
    s.desc.momentum = kind == MOMENTUM || kind == NESTEROV ? 0.9 : 0.0;
    s.desc.nesterov = kind == NESTEROV;
    s.desc.dtype    = (amp_dtype)r.below(3);
    s.desc.scaler   = any_scaler(r);
    s.desc.weight_decay     = r.one_in(2) ? 0.01f : 0.0f;
    s.desc.max_norm         = r.of(norms);
    s.desc.zero_grad        = r.one_in(3);
    s.desc.unscale_in_place = r.one_in(4);
    s.path       = (int)r.below(4);
    s.max_blocks = r.of(blocks);
    s.block_size = r.of(widths);
    s.seed       = r.below(3);
    s.async      = (int)r.below(2);
    s.default_stream = r.one_in(12);
    s.apart          = r.one_in(6);
    s.steps          = 3;
    s.swaps          = r.one_in(5);
    s.twice          = r.one_in(6);
    s.every          = r.one_in(4) ? 3 : 1;
    if (r.one_in(3)) { /* a report, with samples */
        s.watches     = 1;
        s.watch.every = (int)r.below(4);
    }
    s.overflows      = s.desc.scaler.disabled && !r.one_in(3) ? 0 : 4;
    return s;
}

static void grid(int from, int to, unsigned repeats, uint64_t seed) {
    dice r(seed);
    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        for (int kind = from; kind <= to; kind++)
            for (int type = AMP_F32; type <= AMP_BF16; type++)
                for (unsigned k = 0; k < repeats;) {
                    setup s      = any_setup(kind, r);
                    s.count      = 1;
                    s.tensors[0] = any_shape(&s.desc, sizes[i], type, r);
                    base         = s;
                    k += run(&base, r);
                }
}

/* New moments for a tensor of one side, as both calls want them. */
static amp_result set_moments(twins *t, int side, int i, const float *both) {
    const ampi_slot *s = &t->opt[CPU].plan->host_slots[i];
    return amp_optimizer_set_moments(&t->opt[side], i, s->moment[0].data ? both : NULL,
                                     s->moment[1].data ? both + s->n : NULL);
}

/* Of all tensors, on both sides the same; second moments are not negative. */
static void new_moments(twins *t, dice &r) {
    for (int i = 0; i < t->s.count; i++) {
        const size_t n    = (size_t)t->opt[CPU].plan->host_slots[i].n;
        float       *both = (float *)fresh(8 * n);
        fill((unsigned char *)both, AMP_F32, 2 * n, r.one_in(4) ? MIXED : NORMAL, r);
        for (size_t k = n; k < 2 * n; k++) both[k] = fabsf(both[k]);
        for (int side = CPU; side <= DEV; side++) OK(set_moments(t, side, i, both));
        free(both);
    }
}

static unsigned few(unsigned n) { /* AMP_QUICK=2: for a sanitizer on a GPU */
    return test_state.quick > 1 && n > 8 ? 8 : test_state.quick ? (n + 15) / 16 : n;
}

TEST(own_steps, "law 7: begin_step, gate: sizes x gradient types x any setup") {
    grid(OWN, OWN, few(14), 1);
}
TEST(adamw_steps, "law 7: AdamW: sizes x gradient types x any setup") {
    grid(ADAMW, ADAMW, few(14), 2);
}
TEST(sgd_steps, "law 7: SGD, momentum, Nesterov: sizes x gradient types x any setup") {
    grid(SGD, NESTEROV, few(9), 3);
}

/* count tensors of mixed types, most of them small. */
static void any_list(setup *s, int count, dice &r) {
    s->count = count;
    for (int i = 0; i < count; i++) {
        const size_t n = count > 2 && !r.one_in(20) ? sizes[r.below(16)] : r.of(sizes);
        s->tensors[i]  = any_shape(&s->desc, n, (int)r.below(3), r);
    }
}

TEST(lists, "law 7: 2, 40 and 300 tensors of mixed sizes and types; any setup") {
    static const int counts[]  = {2, 40, 300};
    static const int repeats[] = {300, 120, 24};
    dice             r(4);
    for (size_t k = 0; k < COUNT_OF(counts); k++)
        for (unsigned i = 0; i < few((unsigned)repeats[k]);) {
            base = any_setup((int)(i % NUM_KINDS), r);
            any_list(&base, counts[k], r);
            i += run(&base, r);
        }
}

TEST(flat, "law 7: tensors that lie in one array (add_flat)") {
    dice r(5);
    for (unsigned i = 0; i < few(150);) {
        setup *s = &base;
        *s       = any_setup((int)(i % NUM_KINDS), r);
        any_list(s, 2 + (int)r.below(20), r);
        s->flat = 1;
        for (int k = 1; k < s->count; k++) /* one way of owning memory for all */
            if (s->tensors[0].model) s->tensors[k].keep_fp32 = s->tensors[0].keep_fp32;
        i += run(s, r);
    }
}

TEST(storage_formats, "law 7: all states, mixed: sizes x types x any setup") {
    dice r(7);
    for (unsigned i = 0; i < few(800);) {
        base                      = any_setup(ADAMW + (int)(i % 5), r);
        base.desc.scaler.preset   = AMP_PRESET_DEFAULT;
        base.desc.scaler.disabled = 0;
        base.desc.dtype           = r.one_in(3) ? AMP_F16 : r.one_in(4) ? AMP_F32 : AMP_BF16;
        base.desc.storage         = any_storage(base.desc.dtype, r);
        base.desc.seed            = r.next();
        any_list(&base, 1 + (int)r.below(6), r);
        for (int k = 0; k < base.count; k++) {
            shape *x = &base.tensors[k];
            x->storage = any_storage(base.desc.dtype, r);
            if (x->model && !x->keep_fp32) x->model_type = base.desc.dtype;
        }
        i += run(&base, r);
    }
}

TEST(one_check, "law 7: tensors that are own beside a fused kind, one or all or few: each storage, flat or not, reports, "
                "on every path") {
    dice r(41);
    for (unsigned i = 0; i < few(960);) {
        setup *s = &base;
        *s       = any_setup(ADAMW + (int)(i % 5), r);
        any_list(s, 1 + (int)r.below(r.one_in(8) ? 40 : 6), r);
        s->path = (int)(i / 5 % 4);
        s->flat = r.one_in(4) && !s->tensors[0].model;
        if (r.one_in(2)) {
            if (s->desc.dtype == AMP_F32) s->desc.dtype = AMP_BF16;
            s->desc.storage = any_storage(s->desc.dtype, r);
            s->desc.seed    = r.next();
        }
        const bool all = r.one_in(5);
        for (int k = 0; k < s->count; k++) {
            shape *x = &s->tensors[k];
            x->own   = all || r.one_in(2);
            if (s->desc.storage && x->model && !x->keep_fp32) x->model_type = s->desc.dtype;
            if (s->desc.storage && s->flat) x->keep_fp32 = 0;
        }
        if (!has_own(s)) s->tensors[0].own = 1;
        i += run(s, r);
    }
}

TEST(moments_handed, "law 7: amp_optimizer_set_moments, after amp_optimizer_set_steps and between steps: moments of fp32 and bf16, the "
                     "bytes of the CPU's, and of its steps after that; forgotten, they are missed on a device, too") {
    dice r(42);
    for (unsigned i = 0; i < few(100);) {
        twins    *t    = &pair;
        const int kind = i % 2 ? ADAMW + (int)(i / 2 % 5) : ADAMW;
        base                    = any_setup(kind, r);
        base.desc.scaler.preset = AMP_PRESET_DEFAULT, base.desc.scaler.disabled = 0;
        base.desc.seed          = r.next();
        any_list(&base, 1 + (int)r.below(6), r);
        base.tensors[0]      = any_shape(&base.desc, 1 + r.below(3000), AMP_F16, r);
        base.tensors[0].grad = 1;
        for (int k = 0; k < base.count; k++) base.tensors[k].storage = r.one_in(2) ? &storages[FP32_BF16] : NULL;
        if (!start(t, &base, r)) continue;
        for (int side = CPU; side <= DEV; side++) OK(amp_optimizer_set_steps(&t->opt[side], 5, 2));
        for (int side = CPU; side <= DEV; side++)
            CHECK_EQ_INT(kind == ADAMW ? amp_optimizer_step(&t->opt[side], 0.1f) : AMP_ERROR_BAD_STATE, AMP_ERROR_BAD_STATE);
        for (int step = 0; step < 4; step++) {
            if (step % 2 == 0) new_moments(t, r);
            compare(t);
            new_gradients(t, step == 1, r);
            step_on_cpu(t);
            step_on_device(t);
            compare(t);
        }
        finish(t);
        i++, runs++;
    }
}

TEST(group_exponents, "law 7: moments of 8 bits whose groups' exponents are at the ends of what the quick codecs take, and of fp32") {
    static const int         ends[2][3][2] = {{{-120, -100}, {10, 26}, {124, 127}},
                                              {{-64, -44}, {4, 22}, {121, 124}}}; /* Lion, SGD; AdamW */
    static const storage_row states[]      = {FP32_8BIT, SPLIT_8BIT, SR_8BIT};
    dice                     r(11);
    for (int kind = ADAMW; kind <= LION; kind++)
        for (int end = 0; end < (kind == ADAMW || kind == LION ? 3 : 2); end++) { /* others' weights: no numbers */
            const int *e = ends[kind == ADAMW][end];
            for (int at = e[0], times = 0; at <= e[1]; at += ++times % 4 == 0) {
                base                      = any_setup(kind, r);
                base.desc.scaler.preset   = AMP_PRESET_STATIC;
                base.desc.scaler.disabled = 1;
                base.desc.dtype           = AMP_BF16;
                base.desc.max_norm        = 0.0f;
                base.desc.seed            = r.next();
                any_list(&base, 2, r);
                for (int k = 0; k < base.count; k++) {
                    base.tensors[k]         = any_shape(&base.desc, 1 + r.below(700), AMP_F32, r);
                    base.tensors[k].weight  = 1;
                    base.tensors[k].grad    = 1;
                    base.tensors[k].model   = 0;
                    base.tensors[k].storage = &storages[states[r.below(3)]];
                }
                base.flat = base.overflows = 0;
                magnitude      = at ? at : 1;
                run(&base, r);
                magnitude = 0;
            }
        }
}

TEST(moments_at_ends, "law 7: AdamW with gradients of 0: m, v and master are any of 18 numbers at the ends of fp32") {
    enum { ENDS = 18, N = ENDS * ENDS * ENDS };
    static const uint32_t ends[ENDS / 2] = {0,          1,          0x007fffff, 0x00800000, 0x2b8cbccc,
                                            0x3f800000, 0x7f7fffff, 0x7f800000, 0x7fc00000};
    static uint32_t       of[3][N]; /* m, v and master */
    dice                  r(12);
    twins                *t = &pair;
    for (int i = 0; i < N; i++)
        for (int k = 0, at = i; k < 3; k++, at /= ENDS)
            of[k][i] = ends[at % ENDS / 2] | (uint32_t)(at % 2) << 31;
    for (int type = AMP_F32; type <= AMP_BF16; type++)
        for (int decays = 0; decays < 2; decays++) {
            memset(&base, 0, sizeof base);
            base.desc.kind            = AMP_KIND_ADAMW;
            base.desc.dtype           = AMP_BF16;
            base.desc.weight_decay    = decays ? 0.01f : 0.0f;
            base.desc.scaler.disabled = 1;
            base.count                = 1;
            base.tensors[0]           = any_shape(&base.desc, N - (size_t)decays, type, r);
            base.tensors[0].weight    = base.tensors[0].grad = 1;
            base.tensors[0].lr_scale  = base.tensors[0].weight_decay = 0.0f;
            base.tensors[0].keep_fp32 = base.tensors[0].model = 0;
            CHECK(start(t, &base, r));
            fill(at(t, t->grad[0], CPU), type, base.tensors[0].n, ZEROS, r);
            upload(t->blocks[1].device, t->blocks[1].host, t->blocks[1].size);
            for (int side = CPU; side <= DEV; side++) {
                const ampi_slot *slot = t->opt[side].plan->host_slots;
                void *const      to[] = {slot->moment[0].data, slot->moment[1].data, slot->master.data};
                for (int k = 0; k < 3; k++)
                    if (side == CPU) memcpy(to[k], of[k], 4 * base.tensors[0].n);
                    else upload(to[k], of[k], 4 * base.tensors[0].n);
            }
            step_on_cpu(t);
            step_on_device(t);
            compare(t);
            finish(t);
            runs++;
        }
}

TEST(large_masters, "law 7: a step takes masters to where the formats of bf16 do not round up any more") {
    static const storage_row states[] = {SPLIT, SR, SR_8BIT};
    dice                     r(12);
    for (int i = 0; i < 24; i++) {
        base                      = any_setup(SGD, r);
        base.desc.scaler.preset   = AMP_PRESET_STATIC;
        base.desc.scaler.disabled = 1;
        base.desc.dtype           = AMP_BF16;
        base.desc.max_norm        = 0.0f;
        base.desc.weight_decay    = 0.0f; /* nothing computes a NaN */
        base.steps = base.count = 1;
        base.align = 2;
        base.flat = base.overflows = base.twice = 0;
        base.tensors[0]                         = any_shape(&base.desc, 200 + r.below(700), AMP_F32, r);
        base.tensors[0].weight                  = 1;
        base.tensors[0].grad                    = 1;
        base.tensors[0].model                   = 0;
        base.tensors[0].weight_decay            = 0.0f;
        base.tensors[0].storage                 = &storages[states[i % 3]];
        magnitude                               = 128;
        run(&base, r);
        magnitude = 0;
    }
}

TEST(f16_overflows, "law 7: as many fp16 copies become inf or NaN as on the CPU: each kind, storage, alignment and path, with "
                    "and without reports") {
    static const storage_row states[] = {FP32, FP32_BF16, FP32_8BIT};
    dice                     r(14);
    for (int kind = OWN; kind < NUM_KINDS; kind++) {
        const uint64_t before = seen_overflows;
        for (int i = 0; i < 12; i++) {
            base                    = any_setup(kind, r);
            base.desc.scaler.preset = AMP_PRESET_STATIC;
            base.desc.dtype         = AMP_F16;
            base.steps = base.count = 1;
            base.flat = base.overflows = base.twice = 0;
            base.tensors[0]           = any_shape(&base.desc, 200 + r.below(40000), r.one_in(2) ? AMP_F32 : AMP_BF16, r);
            base.tensors[0].weight    = base.tensors[0].grad = 1;
            base.tensors[0].model     = base.tensors[0].keep_fp32 = 0;
            base.tensors[0].storage   = kind == OWN ? NULL : &storages[states[i % 3]];
            magnitude                 = 17;
            run(&base, r);
            magnitude = 0;
        }
        CHECK(seen_overflows > before + 1000);
    }
}

TEST(many_chunks, "law 7: more than 256 chunks: the sum over chunks goes round") {
    dice r(6);
    for (unsigned i = 0; i < few(20);) {
        base       = any_setup((int)(i % NUM_KINDS), r);
        base.count = 290;
        for (int k = 0; k < base.count; k++)
            base.tensors[k] = any_shape(&base.desc, 1 + r.below(40), (int)r.below(3), r);
        for (int k = 0; k < base.count; k++) base.tensors[k].grad = 1;
        base.tensors[i * 17 % 290].n = 40000;
        i += run(&base, r);
    }
}

TEST(long_runs, "law 7: 300 steps with moments, loads from the other side, and replays in a row") {
    dice r(8);
    for (unsigned i = 0; i < few(40);) {
        base       = any_setup((int)(i % NUM_KINDS), r);
        base.steps = 300;
        base.every = 25;
        base.desc.scaler.growth_interval = 4;
        any_list(&base, 2, r);
        base.tensors[0].n = 100, base.tensors[1].n = 33;
        i += run(&base, r);
    }
}

TEST(reports, "law 7: reports and their histograms, of any list of tensors: on every path, "
              "sampled in each turn, in graphs too, saved, and loaded from the other side") {
    dice                r(40);
    const unsigned long before = samples;
    for (unsigned i = 0; i < few(160);) {
        setup *s = &base;
        *s       = any_setup((int)(i % NUM_KINDS), r);
        s->path  = (int)(i / NUM_KINDS % 4);
        s->steps = 12;
        s->watches     = 1;
        s->watch.every = 1 + (int)r.below(3);
        s->desc.scaler.disabled = 0;
        any_list(s, 1 + (int)r.below(6), r);
        i += run(s, r);
    }
    CHECK(samples > before + few(160) / 2);
}

/* ------------------------------------------------------------------ values that are not finite */

/* One step of a list in which tensor i has one number bits[i] at place[i]; each must be found. */
static void step_with(int type, size_t n, const uint32_t *bits, const size_t *place, int count,
                      dice &r) {
    twins *t = &pair;
    base     = any_setup((int)r.below(NUM_KINDS), r);
    base.desc.scaler.disabled   = 0;
    base.desc.scaler.init_scale = 0.0f;
    base.count = count;
    for (int i = 0; i < count; i++) {
        memset(&base.tensors[i], 0, sizeof base.tensors[i]);
        base.tensors[i].n         = n;
        base.tensors[i].grad_type = (amp_dtype)type;
        base.tensors[i].weight = base.tensors[i].grad = 1;
    }
    if (!start(t, &base, r)) return;
    new_gradients(t, false, r);
    for (int i = 0; i < count; i++) {
        put(at(t, t->grad[i], CPU), type, place[i], bits[i]);
        const block *b = &t->blocks[t->grad[i].block];
        if (i + 1 == count || t->s.apart) upload(b->device, b->host, b->size);
    }
    step_on_cpu(t);
    step_on_device(t);
    for (int i = 0; i < count; i++) {
        amp_grad_stats s;
        OK(amp_optimizer_stats(&t->opt[CPU], i, &s));
        CHECK_EQ_U64(s.nonfinite, 1);
        CHECK_EQ_U64(s.first_nonfinite, place[i]);
    }
    compare(t);
    finish(t);
    runs++;
}

TEST(every_pattern, "law 1: each inf and NaN of fp16 and bf16 (fp32: each bit) is found: "
                    "first, last, in head, middle and tail") {
    enum { N = 523 };
    const size_t    places[] = {0, N - 1, 3, N - 3, N / 2};
    static uint32_t all[2048], bits[MOST];
    size_t          place[MOST];
    dice            r(9);
    for (int type = AMP_F32; type <= AMP_BF16; type++) {
        const uint32_t inf = type == AMP_F16 ? 0x7c00u : type == AMP_F32 ? 0x7f800000u : 0x7f80u;
        const uint32_t top = type == AMP_F32 ? 0x80000000u : 0x8000u;
        size_t         num = 0;
        if (type == AMP_F32)
            for (int b = -1; b < 23; b++) {
                all[num++] = inf | (b < 0 ? 0 : 1u << b);
                all[num++] = inf | (b < 0 ? 0 : 1u << b) | top;
            }
        else
            for (uint32_t u = 0; u < 0x10000; u++)
                if ((u & inf) == inf) all[num++] = u;
        CHECK_EQ_U64(num, type == AMP_F32 ? 48 : type == AMP_F16 ? 2048 : 256);
        for (size_t p = 0; p < (test_state.quick ? 1 : COUNT_OF(places)); p++)
            for (size_t from = 0; from < num; from += MOST) {
                const int count = num - from < MOST ? (int)(num - from) : MOST;
                for (int i = 0; i < count; i++) bits[i] = all[from + i], place[i] = places[p];
                step_with(type, N, bits, place, count, r);
            }
    }
}

TEST(every_index, "law 1: a NaN at each index of 300 is found, and its index told") {
    static uint32_t bits[MOST];
    size_t          place[MOST];
    dice            r(10);
    for (int type = AMP_F32; type <= AMP_BF16; type++)
        for (unsigned k = 0; k < few(4); k++) {
            for (int i = 0; i < MOST; i++) bits[i] = not_finite(type, r), place[i] = (size_t)i;
            step_with(type, MOST, bits, place, MOST, r);
        }
}

TEST(lr_by_kernel, "a kernel sets the learning rate through lr_ptr; a graph reads it") {
    dice   r(12);
    twins *t = &pair;
    for (unsigned i = 0; i < 12; i++) {
        base      = any_setup(ADAMW + (int)(i % 4), r);
        base.path = GRAPH;
        base.default_stream = 0;
        any_list(&base, 3, r);
        if (!start(t, &base, r)) continue;
        CHECK_EQ_INT(amp_optimizer_step_graph(&t->opt[DEV]), AMP_ERROR_BAD_STATE); /* none yet */
        OK(amp_optimizer_set_lr(&t->opt[DEV], 0.5f));
        begin_capture(t->stream);
        OK(amp_optimizer_step_graph(&t->opt[DEV]));
        t->exec = end_capture(t->stream);
        for (int step = 0; step < 4; step++) {
            t->lr = 0.001f * (float)(step + 1);
            new_gradients(t, false, r);
            launch(user_store, 1, 1, t->stream, (uint32_t *)amp_optimizer_lr_ptr(&t->opt[DEV]),
                   float_to_bits(t->lr));
            CUDA(cudaGraphLaunch(t->exec, t->stream));
            step_on_cpu(t);
            compare(t);
        }
        finish(t);
        runs++;
    }
}

/* ------------------------------------------------------------- several optimizers or ranks */

TEST(shared_scaler, "law 7: two optimizers share a scaler; amp_cuda_scaler_update moves it") {
    dice r(13);
    for (unsigned i = 0; i < few(160);) {
        twins          *both[] = {&pair, &second};
        amp_scaler_desc d      = any_scaler(r);
        bool            ok;
        if (amp_scaler_init(&shared_host, &d) != AMP_OK) continue;
        upload(shared_device, &shared_host, sizeof shared_host);
        for (int k = 0; k < 2; k++) {
            base             = any_setup((int)(i + (unsigned)k) % NUM_KINDS, r);
            base.desc.scaler = d;
            base.shared      = 1;
            base.path        = (int)(i / 4 % 4);
            any_list(&base, 2, r);
            ok = start(both[k], &base, r);
            CHECK(ok);
        }
        for (int step = 0; step < 4; step++) {
            for (int k = 0; k < 2; k++) {
                new_gradients(both[k], r.one_in(4), r);
                step_on_cpu(both[k]);
                step_on_device(both[k]);
            }
            if (step == 1 && i % 3 == 0) continue; /* forgotten, which the next status tells */
            for (int k = 0; k < 2 && step == 2 && !d.disabled; k++) {
                amp_status status;
                OK(amp_optimizer_status(&both[k]->opt[DEV], &status));
                CHECK_EQ_U64(status.missed_updates, i % 3 == 0);
            }
            (void)amp_scaler_update(&shared_host);
            OK(amp_cuda_scaler_update(shared_device, both[0]->stream));
            CUDA(cudaDeviceSynchronize());
            compare(both[0]);
            compare(both[1]);
        }
        finish(both[0]);
        finish(both[1]);
        i++, runs++;
    }
}

struct rank {
    int          side, listening;
    double       norm2;
    uint32_t     maxima[2];
    rank        *other;
    cudaStream_t stream;
    amp_optimizer *opt;
    double       chunks[64]; /* sums of squares, as far as there is room */
    size_t       num_chunks;
};

/* First every rank says what it found, and stops there; then each joins what the other said. */
static amp_result meet(void *user, double *norm2, size_t num_sums, uint32_t *maxima, size_t num_maxima) {
    rank *k = (rank *)user;
    CHECK_EQ_U64(num_sums, 1);
    CHECK_EQ_U64(num_maxima, 2);
    const double *chunks = amp_optimizer_chunk_sums(k->opt, &k->num_chunks);
    const size_t  some = k->num_chunks < 64 ? k->num_chunks : 64;
    if (k->listening && k->side == DEV) {
        CUDA(cudaStreamSynchronize(k->stream));
        download(&k->norm2, norm2, sizeof k->norm2);
        download(k->maxima, maxima, sizeof k->maxima);
        if (some) download(k->chunks, chunks, some * sizeof *chunks);
    } else if (k->listening) {
        k->norm2     = *norm2;
        k->maxima[0] = maxima[0], k->maxima[1] = maxima[1];
        if (some) memcpy(k->chunks, chunks, some * sizeof *chunks);
    } else if (k->side == DEV) {
        launch(user_reduce, 1, 1, k->stream, norm2, maxima, k->other->norm2, k->other->maxima[0],
               k->other->maxima[1]);
    } else {
        *norm2 += k->other->norm2;
        for (int i = 0; i < 2; i++)
            maxima[i] = k->other->maxima[i] > maxima[i] ? k->other->maxima[i] : maxima[i];
    }
    return k->listening ? AMP_ERROR_BAD_STATE : AMP_OK;
}

TEST(ranks, "law 7: ranks agree on other gradients as on the CPU, and see the same sums by chunk; a step "
            "is 3 launches; one that is refused meets, too") {
    dice r(14);
    for (unsigned i = 0; i < few(160);) {
        twins *both[] = {&pair, &second};
        rank   ranks[2][2];
        const setup    like    = any_setup((int)(i % NUM_KINDS), r);
        const int      preset  = (int)r.below(14);
        memset(ranks, 0, sizeof ranks);
        for (int k = 0; k < 2; k++) {
            base = like;
            base.desc.scaler.preset     = (amp_preset)preset;
            base.desc.scaler.init_scale = 0.0f;
            base.path                   = PARTS;
            for (int side = CPU; side <= DEV; side++) {
                ranks[k][side].side   = side;
                ranks[k][side].other  = &ranks[1 - k][side];
                ranks[k][side].stream = base.default_stream ? NULL : main_stream;
                base.reduce_user[side] = &ranks[k][side];
            }
            base.reduce_fn = meet;
            any_list(&base, 1 + (int)r.below(4), r);
            if (!start(both[k], &base, r)) {
                if (k) finish(both[0]);
                goto next;
            }
            for (int side = CPU; side <= DEV; side++) ranks[k][side].opt = &both[k]->opt[side];
        }
        for (int step = 0; step < 4; step++) {
            amp_status seen[2];
            for (int k = 0; k < 2; k++) {
                twins *t = both[k];
                new_gradients(t, r.one_in(4), r);
                OK(amp_optimizer_set_lr(&t->opt[CPU], t->lr));
                OK(amp_optimizer_set_lr(&t->opt[DEV], t->lr));
                if (k == 0 && r.one_in(3)) { /* one rank wants to skip: all do */
                    amp_optimizer_scaler(&t->opt[CPU])->found_inf = 2;
                    launch(user_store, 1, 1, t->stream,
                           &amp_optimizer_scaler(&t->opt[DEV])->found_inf, 2u);
                }
                ranks[k][CPU].listening = ranks[k][DEV].listening = 1;
                for (int side = CPU; side <= DEV; side++)
                    CHECK_EQ_INT(t->s.desc.kind == AMP_KIND_OWN
                                     ? amp_optimizer_check(&t->opt[side])
                                     : amp_optimizer_step_graph(&t->opt[side]),
                                 AMP_ERROR_BAD_STATE);
                CHECK_EQ_U64(ranks[k][DEV].num_chunks, ranks[k][CPU].num_chunks);
                CHECK_MEM(ranks[k][DEV].chunks, ranks[k][CPU].chunks, sizeof ranks[k][CPU].chunks);
                if (t->s.desc.kind != AMP_KIND_OWN && step == 2) { /* refused: nothing but a wish */
                    for (int side = CPU; side <= DEV; side++) {
                        const rank was = ranks[k][side];
                        CHECK_EQ_INT(amp_optimizer_step(&t->opt[side], -1.0f), AMP_ERROR_INVALID_CONFIG);
                        CHECK(ranks[k][side].norm2 == 0.0 && ranks[k][side].maxima[0] == AMP_ASK_SKIP);
                        CHECK(ranks[k][side].maxima[1] == 0 && ranks[k][side].num_chunks == 0);
                        ranks[k][side] = was;
                    }
                }
                ranks[k][CPU].listening = ranks[k][DEV].listening = 0;
            }
            for (int k = 0; k < 2; k++) {
                twins *t = both[k];
                step_on_cpu(t);
#ifdef CUDA_EMU_H
                memset(&emu_count, 0, sizeof emu_count);
                if (t->s.desc.kind != AMP_KIND_OWN) {
                    OK(amp_optimizer_step_graph(&t->opt[DEV]));
                    CHECK_EQ_U64(emu_count.launches, 3 + 1); /* and the other rank's share */
                    CHECK_EQ_U64(emu_count.synchronisations, 0);
                } else
#endif
                    step_on_device(t);
                compare(t);
                OK(amp_optimizer_status(&t->opt[DEV], &seen[k]));
            }
            CHECK_EQ_U32(seen[0].did_step, seen[1].did_step);
            CHECK_EQ_F64(seen[0].norm, seen[1].norm);
            CHECK_EQ_F32(seen[0].clip_factor, seen[1].clip_factor);
        }
        finish(both[0]);
        finish(both[1]);
        runs++;
    next:
        i++;
    }
}

/* ------------------------------------------------------------------------- graphs */

/* Tables whose gradients are of few rows, beside a tensor as others are, on both backends. */
enum { TABLES = 3 };
struct table {
    uint32_t       rows, length, most;
    int            type;
    size_t         off;       /* bytes from an aligned address to the values */
    unsigned char *weight[2], *values[2];
    uint32_t      *at[2], *count[2];
    size_t         bytes;
};

static void reserve_table(table *t, dice &r) {
    t->bytes  = (size_t)t->most * t->length * 4 + 16;
    for (int side = CPU; side <= DEV; side++) {
        const size_t n = (size_t)t->rows * t->length * 4;
        t->weight[side] = side == DEV ? on_device(n) : (unsigned char *)fresh(n);
        t->values[side] = side == DEV ? on_device(t->bytes) : (unsigned char *)fresh(t->bytes);
        t->at[side]     = (uint32_t *)(side == DEV ? (void *)on_device(t->most * 4u)
                                                   : fresh(t->most * 4u));
        t->count[side]  = (uint32_t *)(side == DEV ? (void *)on_device(4) : fresh(4));
        if (side == CPU) fill(t->weight[CPU], AMP_F32, n / 4, NORMAL, r);
        else upload(t->weight[DEV], t->weight[CPU], n);
    }
}

static void make_table(table *t, dice &r, bool large) { // large: three passes sort its rows
    static const uint32_t lengths[] = {1, 3, 4, 16, 64, 132};
    t->length = large ? 1 : r.of(lengths);
    t->rows   = large ? 70000 : 1 + r.below(r.one_in(3) ? 70000 / t->length : 300);
    const uint32_t many = t->length == 1 ? 50000 : 5000; /* to 25 tiles; quick: the large one has 5 or more */
    t->most   = 1 + r.below(!large && !r.one_in(3) ? 400 : test_state.quick ? 2500 : many);
    if (large) t->most += 8192;
    t->type   = (int)r.below(3);
    t->off    = r.one_in(2) ? 0 : r.below(9);
    reserve_table(t, r);
}

static void upload_rows(table *t) {
    upload(t->values[DEV], t->values[CPU], t->bytes);
    upload(t->at[DEV], t->at[CPU], t->most * 4u);
    upload(t->count[DEV], t->count[CPU], 4);
}

static void new_rows(table *t, dice &r) {
    uint32_t count = r.one_in(5) ? 0 : 1 + r.below(t->most);
    uint32_t among = r.one_in(3) ? 1 + r.below(5) : t->rows;
    among = among < t->rows ? among : t->rows;
    for (uint32_t i = 0; i < count; i++) t->at[CPU][i] = r.below(among);
    fill(t->values[CPU] + t->off, t->type, (size_t)count * t->length,
         r.one_in(3) ? MIXED : NORMAL, r);
    if (count && r.one_in(6)) spoil(t->values[CPU] + t->off, t->type, (size_t)count * t->length, r);
    if (count && r.one_in(8)) t->at[CPU][r.below(count)] = t->rows + r.below(3);
    if (r.one_in(12)) {
        for (uint32_t i = count; i < t->most; i++) t->at[CPU][i] = 0;
        count = t->most + 1;
    }
    *t->count[CPU] = count;
    upload_rows(t);
}

static void drop_table(table *t) {
    free(t->weight[CPU]), free(t->values[CPU]), free(t->at[CPU]), free(t->count[CPU]);
    CUDA(cudaFree(t->weight[DEV])), CUDA(cudaFree(t->values[DEV]));
    CUDA(cudaFree(t->at[DEV])), CUDA(cudaFree(t->count[DEV]));
}

static void compare_tables(amp_optimizer *opt, const table *tables) {
    amp_status status[2];
    for (int side = CPU; side <= DEV; side++) {
        OK(amp_optimizer_status(&opt[side], &status[side]));
        save(&opt[side], &tapes[side]);
    }
    CHECK_EQ_F64(status[CPU].norm, status[DEV].norm);
    CHECK_EQ_U32(status[CPU].did_step, status[DEV].did_step);
    CHECK_EQ_U64(tapes[CPU].size, tapes[DEV].size);
    differing += differ(tapes[CPU].bytes, tapes[DEV].bytes, tapes[CPU].size, -1, false);
    CHECK_MEM(tapes[CPU].bytes, tapes[DEV].bytes, tapes[CPU].size);
    for (int i = 0; i < TABLES; i++) {
        const size_t bytes =
            (size_t)tables[i].rows * tables[i].length * size_of((int)opt[CPU].desc.dtype);
        amp_grad_stats stats[2];
        uint32_t  count;
        for (int side = CPU; side <= DEV; side++)
            OK(amp_optimizer_stats(&opt[side], i, &stats[side]));
        CHECK_MEM(&stats[CPU], &stats[DEV], sizeof stats[CPU]);
        CHECK_MEM(amp_optimizer_model(&opt[CPU], i),
                  from_device(amp_optimizer_model(&opt[DEV], i), bytes), bytes);
        download(&count, tables[i].count[DEV], 4);
        CHECK_EQ_U32(count, *tables[i].count[CPU]);
    }
}

/* A step with the learning rate that is there, in all its calls. */
static void step_of(amp_optimizer *opt, int kind) {
    if (kind != OWN && !opt->plan->owns) {
        OK(amp_optimizer_step_graph(opt));
        return;
    }
    OK(amp_optimizer_check(opt));
    OK(amp_optimizer_unscale(opt));
    OK(amp_optimizer_end_step(opt));
}

TEST(few_rows, "law 7: gradients of few rows, as on the CPU: any order, duplicates, types, alignments, "
               "rows that are not there; replayed with other counts; 6 to 9 launches; beside a tensor that is own, too") {
    static const amp_report_desc watch = {1};
    dice                         r(17);
    for (unsigned i = 0; i < few(112); i++) {
        const setup        any = any_setup((int)(i % NUM_KINDS), r);
        amp_optimizer      opt[2];
        amp_optimizer_desc desc;
        amp_backend        backend;
        table              tables[TABLES];
        unsigned char     *other[2], *grad[2];
        uint32_t           most = 0;
        cudaGraphExec_t    exec = NULL;
        memset(&desc, 0, sizeof desc);
        desc.kind                   = i % 4 == 3 ? AMP_KIND_LION : i % 2 ? AMP_KIND_SGD : AMP_KIND_ADAMW;
        desc.dtype                  = (amp_dtype)r.below(3);
        desc.max_norm               = r.one_in(2) ? 0.5f : 0.0f;
        desc.zero_grad              = r.one_in(3);
        desc.weight_decay           = 0.25f;
        desc.scaler.growth_interval = 2;
        desc.report = i % 3 ? &watch : NULL;
        if (r.one_in(2)) desc.storage = any_storage(desc.dtype, r);
        for (int k = 0; k < TABLES; k++) {
            make_table(&tables[k], r, i % 16 == 4 && k == 1);
            most = tables[k].rows > most ? tables[k].rows : most;
        }
        other[CPU] = (unsigned char *)fresh(4000), other[DEV] = on_device(4000);
        grad[CPU] = (unsigned char *)fresh(4000), grad[DEV] = on_device(4000);
        upload(other[DEV], other[CPU], 4000);
        for (int side = CPU; side <= DEV; side++) {
            amp_tensor t;
            OK(side == DEV ? amp_cuda_backend(&backend, main_stream, NULL) : amp_cpu_backend(&backend));
            in_grids(any.max_blocks, any.block_size);
            desc.backend = &backend;
            OK(amp_optimizer_init(&opt[side], &desc));
            for (int k = 0; k < TABLES; k++) {
                memset(&t, 0, sizeof t);
                t.n            = (size_t)tables[k].rows * tables[k].length;
                const amp_rows few = {tables[k].length, tables[k].most, tables[k].at[side],
                                      tables[k].count[side]};
                t.weight       = (float *)(void *)tables[k].weight[side];
                t.grad         = tables[k].values[side] + tables[k].off;
                t.grad_type    = (amp_dtype)tables[k].type;
                t.rows         = &few;
                t.weight_decay = k == 1 ? 0.125f : 0.0f;
                if (desc.storage && desc.storage->moments == AMP_FORMAT_8BIT && tables[k].length % 32)
                    t.storage = &storages[FP32_BF16];
                OK(amp_optimizer_add(&opt[side], &t));
            }
            memset(&t, 0, sizeof t);
            t.n      = 1000;
            t.weight = (float *)(void *)other[side];
            t.grad   = grad[side];
            t.own    = i % 5 == 2;
            t.keep_fp32 = i % 2 == 0; /* sampled beside tables in other storage */
            OK(amp_optimizer_add(&opt[side], &t));
            OK(prepare_scaled(&opt[side]));
            OK(amp_optimizer_set_lr(&opt[side], 0.01f));
        }
        for (int step = 0; step < 4; step++, runs++) {
            for (int k = 0; k < TABLES; k++) new_rows(&tables[k], r);
            fill(grad[CPU], AMP_F32, 1000, NORMAL, r);
            upload(grad[DEV], grad[CPU], 4000);
            step_of(&opt[CPU], desc.kind);
            if (step == 1) { /* what is captured here runs in this step and those behind it */
#ifdef CUDA_EMU_H
                memset(&emu_count, 0, sizeof emu_count);
#endif
                begin_capture(main_stream);
                step_of(&opt[DEV], desc.kind);
#ifdef CUDA_EMU_H
                CHECK_EQ_U64(emu_count.launches, (most > 65536 ? 8 : most > 256 ? 7 : 6) + (i % 5 == 2 ? 2 : 0));
#endif
                exec = end_capture(main_stream);
            }
            if (step) CUDA(cudaGraphLaunch(exec, main_stream));
            else step_of(&opt[DEV], desc.kind);
            CUDA(cudaStreamSynchronize(main_stream));
            compare_tables(opt, tables);
            if (desc.report) compare_reports(opt, TABLES + 1);
        }
        CUDA(cudaGraphExecDestroy(exec));
        for (int side = CPU; side <= DEV; side++) amp_optimizer_free(&opt[side]);
        for (int k = 0; k < TABLES; k++) drop_table(&tables[k]);
        free(other[CPU]), free(grad[CPU]);
        CUDA(cudaFree(other[DEV])), CUDA(cudaFree(grad[DEV]));
    }
    in_grids(0, 0);
}

TEST(segments_of_last_thread, "law 7: so many rows that all threads of a block count some, the last one too") {
    static const struct { uint32_t given; int width; } all[] = {{31 * 64 + 1, 32}, {32 * 64, 32}, {255 * 64 + 1, 256}};
    dice r(45);
    for (const auto &c : all) {
        amp_optimizer      opt[2];
        amp_optimizer_desc desc;
        amp_backend        backend;
        amp_tensor         t;
        table              x;
        if (test_state.quick && c.width > 32) break;
        x.length = 1, x.rows = x.most = c.given, x.type = AMP_F32, x.off = 0;
        reserve_table(&x, r);
        for (uint32_t i = 0; i < c.given; i++) x.at[CPU][i] = i; /* all of them, backwards and forwards */
        for (uint32_t i = 0; i < c.given; i += 2) std::swap(x.at[CPU][i], x.at[CPU][c.given - 1 - i]);
        fill(x.values[CPU], AMP_F32, c.given, NORMAL, r);
        *x.count[CPU] = c.given;
        upload_rows(&x);
        memset(&desc, 0, sizeof desc);
        memset(&t, 0, sizeof t);
        desc.kind = AMP_KIND_SGD, desc.scaler.disabled = 1;
        t.n = c.given;
        for (int side = CPU; side <= DEV; side++) {
            const amp_rows rows = {1, x.most, x.at[side], x.count[side]};
            OK(side == DEV ? amp_cuda_backend(&backend, main_stream, NULL) : amp_cpu_backend(&backend));
            in_grids(0, c.width);
            desc.backend = &backend;
            t.weight = (float *)(void *)x.weight[side], t.grad = x.values[side], t.rows = &rows;
            OK(amp_optimizer_init(&opt[side], &desc));
            OK(amp_optimizer_add(&opt[side], &t));
            OK(prepare_scaled(&opt[side]));
            OK(amp_optimizer_step(&opt[side], 0.5f));
        }
        CUDA(cudaStreamSynchronize(main_stream));
        CHECK_MEM(from_device(x.weight[DEV], 4 * t.n), x.weight[CPU], 4 * t.n);
        for (int side = CPU; side <= DEV; side++) amp_optimizer_free(&opt[side]);
        drop_table(&x);
        runs++;
    }
    in_grids(0, 0);
}

TEST(rows_not_there, "amp.h sparse: a row that is not there skips where the scaler is disabled, too, and where "
                     "the table is empty") {
    enum { LENGTH = 2500 };
    dice           r(18);
    unsigned char *weight = on_device(6 * 4), *values = on_device(2 * LENGTH * 4), *rows = on_device(2 * 4),
                  *count = on_device(4),
                  *other = on_device(6 * 4), *others = on_device(2 * LENGTH * 4);
    const uint32_t at[2] = {1, 3}, two = 2;
    unsigned char  before[6 * 4];
    fill(before, AMP_F32, 6, NORMAL, r);
    upload(weight, before, sizeof before);
    upload(rows, at, sizeof at);
    upload(count, &two, sizeof two);
    for (int empty = 0; empty < 2; empty++) {
        amp_optimizer_desc desc;
        amp_optimizer      opt;
        amp_backend        backend;
        amp_tensor         t;
        amp_grad_stats          stats;
        amp_status         status;
        memset(&desc, 0, sizeof desc);
        memset(&t, 0, sizeof t);
        OK(amp_cuda_backend(&backend, main_stream, NULL));
        desc.backend         = &backend;
        desc.kind            = AMP_KIND_ADAMW;
        desc.dtype           = AMP_F16;
        desc.scaler.disabled = 1;
        t.n          = empty ? 0 : 6;
        amp_rows few = {empty ? (size_t)LENGTH : 2, 2, (const uint32_t *)(void *)rows,
                        (uint32_t *)(void *)count};
        t.weight     = (float *)(void *)weight;
        t.grad       = values;
        t.rows       = &few;
        OK(amp_optimizer_init(&opt, &desc));
        OK(amp_optimizer_add(&opt, &t));
        t.n = 6, few.row_length = 2; /* law 17: something has to learn */
        t.weight = (float *)(void *)other, t.grad = others;
        OK(amp_optimizer_add(&opt, &t));
        OK(prepare_scaled(&opt));
        OK(amp_optimizer_step(&opt, 1.0f));
        OK(amp_optimizer_stats(&opt, 0, &stats));
        CHECK_EQ_U32(stats.bad_row, empty ? 1 : 2);
        OK(amp_optimizer_status(&opt, &status));
        CHECK_EQ_U32(status.did_step, 0);
        CHECK_MEM(from_device(weight, sizeof before), before, sizeof before);
        amp_optimizer_free(&opt);
        runs++;
    }
    CUDA(cudaFree(weight)), CUDA(cudaFree(values)), CUDA(cudaFree(rows)), CUDA(cudaFree(count));
    CUDA(cudaFree(other)), CUDA(cudaFree(others));
}

TEST(spent_weights, "manual: a weight that prepare has copied and no step writes is NaN in device memory, too; "
                    "and a gradient that overlaps a weight is refused there") {
    const size_t n = 70001;
    for (int state = 0; state < 2; state++) {
        unsigned char     *weight = on_device((n + 1) * 4), *grad = on_device(n * 2);
        unsigned char     *host   = (unsigned char *)fresh((n + 1) * 4);
        amp_optimizer_desc desc;
        amp_optimizer      opt;
        amp_backend        backend;
        amp_tensor         t;
        memset(&desc, 0, sizeof desc);
        memset(&t, 0, sizeof t);
        upload(weight, host, (n + 1) * 4);
        OK(amp_cuda_backend(&backend, main_stream, NULL));
        desc.backend = &backend;
        desc.kind    = AMP_KIND_ADAMW;
        desc.dtype   = AMP_BF16;
        desc.storage = state ? &storages[SPLIT] : NULL;
        t.n = n, t.weight = (float *)(void *)weight, t.grad = weight + 4, t.grad_type = AMP_BF16;
        OK(amp_optimizer_init(&opt, &desc));
        OK(amp_optimizer_add(&opt, &t));
        CHECK_EQ_INT(amp_optimizer_prepare(&opt), AMP_ERROR_OVERLAP);
        CHECK(strstr(amp_problem(), "tensor 0: its grad overlaps the weight of tensor 0") != NULL);
        amp_optimizer_free(&opt);
        CHECK_MEM(from_device(weight, (n + 1) * 4), host, (n + 1) * 4); /* nothing changed */
        t.grad = grad;
        OK(amp_optimizer_init(&opt, &desc));
        OK(amp_optimizer_add(&opt, &t));
        OK(prepare_scaled(&opt));
        for (size_t i = 0; i < n && state; i++) memcpy(host + 4 * i, "\0\0\300\177", 4); /* a NaN */
        CHECK_MEM(from_device(weight, (n + 1) * 4), host, (n + 1) * 4);
        amp_optimizer_free(&opt);
        CUDA(cudaFree(weight)), CUDA(cudaFree(grad));
        free(host);
        runs++;
    }
}

TEST(capture, "whatever waits or allocates is refused while the stream is captured, the capture "
              "stays valid, and the optimizer goes on as if nothing had been asked") {
    dice r(16);
    for (int kind = OWN; kind <= NESTEROV; kind++) {
        twins          *t = &pair;
        amp_optimizer   more;
        amp_status      status;
        amp_grad_stats       stats;
        cudaGraphExec_t exec;
        counted         counts;
        tape           *f = &tapes[CPU];
        base              = any_setup(kind, r);
        base.desc.scaler  = amp_scaler_desc();
        base.path = PLAIN, base.default_stream = 0, base.count = 1;
        base.tensors[0] = any_shape(&base.desc, kind % 2 ? 1 : 1000, AMP_F16, r);
        base.tensors[0].grad = base.tensors[0].weight = 1;
        CHECK(start(t, &base, r));
        for (int side = CPU; side <= DEV; side++) OK(amp_optimizer_set_steps(&t->opt[side], 3, 0));
        new_moments(t, r);
        amp_optimizer     *opt = &t->opt[DEV];
        amp_optimizer_desc d   = opt->desc;
        static float       zeros[2000];
        d.backend              = &t->backend;
        OK(amp_optimizer_init(&more, &d));
        const amp_tensor x = tensor_of(t, 0, DEV);
        OK(amp_optimizer_add(&more, &x));
        save(opt, f);
        begin_capture(t->stream);
        CHECK_EQ_INT(amp_optimizer_prepare(&more), AMP_ERROR_UNSUPPORTED);
        CHECK(strstr(amp_problem(), "the stream is being captured") == amp_problem());
        CHECK_EQ_INT(amp_optimizer_status(opt, &status), AMP_ERROR_UNSUPPORTED);
        CHECK_EQ_INT(amp_optimizer_stats(opt, 0, &stats), AMP_ERROR_UNSUPPORTED);
        CHECK_EQ_INT(amp_optimizer_load(opt, read_tape, f), AMP_ERROR_UNSUPPORTED);
        CHECK_EQ_INT(amp_optimizer_save(opt, write_tape, &tapes[DEV]), AMP_ERROR_UNSUPPORTED);
        CHECK_EQ_INT(amp_optimizer_rebind(opt, 0, x.weight, NULL), AMP_ERROR_UNSUPPORTED);
        CHECK_EQ_INT(set_moments(t, DEV, 0, zeros), AMP_ERROR_UNSUPPORTED);
        CHECK_EQ_INT(amp_optimizer_set_steps(opt, 7, 0), AMP_ERROR_UNSUPPORTED);
        CHECK_EQ_F32(amp_optimizer_loss_scale(opt), 0.0f);
        if (kind == OWN) {
            CHECK(!amp_optimizer_begin_step(opt));
            CHECK_EQ_INT(amp_optimizer_end_step(opt), AMP_ERROR_UNSUPPORTED);
            CHECK_EQ_INT(amp_optimizer_end_step(opt), AMP_ERROR_STEP_NOT_OPEN);
        }
        CHECK_EQ_INT(amp_optimizer_set_lr(opt, 0.25f), AMP_OK);
        OK(amp_optimizer_set_lr(&t->opt[CPU], 0.0f)); /* a graph that never runs has set nothing */
        exec = end_capture(t->stream, &counts);
        CHECK_EQ_U64(counts.nodes, 1); /* set_lr's: what was refused has left none */
        CUDA(cudaGraphExecDestroy(exec));
        OK(prepare_scaled(&more));
        amp_optimizer_free(&more);
        for (int step = 0; step < 3; step++) {
            new_gradients(t, step == 1, r);
            step_on_cpu(t);
            step_on_device(t);
            compare(t);
        }
        finish(t);
        runs++;
    }
}

TEST(other_stream, "backward on another stream, with an event between: the check sees its work") {
    dice r(17);
    for (unsigned i = 0; i < few(48); i++) {
        twins      *t = &pair;
        cudaEvent_t ready, read;
        base       = any_setup((int)(i % NUM_KINDS), r);
        base.default_stream = base.apart = 0;
        base.path = PARTS;
        any_list(&base, 2, r);
        if (!start(t, &base, r)) continue;
        block         *b     = &t->blocks[1];
        unsigned char *stage = on_device(b->size), *device = b->device;
        CUDA(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
        CUDA(cudaEventCreateWithFlags(&read, cudaEventDisableTiming));
        for (int step = 0; step < 3; step++) {
            b->device = stage; /* where backward takes the gradients from */
            new_gradients(t, false, r);
            b->device = device;
            CUDA(cudaStreamWaitEvent(other_stream, read, 0));
            CUDA(cudaMemcpyAsync(device, stage, b->size, cudaMemcpyDeviceToDevice, other_stream));
            CUDA(cudaEventRecord(ready, other_stream));
            CUDA(cudaStreamWaitEvent(t->stream, ready, 0));
            step_on_device(t);
            CUDA(cudaEventRecord(read, t->stream));
            step_on_cpu(t);
            compare(t);
        }
        CUDA(cudaEventDestroy(ready));
        CUDA(cudaEventDestroy(read));
        CUDA(cudaFree(stage));
        finish(t);
        runs++;
    }
}

TEST(rebind, "law 7: after weights and gradients have moved, steps go on at the new addresses") {
    dice r(18);
    for (unsigned i = 0; i < few(60);) {
        twins *t = &pair;
        base     = any_setup((int)(i % NUM_KINDS), r);
        if (base.path >= GRAPH) base.path -= GRAPH; /* a graph keeps the old ones */
        base.apart = 0;
        any_list(&base, 3, r);
        for (int k = 0; k < 3; k++) base.tensors[k].model = 0, base.tensors[k].weight = 1;
        if (!start(t, &base, r)) continue;
        block old[2];
        for (int step = 0; step < 4; step++) {
            new_gradients(t, r.one_in(5), r);
            step_on_cpu(t);
            step_on_device(t);
            compare(t);
            if (step != 1) continue;
            for (int b = 0; b < 2; b++) {
                block *k  = &t->blocks[b];
                old[b]    = *k;
                k->host   = (unsigned char *)fresh(k->size);
                k->device = on_device(k->size);
                memcpy(k->host, old[b].host, k->size);
                upload(k->device, k->host, k->size);
                set_bytes(old[b].device, 0xff, k->size);
            }
            for (int side = CPU; side <= DEV; side++) {
                float *weights[3];
                void  *grads[3];
                for (int k = 0; k < 3; k++) {
                    const amp_tensor x = tensor_of(t, k, side);
                    weights[k] = x.weight, grads[k] = x.grad;
                    if (i % 2) OK(amp_optimizer_rebind(&t->opt[side], k, x.weight, x.grad));
                }
                if (i % 2 == 0) OK(amp_optimizer_rebind_all(&t->opt[side], weights, grads));
            }
        }
        for (int b = 0; b < 2; b++) {
            free(old[b].host);
            CUDA(cudaFree(old[b].device));
        }
        finish(t);
        i++, runs++;
    }
}

TEST(rebind_all, "law 7: 1000 tensors whose gradients move, come late and stay away are one kernel "
                 "for 240 of them; nothing waits, and in a capture it is refused") {
    enum { COUNT = 1000, N = 3 };
    dice                r(19);
    static float       *none[COUNT];
    static void        *grads[2][COUNT];
    twins              *t = &pair;
    memset(t, 0, sizeof *t);
    for (unsigned kind = 0; kind < 2; kind++) {
        amp_optimizer_desc d;
        const size_t       bytes = 8 * COUNT * N;
        unsigned char     *host = (unsigned char *)fresh(bytes), *device[2] = {};
        amp_optimizer     *opt = t->opt;
        memset(&d, 0, sizeof d);
        d.kind  = kind ? AMP_KIND_ADAMW : AMP_KIND_OWN;
        d.unscale_in_place = kind == 0;
        for (size_t i = 0; i < 2 * COUNT * N; i++) ((float *)host)[i] = r.signed_unit();
        OK(amp_cuda_backend(&t->backend, main_stream, NULL));
        for (int side = CPU; side <= DEV; side++) {
            device[side] = side == CPU ? host : on_device(bytes);
            if (side == DEV) upload(device[DEV], host, bytes);
            d.backend = side == CPU ? NULL : &t->backend;
            OK(amp_optimizer_init(&opt[side], &d));
            for (size_t i = 0; i < COUNT; i++) {
                amp_tensor x;
                memset(&x, 0, sizeof x);
                x.n      = N;
                x.weight = (float *)device[side] + i * N;
                OK(amp_optimizer_add(&opt[side], &x));
            }
            OK(prepare_scaled(&opt[side]));
        }
        for (int step = 0; step < 4; step++) {
            for (size_t i = 0; i < COUNT; i++) {
                const bool  stays_away = r.one_in(5);
                void *const none_now   = r.one_in(3) && step ? NULL : AMP_NO_GRAD; /* NULL: that of before */
                for (int side = CPU; side <= DEV; side++)
                    grads[side][i] = stays_away ? none_now
                                   : (float *)device[side] + (COUNT + (i + (size_t)step) % COUNT) * N;
            }
#ifdef CUDA_EMU_H
            memset(&emu_count, 0, sizeof emu_count);
#endif
            OK(amp_optimizer_rebind_all(&opt[DEV], none, grads[DEV]));
#ifdef CUDA_EMU_H
            CHECK_EQ_U64(emu_count.launches, (COUNT + 239) / 240);
            CHECK_EQ_U64(emu_count.synchronisations, 0);
            CHECK_EQ_U64(emu_count.memcpys, 0);
#endif
            OK(amp_optimizer_rebind_all(&opt[CPU], NULL, grads[CPU]));
            for (int side = CPU; side <= DEV; side++) {
                if (kind) OK(amp_optimizer_step(&opt[side], 0.01f));
                else OK(amp_optimizer_check(&opt[side]));
                if (!kind) OK(amp_optimizer_unscale(&opt[side]));
                if (!kind) OK(amp_optimizer_end_step(&opt[side]));
                save(&opt[side], &tapes[side]);
            }
            CHECK_EQ_U64(tapes[CPU].size, tapes[DEV].size);
            CHECK_MEM(tapes[CPU].bytes, tapes[DEV].bytes, tapes[CPU].size);
            CHECK_MEM(host, from_device(device[DEV], bytes), bytes);
        }
        begin_capture(main_stream);
        CHECK_EQ_INT(amp_optimizer_rebind_all(&opt[DEV], NULL, grads[DEV]), AMP_ERROR_UNSUPPORTED);
        CHECK_EQ_INT(amp_optimizer_rebind(&opt[DEV], 0, NULL, device[DEV]), AMP_ERROR_UNSUPPORTED);
        CUDA(cudaGraphExecDestroy(end_capture(main_stream)));
        amp_optimizer_free(&opt[CPU]);
        amp_optimizer_free(&opt[DEV]);
        free(host);
        CUDA(cudaFree(device[DEV]));
    }
}

TEST(frozen, "manual: steps of no kind write a frozen tensor's copy, or read its gradient; a rebind that moves it writes it, "
             "without waiting; a gradient that was not given is told before a kernel is launched") {
    enum { N = 5000 };
    static const uint32_t infinity = 0x7f800000u;
    for (unsigned way = 0; way < 3; way++) { /* your own optimizer; a fused one; own tensors beside it */
        amp_optimizer_desc d;
        amp_optimizer      opt;
        amp_tensor         x;
        amp_backend        gpu;
        static float       w[3 * N], g[N];
        float             *const at = (float *)(void *)on_device(12 * N), *const grad = (float *)(void *)on_device(4 * N);
        const auto         copy_is  = [&](int i, float wanted) {
            const amp_f16 *h = (const amp_f16 *)from_device(amp_optimizer_model(&opt, i), 2 * N);
            for (size_t k = 0; k < N; k++)
                if (h[k].bits != amp_f32_to_f16(wanted).bits) return false;
            return true;
        };
        for (size_t k = 0; k < 3 * N; k++) w[k] = 1.0f;
        for (size_t k = 0; k < N; k++) g[k] = 0.5f;
        memcpy(&g[9], &infinity, 4); /* which only a frozen tensor has */
        upload(at, w, 12 * N);
        upload(grad, g, 4 * N);
        OK(amp_cuda_backend(&gpu, main_stream, NULL));
        memset(&d, 0, sizeof d);
        d.backend = &gpu, d.dtype = AMP_F16, d.scaler.preset = AMP_PRESET_NONE;
        d.kind = way ? AMP_KIND_ADAMW : AMP_KIND_OWN;
        OK(amp_optimizer_init(&opt, &d));
        for (int i = 0; i < 2; i++) {
            memset(&x, 0, sizeof x);
            x.n = N, x.weight = at + i * N, x.frozen = i == 0, x.own = way == 2;
            if (i == 0) x.grad = grad;
            OK(amp_optimizer_add(&opt, &x));
        }
        OK(amp_optimizer_prepare(&opt));
        OK(amp_optimizer_set_lr(&opt, 0.125f));
#ifdef CUDA_EMU_H
        memset(&emu_count, 0, sizeof emu_count);
#endif
        CHECK_EQ_INT(way == 1 ? amp_optimizer_step_graph(&opt) : amp_optimizer_check(&opt), AMP_ERROR_BAD_STATE);
#ifdef CUDA_EMU_H
        CHECK_EQ_U64(emu_count.launches, 0);
#endif
        g[9] = 0.5f;
        float *const mine = (float *)(void *)on_device(4 * N);
        upload(mine, g, 4 * N);
        OK(amp_optimizer_rebind(&opt, 1, NULL, mine));
        for (size_t k = 0; k < 2 * N; k++) w[k] = 3.0f; /* by somebody else */
        upload(at, w, 8 * N);
        if (way == 1) OK(amp_optimizer_step(&opt, 0.125f));
        else {
            CHECK(amp_optimizer_begin_step(&opt));
            OK(amp_optimizer_end_step(&opt));
            CHECK(copy_is(1, 3.0f));
        }
        CHECK(copy_is(0, 1.0f) && !copy_is(1, 1.0f));
        for (size_t k = 2 * N; k < 3 * N; k++) w[k] = 5.0f;
        upload(at, w, 12 * N);
#ifdef CUDA_EMU_H
        memset(&emu_count, 0, sizeof emu_count);
#endif
        OK(amp_optimizer_rebind(&opt, 0, at + 2 * N, NULL));
#ifdef CUDA_EMU_H
        CHECK_EQ_U64(emu_count.synchronisations, 0);
#endif
        CHECK(copy_is(0, 5.0f));
        OK(amp_optimizer_refresh(&opt));
        CHECK(copy_is(0, 5.0f));
        amp_optimizer_free(&opt);
        CUDA(cudaFree(at));
        CUDA(cudaFree(grad));
        CUDA(cudaFree(mine));
    }
}

TEST(refresh, "law 7, law 8: model copies from masters that were written to, and from weights that rebind brings: "
              "in a graph, which reads them anew in every replay; the bytes of the CPU's, and of its steps after that") {
    dice r(21);
    for (unsigned i = 0; i < few(40);) {
        twins          *t = &pair;
        float          *brought[2][3];
        cudaGraphExec_t exec;
        base = any_setup(ADAMW + (int)(i % 4), r);
        base.desc.scaler = amp_scaler_desc();
        base.path = PLAIN, base.default_stream = 0;
        any_list(&base, 3, r);
        for (int k = 0; k < 3; k++)
            if (base.desc.dtype == AMP_BF16 && r.one_in(2) && !base.tensors[k].model)
                base.tensors[k].storage = any_storage(AMP_BF16, r);
        if (!start(t, &base, r)) continue;
        new_gradients(t, false, r);
        step_on_cpu(t);
        step_on_device(t);
        for (int k = 0; k < 3; k++) { /* without a state of its own its master, else what rebind brings */
            const ampi_slot *s = &t->opt[CPU].plan->host_slots[k];
            const size_t     n = s->n * 4;
            brought[CPU][k]    = (float *)(void *)fresh(n);
            brought[DEV][k]    = (float *)(void *)on_device(n);
            for (int side = CPU; side <= DEV && s->master.format != AMP_FORMAT_F32; side++)
                OK(amp_optimizer_rebind(&t->opt[side], k, brought[side][k], NULL));
        }
        begin_capture(t->stream);
        OK(amp_optimizer_refresh(&t->opt[DEV]));
        exec = end_capture(t->stream);
        for (int replay = 0; replay < 2; replay++) {
            for (int k = 0; k < 3; k++) {
                const ampi_slot *s = &t->opt[CPU].plan->host_slots[k];
                const size_t     n = s->n * 4;
                const bool       wide = s->master.format == AMP_FORMAT_F32;
                float           *x = wide ? (float *)s->master.data : brought[CPU][k];
                fill((unsigned char *)x, AMP_F32, s->n, NORMAL, r);
                upload(wide ? t->opt[DEV].plan->host_slots[k].master.data : brought[DEV][k], x, n);
                if (!wide) OK(amp_optimizer_rebind(&t->opt[CPU], k, x, NULL));
            }
            OK(amp_optimizer_refresh(&t->opt[CPU]));
            CUDA(cudaGraphLaunch(exec, t->stream));
            compare(t);
        }
        for (int step = 0; step < 2; step++) {
            new_gradients(t, step == 1, r);
            step_on_cpu(t);
            step_on_device(t);
            compare(t);
        }
        CUDA(cudaGraphExecDestroy(exec));
        finish(t);
        for (int k = 0; k < 3; k++) free(brought[CPU][k]), CUDA(cudaFree(brought[DEV][k]));
        i++, runs++;
    }
}

/* ------------------------------------------------------------------------- single rooms */

/* Two arrays of bytes, the same on both sides, with room around what is used. */
struct buffer { unsigned char *host, *device; size_t size; };

static buffer make_buffer(size_t size, dice &r) {
    buffer b;
    b.size   = size;
    b.host   = (unsigned char *)fresh(size);
    b.device = on_device(size);
    for (size_t i = 0; i + 4 <= size; i += 4) {
        const uint32_t u = r.next();
        memcpy(b.host + i, &u, 4);
    }
    upload(b.device, b.host, size);
    return b;
}

static void drop(buffer *b) {
    free(b->host);
    CUDA(cudaFree(b->device));
}

static void same_buffer(const char *what, const buffer *b, int type, bool nan_ok) {
    const size_t bad = differ(b->host, from_device(b->device, b->size), b->size, type, nan_ok);
    differing += bad;
    if (bad) test_fail(__FILE__, __LINE__, what, "the device has other bytes");
}

static size_t any_offset(int type, dice &r) {
    return r.below(8) * size_of(type) + (r.one_in(5) ? 1 + r.below(size_of(type) - 1) : 0);
}

TEST(casts, "law 2: amp_cuda_cast: all nine pairs of types, any size and address") {
    dice r(20);
    for (int pair_of = 0; pair_of < 9; pair_of++)
        for (size_t i = 0; i < COUNT_OF(sizes); i++)
            for (unsigned k = 0; k < few(8); k++) {
                const amp_dtype from = (amp_dtype)(pair_of / 3), to = (amp_dtype)(pair_of % 3);
                const size_t    n = sizes[i], x = any_offset(from, r), y = any_offset(to, r);
                buffer          src = make_buffer(n * size_of(from) + 64, r);
                buffer          dst = make_buffer(n * size_of(to) + 64, r);
                emulate(k % 3, (int)r.below(2));
                OK(amp_cast(dst.host + y, to, src.host + x, from, n));
                OK(amp_cuda_cast(dst.device + y, to, src.device + x, from, n, main_stream));
                CUDA(cudaStreamSynchronize(main_stream));
                same_buffer("cast", &dst, to, false);
                if (size_of(to) == size_of(from)) { /* in place */
                    OK(amp_cast(src.host + x, to, src.host + x, from, n));
                    OK(amp_cuda_cast(src.device + x, to, src.device + x, from, n, main_stream));
                } else { /* blocks would overtake one another */
                    CHECK_EQ_INT(amp_cuda_cast(src.device + x, to, src.device + x, from, n,
                                               main_stream),
                                 n ? AMP_ERROR_UNSUPPORTED : AMP_OK);
                }
                same_buffer("source", &src, from, false);
                drop(&src);
                drop(&dst);
                runs++;
            }
    emulate(0, 0);
}

TEST(every_float, "law 2: amp_cuda_cast: all 2^16 halves; floats: all 2^32 on a GPU, a sample of 2^24 "
                  "in the emulator and of 2^27 on a quick GPU") {
    const size_t    n      = (size_t)1 << (EMULATED && test_state.quick ? 18 : 24);
    const uint64_t  apart  = ((uint64_t)1 << 32) / n;
    const uint64_t  rounds = EMULATED ? 1 : test_state.quick ? 8 : apart;
    const amp_dtype halves[] = {AMP_F16, AMP_BF16};
    dice            r(21);
    buffer          src = make_buffer(4 * n, r), dst = make_buffer(4 * n, r);
    for (size_t i = 0; i < 0x10000; i++) put(src.host, AMP_F16, i, (uint32_t)i);
    upload(src.device, src.host, 2 * 0x10000);
    for (int from = AMP_F16; from <= AMP_BF16; from++)
        for (int to = AMP_F32; to <= AMP_BF16; to++) {
            OK(amp_cast(dst.host, (amp_dtype)to, src.host, (amp_dtype)from, 0x10000));
            OK(amp_cuda_cast(dst.device, (amp_dtype)to, src.device, (amp_dtype)from, 0x10000,
                             NULL));
            same_buffer("all halves", &dst, to, false);
        }
    for (uint64_t round = 0; round < rounds; round++) {
        for (size_t i = 0; i < n; i++)
            put(src.host, AMP_F32, i,
                (uint32_t)(i * apart + (rounds < apart ? r.below(256) : round)));
        upload(src.device, src.host, 4 * n);
        for (int k = 0; k < 2; k++) {
            OK(amp_cast(dst.host, halves[k], src.host, AMP_F32, n));
            OK(amp_cuda_cast(dst.device, halves[k], src.device, AMP_F32, n, NULL));
            same_buffer("floats", &dst, halves[k], false);
        }
    }
    drop(&src);
    drop(&dst);
}

TEST(scaler_twins, "law 7: amp_cuda_scaler_unscale to NULL, to its source and elsewhere, and _update, in any order") {
    dice r(22);
    for (unsigned i = 0; i < few(1500);) {
        const amp_scaler_desc d = any_scaler(r);
        amp_scaler            s, *on = shared_device;
        if (amp_scaler_init(&s, &d) != AMP_OK) continue;
        upload(on, &s, sizeof s);
        emulate(i % 3, (int)(i / 3 % 2));
        for (int call = 0; call < 12; call++) {
            const int       what = (int)r.below(5), place = (int)r.below(2);
            const amp_dtype type = (amp_dtype)r.below(3);
            const size_t    n = sizes[r.below(r.one_in(8) ? COUNT_OF(sizes) : 17)];
            const size_t    x = any_offset(type, r), y = any_offset(AMP_F32, r);
            buffer src = make_buffer(n * size_of(type) + 64, r), dst = make_buffer(4 * n + 64, r);
            fill(src.host + x, type, n, (int)r.below(NUM_FINITE), r);
            if (r.one_in(4)) fill(src.host + x, type, n, ANY_BITS, r);
            else if (n && r.one_in(3)) spoil(src.host + x, type, n, r);
            upload(src.device, src.host, src.size);
            if (what == 0) {
                OK(amp_scaler_unscale(&s, NULL, src.host + x, type, n));
                OK(amp_cuda_scaler_unscale(on, NULL, src.device + x, type, n, main_stream));
            } else if (what == 1) {
                const amp_result result = amp_scaler_unscale(&s, src.host + x, src.host + x, type, n);
                CHECK_EQ_INT(result, type == AMP_F16 ? AMP_ERROR_UNSUPPORTED : AMP_OK);
                CHECK_EQ_INT(amp_cuda_scaler_unscale(on, src.device + x, src.device + x, type, n,
                                                     main_stream),
                             result);
            } else if (what == 2 && type == AMP_F32 && place) {
                OK(amp_scaler_unscale(&s, (float *)(void *)(src.host + x), src.host + x, type,
                                         n));
                OK(amp_cuda_scaler_unscale(on, src.device + x, src.device + x, type, n, main_stream));
            } else if (what <= 3) {
                OK(amp_scaler_unscale(&s, (float *)(void *)(dst.host + y), src.host + x, type,
                                         n));
                OK(amp_cuda_scaler_unscale(on, dst.device + y, src.device + x, type, n, main_stream));
            } else {
                (void)amp_scaler_update(&s); /* the twin cannot say that nothing was checked */
                OK(amp_cuda_scaler_update(on, main_stream));
            }
            CUDA(cudaStreamSynchronize(main_stream));
            same_buffer("source", &src, type, false);
            same_buffer("target", &dst, AMP_F32, false);
            const size_t bad = differ(&s, from_device(on, sizeof s), sizeof s, -1, false);
            differing += bad;
            CHECK_EQ_U64(bad, 0);
            drop(&src);
            drop(&dst);
        }
        i++, runs++;
    }
    emulate(0, 0);
}

TEST(bf16_in_place, "law 5: what overflows only by being rounded to bf16 is found, at each "
                    "index") {
    dice            r(31);
    amp_scaler_desc d = amp_scaler_desc();
    d.init_scale      = 0.997f; /* 0x7f7f times its reciprocal is finite in fp32 */
    for (size_t n = 1; n <= 40; n++)
        for (size_t i = 0; i <= n; i++) {
            amp_scaler s;
            buffer     b = make_buffer(2 * n, r);
            OK(amp_scaler_init(&s, &d));
            fill(b.host, AMP_BF16, n, NORMAL, r);
            if (i < n) put(b.host, AMP_BF16, i, 0x7f7f);
            upload(b.device, b.host, b.size);
            upload(shared_device, &s, sizeof s);
            OK(amp_scaler_unscale(&s, b.host, b.host, AMP_BF16, n));
            OK(amp_cuda_scaler_unscale(shared_device, b.device, b.device, AMP_BF16, n, NULL));
            CHECK_EQ_U32(s.found_inf, i < n);
            CHECK_MEM(&s, from_device(shared_device, sizeof s), sizeof s);
            same_buffer("bf16", &b, AMP_BF16, false);
            drop(&b);
        }
}

TEST(arguments, "wrong arguments are answered without touching the device") {
    amp_scaler *s = shared_device;
    void       *p = shared_device; /* never read */
    float      *f = (float *)p;
    amp_backend b;
    const amp_dtype unknown = (amp_dtype)3;
    OK(amp_cuda_backend(&b, main_stream, NULL));
#ifdef CUDA_EMU_H
    memset(&emu_count, 0, sizeof emu_count);
#endif
    CHECK_EQ_INT(amp_cuda_backend(NULL, NULL, NULL), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_cuda_cast(p, unknown, p, AMP_F32, 1, NULL), AMP_ERROR_INVALID_ENUM);
    CHECK_EQ_INT(amp_cuda_cast(p, AMP_F32, p, unknown, 1, NULL), AMP_ERROR_INVALID_ENUM);
    CHECK_EQ_INT(amp_cuda_cast(NULL, AMP_F32, p, AMP_F16, 1, NULL), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_cuda_cast(p, AMP_F32, NULL, AMP_F16, 1, NULL), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_cuda_cast(NULL, AMP_F32, NULL, AMP_F16, 0, NULL), AMP_OK);
    CHECK_EQ_INT(amp_cuda_scaler_unscale(NULL, NULL, p, AMP_F32, 1, NULL), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_cuda_scaler_unscale(s, NULL, NULL, AMP_F32, 1, NULL), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_cuda_scaler_unscale(s, NULL, p, unknown, 1, NULL), AMP_ERROR_INVALID_ENUM);
    CHECK_EQ_INT(amp_cuda_scaler_unscale(NULL, p, p, AMP_F16, 1, NULL), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_cuda_scaler_unscale(s, p, p, AMP_F16, 1, NULL), AMP_ERROR_UNSUPPORTED);
    CHECK_EQ_INT(amp_cuda_scaler_unscale(s, (char *)p + 2, p, AMP_F16, 2, NULL), AMP_ERROR_OVERLAP);
    CHECK_EQ_INT(amp_cuda_scaler_unscale(s, p, (char *)p + 7, AMP_BF16, 2, NULL), AMP_ERROR_OVERLAP);
    CHECK_EQ_INT(amp_cuda_scaler_unscale(s, f, NULL, AMP_F32, 1, NULL), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_cuda_scaler_unscale(s, f, p, unknown, 1, NULL), AMP_ERROR_INVALID_ENUM);
    CHECK_EQ_INT(amp_cuda_scaler_update(NULL, NULL), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_cuda_scale_loss(p, AMP_F32, 1, NULL, NULL), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_cuda_scale_loss(NULL, AMP_F32, 1, f, NULL), AMP_ERROR_INVALID_ARGUMENT);
    CHECK_EQ_INT(amp_cuda_scale_loss(p, unknown, 1, f, NULL), AMP_ERROR_INVALID_ENUM);
    CHECK_EQ_INT(amp_cuda_scale_loss(NULL, AMP_F32, 0, f, NULL), AMP_OK);
    CHECK_EQ_INT(gemm_one(&b, 0, 0, 1, 1, 1, 1.0f, p, AMP_F32, 0, p, AMP_F32, 0, 0.0f, f + 2,
                          AMP_F32, 0), AMP_ERROR_UNSUPPORTED); /* no handle */
#ifdef CUDA_EMU_H
    CHECK_EQ_U64(emu_count.launches + emu_count.api_calls, 0);
#endif
}

/* ------------------------------------------------------------------------------- gemm */

static const float *as_floats(const buffer *b, int type, size_t n) {
    float *x = (float *)fresh(4 * n + 4);
    OK(amp_cast(x, AMP_F32, b->host, (amp_dtype)type, n));
    return x;
}

struct product {
    int       trans_a, trans_b;
    size_t    m, n, k, lda, ldb, ldc;
    float     alpha, beta;
    amp_dtype type, c_type;
};

static amp_result multiply(const amp_backend *b, const product *p, const void *x, const void *y,
                           void *z) {
    return gemm_one(b, p->trans_a, p->trans_b, p->m, p->n, p->k, p->alpha, x, p->type, p->lda, y,
                    p->type, p->ldb, p->beta, z, p->c_type, p->ldc);
}

/* C against double precision; what is not C's is as it was. */
static void check_product(const product *p, const buffer *x, const buffer *y, const buffer *z) {
    const size_t lda = p->lda ? p->lda : p->trans_a ? p->m : p->k;
    const size_t ldb = p->ldb ? p->ldb : p->trans_b ? p->k : p->n;
    const size_t ldc = p->ldc ? p->ldc : p->n, size = size_of(p->c_type);
    const float *a = as_floats(x, p->type, x->size / size_of(p->type));
    const float *b = as_floats(y, p->type, y->size / size_of(p->type));
    const float *c = as_floats(z, p->c_type, z->size / size);
    const double eps = p->c_type == AMP_F32 ? 0 : p->c_type == AMP_F16 ? 1.0 / 1024 : 1.0 / 128;
    buffer       now;
    now.size = z->size;
    now.host = (unsigned char *)fresh(now.size);
    download(now.host, z->device, now.size);
    const float *got = as_floats(&now, p->c_type, now.size / size);
    for (size_t i = 0; i < p->m; i++)
        for (size_t j = 0; j < p->n; j++) {
            double sum = 0, all = 0;
            for (size_t l = 0; l < p->k && p->alpha != 0; l++) {
                const double u = (double)a[p->trans_a ? l * lda + i : i * lda + l];
                const double v = (double)b[p->trans_b ? j * ldb + l : l * ldb + j];
                sum += u * v, all += fabs(u * v);
            }
            sum *= (double)p->alpha, all *= fabs((double)p->alpha);
            const double old = p->beta != 0 ? (double)p->beta * (double)c[i * ldc + j] : 0;
            const double error = fabs((double)got[i * ldc + j] - (sum + old));
            CHECK(error <= 1e-6 * (double)(p->k + 2) * (all + fabs(old)) + eps * fabs(sum + old) +
                               1e-7);
            memcpy(now.host + (i * ldc + j) * size, z->host + (i * ldc + j) * size, size);
        }
    CHECK_MEM(now.host, z->host, now.size);
    free((void *)(uintptr_t)a);
    free((void *)(uintptr_t)b);
    free((void *)(uintptr_t)c);
    free((void *)(uintptr_t)got);
    free(now.host);
}

static void *blas(void) {
    cublasHandle_t handle = NULL;
    CHECK_EQ_INT(cublasCreate(&handle), CUBLAS_STATUS_SUCCESS);
    return handle;
}

static product any_product(dice &r) {
    static const size_t dims[]   = {0, 1, 2, 3, 7, 8, 16, 33, 64};
    static const float  alphas[] = {1.0f, 1.0f, -0.5f, 2.0f, 0.0f};
    static const float  betas[]  = {0.0f, 0.0f, 1.0f, -0.25f};
    product             p;
    p.trans_a = (int)r.below(2), p.trans_b = (int)r.below(2);
    p.m = r.of(dims), p.n = r.of(dims), p.k = r.of(dims);
    p.lda = r.one_in(2) ? 0 : (p.trans_a ? p.m : p.k) + r.below(6);
    p.ldb = r.one_in(2) ? 0 : (p.trans_b ? p.k : p.n) + r.below(6);
    p.ldc = r.one_in(2) ? 0 : p.n + r.below(6);
    p.alpha = r.of(alphas), p.beta = r.of(betas);
    p.type   = (amp_dtype)r.below(3);
    p.c_type = r.one_in(2) ? p.type : AMP_F32;
    return p;
}

static buffer matrix(size_t rows, size_t cols, size_t ld, int type, int pattern, dice &r) {
    const size_t n = rows * (ld ? ld : cols) + 8;
    buffer       b = make_buffer(n * size_of(type), r);
    fill(b.host, type, n, pattern, r);
    if (pattern == ANY_BITS)
        for (size_t i = 0; i < n; i++) put(b.host, type, i, 0xffffffffu); /* NaN: not to be read */
    upload(b.device, b.host, b.size);
    return b;
}

TEST(cast_rows, "a cast of rows that lie apart, of short ones too, writes these rows and nothing else") {
    static const size_t widths[] = {1, 7, 100, 2047, 2048, 5000};
    dice                r(31);
    amp_backend         backend;
    OK(amp_cuda_backend(&backend, main_stream, NULL));
    for (size_t k = 0; k < COUNT_OF(widths); k++)
        for (size_t rows = 1; rows < 100; rows = 6 * rows + 1) {
            const size_t cols = widths[k], from = cols + r.below(3), to = cols + r.below(3);
            buffer       x    = matrix(rows, cols, from, AMP_F32, NORMAL, r);
            buffer       y    = matrix(rows + 40, cols, to, AMP_BF16, NORMAL, r);
            for (size_t i = 0; i < rows * cols; i++)
                ampi_store(y.host, AMP_BF16, i / cols * to + i % cols,
                           ampi_load_u32(x.host, i / cols * from + i % cols));
            in_grids((int)r.below(3), 0);
            OK(backend.functions->cast_rows_fn(&backend, y.device, AMP_BF16, to, x.device, AMP_F32, from, rows, cols));
            CUDA(cudaStreamSynchronize(main_stream));
            same_buffer("rows", &y, AMP_BF16, false);
            drop(&x);
            drop(&y);
        }
    in_grids(0, 0);
}

TEST(gemm, "amp_gemm on cuBLAS agrees with double precision: transposes, types, paddings, alpha, "
           "beta; in a graph too; cuBLAS is asked for fp32 sums") {
    enum { WORKSPACE = 1 << 20 };
    dice           r(24);
    amp_backend    backend;
    void          *handle    = blas();
    unsigned char *workspace = on_device(WORKSPACE);
    for (unsigned i = 0; i < few(1200); i++) {
        const product p    = any_product(r);
        const bool    room = r.one_in(2), graph = room && r.one_in(4);
        buffer x = matrix(p.trans_a ? p.k : p.m, p.trans_a ? p.m : p.k, p.lda, p.type,
                          p.alpha != 0 ? NORMAL : ANY_BITS, r);
        buffer y = matrix(p.trans_b ? p.n : p.k, p.trans_b ? p.k : p.n, p.ldb, p.type,
                          p.alpha != 0 ? NORMAL : ANY_BITS, r);
        buffer z = matrix(p.m, p.n, p.ldc, p.c_type, p.beta != 0 ? NORMAL : ANY_BITS, r);
        emulate(i % 3, (int)(i / 3 % 2));
        OK(amp_cuda_backend(&backend, main_stream, handle));
        if (room) backend.workspace = workspace, backend.workspace_size = WORKSPACE;
#ifdef CUDA_EMU_H
        const size_t before = emu_gemm_calls();
#endif
        if (graph) begin_capture(main_stream);
        OK(multiply(&backend, &p, x.device, y.device, z.device));
        if (graph) {
            cudaGraphExec_t exec = end_capture(main_stream);
            CUDA(cudaGraphLaunch(exec, main_stream));
            CUDA(cudaStreamSynchronize(main_stream));
            CUDA(cudaGraphExecDestroy(exec));
        }
        CUDA(cudaStreamSynchronize(main_stream));
        check_product(&p, &x, &y, &z);
#ifdef CUDA_EMU_H
        if (p.m && p.n) {
            const cudaDataType types[] = {CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF};
            CHECK_EQ_U64(emu_gemm_calls(), before + 1);
            const struct emu_gemm_call *g = emu_gemm_call_at(before);
            CHECK_EQ_INT(g->atype, types[p.type]);
            CHECK_EQ_INT(g->btype, types[p.type]);
            CHECK_EQ_INT(g->ctype, types[p.c_type]);
            CHECK_EQ_INT(g->compute, CUBLAS_COMPUTE_32F);
            CHECK_EQ_INT(g->math, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
            CHECK_EQ_INT(g->pointer_mode, CUBLAS_POINTER_MODE_HOST);
            CHECK(g->stream == main_stream);
            CHECK(g->workspace == (room ? workspace : NULL));
            CHECK_EQ_U64(room ? g->workspace_bytes : (size_t)WORKSPACE, WORKSPACE);
            CHECK_EQ_INT(g->captured, graph);
            CHECK(p.alpha != 0 || g->k == 0); /* not left to cuBLAS whether it reads A and B */
        } else {
            CHECK_EQ_U64(emu_gemm_calls(), before); /* nothing to do, nothing called */
        }
#endif
        drop(&x);
        drop(&y);
        drop(&z);
    }
    emulate(0, 0);
    CUDA(cudaFree(workspace));
    CHECK_EQ_INT(cublasDestroy((cublasHandle_t)handle), CUBLAS_STATUS_SUCCESS);
}

TEST(gemm_errors, "amp_gemm: no capture without a workspace, no mixed types, no more than 2^31") {
    dice        r(25);
    amp_backend backend;
    void       *handle = blas();
    product     p      = {0, 0, 4, 4, 4, 0, 0, 0, 1.0f, 0.0f, AMP_F16, AMP_F16};
    amp_gemm_args g;
    const size_t huge  = (size_t)1 << 31;
    buffer      x = matrix(4, 4, 0, AMP_F32, NORMAL, r), y = matrix(4, 4, 0, AMP_F32, NORMAL, r);
    buffer      z = matrix(4, 4, 0, AMP_F32, NORMAL, r);
    OK(amp_cuda_backend(&backend, main_stream, handle));
    begin_capture(main_stream);
    SAYS(multiply(&backend, &p, x.device, y.device, z.device), AMP_ERROR_WORKSPACE,
         "m 4, n 4, k 4, a_type fp16, c_type fp16: give the backend a workspace");
    CUDA(cudaGraphExecDestroy(end_capture(main_stream))); /* it was not spoiled */
    CHECK_EQ_INT(gemm_one(&backend, 0, 0, 4, 4, 4, 1.0f, x.device, AMP_F16, 0, y.device, AMP_BF16,
                          0, 0.0f, z.device, AMP_F32, 0), AMP_ERROR_MIXED_TYPES);
    SAYS(gemm_one(&backend, 0, 0, 4, 4, 4, 1.0f, x.device, AMP_F16, 0, y.device, AMP_F16, 0, 0.0f, z.device, AMP_BF16, 0),
         AMP_ERROR_MIXED_TYPES, "k 4, a_type fp16, c_type bf16: fp16 and bf16 meet");
    CHECK_EQ_INT(gemm_one(&backend, 0, 0, 1, 4, 4, 1.0f, x.device, AMP_F16, huge, y.device, AMP_F16,
                          0, 0.0f, z.device, AMP_F16, 0), AMP_ERROR_TOO_LARGE);
    memset(&g, 0, sizeof g);
    g.m = g.n = g.k = 4;
    g.a       = x.device;
    g.b       = y.device;
    g.c       = z.device;
    g.b_type  = AMP_F16;
    g.compute = AMP_F16;
    SAYS(amp_gemm(&backend, &g), AMP_ERROR_UNSUPPORTED, "m 4, n 4, k 4, a_type fp32"); /* which is not rounded here */
    g.compute = AMP_BF16;
    CHECK_EQ_INT(amp_gemm(&backend, &g), AMP_ERROR_MIXED_TYPES);
#ifdef CUDA_EMU_H
    for (int k = 0; k < 6; k++) /* with n ldc is as large */
        for (size_t size = huge - 1; size <= huge; size++) {
            amp_gemm_args one = {};
            size_t *const sizes[] = {&one.m, &one.k, &one.lda, &one.ldb, &one.ldc, &one.count};
            one.m = one.n = one.k = one.count = 1;
            one.lda = one.ldb = one.ldc = 4;
            one.a = x.device, one.b = y.device, one.c = (void *)((uintptr_t)1 << 46); /* far from both */
            one.trans_a = k == 1, one.stride_c = 4;
            *sizes[k]     = size;
            emu_last_api  = "";
            emu_api_calls = 0, emu_fail_at = 3; /* nothing runs: cuBLAS is asked, and fails */
            CHECK_EQ_INT(amp_gemm(&backend, &one), size < huge ? AMP_ERROR_CUBLAS : AMP_ERROR_TOO_LARGE);
            CHECK_EQ_INT(strncmp(emu_last_api, "cublasGemm", 10) == 0, size < huge);
            emu_fail_at = 0;
        }
#endif
    CUDA(cudaStreamSynchronize(main_stream));
    same_buffer("C", &z, AMP_F32, false);
    drop(&x);
    drop(&y);
    drop(&z);
    CHECK_EQ_INT(cublasDestroy((cublasHandle_t)handle), CUBLAS_STATUS_SUCCESS);
}

/* Small integers, so that sums are exact in any order and both sides must round alike. */
TEST(gemm_bias, "amp_gemm: bias and ReLU as on the CPU, in batches too, by cublasLt in one kernel or "
                "in two; these keep to the workspace that there is") {
    enum { WORKSPACE = 1 << 16 };
    dice           r(29);
    amp_backend    backend;
    void          *handle    = blas();
    unsigned char *workspace = on_device(2 * WORKSPACE);
    unsigned char  behind[WORKSPACE], clean[WORKSPACE];
#ifdef CUDA_EMU_H
    unsigned with_lt = 0, batches = 0;
#endif
    memset(clean, 0x5a, sizeof clean);
    for (unsigned i = 0; i < few(3200); i++) {
        const int    type = (int)(i % 3), c_type = r.one_in(2) ? type : AMP_F32;
        const bool   ta = r.one_in(2), tb = r.one_in(2), relu = r.one_in(2);
        const int    two = EMULATED && r.one_in(3) ? 1 + (int)r.below(4) : 0; /* an answer of Lt's */
        const bool   has_bias = r.one_in(2) || !relu, heads = r.one_in(2);
        const size_t m = r.below(20), n = r.below(20), k = r.below(20);
        const size_t count = r.one_in(2) ? 1 : 1 + r.below(4);
        size_t       off[3]; /* bytes of A, B and C from 256: Lt is told of such addresses */
        const size_t needed = (4 * m * n * count + 255) / 256 * 256; /* and more than this */
        const size_t given  = r.one_in(2) ? 0 : needed + r.below(2) * 256;
        amp_gemm_args g = {};
        g.trans_a = ta, g.trans_b = tb, g.m = m, g.n = n, g.k = k, g.count = count;
        g.alpha = r.one_in(8) ? 1.0f : 0.5f, g.beta = r.one_in(2) ? 0.0f : 2.0f;
        g.a_type = g.b_type = (amp_dtype)type, g.c_type = (amp_dtype)c_type;
        g.stride_a = r.one_in(3) ? 0 : m * k, g.stride_b = r.one_in(3) ? 0 : n * k + 1;
        g.ldc      = heads ? n * count + 1 : n + 1;
        g.stride_c = heads ? n : m * g.ldc + 1;
        for (int b = 0; b < 3; b++) off[b] = r.one_in(4) ? 0 : size_of(b == 2 ? c_type : type) << r.below(8);
        const size_t elements[4] = {(m * k + 1) * count + 256, (n * k + 1) * count + 256,
                                    (m * g.ldc + 1) * count + 256, n + 1};
        buffer       x = matrix(1, elements[0], 0, type, NORMAL, r);
        buffer       y = matrix(1, elements[1], 0, type, NORMAL, r);
        buffer       z = matrix(1, elements[2], 0, c_type, NORMAL, r);
        const amp_dtype w_type = r.one_in(3) ? (amp_dtype)r.below(3) : (amp_dtype)c_type;
        buffer       w = matrix(1, elements[3], 0, w_type, NORMAL, r);
        const size_t from = r.below(2) * size_of(w_type); /* of which Lt cannot be told */
        buffer      *all[4]   = {&x, &y, &z, &w};
        const int    types[4] = {type, type, c_type, w_type};
        for (int b = 0; b < 4; b++) {
            for (size_t e = 0; e < elements[b]; e++)
                ampi_store(all[b]->host, (amp_dtype)types[b], e,
                           float_to_bits((float)(int)r.below(7) - 3.0f +
                                         (b == 3 ? 0.0078125f : 0.0f)));
            upload(all[b]->device, all[b]->host, all[b]->size);
        }
        emulate(i % 3, (int)(i / 3 % 2));
        OK(amp_cuda_backend(&backend, main_stream, handle));
        if (given) backend.workspace = workspace, backend.workspace_size = given;
        set_bytes(workspace + given, 0x5a, WORKSPACE);
#ifdef CUDA_EMU_H
        const size_t before = emu_gemm_calls();
        emu_lt              = two;
#endif
        const bool    product = m && n && k;
        const bool    lt      = product && !two && (!has_bias || (w_type == c_type && (uintptr_t)(w.device + from) % 16 == 0));
        const bool    no_room = m && n && given <= needed && c_type != AMP_F32; /* fp32 sums */
        g.a = x.device + off[0], g.b = y.device + off[1], g.c = z.device + off[2];
        g.bias = has_bias ? w.device + from : NULL, g.bias_type = w_type,
        g.activation = relu ? AMP_ACTIVATION_RELU : AMP_ACTIVATION_NONE;
        in_grids(i % 4 == 1, 0);
        const amp_result told    = amp_gemm(&backend, &g);
        in_grids(0, 0);
        const bool       refused = told == AMP_ERROR_WORKSPACE;
        if (EMULATED) CHECK_EQ_INT(refused, no_room && !lt);
        else CHECK(no_room || !refused); /* what cublasLt takes is its own affair */
        if (!refused) OK(told);
        g.a = x.host + off[0], g.b = y.host + off[1], g.c = z.host + off[2];
        g.bias = has_bias ? w.host + from : NULL;
        if (!refused) OK(amp_gemm(NULL, &g));
        CUDA(cudaStreamSynchronize(main_stream));
        same_buffer("C", &z, c_type, false);
        download(behind, workspace + given, WORKSPACE);
        CHECK_MEM(behind, clean, WORKSPACE);
#ifdef CUDA_EMU_H
        emu_lt = EMU_LT_WORKS;
        if (m && n && !refused) {
            const struct emu_gemm_call *call = emu_gemm_call_at(before);
            CHECK_EQ_U64(emu_gemm_calls(), before + 1);
            CHECK_EQ_INT(strcmp(call->name, "cublasLtMatmul") == 0, lt);
            if (lt) CHECK_EQ_INT(call->reductions, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
            for (int b = 0; lt && b < 4; b++) { /* its A is B */
                const size_t from = off[b == 0 ? 1 : b == 1 ? 0 : 2] | 256;
                CHECK_EQ_U32(call->aligned[b], (uint32_t)(from & (0 - from)));
            }
            CHECK_EQ_INT(call->batch, (int)count);
            with_lt += lt;
            batches += lt && count > 1;
            CHECK_EQ_INT(call->compute, CUBLAS_COMPUTE_32F);
            CHECK(call->stream == main_stream);
        }
#endif
        drop(&x);
        drop(&y);
        drop(&z);
        drop(&w);
    }
#ifdef CUDA_EMU_H
    CHECK(with_lt > 0 && batches > 0);
#endif
    CUDA(cudaFree(workspace));
    CHECK_EQ_INT(cublasDestroy((cublasHandle_t)handle), CUBLAS_STATUS_SUCCESS);
    emulate(0, 0);
}

/* Memory for an array of 2^32 numbers, all zero; the emulator's has pages only where they are
   touched, and there only some blocks run. NULL: the machine has no room. */
static unsigned char *huge(size_t bytes) {
#ifdef CUDA_EMU_H
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED) return NULL;
    emu_lend(p, bytes);
    return (unsigned char *)p;
#else
    size_t room = 0, total = 0;
    void  *p    = NULL;
    CUDA(cudaMemGetInfo(&room, &total));
    if (room < bytes + ((size_t)1 << 30)) return NULL;
    CUDA(cudaMalloc(&p, bytes));
    set_bytes(p, 0, bytes);
    return (unsigned char *)p;
#endif
}
static void drop_huge(unsigned char *p, size_t bytes) {
#ifdef CUDA_EMU_H
    if (p) emu_lend(p, 0), munmap(p, bytes);
#else
    (void)bytes;
    CUDA(cudaFree(p));
#endif
}
static void only_blocks(size_t from, size_t to) {
#ifdef CUDA_EMU_H
    emu_block_from = from, emu_block_to = to;
#else
    (void)from, (void)to;
#endif
}
static void move_tail(unsigned char *to, const unsigned char *from, size_t bytes) {
#ifdef CUDA_EMU_H
    memcpy(to, from, bytes);
#else
    all_done();
    CUDA(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
    all_done();
#endif
}

TEST(huge_arrays, "law 11: arrays of 2^32 + 5 elements are cast, scaled, checked and updated to their "
                  "ends") {
    const size_t   n = ((size_t)1 << 32) + 5, tail = 9; /* elements at the end, across 2^32 */
    const size_t   parts = n / 8192 + 1, chunks = n / AMPI_CHUNK + 1;
    unsigned char *half = huge(2 * n), *other = huge(2 * n), *full = NULL;
    uint16_t       h[9];
    float          f[9];
    amp_scaler     s;
    if (!half || !other) {
        drop_huge(half, 2 * n);
        drop_huge(other, 2 * n);
        SKIP("no room for two arrays of 2^32 halves");
    }
    for (size_t i = 0; i < tail; i++) h[i] = amp_f32_to_bf16((float)(i + 1)).bits;
    move_tail(half + 2 * (n - tail), (unsigned char *)h, sizeof h);
    only_blocks(parts - 2, parts);
    OK(amp_cuda_cast(other, AMP_F16, half, AMP_BF16, n, main_stream));
    OK(amp_scaler_init(&s, NULL));
    s.scale = 2.0f;
    upload(shared_device, &s, sizeof s);
    OK(amp_cuda_scale_loss(other, AMP_F16, n, &shared_device->scale, main_stream));
    OK(amp_cuda_scaler_unscale(shared_device, NULL, other, AMP_F16, n, main_stream));
    CUDA(cudaStreamSynchronize(main_stream));
    CHECK_EQ_INT(((const amp_scaler *)from_device(shared_device, sizeof s))->found_inf, 0);
    move_tail((unsigned char *)h, other + 2 * (n - tail), sizeof h);
    for (size_t i = 0; i < tail; i++)
        CHECK_EQ_F32(ampi_f32_from_bits(ampi_f32_from_f16(h[i])), 2.0f * (float)(i + 1));
    h[tail - 1] = 0x7e01;
    move_tail(other + 2 * (n - tail), (unsigned char *)h, sizeof h);
    OK(amp_cuda_scaler_unscale(shared_device, NULL, other, AMP_F16, n, main_stream));
    CUDA(cudaStreamSynchronize(main_stream));
    CHECK_EQ_INT(((const amp_scaler *)from_device(shared_device, sizeof s))->found_inf, 1);
    drop_huge(other, 2 * n);
    only_blocks(0, 0);

    full = huge(4 * n);
    if (!full) {
        drop_huge(half, 2 * n);
        SKIP("no room for 2^32 floats: casts and checks have passed, no step was tried");
    } else {
        amp_backend        backend;
        amp_optimizer      opt;
        amp_optimizer_desc d;
        amp_tensor         x;
        amp_gate           gate;
        ampi_slot          slot;
        memset(&d, 0, sizeof d);
        memset(&x, 0, sizeof x);
        OK(amp_cuda_backend(&backend, main_stream, NULL));
        d.backend = &backend, d.kind = AMP_KIND_SGD, d.dtype = AMP_F32, d.scaler.disabled = 1;
        OK(amp_optimizer_init(&opt, &d));
        x.n = n, x.weight = (float *)(void *)full, x.grad = half, x.grad_type = AMP_BF16;
        OK(amp_optimizer_add(&opt, &x));
        OK(prepare_scaled(&opt));
        if (EMULATED) { /* A's last block alone does not decide */
            memset(&gate, 0, sizeof gate);
            gate.inv_scale = 1.0f;
            upload(&opt.plan->control->gate, &gate, sizeof gate);
        }
        OK(amp_optimizer_set_lr(&opt, 0.5f));
        only_blocks((chunks + 3) / 4 - 1, (chunks + 3) / 4); /* a warp for each chunk */
        OK(opt.backend.functions->check_fn(&opt.backend, opt.plan));
        only_blocks(0, 8);
        OK(opt.backend.functions->update_fn(&opt.backend, opt.plan, AMPI_JOB_FUSED));
        CUDA(cudaStreamSynchronize(main_stream));
        only_blocks(0, 0);
        move_tail((unsigned char *)f, full + 4 * (n - tail), sizeof f);
        for (size_t i = 0; i < tail; i++) CHECK_EQ_F32(f[i], -0.5f * (float)(i + 1));
        download(&slot, opt.plan->table, sizeof slot);
        CHECK_EQ_F32(EMULATED ? ampi_f32_from_bits(slot.tally.max)
                              : slot.stats.max_finite, 9.0f);
        amp_optimizer_free(&opt);
        drop_huge(full, 4 * n);
    }
    drop_huge(half, 2 * n);
}

/* What functions of a backend do that no step of an array of fp32 does. */
TEST(huge_arrays_split, "law 11: arrays of 2^32 + 5 elements are split into storage up to their ends") {
    static const amp_storage_format formats[] = {AMP_FORMAT_SPLIT, AMP_FORMAT_SR};
    const size_t            n = ((size_t)1 << 32) + 5, tail = 9;
    unsigned char          *full = huge(4 * n), *halves = huge(4 * n);
    float                   f[9];
    uint16_t                models[9], expected[9];
    uint32_t                low[9];
    amp_backend             backend;
    if (!full || !halves) {
        drop_huge(full, 4 * n);
        drop_huge(halves, 4 * n);
        SKIP("no room for 2^32 elements");
    }
    OK(amp_cuda_backend(&backend, main_stream, NULL));
    for (size_t i = 0; i < tail; i++) f[i] = 1.0f / (float)(i + 3);
    move_tail(full + 4 * (n - tail), (unsigned char *)f, sizeof f);
    for (const amp_storage_format format : formats) {
        unsigned char    *beside = halves + 2 * n;
        const uint32_t    size   = format == AMP_FORMAT_SPLIT ? 2 : 0;
        const ampi_stored there  = {beside, NULL, format, size}, here = {low, NULL, format, size};
        unsigned char     got[sizeof low];
        only_blocks(n / 256 - 1, n / 256 + 1);
        OK(backend.functions->encode_fn(&backend, halves, &there, full, n));
        CUDA(cudaStreamSynchronize(main_stream));
        only_blocks(0, 0);
        for (size_t i = 0; i < tail; i++) ampi_encode_weight(expected, &here, f, i);
        move_tail((unsigned char *)models, halves + 2 * (n - tail), sizeof models);
        move_tail(got, beside + size * (n - tail), size * tail);
        CHECK_MEM(models, expected, sizeof models);
        CHECK_MEM(got, low, size * tail);
    }
    drop_huge(full, 4 * n);
    drop_huge(halves, 4 * n);
}

/* Two matrices of two rows, whose ends lie 3 * 2^31 elements apart. */
TEST(huge_matrices, "law 11: rows that are 2^31 - 1 elements long are cast, and multiplied in batches, by cuBLAS, by "
                    "cublasLt and with the rest behind it") {
    const size_t   ld = 0x7fffffff, stride = 2 * ld + 1, n = stride + ld + 64, bytes = 2 * n;
    unsigned char *all[3] = {huge(bytes), huge(bytes), huge(bytes)}, *bias = on_device(4);
    unsigned char *workspace = on_device(512);
    void          *handle    = blas();
    amp_backend    backend;
    const auto     set = [&](int k, size_t i, float x) {
        const uint16_t h = amp_f32_to_f16(x).bits;
        move_tail(all[k] + 2 * i, (const unsigned char *)&h, 2);
    };
    const auto get = [&](int k, size_t i) {
        uint16_t h;
        move_tail((unsigned char *)&h, all[k] + 2 * i, 2);
        return ampi_f32_from_bits(ampi_f32_from_f16(h));
    };
    if (!all[0] || !all[1] || !all[2]) {
        for (unsigned char *p : all) drop_huge(p, bytes);
        CUDA(cudaFree(bias)), CUDA(cudaFree(workspace));
        CHECK_EQ_INT(cublasDestroy((cublasHandle_t)handle), CUBLAS_STATUS_SUCCESS);
        SKIP("no room for rows of 2^31 elements");
    }
    OK(amp_cuda_backend(&backend, main_stream, handle));
    for (size_t cols = 40; cols <= 4000; cols += 3960) { /* rows that are short, and not */
        const size_t at = ld - cols, apart = stride + 1, last = ld - 1;
        for (size_t r = 0; r < 2; r++) set(0, last + r * apart, (float)(r + 1));
        OK(backend.functions->cast_rows_fn(&backend, all[1] + 2 * at, AMP_BF16, apart, all[0] + 2 * at, AMP_F16,
                                           apart, 2, cols));
        CUDA(cudaStreamSynchronize(main_stream));
        for (size_t r = 0; r < 2; r++) {
            uint16_t h;
            move_tail((unsigned char *)&h, all[1] + 2 * (last + r * apart), 2);
            CHECK_EQ_U32(h, amp_f32_to_bf16((float)(r + 1)).bits);
            set(0, last + r * apart, 0.0f), set(1, last + r * apart, 0.0f);
        }
    }
    for (int way = 0; way < 3; way++) {
        amp_gemm_args g = {};
        g.m = g.n = g.k = g.count = 2;
        g.lda = g.ldb = g.ldc = ld;
        g.stride_a = g.stride_b = g.stride_c = stride;
        g.a = all[0], g.b = all[1], g.c = all[2];
        g.a_type = g.b_type = g.c_type = g.bias_type = AMP_F16;
        for (size_t e = 0; e < 8; e++) {
            const size_t at = e / 4 * stride + e / 2 % 2 * ld + e % 2;
            set(0, at, (float)e - 3.0f), set(1, at, (float)(3 * e % 8)), set(2, at, -1.0f);
        }
        if (way) g.bias = bias, g.activation = AMP_ACTIVATION_RELU;
        set_bytes(bias, 0x34, 4); /* twice 0.2627 */
        backend.workspace = workspace, backend.workspace_size = 512;
#ifdef CUDA_EMU_H
        emu_lt = way == 2 ? EMU_LT_UNSUPPORTED : EMU_LT_WORKS;
#endif
        OK(amp_gemm(&backend, &g));
        CUDA(cudaStreamSynchronize(main_stream));
        for (size_t e = 0; e < 8; e++) {
            float sum = 0.0f;
            for (size_t l = 0; l < 2; l++)
                sum += ((float)(e / 2 * 2 + l) - 3.0f) * (float)(3 * (e / 4 * 4 + 2 * l + e % 2) % 8);
            if (way) sum += ampi_f32_from_bits(ampi_f32_from_f16(0x3434));
            if (way && sum < 0.0f) sum = 0.0f;
            const float x = get(2, e / 4 * stride + e / 2 % 2 * ld + e % 2);
            CHECK_EQ_F32(x, ampi_f32_from_bits(ampi_f32_from_f16(amp_f32_to_f16(sum).bits)));
        }
    }
#ifdef CUDA_EMU_H
    emu_lt = EMU_LT_WORKS;
#endif
    for (unsigned char *p : all) drop_huge(p, bytes);
    CUDA(cudaFree(bias)), CUDA(cudaFree(workspace));
    CHECK_EQ_INT(cublasDestroy((cublasHandle_t)handle), CUBLAS_STATUS_SUCCESS);
}

TEST(races, "few blocks of few threads, for a checker of races: all kernels, several times") {
    static const int blocks[] = {1, 2, 3, 6}, widths[] = {32, 64, 128, 256};
    dice             r(30);
    for (unsigned i = 0; i < few(60);) {
        base            = any_setup((int)(i % NUM_KINDS), r);
        base.max_blocks = r.of(blocks);
        base.block_size = r.of(widths);
        base.steps = 2, base.twice = 0, base.overflows = 2;
        any_list(&base, 2, r);
        for (int k = 0; k < 2; k++) /* two chunks, in each second run */
            if (base.tensors[k].n > 20000 || (k == 0 && i % 2 == 0)) base.tensors[k].n = 20000;
        i += run(&base, r);
    }
}

/* One step of the same gradients again and again, in grids of all sizes: everything is put back on
   the device before each, and compared there after it. */

static __global__ void put_back(uint32_t *to, const uint32_t *from, uint64_t words) {
    uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < words; i += (uint64_t)gridDim.x * blockDim.x) to[i] = from[i];
}

static __global__ void count_differing(const uint32_t *a, const uint32_t *b, uint64_t words,
                                       uint32_t *differing) {
    uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i < words; i += (uint64_t)gridDim.x * blockDim.x)
        if (a[i] != b[i]) atomicAdd(differing, 1u);
}

/* Of the statistics: all but the four bytes behind the last member. */
static __global__ void count_other_stats(const ampi_slot *slots, const amp_grad_stats *expected,
                                         uint64_t count, uint32_t *differing) {
    enum { WORDS = (offsetof(amp_grad_stats, max_finite) + 4) / 4 };
    const uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    const uint32_t *a = (const uint32_t *)&slots[i].stats, *b = (const uint32_t *)&expected[i];
    for (int k = 0; k < WORDS; k++)
        if (a[k] != b[k]) atomicAdd(differing, 1u);
}

enum { LONG = 4, LONG_SIZE = 2 * AMPI_CHUNK + 5000, GRID_TENSORS = 4096 - 2 * LONG };

struct image { void *live; unsigned char *before, *after; size_t size; }; /* of device memory */

struct grids {
    amp_backend   backend;
    amp_optimizer opt[2];
    int           count;
    size_t        n;
    uint16_t     *grads[2];
    float        *weights[2], *first; /* what they were before the step */
    image         images[3];          /* control, weights, model copies */
    ampi_control  control;            /* of the CPU, before the step */
    amp_grad_stats    *stats[2];
    uint32_t     *differing;
};

static void image_of(image *m, void *live, const void *before, const void *after, size_t size) {
    m->live = live, m->size = size;
    if (!m->before) m->before = on_device(size);
    if (!m->after) m->after = on_device(size);
    upload(m->before, before, size);
    upload(m->after, after, size);
}

/* One chunk each, but the first few. */
static void start_grids(grids *g, int count, dice &r) {
    amp_tensor        *parts = (amp_tensor *)fresh((size_t)count * sizeof *parts), whole;
    amp_optimizer_desc d;
    memset(&d, 0, sizeof d);
    memset(&whole, 0, sizeof whole);
    memset(g, 0, sizeof *g);
    g->count = count;
    for (int i = 0; i < count; i++) {
        parts[i].n = i < LONG ? (size_t)LONG_SIZE : 1 + r.below(7);
        whole.n += parts[i].n;
    }
    g->n       = whole.n;
    g->first   = (float *)fresh(4 * g->n);
    g->stats[CPU] = (amp_grad_stats *)fresh((size_t)count * sizeof(amp_grad_stats));
    g->stats[DEV] = (amp_grad_stats *)(void *)on_device((size_t)count * sizeof(amp_grad_stats));
    g->differing  = (uint32_t *)(void *)on_device(4);
    set_bytes(g->differing, 0, 4);
    fill((unsigned char *)g->first, AMP_F32, g->n, NORMAL, r);
    OK(amp_cuda_backend(&g->backend, main_stream, NULL));
    d.kind = AMP_KIND_SGD, d.dtype = AMP_F16, d.max_norm = 1.0f;
    for (int side = CPU; side <= DEV; side++) {
        g->weights[side] = (float *)(side == CPU ? fresh(4 * g->n) : (void *)on_device(4 * g->n));
        g->grads[side] = (uint16_t *)(side == CPU ? fresh(2 * g->n) : (void *)on_device(2 * g->n));
        d.backend       = side == CPU ? NULL : &g->backend;
        whole.weight    = g->weights[side];
        whole.grad      = g->grads[side];
        whole.grad_type = AMP_F16;
        if (side == CPU) memcpy(g->weights[CPU], g->first, 4 * g->n);
        else upload(g->weights[DEV], g->first, 4 * g->n);
        OK(amp_optimizer_init(&g->opt[side], &d));
        OK(amp_optimizer_add_flat(&g->opt[side], &whole, parts, (size_t)count));
        OK(prepare_scaled(&g->opt[side]));
        OK(amp_optimizer_set_lr(&g->opt[side], 0.5f));
    }
    g->control = *g->opt[CPU].plan->control;
    free(parts);
}

/* New gradients, and what a step makes of them on the CPU. */
static void expect(grids *g, bool overflow, dice &r) {
    amp_optimizer *opt = &g->opt[CPU];
    void          *grads = g->grads[CPU], *model = (void *)amp_optimizer_model(opt, 0);
    uint16_t      *before = (uint16_t *)fresh(2 * g->n);
    fill((unsigned char *)grads, AMP_F16, g->n, (int)r.below(NUM_FINITE), r);
    if (overflow) spoil((unsigned char *)grads, AMP_F16, g->n, r);
    upload(g->grads[DEV], grads, 2 * g->n);
    memcpy(g->weights[CPU], g->first, 4 * g->n);
    OK(amp_cast(model, AMP_F16, g->first, AMP_F32, g->n));
    memcpy(before, model, 2 * g->n);
    *opt->plan->control = g->control;
    OK(amp_optimizer_step_graph(opt));
    for (int i = 0; i < g->count; i++) OK(amp_optimizer_stats(opt, i, &g->stats[CPU][i]));
    upload(g->stats[DEV], g->stats[CPU], (size_t)g->count * sizeof(amp_grad_stats));
    image_of(&g->images[0], g->opt[DEV].plan->control, &g->control, opt->plan->control,
             sizeof(ampi_control));
    image_of(&g->images[1], g->weights[DEV], g->first, g->weights[CPU], 4 * g->n);
    image_of(&g->images[2], (void *)amp_optimizer_model(&g->opt[DEV], 0), before, model,
             2 * g->n / 4 * 4);
    free(before);
}

static void step_in_grid(grids *g, int blocks, int width) {
    amp_optimizer *opt = &g->opt[DEV];
    in_grids(blocks, width);
    for (const image &m : g->images)
        launch(put_back, 64, 256, main_stream, (uint32_t *)m.live, (const uint32_t *)(void *)m.before,
               m.size / 4);
    OK(amp_optimizer_step_graph(opt));
    for (const image &m : g->images)
        launch(count_differing, 64, 256, main_stream, (const uint32_t *)m.live,
               (const uint32_t *)(void *)m.after, m.size / 4, g->differing);
    launch(count_other_stats, (unsigned)g->count / 64 + 1, 64, main_stream, opt->plan->table,
           (const amp_grad_stats *)g->stats[DEV], (uint64_t)g->count, g->differing);
}

static void finish_grids(grids *g) {
    for (const image &m : g->images) {
        CUDA(cudaFree(m.before));
        CUDA(cudaFree(m.after));
    }
    for (int side = CPU; side <= DEV; side++) amp_optimizer_free(&g->opt[side]);
    free(g->grads[CPU]), free(g->weights[CPU]), free(g->stats[CPU]), free(g->first);
    CUDA(cudaFree(g->grads[DEV]));
    CUDA(cudaFree(g->weights[DEV]));
    CUDA(cudaFree(g->stats[DEV]));
    CUDA(cudaFree(g->differing));
}

TEST(grids, "law 7: steps in grids of 1 to 4096 blocks, 10^5 of them on a GPU, leave the CPU's control "
            "bytes, weights, copies and statistics") {
    static const int widths[] = {32, 64, 128, 256};
    const unsigned   steps = EMULATED ? few(64) : test_state.quick ? 4096 : 102400;
    const unsigned   each  = EMULATED ? 2 : 4096; /* with the same gradients */
    static grids     g;
    uint32_t         differing = 0;
    dice             r(44);
    for (unsigned i = 0; i < steps; i += each) {
        emulate(i, 0);
        start_grids(&g, i / each % 2 ? 400 : GRID_TENSORS, r); /* four warps for a chunk, or one */
        expect(&g, i / each % 4 > 1, r);
        for (unsigned k = 0; k < each; k++) {
            const int blocks = EMULATED ? k ? 1 + (int)r.below(4096) : 4096 : 1 + (int)k;
            step_in_grid(&g, blocks, k % 2 ? r.of(widths) : g.count == 400 ? 128 : 32);
        }
        CUDA(cudaStreamSynchronize(main_stream));
        download(&differing, g.differing, 4);
        CHECK_EQ_U32(differing, 0);
        finish_grids(&g);
    }
    emulate(0, 0);
    if (test_state.failures == 0)
        printf("steps in grids of any size: %u, differing words: 0\n", steps);
}

/* ------------------------------------------------------------------ what a step asks for */

static unsigned long host_allocations;
static void *counting_alloc(void *, size_t bytes) { return host_allocations++, malloc(bytes); }
static void counting_free(void *, void *memory) { free(memory); }

static const amp_report_desc *watched; /* NULL: no report */
static int own_ones;                   /* nonzero: every second tensor is own */

/* An optimizer of count small tensors, alone on the device. */
static void many_tensors(amp_optimizer *opt, amp_backend *backend, int kind, int count,
                         unsigned char *arrays, cudaStream_t stream) {
    enum { N = 5 };
    amp_optimizer_desc d;
    memset(&d, 0, sizeof d);
    OK(amp_cuda_backend(backend, stream, NULL));
    d.backend            = backend;
    d.kind               = kind == ADAMW ? AMP_KIND_ADAMW : kind == SGD ? AMP_KIND_SGD
                                                                        : AMP_KIND_OWN;
    d.dtype              = AMP_F16;
    d.max_norm           = 1.0f;
    d.allocator.allocate_fn = counting_alloc;
    d.allocator.release_fn  = counting_free;
    d.report = watched;
    OK(amp_optimizer_init(opt, &d));
    for (int i = 0; i < count; i++) {
        amp_tensor x;
        memset(&x, 0, sizeof x);
        x.n         = N;
        x.weight    = (float *)(void *)(arrays + (size_t)i * 4 * N);
        x.grad      = arrays + (size_t)(count + i) * 4 * N;
        x.grad_type = AMP_F16;
        x.own       = own_ones && i % 2 == 0;
        OK(amp_optimizer_add(opt, &x));
    }
    OK(prepare_scaled(opt));
}

TEST(unscaled_loss, "law 17: on a device, too, no step begins before somebody has asked for the loss scale, in a capture "
                    "or out of it; a scale that a capture could not read does not count") {
    const float ones[4] = {1, 1, 1, 1};
    for (int kind = AMP_KIND_OWN; kind <= AMP_KIND_SGD; kind++)
        for (int captured = 0; captured < 2; captured++) {
            unsigned char     *weight = on_device(sizeof ones), *grad = on_device(sizeof ones);
            amp_backend        backend;
            amp_optimizer      opt;
            amp_optimizer_desc d;
            amp_tensor         t;
            memset(&d, 0, sizeof d);
            memset(&t, 0, sizeof t);
            upload(weight, ones, sizeof ones);
            upload(grad, ones, sizeof ones);
            OK(amp_cuda_backend(&backend, main_stream, NULL));
            d.backend = &backend, d.kind = (amp_kind)kind;
            t.n = 4, t.weight = (float *)(void *)weight, t.grad = grad;
            OK(amp_optimizer_init(&opt, &d));
            OK(amp_optimizer_add(&opt, &t));
            OK(amp_optimizer_prepare(&opt));
            const auto step = [&] {
                return kind == AMP_KIND_OWN ? amp_optimizer_check(&opt) : amp_optimizer_step_graph(&opt);
            };
            if (kind != AMP_KIND_OWN) OK(amp_optimizer_set_lr(&opt, 1.0f));
            if (captured) begin_capture(main_stream);
            if (captured) CHECK_EQ_F32(amp_optimizer_loss_scale(&opt), 0.0f);
            CHECK_EQ_INT(step(), AMP_ERROR_BAD_STATE);
            CHECK(strstr(amp_problem(), "the loss was not scaled") != NULL);
            CHECK(amp_optimizer_loss_scale_ptr(&opt) != NULL);
            OK(step());
            if (kind == AMP_KIND_OWN) OK(amp_optimizer_end_step(&opt));
            if (captured) CUDA(cudaGraphExecDestroy(end_capture(main_stream)));
            CUDA(cudaStreamSynchronize(main_stream));
            amp_optimizer_free(&opt);
            CUDA(cudaFree(weight));
            CUDA(cudaFree(grad));
        }
}

TEST(captured_step, "law 8: a step is captured as two kernels, one behind the other; one's own as three; with tensors that "
                    "are own beside a fused kind as four") {
    unsigned char *arrays = on_device((size_t)100 * 2 * 4 * 5);
    set_bytes(arrays, 0, (size_t)100 * 2 * 4 * 5);
    for (int kind = OWN; kind <= SGD; kind++)
        for (int tensors = 1; tensors <= 200; tensors += 99) { /* at last with own ones */
            amp_backend   backend;
            amp_optimizer opt;
            counted       c;
            own_ones = tensors > 100;
            if (own_ones) tensors = 100;
            many_tensors(&opt, &backend, kind, tensors, arrays, main_stream);
            if (kind != OWN) OK(amp_optimizer_set_lr(&opt, 0.1f));
            begin_capture(main_stream);
            step_of(&opt, kind);
            CUDA(cudaGraphExecDestroy(end_capture(main_stream, &c)));
            CHECK_EQ_U64(c.nodes, kind == OWN ? 3 : own_ones ? 4 : 2);
            CHECK_EQ_U64(c.edges, c.nodes - 1);
            amp_optimizer_free(&opt);
            if (own_ones) tensors = 200;
        }
    own_ones = 0;
    CUDA(cudaFree(arrays));
}

/* For a fifth of a second nothing behind it begins. */
static __global__ void user_spin(void) {
#ifdef __CUDA_ARCH__
    uint64_t begun, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begun));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while (now - begun < 200000000u);
#endif
}

TEST(nothing_waits, "law 8: behind a kernel that spins for 200 ms all calls of a step return while it "
                    "spins, and so do casts, the scaler's and products") {
    enum { WORKSPACE = 1 << 20, TENSORS = 100 };
    const product  p         = {0, 0, 8, 8, 8, 0, 0, 0, 1.0f, 0.0f, AMP_F16, AMP_F16};
    unsigned char *arrays    = on_device((size_t)TENSORS * 2 * 4 * 5);
    unsigned char *workspace = on_device(WORKSPACE), *x = on_device(4096);
    void          *handle    = blas();
    cudaEvent_t    spun;
    CUDA(cudaEventCreate(&spun));
    set_bytes(arrays, 0, (size_t)TENSORS * 2 * 4 * 5);
    set_bytes(x, 0, 4096);
    for (int kind = OWN; kind <= SGD; kind++) {
        amp_backend   backend, blas_backend;
        amp_optimizer opt;
        double        took = 0.0;
        OK(amp_cuda_backend(&blas_backend, main_stream, handle));
        blas_backend.workspace = workspace, blas_backend.workspace_size = WORKSPACE;
        many_tensors(&opt, &backend, kind, TENSORS, arrays, main_stream);
        emulate(0, 1);
        for (int spins = 0; spins < 2; spins++) { /* once before, so that all is loaded */
            if (spins) launch(user_spin, 1, 1, main_stream);
            CUDA(cudaEventRecord(spun, main_stream));
            const std::chrono::steady_clock::time_point begun = std::chrono::steady_clock::now();
            if (kind != OWN) OK(amp_optimizer_set_lr(&opt, 0.1f));
            step_of(&opt, kind);
            took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
            OK(amp_cuda_cast(x, AMP_F16, x + 1024, AMP_F32, 100, main_stream));
            OK(amp_cuda_scale_loss(x, AMP_F16, 100, &shared_device->scale, main_stream));
            OK(amp_cuda_scaler_unscale(shared_device, NULL, x, AMP_F16, 100, main_stream));
            OK(amp_cuda_scaler_unscale(shared_device, x + 1024, x + 1024, AMP_F32, 100, main_stream));
            OK(amp_cuda_scaler_update(shared_device, main_stream));
            OK(multiply(&blas_backend, &p, x, x + 1024, x + 2048));
            if (spins) CHECK_EQ_INT(cudaEventQuery(spun), cudaErrorNotReady);
            CUDA(cudaStreamSynchronize(main_stream));
        }
        (void)cudaGetLastError(); /* that it was not ready */
        if (!EMULATED)
            printf("host time of a %s behind a busy stream: %.1f us\n",
                   kind == OWN ? "step of one's own" : kind == SGD ? "step of SGD" : "step of AdamW",
                   1e6 * took);
        emulate(0, 0);
        amp_optimizer_free(&opt);
    }
    CUDA(cudaFree(arrays));
    CUDA(cudaFree(workspace));
    CUDA(cudaFree(x));
    CUDA(cudaEventDestroy(spun));
    CHECK_EQ_INT(cublasDestroy((cublasHandle_t)handle), CUBLAS_STATUS_SUCCESS);
}

/* What a process does first, captured: a function for arrays, or an optimizer's step. */
enum { FIRST_STEP = 5 };

static void capture_first(int which) {
    dice            r(41);
    buffer          x = make_buffer(256, r), y = make_buffer(256, r);
    amp_scaler      s, *scaler = shared_device;
    unsigned char  *arrays = on_device((size_t)2 * 4 * 5);
    amp_backend     backend;
    amp_optimizer   opt;
    cudaGraphExec_t exec;
    const int       kind = OWN + which - FIRST_STEP;
    set_bytes(arrays, 0, (size_t)2 * 4 * 5);
    OK(amp_scaler_init(&s, NULL));
    upload(scaler, &s, sizeof s);
#ifdef CUDA_EMU_H
    emu_lazy = 1;
#endif
    if (which >= FIRST_STEP) many_tensors(&opt, &backend, kind, 1, arrays, main_stream);
    if (which > FIRST_STEP) OK(amp_optimizer_set_lr(&opt, 0.1f));
    CUDA(cudaStreamBeginCapture(main_stream, cudaStreamCaptureModeGlobal));
    switch (which) {
    case 0: OK(amp_cuda_scale_loss(x.device, AMP_F32, 64, &scaler->scale, main_stream)); break;
    case 1: OK(amp_cuda_cast(y.device, AMP_F16, x.device, AMP_F32, 64, main_stream)); break;
    case 2: OK(amp_cuda_scaler_unscale(scaler, NULL, x.device, AMP_F32, 64, main_stream)); break;
    case 3: OK(amp_cuda_scaler_unscale(scaler, x.device, x.device, AMP_F32, 64, main_stream)); break;
    case 4: OK(amp_cuda_scaler_update(scaler, main_stream)); break;
    default: step_of(&opt, kind);
    }
    exec = end_capture(main_stream);
    CUDA(cudaGraphLaunch(exec, main_stream));
    CUDA(cudaStreamSynchronize(main_stream));
    CUDA(cudaGraphExecDestroy(exec));
    if (which == 0)
        for (size_t e = 0; e < 64; e++)
            ampi_store_f32(x.host, e, ampi_mul(ampi_load_f32(x.host, e), s.scale));
    if (which == 1) OK(amp_cast(y.host, AMP_F16, x.host, AMP_F32, 64));
    if (which < 3) same_buffer("x", &x, AMP_F32, true);
    same_buffer("y", &y, AMP_F16, true);
    if (which >= FIRST_STEP) amp_optimizer_free(&opt);
    CUDA(cudaFree(arrays));
    drop(&x);
    drop(&y);
}

TEST(first_met, "no kernel is loaded in a capture, not even if that is the first that a process does: "
                "a process for each function; the replay has the right bits") {
    const char *which = getenv("AMP_FIRST");
    if (which) {
        capture_first(atoi(which));
        return;
    }
    for (int i = 0; i < FIRST_STEP + 3; i++) {
        char command[1024];
        snprintf(command, sizeof command, "AMP_TEST_AFTER= AMP_TEST_PART=1of1 AMP_FIRST=%d '%s' --filter first_met 2>&1",
                 i, program_path);
        FILE       *child = popen(command, "r");
        std::string words;
        char        line[512];
        while (child && fgets(line, sizeof line, child)) words += std::string("     ") + line;
        const int status = child ? pclose(child) : -1;
        if (status != 0) printf("%s", words.c_str());
        CHECK_EQ_INT(status, 0);
    }
}

/* ----------------------------------------------------------- what only the emulator sees */

#ifdef CUDA_EMU_H

static const amp_report_desc watch_all = {1};

/* Calls since the counts were cleared. */
static void check_counts(unsigned long launches) {
    CHECK_EQ_U64(emu_count.launches, launches);
    CHECK_EQ_U64(emu_count.api_calls, launches); /* and nothing else */
    CHECK_EQ_U64(emu_count.synchronisations, 0);
    CHECK_EQ_U64(emu_count.memcpys + emu_count.memsets, 0);
    CHECK_EQ_U64(emu_count.allocations + host_allocations, 0);
    memset(&emu_count, 0, sizeof emu_count);
}

TEST(launches, "law 8: a fused step is two launches, no synchronisation, no copy, no allocation, "
               "for 1, 100 and (unless quick) 10000 tensors; set_lr one more; with own tensors four") {
    static const int counts[] = {1, 100, 10000};
    unsigned char   *arrays   = on_device((size_t)10000 * 2 * 4 * 5);
    const size_t     live     = emu_live_allocations();
    set_bytes(arrays, 0, (size_t)10000 * 2 * 4 * 5);
    for (size_t k = 0; k < 4 * (test_state.quick ? 2 : COUNT_OF(counts)); k++)
        for (int kind = OWN; kind <= SGD; kind++) {
            amp_backend     backend;
            amp_optimizer   opt;
            cudaGraphExec_t exec;
            watched  = k % 2 ? &watch_all : NULL; /* with a report, too, and all that it counts */
            own_ones = k / 2 % 2;
            many_tensors(&opt, &backend, kind, counts[k / 4], arrays, main_stream);
            memset(&emu_count, 0, sizeof emu_count);
            host_allocations = 0;
            emu_async        = 1; /* nothing has run when the call returns */
            if (kind == OWN) {
                step_of(&opt, kind);
                check_counts(3);
            } else if (own_ones) {
                OK(amp_optimizer_set_lr(&opt, 0.2f));
                check_counts(1);
                step_of(&opt, kind);
                check_counts(4);
            } else {
                OK(amp_optimizer_step(&opt, 0.1f));
                check_counts(2);
                OK(amp_optimizer_set_lr(&opt, 0.2f));
                check_counts(1);
                OK(amp_optimizer_step_graph(&opt));
                check_counts(2);
            }
            CHECK(emu_pending() > 0);
            begin_capture(main_stream);
            memset(&emu_count, 0, sizeof emu_count);
            if (kind != OWN) {
                step_of(&opt, kind);
                check_counts(own_ones ? 4 : 2);
            }
            exec = end_capture(main_stream);
            CUDA(cudaGraphExecDestroy(exec));
            CUDA(cudaDeviceSynchronize());
            emu_async = 0;
            amp_optimizer_free(&opt);
            CHECK_EQ_U64(emu_live_allocations(), live);
        }
    watched = NULL, own_ones = 0;
    CUDA(cudaFree(arrays));
    if (test_state.failures == 0 && !test_state.quick)
        printf("launches per step: 2, synchronisations: 0 (tensors 1, 100, 10000)\n");
}

TEST(per_thread, "law 7: --default-stream per-thread, in any setup: a stream 0 that nothing waits for") {
    const int before = emu_per_thread;
    dice      r(43);
    emu_per_thread = 1;
    for (unsigned i = 0; i < few(60);) {
        setup s = any_setup((int)(i % 5), r);
        any_list(&s, 1 + (int)r.below(4), r);
        s.default_stream = i % 2;
        base             = s;
        i += run(&base, r);
    }
    emu_per_thread = before;
}

#ifdef EMU_TRAFFIC
static int log2_n(void) { return test_state.quick ? 18 : 20; }

/* Bytes that a step loads from and stores to the arrays of two tensors of together 2^log2_n numbers. */
static void check_traffic_at(int align, int kind, amp_dtype grad_type, amp_dtype dtype, int zero,
                             unsigned bytes) {
    twins *t = &pair;
    dice   r(26);
    unsigned long long total = 0, sectors = 0;
    memset(&base, 0, sizeof base);
    base.desc.kind     = kind == OWN     ? AMP_KIND_OWN
                         : kind == ADAMW ? AMP_KIND_ADAMW
                         : kind == LION  ? AMP_KIND_LION
                                         : AMP_KIND_SGD;
    base.desc.momentum = kind == MOMENTUM ? 0.9 : 0.0;
    base.desc.dtype    = dtype;
    base.desc.zero_grad = zero;
    base.count = 2, base.every = 1, base.align = align;
    for (int i = 0; i < 2; i++) {
        base.tensors[i].n      = i == 0 ? 170000 : (1u << log2_n()) - 170000;
        base.tensors[i].weight = base.tensors[i].grad = 1;
        base.tensors[i].grad_type = grad_type;
    }
    CHECK(start(t, &base, r));
    for (int i = 0; i < 2; i++) {
        const ampi_slot *s        = &t->opt[DEV].plan->host_slots[i];
        const size_t     n        = (size_t)s->n;
        const void      *arrays[] = {s->master.data, s->moment[0].data, s->moment[1].data, s->unscaled};
        for (size_t k = 0; k < COUNT_OF(arrays); k++)
            if (arrays[k]) emu_watch(arrays[k], 4 * n);
        emu_watch(s->grad, n * size_of(grad_type));
        if (s->model) emu_watch(s->model, n * size_of(dtype));
    }
    if (kind == OWN) {
        OK(amp_optimizer_check(&t->opt[DEV]));
        OK(amp_optimizer_unscale(&t->opt[DEV]));
        OK(amp_optimizer_end_step(&t->opt[DEV]));
    } else {
        OK(fused(&t->opt[DEV], 0.01f));
    }
    CUDA(cudaDeviceSynchronize());
    const int num = 2 * (2 + (dtype != AMP_F32) + (kind == OWN || kind == MOMENTUM || kind == LION ? 1
                                                   : kind == ADAMW                ? 2
                                                                                  : 0));
    for (int i = 0; i < num; i++) {
        const emu_traffic seen = emu_watched(i);
        total += seen.loaded + seen.stored;
        sectors += seen.load_sectors + seen.store_sectors;
    }
    /* Every byte that is fetched is used, unless an address is odd; and the banks of shared memory
       are not much in the way of each other. */
    CHECK_EQ_U64(total, (unsigned long long)bytes << log2_n());
    if (align == 2) CHECK_EQ_U64(32 * sectors, total);
    CHECK(emu_watched_shared().turns <= 2 * emu_watched_shared().least);
    emu_unwatch_all();
    finish(t);
}

static void check_traffic(int kind, amp_dtype grad_type, amp_dtype dtype, int zero,
                          unsigned bytes) {
    check_traffic_at(1, kind, grad_type, dtype, zero, bytes);
    check_traffic_at(2, kind, grad_type, dtype, zero, bytes);
}

TEST(traffic, "bytes per parameter that a step moves, counted: AdamW, SGD, own; types; zero_grad; and "
              "all of every 32-byte sector is used") {
    check_traffic(ADAMW, AMP_F16, AMP_F16, 0, 30);
    if (test_state.failures == 0) printf("bytes per parameter: 30.0 (AdamW, fp16 gradients)\n");
    check_traffic(ADAMW, AMP_BF16, AMP_BF16, 0, 30);
    check_traffic(ADAMW, AMP_F32, AMP_F16, 0, 34); /* 4 + 4 in place of 2 + 2 */
    check_traffic(ADAMW, AMP_F16, AMP_F32, 0, 28); /* no model copy */
    check_traffic(ADAMW, AMP_F16, AMP_F16, 1, 32); /* gradients zeroed */
    check_traffic(SGD, AMP_F16, AMP_F16, 0, 14);   /* 2 + 2, 4 + 4, 2 */
    check_traffic(MOMENTUM, AMP_F16, AMP_F16, 0, 22);
    check_traffic(LION, AMP_F16, AMP_F16, 0, 22);
    check_traffic(SGD, AMP_F32, AMP_BF16, 0, 18);
    check_traffic(OWN, AMP_F16, AMP_F16, 0, 14);   /* 2; 2, 4; 4, 2 */
}

/* The same of a storage format, but for the largest magnitudes of groups, which lanes share. */
static void check_traffic_of_state(storage_row row, unsigned bytes) {
    twins *t = &pair;
    dice   r(27);
    unsigned long long total = 0, sectors = 0;
    memset(&base, 0, sizeof base);
    base.desc.kind  = AMP_KIND_ADAMW;
    base.desc.dtype = AMP_BF16;
    base.desc.storage = &storages[row];
    base.count = 1, base.every = 1, base.align = 2;
    base.tensors[0].n      = (size_t)1 << log2_n();
    base.tensors[0].weight = base.tensors[0].grad = 1;
    base.tensors[0].grad_type = AMP_BF16;
    CHECK(start(t, &base, r));
    const ampi_slot *s = &t->opt[DEV].plan->host_slots[0];
    emu_watch(s->grad, (size_t)2 << log2_n());
    emu_watch(s->model, (size_t)2 << log2_n());
    const uint64_t low = s->master.size;
    for (int k = 0; k < 2; k++) emu_watch(s->moment[k].data, (size_t)s->moment[k].size << log2_n());
    if (low) emu_watch(s->master.data, low << log2_n());
    OK(fused(&t->opt[DEV], 0.01f));
    CUDA(cudaDeviceSynchronize());
    for (int i = 0; i < 4 + (low > 0); i++) {
        const emu_traffic seen = emu_watched(i);
        total += seen.loaded + seen.stored;
        sectors += seen.load_sectors + seen.store_sectors;
    }
    CHECK_EQ_U64(total, (unsigned long long)bytes << log2_n());
    CHECK_EQ_U64(32 * sectors, total);
    emu_unwatch_all();
    finish(t);
}

TEST(traffic_of_states, "bytes per parameter of a step in each storage format, counted: fp32 with moments of bf16 22, "
                        "of 8 bits 18; split 28, 20, 16; stochastic 24, 16, 12") {
    check_traffic_of_state(FP32_BF16, 22);
    check_traffic_of_state(FP32_8BIT, 18);
    check_traffic_of_state(SPLIT, 28);
    check_traffic_of_state(SPLIT_BF16, 20);
    check_traffic_of_state(SPLIT_8BIT, 16);
    check_traffic_of_state(SR, 24);
    check_traffic_of_state(SR_BF16, 16);
    check_traffic_of_state(SR_8BIT, 12);
}

/* Single arrays: bytes per element, and all of every sector. */
static void check_array(int which, amp_dtype to, amp_dtype from, unsigned bytes) {
    enum { N = 1 << 18 };
    unsigned char     *src = on_device(4 * N), *dst = on_device(4 * N);
    unsigned long long total = 0, sectors = 0;
    amp_scaler         s;
    set_bytes(src, 0, 4 * N);
    OK(amp_scaler_init(&s, NULL));
    upload(shared_device, &s, sizeof s);
    emu_watch(src, 4 * N);
    emu_watch(dst, 4 * N);
    switch (which) {
    case 0: OK(amp_cuda_cast(dst, to, src, from, N, main_stream)); break;
    case 1: OK(amp_cuda_scale_loss(src, from, N, &shared_device->scale, main_stream)); break;
    case 2: OK(amp_cuda_scaler_unscale(shared_device, NULL, src, from, N, main_stream)); break;
    default:
        OK(amp_cuda_scaler_unscale(shared_device, dst, src, from, N, main_stream));
    }
    CUDA(cudaDeviceSynchronize());
    for (int i = 0; i < 2; i++) {
        const emu_traffic seen = emu_watched(i);
        total += seen.loaded + seen.stored;
        sectors += seen.load_sectors + seen.store_sectors;
    }
    emu_unwatch_all();
    CHECK_EQ_U64(total, (unsigned long long)bytes * N);
    CHECK_EQ_U64(32 * sectors, total);
    CUDA(cudaFree(src));
    CUDA(cudaFree(dst));
}

TEST(traffic_of_arrays, "casts, loss scaling and the scaler's passes use all of every sector") {
    check_array(0, AMP_F16, AMP_F32, 6);
    check_array(0, AMP_F32, AMP_BF16, 6);
    check_array(0, AMP_F16, AMP_BF16, 4);
    check_array(1, AMP_F32, AMP_F32, 8);
    check_array(1, AMP_F16, AMP_F16, 4);
    check_array(2, AMP_F32, AMP_F16, 2);
    check_array(2, AMP_F32, AMP_F32, 4);
    check_array(3, AMP_F32, AMP_F16, 6);
}

TEST(traffic_of_atomics, "3000 small tensors: A has no atomic operation on any of them, and on one "
                         "address one for each block") {
    enum { COUNT = 3000, N = 5 };
    unsigned char     *arrays = on_device((size_t)COUNT * 2 * 4 * N);
    amp_backend        backend;
    amp_optimizer      opt;
    unsigned long long most;
    set_bytes(arrays, 0, (size_t)COUNT * 2 * 4 * N);
    many_tensors(&opt, &backend, ADAMW, COUNT, arrays, main_stream);
    emu_unwatch_all();
    OK(amp_optimizer_step(&opt, 0.1f));
    CUDA(cudaDeviceSynchronize());
    CHECK_EQ_U64(emu_atomics(opt.plan->table, COUNT * sizeof(ampi_slot), NULL), 0);
    CHECK(emu_atomics(opt.plan->control, sizeof(ampi_control), &most) <= 3 * (COUNT / 4));
    CHECK_EQ_U64(most, COUNT / 4); /* blocks arrive */
    emu_unwatch_all();
    amp_optimizer_free(&opt);
    CUDA(cudaFree(arrays));
}
#endif

/* ------------------------------------------------------------------------------ faults */

enum operation {
    PREPARE, FUSED, REDUCED, BEGIN, END, STATUS, STATS, LOSS_SCALE, SAVE, LOAD, MOMENTS, REBIND, SET_LR,
    CHECK_, UNSCALE, NUM_OPERATIONS
};

static amp_result attempt(twins *t, int operation) {
    amp_optimizer   *opt = &t->opt[DEV];
    const amp_tensor x   = tensor_of(t, 0, DEV);
    amp_status       status;
    amp_grad_stats        stats;
    bool             goes;
    static float     moments[600];
    switch (operation) {
    case PREPARE: return prepare_scaled(opt);
    case FUSED:
    case REDUCED: return fused(opt, t->lr);
    case BEGIN:
        goes = amp_optimizer_begin_step(opt);
        return goes ? AMP_OK : amp_optimizer_end_step(opt);
    case END: return amp_optimizer_end_step(opt);
    case STATUS: return amp_optimizer_status(opt, &status);
    case STATS: return amp_optimizer_stats(opt, 0, &stats);
    case LOSS_SCALE: /* has no result but its value */
        if (amp_optimizer_loss_scale(opt) > 0.0f) return AMP_OK;
        return AMP_ERROR_CUDA;
    case SAVE: return amp_optimizer_save(opt, write_tape, &(tapes[DEV].size = 0, tapes[DEV]));
    case LOAD: return amp_optimizer_load(opt, read_tape, &(tapes[CPU].place = 0, tapes[CPU]));
    case MOMENTS: /* as they are */
        OK(amp_optimizer_moments(&t->opt[CPU], 0, moments, moments + x.n));
        return set_moments(t, DEV, 0, moments);
    case REBIND: return amp_optimizer_rebind(opt, 0, x.weight, x.grad);
    case SET_LR: return amp_optimizer_set_lr(opt, t->lr);
    case CHECK_: return amp_optimizer_check(opt);
    default: return amp_optimizer_unscale(opt);
    }
}

static amp_result alone(void *, double *, size_t, uint32_t *, size_t) { return AMP_OK; } /* one rank */

/* Call number n of an operation fails. False: it has not so many. */
static bool fault(int operation, unsigned long n, cudaError_t error, dice &r) {
    const bool   own   = operation == BEGIN || operation == END || operation >= CHECK_;
    const bool   step  = operation == FUSED || operation == REDUCED; /* a fused one */
    const bool   waits = !step && operation != END && operation < SET_LR;
    const size_t live = emu_live_allocations(), streams = emu_live_streams();
    twins       *t    = &pair;
    amp_result   result;
    bool         reached;
    base = any_setup(own ? OWN : ADAMW, r);
    base.desc.scaler = amp_scaler_desc();
    base.default_stream = base.apart = 0, base.path = PLAIN, base.desc.zero_grad = 0;
    base.watch.every      = base.watch.every > 0; /* histograms are not loaded */
    /* A wait that failed leaves host memory, which may be gone, to a copy; CUDA has finished with
       pageable memory by then, which the emulator has only if it does not put work off. */
    if (waits) base.async = 0;
    if (operation == REDUCED)
        base.reduce_fn = alone;
    base.count = 2;
    for (int i = 0; i < 2; i++) {
        base.tensors[i]      = any_shape(&base.desc, i ? 20000 : 300, AMP_F16, r);
        base.tensors[i].grad = base.tensors[i].weight = 1;
    }
    CHECK(start(t, &base, r));
    new_gradients(t, false, r);
    step_on_cpu(t);
    step_on_device(t);
    save(&t->opt[CPU], &tapes[CPU]); /* to be loaded after a step that failed */
    new_gradients(t, false, r);
    if (operation == PREPARE) {
        amp_optimizer_free(&t->opt[DEV]);
        amp_optimizer_desc d = base.desc;
        d.backend            = &t->backend;
        d.report             = base.watches ? &base.watch : NULL;
        OK(amp_optimizer_init(&t->opt[DEV], &d));
        OK(add_tensors(t, DEV));
    }
    if (operation == END) {
        OK(attempt(t, BEGIN));
        user_steps(t, NULL, t->stream);
    }
    if (operation == UNSCALE) OK(amp_optimizer_check(&t->opt[DEV]));
    const size_t before = emu_live_allocations();
    emu_fail_error = error;
    emu_api_calls  = 0;
    emu_fail_at    = n;
    result         = attempt(t, operation);
    reached        = emu_api_calls >= n;
    emu_fail_at    = 0;
    if (!reached) {
        OK(result);
    } else {
        const bool memory = error == cudaErrorMemoryAllocation && result != AMP_ERROR_CUDA;
        CHECK_EQ_INT(result, memory ? AMP_ERROR_OUT_OF_MEMORY : AMP_ERROR_CUDA);
        CHECK(!memory || operation == PREPARE);
        CHECK_EQ_INT(amp_cuda_code(), error);
        CHECK_EQ_INT(cudaPeekAtLastError(), cudaSuccess);
        CHECK_EQ_U64(emu_live_allocations(), before);
        if (step || operation == BEGIN) {
            tapes[CPU].place = 0;
            OK(amp_optimizer_load(&t->opt[DEV], read_tape, &tapes[CPU]));
        }
        OK(attempt(t, operation));
    }
    if (operation == SAVE) CHECK_EQ_U64(tapes[DEV].size, tapes[CPU].size);
    if (operation == SAVE) CHECK_MEM(tapes[DEV].bytes, tapes[CPU].bytes, tapes[CPU].size);
    if (operation == PREPARE) OK(attempt(t, LOAD));
    step_on_cpu(t);
    if (operation == CHECK_) OK(amp_optimizer_unscale(&t->opt[DEV]));
    if (operation == BEGIN || operation >= CHECK_) user_steps(t, NULL, t->stream);
    if (operation == BEGIN || operation >= CHECK_) OK(amp_optimizer_end_step(&t->opt[DEV]));
    else if (!step && operation != END) step_on_device(t);
    compare(t);
    finish(t);
    CHECK_EQ_U64(emu_live_allocations(), live);
    CHECK_EQ_U64(emu_live_streams(), streams);
    runs++;
    return reached;
}

TEST(faults, "each CUDA call of each operation fails once: it is told, nothing leaks, and a retry "
             "(of a step, after a load) has the right bits") {
    static const unsigned least[NUM_OPERATIONS] = {12, 2, 3, 4, 1, 6, 3, 3, 10, 10, 9, 1, 1, 1, 1};
    const cudaError_t     errors[] = {cudaErrorUnknown, cudaErrorMemoryAllocation};
    dice                  r(27);
    for (int operation = 0; operation < NUM_OPERATIONS; operation++)
        for (int e = 0; e < 2; e++) {
            unsigned long n = 1;
            while (n < 1000 && fault(operation, n, errors[e], r)) n++;
            CHECK(n > least[operation]); /* so many calls have failed */
        }
}

TEST(out_of_memory, "a device without memory: AMP_ERROR_OUT_OF_MEMORY; prepare can be repeated") {
    dice         r(28);
    twins       *t      = &pair;
    const size_t memory = emu_device_memory;
    base                = any_setup(ADAMW, r);
    base.desc.scaler    = amp_scaler_desc();
    base.count          = 1;
    base.tensors[0]     = any_shape(&base.desc, 5000, AMP_F16, r);
    CHECK(start(t, &base, r));
    amp_optimizer_free(&t->opt[DEV]);
    amp_optimizer_desc d = base.desc;
    d.backend            = &t->backend;
    d.report             = base.watches ? &base.watch : NULL;
    OK(amp_optimizer_init(&t->opt[DEV], &d));
    OK(add_tensors(t, DEV));
    emu_device_memory = emu_live_bytes() + 1000;
    CHECK_EQ_INT(amp_optimizer_prepare(&t->opt[DEV]), AMP_ERROR_OUT_OF_MEMORY);
    CHECK_EQ_INT(amp_cuda_code(), cudaErrorMemoryAllocation);
    emu_device_memory = memory;
    OK(prepare_scaled(&t->opt[DEV]));
    new_gradients(t, false, r);
    step_on_cpu(t);
    step_on_device(t);
    compare(t);
    finish(t);
}

/* The functions without an optimizer; number which. What they need is made before. */
struct rooms { buffer x, y, z; amp_backend backend; void *handle; unsigned char *workspace; };

static amp_result attempt_room(rooms *m, int which) {
    amp_scaler   *s = shared_device;
    float        *f = (float *)(void *)m->z.device;
    const product p = {0, 0, 4, 4, 4, 0, 0, 0, 1.0f, 0.0f, AMP_F32, AMP_F32};
    switch (which) {
    case 0: return amp_cuda_cast(m->y.device, AMP_F16, m->x.device, AMP_F32, 64, main_stream);
    case 1: return amp_cuda_cast(m->y.device, AMP_F32, m->x.device, AMP_F32, 64, main_stream);
    case 2: return amp_cuda_scaler_unscale(s, NULL, m->x.device, AMP_F32, 64, main_stream);
    case 3: return amp_cuda_scaler_unscale(s, m->y.device, m->y.device, AMP_F32, 64, main_stream);
    case 4: return amp_cuda_scaler_unscale(s, f, m->x.device, AMP_F32, 64, main_stream);
    case 5: return amp_cuda_scaler_update(s, main_stream);
    case 6: return amp_cuda_scale_loss(m->y.device, AMP_F32, 64, &s->scale, main_stream);
    case 7: return amp_cuda_backend(&m->backend, main_stream, m->handle);
    case 8: m->backend.workspace = NULL; break;
    case 10:
        return gemm_bias(&m->backend, 0, 0, 4, 4, 4, 1.0f, m->x.device, AMP_F32, 0,
                             m->y.device, AMP_F32, 0, 0.0f, m->z.device, AMP_F32, 0, m->x.device,
                             1);
    default: m->backend.workspace = m->workspace, m->backend.workspace_size = 1 << 20; break;
    }
    return multiply(&m->backend, &p, m->x.device, m->y.device, m->z.device);
}

TEST(faults_in_rooms, "each CUDA and cuBLAS call of casts, scaler twins and products fails once, "
                      "without effect, and is told") {
    static const int         calls[] = {2, 1, 2, 2, 2, 2, 2, 83, 3, 3, 19};
    static const amp_backend none    = {NULL, NULL, NULL, NULL, 0};
    dice             r(29);
    rooms            m;
    amp_scaler       s;
    m.x = make_buffer(256, r), m.y = make_buffer(256, r), m.z = make_buffer(256, r);
    m.handle    = blas();
    m.workspace = on_device(1 << 20);
    OK(amp_scaler_init(&s, NULL));
    s.found_inf = 1;
    upload(shared_device, &s, sizeof s);
    OK(attempt_room(&m, 7));
    for (int which = 0; which < 11; which++) {
        unsigned long n = 0;
        amp_result    result;
        for (;;) {
            emu_fail_error = cudaErrorUnknown;
            emu_api_calls  = 0;
            emu_fail_at    = ++n;
            if (which == 7) memset(&m.backend, 0xa5, sizeof m.backend);
            result         = attempt_room(&m, which);
            emu_fail_at    = 0;
            if (emu_api_calls < n) break;
            if (result == AMP_ERROR_CUBLAS)
                CHECK_EQ_INT(amp_cuda_code(), CUBLAS_STATUS_EXECUTION_FAILED);
            else
                CHECK_EQ_INT(amp_cuda_code(), cudaErrorUnknown);
            const bool cuda = which < 7 || (which == 7 && n > 2) || (which == 8 && n == 1);
            CHECK_EQ_INT(result, cuda ? AMP_ERROR_CUDA : AMP_ERROR_CUBLAS);
            CHECK_EQ_INT(cudaPeekAtLastError(), cudaSuccess);
            CUDA(cudaDeviceSynchronize());
            if (which == 7) CHECK_MEM(&m.backend, &none, sizeof none); /* what init refuses is zeroed */
            if (which < 8) {
                same_buffer("x", &m.x, AMP_F32, false);
                same_buffer("y", &m.y, AMP_F32, false);
            }
            CHECK_MEM(&s, from_device(shared_device, sizeof s), sizeof s);
        }
        OK(result);
        CHECK_EQ_INT(n - 1, calls[which]);
        upload(m.y.device, m.y.host, 256);
        upload(shared_device, &s, sizeof s);
    }
    drop(&m.x);
    drop(&m.y);
    drop(&m.z);
    CUDA(cudaFree(m.workspace));
    CHECK_EQ_INT(cublasDestroy((cublasHandle_t)m.handle), CUBLAS_STATUS_SUCCESS);
}

#endif /* CUDA_EMU_H */

/* A test that hangs ends the process after AMP_TEST_SECONDS, and one behind which the device is lost
   (a sticky error: all that comes later would fail) ends it, too: gpu.sh goes on behind it in
   another process. Tests of the runner plant all that by AMP_PLANT="HOW NAME". */
static void plant(const char *name) {
    const char *planted = getenv("AMP_PLANT"), *which = planted ? strchr(planted, ' ') : NULL;
    if (!which || strcmp(which + 1, name) != 0) return;
    printf("# planted: %s\n", planted);
    fflush(stdout);
    for (; planted[0] == 'h'; pause()) { /* hang */
    }
    if (planted[0] == 'c') abort();
    if (planted[0] == 's') lost = cudaErrorIllegalAddress; /* sticky */
    if (planted[0] == 'w' && getenv("AMP_FIRST")) CHECK(!"words of a process of its own");
}
static void (*test_alone)(void);
static void run_planted(void) {
    plant(test_state.name);
    test_alone();
}
static void run_alone(const char *name, const char *text, void (*function)(void)) {
    const char *seconds = getenv("AMP_TEST_SECONDS");
    const int   failed = test_state.num_failed, done = failed + test_state.num_passed;
    alarm(seconds ? (unsigned)atoi(seconds) : 0u);
    test_alone = function;
    test_run(name, text, run_planted);
    alarm(0);
    if (done == test_state.num_failed + test_state.num_passed) return;
    if (cudaDeviceSynchronize() != cudaSuccess) {
        (void)cudaGetLastError();
        lost = cudaDeviceSynchronize();
    }
    if (lost == cudaSuccess) return;
    printf("FAIL %s: the device is lost: %s\n", name, cudaGetErrorString(lost));
    exit(3);
}
#undef RUN
#define RUN(name) run_alone(#name, test_text_##name, test_##name)

int main(int argc, char **argv) {
    test_begin(argc, argv);
    program_path = argv[0];
    const cudaError_t error = cudaStreamCreate(&main_stream);
    if (error != cudaSuccess) {
        printf("FAIL main: no CUDA stream: %s\n", cudaGetErrorString(error));
        test_state.num_failed++;
        return test_end();
    }
    CUDA(cudaStreamCreate(&other_stream));
    shared_device = (amp_scaler *)(void *)on_device(sizeof(amp_scaler));
    set_bytes(shared_device, 0, sizeof(amp_scaler));
    RUN(own_steps);
    RUN(adamw_steps);
    RUN(sgd_steps);
    RUN(lists);
    RUN(flat);
    RUN(storage_formats);
    RUN(one_check);
    RUN(moments_handed);
    RUN(group_exponents);
    RUN(moments_at_ends);
    RUN(large_masters);
    RUN(f16_overflows);
    RUN(many_chunks);
    RUN(long_runs);
    RUN(reports);
    RUN(every_pattern);
    RUN(every_index);
    RUN(lr_by_kernel);
    RUN(shared_scaler);
    RUN(ranks);
    RUN(few_rows);
    RUN(segments_of_last_thread);
    RUN(rows_not_there);
    RUN(spent_weights);
    RUN(capture);
    RUN(other_stream);
    RUN(rebind);
    RUN(rebind_all);
    RUN(frozen);
    RUN(refresh);
    RUN(casts);
    RUN(cast_rows);
    RUN(every_float);
    RUN(scaler_twins);
    RUN(bf16_in_place);
    RUN(arguments);
    RUN(gemm);
    RUN(gemm_errors);
    RUN(gemm_bias);
    RUN(huge_arrays);
    RUN(huge_arrays_split);
    RUN(huge_matrices);
    RUN(races);
    RUN(grids);
    RUN(unscaled_loss);
    RUN(captured_step);
    RUN(nothing_waits);
    RUN(first_met);
#ifdef CUDA_EMU_H
    RUN(launches);
    RUN(per_thread);
#ifdef EMU_TRAFFIC /* the kernels are compiled so that it can count */
    RUN(traffic);
    RUN(traffic_of_states);
    RUN(traffic_of_arrays);
    RUN(traffic_of_atomics);
#endif
    RUN(faults);
    RUN(out_of_memory);
    RUN(faults_in_rooms);
#else
    printf("skip launches, traffic, faults: only the emulator counts and refuses\n");
    test_state.num_skipped++;
#endif
    if (runs)
        printf("%s: %lu runs, %llu differing bytes\n", EMULATED ? "emulated" : "device", runs,
               differing);
    return test_end();
}
