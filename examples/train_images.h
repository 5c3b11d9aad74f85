/* train_images.h - rows of gray images, as SVG                                                   */

#ifndef TRAIN_IMAGES_H
#define TRAIN_IMAGES_H

#include "train_svg.h"

enum { IMAGES_PER_ROW = 10 };

typedef struct image_row {
    const char  *label;
    const float *image[IMAGES_PER_ROW]; /* side * side pixels of 0..1 each */
} image_row;

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

static void draw_images(const char *dir, const char *file, const char *title,
                        const image_row *rows, int num_rows, size_t side) {
    const double size = 76.0, gap = 8.0, left = 92.0, top = 56.0, width = left + 12.0;
    FILE        *f = svg_begin(dir, file, (int)(width + IMAGES_PER_ROW * (size + gap)),
                               (int)(top + num_rows * (size + gap) + 16.0));
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

#endif /* TRAIN_IMAGES_H */
