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

/* One without a title is left out, and so are curves that are NULL and values that are not above 0.
   Of a curve, y is the mean, between low and high of the seeds (NULL: of one). */
typedef struct plot {
    const char   *title, *what; /* what there is to see; what is shown */
    size_t        count;        /* values of each curve */
    const double *y[MAX_CURVES], *low[MAX_CURVES], *high[MAX_CURVES];
    const char   *x_title;
    double        step;         /* distance of the values along x; 0 means 1 */
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
               "text{fill:#333}.soft{fill:#666}.paper{fill:#fcfcfa}.c0{stroke:#222}"
               ".c1{stroke:#cc79a7}.c2{stroke:#d98200}.c3{stroke:#0072b2}.c4{stroke:#009e73}"
               ".grid{stroke:#ddd}.dot{fill:#d55e00}.b0{fill:#222}.b1{fill:#cc79a7}.b2{fill:#d98200}"
               ".b3{fill:#0072b2}.b4{fill:#009e73}@media(prefers-color-scheme:dark){text{fill:#ddd}"
               ".soft{fill:#aaa}.paper{fill:#16171a}.c0{stroke:#eee}.c3{stroke:#5cb3ea}"
               ".c4{stroke:#2fd0a0}.grid{stroke:#3a3b40}.b0{fill:#eee}.b3{fill:#5cb3ea}"
               ".b4{fill:#2fd0a0}}</style>\n<rect width=\"%d\" height=\"%d\" class=\"paper\"/>\n",
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

/* A text from x = 12, in lines that fit the picture (f NULL: only counted). Returns their number. */
static int svg_lines(FILE *f, double y, double size, int bold, const char *text) {
    const double room = (PICTURE_WIDTH - 24.0) / (bold ? 1.12 : 1.0);
    int          lines = 0;
    while (*text) {
        size_t all = strlen(text), fits = all;
        while (text_width(text, fits, size) > room) {
            size_t shorter = fits - 1;
            while (shorter > 0 && text[shorter] != ' ') shorter--;
            if (shorter == 0) break; /* one long word */
            fits = shorter;
        }
        if (f)
            fprintf(f, "<text x=\"12\" y=\"%.1f\" font-size=\"%g\"%s>%.*s</text>\n",
                    y + LEADING * lines, size, bold ? " font-weight=\"bold\"" : " class=\"soft\"",
                    (int)fits, text);
        lines++;
        text += fits;
        while (*text == ' ') text++;
    }
    return lines;
}

/* --------------------------------------------------------------------------------- axes, curves */

typedef struct axes {
    double x, y, width, height; /* of the plot                                       */
    double right, low, high;    /* x runs from 0 to right; y's logarithm, low..high  */
    double base;                /* of that logarithm: 10 or 2                        */
} axes;

static int drawable(double value) { return value > 0.0 && value < 1e30; }

static double axes_x(const axes *a, double x) { return a->x + a->width * x / a->right; }

static double axes_y(const axes *a, double value) {
    return a->y + a->height * (a->high - log(value) / log(a->base)) / (a->high - a->low);
}

static double step_of(const plot *p) { return p->step > 0.0 ? p->step : 1.0; }

/* Make the axes wide enough for some values. */
static void fit_values(axes *a, const double *y, size_t count) {
    const double margin = a->base > 2.0 ? 0.03 : 0.7;
    for (size_t i = 0; y && i < count; i++) {
        const double at = drawable(y[i]) ? log(y[i]) / log(a->base) : 0.0;
        if (drawable(y[i]) && at - margin < a->low) a->low = at - margin;
        if (drawable(y[i]) && at + margin > a->high) a->high = at + margin;
    }
}

static int same_text(const char *a, const char *b) { return a && b && strcmp(a, b) == 0; }

/* The axes of plot p of two, wide enough for all its curves, and for those of the other if that shows
   the same; 0 if there is nothing to show. */
static int fit_axes(axes *a, const plot plots[2], int p, double top, double base) {
    const plot *shown = &plots[p];
    const axes  empty = {64.0, top + 20.0, 396.0, PLOT_HEIGHT - 72.0, 0.0, 1e9, -1e9, base};
    int         any   = 0;
    *a = empty;
    if (!shown->title) return 0;
    const double head = LEADING * (svg_lines(NULL, 0.0, 15.0, 1, shown->title) +
                                   svg_lines(NULL, 0.0, 14.0, 0, shown->what));
    a->y += head, a->height -= head;
    for (int other = 0; other < 2; other++) {
        const plot *o = &plots[other];
        if (!o->title || !same_text(o->x_title, shown->x_title)) continue;
        if (step_of(o) * (double)o->count > a->right) a->right = step_of(o) * (double)o->count;
        for (int k = 0; k < MAX_CURVES && same_text(o->what, shown->what); k++) {
            fit_values(a, o->y[k], o->count);
            fit_values(a, o->low[k], o->low[k] ? o->count : 0);
            fit_values(a, o->high[k], o->high[k] ? o->count : 0);
        }
    }
    for (int k = 0; k < MAX_CURVES; k++)
        for (size_t i = 0; shown->y[k] && i < shown->count; i++) any |= drawable(shown->y[k][i]);
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

static ticks choose_ticks(const axes *a) {
    ticks best, next;
    best.count = 0;
    for (int level = 0; level < (a->base > 2.0 ? LEVELS : 6); level++) {
        next = best;
        if (add_level(&next, a, level) || best.count < 2) best = next;
    }
    return best;
}

/* Grid, labels, frame and titles. */
static void draw_axes(FILE *f, const axes *a, const plot *p) {
    static const double mantissa[3] = {1.0, 2.0, 5.0};
    const ticks t    = choose_ticks(a);
    double      step = 1.0;
    char        text[64];
    for (int i = 1; a->right / step > 5.0; i++) step = mantissa[i % 3] * pow(10.0, i / 3);
    for (double x = 0.0; x <= a->right + 1e-9; x += step) {
        sprintf(text, "%g", x);
        svg_line(f, axes_x(a, x), a->y, axes_x(a, x), a->y + a->height, "class=\"grid\"");
        svg_text(f, axes_x(a, x), a->y + a->height + 18.0, "text-anchor=\"middle\"", text);
    }
    for (int i = 0; i < t.count; i++) {
        const double y = axes_y(a, t.value[i]);
        if (a->base > 2.0) sprintf(text, "%g", t.value[i]);
        else sprintf(text, "2<tspan dy=\"-5\" font-size=\"11\">%d</tspan>", t.exponent[i]);
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

/* Value i stands at x = (i + 1) steps: at the end of epoch i, or of some steps of training. In
   front of it the spread, if there is more than one seed. */
static void draw_curve(FILE *f, const axes *a, const plot *p, int k, const char *style) {
    const size_t n = p->low[k] ? p->count : 0;
    if (n) fprintf(f, "<path class=\"b%d\" fill-opacity=\".16\" d=\"", k);
    for (size_t i = 0, drawn = 0; i < 2 * n; i++) {
        const size_t at = i < n ? i : 2 * n - 1 - i;
        const double y  = (i < n ? p->low : p->high)[k][at];
        if (drawable(y))
            fprintf(f, "%c%.1f %.1f", drawn++ ? 'L' : 'M',
                    axes_x(a, step_of(p) * (double)(at + 1)), axes_y(a, y));
    }
    fprintf(f, "%s<polyline class=\"c%d\" fill=\"none\" stroke-linejoin=\"round\" %s points=\"",
            n ? "\"/>\n" : "", k, style);
    for (size_t i = 0; i < p->count; i++)
        if (drawable(p->y[k][i]))
            fprintf(f, "%.1f,%.1f ", axes_x(a, step_of(p) * (double)(i + 1)),
                    axes_y(a, p->y[k][i]));
    fprintf(f, "\"/>\n");
}

/* The legend, of all curves with a name, stands above the plots. Returns where it ends. */
static double draw_legend(FILE *f, const char *const names[MAX_CURVES],
                          const char *const style[MAX_CURVES]) {
    double x = 12.0, y = 24.0;
    for (int k = 0; k < MAX_CURVES; k++) {
        const double width = names[k] ? 58.0 + text_width(names[k], strlen(names[k]), 14.0) : 0.0;
        char         full[96];
        if (!names[k]) continue;
        if (x + width > PICTURE_WIDTH) x = 12.0, y += 22.0;
        sprintf(full, "class=\"c%d\" %s", k, style[k]);
        if (f) svg_line(f, x, y - 5.0, x + 30.0, y - 5.0, full);
        if (f) svg_text(f, x + 36.0, y, "", names[k]);
        x += width;
    }
    return y + 8.0;
}

/* What the curves show, how they are drawn, and what of a resumed run is missing. */
static inline void describe(char *what, const char *y, int seeds, int resumed) {
    sprintf(what, "%.70s; log scale%s%s", y,
            seeds > 1 ? "; lines: mean over the seeds, bands: least to largest" : "",
            resumed ? "; steps before this run resumed are not in it" : "");
}

static void draw_curves(const char *dir, const char *file, const plot plots[2],
                        const char *const names[MAX_CURVES]) {
    /* the first is a broad band, so that curves which lie on it can be seen on it */
    static const char *const style[MAX_CURVES] = {
        "stroke-width=\"7\" stroke-opacity=\".25\"", "stroke-width=\"2\" stroke-dasharray=\"2 4\"",
        "stroke-width=\"2\" stroke-dasharray=\"8 5\"", "stroke-width=\"2\"",
        "stroke-width=\"2\" stroke-dasharray=\"10 4 2 4\""};
    const int shown = !!plots[0].title + !!plots[1].title;
    double    top   = draw_legend(NULL, names, style);
    output    to    = svg_begin(dir, file, (int)top + 6 + shown * PLOT_HEIGHT);
    int       any   = 0;
    axes      a;
    draw_legend(to.f, names, style);
    for (int p = 0; p < 2; p++) {
        if (!fit_axes(&a, plots, p, top, 10.0)) continue;
        any = 1;
        draw_axes(to.f, &a, &plots[p]);
        begin_clip(to.f, &a);
        for (int k = 0; k < MAX_CURVES; k++)
            if (plots[p].y[k]) draw_curve(to.f, &a, &plots[p], k, style[k]);
        fprintf(to.f, "</g>\n");
        top += PLOT_HEIGHT;
    }
    svg_end(&to, any);
}

/* Loss scales by step: value i stands at x = i and holds until the next, so only changes and the ends
   need points. A dot is where an overflow made a step be skipped. (Inline, as what follows: not all
   programs have them.) */
static inline void draw_scales(const char *dir, const char *file, const plot plots[2]) {
    double  top = 8.0;
    output  to  = svg_begin(dir, file, 14 + (!!plots[0].title + !!plots[1].title) * PLOT_HEIGHT);
    FILE   *f   = to.f;
    int     any = 0;
    axes    a;
    for (int p = 0; p < 2; p++) {
        const double *y = plots[p].y[0], *last = NULL;
        if (!fit_axes(&a, plots, p, top, 2.0)) continue;
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
}

/* --------------------------------------------------------------------------------------- images */

/* A row of gray images, 0 to 1; or of what two rows differ by, ten times as bright. */
typedef struct image_row {
    const char  *label;
    const float *image[SHOWN], *minus[SHOWN];
} image_row;

static const char *const differences[] = {"", "|\xce\x94 fp16| x 10", "|\xce\x94 bf16| x 10"}; /* to fp32 */

static inline int shade_of(const image_row *row, int i, size_t pixel) {
    float x = row->image[i][pixel];
    if (row->minus[i]) x = 10.0f * fabsf(x - row->minus[i][pixel]);
    return (int)(255.0f * (x < 0.0f ? 0.0f : x > 1.0f ? 1.0f : x) + 0.5f);
}

static inline void draw_images(const char *dir, const char *file, const char *title,
                               const image_row *rows, int num_rows, size_t side) {
    const double left = 122.0, gap = 4.0, size = (PICTURE_WIDTH - left - 8.0) / SHOWN - gap;
    const double px = size / (double)side, top = 22.0 + LEADING * svg_lines(NULL, 0.0, 15.0, 1, title);
    output       to = svg_begin(dir, file, 8 + (int)(top + num_rows * (size + gap)));
    FILE        *f  = to.f;
    svg_lines(f, 26.0, 15.0, 1, title);
    for (int row = 0; row < num_rows; row++) {
        const double y = top + row * (size + gap);
        svg_text(f, left - 8.0, y + size / 2.0 + 5.0, "text-anchor=\"end\"", rows[row].label);
        fprintf(f, "<g shape-rendering=\"crispEdges\">\n");
        for (int i = 0; i < SHOWN; i++) {
            const double x = left + i * (size + gap);
            fprintf(f, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"/>\n", x, y, size,
                    size);
            for (size_t k = 0; k < side * side; k++) {
                const int shade = shade_of(&rows[row], i, k);
                if (shade > 0)
                    fprintf(f, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" "
                               "fill=\"#%02x%02x%02x\"/>\n", x + px * (double)(k % side),
                            y + px * (double)(k / side), px + 0.05, px + 0.05, shade, shade, shade);
            }
        }
        fprintf(f, "</g>\n");
    }
    svg_end(&to, 1);
}

#endif /* TRAIN_PICTURES_H */
