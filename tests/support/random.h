/* random.h - the random numbers of all tests: Knuth's MMIX generator, the upper half of its state.
   The same on every machine, in C and in C++. test_bits' digests stand for its sequence. */

#ifndef RANDOM_H_INCLUDED
#define RANDOM_H_INCLUDED

#include <stddef.h>
#include <stdint.h>

static inline uint32_t random_next(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 32);
}

static uint64_t random_state = 1; /* set it, and what follows is the same again */

static inline uint32_t random_bits(void) { return random_next(&random_state); }
static inline size_t   random_below(size_t n) { return n ? random_bits() % n : 0; }
static inline float    random_value(void) { /* in [-1, 1); exact, so that no flag changes it */
    return (float)((int32_t)(random_bits() >> 8) - 8388608) * 1.1920929e-7f;
}

#endif
