/* A mutex between the threads of one process, in one word: no allocator, no C library state. */
#ifndef CGPU_MUTEX_H
#define CGPU_MUTEX_H

#include <stdint.h>

struct cgpu_mutex {
    uint32_t word; /* 0: free, 1: held, 2: held and somebody may be asleep */
};

void cgpu_mutex_lock(struct cgpu_mutex *mutex);
void cgpu_mutex_unlock(struct cgpu_mutex *mutex);

#endif
