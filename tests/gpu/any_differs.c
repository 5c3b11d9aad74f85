/* any_differs.c - the first number of each case in which two files of any_cuda.cu differ

   usage: any_differs EXPECTED FOUND       Exits with 1 if they differ, with 2 if one is none. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct record {
    char               what[160], name[160]; /* name: the case, its first word */
    unsigned           size;
    unsigned long long n;
    unsigned char     *bytes;
} record;

static void fail(const char *file, const char *why) {
    fprintf(stderr, "any_differs: %s: %s\n", file, why);
    exit(2);
}

/* Reads the next record; 0: there is none. */
static int next(FILE *f, const char *file, record *r) {
    char  line[200], *behind;
    size_t size;
    free(r->bytes);
    r->bytes = NULL;
    if (!fgets(line, sizeof line, f)) return 0;
    behind = strrchr(line, ':');
    if (!behind || behind - line >= (long)sizeof r->what ||
        sscanf(behind, ": %u x %llu", &r->size, &r->n) != 2 || sscanf(line, "%159s", r->name) != 1)
        fail(file, "is not any_cuda's");
    *behind = '\0';
    strcpy(r->what, line);
    size     = r->size * (size_t)r->n;
    r->bytes = (unsigned char *)malloc(size + 1);
    if (!r->bytes || fread(r->bytes, 1, size, f) != size) fail(file, "ends early");
    return 1;
}

/* As hexadecimal and, if it may be one, as a number. */
static void print(const record *r, unsigned long long i) {
    const unsigned char *p = r->bytes + i * r->size;
    unsigned long long   u = 0;
    double               d;
    float                f;
    unsigned             b;
    for (b = r->size; b-- > 0;) u = u << 8 | p[b];
    printf("0x%0*llx", (int)(2 * r->size), u);
    if (r->size == 4) memcpy(&f, p, 4), printf(" (%.9g)", (double)f);
    if (r->size == 8) memcpy(&d, p, 8), printf(" (%.17g)", d);
}

int main(int argc, char **argv) {
    record             a, b;
    char               told[160] = ""; /* the last case of which a number was named */
    unsigned long long off = 0, bytes = 0, cases = 0, i, k;
    FILE              *f, *g;
    int                more, other;
    memset(&a, 0, sizeof a), memset(&b, 0, sizeof b);
    if (argc != 3) return fprintf(stderr, "usage: any_differs EXPECTED FOUND\n"), 2;
    f = fopen(argv[1], "rb"), g = fopen(argv[2], "rb");
    if (!f || !g) fail(argv[f ? 2 : 1], "cannot be read");
    for (;;) {
        char last[160];
        strcpy(last, a.name);
        more = next(f, argv[1], &a), other = next(g, argv[2], &b);
        if (!more && !other) break;
        if (more != other) fail(argv[more ? 2 : 1], "has fewer cases");
        if (strcmp(a.what, b.what) || a.size != b.size || a.n != b.n) {
            printf("%s: expected, and found: %s\n", a.what, b.what);
            return 1;
        }
        cases += strcmp(last, a.name) != 0;
        bytes += a.n * a.size;
        for (i = 0; i < a.n; i++) {
            const unsigned long long before = off;
            for (k = i * a.size; k < (i + 1) * a.size; k++) off += a.bytes[k] != b.bytes[k];
            if (off == before || strcmp(told, a.name) == 0) continue;
            strcpy(told, a.name);
            printf("%s [%llu] of %llu: expected ", a.what, i, a.n);
            print(&a, i), printf(", found "), print(&b, i), printf("\n");
        }
    }
    if (cases == 0) fail(argv[1], "has no case");
    printf("%llu cases, %llu bytes, %llu bytes off\n", cases, bytes, off);
    return off != 0;
}
