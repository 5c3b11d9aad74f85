/* amp_report.h - what amp_optimizer_report counts, as text: a table for people, JSON for programs
   SPDX-License-Identifier: MIT OR Unlicense (your choice, see the end of amp.h)

       #include "amp.h"          desc.report set, and as for any use of amp.h
       #include "amp_report.h"   in each file that calls it: its functions are static

       amp_report_table(&opt, stdout);           now and then, or at the end
       amp_report_json(&opt, file, &told);       a line; examples/report.c makes a page of lines

   It reads public data of amp.h alone, so it is also an example of their use. It allocates nothing,
   and waits for the backend as amp_optimizer_report does. Numbers have a point in every locale. */

#ifndef AMP_REPORT_H_INCLUDED
#define AMP_REPORT_H_INCLUDED

#include "amp.h"

#include <stdio.h>
#include <string.h>

#if defined(__GNUC__) || defined(__clang__)
#define AMP_REPORT_DEF static __attribute__((unused))
#else
#define AMP_REPORT_DEF static
#endif

enum { AMP_REPORT_NUMBER = 32 }; /* bytes of a number */

/* ------------------------------------------------------------------------------------- numbers */

/* Whole numbers to the last digit, others to seven. What is not finite is null in JSON. */
AMP_REPORT_DEF const char *amp_report_number(char *chars, double x, bool json) {
    uint64_t bits;
    char    *p;
    memcpy(&bits, &x, 8); /* -Ofast deletes isfinite */
    if ((bits >> 52 & 0x7ff) == 0x7ff)
        return strcpy(chars, json ? "null" : bits << 12 ? "NaN" : bits >> 63 ? "-inf" : "inf");
    if (x > -9e15 && x < 9e15 && !((double)(int64_t)x < x) && !((double)(int64_t)x > x))
        snprintf(chars, AMP_REPORT_NUMBER, "%.0f", x);
    else
        snprintf(chars, AMP_REPORT_NUMBER, "%.7g", x);
    p = chars + strspn(chars, "-0123456789");
    if (*p && *p != 'e') *p = '.'; /* the locale's may be one byte or more */
    if (*p == '.') {
        const size_t more = strcspn(p + 1, "0123456789");
        memmove(p + 1, p + 1 + more, strlen(p + 1 + more) + 1);
    }
    return chars;
}

/* In percent, to one digit behind the point. */
AMP_REPORT_DEF double amp_report_percent(double share) {
    return (double)(int64_t)(share * 1000.0 + 0.5) / 10.0;
}

/* Gradients of a sample: not 0, and finite. */
AMP_REPORT_DEF double amp_report_grads(const amp_tensor_report *t) {
    double sum = 0.0;
    int    b;
    for (b = 0; b < AMP_BINS; b++) sum += (double)t->grads[b];
    return sum;
}

/* -------------------------------------------------------------------------------------- advice */

/* The code, as it stands in JSON. */
AMP_REPORT_DEF const char *amp_report_advice_name(amp_advice_code code) {
    switch (code) {
    case AMP_ADVICE_NAN:            return "nan";
    case AMP_ADVICE_BAD_WEIGHTS:    return "bad_weights";
    case AMP_ADVICE_STUCK:          return "stuck";
    case AMP_ADVICE_TOO_MANY_SKIPS: return "too_many_skips";
    case AMP_ADVICE_SCALE_TOO_HIGH: return "scale_too_high";
    case AMP_ADVICE_SCALE_TOO_LOW:  return "scale_too_low";
    case AMP_ADVICE_UNDERFLOW:      return "underflow";
    case AMP_ADVICE_KEEP_FP32:      return "keep_fp32";
    case AMP_ADVICE_USE_BF16:       return "use_bf16";
    case AMP_ADVICE_MASTERS:        return "masters";
    case AMP_NUM_ADVICE:            break;
    }
    return "?";
}

/* A tensor, for people: "tensor 3 (fc1.weight)", or its number alone if it has no name. */
AMP_REPORT_DEF const char *amp_report_name(const amp_optimizer *opt, int i, char *chars,
                                           size_t size) {
    amp_tensor_report t;
    if (amp_optimizer_report_tensor(opt, i, &t) == AMP_OK && t.name && *t.name)
        snprintf(chars, size, "tensor %d (%.160s)", i, t.name);
    else snprintf(chars, size, "tensor %d", i);
    return chars;
}

/* What to change, as a sentence: at most size bytes of chars, with the 0 behind it. Call it after
   amp_optimizer_advice: the tensor's numbers are of the same moment if no step came between. */
AMP_REPORT_DEF const char *amp_report_sentence(const amp_optimizer *opt, const amp_advice *advice,
                                               char *chars, size_t size) {
    char              n[AMP_REPORT_NUMBER], percent[AMP_REPORT_NUMBER];
    char              scale[AMP_REPORT_NUMBER], share[AMP_REPORT_NUMBER];
    amp_report        run;
    amp_tensor_report t;
    char              name[200];
    char *const       whole = chars;
    double            grads;
    int               used = 0;
    if (!size) return chars;
    memset(&run, 0, sizeof run);
    memset(&t, 0, sizeof t);
    chars[0] = '\0';
    (void)amp_optimizer_report(opt, &run);
    if (advice->tensor >= 0 && amp_optimizer_report_tensor(opt, advice->tensor, &t) == AMP_OK)
        used = snprintf(chars, size, "%s: ",
                        amp_report_name(opt, advice->tensor, name, sizeof name));
    if ((size_t)used >= size) return whole;
    chars += used;
    size -= (size_t)used;
    amp_report_number(n, advice->number, false);
    amp_report_number(percent, amp_report_percent(advice->number), false);
    amp_report_number(scale, (double)run.loss_scale, false);
    grads = amp_report_grads(&t);
    amp_report_number(share, grads > 0.0 ? amp_report_percent((double)t.f16_small / grads) : 0.0,
                      false);
    switch (advice->code) {
    case AMP_ADVICE_NAN:
        snprintf(chars, size, "the NaN comes from the model, and no loss scale will help; all "
                             "gradients hold %s", n);
        break;
    case AMP_ADVICE_BAD_WEIGHTS:
        snprintf(chars, size, "its weights are not all finite, so gradients hold NaN, and no loss "
                             "scale will help: load a state from before");
        break;
    case AMP_ADVICE_STUCK:
        snprintf(chars, size, "%s overflows in a row at the least loss scale, %s: lower min_scale, "
                             "or look for what diverges", n, scale);
        break;
    case AMP_ADVICE_TOO_MANY_SKIPS:
        snprintf(chars, size, "%s of the last 128 steps overflowed, here most often: raise "
                             "growth_interval, or clip what spikes", n);
        break;
    case AMP_ADVICE_SCALE_TOO_HIGH:
        snprintf(chars, size, "overflows: the loss scale %s is too high, and does not move", n);
        break;
    case AMP_ADVICE_SCALE_TOO_LOW:
        snprintf(chars, size, "%s %% of its gradients are subnormal in fp16: the loss scale %s is "
                             "too low by up to 2^%s", share, scale, n);
        break;
    case AMP_ADVICE_UNDERFLOW:
        snprintf(chars, size, "%s %% of its gradients are subnormal at the loss scale %s, which "
                             "cannot be larger", percent, scale);
        break;
    case AMP_ADVICE_KEEP_FP32:
        snprintf(chars, size, "its gradients are 2^%s above all others', which underflow: keep "
                             "them in fp32", n);
        break;
    case AMP_ADVICE_USE_BF16:
        snprintf(chars, size, "%s %% of gradients are subnormal in fp16 while others are near its "
                             "end: use bf16", percent);
        break;
    case AMP_ADVICE_MASTERS:
        snprintf(chars, size, "its masters are rounded to 16 bits, and a step loses %s %% of "
                             "updates: keep master weights in fp32", percent);
        break;
    case AMP_NUM_ADVICE: break;
    }
    return whole;
}

/* --------------------------------------------------------------------------------------- table */

/* The cell of a table that is width wide, or a dash for a number below 0. */
AMP_REPORT_DEF void amp_report_cell(FILE *out, int width, double x, const char *unit) {
    char chars[AMP_REPORT_NUMBER], cell[AMP_REPORT_NUMBER + 8];
    snprintf(cell, sizeof cell, "%s%s", x < 0.0 ? "-" : amp_report_number(chars, x, false),
             x < 0.0 ? "" : unit);
    fprintf(out, "  %*s", width, cell);
}

AMP_REPORT_DEF void amp_report_share(FILE *out, int width, uint64_t some, double all) {
    amp_report_cell(out, width, all > 0.0 ? amp_report_percent((double)some / all) : -1.0, " %");
}

/* The whole report for people: AMP_ERROR_WRITE if out has failed. */
AMP_REPORT_DEF amp_result amp_report_table(const amp_optimizer *opt, FILE *out) {
    amp_report        r;
    amp_tensor_report t;
    amp_advice        advice[AMP_NUM_ADVICE];
    amp_result        result;
    char              a[AMP_REPORT_NUMBER], b[AMP_REPORT_NUMBER], sentence[400];
    char              first[200], most[200];
    int               i, count = 0;
    result = amp_optimizer_advice(opt, advice, &count);
    if (result == AMP_OK) result = amp_optimizer_report(opt, &r);
    if (result != AMP_OK) return result;
    fprintf(out, "iterations %.0f, steps %.0f, skipped %.0f (overflows %.0f, spikes %.0f, asked "
                 "%.0f)\n", (double)r.iterations, (double)r.steps,
            (double)(r.overflows + r.spikes + r.asked), (double)r.overflows, (double)r.spikes,
            (double)r.asked);
    fprintf(out, "loss scale %s, growths %.0f, backoffs %.0f%s, norm %s\n",
            amp_report_number(a, (double)r.loss_scale, false), (double)r.growths,
            (double)r.backoffs, r.stuck ? ", stuck" : "", amp_report_number(b, r.norm, false));
    if (r.first_tensor >= 0)
        fprintf(out, "first overflow: iteration %.0f, %s\nmost overflows: %.0f, %s\n",
                (double)r.first_iteration,
                amp_report_name(opt, r.first_tensor, first, sizeof first),
                (double)r.most_overflows, amp_report_name(opt, r.most_tensor, most, sizeof most));
    fprintf(out, "  gradient, scaled           largest  room  zeros  overflows%s\n",
            r.sampled ? "  subnormal   lost" : "");
    for (i = 0; amp_optimizer_report_tensor(opt, i, &t) == AMP_OK; i++) {
        fprintf(out, "  %-20.20s", t.name && *t.name ? t.name : "-");
        amp_report_cell(out, 12, (double)t.stats.max_finite, "");
        amp_report_cell(out, 4, t.headroom == AMP_HEADROOM_UNBOUNDED ? -1.0 : t.headroom, "");
        amp_report_share(out, 5, t.stats.zeros, (double)t.n);
        amp_report_cell(out, 9, (double)t.overflows, "");
        if (r.sampled) {
            amp_report_share(out, 9, t.f16_small, amp_report_grads(&t));
            amp_report_share(out, 5, t.lost, (double)t.updates);
        }
        fputc('\n', out);
    }
    for (i = 0; i < count; i++)
        fprintf(out, "%s: %s\n", amp_report_advice_name(advice[i].code),
                amp_report_sentence(opt, &advice[i], sentence, sizeof sentence));
    return ferror(out) ? AMP_ERROR_WRITE : AMP_OK;
}

/* ---------------------------------------------------------------------------------------- JSON */

/* Bytes of the UTF-8 character that text begins with; 0: there is none (RFC 3629). */
AMP_REPORT_DEF int amp_report_utf8(const char *chars) {
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned        c = (unsigned char)chars[0];
    const int n = c < 0x80 ? 1 : c >> 5 == 6 ? 2 : c >> 4 == 14 ? 3 : c >> 3 == 30 ? 4 : 0;
    uint32_t  code = n == 1 ? c : c & 0x7fu >> n;
    int       i;
    for (i = 1; i < n; i++) {
        if (((unsigned char)chars[i] & 0xc0) != 0x80) return 0;
        code = code << 6 | ((unsigned char)chars[i] & 0x3fu);
    }
    return code >= least[n] && code <= 0x10ffff && code >> 11 != 0x1b ? n : 0;
}

/* "key":"text". Bytes that are not UTF-8 are taken as Latin-1. */
AMP_REPORT_DEF void amp_report_string(FILE *out, const char *key, const char *chars) {
    int more = 0; /* bytes of a character */
    fprintf(out, "\"%s\":\"", key);
    for (; chars && *chars; chars++, more--) {
        const unsigned char c = (unsigned char)*chars;
        if (more <= 0) more = amp_report_utf8(chars);
        if (c < ' ' || more <= 0) {
            fprintf(out, "\\u00%02x", (unsigned)c);
        } else {
            if (c == '"' || c == '\\') fputc('\\', out);
            fputc(c, out);
        }
    }
    fputc('"', out);
}

AMP_REPORT_DEF void amp_report_value(FILE *out, const char *key, double x) {
    char chars[AMP_REPORT_NUMBER];
    fprintf(out, ",\"%s\":%s", key, amp_report_number(chars, x, true));
}

AMP_REPORT_DEF void amp_report_bins(FILE *out, const char *key, const uint64_t *bins) {
    const char *comma = "";
    int         b;
    fprintf(out, ",\"%s\":[", key);
    for (b = 0; b < AMP_BINS; b++) {
        if (!bins[b]) continue;
        fprintf(out, "%s[%d,%.0f]", comma, b, (double)bins[b]);
        comma = ",";
    }
    fputc(']', out);
}

AMP_REPORT_DEF void amp_report_tensor_json(FILE *out, const amp_tensor_report *t, bool sampled) {
    fputc('{', out);
    amp_report_string(out, "name", t->name);
    amp_report_value(out, "n", (double)t->n);
    amp_report_value(out, "nonfinite", (double)t->stats.nonfinite);
    amp_report_value(out, "nan", (double)t->stats.nan);
    if (t->stats.nonfinite) amp_report_value(out, "first", (double)t->stats.first_nonfinite);
    amp_report_value(out, "zeros", (double)t->stats.zeros);
    amp_report_value(out, "max", (double)t->stats.max_finite);
    amp_report_value(out, "headroom", t->headroom);
    if (t->overflows) {
        amp_report_value(out, "overflows", (double)t->overflows);
        amp_report_value(out, "nans", (double)t->nans);
        amp_report_value(out, "first_iteration", (double)t->first_iteration);
        amp_report_value(out, "last_iteration", (double)t->last_iteration);
    }
    if (sampled) {
        amp_report_value(out, "f16_zero", (double)t->f16_zero);
        amp_report_value(out, "f16_small", (double)t->f16_small);
        amp_report_value(out, "bf16_zero", (double)t->bf16_zero);
        amp_report_value(out, "bf16_small", (double)t->bf16_small);
        amp_report_value(out, "updates", (double)t->updates);
        amp_report_value(out, "lost", (double)t->lost);
        amp_report_bins(out, "grads", t->grads);
        amp_report_bins(out, "weights", t->weights);
    }
    fputc('}', out);
}

AMP_REPORT_DEF void amp_report_run_json(FILE *out, const amp_report *r) {
    fprintf(out, "\"iterations\":%.0f", (double)r->iterations);
    amp_report_value(out, "steps", (double)r->steps);
    amp_report_value(out, "overflows", (double)r->overflows);
    amp_report_value(out, "spikes", (double)r->spikes);
    amp_report_value(out, "asked", (double)r->asked);
    amp_report_value(out, "growths", (double)r->growths);
    amp_report_value(out, "backoffs", (double)r->backoffs);
    amp_report_value(out, "norm", r->norm);
    amp_report_value(out, "loss_scale", (double)r->loss_scale);
    amp_report_value(out, "stuck", (double)r->stuck);
    amp_report_value(out, "headroom", r->headroom);
    amp_report_value(out, "first_tensor", r->first_tensor);
    amp_report_value(out, "first_iteration", (double)r->first_iteration);
    amp_report_value(out, "most_tensor", r->most_tensor);
    amp_report_value(out, "most_overflows", (double)r->most_overflows);
    amp_report_value(out, "sampled", (double)r->sampled);
    amp_report_value(out, "grads", (double)r->grads);
    amp_report_value(out, "f16_zero", (double)r->f16_zero);
    amp_report_value(out, "f16_small", (double)r->f16_small);
    amp_report_value(out, "bf16_zero", (double)r->bf16_zero);
    amp_report_value(out, "bf16_small", (double)r->bf16_small);
    amp_report_value(out, "updates", (double)r->updates);
    amp_report_value(out, "lost", (double)r->lost);
}

/* "history": an array for each iteration behind told, in the order of amp_iteration. */
AMP_REPORT_DEF amp_result amp_report_history_json(const amp_optimizer *opt, FILE *out,
                                                  uint64_t told) {
    amp_iteration     history[AMP_HISTORY];
    size_t            i, count = AMP_HISTORY;
    const amp_result  result = amp_optimizer_history(opt, history, &count);
    char              norm[AMP_REPORT_NUMBER], scale[AMP_REPORT_NUMBER], clip[AMP_REPORT_NUMBER];
    const char       *comma = "";
    if (result != AMP_OK) return result;
    fprintf(out, ",\"history\":[");
    for (i = 0; i < count; i++) {
        const amp_iteration *h = &history[i];
        if (h->iteration <= told) continue;
        fprintf(out, "%s[%.0f,%s,%s,%s,%u,%d]", comma, (double)h->iteration,
                amp_report_number(norm, h->norm, true),
                amp_report_number(scale, (double)h->loss_scale, true),
                amp_report_number(clip, (double)h->clip_factor, true), (unsigned)h->skip,
                (int)h->tensor);
        comma = ",";
    }
    fputc(']', out);
    return AMP_OK;
}

/* A line of JSON: what is in amp_report, the iterations since the line before, tensors with
   histograms as pairs of bin and count, and advice. *told (NULL: none) is the last iteration of
   that line, 0 in front of the first: keep it with opt. (Above the run's, an older state was
   loaded, and it is as 0.) AMP_ERROR_WRITE if out has failed. */
AMP_REPORT_DEF amp_result amp_report_json(const amp_optimizer *opt, FILE *out, uint64_t *told) {
    amp_report        r;
    amp_tensor_report t;
    amp_advice        advice[AMP_NUM_ADVICE];
    char              sentence[400];
    int               i, count = 0;
    amp_result        result = amp_optimizer_advice(opt, advice, &count);
    if (result == AMP_OK) result = amp_optimizer_report(opt, &r);
    if (result != AMP_OK) return result;
    fputc('{', out);
    amp_report_run_json(out, &r);
    result = amp_report_history_json(opt, out, told && *told <= r.iterations ? *told : 0);
    if (result != AMP_OK) return result;
    fprintf(out, ",\"tensors\":[");
    for (i = 0; amp_optimizer_report_tensor(opt, i, &t) == AMP_OK; i++) {
        if (i) fputc(',', out);
        amp_report_tensor_json(out, &t, r.sampled != 0);
    }
    fprintf(out, "],\"advice\":[");
    for (i = 0; i < count; i++) {
        fprintf(out, i ? ",{" : "{");
        amp_report_string(out, "code", amp_report_advice_name(advice[i].code));
        amp_report_value(out, "tensor", advice[i].tensor);
        amp_report_value(out, "number", advice[i].number);
        fputc(',', out);
        amp_report_string(out, "text",
                          amp_report_sentence(opt, &advice[i], sentence, sizeof sentence));
        fputc('}', out);
    }
    fprintf(out, "]}\n");
    if (ferror(out)) return AMP_ERROR_WRITE;
    if (told) *told = r.iterations;
    return AMP_OK;
}

#endif /* AMP_REPORT_H_INCLUDED */
