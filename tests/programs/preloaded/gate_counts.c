/*
 * Preloaded: counts what a thread asks of the C library and the driver while it launches, so that a
 * test can say that most launches ask for nothing. The lock of the launch path makes no call when
 * it is free; but whoever takes it reads the clock.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef int launch_function(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            unsigned, void *, void **, void **);

struct counts {
    uint64_t clocks, calls, sleeps, locks;
};

static __thread struct counts counts;
static __thread bool launching;
static __thread uint64_t recalled;
static uint64_t recalls; /* by other threads, of those that launch: batch_slot.c */

int
clock_gettime(clockid_t clock, struct timespec *out)
{
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL) {
        *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
    }
    counts.clocks++;
    return real(clock, out);
}

long
syscall(long number, ...)
{
    static long (*real)(long, ...);
    __builtin_va_list list;
    long argument[6];
    if (real == NULL) {
        *(void **)&real = dlsym(RTLD_NEXT, "syscall");
    }
    __builtin_va_start(list, number);
    for (int i = 0; i < 6; i++) {
        argument[i] = __builtin_va_arg(list, long);
    }
    __builtin_va_end(list);
    counts.calls++;
    __atomic_add_fetch(&recalls, number == SYS_membarrier && !launching, __ATOMIC_SEQ_CST);
    return real(number, argument[0], argument[1], argument[2], argument[3], argument[4],
                argument[5]);
}

int
nanosleep(const struct timespec *time, struct timespec *left)
{
    counts.sleeps++;
    return clock_nanosleep(CLOCK_MONOTONIC, 0, time, left);
}

int
pthread_mutex_lock(pthread_mutex_t *mutex)
{
    static int (*real)(pthread_mutex_t *);
    if (real == NULL) {
        *(void **)&real = dlsym(RTLD_NEXT, "pthread_mutex_lock");
    }
    counts.locks++;
    return real(mutex);
}

static uint64_t
sum(uint64_t (*driver_calls)(void))
{
    return counts.clocks + counts.calls + counts.sleeps + counts.locks + driver_calls();
}

/* How many of N launches, into COUNT streams by turns, did anything but launch. */
uint64_t
count_launches(launch_function *launch, uint64_t (*driver_calls)(void), void *function,
               void *const *streams, uint64_t count, uint64_t n)
{
    uint64_t busy = 0, seen = 0, recalled_until = 0;
    launching = true;
    recalled = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t before = sum(driver_calls), now = __atomic_load_n(&recalls, __ATOMIC_SEQ_CST);
        if (now != seen) {
            seen = now;
            recalled_until = i + count;
        }
        if (launch(function, 1, 1, 1, 32, 1, 1, 0, streams[i % count], NULL, NULL) != 0) {
            return UINT64_MAX;
        }
        busy += sum(driver_calls) != before;
        recalled += sum(driver_calls) != before && i < recalled_until;
    }
    launching = false;
    return busy;
}

/*
 * How many of the launches last counted did so after a recall, each the next into its stream. The
 * monitor takes a thread that has no processor to be idle. If the thread is inside a launch then,
 * it is recalled, but nothing is marked.
 */
uint64_t
count_recalled(void)
{
    return recalled;
}
