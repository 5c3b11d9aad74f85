/* test.h - a test is a function, a result is a line.

       TEST(halves_round, "law 2: conversions round to nearest even") {
           CHECK_EQ_U32(amp_f32_to_f16(1.0f).bits, 0x3c00);
       }
       int main(int argc, char **argv) {
           test_begin(argc, argv);          understands --filter SUBSTRING and --quick
           RUN(halves_round);
           return test_end();               0 if nothing failed
       }

   Output: "ok   name: text", "skip name: reason" or "FAIL name: text" with an indented line per
   failing check; after MAX_FAILURES of them the test stops. The last line of the program counts.
   A program of which no test passed has failed, whatever the reason; so has one of which a check
   outside its tests fails, and a test that has checked nothing. A test without its RUN does not
   compile. */

#ifndef TEST_H_INCLUDED
#define TEST_H_INCLUDED

#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* From here to the end of the unit: a static function that nobody calls is an error. */
#if defined(__CUDACC__)
#pragma nv_diag_error 177
#elif defined(__GNUC__)
#pragma GCC diagnostic error "-Wunused-function"
#endif

enum { TEST_MAX_FAILURES = 10 };

static struct {
    const char *filter, *name, *text; /* of the running test; name is NULL between tests */
    const char *skip;                 /* why it was skipped, or NULL */
    int         quick;                /* --quick or AMP_QUICK=1: sample where all would take long;
                                         2: fewer still, for a processor that is emulated */
    int         names;                /* AMP_TEST_NAMES: each before its test begins */
    int         part, parts, number;  /* AMP_TEST_PART=1of2: the first, third, fifth test ... */
    const char *after;                /* AMP_TEST_AFTER=NAME: only tests behind that one */
    int         checked, failures;    /* of the running test: has it met a check? how many failed? */
    int         num_passed, num_failed, num_skipped;
    jmp_buf     stop;
} test_state;

#define TEST(name, text)                           \
    static const char *const test_text_##name = text; \
    static void test_##name(void)
#define RUN(name) test_run(#name, test_text_##name, test_##name)

/* End the running test, counted as skipped (as failed if a check has failed already). */
#define SKIP(reason) (test_state.skip = (reason), longjmp(test_state.stop, 1))

/* The running test takes seconds on an emulated processor, and has nothing to do with its vectors or
   its order of bytes: make check has it there. */
static inline void skip_if_emulated(void) {
    if (test_state.quick > 1) SKIP("takes seconds in an emulator: make check");
}

static inline void test_begin(int argc, char **argv) {
    const char *quick = getenv("AMP_QUICK"), *part = getenv("AMP_TEST_PART");
    int         i;
    test_state.part = test_state.parts = 1;
    if (part != NULL && sscanf(part, "%dof%d", &test_state.part, &test_state.parts) != 2) {
        fprintf(stderr, "AMP_TEST_PART=%s: 1of2 is the first half\n", part);
        exit(2);
    }
    test_state.names = getenv("AMP_TEST_NAMES") != NULL;
    test_state.after = getenv("AMP_TEST_AFTER");
    if (test_state.after != NULL && test_state.after[0] == '\0') test_state.after = NULL;
    test_state.quick = quick == NULL || quick[0] == '\0' || quick[0] == '0' ? 0 : 1 + (quick[0] == '2');
    for (i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) test_state.quick = 1;
        else if (strcmp(argv[i], "--filter") == 0 && i + 1 < argc) test_state.filter = argv[++i];
        else {
            fprintf(stderr, "usage: %s [--quick] [--filter SUBSTRING]\n", argv[0]);
            exit(2);
        }
    }
    if (test_state.quick) printf("# quick: where a text says all 2^32, a sample is tested\n");
}

/* How much of something a test does: what a variable of the environment says (make soak), or else this. */
static inline long test_amount(const char *variable, long otherwise) {
    const char *value = getenv(variable);
    return value != NULL && value[0] != '\0' ? strtol(value, NULL, 10) : otherwise;
}

/* Report a failing check: the first one prints the test's own line. */
static inline void test_fail(const char *file, int line, const char *what, const char *values) {
    if (test_state.name == NULL) {
        printf("FAIL main: a check outside the tests\n");
        test_state.num_failed++;
    } else if (test_state.failures++ == 0) {
        printf("FAIL %s: %s\n", test_state.name, test_state.text);
    }
    printf("     %s:%d: %s%s%s\n", file, line, what, values[0] != '\0' ? ": " : "", values);
    fflush(stdout); /* for the next check may crash, or never end */
    if (test_state.name == NULL || test_state.failures < TEST_MAX_FAILURES) return;
    printf("     stopped after %d failing checks\n", TEST_MAX_FAILURES);
    longjmp(test_state.stop, 1);
}

static inline void test_run(const char *name, const char *text, void (*function)(void)) {
    if (test_state.filter != NULL && strstr(name, test_state.filter) == NULL) return;
    if (test_state.number++ % test_state.parts != test_state.part - 1) return;
    if (test_state.after != NULL) {
        if (strcmp(name, test_state.after) == 0) test_state.after = NULL;
        return;
    }
    test_state.name     = name;
    test_state.text     = text;
    test_state.skip     = NULL;
    test_state.checked  = 0;
    test_state.failures = 0;
    if (test_state.names) printf("# %s begins\n", name);
    fflush(stdout);
    if (setjmp(test_state.stop) == 0) function();
    if (!test_state.checked && test_state.failures == 0 && test_state.skip == NULL)
        test_fail(__FILE__, __LINE__, "it has checked nothing", "");
    test_state.name = NULL;
    if (test_state.failures > 0) {
        test_state.num_failed++;
    } else if (test_state.skip != NULL) {
        test_state.num_skipped++;
        printf("skip %s: %s\n", name, test_state.skip);
    } else {
        test_state.num_passed++;
        printf("ok   %s: %s\n", name, text);
    }
    fflush(stdout);
}

static inline int test_end(void) {
    if (test_state.num_passed + test_state.num_failed == 0) {
        test_state.num_failed++;
        if (test_state.num_skipped > 0) printf("FAIL main: all tests were skipped\n");
        else printf("FAIL main: no test ran%s%s\n", test_state.filter ? " of those named " : "",
                    test_state.filter ? test_state.filter : "");
    }
    printf("%d passed, %d failed", test_state.num_passed, test_state.num_failed);
    if (test_state.num_skipped > 0) printf(", %d skipped", test_state.num_skipped);
    printf("\n");
    return test_state.num_failed > 0;
}

static inline void test_eq_u64(const char *file, int line, const char *what,
                               uint64_t a, uint64_t b) {
    char values[128];
    test_state.checked = 1;
    if (a == b) return;
    snprintf(values, sizeof values, "%llu (0x%llx) is not %llu (0x%llx)", (unsigned long long)a,
             (unsigned long long)a, (unsigned long long)b, (unsigned long long)b);
    test_fail(file, line, what, values);
}

static inline void test_eq_int(const char *file, int line, const char *what,
                               long long a, long long b) {
    char values[96];
    test_state.checked = 1;
    if (a == b) return;
    snprintf(values, sizeof values, "%lld is not %lld", a, b);
    test_fail(file, line, what, values);
}

/* Floats are compared by their bits: -0 is not 0, and a NaN equals itself. Read through pointers,
   so that no register format and no fast-math flag touches them. */
static inline void test_eq_f32(const char *file, int line, const char *what,
                               const float *a, const float *b) {
    char     values[128];
    uint32_t ua, ub;
    memcpy(&ua, a, 4);
    memcpy(&ub, b, 4);
    test_state.checked = 1;
    if (ua == ub) return;
    snprintf(values, sizeof values, "%.9g (0x%08lx) is not %.9g (0x%08lx)", (double)*a,
             (unsigned long)ua, (double)*b, (unsigned long)ub);
    test_fail(file, line, what, values);
}

static inline void test_eq_f64(const char *file, int line, const char *what,
                               const double *a, const double *b) {
    char     values[128];
    uint64_t ua, ub;
    memcpy(&ua, a, 8);
    memcpy(&ub, b, 8);
    test_state.checked = 1;
    if (ua == ub) return;
    snprintf(values, sizeof values, "%.17g (0x%016llx) is not %.17g (0x%016llx)", *a,
             (unsigned long long)ua, *b, (unsigned long long)ub);
    test_fail(file, line, what, values);
}

static inline void test_mem(const char *file, int line, const char *what,
                            const void *a, const void *b, size_t n) {
    const unsigned char *p = (const unsigned char *)a, *q = (const unsigned char *)b;
    char                 values[96];
    size_t               i = 0;
    if (n == 0) return;
    test_state.checked = 1;
    if (memcmp(a, b, n) == 0) return;
    while (p[i] == q[i]) i++;
    snprintf(values, sizeof values, "byte %lu of %lu: 0x%02x is not 0x%02x", (unsigned long)i,
             (unsigned long)n, p[i], q[i]);
    test_fail(file, line, what, values);
}

/* What a call says of itself by amp_problem, where there was an older text: these words if it is refused (NULL: any but
   the older text), nothing else if it is AMP_OK. */
#define TEST_OLDER "backend is NULL"
#define test_older() ((void)amp_cpu_backend(NULL))
static inline void test_says(const char *file, int line, const char *call, int is, int should,
                             const char *why, const char *words) {
    const int told = should == 0 ? strcmp(why, TEST_OLDER) == 0
                     : words     ? strstr(why, words) != NULL
                                 : why[0] != '\0' && strcmp(why, TEST_OLDER) != 0;
    char      values[512];
    test_state.checked = 1;
    if (is == should && told) return;
    snprintf(values, sizeof values, "%d, and must be %d; it says \"%s\"", is, should, why);
    test_fail(file, line, call, values);
}
#define SAYS(call, result, words) \
    (test_older(), test_says(__FILE__, __LINE__, #call, (int)(call), (int)(result), amp_problem(), words))

#define CHECK(cond) \
    (test_state.checked = 1, (cond) ? (void)0 : test_fail(__FILE__, __LINE__, "CHECK(" #cond ")", ""))
#define CHECK_EQ_U32(a, b) CHECK_EQ_U64(a, b)
#define CHECK_EQ_U64(a, b) \
    test_eq_u64(__FILE__, __LINE__, #a " == " #b, (uint64_t)(a), (uint64_t)(b))
#define CHECK_EQ_INT(a, b) \
    test_eq_int(__FILE__, __LINE__, #a " == " #b, (long long)(a), (long long)(b))
#define CHECK_EQ_F32(a, b)                                                 \
    do {                                                                   \
        const float test_a = (a), test_b = (b);                            \
        test_eq_f32(__FILE__, __LINE__, #a " == " #b, &test_a, &test_b);   \
    } while (0)
#define CHECK_EQ_F64(a, b)                                                 \
    do {                                                                   \
        const double test_a = (a), test_b = (b);                           \
        test_eq_f64(__FILE__, __LINE__, #a " == " #b, &test_a, &test_b);   \
    } while (0)
#define CHECK_MEM(a, b, n) test_mem(__FILE__, __LINE__, "bytes of " #a " == " #b, a, b, n)

#endif
