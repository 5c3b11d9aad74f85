/* train_save.h - save and resume for all trainers, and what identifies a run

   It needs amp.h. C and C++. (Inline: not all programs use all of it.)                           */

#ifndef TRAIN_SAVE_H
#define TRAIN_SAVE_H

#include "amp.h"
#include "train_cli.h" /* fail */

#include <string.h>

/* Behind the tensors of a network one without elements, whose name says what else decides how a run
   ends: so amp.h refuses the saved state of a run with another type, seed, schedule, data ... */
static inline amp_result name_run(amp_optimizer *opt, const char *run) {
    amp_tensor t;
    memset(&t, 0, sizeof t);
    t.name = run;
    return amp_optimizer_add(opt, &t);
}

static const char save_help[] = "choose a file that can be written with --save";

/* amp.h's state is all there is: masters, moments, scale and counts. It goes to another file that
   is renamed, so that the program may be killed at any time. */
static inline void save(const amp_optimizer *opt, const char *path) {
    errno = 0;
    const amp_result result = amp_optimizer_save_file(opt, path);
    const char *problem = result == AMP_ERROR_UNSUPPORTED ? "is not a file" : amp_result_string(result);
    if (result == AMP_ERROR_WRITE && errno) cannot_write(path, save_help);
    if (result != AMP_OK) fail(1, path, problem, save_help);
}

/* problem is the desc's: why the file was not loaded. */
static inline void resume(amp_optimizer *opt, const char *path, const char *problem) {
    const amp_result result = amp_optimizer_load_file(opt, path);
    if (result == AMP_ERROR_MISMATCH)
        fail(1, path, problem, "give the other options as when it was saved");
    if (result != AMP_OK) fail(1, path, problem, "give a file that --save wrote");
}

#endif /* TRAIN_SAVE_H */
