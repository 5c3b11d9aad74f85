/* test_numbers.c - conversions, amp_cast and amp_all_finite.
   Works under any flag: what it compares with is integer code or the processor's own F16C. */

#define _GNU_SOURCE /* sigsetjmp */
#include "amp.h"

#include "../support/fp.h"
#include "../support/huge.h"
#include "../support/random.h"
#include "../support/test.h"
#include "../support/white.h"

#if (defined(__GNUC__) || defined(__clang__)) && defined(__x86_64__) && !defined(__TINYC__)
#define HAVE_F16C_CODE 1
#include <cpuid.h>
#include <immintrin.h>
#else
#define HAVE_F16C_CODE 0
#endif
#if !defined(__TINYC__)
#include <fenv.h> /* fesetround */
#endif

enum { BLOCK = 65536 };

static uint32_t f32_block[BLOCK];
static uint16_t half_block[BLOCK], want_block[BLOCK];

/* The tier the tests run in for the second time, or NULL: the processor's best. */
static const char *second_tier;

/* In quick runs, and where the other tiers repeat a test, a prime stride: 17 million floats in all
   exponents instead of 4295 million. */
static uint64_t stride(void) {
    return test_state.quick > 1 ? 1259 : test_state.quick || second_tier ? 251 : 1;
}

static const amp_dtype dtypes[3] = {AMP_F32, AMP_F16, AMP_BF16};

/* ----------------------------------------------------------------- references */

/* Of the two neighbours low and low + 1 at distances below and above, the nearer; else the even. */
static uint32_t nearer(uint32_t low, uint64_t below, uint64_t above) {
    if (below < above) return low;
    if (below > above) return low + 1;
    return low + (low & 1u);
}

/* Between two bf16 neighbours floats are evenly spaced, in subnormals and up to 2^128 (which is
   inf) alike, so distances are differences of bits. */
static uint16_t bf16_reference(uint32_t u) {
    const uint32_t below = u & 0xffffu;
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x0040u);
    return (uint16_t)nearer(u >> 16, below, 0x10000u - below);
}

/* The float is m * 2^e; around it, halfs are multiples of 2^q. */
static uint16_t f16_reference(uint32_t u) {
    const uint32_t sign  = (u & 0x80000000u) >> 16;
    const uint32_t field = (u & 0x7f800000u) >> 23;
    const uint32_t rest  = u & 0x007fffffu;
    const uint64_t m     = field == 0 ? rest : rest + 0x800000u;
    const int      e     = (field == 0 ? 1 : (int)field) - 150;
    int            q     = (int)field - 127 - 10;
    uint64_t       unit;
    uint32_t       count;
    if (field == 255 && rest != 0) return (uint16_t)(sign | 0x7e00u | (rest >> 13));
    if (field == 255) return (uint16_t)(sign | 0x7c00u);
    if (q < -24) q = -24;
    if (q - e > 40) return (uint16_t)sign; /* below a quarter of the least half */
    unit  = (uint64_t)1 << (q - e);
    count = nearer((uint32_t)(m / unit), m % unit, unit - m % unit);
    if (count < 1024) return (uint16_t)(sign | count); /* a subnormal, so q is -24 */
    count = count - 1024 + ((uint32_t)(q + 25) << 10); /* 1024 is the implicit bit */
    return (uint16_t)(sign | (count < 0x7c00u ? count : 0x7c00u));
}

/* The inverse: find the leading bit by counting down. */
static uint32_t f32_reference(uint16_t h) {
    const uint32_t sign = (uint32_t)(h >> 15) << 31;
    uint32_t       m    = h & 0x3ffu;
    uint32_t       e    = (h >> 10) & 31u;
    if (e == 31) return sign | 0x7f800000u | (m << 13) | (m ? 0x00400000u : 0u);
    if (e == 0 && m == 0) return sign;
    if (e == 0) e = 1;
    else m += 0x400u;
    e += 127 - 15;
    while (m < 0x400u) {
        m = m * 2;
        e = e - 1;
    }
    return sign | (e << 23) | ((m - 0x400u) << 13);
}

/* Element i of an array, as the bits of an fp32, and one element's conversion. */
static uint32_t load(const unsigned char *base, amp_dtype type, size_t i) {
    uint32_t u;
    uint16_t h;
    if (type == AMP_F32) {
        memcpy(&u, base + 4 * i, 4);
        return u;
    }
    memcpy(&h, base + 2 * i, 2);
    return type == AMP_F16 ? f32_reference(h) : (uint32_t)h << 16;
}

static void convert(unsigned char *dst, amp_dtype dst_type,
                    const unsigned char *src, amp_dtype src_type, size_t i) {
    const uint32_t u = load(src, src_type, i);
    const uint16_t h = dst_type == AMP_F16 ? f16_reference(u) : bf16_reference(u);
    if (dst_type == src_type) {
        const size_t size = dst_type == AMP_F32 ? 4 : 2;
        memcpy(dst + size * i, src + size * i, size);
    } else if (dst_type == AMP_F32) memcpy(dst + 4 * i, &u, 4);
    else memcpy(dst + 2 * i, &h, 2);
}

static float f32(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static uint32_t bits_of(const float *x) {
    uint32_t u;
    memcpy(&u, x, 4);
    return u;
}

/* A float with these bits, once a function has returned it: 32-bit x86 does so in an x87 register, and
   there is no signaling NaN. */
static uint32_t returned(uint32_t bits) {
#if defined(__i386__) || defined(_M_IX86)
    if ((bits & 0x7fffffffu) > 0x7f800000u) return bits | 0x400000u;
#endif
    return bits;
}

/* ----------------------------------------------------------------- the processor */

#if HAVE_F16C_CODE
static int have_f16c(void) {
    unsigned a, b, c, d;
    if (!__builtin_cpu_supports("avx")) return 0;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
__attribute__((target("avx,f16c"))) static void f16c_narrow(void) {
    size_t i;
    for (i = 0; i < BLOCK; i += 8) {
        const __m256  x = _mm256_loadu_ps((const float *)(const void *)(f32_block + i));
        const __m128i h = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(void *)(want_block + i), h);
    }
}
__attribute__((target("avx,f16c"))) static void f16c_widen(uint32_t *dst) { /* all 2^16 */
    size_t i;
    for (i = 0; i < BLOCK; i += 8) {
        const __m128i h = _mm_loadu_si128((const __m128i *)(const void *)(half_block + i));
        _mm256_storeu_ps((float *)(void *)(dst + i), _mm256_cvtph_ps(h));
    }
}
#else
static int  have_f16c(void) { return 0; }
static void f16c_narrow(void) {}
static void f16c_widen(uint32_t *dst) { (void)dst; }
#endif

/* ----------------------------------------------------------------- narrowing, all floats */

static void want_f16_reference(void) {
    size_t i;
    for (i = 0; i < BLOCK; i++) want_block[i] = f16_reference(f32_block[i]);
}
static void want_bf16_reference(void) {
    size_t i;
    for (i = 0; i < BLOCK; i++) want_block[i] = bf16_reference(f32_block[i]);
}
static void array_f16(void) { amp_cast(half_block, AMP_F16, f32_block, AMP_F32, BLOCK); }
static void array_bf16(void) { amp_cast(half_block, AMP_BF16, f32_block, AMP_F32, BLOCK); }
static void want_array_f16(void) { amp_cast(want_block, AMP_F16, f32_block, AMP_F32, BLOCK); }
static void want_array_bf16(void) { amp_cast(want_block, AMP_BF16, f32_block, AMP_F32, BLOCK); }
static void scalar_f16(void) {
    size_t i;
    for (i = 0; i < BLOCK; i++) half_block[i] = amp_f32_to_f16(f32(f32_block[i])).bits;
}
static void scalar_bf16(void) {
    size_t i;
    for (i = 0; i < BLOCK; i++) half_block[i] = amp_f32_to_bf16(f32(f32_block[i])).bits;
}

/* Over the floats 0, step, 2 step ... of 2^32: does got() fill half_block as want() fills
   want_block? */
static void compare_narrowing(void (*got)(void), void (*want)(void), uint64_t step) {
    const uint64_t blocks = (((uint64_t)1 << 32) / step + BLOCK - 1) / BLOCK;
    uint64_t       k;
    size_t         i;
    int            same;
    for (k = 0; k < blocks; k++) {
        const uint32_t first = (uint32_t)(k * BLOCK * step);
        for (i = 0; i < BLOCK; i++) f32_block[i] = first + (uint32_t)i * (uint32_t)step;
        got();
        want();
        same = memcmp(half_block, want_block, sizeof half_block) == 0;
        for (i = 0; i < BLOCK && !same; i++) {
            char what[40];
            if (half_block[i] == want_block[i]) continue;
            sprintf(what, "float 0x%08lx", (unsigned long)f32_block[i]);
            test_eq_u64(__FILE__, __LINE__, what, half_block[i], want_block[i]);
        }
        CHECK(same);
    }
}

TEST(f16_equals_hardware, "law 2: \"identical to VCVTPS2PH on all 2^32 inputs\", by amp_cast") {
    if (!have_f16c()) SKIP("no F16C here; the reference in f16_equals_reference is used");
    compare_narrowing(array_f16, f16c_narrow, stride());
}

/* With F16C a sample is enough, to show that the reference is right too. */
TEST(f16_equals_reference, "law 2: \"round to nearest even, quiet NaNs keep their top payload "
                           "bits\", the nearer of two neighbours") {
    compare_narrowing(array_f16, want_f16_reference, have_f16c() ? 251 : stride());
}

TEST(f16_function_equals_array, "amp_f32_to_f16 and amp_cast agree on all 2^32 floats") {
    compare_narrowing(scalar_f16, want_array_f16, stride());
}

TEST(bf16_equals_reference, "law 2: \"round to nearest even, quiet NaNs keep their top payload "
                            "bits\", all 2^32 floats by amp_cast; subnormals kept") {
    compare_narrowing(array_bf16, want_bf16_reference, stride());
}

TEST(bf16_function_equals_array, "amp_f32_to_bf16 and amp_cast agree on all 2^32 floats") {
    compare_narrowing(scalar_bf16, want_array_bf16, stride());
}

/* The floats at and next to each half, and to each midpoint of halfs: whatever the stride was. */
TEST(narrowing_at_boundaries, "every fp16 and bf16 value, every midpoint between two, +-1 ulp") {
    uint32_t h;
    for (h = 0; h < 65536; h++) {
        const uint32_t f = f32_reference((uint16_t)h);
        uint32_t       at[12], n = 0, i, d;
        for (d = 0; d < 3; d++) { /* half a step of normal fp16 is 0x1000 in bits */
            at[n++] = f + d - 1u;
            at[n++] = f + 0x1000u + d - 1u;
            at[n++] = (h << 16) + d - 1u;
            at[n++] = (h << 16) + 0x8000u + d - 1u;
        }
        for (i = 0; i < n; i++) {
            CHECK_EQ_U32(amp_f32_to_f16(f32(at[i])).bits, f16_reference(at[i]));
            CHECK_EQ_U32(amp_f32_to_bf16(f32(at[i])).bits, bf16_reference(at[i]));
        }
    }
}

TEST(version, "amp_version: that of the macros") {
    char text[40];
    sprintf(text, "%d.%d.%d", AMP_VERSION_MAJOR, AMP_VERSION_MINOR, AMP_VERSION_PATCH);
    CHECK_EQ_INT(strcmp(amp_version(), text), 0);
}

TEST(known_values, "constants that anybody can look up") {
    static const struct { uint32_t f32; uint16_t f16, bf16; } known[] = {
        {0x00000000, 0x0000, 0x0000}, {0x80000000, 0x8000, 0x8000}, /* 0, -0                     */
        {0x3f800000, 0x3c00, 0x3f80}, {0xc0000000, 0xc000, 0xc000}, /* 1, -2                     */
        {0x3eaaaaab, 0x3555, 0x3eab},                               /* 1/3                       */
        {0x477fe000, 0x7bff, 0x4780},                               /* 65504, the largest fp16   */
        {0x477fefff, 0x7bff, 0x4780}, {0x477ff000, 0x7c00, 0x4780}, /* 65519.996, 65520          */
        {0x38800000, 0x0400, 0x3880}, {0x387fc000, 0x03ff, 0x3880}, /* 2^-14, largest subnormal  */
        {0x33800000, 0x0001, 0x3380}, {0x33000000, 0x0000, 0x3300}, /* 2^-24, 2^-25: tie to 0    */
        {0x33000001, 0x0001, 0x3300}, {0x33c00000, 0x0002, 0x33c0}, /* above; 1.5 * 2^-24        */
        {0x3f801000, 0x3c00, 0x3f80}, {0x3f803000, 0x3c02, 0x3f80}, /* ties: down, up            */
        {0x3f808000, 0x3c04, 0x3f80}, {0x3f818000, 0x3c0c, 0x3f82}, /* the same for bf16         */
        {0x7f7fffff, 0x7c00, 0x7f80}, {0x7f7f0000, 0x7c00, 0x7f7f}, /* FLT_MAX, largest bf16     */
        {0x7f7f7fff, 0x7c00, 0x7f7f}, {0x7f7f8000, 0x7c00, 0x7f80}, /* below, at the tie to inf  */
        {0x00000001, 0x0000, 0x0000}, {0x00010000, 0x0000, 0x0001}, /* least fp32, least bf16    */
        {0x00008000, 0x0000, 0x0000}, {0x00018000, 0x0000, 0x0002}, /* ties of subnormals        */
        {0x7f800000, 0x7c00, 0x7f80}, {0xff800000, 0xfc00, 0xff80}, /* inf, -inf                 */
        {0x7fc00000, 0x7e00, 0x7fc0}, {0xffc00000, 0xfe00, 0xffc0}, /* NaN, -NaN                 */
        {0x7f800001, 0x7e00, 0x7fc0}, {0xff812345, 0xfe09, 0xffc1}, /* signaling; payload        */
        {0x7fffffff, 0x7fff, 0x7fff}, {0x7fbfffff, 0x7fff, 0x7fff}};
    size_t i;
    for (i = 0; i < sizeof known / sizeof known[0]; i++) {
        CHECK_EQ_U32(amp_f32_to_f16(f32(known[i].f32)).bits, known[i].f16);
        CHECK_EQ_U32(amp_f32_to_bf16(f32(known[i].f32)).bits, known[i].bf16);
        CHECK_EQ_U32(f16_reference(known[i].f32), known[i].f16);
        CHECK_EQ_U32(bf16_reference(known[i].f32), known[i].bf16);
    }
}

/* ----------------------------------------------------------------- widening, all halfs */

TEST(f16_widens, "all 2^16 fp16 to fp32, function and amp_cast; narrowed again they are the same") {
    static uint32_t wide[BLOCK];
    uint32_t        h;
    for (h = 0; h < BLOCK; h++) half_block[h] = (uint16_t)h;
    CHECK_EQ_INT(amp_cast(wide, AMP_F32, half_block, AMP_F16, BLOCK), AMP_OK);
    for (h = 0; h < BLOCK; h++) {
        const amp_f16  x     = {(uint16_t)h};
        const float    f     = amp_f16_to_f32(x);
        const int      nan   = (h & 0x7fffu) > 0x7c00u;
        const uint32_t again = nan ? h | 0x200u : h;
        CHECK_EQ_U32(wide[h], f32_reference((uint16_t)h));
        CHECK_EQ_U32(bits_of(&f), wide[h]);
        CHECK_EQ_U32(amp_f32_to_f16(f).bits, again);
    }
}

TEST(f16_widening_equals_hardware, "law 2: all 2^16 fp16 to fp32 are those of VCVTPH2PS") {
    static uint32_t wide[BLOCK], want[BLOCK];
    uint32_t        h;
    if (!have_f16c()) SKIP("no F16C here; the reference in f16_widens is used");
    for (h = 0; h < BLOCK; h++) half_block[h] = (uint16_t)h;
    CHECK_EQ_INT(amp_cast(wide, AMP_F32, half_block, AMP_F16, BLOCK), AMP_OK);
    f16c_widen(want);
    for (h = 0; h < BLOCK; h++) CHECK_EQ_U32(wide[h], want[h]);
}

TEST(bf16_widens, "all 2^16 bf16 to fp32 are the upper half of its bits, and narrow back") {
    static uint32_t wide[BLOCK];
    uint32_t        h;
    for (h = 0; h < BLOCK; h++) half_block[h] = (uint16_t)h;
    CHECK_EQ_INT(amp_cast(wide, AMP_F32, half_block, AMP_BF16, BLOCK), AMP_OK);
    for (h = 0; h < BLOCK; h++) {
        const amp_bf16 x     = {(uint16_t)h};
        const float    f     = amp_bf16_to_f32(x);
        const int      nan   = (h & 0x7fffu) > 0x7f80u;
        const uint32_t again = nan ? h | 0x40u : h;
        CHECK_EQ_U32(wide[h], h << 16);
        CHECK_EQ_U32(bits_of(&f), returned(h << 16));
        CHECK_EQ_U32(amp_f32_to_bf16(f).bits, again);
    }
}

TEST(half_to_other_half, "all 2^16 fp16 to bf16 and back again go through fp32") {
    uint32_t h;
    for (h = 0; h < BLOCK; h++) half_block[h] = (uint16_t)h;
    CHECK_EQ_INT(amp_cast(want_block, AMP_BF16, half_block, AMP_F16, BLOCK), AMP_OK);
    for (h = 0; h < BLOCK; h++)
        CHECK_EQ_U32(want_block[h], bf16_reference(f32_reference((uint16_t)h)));
    CHECK_EQ_INT(amp_cast(want_block, AMP_F16, half_block, AMP_BF16, BLOCK), AMP_OK);
    for (h = 0; h < BLOCK; h++) CHECK_EQ_U32(want_block[h], f16_reference(h << 16));
}

/* ----------------------------------------------------------------- amp_cast */

enum { GUARD = 16, MAX_BYTES = 4 * 3000 + 2 * GUARD + 16 };
static unsigned char src_bytes[MAX_BYTES], dst_bytes[MAX_BYTES], want_bytes[MAX_BYTES];

static void fill_random(unsigned char *bytes, size_t n) {
    size_t i;
    for (i = 0; i < n; i++) bytes[i] = (unsigned char)random_bits();
}

/* Cast n elements between the two offsets: every byte of dst must be right, around it too. */
static void check_cast(amp_dtype dst_type, size_t dst_offset,
                       amp_dtype src_type, size_t src_offset, size_t n) {
    size_t i;
    memset(dst_bytes, 0xa5, sizeof dst_bytes);
    memset(want_bytes, 0xa5, sizeof want_bytes);
    for (i = 0; i < n; i++)
        convert(want_bytes + dst_offset, dst_type, src_bytes + src_offset, src_type, i);
    CHECK_EQ_INT(
        amp_cast(dst_bytes + dst_offset, dst_type, src_bytes + src_offset, src_type, n), AMP_OK);
    CHECK_MEM(dst_bytes, want_bytes, dst_offset + 4 * n + GUARD);
}

TEST(cast_pairs_and_offsets, "law 11: every pair of types, counts 0..67, dst and src at all byte "
                             "offsets 0..7; no byte around dst changes") {
    size_t d, s, n, dst_offset, src_offset;
    for (d = 0; d < 3; d++)
        for (s = 0; s < 3; s++)
            for (n = 0; n <= 67; n++) {
                fill_random(src_bytes, 4 * n + 8);
                for (dst_offset = 0; dst_offset < 8; dst_offset++)
                    for (src_offset = 0; src_offset < 8; src_offset++)
                        check_cast(dtypes[d], GUARD + dst_offset, dtypes[s], src_offset, n);
            }
}

TEST(cast_longer, "every pair of types at counts around 1024 and 2048") {
    static const size_t counts[] = {1023, 1024, 1025, 2047, 2048, 2049, 3000};
    size_t              d, s, i;
    for (d = 0; d < 3; d++)
        for (s = 0; s < 3; s++)
            for (i = 0; i < sizeof counts / sizeof counts[0]; i++) {
                fill_random(src_bytes, 4 * counts[i] + 3);
                check_cast(dtypes[d], GUARD + 1, dtypes[s], 3, counts[i]);
            }
}

TEST(cast_streams, "millions of elements, which are written around the cache where dst is aligned, "
                   "equal the same cast in small pieces; every pair, three offsets") {
    static const size_t offsets[] = {0, 1, 12}; /* from a multiple of 64: an odd address, one in a line */
    const size_t        n = ((size_t)1 << 22) + 37, room = 4 * n + 128;
    unsigned char      *bytes = (unsigned char *)malloc(3 * room), *src, *dst, *want;
    size_t              d, s, i, k;
    if (bytes == NULL) SKIP("no 50 MB of memory");
    src  = bytes;
    dst  = bytes + room;
    want = bytes + 2 * room;
    for (i = 0; i < room; i += 4) {
        const uint32_t u = random_bits();
        memcpy(src + i, &u, 4);
    }
    for (d = 0; d < 3; d++)
        for (s = 0; s < 3; s++)
            for (k = 0; k < 3; k++) {
                const size_t         ds = d ? 2 : 4, ss = s ? 2 : 4;
                unsigned char *const to = dst + (64 - (uintptr_t)dst % 64) % 64 + offsets[k];
                memset(dst, 0xa5, room);
                memset(want, 0xa5, room);
                for (i = 0; i < n; i += 1000)
                    amp_cast(want + ds * i, dtypes[d], src + ss * i, dtypes[s],
                             n - i < 1000 ? n - i : 1000);
                amp_cast(to, dtypes[d], src, dtypes[s], n);
                CHECK_MEM(to, want, ds * n);
                CHECK_EQ_U32(to[ds * n], 0xa5);
            }
    amp_cast(dst, AMP_F32, src, AMP_BF16, n - 36); /* one more than go at a time */
    amp_cast(want, AMP_F32, src + 2 * (n - 37), AMP_BF16, 1);
    CHECK_MEM(dst + 4 * (n - 37), want, 4);
    free(bytes);
}

TEST(cast_in_place, "dst may equal src unless dst's type is wider") {
    size_t d, s, n, offset, i;
    for (d = 0; d < 3; d++)
        for (s = 0; s < 3; s++)
            for (n = 0; n <= 2100; n += n < 67 ? 1 : 149)
                for (offset = 0; offset < 8; offset++) {
                    if (dtypes[d] == AMP_F32 && dtypes[s] != AMP_F32) continue;
                    fill_random(src_bytes, 4 * n + 2 * GUARD);
                    memcpy(dst_bytes, src_bytes, 4 * n + 2 * GUARD);
                    memcpy(want_bytes, src_bytes, 4 * n + 2 * GUARD);
                    for (i = 0; i < n; i++)
                        convert(want_bytes + offset, dtypes[d], src_bytes + offset, dtypes[s], i);
                    CHECK_EQ_INT(amp_cast(dst_bytes + offset, dtypes[d], dst_bytes + offset,
                                          dtypes[s], n), AMP_OK);
                    CHECK_MEM(dst_bytes, want_bytes, 4 * n + 2 * GUARD);
                }
}

TEST(cast_refuses, "law 9: \"changes nothing when it fails\": unknown types, NULL with n > 0") {
    static const int unknown[] = {3, 4, 99, -1, 1 << 30};
    size_t           i;
    int              type;
    fill_random(src_bytes, 64);
    memset(dst_bytes, 0xa5, 64);
    memset(want_bytes, 0xa5, 64);
    for (i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        const amp_dtype bad = (amp_dtype)unknown[i];
        CHECK_EQ_INT(amp_cast(dst_bytes, bad, src_bytes, AMP_F32, 4), AMP_ERROR_INVALID_ENUM);
        CHECK_EQ_INT(amp_cast(dst_bytes, AMP_F16, src_bytes, bad, 4), AMP_ERROR_INVALID_ENUM);
        CHECK_EQ_INT(amp_cast(dst_bytes, bad, src_bytes, bad, 4), AMP_ERROR_INVALID_ENUM);
        CHECK_EQ_INT(amp_cast(NULL, bad, NULL, AMP_F32, 0), AMP_ERROR_INVALID_ENUM);
        CHECK_EQ_U64(amp_dtype_size(bad), 0);
    }
    for (type = 0; type < 9; type++) {
        const amp_dtype d = dtypes[type / 3], s = dtypes[type % 3];
        CHECK_EQ_INT(amp_cast(NULL, d, src_bytes, s, 1), AMP_ERROR_INVALID_ARGUMENT);
        CHECK_EQ_INT(amp_cast(NULL, d, src_bytes, s, 999), AMP_ERROR_INVALID_ARGUMENT);
        CHECK_EQ_INT(amp_cast(dst_bytes, d, NULL, s, 999), AMP_ERROR_INVALID_ARGUMENT);
        CHECK_EQ_INT(amp_cast(dst_bytes, d, NULL, s, 1), AMP_ERROR_INVALID_ARGUMENT);
        CHECK_EQ_INT(amp_cast(NULL, d, NULL, s, 1), AMP_ERROR_INVALID_ARGUMENT);
        CHECK_EQ_INT(amp_cast(NULL, d, NULL, s, 0), AMP_OK);
        CHECK_EQ_INT(amp_cast(dst_bytes, d, NULL, s, 0), AMP_OK);
        CHECK_EQ_INT(amp_cast(NULL, d, src_bytes, s, 0), AMP_OK);
    }
    CHECK_MEM(dst_bytes, want_bytes, 64);
    CHECK_EQ_U64(amp_dtype_size(AMP_F32), 4);
    CHECK_EQ_U64(amp_dtype_size(AMP_F16), 2);
    CHECK_EQ_U64(amp_dtype_size(AMP_BF16), 2);
    CHECK_EQ_U64(sizeof(amp_f16), 2);
    CHECK_EQ_U64(sizeof(amp_bf16), 2);
}

/* ----------------------------------------------------------------- amp_all_finite */

/* Largest finite, in bits, and some that are not finite. */
static const uint32_t finite_max[3]   = {0x7f7fffffu, 0x7bffu, 0x7f7fu};
static const uint32_t nonfinite[3][6] = {
    {0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff8fffffu},
    {0x7c00u, 0xfc00u, 0x7e00u, 0xfe00u, 0x7c01u, 0xfdffu},
    {0x7f80u, 0xff80u, 0x7fc0u, 0xffc0u, 0x7f81u, 0xffbfu}};

static void put(void *base, int type, size_t i, uint32_t bits) {
    const uint16_t h = (uint16_t)bits;
    if (type == 0) memcpy((unsigned char *)base + 4 * i, &bits, 4);
    else memcpy((unsigned char *)base + 2 * i, &h, 2);
}

TEST(nonfinite_at_every_index, "law 1: an inf, NaN or signaling NaN is found at every index of "
                               "n <= 1024, and one before and behind the array is not looked at") {
    static unsigned char x[4 * 1030];
    int                  type;
    size_t               n, i;
    for (type = 0; type < 3; type++) {
        unsigned char *const at = x + (type == 0 ? 8 : 6); /* an element before, at an offset */
        for (n = 1; n <= 1024; n += test_state.quick && n > 70 ? 53 : 1) {
            for (i = 0; i < n; i++) put(at, type, i, finite_max[type]);
            put(x + 4, type, 0, nonfinite[type][2]);
            put(at, type, n, nonfinite[type][2]);
            CHECK(amp_all_finite(at, dtypes[type], n));
            for (i = 0; i < n; i++) {
                put(at, type, i, nonfinite[type][(n + i) % 6]);
                if (amp_all_finite(at, dtypes[type], n)) CHECK_EQ_U64(i, n); /* it was missed */
                put(at, type, i, finite_max[type]);
            }
        }
    }
}

TEST(every_half_pattern, "law 1: of all 2^16 patterns exactly 2048 fp16 and 256 bf16 are not "
                         "finite, at any alignment") {
    unsigned char x[16];
    int           type;
    uint32_t      h, bad;
    size_t        offset;
    for (type = 1; type < 3; type++)
        for (offset = 0; offset < 4; offset++) {
            const uint32_t exponent = type == 1 ? 0x7c00u : 0x7f80u;
            for (h = bad = 0; h < 65536; h++) {
                bool finite;
                put(x + offset, type, 0, h);
                put(x + offset, type, 1, 0);
                finite = amp_all_finite(x + offset, dtypes[type], 1 + (h & 1u));
                bad += !finite;
                CHECK_EQ_INT(finite, (h & exponent) != exponent);
            }
            CHECK_EQ_U32(bad, type == 1 ? 2048 : 256);
        }
}

TEST(every_f32_pattern, "law 1: all 2^24 fp32 patterns that are inf or NaN, 2^24 that are not") {
    uint32_t u, missed = 0, wrong = 0;
    for (u = 0; u < 1u << 24; u += test_state.quick ? 251 : 1) {
        const uint32_t bad  = (u << 8 & 0x80000000u) | 0x7f800000u | (u & 0x7fffffu);
        const uint32_t good = (u * 255u) & 0xff7fffffu; /* some exponent bit is 0 */
        missed += amp_all_finite(&bad, AMP_F32, 1);
        wrong += !amp_all_finite(&good, AMP_F32, 1);
    }
    CHECK_EQ_U32(missed, 0);
    CHECK_EQ_U32(wrong, 0);
}

TEST(finite_is_no_sum, "the largest values are finite though their sum overflows; so are 0, -0, "
                       "subnormals; unaligned") {
    static unsigned char x[4 * 5000 + 8];
    int                  type;
    size_t               i, offset, n;
    for (type = 0; type < 3; type++)
        for (offset = 0; offset < 8; offset++)
            for (n = 1; n <= 5000; n += 833) {
                const uint32_t sign = type == 0 ? 0x80000000u : 0x8000u;
                for (i = 0; i < n; i++) put(x + offset, type, i, finite_max[type]);
                CHECK(amp_all_finite(x + offset, dtypes[type], n));
                for (i = 0; i < n; i++) put(x + offset, type, i, finite_max[type] | sign);
                CHECK(amp_all_finite(x + offset, dtypes[type], n));
                for (i = 0; i < n; i++) put(x + offset, type, i, i % 3 ? (i & 1) : sign);
                CHECK(amp_all_finite(x + offset, dtypes[type], n));
                put(x + offset, type, n - 1, nonfinite[type][offset % 6]);
                CHECK(!amp_all_finite(x + offset, dtypes[type], n));
            }
}

TEST(all_finite_refuses, "false for an unknown type, or NULL with n > 0; true for nothing") {
    const float x = 1.0f;
    int         type;
    for (type = 0; type < 3; type++) {
        CHECK(!amp_all_finite(NULL, dtypes[type], 1));
        CHECK(!amp_all_finite(NULL, dtypes[type], 999));
        CHECK(amp_all_finite(NULL, dtypes[type], 0));
        CHECK(amp_all_finite(&x, dtypes[type], 0));
    }
    CHECK(!amp_all_finite(&x, (amp_dtype)3, 1));
    CHECK(!amp_all_finite(&x, (amp_dtype)-1, 1));
    CHECK(!amp_all_finite(NULL, (amp_dtype)3, 0));
}

TEST(more_than_2_31, "law 11: \"more than 2^31 elements are ordinary\": the last is looked at") {
    const size_t n = ((size_t)1 << 31) + 5;
    uint16_t    *x;
    if (test_state.quick) SKIP("takes seconds and 4 GiB of address space; not in quick runs");
    if (sizeof(size_t) < 8) SKIP("size_t has 32 bits");
    x = (uint16_t *)calloc(n, sizeof *x); /* untouched pages cost nothing */
    if (x == NULL) SKIP("no 4 GiB of address space");
    x[n - 1] = 0x7f80;
    CHECK(amp_all_finite(x, AMP_BF16, n - 1));
    CHECK(!amp_all_finite(x, AMP_BF16, n));
    free(x);
}

#if HAVE_HUGE
/* Of the tail, bf16 numbers that are floats and halfs, too: 0, 1, 2, 3. */
static float small(size_t i) { return (float)(int)(i % 4); }

TEST(cast_beyond_2_32, "law 11: the last of more than 2^32 elements are cast, in slices, in place, and between halfs") {
    const size_t first = (size_t)1 << 32, few = 20005, n = first + few;
    uint16_t    *src, *half;
    char        *dst;
    size_t       i;
    if (test_state.quick) SKIP("takes seconds, under sanitizers a minute: not in quick runs");
    src = (uint16_t *)huge_zeros(2 * n);
    dst = (char *)huge_repeated(4 * first, 4 * few);
    if (!src || !dst) SKIP(HUGE_WHY);
    huge_read(src, 2 * n);
    for (i = 0; i < few; i++) src[first + i] = amp_f32_to_bf16(small(i)).bits;
    CHECK_EQ_INT(amp_cast(dst, AMP_F32, src, AMP_BF16, n), AMP_OK);
    for (i = 0; i < few; i++) CHECK_EQ_F32(((float *)(void *)dst)[first + i], small(i));
    CHECK_EQ_INT(amp_cast(dst, AMP_BF16, dst, AMP_F32, n), AMP_OK);
    CHECK_MEM(dst + 2 * first, src + first, 2 * few);
    half = (uint16_t *)(void *)(dst + 2 * first); /* its tail is that of dst: threads write the rest over and over */
    CHECK_EQ_INT(amp_cast(half, AMP_F16, src, AMP_BF16, n), AMP_OK);
    for (i = 0; i < few; i++) CHECK_EQ_U32(half[first + i], amp_f32_to_f16(small(i)).bits);
    huge_free(src, 2 * n);
    huge_free(dst, 4 * n);
}
#else
TEST(cast_beyond_2_32, "law 11: the last of more than 2^32 elements are cast") { SKIP(HUGE_WHY); }
#endif

/* ----------------------------------------------------------------- floating-point environment */

static uint32_t wrong; /* counted while the environment is set, looked at when it is not */

/* A million floats and all halfs, by function and by array. */
static void count_wrong_conversions(void) {
    uint32_t k, u = 0;
    size_t   i;
    wrong = 0;
    for (k = 0; k < 16; k++) {
        for (i = 0; i < BLOCK; i++, u += 4093) f32_block[i] = u;
        for (i = 0; i < 8192; i++) f32_block[i] = (uint32_t)(i * 1021); /* subnormals */
        array_f16();
        want_f16_reference();
        wrong += memcmp(half_block, want_block, sizeof half_block) != 0;
        scalar_f16();
        wrong += memcmp(half_block, want_block, sizeof half_block) != 0;
        array_bf16();
        want_bf16_reference();
        wrong += memcmp(half_block, want_block, sizeof half_block) != 0;
        scalar_bf16();
        wrong += memcmp(half_block, want_block, sizeof half_block) != 0;
    }
    for (i = 0; i < BLOCK; i++) {
        const amp_f16  x = {(uint16_t)i};
        const amp_bf16 y = {(uint16_t)i};
        const float    f = amp_f16_to_f32(x), g = amp_bf16_to_f32(y);
        wrong += bits_of(&f) != f32_reference((uint16_t)i);
        wrong += bits_of(&g) != returned((uint32_t)i << 16);
        half_block[i] = (uint16_t)i;
    }
    amp_cast(f32_block, AMP_F32, half_block, AMP_F16, BLOCK);
    for (i = 0; i < BLOCK; i++) wrong += f32_block[i] != f32_reference((uint16_t)i);
    amp_cast(f32_block, AMP_F32, half_block, AMP_BF16, BLOCK);
    for (i = 0; i < BLOCK; i++) wrong += f32_block[i] != (uint32_t)i << 16;
    wrong += !amp_all_finite(f32_block, AMP_F32, 0x7f80); /* subnormals among them */
    wrong += amp_all_finite(f32_block, AMP_F32, 0x7f81);
}

TEST(any_rounding_mode, "law 2: the same bits \"under any rounding mode\" of fesetround") {
#if defined(FE_TONEAREST) && defined(FE_UPWARD) && defined(FE_DOWNWARD) && defined(FE_TOWARDZERO)
    static const int modes[4] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    const int        before   = fegetround();
    int              i;
    for (i = 0; i < 4; i++) {
        const int set = fesetround(modes[i]);
        count_wrong_conversions();
        CHECK_EQ_INT(fegetround(), modes[i]); /* and the mode is still the host's */
        fesetround(before);
        CHECK_EQ_INT(set, 0);
        CHECK_EQ_U32(wrong, 0);
    }
#else
    SKIP("no fesetround here");
#endif
}

TEST(any_flush_mode, "law 2: the same bits under \"FTZ, DAZ\", with every rounding mode") {
    uint32_t mode;
    if (!FP_CONTROL) SKIP(FP_WHY);
    for (mode = 0; mode < 16; mode++) {
        const uint32_t before = fp_get();
        const uint32_t set    = FP_IEEE | (mode & 3u) * FP_ROUNDING | (mode & 4u ? FP_FTZ : 0u) |
                             (mode & 8u ? FP_DAZ : 0u);
        uint32_t after;
        fp_set(set);
        count_wrong_conversions();
        after = fp_get();
        fp_set(before);
        CHECK_EQ_U32(wrong, 0);
        CHECK_EQ_U32(after, set); /* the host's settings are left, and no flag is raised */
    }
}

TEST(no_traps, "law 13: \"Hosts that unmask floating-point traps keep running\": NaN, signaling "
               "NaN, inf and subnormals through conversions, casts and amp_all_finite") {
    if (!FP_TRAPPING) SKIP(FP_WHY);
    CHECK(fp_runs_without_trap(count_wrong_conversions));
    CHECK_EQ_U32(wrong, 0);
}

/* ----------------------------------------------------------------- every tier */

#define RUN_IN_TIER(name)                                  \
    do {                                                   \
        char label[80];                                    \
        sprintf(label, "%s/%s", #name, second_tier);       \
        test_run(label, test_text_##name, test_##name);    \
    } while (0)

TEST(numbers_in_words, "law 19: numbers in these sentences: whole ones to the last digit, others to "
                       "seven, in every size") {
    static const struct { double x; const char *text; } cases[] = {
        {0.0, "0"}, {-1.0, "-1"}, {0.1, "0.1"}, {1.5, "1.5"}, {123456.789, "123456.8"},
        {1234567.5, "1234568"}, {0.00012345678, "0.0001234568"}, {0.00001, "1e-5"},
        {9007199254740993.0, "9.007199e15"}, {8999999999999999.0, "8999999999999999"},
        {123456789012.25, "123456800000"}, {5e-324, "4.940656e-324"},
        {1.7976931348623157e308, "1.797693e308"}, {9.9999999, "10"}, {-2.5e-7, "-2.5e-7"}};
    const uint32_t mode = fp_get(); /* -Ofast links flush subnormals from the start */
    char           text[300];
    size_t         i;
    fp_set(FP_IEEE);
    for (i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const double x = cases[i].x;
        white_tell_number(&x);
        if (strcmp(amp_problem(), cases[i].text) != 0) test_fail(__FILE__, __LINE__, cases[i].text, amp_problem());
    }
    memset(text, 'a', sizeof text - 1); /* no room: cut, and still a string */
    text[sizeof text - 1] = '\0';
    white_tell(text);
    CHECK_EQ_U64(strlen(amp_problem()), 199);
    CHECK(strspn(amp_problem(), "a") == 199);
    fp_set(mode);
}

int main(int argc, char **argv) {
    static const char *const tiers[] = {"amx", "avx512_bf16", "avx512", "avx2", "neon_bf16", "neon", "c"};
    char                     best[16];
    size_t                   i;
    test_begin(argc, argv);
    sprintf(best, "%.15s", amp_cpu_tier());
    printf("# tier %s\n", best);
    RUN(version);
    RUN(known_values);
    RUN(f16_equals_hardware);
    RUN(f16_equals_reference);
    RUN(f16_function_equals_array);
    RUN(bf16_equals_reference);
    RUN(bf16_function_equals_array);
    RUN(narrowing_at_boundaries);
    RUN(f16_widens);
    RUN(f16_widening_equals_hardware);
    RUN(bf16_widens);
    RUN(half_to_other_half);
    RUN(cast_pairs_and_offsets);
    RUN(cast_longer);
    RUN(cast_streams);
    RUN(cast_in_place);
    RUN(cast_refuses);
    RUN(nonfinite_at_every_index);
    RUN(every_half_pattern);
    RUN(every_f32_pattern);
    RUN(finite_is_no_sum);
    RUN(all_finite_refuses);
    RUN(more_than_2_31);
    RUN(cast_beyond_2_32);
    RUN(any_rounding_mode);
    RUN(any_flush_mode);
    RUN(no_traps);
    for (i = 0; i < sizeof tiers / sizeof tiers[0]; i++) {
        if (strcmp(tiers[i], best) == 0 || amp_cpu_force_tier(tiers[i]) != AMP_OK) continue;
        second_tier = tiers[i];
        RUN_IN_TIER(f16_equals_reference);
        RUN_IN_TIER(f16_function_equals_array);
        RUN_IN_TIER(bf16_equals_reference);
        RUN_IN_TIER(f16_widens);
        RUN_IN_TIER(bf16_widens);
        RUN_IN_TIER(half_to_other_half);
        RUN_IN_TIER(cast_pairs_and_offsets);
        RUN_IN_TIER(cast_longer);
        RUN_IN_TIER(cast_streams);
        RUN_IN_TIER(cast_in_place);
        RUN_IN_TIER(nonfinite_at_every_index);
        RUN_IN_TIER(every_half_pattern);
        RUN_IN_TIER(every_f32_pattern);
        RUN_IN_TIER(finite_is_no_sum);
        RUN_IN_TIER(any_rounding_mode);
        RUN_IN_TIER(any_flush_mode);
        RUN_IN_TIER(no_traps);
    }
    RUN(numbers_in_words);
    return test_end();
}
