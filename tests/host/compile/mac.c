/* The implementation, for a Mac: tests/arm.sh. */
#define AMP_IMPLEMENTATION
#include "amp.h"
