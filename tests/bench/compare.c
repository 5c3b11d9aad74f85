/* compare.c - two versions of amp.h in one process, row by row in turns: make bench-compare REF=...

   A line is "tier row ratio [quartiles] ms": the other version's time over the new one's, and the new
   one's. Arrays are the same for both. A row below .95 is measured again, at most twice, with
   optimizers made anew; it is slower if all three medians are below. Exit status: 0, or 1 if a row
   is slower, or 2 if none was measured. Words choose rows: those that have all of them. */

#define _POSIX_C_SOURCE 200809L
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "compare.h"

enum { ROOM = 1 << 24, L2 = 100000, STEPS = 1 << 22, ROUNDS = 15, ATTEMPTS = 3, MAX_SLOW = 1000 };

static const double bar = 0.95, turn = 2e-3, most = 1.0; /* seconds: a turn; a row's turns */

static const char *const types[] = {"fp32", "fp16", "bf16"};
static void             *data[3]; /* the same numbers in each type */
static float            *written;

static const row none;

static char **words;
static int    num_words, num_rows, num_slow;
static char   slow[MAX_SLOW][80], tier[16];

static double seconds(const side *s, const row *r, int repeat) {
    double start;
    int    i;
    if (repeat > 1) s->run(r);
    start = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    for (i = 0; i < repeat; i++) s->run(r);
    return (seconds_of(CLOCK_PROCESS_CPUTIME_ID) - start) / repeat;
}

/* Weights of an ordinary size: some storage formats leave NaN there. */
static int begin(const side *s, const row *r) {
    if (r->what == STEP) memcpy(written, data[0], 4 * r->n);
    return s->begin(r);
}

/* Median and quartiles of ref's time over new's; zero if a version does not have it. */
static int measure(const row *r, double *ratio, double *time) {
    double    x[ROUNDS], t[ROUNDS], once;
    const int has_new = begin(&side_new, r), has_ref = begin(&side_ref, r);
    int       repeat, rounds, i;
    if (has_new && has_ref) {
        seconds(&side_new, r, 2);
        seconds(&side_ref, r, 2);
        once   = seconds(&side_ref, r, 1);
        repeat = once > turn ? 1 : (int)(turn / (once + 1e-9)) + 1;
        rounds = once < most / ROUNDS ? ROUNDS : 5;
        for (i = 0; i < rounds; i++) { /* each begins every other round */
            const double first  = seconds(i % 2 ? &side_ref : &side_new, r, repeat);
            const double second = seconds(i % 2 ? &side_new : &side_ref, r, repeat);
            t[i]                = i % 2 ? second : first;
            x[i]                = i % 2 ? first / second : second / first;
        }
        for (i = 0; i < 3; i++) ratio[i] = quantile(x, rounds, 0.25 * (i + 1));
        *time = quantile(t, rounds, 0.5);
    }
    side_new.end();
    side_ref.end();
    return has_new && has_ref;
}

/* Is every word that was given one of the row's? */
static int chosen(const char *name) {
    char text[96], word[96];
    int  i;
    snprintf(text, sizeof text, " %s ", name);
    for (i = 0; i < num_words; i++) {
        snprintf(word, sizeof word, " %s ", words[i]);
        if (strstr(text, word) == NULL) return 0;
    }
    return 1;
}

static void compare(const char *text, row *r) {
    char   name[80];
    double ratio[3], time;
    int    i;
    r->b = data[r->type]; /* a product's A lies behind its B, or is the end of a whole matrix */
    r->a = r->what == PRODUCT ? (char *)data[r->type] + (size_t)ROOM / 4 * (r->type ? 6 : 12) : r->b;
    r->c = written;
    snprintf(name, sizeof name, "%s %s", tier, text);
    if (!chosen(name)) return;
    for (i = 0; i < ATTEMPTS; i++) {
        if (!measure(r, ratio, &time)) {
            printf("skip %s: not in both versions\n", name);
            return;
        }
        printf("%-46s %5.2f [%.2f %.2f] %10.4f ms%s\n", name, ratio[1], ratio[0], ratio[2],
               1e3 * time, i ? "  again" : "");
        fflush(stdout);
        if (ratio[1] >= bar) break;
    }
    num_rows++;
    if (i == ATTEMPTS && num_slow < MAX_SLOW) strcpy(slow[num_slow++], name);
}

static void arrays(void) {
    static const struct { const char *name; call what; int type, to; } calls[] = {
        {"cast f32-f16", CAST, 0, 1},  {"cast f16-f32", CAST, 1, 0},  {"cast f32-bf16", CAST, 0, 2},
        {"cast bf16-f32", CAST, 2, 0}, {"check fp32", CHECK, 0, 0},   {"check fp16", CHECK, 1, 0},
        {"check bf16", CHECK, 2, 0},   {"unscale fp32", UNSCALE, 0, 0}, {"unscale fp16", UNSCALE, 1, 0},
        {"unscale bf16", UNSCALE, 2, 0}};
    char name[64];
    int  i;
    for (i = 0; i < 20; i++) {
        row r = none;
        r.what = calls[i % 10].what, r.type = calls[i % 10].type, r.to = calls[i % 10].to;
        r.n = i < 10 ? L2 : ROOM;
        snprintf(name, sizeof name, "%s %lu", calls[i % 10].name, (unsigned long)r.n);
        compare(name, &r);
    }
}

static void steps(void) {
    static const char *const kinds[]   = {"own", "adamw", "sgd", "lion"};
    static const char *const formats[] = {"split", "split+bf16", "split+8bit", "sr", "sr+bf16",
                                          "sr+8bit"};
    row  r = none;
    char name[64];
    int  i;
    r.what = STEP, r.n = STEPS;
    for (i = 0; i < 12; i++) {
        r.kind = i / 3, r.type = i % 3;
        snprintf(name, sizeof name, "step %s %s", kinds[r.kind], types[r.type]);
        compare(name, &r);
    }
    r.kind = 1, r.type = 2;
    for (i = 0; i < (int)(sizeof formats / sizeof formats[0]); i++) {
        r.storage = formats[i];
        snprintf(name, sizeof name, "storage %s", formats[i]);
        compare(name, &r);
    }
}

/* In each type; all but the small ones also of fp32 that is rounded to 16 bits or taken as TF32. */
static void product(const char *text, int m, int cols, int k, int trans_a, int trans_b, int count) {
    static const char *const names[] = {"fp32", "fp16", "bf16", "fp32-fp16", "fp32-bf16", "tf32"};
    char                     name[80];
    int                      i;
    for (i = 0; i < (count > 1 || m == 1 ? 3 : 6); i++) {
        row r = none;
        r.what = PRODUCT, r.type = i < 3 ? i : 0, r.to = i == 3 || i == 4 ? i - 2 : 0, r.tf32 = i == 5;
        r.m = (size_t)m, r.cols = (size_t)cols, r.k = (size_t)k, r.count = (size_t)count;
        r.trans_a = trans_a, r.trans_b = trans_b;
        snprintf(name, sizeof name, "%s %s %dx%dx%d %c%c", text, names[i], m, cols, k,
                 trans_a ? 'T' : 'N', trans_b ? 'T' : 'N');
        compare(name, &r);
    }
}

static void products(void) {
    static const int shapes[][5] = {{512, 512, 512, 0, 0},    {1024, 1024, 1024, 0, 0},
                                    {2048, 2048, 2048, 0, 0}, {256, 3072, 768, 0, 0},
                                    {1024, 768, 768, 0, 1},   {768, 768, 1024, 1, 0},
                                    {784, 512, 64, 1, 0},     {64, 512, 784, 0, 0}};
    int              i;
    for (i = strcmp(tier, "c") == 0 ? 6 : 0; i < 8; i++) /* plain C: the last two */
        product("gemm", shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3], shapes[i][4], 1);
    for (i = 4; i <= 16; i *= 2) product("batch", i, i, i, 0, 0, 2000);
    product("gemv-rows", 1, 4096, 4096, 0, 0, 1);
    product("gemv-k", 1, 4096, 4096, 0, 1, 1);
    product("dot", 1, 1, 4096, 0, 0, 1);
}

static int allocate(void) {
    row      r = none;
    uint32_t i;
    written = (float *)calloc(ROOM, 4);
    for (r.to = 0; r.to < 3; r.to++)
        if ((data[r.to] = malloc((size_t)ROOM * (r.to ? 2 : 4))) == NULL || !written) return 0;
    for (i = 0; i < ROOM; i++)
        ((float *)data[0])[i] = (float)(i * 2654435761u >> 8 & 0xffffu) * 1e-5f - 0.3f;
    for (r.to = 1; r.to < 3; r.to++) {
        r.n = ROOM, r.a = data[0], r.c = data[r.to];
        side_new.run(&r);
    }
    return 1;
}

int main(int argc, char **argv) {
    static const char *const tiers[] = {"amx",  "avx512_bf16", "avx512", "avx2", "neon_bf16",
                                        "neon", "c"};
    int                      i;
    words     = argv + 1;
    num_words = argc - 1;
    if (!allocate()) {
        fprintf(stderr, "compare: no memory for 192 MB of arrays\n");
        return 2;
    }
    printf("%s beside %s: ratio [quartiles], time of the first\n", side_new.version, side_ref.version);
    for (i = 0; i < 7; i++) {
        strcpy(tier, tiers[i]);
        if (!side_new.force(tier) || !side_ref.force(tier)) {
            printf("skip %s: not on this machine, or not in both versions\n", tier);
            continue;
        }
        arrays();
        steps();
        products();
    }
    for (i = 0; i < num_slow; i++) printf("SLOWER %s\n", slow[i]);
    printf("%d rows, %d slower\n", num_rows, num_slow);
    return num_slow ? 1 : num_rows ? 0 : 2;
}
