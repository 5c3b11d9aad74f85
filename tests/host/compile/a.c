/* One of two units of a program: this one holds the implementation, and includes it twice. */
#define AMP_IMPLEMENTATION
#include "amp.h"
#include "amp.h"

amp_result from_b(amp_scaler *s);
float      half_in_b(amp_f16 x);

int main(void) {
    amp_scaler s;
    if (amp_scaler_init(&s, NULL) != AMP_OK) return 1;
    if (from_b(&s) != AMP_OK) return 2;
    if (s.good != 1) return 3;
    return half_in_b(amp_f32_to_f16(1.5f)) < 1.4f;
}
