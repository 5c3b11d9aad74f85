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
#include <unistd.h>
static int on_terminal(void) { return isatty(STDERR_FILENO); }
#else
static int on_terminal(void) { return 0; }
#endif

#ifndef END
#define END(code) exit(code)
#endif

static char command_line[512]; /* what keep_command was given, for reports */

static inline void keep_command(int argc, char **argv) {
    size_t used = 0;
    for (int i = 0; i < argc && used < sizeof command_line; i++)
        used += (size_t)snprintf(command_line + used, sizeof command_line - used, "%s%s",
                                 i ? " " : "", argv[i]);
}

/* One line that says what was wrong, with which value, and what to do; then the end. */
static void fail(int code, const char *subject, const char *problem, const char *remedy) {
    fprintf(stderr, PROGRAM ": %s: %s; %s\n", subject, problem, remedy);
    END(code);
}

static void bad_option(const char *option, const char *value, const char *wanted) {
    fprintf(stderr, PROGRAM ": %s does not take '%s'; give %s (see --help)\n", option, value,
            wanted);
    END(2);
}

static int parse_count(const char *option, const char *value, int max) {
    char wanted[64], *end;
    errno        = 0;
    const long n = strtol(value, &end, 10);
    if (end == value || *end || errno || n < 1 || n > max) {
        sprintf(wanted, "a whole number from 1 to %d", max);
        bad_option(option, value, wanted);
    }
    return (int)n;
}

/* The place of value among choices, the last of which is NULL. (Inline: not all programs ask.) */
static inline int parse_choice(const char *option, const char *value, const char *const *choices) {
    char wanted[256] = "";
    for (int i = 0; choices[i]; i++) {
        if (strcmp(value, choices[i]) == 0) return i;
        if (i > 0) strcat(wanted, choices[i + 1] ? ", " : " or ");
        strcat(wanted, choices[i]);
    }
    bad_option(option, value, wanted);
    return 0;
}

/* Of what is being done a line with the time that is left, share being 0 to 1: on a terminal one that
   is rewritten each second, elsewhere one every 10 s. */
static inline void progress(double share, const char *now) {
    static time_t begin, said;
    const time_t  t = time(NULL);
    char          line[160];
    if (!begin) begin = said = t;
    if (share <= 0.0 || difftime(t, said) < (on_terminal() ? 1.0 : 10.0)) return;
    const int left = (int)(difftime(t, begin) * (1.0 - share) / share + 0.5);
    said = t;
    snprintf(line, sizeof line, "%.120s  %d:%02d left", now, left / 60, left % 60);
    if (on_terminal()) fprintf(stderr, "\r%-99s", line);
    else fprintf(stderr, "%s\n", line);
}

/* With a step of a run: its loss, items per second, and how many steps were skipped. */
static inline void progress_step(double share, const char *run, int step, int steps, double loss,
                                 double rate, const char *items, unsigned long skipped) {
    char now[160];
    snprintf(now, sizeof now, "%.40s  step %d/%d  loss %.3g  %.1f%s %.12s/s  skipped %lu", run, step,
             steps, loss, rate < 1e4 ? rate : rate < 1e6 ? rate * 1e-3 : rate * 1e-6,
             rate < 1e4 ? "" : rate < 1e6 ? "k" : "M", items, skipped);
    progress(share, now);
}

/* The line is empty again. */
static inline void progress_end(void) {
    if (on_terminal()) fprintf(stderr, "\r%99s\r", "");
}

/* The end of a program: what it printed must have arrived. */
static inline int finish(int status) {
    if (fflush(stdout) != 0 || ferror(stdout))
        fail(1, "standard output", strerror(errno), "is the disk full?");
    return status;
}

#endif /* TRAIN_CLI_H */
