/* amp.h - v0.1.0 - automatic mixed precision for training loops in C and CUDA
   SPDX-License-Identifier: MIT OR Unlicense (your choice, see the end of the file)

   USE IT

   In exactly one source file:

       #define AMP_IMPLEMENTATION
       #include "amp.h"

   Everywhere else just #include "amp.h". A loop that trains fp32 weights w with
   its own optimizer becomes a mixed-precision one like this:

       amp_optimizer      opt;
       amp_optimizer_desc desc = {0};              zero means default; {} in C++
       amp_tensor         t    = {0};
       desc.dtype = AMP_F16;
       t.n = n; t.weight = w; t.grad = grad; t.grad_type = AMP_F16;
       amp_optimizer_init(&opt, &desc);
       amp_optimizer_add(&opt, &t);                once per weight tensor
       amp_optimizer_prepare(&opt);
       for (;;) {
           forward(amp_optimizer_model(&opt, 0));  the fp16 copy of w
           dloss *= amp_optimizer_loss_scale(&opt);
           backward(...);                          fills grad, in fp16
           if (amp_optimizer_begin_step(&opt))     all finite? then unscaled
               sgd_step(w, amp_optimizer_grad(&opt, 0), n, lr);    yours, fp32
           amp_optimizer_end_step(&opt);           new scale, new fp16 copy
       }

   CONTENTS (search for the words behind >>)

       What it does, what it does not            the next paragraph
       >>words      >>steps      >>numbers       what things are called; the loop
       >>options    >>promises   >>history       macros; memory, threads, errors
       >>api        results, numbers, scaler, backend, optimizer, gemm
       >>core       every formula, once, for host and device
       >>impl       the same rooms as >>api, in the same order

   WHAT IT DOES: half types and casts; loss scaling as fourteen other systems do
   it; fp32 master weights with fp16 or bf16 copies; a wrap for the optimizer you
   have, and fused AdamW and SGD; global-norm clipping; a matrix product on mixed
   types. It says which tensor overflowed. It works on a CPU with nothing else.

   WHAT IT DOES NOT: tensors, autograd, layers, data loading, schedules. It never
   prints, never exits, holds no global state and starts no thread.

   >>words

       loss scale        factor on the loss, so that small gradients survive fp16
       unscale           divide the gradients by the loss scale again
       found_inf         some gradient was inf or NaN; the step must be skipped
       growth_interval   good steps after which the scale grows (growth_tracker
                         counts them); backoff is the opposite, after found_inf
       hysteresis        overflows that are tolerated before the scale backs off
       master weights    fp32, owned by the optimizer step
       model weights     the copy (fp16, bf16) that forward and backward read
       skipped step      normal, not an error: weights stay, the scale shrinks

   >>steps  One iteration, whoever does the arithmetic:

       1  loss = forward(model weights)
       2  backward(loss * loss scale)              gradients, scaled, any type
       3  check       is any gradient inf or NaN? global norm, statistics
       4  unscale     (clip) and let the optimizer change the master weights;
                      after an overflow nothing happens here
       5  update      the loss scale moves; the model copies are written anew

   Fewer pieces are fine: amp_scaler_* alone serves a loop that keeps its own
   memory (call unscale on each gradient, then step, then update), and the
   conversions serve one that does everything else itself.

   Gradients that also carry something else between steps (Darknet accumulates
   momentum in them) must not be unscaled in place, or that part is divided again
   every step. amp_optimizer therefore unscales into a buffer of its own; set
   unscale_in_place to save that buffer when gradients are fp32 and are written
   afresh (or zeroed) by every backward.

   bf16 has the range of fp32 and needs no scale: set scaler.preset to
   AMP_PRESET_STATIC and scaler.init_scale to 1, which still skips a step whose
   gradients are not finite, or scaler.disabled, which never skips.

   >>numbers

       fp32   s eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm    largest 3.4e38, least 1.4e-45
       fp16   s eeeee mmmmmmmmmm                    largest 65504,  least 6.0e-8
       bf16   s eeeeeeee mmmmmmm                    largest 3.4e38, least 9.2e-41

   Conversions round to nearest, ties to even; overflow gives inf; subnormals are
   kept; a NaN stays a NaN, is made quiet and keeps the top of its payload, which
   is what the F16C instructions do. They are integer code, so neither -Ofast nor
   flush-to-zero nor the rounding mode changes a bit of them.

                     found_inf                      growth_interval good steps
       scale *= backoff_factor  <--- [scale] --->  scale *= growth_factor
       not below min_scale                         not above max_scale
       step skipped, tracker = 0                   tracker = 0

   A step (checks, norm, clip factor, scaler, optimizers) has the same bits for
   every compiler flag and thread count: products and sums are rounded one by
   one, and the norm is summed in one fixed order. While amp.h computes, rounding
   is to nearest, subnormals count and floating-point traps are masked; your
   settings return with the call (x86-64 and AArch64, gcc, clang, MSVC). x87
   arithmetic (32-bit x86 without SSE) keeps only conversions and checks exact.

   >>options  Macros, with the place where each must be defined.

       AMP_IMPLEMENTATION   in one file: compiles the functions there
       AMP_STATIC           with it: makes all functions static to that file
       AMP_CBLAS            with it, after your <cblas.h>: amp_gemm multiplies
                            with cblas_sgemm, faster for large matrices
       AMP_NO_STDLIB        with it: no malloc and free; every desc must then
                            carry an allocator
       AMP_DEF              everywhere: the linkage of the functions, such as
                            __declspec(dllexport); default extern

   >>promises

   Errors   Functions that can fail return amp_result; AMP_OK is 0. A function
            that returns an error has changed nothing. A zeroed desc is the
            default; every flag's zero is the default.
   Memory   amp_scaler_* and casts allocate nothing. An optimizer allocates in
            prepare, never in a step; add allocates only when it holds more than
            AMP_INLINE_TENSORS tensors. All of it goes through desc.allocator.
   Pointers may be unaligned; n may be odd, 0 (then the pointer may be NULL) or
            above 2^31. Names are kept as pointers: let them outlive the object.
   Threads  No object locks itself: one thread at a time may use an object.
            Different objects may be used from different threads.

   >>history
       0.1.0  conversions, scaler with fourteen presets, optimizer wrap, fused
              AdamW and SGD, clipping, gemm, CPU backend                       */

#ifndef AMP_H_INCLUDED
#define AMP_H_INCLUDED

#include <stddef.h>  /* size_t */
#include <stdint.h>  /* uint16_t, uint32_t, uint64_t */
#ifndef __cplusplus
#include <stdbool.h> /* bool */
#endif

#define AMP_VERSION_MAJOR 0
#define AMP_VERSION_MINOR 1
#define AMP_VERSION_PATCH 0

#ifndef AMP_DEF
#if defined(AMP_STATIC) && (defined(__GNUC__) || defined(__clang__))
#define AMP_DEF static __attribute__((unused))
#elif defined(AMP_STATIC)
#define AMP_DEF static
#else
#define AMP_DEF extern
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------- >>api  results */

typedef enum amp_result {
    AMP_OK = 0,
    AMP_ERROR_INVALID_ARGUMENT, /* a NULL pointer, or an index or a length out of range           */
    AMP_ERROR_INVALID_ENUM,     /* a dtype, preset or kind that amp.h does not know               */
    AMP_ERROR_INVALID_CONFIG,   /* a number in a desc is NaN, infinite, negative or contradictory */
    AMP_ERROR_UNSUPPORTED,      /* understood, but not offered: fp16 in place, another kind's step*/
    AMP_ERROR_OUT_OF_MEMORY,    /* the allocator returned NULL                                    */
    AMP_ERROR_TOO_LARGE,        /* a size in bytes does not fit size_t                            */
    AMP_ERROR_BAD_STATE,        /* scaler: nothing checked since the last update; or no init      */
    AMP_ERROR_NOT_PREPARED,     /* optimizer: a step before amp_optimizer_prepare                 */
    AMP_ERROR_PREPARED,         /* optimizer: add or prepare after amp_optimizer_prepare          */
    AMP_ERROR_STEP_OPEN,        /* optimizer: begin_step twice, or a change during an open step   */
    AMP_ERROR_STEP_NOT_OPEN     /* optimizer: end_step without begin_step                         */
} amp_result;

/* A short English sentence for a result; never NULL. */
AMP_DEF const char *amp_result_string(amp_result result);

/* "0.1.0": the version of the implementation that is linked. */
AMP_DEF const char *amp_version(void);

/* --------------------------------------------------------------- >>api  numbers */

/* One-member structs, so that mixing two kinds of half does not compile. */
typedef struct amp_f16  { uint16_t bits; } amp_f16;
typedef struct amp_bf16 { uint16_t bits; } amp_bf16;

typedef enum amp_dtype { AMP_F32 = 0, AMP_F16, AMP_BF16 } amp_dtype;

/* Bytes of one element; 0 for an unknown type. */
AMP_DEF size_t amp_dtype_size(amp_dtype type);

/* Round to nearest even (IEEE 754; bits equal to VCVTPS2PH and VCVTPH2PS). Pure. */
AMP_DEF amp_f16  amp_f32_to_f16(float x);
AMP_DEF float    amp_f16_to_f32(amp_f16 x);
AMP_DEF amp_bf16 amp_f32_to_bf16(float x);
AMP_DEF float    amp_bf16_to_f32(amp_bf16 x);

/* Convert n elements in host memory between any two types. Half to the other half goes through
   fp32, which holds both exactly. dst may equal src unless dst's type is wider; otherwise the two
   must not overlap. */
AMP_DEF amp_result amp_cast(void *dst, amp_dtype dst_type,
                            const void *src, amp_dtype src_type, size_t n);

/* True if no element is inf or NaN. Integer tests on memory: fast-math cannot remove them.
   False also for an unknown type, or NULL with n > 0. */
AMP_DEF bool amp_all_finite(const void *x, amp_dtype type, size_t n);

/* ---------------------------------------------------------------- >>api  scaler */

/* Whose rules the loss scale follows. Each mirrors its original's tests, floor, cap and order.
   The lists say: first scale, growth_interval, min_scale, max_scale, hysteresis. */
typedef enum amp_preset {
    AMP_PRESET_DEFAULT = 0,           /* 2^16 2000 2^-14 2^24 1  torch's schedule, kept in range  */
    AMP_PRESET_TORCH,                 /* 2^16 2000 -     -    -  GradScaler; can sink to 0        */
    AMP_PRESET_APEX,                  /* 2^16 2000 -     2^24 -  apex.amp LossScaler              */
    AMP_PRESET_APEX_HYSTERESIS,       /* 2^16 2000 -     -    1  apex update_scale_hysteresis     */
    AMP_PRESET_MEGATRON,              /* 2^32 1000 1     -    2  refilled by growth; can reach inf*/
    AMP_PRESET_DEEPSPEED,             /* 2^16 1000 1     -    2  refilled by growth               */
    AMP_PRESET_DEEPSPEED_CONSECUTIVE, /* 2^16 1000 1     -    2  refilled by any good step        */
    AMP_PRESET_DEEPSPEED_FUSED,       /* 2^32 1000 1     -    -  FP16_Optimizer: one step later   */
    AMP_PRESET_FLAX,                  /* 2^16 2000 FLT_MIN FLT_MAX -  grows after N + 1           */
    AMP_PRESET_JMP,                   /* 2^16 2000 1     -    -                                   */
    AMP_PRESET_KERAS,                 /* 2^15 2000 -     -    -  Keras 3; can reach inf           */
    AMP_PRESET_TF_KERAS,              /* 2^15 2000 1     -    -  compares with >=, not ==         */
    AMP_PRESET_MXNET,                 /* 2^16 2000 -     2^24 -  a new scale acts one update late */
    AMP_PRESET_STATIC                 /* 2^16 never moves; overflowing steps are still skipped    */
} amp_preset;

/* How a loss scaler behaves. Zero the struct, set what you care about; zero means the preset's
   own default. */
typedef struct amp_scaler_desc {
    float      init_scale;      /* first loss scale, > 0                                        */
    double     growth_factor;   /* >= 1, default 2                                              */
    double     backoff_factor;  /* in (0, 1], default 1/2; 1/growth_factor where the original
                                   has one factor (APEX, DEEPSPEED*, JMP, TF_KERAS, MXNET)      */
    int        growth_interval; /* good steps before the scale grows                            */
    int        hysteresis;      /* overflows before it backs off; ignored by presets marked -   */
    float      min_scale;       /* the scale stays at or above it                               */
    float      max_scale;       /* the scale stays at or below it                               */
    int        disabled;        /* nonzero: scale is 1, nothing is checked, no step is skipped  */
    amp_preset preset;
} amp_scaler_desc;

/* The scaler: plain data without pointers, the same bytes in host and device memory. Read any
   member. Write found_inf (nonzero = skip; this is how ranks agree), growth_factor, backoff_factor
   and growth_interval between updates; leave the rest to the functions. */
typedef struct amp_scaler {
    float    scale;              /* multiply the loss by this                                   */
    int      growth_tracker;     /* good steps counted towards growth                           */
    uint32_t found_inf;          /* a gradient since the last update was inf or NaN             */
    uint32_t checked;            /* gradients checked since the last update                     */
    int      hysteresis_tracker; /* overflows left to tolerate, plus one                        */
    uint32_t stuck;              /* sticky: a backoff was due but the scale is at its floor     */
    double   next_scale;         /* what the rules hold: wider than scale, or one update ahead  */
    uint64_t good, skipped;      /* updates without and with found_inf                          */
    uint64_t growths, backoffs;  /* how often the scale went up and down                        */
    double   growth_factor, backoff_factor;
    int      growth_interval, hysteresis;
    float    min_scale, max_scale; /* 0: none                                                   */
    uint32_t preset;             /* amp_preset                                                  */
    uint32_t rules;              /* private: what the preset means, as bits                     */
} amp_scaler;

/* Set s up from desc (NULL: all defaults). AMP_ERROR_INVALID_CONFIG for numbers that are NaN,
   negative, contradictory or, in DEFAULT and STATIC, outside the range in which a scale and its
   reciprocal are normal floats. */
AMP_DEF amp_result amp_scaler_init(amp_scaler *s, const amp_scaler_desc *desc);

/* loss * scale. Reading s->scale is as good. */
AMP_DEF float amp_scaler_scale_loss(const amp_scaler *s, float loss);

/* Look at one gradient: found_inf is set if an element is inf or NaN and, in DEFAULT and STATIC,
   if an element would become so when unscaled (possible below scale 1). Accumulates over tensors
   until amp_scaler_update. n == 0 counts as checked. */
AMP_DEF amp_result amp_scaler_check(amp_scaler *s, const void *grad, amp_dtype type, size_t n);

/* Check, and divide by the scale in place. fp16 is AMP_ERROR_UNSUPPORTED: it would lose what the
   scaling saved. Elements that are inf or NaN stay as they are. */
AMP_DEF amp_result amp_scaler_unscale(amp_scaler *s, void *grad, amp_dtype type, size_t n);

/* Check src and write src / scale to dst in fp32. dst may be src if src is fp32. */
AMP_DEF amp_result amp_scaler_unscale_to(amp_scaler *s, float *dst,
                                         const void *src, amp_dtype src_type, size_t n);

/* Call step(user) if everything checked since the last update was finite, and return what it
   returns; otherwise do nothing and return AMP_OK. AMP_ERROR_BAD_STATE if nothing was checked. */
typedef amp_result (*amp_step_fn)(void *user);
AMP_DEF amp_result amp_scaler_step(amp_scaler *s, amp_step_fn step, void *user);

/* End the iteration: move the scale by the preset's rules and clear found_inf. The only place
   where the rules move the scale, so gradients always meet the scale of their own backward.
   AMP_ERROR_BAD_STATE, nothing changed, if nothing was checked. Calling step is not required. */
AMP_DEF amp_result amp_scaler_update(amp_scaler *s);

/* Replace the scale; growth_tracker is kept, stuck is cleared. Call it between two iterations.
   AMP_ERROR_INVALID_CONFIG as in init; DEFAULT also keeps to its min_scale and max_scale. */
AMP_DEF amp_result amp_scaler_set_scale(amp_scaler *s, float scale);

/* --------------------------------------------------------------- >>api  backend */

/* Where memory comes from. Zero: malloc and free. alloc_fn returns NULL when it cannot. */
typedef struct amp_allocator {
    void *(*alloc_fn)(size_t num_bytes, void *user_data);
    void (*free_fn)(void *memory, void *user_data);
    void *user_data;
} amp_allocator;

typedef enum amp_copy { AMP_COPY_TO_BACKEND = 0, AMP_COPY_TO_HOST } amp_copy;

typedef enum amp_job { /* what update_fn shall do; every job but the last does nothing on a skip */
    AMP_JOB_FUSED = 0, /* unscale, clip, optimizer, model copies; then zero_grad                 */
    AMP_JOB_UNSCALE,   /* write unscaled, clipped fp32 gradients                                 */
    AMP_JOB_END        /* model copies (not on a skip), zero_grad, and the scaler's update       */
} amp_job;

typedef struct amp_plan      amp_plan;      /* tables of one optimizer; defined in >>core        */
typedef struct amp_gemm_args amp_gemm_args; /* the arguments of amp_gemm; defined in >>core      */

/* What differs between machines. amp_cpu_backend is one; write your own to add another. Functions
   may run behind the caller's back (on a stream) and in order; wait_fn ends when all are done.
   alloc_fn and free_fn may both be NULL: then memory is host memory from desc.allocator. */
typedef struct amp_backend {
    void *context; /* handed to every function */
    amp_result (*alloc_fn)(void *context, size_t num_bytes, void **memory);
    void       (*free_fn)(void *context, void *memory);
    amp_result (*copy_fn)(void *context, void *dst, const void *src, size_t num_bytes, amp_copy);
    amp_result (*cast_fn)(void *context, void *dst, amp_dtype dst_type,
                          const void *src, amp_dtype src_type, size_t n);
    amp_result (*check_fn)(void *context, const amp_plan *plan, int update_scaler);
    amp_result (*update_fn)(void *context, const amp_plan *plan, amp_job job);
    amp_result (*gemm_fn)(void *context, const amp_gemm_args *args);
    amp_result (*wait_fn)(void *context);
} amp_backend;

AMP_DEF amp_result amp_cpu_backend(amp_backend *backend);

/* ------------------------------------------------------------- >>api  optimizer */

/* One weight tensor. Memory is the caller's, in the backend's memory, in one of three ways:
   weight only: it is the fp32 master, and a model copy of desc.dtype is made for it;
   model only:  half weights; an fp32 master is made from them;
   both:        nothing is made. The model copy is written from the master in prepare. */
typedef struct amp_tensor {
    const char *name;       /* for reports; may be NULL                                        */
    size_t      n;          /* elements                                                        */
    float      *weight;     /* fp32 master, or NULL                                            */
    void       *grad;       /* scaled gradient; NULL: the weight is frozen                     */
    amp_dtype   grad_type;
    void       *model;      /* model copy, or NULL                                             */
    amp_dtype   model_type; /* type of model; ignored if model is NULL                         */
    float       lr_scale;   /* factor on the learning rate; 0 means 1                          */
    float       weight_decay;    /* 0: the optimizer's                                         */
    int         no_weight_decay; /* nonzero: none                                              */
    int         keep_fp32;       /* nonzero: forward reads the master (biases, norms)          */
} amp_tensor;

typedef enum amp_kind {
    AMP_KIND_OWN = 0, /* your optimizer, between begin_step and end_step                        */
    AMP_KIND_ADAMW,   /* amp_optimizer_adamw; Loshchilov and Hutter, decoupled weight decay     */
    AMP_KIND_SGD      /* amp_optimizer_sgd; momentum, Nesterov, weight decay as in torch.optim  */
} amp_kind;

typedef struct amp_optimizer_desc {
    amp_dtype          dtype;         /* of the model copies; AMP_F32: no copies, plain fp32     */
    amp_kind           kind;
    const amp_backend *backend;       /* NULL: CPU                                               */
    amp_allocator      allocator;     /* zero: malloc and free                                   */
    amp_scaler_desc    scaler;
    amp_scaler        *shared_scaler; /* instead of scaler: one scale for several optimizers; in
                                         backend memory; you call amp_scaler_update once a step  */
    double beta1, beta2;              /* AdamW: 0.9, 0.999                                       */
    double eps;                       /* AdamW: 1e-8                                             */
    double momentum;                  /* SGD: 0                                                  */
    int    nesterov;                  /* SGD: nonzero needs momentum > 0                         */
    float  weight_decay;              /* 0                                                       */
    float  max_norm;                  /* clip the global gradient norm to this; 0: do not clip   */
    int    zero_grad;                 /* nonzero: zero gradients after a step, a skipped one too */
    int    unscale_in_place;          /* nonzero: fp32 gradients are their own unscaled buffer   */
} amp_optimizer_desc;

/* What a user's own kernel needs, in backend memory: return at once if skip is set; multiply each
   gradient by inv_scale (1 / scale, times the clip factor); step counts the steps taken. */
typedef struct amp_gate { uint32_t skip; float inv_scale; uint64_t step; } amp_gate;

/* What the last step did. */
typedef struct amp_status {
    double   norm;         /* global norm of the unscaled gradients (finite elements), unclipped */
    float    clip_factor;  /* 1, or what brings norm down to max_norm                            */
    float    loss_scale;   /* for the next backward                                              */
    uint32_t did_step;     /* 1: weights moved, 0: skipped                                       */
    uint32_t found_inf;    /* 1: a gradient was inf or NaN, or would have become so              */
    uint32_t stuck;        /* the scaler's                                                       */
    uint64_t steps;        /* taken                                                              */
    uint64_t skipped;
} amp_status;

/* What the last check saw in one gradient, still scaled. */
typedef struct amp_stats {
    uint64_t nonfinite;       /* elements that are inf or NaN */
    uint64_t nan;             /* elements that are NaN        */
    uint64_t first_nonfinite; /* index of the first, or n     */
    uint64_t zeros;           /* elements that are 0 or -0    */
    float    max_finite;      /* largest finite magnitude     */
} amp_stats;

enum { AMP_INLINE_TENSORS = 32 }; /* add allocates only beyond this many */

/* Declare one, zeroed or not, and call amp_optimizer_init. All members are private. */
typedef struct ampi_entry { amp_tensor tensor; int flat; } ampi_entry; /* flat: 1 first, 2 next */
typedef struct amp_optimizer {
    amp_optimizer_desc desc;
    amp_backend        backend;
    ampi_entry         inline_entries[AMP_INLINE_TENSORS];
    ampi_entry        *entries; /* NULL while they fit inline */
    size_t             num_entries, capacity;
    amp_plan          *plan;    /* NULL until prepared */
    void              *backend_memory;
    int                initialized, step_open;
    amp_result         pending; /* begin_step's, for end_step */
} amp_optimizer;

/* Set up from desc (NULL: all defaults). Allocates nothing. Free it when done. */
AMP_DEF amp_result amp_optimizer_init(amp_optimizer *opt, const amp_optimizer_desc *desc);

/* Register a tensor; its index is the number of tensors added before. */
AMP_DEF amp_result amp_optimizer_add(amp_optimizer *opt, const amp_tensor *tensor);

/* Register count tensors that lie one behind the other in the arrays of whole (n = all elements).
   Of each part, name, n, lr_scale, weight_decay, no_weight_decay and keep_fp32 are used; their n
   must add up to whole's. Made copies are contiguous too: model(first) + offset is valid. */
AMP_DEF amp_result amp_optimizer_add_flat(amp_optimizer *opt, const amp_tensor *whole,
                                          const amp_tensor *parts, size_t count);

/* Allocate everything and write masters and model copies. */
AMP_DEF amp_result amp_optimizer_prepare(amp_optimizer *opt);

/* Tell new addresses after you moved tensor i. NULL leaves that one as it is. */
AMP_DEF amp_result amp_optimizer_rebind(amp_optimizer *opt, int i, float *weight, void *grad);

/* What forward and backward read: the model copy, or the master where there is none. NULL before
   prepare or for a bad index; likewise the getters below. */
AMP_DEF const void *amp_optimizer_model(const amp_optimizer *opt, int i);

/* The fp32 gradient for your optimizer: unscaled, and clipped if max_norm is set. Valid from a
   begin_step that returned true to end_step. NULL for a frozen tensor. */
AMP_DEF float *amp_optimizer_grad(const amp_optimizer *opt, int i);

/* The fp32 master weights of tensor i: yours, or those made for you. */
AMP_DEF float *amp_optimizer_master(const amp_optimizer *opt, int i);

/* The scale for the next backward: by value (waits for the backend; 0 before prepare), as an
   address in backend memory, and the whole scaler there. */
AMP_DEF float        amp_optimizer_loss_scale(const amp_optimizer *opt);
AMP_DEF const float *amp_optimizer_loss_scale_ptr(const amp_optimizer *opt);
AMP_DEF amp_scaler  *amp_optimizer_scaler(const amp_optimizer *opt);

/* Check all gradients. True: all finite; they are unscaled, step now. False: skip, or an error,
   which end_step returns. Call end_step in either case. Kind must be AMP_KIND_OWN. */
AMP_DEF bool amp_optimizer_begin_step(amp_optimizer *opt);

/* Update the scale and, unless skipped, write the model copies. Returns begin_step's error if it
   had one. After begin_step twice: AMP_ERROR_STEP_OPEN, the step that was open is ended. */
AMP_DEF amp_result amp_optimizer_end_step(amp_optimizer *opt);

/* The whole step: check, clip, unscale, optimizer, scale, model copies. lr >= 0, finite.
   AMP_ERROR_UNSUPPORTED if desc.kind was another. */
AMP_DEF amp_result amp_optimizer_adamw(amp_optimizer *opt, float lr);
AMP_DEF amp_result amp_optimizer_sgd(amp_optimizer *opt, float lr);

/* What the last step did, and what it saw in gradient i. They wait for the backend. */
AMP_DEF amp_result amp_optimizer_status(const amp_optimizer *opt, amp_status *status);
AMP_DEF amp_result amp_optimizer_stats(const amp_optimizer *opt, int i, amp_stats *stats);

/* For kernels of your own, in backend memory; refilled by every check. */
AMP_DEF const amp_gate *amp_optimizer_gate(const amp_optimizer *opt);
AMP_DEF uint32_t       *amp_optimizer_found_inf_ptr(const amp_optimizer *opt);

/* Release all memory. Safe on a zeroed object, after a failed init, and twice. */
AMP_DEF void amp_optimizer_free(amp_optimizer *opt);

/* ------------------------------------------------------------------ >>api  gemm */

/* C = alpha op(A) op(B) + beta C; row-major; C is m x n, op(A) is m x k, op(B) is k x n, op is the
   transpose where trans is nonzero. Each matrix has its own type; products are summed in fp32, in
   the order of k. A leading dimension is the distance of rows in elements, 0 if they are packed.
   C is not read if beta is 0; A and B are not read if alpha is 0. C must not overlap A or B.
   backend NULL: CPU, which allocates nothing and uses about 100 KiB of stack. */
AMP_DEF amp_result amp_gemm(const amp_backend *backend, int trans_a, int trans_b,
                            size_t m, size_t n, size_t k, float alpha,
                            const void *a, amp_dtype a_type, size_t lda,
                            const void *b, amp_dtype b_type, size_t ldb,
                            float beta, void *c, amp_dtype c_type, size_t ldc);

#ifdef __cplusplus
}
#endif

#endif /* AMP_H_INCLUDED: stop reading here if you only use the library. */

/* ========================================================================= >>core
   Every formula of amp.h, once, for the CPU backend (AMP_IMPLEMENTATION) and for the kernels
   (AMP_KERNELS). The code here computes on values; loops and memory belong to the backends. */

#if (defined(AMP_IMPLEMENTATION) || defined(AMP_KERNELS)) && !defined(AMP_CORE_INCLUDED)
#define AMP_CORE_INCLUDED

#include <string.h> /* memcpy, memset */

#if defined(__CUDACC__)
#define AMPI_FN static __host__ __device__ __forceinline__
#elif defined(__GNUC__) || defined(__clang__)
#define AMPI_FN static inline __attribute__((unused))
#else
#define AMPI_FN static inline
#endif

#define AMPI_F32_INF 0x7f800000u /* exponent all ones: inf, or NaN with a fraction */

/* ------------------------------------------------------------- >>core  conversions
   Integers only, and in front of the strict region below, so that they inline anywhere. */

AMPI_FN uint32_t ampi_load_u32(const void *base, size_t i) {
    uint32_t u;
    memcpy(&u, (const unsigned char *)base + 4 * i, 4);
    return u;
}

AMPI_FN void ampi_store_u32(void *base, size_t i, uint32_t u) {
    memcpy((unsigned char *)base + 4 * i, &u, 4);
}

AMPI_FN uint16_t ampi_load_u16(const void *base, size_t i) {
    uint16_t u;
    memcpy(&u, (const unsigned char *)base + 2 * i, 2);
    return u;
}

AMPI_FN void ampi_store_u16(void *base, size_t i, uint16_t u) {
    memcpy((unsigned char *)base + 2 * i, &u, 2);
}

AMPI_FN float ampi_load_f32(const void *base, size_t i) {
    float x;
    memcpy(&x, (const unsigned char *)base + 4 * i, 4);
    return x;
}

AMPI_FN void ampi_store_f32(void *base, size_t i, float x) {
    memcpy((unsigned char *)base + 4 * i, &x, 4);
}

AMPI_FN int ampi_nonfinite(uint32_t f32_bits) {
    return (f32_bits & AMPI_F32_INF) == AMPI_F32_INF;
}

/* Bits of fp32 to bits of fp16. */
AMPI_FN uint16_t ampi_f16_from_f32(uint32_t u) {
    const uint32_t sign = (u >> 16) & 0x8000u;
    const uint32_t a    = u & 0x7fffffffu;
    if (a > AMPI_F32_INF) return (uint16_t)(sign | 0x7e00u | ((a >> 13) & 0x3ffu));
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and more round to inf */
    if (a >= 0x38800000u) {                                  /* 2^-14 and more: normal      */
        /* Drop 13 bits to nearest even; a carry moves into the exponent, as it should. */
        const uint32_t even = (a >> 13) & 1u;
        return (uint16_t)(sign | ((a + 0xfffu + even - (112u << 23)) >> 13));
    }
    if (a > 0x33000000u) { /* above 2^-25: subnormal, in units of 2^-24 */
        const uint32_t fraction = (a & 0x7fffffu) | 0x800000u;
        const uint32_t drop     = 126u - (a >> 23); /* 14..24 */
        const uint32_t rest     = fraction & ((1u << drop) - 1u);
        const uint32_t half     = 1u << (drop - 1u);
        uint32_t       h        = fraction >> drop;
        if (rest > half || (rest == half && (h & 1u))) h++;
        return (uint16_t)(sign | h);
    }
    return (uint16_t)sign;
}

/* Bits of fp16 to bits of fp32. */
AMPI_FN uint32_t ampi_f32_from_f16(uint16_t h) {
    const uint32_t sign     = (uint32_t)(h & 0x8000u) << 16;
    uint32_t       exponent = (uint32_t)(h >> 10) & 0x1fu;
    uint32_t       fraction = (uint32_t)h & 0x3ffu;
    if (exponent == 31u) {
        const uint32_t quiet = fraction ? 0x400000u : 0u;
        return sign | AMPI_F32_INF | quiet | (fraction << 13);
    }
    if (exponent == 0u) {
        if (fraction == 0u) return sign;
        for (exponent = 1u; !(fraction & 0x400u); exponent--) fraction <<= 1;
        fraction &= 0x3ffu;
    }
    return sign | ((exponent + 112u) << 23) | (fraction << 13);
}

/* Bits of fp32 to bits of bf16. */
AMPI_FN uint16_t ampi_bf16_from_f32(uint32_t u) {
    if ((u & 0x7fffffffu) > AMPI_F32_INF) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* Bits of bf16 to bits of fp32. */
AMPI_FN uint32_t ampi_f32_from_bf16(uint16_t h) { return (uint32_t)h << 16; }

/* Element i of an array of any type, as bits of fp32, and back. */
AMPI_FN uint32_t ampi_load(const void *base, amp_dtype type, size_t i) {
    if (type == AMP_F16) return ampi_f32_from_f16(ampi_load_u16(base, i));
    if (type == AMP_BF16) return ampi_f32_from_bf16(ampi_load_u16(base, i));
    return ampi_load_u32(base, i);
}

AMPI_FN void ampi_store(void *base, amp_dtype type, size_t i, uint32_t u) {
    if (type == AMP_F16) ampi_store_u16(base, i, ampi_f16_from_f32(u));
    else if (type == AMP_BF16) ampi_store_u16(base, i, ampi_bf16_from_f32(u));
    else ampi_store_u32(base, i, u);
}

/* --------------------------------------------------------------- >>core  arithmetic
   Each operation rounds once, on its own, on every machine: no contraction to FMA, no reciprocal
   or rsqrt in place of a division or a root, no flushed subnormals. gcc obeys the pragma. clang's
   backend does not under -Ofast, so there every result passes through an empty asm statement.
   On the device it is PTX, which stays IEEE under --use_fast_math, where intrinsics do not. */

#if defined(__CUDACC__)
#define AMPI_STRICT_BEGIN
#define AMPI_STRICT_END
#elif defined(__clang__)
#define AMPI_STRICT_BEGIN                                                                      \
    _Pragma("float_control(push)") _Pragma("float_control(precise, on)")                      \
    _Pragma("clang fp contract(off)")
#define AMPI_STRICT_END _Pragma("float_control(pop)")
#elif defined(__GNUC__)
#define AMPI_STRICT_BEGIN                                                                      \
    _Pragma("GCC push_options") _Pragma("GCC optimize(\"no-fast-math,fp-contract=off\")")
#define AMPI_STRICT_END _Pragma("GCC pop_options")
#elif defined(_MSC_VER)
#define AMPI_STRICT_BEGIN __pragma(float_control(precise, on, push)) __pragma(fp_contract(off))
#define AMPI_STRICT_END   __pragma(float_control(pop))
#else
#define AMPI_STRICT_BEGIN
#define AMPI_STRICT_END
#endif

AMPI_STRICT_BEGIN

#if defined(__clang__) && defined(__x86_64__)
#define AMPI_PIN(x) __asm__("" : "+x"(x))
#elif defined(__clang__) && defined(__aarch64__)
#define AMPI_PIN(x) __asm__("" : "+w"(x))
#elif defined(__clang__)
#define AMPI_PIN(x) __asm__("" : "+m"(x))
#else
#define AMPI_PIN(x) ((void)0)
#endif

#if defined(__CUDA_ARCH__)
#define AMPI_OPERATION(name, type, op, ptx, reg)                                               \
    AMPI_FN type name(type a, type b) {                                                        \
        type r;                                                                                \
        asm(ptx " %0, %1, %2;" : "=" reg(r) : reg(a), reg(b));                                 \
        return r;                                                                              \
    }
#else
#define AMPI_OPERATION(name, type, op, ptx, reg)                                               \
    AMPI_FN type name(type a, type b) {                                                        \
        type r = a op b;                                                                       \
        AMPI_PIN(r);                                                                           \
        return r;                                                                              \
    }
#endif

AMPI_OPERATION(ampi_mul, float, *, "mul.rn.f32", "f")
AMPI_OPERATION(ampi_add, float, +, "add.rn.f32", "f")
AMPI_OPERATION(ampi_sub, float, -, "sub.rn.f32", "f")
AMPI_OPERATION(ampi_div, float, /, "div.rn.f32", "f")
AMPI_OPERATION(ampi_mul64, double, *, "mul.rn.f64", "d")
AMPI_OPERATION(ampi_add64, double, +, "add.rn.f64", "d")
AMPI_OPERATION(ampi_sub64, double, -, "sub.rn.f64", "d")
AMPI_OPERATION(ampi_div64, double, /, "div.rn.f64", "d")

#if defined(__CUDA_ARCH__)
AMPI_FN float ampi_sqrt(float a) {
    float r;
    asm("sqrt.rn.f32 %0, %1;" : "=f"(r) : "f"(a));
    return r;
}
AMPI_FN double ampi_sqrt64(double a) {
    double r;
    asm("sqrt.rn.f64 %0, %1;" : "=d"(r) : "d"(a));
    return r;
}
#elif (defined(__GNUC__) || defined(__clang__)) && defined(__SSE2__)
AMPI_FN float ampi_sqrt(float a) {
    float r;
    __asm__("sqrtss %1, %0" : "=x"(r) : "x"(a));
    return r;
}
AMPI_FN double ampi_sqrt64(double a) {
    double r;
    __asm__("sqrtsd %1, %0" : "=x"(r) : "x"(a));
    return r;
}
#elif (defined(__GNUC__) || defined(__clang__)) && defined(__aarch64__)
AMPI_FN float ampi_sqrt(float a) {
    float r;
    __asm__("fsqrt %s0, %s1" : "=w"(r) : "w"(a));
    return r;
}
AMPI_FN double ampi_sqrt64(double a) {
    double r;
    __asm__("fsqrt %d0, %d1" : "=w"(r) : "w"(a));
    return r;
}
#else
#include <math.h> /* sqrt, sqrtf: only where neither instruction above is known */
AMPI_FN float  ampi_sqrt(float a) { return sqrtf(a); }
AMPI_FN double ampi_sqrt64(double a) { return sqrt(a); }
#endif

AMPI_FN float ampi_f32_from_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}

/* The bits are pinned, so that nobody concludes from "no infinities" what they cannot be. */
AMPI_FN uint32_t ampi_bits_of_f32(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
#if defined(__GNUC__) || defined(__clang__)
    __asm__("" : "+r"(u));
#endif
    return u;
}

/* ------------------------------------------------------------------- >>core  scaler */

/* What a preset means. One value per question, packed into amp_scaler.rules. */
enum {
    /* when does a run of good steps make the scale grow? */
    AMPI_GROW_NEVER = 0,
    AMPI_GROW_EQUAL,  /* the tracker, counting this step, equals the interval           */
    AMPI_GROW_REACH,  /* the same with >=: an interval lowered below it grows at once   */
    AMPI_GROW_WRAP,   /* equals; the tracker counts modulo the interval                 */
    AMPI_GROW_MODULO, /* good steps since the last overflow are a multiple              */
    AMPI_GROW_LATE,   /* the same, one step later                                       */
    AMPI_GROW_BEFORE, /* the tracker, before counting this step, equals the interval    */
    AMPI_GROW_MASK = 7,
    /* when is hysteresis refilled? neither: the preset has none */
    AMPI_REFILL_GOOD   = 1 << 3,
    AMPI_REFILL_GROWTH = 1 << 4,
    /* growth that would make the scale infinite is left out */
    AMPI_GUARD = 1 << 5,
    /* the original keeps the scale in a host double */
    AMPI_WIDE = 1 << 6,
    /* a new scale takes effect at the following update */
    AMPI_DELAY = 1 << 7,
    /* the unscaled product is checked too, and the scale stays where 1/scale is normal */
    AMPI_SAFE = 1 << 8,
    AMPI_DISABLED = 1 << 9
};

/* 1 / scale, rounded once from double, as torch computes it; inf for 0 without dividing by it. */
AMPI_FN float ampi_inv_scale(float scale) {
    if ((ampi_bits_of_f32(scale) & 0x7fffffffu) == 0u) return ampi_f32_from_bits(AMPI_F32_INF);
    return (float)ampi_div64(1.0, (double)scale);
}

/* A scaled gradient to an unscaled one. What is not finite passes through, so that its bits do
   not depend on whose multiplier saw them. */
AMPI_FN float ampi_unscale(uint32_t grad_bits, float factor) {
    const float g = ampi_f32_from_bits(grad_bits);
    return ampi_nonfinite(grad_bits) ? g : ampi_mul(g, factor);
}

/* Law 5: would the largest finite magnitude become infinite when unscaled? */
AMPI_FN int ampi_product_overflows(const amp_scaler *s, uint32_t max_bits, float inv_scale) {
    if (!(s->rules & AMPI_SAFE)) return 0;
    return ampi_nonfinite(ampi_bits_of_f32(ampi_mul(ampi_f32_from_bits(max_bits), inv_scale)));
}

/* Record that one more gradient, or all of an optimizer's, were checked. */
AMPI_FN void ampi_scaler_record(amp_scaler *s, uint32_t found_inf) {
    s->found_inf |= found_inf;
    if (s->checked != UINT32_MAX) s->checked++;
}

/* Does this good step complete a run? Moves the tracker. */
AMPI_FN int ampi_scaler_run_complete(amp_scaler *s) {
    const uint32_t test     = s->rules & AMPI_GROW_MASK;
    const int      interval = s->growth_interval;
    const int      before   = s->growth_tracker;
    const int      count    = before < INT32_MAX ? before + 1 : before;
    int            grow     = 0;
    s->growth_tracker = count;
    if (interval <= 0) return 0;
    switch (test) {
    case AMPI_GROW_EQUAL: grow = count == interval; break;
    case AMPI_GROW_REACH: grow = count >= interval; break;
    case AMPI_GROW_BEFORE: grow = before == interval; break;
    case AMPI_GROW_WRAP:
        s->growth_tracker = count % interval;
        return before == interval - 1;
    case AMPI_GROW_MODULO: return count % interval == 0;
    case AMPI_GROW_LATE: return count > 1 && (count - 1) % interval == 0;
    default: break;
    }
    if (grow) s->growth_tracker = 0;
    return grow;
}

/* The state machine of all presets: one update. */
AMPI_FN void ampi_scaler_transition(amp_scaler *s) {
    const double live = s->next_scale; /* differs from s->scale only in AMPI_WIDE, AMPI_DELAY */
    double       next = live;
    if (s->found_inf != 0u) {
        s->skipped++;
        s->growth_tracker = 0;
        if (s->hysteresis_tracker > 1) {
            s->hysteresis_tracker--;
        } else if ((s->rules & AMPI_GROW_MASK) != AMPI_GROW_NEVER) {
            next = ampi_mul64(live, s->backoff_factor);
            if (next < (double)s->min_scale) next = (double)s->min_scale;
            if (!(s->rules & AMPI_WIDE)) next = (double)(float)next;
            if (next < live) s->backoffs++;
            else s->stuck = 1u;
        }
    } else {
        const int grow = ampi_scaler_run_complete(s);
        s->good++;
        if ((s->rules & AMPI_REFILL_GOOD) || (grow && (s->rules & AMPI_REFILL_GROWTH)))
            s->hysteresis_tracker = s->hysteresis;
        if (grow) {
            next = ampi_mul64(live, s->growth_factor);
            if (s->max_scale > 0.0f && next > (double)s->max_scale) next = (double)s->max_scale;
            if (!(s->rules & AMPI_WIDE)) next = (double)(float)next;
            if ((s->rules & AMPI_GUARD) && ampi_nonfinite(ampi_bits_of_f32((float)next)))
                next = live;
            if (next > live) s->growths++;
        }
    }
    s->next_scale = next;
    s->scale      = (float)((s->rules & AMPI_DELAY) ? live : next);
    s->found_inf  = 0u;
    s->checked    = 0u;
}

/* ---------------------------------------------------------------- >>core  optimizer */

/* Norms are summed in one order everywhere. A tensor is cut into chunks; in a chunk, element i
   goes to lane i mod AMPI_LANES, in order; lanes are added in pairs (l, l + 128), (l, l + 64) ...;
   the chunks' sums, in double, are added by the same rule. */
enum { AMPI_CHUNK = 65536, AMPI_LANES = 256 };

/* If a chunk of finite elements has an infinite sum of squares, it is summed again with elements
   times 2^-96, and the sum counts times 2^192: no square of a float overflows then. */
#define AMPI_RESCALE      1.262177448353619e-29f /* 2^-96 */
#define AMPI_RESCALE_BACK 6.277101735386681e+57  /* 2^192 */

/* One tensor as kernels see it, in backend memory. */
typedef struct ampi_slot {
    uint64_t  n;
    uint64_t  first_chunk; /* its chunks are numbered from here         */
    float    *master;
    void     *grad;        /* NULL: frozen                              */
    float    *unscaled;    /* AMP_KIND_OWN: where unscaled gradients go */
    void     *model;       /* NULL: the master is the model             */
    float    *m, *v;       /* first moment or momentum; second moment   */
    uint32_t  grad_type, model_type;
    float     lr_scale, weight_decay;
    amp_stats stats;
} ampi_slot;

/* What changes from step to step, and the numbers that kernels need, in backend memory. */
typedef struct ampi_control {
    amp_gate   gate;
    double     norm;
    float      clip_factor;
    uint32_t   found_inf;
    uint32_t   did_step;
    uint32_t   nesterov;
    uint64_t   skipped;
    double     beta1, beta2;
    float      eps, momentum, max_norm, lr;
    float      bias1, bias2; /* 1 / (1 - beta^step) */
    amp_scaler scaler;       /* unless shared       */
} ampi_control;

struct amp_plan {
    ampi_control *control;  /* backend memory */
    ampi_slot    *slots;    /* backend memory */
    amp_scaler   *scaler;   /* backend memory: control->scaler, or the shared one */
    double       *partials; /* backend memory: one per chunk */
    ampi_slot    *host_slots;
    size_t        num_slots;
    uint64_t      num_chunks;
    amp_kind      kind;
    int           zero_grad, shared;
};

/* beta^n by repeated squaring: the same bits everywhere, which pow does not promise. */
AMPI_FN double ampi_power(double beta, uint64_t n) {
    double r = 1.0;
    for (; n != 0u; n >>= 1) {
        if (n & 1u) r = ampi_mul64(r, beta);
        beta = ampi_mul64(beta, beta);
    }
    return r;
}

/* After the check: from the sum of squares, the largest finite magnitude and whether anything was
   not finite, to the gate and the numbers of this step. The clip factor is torch's,
   max_norm / (norm + 1e-6) if below 1. A factor that vanishes counts as an overflow, since it
   would step with zero gradients. */
AMPI_FN void ampi_finalize(const amp_plan *plan, double sum, uint32_t max_bits, uint32_t bad) {
    ampi_control *c   = plan->control;
    amp_scaler   *s   = plan->scaler;
    const float   inv = ampi_inv_scale(s->scale);
    float         factor;
    c->norm        = ampi_mul64(ampi_sqrt64(sum), (double)inv);
    c->clip_factor = 1.0f;
    if (c->max_norm > 0.0f) {
        const double clip = ampi_div64((double)c->max_norm, ampi_add64(c->norm, 1e-6));
        if (clip < 1.0) c->clip_factor = (float)clip;
    }
    factor = ampi_mul(inv, c->clip_factor);
    bad |= (uint32_t)ampi_product_overflows(s, max_bits, inv);
    bad |= (uint32_t)((ampi_bits_of_f32(factor) & 0x7fffffffu) == 0u);
    if (!plan->shared) bad |= (uint32_t)(s->found_inf != 0u);
    c->found_inf      = bad;
    c->gate.skip      = (s->rules & AMPI_DISABLED) ? 0u : bad;
    c->gate.inv_scale = factor;
    if (c->gate.skip) {
        c->skipped++;
    } else {
        c->gate.step++;
        if (plan->kind == AMP_KIND_ADAMW) {
            const double b1 = ampi_power(c->beta1, c->gate.step);
            const double b2 = ampi_power(c->beta2, c->gate.step);
            c->bias1 = (float)ampi_div64(1.0, ampi_sub64(1.0, b1));
            c->bias2 = (float)ampi_div64(1.0, ampi_sub64(1.0, b2));
        }
    }
    c->did_step = !c->gate.skip;
    if (!(s->rules & AMPI_DISABLED)) ampi_scaler_record(s, bad);
}

/* Constants of an update, the same for all elements of a tensor. */
typedef struct ampi_rates {
    float lr, weight_decay;
    float beta1, beta1_rest, beta2, beta2_rest; /* rest: 1 - beta, from double */
    float bias1, bias2, eps;
    float momentum;
    uint32_t nesterov;
} ampi_rates;

AMPI_FN ampi_rates ampi_rates_of(const ampi_control *c, const ampi_slot *slot) {
    ampi_rates r;
    r.lr           = ampi_mul(c->lr, slot->lr_scale);
    r.weight_decay = slot->weight_decay;
    r.beta1        = (float)c->beta1;
    r.beta1_rest   = (float)ampi_sub64(1.0, c->beta1);
    r.beta2        = (float)c->beta2;
    r.beta2_rest   = (float)ampi_sub64(1.0, c->beta2);
    r.bias1        = c->bias1;
    r.bias2        = c->bias2;
    r.eps          = c->eps;
    r.momentum     = c->momentum;
    r.nesterov     = c->nesterov;
    return r;
}

/* AdamW (Loshchilov and Hutter 2019): new p, m, v from an unscaled gradient.
   p -= lr * (m^ / (sqrt(v^) + eps) + weight_decay * p) */
AMPI_FN void ampi_adamw(const ampi_rates *r, float g, float *p, float *m, float *v) {
    float u;
    *m = ampi_add(ampi_mul(r->beta1, *m), ampi_mul(r->beta1_rest, g));
    *v = ampi_add(ampi_mul(r->beta2, *v), ampi_mul(ampi_mul(r->beta2_rest, g), g));
    u  = ampi_div(ampi_mul(*m, r->bias1), ampi_add(ampi_sqrt(ampi_mul(*v, r->bias2)), r->eps));
    u  = ampi_add(u, ampi_mul(r->weight_decay, *p));
    *p = ampi_sub(*p, ampi_mul(r->lr, u));
}

/* SGD as in torch.optim: decay joins the gradient; m = momentum * m + g; Nesterov looks ahead. */
AMPI_FN void ampi_sgd(const ampi_rates *r, float g, float *p, float *m) {
    g = ampi_add(g, ampi_mul(r->weight_decay, *p));
    if (m) {
        *m = ampi_add(ampi_mul(r->momentum, *m), g);
        g  = r->nesterov ? ampi_add(g, ampi_mul(r->momentum, *m)) : *m;
    }
    *p = ampi_sub(*p, ampi_mul(r->lr, g));
}

/* -------------------------------------------------------------------- >>core  gemm */

struct amp_gemm_args {
    int         trans_a, trans_b;
    size_t      m, n, k;
    float       alpha, beta;
    const void *a, *b;
    void       *c;
    amp_dtype   a_type, b_type, c_type;
    size_t      lda, ldb, ldc;
};

AMPI_STRICT_END

#endif /* AMP_CORE_INCLUDED */

/* ========================================================================= >>impl */

#if defined(AMP_IMPLEMENTATION) && !defined(AMP_IMPLEMENTATION_INCLUDED)
#define AMP_IMPLEMENTATION_INCLUDED

#ifndef AMP_NO_STDLIB
#include <stdlib.h> /* malloc, free */
#endif
#if defined(_MSC_VER) && defined(_M_X64)
#include <xmmintrin.h> /* _mm_getcsr, _mm_setcsr */
#endif

#if defined(__GNUC__) || defined(__clang__)
#define AMPI_NOINLINE __attribute__((noinline))
#else
#define AMPI_NOINLINE
#endif

#ifdef __cplusplus
extern "C" {
#endif

AMPI_STRICT_BEGIN

/* --------------------------------------------------------------- >>impl  results */

AMP_DEF const char *amp_result_string(amp_result result) {
    switch (result) {
    case AMP_OK: return "ok";
    case AMP_ERROR_INVALID_ARGUMENT: return "a NULL pointer, or an index or length out of range";
    case AMP_ERROR_INVALID_ENUM: return "a dtype, preset or kind that amp.h does not know";
    case AMP_ERROR_INVALID_CONFIG:
        return "a configured number is NaN, infinite, negative or contradicts another";
    case AMP_ERROR_UNSUPPORTED: return "not supported for this type or kind of optimizer";
    case AMP_ERROR_OUT_OF_MEMORY: return "the allocator returned NULL";
    case AMP_ERROR_TOO_LARGE: return "a size in bytes does not fit size_t";
    case AMP_ERROR_BAD_STATE:
        return "not initialized, or no gradient was checked since the last update";
    case AMP_ERROR_NOT_PREPARED: return "call amp_optimizer_prepare first";
    case AMP_ERROR_PREPARED: return "the optimizer is already prepared";
    case AMP_ERROR_STEP_OPEN: return "a step is open: call amp_optimizer_end_step first";
    case AMP_ERROR_STEP_NOT_OPEN: return "no step is open: call amp_optimizer_begin_step first";
    default: return "unknown result";
    }
}

#define AMPI_TEXT(x)  #x
#define AMPI_VALUE(x) AMPI_TEXT(x)

AMP_DEF const char *amp_version(void) {
    return AMPI_VALUE(AMP_VERSION_MAJOR) "." AMPI_VALUE(AMP_VERSION_MINOR) "." AMPI_VALUE(
        AMP_VERSION_PATCH);
}

/* ------------------------------------------------- >>impl  floating-point environment */

/* Computing happens between begin and end: round to nearest, no flushing of subnormals (an -Ofast
   link turns it on at start-up), traps masked (some hosts unmask them). What computes in between
   stands in functions that are not inlined, so that nothing moves across. */
#if (defined(__GNUC__) || defined(__clang__)) && defined(__SSE2__)
static uint32_t ampi_fp_begin(void) {
    uint32_t       saved;
    const uint32_t ieee = 0x1f80u;
    __asm__ __volatile__("stmxcsr %0" : "=m"(saved) : : "memory");
    __asm__ __volatile__("ldmxcsr %0" : : "m"(ieee) : "memory");
    return saved;
}
static void ampi_fp_end(uint32_t saved) {
    __asm__ __volatile__("ldmxcsr %0" : : "m"(saved) : "memory");
}
#elif (defined(__GNUC__) || defined(__clang__)) && defined(__aarch64__)
static uint32_t ampi_fp_begin(void) {
    uint64_t       saved;
    const uint64_t ieee = 0u;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(saved) : : "memory");
    __asm__ __volatile__("msr fpcr, %0" : : "r"(ieee) : "memory");
    return (uint32_t)saved;
}
static void ampi_fp_end(uint32_t saved) {
    const uint64_t wide = saved;
    __asm__ __volatile__("msr fpcr, %0" : : "r"(wide) : "memory");
}
#elif defined(_MSC_VER) && defined(_M_X64)
static uint32_t ampi_fp_begin(void) {
    const uint32_t saved = _mm_getcsr();
    _mm_setcsr(0x1f80u);
    return saved;
}
static void ampi_fp_end(uint32_t saved) { _mm_setcsr(saved); }
#else
static uint32_t ampi_fp_begin(void) { return 0u; }
static void     ampi_fp_end(uint32_t saved) { (void)saved; }
#endif

/* --------------------------------------------------------------- >>impl  numbers */

AMP_DEF amp_f16 amp_f32_to_f16(float x) {
    amp_f16 h;
    h.bits = ampi_f16_from_f32(ampi_bits_of_f32(x));
    return h;
}

AMP_DEF float amp_f16_to_f32(amp_f16 x) { return ampi_f32_from_bits(ampi_f32_from_f16(x.bits)); }

AMP_DEF amp_bf16 amp_f32_to_bf16(float x) {
    amp_bf16 h;
    h.bits = ampi_bf16_from_f32(ampi_bits_of_f32(x));
    return h;
}

AMP_DEF float amp_bf16_to_f32(amp_bf16 x) {
    return ampi_f32_from_bits(ampi_f32_from_bf16(x.bits));
}

AMP_DEF size_t amp_dtype_size(amp_dtype type) {
    switch (type) {
    case AMP_F32: return 4;
    case AMP_F16:
    case AMP_BF16: return 2;
    default: return 0;
    }
}

/* Arrays are taken in pieces that stay in the first-level cache as fp32. */
enum { AMPI_PIECE = 1024 };

/* n elements, forwards, so that an in-place cast to a narrower type is right. */
static void ampi_cast(void *dst, amp_dtype dst_type, const void *src, amp_dtype src_type,
                      size_t n) {
    size_t i;
    if (dst_type == src_type) {
        if (n) memmove(dst, src, n * amp_dtype_size(src_type));
    } else if (src_type == AMP_F32 && dst_type == AMP_F16) {
        for (i = 0; i < n; i++) ampi_store_u16(dst, i, ampi_f16_from_f32(ampi_load_u32(src, i)));
    } else if (src_type == AMP_F32) {
        for (i = 0; i < n; i++) ampi_store_u16(dst, i, ampi_bf16_from_f32(ampi_load_u32(src, i)));
    } else if (src_type == AMP_F16 && dst_type == AMP_F32) {
        for (i = 0; i < n; i++) ampi_store_u32(dst, i, ampi_f32_from_f16(ampi_load_u16(src, i)));
    } else if (dst_type == AMP_F32) {
        for (i = 0; i < n; i++) ampi_store_u32(dst, i, ampi_f32_from_bf16(ampi_load_u16(src, i)));
    } else {
        for (i = 0; i < n; i++) ampi_store(dst, dst_type, i, ampi_load(src, src_type, i));
    }
}

/* Address of element i. */
static const void *ampi_at(const void *base, amp_dtype type, size_t i) {
    return (const unsigned char *)base + i * amp_dtype_size(type);
}

/* Elements [i, i + count), count <= AMPI_PIECE, as fp32: where they are, or in buffer. */
static const void *ampi_as_f32(const void *src, amp_dtype type, size_t i, size_t count,
                               float *buffer) {
    const void *at = ampi_at(src, type, i);
    if (type == AMP_F32) return at;
    ampi_cast(buffer, AMP_F32, at, type, count);
    return buffer;
}

static size_t ampi_min(size_t a, size_t b) { return a < b ? a : b; }

static int ampi_array_ok(const void *x, size_t n) { return x != NULL || n == 0; }

AMP_DEF amp_result amp_cast(void *dst, amp_dtype dst_type, const void *src, amp_dtype src_type,
                            size_t n) {
    if (!amp_dtype_size(dst_type) || !amp_dtype_size(src_type)) return AMP_ERROR_INVALID_ENUM;
    if (!ampi_array_ok(dst, n) || !ampi_array_ok(src, n)) return AMP_ERROR_INVALID_ARGUMENT;
    ampi_cast(dst, dst_type, src, src_type, n);
    return AMP_OK;
}

/* Bits of the largest magnitude of a piece of fp32, inf and NaN included; counts zeros. */
static uint32_t ampi_scan(const void *f32, size_t count, size_t *zeros) {
    int32_t max = 0;
    size_t  i, none = 0;
    for (i = 0; i < count; i++) {
        const int32_t a = (int32_t)(ampi_load_u32(f32, i) & 0x7fffffffu);
        max             = a > max ? a : max;
        none += a == 0;
    }
    *zeros += none;
    return (uint32_t)max;
}

AMP_DEF bool amp_all_finite(const void *x, amp_dtype type, size_t n) {
    float  buffer[AMPI_PIECE];
    size_t i, count, zeros = 0;
    if (!amp_dtype_size(type) || !ampi_array_ok(x, n)) return false;
    for (i = 0; i < n; i += count) {
        count = ampi_min(n - i, AMPI_PIECE);
        if (ampi_nonfinite(ampi_scan(ampi_as_f32(x, type, i, count, buffer), count, &zeros)))
            return false;
    }
    return true;
}

/* ---------------------------------------------------------------- >>impl  scaler */

typedef struct ampi_preset_row {
    float    init_scale, min_scale, max_scale; /* 0: none                                    */
    int      growth_interval, hysteresis;
    int      one_factor;                       /* the original divides by its growth factor  */
    uint32_t rules;
} ampi_preset_row;

/* ORDER amp_preset */
static const ampi_preset_row ampi_presets[] = {
    /* DEFAULT */
    {65536.0f, 6.103515625e-5f, 16777216.0f, 2000, 1, 0,
     AMPI_GROW_EQUAL | AMPI_REFILL_GOOD | AMPI_SAFE},
    /* TORCH */
    {65536.0f, 0.0f, 0.0f, 2000, 1, 0, AMPI_GROW_EQUAL | AMPI_GUARD},
    /* APEX */
    {65536.0f, 0.0f, 16777216.0f, 2000, 1, 1, AMPI_GROW_EQUAL | AMPI_WIDE},
    /* APEX_HYSTERESIS */
    {65536.0f, 0.0f, 0.0f, 2000, 1, 0, AMPI_GROW_EQUAL | AMPI_REFILL_GOOD | AMPI_GUARD},
    /* MEGATRON */
    {4294967296.0f, 1.0f, 0.0f, 1000, 2, 0, AMPI_GROW_EQUAL | AMPI_REFILL_GROWTH},
    /* DEEPSPEED */
    {65536.0f, 1.0f, 0.0f, 1000, 2, 1, AMPI_GROW_MODULO | AMPI_REFILL_GROWTH | AMPI_WIDE},
    /* DEEPSPEED_CONSECUTIVE */
    {65536.0f, 1.0f, 0.0f, 1000, 2, 1, AMPI_GROW_MODULO | AMPI_REFILL_GOOD | AMPI_WIDE},
    /* DEEPSPEED_FUSED */
    {4294967296.0f, 1.0f, 0.0f, 1000, 1, 1, AMPI_GROW_LATE | AMPI_WIDE},
    /* FLAX */
    {65536.0f, 1.17549435e-38f, 3.40282347e38f, 2000, 1, 0, AMPI_GROW_BEFORE},
    /* JMP */
    {65536.0f, 1.0f, 0.0f, 2000, 1, 1, AMPI_GROW_WRAP | AMPI_GUARD},
    /* KERAS */
    {32768.0f, 0.0f, 0.0f, 2000, 1, 0, AMPI_GROW_EQUAL},
    /* TF_KERAS */
    {32768.0f, 1.0f, 0.0f, 2000, 1, 1, AMPI_GROW_REACH | AMPI_GUARD},
    /* MXNET */
    {65536.0f, 0.0f, 16777216.0f, 2000, 1, 1, AMPI_GROW_EQUAL | AMPI_WIDE | AMPI_DELAY},
    /* STATIC: 2^-126 and 2^126, whose reciprocals are normal */
    {65536.0f, 1.17549435e-38f, 8.50705917e37f, 2000, 1, 0, AMPI_GROW_NEVER | AMPI_SAFE}};

enum { AMPI_NUM_PRESETS = sizeof ampi_presets / sizeof ampi_presets[0] };

/* Is *x finite and in [low, high]? The bits are tested before anything is compared. */
static int ampi_f32_in(const float *x, float low, float high) {
    return !ampi_nonfinite(ampi_load_u32(x, 0)) && *x >= low && *x <= high;
}

static int ampi_f64_in(const double *x, double low, double high) {
    uint64_t bits;
    memcpy(&bits, x, 8);
    return ((bits >> 52) & 0x7ffu) != 0x7ffu && *x >= low && *x <= high;
}

#define AMPI_F32_MAX 3.40282347e38f
#define AMPI_F64_MAX 1.7976931348623157e308

/* May the scale be this? min_scale and max_scale, where set, and the laws of the preset. */
static int ampi_scale_ok(const amp_scaler *s, const float *scale) {
    if (!ampi_f32_in(scale, 0.0f, AMPI_F32_MAX)) return 0;
    if (ampi_load_u32(scale, 0) == 0u || ampi_load_u32(scale, 0) == 0x80000000u) return 0;
    if (!(s->rules & AMPI_SAFE)) return 1;
    return *scale >= s->min_scale && *scale <= s->max_scale;
}

static AMPI_NOINLINE amp_result ampi_scaler_setup(amp_scaler *s, const amp_scaler_desc *d) {
    const ampi_preset_row *row;
    const ampi_preset_row *safe = &ampi_presets[AMP_PRESET_STATIC];
    amp_scaler             t;
    float                  init;
    if ((unsigned)d->preset >= (unsigned)AMPI_NUM_PRESETS) return AMP_ERROR_INVALID_ENUM;
    row = &ampi_presets[d->preset];
    if (!ampi_f32_in(&d->init_scale, 0.0f, AMPI_F32_MAX) ||
        !ampi_f32_in(&d->min_scale, 0.0f, AMPI_F32_MAX) ||
        !ampi_f32_in(&d->max_scale, 0.0f, AMPI_F32_MAX) ||
        !ampi_f64_in(&d->growth_factor, 0.0, AMPI_F64_MAX) ||
        !ampi_f64_in(&d->backoff_factor, 0.0, 1.0) || d->growth_interval < 0 || d->hysteresis < 0)
        return AMP_ERROR_INVALID_CONFIG;
    if (d->growth_factor > 0.0 && d->growth_factor < 1.0) return AMP_ERROR_INVALID_CONFIG;

    memset(&t, 0, sizeof t);
    t.preset          = (uint32_t)d->preset;
    t.rules           = row->rules;
    init              = d->init_scale > 0.0f ? d->init_scale : row->init_scale;
    t.min_scale       = d->min_scale > 0.0f ? d->min_scale : row->min_scale;
    t.max_scale       = d->max_scale > 0.0f ? d->max_scale : row->max_scale;
    t.growth_interval = d->growth_interval ? d->growth_interval : row->growth_interval;
    t.growth_factor   = d->growth_factor > 0.0 ? d->growth_factor : 2.0;
    t.backoff_factor  = d->backoff_factor;
    if (!(t.backoff_factor > 0.0))
        t.backoff_factor = row->one_factor ? ampi_div64(1.0, t.growth_factor) : 0.5;
    t.hysteresis = d->hysteresis ? d->hysteresis : row->hysteresis;
    if (!(t.rules & (AMPI_REFILL_GOOD | AMPI_REFILL_GROWTH))) t.hysteresis = 1;
    t.hysteresis_tracker = t.hysteresis;

    if (t.max_scale > 0.0f && t.min_scale > t.max_scale) return AMP_ERROR_INVALID_CONFIG;
    if ((t.rules & AMPI_SAFE) &&
        (t.min_scale < safe->min_scale || t.max_scale > safe->max_scale))
        return AMP_ERROR_INVALID_CONFIG;
    if (d->preset == AMP_PRESET_APEX && init > t.max_scale) init = t.max_scale;
    if (!ampi_scale_ok(&t, &init)) return AMP_ERROR_INVALID_CONFIG;
    if (d->disabled) {
        t.rules |= AMPI_DISABLED;
        init = 1.0f;
    }
    t.scale      = init;
    t.next_scale = (double)init;
    *s           = t;
    return AMP_OK;
}

AMP_DEF amp_result amp_scaler_init(amp_scaler *s, const amp_scaler_desc *desc) {
    amp_scaler_desc defaults;
    amp_result      result;
    uint32_t        fp;
    if (!s) return AMP_ERROR_INVALID_ARGUMENT;
    memset(&defaults, 0, sizeof defaults);
    fp     = ampi_fp_begin();
    result = ampi_scaler_setup(s, desc ? desc : &defaults);
    ampi_fp_end(fp);
    return result;
}

/* Every preset has a rule, so no rule means that init was not called. */
static amp_result ampi_scaler_ready(const amp_scaler *s) {
    if (!s) return AMP_ERROR_INVALID_ARGUMENT;
    return s->rules ? AMP_OK : AMP_ERROR_BAD_STATE;
}

static AMPI_NOINLINE float ampi_scale_loss(const amp_scaler *s, const float *loss) {
    return ampi_mul(*loss, s->scale);
}

AMP_DEF float amp_scaler_scale_loss(const amp_scaler *s, float loss) {
    float    scaled = loss;
    uint32_t fp;
    if (!s) return loss;
    fp     = ampi_fp_begin();
    scaled = ampi_scale_loss(s, &loss);
    ampi_fp_end(fp);
    return scaled;
}

/* Check src and, if dst is given, write it unscaled as dst_type. */
static AMPI_NOINLINE void ampi_scaler_pass(amp_scaler *s, void *dst, amp_dtype dst_type,
                                           const void *src, amp_dtype src_type, size_t n) {
    float          buffer[AMPI_PIECE];
    const float    inv = ampi_inv_scale(s->scale);
    const uint32_t max_normal = AMPI_F32_INF - 1u;
    uint32_t       bad = 0, largest = 0, product;
    size_t         i, j, count, zeros = 0;
    for (i = 0; i < n; i += count) {
        const void *f32;
        uint32_t    max;
        count = ampi_min(n - i, AMPI_PIECE);
        f32   = ampi_as_f32(src, src_type, i, count, buffer);
        max   = ampi_scan(f32, count, &zeros);
        if (max > max_normal) { /* the largest finite one still matters to law 5 */
            bad = 1;
            for (j = 0, max = 0; j < count; j++) {
                const uint32_t a = ampi_load_u32(f32, j) & 0x7fffffffu;
                if (a <= max_normal && a > max) max = a;
            }
        }
        if (max > largest) largest = max;
        for (j = 0; dst && j < count; j++) {
            const uint32_t g = ampi_load_u32(f32, j);
            ampi_store(dst, dst_type, i + j, ampi_bits_of_f32(ampi_unscale(g, inv)));
        }
    }
    bad |= (uint32_t)ampi_product_overflows(s, largest, inv);
    if (dst && dst_type == AMP_BF16 && (s->rules & AMPI_SAFE)) {
        /* bf16 overflows a little below fp32 */
        product = ampi_bits_of_f32(ampi_mul(ampi_f32_from_bits(largest), inv));
        bad |= (uint32_t)ampi_nonfinite(ampi_f32_from_bf16(ampi_bf16_from_f32(product)));
    }
    ampi_scaler_record(s, bad);
}

static amp_result ampi_scaler_run(amp_scaler *s, void *dst, amp_dtype dst_type, const void *src,
                                  amp_dtype src_type, size_t n) {
    const amp_result ready = ampi_scaler_ready(s);
    uint32_t         fp;
    if (ready != AMP_OK) return ready;
    if (!amp_dtype_size(src_type)) return AMP_ERROR_INVALID_ENUM;
    if (!ampi_array_ok(src, n)) return AMP_ERROR_INVALID_ARGUMENT;
    if (s->rules & AMPI_DISABLED) {
        if (dst && dst != src) ampi_cast(dst, dst_type, src, src_type, n);
        return AMP_OK;
    }
    fp = ampi_fp_begin();
    ampi_scaler_pass(s, dst, dst_type, src, src_type, n);
    ampi_fp_end(fp);
    return AMP_OK;
}

AMP_DEF amp_result amp_scaler_check(amp_scaler *s, const void *grad, amp_dtype type, size_t n) {
    return ampi_scaler_run(s, NULL, AMP_F32, grad, type, n);
}

AMP_DEF amp_result amp_scaler_unscale(amp_scaler *s, void *grad, amp_dtype type, size_t n) {
    if (s && type == AMP_F16) return AMP_ERROR_UNSUPPORTED;
    return ampi_scaler_run(s, grad, type, grad, type, n);
}

AMP_DEF amp_result amp_scaler_unscale_to(amp_scaler *s, float *dst, const void *src,
                                         amp_dtype src_type, size_t n) {
    if (!ampi_array_ok(dst, n)) return AMP_ERROR_INVALID_ARGUMENT;
    return ampi_scaler_run(s, dst, AMP_F32, src, src_type, n);
}

AMP_DEF amp_result amp_scaler_step(amp_scaler *s, amp_step_fn step, void *user) {
    const amp_result ready = ampi_scaler_ready(s);
    if (ready != AMP_OK) return ready;
    if (!step) return AMP_ERROR_INVALID_ARGUMENT;
    if (s->rules & AMPI_DISABLED) return step(user);
    if (s->found_inf) return AMP_OK;
    return s->checked ? step(user) : AMP_ERROR_BAD_STATE;
}

static AMPI_NOINLINE void ampi_scaler_update(amp_scaler *s) { ampi_scaler_transition(s); }

AMP_DEF amp_result amp_scaler_update(amp_scaler *s) {
    const amp_result ready = ampi_scaler_ready(s);
    uint32_t         fp;
    if (ready != AMP_OK) return ready;
    if (s->rules & AMPI_DISABLED) return AMP_OK;
    if (!s->checked && !s->found_inf) return AMP_ERROR_BAD_STATE;
    fp = ampi_fp_begin();
    ampi_scaler_update(s);
    ampi_fp_end(fp);
    return AMP_OK;
}

static AMPI_NOINLINE amp_result ampi_scaler_replace(amp_scaler *s, const float *scale) {
    if (!ampi_scale_ok(s, scale)) return AMP_ERROR_INVALID_CONFIG;
    s->scale      = *scale;
    s->next_scale = (double)*scale;
    s->stuck      = 0u;
    return AMP_OK;
}

AMP_DEF amp_result amp_scaler_set_scale(amp_scaler *s, float scale) {
    amp_result result = ampi_scaler_ready(s);
    uint32_t   fp;
    if (result != AMP_OK) return result;
    if (s->rules & AMPI_DISABLED) return AMP_OK;
    fp     = ampi_fp_begin();
    result = ampi_scaler_replace(s, &scale);
    ampi_fp_end(fp);
    return result;
}

/* --------------------------------------------------------------- >>impl  backend
   The CPU: the loops around the core's formulas. */

static void *ampi_allocate(const amp_allocator *a, size_t num_bytes) {
    if (a->alloc_fn) return a->alloc_fn(num_bytes, a->user_data);
#ifndef AMP_NO_STDLIB
    return malloc(num_bytes);
#else
    return NULL;
#endif
}

static void ampi_release(const amp_allocator *a, void *memory) {
    if (!memory) return;
    if (a->free_fn) a->free_fn(memory, a->user_data);
#ifndef AMP_NO_STDLIB
    else free(memory);
#endif
}

static amp_result ampi_cpu_copy(void *context, void *dst, const void *src, size_t num_bytes,
                                amp_copy direction) {
    (void)context;
    (void)direction;
    if (num_bytes) memcpy(dst, src, num_bytes);
    return AMP_OK;
}

static amp_result ampi_cpu_cast(void *context, void *dst, amp_dtype dst_type, const void *src,
                                amp_dtype src_type, size_t n) {
    (void)context;
    return amp_cast(dst, dst_type, src, src_type, n);
}

static amp_result ampi_cpu_wait(void *context) {
    (void)context;
    return AMP_OK;
}

/* Add the squares of a piece to the lanes. A piece begins at lane 0. Elements that are not finite
   count as zero. */
static void ampi_add_squares(float *lanes, const void *f32, size_t count, float rescale) {
    size_t i, l;
    for (i = 0; i < count; i += AMPI_LANES) {
        const size_t width = ampi_min(count - i, AMPI_LANES);
        for (l = 0; l < width; l++) {
            const uint32_t bits = ampi_load_u32(f32, i + l);
            const float    g    = ampi_f32_from_bits(ampi_nonfinite(bits) ? 0u : bits);
            const float    t    = ampi_mul(g, rescale);
            lanes[l]            = ampi_add(lanes[l], ampi_mul(t, t));
        }
    }
}

/* The sum of squares of count elements from i on, in the canonical order. */
static double ampi_sum_chunk(const void *grad, amp_dtype type, size_t i, size_t count) {
    float  buffer[AMPI_PIECE], lanes[AMPI_LANES], rescale = 1.0f;
    size_t done, piece, l, half;
    for (;;) {
        for (l = 0; l < AMPI_LANES; l++) lanes[l] = 0.0f;
        for (done = 0; done < count; done += piece) {
            piece = ampi_min(count - done, AMPI_PIECE);
            ampi_add_squares(lanes, ampi_as_f32(grad, type, i + done, piece, buffer), piece,
                             rescale);
        }
        for (half = AMPI_LANES / 2; half; half /= 2)
            for (l = 0; l < half; l++) lanes[l] = ampi_add(lanes[l], lanes[l + half]);
        if (rescale < 1.0f) return ampi_mul64((double)lanes[0], AMPI_RESCALE_BACK);
        if (!ampi_nonfinite(ampi_load_u32(lanes, 0))) return (double)lanes[0];
        rescale = AMPI_RESCALE;
    }
}

static double ampi_sum_partials(const double *partials, uint64_t num_chunks) {
    double   lanes[AMPI_LANES];
    uint64_t i;
    size_t   l, half;
    for (l = 0; l < AMPI_LANES; l++) lanes[l] = 0.0;
    for (i = 0; i < num_chunks; i++) {
        l        = (size_t)(i % AMPI_LANES);
        lanes[l] = ampi_add64(lanes[l], partials[i]);
    }
    for (half = AMPI_LANES / 2; half; half /= 2)
        for (l = 0; l < half; l++) lanes[l] = ampi_add64(lanes[l], lanes[l + half]);
    return lanes[0];
}

/* What amp_stats says of one gradient; returns the bits of the largest finite magnitude. */
static uint32_t ampi_gather_stats(amp_stats *stats, const void *grad, amp_dtype type, size_t n) {
    float    buffer[AMPI_PIECE];
    uint32_t largest = 0;
    size_t   i, j, count, zeros = 0;
    memset(stats, 0, sizeof *stats);
    stats->first_nonfinite = n;
    for (i = 0; grad && i < n; i += count) {
        const void *f32;
        uint32_t    max;
        count = ampi_min(n - i, AMPI_PIECE);
        f32   = ampi_as_f32(grad, type, i, count, buffer);
        max   = ampi_scan(f32, count, &zeros);
        if (ampi_nonfinite(max)) {
            for (j = 0, max = 0; j < count; j++) {
                const uint32_t a = ampi_load_u32(f32, j) & 0x7fffffffu;
                if (!ampi_nonfinite(a)) {
                    max = a > max ? a : max;
                    continue;
                }
                if (stats->nonfinite++ == 0) stats->first_nonfinite = i + j;
                stats->nan += a > AMPI_F32_INF;
            }
        }
        if (max > largest) largest = max;
    }
    stats->zeros      = zeros;
    stats->max_finite = ampi_f32_from_bits(largest);
    return largest;
}

static AMPI_NOINLINE void ampi_cpu_check_plan(const amp_plan *plan, int update_scaler) {
    uint32_t largest = 0, bad = 0;
    size_t   t, i, count;
    for (t = 0; t < plan->num_slots; t++) {
        ampi_slot      *slot  = &plan->slots[t];
        const size_t    n     = (size_t)slot->n;
        const amp_dtype type  = (amp_dtype)slot->grad_type;
        uint64_t        chunk = slot->first_chunk;
        const uint32_t  max   = ampi_gather_stats(&slot->stats, slot->grad, type, n);
        if (max > largest) largest = max;
        bad |= (uint32_t)(slot->stats.nonfinite != 0);
        for (i = 0; i < n; i += count) {
            count = ampi_min(n - i, AMPI_CHUNK);
            plan->partials[chunk++] = slot->grad ? ampi_sum_chunk(slot->grad, type, i, count) : 0.0;
        }
    }
    ampi_finalize(plan, ampi_sum_partials(plan->partials, plan->num_chunks), largest, bad);
    if (update_scaler && !(plan->scaler->rules & AMPI_DISABLED))
        ampi_scaler_transition(plan->scaler);
}

/* One tensor's gradients, unscaled and clipped, in fp32. */
static void ampi_unscale_slot(const ampi_control *c, const ampi_slot *slot) {
    const amp_dtype type = (amp_dtype)slot->grad_type;
    size_t          i;
    if (!slot->grad) return;
    for (i = 0; i < (size_t)slot->n; i++)
        ampi_store_f32(slot->unscaled, i,
                       ampi_unscale(ampi_load(slot->grad, type, i), c->gate.inv_scale));
}

/* One tensor's optimizer step: gradient read once, unscaled on the way; model copy written. */
static void ampi_step_slot(const amp_plan *plan, const ampi_slot *slot) {
    float             buffer[AMPI_PIECE];
    const amp_dtype   grad_type  = (amp_dtype)slot->grad_type;
    const amp_dtype   model_type = (amp_dtype)slot->model_type;
    const float       factor     = plan->control->gate.inv_scale;
    const ampi_rates  rates      = ampi_rates_of(plan->control, slot);
    const size_t      n          = (size_t)slot->n;
    size_t            i, j, count;
    if (!slot->grad) return;
    for (i = 0; i < n; i += count) {
        const void *grads;
        count = ampi_min(n - i, AMPI_PIECE);
        grads = ampi_as_f32(slot->grad, grad_type, i, count, buffer);
        for (j = 0; j < count; j++) {
            const float g = ampi_unscale(ampi_load_u32(grads, j), factor);
            float       p = ampi_load_f32(slot->master, i + j);
            if (plan->kind == AMP_KIND_ADAMW)
                ampi_adamw(&rates, g, &p, slot->m + i + j, slot->v + i + j);
            else
                ampi_sgd(&rates, g, &p, slot->m ? slot->m + i + j : NULL);
            ampi_store_f32(slot->master, i + j, p);
            if (slot->model) ampi_store(slot->model, model_type, i + j, ampi_bits_of_f32(p));
        }
    }
}

static AMPI_NOINLINE void ampi_cpu_update_plan(const amp_plan *plan, amp_job job) {
    const ampi_control *c = plan->control;
    size_t              t;
    for (t = 0; t < plan->num_slots; t++) {
        const ampi_slot *slot = &plan->slots[t];
        if (!c->gate.skip) {
            if (job == AMP_JOB_FUSED) ampi_step_slot(plan, slot);
            if (job == AMP_JOB_UNSCALE) ampi_unscale_slot(c, slot);
            if (job == AMP_JOB_END && slot->model)
                ampi_cast(slot->model, (amp_dtype)slot->model_type, slot->master, AMP_F32,
                          (size_t)slot->n);
        }
        if (job != AMP_JOB_UNSCALE && plan->zero_grad && slot->grad && slot->n)
            memset(slot->grad, 0, (size_t)slot->n * amp_dtype_size((amp_dtype)slot->grad_type));
    }
    if (job == AMP_JOB_END && !plan->shared && !(plan->scaler->rules & AMPI_DISABLED))
        ampi_scaler_transition(plan->scaler);
}

static amp_result ampi_cpu_check(void *context, const amp_plan *plan, int update_scaler) {
    const uint32_t fp = ampi_fp_begin();
    (void)context;
    ampi_cpu_check_plan(plan, update_scaler);
    ampi_fp_end(fp);
    return AMP_OK;
}

static amp_result ampi_cpu_update(void *context, const amp_plan *plan, amp_job job) {
    const uint32_t fp = ampi_fp_begin();
    (void)context;
    ampi_cpu_update_plan(plan, job);
    ampi_fp_end(fp);
    return AMP_OK;
}

static amp_result ampi_cpu_gemm(void *context, const amp_gemm_args *args); /* >>impl gemm */

AMP_DEF amp_result amp_cpu_backend(amp_backend *backend) {
    if (!backend) return AMP_ERROR_INVALID_ARGUMENT;
    memset(backend, 0, sizeof *backend);
    backend->copy_fn   = ampi_cpu_copy;
    backend->cast_fn   = ampi_cpu_cast;
    backend->check_fn  = ampi_cpu_check;
    backend->update_fn = ampi_cpu_update;
    backend->gemm_fn   = ampi_cpu_gemm;
    backend->wait_fn   = ampi_cpu_wait;
    return AMP_OK;
}

/* ------------------------------------------------------------- >>impl  optimizer */

static int ampi_desc_numbers_ok(const amp_optimizer_desc *d) {
    return ampi_f64_in(&d->beta1, 0.0, 1.0) && d->beta1 < 1.0 &&
           ampi_f64_in(&d->beta2, 0.0, 1.0) && d->beta2 < 1.0 &&
           ampi_f64_in(&d->eps, 0.0, (double)AMPI_F32_MAX) &&
           ampi_f64_in(&d->momentum, 0.0, (double)AMPI_F32_MAX) &&
           ampi_f32_in(&d->weight_decay, 0.0f, AMPI_F32_MAX) &&
           ampi_f32_in(&d->max_norm, 0.0f, AMPI_F32_MAX);
}

AMP_DEF amp_result amp_optimizer_init(amp_optimizer *opt, const amp_optimizer_desc *desc) {
    amp_optimizer_desc d;
    amp_backend        backend;
    amp_scaler         scaler;
    amp_result         result;
    if (!opt) return AMP_ERROR_INVALID_ARGUMENT;
    memset(&d, 0, sizeof d);
    if (desc) d = *desc;
    if (!amp_dtype_size(d.dtype) || (unsigned)d.kind > (unsigned)AMP_KIND_SGD)
        return AMP_ERROR_INVALID_ENUM;
    if (!ampi_desc_numbers_ok(&d)) return AMP_ERROR_INVALID_CONFIG;
    if (d.nesterov && !(d.momentum > 0.0)) return AMP_ERROR_INVALID_CONFIG;
    if (!d.allocator.alloc_fn != !d.allocator.free_fn) return AMP_ERROR_INVALID_ARGUMENT;
#ifdef AMP_NO_STDLIB
    if (!d.allocator.alloc_fn) return AMP_ERROR_INVALID_ARGUMENT;
#endif
    amp_cpu_backend(&backend);
    if (d.backend) backend = *d.backend;
    if (!backend.copy_fn || !backend.cast_fn || !backend.check_fn || !backend.update_fn ||
        !backend.wait_fn || !backend.alloc_fn != !backend.free_fn)
        return AMP_ERROR_INVALID_ARGUMENT;
    result = amp_scaler_init(&scaler, &d.scaler); /* to learn of its errors now */
    if (result != AMP_OK) return result;

    if (!(d.beta1 > 0.0)) d.beta1 = 0.9;
    if (!(d.beta2 > 0.0)) d.beta2 = 0.999;
    if (!(d.eps > 0.0)) d.eps = 1e-8;
    d.backend = NULL;
    memset(opt, 0, sizeof *opt);
    opt->desc        = d;
    opt->backend     = backend;
    opt->capacity    = AMP_INLINE_TENSORS;
    opt->initialized = 1;
    return AMP_OK;
}

static ampi_entry *ampi_entries(amp_optimizer *opt) {
    return opt->entries ? opt->entries : opt->inline_entries;
}

static const amp_tensor *ampi_tensor(const amp_optimizer *opt, int i) {
    if (!opt || !opt->initialized || i < 0 || (size_t)i >= opt->num_entries) return NULL;
    return opt->entries ? &opt->entries[i].tensor : &opt->inline_entries[i].tensor;
}

/* May the optimizer still be given tensors? */
static amp_result ampi_can_add(const amp_optimizer *opt) {
    if (!opt) return AMP_ERROR_INVALID_ARGUMENT;
    if (!opt->initialized) return AMP_ERROR_BAD_STATE;
    return opt->plan ? AMP_ERROR_PREPARED : AMP_OK;
}

static amp_result ampi_tensor_ok(const amp_tensor *t) {
    if (!amp_dtype_size(t->grad_type) || !amp_dtype_size(t->model_type))
        return AMP_ERROR_INVALID_ENUM;
    if (t->n && !t->weight && !t->model) return AMP_ERROR_INVALID_ARGUMENT;
    if (!ampi_f32_in(&t->lr_scale, 0.0f, AMPI_F32_MAX) ||
        !ampi_f32_in(&t->weight_decay, 0.0f, AMPI_F32_MAX))
        return AMP_ERROR_INVALID_CONFIG;
    if (t->keep_fp32 && t->model && t->model_type != AMP_F32) return AMP_ERROR_INVALID_CONFIG;
    return t->n > SIZE_MAX / 64 ? AMP_ERROR_TOO_LARGE : AMP_OK;
}

/* Make room for count more entries, keeping those that are there. */
static amp_result ampi_reserve(amp_optimizer *opt, size_t count) {
    const size_t most = SIZE_MAX / 4 / sizeof(ampi_entry);
    size_t       capacity = opt->capacity;
    ampi_entry  *grown;
    if (count <= capacity - opt->num_entries) return AMP_OK;
    if (count > most - opt->num_entries) return AMP_ERROR_TOO_LARGE;
    while (capacity < opt->num_entries + count) capacity *= 2;
    grown = (ampi_entry *)ampi_allocate(&opt->desc.allocator, capacity * sizeof *grown);
    if (!grown) return AMP_ERROR_OUT_OF_MEMORY;
    memcpy(grown, ampi_entries(opt), opt->num_entries * sizeof *grown);
    ampi_release(&opt->desc.allocator, opt->entries);
    opt->entries  = grown;
    opt->capacity = capacity;
    return AMP_OK;
}

static void ampi_append(amp_optimizer *opt, const amp_tensor *tensor, int flat) {
    ampi_entry *e = &ampi_entries(opt)[opt->num_entries++];
    e->tensor     = *tensor;
    e->flat       = flat;
    if (!(e->tensor.lr_scale > 0.0f)) e->tensor.lr_scale = 1.0f;
    if (!(e->tensor.weight_decay > 0.0f)) e->tensor.weight_decay = opt->desc.weight_decay;
    if (e->tensor.no_weight_decay) e->tensor.weight_decay = 0.0f;
}

AMP_DEF amp_result amp_optimizer_add(amp_optimizer *opt, const amp_tensor *tensor) {
    amp_result result = ampi_can_add(opt);
    if (result != AMP_OK) return result;
    if (!tensor) return AMP_ERROR_INVALID_ARGUMENT;
    result = ampi_tensor_ok(tensor);
    if (result == AMP_OK) result = ampi_reserve(opt, 1);
    if (result == AMP_OK) ampi_append(opt, tensor, 0);
    return result;
}

/* The tensor that part describes, at an offset into the arrays of whole. */
static amp_tensor ampi_part_of(const amp_tensor *whole, const amp_tensor *part, size_t offset) {
    amp_tensor t = *part;
    t.weight     = whole->weight ? whole->weight + offset : NULL;
    t.grad_type  = whole->grad_type;
    t.model_type = whole->model_type;
    t.grad = whole->grad ? (char *)whole->grad + offset * amp_dtype_size(t.grad_type) : NULL;
    t.model = whole->model ? (char *)whole->model + offset * amp_dtype_size(t.model_type) : NULL;
    return t;
}

AMP_DEF amp_result amp_optimizer_add_flat(amp_optimizer *opt, const amp_tensor *whole,
                                          const amp_tensor *parts, size_t count) {
    amp_result result = ampi_can_add(opt);
    amp_tensor t;
    size_t     i, offset = 0;
    if (result != AMP_OK) return result;
    if (!whole || (!parts && count)) return AMP_ERROR_INVALID_ARGUMENT;
    result = ampi_tensor_ok(whole);
    for (i = 0; i < count && result == AMP_OK; i++) {
        if (parts[i].n > whole->n - offset) return AMP_ERROR_INVALID_ARGUMENT;
        t      = ampi_part_of(whole, &parts[i], offset);
        result = ampi_tensor_ok(&t);
        offset += parts[i].n;
    }
    if (result != AMP_OK) return result;
    if (offset != whole->n) return AMP_ERROR_INVALID_ARGUMENT;
    result = ampi_reserve(opt, count);
    if (result != AMP_OK) return result;
    for (i = 0, offset = 0; i < count; i++) {
        t = ampi_part_of(whole, &parts[i], offset);
        ampi_append(opt, &t, i ? 2 : 1);
        offset += parts[i].n;
    }
    return AMP_OK;
}

/* Memory is laid out by running the same code twice: without base, to learn the size, and with. */
typedef struct ampi_arena { char *base; size_t used; int too_large; } ampi_arena;

static void *ampi_take(ampi_arena *arena, size_t count, size_t size, size_t alignment) {
    const size_t start = (arena->used + alignment - 1) / alignment * alignment;
    if (count > (SIZE_MAX / 2 - start) / size) {
        arena->too_large = 1;
        return NULL;
    }
    arena->used = start + count * size;
    return arena->base ? arena->base + start : NULL;
}

/* An array of tensor e; parts of a flat array follow one another without a gap. */
static void *ampi_array(ampi_arena *arena, const ampi_entry *e, size_t size) {
    return ampi_take(arena, e->tensor.n, size, e->flat == 2 ? size : 64);
}

/* Give everything in backend memory its place, and fill in the plan and its host_slots. */
static void ampi_layout(const amp_optimizer *opt, const ampi_entry *entries, amp_plan *plan,
                        ampi_arena *arena) {
    const amp_optimizer_desc *d = &opt->desc;
    const size_t              count = opt->num_entries;
    const int   sgd_moments = d->kind == AMP_KIND_SGD && d->momentum > 0.0;
    const int   moments     = d->kind == AMP_KIND_ADAMW ? 2 : sgd_moments;
    ampi_slot  *slots       = plan->host_slots;
    size_t      i;
    plan->num_chunks = 0;
    for (i = 0; i < count; i++) {
        const amp_tensor *t = &entries[i].tensor;
        memset(&slots[i], 0, sizeof slots[i]);
        slots[i].n            = t->n;
        slots[i].first_chunk  = plan->num_chunks;
        slots[i].master       = t->weight;
        slots[i].grad         = t->grad;
        slots[i].model        = t->model == (void *)t->weight ? NULL : t->model;
        slots[i].grad_type    = (uint32_t)t->grad_type;
        slots[i].model_type   = (uint32_t)(t->model ? t->model_type : d->dtype);
        slots[i].lr_scale     = t->lr_scale;
        slots[i].weight_decay = t->weight_decay;
        plan->num_chunks += t->n / AMPI_CHUNK + (t->n % AMPI_CHUNK != 0);
    }
    plan->control  = (ampi_control *)ampi_take(arena, 1, sizeof *plan->control, 64);
    plan->slots    = (ampi_slot *)ampi_take(arena, count, sizeof *plan->slots, 64);
    plan->partials = (double *)ampi_take(arena, (size_t)plan->num_chunks, sizeof(double), 64);
    plan->scaler   = d->shared_scaler;
    if (!plan->shared && plan->control) plan->scaler = &plan->control->scaler;
    for (i = 0; i < count; i++) { /* model copies; in a flat array keep_fp32 leaves a hole */
        const amp_tensor *t = &entries[i].tensor;
        if (t->model || d->dtype == AMP_F32 || (t->keep_fp32 && !entries[i].flat)) continue;
        slots[i].model = ampi_array(arena, &entries[i], amp_dtype_size(d->dtype));
        if (t->keep_fp32) slots[i].model = NULL;
    }
    for (i = 0; i < count; i++)
        if (!entries[i].tensor.weight)
            slots[i].master = (float *)ampi_array(arena, &entries[i], sizeof(float));
    for (i = 0; i < count; i++) {
        const amp_tensor *t = &entries[i].tensor;
        if (!t->grad || d->kind != AMP_KIND_OWN) continue;
        if (d->unscale_in_place && t->grad_type == AMP_F32) slots[i].unscaled = (float *)t->grad;
        else slots[i].unscaled = (float *)ampi_array(arena, &entries[i], sizeof(float));
    }
    for (i = 0; i < count && moments > 0; i++)
        if (entries[i].tensor.grad)
            slots[i].m = (float *)ampi_array(arena, &entries[i], sizeof(float));
    for (i = 0; i < count && moments > 1; i++)
        if (entries[i].tensor.grad)
            slots[i].v = (float *)ampi_array(arena, &entries[i], sizeof(float));
}

/* Zeroed memory of the backend, aligned to 64 bytes; *block is what must be freed. */
static amp_result ampi_backend_alloc(amp_optimizer *opt, size_t num_bytes, void **block,
                                     char **base) {
    amp_result result = AMP_OK;
    if (opt->backend.alloc_fn) {
        result = opt->backend.alloc_fn(opt->backend.context, num_bytes, block);
    } else {
        *block = ampi_allocate(&opt->desc.allocator, num_bytes + 63);
        if (!*block) result = AMP_ERROR_OUT_OF_MEMORY;
        else memset(*block, 0, num_bytes + 63);
    }
    if (result != AMP_OK) return result;
    *base = (char *)*block;
    if (!opt->backend.alloc_fn) *base += (64 - (uintptr_t)*block % 64) % 64;
    return AMP_OK;
}

static void ampi_backend_free(amp_optimizer *opt, void *block) {
    if (block && opt->backend.free_fn) opt->backend.free_fn(opt->backend.context, block);
    else ampi_release(&opt->desc.allocator, block);
}

/* Masters from models, then models from masters, and the tables to where kernels read them. */
static amp_result ampi_fill_backend(const amp_optimizer *opt, const amp_plan *plan) {
    const amp_optimizer_desc *d = &opt->desc;
    const amp_backend        *b = &opt->backend;
    ampi_control              control;
    amp_result                result = AMP_OK;
    size_t                    i;
    memset(&control, 0, sizeof control);
    control.clip_factor    = 1.0f;
    control.gate.inv_scale = 1.0f;
    control.beta1          = d->beta1;
    control.beta2          = d->beta2;
    control.eps            = (float)d->eps;
    control.momentum       = (float)d->momentum;
    control.nesterov       = d->nesterov != 0;
    control.max_norm       = d->max_norm;
    amp_scaler_init(&control.scaler, &d->scaler);
    for (i = 0; i < plan->num_slots && result == AMP_OK; i++) {
        const ampi_slot *s    = &plan->host_slots[i];
        const amp_dtype  type = (amp_dtype)s->model_type;
        const size_t     n    = (size_t)s->n;
        const ampi_entry *e   = opt->entries ? &opt->entries[i] : &opt->inline_entries[i];
        if (!e->tensor.weight && e->tensor.model)
            result = b->cast_fn(b->context, s->master, AMP_F32, s->model, type, n);
        else if (s->model)
            result = b->cast_fn(b->context, s->model, type, s->master, AMP_F32, n);
    }
    if (result == AMP_OK)
        result = b->copy_fn(b->context, plan->slots, plan->host_slots,
                            plan->num_slots * sizeof *plan->slots, AMP_COPY_TO_BACKEND);
    if (result == AMP_OK)
        result = b->copy_fn(b->context, plan->control, &control, sizeof control,
                            AMP_COPY_TO_BACKEND);
    return result == AMP_OK ? b->wait_fn(b->context) : result;
}

AMP_DEF amp_result amp_optimizer_prepare(amp_optimizer *opt) {
    const size_t header = (sizeof(amp_plan) + 63) / 64 * 64;
    amp_result   result = ampi_can_add(opt);
    ampi_arena   arena;
    amp_plan    *plan;
    void        *block = NULL;
    char        *base  = NULL;
    if (result != AMP_OK) return result;
    if (opt->num_entries > (SIZE_MAX - header) / sizeof(ampi_slot)) return AMP_ERROR_TOO_LARGE;
    plan = (amp_plan *)ampi_allocate(&opt->desc.allocator,
                                     header + opt->num_entries * sizeof(ampi_slot));
    if (!plan) return AMP_ERROR_OUT_OF_MEMORY;
    memset(plan, 0, sizeof *plan);
    plan->host_slots = (ampi_slot *)(void *)((char *)plan + header);
    plan->num_slots  = opt->num_entries;
    plan->kind       = opt->desc.kind;
    plan->zero_grad  = opt->desc.zero_grad;
    plan->shared     = opt->desc.shared_scaler != NULL;

    memset(&arena, 0, sizeof arena);
    ampi_layout(opt, ampi_entries(opt), plan, &arena);
    result = arena.too_large ? AMP_ERROR_TOO_LARGE : AMP_OK;
    if (result == AMP_OK) result = ampi_backend_alloc(opt, arena.used, &block, &base);
    if (result == AMP_OK) {
        memset(&arena, 0, sizeof arena);
        arena.base = base;
        ampi_layout(opt, ampi_entries(opt), plan, &arena);
        result = ampi_fill_backend(opt, plan);
    }
    if (result != AMP_OK) {
        ampi_backend_free(opt, block);
        ampi_release(&opt->desc.allocator, plan);
        return result;
    }
    opt->plan           = plan;
    opt->backend_memory = block;
    return AMP_OK;
}

/* The slot of tensor i, or NULL if there is none (yet). */
static ampi_slot *ampi_slot_of(const amp_optimizer *opt, int i) {
    return ampi_tensor(opt, i) && opt->plan ? &opt->plan->host_slots[i] : NULL;
}

AMP_DEF amp_result amp_optimizer_rebind(amp_optimizer *opt, int i, float *weight, void *grad) {
    const size_t offset = offsetof(ampi_slot, master);
    const size_t length = offsetof(ampi_slot, m) - offset;
    const amp_tensor *t = ampi_tensor(opt, i);
    ampi_slot        *s = ampi_slot_of(opt, i);
    ampi_slot         moved;
    amp_result        result;
    if (!opt || !t) return AMP_ERROR_INVALID_ARGUMENT;
    if (!s) return AMP_ERROR_NOT_PREPARED;
    if (opt->step_open) return AMP_ERROR_STEP_OPEN;
    if ((weight && !t->weight) || (grad && !t->grad)) return AMP_ERROR_UNSUPPORTED;
    moved = *s;
    if (weight) moved.master = weight;
    if (grad) {
        if (moved.unscaled == s->grad) moved.unscaled = (float *)grad;
        moved.grad = grad;
    }
    result = opt->backend.copy_fn(opt->backend.context, (char *)&opt->plan->slots[i] + offset,
                                  (char *)&moved + offset, length, AMP_COPY_TO_BACKEND);
    if (result == AMP_OK) result = opt->backend.wait_fn(opt->backend.context);
    if (result == AMP_OK) *s = moved;
    return result;
}

AMP_DEF const void *amp_optimizer_model(const amp_optimizer *opt, int i) {
    const ampi_slot *s = ampi_slot_of(opt, i);
    if (!s) return NULL;
    return s->model ? s->model : (const void *)s->master;
}

AMP_DEF float *amp_optimizer_grad(const amp_optimizer *opt, int i) {
    const ampi_slot *s = ampi_slot_of(opt, i);
    return s ? s->unscaled : NULL;
}

AMP_DEF float *amp_optimizer_master(const amp_optimizer *opt, int i) {
    const ampi_slot *s = ampi_slot_of(opt, i);
    return s ? s->master : NULL;
}

/* Bring num_bytes from backend memory to the host, when everything before has been done. */
static amp_result ampi_read_back(const amp_optimizer *opt, void *dst, const void *src,
                                 size_t num_bytes) {
    const amp_backend *b      = &opt->backend;
    const amp_result   result = b->copy_fn(b->context, dst, src, num_bytes, AMP_COPY_TO_HOST);
    return result == AMP_OK ? b->wait_fn(b->context) : result;
}

AMP_DEF amp_scaler *amp_optimizer_scaler(const amp_optimizer *opt) {
    return opt && opt->plan ? opt->plan->scaler : NULL;
}

AMP_DEF const float *amp_optimizer_loss_scale_ptr(const amp_optimizer *opt) {
    return opt && opt->plan ? &opt->plan->scaler->scale : NULL;
}

AMP_DEF float amp_optimizer_loss_scale(const amp_optimizer *opt) {
    float scale = 0.0f;
    if (!opt || !opt->plan) return 0.0f;
    if (ampi_read_back(opt, &scale, &opt->plan->scaler->scale, sizeof scale) != AMP_OK)
        return 0.0f;
    return scale;
}

AMP_DEF const amp_gate *amp_optimizer_gate(const amp_optimizer *opt) {
    return opt && opt->plan ? &opt->plan->control->gate : NULL;
}

AMP_DEF uint32_t *amp_optimizer_found_inf_ptr(const amp_optimizer *opt) {
    return opt && opt->plan ? &opt->plan->control->found_inf : NULL;
}

/* May a step of this kind begin? */
static amp_result ampi_can_step(const amp_optimizer *opt, amp_kind kind) {
    if (!opt) return AMP_ERROR_INVALID_ARGUMENT;
    if (!opt->initialized) return AMP_ERROR_BAD_STATE;
    if (!opt->plan) return AMP_ERROR_NOT_PREPARED;
    if (opt->step_open) return AMP_ERROR_STEP_OPEN;
    return opt->desc.kind == kind ? AMP_OK : AMP_ERROR_UNSUPPORTED;
}

AMP_DEF bool amp_optimizer_begin_step(amp_optimizer *opt) {
    amp_result result = ampi_can_step(opt, AMP_KIND_OWN);
    amp_gate   gate;
    if (!opt) return false;
    if (result == AMP_OK) {
        const amp_backend *b = &opt->backend;
        result               = b->check_fn(b->context, opt->plan, 0);
        if (result == AMP_OK) result = b->update_fn(b->context, opt->plan, AMP_JOB_UNSCALE);
        if (result == AMP_OK)
            result = ampi_read_back(opt, &gate, &opt->plan->control->gate, sizeof gate);
        if (result == AMP_OK) {
            opt->step_open = 1;
            return gate.skip == 0u;
        }
    }
    opt->pending = result;
    return false;
}

AMP_DEF amp_result amp_optimizer_end_step(amp_optimizer *opt) {
    amp_result result, pending;
    if (!opt) return AMP_ERROR_INVALID_ARGUMENT;
    if (!opt->initialized) return AMP_ERROR_BAD_STATE;
    pending      = opt->pending;
    opt->pending = AMP_OK;
    if (!opt->step_open) {
        if (pending != AMP_OK) return pending;
        return opt->plan ? AMP_ERROR_STEP_NOT_OPEN : AMP_ERROR_NOT_PREPARED;
    }
    result = opt->backend.update_fn(opt->backend.context, opt->plan, AMP_JOB_END);
    if (result != AMP_OK) return result;
    opt->step_open = 0;
    return pending;
}

static amp_result ampi_fused_step(amp_optimizer *opt, amp_kind kind, const float *lr) {
    const amp_result   ready = ampi_can_step(opt, kind);
    const amp_backend *b;
    amp_result         result;
    if (ready != AMP_OK) return ready;
    if (!ampi_f32_in(lr, 0.0f, AMPI_F32_MAX)) return AMP_ERROR_INVALID_CONFIG;
    b      = &opt->backend;
    result = b->copy_fn(b->context, &opt->plan->control->lr, lr, sizeof *lr, AMP_COPY_TO_BACKEND);
    if (result == AMP_OK) result = b->check_fn(b->context, opt->plan, !opt->plan->shared);
    if (result == AMP_OK) result = b->update_fn(b->context, opt->plan, AMP_JOB_FUSED);
    return result;
}

AMP_DEF amp_result amp_optimizer_adamw(amp_optimizer *opt, float lr) {
    return ampi_fused_step(opt, AMP_KIND_ADAMW, &lr);
}

AMP_DEF amp_result amp_optimizer_sgd(amp_optimizer *opt, float lr) {
    return ampi_fused_step(opt, AMP_KIND_SGD, &lr);
}

AMP_DEF amp_result amp_optimizer_status(const amp_optimizer *opt, amp_status *status) {
    ampi_control c;
    amp_scaler   s;
    amp_result   result;
    if (!opt || !status) return AMP_ERROR_INVALID_ARGUMENT;
    if (!opt->plan) return AMP_ERROR_NOT_PREPARED;
    result = ampi_read_back(opt, &c, opt->plan->control, sizeof c);
    if (result == AMP_OK) result = ampi_read_back(opt, &s, opt->plan->scaler, sizeof s);
    if (result != AMP_OK) return result;
    status->norm        = c.norm;
    status->clip_factor = c.clip_factor;
    status->loss_scale  = s.scale;
    status->did_step    = c.did_step;
    status->found_inf   = c.found_inf;
    status->stuck       = s.stuck;
    status->steps       = c.gate.step;
    status->skipped     = c.skipped;
    return AMP_OK;
}

AMP_DEF amp_result amp_optimizer_stats(const amp_optimizer *opt, int i, amp_stats *stats) {
    if (!opt || !stats || !ampi_tensor(opt, i)) return AMP_ERROR_INVALID_ARGUMENT;
    if (!opt->plan) return AMP_ERROR_NOT_PREPARED;
    return ampi_read_back(opt, stats, &opt->plan->slots[i].stats, sizeof *stats);
}

AMP_DEF void amp_optimizer_free(amp_optimizer *opt) {
    if (!opt || !opt->initialized) return;
    ampi_backend_free(opt, opt->backend_memory);
    ampi_release(&opt->desc.allocator, opt->plan);
    ampi_release(&opt->desc.allocator, opt->entries);
    memset(opt, 0, sizeof *opt);
}

AMPI_STRICT_END

/* ------------------------------------------------------------------ >>impl  gemm
   C is computed in tiles that stay in the cache. For each, blocks of op(A) and op(B) are packed
   into fp32 with converting loads, zero-padded to whole strips, and multiplied; products of one
   element are added in the order of k. Outside the strict region, so that the compiler may use
   FMA where your flags allow it. */

enum {
    AMPI_TILE_M  = 64,
    AMPI_TILE_N  = 64,
    AMPI_TILE_K  = 128,
    AMPI_STRIP_M = 4, /* rows and columns of C in registers at a time */
    AMPI_STRIP_N = 8
};

/* Pack rows x cols elements of a matrix, element (r, c) at base[r * rs + c * cs], transposed into
   dst[c * stride + r], with rows padded by zeros. The strided side is the caller's choice. */
static void ampi_pack(float *dst, size_t stride, const void *base, amp_dtype type, size_t start,
                      size_t rows, size_t cols, size_t rs, size_t cs) {
    size_t r, c;
    for (c = 0; c < cols; c++) {
        for (r = 0; r < rows; r++)
            dst[c * stride + r] =
                ampi_f32_from_bits(ampi_load(base, type, start + r * rs + c * cs));
        for (; r < stride; r++) dst[c * stride + r] = 0.0f;
    }
}

#ifdef AMP_CBLAS
static void ampi_multiply(float *acc, const float *a, const float *b, size_t m, size_t n,
                          size_t k) {
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)m, (int)n, (int)k, 1.0f, a,
                AMPI_TILE_M, b, AMPI_TILE_N, 1.0f, acc, AMPI_TILE_N);
}
#else
/* acc[m][n] += a[k][m] * b[k][n], all three with tile strides. */
static void ampi_multiply(float *acc, const float *a, const float *b, size_t m, size_t n,
                          size_t k) {
    size_t i, j, p, r, c;
    for (i = 0; i < m; i += AMPI_STRIP_M) {
        for (j = 0; j < n; j += AMPI_STRIP_N) {
            float sum[AMPI_STRIP_M][AMPI_STRIP_N];
            for (r = 0; r < AMPI_STRIP_M; r++)
                for (c = 0; c < AMPI_STRIP_N; c++) sum[r][c] = acc[(i + r) * AMPI_TILE_N + j + c];
            for (p = 0; p < k; p++) {
                const float *ap = a + p * AMPI_TILE_M + i;
                const float *bp = b + p * AMPI_TILE_N + j;
                for (r = 0; r < AMPI_STRIP_M; r++)
                    for (c = 0; c < AMPI_STRIP_N; c++) sum[r][c] += ap[r] * bp[c];
            }
            for (r = 0; r < AMPI_STRIP_M; r++)
                for (c = 0; c < AMPI_STRIP_N; c++) acc[(i + r) * AMPI_TILE_N + j + c] = sum[r][c];
        }
    }
}
#endif

/* The tile of C whose first element is (i, j). */
static AMPI_NOINLINE void ampi_gemm_tile(const amp_gemm_args *g, size_t i, size_t j) {
    float        acc[AMPI_TILE_M * AMPI_TILE_N];
    float        a[AMPI_TILE_K * AMPI_TILE_M], b[AMPI_TILE_K * AMPI_TILE_N];
    const size_t m = ampi_min(g->m - i, AMPI_TILE_M);
    const size_t n = ampi_min(g->n - j, AMPI_TILE_N);
    const size_t ars = g->trans_a ? 1 : g->lda, acs = g->trans_a ? g->lda : 1;
    const size_t brs = g->trans_b ? 1 : g->ldb, bcs = g->trans_b ? g->ldb : 1;
    const int    product = g->alpha < 0.0f || g->alpha > 0.0f;
    size_t       p, r, c;
    for (r = 0; r < AMPI_TILE_M * AMPI_TILE_N; r++) acc[r] = 0.0f;
    for (p = 0; product && p < g->k; p += AMPI_TILE_K) {
        const size_t k = ampi_min(g->k - p, AMPI_TILE_K);
        ampi_pack(a, AMPI_TILE_M, g->a, g->a_type, i * ars + p * acs, m, k, ars, acs);
        ampi_pack(b, AMPI_TILE_N, g->b, g->b_type, p * brs + j * bcs, n, k, bcs, brs);
        ampi_multiply(acc, a, b, m, n, k);
    }
    for (r = 0; r < m; r++) {
        const size_t row = (i + r) * g->ldc + j;
        for (c = 0; c < n; c++) {
            float x = g->alpha * acc[r * AMPI_TILE_N + c];
            if (!product) x = 0.0f;
            if (g->beta < 0.0f || g->beta > 0.0f)
                x += g->beta * ampi_f32_from_bits(ampi_load(g->c, g->c_type, row + c));
            ampi_store(g->c, g->c_type, row + c, ampi_bits_of_f32(x));
        }
    }
}

static amp_result ampi_cpu_gemm(void *context, const amp_gemm_args *g) {
    uint32_t fp;
    size_t   i, j;
    (void)context;
#ifdef AMP_CBLAS
    if (g->a_type == AMP_F32 && g->b_type == AMP_F32 && g->c_type == AMP_F32 &&
        (g->m | g->n | g->k | g->lda | g->ldb | g->ldc) <= 0x7fffffff) {
        cblas_sgemm(CblasRowMajor, g->trans_a ? CblasTrans : CblasNoTrans,
                    g->trans_b ? CblasTrans : CblasNoTrans, (int)g->m, (int)g->n, (int)g->k,
                    g->alpha, (const float *)g->a, (int)g->lda, (const float *)g->b, (int)g->ldb,
                    g->beta, (float *)g->c, (int)g->ldc);
        return AMP_OK;
    }
#endif
    fp = ampi_fp_begin();
    for (i = 0; i < g->m; i += AMPI_TILE_M)
        for (j = 0; j < g->n; j += AMPI_TILE_N) ampi_gemm_tile(g, i, j);
    ampi_fp_end(fp);
    return AMP_OK;
}

/* Replace a leading dimension of 0, and see that rows do not overlap and the matrix has a size. */
static amp_result ampi_matrix_ok(const void *x, amp_dtype type, size_t rows, size_t cols,
                                 size_t *ld) {
    if (!amp_dtype_size(type)) return AMP_ERROR_INVALID_ENUM;
    if (*ld == 0) *ld = cols ? cols : 1;
    if (*ld < cols) return AMP_ERROR_INVALID_ARGUMENT;
    if (rows && cols && !x) return AMP_ERROR_INVALID_ARGUMENT;
    return rows && *ld > SIZE_MAX / 4 / rows ? AMP_ERROR_TOO_LARGE : AMP_OK;
}

AMP_DEF amp_result amp_gemm(const amp_backend *backend, int trans_a, int trans_b, size_t m,
                            size_t n, size_t k, float alpha, const void *a, amp_dtype a_type,
                            size_t lda, const void *b, amp_dtype b_type, size_t ldb, float beta,
                            void *c, amp_dtype c_type, size_t ldc) {
    amp_gemm_args g;
    amp_result    result = ampi_matrix_ok(c, c_type, m, n, &ldc);
    if (result == AMP_OK)
        result = ampi_matrix_ok(a, a_type, trans_a ? k : m, trans_a ? m : k, &lda);
    if (result == AMP_OK)
        result = ampi_matrix_ok(b, b_type, trans_b ? n : k, trans_b ? k : n, &ldb);
    if (result != AMP_OK) return result;
    g.trans_a = trans_a;
    g.trans_b = trans_b;
    g.m       = m;
    g.n       = n;
    g.k       = k;
    g.alpha   = alpha;
    g.beta    = beta;
    g.a       = a;
    g.b       = b;
    g.c       = c;
    g.a_type  = a_type;
    g.b_type  = b_type;
    g.c_type  = c_type;
    g.lda     = lda;
    g.ldb     = ldb;
    g.ldc     = ldc;
    if (m == 0 || n == 0) return AMP_OK;
    if (!backend) return ampi_cpu_gemm(NULL, &g);
    return backend->gemm_fn ? backend->gemm_fn(backend->context, &g) : AMP_ERROR_UNSUPPORTED;
}

#ifdef __cplusplus
}
#endif

#endif /* AMP_IMPLEMENTATION_INCLUDED */

/* ---------------------------------------------------------------------- licence
   Two licences; choose the one you prefer.

   1. MIT License. Copyright (c) 2026 the amp.h authors.

   Permission is hereby granted, free of charge, to any person obtaining a copy of this software
   and associated documentation files (the "Software"), to deal in the Software without
   restriction, including without limitation the rights to use, copy, modify, merge, publish,
   distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the
   Software is furnished to do so, subject to the following conditions:

   The above copyright notice and this permission notice shall be included in all copies or
   substantial portions of the Software.

   THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING
   BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
   NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM,
   DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
   OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.

   2. Public domain (Unlicense, unlicense.org).

   This is free and unencumbered software released into the public domain. Anyone is free to copy,
   modify, publish, use, compile, sell, or distribute this software, either in source code form or
   as a compiled binary, for any purpose, commercial or non-commercial, and by any means. In
   jurisdictions that recognize copyright laws, the author or authors of this software dedicate
   any and all copyright interest in the software to the public domain. We make this dedication
   for the benefit of the public at large and to the detriment of our heirs and successors. We
   intend this dedication to be an overt act of relinquishment in perpetuity of all present and
   future rights to this software under copyright law.

   THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING
   BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
   NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
   LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN
   CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE. */
