/* AMP_NO_STDLIB: memory comes from here. */
#define AMP_NO_STDLIB
#define AMP_IMPLEMENTATION
#include "amp.h"

static double pool[4096];
static size_t used;

static void *take(void *user, size_t num_bytes) {
    void *const memory = pool + used;
    (void)user;
    used += (num_bytes + sizeof pool[0] - 1) / sizeof pool[0];
    return used <= sizeof pool / sizeof pool[0] ? memory : NULL;
}
static void give(void *user, void *memory) {
    (void)memory;
    (void)user;
}

int main(void) {
    static float       w[5] = {1, 2, 3, 4, 5}, g[5];
    amp_optimizer      opt;
    amp_optimizer_desc desc;
    amp_tensor         tensor;
    static amp_session session;
    amp_session_desc   of;
    int                failed = 0;
    memset(&desc, 0, sizeof desc);
    memset(&tensor, 0, sizeof tensor);
    desc.dtype    = AMP_F16;
    desc.kind     = AMP_KIND_SGD;
    tensor.n      = 5;
    tensor.weight = w;
    tensor.grad   = g;
    /* without an allocator prepare has no memory, and says so */
    if (amp_optimizer_init(&opt, &desc) == AMP_OK && amp_optimizer_add(&opt, &tensor) == AMP_OK)
        failed |= amp_optimizer_prepare(&opt) == AMP_OK;
    amp_optimizer_free(&opt);

    desc.allocator.allocate_fn = take;
    desc.allocator.release_fn  = give;
    failed |= amp_optimizer_init(&opt, &desc) != AMP_OK;
    failed |= amp_optimizer_add(&opt, &tensor) != AMP_OK;
    failed |= amp_optimizer_prepare(&opt) != AMP_OK;
    g[0] = amp_optimizer_loss_scale(&opt);
    failed |= amp_optimizer_step(&opt, 0.5f) != AMP_OK;
    failed |= w[0] > 0.6f || w[0] < 0.4f;
    amp_optimizer_free(&opt);
    memset(&of, 0, sizeof of);
    of.num_bytes = 4096;
    of.dtype     = AMP_F16;
    failed |= amp_session_start(&session, &of) != AMP_ERROR_INVALID_ARGUMENT;
    of.allocator = desc.allocator;
    failed |= amp_session_start(&session, &of) != AMP_OK;
    failed |= amp_autocast_use(&session.autocast) != &session.autocast || !(session.scaler->scale > 1.0f);
    amp_session_end(&session);
    return failed;
}
