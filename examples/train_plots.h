/* train_plots.h - the three pictures of train.c, as SVG

   draw_curves of train_svg.h, draw_images of train_images.h and draw_scale each write one file in
   the directory.                                                                                 */

#ifndef TRAIN_PLOTS_H
#define TRAIN_PLOTS_H

#include "train_images.h"
#include "train_svg.h"

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

#endif /* TRAIN_PLOTS_H */
