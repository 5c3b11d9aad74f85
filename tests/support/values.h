/* values.h - numbers of the three types in memory, as floats and as bits. Included after amp.h. */

#ifndef VALUES_H_INCLUDED
#define VALUES_H_INCLUDED

#include <stdint.h>
#include <string.h>

static inline size_t size_of(amp_dtype type) { return type == AMP_F32 ? 4 : 2; }

static inline uint32_t load_bits(const void *base, amp_dtype type, size_t i) {
    const unsigned char *at = (const unsigned char *)base + i * size_of(type);
    uint32_t             u;
    uint16_t             h;
    if (type == AMP_F32) {
        memcpy(&u, at, 4);
        return u;
    }
    memcpy(&h, at, 2);
    return h;
}

static inline void store_bits(void *base, amp_dtype type, size_t i, uint32_t u) {
    const uint16_t h  = (uint16_t)u;
    unsigned char *at = (unsigned char *)base + i * size_of(type);
    if (type == AMP_F32) memcpy(at, &u, 4);
    else memcpy(at, &h, 2);
}

static inline float load(const void *base, amp_dtype type, size_t i) {
    const unsigned char *at = (const unsigned char *)base + i * size_of(type);
    amp_f16              h;
    amp_bf16             b;
    float                x;
    switch (type) {
    case AMP_F16: memcpy(&h, at, 2); return amp_f16_to_f32(h);
    case AMP_BF16: memcpy(&b, at, 2); return amp_bf16_to_f32(b);
    default: memcpy(&x, at, 4); return x;
    }
}

static inline void store(void *base, amp_dtype type, size_t i, float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    if (type == AMP_F16) u = amp_f32_to_f16(x).bits;
    if (type == AMP_BF16) u = amp_f32_to_bf16(x).bits;
    store_bits(base, type, i, u);
}

#endif
