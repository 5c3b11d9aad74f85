/* test_tiles.c - products in tiles, on any machine: a model stands in the place of the tile
   instructions, and everything around them is amp.h's own. */

#define _POSIX_C_SOURCE 200809L /* sigsetjmp in fp.h */
#define AMPI_TILES_MODEL "tests/tiles.h"
#define AMP_NO_AUTOCAST
#include "amp.c"
#include "test.h"
#include "fp.h"
#include "gemm_bits.h"

static void random_products(int count) {
    int i;
    bits_most = 60;
    for (i = 0; i < count; i++)
        bits_one(BITS_TILES, i % 40 == 7, i % 8 ? 2 : 0, i % 20 == 7 ? BITS_MEMORIES : 1, 50000);
    for (i = 0; i < count / 4; i++)
        bits_one(BITS_TILES, BITS_STEPS + i % 3, 1 + i % 2, i % 5 == 3 ? BITS_MEMORIES : 1, 50000);
}

/* One random product, whole and as a team shares it, one share after the other, each in no more
   room than it asks for. */
static void one_shared(int big, size_t team) {
    amp_gemm_args  g    = bits_problem(big, 1);
    const size_t   size = amp_dtype_size(g.c_type), shift = bits_shift(&g, big, 0);
    const size_t   cn   = g.stride_c * (g.count - 1) + g.m * g.ldc;
    unsigned char *a = bits_matrix(g.lda * (g.trans_a ? g.k : g.m) * g.count, g.a_type, 0, 0);
    unsigned char *b = bits_matrix(g.ldb * (g.trans_b ? g.n : g.k) * g.count, g.b_type, 0, 0);
    unsigned char *c = bits_matrix(cn, g.c_type, 0, shift), *bias = bits_matrix(g.n, AMP_F32, 0, 0);
    unsigned char *old = (unsigned char *)malloc(cn * size);
    unsigned char *whole = (unsigned char *)malloc(cn * size);
    uint32_t      *memory;
    ampi_task      w;
    size_t         t, end;
    memcpy(old, c, cn * size);
    g.a = a;
    g.b = b;
    g.c = c;
    if (bits_coin()) g.bias = bias;
    CHECK_EQ_INT(ampi_cpu_gemm(NULL, &g), AMP_OK);
    memcpy(whole, c, cn * size);
    memcpy(c, old, cn * size);
    ampi_task_begin(&w, &g);
    ampi_task_size(&w, 0);
    end    = w.run == ampi_gemm_product ? team * w.size : 0;
    memory = (uint32_t *)malloc((end + 17) * 4);
    w.strip = end ? ampi_align(memory) : NULL;
    if (end) w.strip[end] = 0x5a5a5a5au;
    CHECK(end * 4 + 64 <= team * amp_gemm_workspace(g.m, g.n, g.k));
    for (t = 0; t < team; t++) {
        ampi_task own = w;
        if (ampi_gemm_split(&own, t, team)) ampi_gemm_share(&own);
    }
    if (end) CHECK_EQ_U32(w.strip[end], 0x5a5a5a5au);
    if (memcmp(c, whole, cn * size) != 0) bits_fail(&g, "in shares", 0, 0, 0, (uint32_t)team);
    free(a);
    free(b);
    free(c - shift);
    free(bias);
    free(old);
    free(whole);
    free(memory);
}

TEST(shares, "law 7: a product, or a batch, has the same bits for any number of threads") {
    const int count = test_state.quick > 1 ? 12 : test_state.quick ? 60 : 600;
    int       i;
    CHECK_EQ_INT(amp_cpu_force_tier("amx"), AMP_OK);
    for (i = 0; i < count; i++) one_shared(i % 4 ? BITS_STEPS + i % 4 - 1 : 1, 2 + random_below(3));
}

TEST(workspace, "manual: amp_gemm_workspace is enough for a product of any types and places, and a "
                "smaller product never needs more") {
    static const size_t sizes[] = {2, 24, 32, 33, 64, 256, 300, 1024, 1025, 2000, 20000};
    size_t              at[3], k, lead, room, before;
    ampi_task           w;
    int                 kind;
    memset(&w, 0, sizeof w);
    for (at[0] = 0; at[0] < 11; at[0]++)
        for (at[1] = 0; at[1] < 11; at[1]++)
            for (before = 0, k = 1; k < 2200; k++) {
                room = amp_gemm_workspace(sizes[at[0]], sizes[at[1]], k);
                CHECK(room >= before);
                before = room;
                for (kind = 0; kind < 24; kind++) {
                    w.m = sizes[at[0]];
                    w.n = sizes[at[1]];
                    w.k = k;
                    w.e = kind & 1 ? &ampi_engine_tiles : &ampi_engine_c;
                    w.x[0].as = w.x[1].as = kind & 2 ? AMP_BF16 : AMP_F16;
                    w.x[0].cs = w.x[1].cs = kind & 4 ? 1 : 2000;
                    w.lead = kind < 8 ? 0 : kind < 16 ? 12 : 31;
                    ampi_task_size(&w, 0);
                    CHECK(w.size * 4 + 64 <= room);
                }
            }
}

TEST(permission, "manual: the permission for tiles is asked for at the first product of halves that "
                 "is large enough, and never before; a refusal falls back") {
    static uint16_t a[32 * 32], b[32 * 32];
    static float    x[32 * 32], c[32 * 32];
    CHECK_EQ_INT(strcmp(amp_cpu_tier(), "amx"), 0);
    amp_cast(a, AMP_F16, x, AMP_F32, 1024);
    amp_gemm(NULL, 0, 0, 32, 32, 32, 1, x, AMP_F32, 0, x, AMP_F32, 0, 0, c, AMP_F32, 0);
    amp_gemm(NULL, 0, 0, 32, 32, 32, 1, x, AMP_F32, 0, a, AMP_F16, 0, 0, c, AMP_F32, 0);
    amp_gemm(NULL, 0, 0, 32, 32, 31, 1, a, AMP_F16, 0, b, AMP_F16, 0, 0, c, AMP_F32, 0);
    amp_gemm(NULL, 0, 0, 1, 32, 32, 1, a, AMP_F16, 0, b, AMP_F16, 0, 0, c, AMP_F32, 0);
    CHECK_EQ_INT(tiles_asked, 0);
    tiles_granted = 0;
    CHECK_EQ_INT(amp_gemm(NULL, 0, 0, 32, 32, 32, 1, a, AMP_F16, 0, b, AMP_F16, 0, 0, c, AMP_F32,
                          0), AMP_OK);
    CHECK_EQ_INT(tiles_asked, 1);
    CHECK(strcmp(amp_cpu_tier(), "amx") != 0);
    amp_gemm(NULL, 0, 0, 32, 32, 32, 1, a, AMP_F16, 0, b, AMP_F16, 0, 0, c, AMP_F32, 0);
    CHECK_EQ_INT(tiles_asked, 1);
    tiles_granted = 1;
    CHECK_EQ_INT(amp_cpu_force_tier("c"), AMP_OK);
    amp_gemm(NULL, 0, 0, 32, 32, 32, 1, a, AMP_F16, 0, b, AMP_F16, 0, 0, c, AMP_F32, 0);
    CHECK_EQ_INT(tiles_asked, 1);
    CHECK_EQ_INT(amp_cpu_force_tier("amx"), AMP_OK);
    CHECK_EQ_INT(tiles_asked, 1);
    amp_gemm(NULL, 0, 0, 32, 32, 32, 1, a, AMP_F16, 0, b, AMP_F16, 0, 0, c, AMP_F32, 0);
    amp_gemm(NULL, 0, 0, 32, 32, 32, 1, a, AMP_F16, 0, b, AMP_F16, 0, 0, c, AMP_F32, 0);
    CHECK_EQ_INT(tiles_asked, 2);
    CHECK_EQ_INT(strcmp(amp_cpu_tier(), "amx"), 0);
}

TEST(packed_in_c, "law 7: products of halves equal the model of the tiles, bit by bit") {
    tiles_pack_in_c = 1;
    random_products(test_state.quick > 1 ? 10 : test_state.quick ? 40 : 300);
}

TEST(packed_by_avx512, "law 7: the same, packed and stored by AVX-512") {
#if AMPI_X86
    if (!__builtin_cpu_supports("avx512bf16") || amp_cpu_force_tier("avx512") != AMP_OK)
        SKIP("no AVX-512 with bf16 here");
    amp_cpu_force_tier("amx");
    tiles_pack_in_c = 0;
    random_products(test_state.quick > 1 ? 10 : test_state.quick ? 40 : 300);
#else
    SKIP("not on this processor");
#endif
}

TEST(tall, "law 7: the same where k does not fit one panel, nor (not --quick) rows") {
    if (test_state.quick) bits_one(BITS_TILES, 3, 1, 1, 100000);
    else bits_one(BITS_TILES, 2, 1, BITS_MEMORIES, 100000);
}

static void one_rounded(int i) {
    const int big = i % 40 == 7 ? 1 : i % 4 == 3 ? BITS_STEPS + i / 4 % 3 : 0;
    bits_rounded(i % 2 ? AMP_BF16 : AMP_F16, big, 2);
}

TEST(rounded, "manual: compute gives the bits of amp_cast and then the product in tiles too, packed "
              "in C and by AVX-512") {
    const int count = test_state.quick > 1 ? 10 : test_state.quick ? 20 : 1000;
    int       i;
    bits_most = 60;
#if AMPI_X86
    if (__builtin_cpu_supports("avx512bf16")) {
        tiles_pack_in_c = 0;
        for (i = 0; i < count; i++) one_rounded(i);
    }
#endif
    tiles_pack_in_c = 1;
    for (i = 0; i < count; i++) one_rounded(i);
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

int main(int argc, char **argv) {
    test_begin(argc, argv);
    bits_without_tiles = BITS_C; /* the tier of the model is plain C in all else */
    fp_set(FP_IEEE); /* -Ofast links flush subnormals from the start */
    RUN(permission);
    RUN(packed_in_c);
    RUN(packed_by_avx512);
    RUN(tall);
    RUN(rounded);
    RUN(edges);
    RUN(shares);
    RUN(workspace);
    return test_end();
}
