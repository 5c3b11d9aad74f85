/* fp.h - tests change the floating-point environment: rounding, flushing, traps. All of it is
   integer code, so that it works whatever the environment and the fast-math flags are. */

#ifndef FP_H_INCLUDED
#define FP_H_INCLUDED

#include <setjmp.h>
#include <signal.h>
#include <stdint.h>

#if defined(__SSE2__) && (defined(__GNUC__) || defined(_MSC_VER)) && !defined(__TINYC__)
#define FP_CONTROL 1
#include <xmmintrin.h> /* _mm_getcsr, _mm_setcsr */
static inline uint32_t fp_get(void) { return _mm_getcsr(); }
static inline void     fp_set(uint32_t mode) { _mm_setcsr(mode); }
#else
#define FP_CONTROL 0 /* tests that need a mode below are skipped */
static inline uint32_t fp_get(void) { return 0; }
static inline void     fp_set(uint32_t mode) { (void)mode; }
#endif
#define FP_WHY "the floating-point modes cannot be set with this compiler or processor"

enum {
    FP_IEEE     = 0x1f80, /* to nearest, traps masked, subnormals kept        */
    FP_TRAPS    = 0x0000, /* every trap unmasked: invalid ... inexact         */
    FP_FTZ      = 0x8000, /* | with FP_IEEE: results that are subnormal are 0 */
    FP_DAZ      = 0x0040, /* operands that are subnormal count as 0           */
    FP_ROUNDING = 0x2000  /* times 0..3: nearest, down, up, towards zero      */
};

#if FP_CONTROL && !defined(_WIN32)
#define FP_TRAPPING 1
static sigjmp_buf   fp_trapped;
static inline void fp_on_trap(int number) {
    (void)number;
    siglongjmp(fp_trapped, 1);
}

/* Call run() with every trap unmasked. True if none was taken. */
static inline int fp_runs_without_trap(void (*run)(void)) {
    const uint32_t saved = fp_get();
    void (*const before)(int) = signal(SIGFPE, fp_on_trap);
    volatile int quiet = 0;
    if (sigsetjmp(fp_trapped, 1) == 0) {
        fp_set(FP_TRAPS);
        run();
        quiet = 1;
    }
    fp_set(saved);
    signal(SIGFPE, before);
    return quiet;
}
#else
#define FP_TRAPPING 0
static inline int fp_runs_without_trap(void (*run)(void)) {
    run();
    return 1;
}
#endif

#endif
