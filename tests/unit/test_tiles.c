/* test_tiles.c - products in tiles, in pairs and by BFMMLA, on any machine: each of their instructions is a model
   in C, and all around them is amp.h's own. Where the instructions are, they equal the model. */

#define _POSIX_C_SOURCE 200809L /* sigsetjmp in fp.h */
#define AMP_KERNELS /* the core: its conversions and operations, for the models */
#include "amp.h"
#include "../support/test.h"
#include "../support/fp.h"
#include "../support/gemm_args.h"
#include "../support/gemm_bits.h"

static void random_products(const char *tier, int rule) {
    const int times = rule == BITS_TILES ? 1 : 3; /* a quarter of them is all bf16 */
    const int count = times * (test_state.quick > 1 ? 20 : test_state.quick ? 80 : 1000);
    int       i;
    CHECK_EQ_INT(amp_cpu_force_tier(tier), AMP_OK);
    bits_most = 60;
    for (i = 0; i < count; i++)
        bits_one(rule, i % 40 == 7, i % 8 ? 2 : 0, i % 20 == 7 ? BITS_MEMORIES : 1, 50000);
    for (i = 0; i < count / 4; i++)
        bits_one(rule, BITS_STEPS + i % 3, 1 + i % 2, i % 5 == 3 ? BITS_MEMORIES : 1, 50000);
    CHECK_EQ_INT(strcmp(amp_cpu_tier(), tier), 0);
}

/* One random product, whole and in shares. */
static void one_shared(int big, size_t team) {
    amp_gemm_args  g    = bits_problem(big, 1);
    const size_t   size = amp_dtype_size(g.c_type), shift = bits_shift(&g, big, 0);
    const size_t   cn   = g.stride_c * (g.count - 1) + g.m * g.ldc;
    unsigned char *a = bits_matrix(g.lda * (g.trans_a ? g.k : g.m) * g.count, g.a_type, 0, 0);
    unsigned char *b = bits_matrix(g.ldb * (g.trans_b ? g.n : g.k) * g.count, g.b_type, 0, 0);
    unsigned char *c = bits_matrix(cn, g.c_type, 0, shift), *bias = bits_matrix(g.n, AMP_F32, 0, 0);
    unsigned char *old = (unsigned char *)malloc(cn * size);
    unsigned char *whole = (unsigned char *)malloc(cn * size);
    amp_backend    backend;
    memcpy(old, c, cn * size);
    g.a = a;
    g.b = b;
    g.c = c;
    if (bits_coin()) g.bias = bias;
    amp_cpu_backend(&backend);
    CHECK_EQ_INT(backend.functions->gemm_fn(&backend, &g), AMP_OK);
    memcpy(whole, c, cn * size);
    memcpy(c, old, cn * size);
    CHECK(white_gemm_shares(&g, team));
    if (memcmp(c, whole, cn * size) != 0) bits_fail(&g, "in shares", 0, 0, 0, (uint32_t)team);
    free(a);
    free(b);
    free(c - shift);
    free(bias);
    free(old);
    free(whole);
}

TEST(shares, "law 7: a product, or a batch, has the same bits for any number of threads, each in no more "
             "room than it asks for") {
    const int count = test_state.quick > 1 ? 8 : test_state.quick ? 24 : 300;
    int       i;
    CHECK_EQ_INT(amp_cpu_force_tier("amx"), AMP_OK);
    for (i = 0; i < count; i++) one_shared(i % 4 ? BITS_STEPS + i % 4 - 1 : 1, 2 + random_below(3));
}

TEST(workspace, "manual: amp_gemm_workspace is enough for a product of any types and places, and a "
                "smaller product never needs more") {
    static const size_t sizes[] = {2, 24, 32, 33, 64, 256, 300, 1024, 1025, 2000, 20000};
    const size_t        step = test_state.quick > 1 ? 7 : 1;
    size_t              i, j, k, room, before;
    int                 kind;
    for (i = 0; i < 11; i++)
        for (j = 0; j < 11; j++)
            for (before = 0, k = 1; k < 2200; k += step) {
                room = amp_gemm_workspace(sizes[i], sizes[j], k);
                CHECK(room >= before);
                before = room;
                for (kind = 0; kind < 24; kind++)
                    CHECK(white_gemm_room((size_t)kind & 1, sizes[i], sizes[j], k,
                                          kind & 2 ? AMP_BF16 : AMP_F16, kind & 4,
                                          kind < 8 ? 0 : kind < 16 ? 12 : 31) <= room);
            }
}

TEST(permission, "manual: the permission for tiles is asked for at the first product of halves that "
                 "is large enough, and never before; a refusal falls back") {
    static uint16_t a[32 * 32], b[32 * 32];
    static float    x[32 * 32], c[32 * 32];
    if (!white_tiles_granted) SKIP("amp.o has no model: make build/tests/model-amx.log");
    CHECK_EQ_INT(strcmp(amp_cpu_tier(), "amx"), 0);
    amp_cast(a, AMP_F16, x, AMP_F32, 1024);
    gemm_one(NULL, 0, 0, 32, 32, 32, 1, x, AMP_F32, 0, x, AMP_F32, 0, 0, c, AMP_F32, 0);
    gemm_one(NULL, 0, 0, 32, 32, 32, 1, x, AMP_F32, 0, a, AMP_F16, 0, 0, c, AMP_F32, 0);
    gemm_one(NULL, 0, 0, 32, 32, 31, 1, a, AMP_F16, 0, b, AMP_F16, 0, 0, c, AMP_F32, 0);
    gemm_one(NULL, 0, 0, 1, 32, 32, 1, a, AMP_F16, 0, b, AMP_F16, 0, 0, c, AMP_F32, 0);
    CHECK_EQ_INT(*white_tiles_asked, 0);
    *white_tiles_granted = 0;
    CHECK_EQ_INT(gemm_one(NULL, 0, 0, 32, 32, 32, 1, a, AMP_F16, 0, b, AMP_F16, 0, 0, c, AMP_F32,
                          0), AMP_OK);
    CHECK_EQ_INT(*white_tiles_asked, 1);
    CHECK_EQ_INT(strcmp(amp_cpu_tier(), "avx512"), 0);
    gemm_one(NULL, 0, 0, 32, 32, 32, 1, a, AMP_F16, 0, b, AMP_F16, 0, 0, c, AMP_F32, 0);
    CHECK_EQ_INT(*white_tiles_asked, 1);
    *white_tiles_granted = 1;
    CHECK_EQ_INT(amp_cpu_force_tier("c"), AMP_OK);
    gemm_one(NULL, 0, 0, 32, 32, 32, 1, a, AMP_F16, 0, b, AMP_F16, 0, 0, c, AMP_F32, 0);
    CHECK_EQ_INT(*white_tiles_asked, 1);
    CHECK_EQ_INT(amp_cpu_force_tier("amx"), AMP_OK);
    CHECK_EQ_INT(*white_tiles_asked, 1);
    gemm_one(NULL, 0, 0, 32, 32, 32, 1, a, AMP_F16, 0, b, AMP_F16, 0, 0, c, AMP_F32, 0);
    gemm_one(NULL, 0, 0, 32, 32, 32, 1, a, AMP_F16, 0, b, AMP_F16, 0, 0, c, AMP_F32, 0);
    CHECK_EQ_INT(*white_tiles_asked, 2);
    CHECK_EQ_INT(strcmp(amp_cpu_tier(), "amx"), 0);
}

TEST(tiles, "law 20: products of 16-bit types equal the definition of the tiles, bit by bit") {
    random_products("amx", BITS_TILES);
}

TEST(pairs, "law 20: products of bf16 equal the definition of pairs, bit by bit") {
    random_products("avx512_bf16", BITS_PAIRS);
}

TEST(mmla, "law 20: products of bf16 equal the definition of BFMMLA, bit by bit") {
    random_products("neon_bf16", BITS_MMLA);
}

/* All of a product of 96 x 96 is the sum of these products of k, and the rest is 0. */
static uint32_t mmla_of(size_t k, const float (*factors)[2], size_t n) {
    enum { SIDE = 96 };
    static float a[SIDE * 16], b[16 * SIDE], c[SIDE * SIDE];
    size_t       i, j;
    memset(a, 0, sizeof a);
    memset(b, 0, sizeof b);
    for (i = 0; i < SIDE; i++)
        for (j = 0; j < n; j++) a[i * k + j] = factors[j][0], b[j * SIDE + i] = factors[j][1];
    CHECK_EQ_INT(amp_matmul(c, a, b, SIDE, SIDE, k, AMP_BF16), AMP_OK);
    for (i = 1; i < SIDE * SIDE; i++) CHECK_EQ_U32(tiles_bits(c[i]), tiles_bits(c[0]));
    return tiles_bits(c[0]);
}

TEST(mmla_edges, "manual: BFMMLA's sums: products that are subnormal, sums that cancel, the overflow of a pair's "
                 "sum, NaN, -0, what k is filled up with, and rounding to odd") {
    const float inf = tiles_float(0x7f800000u), most = tiles_float(0x7f7f0000u);
    const float e20 = 1048576.0f, e63 = 9223372036854775808.0f, m13 = 1.0f / 8192.0f, m63 = 1.0f / e63;
    const float m126 = m63 * m63, small = tiles_float(0x00010000u), m16 = 1.0f / 65536.0f;
    const float subnormal[2][2] = {{m63, 0.5f * m63}, {m63, 0.5f * m63}}, operand[1][2] = {{small, e20}};
    const float odd[2][2] = {{1.0f, 1.0f}, {0.5f * m13, m13}}, equal[2][2] = {{1.5f, 3.0f}, {-1.5f, 3.0f}};
    const float zero[4][2] = {{m126, 1.0f}, {0.0f, 0.0f}, {-1.0078125f, m126}, {0.0f, 0.0f}};
    const float below[4][2] = {{1.75f, m126}, {0.0f, 0.0f}, {-1.0f, m126}, {0.0f, 0.0f}};
    const float pair[4][2] = {{e63, 2.0f * e63}, {e63, 2.0f * e63}, {e63, -2.0f * e63}, {e63, -2.0f * e63}};
    const float apart[4][2] = {{e63, 2.0f * e63}, {e63, -2.0f * e63}, {e63, 2.0f * e63}, {e63, -2.0f * e63}};
    const float top[4][2] = {{most, 1.0f}, {most, 1.0f / 256.0f}, {most, m16}, {e63, 2.0f * e63 / 256.0f * m16}};
    const float nan[1][2] = {{inf, 0.0f}}, infinite[2][2] = {{inf, 2.0f}, {1.0f, 1.0f}};
    size_t      k;
    CHECK_EQ_INT(amp_cpu_force_tier("neon_bf16"), AMP_OK);
    for (k = 4; k <= 9; k++) {
        CHECK_EQ_U32(mmla_of(k, subnormal, 2), 0u); /* though they would add up to 2^-126 */
        CHECK_EQ_U32(mmla_of(k, operand, 1), 0u);
        CHECK_EQ_U32(mmla_of(k, odd, 2), 0x3f800001u); /* 1 + 2^-27 */
        CHECK_EQ_U32(mmla_of(k, equal, 2), 0u);
        CHECK_EQ_U32(mmla_of(k, zero, 4), k > 4 ? 0u : 0x80000000u); /* -2^-133; four more k add 0 */
        CHECK_EQ_U32(mmla_of(k, below, 4), 0u); /* 0.75 * 2^-126 */
        CHECK_EQ_U32(mmla_of(k, pair, 4), 0x7fc00000u);              /* inf - inf */
        CHECK_EQ_U32(mmla_of(k, apart, 4), 0u);
        CHECK_EQ_U32(mmla_of(k, top, 4), 0x7f7fffffu); /* 2^128 - 2^103 is not infinite */
        CHECK_EQ_U32(mmla_of(k, nan, 1), 0x7fc00000u);
        CHECK_EQ_U32(mmla_of(k, infinite, 2), 0x7f800000u);
    }
}

/* Every k from 1 to 9, of values that are mostly edges; rows and columns of one. */
TEST(mmla_sizes, "law 20: BFMMLA with k of 1 to 9, and where m or n is 1, which is summed by FMA") {
    static const uint32_t edge[] = {0u, 0x80000000u, 0x7f800000u, 0xff800000u, 0x7fc00000u, 0x00010000u,
                                    0x807f0000u, 0x00800000u, 0x80800000u, 0x3f800000u, 0xbf810000u,
                                    0x7f7f0000u, 0xff7f0000u, 0x1f800000u, 0x9f810000u, 0x5f800000u};
    enum { SIDE = 182 };
    static uint32_t a[SIDE * 9], b[SIDE * 9];
    static float    c[SIDE * SIDE];
    float           row[9], column[9];
    size_t          k, i, j, p, m, n;
    uint64_t        wrong = 0;
    int             way;
    CHECK_EQ_INT(amp_cpu_force_tier("neon_bf16"), AMP_OK);
    random_state = 45;
    for (k = 1; k <= 9; k++)
        for (way = 0; way < 3; way++) {
            for (i = 0; i < SIDE * k; i++) {
                const uint32_t r = random_bits(), q = random_bits();
                a[i] = r % 8 ? r << 16 : edge[r / 8 % 16];
                b[i] = q % 8 ? q << 16 : edge[q / 8 % 16];
            }
            m = way == 1 ? 1 : SIDE, n = way == 2 ? 1 : SIDE;
            CHECK_EQ_INT(amp_matmul(c, (const float *)(const void *)a, (const float *)(const void *)b, m, n, k,
                                    AMP_BF16), AMP_OK);
            for (i = 0; i < m; i++)
                for (j = 0; j < n; j++) {
                    for (p = 0; p < k; p++) row[p] = tiles_float(a[i * k + p]), column[p] = tiles_float(b[p * n + j]);
                    wrong += !bits_same(tiles_bits(c[i * n + j]),
                                        tiles_bits(bits_sum(row, column, k, way || SIDE * SIDE * k < 32768
                                                                                ? BITS_FMA : BITS_MMLA, 1)), AMP_F32);
                }
        }
    CHECK_EQ_U64(wrong, 0);
}

#if defined(__AARCH64EL__) && defined(__linux__)
#include <sys/auxv.h>
static int has_mmla(void) { return (getauxval(26) >> 14 & 1) != 0; }
/* The instruction, with other settings of FPCR than it begins with. */
static void four(float *c, const uint32_t *a, const uint32_t *b, uint64_t fpcr) {
    uint64_t saved;
    __asm__ __volatile__("mrs %0, fpcr\n\tmsr fpcr, %4\n\tldr q0, [%1]\n\tldr q1, [%2]\n\tldr q2, [%3]\n\t"
                         ".inst 0x6e42ec20\n\tstr q0, [%1]\n\tmsr fpcr, %0"
                         : "=&r"(saved) : "r"(c), "r"(a), "r"(b), "r"(fpcr) : "v0", "v1", "v2", "memory");
}
#else
static int  has_mmla(void) { return 0; }
static void four(float *c, const uint32_t *a, const uint32_t *b, uint64_t fpcr) {
    (void)c, (void)a, (void)b, (void)fpcr;
}
#endif

static uint32_t mmla_value(int kind) { /* any; near 1; subnormal products; overflow; inf, NaN, 0 */
    static const uint32_t special[] = {0u, 0x80000000u, 0x7f800000u, 0xff800000u, 0x7fc00000u, 0x7f810000u, 1u,
                                       0x007f0000u, 0x807fffffu, 0x00800000u, 0x80800001u, 0x7f7f0000u, 0xff7fffffu};
    const uint32_t r = random_bits(), fraction = r & 0x807fffffu;
    if (kind == 0) return r;
    if (kind == 1) return fraction | (uint32_t)(120 + random_below(16)) << 23;
    if (kind == 2) return fraction | (uint32_t)(55 + random_below(20)) << 23;
    if (kind == 3) return fraction | (uint32_t)(185 + random_below(8)) << 23;
    return kind == 4 ? fraction | (uint32_t)(1 + random_below(25)) << 23 : special[random_below(13)];
}

TEST(mmla_instruction, "law 20: the model of BFMMLA equals the instruction, whatever FPCR says, but for EBF") {
    const int rounds = test_state.quick ? 50000 : 2000000;
    uint64_t  wrong = 0;
    int       n, i;
    if (!has_mmla()) SKIP("no BFMMLA here");
    random_state = 46;
    for (n = 0; n < rounds; n++) {
        static const uint64_t modes[] = {0, 1 << 24, 1 << 25, 1 << 22, 2 << 22, 3 << 22, 7 << 22, 1 << 19, 1, 2, 4};
        const int kind = n % 6, other = n % 5 ? kind : (int)random_below(6);
        uint32_t  a[4], b[4], c[4];
        float     sum[4];
        for (i = 0; i < 4; i++) {
            a[i] = (mmla_value(kind) & 0xffff0000u) | mmla_value(kind) >> 16;
            b[i] = (mmla_value(other) & 0xffff0000u) | mmla_value(other) >> 16;
            c[i] = mmla_value((int)random_below(6));
        }
        if (n % 4 == 1) b[1] = b[0] ^ 0x80008000u, a[1] = a[0]; /* what cancels, */
        for (i = 0; n % 4 == 2 && i < 4; i++) /* or nearly */
            c[i] = tiles_bits(tiles_mmla(0.0f, a + i / 2 * 2, b + i % 2 * 2)) + 0x7ffffffeu + (random_bits() & 3u);
        memcpy(sum, c, sizeof c);
        four(sum, a, b, modes[n % 11]);
        for (i = 0; i < 4; i++)
            wrong += tiles_bits(sum[i]) != tiles_bits(tiles_mmla(tiles_float(c[i]), a + i / 2 * 2, b + i % 2 * 2));
    }
    CHECK_EQ_U64(wrong, 0);
}

TEST(mmla_products, "issue of BFMMLA: 100,000 random products (--quick: 300) by the instruction, bit by bit") {
    const int count = test_state.quick ? 300 : 100000;
    int       i;
    if (!has_mmla() || white_tiles_granted) SKIP("no BFMMLA here");
    CHECK_EQ_INT(amp_cpu_force_tier("neon_bf16"), AMP_OK);
    random_state = 47;
    for (i = 0; i < count; i++) {
        if (i % 4 == 3) bits_rounded(AMP_BF16, BITS_LEAST, 1);
        else bits_one(BITS_MMLA, BITS_LEAST, 1, 1, 5000);
    }
}

TEST(tall, "law 7: the same where k does not fit one panel, nor (not --quick) rows") {
    static const char *const tiers[] = {"amx", "avx512_bf16", "neon_bf16"};
    static const int         rules[] = {BITS_TILES, BITS_PAIRS, BITS_MMLA};
    int                      t;
    for (t = 0; t < 3; t++) {
        CHECK_EQ_INT(amp_cpu_force_tier(tiers[t]), AMP_OK);
        if (test_state.quick) bits_one(rules[t], 3, 1, 1, 100000);
        else bits_one(rules[t], 2, 1, BITS_MEMORIES, 100000);
    }
}

TEST(rounded, "manual: compute gives the bits of amp_cast and then the product in tiles, pairs and by BFMMLA "
              "too") {
    const int count = test_state.quick > 1 ? 10 : test_state.quick ? 20 : 1000;
    int       i;
    bits_most = 60;
    for (i = 0; i < 3 * count; i++) {
        static const char *const tiers[] = {"amx", "avx512_bf16", "neon_bf16"};
        const int big = i % 40 == 7 ? 1 : i % 4 == 3 ? BITS_STEPS + i / 4 % 3 : 0;
        CHECK_EQ_INT(amp_cpu_force_tier(tiers[i / count]), AMP_OK);
        bits_rounded(i % 2 ? AMP_BF16 : AMP_F16, big, 2);
    }
}

TEST(edges, "manual: in tiles bf16 subnormals count as 0, fp16 subnormals do not; an infinity stays "
            "one in bf16 and gives NaN in fp16") {
    static const uint16_t one[3] = {0, 0x3c00, 0x3f80}, inf[3] = {0, 0x7c00, 0x7f80};
    static uint16_t       a[64 * 32], b[32 * 32];
    static float          c[64 * 32];
    int                   type, i;
    CHECK_EQ_INT(amp_cpu_force_tier("amx"), AMP_OK);
    for (type = 1; type < 3; type++) {
        memset(a, 0, sizeof a);
        for (i = 0; i < 32 * 32; i++) b[i] = one[type];
        a[0]  = 1; /* the least subnormal */
        a[32] = inf[type];
        gemm_one(NULL, 0, 0, 64, 32, 32, 1.0f, a, (amp_dtype)type, 0, b, (amp_dtype)type, 0, 0.0f,
                 c, AMP_F32, 0);
        CHECK_EQ_F32(c[0], type == 1 ? 5.9604644775390625e-8f : 0.0f);
        if (type == 2) CHECK_EQ_U32(tiles_bits(c[32]), 0x7f800000u);
        else CHECK((tiles_bits(c[32]) & 0x7fffffffu) > 0x7f800000u);
        CHECK_EQ_F32(c[64], 0.0f);
    }
}

#if defined(__x86_64__) && !defined(__TINYC__) &&                                              \
    ((defined(__clang__) && __clang_major__ >= 12) || (!defined(__clang__) && __GNUC__ >= 11))
/* c + pairs of a and b, and a as bf16, sixteen at a time, by the processor's instructions. */
__attribute__((target("avx512f"))) static void
sixteen(float *c, uint16_t *rounded, const uint32_t *a, const uint32_t *b) {
    __asm__ __volatile__("vmovups {(%1), %%zmm0|zmm0, [%1]}\n\tvmovups {(%0), %%zmm1|zmm1, [%0]}\n\t"
                         "vdpbf16ps {(%2), %%zmm0, %%zmm1|zmm1, zmm0, [%2]}\n\t"
                         "vmovups {%%zmm1, (%0)|[%0], zmm1}\n\t"
                         "vcvtneps2bf16 {%%zmm0, %%ymm0|ymm0, zmm0}\n\t"
                         "vmovups {%%ymm0, (%3)|[%3], ymm0}\n\tvzeroupper"
                         : : "r"(c), "r"(a), "r"(b), "r"(rounded) : "xmm0", "xmm1", "memory");
}
static int has_bf16(void) { return __builtin_cpu_supports("avx512bf16"); }
#else
static void sixteen(float *c, uint16_t *rounded, const uint32_t *a, const uint32_t *b) {
    (void)c, (void)rounded, (void)a, (void)b;
}
static int has_bf16(void) { return 0; }
#endif

TEST(instructions, "law 20: the models of VDPBF16PS and VCVTNEPS2BF16 equal the instructions; test_gemm "
                   "and test_bits show TDPBF16PS") {
    const int rounds = test_state.quick ? 20000 : 2000000;
    uint64_t  wrong = 0, cut = 0;
    int       n, i;
    if (!has_bf16()) SKIP("no AVX512_BF16 here");
    random_state = 20;
    for (n = 0; n < rounds; n++) {
        uint32_t a[16], b[16], c[16];
        float    sum[16];
        uint16_t rounded[16];
        for (i = 0; i < 16; i++) {
            const uint32_t wide = n % 2 ? 0u : 0x3f803f80u; /* exponents: near one, or any */
            a[i] = wide ? (random_bits() & 0x80ff80ffu) | wide : random_bits();
            b[i] = wide ? (random_bits() & 0x80ff80ffu) | wide : random_bits();
            c[i] = n % 4 == 3 ? random_bits() & 0x80ffffffu : random_bits();
            memcpy(&sum[i], &c[i], 4);
        }
        sixteen(sum, rounded, a, b);
        for (i = 0; i < 16; i++) {
            const uint32_t got = tiles_bits(sum[i]);
            wrong += !bits_same(got, tiles_bits(tiles_pair(tiles_float(c[i]), a[i], b[i])), AMP_F32);
            cut += rounded[i] != tiles_bf16(tiles_float(a[i]));
        }
    }
    CHECK_EQ_U64(wrong, 0);
    CHECK_EQ_U64(cut, 0);
}

int main(int argc, char **argv) {
    static const uint32_t all = 2 + 4 + 8 + 32 + 64;
    test_begin(argc, argv);
    if (white_tiles_granted) white_processor(&all); /* whatever AMP_TEST_TIER says: here are models of them */
    fp_set(FP_IEEE); /* -Ofast links flush subnormals from the start */
    RUN(permission);
    RUN(tiles);
    RUN(pairs);
    RUN(mmla);
    RUN(mmla_edges);
    RUN(mmla_sizes);
    RUN(mmla_instruction);
    RUN(mmla_products);
    RUN(tall);
    RUN(rounded);
    RUN(edges);
    RUN(shares);
    RUN(workspace);
    RUN(instructions);
    return test_end();
}
