/* train_count.h - amp.h with its implementation, and a malloc that counts

   --check of gpt.c, cnn.c and ncf.c uses it to show that a step allocates nothing. Your trainer
   needs only the two lines at the end of the #ifndef. make compiles this file once for all
   examples.                                                                                      */

#ifndef TRAIN_COUNT_H
#define TRAIN_COUNT_H

#include <stdlib.h>

#ifdef AMP_IMPLEMENTATION_INCLUDED /* linked */
extern size_t allocations;
#else
size_t allocations;

static void *counting_malloc(size_t num_bytes) {
    allocations++;
    return malloc(num_bytes);
}
#define malloc counting_malloc
#define AMP_IMPLEMENTATION
#endif
#include "amp.h"
#undef malloc

#endif /* TRAIN_COUNT_H */
