/* readers.c - what reads words, policies, variables and headers of files, for Frama-C's Eva: bytes that may be
   anything, and no run-time error in what they reach. */

#define AMP_IMPLEMENTATION
#include "amp.h"
#include "__fc_builtin.h"

#ifndef LENGTH
#define LENGTH 8
#endif

/* LENGTH bytes, any of them 0, and an end. */
static void any(char *text, int n) {
    int i;
    //@ loop unroll 64;
    for (i = 0; i < n; i++) text[i] = (char)Frama_C_interval(-128, 127);
}

static size_t some_length(void) { return (size_t)Frama_C_interval(0, LENGTH); }

void word(void) {
    char text[LENGTH];
    size_t length = some_length();
    //@ split length;
    any(text, LENGTH);
    (void)ampi_find_type(text, length);
}

void next_word(void) {
    char text[LENGTH + 1];
    const char *word = text;
    any(text, LENGTH);
    text[LENGTH] = 0;
    (void)ampi_word(&word);
}

static bool read_any(void *user, void *data, size_t n) {
    (void)user;
    any((char *)data, (int)n);
    return Frama_C_interval(0, 1);
}

void header(void) {
    ampi_archive a;
    (void)ampi_read_header(&a, read_any, NULL);
}
