/* amp.h - v1.0.0 - automatic mixed precision for training loops in C and CUDA
   SPDX-License-Identifier: MIT OR Unlicense (your choice, see the end of the file)

   The shortest program that trains faster: a layer that multiplies in bf16; all arrays are fp32.
   The loss that it prints falls from 42.71 to 0.00 (cc -O3 -I. fast.c -o fast).

       #define AMP_IMPLEMENTATION
       #include "amp.h"
       #include <stdio.h>
       #include <time.h>
       enum { ROWS = 128, IN = 512, OUT = 512 };
       static float x[ROWS * IN], y[ROWS * OUT], dy[ROWS * OUT], w[OUT * IN], dw[OUT * IN];
       int main(void) {
           const amp_dtype type  = AMP_BF16;
           const clock_t   start = clock();
           for (unsigned i = 0, r = 1; i < ROWS * IN; i++)
               x[i] = (float)((r = r * 1664525u + 1013904223u) >> 8) / 16777216.0f - 0.5f;
           for (int step = 0; step <= 60; step++) {
               float loss = 0.0f;
               amp_linear(y, x, w, NULL, ROWS, IN, OUT, type);
               for (int i = 0; i < ROWS * OUT; i++) dy[i] = y[i] - x[i], loss += dy[i] * dy[i];
               amp_linear_backward(NULL, dw, NULL, dy, x, w, ROWS, IN, OUT, 0, type);
               for (int i = 0; i < OUT * IN; i++) w[i] -= 0.005f * dw[i];
               if (step % 20 == 0) printf("step %2d  loss %.2f\n", step, loss / (float)ROWS);
           }
           printf("%.2f ms a step\n", 1e3 * (double)(clock() - start) / CLOCKS_PER_SEC / 61);
           return 0;
       }

   Define AMP_IMPLEMENTATION in one source file, best one of its own, compiled with -O2 or more.
   All other files just #include "amp.h". To test a change: make test, make ci (tests/README.md).

   CONTENTS  Part 1, the interface, ends at >>core. Search for >>words, >>api layers.
       >>words  >>steps  >>numbers  >>memory  >>errors  >>options  >>gpu  >>promises
       >>api      results, numbers, scaler, backend, optimizer, state, environment, layers;
                  optional: cuda, control, gemm, ranks, sparse, report, storage, capability,
                  autocast, session, sgemm, ops, cblas
       >>core     every formula, once, for host and device
       >>impl     the code, mostly so named; instruction sets (tiers) last. AVX2's product is
                  in >>impl kernels; make tier TIER=avx2 WORD=sums prints it without macros

   WHAT IT DOES: 16-bit types and casts; loss scaling by the rules of nine systems; fp32 masters
   with fp16 or bf16 copies; steps around your optimizer, or by AdamW, SGD or Lion; clipping;
   save and load, bit for bit; products of mixed types; autocast; reports. It runs on CPUs and,
   with amp_kernels.cu, on NVIDIA GPUs. WHAT IT DOES NOT: tensors, autograd, layers, data,
   schedules. It never prints or exits. Its globals are the instruction set that it found and, in
   each thread, the current autocast, the text of the last error and the last CUDA code.

   >>words

       step             what follows backward: check the gradients, then change the weights (a
                        step taken) or leave them (a skipped step). Products are no part of it
       loss scale       factor on the loss, so that small gradients survive fp16. To unscale is
                        to multiply gradients by its reciprocal, in fp32
       found_inf        flag: a gradient was inf or NaN, so the step must be skipped
       backoff, growth  the scale shrinks after found_inf, and grows after many good steps
       master weights   the fp32 weights, which the optimizer changes
       model weights    their copy (fp16, bf16), which forward and backward read
       gate             what a check decided, for your kernels: skip or not, and 1 / loss scale
       tier             the instruction set that functions on the CPU use: amp_cpu_tier()
       policy           a table of ops and their types; an override is your exception to it
       scope            the code from amp_autocast_push to _pop, where the thread's current
                        autocast applies its policy. amp_session_start opens one. You need one
                        only if amp.h shall choose types, or (AMP_AUTOCAST_OFF) for exact
                        fp32 in a session, where amp_linear may round AMP_F32, too

   >>steps  One iteration, which ends with a step (3 to 5):

       1  loss = forward(model weights)
       2  backward(loss * loss scale)    gradients are scaled, of any type
       3  check       is any gradient inf or NaN? global norm, statistics
       4  unscale     and clip; the optimizer changes the masters. Skipped after inf or NaN
       5  update      the loss scale moves; after a step that was taken, models are written

   A gradient that is inf or NaN is no error. The step is skipped: weights, model copies, moments
   and step count keep every bit, the scale backs off, status.did_step is 0. Gradients stay as
   they are: set desc.zero_grad if backward adds to them. amp_optimizer_stats says whether
   gradient i was, and where. status.stuck is 1 after at most 40 skips in a row.
   desc.scaler.disabled: inf and NaN skip no step. Products check nothing: a NaN passes through.

   Your own optimizer, after amp_optimizer_init, _add for each tensor, and _prepare. For bf16 set
   desc.dtype = AMP_BF16 and desc.scaler.preset = AMP_PRESET_NONE:
       forward(amp_optimizer_model(&opt, 0));          the 16-bit copy of the weights
       backward(dloss * amp_optimizer_loss_scale(&opt));
       if (amp_optimizer_begin_step(&opt))             all finite? then unscaled
           sgd_step(w, amp_optimizer_grad(&opt, 0), n, lr);    yours, in fp32
       amp_optimizer_end_step(&opt);                   new scale, new 16-bit copy
   With desc.kind, amp_optimizer_step does the last three lines. A loop that owns all arrays calls
   amp_scaler_unscale on each gradient, steps if found_inf is 0, and calls amp_scaler_update.

   bf16 has the range of fp32 and needs no loss scale. AMP_PRESET_NONE has a scale of 1 and still
   skips. AMP_PRESET_DEFAULT starts at 65536 in every dtype; scale the loss by it, or no step runs.

   Clipping multiplies gradients by max_norm / (norm + 1e-6) if that is below 1, as torch does.
   norm is that of all unscaled gradients together. A skipped step clips nothing; its status.norm
   is that of the finite elements. status.steps counts the steps taken: use it for Adam's t.

   To resume, prepare as before and call amp_optimizer_load_file: the run goes on with the same
   bits. The file's numbers of desc and tensors (lr, max_norm, weight_decay, scaler) replace
   yours: >>api state. Give each tensor a name: a load compares them. Moments of your own are in
   it if you add them as tensors with frozen and keep_fp32; one that you forget starts at 0, and
   nothing tells. For inference in 16 bits save the copies yourself: amp_optimizer_model.

   Two optimizers, such as Muon and AdamW, can share check, norm and skip (examples/muon.c). Yours
   steps the tensors with amp_tensor.own, after begin_step. end_step steps the others by
   desc.kind; amp_optimizer_set_lr comes before (else AMP_ERROR_BAD_STATE). Leave their gradients
   unchanged until end_step returns. A tensor with own is stored in fp32, and has no rows.

   >>numbers  fp16 has 5 bits of exponent and 10 of fraction: largest 65504, least 6.0e-8. bf16
   has 8 and 7: largest 3.4e38, as in fp32, least 9.2e-41. Conversions round to nearest, ties to
   even. Overflow gives inf; subnormals are kept. A NaN becomes quiet and keeps the top bits of
   its payload, as in the F16C instructions (bf16 to fp32 only appends zero bits). -Ofast,
   flush-to-zero and the rounding mode change no bit, with the exceptions below.

   A step rounds each product and each sum by itself, and sums the norm in one fixed order. While
   amp.h computes, rounding is to nearest, subnormals count and floating-point traps are masked;
   your settings are restored on return (x86 with SSE, AArch64, ARM from version 7 on by gcc and
   clang, x86-64 by MSVC). On 32-bit x86, returning a float from a function quiets a signaling
   NaN; without -mfpmath=sse only array casts and checks are exact. clang on 32-bit ARM, and
   clang 14 on AArch64, offer no protection from -Ofast.

   Matrix products on a CPU are summed in fp32, in the order of k. AVX2, AVX-512 and NEON round
   once per k (an FMA) and have one set of bits; plain C rounds product and sum. In these four a
   row of C has the same bits for any m and at any place (except sign and payload of a NaN, and
   with AMP_CBLAS). Three tiers have other bits for 16-bit A and B (tests/support/tiles.h), and
   take bf16 subnormals and sums below 2^-126 for 0. Where machines must agree, force "avx512" in
   place of "amx" and "avx512_bf16", "neon" in place of "neon_bf16" (amp_cpu_force_tier):
       "amx"          fp16, bf16, tf32, if m, n >= 2, m n k >= 2^15: a row's bits depend on m.
                      An fp16 inf may give NaN; (A B)^T and B^T A^T differ in bits
       "neon_bf16"    bf16, from the same sizes on: BFMMLA, run in qemu alone
       "avx512_bf16"  bf16, for all m; by default only on AMD

   What is reproducible, and which tests show it:
       steps, with their checks and casts: the same bits for any compiler, flags, instruction
           set, byte order, threads, alignment, on CPU and GPU (an emulator's). Exceptions: above;
           sign and payload of NaNs from an infinite weight or moment, or that scaler.disabled let
           pass (test_bits.c; bits.sh; test_cuda.cpp: own_steps, grids; gpu.sh on a device)
       products on a CPU: the same for any flags, threads and alignment, and on machines of one
           set of bits, but for any NaN's sign and payload (test_gemm.c: bits_*). On a GPU: what
           cuBLAS promises for a version, GPU and stream
       a run loaded at any step: the bits of one that never stopped (test_state.c: resume_*,
           killed; trainer.sh; ranks.sh: kills)
       ranks: the same for any number with examples/ddp/zero.h. Gradients that you sum, or a
           norm in reduce_fn, have the bits of your order (test_zero.c: same_bits; ranks.sh)

   >>memory  Steps, casts and amp_scaler_* allocate nothing. These calls allocate by
   desc.allocator: prepare; add and add_flat beyond AMP_INLINE_TENSORS (32) tensors;
   amp_session_start; save and load, which free it on return. Device memory is cudaMalloc's.
   Products of m n k above 2^22 call malloc and free: amp_linear and amp_matmul always, amp_gemm
   unless backend.workspace has amp_gemm_workspace bytes. Arrays may be unaligned; n may be odd,
   0 (then the pointer may be NULL) or, except on CUDA, above 2^31.

   Bytes a parameter with AdamW: weight, gradient, moments and what prepare adds. Activations
   that you store in 16 bits take half; >>api storage has smaller masters and moments:
       your loop in fp32           4+4+8   = 16    amp.h's AdamW, fp32 gradients     4+4+10 = 18
       your AdamW, fp32 gradients  4+4+8+6 = 22    the same, 16-bit gradients        4+2+10 = 16
       the same, unscale_in_place  4+4+8+2 = 18    dtype AMP_F32, moments of 8 bits  4+4+2  = 10
       the same, 16-bit gradients  4+2+8+6 = 20

   >>errors  Functions that can fail return amp_result; AMP_OK is 0. amp_problem() then says what
   was wrong: field, value, bounds; tensor; missing call. It is this thread's last error; only the
   next one replaces it; amp_cuda_* leave it as it is. end_step returns begin_step's error.

   Zero a desc or tensor, then set what you need: 0 is the default. A negative weight_decay,
   lr_scale, beta1 or beta2 is exactly 0; any other negative number is refused, and so is NaN.

   A call that returns an error has changed nothing, with these exceptions. If a backend fails in
   a step, load, rebind, refresh, set_moments or set_steps (the CPU never does), or reduce_fn fails,
   load a saved state before you go on. In prepare models may then be written, and weights NaN.
   After a second begin_step, end_step completes the step, then returns the error. A refused init
   (amp_*_init, amp_*_backend) leaves a zeroed object: correct the desc and retry. A refused add
   is remembered: prepare returns its error until free. So a check of prepare checks all adds.

   The first step is AMP_ERROR_BAD_STATE if the loss was not scaled, or if a tensor has neither
   grad nor frozen (rebind may give grad later). Some mistakes return AMP_OK: look at status.stuck,
   .missed_updates and .f16_overflows, and debug by amp_session_check.

   Threads: no object has a lock, so one thread at a time may use it. Objects that share no scaler
   or workspace, and calls without an object (amp_linear), may run at once. Without thread-local
   storage in the compiler, amp_problem() is one for all, and there is no current autocast.

   >>options  Macros and flags. "With it": in the file that has AMP_IMPLEMENTATION.
       AMP_IMPLEMENTATION  in one file: compiles the functions there
       AMP_STATIC          with it: all is private to that file. For a library that others link
       AMP_CBLAS           with it, after your <cblas.h>: amp_gemm multiplies fp32 by cblas_sgemm
                           where that pays (m, n > 1), no bias, no activation; Apple: >>api autocast
       AMP_CBLAS_DROP_IN   also where you call it, after your <cblas.h>: >>api cblas
       AMP_CUBLAS          or AMP_CUBLAS_DROP_IN: likewise, after <cublas_v2.h>: >>api sgemm
       -O2                 with it: clang -O0 makes fp32 20 to 80 times slower. gcc needs none
       AMP_DEBUG           with it: gcc -O0 leaves amp.h to a debugger (fp32 25 times slower),
                           gcc -O0 -fsanitize=undefined compiles it in seconds, not minutes
       -fopenmp            with it: threads share the work on large arrays. A child of fork
                           then hangs in libgomp, unless it calls omp_set_num_threads(1) first
       AMP_NO_AUTOCAST     everywhere: without autocast and session
       AMP_FILE            with it, if amp.h, which includes itself, was renamed: "its_name.h"
       AMP_NO_VECTORS      with it: plain C alone; several times slower
       AMP_NO_STDLIB       with it: no malloc, files, environment; each desc needs an allocator
       AMP_DEF             everywhere: linkage, such as __declspec(dllexport); not of amp_cuda_*
       -lm                 for a square root: other processors than x86 and AArch64, or compilers

   >>gpu  Experimental: no GPU has run it. An emulator shows its bits; nobody measured its speed.
   Compile amp_kernels.cu with nvcc (CUDA 11.8, sm_75, or newer) beside your own files, link with
   -lcublas -lcublasLt (with gcc also -lcudart -lstdc++). Make a backend of your stream and pass
   device memory to amp_optimizer, amp_gemm and amp_cuda_*. amp.h's functions run on the host:
       amp_cuda_backend(&gpu, stream, cublas_handle); desc.backend = &gpu;
   The host never waits if you scale the loss by amp_cuda_scale_loss (or by what
   amp_optimizer_loss_scale_ptr points to) and call amp_optimizer_step: loss scale, learning rate,
   step count and the decision to skip stay in device memory. A CUDA graph captures
   amp_optimizer_step_graph; call amp_optimizer_set_lr when the rate changes. A kernel of your own
   learns of a skip by
       gate         amp_optimizer_check, your kernel, end_step: nothing waits. The kernel begins
                    with if (gate->skip) return; where gate is that of amp_optimizer_gate
       graph node   CUDA 12.4's conditional node around launches: examples/step_cuda.cu
       read-back    begin_step and end_step as on a CPU; the host waits once
   Work is queued on the backend's stream. If backward has a stream of its own, the backend's must
   wait for it before the step, and forward for the backend's before it reads model copies
   (cudaStreamWaitEvent). With several GPUs the stream's device must be current.

   >>promises  1.0.0 is the first public release. Every 1.x keeps all names of part 1 with amp_ or
   AMP_, words (of policies, tiers, environment), and what they mean; the rules of presets and
   policies; bits of steps on CPUs (unless they were an error, which it says); the layout of
   amp_scaler, amp_gate, amp_f16, amp_bf16; and loads files of earlier ones. Not promised: CUDA's
   names (amp_cuda_*, amp_sgemm*, AMP_CUBLAS*, amp_stream, _step_graph) and bits, until GPUs have
   run them; what is private; messages; AMP_MAX_*, AMP_NUM_OPS, AMP_INLINE_TENSORS; bits of
   products; which types pay. 1.x may add names and, at the end, enumerators and members (0: as
   before) of other structs, and numbers for reduce_fn: compile all by one header. */

#define AMP_VERSION_MAJOR 1
#define AMP_VERSION_MINOR 0
#define AMP_VERSION_PATCH 0

#ifndef AMP_H_INCLUDED
#define AMP_H_INCLUDED

#include <stddef.h>  /* size_t */
#include <stdint.h>  /* uint16_t, uint32_t, uint64_t */
#ifndef __cplusplus
#include <stdbool.h> /* bool */
#endif

#if !defined(AMP_DEF) && !defined(AMP_STATIC)
#define AMP_DEF extern
#elif !defined(AMP_DEF) && (defined(__GNUC__) || defined(__clang__))
#define AMP_DEF static __attribute__((unused))
#elif !defined(AMP_DEF)
#define AMP_DEF static
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* You have                                      use
     loops that multiply matrices, on a CPU      amp_linear, amp_matmul
     a loop that owns its memory                 amp_scaler
     an optimizer of your own                    amp_optimizer_begin_step, _end_step
     no optimizer yet                            amp_optimizer_step
     a trainer on cblas_sgemm, on cuBLAS         amp_session, AMP_CBLAS_ or AMP_CUBLAS_DROP_IN
     a framework with its own optimizers         amp_cast, amp_scaler
     several ranks                               nothing, or desc.reduce_fn: >>api ranks
     inference                                   amp_cast, amp_gemm, amp_autocast
     a GPU                                       amp_cuda_backend                        */

/* ----------------------------------------------------------------- >>api results */

typedef enum amp_result {
    AMP_OK = 0,
    AMP_ERROR_INVALID_ARGUMENT, /* a NULL pointer; an index or length out of range                */
    AMP_ERROR_INVALID_ENUM,     /* a value that an enum of amp.h does not have                    */
    AMP_ERROR_INVALID_CONFIG,   /* a number is NaN, infinite, out of range or contradictory       */
    AMP_ERROR_UNSUPPORTED,      /* not offered: another kind, a captured stream, no cuBLAS handle */
    AMP_ERROR_OVERLAP,          /* gemm, optimizer, unscale, cast: arrays overlap that must not   */
    AMP_ERROR_OUT_OF_MEMORY,    /* the allocator returned NULL                                    */
    AMP_ERROR_TOO_LARGE,        /* bytes beyond size_t; too many; a size of 2^31 on CUDA, or more */
    AMP_ERROR_NOT_INITIALIZED,  /* scaler, optimizer, autocast before init, session before start  */
    AMP_ERROR_NOT_PREPARED,     /* optimizer: a step before amp_optimizer_prepare                 */
    AMP_ERROR_PREPARED,         /* optimizer: add or prepare after amp_optimizer_prepare          */
    AMP_ERROR_STEP_OPEN,        /* optimizer: begin_step twice, or a change during an open step   */
    AMP_ERROR_STEP_NOT_OPEN,    /* optimizer: end_step without begin_step                         */
    AMP_ERROR_BAD_STATE,        /* something must come first: a check, a scaled loss, a report    */
    AMP_ERROR_STALE,            /* session: a weight changed without amp_session_changed          */
    AMP_ERROR_NOT_FOUND,        /* state: there is no such file                                   */
    AMP_ERROR_READ,             /* state: it could not be read                                    */
    AMP_ERROR_WRITE,            /* state: it could not be written; errno is that of the call      */
    AMP_ERROR_TRUNCATED,        /* state: the file ends too early                                 */
    AMP_ERROR_FOREIGN,          /* state: not one of amp.h                                        */
    AMP_ERROR_NEWER,            /* state: written by a newer amp.h                                */
    AMP_ERROR_CORRUPT,          /* state: bytes have changed                                      */
    AMP_ERROR_MISMATCH,         /* state: of other tensors or another kind                        */
    AMP_ERROR_MIXED_TYPES,      /* types that do not mix: in an op, a product, desc of a session  */
    AMP_ERROR_BANNED,           /* policy: the op is not safe in 16 bits; override it             */
    AMP_ERROR_PARSE,            /* policy: a word that amp.h does not know, or too many           */
    AMP_ERROR_WORKSPACE,        /* gemm on CUDA: backend.workspace is NULL or too small           */
    AMP_ERROR_CUDA,             /* a CUDA call failed: amp_cuda_code() is its cudaError_t         */
    AMP_ERROR_CUBLAS            /* a cuBLAS call failed: amp_cuda_code() is its cublasStatus_t    */
} amp_result;

/* What was wrong in this thread's last call, except of amp_cuda_*, that returned an error (or in
   begin_step): field, value, bounds; tensor; missing call. Never NULL; "" before any. */
AMP_DEF const char *amp_problem(void);

/* A sentence for result, and the version that is linked, "1.2.3". Both are static, never NULL. */
AMP_DEF const char *amp_result_string(amp_result result);
AMP_DEF const char *amp_version(void);

/* ---------------------------------------------------------------- >>api numbers */

/* One-member structs, so that mixing fp16 and bf16 does not compile. */
typedef struct amp_f16  { uint16_t bits; } amp_f16;
typedef struct amp_bf16 { uint16_t bits; } amp_bf16;

typedef enum amp_dtype { AMP_F32 = 0, AMP_F16, AMP_BF16 } amp_dtype;
AMP_DEF size_t amp_dtype_size(amp_dtype type); /* bytes of one element; 0 for an unknown type */

/* Convert one number, to nearest even (IEEE 754; the bits of VCVTPS2PH, VCVTPH2PS). Pure. */
AMP_DEF amp_f16  amp_f32_to_f16(float x);
AMP_DEF float    amp_f16_to_f32(amp_f16 x);
AMP_DEF amp_bf16 amp_f32_to_bf16(float x);
AMP_DEF float    amp_bf16_to_f32(amp_bf16 x);

/* Convert n elements in host memory. dst may be src if no wider; else they must not overlap. */
AMP_DEF amp_result amp_cast(void *dst, amp_dtype dst_type, const void *src, amp_dtype src_type,
                            size_t n);

/* True if no element is inf or NaN. False also for an unknown type, or NULL with n > 0. */
AMP_DEF bool amp_all_finite(const void *x, amp_dtype type, size_t n);

/* ----------------------------------------------------------------- >>api scaler */

/* Whose rules (of 2026) the loss scale follows. Columns: init_scale, growth_interval, min_scale,
   max_scale, hysteresis; - is none. */
typedef enum amp_preset {
    AMP_PRESET_DEFAULT = 0,           /* 2^16 2000 2^-14 2^24 1  torch's schedule, within limits  */
    AMP_PRESET_STATIC,                /* 2^16 never moves; overflowing steps are still skipped    */
    AMP_PRESET_NONE,                  /* 1    never moves: STATIC for bf16; init_scale is 0 or 1  */
    AMP_PRESET_TORCH,                 /* 2^16 2000 -     -    -  GradScaler; can sink to 0        */
    AMP_PRESET_APEX,                  /* 2^16 2000 -     2^24 -  apex.amp LossScaler              */
    AMP_PRESET_APEX_HYSTERESIS,       /* 2^16 2000 -     -    1  apex update_scale_hysteresis     */
    AMP_PRESET_MEGATRON,              /* 2^32 1000 1     -    2  refilled by growth; can be inf   */
    AMP_PRESET_DEEPSPEED,             /* 2^16 1000 1     -    2  until 0.17.0; refilled by growth */
    AMP_PRESET_DEEPSPEED_CONSECUTIVE, /* 2^16 1000 1     -    2  until 0.17.0; by any good step   */
    AMP_PRESET_DEEPSPEED_FUSED,       /* 2^32 1000 1     -    -  FP16_Optimizer: one step later   */
    AMP_PRESET_FLAX,                  /* 2^16 2000 FLT_MIN FLT_MAX -  grows after N + 1           */
    AMP_PRESET_JMP,                   /* 2^16 2000 1     -    -                                   */
    AMP_PRESET_KERAS,                 /* 2^15 2000 -     -    -  Keras 3; can reach inf           */
    AMP_PRESET_TF_KERAS,              /* 2^15 2000 1     -    -  compares with >=, not ==         */
    AMP_PRESET_MXNET                  /* 2^16 2000 -     2^24 -  a new scale acts one update late */
} amp_preset;

/* Zero the struct, then set what you need; zero is the preset's default. */
typedef struct amp_scaler_desc {
    float      init_scale;      /* first loss scale, > 0                                        */
    double     growth_factor;   /* >= 1, default 2                                              */
    double     backoff_factor;  /* in (0, 1], default 1/2, or 1 / growth_factor where the original
                                   has one factor (APEX, DEEPSPEED*, JMP, TF_KERAS, MXNET)      */
    int        growth_interval; /* good steps before the scale grows                            */
    int        hysteresis;      /* back off at the Nth overflow; ignored in presets marked -    */
    float      min_scale;       /* backing off stops here                                       */
    float      max_scale;       /* growth stops here; both also bound a default init_scale      */
    int        disabled;        /* nonzero: scale is 1, inf and NaN skip no step; only counts   */
    amp_preset preset;
} amp_scaler_desc;

/* Plain data, also in device memory. Size and offsets stay in every 1.x: its bytes may be saved,
   and loaded where the byte order is the same. Read what is not private. Write found_inf (nonzero:
   skip) before your step (in an optimizer's scaler before its check); between updates also
   growth_factor, backoff_factor and growth_interval, within the desc's limits. */
typedef struct amp_scaler {
    float    scale;              /* multiply the loss by this                                   */
    uint32_t found_inf;          /* a gradient since the last update was inf or NaN             */
    uint32_t checked;            /* gradients checked since the last update                     */
    uint32_t stuck;              /* sticky: a backoff was due but the scale is at its floor     */
    uint64_t good, skipped;      /* updates without and with found_inf                          */
    uint64_t skipped_in_a_row;   /* up to the last update; 0: that one was good                 */
    uint64_t growths, backoffs;  /* how often the scale went up and down                        */
    double   growth_factor;
    double   backoff_factor;     /* 0: divide by growth_factor, whose reciprocal is not exact   */
    int      growth_interval, growth_tracker; /* good steps before growth; counted towards it   */
    int      hysteresis, hysteresis_tracker;  /* the tracker: overflows left to tolerate, plus 1 */
    float    min_scale, max_scale; /* 0: none                                                   */
    uint32_t preset, disabled;   /* amp_preset; 1: the scale is 1 and never moves               */
    double   next_scale;         /* private: wider than scale, or one update ahead              */
    uint64_t reserved[4];        /* private: 0                                                  */
} amp_scaler;

/* Set up *s; desc NULL: all defaults. AMP_ERROR_INVALID_CONFIG: a number is NaN, negative or
   contradictory or, in DEFAULT and STATIC, makes a scale or 1 / scale that is not normal. */
AMP_DEF amp_result amp_scaler_init(amp_scaler *s, const amp_scaler_desc *desc);

/* Check src: set found_inf, until amp_scaler_update, if an element is inf or NaN or, in DEFAULT and
   STATIC, becomes so when it is unscaled (a scale below 1). Write it times 1 / scale to dst: n
   floats apart from src; or src itself (fp32, bf16; fp16 is AMP_ERROR_UNSUPPORTED: it would lose
   what scaling saved); or NULL, to check only. n may be 0. A partial overlap is AMP_ERROR_OVERLAP.
   After all gradients, step if found_inf is 0. */
AMP_DEF amp_result amp_scaler_unscale(amp_scaler *s, void *dst, const void *src,
                                      amp_dtype src_type, size_t n);

/* End the iteration, stepped or not: move the scale by the preset's rules (no other call does),
   clear found_inf. AMP_ERROR_BAD_STATE: nothing was checked, and found_inf is 0. */
AMP_DEF amp_result amp_scaler_update(amp_scaler *s);

/* Replace the scale (not if disabled) between two iterations; growth_tracker stays, stuck is
   cleared. Errors as in init; in DEFAULT, STATIC, NONE it must be in min_scale to max_scale. */
AMP_DEF amp_result amp_scaler_set_scale(amp_scaler *s, float scale);

/* ---------------------------------------------------------------- >>api backend */

/* For host memory; device memory is cudaMalloc's. Zero: malloc and free; else set both. */
typedef struct amp_allocator {
    void *(*allocate_fn)(void *user, size_t num_bytes); /* aligned as malloc's; NULL: none left */
    void (*release_fn)(void *user, void *memory);       /* memory is not NULL                   */
    void *user;
} amp_allocator;

typedef struct amp_plan       amp_plan;       /* private: tables of one optimizer; in >>core     */
typedef struct amp_gemm_args  amp_gemm_args;  /* >>api gemm                                      */
typedef struct ampi_functions ampi_functions; /* what differs between machines; >>core           */
typedef struct CUstream_st   *amp_stream;     /* the same type as cudaStream_t; no CUDA header   */

/* Where work runs: of amp_cpu_ or amp_cuda_backend. Plain data, which init and start copy. */
typedef struct amp_backend {
    const ampi_functions *functions; /* private; says which backend it is                        */
    void      *context;        /* amp_cuda_backend: the cuBLAS handle                             */
    amp_stream stream;         /* CUDA: where all work is queued                                  */
    void      *workspace;      /* CPU: of amp_gemm; CUDA: device memory that cuBLAS may use       */
    size_t     workspace_size;
} amp_backend;

AMP_DEF amp_result amp_cpu_backend(amp_backend *backend);

/* -------------------------------------------------------------- >>api optimizer */

/* One weight tensor. Its arrays are yours, in the backend's memory. Prepare makes a model copy of
   desc.dtype if there is only a weight, an fp32 master if there is only a model (16-bit weights);
   if there are both it makes nothing, and writes model from weight. */
typedef struct amp_tensor {
    const char *name;       /* for errors, reports, files; must outlive the optimizer; or NULL */
    size_t      n;          /* elements                                                        */
    float      *weight;     /* fp32 master, or NULL                                            */
    void       *grad;       /* scaled gradient; NULL: rebind gives it before the first step    */
    amp_dtype   grad_type;  /* set it for 16-bit gradients: zero is AMP_F32, of 4 bytes        */
    void       *model;      /* model copy, or NULL                                             */
    amp_dtype   model_type; /* set it with model: zero is AMP_F32, of 4 bytes                  */
    float       lr_scale;   /* factor on the learning rate. 0: 1; negative: 0                  */
    float       weight_decay; /* 0: the optimizer's; negative: none                            */
    int         keep_fp32;  /* nonzero: forward reads the master (biases, norms)               */
    int         frozen;     /* nonzero: grad is ignored; no step touches it or its copy        */
    int         own;        /* nonzero: your optimizer steps it, desc.kind the rest: >>steps   */
    uint64_t    key, first;  /* of a slice of a tensor, that random bits be the whole's: 1 + the
                                whole's number (0: this one's), and where it begins: a multiple
                                of 16384. Random bits: SR; moments of bf16 and 8 bits          */
    const struct amp_rows    *rows;    /* grad has few rows: >>api sparse; NULL: all           */
    const struct amp_storage *storage; /* >>api storage; NULL: desc's                          */
} amp_tensor;

typedef enum amp_kind {
    AMP_KIND_OWN = 0, /* your optimizer, between begin_step and end_step                        */
    AMP_KIND_ADAMW,   /* fused, as the next two: amp_optimizer_step. Loshchilov, Hutter 2019    */
    AMP_KIND_SGD,     /* momentum, Nesterov, weight decay as in torch.optim                     */
    AMP_KIND_LION     /* Chen et al. 2023; lr is a 3rd to 10th of AdamW's                       */
} amp_kind;

typedef struct amp_optimizer_desc {
    const amp_backend *backend;       /* NULL: CPU                                               */
    amp_dtype          dtype;         /* of model copies; AMP_F32: none, but still a loss scale  */
    amp_kind           kind;
    amp_allocator      allocator;     /* zero: malloc and free                                   */
    amp_scaler_desc    scaler;
    amp_scaler        *shared_scaler; /* NULL, or one of several optimizers, in backend memory:
                                         call amp_scaler_update after the steps of all           */
    double beta1, beta2;              /* 0: AdamW 0.9, 0.999; Lion 0.9, 0.99; negative: 0        */
    double eps;                       /* AdamW. 0: 1e-8                                          */
    double momentum;                  /* SGD; 0: off                                             */
    int    nesterov;                  /* SGD; nonzero needs momentum > 0                         */
    float  weight_decay;              /* 0: none                                                 */
    float  max_norm;                  /* clip the global gradient norm to this; 0: do not clip   */
    int    zero_grad;                 /* nonzero: zero gradients after a step, a skipped one too */
    int    unscale_in_place;          /* nonzero: in fp32 gradients; backward must overwrite them */
    amp_result  (*reduce_fn)(void *user, double *sums, size_t num_sums, uint32_t *maxima,
                             size_t num_maxima); /* ranks decide together: >>api ranks           */
    void         *reduce_user;
    const struct amp_report_desc *report; /* what happens in a run: >>api report                 */
    const struct amp_storage     *storage; /* of masters and moments: >>api storage; fused kinds */
    uint64_t      seed;               /* of its stochastic rounding                              */
} amp_optimizer_desc;

typedef struct amp_status {
    double   norm;         /* global norm of the unscaled gradients (finite elements), unclipped */
    float    clip_factor;  /* 1, or what brings norm down to max_norm; a skip does not use it    */
    float    loss_scale;   /* for the next backward                                              */
    uint32_t did_step;     /* 1: weights changed, 0: skipped                                     */
    uint32_t found_inf;    /* 1: a gradient was or became inf or NaN, a bad row, a skip asked for */
    uint32_t stuck;        /* 1: scaler.stuck is, or skipped_in_a_row is 40 or more              */
    uint64_t steps;        /* taken; from begin_step on with the open one                        */
    uint64_t skipped;
    uint64_t skipped_in_a_row; /* up to the last step; 0: that one was taken                     */
    uint64_t missed_updates; /* checks of a shared scaler that no update had preceded            */
    uint64_t f16_overflows;  /* elements of fp16 copies that the last step taken wrote as inf or NaN
                                (65520 and more): load a state from before (0 then); keep_fp32  */
} amp_status;

/* Declare one, zeroed or not, and call amp_optimizer_init; call it again only after
   amp_optimizer_free. You may move the object in memory. */
typedef struct amp_optimizer amp_optimizer;

/* Set up; and add a tensor. desc NULL: all defaults. Tensors are numbered from 0 in the order of
   add. Both copy their argument and what it points to, but no names, arrays or shared_scaler. A
   tensor that is refused is remembered: prepare returns its error, until free. */
AMP_DEF amp_result amp_optimizer_init(amp_optimizer *opt, const amp_optimizer_desc *desc);
AMP_DEF amp_result amp_optimizer_add(amp_optimizer *opt, const amp_tensor *tensor);

/* Allocate all memory; write masters and model copies. AMP_ERROR_OVERLAP: weights, gradients or
   models overlap. rows and num_rows are not checked, nor are addresses given to rebind. */
AMP_DEF amp_result amp_optimizer_prepare(amp_optimizer *opt);

/* What forward and backward read of tensor i: the model copy, or the master if there is none. This
   and the next two are NULL before prepare, for a bad index, or if there is no such array. */
AMP_DEF const void *amp_optimizer_model(const amp_optimizer *opt, int i);

/* The fp32 master of tensor i. */
AMP_DEF float *amp_optimizer_master(const amp_optimizer *opt, int i);

/* The fp32 gradient of tensor i for your optimizer, unscaled and clipped, from a begin_step that
   returned true to the next one (0 before the first; with unscale_in_place to end_step). */
AMP_DEF float *amp_optimizer_grad(const amp_optimizer *opt, int i);

/* The scale for the next backward: by value (waits; 0 before prepare and in a capture), or by
   address in backend memory. Until you call one of them, or amp_optimizer_scaler, a step is
   AMP_ERROR_BAD_STATE: the loss cannot have been scaled. Exceptions: the scale is 1, was set
   (init_scale, a file) or is shared, or there is a desc.reduce_fn. */
AMP_DEF float        amp_optimizer_loss_scale(const amp_optimizer *opt);
AMP_DEF const float *amp_optimizer_loss_scale_ptr(const amp_optimizer *opt);

/* A step around your optimizer (AMP_KIND_OWN, amp_tensor.own). begin_step is true if gradients
   are finite (or the scaler is disabled): yours are unscaled, step now. False: skip, or an error.
   Call end_step in any case: it returns that error, moves the scale, and writes copies if true. */
AMP_DEF bool       amp_optimizer_begin_step(amp_optimizer *opt);
AMP_DEF amp_result amp_optimizer_end_step(amp_optimizer *opt);

/* The whole step of a fused kind: check, unscale, clip, optimizer, scale, copies. lr >= 0. */
AMP_DEF amp_result amp_optimizer_step(amp_optimizer *opt, float lr);

/* What the last step did. Waits for the backend. */
AMP_DEF amp_result amp_optimizer_status(const amp_optimizer *opt, amp_status *status);

/* Release all memory. Safe on a zeroed object, after a refused init, and twice. */
AMP_DEF void amp_optimizer_free(amp_optimizer *opt);

/* ------------------------------------------------------------------ >>api state */

/* A state is what decides how training goes on: masters, moments, step count, scaler, learning
   rate (which stays if the file has none), the numbers of the desc and of tensors. Not in the
   file: gradients, moments that you did not add, your data's order, and model copies, which are
   written from masters, so dtype may differ. The format is version 1, the same on all machines
   (tests/vectors/state-file.md). A callback moves exactly num_bytes, or returns false.

   The scaler is the file's, unless only one of file and desc has a scale that moves, or only one
   is disabled: then it starts afresh, as desc says (a shared one stays). Unless both move, call
   amp_optimizer_loss_scale before the next step if a load changed it (else AMP_ERROR_BAD_STATE). */
typedef bool (*amp_write_fn)(void *user, const void *data, size_t num_bytes);
typedef bool (*amp_read_fn)(void *user, void *data, size_t num_bytes);

/* Save by calls of write_fn. */
AMP_DEF amp_result amp_optimizer_save(const amp_optimizer *opt, amp_write_fn write_fn, void *user);

/* Load into a prepared optimizer with the same tensors (names, sizes, kind). All is read and
   verified before anything changes, in about the memory of a file. _CORRUPT: a sum is wrong, or
   an index in a report. _MISMATCH: amp_problem names the tensor, and what differs. _NEWER: a later
   format, flag or preset. Other numbers are not judged. */
AMP_DEF amp_result amp_optimizer_load(amp_optimizer *opt, amp_read_fn read_fn, void *user);

#ifndef AMP_NO_STDLIB
/* Save to a file: write path.new, flush it and rename it, so that whenever the machine stops, path
   holds the old state or the new one, whole (POSIX, Windows). Several programs may save to one
   path: each has a file of its own (path.new, path.new1 ...), and the last wins (on Windows one may
   be _WRITE). What a killed save left, a later one removes (POSIX, with flock). On POSIX it follows
   a symbolic link, keeps a file's mode, and refuses what is no file: _UNSUPPORTED. A path has less
   than 4080 bytes, on Windows in the process's code page (UTF-8 by a manifest). */
AMP_DEF amp_result amp_optimizer_save_file(const amp_optimizer *opt, const char *path);

/* More errors than load: _NOT_FOUND, _TRUNCATED; _CORRUPT for bytes behind the end. */
AMP_DEF amp_result amp_optimizer_load_file(amp_optimizer *opt, const char *path);

/* ------------------------------------------------------------ >>api environment */

/* Let the user of a program decide; amp_session_start does, too. AMP_DTYPE (fp32, fp16, bf16) is
   the type. AMP_ENABLE=0 is fp32 and scaler.disabled. AMP_ENABLE=1 is neither; without AMP_DTYPE
   it makes fp32 fp16, and ends a session's `off`. If the type becomes fp16, a scaler that is
   disabled or AMP_PRESET_NONE becomes the default; if another, a zero one AMP_PRESET_NONE.
   AMP_ERROR_INVALID_CONFIG: one of them cannot be read. */
AMP_DEF amp_result amp_optimizer_desc_from_env(amp_optimizer_desc *desc);
#endif /* AMP_NO_STDLIB */

/* ----------------------------------------------------------------- >>api layers */

/* c = a b on the CPU, all fp32, row-major, packed: a is m x k, b is k x n, c is m x n. Sums are
   fp32. With AMP_BF16 or AMP_F16 compute rounds a and b (the bits of amp_cast, NaNs aside), at
   the speed of 16-bit products where the CPU has them. AMP_F32 rounds nothing, except in a scope
   of autocast: for exact fp32 push one of AMP_AUTOCAST_OFF. Memory, errors: as amp_gemm. */
AMP_DEF amp_result amp_matmul(float *c, const float *a, const float *b,
                              size_t m, size_t n, size_t k, amp_dtype compute);

/* A linear layer, likewise: y = x w^T + bias. x is rows x in, w is out x in (as PyTorch stores
   it), y is rows x out; bias has out elements or is NULL. backward: dx = dy w, dw = dy^T x, dbias
   = the column sums of dy, row after row. dx, dw and dbias may be NULL; without dx w may be NULL,
   without dw x. dx may be x. Nonzero accumulate adds to dw and dbias, never to dx.
   AMP_ERROR_OVERLAP also: dw with w or dx, dbias with any other. */
AMP_DEF amp_result amp_linear(float *y, const float *x, const float *w, const float *bias,
                              size_t rows, size_t in, size_t out, amp_dtype compute);
AMP_DEF amp_result amp_linear_backward(float *dx, float *dw, float *dbias, const float *dy,
                                       const float *x, const float *w, size_t rows, size_t in,
                                       size_t out, int accumulate, amp_dtype compute);

/* Stop here, unless you want the step's parts, the general product, ranks, reports or autocast. */

/* ------------------------------------------------------------------- >>api cuda
   Functions of amp_kernels.cu (>>gpu). Arrays and scalers are in device memory, work is queued on
   a stream. Except as said, none allocates or waits, and a graph can capture all. */

/* Make a backend of stream (NULL: the default stream). prepare, load, save and calls that return
   a value (begin_step, _loss_scale, _status, _stats) wait for it; in a capture of it they are
   AMP_ERROR_UNSUPPORTED. cublas_handle: a cublasHandle_t of its own for amp_gemm, or NULL. For
   products in a graph set backend->workspace to device memory (32 MiB, aligned to 256). */
extern amp_result amp_cuda_backend(amp_backend *backend, amp_stream stream, void *cublas_handle);

/* The code of this thread's last AMP_ERROR_CUDA or AMP_ERROR_CUBLAS. */
extern int amp_cuda_code(void);

/* Multiply x, the loss or its gradient, by *scale (amp_optimizer_loss_scale_ptr, or &s->scale),
   which is read when the work runs. In fp32, rounded once to type. */
extern amp_result amp_cuda_scale_loss(void *x, amp_dtype type, size_t n, const float *scale,
                                      amp_stream stream);

/* Twins of amp_cast (in place only between fp16 and bf16) and two of amp_scaler_*. Init a scaler
   on the host and copy it. It stays as it is without init, and updates only after a check. */
extern amp_result amp_cuda_cast(void *dst, amp_dtype dst_type, const void *src, amp_dtype src_type,
                                size_t n, amp_stream stream);
extern amp_result amp_cuda_scaler_unscale(amp_scaler *s, void *dst, const void *src,
                                          amp_dtype src_type, size_t n, amp_stream stream);
extern amp_result amp_cuda_scaler_update(amp_scaler *s, amp_stream stream);

/* ---------------------------------------------------------------- >>api control
   More of the optimizer: tensors that share arrays, or move; steps in graphs, and your kernels. */

/* Add count tensors that lie one after another in the arrays of whole. Their name, n, lr_scale,
   weight_decay, key and first are used; keep_fp32, frozen, own and storage of either; all else is
   whole's, whose n is their sum. Copies that prepare makes are contiguous, too. */
AMP_DEF amp_result amp_optimizer_add_flat(amp_optimizer *opt, const amp_tensor *whole,
                                          const amp_tensor *tensors, size_t count);

/* Give tensor i new addresses after you moved it; NULL changes nothing. AMP_NO_GRAD: it has no
   gradient for now; weights and moments stay. A step needs a gradient or AMP_NO_GRAD of each tensor
   that is not frozen, and without reduce_fn at least one gradient. A frozen one's copy is written
   where its weight moves. Does not wait. AMP_ERROR_UNSUPPORTED: a weight where add had none, a
   gradient of a frozen tensor, a stream being captured. Late gradients: examples/README.md. */
#define AMP_NO_GRAD ((void *)1)
AMP_DEF amp_result amp_optimizer_rebind(amp_optimizer *opt, int i, float *weight, void *grad);

/* The same for all tensors, in their order, if gradients move in every step. Either array, and any
   element, may be NULL. */
AMP_DEF amp_result amp_optimizer_rebind_all(amp_optimizer *opt, float *const *weights,
                                            void *const *grads);

/* Write the model copies now, after you have written to masters: best weights, an average, a
   target network. Nothing else changes. Does not wait; can be captured. A tensor without an fp32
   master takes its weights from the array that rebind has given since the last refresh, which is
   only read; AMP_ERROR_BAD_STATE if there is none. */
AMP_DEF amp_result amp_optimizer_refresh(amp_optimizer *opt);

/* What each check decides, for your own kernel: return at once if skip is set; multiply gradients
   by inv_scale (1 / scale, times the clip factor). step counts the steps taken, with this one. */
typedef struct amp_gate {
    uint32_t skip;
    float    inv_scale;
    uint64_t step;
    uint64_t reserved[2]; /* private: 0 */
} amp_gate;
AMP_DEF const amp_gate *amp_optimizer_gate(const amp_optimizer *opt); /* in backend memory */

/* The scaler, in backend memory. To skip a step, on all ranks, write its found_inf before the
   check, unless it is shared or disabled (AMP_ASK_SKIP in reduce_fn skips with any scaler). */
AMP_DEF amp_scaler *amp_optimizer_scaler(const amp_optimizer *opt);

/* The moments of tensor i, unscaled, in host memory: first, or momentum, and second, of n floats
   each. NULL: one that the tensor does not have (else AMP_ERROR_UNSUPPORTED), or that you do not
   read. Both calls wait. Moments of 8 bits can be set to what amp_optimizer_moments gave, also of
   a longer tensor from a multiple of 32 on; else set_moments is AMP_ERROR_UNSUPPORTED. AdamW's at
   step 0 are 0: others are AMP_ERROR_INVALID_CONFIG. */
AMP_DEF amp_result amp_optimizer_moments(const amp_optimizer *opt, int i, float *first,
                                         float *second);
AMP_DEF amp_result amp_optimizer_set_moments(amp_optimizer *opt, int i, const float *first,
                                             const float *second);

/* Continue a run of another program, between steps: it has taken so many steps, and skipped so
   many (both below 2^63); then set_moments. AdamW needs both: with steps above 0, a step is
   AMP_ERROR_BAD_STATE until the moments of each tensor that learns are set, or a state is loaded;
   at step 0 all moments must be 0. A report begins anew. Waits. */
AMP_DEF amp_result amp_optimizer_set_steps(amp_optimizer *opt, uint64_t steps, uint64_t skipped);

/* begin_step for kernels that read the gate: it opens the step and does not wait. Then end_step. */
AMP_DEF amp_result amp_optimizer_check(amp_optimizer *opt);

/* Behind check, at most once, unless your kernel uses inv_scale: write amp_optimizer_grad, if the
   gate does not say skip. Does not wait. */
AMP_DEF amp_result amp_optimizer_unscale(amp_optimizer *opt);

/* The fused step for a CUDA graph, which would freeze an argument: it reads the learning rate in
   backend memory. AMP_ERROR_BAD_STATE: there is none yet, by a fused step, a load, or these: */
AMP_DEF amp_result amp_optimizer_step_graph(amp_optimizer *opt);
AMP_DEF amp_result amp_optimizer_set_lr(amp_optimizer *opt, float lr); /* outside a capture */
AMP_DEF float     *amp_optimizer_lr_ptr(amp_optimizer *opt); /* write it: >= 0 is not checked */

/* ------------------------------------------------------------------- >>api gemm */

/* The general product, of each pair of a batch: C = alpha op(A) op(B) + beta C + bias, then the
   activation; row-major: C is m x n, op(A) m x k, op(B) k x n; op transposes if trans is nonzero.
   Zero the args and set a, b, c, m, n and k: plain, packed, fp32. Each matrix has its own type;
   sums are fp32 (>>numbers), and all that follows, rounded once to c_type. As in BLAS, C is not
   read if beta is 0. backend NULL: the CPU. Matrices of a batch lie stride elements apart (0 for a
   or b: the same one). They may overlap in a and b; in c they lie one after another, or side by
   side in rows that hold all (heads: stride_c = dim, ldc = heads * dim). C must share no element
   with A, B or bias: AMP_ERROR_OVERLAP if its first is one of theirs (rows may alternate in one
   buffer). A scope of autocast may cast fp32 operands (>>api autocast); compute rounds them as in
   amp_matmul (on CUDA AMP_ERROR_UNSUPPORTED), and an operand of the other 16-bit type is then
   AMP_ERROR_MIXED_TYPES. With bias or an activation that is one kernel on CUDA where cublasLt has
   one; else two, and a c of 16 bits needs 4 m n count + 256 bytes of workspace
   (AMP_ERROR_WORKSPACE). */
typedef enum amp_activation {
    AMP_ACTIVATION_NONE = 0,
    AMP_ACTIVATION_RELU /* negative elements and -0 become 0 (cublasLt may leave -0); NaN stays */
} amp_activation;
struct amp_gemm_args {
    int         trans_a, trans_b;
    size_t      m, n, k;
    float       alpha;              /* 0 means 1; for C = beta C + bias set k to 0               */
    float       beta;
    const void *a, *b;
    void       *c;
    amp_dtype   a_type, b_type, c_type;
    size_t      lda, ldb, ldc;      /* from row to row, in elements; 0: packed                   */
    size_t      count;              /* of a batch; 0 means 1                                     */
    size_t      stride_a, stride_b, stride_c;
    const void *bias;               /* n elements of bias_type, for every row; NULL: none        */
    amp_dtype   bias_type;
    amp_activation activation;
    int         tf32;               /* nonzero: fp32 as TF32 (CUDA); as three products on AMX (16
                                       bits of fraction, 8 below 2^-118)                         */
    amp_dtype   compute;            /* what fp32 a and b are rounded to; 0: nothing              */
};
AMP_DEF amp_result amp_gemm(const amp_backend *backend, const amp_gemm_args *args);

/* Bytes of workspace for products up to m, n and k with OpenMP's threads of now: about 1.3 MB
   each, 3.6 MB if k is above 512. A CPU packs matrices in backend->workspace if it is that large;
   else in memory from malloc, freed on return, if m n k is above 2^22; else, or without that
   memory (slower), on the stack. Stack: at most 128 KiB (140 at -O0; small products, always
   there, 96; all other calls 64). On AMX a C that begins at no multiple of 64 costs up to a
   quarter of the speed. CUDA needs A and B of one type, and C of that or fp32 (else
   AMP_ERROR_MIXED_TYPES); in a capture also a workspace (else AMP_ERROR_WORKSPACE). */
AMP_DEF size_t amp_gemm_workspace(size_t m, size_t n, size_t k);

/* ------------------------------------------------------------------ >>api ranks
   Data parallelism needs nothing here: each rank has all of the state, and gradients are summed
   over the ranks by an all-reduce before the check, so that all see the same numbers.

   Where gradients differ (stages, parts of matrices, slices of state), all ranks meet in
   desc.reduce_fn in the middle of every check, and decide alike: it reduces sums by sum, maxima by
   maximum. Tensors may be others on each rank; a gradient on two ranks counts twice in the norm.
   Both arrays are in backend memory. On a CPU reduce before you return; on CUDA queue two
   ncclAllReduce on the backend's stream, which a capture records: a step is then three launches.
   To make all ranks skip, a rank writes found_inf (not if disabled) before its check, or here
   maxima[0] |= AMP_ASK_SKIP, which a disabled scaler obeys, too. An error of reduce_fn is the
   call's. A rank whose step is refused before the check (a learning rate, moments) reduces once,
   with AMP_ASK_SKIP, so that no other waits for it, and returns its error; not in a capture.

   examples/ddp/zero.h is made of this: masters and moments in slices, one part in N on each rank
   (ZeRO stage 1, Rajbhandari et al. 2020), over any network, with the same bits on any number of
   ranks. The whole model stays on each. */

enum { AMP_ASK_SKIP = 2 };
/* In reduce_fn alone (elsewhere, or if this rank's step was refused, NULL, and *n is 0): the sum of
   squares of each chunk of 16384 elements of this rank's scaled gradients, tensor after tensor in
   the order of add, in backend memory. sums[0] is their sum: number c joins lane c mod 256, and
   256 lanes are added in pairs, l and l + 128, then l + 64, and so on. Whoever adds such sums of
   all ranks in an order of chunks, and writes sums[0], has a norm that does not depend on ranks. */
AMP_DEF const double *amp_optimizer_chunk_sums(const amp_optimizer *opt, size_t *n);

/* ----------------------------------------------------------------- >>api sparse
   Gradients that touch few rows of a tensor (embeddings). grad has these rows one after another,
   amp_tensor.rows says which they are, n counts all rows of the tensor. All is in backend memory
   (a graph reads the count in each replay; rows and num_rows are aligned), and must not change
   until the step is over. With zero_grad a step ends with a count of 0. Prepare takes 4 bytes for
   each of max_rows * row_length sums and a 64th more, and 21 for each of max_rows.

   A check adds up the entries of each row, in fp32 and a fixed order. A count above max_rows, or a
   row that is not in the tensor, skips the step, even with scaler.disabled.

   The update is lazy: weight, moments and model copy change only in rows that are there, with the
   bias corrections of the step. A weight_decay of 0 is 0, not the optimizer's. With each row once
   and no decay a step has the bits of one without rows. rebind moves weight and grad alone.
   AMP_ERROR_UNSUPPORTED: AMP_KIND_OWN, momentum of AMP_KIND_SGD, add_flat. */

typedef struct amp_rows {
    size_t          row_length; /* elements of a row                                              */
    size_t          max_rows;
    const uint32_t *rows;       /* which ones, in any order; one may be there more than once      */
    uint32_t       *num_rows;   /* how many there are, at most max_rows                           */
} amp_rows;

/* ----------------------------------------------------------------- >>api report
   What happened, in which tensor, and why. All but amp_optimizer_stats needs desc.report.
   (examples/which_tensor.c. As text or JSON, with advice: examples/amp_report.h.)

   Counting adds no launch and does not wait; a graph replays it. Reading a report waits. Steps,
   taken or skipped, are iterations, numbered from 1. The state saves all but the histograms. Each
   rank reports its own tensors. Of a gradient of few rows fp32 sums are counted. Updates and sizes
   of weights are counted only where masters and moments are fp32 and gradients have all rows. */

/* What the last check saw in one gradient, which is still scaled. */
typedef struct amp_grad_stats {
    uint64_t nonfinite;       /* elements that are inf or NaN */
    uint64_t nan;             /* elements that are NaN        */
    uint64_t first_nonfinite; /* index of the first, or n     */
    uint64_t zeros;           /* elements that are 0 or -0    */
    float    max_finite;      /* largest finite magnitude     */
    uint32_t bad_row;         /* >>api sparse: 1 + the first bad place in rows; 0: none */
} amp_grad_stats;

/* The statistics of gradient i. Waits for the backend. */
AMP_DEF amp_result amp_optimizer_stats(const amp_optimizer *opt, int i, amp_grad_stats *stats);

/* Histograms at iterations 1, 1 + every, 1 + 2 every ...; 0: none. */
typedef struct amp_report_desc { int every; } amp_report_desc;

typedef enum amp_skip_reason {
    AMP_SKIP_NONE = 0, /* taken                                                                   */
    AMP_SKIP_OVERFLOW, /* a gradient was not finite, or would not be when unscaled                */
    AMP_SKIP_ASKED     /* you or reduce_fn asked for it, or another rank had an overflow          */
} amp_skip_reason;

typedef struct amp_iteration {
    uint64_t iteration;
    double   norm;        /* as in amp_status                                                     */
    float    loss_scale;  /* of its gradients                                                     */
    float    clip_factor;
    uint32_t skip;        /* amp_skip_reason                                                      */
    int32_t  tensor;      /* the first whose gradient was not finite; -1: none                    */
} amp_iteration;

enum {
    AMP_HISTORY = 256, AMP_BINS = 64, /* iterations that are stored; of a histogram               */
    AMP_HEADROOM_UNBOUNDED = 255      /* headroom of gradients that are 0                         */
};

typedef struct amp_report {
    uint64_t iterations, steps;        /* taken or skipped; taken, as in amp_status               */
    uint64_t overflows, asked;         /* skipped, by amp_skip_reason                             */
    uint64_t growths, backoffs;        /* of the scale                                            */
    double   norm;
    float    loss_scale;               /* for the next backward                                   */
    uint32_t stuck;                    /* as in amp_status                                        */
    int      headroom;     /* the scale could grow by so many powers of two before the largest
                              gradient of the last step overflows: the minimum over tensors       */
    int      first_tensor; /* the first that overflowed, and in which iteration; -1: none         */
    uint64_t first_iteration;
    int      most_tensor;  /* the one that overflowed most often, and how often                   */
    uint64_t most_overflows;
    uint64_t sampled;      /* iteration of what follows, and of histograms; 0: none yet           */
    uint64_t grads;        /* gradients that are finite and not 0                                 */
    uint64_t f16_zero, f16_small, bf16_zero, bf16_small; /* of them, as in amp_tensor_report      */
    uint64_t updates, lost;
    uint64_t nans;         /* NaNs in gradients of the last step                                  */
    uint32_t fixed_scale;  /* the scale never moves: by its preset, or as it is disabled          */
    amp_scaler scaler;     /* a copy, in host memory                                              */
} amp_report;

typedef struct amp_tensor_report {
    const char *name;
    uint64_t    n;
    amp_grad_stats stats;        /* of the last step                                              */
    amp_dtype   grad_type;       /* AMP_F32 where there is no gradient                            */
    int         headroom;
    uint64_t    overflows, nans; /* iterations whose gradient was not finite, and held a NaN      */
    uint64_t    first_iteration, last_iteration; /* of them */
    /* in iteration amp_report.sampled: scaled gradients, as they are stored and not 0, that a cast
       to fp16 or bf16 would make 0, or subnormal */
    uint64_t    f16_zero, f16_small, bf16_zero, bf16_small;
    /* weights with a 16-bit copy and a gradient that is not 0; those of them whose copy the step
       did not change, so that the update would be lost without a master (Micikevicius et al. 2018,
       3.1); those whose master is rounded to the copy's type */
    uint64_t    updates, lost, rounded;
    /* weights that are inf or NaN (in the model where masters are not fp32); others whose fp16
       copy is. Counted only if amp_status.f16_overflows is not 0, or the last gradients were not
       finite and the scale is 1 or less or ten steps in a row were skipped. AdamW's second moments
       that are inf, not of 8 bits nor from before a load: a gradient of 5.9e20, though finite,
       stops its weight for good (in PyTorch, too) */
    uint64_t    bad_weights, bad_copies, bad_moments;
    /* magnitudes that are finite and not 0: bin b counts those from 2^(4 b - 127) on and below
       2^(4 b - 123), bin 0 all smaller ones, too. A skipped step counts no weights */
    uint64_t    grads[AMP_BINS], weights[AMP_BINS];
} amp_tensor_report;

/* What has happened so far. AMP_ERROR_UNSUPPORTED: no desc.report. */
AMP_DEF amp_result amp_optimizer_report(const amp_optimizer *opt, amp_report *report);

/* Of the same moment: tensor i. AMP_ERROR_BAD_STATE: amp_optimizer_report comes first, after a load
   again. */
AMP_DEF amp_result amp_optimizer_report_tensor(const amp_optimizer *opt, int i,
                                               amp_tensor_report *report);

/* Likewise, the last iterations, oldest first: at most *count and AMP_HISTORY. Writes *count. */
AMP_DEF amp_result amp_optimizer_history(const amp_optimizer *opt, amp_iteration *history,
                                         size_t *count);

/* ---------------------------------------------------------------- >>api storage
   Low-precision optimizer state. amp_tensor.storage, or else desc.storage, names the formats of
   masters and moments, a row of AMP_STORAGE_LIST. It saves memory; a step is faster only where
   memory limits it (examples/state.c). Bits are the same on CPU and GPU.

   With masters of F32 weights stay where they are, and models may be of any type or none. SPLIT
   stores fp32 in other memory: its masters, moments and state files are F32's bit for bit. Its
   models are the masters rounded to nearest, ties away from zero. How SR rounds: >>core storage.
   SPLIT and SR take models of bf16 alone. A state file has desc.seed.

   A tensor with own is stored in fp32. So is one with keep_fp32; only a storage of its own, with a
   master of F32, changes its moments. Where masters are not fp32, prepare copies weight, then
   fills it with NaN. Nothing uses it after that: amp_optimizer_master is NULL, forward reads
   amp_optimizer_model.
   A file loads if its formats are the same; SPLIT and F32 load all masters. Else _MISMATCH.
   AMP_ERROR_INVALID_CONFIG: formats that are no row of the list. AMP_ERROR_UNSUPPORTED: SPLIT or
   SR without a model of bf16; AMP_KIND_OWN, except with fp32; moments of 8 bits with a row_length
   that is no multiple of 32. */

typedef enum amp_storage_format { /* bytes per element beside the model's 2; moments: AdamW's */
    AMP_FORMAT_F32 = 0,   /* master 4, moments 8                                                 */
    AMP_FORMAT_BF16,      /* moments 4                                                           */
    AMP_FORMAT_8BIT,      /* moments 2.1                                                         */
    AMP_FORMAT_SPLIT,     /* master 2, the lower bits: with its model all of fp32                */
    AMP_FORMAT_SR         /* master 0: the model alone, rounded stochastically                   */
} amp_storage_format;

typedef struct amp_storage { amp_storage_format master, moments; } amp_storage;

/* X(name, master, moments) for each row; formats are without AMP_FORMAT_. 1.x may append rows. */
#define AMP_STORAGE_LIST(X)                                                                        \
    X("fp32", F32, F32)    X("fp32+bf16", F32, BF16)    X("fp32+8bit", F32, 8BIT)                  \
    X("split", SPLIT, F32) X("split+bf16", SPLIT, BF16) X("split+8bit", SPLIT, 8BIT)               \
    X("sr", SR, F32)       X("sr+bf16", SR, BF16)       X("sr+8bit", SR, 8BIT)

/* --------------------------------------------------------------- >>api capability */

typedef enum amp_policy {
    AMP_POLICY_DEFAULT = 0, /* fp16; norms and softmax read and write 16 bits                    */
    AMP_POLICY_TORCH_CUDA,  /* fp16; torch.autocast("cuda")                                      */
    AMP_POLICY_TORCH_CPU,   /* bf16; torch.autocast("cpu")                                       */
    AMP_POLICY_TF,          /* fp16; auto_mixed_precision of TensorFlow                          */
    AMP_POLICY_APEX_O0,     /* fp32 everywhere                                                   */
    AMP_POLICY_APEX_O1,     /* fp16; patched functions                                           */
    AMP_POLICY_APEX_O2,     /* fp16 everywhere, batch norm in fp32                               */
    AMP_POLICY_APEX_O3,     /* fp16 everywhere                                                   */
    AMP_POLICY_KERAS_MIXED_FLOAT16,  /* fp16 everywhere                                          */
    AMP_POLICY_KERAS_MIXED_BFLOAT16  /* bf16 everywhere                                          */
} amp_policy;

/* What a machine does well, and what that recommends for mixed precision: the CPU (0, 0), as
   amp.h uses it, or a GPU (major and minor of cudaDeviceProp). */
typedef struct amp_capability {
    int         fp16, bf16, tf32; /* nonzero: faster than fp32 in products of large matrices      */
    amp_dtype   dtype;            /* recommended for model copies                                 */
    int         scaler;           /* nonzero: with a dynamic loss scale                           */
    const char *advice;           /* the same in words                                            */
} amp_capability;
AMP_DEF amp_result amp_capability_of(int major, int minor, amp_capability *capability);

/* The instruction set that CPU functions use, found once: "amx", "avx512_bf16" (by default only
   on AMD), "avx512", "avx2", "neon_bf16", "neon" or "c". */
AMP_DEF const char *amp_cpu_tier(void);

/* Force one in the whole process (NULL: the best); AMP_ERROR_UNSUPPORTED if it is not there. "amx"
   asks Linux for its tiles (arch_prctl) at the first product. Then sigaltstack refuses small
   stacks; if a thread has one, the tier is "avx512": force it where a sandbox forbids to ask. */
AMP_DEF amp_result amp_cpu_force_tier(const char *name);

/* --------------------------------------------------------------- >>api autocast
   Which type an op computes in: tables, and a stack of scopes, in an object of yours. You ask for
   the type (amp_autocast_dtype, under >>api ops), and cast accordingly. It needs no scaler.

   Products ask by themselves: amp_gemm, what is made of it, and the drop-ins for cblas_sgemm and
   cublasSgemm. In a scope of the thread's autocast their fp32 operands are cast as the policy
   says of AMP_OP_GEMM: into the cache of a session, if it has one; else a CPU rounds them, as
   amp_gemm_args.compute does, where an override names the op or where that is faster
   (ampi_rounding_pays has the bounds). Nothing is cast if compute is set, if a cache has no room,
   or if all is fp32 and either n k is below 2^10 or AMP_CBLAS is Apple's. */
#ifndef AMP_NO_AUTOCAST

/* A scope, from push to pop. Zero takes what the scope around it has; the outermost is on. */
typedef enum amp_autocast_mode {
    AMP_AUTOCAST_INHERIT = 0, AMP_AUTOCAST_ON, AMP_AUTOCAST_OFF
} amp_autocast_mode;
typedef struct amp_scope {
    const char       *layer; /* for overrides; must live as long as the scope                    */
    amp_autocast_mode mode;
    amp_dtype         dtype; /* low: AMP_F16 or AMP_BF16                                         */
} amp_scope;

enum { AMP_MAX_SCOPES = 32, AMP_MAX_OVERRIDES = 32, AMP_MAX_PATTERN = 64 }; /* bytes with 0 */

/* The rule for an op or for layers; its low, if words name it; whether it is not the policy's. */
typedef struct ampi_op_rule { uint8_t rule, dtype, overridden; } ampi_op_rule;
typedef struct ampi_override {
    char         pattern[AMP_MAX_PATTERN];
    ampi_op_rule op_rule;
    uint8_t      matched; /* a layer */
} ampi_override;

typedef struct amp_session amp_session; /* below */
/* All members are private. */
typedef struct amp_autocast {
    amp_session  *session; /* whose own it is, with a weight cache, or NULL */
    amp_policy    policy;
    amp_dtype     dtype;
    int           off, tf32, depth, num_overrides;
    amp_scope     scopes[AMP_MAX_SCOPES];
    ampi_override overrides[AMP_MAX_OVERRIDES];
    ampi_op_rule  ops[256]; /* by amp_op, with room for more of them */
} amp_autocast;

/* dtype: low (the 16-bit type) where no scope names one; AMP_F32, 0: the policy's. Outside all
   scopes nothing is cast. A copy of the object, also for another thread, has no weight cache. */
AMP_DEF amp_result amp_autocast_init(amp_autocast *ac, amp_policy policy, amp_dtype dtype);

/* Enter and leave a scope. AMP_ERROR_TOO_LARGE: 32 are open; AMP_ERROR_BAD_STATE: none is. */
AMP_DEF amp_result amp_autocast_push(amp_autocast *ac, const amp_scope *scope);
AMP_DEF amp_result amp_autocast_pop(amp_autocast *ac);

/* Make ac this thread's current autocast (NULL: none), and return the one before. A thread starts
   with none. If the compiler has no thread-local storage, this does nothing and returns NULL. */
AMP_DEF amp_autocast *amp_autocast_use(amp_autocast *ac);

/* Change the policy by words, separated by , ; or blanks. A later word replaces an earlier one,
   but rules for layers add up, 32 in all; they are stronger than rules for ops:
       fp16, bf16                 low (or float16, half, bfloat16)
       off                        no autocast in any scope
       tf32                       products that stay in fp32 are made with amp_gemm_args.tf32
       torch_cuda, apex_o1 ...    another policy, with its own type; earlier words are forgotten
       op:softmax=fp32            a rule for an op: low fp16 bf16 fp32 keep promote pass banned
       decoder.*.norm=fp32        the same for all ops of the layers whose name matches; * stands
                                  for any characters, or none
   No blanks around =. AMP_ERROR_PARSE (also: a 33rd layer, a name of 64 bytes) changes nothing. */
AMP_DEF amp_result amp_autocast_override(amp_autocast *ac, const char *text);

/* Write the policy in force as a table with reasons, line by line, with the layer patterns that
   have "matched nothing yet". AMP_ERROR_WRITE: write_fn returned false. */
AMP_DEF amp_result amp_autocast_dump(const amp_autocast *ac, amp_write_fn write_fn, void *user);

/* ---------------------------------------------------------------- >>api session
   All that an fp32 trainer on cublasSgemm, cblas_sgemm or amp_gemm needs, in one call: a scaler
   in backend memory; an autocast in a scope, current in this thread; a cache of 16-bit copies. A
   weight that you add is cast once until it changes, all else for one product. On a CPU that pays
   where few rows (below 256; in fp16 on AMX 17 and more, or one) are multiplied by a weight. */

enum { AMP_MAX_CACHED = 256 }; /* weights */
/* Matrices, the type that they are cast to, and the capture in which. */
typedef struct ampi_matrix {
    const float *x;
    size_t       rows, cols, ld, count, stride; /* of one: stride 0 */
    amp_dtype    type;
    uint64_t     capture;
} ampi_matrix;

/* A weight, and what its copy is of. */
typedef struct ampi_cached {
    const float *base;
    size_t       n, offset, room; /* of the copy: where, and for how many bytes */
    ampi_matrix  of;      /* no x: of nothing */
    uint64_t     product; /* that used it last */
} ampi_cached;

struct amp_session { /* scaler and autocast are for your calls, the counters to read */
    amp_scaler  *scaler;
    amp_autocast autocast;
    uint64_t rounded;    /* products of fp32, in this thread, that the session rounded            */
    uint64_t left_fp32;  /* that it did not: by policy, as rounding takes longer, as fallbacks    */
    uint64_t fallbacks;  /* of left_fp32: no room, or another stream or backend                   */
    uint64_t hits;       /* a weight's copy was current                                           */
    uint64_t misses;     /* a weight was cast                                                     */
    uint64_t transients; /* something else was cast, for one product                              */
    /* private: */
    amp_autocast        *before;
    amp_backend          backend;
    amp_allocator        allocator;
    void                *block;
    char                *memory;
    size_t               size, top; /* weights from the start on, others from top on; 0: none */
    uint64_t             product;  /* counts them */
    int                  captured; /* replays may change weights unseen by the host      */
    int                  num_entries;
    ampi_cached          entries[AMP_MAX_CACHED];
};

/* num_bytes is memory for copies. Each weight that you add, used in one shape, takes at most 2
   bytes for each element from its first to its last (gaps between rows or matrices count, but are
   not read), 14 for each row, and 256. So does each other operand of the largest product. */
typedef struct amp_session_desc {
    const amp_backend *backend;   /* NULL: CPU                                                   */
    size_t             num_bytes; /* of backend's memory. On a CPU 0 is no cache: products round  */
    amp_allocator      allocator; /* on a CPU alone; zero: malloc and free                      */
    amp_scaler_desc    scaler;    /* zero: default, or a scale of 1 if this desc has no fp16      */
    amp_dtype          dtype;     /* low. 0: bf16 on a CPU where it pays (amp_capability_of), else
                                     fp16; or as policy says ("off" is fp32)                     */
    const char        *policy;    /* NULL, or words of amp_autocast_override, none against dtype  */
} amp_session_desc;

/* Start a session. Zero *session before its first start; do not move it while it runs. desc NULL:
   all defaults. AMP_DTYPE and AMP_ENABLE override desc, as in amp_optimizer_desc_from_env; a type
   of 16 bits also what desc.policy says of op:gemm. Only start allocates, and large products use
   malloc. Products on another stream than backend's stay fp32. In an iteration scale the loss,
   unscale gradients (with momentum: examples/recipes.c, g), step unless scaler->found_inf,
   update the scaler, call amp_session_changed. A loop's own Adam is at step scaler->good + 1.
   AMP_ERROR_BAD_STATE: *session runs, perhaps in another thread. */
AMP_DEF amp_result amp_session_start(amp_session *session, const amp_session_desc *desc);

/* End it in the thread that started it, and restore the autocast before it. Safe twice.
   AMP_ERROR_BAD_STATE: a session that was started after it runs. */
AMP_DEF amp_result amp_session_end(amp_session *session);

/* Add a weight of n elements, whose copy is kept; what was added at this address before is
   forgotten (n 0 only forgets: before you free it). Each has one copy: add blocks that you
   multiply with one by one. With an amp_optimizer set its dtype to AMP_F32, add the masters, and
   call amp_session_changed(session, NULL) behind each step, refresh and load. AMP_ERROR_TOO_LARGE:
   256 are added. */
AMP_DEF amp_result amp_session_add(amp_session *session, const float *weight, size_t n);

/* Say that you have written to an added weight (NULL: any), or replayed a graph that does. */
AMP_DEF amp_result amp_session_changed(amp_session *session, const float *weight);

/* For debugging: AMP_ERROR_STALE if a weight was written to without amp_session_changed. Reads all
   weights and copies; waits. Once a product was captured it reads nothing. */
AMP_DEF amp_result amp_session_check(const amp_session *session);

/* ------------------------------------------------------------------ >>api sgemm */

#if defined(AMP_CUBLAS_DROP_IN) && !defined(AMP_CUBLAS)
#define AMP_CUBLAS
#endif
#ifdef AMP_CUBLAS /* defined after your <cublas_v2.h>, also where AMP_IMPLEMENTATION is */
/* cublasSgemm and cublasSgemmStridedBatched in a session with a weight cache; sums are fp32.
   Where nothing is cast they call the originals (or their tf32). AMP_CUBLAS_DROP_IN, instead of
   AMP_CUBLAS, gives them the names of the originals from here on. */
AMP_DEF cublasStatus_t amp_sgemm(cublasHandle_t handle, cublasOperation_t transa,
                                 cublasOperation_t transb, int m, int n, int k,
                                 const float *alpha, const float *A, int lda,
                                 const float *B, int ldb, const float *beta, float *C, int ldc);
AMP_DEF cublasStatus_t amp_sgemm_strided_batched(
    cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k,
    const float *alpha, const float *A, int lda, long long int strideA, const float *B, int ldb,
    long long int strideB, const float *beta, float *C, int ldc, long long int strideC,
    int batchCount);
#endif
#ifdef AMP_CUBLAS_DROP_IN
#undef cublasSgemm
#define cublasSgemm amp_sgemm
#undef cublasSgemmStridedBatched
#define cublasSgemmStridedBatched amp_sgemm_strided_batched
#endif

/* -------------------------------------------------------------------- >>api ops
   The ops that autocast knows, and what each policy says of them. */

/* Every op: AMP_OP_ and its name, and its rules in DEFAULT, TORCH_CUDA, TORCH_CPU, TF and APEX_O1.
   "low" is the 16-bit type of the scope:
       P pass        as without autocast: the widest of its inputs
       L low         inputs are cast to low; computed and returned in low
       F fp32        inputs are cast to fp32; computed and returned in fp32
       K keep        reads and returns what it is given, but computes in fp32 inside
       W promote     inputs are cast to the widest among them and low
       B banned      not safe in 16 bits: AMP_ERROR_BANNED, until overridden
   An op composed of others has the rule that they amount to. TF's rules are for graphs; by op:
   allow L; infer, clear P or W; deny, unlisted F. New ops are appended; columns are private. */
#define AMP_OP_LIST(X)                                                                        \
    X(GEMM, LLLLL) X(LINEAR, LLLLL) X(MATMUL, LLLLL) X(MM, LLLLL) X(MV, LLPLL) X(BMM, LLLLL)  \
    X(ADDMM, LLLLL) X(ADDMV, LLPLL) X(ADDR, LLPFL) X(ADDBMM, LLLLL) X(BADDBMM, LLLLL)         \
    X(EINSUM, LLLLP) X(CHAIN_MATMUL, LLLLP) X(LINALG_MULTI_DOT, LLLLP)                        \
    X(LINALG_VECDOT, LLLFP) X(CONVOLUTION, LLLLL) X(CONV1D, LLLLL) X(CONV2D, LLLLL)           \
    X(CONV3D, LLLLL) X(CONV_TRANSPOSE1D, LLLLL) X(CONV_TRANSPOSE2D, LLLLL)                    \
    X(CONV_TRANSPOSE3D, LLLLL) X(CONV_TBC, LLLFL) X(SCALED_DOT_PRODUCT_ATTENTION, LLLLP)      \
    X(LSTM_CELL, LLLLP) X(GRU_CELL, LLLLP) X(RNN_TANH_CELL, LLLLP) X(RNN_RELU_CELL, LLLLP)    \
    X(PRELU, LLLFL) X(ACOS, FFPFF) X(ASIN, FFPFF) X(COSH, FFPFF) X(SINH, FFPFF) X(TAN, FFPFF) \
    X(ERFINV, FFPFF) X(EXP, FFPFF) X(EXPM1, FFPFF) X(LOG, FFPPF) X(LOG10, FFPFF)              \
    X(LOG2, FFPFF) X(LOG1P, FFPPP) X(POW, FFPFF) X(RECIPROCAL, FFPPF) X(RSQRT, FFPFF)         \
    X(SOFTPLUS, FFPPF) X(SOFTMAX, KFPPF) X(LOG_SOFTMAX, KFPPF) X(SOFTMIN, KFPPF)              \
    X(LAYER_NORM, KFPFF) X(RMS_NORM, KFPFP) X(GROUP_NORM, KFPFF) X(BATCH_NORM, KPPPP)         \
    X(LOCAL_RESPONSE_NORM, KFPFF) X(GELU, KPPFF) X(SILU, KPPPP) X(NORMALIZE, FFPFF)           \
    X(COSINE_SIMILARITY, FFPFF) X(NORM, FFPFF) X(FROBENIUS_NORM, FFPFP)                       \
    X(NUCLEAR_NORM, FFPFP) X(LINALG_VECTOR_NORM, FFPFP) X(LINALG_MATRIX_NORM, FFPFP)          \
    X(DIST, FFPFF) X(PDIST, FFPFP) X(CDIST, FFFFP) X(RENORM, FFPFF) X(LOGSUMEXP, FFPFP)       \
    X(SUM, FFPFF) X(MEAN, FPPFP) X(PROD, FFFPF) X(CUMSUM, FFPFF) X(CUMPROD, FFPFF)            \
    X(VAR, FPPFF) X(STD, FPPFF) X(QUANTILE, FPFFP) X(CROSS_ENTROPY, FFFFF) X(NLL_LOSS, FFFFF) \
    X(MSE_LOSS, FFFFF) X(L1_LOSS, FFFFF) X(SMOOTH_L1_LOSS, FFFFF) X(HUBER_LOSS, FFFFF)        \
    X(KL_DIV, FFFFF) X(POISSON_NLL_LOSS, FFFFF) X(COSINE_EMBEDDING_LOSS, FFFFF)               \
    X(HINGE_EMBEDDING_LOSS, FFFFF) X(MARGIN_RANKING_LOSS, FFFFF) X(MULTI_MARGIN_LOSS, FFFFF)  \
    X(MULTILABEL_MARGIN_LOSS, FFFFF) X(SOFT_MARGIN_LOSS, FFFFF) X(TRIPLET_MARGIN_LOSS, FFFFF) \
    X(BCE_WITH_LOGITS, FFFFF) X(BINARY_CROSS_ENTROPY, BBFFB) X(CTC_LOSS, FPFFF) X(ADD, WPPWW) \
    X(SUB, WPPWW) X(MUL, WPPWW) X(DIV, WPPWW) X(COMPARE, WPPPW) X(BIAS_ADD, WPPWP)            \
    X(CAT, WPWPW) X(STACK, WPWPW) X(ADDCDIV, WWPFW) X(ADDCMUL, WWPFW) X(ATAN2, WWPFW)         \
    X(BILINEAR, WWPFW) X(CROSS, WWPFW) X(DOT, WWPLW) X(VDOT, WWPFP) X(TENSORDOT, WWLLP)       \
    X(GRID_SAMPLER, WWFFF) X(INDEX_PUT, WWPFP) X(INDEX_COPY, WPWFP) X(SCATTER_ADD, WWPFP)     \
    X(RELU, PPPPP) X(LEAKY_RELU, PPPPP) X(ELU, PPPPP) X(SELU, PPPPP) X(TANH, PPPPP)           \
    X(SIGMOID, PPPPP) X(SQRT, PPPPP) X(ERF, PPPPP) X(ABS, PPPPP) X(NEG, PPPPP)                \
    X(MAXIMUM, PPPPP) X(MINIMUM, PPPPP) X(ARGMAX, PPPPP) X(DROPOUT, PPPPP)                    \
    X(EMBEDDING, PPPPP) X(GATHER, PPPPP) X(RESHAPE, PPPPP) X(TRANSPOSE, PPPPP)                \
    X(SLICE, PPPPP) X(SELECT, PPPPP) X(PAD, PPPPP) X(REFLECTION_PAD, PPFPP)                   \
    X(REPLICATION_PAD, PPFPP) X(MAX_POOL2D, PPPPP) X(MAX_POOL3D, PPFPP) X(AVG_POOL2D, PPPPP)  \
    X(AVG_POOL3D, PPFPP) X(UPSAMPLE_NEAREST, PFPPF) X(UPSAMPLE_LINEAR, FFPFF)                 \
    X(UPSAMPLE_BILINEAR, FFPFF) X(UPSAMPLE_TRILINEAR, FFPFF) X(UPSAMPLE_BICUBIC, FFPFF)       \
    X(FFT, FPFFP) X(STFT, FPFFP) X(CHOLESKY, FPFFP) X(INVERSE, FPFFP) X(PINVERSE, FPFFP)      \
    X(LU, FPFFP) X(QR, FPFFP) X(SVD, FPFFP) X(EIG, FPFFP) X(LSTSQ, FPFFP) X(TRACE, FPFFP)     \
    X(POLAR, FPFFP) X(FAKE_QUANTIZE, FPFFP)

#define AMPI_OP(id, rules) AMP_OP_##id,
typedef enum amp_op { AMP_OP_LIST(AMPI_OP) AMP_NUM_OPS } amp_op;
#undef AMPI_OP

/* The op of a name, as PyTorch or TensorFlow spell it; capitals and underscores do not matter.
   AMP_ERROR_INVALID_ARGUMENT: unknown. (AMP_OP_LIST makes a table of names.) */
AMP_DEF amp_result amp_op_from_string(const char *name, amp_op *op);

/* The type to compute op in, and the type to return, for floating-point inputs of these types, by
   ac (NULL: the thread's autocast). compute and output may be NULL. AMP_ERROR_BANNED: op is banned.
   AMP_ERROR_MIXED_TYPES: a promoting op mixes fp16 and bf16. */
AMP_DEF amp_result amp_autocast_dtype(amp_autocast *ac, amp_op op, const amp_dtype *inputs,
                                      int count, amp_dtype *compute, amp_dtype *output);

#endif /* AMP_NO_AUTOCAST */

enum { AMPI_VERSION = AMP_VERSION_MAJOR * 10000 + AMP_VERSION_MINOR * 100 + AMP_VERSION_PATCH };
/* The members of amp_optimizer, all private. */
enum { AMP_INLINE_TENSORS = 32 }; /* add allocates only beyond this many */
typedef struct ampi_error { /* and what its text is made of, to be told again */
    amp_result  result;
    const char *format, *words[5]; /* %s in format */
    double      numbers[3];        /* %g */
    size_t      tensor;            /* 1 + its number; 0: of none */
    const char *name;
} ampi_error;
typedef struct ampi_entry {
    amp_tensor  tensor;
    amp_rows    rows;
    amp_storage storage;
    int         flat;
} ampi_entry;
struct amp_optimizer {
    amp_optimizer_desc desc; /* what report and storage point to follows: */
    amp_storage        storage;
    amp_report_desc    report_desc;
    int                reports;
    amp_backend        backend;
    ampi_entry         inline_entries[AMP_INLINE_TENSORS];
    ampi_entry        *entries; /* NULL while they fit inline; flat: 1 first, 2 next */
    size_t             num_entries, capacity;
    amp_plan          *plan;    /* NULL until prepared */
    void              *backend_memory;
    int                initialized, step_open; /* 1: checked, 2: and unscaled */
    ampi_error         refused; /* the first add that was refused, for prepare */
    ampi_error         pending; /* begin_step's, for end_step */
};

/* ------------------------------------------------------------------ >>api cblas */

#ifdef AMP_CBLAS_DROP_IN /* defined after your <cblas.h>, also where AMP_IMPLEMENTATION is */
#ifdef AMP_CBLAS
#error "AMP_CBLAS multiplies by cblas_sgemm, which AMP_CBLAS_DROP_IN replaces: define one of them"
#endif
/* From here on cblas_sgemm is amp_gemm on the CPU (>>api autocast). What amp_gemm refuses goes to
   the original, (cblas_sgemm)(...). Another thread is in fp32 until it uses an autocast of its own.
   The macro rewrites declarations, too: a host's own one behind this line declares amp_cblas_sgemm,
   and its calls come here. In C it must have enums or unsigned for order and transpositions, else
   stand in front; in C++, where it is a template, this holds in AMP_IMPLEMENTATION's file. */
#define AMPI_CBLAS_ARGS(Order, Trans)                                                           \
    Order order, Trans trans_a, Trans trans_b, int m, int n, int k, float alpha, const float *a, \
        int lda, const float *b, int ldb, float beta, float *c, int ldc
#define AMPI_CBLAS_REST m, n, k, alpha, a, lda, b, ldb, beta, c, ldc
#ifdef __cplusplus
AMP_DEF void ampi_cblas_sgemm(AMPI_CBLAS_ARGS(unsigned, unsigned));
extern "C++" template <class Order, class Trans>
inline void amp_cblas_sgemm(AMPI_CBLAS_ARGS(Order, Trans)) {
    ampi_cblas_sgemm((unsigned)order, (unsigned)trans_a, (unsigned)trans_b, AMPI_CBLAS_REST);
}
#else
AMP_DEF void amp_cblas_sgemm(AMPI_CBLAS_ARGS(unsigned, unsigned));
#endif
#define cblas_sgemm(...) amp_cblas_sgemm(__VA_ARGS__)
#endif

#ifdef __cplusplus
}
#endif
#endif /* AMP_H_INCLUDED: stop reading here if you only use the library. */
#if defined(AMP_CBLAS_DROP_IN) && !defined(cblas_sgemm)
#error "amp.h was included before AMP_CBLAS_DROP_IN was defined: define it before the first time"
#endif

/* ========================================================================= >>core
   Every formula of amp.h stands here, once, for the CPU backend (AMP_IMPLEMENTATION) and for the
   kernels (AMP_KERNELS). The code here computes on values; loops and memory belong to the
   backends.

   A tier is an instruction set that has vectors. The file includes itself twice for each
   (AMP_FILE, in >>impl processors), as stb_image_resize2.h does for its coders, and AMPI_PASS
   says what an inclusion is for:
       AMPI_PASS_PLAIN     your own #include: everything except >>impl vectors, in plain C
       AMPI_PASS_VECTORS   a tier's first: >>impl vectors
       AMPI_PASS_LOOPS     its second: >>core formulas, >>impl loops, products and kernels
       AMPI_PASS_KERNELS   >>impl kernels alone, for AVX512_BF16 and BFMMLA
   AMPI_TIER is the suffix of a tier's functions: AMPI_(add) is ampi_add_avx2, and make tier
   TIER=avx2 prints them all. AMPI_V is a vector of AMPI_W floats, AMPI_U one of 32-bit words; in
   plain C both are single numbers. */

/* Strict C89 has no inline (gcc's and clang's gnu89 has): report that as one error. */
#if defined(AMP_IMPLEMENTATION) && defined(__STRICT_ANSI__) && !defined(__cplusplus) && \
    (!defined(__STDC_VERSION__) || __STDC_VERSION__ < 199901L)
#error "amp.h is C99: compile the file of AMP_IMPLEMENTATION with -std=c99 or newer"
#undef AMP_IMPLEMENTATION
#endif

#if (defined(AMP_IMPLEMENTATION) || defined(AMP_KERNELS)) && !defined(AMP_CORE_INCLUDED)
#define AMP_CORE_INCLUDED

#define AMPI_PASS_PLAIN   1
#define AMPI_PASS_VECTORS 2
#define AMPI_PASS_LOOPS   4
#define AMPI_PASS_KERNELS 8

#include <string.h> /* memcpy, memset */

/* Operations that round more than once. (-1 is clang's, and right, under -ffast-math.) */
#if defined(__x86_64__) && defined(__FLT_EVAL_METHOD__) && \
    (__FLT_EVAL_METHOD__ % 16 > 0 || (__FLT_EVAL_METHOD__ < 0 && !defined(__clang__)))
#error "amp.h rounds each operation to its type: compile without -mfpmath=387 or -ffp-eval-method"
#endif

/* Rules of arithmetic for gcc (>>core arithmetic). SLP vectors cost time, in the compiler and in
   products; clones cost 6 KB. gcc compiles amp.h by -O2 and what loops want of -O3, whatever level
   the host has: -O0 would make a call of every operation, -O1 keeps sums in memory, -O2 tests a
   loop's constants inside the loop, -O3 makes an eighth more code that is no faster. One pragma is
   around all code, as gcc inlines nothing across two. (clang has no such pragma. AMP_DEBUG and
   -fsanitize=address or thread keep the host's level; of =undefined gcc tells nothing.) */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#define AMPI_GCC_BEGIN(level)                                                                  \
    _Pragma("GCC push_options") _Pragma(level)                                                 \
    _Pragma("GCC optimize(\"no-tree-slp-vectorize,no-ipa-cp-clone,align-loops=64\")")
#endif
#if !defined(AMPI_GCC_BEGIN) || defined(AMP_DEBUG) || defined(__SANITIZE_ADDRESS__) || \
    defined(__SANITIZE_THREAD__)
#define AMPI_OPTIMIZE_BEGIN
#define AMPI_OPTIMIZE_END
#else
#define AMPI_OWN_LEVEL
#define AMPI_OPTIMIZE_BEGIN                                                                    \
    AMPI_GCC_BEGIN("GCC optimize(\"O2,inline,no-fast-math,fp-contract=off\")")                 \
    _Pragma("GCC optimize(\"tree-loop-vectorize,vect-cost-model=dynamic,unswitch-loops\")")
#define AMPI_OPTIMIZE_END _Pragma("GCC pop_options")
#endif
#if defined(AMPI_OWN_LEVEL) || defined(__OPTIMIZE__)
#define AMPI_OPTIMIZES
#endif

/* Save and restore the host's macros. After a function, gcc's pop_options does not restore them
   (in C; in C++ they never change), and a later <math.h> would lack vector functions. */
#if defined(AMPI_GCC_BEGIN) && !defined(__cplusplus)
#define AMPI_MACRO(act, name) AMPI_PRAGMA(act##_macro(name))
#define AMPI_PRAGMA(text)     _Pragma(#text)
#define AMPI_MACROS(act)                                                                       \
    AMPI_MACRO(act, "__OPTIMIZE__")         AMPI_MACRO(act, "__OPTIMIZE_SIZE__")               \
    AMPI_MACRO(act, "__NO_INLINE__")        AMPI_MACRO(act, "__SUPPORT_SNAN__")                \
    AMPI_MACRO(act, "__FAST_MATH__")        AMPI_MACRO(act, "__FINITE_MATH_ONLY__")            \
    AMPI_MACRO(act, "__NO_MATH_ERRNO__")    AMPI_MACRO(act, "__NO_TRAPPING_MATH__")            \
    AMPI_MACRO(act, "__NO_SIGNED_ZEROS__")  AMPI_MACRO(act, "__ROUNDING_MATH__")               \
    AMPI_MACRO(act, "__RECIPROCAL_MATH__")  AMPI_MACRO(act, "__ASSOCIATIVE_MATH__")
#else
#define AMPI_MACROS(act)
#endif

AMPI_MACROS(push)
AMPI_OPTIMIZE_BEGIN

/* AMPI_HIDE hides the value of x from the compiler: it then makes no copies of a loop for its
   values, does not unroll a loop of x iterations, and concludes nothing from "no infinities". */
#if defined(__GNUC__) || defined(__clang__)
#define AMPI_HOST      static inline __attribute__((unused))
#define AMPI_NOINLINE  __attribute__((noinline))
#define AMPI_PRINTS(i) __attribute__((format(printf, i, i + 1)))
#define AMPI_HIDE(x)   __asm__("" : "+r"(x))
#else
#define AMPI_HOST      static inline
#define AMPI_NOINLINE
#define AMPI_PRINTS(i)
#define AMPI_HIDE(x)   ((void)0)
#endif
#if defined(__CUDACC__)
#define AMPI_FN static __host__ __device__ __forceinline__
#else
#define AMPI_FN AMPI_HOST
#endif
#if (defined(__GNUC__) || defined(__clang__)) && defined(AMPI_OPTIMIZES) /* at -O0: calls */
#define AMPI_ALWAYS __attribute__((always_inline))
#else
#define AMPI_ALWAYS
#endif

/* A check by the compiler, in C99 and C++11. The name says what is checked. */
#define AMPI_STATIC_ASSERT(name, condition) typedef char name[(condition) ? 1 : -1]

/* Makes the call, and returns its error if there is one. */
#define AMPI_TRY(call) do { const amp_result ampi_e = (call); if (ampi_e) return ampi_e; } while (0)

/* Arrays and files hold numbers of these sizes; kernels and graphs rely on the structs'. */
AMPI_STATIC_ASSERT(ampi_numbers_have_their_sizes, sizeof(float) == 4 && sizeof(double) == 8);
AMPI_STATIC_ASSERT(ampi_constants_are_double_so_no_fsingle_precision_constant, sizeof(1.0) == 8);
/* Formats: every 1.x has these sizes and offsets. New members take reserved bytes. */
#define AMPI_OFFSET(type, member, at) \
    AMPI_STATIC_ASSERT(ampi_##member##_stays_where_it_is, offsetof(amp_##type, member) == at)
AMPI_STATIC_ASSERT(ampi_gate_keeps_its_size, sizeof(amp_gate) == 32);
AMPI_STATIC_ASSERT(ampi_scaler_keeps_its_size, sizeof(amp_scaler) == 144);
AMPI_OFFSET(gate, skip, 0); AMPI_OFFSET(gate, inv_scale, 4); AMPI_OFFSET(gate, step, 8);
AMPI_OFFSET(scaler, scale, 0); AMPI_OFFSET(scaler, found_inf, 4); AMPI_OFFSET(scaler, checked, 8);
AMPI_OFFSET(scaler, stuck, 12); AMPI_OFFSET(scaler, good, 16); AMPI_OFFSET(scaler, skipped, 24);
AMPI_OFFSET(scaler, skipped_in_a_row, 32); AMPI_OFFSET(scaler, growths, 40);
AMPI_OFFSET(scaler, backoffs, 48); AMPI_OFFSET(scaler, growth_factor, 56);
AMPI_OFFSET(scaler, backoff_factor, 64); AMPI_OFFSET(scaler, growth_interval, 72);
AMPI_OFFSET(scaler, growth_tracker, 76); AMPI_OFFSET(scaler, hysteresis, 80);
AMPI_OFFSET(scaler, hysteresis_tracker, 84); AMPI_OFFSET(scaler, min_scale, 88);
AMPI_OFFSET(scaler, max_scale, 92); AMPI_OFFSET(scaler, preset, 96);
AMPI_OFFSET(scaler, disabled, 100); AMPI_OFFSET(scaler, next_scale, 104);

#define AMPI_F32_INF 0x7f800000u /* exponent all ones: inf, or NaN with a fraction */
#define AMPI_F16_INF_FROM 0x477ff000u /* 65520, which a cast to fp16 rounds to inf */

/* -------------------------------------------------------------- >>core conversions
   Conversions of bits to bits, by integers only. They stand in front of the strict region below,
   so that they can be inlined anywhere. */

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

/* clang recognizes this test, even on integers that were floats before, and under -Ofast answers
   that nothing is infinite. The bits therefore pass through an empty asm statement. */
AMPI_FN int ampi_nonfinite(uint32_t f32_bits) {
#if defined(__clang__) && !defined(__CUDACC__)
    AMPI_HIDE(f32_bits);
#endif
    return (f32_bits & AMPI_F32_INF) == AMPI_F32_INF;
}

/* h = floor((u + (2^(d - 1) - 1) + odd) / 2^d), odd = floor(u / 2^d) mod 2
   To nearest even, where d bits go. A carry into the exponent is correct. NaN becomes quiet. */
AMPI_FN int      ampi_is_nan(uint32_t u) { return (u & 0x7fffffffu) > AMPI_F32_INF; }
AMPI_FN uint16_t ampi_f16_from_f32(uint32_t u) {
    const uint32_t sign = (u >> 16) & 0x8000u;
    const uint32_t a    = u & 0x7fffffffu;
    if (a > AMPI_F32_INF) return (uint16_t)(sign | 0x7e00u | ((a >> 13) & 0x3ffu));
    if (a >= AMPI_F16_INF_FROM) return (uint16_t)(sign | 0x7c00u);
    if (a >= 0x38800000u) { /* 2^-14 and more: normal. 13 bits go, 2^112 in the exponent, too */
        const uint32_t odd = (a >> 13) & 1u;
        return (uint16_t)(sign | ((a + 0xfffu + odd - (112u << 23)) >> 13));
    }
    if (a > 0x33000000u) { /* above 2^-25: subnormal, in units of 2^-24 */
        const uint32_t fraction = (a & 0x7fffffu) | 0x800000u;
        const uint32_t drop     = 126u - (a >> 23); /* 14..24 */
        const uint32_t odd      = (fraction >> drop) & 1u;
        return (uint16_t)(sign | ((fraction + (1u << (drop - 1u)) - 1u + odd) >> drop));
    }
    return (uint16_t)sign;
}

/* How many of n fp32 numbers are inf or NaN in fp16. */
AMPI_FN uint32_t ampi_f16_overflows(const void *x, size_t n) {
    uint32_t count = 0;
    while (n--) count += (ampi_load_u32(x, n) & 0x7fffffffu) >= AMPI_F16_INF_FROM;
    return count;
}

/* 2^(e - 15) (1 + f / 2^10), or 2^-24 f where e = 0 */
AMPI_FN uint32_t ampi_f32_from_f16(uint16_t h) {
    const uint32_t sign     = (uint32_t)(h & 0x8000u) << 16;
    uint32_t       exponent = (uint32_t)(h >> 10) & 0x1fu;
    uint32_t       fraction = (uint32_t)h & 0x3ffu;
    if (exponent == 31u)
        return sign | AMPI_F32_INF | (fraction ? 0x400000u : 0u) | (fraction << 13);
    if (exponent == 0u) {
        if (fraction == 0u) return sign;
        for (exponent = 1u; !(fraction & 0x400u); exponent--) fraction <<= 1;
        fraction &= 0x3ffu;
    }
    return sign | ((exponent + 112u) << 23) | (fraction << 13);
}

/* As above, d = 16. */
AMPI_FN uint16_t ampi_bf16_from_f32(uint32_t u) {
    if (ampi_is_nan(u)) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

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

/* ---------------------------------------------------------------- >>core arithmetic
   Each operation rounds once, on its own, on every machine: no contraction to FMA, no reciprocal
   or rsqrt in place of a division or a root, no flushed subnormals. gcc obeys the pragma. clang's
   backend does not under -Ofast; there every result passes through an empty asm statement. Device
   code is inline PTX, which stays IEEE under --use_fast_math; intrinsics and casts do not (they
   flush subnormals). Where it has an fma, that computes a product or a sum alone. */

#if defined(__CUDACC__) && defined(__GNUC__) && !defined(__clang__) && !defined(__CUDA_ARCH__)
/* nvcc passes the pragma on to gcc, but warns. */
#define AMPI_STRICT_BEGIN                                                                      \
    _Pragma("nv_diagnostic push") _Pragma("nv_diag_suppress 1675")                            \
    _Pragma("GCC push_options") _Pragma("GCC optimize(\"no-fast-math,fp-contract=off\")")      \
    _Pragma("nv_diagnostic pop")
#define AMPI_STRICT_END _Pragma("GCC pop_options")
#elif defined(__clang__) && defined(__arm__) /* where clang has no float_control */
#define AMPI_STRICT_BEGIN _Pragma("clang fp contract(off)")
#if defined(__FAST_MATH__)
#define AMPI_STRICT_END _Pragma("clang fp contract(fast)")
#else
#define AMPI_STRICT_END _Pragma("clang fp contract(on)")
#endif
#elif defined(__clang__) && !defined(__CUDA_ARCH__)
#define AMPI_STRICT_BEGIN                                                                      \
    _Pragma("float_control(push)") _Pragma("float_control(precise, on)")                      \
    _Pragma("clang fp contract(off)")
#define AMPI_STRICT_END _Pragma("float_control(pop)")
#elif defined(AMPI_GCC_BEGIN) && !defined(AMPI_OWN_LEVEL)
#define AMPI_STRICT_BEGIN AMPI_GCC_BEGIN("GCC optimize(\"no-fast-math,fp-contract=off\")")
#define AMPI_STRICT_END   _Pragma("GCC pop_options")
#elif defined(_MSC_VER) && !defined(__CUDA_ARCH__)
#define AMPI_STRICT_BEGIN __pragma(float_control(precise, on, push)) __pragma(fp_contract(off))
#if _MSC_VER < 1930 || defined(_M_FP_CONTRACT) /* the default without a pragma */
#define AMPI_STRICT_END __pragma(float_control(pop)) __pragma(fp_contract(on))
#else
#define AMPI_STRICT_END __pragma(float_control(pop))
#endif
#else
#define AMPI_STRICT_BEGIN
#define AMPI_STRICT_END
#endif

/* For set-up, files, reports and what runs once per step or product: where this code is optimized
   for size, compilers take a tenth less time. */
#if defined(AMPI_OPTIMIZES) && defined(AMPI_GCC_BEGIN)
#define AMPI_COLD_BEGIN                                                                        \
    _Pragma("GCC push_options") _Pragma("GCC optimize(\"Os,no-fast-math,fp-contract=off\")")
#define AMPI_COLD_END _Pragma("GCC pop_options")
#elif defined(AMPI_OPTIMIZES) && defined(__clang__) && !defined(__CUDACC__)
#define AMPI_COLD_BEGIN                                                                        \
    _Pragma("clang attribute push(__attribute__((minsize)), apply_to = function)")
#define AMPI_COLD_END _Pragma("clang attribute pop")
#else
#define AMPI_COLD_BEGIN
#define AMPI_COLD_END
#endif

AMPI_STRICT_BEGIN

#if defined(__clang__) && defined(__x86_64__) && !defined(AMPI_TILES_MODEL)
#define AMPI_PIN(x) __asm__("" : "+v"(x))
#elif defined(__clang__) && defined(__aarch64__) && !defined(AMPI_TILES_MODEL)
#define AMPI_PIN(x) __asm__("" : "+w"(x))
#elif defined(__clang__)
#define AMPI_PIN(x) __asm__("" : "+m"(x))
#else
#define AMPI_PIN(x) ((void)0)
#endif

/* Returns an operation's value, which is of type V: a float, a double or a vector of floats. */
#define AMPI_RETURN(V, value) do { V r = value; AMPI_PIN(r); return r; } while (0)

/* A function of one instruction: parameters, text, constraint of the result, operands. */
#define AMPI_INSTRUCTION(FN, V, name, parameters, text, out, ...)                              \
    FN V name parameters {                                                                     \
        V r;                                                                                   \
        __asm__(text : out(r) : __VA_ARGS__);                                                  \
        return r;                                                                              \
    }

#if !defined(__CUDA_ARCH__)
AMPI_FN double ampi_double(float a) { return (double)a; }
AMPI_FN float  ampi_single(double a) { return (float)a; }
AMPI_FN float  ampi_add(float a, float b) { AMPI_RETURN(float, a + b); }
AMPI_FN float  ampi_sub(float a, float b) { AMPI_RETURN(float, a - b); }
AMPI_FN float  ampi_mul(float a, float b) { AMPI_RETURN(float, a * b); }
AMPI_FN float  ampi_div(float a, float b) { AMPI_RETURN(float, a / b); }
AMPI_FN double ampi_add64(double a, double b) { AMPI_RETURN(double, a + b); }
AMPI_FN double ampi_sub64(double a, double b) { AMPI_RETURN(double, a - b); }
AMPI_FN double ampi_mul64(double a, double b) { AMPI_RETURN(double, a * b); }
AMPI_FN double ampi_div64(double a, double b) { AMPI_RETURN(double, a / b); }
#if (defined(__GNUC__) || defined(__clang__)) && defined(__SSE2_MATH__)
AMPI_INSTRUCTION(AMPI_FN, float, ampi_sqrt, (float a), "sqrtss {%1, %0|%0, %1}", "=x", "x"(a))
AMPI_INSTRUCTION(AMPI_FN, double, ampi_sqrt64, (double a), "sqrtsd {%1, %0|%0, %1}", "=x", "x"(a))
#elif (defined(__GNUC__) || defined(__clang__)) && defined(__aarch64__)
AMPI_INSTRUCTION(AMPI_FN, float, ampi_sqrt, (float a), "fsqrt %s0, %s1", "=w", "w"(a))
AMPI_INSTRUCTION(AMPI_FN, double, ampi_sqrt64, (double a), "fsqrt %d0, %d1", "=w", "w"(a))
#elif (defined(__GNUC__) || defined(__clang__)) && defined(__i386__)
/* x87: the top of its stack */
AMPI_INSTRUCTION(AMPI_FN, float, ampi_sqrt, (float a), "fsqrt", "=t", "0"(a))
AMPI_INSTRUCTION(AMPI_FN, double, ampi_sqrt64, (double a), "fsqrt", "=t", "0"(a))
#else
#include <math.h> /* sqrt, sqrtf: only where no instruction above is known */
AMPI_FN float  ampi_sqrt(float a) { return sqrtf(a); }
AMPI_FN double ampi_sqrt64(double a) { return sqrt(a); }
#endif
#else
#define AMPI_PTX(V, name, ptx, reg)                                                            \
    AMPI_INSTRUCTION(AMPI_FN, V, name, (V a, V b), ptx " %0, %1, %2;", "=" reg, reg(a), reg(b))
AMPI_INSTRUCTION(AMPI_FN, double, ampi_double, (float a), "cvt.f64.f32 %0, %1;", "=d", "f"(a))
AMPI_INSTRUCTION(AMPI_FN, float, ampi_single, (double a), "cvt.rn.f32.f64 %0, %1;", "=f", "d"(a))
AMPI_INSTRUCTION(AMPI_FN, double, ampi_sqrt64, (double a), "sqrt.rn.f64 %0, %1;", "=d", "d"(a))
AMPI_PTX(float, ampi_add, "add.rn.f32", "f")
AMPI_PTX(float, ampi_sub, "sub.rn.f32", "f")
AMPI_PTX(float, ampi_mul, "mul.rn.f32", "f")
AMPI_PTX(double, ampi_add64, "add.rn.f64", "d")
AMPI_PTX(double, ampi_sub64, "sub.rn.f64", "d")
AMPI_PTX(double, ampi_mul64, "mul.rn.f64", "d")
AMPI_PTX(double, ampi_div64, "div.rn.f64", "d")
#endif

/* They stand here because gcc inlines no function of floats into the strict region. */
AMPI_FN float ampi_load_f32(const void *base, size_t i) {
    float x;
    memcpy(&x, (const unsigned char *)base + 4 * i, 4);
    return x;
}
AMPI_FN float ampi_f32_from_bits(uint32_t u) { return ampi_load_f32(&u, 0); }

AMPI_FN void ampi_store_f32(void *base, size_t i, float x) {
    memcpy((unsigned char *)base + 4 * i, &x, 4);
}

/* The bits are hidden, or compilers conclude from "no infinities" what they cannot be. */
AMPI_FN uint32_t ampi_bits_of_f32(float x) {
    uint32_t u = ampi_load_u32(&x, 0);
    AMPI_HIDE(u);
    return u;
}
/* 0 or -0? Of floats the answer might be yes for a subnormal. */
AMPI_FN int ampi_is_zero(float x) { return (ampi_bits_of_f32(x) & 0x7fffffffu) == 0u; }

/* Is *x inf or NaN? */
AMPI_HOST int ampi_nonfinite_at(const double *x) {
    uint64_t bits;
    memcpy(&bits, x, 8);
    AMPI_HIDE(bits);
    return (bits >> 52 & 0x7ffu) == 0x7ffu;
}

/* -------------------------------------------------------------------- >>core scaler */

/* What a preset means, as bits: one value per question. */
enum {
    /* when does a run of good steps make the scale grow? */
    AMPI_GROW_NEVER = 0,
    AMPI_GROW_EQUAL,  /* the tracker, counting this step, equals the interval           */
    AMPI_GROW_REACH,  /* as EQUAL, but >=: an interval lowered below it grows at once   */
    AMPI_GROW_WRAP,   /* as EQUAL; the tracker counts modulo the interval               */
    AMPI_GROW_MODULO, /* good steps since the last overflow are a multiple of it        */
    AMPI_GROW_LATE,   /* as MODULO, one step later                                      */
    AMPI_GROW_BEFORE, /* the tracker, before counting this step, equals the interval    */
    AMPI_GROW_MASK = 7,
    /* when is hysteresis refilled? neither: the preset has none */
    AMPI_REFILL_GOOD   = 1 << 3,
    AMPI_REFILL_GROWTH = 1 << 4,
    AMPI_GUARD = 1 << 5, /* growth that would make the scale infinite is left out */
    AMPI_WIDE  = 1 << 6, /* the original keeps the scale in a host double */
    AMPI_DELAY = 1 << 7, /* a new scale takes effect at the following update */
    AMPI_SAFE  = 1 << 8  /* the unscaled product is checked too; 1 / scale stays normal */
};

/* ORDER amp_preset: when the scale grows; other bits; init_scale, min_scale, max_scale (0: none),
   growth_interval, hysteresis; does the original divide by its growth factor? STATIC has 2^-126
   and 2^126, whose reciprocals are normal. */
#define AMPI_PRESETS(X)                                                                            \
    X(DEFAULT, EQUAL, AMPI_REFILL_GOOD | AMPI_SAFE, 65536, 6.103515625e-5f, 16777216, 2000, 1, 0)  \
    X(STATIC, NEVER, AMPI_SAFE, 65536, 1.17549435e-38f, 8.50705917e37f, 2000, 1, 0)                \
    X(NONE, NEVER, AMPI_SAFE, 1, 1, 1, 2000, 1, 0)                                                 \
    X(TORCH, EQUAL, AMPI_GUARD, 65536, 0, 0, 2000, 1, 0)                                           \
    X(APEX, EQUAL, AMPI_WIDE, 65536, 0, 16777216, 2000, 1, 1)                                      \
    X(APEX_HYSTERESIS, EQUAL, AMPI_REFILL_GOOD | AMPI_GUARD, 65536, 0, 0, 2000, 1, 0)              \
    X(MEGATRON, EQUAL, AMPI_REFILL_GROWTH, 4294967296.0f, 1, 0, 1000, 2, 0)                        \
    X(DEEPSPEED, MODULO, AMPI_REFILL_GROWTH | AMPI_WIDE, 65536, 1, 0, 1000, 2, 1)                  \
    X(DEEPSPEED_CONSECUTIVE, MODULO, AMPI_REFILL_GOOD | AMPI_WIDE, 65536, 1, 0, 1000, 2, 1)        \
    X(DEEPSPEED_FUSED, LATE, AMPI_WIDE, 4294967296.0f, 1, 0, 1000, 1, 1)                           \
    X(FLAX, BEFORE, 0, 65536, 1.17549435e-38f, 3.40282347e38f, 2000, 1, 0)                         \
    X(JMP, WRAP, AMPI_GUARD, 65536, 1, 0, 2000, 1, 1)                                              \
    X(KERAS, EQUAL, 0, 32768, 0, 0, 2000, 1, 0)                                                    \
    X(TF_KERAS, REACH, AMPI_GUARD, 32768, 1, 0, 2000, 1, 1)                                        \
    X(MXNET, EQUAL, AMPI_WIDE | AMPI_DELAY, 65536, 0, 16777216, 2000, 1, 1)
enum { AMPI_NUM_PRESETS = AMP_PRESET_MXNET + 1 };

/* The rules of a scaler's preset; 0, which never moves, for a number that is none. */
AMPI_FN uint32_t ampi_rules(const amp_scaler *s) {
    switch (s->preset) {
#define AMPI_PRESET(preset, grow, bits, ...) \
    case AMP_PRESET_##preset: return AMPI_GROW_##grow | (uint32_t)(bits);
        AMPI_PRESETS(AMPI_PRESET)
#undef AMPI_PRESET
    default: return 0;
    }
}

/* Does the scale move? */
AMPI_FN int ampi_is_dynamic(const amp_scaler *s) {
    return !s->disabled && (ampi_rules(s) & AMPI_GROW_MASK) != AMPI_GROW_NEVER;
}

/* Every initialized scaler has a hysteresis, of 1 or more. */
AMPI_FN int ampi_is_initialized(const amp_scaler *s) { return s->hysteresis > 0; }

/* 1 / scale, rounded once from double, as torch computes it; inf for 0, without a division. */
AMPI_FN float ampi_inv_scale(float scale) {
    if (ampi_is_zero(scale)) return ampi_f32_from_bits(AMPI_F32_INF);
    return ampi_single(ampi_div64(1.0, ampi_double(scale)));
}

/* g = grad factor,   factor = 1 / scale, times clip_factor in a step
   Inf and NaN pass through, so that their bits do not depend on the processor. */
AMPI_FN float ampi_unscale(uint32_t grad_bits, float factor) {
    const float g = ampi_f32_from_bits(grad_bits);
#if defined(__CUDA_ARCH__)
    uint32_t odd;
    __asm__("{ .reg .pred p; .reg .f32 a; abs.f32 a, %1; setp.geu.f32 p, a, 0f7F800000;"
            " selp.u32 %0, 1, 0, p; }" : "=r"(odd) : "f"(g));
    return odd ? g : ampi_mul(g, factor);
#else
    return ampi_nonfinite(grad_bits) ? g : ampi_mul(g, factor);
#endif
}

/* Law 5: max |g| / scale = inf? */
AMPI_FN int ampi_product_overflows(const amp_scaler *s, uint32_t max_bits, float inv_scale) {
    if (!(ampi_rules(s) & AMPI_SAFE)) return 0;
    return ampi_nonfinite(ampi_bits_of_f32(ampi_mul(ampi_f32_from_bits(max_bits), inv_scale)));
}

/* Record that one more gradient, or all of an optimizer's, was checked. */
AMPI_FN void ampi_scaler_record(amp_scaler *s, uint32_t found_inf) {
    if (found_inf) s->found_inf |= found_inf; /* never undo what another stream has found */
    if (s->checked != UINT32_MAX) s->checked++;
}

/* Count a good step. Does it complete a run, after which the scale grows? */
AMPI_FN int ampi_scaler_run_complete(amp_scaler *s) {
    const int interval = s->growth_interval, before = s->growth_tracker;
    const int count    = before < INT32_MAX ? before + 1 : before;
    int       grow     = 0;
    s->growth_tracker = count;
    if (interval <= 0) return 0;
    switch (ampi_rules(s) & AMPI_GROW_MASK) {
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

/* overflow:  scale = max(min_scale, scale backoff_factor), once hysteresis_tracker is at 1
   good run:  scale = min(max_scale, scale growth_factor)
   The state machine of all presets; backoff_factor 0 is 1 / growth_factor. */
AMPI_FN void ampi_scaler_move(amp_scaler *s) {
    const uint32_t rules = ampi_rules(s);
    const double live = s->next_scale; /* differs from s->scale only in AMPI_WIDE, AMPI_DELAY */
    const double min_scale = ampi_double(s->min_scale), max_scale = ampi_double(s->max_scale);
    double       next      = live;
    if (s->found_inf != 0u) {
        s->growth_tracker = 0;
        if (s->hysteresis_tracker > 1) {
            s->hysteresis_tracker--;
        } else if ((rules & AMPI_GROW_MASK) != AMPI_GROW_NEVER) {
            next = s->backoff_factor > 0.0 ? ampi_mul64(live, s->backoff_factor)
                                           : ampi_div64(live, s->growth_factor);
            if (next < min_scale) next = min_scale;
            if (!(rules & AMPI_WIDE)) next = ampi_double(ampi_single(next));
            if (next < live) s->backoffs++;
            else s->stuck = 1u;
        }
    } else {
        const int grow = ampi_scaler_run_complete(s);
        if ((rules & AMPI_REFILL_GOOD) || (grow && (rules & AMPI_REFILL_GROWTH)))
            s->hysteresis_tracker = s->hysteresis;
        if (grow) {
            next = ampi_mul64(live, s->growth_factor);
            if (max_scale > 0.0 && next > max_scale) next = max_scale;
            if (!(rules & AMPI_WIDE)) next = ampi_double(ampi_single(next));
            if ((rules & AMPI_GUARD) && ampi_nonfinite(ampi_bits_of_f32(ampi_single(next))))
                next = live;
            if (next > live) s->growths++;
        }
    }
    s->next_scale = next;
    s->scale      = ampi_single((rules & AMPI_DELAY) ? live : next);
}

/* One update. A disabled scaler only counts it. */
AMPI_FN void ampi_scaler_transition(amp_scaler *s) {
    if (s->found_inf != 0u) s->skipped++, s->skipped_in_a_row++;
    else s->good++, s->skipped_in_a_row = 0u;
    if (!s->disabled) ampi_scaler_move(s);
    s->found_inf = 0u;
    s->checked   = 0u;
}

/* Do n elements of dst overlap n of src? dst may be NULL, or src itself if it is no wider. */
AMPI_HOST int ampi_overlaps(const void *dst, amp_dtype dst_type, const void *src,
                            amp_dtype src_type, size_t n) {
    const uintptr_t to = (uintptr_t)dst, from = (uintptr_t)src;
    const size_t    dst_size = dst_type == AMP_F32 ? 4 : 2, src_size = src_type == AMP_F32 ? 4 : 2;
    if (!dst || (dst == src && dst_size <= src_size)) return 0;
    return to < from ? (from - to) / dst_size < n : (to - from) / src_size < n;
}

/* ----------------------------------------------------------------- >>core optimizer */

/* Norms are summed in one order everywhere. A tensor is cut into chunks. In a chunk, element i
   goes to lane i mod AMPI_LANES, in order. Lanes are added in pairs (l, l + 128), (l, l + 64),
   ... The sums of chunks, in double, are added by the same rule. */
enum { AMPI_CHUNK = 16384, AMPI_LANES = 256 };
AMPI_FN uint64_t ampi_chunks(uint64_t n) { return n / AMPI_CHUNK + (n % AMPI_CHUNK != 0); }

/* sum of x^2 = 2^-2k sum of (2^k x)^2,   k = 0, -96 or 96
   A chunk's sum that is infinite, or tiny though its largest magnitude max is not 0, is summed
   again, of elements times *rescale, and multiplied by *back. No square of a float overflows
   there, and none that matters is lost. */
#define AMPI_TINY    7.888609052210118e-31f /* 2^-100 */
#define AMPI_DOWN    1.262177448353619e-29f /* 2^-96  */
#define AMPI_UP      7.922816251426434e+28f /* 2^96   */
#define AMPI_DOWN_64 1.5930919111324523e-58 /* 2^-192 */
#define AMPI_UP_64   6.277101735386681e+57  /* 2^192  */
AMPI_FN int ampi_sums_again(float sum, uint32_t max, float *rescale, double *back) {
    const uint32_t u        = ampi_bits_of_f32(sum);
    const int      overflow = ampi_nonfinite(u);
    if (!overflow && (u >= ampi_bits_of_f32(AMPI_TINY) || max == 0u)) return 0;
    *rescale = overflow ? AMPI_DOWN : AMPI_UP;
    *back    = overflow ? AMPI_UP_64 : AMPI_DOWN_64;
    return 1;
}

/* Statistics that many threads collect by integer atomics. All are zero between checks. */
typedef struct ampi_tally {
    unsigned long long nonfinite, nan, zeros;
    unsigned long long late; /* n - index of the first element that is not finite: 0, or the most */
    uint32_t           max;  /* bits of the largest finite magnitude */
} ampi_tally;

/* A gradient of few rows, in backend memory, with room to sort its entries by row and to add up
   the entries of each row into the slot's grad. The sort is an LSD radix sort with AMPI_DIGITS
   values a digit, from one pair of keys and places to the other. Each AMPI_SEGMENT entries of a
   row are added in order, then these sums in order, so that many blocks can share a row. Only
   rows of more than one segment use spare and done, at index i / AMPI_SEGMENT, where i is the
   sorted entry with which the segment or the row begins; so no two meet there. */
enum {
    AMPI_DIGITS  = 256,
    AMPI_TILE    = 2048, /* entries that a block of a GPU sorts */
    AMPI_SEGMENT = 64
};
/* In control->maxima[0], beside 1 for an overflow: a row outside the tensor. It skips always. */
enum { AMPI_BAD_ROW = AMP_ASK_SKIP };
typedef struct ampi_sparse {
    const uint32_t *rows;
    uint32_t       *num_rows;
    uint32_t        slot, most, length, table; /* max_rows; elements in a row; rows in the tensor */
    uint32_t        first_tile, num_tiles;
    uint32_t       *keys[2], *places[2];
    uint32_t       *counts[2];       /* of digits in each tile: this pass, the next              */
    uint32_t       *unique, *begins; /* rows ascending; how many begin before a segment          */
    float          *spare;           /* sums of segments, each row's first one left out          */
    uint32_t       *done, arrived;   /* a row's summed segments; sorted tiles                    */
    uint32_t        given, touched;  /* of this step: entries, different rows                    */
    uint32_t        early;           /* most + 1 - the first bad place: 0, or the most           */
} ampi_sparse;

/* What a sampled step counts in one tensor, and what is remembered of its overflows, in backend
   memory. Counts are integers, so the order in which threads add them does not matter. */
enum ampi_count {
    AMPI_F16_ZERO, AMPI_F16_SMALL, AMPI_BF16_ZERO, AMPI_BF16_SMALL,
    AMPI_UPDATES, AMPI_LOST, AMPI_ROUNDED,
    AMPI_GRADS,
    AMPI_WEIGHTS = AMPI_GRADS + AMP_BINS,
    AMPI_COUNTS  = AMPI_WEIGHTS + AMP_BINS
};
typedef struct ampi_histogram { unsigned long long count[AMPI_COUNTS]; } ampi_histogram;
typedef struct ampi_overflows { uint64_t overflows, nans, first, last; } ampi_overflows;

/* A run's record, in backend memory. Each tensor has two histograms: number `which` is of the
   last sample, the other is zero until the next. */
typedef struct ampi_record {
    uint32_t      which;
    uint32_t      bad;     /* number of tensors minus the first that is not finite; 0: none */
    uint64_t      sampled; /* iteration of the last sample */
    uint64_t      skips[2]; /* by amp_skip_reason, from AMP_SKIP_OVERFLOW on */
    amp_iteration history[AMP_HISTORY]; /* iteration t at t modulo AMP_HISTORY */
} ampi_record;

enum { AMPI_GROUP = 32 }; /* elements that share a scale */
AMPI_STATIC_ASSERT(ampi_chunks_have_whole_lanes_and_groups,
                   AMPI_CHUNK % (int)AMPI_LANES == 0 && AMPI_CHUNK % (int)AMPI_GROUP == 0);

/* A moment, or what is stored of a master beside the model. size: bytes of an element. */
typedef struct ampi_stored {
    void    *data;         /* NULL: there is none                            */
    uint8_t *scale;        /* in a format with groups: their exponents       */
    amp_storage_format format;
    uint32_t   size;
} ampi_stored;

/* Is it stored in another format than fp32? */
AMPI_FN int ampi_is_encoded(const ampi_stored *s) { return s->format != AMP_FORMAT_F32; }

/* One tensor as kernels see it, in backend memory. */
typedef struct ampi_slot {
    uint64_t  n;           /* elements; if sparse, in the backend's table: of this step's rows   */
    uint64_t  first_chunk; /* number of its first chunk; own slots' chunks come last */
    uint64_t  first_sum;   /* the same in the order of tensors          */
    uint64_t  key, first;  /* of random bits: number of the whole tensor, and where these begin */
    ampi_stored master;    /* or what the model lacks of it             */
    ampi_stored moment[2]; /* first or momentum; second                 */
    float    *weight;      /* if master is not fp32: what rebind has brought for a refresh */
    void     *grad;        /* NULL: none at present                     */
    float    *unscaled;    /* gradients for your optimizer; NULL: the step is fused */
    void     *model;       /* NULL: the master is the model             */
    ampi_sparse *sparse;   /* NULL: the gradient is of all elements     */
    void     *values;      /* else: the gradient as it comes; grad has its sums */
    amp_dtype values_type, grad_type, model_type;
    uint32_t  in_place;    /* unscaled is grad                          */
    float     lr_scale, weight_decay;
    ampi_overflows overflows; /* for a report                           */
    amp_grad_stats stats;
    ampi_tally tally;
    uint32_t   arrived;    /* chunks whose tally has been collected     */
    uint32_t   own;        /* in a fused step: only published, not updated */
    uint32_t   frozen;     /* neither; 2: until its gradient is given   */
    uint32_t   moments_missing; /* steps were taken before, and their moments were not set */
} ampi_slot;

/* Optimizers: suffix of AMP_KIND_, formula (>>core formulas), how many moments, how many without
   desc.momentum, default beta2. None has a second moment without a first. AMPI_FIRST: kinds that
   always have a first, AMPI_SECOND: that have a second; theirs are corrected for their bias. */
#define AMPI_OPTIMIZERS(X)      \
    X(ADAMW, adamw, 2, 2, 0.999) \
    X(SGD, sgd, 1, 0, 0.999)     \
    X(LION, lion, 1, 1, 0.99)

#define AMPI_HAS_FIRST(kind, step, moments, always, beta2)  | (always > 0) << AMP_KIND_##kind
#define AMPI_HAS_SECOND(kind, step, moments, always, beta2) | (moments > 1) << AMP_KIND_##kind
enum { AMPI_FIRST = 0 AMPI_OPTIMIZERS(AMPI_HAS_FIRST),
       AMPI_SECOND = 0 AMPI_OPTIMIZERS(AMPI_HAS_SECOND) };

/* The constants of a step. beta1_rest is 1 - beta1, rounded from double. */
typedef struct ampi_rates {
    float    eps, momentum, max_norm, lr;
    float    bias1, bias2;     /* 1 / (1 - beta^step)                                        */
    float    beta1, beta1_rest, beta2, beta2_rest;
    float    weight_decay;     /* of one tensor; lr is then, too                             */
    uint32_t nesterov;
} ampi_rates;

/* What changes from step to step, and numbers that kernels need, in backend memory. */
typedef struct ampi_control {
    amp_gate   gate;
    double     norm;
    float      clip_factor;
    uint32_t   found_inf, did_step, nesterov;
    uint64_t   skipped;
    double     beta1, beta2;
    ampi_rates rates;
    uint64_t   missed_updates, skipped_in_a_row;
    double     norm2;                    /* what a check finds: sum of squares     */
    uint32_t   maxima[2];                /* overflow, bits of the largest finite   */
    uint32_t   arrived;                  /* blocks of a check that are done        */
    uint32_t   seen[2];                  /* what they collect for maxima; else 0   */
    uint64_t   seen_updates;             /* of a shared scaler, plus one; 0: never */
    amp_scaler scaler;                   /* unless shared                          */
    amp_scaler next;                     /* after this step, if moves is set       */
    uint32_t   moves;                    /* next waits to be published             */
    uint64_t   seed;                     /* of stochastic rounding                 */
    unsigned long long f16_overflows;    /* B adds to it, by atomics: their type   */
    uint32_t   huge;                     /* was a gradient's square next to inf?   */
} ampi_control;

/* Are all steps skipped? stuck does not tell, if the scale never changes. With a hysteresis of 2,
   a scale needs 33 overflows to fall from 2^32 to 1: so 40. */
AMPI_FN uint32_t ampi_stuck(const ampi_control *c, const amp_scaler *s) {
    return s->stuck != 0u || c->skipped_in_a_row >= 40u;
}

/* Has the program read the loss scale? It must, unless the scale is known to it. A pointer to it
   shows every later one, too. */
enum ampi_scale_use { AMPI_SCALE_UNREAD, AMPI_SCALE_KNOWN, AMPI_SCALE_READ, AMPI_SCALE_POINTED };

struct amp_plan {
    ampi_control *control;  /* backend memory */
    ampi_slot    *table;    /* backend memory; only here, what a step counts is up to date */
    amp_scaler   *scaler;   /* backend memory: control->scaler, or the shared one */
    double       *sums;     /* backend memory: sum of squares of each chunk; 0 without gradient */
    uint32_t     *chunk_slots; /* backend memory: which slot a chunk belongs to */
    ampi_sparse  *sparse;      /* backend memory */
    ampi_slot    *host_slots;  /* the host's copy; addresses and options are up to date in both */
    ampi_sparse  *host_sparse;
    struct ampi_range *ranges; /* room for prepare's check: three of each slot */
    size_t        num_sparse;
    uint32_t      num_tiles, passes, longest; /* of all; of the sort; row                       */
    int           encoded, stochastic; /* is an array not fp32; rounded stochastically          */
    int           owns;              /* 0; or 1 + the first slot that is own                    */
    size_t        num_slots;
    size_t        num_weights, num_grads; /* slots that are not empty, and those with a gradient */
    size_t        unbound; /* 0; or 1 + the first slot whose gradient has not been given         */
    uint64_t      num_chunks;
    amp_kind      kind;
    int           zero_grad, shared;
    int           reduces;        /* reduce_fn is called between check and decide               */
    int           summed;         /* reduce_fn is being called, after a check                  */
    uint32_t      share_bits;     /* 2^share_bits blocks share a chunk: 2; few: 4; short ones: 0 */
    int           has_lr, new_lr; /* backend memory has one; this one is to be copied there    */
    int           scale_use;      /* ampi_scale_use                                             */
    float         lr;
    ampi_record  *record;         /* backend memory; NULL: no report                            */
    ampi_histogram *histograms;   /* two for each slot, if anything is sampled                  */
    amp_report_desc report_desc;
    struct ampi_host *host_report; /* >>impl report; NULL: no report                     */
};

typedef enum ampi_copy { AMPI_TO_BACKEND, AMPI_TO_HOST } ampi_copy;
typedef enum ampi_job { /* what update_fn does; in brackets, what it does on a skip, too         */
    AMPI_JOB_DECIDE,    /* decide, where ranks meet after check_fn [all of it]                   */
    AMPI_JOB_FUSED,     /* unscale, clip, optimizer, model copies [zero_grad, next scale]; own
                           slots as in PUBLISH */
    AMPI_JOB_UNSCALE,   /* write unscaled, clipped fp32 gradients for your optimizer            */
    AMPI_JOB_PUBLISH    /* model copies [zero_grad, next scale]                                  */
} ampi_job;

/* What differs between machines. Functions may only queue their work (on a stream), in order;
   copy_fn to the host waits for all of it. No two have the same type: if a table has them in
   another order, it is an error in C++, and a warning in C. */
struct ampi_functions {
    /* zeroed memory aligned to 64 bytes; both NULL: the object's allocator is used */
    amp_result (*alloc_fn)(const amp_backend *self, size_t num_bytes, void **memory);
    void       (*free_fn)(const amp_backend *self, void *memory);
    /* AMPI_TO_BACKEND: src has been read when it returns */
    amp_result (*copy_fn)(const amp_backend *self, void *dst, const void *src, size_t num_bytes,
                          ampi_copy direction);
    amp_result (*cast_fn)(const amp_backend *self, void *dst, amp_dtype dst_type,
                          const void *src, amp_dtype src_type, size_t n);
    /* from src, in fp32, or from model (bf16) if src is NULL: write model, and what master stores
       beside it unless its data is NULL */
    amp_result (*encode_fn)(const amp_backend *self, void *model, const ampi_stored *master,
                            const void *src, size_t n);
    /* a matrix with leading dimensions; NULL: row by row */
    amp_result (*cast_rows_fn)(const amp_backend *self, void *dst, amp_dtype dst_type,
                               size_t dst_ld, const void *src, amp_dtype src_type, size_t src_ld,
                               size_t rows, size_t cols);
    /* the number of the capture under way, or 0; NULL: there are no captures */
    uint64_t   (*capture_fn)(const amp_backend *self);
    /* new addresses (ampi_bind) for slots [first, first + count); does not wait */
    amp_result (*bind_fn)(const amp_backend *self, const amp_plan *plan, size_t first,
                          size_t count, float *const *weights, void *const *grads);
    /* ends with ampi_decide, unless plan->reduces: then AMPI_JOB_DECIDE does that, later */
    amp_result (*check_fn)(const amp_backend *self, const amp_plan *plan);
    amp_result (*update_fn)(const amp_backend *self, const amp_plan *plan, ampi_job job);
    amp_result (*gemm_fn)(const amp_backend *self, const amp_gemm_args *args);
};

/* Gives a tensor new addresses; NULL keeps the old one. */
AMPI_FN void ampi_bind(ampi_slot *slot, float *weight, void *grad) {
    if (weight && !ampi_is_encoded(&slot->master)) slot->master.data = weight;
    else if (weight) slot->weight = weight;
    if (!grad) return;
    slot->frozen &= 1u;
    if (grad == AMP_NO_GRAD) grad = NULL;
    if (slot->sparse) slot->values = grad;
    else slot->grad = grad;
    if (slot->in_place) slot->unscaled = (float *)grad;
}

/* The row of entry i, or the last one if it is outside the tensor (the step will be skipped). */
AMPI_FN uint32_t ampi_row(const ampi_sparse *s, uint32_t i) {
    return s->rows[i] < s->table ? s->rows[i] : s->table - 1;
}

/* Does a row begin at sorted entry i? */
AMPI_FN int ampi_begins(const uint32_t *keys, uint32_t i) {
    return i == 0 || keys[i] != keys[i - 1];
}

AMPI_FN uint32_t ampi_given(const ampi_slot *slot, const ampi_sparse *s) {
    const uint32_t n = slot->values ? *s->num_rows : 0u;
    return n < s->most ? n : s->most;
}

/* Statistics before the sums are checked: no counts yet, and the first bad row. */
AMPI_FN void ampi_begin_sums(ampi_slot *slot, const ampi_sparse *s) {
    slot->n                     = (uint64_t)s->touched * s->length;
    slot->stats.nonfinite       = slot->stats.nan = slot->stats.zeros = 0;
    slot->stats.first_nonfinite = slot->n;
    slot->stats.max_finite      = 0.0f;
    slot->stats.bad_row         = s->early ? s->most + 2u - s->early : 0u;
}

/* A found_inf that the user has written into the optimizer's own scaler counts as an overflow of
   this rank. (In a shared scaler it may be another optimizer's.) */
AMPI_FN uint32_t ampi_found_by_user(const amp_plan *plan) {
    return !plan->shared && plan->scaler->found_inf != 0u;
}

/* beta^n by repeated squaring: the same bits everywhere, which pow does not promise. */
AMPI_FN double ampi_power(double beta, uint64_t n) {
    double r = 1.0;
    for (; n != 0u; n >>= 1) {
        if (n & 1u) r = ampi_mul64(r, beta);
        beta = ampi_mul64(beta, beta);
    }
    return r;
}

/* 1 / (1 - beta^step), the factor that corrects a moment's bias (Kingma and Ba 2015, 3). */
AMPI_FN float ampi_bias(double beta, uint64_t step) {
    return ampi_single(ampi_div64(1.0, ampi_sub64(1.0, ampi_power(beta, step))));
}
AMPI_FN void ampi_numbers(ampi_rates *r, double beta1, double beta2, uint64_t step,
                          amp_kind kind) {
    if (AMPI_SECOND >> kind & 1) {
        const float bias1 = ampi_bias(beta1, step), bias2 = ampi_bias(beta2, step);
        r->bias1 = bias1;
        r->bias2 = bias2;
    }
    r->beta1      = ampi_single(beta1);
    r->beta2      = ampi_single(beta2);
    r->beta1_rest = ampi_single(ampi_sub64(1.0, beta1));
    r->beta2_rest = ampi_single(ampi_sub64(1.0, beta2));
}

AMPI_FN void ampi_record_step(const amp_plan *plan); /* >>core report */

/* Decide, after the check and the ranks' agreement. What the check found (norm2, maxima)
   determines the gate, the numbers of this step, and the next scale, which waits to be published:
     norm = sqrt(norm2) / scale,  clip_factor = min(1, max_norm / (norm + 1e-6))
   as torch clips. A factor of 0 counts as an overflow, because the step would have zero
   gradients. One thread of a GPU does this while all others wait: so numbers are read before the
   first is written, and the scaler as a whole, since loads and stores in turn would wait. */
AMPI_FN void ampi_decide(const amp_plan *plan) {
    ampi_control  *c         = plan->control;
    amp_scaler    *s         = plan->scaler;
    amp_scaler     next      = *s;
    const double   beta1     = c->beta1, beta2 = c->beta2;
    const double   max_norm  = ampi_double(c->rates.max_norm);
    const uint64_t step      = c->gate.step, skipped = c->skipped, in_a_row = c->skipped_in_a_row;
    const uint32_t asked     = c->maxima[0], largest = c->maxima[1], huge = c->huge;
    const uint32_t disabled  = next.disabled;
    const float    inv       = ampi_inv_scale(next.scale);
    const double   norm      = ampi_mul64(ampi_sqrt64(c->norm2), ampi_double(inv));
    float          clip      = 1.0f, inv_scale;
    uint32_t       bad       = asked != 0u, skips, unscaled;
    if (max_norm > 0.0) {
        const double factor = ampi_div64(max_norm, ampi_add64(norm, 1e-6));
        if (factor < 1.0) clip = ampi_single(factor);
    }
    inv_scale = ampi_mul(inv, clip);
    bad |= (uint32_t)ampi_product_overflows(&next, largest, inv);
    bad |= (uint32_t)ampi_is_zero(inv_scale);
    skips = disabled ? (asked & AMPI_BAD_ROW) != 0u : bad;
    if (plan->new_lr) c->rates.lr = plan->lr;
    c->norm           = norm;
    c->clip_factor    = clip;
    c->gate.inv_scale = inv_scale;
    c->found_inf      = bad;
    c->gate.skip      = skips;
    if (plan->record) ampi_record_step(plan);
    c->did_step         = !skips;
    c->skipped          = skipped + skips;
    c->skipped_in_a_row = skips ? in_a_row + 1 : 0;
    c->gate.step        = step + !skips;
    c->moves            = !plan->shared;
    unscaled            = ampi_bits_of_f32(ampi_mul(ampi_f32_from_bits(largest), inv_scale));
    c->huge             = huge | (!skips && unscaled >= 0x5f000000u); /* 2^63 */
    if (!skips) ampi_numbers(&c->rates, beta1, beta2, step + 1, plan->kind), c->f16_overflows = 0u;
    if (!plan->shared) {
        s->found_inf   = 0u; /* what is written from here on is for the next step */
        next.found_inf = skips;
        ampi_scaler_transition(&next);
        c->next = next;
    } else if (!disabled) { /* its owner updates it; count steps where that was forgotten */
        const uint64_t updates = next.good + next.skipped + 1;
        c->missed_updates += c->seen_updates == updates;
        c->seen_updates = updates;
        ampi_scaler_record(s, bad);
    }
}

/* Publish the next scale, at the end of the step whose gradients had the present one. */
AMPI_FN void ampi_publish(const amp_plan *plan) {
    ampi_control *c = plan->control;
    amp_scaler   *s = plan->scaler;
    if (!c->moves) return;
    c->next.found_inf = s->found_inf;
    *s                = c->next;
    c->moves          = 0u;
}

/* A tensor's constants: lr = lr lr_scale. */
AMPI_FN ampi_rates ampi_rates_of(const ampi_control *c, const ampi_slot *slot) {
    ampi_rates r   = c->rates;
    r.lr           = ampi_mul(r.lr, slot->lr_scale);
    r.weight_decay = slot->weight_decay;
    r.nesterov     = c->nesterov;
    return r;
}

/* ------------------------------------------------------------------- >>core report */

/* How many steps have been decided, taken or skipped. */
AMPI_FN uint64_t ampi_iterations(const ampi_control *c) { return c->gate.step + c->skipped; }

/* Before the decision: is this step sampled? After it: was it? */
AMPI_FN int ampi_samples(const amp_plan *plan) {
    return plan->histograms &&
           ampi_iterations(plan->control) % (uint64_t)plan->report_desc.every == 0;
}
AMPI_FN int ampi_sampled(const amp_plan *plan) {
    return plan->histograms && plan->record->sampled == ampi_iterations(plan->control);
}

/* Are weights and updates of a tensor counted in a sampled step? */
AMPI_FN int ampi_counts_updates(const ampi_slot *slot) {
    return slot->grad && !slot->sparse && !ampi_is_encoded(&slot->master) &&
           !ampi_is_encoded(&slot->moment[0]);
}

/* Slot i's histogram. The check counts into number ~which; the decision makes that the last
   sample (which), and the other one becomes zero. */
AMPI_FN ampi_histogram *ampi_histogram_of(const amp_plan *plan, uint32_t which, size_t i) {
    return plan->histograms + (size_t)(which & 1u) * plan->num_slots + i;
}

/* A cast rounds to nearest even. Half the least subnormal becomes 0; a magnitude that is less than
   the least normal number by at most half a step becomes that number. All are bits of fp32. */
#define AMPI_F16_ZERO_TO      0x33000000u /* 2^-25           */
#define AMPI_F16_NORMAL_FROM  0x387fe000u /* 2^-14 - 2^-25   */
#define AMPI_BF16_ZERO_TO     0x00008000u /* 2^-134          */
#define AMPI_BF16_NORMAL_FROM 0x007f8000u /* 2^-126 - 2^-134 */

/* bin = floor(e / 4), e: the exponent of fp32 */
AMPI_FN uint32_t ampi_bin(uint32_t magnitude) { return magnitude >> 25; }

/* Counts a gradient that is not finite, or that has rows outside its tensor. */
AMPI_FN void ampi_count_overflow(const amp_plan *plan, size_t i, uint64_t nan) {
    ampi_overflows *m      = &plan->table[i].overflows;
    const uint64_t  number = ampi_iterations(plan->control) + 1;
    if (!m->overflows) m->first = number;
    m->overflows += m->last != number; /* a bad row and a sum that is not finite count once */
    m->last = number;
    m->nans += nan != 0;
}

AMPI_FN void ampi_record_step(const amp_plan *plan) {
    ampi_control  *c      = plan->control;
    ampi_record   *r      = plan->record;
    const uint64_t number = ampi_iterations(c) + 1;
    amp_iteration *t      = &r->history[number % AMP_HISTORY];
    uint32_t       why    = AMP_SKIP_NONE;
    if (c->gate.skip) why = r->bad || !c->maxima[0] ? AMP_SKIP_OVERFLOW : AMP_SKIP_ASKED;
    if (why != AMP_SKIP_NONE) r->skips[why - 1u]++;
    t->iteration   = number;
    t->norm        = c->norm;
    t->loss_scale  = plan->scaler->scale;
    t->clip_factor = c->clip_factor;
    t->skip        = why;
    t->tensor      = r->bad ? (int32_t)(plan->num_slots - r->bad) : -1;
    r->bad         = 0;
    if (ampi_samples(plan)) r->which ^= 1u, r->sampled = number;
}

/* ------------------------------------------------------------------ >>core storage
   Formats, and random bits (codecs: >>core formulas). With AdamW and models and gradients of 16
   bits, a step reads and writes 30 bytes an element in fp32, 28 in split, 24 in sr, 8 less with
   moments of bf16, 12 less with 8 bits.

   SR has no master: small changes survive on average, at the price of noise of half the last bit
   of a weight. Weights stop at the largest number of bf16.
   8BIT stores a power of two for 32 elements, as OCP's MX formats (Rouhani et al. 2023), and for
   each a float with 4 fraction bits. These are rounded stochastically: neighbours are 3 to 6 %
   apart, and a step changes a moment by far less; rounded to nearest, it would never change again
   after one large gradient. (With beta2 = 0.999, 8 or 10 random bits would often lose the step.)
   A NaN, or a value above 1.9 * 2^126, makes moments of all 32 a NaN. */

/* key = mix(mix(mix(mix(seed) ^ tensor) ^ step) ^ floor(element / 2^24))
   mix: the finalizer of splitmix64 (Steele et al. 2014); step: amp_gate.step. Random bits depend
   on the key and the element alone. In larger blocks than of 2^24 elements, bits of elements a
   power of two apart would depend on each other. */
enum { AMPI_PER_KEY = 1 << 24 };
AMPI_STATIC_ASSERT(ampi_a_chunk_has_one_key, AMPI_PER_KEY % (int)AMPI_CHUNK == 0);

AMPI_FN uint64_t ampi_splitmix64(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

AMPI_FN uint64_t ampi_random_key(uint64_t seed, uint64_t tensor, uint64_t step, uint64_t element) {
    const uint64_t of = ampi_splitmix64(ampi_splitmix64(ampi_splitmix64(seed) ^ tensor) ^ step);
    return ampi_splitmix64(of ^ element / AMPI_PER_KEY);
}

/* ----------------------------------------------------------------- >>core formulas
   Compiled here in plain C, and in each tier's second inclusion (>>impl processors). The
   functions take vectors, in plain C single numbers. They use operators, which words and vectors
   have, and what each tier defines anew (>>impl vectors): the functions here, sqrt, get16 and
   get8 (words from memory), put16 and put8 (their lower bits). above is all ones where a > b;
   choose is x there, else y. Their operands, and those of least and most, are below 2^31. */

AMPI_FN float    ampi_splat(float x) { return x; }
AMPI_FN uint32_t ampi_u32(uint32_t x) { return x; }
AMPI_FN uint32_t ampi_bits(float x) { return ampi_bits_of_f32(x); }
AMPI_FN uint32_t ampi_size(uint32_t u) { return u & 0x7fffffffu; }
AMPI_FN float    ampi_from_bits(uint32_t u) { return ampi_f32_from_bits(u); }
AMPI_FN uint32_t ampi_above(uint32_t a, uint32_t b) { return a > b ? 0xffffffffu : 0u; }
AMPI_FN uint32_t ampi_choose(uint32_t a, uint32_t b, uint32_t x, uint32_t y) {
    return a > b ? x : y;
}
AMPI_FN uint32_t ampi_least(uint32_t a, uint32_t b) { return a < b ? a : b; }
AMPI_FN uint32_t ampi_most(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* Of 8-bit moments. HEADROOM, added to a group's largest magnitude, raises the exponent from 1.93
   times a power of two on. Its lower 16 bits are 0, so those of the magnitude may be missing. */
#define AMPI_HEADROOM 0x00090000u
#define AMPI_LEAST_M  0x3c000000u /* 2^-7  */
#define AMPI_LEAST_V  0x38000000u /* 2^-15 */

#define AMPI_PASTE(a, b) a##b
#define AMPI_JOIN(a, b)  AMPI_PASTE(a, b)
#define AMPI_(name)      AMPI_JOIN(ampi_##name, AMPI_TIER) /* the tier's function of that name */
#define AMPI_IN          AMPI_HERE AMPI_ALWAYS             /* of which its loops consist     */
#define AMPI_TIER        /* a tier defines this, and what follows, anew */
#define AMPI_HERE AMPI_FN
#define AMPI_V    float
#define AMPI_U    uint32_t
#define AMPI_W    1
#define AMPI_PASS AMPI_PASS_PLAIN

#endif /* AMP_CORE_INCLUDED */

#if defined(AMPI_PASS) && AMPI_PASS & (AMPI_PASS_PLAIN | AMPI_PASS_LOOPS)

/* The core that was included before is of this version. */
AMPI_STATIC_ASSERT(AMPI_(another_version_of_amp_h_see_AMP_FILE_and_AMP_NO_VECTORS),
                   AMPI_VERSION == AMP_VERSION_MAJOR * 10000 + AMP_VERSION_MINOR * 100 +
                                       AMP_VERSION_PATCH);

/* The optimizers take an unscaled gradient g and change the weight p and the moments m and v,
   which are NULL where there are none. t counts the steps taken, this one included. */

AMPI_IN AMPI_V AMPI_(times)(float c, AMPI_V x) { return AMPI_(mul)(AMPI_(splat)(c), x); }

/* bias1 m / (sqrt(bias2 v) + eps) + weight_decay p
   For a division of 0, or the root of 0, a GPU calls a function. Where m is 0 and v has no sign, 1
   is added to both: the divisor is 1 or more, or NaN, and the quotient times m is that of 0.
   Elsewhere -0 is added, which changes nothing. */
AMPI_IN AMPI_V AMPI_(direction)(const ampi_rates *r, AMPI_V m, AMPI_V v, AMPI_V p) {
#if defined(__CUDA_ARCH__) && AMPI_W == 1
    float u;
    __asm__("{ .reg .pred zero; .reg .b32 a; .reg .f32 more, x, y, z;"
            " xor.b32 a, %1, %2; and.b32 a, a, 0x7fffffff; xor.b32 a, a, %2;"
            " setp.eq.u32 zero, a, 0; selp.f32 more, 0f3F800000, 0f80000000, zero;"
            " fma.rn.f32 y, %5, %2, more; sqrt.rn.f32 y, y; add.rn.f32 y, y, %6;"
            " fma.rn.f32 x, %4, %1, more; div.rn.f32 x, x, y;"
            " selp.f32 z, %1, 0f3F800000, zero; mul.rn.f32 y, %7, %3; fma.rn.f32 %0, x, z, y; }"
            : "=f"(u)
            : "f"(m), "f"(v), "f"(p), "f"(r->bias1), "f"(r->bias2), "f"(r->eps),
              "f"(r->weight_decay));
    return u;
#else
    const AMPI_V root    = AMPI_(sqrt)(AMPI_(times)(r->bias2, v));
    const AMPI_V divisor = AMPI_(add)(root, AMPI_(splat)(r->eps));
    const AMPI_V u       = AMPI_(div)(AMPI_(times)(r->bias1, m), divisor);
    return AMPI_(add)(u, AMPI_(times)(r->weight_decay, p));
#endif
}

/* m = beta1 m + (1 - beta1) g,   bias1 = 1 / (1 - beta1^t)
   v = beta2 v + (1 - beta2) g^2,  bias2 = 1 / (1 - beta2^t)
   p = p - lr (bias1 m / (sqrt(bias2 v) + eps) + weight_decay p)
   (AdamW; Loshchilov and Hutter 2019) */
AMPI_IN void AMPI_(adamw)(const ampi_rates *r, AMPI_V g, AMPI_V *p, AMPI_V *m, AMPI_V *v) {
    AMPI_V u;
    *m   = AMPI_(add)(AMPI_(times)(r->beta1, *m), AMPI_(times)(r->beta1_rest, g));
    u    = AMPI_(mul)(AMPI_(times)(r->beta2_rest, g), g);
    *v   = AMPI_(add)(AMPI_(times)(r->beta2, *v), u);
    u    = AMPI_(direction)(r, *m, *v, *p);
    *p   = AMPI_(sub)(*p, AMPI_(times)(r->lr, u));
}

/* g = g + weight_decay p
   m = momentum m + g
   p = p - lr m, or with Nesterov's momentum p - lr (g + momentum m); without momentum p - lr g
   (as torch.optim.SGD; its first m is g, too) */
AMPI_IN void AMPI_(sgd)(const ampi_rates *r, AMPI_V g, AMPI_V *p, AMPI_V *m, AMPI_V *v) {
    (void)v;
    g = AMPI_(add)(g, AMPI_(times)(r->weight_decay, *p));
    if (m) {
        *m = AMPI_(add)(AMPI_(times)(r->momentum, *m), g);
        g  = r->nesterov ? AMPI_(add)(g, AMPI_(times)(r->momentum, *m)) : *m;
    }
    *p = AMPI_(sub)(*p, AMPI_(times)(r->lr, g));
}

/* p = (1 - lr weight_decay) p - lr sign(beta1 m + (1 - beta1) g)
   m = beta2 m + (1 - beta2) g
   sign(0) is 0, and a NaN stays one. (Lion; Chen et al. 2023) */
AMPI_IN void AMPI_(lion)(const ampi_rates *r, AMPI_V g, AMPI_V *p, AMPI_V *m, AMPI_V *v) {
    const AMPI_V decay = AMPI_(times)(r->lr, AMPI_(splat)(r->weight_decay));
    const AMPI_V u = AMPI_(add)(AMPI_(times)(r->beta1, *m), AMPI_(times)(r->beta1_rest, g));
    const AMPI_U a = AMPI_(bits)(u) & 0x7fffffffu, sign = AMPI_(bits)(u) & 0x80000000u;
    const AMPI_U one = AMPI_(above)(a, AMPI_(u32)(0)) & (sign | 0x3f800000u);
    const AMPI_U nan = AMPI_(above)(a, AMPI_(u32)(AMPI_F32_INF)) & 0x7fc00000u;
    (void)v;
    *p = AMPI_(mul)(*p, AMPI_(sub)(AMPI_(splat)(1.0f), decay));
    *p = AMPI_(sub)(*p, AMPI_(times)(r->lr, AMPI_(from_bits)(one | nan)));
    *m = AMPI_(add)(AMPI_(times)(r->beta2, *m), AMPI_(times)(r->beta2_rest, g));
}

/* kind is constant where this is inlined. has_m chooses a call here, because a choice of pointers
   would need a stack on a GPU. */
AMPI_IN void AMPI_(optimize)(const amp_kind kind, const int has_m, const ampi_rates *r, AMPI_V g,
                             AMPI_V *p, AMPI_V *m, AMPI_V *v) {
#define AMPI_CALL(id, step, moments, always, beta2)                              \
    if (kind == AMP_KIND_##id && has_m) AMPI_(step)(r, g, p, m, v);              \
    if (kind == AMP_KIND_##id && !has_m && !always) AMPI_(step)(r, g, p, NULL, v);
    AMPI_OPTIMIZERS(AMPI_CALL)
#undef AMPI_CALL
}

/* max(x, 0): negative numbers, -0 and -inf become 0; NaN stays. */
AMPI_IN AMPI_V AMPI_(relu)(AMPI_V x) {
    const AMPI_U u   = AMPI_(bits)(x);
    const AMPI_U nan = AMPI_(above)(AMPI_(size)(u), AMPI_(u32)(AMPI_F32_INF));
    return AMPI_(from_bits)(u & (nan | ((u >> 31) - 1u)));
}

/* h = floor((u + r) / 2^16), r uniform in [0, 2^16):   E(h) = u / 2^16
   Bits of fp32 to bf16. Numbers that could reach inf are cut off, and so are inf and NaN, which
   arithmetic has made quiet. */
AMPI_IN AMPI_U AMPI_(stochastic)(AMPI_U u, AMPI_U random) {
    const AMPI_U most = AMPI_(u32)(AMPI_F32_INF - 0x10000u);
    return AMPI_(choose)(most, AMPI_(size)(u), u + random, u) >> 16;
}

/* 2^16 model + low = u + 2^15
   A master's bits u, from those of its model, which is rounded to nearest, ties away from zero,
   and those beside it (SR has none); and back. A NaN whose sum would be 0 is made smaller. */
AMPI_IN AMPI_V AMPI_(master)(AMPI_U model, AMPI_U low, const int format) {
    if (format == AMP_FORMAT_SR) return AMPI_(from_bits)(model << 16);
    return AMPI_(from_bits)((model << 16 | low) - 0x8000u);
}
AMPI_IN AMPI_U AMPI_(model_of)(AMPI_V p, AMPI_U random, AMPI_U *low, const int format) {
    const AMPI_U u    = AMPI_(bits)(p);
    const AMPI_U size = AMPI_(least)(AMPI_(size)(u), AMPI_(u32)(0x7fff7fffu));
    *low = (size | (u & 0x80000000u)) + 0x8000u;
    return format == AMP_FORMAT_SR ? AMPI_(stochastic)(u, random) : *low >> 16;
}

/* x = lowbias32(pair 0x9e3779b9 + a; b),   key = 2^32 b + a
   The lower 16 bits are of element 2 pair, the upper of 2 pair + 1. Those of one key are a
   permutation of all words: a Weyl sequence, mixed (Wellons 2018). If several arrays of an element
   are rounded stochastically (master, m, v, in this order), each next one takes next_random(x). */
AMPI_IN AMPI_U AMPI_(next_random)(AMPI_U x) {
    x = x * 0x846ca68bu;
    return x ^ x >> 16;
}
AMPI_IN AMPI_U AMPI_(random)(AMPI_U pair, uint64_t key) {
    AMPI_U x = pair * 0x9e3779b9u + AMPI_(u32)((uint32_t)key);
    x        = (x ^ x >> 16) * 0x7feb352du + AMPI_(u32)((uint32_t)(key >> 32));
    return AMPI_(next_random)(x ^ x >> 15);
}

/* 1.93 / 2 <= max |x| / 2^(e - 127) < 1.93
   A group's exponent. Codes end at 1.93 with room to be rounded up. 255 if there is a NaN. */
AMPI_IN AMPI_U AMPI_(exponent_of)(AMPI_U most) {
    const AMPI_U e   = AMPI_(least)((most + AMPI_HEADROOM) >> 23, AMPI_(u32)(253));
    const AMPI_U nan = AMPI_(above)(AMPI_(size)(most), AMPI_(u32)(AMPI_F32_INF));
    return AMPI_(most)(e, AMPI_(u32)(1)) | (nan & 255);
}

/* down = 2^(127 - e), up = 2^(e - 127): from a group's values to codes, and back; or NaN. */
AMPI_IN AMPI_V AMPI_(down_of)(AMPI_U exponent) { /* which is not 0 here */
    return AMPI_(from_bits)((254 - AMPI_(least)(exponent, AMPI_(u32)(253))) << 23);
}
AMPI_IN AMPI_V AMPI_(up_of)(AMPI_U exponent) {
    const AMPI_U e   = AMPI_(most)(AMPI_(least)(exponent, AMPI_(u32)(253)), AMPI_(u32)(1));
    const AMPI_U nan = AMPI_(above)(exponent, AMPI_(u32)(254));
    return AMPI_(from_bits)((e << 23 & ~nan) | (nan & 0x7fc00000u));
}

/* code = floor((bits(y + least) + 2^3 random) / 2^19),   y = down |x|
   x = up (float(2^19 code + bits(least)) - least)
   A float of 4 fraction bits, evenly spaced below least, whose own code is 0. Moments (least 2^-7)
   have 7 bits, and a sign in the eighth; second ones (2^-15) have 8, and at least 1: m over the
   root of a v that was rounded to 0 would blow up the update. Only the lower 8 bits count. */
AMPI_IN AMPI_U AMPI_(encode)(AMPI_V x, float down, AMPI_U random, const int second) {
    const AMPI_U least = AMPI_(u32)(second ? AMPI_LEAST_V : AMPI_LEAST_M);
    const AMPI_U y     = AMPI_(bits)(AMPI_(times)(down, x));
    const AMPI_U most  = AMPI_(least)(second ? y : AMPI_(size)(y), AMPI_(u32)(0x3ff70000u));
    const AMPI_V sum   = AMPI_(add)(AMPI_(from_bits)(most), AMPI_(from_bits)(least));
    const AMPI_U code  = AMPI_(bits)(sum) + (random << 3);
    if (second) return AMPI_(most)(code, least + 0x80000u) >> 19;
    return code >> 19 ^ (~(AMPI_(bits)(x) >> 24) & 0x80u);
}
AMPI_IN AMPI_V AMPI_(decode)(AMPI_U code, float up, const int second) {
    const AMPI_U least = AMPI_(u32)(second ? AMPI_LEAST_V : AMPI_LEAST_M);
    const AMPI_U sum   = ((second ? code : code & 0x7fu) << 19) + least;
    const AMPI_V y     = AMPI_(sub)(AMPI_(from_bits)(sum), AMPI_(from_bits)(least));
    if (second) return AMPI_(times)(up, y);
    return AMPI_(times)(up, AMPI_(from_bits)(AMPI_(bits)(y) | (code & 0x80u) << 24));
}

#if AMPI_PASS & AMPI_PASS_PLAIN

/* Element i of size bytes: 4, 2, 1, or 0. */
AMPI_FN void ampi_store_low(void *low, size_t i, size_t size, uint32_t u) {
    if (size == 4) ampi_store_u32(low, i, u);
    else if (size == 2) ampi_store_u16(low, i, (uint16_t)u);
    else if (size == 1) ((uint8_t *)low)[i] = (uint8_t)u;
}
AMPI_FN uint32_t ampi_load_low(const void *low, size_t i, size_t size) {
    if (size == 4) return ampi_load_u32(low, i);
    return size == 2 ? ampi_load_u16(low, i) : size == 1 ? ((const uint8_t *)low)[i] : 0u;
}

/* For a master that did not come from arithmetic, whose NaN might signal. It rounds to nearest,
   also without low bits. */
AMPI_FN uint32_t ampi_model_of_bits(uint32_t u, uint32_t *low, int master) {
    if (ampi_is_nan(u)) u |= 0x400000u;
    return ampi_model_of(ampi_f32_from_bits(u), 0x8000u, low, master);
}

/* Writes element i of src, or of model if that is NULL, to model and to what master stores. */
AMPI_FN void ampi_encode_weight(void *model, const ampi_stored *master, const void *src, size_t i) {
    const uint32_t u = src ? ampi_load_u32(src, i) : ampi_load(model, AMP_BF16, i);
    uint32_t       low;
    ampi_store_u16(model, i, (uint16_t)ampi_model_of_bits(u, &low, (int)master->format));
    if (master->data) ampi_store_low(master->data, i, master->size, low);
}

#undef AMPI_PASS

AMPI_STRICT_END
AMPI_OPTIMIZE_END
AMPI_MACROS(pop)
/* ctags would read the lines above and extern "C" as one statement, but for this one. */
AMPI_STATIC_ASSERT(ampi_16_bits_are_two_bytes, sizeof(amp_f16) == 2 && sizeof(amp_bf16) == 2);

#endif

#endif /* >>core formulas */

/* ========================================================================= >>impl */

#if defined(AMP_IMPLEMENTATION) && !defined(AMP_IMPLEMENTATION_INCLUDED)
#define AMP_IMPLEMENTATION_INCLUDED

#include <stdarg.h> /* va_list: text */
#ifndef AMP_NO_STDLIB
#include <errno.h>
#include <stdio.h>  /* fopen, fread, rename: state files */
#include <stdlib.h> /* malloc, free; getenv              */
#if defined(__unix__) || defined(__APPLE__)
#define AMPI_POSIX
#include <fcntl.h>    /* open */
#include <sys/file.h> /* flock */
#include <sys/stat.h> /* stat */
#include <unistd.h>   /* fsync, close */
#elif defined(_WIN32)
#include <io.h> /* _commit, _fileno */
#endif
#endif
/* The SIMD tiers that this compiler can build: AVX2 and AVX-512; AVX512_BF16, if the assembler
   knows it; AMX-BF16, whose registers Linux grants on request; NEON. AMPI_TILES_MODEL, a file of
   the tests, has a model in C of all but AVX2. */
#if (defined(__GNUC__) || defined(__clang__)) && !defined(__TINYC__) && !defined(AMP_NO_VECTORS)
#ifdef __x86_64__
#define AMPI_X86
#define AMPI_512
#elif defined(__aarch64__) && defined(__ARM_NEON) && !defined(__AARCH64EB__)
#define AMPI_NEON
#endif
#endif
#ifdef AMPI_TILES_MODEL
#define AMPI_NEON
#define AMPI_512
#define AMPI_PAIRS
#define AMPI_AMX
#elif defined(AMPI_NEON)
#include <arm_neon.h>
#elif defined(AMPI_X86) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define AMPI_PAIRS
#if defined(__linux__) && defined(__LP64__)
#define AMPI_AMX
#endif
#endif
#if defined(AMPI_NEON) && defined(__linux__)
#include <sys/auxv.h> /* getauxval */
#endif
/* The name by which the file includes itself for each tier. __FILE__ would be relative to where
   the compiler runs. */
#ifndef AMP_FILE
#define AMP_FILE "amp.h"
#endif
#if (defined(AMPI_X86) || defined(AMPI_NEON)) && defined(__has_include)
#if !__has_include(AMP_FILE)
#error "amp.h reads itself: define AMP_FILE as the name it has here, or AMP_NO_VECTORS"
#endif
#endif
#if defined(_MSC_VER) && defined(_M_X64)
#include <xmmintrin.h> /* _mm_getcsr, _mm_setcsr */
#endif

#if defined(_OPENMP) && _OPENMP >= 201107 /* 3.1: reductions by min and max */
#define AMPI_OPENMP(...) _Pragma(#__VA_ARGS__)
#else
#define AMPI_OPENMP(...)
#endif

#if defined(__clang__)
#define AMPI_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__) && !defined(__TINYC__) && !defined(__CUDACC__)
#define AMPI_UNROLL _Pragma("GCC unroll 16")
#else
#define AMPI_UNROLL
#endif

#ifdef _MSC_VER
#pragma warning(push)
#pragma warning(disable : 4996) /* fopen and getenv are deprecated there */
#endif

#ifdef __cplusplus
extern "C" {
#endif

AMPI_MACROS(push)
AMPI_OPTIMIZE_BEGIN
AMPI_STRICT_BEGIN

/* ---------------------------------------------------------------- >>impl results */

/* ORDER amp_result */
static const char *const ampi_texts[] = {
    "ok",
    "a NULL pointer, or an index or length out of range",
    "a dtype, preset or kind that amp.h does not know",
    "a number is NaN, infinite, out of range or contradicts another",
    "not offered here, or not without a cuBLAS handle, while a stream is captured, with compute",
    "arrays overlap that must not",
    "the allocator returned NULL",
    "a size in bytes does not fit size_t, or one of a product on CUDA is 2^31 or more",
    "call the init function of this object first",
    "the optimizer is not prepared: call amp_optimizer_prepare, once, after the last "
    "amp_optimizer_add",
    "the optimizer is prepared: add all tensors before amp_optimizer_prepare",
    "a step is open: call amp_optimizer_end_step after every begin_step, also where that returns "
    "false, and after every check",
    "no step is open: call amp_optimizer_begin_step, or amp_optimizer_check",
    "something must come first",
    "a weight in a session was written to: call amp_session_changed whenever one is",
    "there is no such file",
    "the state could not be read",
    "the state could not be written: errno, or your callback, says why",
    "the file ends too early",
    "not a state saved by amp.h",
    "the state was saved by a newer amp.h",
    "the state is damaged: its checksum does not match",
    "the state is of other tensors or another kind of optimizer",
    "fp16 and bf16 meet, or types of A, B and C that cuBLAS does not multiply",
    "the op is not safe in 16 bits: override it, or use its logits",
    "a word of the policy cannot be understood",
    "give the backend a workspace, or a larger one, for this product on CUDA",
    "a CUDA call failed: amp_cuda_code() is its cudaError_t",
    "a cuBLAS call failed: amp_cuda_code() is its cublasStatus_t"};
AMPI_STATIC_ASSERT(ampi_texts_are_all,
                   sizeof ampi_texts / sizeof ampi_texts[0] == (size_t)AMP_ERROR_CUBLAS + 1);

AMP_DEF const char *amp_result_string(amp_result result) {
    return (unsigned)result <= (unsigned)AMP_ERROR_CUBLAS ? ampi_texts[result] : "unknown result";
}

#define AMPI_DOTS(a, b, c) #a "." #b "." #c
#define AMPI_TEXT(a, b, c) AMPI_DOTS(a, b, c)

AMP_DEF const char *amp_version(void) {
    return AMPI_TEXT(AMP_VERSION_MAJOR, AMP_VERSION_MINOR, AMP_VERSION_PATCH);
}

/* -------------------------------------------------- >>impl floating-point environment */

/* amp.h computes between begin and end: round to nearest, no flushing of subnormals (an -Ofast
   link turns it on at start-up), traps masked (some hosts unmask them). The code in between calls
   functions that are not inlined, mostly one, so that compilers move nothing across. */
#define AMPI_IEEE(call) \
    do { const uint32_t fp = ampi_fp_begin(); call; ampi_fp_end(fp); } while (0)
#if (defined(__GNUC__) || defined(__clang__)) && defined(__SSE2_MATH__)
enum { AMPI_FP_IEEE = 0x1f80, AMPI_FP_FLUSH = 0x8040 };
static uint32_t ampi_fp_get(void) {
    uint32_t now;
    __asm__ __volatile__("stmxcsr %0" : "=m"(now) : : "memory");
    return now;
}
static void ampi_fp_end(uint32_t saved) {
    __asm__ __volatile__("ldmxcsr %0" : : "m"(saved) : "memory");
}
#elif (defined(__GNUC__) || defined(__clang__)) &&                                                \
    (defined(__aarch64__) || (defined(__ARM_FP) && defined(__ARM_ARCH) && __ARM_ARCH >= 7))
#ifdef __aarch64__
#define AMPI_FP_READ  "mrs %0, fpcr"
#define AMPI_FP_WRITE "msr fpcr, %0"
#else
#define AMPI_FP_READ  "vmrs %0, fpscr"
#define AMPI_FP_WRITE "vmsr fpscr, %0"
#endif
enum { AMPI_FP_IEEE = 0, AMPI_FP_FLUSH = 1 << 24 };
static uint32_t ampi_fp_get(void) {
    size_t now; /* as wide as a register */
    __asm__ __volatile__(AMPI_FP_READ : "=r"(now) : : "memory");
    return (uint32_t)now;
}
static void ampi_fp_end(uint32_t saved) {
    __asm__ __volatile__(AMPI_FP_WRITE : : "r"((size_t)saved) : "memory");
}
#elif defined(_MSC_VER) && defined(_M_X64)
enum { AMPI_FP_IEEE = 0x1f80, AMPI_FP_FLUSH = 0x8040 };
static uint32_t ampi_fp_get(void) { return _mm_getcsr(); }
static void     ampi_fp_end(uint32_t saved) { _mm_setcsr(saved); }
#else
enum { AMPI_FP_IEEE = 0, AMPI_FP_FLUSH = 0 };
static uint32_t ampi_fp_get(void) { return 0u; }
static void     ampi_fp_end(uint32_t saved) { (void)saved; }
#endif
static uint32_t ampi_fp_begin(void) {
    const uint32_t saved = ampi_fp_get();
    ampi_fp_end(AMPI_FP_IEEE);
    return saved;
}
/* Flushes subnormals while FMA computes the sums of VDPBF16PS. */
static void ampi_fp_flush(int on) {
    ampi_fp_end((uint32_t)(AMPI_FP_IEEE | (on ? AMPI_FP_FLUSH : 0)));
}

AMPI_COLD_BEGIN

/* ------------------------------------------------------------------- >>impl words
   Text without printf, locale or allocation: error messages, policies, and words of users. */

/* Where text goes: a buffer of room bytes. What has no room is left out. */
typedef struct ampi_text {
    char  *bytes;
    size_t room, used;
} ampi_text;

static void ampi_print_char(ampi_text *t, char c) {
    if (t->used < t->room) t->bytes[t->used++] = c;
}

static void ampi_print_text(ampi_text *t, const char *text) {
    while (*text) ampi_print_char(t, *text++);
}

/* An integer as text; a double cannot hold all of them. */
enum { AMPI_DECIMALS = 21 };
static const char *ampi_digits(char *room, uint64_t n) {
    char *p = room + AMPI_DECIMALS - 1;
    *p = '\0';
    do *--p = (char)('0' + n % 10);
    while (n /= 10);
    return p;
}

static void ampi_print_count(ampi_text *t, uint64_t n) {
    char room[AMPI_DECIMALS];
    ampi_print_text(t, ampi_digits(room, n));
}

/* Whole numbers have all digits, others seven: 0.1, 3.402823e38. */
static AMPI_NOINLINE void ampi_print_number(ampi_text *t, double x) {
    uint64_t bits, n, ten;
    int      power = 0, point; /* powers of ten: of the last digit, of the first */
    memcpy(&bits, &x, 8);
    if (bits >> 63) ampi_print_char(t, '-');
    if (ampi_nonfinite_at(&x)) {
        ampi_print_text(t, bits << 12 ? "NaN" : "inf");
        return;
    }
    bits &= ~(uint64_t)0 >> 1;
    memcpy(&x, &bits, 8);
    if (x < 9e15 && !((double)(uint64_t)x < x)) {
        ampi_print_count(t, (uint64_t)x);
        return;
    }
    for (; x >= 9999999.5; power++) x /= 10.0;
    for (; x < 999999.95; power--) x *= 10.0;
    for (n = (uint64_t)(x + 0.5); n % 10 == 0; power++) n /= 10;
    for (ten = 1, point = power; n / ten >= 10; ten *= 10) point++;
    power = point < -4 || point > 14 ? point : 0; /* 0: no exponent */
    point -= power;
    if (point < 0) ampi_print_text(t, "0.");
    for (; point < -1; point++) ampi_print_char(t, '0');
    for (; ten; n %= ten, ten /= 10, point--) {
        ampi_print_char(t, (char)('0' + n / ten));
        if (point == 0 && ten > 1) ampi_print_char(t, '.');
    }
    for (; point >= 0; point--) ampi_print_char(t, '0');
    if (power) ampi_print_text(t, power < 0 ? "e-" : "e");
    if (power) ampi_print_count(t, (uint64_t)(power < 0 ? -power : power));
}

/* %s is the next word; %n too, at most 64 bytes of it; %g the next number; nothing else. */
static void ampi_print(ampi_text *t, const char *format, const char *const *word,
                       const double *number) {
    const char *p;
    for (; *format; format++) {
        if (*format != '%') ampi_print_char(t, *format);
        else if (*++format == 's') ampi_print_text(t, *word++);
        else if (*format == 'n') {
            for (p = *word++; *p && p - word[-1] < 64; p++) ampi_print_char(t, *p);
            if (*p) ampi_print_text(t, "...");
        }
        else ampi_print_number(t, *number++);
    }
}

/* ------------------------------------------------------------------ >>impl errors */

#if defined(__cplusplus)
#define AMPI_THREAD_LOCAL thread_local
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L && !defined(__STDC_NO_THREADS__)
#define AMPI_THREAD_LOCAL _Thread_local
#elif (defined(__GNUC__) || defined(__clang__)) && !defined(__TINYC__)
#define AMPI_THREAD_LOCAL __thread
#elif defined(_MSC_VER)
#define AMPI_THREAD_LOCAL __declspec(thread)
#else
#define AMPI_THREAD_LOCAL
#define AMPI_ONE_THREAD
#endif

/* This thread's last error, and its text. */
static AMPI_THREAD_LOCAL struct { ampi_error error; char text[200]; } ampi_last_error;

AMP_DEF const char *amp_problem(void) { return ampi_last_error.text; }

/* Tells an error, perhaps again. Words need not outlive the call in which it is first told, but
   those of an error that an optimizer stores are static. */
static amp_result ampi_repeat(const ampi_error *e) {
    ampi_text    t      = {ampi_last_error.text, sizeof ampi_last_error.text - 1, 0};
    const double number = (double)e->tensor - 1.0;
    if (e != &ampi_last_error.error) ampi_last_error.error = *e;
    if (e->tensor) ampi_print(&t, e->name ? "tensor %g (%n): " : "tensor %g: ", &e->name, &number);
    ampi_print(&t, e->format, e->words, e->numbers);
    t.bytes[t.used] = '\0';
    return e->result;
}

/* An error with a text. */
AMPI_PRINTS(2) static amp_result ampi_refuse(amp_result result, const char *format, ...) {
    ampi_error  e;
    const char *p;
    int         words = 0, numbers = 0;
    va_list     list;
    memset(&e, 0, sizeof e);
    e.result = result;
    e.format = format;
    va_start(list, format);
    for (p = format; *p; p++) {
        if (*p != '%') continue;
        if (*++p == 's') e.words[words++] = va_arg(list, const char *);
        else e.numbers[numbers++] = va_arg(list, double);
    }
    va_end(list);
    return ampi_repeat(&e);
}

#define AMPI_REFUSE(is, error, ...) \
    do { if (is) return ampi_refuse(AMP_ERROR_##error, __VA_ARGS__); } while (0)

/* The error just told is of a tensor. */
static amp_result ampi_of_tensor(size_t i, const char *name, amp_result result) {
    if (result == AMP_OK) return result;
    ampi_last_error.error.tensor = i + 1;
    ampi_last_error.error.name   = name;
    return ampi_repeat(&ampi_last_error.error);
}

/* An error whose result says it all, such as a backend's. */
static amp_result ampi_fail(amp_result result) {
    return result == AMP_OK ? result : ampi_refuse(result, "%s", amp_result_string(result));
}

static amp_result ampi_missing(const char *what) {
    return ampi_refuse(AMP_ERROR_INVALID_ARGUMENT, "%s is NULL", what);
}

static const char *ampi_type_name(amp_dtype type) {
    return type == AMP_F16 ? "fp16" : type == AMP_BF16 ? "bf16" : "fp32";
}

/* A number out of its bounds; an enum's value that is none. */
static amp_result ampi_out(const char *field, double x, const char *bounds) {
    return ampi_refuse(AMP_ERROR_INVALID_CONFIG, "%s is %g, and must be %s", field, x, bounds);
}

static amp_result ampi_unknown(const char *field, int value) {
    return ampi_refuse(AMP_ERROR_INVALID_ENUM, "%s is %g, which amp.h does not know", field,
                       (double)value);
}

static amp_result ampi_type_known(const char *field, amp_dtype type) {
    return amp_dtype_size(type) ? AMP_OK : ampi_unknown(field, (int)type);
}

static AMPI_NOINLINE amp_result ampi_arrays_ok(const void *dst, amp_dtype dst_type, const void *src,
                                               amp_dtype src_type, size_t n) {
    AMPI_TRY(ampi_type_known("dst_type", dst_type));
    AMPI_TRY(ampi_type_known("src_type", src_type));
    AMPI_REFUSE(n && (!src || !dst), INVALID_ARGUMENT, "%s is NULL, and n is %g",
                src ? "dst" : "src", (double)n);
    return AMP_OK;
}

#if !defined(AMP_NO_AUTOCAST) || !defined(AMP_NO_STDLIB) /* policies, and the environment */
static char ampi_lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c; }

/* Is text[0..length) one of these names, which are separated by spaces? Capitals and underscores
   do not matter. */
static int ampi_named(const char *text, size_t length, const char *names) {
    const char *const end = text + length;
    for (; length && names; names = strchr(names, ' ')) {
        const char *t = text;
        for (names += *names == ' ';; t++, names++) {
            while (t < end && *t == '_') t++;
            while (*names == '_') names++;
            if (t == end || !*names || *names == ' ' || ampi_lower(*t) != ampi_lower(*names)) break;
        }
        if (t == end && (!*names || *names == ' ')) return 1;
    }
    return 0;
}

/* The index of text in a list of names, or -1. */
static int ampi_find(const char *text, size_t length, const char *const *names, int count) {
    int i;
    for (i = 0; i < count; i++)
        if (ampi_named(text, length, names[i])) return i;
    return -1;
}

/* The amp_dtype that text names, or -1. */
static int ampi_find_type(const char *text, size_t length) {
    static const char *const names[] = {"fp32 float32 float", "fp16 float16 half", "bf16 bfloat16"};
    return ampi_find(text, length, names, 3);
}
#endif

AMPI_COLD_END

/* ------------------------------------------------------------------ >>impl arrays
   Operations on arrays, defined in plain C. The SIMD tiers, at the end of the file, apply the
   same operations to each element, by the core's formulas, so all give the same bits. A tier is
   chosen when the program runs, so that no -m flags are needed. */

enum {
    AMPI_PIECE  = 1024,   /* pieces of arrays that stay in the first-level cache            */
    AMPI_STREAM = 1 << 22, /* casts of so many elements write around the cache              */
    AMPI_WHOLE  = 32      /* tiers process multiples of this; plain C the rest              */
};

/* The arrays of a fused step on one tensor, as they are stored. */
typedef struct ampi_arrays {
    ampi_rates  rates;
    float       factor; /* unscales, clips */
    amp_kind    kind;
    amp_dtype   grad_type, model_type;
    const void *grad;
    void       *model;
    ampi_stored master, moment[2];
    uint32_t    element; /* number of the first, lower 32 bits */
    uint64_t    key;
    unsigned long long *f16_overflows; /* to count in */
} ampi_arrays;

/* Loops over elements i to end of arrays. */
typedef struct ampi_loops {
    /* 16 bits to fp32, or back; large arrays are written around the cache. over, if not NULL: fp32
       is cast to fp16; its sign bit is set if an element becomes inf or NaN */
    void (*convert)(void *dst, amp_dtype to, const void *src, amp_dtype from, size_t i, size_t end,
                    uint32_t *over);
    /* returns fp32 bits of the largest magnitude, inf and NaN included; adds the number of zeros
       to zeros and, unless lanes is NULL, squares to lanes; element 0 belongs to lane 0 */
    uint32_t (*scan)(const void *x, amp_dtype type, size_t i, size_t end, float *lanes,
                      size_t *zeros);
    float (*fold)(float *lanes); /* sum of the lanes, in pairs */
    void (*unscale)(void *dst, const void *grad, amp_dtype type, size_t i, size_t end,
                    float factor);
    void (*accumulate)(void *sums, const void *x, amp_dtype type, size_t i, size_t end);
    void (*step)(const ampi_arrays *x, size_t i, size_t end);
} ampi_loops;

typedef struct ampi_tier {
    const char *name;
    uint32_t    needs; /* of ampi_cpu_features     */
    uint32_t    best;  /* too, unless asked by name */
    int         asks;  /* the system, at its first product by tiles: then the next row holds */
    const ampi_loops         *loops;
    const struct ampi_engine *engine, *pairs; /* of products; of 16 bits in pairs, or NULL */
} ampi_tier;

static const ampi_tier  *ampi_tier_now(void); /* >>impl processors */
static const ampi_loops *ampi_loops_now(void) { return ampi_tier_now()->loops; }

static size_t ampi_min(size_t a, size_t b) { return a < b ? a : b; }
static size_t ampi_max(size_t a, size_t b) { return a > b ? a : b; }
static size_t ampi_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

/* Address of element i. */
static const void *ampi_at(const void *base, amp_dtype type, size_t i) {
    return (const char *)base + i * (type == AMP_F32 ? 4u : 2u);
}

static void *ampi_to(void *base, amp_dtype type, size_t i) {
    return base ? (char *)base + i * (type == AMP_F32 ? 4u : 2u) : NULL;
}

/* Elements before the first that begins a cache line; 0 if none does. Vectors that straddle lines
   are slow, and writes around the cache must be aligned. */
static size_t ampi_head(const void *p, size_t size, size_t n) {
    const size_t head = (size_t)((64 - (uintptr_t)p % 64) % 64);
    return head % size == 0 ? ampi_min(head / size, n) : 0;
}

static uint32_t *ampi_align(void *p) {
    return (uint32_t *)(void *)((char *)p + ampi_head(p, 1, 64));
}

/* A step reads up to five streams and prefetches each, AMPI_SOON elements ahead (in vectors,
   within its arrays). What processors fetch by themselves comes late, and costs up to a fifth of
   the time. */
enum { AMPI_SOON = 512, AMPI_AHEAD = 4096 }; /* AMPI_AHEAD: bytes, in a check */
#if defined(__GNUC__) || defined(__clang__)
#define AMPI_PREFETCH(p) __builtin_prefetch(p)
#else
#define AMPI_PREFETCH(p) ((void)(p))
#endif

/* Moves an array, and all of a step, forward to element i, the first of a group. */
static void ampi_forward(ampi_stored *s, size_t i) {
    if (s->data) s->data = (char *)s->data + i * s->size;
    if (s->scale) s->scale += i / AMPI_GROUP;
}
static void ampi_forward_all(ampi_arrays *x, size_t i) {
    x->grad  = ampi_at(x->grad, x->grad_type, i);
    x->model = ampi_to(x->model, x->model_type, i);
    ampi_forward(&x->master, i);
    ampi_forward(&x->moment[0], i);
    ampi_forward(&x->moment[1], i);
    x->element += (uint32_t)i;
}

/* A step works in blocks: formats that the formula cannot read are decoded to fp32 in a buffer,
   the formula runs, and they are encoded again. (The formula's loop reads and writes bf16 itself:
   a buffer would take 20 to 50 % longer.) If all arrays are fp32, there is one block; otherwise
   longer blocks gain nothing. */
enum { AMPI_BLOCK = 512, AMPI_GROUPS = AMPI_BLOCK / AMPI_GROUP };
AMPI_STATIC_ASSERT(ampi_blocks_are_of_whole_groups,
                   AMPI_BLOCK % (int)AMPI_GROUP == 0 && AMPI_WHOLE % (int)AMPI_GROUP == 0);
enum { AMPI_DRAWN = AMPI_BLOCK + 32 }; /* random bits of a block, in whole pairs and vectors */
typedef struct ampi_step_block {
    ampi_arrays x;         /* from the block's first element on           */
    size_t      n, more;   /* elements; those that prefetch               */
    void       *p, *m, *v; /* what the formula reads: x's own, or decoded */
    void       *model;     /* what it writes beside p, or NULL            */
    const uint16_t *p_random, *m_random, *v_random; /* random bits */
} ampi_step_block;

/* Groups in a block of n elements, with a bound that compilers see. */
AMPI_HOST size_t ampi_block_groups(size_t n) {
    return ampi_min((n + AMPI_GROUP - 1) / AMPI_GROUP, AMPI_GROUPS);
}

/* Counts copies that become inf or NaN. */
static AMPI_NOINLINE void ampi_count_overflows(unsigned long long *sum, const void *x, size_t n) {
    const uint32_t more = ampi_f16_overflows(x, n);
    if (!more) return;
    AMPI_OPENMP(omp atomic)
    *sum += more;
}

/* Bits whose sign is set if a magnitude of fp32 is inf or NaN in fp16. */
#define AMPI_OVER_F16(size) (AMPI_F16_INF_FROM - 1u - (size))

/* Plain C: vectors of one number. */

AMPI_FN void  ampi_done(void) {}
AMPI_FN float ampi_get(const void *base, size_t i) { return ampi_load_f32(base, i); }
AMPI_FN void  ampi_put(void *base, size_t i, float x) { ampi_store_f32(base, i, x); }
AMPI_FN void  ampi_put_as(void *base, amp_dtype type, size_t i, float x) {
    ampi_store(base, type, i, ampi_bits_of_f32(x));
}
AMPI_FN float ampi_unscaled(const void *grad, amp_dtype type, size_t i, float factor) {
    return ampi_unscale(ampi_load(grad, type, i), factor);
}
AMPI_FN uint32_t ampi_get16(const void *base, size_t i) { return ampi_load_u16(base, i); }
AMPI_FN uint32_t ampi_get8(const void *base, size_t i) { return ((const uint8_t *)base)[i]; }
AMPI_FN void     ampi_put16(void *base, size_t i, uint32_t u) {
    ampi_store_u16(base, i, (uint16_t)u);
}
AMPI_FN void     ampi_put8(void *base, size_t i, uint32_t u) { ((uint8_t *)base)[i] = (uint8_t)u; }
AMPI_FN void     ampi_put_words(void *base, uint32_t u) {
    ampi_store_u16(base, 0, (uint16_t)u);
    ampi_store_u16(base, 1, (uint16_t)(u >> 16));
}
AMPI_FN uint32_t ampi_count(uint32_t u) { return u; }
AMPI_HOST void   ampi_fence(void) { /* after writes around the cache */
#ifdef AMPI_X86
    __asm__ __volatile__("sfence" : : : "memory");
#endif
}
AMPI_FN uint32_t ampi_largest16(uint32_t u) { return u; }

#undef AMPI_HERE
#define AMPI_HERE AMPI_HOST
#define AMPI_LOOP static AMPI_NOINLINE
#define AMPI_PASS AMPI_PASS_PLAIN

AMPI_IN size_t ampi_cast_as(void *dst, const amp_dtype to, const void *src, const amp_dtype from,
                            size_t i, size_t last, int around, uint32_t *over) {
    (void)around;
    for (; i < last; i++) {
        const uint32_t x = ampi_load(src, from, i);
        ampi_store(dst, to, i, x);
        if (over) *over |= AMPI_OVER_F16(x & 0x7fffffffu);
    }
    return i;
}

AMPI_LOOP uint32_t ampi_check(const void *x, amp_dtype type, size_t i, size_t end, float *lanes,
                              size_t *zeros) {
    uint32_t max  = 0;
    size_t   none = 0;
    for (; i < end; i++) {
        const uint32_t a = ampi_load(x, type, i) & 0x7fffffffu;
        const float    t = ampi_f32_from_bits(a);
        max              = a > max ? a : max;
        none += a == 0;
        if (lanes) lanes[i % AMPI_LANES] = ampi_add(lanes[i % AMPI_LANES], ampi_mul(t, t));
    }
    *zeros += none;
    return max;
}

#endif /* AMP_IMPLEMENTATION_INCLUDED */

/* ------------------------------------------------------------------- >>impl loops
   Compiled here in plain C, and in each tier's second inclusion (>>impl processors): loops over
   vectors, by the core's formulas. */

#if defined(AMPI_PASS) && AMPI_PASS & (AMPI_PASS_PLAIN | AMPI_PASS_LOOPS)

AMPI_STATIC_ASSERT(AMPI_(vectors_fit_lanes_groups_and_blocks),
                   AMPI_LANES % AMPI_W == 0 && AMPI_GROUP % AMPI_W == 0 &&
                       AMPI_GROUPS % AMPI_W == 0 && AMPI_DRAWN >= AMPI_BLOCK + 2 * AMPI_W);

AMPI_LOOP float AMPI_(fold)(float *lanes) {
    size_t pair, i;
    for (pair = AMPI_LANES / 2; pair >= AMPI_W; pair /= 2)
        for (i = 0; i < pair; i += AMPI_W)
            AMPI_(put)(lanes, i, AMPI_(add)(AMPI_(get)(lanes, i), AMPI_(get)(lanes, i + pair)));
    AMPI_(done)();
    for (; pair; pair /= 2)
        for (i = 0; i < pair; i++) lanes[i] = ampi_add(lanes[i], lanes[i + pair]);
    return lanes[0];
}

/* Where whole vectors end; plain C does the rest. */
AMPI_IN size_t AMPI_(last)(size_t i, size_t end) {
    return AMPI_W > 1 ? end - (end - i) % AMPI_WHOLE : end;
}

AMPI_LOOP void AMPI_(unscale_from)(void *dst, const void *grad, amp_dtype type, size_t i,
                                   size_t end, float factor) {
    const AMPI_V f    = AMPI_(splat)(factor);
    const size_t last = AMPI_(last)(i, end);
    for (; i < last; i += AMPI_W) AMPI_(put)(dst, i, AMPI_(unscaled)(grad, type, i, f));
    AMPI_(done)();
    if (i < end) ampi_unscale_from(dst, grad, type, i, end, factor);
}

AMPI_LOOP void AMPI_(accumulate_from)(void *sums, const void *x, amp_dtype type, size_t i,
                                      size_t end) {
    const AMPI_V one  = AMPI_(splat)(1.0f);
    const size_t last = AMPI_(last)(i, end);
    for (; i < last; i += AMPI_W)
        AMPI_(put)(sums, i, AMPI_(add)(AMPI_(get)(sums, i), AMPI_(unscaled)(x, type, i, one)));
    AMPI_(done)();
    if (i < end) ampi_accumulate_from(sums, x, type, i, end);
}

AMPI_IN uint32_t AMPI_(any)(AMPI_U u) { /* the lanes' bits in one word */
    uint32_t lane[AMPI_W], any = 0;
    size_t   k;
    AMPI_(put)(lane, 0, AMPI_(from_bits)(u));
    for (k = 0; k < AMPI_W; k++) any |= lane[k];
    return any;
}

#if AMPI_W > 1

AMPI_IN size_t AMPI_(cast_as)(void *dst, const amp_dtype to, const void *src, const amp_dtype from,
                              size_t i, size_t end, int around, uint32_t *over) {
    AMPI_U any = AMPI_(u32)(0);
    size_t k;
    for (; end - i >= AMPI_WHOLE; i += AMPI_WHOLE)
        AMPI_UNROLL for (k = 0; k < AMPI_WHOLE; k += AMPI_W) {
            const AMPI_V x = AMPI_(get_as)(src, from, i + k);
            if (over) any |= AMPI_OVER_F16(AMPI_(size)(AMPI_(bits)(x)));
            if (!around) AMPI_(put_as)(dst, to, i + k, x);
            else if (to == AMP_F32) AMPI_(around)(dst, i + k, x);
            else AMPI_(around16)(dst, i + k, AMPI_(narrowed)(x, to));
        }
    for (; end - i >= AMPI_W; i += AMPI_W) {
        const AMPI_V x = AMPI_(get_as)(src, from, i);
        if (over) any |= AMPI_OVER_F16(AMPI_(size)(AMPI_(bits)(x)));
        AMPI_(put_as)(dst, to, i, x);
    }
    if (over) *over |= AMPI_(any)(any);
    return i;
}

/* Numbers of 16 bits are tested two in a word, without a conversion. */
AMPI_HERE void AMPI_(add_squares)(float *lane, AMPI_V x) {
    AMPI_HIDE(lane); /* one sum of addresses, not two: AVX-512 gains 2 to 4 % */
    AMPI_(put)(lane, 0, AMPI_(add)(AMPI_(get)(lane, 0), AMPI_(mul)(x, x)));
}
AMPI_LOOP uint32_t AMPI_(check)(const void *x, amp_dtype type, size_t i, size_t end, float *lanes,
                                size_t *zeros) {
    AMPI_U   max = AMPI_(u32)(0);
    AMPI_N   none = {0};
    uint16_t m[2 * AMPI_W];
    size_t   last = AMPI_(last)(i, end), k;
    uint32_t largest;
    if (type == AMP_F32)
        for (; i < last; i += AMPI_W) {
            const AMPI_V f = AMPI_(get)(x, i);
            const AMPI_U a = AMPI_(size)(AMPI_(bits)(f));
            max  = AMPI_(most)(max, a);
            none = AMPI_(zeros)(none, a);
            AMPI_PREFETCH((const char *)ampi_at(x, type, i) + AMPI_AHEAD);
            if (lanes) AMPI_(add_squares)(lanes + i % AMPI_LANES, f);
        }
    else
        for (; i < last; i += 2 * AMPI_W) {
            const void  *at = ampi_at(x, type, i);
            const AMPI_U a  = AMPI_(bits)(AMPI_(get)(at, 0)) & 0x7fff7fffu;
            max  = AMPI_(most16)(max, a);
            none = AMPI_(zeros16)(none, a);
            AMPI_PREFETCH((const char *)at + AMPI_AHEAD);
            if (lanes) { /* loading again is cheaper than splitting a */
                float *lane = lanes + i % AMPI_LANES;
                AMPI_(add_squares)(lane, AMPI_(get_as)(at, type, 0));
                AMPI_(add_squares)(lane + AMPI_W, AMPI_(get_as)(at, type, AMPI_W));
            }
        }
    AMPI_(put_words)(m, max);
    *zeros += (size_t)AMPI_(count_zeros)(none);
    AMPI_(done)(); /* after the last vector */
    largest = ampi_check(x, type, i, end, lanes, zeros);
    for (k = 0; k < (type == AMP_F32 ? AMPI_W : 2 * AMPI_W); k++) {
        const uint32_t one = ampi_load(m, type, k);
        largest            = one > largest ? one : largest;
    }
    return largest;
}

#endif

/* Casts align what they write, unless there is little; large ones write around the cache. */
AMPI_LOOP void AMPI_(cast_from)(void *dst, amp_dtype to, const void *src, amp_dtype from, size_t i,
                                size_t end, uint32_t *over) {
    const size_t size   = to == AMP_F32 ? 4 : 2;
    const size_t most   = AMPI_W > 1 ? end - i : 0; /* for vectors */
    const int    around = most >= AMPI_STREAM && dst != src && (uintptr_t)dst % size == 0;
    const size_t head   = i + (most < 4096 ? 0 : ampi_head(ampi_at(dst, to, i), size, most));
    if (i < head) ampi_cast_from(dst, to, src, from, i, head, over);
    if (to == AMP_F32 && from == AMP_F16)
        i = AMPI_(cast_as)(dst, AMP_F32, src, AMP_F16, head, end, around, NULL);
    else if (to == AMP_F32)
        i = AMPI_(cast_as)(dst, AMP_F32, src, AMP_BF16, head, end, around, NULL);
    else if (to == AMP_F16)
        i = over ? AMPI_(cast_as)(dst, AMP_F16, src, AMP_F32, head, end, 0, over)
                 : AMPI_(cast_as)(dst, AMP_F16, src, AMP_F32, head, end, around, NULL);
    else
        i = AMPI_(cast_as)(dst, AMP_BF16, src, AMP_F32, head, end, around, NULL);
    if (around) ampi_fence();
    AMPI_(done)();
    if (i < end) ampi_cast_from(dst, to, src, from, i, end, over);
}

AMPI_IN AMPI_V AMPI_(get_moment)(const void *base, size_t i, const int bf16) {
    return bf16 ? AMPI_(from_bits)(AMPI_(get16)(base, i) << 16) : AMPI_(get)(base, i);
}
AMPI_IN void AMPI_(put_moment)(void *base, size_t i, AMPI_V x, const int bf16,
                               const uint16_t *random) {
    if (bf16) AMPI_(put16)(base, i, AMPI_(stochastic)(AMPI_(bits)(x), AMPI_(get16)(random, i)));
    else AMPI_(put)(base, i, x);
}

/* The step. kind and bf16 are constant where this is inlined. */
AMPI_IN AMPI_U AMPI_(formula)(const ampi_step_block *x, const amp_kind kind, const int bf16) {
    const ampi_step_block b = *x; /* a copy, which no store changes */

    const amp_dtype moment = bf16 ? AMP_BF16 : AMP_F32;
    const int       has_m = AMPI_FIRST >> kind & 1 || b.m;
    const int       has_v = AMPI_SECOND >> kind & 1;
    const AMPI_V    f     = AMPI_(splat)(b.x.factor);
    AMPI_U          over  = AMPI_(u32)(0);
    size_t          i;
    for (i = 0; i < b.n; i += AMPI_W) {
        const AMPI_V g = AMPI_(unscaled)(b.x.grad, b.x.grad_type, i, f);
        AMPI_V       p = AMPI_(get)(b.p, i), m = f, v = f;
        if (has_m) m = AMPI_(get_moment)(b.m, i, bf16);
        if (has_v) v = AMPI_(get_moment)(b.v, i, bf16);
        if (i < b.more) {
            AMPI_PREFETCH(ampi_at(b.x.grad, b.x.grad_type, i + AMPI_SOON));
            AMPI_PREFETCH(ampi_at(b.p, AMP_F32, i + AMPI_SOON));
            if (b.model) AMPI_PREFETCH(ampi_at(b.model, b.x.model_type, i + AMPI_SOON));
            if (has_m) AMPI_PREFETCH(ampi_at(b.m, moment, i + AMPI_SOON));
            if (has_v) AMPI_PREFETCH(ampi_at(b.v, moment, i + AMPI_SOON));
        }
        AMPI_(optimize)(kind, has_m, &b.x.rates, g, &p, &m, &v);
        AMPI_(put)(b.p, i, p);
        if (has_m) AMPI_(put_moment)(b.m, i, m, bf16, b.m_random);
        if (has_v) AMPI_(put_moment)(b.v, i, v, bf16, b.v_random);
        if (b.model) AMPI_(put_as)(b.model, b.x.model_type, i, p);
        if (AMPI_W > 1 && b.model && b.x.model_type == AMP_F16)
            over |= AMPI_OVER_F16(AMPI_(size)(AMPI_(bits)(p)));
    }
    return over;
}
AMPI_LOOP void AMPI_(formula_on)(const ampi_step_block *b) {
    const int bf16 = b->x.moment[0].format == AMP_FORMAT_BF16;
    AMPI_U    over = AMPI_(u32)(0);
    uint32_t  any;
#define AMPI_ON(id, ...)                                                                  \
    if (b->x.kind == AMP_KIND_##id && bf16) over = AMPI_(formula)(b, AMP_KIND_##id, 1);   \
    else if (b->x.kind == AMP_KIND_##id) over = AMPI_(formula)(b, AMP_KIND_##id, 0);
    AMPI_OPTIMIZERS(AMPI_ON)
#undef AMPI_ON
    any = AMPI_(any)(over);
    AMPI_(done)();
    if (b->model && b->x.model_type == AMP_F16 && (AMPI_W == 1 || any >> 31))
        ampi_count_overflows(b->x.f16_overflows, b->p, b->n);
}

/* Masters that are not fp32 */
AMPI_LOOP void AMPI_(get_masters)(const ampi_step_block *block) {
    const ampi_step_block b      = *block;
    const int             master = (int)b.x.master.format;
    size_t                i;
    for (i = 0; i < b.n; i += AMPI_W) {
        const AMPI_U model = AMPI_(get16)(b.x.model, i);
        const AMPI_U low   = master == AMP_FORMAT_SR ? model : AMPI_(get16)(b.x.master.data, i);
        if (i < b.more) {
            const size_t at = i + AMPI_SOON;
            AMPI_PREFETCH(ampi_at(b.x.model, AMP_BF16, at));
            if (master != AMP_FORMAT_SR) AMPI_PREFETCH(ampi_at(b.x.master.data, AMP_BF16, at));
        }
        AMPI_(put)(b.p, i, AMPI_(master)(model, low, master));
    }
    AMPI_(done)();
}
AMPI_LOOP void AMPI_(put_masters)(const ampi_step_block *block) {
    const ampi_step_block b      = *block;
    const int             master = (int)b.x.master.format;
    size_t                i;
    for (i = 0; i < b.n; i += AMPI_W) {
        AMPI_U r = AMPI_(u32)(0), low;
        if (master == AMP_FORMAT_SR) r = AMPI_(get16)(b.p_random, i);
        AMPI_(put16)(b.x.model, i, AMPI_(model_of)(AMPI_(get)(b.p, i), r, &low, master));
        if (master != AMP_FORMAT_SR) AMPI_(put16)(b.x.master.data, i, low);
    }
    AMPI_(done)();
}

/* Moments of 8 bits, with a vector of scales at a time. Only plain C gets a shorter group, so
   that the tiers' loops have a constant length. second says which moment, and is constant. */
#if AMPI_W == 1
#define AMPI_UNROLLED
#else
#define AMPI_UNROLLED AMPI_UNROLL
#endif
AMPI_IN size_t AMPI_(group)(size_t n) {
    return AMPI_W > 1 || n > AMPI_GROUP ? (size_t)AMPI_GROUP : n;
}

AMPI_IN void AMPI_(get_8bit)(const ampi_stored *from, float *to, size_t n, size_t more,
                             const int second) {
    const size_t groups = ampi_block_groups(n);
    uint8_t      scale[AMPI_GROUPS] = {0};
    float        up[AMPI_GROUPS];
    size_t       g, i, k;
    memcpy(scale, from->scale, groups);
    for (g = 0; g < groups; g += AMPI_W)
        AMPI_(put)(up, g, AMPI_(up_of)(AMPI_(get8)(scale, g)));
    for (g = i = 0; g < groups; g++, i += AMPI_GROUP) {
        const size_t end = i + AMPI_(group)(n - i);
        if (i < more) AMPI_PREFETCH((const uint8_t *)from->data + i + AMPI_SOON);
        AMPI_UNROLLED for (k = i; k < end; k += AMPI_W) {
            const AMPI_U code = AMPI_(get8)(from->data, k);
            AMPI_(put)(to, k, AMPI_(decode)(code, up[g], second));
        }
    }
}

/* The largest magnitude of group g, lane by lane. A second moment's only sign is a NaN's. */
AMPI_IN AMPI_U AMPI_(largest)(const float *x, size_t g, size_t n, const int second) {
    const size_t i = g * AMPI_GROUP, end = i + AMPI_(group)(n - i);
    AMPI_U       most = AMPI_(u32)(0);
    size_t       k;
    AMPI_UNROLLED for (k = i; k < end; k += AMPI_W) {
        const AMPI_U u = AMPI_(bits)(AMPI_(get)(x, k));
        most = AMPI_(most)(most, second ? u : AMPI_(size)(u));
    }
    return most;
}

/* Two groups at a time are compared by their upper 16 bits, which tell the exponent, and a NaN,
   which arithmetic has made quiet. down holds the largest magnitudes first, then the factors. */
AMPI_IN void AMPI_(put_8bit)(const ampi_stored *to, const float *from, const uint16_t *random,
                             size_t n, const int second) {
    const size_t groups = ampi_block_groups(n);
    uint8_t      scale[AMPI_GROUPS];
    float        down[AMPI_GROUPS];
    size_t       g, i, k;
    for (g = 0; g < groups; g += 2) {
        const AMPI_U x = AMPI_(largest)(from, g, n, second);
        const AMPI_U y = AMPI_(largest)(from, ampi_min(g + 1, groups - 1), n, second);
        const uint32_t both = AMPI_(largest16)(x >> 16 | (y & 0xffff0000u));
        ampi_store_u32(down, g, both << 16);
        ampi_store_u32(down, g + 1, both & 0xffff0000u);
    }
    for (g = 0; g < groups; g += AMPI_W) {
        const AMPI_U exponent = AMPI_(exponent_of)(AMPI_(bits)(AMPI_(get)(down, g)));
        AMPI_(put8)(scale, g, exponent);
        AMPI_(put)(down, g, AMPI_(down_of)(exponent));
    }
    memcpy(to->scale, scale, groups);
    for (g = i = 0; g < groups; g++, i += AMPI_GROUP) {
        const size_t end = i + AMPI_(group)(n - i);
        AMPI_UNROLLED for (k = i; k < end; k += AMPI_W) {
            const AMPI_V x = AMPI_(get)(from, k);
            const AMPI_U r = AMPI_(get16)(random, k);
            AMPI_(put8)(to->data, k, AMPI_(encode)(x, down[g], r, second));
        }
    }
}
AMPI_LOOP void AMPI_(moments_8bit)(const ampi_step_block *b, int put) {
    const ampi_stored m = b->x.moment[0], v = b->x.moment[1];
    if (put) AMPI_(put_8bit)(&m, (float *)b->m, b->m_random, b->n, 0);
    else AMPI_(get_8bit)(&m, (float *)b->m, b->n, b->more, 0);
    if (v.data && put) AMPI_(put_8bit)(&v, (float *)b->v, b->v_random, b->n, 1);
    else if (v.data) AMPI_(get_8bit)(&v, (float *)b->v, b->n, b->more, 1);
    AMPI_(done)();
}

/* Random bits of a block, a row for each array that is rounded stochastically. A block may begin
   within a pair. */
AMPI_LOOP void AMPI_(draw)(ampi_step_block *b, uint16_t *room) {
    const ampi_arrays *x     = &b->x;
    const size_t       odd   = x->element & 1u;
    const int          coded = ampi_is_encoded(&x->moment[0]);
    AMPI_U             pair = AMPI_(count)(x->element >> 1);
    size_t             rows = 0, j;
    if (x->master.format == AMP_FORMAT_SR) b->p_random = room + odd, rows++;
    if (coded && x->moment[0].data) b->m_random = room + rows++ * AMPI_DRAWN + odd;
    if (coded && x->moment[1].data) b->v_random = room + rows++ * AMPI_DRAWN + odd;
    AMPI_HIDE(rows); /* one loop, not three */
    for (j = 0; rows && j < b->n + odd; j += 2 * AMPI_W, pair = pair + AMPI_(u32)(AMPI_W)) {
        AMPI_U r = AMPI_(random)(pair, x->key);
        AMPI_(put_words)(room + j, r);
        if (rows > 1) AMPI_(put_words)(room + AMPI_DRAWN + j, r = AMPI_(next_random)(r));
        if (rows > 2) AMPI_(put_words)(room + 2 * AMPI_DRAWN + j, AMPI_(next_random)(r));
    }
    AMPI_(done)();
}

/* Decodes what the formula cannot read, and encodes it again. */
AMPI_LOOP void AMPI_(step_from)(const ampi_arrays *x, size_t i, size_t end) {
    const size_t    last  = AMPI_(last)(i, end);
    const int       apart = ampi_is_encoded(&x->master), coded = ampi_is_encoded(&x->moment[0]);
    const int       codes = x->moment[0].scale != NULL;
    AMPI_V          room[3][AMPI_BLOCK / AMPI_W];
    uint16_t        drawn[3 * AMPI_DRAWN];
    ampi_step_block b;
    b.p_random = b.m_random = b.v_random = NULL;
    b.x = *x;
    ampi_forward_all(&b.x, i);
    for (; i < last; i += b.n, ampi_forward_all(&b.x, b.n)) {
        b.more  = AMPI_W > 1 && last - i > AMPI_SOON ? last - i - AMPI_SOON : 0;
        b.n     = apart || coded ? ampi_min(last - i, AMPI_BLOCK) : last - i;
        b.p     = apart ? room[0] : b.x.master.data;
        b.m     = codes ? room[1] : b.x.moment[0].data;
        b.v     = codes ? room[2] : b.x.moment[1].data;
        b.model = apart ? NULL : b.x.model;
        AMPI_(draw)(&b, drawn);
        if (apart) AMPI_(get_masters)(&b);
        if (codes) AMPI_(moments_8bit)(&b, 0);
        AMPI_(formula_on)(&b);
        if (apart) AMPI_(put_masters)(&b);
        if (codes) AMPI_(moments_8bit)(&b, 1);
    }
    if (i < end) ampi_step_from(x, i, end);
}

#endif /* >>impl loops */

#if defined(AMPI_PASS) && AMPI_PASS & AMPI_PASS_PLAIN /* >>impl goes on */

/* ---------------------------------------------------------------- >>impl numbers */

AMP_DEF amp_f16 amp_f32_to_f16(float x) {
    const amp_f16 h = {ampi_f16_from_f32(ampi_bits_of_f32(x))};
    return h;
}

AMP_DEF float amp_f16_to_f32(amp_f16 x) { return ampi_f32_from_bits(ampi_f32_from_f16(x.bits)); }

AMP_DEF amp_bf16 amp_f32_to_bf16(float x) {
    const amp_bf16 h = {ampi_bf16_from_f32(ampi_bits_of_f32(x))};
    return h;
}

AMP_DEF float amp_bf16_to_f32(amp_bf16 x) {
    return ampi_f32_from_bits(ampi_f32_from_bf16(x.bits));
}

AMP_DEF size_t amp_dtype_size(amp_dtype type) {
    return type == AMP_F32 ? 4 : type == AMP_F16 || type == AMP_BF16 ? 2 : 0;
}

/* Casts forwards, so that an in-place cast to a narrower type is right. */
static void ampi_cast(void *dst, amp_dtype to, const void *src, amp_dtype from, size_t n) {
    float     room[AMPI_PIECE + 16];
    uint32_t *buffer = ampi_align(room);
    size_t    i, count;
    if (to == from) {
        if (n) memmove(dst, src, n * amp_dtype_size(to));
    } else if (to == AMP_F32 || from == AMP_F32) {
        ampi_loops_now()->convert(dst, to, src, from, 0, n, NULL);
    } else {
        for (i = 0; i < n; i += count) {
            count = ampi_min(n - i, AMPI_PIECE);
            ampi_cast(buffer, AMP_F32, ampi_at(src, from, i), from, count);
            ampi_cast(ampi_to(dst, to, i), to, buffer, AMP_F32, count);
        }
    }
}

/* A cast of any length, in slices that threads may share, each in its own floating-point
   environment. In place it is one slice, cast forwards. */
static void ampi_cast_all(void *dst, amp_dtype dst_type, const void *src, amp_dtype src_type,
                          size_t n) {
    const size_t  slice  = dst == src ? n : ampi_min(n, AMPI_STREAM);
    const int64_t slices = (int64_t)(n / slice + (n % slice != 0));
    int64_t       k;
    AMPI_OPENMP(omp parallel for schedule(static) if (slices > 1))
    for (k = 0; k < slices; k++) {
        const size_t i = (size_t)k * slice;
        AMPI_IEEE(ampi_cast(ampi_to(dst, dst_type, i), dst_type, ampi_at(src, src_type, i),
                            src_type, ampi_min(n - i, slice)));
    }
}

AMP_DEF amp_result amp_cast(void *dst, amp_dtype dst_type, const void *src, amp_dtype src_type,
                            size_t n) {
    AMPI_TRY(ampi_arrays_ok(dst, dst_type, src, src_type, n));
    AMPI_REFUSE(ampi_overlaps(dst, dst_type, src, src_type, n), OVERLAP,
                "dst overlaps src: let it be elsewhere, or src itself if it is no wider");
    if (n) ampi_cast_all(dst, dst_type, src, src_type, n);
    return AMP_OK;
}

AMP_DEF bool amp_all_finite(const void *x, amp_dtype type, size_t n) {
    size_t   zeros = 0; /* not used: in a long array the count is wrong */
    uint32_t max;
    if (!amp_dtype_size(type) || (n && !x)) return false;
    AMPI_IEEE(max = ampi_loops_now()->scan(x, type, 0, n, NULL, &zeros));
    return !ampi_nonfinite(max);
}

/* ----------------------------------------------------------------- >>impl scaler */

typedef struct ampi_preset_row {
    float init_scale, min_scale, max_scale; /* 0: none                                    */
    int   growth_interval, hysteresis;
    int   one_factor;                       /* the original divides by its growth factor  */
} ampi_preset_row;

#define AMPI_PRESET(preset, grow, bits, ...) {__VA_ARGS__},
static const ampi_preset_row ampi_presets[] = {AMPI_PRESETS(AMPI_PRESET)};
#undef AMPI_PRESET
AMPI_STATIC_ASSERT(ampi_presets_are_all,
                   sizeof ampi_presets / sizeof ampi_presets[0] == (size_t)AMPI_NUM_PRESETS);

AMPI_COLD_BEGIN

/* Is *x finite, and 0 or more? The bits are tested before anything is compared. */
static int ampi_f32_in(const float *x) {
    return !ampi_nonfinite(ampi_load_u32(x, 0)) && *x >= 0.0f;
}

static int ampi_f64_in(const double *x, double low, double high) {
    return !ampi_nonfinite_at(x) && *x >= low && *x <= high;
}

/* One rule of zero: 0 is the default, and a negative number exactly 0. */
static double ampi_or(double x, double otherwise) {
    return x > 0.0 ? x : x < 0.0 ? 0.0 : otherwise;
}

#define AMPI_F32_MAX 3.40282347e38f
#define AMPI_F64_MAX 1.7976931348623157e308
#define AMPI_BELOW_1 0.99999999999999989

static amp_result ampi_finite_ok(const char *field, const float *x) {
    return ampi_nonfinite(ampi_load_u32(x, 0)) ? ampi_out(field, (double)*x, "finite") : AMP_OK;
}

/* Refuses a number of d, a desc, that is out of its bounds. */
#define AMPI_BOUND(is, desc, field, bounds) \
    do { if (!(is)) return ampi_out(#desc "." #field, (double)d->field, bounds); } while (0)

/* May this be the scale? Finite, above 0, and with AMPI_SAFE from min_scale to max_scale. */
static int ampi_scale_ok(const amp_scaler *s, const float *scale) {
    if (!ampi_f32_in(scale) || ampi_load_u32(scale, 0) << 1 == 0u) return 0;
    if (!(ampi_rules(s) & AMPI_SAFE)) return 1;
    return *scale >= s->min_scale && *scale <= s->max_scale;
}

static amp_result ampi_scaler_numbers_ok(const amp_scaler_desc *d) {
    static const char *const size  = "finite, and more than 0 (0: the default)";
    static const char *const count = "1 or more (0: the default)";
    AMPI_BOUND(ampi_f32_in(&d->init_scale), amp_scaler_desc, init_scale, size);
    AMPI_BOUND(ampi_f32_in(&d->min_scale), amp_scaler_desc, min_scale, size);
    AMPI_BOUND(ampi_f32_in(&d->max_scale), amp_scaler_desc, max_scale, size);
    AMPI_BOUND(d->growth_interval >= 0, amp_scaler_desc, growth_interval, count);
    AMPI_BOUND(d->hysteresis >= 0, amp_scaler_desc, hysteresis, count);
    AMPI_BOUND(ampi_f64_in(&d->growth_factor, 0.0, 0.0) ||
                   ampi_f64_in(&d->growth_factor, 1.0, AMPI_F64_MAX), amp_scaler_desc,
               growth_factor, "finite, and 1 or more (0: the default)");
    AMPI_BOUND(ampi_f64_in(&d->backoff_factor, 0.0, 1.0), amp_scaler_desc, backoff_factor,
               "more than 0 and at most 1 (0: the default)");
    return AMP_OK;
}

/* Does the preset allow these limits? */
static amp_result ampi_scaler_limits_ok(const amp_scaler *d) {
    const ampi_preset_row *safe = &ampi_presets[AMP_PRESET_STATIC];
    const int              any  = !(ampi_rules(d) & AMPI_SAFE);
    AMPI_BOUND(!(d->max_scale > 0.0f) || d->min_scale <= d->max_scale, amp_scaler_desc, min_scale,
               "at most max_scale (those of the preset, where they are 0)");
    AMPI_BOUND(any || d->min_scale >= safe->min_scale, amp_scaler_desc, min_scale,
               "2^-126 or more, where fp32 is normal");
    AMPI_BOUND(any || d->max_scale <= safe->max_scale, amp_scaler_desc, max_scale,
               "at most 2^126, whose reciprocal is normal");
    return AMP_OK;
}

static AMPI_NOINLINE amp_result ampi_scaler_setup(amp_scaler *s, const amp_scaler_desc *d) {
    const int              none = d->preset == AMP_PRESET_NONE;
    const ampi_preset_row *row;
    uint32_t               rules;
    amp_scaler             t;
    float                  init;
    uint64_t               bits;
    int                    given;
    if ((unsigned)d->preset >= (unsigned)AMPI_NUM_PRESETS)
        return ampi_unknown("amp_scaler_desc.preset", (int)d->preset);
    row = &ampi_presets[d->preset];
    AMPI_TRY(ampi_scaler_numbers_ok(d));
    given = none || d->init_scale > 0.0f;
    init  = d->init_scale > 0.0f ? d->init_scale : row->init_scale;
    if (none && init != 1.0f)
        return ampi_out("amp_scaler_desc.init_scale", (double)init, "0 or 1 for AMP_PRESET_NONE");

    memset(&t, 0, sizeof t);
    t.preset          = (uint32_t)d->preset;
    t.disabled        = d->disabled != 0;
    rules             = ampi_rules(&t);
    t.min_scale       = d->min_scale > 0.0f ? d->min_scale : row->min_scale;
    t.max_scale       = d->max_scale > 0.0f ? d->max_scale : row->max_scale;
    t.growth_interval = d->growth_interval ? d->growth_interval : row->growth_interval;
    t.growth_factor   = d->growth_factor > 0.0 ? d->growth_factor : 2.0;
    memcpy(&bits, &t.growth_factor, 8);
    if (d->backoff_factor > 0.0) t.backoff_factor = d->backoff_factor;
    else if (!row->one_factor) t.backoff_factor = 0.5;
    else if (bits << 12 == 0u) t.backoff_factor = ampi_div64(1.0, t.growth_factor); /* exactly */
    t.hysteresis = d->hysteresis ? d->hysteresis : row->hysteresis;
    if (!(rules & (AMPI_REFILL_GOOD | AMPI_REFILL_GROWTH))) t.hysteresis = 1;
    t.hysteresis_tracker = t.hysteresis;

    /* limits bound a default scale; in APEX, max_scale bounds any */
    if ((!given || d->preset == AMP_PRESET_APEX) && t.max_scale > 0.0f && init > t.max_scale)
        init = t.max_scale;
    if (!given && init < t.min_scale) init = t.min_scale;
    AMPI_TRY(ampi_scaler_limits_ok(&t));
    if (!ampi_scale_ok(&t, &init))
        return ampi_out("amp_scaler_desc.init_scale", (double)init,
                        "between min_scale and max_scale (those of the preset, where they are 0)");
    t.scale      = d->disabled ? 1.0f : init;
    t.next_scale = (double)t.scale;
    *s           = t;
    return AMP_OK;
}

#if !defined(AMP_NO_STDLIB) || !defined(AMP_NO_AUTOCAST)
/* Makes the desc of a scaler fit another type: fp16 needs a loss scale, the others need none. */
static AMPI_NOINLINE void ampi_scale_for(amp_scaler_desc *d, int was_fp16, int is_fp16) {
    if (!is_fp16 && ampi_is_zero(d->init_scale) && ampi_is_zero(d->min_scale) &&
        ampi_is_zero(d->max_scale) && !d->growth_interval && !d->hysteresis && !d->disabled &&
        d->preset == AMP_PRESET_DEFAULT && ampi_f64_in(&d->growth_factor, 0.0, 0.0) &&
        ampi_f64_in(&d->backoff_factor, 0.0, 0.0)) /* all defaults */
        d->preset = AMP_PRESET_NONE;
    if (is_fp16 && !was_fp16 && (d->disabled || d->preset == AMP_PRESET_NONE))
        memset(d, 0, sizeof *d);
}
#endif

AMP_DEF amp_result amp_scaler_init(amp_scaler *s, const amp_scaler_desc *desc) {
    amp_scaler_desc defaults;
    amp_result      result;
    memset(&defaults, 0, sizeof defaults);
    if (!desc) desc = &defaults;
    if (!s) return ampi_missing("s");
    memset(s, 0, sizeof *s);
    AMPI_IEEE(result = ampi_scaler_setup(s, desc));
    return result;
}

static amp_result ampi_scaler_ready(const amp_scaler *s) {
    if (!s) return ampi_missing("s");
    AMPI_REFUSE(!ampi_is_initialized(s), NOT_INITIALIZED,
                "s is not initialized: call amp_scaler_init first");
    return AMP_OK;
}

AMPI_COLD_END

/* Checks src and, unless dst is NULL, writes it unscaled: as fp32, or in place. */
static AMPI_NOINLINE void ampi_scaler_pass(amp_scaler *s, void *dst, amp_dtype dst_type,
                                           const void *src, amp_dtype src_type, size_t n) {
    const float inv  = ampi_inv_scale(s->scale);
    const int   wide = dst && dst_type == AMP_F32, narrow = dst && !wide;
    float       buffer[AMPI_PIECE];
    uint32_t    bad = 0, largest = 0, max, product;
    size_t      i, k, count, zeros = 0;
    for (i = 0; i < n; i += count) {
        const void *at = ampi_at(src, src_type, i);
        count = ampi_min(n - i, AMPI_PIECE);
        max   = ampi_loops_now()->scan(at, src_type, 0, count, NULL, &zeros);
        if (ampi_nonfinite(max)) {
            bad = 1;
            for (k = i; narrow && k < i + count; k++) { /* casts would change the bits of a NaN */
                const uint32_t g = ampi_load(src, src_type, k);
                if (ampi_nonfinite(g)) continue;
                ampi_store(dst, dst_type, k, ampi_bits_of_f32(ampi_unscale(g, inv)));
            }
        } else if (narrow) {
            ampi_loops_now()->unscale(buffer, at, src_type, 0, count, inv);
            ampi_cast(ampi_to(dst, dst_type, i), dst_type, buffer, AMP_F32, count);
        }
        if (wide) ampi_loops_now()->unscale(ampi_to(dst, AMP_F32, i), at, src_type, 0, count, inv);
        if (max > largest) largest = max;
    }
    bad |= (uint32_t)ampi_product_overflows(s, largest, inv);
    if (narrow && (ampi_rules(s) & AMPI_SAFE)) { /* bf16 overflows a little below fp32 */
        product = ampi_bits_of_f32(ampi_mul(ampi_f32_from_bits(largest), inv));
        bad |= (uint32_t)ampi_nonfinite(ampi_f32_from_bf16(ampi_bf16_from_f32(product)));
    }
    ampi_scaler_record(s, bad);
}

AMPI_COLD_BEGIN

AMP_DEF amp_result amp_scaler_unscale(amp_scaler *s, void *dst, const void *src,
                                      amp_dtype src_type, size_t n) {
    const amp_dtype dst_type = dst == src ? src_type : AMP_F32;
    AMPI_TRY(ampi_scaler_ready(s));
    AMPI_TRY(ampi_arrays_ok(src, AMP_F32, src, src_type, n));
    AMPI_REFUSE(dst && dst == src && src_type == AMP_F16, UNSUPPORTED,
                "dst is src, of fp16, which would lose what scaling saved: give dst n floats "
                "elsewhere, or NULL to check only");
    AMPI_REFUSE(ampi_overlaps(dst, dst_type, src, src_type, n), OVERLAP,
                "dst overlaps src: let it be src itself, or n floats elsewhere");
    if (!s->disabled)
        AMPI_IEEE(ampi_scaler_pass(s, dst, dst_type, src, src_type, n));
    else if (dst && dst != src && n) ampi_cast_all(dst, dst_type, src, src_type, n);
    return AMP_OK;
}

static AMPI_NOINLINE void ampi_scaler_update(amp_scaler *s) { ampi_scaler_transition(s); }

AMP_DEF amp_result amp_scaler_update(amp_scaler *s) {
    AMPI_TRY(ampi_scaler_ready(s));
    AMPI_REFUSE(!s->disabled && !s->checked && !s->found_inf, BAD_STATE,
                "no gradient was checked since the last update: call amp_scaler_unscale first");
    AMPI_IEEE(ampi_scaler_update(s));
    return AMP_OK;
}

static AMPI_NOINLINE amp_result ampi_scaler_replace(amp_scaler *s, const float *scale) {
    if (!ampi_scale_ok(s, scale))
        return ampi_out("scale", (double)*scale, "finite, more than 0, and within the limits of s");
    s->scale      = *scale;
    s->next_scale = (double)*scale;
    s->stuck      = 0u;
    return AMP_OK;
}

AMP_DEF amp_result amp_scaler_set_scale(amp_scaler *s, float scale) {
    amp_result result = ampi_scaler_ready(s);
    if (result != AMP_OK || s->disabled) return result;
    AMPI_IEEE(result = ampi_scaler_replace(s, &scale));
    return result;
}

/* ---------------------------------------------------------------- >>impl backend
   What optimizers, states and caches use of it. */

static void *ampi_allocate(const amp_allocator *a, size_t num_bytes) {
#ifndef AMP_NO_STDLIB
    if (!a->allocate_fn) return malloc(num_bytes);
#endif
    return a->allocate_fn ? a->allocate_fn(a->user, num_bytes) : NULL;
}

/* Freeing leaves errno as it is, because a caller's report often follows it. */
static void ampi_release(const amp_allocator *a, void *memory) {
#ifndef AMP_NO_STDLIB
    const int error = errno;
#endif
    if (memory && a->release_fn) a->release_fn(a->user, memory);
#ifndef AMP_NO_STDLIB
    else free(memory); /* or NULL, of any allocator */
    errno = error;
#endif
}

/* Both functions or none; without malloc, both. */
static int ampi_allocator_ok(const amp_allocator *a) {
#ifdef AMP_NO_STDLIB
    if (!a->allocate_fn) return 0;
#endif
    return !a->allocate_fn == !a->release_fn;
}

/* A backend's result. Only CUDA's is AMP_ERROR_UNSUPPORTED, while a stream is captured. */
static amp_result ampi_captured(amp_result result) {
    if (result != AMP_ERROR_UNSUPPORTED) return ampi_fail(result);
    return ampi_refuse(result, "the stream is being captured, which this call cannot be in: call "
                               "it before the capture or after");
}

/* The backend functions that callers need most. */
static amp_result ampi_send(const amp_backend *b, void *dst, const void *src, size_t num_bytes) {
    return ampi_captured(b->functions->copy_fn(b, dst, src, num_bytes, AMPI_TO_BACKEND));
}

static amp_result ampi_cast_on(const amp_backend *b, void *dst, amp_dtype dst_type,
                               const void *src, amp_dtype src_type, size_t n) {
    return b->functions->cast_fn(b, dst, dst_type, src, src_type, n);
}

/* What rows and report add to set-up, step and files. */
typedef struct ampi_archive ampi_archive;
typedef struct ampi_arena   ampi_arena;
static amp_result ampi_rows_ok(const amp_optimizer *opt, const amp_tensor *t);
static void       ampi_place_rows(const amp_optimizer *opt, amp_plan *plan, ampi_arena *arena);
/* a step: add up rows before their check; update these rows; find an element of the sums */
static void       ampi_sum_rows(const amp_plan *plan, ampi_slot *slot);
static void       ampi_update_rows(const amp_plan *plan, const ampi_slot *slot);
static amp_result ampi_place_in_rows(const amp_optimizer *opt, int i, amp_grad_stats *stats);
static size_t     ampi_report_room(size_t num_slots); /* host memory after the plan's tables */
static void       ampi_layout_report(const amp_optimizer *opt, amp_plan *plan, ampi_arena *arena);
/* a chunk of a sampled step: after its check, and around its update */
static void       ampi_sample_grads(ampi_histogram *h, const void *x, amp_dtype type, size_t n);
static void       ampi_sample_weights(const amp_plan *plan, const ampi_slot *slot, ampi_job job,
                                      size_t begin, size_t n, ampi_histogram *h);
/* a state: its history; reset it; send what was loaded */
static void       ampi_archive_report(ampi_archive *a, const amp_optimizer *opt);
static void       ampi_clear_history(amp_plan *plan);
static amp_result ampi_send_history(const amp_optimizer *opt);

/* -------------------------------------------------------------- >>impl optimizer */

/* By amp_kind. */
typedef struct ampi_optimizer {
    const char *kind;
    int         moments, always;
    double      beta2;
} ampi_optimizer;
#define AMPI_OPTIMIZER(kind, step, moments, always, beta2) \
    {"AMP_KIND_" #kind, moments, always, beta2},
static const ampi_optimizer ampi_optimizers[] = {{"AMP_KIND_OWN", 0, 0, 0.999},
                                                 AMPI_OPTIMIZERS(AMPI_OPTIMIZER)};
#undef AMPI_OPTIMIZER
#define AMPI_FUSED_ALONE " is for fused steps, such as AMP_KIND_ADAMW: desc.kind is AMP_KIND_OWN"

/* Storage formats, in the order of amp_storage_format: bytes of an element; elements that share a
   scale, or 0; are numbers rounded stochastically? */
typedef struct ampi_format { const char *name; uint8_t size, group, random; } ampi_format;
static const ampi_format ampi_formats[] = {
    {"fp32", 4, 0, 0},
    {"bf16", 2, 0, 1},
    {"8bit", 1, AMPI_GROUP, 1},
    {"split", 2, 0, 0},
    {"sr", 0, 0, 1}
};
AMPI_STATIC_ASSERT(ampi_formats_are_all,
                   sizeof ampi_formats / sizeof ampi_formats[0] == (size_t)AMP_FORMAT_SR + 1);

/* Numbers are compared here, after they are known to be finite, and in an environment without
   traps, because compilers may compare first. */
static AMPI_NOINLINE amp_result ampi_desc_numbers_ok(const amp_optimizer_desc *d) {
    static const char *const factor = "less than 1 (0: the default, negative: 0)";
    static const char *const amount = "0 or more, and finite";
    const float              eps    = (float)d->eps;
    const double             most   = (double)AMPI_F32_MAX;
    const double             least  = -AMPI_F64_MAX;
    AMPI_BOUND(ampi_f64_in(&d->beta1, least, AMPI_BELOW_1), amp_optimizer_desc, beta1, factor);
    AMPI_BOUND(ampi_f64_in(&d->beta2, least, AMPI_BELOW_1), amp_optimizer_desc, beta2, factor);
    AMPI_BOUND(ampi_f64_in(&d->eps, 0.0, most), amp_optimizer_desc, eps, amount);
    AMPI_BOUND(ampi_f64_in(&d->momentum, 0.0, most), amp_optimizer_desc, momentum, amount);
    AMPI_TRY(ampi_finite_ok("amp_optimizer_desc.weight_decay", &d->weight_decay));
    AMPI_BOUND(ampi_f32_in(&d->max_norm), amp_optimizer_desc, max_norm, amount);
    AMPI_BOUND(!(d->eps > 0.0) || eps > 0.0f, amp_optimizer_desc, eps,
               "more than 0 in fp32, or 0");
    AMPI_BOUND(!d->nesterov || (float)d->momentum > 0.0f, amp_optimizer_desc, momentum,
               "more than 0 for nesterov");
    return AMP_OK;
}

/* Is it a row of AMP_STORAGE_LIST? */
static amp_result ampi_storage_ok(const amp_storage *s) {
#define AMPI_STORAGE_NAME(name, master, moments) name ", "
#define AMPI_STORAGE_ROW(name, master, moments)  {AMP_FORMAT_##master, AMP_FORMAT_##moments},
    static const amp_storage rows[] = {AMP_STORAGE_LIST(AMPI_STORAGE_ROW)};
#undef AMPI_STORAGE_ROW
    size_t i;
    for (i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].master == s->master && rows[i].moments == s->moments) return AMP_OK;
    if ((unsigned)s->master > (unsigned)AMP_FORMAT_SR)
        return ampi_unknown("amp_storage.master", (int)s->master);
    if ((unsigned)s->moments > (unsigned)AMP_FORMAT_SR)
        return ampi_unknown("amp_storage.moments", (int)s->moments);
    return ampi_refuse(AMP_ERROR_INVALID_CONFIG,
                       "amp_storage is %s+%s: take " AMP_STORAGE_LIST(AMPI_STORAGE_NAME)
                       "as in AMP_STORAGE_LIST",
                       ampi_formats[s->master].name, ampi_formats[s->moments].name);
#undef AMPI_STORAGE_NAME
}

static AMPI_NOINLINE amp_result ampi_desc_ok(const amp_optimizer_desc *d) {
    amp_scaler scaler;
    AMPI_TRY(ampi_type_known("amp_optimizer_desc.dtype", d->dtype));
    if ((size_t)d->kind >= sizeof ampi_optimizers / sizeof ampi_optimizers[0])
        return ampi_unknown("amp_optimizer_desc.kind", (int)d->kind);
    AMPI_TRY(ampi_desc_numbers_ok(d));
    AMPI_REFUSE(!ampi_allocator_ok(&d->allocator), INVALID_ARGUMENT,
                "amp_optimizer_desc.allocator needs both functions");
    AMPI_REFUSE(d->backend && !d->backend->functions, INVALID_ARGUMENT,
                "amp_optimizer_desc.backend was not made by amp_cuda_backend");
    if (d->report && d->report->every < 0)
        return ampi_out("amp_report_desc.every", d->report->every, "0 or more");
    if (d->storage) AMPI_TRY(ampi_storage_ok(d->storage));
    return ampi_scaler_setup(&scaler, &d->scaler); /* to learn of its errors now */
}

/* Copies desc, and its backend, report and storage, which may go after the call. */
static AMPI_NOINLINE void ampi_begin(amp_optimizer *opt, const amp_optimizer_desc *desc) {
    amp_optimizer_desc *d = &opt->desc;
    *d = *desc;
    d->beta1 = ampi_or(d->beta1, 0.9);
    d->beta2 = ampi_or(d->beta2, ampi_optimizers[d->kind].beta2);
    d->eps   = ampi_or(d->eps, 1e-8);
    amp_cpu_backend(&opt->backend);
    if (d->backend) opt->backend = *d->backend;
    if (d->report) opt->report_desc = *d->report;
    if (d->storage) opt->storage = *d->storage;
    opt->reports     = d->report != NULL;
    opt->capacity    = AMP_INLINE_TENSORS;
    opt->initialized = 1;
}

AMP_DEF amp_result amp_optimizer_init(amp_optimizer *opt, const amp_optimizer_desc *desc) {
    amp_optimizer_desc d;
    amp_result         result;
    memset(&d, 0, sizeof d);
    if (desc) d = *desc;
    if (!opt) return ampi_missing("opt");
    memset(opt, 0, sizeof *opt);
    AMPI_IEEE(result = ampi_desc_ok(&d));
    if (result == AMP_OK) AMPI_IEEE(ampi_begin(opt, &d));
    return result;
}

static const ampi_entry *ampi_entry_of(const amp_optimizer *opt, size_t i) {
    return opt->entries ? &opt->entries[i] : &opt->inline_entries[i];
}

static const amp_tensor *ampi_tensor(const amp_optimizer *opt, int i) {
    if (!opt || !opt->initialized || i < 0 || (size_t)i >= opt->num_entries) return NULL;
    return &ampi_entry_of(opt, (size_t)i)->tensor;
}

/* The error just told is of a tensor that was added. */
static amp_result ampi_of(const amp_optimizer *opt, size_t i, amp_result result) {
    return ampi_of_tensor(i, ampi_entry_of(opt, i)->tensor.name, result);
}

/* May a call be made now? Before prepare; after it; then, in no open step; in one. */
typedef enum ampi_phase { AMPI_ADDING, AMPI_PREPARED, AMPI_BETWEEN, AMPI_WITHIN } ampi_phase;
static amp_result ampi_ready(const amp_optimizer *opt, ampi_phase phase) {
    amp_result result = AMP_OK;
    if (!opt) return ampi_missing("opt");
    AMPI_REFUSE(!opt->initialized, NOT_INITIALIZED,
                "opt is not initialized: call amp_optimizer_init first");
    if (phase == AMPI_ADDING && opt->plan) result = AMP_ERROR_PREPARED;
    else if (phase != AMPI_ADDING && !opt->plan) result = AMP_ERROR_NOT_PREPARED;
    else if (phase == AMPI_BETWEEN && opt->step_open) result = AMP_ERROR_STEP_OPEN;
    else if (phase == AMPI_WITHIN && !opt->step_open) result = AMP_ERROR_STEP_NOT_OPEN;
    return ampi_fail(result);
}

/* May a call for tensor i be made now? */
static amp_result ampi_tensor_ready(const amp_optimizer *opt, int i, ampi_phase phase) {
    AMPI_TRY(ampi_ready(opt, phase));
    if (ampi_tensor(opt, i)) return AMP_OK;
    return ampi_refuse(AMP_ERROR_INVALID_ARGUMENT, "there is no tensor %g: there are %g", (double)i,
                       (double)opt->num_entries);
}

/* How many moments a tensor with a gradient has. */
static int ampi_num_moments(const amp_optimizer_desc *d) {
    const ampi_optimizer *o = &ampi_optimizers[d->kind];
    uint64_t              momentum; /* its bits: a host may treat subnormals as 0 */
    memcpy(&momentum, &d->momentum, 8);
    return momentum << 1 ? o->moments : o->always;
}

/* Does the caller's own optimizer update this tensor? */
static int ampi_host_steps(const amp_optimizer *opt, const amp_tensor *t) {
    return opt->desc.kind == AMP_KIND_OWN || t->own;
}

/* How master and moments of a tensor are stored. */
static amp_storage ampi_storage_of(const amp_optimizer *opt, const amp_tensor *t) {
    static const amp_storage fp32 = {AMP_FORMAT_F32, AMP_FORMAT_F32};
    const int                kept = t->storage && t->storage->master == AMP_FORMAT_F32;
    if ((t->own && opt->desc.kind != AMP_KIND_OWN) || (t->keep_fp32 && !kept)) return fp32;
    return t->storage ? *t->storage : opt->storage;
}

/* May the next tensor be stored so? */
static amp_result ampi_storage_check(const amp_optimizer *opt, const amp_tensor *t) {
    const amp_storage  s      = ampi_storage_of(opt, t);
    const int          groups = (ampi_formats + s.moments)->group; /* [] warns: -fsanitize=enum */
    const int          apart  = s.master != AMP_FORMAT_F32;
    const int          coded  = apart || s.moments != AMP_FORMAT_F32;
    const amp_dtype    type   = t->model ? t->model_type : opt->desc.dtype;
    AMPI_REFUSE(coded && opt->desc.kind == AMP_KIND_OWN, UNSUPPORTED, "storage" AMPI_FUSED_ALONE);
    AMPI_REFUSE(apart && type != AMP_BF16, UNSUPPORTED, "its masters are stored beside a model of "
                "AMP_BF16: set desc.dtype or model_type, or AMP_FORMAT_F32");
    AMPI_REFUSE(groups && t->rows && t->rows->row_length % AMPI_GROUP != 0, UNSUPPORTED,
                "row_length is %g, and must be a multiple of 32 for moments of 8 bits",
                (double)t->rows->row_length);
    return AMP_OK;
}

/* May t be the next tensor, or (flat) be of a flat array? */
static AMPI_NOINLINE amp_result ampi_tensor_check(const amp_optimizer *opt, const amp_tensor *t,
                                                  int flat) {
    const int halves = t->model && t->model_type != AMP_F32;
    AMPI_TRY(ampi_type_known("grad_type", t->grad_type));
    if (t->model) AMPI_TRY(ampi_type_known("model_type", t->model_type));
    AMPI_REFUSE(halves && t->model == (void *)t->weight, INVALID_CONFIG,
                "its model is its weight, but model_type is of 16 bits");
    AMPI_REFUSE(t->grad == AMP_NO_GRAD, INVALID_ARGUMENT,
                "AMP_NO_GRAD is for rebind: leave grad NULL, or set frozen");
    AMPI_REFUSE(t->n && !t->weight && !t->model, INVALID_ARGUMENT,
                "it has neither a weight nor a model");
    AMPI_TRY(ampi_finite_ok("lr_scale", &t->lr_scale));
    AMPI_TRY(ampi_finite_ok("weight_decay", &t->weight_decay));
    if (t->storage) AMPI_TRY(ampi_storage_ok(t->storage));
    AMPI_REFUSE(t->keep_fp32 && halves, INVALID_CONFIG,
                "keep_fp32 is set, but its model is of 16 bits");
    AMPI_REFUSE(t->n > SIZE_MAX / 64, TOO_LARGE, "n is %g, which is too large", (double)t->n);
    if (t->first % AMPI_CHUNK != 0 || t->first > UINT64_MAX / 2)
        return ampi_out("first", (double)t->first, "a multiple of 16384, and less than 2^63");
    AMPI_REFUSE(t->rows && flat, UNSUPPORTED,
                "rows are not for amp_optimizer_add_flat: add that tensor by amp_optimizer_add");
    AMPI_REFUSE(t->rows && t->own, UNSUPPORTED, "own is for a tensor without rows");
    if (t->rows) AMPI_TRY(ampi_rows_ok(opt, t));
    return ampi_storage_check(opt, t);
}

/* Make room for count more entries, keeping those that are there. */
static amp_result ampi_reserve(amp_optimizer *opt, size_t count) {
    const size_t most = SIZE_MAX / 4 / sizeof(ampi_entry);
    size_t       capacity = opt->capacity;
    ampi_entry  *grown;
    if (count <= capacity - opt->num_entries) return AMP_OK;
    AMPI_REFUSE(count > most - opt->num_entries, TOO_LARGE, "count is %g, which is too large",
                (double)count);
    while (capacity < opt->num_entries + count) capacity *= 2;
    grown = (ampi_entry *)ampi_allocate(&opt->desc.allocator, capacity * sizeof *grown);
    if (!grown) return ampi_fail(AMP_ERROR_OUT_OF_MEMORY);
    memcpy(grown, ampi_entry_of(opt, 0), opt->num_entries * sizeof *grown);
    ampi_release(&opt->desc.allocator, opt->entries);
    opt->entries  = grown;
    opt->capacity = capacity;
    return AMP_OK;
}

static AMPI_NOINLINE void ampi_append(amp_optimizer *opt, const amp_tensor *tensor, int flat) {
    const double decay = tensor->rows ? 0.0 : ampi_or((double)opt->desc.weight_decay, 0.0);
    ampi_entry  *e     = opt->entries ? opt->entries : opt->inline_entries;
    e += opt->num_entries++;
    memset(e, 0, sizeof *e);
    e->tensor = *tensor;
    e->flat   = flat;
    if (tensor->rows) e->rows = *tensor->rows;
    e->storage = ampi_storage_of(opt, tensor);
    e->tensor.rows    = NULL; /* nothing follows the caller's pointers from here on */
    e->tensor.storage = NULL;
    e->tensor.lr_scale     = (float)ampi_or((double)tensor->lr_scale, 1.0);
    e->tensor.weight_decay = (float)ampi_or((double)tensor->weight_decay, decay);
    if (tensor->frozen) e->tensor.grad = NULL;
    if (opt->desc.kind == AMP_KIND_OWN) e->tensor.own = 0; /* as all are */
}

/* The tensor that one describes, at an offset into the arrays of whole. */
static amp_tensor ampi_tensor_at(const amp_tensor *whole, const amp_tensor *one, size_t offset) {
    amp_tensor t = *one;
    t.grad_type  = whole->grad_type;
    t.model_type = whole->model_type;
    t.weight     = (float *)ampi_to(whole->weight, AMP_F32, offset);
    t.grad       = ampi_to(whole->grad, t.grad_type, offset);
    t.model      = ampi_to(whole->model, t.model_type, offset);
    t.own |= whole->own;
    t.frozen |= whole->frozen;
    t.keep_fp32 |= whole->keep_fp32;
    if (!t.storage) t.storage = whole->storage;
    return t;
}

/* Adds all of them, or none. (A flat array of one is a tensor, except that it has no rows.) */
static amp_result ampi_add_tensors(amp_optimizer *opt, const amp_tensor *whole,
                                   const amp_tensor *tensors, size_t count, int flat) {
    amp_result result;
    size_t     i, before, offset = 0;
    if (!whole) return ampi_missing(flat ? "whole" : "tensor");
    if (!tensors && count) return ampi_missing("tensors");
    AMPI_TRY(ampi_reserve(opt, count));
    before = opt->num_entries;
    AMPI_IEEE(result = ampi_tensor_check(opt, whole, flat));
    result = ampi_of_tensor(before, whole->name, result);
    for (i = 0; i < count && result == AMP_OK && tensors[i].n <= whole->n - offset; i++) {
        const amp_tensor t = ampi_tensor_at(whole, &tensors[i], offset);
        AMPI_IEEE(result = ampi_tensor_check(opt, &t, flat);
                  if (result == AMP_OK) ampi_append(opt, &t, flat && i ? 2 : flat));
        result = ampi_of_tensor(opt->num_entries, t.name, result);
        offset += t.n;
    }
    if (result == AMP_OK && (i < count || offset != whole->n))
        result = ampi_refuse(AMP_ERROR_INVALID_ARGUMENT,
                             "the tensors' n do not add up to whole's %g", (double)whole->n);
    if (result != AMP_OK) opt->num_entries = before;
    return result;
}

/* An add that is refused is remembered, since later tensors would take its number. */
static amp_result ampi_add_or_refuse(amp_optimizer *opt, const amp_tensor *whole,
                                     const amp_tensor *tensors, size_t count, int flat) {
    amp_result result;
    AMPI_TRY(ampi_ready(opt, AMPI_ADDING));
    result = ampi_add_tensors(opt, whole, tensors, count, flat);
    if (result != AMP_OK && !ampi_last_error.error.tensor)
        ampi_of_tensor(opt->num_entries, NULL, result);
    if (result != AMP_OK && opt->refused.result == AMP_OK) opt->refused = ampi_last_error.error;
    return result;
}

AMP_DEF amp_result amp_optimizer_add(amp_optimizer *opt, const amp_tensor *tensor) {
    return ampi_add_or_refuse(opt, tensor, tensor, 1, 0);
}

AMP_DEF amp_result amp_optimizer_add_flat(amp_optimizer *opt, const amp_tensor *whole,
                                          const amp_tensor *tensors, size_t count) {
    return ampi_add_or_refuse(opt, whole, tensors, count, 1);
}

/* Memory is laid out by running the same code twice: without base, to learn the size, and with. */
struct ampi_arena { char *base; size_t used; int too_large; };

static void *ampi_take(ampi_arena *arena, size_t count, size_t size, size_t alignment) {
    const size_t start = (arena->used + alignment - 1) / alignment * alignment;
    if (start > SIZE_MAX / 2 || count > (SIZE_MAX / 2 - start) / size) {
        arena->too_large = 1;
        return NULL;
    }
    arena->used = start + count * size;
    return arena->base ? arena->base + start : NULL;
}

/* Floats of tensor e; those of a flat array follow one another without a gap. */
static float *ampi_floats_of(ampi_arena *arena, const ampi_entry *e) {
    return (float *)ampi_take(arena, e->tensor.n, 4, e->flat == 2 ? 4 : 64);
}

static size_t ampi_groups(size_t n) { return n / AMPI_GROUP + (n % AMPI_GROUP != 0); }

/* Is a tensor's gradient of few rows? How many elements may its sums have? (An empty table has
   room for one row, because rows outside it are summed, too.) */
static int ampi_has_rows(const ampi_entry *e) {
    return e->rows.row_length && !e->tensor.frozen;
}

static uint64_t ampi_most_sums(const ampi_entry *e) {
    const uint64_t most = (uint64_t)e->rows.max_rows * e->rows.row_length;
    const uint64_t n    = e->tensor.n ? e->tensor.n : e->rows.row_length;
    return most < n ? most : n;
}

/* Fills in a slot, except what the arena holds. */
static void ampi_fill_slot(const amp_optimizer *opt, const ampi_entry *e, size_t i,
                           ampi_slot *slot) {
    const amp_optimizer_desc *d = &opt->desc;
    const amp_tensor         *t = &e->tensor;
    ampi_stored              *m = slot->moment;
    memset(slot, 0, sizeof *slot);
    slot->n            = t->n;
    slot->key          = t->key ? t->key - 1 : i;
    slot->first        = t->first;
    slot->lr_scale     = t->lr_scale;
    slot->weight_decay = t->weight_decay;
    slot->model_type   = t->model ? t->model_type : d->dtype;
    slot->master.format = e->storage.master;
    slot->master.size   = ampi_formats[e->storage.master].size;
    m[0].format = m[1].format = e->storage.moments;
    m[0].size = m[1].size = ampi_formats[e->storage.moments].size;
    slot->stats.first_nonfinite = slot->n;
    if (!ampi_is_encoded(&slot->master)) slot->master.data = t->weight;
    slot->grad      = t->grad;
    slot->grad_type = t->grad_type;
    if (ampi_has_rows(e)) {
        slot->values      = t->grad;
        slot->values_type = t->grad_type;
        slot->grad_type   = AMP_F32;
    }
    slot->model     = t->model == (void *)t->weight ? NULL : t->model;
    slot->own       = t->own != 0;
    slot->frozen    = t->frozen ? 1u : t->grad ? 0u : 2u;
    slot->in_place  = ampi_host_steps(opt, t) && d->unscale_in_place && t->grad_type == AMP_F32;
}

/* Places elements of tensor e in their format, and scales of groups. */
static void ampi_place(ampi_arena *arena, const ampi_entry *e, ampi_stored *s) {
    if (s->format == AMP_FORMAT_F32) s->data = ampi_floats_of(arena, e);
    else if (s->size) s->data = ampi_take(arena, e->tensor.n, s->size, 64);
    if (ampi_formats[s->format].group)
        s->scale = (uint8_t *)ampi_take(arena, ampi_groups(e->tensor.n), 1, 64);
}

/* The number of chunks of slot i; if sparse, the most that its sums may have. */
static uint64_t ampi_slot_chunks(const amp_optimizer *opt, size_t i) {
    const ampi_entry *e = ampi_entry_of(opt, i);
    return ampi_chunks(ampi_has_rows(e) ? ampi_most_sums(e) : opt->plan->host_slots[i].n);
}

/* Fills in the slots, except what the arena holds, and counts. In the order of chunks own slots
   come last, so that the chunks of either kind are in a row. */
static void ampi_fill_slots(const amp_optimizer *opt, amp_plan *plan) {
    const int moments  = ampi_num_moments(&opt->desc);
    uint64_t  elements = 0, sums = 0;
    uint32_t  own;
    size_t    i;
    plan->num_chunks = 0;
    for (i = 0; i < plan->num_slots; i++) {
        const ampi_entry *e = ampi_entry_of(opt, i);
        ampi_slot        *s = &plan->host_slots[i];
        ampi_fill_slot(opt, e, i, s);
        s->first_sum = sums;
        sums += ampi_slot_chunks(opt, i);
        if (s->own && !plan->owns) plan->owns = (int)i + 1;
        plan->encoded |= ampi_is_encoded(&s->master) || ampi_is_encoded(&s->moment[0]);
        plan->stochastic |= !e->tensor.frozen &&
                            (ampi_formats[s->master.format].random ||
                             (moments && ampi_formats[s->moment[0].format].random));
        elements += s->n;
    }
    for (own = 0; own < 2; own++)
        for (i = 0; i < plan->num_slots; i++) {
            if (plan->host_slots[i].own != own) continue;
            plan->host_slots[i].first_chunk = plan->num_chunks;
            plan->num_chunks += ampi_slot_chunks(opt, i);
        }
    plan->share_bits = plan->num_chunks < 264 ? 4 : 2;
    if (plan->num_chunks > elements / (AMPI_CHUNK / 2)) plan->share_bits = 0;
}

/* Arrays of tensors, in the order of backend memory: one kind after the other, so that those of a
   flat array have no gaps. */
typedef enum ampi_array {
    AMPI_ARRAY_MODEL, AMPI_ARRAY_MASTER, AMPI_ARRAY_GRAD, AMPI_ARRAY_FIRST_MOMENT,
    AMPI_ARRAY_SECOND_MOMENT
} ampi_array;

/* Places slot i's array of this kind, if it is the optimizer's own. In a flat array keep_fp32
   leaves a gap among models, and frozen one among gradients. cuBLAS looks at alignments up to 256
   bytes, which must not depend on other tensors. */
static void ampi_place_array(const amp_optimizer *opt, size_t i, ampi_array kind,
                             ampi_arena *arena) {
    const ampi_entry *e      = ampi_entry_of(opt, i);
    ampi_slot        *s      = &opt->plan->host_slots[i];
    const int         learns = !e->tensor.frozen, keeps = e->tensor.keep_fp32 != 0;
    const size_t      size   = amp_dtype_size(opt->desc.dtype);
    void             *model;
    switch (kind) {
    case AMPI_ARRAY_MODEL:
        if (e->tensor.model || opt->desc.dtype == AMP_F32 || (keeps && !e->flat)) break;
        model = ampi_take(arena, e->tensor.n, size, e->flat == 2 ? size : 256);
        if (!keeps) s->model = model;
        break;
    case AMPI_ARRAY_MASTER:
        if (!s->master.data) ampi_place(arena, e, &s->master);
        break;
    case AMPI_ARRAY_GRAD:
        if (!ampi_host_steps(opt, &e->tensor) || !(learns || e->flat)) break;
        s->unscaled = s->in_place ? (float *)s->grad : ampi_floats_of(arena, e);
        if (!learns) s->unscaled = NULL;
        break;
    case AMPI_ARRAY_FIRST_MOMENT:
    case AMPI_ARRAY_SECOND_MOMENT:
        if (learns && !s->own)
            ampi_place(arena, e, &s->moment[kind - AMPI_ARRAY_FIRST_MOMENT]);
    }
}

/* Fills in the plan and its host_slots, and gives everything in backend memory its place after
   base. If base is NULL, it only finds the number of bytes. */
static amp_result ampi_layout(const amp_optimizer *opt, amp_plan *plan, char *base,
                              size_t *num_bytes) {
    const size_t count = plan->num_slots;
    const int    kinds = AMPI_ARRAY_FIRST_MOMENT + ampi_num_moments(&opt->desc);
    ampi_arena   arena;
    size_t       i;
    int          k;
    ampi_fill_slots(opt, plan);
    memset(&arena, 0, sizeof arena);
    arena.base     = base;
    plan->control  = (ampi_control *)ampi_take(&arena, 1, sizeof *plan->control, 64);
    plan->table    = (ampi_slot *)ampi_take(&arena, count, sizeof *plan->table, 64);
    plan->sums     = (double *)ampi_take(&arena, (size_t)plan->num_chunks, sizeof(double), 64);
    plan->chunk_slots =
        (uint32_t *)ampi_take(&arena, (size_t)plan->num_chunks, sizeof(uint32_t), 64);
    plan->scaler = opt->desc.shared_scaler;
    if (base && !plan->shared) plan->scaler = &plan->control->scaler;
    if (opt->reports) ampi_layout_report(opt, plan, &arena);
    if (plan->num_sparse) ampi_place_rows(opt, plan, &arena);
    for (k = 0; k < kinds; k++)
        for (i = 0; i < count; i++) ampi_place_array(opt, i, (ampi_array)k, &arena);
    *num_bytes = arena.used;
    return ampi_fail(arena.too_large ? AMP_ERROR_TOO_LARGE : AMP_OK);
}

/* Zeroed memory of a backend, aligned to 64 bytes; *block is what must be freed. */
static amp_result ampi_block_alloc(const amp_backend *b, const amp_allocator *a, size_t num_bytes,
                                   void **block, char **base) {
    if (b->functions->alloc_fn) {
        AMPI_TRY(b->functions->alloc_fn(b, num_bytes, block));
        *base = (char *)*block;
        return AMP_OK;
    }
    *block = ampi_allocate(a, num_bytes + 63);
    if (!*block) return AMP_ERROR_OUT_OF_MEMORY;
    memset(*block, 0, num_bytes + 63);
    *base = (char *)ampi_align(*block);
    return AMP_OK;
}

static void ampi_block_free(const amp_backend *b, const amp_allocator *a, void *block) {
    if (block && b->functions->free_fn) b->functions->free_fn(b, block);
    else ampi_release(a, block);
}

/* Copies num_bytes from backend memory to the host, after all work that is queued. */
static amp_result ampi_read_back(const amp_optimizer *opt, void *dst, const void *src,
                                 size_t num_bytes) {
    const amp_backend *b = &opt->backend;
    return ampi_captured(b->functions->copy_fn(b, dst, src, num_bytes, AMPI_TO_HOST));
}

static amp_result ampi_fill_chunks(const amp_optimizer *opt) {
    const amp_plan *plan = opt->plan;
    uint32_t        piece[AMPI_PIECE], own;
    uint64_t        c = 0, left;
    size_t          i, used = 0;
    for (own = 0; own < 2; own++)
        for (i = 0; i < plan->num_slots; i++) {
            left = plan->host_slots[i].own == own ? ampi_slot_chunks(opt, i) : 0;
            for (; left; left--) {
                piece[used++] = (uint32_t)i;
                c++;
                if (used < AMPI_PIECE && c < plan->num_chunks) continue;
                AMPI_TRY(ampi_send(&opt->backend, plan->chunk_slots + c - used, piece, 4 * used));
                used = 0;
            }
        }
    return AMP_OK;
}

/* Writes fp32 elements of src to a slot's master and model; if src is NULL, the master is made from
   the model. */
static amp_result ampi_write_on(const amp_backend *b, const ampi_slot *s, const void *src) {
    const size_t n = (size_t)s->n;
    if (ampi_is_encoded(&s->master))
        return b->functions->encode_fn(b, s->model, &s->master, src, n);
    if (!src) return ampi_cast_on(b, s->master.data, AMP_F32, s->model, s->model_type, n);
    if (s->master.data != src) AMPI_TRY(ampi_cast_on(b, s->master.data, AMP_F32, src, AMP_F32, n));
    return s->model ? ampi_cast_on(b, s->model, s->model_type, src, AMP_F32, n) : AMP_OK;
}

/* A weight that was copied, and that no step writes again, becomes NaN: code that goes on reading
   it, in place of the model, fails at once. */
static amp_result ampi_spoil_weight(const amp_backend *b, float *weight, size_t n) {
    uint32_t nan[AMPI_PIECE];
    size_t   i, done = ampi_min(n, AMPI_PIECE);
    for (i = 0; i < AMPI_PIECE; i++) nan[i] = 0x7fc00000u;
    AMPI_TRY(ampi_send(b, weight, nan, done * sizeof *nan));
    for (; done < n; done += i) {
        i = ampi_min(n - done, done);
        AMPI_TRY(ampi_cast_on(b, weight + done, AMP_F32, weight, AMP_F32, i));
    } /* wait: the caller may free it now */
    return b->functions->copy_fn(b, nan, weight, ampi_min(n, 1) * sizeof *nan, AMPI_TO_HOST);
}

/* Need a program not read the scale before a step, whatever it is? */
static int ampi_scale_is_elsewhere(const amp_optimizer *opt) {
    return opt->plan->shared || opt->desc.reduce_fn;
}

/* Copies the tables to where kernels read them. */
static AMPI_NOINLINE amp_result ampi_fill_tables(const amp_optimizer *opt, amp_plan *plan) {
    const amp_optimizer_desc *d = &opt->desc;
    const amp_backend        *b = &opt->backend;
    ampi_control              control;
    memset(&control, 0, sizeof control);
    control.clip_factor    = 1.0f;
    control.gate.inv_scale = 1.0f;
    control.beta1          = d->beta1;
    control.beta2          = d->beta2;
    control.rates.eps      = (float)d->eps;
    control.rates.momentum = (float)d->momentum;
    control.rates.max_norm = d->max_norm;
    control.nesterov       = d->nesterov != 0;
    control.seed           = d->seed;
    ampi_scaler_setup(&control.scaler, &d->scaler);
    if (ampi_scale_is_elsewhere(opt) || control.scaler.scale == 1.0f ||
        !ampi_is_zero(d->scaler.init_scale))
        plan->scale_use = AMPI_SCALE_KNOWN;
    AMPI_TRY(ampi_send(b, plan->table, plan->host_slots, plan->num_slots * sizeof *plan->table));
    AMPI_TRY(ampi_send(b, plan->sparse, plan->host_sparse,
                       plan->num_sparse * sizeof *plan->sparse));
    AMPI_TRY(ampi_fill_chunks(opt));
    return ampi_send(b, plan->control, &control, sizeof control);
}

/* A step in which no gradient is registered would look right and do nothing; one before a tensor's
   gradient has been given would leave that tensor out. */
static void ampi_count_grads(amp_plan *plan) {
    size_t i = plan->num_slots;
    plan->num_weights = plan->num_grads = plan->unbound = 0;
    while (i-- > 0) {
        const ampi_slot *s = &plan->host_slots[i];
        plan->num_weights += s->n != 0;
        plan->num_grads += s->n && (s->sparse ? s->values : s->grad);
        if (s->n && s->frozen > 1u) plan->unbound = i + 1;
    }
}

/* The memory of an array, which no other may share. An empty one begins and ends at 0. */
typedef struct ampi_range {
    uintptr_t begin, end;
    size_t    id; /* 3 times its tensor; and 0 of the weight, 1 of the model, 2 of the gradient */
} ampi_range;

/* Do no two arrays of a step overlap? The ranges are sorted by where they begin, each gap 5/11 of
   the one before (Gonnet's Shell sort): no memory is needed, and 100,000 tensors take a tenth of a
   second. Then each must begin behind the one before. */
static amp_result ampi_no_overlaps(const amp_optimizer *opt) {
    static const char *const what[] = {"weight", "model", "grad"};
    const char *name;
    ampi_range *r = opt->plan->ranges;
    size_t      n = 3 * opt->num_entries, gap = n, i, k;
    for (i = 0; i < n; i++) {
        const ampi_entry *e = ampi_entry_of(opt, i / 3);
        const amp_tensor *t = &e->tensor;
        const void *const model    = t->model == (void *)t->weight ? NULL : t->model;
        const void *const arrays[] = {t->weight, model, t->grad};
        const amp_dtype   types[]  = {AMP_F32, t->model_type, t->grad_type};
        const size_t      rows     = i % 3 == 2 ? e->rows.row_length * e->rows.max_rows : 0;
        const size_t      count    = rows ? rows : t->n;
        r[i].id    = i;
        r[i].begin = count ? (uintptr_t)arrays[i % 3] : 0;
        r[i].end   = r[i].begin ? r[i].begin + count * amp_dtype_size(types[i % 3]) : 0;
    }
    while (gap > 1) {
        gap = gap < 5 ? 1 : (5 * gap - 1) / 11;
        for (i = gap; i < n; i++) {
            const ampi_range x = r[i];
            for (k = i; k >= gap && r[k - gap].begin > x.begin; k -= gap) r[k] = r[k - gap];
            r[k] = x;
        }
    }
    for (i = 1; i < n; i++) {
        const size_t late  = r[i].id > r[i - 1].id ? r[i].id : r[i - 1].id; /* added later */
        const size_t early = r[i].id + r[i - 1].id - late;
        if (r[i].begin >= r[i - 1].end) continue;
        name = ampi_entry_of(opt, early / 3)->tensor.name;
        return ampi_of(opt, late / 3,
                       ampi_refuse(AMP_ERROR_OVERLAP,
                                   "its %s overlaps the %s of tensor %g%s%s%s: give each its own "
                                   "memory", what[late % 3], what[early % 3], (double)(early / 3),
                                   name ? " (" : "", name ? name : "", name ? ")" : ""));
    }
    return AMP_OK;
}

/* Allocates the host's tables, and fills in what is known before memory is laid out. */
static amp_result ampi_new_plan(amp_optimizer *opt) {
    const amp_optimizer_desc *d = &opt->desc;
    const size_t              n = opt->num_entries;
    size_t                    i, num_sparse = 0, room;
    amp_plan                 *plan;
    AMPI_REFUSE(n > SIZE_MAX / 4 / (2 * sizeof(ampi_slot) + 2048) || n > INT32_MAX, TOO_LARGE,
                "there are %g tensors, which are too many", (double)n);
    for (i = 0; i < n; i++) num_sparse += (size_t)ampi_has_rows(ampi_entry_of(opt, i));
    room = sizeof *plan + n * (sizeof(ampi_slot) + 3 * sizeof(ampi_range)) +
           num_sparse * sizeof(ampi_sparse) + (opt->reports ? ampi_report_room(n) : 0);
    plan = (amp_plan *)ampi_allocate(&d->allocator, room);
    if (!plan) return ampi_fail(AMP_ERROR_OUT_OF_MEMORY);
    memset(plan, 0, sizeof *plan);
    plan->host_slots  = (ampi_slot *)(void *)(plan + 1);
    plan->num_slots   = n;
    plan->host_sparse = (ampi_sparse *)(void *)(plan->host_slots + n);
    plan->ranges      = (ampi_range *)(void *)((char *)plan + room) - 3 * n;
    plan->num_sparse  = num_sparse;
    plan->kind        = d->kind;
    plan->zero_grad   = d->zero_grad;
    plan->shared      = d->shared_scaler != NULL;
    plan->reduces     = d->reduce_fn != NULL;
    opt->plan = plan;
    return AMP_OK;
}

/* Allocates backend memory, lays it out, and writes the tables. */
static amp_result ampi_allocate_plan(amp_optimizer *opt) {
    amp_plan  *plan = opt->plan;
    char      *base = NULL;
    size_t     num_bytes;
    amp_result result;
    AMPI_TRY(ampi_layout(opt, plan, NULL, &num_bytes));
    AMPI_TRY(ampi_captured(ampi_block_alloc(&opt->backend, &opt->desc.allocator, num_bytes,
                                                 &opt->backend_memory, &base)));
    AMPI_TRY(ampi_no_overlaps(opt));
    ampi_layout(opt, plan, base, &num_bytes);
    AMPI_IEEE(result = ampi_fill_tables(opt, plan)); /* configured numbers are rounded to float */
    ampi_count_grads(plan);
    return result;
}

/* Writes the first masters and models, also to arrays of the caller, when amp.h refuses nothing
   any more. A backend may still fail, so weights are spoiled after all have been read. */
static amp_result ampi_fill_tensors(const amp_optimizer *opt) {
    const amp_backend *b = &opt->backend;
    size_t             i;
    for (i = 0; i < opt->plan->num_slots; i++)
        AMPI_TRY(ampi_write_on(b, &opt->plan->host_slots[i], ampi_tensor(opt, (int)i)->weight));
    for (i = 0; i < opt->plan->num_slots; i++) {
        const amp_tensor *t = ampi_tensor(opt, (int)i);
        if (ampi_is_encoded(&opt->plan->host_slots[i].master) && t->weight)
            AMPI_TRY(ampi_spoil_weight(b, t->weight, t->n));
    }
    return AMP_OK;
}

/* Releases what prepare has allocated. */
static void ampi_release_plan(amp_optimizer *opt) {
    ampi_block_free(&opt->backend, &opt->desc.allocator, opt->backend_memory);
    ampi_release(&opt->desc.allocator, opt->plan);
    opt->backend_memory = NULL;
    opt->plan           = NULL;
}

AMP_DEF amp_result amp_optimizer_prepare(amp_optimizer *opt) {
    amp_scaler shared;
    amp_result result;
    AMPI_TRY(ampi_ready(opt, AMPI_ADDING));
    if (opt->refused.result != AMP_OK) return ampi_repeat(&opt->refused);
    if (opt->desc.shared_scaler) {
        AMPI_TRY(ampi_read_back(opt, &shared, opt->desc.shared_scaler, sizeof shared));
        AMPI_REFUSE(!ampi_is_initialized(&shared), NOT_INITIALIZED,
                    "desc.shared_scaler is not initialized: call amp_scaler_init");
    }
    AMPI_TRY(ampi_new_plan(opt));
    result = ampi_allocate_plan(opt);
    if (result == AMP_OK) result = ampi_captured(ampi_fill_tensors(opt));
    if (result != AMP_OK) ampi_release_plan(opt);
    else opt->pending.result = AMP_OK; /* from a begin_step before prepare */
    return result;
}

/* The slot of tensor i, or NULL if there is none (yet). */
static ampi_slot *ampi_slot_of(const amp_optimizer *opt, int i) {
    return ampi_tensor(opt, i) && opt->plan ? &opt->plan->host_slots[i] : NULL;
}

/* May these be new addresses of tensor i? NULL may. */
static amp_result ampi_can_bind(const amp_optimizer *opt, size_t i, const float *weight,
                                const void *grad) {
    const amp_tensor *t   = ampi_tensor(opt, (int)i);
    const char       *why = NULL;
    if (weight && !t->weight && !ampi_is_encoded(&opt->plan->host_slots[i].master))
        why = "its master is the optimizer's own: leave weight NULL here";
    else if (grad && grad != AMP_NO_GRAD && t->frozen)
        why = "it is frozen: leave grad NULL here, or add it unfrozen";
    return why ? ampi_of(opt, i, ampi_refuse(AMP_ERROR_UNSUPPORTED, "%s", why)) : AMP_OK;
}

static void ampi_bind_slots(ampi_slot *first, size_t count, float *const *weights,
                            void *const *grads) {
    size_t i;
    for (i = 0; i < count; i++)
        ampi_bind(&first[i], weights ? weights[i] : NULL, grads ? grads[i] : NULL);
}

/* Gives slots [first, first + count) new addresses, or none of them. */
static amp_result ampi_rebind(amp_optimizer *opt, size_t first, size_t count,
                              float *const *weights, void *const *grads) {
    amp_plan *plan;
    size_t    i;
    AMPI_TRY(ampi_ready(opt, AMPI_BETWEEN));
    plan = opt->plan;
    for (i = 0; i < count; i++)
        AMPI_TRY(ampi_can_bind(opt, first + i, weights ? weights[i] : NULL,
                               grads ? grads[i] : NULL));
    AMPI_TRY(ampi_captured(opt->backend.functions->bind_fn(&opt->backend, plan, first, count,
                                                                weights, grads)));
    for (i = 0; i < count; i++) { /* steps do not write a frozen tensor's copy */
        const ampi_slot *s = &plan->host_slots[first + i];
        const float     *w = weights ? weights[i] : NULL;
        if (s->frozen == 1u && s->model && w && w != s->master.data && !ampi_is_encoded(&s->master))
            AMPI_TRY(ampi_captured(ampi_cast_on(&opt->backend, s->model, s->model_type, w, AMP_F32,
                                                (size_t)s->n)));
    }
    ampi_bind_slots(plan->host_slots + first, count, weights, grads);
    ampi_count_grads(plan);
    return AMP_OK;
}

AMP_DEF amp_result amp_optimizer_rebind(amp_optimizer *opt, int i, float *weight, void *grad) {
    AMPI_TRY(ampi_tensor_ready(opt, i, AMPI_BETWEEN));
    return ampi_rebind(opt, (size_t)i, 1, weight ? &weight : NULL, &grad);
}

AMP_DEF amp_result amp_optimizer_rebind_all(amp_optimizer *opt, float *const *weights,
                                            void *const *grads) {
    return ampi_rebind(opt, 0, opt ? opt->num_entries : 0, weights, grads);
}

/* Writes model copies from masters, or from weights that rebind has brought instead. */
static amp_result ampi_write_models(const amp_optimizer *opt) {
    size_t i;
    for (i = 0; i < opt->plan->num_slots; i++) {
        ampi_slot  *s   = &opt->plan->host_slots[i];
        const void *src = ampi_is_encoded(&s->master) ? s->weight : s->master.data;
        if (src && s->model) AMPI_TRY(ampi_captured(ampi_write_on(&opt->backend, s, src)));
        s->weight = NULL;
    }
    return AMP_OK;
}

AMP_DEF amp_result amp_optimizer_refresh(amp_optimizer *opt) {
    size_t i;
    AMPI_TRY(ampi_ready(opt, AMPI_BETWEEN));
    for (i = 0; i < opt->plan->num_slots; i++) {
        const ampi_slot  *s = &opt->plan->host_slots[i];
        const amp_tensor *t = ampi_tensor(opt, (int)i);
        if (ampi_is_encoded(&s->master) && t->n && !s->weight)
            return ampi_of(opt, i, ampi_refuse(AMP_ERROR_BAD_STATE, "it has no fp32 master: bring "
                                               "its weights by amp_optimizer_rebind"));
    }
    return ampi_write_models(opt);
}

AMP_DEF const void *amp_optimizer_model(const amp_optimizer *opt, int i) {
    const ampi_slot *s = ampi_slot_of(opt, i);
    return !s ? NULL : s->model ? s->model : s->master.data;
}

AMP_DEF float *amp_optimizer_grad(const amp_optimizer *opt, int i) {
    const ampi_slot *s = ampi_slot_of(opt, i);
    return s && s->grad ? s->unscaled : NULL;
}

AMP_DEF float *amp_optimizer_master(const amp_optimizer *opt, int i) {
    const ampi_slot *s = ampi_slot_of(opt, i);
    return s && !ampi_is_encoded(&s->master) ? (float *)s->master.data : NULL;
}

AMP_DEF amp_scaler *amp_optimizer_scaler(const amp_optimizer *opt) {
    if (!opt || !opt->plan) return NULL;
    opt->plan->scale_use = AMPI_SCALE_POINTED;
    return opt->plan->scaler;
}

AMP_DEF const float *amp_optimizer_loss_scale_ptr(const amp_optimizer *opt) {
    const amp_scaler *s = amp_optimizer_scaler(opt);
    return s ? &s->scale : NULL;
}

AMP_DEF float amp_optimizer_loss_scale(const amp_optimizer *opt) {
    float scale = 0.0f;
    if (!opt || !opt->plan ||
        ampi_read_back(opt, &scale, &opt->plan->scaler->scale, sizeof scale) != AMP_OK)
        return 0.0f;
    if (opt->plan->scale_use != AMPI_SCALE_POINTED) opt->plan->scale_use = AMPI_SCALE_READ;
    return scale;
}

AMP_DEF const amp_gate *amp_optimizer_gate(const amp_optimizer *opt) {
    return opt && opt->plan ? &opt->plan->control->gate : NULL;
}

AMPI_COLD_END

/* ------------------------------------------------------------------- >>impl step
   How a gradient goes through a step on the CPU. (On a GPU kernels of amp_kernels.cu do what
   ampi_cpu_check and ampi_cpu_update do here; both call ampi_decide and ampi_publish.)
     amp_optimizer_step    ampi_fused_step: may it begin? The plan takes the learning rate
       check               ampi_cpu_check; a tensor: ampi_check_slot; 16384 elements:
                           ampi_check_chunk: finite? squares into 256 lanes, by the tier;
                           ampi_sum_chunks; then, with several ranks, reduce_fn
       decide              ampi_decide: norm, clip factor, gate, next scale
       update              ampi_cpu_update, ampi_update_slot, ampi_step_chunk: read again, unscale,
                           optimizer, master, model copy, by the tier
       publish             zero_grad; ampi_publish: the next scale is the scale
     With an optimizer of your own, begin_step is check, decide and an update that only unscales;
     end_step writes the model copies and publishes. If some tensors are own, end_step also
     updates all others. */

static amp_result ampi_cpu_copy(const amp_backend *self, void *dst, const void *src,
                                size_t num_bytes, ampi_copy direction) {
    (void)self;
    (void)direction;
    if (num_bytes) memcpy(dst, src, num_bytes);
    return AMP_OK;
}

static amp_result ampi_cpu_cast(const amp_backend *self, void *dst, amp_dtype dst_type,
                                const void *src, amp_dtype src_type, size_t n) {
    (void)self;
    return amp_cast(dst, dst_type, src, src_type, n);
}

static amp_result ampi_cpu_encode(const amp_backend *self, void *model, const ampi_stored *master,
                                  const void *src, size_t n) {
    const uint32_t fp = ampi_fp_begin();
    size_t         i;
    (void)self;
    for (i = 0; i < n; i++) ampi_encode_weight(model, master, src, i);
    ampi_fp_end(fp);
    return AMP_OK;
}

static amp_result ampi_cpu_bind(const amp_backend *self, const amp_plan *plan, size_t first,
                                size_t count, float *const *weights, void *const *grads) {
    (void)self;
    ampi_bind_slots(plan->table + first, count, weights, grads);
    return AMP_OK;
}

/* For a chunk that needs care: elements that are not finite are counted and add nothing to the
   sum; magnitudes are rescaled before they are squared. */
static double ampi_check_careful(const void *x, amp_dtype type, size_t n, float rescale,
                                 amp_grad_stats *stats) {
    float    lanes[AMPI_LANES] = {0};
    uint32_t max = 0;
    size_t   i;
    memset(stats, 0, sizeof *stats);
    for (i = 0; i < n; i++) {
        const uint32_t a = ampi_load(x, type, i) & 0x7fffffffu;
        if (ampi_nonfinite(a)) {
            if (stats->nonfinite++ == 0) stats->first_nonfinite = i;
            stats->nan += a > AMPI_F32_INF;
        } else {
            const float t = ampi_mul(ampi_f32_from_bits(a), rescale);
            float      *lane = &lanes[i % AMPI_LANES];
            *lane            = ampi_add(*lane, ampi_mul(t, t));
            max              = a > max ? a : max;
            stats->zeros += a == 0;
        }
    }
    ampi_store_u32(&stats->max_finite, 0, max);
    return (double)ampi_loops_now()->fold(lanes);
}

/* Statistics and sum of squares of a chunk, in the canonical order. */
static AMPI_NOINLINE double ampi_check_chunk(const void *x, amp_dtype type, size_t n,
                                             amp_grad_stats *stats) {
    float    room[AMPI_LANES + 16] = {0}, sum, rescale;
    float   *lanes = room + ampi_head(room, sizeof *room, 16);
    double   back;
    uint32_t max;
    size_t   zeros = 0;
    memset(stats, 0, sizeof *stats);
    max          = ampi_loops_now()->scan(x, type, 0, n, lanes, &zeros);
    stats->zeros = zeros;
    ampi_store_u32(&stats->max_finite, 0, max);
    sum = ampi_loops_now()->fold(lanes);
    if (ampi_nonfinite(max)) {
        sum = (float)ampi_check_careful(x, type, n, 1.0f, stats);
        max = ampi_load_u32(&stats->max_finite, 0);
    }
    if (!ampi_sums_again(sum, max, &rescale, &back)) return (double)sum;
    return ampi_mul64(ampi_check_careful(x, type, n, rescale, stats), back);
}

static double ampi_sum_chunks(const amp_plan *plan) {
    double   lanes[AMPI_LANES] = {0};
    uint64_t i;
    size_t   l, pair;
    for (i = 0; i < plan->num_chunks; i++) {
        l        = (size_t)(i % AMPI_LANES);
        lanes[l] = ampi_add64(lanes[l], plan->sums[i]);
    }
    for (pair = AMPI_LANES / 2; pair; pair /= 2)
        for (l = 0; l < pair; l++) lanes[l] = ampi_add64(lanes[l], lanes[l + pair]);
    return lanes[0];
}

/* The number of chunks from which on threads share a tensor. On a Zen 4 (two cores of a virtual
   machine), in its cache, one thread takes 11.5 us a chunk. Two that wait actively take .78 of
   its time for two chunks, .71 for four, .61 for eight. To wake one that sleeps takes 100 us and
   more there, which neither two nor eight chunks are worth. */
enum { AMPI_SHARED = 4 };

/* Checks one tensor, chunk by chunk. Threads may share the chunks, since no result depends on who
   does which. Every thread sets its own floating-point environment. */
static void ampi_check_slot(const amp_plan *plan, ampi_slot *slot, ampi_histogram *histogram) {
    const amp_dtype type    = slot->grad_type;
    double       *sums      = plan->sums + slot->first_sum;
    const int64_t chunks    = slot->grad ? (int64_t)ampi_chunks(slot->n) : 0;
    uint64_t      nonfinite = 0, nan = 0, zeros = 0, first = slot->n;
    uint32_t      largest = 0;
    int64_t       c;
    AMPI_OPENMP(omp parallel for schedule(static) if (chunks >= AMPI_SHARED)
                reduction(max : largest) reduction(min : first)
                reduction(+ : nonfinite, nan, zeros))
    for (c = 0; c < chunks; c++) {
        const size_t   i  = (size_t)c * AMPI_CHUNK, n = ampi_min((size_t)slot->n - i, AMPI_CHUNK);
        const void    *x  = ampi_at(slot->grad, type, i);
        uint32_t       max;
        amp_grad_stats seen;
        AMPI_IEEE(sums[c] = ampi_check_chunk(x, type, n, &seen));
        if (histogram) AMPI_IEEE(ampi_sample_grads(histogram, x, type, n));
        max = ampi_load_u32(&seen.max_finite, 0);
        if (seen.nonfinite && i + seen.first_nonfinite < first) first = i + seen.first_nonfinite;
        if (max > largest) largest = max;
        nonfinite += seen.nonfinite;
        nan += seen.nan;
        zeros += seen.zeros;
    }
    slot->stats.nonfinite       = nonfinite;
    slot->stats.nan             = nan;
    slot->stats.zeros           = zeros;
    slot->stats.first_nonfinite = first;
    ampi_store_u32(&slot->stats.max_finite, 0, largest);
}

static amp_result ampi_cpu_check(const amp_backend *self, const amp_plan *plan) {
    const uint32_t fp      = ampi_fp_begin();
    const int      samples = ampi_samples(plan);
    uint32_t       largest = 0, bad = 0;
    size_t         t;
    (void)self;
    memset(plan->sums, 0, (size_t)plan->num_chunks * sizeof *plan->sums);
    for (t = 0; t < plan->num_slots; t++) {
        ampi_slot *slot = &plan->table[t];
        uint32_t   max;
        if (slot->sparse) ampi_sum_rows(plan, slot);
        ampi_check_slot(plan, slot,
                        samples ? ampi_histogram_of(plan, ~plan->record->which, t) : NULL);
        max = ampi_load_u32(&slot->stats.max_finite, 0);
        if (max > largest) largest = max;
        if (!slot->stats.nonfinite && !slot->stats.bad_row) continue;
        if (plan->record) {
            ampi_count_overflow(plan, t, slot->stats.nan);
            if (!bad) plan->record->bad = (uint32_t)(plan->num_slots - t);
        }
        bad |= slot->stats.bad_row ? (uint32_t)AMPI_BAD_ROW : 1u;
    }
    plan->control->norm2     = ampi_sum_chunks(plan);
    plan->control->maxima[0] = bad | ampi_found_by_user(plan);
    plan->control->maxima[1] = largest;
    if (!plan->reduces) ampi_decide(plan);
    ampi_fp_end(fp);
    return AMP_OK;
}

/* Updates elements [i, i + n) of a tensor by its gradient's elements from `from` on, which are
   read once and unscaled on the way. Each call of step has one key of random bits. */
static AMPI_NOINLINE void ampi_step_chunk(const amp_plan *plan, const ampi_slot *slot, size_t i,
                                          size_t from, size_t n) {
    const ampi_control *c    = plan->control;
    const uint64_t      at   = slot->first + i;
    const uint64_t      rest = AMPI_PER_KEY - at % AMPI_PER_KEY;
    const size_t        here = n < rest ? n : (size_t)rest;
    ampi_arrays         x;
    x.rates      = ampi_rates_of(c, slot);
    x.factor     = c->gate.inv_scale;
    x.kind       = plan->kind;
    x.grad_type  = slot->grad_type;
    x.model_type = slot->model_type;
    x.grad       = slot->grad;
    x.model      = slot->model;
    x.master     = slot->master;
    x.moment[0]  = slot->moment[0];
    x.moment[1]  = slot->moment[1];
    x.element    = (uint32_t)slot->first;
    x.f16_overflows = &plan->control->f16_overflows;
    memset(&x.key, 0, sizeof x.key);
    if (plan->stochastic) x.key = ampi_random_key(c->seed, slot->key, c->gate.step, at);
    ampi_forward_all(&x, i);
    x.grad = ampi_at(slot->grad, x.grad_type, from);
    ampi_loops_now()->step(&x, 0, here);
    if (here < n) ampi_step_chunk(plan, slot, i + here, from + here, n - here);
}

static void ampi_update_chunk(const amp_plan *plan, const ampi_slot *s, ampi_job job, size_t i,
                              size_t n) {
    const void *master = ampi_at(s->master.data, AMP_F32, i);
    void       *model  = ampi_to(s->model, s->model_type, i);
    uint32_t    over   = 0;
    switch (job) {
    case AMPI_JOB_DECIDE: break; /* has no chunks */
    case AMPI_JOB_FUSED: ampi_step_chunk(plan, s, i, i, n); break;
    case AMPI_JOB_PUBLISH: /* else models are written with masters */
        if (ampi_is_encoded(&s->master)) break;
        if (s->model_type != AMP_F16) {
            ampi_cast(model, s->model_type, master, AMP_F32, n);
        } else {
            ampi_loops_now()->convert(model, AMP_F16, master, AMP_F32, 0, n, &over);
            if (over >> 31) ampi_count_overflows(&plan->control->f16_overflows, master, n);
        }
        break;
    case AMPI_JOB_UNSCALE:
        ampi_loops_now()->unscale(ampi_to(s->unscaled, AMP_F32, i),
                                  ampi_at(s->grad, s->grad_type, i), s->grad_type, 0, n,
                                  plan->control->gate.inv_scale);
        break;
    }
}

static void ampi_update_slot(const amp_plan *plan, const ampi_slot *slot, ampi_job job,
                             ampi_histogram *histogram) {
    const int64_t chunks = (int64_t)ampi_chunks(slot->n);
    int64_t       c;
    AMPI_OPENMP(omp parallel for schedule(static) if (chunks >= AMPI_SHARED))
    for (c = 0; c < chunks; c++) {
        const size_t i = (size_t)c * AMPI_CHUNK, n = ampi_min((size_t)slot->n - i, AMPI_CHUNK);
        if (histogram) AMPI_IEEE(ampi_sample_weights(plan, slot, job, i, n, histogram));
        else AMPI_IEEE(ampi_update_chunk(plan, slot, job, i, n));
    }
}

static amp_result ampi_cpu_update(const amp_backend *self, const amp_plan *plan, ampi_job job) {
    const uint32_t fp    = ampi_fp_begin();
    const int      moves = job != AMPI_JOB_DECIDE && !plan->control->gate.skip;
    const int      ends  = job == AMPI_JOB_FUSED || job == AMPI_JOB_PUBLISH;
    const int      watch = ends && ampi_sampled(plan);
    size_t         t;
    (void)self;
    if (job == AMPI_JOB_DECIDE) ampi_decide(plan);
    for (t = 0; t < plan->num_slots; t++) {
        const ampi_slot *slot   = &plan->table[t];
        const ampi_job   its    = ends && slot->own ? AMPI_JOB_PUBLISH : job;
        const int        counts = watch && ampi_counts_updates(slot);
        const void      *needs  = its == AMPI_JOB_PUBLISH && !counts ? slot->model : slot->grad;
        if (slot->frozen || (job == AMPI_JOB_UNSCALE && !slot->unscaled)) continue;
        if (moves && slot->sparse) ampi_update_rows(plan, slot);
        else if (moves && needs)
            ampi_update_slot(plan, slot, its,
                             counts ? ampi_histogram_of(plan, plan->record->which, t) : NULL);
        if (ends && plan->zero_grad && slot->sparse) *slot->sparse->num_rows = 0;
        else if (ends && plan->zero_grad && slot->grad && slot->n)
            memset(slot->grad, 0, (size_t)slot->n * amp_dtype_size(slot->grad_type));
    }
    if (watch) /* for the next sample */
        memset(ampi_histogram_of(plan, ~plan->record->which, 0), 0,
               plan->num_slots * sizeof *plan->histograms);
    if (ends) ampi_publish(plan);
    ampi_fp_end(fp);
    return AMP_OK;
}

static amp_result ampi_cpu_gemm(const amp_backend *self, const amp_gemm_args *g); /* >>impl gemm */

static const ampi_functions ampi_cpu_functions = {
    NULL, NULL, ampi_cpu_copy, ampi_cpu_cast, ampi_cpu_encode, NULL, NULL, ampi_cpu_bind,
    ampi_cpu_check, ampi_cpu_update, ampi_cpu_gemm};

AMP_DEF amp_result amp_cpu_backend(amp_backend *backend) {
    if (!backend) return ampi_missing("backend");
    memset(backend, 0, sizeof *backend);
    backend->functions = &ampi_cpu_functions;
    return AMP_OK;
}

/* Decodes elements of a moment. */
static AMPI_NOINLINE void ampi_decode_moment(const ampi_stored *m, int second, float *to,
                                             size_t n) {
    const uint8_t *code = (const uint8_t *)m->data;
    size_t         i;
    if (m->format != AMP_FORMAT_8BIT) {
        ampi_cast(to, AMP_F32, m->data, m->format == AMP_FORMAT_BF16 ? AMP_BF16 : AMP_F32, n);
        return;
    }
    for (i = 0; i < n; i++) {
        const float up = ampi_up_of(m->scale[i / AMPI_GROUP]);
        ampi_store_f32(to, i, ampi_decode(code[i], up, second));
    }
}

/* Encodes elements of a moment. In 8 bits, false: they are not what such a moment decodes to. The
   largest may have been rounded up or down, past where the exponent changes; a code is rounded up
   as far as can be, since the last one is of no number below the limit, and others are exact. */
static AMPI_NOINLINE int ampi_encode_moment(const ampi_stored *m, int second, const float *from,
                                            size_t n) {
    uint8_t *code = (uint8_t *)m->data;
    size_t   i, end;
    if (m->format != AMP_FORMAT_8BIT) {
        ampi_cast(m->data, m->format == AMP_FORMAT_BF16 ? AMP_BF16 : AMP_F32, from, AMP_F32, n);
        return 1;
    }
    for (i = 0; i < n; i = end) {
        uint32_t most = 0, same = 0, e, k;
        size_t   at;
        end = ampi_min(n, i + AMPI_GROUP);
        for (at = i; at < end; at++) most = ampi_most(most, ampi_load_u32(from, at) & 0x7fffffffu);
        for (k = 0; k < 3 && !same; k++) { /* its exponent, the next, the one before */
            e    = ampi_exponent_of(most);
            e    = e == 255u ? e : ampi_most(e + (k == 1u) - (k == 2u), 1u);
            same = 1;
            m->scale[i / AMPI_GROUP] = (uint8_t)e;
            for (at = i; at < end; at++) {
                const float    x = ampi_load_f32(from, at);
                const float    up = ampi_up_of(e), down = ampi_down_of(e);
                const uint32_t u = ampi_load_u32(from, at);
                code[at] = (uint8_t)(u ? ampi_encode(x, down, 0xffffu, second) : 0u);
                same &= u == ampi_bits_of_f32(ampi_decode(code[at], up, second));
            }
        }
        if (!same) return 0;
    }
    return 1;
}

AMPI_COLD_BEGIN

/* Does one job of a step, on all tensors. */
static amp_result ampi_run_job(const amp_optimizer *opt, ampi_job job) {
    const amp_backend *b = &opt->backend;
    return ampi_fail(b->functions->update_fn(b, opt->plan, job));
}

/* May a step of this kind begin? */
static amp_result ampi_can_step(const amp_optimizer *opt, int fused) {
    const amp_plan *plan = opt->plan;
    const int       own  = plan->owns || opt->desc.kind == AMP_KIND_OWN;
    if (fused == own)
        return ampi_refuse(
            AMP_ERROR_UNSUPPORTED, "desc.kind is %s%s: call %s",
            ampi_optimizers[opt->desc.kind].kind,
            plan->owns ? ", and some tensors are own" : "",
            !own ? "amp_optimizer_step, or set AMP_KIND_OWN, or amp_tensor.own"
            : plan->owns ? "amp_optimizer_set_lr, amp_optimizer_begin_step and _end_step"
                         : "amp_optimizer_begin_step, or set AMP_KIND_ADAMW, _SGD or _LION");
    if (plan->unbound)
        return ampi_of(opt, plan->unbound - 1,
                       ampi_refuse(AMP_ERROR_BAD_STATE,
                                   "its gradient was never given: set amp_tensor.grad, call "
                                   "amp_optimizer_rebind before the step, or set frozen"));
    AMPI_REFUSE(!plan->reduces && plan->num_weights && !plan->num_grads, BAD_STATE,
                "no tensor has a gradient: each is frozen, or was given AMP_NO_GRAD: bring one by "
                "amp_optimizer_rebind");
    return AMP_OK;
}

/* Ranks reduce what their checks have found. A rank whose step is refused has found nothing, and
   asks all to skip. */
static amp_result ampi_reduce_ranks(const amp_optimizer *opt, int refused) {
    static const struct { double norm2; uint32_t maxima[2]; } skip = {0.0, {AMP_ASK_SKIP, 0}};
    amp_plan     *plan = opt->plan;
    ampi_control *c    = plan->control;
    amp_result    result;
    if (refused) {
        ampi_send(&opt->backend, &c->norm2, &skip.norm2, sizeof skip.norm2);
        ampi_send(&opt->backend, c->maxima, skip.maxima, sizeof skip.maxima);
    }
    plan->summed = !refused;
    result       = opt->desc.reduce_fn(opt->desc.reduce_user, &c->norm2, 1, c->maxima, 2);
    plan->summed = 0;
    return result;
}

/* A check, if this rank may step (result); ranks reduce in the middle. A trainer that has never
   read the loss scale has not multiplied by it; its steps would be 1 / scale of the right size. */
static amp_result ampi_check_all(const amp_optimizer *opt, amp_result result) {
    const amp_backend *b    = &opt->backend;
    const amp_plan    *plan = opt->plan;
    if (result == AMP_OK && !plan->scale_use && plan->num_weights)
        result = ampi_refuse(AMP_ERROR_BAD_STATE,
                             "the loss was not scaled: multiply it by amp_optimizer_loss_scale, or "
                             "set desc.scaler.preset to AMP_PRESET_NONE");
    if (result == AMP_OK) result = ampi_fail(b->functions->check_fn(b, plan));
    if (!plan->reduces) return result;
    if (result != AMP_OK) {
        const ampi_error e = ampi_last_error.error; /* reduce_fn may make others */
        ampi_reduce_ranks(opt, 1);
        return ampi_repeat(&e);
    }
    result = ampi_reduce_ranks(opt, 0);
    if (result != AMP_OK)
        return ampi_refuse(result, "desc.reduce_fn returned: %s", amp_result_string(result));
    return ampi_run_job(opt, AMPI_JOB_DECIDE);
}

AMP_DEF const double *amp_optimizer_chunk_sums(const amp_optimizer *opt, size_t *n) {
    const int there = opt && opt->plan && opt->plan->summed;
    if (n) *n = there ? (size_t)opt->plan->num_chunks : 0;
    return there ? opt->plan->sums : NULL;
}

/* Are all tensors' rates finite? (Where a file has brought what is not, steps go on.) */
static AMPI_NOINLINE amp_result ampi_rates_ok(const amp_optimizer *opt, const float *lr) {
    size_t i;
    if (!ampi_f32_in(lr)) return ampi_out("lr", (double)*lr, "0 or more, and finite");
    for (i = 0; i < opt->plan->num_slots; i++) {
        const ampi_slot *s    = &opt->plan->host_slots[i];
        const float      rate = *lr * s->lr_scale; /* rounded: s390x computes in doubles */
        if (ampi_nonfinite(ampi_bits_of_f32(rate * s->weight_decay)) && /* inf * 0 is NaN */
            !ampi_nonfinite(ampi_load_u32(&s->lr_scale, 0)) &&
            !ampi_nonfinite(ampi_load_u32(&s->weight_decay, 0)))
            return ampi_of(opt, i, ampi_refuse(AMP_ERROR_INVALID_CONFIG, "with an lr of %g, lr * "
                           "lr_scale, or that * weight_decay, is not finite", (double)*lr));
    }
    return AMP_OK;
}

static amp_result ampi_check_rate(const amp_optimizer *opt, const float *lr) {
    amp_result result;
    AMPI_IEEE(result = ampi_rates_ok(opt, lr));
    return result;
}

/* May tensors of a fused kind be updated? NULL: with the learning rate in backend memory. After
   amp_optimizer_set_steps AdamW's steps from moments of 0 would be wrong and look right. */
static amp_result ampi_can_update(const amp_optimizer *opt, const float *lr) {
    size_t i;
    for (i = 0; i < opt->num_entries; i++)
        if (opt->plan->host_slots[i].moments_missing)
            return ampi_of(opt, i, ampi_refuse(AMP_ERROR_BAD_STATE,
                                               "after amp_optimizer_set_steps its moments were not "
                                               "set: call amp_optimizer_set_moments, or load"));
    if (lr) return ampi_check_rate(opt, lr);
    if (opt->plan->has_lr) return AMP_OK;
    return ampi_refuse(AMP_ERROR_BAD_STATE,
                       "there is no learning rate yet: call amp_optimizer_set_lr");
}

AMP_DEF amp_result amp_optimizer_check(amp_optimizer *opt) {
    amp_result result;
    AMPI_TRY(ampi_ready(opt, AMPI_BETWEEN));
    result = ampi_can_step(opt, 0);
    if (result == AMP_OK && opt->plan->owns) result = ampi_can_update(opt, NULL);
    AMPI_TRY(ampi_check_all(opt, result));
    opt->step_open      = 1;
    opt->pending.result = AMP_OK;
    return AMP_OK;
}

AMP_DEF amp_result amp_optimizer_unscale(amp_optimizer *opt) {
    AMPI_TRY(ampi_ready(opt, AMPI_WITHIN));
    /* in place, gradients would be divided again */
    AMPI_REFUSE(opt->step_open > 1, BAD_STATE, "the gradients of this step are unscaled already: "
                "call amp_optimizer_unscale once after amp_optimizer_check");
    AMPI_TRY(ampi_run_job(opt, AMPI_JOB_UNSCALE));
    opt->step_open = 2;
    return AMP_OK;
}

AMP_DEF bool amp_optimizer_begin_step(amp_optimizer *opt) {
    uint32_t   skip   = 0;
    amp_result result = ampi_rebind(opt, 0, 0, NULL, NULL); /* refuses a capture */
    if (result == AMP_OK) result = amp_optimizer_check(opt);
    if (result == AMP_OK) {
        result = amp_optimizer_unscale(opt);
        if (result == AMP_OK)
            result = ampi_read_back(opt, &skip, &opt->plan->control->gate.skip, sizeof skip);
        if (result != AMP_OK) opt->step_open = 0;
    }
    if (opt && result != AMP_OK) opt->pending = ampi_last_error.error;
    return result == AMP_OK && skip == 0u;
}

AMP_DEF amp_result amp_optimizer_end_step(amp_optimizer *opt) {
    ampi_error pending;
    if (!opt || !opt->initialized) return ampi_ready(opt, AMPI_WITHIN);
    pending             = opt->pending;
    opt->pending.result = AMP_OK;
    if (opt->step_open)
        AMPI_TRY(ampi_run_job(opt, opt->plan->owns ? AMPI_JOB_FUSED : AMPI_JOB_PUBLISH));
    else if (pending.result == AMP_OK) return ampi_ready(opt, AMPI_WITHIN);
    opt->step_open = 0;
    return pending.result == AMP_OK ? AMP_OK : ampi_repeat(&pending);
}

/* lr is passed in the plan, to the end of the check; NULL: the one in backend memory. */
static amp_result ampi_fused_step(amp_optimizer *opt, const float *lr) {
    amp_plan  *plan;
    amp_result result;
    AMPI_TRY(ampi_ready(opt, AMPI_BETWEEN));
    plan   = opt->plan;
    result = ampi_can_step(opt, 1);
    if (result == AMP_OK) result = ampi_can_update(opt, lr);
    if (result == AMP_OK) plan->new_lr = lr != NULL;
    if (result == AMP_OK && lr) memcpy(&plan->lr, lr, sizeof *lr);
    AMPI_TRY(ampi_check_all(opt, result));
    plan->has_lr = 1;
    return ampi_run_job(opt, AMPI_JOB_FUSED);
}

AMP_DEF amp_result amp_optimizer_step(amp_optimizer *opt, float lr) {
    return ampi_fused_step(opt, &lr);
}

AMP_DEF amp_result amp_optimizer_step_graph(amp_optimizer *opt) {
    return ampi_fused_step(opt, NULL);
}

AMP_DEF amp_result amp_optimizer_set_lr(amp_optimizer *opt, float lr) {
    AMPI_TRY(ampi_ready(opt, AMPI_PREPARED));
    AMPI_TRY(ampi_check_rate(opt, &lr));
    AMPI_TRY(ampi_send(&opt->backend, &opt->plan->control->rates.lr, &lr, sizeof lr));
    opt->plan->has_lr = 1;
    return AMP_OK;
}

AMP_DEF float *amp_optimizer_lr_ptr(amp_optimizer *opt) {
    if (!opt || !opt->plan) return NULL;
    opt->plan->has_lr = 1; /* the caller is going to write one */
    return &opt->plan->control->rates.lr;
}

AMP_DEF amp_result amp_optimizer_status(const amp_optimizer *opt, amp_status *status) {
    ampi_control c;
    amp_scaler   s;
    AMPI_TRY(ampi_ready(opt, AMPI_PREPARED));
    if (!status) return ampi_missing("status");
    AMPI_TRY(ampi_read_back(opt, &c, opt->plan->control, sizeof c));
    AMPI_TRY(ampi_read_back(opt, &s, opt->plan->scaler, sizeof s));
    status->norm        = c.norm;
    status->clip_factor = c.clip_factor;
    status->loss_scale  = s.scale;
    status->did_step    = c.did_step;
    status->found_inf   = c.found_inf;
    status->stuck       = ampi_stuck(&c, &s);
    status->steps       = c.gate.step;
    status->skipped     = c.skipped;
    status->skipped_in_a_row = c.skipped_in_a_row;
    status->missed_updates = c.missed_updates;
    status->f16_overflows  = c.f16_overflows;
    return AMP_OK;
}

/* Turns an element of the sums of rows into that of the tensor. */
static amp_result ampi_place_in_tensor(const amp_optimizer *opt, int i, amp_grad_stats *stats) {
    const ampi_slot *s = &opt->plan->host_slots[i];
    if (!stats->nonfinite) stats->first_nonfinite = ampi_tensor(opt, i)->n;
    return stats->nonfinite && s->sparse ? ampi_place_in_rows(opt, i, stats) : AMP_OK;
}

AMP_DEF amp_result amp_optimizer_stats(const amp_optimizer *opt, int i, amp_grad_stats *stats) {
    AMPI_TRY(ampi_tensor_ready(opt, i, AMPI_PREPARED));
    if (!stats) return ampi_missing("stats");
    AMPI_TRY(ampi_read_back(opt, stats, &opt->plan->table[i].stats, sizeof *stats));
    return ampi_place_in_tensor(opt, i, stats);
}

/* Copies a moment to the host, or from it, or (ask) asks whether that can be; the other pointer is
   NULL. If both are, there is nothing to do. */
static amp_result ampi_copy_moment(const amp_optimizer *opt, const ampi_slot *slot, int second,
                                   float *to, const float *from, int ask) {
    const amp_backend *b = &opt->backend;
    const ampi_stored *m = &slot->moment[second];
    unsigned char      bytes[4 * AMPI_PIECE];
    uint8_t            scale[AMPI_PIECE / (int)AMPI_GROUP];
    ampi_stored        here = *m;
    size_t             i, n, groups;
    int                exact;
    here.data  = bytes;
    here.scale = scale;
    for (i = 0; (to || from) && i < slot->n; i += n) {
        char *const    there  = (char *)m->data + i * m->size;
        uint8_t *const scales = m->scale ? m->scale + i / AMPI_GROUP : NULL;
        n      = ampi_min((size_t)slot->n - i, AMPI_PIECE);
        groups = m->scale ? ampi_groups(n) : 0;
        if (to) {
            AMPI_TRY(ampi_read_back(opt, bytes, there, n * m->size));
            if (groups) AMPI_TRY(ampi_read_back(opt, scale, scales, groups));
            AMPI_IEEE(ampi_decode_moment(&here, second, to + i, n));
            continue;
        }
        AMPI_IEEE(exact = ampi_encode_moment(&here, second, from + i, n));
        AMPI_REFUSE(!exact, UNSUPPORTED, "moments of 8 bits are set to what amp_optimizer_moments "
                    "gave; these are others: load a state");
        if (ask) continue;
        AMPI_TRY(ampi_send(b, there, bytes, n * m->size));
        AMPI_TRY(ampi_send(b, scales, scale, groups));
    }
    return AMP_OK;
}

/* Can a moment be set to these numbers, at this step? */
static amp_result ampi_moment_ok(const amp_optimizer *opt, const ampi_slot *slot, int second,
                                 const float *from, uint64_t step) {
    const int zero = from && slot->moment[1].data && !step;
    size_t    i;
    for (i = 0; zero && i < slot->n; i++)
        AMPI_REFUSE(ampi_load_u32(from, i) << 1, INVALID_CONFIG,
                    "these moments are of no step: call amp_optimizer_set_steps before");
    return ampi_copy_moment(opt, slot, second, NULL, from, 1);
}

/* May both moments be read, or (set) written? */
static amp_result ampi_moments_ok(const amp_optimizer *opt, int i, int set, const float *first,
                                  const float *second) {
    const ampi_slot   *s     = &opt->plan->host_slots[i];
    const ampi_stored *m     = s->moment;
    const int          needs = set && s->n;
    const int          none  = (first && !m[0].data) || (second && !m[1].data);
    amp_result         result = AMP_OK;
    if (none) result = ampi_refuse(AMP_ERROR_UNSUPPORTED, "it has no such moment: it is frozen, "
                                                          "own, or of another desc.kind");
    else if (needs && m[0].data && !first) result = ampi_missing("first");
    else if (needs && m[1].data && !second) result = ampi_missing("second");
    return ampi_of(opt, (size_t)i, result);
}

AMP_DEF amp_result amp_optimizer_moments(const amp_optimizer *opt, int i, float *first,
                                         float *second) {
    AMPI_TRY(ampi_tensor_ready(opt, i, AMPI_PREPARED));
    AMPI_TRY(ampi_moments_ok(opt, i, 0, first, second));
    AMPI_TRY(ampi_copy_moment(opt, ampi_slot_of(opt, i), 0, first, NULL, 0));
    return ampi_copy_moment(opt, ampi_slot_of(opt, i), 1, second, NULL, 0);
}

AMP_DEF amp_result amp_optimizer_set_moments(amp_optimizer *opt, int i, const float *first,
                                             const float *second) {
    ampi_slot *slot;
    amp_gate   gate;
    amp_result result;
    AMPI_TRY(ampi_tensor_ready(opt, i, AMPI_BETWEEN));
    AMPI_TRY(ampi_moments_ok(opt, i, 1, first, second));
    /* fails during a capture, into which a copy of few bytes would go */
    AMPI_TRY(ampi_read_back(opt, &gate, &opt->plan->control->gate, sizeof gate));
    slot   = &opt->plan->host_slots[i];
    result = ampi_moment_ok(opt, slot, 0, first, gate.step);
    if (result == AMP_OK) result = ampi_moment_ok(opt, slot, 1, second, gate.step);
    AMPI_TRY(ampi_of(opt, (size_t)i, result));
    AMPI_TRY(ampi_copy_moment(opt, slot, 0, NULL, first, 0));
    AMPI_TRY(ampi_copy_moment(opt, slot, 1, NULL, second, 0));
    slot->moments_missing = 0;
    return AMP_OK;
}

AMP_DEF amp_result amp_optimizer_set_steps(amp_optimizer *opt, uint64_t steps, uint64_t skipped) {
    ampi_control c, *there;
    size_t       i;
    char         room[AMPI_DECIMALS];
    AMPI_TRY(ampi_ready(opt, AMPI_BETWEEN));
    if ((steps | skipped) > UINT64_MAX / 2)
        return ampi_refuse(AMP_ERROR_INVALID_CONFIG, "%s is %s, and must be less than 2^63",
                           steps > UINT64_MAX / 2 ? "steps" : "skipped",
                           ampi_digits(room, steps > UINT64_MAX / 2 ? steps : skipped));
    there = opt->plan->control;
    AMPI_TRY(ampi_read_back(opt, &c, there, sizeof c));
    for (i = 0; i < opt->plan->num_slots; i++) {
        ampi_slot *slot = &opt->plan->host_slots[i];
        slot->moments_missing = (steps || c.gate.step) && slot->n && slot->moment[1].data;
    }
    c.gate.step        = steps;
    c.skipped          = skipped;
    c.skipped_in_a_row = 0;
    AMPI_TRY(ampi_send(&opt->backend, there, &c, sizeof c));
    if (!opt->plan->record) return AMP_OK;
    ampi_clear_history(opt->plan);
    return ampi_send_history(opt);
}

AMP_DEF void amp_optimizer_free(amp_optimizer *opt) {
    if (!opt || !opt->initialized) return;
    ampi_release_plan(opt);
    ampi_release(&opt->desc.allocator, opt->entries);
    memset(opt, 0, sizeof *opt);
}

AMPI_COLD_END

/* ------------------------------------------------------------------ >>impl state
   header    "AMPSTATE", u32 version, u32 flags, u64 bytes of the body, u64 sum of these 24 bytes
   body      kind, tensors; scaler; control; each tensor's size, storage, options and name; with
             AMPI_FILE_SEED desc.seed, with _REPORT a report (ampi_archive_report); then each
             tensor's masters, in fp32, and moments as they are stored
   trailer   u64 sum of the body

   All is little-endian. Numbers of a body take eight bytes; names and arrays are padded to eight.
   A sum takes eight bytes at a time: h = (h ^ x) * odd, then h ^= h >> 32. Both can be undone, so
   that no change within eight bytes goes unseen. */

enum { AMPI_STATE_NAME = 96 }; /* of a name, as much as messages show */
enum { AMPI_FILE_REPORT = 1, AMPI_FILE_SEED = 2, AMPI_FILE_FLAGS = 3 };
enum { AMPI_STATE_VERSION = 1, AMPI_STATE_HEADER = 32, AMPI_STATE_BLOCK = 1 << 18 };
AMPI_STATIC_ASSERT(ampi_sums_take_eight_bytes, AMPI_STATE_BLOCK % 8 == 0);

/* What is saved besides masters and moments; control has the scaler, also a shared one. */
typedef struct ampi_state {
    ampi_control control;
    uint32_t     has_lr;
} ampi_state;

/* A pass over the state counts its bytes, saves it, verifies a file against it, or loads it. */
typedef enum ampi_archive_pass { AMPI_COUNT, AMPI_SAVE, AMPI_VERIFY, AMPI_LOAD } ampi_archive_pass;

struct ampi_archive {
    const amp_optimizer *opt;
    ampi_state     state, own; /* to save; in a file that is loaded, and what there was before  */
    unsigned char *room;       /* of a block, for models and low bits                           */
    ampi_archive_pass pass;
    uint32_t       flags;
    uint64_t       body;       /* its bytes in the file                                         */
    amp_write_fn   write_fn;
    void          *user;
    unsigned char *bytes;      /* saving: a block not yet written; verifying, loading: the body */
    size_t         used, size; /* of bytes; size: bytes of the body that were read              */
    uint64_t       count, sum;
    uint64_t       tables;     /* bytes of the body before masters and moments                  */
    char           name[AMPI_STATE_NAME], digits[2][AMPI_DECIMALS]; /* of an error's text       */
    amp_result     result;     /* the first error; it stops the pass                            */
};

static uint64_t ampi_get_le(const unsigned char *p) {
    uint64_t x = 0;
    int      i;
    for (i = 7; i >= 0; i--) x = x << 8 | p[i];
    return x;
}

static void ampi_put_le(unsigned char *p, uint64_t x) {
    int i;
    for (i = 0; i < 8; i++, x >>= 8) p[i] = (unsigned char)x;
}

static uint64_t ampi_sum_bytes(uint64_t sum, const unsigned char *p, size_t num_bytes) {
    for (; num_bytes; num_bytes -= 8, p += 8) {
        sum = (sum ^ ampi_get_le(p)) * 0x9e3779b97f4a7c15u;
        sum ^= sum >> 32;
    }
    return sum;
}

AMPI_COLD_BEGIN

static void ampi_write_out(ampi_archive *a, const unsigned char *bytes, size_t num_bytes) {
    if (a->result == AMP_OK && num_bytes && !a->write_fn(a->user, bytes, num_bytes))
        a->result = ampi_fail(AMP_ERROR_WRITE);
}

static void ampi_flush(ampi_archive *a) {
    a->sum = ampi_sum_bytes(a->sum, a->bytes, a->used);
    ampi_write_out(a, a->bytes, a->used);
    a->used = 0;
}

/* The place of the next num_bytes <= AMPI_STATE_BLOCK of the body; NULL: nothing to copy. */
static unsigned char *ampi_next(ampi_archive *a, size_t num_bytes) {
    const size_t   padded = (num_bytes + 7) / 8 * 8;
    unsigned char *at;
    a->count += padded;
    if (a->pass == AMPI_SAVE && padded > (size_t)AMPI_STATE_BLOCK - a->used) ampi_flush(a);
    if (a->pass == AMPI_COUNT || a->result != AMP_OK || padded == 0) return NULL;
    if (a->pass == AMPI_VERIFY && padded > a->size - a->used) {
        a->result = ampi_fail(AMP_ERROR_MISMATCH);
        return NULL;
    }
    at = a->bytes + a->used;
    a->used += padded;
    if (a->pass == AMPI_SAVE) memset(at + padded - 8, 0, 8);
    return at;
}

/* A number of 4 or 8 bytes: saved from *number, or loaded to it. */
static void ampi_number(ampi_archive *a, void *number, size_t size) {
    unsigned char *at = ampi_next(a, 8);
    uint64_t       x;
    if (size == 4) x = ampi_load_u32(number, 0);
    else memcpy(&x, number, 8);
    if (!at) return;
    if (a->pass == AMPI_SAVE) {
        ampi_put_le(at, x);
        return;
    }
    x = ampi_get_le(at);
    if (size == 4) ampi_store_u32(number, 0, (uint32_t)x);
    else memcpy(number, &x, 8);
}

#define AMPI_NUMBER(a, x)         ampi_number((a), &(x), sizeof(x))
#define AMPI_NUMBERS(a, x, y, z) (AMPI_NUMBER(a, x), AMPI_NUMBER(a, y), AMPI_NUMBER(a, z))

/* The file is not this optimizer's: tells what differs. */
static void ampi_differs(ampi_archive *a, const char *what, uint64_t theirs, uint64_t ours) {
    a->result = ampi_refuse(AMP_ERROR_MISMATCH, "%s is %s in the file, not %s", what,
                            ampi_digits(a->digits[0], theirs), ampi_digits(a->digits[1], ours));
}

/* A number that must be the same in the file. */
static void ampi_same(ampi_archive *a, uint64_t expected, const char *what) {
    uint64_t x = expected;
    AMPI_NUMBER(a, x);
    if (x != expected && a->result == AMP_OK) ampi_differs(a, what, x, expected);
}

/* Tells the next name of a body that is being verified, as far as there is room. */
static void ampi_refuse_name(ampi_archive *a, uint64_t length) {
    const size_t left = ampi_min(a->size - a->used, AMPI_STATE_NAME - 1);
    const size_t n    = length < left ? (size_t)length : left;
    size_t       i;
    for (i = 0; i < n; i++) /* a file may hold anything */
        a->name[i] = a->bytes[a->used + i] < ' ' ? '?' : (char)a->bytes[a->used + i];
    a->name[n] = '\0';
    a->result  = ampi_refuse(AMP_ERROR_MISMATCH, "its name in the file is \"%s\"", a->name);
}

static void ampi_name(ampi_archive *a, const char *name) {
    const uint64_t length = name ? strlen(name) : 0;
    uint64_t       theirs = length;
    size_t         rest   = (size_t)length, piece;
    AMPI_NUMBER(a, theirs);
    if (a->pass == AMPI_VERIFY && a->result == AMP_OK &&
        (theirs != length || rest > a->size - a->used ||
         (rest && memcmp(a->bytes + a->used, name, rest) != 0)))
        ampi_refuse_name(a, theirs);
    for (; rest; rest -= piece, name += piece) {
        unsigned char *at;
        piece = ampi_min(rest, AMPI_STATE_BLOCK);
        at    = ampi_next(a, piece);
        if (at && a->pass == AMPI_SAVE) memcpy(at, name, piece);
    }
}

AMPI_COLD_END

/* n elements to little-endian or back: nothing to do on most machines. */
static void ampi_swap(unsigned char *p, size_t n, size_t size) {
    const uint16_t one = 1;
    unsigned char  low, x[4];
    size_t         k;
    memcpy(&low, &one, 1);
    for (; !low && n; n--, p += size) {
        memcpy(x, p, size);
        for (k = 0; k < size; k++) p[k] = x[size - 1 - k];
    }
}

/* An array of a slot, of n elements. size: of one in the file, 4 for a coded master. */
typedef struct ampi_section { void *x; size_t size, n; int coded; } ampi_section;

/* Copies from backend memory to save, and to it to load. */
static void ampi_transfer(ampi_archive *a, void *there, void *here, size_t num_bytes) {
    if (a->result != AMP_OK || !num_bytes) return;
    a->result = a->pass == AMPI_SAVE ? ampi_read_back(a->opt, here, there, num_bytes)
                                     : ampi_send(&a->opt->backend, there, here, num_bytes);
}

/* Saves n elements of a section to memory at, or loads them from it. */
static void ampi_archive_piece(ampi_archive *a, const ampi_slot *slot, const ampi_section *s,
                               size_t from, unsigned char *at, size_t n) {
    const ampi_stored *master = &slot->master;
    const int        c    = s->coded;
    const size_t     size = c ? 2 : s->size, low = c ? master->size : 0;
    unsigned char   *room = c ? a->room : at, *lows = room + 2 * n;
    const uint32_t   fp   = ampi_fp_begin();
    size_t           k;
    uint32_t         u, rest;
    for (k = 0; c && a->pass == AMPI_LOAD && k < n; k++) {
        u = ampi_model_of_bits(ampi_load_u32(at, k), &rest, (int)master->format);
        ampi_store_u16(room, k, (uint16_t)u);
        ampi_store_low(lows, k, low, rest);
    }
    ampi_transfer(a, (char *)s->x + from * size, room, n * size);
    if (low) ampi_transfer(a, (char *)master->data + from * low, lows, n * low);
    for (k = 0; c && a->pass == AMPI_SAVE && k < n; k++)
        ampi_store_u32(at, k, ampi_bits_of_f32(ampi_master(ampi_load_u16(room, k),
                                                           ampi_load_low(lows, k, low),
                                                           (int)master->format)));
    ampi_fp_end(fp);
}

/* Walks the elements of a section. */
static void ampi_archive_section(ampi_archive *a, const ampi_slot *slot, const ampi_section *s) {
    size_t i, piece;
    for (i = 0; s->x && i < s->n; i += piece) {
        unsigned char *at;
        piece = ampi_min(s->n - i, AMPI_STATE_BLOCK / s->size);
        at    = ampi_next(a, s->size * piece);
        if (!at || a->pass == AMPI_VERIFY) continue;
        if (a->pass == AMPI_LOAD) ampi_swap(at, piece, s->size);
        ampi_archive_piece(a, slot, s, i, at, piece);
        if (a->pass == AMPI_SAVE) ampi_swap(at, piece, s->size);
    }
}

/* Master and moments of a slot. */
static void ampi_archive_arrays(ampi_archive *a, const ampi_slot *slot) {
    const int          coded = ampi_is_encoded(&slot->master);
    const size_t       n = (size_t)slot->n, groups = ampi_groups(n);
    const ampi_stored *m     = slot->moment;
    const ampi_section all[] = {{coded ? slot->model : slot->master.data, 4, n, coded},
                                {m[0].data, m[0].size, n, 0}, {m[1].data, m[1].size, n, 0},
                                {m[0].scale, 1, groups, 0},   {m[1].scale, 1, groups, 0}};
    size_t             k;
    for (k = 0; k < sizeof all / sizeof all[0]; k++) ampi_archive_section(a, slot, &all[k]);
}

AMPI_COLD_BEGIN

/* Which moments a tensor has, with 4 if it is own, and 8 if its moments are missing; the formats
   of masters and moments. SPLIT is saved as the fp32 that it is. Fp32 masters are loaded from all
   formats. */
static void ampi_archive_storage(ampi_archive *a, ampi_slot *slot) {
    const ampi_stored *m       = slot->moment;
    const uint64_t     has     = (m[0].data ? 1u : 0u) | (m[1].data ? 2u : 0u) |
                                 (slot->own ? 4u : 0u);
    const uint64_t     moments = has ? (uint64_t)m[0].format : 0;
    const amp_storage_format format = slot->master.format;
    const uint64_t     masters = format == AMP_FORMAT_SPLIT ? 0 : (uint64_t)format;
    const uint64_t     missing = slot->moments_missing ? 8u : 0u;
    struct { uint64_t has, moments, masters; } file = {has | missing, moments, masters};
    AMPI_NUMBERS(a, file.has, file.moments, file.masters);
    if (a->result != AMP_OK) return;
    if (a->pass == AMPI_LOAD) slot->moments_missing = (file.has & 8u) != 0u;
    file.has &= ~(uint64_t)8;
    if ((file.has ^ has) & 4u)
        ampi_differs(a, "amp_tensor.own", file.has >> 2, has >> 2);
    else if (file.has != has)
        ampi_differs(a, "which moments it has (frozen: 0)", file.has, has);
    else if (file.moments != moments || (masters && file.masters != masters)) {
        const int      of = file.moments != moments;
        const uint64_t theirs = of ? file.moments : file.masters;
        a->result = ampi_refuse(
            AMP_ERROR_MISMATCH,
            "amp_storage.%s is %s in the file, not %s: set desc.storage or amp_tensor.storage",
            of ? "moments" : "master",
            theirs <= AMP_FORMAT_SR ? ampi_formats[theirs].name : "unknown",
            ampi_formats[of ? moments : masters].name);
    }
}

/* Size, options and name of tensor i. */
static void ampi_archive_tensor(ampi_archive *a, size_t i) {
    const amp_tensor *t            = ampi_tensor(a->opt, (int)i);
    ampi_slot        *slot         = &a->opt->plan->host_slots[i];
    float             lr_scale     = slot->lr_scale;
    float             weight_decay = slot->weight_decay;
    const int         right        = a->pass == AMPI_VERIFY && a->result == AMP_OK;
    ampi_same(a, t->n, "its size");
    ampi_archive_storage(a, slot);
    AMPI_NUMBER(a, lr_scale);
    AMPI_NUMBER(a, weight_decay);
    ampi_name(a, t->name);
    if (right) a->result = ampi_of(a->opt, i, a->result);
    if (a->pass != AMPI_LOAD) return;
    slot->lr_scale     = lr_scale;
    slot->weight_decay = weight_decay;
}

/* The numbers before the tensors, in the order of a file: of the scaler, of the run, of its last
   step, of the desc. */
typedef struct ampi_field { uint16_t at, size; } ampi_field;
#define AMPI_FIELD(member)   {offsetof(ampi_state, member), sizeof ((ampi_state *)0)->member}
#define AMPI_SCALER(member)  AMPI_FIELD(control.scaler.member)
#define AMPI_CONTROL(member) AMPI_FIELD(control.member)
static const ampi_field ampi_fields[] = {
    AMPI_SCALER(scale),           AMPI_SCALER(next_scale),
    AMPI_SCALER(found_inf),       AMPI_SCALER(checked),
    AMPI_SCALER(stuck),           AMPI_SCALER(good),
    AMPI_SCALER(skipped),         AMPI_SCALER(skipped_in_a_row),
    AMPI_SCALER(growths),         AMPI_SCALER(backoffs),
    AMPI_SCALER(growth_factor),   AMPI_SCALER(backoff_factor),
    AMPI_SCALER(growth_interval), AMPI_SCALER(growth_tracker),
    AMPI_SCALER(hysteresis),      AMPI_SCALER(hysteresis_tracker),
    AMPI_SCALER(min_scale),       AMPI_SCALER(max_scale),
    AMPI_SCALER(preset),          AMPI_SCALER(disabled),
    AMPI_CONTROL(gate.step),      AMPI_CONTROL(skipped),
    AMPI_CONTROL(skipped_in_a_row), AMPI_CONTROL(missed_updates),
    AMPI_CONTROL(gate.skip),      AMPI_CONTROL(gate.inv_scale),
    AMPI_CONTROL(norm),           AMPI_CONTROL(clip_factor),
    AMPI_CONTROL(found_inf),      AMPI_CONTROL(did_step),
    AMPI_FIELD(has_lr),           AMPI_CONTROL(rates.lr),
    AMPI_CONTROL(beta1),          AMPI_CONTROL(beta2),
    AMPI_CONTROL(rates.eps),      AMPI_CONTROL(rates.momentum),
    AMPI_CONTROL(nesterov),       AMPI_CONTROL(rates.max_norm)
};

/* Walks the whole body. Sizes and names are the optimizer's: a file cannot lead out of arrays. */
static void ampi_archive_state(ampi_archive *a) {
    const amp_plan *plan = a->opt->plan;
    size_t          i;
    ampi_same(a, (uint64_t)plan->kind, "desc.kind");
    ampi_same(a, plan->num_slots, "the number of tensors");
    for (i = 0; i < sizeof ampi_fields / sizeof ampi_fields[0]; i++)
        ampi_number(a, (char *)&a->state + ampi_fields[i].at, ampi_fields[i].size);
    for (i = 0; i < plan->num_slots; i++) ampi_archive_tensor(a, i);
    if (a->flags & AMPI_FILE_SEED) AMPI_NUMBER(a, a->state.control.seed);
    if (a->flags & AMPI_FILE_REPORT) ampi_archive_report(a, a->opt);
    if (a->pass == AMPI_COUNT) a->tables = a->count;
    for (i = 0; i < plan->num_slots; i++) ampi_archive_arrays(a, &plan->host_slots[i]);
}

/* Reads what backend memory has of an optimizer between two steps. The first pass is AMPI_COUNT. */
static amp_result ampi_archive_begin(ampi_archive *a, const amp_optimizer *opt) {
    ampi_control *c = &a->state.control;
    memset(a, 0, sizeof *a);
    a->opt          = opt;
    a->state.has_lr = opt->plan->has_lr != 0;
    AMPI_TRY(ampi_read_back(opt, c, opt->plan->control, sizeof *c));
    return ampi_read_back(opt, &c->scaler, opt->plan->scaler, sizeof c->scaler);
}

AMP_DEF amp_result amp_optimizer_save(const amp_optimizer *opt, amp_write_fn write_fn,
                                      void *user) {
    unsigned char ends[AMPI_STATE_HEADER]; /* the header, then the trailer */
    ampi_archive  a;
    AMPI_TRY(ampi_ready(opt, AMPI_BETWEEN));
    if (!write_fn) return ampi_missing("write_fn");
    AMPI_TRY(ampi_archive_begin(&a, opt));
    if (opt->plan->record) a.flags |= AMPI_FILE_REPORT;
    if (opt->plan->stochastic) a.flags |= AMPI_FILE_SEED;
    ampi_archive_state(&a);
    memcpy(ends, "AMPSTATE", 8);
    ampi_put_le(ends + 8, (uint64_t)a.flags << 32 | AMPI_STATE_VERSION);
    ampi_put_le(ends + 16, a.count);
    ampi_put_le(ends + 24, ampi_sum_bytes(0, ends, 24));
    a.bytes = (unsigned char *)ampi_allocate(&opt->desc.allocator, 2 * (size_t)AMPI_STATE_BLOCK);
    if (!a.bytes) return ampi_fail(AMP_ERROR_OUT_OF_MEMORY);
    a.room     = a.bytes + AMPI_STATE_BLOCK;
    a.pass     = AMPI_SAVE;
    a.write_fn = write_fn;
    a.user     = user;
    ampi_write_out(&a, ends, sizeof ends);
    ampi_archive_state(&a);
    ampi_flush(&a);
    ampi_put_le(ends, a.sum);
    ampi_write_out(&a, ends, 8);
    ampi_release(&opt->desc.allocator, a.bytes);
    return a.result;
}

/* Reads the header: version, flags, bytes of the body. */
static amp_result ampi_read_header(ampi_archive *a, amp_read_fn read_fn, void *user) {
    unsigned char header[AMPI_STATE_HEADER];
    uint64_t      x;
    if (!read_fn(user, header, 8)) return ampi_fail(AMP_ERROR_READ);
    if (memcmp(header, "AMPSTATE", 8) != 0) return ampi_fail(AMP_ERROR_FOREIGN);
    if (!read_fn(user, header + 8, sizeof header - 8)) return ampi_fail(AMP_ERROR_READ);
    if (ampi_get_le(header + 24) != ampi_sum_bytes(0, header, 24))
        return ampi_fail(AMP_ERROR_CORRUPT);
    x        = ampi_get_le(header + 8);
    a->flags = (uint32_t)(x >> 32);
    a->body  = ampi_get_le(header + 16);
    if ((uint32_t)x > AMPI_STATE_VERSION || a->flags > AMPI_FILE_FLAGS)
        return ampi_fail(AMP_ERROR_NEWER); /* sums take eight bytes */
    return ampi_fail((uint32_t)x == 0 || a->body % 8 ? AMP_ERROR_CORRUPT : AMP_OK);
}

/* Reads the body into a->bytes, which ampi_load_end releases. If its size is not a->count, it is
   not this optimizer's, and only as much is read as may tell why. */
static amp_result ampi_read_body(ampi_archive *a, amp_read_fn read_fn, void *user) {
    const int      fits = a->body == a->count;
    const uint64_t some = a->tables + AMPI_STATE_NAME;
    const uint64_t most = fits || a->body < some ? a->body : some;
    if (most > SIZE_MAX - 8 - AMPI_STATE_BLOCK) return ampi_fail(AMP_ERROR_TOO_LARGE);
    a->size  = (size_t)most;
    a->bytes = (unsigned char *)ampi_allocate(&a->opt->desc.allocator,
                                              a->size + 8 + AMPI_STATE_BLOCK);
    if (!a->bytes) return ampi_fail(AMP_ERROR_OUT_OF_MEMORY);
    a->room = a->bytes + a->size + 8;
    if (!read_fn(user, a->bytes, a->size + (fits ? 8 : 0))) return ampi_fail(AMP_ERROR_READ);
    a->sum = ampi_sum_bytes(0, a->bytes, a->size);
    return ampi_fail(fits && ampi_get_le(a->bytes + a->size) != a->sum ? AMP_ERROR_CORRUPT
                                                                       : AMP_OK);
}

/* Reads and verifies a file. a->state gets all but arrays. */
static amp_result ampi_load_file(ampi_archive *a, const amp_optimizer *opt, amp_read_fn read_fn,
                                 void *user) {
    int fits;
    AMPI_TRY(ampi_archive_begin(a, opt));
    a->own = a->state;
    AMPI_TRY(ampi_read_header(a, read_fn, user));
    ampi_archive_state(a);
    fits = a->body == a->count;
    AMPI_TRY(ampi_read_body(a, read_fn, user));
    a->pass = AMPI_VERIFY;
    ampi_archive_state(a);
    if (!fits && a->result == AMP_OK) a->result = ampi_fail(AMP_ERROR_MISMATCH);
    if (a->result == AMP_OK && a->state.control.scaler.preset >= (uint32_t)AMPI_NUM_PRESETS)
        a->result = ampi_refuse(AMP_ERROR_NEWER,
                                "its scaler has a preset that this amp.h does not know");
    return a->result;
}

/* Keeps what the file does not decide: the learning rate, if it has none; and the scaler, which
   is the file's unless only one of the two moves, or is disabled. A scale that the program may
   not have multiplied by must be read before the next step. */
static void ampi_keep_own(const amp_optimizer *opt, ampi_archive *a) {
    const amp_scaler *own   = &a->own.control.scaler;
    amp_plan         *plan  = opt->plan;
    ampi_state       *state = &a->state;
    amp_scaler       *s     = &state->control.scaler;
    const int         moves = ampi_is_dynamic(own), same = moves == ampi_is_dynamic(s);
    if (!state->has_lr) state->control.rates.lr = a->own.control.rates.lr;
    if (!state->has_lr) state->has_lr = a->own.has_lr;
    state->control.seen_updates = 0;
    if (!same || !s->disabled != !own->disabled) {
        if (plan->shared) *s = *own;
        else AMPI_IEEE(ampi_scaler_setup(s, &opt->desc.scaler));
    }
    if (ampi_scale_is_elsewhere(opt) || plan->scale_use == AMPI_SCALE_POINTED) return;
    if (moves && same) plan->scale_use = AMPI_SCALE_READ;
    else if (memcmp(&s->scale, &own->scale, 4) != 0) /* 1 is no news to who has read nothing */
        plan->scale_use = plan->scale_use == AMPI_SCALE_UNREAD && s->scale == 1.0f
                              ? AMPI_SCALE_KNOWN : AMPI_SCALE_UNREAD;
}

/* Loads all that was verified, and writes model copies. */
static AMPI_NOINLINE amp_result ampi_load_all(amp_optimizer *opt, ampi_archive *a) {
    const amp_backend *b    = &opt->backend;
    amp_plan          *plan = opt->plan;
    ampi_control      *c    = &a->state.control;
    size_t             i;
    if (plan->record) ampi_clear_history(plan);
    a->pass = AMPI_LOAD;
    a->used = 0;
    ampi_archive_state(a);
    AMPI_TRY(a->result);
    ampi_keep_own(opt, a);
    plan->has_lr = a->state.has_lr != 0u;
    for (i = 0; i < plan->num_slots; i++) {
        ampi_slot *slot = &plan->host_slots[i];
        ampi_slot *there = &plan->table[i];
        AMPI_TRY(ampi_send(b, &there->lr_scale, &slot->lr_scale, sizeof slot->lr_scale));
        AMPI_TRY(ampi_send(b, &there->weight_decay, &slot->weight_decay,
                           sizeof slot->weight_decay));
        slot->weight = NULL; /* rebind has brought it before the load */
    }
    AMPI_TRY(ampi_write_models(opt));
    c->f16_overflows = c->huge = 0u;
    AMPI_TRY(ampi_send(b, plan->control, c, sizeof *c));
    if (plan->shared) AMPI_TRY(ampi_send(b, plan->scaler, &c->scaler, sizeof c->scaler));
    return plan->record ? ampi_send_history(opt) : AMP_OK;
}

/* Ends a load, also after an error. */
static amp_result ampi_load_end(ampi_archive *a, amp_optimizer *opt, amp_result result) {
    if (result == AMP_OK) result = ampi_load_all(opt, a);
    ampi_release(&opt->desc.allocator, a->bytes);
    return result;
}

AMP_DEF amp_result amp_optimizer_load(amp_optimizer *opt, amp_read_fn read_fn, void *user) {
    ampi_archive a;
    AMPI_TRY(ampi_ready(opt, AMPI_BETWEEN));
    if (!read_fn) return ampi_missing("read_fn");
    return ampi_load_end(&a, opt, ampi_load_file(&a, opt, read_fn, user));
}

#ifndef AMP_NO_STDLIB

static bool ampi_file_read(void *user, void *data, size_t num_bytes) {
    return fread(data, 1, num_bytes, (FILE *)user) == num_bytes;
}

static bool ampi_file_write(void *user, const void *data, size_t num_bytes) {
    const char *p = (const char *)data, *end = p + num_bytes;
    FILE       *file = (FILE *)user;
    for (; p < end; clearerr(file)) {
        p += fwrite(p, 1, (size_t)(end - p), file);
        if (p < end && errno != EINTR) return false;
    }
    return true;
}

/* Where a state goes: to the file that a path leads to, by way of a temporary one beside it
   (temporary): its name with .new behind it, or .new1, .new2 ... while other saves have the ones
   before. */
enum { AMPI_PATH = 4080, AMPI_SAVES = 1000, AMPI_NAME = 240 /* and .new999: 255 are allowed */ };
typedef struct ampi_target {
    char path[AMPI_PATH], temporary[AMPI_PATH + 8];
    int  mode; /* POSIX: an existing file's, for all that replace it; or -1 */
} ampi_target;

#ifdef _WIN32
#define AMPI_SEPARATORS "/\\:"
#else
#define AMPI_SEPARATORS "/"
#endif

/* The length of path's directory, with the slash. */
static size_t ampi_directory(const char *path) {
    size_t n = strlen(path);
    while (n && !strchr(AMPI_SEPARATORS, path[n - 1])) n--;
    return n;
}

/* The k-th name for the temporary file. A long one is cut, not within a letter of UTF-8. */
static void ampi_name_temporary(ampi_target *to, unsigned k) {
    const size_t most = ampi_directory(to->path) + AMPI_NAME;
    size_t       n    = strlen(to->path);
    char         room[AMPI_DECIMALS];
    const char  *digits = k ? ampi_digits(room, k) : "";
    if (n > most)
        for (n = most; n > most - 3 && ((unsigned char)to->path[n] & 0xc0u) == 0x80u;) n--;
    memcpy(to->temporary, to->path, n);
    memcpy(to->temporary + n, ".new", 4);
    memcpy(to->temporary + n + 4, digits, strlen(digits) + 1);
}

#ifdef AMPI_POSIX

#if (defined(__STRICT_ANSI__) || defined(_POSIX_C_SOURCE) || defined(_POSIX_SOURCE)) && \
    !(defined(_POSIX_C_SOURCE) && _POSIX_C_SOURCE >= 200112L)
/* strict C99, or a program for an older POSIX, hides them; fileno may be a macro */
extern int     (fileno)(FILE *file);
extern FILE   *fdopen(int file, const char *mode);
extern int     fsync(int file);
extern int     fchmod(int file, mode_t mode);
extern ssize_t readlink(const char *path, char *buffer, size_t size);
#endif
#ifndef LOCK_EX /* systems of BSD hide it from programs for POSIX */
extern int flock(int file, int operation);
#define LOCK_EX 2
#define LOCK_NB 4
#endif

/* Replaces a symbolic link by its target, until it is none. If a link dangles, the file is
   created where it points. */
static amp_result ampi_follow(ampi_target *to) {
    char        link[AMPI_PATH];
    struct stat s;
    int         hops;
    to->mode = stat(to->path, &s) == 0 ? (int)(s.st_mode & 07777) : -1;
    AMPI_REFUSE(to->mode >= 0 && !S_ISREG(s.st_mode), UNSUPPORTED, /* as /dev/stdout */
                "path leads to something that is not a file");
    if (to->mode < 0 && errno == EOVERFLOW) to->mode = 0600; /* it is there, its number too large */
    for (hops = 0; hops <= 40; hops++) { /* Linux follows 40 */
        const ssize_t length = readlink(to->path, link, sizeof link);
        const size_t  before = length > 0 && link[0] != '/' ? ampi_directory(to->path) : 0;
        if (length <= 0) return AMP_OK;
        AMPI_REFUSE(before + (size_t)length >= AMPI_PATH, TOO_LARGE,
                    "path leads to one of 4080 bytes or more");
        memcpy(to->path + before, link, (size_t)length);
        to->path[before + (size_t)length] = '\0';
    }
    errno = ELOOP;
    return AMP_ERROR_WRITE;
}

/* Does an open file still have this name? -1: that cannot be known. */
static int ampi_has_name(int file, const char *name) {
    struct stat mine, there;
    if (fstat(file, &mine) != 0) return -1;
    return stat(name, &there) == 0 && mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
}

/* Locks a file that was opened as name. Returns 1 if it is locked and still has this name, 0 if
   another save has it or has renamed it, -1 where it cannot be known. */
static int ampi_lock(int file, const char *name) {
    if (flock(file, LOCK_EX | LOCK_NB) != 0) return errno == EWOULDBLOCK ? 0 : -1;
    return ampi_has_name(file, name);
}

/* Removes what a killed save has left: a file that nobody has locked. A link is removed, never
   what it leads to. Returns 0 if nothing has this name. */
static int ampi_remove_left(const char *name) {
    int file = open(name, O_WRONLY | O_NONBLOCK);
    if (file < 0 && errno == EACCES) file = open(name, O_RDONLY | O_NONBLOCK);
    if (file < 0) return errno != ENOENT;
    if (ampi_lock(file, name) > 0) unlink(name);
    close(file);
    return 1;
}

/* Removes what killed saves have left under the names behind the k-th, up to eight free ones. */
static void ampi_remove_rest(ampi_target *to, unsigned k) {
    unsigned more = k, gaps;
    for (gaps = 0; more < AMPI_SAVES && gaps < 8; gaps += !ampi_remove_left(to->temporary))
        ampi_name_temporary(to, ++more);
    ampi_name_temporary(to, k);
}

/* Creates and locks a temporary file that no other save has; -1: none, errno says why. */
static int ampi_create_locked(ampi_target *to) {
    const mode_t mode = to->mode < 0 ? 0666 : ((mode_t)to->mode & 0777) | 0200;
    unsigned     k;
    int          file;
    for (k = 0; k < AMPI_SAVES; k++) {
        ampi_name_temporary(to, k);
        file = open(to->temporary, O_WRONLY | O_CREAT | O_EXCL, mode);
        if (file < 0 && errno == EEXIST) {
            (void)ampi_remove_left(to->temporary);
            file = open(to->temporary, O_WRONLY | O_CREAT | O_EXCL, mode);
        }
        if (file < 0 && errno == EEXIST) continue;
        if (file < 0) return -1;
        if (ampi_lock(file, to->temporary) != 0) {
            ampi_remove_rest(to, k);
            return file;
        }
        close(file); /* another save took it for what a killed one has left */
    }
    return -1;
}

/* Opens the temporary file. The lock is held until it is closed, after it has been renamed. */
enum { AMPI_CLOSES_FIRST = 0 };
static FILE *ampi_create(ampi_target *to) {
    const int file = ampi_create_locked(to);
    FILE     *stream;
    if (file < 0) return NULL;
    (void)fcntl(file, F_SETFD, FD_CLOEXEC); /* a child that lives on would hold the lock */
    stream = fdopen(file, "wb");
    if (stream) setvbuf(stream, NULL, _IONBF, 0); /* so that after a signal a write goes on */
    else {
        unlink(to->temporary);
        close(file);
    }
    return stream;
}

/* Flushes a file to the disk, and then sets its mode, since what a killed save leaves must be one
   that the next can open. If fchmod fails, what open gave stays. */
static int ampi_flush_file(const ampi_target *to, FILE *file) {
    if (fsync(fileno(file)) != 0) return 0;
    if (to->mode >= 0) (void)fchmod(fileno(file), (mode_t)to->mode);
    return 1;
}

/* Moves the temporary file to its place. The new name is on the disk when its directory is; some
   file systems cannot flush that. */
static int ampi_move(ampi_target *to, FILE *file) {
    const size_t length = ampi_directory(to->path);
    int          directory, flushed, error;
    if (ampi_has_name(fileno(file), to->temporary) == 0) { /* locks do not hold: another save's */
        to->temporary[0] = '\0';
        errno            = EEXIST;
        return 0;
    }
    if (rename(to->temporary, to->path) != 0) return 0;
    to->temporary[0] = '\0'; /* from here on another save may have that name */
    to->path[length] = '\0';
    directory        = open(length ? to->path : ".", O_RDONLY);
    if (directory < 0) return 1; /* it may be written to, but not read */
    flushed = fsync(directory) == 0 || errno != EIO;
    error   = errno;
    close(directory);
    errno = error;
    return flushed;
}

#else

enum { AMPI_CLOSES_FIRST = 1 };
static amp_result ampi_follow(ampi_target *to) {
    (void)to;
    return AMP_OK;
}

#if defined(_WIN32)
/* A file that is open is no other's to open, so that this finds what no save has. One may lose its
   file between closing and renaming it: it fails then, and what is at path stays. */
static FILE *ampi_create(ampi_target *to) {
    unsigned k;
    FILE    *file = NULL;
    for (k = 0; k < AMPI_SAVES && !file; k++) {
        ampi_name_temporary(to, k);
        file = _fsopen(to->temporary, "wb", 0x10 /* _SH_DENYRW */);
        if (!file && errno != EACCES) break;
    }
    return file;
}

extern __declspec(dllimport) int __stdcall MoveFileExA(const char *from, const char *to,
                                                       unsigned long flags);

static int ampi_flush_file(const ampi_target *to, FILE *file) {
    (void)to;
    return _commit(_fileno(file)) == 0;
}

static int ampi_move(ampi_target *to, FILE *file) { /* replace existing, write through */
    (void)file;
    return MoveFileExA(to->temporary, to->path, 1 | 8) != 0;
}
#else
static FILE *ampi_create(ampi_target *to) {
    ampi_name_temporary(to, 0);
    return fopen(to->temporary, "wb");
}

static int ampi_flush_file(const ampi_target *to, FILE *file) { return to && file; }
static int ampi_move(ampi_target *to, FILE *file) {
    (void)file;
    return rename(to->temporary, to->path) == 0;
}
#endif

#endif

/* Saves to to->path, in such a way that a crash leaves the old file or the new one. */
static amp_result ampi_replace_file(ampi_target *to, const amp_optimizer *opt) {
    FILE *const file = ampi_create(to);
    amp_result  result;
    int         error;
    if (!file) return AMP_ERROR_WRITE;
    result = amp_optimizer_save(opt, ampi_file_write, file);
    if (fflush(file) != 0 && result == AMP_OK) result = AMP_ERROR_WRITE;
    if (result == AMP_OK && !ampi_flush_file(to, file)) result = AMP_ERROR_WRITE;
    if (AMPI_CLOSES_FIRST && fclose(file) != 0 && result == AMP_OK) result = AMP_ERROR_WRITE;
    if (result == AMP_OK && !ampi_move(to, file)) result = AMP_ERROR_WRITE;
    error = errno;
    if (result != AMP_OK) remove(to->temporary);
    if (!AMPI_CLOSES_FIRST) fclose(file);
    errno = error;
    return result;
}

AMP_DEF amp_result amp_optimizer_save_file(const amp_optimizer *opt, const char *path) {
    ampi_target *to;
    amp_result   result;
    AMPI_TRY(ampi_ready(opt, AMPI_BETWEEN));
    if (!path) return ampi_missing("path");
    AMPI_REFUSE(strlen(path) >= AMPI_PATH, TOO_LARGE,
                "path has %g bytes, and must have less than 4080", (double)strlen(path));
    to = (ampi_target *)ampi_allocate(&opt->desc.allocator, sizeof *to);
    if (!to) return ampi_fail(AMP_ERROR_OUT_OF_MEMORY);
    memcpy(to->path, path, strlen(path) + 1);
    result = ampi_follow(to);
    if (result == AMP_OK) result = ampi_replace_file(to, opt);
    ampi_release(&opt->desc.allocator, to);
    return result == AMP_ERROR_WRITE ? ampi_fail(result) : result;
}

AMP_DEF amp_result amp_optimizer_load_file(amp_optimizer *opt, const char *path) {
    ampi_archive a;
    amp_result   result;
    FILE        *file;
    AMPI_TRY(ampi_ready(opt, AMPI_BETWEEN));
    if (!path) return ampi_missing("path");
    file = fopen(path, "rb");
    if (!file) return ampi_fail(errno == ENOENT ? AMP_ERROR_NOT_FOUND : AMP_ERROR_READ);
    result = ampi_load_file(&a, opt, ampi_file_read, file);
    if (result == AMP_ERROR_READ && feof(file)) result = ampi_fail(AMP_ERROR_TRUNCATED);
    if (result == AMP_OK && fgetc(file) != EOF)
        result = ampi_refuse(AMP_ERROR_CORRUPT, "there are bytes behind the end of the state");
    fclose(file);
    return ampi_load_end(&a, opt, result);
}

/* ------------------------------------------------------------ >>impl environment */

/* Reads both variables: *on is 1, 0, or -1 if it is not set, and *type likewise; off is AMP_F32. */
static amp_result ampi_env(int *on, int *type) {
    static const char *const switches[] = {"0", "1"};
    const char *enable = getenv("AMP_ENABLE"), *dtype = getenv("AMP_DTYPE");
    *on = *type = -1;
    if (enable && *enable) *on = ampi_find(enable, strlen(enable), switches, 2);
    AMPI_REFUSE(enable && *enable && *on < 0, INVALID_CONFIG,
                "AMP_ENABLE must be 0 or 1, not \"%s\"", enable);
    if (*on == 0) *type = AMP_F32;
    if (*on == 0 || !dtype || !*dtype) return AMP_OK;
    *type = ampi_find_type(dtype, strlen(dtype));
    AMPI_REFUSE(*type < 0, INVALID_CONFIG, "AMP_DTYPE must be fp32, fp16 or bf16, not \"%s\"",
                dtype);
    return AMP_OK;
}

AMP_DEF amp_result amp_optimizer_desc_from_env(amp_optimizer_desc *desc) {
    int on, type;
    if (!desc) return ampi_missing("desc");
    AMPI_TRY(ampi_env(&on, &type));
    if (on == 1 && type < 0 && desc->dtype == AMP_F32) type = (int)AMP_F16;
    if (on >= 0) desc->scaler.disabled = !on;
    if (type < 0 || type == (int)desc->dtype) return AMP_OK;
    AMPI_IEEE(ampi_scale_for(&desc->scaler, desc->dtype == AMP_F16, type == (int)AMP_F16));
    desc->dtype = (amp_dtype)type;
    return AMP_OK;
}

#endif /* AMP_NO_STDLIB */

AMPI_COLD_END

/* ------------------------------------------------------------------- >>impl gemm
   C is computed in blocks. For each, a strip of rows of op(A) and a strip of columns of op(B)
   are packed, converted on the way, and a kernel multiplies them; many strips of B make a panel.

   PIECE    What is packed at a time: 16 words along k of each row of a strip. In the FMA engines a
            word is an fp32 number; for tiles (and AVX512_BF16) two bf16 ones, of neighboring k.
   LAYOUT   A strip of A is [piece][row][16], a strip of B [piece][16][column]; what is not there
            is 0. That serves broadcasts of A and vectors of B, and it is what a tile is.
   TERMS    For tiles an fp16 number is the sum of two bf16 numbers, exactly (11 bits are 8 + 3),
            and a product is four; the pieces of both terms follow each other. For tf32,
            fp32 is two as well (16 bits), and the least of the four is left out.
   ORDER    An element of C is summed in the order of k, whatever the blocks, the panels and the
            threads: FMA engines round once per k, plain C twice. So these have one set of bits
            each, and tiles have theirs, in which pieces of 32 k alternate. */

enum {
    AMPI_DEEP        = 16,      /* words of a piece along k                                     */
    AMPI_MOST_ROWS   = 32,      /* of a block                                                   */
    AMPI_MOST_COLS   = 32,
    AMPI_PANEL       = 1 << 18, /* words of a panel: it stays in the second-level cache         */
    AMPI_PANEL_SMALL = 1 << 14, /* the same where all is on the stack                           */
    AMPI_TALL        = 1024,    /* rows whose sums are stored where k does not fit one panel      */
    AMPI_TALL_SMALL  = 64,      /* the same on the stack                                        */
    AMPI_STACK       = 28672,   /* words of workspace on the stack                              */
    AMPI_HEAVY       = 1 << 22, /* m n k above which a malloc pays, and threads do              */
    AMPI_GEMM_TINY   = 1 << 12, /* m n k up to which bf16 that goes in pairs is not packed       */
    AMPI_SMALL       = 1 << 21, /* m n k up to which operands are read in place, if they can be */
    AMPI_NEAR        = 1 << 13, /* words of B that stay in the first-level cache                */
    AMPI_NEAR_B      = 1 << 20, /* n k up to which few rows read B where it lies                */
    AMPI_ROOM_A      = 1 << 12, /* floats of op(A), where it is converted                       */
    AMPI_ROOM_B      = 1 << 14, /* of op(B)                                                     */
    AMPI_TILES       = 1 << 15, /* m n k from which products of 16-bit types go in pairs        */
    AMPI_PAYS        = 1 << 10, /* n k from which a scope rounds fp32 to bf16                   */
    AMPI_TILES_FP16  = 1 << 17, /* m n k from which fp16 is faster than fp32 in tiles           */
    AMPI_GEMV        = 4096     /* of a matrix times a vector, k and rows at a time             */
};

/* One block for a kernel: rows and cols say how much of it is there. Words of A are at
   a[r * rs + k * cs] in a piece of so many k, and the next piece is `next` from there; of B at
   b[k * ldb + c]. Only FMA engines ask: an A that is not packed is one piece, and next is 0; odd is
   1 if of each two k the odd one comes first. Beyond two vectors of cols, b and out move on. */
typedef struct ampi_block {
    const uint32_t *a, *b;
    size_t          rs, cs, piece, next, ldb, odd;
    size_t          rows, cols, words; /* words: along k */
    int             products, a_panel; /* of terms: 1, 3 or 4; b is what other blocks read, too */
    const float    *in;  /* sums so far, in rows of engine->cols; NULL: none */
    float          *out;
    size_t          ld;  /* of out */
} ampi_block;

/* op(A), or the transpose of op(B): its element (r, k) is x[r * rs + k * cs]; rs or cs is 1. */
typedef struct ampi_operand {
    const void *x;
    amp_dtype   type, as; /* as: what it counts as; not type where fp32 is rounded to 16 bits */
    size_t      rs, cs;
} ampi_operand;

typedef struct ampi_task ampi_task;

/* No two functions of an engine, or of a tier, have the same type, as in ampi_functions. */
typedef struct ampi_engine {
    size_t rows, cols, row_step, col_step; /* of a block; what kernels round them to */
    size_t depth, at_once;                 /* pieces of a panel along k; of them at a time */
    int    pairs;                          /* words are two bf16 numbers, not one of fp32 */
    size_t least;                          /* m n k from which, m and n at least 2; or 0: all */
    void (*use_tiles)(int on);             /* on: a thread's share begins; or it ends; or NULL */
    /* Rows of memory as fp32: dst[r * ld + i] is x[r * step + i]; whole vectors are written. Where
       jump is not 0, a row is cut into pieces of ld, jump apart; the rest of the last is 0. */
    void (*convert)(float *dst, size_t ld, size_t jump, const ampi_operand *x, size_t step,
                    size_t rows, size_t n);
    /* The same transposed: dst[i * ld + r]; more than n elements may be there. */
    void (*transpose)(float *dst, size_t ld, const ampi_operand *x, size_t step, size_t rows,
                      size_t n, size_t there);
    /* Of pairs: a piece of a strip of width rows; of the matrix rows, maybe more, and ks are there.
       Of A: [row][16]; of B: [16][row]. */
    void (*pack)(uint32_t *dst, size_t width, int of_b, const ampi_operand *x, int terms,
                 size_t rows, size_t ks);
    void (*kernel)(ampi_block *block);
    /* Rows i, columns j and on of C from their sums: alpha, beta, bias, activation. */
    void (*write)(const ampi_task *w, const float *sum, size_t ld, size_t i, size_t j,
                  size_t rows, size_t cols);
    /* sum[r] += element (r, k) * v[k]. Both have room for 32 more, v[ks] is 0; odd as in a block.
       NULL in tiles and BFMMLA, which leave these products to the tier's other engine. */
    void (*gemv)(float *sum, const ampi_operand *x, size_t rows, size_t ks, const float *v,
                 size_t odd);
} ampi_engine;

/* Members by name. C++ knows this since 2020, and then refuses another order. */
#if defined(__cplusplus) && __cplusplus < 202002L
#define AMPI_IS(member, value) value
#else
#define AMPI_IS(member, value) .member = value
#endif
/* Members of an engine: three steps of R rows by two vectors of W; m n k from which; functions. */
#define AMPI_BLOCKS(R, W, in_pairs, from)                                                      \
    AMPI_IS(rows, 3 * (R)), AMPI_IS(cols, 2 * (W)), AMPI_IS(row_step, R),                      \
    AMPI_IS(col_step, W), AMPI_IS(depth, 32), AMPI_IS(at_once, 32), AMPI_IS(pairs, in_pairs),     \
    AMPI_IS(least, from), AMPI_IS(use_tiles, NULL)
#define AMPI_FUNCTIONS(tier, pack_, kernel_, write_, gemv_)                                    \
    AMPI_IS(convert, AMPI_JOIN(ampi_convert, tier)),                                           \
    AMPI_IS(transpose, AMPI_JOIN(ampi_transpose_rows, tier)),                                  \
    AMPI_IS(pack, pack_), AMPI_IS(kernel, kernel_), AMPI_IS(write, write_), AMPI_IS(gemv, gemv_)

/* >>impl processors: the engine of pairs for a product, or NULL. Tiles split numbers in two
   terms, others need whole bf16. The first call that would use tiles asks whether this process
   may. The other one lists all engines, then NULL. */
static const ampi_engine *ampi_engine_pairs(int whole, size_t m, size_t n, size_t k);
static const ampi_engine *ampi_engine_of(size_t i);

/* Matrices of a batch (A, B or C) as they lie in memory. */
typedef struct ampi_matrices {
    const void *x;
    amp_dtype   type;
    size_t      rows, cols, ld, stride;
} ampi_matrices;

AMPI_HOST AMPI_ALWAYS ampi_matrices ampi_matrices_of(const amp_gemm_args *g, int of_b) {
    const size_t        m = g->m, n = g->n, k = g->k;
    const ampi_matrices a = {g->a, g->a_type, g->trans_a ? k : m, g->trans_a ? m : k, g->lda,
                             g->stride_a};
    const ampi_matrices b = {g->b, g->b_type, g->trans_b ? n : k, g->trans_b ? k : n, g->ldb,
                             g->stride_b};
    return of_b ? b : a;
}

static ampi_operand ampi_operand_of(const amp_gemm_args *g, int of_b) {
    const ampi_matrices m     = ampi_matrices_of(g, of_b);
    const int           along = of_b ? g->trans_b : !g->trans_a;
    const ampi_operand  x     = {m.x, m.type, m.type == AMP_F32 ? g->compute : m.type,
                                 along ? m.ld : 1, along ? 1 : m.ld};
    return x;
}

/* From element (r, k) on. */
static ampi_operand ampi_operand_at(ampi_operand x, size_t r, size_t k) {
    x.x = ampi_at(x.x, x.type, r * x.rs + k * x.cs);
    return x;
}

/* What the driver knows of a product, of a batch's products from one on, or of a thread's share.
   Products that are not packed use nothing from terms on. */
struct ampi_task {
    const ampi_engine   *e;
    void (*run)(ampi_task *w); /* by size, types, tier and layout   */
    const amp_gemm_args *g;    /* the call's; the rest: this share's */
    size_t               m, n, k, count;
    float                alpha;
    void                *c;
    const void          *bias;
    int                  plain;            /* C is its sums */
    ampi_operand         x[2];             /* op(A), and the transpose of op(B) */
    int                  swapped;          /* C' = B' A': x, m and n are those of C' */
    int                  once;             /* strips of A are used once: they are not packed */
    int                  terms;
    int                  a_panel;          /* the panel is of A, strips are of B */
    size_t               group;            /* strips at a time: of whole lines, if A lies across */
    size_t               lead; /* columns before C's first, from where a line of the cache begins */
    size_t               tall, wide, deep; /* rows, columns (a_panel: columns, rows), k at a time */
    size_t               step;             /* k of a strip: it stays in the first-level cache    */
    size_t               strip_size, panel_size, size; /* words of workspace */
    uint32_t            *strip, *panel; /* strip: all the workspace; NULL: the stack */
    float               *sums; /* of wide columns, where k is deeper than step; tall, than deep */
};

/* All of A and B is bf16, or counts as it. */
static int ampi_is_whole(const ampi_task *w) {
    return w->x[0].as == AMP_BF16 && w->x[1].as == AMP_BF16;
}

/* k of a piece, and words of a strip, which blocks ask for: no division. */
static size_t ampi_unit(const ampi_engine *e) { return e->pairs ? 2 * AMPI_DEEP : AMPI_DEEP; }
static size_t ampi_strip(const ampi_task *w, size_t width, size_t k) {
    const size_t pieces = (k + ampi_unit(w->e) - 1) >> (w->e->pairs ? 5 : 4);
    return pieces * AMPI_DEEP * (size_t)w->terms * width;
}

/* The workspace: strip, panel and sums, one behind the other (a_panel: columns for rows).
       strip    group strips of rows, step k of them
       panel    wide columns, deep k of them
       sums     of blocks whose k goes on, wide columns: where k is deeper than the panel, of tall
                rows; where it is only deeper than the strip, of the strip's rows; else none
   Sizes never shrink when m, n or k grow, so that one workspace serves all smaller products:
   strip and sums have room for pieces k and its panel's columns, as step and wide may shrink. */
static void ampi_task_size(ampi_task *w, int tiny) {
    const ampi_engine *e    = w->e;
    const size_t       unit = ampi_unit(e), depth = tiny ? 16 : e->depth;
    size_t             panel = tiny ? AMPI_PANEL_SMALL : AMPI_PANEL, pieces, steps, rows;
    size_t             m = w->m, n = w->n + w->lead;
    w->terms  = !e->pairs || ampi_is_whole(w) ? 1 : 2;
    w->deep   = ampi_min((depth >> (w->terms - 1)) * unit, ampi_up(ampi_max(w->k, 1), unit));
    w->a_panel = e->use_tiles && m < n && m <= w->k && w->k <= w->deep && w->x[1].cs == 1;
    w->group  = w->x[0].cs != 1 && w->k > 256 && !e->pairs && !tiny ? 8 : 1;
    rows      = w->group * e->rows;
    if (w->a_panel) m = n, n = w->m;
    if (w->lead && !tiny) panel += ampi_strip(w, e->cols, w->deep); /* or one panel more */
    pieces  = w->terms == 1 ? ampi_min(w->deep, e->at_once * unit) : w->deep; /* two: all */
    steps   = (w->deep + pieces - 1) / pieces;
    w->step = ampi_up((w->deep + steps - 1) / steps, unit);
    w->wide = ampi_min(panel / ampi_strip(w, e->cols, w->deep) * e->cols, ampi_up(n, e->cols));
    w->tall = m;
    w->strip_size = ampi_strip(w, rows, pieces);
    w->panel_size = n < panel ? ampi_min(ampi_strip(w, ampi_up(n, e->cols), w->deep), panel)
                              : panel;
    w->size = w->strip_size + w->panel_size;
    if (w->deep < w->k) {
        w->tall = ampi_up(ampi_min(m, tiny ? AMPI_TALL_SMALL : AMPI_TALL), rows);
        w->size += w->tall * w->wide;
    } else if (steps > 1) {
        w->size += rows * ampi_min(panel / ampi_strip(w, e->cols, pieces) * e->cols,
                                   ampi_up(n, e->cols));
    }
    w->size = ampi_up(w->size, 16);
    if (w->wide < n) w->wide = ampi_up((n - 1) / ((n - 1) / w->wide + 1) + 1, e->cols); /* even */
}

/* Rows r0 to r1 of op(A), or columns of op(B), k0 to k1, packed in strips; along memory's rows. */
static void ampi_pack_words(const ampi_task *w, float *dst, int of_b, size_t r0, size_t r1,
                            size_t k0, size_t k1) {
    const ampi_engine *e = w->e;
    const ampi_operand x = ampi_operand_at(w->x[of_b], r0, k0);
    const size_t width = of_b ? e->cols : e->rows, rows = ampi_min(r1, of_b ? w->n : w->m) - r0;
    const size_t ks = k1 - k0, strip = ampi_strip(w, width, ks), span = of_b ? 8 * width : width;
    size_t       r, k, i;
    for (r = 0; r < rows && x.cs == 1; r += width) {
        const ampi_operand at = ampi_operand_at(x, r, 0);
        const size_t       some = ampi_min(rows - r, width);
        float             *to = dst + r / width * strip;
        if (of_b && some % e->col_step) memset(to, 0, strip * sizeof *to);
        if (of_b) e->transpose(to, width, &at, x.rs, some, ks, ks);
        else e->convert(to, AMPI_DEEP, width * AMPI_DEEP, &at, x.rs, some, ks);
    }
    for (k = 0; k < ks && x.cs != 1; k += AMPI_DEEP)
        for (r = 0; r < rows; r += span) {
            const ampi_operand at = ampi_operand_at(x, r, k);
            const size_t       deep = ampi_min(ks - k, AMPI_DEEP), some = ampi_min(rows - r, span);
            float             *to = dst + r / width * strip + k * width;
            for (i = 0; !of_b && w->group > 1 && i < AMPI_DEEP && k + 2 * AMPI_DEEP <= ks; i++)
                AMPI_PREFETCH(ampi_at(at.x, x.type, (AMPI_DEEP + i) * x.cs)); /* too far apart */
            if (of_b) e->convert(to, width, strip, &at, x.cs, deep, some);
            else e->transpose(to, AMPI_DEEP, &at, x.cs, deep, some, w->m - r0 - r);
        }
}
static void ampi_pack_strips(const ampi_task *w, uint32_t *dst, int of_b, size_t r0, size_t r1,
                             size_t k0, size_t k1) {
    const ampi_operand all = w->x[of_b];
    const size_t width = of_b ? w->e->cols : w->e->rows, unit = ampi_unit(w->e);
    const size_t lead = of_b ? w->lead : 0, most = of_b ? w->n : w->m;
    size_t       at = r0, k = k0;
    if (!w->e->pairs) {
        ampi_pack_words(w, (float *)(void *)dst, of_b, r0, r1, k0, k1);
        return;
    }
    while (at < r1 && k < k1) {
        const size_t       r = ampi_max(at, lead) - lead;
        const ampi_operand x = ampi_operand_at(all, r, k);
        w->e->pack(dst + (ampi_strip(w, at - r0, k1 - k0) + ampi_strip(w, width, k - k0)), width,
                   of_b, &x, w->terms, most - r, ampi_min(k1 - k, unit));
        if (all.cs != 1) {
            at += width;
            if (at >= r1) at = r0, k += unit;
        } else {
            k += unit;
            if (k >= k1) k = k0, at += width;
        }
    }
}

/* Ask for a block of C before it is read, or where k is small: tiles would wait to be stored. */
static void ampi_prefetch_c(const ampi_task *w, size_t i, size_t j, size_t rows, size_t cols) {
#ifdef AMPI_X86
    for (; rows--; i++) {
        const char *c = (const char *)ampi_at(w->c, w->g->c_type, i * w->g->ldc + j);
        __asm__ __volatile__("prefetchw {(%0)|[%0]}" : : "r"(c));
        __asm__ __volatile__("prefetchw {(%0)|[%0]}" : : "r"(ampi_at(c, w->g->c_type, cols - 1)));
    }
#else
    (void)w, (void)i, (void)j, (void)rows, (void)cols;
#endif
}

/* To a multiple of a power of two. */
static size_t ampi_step_up(size_t n, size_t step) { return (n + step - 1) & ~(step - 1); }

/* Sums of a block of C', as rows of C. */
static void ampi_write_swapped(const ampi_task *w, const float *sum, size_t ld, size_t i, size_t j,
                               size_t rows, size_t cols) {
    const ampi_operand x = {sum, AMP_F32, AMP_F32, ld, 1};
    float              c[AMPI_MOST_ROWS * AMPI_MOST_COLS];
    w->e->transpose(c, AMPI_MOST_ROWS, &x, ld, rows, cols, ld);
    w->e->write(w, c, AMPI_MOST_ROWS, j, i, cols, rows);
}

/* The block of C at (i, j); after the last k, what becomes of its sums. Packed columns that are not
   there are 0, and are multiplied as well. */
AMPI_HOST AMPI_ALWAYS void ampi_gemm_block(const ampi_task *w, const ampi_engine *e, ampi_block *x,
                                           size_t i, size_t j, int packed, int last) {
    const size_t rows = x->rows, cols = x->cols;
    int          own, swapped = packed && w->swapped;
    float        room[AMPI_MOST_ROWS * AMPI_MOST_COLS + 16];
    float       *all = (float *)(void *)ampi_align(room);
    if (e->pairs) x->rows = ampi_step_up(rows, e->row_step);
    if (packed) x->cols = ampi_step_up(cols, e->col_step);
    if (last && w->plain && !swapped && w->g->c_type == AMP_F32 && x->rows == rows &&
        x->cols == cols) {
        x->out = (float *)ampi_to(w->c, AMP_F32, i * w->g->ldc + j);
        x->ld  = w->g->ldc;
    } else if (last) {
        x->out = all;
    }
    own = x->out == all;
    if (last && !swapped && ((e->use_tiles && w->k <= 256) || !ampi_is_zero(w->g->beta)))
        ampi_prefetch_c(w, i, j, rows, cols);
    if (x->odd) ampi_fp_flush(1);
    e->kernel(x);
    if (x->odd) ampi_fp_flush(0);
    if (own) (swapped ? ampi_write_swapped : e->write)(w, all, x->ld, i, j, rows, cols);
}

/* The same at (i, at), k0 to k1, from its strips. */
static void ampi_gemm_packed(const ampi_task *w, size_t i, size_t at, size_t k0, size_t k1,
                             const uint32_t *a, const uint32_t *b, float *sums) {
    const ampi_engine *e = w->e;
    const size_t       j = ampi_max(at, w->lead) - w->lead;
    ampi_block         x;
    x.a        = a;
    x.b        = b;
    x.rs       = AMPI_DEEP;
    x.cs       = 1;
    x.piece    = AMPI_DEEP;
    x.next     = (e->rows - 1) * AMPI_DEEP;
    x.ldb      = e->cols;
    x.odd      = 0;
    x.rows     = ampi_min(w->m - i, e->rows);
    x.cols     = ampi_min(w->n, at + e->cols - w->lead) - j;
    x.words    = e->pairs ? (k1 - k0 + 1) / 2 : k1 - k0;
    x.products = w->terms == 1 ? 1 : w->g->tf32 ? 3 : 4;
    x.a_panel  = w->a_panel;
    x.in       = k0 ? sums : NULL;
    x.out      = sums;
    x.ld       = e->cols;
    if (w->once) {
        x.a     = (const uint32_t *)ampi_operand_at(w->x[0], i, k0).x;
        x.rs    = w->x[0].rs;
        x.cs    = w->x[0].cs;
        x.piece = w->k;
        x.next  = 0;
    }
    ampi_gemm_block(w, e, &x, i, j, 1, k1 == w->k);
}

/* Rows i0 to i1 of C, columns j0 to j1 (a_panel: columns, rows): the panel of B for k0 to k1 is
   packed, then used by one strip of A after another. */
static void ampi_gemm_panel(const ampi_task *w, size_t i0, size_t i1, size_t j0, size_t j1,
                            size_t k0, size_t k1) {
    const int    t    = w->a_panel;
    const size_t rows = t ? w->e->cols : w->e->rows, cols = t ? w->e->rows : w->e->cols;
    float       *sums = NULL;
    size_t       i, j, k, q;
    ampi_pack_strips(w, w->panel, !t, j0, j1, k0, k1);
    for (i = i0; i < i1; i += w->group * rows)
        for (k = k0; k < k1; k += w->step) {
            const size_t end = ampi_min(k + w->step, k1), at = ampi_strip(w, cols, k - k0);
            const size_t last = ampi_min(i + w->group * rows, i1);
            if (!w->once) ampi_pack_strips(w, w->strip, t, i, last, k, end);
            for (q = i; q < last; q += rows)
                for (j = j0; j < j1; j += cols) {
                    const uint32_t *panel = w->panel + (ampi_strip(w, j - j0, k1 - k0) + at);
                    const uint32_t *strip = w->strip + ampi_strip(w, q - i, end - k);
                    if (w->step < w->k)
                        sums = w->sums + ((q - (w->deep < w->k ? i0 : i)) * w->wide +
                                          (j - j0) * rows);
                    ampi_gemm_packed(w, t ? j : q, t ? q : j, k, end, t ? panel : strip,
                                     t ? strip : panel, sums);
                }
        }
}

static AMPI_NOINLINE void ampi_gemm_product(ampi_task *w) {
    const size_t across = w->n + w->lead;
    const size_t m = w->a_panel ? across : w->m, n = w->a_panel ? w->m : across;
    size_t       i, j, k;
    w->once  = !w->e->pairs && w->n <= w->e->cols && w->x[0].as == AMP_F32;
    w->panel = w->strip + w->strip_size;
    w->sums  = (float *)(void *)(w->panel + w->panel_size);
    for (i = 0; i < m; i += w->tall)
        for (j = 0; j < n; j += w->wide)
            for (k = 0; k < w->k; k += w->deep)
                ampi_gemm_panel(w, i, ampi_min(i + w->tall, m), j, ampi_min(j + w->wide, n), k,
                                ampi_min(k + w->deep, w->k));
}

/* For products with little work: FMA, in the order of pairs where others use pairs. */
static const ampi_engine *ampi_engine_words(const ampi_task *w) {
    return w->e->pairs ? ampi_tier_now()->engine : w->e;
}

/* A vector from k on as fp32; whole vectors are written. */
static void ampi_gemv_vector(const ampi_engine *e, float *v, const ampi_operand *y, size_t k,
                             size_t ks) {
    const ampi_operand at = ampi_operand_at(*y, 0, k);
    e->convert(v, 1, 0, &at, y->cs, y->cs == 1 ? 1 : ks, y->cs == 1 ? ks : 1);
}

/* m or n is 1, or few: the matrix is read once a vector, as it lies. Sums across cache lines would
   be slow. A matrix of one row is a vector, too. */
static AMPI_NOINLINE void ampi_gemm_by_gemv(ampi_task *w) {
    const ampi_engine *e   = ampi_engine_words(w);
    const int          row = w->m <= w->n;
    const size_t       all = row ? w->n : w->m, vectors = row ? w->m : w->n;
    const ampi_operand x   = w->x[row];
    float  v[AMPI_GEMV + AMPI_MOST_ROWS], room[AMPI_GEMV + 2 * AMPI_MOST_ROWS + 16];
    float *sum = (float *)(void *)ampi_align(room), *one = sum + AMPI_MOST_ROWS;
    const ampi_operand ones = {one, AMP_F32, AMP_F32, 1, 1};
    size_t i, r, k;
    for (i = 0; i < vectors; i++)
        for (r = 0; r < all; r += AMPI_GEMV) {
            const ampi_operand y    = ampi_operand_at(w->x[!row], i, 0);
            const size_t       rows = ampi_min(all - r, AMPI_GEMV);
            memset(sum, 0, (rows + AMPI_MOST_ROWS) * sizeof *sum);
            for (k = 0; k < w->k; k += AMPI_GEMV) {
                const size_t ks = ampi_min(w->k - k, AMPI_GEMV);
                ampi_operand at = ampi_operand_at(x, r, k);
                ampi_gemv_vector(e, v, &y, k, ks);
                if (all == 1) ampi_gemv_vector(e, one, &x, k, ks), at = ones;
                w->e->gemv(sum, &at, rows, ks, v, (size_t)w->e->pairs);
            }
            if (row || (w->g->ldc == 1 && !w->bias)) e->write(w, sum, 0, i, r, 1, rows);
            else if (!w->plain || w->g->c_type != AMP_F32) e->write(w, sum, 1, r, i, rows, 1);
            else
                for (k = 0; k < rows; k++)
                    memcpy(ampi_to(w->c, AMP_F32, (r + k) * w->g->ldc + i), sum + k, sizeof *sum);
        }
}

/* x as fp32 in room: transposed, so that its columns lie side by side, or as it lies, as one row
   where its rows follow each other. */
static void ampi_small_copy(const ampi_engine *e, ampi_operand *x, size_t rows, size_t ks,
                            int transpose, float *room) {
    const int    along = x->cs == 1;
    const size_t lines = along ? rows : ks, n = along ? ks : rows, step = along ? x->rs : x->cs;
    const int    one = step == n;
    const size_t up  = ampi_up(transpose ? rows : n, e->col_step);
    const size_t ld  = transpose ? up + (up % 64 ? 0 : 8) : one ? n : up; /* lines in other sets */
    if (transpose) e->transpose(room, ld, x, step, rows, ks, ks);
    else e->convert(room, ld, 0, x, step, one ? 1 : lines, one ? lines * n : n);
    x->x    = room;
    x->type = x->as = AMP_F32;
    x->rs   = along && !transpose ? ld : 1;
    x->cs   = along && !transpose ? 1 : ld;
}

/* Operands are read where they lie if they are fp32 and, of B, the columns lie side by side. */
static AMPI_NOINLINE void ampi_gemm_small(ampi_task *w) {
    const ampi_engine *e = ampi_engine_words(w);
    ampi_operand       a = w->x[0], b = w->x[1];
    float              a_room[AMPI_ROOM_A], b_room[AMPI_ROOM_B + AMPI_ROOM_B / 8];
    ampi_block         x;
    size_t             i, j, rows = e->rows, wide = e->cols;
    if (a.as != AMP_F32) ampi_small_copy(e, &a, w->m, w->k, 0, a_room);
    if (b.as != AMP_F32 || b.rs != 1) ampi_small_copy(e, &b, w->n, w->k, b.rs != 1, b_room);
    x.rs    = a.rs;
    x.cs    = a.cs;
    x.next  = 0;
    x.ldb   = b.cs;
    x.words = x.piece = w->k;
    x.odd   = (size_t)w->e->pairs;
    x.in    = NULL;
    if (w->n > wide && w->k < AMPI_NEAR / 2 / wide) /* many blocks a call, as room has */
        wide *= ampi_min(AMPI_NEAR / ampi_max(w->k, 1),
                         AMPI_MOST_ROWS * AMPI_MOST_COLS / e->rows) / wide;
    for (i = 0; i < w->m; i += rows)
        for (j = 0; j < w->n; j += wide) { /* one or two rows alone would wait for their sums */
            rows = w->m - i - e->rows - 1 < e->row_step ? e->rows - e->row_step : e->rows;
            x.a    = (const uint32_t *)ampi_at(a.x, AMP_F32, i * a.rs);
            x.b    = (const uint32_t *)ampi_at(b.x, AMP_F32, j);
            x.rows = ampi_min(w->m - i, rows);
            x.cols = ampi_min(w->n - j, wide);
            x.ld   = wide;
            ampi_gemm_block(w, e, &x, i, j, 0, 1);
        }
}

/* Is op(A) or op(B) read where it lies, or is there room for it? */
static int ampi_fits(const ampi_operand *x, int of_b, size_t rows, size_t ks) {
    return (x->as == AMP_F32 && (!of_b || x->rs == 1)) ||
           ampi_up(rows, AMPI_MOST_COLS) * ampi_up(ks, AMPI_DEEP) <=
               (of_b ? AMPI_ROOM_B : AMPI_ROOM_A);
}

/* Has a product more than most multiply-adds? */
static int ampi_work_above(size_t m, size_t n, size_t k, size_t most) {
    return (double)m * (double)n * (double)k > (double)most;
}

/* The way of a product, the first that holds; none changes a bit of FMA engines. Where each begins
   was measured in AVX2 (blocks of R = 6 rows, C = 16 columns) and AVX-512 (12, 32). B lies along if
   columns of op(B) are along memory's rows. Rows a multiple of 4096 bytes apart share few lines of
   the first-level cache: those of B in AVX2, of A in AVX-512 (more than 8 at a time).
       gemv      m or n is 1; m is 2 and B along; n is 2 and A not; m up to 4, B of 16 bits
       swapped   C' = B' A': B along, n above C, m above R (R / 3 if B shares lines) up to C, k from
                 192, n k above 2^14. Only A is packed: B is read once, where it lies
       small     in place: m up to 2 R, n k up to 2^20, or k up to 8 (B shares lines: m up to R); or
                 m n k up to 2^21 (2^17 if lines are shared, m from 24); if what is copied has room
       product   packed, but for strips of A that are used once (n up to C) */
static void ampi_way(ampi_task *w) {
    const ampi_operand *a = &w->x[0], *b = &w->x[1];
    const size_t        m = w->m, n = w->n, k = w->k, rows = w->e->rows, cols = w->e->cols;
    const int           pairs = w->e->pairs, along = b->rs != 1;
    const int           tiny     = !ampi_work_above(m, n, k, AMPI_GEMM_TINY);
    const int           shares   = b->rs * b->cs % 1024 == 0; /* one of them is 1 */
    const int           b_shares = !along && shares && cols <= 16;
    const int           a_shares = !along && a->rs % 1024 == 0 && rows > 8;
    w->run     = ampi_gemm_product;
    w->swapped = 0;
    if (m == 1 || n == 1) {
        w->run = pairs || ampi_work_above(m, n, k, n == 1 ? 16 : 256) ? ampi_gemm_by_gemv
                                                                      : ampi_gemm_small;
    } else if (!pairs && !tiny && ((m == 2 && along) || (n == 2 && m > 2 && a->rs != 1) ||
                                   (m <= ampi_min(n, 4) && !along && b->type != AMP_F32))) {
        w->run = ampi_gemm_by_gemv;
    } else if (!pairs && along && n > cols && b->as == AMP_F32 && k >= 192 && m <= cols &&
               m > (shares ? rows / 3 : rows) && ampi_work_above(1, n, k, AMPI_ROOM_B)) {
        const ampi_operand of_a = *a;
        w->x[0]    = *b;
        w->x[1]    = of_a;
        w->m       = n;
        w->n       = m;
        w->swapped = 1;
    } else if ((pairs ? tiny && k % 2 == 0
                      : tiny || (k <= 8 && !b_shares) ||
                            (m <= (b_shares ? rows : 2 * rows) &&
                             !ampi_work_above(1, n, k, AMPI_NEAR_B)) ||
                            !ampi_work_above(m, n, k, m >= 24 && (a_shares || b_shares)
                                                          ? AMPI_SMALL / 16 : AMPI_SMALL)) &&
               w->e->least == 0 && ampi_fits(a, 0, m, k) && ampi_fits(b, 1, n, k)) {
        w->run = ampi_gemm_small;
    }
}

/* The engine of a product (by the tier, types, compute, tf32, m, n and k alone: it makes the bits)
   and its way (also by strides); without k it is tiny. */
static void ampi_task_begin(ampi_task *w, const amp_gemm_args *g) {
    const int    zero = ampi_is_zero(g->alpha) || g->k == 0; /* A and B may be NULL */
    const size_t m = g->m, n = g->n, k = zero ? 0 : g->k, bytes = amp_dtype_size(g->c_type);
    w->g     = g;
    w->m     = m;
    w->n     = n;
    w->k     = k;
    w->count = g->count;
    w->alpha = zero ? 1.0f : g->alpha;
    w->c     = g->c;
    w->bias  = g->bias;
    w->plain = ampi_load_u32(&w->alpha, 0) == 0x3f800000u && ampi_is_zero(g->beta) && !g->bias &&
               !g->activation;
    w->x[0]  = ampi_operand_of(g, 0);
    w->x[1]  = ampi_operand_of(g, 1);
    if (zero) w->x[0].x = w->x[1].x = g->c;
    w->e = NULL;
    if (g->tf32 || (w->x[0].as != AMP_F32 && w->x[1].as != AMP_F32))
        w->e = ampi_engine_pairs(ampi_is_whole(w), m, n, k);
    if (!w->e) w->e = ampi_tier_now()->engine;
    ampi_way(w);
    w->lead = 0; /* or every row of a tile is in two lines; where k is long, it gains less */
    if (w->e->use_tiles && n >= 256 && k <= 256 && bytes * (g->ldc | g->stride_c) % 64 == 0)
        w->lead = (uintptr_t)g->c % 64 / bytes;
}

/* To so many elements behind A, B and C. */
static void ampi_task_move(ampi_task *w, size_t a, size_t b, size_t c) {
    ampi_operand *of_a = &w->x[w->swapped], *of_b = &w->x[!w->swapped];
    of_a->x = ampi_at(of_a->x, of_a->type, a);
    of_b->x = ampi_at(of_b->x, of_b->type, b);
    w->c    = ampi_to(w->c, w->g->c_type, c);
}

/* The products of a batch, or of a thread's share of them. */
static void ampi_gemm_each(ampi_task *w) {
    size_t i;
    for (i = 0; i < w->count; i++) {
        if (i) ampi_task_move(w, w->g->stride_a, w->g->stride_b, w->g->stride_c);
        w->run(w);
    }
}

static AMPI_NOINLINE void ampi_gemm_on_stack(ampi_task *w) {
    uint32_t space[AMPI_STACK + 16];
    w->strip = ampi_align(space);
    ampi_gemm_each(w);
    w->strip = NULL;
}

/* One thread's share. */
static void ampi_gemm_share(ampi_task *w) {
    const uint32_t fp = ampi_fp_begin();
    if (w->e->use_tiles) w->e->use_tiles(1);
    if (w->run == ampi_gemm_product && !w->strip) ampi_gemm_on_stack(w);
    else ampi_gemm_each(w);
    if (w->e->use_tiles) w->e->use_tiles(0);
    ampi_fp_end(fp);
}

/* Share t of all: products of the batch, or a slice of the longer side of C. 0: nothing is left. */
static int ampi_gemm_split(ampi_task *w, size_t t, size_t all) {
    const amp_gemm_args *g     = w->g;
    const int            batch = w->count > 1, tall = w->m >= w->n, rows = tall && !w->swapped;
    size_t              *side  = batch ? &w->count : tall ? &w->m : &w->n;
    const size_t         unit  = batch ? 1 : tall ? w->e->rows : w->e->cols;
    const size_t         share = ampi_up((*side + all - 1) / all, unit), from = t * share;
    if (from >= *side) return 0;
    *side = ampi_min(share, *side - from);
    if (w->strip) w->strip += t * w->size;
    if (batch) {
        ampi_task_move(w, from * g->stride_a, from * g->stride_b, from * g->stride_c);
    } else if (rows) {
        ampi_task_move(w, from * w->x[0].rs, 0, from * g->ldc);
    } else {
        ampi_task_move(w, 0, from * w->x[!w->swapped].rs, from);
        if (w->bias) w->bias = ampi_at(w->bias, g->bias_type, from);
    }
    return 1;
}

/* Threads that OpenMP has for us. */
static size_t ampi_team(void) {
    size_t team = 0;
    AMPI_OPENMP(omp parallel reduction(+ : team))
    team++;
    return team;
}

AMP_DEF size_t amp_gemm_workspace(size_t m, size_t n, size_t k) {
    ampi_task w;
    size_t    i, most = 0;
    memset(&w, 0, sizeof w);
    w.m = ampi_min(m, SIZE_MAX / 8); /* no matrix has more; rounded up, it is a size_t */
    w.n = ampi_min(n, SIZE_MAX / 8);
    w.k = ampi_min(k, SIZE_MAX / 8);
    w.lead = AMPI_MOST_COLS - 1;
    for (i = 0; (w.e = ampi_engine_of(i / 2)) != NULL; i++) {
        w.x[0].as = w.x[1].as = i % 2 ? AMP_BF16 : AMP_F16; /* one term, or two */
        ampi_task_size(&w, 0);
        most = ampi_max(most, w.size * 4);
    }
    return most * ampi_team() + 64;
}

#if defined(AMP_CBLAS) && defined(__APPLE__) /* Accelerate: its units are not Arm's own */
#define AMPI_FAST_BLAS 1
#else
#define AMPI_FAST_BLAS 0
#endif

#ifdef AMP_CBLAS
/* Products of fp32 alone, large enough for the BLAS; gemv and what is tiny are faster here. */
static int ampi_gemm_cblas(const ampi_task *w) {
    const amp_gemm_args *g = w->g;
    size_t               i;
    if (g->a_type != AMP_F32 || g->b_type != AMP_F32 || g->c_type != AMP_F32 || g->compute ||
        g->bias || g->activation || w->run == ampi_gemm_by_gemv || w->e->pairs ||
        !ampi_work_above(g->m, g->n, g->k, AMPI_GEMM_TINY) ||
        (g->m | g->n | g->k | g->lda | g->ldb | g->ldc) > 0x7fffffff)
        return 0;
    for (i = 0; i < g->count; i++) {
        const uint32_t fp = ampi_fp_begin();
        cblas_sgemm(CblasRowMajor, g->trans_a ? CblasTrans : CblasNoTrans,
                    g->trans_b ? CblasTrans : CblasNoTrans, (int)g->m, (int)g->n, (int)g->k,
                    g->alpha, (const float *)g->a + i * g->stride_a, (int)g->lda,
                    (const float *)g->b + i * g->stride_b, (int)g->ldb, g->beta,
                    (float *)g->c + i * g->stride_c, (int)g->ldc);
        ampi_fp_end(fp);
    }
    return 1;
}
#endif

/* A product is packed in the workspace, in memory from malloc, or else in less on the stack. */
static amp_result ampi_cpu_gemm(const amp_backend *self, const amp_gemm_args *g) {
    const amp_allocator heap   = {NULL, NULL, NULL};
    void               *memory = NULL;
    size_t              team   = 1, bytes;
    ampi_task           w;
    int64_t             t;
    ampi_task_begin(&w, g);
#ifdef AMP_CBLAS
    if (ampi_gemm_cblas(&w)) return AMP_OK;
#endif
    if (ampi_work_above(w.m, w.n, w.k, AMPI_HEAVY / g->count)) team = ampi_team();
    w.strip = NULL;
    if (w.run == ampi_gemm_product) {
        ampi_task_size(&w, 0);
        bytes = w.size * 4 * team + 64;
        if (self && self->workspace && self->workspace_size >= bytes)
            w.strip = ampi_align(self->workspace);
        else if (ampi_work_above(w.m, w.n, w.k, AMPI_HEAVY) &&
                 (memory = ampi_allocate(&heap, bytes)) != NULL)
            w.strip = ampi_align(memory);
        else if (w.size > AMPI_STACK)
            ampi_task_size(&w, 1);
    }
    if (team == 1) {
        ampi_gemm_share(&w);
    } else {
        AMPI_OPENMP(omp parallel for schedule(static))
        for (t = 0; t < (int64_t)team; t++) {
            ampi_task own = w;
            if (ampi_gemm_split(&own, (size_t)t, team)) ampi_gemm_share(&own);
        }
    }
    ampi_release(&heap, memory);
    return AMP_OK;
}

/* What may change this thread's products before they run: autocast, if it is in use. */
typedef struct ampi_hook {
    amp_result (*product_fn)(void *context, const amp_backend *backend, amp_gemm_args *g);
    void *context;
} ampi_hook;
#ifndef AMPI_ONE_THREAD
static AMPI_THREAD_LOCAL ampi_hook ampi_current;
#else
static const ampi_hook ampi_current = {NULL, NULL};
#endif

/* Are a b elements more than memory has? A division takes long. */
static int ampi_too_many(size_t a, size_t b) {
    return (a | b) >> (sizeof a * 4 - 2) && a && b > SIZE_MAX / 8 / a;
}

/* What is wrong with a matrix. */
static AMPI_NOINLINE amp_result ampi_matrix_refuse(const char *name, const ampi_matrices *x,
                                                   int used) {
    AMPI_REFUSE(!amp_dtype_size(x->type), INVALID_ENUM,
                "%s_type is %g, which amp.h does not know", name, (double)x->type);
    AMPI_REFUSE(x->ld < x->cols, INVALID_ARGUMENT, "ld%s is %g, and must be %g or more (0: packed)",
                name, (double)x->ld, (double)x->cols);
    if (used && !x->x) return ampi_missing(name);
    return ampi_refuse(AMP_ERROR_TOO_LARGE, "%s is too large: %g rows, %g apart; stride %g", name,
                       (double)x->rows, (double)x->ld, (double)x->stride);
}

/* Replace a leading dimension of 0; see that rows do not overlap and that sizes exist. A matrix
   that is not used may be NULL. */
AMPI_HOST AMPI_ALWAYS amp_result ampi_matrices_ok(const char *name, ampi_matrices *x, size_t count,
                                                  int used) {
    if (x->ld == 0) x->ld = x->cols ? x->cols : 1;
    used = used && x->rows && x->cols;
    return amp_dtype_size(x->type) && x->ld >= x->cols && (x->x || !used) &&
                   !ampi_too_many(x->rows, x->ld) &&
                   (count <= 1 || !ampi_too_many(count, x->stride))
               ? AMP_OK : ampi_matrix_refuse(name, x, used);
}

/* Is C's first element one of x, which is read? */
AMPI_HOST AMPI_ALWAYS int ampi_begins_in(const amp_gemm_args *g, const ampi_matrices *x) {
    const size_t row = x->ld * amp_dtype_size(x->type), cols = x->cols * amp_dtype_size(x->type);
    size_t       i;
    for (i = 0; i < (x->stride ? g->count : 1); i++) {
        const uintptr_t first = (uintptr_t)ampi_at(x->x, x->type, i * x->stride);
        const uintptr_t c     = (uintptr_t)g->c - first; /* huge if it lies in front */
        if (c < x->rows * row && c % row < cols) return 1;
    }
    return 0;
}

/* Check a product whose arguments are all there, and replace leading dimensions of 0. names are
   the caller's, of C, A and B. */
static amp_result ampi_gemm_ok(amp_gemm_args *g, const char *const *names) {
    const int     reads = !ampi_is_zero(g->alpha); /* A and B */
    ampi_matrices a = ampi_matrices_of(g, 0), b = ampi_matrices_of(g, 1);
    ampi_matrices c = {g->c, g->c_type, g->m, g->n, g->ldc, g->stride_c};
    ampi_matrices bias = {g->bias, g->bias_type, 1, g->n, g->n, 0};
    AMPI_TRY(ampi_matrices_ok(names[0], &c, g->count, 1));
    AMPI_TRY(ampi_matrices_ok(names[1], &a, g->count, reads));
    AMPI_TRY(ampi_matrices_ok(names[2], &b, g->count, reads));
    g->lda = a.ld;
    g->ldb = b.ld;
    g->ldc = c.ld;
    AMPI_TRY(ampi_type_known("compute", g->compute));
    if (g->bias) AMPI_TRY(ampi_type_known("bias_type", g->bias_type));
    if ((unsigned)g->activation > AMP_ACTIVATION_RELU)
        return ampi_unknown("activation", (int)g->activation);
    AMPI_REFUSE(g->compute && ((g->a_type != AMP_F32 && g->a_type != g->compute) ||
                               (g->b_type != AMP_F32 && g->b_type != g->compute)), MIXED_TYPES,
                "compute is %s, and a_type %s, b_type %s", ampi_type_name(g->compute),
                ampi_type_name(g->a_type), ampi_type_name(g->b_type));
    if (g->m == 0 || g->n == 0) return AMP_OK;
    /* neither one behind another, nor side by side? */
    AMPI_REFUSE(g->count > 1 && g->stride_c < (g->m - 1) * g->ldc + g->n &&
                    (g->stride_c < g->n || g->stride_c * (g->count - 1) + g->n > g->ldc), OVERLAP,
                "stride_c is %g, with m %g and ldc %g: matrices of the batch overlap in c",
                (double)g->stride_c, (double)g->m, (double)g->ldc);
    AMPI_REFUSE(g->bias && ampi_begins_in(g, &bias), OVERLAP, "%s begins at an element of bias",
                names[0]);
    AMPI_REFUSE(reads && g->k && ampi_begins_in(g, &a), OVERLAP, "%s begins at an element of %s",
                names[0], names[1]);
    AMPI_REFUSE(reads && g->k && ampi_begins_in(g, &b), OVERLAP, "%s begins at an element of %s",
                names[0], names[2]);
    return AMP_OK;
}

static const char *const ampi_gemm_names[] = {"c", "a", "b"};

/* Check and run a product whose arguments are all there, and an alpha of 0 is one. */
static amp_result ampi_gemm(const amp_backend *backend, amp_gemm_args *g,
                            const char *const *names) {
    amp_result result;
    AMPI_TRY(ampi_gemm_ok(g, names));
    AMPI_REFUSE(backend && !backend->functions, INVALID_ARGUMENT,
                "backend was not made by amp_cuda_backend");
    if (g->m == 0 || g->n == 0) return AMP_OK;
    if (ampi_current.product_fn && !g->compute)
        AMPI_TRY(ampi_current.product_fn(ampi_current.context, backend, g));
    if (!backend) return ampi_cpu_gemm(NULL, g);
    result = backend->functions->gemm_fn(backend, g);
    if (result == AMP_OK) return result;
    return ampi_refuse(result, "m %g, n %g, k %g, a_type %s, c_type %s: %s", (double)g->m,
                       (double)g->n, (double)g->k, ampi_type_name(g->a_type),
                       ampi_type_name(g->c_type), amp_result_string(result));
}

/* A product of packed fp32 matrices. */
static amp_gemm_args ampi_product(void *c, const void *a, int trans_a, const void *b, int trans_b,
                                  size_t m, size_t n, size_t k) {
    amp_gemm_args g;
    g.beta = 0.0f; /* one by one: a memset of all takes 27 ns more */
    g.a_type = g.b_type = g.c_type = g.bias_type = g.compute = AMP_F32;
    g.lda = g.ldb = g.ldc = g.stride_a = g.stride_b = g.stride_c = 0;
    g.bias = NULL;
    g.activation = AMP_ACTIVATION_NONE;
    g.tf32       = 0;
    g.trans_a = trans_a;
    g.trans_b = trans_b;
    g.m       = m;
    g.n       = n;
    g.k       = k;
    g.alpha   = 1.0f;
    g.a       = a;
    g.b       = b;
    g.c       = c;
    g.count   = 1;
    return g;
}

AMP_DEF amp_result amp_gemm(const amp_backend *backend, const amp_gemm_args *args) {
    amp_gemm_args g;
    if (!args) return ampi_missing("args");
    g = *args;
    if (ampi_is_zero(g.alpha)) g.alpha = 1.0f;
    if (g.count == 0) g.count = 1;
    return ampi_gemm(backend, &g, ampi_gemm_names);
}

AMP_DEF amp_result amp_matmul(float *c, const float *a, const float *b, size_t m, size_t n,
                              size_t k, amp_dtype compute) {
    amp_gemm_args g = ampi_product(c, a, 0, b, 0, m, n, k);
    g.compute = compute;
    return ampi_gemm(NULL, &g, ampi_gemm_names);
}

AMP_DEF amp_result amp_linear(float *y, const float *x, const float *w, const float *bias,
                              size_t rows, size_t in, size_t out, amp_dtype compute) {
    static const char *const names[] = {"y", "x", "w"};
    amp_gemm_args            g       = ampi_product(y, x, 0, w, 1, rows, out, in);
    g.bias    = bias;
    g.compute = compute;
    return ampi_gemm(NULL, &g, names);
}

AMPI_STRICT_END
AMPI_COLD_BEGIN

/* Do n elements at x, and m at y, share one? Each may be NULL. */
static int ampi_floats_overlap(const float *x, size_t n, const float *y, size_t m) {
    const uintptr_t a = (uintptr_t)x, b = (uintptr_t)y;
    return x && y && n && m && a < b + m * sizeof *y && b < a + n * sizeof *x;
}

AMP_DEF amp_result amp_linear_backward(float *dx, float *dw, float *dbias, const float *dy,
                                       const float *x, const float *w, size_t rows, size_t in,
                                       size_t out, int accumulate, amp_dtype compute) {
    static const char *const names[] = {"dx", "dy", "w", "dw", "dy", "x"};
    const float *const at[] = {dx, dy, w, dw, dy, x};
    const size_t       n[]  = {rows * in, rows * out, out * in, out * in, rows * out, rows * in};
    amp_gemm_args of_x = ampi_product(dx, dy, 0, w, 0, rows, in, out);
    amp_gemm_args of_w = ampi_product(dw, dy, 1, x, 0, out, in, rows);
    ampi_matrices of_dy = {dy, AMP_F32, rows, out, out, 0}, sums = {dbias, AMP_F32, 1, out, out, 0};
    uint32_t      fp;
    size_t        i;
    AMPI_TRY(ampi_type_known("compute", compute));
    of_x.compute = of_w.compute = compute;
    if (accumulate) of_w.beta = 1.0f;
    if (dx) AMPI_TRY(ampi_gemm_ok(&of_x, names));
    if (dw) AMPI_TRY(ampi_gemm_ok(&of_w, names + 3));
    if (dbias) AMPI_TRY(ampi_matrices_ok("dbias", &sums, 1, 1));
    if (dbias) AMPI_TRY(ampi_matrices_ok("dy", &of_dy, 1, 1));
    for (i = 0; i < 6; i++) {
        AMPI_REFUSE(ampi_floats_overlap(dbias, out, at[i], n[i]), OVERLAP, "dbias overlaps %s",
                    names[i]);
        AMPI_REFUSE(i < 3 && i != 1 && ampi_floats_overlap(dw, out * in, at[i], n[i]), OVERLAP,
                    "dw overlaps %s", names[i]);
    }
    if (dw) AMPI_TRY(ampi_gemm(NULL, &of_w, names + 3)); /* first, as dx may be x */
    if (dx) AMPI_TRY(ampi_gemm(NULL, &of_x, names));
    if (!dbias) return AMP_OK;
    if (!accumulate) memset(dbias, 0, out * sizeof *dbias);
    fp = ampi_fp_begin();
    for (i = 0; i < rows; i++) ampi_loops_now()->accumulate(dbias, dy + i * out, AMP_F32, 0, out);
    ampi_fp_end(fp);
    return AMP_OK;
}

/* ------------------------------------------------------- the second floor */

/* ------------------------------------------------------------- >>impl capability */

/* NVIDIA: tensor cores multiply fp16 from 7.0 on, bf16 and TF32 from 8.0 on. */
AMP_DEF amp_result amp_capability_of(int major, int minor, amp_capability *c) {
    const char *tier  = major ? "" : amp_cpu_tier();
    const int   amx   = strcmp(tier, "amx") == 0;
    const int   pairs = strcmp(tier, "avx512_bf16") == 0;
    const int   fours = strcmp(tier, "neon_bf16") == 0 && !AMPI_FAST_BLAS;
    if (!c) return ampi_missing("capability");
    AMPI_REFUSE(major < 0 || minor < 0, INVALID_ARGUMENT, "version %g.%g: neither may be negative",
                (double)major, (double)minor);
    c->fp16   = major >= 7 || amx;
    c->bf16   = major >= 8 || amx || pairs || fours;
    c->tf32   = major >= 8 || amx;
    c->dtype  = c->bf16 ? AMP_BF16 : c->fp16 ? AMP_F16 : AMP_F32;
    c->scaler = c->fp16 && !c->bf16;
    c->advice =
        amx     ? "AMX: bf16 products are several times as fast as fp32's and need no loss scale; "
                  "fp16's are exact, and up to twice as fast where they are large"
        : pairs ? "AVX512_BF16: bf16 products take half the instructions of fp32's and need no "
                  "loss scale; fp16's run in fp32"
        : fours ? "BFMMLA: bf16 products take a third of the instructions of fp32's and need no "
                  "loss scale; fp16's run in fp32"
        : c->bf16 ? "bf16 needs no loss scale; fp16 keeps three more bits and needs one"
        : c->fp16 ? "fp16 with a dynamic loss scale; bf16 and TF32 are not in hardware"
        : major   ? "no tensor cores: 16 bits save memory, not time"
                  : "products run in fp32 here: 16 bits save memory, not time";
    return AMP_OK;
}

/* ----------------------------------------------------------------- >>impl sparse
   The sum of a row: its entries are added 64 at a time, in order, then these sums in order. The
   sums, rows ascending, are checked and counted like the elements of a tensor. (torch's
   SparseAdam adds eps before the bias correction; its eps is eps / sqrt(1 - beta2^step) here.)
   Launches on CUDA: 4, 1 for every 8 bits of the largest number of rows in a tensor, and 1 if a
   max_rows is above 8192. */

/* Is what a tensor says of its rows consistent? */
static amp_result ampi_rows_ok(const amp_optimizer *opt, const amp_tensor *t) {
    const amp_rows *r    = t->rows;
    const int       most = ampi_optimizers[opt->desc.kind].always;
    AMPI_REFUSE(opt->desc.kind == AMP_KIND_OWN, UNSUPPORTED, "rows" AMPI_FUSED_ALONE);
    AMPI_REFUSE(ampi_num_moments(&opt->desc) > most, UNSUPPORTED,
                "rows are for SGD without momentum: set desc.momentum to 0, or use AdamW");
    if (!r->row_length || t->n % r->row_length != 0)
        return ampi_out("row_length", (double)r->row_length, "1 or more, and divide n");
    if (!r->max_rows) return ampi_out("max_rows", 0.0, "1 or more");
    if (!t->frozen && (!r->rows || !r->num_rows))
        return ampi_missing(r->rows ? "num_rows" : "rows");
    AMPI_REFUSE(r->row_length > INT32_MAX || t->n / r->row_length > UINT32_MAX - 2 ||
                    r->max_rows > INT32_MAX || r->max_rows > SIZE_MAX / 64 / r->row_length,
                TOO_LARGE, "row_length is %g, with n %g and max_rows %g: too large",
                (double)r->row_length, (double)t->n, (double)r->max_rows);
    return AMP_OK;
}

/* Places tables and sums of gradients of few rows; the sums are the slots' gradients. */
static void ampi_place_rows(const amp_optimizer *opt, amp_plan *plan, ampi_arena *arena) {
    uint64_t tiles = 0, most = 0;
    size_t   i, k, used = 0;
    plan->sparse = (ampi_sparse *)ampi_take(arena, plan->num_sparse, sizeof *plan->sparse, 64);
    for (i = 0; i < opt->num_entries; i++) {
        const ampi_entry *e = ampi_entry_of(opt, i);
        const amp_rows   *r = &e->rows;
        ampi_sparse      *s = &plan->host_sparse[used];
        const size_t      segments = r->max_rows / AMPI_SEGMENT + 1;
        if (!ampi_has_rows(e)) continue;
        memset(s, 0, sizeof *s);
        s->rows       = r->rows;
        s->num_rows   = r->num_rows;
        s->slot       = (uint32_t)i;
        s->most       = (uint32_t)r->max_rows;
        s->length     = (uint32_t)r->row_length;
        s->table      = (uint32_t)(e->tensor.n / r->row_length);
        s->first_tile = (uint32_t)tiles;
        s->num_tiles  = (s->most - 1) / AMPI_TILE + 1;
        tiles += s->num_tiles;
        for (k = 0; k < 2; k++) {
            s->keys[k]   = (uint32_t *)ampi_take(arena, s->most, 4, 64);
            s->places[k] = (uint32_t *)ampi_take(arena, s->most, 4, 64);
            s->counts[k] = (uint32_t *)ampi_take(arena, (size_t)s->num_tiles * AMPI_DIGITS, 4, 64);
        }
        s->unique = (uint32_t *)ampi_take(arena, s->most, 4, 64);
        s->begins = (uint32_t *)ampi_take(arena, segments, 4, 64);
        s->done   = (uint32_t *)ampi_take(arena, segments, 4, 64);
        s->spare  = (float *)ampi_take(arena, segments * s->length, 4, 256);
        plan->host_slots[i].grad   = ampi_take(arena, (size_t)ampi_most_sums(e), 4, 256);
        plan->host_slots[i].sparse = plan->sparse ? plan->sparse + used : NULL;
        if (s->table > most) most = s->table;
        if (s->length > plan->longest) plan->longest = s->length;
        used++;
    }
    if (tiles > UINT32_MAX) arena->too_large = 1;
    plan->num_tiles = (uint32_t)tiles;
    for (plan->passes = 1; plan->passes < 4 && most > (uint64_t)1 << 8 * plan->passes;)
        plan->passes++;
}

/* Turns an element of the sums into that of the tensor. */
static amp_result ampi_place_in_rows(const amp_optimizer *opt, int i, amp_grad_stats *stats) {
    const ampi_sparse *s = opt->plan->host_sparse;
    uint32_t           row;
    while (s->slot != (uint32_t)i) s++;
    AMPI_TRY(ampi_read_back(opt, &row, &s->unique[stats->first_nonfinite / s->length], sizeof row));
    stats->first_nonfinite = (uint64_t)row * s->length + stats->first_nonfinite % s->length;
    return AMP_OK;
}

AMPI_COLD_END
AMPI_STRICT_BEGIN

/* One pass of the sort, by digit number pass: stable. */
static void ampi_sort_pass(ampi_sparse *s, uint32_t pass) {
    const uint32_t *keys = s->keys[1 - pass % 2], *places = s->places[1 - pass % 2];
    uint32_t        count[AMPI_DIGITS], i, d, sum = 0;
    memset(count, 0, sizeof count);
    for (i = 0; i < s->given; i++) count[keys[i] >> 8 * pass & 255u]++;
    for (d = 0; d < AMPI_DIGITS; d++) {
        const uint32_t n = count[d];
        count[d]         = sum;
        sum += n;
    }
    for (i = 0; i < s->given; i++) {
        const uint32_t to = count[keys[i] >> 8 * pass & 255u]++;
        s->keys[pass % 2][to]   = keys[i];
        s->places[pass % 2][to] = places[i];
    }
}

/* Adds up the row that begins at sorted entry i: segments, then their sums. */
static void ampi_sum_row(const ampi_slot *slot, const ampi_sparse *s, const uint32_t *keys,
                         const uint32_t *places, uint32_t i, float *to) {
    const amp_dtype type = slot->values_type;
    const size_t    n    = s->length;
    const uint32_t  key = keys[i], begin = i;
    uint32_t        k;
    for (; i < s->given && keys[i] == key; i += k) {
        float *sum = i == begin ? to : s->spare + i / AMPI_SEGMENT * n;
        ampi_cast(sum, AMP_F32, ampi_at(slot->values, type, places[i] * n), type, n);
        for (k = 1; k < AMPI_SEGMENT && i + k < s->given && keys[i + k] == key; k++)
            ampi_loops_now()->accumulate(sum, ampi_at(slot->values, type, places[i + k] * n), type,
                                         0, n);
        if (i != begin) ampi_loops_now()->accumulate(to, sum, AMP_F32, 0, n);
    }
}

/* Sorts a gradient of few rows, and adds up each row from where it begins. */
static void ampi_sum_rows(const amp_plan *plan, ampi_slot *slot) {
    ampi_sparse    *s      = slot->sparse;
    const uint32_t  last   = (plan->passes - 1) % 2;
    const uint32_t *keys   = s->keys[last], *places = s->places[last];
    uint32_t       *begins = s->keys[1 - last], i;
    int64_t         row;
    s->given   = ampi_given(slot, s);
    s->touched = 0;
    s->early   = s->given == s->most && *s->num_rows > s->most;
    for (i = s->given; i-- > 0;) {
        if (s->rows[i] >= s->table) s->early = s->most + 1u - i;
        s->keys[1][i]   = ampi_row(s, i);
        s->places[1][i] = i;
    }
    for (i = 0; i < plan->passes; i++) ampi_sort_pass(s, i);
    for (i = 0; i < s->given; i++) {
        if (!ampi_begins(keys, i)) continue;
        begins[s->touched]      = i;
        s->unique[s->touched++] = keys[i];
    }
    AMPI_OPENMP(omp parallel for schedule(static) if (s->given > 1000))
    for (row = 0; row < (int64_t)s->touched; row++)
        AMPI_IEEE(ampi_sum_row(slot, s, keys, places, begins[row],
                               (float *)slot->grad + row * s->length));
    ampi_begin_sums(slot, s);
}

/* Updates the rows that the gradient touches. */
static void ampi_update_rows(const amp_plan *plan, const ampi_slot *slot) {
    const ampi_sparse *s = slot->sparse;
    const size_t       n = s->length;
    int64_t            row;
    AMPI_OPENMP(omp parallel for schedule(static) if (s->touched > 1000))
    for (row = 0; row < (int64_t)s->touched; row++)
        AMPI_IEEE(ampi_step_chunk(plan, slot, s->unique[row] * n, (size_t)row * n, n));
}

/* ---------------------------------------------------------------- >>impl report
   A step counts into ampi_record, ampi_overflows and ampi_histogram (>>core report). Here they
   are read, saved and evaluated. A state without a report begins a new history. */

/* Counts of a chunk. Exponents are counted in four tables, because a count must have been stored
   before it is read again. */
typedef struct ampi_sample {
    uint32_t count[AMPI_COUNTS], table[4][256];
} ampi_sample;

static void ampi_count_exponents(ampi_sample *s, uint32_t *x, size_t n) {
    size_t i, k;
    while (n % 4 != 0) x[n++] = 0; /* zeros are counted with inf and NaN: they have no bin */
    for (i = 0; i < n; i += 4)
        AMPI_UNROLL for (k = 0; k < 4; k++) {
            const uint32_t a = x[i + k] & 0x7fffffffu;
            s->table[k][a ? a >> 23 : 255u]++;
        }
}

/* Adds a chunk's counts to the histogram, bins from first on; zeros, inf and NaN have none. */
static void ampi_end_sample(ampi_histogram *histogram, ampi_sample *s, int first) {
    int k;
    for (k = 0; k < 255; k++)
        s->count[first + (int)ampi_bin((uint32_t)k << 23)] +=
            s->table[0][k] + s->table[1][k] + s->table[2][k] + s->table[3][k];
    for (k = 0; k < AMPI_COUNTS; k++) {
        if (!s->count[k]) continue;
        AMPI_OPENMP(omp atomic) /* a critical section would be a symbol of its own */
        histogram->count[k] += s->count[k];
    }
}

/* Counts what casts would do to gradients, in a loop without branches. */
static void ampi_count_casts(uint32_t *count, const uint32_t *x, size_t n) {
    uint32_t zeros = 0, f16_zero = 0, f16_small = 0, bf16_zero = 0, bf16_small = 0;
    size_t   i;
    for (i = 0; i < n; i++) {
        const uint32_t a = x[i] & 0x7fffffffu;
        zeros += a == 0u;
        f16_zero += a <= AMPI_F16_ZERO_TO;
        f16_small += a < AMPI_F16_NORMAL_FROM;
        bf16_zero += a <= AMPI_BF16_ZERO_TO;
        bf16_small += a < AMPI_BF16_NORMAL_FROM;
    }
    count[AMPI_F16_ZERO] += f16_zero - zeros;
    count[AMPI_F16_SMALL] += f16_small - f16_zero;
    count[AMPI_BF16_ZERO] += bf16_zero - zeros;
    count[AMPI_BF16_SMALL] += bf16_small - bf16_zero;
}

/* Samples a chunk of a gradient. */
static AMPI_NOINLINE void ampi_sample_grads(ampi_histogram *histogram, const void *x,
                                            amp_dtype type, size_t n) {
    uint32_t    bits[AMPI_PIECE];
    ampi_sample s;
    size_t      i, piece;
    memset(&s, 0, sizeof s);
    for (i = 0; i < n; i += piece) {
        piece = ampi_min(n - i, AMPI_PIECE);
        ampi_cast(bits, AMP_F32, ampi_at(x, type, i), type, piece);
        ampi_count_exponents(&s, bits, piece);
        ampi_count_casts(s.count, bits, piece);
    }
    ampi_end_sample(histogram, &s, AMPI_GRADS);
}

/* Updates a chunk in a sampled step, and samples its weights: if they have a 16-bit copy, does
   that change? */
static AMPI_NOINLINE void ampi_sample_weights(const amp_plan *plan, const ampi_slot *slot,
                                              ampi_job job, size_t begin, size_t count_of,
                                              ampi_histogram *histogram) {
    const amp_dtype type = slot->model_type, grad_type = slot->grad_type;
    const int       low  = slot->model && type != AMP_F32;
    const size_t    end  = begin + count_of;
    uint32_t        master[AMPI_PIECE], copy[AMPI_PIECE], grad[AMPI_PIECE];
    uint32_t        updates = 0, lost = 0, rounded = 0;
    uint16_t        before[AMPI_PIECE], after[AMPI_PIECE];
    ampi_sample     s;
    size_t          i, k, n;
    memset(&s, 0, sizeof s);
    for (i = begin; i < end; i += n) {
        n = ampi_min(end - i, AMPI_PIECE);
        if (low) memcpy(before, ampi_at(slot->model, type, i), n * sizeof *before);
        if (slot->model || job == AMPI_JOB_FUSED) ampi_update_chunk(plan, slot, job, i, n);
        memcpy(master, ampi_at(slot->master.data, AMP_F32, i), n * sizeof *master);
        ampi_count_exponents(&s, master, n);
        if (!low) continue;
        memcpy(after, ampi_at(slot->model, type, i), n * sizeof *after);
        ampi_cast(copy, AMP_F32, after, type, n);
        ampi_cast(grad, AMP_F32, ampi_at(slot->grad, grad_type, i), grad_type, n);
        for (k = 0; k < n; k++) {
            const uint32_t moves = (grad[k] & 0x7fffffffu) != 0u;
            updates += moves;
            lost += moves & (uint32_t)(before[k] == after[k]);
            rounded += moves & (uint32_t)(copy[k] == master[k]);
        }
    }
    s.count[AMPI_UPDATES] = updates;
    s.count[AMPI_LOST]    = lost;
    s.count[AMPI_ROUNDED] = rounded;
    ampi_end_sample(histogram, &s, AMPI_WEIGHTS);
}

AMPI_STRICT_END
AMPI_COLD_BEGIN

/* What the host has read of a run, all at the same time. */
typedef struct ampi_host {
    int             current; /* amp_optimizer_report has read it, and no state was loaded since */
    amp_report      report;
    ampi_record     record; /* a load reads a file into it */
    ampi_histogram *histograms;
    ampi_slot      *table;
    uint64_t      (*bad)[3];     /* of each tensor: weights, copies, moments */
} ampi_host;

static size_t ampi_report_room(size_t num_slots) {
    return sizeof(ampi_host) +
           num_slots * (sizeof(ampi_histogram) + sizeof(ampi_slot) + 3 * sizeof(uint64_t));
}

static void ampi_layout_report(const amp_optimizer *opt, amp_plan *plan, ampi_arena *arena) {
    const size_t n    = plan->num_slots;
    ampi_host   *host = (ampi_host *)(void *)(plan->host_sparse + plan->num_sparse);
    memset(host, 0, ampi_report_room(n));
    host->histograms  = (ampi_histogram *)(void *)(host + 1);
    host->table       = (ampi_slot *)(void *)(host->histograms + n);
    host->bad         = (uint64_t(*)[3])(void *)(host->table + n);
    plan->host_report = host;
    plan->report_desc = opt->report_desc;
    plan->record      = (ampi_record *)ampi_take(arena, 1, sizeof *plan->record, 64);
    if (plan->report_desc.every)
        plan->histograms = (ampi_histogram *)ampi_take(arena, 2 * n, sizeof *plan->histograms, 64);
}

/* A report in a state: counters, steps, overflows of tensors. An optimizer without a report reads
   a file's, and drops it. */
static void ampi_archive_report(ampi_archive *a, const amp_optimizer *opt) {
    const amp_plan      *plan = opt->plan;
    const int            load = a->pass == AMPI_LOAD && plan->host_report;
    const int            save = a->pass == AMPI_SAVE && a->result == AMP_OK;
    ampi_record          r;
    ampi_overflows       counts;
    amp_iteration       *s = r.history;
    int                  ok = 1; /* what others index arrays by is in its bounds */
    size_t               i;
    memset(&r, 0, sizeof r);
    memset(&counts, 0, sizeof counts);
    if (save) a->result = ampi_read_back(opt, &r, plan->record, sizeof r);
    AMPI_NUMBER(a, r.skips[0]);
    AMPI_NUMBER(a, r.skips[1]);
    for (i = 0; i < AMP_HISTORY; i++, s++) {
        AMPI_NUMBERS(a, s->iteration, s->norm, s->loss_scale);
        AMPI_NUMBERS(a, s->clip_factor, s->skip, s->tensor);
        ok = ok && (!s->iteration || (s->skip <= (uint32_t)AMP_SKIP_ASKED && s->tensor >= -1 &&
                                      (s->tensor < 0 || (size_t)s->tensor < plan->num_slots)));
    }
    for (i = 0; i < plan->num_slots; i++) {
        if (save && a->result == AMP_OK)
            a->result = ampi_read_back(opt, &counts, &plan->table[i].overflows, sizeof counts);
        AMPI_NUMBERS(a, counts.overflows, counts.nans, counts.first);
        AMPI_NUMBER(a, counts.last);
        if (load) plan->host_slots[i].overflows = counts;
    }
    if (load) plan->host_report->record = r;
    if (ok || a->pass != AMPI_VERIFY || a->result != AMP_OK) return;
    a->result = ampi_refuse(AMP_ERROR_CORRUPT,
                            "its report names a tensor, or a reason to skip, that is not there");
}

/* Forgets the history, before a load. */
static void ampi_clear_history(amp_plan *plan) {
    ampi_host *host = plan->host_report;
    size_t     i;
    host->current = 0;
    memset(&host->record, 0, sizeof host->record);
    for (i = 0; i < plan->num_slots; i++)
        memset(&plan->host_slots[i].overflows, 0, sizeof(ampi_overflows));
}

/* Histograms become zero, because a step that failed may have left something in both. */
static amp_result ampi_send_history(const amp_optimizer *opt) {
    const amp_backend *b    = &opt->backend;
    const amp_plan    *plan = opt->plan;
    const ampi_host   *host = plan->host_report;
    const size_t       size = plan->num_slots * sizeof *host->histograms;
    uint32_t           k;
    size_t             i;
    for (i = 0; i < plan->num_slots; i++)
        AMPI_TRY(ampi_send(b, &plan->table[i].overflows, &plan->host_slots[i].overflows,
                           sizeof(ampi_overflows)));
    AMPI_TRY(ampi_send(b, plan->record, &host->record, sizeof host->record));
    memset(host->histograms, 0, size);
    for (k = 0; k < 2 && plan->histograms; k++)
        AMPI_TRY(ampi_send(b, ampi_histogram_of(plan, k, 0), host->histograms, size));
    return AMP_OK;
}

/* Has a prepared optimizer a report? For tensors and history: has it been read? */
static amp_result ampi_report_ready(const amp_optimizer *opt, int of_moment) {
    AMPI_REFUSE(!opt->plan->record, UNSUPPORTED,
                "set amp_optimizer_desc.report, and there will be one");
    AMPI_REFUSE(of_moment && !opt->plan->host_report->current, BAD_STATE,
                "call amp_optimizer_report first, and again after a load: this is of its "
                "moment");
    return AMP_OK;
}

static amp_tensor_report ampi_report_of(const amp_optimizer *opt, size_t i) {
    const ampi_host  *host = opt->plan->host_report;
    const ampi_slot  *slot = &host->table[i];
    const uint32_t    max  = ampi_load_u32(&slot->stats.max_finite, 0);
    const unsigned long long *count = host->histograms[i].count;
    amp_tensor_report r;
    int               b;
    memset(&r, 0, sizeof r);
    r.name     = ampi_tensor(opt, (int)i)->name;
    r.n        = ampi_tensor(opt, (int)i)->n;
    r.stats    = slot->stats;
    r.headroom = AMP_HEADROOM_UNBOUNDED; /* to the end of the type: the exponents' difference */
    if (slot->grad && slot->n) r.grad_type = slot->grad_type;
    if (max && slot->grad) r.headroom = (slot->grad_type == AMP_F16 ? 142 : 254) - (int)(max >> 23);
    r.overflows       = slot->overflows.overflows;
    r.nans            = slot->overflows.nans;
    r.first_iteration = slot->overflows.first;
    r.last_iteration  = slot->overflows.last;
    r.f16_zero        = count[AMPI_F16_ZERO];
    r.f16_small       = count[AMPI_F16_SMALL];
    r.bf16_zero       = count[AMPI_BF16_ZERO];
    r.bf16_small      = count[AMPI_BF16_SMALL];
    r.updates         = count[AMPI_UPDATES];
    r.lost            = count[AMPI_LOST];
    r.rounded         = count[AMPI_ROUNDED];
    r.bad_weights     = host->bad[i][0];
    r.bad_copies      = host->bad[i][1] > r.bad_weights ? host->bad[i][1] - r.bad_weights : 0;
    r.bad_moments     = host->bad[i][2];
    for (b = 0; b < AMP_BINS; b++) {
        r.grads[b]   = count[AMPI_GRADS + b];
        r.weights[b] = count[AMPI_WEIGHTS + b];
    }
    return r;
}

/* Counts what is not finite in n elements. */
static amp_result ampi_count_bad(const amp_optimizer *opt, const void *x, amp_dtype type,
                                 uint64_t end, uint64_t *count) {
    unsigned char  piece[4 * AMPI_PIECE];
    amp_grad_stats stats;
    size_t         i, n;
    for (i = 0; i < end; i += n) {
        n = ampi_min((size_t)end - i, AMPI_PIECE);
        AMPI_TRY(ampi_read_back(opt, piece, ampi_at(x, type, i), n * amp_dtype_size(type)));
        AMPI_IEEE((void)ampi_check_careful(piece, type, n, 0.0f, &stats));
        *count += stats.nonfinite;
    }
    return AMP_OK;
}

/* Counts weights, copies and moments that are not finite, where some may be. Of coded masters the
   models tell. */
static amp_result ampi_bad_numbers(const amp_optimizer *opt, const ampi_control *c, size_t t) {
    const ampi_slot *s = &opt->plan->host_slots[t];
    uint64_t        *bad = opt->plan->host_report->bad[t];
    const int        coded = ampi_is_encoded(&s->master), row = c->skipped_in_a_row >= 10;
    const int        narrow = s->moment[1].format == AMP_FORMAT_BF16;
    const int        least = opt->plan->host_report->report.loss_scale <= 1.0f;
    const int        weights = c->f16_overflows || (c->found_inf && (row || least));
    if (weights && !coded) AMPI_TRY(ampi_count_bad(opt, s->master.data, AMP_F32, s->n, &bad[0]));
    if (weights && s->model && (coded || s->model_type == AMP_F16))
        AMPI_TRY(ampi_count_bad(opt, s->model, s->model_type, s->n, &bad[!coded]));
    if (!c->huge || !s->moment[1].data || s->moment[1].scale) return AMP_OK;
    return ampi_count_bad(opt, s->moment[1].data, narrow ? AMP_BF16 : AMP_F32, s->n, &bad[2]);
}

static void ampi_fill_report(const amp_optimizer *opt, const ampi_control *c) {
    ampi_host        *host  = opt->plan->host_report;
    const uint64_t   *skips = host->record.skips;
    amp_report       *r     = &host->report;
    const amp_scaler *s     = &r->scaler;
    int               i, b;
    r->fixed_scale  = !ampi_is_dynamic(s);
    r->iterations   = ampi_iterations(c);
    r->steps        = c->gate.step;
    r->overflows    = skips[AMP_SKIP_OVERFLOW - 1];
    r->asked        = skips[AMP_SKIP_ASKED - 1];
    r->growths      = s->growths;
    r->backoffs     = s->backoffs;
    r->norm         = c->norm;
    r->loss_scale   = s->scale;
    r->stuck        = ampi_stuck(c, s);
    r->sampled      = host->record.sampled;
    r->headroom     = AMP_HEADROOM_UNBOUNDED;
    r->first_tensor = r->most_tensor = -1;
    for (i = 0; i < (int)opt->plan->num_slots; i++) {
        const amp_tensor_report t = ampi_report_of(opt, (size_t)i);
        if (t.headroom < r->headroom) r->headroom = t.headroom;
        if (t.overflows && (r->first_tensor < 0 || t.first_iteration < r->first_iteration)) {
            r->first_tensor    = i;
            r->first_iteration = t.first_iteration;
        }
        if (t.overflows > r->most_overflows) {
            r->most_tensor    = i;
            r->most_overflows = t.overflows;
        }
        for (b = 0; b < AMP_BINS; b++) r->grads += t.grads[b];
        r->nans += t.stats.nan;
        r->f16_zero += t.f16_zero;
        r->f16_small += t.f16_small;
        r->bf16_zero += t.bf16_zero;
        r->bf16_small += t.bf16_small;
        r->updates += t.updates;
        r->lost += t.lost;
    }
}

/* Reads all that a report needs, after all work that is queued. */
AMP_DEF amp_result amp_optimizer_report(const amp_optimizer *opt, amp_report *report) {
    const amp_plan *plan;
    ampi_host      *s;
    ampi_control    c;
    size_t          i, n;
    AMPI_TRY(ampi_ready(opt, AMPI_PREPARED));
    if (!report) return ampi_missing("report");
    AMPI_TRY(ampi_report_ready(opt, 0));
    plan       = opt->plan;
    s          = plan->host_report;
    n          = plan->num_slots;
    s->current = 0;
    AMPI_TRY(ampi_read_back(opt, &c, plan->control, sizeof c));
    memset(&s->report, 0, sizeof s->report);
    AMPI_TRY(ampi_read_back(opt, &s->report.scaler, plan->scaler, sizeof s->report.scaler));
    AMPI_TRY(ampi_read_back(opt, &s->record, plan->record, sizeof s->record));
    if (n) AMPI_TRY(ampi_read_back(opt, s->table, plan->table, n * sizeof *s->table));
    if (n && plan->histograms)
        AMPI_TRY(ampi_read_back(opt, s->histograms, ampi_histogram_of(plan, s->record.which, 0),
                                n * sizeof *s->histograms));
    for (i = 0; i < n; i++) AMPI_TRY(ampi_place_in_tensor(opt, (int)i, &s->table[i].stats));
    ampi_fill_report(opt, &c);
    memset(s->bad, 0, n * sizeof *s->bad);
    for (i = 0; i < n; i++) AMPI_TRY(ampi_bad_numbers(opt, &c, i));
    s->current = 1;
    *report    = s->report;
    return AMP_OK;
}

AMP_DEF amp_result amp_optimizer_report_tensor(const amp_optimizer *opt, int i,
                                               amp_tensor_report *report) {
    AMPI_TRY(ampi_tensor_ready(opt, i, AMPI_PREPARED));
    if (!report) return ampi_missing("report");
    AMPI_TRY(ampi_report_ready(opt, 1));
    *report = ampi_report_of(opt, (size_t)i);
    return AMP_OK;
}

/* The step that is back steps before the last, if it is remembered. */
static const amp_iteration *ampi_step_before(const amp_optimizer *opt, uint64_t back) {
    const ampi_host     *host   = opt->plan->host_report;
    const uint64_t       number = host->report.iterations - back;
    const amp_iteration *t      = &host->record.history[number % AMP_HISTORY];
    return number && t->iteration == number ? t : NULL;
}

AMP_DEF amp_result amp_optimizer_history(const amp_optimizer *opt, amp_iteration *history,
                                         size_t *count) {
    size_t i, n = 0;
    AMPI_TRY(ampi_ready(opt, AMPI_PREPARED));
    if (!count || (!history && *count))
        return ampi_missing(count ? "history" : "count");
    AMPI_TRY(ampi_report_ready(opt, 1));
    while (n < *count && ampi_step_before(opt, n)) n++;
    for (i = 0; i < n; i++) history[i] = *ampi_step_before(opt, n - 1 - i);
    *count = n;
    return AMP_OK;
}

AMPI_COLD_END

#ifndef AMP_NO_AUTOCAST

AMPI_COLD_BEGIN

/* ------------------------------------------------------------------- >>impl ops */

/* ORDER of the letters of AMP_OP_LIST, and of their names */
enum { AMPI_SAME = 0, AMPI_LOW, AMPI_FP32, AMPI_KEEP, AMPI_PROMOTE, AMPI_BANNED, AMPI_NUM_RULES };
static const char        ampi_rule_letters[] = "PLFKWB";
static const char *const ampi_rule_names[] = {"pass", "low", "fp32", "keep", "promote", "banned"};
AMPI_STATIC_ASSERT(ampi_letters_are_all, sizeof ampi_rule_letters == (size_t)AMPI_NUM_RULES + 1);
AMPI_STATIC_ASSERT(ampi_rules_are_all,
                   sizeof ampi_rule_names / sizeof ampi_rule_names[0] == (size_t)AMPI_NUM_RULES);

#define AMPI_OP_ROW(id, rules) {#id, #rules},
static const struct ampi_op_row { const char *name, *rules; } ampi_ops[] = {
    AMP_OP_LIST(AMPI_OP_ROW)};
#undef AMPI_OP_ROW

/* Other names of ops, after the name here; capitals and underscores do not matter. */
static const char *const ampi_aliases[] = {
    "scaled_dot_product_attention attention sdpa mha", "bmm batch_matmul batch_matmul_v2",
    "conv2d depthwise_conv2d_native", "conv_transpose2d conv2d_backprop_input",
    "conv_transpose3d conv3d_backprop_input_v2",
    "batch_norm fused_batch_norm fused_batch_norm_v2 fused_batch_norm_v3",
    "layer_norm native_layer_norm", "reciprocal inv", "silu swish", "add add_v2 add_n",
    "div real_div", "cat concat concat_v2",
    "cross_entropy softmax_cross_entropy_with_logits sparse_softmax_cross_entropy_with_logits "
    "cross_entropy_loss", "nll_loss nll_loss2d", "mse_loss l2_loss mse",
    "binary_cross_entropy bce bce_loss",
    "bce_with_logits binary_cross_entropy_with_logits bce_with_logits_loss",
    "max_pool2d max_pool max_pool_v2", "avg_pool2d avg_pool",
    "upsample_nearest resize_nearest_neighbor upsample_nearest1d upsample_nearest2d "
    "upsample_nearest3d", "upsample_bilinear resize_bilinear interpolate upsample_bilinear2d",
    "upsample_linear upsample_linear1d", "upsample_trilinear upsample_trilinear3d",
    "upsample_bicubic upsample_bicubic2d", "grid_sampler grid_sample", "bias_add bias_add_v1",
    "stack pack", "gather gather_v2", "select select_v2", "pad pad_v2",
    "reflection_pad mirror_pad reflection_pad1d reflection_pad2d", "fft fft_fft fft_ifft fft_rfft",
    "cholesky linalg_cholesky", "inverse linalg_inv", "pinverse linalg_pinv", "lu linalg_lu",
    "qr linalg_qr", "svd linalg_svd linalg_svdvals", "eig linalg_eig linalg_eigh",
    "lstsq linalg_lstsq",
    "compare eq ne lt le gt ge equal not_equal less less_equal greater greater_equal",
    "slice strided_slice", "lstm_cell block_lstm lstm_block_cell", "gru_cell gru_block_cell",
    "quantile nanquantile",
    "replication_pad replication_pad1d replication_pad2d replication_pad3d",
    "fake_quantize fake_quantize_per_tensor_affine"};

/* ORDER amp_policy */
static const char *const ampi_policy_names[] = {
    "default", "torch_cuda", "torch_cpu", "tf", "apex_o0", "apex_o1", "apex_o2", "apex_o3",
    "keras_mixed_float16", "keras_mixed_bfloat16"};
/* The type in their names; AMP_F32: none, which is fp16 unless the user says more. */
static const amp_dtype ampi_policy_types[] = {AMP_F32, AMP_F32, AMP_BF16, AMP_F32, AMP_F32, AMP_F32,
                                              AMP_F32, AMP_F32, AMP_F16, AMP_BF16};
/* A column of AMP_OP_LIST, or one rule for all. */
static const char ampi_policy_columns[] = "0123F4LLLL";
enum { AMPI_NUM_POLICIES = sizeof ampi_policy_names / sizeof ampi_policy_names[0] };
AMPI_STATIC_ASSERT(ampi_policies_are_all,
                   (int)AMPI_NUM_POLICIES == (int)AMP_POLICY_KERAS_MIXED_BFLOAT16 + 1);
AMPI_STATIC_ASSERT(ampi_ops_have_room,
                   (size_t)AMP_NUM_OPS <= sizeof ((amp_autocast *)0)->ops / sizeof(ampi_op_rule));

static int ampi_find_op(const char *name, size_t length) {
    int i;
    for (i = 0; i < (int)AMP_NUM_OPS; i++)
        if (ampi_named(name, length, ampi_ops[i].name)) return i;
    i = ampi_find(name, length, ampi_aliases, sizeof ampi_aliases / sizeof ampi_aliases[0]);
    return i < 0 ? -1 : ampi_find_op(ampi_aliases[i], strcspn(ampi_aliases[i], " "));
}

AMP_DEF amp_result amp_op_from_string(const char *name, amp_op *op) {
    int found;
    if (!name || !op) return ampi_missing(name ? "op" : "name");
    found = ampi_find_op(name, strlen(name));
    AMPI_REFUSE(found < 0, INVALID_ARGUMENT, "\"%s\" is no op that amp.h knows", name);
    *op = (amp_op)found;
    return AMP_OK;
}

/* -------------------------------------------------------------- >>impl autocast */

/* Sets a policy, without overrides. */
static void ampi_set_policy(amp_autocast *ac, amp_policy policy, amp_dtype low) {
    const char column = ampi_policy_columns[policy];
    int        i;
    ac->policy = policy;
    ac->dtype  = low ? low : AMP_F16;
    ac->off = ac->tf32 = ac->num_overrides = 0;
    memset(ac->overrides, 0, sizeof ac->overrides);
    memset(ac->ops, 0, sizeof ac->ops);
    for (i = 0; i < (int)AMP_NUM_OPS; i++) {
        const char rule = column <= '9' ? ampi_ops[i].rules[column - '0'] : column;
        ac->ops[i].rule = (uint8_t)(strchr(ampi_rule_letters, rule) - ampi_rule_letters);
    }
    if (policy == AMP_POLICY_APEX_O2) ac->ops[AMP_OP_BATCH_NORM].rule = AMPI_KEEP;
}

AMP_DEF amp_result amp_autocast_init(amp_autocast *ac, amp_policy policy, amp_dtype dtype) {
    if (!ac) return ampi_missing("ac");
    memset(ac, 0, sizeof *ac);
    if ((unsigned)policy >= (unsigned)AMPI_NUM_POLICIES) return ampi_unknown("policy", (int)policy);
    AMPI_TRY(ampi_type_known("dtype", dtype));
    ampi_set_policy(ac, policy, dtype ? dtype : ampi_policy_types[policy]);
    return AMP_OK;
}

static amp_result ampi_autocast_ready(const amp_autocast *ac) {
    if (!ac) return ampi_missing("ac");
    AMPI_REFUSE(ac->dtype == AMP_F32, NOT_INITIALIZED,
                "ac is not initialized: call amp_autocast_init first");
    return AMP_OK;
}

AMP_DEF amp_result amp_autocast_push(amp_autocast *ac, const amp_scope *scope) {
    static const amp_scope outermost = {NULL, AMP_AUTOCAST_ON, AMP_F32};
    const amp_scope       *around;
    amp_scope             *s;
    if (!scope) return ampi_missing("scope");
    AMPI_TRY(ampi_autocast_ready(ac));
    AMPI_TRY(ampi_type_known("amp_scope.dtype", scope->dtype));
    if ((unsigned)scope->mode > (unsigned)AMP_AUTOCAST_OFF)
        return ampi_unknown("amp_scope.mode", (int)scope->mode);
    AMPI_REFUSE(ac->depth >= AMP_MAX_SCOPES, TOO_LARGE,
                "%g scopes are open, and no more may be: call amp_autocast_pop", (double)ac->depth);
    around = ac->depth ? &ac->scopes[ac->depth - 1] : &outermost;
    s      = &ac->scopes[ac->depth++];
    *s     = *scope;
    if (s->mode == AMP_AUTOCAST_INHERIT) s->mode = around->mode;
    if (s->dtype == AMP_F32) s->dtype = around->dtype;
    if (!s->layer) s->layer = around->layer;
    return AMP_OK;
}

AMP_DEF amp_result amp_autocast_pop(amp_autocast *ac) {
    AMPI_TRY(ampi_autocast_ready(ac));
    AMPI_REFUSE(!ac->depth, BAD_STATE, "no scope is open: call amp_autocast_push first");
    memset(&ac->scopes[--ac->depth], 0, sizeof ac->scopes[0]);
    return AMP_OK;
}

static amp_autocast *ampi_autocast_current(void) { return (amp_autocast *)ampi_current.context; }

static int ampi_autocast_active(const amp_autocast *ac) {
    return ac && ac->depth && !ac->off && ac->scopes[ac->depth - 1].mode == AMP_AUTOCAST_ON;
}

/* Does name match a pattern? A * that does not fit is tried again one character later. */
static int ampi_matches(const char *pattern, const char *name) {
    const char *star = NULL, *from = name;
    while (*name) {
        if (*pattern == '*') star = ++pattern, from = name;
        else if (*pattern == *name) pattern++, name++;
        else if (star) pattern = star, name = ++from;
        else return 0;
    }
    return !pattern[strspn(pattern, "*")];
}

/* The rule for op in the innermost scope, and its low. Layers' overrides win over ops'. */
static int ampi_rule_for(amp_autocast *ac, amp_op op, amp_dtype *low) {
    const amp_scope *scope   = &ac->scopes[ac->depth - 1];
    ampi_op_rule     op_rule = ac->ops[op];
    int              i;
    for (i = 0; i < ac->num_overrides && scope->layer; i++) {
        ampi_override *o = &ac->overrides[i];
        if (!ampi_matches(o->pattern, scope->layer)) continue;
        o->matched = 1;
        op_rule    = o->op_rule;
    }
    *low = op_rule.dtype ? (amp_dtype)op_rule.dtype : scope->dtype ? scope->dtype : ac->dtype;
    return op_rule.rule;
}

AMP_DEF amp_result amp_autocast_dtype(amp_autocast *ac, amp_op op, const amp_dtype *inputs,
                                      int count, amp_dtype *compute, amp_dtype *output) {
    int       rule = AMPI_SAME;
    amp_dtype low  = AMP_F32, type;
    unsigned  seen = 0; /* a bit for each type */
    int       i;
    if ((unsigned)op >= (unsigned)AMP_NUM_OPS) return ampi_unknown("op", (int)op);
    if (count && !inputs) return ampi_missing("inputs");
    AMPI_REFUSE(count < 0, INVALID_ARGUMENT, "count is %g, and must be 0 or more", (double)count);
    for (i = 0; i < count; i++) {
        AMPI_TRY(ampi_type_known("one of inputs", inputs[i]));
        seen |= 1u << inputs[i];
    }
    type = seen == 1u << AMP_F16 ? AMP_F16 : seen == 1u << AMP_BF16 ? AMP_BF16 : AMP_F32;
    if (!ac) ac = ampi_autocast_current();
    if (ampi_autocast_active(ac)) rule = ampi_rule_for(ac, op, &low);
    AMPI_REFUSE(rule == AMPI_BANNED, BANNED,
                "%s is not safe in 16 bits: override it, or use its logits", ampi_ops[op].name);
    AMPI_REFUSE(rule == AMPI_PROMOTE && seen & ~(1u << AMP_F32 | 1u << low), MIXED_TYPES,
                "%s has an input of %s, where low is %s", ampi_ops[op].name,
                low == AMP_F16 ? "bf16" : "fp16", ampi_type_name(low));
    if (rule == AMPI_PROMOTE) type = seen & 1u << AMP_F32 ? AMP_F32 : low;
    if (rule == AMPI_FP32) type = AMP_F32;
    if (rule == AMPI_LOW) type = low;
    if (compute) *compute = rule == AMPI_KEEP ? AMP_F32 : type;
    if (output) *output = type;
    return AMP_OK;
}

/* A rule, or a type: "fp16" is low with that type. */
static int ampi_read_rule(const char *text, size_t length, ampi_op_rule *op_rule) {
    const int type = ampi_find_type(text, length);
    const int rule = ampi_find(text, length, ampi_rule_names, AMPI_NUM_RULES);
    op_rule->rule  = (uint8_t)(type > 0 ? AMPI_LOW : type == 0 ? AMPI_FP32 : rule);
    op_rule->dtype = (uint8_t)(type > 0 ? type : AMP_F32);
    op_rule->overridden = 1;
    return type >= 0 || rule >= 0;
}

/* Applies a word without =. A policy undoes all earlier overrides; scopes stay. */
static int ampi_override_all(amp_autocast *ac, amp_dtype low, const char *word, size_t length) {
    const int type   = ampi_find_type(word, length);
    const int policy = ampi_find(word, length, ampi_policy_names, AMPI_NUM_POLICIES);
    const int off = ampi_named(word, length, "off"), tf32 = ampi_named(word, length, "tf32");
    ac->off |= off;
    ac->tf32 |= tf32;
    if (type > 0) ac->dtype = (amp_dtype)type;
    if (policy >= 0)
        ampi_set_policy(ac, (amp_policy)policy,
                        ampi_policy_types[policy] ? ampi_policy_types[policy] : low);
    return off || tf32 || type > 0 || policy >= 0;
}

/* Applies one word of an override. Returns NULL, or where it is wrong; then ac is of no use. */
static const char *ampi_override_word(amp_autocast *ac, amp_dtype low, const char *word,
                                      size_t length) {
    const char   *equals = (const char *)memchr(word, '=', length);
    const size_t  before = equals ? (size_t)(equals - word) : 0;
    ampi_op_rule *op_rule;
    if (!equals) return ampi_override_all(ac, low, word, length) ? NULL : word;
    if (before > 2 && ampi_named(word, 2, "op") && word[2] == ':') {
        const int op = ampi_find_op(word + 3, before - 3);
        if (op < 0) return word + 3;
        op_rule = &ac->ops[op];
    } else {
        ampi_override *o = &ac->overrides[ac->num_overrides++];
        if (!before || before >= AMP_MAX_PATTERN || ac->num_overrides > AMP_MAX_OVERRIDES)
            return word;
        memcpy(o->pattern, word, before);
        op_rule = &o->op_rule;
    }
    return ampi_read_rule(equals + 1, length - before - 1, op_rule) ? NULL : equals + 1;
}

/* Applies all words to ac, or none. low, unless it is AMP_F32, is the type that a session has. It
   takes the place of what was said of products, ends an earlier off, and no word may contradict
   it. A policy whose name has no type takes it. */
static amp_result ampi_override_by(amp_autocast *ac, amp_dtype low, const char *field,
                                   const char *text) {
    static const char   separators[] = ",; \t\n\r";
    amp_autocast        changed = *ac;
    const ampi_op_rule *product = &changed.ops[AMP_OP_GEMM];
    const char         *word;
    size_t              length;
    if (low) {
        changed.dtype = low;
        changed.off   = 0;
        if (product->overridden) (void)ampi_override_word(&changed, low, "op:gemm=low", 11);
    }
    for (word = text; *(word += strspn(word, separators)); word += length) {
        const char *wrong;
        int         mixed;
        length = strcspn(word, separators);
        wrong  = ampi_override_word(&changed, low, word, length);
        mixed  = low && (changed.dtype != low || (product->dtype && product->dtype != (int)low));
        if (!wrong && !mixed) continue;
        if (wrong) word = wrong;
        return ampi_refuse(wrong ? AMP_ERROR_PARSE : AMP_ERROR_MIXED_TYPES,
                           "%s, character %g: %s: \"%s\"", field, (double)(word - text + 1),
                           wrong ? "not understood" : "not of the session's dtype", word);
    }
    *ac = changed;
    return AMP_OK;
}

AMP_DEF amp_result amp_autocast_override(amp_autocast *ac, const char *text) {
    if (!text) return ampi_missing("text");
    AMPI_TRY(ampi_autocast_ready(ac));
    return ampi_override_by(ac, AMP_F32, "text", text);
}

static bool ampi_write_line(ampi_text *t, amp_write_fn write_fn, void *user) {
    const size_t used = t->used;
    t->used = 0;
    return write_fn(user, t->bytes, used);
}

AMP_DEF amp_result amp_autocast_dump(const amp_autocast *ac, amp_write_fn write_fn, void *user) {
    char      line[160];
    ampi_text t = {line, sizeof line, 0};
    const char *words[4];
    int       i, k, ok;
    if (!write_fn) return ampi_missing("write_fn");
    AMPI_TRY(ampi_autocast_ready(ac));
    words[0] = ampi_policy_names[ac->policy];
    words[1] = ampi_type_name(ac->dtype);
    words[2] = ac->off ? ", off" : "";
    words[3] = ac->tf32 ? ", tf32" : "";
    ampi_print(&t, "policy %s, low %s%s%s\n", words, NULL);
    ok = ampi_write_line(&t, write_fn, user);
    ampi_print_text(&t, "op                                rule     compute  return   reason\n");
    ok = ok && ampi_write_line(&t, write_fn, user);
    for (i = 0; ok && i < (int)AMP_NUM_OPS + ac->num_overrides; i++) { /* ops, then layers */
        const ampi_override *o = i < (int)AMP_NUM_OPS ? NULL : &ac->overrides[i - (int)AMP_NUM_OPS];
        const ampi_op_rule  *r = o ? &o->op_rule : &ac->ops[i];
        const char *const    low  = ampi_type_name(r->dtype ? (amp_dtype)r->dtype : ac->dtype);
        const char *const    type = r->rule == AMPI_LOW      ? low
                                    : r->rule == AMPI_FP32   ? "fp32"
                                    : r->rule == AMPI_BANNED ? "-"
                                                             : "inputs'";
        const char *const cells[] = {o ? o->pattern : ampi_ops[i].name, ampi_rule_names[r->rule],
                                     r->rule == AMPI_KEEP ? "fp32" : type, type};
        if (o) ampi_print_text(&t, "layers ");
        for (k = 0; k < 4; k++) {
            ampi_print_text(&t, cells[k]);
            do ampi_print_char(&t, ' '); /* up to the next column, one at least */
            while (t.used < 34 + 9 * (size_t)k);
        }
        ampi_print_text(&t, r->overridden ? "override" : "policy");
        ampi_print_text(&t, o && !o->matched ? ", matched nothing yet\n" : "\n");
        ok = ampi_write_line(&t, write_fn, user);
    }
    return ok ? AMP_OK : ampi_refuse(AMP_ERROR_WRITE, "write_fn returned false");
}

/* ------------------------------------------------------------- >>impl session */

/* The session of an autocast, for its counters and its weight cache; a copy of it has none. */
static amp_session *ampi_session_of(const amp_autocast *ac) {
    return ac && ac->session && ac == &ac->session->autocast ? ac->session : NULL;
}

AMP_DEF amp_result amp_session_end(amp_session *session) {
    const amp_session *last = ampi_session_of(ampi_autocast_current());
    if (!session) return AMP_OK;
    for (; last && last != session; last = ampi_session_of(last->before))
        AMPI_REFUSE(last->before == &session->autocast, BAD_STATE,
                    "another session was started after this one: end that first");
    if (last) amp_autocast_use(session->before);
    if (session->block) ampi_block_free(&session->backend, &session->allocator, session->block);
    memset(session, 0, sizeof *session);
    return AMP_OK;
}

/* Does it run, in any thread, also below another one? Its scaler then lies after the copies. */
static int ampi_session_runs(const amp_session *s) {
    return ampi_autocast_current() == &s->autocast ||
           (s->scaler && (uintptr_t)s->scaler == (uintptr_t)s->memory + s->size);
}

/* May a session start? */
static amp_result ampi_session_ok(const amp_session *session, const amp_session_desc *d,
                                  const amp_backend *b) {
    if (!session) return ampi_missing("session");
    AMPI_REFUSE(ampi_session_runs(session), BAD_STATE,
                "this session runs: call amp_session_end first, in its thread");
    AMPI_REFUSE(!b->functions, INVALID_ARGUMENT,
                "amp_session_desc.backend was not made by amp_cuda_backend");
    AMPI_REFUSE(!d->num_bytes && b->functions != &ampi_cpu_functions, INVALID_ARGUMENT,
                "amp_session_desc.num_bytes is 0, and must be more on a GPU");
    AMPI_REFUSE(d->num_bytes > SIZE_MAX / 2, TOO_LARGE,
                "amp_session_desc.num_bytes is %g: too large", (double)d->num_bytes);
    AMPI_REFUSE(!b->functions->alloc_fn && !ampi_allocator_ok(&d->allocator), INVALID_ARGUMENT,
                "amp_session_desc.allocator needs both functions");
    return AMP_OK;
}

/* Is any op in fp16, which needs a loss scale? */
static int ampi_asks_for_fp16(const amp_autocast *ac) {
    int i, asks = 0;
    for (i = 0; i < (int)AMP_NUM_OPS + ac->num_overrides; i++) { /* ops, then layers */
        const ampi_op_rule *r = i < (int)AMP_NUM_OPS
                                    ? &ac->ops[i]
                                    : &ac->overrides[i - (int)AMP_NUM_OPS].op_rule;
        asks |= r->rule == AMPI_LOW && (r->dtype ? (int)r->dtype : (int)ac->dtype) == (int)AMP_F16;
    }
    return asks && !ac->off;
}

/* The scaler and the scope of a session: from the program, and over it from the environment. */
static AMPI_NOINLINE amp_result ampi_session_settings(const amp_session_desc *s, int on_cpu,
                                                      amp_scaler *scaler, amp_autocast *ac) {
    const amp_scope scope = {NULL, AMP_AUTOCAST_ON, AMP_F32};
    const char     *text  = s->policy ? s->policy : "";
    amp_scaler_desc d     = s->scaler;
    amp_dtype       low   = AMP_F16;
    int             own; /* does the program ask for fp16? */
    amp_capability  cpu;
#ifndef AMP_NO_STDLIB
    int on, type;
#endif
    AMPI_TRY(ampi_type_known("amp_session_desc.dtype", s->dtype));
    if (on_cpu && amp_capability_of(0, 0, &cpu) == AMP_OK && cpu.bf16) low = AMP_BF16;
    AMPI_TRY(amp_autocast_init(ac, AMP_POLICY_DEFAULT, low));
    AMPI_TRY(ampi_override_by(ac, s->dtype, "amp_session_desc.policy", text));
    own = ampi_asks_for_fp16(ac);
    ampi_scale_for(&d, 1, own);
#ifndef AMP_NO_STDLIB
    AMPI_TRY(ampi_env(&on, &type));
    if (type > 0) (void)ampi_override_by(ac, (amp_dtype)type, "", "");
    if (on >= 0) d.disabled = !on;
    if (on == 1 || type == (int)AMP_F32) ac->off = type == (int)AMP_F32;
    ampi_scale_for(&d, own, ampi_asks_for_fp16(ac));
#endif
    AMPI_TRY(amp_autocast_push(ac, &scope));
    return ampi_scaler_setup(scaler, &d);
}

AMP_DEF amp_result amp_session_start(amp_session *session, const amp_session_desc *desc) {
    const size_t     room = ampi_up(sizeof(amp_scaler), 256); /* after the copies */
    size_t           size;
    amp_session_desc d;
    amp_scaler       scaler;
    amp_autocast     ac;
    amp_backend      b;
    void            *block  = NULL;
    char            *memory = NULL;
    amp_result       result;
    memset(&d, 0, sizeof d);
    if (desc) d = *desc;
    amp_cpu_backend(&b);
    if (d.backend) b = *d.backend;
    size = d.num_bytes ? d.num_bytes / 256 * 256 + 256 : 0;
    AMPI_TRY(ampi_session_ok(session, &d, &b));
    AMPI_IEEE(result = ampi_session_settings(&d, b.functions == &ampi_cpu_functions, &scaler,
                                             &ac));
    AMPI_TRY(result);
    AMPI_TRY(ampi_captured(ampi_block_alloc(&b, &d.allocator, size + room, &block, &memory)));
    memset(session, 0, sizeof *session);
    session->backend   = b;
    session->allocator = d.allocator;
    session->block     = block;
    session->memory    = memory;
    session->size = session->top = size;
    session->scaler   = (amp_scaler *)(void *)(memory + size);
    session->autocast = ac;
    session->autocast.session = session;
    session->before = amp_autocast_use(&session->autocast);
    result = ampi_send(&b, session->scaler, &scaler, sizeof scaler);
    if (result != AMP_OK) (void)amp_session_end(session);
    return result;
}

static amp_result ampi_session_ready(const amp_session *session) {
    if (!session) return ampi_missing("session");
    AMPI_REFUSE(!session->memory, NOT_INITIALIZED,
                "the session does not run: call amp_session_start first");
    return AMP_OK;
}

AMP_DEF amp_result amp_session_add(amp_session *session, const float *weight, size_t n) {
    ampi_cached *e;
    int          i = 0;
    AMPI_TRY(ampi_session_ready(session));
    if (!weight) return ampi_missing("weight");
    while (i < session->num_entries && session->entries[i].base != weight) i++;
    if (i < session->num_entries) {
        e = &session->entries[i];
        memmove(e, e + 1, (size_t)(--session->num_entries - i) * sizeof *e);
    }
    if (!n) return AMP_OK;
    AMPI_REFUSE(session->num_entries >= AMP_MAX_CACHED, TOO_LARGE,
                "%g weights are added, and no more may be", (double)AMP_MAX_CACHED);
    e = &session->entries[session->num_entries++];
    memset(e, 0, sizeof *e);
    e->base = weight;
    e->n    = n;
    return AMP_OK;
}

/* Is [x, x + extent) within [base, base + n)? */
static int ampi_within(const float *x, size_t extent, const float *base, size_t n) {
    const uintptr_t at = (uintptr_t)x, from = (uintptr_t)base;
    return at >= from && (at - from) % sizeof *x == 0 && (at - from) / sizeof *x <= n &&
           extent <= n - (at - from) / sizeof *x;
}

/* A change of one weight is a change of all that overlap it. */
AMP_DEF amp_result amp_session_changed(amp_session *session, const float *weight) {
    int i, k, found = weight == NULL;
    AMPI_TRY(ampi_session_ready(session));
    for (i = 0; i < session->num_entries; i++) {
        const ampi_cached *e = &session->entries[i];
        if (weight && !ampi_within(weight, 1, e->base, e->n)) continue;
        found = 1;
        for (k = 0; k < session->num_entries; k++) {
            ampi_cached *other = &session->entries[k];
            if (ampi_within(other->base, 1, e->base, e->n) ||
                ampi_within(e->base, 1, other->base, other->n))
                other->of.x = NULL;
        }
    }
    AMPI_REFUSE(!found, INVALID_ARGUMENT, "weight is of no array that amp_session_add was given");
    return AMP_OK;
}

/* Elements from the first of m to the last, if rows are ld apart. */
static size_t ampi_extent(const ampi_matrix *m, size_t ld) {
    return (m->count - 1) * m->stride + (m->rows - 1) * ld + m->cols;
}

/* The distance of rows in a copy: the matrix's own in a batch, or if it suits tensor cores. */
static size_t ampi_copy_ld(const ampi_matrix *m) {
    return m->stride || m->ld % 8 == 0 ? m->ld : ampi_up(m->cols, 8);
}

/* Casts m to memory + offset. What lies between rows, or between the matrices of a batch, must not
   be read. A batch that lies one after another, or side by side, is one matrix. */
static amp_result ampi_cache_cast(amp_session *s, const ampi_matrix *m, size_t offset) {
    const amp_backend *b    = &s->backend;
    const size_t       ld   = ampi_copy_ld(m);
    size_t             rows = m->rows, cols = m->cols, count = m->count, k, r;
    if (m->stride == rows * m->ld) rows *= count, count = 1;
    if (m->stride == cols && count * cols <= m->ld) cols *= count, count = 1;
    if (cols == m->ld && cols == ld) cols *= rows, rows = 1;
    for (k = 0; k < count; k++) {
        const float *x    = m->x + k * m->stride;
        char        *copy = s->memory + offset + 2 * k * m->stride;
        if (rows > 1 && b->functions->cast_rows_fn)
            AMPI_TRY(b->functions->cast_rows_fn(b, copy, m->type, ld, x, AMP_F32, m->ld, rows,
                                                cols));
        else
            for (r = 0; r < rows; r++)
                AMPI_TRY(ampi_cast_on(b, copy + 2 * r * ld, m->type, x + r * m->ld, AMP_F32,
                                      cols));
    }
    return AMP_OK;
}

/* The stored copy of m, if it is current. After a capture, replays may change weights at any
   time, so a copy is good for one product only. *e: the weight that m is or lies in, if a copy of
   it may be placed; or NULL. */
static const void *ampi_cache_find(amp_session *s, const ampi_matrix *m, ampi_cached **e) {
    ampi_cached       *w = s->entries, *const end = w + s->num_entries;
    const ampi_matrix *of;
    int                in_use, current;
    *e = NULL;
    while (w < end && !ampi_within(m->x, ampi_extent(m, m->ld), w->base, w->n)) w++;
    if (w == end) return NULL;
    of      = &w->of;
    in_use  = w->product == s->product;
    current = of->x && of->capture == m->capture && (m->capture || !s->captured || in_use);
    if (!current || !in_use) *e = w; /* else it holds the other operand's copy */
    if (!current || of->x != m->x || of->rows != m->rows || of->cols != m->cols ||
        of->ld != m->ld || of->count != m->count || of->stride != m->stride ||
        of->type != m->type)
        return NULL;
    w->product = s->product;
    return s->memory + w->offset;
}

/* Makes a copy of m: e's, or without e one for this product only, below top. It goes to where e's
   is if that has room, else to the first place where it overlaps no copy of another weight. */
static amp_result ampi_cache_place(amp_session *s, ampi_cached *e, const ampi_matrix *m,
                                   const void **copy) {
    const size_t room = ampi_up(2 * ampi_extent(m, ampi_copy_ld(m)), 256);
    size_t       offset;
    ampi_cached  once;
    int          i;
    once.room = 0;
    if (!e) e = &once;
    if (e->room < room) {
        if (room > s->top) return AMP_ERROR_OUT_OF_MEMORY;
        offset = e == &once ? s->top - room : 0;
        for (i = 0; i < s->num_entries; i++) {
            const ampi_cached *w = &s->entries[i];
            if (w == e || w->offset >= offset + room || offset >= w->offset + w->room) continue;
            offset = w->offset + w->room;
            i      = -1; /* the first again */
        }
        if (offset > s->top - room) return AMP_ERROR_OUT_OF_MEMORY;
        if (e == &once) s->top = offset;
        e->offset = offset;
        e->room   = room;
    }
    e->of.x = NULL;
    AMPI_TRY(ampi_cache_cast(s, m, e->offset));
    s->misses += e != &once;
    s->transients += e == &once;
    e->of      = *m;
    e->product = s->product;
    *copy      = s->memory + e->offset;
    return AMP_OK;
}

/* Finds or makes a copy of count matrices in type, for one product, as far apart as they are;
   rows of a single one are padded to multiples of 16 bytes. */
static amp_result ampi_cache_get(amp_session *s, const ampi_matrices *x, size_t count,
                                 amp_dtype type, const void **copy, size_t *copy_ld) {
    const size_t stride = count > 1 ? x->stride : 0;
    ampi_matrix  m = {(const float *)x->x, x->rows, x->cols, x->ld, 1, stride, type, 0};
    ampi_cached *e;
    const void  *at;
    if (stride) m.count = count;
    if (!m.x || !m.rows || !m.cols || m.ld < m.cols) return AMP_ERROR_INVALID_ARGUMENT;
    if (m.rows > SIZE_MAX / 64 / m.ld || stride > SIZE_MAX / 64 / m.count)
        return AMP_ERROR_TOO_LARGE;
    if (s->backend.functions->capture_fn)
        m.capture = s->backend.functions->capture_fn(&s->backend);
    if (m.capture) s->captured = 1;
    at = ampi_cache_find(s, &m, &e);
    if (at) s->hits++;
    else AMPI_TRY(ampi_cache_place(s, e, &m, &at));
    *copy    = at;
    *copy_ld = ampi_copy_ld(&m);
    return AMP_OK;
}

/* Has the weight of e changed since it was cast? */
static amp_result ampi_cache_compare(const amp_session *s, const ampi_cached *e) {
    const amp_backend *b    = &s->backend;
    const ampi_matrix *m    = &e->of;
    const size_t       ld   = ampi_copy_ld(m);
    float              now[AMPI_PIECE];
    uint16_t           fresh[AMPI_PIECE], copied[AMPI_PIECE];
    size_t             r, c, n;
    for (r = 0; r < m->rows * m->count; r++) {
        const size_t matrix = r / m->rows * m->stride, row = r % m->rows;
        const float *x      = m->x + matrix + row * m->ld;
        const char  *copy   = s->memory + e->offset + 2 * (matrix + row * ld);
        for (c = 0; c < m->cols; c += n) {
            n = ampi_min(m->cols - c, AMPI_PIECE);
            AMPI_TRY(ampi_captured(b->functions->copy_fn(b, now, x + c, 4 * n, AMPI_TO_HOST)));
            AMPI_TRY(ampi_captured(b->functions->copy_fn(b, copied, copy + 2 * c, 2 * n,
                                                         AMPI_TO_HOST)));
            AMPI_TRY(amp_cast(fresh, m->type, now, AMP_F32, n));
            AMPI_REFUSE(memcmp(fresh, copied, 2 * n) != 0, STALE, "weight %g of those added, of %g "
                        "elements, was written to: call amp_session_changed whenever it is",
                        (double)(e - s->entries), (double)e->n);
        }
    }
    return AMP_OK;
}

AMP_DEF amp_result amp_session_check(const amp_session *session) {
    int i;
    AMPI_TRY(ampi_session_ready(session));
    for (i = 0; i < session->num_entries && !session->captured; i++)
        if (session->entries[i].of.x) AMPI_TRY(ampi_cache_compare(session, &session->entries[i]));
    return AMP_OK;
}

/* -------------------------------------------------------------------- >>impl sgemm
   Products under autocast: amp_gemm, and cuBLAS's. */

/* With a cache, or an override by name, small fp32 products stay fp32: casts would take longer.
   So do all, if a BLAS multiplies fp32 faster than amp.h multiplies 16 bits. */
static int ampi_is_small(const amp_gemm_args *g) {
    return g->a_type == AMP_F32 && g->b_type == AMP_F32 && g->c_type == AMP_F32 &&
           (AMPI_FAST_BLAS || !ampi_work_above(1, g->n, g->k, AMPI_PAYS - 1));
}

/* Replaces g's fp32 operands by copies in type, if that pays. Returns 0 if there is no room for
   one, or if s is of another backend or stream. */
static int ampi_gemm_cast(amp_session *s, const amp_backend *backend, amp_gemm_args *g,
                          amp_dtype type) {
    const void *copy[2];
    size_t      ld[2];
    int         i;
    if (s->backend.functions != (backend ? backend->functions : &ampi_cpu_functions) ||
        (backend && s->backend.stream != backend->stream))
        return 0;
    s->top = s->size; /* copies of what was not added last for one product */
    s->product++;
    if (ampi_is_small(g)) return 1;
    for (i = 0; i < 2; i++) {
        const ampi_matrices m = ampi_matrices_of(g, i);
        copy[i] = m.x;
        ld[i]   = m.ld;
        if (m.type == type) continue;
        if (m.type != AMP_F32 || ampi_cache_get(s, &m, g->count, type, &copy[i], &ld[i]) != AMP_OK)
            return 0;
    }
    g->a      = copy[0];
    g->b      = copy[1];
    g->lda    = ld[0];
    g->ldb    = ld[1];
    g->a_type = g->b_type = type;
    return 1;
}

AMPI_COLD_END

/* Does rounding to type pay, if the CPU has products of it? As measured: a matrix times a vector
   is read only once, and in tiles a product of fp16 is four. bf16: n at least 2, n k at least
   2^10, so that a row's bits do not depend on m; fp16: m and n above 16, m n k at least 2^17, and
   k at least 32 if one operand is stored in fp16. */
static int ampi_rounding_pays(const amp_gemm_args *g, amp_dtype type) {
    const int fp16 = type == AMP_F16, stored = g->a_type != g->b_type; /* one is fp16 */
    if (!fp16) return g->n > 1 && ampi_work_above(1, g->n, g->k, AMPI_PAYS - 1);
    return ampi_min(g->m, g->n) > 16 && (!stored || g->k >= 32) &&
           ampi_work_above(g->m, g->n, g->k, AMPI_TILES_FP16 - 1);
}

/* Without a cache: does a product on a CPU round its fp32 operands to type itself? It does if
   that is faster, or if the policy names the op. The use of tiles is asked for before, so that
   the first product has the bits of the next. */
static int ampi_rounds(const amp_autocast *ac, const amp_backend *backend, const amp_gemm_args *g,
                       amp_dtype type) {
    if (backend && backend->functions != &ampi_cpu_functions) return 0;
    if ((g->a_type != AMP_F32 && g->a_type != type) || (g->b_type != AMP_F32 && g->b_type != type))
        return 0;
    if (ampi_is_small(g)) return 0;
    return ac->ops[AMP_OP_GEMM].overridden ||
           (ampi_rounding_pays(g, type) &&
            ampi_engine_pairs(type == AMP_BF16, g->m, g->n, g->k) != NULL);
}

/* Applies the policy to a product. Its tf32 is for those that stay in fp32. */
static amp_result ampi_gemm_autocast(void *context, const amp_backend *backend, amp_gemm_args *g) {
    amp_autocast   *ac        = (amp_autocast *)context;
    amp_session    *s         = ampi_session_of(ac);
    const amp_dtype inputs[2] = {g->a_type, g->b_type};
    const int       tf32 = g->tf32, on = ampi_autocast_active(ac);
    amp_dtype       type = AMP_F32;
    int             rounded;
    if (on) AMPI_TRY(amp_autocast_dtype(ac, AMP_OP_GEMM, inputs, 2, &type, NULL));
    if ((g->a_type != AMP_F32 && g->b_type != AMP_F32) || !g->k || ampi_is_zero(g->alpha))
        return AMP_OK;
    if (on) g->tf32 |= ac->tf32;
    if (type != AMP_F32 && s && s->size) s->fallbacks += !ampi_gemm_cast(s, backend, g, type);
    else if (type != AMP_F32 && ampi_rounds(ac, backend, g, type)) g->compute = type;
    rounded = g->compute || (g->a_type != AMP_F32 && g->b_type != AMP_F32);
    if (rounded) g->tf32 = tf32;
    if (s) ++*(rounded ? &s->rounded : &s->left_fp32);
    return AMP_OK;
}

AMP_DEF amp_autocast *amp_autocast_use(amp_autocast *ac) {
#ifndef AMPI_ONE_THREAD
    amp_autocast *before    = ampi_autocast_current();
    ampi_current.product_fn = ac ? ampi_gemm_autocast : NULL;
    ampi_current.context    = ac;
    return before;
#else
    (void)ac;
    return NULL;
#endif
}

#ifdef AMP_CUBLAS

/* The code below calls cuBLAS itself. */
#pragma push_macro("cublasSgemmStridedBatched")
#undef cublasSgemmStridedBatched

/* g has rows where cuBLAS has columns. Autocast does not see alpha, which may be in device
   memory, nor sizes that cuBLAS refuses, or that exceed int when rows are padded. */
static cublasStatus_t ampi_sgemm(int batch, cublasHandle_t handle, cublasOperation_t transa,
                                 cublasOperation_t transb, int m, int n, int k,
                                 const float *alpha, const float *A, int lda, long long strideA,
                                 const float *B, int ldb, long long strideB, const float *beta,
                                 float *C, int ldc, long long strideC, int count) {
    amp_gemm_args g = ampi_product(C, A, transa == CUBLAS_OP_N, B, transb == CUBLAS_OP_N,
                                   (size_t)m, (size_t)n, (size_t)k);
    cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
    cudaDataType        to      = CUDA_R_32F;
    amp_autocast       *ac      = ampi_autocast_current();
    amp_session        *s       = ampi_session_of(ac);
    const amp_dtype     inputs[2] = {AMP_F32, AMP_F32};
    amp_dtype           type    = AMP_F32;
    amp_backend         backend;
    memset(&backend, 0, sizeof backend);
    g.lda      = (size_t)lda;
    g.ldb      = (size_t)ldb;
    g.count    = (size_t)count;
    g.stride_a = (size_t)strideA;
    g.stride_b = (size_t)strideB;
    if (s && s->size && amp_autocast_dtype(ac, AMP_OP_GEMM, inputs, 2, &type, NULL) == AMP_OK &&
        type != AMP_F32) {
        cublasStatus_t status;
        backend = s->backend;
        status  = cublasGetStream(handle, &backend.stream);
        if (status != CUBLAS_STATUS_SUCCESS) return status;
    }
    if (ac && (m | n | k | lda | ldb) >= 0 && count > 0 && lda < 0x7ffffff8 && ldb < 0x7ffffff8)
        (void)ampi_gemm_autocast(ac, &backend, &g);
    if (g.a_type != AMP_F32) to = g.a_type == AMP_F16 ? CUDA_R_16F : CUDA_R_16BF;
    else if (g.tf32) compute = CUBLAS_COMPUTE_32F_FAST_TF32;
    else if (batch)
        return cublasSgemmStridedBatched(handle, transa, transb, m, n, k, alpha, A, lda, strideA,
                                         B, ldb, strideB, beta, C, ldc, strideC, count);
    else
        return cublasSgemm_v2(handle, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, C,
                              ldc);
    if (batch)
        return cublasGemmStridedBatchedEx(handle, transa, transb, m, n, k, alpha, g.a, to,
                                          (int)g.lda, strideA, g.b, to, (int)g.ldb, strideB, beta,
                                          C, CUDA_R_32F, ldc, strideC, count, compute,
                                          CUBLAS_GEMM_DEFAULT);
    return cublasGemmEx(handle, transa, transb, m, n, k, alpha, g.a, to, (int)g.lda, g.b, to,
                        (int)g.ldb, beta, C, CUDA_R_32F, ldc, compute, CUBLAS_GEMM_DEFAULT);
}

AMP_DEF cublasStatus_t amp_sgemm(cublasHandle_t handle, cublasOperation_t transa,
                                 cublasOperation_t transb, int m, int n, int k,
                                 const float *alpha, const float *A, int lda, const float *B,
                                 int ldb, const float *beta, float *C, int ldc) {
    return ampi_sgemm(0, handle, transa, transb, m, n, k, alpha, A, lda, 0, B, ldb, 0, beta, C,
                      ldc, 0, 1);
}

AMP_DEF cublasStatus_t amp_sgemm_strided_batched(
    cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k,
    const float *alpha, const float *A, int lda, long long int strideA, const float *B, int ldb,
    long long int strideB, const float *beta, float *C, int ldc, long long int strideC,
    int batchCount) {
    return ampi_sgemm(1, handle, transa, transb, m, n, k, alpha, A, lda, strideA, B, ldb, strideB,
                      beta, C, ldc, strideC, batchCount);
}

#pragma pop_macro("cublasSgemmStridedBatched")
#endif

#endif /* AMP_NO_AUTOCAST */

/* ----------------------------------------------------------------- >>impl cblas */

#ifdef AMP_CBLAS_DROP_IN
#ifdef __cplusplus /* number as x's enumeration, whatever this BLAS calls it */
#define AMPI_LIKE(x, number) decltype(x)(number)
#else
#define AMPI_LIKE(x, number) (number)
#endif

static int ampi_cblas_trans(unsigned trans) { /* -1: it is none */
    return trans == CblasNoTrans ? 0 : trans == CblasTrans || trans == CblasConjTrans ? 1 : -1;
}

AMP_DEF void ampi_cblas_sgemm(AMPI_CBLAS_ARGS(unsigned, unsigned)); /* for C++ */
AMP_DEF void amp_cblas_sgemm(AMPI_CBLAS_ARGS(unsigned, unsigned));

AMP_DEF void ampi_cblas_sgemm(AMPI_CBLAS_ARGS(unsigned, unsigned)) {
    const int at = ampi_cblas_trans(trans_a), bt = ampi_cblas_trans(trans_b);
    const int swap = order == CblasColMajor; /* by rows, C's transpose is B's times A's */
    amp_gemm_args g = ampi_product(c, swap ? b : a, swap ? bt : at, swap ? a : b, swap ? at : bt,
                                   (size_t)(swap ? n : m), (size_t)(swap ? m : n), (size_t)k);
    g.alpha = alpha;
    g.beta  = beta;
    g.lda   = (size_t)(swap ? ldb : lda);
    g.ldb   = (size_t)(swap ? lda : ldb);
    g.ldc   = (size_t)ldc;
    if ((swap || order == CblasRowMajor) && (at | bt | m | n | k) >= 0 && lda > 0 && ldb > 0 &&
        ldc > 0 && ampi_gemm(NULL, &g, ampi_gemm_names) == AMP_OK)
        return;
    (cblas_sgemm)(AMPI_LIKE(CblasRowMajor, order), AMPI_LIKE(CblasTrans, trans_a),
                  AMPI_LIKE(CblasTrans, trans_b), AMPI_CBLAS_REST);
}

AMP_DEF void amp_cblas_sgemm(AMPI_CBLAS_ARGS(unsigned, unsigned)) {
    ampi_cblas_sgemm(order, trans_a, trans_b, AMPI_CBLAS_REST);
}
#endif

/* ------------------------------------------------------------------ >>impl tiers
   Plain C's numbers for products; then arrays and products once per instruction set. */

AMPI_STRICT_BEGIN

#if defined(__CUDACC__) /* nvcc passes pragmas on to the host's compiler, but warns */
#pragma nv_diagnostic push
#pragma nv_diag_suppress 1675
#endif

/* Products in plain C. */

AMPI_HOST float ampi_get_as(const void *base, amp_dtype type, size_t i) {
    return ampi_f32_from_bits(ampi_load(base, type, i));
}
static AMPI_NOINLINE float ampi_round(float x, amp_dtype type) {
    uint32_t h;
    ampi_store(&h, type, 0, ampi_bits_of_f32(x));
    return ampi_get_as(&h, type, 0);
}
AMPI_HOST float ampi_fma(float a, float b, float c) { return ampi_add(c, ampi_mul(a, b)); }
AMPI_HOST void  ampi_transpose(float *v) { (void)v; }

#endif /* >>impl goes on */

/* ---------------------------------------------------------------- >>impl products
   Compiled here in plain C, and in each tier's second inclusion (>>impl processors): packing,
   writing, and a matrix times a vector (gemv). */

#if defined(AMPI_PASS) && AMPI_PASS & (AMPI_PASS_PLAIN | AMPI_PASS_LOOPS)

#define AMPI_FEW_OF_4(p, n) /* no call, and no wait for what was just stored */                 \
    {(n) > 0 ? ampi_load_f32(p, 0) : 0.0f, (n) > 1 ? ampi_load_f32(p, 1) : 0.0f,               \
     (n) > 2 ? ampi_load_f32(p, 2) : 0.0f, 0.0f}

#if AMPI_W < 16 /* the first n elements, if n < W; AVX-512 has masks */
AMPI_HERE AMPI_V AMPI_(get_few)(const void *base, amp_dtype type, size_t n) {
    uint32_t copy[AMPI_W] = {0};
#if AMPI_W == 8
    if (type == AMP_F32) return AMPI_(get_masked)(base, AMPI_(few)(n));
#endif
#if AMPI_W == 4
    if (type == AMP_F32) {
        const AMPI_V v = AMPI_FEW_OF_4(base, n);
        return v;
    }
#endif
    memcpy(copy, base, n * (type == AMP_F32 ? 4 : 2));
    return AMPI_(get_as)(copy, type, 0);
}
/* memcpy, as a call, takes longer, and so does a masked store on AMD's processors. */
AMPI_LOOP void AMPI_(put_few)(void *base, amp_dtype type, size_t n, AMPI_V x) {
    uint32_t     copy[AMPI_W];
    const size_t bytes = n * (type == AMP_F32 ? 4 : 2);
    size_t       size;
    AMPI_(put_as)(copy, type, 0, x);
    AMPI_UNROLL for (size = 2 * AMPI_W; size > 1; size /= 2) {
        const size_t i = bytes & ~(2 * size - 1);
        if (bytes & size) memcpy((char *)base + i, (const char *)copy + i, size);
    }
}
AMPI_IN AMPI_V AMPI_(get_first)(const void *base, amp_dtype type, size_t n) {
    return n >= AMPI_W ? AMPI_(get_as)(base, type, 0) : AMPI_(get_few)(base, type, n);
}
AMPI_IN void AMPI_(put_first)(void *base, amp_dtype type, size_t n, AMPI_V x) {
    if (n >= AMPI_W) AMPI_(put_as)(base, type, 0, x);
    else AMPI_(put_few)(base, type, n, x);
}
#else
AMPI_HERE AMPI_V AMPI_(get_first)(const void *base, amp_dtype type, size_t n) {
    if (type == AMP_F32) return AMPI_(few_f32)(base, n);
    if (type == AMP_F16) return AMPI_(from_f16)(AMPI_(few_shorts)(base, n));
    return AMPI_(from_bits)(AMPI_(from_16)(AMPI_(few_shorts)(base, n)) << 16);
}
AMPI_HERE void AMPI_(put_first)(void *base, amp_dtype type, size_t n, AMPI_V x) {
    if (type == AMP_F32) AMPI_(put_few_f32)(base, n, x);
    else AMPI_(put_few_16)(base, n, AMPI_(narrowed)(x, type));
}
#endif

#if AMPI_W > 1
AMPI_HERE AMPI_V AMPI_(round)(AMPI_V x, amp_dtype type) {
    if (type == AMP_F16) return AMPI_(from_f16)(AMPI_(f16)(x));
    return AMPI_(from_bits)(AMPI_(or_nan)(AMPI_(nearest)(AMPI_(bits)(x)) & 0xffff0000u, x));
}

/* Transposes W x W: words in lanes of 128 bits, then lanes. */
AMPI_IN void AMPI_(transpose)(AMPI_V *v) {
    AMPI_V t[AMPI_W];
    size_t i;
    AMPI_UNROLL for (i = 0; i < AMPI_W; i += 2) {
        t[i]     = AMPI_(low)(v[i], v[i + 1]);
        t[i + 1] = AMPI_(high)(v[i], v[i + 1]);
    }
    AMPI_UNROLL for (i = 0; i < AMPI_W; i += 4) {
        v[i]     = AMPI_(low2)(t[i], t[i + 2]);
        v[i + 1] = AMPI_(high2)(t[i], t[i + 2]);
        v[i + 2] = AMPI_(low2)(t[i + 1], t[i + 3]);
        v[i + 3] = AMPI_(high2)(t[i + 1], t[i + 3]);
    }
#if AMPI_W > 4
    AMPI_UNROLL for (i = 0; i < AMPI_W; i++)
        if (!(i & 4)) {
            t[i]     = AMPI_(even)(v[i], v[i + 4]);
            t[i + 4] = AMPI_(odd)(v[i], v[i + 4]);
        }
    AMPI_UNROLL for (i = 0; i < AMPI_W; i++)
        if (AMPI_W == 8) {
            v[i] = t[i];
        } else if (!(i & 8)) {
            v[i]     = AMPI_(even)(t[i], t[i + 8]);
            v[i + 8] = AMPI_(odd)(t[i], t[i + 8]);
        }
#endif
}
#endif

/* Elements from i on, of which n are there (or W), as they count. */
AMPI_IN AMPI_V AMPI_(value)(const ampi_operand *x, size_t i, size_t n) {
    const AMPI_V v = AMPI_(get_first)(ampi_at(x->x, x->type, i), x->type, n);
    return x->as == x->type ? v : AMPI_(round)(v, x->as);
}

/* One vector, of a type that counts as another. */
AMPI_IN AMPI_V AMPI_(get_counted)(const void *x, const amp_dtype type, const amp_dtype as,
                                  size_t i) {
    const AMPI_V v = AMPI_(get_as)(x, type, i);
    return as == type ? v : AMPI_(round)(v, as);
}
/* Calls f with x's types as constants. */
#define AMPI_COUNTED(f, x, ...)                                                                \
    do {                                                                                       \
        if ((x)->type == AMP_F16) f(AMP_F16, AMP_F16, __VA_ARGS__);                            \
        else if ((x)->type == AMP_BF16) f(AMP_BF16, AMP_BF16, __VA_ARGS__);                    \
        else if ((x)->as == AMP_F32) f(AMP_F32, AMP_F32, __VA_ARGS__);                         \
        else f(AMP_F32, (x)->as, __VA_ARGS__);                                                 \
    } while (0)

AMPI_IN void AMPI_(convert_as)(const amp_dtype type, const amp_dtype as, float *dst, size_t ld,
                               size_t jump, const ampi_operand *x, size_t step, size_t rows,
                               size_t n) {
    enum { AMPI_SOME = AMPI_W < 16 ? 2 * AMPI_W : AMPI_W }; /* divides ld: 16, or a block's cols */
    size_t r, i, q, p;
    for (r = 0; r < rows; r++) {
        float *to = dst + r * ld;
        for (i = q = 0; n - i >= AMPI_SOME; i += AMPI_SOME) {
            AMPI_PREFETCH(ampi_at(x->x, type, (r + 2) * step + i)); /* rows may be far apart */
            AMPI_UNROLL for (p = 0; p < AMPI_SOME; p += AMPI_W)
                AMPI_(put)(to, q + p, AMPI_(get_counted)(x->x, type, as, r * step + i + p));
            q += AMPI_SOME;
            if (jump && q == ld) q = 0, to += jump;
        }
        for (; i < n; i += AMPI_W, q += AMPI_W)
            AMPI_(put)(to, q, AMPI_(value)(x, r * step + i, n - i));
        for (; jump && q && q < ld; q += AMPI_W) AMPI_(put)(to, q, AMPI_(splat)(0.0f));
    }
}
AMPI_LOOP void AMPI_(convert)(float *dst, size_t ld, size_t jump, const ampi_operand *x,
                              size_t step, size_t rows, size_t n) {
    AMPI_COUNTED(AMPI_(convert_as), x, dst, ld, jump, x, step, rows, n);
    AMPI_(done)();
}

/* A square as fp32: from element first on, W numbers of each of W rows, and 0 where none are. */
AMPI_HERE void AMPI_(square)(float *dst, const ampi_operand *x, size_t first, size_t step,
                             size_t rows, size_t n) {
    size_t i;
    for (i = 0; i < AMPI_W; i++)
        AMPI_(put)(dst, i * AMPI_W,
                   i < rows ? AMPI_(value)(x, first + i * step, n) : AMPI_(splat)(0.0f));
}
/* W rows of memory, transposed: v[i] is elements i. */
AMPI_IN void AMPI_(get_transposed)(AMPI_V *v, const void *x, const amp_dtype type,
                                   const amp_dtype as, size_t step) {
    size_t i;
    AMPI_UNROLL for (i = 0; i < AMPI_W; i++) v[i] = AMPI_(get_counted)(x, type, as, i * step);
    AMPI_(transpose)(v);
}
AMPI_IN void AMPI_(transpose_whole)(const amp_dtype type, const amp_dtype as, float *dst, size_t ld,
                                    const void *x, size_t step, size_t rows, size_t n,
                                    size_t there) {
    AMPI_V v[AMPI_W];
    size_t i, r, q;
    for (i = 0; i < n && there - i >= AMPI_W; i += AMPI_W)
        for (r = 0; rows - r >= AMPI_W; r += AMPI_W) {
            AMPI_(get_transposed)(v, ampi_at(x, type, r * step + i), type, as, step);
            AMPI_UNROLL for (q = 0; q < AMPI_W; q++)
                if (q < n - i) AMPI_(put)(dst, (i + q) * ld + r, v[q]);
        }
}
AMPI_LOOP void AMPI_(transpose_rows)(float *dst, size_t ld, const ampi_operand *x, size_t step,
                                     size_t rows, size_t n, size_t there) {
    float  room[AMPI_W * AMPI_W];
    AMPI_V v[AMPI_W];
    size_t i, r, q;
    AMPI_COUNTED(AMPI_(transpose_whole), x, dst, ld, x->x, step, rows, n, there);
    for (i = 0; i < n; i += AMPI_W) /* the rest */
        for (r = there - i < AMPI_W ? 0 : rows / AMPI_W * AMPI_W; r < rows; r += AMPI_W) {
            AMPI_(square)(room, x, r * step + i, step, rows - r, there - i);
            AMPI_(get_transposed)(v, room, AMP_F32, AMP_F32, AMPI_W);
            for (q = 0; q < AMPI_W && q < n - i; q++) AMPI_(put)(dst, (i + q) * ld + r, v[q]);
        }
    AMPI_(done)();
}

AMPI_HERE void AMPI_(write_one)(const ampi_task *w, AMPI_V x, size_t i, size_t j, size_t n) {
    const amp_gemm_args *g    = w->g;
    const amp_dtype      type = g->c_type;
    void                *c    = ampi_to(w->c, type, i * g->ldc + j);
    if (!w->plain) {
        x = AMPI_(mul)(x, AMPI_(splat)(w->alpha));
        if (!ampi_is_zero(g->beta))
            x = AMPI_(add)(x, AMPI_(mul)(AMPI_(splat)(g->beta), AMPI_(get_first)(c, type, n)));
        if (w->bias)
            x = AMPI_(add)(x, AMPI_(get_first)(ampi_at(w->bias, g->bias_type, j), g->bias_type, n));
        if (g->activation == AMP_ACTIVATION_RELU) x = AMPI_(relu)(x);
    }
    AMPI_(put_first)(c, type, n, x);
}

AMPI_HERE void AMPI_(write)(const ampi_task *w, const float *sum, size_t ld, size_t i,
                            size_t j, size_t rows, size_t cols) {
    size_t r, q;
    for (r = 0; r < rows; r++)
        for (q = 0; q < cols; q += AMPI_W)
            AMPI_(write_one)(w, AMPI_(get_first)(sum + r * ld + q, AMP_F32, cols - q), i + r, j + q,
                             cols - q);
    AMPI_(done)();
}

/* A matrix times a vector. Where its rows lie side by side, four k at a time are added to sums. */
AMPI_IN void AMPI_(add_four)(const amp_dtype type, const amp_dtype as, float *sum, const void *x,
                             size_t cs, size_t rows, const float *v, size_t odd) {
    AMPI_V y[4], s;
    size_t r, i;
    AMPI_UNROLL for (i = 0; i < 4; i++) y[i] = AMPI_(splat)(v[i ^ odd]);
    for (r = 0; r < rows; r += AMPI_W) {
        s = AMPI_(get)(sum, r);
        AMPI_UNROLL for (i = 0; i < 4; i++) {
            s = AMPI_(fma)(AMPI_(get_counted)(x, type, as, (i ^ odd) * cs + r), y[i], s);
        }
        AMPI_(put)(sum, r, s);
    }
}
AMPI_HERE void AMPI_(across)(float *sum, const ampi_operand *operand, size_t rows, size_t ks,
                             const float *v, size_t odd) {
    size_t r, k, i, some;
    for (k = 0; k < ks; k += some) {
        const ampi_operand x = ampi_operand_at(*operand, 0, k);
        size_t             whole;
        some  = rows > AMPI_W ? ampi_min(ks - k, 4) : ks;
        whole = some == 4 ? rows / AMPI_W * AMPI_W : 0;
        AMPI_COUNTED(AMPI_(add_four), &x, sum, x.x, x.cs, whole, v + k, odd);
        for (r = whole; r < rows; r += AMPI_W) {
            AMPI_V s = AMPI_(get)(sum, r);
            for (i = 0; !odd && i < some; i++)
                s = AMPI_(fma)(AMPI_(value)(&x, i * x.cs + r, rows - r), AMPI_(splat)(v[k + i]), s);
            for (i = 0; odd && i < some; i++) {
                size_t at = i ^ 1;
                if (at == some) s = AMPI_(add)(s, AMPI_(splat)(0.0f)), at = i; /* a pair's half */
                s = AMPI_(fma)(AMPI_(value)(&x, at * x.cs + r, rows - r), AMPI_(splat)(v[k + at]),
                               s);
            }
            AMPI_(put)(sum, r, s);
        }
    }
    AMPI_(done)();
}

/* Where its rows lie along k, W of them are transposed, W k at a time; of bf16, faster by a tenth,
   as words of two k. */
AMPI_IN AMPI_V AMPI_(add_transposed)(AMPI_V s, const void *x, const amp_dtype type,
                                     const amp_dtype as, size_t step, const float *v) {
    AMPI_V w[AMPI_W];
    size_t k;
#if AMPI_W > 1
    if (type == AMP_BF16) {
        AMPI_UNROLL for (k = 0; k < AMPI_W; k++) {
            const void *row = ampi_at(x, type, k * step);
            w[k]            = AMPI_(get)(row, 0);
            AMPI_PREFETCH((const char *)row + AMPI_SOON);
        }
        AMPI_(transpose)(w);
        AMPI_UNROLL for (k = 0; k < AMPI_W; k++) {
            const AMPI_U u = (AMPI_U)w[k];
            s = AMPI_(fma)(AMPI_(from_bits)(u << 16), AMPI_(splat)(v[2 * k]), s);
            s = AMPI_(fma)(AMPI_(from_bits)(u & 0xffff0000u), AMPI_(splat)(v[2 * k + 1]), s);
        }
        return s;
    }
#endif
    AMPI_(get_transposed)(w, x, type, as, step);
    AMPI_UNROLL for (k = 0; k < AMPI_W; k++) s = AMPI_(fma)(w[k], AMPI_(splat)(v[k]), s);
    return s;
}
/* The same of up to W rows, of any type, by way of a square. */
AMPI_LOOP void AMPI_(add_edge)(float *sum, const ampi_operand *x, size_t rows, size_t ks,
                               const float *v, size_t odd) {
    float  room[AMPI_W * AMPI_W];
    AMPI_V w[AMPI_W], s = AMPI_(get)(sum, 0);
    size_t k, i;
    odd = AMPI_W < 16 ? 0 : odd;
    for (k = 0; k < ks; k += AMPI_W) {
        AMPI_(square)(room, x, k, x->rs, rows, ks - k);
        AMPI_(get_transposed)(w, room, AMP_F32, AMP_F32, AMPI_W);
        if (!odd && ks - k >= AMPI_W) {
            AMPI_UNROLL for (i = 0; i < AMPI_W; i++)
                s = AMPI_(fma)(w[i], AMPI_(splat)(v[k + i]), s);
            continue;
        }
        AMPI_UNROLL for (i = 0; i < AMPI_W; i++)
            if (i < ks - k + (odd & ks))
                s = AMPI_(fma)(odd ? w[i ^ 1] : w[i], AMPI_(splat)(v[k + (i ^ odd)]), s);
    }
    AMPI_(put)(sum, 0, s);
}
/* Vectors of fewer than sixteen go in several blocks, as an FMA waits for the one before. */
AMPI_IN void AMPI_(along)(const amp_dtype type, const amp_dtype as, float *sum,
                          const ampi_operand *x, size_t rows, size_t ks, const float *v,
                          size_t odd) {
    enum { AMPI_IN_A_ROW = AMPI_W == 1 ? 8 : AMPI_W < 16 ? 2 : 1 };
    const size_t deep  = AMPI_W > 1 && type == AMP_BF16 ? 2 * AMPI_W : AMPI_W;
    const size_t whole = odd ? 0 : ks / deep * deep;
    AMPI_V s[AMPI_IN_A_ROW];
    size_t r, k, q;
    for (r = 0; r < rows; r += AMPI_IN_A_ROW * AMPI_W) {
        const size_t end = rows - r >= AMPI_IN_A_ROW * AMPI_W ? whole : 0;
        AMPI_UNROLL for (q = 0; q < AMPI_IN_A_ROW; q++) s[q] = AMPI_(get)(sum, r + q * AMPI_W);
        for (k = 0; k < end; k += deep)
            AMPI_UNROLL for (q = 0; q < AMPI_IN_A_ROW; q++)
                s[q] = AMPI_(add_transposed)(s[q],
                                             ampi_at(x->x, type, (r + q * AMPI_W) * x->rs + k),
                                             type, as, x->rs, v + k);
        AMPI_UNROLL for (q = 0; q < AMPI_IN_A_ROW; q++) AMPI_(put)(sum, r + q * AMPI_W, s[q]);
        for (q = r; end < ks && q < ampi_min(rows, r + AMPI_IN_A_ROW * AMPI_W); q += AMPI_W) {
            const ampi_operand at = ampi_operand_at(*x, q, end);
            AMPI_(add_edge)(sum + q, &at, rows - q, ks - end, v + end, odd);
        }
    }
    AMPI_(done)();
}
AMPI_LOOP void AMPI_(gemv)(float *sum, const ampi_operand *x, size_t rows, size_t ks,
                           const float *v, size_t odd) {
    odd = AMPI_W < 16 ? 0 : odd;
    if (x->rs == 1) AMPI_(across)(sum, x, rows, ks, v, odd);
    else AMPI_COUNTED(AMPI_(along), x, sum, x, rows, ks, v, odd);
}

#undef AMPI_U
#undef AMPI_N
#undef AMPI_UNROLLED
#endif /* >>impl products */

#if defined(AMPI_PASS) && AMPI_PASS & AMPI_PASS_PLAIN /* >>impl goes on */
#define AMPI_ROW_STEP 2

/* Plain C's kernels name their vectors, because flags decide what becomes of loops. */
#if (defined(__GNUC__) || defined(__clang__)) && defined(__LP64__) && !defined(__TINYC__)
typedef float ampi_f32x4 __attribute__((vector_size(16)));
AMPI_HOST ampi_f32x4 ampi_splat_x4(float x) { /* not x - zero: s390x has double there */
    const ampi_f32x4 v = {x, x, x, x};
    return v;
}
AMPI_HOST ampi_f32x4 ampi_few_x4(const void *base, size_t n) {
    const ampi_f32x4 v = AMPI_FEW_OF_4(base, n);
    return v;
}
AMPI_HOST ampi_f32x4 ampi_add_x4(ampi_f32x4 a, ampi_f32x4 b) { AMPI_RETURN(ampi_f32x4, a + b); }
AMPI_HOST ampi_f32x4 ampi_mul_x4(ampi_f32x4 a, ampi_f32x4 b) { AMPI_RETURN(ampi_f32x4, a * b); }
AMPI_HOST ampi_f32x4 ampi_get_x4(const void *base, size_t i) {
    ampi_f32x4 x;
    memcpy(&x, (const char *)base + 4 * i, sizeof x);
    return x;
}
AMPI_HOST void ampi_put_x4(void *base, size_t i, ampi_f32x4 x) {
    memcpy((char *)base + 4 * i, &x, sizeof x);
}
AMPI_HOST ampi_f32x4 ampi_fma_x4(ampi_f32x4 a, ampi_f32x4 b, ampi_f32x4 c) {
    return ampi_add_x4(c, ampi_mul_x4(a, b));
}
AMPI_HOST void ampi_done_x4(void) {}

AMPI_HOST ampi_f32x4 ampi_get_first_x4(const void *base, amp_dtype type, size_t n) {
    (void)type;
    return n < 4 ? ampi_few_x4(base, n) : ampi_get_x4(base, 0);
}
static AMPI_NOINLINE void ampi_put_few_x4(void *base, size_t n, ampi_f32x4 x) {
    memcpy(base, &x, n * sizeof(float));
}
AMPI_HOST void ampi_put_first_x4(void *base, amp_dtype type, size_t n, ampi_f32x4 x) {
    (void)type;
    if (n < 4) ampi_put_few_x4(base, n, x);
    else ampi_put_x4(base, 0, x);
}

#undef AMPI_TIER
#undef AMPI_V
#undef AMPI_W
#define AMPI_TIER _x4
#define AMPI_V    ampi_f32x4
#define AMPI_W    4
#endif
#endif /* >>impl goes on */

/* ----------------------------------------------------------------- >>impl kernels
   Compiled here for plain C's x4, in each tier's second inclusion, and for pairs and BFMMLA in
   one of their own (>>impl processors). Kernels of products: blocks of up to three times
   AMPI_ROW_STEP rows, two vectors wide. */

#if defined(AMPI_PASS) && AMPI_PASS & (AMPI_PASS_PLAIN | AMPI_PASS_LOOPS | AMPI_PASS_KERNELS)

#ifndef AMPI_SUMS /* BFMMLA has its own */
/* Adds one k to the sums of R rows of C vectors; n columns of the last vector are there. R, C and
   whole are constant where it is inlined, so that sums stay in registers. Row r is at p[16 r] if
   packed; else rows 2 i and 2 i + 1 are at a[i], rs apart. */
AMPI_IN void AMPI_(add_word)(AMPI_V (*s)[2], const uint32_t *p, const uint32_t **a, size_t rs,
                             const uint32_t *b, size_t n, const size_t R, const size_t C,
                             const int whole) {
    AMPI_V y[2];
    size_t r, c;
    y[0] = C == 2 || whole ? AMPI_(get)(b, 0) : AMPI_(get_first)(b, AMP_F32, n);
    if (C == 2) y[1] = whole ? AMPI_(get)(b, AMPI_W) : AMPI_(get_first)(b + AMPI_W, AMP_F32, n);
    AMPI_UNROLL for (r = 0; r < R; r++) {
        const AMPI_V ar = AMPI_(splat)(whole ? ampi_load_f32(p, r * AMPI_DEEP)
                                             : ampi_load_f32(a[r / 2], r % 2 * rs));
        AMPI_UNROLL for (c = 0; c < C; c++) s[r][c] = AMPI_(fma)(ar, y[c], s[r][c]);
    }
}
/* Row r of so many, in pairs; rows beyond the last are the last pair again. */
AMPI_IN size_t AMPI_(row_there)(size_t r, size_t rows) {
    return rows > 1 ? ampi_min(r & ~(size_t)1, rows - 2) + r % 2 : 0;
}
/* Whole: all R rows are there, and packed, as are the columns. */
AMPI_IN void AMPI_(sums)(const ampi_block *x, const size_t R, const size_t C, const int whole) {
    const uint32_t *p = x->a, *a[(3 * AMPI_ROW_STEP + 1) / 2], *b = x->b;
    const size_t    rows = whole ? R : x->rows, odd = whole || AMPI_W < 16 ? 0 : x->odd;
    const size_t    rs = whole ? (size_t)AMPI_DEEP : rows > 1 ? x->rs : 0;
    const size_t    last = whole ? AMPI_W : x->cols - (C - 1) * AMPI_W;
    size_t          cs = whole ? 1 : x->cs * (1 - 2 * odd); /* odd k come first: -1, 3, -1 */
    size_t          ldb = whole ? 2 * AMPI_W : x->ldb * (1 - 2 * odd);
    const size_t    next_cs = odd * (cs ^ 3 * x->cs), next_ldb = odd * (ldb ^ 3 * x->ldb);
    const size_t    ld = x->ld;
    float *const    to = x->out;
    AMPI_V          s[3 * AMPI_ROW_STEP][2];
    size_t          r, c, k;
    AMPI_UNROLL for (r = 0; r < R; r++) {
        const size_t at = AMPI_(row_there)(r, rows);
        if (r % 2 == 0) a[r / 2] = x->a + at * rs + odd * x->cs;
        AMPI_UNROLL for (c = 0; c < C; c++)
            s[r][c] = x->in ? AMPI_(get)(x->in, (at * 2 + c) * AMPI_W) : AMPI_(splat)(0.0f);
    }
    b += odd * x->ldb;
    for (k = 0; k < x->words; k += x->piece) {
        size_t n = ampi_min(x->words - k, x->piece);
        for (; n--; p++, cs ^= next_cs, ldb ^= next_ldb) { /* down: a register less */
            AMPI_(add_word)(s, p, a, rs, b, last, R, C, whole);
            AMPI_UNROLL for (r = 0; r < R; r += 2) a[r / 2] += (ptrdiff_t)cs;
            b += (ptrdiff_t)ldb;
        }
        p += x->next;
        AMPI_UNROLL for (r = 0; r < R; r += 2) a[r / 2] += x->next;
    }
    AMPI_UNROLL for (r = 0; r < R; r++) {
        float *out = to + AMPI_(row_there)(r, rows) * ld;
        if (C == 2) AMPI_(put)(out, 0, s[r][0]);
        if (last == AMPI_W) AMPI_(put)(out, (C - 1) * AMPI_W, s[r][C - 1]);
        else AMPI_(put_first)(out + (C - 1) * AMPI_W, AMP_F32, last, s[r][C - 1]);
    }
    AMPI_(done)();
}
#endif
AMPI_HERE void AMPI_(kernel)(ampi_block *x) {
    enum { AMPI_PACKED = (AMPI_PASS & AMPI_PASS_KERNELS) != 0 }; /* always, and in steps of rows */
    size_t steps = (x->rows + AMPI_ROW_STEP - 1) / AMPI_ROW_STEP, left = x->cols;
    for (;; left -= 2 * AMPI_W, x->b += 2 * AMPI_W, x->out += 2 * AMPI_W) {
        x->cols = ampi_min(left, 2 * AMPI_W);
        switch (steps * 2 + (x->cols > AMPI_W)) {
        case 2: AMPI_(sums)(x, AMPI_ROW_STEP, 1, AMPI_PACKED); break;
        case 3:
            if (!AMPI_PACKED && AMPI_ROW_STEP > 2 && x->rows <= 2) AMPI_(sums)(x, 2, 2, 0);
            else AMPI_(sums)(x, AMPI_ROW_STEP, 2, AMPI_PACKED);
            break;
        case 4: AMPI_(sums)(x, 2 * AMPI_ROW_STEP, 1, AMPI_PACKED); break;
        case 5: AMPI_(sums)(x, 2 * AMPI_ROW_STEP, 2, AMPI_PACKED); break;
        case 6: AMPI_(sums)(x, 3 * AMPI_ROW_STEP, 1, AMPI_PACKED); break;
        default:
            if (AMPI_PACKED || (x->next && x->rows == 3 * AMPI_ROW_STEP))
                AMPI_(sums)(x, 3 * AMPI_ROW_STEP, 2, 1);
            else AMPI_(sums)(x, 3 * AMPI_ROW_STEP, 2, 0);
        }
        if (left <= 2 * AMPI_W) return;
    }
}

#if AMPI_PASS & AMPI_PASS_PLAIN
static const ampi_engine ampi_engine_c = {
    AMPI_BLOCKS(AMPI_ROW_STEP, AMPI_W, 0, 0),
    AMPI_FUNCTIONS(, NULL, AMPI_(kernel), ampi_write, ampi_gemv)};
#elif AMPI_PASS & AMPI_PASS_LOOPS
static const ampi_engine AMPI_(engine) = {
    AMPI_BLOCKS(AMPI_ROW_STEP, AMPI_W, 0, 0),
    AMPI_FUNCTIONS(AMPI_TIER, NULL, AMPI_(kernel), AMPI_(write), AMPI_(gemv))};
static const ampi_loops AMPI_(loops) = {
    AMPI_(cast_from), AMPI_(check), AMPI_(fold), AMPI_(unscale_from), AMPI_(accumulate_from),
    AMPI_(step_from)};
#endif

#undef AMPI_TIER
#undef AMPI_TARGET
#undef AMPI_HERE
#undef AMPI_LOOP
#undef AMPI_V
#undef AMPI_W
#undef AMPI_ROW_STEP
#endif /* >>impl kernels */

/* ----------------------------------------------------------------- >>impl vectors
   Compiled in each tier's first inclusion (>>impl processors), by gcc and clang. What operators
   do not express is an instruction, on x86 by its own name: <immintrin.h> would take gcc a sixth
   of a second and 60 MB. Besides what formulas need, a tier has: most16; or_nan, which is u, or
   some NaN where x is one; zeros and zeros16, which add the zeros among a vector's words or 16-bit
   numbers to an AMPI_N, fewer than 2^16; fma; and low, high ..., of which transpose is made. */

#if defined(AMPI_PASS) && AMPI_PASS & AMPI_PASS_VECTORS

#define AMPI_HERE static inline __attribute__((unused, AMPI_TARGET))
#define AMPI_LOOP static AMPI_NOINLINE __attribute__((AMPI_TARGET))
#define AMPI_V    AMPI_(floats)
#define AMPI_U    AMPI_(words)
typedef float    AMPI_(floats) __attribute__((vector_size(4 * AMPI_W)));
typedef uint32_t AMPI_(words) __attribute__((vector_size(4 * AMPI_W)));
typedef int32_t  AMPI_(ints) __attribute__((vector_size(4 * AMPI_W)));
typedef uint16_t AMPI_(pairs) __attribute__((vector_size(4 * AMPI_W)));
typedef uint16_t AMPI_(shorts) __attribute__((vector_size(2 * AMPI_W)));
typedef int16_t  AMPI_(signed16) __attribute__((vector_size(2 * AMPI_W)));
typedef float    AMPI_(at) __attribute__((vector_size(4 * AMPI_W), aligned(1), may_alias));
typedef uint16_t AMPI_(at16) __attribute__((vector_size(2 * AMPI_W), aligned(1), may_alias));
typedef struct { char x[AMPI_W]; } AMPI_(quarter); /* 8 bits of each */

AMPI_HERE AMPI_U AMPI_(count)(uint32_t u) {
    static const uint32_t lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return u + (AMPI_U)*(const AMPI_(at) *)(const void *)lanes;
}

#if AMPI_W == 16 /* where comparisons make masks */
#define AMPI_N uint64_t
AMPI_HERE uint64_t AMPI_(count_zeros)(AMPI_N n) { return n; }
AMPI_HERE AMPI_U AMPI_(above)(AMPI_U a, AMPI_U b) { return (AMPI_U)((AMPI_(ints))(b - a) >> 31); }
#else
#define AMPI_N AMPI_U
AMPI_HERE AMPI_U AMPI_(above)(AMPI_U a, AMPI_U b) {
    return (AMPI_U)((AMPI_(ints))a > (AMPI_(ints))b);
}
AMPI_HERE uint64_t AMPI_(count_zeros)(AMPI_N n) {
    uint16_t z[2 * AMPI_W]; /* in a chunk, less than 2^16 */
    uint64_t sum = 0;
    size_t   k;
    *(AMPI_(at) *)z = (AMPI_V)n;
    for (k = 0; k < 2 * AMPI_W; k++) sum += z[k];
    return sum;
}
AMPI_HERE AMPI_U AMPI_(zeros)(AMPI_U n, AMPI_U a) { return n - (AMPI_U)(a == 0); }
AMPI_HERE AMPI_U AMPI_(zeros16)(AMPI_U n, AMPI_U a) {
    return (AMPI_U)((AMPI_(pairs))n - (AMPI_(pairs))((AMPI_(pairs))a == 0));
}
#endif

#if AMPI_W != 8 && defined(AMPI_TILES_MODEL)
#include AMPI_TILES_MODEL
#elif AMPI_W >= 8 /* x86 */

#define AMPI_TWO(V, name, op)                                                                  \
    AMPI_INSTRUCTION(AMPI_HERE, V, AMPI_(name), (V a, V b), op " {%2, %1, %0|%0, %1, %2}",     \
                     "=v", "v"(a), "v"(b))
#define AMPI_STORE(V, name, op, T, size)                                                       \
    AMPI_HERE void AMPI_(name)(void *p, size_t i, V x) {                                       \
        __asm__(op " {%1, %0|%0, %1}" : "=m"(*(AMPI_(T) *)(void *)((char *)p + i * size))      \
                : "v"(x));                                                                     \
    }
AMPI_TWO(AMPI_U, least, "vpminud")
AMPI_TWO(AMPI_U, most, "vpmaxud")
AMPI_TWO(AMPI_U, most16, "vpmaxuw")
AMPI_TWO(AMPI_V, low16, "vpunpcklwd")
AMPI_TWO(AMPI_V, high16, "vpunpckhwd")
AMPI_TWO(AMPI_V, low, "vunpcklps")
AMPI_TWO(AMPI_V, high, "vunpckhps")
AMPI_TWO(AMPI_V, low2, "vunpcklpd")
AMPI_TWO(AMPI_V, high2, "vunpckhpd")
AMPI_INSTRUCTION(AMPI_HERE, AMPI_U, AMPI_(get8), (const void *p, size_t i),
                 "vpmovzxbd {%1, %0|%0, %1}", "=v",
                 "m"(*(const AMPI_(quarter) *)(const void *)((const char *)p + i)))
AMPI_STORE(AMPI_V, around, "vmovntps", at, 4)
AMPI_STORE(AMPI_(shorts), around16, "vmovntdq", at16, 2)
AMPI_INSTRUCTION(AMPI_HERE, AMPI_V, AMPI_(sqrt), (AMPI_V a), "vsqrtps {%1, %0|%0, %1}", "=v",
                 "v"(a))
AMPI_INSTRUCTION(AMPI_HERE, AMPI_(shorts), AMPI_(f16), (AMPI_V a),
                 "vcvtps2ph {$0, %1, %0|%0, %1, 0}", "=v", "v"(a))
/* Builtins, so that compilers put a load into the instruction. */
#if defined(__clang__)
AMPI_HERE AMPI_V AMPI_(fma)(AMPI_V a, AMPI_V b, AMPI_V c) {
    _Pragma("clang fp contract(on)") return a * b + c;
}
AMPI_HERE AMPI_U AMPI_(from_16)(AMPI_(shorts) a) { return __builtin_convertvector(a, AMPI_U); }
#elif AMPI_W == 8
#define ampi_fma_avx2 __builtin_ia32_vfmaddps256
AMPI_HERE AMPI_U AMPI_(from_16)(AMPI_(shorts) a) {
    return (AMPI_U)__builtin_ia32_pmovzxwd256((AMPI_(signed16))a);
}
#else
AMPI_HERE AMPI_V AMPI_(fma)(AMPI_V a, AMPI_V b, AMPI_V c) {
    return __builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4); /* all lanes; the current rounding */
}
AMPI_HERE AMPI_U AMPI_(from_16)(AMPI_(shorts) a) {
    const AMPI_(ints) zero = {0};
    return (AMPI_U)__builtin_ia32_pmovzxwd512_mask((AMPI_(signed16))a, zero, 0xffff);
}
#endif
#if AMPI_W == 8
AMPI_HERE AMPI_V AMPI_(from_f16)(AMPI_(shorts) a) {
    return __builtin_ia32_vcvtph2ps256((AMPI_(signed16))a);
}
#else
#ifdef __clang__
enum { AMPI_(all) = 0xffff }; /* a mask of 16 bits, signed or not */
#else
enum { AMPI_(all) = -1 };
#endif
AMPI_HERE AMPI_V AMPI_(from_f16)(AMPI_(shorts) a) {
    const AMPI_V none = {0};
    return __builtin_ia32_vcvtph2ps512_mask((AMPI_(signed16))a, none, AMPI_(all), 4);
}
#endif
/* Before SSE code runs again, here or in the host: used upper lanes make it slow. */
AMPI_HERE void AMPI_(done)(void) { __builtin_ia32_vzeroupper(); }

#endif

#if AMPI_W == 8 /* AVX2, F16C and FMA */

AMPI_INSTRUCTION(AMPI_HERE, AMPI_V, AMPI_(even), (AMPI_V a, AMPI_V b), /* lanes of 128 bits */
                 "vperm2f128 {$0x20, %2, %1, %0|%0, %1, %2, 0x20}", "=x", "x"(a), "x"(b))
AMPI_INSTRUCTION(AMPI_HERE, AMPI_V, AMPI_(odd), (AMPI_V a, AMPI_V b),
                 "vperm2f128 {$0x31, %2, %1, %0|%0, %1, %2, 0x31}", "=x", "x"(a), "x"(b))
AMPI_INSTRUCTION(AMPI_HERE, AMPI_U, AMPI_(blend), (AMPI_U mask, AMPI_U x, AMPI_U y),
                 "vblendvps {%1, %2, %3, %0|%0, %3, %2, %1}", "=x", "x"(mask), "x"(x), "x"(y))
AMPI_HERE AMPI_U AMPI_(choose)(AMPI_U a, AMPI_U b, AMPI_U x, AMPI_U y) {
    return AMPI_(blend)(AMPI_(above)(a, b), x, y);
}
AMPI_INSTRUCTION(AMPI_HERE, AMPI_(shorts), AMPI_(lower16), (AMPI_U a), /* of words below 2^16 */
                 "vextracti128 {$1, %1, %0|%0, %1, 1}\n\tvpackusdw {%0, %x1, %0|%0, %x1, %0}",
                 "=&x", "x"(a))
AMPI_TWO(AMPI_(shorts), bytes, "vpackuswb")
AMPI_STORE(AMPI_(shorts), put_quarter, "vmovq", quarter, 1)
AMPI_HERE void AMPI_(put8)(void *p, size_t i, AMPI_U u) {
    const AMPI_(shorts) h = AMPI_(lower16)(u & 255);
    AMPI_(put_quarter)(p, i, AMPI_(bytes)(h, h));
}
AMPI_HERE AMPI_ALWAYS uint32_t AMPI_(largest16)(AMPI_U u) {
    AMPI_U t;
    __asm__("vextracti128 {$1, %1, %x0|%x0, %1, 1}\n\t"
            "vpmaxuw {%x1, %x0, %x0|%x0, %x0, %x1}\n\t"
            "vpshufd {$0x4e, %x0, %x1|%x1, %x0, 0x4e}\n\t"
            "vpmaxuw {%x1, %x0, %x0|%x0, %x0, %x1}\n\t"
            "vpshufd {$0xb1, %x0, %x1|%x1, %x0, 0xb1}\n\t"
            "vpmaxuw {%x1, %x0, %x0|%x0, %x0, %x1}"
            : "=&x"(t), "+x"(u));
    return t[0];
}
AMPI_HERE AMPI_U AMPI_(few)(size_t n) { /* the first n, if n < 8 */
    const AMPI_U zero = {0};
    return AMPI_(above)((uint32_t)n + zero, AMPI_(count)(0));
}
AMPI_INSTRUCTION(AMPI_HERE, AMPI_V, AMPI_(get_masked), (const void *p, AMPI_U mask),
                 "vmaskmovps {%1, %2, %0|%0, %2, %1}", "=x", "m"(*(const AMPI_(at) *)p),
                 "x"(mask))
AMPI_INSTRUCTION(AMPI_HERE, AMPI_U, AMPI_(nan), (AMPI_V a),
                 "vcmpunordps {%1, %1, %0|%0, %1, %1}", "=x", "x"(a))
AMPI_HERE AMPI_U AMPI_(or_nan)(AMPI_U u, AMPI_V x) { return u | AMPI_(nan)(x); }

#elif AMPI_W == 16 /* AVX-512 F, BW and VL */

#ifndef AMPI_TILES_MODEL
AMPI_INSTRUCTION(AMPI_HERE, AMPI_V, AMPI_(even), (AMPI_V a, AMPI_V b), /* lanes of 128 bits */
                 "vshuff32x4 {$0x88, %2, %1, %0|%0, %1, %2, 0x88}", "=v", "v"(a), "v"(b))
AMPI_INSTRUCTION(AMPI_HERE, AMPI_V, AMPI_(odd), (AMPI_V a, AMPI_V b),
                 "vshuff32x4 {$0xdd, %2, %1, %0|%0, %1, %2, 0xdd}", "=v", "v"(a), "v"(b))
AMPI_INSTRUCTION(AMPI_HERE, uint16_t, AMPI_(mask_above), (AMPI_U a, AMPI_U b),
                 "vpcmpgtd {%2, %1, %0|%0, %1, %2}", "=Yk", "v"(a), "v"(b))
AMPI_INSTRUCTION(AMPI_HERE, AMPI_U, AMPI_(blend), (uint16_t mask, AMPI_U x, AMPI_U y),
                 "vpblendmd {%2, %3, %0%{%1%}|%0%{%1%}, %3, %2}", "=v", "Yk"(mask), "v"(x), "v"(y))
AMPI_INSTRUCTION(AMPI_HERE, uint32_t, AMPI_(mask_zeros), (AMPI_U a),
                 "vptestnmd {%1, %1, %0|%0, %1, %1}", "=Yk", "v"(a))
AMPI_INSTRUCTION(AMPI_HERE, uint32_t, AMPI_(mask_zeros16), (AMPI_U a),
                 "vptestnmw {%1, %1, %0|%0, %1, %1}", "=Yk", "v"(a))
AMPI_INSTRUCTION(AMPI_HERE, AMPI_(shorts), AMPI_(lower16), (AMPI_U a), "vpmovdw {%1, %0|%0, %1}",
                 "=v", "v"(a))
AMPI_STORE(AMPI_U, put8, "vpmovdb", quarter, 1)
AMPI_HERE AMPI_U AMPI_(or_nan)(AMPI_U u, AMPI_V x) {
    const AMPI_U zero = {0}, table = zero + 0x22u; /* of a NaN a quiet one, of all else u */
    __asm__("vfixupimmps {$0, %2, %1, %0|%0, %1, %2, 0}" : "+v"(u) : "v"(x), "v"(table));
    return u;
}
AMPI_HERE AMPI_ALWAYS uint32_t AMPI_(largest16)(AMPI_U u) {
    ampi_words_avx2 r;
    __asm__("vextracti64x4 {$1, %1, %0|%0, %1, 1}\n\tvpmaxuw {%t1, %0, %0|%0, %0, %t1}"
            : "=&x"(r) : "x"(u)); /* clang 19 takes %t1 of the others for mask registers */
    return ampi_largest16_avx2(r);
}

/* The first n elements, if n < 16. */
AMPI_HERE uint16_t AMPI_(mask)(size_t n) { return (uint16_t)((1u << (n < 16 ? n : 16)) - 1u); }
#define AMPI_LOAD_FEW(V, name, op, T)                                                          \
    AMPI_INSTRUCTION(AMPI_HERE, V, AMPI_(name), (const void *p, size_t n),                     \
                     op " {%1, %0%{%2%}%{z%}|%0%{%2%}%{z%}, %1}", "=v",                        \
                     "m"(*(const AMPI_(T) *)p), "Yk"(AMPI_(mask)(n)))
#define AMPI_STORE_FEW(V, name, op, T)                                                         \
    AMPI_HERE void AMPI_(name)(void *p, size_t n, V x) {                                       \
        __asm__(op " {%1, %0%{%2%}|%0%{%2%}, %1}" : "+m"(*(AMPI_(T) *)p)                       \
                : "v"(x), "Yk"(AMPI_(mask)(n)));                                               \
    }
AMPI_LOAD_FEW(AMPI_V, few_f32, "vmovups", at)
AMPI_LOAD_FEW(AMPI_(shorts), few_shorts, "vmovdqu16", at16)
AMPI_STORE_FEW(AMPI_V, put_few_f32, "vmovups", at)
AMPI_STORE_FEW(AMPI_(shorts), put_few_16, "vmovdqu16", at16)
#endif
AMPI_HERE AMPI_U AMPI_(choose)(AMPI_U a, AMPI_U b, AMPI_U x, AMPI_U y) {
    return AMPI_(blend)(AMPI_(mask_above)(a, b), x, y);
}
AMPI_HERE uint64_t AMPI_(zeros)(uint64_t n, AMPI_U a) {
    return n + (uint64_t)__builtin_popcount(AMPI_(mask_zeros)(a));
}
AMPI_HERE uint64_t AMPI_(zeros16)(uint64_t n, AMPI_U a) {
    return n + (uint64_t)__builtin_popcount(AMPI_(mask_zeros16)(a));
}

#elif AMPI_W == 4 && !defined(AMPI_TILES_MODEL) /* NEON of AArch64 */

AMPI_INSTRUCTION(AMPI_HERE, AMPI_V, AMPI_(sqrt), (AMPI_V a), "fsqrt %0.4s, %1.4s", "=w", "w"(a))
AMPI_HERE void   AMPI_(done)(void) {}
AMPI_HERE AMPI_U AMPI_(choose)(AMPI_U a, AMPI_U b, AMPI_U x, AMPI_U y) {
    return vbslq_u32(vcgtq_u32(a, b), x, y);
}
#define AMPI_TWO(V, name, f, T)                                                                \
    AMPI_HERE V AMPI_(name)(V a, V b) { return (V)f((T)a, (T)b); }
AMPI_TWO(AMPI_U, least, vminq_u32, uint32x4_t)
AMPI_TWO(AMPI_U, most, vmaxq_u32, uint32x4_t)
AMPI_TWO(AMPI_U, most16, vmaxq_u16, uint16x8_t)
AMPI_TWO(AMPI_V, low16, vzip1q_u16, uint16x8_t)
AMPI_TWO(AMPI_V, high16, vzip2q_u16, uint16x8_t)
AMPI_TWO(AMPI_V, low, vzip1q_f32, float32x4_t)
AMPI_TWO(AMPI_V, high, vzip2q_f32, float32x4_t)
AMPI_TWO(AMPI_V, low2, vzip1q_f64, float64x2_t)
AMPI_TWO(AMPI_V, high2, vzip2q_f64, float64x2_t)
AMPI_HERE AMPI_U AMPI_(from_16)(AMPI_(shorts) h) { return vmovl_u16(h); }
AMPI_HERE AMPI_V AMPI_(from_f16)(AMPI_(shorts) h) { return vcvt_f32_f16((float16x4_t)h); }
AMPI_HERE AMPI_U AMPI_(get8)(const void *base, size_t i) {
    const uint64_t four = ampi_load_u32((const uint8_t *)base + i, 0);
    return vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
}
AMPI_HERE AMPI_(shorts) AMPI_(f16)(AMPI_V x) { return (AMPI_(shorts))vcvt_f16_f32(x); }
AMPI_HERE AMPI_(shorts) AMPI_(lower16)(AMPI_U u) { return vmovn_u32(u); }
AMPI_HERE void AMPI_(put8)(void *base, size_t i, AMPI_U u) {
    const uint16x4_t h = vmovn_u32(u);
    const uint8x8_t  b = vmovn_u16(vcombine_u16(h, h));
    ampi_store_u32((uint8_t *)base + i, 0, vget_lane_u32(vreinterpret_u32_u8(b), 0));
}
AMPI_HERE uint32_t AMPI_(largest16)(AMPI_U u) {
    const uint16x8_t h = vreinterpretq_u16_u32(u);
    return (uint32_t)vmaxvq_u16(vuzp2q_u16(h, h)) << 16 | vmaxvq_u16(vuzp1q_u16(h, h));
}
#define ampi_around_neon   ampi_put_neon
#define ampi_around16_neon ampi_put_shorts_neon
AMPI_HERE AMPI_V AMPI_(fma)(AMPI_V a, AMPI_V b, AMPI_V c) { return vfmaq_f32(c, a, b); }
#endif
#undef AMPI_TWO
#undef AMPI_STORE

/* All tiers have these. */
AMPI_IN AMPI_U AMPI_(size)(AMPI_U u) { return u & 0x7fffffffu; }

AMPI_HERE AMPI_V AMPI_(add)(AMPI_V a, AMPI_V b) { AMPI_RETURN(AMPI_V, a + b); }
AMPI_HERE AMPI_V AMPI_(sub)(AMPI_V a, AMPI_V b) { AMPI_RETURN(AMPI_V, a - b); }
AMPI_HERE AMPI_V AMPI_(mul)(AMPI_V a, AMPI_V b) { AMPI_RETURN(AMPI_V, a * b); }
AMPI_HERE AMPI_V AMPI_(div)(AMPI_V a, AMPI_V b) { AMPI_RETURN(AMPI_V, a / b); }

AMPI_HERE AMPI_V AMPI_(splat)(float x) {
    const AMPI_V zero = {0};
    return x - zero; /* any x stays as it is */
}
AMPI_HERE AMPI_U AMPI_(u32)(uint32_t x) {
    const AMPI_U zero = {0};
    return x + zero;
}
AMPI_HERE AMPI_U AMPI_(bits)(AMPI_V x) {
    AMPI_PIN(x);
    return (AMPI_U)x;
}
AMPI_HERE AMPI_V AMPI_(from_bits)(AMPI_U u) { return (AMPI_V)u; }
#if AMPI_W == 4
AMPI_HERE AMPI_U AMPI_(or_nan)(AMPI_U u, AMPI_V x) {
    return u | AMPI_(above)(AMPI_(size)(AMPI_(bits)(x)), AMPI_(u32)(AMPI_F32_INF));
}
#endif

AMPI_HERE AMPI_V AMPI_(get)(const void *base, size_t i) {
    return *(const AMPI_(at) *)((const char *)base + 4 * i);
}
AMPI_HERE void AMPI_(put)(void *base, size_t i, AMPI_V x) {
    *(AMPI_(at) *)((char *)base + 4 * i) = x;
}
AMPI_HERE void AMPI_(put_words)(void *base, AMPI_U u) { *(AMPI_(at) *)base = (AMPI_V)u; }

/* To bf16, in the upper 16 bits; the lower ones mean nothing. */
AMPI_IN AMPI_U AMPI_(nearest)(AMPI_U u) { return u + ((u >> 16 & 1u) + 0x7fffu); } /* no NaN */
AMPI_HERE AMPI_U AMPI_(bf16)(AMPI_U u) {
    const AMPI_U inf = AMPI_(u32)(AMPI_F32_INF);
    return AMPI_(choose)(AMPI_(size)(u), inf, u | 0x400000u, AMPI_(nearest)(u));
}

/* To a 16-bit type. */
AMPI_HERE AMPI_(shorts) AMPI_(narrowed)(AMPI_V x, amp_dtype type) {
    if (type == AMP_F16) return AMPI_(f16)(x);
    return AMPI_(lower16)(AMPI_(bf16)(AMPI_(bits)(x)) >> 16);
}
AMPI_HERE AMPI_(shorts) AMPI_(get_shorts)(const void *base, size_t i) {
    return *(const AMPI_(at16) *)((const char *)base + 2 * i);
}
AMPI_HERE void AMPI_(put_shorts)(void *base, size_t i, AMPI_(shorts) h) {
    *(AMPI_(at16) *)((char *)base + 2 * i) = h;
}
AMPI_HERE void AMPI_(put16)(void *base, size_t i, AMPI_U u) {
    AMPI_(put_shorts)(base, i, AMPI_(lower16)(AMPI_W == 8 ? u & 0xffffu : u));
}
AMPI_HERE AMPI_U AMPI_(get16)(const void *base, size_t i) {
    return AMPI_(from_16)(AMPI_(get_shorts)(base, i));
}
AMPI_HERE AMPI_V AMPI_(get_as)(const void *base, amp_dtype type, size_t i) {
    if (type == AMP_F32) return AMPI_(get)(base, i);
    if (type == AMP_F16) return AMPI_(from_f16)(AMPI_(get_shorts)(base, i));
    return AMPI_(from_bits)(AMPI_(get16)(base, i) << 16);
}
AMPI_HERE void AMPI_(put_as)(void *base, amp_dtype type, size_t i, AMPI_V x) {
    if (type == AMP_F32) AMPI_(put)(base, i, x);
    else AMPI_(put_shorts)(base, i, AMPI_(narrowed)(x, type));
}

AMPI_HERE AMPI_V AMPI_(unscaled)(const void *grad, amp_dtype type, size_t i, AMPI_V factor) {
    const AMPI_V g = AMPI_(get_as)(grad, type, i);
    const AMPI_U u = AMPI_(bits)(g), product = (AMPI_U)AMPI_(mul)(g, factor);
    const AMPI_U most = AMPI_(u32)(AMPI_F32_INF - 1); /* inf and NaN stay */
    return AMPI_(from_bits)(AMPI_(choose)(AMPI_(size)(u), most, u, product));
}

#endif /* >>impl vectors */

/* -------------------------------------------------------------- >>impl processors
   What this processor has; each tier, for which the file includes itself; the table of tiers. */

#if defined(AMPI_PASS) && AMPI_PASS & AMPI_PASS_PLAIN /* >>impl goes on */
#undef AMPI_PASS

static const ampi_loops ampi_loops_c = {
    ampi_cast_from, ampi_check, ampi_fold, ampi_unscale_from, ampi_accumulate_from, ampi_step_from};

#ifdef AMPI_X86

/* Registers A to D after cpuid. Leaf AMPI_XGETBV is xgetbv: A is what the system saves. */
typedef void (*ampi_cpuid_fn)(uint32_t leaf, uint32_t sub, uint32_t *r);
#define AMPI_XGETBV 0xffffffffu
static void ampi_cpuid(uint32_t leaf, uint32_t sub, uint32_t *r) {
    if (leaf == AMPI_XGETBV)
        __asm__ __volatile__("xgetbv" : "=a"(r[0]), "=d"(r[3]) : "c"(0));
    else
        __asm__ __volatile__("cpuid"
                             : "=a"(r[0]), "=b"(r[1]), "=c"(r[2]), "=d"(r[3])
                             : "0"(leaf), "2"(sub));
}

/* What the processor has and the operating system saves: 1 AVX2 (with F16C and FMA), 2 AVX-512 F,
   BW and VL with it, 4 AVX512_BF16, 8 AMX-BF16; 16: AMD made it. */
static uint32_t ampi_features_of(ampi_cpuid_fn cpuid) {
    uint32_t r[4], low, amx, features = 0;
    cpuid(0, 0, r);
    if (r[0] < 7) return 0;
    if (r[2] == 0x444d4163u) features = 16u; /* "cAMD" */
    cpuid(1, 0, r);
    if ((r[2] >> 27 & 7u) != 7u || !(r[2] >> 12 & 1u)) return 0; /* OSXSAVE, AVX, F16C; FMA */
    cpuid(AMPI_XGETBV, 0, r);
    low = r[0];
    if ((low & 0x06u) != 0x06u) return 0;
    cpuid(7, 0, r);
    if (r[1] >> 5 & 1u) features |= 1u;
    if ((low & 0xe6u) == 0xe6u && (r[1] >> 16 & 1u) && (r[1] >> 30 & 3u) == 3u && (features & 1u))
        features |= 2u;
    if (!(features & 2u) || !(r[1] >> 17 & 1u) || r[0] == 0)
        return features; /* also without DQ, or a second page of leaf 7 */
    amx = (low & 0x60000u) == 0x60000u && (r[3] >> 22 & 5u) == 5u; /* BF16, TILE */
    cpuid(7, 1, r);
    return r[0] >> 5 & 1u ? features | 4u | amx << 3 : features; /* AVX512_BF16 */
}
static uint32_t ampi_cpu_features(void) { return ampi_features_of(ampi_cpuid); }

/* Eight floats. */
#define AMPI_TIER   _avx2
#define AMPI_TARGET target("avx2,fma,f16c")
#define AMPI_W      8
#define AMPI_ROW_STEP 2
#define AMPI_PASS   AMPI_PASS_VECTORS
#include AMP_FILE
#define AMPI_PASS   AMPI_PASS_LOOPS
#include AMP_FILE
#ifdef AMPI_PASS
#error "amp.h reads itself: define AMP_FILE as the name it has here, or AMP_NO_VECTORS"
#endif

#elif defined(AMPI_NEON)
#ifdef __APPLE__
int sysctlbyname(const char *name, void *value, size_t *size, void *changed, size_t changed_size);
#endif
/* 32 NEON, which is always there; 64 BFMMLA. */
static uint32_t ampi_cpu_features(void) {
    int bf16 = 0;
#if defined(__APPLE__)
    size_t size = sizeof bf16;
    if (sysctlbyname("hw.optional.arm.FEAT_BF16", &bf16, &size, NULL, 0) != 0) bf16 = 0;
#elif defined(__linux__) && defined(__AARCH64EL__)
    bf16 = (getauxval(26) >> 14 & 1) != 0; /* HWCAP2_BF16 of AT_HWCAP2 */
#endif
    return bf16 ? 96u : 32u;
}
#else
static uint32_t ampi_cpu_features(void) { return 0; }
#endif /* AMPI_X86 */

#ifdef AMPI_512

/* Sixteen floats. */
#define AMPI_TIER   _avx512
#ifdef AMPI_TILES_MODEL
#define AMPI_BY512  unused
#else
#define AMPI_BY512  target("avx512f,avx512bw,avx512vl,fma,f16c,popcnt")
#endif
#define AMPI_TARGET AMPI_BY512
#define AMPI_W      16
#define AMPI_ROW_STEP 4
#define AMPI_PASS   AMPI_PASS_VECTORS
#include AMP_FILE
#define AMPI_PASS   AMPI_PASS_LOOPS
#include AMP_FILE

#ifdef AMPI_PAIRS

/* AVX512_BF16: products of bf16, 12 x 32, by the kernel of AVX-512 on words that are pairs. */

#define AMPI_AVX512 static inline __attribute__((unused, AMPI_BY512))
typedef ampi_floats_avx512 ampi_x16;
typedef ampi_words_avx512  ampi_u16;

#ifndef AMPI_TILES_MODEL
/* Many times as fast as integers; but subnormals are flushed. */
AMPI_INSTRUCTION(AMPI_AVX512, ampi_u16, ampi_round_pairs, (ampi_x16 x, ampi_x16 y),
                 "vcvtne2ps2bf16 {%1, %2, %0|%0, %2, %1}", "=v", "v"(x), "v"(y))
AMPI_INSTRUCTION(AMPI_AVX512, ampi_u16, ampi_join_pairs,
                 (ampi_shorts_avx512 x, ampi_shorts_avx512 y),
                 "vinserti64x4 {$1, %2, %g1, %0|%0, %g1, %2, 1}", "=v", "x"(x), "v"(y))
AMPI_INSTRUCTION(AMPI_AVX512, ampi_u16, ampi_permute_pairs, (ampi_u16 order, ampi_u16 x),
                 "vpermw {%2, %1, %0|%0, %1, %2}", "=v", "v"(order), "v"(x))
AMPI_INSTRUCTION(AMPI_AVX512, ampi_u16, ampi_uppers_pairs, (ampi_u16 order, ampi_u16 x),
                 "vpermw {%2, %1, %0%{%3%}%{z%}|%0%{%3%}%{z%}, %1, %2}", "=v", "v"(order), "v"(x),
                 "Yk"(0xaaaaaaaau))
AMPI_AVX512 AMPI_ALWAYS int ampi_any_subnormal(ampi_x16 x, ampi_x16 y) {
    int any;
    __asm__("vfpclassps {$0x20, %1, %%k1|k1, %1, 0x20}\n\t"
            "vfpclassps {$0x20, %2, %%k2|k2, %2, 0x20}\n\t"
            "kortestw {%%k2, %%k1|k1, k2}"
            : "=@ccnz"(any) : "v"(x), "v"(y) : "k1", "k2");
    return any;
}
AMPI_INSTRUCTION(AMPI_AVX512, ampi_shorts_avx512, ampi_nearest_pairs, (ampi_x16 x),
                 "vcvtneps2bf16 {%1, %0|%0, %1}", "=v", "v"(x))
/* 16 bytes each of four lines. */
AMPI_AVX512 ampi_x16 ampi_lanes_pairs(const char *x, size_t step) {
    typedef struct { char x[16]; } lane;
    ampi_x16 v;
    __asm__("vbroadcastf32x4 {%1, %0|%0, %1}\n\tvinsertf32x4 {$1, %2, %0, %0|%0, %0, %2, 1}\n\t"
            "vinsertf32x4 {$2, %3, %0, %0|%0, %0, %3, 2}\n\t"
            "vinsertf32x4 {$3, %4, %0, %0|%0, %0, %4, 3}"
            : "=&v"(v)
            : "m"(*(const lane *)(const void *)x), "m"(*(const lane *)(const void *)(x + step)),
              "m"(*(const lane *)(const void *)(x + 2 * step)),
              "m"(*(const lane *)(const void *)(x + 3 * step)));
    return v;
}
AMPI_AVX512 void ampi_put_pairs_masked(void *p, uint32_t mask, ampi_u16 x) {
    __asm__("vmovdqu16 {%1, %0%{%2%}|%0%{%2%}, %1}"
            : "+m"(*(ampi_at_avx512 *)p) : "v"(x), "Yk"(mask));
}
AMPI_AVX512 ampi_x16 ampi_fma_pairs(ampi_x16 a, ampi_x16 b, ampi_x16 c) { /* odd k, then even */
    __asm__("vdpbf16ps {%2, %1, %0|%0, %1, %2}" : "+v"(c) : "v"(a), "v"(b));
    return c;
}
#endif

/* Cuts the leading bf16 off x: its bits, in the upper 16. The rest is exact; 0 of inf and NaN. If
   x would round to inf, the largest bf16 is cut off. The instruction takes subnormals for 0, as
   the products do. */
AMPI_AVX512 AMPI_ALWAYS ampi_u16 ampi_cut_avx512(ampi_x16 *x) {
    const ampi_u16 most = ampi_u32_avx512(AMPI_F32_INF - 1), inf = ampi_u32_avx512(AMPI_F32_INF);
    const ampi_u16 fine = ampi_above_avx512(inf, ampi_size_avx512(ampi_bits_avx512(*x)));
    ampi_u16       high = ampi_from_16_avx512(ampi_nearest_pairs(*x)) << 16;
    const ampi_u16 over = ampi_above_avx512(ampi_size_avx512(high), most) & fine;
    ampi_x16       rest;
    high = high - (over & 0x10000u);
    rest = ampi_sub_avx512(*x, ampi_from_bits_avx512(high));
    *x   = ampi_from_bits_avx512(ampi_bits_avx512(rest) & fine);
    return high;
}

/* Makes normal what the instruction would flush though it rounds to a normal bf16. */
AMPI_AVX512 ampi_x16 ampi_normal_pairs(ampi_x16 x) {
    const ampi_u16 u = ampi_bits_avx512(x), edge = (ampi_u16)((u & 0x7fff8000u) == 0x7f8000u);
    return ampi_from_bits_avx512(u + (edge & 0x8000u));
}
AMPI_AVX512 AMPI_ALWAYS ampi_u16 ampi_nearest_of_pairs(ampi_x16 x, ampi_x16 y) {
    if (ampi_any_subnormal(x, y)) {
        x = ampi_normal_pairs(x);
        y = ampi_normal_pairs(y);
    }
    return ampi_round_pairs(x, y);
}

/* Cuts the leading bf16 off 32 numbers; x and y keep the rest. */
AMPI_AVX512 AMPI_ALWAYS ampi_u16 ampi_cut_pairs(ampi_x16 *x, ampi_x16 *y) {
    const ampi_u16 order = ampi_count_avx512(0) << 16, all = ampi_u32_avx512(0x7f807f80u);
    const ampi_u16 h     = ampi_round_pairs(*x, *y);
    if (ampi_mask_zeros16_avx512(~h & all)) {
        const ampi_shorts_avx512 low = ampi_lower16_avx512(ampi_cut_avx512(x) >> 16);
        return ampi_join_pairs(low, ampi_lower16_avx512(ampi_cut_avx512(y) >> 16));
    }
    *x = ampi_sub_avx512(*x, ampi_from_bits_avx512(ampi_uppers_pairs(order, h)));
    *y = ampi_sub_avx512(*y, ampi_from_bits_avx512(ampi_uppers_pairs(order + 0x100000u, h)));
    return h;
}

/* 32 bf16, of n and m elements (up to 16 each) at p and q. A load of no elements gets an address
   inside of x: if a page is missing there, the processor takes hundreds of cycles to find that it
   needs nothing of it. */
AMPI_AVX512 AMPI_ALWAYS ampi_u16 ampi_few_pairs(const void *p, size_t n, const void *q, size_t m,
                                                const amp_dtype type) {
    if (type == AMP_F32)
        return ampi_nearest_of_pairs(ampi_few_f32_avx512(p, n), ampi_few_f32_avx512(q, m));
    return ampi_join_pairs(ampi_few_shorts_avx512(p, n), ampi_few_shorts_avx512(q, m));
}

/* Lines of 32 bf16: n elements of each line of memory, then 0, as are missing lines up to all. */
AMPI_AVX512 AMPI_ALWAYS void ampi_lines_as(uint32_t *dst, const ampi_operand *x,
                                           const amp_dtype type, const int terms, size_t step,
                                           size_t lines, size_t all, size_t n) {
    const size_t first = ampi_min(n, 16), second = n - first, next = second ? 16 : 0;
    size_t       i;
    for (i = 0; i < lines; i++, dst += 16) {
        const void *p = ampi_at(x->x, type, i * step), *q = ampi_at(p, type, next);
        if (terms == 2) {
            ampi_x16 e = ampi_value_avx512(x, i * step, first);
            ampi_x16 o = ampi_value_avx512(x, i * step + next, second);
            ampi_put_words_avx512(dst, ampi_cut_pairs(&e, &o));
            ampi_put_words_avx512(dst + 16 * all, ampi_round_pairs(e, o));
        } else {
            ampi_put_words_avx512(dst, ampi_few_pairs(p, first, q, second, type));
        }
    }
    memset(dst, 0, (all - lines) * 64);
    if (terms == 2) memset(dst + 16 * all, 0, (all - lines) * 64);
}

/* Transposes words of four vectors, 4 x 4 in each lane. */
AMPI_AVX512 AMPI_ALWAYS void ampi_transpose_pairs(ampi_x16 *v) {
    const ampi_x16 a = ampi_low_avx512(v[0], v[1]), b = ampi_low_avx512(v[2], v[3]);
    const ampi_x16 c = ampi_high_avx512(v[0], v[1]), d = ampi_high_avx512(v[2], v[3]);
    v[0] = ampi_low2_avx512(a, b);
    v[1] = ampi_high2_avx512(a, b);
    v[2] = ampi_low2_avx512(c, d);
    v[3] = ampi_high2_avx512(c, d);
}

/* A piece from lines of bf16: rows of 32 k, or 32 k of all rows. */
AMPI_AVX512 void ampi_pack_lines(uint32_t *dst, size_t width, int of_b, const char *x, size_t step,
                                 int along) {
    const ampi_u16 count = ampi_count_avx512(0), zip = count + (count << 16) + 0x100000u;
    ampi_x16       v[8], y;
    size_t         i, r;
    if (along && !of_b) {
        for (i = 0; i < width; i++) ampi_put_avx512(dst, i * 16, ampi_get_avx512(x + i * step, 0));
    } else if (of_b && !along) {
        for (i = 0; i < 16; i++, x += 2 * step)
            for (r = 0; r < width; r += 16)
                ampi_put_words_avx512(
                    dst + i * width + r,
                    ampi_permute_pairs(zip, ampi_join_pairs(ampi_get_shorts_avx512(x, r),
                                                            ampi_get_shorts_avx512(x + step, r))));
    } else if (along) {
        for (r = 0; r < width; r += 16)
            for (i = 0; i < 16; i += 4) {
                const char *at = x + r * step + 4 * i;
                size_t      q;
                AMPI_UNROLL for (q = 0; q < 4; q++)
                    v[q] = ampi_lanes_pairs(at + q * step, 4 * step);
                ampi_transpose_pairs(v);
                AMPI_UNROLL for (q = 0; q < 4; q++) ampi_put_avx512(dst, (i + q) * width + r, v[q]);
            }
    } else {
        for (r = 0; r < width; r += 8) {
            const char *at = x + 2 * r;
            AMPI_UNROLL for (i = 0; i < 4; i++) {
                v[i]     = ampi_lanes_pairs(at + 2 * i * step, 8 * step);
                y        = ampi_lanes_pairs(at + (2 * i + 1) * step, 8 * step);
                v[i + 4] = ampi_high16_avx512(v[i], y);
                v[i]     = ampi_low16_avx512(v[i], y);
            }
            ampi_transpose_pairs(v);
            ampi_transpose_pairs(v + 4);
            AMPI_UNROLL for (i = 0; i < 8; i++)
                if (r + i < width) ampi_put_avx512(dst, (r + i) * 16, v[i]);
        }
    }
}

static AMPI_NOINLINE __attribute__((AMPI_BY512)) void
ampi_pack_pairs_avx512(uint32_t *dst, size_t width, int of_b, const ampi_operand *x, int terms,
                       size_t rows, size_t ks) {
    uint32_t     some[2 * 32 * 16];
    const int    along = x->cs == 1;
    const size_t step = along ? x->rs : x->cs, all = along ? width : 32;
    const size_t lines = ampi_min(along ? rows : ks, all), n = ampi_min(along ? ks : rows, 32);
    uint32_t    *p = along && !of_b ? dst : some;
    if (terms == 1 && x->type == AMP_BF16 && lines == all && n == 32) {
        ampi_pack_lines(dst, width, of_b, (const char *)x->x, 2 * step, along);
    } else {
        if (terms == 2) ampi_lines_as(p, x, x->type, 2, step, lines, all, n);
        else if (x->type == AMP_F32) ampi_lines_as(p, x, AMP_F32, 1, step, lines, all, n);
        else ampi_lines_as(p, x, AMP_BF16, 1, step, lines, all, n);
        for (; p != dst && terms--; p += all * 16, dst += width * 16)
            ampi_pack_lines(dst, width, of_b, (const char *)p, 64, along);
    }
    ampi_done_avx512();
}

/* In pairs: a dot product, which waits for its sum; and, of rows of bf16 along k, 16 rows and 32 k
   at a time. The rest, with the same bits, by AVX-512's FMA. */
AMPI_AVX512 void ampi_gemv_pairs(float *sum, const ampi_operand *x, size_t rows, size_t ks,
                                 const float *v, size_t odd) {
    const int          dot = x->cs == 1 && rows == 1, along = x->rs != 1 && !dot;
    const size_t       deep   = along ? ks / 32 * 32 : 0;
    const ampi_operand behind = ampi_operand_at(*x, 0, deep);
    uint32_t y[AMPI_GEMV / 2], a[16];
    ampi_x16 w[16], s;
    size_t   r, k, i;
    for (k = 0; k < ks && (dot || along); k += 32) {
        const size_t n = ampi_min(ks - k, 16), m = ampi_min(ks - k - n, 16);
        ampi_put_words_avx512(y + k / 2, ampi_few_pairs(v + k, n, v + k + n, m, AMP_F32));
    }
    for (r = 0; r < rows && deep; r += 16) {
        s = ampi_get_avx512(sum, r);
        for (k = 0; k < deep; k += 32) {
            AMPI_UNROLL for (i = 0; i < 16; i++) { /* beyond the last row, that one again */
                const void *p = ampi_at(x->x, x->type, ampi_min(r + i, rows - 1) * x->rs + k);
                if (x->type == AMP_BF16) w[i] = ampi_get_avx512(p, 0);
                else w[i] = (ampi_x16)ampi_few_pairs(p, 16, ampi_at(p, AMP_F32, 16), 16, AMP_F32);
            }
            ampi_transpose_avx512(w);
            AMPI_UNROLL for (i = 0; i < 16; i++)
                s = ampi_fma_pairs(w[i], ampi_splat_avx512(ampi_load_f32(y, k / 2 + i)), s);
        }
        ampi_put_avx512(sum, r, s);
    }
    s = ampi_get_avx512(sum, 0);
    for (k = 0; k < ks && dot; k += 32) {
        const size_t n = ampi_min(ks - k, 16), m = ampi_min(ks - k - n, 16);
        const void  *p = ampi_at(x->x, x->type, k);
        ampi_put_words_avx512(a, ampi_few_pairs(p, n, ampi_at(p, x->type, m ? n : 0), m, x->type));
        for (i = 0; i < 16 && 2 * i < ks - k; i++)
            s = ampi_fma_pairs(ampi_splat_avx512(ampi_load_f32(a, i)),
                               ampi_splat_avx512(ampi_load_f32(y, k / 2 + i)), s);
    }
    if (dot) ampi_put_avx512(sum, 0, s);
    ampi_done_avx512();
    if (dot) return;
    ampi_fp_flush(1);
    ampi_gemv_avx512(sum, &behind, rows, ks - deep, v + deep, odd);
    ampi_fp_flush(0);
}

/* Writes sums as bf16, with ampi_write's bits: no sum is subnormal here. */
AMPI_AVX512 void ampi_write_pairs_avx512(const ampi_task *w, const float *sum, size_t ld,
                                         size_t i, size_t j, size_t rows, size_t cols) {
    const uint32_t mask = 0xffffffffu >> (32 - cols);
    size_t         r;
    if (w->g->c_type != AMP_BF16 || !w->plain) {
        ampi_write_avx512(w, sum, ld, i, j, rows, cols);
        return;
    }
    for (r = 0; r < rows; r++) {
        const ampi_x16 low = ampi_get_avx512(sum, r * ld), high = ampi_get_avx512(sum, r * ld + 16);
        void          *c   = ampi_to(w->c, AMP_BF16, (i + r) * w->g->ldc + j);
        ampi_put_pairs_masked(c, mask, ampi_round_pairs(low, high));
    }
    ampi_done_avx512();
}

/* Casts to bf16 by the instruction, unless there are subnormals. */
AMPI_AVX512 void ampi_cast_pairs(void *dst, amp_dtype to, const void *src, amp_dtype from, size_t i,
                                 size_t end, uint32_t *over) {
    if (to == AMP_BF16 && from == AMP_F32 && end - i < AMPI_STREAM) { /* else around the cache */
        const size_t head = i + ampi_head(ampi_at(dst, AMP_BF16, i), 2, end - i);
        ampi_cast_from(dst, to, src, from, i, head, NULL);
        for (i = head; end - i >= 32; i += 32) {
            const ampi_x16 x = ampi_get_avx512(src, i), y = ampi_get_avx512(src, i + 16);
            if (ampi_any_subnormal(x, y)) {
                ampi_put_as_avx512(dst, AMP_BF16, i, x);
                ampi_put_as_avx512(dst, AMP_BF16, i + 16, y);
            } else {
                ampi_put_words_avx512(ampi_to(dst, AMP_BF16, i), ampi_round_pairs(x, y));
            }
        }
        ampi_done_avx512();
    }
    ampi_cast_from_avx512(dst, to, src, from, i, end, over);
}

AMPI_AVX512 ampi_x16 ampi_splat_pairs(float x) { return ampi_splat_avx512(x); }
AMPI_AVX512 ampi_x16 ampi_get_pairs(const void *base, size_t i) { return ampi_get_avx512(base, i); }
AMPI_AVX512 ampi_x16 ampi_get_first_pairs(const void *base, amp_dtype type, size_t n) {
    return ampi_get_first_avx512(base, type, n);
}
AMPI_AVX512 void ampi_put_first_pairs(void *p, amp_dtype type, size_t n, ampi_x16 x) {
    ampi_put_first_avx512(p, type, n, x);
}
AMPI_AVX512 void     ampi_put_pairs(void *p, size_t i, ampi_x16 x) { ampi_put_avx512(p, i, x); }
AMPI_AVX512 void     ampi_done_pairs(void) { ampi_done_avx512(); }
#define AMPI_TIER _pairs
#define AMPI_HERE AMPI_AVX512
#define AMPI_V    ampi_x16
#define AMPI_W    16
#define AMPI_ROW_STEP 4
#define AMPI_PASS AMPI_PASS_KERNELS
#include AMP_FILE

static const ampi_engine ampi_engine_pairs_avx512 = {
    AMPI_BLOCKS(4, 16, 1, 0),
    AMPI_FUNCTIONS(_avx512, ampi_pack_pairs_avx512, ampi_kernel_pairs, ampi_write_pairs_avx512,
                   ampi_gemv_pairs)};

static const ampi_loops ampi_loops_pairs = {
    ampi_cast_pairs, ampi_check_avx512, ampi_fold_avx512, ampi_unscale_from_avx512,
    ampi_accumulate_from_avx512, ampi_step_from_avx512};

#endif /* AMPI_PAIRS */

#endif /* AMPI_512 */

#ifdef AMPI_NEON

/* Four floats, always there. */
#define AMPI_TIER   _neon
#define AMPI_TARGET unused
#define AMPI_W      4
#define AMPI_ROW_STEP 4
#define AMPI_PASS   AMPI_PASS_VECTORS
#include AMP_FILE
#define AMPI_PASS   AMPI_PASS_LOOPS
#include AMP_FILE
#ifdef AMPI_PASS
#error "amp.h reads itself: define AMP_FILE as the name it has here, or AMP_NO_VECTORS"
#endif

/* BFMMLA: products of bf16, 12 x 8. It adds 2 x 4 numbers times the transpose of 2 x 4 to 2 x 2
   sums. A piece is [four k][row][two words], of A as of B. */

#define AMPI_TIER _mmla
#define AMPI_HERE static inline __attribute__((unused))
#define AMPI_V    ampi_floats_neon
#define AMPI_W    4
#define AMPI_ROW_STEP 4
#define AMPI_SUMS

#ifndef AMPI_TILES_MODEL
/* Instructions as numbers, which every assembler knows; registers' names become numbers. */
#ifdef __APPLE__
#define AMPI_REGISTER "Lampi_"
#else
#define AMPI_REGISTER ".Lampi_"
#endif
#define AMPI_REGISTERS                                                                         \
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,"  \
    "30,31\n\t.set " AMPI_REGISTER "v\\n, \\n\n\t.endr\n\t"
AMPI_INSTRUCTION(AMPI_HERE, ampi_shorts_neon, ampi_nearest_mmla, (AMPI_V x), /* BFCVTN */
                 AMPI_REGISTERS ".inst 0x0ea16800 + " AMPI_REGISTER "%0 + (" AMPI_REGISTER
                 "%1 << 5)", "=w", "w"(x))
AMPI_HERE AMPI_V ampi_add_mmla(AMPI_V s, AMPI_V a, AMPI_V b) {
    __asm__(AMPI_REGISTERS ".inst 0x6e40ec00 + " AMPI_REGISTER "%0 + (" AMPI_REGISTER
            "%1 << 5) + (" AMPI_REGISTER "%2 << 16)" : "+w"(s) : "w"(a), "w"(b));
    return s;
}
AMPI_HERE AMPI_V ampi_join_mmla(ampi_shorts_neon a, ampi_shorts_neon b) {
    return (AMPI_V)vcombine_u16(a, b);
}
#endif

/* Four numbers that lie side by side; n are there. */
AMPI_IN ampi_shorts_neon ampi_four_mmla(const void *x, const amp_dtype type, size_t n) {
    if (type == AMP_BF16 && n >= 4) return ampi_get_shorts_neon(x, 0);
    return ampi_nearest_mmla(ampi_get_first_neon(x, type, n));
}
AMPI_IN void ampi_pack_as_mmla(uint32_t *dst, size_t width, const ampi_operand *x,
                               const amp_dtype type, const int along, const int whole, size_t rows,
                               size_t ks) {
    const size_t step = along ? x->rs : x->cs, lines = along ? rows : ks, n = along ? ks : rows;
    size_t       k, r, i;
    for (k = 0; k < 2 * AMPI_DEEP; k += 4)
        for (r = 0; r < width; r += 4, dst += 8) {
            const size_t     line = along ? r : k, at = along ? k : r;
            ampi_shorts_neon v[4];
            AMPI_V           y[2], low;
            AMPI_UNROLL for (i = 0; i < 4; i++) {
                const int there = whole || (line + i < lines && at < n);
                v[i] = ampi_four_mmla(ampi_at(x->x, type, there ? (line + i) * step + at : 0),
                                      type, whole ? 4 : there ? n - at : 0);
            }
            y[0] = ampi_join_mmla(v[0], v[along ? 1 : 2]);
            y[1] = ampi_join_mmla(v[along ? 2 : 1], v[3]);
            if (!along) {
                low  = ampi_low16_neon(y[0], y[1]);
                y[1] = ampi_high16_neon(y[0], y[1]);
                y[0] = ampi_low_neon(low, y[1]);
                y[1] = ampi_high_neon(low, y[1]);
            }
            ampi_put_neon(dst, 0, y[0]);
            ampi_put_neon(dst, 4, y[1]);
        }
}
static void ampi_pack_mmla(uint32_t *dst, size_t width, int of_b, const ampi_operand *x, int terms,
                           size_t rows, size_t ks) {
    const int bf16 = x->type == AMP_BF16, along = x->cs == 1;
    const int whole = rows >= width && ks >= 2 * AMPI_DEEP;
    (void)of_b, (void)terms;
    if (!whole) ampi_pack_as_mmla(dst, width, x, x->type, along, 0, rows, ks);
    else if (bf16 && along) ampi_pack_as_mmla(dst, width, x, AMP_BF16, 1, 1, rows, ks);
    else if (bf16) ampi_pack_as_mmla(dst, width, x, AMP_BF16, 0, 1, rows, ks);
    else if (along) ampi_pack_as_mmla(dst, width, x, AMP_F32, 1, 1, rows, ks);
    else ampi_pack_as_mmla(dst, width, x, AMP_F32, 0, 1, rows, ks);
}

/* Two rows of four columns from two times 2 x 2, or back. */
AMPI_IN void ampi_transpose_mmla(AMPI_V (*s)[2], const size_t R, const size_t C) {
    size_t r, c;
    AMPI_UNROLL for (r = 0; r < R; r += 2)
        AMPI_UNROLL for (c = 0; c < C; c++) {
            const AMPI_V low = ampi_low2_neon(s[r][c], s[r + 1][c]);
            s[r + 1][c]      = ampi_high2_neon(s[r][c], s[r + 1][c]);
            s[r][c]          = low;
        }
}
AMPI_IN void ampi_sums_mmla(const ampi_block *x, const size_t R, const size_t C, const int whole) {
    const uint32_t *a = x->a, *b = x->b;
    AMPI_V          s[12][2], y[4];
    size_t          r, c, k;
    (void)whole;
    AMPI_UNROLL for (r = 0; r < R; r++)
        AMPI_UNROLL for (c = 0; c < C; c++)
            s[r][c] = x->in ? ampi_get_neon(x->in, (r * 2 + c) * 4) : ampi_splat_neon(0.0f);
    ampi_transpose_mmla(s, R, C);
    for (k = 0; k < x->words; k += 2, a += 24, b += 16) {
        AMPI_UNROLL for (c = 0; c < 2 * C; c++) y[c] = ampi_get_neon(b, c * 4);
        AMPI_UNROLL for (r = 0; r < R; r += 2) {
            const AMPI_V ar = ampi_get_neon(a, r * 2);
            AMPI_UNROLL for (c = 0; c < 2 * C; c++)
                s[r + c % 2][c / 2] = ampi_add_mmla(s[r + c % 2][c / 2], ar, y[c]);
        }
    }
    ampi_transpose_mmla(s, R, C);
    AMPI_UNROLL for (r = 0; r < R; r++)
        AMPI_UNROLL for (c = 0; c < C; c++) ampi_put_neon(x->out, r * x->ld + c * 4, s[r][c]);
}
#define AMPI_PASS AMPI_PASS_KERNELS
#include AMP_FILE
#undef AMPI_SUMS

static const ampi_engine ampi_engine_mmla = {
    AMPI_BLOCKS(4, 4, 1, AMPI_TILES),
    AMPI_FUNCTIONS(_neon, ampi_pack_mmla, ampi_kernel_mmla, ampi_write_neon, NULL)};

#endif /* AMPI_NEON */

#ifdef AMPI_AMX

/* AMX: products of 16-bit types, 32 x 32, in four of eight tile registers. Instructions are text,
   so that they need no header and no target attribute. All else is as in "avx512". */

#ifndef AMPI_TILES_MODEL
#define AMPI_TILE_READ(op, T, P, S)                                                            \
    __asm__ __volatile__(op " {(%0,%1,1), %%tmm" #T "|tmm" #T ", [%0+%1*1]}"                   \
                         : : "r"(P), "r"((size_t)(S)) : "memory")
#define AMPI_TILE_LOAD(T, P, S) AMPI_TILE_READ("tileloadd", T, P, S)
#define AMPI_TILE_PASS(T, P, S) AMPI_TILE_READ("tileloaddt1", T, P, S) /* past the first cache */
#define AMPI_TILE_STORE(T, P, S)                                                               \
    __asm__ __volatile__("tilestored {%%tmm" #T ", (%0,%1,1)|[%0+%1*1], tmm" #T "}"            \
                         : : "r"(P), "r"((size_t)(S)) : "memory")
#define AMPI_TILE_DOT(C, A, B)                                                                 \
    __asm__ __volatile__("tdpbf16ps {%%tmm" #B ", %%tmm" #A ", %%tmm" #C "|tmm" #C ", tmm" #A  \
                         ", tmm" #B "}" : : : "memory")
#define AMPI_TILE_ZERO(T) __asm__ __volatile__("tilezero {%%tmm" #T "|tmm" #T "}" : : : "memory")

static void ampi_use_tiles(int on) { /* eight of 16 rows of 64 bytes */
    struct { uint8_t palette, start, zero[14]; uint16_t width[16]; uint8_t rows[16]; } c;
    int i;
    if (!on) { /* else every switch of threads would save 8 KiB */
        __asm__ __volatile__("tilerelease" : : : "memory");
        return;
    }
    memset(&c, 0, sizeof c);
    c.palette = 1;
    for (i = 0; i < 8; i++) {
        c.width[i] = 64;
        c.rows[i]  = 16;
    }
    __asm__ __volatile__("ldtilecfg %0" : : "m"(c) : "memory");
}

/* Linux grants the tile registers to a process that asks, for good. It refuses if a thread has an
   alternate signal stack too small for them. 158 is arch_prctl, 0x1023 ARCH_REQ_XCOMP_PERM, 18
   the registers. */
static int ampi_tiles_ask(void) {
    long result;
    __asm__ __volatile__("syscall"
                         : "=a"(result) : "0"(158L), "D"(0x1023L), "S"(18L)
                         : "rcx", "r11", "memory");
    return result == 0;
}
#endif

static void ampi_tiles_a(const uint32_t *a) {
    AMPI_TILE_LOAD(4, a, 64);
    AMPI_TILE_LOAD(5, a + 16 * AMPI_DEEP, 64);
}
static void ampi_tiles_b(const uint32_t *b) {
    AMPI_TILE_LOAD(6, b, 128);
    AMPI_TILE_LOAD(7, b + 16, 128);
}
static void ampi_tiles_multiply(void) {
    AMPI_TILE_DOT(0, 4, 6);
    AMPI_TILE_DOT(1, 4, 7);
    AMPI_TILE_DOT(2, 5, 6);
    AMPI_TILE_DOT(3, 5, 7);
}

/* Multiplies numbers of two terms; the second ones are so many words later. First high times low;
   then high high; low high; low low. */
static void ampi_tiles_terms(const uint32_t *a, const uint32_t *b, size_t second, int products) {
    ampi_tiles_b(b + second);
    ampi_tiles_a(a);
    ampi_tiles_multiply();
    ampi_tiles_b(b);
    ampi_tiles_multiply();
    ampi_tiles_a(a + second);
    ampi_tiles_multiply();
    if (products < 4) return;
    ampi_tiles_b(b + second);
    ampi_tiles_multiply();
}

static void ampi_kernel_tiles(ampi_block *x) {
    const size_t    second = AMPI_DEEP * 32; /* where the second terms of a piece are */
    const size_t    step = x->products > 1 ? 2 * second : second, ld = 4 * x->ld;
    const uint32_t *a = x->a, *b = x->b;
    size_t          k;
    if (!x->in) {
        AMPI_TILE_ZERO(0); AMPI_TILE_ZERO(1); AMPI_TILE_ZERO(2); AMPI_TILE_ZERO(3);
    } else {
        AMPI_TILE_PASS(0, x->in, 128);
        AMPI_TILE_PASS(1, x->in + 16, 128);
        AMPI_TILE_PASS(2, x->in + 16 * 32, 128);
        AMPI_TILE_PASS(3, x->in + 16 * 32 + 16, 128);
    }
    for (k = 0; k < x->words; k += AMPI_DEEP, a += step, b += step) {
        if (x->products == 1) { /* one strip stays in the first cache; the other goes past it */
            if (x->a_panel) {
                AMPI_TILE_PASS(4, a, 64);
                AMPI_TILE_PASS(5, a + 16 * AMPI_DEEP, 64);
                ampi_tiles_b(b);
            } else {
                AMPI_TILE_PASS(6, b, 128);
                AMPI_TILE_PASS(7, b + 16, 128);
                ampi_tiles_a(a);
            }
            ampi_tiles_multiply();
            continue;
        }
        ampi_tiles_terms(a, b, second, x->products);
    }
    AMPI_TILE_STORE(0, x->out, ld);
    AMPI_TILE_STORE(1, x->out + 16, ld);
    AMPI_TILE_STORE(2, x->out + 16 * x->ld, ld);
    AMPI_TILE_STORE(3, x->out + 16 * x->ld + 16, ld);
}

static const ampi_engine ampi_engine_tiles = {
    AMPI_IS(rows, 32), AMPI_IS(cols, 32), AMPI_IS(row_step, 32), AMPI_IS(col_step, 32),
    AMPI_IS(depth, 64), AMPI_IS(at_once, 20), AMPI_IS(pairs, 1), AMPI_IS(least, AMPI_TILES),
    AMPI_IS(use_tiles, ampi_use_tiles),
    AMPI_FUNCTIONS(_avx512, ampi_pack_pairs_avx512, ampi_kernel_tiles, ampi_write_pairs_avx512,
                   NULL)};

#endif /* AMPI_AMX */

/* Best first. A tier is usable if the processor has it and the operating system saves its
   registers. The first product by tiles asks whether this process may use them: the answer is the
   next row, or a tier without tiles. */
static const ampi_tier ampi_tiers[] = {
#ifdef AMPI_AMX
    {"amx", 8, 0, 1, &ampi_loops_pairs, &ampi_engine_avx512, &ampi_engine_tiles},
    {"amx", 8, 0, 0, &ampi_loops_pairs, &ampi_engine_avx512, &ampi_engine_tiles},
#endif
#ifdef AMPI_PAIRS /* on Intel's processors slower than FMA: there only by name */
    {"avx512_bf16", 4, 16, 0, &ampi_loops_pairs, &ampi_engine_avx512, &ampi_engine_pairs_avx512},
#endif
#ifdef AMPI_512
    {"avx512", 2, 0, 0, &ampi_loops_avx512, &ampi_engine_avx512, NULL},
#endif
#ifdef AMPI_X86
    {"avx2", 1, 0, 0, &ampi_loops_avx2, &ampi_engine_avx2, NULL},
#endif
#ifdef AMPI_NEON
    {"neon_bf16", 64, 0, 0, &ampi_loops_neon, &ampi_engine_neon, &ampi_engine_mmla},
    {"neon", 32, 0, 0, &ampi_loops_neon, &ampi_engine_neon, NULL},
#endif
    {"c", 0, 0, 0, &ampi_loops_c, &ampi_engine_c, NULL}};

enum { AMPI_NUM_TIERS = sizeof ampi_tiers / sizeof ampi_tiers[0] };

/* The tier in use. cpuid can cost microseconds in a virtual machine, so its answer is stored.
   This, a thread's autocast and its last error are the only mutable globals. An answer gives way
   to a tier that another thread has set meanwhile, so that a forced tier stays. */
static const ampi_tier *ampi_tier_chosen;

#if defined(__GNUC__) || defined(__clang__)
#define AMPI_TIER_GET()  __atomic_load_n(&ampi_tier_chosen, __ATOMIC_RELAXED)
#define AMPI_TIER_SET(t) __atomic_store_n(&ampi_tier_chosen, (t), __ATOMIC_RELAXED)
#define AMPI_TIER_SWAP(was, t)                                                                  \
    __atomic_compare_exchange_n(&ampi_tier_chosen, &(was), (t), 0, __ATOMIC_RELAXED,            \
                                __ATOMIC_RELAXED)
#else
#define AMPI_TIER_GET()  ampi_tier_chosen
#define AMPI_TIER_SET(t) (ampi_tier_chosen = (t))
#define AMPI_TIER_SWAP(was, t) (ampi_tier_chosen = (t), 1)
#endif

/* Sets the tier to answer, unless it is no longer `was`. Returns the tier now. */
static const ampi_tier *ampi_tier_settle(const ampi_tier *was, const ampi_tier *answer) {
    return AMPI_TIER_SWAP(was, answer) ? answer : was;
}

#ifndef AMPI_PROCESSOR /* of the features found, those that a test leaves, or has a model of */
#define AMPI_PROCESSOR(features) (features)
#endif

/* The first usable tier of that name, or of any. */
static const ampi_tier *ampi_tier_find(const char *name) {
    const uint32_t lacks = ~AMPI_PROCESSOR(ampi_cpu_features());
    size_t         i;
    for (i = 0; i < (size_t)AMPI_NUM_TIERS; i++) {
        const ampi_tier *t = &ampi_tiers[i];
        if (name ? !strcmp(name, t->name) && !(t->needs & lacks) : !((t->needs | t->best) & lacks))
            return t;
    }
    return NULL;
}

static const ampi_tier *ampi_tier_now(void) {
    const ampi_tier *tier = AMPI_TIER_GET();
    return tier ? tier : ampi_tier_settle(tier, ampi_tier_find(NULL));
}

AMP_DEF const char *amp_cpu_tier(void) { return ampi_tier_now()->name; }

AMP_DEF amp_result amp_cpu_force_tier(const char *name) {
    const ampi_tier *tier = ampi_tier_find(name);
    AMPI_REFUSE(!tier, UNSUPPORTED, "tier \"%s\" is not there: the best is \"%s\"", name,
                ampi_tier_find(NULL)->name);
    AMPI_TIER_SET(tier);
    return AMP_OK;
}

static const ampi_engine *ampi_engine_pairs(int whole, size_t m, size_t n, size_t k) {
    const ampi_tier *tier = ampi_tier_now();
    const size_t     least = tier->pairs ? tier->pairs->least : 0;
    if (least && (m == 1 || n == 1 || !ampi_work_above(m, n, k, least - 1))) return NULL;
#ifdef AMPI_AMX
    if (tier->asks)
        tier = ampi_tier_settle(tier, ampi_tiles_ask() ? tier + 1
                                                       : ampi_tier_find("avx512"));
#endif
    return tier->pairs && (whole || tier->pairs->use_tiles) ? tier->pairs : NULL;
}

static const ampi_engine *ampi_engine_of(size_t i) {
    const ampi_tier *tier = &ampi_tiers[i / 2];
    if (i >= 2 * (size_t)AMPI_NUM_TIERS) return NULL;
    return i % 2 && tier->pairs ? tier->pairs : tier->engine;
}

#if defined(__CUDACC__)
#pragma nv_diagnostic pop
#endif

AMPI_STRICT_END
AMPI_OPTIMIZE_END
AMPI_MACROS(pop)

#ifdef __cplusplus
}
#endif

#ifdef _MSC_VER
#pragma warning(pop)
#endif

#endif /* >>impl processors */
#undef AMPI_PASS

/* ---------------------------------------------------------------------- licence
   SPDX-License-Identifier: MIT OR Unlicense
   Copyright (c) 2026 the amp.h authors. MIT License, or public domain by the Unlicense, as you
   wish: https://spdx.org/licenses and LICENSE have both texts. THE SOFTWARE IS PROVIDED "AS IS",
   WITHOUT WARRANTY OF ANY KIND. */
