/* prepare.h - what a loop does before its first step. Included after amp.h. */

#ifndef PREPARE_H_INCLUDED
#define PREPARE_H_INCLUDED

/* A trainer whose add was refused frees the optimizer and begins again; a test that asks more of it goes on. */
static inline void forget_refused(amp_optimizer *opt) { opt->refused.result = AMP_OK; }

/* Gradients that a test makes up are scaled already: it asks for the scale once, and takes steps. */
static inline amp_result prepare_scaled(amp_optimizer *opt) {
    const amp_result result = amp_optimizer_prepare(opt);
    if (result == AMP_OK) (void)amp_optimizer_loss_scale_ptr(opt);
    return result;
}

#endif
