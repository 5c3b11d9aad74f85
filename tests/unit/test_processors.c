/* test_processors.c - other processors than this one: what cpuid answers there, which tier comes out,
   one product in it, and what amp.h says in words. The model of AVX-512, AVX512_BF16 and AMX computes
   everywhere (tier.sh); elsewhere products are left to processors that have the tier. */

#define _POSIX_C_SOURCE 200809L /* sigsetjmp in fp.h */
#define AMP_KERNELS /* the core: its conversions and operations, for the models */
#include "amp.h"
#include "../support/test.h"
#include "../support/fp.h"
#include "../support/gemm_bits.h"

/* Bits of cpuid's leaves 1 (C) and 7 (B, D), of its second page (A), and of XCR0. */
#define SAVED    0x38000000u /* OSXSAVE, AVX, and F16C */
#define FMA      0x1000u
#define F16C     0x20000000u
#define OSXSAVE  0x08000000u
#define AVX2     0x20u
#define F_BW_VL  0xc0010000u
#define DQ       0x20000u
#define AMX      0x01400000u /* TILE, BF16 */
#define INT8     0x03000000u /* TILE, INT8 */
#define BF16     0x20u
#define SAVES    0x06u
#define SAVES512 0xe6u
#define SAVESAMX 0x600e6u

typedef struct processor {
    const char *text;
    uint32_t    leaves, amd, c1, xcr0, pages, b7, d7, a71;
    const char *tier; /* that comes out */
} processor;

static const processor processors[] = {
    {"of 2003", 1, 1, 0, 0, 0, 0, 0, 0, "c"},
    {"leaf 7 is behind the last", 6, 0, SAVED | FMA, SAVES, 0, AVX2, 0, 0, "c"},
    {"AVX alone", 13, 0, SAVED, SAVES, 0, 0, 0, 0, "c"},
    {"AVX2", 13, 0, SAVED | FMA, SAVES, 0, AVX2, 0, 0, "avx2"},
    {"AVX2 of AMD", 13, 1, SAVED | FMA, SAVES, 0, AVX2, 0, 0, "avx2"},
    {"AVX2 without FMA", 13, 0, SAVED, SAVES, 0, AVX2, 0, 0, "c"},
    {"AVX2 without F16C", 13, 0, (SAVED & ~F16C) | FMA, SAVES, 0, AVX2, 0, 0, "c"},
    {"AVX2, no XSAVE by the system", 13, 0, (SAVED & ~OSXSAVE) | FMA, SAVESAMX, 0, AVX2, 0, 0, "c"},
    {"AVX2, upper halves not saved", 13, 0, SAVED | FMA, 0x02u, 0, AVX2, 0, 0, "c"},
    {"AVX-512", 13, 0, SAVED | FMA, SAVES512, 0, AVX2 | DQ | F_BW_VL, 0, 0, "avx512"},
    {"AVX-512, not saved", 13, 0, SAVED | FMA, SAVES, 0, AVX2 | DQ | F_BW_VL, 0, 0, "avx2"},
    {"AVX-512, masks not saved", 13, 0, SAVED | FMA, 0xc6u, 0, AVX2 | DQ | F_BW_VL, 0, 0, "avx2"},
    {"AVX-512, masks alone saved", 13, 0, SAVED | FMA, 0x26u, 0, AVX2 | DQ | F_BW_VL, 0, 0, "avx2"},
    {"AVX-512, registers 0 to 15 saved", 13, 0, SAVED | FMA, 0x66u, 0, AVX2 | DQ | F_BW_VL, 0, 0, "avx2"},
    {"AVX-512, registers 16 to 31 saved", 13, 0, SAVED | FMA, 0xa6u, 0, AVX2 | DQ | F_BW_VL, 0, 0, "avx2"},
    {"AVX-512 without BW, VL", 13, 0, SAVED | FMA, SAVES512, 0, AVX2 | DQ | 0x10000u, 0, 0, "avx2"},
    {"AVX-512 without VL", 13, 0, SAVED | FMA, SAVES512, 0, AVX2 | DQ | 0x40010000u, 0, 0, "avx2"},
    {"AVX-512 without DQ", 13, 0, SAVED | FMA, SAVES512, 1, AVX2 | F_BW_VL, AMX, BF16, "avx512"},
    {"AVX-512 without AVX2", 13, 0, SAVED | FMA, SAVES512, 1, DQ | F_BW_VL, AMX, BF16, "c"},
    {"AVX512_BF16 of Intel", 13, 0, SAVED | FMA, SAVES512, 1, AVX2 | DQ | F_BW_VL, 0, BF16, "avx512"},
    {"AVX512_BF16 of AMD", 13, 1, SAVED | FMA, SAVES512, 1, AVX2 | DQ | F_BW_VL, 0, BF16, "avx512_bf16"},
    {"AVX512_BF16 of AMD, not saved", 13, 1, SAVED | FMA, SAVES, 1, AVX2 | DQ | F_BW_VL, 0, BF16, "avx2"},
    {"a page of leaf 7 that is not there", 13, 1, SAVED | FMA, SAVES512, 0, AVX2 | DQ | F_BW_VL, 0, BF16,
     "avx512"},
    {"AMX", 31, 0, SAVED | FMA, SAVESAMX, 1, AVX2 | DQ | F_BW_VL, AMX, BF16, "amx"},
    {"AMX, not saved", 31, 0, SAVED | FMA, SAVES512, 1, AVX2 | DQ | F_BW_VL, AMX, BF16, "avx512"},
    {"AMX, its shapes saved", 31, 0, SAVED | FMA, 0x200e6u, 1, AVX2 | DQ | F_BW_VL, AMX, BF16, "avx512"},
    {"AMX, its data saved", 31, 0, SAVED | FMA, 0x400e6u, 1, AVX2 | DQ | F_BW_VL, AMX, BF16, "avx512"},
    {"AMX's BF16 without TILE", 31, 0, SAVED | FMA, SAVESAMX, 1, AVX2 | DQ | F_BW_VL, AMX & ~INT8, BF16, "avx512"},
    {"AMX without BF16", 31, 0, SAVED | FMA, SAVESAMX, 1, AVX2 | DQ | F_BW_VL, INT8, BF16, "avx512"},
    {"AMX without AVX512_BF16", 31, 0, SAVED | FMA, SAVESAMX, 1, AVX2 | DQ | F_BW_VL, AMX, 0, "avx512"},
    {"AMX, AVX-512 not saved", 31, 0, SAVED | FMA, 0x60006u, 1, AVX2 | DQ | F_BW_VL, AMX, BF16, "avx2"}};
enum { NUM_PROCESSORS = sizeof processors / sizeof processors[0] };

static const processor *asked;
static void answer(uint32_t leaf, uint32_t sub, uint32_t *r) {
    r[0] = r[1] = r[2] = r[3] = 0;
    if (leaf == WHITE_XGETBV) {
        CHECK(asked->c1 & OSXSAVE); /* the instruction faults */
        r[0] = asked->xcr0;
    } else {
        CHECK(leaf <= asked->leaves && (leaf != 7 || sub <= asked->pages)); /* of others: nonsense */
    }
    if (leaf == 0) r[0] = asked->leaves, r[2] = asked->amd ? 0x444d4163u : 0x6c65746eu;
    if (leaf == 1) r[2] = asked->c1;
    if (leaf == 7 && sub == 0) r[0] = asked->pages, r[1] = asked->b7, r[3] = asked->d7;
    if (leaf == 7 && sub == 1) r[0] = asked->a71;
}

/* The tier of a processor, in this program: only Linux grants tiles, or their model. */
static const char *tier_of(const processor *p) {
#if !defined(__linux__)
    if (strcmp(p->tier, "amx") == 0 && !white_tiles_granted) return "avx512";
#endif
    return p->tier;
}

static int rule_of(const char *tier) {
    return strcmp(tier, "c") == 0             ? BITS_C
           : strcmp(tier, "avx512_bf16") == 0 ? BITS_PAIRS
           : strcmp(tier, "amx") == 0         ? BITS_TILES
           : strcmp(tier, "neon_bf16") == 0   ? BITS_MMLA
                                              : BITS_FMA;
}

/* Products of 16-bit types, with work for tiles, bit by bit; and one that rounds fp32 to them. */
static void some_products(const char *tier) {
    int i;
    for (i = 0; i < 4; i++) bits_one(rule_of(tier), 0, 2, 1, 50000);
    bits_rounded(AMP_BF16, 0, 2);
}

TEST(tiers, "law 20: of what a processor has and its system saves, the best tier comes out, and no cpuid "
            "is asked for what is not there; its products are the definition's") {
#if defined(__x86_64__) && !defined(__TINYC__)
    int i, computed = 0;
    random_state = 38;
    for (i = 0; i < NUM_PROCESSORS; i++) {
        uint32_t features;
        asked    = &processors[i];
        features = white_features_of(answer);
        white_processor(&features);
        if (strcmp(amp_cpu_tier(), tier_of(asked)) != 0) test_fail(__FILE__, __LINE__, asked->text, amp_cpu_tier());
        if (!(features & 15u & ~white_features())) {
            some_products(tier_of(asked));
            if (strcmp(amp_cpu_tier(), tier_of(asked)) != 0 && !(features & 8u))
                test_fail(__FILE__, __LINE__, asked->text, amp_cpu_tier());
            computed++;
        }
        white_processor(NULL);
    }
    CHECK(computed >= 3);
#else
    (void)answer, (void)some_products, (void)processors, (void)tier_of;
    SKIP("no cpuid here");
#endif
}

TEST(refused, "law 20: where the system refuses tiles (an alternate stack, seccomp), the first product "
              "already is avx512's, and so is what amp.h says") {
    const uint32_t features = 15u;
    amp_capability c;
    if (!white_tiles_granted) SKIP("the system answers here: test_gemm");
    white_processor(&features);
    CHECK_EQ_INT(strcmp(amp_cpu_tier(), "amx"), 0);
    *white_tiles_granted = 0;
    random_state = 39;
    some_products("avx512");
    CHECK_EQ_INT(strcmp(amp_cpu_tier(), "avx512"), 0);
    CHECK_EQ_INT(amp_capability_of(0, 0, &c), AMP_OK);
    CHECK(!c.bf16 && !c.fp16 && c.dtype == AMP_F32);
    *white_tiles_granted = 1;
    white_processor(NULL);
}

TEST(words, "manual: amp_capability_of of each tier: which types pay, which one a session takes, and the "
            "advice") {
    static const char fp32[] = "products run in fp32 here: 16 bits save memory, not time";
    static const struct { const char *tier; uint32_t features; int fp16, bf16; const char *advice; } tiers[] = {
        {"c", 0, 0, 0, fp32},
        {"neon", 32, 0, 0, fp32},
        {"avx2", 1, 0, 0, fp32},
        {"avx512", 3, 0, 0, fp32},
        {"avx512_bf16", 23, 0, 1,
         "AVX512_BF16: bf16 products take half the instructions of fp32's and need no loss scale; fp16's "
         "run in fp32"},
        {"neon_bf16", 96, 0, 1,
         "BFMMLA: bf16 products take a third of the instructions of fp32's and need no loss scale; fp16's run "
         "in fp32"},
        {"amx", 15, 1, 1,
         "AMX: bf16 products are several times as fast as fp32's and need no loss scale; fp16's are exact, "
         "and up to twice as fast where they are large"}};
    int    seen = 0;
    size_t i;
    for (i = 0; i < sizeof tiers / sizeof tiers[0]; i++) {
        amp_capability c;
        amp_session    session;
        amp_dtype      inputs[2] = {AMP_F32, AMP_F32}, compute = AMP_F32;
        white_processor(&tiers[i].features);
        if (strcmp(amp_cpu_tier(), tiers[i].tier) != 0) continue; /* not of this kind of processor */
        CHECK_EQ_INT(amp_capability_of(0, 0, &c), AMP_OK);
        CHECK_EQ_INT(c.fp16, tiers[i].fp16);
        CHECK_EQ_INT(c.bf16, tiers[i].bf16);
        CHECK_EQ_INT(c.tf32, tiers[i].fp16);
        CHECK_EQ_INT(c.dtype, tiers[i].bf16 ? AMP_BF16 : AMP_F32);
        CHECK_EQ_INT(c.scaler, 0);
        if (strcmp(c.advice, tiers[i].advice) != 0)
            test_fail(__FILE__, __LINE__, tiers[i].tier, c.advice);
        CHECK_EQ_INT(amp_session_start(&session, NULL), AMP_OK);
        CHECK_EQ_INT(amp_autocast_dtype(NULL, AMP_OP_GEMM, inputs, 2, &compute, NULL), AMP_OK);
        CHECK_EQ_INT(compute, tiers[i].bf16 ? AMP_BF16 : AMP_F16);
        CHECK_EQ_F32(session.scaler->scale, tiers[i].bf16 ? 1.0f : 65536.0f);
        amp_session_end(&session);
        seen++;
    }
    white_processor(NULL);
#if defined(__x86_64__) && !defined(__TINYC__) && defined(__linux__)
    CHECK_EQ_INT(seen, white_tiles_granted ? 7 : 5);
#elif defined(__x86_64__) && !defined(__TINYC__)
    CHECK_EQ_INT(seen, white_tiles_granted ? 7 : 4);
#endif
    CHECK(seen >= 1);
}

int main(int argc, char **argv) {
    test_begin(argc, argv);
    fp_set(FP_IEEE); /* -Ofast links flush subnormals from the start */
    RUN(tiers);
    RUN(refused);
    RUN(words);
    return test_end();
}
