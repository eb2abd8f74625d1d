/* Processes that hold memory of a ledger until they are killed. */
#ifndef CGPU_LEDGER_HOLDER_H
#define CGPU_LEDGER_HOLDER_H

#include <signal.h>
#include <unistd.h>

#include "check.h"
#include "ledger/attachment.h"

enum { CAP = 1 << 20 };

struct shared {
    const char *path;
    uint32_t *ready;
    size_t gpu;
    uint64_t bytes;
};

static inline void
say_ready(struct shared *shared)
{
    __atomic_add_fetch(shared->ready, 1, __ATOMIC_SEQ_CST);
}

static inline void
wait_ready(struct shared *shared, uint32_t count)
{
    double end = check_seconds() + 60;

    while (__atomic_load_n(shared->ready, __ATOMIC_SEQ_CST) < count) {
        CHECK(check_seconds() < end);
        check_sleep(0.001);
    }
}

static inline void
hold_forever(void *argument)
{
    struct shared *shared = argument;
    struct cgpu_ledger *ledger = check_attach(shared->path);
    uint64_t charged;

    CHECK(cgpu_ledger_charge(ledger, 0, CAP, shared->bytes, &charged) == CGPU_OK);
    say_ready(shared);
    for (;;) {
        pause();
    }
}

static inline pid_t
start_holder(struct shared *shared)
{
    uint32_t before = __atomic_load_n(shared->ready, __ATOMIC_SEQ_CST);
    pid_t child = check_fork(hold_forever, shared);

    wait_ready(shared, before + 1);
    return child;
}

static inline void
kill_and_wait(pid_t child)
{
    CHECK(kill(child, SIGKILL) == 0);
    CHECK(check_wait(child) == 128 + SIGKILL);
}

#endif
