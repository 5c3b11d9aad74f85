/* clock.h - seconds, quantiles of a run's, and what ran. Wants _POSIX_C_SOURCE 200809L in front. */

#ifndef CLOCK_H_INCLUDED
#define CLOCK_H_INCLUDED

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* A figure of a call that was refused would be none. */
#define MUST(call) \
    do {                                                                               \
        if ((call) == AMP_OK) break;                                                   \
        fprintf(stderr, "%s:%d: %s is not AMP_OK\n", __FILE__, __LINE__, #call);       \
        exit(1);                                                                       \
    } while (0)

static double seconds_of(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(double *x, int count, double q) {
    qsort(x, (size_t)count, sizeof *x, by_value);
    return x[(int)(q * (count - 1) + 0.5)];
}

/* In front of figures: of which release, in which tier, on which processor, as Linux names it. */
static inline void print_machine(const char *release, const char *tier) {
    char  line[256], name[256] = "unknown";
    FILE *cpu = fopen("/proc/cpuinfo", "r");
    while (cpu && fgets(line, sizeof line, cpu))
        if (sscanf(line, "model name : %255[^\n]", name) == 1) break;
    if (cpu) fclose(cpu);
    printf("amp.h %s, tier %s, processor: %s\n", release, tier, name);
}

#endif
