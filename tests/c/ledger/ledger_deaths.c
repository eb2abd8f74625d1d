/* MEM-7: processes that die, wherever they are, give back what they hold; those that live lose
 * nothing. */
#define _GNU_SOURCE 1

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "ledger_holder.h"

enum { VICTIMS = 4, ROUNDS = 100 };

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
