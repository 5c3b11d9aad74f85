/* white.h - what amp.c shows of the inside of amp.h. */

#ifndef WHITE_H_INCLUDED
#define WHITE_H_INCLUDED

#include "amp.h"

#include <stdlib.h>

extern long white_malloc_calls; /* of amp.h's mallocs */
extern int  white_malloc_fails; /* they return NULL   */

extern int *const white_tiles_granted; /* by the model of tiles' system; NULL: no model */

void white_tell(char *problem, const char *text);
void white_tell_number(char *problem, const double *number);

#ifndef AMP_NO_AUTOCAST
void       white_cache_reset(amp_cache *cache); /* between two products */
amp_result white_cache_get(amp_cache *cache, const float *x, size_t rows, size_t cols, size_t ld,
                           amp_dtype type, const void **copy, size_t *copy_ld);
#endif

#endif
