/* Sleeping on a lock and being woken, seen from the futex calls. */
#define _GNU_SOURCE 1

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "check.h"
#include "ledger/attachment.h"
#include "ledger/lock.h"

static int waits;
static int wakes;

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...); /* the linker sends native's calls here */

long
__wrap_syscall(long number, ...)
{
    long arguments[6];
    va_list list;

    va_start(list, number);
    for (int i = 0; i < 6; i++) {
        arguments[i] = va_arg(list, long);
    }
    va_end(list);
    if (number == SYS_futex && (int)arguments[1] == FUTEX_WAIT) {
        __atomic_add_fetch(&waits, 1, __ATOMIC_SEQ_CST);
    }
    if (number == SYS_futex && (int)arguments[1] == FUTEX_WAKE) {
        __atomic_add_fetch(&wakes, 1, __ATOMIC_SEQ_CST);
    }
    return __real_syscall(number, arguments[0], arguments[1], arguments[2], arguments[3],
                          arguments[4], arguments[5]);
}

static void *
charge_one(void *ledger)
{
    uint64_t charged;

    CHECK(cgpu_ledger_charge(ledger, 0, 10, 1, &charged) == CGPU_OK);
    return NULL;
}

TEST(a_sleeper_is_woken_by_the_release_and_nobody_else_makes_calls)
{
    struct cgpu_ledger *ledger = check_attach(check_ledger());
    pthread_t thread;

    charge_one(ledger);
    CHECK(waits == 0 && wakes == 0);
    CHECK(cgpu_lock_take(ledger, 0) == CGPU_OK);
    CHECK(pthread_create(&thread, NULL, charge_one, ledger) == 0);
    while (__atomic_load_n(&waits, __ATOMIC_SEQ_CST) == 0) {
        check_sleep(0.001);
    }
    cgpu_lock_give(ledger, 0);
    /* the sleeper, too, wakes one when it releases: it cannot know that it was the only one */
    CHECK(__atomic_load_n(&wakes, __ATOMIC_SEQ_CST) >= 1);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(cgpu_ledger_used(ledger, 0) == 2);
    cgpu_ledger_detach(ledger);
}

static void
die_holding(void *path)
{
    CHECK(cgpu_lock_take(check_attach(path), 0) == CGPU_OK);
    raise(SIGKILL);
}

static void
note_tick(int number)
{
    (void)number;
}

/* As profilers do: a signal so often that it cuts every sleep short. */
static void
tick(void)
{
    const struct sigaction action = {.sa_handler = note_tick, .sa_flags = SA_RESTART};
    const struct itimerval often = {.it_interval.tv_usec = 500, .it_value.tv_usec = 500};

    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
}

TEST(a_dead_holder_is_found_by_a_sleeper_that_signals_disturb)
{
    const char *path = check_ledger();
    struct cgpu_ledger *ledger = check_attach(path);

    CHECK(check_wait(check_fork(die_holding, (void *)(uintptr_t)path)) == 128 + SIGKILL);
    tick();
    charge_one(ledger);
    cgpu_ledger_detach(ledger);
}

static void
charge_beside_a_holder(bool disturbed)
{
    const char *path = check_ledger();
    struct cgpu_ledger *holder = check_attach(path);
    struct cgpu_ledger *ledger = check_attach(path);
    uint64_t charged;

    CHECK(cgpu_lock_take(holder, 0) == CGPU_OK);
    if (disturbed) {
        tick();
    }
    CHECK(cgpu_ledger_charge(ledger, 0, 10, 1, &charged) == CGPU_EIO);
    cgpu_lock_give(holder, 0);
    charge_one(ledger);
    cgpu_ledger_detach(ledger);
    cgpu_ledger_detach(holder);
}

TEST(a_living_holder_is_waited_for_and_not_robbed)
{
    charge_beside_a_holder(false);
}

TEST(a_living_holder_is_not_waited_for_without_end_by_a_sleeper_that_signals_disturb)
{
    charge_beside_a_holder(true);
}
