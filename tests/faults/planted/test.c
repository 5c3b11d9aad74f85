/* Checks that cannot fail: dead.sh has to find each line that says so, and no other. Nobody compiles this. */
TEST(some, "checks that cannot fail, and two that can") {
    CHECK(1);                                           /* planted */
    CHECK(x == x);                                      /* planted */
    CHECK(s.scale == 2.0f && steps[1] >= (steps[1]));   /* planted */
    for (i = 0; i < 0; i++) CHECK(f(i) == 2);           /* planted */
    CHECK_EQ_INT(amp_optimizer_step(&opt, lr), (amp_optimizer_step(&opt, lr))); /* planted */
    CHECK_MEM(a, b, 0);                                 /* planted */
    CHECK(n = 3);                                       /* planted */
    CHECK(n == 3 || n == 4);
    CHECK_MEM(a, b, sizeof a);
}
