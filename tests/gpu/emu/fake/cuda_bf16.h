/* cuda_bf16.h - of CUDA 13.0's __nv_bfloat16, what kernels need that store in it and compute in
   fp32. */

#ifndef FAKE_CUDA_BF16_H
#define FAKE_CUDA_BF16_H

#include <string.h>

struct __nv_bfloat16_raw { unsigned short x; };
struct __nv_bfloat16 {
    unsigned short bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(__nv_bfloat16_raw raw) : bits(raw.x) {}
    operator __nv_bfloat16_raw() const { const __nv_bfloat16_raw raw = {bits}; return raw; }
};

static inline float __bfloat162float(__nv_bfloat16 h) {
    const unsigned bits = (unsigned)h.bits << 16;
    float          x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline __nv_bfloat16 __float2bfloat16_rn(float x) { /* to nearest even */
    __nv_bfloat16_raw raw;
    unsigned          bits;
    memcpy(&bits, &x, sizeof bits);
    raw.x = (unsigned short)(x != x ? 0x7fffu : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    return raw;
}

struct __nv_bfloat162 { __nv_bfloat16 x, y; };
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
    const __nv_bfloat162 two = {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
    return two;
}

#endif
