/* tiles.h - TDPBF16PS and the tile registers in C. The model is bit for bit the instruction (but
   for the payload of a NaN), as test_gemm shows where there is one. With AMPI_TILES_MODEL defined as
   this file, amp.h multiplies with it instead, on any machine: test_tiles. */

#ifndef TILES_H_INCLUDED
#define TILES_H_INCLUDED

#include <math.h>
#include <stdint.h>
#include <string.h>

static float    tiles_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static uint32_t tiles_bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }

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

static float tiles_flushed(float x) {
    const uint32_t u = tiles_bits(x);
    return u & 0x7f800000u ? x : tiles_float(u & 0x80000000u);
}

/* The bf16 that is cut off x: the nearest, but finite if x is, and 0 of a subnormal. */
static uint32_t tiles_cut(float x) {
    const uint32_t u = tiles_bits(tiles_flushed(x)), h = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
    if ((u & 0x7fffffffu) > 0x7f800000u) return u >> 16 | 0x40u;
    return (h & 0x7fffu) == 0x7f80u && (u & 0x7f800000u) != 0x7f800000u ? h - 1 : h;
}

/* An FMA to nearest even. Operands and results below 2^-126 become zero; a result is judged after
   rounding as if exponents had no limit, so that 2^-126 - 2^-151 and more is normal. */
static float tiles_fma(float a, float b, float c) {
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

/* c + (even + odd): chains over the even and the odd of 32 k. Word i of b lies i * stride on. */
static float tiles_dot(float c, const uint32_t *a, const uint32_t *b, size_t stride) {
    float even = 0.0f, odd = 0.0f;
    int   i;
    for (i = 0; i < 16; i++, b += stride) {
        even = tiles_fma(tiles_float(a[i] << 16), tiles_float(*b << 16), even);
        odd  = tiles_fma(tiles_float(a[i] & 0xffff0000u), tiles_float(*b & 0xffff0000u), odd);
    }
    return tiles_fma(c, 1.0f, tiles_fma(even, 1.0f, odd));
}

#endif

/* ------------------------------------------- in the place of the instructions, inside amp.h */

#if defined(AMPI_TILES_MODEL) && defined(AMP_IMPLEMENTATION) && !defined(TILES_IN_PLACE)
#define TILES_IN_PLACE

#if defined(_OPENMP)
#define TILES_LOCAL __thread /* registers */
#else
#define TILES_LOCAL
#endif

static TILES_LOCAL uint32_t tiles_register[8][16][16];
static TILES_LOCAL int      tiles_ready;
static int                  tiles_granted = 1, tiles_asked; /* what the system answers; how often */
static int                  tiles_pack_in_c = 1;            /* 0: by AVX-512, if it is there      */

static void tiles_copy(int t, void *p, size_t stride, int store) {
    int r;
    if (!tiles_ready) abort(); /* outside of begin and end */
    for (r = 0; r < 16; r++)
        if (store) memcpy((char *)p + (size_t)r * stride, tiles_register[t][r], 64);
        else memcpy(tiles_register[t][r], (char *)p + (size_t)r * stride, 64);
}

static void tiles_multiply(int c, int a, int b) {
    int i, j;
    if (!tiles_ready) abort();
    for (i = 0; i < 16; i++)
        for (j = 0; j < 16; j++)
            tiles_register[c][i][j] =
                tiles_bits(tiles_dot(tiles_float(tiles_register[c][i][j]), tiles_register[a][i],
                                     &tiles_register[b][0][j], 16));
}

#define AMPI_TILE_LOAD(T, P, S)  tiles_copy(T, (void *)(uintptr_t)(P), S, 0)
#define AMPI_TILE_PASS(T, P, S)  tiles_copy(T, (void *)(uintptr_t)(P), S, 0)
#define AMPI_TILE_STORE(T, P, S) tiles_copy(T, (void *)(uintptr_t)(P), S, 1)
#define AMPI_TILE_DOT(C, A, B)   tiles_multiply(C, A, B)
#define AMPI_TILE_ZERO(T)        memset(tiles_register[T], 0, sizeof tiles_register[T])

static void ampi_use_tiles(int on) { /* registers start as NaN: what is not set shows */
    memset(tiles_register, 0xff, sizeof tiles_register);
    tiles_ready = on;
}
static int ampi_tiles_ask(void) {
    tiles_asked++;
    return tiles_granted;
}

/* Element i, as it counts, as bits of fp32. */
static uint32_t tiles_load(const ampi_operand *x, size_t i) {
    uint32_t u = ampi_load(x->x, x->type, i), rounded;
    if (x->as == x->type) return u;
    ampi_store(&rounded, x->as, 0, u);
    return ampi_load(&rounded, x->as, 0);
}

/* Packing, in the layout of amp.h, from its definition: a word is elements 2 w and 2 w + 1 along k,
   the first in its lower half; of fp16, what bf16 leaves over follows as a second part. */
static void tiles_pack(uint32_t *dst, size_t width, int of_b, const ampi_operand *x, int parts,
                       size_t rows, size_t ks) {
    size_t r, k;
    int    p;
#if AMPI_PAIRS
    if (!tiles_pack_in_c) {
        ampi_pack_pairs_avx512(dst, width, of_b, x, parts, rows, ks);
        return;
    }
#endif
    for (r = 0; r < width; r++)
        for (k = 0; k < 32; k++) {
            const size_t w = of_b ? k / 2 * width + r : r * 16 + k / 2;
            uint32_t     u = r < rows && k < ks ? tiles_load(x, r * x->rs + k * x->cs) : 0;
            for (p = 0; p < parts; p++) {
                uint32_t      *word = dst + w + (size_t)p * width * 16;
                const uint32_t h    = tiles_cut(tiles_float(u));
                *word = k % 2 ? *word | h << 16 : h;
                u = (u & 0x7f800000u) == 0x7f800000u
                        ? 0 : tiles_bits(tiles_fmaf(tiles_float(h << 16), -1.0f, tiles_float(u)));
            }
        }
}
#endif
