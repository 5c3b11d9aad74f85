/* train_lines.h - what --report writes: amp.h's report of a run, a line of JSON at intervals

   The first line says what runs, and where. Then come pairs: a line of the losses of some steps, and
   amp.h's line of these steps with the histograms of a sample, of which a run has about a hundred.
   examples/report.c makes a page of them.                                                        */

#ifndef TRAIN_LINES_H
#define TRAIN_LINES_H

#include "amp.h"
#include "../amp_report.h"    /* amp_report_json */
#include "train_cli.h"     /* fail, command_line */
#include "train_files.h"   /* lock_path */
#include "train_numbers.h" /* need */

#include <string.h>
#include <time.h>

enum { LINES = 100 };

typedef struct lines {
    FILE           *file;   /* NULL: no report       */
    const char     *path;
    amp_report_desc watch;  /* for amp_optimizer_desc */
    double         *losses; /* since the last line   */
    int             count;
    uint64_t        told;   /* iterations in lines before */
    double          seconds; /* that these steps took */
} lines;

static void lines_put_string(FILE *f, const char *key, const char *s) {
    fprintf(f, ",\"%s\":\"", key);
    for (; *s; s++)
        if (*s == '"' || *s == '\\') fprintf(f, "\\%c", *s);
        else putc(*s < ' ' || *s > '~' ? '?' : *s, f);
    putc('"', f);
}

/* What Linux says of the processor; then how amp.h multiplies there. */
static void lines_put_processor(FILE *f) {
    char  line[256], name[480] = "";
    FILE *cpu = fopen("/proc/cpuinfo", "r");
    while (cpu && !*name && fgets(line, sizeof line, cpu))
        if (strncmp(line, "model name\t: ", 13) == 0)
            sprintf(name, "%.*s, ", (int)strcspn(line + 13, "\n"), line + 13);
    if (cpu) fclose(cpu);
    sprintf(name + strlen(name), "%.40s; %s", amp_cpu_tier(), products_in(amp_cpu_tier()));
    lines_put_string(f, "processor", name);
}

static const char lines_help[] = "choose a file that can be written with --report";

/* A file that cannot be written shall be named before a run, not after it. */
static void lines_try(const char *path) {
    static int lock;
    FILE      *f = path ? fopen(path, "ab") : NULL;
    if (f) fclose(f);
    else if (path) cannot_write(path, lines_help);
    if (path) lock_path(path, &lock, lines_help);
}

/* For a run of so many steps; one that is resumed goes on behind what is there, even if that ends
   within a line. */
static void lines_open(lines *l, const char *path, int append, size_t steps, const char *types) {
    char         date[64];
    const time_t now = time(NULL);
    memset(l, 0, sizeof *l);
    if (!path) return;
    l->path        = path;
    l->watch.every = (int)((steps + LINES - 1) / LINES);
    l->losses      = (double *)need((size_t)l->watch.every, sizeof(double));
    lines_try(path);
    l->file = fopen(path, append ? "ab" : "wb");
    strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", gmtime(&now));
    fprintf(l->file, "%s{\"run\":{\"program\":\"" PROGRAM "\"", append ? "\n" : "");
    lines_put_string(l->file, "command", command_line);
    lines_put_string(l->file, "types", types);
    lines_put_processor(l->file);
    lines_put_string(l->file, "date", date);
    lines_put_string(l->file, "amp", amp_version());
    fprintf(l->file, "}}\n");
}

static void lines_write(lines *l, const amp_optimizer *opt) {
    amp_report now;
    amp_result result = amp_optimizer_report(opt, &now);
    if (result == AMP_OK) {
        fprintf(l->file, "{\"losses\":[%.0f", (double)now.iterations - l->count + 1.0);
        for (int i = 0; i < l->count; i++)
            fprintf(l->file, fabs(l->losses[i]) < 1e30 ? ",%.6g" : ",null", l->losses[i]);
        fprintf(l->file, "],\"seconds\":%.6f}\n", l->seconds);
        result = amp_report_json(opt, l->file, &l->told);
    }
    const int good = arrived(l->file);
    if (result != AMP_OK || !good) cannot_write(l->path, lines_help);
    l->count   = 0;
    l->seconds = 0.0;
}

/* After every step, with its loss and its time. */
static void lines_step(lines *l, const amp_optimizer *opt, double loss, double seconds) {
    if (!l->file) return;
    l->losses[l->count++] = loss;
    l->seconds += seconds;
    if (l->count == l->watch.every) lines_write(l, opt);
}

/* After the last, with the steps that are left. */
static void lines_close(lines *l, const amp_optimizer *opt) {
    if (!l->file) return;
    if (l->count) lines_write(l, opt);
    if (fclose(l->file) != 0) cannot_write(l->path, lines_help);
    free(l->losses);
    l->file = NULL;
}

#endif /* TRAIN_LINES_H */
