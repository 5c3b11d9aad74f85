/* compare.h - what two versions of amp.h do for compare.c: a row is one call, in numbers that have the
   same meaning in every version. compare_side.c makes a side of each version by its own header. */

#ifndef COMPARE_H_INCLUDED
#define COMPARE_H_INCLUDED

#include <stddef.h>

typedef enum call { CAST, CHECK, UNSCALE, STEP, PRODUCT } call;

/* Types and kinds are the numbers of amp_dtype and amp_kind. */
typedef struct row {
    call        what;
    int         type, to;    /* of a, or the gradients; of c, or what fp32 is rounded to in products */
    size_t      n;           /* elements                                                             */
    size_t      m, cols, k;  /* of a product                                                         */
    int         trans_a, trans_b, tf32;
    size_t      lda, ldb, ldc; /* 0: packed                                                         */
    size_t      count;       /* of a batch                                                           */
    int         kind;        /* of a step: 0 yours, 1 AdamW, 2 SGD, 3 Lion                           */
    const char *storage;     /* its format, a name of AMP_STORAGE_LIST; or NULL                      */
    const void *a, *b;       /* read                                                                 */
    void       *c;           /* written; a step's weights                                            */
} row;

typedef struct side {
    const char *version;
    int  (*force)(const char *tier); /* zero: the machine does not have it, or this version does not */
    int  (*begin)(const row *r);     /* zero: this version does not have it                          */
    void (*run)(const row *r);
    void (*end)(void);
} side;

extern const side side_new, side_ref;

#endif
