/* driver.c - main for a fuzzer where the compiler has no libFuzzer: it replays cases, and makes new
   ones of them without looking at what code they reach. It also turns a corpus of text into the
   files that libFuzzer wants.

   A path is a directory of cases, a file that is one case, or (*.txt) a corpus: one case a line,
       01 ff "text with \n, \x00, \" and \\" 00   # bytes in hex, texts; what the case is for
   A case that fails is written to the directory of --out, and told as libFuzzer tells it. */

#define _POSIX_C_SOURCE 200112L /* opendir, alarm */
#include "../../support/random.h"
#include "fuzz.h"

#include <ctype.h>
#include <dirent.h>
#include <signal.h>
#include <time.h>
#include <unistd.h> /* alarm */

enum { MAX_CASE = 4096, MAX_SECONDS_OF_A_CASE = 20 };

typedef struct fuzz_case {
    uint8_t *bytes;
    size_t   size;
    char     from[512]; /* file, line and comment */
} fuzz_case;

static struct {
    fuzz_case  *cases;
    size_t      num_cases, capacity;
    const char *out;
    uint8_t     bytes[MAX_CASE]; /* the case that is running */
    size_t      size;
    const char *from;
} driver = {NULL, 0, 0, ".", {0}, 0, ""};

static void give_up(const char *what, const char *which) {
    fprintf(stderr, "%s %s\n", what, which);
    exit(2);
}

/* ------------------------------------------------------------------------------------- corpora */

static void add_case(const uint8_t *bytes, size_t size, const char *from) {
    fuzz_case *c;
    if (size > MAX_CASE) give_up("case too long:", from);
    if (driver.num_cases == driver.capacity) {
        driver.capacity = driver.capacity ? 2 * driver.capacity : 64;
        driver.cases    = (fuzz_case *)realloc(driver.cases, driver.capacity * sizeof *c);
    }
    c        = &driver.cases[driver.num_cases++];
    c->bytes = (uint8_t *)malloc(size + 1);
    c->size  = size;
    memcpy(c->bytes, bytes, size);
    snprintf(c->from, sizeof c->from, "%s", from);
}

static int hex_byte(const char *s) {
    char digits[3] = {0, 0, 0};
    if (!isxdigit((unsigned char)s[0]) || !isxdigit((unsigned char)s[1])) return -1;
    memcpy(digits, s, 2);
    return (int)strtol(digits, NULL, 16);
}

/* One character of a text in quotes; returns the number of characters read, 0 if it makes none. */
static size_t escaped(const char *s, uint8_t *byte) {
    static const char letters[] = "ntr\"\\", meanings[] = "\n\t\r\"\\";
    const char       *found;
    *byte = (uint8_t)s[0];
    if (s[0] != '\\') return 1;
    if (s[1] == 'x' && hex_byte(s + 2) >= 0) {
        *byte = (uint8_t)hex_byte(s + 2);
        return 4;
    }
    found = s[1] ? strchr(letters, s[1]) : NULL;
    if (found) *byte = (uint8_t)meanings[found - letters];
    return found ? 2 : 0;
}

/* The bytes of one line; returns where its comment begins, or NULL if it cannot be read. */
static const char *read_line(const char *s, uint8_t *bytes, size_t *size) {
    int quoted = 0;
    for (*size = 0; *s && *s != '\n' && *size < MAX_CASE;) {
        size_t length = 1;
        if (*s == '"') {
            quoted = !quoted;
        } else if (quoted) {
            length = escaped(s, &bytes[*size]);
            if (!length) return NULL;
            ++*size;
        } else if (*s == '#') {
            return s + 1;
        } else if (!isspace((unsigned char)*s)) {
            if (hex_byte(s) < 0) return NULL;
            bytes[(*size)++] = (uint8_t)hex_byte(s);
            length           = 2;
        }
        s += length;
    }
    return quoted ? NULL : s;
}

static void add_text(const char *path) {
    FILE   *file = fopen(path, "r");
    uint8_t bytes[MAX_CASE];
    char    line[4 * MAX_CASE], from[512];
    size_t  size;
    int     number = 0;
    if (!file) give_up("cannot read", path);
    while (fgets(line, sizeof line, file)) {
        const char *comment = read_line(line, bytes, &size);
        line[strcspn(line, "\n")] = '\0';
        snprintf(from, sizeof from, "%.200s:%d%.200s", path, ++number, comment ? comment : "");
        if (!comment) give_up("cannot read", from);
        if (size) add_case(bytes, size, from);
    }
    fclose(file);
}

static void add_file(const char *path) {
    FILE   *file = fopen(path, "rb");
    uint8_t bytes[MAX_CASE];
    if (!file) give_up("cannot read", path);
    add_case(bytes, fread(bytes, 1, sizeof bytes, file), path);
    fclose(file);
}

static void add_path(const char *path) {
    const size_t   length    = strlen(path);
    DIR           *directory = opendir(path);
    struct dirent *entry;
    char           file[512];
    if (!directory) {
        if (length > 4 && strcmp(path + length - 4, ".txt") == 0) add_text(path);
        else add_file(path);
        return;
    }
    while ((entry = readdir(directory)) != NULL) {
        if (entry->d_name[0] == '.') continue;
        snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        add_file(file);
    }
    closedir(directory);
}

static void export_cases(const char *directory) {
    char   path[512];
    size_t i;
    for (i = 0; i < driver.num_cases; i++) {
        FILE *file;
        snprintf(path, sizeof path, "%s/case-%04d", directory, (int)i);
        file = fopen(path, "wb");
        if (!file || fwrite(driver.cases[i].bytes, 1, driver.cases[i].size, file) !=
                         driver.cases[i].size)
            give_up("cannot write", path);
        fclose(file);
    }
}

/* ------------------------------------------------------------------------------------- failures */

/* abort, a sanitizer that ends with abort, or a case that takes too long: keep the case. What is
   called here is not all safe in a signal handler, but the program is lost anyway. */
static void on_failure(int number) {
    uint32_t hash = 2166136261u;
    char     path[512];
    FILE    *file;
    size_t   i;
    for (i = 0; i < driver.size; i++) hash = (hash ^ driver.bytes[i]) * 16777619u;
    snprintf(path, sizeof path, "%s/crash-%08lx", driver.out, (unsigned long)hash);
    file = fopen(path, "wb");
    if (file) {
        fwrite(driver.bytes, 1, driver.size, file);
        fclose(file);
    }
    if (number == SIGALRM)
        fprintf(stderr, "property violated: a case takes less than %d s\n", MAX_SECONDS_OF_A_CASE);
    fprintf(stderr, "case: %s\nTest unit written to %s\n", driver.from, path);
    signal(number, SIG_DFL);
    raise(number);
}

static void watch_for_failures(void) {
    static const int numbers[] = {SIGABRT, SIGALRM, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    size_t           i;
    for (i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        void (*before)(int) = signal(numbers[i], on_failure);
        if (before != SIG_DFL) signal(numbers[i], before); /* a sanitizer knows more, then aborts */
    }
}

static void run_case(const uint8_t *bytes, size_t size, const char *from) {
    uint8_t *exact = (uint8_t *)malloc(size ? size : 1); /* for the sanitizer to see its end */
    if (bytes != driver.bytes) memcpy(driver.bytes, bytes, size);
    driver.size = size;
    driver.from = from;
    memcpy(exact, bytes, size);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
}

/* ------------------------------------------------------------------------------------ mutations */

/* Make room for, or cut out, n bytes at a place. */
static void insert_bytes(size_t at, size_t n) {
    if (n > MAX_CASE - driver.size) return;
    memmove(driver.bytes + at + n, driver.bytes + at, driver.size - at);
    driver.size += n;
}

static void delete_bytes(size_t at, size_t n) {
    if (n > driver.size - at) n = driver.size - at;
    memmove(driver.bytes + at, driver.bytes + at + n, driver.size - at - n);
    driver.size -= n;
}

static void write_number(size_t at) {
    static const uint64_t numbers[] = {
        0, 1, 2, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff, 0x7fffffff, 0x80000000u, 0xffffffffu,
        0x3f800000, 0xbf800000u, 0x7f800000, 0xff800000u, 0x7fc00000, 0x7f7fffff, 0x00800000,
        0x3ff0000000000000u, 0x7ff0000000000000u, 0x7ff8000000000000u, 0x8000000000000000u,
        0x7fffffffffffffffu, 0xffffffffffffffffu};
    const uint64_t x = numbers[random_below(sizeof numbers / sizeof numbers[0])];
    const size_t   n = (size_t)1 << random_below(4);
    size_t         i;
    for (i = 0; i < n && at + i < driver.size; i++) driver.bytes[at + i] = (uint8_t)(x >> 8 * i);
}

static void mutate(void) {
    const fuzz_case *other = &driver.cases[random_below(driver.num_cases)];
    const size_t     at    = random_below(driver.size + 1);
    const size_t     n     = 1 + random_below(8);
    size_t           i, from, length;
    switch (random_below(8)) {
    case 0:
        if (at < driver.size) driver.bytes[at] ^= (uint8_t)(1u << random_below(8));
        break;
    case 1:
        if (at < driver.size) driver.bytes[at] = (uint8_t)random_bits();
        break;
    case 2: write_number(at); break;
    case 3: delete_bytes(at, n); break;
    case 4:
        insert_bytes(at, n);
        for (i = at; i < at + n && i < driver.size; i++) driver.bytes[i] = (uint8_t)random_bits();
        break;
    case 5: /* a piece of another case, over this one */
        from = random_below(other->size);
        for (i = 0; i < n && at + i < driver.size && from + i < other->size; i++)
            driver.bytes[at + i] = other->bytes[from + i];
        break;
    case 6: /* this case to here, another from there */
        from   = random_below(other->size);
        length = other->size - from;
        if (length > MAX_CASE - at) length = MAX_CASE - at;
        memcpy(driver.bytes + at, other->bytes + from, length);
        driver.size = at + length;
        break;
    default: /* once more what is here */
        length = n < driver.size - at ? n : driver.size - at;
        insert_bytes(at, length);
        break;
    }
}

static void fuzz(long seconds) {
    const time_t  start = time(NULL);
    unsigned long runs  = 0;
    while (time(NULL) - start < seconds) {
        int batch;
        alarm(MAX_SECONDS_OF_A_CASE);
        for (batch = 0; batch < 64; batch++, runs++) {
            const fuzz_case *c = &driver.cases[random_below(driver.num_cases)];
            size_t           mutations;
            if (random_below(4) == 0 || driver.size == 0) { /* else go on from the last case */
                memcpy(driver.bytes, c->bytes, c->size);
                driver.size = c->size;
            }
            for (mutations = 1 + random_below(6); mutations; mutations--) mutate();
            run_case(driver.bytes, driver.size, "made by driver.c");
        }
    }
    alarm(0);
    printf("Done %lu runs in %ld second(s)\n", runs, (long)(time(NULL) - start));
}

int main(int argc, char **argv) {
    long        seconds   = 0;
    const char *directory = NULL;
    size_t      i;
    int         a;
    for (a = 1; a < argc; a++) {
        if (strcmp(argv[a], "--seconds") == 0 && a + 1 < argc) seconds = atol(argv[++a]);
        else if (strcmp(argv[a], "--seed") == 0 && a + 1 < argc)
            random_state = strtoul(argv[++a], NULL, 0);
        else if (strcmp(argv[a], "--out") == 0 && a + 1 < argc) driver.out = argv[++a];
        else if (strcmp(argv[a], "--export") == 0 && a + 1 < argc) directory = argv[++a];
        else if (argv[a][0] != '-') add_path(argv[a]);
        else give_up("usage: [--seconds N] [--seed S] [--out DIR] [--export DIR] PATH..., not",
                     argv[a]);
    }
    if (!driver.num_cases) give_up("no cases", "");
    if (directory) {
        export_cases(directory);
        return 0;
    }
    watch_for_failures();
    for (i = 0; i < driver.num_cases; i++) {
        alarm(MAX_SECONDS_OF_A_CASE);
        run_case(driver.cases[i].bytes, driver.cases[i].size, driver.cases[i].from);
    }
    alarm(0);
    if (seconds > 0) fuzz(seconds);
    else printf("Done %lu runs\n", (unsigned long)driver.num_cases);
    return 0;
}
