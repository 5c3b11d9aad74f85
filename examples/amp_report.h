/* amp_report.h - what amp_optimizer_report counts, as text: a table for people, JSON for programs
   SPDX-License-Identifier: MIT OR Unlicense (your choice, see the end of amp.h)

       #include "amp.h"          desc.report set, and as for any use of amp.h
       #include "amp_report.h"   in each file that calls it: its functions are static

       amp_report_table(&opt, stdout);           at intervals, or at the end
       amp_report_json(&opt, file, &told);       a line; examples/report.c makes a page of lines

   It reads only public data of amp.h, so it is also an example of their use. It allocates nothing,
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

/* What to change, and the number that says so, by the last 128 steps; nothing of a healthy run.
   Underflow: in the last sample at least a quarter of a tensor's nonzero fp16 gradients were
   subnormal. */
typedef enum amp_advice_code {
    AMP_ADVICE_NAN = 0,        /* NaN at a scale of 1 or less, or after ten overflows in a row of a
                                  scale that moves: how many; the first tensor that holds one     */
    AMP_ADVICE_BAD_WEIGHTS,    /* so, and weights of this tensor are not finite                   */
    AMP_ADVICE_WEIGHT_OVERFLOW, /* weights of this tensor are inf in its fp16 copy: how many       */
    AMP_ADVICE_STUCK,          /* five overflows or more in a row, at the least scale: how many   */
    AMP_ADVICE_TOO_MANY_SKIPS, /* over one in ten, the first 64 of a run apart, and twice what
                                  growth explains: how many                                       */
    AMP_ADVICE_SCALE_TOO_HIGH, /* a scale above 1 that never moves overflowed twice: the scale    */
    AMP_ADVICE_SCALE_TOO_LOW,  /* underflow, and 2^4 or more of headroom, but the scale never
                                  moves, or is at its largest: the headroom                       */
    AMP_ADVICE_UNDERFLOW,      /* underflow at a scale that cannot be larger: the share           */
    AMP_ADVICE_KEEP_FP32,      /* so, as gradients of this tensor are 2^number above all others   */
    AMP_ADVICE_USE_BF16,       /* so in half of all weights: the share that is subnormal          */
    AMP_ADVICE_MASTERS,        /* masters, 32 or more, of 16 bits: the share of updates lost      */
    AMP_NUM_ADVICE
} amp_advice_code;

typedef struct amp_advice {
    amp_advice_code code;
    int             tensor; /* -1: of all                                                         */
    double          number;
} amp_advice;

enum {
    AMP_REPORT_HARMLESS  = 4,   /* powers of two of headroom that a moving scale may well have    */
    AMP_REPORT_IN_A_ROW  = 5,   /* overflows, at the least scale                                  */
    AMP_REPORT_NAN_ROW   = 10,  /* in which a scale falls by 2^10: more than from 65536 to where
                                   most runs begin to step                                        */
    AMP_REPORT_RECENT    = 128,
    AMP_REPORT_BEGINNING = 64,  /* steps in which a scale may look for its place                  */
    AMP_REPORT_ENOUGH    = 32   /* elements that a share is made of                               */
};
#define AMP_REPORT_MUCH 0.25 /* share of gradients that underflow */

/* What advice is made of. Tensors: -1 is none; shares: of gradients that are not 0. */
typedef struct amp_report_case {
    amp_report    run;
    amp_iteration history[AMP_HISTORY];
    size_t        num_history;
    double        row, here;      /* overflows up to the last step: in a row, at this scale       */
    double        recent, late;   /* in the last 128 steps; if there were 64 before them          */
    int           nan, rounded;   /* the first with a NaN; and with masters of 16 bits            */
    int           bad_weights;    /* the first with a weight that is not finite                   */
    int           bad_copies;     /* with a weight that overflows in its copy, and how many       */
    double        overflows;
    double        lost;           /* of the updates of rounded                                    */
    int           worst, largest; /* of fp16: most of it underflows; next to the end of fp16      */
    double        share, above;   /* of them, what underflows                                     */
    int           headroom, next; /* of the largest, and of the next                              */
    double        fine, weights;  /* in tensors that underflow, and in all                        */
    double        tiny, grads;    /* in all: what underflows, and what there is                   */
    amp_advice   *advice;         /* of the caller; count of them are filled                      */
    int           count;
} amp_report_case;

AMP_REPORT_DEF void amp_report_advise(amp_report_case *k, amp_advice_code code, int tensor,
                                      double number) {
    amp_advice *a = &k->advice[k->count++];
    a->code   = code;
    a->tensor = tensor;
    a->number = number;
}

/* What a tensor tells. */
AMP_REPORT_DEF void amp_report_measure(amp_report_case *k, int i, const amp_tensor_report *t) {
    const double grads = amp_report_grads(t);
    double       share = 0.0;
    if (t->stats.nan && k->nan < 0) k->nan = i;
    if (t->bad_weights && k->bad_weights < 0) k->bad_weights = i;
    if (t->bad_copies && k->bad_copies < 0) {
        k->bad_copies = i;
        k->overflows  = (double)t->bad_copies;
    }
    if (k->rounded < 0 && t->updates >= AMP_REPORT_ENOUGH && t->rounded == t->updates &&
        t->lost < t->updates) {
        k->rounded = i;
        k->lost    = (double)t->lost / (double)t->updates;
    }
    if (t->grad_type != AMP_F16) return;
    if (grads >= (double)AMP_REPORT_ENOUGH) share = (double)t->f16_small / grads;
    k->weights += (double)t->n;
    k->tiny += (double)t->f16_small;
    k->grads += grads;
    if (share >= AMP_REPORT_MUCH) k->fine += (double)t->n;
    if (share >= k->share) {
        k->share = share;
        k->worst = i;
    }
    if (t->headroom < k->headroom) {
        k->next     = k->headroom;
        k->headroom = t->headroom;
        k->largest  = i;
        k->above    = share;
    } else if (t->headroom < k->next) {
        k->next = t->headroom;
    }
}

/* What the last steps tell. */
AMP_REPORT_DEF void amp_report_count(amp_report_case *k) {
    size_t i;
    for (i = 0; i < k->num_history; i++) {
        const amp_iteration *t        = &k->history[k->num_history - 1 - i];
        const int            overflow = t->skip == (uint32_t)AMP_SKIP_OVERFLOW;
        const int            bad      = overflow || t->tensor >= 0; /* a disabled scaler steps on */
        if (i < AMP_REPORT_RECENT) k->recent += overflow;
        if (k->row >= (double)i) k->row += bad;
        if (k->here >= (double)i && memcmp(&t->loss_scale, &k->run.loss_scale, 4) == 0)
            k->here += bad;
    }
    if (k->num_history >= AMP_REPORT_RECENT + AMP_REPORT_BEGINNING) k->late = k->recent;
}

AMP_REPORT_DEF void amp_report_advise_skips(amp_report_case *k) {
    const amp_scaler *s     = &k->run.scaler;
    const double      share = k->late / (double)AMP_REPORT_RECENT;
    if (s->stuck && k->here >= (double)AMP_REPORT_IN_A_ROW)
        amp_report_advise(k, AMP_ADVICE_STUCK, -1, k->here);
    if (share > 0.1 && share * ((double)s->growth_interval + 1.0) > 2.0 && !k->run.fixed_scale)
        amp_report_advise(k, AMP_ADVICE_TOO_MANY_SKIPS, k->run.most_tensor, k->late);
    if (k->run.fixed_scale && s->scale > 1.0f && k->recent >= 2)
        amp_report_advise(k, AMP_ADVICE_SCALE_TOO_HIGH, k->run.most_tensor, (double)s->scale);
}

/* Gradients that are too small for fp16: what is to be done depends on how large others are. Steps
   that were skipped, the last or that of the sample, do not tell. */
AMP_REPORT_DEF void amp_report_advise_range(amp_report_case *k) {
    const amp_scaler *s     = &k->run.scaler;
    const uint64_t    back  = k->run.iterations - k->run.sampled;
    const int         above = k->next - k->headroom;
    if (k->worst < 0 || !k->run.sampled || back >= k->num_history) return;
    if (k->history[k->num_history - 1 - (size_t)back].skip ||
        k->history[k->num_history - 1].skip || k->history[k->num_history - 1].tensor >= 0)
        return;
    if (k->headroom >= AMP_REPORT_HARMLESS) { /* a scale that moves will grow */
        if (k->run.fixed_scale || (s->max_scale > 0.0f && s->scale >= s->max_scale))
            amp_report_advise(k, AMP_ADVICE_SCALE_TOO_LOW, k->worst, k->headroom);
    } else if (above >= AMP_REPORT_HARMLESS && k->next != AMP_HEADROOM_UNBOUNDED &&
               k->above < AMP_REPORT_MUCH) {
        amp_report_advise(k, AMP_ADVICE_KEEP_FP32, k->largest, above);
    } else if (2.0 * k->fine >= k->weights) {
        amp_report_advise(k, AMP_ADVICE_USE_BF16, -1, k->tiny / k->grads);
    } else {
        amp_report_advise(k, AMP_ADVICE_UNDERFLOW, k->worst, k->share);
    }
}

/* What to change: at most AMP_NUM_ADVICE, one of each code; *count is how many there are. Errors
   are those of amp_optimizer_report. */
AMP_REPORT_DEF amp_result amp_report_advice(const amp_optimizer *opt, amp_advice *advice,
                                            int *count) {
    amp_report_case   k;
    amp_tensor_report t;
    amp_result        result;
    int               i;
    memset(&k, 0, sizeof k);
    k.advice      = advice;
    k.num_history = AMP_HISTORY;
    k.share       = AMP_REPORT_MUCH;
    k.nan = k.bad_weights = k.bad_copies = k.rounded = k.worst = k.largest = -1;
    k.headroom = k.next = AMP_HEADROOM_UNBOUNDED;
    result = amp_optimizer_report(opt, &k.run);
    for (i = 0; result == AMP_OK; i++) {
        result = amp_optimizer_report_tensor(opt, i, &t);
        if (result == AMP_OK) amp_report_measure(&k, i, &t);
    }
    if (i && result == AMP_ERROR_INVALID_ARGUMENT) /* behind the last tensor */
        result = amp_optimizer_history(opt, k.history, &k.num_history);
    if (result != AMP_OK) return result;
    amp_report_count(&k);
    if (k.bad_copies >= 0 && k.bad_weights < 0) {
        amp_report_advise(&k, AMP_ADVICE_WEIGHT_OVERFLOW, k.bad_copies, k.overflows);
    } else if (k.nan >= 0 && k.num_history &&
        (k.history[k.num_history - 1].loss_scale <= 1.0f ||
         (k.row >= (double)AMP_REPORT_NAN_ROW && (!k.run.fixed_scale || k.bad_weights >= 0)))) {
        if (k.bad_weights >= 0)
            amp_report_advise(&k, AMP_ADVICE_BAD_WEIGHTS, k.bad_weights, (double)k.run.nans);
        else amp_report_advise(&k, AMP_ADVICE_NAN, k.nan, (double)k.run.nans);
    } else {
        amp_report_advise_skips(&k);
        amp_report_advise_range(&k);
    }
    if (k.rounded >= 0) amp_report_advise(&k, AMP_ADVICE_MASTERS, k.rounded, k.lost);
    *count = k.count;
    return AMP_OK;
}

/* The code, as it stands in JSON. */
AMP_REPORT_DEF const char *amp_report_advice_name(amp_advice_code code) {
    switch (code) {
    case AMP_ADVICE_NAN:            return "nan";
    case AMP_ADVICE_BAD_WEIGHTS:    return "bad_weights";
    case AMP_ADVICE_WEIGHT_OVERFLOW: return "weight_overflow";
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
   amp_report_advice: the tensor's numbers are of the same moment if no step came between. */
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
    case AMP_ADVICE_WEIGHT_OVERFLOW:
        snprintf(chars, size, "weight overflow in fp16: %s of its copies are inf, and no loss "
                             "scale will help: load a state from before; keep it in fp32, or use "
                             "bf16", n);
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
    result = amp_report_advice(opt, advice, &count);
    if (result == AMP_OK) result = amp_optimizer_report(opt, &r);
    if (result != AMP_OK) return result;
    fprintf(out, "iterations %.0f, steps %.0f, skipped %.0f (overflows %.0f, asked %.0f)\n",
            (double)r.iterations, (double)r.steps, (double)(r.overflows + r.asked),
            (double)r.overflows, (double)r.asked);
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
    amp_result        result = amp_report_advice(opt, advice, &count);
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
