/* clock.h - seconds, and quantiles of a run's. Wants _POSIX_C_SOURCE 200809L in front. */

#ifndef CLOCK_H_INCLUDED
#define CLOCK_H_INCLUDED

#include <stdlib.h>
#include <time.h>

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

#endif
