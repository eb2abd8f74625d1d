/*
 * What each kind of memory does before a request is refused. A new kind is a file of its own and a
 * row in kinds_table.c.
 */
#ifndef CGPU_CUDA_KINDS_TABLE_H
#define CGPU_CUDA_KINDS_TABLE_H

#include <stdint.h>

/* Each takes the lock of its kind and drops it again; NULL: there is nothing to do. */
struct cgpu_memory_kind {
    const char *name;            /* NULL: the table ends */
    void (*finish)(int32_t gpu); /* wait for what is done already */
    void (*collect)(void);       /* give back what is charged and no longer held: at most a load */
    void (*context_gone)(void);  /* what else a context that is gone may have taken along */
    void (*trim)(int32_t gpu);   /* let go of what is only kept for reuse */
};

extern const struct cgpu_memory_kind cgpu_memory_kinds[];

#endif
