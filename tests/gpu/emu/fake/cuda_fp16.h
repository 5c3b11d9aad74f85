/* cuda_fp16.h - of CUDA 13.0's __half, what kernels need that store in it and compute in fp32. */

#ifndef FAKE_CUDA_FP16_H
#define FAKE_CUDA_FP16_H

#include <math.h>
#include <string.h>

struct __half_raw { unsigned short x; };
struct __half {
    unsigned short bits;
    __half() = default;
    __half(__half_raw raw) : bits(raw.x) {}
    operator __half_raw() const { const __half_raw raw = {bits}; return raw; }
};

static inline float __half2float(__half h) {
    const int      exponent = h.bits >> 10 & 31;
    const unsigned fraction = h.bits & 1023;
    const float    size     = exponent == 31 ? (fraction != 0 ? NAN : INFINITY)
                              : exponent == 0 ? ldexpf((float)fraction, -24)
                                              : ldexpf((float)(fraction + 1024), exponent - 25);
    return h.bits & 0x8000 ? -size : size;
}

static inline __half __float2half_rn(float x) { /* to nearest even */
    const float size = fabsf(x);
    __half_raw  raw;
    unsigned    bits;
    memcpy(&bits, &x, sizeof bits);
    const unsigned sign    = bits >> 16 & 0x8000;
    const unsigned rounded = (bits & 0x7fffffffu) + 0xfff + (bits >> 13 & 1);
    if (x != x) raw.x = 0x7fff;
    else if (size >= 65520.0f) raw.x = (unsigned short)(sign | 0x7c00);
    else if (size < 6.103515625e-5f) /* a subnormal: the whole number of 2^-24 that is nearest */
        raw.x = (unsigned short)(sign | (unsigned)nearbyintf(size * 16777216.0f));
    else raw.x = (unsigned short)(sign | ((rounded >> 13) - (112u << 10)));
    return raw;
}

struct __half2 { __half x, y; };
static inline __half2 __floats2half2_rn(float x, float y) {
    const __half2 two = {__float2half_rn(x), __float2half_rn(y)};
    return two;
}

#endif
