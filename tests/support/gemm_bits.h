/* gemm_bits.h - products of amp.h against models of them, bit by bit, on random shapes, types,
   transposes, leading dimensions, odd addresses, alpha, beta, bias, relu, batches and special
   values; and nothing outside C is written. Included after amp.h with AMP_KERNELS; amp.c's malloc
   fails where a product shall find none. */

#ifndef GEMM_BITS_H_INCLUDED
#define GEMM_BITS_H_INCLUDED

#include "random.h"
#include "tiles.h"
#include "white.h"

enum { BITS_C, BITS_FMA, BITS_TILES, BITS_PAIRS, BITS_MMLA }; /* how sums are rounded */
enum { BITS_MALLOC, BITS_WORKSPACE, BITS_STACK, BITS_MEMORIES }; /* where they are packed */

AMPI_STRICT_BEGIN

static size_t bits_most = 300; /* rows and columns of a big problem */

static int bits_coin(void) { return (int)random_below(2); }
static int bits_zero(float x) { return (tiles_bits(x) & 0x7fffffffu) == 0; }

static uint32_t bits_value(int kind) { /* of a float: moderate; small; moderate with specials */
    static const uint32_t special[] = {0, 0x80000000u, 0x7f800000u, 0xff800000u, 0x7fc00000u, 1u,
                                       0x3f800000u, 0x00800000u, 0x7f7fffffu, 0xff7fffffu};
    const uint32_t r = random_bits();
    if (kind == 2 && r % 64 == 0) return special[random_below(10)];
    if (kind == 1) return (r & 0x80ffffffu) | (40u + random_bits() % 40u) << 23;
    return (r & 0x807fffffu) | (120u + random_bits() % 12u) << 23;
}

/* A sum by its definition; a and b are a row and a column, as fp32; products of parts: 1, 3, 4. */
static float bits_sum(const float *a, const float *b, size_t k, int rule, int products) {
    const int        parts = products > 1 ? 2 : 1;
    static const int terms[4][2] = {{0, 1}, {0, 0}, {1, 0}, {1, 1}};
    uint32_t         x[2][16], y[2][16];
    float            s = 0.0f;
    size_t           p, q;
    int              i, t;
    for (p = 0; rule == BITS_C && p < k; p++) s = ampi_add(s, ampi_mul(a[p], b[p]));
    for (p = 0; rule == BITS_FMA && p < k; p++) s = tiles_fmaf(a[p], b[p], s);
    for (p = 0; rule == BITS_PAIRS && p < k; p += 2) {
        s = p + 1 < k ? tiles_fma(a[p + 1], b[p + 1], s) : tiles_fma(0.0f, 0.0f, s);
        s = tiles_fma(a[p], b[p], s);
    }
    for (p = 0; rule == BITS_MMLA && p < k; p += 4) {
        for (q = 0; q < 4; q += 2) {
            const float *u = a + p + q, *v = b + p + q;
            x[0][q / 2] = p + q < k ? tiles_bits(u[0]) >> 16 : 0;
            y[0][q / 2] = p + q < k ? tiles_bits(v[0]) >> 16 : 0;
            x[0][q / 2] |= p + q + 1 < k ? tiles_bits(u[1]) & 0xffff0000u : 0;
            y[0][q / 2] |= p + q + 1 < k ? tiles_bits(v[1]) & 0xffff0000u : 0;
        }
        s = tiles_mmla(s, x[0], y[0]);
    }
    for (p = 0; rule == BITS_TILES && p < k; p += 32) {
        for (q = 0; q < 32; q++) {
            float u = p + q < k ? a[p + q] : 0.0f, v = p + q < k ? b[p + q] : 0.0f;
            for (i = 0; i < parts; i++) { /* cut a bf16 off; nothing is left of inf and NaN */
                const uint32_t m = tiles_cut(u), n = tiles_cut(v);
                x[i][q / 2] = q % 2 ? x[i][q / 2] | m << 16 : m;
                y[i][q / 2] = q % 2 ? y[i][q / 2] | n << 16 : n;
                u = (m & 0x7f80u) == 0x7f80u ? 0.0f : ampi_sub(u, tiles_float(m << 16));
                v = (n & 0x7f80u) == 0x7f80u ? 0.0f : ampi_sub(v, tiles_float(n << 16));
            }
        }
        if (parts == 1) s = tiles_dot(s, x[0], y[0], 1);
        for (t = 0; parts == 2 && t < products; t++) s = tiles_dot(s, x[terms[t][0]], y[terms[t][1]], 1);
    }
    return s;
}

static uint32_t bits_at(const void *x, amp_dtype type, size_t i) {
    return type == AMP_F32 ? ampi_load_u32(x, i) : ampi_load_u16(x, i);
}

static int bits_same(uint32_t a, uint32_t b, amp_dtype type) { /* payloads of NaNs may differ */
    const uint32_t inf = type == AMP_F32 ? 0x7f800000u : type == AMP_F16 ? 0x7c00u : 0x7f80u;
    const uint32_t top = type == AMP_F32 ? 0x7fffffffu : 0x7fffu;
    return a == b || ((a & top) > inf && (b & top) > inf);
}

static unsigned char *bits_matrix(size_t n, amp_dtype type, int kind, size_t shift) {
    unsigned char *p = (unsigned char *)calloc(n * amp_dtype_size(type) + shift + 1, 1) + shift;
    size_t         i;
    for (i = 0; i < n; i++) ampi_store(p, type, i, bits_value(kind));
    return p;
}

/* The rule of the manual: which products of halves go to tiles, or go by pairs or fours. */
static int bits_rule(const amp_gemm_args *g, int rule) {
    const int bf16 = g->a_type == AMP_BF16 && g->b_type == AMP_BF16;
    const int halves = g->a_type != AMP_F32 && g->b_type != AMP_F32;
    if (rule == BITS_C || rule == BITS_FMA) return rule;
    if (rule == BITS_PAIRS) return bf16 ? rule : BITS_FMA;
    return (rule != BITS_TILES ? bf16 : halves || g->tf32) && g->m > 1 && g->n > 1 &&
                   g->m * g->n * g->k >= 32768 ? rule : BITS_FMA;
}

/* Sizes that tiles have ways of their own for: k in steps; B along k and longer than A; rows of C
   that are whole lines of the cache. Or a matrix times a vector: blocks of rows and of k, up to
   more than are taken at a time. Or of bf16, with hardly more work than goes in pairs. */
enum { BITS_STEPS = 4, BITS_LONG_B, BITS_LINES, BITS_THIN, BITS_LEAST };
static void bits_thin(amp_gemm_args *g) {
    const uint32_t way = (uint32_t)random_below(4);
    g->m = g->n = 1;
    g->k = (way == 1 ? 4060 : 1) + random_below(200);
    if (way) *(bits_coin() ? &g->m : &g->n) = (way == 2 ? 4060 : 1) + random_below(100);
}
static void bits_sizes(amp_gemm_args *g, int big) {
    g->m = 2 + random_below(40);
    g->n = 2 + (big == BITS_STEPS && random_below(8) == 0 ? 700u : 0u) + random_below(100);
    g->k = big == BITS_STEPS ? 641 + random_below(random_below(4) ? 200 : 1900)
                             : g->m + random_below(random_below(4) ? 60 : 300);
    if (big == BITS_LONG_B) g->n += g->m, g->trans_b = 1;
    if (big == BITS_LINES) g->n = 256 + 16 * random_below(8);
    if (big == BITS_LEAST) g->k = 32768 / (g->m * g->n) + 1 + random_below(9);
}

/* big: 1 larger; 2 more rows and k than a panel takes, 3 more k; or as above. halves: both operands
   are; 2: and there is work for tiles. */
static amp_gemm_args bits_problem(int big, int halves) {
    static const size_t edge[] = {1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 47, 64, 65};
    amp_gemm_args       g;
    memset(&g, 0, sizeof g);
    g.trans_a = bits_coin();
    g.trans_b = bits_coin();
    g.activation = bits_coin() ? AMP_ACTIVATION_RELU : AMP_ACTIVATION_NONE;
    g.m       = random_below(3) ? edge[random_below(14)] : 1 + random_below(100);
    g.n       = random_below(3) ? edge[random_below(14)] : 1 + random_below(100);
    if (big) g.m = 1 + (big == 2 ? 1024 + random_below(70) : random_below(bits_most));
    if (big) g.n = 1 + (big >= 2 ? 32 + random_below(20) : random_below(bits_most));
    g.k = random_below(16) ? (bits_coin() ? edge[random_below(14)] : 1 + random_below(300)) : 0;
    if (big) g.k = big >= 2 ? 2100 : 1 + random_below(2500);
    if (big == BITS_THIN) bits_thin(&g);
    else if (big >= BITS_STEPS) bits_sizes(&g, big);
    if (halves == 2 && (g.m == 1 || g.n == 1 || g.m * g.n * g.k < 32768))
        return bits_problem(big, halves);
    g.a_type = (amp_dtype)(halves ? 1 + random_below(2) : random_below(3));
    g.b_type = (amp_dtype)(halves ? 1 + random_below(2) : random_below(3));
    if (halves && big >= BITS_STEPS && (big == BITS_LEAST || bits_coin())) g.a_type = g.b_type = AMP_BF16;
    g.c_type = (amp_dtype)random_below(3);
    g.lda    = (g.trans_a ? g.m : g.k) + random_below(3) * random_below(9);
    g.ldb    = (g.trans_b ? g.k : g.n) + random_below(3) * random_below(9);
    g.ldc    = g.n + random_below(3) * random_below(9);
    if (!g.lda) g.lda = 1;
    if (!g.ldb) g.ldb = 1;
    g.count    = (big && big < BITS_LONG_B) || big == BITS_LEAST || random_below(4) ? 1 : 1 + random_below(3);
    if (big == BITS_LINES) g.ldc = g.n + 16 * random_below(3);
    g.stride_a = random_below(3) ? (g.trans_a ? g.k : g.m) * g.lda : 0;
    g.stride_b = random_below(3) ? (g.trans_b ? g.n : g.k) * g.ldb : 0;
    g.stride_c = g.m * g.ldc;
    if (g.count > 1 && bits_coin()) { /* products side by side */
        g.stride_c = g.n;
        g.ldc      = g.n * g.count + (big == BITS_LINES ? 0 : random_below(3));
    } else if (g.count > 1) {
        g.stride_c += random_below(2) * random_below(40);
    }
    g.alpha = bits_coin() ? 1.0f : random_below(8) ? tiles_float(bits_value(0)) : 0.0f;
    g.beta  = bits_coin() ? 0.0f : tiles_float(bits_value(0));
    g.tf32  = random_below(3) == 0;
    return g;
}

/* What element (i, j) of product z should be; old is C before. */
static uint32_t bits_wanted(const amp_gemm_args *g, const void *old, size_t z, size_t i, size_t j,
                            int rule, float *row, float *col) {
    const size_t at = z * g->stride_c + i * g->ldc + j;
    const int    products = g->a_type == AMP_BF16 && g->b_type == AMP_BF16 ? 1 : g->tf32 ? 3 : 4;
    float        s = 0.0f;
    uint32_t     out[1] = {0};
    size_t       p;
    for (p = 0; p < g->k; p++) {
        row[p] = tiles_float(ampi_load(
            g->a, g->a_type, z * g->stride_a + (g->trans_a ? p * g->lda + i : i * g->lda + p)));
        col[p] = tiles_float(ampi_load(
            g->b, g->b_type, z * g->stride_b + (g->trans_b ? j * g->ldb + p : p * g->ldb + j)));
    }
    if (!bits_zero(g->alpha) && g->k)
        s = ampi_mul(bits_sum(row, col, g->k, bits_rule(g, rule), products), g->alpha);
    if (!bits_zero(g->beta))
        s = ampi_add(s, ampi_mul(g->beta, tiles_float(ampi_load(old, g->c_type, at))));
    if (g->bias) s = ampi_add(s, tiles_float(ampi_load(g->bias, g->bias_type, j)));
    if (g->activation && tiles_bits(s) - 0x80000000u <= 0x7f800000u) s = 0.0f;
    ampi_store(out, g->c_type, 0, ampi_bits_of_f32(s));
    return bits_at(out, g->c_type, 0);
}

static void bits_fail(const amp_gemm_args *g, const char *what, size_t i, size_t j, uint32_t got,
                      uint32_t wanted) {
    char text[240];
    snprintf(text, sizeof text, "%lux%lux%lu trans %d%d types %d%d%d alpha %g beta %g bias %d relu "
             "%d tf32 %d count %lu, (%lu, %lu): 0x%lx, not 0x%lx", (unsigned long)g->m,
             (unsigned long)g->n, (unsigned long)g->k, g->trans_a, g->trans_b, (int)g->a_type,
             (int)g->b_type, (int)g->c_type, (double)g->alpha, (double)g->beta, g->bias != NULL,
             (int)g->activation, g->tf32, (unsigned long)g->count, (unsigned long)i, (unsigned long)j,
             (unsigned long)got, (unsigned long)wanted);
    test_fail(__FILE__, __LINE__, what, text);
}

/* Compare C with the model, at elements spread so that the model's work has a limit. */
static void bits_compare(const amp_gemm_args *g, const void *old, int rule, size_t limit) {
    float       *row = (float *)calloc(g->k + 1, 4), *col = (float *)calloc(g->k + 1, 4);
    const size_t step = 1 + g->m * g->n * g->k / limit;
    size_t       z, e, i, j;
    for (z = 0; z < g->count; z++)
        for (e = random_below(step); e < g->m * g->n; e += step) {
            uint32_t got, wanted;
            i      = e / g->n;
            j      = e % g->n;
            got    = bits_at(g->c, g->c_type, z * g->stride_c + i * g->ldc + j);
            wanted = bits_wanted(g, old, z, i, j, rule, row, col);
            if (!bits_same(got, wanted, g->c_type)) bits_fail(g, "the model", i, j, got, wanted);
        }
    free(row);
    free(col);
}

/* All bytes of C's array that are not C are as before. */
static void bits_outside(const amp_gemm_args *g, void *old, size_t n) {
    const size_t size = amp_dtype_size(g->c_type);
    size_t       z, i;
    for (z = 0; z < g->count; z++)
        for (i = 0; i < g->m; i++) {
            const size_t at = (z * g->stride_c + i * g->ldc) * size;
            memcpy((char *)old + at, (const char *)g->c + at, g->n * size);
        }
    if (memcmp(old, g->c, n * size) != 0) bits_fail(g, "written outside of C", 0, 0, 0, 0);
}

/* Where C begins: mostly where elements may, but not always. */
static size_t bits_shift(const amp_gemm_args *g, int big, size_t odd) {
    const size_t size = amp_dtype_size(g->c_type);
    return big == BITS_LINES ? random_below(64 / size) * size : odd * 3;
}

/* One random product, in the first kinds of memory. */
static void bits_one(int rule, int big, int halves, int memories, size_t limit) {
    amp_gemm_args  g    = bits_problem(big, halves);
    const int      kind = (int)random_below(3);
    const size_t   odd  = random_below(2), extra = 8;
    const size_t   cn   = g.stride_c * (g.count - 1) + g.m * g.ldc + extra;
    const size_t   size = amp_dtype_size(g.c_type), room = amp_gemm_workspace(g.m, g.n, g.k);
    const size_t   shift = bits_shift(&g, big, odd);
    unsigned char *a, *b, *c, *bias, *old, *first, *space;
    amp_backend    backend;
    int            memory;
    a = bits_matrix(g.lda * (g.trans_a ? g.k : g.m) * g.count, g.a_type, kind, odd * 1);
    b = bits_matrix(g.ldb * (g.trans_b ? g.n : g.k) * g.count, g.b_type, kind, odd * 2);
    c = bits_matrix(cn, g.c_type, kind == 1 ? 1 : 0, shift);
    g.bias_type = (amp_dtype)random_below(3);
    bias        = bits_matrix(g.n, g.bias_type, 0, odd * 5);
    old   = (unsigned char *)calloc(cn, size);
    first = (unsigned char *)calloc(cn, size);
    space = (unsigned char *)calloc(room, 1);
    memcpy(old, c, cn * size);
    g.a = a;
    g.b = b;
    g.c = c;
    if (bits_coin()) g.bias = bias;
    amp_cpu_backend(&backend);
    for (memory = 0; memory < memories; memory++) {
        const long calls = white_malloc_calls;
        memcpy(c, old, cn * size);
        backend.workspace      = memory == BITS_WORKSPACE ? space : NULL;
        backend.workspace_size = memory == BITS_WORKSPACE ? room : 0;
        white_malloc_fails           = memory == BITS_STACK;
        CHECK_EQ_INT(backend.functions->gemm_fn(&backend, &g), AMP_OK);
        white_malloc_fails = 0;
        CHECK(white_malloc_calls == calls ||
              (memory != BITS_WORKSPACE && white_malloc_calls == calls + 1 &&
               (double)g.m * (double)g.n * (double)g.k > 4194304.0));
        if (memory == 0) {
            bits_compare(&g, old, rule, limit);
            memcpy(first, c, cn * size);
        } else if (memcmp(first, c, cn * size) != 0) {
            bits_fail(&g, memory == BITS_STACK ? "on the stack" : "in a workspace", 0, 0, 0, 0);
        }
    }
    memcpy(first, old, cn * size);
    bits_outside(&g, first, cn);
    free(a - odd * 1);
    free(b - odd * 2);
    free(c - shift);
    free(bias - odd * 5);
    free(old);
    free(first);
    free(space);
}

/* One random product with compute, of operands of fp32 or of its type, beside amp_cast of what is
   fp32 and then the product. Values are any bits at all, or those of bits_value. */
static void bits_rounded(amp_dtype compute, int big, int halves) {
    static const uint32_t hostile[] = {0x00000001u, 0x007f7fffu, 0x007f8000u, 0x007fffffu, 0x00800000u,
                                       0x33000000u, 0x33000001u, 0x387fe000u, 0x387fefffu, 0x477fefffu,
                                       0x477ff000u, 0x7f7f7fffu, 0x7f7f8000u, 0x7f7fffffu, 0x7f800000u,
                                       0x7f800001u, 0x7fffffffu, 0x3f808000u, 0x3f818000u, 0x0u};
    amp_gemm_args  g    = bits_problem(big, halves), wanted;
    const int      kind = (int)random_below(3), wild = random_below(4) == 0;
    const size_t   size = amp_dtype_size(g.c_type), cn = g.stride_c * (g.count - 1) + g.m * g.ldc;
    const size_t   an = g.lda * (g.trans_a ? g.k : g.m) * g.count, odd = random_below(2);
    const size_t   bn = g.ldb * (g.trans_b ? g.n : g.k) * g.count, shift = bits_shift(&g, big, 0);
    unsigned char *a, *b, *c, *d, *a16, *b16;
    size_t         i;
    g.a_type = random_below(3) ? AMP_F32 : compute;
    g.b_type = random_below(3) && g.a_type != AMP_F32 ? compute : AMP_F32;
    g.compute = compute;
    a = bits_matrix(an, g.a_type, kind, odd);
    b = bits_matrix(bn, g.b_type, kind, odd * 3);
    for (i = 0; wild && i < an; i++)
        if (random_below(4) == 0)
            ampi_store(a, g.a_type, i, hostile[random_below(20)] | random_bits() << 31);
    for (i = 0; wild && i < bn; i++)
        if (random_below(8) == 0) ampi_store(b, g.b_type, i, random_bits());
    a16 = (unsigned char *)calloc(an + 1, 2);
    b16 = (unsigned char *)calloc(bn + 1, 2);
    amp_cast(a16, compute, a, g.a_type, an);
    amp_cast(b16, compute, b, g.b_type, bn);
    c = bits_matrix(cn, g.c_type, 0, shift);
    d = (unsigned char *)calloc(cn, size);
    memcpy(d, c, cn * size);
    g.a            = a;
    g.b            = b;
    g.c            = c;
    wanted         = g;
    wanted.a       = a16;
    wanted.b       = b16;
    wanted.c       = d;
    wanted.compute = AMP_F32;
    wanted.a_type = wanted.b_type = compute;
    CHECK_EQ_INT(amp_gemm(NULL, &g), AMP_OK);
    CHECK_EQ_INT(amp_gemm(NULL, &wanted), AMP_OK);
    for (i = 0; i < cn; i++)
        if (!bits_same(bits_at(c, g.c_type, i), bits_at(d, g.c_type, i), g.c_type)) {
            bits_fail(&g, "amp_cast, then the product", i / g.ldc, i % g.ldc, bits_at(c, g.c_type, i),
                      bits_at(d, g.c_type, i));
            break;
        }
    free(a - odd);
    free(b - odd * 3);
    free(a16);
    free(b16);
    free(c - shift);
    free(d);
}

AMPI_STRICT_END
#endif
