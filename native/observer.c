/* Looking at a ledger without touching it: see observer.h. */
#include "observer.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

#include "attachment.h"
#include "slot.h"

enum { CHUNK_SLOTS = 8 }; /* 2.5 KiB of a stack that may be small */

struct tally {
    uint32_t gpu;
    struct cgpu_process *out;
    size_t capacity;
    size_t count;
    uint64_t bytes;
};

/* What a hostile file adds up to may exceed 64 bits: stop at the largest. */
static uint64_t
add(uint64_t a, uint64_t b)
{
    return a + b < a ? UINT64_MAX : a + b;
}

static uint64_t
used_by(const struct cgpu_ledger_slot *slot, uint32_t gpu)
{
    uint64_t sum = 0;

    if (gpu < CGPU_MAX_GPUS) {
        return slot->used[gpu];
    }
    for (int i = 0; i < CGPU_MAX_GPUS; i++) {
        sum = add(sum, slot->used[i]);
    }
    return sum;
}

static void
count(struct tally *tally, const struct cgpu_ledger_slot *slot, uint32_t index, uint64_t used)
{
    if (tally->count < tally->capacity) {
        tally->out[tally->count] =
            (struct cgpu_process){.pid = slot->pid, .slot = index, .used_bytes = used};
    }
    tally->count += 1;
    tally->bytes = add(tally->bytes, used);
}

/* Every living process that holds memory. A copy is looked at, so that nothing changes midway. */
static int
walk(const struct cgpu_ledger *ledger, int fd, struct tally *tally)
{
    struct cgpu_ledger_slot slots[CHUNK_SLOTS];
    bool attached = ledger->file != NULL;

    for (uint32_t first = 0; first < CGPU_LEDGER_SLOTS; first += CHUNK_SLOTS) {
        off_t offset = (off_t)(offsetof(struct cgpu_ledger_file, slots) + first * sizeof *slots);

        if (attached && first >= cgpu_slot_bound(ledger->file)) {
            break;
        }
        if (pread(fd, slots, sizeof slots, offset) != sizeof slots) {
            return CGPU_EFORMAT;
        }
        for (uint32_t i = 0; i < CHUNK_SLOTS; i++) {
            uint64_t used = slots[i].taken != 0 ? used_by(&slots[i], tally->gpu) : 0;

            if (used != 0 &&
                ((attached && first + i == ledger->slot) || !cgpu_slot_dead(fd, first + i))) {
                count(tally, &slots[i], first + i, used);
            }
        }
    }
    return CGPU_OK;
}

static int
walk_file(const struct cgpu_ledger *ledger, struct tally *tally)
{
    int fd = cgpu_ledger_reopen(ledger);
    int status;
    int saved;

    if (fd < 0) {
        return CGPU_EIO;
    }
    status = walk(ledger, fd, tally);
    saved = errno;
    close(fd);
    errno = saved;
    return status;
}

uint64_t
cgpu_observer_used(const struct cgpu_ledger *ledger, uint32_t gpu)
{
    struct tally tally = {.gpu = gpu};

    if (ledger == NULL || !ledger->observing || gpu >= CGPU_MAX_GPUS ||
        walk_file(ledger, &tally) != CGPU_OK) {
        return 0;
    }
    return tally.bytes;
}

/* The 8 bytes at OFFSET of the file; 0 where they cannot be read. */
static uint64_t
read_word(const struct cgpu_ledger *ledger, size_t offset)
{
    uint64_t word = 0;
    int fd;

    if (ledger == NULL || !ledger->observing) {
        return 0;
    }
    fd = cgpu_ledger_reopen(ledger);
    if (fd < 0) {
        return 0;
    }
    if (pread(fd, &word, sizeof word, (off_t)offset) != sizeof word) {
        word = 0;
    }
    close(fd);
    return word;
}

uint64_t
cgpu_observer_total(const struct cgpu_ledger *ledger, uint32_t gpu)
{
    return gpu < CGPU_MAX_GPUS
               ? read_word(ledger, offsetof(struct cgpu_ledger_file, gpus[gpu].used))
               : 0;
}

uint64_t
cgpu_observer_refused(const struct cgpu_ledger *ledger, uint32_t gpu)
{
    return gpu < CGPU_MAX_GPUS
               ? read_word(ledger, offsetof(struct cgpu_ledger_file, gpus[gpu].refused))
               : 0;
}

int
cgpu_ledger_processes(struct cgpu_ledger *ledger, uint32_t gpu, struct cgpu_process *out,
                      size_t capacity, size_t *count_out)
{
    struct tally tally = {.gpu = gpu, .out = out, .capacity = capacity};
    int status;

    if (ledger == NULL || (ledger->file == NULL && !ledger->observing) || gpu > CGPU_MAX_GPUS ||
        (out == NULL && capacity > 0) || count_out == NULL) {
        return CGPU_EINVAL;
    }
    status = walk_file(ledger, &tally);
    *count_out = status == CGPU_OK ? tally.count : 0;
    return status;
}
