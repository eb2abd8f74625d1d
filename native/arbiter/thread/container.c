/* A container under arbitration: see container.h. */
#define _GNU_SOURCE 1

#include "arbiter/thread/container.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"
#include "futex.h"
#include "ledger/ledger.h"
#include "ledger/lock.h"
#include "ledger/slot.h"

/* The least time between two checks that a process lives: usually, and when its work is due. */
#define ASK_NS      UINT64_C(2000000)
#define ASK_LATE_NS UINT64_C(200000)

/*
 * How many processes may be checked in one sample: a container may claim that all of them are busy.
 */
enum { ASKS = 16 };

/*
 * To check that a process lives, the kernel walks all locks that the container holds on its ledger:
 * 12 us for a thousand. All checks together may take 1/ASK_TIMES of the time; at most SPARE_NS of
 * unused time is saved. Other containers wait during a check, so a long one costs a longer pause:
 * up to 350 ms after a check of 1 ms. No check costs more than MOST_NS.
 */
#define COSTLY_NS UINT64_C(100000)
#define SPARE_NS  UINT64_C(20000000)
#define MOST_NS   UINT64_C(60000000000)
enum { ASK_TIMES = 32 };

enum { CHUNK_WORKS = 16, BELLS_SIZE = offsetof(struct cgpu_ledger_file, works) };

static int
open_file(const char *path, int flags, uint64_t size)
{
    int fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat status;

    if (fd < 0) {
        return CGPU_EIO;
    }
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && (uint64_t)status.st_size == size) {
        return fd;
    }
    close(fd);
    return CGPU_EFORMAT;
}

static int
map(int fd, int protection, size_t size, void **out)
{
    *out = mmap(NULL, size, protection, MAP_SHARED, fd, 0);
    if (*out == MAP_FAILED) {
        *out = NULL;
        return CGPU_EIO;
    }
    return CGPU_OK;
}

static int
open_limits(struct cgpu_container *container, const char *path, uint32_t number)
{
    const struct cgpu_limits *none = NULL;
    int fd = open_file(path, O_RDWR, sizeof *none);
    struct stat facts;
    void *mapped;
    int status;
    int saved;

    if (fd < 0) {
        return fd;
    }
    container->identity = fstat(fd, &facts) == 0 ? facts.st_ino : 0;
    status = map(fd, PROT_READ | PROT_WRITE, sizeof *none, &mapped);
    saved = errno;
    close(fd);
    errno = saved;
    if (status != CGPU_OK) {
        return status;
    }
    container->limits = mapped;
    if (container->limits->magic != CGPU_LIMITS_MAGIC ||
        container->limits->version != CGPU_LIMITS_VERSION ||
        container->limits->size != sizeof *none) {
        return CGPU_EFORMAT;
    }
    if (number >= container->limits->gpu_count || number >= CGPU_MAX_GPUS) {
        return CGPU_EINVAL;
    }
    container->entry = &container->limits->gpus[number];
    container->identity = container->limits->gpu_count > 1 ? container->identity : 0;
    return CGPU_OK;
}

static int
open_ledger(struct cgpu_container *container, const char *path)
{
    const struct cgpu_ledger_file *none = NULL;
    uint32_t head[3];
    int fd = open_file(path, O_RDONLY, sizeof *none);

    if (fd < 0) {
        return fd;
    }
    container->ledger = fd;
    if (pread(fd, head, sizeof head, 0) != sizeof head || head[0] != CGPU_LEDGER_MAGIC ||
        head[1] != CGPU_LEDGER_VERSION || head[2] != sizeof *none) {
        return CGPU_EFORMAT;
    }
    return map(fd, PROT_READ, BELLS_SIZE, &container->bells);
}

int
cgpu_container_open(const char *limits, const char *ledger, uint32_t number,
                    struct cgpu_container **out)
{
    struct cgpu_container *container = calloc(1, sizeof *container);
    int status;

    if (container == NULL) {
        return CGPU_EIO;
    }
    container->ledger = -1;
    container->number = number;
    status = open_limits(container, limits, number);
    if (status == CGPU_OK) {
        status = open_ledger(container, ledger);
    }
    if (status != CGPU_OK) {
        cgpu_container_close(container);
        return status;
    }
    if (cgpu_gate_state(cgpu_container_gate(container)) != CGPU_GATE_FREE) {
        cgpu_container_set_gate(container, CGPU_GATE_CLOSED, false);
    }
    *out = container;
    return CGPU_OK;
}

void
cgpu_container_close(struct cgpu_container *container)
{
    int saved = errno;

    if (container->limits != NULL) {
        munmap(container->limits, sizeof *container->limits);
    }
    if (container->bells != NULL) {
        munmap(container->bells, BELLS_SIZE);
    }
    if (container->ledger >= 0) {
        close(container->ledger);
    }
    free(container);
    errno = saved;
}

/* Read from the ledger. A ledger that was truncated once is never trusted again. */
static bool
read_ledger(struct cgpu_container *container, void *out, size_t size, size_t offset)
{
    if (pread(container->ledger, out, size, (off_t)offset) != (ssize_t)size) {
        container->broken = true;
    }
    return !container->broken;
}

static bool
slot_is_alive(struct cgpu_container *container, uint32_t owner)
{
    uint32_t index = cgpu_lock_holder(owner);
    uint32_t head[2];

    _Static_assert(offsetof(struct cgpu_ledger_slot, taken) == 0 &&
                       offsetof(struct cgpu_ledger_slot, generation) == 4,
                   "head");
    if (index >= CGPU_LEDGER_SLOTS ||
        !read_ledger(container, head, sizeof head,
                     offsetof(struct cgpu_ledger_file, slots[index]))) {
        return false;
    }
    return head[0] != 0 && cgpu_lock_word(index, head[1]) == owner &&
           !cgpu_slot_dead(container->ledger, index);
}

static struct cgpu_container_work *
known_work(struct cgpu_container *container, uint32_t index, const struct cgpu_ledger_work *work)
{
    struct cgpu_container_work *known = &container->works[index];

    if (known->owner != work->owner) {
        *known = (struct cgpu_container_work){
            .owner = work->owner, .busy_ns = work->busy_ns, .done_us = work->done_us};
    }
    return known;
}

static void
pay(struct cgpu_container *container, uint64_t took, uint64_t now)
{
    uint64_t least = now > SPARE_NS ? now - SPARE_NS : 0;
    uint64_t price = took * ASK_TIMES * (1 + took / COSTLY_NS);

    if (container->paid_ns < least) {
        container->paid_ns = least;
    }
    container->paid_ns += price < MOST_NS ? price : MOST_NS;
}

static bool
ask(struct cgpu_container *container, uint32_t owner, uint64_t now)
{
    uint64_t begun = cgpu_clock_spent();
    bool alive = slot_is_alive(container, owner);

    pay(container, cgpu_clock_spent() - begun, now);
    return alive;
}

/*
 * Whether WORK's process lives. The check costs two system calls, so its result is kept for a
 * while; for a shorter one if WORK should have ended by now, because others may be waiting for a
 * dead process.
 */
static bool
is_alive(struct cgpu_container *container, struct cgpu_container_work *known,
         const struct cgpu_ledger_work *work, uint64_t now)
{
    bool late = work->active != 0 &&
                (now > work->end_ns || !cgpu_gate_is_open(cgpu_container_gate(container)));

    if (!known->dead && container->asks < ASKS && now >= container->paid_ns &&
        (known->asked_ns == 0 || now - known->asked_ns >= (late ? ASK_LATE_NS : ASK_NS))) {
        container->asks += 1;
        known->asked_ns = now;
        known->dead = !ask(container, work->owner, now);
    }
    return !known->dead;
}

static void
add_work(struct cgpu_container *container, uint32_t index, const struct cgpu_ledger_work *work,
         uint64_t now, struct cgpu_demand *out)
{
    struct cgpu_container_work *known = known_work(container, index, work);

    if (work->busy_ns > known->busy_ns) {
        container->busy_ns += work->busy_ns - known->busy_ns;
    }
    known->busy_ns = work->busy_ns;
    container->done_ns += (uint64_t)(work->done_us - known->done_us) * 1000; /* modulo 2^32 */
    known->done_us = work->done_us;
    /* if it is quiet, this is when its last work ended */
    out->end_ns = work->end_ns > out->end_ns ? work->end_ns : out->end_ns;
    if ((work->active == 0 && work->waiting == 0) || !is_alive(container, known, work, now)) {
        return;
    }
    /* processes of one container wait for each other, so the least lag is the GPU's */
    if (work->lag_ns != 0 && (out->lag_ns == 0 || work->lag_ns < out->lag_ns)) {
        out->lag_ns = work->lag_ns;
    }
    out->waiting = out->waiting || work->waiting != 0;
    out->missed += work->missed;
    if (work->active == 0) {
        return;
    }
    if (!out->active || work->begun_ns < out->begun_ns) {
        out->begun_ns = work->begun_ns;
    }
    out->idle = work->idle != 0 && (out->idle || !out->active);
    out->soon = out->soon || work->idle == CGPU_IDLE_SOON;
    out->certain = work->certain != 0 && work->end_ns != 0 && (out->certain || !out->active);
    out->active = true;
    out->processes += 1;
}

/*
 * Read the GPU's entry: the bell, before everything else is read, and what stalled since the last
 * sample.
 */
static bool
read_gpu(struct cgpu_container *container)
{
    struct cgpu_ledger_gpu before = container->gpu;
    const struct cgpu_ledger_gpu *gpu = &container->gpu;

    if (!read_ledger(container, &container->gpu, sizeof container->gpu,
                     offsetof(struct cgpu_ledger_file, gpus[container->number]))) {
        return false;
    }
    container->bell = gpu->bell;
    if (container->sampled) {
        container->stalls += gpu->stalls != before.stalls;
        container->stalled_ns +=
            gpu->stalled_ns > before.stalled_ns ? gpu->stalled_ns - before.stalled_ns : 0;
    }
    container->sampled = true;
    return true;
}

void
cgpu_container_sample(struct cgpu_container *container, uint64_t now, struct cgpu_demand *out)
{
    struct cgpu_ledger_work works[CHUNK_WORKS];
    uint32_t bound = 0;

    *out = (struct cgpu_demand){.busy_ns = container->busy_ns, .done_ns = container->done_ns};
    container->asks = 0;
    if (container->broken || !read_gpu(container) ||
        !read_ledger(container, &bound, sizeof bound,
                     offsetof(struct cgpu_ledger_file, work_bound))) {
        return;
    }
    bound = bound < CGPU_LEDGER_WORKS ? bound : CGPU_LEDGER_WORKS;
    for (uint32_t first = 0; first < bound; first += CHUNK_WORKS) {
        uint32_t count = bound - first < CHUNK_WORKS ? bound - first : CHUNK_WORKS;

        if (!read_ledger(container, works, count * sizeof *works,
                         offsetof(struct cgpu_ledger_file, works[first]))) {
            break;
        }
        for (uint32_t i = 0; i < count; i++) {
            if (works[i].owner != 0 && works[i].gpu == container->number) {
                add_work(container, first + i, &works[i], now, out);
            }
        }
    }
    if (container->broken) {
        *out = (struct cgpu_demand){0};
    }
    out->busy_ns = container->busy_ns;
    out->done_ns = container->done_ns;
    out->stalls = container->stalls;
    out->stalled_ns = container->stalled_ns;
}

uint32_t
cgpu_container_gate(const struct cgpu_container *container)
{
    /* relaxed: only this thread writes it */
    return __atomic_load_n(&container->entry->gate, __ATOMIC_RELAXED);
}

void
cgpu_container_set_gate(struct cgpu_container *container, enum cgpu_gate state, bool quiet)
{
    uint32_t word = cgpu_gate_next(cgpu_container_gate(container), state);

    /* relaxed: the gate is stored after it */
    __atomic_store_n(&container->entry->quiet_gate, quiet ? word : 0, __ATOMIC_RELAXED);
    /* seq_cst: if a process was still let in, its ledger shows that from now on */
    __atomic_store_n(&container->entry->gate, word, __ATOMIC_SEQ_CST);
    cgpu_futex_wake(&container->entry->gate, FUTEX_WAKE, INT_MAX);
}

/* Set `metered`, but only if it differs: processes read the cache line with every launch. */
void
cgpu_container_set_metered(struct cgpu_container *container, uint32_t metered)
{
    if (__atomic_load_n(&container->entry->metered, __ATOMIC_RELAXED) != metered) {
        __atomic_store_n(&container->entry->metered, metered, __ATOMIC_RELAXED);
    }
}

uint32_t *
cgpu_container_bell(const struct cgpu_container *container)
{
    return &((struct cgpu_ledger_file *)container->bells)->gpus[container->number].bell;
}

/* All stores but the last are relaxed: each figure stands for itself. */
void
cgpu_container_publish(struct cgpu_container *container, const struct cgpu_tenant_report *report,
                       uint64_t now)
{
    struct cgpu_limits_gpu *entry = container->entry;

    __atomic_store_n(&entry->share_ppm, report->fallback_ppm, __ATOMIC_RELAXED);
    __atomic_store_n(&entry->offset_ppm, report->offset_ppm, __ATOMIC_RELAXED);
    __atomic_store_n(&entry->measured_ppm, report->measured_ppm, __ATOMIC_RELAXED);
    __atomic_store_n(&entry->limit_ppm, report->limit_ppm, __ATOMIC_RELAXED);
    __atomic_store_n(&entry->charged_ns, report->charged_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&entry->throttled_ns, report->throttled_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&entry->waits, report->waits, __ATOMIC_RELAXED);
    __atomic_store_n(&entry->metered, report->metered, __ATOMIC_RELAXED);
    /* release: a process that sees the heartbeat also sees its share */
    __atomic_store_n(&entry->heartbeat_ns, now, __ATOMIC_RELEASE);
}
