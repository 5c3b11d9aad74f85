/* train_cli.h - what all trainers share: errors, counts and choices as options, progress

   It knows neither data nor network, and is C and C++. PROGRAM, the program's name, is defined
   before this is included; and END(code), where an error has to end more than this process.      */

#ifndef TRAIN_CLI_H
#define TRAIN_CLI_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/ioctl.h>
#include <unistd.h>
static int on_terminal(void) { return isatty(STDERR_FILENO); }
#else
static int on_terminal(void) { return 0; }
#endif

#ifndef END
#define END(code) exit(code)
#endif

static char command_line[512]; /* what keep_command was given, for reports */
static int  quiet;             /* --quiet: no progress */

static inline void keep_command(int argc, char **argv) {
    size_t used = 0;
    for (int i = 0; i < argc && used < sizeof command_line; i++)
        used += (size_t)snprintf(command_line + used, sizeof command_line - used, "%s%s",
                                 i ? " " : "", argv[i]);
}

/* One line that says what was wrong, with which value, and what to do; then the end. */
static inline void fail(int code, const char *subject, const char *problem, const char *remedy) {
    fprintf(stderr, PROGRAM ": %s: %s; %s\n", subject, problem, remedy);
    END(code);
}

static inline void bad_option(const char *option, const char *value, const char *wanted) {
    fprintf(stderr, PROGRAM ": %s does not take '%s'; give %s (see --help)\n", option, value,
            wanted);
    END(2);
}

/* A text with a word that cannot be understood: ^ stands in front of it. */
static inline void misread(const char *subject, const char *problem, const char *text, size_t at,
                           const char *remedy) {
    char         marked[640];
    const size_t from = at > 200 ? at - 200 : 0;
    snprintf(marked, sizeof marked, "%.240s: %.*s^%.99s", problem, (int)(at - from), text + from,
             text + at);
    fail(2, subject, marked, remedy);
}

/* Does this option, which has no value, stand anywhere? */
static inline int is_given(const char *option, int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], option) == 0) return 1;
    return 0;
}

/* An option with a value: a word, one of the choices (of which the last is NULL), a whole number from
   1 to most, or a number above 0 and at most that. */
typedef struct known_option {
    const char        *name, **word;
    const char *const *choices;
    int               *count;
    float             *real;
    double             most;
} known_option;

static inline known_option word_option(const char *name, const char **to) {
    const known_option k = {name, to, NULL, NULL, NULL, 0.0};
    return k;
}

static inline known_option choice_option(const char *name, const char *const *choices, int *to) {
    const known_option k = {name, NULL, choices, to, NULL, 0.0};
    return k;
}

static inline known_option count_option(const char *name, int *to, int most) {
    const known_option k = {name, NULL, NULL, to, NULL, (double)most};
    return k;
}

static inline known_option real_option(const char *name, float *to, double most) {
    const known_option k = {name, NULL, NULL, NULL, to, most};
    return k;
}

static inline void take_value(const known_option *k, const char *value) {
    char         wanted[256] = "", *end;
    const double x = strtod(value, &end);
    if (k->word) {
        *k->word = value;
        return;
    }
    for (int i = 0; k->choices && k->choices[i]; i++) {
        if (strcmp(value, k->choices[i]) == 0) {
            *k->count = i;
            return;
        }
        if (i > 0) strcat(wanted, k->choices[i + 1] ? ", " : " or ");
        strcat(wanted, k->choices[i]);
    }
    const int whole = !k->real, good = !k->choices && end != value && !*end && x <= k->most;
    if (good && x > 0.0 && !whole) *k->real = (float)x;
    else if (good && x >= 1.0 && whole && x <= (double)(int)x) *k->count = (int)x;
    else {
        if (!k->choices && whole) sprintf(wanted, "a whole number from 1 to %.0f", k->most);
        else if (!k->choices) sprintf(wanted, "a number above 0 and at most %g", k->most);
        bad_option(k->name, value, wanted);
    }
}

/* Is argv[*i] among these? Then its value is taken, too, and *i goes on. All take --quiet. */
static inline int is_among(const known_option *known, size_t count, char **argv, int *i) {
    if (strcmp(argv[*i], "--quiet") == 0) return quiet = 1;
    for (size_t k = 0; k < count; k++) {
        if (strcmp(argv[*i], known[k].name) != 0) continue;
        if (!argv[*i + 1] || !*argv[*i + 1]) fail(2, argv[*i], "needs a value", "see --help");
        take_value(&known[k], argv[++*i]);
        return 1;
    }
    return 0;
}

/* Options that all have values; and those of a program that has none. */
static inline void parse_known(int argc, char **argv, const known_option *known, size_t count,
                               void (*help)(void)) {
    keep_command(argc, argv);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            help();
            exit(0);
        }
        if (!is_among(known, count, argv, &i)) fail(2, argv[i], "is not an option", "see --help");
    }
}

static inline void no_options(int argc, char **argv, const char *help) {
    if (argc < 2) return;
    if (strcmp(argv[1], "--help") != 0) fail(2, argv[1], "is not an option", "run it without any");
    printf("usage: " PROGRAM "\n%s\n", help);
    exit(0);
}

/* Columns of the terminal; of a window without a size what COLUMNS says, else 80. */
static inline int terminal_columns(void) {
    const char *said = getenv("COLUMNS");
    int         wide = said ? atoi(said) : 0;
#ifdef TIOCGWINSZ
    struct winsize window;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col) wide = window.ws_col;
#endif
    return wide > 0 ? wide : 80;
}

/* On a terminal the line of progress is rewritten; it ends before the last column, where some
   terminals would begin the next row. */
static inline void rewrite_line(const char *line) {
    const int room = terminal_columns() - 1;
    fprintf(stderr, "\r%-*.*s%s", room, room, line, *line ? "" : "\r");
}

/* Say how much time is left, and what is being done, share being 0 to 1: on a terminal each second,
   elsewhere a line every 10 s. A share that falls begins something new. */
static inline void progress(double share, const char *now) {
    static time_t begin, said;
    static double last;
    const time_t  t = time(NULL);
    char          line[192];
    if (!begin || share < last) begin = said = t;
    last = share;
    if (quiet || share <= 0.0 || difftime(t, said) < (on_terminal() ? 1.0 : 10.0)) return;
    const int left = (int)(difftime(t, begin) * (1.0 - share) / share + 0.5);
    said = t;
    snprintf(line, sizeof line, "%d:%02d left  %.160s", left / 60, left % 60, now);
    if (on_terminal()) rewrite_line(line);
    else fprintf(stderr, "%s\n", line);
}

/* With a step of a run: its loss, items per second, and how many steps were skipped. */
static inline void progress_step(double share, const char *run, int step, int steps, double loss,
                                 double rate, const char *items, unsigned long skipped) {
    char now[160];
    snprintf(now, sizeof now, "%.40s  step %d/%d  loss %.3g  %.1f%s %.12s/s  skipped %lu", run, step,
             steps, loss, rate < 1e3 ? rate : rate < 1e6 ? rate * 1e-3 : rate * 1e-6,
             rate < 1e3 ? "" : rate < 1e6 ? "k" : "M", items, skipped);
    progress(share, now);
}

/* The line is empty again. */
static inline void progress_end(void) {
    if (on_terminal() && !quiet) rewrite_line("");
}

/* The end of a program: what it printed must have arrived. */
static inline int finish(int status) {
    if (fflush(stdout) != 0 || ferror(stdout))
        fail(1, "standard output", strerror(errno), "is the disk full?");
    return status;
}

#endif /* TRAIN_CLI_H */
