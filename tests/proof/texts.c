/* texts.c - every text of up to so many tokens, as a policy, as the variables of the environment and as an op's name,
   in memory that ends where the text does. It is compiled with sanitizers, and what they would stop at is the proof.
       usage: texts TOKENS    how many, 1 to 6 */

#include <stdlib.h>
#include <string.h>

static const char *values[2]; /* AMP_DTYPE; AMP_ENABLE */

static char *value_of(const char *name) { return (char *)(size_t)values[strcmp(name, "AMP_ENABLE") == 0]; }
#define getenv value_of
#define AMP_IMPLEMENTATION
#include "amp.h"
#undef getenv

#include <stdio.h>

/* Of each way that a reader can go, and just too long for a pattern. */
static const char *const policy_tokens[] = {"op:", "softmax", "=", "low", "fp16", "off", "apex_o2", "*", "_", ":", ",", " ",
                                            "\xff", "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijk"};
static const char *const value_tokens[]  = {"0", "1", "9", "off", "f", "b", "fp", "half", "_", " ", "\t", "bf16", "32", "\xff"};
enum { TOKENS = 14 };

static unsigned long texts, taken, refused;

static void stop(const char *why, const char *text) {
    printf("FAIL %s: \"%s\"\n", why, text);
    exit(1);
}

static void as_policy(const char *text) {
    static amp_autocast ac, before;
    amp_op              op;
    unsigned            position = 0;
    amp_result          result;
    int                 i;
    amp_autocast_init(&ac, AMP_POLICY_DEFAULT, AMP_F16);
    before = ac;
    result = amp_autocast_override(&ac, text);
    if (result == AMP_OK) taken++;
    else refused++;
    if (result != AMP_OK && (result != AMP_ERROR_PARSE || sscanf(amp_problem(), "text, character %u: ", &position) != 1 ||
                             position < 1 || position > strlen(text) + 1 || memcmp(&ac, &before, sizeof ac) != 0))
        stop("a text that is refused changes nothing, and is refused at a place in it", text);
    for (i = 0; i < ac.num_overrides; i++)
        if (!memchr(ac.overrides[i].pattern, 0, AMP_MAX_PATTERN)) stop("a pattern ends where there is room for it", text);
    (void)amp_op_from_string(text, &op);
}

static void as_values(const char *text) {
    int i;
    for (i = 0; i < 2; i++) {
        amp_optimizer_desc d, before;
        memset(&d, 0, sizeof d);
        before = d;
        values[0] = values[1] = NULL;
        values[i]             = text;
        if (amp_optimizer_desc_from_env(&d) == AMP_OK) {
            taken++;
            if ((uint32_t)d.dtype > 2u) stop("what is taken is a type", text);
        } else {
            refused++;
            if (memcmp(&d, &before, sizeof d) != 0) stop("a value that is refused changes nothing", text);
        }
    }
}

/* Every text of up to more tokens, behind what there is. */
static void go_on(void (*as)(const char *), const char *const *tokens, const char *text, size_t length, int more) {
    int k;
    texts++;
    as(text);
    for (k = 0; more && k < TOKENS; k++) {
        const size_t add    = strlen(tokens[k]);
        char *const  longer = (char *)malloc(length + add + 1);
        if (!longer) exit(2);
        memcpy(longer, text, length);
        memcpy(longer + length, tokens[k], add + 1);
        go_on(as, tokens, longer, length + add, more - 1);
        free(longer);
    }
}

int main(int argc, char **argv) {
    const int most = argc > 1 ? atoi(argv[1]) : 3;
    go_on(as_policy, policy_tokens, "", 0, most);
    printf("ok   policy: every text of up to %d of %d tokens: %lu, %lu taken, %lu refused\n", most, TOKENS, texts, taken, refused);
    texts = taken = refused = 0;
    go_on(as_values, value_tokens, "", 0, most);
    printf("ok   variables: every value of up to %d of %d tokens: %lu, %lu taken, %lu refused\n", most, TOKENS, texts, taken, refused);
    printf("2 passed, 0 failed\n");
    return 0;
}
