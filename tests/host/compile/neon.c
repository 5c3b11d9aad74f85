/* Has this target NEON's tiers? tests/host/arm.sh. */
#define AMP_IMPLEMENTATION
#include "amp.h"
#ifdef AMPI_NEON
AMPI_STATIC_ASSERT(ampi_neon_is_as_expected, AMP_TEST_NEON);
#else
AMPI_STATIC_ASSERT(ampi_neon_is_as_expected, !AMP_TEST_NEON);
#endif
