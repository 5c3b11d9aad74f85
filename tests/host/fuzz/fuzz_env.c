/* fuzz_env.c - amp_optimizer_desc_from_env and whatever the user of a program sets.

       case   desc (one byte), then the values of AMP_DTYPE and AMP_ENABLE, one a line; a - alone is
              not set, as is a line that is not there */

#define _POSIX_C_SOURCE 200112L /* setenv, unsetenv */
#include "amp.h"
#include "fuzz.h"

enum { MAX_VALUE = 256, NUM_DESCS = 14 };

static const char *const variables[2] = {"AMP_DTYPE", "AMP_ENABLE"};

/* What a program may have chosen before it asks. All zero bytes first, so that memcmp compares. */
static void desc_of(unsigned which, amp_optimizer_desc *d) {
    memset(d, 0, sizeof *d);
    d->kind = AMP_KIND_ADAMW;
    switch (which) {
    case 1: d->dtype = AMP_F16; break;
    case 2: d->dtype = AMP_BF16; break;
    case 3: d->scaler.preset = AMP_PRESET_STATIC; break;
    case 4: /* a scale that DEFAULT could not have */
        d->scaler.preset     = AMP_PRESET_STATIC;
        d->scaler.init_scale = 1073741824.0f;
        break;
    case 5: /* limits that DEFAULT could not have */
        d->scaler.preset     = AMP_PRESET_STATIC;
        d->scaler.init_scale = 8.0f;
        d->scaler.min_scale  = 2e-38f;
        d->scaler.max_scale  = 8e37f;
        break;
    case 6: /* limits that exclude the first scale of DEFAULT */
        d->scaler.preset     = AMP_PRESET_STATIC;
        d->scaler.init_scale = 33554432.0f;
        d->scaler.min_scale  = 33554432.0f;
        break;
    case 7:
        d->scaler.preset     = AMP_PRESET_TORCH;
        d->scaler.init_scale = 1e30f;
        break;
    case 8:
        d->scaler.min_scale = 4.0f;
        d->scaler.max_scale = 1024.0f;
        break;
    case 9: d->scaler.disabled = 1; break;
    case 10:
        d->scaler.preset     = AMP_PRESET_MEGATRON;
        d->scaler.hysteresis = 4;
        d->max_norm          = 1.0f;
        break;
    case 11:
        d->scaler.preset   = AMP_PRESET_STATIC;
        d->scaler.disabled = 1;
        d->dtype           = AMP_F16;
        break;
    case 12: d->scaler.preset = AMP_PRESET_NONE; break;
    case 13:
        d->scaler.preset = AMP_PRESET_NONE;
        d->dtype         = AMP_F16;
        break;
    default: break;
    }
}

static amp_result init_of(const amp_optimizer_desc *d) {
    float         w = 1.0f, g = 1.0f;
    amp_optimizer opt;
    amp_tensor    t;
    amp_result    result;
    memset(&opt, 0, sizeof opt);
    memset(&t, 0, sizeof t);
    t.n = 1, t.weight = &w, t.grad = &g;
    result = amp_optimizer_init(&opt, d);
    if (result == AMP_OK) result = amp_optimizer_add(&opt, &t);
    amp_optimizer_free(&opt);
    return result;
}

static void check_error(const amp_optimizer_desc *before, const amp_optimizer_desc *after) {
    int i, named = 0;
    PROPERTY(memcmp(before, after, sizeof *before) == 0, "an error leaves desc as it was");
    PROPERTY(strlen(amp_problem()) < 200, "an error is told in a text that ends");
    for (i = 0; i < 2; i++) {
        const char *value  = getenv(variables[i]);
        const char *quoted = strstr(amp_problem(), "not \"");
        if (strstr(amp_problem(), variables[i]) != amp_problem() || !value || !quoted) continue;
        quoted += 5;
        named |= strncmp(quoted, value, strlen(value)) == 0 || strncmp(value, quoted, strlen(quoted)) == 0;
    }
    PROPERTY(named, "an error names its variable, and its value as far as there is room");
}

static void check_ok(const amp_optimizer_desc *before, const amp_optimizer_desc *after) {
    amp_optimizer_desc again = *after, other = *after;
    const char        *enable = getenv("AMP_ENABLE");
    PROPERTY(init_of(after) == AMP_OK, "amp_optimizer_init, and _add, take what came from the environment");
    PROPERTY(amp_optimizer_desc_from_env(&again) == AMP_OK &&
                 memcmp(&again, after, sizeof again) == 0,
             "asking twice changes nothing");
    other.dtype  = before->dtype;
    other.scaler = before->scaler;
    PROPERTY(memcmp(&other, before, sizeof other) == 0, "nothing but dtype and scaler changes");
    PROPERTY(after->dtype != AMP_F16 || before->dtype == AMP_F16 || after->scaler.preset != AMP_PRESET_NONE,
             "fp16 that the environment brings has a scale");
    if (after->dtype == before->dtype && !enable)
        PROPERTY(memcmp(after, before, sizeof *after) == 0, "desc stays unless a variable wants another type, or on or off");
    if (enable && strcmp(enable, "0") == 0)
        PROPERTY(after->dtype == AMP_F32 && after->scaler.disabled,
                 "AMP_ENABLE=0 is fp32 and no scaler");
    if (enable && strcmp(enable, "1") == 0)
        PROPERTY(!after->scaler.disabled, "AMP_ENABLE=1 is a scaler");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_bytes         b     = {data, data + size};
    const unsigned     which = fuzz_u8(&b) % NUM_DESCS;
    amp_optimizer_desc before, after;
    char               text[MAX_VALUE];
    amp_result         result;
    int                i;
    for (i = 0; i < 2; i++) {
        const int absent = b.at >= b.end;
        size_t    n      = 0;
        for (; b.at < b.end && *b.at != '\n'; b.at++)
            if (n < MAX_VALUE - 1) text[n++] = (char)*b.at;
        if (b.at < b.end) b.at++;
        text[n] = '\0';
        if (absent || strcmp(text, "-") == 0) unsetenv(variables[i]);
        else if (setenv(variables[i], text, 1) != 0) abort();
    }
    desc_of(which, &before);
    PROPERTY(init_of(&before) == AMP_OK, "amp_optimizer_init takes the desc of the program");
    after  = before;
    result = amp_optimizer_desc_from_env(&after);
    if (result == AMP_OK) check_ok(&before, &after);
    else check_error(&before, &after);
    return 0;
}
