/* The mutex between threads: it excludes, wakes who sleeps, and no sleeper needs to be woken. */
#define _GNU_SOURCE 1

#include "mutex.h"

#include <pthread.h>
#include <stdbool.h>
#include <time.h>

#include "check.h"

enum { THREADS = 4, ROUNDS = 2000, HOLD_NS = 20000 };

static struct cgpu_mutex mutex;
static long inside;
static long sum;

static void
rest(long ns)
{
    const struct timespec time = {.tv_nsec = ns};

    nanosleep(&time, NULL);
}

/* Every eighth holder sleeps, so that others outlast their spinning. */
static void *
visit(void *unused)
{
    for (int i = 0; i < ROUNDS; i++) {
        cgpu_mutex_lock(&mutex);
        CHECK(++inside == 1);
        if (i % 8 == 0) {
            rest(HOLD_NS);
        }
        sum += 1;
        inside -= 1;
        cgpu_mutex_unlock(&mutex);
    }
    return unused;
}

TEST(one_thread_at_a_time_is_inside)
{
    pthread_t threads[THREADS];

    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, visit, NULL) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK(sum == (long)THREADS * ROUNDS);
    CHECK(mutex.held == 0 && mutex.sleepers == 0);
}

static void *
pass(void *unused)
{
    cgpu_mutex_lock(&mutex);
    cgpu_mutex_unlock(&mutex);
    return unused;
}

static void
await_sleepers(uint32_t count)
{
    while (__atomic_load_n(&mutex.sleepers, __ATOMIC_ACQUIRE) != count) {
        rest(HOLD_NS);
    }
}

TEST(who_was_not_seen_going_to_sleep_goes_on_without_being_woken)
{
    pthread_t thread;

    cgpu_mutex_lock(&mutex);
    CHECK(pthread_create(&thread, NULL, pass, NULL) == 0);
    await_sleepers(1);
    __atomic_store_n(&mutex.held, 0, __ATOMIC_RELEASE); /* a release that saw no sleeper */
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(mutex.sleepers == 0);
}
