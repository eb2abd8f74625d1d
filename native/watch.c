/* Sleeping on many futex words: see watch.h. */
#define _GNU_SOURCE 1

#include "watch.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    NR_FUTEX_WAITV = 449, /* on every architecture but alpha */
    FLAG_32_BITS = 2,
    FLAG_PRIVATE = 128,
    NS_PER_SECOND = 1000000000
};

bool
cgpu_watch_add(struct cgpu_watch *watch, uint32_t *word, uint32_t expected, bool private)
{
    if (watch->count == CGPU_WATCH_MOST) {
        return false;
    }
    watch->words[watch->count++] = (struct cgpu_watch_word){
        .expected = expected,
        .address = (uint64_t)(uintptr_t)word,
        .flags = FLAG_32_BITS | (private ? FLAG_PRIVATE : 0),
    };
    return true;
}

bool
cgpu_watch_sleep(const struct cgpu_watch *watch, uint64_t until)
{
    /* not struct timespec: the call takes 64 bits everywhere */
    const int64_t time[2] = {(int64_t)(until / NS_PER_SECOND), (int64_t)(until % NS_PER_SECOND)};

    return syscall(NR_FUTEX_WAITV, watch->words, watch->count, 0, until == UINT64_MAX ? NULL : time,
                   CLOCK_MONOTONIC) >= 0 ||
           (errno != ENOSYS && errno != EPERM); /* EPERM: an old seccomp filter */
}

void
cgpu_watch_sleep_on(uint32_t *word, uint32_t expected, uint64_t until)
{
    const struct timespec time = {.tv_sec = (time_t)(until / NS_PER_SECOND),
                                  .tv_nsec = (long)(until % NS_PER_SECOND)};

    /* unlike FUTEX_WAIT it takes a time of CLOCK_MONOTONIC, not a duration */
    (void)syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, expected,
                  until == UINT64_MAX ? NULL : &time, NULL, FUTEX_BITSET_MATCH_ANY);
}
