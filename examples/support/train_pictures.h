/* train_pictures.h - the pictures of all trainers, as SVG: curves, loss scales, images

   SVG is text: a curve is a list of points, and a browser draws it, in the colors of light or dark
   pages. A picture is 480 wide, with text to be read on a phone; plots stand one below the other.
   try_picture says early if none can be written. C and C++.                                      */

#ifndef TRAIN_PICTURES_H
#define TRAIN_PICTURES_H

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L /* mkdir */
#endif

#include "train_cli.h" /* fail */
#include "train_files.h"

#include <math.h>
#include <string.h>

/* And those that it is in. */
static void make_directory(const char *path) {
#ifdef F_GETFD /* POSIX */
    char        part[1024];
    struct stat is;
    int         error = 0;
    for (size_t i = 1; path[i - 1] && i < sizeof part; i++) {
        if (path[i] && path[i] != '/') continue;
        sprintf(part, "%.*s", (int)i, path);
        if (mkdir(part, 0777) != 0 && errno != EEXIST && !error) error = errno;
    }
    const int there = stat(path, &is) == 0;
    if (there && S_ISDIR(is.st_mode)) return;
    if (!error) error = there ? ENOTDIR : errno;
    fail(1, path, strerror(error), "choose a directory that can be made with --out DIR");
#else
    (void)path;
#endif
}

enum { MAX_CURVES = 5, SHOWN = 5 /* in a row */, PICTURE_WIDTH = 480, PLOT_HEIGHT = 330 };

/* Curves over x. A plot without a title is left out, and so are curves that are NULL and values that
   are not above 0. y is a mean over seeds; low and high (NULL: no band) are the least and largest. */
typedef struct plot {
    const char   *title, *what, *x_title; /* what there is to see; what is shown */
    size_t        count;                  /* values of each curve */
    const double *y[MAX_CURVES], *low[MAX_CURVES], *high[MAX_CURVES];
    const char   *name[MAX_CURVES]; /* at the curve's right end */
    double        step[MAX_CURVES]; /* value i stands at x = (i + 1) steps; 0 means 1 */
    int           minus;            /* shown are differences from curve 0, in percent of it */
} plot;

/* --------------------------------------------------------------------------------------- files */

static const char picture_help[] = "choose a directory that can be written with --out DIR";

static output open_picture(const char *dir, const char *name) {
    char path[1024];
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        fail(2, "--out", "path too long", "choose a shorter one");
    return open_output(path, picture_help);
}

/* Make the directory if it is missing, and fail if nothing can be written there. */
static void try_picture(const char *dir, const char *name) {
    make_directory(dir);
    output p = open_picture(dir, name);
    close_output(&p, 0, picture_help);
}

static output svg_begin(const char *dir, const char *name, int height) {
    output p = open_picture(dir, name);
    fprintf(p.f, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 "
                 "%d %d\" font-family=\"'DejaVu Sans', Verdana, Helvetica, Arial, sans-serif\" "
                 "font-size=\"14\">\n<style>"
               "text{fill:#333}.soft{fill:#666}.paper{fill:#fcfcfa}.grid{stroke:#ddd}"
               ".c0{stroke:#222}.c1{stroke:#a8497f}.c2{stroke:#9c5f00}.c3{stroke:#0072b2}"
               ".c4{stroke:#007a59}.b0{fill:#222}.b1{fill:#a8497f}.b2{fill:#9c5f00}.b3{fill:#0072b2}"
               ".b4{fill:#007a59}.dot{fill:#d55e00}@media(prefers-color-scheme:dark){"
               "text{fill:#ddd}.soft{fill:#aaa}.paper{fill:#16171a}.grid{stroke:#3a3b40}"
               ".c0{stroke:#eee}.c1{stroke:#e59ac4}.c2{stroke:#f0a030}.c3{stroke:#5cb3ea}"
               ".c4{stroke:#2fd0a0}.b0{fill:#eee}.b1{fill:#e59ac4}.b2{fill:#f0a030}.b3{fill:#5cb3ea}"
               ".b4{fill:#2fd0a0}.dot{fill:#ff8033}}"
               "</style>\n<rect width=\"%d\" height=\"%d\" class=\"paper\"/>\n",
            PICTURE_WIDTH, height, PICTURE_WIDTH, height, PICTURE_WIDTH, height);
    return p;
}

/* Without anything to see, the older picture stays. */
static void svg_end(output *p, int keep) {
    fprintf(p->f, "</svg>\n");
    close_output(p, keep, picture_help);
}

/* ---------------------------------------------------------------------------------------- text */

static void svg_text(FILE *f, double x, double y, const char *style, const char *text) {
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" %s>%s</text>\n", x, y, style, text);
}

static void svg_line(FILE *f, double x1, double y1, double x2, double y2, const char *style) {
    fprintf(f, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x1, y1, x2, y2,
            style);
}

/* Pixels of a text in DejaVu Sans, the widest of the fonts. */
static double text_width(const char *text, size_t length, double size) {
    double ems = 0.0;
    for (size_t i = 0; i < length; i++)
        ems += strchr("ijl.,:;|!'()[]fIt ", text[i]) ? 0.36 : strchr("mwMW%@", text[i]) ? 0.96 : 0.63;
    return ems * size;
}

enum { LEADING = 18 };

/* Said of a speed beside another; the text stays until four more are made. */
static const char *times_as_fast(double times) {
    static char     text[4][32];
    static unsigned next;
    char           *now = text[next++ % 4];
    if (fabs(times - 1.0) < 0.05) strcpy(now, "as fast");
    else sprintf(now, "%.2f times as fast", times);
    return now;
}

/* How much of a text fits in so much room: up to a blank, if there is one. */
static size_t fitting(const char *text, double size, double room) {
    const size_t all = strlen(text);
    size_t       fits = all;
    while (fits > 0 &&
           (text_width(text, fits, size) > room || (fits < all && text[fits] != ' ')))
        fits--;
    return fits > 0 ? fits : strcspn(text, " ");
}

/* Lines of a text; if f is not NULL, they are drawn from x = 12 and y on. */
static int lines_in(FILE *f, double y, double size, int bold, const char *text, double room) {
    int lines = 0;
    for (; *text; lines++) {
        const size_t fits = fitting(text, size, room);
        if (f)
            fprintf(f, "<text x=\"12\" y=\"%.1f\" font-size=\"%g\"%s>%.*s</text>\n",
                    y + LEADING * lines, size, bold ? " font-weight=\"bold\"" : " class=\"soft\"",
                    (int)fits, text);
        text += fits;
        while (*text == ' ') text++;
    }
    return lines;
}

/* A text in as few lines as it takes. They are about alike in length, so that none is a lone word.
   f NULL: they are only counted. */
static int svg_lines(FILE *f, double y, double size, int bold, const char *text) {
    double    room  = (PICTURE_WIDTH - 24.0) / (bold ? 1.12 : 1.0);
    const int lines = lines_in(NULL, y, size, bold, text, room);
    while (lines > 1 && lines_in(NULL, y, size, bold, text, room - 8.0) == lines) room -= 8.0;
    return lines_in(f, y, size, bold, text, room);
}

/* A curve's name, with the space in front of it. */
static double name_width(const char *name) { return 8.0 + text_width(name, strlen(name), 13.0); }

/* --------------------------------------------------------------------------------- axes, curves */

typedef struct axes {
    double x, y, width, height;    /* of the plot                             */
    double left, right, low, high; /* ends of x, and of y or of its logarithm */
    double base;                   /* of that logarithm: 10 or 2; 0: none     */
} axes;

static int drawable(double value) { return value > 0.0 && value < 1e30; }

static double axes_x(const axes *a, double x) {
    return a->x + a->width * (x - a->left) / (a->right - a->left);
}

static double along_y(const axes *a, double value) {
    return a->base > 0.0 ? log(value) / log(a->base) : value;
}

static double axes_y(const axes *a, double value) {
    return a->y + a->height * (a->high - along_y(a, value)) / (a->high - a->low);
}

static double x_of(const plot *p, int k, size_t i) {
    return (p->step[k] > 0.0 ? p->step[k] : 1.0) * (double)(i + 1);
}

static int is_shown(const plot *p, const double *y, size_t i) {
    return y && drawable(y[i]) && (!p->minus || drawable(p->y[0][i]));
}

/* Of a curve, or of an end of its band. */
static double value_of(const plot *p, const double *y, size_t i) {
    return p->minus ? 100.0 * (y[i] / p->y[0][i] - 1.0) : y[i];
}

/* Do all curves stay within a factor of 2 of curve 0? Then their differences say more. */
static int coincide(const plot *p) {
    int curves = 0;
    for (int k = 1; k < MAX_CURVES && p->y[0]; k++) {
        curves += p->y[k] != NULL;
        for (size_t i = 0; p->y[k] && i < p->count; i++)
            if (drawable(p->y[k][i]) && drawable(p->y[0][i]) &&
                fabs(log(p->y[k][i] / p->y[0][i])) > log(2.0))
                return 0;
    }
    return curves > 0;
}

/* The mean of the last values of a curve. */
static double end_of(const plot *p, int k, size_t values) {
    double sum = 0.0;
    for (size_t i = p->count - values; i < p->count; i++) sum += p->y[k][i] / (double)values;
    return sum;
}

/* Make the axes wide enough for some values of curve k. Returns whether there are any. */
static int fit_values(axes *a, const plot *p, int k, const double *y) {
    int any = 0;
    for (size_t i = 0; i < p->count; i++) {
        if (!is_shown(p, y, i)) continue;
        const double x = x_of(p, k, i), at = along_y(a, value_of(p, y, i));
        if (x < a->left) a->left = x;
        if (x > a->right) a->right = x;
        if (at < a->low) a->low = at;
        if (at > a->high) a->high = at;
        any = 1;
    }
    return any;
}

/* The axes of a plot: they begin and end where its curves do. 0 if there is nothing to show. */
static int fit_axes(axes *a, const plot *p, double top, double base) {
    const axes empty  = {64.0, top + 20.0, 396.0, PLOT_HEIGHT - 72.0, 1e30, 0.0, 1e9, -1e9, base};
    double     widest = 0.0;
    int        any    = 0;
    *a = empty;
    if (!p->title) return 0;
    const double head = LEADING * (svg_lines(NULL, 0.0, 15.0, 1, p->title) +
                                   svg_lines(NULL, 0.0, 14.0, 0, p->what));
    a->y += head, a->height -= head;
    for (int k = 0; k < MAX_CURVES; k++) {
        const int here = fit_values(a, p, k, p->y[k]);
        any |= here;
        fit_values(a, p, k, p->low[k]);
        fit_values(a, p, k, p->high[k]);
        if (here && p->name[k] && name_width(p->name[k]) > widest) widest = name_width(p->name[k]);
    }
    const double margin = base > 0.0 && base < 10.0 ? 0.7 : 0.01 + 0.1 * (a->high - a->low);
    a->low -= margin, a->high += margin, a->width -= widest;
    if (!(a->right > a->left)) a->left = 0.0; /* of one value */
    return any;
}

/* Values that an axis may be labelled with, from the plainest to the finest: every 2^k-th power of
   the base (k from 5 to 0), then 2 and 5, then multiples of a power's 1, half, tenth and hundredth. A
   level comes whole, or not at all if it makes more than eight labels or two of them collide. */
enum { MOST_TICKS = 8, LEVELS = 11 };

typedef struct ticks {
    double value[MOST_TICKS];
    int    exponent[MOST_TICKS], count;
} ticks;

/* Returns 0 if it does not fit. */
static int add_tick(ticks *t, const axes *a, double value, int exponent) {
    const double y = axes_y(a, value);
    if (y < a->y - 0.1 || y > a->y + a->height + 0.1) return 1;
    for (int i = 0; i < t->count; i++) {
        const double apart = fabs(axes_y(a, t->value[i]) - y);
        if (apart < 0.5) return 1; /* it is there */
        if (apart < 15.0) return 0;
    }
    if (t->count == MOST_TICKS) return 0;
    t->value[t->count]      = value;
    t->exponent[t->count++] = exponent;
    return 1;
}

static int add_level(ticks *t, const axes *a, int level) {
    static const double part[LEVELS] = {0, 0, 0, 0, 0, 0, 0, 1.0, 0.5, 0.1, 0.01};
    const int           every = level < 6 ? 32 >> level : 1;
    int                 good  = 1;
    for (int e = (int)floor(a->low); e <= (int)ceil(a->high) && good; e++) {
        const double power = pow(a->base, e);
        if (level < 6 && e % every == 0) good = add_tick(t, a, power, e);
        if (level == 6) good = add_tick(t, a, 2.0 * power, e) && add_tick(t, a, 5.0 * power, e);
        for (int i = 1; level > 6 && i * part[level] < 10.0 && good; i++)
            if (i * part[level] >= 1.0) good = add_tick(t, a, i * part[level] * power, e);
    }
    return good;
}

/* The least of 1, 2 and 5 times a power of ten (1 or more, of whole numbers) that makes at most five
   parts of a range. */
static double tick_step(double range, int whole) {
    double power = whole ? 1.0 : 1e-6;
    while (range > 50.0 * power) power *= 10.0;
    return range <= 5.0 * power ? power : range <= 10.0 * power ? 2.0 * power
           : range <= 25.0 * power ? 5.0 * power : 10.0 * power;
}

static ticks choose_ticks(const axes *a) {
    ticks best, next;
    best.count = 0;
    if (!(a->base > 0.0)) {
        const double step = tick_step(a->high - a->low, 0);
        for (double i = ceil(a->low / step); i * step <= a->high; i += 1.0)
            best.value[best.count++] = i * step;
        return best;
    }
    for (int level = 0; level < (a->base > 2.0 ? LEVELS : 6); level++) {
        next = best;
        if (add_level(&next, a, level) || best.count < 2) best = next;
    }
    return best;
}

/* What stands beside a tick of y. */
static void tick_label(char *text, const axes *a, const plot *p, double value, int exponent) {
    if (p->minus && fabs(value) > 0.0) sprintf(text, "%+g %%", value);
    else if (p->minus) strcpy(text, "0 %");
    else if (a->base > 2.0) sprintf(text, "%g", value);
    else sprintf(text, "2<tspan dy=\"-5\" font-size=\"11\">%d</tspan>", exponent);
}

/* Grid, labels and titles. The axes become narrower if a label of y needs the room. */
static void draw_axes(FILE *f, axes *a, const plot *p) {
    const ticks  t     = choose_ticks(a);
    const int    whole = !(a->left - floor(a->left) > 0.0 || a->right - floor(a->right) > 0.0);
    const double step  = tick_step(a->right - a->left, whole);
    char         text[64];
    for (int i = 0; i < t.count && a->base != 2.0; i++) {
        tick_label(text, a, p, t.value[i], 0);
        const double over = text_width(text, strlen(text), 14.0) - (a->x - 10.0);
        if (over > 0.0) a->x += over, a->width -= over;
    }
    for (double i = ceil(a->left / step); i * step <= a->right + 1e-9; i += 1.0) {
        const double x = axes_x(a, i * step);
        sprintf(text, "%g", i * step);
        svg_line(f, x, a->y, x, a->y + a->height, "class=\"grid\"");
        svg_text(f, x, a->y + a->height + 18.0, "text-anchor=\"middle\"", text);
    }
    for (int i = 0; i < t.count; i++) {
        const double y = axes_y(a, t.value[i]);
        tick_label(text, a, p, t.value[i], t.exponent[i]);
        svg_line(f, a->x, y, a->x + a->width, y, "class=\"grid\"");
        svg_text(f, a->x - 6.0, y + 5.0, "text-anchor=\"end\"", text);
    }
    const int    first = svg_lines(NULL, 0.0, 14.0, 0, p->what);
    const double what  = a->y - 13.0 - LEADING * (first - 1);
    svg_lines(f, what, 14.0, 0, p->what);
    svg_lines(f, what - 1.0 - LEADING * svg_lines(NULL, 0.0, 15.0, 1, p->title), 15.0, 1, p->title);
    svg_text(f, a->x + a->width / 2.0, a->y + a->height + 38.0,
             "text-anchor=\"middle\" class=\"soft\"", p->x_title);
}

/* What follows is drawn within the axes alone, until the group ends. */
static void begin_clip(FILE *f, const axes *a) {
    fprintf(f, "<clipPath id=\"at%.0f\"><rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>"
               "</clipPath>\n<g clip-path=\"url(#at%.0f)\">\n",
            a->y, a->x - 4.0, a->y - 4.0, a->width + 8.0, a->height + 8.0, a->y);
}

/* In front of a curve the spread, if there is more than one seed. A curve of one value is a disc. */
static void draw_curve(FILE *f, const axes *a, const plot *p, int k) {
    const size_t n = p->low[k] ? p->count : 0;
    size_t       shown = 0, last = 0;
    if (n) fprintf(f, "<path class=\"b%d\" fill-opacity=\".16\" d=\"", k);
    for (size_t i = 0, drawn = 0; i < 2 * n; i++) {
        const size_t  at = i < n ? i : 2 * n - 1 - i;
        const double *y  = (i < n ? p->low : p->high)[k];
        if (is_shown(p, y, at))
            fprintf(f, "%c%.1f %.1f", drawn++ ? 'L' : 'M', axes_x(a, x_of(p, k, at)),
                    axes_y(a, value_of(p, y, at)));
    }
    fprintf(f, "%s<polyline class=\"c%d\" fill=\"none\" stroke-linejoin=\"round\" "
               "stroke-width=\"2\" points=\"", n ? "\"/>\n" : "", k);
    for (size_t i = 0; i < p->count; i++)
        if (is_shown(p, p->y[k], i)) {
            fprintf(f, "%.1f,%.1f ", axes_x(a, x_of(p, k, i)), axes_y(a, value_of(p, p->y[k], i)));
            shown++, last = i;
        }
    fprintf(f, "\"/>\n");
    if (shown == 1)
        fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" class=\"b%d\"/>\n",
                axes_x(a, x_of(p, k, last)), axes_y(a, value_of(p, p->y[k], last)), k);
}

/* Does a curve cross a box? */
static int is_crossed(const axes *a, const plot *p, double left, double right, double top, double bottom) {
    for (int k = 0; k < MAX_CURVES; k++) {
        double x = 0.0, y = 0.0;
        for (size_t i = 0, shown = 0; p->y[k] && i < p->count; i++) {
            if (!is_shown(p, p->y[k], i)) continue;
            const double x0 = x, y0 = y;
            x = axes_x(a, x_of(p, k, i)), y = axes_y(a, value_of(p, p->y[k], i));
            if (!shown++ || x0 > right || x < left) continue;
            const double by = (y - y0) / (x - x0);
            const double from = y0 + by * (fmax(x0, left) - x0), to = y0 + by * (fmin(x, right) - x0);
            if (fmax(from, to) > top && fmin(from, to) < bottom) return 1;
        }
    }
    return 0;
}

/* The names of curves, at their right ends, moved apart where they would collide. Beside a curve that ends
   early others go on: its name stands where none crosses it, nor another name, as near as there is room. */
static void draw_names(FILE *f, const axes *a, const plot *p) {
    enum { NONE, EARLY, PLACED };
    double x[MAX_CURVES], y[MAX_CURVES], width[MAX_CURVES];
    int    is[MAX_CURVES];
    for (int k = 0; k < MAX_CURVES; k++) {
        is[k] = NONE;
        for (size_t i = 0; p->name[k] && i < p->count; i++) {
            if (!is_shown(p, p->y[k], i)) continue;
            x[k]  = axes_x(a, x_of(p, k, i)) + 8.0;
            y[k]  = axes_y(a, value_of(p, p->y[k], i)) + 4.5;
            is[k] = x[k] > a->x + a->width ? PLACED : EARLY;
        }
        if (is[k]) width[k] = name_width(p->name[k]);
    }
    for (int turn = 0; turn < 99; turn++)
        for (int k = 0; k < MAX_CURVES; k++)
            for (int m = k + 1; m < MAX_CURVES && is[k] == PLACED; m++) {
                const double over = 15.0 - fabs(y[k] - y[m]), push = y[k] < y[m] ? over : -over;
                if (is[m] == PLACED && over > 0.0) y[k] -= push / 2.0, y[m] += push / 2.0;
            }
    for (int k = 0; k < MAX_CURVES; k++) {
        const double x0 = x[k], y0 = y[k];
        for (int turn = 0; is[k] == EARLY && turn < 400; turn++) { /* above, below, farther away; then left */
            int free = turn == 399;
            y[k] = y0 + (turn % 2 ? 1.0 : -1.0) * (12.0 + turn % 200 / 2);
            x[k] = fmax(x0 - (turn < 200 ? width[k] / 2.0 : 34.0), a->x + 4.0);
            if (y[k] - 12.0 < a->y || y[k] + 5.0 > a->y + a->height) continue;
            free |= !is_crossed(a, p, x[k] - 3.0, x[k] + width[k], y[k] - 12.0, y[k] + 5.0);
            for (int m = 0; m < MAX_CURVES; m++)
                free &= is[m] != PLACED || fabs(y[k] - y[m]) > 15.0 || fabs(x[k] - x[m]) > fmax(width[k], width[m]);
            if (free) is[k] = PLACED;
        }
        char style[48];
        sprintf(style, "class=\"b%d\" font-size=\"13\"", k);
        if (is[k]) svg_text(f, x[k], y[k], style, p->name[k]);
    }
}

/* What the curves show, how they are drawn, and what of a resumed run is missing. */
static inline void describe(char *what, const char *y, const plot *p, int seeds, int resumed) {
    int bands = 0;
    what += sprintf(what, "%.70s%s", y, p->minus ? ", difference from fp32" : ", log scale");
    if (seeds > 1) what += sprintf(what, "; means of %d seeds", seeds);
    for (int k = 0; k < MAX_CURVES; k++)
        if (p->low[k]) what += sprintf(what, "%s%s", bands++ ? " and " : "; bands of ", p->name[k]);
    sprintf(what, "%s%s", bands ? ": least to largest" : "",
            resumed ? "; steps before this run resumed are not in it" : "");
}

static void draw_curves(const char *dir, const char *file, const plot plots[2]) {
    double top = 8.0;
    output to  = svg_begin(dir, file, 14 + (!!plots[0].title + !!plots[1].title) * PLOT_HEIGHT);
    int    any = 0;
    axes   a;
    for (int p = 0; p < 2; p++) {
        if (!fit_axes(&a, &plots[p], top, plots[p].minus ? 0.0 : 10.0)) continue;
        any = 1;
        draw_axes(to.f, &a, &plots[p]);
        begin_clip(to.f, &a);
        for (int k = 0; k < MAX_CURVES; k++)
            if (plots[p].y[k]) draw_curve(to.f, &a, &plots[p], k);
        fprintf(to.f, "</g>\n");
        draw_names(to.f, &a, &plots[p]);
        top += PLOT_HEIGHT;
    }
    svg_end(&to, any);
}

/* Loss scales by step: value i stands at x = i and holds until the next, so only changes and the ends
   need points. A dot is where an overflow made a step be skipped. Returns whether there was anything to
   draw. (Inline, as what follows: not all programs have them.) */
static inline int draw_scales(const char *dir, const char *file, const plot plots[2]) {
    double  top = 8.0;
    output  to  = svg_begin(dir, file, 14 + (!!plots[0].title + !!plots[1].title) * PLOT_HEIGHT);
    FILE   *f   = to.f;
    int     any = 0;
    axes    a;
    for (int p = 0; p < 2; p++) {
        const double *y = plots[p].y[0], *last = NULL;
        if (!fit_axes(&a, &plots[p], top, 2.0)) continue;
        a.left = 0.0;
        any = 1;
        draw_axes(f, &a, &plots[p]);
        begin_clip(f, &a);
        fprintf(f, "<polyline class=\"c3\" fill=\"none\" stroke-width=\"2\" points=\"");
        for (size_t i = 0; i < plots[p].count; i++) {
            const int changed = last && (y[i] < *last || y[i] > *last);
            if (!drawable(y[i])) continue;
            if (changed) fprintf(f, "%.1f,%.1f ", axes_x(&a, (double)i), axes_y(&a, *last));
            if (changed || !last || i + 1 == plots[p].count)
                fprintf(f, "%.1f,%.1f ", axes_x(&a, (double)i), axes_y(&a, y[i]));
            last = &y[i];
        }
        fprintf(f, "\"/>\n");
        for (size_t i = 1; i < plots[p].count; i++)
            if (drawable(y[i]) && y[i] < y[i - 1])
                fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" class=\"dot\"/>\n",
                        axes_x(&a, (double)(i - 1)), axes_y(&a, y[i - 1]));
        fprintf(f, "</g>\n");
        top += PLOT_HEIGHT;
    }
    svg_end(&to, any);
    return any;
}

/* --------------------------------------------------------------------------------------- images */

/* A row of gray images, 0 to 1. */
typedef struct image_row {
    const char  *label;
    const float *image[SHOWN];
} image_row;

/* Of a pixel, what is drawn: itself, or its distance from that of another row. */
static inline float gray_of(const image_row *row, const image_row *other, int i, size_t k) {
    return other ? fabsf(row->image[i][k] - other->image[i][k]) : row->image[i][k];
}

static inline void draw_row(FILE *f, double x, double y, double size, const image_row *row,
                            const image_row *other, float white, size_t side) {
    const double px = size / (double)side;
    fprintf(f, "<g shape-rendering=\"crispEdges\">\n");
    for (int i = 0; i < SHOWN; i++, x += size + 4.0) {
        fprintf(f, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"/>\n", x, y, size,
                size);
        for (size_t k = 0; k < side * side; k++) {
            const float gray  = gray_of(row, other, i, k) / white;
            const int   shade = gray > 0.0f ? (int)(255.0f * fminf(gray, 1.0f) + 0.5f) : 0;
            if (shade > 0)
                fprintf(f, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" "
                           "fill=\"#%02x%02x%02x\"/>\n", x + px * (double)(k % side),
                        y + px * (double)(k / side), px + 0.05, px + 0.05, shade, shade, shade);
        }
    }
    fprintf(f, "</g>\n");
}

/* Rows of images; then, by how much those behind row number fp32 (-1: there is none) differ from it, on
   one scale: the largest difference of all is white, and stands at the end of each ramp. */
static inline void draw_images(const char *dir, const char *file, const char *what,
                               const image_row *rows, int num_rows, int fp32, size_t side) {
    const double left = 126.0, size = (PICTURE_WIDTH - left - 8.0) / SHOWN - 4.0;
    const int    compared = fp32 < 0 ? 0 : num_rows - fp32 - 1;
    float        most = 0.0f;
    char         text[160];
    for (int row = num_rows - compared; row < num_rows; row++)
        for (int i = 0; i < SHOWN; i++)
            for (size_t k = 0; k < side * side; k++)
                most = fmaxf(most, gray_of(&rows[row], &rows[fp32], i, k));
    sprintf(text, "%.60s", what);
    if (compared)
        sprintf(text + strlen(text), ": at most %.2g from fp32's (white is 1)", (double)most);
    double y  = 22.0 + LEADING * svg_lines(NULL, 0.0, 15.0, 1, text);
    output to = svg_begin(dir, file, 8 + (int)(y + (num_rows + compared) * (size + 4.0)));
    svg_lines(to.f, 26.0, 15.0, 1, text);
    for (int row = 0; row < num_rows + compared; row++, y += size + 4.0) {
        const int        below = row >= num_rows;
        const image_row *r     = &rows[below ? row - compared : row];
        const double     at    = y + size / 2.0;
        sprintf(text, below ? "|%.20s - fp32|" : "%.20s", r->label);
        svg_text(to.f, left - 8.0, below ? at - 8.0 : at + 5.0, "text-anchor=\"end\"", text);
        draw_row(to.f, left, y, size, r, below ? &rows[fp32] : NULL,
                 below ? most : 1.0f, side);
        if (!below) continue;
        fprintf(to.f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"100\" height=\"8\" "
                      "fill=\"url(#ramp)\"/>\n", left - 108.0, at);
        sprintf(text, "%.2g", (double)most);
        svg_text(to.f, left - 108.0, at + 24.0, "", "0");
        svg_text(to.f, left - 8.0, at + 24.0, "text-anchor=\"end\"", text);
    }
    fprintf(to.f, "<linearGradient id=\"ramp\"><stop stop-color=\"#000\"/><stop offset=\"1\" "
                  "stop-color=\"#fff\"/></linearGradient>\n");
    svg_end(&to, 1);
}

#endif /* TRAIN_PICTURES_H */
