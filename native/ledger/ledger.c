/*
 * The ledger's accounts: charge, release and what is held.
 *
 * The only critical section of a charge is charge_locked: two additions under one GPU's lock.
 */
#include "ledger/ledger.h"

#include <stdbool.h>
#include <time.h>

#include "ledger/attachment.h"
#include "ledger/lock.h"
#include "ledger/observer.h"
#include "ledger/slot.h"

enum { REAP_INTERVAL_MS = 200 };

static bool
attached(const struct cgpu_ledger *ledger, uint32_t gpu)
{
    return ledger != NULL && ledger->file != NULL && gpu < CGPU_MAX_GPUS;
}

static uint64_t *
own_account(const struct cgpu_ledger *ledger, uint32_t gpu)
{
    return &ledger->file->slots[ledger->slot].used[gpu];
}

/* Store VALUE. The accounts are written only under the lock, but read without it. */
static void
set(uint64_t *account, uint64_t value)
{
    __atomic_store_n(account, value, __ATOMIC_RELAXED);
}

static uint64_t
get(const uint64_t *account)
{
    return __atomic_load_n(account, __ATOMIC_RELAXED);
}

static void
charge_locked(struct cgpu_ledger *ledger, uint32_t gpu, uint64_t bytes)
{
    uint64_t *total = &ledger->file->gpus[gpu].used;
    uint64_t *own = own_account(ledger, gpu);

    set(own, get(own) + bytes);
    set(total, get(total) + bytes);
}

static int
try_charge(struct cgpu_ledger *ledger, uint32_t gpu, uint64_t cap, uint64_t bytes,
           uint64_t *charged)
{
    int status = cgpu_lock_take(ledger, gpu);
    uint64_t total;

    if (status != CGPU_OK) {
        return status;
    }
    total = get(&ledger->file->gpus[gpu].used);
    if (total <= cap && bytes <= cap - total) {
        charge_locked(ledger, gpu, bytes);
        *charged = bytes;
    } else {
        status = CGPU_EOVERCAP;
    }
    cgpu_lock_give(ledger, gpu);
    return status;
}

int
cgpu_ledger_charge(struct cgpu_ledger *ledger, uint32_t gpu, uint64_t cap, uint64_t bytes,
                   uint64_t *charged)
{
    int status;

    if (!attached(ledger, gpu) || charged == NULL) {
        return CGPU_EINVAL;
    }
    status = try_charge(ledger, gpu, cap, bytes, charged);
    if (status == CGPU_EOVERCAP && bytes <= cap) {
        cgpu_slot_reap(ledger, true);
        status = try_charge(ledger, gpu, cap, bytes, charged);
    }
    if (status == CGPU_EOVERCAP) {
        __atomic_add_fetch(&ledger->file->gpus[gpu].refused, 1, __ATOMIC_RELAXED);
    }
    return status;
}

int
cgpu_ledger_release(struct cgpu_ledger *ledger, uint32_t gpu, uint64_t bytes)
{
    uint64_t *total;
    uint64_t *own;
    int status;

    if (!attached(ledger, gpu)) {
        return CGPU_EINVAL;
    }
    status = cgpu_lock_take(ledger, gpu);
    if (status != CGPU_OK) {
        return status;
    }
    own = own_account(ledger, gpu);
    total = &ledger->file->gpus[gpu].used;
    if (bytes <= get(own)) {
        set(own, get(own) - bytes);
        set(total, get(total) - (bytes < get(total) ? bytes : get(total)));
    } else {
        status = CGPU_EINVAL;
    }
    cgpu_lock_give(ledger, gpu);
    return status;
}

/*
 * Whether it is time to look for dead slots: true for one caller per interval. If the time of the
 * last look is in the future, it comes from another clock, and the answer is yes.
 */
static bool
reaping_due(struct cgpu_ledger_file *file)
{
    struct timespec now;
    uint64_t ms;
    uint64_t last = __atomic_load_n(&file->reaped_ms, __ATOMIC_RELAXED);

    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
    if (ms - last < REAP_INTERVAL_MS) {
        return false;
    }
    return __atomic_compare_exchange_n(&file->reaped_ms, &last, ms, false, __ATOMIC_RELAXED,
                                       __ATOMIC_RELAXED);
}

uint64_t
cgpu_ledger_used(struct cgpu_ledger *ledger, uint32_t gpu)
{
    if (!attached(ledger, gpu)) {
        return cgpu_observer_used(ledger, gpu);
    }
    if (reaping_due(ledger->file)) {
        cgpu_slot_reap(ledger, false);
    }
    return get(&ledger->file->gpus[gpu].used);
}

uint64_t
cgpu_ledger_own(struct cgpu_ledger *ledger, uint32_t gpu)
{
    return attached(ledger, gpu) ? get(own_account(ledger, gpu)) : 0;
}

uint64_t
cgpu_ledger_total(struct cgpu_ledger *ledger, uint32_t gpu)
{
    if (!attached(ledger, gpu)) {
        return cgpu_observer_total(ledger, gpu);
    }
    return get(&ledger->file->gpus[gpu].used);
}

uint64_t
cgpu_ledger_refused(struct cgpu_ledger *ledger, uint32_t gpu)
{
    if (!attached(ledger, gpu)) {
        return cgpu_observer_refused(ledger, gpu);
    }
    return get(&ledger->file->gpus[gpu].refused);
}
