/* MEM-7: processes that die, wherever they are, give back what they hold; those that live lose
 * nothing. */
#define _GNU_SOURCE 1

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "ledger/attachment.h"
#include "ledger/lock.h"

enum { CAP = 1 << 20, VICTIMS = 4, ROUNDS = 100 };

struct shared {
    const char *path;
    uint32_t *ready;
    size_t gpu;
    uint64_t bytes;
};

static void
say_ready(struct shared *shared)
{
    __atomic_add_fetch(shared->ready, 1, __ATOMIC_SEQ_CST);
}

static void
wait_ready(struct shared *shared, uint32_t count)
{
    double end = check_seconds() + 60;

    while (__atomic_load_n(shared->ready, __ATOMIC_SEQ_CST) < count) {
        CHECK(check_seconds() < end);
        check_sleep(0.001);
    }
}

static void
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

static pid_t
start_holder(struct shared *shared)
{
    uint32_t before = __atomic_load_n(shared->ready, __ATOMIC_SEQ_CST);
    pid_t child = check_fork(hold_forever, shared);

    wait_ready(shared, before + 1);
    return child;
}

static void
kill_and_wait(pid_t child)
{
    CHECK(kill(child, SIGKILL) == 0);
    CHECK(check_wait(child) == 128 + SIGKILL);
}

TEST(a_killed_process_gives_way_to_the_next_request)
{
    struct shared shared = {.path = check_ledger(), .ready = check_shared(), .bytes = CAP};
    struct cgpu_ledger *ledger = check_attach(shared.path);
    uint64_t charged;
    pid_t child = start_holder(&shared);

    CHECK(cgpu_ledger_charge(ledger, 0, CAP, 1, &charged) == CGPU_EOVERCAP);
    kill_and_wait(child);
    CHECK(cgpu_ledger_charge(ledger, 0, CAP, CAP, &charged) == CGPU_OK);
    CHECK(cgpu_ledger_refused(ledger, 0) == 1);
    cgpu_ledger_detach(ledger);
}

TEST(every_reader_sees_a_killed_process_gone_within_a_second)
{
    struct shared shared = {.path = check_ledger(), .ready = check_shared(), .bytes = 1000};
    struct cgpu_ledger *ledger = check_attach(shared.path);
    struct cgpu_ledger *observer;
    pid_t child;
    double end;
    size_t count;

    CHECK(cgpu_ledger_observe(shared.path, &observer) == CGPU_OK);
    child = start_holder(&shared);
    CHECK(cgpu_ledger_used(ledger, 0) == 1000 && cgpu_ledger_used(observer, 0) == 1000);
    kill_and_wait(child);
    CHECK(cgpu_ledger_used(observer, 0) == 0); /* at once: it asks for each process */
    CHECK(cgpu_ledger_processes(ledger, 0, NULL, 0, &count) == CGPU_OK && count == 0);
    for (end = check_seconds() + 1; cgpu_ledger_used(ledger, 0) != 0;) {
        CHECK(check_seconds() < end);
        check_sleep(0.01);
    }
    cgpu_ledger_detach(observer);
    cgpu_ledger_detach(ledger);
}

/* A process in a root of its own, where the ledger's path leads nowhere. */
static void
outlive_a_holder_in_a_jail(void *argument)
{
    struct shared *shared = argument;
    struct cgpu_ledger *ledger = check_attach(shared->path);
    char jail[PATH_MAX];
    uint64_t charged;

    snprintf(jail, sizeof jail, "%s.jail-XXXXXX", shared->path);
    say_ready(shared);
    wait_ready(shared, 2);
    CHECK(mkdtemp(jail) != NULL && chroot(jail) == 0 && chdir("/") == 0);
    CHECK(access(shared->path, F_OK) != 0);
    CHECK(cgpu_ledger_charge(ledger, 0, CAP, CAP, &charged) == CGPU_EOVERCAP);
    say_ready(shared);
    wait_ready(shared, 4);
    CHECK(cgpu_ledger_charge(ledger, 0, CAP, CAP, &charged) == CGPU_OK);
}

TEST(a_process_that_changed_its_root_gets_the_memory_of_dead_processes_back)
{
    struct shared shared = {.path = check_ledger(), .ready = check_shared(), .bytes = CAP};
    pid_t jailed = check_fork(outlive_a_holder_in_a_jail, &shared);
    pid_t holder;

    wait_ready(&shared, 1);
    holder = start_holder(&shared);
    wait_ready(&shared, 3);
    kill_and_wait(holder);
    say_ready(&shared);
    CHECK(check_wait(jailed) == 0);
}

/* As a process does that looks for the dead, and is slow. */
static void
reap_slowly(void *argument)
{
    struct shared *shared = argument;
    struct flock byte = {.l_type = F_WRLCK, .l_start = CGPU_LEDGER_REAPER_BYTE, .l_len = 1};
    int fd = open(shared->path, O_RDWR);

    CHECK(fcntl(fd, F_OFD_SETLK, &byte) == 0);
    say_ready(shared);
    check_sleep(0.1);
}

TEST(a_request_waits_for_another_process_that_is_reaping)
{
    struct shared shared = {.path = check_ledger(), .ready = check_shared(), .bytes = CAP};
    struct cgpu_ledger *ledger = check_attach(shared.path);
    pid_t holder = start_holder(&shared);
    pid_t reaper = check_fork(reap_slowly, &shared);
    uint64_t charged;

    wait_ready(&shared, 2);
    kill_and_wait(holder);
    CHECK(cgpu_ledger_charge(ledger, 0, CAP, CAP, &charged) == CGPU_OK);
    CHECK(check_wait(reaper) == 0);
    cgpu_ledger_detach(ledger);
}

static void
work_forever(void *argument)
{
    struct shared *shared = argument;
    struct cgpu_ledger *ledger = check_attach(shared->path);
    uint64_t charged[8] = {0};
    unsigned seed = (unsigned)getpid();

    say_ready(shared);
    for (;;) {
        uint64_t *bytes = &charged[(unsigned)rand_r(&seed) % 8];

        if (*bytes == 0) {
            CHECK(cgpu_ledger_charge(ledger, 0, CAP, CAP / 64, bytes) == CGPU_OK);
        } else {
            CHECK(cgpu_ledger_release(ledger, 0, *bytes) == CGPU_OK);
            *bytes = 0;
        }
    }
}

TEST(kills_at_random_points_leave_nothing_and_stop_nobody)
{
    struct shared shared = {.path = check_ledger(), .ready = check_shared()};
    struct cgpu_ledger *ledger = check_attach(shared.path);
    uint64_t charged;

    srandom(7);
    for (int round = 0; round < ROUNDS; round++) {
        pid_t victims[VICTIMS];

        *shared.ready = 0;
        for (int i = 0; i < VICTIMS; i++) {
            victims[i] = check_fork(work_forever, &shared);
        }
        wait_ready(&shared, VICTIMS);
        for (int i = 0; i < VICTIMS; i++) {
            check_sleep((double)(random() % 5000) / 1e6);
            CHECK(cgpu_ledger_used(ledger, 0) <= CAP / 2);
            kill_and_wait(victims[i]);
        }
        CHECK(cgpu_ledger_charge(ledger, 0, CAP, CAP, &charged) == CGPU_OK);
        CHECK(cgpu_ledger_release(ledger, 0, CAP) == CGPU_OK);
    }
    cgpu_ledger_detach(ledger);
}

/* Dies inside the critical section, with its own account changed and the total not. */
static void
die_inside(void *argument)
{
    struct shared *shared = argument;
    struct cgpu_ledger *ledger = check_attach(shared->path);
    uint64_t charged;

    CHECK(cgpu_ledger_charge(ledger, 0, CAP, 1000, &charged) == CGPU_OK);
    CHECK(cgpu_lock_take(ledger, 0) == CGPU_OK);
    ledger->file->slots[ledger->slot].used[0] += 5000;
    ledger->file->gpus[0].used += shared->bytes;
    CHECK(cgpu_lock_take(ledger, 1) == CGPU_OK); /* on a GPU where it holds nothing */
    say_ready(shared);
    raise(SIGKILL);
}

static void
recover(uint64_t half_done)
{
    struct shared shared = {.path = check_ledger(), .ready = check_shared(), .bytes = half_done};
    struct cgpu_ledger *ledger = check_attach(shared.path);
    uint64_t charged;

    CHECK(cgpu_ledger_charge(ledger, 0, CAP, 300, &charged) == CGPU_OK);
    CHECK(check_wait(check_fork(die_inside, &shared)) == 128 + SIGKILL);
    CHECK(cgpu_ledger_charge(ledger, 0, CAP, 40, &charged) == CGPU_OK);
    CHECK(ledger->file->gpus[0].used ==
          300 + 40 + 6000); /* the dead one's slot is not cleared yet */
    CHECK(cgpu_ledger_charge(ledger, 0, CAP, CAP - 340, &charged) == CGPU_OK);
    CHECK(cgpu_ledger_used(ledger, 0) == CAP && cgpu_ledger_own(ledger, 0) == CAP);
    CHECK(ledger->file->gpus[0].lock == 0);
    cgpu_ledger_detach(ledger);
}

TEST(a_death_inside_the_lock_before_the_total_is_mended)
{
    recover(0);
}

TEST(a_death_inside_the_lock_after_the_total_is_mended)
{
    recover(5000);
}

TEST(a_lock_that_died_with_its_holder_does_not_outlive_the_slot)
{
    struct shared shared = {.path = check_ledger(), .ready = check_shared()};
    struct cgpu_ledger *ledger = check_attach(shared.path);
    struct cgpu_ledger *next;
    uint64_t charged;

    CHECK(check_wait(check_fork(die_inside, &shared)) == 128 + SIGKILL);
    next = check_attach(shared.path); /* reaps; the lock's word named a slot that is free now */
    CHECK(ledger->file->gpus[0].lock == 0 && ledger->file->gpus[1].lock == 0);
    CHECK(cgpu_ledger_charge(next, 0, CAP, CAP, &charged) == CGPU_OK);
    cgpu_ledger_detach(next);
    cgpu_ledger_detach(ledger);
}

TEST(a_lock_word_of_an_earlier_generation_is_taken_over)
{
    struct cgpu_ledger *ledger = check_attach(check_ledger());
    uint32_t generation = ledger->file->slots[ledger->slot].generation;
    uint64_t charged;

    ledger->file->gpus[0].lock = cgpu_lock_word(ledger->slot, generation - 1);
    CHECK(cgpu_ledger_charge(ledger, 0, CAP, 1, &charged) == CGPU_OK);
    ledger->file->gpus[0].lock = 0x7ff; /* no slot at all */
    CHECK(cgpu_ledger_release(ledger, 0, 1) == CGPU_OK);
    cgpu_ledger_detach(ledger);
}

TEST(a_living_holder_is_waited_for_and_not_robbed)
{
    const char *path = check_ledger();
    struct cgpu_ledger *holder = check_attach(path);
    struct cgpu_ledger *ledger = check_attach(path);
    uint64_t charged;

    CHECK(cgpu_lock_take(holder, 0) == CGPU_OK);
    CHECK(cgpu_ledger_charge(ledger, 0, CAP, 1, &charged) == CGPU_EIO);
    cgpu_lock_give(holder, 0);
    CHECK(cgpu_ledger_charge(ledger, 0, CAP, 1, &charged) == CGPU_OK);
    cgpu_ledger_detach(ledger);
    cgpu_ledger_detach(holder);
}

TEST(a_reader_that_cannot_find_the_file_reclaims_nothing)
{
    struct shared shared = {.path = check_ledger(), .ready = check_shared(), .bytes = CAP};
    struct cgpu_ledger *ledger = check_attach(shared.path);
    uint64_t charged;
    pid_t child = start_holder(&shared);

    CHECK(unlink(shared.path) == 0);
    for (int fd = STDERR_FILENO + 1; fd < 1024; fd++) {
        close(fd);
    }
    CHECK(open("/dev/null", O_RDWR) > STDERR_FILENO); /* another file under the number */
    kill_and_wait(child);
    CHECK(cgpu_ledger_charge(ledger, 0, CAP, 1, &charged) == CGPU_EOVERCAP);
    cgpu_ledger_detach(ledger);
}

TEST(a_program_that_closes_every_descriptor_still_finds_dead_processes)
{
    struct shared shared = {.path = check_ledger(), .ready = check_shared(), .bytes = CAP};
    struct cgpu_ledger *ledger = check_attach(shared.path);
    uint64_t charged;
    pid_t child = start_holder(&shared);

    for (int fd = STDERR_FILENO + 1; fd < 1024; fd++) {
        close(fd);
    }
    kill_and_wait(child);
    CHECK(cgpu_ledger_charge(ledger, 0, CAP, CAP, &charged) == CGPU_OK);
    cgpu_ledger_detach(ledger);
}

TEST(the_living_are_not_looked_for_in_another_file_of_that_name)
{
    struct shared shared = {.path = check_ledger(), .ready = check_shared(), .bytes = CAP};
    struct cgpu_ledger *ledger = check_attach(shared.path);
    uint64_t charged;

    start_holder(&shared);
    CHECK(unlink(shared.path) == 0 && cgpu_ledger_create(AT_FDCWD, shared.path) == CGPU_OK);
    CHECK(cgpu_ledger_charge(ledger, 0, CAP, 1, &charged) == CGPU_EOVERCAP);
    CHECK(cgpu_ledger_used(ledger, 0) == CAP);
    cgpu_ledger_detach(ledger);
}

static void
attach_and_die(void *argument)
{
    struct shared *shared = argument;
    struct cgpu_ledger *ledger = check_attach(shared->path);
    uint64_t charged;

    CHECK(cgpu_ledger_charge(ledger, 0, CAP, 100, &charged) == CGPU_OK);
    raise(SIGKILL);
}

TEST(a_thousand_processes_over_time_leave_nothing)
{
    struct shared shared = {.path = check_ledger()};
    struct cgpu_ledger *ledger = check_attach(shared.path);

    for (int i = 0; i < 1000; i++) {
        CHECK(check_wait(check_fork(attach_and_die, &shared)) == 128 + SIGKILL);
    }
    cgpu_ledger_detach(check_attach(shared.path));
    CHECK(cgpu_ledger_used(ledger, 0) == 0);
    CHECK(ledger->file->slot_bound < 10); /* slots were used again as they came free */
    for (uint32_t slot = 0; slot < CGPU_LEDGER_SLOTS; slot++) {
        CHECK(ledger->file->slots[slot].taken == (slot == ledger->slot ? 1 : 0));
    }
    cgpu_ledger_detach(ledger);
}

TEST(a_full_ledger_refuses_until_a_process_leaves)
{
    static struct cgpu_ledger *ledgers[CGPU_LEDGER_SLOTS];
    const char *path = check_ledger();
    struct cgpu_ledger *extra = NULL;

    for (int i = 0; i < CGPU_LEDGER_SLOTS; i++) {
        ledgers[i] = check_attach(path);
    }
    CHECK(cgpu_ledger_attach(path, 1, &extra) == CGPU_EFULL && extra == NULL);
    cgpu_ledger_detach(ledgers[500]);
    CHECK(cgpu_ledger_attach(path, 1, &extra) == CGPU_OK);
    CHECK(extra->slot == 500);
    cgpu_ledger_detach(extra);
    ledgers[500] = NULL;
    for (int i = 0; i < CGPU_LEDGER_SLOTS; i++) {
        cgpu_ledger_detach(ledgers[i]);
    }
}

static void
hold_many_and_die(void *argument)
{
    struct shared *shared = argument;
    uint64_t charged;

    for (int i = 0; i < CGPU_LEDGER_SLOTS; i++) {
        struct cgpu_ledger *ledger = check_attach(shared->path);

        CHECK(cgpu_ledger_charge(ledger, 0, CAP, 1, &charged) == CGPU_OK);
    }
    raise(SIGKILL);
}

TEST(a_ledger_full_of_the_dead_has_room)
{
    struct shared shared = {.path = check_ledger()};
    struct cgpu_ledger *ledger;
    uint64_t charged;

    CHECK(check_wait(check_fork(hold_many_and_die, &shared)) == 128 + SIGKILL);
    ledger = check_attach(shared.path);
    CHECK(cgpu_ledger_charge(ledger, 0, CAP, CAP, &charged) == CGPU_OK);
    cgpu_ledger_detach(ledger);
}
