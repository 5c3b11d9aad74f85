/* train_svg.h - curves as SVG, for all trainers

   SVG is text: a curve is a list of points, and a browser draws it. draw_curves writes one file in
   the directory; try_picture says early if that cannot be.                                       */

#ifndef TRAIN_SVG_H
#define TRAIN_SVG_H

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L /* mkdir */
#endif

#include "train_cli.h" /* fail */

#include <math.h>
#include <string.h>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/stat.h>
static void make_directory(const char *path) { mkdir(path, 0777); }
#else
static void make_directory(const char *path) { (void)path; }
#endif

enum { MAX_CURVES = 5 };

/* Two plots stand side by side; one without a title is left out. A curve that is NULL is left out
   too, and so are values that are not above 0. */
typedef struct plot {
    const char   *title;
    size_t        count; /* values of each curve */
    const double *y[MAX_CURVES];
    const char   *x_title, *y_title;
    double        step;  /* distance of the values along x; 0 means 1 */
} plot;

/* --------------------------------------------------------------------------------------- files */

static FILE *open_picture(const char *dir, const char *name, const char *mode) {
    char path[1024];
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path)
        fail(2, "--out", "path too long", "choose a shorter one");
    FILE *f = fopen(path, mode);
    if (!f) fail(1, path, strerror(errno), "choose a directory that can be written with --out DIR");
    return f;
}

static void close_picture(FILE *f, const char *dir) {
    const int good = !ferror(f);
    if (fclose(f) != 0 || !good) fail(1, dir, "cannot write a picture", "is the disk full?");
}

/* Make the directory if it is missing, and fail if nothing can be written there. */
static void try_picture(const char *dir, const char *name) {
    make_directory(dir);
    close_picture(open_picture(dir, name, "ab"), dir);
}

static FILE *svg_begin(const char *dir, const char *name, int width, int height) {
    FILE *f = open_picture(dir, name, "wb");
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
               "viewBox=\"0 0 %d %d\" font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\" "
               "font-size=\"13\" fill=\"#333\">\n"
               "<rect width=\"%d\" height=\"%d\" fill=\"#fcfcfa\"/>\n",
            width, height, width, height, width, height);
    return f;
}

static void svg_end(FILE *f, const char *dir) {
    fprintf(f, "</svg>\n");
    close_picture(f, dir);
}

static void svg_text(FILE *f, double x, double y, const char *style, const char *text) {
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" %s>%s</text>\n", x, y, style, text);
}

static void svg_line(FILE *f, double x1, double y1, double x2, double y2, const char *style) {
    fprintf(f, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x1, y1, x2, y2,
            style);
}

/* --------------------------------------------------------------------------------- axes, curves */

typedef struct axes {
    double x, y, width, height; /* of the plot, in pixels                            */
    double right, low, high;    /* x runs from 0 to right; y's logarithm, low..high  */
    double base;                /* of that logarithm: 10 or 2                        */
} axes;

static int drawable(double value) { return value > 0.0 && value < 1e30; }

static double axes_x(const axes *a, double x) { return a->x + a->width * x / a->right; }

static double axes_y(const axes *a, double value) {
    return a->y + a->height * (a->high - log(value) / log(a->base)) / (a->high - a->low);
}

static double step_of(const plot *p) { return p->step > 0.0 ? p->step : 1.0; }

/* The axes of the left (0) or right (1) plot, wide enough for all its curves; 0 if it is empty. */
static int fit_axes(axes *a, const plot *p, int place, double base) {
    const double margin = base > 2.0 ? 0.05 : 0.7;
    const axes empty = {82.0 + 500.0 * place, 80.0, 395.0, 295.0, step_of(p) * (double)p->count,
                        1e9, -1e9, base};
    *a = empty;
    for (int k = 0; p->title && k < MAX_CURVES; k++) {
        for (size_t i = 0; p->y[k] && i < p->count; i++) {
            const double value = p->y[k][i], at = drawable(value) ? log(value) / log(base) : 0.0;
            if (drawable(value) && at - margin < a->low) a->low = at - margin;
            if (drawable(value) && at + margin > a->high) a->high = at + margin;
        }
    }
    return a->low < a->high;
}

/* A power of 2 as text, in Unicode's superscripts: raised spans overlap in some renderers. */
static void power_of_two(char *text, int exponent) {
    static const char *const digit[10] = {
        "&#x2070;", "&#xb9;",   "&#xb2;",   "&#xb3;",   "&#x2074;",
        "&#x2075;", "&#x2076;", "&#x2077;", "&#x2078;", "&#x2079;"};
    const int size = abs(exponent);
    sprintf(text, "2%s%s%s", exponent < 0 ? "&#x207b;" : "", size > 9 ? digit[size / 10 % 10] : "",
            digit[size % 10]);
}

/* A horizontal grid line with its value: 2 to the 16 in base 2, 0.02 in base 10. */
static void draw_y_tick(FILE *f, const axes *a, double value, int exponent) {
    const double y = axes_y(a, value);
    char         text[64];
    if (y < a->y - 0.1 || y > a->y + a->height + 0.1) return;
    if (a->base > 2.0) sprintf(text, "%g", value);
    else power_of_two(text, exponent);
    svg_line(f, a->x, y, a->x + a->width, y, "stroke=\"#ddd\"");
    svg_text(f, a->x - 8.0, y + 4.5, "text-anchor=\"end\"", text);
}

/* Grid, tick values, frame and titles. */
static void draw_axes(FILE *f, const axes *a, const char *title, const char *x_title,
                      const char *y_title) {
    static const double mantissa[3] = {1.0, 2.0, 5.0};
    double step = 1.0;
    char   text[64];
    for (int i = 1; a->right / step > 8.0; i++) step = mantissa[i % 3] * pow(10.0, i / 3);
    for (double x = 0.0; x <= a->right + 1e-9; x += step) {
        sprintf(text, "%g", x);
        svg_line(f, axes_x(a, x), a->y, axes_x(a, x), a->y + a->height, "stroke=\"#eee\"");
        svg_text(f, axes_x(a, x), a->y + a->height + 18.0, "text-anchor=\"middle\"", text);
    }
    for (int e = (int)floor(a->low); e <= (int)ceil(a->high); e++) {
        if (a->base > 2.0 && a->high - a->low < 0.8) /* less than a decade: all digits */
            for (int i = 1; i < 10; i++) draw_y_tick(f, a, i * pow(a->base, e), e);
        else
            for (int i = 0; i < (a->base > 2.0 ? 3 : 1); i++)
                draw_y_tick(f, a, mantissa[i] * pow(a->base, e), e);
    }
    fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"none\" "
               "stroke=\"#888\"/>\n", a->x, a->y, a->width, a->height);
    svg_text(f, a->x + a->width / 2.0, a->y - 10.0,
             "text-anchor=\"middle\" font-size=\"15\" font-weight=\"bold\"", title);
    svg_text(f, a->x + a->width / 2.0, a->y + a->height + 40.0, "text-anchor=\"middle\"", x_title);
    fprintf(f, "<text transform=\"translate(%.1f %.1f) rotate(-90)\" text-anchor=\"middle\">%s"
               "</text>\n", a->x - 52.0, a->y + a->height / 2.0, y_title);
}

/* Value i stands at x = (i + 1) steps: at the end of epoch i, or of some steps of training. */
static void draw_curve(FILE *f, const axes *a, const plot *p, int k, const char *style) {
    fprintf(f, "<polyline fill=\"none\" stroke-linejoin=\"round\" %s points=\"", style);
    for (size_t i = 0; i < p->count; i++)
        if (drawable(p->y[k][i]))
            fprintf(f, "%.1f,%.1f ", axes_x(a, step_of(p) * (double)(i + 1)),
                    axes_y(a, p->y[k][i]));
    fprintf(f, "\"/>\n");
}

/* Two plots beside each other; the legend, of all curves with a name, stands above both. */
static void draw_curves(const char *dir, const char *file, const plot plots[2],
                        const char *const names[MAX_CURVES]) {
    /* the first is a broad band, so that curves which lie on it can be seen on it */
    static const char *const style[MAX_CURVES] = {
        "stroke=\"#222222\" stroke-width=\"7\" stroke-opacity=\"0.25\"",
        "stroke=\"#cc79a7\" stroke-width=\"2\" stroke-dasharray=\"2 4\"",
        "stroke=\"#e69f00\" stroke-width=\"2\" stroke-dasharray=\"8 5\"",
        "stroke=\"#0072b2\" stroke-width=\"2\"",
        "stroke=\"#009e73\" stroke-width=\"2\" stroke-dasharray=\"10 4 2 4\""};
    FILE  *f = svg_begin(dir, file, 1000, 440);
    double x = 82.0;
    axes   a;
    for (int k = 0; k < MAX_CURVES; k++) {
        if (!names[k]) continue;
        svg_line(f, x, 24.0, x + 32.0, 24.0, style[k]);
        svg_text(f, x + 40.0, 28.5, "", names[k]);
        x += 78.0 + 7.6 * (double)strlen(names[k]);
    }
    for (int p = 0; p < 2; p++) {
        if (!fit_axes(&a, &plots[p], p, 10.0)) continue;
        draw_axes(f, &a, plots[p].title, plots[p].x_title, plots[p].y_title);
        for (int k = 0; k < MAX_CURVES; k++)
            if (plots[p].y[k]) draw_curve(f, &a, &plots[p], k, style[k]);
    }
    svg_end(f, dir);
}

#endif /* TRAIN_SVG_H */
