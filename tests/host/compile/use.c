/* A small program that goes through every room: does what this compiler built also run? */
#define AMP_IMPLEMENTATION
#include "amp.h"

int main(void) {
    static float       w[3] = {1, 2, 3};
    static uint16_t    g[3] = {0x3c00, 0x7c00, 0x0000};
    amp_optimizer      opt;
    amp_optimizer_desc desc;
    amp_tensor         tensor;
    amp_status         status;
    int                i;
    for (i = 0; i < 65536; i++) {
        amp_f16 h;
        h.bits = (uint16_t)i;
        if ((i & 0x7c00) != 0x7c00 && amp_f32_to_f16(amp_f16_to_f32(h)).bits != i) return 1;
    }
    memset(&desc, 0, sizeof desc);
    memset(&tensor, 0, sizeof tensor);
    desc.dtype       = AMP_F16;
    desc.kind        = AMP_KIND_ADAMW;
    tensor.n         = 3;
    tensor.weight    = w;
    tensor.grad      = g;
    tensor.grad_type = AMP_F16;
    if (amp_optimizer_init(&opt, &desc) || amp_optimizer_add(&opt, &tensor) ||
        amp_optimizer_prepare(&opt))
        return 2;
    if (amp_optimizer_loss_scale(&opt) < 65536.0f) return 8; /* which g is scaled by */
    if (amp_optimizer_step(&opt, 0.5f) != AMP_OK) return 3; /* skipped: there is an inf */
    g[1] = 0;
    if (amp_optimizer_step(&opt, 0.5f) != AMP_OK) return 4;
    if (amp_optimizer_status(&opt, &status) != AMP_OK) return 5;
    if (status.steps != 1 || status.skipped != 1) return 6;
    if (w[0] > 0.6f || w[1] < 1.9f) return 7;
    amp_optimizer_free(&opt);
    return 0;
}
