/* The other unit: the declarations only. */
#include "amp.h"

amp_result from_b(amp_scaler *s);
float      half_in_b(amp_f16 x);

amp_result from_b(amp_scaler *s) {
    const float      g      = 1.0f;
    const amp_result result = amp_scaler_check(s, &g, AMP_F32, 1);
    return result == AMP_OK ? amp_scaler_update(s) : result;
}

float half_in_b(amp_f16 x) { return amp_f16_to_f32(x); }
