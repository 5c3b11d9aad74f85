/* train_states.h - the names of amp.h's states (desc.state: masters and moments in fewer bytes), for
   gpt.c's --state and the table of state.c

   It needs amp.h. C and C++.                                                                     */

#ifndef TRAIN_STATES_H
#define TRAIN_STATES_H

#include "amp.h"

/* The name, desc.state, and the bytes that a step of AdamW reads and writes for each parameter, with
   gradients of halves. The default comes first. */
#define STATES(X)                                   \
    X("default", AMP_STATE_DEFAULT, 30.0)           \
    X("split", AMP_STATE_SPLIT, 28.0)               \
    X("bf16", AMP_STATE_BF16, 20.0)                 \
    X("8bit", AMP_STATE_8BIT, 16.125)               \
    X("8bit-24", AMP_STATE_8BIT_24, 14.125)         \
    X("kahan", AMP_STATE_KAHAN, 28.0)               \
    X("kahan-bf16", AMP_STATE_KAHAN_BF16, 20.0)     \
    X("kahan-8bit", AMP_STATE_KAHAN_8BIT, 16.125)   \
    X("sr", AMP_STATE_SR, 24.0)                     \
    X("sr-bf16", AMP_STATE_SR_BF16, 16.0)           \
    X("sr-8bit", AMP_STATE_SR_8BIT, 12.125)

#define STATE_NAME(name, state, moved) name,
#define STATE_ROW(name, state, moved)  {name, state, moved},

static const char *const state_names[] = {STATES(STATE_NAME) NULL}; /* choices of an option */
static const struct { const char *name; amp_state state; double moved; } states[] = {STATES(STATE_ROW)};
enum { NUM_STATES = sizeof states / sizeof *states };

#endif /* TRAIN_STATES_H */
