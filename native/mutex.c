/*
 * A mutex between the threads of one process: see mutex.h.
 *
 * Locked instructions are most of its cost, so unlocking has none. Therefore the processor may
 * check for sleepers before others see that the mutex is free, and miss a thread that goes to sleep
 * at that moment. So no thread sleeps for long at a time.
 */
#include "mutex.h"

#include <stdbool.h>

#include "futex.h"

enum { SPIN_ROUNDS = 32, SPIN_LONGEST = 64, SLEEP_NS = 1000000 };

static bool
take_free(struct cgpu_mutex *mutex)
{
    uint32_t free = 0;

    /* acquire: what the last holder wrote is seen */
    return __atomic_compare_exchange_n(&mutex->held, &free, 1, false, __ATOMIC_ACQUIRE,
                                       __ATOMIC_RELAXED);
}

static void
lock_slowly(struct cgpu_mutex *mutex)
{
    const struct timespec longest = {.tv_nsec = SLEEP_NS};
    unsigned pauses = 1;

    for (int round = 0; round < SPIN_ROUNDS; round++) {
        cgpu_futex_pause(pauses);
        pauses = pauses < SPIN_LONGEST ? pauses * 2 : pauses;
        if (__atomic_load_n(&mutex->held, __ATOMIC_RELAXED) == 0 && take_free(mutex)) {
            return;
        }
    }
    __atomic_add_fetch(&mutex->sleepers, 1, __ATOMIC_RELAXED);
    while (!take_free(mutex)) {
        (void)cgpu_futex_wait(&mutex->held, FUTEX_WAIT_PRIVATE, 1, &longest);
    }
    __atomic_sub_fetch(&mutex->sleepers, 1, __ATOMIC_RELAXED);
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
    /* release: the next holder sees what this one wrote */
    __atomic_store_n(&mutex->held, 0, __ATOMIC_RELEASE);
    if (__atomic_load_n(&mutex->sleepers, __ATOMIC_RELAXED) != 0) {
        cgpu_futex_wake_one(&mutex->held, FUTEX_WAKE_PRIVATE);
    }
}
