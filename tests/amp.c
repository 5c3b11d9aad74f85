/* amp.c - amp.h, compiled once for each configuration and linked to its tests. They see three things
   more: a malloc that counts and can fail, private functions that white.h declares, and, where a model
   stands for tiles (AMPI_TILES_MODEL), whether its system grants them. */

#include "white.h"

long white_malloc_calls;
int  white_malloc_fails;

static void *counted_malloc(size_t n) {
    white_malloc_calls++;
    return white_malloc_fails ? NULL : malloc(n);
}
#define malloc counted_malloc
#define AMP_IMPLEMENTATION
#include "amp.h"
#undef malloc

#ifdef AMPI_TILES_MODEL
int *const white_tiles_granted = &tiles_granted;
#else
int *const white_tiles_granted = NULL;
#endif

void white_tell(char *problem, const char *text) { ampi_tell(problem, "%s", text); }
void white_tell_number(char *problem, const double *number) { ampi_tell(problem, "%g", *number); }

#ifndef AMP_NO_AUTOCAST
void white_cache_reset(amp_cache *cache) {
    cache->top = cache->size;
    cache->product++;
}

amp_result white_cache_get(amp_cache *cache, const float *x, size_t rows, size_t cols, size_t ld,
                           amp_dtype type, const void **copy, size_t *copy_ld) {
    return ampi_cache_get(cache, x, rows, cols, ld, type, copy, copy_ld);
}
#endif
