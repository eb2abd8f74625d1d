/*
 * What each kind of memory does before a request is refused. A new kind is a file and a row in
 * kinds_table.c.
 */
#ifndef CGPU_CUDA_KINDS_TABLE_H
#define CGPU_CUDA_KINDS_TABLE_H

#include <stdint.h>

/*
 * A kind of memory, and the functions that get memory of it back. Each takes the kind's lock and
 * releases it again. NULL in place of a function: this kind has nothing to do there.
 */
struct cgpu_memory_kind {
    const char *name;            /* NULL: the table ends */
    void (*finish)(int32_t gpu); /* wait for frees whose work is done already */
    void (*collect)(
        void); /* give back what is charged and no longer held; one load if there is none */
    void (*context_gone)(void); /* give back what a context that is gone took along */
    void (*trim)(int32_t gpu);  /* give back what is only kept for reuse */
};

extern const struct cgpu_memory_kind cgpu_memory_kinds[];

#endif
