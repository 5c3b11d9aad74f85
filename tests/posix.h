/* posix.h - what tests need of POSIX: the environment, directories, processes. On Windows the first
   two under the same names, so that one test serves both; HAVE_POSIX is 0 for what is missing. */

#ifndef POSIX_H_INCLUDED
#define POSIX_H_INCLUDED

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(_WIN32)
#define HAVE_POSIX 0
#include <direct.h>  /* _mkdir, _rmdir */
#include <process.h> /* _getpid */

/* A value that is empty removes the variable: there, the two are the same. */
static inline int setenv(const char *name, const char *value, int overwrite) {
    (void)overwrite;
    return _putenv_s(name, value);
}
static inline int unsetenv(const char *name) { return _putenv_s(name, ""); }

#define mkdir(path, mode) _mkdir(path)
#define geteuid()         0 /* as root: a directory without permission is not tested */
#else
#define HAVE_POSIX 1
#include <sys/resource.h> /* setrlimit: a disk that is full */
#include <sys/wait.h>
#endif
#define POSIX_WHY "no fork, file size limits, file modes, symbolic links or FIFOs on this system"

#endif
