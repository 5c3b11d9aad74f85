/* One of two units of a program: this one holds the implementation, and includes it twice. But with
   ELSEWHERE it is in a library; and with OWN the other unit has one of its own, with its state. */
#ifndef ELSEWHERE
#define AMP_IMPLEMENTATION
#endif
#include "amp.h"
#include "amp.h"
#ifndef OWN
#define OWN 0
#endif

amp_result from_b(amp_scaler *s);
float      half_in_b(amp_f16 x);
int        autocast_in_b(void);

int main(void) {
    amp_scaler s;
    if (amp_scaler_init(&s, NULL) != AMP_OK) return 1;
    if (from_b(&s) != AMP_OK) return 2;
    if (s.good != 1) return 3;
#ifndef AMP_NO_AUTOCAST
    static amp_autocast ac;
    if (amp_autocast_init(&ac, AMP_POLICY_DEFAULT, AMP_BF16) != AMP_OK) return 4;
    amp_autocast_use(&ac);
    if (autocast_in_b() == OWN) return 5;
#endif
    return half_in_b(amp_f32_to_f16(1.5f)) < 1.4f;
}
