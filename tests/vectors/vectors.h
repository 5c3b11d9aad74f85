/* vectors.h - what a scaler in C offers to be run on the vectors (README.md says what they demand).

   A scaler is five functions. What the runner reads of it stands in the subject: each function leaves scale,
   good and left there as they are after the call. The families beside scale and order have functions of
   their own, and are skipped where those are NULL. */

#ifndef VECTORS_H
#define VECTORS_H

#include "json.h"
#include <math.h>
#include <stdint.h>

typedef struct vectors_config { /* 0: the system has no such number */
    const char *system;
    double      init_scale, growth_factor, backoff_factor, min_scale, max_scale, tolerance;
    int         growth_interval, hysteresis;
} vectors_config;

enum {
    VECTORS_LACKING = -3, /* it has no such system */
    VECTORS_ABSENT  = -2, /* it cannot be asked this */
    VECTORS_REFUSED = -1, VECTORS_SKIPPED = 0, VECTORS_OK = 1
};

/* An optimizer's step on n elements: what stands before it, and after it. */
typedef struct vectors_state {
    const char *dtype; /* of gradients and copies: "fp16", "bf16", "fp32" */
    size_t      n;
    double      lr, beta1, beta2, eps, weight_decay, scale;
    int         steps;  /* that were taken */
    float      *weights; /* n of each; moments may be NULL after a step: not shown */
    float      *m, *v;
    void       *copies; /* of dtype */
} vectors_state;

/* Clipping by the norm of several tensors together: what a step is given, and what it shows. */
typedef struct vectors_clip {
    const char *system, *dtype; /* of gradients */
    size_t      count, n[3];
    double      max_norm, scale; /* scale: the next iteration's, after a step */
    void       *gradients[3];
    float      *after[3]; /* unscaled and clipped, n of each; where the step is taken, as norm and factor */
    double      norm; /* it and factor negative: not shown */
    float       factor;
} vectors_clip;

typedef struct vectors_subject vectors_subject;
struct vectors_subject {
    const char *name;
    void       *self; /* yours */
    double      scale;
    int         good; /* good steps counted towards growth */
    int         left; /* overflows that do not move the scale yet: hysteresis */
    int         samples; /* nonzero: not all 2^32 floats of a digest */

    /* A new scaler; VECTORS_LACKING if there is none of this system. */
    int (*start)(vectors_subject *s, const vectors_config *config);
    /* Check n gradients, bits of floats, and unscale them in place. VECTORS_OK or VECTORS_REFUSED. */
    int (*unscale)(vectors_subject *s, uint32_t *gradients, size_t n);
    /* The optimizer's step: VECTORS_OK if taken, VECTORS_SKIPPED, VECTORS_REFUSED. */
    int (*step)(vectors_subject *s);
    /* The end of the iteration: VECTORS_OK or VECTORS_REFUSED. */
    int (*update)(vectors_subject *s);
    /* From outside: "scale"; "growth_interval"; "found_inf", what ranks summed up to; "resume": save all,
       forget all, load. VECTORS_ABSENT where it cannot be so (a double, where the scale is given as a float). */
    int (*set)(vectors_subject *s, const char *what, double value);

    /* An AdamW step with dynamic scale: begin takes the state in, each step moves it; then end. */
    int (*begin)(vectors_subject *s, vectors_state *state);
    int (*adamw)(vectors_subject *s, vectors_state *state, void *gradients);
    void (*end)(vectors_subject *s);

    /* Steps that clip, with dynamic scale: VECTORS_OK if taken, VECTORS_SKIPPED; then end. clip_begin:
       VECTORS_LACKING if there is none of this system. */
    int (*clip_begin)(vectors_subject *s, vectors_clip *clip);
    int (*clip)(vectors_subject *s, vectors_clip *clip);

    /* n numbers of type `from` to type `to`. */
    void (*convert)(void *dst, const char *to, const void *src, const char *from, size_t n);
};

/* Told of each case that fails, and the last of its rows that was run. */
typedef void (*vectors_failed)(void *user, const json *the_case, int row);

#endif
