/* train_cli.h - what all trainers share: errors, counts and choices as options, a progress bar

   It knows neither data nor network, and is C and C++. PROGRAM, the program's name, is defined
   before this is included; and END(code), where an error has to end more than this process.      */

#ifndef TRAIN_CLI_H
#define TRAIN_CLI_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* On a terminal, a bar that is drawn over itself; share is 0 to 1. */
static inline void progress(double share, const char *now) {
    static const char full[] = "########################################";
    const int         done   = (int)(40.0 * share + 1e-6);
    if (on_terminal())
        fprintf(stderr, "\r[%-40.*s] %3d %%  %-24s", done, full, done * 5 / 2, now);
}

/* The line is empty again. */
static inline void progress_end(void) {
    if (on_terminal()) fprintf(stderr, "\r%75s\r", "");
}

#endif /* TRAIN_CLI_H */
