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
    FLAG_PRIVATE = FUTEX_PRIVATE_FLAG,
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

/*
 * Sleep on one word, by a call that every kernel knows and every filter allows. FUTEX_WAIT would
 * take a duration, not a time.
 */
static void
sleep_on(const struct cgpu_watch_word *word, const struct timespec *until)
{
    int operation = FUTEX_WAIT_BITSET | (int)(word->flags & FLAG_PRIVATE);

    (void)syscall(SYS_futex, (uintptr_t)word->address, operation, (uint32_t)word->expected, until,
                  NULL, FUTEX_BITSET_MATCH_ANY);
}

bool
cgpu_watch_sleep(const struct cgpu_watch *watch, uint64_t until)
{
    const struct timespec time = {.tv_sec = (time_t)(until / NS_PER_SECOND),
                                  .tv_nsec = (long)(until % NS_PER_SECOND)};
    const struct timespec *end = until == UINT64_MAX ? NULL : &time;

    if (watch->count == 1) {
        sleep_on(&watch->words[0], end);
        return true;
    }
    return syscall(NR_FUTEX_WAITV, watch->words, watch->count, 0, end, CLOCK_MONOTONIC) >= 0 ||
           (errno != ENOSYS && errno != EPERM); /* EPERM: an old seccomp filter */
}
