/* any_cuda.cu - amp_kernels.cu beside the CPU, on a GPU, the emulator, a simulator

   It needs the least that there is: cudaMalloc, cudaMemset, cudaMemcpy, and launches, all on the
   default stream. No cuBLAS, graph, capture, event, or second stream. A fixed list of cases, by
   name, writes every number that it makes to a file. The same program without CUDA (ANY_CPU)
   writes the CPU's; cmp decides, and any_differs.c names the first number that differs.

       nvcc -O2 -std=c++14 -arch=native -I. tests/gpu/any_cuda.cu amp_kernels.cu \
           -lcublas -lcublasLt -o any_cuda
       c++ -O2 -std=c++14 -I. -DANY_CPU -x c++ tests/gpu/any_cuda.cu -o any_cpu
       ./any_cuda gpu && ./any_cpu cpu && cmp cpu gpu

   usage: any_cuda FILE [CASE...]    or any_cuda --list. With AMPI_NO_STORAGE, as amp_kernels.cu may
   be compiled for tests, there are no cases of storage. A call that fails ends it with status 2. */

#define AMP_IMPLEMENTATION
#include "amp.h"

#ifndef ANY_CPU
#include <cuda_runtime.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

static const char *name = "none"; /* of the case */
static int         step;
static FILE       *out;
static unsigned long long written;

#define MUST(call) must((int)(call), #call, __LINE__)
static void must(int error, const char *call, int line) {
    if (error == 0) return;
    fprintf(stderr, "any_cuda: %s step %d: line %d: %s is %d\n", name, step, line, call, error);
    exit(2);
}

/* ------------------------------------------------------------------------------- a machine */

#ifdef ANY_CPU
#define __global__
static void *allocate(size_t bytes) { return calloc(bytes, 1); }
static void  release(void *p) { free(p); }
static void  put(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
static void  get(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
static void  make_backend(amp_backend *b) { MUST(amp_cpu_backend(b)); }
#else
static void *allocate(size_t bytes) {
    void *p = NULL;
    MUST(cudaMalloc(&p, bytes));
    MUST(cudaMemset(p, 0, bytes));
    return p;
}
static void release(void *p) { MUST(cudaFree(p)); }
static void put(void *to, const void *from, size_t bytes) {
    if (bytes) MUST(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
}
static void get(void *to, const void *from, size_t bytes) {
    if (bytes) MUST(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
}
static void make_backend(amp_backend *b) { MUST(amp_cuda_backend(b, NULL, NULL)); }
#endif

/* What has a twin of its own on each machine. */
static void cast(void *dst, amp_dtype to, const void *src, amp_dtype from, size_t n) {
#ifdef ANY_CPU
    MUST(amp_cast(dst, to, src, from, n));
#else
    MUST(amp_cuda_cast(dst, to, src, from, n, NULL));
#endif
}
static void unscale(amp_scaler *s, void *dst, const void *src, amp_dtype type, size_t n) {
#ifdef ANY_CPU
    MUST(amp_scaler_unscale(s, dst, src, type, n));
#else
    MUST(amp_cuda_scaler_unscale(s, dst, src, type, n, NULL));
#endif
}
static void update(amp_scaler *s) {
#ifdef ANY_CPU
    MUST(amp_scaler_update(s));
#else
    MUST(amp_cuda_scaler_update(s, NULL));
#endif
}
static void scale_loss(void *x, amp_dtype type, size_t n, const float *scale) {
#ifdef ANY_CPU
    for (size_t i = 0; i < n; i++) {
        float     *wide = (float *)x + i;
        amp_f16   *half = (amp_f16 *)x + i;
        amp_bf16  *bf16 = (amp_bf16 *)x + i;
        if (type == AMP_F32) *wide = *wide * *scale;
        else if (type == AMP_F16) *half = amp_f32_to_f16(amp_f16_to_f32(*half) * *scale);
        else *bf16 = amp_f32_to_bf16(amp_bf16_to_f32(*bf16) * *scale);
    }
#else
    MUST(amp_cuda_scale_loss(x, type, n, scale, NULL));
#endif
}

/* Somebody's optimizer, which looks at the gate. Rounded once, since an eighth is exact. */
static __global__ void own_kernel(const amp_gate *gate, float *w, const float *g, size_t n) {
#ifdef ANY_CPU
    const size_t first = 0, apart = 1;
#else
    const size_t first = blockIdx.x * blockDim.x + threadIdx.x, apart = gridDim.x * blockDim.x;
#endif
    if (gate->skip) return;
    for (size_t i = first; i < n; i += apart) w[i] = w[i] - 0.125f * g[i];
}
static void own_step(const amp_gate *gate, float *w, const float *g, size_t n) {
#ifdef ANY_CPU
    own_kernel(gate, w, g, n);
#else
    own_kernel<<<3, 64>>>(gate, w, g, n);
    MUST(cudaGetLastError());
#endif
}

/* --------------------------------------------------------------------------------- numbers */

static uint32_t state; /* begins with the name of the case */
static uint32_t next_random(void) {
    state = state * 1664525u + 1013904223u;
    return state >> 8;
}

static size_t size_of(amp_dtype type) { return type == AMP_F32 ? 4 : 2; }

static void store(void *p, amp_dtype type, size_t i, uint32_t bits) { /* the upper ones of type */
    if (type == AMP_F32) memcpy((char *)p + 4 * i, &bits, 4);
    else bits >>= 16, memcpy((char *)p + 2 * i, &bits, 2); /* little-endian, as every GPU is */
}

/* Of about 2^-10, of both signs, with zeros and subnormal ones. */
static void fill(void *p, amp_dtype type, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const uint32_t u = next_random(), low = next_random() << 8 ^ next_random();
        uint32_t       e = 110 + u % 10, bits;
        if (type == AMP_F16) bits = (e - 104) << 26 | (low & 0x3ffffffu);
        else bits = e << 23 | (low & 0x7fffffu);
        if (u % 41 == 0) bits &= type == AMP_F16 ? 0x3ffffffu : 0x7fffffu;
        if (u % 37 == 0) bits = 0;
        store(p, type, i, bits | (u & 1u << 20) << 11);
    }
}
static uint32_t infinity_of(amp_dtype type) { return type == AMP_F16 ? 0x7c000000u : 0x7f800000u; }

/* ------------------------------------------------------------------------------ what is written */

static void write(const void *p, size_t bytes) {
    if (fwrite(p, 1, bytes, out) != bytes) MUST(2);
    written += bytes;
}
/* A line, "CASE step STEP WHAT I: SIZE x N", and N numbers of SIZE bytes; or those in the backend's
   memory. */
static void tell(const char *what, int i, unsigned size, const void *p, size_t n) {
    char      line[160];
    const int length = snprintf(line, sizeof line, "%s step %d %s %d: %u x %llu\n", name, step,
                                what, i, size, (unsigned long long)n);
    write(line, (size_t)length);
    write(p, n * size);
}
static void tell_from(const char *what, int i, unsigned size, const void *p, size_t n) {
    std::vector<char> copy(n * size + 1);
    get(copy.data(), p, n * size);
    tell(what, i, size, copy.data(), n);
}

/* ------------------------------------------------------------------------------------ steps */

enum { /* what differs in a case */
    MANY       = 1 << 0,  /* tensors, all small: each warp checks a chunk                        */
    LARGE      = 1 << 1,  /* the fewest that B shares in quarters of a chunk                     */
    BY_BYTES   = 1 << 2,  /* all arrays at odd addresses                                         */
    OPEN       = 1 << 3,  /* not clipped                                                         */
    ZEROED     = 1 << 4,  /* zero_grad                                                           */
    MIXED      = 1 << 5,  /* gradients of all types                                              */
    WIDE       = 1 << 6,  /* model copies of fp32, which are rare                                */
    NO_MASTER  = 1 << 7,  /* weights are given as models                                         */
    UNLIKE     = 1 << 8,  /* tensors with rates of their own, fp32 alone, frozen                 */
    NESTEROV   = 1 << 9,
    PLAIN_SGD  = 1 << 10,
    BESIDE_OWN = 1 << 11, /* a tensor of the user's own                                          */
    GATED      = 1 << 12, /* own: check and unscale, instead of begin_step                       */
    IN_PLACE   = 1 << 13, /* own: unscaled onto the gradient                                     */
    REBOUND    = 1 << 14, /* gradients move, one and then all                                    */
    REFRESHED  = 1 << 15, /* masters are written, then refresh                                   */
    BY_POINTER = 1 << 16, /* the learning rate, in step_graph                                    */
    ASKED      = 1 << 17, /* found_inf is written before a check                                 */
    RESUMED    = 1 << 18, /* another optimizer goes on from the saved state                      */
    SHARED     = 1 << 19, /* scaler                                                              */
    HANDED     = 1 << 20, /* moments are set                                                     */
    REPORTED   = 1 << 21, /* every second iteration is sampled                                   */
    REDUCED    = 1 << 22, /* ranks agree between check and decision                              */
    VAST       = 1 << 23, /* the norm's squares overflow                                         */
    TINY       = 1 << 24, /* and underflow                                                       */
    SPOILT     = 1 << 25, /* everything is NaN, once                                             */
    DISABLED   = 1 << 26, /* scaler                                                              */
    ROWS       = 1 << 27, /* the first tensor's gradients are of few rows                        */
    MANY_ROWS  = 1 << 28, /* more than the blocks can count each by itself                       */
    BAD_ROW    = 1 << 29
};

struct test {
    const char *name;
    void (*run)(const test &);
    amp_kind    kind;
    amp_dtype   grad, copy; /* gradients, model copies */
    unsigned    flags;
    int         row; /* of storage */
    amp_preset  preset;
};

#define ROW_NUMBER(name, master, moments) ROW_##master##_##moments,
enum { ROW_NONE, AMP_STORAGE_LIST(ROW_NUMBER) NUM_ROWS };
#define STORAGE_ROW(name, master, moments) {AMP_FORMAT_##master, AMP_FORMAT_##moments},
static const amp_storage storages[] = {AMP_STORAGE_LIST(STORAGE_ROW)};

struct array { /* in the backend's memory */
    char *begin, *at;
    array() : begin(NULL), at(NULL) {}
    void make(size_t bytes, size_t offset) {
        begin = (char *)allocate(bytes + 64);
        at    = begin + offset;
    }
};

struct tensor {
    size_t     n, given; /* elements, and those of its gradient: of few rows */
    amp_dtype  grad_type;
    array      weight, grad, model, rows, num_rows;
    amp_rows   few;
    amp_tensor t;
};

struct training {
    const test          &of;
    amp_backend          backend;
    amp_scaler          *shared;
    std::vector<tensor>  tensors;
    amp_optimizer        opt;
    explicit training(const test &t) : of(t), backend(), shared(NULL), tensors(), opt() {}
    bool has(unsigned flag) const { return (of.flags & flag) != 0; }
};

/* A rank of two: the other one has as large a norm, in each third check something not finite, and
   asks for a skip in the one behind. */
static int meetings;
static __global__ void other_rank(double *sums, size_t num_sums, uint32_t *maxima, int meeting) {
    for (size_t i = 0; i < num_sums; i++) sums[i] = sums[i] * 2.0;
    if (meeting % 3 == 1) maxima[0] |= 1u;
}
static amp_result meet(void *, double *sums, size_t num_sums, uint32_t *maxima, size_t) {
    meetings++;
#ifdef ANY_CPU
    other_rank(sums, num_sums, maxima, meetings);
    return AMP_OK;
#else
    other_rank<<<1, 1>>>(sums, num_sums, maxima, meetings);
    return cudaGetLastError() == cudaSuccess ? AMP_OK : AMP_ERROR_CUDA;
#endif
}

static const amp_report_desc every_second = {2};

static void add_tensors(training *r) {
    static const size_t usual[] = {700, 16384 + 37, 133, 0, 1};
    const size_t count = r->has(MANY) ? 600 : r->has(LARGE) ? 264 : 5;
    enum { LENGTH = 6 };
    r->tensors.resize(count);
    for (size_t i = 0; i < count; i++) {
        tensor      &x = r->tensors[i];
        const size_t unaligned = r->has(BY_BYTES) ? 1 : 0;
        x.n         = r->has(MANY) ? 1 + i % 40 : r->has(LARGE) ? 8200 + 24 * i : usual[i];
        x.grad_type = r->has(MIXED) ? (amp_dtype)(i % 3) : r->of.grad;
        if (r->has(ROWS | MANY_ROWS) && i == 0) {
            x.n = r->has(MANY_ROWS) ? 9000 * LENGTH : 300 * LENGTH;
            x.few.row_length = LENGTH;
            x.few.max_rows   = r->has(MANY_ROWS) ? 8300 : 150;
            x.rows.make(4 * x.few.max_rows, 0);
            x.num_rows.make(4, 0);
            x.few.rows     = (const uint32_t *)(const void *)x.rows.at;
            x.few.num_rows = (uint32_t *)(void *)x.num_rows.at;
        }
        x.given = x.few.max_rows ? x.few.max_rows * LENGTH : x.n;
        /* the third begins an element behind a multiple of 64 */
        x.weight.make(4 * x.n, i == 2 ? 4 : unaligned);
        x.grad.make(size_of(x.grad_type) * x.given, i == 2 ? size_of(x.grad_type) : unaligned);
        memset(&x.t, 0, sizeof x.t);
        std::vector<float> values(x.n + 1);
        for (size_t k = 0; k < x.n; k++)
            values[k] = ((float)next_random() / 8388608.0f - 1.0f) * 0.05f;
        put(x.weight.at, values.data(), 4 * x.n);
        x.t.n         = x.n;
        x.t.weight    = (float *)(void *)x.weight.at;
        x.t.grad      = x.grad.at;
        x.t.grad_type = x.grad_type;
        if (x.few.max_rows) x.t.rows = &x.few;
        if (r->has(WIDE | NO_MASTER)) {
            x.t.model_type = r->has(WIDE) ? AMP_F32 : r->of.copy;
            x.model.make(4 * x.n, i == 2 ? 4 : 0);
            x.t.model = x.model.at;
        }
        if (r->has(NO_MASTER)) {
            cast(x.model.at, r->of.copy, x.weight.at, AMP_F32, x.n);
            x.t.weight = NULL;
        }
        if (r->has(BESIDE_OWN)) x.t.own = i == 1;
        if (!r->has(UNLIKE)) continue;
        x.t.lr_scale     = i == 1 ? 0.5f : 0.0f;
        x.t.weight_decay = i == 2 ? 0.25f : 0.0f;
        x.t.keep_fp32    = i == 0;
        x.t.frozen       = i == 4;
    }
}

static void begin(training *r) {
    amp_optimizer_desc d;
    memset(&d, 0, sizeof d);
    d.backend                = &r->backend;
    d.dtype                  = r->of.copy;
    d.kind                   = r->of.kind;
    d.max_norm               = r->has(OPEN) ? 0.0f : 0.05f;
    d.weight_decay           = 0.01f;
    d.zero_grad              = r->has(ZEROED);
    d.unscale_in_place       = r->has(IN_PLACE);
    d.seed                   = 42;
    d.scaler.init_scale      = r->has(VAST) ? 0.5f : 1024.0f;
    d.scaler.growth_interval = r->of.preset == AMP_PRESET_STATIC ? 0 : 2;
    d.scaler.disabled        = r->has(DISABLED);
    d.scaler.preset          = r->of.preset;
    d.shared_scaler          = r->shared;
    d.momentum               = r->of.kind == AMP_KIND_SGD && !r->has(PLAIN_SGD) ? 0.9 : 0.0;
    d.nesterov               = r->has(NESTEROV);
    d.storage                = r->of.row ? &storages[r->of.row - 1] : NULL;
    d.report                 = r->has(REPORTED) ? &every_second : NULL;
    d.reduce_fn              = r->has(REDUCED) ? meet : NULL;
    if (r->shared) memset(&d.scaler, 0, sizeof d.scaler);
    if (r->of.kind == AMP_KIND_OWN) d.weight_decay = 0.0f;
    MUST(amp_optimizer_init(&r->opt, &d));
    for (tensor &x : r->tensors) MUST(amp_optimizer_add(&r->opt, &x.t));
    MUST(amp_optimizer_prepare(&r->opt));
    (void)amp_optimizer_loss_scale_ptr(&r->opt);
}

/* Of few rows: which ones, some of them twice; every third step none. */
static void new_rows(training *r, tensor *x) {
    std::vector<uint32_t> rows(x->few.max_rows);
    const uint32_t        all = (uint32_t)(x->n / x->few.row_length);
    uint32_t              count = step % 3 == 2 ? 0 : (uint32_t)rows.size() - (step % 2 ? 0 : 13);
    for (uint32_t &row : rows) row = next_random() % (next_random() % 4 ? all : 9);
    if (r->has(BAD_ROW) && step == 1) rows[70] = all;
    put(x->rows.at, rows.data(), 4 * rows.size());
    put(x->num_rows.at, &count, 4);
}

/* With a disabled scaler all is finite: a NaN that a step computes has any sign. */
static void new_gradients(training *r) {
    const int now = r->has(DISABLED) ? 0 : step;
    for (size_t i = 0; i < r->tensors.size(); i++) {
        tensor           &x    = r->tensors[i];
        const amp_dtype   type = x.grad_type;
        std::vector<char> g(4 * x.given + 4);
        fill(g.data(), type, x.given);
        const uint32_t inf = infinity_of(type), nan = inf | 0x80710000u;
        if (now == 2 && i == 1) store(g.data(), type, x.given / 2, inf);
        if (now == 4 && i == 2) store(g.data(), type, x.given / 3, nan);
        for (size_t k = 0; now == 5 && k < x.given; k++) /* nearly nothing: not clipped */
            store(g.data(), type, k, k % 91 == 3 ? inf / 2 : 0);
        for (size_t k = 0; r->has(VAST) && now < 2 && k < x.given; k += 5)
            store(g.data(), type, k, inf - 0x02000000u);
        for (size_t k = 0; r->has(TINY) && now < 2 && k < x.given; k++)
            store(g.data(), type, k, k % 3 ? 0x00010000u * (uint32_t)(k % 7) : 0);
        for (size_t k = 0; r->has(SPOILT) && now == 1 && k < x.given; k++)
            store(g.data(), type, k, inf | 0x00010000u * (uint32_t)(k % 50));
        put(x.grad.at, g.data(), size_of(type) * x.given);
        if (x.few.max_rows) new_rows(r, &x);
    }
}

static std::vector<char> saved;
static size_t            loaded;
static bool save_bytes(void *, const void *p, size_t n) {
    saved.insert(saved.end(), (const char *)p, (const char *)p + n);
    return true;
}
static bool load_bytes(void *, void *p, size_t n) {
    if (n > saved.size() - loaded) return false;
    memcpy(p, saved.data() + loaded, n);
    loaded += n;
    return true;
}
static void save(training *r) {
    saved.clear();
    MUST(amp_optimizer_save(&r->opt, save_bytes, NULL));
}

/* What comes before a step in some cases. */
static void between(training *r) {
    tensor *x = &r->tensors[1];
    if (r->has(REBOUND) && step == 3) {
        x->grad.make(size_of(x->grad_type) * x->given, 32);
        MUST(amp_optimizer_rebind(&r->opt, 1, NULL, x->grad.at));
    }
    if (r->has(REBOUND) && step == 4) {
        std::vector<void *>  grads;
        std::vector<float *> weights;
        for (tensor &y : r->tensors) {
            std::vector<char> old(4 * y.n + 1);
            get(old.data(), y.weight.at, 4 * y.n);
            y.grad.make(size_of(y.grad_type) * y.given, 4);
            y.weight.make(4 * y.n, 8);
            put(y.weight.at, old.data(), 4 * y.n);
            grads.push_back(y.grad.at);
            weights.push_back((float *)(void *)y.weight.at);
        }
        MUST(amp_optimizer_rebind_all(&r->opt, weights.data(), grads.data()));
    }
    for (size_t i = 0; r->has(REFRESHED) && step == 2 && i < r->tensors.size(); i++) {
        tensor           *y = &r->tensors[i];
        std::vector<char> values(4 * y->n);
        fill(values.data(), AMP_F32, y->n);
        put(y->weight.at, values.data(), 4 * y->n);
        if (r->of.row) MUST(amp_optimizer_rebind(&r->opt, (int)i, y->t.weight, NULL));
    }
    if (r->has(REFRESHED) && step == 2) MUST(amp_optimizer_refresh(&r->opt));
    if (r->has(ASKED) && step == 1) {
        const uint32_t yes = 5;
        put(&amp_optimizer_scaler(&r->opt)->found_inf, &yes, sizeof yes);
    }
    if (r->has(RESUMED) && step == 3) { /* behind a skip */
        save(r);
        amp_optimizer_free(&r->opt);
        begin(r);
        loaded = 0;
        MUST(amp_optimizer_load(&r->opt, load_bytes, NULL));
    }
    if (r->has(HANDED) && step == 2) {
        const bool         two = r->of.kind == AMP_KIND_ADAMW;
        std::vector<float> m(x->n), v(x->n);
        MUST(amp_optimizer_moments(&r->opt, 1, m.data(), two ? v.data() : NULL));
        for (size_t k = 0; k < x->n; k++) m[k] *= 0.5f, v[k] *= 4.0f;
        MUST(amp_optimizer_set_moments(&r->opt, 1, m.data(), two ? v.data() : NULL));
    }
}

static void own_tensors(training *r) {
    for (int i = 0; i < (int)r->tensors.size(); i++)
        if (amp_optimizer_grad(&r->opt, i) && r->tensors[(size_t)i].n)
            own_step(amp_optimizer_gate(&r->opt), amp_optimizer_master(&r->opt, i),
                     amp_optimizer_grad(&r->opt, i), r->tensors[(size_t)i].n);
}

static void one_step(training *r) {
    const float lr = 0.01f;
    amp_optimizer *opt = &r->opt;
    if (r->has(BY_POINTER)) {
        const float other = 0.02f;
        if (step == 0) MUST(amp_optimizer_set_lr(opt, lr));
        if (step == 3) put(amp_optimizer_lr_ptr(opt), &other, sizeof other);
        MUST(amp_optimizer_step_graph(opt));
    } else if (r->has(GATED)) {
        MUST(amp_optimizer_check(opt));
        MUST(amp_optimizer_unscale(opt));
        own_tensors(r);
        MUST(amp_optimizer_end_step(opt));
    } else if (r->of.kind == AMP_KIND_OWN || r->has(BESIDE_OWN)) {
        if (r->of.kind != AMP_KIND_OWN) MUST(amp_optimizer_set_lr(opt, lr));
        if (amp_optimizer_begin_step(opt)) own_tensors(r);
        MUST(amp_optimizer_end_step(opt));
    } else {
        MUST(amp_optimizer_step(opt, lr));
    }
    if (r->shared) update(r->shared);
}

static void tell_report(training *r) {
    const size_t      behind = offsetof(amp_tensor_report, overflows);
    amp_report        report;
    amp_iteration     history[AMP_HISTORY];
    amp_tensor_report of;
    size_t            count = AMP_HISTORY;
    memset(&report, 0, sizeof report); /* also what lies between members */
    memset(history, 0, sizeof history);
    memset(&of, 0, sizeof of);
    MUST(amp_optimizer_report(&r->opt, &report));
    tell("report", 0, 4, &report, sizeof report / 4);
    MUST(amp_optimizer_history(&r->opt, history, &count));
    tell("history", 0, 4, history, count * sizeof *history / 4);
    for (int i = 0; i < (int)r->tensors.size(); i++) {
        MUST(amp_optimizer_report_tensor(&r->opt, i, &of));
        tell("report of tensor", i, 8, &of.overflows, (sizeof of - behind) / 8);
    }
}

#define NUMBER(of, member, i) tell(#member, i, sizeof (of).member, &(of).member, 1)

static void tell_step(training *r) {
    amp_status s;
    if (r->has(REPORTED)) tell_report(r);
    MUST(amp_optimizer_status(&r->opt, &s));
    NUMBER(s, norm, 0), NUMBER(s, clip_factor, 0), NUMBER(s, loss_scale, 0), NUMBER(s, did_step, 0);
    NUMBER(s, found_inf, 0), NUMBER(s, stuck, 0), NUMBER(s, steps, 0), NUMBER(s, skipped, 0);
    NUMBER(s, skipped_in_a_row, 0), NUMBER(s, missed_updates, 0), NUMBER(s, f16_overflows, 0);
    tell_from("gate", 0, 4, amp_optimizer_gate(&r->opt), sizeof(amp_gate) / 4);
    tell_from("scaler", 0, 4, amp_optimizer_scaler(&r->opt), sizeof(amp_scaler) / 4);
    for (int i = 0; i < (int)r->tensors.size(); i++) {
        const tensor  &x = r->tensors[(size_t)i];
        amp_grad_stats g;
        const void    *master = amp_optimizer_master(&r->opt, i);
        const void    *model  = amp_optimizer_model(&r->opt, i);
        const bool     wide   = r->has(WIDE) || r->of.copy == AMP_F32;
        if (x.t.frozen) continue;
        MUST(amp_optimizer_stats(&r->opt, i, &g));
        NUMBER(g, nonfinite, i), NUMBER(g, nan, i), NUMBER(g, first_nonfinite, i);
        NUMBER(g, zeros, i), NUMBER(g, max_finite, i), NUMBER(g, bad_row, i);
        if (master) tell_from("master", i, 4, master, x.n);
        if (model != master) tell_from("model", i, wide ? 4 : 2, model, x.n);
        if (r->has(ZEROED | IN_PLACE))
            tell_from("grad", i, (unsigned)size_of(x.grad_type), x.grad.at, x.given);
    }
}

static void end(training *r) {
    const bool v = r->of.kind == AMP_KIND_ADAMW;
    const bool m = r->of.kind != AMP_KIND_OWN && !r->has(PLAIN_SGD);
    for (int i = 0; i < (int)r->tensors.size(); i++) {
        const tensor      &x = r->tensors[(size_t)i];
        std::vector<float> first(x.n + 1), second(x.n + 1);
        if (x.t.frozen || x.t.own || !m) continue;
        MUST(amp_optimizer_moments(&r->opt, i, first.data(), v ? second.data() : NULL));
        tell("first moments", i, 4, first.data(), x.n);
        tell("second moments", i, 4, second.data(), x.n);
    }
    save(r);
    tell("state", 0, 1, saved.data(), saved.size());
    amp_optimizer_free(&r->opt);
    for (tensor &x : r->tensors) /* what rebind replaced stays */
        for (array *a : {&x.weight, &x.grad, &x.model, &x.rows, &x.num_rows})
            if (a->begin) release(a->begin);
}

static void steps(const test &t) {
    training r(t);
    make_backend(&r.backend);
    meetings = 0;
    if (r.has(SHARED)) {
        amp_scaler s;
        MUST(amp_scaler_init(&s, NULL));
        s.growth_interval = 2;
        r.shared = (amp_scaler *)allocate(sizeof s);
        put(r.shared, &s, sizeof s);
    }
    add_tensors(&r);
    begin(&r);
    for (step = 0; step < (r.has(LARGE) ? 2 : 6); step++) {
        between(&r);
        new_gradients(&r);
        one_step(&r);
        tell_step(&r);
    }
    end(&r);
    if (r.shared) release(r.shared);
}

/* ------------------------------------------------------------------------------- single arrays */

/* grad is converted to copy, at all offsets within 16 bytes; flags: in place. */
static void casts(const test &t) {
    static const size_t counts[] = {0, 1, 63, 2500, 9001};
    for (size_t n : counts)
        for (size_t offset = 0; offset < 5; offset++) {
            array             src, dst;
            std::vector<char> x(4 * n + 4);
            fill(x.data(), t.grad, n);
            if (n > 2) store(x.data(), t.grad, n / 2, infinity_of(t.grad) | 0x80230000u);
            if (n > 2) store(x.data(), t.grad, n / 3, infinity_of(t.grad));
            src.make(4 * n, offset * size_of(t.grad));
            dst.make(4 * n, offset % 3 * size_of(t.copy));
            put(src.at, x.data(), size_of(t.grad) * n);
            if (t.flags & IN_PLACE) dst.at = src.at;
            cast(dst.at, t.copy, src.at, t.grad, n);
            step = (int)n;
            tell_from("cast", (int)offset, (unsigned)size_of(t.copy), dst.at, n);
            release(src.begin), release(dst.begin);
        }
}

/* All 65536 patterns of a 16-bit type, or as many of fp32 around where bf16 rounds. */
static void patterns(const test &t) {
    const size_t      n = 65536;
    std::vector<char> x(4 * n);
    array             src, dst;
    for (uint32_t i = 0; i < n; i++)
        store(x.data(), t.grad, i, i << 16 | (i % 3 ? next_random() & 0xffffu : 0x8000u));
    src.make(4 * n, 0), dst.make(4 * n, 0);
    put(src.at, x.data(), size_of(t.grad) * n);
    cast(dst.at, t.copy, src.at, t.grad, n);
    tell_from("cast", 0, (unsigned)size_of(t.copy), dst.at, n);
    release(src.begin), release(dst.begin);
}

/* The scaler's twins, in steps of which some overflow. OPEN: only checked. */
static void scaler(const test &t) {
    const size_t    n = 4099;
    amp_scaler_desc d;
    amp_scaler      s, *on = (amp_scaler *)allocate(sizeof s);
    memset(&d, 0, sizeof d);
    if (t.preset != AMP_PRESET_STATIC && t.preset != AMP_PRESET_NONE) d.growth_interval = 2;
    d.disabled        = (t.flags & DISABLED) != 0;
    d.preset          = t.preset;
    MUST(amp_scaler_init(&s, &d));
    put(on, &s, sizeof s);
    for (step = 0; step < 40; step++) {
        array             src, dst;
        std::vector<char> x(4 * n);
        const size_t      count = step % 5 == 4 ? 0 : n - (size_t)step;
        fill(x.data(), t.grad, count);
        if (step % 4 == 1 || step > 30)
            store(x.data(), t.grad, count / 2, infinity_of(t.grad) | 0x00770000u);
        src.make(4 * n, (size_t)(step % 3) * size_of(t.grad));
        dst.make(4 * n, 4);
        put(src.at, x.data(), size_of(t.grad) * count);
        char *const to = t.flags & OPEN ? NULL : t.flags & IN_PLACE ? src.at : dst.at;
        unscale(on, to, src.at, t.grad, count);
        const unsigned size = to == src.at ? (unsigned)size_of(t.grad) : 4;
        if (to) tell_from("unscaled", 0, size, to, count);
        update(on);
        tell_from("scaler", 0, 4, on, sizeof s / 4);
        release(src.begin), release(dst.begin);
    }
    release(on);
}

static void loss(const test &t) {
    const size_t n = 5003;
    const float  scale = 12345.678f;
    float       *on = (float *)allocate(sizeof scale);
    put(on, &scale, sizeof scale);
    for (size_t offset = 0; offset < 3; offset++) {
        array             x;
        std::vector<char> values(4 * n);
        fill(values.data(), t.grad, n);
        store(values.data(), t.grad, 9, infinity_of(t.grad));
        x.make(4 * n, offset * size_of(t.grad));
        put(x.at, values.data(), size_of(t.grad) * n);
        scale_loss(x.at, t.grad, n, on);
        tell_from("scaled", (int)offset, (unsigned)size_of(t.grad), x.at, n);
        release(x.begin);
    }
    release(on);
}

/* ------------------------------------------------------------------------------------ the list */

#define CASE(name, run, kind, grad, copy, flags, row, preset) \
    {name, run, AMP_KIND_##kind, AMP_##grad, AMP_##copy, flags, row, AMP_PRESET_##preset}
#define STEPS(name, kind, type, flags) CASE(name, steps, kind, type, type, flags, 0, DEFAULT)
#define KINDS(name, kind)                                                                       \
    STEPS(name "_f16", kind, F16, 0), STEPS(name "_bf16", kind, BF16, 0),                       \
    STEPS(name "_f32", kind, F32, 0), CASE(name "_f32_f16", steps, kind, F32, F16, 0, 0, DEFAULT), \
    CASE(name "_f32_bf16", steps, kind, F32, BF16, OPEN, 0, DEFAULT),                           \
    STEPS(name "_mixed", kind, F16, MIXED | ZEROED)
#define OWN(name, type, flags) CASE("own_" name, steps, OWN, type, F16, flags, 0, DEFAULT)
#define CAST(name, run, from, to, flags) CASE("cast_" name, run, OWN, from, to, flags, 0, DEFAULT)
#define LOSS(name, type) CASE("loss_" name, loss, OWN, type, F32, 0, 0, DEFAULT)
#define SCALER(name, type, flags, preset) \
    CASE("scaler_" name, scaler, OWN, type, F32, flags, 0, preset)
#define PRESET(name, preset) CASE("adamw_" name, steps, ADAMW, F16, F16, OPEN, 0, preset)
#define STORED(name, kind, flags, row) CASE(name, steps, kind, BF16, BF16, flags, row, DEFAULT)
#define STORED_ROW(name, master, moments) \
    STORED("adamw_" name, ADAMW, 0, ROW_##master##_##moments),

static const test tests[] = {
    KINDS("adamw", ADAMW), KINDS("sgd", SGD), KINDS("lion", LION),
    STEPS("adamw_many", ADAMW, F16, MANY | MIXED),
    STEPS("adamw_large", ADAMW, BF16, LARGE),
    STEPS("adamw_by_bytes", ADAMW, F16, BY_BYTES | MIXED | ZEROED),
    STEPS("adamw_open", ADAMW, F16, OPEN | ZEROED),
    CASE("adamw_wide", steps, ADAMW, F16, F16, WIDE, 0, DEFAULT),
    STEPS("adamw_no_master", ADAMW, F16, NO_MASTER),
    STEPS("adamw_unlike", ADAMW, BF16, UNLIKE),
    STEPS("adamw_vast", ADAMW, F32, VAST), STEPS("adamw_tiny", ADAMW, F32, TINY),
    STEPS("adamw_spoilt", ADAMW, BF16, SPOILT),
    STEPS("adamw_disabled", ADAMW, BF16, DISABLED | OPEN),
    STEPS("adamw_beside_own", ADAMW, F16, BESIDE_OWN),
    STEPS("adamw_rebound", ADAMW, F16, REBOUND), STEPS("sgd_rebound", SGD, BF16, REBOUND | MIXED),
    STEPS("adamw_refreshed", ADAMW, BF16, REFRESHED),
    STEPS("adamw_by_pointer", ADAMW, F16, BY_POINTER),
    STEPS("adamw_asked", ADAMW, F16, ASKED), STEPS("adamw_resumed", ADAMW, F16, RESUMED),
    STEPS("adamw_shared", ADAMW, F16, SHARED), STEPS("adamw_handed", ADAMW, F16, HANDED),
    STEPS("adamw_reported", ADAMW, F16, REPORTED | MIXED),
    STEPS("adamw_reduced", ADAMW, F16, REDUCED),
    STEPS("lion_reduced", LION, BF16, REDUCED | REPORTED),
    STEPS("sgd_nesterov", SGD, F16, NESTEROV), STEPS("sgd_plain", SGD, BF16, PLAIN_SGD | ZEROED),
    STEPS("sgd_many", SGD, BF16, MANY | REPORTED),
    PRESET("static", STATIC), PRESET("torch", TORCH), PRESET("megatron", MEGATRON),
    PRESET("deepspeed", DEEPSPEED), PRESET("flax", FLAX), PRESET("mxnet", MXNET),
    OWN("f16", F16, 0), OWN("bf16", BF16, ZEROED | OPEN), OWN("gated", F16, GATED),
    OWN("in_place", F32, IN_PLACE | GATED), OWN("reported", F32, REPORTED),
    OWN("many", F16, MANY | GATED), OWN("asked", F16, ASKED | REDUCED),
    STEPS("rows_f16", ADAMW, F16, ROWS), STEPS("rows_sgd", SGD, F16, ROWS | PLAIN_SGD),
    STEPS("rows_bf16", LION, BF16, ROWS | ZEROED),
    STEPS("rows_f32", ADAMW, F32, ROWS | MIXED | BY_BYTES),
    STEPS("rows_many", ADAMW, F16, MANY_ROWS),
    STEPS("rows_bad", ADAMW, BF16, ROWS | BAD_ROW | REPORTED),
#ifndef AMPI_NO_STORAGE
    AMP_STORAGE_LIST(STORED_ROW)
    STORED("sgd_split", SGD, ZEROED, ROW_SPLIT_F32), STORED("sgd_8bit", SGD, MIXED, ROW_F32_8BIT),
    STORED("lion_sr", LION, ZEROED | MIXED, ROW_SR_BF16),
    STORED("lion_split", LION, 0, ROW_SPLIT_8BIT),
    STORED("split_by_bytes", ADAMW, BY_BYTES | MIXED, ROW_SPLIT_8BIT),
    STORED("split_rows", ADAMW, ROWS, ROW_SPLIT_BF16),
    STORED("split_many", LION, MANY, ROW_SPLIT_F32),
    STORED("split_refreshed", ADAMW, REFRESHED, ROW_SPLIT_BF16),
    STORED("sr_resumed", ADAMW, RESUMED, ROW_SR_8BIT),
    STORED("split_reported", ADAMW, REPORTED, ROW_SPLIT_8BIT),
    CASE("adamw_8bit_f16", steps, ADAMW, F16, F16, OPEN, ROW_F32_8BIT, DEFAULT),
#endif
    CAST("f32_f16", casts, F32, F16, 0), CAST("f32_bf16", casts, F32, BF16, 0),
    CAST("f16_f32", casts, F16, F32, 0), CAST("bf16_f32", casts, BF16, F32, 0),
    CAST("f16_bf16", casts, F16, BF16, 0), CAST("bf16_f16", casts, BF16, F16, 0),
    CAST("f16_in_place", casts, F16, BF16, IN_PLACE),
    CAST("bf16_in_place", casts, BF16, F16, IN_PLACE),
    CAST("all_f16", patterns, F16, F32, 0), CAST("all_bf16", patterns, BF16, F16, 0),
    CAST("edges_f16", patterns, F32, F16, 0), CAST("edges_bf16", patterns, F32, BF16, 0),
    SCALER("f16", F16, 0, DEFAULT), SCALER("bf16", BF16, 0, DEFAULT),
    SCALER("f32", F32, 0, DEFAULT), SCALER("f32_in_place", F32, IN_PLACE, DEFAULT),
    SCALER("bf16_in_place", BF16, IN_PLACE, DEFAULT),
    SCALER("checked", F16, OPEN, DEFAULT), SCALER("disabled", F16, DISABLED, DEFAULT),
    SCALER("static", F16, OPEN, STATIC), SCALER("none", BF16, OPEN, NONE),
    SCALER("torch", F16, OPEN, TORCH), SCALER("apex", F16, OPEN, APEX),
    SCALER("apex_hysteresis", F16, OPEN, APEX_HYSTERESIS), SCALER("megatron", F16, OPEN, MEGATRON),
    SCALER("deepspeed", F16, OPEN, DEEPSPEED),
    SCALER("deepspeed_consecutive", F16, OPEN, DEEPSPEED_CONSECUTIVE),
    SCALER("deepspeed_fused", F16, OPEN, DEEPSPEED_FUSED), SCALER("flax", F16, OPEN, FLAX),
    SCALER("jmp", F16, OPEN, JMP), SCALER("keras", F16, OPEN, KERAS),
    SCALER("tf_keras", F16, OPEN, TF_KERAS), SCALER("mxnet", F16, OPEN, MXNET),
    LOSS("f16", F16), LOSS("bf16", BF16), LOSS("f32", F32),
};
enum { TESTS = sizeof tests / sizeof *tests };

int main(int argc, char **argv) {
    int ran = 0;
    if (argc < 2) {
        fprintf(stderr, "usage: any_cuda FILE [CASE...], or any_cuda --list\n");
        return 2;
    }
    for (int i = 0; strcmp(argv[1], "--list") == 0 && i < TESTS; i++) printf("%s\n", tests[i].name);
    if (strcmp(argv[1], "--list") == 0) return 0;
    out = fopen(argv[1], "wb");
    if (!out) MUST(2);
    for (const test &t : tests) {
        bool wanted = argc == 2;
        for (int k = 2; k < argc; k++) wanted = wanted || strcmp(argv[k], t.name) == 0;
        if (!wanted) continue;
        name  = t.name;
        step  = 0;
        state = 1;
        for (const char *c = name; *c; c++) state = state * 31u + (unsigned char)*c;
        t.run(t);
        ran++;
    }
    MUST(fclose(out));
    printf("%d cases, %llu bytes\n", ran, written);
    return ran < argc - 2 || ran == 0; /* a case that there is not */
}
