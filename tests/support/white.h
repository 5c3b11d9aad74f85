/* white.h - what amp.c shows of the inside of amp.h. */

#ifndef WHITE_H_INCLUDED
#define WHITE_H_INCLUDED

#include "amp.h"

#include <stdlib.h>

extern long white_malloc_calls; /* of amp.h's mallocs */
extern int  white_malloc_fails; /* they return NULL   */

extern int *const white_tiles_granted; /* by the model of tiles' system; NULL: no model */
extern int *const white_tiles_asked;   /* how often                                     */

void white_tell(const char *text); /* as an error's */
void white_tell_number(const double *number);

/* Processors (>>impl tiers has what the bits of their features mean). */
typedef void (*white_cpuid)(uint32_t leaf, uint32_t sub, uint32_t *r);
#define WHITE_XGETBV 0xffffffffu /* as a leaf: what the system saves, in r[0] */

uint32_t white_features_of(white_cpuid cpuid);      /* that answers so; 0 where there is no cpuid */
uint32_t white_features(void);                      /* this one, or what AMP_TEST_TIER leaves     */
void     white_processor(const uint32_t *features); /* another one from here on, or NULL          */

/* A product as a team shares it, one share after the other; 0 if it writes behind the room that it
   asks for, or asks for more than amp_gemm_workspace says. */
int white_gemm_shares(const amp_gemm_args *g, size_t team);

/* Bytes of workspace that an engine wants, numbered (0: there is none of that number; the first two
   are the best tier's), for operands that count as a type, lie along k or not, and C's first block
   of so many columns less. SIZE_MAX if strip, panel or sums have too little of it, there or on the
   stack. */
size_t white_gemm_room(size_t engine, size_t m, size_t n, size_t k, amp_dtype as, int along,
                       size_t lead);

#ifndef AMP_NO_AUTOCAST
void       white_cache_reset(amp_session *s); /* between two products */
amp_result white_cache_get(amp_session *s, const float *x, size_t rows, size_t cols, size_t ld,
                           amp_dtype type, const void **copy, size_t *copy_ld);
#endif

#endif
