/* train_plots.h - the three pictures of train.c, as SVG

   draw_curves of train_svg.h, draw_scale and draw_images each write one file in the directory.   */

#ifndef TRAIN_PLOTS_H
#define TRAIN_PLOTS_H

#include "train_svg.h"

enum { IMAGES_PER_ROW = 10 };

typedef struct image_row {
    const char  *label;
    const float *image[IMAGES_PER_ROW]; /* side * side pixels of 0..1 each */
} image_row;

/* Value i stands at x = i and holds until the next, so only changes and the ends need points. */
static void draw_stairs(FILE *f, const axes *a, const double *y, size_t count, const char *style) {
    const double *last = NULL;
    fprintf(f, "<polyline fill=\"none\" stroke-linejoin=\"round\" %s points=\"", style);
    for (size_t i = 0; i < count; i++) {
        const double x       = axes_x(a, (double)i);
        const int    changed = last && (y[i] < *last || y[i] > *last);
        if (!drawable(y[i])) continue;
        if (changed) fprintf(f, "%.1f,%.1f ", x, axes_y(a, *last));
        if (changed || !last || i + 1 == count) fprintf(f, "%.1f,%.1f ", x, axes_y(a, y[i]));
        last = &y[i];
    }
    fprintf(f, "\"/>\n");
}

static void draw_dot(FILE *f, double x, double y) {
    fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"#d55e00\"/>\n", x, y);
}

/* ------------------------------------------------------------------------------------- pictures */

/* The loss scale by step, of curve 0; a dot where an overflow made a step be skipped. */
static void draw_scale(const char *dir, const plot plots[2], double max_scale) {
    static const char blue[] = "stroke=\"#0072b2\" stroke-width=\"2\"";
    FILE *f = svg_begin(dir, "train_scale.svg", 1000, 440);
    axes  a;
    svg_line(f, 82.0, 24.0, 114.0, 24.0, blue);
    svg_text(f, 122.0, 28.5, "", "loss scale of fp16+master+scaling, first seed");
    draw_dot(f, 450.0, 24.0);
    svg_text(f, 462.0, 28.5, "", "overflow: this step is skipped and the scale halved");
    for (int p = 0; p < 2; p++) {
        const double *y = plots[p].y[0];
        if (!fit_axes(&a, &plots[p], p, 2.0)) continue;
        draw_axes(f, &a, plots[p].title, "step", "loss scale");
        if (a.high > log(max_scale) / log(2.0)) {
            const double top = axes_y(&a, max_scale);
            svg_line(f, a.x, top, a.x + a.width, top, "stroke=\"#888\" stroke-dasharray=\"4 4\"");
            svg_text(f, a.x + 6.0, top - 5.0, "font-size=\"12\" fill=\"#666\"", "max_scale");
        }
        draw_stairs(f, &a, y, plots[p].count, blue);
        for (size_t i = 1; i < plots[p].count; i++)
            if (drawable(y[i]) && y[i] < y[i - 1])
                draw_dot(f, axes_x(&a, (double)(i - 1)), axes_y(&a, y[i - 1]));
    }
    svg_end(f, dir);
}

/* 64 shades are enough for the eye. */
static int shade_of(float gray) { return (int)(63.0f * gray) * 4; }

static void draw_rect(FILE *f, double x, double y, double width, double height, int shade) {
    fprintf(f, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" "
               "fill=\"#%02x%02x%02x\"/>\n", x, y, width, height, shade, shade, shade);
}

/* One gray image on black; neighbors of one shade share a rectangle. */
static void draw_image(FILE *f, const float *image, size_t side, double x, double y, double size) {
    const double px = size / (double)side;
    draw_rect(f, x, y, size, size, 0);
    for (size_t row = 0; row < side; row++, image += side) {
        for (size_t col = 0, end; col < side; col = end) {
            const int shade = shade_of(image[col]);
            for (end = col + 1; end < side && shade_of(image[end]) == shade;) end++;
            if (shade > 0)
                draw_rect(f, x + px * (double)col, y + px * (double)row, px * (double)(end - col),
                          px, shade);
        }
    }
}

static void draw_images(const char *dir, const char *title, const image_row *rows, int num_rows,
                        size_t side) {
    const double size = 76.0, gap = 8.0, left = 92.0, top = 56.0, width = left + 12.0;
    FILE        *f = svg_begin(dir, "train_images.svg",
                               (int)(width + IMAGES_PER_ROW * (size + gap)), 408);
    svg_text(f, left, 34.0, "font-size=\"15\" font-weight=\"bold\"", title);
    fprintf(f, "<g shape-rendering=\"crispEdges\">\n");
    for (int row = 0; row < num_rows; row++) {
        const double y = top + row * (size + gap);
        svg_text(f, left - 14.0, y + size / 2.0 + 5.0, "text-anchor=\"end\"", rows[row].label);
        for (int i = 0; i < IMAGES_PER_ROW; i++)
            draw_image(f, rows[row].image[i], side, left + i * (size + gap), y, size);
    }
    fprintf(f, "</g>\n");
    svg_end(f, dir);
}

#endif /* TRAIN_PLOTS_H */
