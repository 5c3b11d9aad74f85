/* train_files.h - files that are written whole or not at all, and never over what is read

   C and C++. (Inline: not all programs use all of it.)                                           */

#ifndef TRAIN_FILES_H
#define TRAIN_FILES_H

#include "train_cli.h" /* fail, cannot_write, unfinished */

#ifdef F_GETFD /* POSIX */
#include <sys/file.h>
#endif

/* Do two paths lead to one file, by links, too? A terminal is no file. */
static inline int same_file(const char *a, const char *b) {
#ifdef F_GETFD /* POSIX */
    struct stat x, y;
    if (stat(a, &x) == 0 && stat(b, &y) == 0)
        return S_ISREG(x.st_mode) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
#endif
    return strcmp(a, b) == 0;
}

/* Is it in this directory? */
static inline int is_in(const char *path, const char *directory) {
#ifdef F_GETFD
    const char *slash = strrchr(path, '/');
    char        parent[1040];
    struct stat x, y;
    snprintf(parent, sizeof parent, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    return stat(parent, &x) == 0 && stat(directory, &y) == 0 && S_ISDIR(y.st_mode) &&
           x.st_dev == y.st_dev && x.st_ino == y.st_ino;
#else
    (void)path, (void)directory;
    return 0;
#endif
}

/* What option writes at path (or at path.new, before it is whole) must not be what is read, or what
   another option writes, nor beside the files of a directory that is read. NULL is no file. */
static inline void refuse_overwriting(const char *option, const char *path, const char *other) {
    char beside[1120], problem[1200];
    if (!path || !other) return;
    snprintf(beside, sizeof beside, "%s.new", path);
    const int inside = is_in(path, other);
    if (!inside && !same_file(path, other) && !same_file(beside, other)) return;
    snprintf(problem, sizeof problem, "%s %.1000s would %s", option, path,
             inside ? "write among the data" : "overwrite this file");
    fail(2, other, problem, "choose another one to be written");
}

/* Of a trainer: what it learns from and what it continues from stay, but that --save may replace the
   state that --resume has read. */
static inline void keep_inputs(const char *learned, const char *resume, const char *save,
                               const char *report) {
    refuse_overwriting("--save", save, learned);
    refuse_overwriting("--report", report, learned);
    refuse_overwriting("--report", report, resume);
    refuse_overwriting("--report", report, save);
}

/* A file that a run writes again and again is locked until the run ends; another run is refused that. Before
   it writes and after: each time the file may be another one. */
static inline void lock_path(const char *path, int *lock, const char *remedy) {
#ifdef LOCK_EX
    struct stat is, ours;
    if (stat(path, &is) != 0 || !S_ISREG(is.st_mode)) return;
    if (*lock > 0 && fstat(*lock, &ours) == 0 && ours.st_dev == is.st_dev && ours.st_ino == is.st_ino) return;
    const int now = open(path, O_RDWR);
    if (now >= 0 && flock(now, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        fail(1, path, "another run writes it", remedy);
    if (*lock > 0) close(*lock);
    *lock = now;
#else
    (void)path, (void)lock, (void)remedy;
#endif
}

/* A file is written beside its place and moved there when it is whole, so that a run which is
   interrupted, or finds the disk full, leaves the older one. What is no file, as /dev/stdout, is
   written where it is. */
typedef struct output {
    FILE *f;
    char  path[1100], beside[1110]; /* beside: "", where it is written in its place */
} output;

static inline output open_output(const char *path, const char *remedy) {
    output o;
    int    in_place = 0;
    if (snprintf(o.path, sizeof o.path, "%s", path) >= (int)sizeof o.path)
        fail(2, path, "is too long a path", "choose a shorter one");
#ifdef F_GETFD
    struct stat is;
    in_place = stat(path, &is) == 0 && !S_ISREG(is.st_mode);
#endif
    snprintf(o.beside, sizeof o.beside, "%s%s", in_place ? "" : o.path, in_place ? "" : ".new");
    o.f = fopen(in_place ? o.path : o.beside, "wb");
    if (!o.f) cannot_write(path, remedy);
    strcpy(unfinished, o.beside);
    return o;
}

static inline void close_output(output *o, int keep, const char *remedy) {
    int good = arrived(o->f), error = errno;
    if (fclose(o->f) != 0 && good) good = 0, error = errno;
#ifdef _WIN32
    if (good && keep) remove(o->path);
#endif
    if (good && keep && *o->beside && rename(o->beside, o->path) != 0) good = 0, error = errno;
    if (*o->beside && !(good && keep)) remove(o->beside);
    *unfinished = '\0';
    errno       = error;
    if (keep && !good) cannot_write(o->path, remedy);
}

#endif /* TRAIN_FILES_H */
