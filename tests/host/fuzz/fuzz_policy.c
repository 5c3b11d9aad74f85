/* fuzz_policy.c - the words of a policy, and what is answered afterwards.

       case   policy, low type and depth of scopes (one byte each), then texts divided by \x00: each
              is applied to what the ones before have made */

#define AMP_IMPLEMENTATION
#include "amp.h"
#include "fuzz.h"

enum { MAX_TEXT = 2048, MAX_DUMP = 1 << 15, LINE_SIZE = 161, NUM_POLICIES = 10 };
#define OP_NAME(id, rules) #id,
static const char *const op_names[] = {AMP_OP_LIST(OP_NAME)};
#undef OP_NAME

/* ---------------------------------------------------------------------------------------- dump */

typedef struct dump {
    char   text[MAX_DUMP];
    size_t size;
    int    num_lines, fail_at; /* fail_at: the line that cannot be written; 0: none */
} dump;

static bool dump_line(void *user, const void *data, size_t num_bytes) {
    dump       *d    = (dump *)user;
    const char *line = (const char *)data;
    PROPERTY(num_bytes > 0 && num_bytes < LINE_SIZE, "a line fits where it is put together");
    PROPERTY(line[num_bytes - 1] == '\n' && !memchr(line, '\n', num_bytes - 1),
             "a line ends where its only newline is");
    PROPERTY(!memchr(line, '\0', num_bytes), "a line is text");
    PROPERTY(!d->fail_at || d->num_lines < d->fail_at, "nothing is written behind an error");
    if (++d->num_lines == d->fail_at) return false;
    PROPERTY(num_bytes <= MAX_DUMP - d->size, "a dump has a line for each op and pattern");
    memcpy(d->text + d->size, data, num_bytes);
    d->size += num_bytes;
    return true;
}

static void dump_of(const amp_autocast *ac, dump *d) {
    memset(d, 0, sizeof *d);
    PROPERTY(amp_autocast_dump(ac, dump_line, d) == AMP_OK, "a dump works");
    PROPERTY(d->num_lines == 2 + (int)AMP_NUM_OPS + ac->num_overrides,
             "a dump has a line for each op and pattern");
}

static void check_failing_dump(const amp_autocast *ac, unsigned line) {
    static dump d;
    memset(&d, 0, sizeof d);
    d.fail_at = 1 + (int)(line % (unsigned)(2 + (int)AMP_NUM_OPS + ac->num_overrides));
    PROPERTY(amp_autocast_dump(ac, dump_line, &d) == AMP_ERROR_WRITE,
             "a dump that cannot be written says so");
}

/* ------------------------------------------------------------------------------------- answers */

static int is_type(amp_dtype type) {
    return type == AMP_F32 || type == AMP_F16 || type == AMP_BF16;
}

/* What an op computes in, as the dump spells it. */
static const char *answer(amp_autocast *ac, amp_op op, amp_dtype input) {
    static const char *const names[] = {"fp32", "fp16", "bf16"};
    amp_dtype                compute = AMP_F32, output = AMP_F32;
    const amp_result result = amp_autocast_dtype(ac, op, &input, 1, &compute, &output);
    if (result == AMP_ERROR_BANNED) return "-";
    if (result == AMP_ERROR_MIXED_TYPES) return "inputs'";
    PROPERTY(result == AMP_OK, "an op is answered, banned, or mixes types");
    PROPERTY(is_type(compute) && is_type(output), "every answer is a type");
    return names[compute];
}

/* The dump says of every op what is answered in a scope that changes nothing. */
static void check_answers(const amp_autocast *policy) {
    static dump      d;
    amp_autocast     ac;
    const amp_scope  plain = {NULL, AMP_AUTOCAST_ON, AMP_F32};
    const char      *line;
    char             word[8];
    int              op;
    amp_autocast_init(&ac, policy->policy, policy->dtype);
    memcpy(ac.ops, policy->ops, sizeof ac.ops);
    amp_autocast_push(&ac, &plain);
    dump_of(&ac, &d);
    line = strchr(strchr(d.text, '\n') + 1, '\n') + 1;
    for (op = 0; op < (int)AMP_NUM_OPS; op++, line = strchr(line, '\n') + 1) {
        snprintf(word, sizeof word, "%.7s", line + 43);
        word[strcspn(word, " ")] = '\0';
        if (strcmp(word, "inputs'") != 0)
            PROPERTY_OF(strcmp(answer(&ac, (amp_op)op, AMP_F32), word) == 0,
                        "the dump says what is answered", op_names[op]);
    }
}

/* Every op with inputs of every kind, in a layer. */
static void check_all_ops(amp_autocast *ac, const char *layer) {
    static const amp_dtype inputs[3]   = {AMP_F32, AMP_F16, AMP_BF16};
    static const int       choices[][2] = {{0, 0}, {0, 1}, {1, 1}, {2, 1}, {1, 2}};
    const amp_scope        scope       = {layer, AMP_AUTOCAST_INHERIT, AMP_F32};
    const int              depth       = ac->depth;
    int                    op, c;
    amp_autocast_push(ac, &scope);
    for (op = 0; op < (int)AMP_NUM_OPS; op++)
        for (c = 0; c < 5; c++) {
            const amp_dtype *first   = inputs + choices[c][0];
            const int        count   = choices[c][1];
            amp_dtype        compute = (amp_dtype)77, output = (amp_dtype)77;
            const amp_result result =
                amp_autocast_dtype(ac, (amp_op)op, first, count, &compute, &output);
            if (result == AMP_OK)
                PROPERTY(is_type(compute) && is_type(output), "every answer is a type");
            else
                PROPERTY((int)compute == 77 && (int)output == 77 &&
                             (result == AMP_ERROR_BANNED || result == AMP_ERROR_MIXED_TYPES),
                         "an op is answered, banned, or mixes types");
            if (result == AMP_OK && ac->off && count == 1)
                PROPERTY(compute == *first, "off: nothing is cast");
        }
    if (ac->depth > depth) amp_autocast_pop(ac);
    PROPERTY(ac->depth == depth, "leaving a scope restores what was");
}

static void check_patterns(const amp_autocast *ac) {
    int i;
    for (i = 0; i < ac->num_overrides; i++)
        PROPERTY(memchr(ac->overrides[i].pattern, 0, AMP_MAX_PATTERN), "patterns are short");
}

static void check_op_names(const char *word) {
    amp_op op = (amp_op)777, again = (amp_op)777;
    if (amp_op_from_string(word, &op) != AMP_OK) {
        PROPERTY((int)op == 777, "a word that is no op changes nothing");
        return;
    }
    PROPERTY((unsigned)op < (unsigned)AMP_NUM_OPS, "an op that is found exists");
    PROPERTY(amp_op_from_string(op_names[op], &again) == AMP_OK && again == op,
             "an op is found by its own name");
}

/* ---------------------------------------------------------------------------------------- texts */

/* Word by word, a text makes what it makes at once, and fails at the same word. */
static void check_words(const amp_autocast *before, const amp_autocast *after, const char *text,
                        amp_result whole) {
    static const char separators[] = ",; \t\n\r";
    amp_autocast      ac           = *before;
    amp_result        result       = AMP_OK;
    char              word[MAX_TEXT];
    while (result == AMP_OK && text[strspn(text, separators)]) {
        size_t length;
        text += strspn(text, separators);
        length = strcspn(text, separators);
        memcpy(word, text, length);
        word[length] = '\0';
        text += length;
        result = amp_autocast_override(&ac, word);
        check_op_names(word);
        word[strcspn(word, "=")] = '\0';
        check_op_names(word);
        check_op_names(strncmp(word, "op:", 3) == 0 ? word + 3 : "");
    }
    PROPERTY(result == whole, "word by word a text is understood as at once");
    if (whole == AMP_OK)
        PROPERTY(memcmp(&ac, after, sizeof ac) == 0, "word by word a text does the same");
}

static void check_text(amp_autocast *ac, const char *text) {
    const amp_autocast before   = *ac;
    amp_autocast       again    = *ac;
    unsigned           position = 99999;
    const amp_result   result   = amp_autocast_override(ac, text);
    if (result == AMP_OK) {
        PROPERTY(amp_autocast_override(&again, text) == AMP_OK &&
                     memcmp(ac, &again, sizeof again) == 0,
                 "the same text makes the same policy");
        if (ac->num_overrides == 0)
            PROPERTY(amp_autocast_override(&again, text) == AMP_OK &&
                         memcmp(ac, &again, sizeof again) == 0,
                     "a text without layers changes nothing the second time");
    } else {
        PROPERTY(result == AMP_ERROR_PARSE, "a text is understood or AMP_ERROR_PARSE");
        PROPERTY(memcmp(ac, &before, sizeof before) == 0, "AMP_ERROR_PARSE changes nothing");
        PROPERTY(sscanf(amp_problem(), "text, character %u: ", &position) == 1 && position - 1 <= strlen(text),
                 "the position is told, from 1, and within the text or at its end");
    }
    check_words(&before, ac, text, result);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static amp_autocast ac;
    static dump         whole;
    fuzz_bytes          b      = {data, data + size};
    const amp_policy    policy = (amp_policy)(fuzz_u8(&b) % NUM_POLICIES);
    const amp_dtype     dtype  = (amp_dtype)(fuzz_u8(&b) % 3);
    const unsigned      third  = fuzz_u8(&b);
    unsigned            depth  = third % (AMP_MAX_SCOPES + 1);
    char                text[MAX_TEXT];
    int                 texts;
    memset(&ac, 0, sizeof ac);
    PROPERTY(amp_autocast_init(&ac, policy, dtype) == AMP_OK, "init");
    for (; depth; depth--) {
        const amp_scope scope = {depth % 2 ? "decoder.0.norm" : NULL,
                                 (amp_autocast_mode)(depth % 7 == 6 ? 2 : 0),
                                 (amp_dtype)(depth % 3)};
        PROPERTY(amp_autocast_push(&ac, &scope) == AMP_OK, "push");
    }
    for (texts = 0; b.at < b.end && texts < 4; texts++) {
        size_t n = 0;
        while (b.at < b.end && *b.at && n < MAX_TEXT - 1) text[n++] = (char)*b.at++;
        if (b.at < b.end && !*b.at) b.at++;
        text[n] = '\0';
        check_text(&ac, text);
        check_op_names(text);
    }
    check_all_ops(&ac, size > 3 ? text : NULL);
    dump_of(&ac, &whole);
    check_answers(&ac);
    check_patterns(&ac);
    check_failing_dump(&ac, third);
    return 0;
}
