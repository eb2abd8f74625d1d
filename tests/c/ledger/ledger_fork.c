/* A forked child neither has its parent's slot nor keeps it alive. */
#define _GNU_SOURCE 1

#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "ledger/attachment.h"
#include "ledger/slot.h"

enum { CAP = 1000 };

static bool overlay; /* what fstatfs says; the linker sends native's calls here */

int __real_fstatfs(int fd, struct statfs *out);
int __wrap_fstatfs(int fd, struct statfs *out);

int
__wrap_fstatfs(int fd, struct statfs *out)
{
    int result = __real_fstatfs(fd, out);

    if (overlay) {
        out->f_type = OVERLAYFS_SUPER_MAGIC;
    }
    return result;
}

struct family {
    const char *path;
    struct cgpu_ledger *ledger;
    pid_t *grandchild;
};

static void
expect_detached(void *argument)
{
    struct family *family = argument;
    struct cgpu_ledger *ledger = family->ledger;
    uint64_t charged;
    size_t count;

    CHECK(cgpu_ledger_charge(ledger, 0, CAP, 1, &charged) == CGPU_EINVAL);
    CHECK(cgpu_ledger_release(ledger, 0, 1) == CGPU_EINVAL);
    CHECK(cgpu_ledger_used(ledger, 0) == 0 && cgpu_ledger_own(ledger, 0) == 0);
    CHECK(cgpu_ledger_refused(ledger, 0) == 0);
    CHECK(cgpu_ledger_processes(ledger, 0, NULL, 0, &count) == CGPU_EINVAL);
    cgpu_ledger_detach(ledger);
    ledger = check_attach(family->path);
    CHECK(cgpu_ledger_used(ledger, 0) == 600);
    CHECK(cgpu_ledger_charge(ledger, 0, CAP, 400, &charged) == CGPU_OK);
    CHECK(cgpu_ledger_own(ledger, 0) == 400 && cgpu_ledger_used(ledger, 0) == CAP);
    cgpu_ledger_detach(ledger);
}

static void
check_child(void)
{
    struct family family = {.path = check_ledger()};
    uint64_t charged;

    family.ledger = check_attach(family.path);
    CHECK(cgpu_ledger_charge(family.ledger, 0, CAP, 600, &charged) == CGPU_OK);
    CHECK(check_wait(check_fork(expect_detached, &family)) == 0);
    CHECK(cgpu_ledger_used(family.ledger, 0) == 600 && cgpu_ledger_own(family.ledger, 0) == 600);
    cgpu_ledger_detach(family.ledger);
}

TEST(a_child_is_detached_and_attaches_anew)
{
    check_child();
}

TEST(a_child_is_detached_on_overlayfs_too)
{
    overlay = true;
    check_child();
}

static void
sleep_on(void *argument)
{
    (void)argument;
    prctl(PR_SET_PDEATHSIG, 0);
    alarm(60);
    pause();
}

static void
leave_a_child_behind(void *argument)
{
    struct family *family = argument;
    struct cgpu_ledger *ledger = check_attach(family->path);
    uint64_t charged;

    CHECK(cgpu_ledger_charge(ledger, 0, CAP, CAP, &charged) == CGPU_OK);
    *family->grandchild = check_fork(sleep_on, NULL);
    raise(SIGKILL);
}

static void
check_orphan(void)
{
    struct family family = {.path = check_ledger(), .grandchild = check_shared()};
    struct cgpu_ledger *ledger = check_attach(family.path);
    uint64_t charged;

    CHECK(check_wait(check_fork(leave_a_child_behind, &family)) == 128 + SIGKILL);
    CHECK(kill(*family.grandchild, 0) == 0);
    /* the child may not have run yet when its parent died */
    for (double end = check_seconds() + 1;
         cgpu_ledger_charge(ledger, 0, CAP, CAP, &charged) != CGPU_OK;) {
        CHECK(check_seconds() < end);
        check_sleep(0.01);
    }
    CHECK(kill(*family.grandchild, SIGKILL) == 0);
    cgpu_ledger_detach(ledger);
}

TEST(a_child_does_not_keep_its_dead_parents_slot)
{
    check_orphan();
}

TEST(a_child_does_not_keep_its_dead_parents_slot_on_overlayfs_either)
{
    overlay = true;
    check_orphan();
}

TEST(a_program_that_closes_every_descriptor_keeps_its_slot)
{
    const char *path = check_ledger();
    struct cgpu_ledger *ledger = check_attach(path);
    struct cgpu_ledger *observer;
    uint64_t charged;

    CHECK(cgpu_ledger_charge(ledger, 0, CAP, 600, &charged) == CGPU_OK);
    for (int fd = 3; fd < 1024; fd++) {
        close(fd);
    }
    CHECK(cgpu_ledger_observe(path, &observer) == CGPU_OK);
    CHECK(cgpu_ledger_used(observer, 0) == 600);
    cgpu_ledger_detach(observer);
    cgpu_ledger_detach(ledger);
}

static void
expect_writable(void *argument)
{
    CHECK(write(*(int *)argument, "x", 1) == 1);
}

TEST(a_number_reused_by_the_program_is_not_closed_in_its_children)
{
    const char *path = check_ledger();
    struct cgpu_ledger *ledger;
    int kept = dup(0);
    int pair[2];

    overlay = true;
    close(kept);
    ledger = check_attach(path);
    CHECK(ledger->kept == kept);
    CHECK(pipe(pair) == 0 && pair[0] != kept);
    CHECK(dup2(pair[1], kept) == kept); /* closes the ledger's */
    CHECK(check_wait(check_fork(expect_writable, &kept)) == 0);
    cgpu_ledger_detach(ledger);
    CHECK(write(kept, "x", 1) == 1);
}

static void
expect_closed(void *argument)
{
    CHECK(fcntl(*(int *)argument, F_GETFD) == -1);
}

TEST(a_child_does_not_inherit_the_descriptor_that_is_kept)
{
    struct cgpu_ledger *ledger = check_attach(check_ledger());
    int kept = dup(0) - 1;

    close(kept + 1);
    CHECK(fcntl(kept, F_GETFD) == FD_CLOEXEC);
    CHECK(check_wait(check_fork(expect_closed, &kept)) == 0);
    CHECK(fcntl(kept, F_GETFD) == FD_CLOEXEC);
    cgpu_ledger_detach(ledger);
}

static bool
try_all(struct cgpu_ledger *ledger)
{
    uint64_t charged;

    return cgpu_ledger_charge(ledger, 0, CAP, CAP, &charged) == CGPU_OK;
}

TEST(a_process_that_executes_another_program_gives_its_slot_back)
{
    const char *path = check_ledger();
    struct cgpu_ledger *ledger = check_attach(path);
    bool *charged_once = check_shared();
    pid_t child = fork();

    if (child == 0) {
        struct cgpu_ledger *own = check_attach(path);

        *charged_once = try_all(own);
        execlp("sleep", "sleep", "60", (char *)NULL);
        _exit(1);
    }
    for (double end = check_seconds() + 10; *charged_once == 0 || !try_all(ledger);) {
        CHECK(check_seconds() < end);
        check_sleep(0.01);
    }
    CHECK(waitpid(child, NULL, WNOHANG) == 0); /* it lives on */
    CHECK(kill(child, SIGKILL) == 0);
    cgpu_ledger_detach(ledger);
}

static void
wait_to_be_killed(void *unused)
{
    (void)unused;
    for (;;) {
        pause();
    }
}

static void *
attach(void *path)
{
    return check_attach(path);
}

/* Lock or unlock the byte of whoever reaps: a process waits for it where no slot is free. */
static void
set_reaper(int fd, short type)
{
    struct flock byte = {.l_type = type, .l_start = CGPU_LEDGER_REAPER_BYTE, .l_len = 1};

    CHECK(fcntl(fd, F_OFD_SETLK, &byte) == 0);
}

TEST(a_child_forked_while_another_thread_attaches_does_not_keep_the_slot_alive)
{
    const char *path = check_ledger();
    struct cgpu_ledger_file *file = check_map(path);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    pthread_t thread;
    void *ledger;
    pid_t child;

    for (int slot = 0; slot < CGPU_LEDGER_SLOTS; slot++) {
        file->slots[slot].taken = 1;
    }
    file->slot_bound = CGPU_LEDGER_SLOTS;
    set_reaper(fd, F_WRLCK);
    CHECK(pthread_create(&thread, NULL, attach, (void *)(uintptr_t)path) == 0);
    check_sleep(0.1);
    child = check_fork(wait_to_be_killed, NULL);
    set_reaper(fd, F_UNLCK);
    CHECK(pthread_join(thread, &ledger) == 0);
    cgpu_ledger_detach(ledger);
    /* the child lets go when it first runs */
    for (double end = check_seconds() + 10; !cgpu_slot_dead(fd, 0);) {
        CHECK(check_seconds() < end);
        check_sleep(0.01);
    }
    CHECK(kill(child, SIGKILL) == 0);
    CHECK(check_wait(child) == 128 + SIGKILL);
}
