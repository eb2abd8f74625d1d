/* A mutex between the threads of one process: see mutex.h. */
#include "mutex.h"

#include <stdbool.h>

#include "futex.h"

enum { SPIN_ROUNDS = 32, SPIN_LONGEST = 64 };

static bool
take_free(struct cgpu_mutex *mutex)
{
    uint32_t free = 0;

    /* acquire: what the last holder wrote is seen */
    return __atomic_compare_exchange_n(&mutex->word, &free, 1, false, __ATOMIC_ACQUIRE,
                                       __ATOMIC_RELAXED);
}

static void
lock_slowly(struct cgpu_mutex *mutex)
{
    unsigned pauses = 1;

    for (int round = 0; round < SPIN_ROUNDS; round++) {
        cgpu_futex_pause(pauses);
        pauses = pauses < SPIN_LONGEST ? pauses * 2 : pauses;
        if (__atomic_load_n(&mutex->word, __ATOMIC_RELAXED) == 0 && take_free(mutex)) {
            return;
        }
    }
    while (__atomic_exchange_n(&mutex->word, 2, __ATOMIC_ACQUIRE) != 0) {
        (void)cgpu_futex_wait(&mutex->word, FUTEX_WAIT_PRIVATE, 2, NULL);
    }
}

void
cgpu_mutex_lock(struct cgpu_mutex *mutex)
{
    if (!take_free(mutex)) {
        lock_slowly(mutex);
    }
}

void
cgpu_mutex_unlock(struct cgpu_mutex *mutex)
{
    /* release: the next holder sees what we wrote */
    if (__atomic_exchange_n(&mutex->word, 0, __ATOMIC_RELEASE) == 2) {
        cgpu_futex_wake_one(&mutex->word, FUTEX_WAKE_PRIVATE);
    }
}
