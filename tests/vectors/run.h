/* run.h - runs a case of the families scale and order on a scaler. */

#ifndef VECTORS_RUN_H
#define VECTORS_RUN_H

#include "vectors.h"

static double   vec_number(const json *j, const char *key) { return json_number(json_get(j, key)); }
static uint32_t vec_bits(const json *j) { return (uint32_t)strtoul(j->text, NULL, 16); }
static int      vec_is(const json *j, const char *text) { return j->kind == '"' && !strcmp(j->text, text); }
/* Does the scaler show this: the scale, to the bit, good (null: it is not counted) and left? */
static int vec_shows(const vectors_subject *s, const json *scale, const json *good, const json *left) {
    const double x = json_number(scale);
    return !memcmp(&s->scale, &x, sizeof x) && s->left == (int)json_number(left) &&
           (*good->text == 'n' || s->good == (int)json_number(good));
}

/* A row of a trace: event, how often, scale, good (null: not counted), left, was the last step taken. */
static int vec_trace(vectors_subject *s, const json *row) {
    const char   event = *json_at(row, 0)->text;
    const double count = json_number(json_at(row, 1));
    const char  *what  = event == 'R' ? "resume" : event == 'S' ? "scale" : event == 'I' ? "growth_interval" : NULL;
    int          taken = 0, k;
    if (what && s->set(s, what, count) == VECTORS_ABSENT) return VECTORS_ABSENT;
    for (k = 0; k < (int)count && !what; k++) {
        uint32_t g[3] = {0x3f800000u, event == 'X' ? 0x7f800000u : event == 'N' ? 0x7fc00000u : 0x3f800000u, 0};
        if (event == 'H') s->set(s, "found_inf", 2.0);
        s->unscale(s, g, 3);
        taken = s->step(s);
        s->update(s);
    }
    return taken == VECTORS_ABSENT ? taken : taken == (int)json_number(json_at(row, 5)) &&
           vec_shows(s, json_at(row, 2), json_at(row, 3), json_at(row, 4));
}

/* A row of calls: call, argument, answer, gradients after it (null: any), scale, good, left. */
static int vec_call(vectors_subject *s, const json *row, uint32_t g[3]) {
    static const char *const answers[] = {"refused", "skipped", "ok", "taken"};
    const json *call = json_at(row, 0), *argument = json_at(row, 1), *after = json_at(row, 3);
    int         answer = VECTORS_OK, same = 1;
    size_t      i;
    for (i = 0; i < argument->size; i++) g[i] = vec_bits(json_at(argument, i));
    if (vec_is(call, "unscale")) answer = s->unscale(s, g, 3);
    if (vec_is(call, "step") && (answer = s->step(s)) == VECTORS_OK) answer = 2; /* taken */
    if (vec_is(call, "update")) answer = s->update(s);
    if (vec_is(call, "scale")) answer = s->set(s, "scale", json_number(argument));
    if (vec_is(call, "found")) answer = s->set(s, "found_inf", json_number(argument));
    for (i = 0; i < after->size; i++) same &= g[i] == vec_bits(json_at(after, i));
    return answer == VECTORS_ABSENT ? answer
         : same && vec_is(json_at(row, 2), answers[answer + 1]) &&
               vec_shows(s, json_at(row, 4), json_at(row, 5), json_at(row, 6));
}

/* VECTORS_OK, 0 where it is wrong, VECTORS_LACKING, VECTORS_ABSENT where the subject cannot be asked; and the last row. */
static int vec_rows(vectors_subject *s, const json *c, size_t *row) {
    const json    *j = json_get(c, "config"), *rows = json_get(c, "rows"), *r = json_first(rows);
    uint32_t       g[3] = {0, 0, 0};
    vectors_config f;
    f.system = json_get(c, "system")->text, f.init_scale = vec_number(j, "init_scale");
    f.growth_factor = vec_number(j, "growth_factor"), f.backoff_factor = vec_number(j, "backoff_factor");
    f.min_scale = vec_number(j, "min_scale"), f.max_scale = vec_number(j, "max_scale");
    f.tolerance = vec_number(j, "tolerance"), f.growth_interval = (int)vec_number(j, "growth_interval");
    f.hysteresis = (int)vec_number(j, "hysteresis");
    int result = s->start(s, &f);
    if (result == VECTORS_REFUSED) result = 0;
    for (*row = 0; *row < rows->size && result == VECTORS_OK; ++*row, r = json_behind(r))
        result = r->size == 6 ? vec_trace(s, r) : vec_call(s, r, g);
    return result;
}

#endif
