/* The lock of one GPU's accounts: see lock.h. */
#include "ledger/lock.h"

#include <stdbool.h>
#include <stddef.h>

#include "clock.h"
#include "futex.h"
#include "ledger/attachment.h"
#include "ledger/sharing.h"
#include "ledger/slot.h"

enum {
    SLOT_BITS = 11,
    SLOT_MASK = (1 << SLOT_BITS) - 1,
    GENERATION_MASK = (1 << 20) - 1,
    SPIN_ROUNDS = 64,
    SPIN_LONGEST = 128, /* pauses in a row, so that the cache line stays with one thread */
    WAIT_NS = 10 * 1000 * 1000
};

static const uint32_t WAITERS = 0x80000000u;

uint32_t
cgpu_lock_word(uint32_t slot, uint32_t generation)
{
    return (slot + 1) | (generation & GENERATION_MASK) << SLOT_BITS;
}

uint32_t
cgpu_lock_holder(uint32_t word)
{
    return (word & SLOT_MASK) - 1; /* no holder: UINT32_MAX */
}

static bool
swap(uint32_t *word, uint32_t expected, uint32_t desired)
{
    /* acquire: what the last holder wrote is seen. Taking a lock publishes nothing. */
    return __atomic_compare_exchange_n(word, &expected, desired, false, __ATOMIC_ACQUIRE,
                                       __ATOMIC_RELAXED);
}

static bool
spin(uint32_t *word, uint32_t mine)
{
    unsigned pauses = 1;

    for (int round = 0; round < SPIN_ROUNDS; round++) {
        cgpu_futex_pause(pauses);
        pauses = pauses < SPIN_LONGEST ? pauses * 2 : pauses;
        if (__atomic_load_n(word, __ATOMIC_RELAXED) == 0 && swap(word, 0, mine)) {
            return true;
        }
    }
    return false;
}

/*
 * Whether the holder that WORD names is dead. If WORD names an earlier generation of its slot, it
 * is stale: the slot has a new process.
 */
static bool
holder_dead(const struct cgpu_ledger *ledger, uint32_t word)
{
    uint32_t slot = cgpu_lock_holder(word);
    uint32_t generation;
    bool dead;
    int fd;

    if (slot >= CGPU_LEDGER_SLOTS) {
        return true; /* no process of ours writes such a word */
    }
    generation = __atomic_load_n(&ledger->file->slots[slot].generation, __ATOMIC_ACQUIRE);
    if (cgpu_lock_word(slot, generation) != (word & ~WAITERS)) {
        return true;
    }
    if (slot == ledger->slot) {
        return false;
    }
    fd = cgpu_ledger_reopen(ledger);
    if (fd < 0) {
        return false;
    }
    dead = cgpu_slot_dead(fd, slot);
    close(fd);
    return dead;
}

/*
 * Sleep once on a lock that SEEN holds. Returns true if its holder is dead, and the lock is now
 * ours. *STUCK_NS sums the sleeps in which nothing changed. A program's signals may interrupt each
 * of them.
 */
static bool
sleep_once(struct cgpu_ledger *ledger, uint32_t gpu, uint32_t seen, uint64_t *stuck_ns)
{
    static const struct timespec timeout = {.tv_sec = 0, .tv_nsec = WAIT_NS};
    struct cgpu_ledger_gpu *entry = &ledger->file->gpus[gpu];
    uint64_t slept;
    int error;

    if ((seen & WAITERS) == 0 && !swap(&entry->lock, seen, seen | WAITERS)) {
        return false;
    }
    seen |= WAITERS;
    slept = cgpu_clock_now();
    error = cgpu_futex_wait(&entry->lock, FUTEX_WAIT, seen, &timeout);
    slept = cgpu_clock_now() - slept;
    if (error != ETIMEDOUT && error != EINTR) {
        return false;
    }
    *stuck_ns += slept < WAIT_NS ? slept : WAIT_NS; /* not the time that we were stopped */
    if (!holder_dead(ledger, seen) || !swap(&entry->lock, seen, ledger->word | WAITERS)) {
        return false;
    }
    /* the holder may have died in the middle of a change */
    cgpu_sharing_finish(ledger->file, gpu);
    __atomic_store_n(&entry->used, cgpu_slot_sum(ledger->file, gpu), __ATOMIC_RELAXED);
    return true;
}

static int
take_slowly(struct cgpu_ledger *ledger, uint32_t gpu)
{
    uint32_t *word = &ledger->file->gpus[gpu].lock;
    uint32_t before = 0;
    uint64_t stuck_ns = 0;

    if (spin(word, ledger->word)) {
        return CGPU_OK;
    }
    while (stuck_ns < CGPU_LOCK_PATIENCE_MS * UINT64_C(1000000)) {
        uint32_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);

        if (seen == 0) {
            /*
             * others may be asleep too: leave WAITERS set, so that the next release wakes one of
             * them
             */
            if (swap(word, 0, ledger->word | WAITERS)) {
                return CGPU_OK;
            }
            continue;
        }
        if ((seen & ~WAITERS) != before) {
            before = seen & ~WAITERS;
            stuck_ns = 0;
        }
        if (sleep_once(ledger, gpu, seen, &stuck_ns)) {
            return CGPU_OK;
        }
    }
    return CGPU_EIO;
}

int
cgpu_lock_take(struct cgpu_ledger *ledger, uint32_t gpu)
{
    if (__builtin_expect(swap(&ledger->file->gpus[gpu].lock, 0, ledger->word), 1)) {
        return CGPU_OK;
    }
    return take_slowly(ledger, gpu);
}

void
cgpu_lock_give(struct cgpu_ledger *ledger, uint32_t gpu)
{
    uint32_t *word = &ledger->file->gpus[gpu].lock;
    uint32_t mine = ledger->word;

    /* release: the next holder sees what this one wrote */
    if (__atomic_compare_exchange_n(word, &mine, 0, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
        return;
    }
    if (mine == (ledger->word | WAITERS)) {
        __atomic_store_n(word, 0, __ATOMIC_RELEASE);
        cgpu_futex_wake_one(word, FUTEX_WAKE);
    }
    /* otherwise the file was tampered with, and another process holds the lock */
}
