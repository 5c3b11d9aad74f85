/* huge.h - arrays of more than 2^32 elements in little memory. Of zeros: pages that are only read take none.
   Repeated: the same 4 MiB come again and again, up to a tail of its own, so that all can be written. */

#ifndef HUGE_H_INCLUDED
#define HUGE_H_INCLUDED

#if defined(__linux__) && defined(__LP64__) && !defined(__TINYC__)
#define HAVE_HUGE 1
#include <sys/mman.h>
#include <unistd.h>

enum { HUGE_PERIOD = 1 << 22 };
#define HUGE_FLAGS (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)

static inline void *huge_zeros(size_t bytes) { /* NULL: there is no such room */
    void *all = mmap(NULL, bytes, PROT_READ | PROT_WRITE, HUGE_FLAGS, -1, 0);
    return all == MAP_FAILED ? NULL : all;
}

/* Many of its elements will be read: in larger pages, which takes a fifth of the time. */
static inline void huge_read(void *all, size_t bytes) {
#ifdef MADV_HUGEPAGE
    (void)madvise(all, bytes, MADV_HUGEPAGE);
#else
    (void)all, (void)bytes;
#endif
}

static inline void huge_free(void *all, size_t bytes) {
    if (all) munmap(all, bytes);
}

/* So many bytes that repeat (a multiple of HUGE_PERIOD), then the tail. */
static inline void *huge_repeated(size_t bytes, size_t tail) {
    char     *all  = (char *)huge_zeros(bytes + tail);
    const int file = memfd_create("huge", 0);
    size_t    i;
    int       fine = all != NULL && file >= 0 && ftruncate(file, HUGE_PERIOD) == 0;
    for (i = 0; fine && i < bytes; i += HUGE_PERIOD)
        fine = mmap(all + i, HUGE_PERIOD, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE, file, 0) !=
               MAP_FAILED;
    if (file >= 0) close(file);
    if (fine) return all;
    huge_free(all, bytes + tail);
    return NULL;
}
#else
#define HAVE_HUGE 0
#endif
#define HUGE_WHY "no room for arrays of 2^32 elements here"

#endif
