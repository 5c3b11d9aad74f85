/* The other unit: the declarations only, unless its command says more. */
#include "amp.h"
#ifndef EXPORTED
#define EXPORTED
#endif

EXPORTED amp_result from_b(amp_scaler *s);
EXPORTED float      half_in_b(amp_f16 x);
EXPORTED int        autocast_in_b(void);

amp_result from_b(amp_scaler *s) {
    const float      g      = 1.0f;
    const amp_result result = amp_scaler_unscale(s, NULL, &g, AMP_F32, 1);
    return result == AMP_OK ? amp_scaler_update(s) : result;
}

float half_in_b(amp_f16 x) { return amp_f16_to_f32(x); }

int autocast_in_b(void) {
#ifndef AMP_NO_AUTOCAST
    return amp_autocast_use(NULL) != NULL;
#else
    return 0;
#endif
}
