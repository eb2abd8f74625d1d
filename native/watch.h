/* Sleeping on many futex words at once, until a time. */
#ifndef CGPU_WATCH_H
#define CGPU_WATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* struct futex_waitv of Linux 5.16, for headers that do not have it yet. */
struct cgpu_watch_word {
    uint64_t expected;
    uint64_t address;
    uint32_t flags;
    uint32_t reserved;
};

enum { CGPU_WATCH_MOST = 128 }; /* as many as the kernel allows */

struct cgpu_watch {
    struct cgpu_watch_word words[CGPU_WATCH_MOST];
    uint32_t count;
};

/*
 * Add WORD, which should have the value EXPECTED. PRIVATE: it belongs to this process alone. False:
 * there is no room for it.
 */
bool cgpu_watch_add(struct cgpu_watch *watch, uint32_t *word, uint32_t expected, bool private);

/*
 * Sleep until a word is woken, or has another value than expected, or until UNTIL by
 * CLOCK_MONOTONIC (UINT64_MAX: for ever). False: the kernel cannot do that for several words, or a
 * filter forbids it.
 */
bool cgpu_watch_sleep(const struct cgpu_watch *watch, uint64_t until);

#endif
