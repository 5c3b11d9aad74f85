/* train_data.h - the images that train.c and cnn.c learn from

   load_data reads Fashion-MNIST's four IDX files or a table of 8x8 digits, plain or .gz. A bad file
   ends the program through fail, with one line that names the file, the problem and the remedy.
   With AMP_ZLIB (link with -lz) zlib unpacks .gz, else the gzip program. Include it before other
   headers, since it asks for POSIX.                                                              */

#ifndef TRAIN_DATA_H
#define TRAIN_DATA_H

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L /* popen, isatty, mkdir */
#endif

#include "train_cli.h"     /* fail */
#include "train_numbers.h" /* need, random_u64 */

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#ifdef AMP_ZLIB
#include <zlib.h>
#endif

#define DIGITS "examples/digits/digits.csv.gz" /* where this repository is */
#define FASHION_DIR "/usr/share/datasets/fashion-mnist" /* of Debian's dataset-fashion-mnist */

enum { NUM_CLASSES = 10, FASHION_TRAIN = 6000, FASHION_TEST = 2000 };

typedef struct dataset {
    char   name[512];                         /* says what the images are, in one line */
    size_t num_train, num_test, side, pixels; /* pixels = side * side                  */
    float *image;                             /* 0..1; the held-out images come last   */
    int   *label;                             /* 0..9                                  */
} dataset;

/* ---------------------------------------------------------------------------------- the system */

#ifndef AMP_ZLIB
#if defined(__unix__) || defined(__APPLE__)
static FILE *gzip_open(const char *path) {
    char *command = (char *)need(4 * strlen(path) + 64, 1), *p = command;
    p += sprintf(p, "exec gzip -dc 2>/dev/null < '");
    for (; *path; path++) { /* inside single quotes, only the single quote is special */
        if (*path == '\'') p += sprintf(p, "'\\''");
        else *p++ = *path;
    }
    *p      = '\'';
    FILE *f = popen(command, "r");
    free(command);
    return f;
}

static int gzip_close(FILE *f) { return pclose(f); }
#else
static FILE *gzip_open(const char *path) {
    fail(1, path, "cannot unpack .gz here", "unpack it, or compile with -DAMP_ZLIB and -lz");
    return NULL;
}

static int gzip_close(FILE *f) { return fclose(f); }
#endif
#endif

/* --------------------------------------------------------------------------------------- files */

#ifndef DATA_HELP
#define DATA_HELP "set --data (or AMP_DATA) to digits, fashion, a directory with Fashion-MNIST's four " \
                  "IDX files, or a digits .csv or .csv.gz"
#endif
static const char data_help[] = DATA_HELP;

static int ends_with(const char *s, const char *end) {
    const size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

static int file_exists(const char *path) {
    FILE *f = fopen(path, "rb");
    if (f) fclose(f);
    return f != NULL;
}

/* A stream unpacks on the way if its name ends in .gz: gzread does, or a pipe from gzip. */
#ifdef AMP_ZLIB
typedef gzFile stream;

static stream stream_open(const char *path) { return gzopen(path, "rb"); }
static size_t stream_read(stream s, void *bytes, unsigned count) {
    const int got = gzread(s, bytes, count);
    return got > 0 ? (size_t)got : 0;
}

static int stream_close(stream s, const char *path) {
    int error;
    (void)path;
    gzerror(s, &error);
    return gzclose(s) == Z_OK && error == Z_OK;
}
#else
typedef FILE *stream;

static stream stream_open(const char *path) {
    return ends_with(path, ".gz") ? gzip_open(path) : fopen(path, "rb");
}

static size_t stream_read(stream s, void *bytes, unsigned count) {
    return fread(bytes, 1, count, s);
}

static int stream_close(stream s, const char *path) {
    const int good = !ferror(s);
    return (ends_with(path, ".gz") ? gzip_close(s) : fclose(s)) == 0 && good;
}
#endif

/* The whole file, followed by a 0 byte. */
static unsigned char *read_file(const char *path, size_t *size) {
    const size_t   piece = 1 << 15;
    size_t         room = 2 * piece, got;
    unsigned char *bytes = (unsigned char *)need(room, 1);
    stream         s     = file_exists(path) ? stream_open(path) : NULL;
    if (!s) fail(1, path, strerror(errno ? errno : ENOENT), data_help);
    for (*size = 0; (got = stream_read(s, bytes + *size, (unsigned)piece)) > 0;) {
        *size += got;
        if (*size > 1 << 30) fail(1, path, "is longer than 1 GB", data_help);
        if (room - *size <= piece) {
            unsigned char *more = (unsigned char *)realloc(bytes, room *= 2);
            if (!more) fail(1, path, "too large for the memory", data_help);
            bytes = more;
        }
    }
    bytes[*size] = 0;
    if (!stream_close(s, path))
        fail(1, path, "cannot be read to its end (truncated, not a file, or no gzip here)",
             "fetch it again, or unpack it and give the plain file");
    return bytes;
}

static void make_room(dataset *d, size_t num_train, size_t num_test, size_t side) {
    d->num_train = num_train;
    d->num_test  = num_test;
    d->side      = side;
    d->pixels    = side * side;
    d->image     = (float *)need((num_train + num_test) * d->pixels, sizeof(float));
    d->label     = (int *)need(num_train + num_test, sizeof(int));
}

/* ------------------------------------------------------------------------------ Fashion-MNIST */

static size_t big_endian(const unsigned char *p) {
    return ((size_t)p[0] << 24) | ((size_t)p[1] << 16) | ((size_t)p[2] << 8) | p[3];
}

/* One IDX file: 0 0 8 3, count, rows, columns, pixels; or 0 0 8 1, count, labels. The items begin
   after the 4 + 4 dims bytes of the header; the caller frees the file. */
static unsigned char *read_idx(const char *dir, const char *part, size_t dims, size_t *count) {
    const size_t header = 4 + 4 * dims, item = dims == 3 ? 28 * 28 : 1;
    char         path[1024], problem[160];
    size_t       size;
    if (strlen(dir) + 64 > sizeof path) fail(1, dir, "path too long", data_help);
    sprintf(path, "%s/%s-%s-ubyte", dir, part, dims == 3 ? "images-idx3" : "labels-idx1");
    if (!file_exists(path)) strcat(path, ".gz");
    if (!file_exists(path)) fail(1, path, "is not there, nor without .gz", data_help);
    unsigned char *file = read_file(path, &size);
    if (size < header || big_endian(file) != 0x800 + dims)
        fail(1, path, dims == 3 ? "is not an IDX file of images (it does not begin with 0 0 8 3)"
                                : "is not an IDX file of labels (it does not begin with 0 0 8 1)",
             data_help);
    if (dims == 3 && (big_endian(file + 8) != 28 || big_endian(file + 12) != 28))
        fail(1, path, "does not hold images of 28x28 pixels", data_help);
    *count = big_endian(file + 4);
    if (size - header != *count * item) {
        sprintf(problem, "has %lu bytes, but its header promises %lu", (unsigned long)size,
                (unsigned long)(header + *count * item));
        fail(1, path, problem, "it is truncated or damaged: fetch it again");
    }
    return file;
}

/* The first `use` images of one part go to place `first`; returns how many the files have. */
static size_t read_part(dataset *d, const char *dir, const char *part, size_t first, size_t use) {
    size_t         num_images, num_labels;
    unsigned char *images = read_idx(dir, part, 3, &num_images);
    unsigned char *labels = read_idx(dir, part, 1, &num_labels);
    if (num_images != num_labels || num_images < use)
        fail(1, dir, "too few images, or not as many labels as images", data_help);
    for (size_t i = 0; i < use * d->pixels; i++)
        d->image[first * d->pixels + i] = (float)images[16 + i] / 255.0f;
    for (size_t i = 0; i < use; i++) {
        d->label[first + i] = labels[8 + i];
        if (labels[8 + i] >= NUM_CLASSES) fail(1, dir, "a label is not in 0..9", data_help);
    }
    free(images);
    free(labels);
    return num_images;
}

static void load_fashion(dataset *d, const char *dir) {
    make_room(d, FASHION_TRAIN, FASHION_TEST, 28);
    const size_t of_train = read_part(d, dir, "train", 0, FASHION_TRAIN);
    const size_t of_test  = read_part(d, dir, "t10k", FASHION_TRAIN, FASHION_TEST);
    snprintf(d->name, sizeof d->name,
             "IDX images in %.300s: the first %d of %lu to train, the first %d of %lu held out",
             dir, FASHION_TRAIN, (unsigned long)of_train, FASHION_TEST, (unsigned long)of_test);
}

/* ------------------------------------------------------------------------------------- digits */

/* One row, 64 pixels of 0..16 and a label; returns its end, or NULL if it is anything else. */
static char *parse_row(char *p, float *image, int *label) {
    for (int i = 0; i < 65; i++) {
        char      *end;
        const long x = strtol(p, &end, 10);
        if (end == p || x < 0 || x > (i < 64 ? 16 : 9)) return NULL;
        if (i < 64 ? *end != ',' : *end != '\n' && *end != '\r' && *end != 0) return NULL;
        if (i < 64) image[i] = (float)x / 16.0f;
        else *label = (int)x;
        p = end + (i < 64);
    }
    while (*p == '\r' || *p == '\n') p++;
    return p;
}

/* Every fifth digit is held out, so that both parts have digits of all writers. */
static void load_digits(dataset *d, const char *path) {
    size_t size, rows = 0;
    char  *table = (char *)read_file(path, &size), *p = table, problem[96];
    for (size_t i = 0; i < size; i++) rows += table[i] == '\n';
    rows += size > 0 && table[size - 1] != '\n';
    if (rows < 50) fail(1, path, "has fewer than 50 rows", data_help);
    make_room(d, rows - rows / 5, rows / 5, 8);
    for (size_t row = 0, train = 0, test = d->num_train; row < rows; row++) {
        const size_t to = row % 5 == 4 ? test++ : train++;
        p = parse_row(p, d->image + to * d->pixels, &d->label[to]);
        if (!p) {
            sprintf(problem, "row %lu is not 64 pixels of 0..16 and a label of 0..9",
                    (unsigned long)row + 1);
            fail(1, path, problem, data_help);
        }
    }
    free(table);
    snprintf(d->name, sizeof d->name, "%lu digits of 8x8 pixels in %.300s, every fifth held out",
             (unsigned long)rows, path);
}

/* choice is --data; else AMP_DATA, else Debian's Fashion-MNIST, else this repository's digits. */
static const char *data_path(const char *choice) {
    if (!choice) choice = getenv("AMP_DATA");
    if (!choice || !*choice)
        choice = file_exists(FASHION_DIR "/train-images-idx3-ubyte.gz") ? "fashion" : "digits";
    return strcmp(choice, "digits") == 0 ? DIGITS : strcmp(choice, "fashion") == 0 ? FASHION_DIR : choice;
}

static void load_data(dataset *d, const char *choice) {
    const char *path = data_path(choice);
    struct stat is;
    if (strcmp(path, DIGITS) == 0 && !file_exists(DIGITS))
        fail(1, DIGITS, "is not below this directory", "run this in the directory of amp.h");
    if (strcmp(path, FASHION_DIR) == 0) load_fashion(d, FASHION_DIR);
    else if (ends_with(path, ".csv") || ends_with(path, ".csv.gz")) load_digits(d, path);
    else if (stat(path, &is) != 0) fail(1, path, strerror(errno), data_help);
    else if (!S_ISDIR(is.st_mode))
        fail(1, path, "is neither a directory nor a .csv or .csv.gz", data_help);
    else load_fashion(d, path);
}

/* Of the images: a part of what identifies a run. */
static inline unsigned long checksum(const dataset *data) {
    unsigned long sum = 2166136261u; /* FNV-1a */
    for (size_t i = 0; i < (data->num_train + data->num_test) * data->pixels; i++)
        sum = ((sum ^ (unsigned long)(data->image[i] * 255.0f)) * 16777619u) & 0xffffffffu;
    return sum;
}

#endif /* TRAIN_DATA_H */
