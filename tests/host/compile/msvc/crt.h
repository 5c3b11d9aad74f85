/* crt.h - of Microsoft's C library as much as amp.h asks for, so that clang can compile for it where
   there is none: each header of that name here is this one. It is never linked. */
#ifndef CRT_H_INCLUDED
#define CRT_H_INCLUDED
#include <stdarg.h> /* the compiler's own */
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef struct FILE FILE;
int  *_errno(void);
FILE *fopen(const char *path, const char *mode);
FILE *_wfopen(const wchar_t *path, const wchar_t *mode);
FILE *_fsopen(const char *path, const char *mode, int share);
size_t fread(void *data, size_t size, size_t count, FILE *file);
size_t fwrite(const void *data, size_t size, size_t count, FILE *file);
int   fflush(FILE *file);
int   fclose(FILE *file);
int   fgetc(FILE *file);
int   ferror(FILE *file);
int   feof(FILE *file);
void  clearerr(FILE *file);
int   fgetc(FILE *file);
int   fseek(FILE *file, long offset, int from);
long  ftell(FILE *file);
int   remove(const char *path);
int   rename(const char *from, const char *to);
int   _fileno(FILE *file);
int   _commit(int file);
void *malloc(size_t bytes);
void *calloc(size_t count, size_t bytes);
void *realloc(void *p, size_t bytes);
void  free(void *p);
char *getenv(const char *name);
void *memcpy(void *dst, const void *src, size_t bytes);
void *memmove(void *dst, const void *src, size_t bytes);
void *memset(void *dst, int value, size_t bytes);
int   memcmp(const void *a, const void *b, size_t bytes);
size_t strlen(const char *text);
int   strcmp(const char *a, const char *b);
int   strncmp(const char *a, const char *b, size_t bytes);
char *strchr(const char *text, int c);
char *strstr(const char *text, const char *part);
char *strrchr(const char *text, int c);
size_t strspn(const char *text, const char *of);
size_t strcspn(const char *text, const char *of);
void *memchr(const void *p, int value, size_t bytes);
void *_aligned_malloc(size_t bytes, size_t alignment);
void  _aligned_free(void *p);
double sqrt(double x);
float  sqrtf(float x);
double fabs(double x);

#ifdef __cplusplus
}
#endif
#define errno      (*_errno())
#define EINVAL     22
#define ENOENT     2
#define EINTR      4
#define EACCES     13
#define EEXIST     17
#define ELOOP      114
#define EOF        (-1)
#define SEEK_SET   0
#define SEEK_CUR   1
#define SEEK_END   2
#endif
