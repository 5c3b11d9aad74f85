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

#include <math.h>
#include <string.h>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/stat.h>
static void make_directory(const char *path) { mkdir(path, 0777); }
#else
static void make_directory(const char *path) { (void)path; }
#endif

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

static FILE *svg_begin(const char *dir, const char *name, int height) {
    FILE *f = open_picture(dir, name, "wb");
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\""
               "Helvetica, Arial, 'DejaVu Sans', sans-serif\" font-size=\"14\">\n<style>"
               "text{fill:#333}.soft{fill:#666}.paper{fill:#fcfcfa}.c0{stroke:#222}"
               ".c1{stroke:#cc79a7}.c2{stroke:#d98200}.c3{stroke:#0072b2}.c4{stroke:#009e73}"
               ".grid{stroke:#ddd}.dot{fill:#d55e00}.b0{fill:#222}.b1{fill:#cc79a7}.b2{fill:#d98200}"
               ".b3{fill:#0072b2}.b4{fill:#009e73}@media(prefers-color-scheme:dark){text{fill:#ddd}"
               ".soft{fill:#aaa}.paper{fill:#16171a}.c0{stroke:#eee}.c3{stroke:#5cb3ea}"
               ".c4{stroke:#2fd0a0}.grid{stroke:#3a3b40}.b0{fill:#eee}.b3{fill:#5cb3ea}"
               ".b4{fill:#2fd0a0}}</style>\n<rect width=\"%d\" height=\"%d\" class=\"paper\"/>\n",
            PICTURE_WIDTH, height, PICTURE_WIDTH, height);
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

/* The axes of a plot, wide enough for all its curves; 0 if it is empty. */
static int fit_axes(axes *a, const plot *p, double top, double base) {
    const double margin = base > 2.0 ? 0.03 : 0.7;
    const axes empty = {64.0, top + 52.0, 396.0, PLOT_HEIGHT - 104.0,
                        step_of(p) * (double)p->count, 1e9, -1e9, base};
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

/* A horizontal grid line with its value: 2 to the 16 in base 2, 0.02 in base 10. */
static void draw_y_tick(FILE *f, const axes *a, double value, int exponent) {
    const double y = axes_y(a, value);
    char         text[64];
    if (y < a->y - 0.1 || y > a->y + a->height + 0.1) return;
    if (a->base > 2.0) sprintf(text, "%g", value);
    else sprintf(text, "2<tspan dy=\"-5\" font-size=\"11\">%d</tspan>", exponent);
    svg_line(f, a->x, y, a->x + a->width, y, "class=\"grid\"");
    svg_text(f, a->x - 6.0, y + 5.0, "text-anchor=\"end\"", text);
}

/* Grid, tick values, frame and titles. */
static void draw_axes(FILE *f, const axes *a, const plot *p) {
    static const double mantissa[3] = {1.0, 2.0, 5.0};
    double step = 1.0;
    char   text[64];
    for (int i = 1; a->right / step > 5.0; i++) step = mantissa[i % 3] * pow(10.0, i / 3);
    for (double x = 0.0; x <= a->right + 1e-9; x += step) {
        sprintf(text, "%g", x);
        svg_line(f, axes_x(a, x), a->y, axes_x(a, x), a->y + a->height, "class=\"grid\"");
        svg_text(f, axes_x(a, x), a->y + a->height + 18.0, "text-anchor=\"middle\"", text);
    }
    const double range = a->high - a->low;
    for (int e = (int)floor(a->low); e <= (int)ceil(a->high); e++) {
        const int many = a->base > 2.0 && range < 0.8; /* less than a decade: all digits */
        const int every = a->base > 2.0 ? 1 : 1 + (int)(range / 8.0);
        for (int i = 1; i < 10 && many; i++) /* and halves, if that is little */
            for (int half = 0; half <= (range < 0.3 ? 4 : 0); half++)
                draw_y_tick(f, a, (i + 0.2 * half) * pow(a->base, e), e);
        for (int i = 0; i < (a->base > 2.0 ? 3 : 1) && !many; i++)
            if (e % every == 0) draw_y_tick(f, a, mantissa[i] * pow(a->base, e), e);
    }
    svg_text(f, 12.0, a->y - 28.0, "font-size=\"15\" font-weight=\"bold\"", p->title);
    svg_text(f, 12.0, a->y - 9.0, "class=\"soft\"", p->what);
    svg_text(f, a->x + a->width / 2.0, a->y + a->height + 38.0,
             "text-anchor=\"middle\" class=\"soft\"", p->x_title);
}

/* Value i stands at x = (i + 1) steps: at the end of epoch i, or of some steps of training. In
   front of it the spread, if there is more than one seed. */
static void draw_curve(FILE *f, const axes *a, const plot *p, int k, const char *style) {
    const size_t n = p->low[k] ? p->count : 0;
    fprintf(f, "<path class=\"b%d\" fill-opacity=\".16\" d=\"", k);
    for (size_t i = 0, drawn = 0; i < 2 * n; i++) {
        const size_t at = i < n ? i : 2 * n - 1 - i;
        const double y  = (i < n ? p->low : p->high)[k][at];
        if (drawable(y))
            fprintf(f, "%c%.1f %.1f", drawn++ ? 'L' : 'M',
                    axes_x(a, step_of(p) * (double)(at + 1)), axes_y(a, y));
    }
    fprintf(f, "\"/>\n<polyline class=\"c%d\" fill=\"none\" stroke-linejoin=\"round\" %s "
               "points=\"", k, style);
    for (size_t i = 0; i < p->count; i++)
        if (drawable(p->y[k][i]))
            fprintf(f, "%.1f,%.1f ", axes_x(a, step_of(p) * (double)(i + 1)),
                    axes_y(a, p->y[k][i]));
    fprintf(f, "\"/>\n");
}

/* The legend, of all curves with a name, stands above the plots. */
static void draw_curves(const char *dir, const char *file, const plot plots[2],
                        const char *const names[MAX_CURVES]) {
    /* the first is a broad band, so that curves which lie on it can be seen on it */
    static const char *const style[MAX_CURVES] = {
        "stroke-width=\"7\" stroke-opacity=\".25\"", "stroke-width=\"2\" stroke-dasharray=\"2 4\"",
        "stroke-width=\"2\" stroke-dasharray=\"8 5\"", "stroke-width=\"2\"",
        "stroke-width=\"2\" stroke-dasharray=\"10 4 2 4\""};
    const int shown = !!plots[0].title + !!plots[1].title;
    double    x = 12.0, y = 24.0, top;
    axes      a;
    for (int draw = 0; draw < 2; draw++) { /* first to know how high the legend is */
        FILE *f = draw ? svg_begin(dir, file, (int)y + 14 + shown * PLOT_HEIGHT) : NULL;
        top = y + 8.0;
        x = 12.0, y = 24.0;
        for (int k = 0; k < MAX_CURVES; k++) {
            const double width = names[k] ? 60.0 + 8.0 * (double)strlen(names[k]) : 0.0;
            char         full[96];
            if (!names[k]) continue;
            if (x + width > PICTURE_WIDTH) x = 12.0, y += 22.0;
            sprintf(full, "class=\"c%d\" %s", k, style[k]);
            if (draw) svg_line(f, x, y - 5.0, x + 30.0, y - 5.0, full);
            if (draw) svg_text(f, x + 36.0, y, "", names[k]);
            x += width;
        }
        for (int p = 0; p < 2 && draw; p++) {
            if (!fit_axes(&a, &plots[p], top, 10.0)) continue;
            draw_axes(f, &a, &plots[p]);
            for (int k = 0; k < MAX_CURVES; k++)
                if (plots[p].y[k]) draw_curve(f, &a, &plots[p], k, style[k]);
            top += PLOT_HEIGHT;
        }
        if (draw) svg_end(f, dir);
    }
}

/* Loss scales by step: value i stands at x = i and holds until the next, so only changes and the ends
   need points. A dot is where an overflow made a step be skipped. (Inline, as what follows: not all
   programs have them.) */
static inline void draw_scales(const char *dir, const char *file, const plot plots[2]) {
    double top = 8.0;
    FILE  *f = svg_begin(dir, file, 14 + (!!plots[0].title + !!plots[1].title) * PLOT_HEIGHT);
    axes   a;
    for (int p = 0; p < 2; p++) {
        const double *y = plots[p].y[0], *last = NULL;
        if (!fit_axes(&a, &plots[p], top, 2.0)) continue;
        draw_axes(f, &a, &plots[p]);
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
        top += PLOT_HEIGHT;
    }
    svg_end(f, dir);
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
    const double left = 98.0, gap = 4.0, size = (PICTURE_WIDTH - left - 8.0) / SHOWN - gap;
    const double px = size / (double)side;
    FILE        *f = svg_begin(dir, file, 48 + (int)(num_rows * (size + gap)));
    svg_text(f, 12.0, 26.0, "font-size=\"15\" font-weight=\"bold\"", title);
    for (int row = 0; row < num_rows; row++) {
        const double y = 40.0 + row * (size + gap);
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
    svg_end(f, dir);
}

#endif /* TRAIN_PICTURES_H */
