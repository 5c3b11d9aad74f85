/* train_cli.h - what all programs share: errors, options, progress, Ctrl-C, begin and end

   It knows neither data nor network. C and C++. Define PROGRAM, the program's name, before you
   include it, and END(code) if an error must end more than this process.                         */

#ifndef TRAIN_CLI_H
#define TRAIN_CLI_H

#include <errno.h>
#include <float.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__unix__) || defined(__APPLE__)
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>
static inline int on_terminal(void) { return isatty(STDERR_FILENO); }
#else
static inline int on_terminal(void) { return 0; }
#endif

#ifndef END
#define END(code) exit(code)
#endif

static char command_line[512];  /* what begin was given, for reports */
static int  quiet;              /* --quiet: no progress */
static char unfinished[1200];   /* a file that is being written, and goes if the program is interrupted */
static char larger[160];        /* options that take more memory than they would by default, as advice */
static volatile sig_atomic_t polled, interrupted; /* Ctrl-C: does the program ask? which signal came? */

/* One line that says what was wrong, with which value, and what to do; then the end. */
static inline void fail(int code, const char *subject, const char *problem, const char *remedy) {
    fprintf(stderr, PROGRAM ": %s: %s; %s\n", subject, problem, remedy);
    END(code);
}

static inline void no_memory(void) {
    fail(1, "memory", "there is not enough", *larger ? larger : "end other programs, or add some");
}

#if defined(AMP_H_INCLUDED) && !defined(CUDART_VERSION) /* CUDA programs have cuda_must.cuh */
/* What cannot fail, but for memory. */
static inline void must(amp_result result) {
    if (result == AMP_ERROR_OUT_OF_MEMORY) no_memory();
    if (result != AMP_OK) fail(1, "amp.h", amp_problem(), "this is a bug in " PROGRAM);
}
#endif

/* Behind a line about what was to hold: if it does not, this is the end. */
static inline int verdict(int ok) {
    printf(" %s\n\n", ok ? "ok" : "NOT AS CLAIMED");
    if (!ok) END(1);
    return ok;
}

/* Has all that was written to a file arrived? If not, errno says why; if an earlier write failed, one
   more says it. */
static inline int arrived(FILE *f) {
    const int failed = ferror(f);
    errno = 0;
    if (failed) putc('\n', f);
    return fflush(f) == 0 && !failed;
}

/* Behind a write that failed, which has set errno. */
static inline void cannot_write(const char *path, const char *remedy) {
    const int full = errno == ENOSPC;
    fail(1, path, errno ? strerror(errno) : "cannot be written", full ? "make room on the disk" : remedy);
}

static inline void bad_option(const char *option, const char *value, const char *wanted) {
    fprintf(stderr, PROGRAM ": %s does not take '%s'; give %s (see --help)\n", option, value,
            wanted);
    END(2);
}

/* A word on the command line that no option and no place takes. */
static inline void unexpected(const char *word) {
    fprintf(stderr, PROGRAM ": %s %s; see --help\n",
            *word == '-' ? "unknown option" : "unexpected argument", *word ? word : "''");
    END(2);
}

/* ------------------------------------------------------------------------------- begin and end */

/* The end of a program: what it printed must have arrived. */
static inline int finish(int status) {
    if (!arrived(stdout)) cannot_write("standard output", "redirect it to a file that can be written");
    return interrupted ? 128 + interrupted : status;
}

#ifdef F_GETFD /* POSIX */
/* A program that asks ends between two steps, any other at once, and so does one that is asked twice. */
static inline void on_interrupt(int number) {
    static const char line[] = "\n" PROGRAM ": interrupted: what is not printed or saved yet is lost\n";
    const size_t      from = !on_terminal(); /* behind ^C a new line */
    if (polled && !interrupted) {
        interrupted = number;
        return;
    }
    if (*unfinished) unlink(unfinished);
    const ssize_t told = write(STDERR_FILENO, line + from, sizeof line - 1 - from);
    (void)told;
    signal(number, SIG_DFL);
    raise(number);
}
#endif

/* The beginning. The next file would take the place of a standard stream that is closed. Ctrl-C, kill and
   a terminal that is closed do the same; where one of them is ignored, it stays so. */
static inline void begin(int argc, char **argv) {
    size_t used = 0;
    for (int i = 0; i < argc && used < sizeof command_line; i++)
        used += (size_t)snprintf(command_line + used, sizeof command_line - used, "%s%s",
                                 i ? " " : "", argv[i]);
#ifdef F_GETFD
    for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; stream++)
        if (fcntl(stream, F_GETFD) < 0 && open("/dev/null", O_RDWR) == STDOUT_FILENO)
            fail(1, "standard output", "is closed", "redirect it to a file or to /dev/null");
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP};
    for (int i = 0; i < 3; i++) {
        if (signal(ends[i], SIG_IGN) == SIG_IGN) continue;
        signal(ends[i], on_interrupt);
#ifdef SA_RESTART
        struct sigaction action;
        memset(&action, 0, sizeof action);
        action.sa_handler = on_interrupt;
        action.sa_flags   = SA_RESTART; /* no write ends early */
        sigaction(ends[i], &action, NULL);
#endif
    }
#endif
}

/* "1 epoch", "2 epochs"; the text stays until eight more are made. */
static inline const char *counted(size_t n, const char *noun) {
    static char     text[8][48];
    static unsigned next;
    char           *now = text[next++ % 8];
    snprintf(now, sizeof text[0], "%lu %.20s%s", (unsigned long)n, noun, n == 1 ? "" : "s");
    return now;
}

/* In these tiers of a CPU 16 bits are multiplied as fp32. */
static inline int multiplies_as_fp32(const char *tier) {
    return strcmp(tier, "avx512") == 0 || strcmp(tier, "avx2") == 0 || strcmp(tier, "neon") == 0 ||
           strcmp(tier, "c") == 0;
}

/* How amp.h multiplies, by the name of its tier; wherever a speed is printed. "": it does not (a GPU). */
static inline const char *products_in(const char *tier) {
    return strcmp(tier, "amx") == 0           ? "products in AMX tiles, fp16 in two parts"
           : strcmp(tier, "avx512_bf16") == 0 ? "products in AVX512_BF16, fp16 in fp32 arithmetic"
           : strcmp(tier, "neon_bf16") == 0   ? "products in BFMMLA, fp16 in fp32 arithmetic"
           : multiplies_as_fp32(tier)
               ? "bf16 and fp16 are multiplied as fp32; 16 bits save memory here, not time" : "";
}

/* ------------------------------------------------------------------------------------- options */

/* Does this option, which has no value, stand anywhere? */
static inline int is_given(const char *option, int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], option) == 0) return 1;
    return 0;
}

static inline int is_help(const char *word) {
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

/* An option that only changes what another one does is refused without that. */
static inline void needs(int argc, char **argv, const char *option, const char *other) {
    char problem[64];
    if (!is_given(option, argc, argv) || is_given(other, argc, argv)) return;
    snprintf(problem, sizeof problem, "does nothing without %s", other);
    fail(2, option, problem, "add it, or leave this out");
}

/* --stop-after is of a run of so many steps, or epochs. */
static inline void refuse_stop(int stop_after, int most, const char *noun) {
    char subject[48], problem[64], remedy[48];
    if (stop_after <= most) return;
    sprintf(subject, "--stop-after %d", stop_after);
    sprintf(problem, "the run ends after %s", counted((size_t)most, noun));
    sprintf(remedy, "give at most %d", most);
    fail(2, subject, problem, remedy);
}

/* What a batch is taken from must fill one. */
static inline void refuse_batch(const char *source, size_t count, const char *noun, int batch) {
    char problem[128], remedy[64];
    if (count >= (size_t)batch) return;
    sprintf(problem, "has %s to learn, and a batch takes %d", counted(count, noun), batch);
    sprintf(remedy, "give more, or at most --batch %lu", (unsigned long)count);
    fail(2, source, problem, count ? remedy : "give more");
}

/* An option: a flag, which becomes 1; or with a value: a word, one of the choices (of which the last is
   NULL), a whole number from 1 to most, or a number above 0 and at most that. */
typedef struct known_option {
    const char        *name, **word;
    const char *const *choices;
    int               *count;
    float             *real;
    double             most;
    int                usual; /* what is more than this takes more memory; 0: it takes none */
} known_option;

static inline known_option word_option(const char *name, const char **to) {
    const known_option k = {name, to, NULL, NULL, NULL, 0.0, 0};
    return k;
}

static inline known_option flag_option(const char *name, int *to) {
    const known_option k = {name, NULL, NULL, to, NULL, 0.0, 0};
    return k;
}

static inline known_option choice_option(const char *name, const char *const *choices, int *to) {
    const known_option k = {name, NULL, choices, to, NULL, 0.0, 0};
    return k;
}

static inline known_option count_option(const char *name, int *to, int most) {
    const known_option k = {name, NULL, NULL, to, NULL, (double)most, 0};
    return k;
}

/* One that memory grows with. */
static inline known_option size_option(const char *name, int *to, int most) {
    known_option k = count_option(name, to, most);
    k.usual = *to ? *to : 10000;
    return k;
}

static inline known_option real_option(const char *name, float *to, double most) {
    const known_option k = {name, NULL, NULL, NULL, to, most, 0};
    return k;
}

static inline void take_value(const known_option *k, const char *value) {
    const int    whole = !k->real;
    const size_t plain = strspn(value, whole ? "0123456789" : "0123456789.eE+-"); /* no 0x10, nan, inf */
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
    const int good = !k->choices && *value != '+' && !value[plain] && end != value && !*end && x <= k->most;
    if (good && !whole && x >= (double)FLT_MIN) *k->real = (float)x;
    else if (good && whole && x >= 1.0) {
        *k->count = (int)x;
        if (k->usual && *k->count > k->usual && strlen(larger) + strlen(k->name) + 32 < sizeof larger)
            sprintf(larger + strlen(larger), "%s %s", *larger ? " or" : "choose a smaller", k->name);
    } else {
        if (!k->choices && whole) sprintf(wanted, "a whole number from 1 to %.0f", k->most);
        else if (!k->choices) sprintf(wanted, "a number from 1.2e-38 to %g", k->most);
        bad_option(k->name, value, wanted);
    }
}

/* Is argv[*i] among these? Then its value is taken, too, and *i goes on. */
static inline int is_among(const known_option *known, size_t count, char **argv, int *i) {
    for (size_t n = 0; n < count; n++) {
        const known_option *k = &known[n];
        if (strcmp(argv[*i], k->name) != 0) continue;
        if (!k->word && !k->choices && k->most <= 0.0) return *k->count = 1;
        if (!argv[*i + 1] || !*argv[*i + 1]) fail(2, argv[*i], "needs a value", "see --help");
        take_value(k, argv[++*i]);
        return 1;
    }
    return 0;
}

/* Options of a program, and those that it has in common with others. All have --quiet and --help. */
static inline void parse_both(int argc, char **argv, const known_option *own, size_t num_own,
                              const known_option *common, size_t num_common, void (*help)(void)) {
    begin(argc, argv);
    for (int i = 1; i < argc; i++) {
        if (is_help(argv[i])) {
            help();
            exit(finish(0));
        }
        if (strcmp(argv[i], "--quiet") == 0) quiet = 1;
        else if (!is_among(own, num_own, argv, &i) && !is_among(common, num_common, argv, &i))
            unexpected(argv[i]);
    }
}

static inline void parse_known(int argc, char **argv, const known_option *known, size_t count,
                               void (*help)(void)) {
    parse_both(argc, argv, known, count, NULL, 0, help);
}

/* A program without options, but perhaps with a few values in their places. */
static inline void parse_places(int argc, char **argv, const known_option *places, int count,
                                const char *names, const char *help) {
    begin(argc, argv);
    for (int i = 1; i < argc; i++) {
        if (is_help(argv[i])) {
            printf("usage: " PROGRAM "%s\n\n%s\n  --help    this text\n", names, help);
            exit(finish(0));
        }
        if (i > count || (*argv[i] == '-' && !strchr("0123456789.", argv[i][1]))) unexpected(argv[i]);
        take_value(&places[i - 1], argv[i]);
    }
}

static inline void no_options(int argc, char **argv, const char *help) {
    parse_places(argc, argv, NULL, 0, "", help);
}

/* ------------------------------------------------------------------------------------- progress */

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
   terminals would begin the next row. What does not fit is left out from the end on, in whole parts:
   two blanks stand between them. */
static inline void rewrite_line(const char *line) {
    const int room = terminal_columns() - 1, all = (int)strlen(line);
    int       fits = all < room ? all : room;
    while (fits > 0 && fits < all && strncmp(line + fits, "  ", 2) != 0) fits--;
    fprintf(stderr, "\r%-*.*s%s", room, fits, line, *line ? "" : "\r");
}

/* Say how much time is left, and what is being done, share being 0 to 1: on a terminal each second,
   elsewhere a line every 10 s. A share that falls begins something new. */
static inline void progress(double share, const char *now) {
    static time_t begin, said;
    static double last;
    const time_t  t = time(NULL);
    char          line[256];
    if (!begin || share < last) begin = said = t;
    last = share;
    if (quiet || share <= 0.0 || difftime(t, said) < (on_terminal() ? 1.0 : 10.0)) return;
    const int left = (int)(difftime(t, begin) * (1.0 - share) / share + 0.5);
    said = t;
    snprintf(line, sizeof line, "%d:%02d left  %.223s", left / 60, left % 60, now);
    if (on_terminal()) rewrite_line(line);
    else fprintf(stderr, "%s\n", line);
}

/* With a step of a run: its loss, items per second, and how many steps were skipped. */
static inline void progress_step(double share, const char *run, int step, int steps, double loss,
                                 double rate, const char *items, unsigned long skipped) {
    char now[224];
    snprintf(now, sizeof now, "%.80s  step %d/%d  loss %.3g  %.1f%s %.12s/s  skipped %lu", run, step,
             steps, loss, rate < 1e3 ? rate : rate < 1e6 ? rate * 1e-3 : rate * 1e-6,
             rate < 1e3 ? "" : rate < 1e6 ? "k" : "M", items, skipped);
    progress(share, now);
}

/* The line is empty again. */
static inline void progress_end(void) {
    if (on_terminal() && !quiet) rewrite_line("");
}

/* After which step (or epoch) does a run end? Ctrl-C, of a program that asks, makes it the one at hand. */
static inline int last_of(int last, int now, int all, const char *noun) {
    if (!interrupted || now >= last) return last;
    progress_end();
    fprintf(stderr, PROGRAM ": interrupted: the run ends after %s %d of %d, as with --stop-after %d\n",
            noun, now, all, now);
    return now;
}

#endif /* TRAIN_CLI_H */
