/* amp.c - amp.h, compiled once for each configuration and linked to its tests. They see three things
   more: a malloc that counts and can fail, private functions that white.h declares, and other
   processors than this one. With TEST_MODEL some of their instructions are a model's, in C. */

#include "support/white.h"

#ifdef TEST_MODEL
#define AMPI_TILES_MODEL "tests/support/tiles.h"
#endif
#define AMPI_PROCESSOR(features) (planted ? *planted : processor_features(features))
static const uint32_t *planted;
#include "support/processor.h"

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
int *const white_tiles_granted = &tiles_granted, *const white_tiles_asked = &tiles_asked;
#else
int *const white_tiles_granted = NULL, *const white_tiles_asked = NULL;
#endif

void white_tell(const char *text) { ampi_refuse(AMP_ERROR_READ, "%s", text); }
void white_tell_number(const double *number) { ampi_refuse(AMP_ERROR_READ, "%g", *number); }

uint32_t white_features(void) { return processor_features(ampi_cpu_features()); }
uint32_t white_features_of(white_cpuid cpuid) {
#ifdef AMPI_X86
    return ampi_features_of(cpuid);
#else
    (void)cpuid;
    return 0;
#endif
}
void white_processor(const uint32_t *features) {
    planted          = features;
    ampi_tier_chosen = NULL;
}

int white_gemm_shares(const amp_gemm_args *g, size_t team) {
    const uint32_t end = 0x5a5a5a5au;
    ampi_task      w;
    uint32_t      *memory;
    size_t         t, room;
    int            fits;
    ampi_task_begin(&w, g);
    ampi_task_size(&w, 0);
    room    = w.run == ampi_gemm_product ? team * w.size : 0;
    memory  = (uint32_t *)malloc((room + 17) * 4);
    w.strip = room ? ampi_align(memory) : NULL;
    if (room) w.strip[room] = end;
    for (t = 0; t < team; t++) {
        ampi_task own = w;
        if (ampi_gemm_split(&own, t, team)) ampi_gemm_share(&own);
    }
    fits = !room || w.strip[room] == end;
    fits = fits && room * 4 + 64 <= team * amp_gemm_workspace(g->m, g->n, g->k);
    free(memory);
    return fits;
}

/* Has each of strip, panel and sums room for what ampi_gemm_panel writes to it? */
static int has_room(const ampi_task *w) {
    const size_t rows = w->group * (w->a_panel ? w->e->cols : w->e->rows), cols = w->a_panel ? w->e->rows : w->e->cols;
    const size_t sums = w->step >= w->k ? 0 : (w->deep < w->k ? w->tall : rows) * w->wide;
    return ampi_strip(w, rows, w->step) <= w->strip_size && w->wide % cols == 0 && w->step <= w->deep &&
           ampi_strip(w, w->wide, w->deep) <= w->panel_size &&
           w->strip_size + w->panel_size + sums <= w->size;
}

size_t white_gemm_room(size_t engine, size_t m, size_t n, size_t k, amp_dtype as, int along,
                       size_t lead) {
    ampi_task w;
    int       small;
    memset(&w, 0, sizeof w);
    w.e = ampi_engine_of(engine);
    if (w.e == NULL) return 0;
    w.m = m, w.n = n, w.k = k;
    w.x[0].as = w.x[1].as = as;
    w.x[0].cs = w.x[1].cs = along ? 1 : 2000;
    w.lead = lead;
    for (small = 2; small--;) {
        ampi_task_size(&w, small);
        if (!has_room(&w) || (small && w.size > AMPI_STACK)) return SIZE_MAX;
    }
    return w.size * 4 + 64;
}

#ifndef AMP_NO_AUTOCAST
void white_cache_reset(amp_session *s) {
    s->top = s->size;
    s->product++;
}

amp_result white_cache_get(amp_session *s, const float *x, size_t rows, size_t cols, size_t ld,
                           amp_dtype type, const void **copy, size_t *copy_ld) {
    const ampi_matrices of = {x, AMP_F32, rows, cols, ld, 0};
    return ampi_cache_get(s, &of, 1, type, copy, copy_ld);
}
#endif
