/* white.h - what amp.c shows of the inside of amp.h. */

#ifndef WHITE_H_INCLUDED
#define WHITE_H_INCLUDED

#include <stdlib.h>

extern long white_malloc_calls; /* of amp.h's mallocs */
extern int  white_malloc_fails; /* they return NULL   */

void white_tell(char *problem, const char *text);
void white_tell_number(char *problem, const double *number);

#endif
