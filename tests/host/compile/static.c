/* AMP_STATIC: nothing is visible outside, and nothing need be used. */
#define AMP_STATIC
#define AMP_IMPLEMENTATION
#include "amp.h"

int main(void) {
#ifdef USE_IT
    return amp_f32_to_f16(1.0f).bits != 0x3c00;
#else
    return 0;
#endif
}
