/* The futex calls and the spin step that the locks of this folder share. */
#ifndef CGPU_FUTEX_H
#define CGPU_FUTEX_H

#include <errno.h>
#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static inline void
cgpu_futex_pause(unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("isb" ::: "memory"); /* "yield" is a no-op on most cores */
#endif
    }
}

/*
 * Wait while WORD is EXPECTED. Returns 0 or an error number: EAGAIN (WORD had another value
 * already), ETIMEDOUT, EINTR. Keeps errno.
 */
static inline int
cgpu_futex_wait(uint32_t *word, int operation, uint32_t expected, const struct timespec *timeout)
{
    int saved = errno;
    int error = syscall(SYS_futex, word, operation, expected, timeout, NULL, 0) == 0 ? 0 : errno;

    errno = saved;
    return error;
}

/* Wake up to MOST waiters of WORD; returns how many were woken. Keeps errno. */
static inline long
cgpu_futex_wake(uint32_t *word, int operation, int most)
{
    int saved = errno;
    long woken = syscall(SYS_futex, word, operation, most, NULL, NULL, 0);

    errno = saved;
    return woken;
}

static inline void
cgpu_futex_wake_one(uint32_t *word, int operation)
{
    cgpu_futex_wake(word, operation, 1);
}

#endif
