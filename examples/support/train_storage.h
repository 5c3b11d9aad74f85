/* train_storage.h - the rows of AMP_STORAGE_LIST (low-precision masters and moments), for gpt.c's
   --storage and the table of state.c

   It needs amp.h. C and C++.                                                                     */

#ifndef TRAIN_STORAGE_H
#define TRAIN_STORAGE_H

#include "amp.h"

#define STORAGE_NAME(name, master, moments) name,
#define STORAGE_ROW(name, master, moments)  {AMP_FORMAT_##master, AMP_FORMAT_##moments},

static const char *const storage_names[] = {AMP_STORAGE_LIST(STORAGE_NAME) NULL}; /* of an option */
static const amp_storage storages[]      = {AMP_STORAGE_LIST(STORAGE_ROW)}; /* fp32 comes first */
enum { NUM_STORAGES = sizeof storages / sizeof *storages };

/* Bytes that a step of AdamW reads and writes for each parameter, with models and gradients of halves,
   which it reads twice: of each format what it stores, of a master beside the model, which fp32 only
   writes. */
static inline double bytes_moved(const amp_storage *s) {
    static const double stored[] = {4.0, 2.0, 1.0 + 1.0 / 32, 2.0, 0.0};
    const double        model    = s->master == AMP_FORMAT_F32 ? 2.0 : 4.0;
    return 4.0 + model + 2.0 * stored[s->master] + 4.0 * stored[s->moments];
}

#endif /* TRAIN_STORAGE_H */
