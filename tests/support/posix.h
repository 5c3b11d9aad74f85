/* posix.h - what tests need of POSIX: the environment, directories, processes. On Windows, by MinGW and
   by MSVC, the first two under the same names, so that one test serves both; HAVE_POSIX is 0 for what is
   missing. */

#ifndef POSIX_H_INCLUDED
#define POSIX_H_INCLUDED

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#if defined(_WIN32)
#define HAVE_POSIX 0
#include <direct.h>  /* _mkdir, rmdir */
#include <fcntl.h>
#include <io.h>      /* _open, _chsize */
#include <process.h> /* getpid */

/* A value that is empty removes the variable: there, the two are the same. */
static inline int setenv(const char *name, const char *value, int overwrite) {
    (void)overwrite;
    return _putenv_s(name, value);
}
static inline int unsetenv(const char *name) { return _putenv_s(name, ""); }

static inline int truncate(const char *path, long bytes) {
    const int file   = _open(path, _O_RDWR);
    const int failed = file < 0 || _chsize(file, bytes) != 0;
    return (file >= 0 && _close(file) != 0) || failed ? -1 : 0;
}

#define mkdir(path, mode) _mkdir(path)
#else
#define HAVE_POSIX 1
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h> /* flock */
#include <sys/mman.h>
#include <sys/resource.h> /* setrlimit */
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

/* A disk with room for so many bytes. Where dir is on a small file system (tests/trainers/long.sh mounts one) it is
   really full: a file takes the rest. Elsewhere no file may be larger. */
static struct {
    char          filler[700];
    struct rlimit limit;
    void        (*before)(int);
} the_disk;

static inline int disk_is_small(const char *dir, unsigned long long *room) {
    struct statvfs s;
    if (statvfs(dir, &s) != 0) return 0;
    *room = (unsigned long long)s.f_bavail * s.f_frsize;
    return (unsigned long long)s.f_blocks * s.f_frsize <= 4u << 20;
}

static inline int disk_leaves(const char *dir, unsigned long long bytes) {
    static const char  zeros[4096];
    struct rlimit      limit;
    unsigned long long room;
    int                file, done;
    fflush(stdout);
    the_disk.filler[0] = '\0';
    if (disk_is_small(dir, &room)) {
        snprintf(the_disk.filler, sizeof the_disk.filler, "%s/filler-%ld", dir, (long)getpid());
        file = open(the_disk.filler, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        for (done = file >= 0; done && room >= bytes + sizeof zeros; room -= sizeof zeros)
            done = write(file, zeros, sizeof zeros) == (ssize_t)sizeof zeros;
        return file >= 0 && close(file) == 0 && done;
    }
    the_disk.before = signal(SIGXFSZ, SIG_IGN);
    if (getrlimit(RLIMIT_FSIZE, &the_disk.limit) != 0) return 0;
    limit          = the_disk.limit;
    limit.rlim_cur = (rlim_t)bytes;
    return setrlimit(RLIMIT_FSIZE, &limit) == 0;
}

static inline int disk_is_free(void) { /* as it was */
    if (the_disk.filler[0]) return remove(the_disk.filler) == 0;
    signal(SIGXFSZ, the_disk.before);
    return setrlimit(RLIMIT_FSIZE, &the_disk.limit) == 0;
}

/* So many pages of memory, of which every second one cannot be read; NULL: the system has none. */
static inline float *pages_with_guards(size_t pages) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const int    zero = open("/dev/zero", O_RDWR);
    char *const  all  = (char *)mmap(NULL, pages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE, zero, 0);
    size_t       i;
    close(zero);
    if (all == (char *)MAP_FAILED) return NULL;
    for (i = 1; i < pages; i += 2)
        if (mprotect(all + i * page, page, PROT_NONE) != 0) return NULL;
    return (float *)(void *)all;
}
#endif
#define POSIX_WHY "no fork, file size limits, file modes, symbolic links or FIFOs on this system"

#endif
