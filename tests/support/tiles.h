/* tiles.h - VDPBF16PS, TDPBF16PS with the tile registers, and BFMMLA in C, bit for bit the instructions
   (but for the payload of a NaN), as test_tiles shows where they are. With AMPI_TILES_MODEL defined as
   this file, amp.h's tiers avx512, avx512_bf16, amx, neon and neon_bf16 work on any little-endian
   machine: their code is compiled as it stands, with each instruction in C in its place. */

#ifndef TILES_H_INCLUDED
#define TILES_H_INCLUDED

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float    tiles_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static inline uint32_t tiles_bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }

#ifdef __MINGW32__ /* whose own is a unit off in one of eight cases */
/* The product is exact in a double; the sum is rounded to odd there (its last bit says that something
   is missing), so that rounding to a float is the only rounding that counts. */
static float tiles_fmaf(float a, float b, float c) {
    const double p = (double)a * (double)b, s = p + (double)c, part = s - p;
    const double missing = (p - (s - part)) + ((double)c - part); /* NaN beside infinities */
    uint64_t     u;
    double       odd;
    memcpy(&u, &s, 8);
    if ((missing > 0.0 || missing < 0.0) && !(u & 1u)) u = (missing > 0.0) == (s > 0.0) ? u + 1 : u - 1;
    memcpy(&odd, &u, 8);
    return (float)odd;
}
#else
/* Through a pointer that is read each time, so that no flag makes anything else of it. */
static float (*volatile const tiles_fmaf)(float, float, float) = fmaf;
#endif

static inline float tiles_flushed(float x) {
    const uint32_t u = tiles_bits(x);
    return u & 0x7f800000u ? x : tiles_float(u & 0x80000000u);
}

/* VCVTNEPS2BF16: to nearest even, and 0 of a subnormal. */
static inline uint32_t tiles_bf16(float x) {
    const uint32_t u = tiles_bits(tiles_flushed(x));
    if ((u & 0x7fffffffu) > 0x7f800000u) return u >> 16 | 0x40u;
    return (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}

/* The bf16 that is cut off x: the nearest, but finite if x is. */
static inline uint32_t tiles_cut(float x) {
    const uint32_t h = tiles_bf16(x);
    return (h & 0x7fffu) == 0x7f80u && (tiles_bits(x) & 0x7f800000u) != 0x7f800000u ? h - 1 : h;
}

/* An FMA to nearest even. Operands and results below 2^-126 become zero; a result is judged after
   rounding as if exponents had no limit, so that 2^-126 - 2^-151 and more is normal. */
static inline float tiles_fma(float a, float b, float c) {
    float r;
    a = tiles_flushed(a);
    b = tiles_flushed(b);
    c = tiles_flushed(c);
    r = tiles_fmaf(a, b, c);
    if ((tiles_bits(r) & 0x7fffffffu) <= 0x00800000u &&
        fabs((double)a * (double)b + (double)c) < 1.17549431578982585e-38)
        return tiles_float(tiles_bits(r) & 0x80000000u);
    return r;
}

/* VDPBF16PS on a lane: c + odd, then + even. */
static inline float tiles_pair(float c, uint32_t a, uint32_t b) {
    c = tiles_fma(tiles_float(a & 0xffff0000u), tiles_float(b & 0xffff0000u), c);
    return tiles_fma(tiles_float(a << 16), tiles_float(b << 16), c);
}

/* c + (even + odd): chains over the even and the odd of 32 k. Word i of b lies i * stride on. */
static inline float tiles_dot(float c, const uint32_t *a, const uint32_t *b, size_t stride) {
    float even = 0.0f, odd = 0.0f;
    int   i;
    for (i = 0; i < 16; i++, b += stride) {
        even = tiles_fma(tiles_float(a[i] << 16), tiles_float(*b << 16), even);
        odd  = tiles_fma(tiles_float(a[i] & 0xffff0000u), tiles_float(*b & 0xffff0000u), odd);
    }
    return tiles_fma(c, 1.0f, tiles_fma(even, 1.0f, odd));
}

/* BFMMLA, in integers, as Arm's pseudocode has it (BFMatMulAdd with FPCR.EBF 0). A product and a sum
   are each rounded to odd: cut off, and the last bit is 1 if anything was. Before, what is below 2^-126
   becomes 0 with its sign, and 2^128 or more infinity; a subnormal operand is 0. There is one NaN. Of
   FPCR no other bit counts. */
enum { TILES_INF = 0x7f800000, TILES_NAN = 0x7fc00000 };
static inline uint32_t tiles_size_of(uint32_t u) { return u & 0x7fffffffu; }
static inline uint32_t tiles_packed(uint32_t sign, int e, uint32_t fraction) {
    return sign | (e < 1 ? 0u : e > 254 ? (uint32_t)TILES_INF : (uint32_t)e << 23 | fraction);
}

/* a * b, which lie in the upper halves of words: it is exact. */
static inline uint32_t tiles_product_odd(uint32_t a, uint32_t b) {
    const uint32_t sign = (a ^ b) & 0x80000000u, x = a >> 23 & 255u, y = b >> 23 & 255u;
    const uint32_t p = ((a >> 16 & 127u) + 128u) * ((b >> 16 & 127u) + 128u), top = p >> 15;
    if (tiles_size_of(a) > TILES_INF || tiles_size_of(b) > TILES_INF) return TILES_NAN;
    if (!x || !y) return x == 255 || y == 255 ? (uint32_t)TILES_NAN : sign;
    if (x == 255 || y == 255) return sign | TILES_INF;
    return tiles_packed(sign, (int)x + (int)y - 127 + (int)top, (p << 9 >> top) & 0x7fffffu);
}

/* a + b; of 0 and -0, and of what cancels, it is 0. */
static inline uint32_t tiles_sum_odd(uint32_t a, uint32_t b) {
    const uint32_t swap = tiles_size_of(a) < tiles_size_of(b), large = swap ? b : a, small = swap ? a : b;
    const uint32_t sign = large & 0x80000000u;
    int            e = (int)(large >> 23 & 255u);
    const int      d = e - (int)(small >> 23 & 255u);
    uint64_t       x, y;
    if (tiles_size_of(large) > TILES_INF) return TILES_NAN;
    if (e == 255) return tiles_size_of(small) == TILES_INF && a != b ? (uint32_t)TILES_NAN : large;
    if (!e) return a & b & 0x80000000u;
    if (e == d) return large; /* small is 0 */
    x = (uint64_t)((large & 0x7fffffu) + 0x800000u) << 38;
    y = (uint64_t)((small & 0x7fffffu) + 0x800000u) << 38;
    y = d > 62 ? 1 : y >> d | (y >> d << d != y);
    x = (a ^ b) >> 31 ? x - y : x + y;
    if (!x) return 0;
    for (e++; !(x >> 62); e--) x <<= 1;
    return tiles_packed(sign, e, ((uint32_t)(x >> 39) & 0x7fffffu) | ((x & 0x7fffffffffu) != 0));
}

/* An element of its result: c + (p0 + p1), then + (p2 + p3). Words are pairs of k. */
static inline float tiles_mmla(float c, const uint32_t *a, const uint32_t *b) {
    uint32_t s = tiles_bits(c);
    int      i;
    for (i = 0; i < 2; i++)
        s = tiles_sum_odd(s, tiles_sum_odd(tiles_product_odd(a[i] << 16, b[i] << 16),
                                           tiles_product_odd(a[i] & 0xffff0000u, b[i] & 0xffff0000u)));
    return tiles_float(s);
}

#endif

/* ------------------------------------------- in the place of the instructions, inside amp.h */

#if defined(AMPI_TILES_MODEL) && defined(AMP_IMPLEMENTATION) && defined(AMPI_V)

/* NEON, and AVX-512 F, BW and VL: vectors of AMPI_W floats or words, or of shorts. */

#ifndef TILES_FN
#define TILES_FN AMPI_HERE

/* Element i of a result R, from its operands, for n of them. */
#define TILES_EACH(R, name, parameters, n, element)                                            \
    TILES_FN R AMPI_(name) parameters {                                                        \
        R   r = {0};                                                                           \
        int i;                                                                                 \
        for (i = 0; i < n; i++) r[i] = element;                                                \
        return r;                                                                              \
    }
#if defined(__x86_64__) /* fmaf takes ten times as long */
__attribute__((target("fma"))) static void tiles_fmas(float *c, const float *a, const float *b, int n) {
    int i;
    for (i = 0; i < n; i++) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
}
#define TILES_HAS_FMA __builtin_cpu_supports("fma")
#else
#define TILES_HAS_FMA 0
#define tiles_fmas(c, a, b, n)
#endif
static inline void *tiles_aligned(void *p, size_t size) {
    if ((uintptr_t)p % size) abort(); /* the instruction faults */
    return p;
}
#endif

TILES_EACH(AMPI_U, least, (AMPI_U a, AMPI_U b), AMPI_W, a[i] < b[i] ? a[i] : b[i])
TILES_EACH(AMPI_U, most, (AMPI_U a, AMPI_U b), AMPI_W, a[i] > b[i] ? a[i] : b[i])
TILES_EACH(AMPI_(pairs), most_of, (AMPI_(pairs) a, AMPI_(pairs) b), 2 * AMPI_W, a[i] > b[i] ? a[i] : b[i])
TILES_FN AMPI_U AMPI_(most16)(AMPI_U x, AMPI_U y) {
    return (AMPI_U)AMPI_(most_of)((AMPI_(pairs))x, (AMPI_(pairs))y);
}

/* Within lanes of four: VUNPCKLPS and its likes, of 16 bits VPUNPCKLWD; ZIP1 and ZIP2. */
TILES_EACH(AMPI_(pairs), zip16, (AMPI_(pairs) a, AMPI_(pairs) b, int at), 2 * AMPI_W,
           (i % 2 ? b : a)[i / 8 * 8 + i % 8 / 2 + at])
TILES_FN AMPI_V AMPI_(low16)(AMPI_V a, AMPI_V b) {
    return (AMPI_V)AMPI_(zip16)((AMPI_(pairs))a, (AMPI_(pairs))b, 0);
}
TILES_FN AMPI_V AMPI_(high16)(AMPI_V a, AMPI_V b) {
    return (AMPI_V)AMPI_(zip16)((AMPI_(pairs))a, (AMPI_(pairs))b, 4);
}
TILES_EACH(AMPI_V, low, (AMPI_V a, AMPI_V b), AMPI_W, (i % 2 ? b : a)[i / 4 * 4 + i % 4 / 2])
TILES_EACH(AMPI_V, high, (AMPI_V a, AMPI_V b), AMPI_W, (i % 2 ? b : a)[i / 4 * 4 + i % 4 / 2 + 2])
TILES_EACH(AMPI_V, low2, (AMPI_V a, AMPI_V b), AMPI_W, (i % 4 / 2 ? b : a)[i / 4 * 4 + i % 2])
TILES_EACH(AMPI_V, high2, (AMPI_V a, AMPI_V b), AMPI_W, (i % 4 / 2 ? b : a)[i / 4 * 4 + i % 2 + 2])
TILES_FN uint32_t AMPI_(largest16)(AMPI_U x) {
    uint32_t low = 0, high = 0;
    int      i;
    for (i = 0; i < AMPI_W; i++) {
        low  = (x[i] & 0xffffu) > low ? x[i] & 0xffffu : low;
        high = x[i] >> 16 > high ? x[i] >> 16 : high;
    }
    return high << 16 | low;
}

/* Arithmetic and conversions: amp.h's in plain C, which all 2^32 numbers were compared with. */
TILES_EACH(AMPI_V, sqrt, (AMPI_V a), AMPI_W, ampi_sqrt(a[i]))
TILES_FN AMPI_V AMPI_(fma)(AMPI_V a, AMPI_V b, AMPI_V c) {
    int i;
    if (TILES_HAS_FMA) tiles_fmas((float *)&c, (const float *)&a, (const float *)&b, AMPI_W);
    else for (i = 0; i < AMPI_W; i++) c[i] = tiles_fmaf(a[i], b[i], c[i]);
    return c;
}
TILES_EACH(AMPI_U, from_16, (AMPI_(shorts) a), AMPI_W, a[i])
TILES_EACH(AMPI_(shorts), lower16, (AMPI_U a), AMPI_W, (uint16_t)a[i])
TILES_EACH(AMPI_V, from_f16, (AMPI_(shorts) a), AMPI_W, ampi_f32_from_bits(ampi_f32_from_f16(a[i])))
TILES_EACH(AMPI_(shorts), f16, (AMPI_V a), AMPI_W, ampi_f16_from_f32(ampi_bits_of_f32(a[i])))
TILES_FN void AMPI_(done)(void) {}

/* Memory: AVX-512's writes around the cache are aligned. */
TILES_EACH(AMPI_U, get8, (const void *p, size_t at), AMPI_W, ((const uint8_t *)p)[at + (size_t)i])
TILES_FN void AMPI_(put8)(void *p, size_t at, AMPI_U x) {
    int i;
    for (i = 0; i < AMPI_W; i++) ((uint8_t *)p)[at + (size_t)i] = (uint8_t)x[i];
}
TILES_FN void AMPI_(around)(void *p, size_t i, AMPI_V x) {
    memcpy(tiles_aligned((char *)p + 4 * i, AMPI_W == 16 ? 64 : 1), &x, sizeof x);
}
TILES_FN void AMPI_(around16)(void *p, size_t i, AMPI_(shorts) x) {
    memcpy(tiles_aligned((char *)p + 2 * i, AMPI_W == 16 ? 32 : 1), &x, sizeof x);
}

#if AMPI_W == 4 /* NEON alone, and BFMMLA and what goes with it */

TILES_EACH(AMPI_U, choose, (AMPI_U a, AMPI_U b, AMPI_U x, AMPI_U y), 4, a[i] > b[i] ? x[i] : y[i])

TILES_FN ampi_shorts_neon ampi_nearest_mmla(ampi_floats_neon x) { /* BFCVTN */
    ampi_shorts_neon r = {0};
    int              i;
    for (i = 0; i < 4; i++) r[i] = amp_f32_to_bf16(x[i]).bits;
    return r;
}
TILES_FN ampi_floats_neon ampi_add_mmla(ampi_floats_neon s, ampi_floats_neon a, ampi_floats_neon b) {
    const ampi_words_neon u = (ampi_words_neon)a, v = (ampi_words_neon)b;
    int                   i;
    for (i = 0; i < 4; i++) {
        const uint32_t x[2] = {u[i / 2 * 2], u[i / 2 * 2 + 1]}, y[2] = {v[i % 2 * 2], v[i % 2 * 2 + 1]};
        s[i] = tiles_mmla(s[i], x, y);
    }
    return s;
}
TILES_FN ampi_floats_neon ampi_join_mmla(ampi_shorts_neon a, ampi_shorts_neon b) {
    ampi_floats_neon r;
    memcpy(&r, &a, 8);
    memcpy((char *)&r + 8, &b, 8);
    return r;
}

#else /* AVX-512 alone */

typedef ampi_floats_avx512 tiles_floats;
typedef ampi_words_avx512  tiles_words;
typedef ampi_pairs_avx512  tiles_pairs;
typedef ampi_shorts_avx512 tiles_shorts;

/* Lanes of both: VSHUFF32X4. */
TILES_EACH(tiles_floats, even, (tiles_floats a, tiles_floats b), 16,
           (i / 8 ? b : a)[i % 8 / 4 * 8 + i % 4])
TILES_EACH(tiles_floats, odd, (tiles_floats a, tiles_floats b), 16,
           (i / 8 ? b : a)[i % 8 / 4 * 8 + 4 + i % 4])

/* Masks: bit i is of element i. */
TILES_FN uint16_t ampi_mask_above_avx512(tiles_words a, tiles_words b) {
    uint32_t mask = 0;
    int      i;
    for (i = 0; i < 16; i++) mask |= (uint32_t)((int32_t)a[i] > (int32_t)b[i]) << i;
    return (uint16_t)mask;
}
TILES_EACH(tiles_words, blend, (uint16_t mask, tiles_words x, tiles_words y), 16,
           mask >> i & 1 ? x[i] : y[i])
TILES_FN uint32_t ampi_mask_zeros_avx512(tiles_words a) {
    uint32_t mask = 0;
    int      i;
    for (i = 0; i < 16; i++) mask |= (uint32_t)(a[i] == 0) << i;
    return mask;
}
TILES_FN uint32_t ampi_mask_zeros16_avx512(tiles_words x) {
    const tiles_pairs a = (tiles_pairs)x;
    uint32_t          mask = 0;
    int               i;
    for (i = 0; i < 32; i++) mask |= (uint32_t)(a[i] == 0) << i;
    return mask;
}

TILES_FN tiles_words ampi_or_nan_avx512(tiles_words u, tiles_floats x) { /* VFIXUPIMMPS of 0x22 */
    const tiles_words v = (tiles_words)x;
    int               i;
    for (i = 0; i < 16; i++)
        if ((v[i] & 0x7fffffffu) > AMPI_F32_INF) u[i] = v[i] | 0x400000u;
    return u;
}

/* What no mask reads or writes may not be there. */
static inline size_t tiles_few(size_t n) { return n < 16 ? n : 16; }
TILES_FN tiles_floats ampi_few_f32_avx512(const void *p, size_t n) {
    tiles_floats x = {0};
    memcpy(&x, p, tiles_few(n) * 4);
    return x;
}
TILES_FN tiles_shorts ampi_few_shorts_avx512(const void *p, size_t n) {
    tiles_shorts x = {0};
    memcpy(&x, p, tiles_few(n) * 2);
    return x;
}
TILES_FN void ampi_put_few_f32_avx512(void *p, size_t n, tiles_floats x) {
    memcpy(p, &x, tiles_few(n) * 4);
}
TILES_FN void ampi_put_few_16_avx512(void *p, size_t n, tiles_shorts x) {
    memcpy(p, &x, tiles_few(n) * 2);
}

/* AVX512_BF16, and what of AVX-512 goes with it. */

TILES_FN tiles_words ampi_round_pairs(tiles_floats x, tiles_floats y) { /* VCVTNE2PS2BF16 */
    tiles_pairs r;
    int         i;
    for (i = 0; i < 32; i++) r[i] = (uint16_t)tiles_bf16(i < 16 ? x[i] : y[i - 16]);
    return (tiles_words)r;
}
TILES_FN tiles_shorts ampi_nearest_pairs(tiles_floats x) { /* VCVTNEPS2BF16 */
    tiles_shorts r;
    int          i;
    for (i = 0; i < 16; i++) r[i] = (uint16_t)tiles_bf16(x[i]);
    return r;
}
/* c + a * b of bf16 numbers, which lie in the upper halves of words, four at a time. Their product is
   a float, and the sum is rounded once: it is tiles_fma's, unless a number is subnormal or becomes so,
   or is infinite. Then odd is no longer 0. */
typedef float    tiles_four __attribute__((vector_size(16)));
typedef uint32_t tiles_fours __attribute__((vector_size(16)));
AMPI_HOST tiles_four tiles_product(tiles_four a, tiles_four b) { AMPI_RETURN(tiles_four, a * b); }
AMPI_HOST tiles_four tiles_sum(tiles_four a, tiles_four b) { AMPI_RETURN(tiles_four, a + b); }
static inline tiles_fours tiles_equal(tiles_fours u, uint32_t bits, uint32_t value) {
    return (tiles_fours)((u & bits) == value);
}
static inline tiles_fours tiles_subnormal(tiles_fours u) {
    return tiles_equal(u, 0x7f800000u, 0) & ~tiles_equal(u, 0x7fffffffu, 0);
}
static inline tiles_four tiles_add(tiles_four c, tiles_fours a, tiles_fours b, tiles_fours *odd) {
    const tiles_four  p = tiles_product((tiles_four)a, (tiles_four)b), s = tiles_sum(p, c);
    const tiles_fours none = tiles_equal(a, 0x7fffffffu, 0) | tiles_equal(b, 0x7fffffffu, 0);
    *odd |= tiles_subnormal(a) | tiles_subnormal(b) | tiles_subnormal((tiles_fours)c);
    *odd |= tiles_subnormal((tiles_fours)s) | tiles_equal((tiles_fours)s, 0x7f800000u, 0x7f800000u);
    *odd |= tiles_equal((tiles_fours)p, 0x7f800000u, 0) & ~none;
    return s;
}
static inline int tiles_any(tiles_fours u) { return (u[0] | u[1] | u[2] | u[3]) != 0; }

TILES_FN tiles_floats ampi_fma_pairs(tiles_floats a, tiles_floats b, tiles_floats c) {
    uint32_t u[16], v[16];
    float    s[16];
    int      i, j;
    memcpy(u, &a, 64), memcpy(v, &b, 64), memcpy(s, &c, 64);
    for (i = 0; i < 16; i += 4) {
        tiles_fours x, y, odd = {0};
        tiles_four  z;
        memcpy(&x, u + i, 16), memcpy(&y, v + i, 16), memcpy(&z, s + i, 16);
        z = tiles_add(z, x & 0xffff0000u, y & 0xffff0000u, &odd);
        z = tiles_add(z, x << 16, y << 16, &odd);
        if (!tiles_any(odd)) memcpy(s + i, &z, 16);
        else for (j = i; j < i + 4; j++) s[j] = tiles_pair(s[j], u[j], v[j]);
    }
    memcpy(&c, s, 64);
    return c;
}
TILES_FN tiles_words ampi_join_pairs(tiles_shorts x, tiles_shorts y) {
    tiles_words r;
    memcpy(&r, &x, 32);
    memcpy((char *)&r + 32, &y, 32);
    return r;
}
TILES_FN tiles_words ampi_permute_pairs(tiles_words order, tiles_words x) { /* VPERMW */
    const tiles_pairs o = (tiles_pairs)order, u = (tiles_pairs)x;
    tiles_pairs       r;
    int               i;
    for (i = 0; i < 32; i++) r[i] = u[o[i] % 32];
    return (tiles_words)r;
}
TILES_FN tiles_words ampi_uppers_pairs(tiles_words order, tiles_words x) { /* of words; lower ones: 0 */
    return ampi_permute_pairs(order, x) & 0xffff0000u;
}
TILES_FN tiles_floats ampi_lanes_pairs(const char *x, size_t step) {
    tiles_floats r;
    int          i;
    for (i = 0; i < 4; i++) memcpy((char *)&r + 16 * i, x + (size_t)i * step, 16);
    return r;
}
TILES_FN int ampi_any_subnormal(tiles_floats x, tiles_floats y) {
    const tiles_words u = (tiles_words)x, v = (tiles_words)y;
    int               i, any = 0;
    for (i = 0; i < 16; i++)
        any |= (!(u[i] & 0x7f800000u) && u[i] << 1) || (!(v[i] & 0x7f800000u) && v[i] << 1);
    return any;
}
TILES_FN void ampi_put_pairs_masked(void *p, uint32_t mask, tiles_words x) {
    const tiles_pairs u = (tiles_pairs)x;
    int               i;
    for (i = 0; i < 32; i++)
        if (mask >> i & 1) ampi_store_u16(p, (size_t)i, u[i]);
}

/* AMX. */

#if defined(_OPENMP)
#define TILES_LOCAL __thread /* registers */
#else
#define TILES_LOCAL
#endif

static TILES_LOCAL uint32_t tiles_register[8][16][16];
static TILES_LOCAL int      tiles_ready;
static int                  tiles_granted = 1, tiles_asked; /* what the system answers; how often */

/* Exponents, as they are stored, of the numbers of a register that are not 0. */
static TILES_LOCAL struct tiles_size { int least, most; } tiles_sizes[8];

static void tiles_copy(int t, void *p, size_t stride, int store) {
    int r, i, e;
    if (!tiles_ready) abort(); /* outside of begin and end */
    for (r = 0; r < 16; r++)
        if (store) memcpy((char *)p + (size_t)r * stride, tiles_register[t][r], 64);
        else memcpy(tiles_register[t][r], (char *)p + (size_t)r * stride, 64);
    if (store || t < 4) return;
    tiles_sizes[t].least = 255, tiles_sizes[t].most = 0;
    for (r = 0; r < 16; r++)
        for (i = 0; i < 32; i++) {
            const uint32_t u = tiles_register[t][r][i / 2] >> i % 2 * 16;
            if (!(u & 0x7fffu)) continue;
            e = (int)(u >> 7 & 255u);
            if (e < tiles_sizes[t].least) tiles_sizes[t].least = e ? e : -255; /* subnormal */
            if (e > tiles_sizes[t].most) tiles_sizes[t].most = e < 255 ? e : 510;
        }
}

/* Where neither factors nor what they can become are subnormal or infinite, products are floats, and
   sums are rounded once, all lanes at once. The rest is by definition. */
static void tiles_multiply(int c, int a, int b) {
    const struct tiles_size *x = &tiles_sizes[a], *y = &tiles_sizes[b];
    const int  fine = x->least + y->least >= 127 + 24 && x->most + y->most <= 2 * 127 + 100;
    tiles_four even[16][4], odd[16][4];
    int        i, j, k, q;
    if (!tiles_ready) abort();
    for (k = 0; k < 16; k++)
        for (q = 0; q < 4; q++) {
            tiles_fours u;
            memcpy(&u, tiles_register[b][k] + 4 * q, 16);
            even[k][q] = (tiles_four)(u << 16);
            odd[k][q]  = (tiles_four)(u & 0xffff0000u);
        }
    for (i = 0; i < 16; i++) {
        tiles_four sum[2][4] = {{{0}}};
        for (k = 0; k < 16; k++) {
            const float      u = tiles_float(tiles_register[a][i][k] << 16);
            const float      v = tiles_float(tiles_register[a][i][k] & 0xffff0000u);
            const tiles_four e = {u, u, u, u}, o = {v, v, v, v};
            for (q = 0; fine && q < 4; q++) {
                sum[0][q] = tiles_sum(sum[0][q], tiles_product(e, even[k][q]));
                sum[1][q] = tiles_sum(sum[1][q], tiles_product(o, odd[k][q]));
            }
        }
        for (q = 0; q < 4; q++) {
            uint32_t   *sums = tiles_register[c][i] + 4 * q;
            tiles_four  s;
            tiles_fours bad;
            memcpy(&s, sums, 16);
            bad = tiles_subnormal((tiles_fours)s);
            s   = tiles_sum(s, tiles_sum(sum[0][q], sum[1][q]));
            bad |= tiles_subnormal((tiles_fours)s) |
                   tiles_equal((tiles_fours)s, 0x7f800000u, 0x7f800000u);
            for (j = 0; (!fine || tiles_any(bad)) && j < 4; j++)
                s[j] = tiles_dot(tiles_float(sums[j]), tiles_register[a][i],
                                 &tiles_register[b][0][4 * q + j], 16);
            memcpy(sums, &s, 16);
        }
    }
}

#define AMPI_TILE_LOAD(T, P, S)  tiles_copy(T, (void *)(uintptr_t)(P), S, 0)
#define AMPI_TILE_PASS(T, P, S)  tiles_copy(T, (void *)(uintptr_t)(P), S, 0)
#define AMPI_TILE_STORE(T, P, S) tiles_copy(T, (void *)(uintptr_t)(P), S, 1)
#define AMPI_TILE_DOT(C, A, B)   tiles_multiply(C, A, B)
#define AMPI_TILE_ZERO(T)        memset(tiles_register[T], 0, sizeof tiles_register[T])

static void ampi_use_tiles(int on) { /* registers start as NaN: what is not set shows */
    if (on == tiles_ready) abort(); /* a thread that keeps its tiles, or has none to give back */
    memset(tiles_register, 0xff, sizeof tiles_register);
    tiles_ready = on;
}
static int ampi_tiles_ask(void) {
    tiles_asked++;
    return tiles_granted;
}
#endif
#endif
