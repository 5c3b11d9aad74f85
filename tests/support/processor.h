/* processor.h - the processor that amp.h shall take this one for: with AMP_TEST_TIER set to c, avx2,
   avx512, pairs, amx, neon or neon_bf16 it has that tier and those that come with it, and no other, so that none
   of the others' instructions runs; where it has not, the program ends with status 77. In front of
   amp.h, or with -include. */

#ifndef PROCESSOR_H_INCLUDED
#define PROCESSOR_H_INCLUDED

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef AMPI_PROCESSOR
#define AMPI_PROCESSOR(features) processor_features(features)
#endif

/* Of the features found (>>impl tiers of amp.h) those of the tier. The model's are there anyway, and
   need no AVX2. */
static uint32_t processor_features(uint32_t found) {
    static const struct { const char *name; uint32_t features; } tiers[] = {
        {"c", 0}, {"avx2", 1}, {"avx512", 2}, {"pairs", 2 + 4}, {"amx", 2 + 4 + 8}, {"neon", 32},
        {"neon_bf16", 32 + 64}};
    const char *name = getenv("AMP_TEST_TIER");
    size_t      i;
#ifdef AMPI_TILES_MODEL
    found |= 2u + 4u + 8u + 32u + 64u;
#endif
    if (name == NULL || *name == '\0') return found;
    for (i = 0; i < sizeof tiers / sizeof *tiers; i++) {
        const uint32_t all = tiers[i].features;
        if (strcmp(name, tiers[i].name) != 0) continue;
        if (all & ~found) break;
        return (found & (all & 15u ? all | 1u : all)) | (all == 6 ? 16u : 0u); /* AMD's take pairs unasked */
    }
    fprintf(stderr, "AMP_TEST_TIER=%s: not on this processor\n", name);
    exit(77);
}

#endif
