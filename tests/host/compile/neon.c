/* Has this target NEON's tiers? tests/host/arm.sh. */
#define AMP_IMPLEMENTATION
#include "amp.h"
AMPI_STATIC_ASSERT(ampi_neon_is_as_expected, AMPI_NEON == AMP_TEST_NEON);
