/* MEM-6: processes and threads that race never exceed the cap by a byte and are never refused what
 * fits. */
#define _GNU_SOURCE 1

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"

enum { PROCESSES = 16, THREADS = 4, ROUNDS = 200, UNIT = 4096 };

static const uint64_t EVERYTHING = (uint64_t)PROCESSES * THREADS * ROUNDS * UNIT;

struct race {
    const char *path;
    uint64_t cap;
    struct cgpu_ledger *ledger;
    uint64_t *held; /* what all say to hold: raised after a charge, lowered before a release */
    unsigned seed;
};

static void
run_threads(struct race *race, void *(*body)(void *))
{
    pthread_t threads[THREADS];
    struct race own[THREADS];

    race->ledger = check_attach(race->path);
    for (int i = 0; i < THREADS; i++) {
        own[i] = *race;
        own[i].seed = (unsigned)getpid() * 31 + (unsigned)i;
        CHECK(pthread_create(&threads[i], NULL, body, &own[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
}

static void *
fill(void *argument)
{
    struct race *race = argument;
    uint64_t charged;

    for (int i = 0; i < ROUNDS; i++) {
        CHECK(cgpu_ledger_charge(race->ledger, 0, race->cap, UNIT, &charged) == CGPU_OK);
        CHECK(charged == UNIT);
        __atomic_add_fetch(race->held, charged, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

static void
fill_process(void *argument)
{
    struct race *race = argument;

    run_threads(race, fill);
    while (__atomic_load_n(race->held, __ATOMIC_SEQ_CST) < EVERYTHING) {
        check_sleep(0.01); /* stay alive, and so charged, until all have what they need */
    }
    CHECK(cgpu_ledger_own(race->ledger, 0) == (uint64_t)THREADS * ROUNDS * UNIT);
    __atomic_add_fetch(race->held + 1, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(race->held + 1, __ATOMIC_SEQ_CST) <= PROCESSES) {
        check_sleep(0.01);
    }
}

TEST(what_fits_exactly_is_given_to_all_and_not_a_byte_more)
{
    struct race race = {.path = check_ledger(), .cap = EVERYTHING, .held = check_shared()};
    struct cgpu_ledger *ledger = check_attach(race.path);
    pid_t children[PROCESSES];
    uint64_t charged;

    for (int i = 0; i < PROCESSES; i++) {
        children[i] = check_fork(fill_process, &race);
    }
    for (double end = check_seconds() + 120;
         __atomic_load_n(race.held + 1, __ATOMIC_SEQ_CST) < PROCESSES;) {
        CHECK(check_seconds() < end); /* a child was refused, and said so */
        check_sleep(0.01);
    }
    CHECK(cgpu_ledger_used(ledger, 0) == EVERYTHING);
    CHECK(cgpu_ledger_charge(ledger, 0, race.cap, 1, &charged) == CGPU_EOVERCAP);
    __atomic_add_fetch(race.held + 1, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < PROCESSES; i++) {
        CHECK(check_wait(children[i]) == 0);
    }
    CHECK(cgpu_ledger_charge(ledger, 0, race.cap, EVERYTHING, &charged) == CGPU_OK);
    cgpu_ledger_detach(ledger);
}

static void *
churn(void *argument)
{
    struct race *race = argument;
    uint64_t charged;

    for (int i = 0; i < ROUNDS; i++) {
        uint64_t bytes = (uint64_t)rand_r(&race->seed) % UNIT;
        int status = cgpu_ledger_charge(race->ledger, 0, race->cap, bytes, &charged);

        CHECK(status == CGPU_OK || status == CGPU_EOVERCAP);
        if (status == CGPU_OK) {
            CHECK(__atomic_add_fetch(race->held, charged, __ATOMIC_SEQ_CST) <= race->cap);
            CHECK(cgpu_ledger_used(race->ledger, 0) <= race->cap);
            sched_yield();
            __atomic_sub_fetch(race->held, charged, __ATOMIC_SEQ_CST);
            CHECK(cgpu_ledger_release(race->ledger, 0, charged) == CGPU_OK);
        }
    }
    return NULL;
}

static void
churn_process(void *argument)
{
    struct race *race = argument;

    run_threads(race, churn);
    CHECK(cgpu_ledger_own(race->ledger, 0) == 0);
    cgpu_ledger_detach(race->ledger);
}

static void
run_churn(uint64_t cap, bool refusals)
{
    struct race race = {.path = check_ledger(), .cap = cap, .held = check_shared()};
    struct cgpu_ledger *ledger = check_attach(race.path);
    pid_t children[PROCESSES];

    for (int i = 0; i < PROCESSES; i++) {
        children[i] = check_fork(churn_process, &race);
    }
    for (int i = 0; i < PROCESSES; i++) {
        CHECK(check_wait(children[i]) == 0);
    }
    CHECK(cgpu_ledger_used(ledger, 0) == 0);
    CHECK((cgpu_ledger_refused(ledger, 0) > 0) == refusals);
    cgpu_ledger_detach(ledger);
}

TEST(a_crowded_cap_is_never_exceeded)
{
    run_churn(UNIT + UNIT / 2, true);
}

TEST(a_cap_with_room_for_all_refuses_nobody)
{
    run_churn((uint64_t)PROCESSES * THREADS * UNIT, false);
}

TEST(threads_of_one_process_exclude_one_another)
{
    struct race race = {.path = check_ledger(), .cap = EVERYTHING, .held = check_shared()};

    run_threads(&race, fill);
    CHECK(cgpu_ledger_used(race.ledger, 0) == (uint64_t)THREADS * ROUNDS * UNIT);
    race.cap = UNIT;
    *race.held = 0;
    cgpu_ledger_detach(race.ledger);
    run_threads(&race, churn);
    CHECK(cgpu_ledger_used(race.ledger, 0) == 0);
    cgpu_ledger_detach(race.ledger);
}
