/* Containers for the tests of arbitration: see guest.h. */
#define _GNU_SOURCE 1

#include "guest.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "futex.h"
#include "gate/gate.h"
#include "ledger/work.h"

static struct guest *made[8];
static pid_t maker;

static void
remove_files(void)
{
    for (unsigned i = 0; i < 8 && getpid() == maker; i++) {
        if (made[i] != NULL) {
            unlink(made[i]->limits);
            unlink(made[i]->ledger);
        }
    }
}

struct guest_scene *
guest_scene(void)
{
    maker = getpid();
    atexit(remove_files);
    return check_shared();
}

static struct cgpu_limits *
make_limits(const char *path)
{
    const struct cgpu_limits limits = {
        .magic = CGPU_LIMITS_MAGIC,
        .version = CGPU_LIMITS_VERSION,
        .size = sizeof limits,
        .gpu_count = 1,
        .weight = 1,
    };
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    void *page;

    CHECK(fd >= 0 && write(fd, &limits, sizeof limits) == sizeof limits);
    page = mmap(NULL, sizeof limits, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(page != MAP_FAILED);
    close(fd);
    return page;
}

struct guest *
guest_make(struct guest_scene *scene, uint32_t number, uint32_t kernel_us)
{
    const char *folder = getenv("TMPDIR");
    struct guest *guest = calloc(1, sizeof *guest);

    CHECK(guest != NULL);
    folder = folder != NULL ? folder : "/tmp";
    snprintf(guest->limits, GUEST_PATH, "%s/limits-%d-%u", folder, getpid(), number);
    snprintf(guest->ledger, GUEST_PATH, "%s/ledger-%d-%u", folder, getpid(), number);
    unlink(guest->ledger);
    CHECK(cgpu_ledger_create(AT_FDCWD, guest->ledger) == CGPU_OK);
    guest->page = make_limits(guest->limits);
    guest->file = check_map(guest->ledger);
    guest->scene = scene;
    guest->number = number;
    guest->kernel_us = kernel_us;
    made[number] = guest;
    return guest;
}

uint32_t
guest_gate(const struct guest *guest)
{
    return __atomic_load_n(&guest->page->gpus[0].gate, __ATOMIC_ACQUIRE);
}

static void
wait_outside(struct guest *guest, struct cgpu_ledger *ledger, struct cgpu_ledger_work *work)
{
    uint32_t word = guest_gate(guest);

    if (cgpu_gate_is_open(word)) {
        return;
    }
    __atomic_store_n(&work->waiting, 1, __ATOMIC_SEQ_CST);
    cgpu_work_ring(ledger, 0);
    while (!cgpu_gate_is_open(word)) {
        (void)cgpu_futex_wait(&guest->page->gpus[0].gate, FUTEX_WAIT, word, NULL);
        word = guest_gate(guest);
    }
    __atomic_store_n(&work->waiting, 0, __ATOMIC_SEQ_CST);
}

static void
launch(struct guest *guest)
{
    struct guest_scene *scene = guest->scene;
    uint32_t others = 0;

    __atomic_add_fetch(&scene->entered[guest->number], 1, __ATOMIC_SEQ_CST);
    for (uint32_t i = 0; i < 8; i++) {
        others += i != guest->number && __atomic_load_n(&scene->entered[i], __ATOMIC_SEQ_CST) != 0;
    }
    if (others != 0) {
        __atomic_add_fetch(&scene->overlaps, 1, __ATOMIC_SEQ_CST);
    }
    usleep(guest->kernel_us);
    __atomic_sub_fetch(&scene->entered[guest->number], 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&scene->launches[guest->number], 1, __ATOMIC_SEQ_CST);
}

static void
work_on(void *argument)
{
    struct guest *guest = argument;
    struct cgpu_ledger *ledger = check_attach(guest->ledger);
    struct cgpu_ledger_work *work;

    signal(SIGBUS, SIG_DFL); /* a sanitizer would make an exit status of it */
    CHECK(cgpu_work_claim(ledger, 0, &work) == CGPU_OK);
    for (;;) {
        uint32_t word;

        wait_outside(guest, ledger, work);
        word = guest_gate(guest);
        __atomic_store_n(&work->active, word, __ATOMIC_SEQ_CST);
        while (cgpu_gate_is_open(word) && guest_gate(guest) == word) {
            launch(guest);
        }
        __atomic_store_n(&work->active, 0, __ATOMIC_SEQ_CST);
        cgpu_work_ring(ledger, 0);
    }
}

pid_t
guest_run(struct guest *guest)
{
    return check_fork(work_on, guest);
}

bool
guest_advances(const struct guest *guest, uint32_t count)
{
    const uint32_t *launches = &guest->scene->launches[guest->number];
    uint32_t before = __atomic_load_n(launches, __ATOMIC_SEQ_CST);

    for (double end = check_seconds() + 10; check_seconds() < end; check_sleep(0.002)) {
        if (__atomic_load_n(launches, __ATOMIC_SEQ_CST) - before >= count) {
            return true;
        }
    }
    return false;
}
