/* fuzz.h - a fuzzer takes any bytes as the description of a case and checks what must hold of it.

       int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
           fuzz_bytes b = {data, data + size};
           unsigned   which = fuzz_u8(&b);
           PROPERTY(works(which), "it works whatever is chosen");
           return 0;
       }

   main is libFuzzer's (clang -fsanitize=fuzzer) or that of driver.c. The corpora, one case a line,
   are read by driver.c. */

#ifndef FUZZ_H_INCLUDED
#define FUZZ_H_INCLUDED

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* End the program, with a line that tests/host/fuzz.sh looks for, unless cond holds. */
#define PROPERTY(cond, text) ((cond) ? (void)0 : fuzz_violated(text, "", __FILE__, __LINE__))
#define PROPERTY_OF(cond, text, what) \
    ((cond) ? (void)0 : fuzz_violated(text, what, __FILE__, __LINE__))

static char fuzz_where[64]; /* more about where in a case it is, or "" */

static inline void fuzz_violated(const char *text, const char *what, const char *file, int line) {
    fprintf(stderr, "property violated: %s%s%s%s (%s:%d)\n", text, what[0] ? ": " : "", what,
            fuzz_where, file, line);
    abort();
}

/* The description of a case, read from front to back; behind its end all is 0. */
typedef struct fuzz_bytes { const uint8_t *at, *end; } fuzz_bytes;

static inline unsigned fuzz_u8(fuzz_bytes *b) { return b->at < b->end ? *b->at++ : 0u; }

static inline unsigned fuzz_u16(fuzz_bytes *b) {
    const unsigned low = fuzz_u8(b);
    return low | fuzz_u8(b) << 8;
}

static inline uint64_t fuzz_u64(fuzz_bytes *b) {
    uint64_t x = 0;
    int      i;
    for (i = 0; i < 64; i += 8) x |= (uint64_t)fuzz_u8(b) << i;
    return x;
}

#endif
