/* test_tiles.c - products in tiles and in pairs, on any machine: each of their instructions is a model
   in C, and all around them is amp.h's own. Where the instructions are, they equal the model. */

#define _POSIX_C_SOURCE 200809L /* sigsetjmp in fp.h */
#define AMP_KERNELS /* the core: its conversions and operations, for the models */
#include "amp.h"
#include "test.h"
#include "fp.h"
#include "gemm_bits.h"

static void random_products(const char *tier, int rule) {
    const int times = rule == BITS_PAIRS ? 3 : 1; /* a quarter of them is all bf16 */
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
    amp_gemm(NULL, 0, 0, 32, 32, 32, 1, x, AMP_F32, 0, x, AMP_F32, 0, 0, c, AMP_F32, 0);
    amp_gemm(NULL, 0, 0, 32, 32, 32, 1, x, AMP_F32, 0, a, AMP_F16, 0, 0, c, AMP_F32, 0);
    amp_gemm(NULL, 0, 0, 32, 32, 31, 1, a, AMP_F16, 0, b, AMP_F16, 0, 0, c, AMP_F32, 0);
    amp_gemm(NULL, 0, 0, 1, 32, 32, 1, a, AMP_F16, 0, b, AMP_F16, 0, 0, c, AMP_F32, 0);
    CHECK_EQ_INT(*white_tiles_asked, 0);
    *white_tiles_granted = 0;
    CHECK_EQ_INT(amp_gemm(NULL, 0, 0, 32, 32, 32, 1, a, AMP_F16, 0, b, AMP_F16, 0, 0, c, AMP_F32,
                          0), AMP_OK);
    CHECK_EQ_INT(*white_tiles_asked, 1);
    CHECK_EQ_INT(strcmp(amp_cpu_tier(), "avx512"), 0);
    amp_gemm(NULL, 0, 0, 32, 32, 32, 1, a, AMP_F16, 0, b, AMP_F16, 0, 0, c, AMP_F32, 0);
    CHECK_EQ_INT(*white_tiles_asked, 1);
    *white_tiles_granted = 1;
    CHECK_EQ_INT(amp_cpu_force_tier("c"), AMP_OK);
    amp_gemm(NULL, 0, 0, 32, 32, 32, 1, a, AMP_F16, 0, b, AMP_F16, 0, 0, c, AMP_F32, 0);
    CHECK_EQ_INT(*white_tiles_asked, 1);
    CHECK_EQ_INT(amp_cpu_force_tier("amx"), AMP_OK);
    CHECK_EQ_INT(*white_tiles_asked, 1);
    amp_gemm(NULL, 0, 0, 32, 32, 32, 1, a, AMP_F16, 0, b, AMP_F16, 0, 0, c, AMP_F32, 0);
    amp_gemm(NULL, 0, 0, 32, 32, 32, 1, a, AMP_F16, 0, b, AMP_F16, 0, 0, c, AMP_F32, 0);
    CHECK_EQ_INT(*white_tiles_asked, 2);
    CHECK_EQ_INT(strcmp(amp_cpu_tier(), "amx"), 0);
}

TEST(tiles, "law 20: products of 16-bit types equal the definition of the tiles, bit by bit") {
    random_products("amx", BITS_TILES);
}

TEST(pairs, "law 20: products of bf16 equal the definition of pairs, bit by bit") {
    random_products("avx512_bf16", BITS_PAIRS);
}

TEST(tall, "law 7: the same where k does not fit one panel, nor (not --quick) rows") {
    static const char *const tiers[] = {"amx", "avx512_bf16"};
    int                      t;
    for (t = 0; t < 2; t++) {
        CHECK_EQ_INT(amp_cpu_force_tier(tiers[t]), AMP_OK);
        if (test_state.quick) bits_one(t ? BITS_PAIRS : BITS_TILES, 3, 1, 1, 100000);
        else bits_one(t ? BITS_PAIRS : BITS_TILES, 2, 1, BITS_MEMORIES, 100000);
    }
}

TEST(rounded, "manual: compute gives the bits of amp_cast and then the product in tiles and pairs too") {
    const int count = test_state.quick > 1 ? 10 : test_state.quick ? 20 : 1000;
    int       i;
    bits_most = 60;
    for (i = 0; i < 2 * count; i++) {
        const int big = i % 40 == 7 ? 1 : i % 4 == 3 ? BITS_STEPS + i / 4 % 3 : 0;
        CHECK_EQ_INT(amp_cpu_force_tier(i < count ? "amx" : "avx512_bf16"), AMP_OK);
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
        amp_gemm(NULL, 0, 0, 64, 32, 32, 1.0f, a, (amp_dtype)type, 0, b, (amp_dtype)type, 0, 0.0f,
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
    test_begin(argc, argv);
    fp_set(FP_IEEE); /* -Ofast links flush subnormals from the start */
    RUN(permission);
    RUN(tiles);
    RUN(pairs);
    RUN(tall);
    RUN(rounded);
    RUN(edges);
    RUN(shares);
    RUN(workspace);
    RUN(instructions);
    return test_end();
}
