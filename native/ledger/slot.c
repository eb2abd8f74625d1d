/* Process slots of the ledger: see slot.h. */
#define _GNU_SOURCE 1

#include "ledger/slot.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "ledger/attachment.h"
#include "ledger/lock.h"
#include "ledger/sharing.h"
#include "ledger/work.h"

enum { REAP_WAITS = 2000, REAP_WAIT_US = 500 };

static int
byte_lock(int fd, int command, uint32_t byte, short *type)
{
    struct flock range = {.l_type = *type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int result = fcntl(fd, command, &range);

    *type = range.l_type;
    return result;
}

static bool
lock_byte(int fd, uint32_t byte, short type)
{
    return byte_lock(fd, F_OFD_SETLK, byte, &type) == 0;
}

bool
cgpu_slot_dead(int fd, uint32_t slot)
{
    short type = F_WRLCK;

    return byte_lock(fd, F_OFD_GETLK, slot, &type) == 0 && type == F_UNLCK;
}

uint32_t
cgpu_slot_bound(const struct cgpu_ledger_file *file)
{
    uint32_t bound = __atomic_load_n(&file->slot_bound, __ATOMIC_ACQUIRE);

    return bound < CGPU_LEDGER_SLOTS ? bound : CGPU_LEDGER_SLOTS;
}

static bool
taken(const struct cgpu_ledger_file *file, uint32_t slot)
{
    /* acquire: pid, generation and amounts were written before `taken` */
    return __atomic_load_n(&file->slots[slot].taken, __ATOMIC_ACQUIRE) != 0;
}

static void
raise_bound(struct cgpu_ledger_file *file, uint32_t bound)
{
    uint32_t seen = __atomic_load_n(&file->slot_bound, __ATOMIC_RELAXED);

    /* release: a thread that sees the slot as taken also sees a bound above it */
    while (seen < bound && !__atomic_compare_exchange_n(&file->slot_bound, &seen, bound, false,
                                                        __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
    }
}

uint64_t
cgpu_slot_sum(const struct cgpu_ledger_file *file, uint32_t gpu)
{
    uint32_t bound = cgpu_slot_bound(file);
    uint64_t sum = 0;

    for (uint32_t slot = 0; slot < bound; slot++) {
        if (taken(file, slot)) {
            sum += __atomic_load_n(&file->slots[slot].used[gpu], __ATOMIC_RELAXED);
        }
    }
    return sum;
}

int
cgpu_slot_clear(struct cgpu_ledger *ledger, uint32_t index)
{
    struct cgpu_ledger_file *file = ledger->file;
    struct cgpu_ledger_slot *slot = &file->slots[index];

    for (uint32_t gpu = 0; gpu < CGPU_MAX_GPUS; gpu++) {
        uint32_t word = __atomic_load_n(&file->gpus[gpu].lock, __ATOMIC_RELAXED);

        /*
         * a lock that the dead process held must be taken over now; otherwise the slot's next
         * process would hold it
         */
        if (__atomic_load_n(&slot->used[gpu], __ATOMIC_RELAXED) == 0 &&
            cgpu_lock_holder(word) != index && !cgpu_sharing_has(file, gpu, index)) {
            continue;
        }
        if (cgpu_lock_take(ledger, gpu) != CGPU_OK) {
            return CGPU_EIO;
        }
        cgpu_sharing_drop(file, gpu, index);
        __atomic_store_n(&slot->used[gpu], 0, __ATOMIC_RELAXED);
        __atomic_store_n(&file->gpus[gpu].used, cgpu_slot_sum(file, gpu), __ATOMIC_RELAXED);
        cgpu_lock_give(ledger, gpu);
    }
    cgpu_work_free(file, index);
    __atomic_store_n(&slot->taken, 0, __ATOMIC_RELEASE); /* after everything above */
    return CGPU_OK;
}

/*
 * Become the reaper, for one thread of one process. The byte lock alone does not exclude threads:
 * cgpu_ledger_reopen may give two of them copies of one descriptor, and copies share their locks.
 */
static bool
try_reaper(struct cgpu_ledger *ledger, int fd)
{
    if (__atomic_exchange_n(&ledger->reaping, 1, __ATOMIC_ACQUIRE) != 0) {
        return false;
    }
    if (lock_byte(fd, CGPU_LEDGER_REAPER_BYTE, F_WRLCK)) {
        return true;
    }
    __atomic_store_n(&ledger->reaping, 0, __ATOMIC_RELEASE);
    return false;
}

/*
 * Stop being the reaper. The lock is released explicitly: to close the descriptor is not enough if
 * a fork has copied it.
 */
static void
unlock_reaper(struct cgpu_ledger *ledger, int fd)
{
    lock_byte(fd, CGPU_LEDGER_REAPER_BYTE, F_UNLCK);
    __atomic_store_n(&ledger->reaping, 0, __ATOMIC_RELEASE);
}

static bool
lock_reaper(struct cgpu_ledger *ledger, int fd, bool patient)
{
    const struct timespec pause = {.tv_sec = 0, .tv_nsec = REAP_WAIT_US * 1000L};

    for (int tries = patient ? REAP_WAITS : 1; tries > 0; tries--) {
        if (try_reaper(ledger, fd)) {
            return true;
        }
        if (tries > 1) {
            nanosleep(&pause, NULL);
        }
    }
    return false;
}

/* Give the slot INDEX, whose byte we have locked, to PID, and let LEDGER own it. */
static void
own(struct cgpu_ledger *ledger, uint32_t index, uint32_t pid)
{
    struct cgpu_ledger_slot *slot = &ledger->file->slots[index];
    uint32_t generation = __atomic_add_fetch(&slot->generation, 1, __ATOMIC_RELEASE);

    for (int gpu = 0; gpu < CGPU_MAX_GPUS; gpu++) {
        __atomic_store_n(&slot->used[gpu], 0, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&slot->pid, pid, __ATOMIC_RELAXED);
    raise_bound(ledger->file, index + 1);
    ledger->slot = index;
    ledger->word = cgpu_lock_word(index, generation);
    __atomic_store_n(&slot->taken, 1, __ATOMIC_RELEASE); /* everything above comes first */
}

/*
 * Give back the charges of the dead process of slot INDEX, as the slot's next generation. We hold
 * the locks on the slot's byte and on the reaper's.
 */
static int
bury(struct cgpu_ledger *ledger, uint32_t index)
{
    struct cgpu_ledger_slot *slot = &ledger->file->slots[index];

    ledger->slot = index;
    ledger->word =
        cgpu_lock_word(index, __atomic_add_fetch(&slot->generation, 1, __ATOMIC_RELEASE));
    return cgpu_slot_clear(ledger, index);
}

static int
claim(struct cgpu_ledger *ledger, int fd, uint32_t pid, bool reaping)
{
    for (uint32_t index = 0; index < CGPU_LEDGER_SLOTS; index++) {
        if (!reaping && taken(ledger->file, index)) {
            continue;
        }
        if (!lock_byte(fd, index, F_WRLCK)) {
            if (errno != EAGAIN && errno != EACCES) {
                return CGPU_EIO;
            }
            continue; /* its process lives, or is about to take the slot or to leave it */
        }
        if (!taken(ledger->file, index) || (reaping && bury(ledger, index) == CGPU_OK)) {
            own(ledger, index, pid);
            return CGPU_OK;
        }
        lock_byte(fd, index, F_UNLCK); /* its process has died since: left to a reaper */
    }
    return CGPU_EFULL;
}

int
cgpu_slot_claim(struct cgpu_ledger *ledger, int fd, uint32_t pid)
{
    int status = claim(ledger, fd, pid, false);

    if (status == CGPU_EFULL && lock_reaper(ledger, fd, true)) {
        status = claim(ledger, fd, pid, true);
        unlock_reaper(ledger, fd);
    }
    return status;
}

static bool
others_taken(const struct cgpu_ledger *ledger)
{
    uint32_t bound = cgpu_slot_bound(ledger->file);

    for (uint32_t slot = 0; slot < bound; slot++) {
        if (slot != ledger->slot && taken(ledger->file, slot)) {
            return true;
        }
    }
    return false;
}

/*
 * Clear the slots of dead processes. Thread cancellation is off meanwhile: to open a file is a
 * cancellation point, and the caller may hold a lock.
 */
void
cgpu_slot_reap(struct cgpu_ledger *ledger, bool patient)
{
    uint32_t bound = cgpu_slot_bound(ledger->file);
    int saved = errno;
    int cancel = PTHREAD_CANCEL_ENABLE;
    int fd;

    if (!others_taken(ledger)) {
        return;
    }
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    fd = cgpu_ledger_reopen(ledger);
    if (fd >= 0 && lock_reaper(ledger, fd, patient)) {
        for (uint32_t slot = 0; slot < bound; slot++) {
            if (slot != ledger->slot && taken(ledger->file, slot) && cgpu_slot_dead(fd, slot)) {
                (void)cgpu_slot_clear(ledger, slot); /* else the next reaping does it */
            }
        }
        unlock_reaper(ledger, fd);
    }
    if (fd >= 0) {
        close(fd);
    }
    pthread_setcancelstate(cancel, NULL);
    errno = saved;
}
