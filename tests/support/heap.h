/* heap.h - an allocator that counts, fails when it is told to, fills memory with a byte and knows
   what is its own. Included after test.h; the_heap goes where an allocator's user does. */

#ifndef HEAP_H_INCLUDED
#define HEAP_H_INCLUDED

enum { MAX_BLOCKS = 64, FOREVER = 1 << 30 };

typedef struct heap {
    int    calls, frees, live, strangers; /* strangers: freed but not ours         */
    int    fail_from, fail_count;         /* calls [fail_from, + fail_count) fail  */
    size_t largest, bytes;                /* asked for in one call, and in all     */
    int    poison;                        /* byte that memory is filled with       */
    void  *block[MAX_BLOCKS];
} heap;

static inline void *heap_alloc(void *user, size_t num_bytes) {
    heap *h    = (heap *)user;
    int   call = ++h->calls, i;
    void *memory;
    if (num_bytes > h->largest) h->largest = num_bytes;
    h->bytes += num_bytes;
    if (h->fail_from && call >= h->fail_from && call - h->fail_from < h->fail_count) return NULL;
    if (num_bytes > SIZE_MAX / 64 || num_bytes > ((size_t)1 << 30)) return NULL;
    memory = malloc(num_bytes);
    if (!memory) return NULL;
    memset(memory, h->poison, num_bytes);
    for (i = 0; i < MAX_BLOCKS && h->block[i]; i++) {}
    CHECK(i < MAX_BLOCKS);
    h->block[i] = memory;
    h->live++;
    return memory;
}

static inline void heap_free(void *user, void *memory) {
    heap *h = (heap *)user;
    int   i;
    h->frees++;
    for (i = 0; i < MAX_BLOCKS && h->block[i] != memory; i++) {}
    if (i == MAX_BLOCKS || !memory) {
        h->strangers++;
        return;
    }
    h->block[i] = NULL;
    h->live--;
    free(memory);
}

static heap the_heap;

#endif
