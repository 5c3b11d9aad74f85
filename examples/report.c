/* report.c - the page of a run: what amp_optimizer_report_json wrote, as HTML

   train and gpt write a line of JSON now and then (--report FILE), and so can a trainer of yours
   with amp_optimizer_report_json. This program makes one page of them, which needs neither a
   network nor anything beside: the path of the loss scale and the turns that were skipped, the
   norm, the exponents of each layer's gradients over the run, how much of each layer underflows,
   and the advice that was given.

   READ  from top to bottom: a reader of JSON, what is kept of a run, its lines; then the page, part
   by part. Colors and sizes are in the style sheet, at the end.

   RUN   cc -O2 -I. examples/report.c -o report -lm && ./gpt --report run.jsonl && ./report run.jsonl

   A long run is thinned out: 600 columns of turns with the least and the largest of each, and 160
   columns of samples. So a page of a hundred layers has about 200 KB, however long the run is.   */

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One line that says what was wrong, with which value, and what to do; then the end. */
static void fail(int code, const char *subject, const char *problem, const char *remedy) {
    fprintf(stderr, "report: %s: %s; %s\n", subject, problem, remedy);
    exit(code);
}

static void *need(void *old, size_t count, size_t size) {
    void *p = realloc(old, (count ? count : 1) * size);
    if (!p) fail(1, "memory", "there is not enough", "give fewer lines");
    return p;
}

/* ---------------------------------------------------------------------------------------- JSON
   Values are places in the text. A line has been looked through by skip before anything is taken. */

static const char *blank(const char *p) {
    while (*p == ' ' || *p == '\t' || *p == '\r') p++;
    return p;
}

static const char *skip_string(const char *p) {
    for (p++; *p && *p != '"'; p++)
        if (*p == '\\' && p[1]) p++;
    return *p ? p + 1 : NULL;
}

/* What is behind a value, or NULL if it is none. */
static const char *skip(const char *p, int depth) {
    p = blank(p);
    if (*p == '"') return skip_string(p);
    if (strncmp(p, "null", 4) == 0) return p + 4;
    if (*p == '{' || *p == '[') {
        const int  object = *p == '{';
        const char behind = object ? '}' : ']';
        p = blank(p + 1);
        if (*p == behind) return p + 1;
        for (; depth < 9; p++) {
            p = blank(p);
            if (object && *p != '"') return NULL;
            if (object && !(p = skip_string(p))) return NULL;
            if (object && *(p = blank(p)) != ':') return NULL;
            if (!(p = skip(p + object, depth + 1))) return NULL;
            p = blank(p);
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

static double number(const char *value, double otherwise) {
    return value && *value != 'n' ? strtod(value, NULL) : otherwise;
}

static double number_of(const char *object, const char *key) {
    return number(member(object, key), 0.0);
}

/* A string as HTML; \u00.. stands for what nobody wants to see. */
static char *text_of(const char *value) {
    char *text, *t;
    if (!value || *value != '"') value = "\"\"";
    const char *end = skip_string(value);
    t = text = need(NULL, (size_t)(end - value), 6);
    for (value++; value < end - 1; value++) {
        if (*value == '\\' && value[1] == 'u') value += 5, *t++ = '?';
        else if (*value == '<' || *value == '&' || *value == '\'')
            t += sprintf(t, "&#%d;", *value);
        else if (*value == '\\') value++, t += sprintf(t, "&#%d;", *value);
        else *t++ = *value;
    }
    *t = '\0';
    return text;
}

/* --------------------------------------------------------------------------------------- the run */

enum { BINS = 64, COLUMNS = 600, SAMPLES = 160, WHYS = 4 };
enum { NO_CELL = -1 };

typedef struct turn { double turn, norm, scale; int why; } turn;

typedef struct sample { /* of a tensor, in a line */
    signed char median;  /* bin of its gradients; NO_CELL: none */
    float       small;   /* share of them that is subnormal in fp16, or less */
} sample;

typedef struct tensor {
    char  *name;
    double n, max, headroom, overflows, nans, first_turn, zeros, small, lost;
} tensor;

typedef struct advice { char *code, *text; double first, last; } advice;

typedef struct run {
    const char *path;
    turn       *turns;
    size_t      num_turns, room;
    tensor     *tensors;
    size_t      num_tensors;
    sample     *samples; /* num_tensors of each line */
    double     *at;      /* the turn of each */
    size_t      lines;
    advice     *advices;
    size_t      num_advices;
    double      steps, overflows, spikes, asked, growths, backoffs, scale, norm, stuck;
} run;

/* The bin in which half of the gradients are reached; those of one bin are alike. */
static sample read_sample(const char *object) {
    double count[BINS] = {0}, all = 0.0, half = 0.0;
    sample s = {NO_CELL, 0.0f};
    for (const char *pair = first_of(member(object, "grads")); pair; pair = next_of(pair)) {
        const int    bin  = (int)number(first_of(pair), -1.0);
        const char  *much = first_of(pair) ? next_of(first_of(pair)) : NULL;
        if (bin >= 0 && bin < BINS) all += count[bin] = number(much, 0.0);
    }
    if (!(all > 0.0)) return s;
    for (int b = 0; b < BINS && s.median == NO_CELL; b++)
        if ((half += count[b]) >= all / 2.0) s.median = (signed char)b;
    s.small = (float)((number_of(object, "f16_zero") + number_of(object, "f16_small")) / all);
    return s;
}

static void read_tensor(run *r, const char *object, size_t i) {
    tensor *t = &r->tensors[i];
    free(t->name);
    t->name       = text_of(member(object, "name"));
    t->n          = number_of(object, "n");
    t->max        = number_of(object, "max");
    t->headroom   = number_of(object, "headroom");
    t->overflows  = number_of(object, "overflows");
    t->nans       = number_of(object, "nans");
    t->first_turn = number_of(object, "first_turn");
    t->zeros      = t->n > 0.0 ? number_of(object, "zeros") / t->n : 0.0;
    const double updates = number_of(object, "updates");
    const sample s       = read_sample(object);
    if (updates > 0.0) t->lost = number_of(object, "lost") / updates;
    if (s.median != NO_CELL) t->small = (double)s.small;
    r->samples[r->lines * r->num_tensors + i] = s;
}

static void read_history(run *r, const char *list) {
    for (const char *entry = first_of(list); entry; entry = next_of(entry)) {
        double x[5] = {0};
        int    k    = 0;
        for (const char *v = first_of(entry); v && k < 5; v = next_of(v)) x[k++] = number(v, 0.0);
        if (r->num_turns == r->room)
            r->turns = need(r->turns, r->room = 2 * r->room + 1024, sizeof *r->turns);
        if (r->num_turns && x[0] <= r->turns[r->num_turns - 1].turn) continue; /* resumed */
        const int why = x[4] > 0.0 && x[4] < WHYS ? (int)x[4] : 0;
        r->turns[r->num_turns++] = (turn){x[0], x[1], x[2], why};
    }
}

/* Each advice once, with the lines in which it was given. */
static void read_advice(run *r, const char *list, double now) {
    for (const char *a = first_of(list); a; a = next_of(a)) {
        char  *code = text_of(member(a, "code"));
        size_t i    = 0;
        while (i < r->num_advices && strcmp(r->advices[i].code, code) != 0) i++;
        if (i == r->num_advices) {
            r->advices    = need(r->advices, ++r->num_advices, sizeof *r->advices);
            r->advices[i] = (advice){code, NULL, now, now};
        } else {
            free(code);
        }
        free(r->advices[i].text);
        r->advices[i].text = text_of(member(a, "text"));
        r->advices[i].last = now;
    }
}

static void read_line(run *r, const char *line, size_t number_of_line) {
    const char *end = skip(line, 0), *tensors = member(line, "tensors");
    size_t      count = 0, i = 0;
    char        where[1200];
    snprintf(where, sizeof where, "%.1000s, line %lu", r->path, (unsigned long)number_of_line);
    if (!end || *blank(end) || !tensors || *tensors != '[' || !member(line, "history"))
        fail(1, where, "is not a line of amp_optimizer_report_json", "give what --report wrote");
    for (const char *t = first_of(tensors); t; t = next_of(t)) count++;
    if (!r->lines) {
        r->num_tensors = count;
        r->tensors     = need(NULL, count, sizeof *r->tensors);
        memset(r->tensors, 0, count * sizeof *r->tensors);
    }
    if (count != r->num_tensors)
        fail(1, where, "has other tensors than the lines before", "give one run in a file");
    r->samples = need(r->samples, (r->lines + 1) * (count + 1), sizeof *r->samples);
    r->at      = need(r->at, r->lines + 1, sizeof *r->at);
    r->at[r->lines] = number_of(line, "sampled");
    for (const char *t = first_of(tensors); t; t = next_of(t)) read_tensor(r, t, i++);
    read_history(r, member(line, "history"));
    read_advice(r, member(line, "advice"), number_of(line, "turns"));
    r->lines++;
    r->steps     = number_of(line, "steps");
    r->overflows = number_of(line, "overflows");
    r->spikes    = number_of(line, "spikes");
    r->asked     = number_of(line, "asked");
    r->growths   = number_of(line, "growths");
    r->backoffs  = number_of(line, "backoffs");
    r->scale     = number_of(line, "loss_scale");
    r->norm      = number_of(line, "norm");
    r->stuck     = number_of(line, "stuck");
}

static void read_run(run *r, const char *path) {
    FILE  *f = fopen(path, "rb");
    size_t used = 0, room = 1 << 16, lines = 0;
    char  *line = need(NULL, room, 1);
    r->path     = path;
    if (!f) fail(1, path, strerror(errno), "give a file that --report of train or gpt wrote");
    for (int c = getc(f); c != EOF; c = getc(f)) {
        if (used + 1 == room) line = need(line, room *= 2, 1);
        if (c != '\n') {
            line[used++] = (char)c;
            continue;
        }
        line[used] = '\0';
        lines++;
        if (used) read_line(r, line, lines);
        used = 0;
    }
    line[used] = '\0';
    if (used) read_line(r, line, lines + 1); /* the last may lack its end */
    if (ferror(f)) fail(1, path, strerror(errno), "give a file that can be read");
    if (!r->lines) fail(1, path, "holds no line", "give what --report of train or gpt wrote");
    fclose(f);
    free(line);
}

/* -------------------------------------------------------------------------------------- numbers */

/* 2^k in Unicode's superscripts, or a few digits. */
static const char *power(double x) {
    static const char *const digit[10] = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
    static char text[64];
    int         e;
    if (!(x > 0.0) || x > 1e300) return x > 0.0 ? "∞" : "0";
    frexp(x, &e);
    e--;
    if (ldexp(1.0, e) < x) {
        snprintf(text, sizeof text, "%.3g", x);
        return text;
    }
    snprintf(text, sizeof text, "2%s%s%s", e < 0 ? "⁻" : "",
             abs(e) > 99 ? digit[abs(e) / 100] : "", abs(e) > 9 ? digit[abs(e) / 10 % 10] : "");
    strcat(text, digit[abs(e) % 10]);
    return text;
}

/* ------------------------------------------------------------------------------------ the charts
   Pictures fill their boxes, whatever their shape; words stand beside them in HTML, so that they
   have the same size on a phone.                                                                 */

typedef struct column { double low, high, last; int skipped[WHYS]; } column; /* of turns */

static double log_of(double x) { return x > 0.0 && x < 1e300 ? log2(x) : -1e9; }

/* Of the scale or of the norm, what columns show; the range of it goes to *low, *high. */
static void thin_out(const run *r, int norm, column *columns, double *low, double *high) {
    *low = 1e9, *high = -1e9;
    for (int i = 0; i < COLUMNS; i++) columns[i] = (column){1e9, -1e9, -1e9, {0}};
    for (size_t i = 0; i < r->num_turns; i++) {
        const turn  *t = &r->turns[i];
        const double y = log_of(norm ? t->norm : t->scale);
        column      *c = &columns[i * COLUMNS / r->num_turns];
        if (t->why) c->skipped[t->why]++;
        if (y < -1e8) continue;
        if (norm && t->why == 1) continue; /* of finite elements alone */
        c->low  = y < c->low ? y : c->low;
        c->high = y > c->high ? y : c->high;
        c->last = y;
        *low  = y < *low ? y : *low;
        *high = y > *high ? y : *high;
    }
}

static void write_labels(FILE *f, double low, double high) {
    fprintf(f, "<div class=y>");
    for (int k = 0; k < 3; k++)
        fprintf(f, "<span>%s</span>", power(ldexp(1.0, (int)(high + (low - high) * k / 2.0))));
    fprintf(f, "</div>");
}

static void write_turns(FILE *f, const run *r) {
    const double last = r->num_turns ? r->turns[r->num_turns - 1].turn : 0.0;
    const double first = r->num_turns ? r->turns[0].turn : 0.0;
    fprintf(f, "<div class=x><span>turn %.0f</span><span>%.0f</span><span>%.0f</span></div>", first,
            floor((first + last) / 2.0), last);
}

static void write_chart(FILE *f, const run *r, int norm) {
    static const char *const why[WHYS] = {"", "overflow", "spike", "asked"};
    static column columns[COLUMNS];
    double        low, high;
    thin_out(r, norm, columns, &low, &high);
    if (low > high) low = 0.0, high = 1.0;
    low = floor(low) - (norm ? 0.0 : 1.0), high = ceil(high) + (norm ? 0.0 : 1.0);
    if (low >= high) high = low + 2.0;
    if (fmod(high - low, 2.0) != 0.0) high++; /* a label in the middle */
    fprintf(f, "<div class=chart>");
    write_labels(f, low, high);
    fprintf(f, "<svg viewBox='0 0 %d 100' preserveAspectRatio=none role=img aria-label='%s'>"
               "<path class=grid d='M0 .5H%dM0 50H%dM0 99.5H%d'/>",
            COLUMNS, norm ? "norm of gradients by turn" : "loss scale by turn", COLUMNS, COLUMNS,
            COLUMNS);
    for (int k = 1; k < WHYS && !norm; k++) {
        fprintf(f, "<path class='skip %s' d='", why[k]);
        for (int i = 0; i < COLUMNS; i++)
            if (columns[i].skipped[k]) fprintf(f, "M%d.5 0V100", i);
        fprintf(f, "'/>");
    }
    fprintf(f, "<path class=line d='");
    for (int i = 0, more = 0; i < COLUMNS; i++) {
        const column *c = &columns[i];
        if (c->low > c->high) continue;
        fprintf(f, "%c%d %.1f", more++ ? 'L' : 'M', i, 100.0 * (high - c->low) / (high - low));
        if (c->high > c->low) fprintf(f, "V%.1f", 100.0 * (high - c->high) / (high - low));
        if (c->last < c->high) fprintf(f, "V%.1f", 100.0 * (high - c->last) / (high - low));
    }
    fprintf(f, "H%d'/></svg></div>", COLUMNS);
    write_turns(f, r);
    if (norm) return;
    fprintf(f, "<p class=note>Skipped:");
    for (int k = 1; k < WHYS; k++) fprintf(f, " <span class='why %s'>%s</span>", why[k], why[k]);
    fprintf(f, "</p>");
}

/* The line that column c of the map shows. */
static size_t line_at(const run *r, size_t c, size_t columns) {
    return (c + 1) * r->lines / columns - 1;
}

/* Bins of four powers of two, from what is below 2^-23 to what is 2^9 and more. */
enum { COLORS = 10, FIRST_BIN = 25 };
static int color_of(int bin) {
    const int color = bin - FIRST_BIN;
    return color < 0 ? 0 : color >= COLORS ? COLORS - 1 : color;
}

static const char *const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static void write_map(FILE *f, const run *r) {
    const size_t columns = r->lines < SAMPLES ? r->lines : SAMPLES;
    fprintf(f, "<div class=map style='--rows:%lu'><div class=names>",
            (unsigned long)r->num_tensors);
    for (size_t i = 0; i < r->num_tensors; i++)
        fprintf(f, "<span title='%s'>%s</span>", r->tensors[i].name, r->tensors[i].name);
    fprintf(f, "</div><svg id=map viewBox='0 0 %lu %lu' preserveAspectRatio=none role=img "
               "aria-label='exponents of gradients by layer and turn'>",
            (unsigned long)columns, (unsigned long)r->num_tensors);
    for (int k = 0; k < COLORS; k++) {
        fprintf(f, "<path class=c%d d='", k);
        for (size_t i = 0; i < r->num_tensors; i++)
            for (size_t c = 0, from; c < columns; c++) { /* a run of cells that look alike */
                for (from = c; c < columns; c++) {
                    const int m = r->samples[line_at(r, c, columns) * r->num_tensors + i].median;
                    if (m == NO_CELL || color_of(m) != k) break;
                }
                if (c > from)
                    fprintf(f, "M%lu %luh%luv1H%luz", (unsigned long)from, (unsigned long)i,
                            (unsigned long)(c - from), (unsigned long)from);
            }
        fprintf(f, "'/>");
    }
    fprintf(f, "</svg></div>");
    write_turns(f, r);
    fprintf(f, "<div class=key><span>below 2⁻²³</span>");
    for (int k = 0; k < COLORS; k++) fprintf(f, "<i class=c%d></i>", k);
    fprintf(f, "<span>2⁹ and more</span></div><p id=cell class=note>The median of a layer's "
               "gradients, scaled, as they are stored.</p>");
    fprintf(f, "<script>const cells=[");
    for (size_t i = 0; i < r->num_tensors; i++) {
        fprintf(f, "%s'", i ? "," : "");
        for (size_t c = 0; c < columns; c++) {
            const sample *s = &r->samples[line_at(r, c, columns) * r->num_tensors + i];
            fprintf(f, "%c%c", s->median == NO_CELL ? '-' : digits[(int)s->median],
                    digits[(int)(s->small * 50.0f + 0.5f)]);
        }
        fprintf(f, "'");
    }
    fprintf(f, "],at=[");
    for (size_t c = 0; c < columns; c++)
        fprintf(f, "%s%.0f", c ? "," : "", r->at[line_at(r, c, columns)]);
    fprintf(f, "];</script>");
}

/* ----------------------------------------------------------------------------------- the tables */

static void write_advice(FILE *f, const run *r) {
    const double last = r->num_turns ? r->turns[r->num_turns - 1].turn : 0.0;
    if (!r->num_advices) {
        fprintf(f, "<p class=good>There is no advice: nothing looked wrong in any line.</p>");
        return;
    }
    fprintf(f, "<ul class=advice>");
    for (size_t i = 0; i < r->num_advices; i++) {
        const advice *a = &r->advices[i];
        fprintf(f, "<li class=%s><b>%s</b> %s <small>", a->last >= last ? "now" : "past", a->code,
                a->text);
        if (a->first < a->last) fprintf(f, "turns %.0f to %.0f", a->first, a->last);
        else fprintf(f, "turn %.0f", a->last);
        fprintf(f, "</small></li>");
    }
    fprintf(f, "</ul>");
}

static void write_cards(FILE *f, const run *r) {
    const double turns = r->steps + r->overflows + r->spikes + r->asked;
    fprintf(f, "<div class=cards><div><b>%.0f</b> turns</div><div><b>%.0f</b> steps</div>"
               "<div><b>%.0f</b> overflows</div>", turns, r->steps, r->overflows);
    if (r->spikes > 0.0) fprintf(f, "<div><b>%.0f</b> spikes</div>", r->spikes);
    if (r->asked > 0.0) fprintf(f, "<div><b>%.0f</b> asked for</div>", r->asked);
    fprintf(f, "<div><b>%s</b> loss scale%s</div>", power(r->scale), r->stuck > 0.0 ? ", stuck" : "");
    fprintf(f, "<div><b>%.0f ↑ %.0f ↓</b> growths, backoffs</div></div>", r->growths, r->backoffs);
}

static void write_share(FILE *f, double share) {
    const double percent = 100.0 * share;
    fprintf(f, "<td class=bar><i style='width:%.0f%%'></i><span>%.*f %%</span></td>", percent,
            percent > 0.0 && percent < 10.0 ? 1 : 0, percent);
}

static void write_layers(FILE *f, const run *r) {
    fprintf(f, "<div class=wide><table><thead><tr><th>layer<th>weights<th>largest<th>headroom"
               "<th>underflow<th>updates lost<th>overflows</tr></thead><tbody>");
    for (size_t i = 0; i < r->num_tensors; i++) {
        const tensor *t = &r->tensors[i];
        fprintf(f, "<tr><th>%s</th><td>%.0f</td><td>%.3g</td>", t->name, t->n, t->max);
        if (t->headroom < 255.0) fprintf(f, "<td>%s</td>", power(pow(2.0, t->headroom)));
        else fprintf(f, "<td>–</td>");
        write_share(f, t->small);
        write_share(f, t->lost);
        if (t->overflows > 0.0)
            fprintf(f, "<td class=hot>%.0f <small>from turn %.0f%s</small></td></tr>", t->overflows,
                    t->first_turn, t->nans > 0.0 ? ", NaN" : "");
        else fprintf(f, "<td>0</td></tr>");
    }
    fprintf(f, "</tbody></table></div>");
}

/* ------------------------------------------------------------------------------------- the page */

static const char *const style =
    ":root{color-scheme:light dark;--paper:#fcfcfa;--ink:#222;--soft:#666;--rule:#ddd;--line:#0b63a5;"
    "--hot:#b3261e;--spike:#a15c00;--good:#1b6e3c;--card:#f0efea;--row:14px;"
    "--c0:#3b1c6b;--c1:#5a3596;--c2:#7d5bb5;--c3:#a48bcf;--c4:#cbbfe3;--c5:#e6e4de;--c6:#f5d3a6;"
    "--c7:#efa85b;--c8:#d9752b;--c9:#a8430f}"
    "@media(prefers-color-scheme:dark){:root{--paper:#16171a;--ink:#e8e6e1;--soft:#a2a19c;--rule:#3a3b40;"
    "--line:#6db7f2;--hot:#ff8a80;--spike:#f0b35a;--good:#7fd19b;--card:#222429;"
    "--c0:#b79cff;--c1:#9a7ae6;--c2:#7a5bc4;--c3:#5b449a;--c4:#41366b;--c5:#34353a;--c6:#5c4426;"
    "--c7:#8d5f26;--c8:#c98537;--c9:#ffb765}}"
    "*{box-sizing:border-box}body{margin:0 auto;max-width:1080px;padding:16px;background:var(--paper);"
    "color:var(--ink);font:15px/1.45 system-ui,Helvetica,Arial,'DejaVu Sans',sans-serif}"
    "h1{font-size:1.35rem;margin:.2rem 0 1rem;overflow-wrap:anywhere}h2{font-size:1.05rem;margin:1.8rem 0 .5rem}"
    "small,.note{color:var(--soft)}.note{margin:.4rem 0;min-height:1.5em}.good{color:var(--good)}"
    ".cards{display:flex;flex-wrap:wrap;gap:8px}.cards div{background:var(--card);border-radius:6px;"
    "padding:8px 12px;flex:1 1 auto;color:var(--soft)}.cards b{color:var(--ink);font-size:1.15rem;display:block}"
    ".advice{list-style:none;margin:0;padding:0}.advice li{border-left:4px solid var(--rule);padding:6px 10px;"
    "margin:6px 0;background:var(--card);overflow-wrap:anywhere}.advice .now{border-color:var(--hot)}"
    ".advice b{margin-right:.4em}"
    ".chart{display:flex;height:170px}.chart svg{flex:1;min-width:0;height:100%;background:var(--card)}"
    ".y{width:56px;display:flex;flex-direction:column;justify-content:space-between;text-align:right;"
    "padding-right:6px;color:var(--soft);font-size:12px;line-height:1}"
    ".x{display:flex;justify-content:space-between;padding-left:56px;color:var(--soft);font-size:12px}"
    "path{vector-effect:non-scaling-stroke;fill:none}.grid{stroke:var(--rule)}.line{stroke:var(--line);"
    "stroke-width:1.8}.skip{stroke-width:1.2;opacity:.55}.overflow{stroke:var(--hot)}"
    ".spike{stroke:var(--spike)}.asked{stroke:var(--soft)}"
    ".why::before{content:'';display:inline-block;width:2px;height:12px;margin:0 6px 0 10px;vertical-align:-1px;"
    "background:var(--hot)}.why.spike::before{background:var(--spike)}.why.asked::before{background:var(--soft)}"
    ".map{display:flex}.map .names{width:var(--names,190px);flex:none;font-size:11px;line-height:var(--row);"
    "text-align:right;padding-right:6px}.map .names span{display:block;height:var(--row);overflow:hidden;"
    "text-overflow:ellipsis;white-space:nowrap}.map svg{flex:1;min-width:0;height:calc(var(--row)*var(--rows));"
    "background:var(--card);shape-rendering:crispEdges}#mapx .x{padding-left:var(--names,190px)}"
    ".key{display:flex;align-items:center;gap:0;margin-top:6px;font-size:12px;color:var(--soft);flex-wrap:wrap}"
    ".key i{width:22px;height:12px}.key span{margin:0 8px}"
    ".wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:13px;font-variant-numeric:tabular-nums}"
    "td,th{text-align:right;padding:3px 8px;border-bottom:1px solid var(--rule);white-space:nowrap}"
    "th:first-child{text-align:left;max-width:190px;overflow:hidden;text-overflow:ellipsis;font-weight:500}"
    "thead th{color:var(--soft);font-weight:400}.hot{color:var(--hot)}"
    ".bar{position:relative;min-width:90px}.bar i{position:absolute;left:8px;top:5px;bottom:5px;max-width:calc(100% - 16px);"
    "background:var(--line);opacity:.28}.bar span{position:relative}"
    "@media(max-width:600px){:root{--names:96px}body{padding:10px}.y{width:46px}.x{padding-left:46px}"
    "td,th{padding:3px 5px}.bar{min-width:70px}th:first-child{max-width:110px}}";

/* Where the pointer is on the map, in words. */
static const char *const script =
    "const map=document.getElementById('map'),cell=document.getElementById('cell'),"
    "names=[...document.querySelectorAll('.names span')].map(s=>s.textContent);"
    "map.addEventListener('pointermove',e=>{const b=map.getBoundingClientRect(),"
    "c=Math.min(at.length-1,Math.max(0,Math.floor((e.clientX-b.left)/b.width*at.length))),"
    "r=Math.min(cells.length-1,Math.max(0,Math.floor((e.clientY-b.top)/b.height*cells.length))),"
    "d='ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/',"
    "m=d.indexOf(cells[r][2*c]),s=d.indexOf(cells[r][2*c+1]);"
    "cell.textContent=names[r]+', turn '+at[c]+': '+(m<0?'no gradients':"
    "'median from 2^'+(4*m-127)+' to 2^'+(4*m-123)+', '+2*s+' % would be subnormal or 0 in fp16')});";

static void write_page(FILE *f, const run *r, const char *title) {
    fprintf(f, "<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport "
               "content='width=device-width,initial-scale=1'><link rel=icon href='data:,'>"
               "<title>%s</title><style>%s", title, style);
    for (int k = 0; k < COLORS; k++)
        fprintf(f, ".c%d{fill:var(--c%d);background:var(--c%d)}", k, k, k);
    fprintf(f, "</style></head><body><h1>%s</h1>", title);
    write_cards(f, r);
    fprintf(f, "<h2>Advice</h2>");
    write_advice(f, r);
    fprintf(f, "<h2>Loss scale, and turns that were skipped</h2>");
    write_chart(f, r, 0);
    fprintf(f, "<h2>Norm of the unscaled gradients</h2>");
    write_chart(f, r, 1);
    fprintf(f, "<h2>Exponents of gradients, by layer and turn</h2><div id=mapx>");
    write_map(f, r);
    fprintf(f, "</div><h2>Layers, in the last sample</h2>");
    write_layers(f, r);
    fprintf(f, "<p class=note>Underflow: of gradients as they are stored, those that a cast to fp16 "
               "makes subnormal or 0. Updates lost: of weights with a gradient, those whose half copy "
               "a step left as it was; their masters moved.</p><script>%s</script></body></html>\n",
            script);
}

static void print_help(void) {
    puts("usage: report LINES [--out PAGE] [--title TEXT]\n\n"
         "Make a page of HTML of what train --report or gpt --report wrote.\n\n"
         "  --out PAGE    where it goes (LINES.html)\n"
         "  --title TEXT  its headline (LINES)\n"
         "  --help        this text");
}

int main(int argc, char **argv) {
    static run  r;
    const char *path = NULL, *out = NULL, *title = NULL;
    char        page[1100], quoted[1100];
    for (int i = 1; i < argc; i++) {
        const int named = strcmp(argv[i], "--out") == 0 || strcmp(argv[i], "--title") == 0;
        if (strcmp(argv[i], "--help") == 0) return print_help(), 0;
        if (named && i + 1 == argc) fail(2, argv[i], "needs a value", "see --help");
        if (strcmp(argv[i], "--out") == 0) out = argv[++i];
        else if (named) title = argv[++i];
        else if (argv[i][0] == '-') fail(2, argv[i], "is not an option", "see --help");
        else if (path) fail(2, argv[i], "is one file too many", "see --help");
        else path = argv[i];
    }
    if (!path) fail(2, "LINES", "is missing", "give what --report wrote; see --help");
    if (strlen(path) > 1000) fail(2, path, "is too long a path", "choose a shorter one");
    read_run(&r, path);
    snprintf(page, sizeof page, "%s.html", path);
    if (!out) out = page;
    snprintf(quoted, sizeof quoted, "\"%.1000s\"", title ? title : path);
    FILE *f = fopen(out, "wb");
    if (!f) fail(1, out, strerror(errno), "choose a file that can be written with --out");
    write_page(f, &r, text_of(quoted));
    const int  good = !ferror(f);
    const long size = ftell(f);
    if (fclose(f) != 0 || !good) fail(1, out, "cannot be written", "is the disk full?");
    printf("%s: %lu turns, %lu layers, %lu samples, %ld KB\n", out, (unsigned long)r.num_turns,
           (unsigned long)r.num_tensors, (unsigned long)r.lines, (size + 512) / 1024);
    return 0;
}
