/* report_damage.c - examples/report.c on damaged files: it ends with a line or a page, and no page
   holds a tag that is not its own
   usage: report_damage LINES COUNT [FIRST]   damages LINES in COUNT ways, all different; says how
                                              many became pages                                  */

#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char    bytes[1 << 17];
static size_t  size;
static FILE   *file;
static void   *kept[4096];
static jmp_buf ended;

static FILE *open_bytes(void) { return file = fmemopen(bytes, size, "rb"); }
static int   close_bytes(FILE *f) { return file = NULL, fclose(f); }

static void *keep(void *old, size_t n) { /* realloc; what a file leaves is freed behind it */
    size_t k = 0;
    while (kept[k] != old) k++;
    return kept[k] = realloc(old, n);
}

static void drop(void *p) {
    size_t k = 0;
    while (p && kept[k] != p) k++;
    if (p) kept[k] = NULL;
    free(p);
}

#define fopen(path, mode) open_bytes()
#define fclose close_bytes
#define realloc keep
#define free drop
#define exit(code) longjmp(ended, (code) + 1)
#define main report_main
int report_main(int argc, char **argv);
#include "../../examples/report.c"
#undef fopen
#undef fclose
#undef realloc
#undef free
#undef exit
#undef main

static uint64_t dice;
static size_t   below(size_t n) {
    dice = dice * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(dice >> 33) % n;
}

static void damage(void) {
    static const char *const words[] = {
        "<script>", "'><img src=x onerror=1>", "\"", "\\", "\\u003c", "\\u", "1e999", "-1e308", "1e18",
        "-7", "99999999999999999999", "null", "[[[[[[[[[[[[", "{", "}", "]", ",", ":", "\xff\xfe", "\n",
        "</script>", "e", "0.5", "\"iterations\":1", "\"f16_small\":1e9", "\"headroom\":-1e9"};
    for (size_t times = 1 + below(4); times && size > 99; times--) {
        const size_t at = below(size - 64), n = below(64), how = below(6);
        if (how == 0) size = at + 1;
        if (how == 1) bytes[at] = (char)below(256);
        if (how == 2) memmove(bytes + at, bytes + at + n, size -= at + n), size += at;
        if (how > 2) {
            const char  *word = words[below(sizeof words / sizeof *words)];
            const size_t length = strlen(word), over = how > 4 ? 0 : length;
            memmove(bytes + at + length, bytes + at + over, size - at - over);
            memcpy(bytes + at, word, length);
            size += length - over;
        }
    }
}

/* Every tag is one of the page's own, and there are as many scripts: of names, of each chart, of each
   map, and the last. */
static int clean(const char *page) {
    const int wanted = 4 + (runs[0].num_losses > 0) + num_runs;
    static const char own[] = " !doctype html head meta link title style body h1 h2 p dl dt dd div b "
                              "ul li small span svg path i u script table thead tbody tr th td ";
    int scripts = 0;
    for (const char *p = page; (p = strchr(p, '<')) != NULL;) {
        char name[16];
        p += 1 + (p[1] == '/');
        sprintf(name, " %.*s ", (int)(strcspn(p, " >") < 12 ? strcspn(p, " >") : 12), p);
        if (!strstr(own, name)) return 0;
        scripts += p[-1] == '<' && strncmp(p, "script", 6) == 0;
    }
    return scripts == wanted && !strstr(page, "onerror=1>");
}

int main(int argc, char **argv) {
    static char whole[1 << 16];
    FILE       *f = argc > 2 ? fopen(argv[1], "rb") : NULL;
    const size_t all = f ? fread(whole, 1, sizeof whole, f) : 0;
    const long   first = argc > 3 ? atol(argv[3]) : 0, count = argc > 2 ? atol(argv[2]) : 0;
    long         pages = 0;
    if (!all || !freopen("/dev/null", "w", stderr)) return 2;
    fclose(f);
    for (volatile long i = first; i < first + count; i++) {
        static char     *page;
        static size_t    length;
        static FILE     *to;
        memset(runs, 0, sizeof runs);
        num_runs = 1;
        dice = (uint64_t)i * 2654435761u + 1;
        memcpy(bytes, whole, size = all);
        damage();
        if (!setjmp(ended)) {
            read_run(&runs[0], "damaged");
            if (i % 4 == 3) runs[num_runs++] = runs[0]; /* two, laid over each other */
            name_runs();
            to = open_memstream(&page, &length);
            write_page(to, i % 2 ? html_of("a \\", 3) : runs[0].name);
            fclose(to);
            pages++;
            if (!clean(page)) return printf("case %ld: the page has a tag of the data\n", i), 1;
            free(page);
        }
        if (file) close_bytes(file);
        for (size_t k = 0; k < sizeof kept / sizeof *kept; k++) free(kept[k]), kept[k] = NULL;
    }
    printf("%ld damaged files, %ld pages\n", count, pages);
    return 0;
}
