/* What amp.h asks of macOS's headers, as they declare it, for compilers that have none: tests/host/arm.sh. */
#ifndef MAC_H
#define MAC_H
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif
typedef struct FILE    FILE;
typedef unsigned short mode_t;
typedef long           ssize_t;
struct stat { int st_dev; mode_t st_mode; unsigned long long st_ino; };
#define errno (*__error())
#define ENOENT      2
#define EINTR       4
#define EACCES      13
#define EEXIST      17
#define EWOULDBLOCK 35
#define EIO         5
#define EINVAL      22
#define ELOOP       62
#define EOVERFLOW   84
#define O_RDONLY    0
#define O_WRONLY    1
#define O_NONBLOCK  0x4
#define O_CREAT     0x200
#define O_EXCL      0x800
#define _IONBF      2
#define F_SETFD     2
#define FD_CLOEXEC  1
#define LOCK_EX     2
#define LOCK_NB     4
#define O_CLOEXEC   0x1000000
#define S_ISREG(m)  (((m) & 0170000) == 0100000)
int    *__error(void);
void   *memcpy(void *, const void *, size_t);
void   *memmove(void *, const void *, size_t);
void   *memset(void *, int, size_t);
int     memcmp(const void *, const void *, size_t);
size_t  strlen(const char *);
char   *strcpy(char *, const char *);
int     strcmp(const char *, const char *);
int     strncmp(const char *, const char *, size_t);
char   *strchr(const char *, int);
char   *strrchr(const char *, int);
size_t  strspn(const char *, const char *);
size_t  strcspn(const char *, const char *);
void   *memchr(const void *, int, size_t);
void   *malloc(size_t);
void    free(void *);
char   *getenv(const char *);
FILE   *fopen(const char *, const char *);
size_t  fread(void *, size_t, size_t, FILE *);
size_t  fwrite(const void *, size_t, size_t, FILE *);
void    clearerr(FILE *);
int     fflush(FILE *);
int     fclose(FILE *);
int     fgetc(FILE *);
#define EOF (-1)
int     ferror(FILE *);
int     feof(FILE *);
int     fileno(FILE *);
int     remove(const char *);
int     rename(const char *, const char *);
int     stat(const char *, struct stat *);
int     fstat(int, struct stat *);
int     flock(int, int);
int     fcntl(int, int, ...);
int     dup(int);
int     chmod(const char *, mode_t);
int     open(const char *, int, ...);
int     fsync(int);
int     close(int);
int     unlink(const char *);
FILE   *fdopen(int, const char *);
int     setvbuf(FILE *, char *, int, size_t);
#ifdef __cplusplus
}
#endif
#endif
