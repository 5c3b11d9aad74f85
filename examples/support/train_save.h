/* train_save.h - save and resume for all trainers, and what identifies a run

   It needs amp.h. C and C++. (Inline: not all programs use all of it.)                           */

#ifndef TRAIN_SAVE_H
#define TRAIN_SAVE_H

#include "amp.h"
#include "train_files.h" /* fail, lock_path */

#include <string.h>

enum { RUN_SIZE = 256, ALL_TYPES = AMP_BF16 + 1 };
static const char *const type_names[] = {"fp32", "fp16", "bf16", "all", NULL}; /* as amp_dtype */

/* Behind the tensors of a network one without elements, whose name says what decides how a run ends:
   "run of PROGRAM --option value ... ;", so that no state of another run is loaded. */
static inline amp_result name_run(amp_optimizer *opt, const char *run) {
    amp_tensor t;
    memset(&t, 0, sizeof t);
    t.name = run;
    return amp_optimizer_add(opt, &t);
}

static const char save_help[]   = "choose a file that can be written with --save";
static const char resume_help[] = "give a file that --save wrote";

/* amp.h's state is all there is: masters, moments, scale and counts. It goes to another file that
   is renamed, so that the program may be killed at any time. */
static inline void save(const amp_optimizer *opt, const char *path) {
    static int lock;
    lock_path(path, &lock, save_help);
    errno = 0;
    const amp_result result = amp_optimizer_save_file(opt, path);
    if (result == AMP_ERROR_WRITE && errno) cannot_write(path, save_help);
    if (result != AMP_OK)
        fail(1, path, result == AMP_ERROR_UNSUPPORTED ? "is not a file"
                      : result == AMP_ERROR_TOO_LARGE ? "is too long a path" : amp_result_string(result),
             save_help);
    lock_path(path, &lock, save_help);
}

/* Of which run is the state in a file? The first option in which it differs from this one is the end. */
static inline void refuse_other_run(const char *path, const char *run) {
    char   there[RUN_SIZE], key[32], other[32], was[96], is[96], problem[320];
    size_t at = 0;
    int    c, n = 0, m = 0;
    FILE  *f = fopen(path, "rb");
    if (!f) fail(1, path, strerror(errno), resume_help);
    c = fread(there, 1, 8, f) == 8 && memcmp(there, "AMPSTATE", 8) == 0 ? 0 : EOF;
    while (c != EOF && (c = getc(f)) != EOF && at + 1 < sizeof there && (at < 7 || c != ';')) {
        if (at < 7 && c != run[at]) at = 0; /* "run of " */
        if (at >= 7 || c == run[at]) there[at++] = (char)c;
    }
    if (ferror(f)) fail(1, path, strerror(errno), resume_help);
    fclose(f);
    there[at] = '\0';
    for (const char *a = there + 4, *b = run + 4; at > 7; a += n, b += m) { /* "of PROGRAM" and so on */
        if (sscanf(a, "%31s %95[^ ;]%n", key, was, &n) != 2 || sscanf(b, "%31s %95[^ ;]%n", other, is, &m) != 2)
            break;
        if (strcmp(was, is) == 0 && strcmp(key, other) == 0) continue;
        if (strcmp(key, "of") == 0) sprintf(problem, "was saved by %s, not by " PROGRAM, was);
        else sprintf(problem, "was saved by " PROGRAM " with %s %s, and here it is %s", key, was, is);
        fail(1, path, problem, "give the other options as when it was saved");
    }
}

static inline void resume(amp_optimizer *opt, const char *path, const char *run) {
    refuse_other_run(path, run);
    if (amp_optimizer_load_file(opt, path) != AMP_OK) fail(1, path, amp_problem(), resume_help);
}

#endif /* TRAIN_SAVE_H */
