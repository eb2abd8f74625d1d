/*
 * A ledger and limits into which somebody wrote anything: for the host that looks at them,
 * for the arbiter, and for a process of the container (REL-5, REL-7).
 *
 * An input is a list of changes to sound files: four bytes that say where, one that says how many,
 * and these. The ledger comes first, the limits behind it. The highest bit of the position cuts
 * the file there instead.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"
#include "native/arbiter/thread/container.h"
#include "native/ledger/ledger.h"
#include "native/ledger/work.h"

enum { PATH = 256, HEAD = 5, MOST_WRITTEN = 64 };

#define CUT 0x80000000u

struct sound {
    char path[PATH];
    size_t size;
    void *bytes;
};

static struct sound ledger, limits;

static void
restore(const struct sound *file)
{
    int fd = open(file->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    FUZZ_CHECK(fd >= 0 && pwrite(fd, file->bytes, file->size, 0) == (ssize_t)file->size);
    FUZZ_CHECK(ftruncate(fd, (off_t)file->size) == 0);
    close(fd);
}

static void
name(struct sound *file, const char *word, size_t size)
{
    snprintf(file->path, PATH, "%s/%s", getenv("TMPDIR"), word);
    file->size = size;
    file->bytes = calloc(1, size);
}

/* As it is with two processes, of which one has died. */
static void
make_ledger(void)
{
    struct cgpu_ledger *living;
    struct cgpu_ledger_work *work;
    struct cgpu_ledger_file *file = ledger.bytes;
    uint64_t charged;
    int fd;

    FUZZ_CHECK(cgpu_ledger_create(AT_FDCWD, ledger.path) == CGPU_OK);
    FUZZ_CHECK(cgpu_ledger_attach(ledger.path, 7, &living) == CGPU_OK); /* and is never detached */
    FUZZ_CHECK(cgpu_ledger_charge(living, 0, 1 << 20, 4096, &charged) == CGPU_OK);
    FUZZ_CHECK(cgpu_work_claim(living, 0, &work) == CGPU_OK);
    cgpu_work_begin(work, 9, 70);
    fd = open(ledger.path, O_RDONLY | O_CLOEXEC);
    FUZZ_CHECK(pread(fd, file, ledger.size, 0) == (ssize_t)ledger.size);
    close(fd);
    file->slots[1] = (struct cgpu_ledger_slot){.taken = 1, .generation = 3, .pid = 8, .used = {42}};
    file->slot_bound = 2;
}

void
fuzz_begin(void)
{
    name(&ledger, "ledger", sizeof(struct cgpu_ledger_file));
    name(&limits, "limits", sizeof(struct cgpu_limits));
    make_ledger();
    *(struct cgpu_limits *)limits.bytes = (struct cgpu_limits){
        .magic = CGPU_LIMITS_MAGIC,
        .version = CGPU_LIMITS_VERSION,
        .size = sizeof(struct cgpu_limits),
        .gpu_count = 2,
        .weight = 1,
    };
}

static void
alter(const struct sound *file, uint32_t at, const unsigned char *bytes, size_t count)
{
    int fd = open(file->path, O_WRONLY | O_CLOEXEC);

    if (fd >= 0 && (at & CUT) != 0) {
        FUZZ_CHECK(ftruncate(fd, (off_t)(at & ~CUT)) == 0);
    } else if (fd >= 0) {
        FUZZ_CHECK(pwrite(fd, bytes, count, (off_t)at) == (ssize_t)count);
    }
    close(fd);
}

static void
spoil(const unsigned char *data, size_t size)
{
    while (size >= HEAD) {
        size_t count = data[4] % MOST_WRITTEN;
        uint32_t at;

        memcpy(&at, data, sizeof at);
        count = count < size - HEAD ? count : size - HEAD;
        if ((at & ~CUT) < ledger.size) {
            alter(&ledger, at, data + HEAD, count);
        } else {
            at = (at & CUT) | (uint32_t)(((at & ~CUT) - ledger.size) % limits.size);
            alter(&limits, at, data + HEAD, count);
        }
        data += HEAD + count;
        size -= HEAD + count;
    }
}

static void
observe(void)
{
    static struct cgpu_survey survey;
    static struct cgpu_process processes[4];
    struct cgpu_ledger *it;
    size_t many;

    if (cgpu_ledger_observe(ledger.path, &it) != CGPU_OK) {
        return;
    }
    FUZZ_CHECK(cgpu_ledger_survey(it, &survey) == CGPU_OK);
    FUZZ_CHECK(survey.count <= CGPU_LEDGER_SLOTS && survey.asked <= CGPU_LEDGER_SLOTS);
    for (uint32_t gpu = 0; gpu <= CGPU_MAX_GPUS; gpu += CGPU_MAX_GPUS / 2) {
        (void)cgpu_ledger_used(it, gpu);
        (void)cgpu_ledger_total(it, gpu);
        (void)cgpu_ledger_refused(it, gpu);
        FUZZ_CHECK(cgpu_ledger_processes(it, gpu, processes, 4, &many) == CGPU_OK);
        FUZZ_CHECK(many <= CGPU_LEDGER_SLOTS);
    }
    cgpu_ledger_detach(it);
}

static void
arbitrate(void)
{
    struct cgpu_container *container;
    struct cgpu_demand demand;

    for (uint32_t gpu = 0; gpu < 3; gpu++) {
        if (cgpu_container_open(limits.path, ledger.path, gpu, &container) != CGPU_OK) {
            continue;
        }
        for (uint64_t now = 0; now < 3; now++) {
            cgpu_container_sample(container, now * 1000000000, &demand);
        }
        cgpu_container_set_gate(container, CGPU_GATE_CLOSED, false);
        cgpu_container_close(container);
    }
}

static void
take_part(void)
{
    struct cgpu_ledger *it;
    struct cgpu_ledger_work *work;
    uint64_t charged;

    if (cgpu_ledger_attach(ledger.path, 9, &it) != CGPU_OK) {
        return;
    }
    if (cgpu_ledger_charge(it, 0, UINT64_C(1) << 30, 4096, &charged) == CGPU_OK) {
        (void)cgpu_ledger_release(it, 0, 4096);
    }
    (void)cgpu_ledger_charge(it, 1, 1, 4096, &charged);
    (void)cgpu_ledger_used(it, 0);
    (void)cgpu_ledger_own(it, 0);
    if (cgpu_work_claim(it, 0, &work) == CGPU_OK) {
        cgpu_work_ring(it, 0);
    }
    cgpu_ledger_detach(it);
}

void
fuzz_one(const unsigned char *data, size_t size)
{
    restore(&ledger);
    restore(&limits);
    spoil(data, size);
    observe();
    arbitrate();
    take_part();
}
