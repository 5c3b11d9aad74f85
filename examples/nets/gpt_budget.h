/* gpt_budget.h - gpt --budget MiB: how many rows of each type fit into that memory, and how fast?

   A part of gpt.c that a trainer does not need, so it has its own file.                          */

#ifndef GPT_BUDGET_H
#define GPT_BUDGET_H

enum { BUDGET_STEPS = 9 };

static size_t memory_with(const options *o, const text *t, amp_dtype type, int batch) {
    static net n;
    options    with = *o;
    size_t     bytes = 0;
    with.batch = batch;
    net_init(&n, &with, t, type, 0);
    for (int i = 0; i < NUM_MEMORIES; i++) bytes += n.bytes[i];
    net_free(&n);
    return bytes;
}

/* The largest batch that fits: doubled until it does not, then by halves. */
static int largest_batch(const options *o, const text *t, amp_dtype type) {
    const size_t budget = (size_t)o->budget << 20, least = memory_with(o, t, type, 1);
    char         remedy[64];
    int          fits = 1, too_many = 2;
    sprintf(remedy, "give --budget %lu or more", (unsigned long)(least >> 20) + 1);
    if (least > budget) fail(2, "--budget", "one sequence does not fit", remedy);
    while (too_many <= MAX_BATCH && memory_with(o, t, type, too_many) <= budget) too_many *= 2;
    fits = too_many / 2;
    while (too_many - fits > 1) {
        const int batch = (fits + too_many) / 2;
        if (batch <= MAX_BATCH && memory_with(o, t, type, batch) <= budget) fits = batch;
        else too_many = batch;
    }
    return fits;
}

/* Tokens per second, by the median of a few steps. One network at a time: the budget is for one. */
static double speed_with(const options *o, const text *t, amp_dtype type, int batch) {
    static net n;
    options    with = *o;
    double     time[BUDGET_STEPS];
    with.batch = batch;
    net_init(&n, &with, t, type, 0);
    for (int i = 0; i < BUDGET_STEPS; i++) {
        const double start = seconds();
        train_step(&n);
        time[i] = seconds() - start;
    }
    net_free(&n);
    qsort(time, BUDGET_STEPS, sizeof *time, by_value);
    return batch * o->context / time[BUDGET_STEPS / 2];
}

static int show_budget(const options *o, const text *t) {
    double speed[3] = {0};
    int    batch[3] = {0};
    for (int v = 0; v < 3; v++)
        if (type_on(o, v)) batch[v] = largest_batch(o, t, (amp_dtype)v);
    printf("%s of width %d, %s; what fits into %d MiB; products by %s\n\n",
           counted((size_t)o->layers, "block"), o->width, counted((size_t)o->heads, "head"), o->budget,
           amp_cpu_tier());
    printf("%-6s %9s %8s %10s %10s\n", "", "sequences", "rows", "total MiB", "tokens/s");
    for (int v = 0; v < 3; v++) {
        if (!type_on(o, v)) continue;
        speed[v] = speed_with(o, t, (amp_dtype)v, batch[v]);
        printf("%-6s %9d %8d %10.3f %10.0f\n", type_names[v], batch[v], batch[v] * o->context,
               (double)memory_with(o, t, (amp_dtype)v, batch[v]) / 1048576.0, speed[v]);
        fflush(stdout);
    }
    puts(products_in(amp_cpu_tier()));
    if (o->dtype != ALL_TYPES) return 0; /* nothing to compare */
    printf("\nbudget gpt: %d MiB fp32 %d fp16 %d bf16 %d rows\n", o->budget, batch[0] * o->context,
           batch[1] * o->context, batch[2] * o->context);
    printf("budget gpt: fp32 %.0f fp16 %.0f bf16 %.0f tokens/s\n", speed[0], speed[1], speed[2]);
    return 0;
}

#endif /* GPT_BUDGET_H */
