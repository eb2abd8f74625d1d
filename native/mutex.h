/* A mutex between the threads of one process, in two words: no allocator, no C library state. */
#ifndef CGPU_MUTEX_H
#define CGPU_MUTEX_H

#include <stdint.h>

struct cgpu_mutex {
    uint32_t held;
    uint32_t sleepers; /* threads that may be asleep until it is free */
};

void cgpu_mutex_lock(struct cgpu_mutex *mutex);
void cgpu_mutex_unlock(struct cgpu_mutex *mutex);

#endif
