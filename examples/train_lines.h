/* train_lines.h - what --report writes: amp.h's report of a run, a line of JSON now and then

   A line holds the turns since the one before and the histograms of a sample, of which a run has
   about a hundred. examples/report.c makes a page of them.                                       */

#ifndef TRAIN_LINES_H
#define TRAIN_LINES_H

#include "amp.h"
#include "train_cli.h" /* fail */

#include <string.h>

enum { LINES = 100 };

typedef struct lines {
    FILE           *file;  /* NULL: no report       */
    const char     *path;
    amp_report_desc watch; /* for amp_optimizer_desc */
    uint64_t        turns;
} lines;

/* For a run of so many steps; a run that is resumed goes on behind what is there. */
static void lines_open(lines *l, const char *path, int append, size_t steps) {
    memset(l, 0, sizeof *l);
    if (!path) return;
    l->path        = path;
    l->watch.every = (int)((steps + LINES - 1) / LINES);
    l->file        = fopen(path, append ? "ab" : "wb");
    if (!l->file) fail(1, path, strerror(errno), "choose a file that can be written with --report");
}

static bool lines_put(void *file, const void *data, size_t num_bytes) {
    return fwrite(data, 1, num_bytes, (FILE *)file) == num_bytes;
}

static void lines_write(const lines *l, const amp_optimizer *opt) {
    if (amp_optimizer_report_json(opt, lines_put, l->file) != AMP_OK)
        fail(1, l->path, "cannot write a report", "is the disk full?");
}

/* After every turn. */
static void lines_step(lines *l, const amp_optimizer *opt) {
    if (l->file && ++l->turns % (uint64_t)l->watch.every == 0) lines_write(l, opt);
}

/* After the last, with the turns that are left. */
static void lines_close(lines *l, const amp_optimizer *opt) {
    if (!l->file) return;
    if (l->turns % (uint64_t)l->watch.every) lines_write(l, opt);
    if (fclose(l->file) != 0) fail(1, l->path, strerror(errno), "is the disk full?");
    l->file = NULL;
}

#endif /* TRAIN_LINES_H */
