// The implementation in a C++ unit, and its C linkage.
#define AMP_IMPLEMENTATION
#include "amp.h"

int main() {
    amp_result (*const linkage)(amp_scaler *) = &amp_scaler_update;
    amp_scaler_desc desc                      = amp_scaler_desc();
    amp_scaler      s;
    float           g[3] = {65536.0f, -65536.0f, 0.0f};
    desc.growth_interval  = 1;
    if (amp_scaler_init(&s, &desc) != AMP_OK) return 1;
    if (amp_scaler_unscale(&s, g, g, AMP_F32, 3) != AMP_OK) return 2;
    if (s.found_inf) return 3;
    if (linkage(&s) != AMP_OK || s.growths != 1) return 4;
    return amp_f32_to_bf16(g[0]).bits != 0x3f80;
}
