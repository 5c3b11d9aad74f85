/* The implementation, for a Mac: tests/host/arm.sh. */
#define AMP_IMPLEMENTATION
#include "amp.h"
