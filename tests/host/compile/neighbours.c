/* Law 25: amp.h, header and implementation, behind a hundred macros of other headers, or behind <windows.h>. What it includes
   itself comes first: others' headers have to cope by themselves. As C and as C++. */
#if defined(_WIN32)
#include <windows.h>
#else
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif
#if defined(__aarch64__)
#include <arm_neon.h>
#include <sys/auxv.h>
#endif
#include "neighbours.h"
#endif
#define AMP_IMPLEMENTATION
#include "amp.h"
