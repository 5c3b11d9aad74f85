/* A host whose own code must be the same behind amp.h as without it: loops that an -Ofast compiler
   vectorizes, calls vector functions for, contracts, reorders or deletes. */
#ifdef BEHIND
#define AMP_IMPLEMENTATION
#include "amp.h"
#endif
#include <math.h>

void  host_call(float *x, int n);
float host_sum(const float *x, int n);
void  host_divide(float *x, float y, int n);
void  host_root(float *x, int n);
void  host_multiply_add(float *x, const float *y, const float *z, int n);
int   host_nan(const float *x, int n);
void  host_small(char *x, int n);

void host_call(float *x, int n) {
    for (int i = 0; i < n; i++) x[i] = tanhf(x[i]) * expf(-x[i]);
}
float host_sum(const float *x, int n) {
    float sum = 0.0f;
    for (int i = 0; i < n; i++) sum += x[i];
    return sum;
}
void host_divide(float *x, float y, int n) {
    for (int i = 0; i < n; i++) x[i] /= y;
}
void host_root(float *x, int n) {
    for (int i = 0; i < n; i++) x[i] = 1.0f / sqrtf(x[i]);
}
void host_multiply_add(float *x, const float *y, const float *z, int n) {
    for (int i = 0; i < n; i++) x[i] += y[i] * z[i];
}
int host_nan(const float *x, int n) {
    int count = 0;
    for (int i = 0; i < n; i++) count += isnan(x[i]) || x[i] != x[i];
    return count;
}
void host_small(char *x, int n) {
    for (int i = 0; i < n; i++) x[i] = (char)(x[i] * 3 + i);
}
