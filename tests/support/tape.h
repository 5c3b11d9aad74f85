/* tape.h - a state file in memory: tape_write and tape_read, whose user is a tape. Included after amp.h. */

#ifndef TAPE_H_INCLUDED
#define TAPE_H_INCLUDED

#include <stdlib.h>
#include <string.h>

typedef struct tape { unsigned char *bytes; size_t size, room, at; int fails; } tape; /* fails: a write does */

static inline bool tape_write(void *user, const void *data, size_t num_bytes) {
    tape *t = (tape *)user;
    if (t->fails) return false;
    if (t->size + num_bytes > t->room) {
        t->room  = 2 * (t->size + num_bytes);
        t->bytes = (unsigned char *)realloc(t->bytes, t->room);
        if (!t->bytes) abort();
    }
    memcpy(t->bytes + t->size, data, num_bytes);
    t->size += num_bytes;
    return true;
}

static inline bool tape_read(void *user, void *data, size_t num_bytes) {
    tape *t = (tape *)user;
    if (num_bytes > t->size - t->at) return false;
    memcpy(data, t->bytes + t->at, num_bytes);
    t->at += num_bytes;
    return true;
}

#endif
