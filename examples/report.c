/* report.c - the page of a run: what amp_report_json wrote, as HTML

   train, gpt, cnn and ncf write a line of JSON at intervals (--report FILE); your trainer can do so
   with amp_report_json (amp_report.h). This program makes one page of the lines. The page needs no
   network and no other file. It shows what was run, where and when; the loss; the loss scale and the
   skipped steps; the norm; the exponents of each layer's gradients over the run, beside the limits
   of fp16; and the advice that was given. Several runs (fp32, fp16, bf16) are drawn over each other.

   READ  from top to bottom: a reader of JSON, what is kept of a run, its lines; then the page, part
   by part. Colors and sizes are in the style sheet, at the end. A run may have been killed while it
   wrote: an incomplete line is left out, and the page says so.

   RUN   cc -O2 -I. examples/report.c -o report -lm && ./gpt --report run.jsonl && ./report run.jsonl

   A long run is thinned out to 600 columns of steps, with the smallest and largest value of each,
   and 160 columns of samples. A page of a hundred layers has some 110 KB for any run. */

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROGRAM "report"
#include "support/train_files.h" /* and train_cli.h: errors, options, how a program begins and ends */

static void *need(void *old, size_t count, size_t size) {
    void *p = realloc(old, (count ? count : 1) * size);
    if (!p) fail(1, "memory", "there is not enough", "give fewer lines");
    return p;
}

/* ---------------------------------------------------------------------------------------- JSON
   Values are places in the text. All of a line has been passed by skip before anything is taken
   from it, so what follows finds brackets and quotes where they belong.                          */

static const char *blank(const char *p) {
    while (*p == ' ' || *p == '\t' || *p == '\r') p++;
    return p;
}

static const char *not_read; /* where reading has stopped, if a value is none */

static const char *skip_string(const char *p) {
    for (p++; *p && *p != '"'; p++)
        if (*p == '\\' && p[1]) p++;
    if (!*p) not_read = p;
    return *p ? p + 1 : NULL;
}

/* What is behind a value, or NULL if it is none. */
static const char *skip(const char *p, int depth) {
    not_read = p = blank(p);
    if (*p == '"') return skip_string(p);
    if (strncmp(p, "null", 4) == 0) return p + 4;
    if (*p == '{' || *p == '[') {
        const int  object = *p == '{';
        const char behind = object ? '}' : ']';
        p = blank(p + 1);
        if (*p == behind) return p + 1;
        for (; depth < 9; p++) {
            not_read = p = blank(p);
            if (object && *p != '"') return NULL;
            if (object && !(p = skip_string(p))) return NULL;
            if (object) not_read = p = blank(p);
            if (object && *p != ':') return NULL;
            if (!(p = skip(p + object, depth + 1))) return NULL;
            not_read = p = blank(p);
            if (*p == behind) return p + 1;
            if (*p != ',') return NULL;
        }
        return NULL;
    }
    const size_t length = strspn(p, "+-.0123456789eE");
    return length ? p + length : NULL;
}

/* The first of a list; then the one behind it; NULL: there are no more. */
static const char *first_of(const char *list) {
    if (!list || *list != '[') return NULL;
    list = blank(list + 1);
    return *list == ']' ? NULL : list;
}

static const char *next_of(const char *value) {
    value = blank(skip(value, 0));
    return *value == ',' ? blank(value + 1) : NULL;
}

/* The value of a key, or NULL. */
static const char *member(const char *object, const char *key) {
    const size_t length = strlen(key);
    if (!object || *object != '{') return NULL;
    for (object = blank(object + 1); *object == '"';) {
        const char *behind = skip_string(object), *value = blank(blank(behind) + 1);
        if ((size_t)(behind - object) == length + 2 && strncmp(object + 1, key, length) == 0)
            return value;
        value  = blank(skip(value, 0));
        object = *value == ',' ? blank(value + 1) : "";
    }
    return NULL;
}

/* Its number, cut to what can be counted with; otherwise if it is none. */
static double number(const char *value, double otherwise) {
    const double most = 1e18, x = value && strchr("+-.0123456789", *value) ? strtod(value, NULL)
                                                                            : otherwise;
    return x > most ? most : x < -most ? -most : x;
}

static double number_of(const char *object, const char *key) {
    return number(member(object, key), 0.0);
}

/* One character as HTML; what no page should hold becomes a question mark. */
static char *put_html(char *t, unsigned char c) {
    if (c < ' ' || c == 127) *t++ = '?';
    else if (strchr("<>&'\"", c)) t += sprintf(t, "&#%d;", c);
    else *t++ = (char)c;
    return t;
}

static char *html_of(const char *from, size_t length) {
    char *text = need(NULL, length + 1, 6), *t = text;
    while (length--) t = put_html(t, (unsigned char)*from++);
    *t = '\0';
    return text;
}

/* A string of JSON as HTML; so that no name fills the page, the first 200 characters of it. */
static char *text_of(const char *value) {
    char *text = need(NULL, 201, 8), *t = text, hex[5] = "";
    if (!value || *value != '"') value = "\"\"";
    value++;
    for (int length = 0; *value != '"' && length < 200; length++) {
        value += *value == '\\';
        if (value[-1] == '\\' && *value == 'u' &&
            strspn(value + 1, "0123456789abcdefABCDEF") >= 4) {
            const long c = strtol(memcpy(hex, value + 1, 4), NULL, 16);
            if (c < 128) t = put_html(t, (unsigned char)c);
            else t += sprintf(t, "&#%ld;", c);
            value += 5;
        } else {
            t = put_html(t, (unsigned char)*value++);
        }
    }
    *t = '\0';
    return text;
}

/* --------------------------------------------------------------------------------------- the run */

enum { BINS = 64, COLUMNS = 600, SAMPLES = 160, WHYS = 3, ADVICES = 64 };
enum { NO_CELL = -1, INF_CELL = BINS, NAN_CELL }; /* no gradients; one that is inf; one that is NaN */
enum { LOSS, SCALE, NORM, NUM_CHARTS };
enum { TRAINER, COMMAND, TYPES, PROCESSOR, DATE, VERSION, NUM_WORDS }; /* of what was run */

typedef struct step { double number, y[NUM_CHARTS]; int why; } step;

typedef struct sample { /* of a tensor, in a line */
    signed char median;  /* bin of its gradients, or one of the cells */
    float       small;   /* share of them that is subnormal in fp16, or less: 0 to 1 */
} sample;

typedef struct tensor {
    char  *name;
    double n, max, headroom, overflows, nans, first, small, lost; /* lost < 0: not counted */
    int    state; /* of the last step: INF_CELL, NAN_CELL, or 0 */
} tensor;

typedef struct advice { char *code, *text; double first, last; } advice;

typedef struct run {
    const char *path;
    char       *name; /* of several runs */
    char       *words[NUM_WORDS];
    char        note[200]; /* which lines were left out */
    step       *steps, *losses;
    size_t      num_steps, num_losses, room[2];
    double      least_loss;
    tensor     *tensors;
    size_t      num_tensors;
    sample     *samples; /* num_tensors of each line */
    double     *at;      /* the step of each */
    size_t      lines;
    advice      advices[ADVICES];
    size_t      num_advices;
    double      last, taken, overflows, asked, growths, backoffs, scale, stuck;
    double      seconds, timed; /* of training, and the steps that took them */
    double      held;           /* the last held-out loss */
    int         has_held;
} run;

enum { MAX_RUNS = 6, MOST_OF_A_LINE = 1 << 26, MOST_OF_A_FILE = 1 << 30 }; /* bytes */
static run runs[MAX_RUNS]; /* laid over each other in the charts */
static int num_runs;

/* The bin in which half of the gradients are reached; those of one bin are alike. */
static sample read_sample(const char *object) {
    double count[BINS] = {0}, all = 0.0, half = 0.0;
    sample s = {NO_CELL, 0.0f};
    for (const char *pair = first_of(member(object, "grads")); pair; pair = next_of(pair)) {
        const double bin = number(first_of(pair), -1.0);
        const char  *much = first_of(pair) ? next_of(first_of(pair)) : NULL;
        if (bin >= 0.0 && bin < BINS) all += count[(int)bin] = fabs(number(much, 0.0));
    }
    if (number_of(object, "nonfinite") > 0.0)
        s.median = (signed char)(number_of(object, "nan") > 0.0 ? NAN_CELL : INF_CELL);
    if (!(all > 0.0)) return s;
    for (int b = 0; b < BINS && s.median == NO_CELL; b++)
        if ((half += count[b]) >= all / 2.0) s.median = (signed char)b;
    const double small = (number_of(object, "f16_zero") + number_of(object, "f16_small")) / all;
    s.small = small > 1.0 ? 1.0f : small > 0.0 ? (float)small : 0.0f;
    return s;
}

static void read_tensor(run *r, const char *object, size_t i) {
    tensor *t = &r->tensors[i];
    free(t->name);
    t->name      = text_of(member(object, "name"));
    t->n         = number_of(object, "n");
    t->max       = number_of(object, "max");
    t->headroom  = number_of(object, "headroom");
    t->overflows = number_of(object, "overflows");
    t->nans      = number_of(object, "nans");
    t->first     = number_of(object, "first_iteration");
    const double updates = number_of(object, "updates"), lost = number_of(object, "lost");
    const sample s       = read_sample(object);
    if (updates > 0.0) t->lost = lost > updates ? 1.0 : lost > 0.0 ? lost / updates : 0.0;
    t->state = s.median >= BINS ? s.median : 0;
    if (s.median != NO_CELL && !t->state) t->small = (double)s.small;
    r->samples[r->lines * r->num_tensors + i] = s;
}

/* Steps come in order; a run that was resumed may tell of one again. */
static void add_step(step **steps, size_t *count, size_t *room, step s) {
    if (*count && s.number <= (*steps)[*count - 1].number) return;
    if (*count == *room) *steps = need(*steps, *room = 2 * *room + 1024, sizeof **steps);
    (*steps)[(*count)++] = s;
}

static void read_history(run *r, const char *list) {
    for (const char *entry = first_of(list); entry; entry = next_of(entry)) {
        double x[5] = {0};
        int    k    = 0;
        for (const char *v = first_of(entry); v && k < 5; v = next_of(v)) x[k++] = number(v, 0.0);
        const int why = x[4] > 0.0 && x[4] < WHYS ? (int)x[4] : 0;
        add_step(&r->steps, &r->num_steps, &r->room[0],
                 (step){x[0], {0.0, x[2], why == 1 ? 0.0 : x[1]}, why}); /* norms of finite ones */
    }
}

/* What train_lines.h adds to amp.h's lines: what is run, and the losses since the line before. */
static int read_extra(run *r, const char *line) {
    static const char *const key[NUM_WORDS] = {"program", "command", "types", "processor", "date", "amp"};
    const char *about = member(line, "run"), *loss = first_of(member(line, "losses"));
    for (int k = 0; about && k < NUM_WORDS; k++) {
        free(r->words[k]);
        r->words[k] = text_of(member(about, key[k]));
    }
    for (double at = number(loss, 1.0); loss && (loss = next_of(loss)) != NULL; at++) {
        const step s = {at, {number(loss, (double)NAN), 0.0, 0.0}, 0};
        if (!r->num_losses || s.y[LOSS] < r->least_loss) r->least_loss = s.y[LOSS];
        add_step(&r->losses, &r->num_losses, &r->room[1], s);
    }
    if (member(line, "seconds")) {
        r->seconds += number_of(line, "seconds");
        for (const char *l = first_of(member(line, "losses")); l && (l = next_of(l)) != NULL;) r->timed += 1.0;
    }
    if (member(line, "held")) r->held = number_of(line, "held"), r->has_held = 1;
    return about || member(line, "losses");
}

/* Each advice once, with the lines in which it was given. */
static void read_advice(run *r, const char *list, double now) {
    for (const char *a = first_of(list); a; a = next_of(a)) {
        char  *code = text_of(member(a, "code"));
        size_t i    = 0;
        while (i < r->num_advices && strcmp(r->advices[i].code, code) != 0) i++;
        if (i < r->num_advices || i == ADVICES) free(code);
        else r->advices[r->num_advices++] = (advice){code, NULL, now, now};
        if (i == ADVICES) continue;
        free(r->advices[i].text);
        r->advices[i].text = text_of(member(a, "text"));
        r->advices[i].last = now;
    }
}

/* Is it a line of a report? It has been read, then, and says what it is otherwise. */
static const char *read_line(run *r, const char *line) {
    static char what[64];
    const char *end = *line == '{' ? skip(line, 0) : NULL;
    size_t      count = 0, i = 0;
    if (!end && *line == '{' && not_read[strcspn(not_read, ",:]}")]) {
        const size_t word = strspn(not_read, "+-abcdefghijklmnopqrstuvwxyzINF"); /* nothing of HTML's */
        sprintf(what, word ? "is not JSON where it has '%.*s'" : "is not JSON", (int)(word % 32), not_read);
        return what;
    }
    if (!end && *line == '{') return "ends early";
    if (!end || *blank(end)) return "is not one of a report";
    if (read_extra(r, line)) return NULL;
    const char *tensors = member(line, "tensors");
    if (!tensors || *tensors != '[' || !member(line, "history")) return "is not one of a report";
    for (const char *t = first_of(tensors); t; t = next_of(t)) count++;
    if (r->lines && count != r->num_tensors) return "has other tensors than those before it";
    if (r->lines && number_of(line, "iterations") <= r->last) return NULL; /* resumed: told again */
    if (!r->lines) {
        r->num_tensors = count;
        r->tensors     = need(NULL, count, sizeof *r->tensors);
        memset(r->tensors, 0, count * sizeof *r->tensors);
        for (i = 0; i < count; i++) r->tensors[i].lost = -1.0;
    }
    r->samples = need(r->samples, (r->lines + 1) * (count + 1), sizeof *r->samples);
    r->at      = need(r->at, r->lines + 1, sizeof *r->at);
    r->at[r->lines] = number_of(line, "sampled");
    i = 0;
    for (const char *t = first_of(tensors); t; t = next_of(t)) read_tensor(r, t, i++);
    read_history(r, member(line, "history"));
    read_advice(r, member(line, "advice"), number_of(line, "iterations"));
    r->lines++;
    r->last      = number_of(line, "iterations");
    r->taken     = number_of(line, "steps");
    r->overflows = number_of(line, "overflows");
    r->asked     = number_of(line, "asked");
    r->growths   = number_of(line, "growths");
    r->backoffs  = number_of(line, "backoffs");
    r->scale     = number_of(line, "loss_scale");
    r->stuck     = number_of(line, "stuck");
    return NULL;
}

/* A line that is none is left out with a note; without any that is one, it is the end. */
static void take_line(run *r, const char *line, unsigned long number_of_line) {
    char        where[1200];
    const char *wrong = *line ? read_line(r, line) : NULL;
    if (!wrong) return;
    snprintf(where, sizeof where, "%.1000s, line %lu", r->path, number_of_line);
    if (!r->lines || *wrong == 'h') fail(1, where, wrong, "give what one run wrote with --report");
    if (!*r->note)
        snprintf(r->note, sizeof r->note, "line %lu %s%s; this is the page of the others",
                 number_of_line, wrong, *wrong == 'e' ? " (the run was killed?)" : "");
}

static void read_run(run *r, const char *path) {
    FILE  *f = fopen(path, "rb");
    size_t used = 0, all = 0, room = 1 << 16;
    char  *line = need(NULL, room, 1);
    unsigned long lines = 0;
    r->path = path;
    if (!f) fail(1, path, strerror(errno), "give a file that --report of a trainer wrote");
    for (int c = 0; c != EOF;) {
        c = getc(f);
        if (used == MOST_OF_A_LINE || ++all == MOST_OF_A_FILE)
            fail(1, path, "is longer than 1 GB, or a line of it than 64 MB", "give what --report of a trainer wrote");
        if (used + 1 == room) line = need(line, room *= 2, 1);
        if (c != '\n' && c != EOF) {
            line[used++] = (char)c;
            continue;
        }
        line[used] = '\0';
        lines += c != EOF || used > 0;
        if (used) take_line(r, line, lines);
        used = 0;
    }
    if (ferror(f)) fail(1, path, strerror(errno), "give a file that can be read");
    if (!r->lines) fail(1, path, "holds no line of a report", "give what train --report wrote");
    fclose(f);
    free(line);
}

/* -------------------------------------------------------------------------------------- numbers */

/* 2^k in Unicode's superscripts, or a few digits. */
static const char *power(double x) {
    static const char *const digit[10] = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
    static char text[64];
    char        decimal[16];
    int         e;
    if (!(x > 0.0) || x > 1e300) return x > 0.0 ? "∞" : "0";
    if (frexp(x, &e) > 0.5) {
        snprintf(text, sizeof text, "%.3g", x);
        return text;
    }
    sprintf(decimal, "%d", abs(e - 1));
    strcpy(text, e < 1 ? "2⁻" : "2");
    for (const char *d = decimal; *d; d++) strcat(text, digit[*d - '0']);
    return text;
}

/* ------------------------------------------------------------------------------------ the charts
   Pictures fill their boxes, whatever their shape; words stand beside them in HTML, so that they
   have the same size on a phone. All have the same steps from left to right.                     */

typedef struct column { double low, high, last; int skipped[WHYS]; } column; /* of steps */

/* The least loss of all runs: above 0, losses stand by their logarithm. */
static double least_loss(void) {
    double least = 1e300;
    for (int i = 0; i < num_runs; i++)
        if (runs[i].num_losses && runs[i].least_loss < least) least = runs[i].least_loss;
    return least;
}

/* Where a value stands; -1e9: nowhere. */
static double height_of(int chart, double y) {
    if (chart == LOSS && least_loss() <= 0.0) return fabs(y) < 1e9 ? y : -1e9;
    return y > 0.0 ? log2(y) : -1e9;
}

static double value_at(int chart, double height) {
    return chart == LOSS && least_loss() <= 0.0 ? height : exp2(height);
}

static size_t steps_of(const run *r, int chart, const step **steps) {
    *steps = chart == LOSS ? r->losses : r->steps;
    return chart == LOSS ? r->num_losses : r->num_steps;
}

/* The first and the last step of all charts. */
static void ends_of(double *first, double *last) {
    *first = 1e18, *last = 0.0;
    for (int i = 0; i < 2 * num_runs; i++) {
        const step  *s;
        const size_t count = steps_of(&runs[i / 2], i % 2 ? SCALE : LOSS, &s);
        if (count && s[0].number < *first) *first = s[0].number;
        if (count && s[count - 1].number > *last) *last = s[count - 1].number;
    }
    if (*first > *last) *first = *last;
}

/* What the columns of a run show; low and high become wide enough for it. */
static void thin_out(const run *r, int chart, column *columns, double *low, double *high) {
    const step  *s;
    const size_t count = steps_of(r, chart, &s);
    double       first, last;
    ends_of(&first, &last);
    for (int i = 0; i < COLUMNS; i++) columns[i] = (column){1e18, -1e18, 0.0, {0}};
    for (size_t i = 0; i < count; i++) {
        const double y = height_of(chart, s[i].y[chart]);
        const int    k = (int)((s[i].number - first) / (last - first + 1.0) * COLUMNS);
        column      *c = &columns[k < COLUMNS ? k : COLUMNS - 1];
        if (s[i].why) c->skipped[s[i].why]++;
        if (y <= -1e9) continue;
        c->low  = y < c->low ? y : c->low;
        c->high = y > c->high ? y : c->high;
        c->last = y;
        *low  = y < *low ? y : *low;
        *high = y > *high ? y : *high;
    }
}

/* Whole powers of two, with one in the middle; of the loss a little more than its range. */
static void round_range(int chart, double *low, double *high) {
    if (*low > *high) *low = *high = 0.0;
    if (chart == LOSS) {
        const double more = *high > *low ? 0.05 * (*high - *low) : 0.5;
        *low -= more, *high += more;
        return;
    }
    *low  = floor(*low) - (chart == SCALE);
    *high = ceil(*high) + (chart == SCALE);
    if (*low >= *high) *high = *low + 2.0;
    if (fmod(*high - *low, 2.0) > 0.0) ++*high;
}

static void write_steps(FILE *f, double first, double last) {
    fprintf(f, "<div class=x><span>step %.0f</span><span>%.0f</span><span>%.0f</span></div>", first,
            floor((first + last) / 2.0), last);
}

/* A scale holds until it changes: stairs. */
static void write_line(FILE *f, int of, int chart, const column *columns, double low, double high) {
    const double by = 100.0 / (high - low);
    double       was = 1e18;
    if (num_runs == 1) fprintf(f, "<path class=line d='");
    else fprintf(f, "<path class=line style='stroke:var(--run%d)' d='", of);
    for (int i = 0, more = 0; i < COLUMNS; i++) {
        const column *c = &columns[i];
        if (c->low > c->high) continue;
        if (chart == SCALE && !(c->low < was) && !(c->high > was)) continue;
        if (more && chart == SCALE) fprintf(f, "H%dV%.1f", i, by * (high - c->low));
        else fprintf(f, "%c%d %.1f", more ? 'L' : 'M', i, by * (high - c->low));
        if (c->high > c->low) fprintf(f, "V%.1f", by * (high - c->high));
        if (c->last < c->high) fprintf(f, "V%.1f", by * (high - c->last));
        more = 1, was = c->last;
    }
    fprintf(f, "%s'/>", chart == SCALE ? "H600" : "");
}

/* The last values of columns, for whoever points at one. */
static void write_values(FILE *f, int chart, const column *columns) {
    fprintf(f, "[");
    for (int i = 0; i < COLUMNS; i++) {
        if (columns[i].low <= columns[i].high) fprintf(f, "%.4g", value_at(chart, columns[i].last));
        fprintf(f, ",");
    }
    fprintf(f, "],");
}

static void write_chart(FILE *f, int chart) {
    static const char *const name[NUM_CHARTS] = {"loss", "loss scale", "norm of gradients"};
    static const char *const why[WHYS] = {"", "overflow", "asked"};
    static column columns[MAX_RUNS][COLUMNS];
    double        low = 1e18, high = -1e18, first, last;
    for (int i = 0; i < num_runs; i++) thin_out(&runs[i], chart, columns[i], &low, &high);
    round_range(chart, &low, &high);
    ends_of(&first, &last);
    fprintf(f, "<div class=chart><div class=y>");
    for (int k = 0; k < 3; k++) {
        const double y = high + (low - high) * k / 2.0;
        if (chart == LOSS) fprintf(f, "<span>%.2g</span>", value_at(LOSS, y));
        else fprintf(f, "<span>%s</span>", power(ldexp(1.0, (int)y)));
    }
    fprintf(f, "</div><svg id=chart%d viewBox='0 0 %d 100' preserveAspectRatio=none role=img "
               "aria-label='%s by step'><path class=grid d='M0 .5H%dM0 50H%dM0 99.5H%d'/>",
            chart, COLUMNS, name[chart], COLUMNS, COLUMNS, COLUMNS);
    for (int k = 1; k < WHYS && chart == SCALE && num_runs == 1; k++) {
        fprintf(f, "<path class='skip %s' d='", why[k]);
        for (int i = 0; i < COLUMNS; i++)
            if (columns[0][i].skipped[k]) fprintf(f, "M%d.5 0V100", i);
        fprintf(f, "'/>");
    }
    for (int i = 0; i < num_runs; i++) write_line(f, i, chart, columns[i], low, high);
    fprintf(f, "</svg></div>");
    write_steps(f, first, last);
    fprintf(f, "<p class=note id=say%d>&nbsp;</p><script>charts.push([%d,%.0f,%.0f,[", chart, chart, first,
            last);
    for (int i = 0; i < num_runs; i++) write_values(f, chart, columns[i]);
    fprintf(f, "]]);</script>");
}

/* Which color is which run. */
static void write_legend(FILE *f) {
    fprintf(f, "<p class=legend>");
    for (int i = 0; i < num_runs; i++)
        fprintf(f, "<span><i class=dot style='background:var(--run%d)'></i>%s</span>", i, runs[i].name);
    fprintf(f, "</p>");
}

static void write_why(FILE *f, const run *r) {
    if (num_runs > 1) return;
    fprintf(f, "<p class=note>Skipped: <span class=why>overflow</span>");
    if (r->asked > 0.0) fprintf(f, " <span class='why asked'>asked for</span>");
    fprintf(f, ". After an overflow the scale is halved, after many good steps doubled.</p>");
}

/* The line that column c of the map shows. */
static size_t line_at(const run *r, size_t c, size_t columns) {
    return (c + 1) * r->lines / columns - 1;
}

/* Bins of four powers of two, from what is below 2^-23, which fp16 does not have, to what is 2^17
   and more, which it does not have either. Below 2^-15 it has fewer digits. */
enum { OF_BINS = 12, INF_COLOR = OF_BINS, NAN_COLOR, COLORS, FIRST_BIN = 25 };
static int color_of(int cell) {
    const int color = cell - FIRST_BIN;
    if (cell >= BINS) return cell == NAN_CELL ? NAN_COLOR : INF_COLOR;
    return color < 0 ? 0 : color >= OF_BINS ? OF_BINS - 1 : color;
}

static const char *const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static char letter_of(int cell) {
    return cell == NO_CELL ? '-' : cell == INF_CELL ? '!' : cell == NAN_CELL ? '?' : digits[cell];
}

/* A tensor of no elements is no layer. */
static int is_layer(const tensor *t) { return t->n > 0.0; }

static size_t num_layers(const run *r) {
    size_t count = 0;
    for (size_t i = 0; i < r->num_tensors; i++) count += (size_t)is_layer(&r->tensors[i]);
    return count;
}

/* Of the longest name, as a reader sees it. */
static size_t name_length(const run *r) {
    size_t longest = 1;
    for (size_t i = 0; i < r->num_tensors; i++) {
        size_t length = 0;
        for (const char *c = r->tensors[i].name; *c && is_layer(&r->tensors[i]); c++, length++)
            c += *c == '&' ? strcspn(c, ";") : 0;
        longest = length > longest ? length : longest;
    }
    return longest;
}

/* Names are broken into lines of 27 characters, on a phone of 20: there is room for the longest. */
static void write_map(FILE *f, const run *r) {
    const size_t columns = r->lines < SAMPLES ? r->lines : SAMPLES, longest = name_length(r);
    fprintf(f, "<div class=map style='--rows:%lu;--lines:%lu;--narrow:%lu'><div class=names>",
            (unsigned long)num_layers(r), (unsigned long)(longest + 26) / 27, (unsigned long)(longest + 19) / 20);
    for (size_t i = 0; i < r->num_tensors; i++)
        if (is_layer(&r->tensors[i]))
            fprintf(f, "<span title='%s'>%s</span>", r->tensors[i].name, r->tensors[i].name);
    fprintf(f, "</div><svg class=map viewBox='0 0 %lu %lu' preserveAspectRatio=none role=img "
               "aria-label='exponents of gradients by layer and step'>",
            (unsigned long)columns, (unsigned long)num_layers(r));
    for (int k = 0; k < COLORS; k++) {
        fprintf(f, "<path class=c%d d='", k);
        for (size_t i = 0, row = 0; i < r->num_tensors; row += (size_t)is_layer(&r->tensors[i++]))
            for (size_t c = 0, from; is_layer(&r->tensors[i]) && c < columns; c++) {
                for (from = c; c < columns; c++) { /* a run of cells that look alike */
                    const int m = r->samples[line_at(r, c, columns) * r->num_tensors + i].median;
                    if (m == NO_CELL || color_of(m) != k) break;
                }
                if (c > from)
                    fprintf(f, "M%lu %luh%luv1H%luz", (unsigned long)from, (unsigned long)row,
                            (unsigned long)(c - from), (unsigned long)from);
            }
        fprintf(f, "'/>");
    }
    fprintf(f, "</svg></div>");
    write_steps(f, r->at[line_at(r, 0, columns)], r->at[r->lines - 1]);
    fprintf(f, "<div class=key>");
    for (int k = 0; k < OF_BINS; k++) fprintf(f, "<i class=c%d></i>", k);
    for (int k = 1; k < OF_BINS; k++) /* where one color ends; on a phone every other one */
        fprintf(f, "<b class=k%d style='grid-column:%d/span 2'>%s</b>", k % 2, k,
                power(ldexp(1.0, 4 * (FIRST_BIN + k) - 127)));
    fprintf(f, "<u>0</u><u style='grid-column:span 2'>subnormal</u><u style='grid-column:span 8'>"
               "normal in fp16</u><u>∞</u></div><p class=note><i class='dot c%d'></i> a gradient is inf "
               "<i class='dot c%d'></i> or NaN</p><p class='note cell'>The median of a layer's "
               "gradients, scaled, as they are stored.</p><script>maps.push([[", INF_COLOR, NAN_COLOR);
    for (size_t i = 0; i < r->num_tensors; i++) {
        if (!is_layer(&r->tensors[i])) continue;
        fprintf(f, "'");
        for (size_t c = 0; c < columns; c++) {
            const sample *s = &r->samples[line_at(r, c, columns) * r->num_tensors + i];
            fprintf(f, "%c%c", letter_of(s->median),
                    digits[(int)(s->small * 50.0f + 0.5f)]);
        }
        fprintf(f, "',");
    }
    fprintf(f, "],[");
    for (size_t c = 0; c < columns; c++) fprintf(f, "%.0f,", r->at[line_at(r, c, columns)]);
    fprintf(f, "]]);</script>");
}

/* ----------------------------------------------------------------------------------- the tables */

static int is_grave(const char *code) {
    return strcmp(code, "nan") == 0 || strcmp(code, "bad_weights") == 0 || strcmp(code, "weight_overflow") == 0 ||
           strcmp(code, "stuck") == 0;
}

static void write_advice(FILE *f, const run *r) {
    if (!r->num_advices) {
        const char *products = r->words[PROCESSOR] ? strstr(r->words[PROCESSOR], "; bf16 and fp16 are") : NULL;
        fprintf(f, "<p class=good>None: amp.h found nothing to change in %s%s.</p>",
                counted(r->lines, "sample"), products ? products : "");
        return;
    }
    fprintf(f, "<ul class=advice>");
    for (size_t k = 0; k < 2 * r->num_advices; k++) { /* what ends a run stands first */
        const advice *a = &r->advices[k % r->num_advices];
        if (is_grave(a->code) != (k < r->num_advices)) continue;
        fprintf(f, "<li class=%s><b>%s</b> %s <small>", a->last >= r->last ? "now" : "past",
                a->code, a->text);
        if (a->first < a->last) fprintf(f, "steps %.0f to %.0f", a->first, a->last);
        else fprintf(f, "step %.0f", a->last);
        fprintf(f, "</small></li>");
    }
    fprintf(f, "</ul>");
}

/* What was run, if the lines say so. */
static void write_about(FILE *f, const run *r) {
    static const char *const name[NUM_WORDS] = {"", "command", "types", "processor", "date", "amp.h"};
    if (*r->note) fprintf(f, "<p class=hot>%s</p>", r->note);
    if (!r->words[TRAINER]) return;
    fprintf(f, "<dl>");
    for (int k = COMMAND; k < NUM_WORDS; k++)
        if (*r->words[k]) fprintf(f, "<dt>%s</dt><dd>%s</dd>", name[k], r->words[k]);
    fprintf(f, "</dl>");
}

static void write_cards(FILE *f, const run *r) {
    const double skipped = r->overflows + r->asked;
    double       parameters = 0.0;
    for (size_t i = 0; i < r->num_tensors; i++) parameters += r->tensors[i].n;
    fprintf(f, "<div class=cards><div><b>%.0f</b> steps</div><div><b>%.0f</b> skipped", r->last,
            skipped);
    if (r->asked > 0.0) fprintf(f, ", %.0f asked for", r->asked);
    fprintf(f, "</div><div><b>%s</b> loss scale%s</div>", power(r->scale),
            r->stuck > 0.0 ? ", stuck" : "");
    fprintf(f, "<div><b>%.0f ↑ %.0f ↓</b> it grew, fell</div>", r->growths, r->backoffs);
    if (r->num_losses)
        fprintf(f, "<div><b>%.4g</b> last loss</div>", r->losses[r->num_losses - 1].y[LOSS]);
    if (r->has_held) fprintf(f, "<div><b>%.4g</b> held-out loss</div>", r->held);
    if (r->seconds > 0.0) fprintf(f, "<div><b>%.*f</b> steps a second</div>", r->timed < 100.0 * r->seconds, r->timed / r->seconds);
    fprintf(f, "<div><b>%.0f</b> parameters, %lu tensors</div></div>", parameters,
            (unsigned long)num_layers(r));
}

/* A share; of what is not stored in fp16 (or not counted) a line. */
static void write_share(FILE *f, double share, const char *bar) {
    if (share < 0.0) fprintf(f, "<td>–</td>");
    else
        fprintf(f, "<td class=bar><i%s style='width:%.0f%%'></i><span>%.*f %%</span></td>", bar,
                100.0 * share, share > 0.0 && share < 0.1 ? 1 : 0, 100.0 * share);
}

static void write_layers(FILE *f, const run *r) {
    fprintf(f, "<div class=wide><table><thead><tr><th>tensor<th>overflows<th>headroom<th>underflow"
               "<th>below half a unit<th class=far>elements<th class=far>largest</tr></thead><tbody>");
    for (size_t i = 0; i < r->num_tensors; i++) {
        const tensor *t = &r->tensors[i];
        const int     is_half = t->headroom <= 40.0; /* there is no more in fp16 */
        if (!is_layer(t)) continue;
        fprintf(f, "<tr><th title='%s'>%s</th>", t->name, t->name);
        if (t->overflows > 0.0)
            fprintf(f, "<td class=hot>%.0f <small>from %.0f%s</small></td>", t->overflows, t->first,
                    t->nans > 0.0 ? ", NaN" : "");
        else fprintf(f, "<td>0</td>");
        if (t->headroom < 255.0) fprintf(f, "<td>%s</td>", power(pow(2.0, t->headroom)));
        else fprintf(f, "<td>–</td>");
        write_share(f, is_half ? t->small : -1.0, t->small >= 0.25 ? " class=much" : "");
        write_share(f, t->lost, "");
        fprintf(f, "<td class=far>%.0f</td>", t->n);
        if (t->state) fprintf(f, "<td class='far hot'>%s</td></tr>", t->state == NAN_CELL ? "NaN" : "inf");
        else fprintf(f, "<td class=far>%.3g</td></tr>", t->max);
    }
    fprintf(f, "</tbody></table></div><p class=note>Of the last sample. Headroom: by how much gradients "
               "could grow before one overflows. Underflow: of gradients in fp16, those that are "
               "subnormal there; from 25 %% on amp.h calls it much. Below half a unit: updates too "
               "small to show in a 16-bit copy by themselves. Masters add them up, so nothing is "
               "lost; without masters it would be.</p>");
}

/* ------------------------------------------------------------------------------------- the page */

static const char *const style =
    ":root{color-scheme:light dark;--paper:#fcfcfa;--ink:#222;--soft:#666;--rule:#ddd;--line:#0b63a5;"
    "--run0:#0b63a5;--run1:#d98200;--run2:#1b8a5a;--run3:#b04a8f;--run4:#555;--run5:#8a5a2b;--hot:#b3261e;--good:#1b6e3c;--card:#f0efea;"
    "--c0:#4a148c;--c1:#8e4ec6;--c2:#c9a7e8;--c3:#dcebf7;--c4:#bcdcf0;--c5:#95c8e6;--c6:#69b0d8;"
    "--c7:#4295c4;--c8:#2478a8;--c9:#0f5c88;--c10:#064166;--c11:#e0782f;--c12:#d3302f;--c13:#000}"
    "@media(prefers-color-scheme:dark){:root{--paper:#16171a;--ink:#e8e6e1;--soft:#a2a19c;--rule:#3a3b40;"
    "--line:#6db7f2;--run0:#6db7f2;--run1:#f0a93f;--run2:#4fd09a;--run3:#e98bc8;--run4:#bbb;--run5:#d0a070;--hot:#ff8a80;--good:#7fd19b;--card:#222429;"
    "--c0:#d9b3ff;--c1:#a56be0;--c2:#6d3fa3;--c3:#12324a;--c4:#174261;--c5:#1c5379;--c6:#246892;"
    "--c7:#347fae;--c8:#4f99c8;--c9:#77b5dd;--c10:#a9d4ef;--c11:#f2a65a;--c12:#ff6b60;--c13:#fff}}"
    "*{box-sizing:border-box;-webkit-print-color-adjust:exact;print-color-adjust:exact}"
    "h2{break-after:avoid}.chart,.map,li{break-inside:avoid}.dot{display:inline-block;width:12px;height:12px;"
    "vertical-align:-1px;margin:0 4px 0 8px}.wide{overflow-x:auto}svg:focus{outline:2px solid var(--line)}body{margin:0 auto;max-width:1080px;padding:16px;background:var(--paper);"
    "color:var(--ink);font:15px/1.45 system-ui,Helvetica,Arial,'DejaVu Sans',sans-serif}"
    "h1{font-size:1.35rem;margin:.2rem 0 .6rem;overflow-wrap:anywhere}h2{font-size:1.05rem;margin:1.8rem 0 .5rem}"
    "small,.note{color:var(--soft)}.note{margin:.4rem 0;min-height:1.5em}.good{color:var(--good);margin:0}"
    ".hot{color:var(--hot)}dl{display:grid;grid-template-columns:auto 1fr;gap:2px 12px;margin:0 0 1rem}"
    "dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}"
    ".cards{display:flex;flex-wrap:wrap;gap:8px}.cards div{background:var(--card);border-radius:6px;"
    "padding:8px 12px;flex:1 1 auto;color:var(--soft)}.cards b{color:var(--ink);font-size:1.15rem;display:block}"
    ".advice{list-style:none;margin:0;padding:0}.advice li{border-left:4px solid var(--rule);padding:6px 10px;"
    "margin:6px 0;background:var(--card);overflow-wrap:anywhere}.advice .now{border-color:var(--hot)}"
    ".advice b{margin-right:.4em}"
    ".chart{display:flex;height:150px}.chart svg{flex:1;min-width:0;height:100%;background:var(--card)}"
    ".y{width:56px;display:flex;flex-direction:column;justify-content:space-between;text-align:right;"
    "padding-right:6px;color:var(--soft);font-size:12px;line-height:1}"
    ".x{display:flex;justify-content:space-between;padding-left:56px;color:var(--soft);font-size:12px}"
    "path{vector-effect:non-scaling-stroke;fill:none}.grid{stroke:var(--rule)}.line{stroke:var(--line);"
    "stroke-width:1.6}.skip{stroke-width:1.2;opacity:.55}.overflow{stroke:var(--hot)}"
    ".asked{stroke:var(--soft)}"
    ".why::before{content:'';display:inline-block;width:2px;height:12px;margin:0 6px 0 10px;vertical-align:-1px;"
    "background:var(--hot)}.why.asked::before{background:var(--soft)}";
static const char *const style_of_tables =
    ".legend span{margin-right:14px;overflow-wrap:anywhere}.map{display:flex;--row:calc(14px*var(--lines))}.map .names{width:var(--names,190px);flex:none;"
    "font:11px/14px 'DejaVu Sans Mono',Menlo,Consolas,monospace;text-align:right;padding-right:6px}"
    ".map .names span{display:block;height:var(--row);word-break:break-all}.map svg{flex:1;min-width:0;height:calc(var(--row)*var(--rows));"
    "background:var(--card);shape-rendering:crispEdges}.mapx .x{padding-left:var(--names,190px)}"
    ".key{display:grid;grid-template-columns:repeat(12,1fr);max-width:620px;margin:10px 0 0 auto;font-size:12px;"
    "color:var(--soft);text-align:center}.key i{height:14px}.key b{font-weight:400;grid-row:2}"
    ".key u{text-decoration:none;border-top:2px solid var(--rule);margin:2px 1px;white-space:nowrap}"
    "table{border-collapse:collapse;width:100%;font-size:13px;font-variant-numeric:tabular-nums}"
    "td,th{text-align:right;padding:3px 8px;border-bottom:1px solid var(--rule);white-space:nowrap}"
    "th:first-child{text-align:left;min-width:104px;max-width:190px;white-space:normal;overflow-wrap:anywhere;font-weight:500}"
    "thead th{color:var(--soft);font-weight:400;white-space:normal;vertical-align:bottom}"
    ".bar{position:relative;min-width:90px}.bar i{position:absolute;left:8px;top:5px;bottom:5px;max-width:calc(100% - 16px);"
    "background:var(--soft);opacity:.18}.bar .much{background:var(--hot);opacity:.35}.bar span{position:relative}"
    "@media(max-width:600px){:root{--names:140px}.map{--row:calc(14px*var(--narrow))}body{padding:10px}"
    "table{font-size:12px}td,th{padding:3px}.bar{min-width:52px}.bar i{left:3px;max-width:calc(100% - 6px)}"
    "th:first-child{min-width:84px}"
    ".far,.key .k0{display:none}td small{display:block}}";

/* Where somebody points, on a chart or a map, in words: by mouse, touch, or arrow keys. */
static const char *const script =
    "const two=k=>'2'+String(k).replace(/./g,x=>x=='-'?'\u207b':'\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079'[x]),"
    "letters='ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/',"
    "into=(x,n)=>Math.min(n-1,Math.max(0,Math.floor(x)));"
    "function look(svg,wide,tall,say){let c=0,r=0;svg.tabIndex=0;"
    "const at=e=>{const b=svg.getBoundingClientRect();c=into((e.clientX-b.left)/b.width*wide,wide);"
    "r=into((e.clientY-b.top)/b.height*tall,tall);say(c,r)};"
    "svg.addEventListener('pointermove',at);svg.addEventListener('pointerdown',at);"
    "svg.addEventListener('keydown',e=>{const k={ArrowLeft:[-1,0],ArrowRight:[1,0],ArrowUp:[0,-1],ArrowDown:[0,1]}[e.key];"
    "if(k){c=into(c+k[0]*Math.max(1,wide/100),wide);r=into(r+k[1],tall);say(c,r);e.preventDefault()}})}"
    "for(const [chart,first,last,runs] of charts){const say=document.getElementById('say'+chart);"
    "look(document.getElementById('chart'+chart),600,1,c=>{"
    "say.textContent='step '+Math.floor(first+c/600*(last-first+1))+': '+runs.map((v,i)=>{let k=c;"
    "while(k>0&&v[k]===undefined)k--;const x=v[k],e=Math.log2(x);return (names.length>1?names[i]+' ':'')+"
    "(x===undefined?'none':chart==1&&e%1==0?two(e):x)}).join(', ')})}"
    "document.querySelectorAll('svg.map').forEach((svg,m)=>{const [cells,at]=maps[m],box=svg.closest('.mapx'),"
    "layers=[...box.querySelectorAll('.names span')].map(s=>s.textContent),cell=box.querySelector('.cell');"
    "look(svg,at.length,cells.length,(c,r)=>{const w=cells[r][2*c],k=letters.indexOf(w),s=letters.indexOf(cells[r][2*c+1]);"
    "cell.textContent=layers[r]+', step '+at[c]+': '+(w=='?'?'a gradient is NaN':w=='!'?'a gradient is inf':"
    "0>k?'no gradients':'median from '+two(4*k-127)+' to '+two(4*k-123)+', '+2*s+"
    "' % would be subnormal or 0 in fp16')})});";

/* What a run was, how it went, and what to change. */
static void write_head(FILE *f, const run *r) {
    write_about(f, r);
    write_cards(f, r);
    fprintf(f, "<h2>Advice</h2>");
    write_advice(f, r);
}

/* HTML's text as a string of the script: what it would end or break is there as entities. */
static void write_script_text(FILE *f, const char *html) {
    fprintf(f, "'");
    for (; *html; html++)
        if (*html == '\\') fprintf(f, "\\\\");
        else if (*html == '&') fprintf(f, "?"), html += strcspn(html, ";") * (strchr(html, ';') != NULL);
        else putc(*html, f);
    fprintf(f, "',");
}

static void write_page(FILE *f, const char *title) {
    int any = 0;
    fprintf(f, "<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport "
               "content='width=device-width,initial-scale=1'><link rel=icon href='data:,'>"
               "<title>%s</title><style>%s%s", title, style, style_of_tables);
    for (int k = 0; k < COLORS; k++)
        fprintf(f, ".c%d{fill:var(--c%d);background:var(--c%d)}", k, k, k);
    fprintf(f, "</style></head><body><h1>%s</h1><script>const charts=[],maps=[],names=[", title);
    for (int i = 0; i < num_runs; i++) write_script_text(f, runs[i].name);
    fprintf(f, "];</script>");
    if (num_runs == 1) write_head(f, &runs[0]);
    else write_legend(f);
    for (int i = 0; i < num_runs; i++) any |= runs[i].num_losses > 0;
    if (any) {
        fprintf(f, "<h2>Loss</h2>");
        write_chart(f, LOSS);
    }
    fprintf(f, "<h2>Loss scale%s</h2>", num_runs == 1 ? ", and steps that were skipped" : "");
    write_chart(f, SCALE);
    write_why(f, &runs[0]);
    fprintf(f, "<h2>Norm of the unscaled gradients</h2>");
    write_chart(f, NORM);
    for (int i = 0; i < num_runs; i++) {
        if (num_runs > 1) {
            fprintf(f, "<h1>%s</h1>", runs[i].name);
            write_head(f, &runs[i]);
        }
        fprintf(f, "<h2>Exponents of gradients, by layer and step</h2><div class=mapx>");
        write_map(f, &runs[i]);
        fprintf(f, "</div><h2>Tensors</h2>");
        write_layers(f, &runs[i]);
    }
    fprintf(f, "<script>%s</script></body></html>\n", script);
}

static void print_help(void) {
    puts("usage: report LINES... [--out PAGE]\n\n"
         "Make a page of HTML of what train, gpt, cnn or ncf wrote with --report; of up to\n"
         "six runs, laid over each other, one page.\n\n"
         "  --out PAGE    where it goes (LINES.html, of the first)\n"
         "  --help        this text");
}

/* The name of a run: the program and its types, or its file. */
static char *name_of(const run *r) {
    char text[1300];
    if (!r->words[TRAINER]) return html_of(r->path, strlen(r->path));
    snprintf(text, sizeof text, "%.600s in %.600s", r->words[TRAINER], r->words[TYPES]);
    return strcpy(need(NULL, strlen(text) + 1, 1), text);
}

/* Runs of the same name are told apart by their files. */
static void name_runs(void) {
    for (int i = 0; i < num_runs; i++) runs[i].name = name_of(&runs[i]);
    for (int i = 0; i < num_runs; i++) {
        int same = 0;
        for (int k = 0; k < num_runs; k++) same += strcmp(runs[k].name, runs[i].name) == 0;
        if (same < 2) continue;
        for (int k = num_runs; k-- > i;)
            if (k == i || strcmp(runs[k].name, runs[i].name) == 0)
                runs[k].name = html_of(runs[k].path, strlen(runs[k].path));
    }
}

static void parse(int argc, char **argv, const char **out) {
    const known_option known = word_option("--out", out);
    char               most[32];
    sprintf(most, "give at most %d", MAX_RUNS);
    begin(argc, argv);
    for (int i = 1; i < argc; i++) {
        if (is_help(argv[i])) print_help(), exit(finish(0));
        if (is_among(&known, 1, argv, &i)) continue;
        if (argv[i][0] == '-') unexpected(argv[i]);
        if (num_runs == MAX_RUNS) fail(2, argv[i], "is one file too many", most);
        runs[num_runs++].path = argv[i];
    }
    if (!num_runs) fail(2, "LINES", "no input file", "give what --report wrote; see --help");
    if (strlen(runs[0].path) > 1000) fail(2, runs[0].path, "is too long a path", "choose a shorter one");
}

int main(int argc, char **argv) {
    static const char help[] = "choose a file that can be written with --out";
    const char       *out = NULL;
    char              page[1100];
    parse(argc, argv, &out);
    snprintf(page, sizeof page, "%s.html", runs[0].path);
    if (!out) out = page;
    for (int i = 0; i < num_runs; i++) refuse_overwriting("--out", out, runs[i].path);
    for (int i = 0; i < num_runs; i++) read_run(&runs[i], runs[i].path);
    name_runs();
    output to = open_output(out, help);
    write_page(to.f, num_runs == 1 ? runs[0].name : "Runs compared");
    const long size = ftell(to.f);
    close_output(&to, 1, help);
    for (int i = 0; i < num_runs; i++) {
        const run *r = &runs[i];
        printf("%s: %s, %s, %s%s%s\n", r->path, counted((size_t)r->last, "step"),
               counted(num_layers(r), "tensor"), counted(r->lines, "sample"), *r->note ? "; " : "", r->note);
    }
    printf("%s: %ld KB\n", out, (size + 512) / 1024);
    return finish(0);
}
