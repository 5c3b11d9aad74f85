/* Law 21: in members of the control block and the report, values that are given by place are found by name.
   compile.sh swaps the names of two neighbours in a copy of amp.h, and this does not compile any more, or fails. */
#define AMP_KERNELS /* the core: its control block */
#include "amp.h"

static int failed;

static void is(double x, double wanted) {
    if (x < wanted || x > wanted) failed = 1;
}

static void control(void) {
    const amp_scaler   now  = {1.0f, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0.0, 0.0, 0, 0, 0, 0, 0.0f, 0.0f, 0u, 0u, 0.0, {0u}};
    const amp_scaler   next = {2.0f, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0u, 0.0, 0.0, 0, 0, 0, 0, 0.0f, 0.0f, 0u, 0u, 0.0, {0u}};
    const amp_gate     g = {1u, 2.0f, 3u, {0u}};
    const ampi_rates   r = {1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f, 7.0f, 8.0f, 9.0f, 10.0f, 11.0f, 12u};
    const ampi_control c = {g,    4.0, 5.0f,     6u,   7u,         8u,  9u,   10.0, 11.0, r,
                            12u,  13u, 14.0, {15u, 15u}, 16u, {17u, 17u}, 18u, now, next, 19u, 20u, 21u, 22u};
    is(g.skip, 1);
    is((double)g.inv_scale, 2);
    is((double)g.step, 3);
    is((double)r.eps, 1);
    is((double)r.momentum, 2);
    is((double)r.max_norm, 3);
    is((double)r.lr, 4);
    is((double)r.bias1, 5);
    is((double)r.bias2, 6);
    is((double)r.beta1, 7);
    is((double)r.beta1_rest, 8);
    is((double)r.beta2, 9);
    is((double)r.beta2_rest, 10);
    is((double)r.weight_decay, 11);
    is(r.nesterov, 12);
    is((double)c.gate.step, 3);
    is(c.norm, 4);
    is((double)c.clip_factor, 5);
    is(c.found_inf, 6);
    is(c.did_step, 7);
    is(c.nesterov, 8);
    is((double)c.skipped, 9);
    is(c.beta1, 10);
    is(c.beta2, 11);
    is((double)c.missed_updates, 12);
    is((double)c.skipped_in_a_row, 13);
    is(c.norm2, 14);
    is(c.maxima[1], 15);
    is(c.arrived, 16);
    is(c.seen[1], 17);
    is((double)c.seen_updates, 18);
    is((double)c.scaler.scale, 1);
    is((double)c.next.scale, 2);
    is(c.moves, 19);
    is((double)c.seed, 20);
    is((double)c.f16_overflows, 21);
    is(c.huge, 22);
}

static void report(void) {
    amp_scaler s = {0};
    s.scale      = 25.0f;
    const amp_report q = {1u, 2u, 3u, 4u, 5u, 6u, 7.0, 8.0f, 9u, 10, 11, 12u, 13, 14u, 15u, 16u, 17u, 18u, 19u, 20u, 21u, 22u,
                          23u, 24u, s};
    is((double)q.iterations, 1);
    is((double)q.steps, 2);
    is((double)q.overflows, 3);
    is((double)q.asked, 4);
    is((double)q.growths, 5);
    is((double)q.backoffs, 6);
    is(q.norm, 7);
    is((double)q.loss_scale, 8);
    is(q.stuck, 9);
    is(q.headroom, 10);
    is(q.first_tensor, 11);
    is((double)q.first_iteration, 12);
    is(q.most_tensor, 13);
    is((double)q.most_overflows, 14);
    is((double)q.sampled, 15);
    is((double)q.grads, 16);
    is((double)q.f16_zero, 17);
    is((double)q.f16_small, 18);
    is((double)q.bf16_zero, 19);
    is((double)q.bf16_small, 20);
    is((double)q.updates, 21);
    is((double)q.lost, 22);
    is((double)q.nans, 23);
    is(q.fixed_scale, 24);
    is((double)q.scaler.scale, 25);
}

int main(void) {
    control();
    report();
    return failed;
}
