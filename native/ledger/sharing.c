/* Exported and imported memory: see sharing.h. */
#include "ledger/sharing.h"

#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

#include "ledger/attachment.h"
#include "ledger/lock.h"
#include "ledger/slot.h"
#include "ledger/work.h"

enum { CHUNK = 32 }; /* 2 KiB of a stack that may be small */

/*
 * They are in the table of works, under numbers that no GPU has. SLOT is whose it is. Its slot's
 * end frees it without the GPU's lock, but only when it is all zeros.
 */
static struct cgpu_ledger_sharing *
sharing_at(struct cgpu_ledger_file *file, uint32_t index, uint32_t gpu, uint32_t *slot)
{
    struct cgpu_ledger_sharing *sharing = (struct cgpu_ledger_sharing *)&file->works[index];
    uint32_t number = __atomic_load_n(&sharing->gpu, __ATOMIC_RELAXED);

    *slot = cgpu_lock_holder(__atomic_load_n(&sharing->owner, __ATOMIC_RELAXED));
    return *slot < CGPU_LEDGER_SLOTS && number == CGPU_LEDGER_SHARINGS + gpu ? sharing : NULL;
}

static uint64_t
get(const uint64_t *amount)
{
    return __atomic_load_n(amount, __ATOMIC_RELAXED);
}

static void
set(uint64_t *amount, uint64_t value)
{
    __atomic_store_n(amount, value, __ATOMIC_RELAXED);
}

static uint64_t
less(uint64_t amount, uint64_t by)
{
    return amount > by ? amount - by : 0;
}

static uint64_t
lesser(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void
move(uint64_t *account, uint64_t from, uint64_t to)
{
    set(account, less(get(account), from) + to);
}

static uint64_t
sum_exported(struct cgpu_ledger_file *file, uint32_t gpu)
{
    uint32_t bound = cgpu_work_bound(file), slot;
    uint64_t sum = 0;

    for (uint32_t i = 0; i < bound; i++) {
        const struct cgpu_ledger_sharing *sharing = sharing_at(file, i, gpu, &slot);

        sum += sharing != NULL ? sharing->exported : 0;
    }
    return sum;
}

/* Under GPU's lock: charge each process what nobody else pays for. */
static void
level(struct cgpu_ledger_file *file, uint32_t gpu)
{
    uint32_t bound = cgpu_work_bound(file), slot;
    uint64_t paid = sum_exported(file, gpu);

    for (uint32_t i = 0; i < bound; i++) {
        struct cgpu_ledger_sharing *sharing = sharing_at(file, i, gpu, &slot);
        uint64_t due = sharing != NULL ? less(sharing->imported, paid) : 0;

        if (sharing != NULL && due != sharing->due) {
            move(&file->slots[slot].used[gpu], sharing->due, due);
            move(&file->gpus[gpu].used, sharing->due, due);
            sharing->due = due;
        }
        paid += due;
    }
}

/* The calling process's sharing on GPU, under GPU's lock; NULL: it cannot be had. */
static struct cgpu_ledger_sharing *
enter(struct cgpu_ledger *ledger, uint32_t gpu)
{
    struct cgpu_ledger_work *work;

    if (gpu >= CGPU_MAX_GPUS ||
        cgpu_work_claim(ledger, CGPU_LEDGER_SHARINGS + gpu, &work) != CGPU_OK ||
        cgpu_lock_take(ledger, gpu) != CGPU_OK) {
        return NULL;
    }
    return (struct cgpu_ledger_sharing *)work;
}

static void
leave(struct cgpu_ledger *ledger, uint32_t gpu)
{
    level(ledger->file, gpu);
    cgpu_lock_give(ledger, gpu);
}

int
cgpu_sharing_export(struct cgpu_ledger *ledger, uint32_t gpu, uint64_t bytes)
{
    struct cgpu_ledger_sharing *sharing = enter(ledger, gpu);

    if (sharing == NULL) {
        return CGPU_EFULL;
    }
    sharing->exported += bytes;
    leave(ledger, gpu);
    return CGPU_OK;
}

void
cgpu_sharing_end_export(struct cgpu_ledger *ledger, uint32_t gpu, uint64_t bytes, uint64_t charged)
{
    struct cgpu_ledger_sharing *sharing = enter(ledger, gpu);

    if (sharing != NULL) {
        sharing->exported = less(sharing->exported, bytes);
        move(&ledger->file->slots[ledger->slot].used[gpu], charged, 0);
        move(&ledger->file->gpus[gpu].used, charged, 0);
        leave(ledger, gpu);
    }
}

static int
import(struct cgpu_ledger *ledger, uint32_t gpu, uint64_t cap, uint64_t bytes, uint64_t *counted)
{
    struct cgpu_ledger_sharing *sharing = enter(ledger, gpu);
    int status = CGPU_OK;
    uint64_t exported, before;
    const uint64_t *used;

    if (sharing == NULL) {
        return CGPU_EFULL;
    }
    exported = sum_exported(ledger->file, gpu);
    used = &ledger->file->gpus[gpu].used;
    before = get(used);
    *counted = exported == 0 ? bytes : lesser(bytes, less(exported, sharing->imported));
    sharing->imported += *counted;
    level(ledger->file, gpu);
    if (get(used) > before && get(used) > cap) {
        sharing->imported -= *counted;
        status = CGPU_EOVERCAP;
    }
    leave(ledger, gpu);
    return status;
}

int
cgpu_sharing_import(struct cgpu_ledger *ledger, uint32_t gpu, uint64_t cap, uint64_t bytes,
                    uint64_t *counted)
{
    int status = import(ledger, gpu, cap, bytes, counted);

    if (status == CGPU_EOVERCAP) {
        cgpu_slot_reap(ledger, true);
        status = import(ledger, gpu, cap, bytes, counted);
    }
    return status;
}

void
cgpu_sharing_end_import(struct cgpu_ledger *ledger, uint32_t gpu, uint64_t counted)
{
    struct cgpu_ledger_sharing *sharing = enter(ledger, gpu);

    if (sharing != NULL) {
        sharing->imported = less(sharing->imported, counted);
        leave(ledger, gpu);
    }
}

bool
cgpu_sharing_has(struct cgpu_ledger_file *file, uint32_t gpu, uint32_t index)
{
    uint32_t bound = cgpu_work_bound(file), slot;

    for (uint32_t i = 0; i < bound; i++) {
        if (sharing_at(file, i, gpu, &slot) != NULL && slot == index) {
            return true;
        }
    }
    return false;
}

void
cgpu_sharing_drop(struct cgpu_ledger_file *file, uint32_t gpu, uint32_t index)
{
    uint32_t bound = cgpu_work_bound(file), slot;
    bool found = false;

    for (uint32_t i = 0; i < bound; i++) {
        struct cgpu_ledger_sharing *sharing = sharing_at(file, i, gpu, &slot);

        if (sharing != NULL && slot == index) {
            sharing->exported = sharing->imported = sharing->due = 0;
            found = true;
        }
    }
    if (found) {
        level(file, gpu);
    }
}

/* One look at a copy of the table. */
struct look {
    int fd;
    uint32_t gpu;
    const uint8_t *living;
    void (*found)(void *to, const struct cgpu_share *share);
    void *to;
    uint32_t bound; /* as the container says: who hides what it owes is charged by the audit */
    uint64_t paid[CGPU_MAX_GPUS];
};

/* In what a container wrote: the number of its GPU if SHARING counts, else CGPU_MAX_GPUS. */
static uint32_t
gpu_of(const struct look *look, const struct cgpu_ledger_sharing *sharing)
{
    uint32_t slot = cgpu_lock_holder(sharing->owner), gpu = sharing->gpu - CGPU_LEDGER_SHARINGS;
    bool asked = look->gpu == CGPU_MAX_GPUS || look->gpu == gpu;

    return asked && gpu < CGPU_MAX_GPUS && slot < CGPU_LEDGER_SLOTS && look->living[slot] != 0
               ? gpu
               : CGPU_MAX_GPUS;
}

static void
add_exported(struct look *look, const struct cgpu_ledger_sharing *sharing, uint32_t gpu)
{
    look->paid[gpu] += sharing->exported;
}

static void
add_due(struct look *look, const struct cgpu_ledger_sharing *sharing, uint32_t gpu)
{
    uint64_t due = less(sharing->imported, look->paid[gpu]);
    uint64_t pays = due > sharing->due ? due : sharing->due;
    struct cgpu_share share = {
        .slot = cgpu_lock_holder(sharing->owner),
        .gpu = gpu,
        .owes = pays - sharing->due,
        .covered = less(sharing->imported, pays),
    };

    if (share.owes != 0 || share.covered != 0) {
        look->found(look->to, &share);
    }
    look->paid[gpu] += pays;
}

static void
each_sharing(struct look *look,
             void (*visit)(struct look *, const struct cgpu_ledger_sharing *, uint32_t))
{
    struct cgpu_ledger_sharing sharings[CHUNK];

    for (uint32_t first = 0; first < look->bound; first += CHUNK) {
        off_t offset = (off_t)(offsetof(struct cgpu_ledger_file, works) + first * sizeof *sharings);

        if (pread(look->fd, sharings, sizeof sharings, offset) != sizeof sharings) {
            return;
        }
        for (uint32_t i = 0; i < CHUNK; i++) {
            uint32_t gpu = gpu_of(look, &sharings[i]);

            if (gpu < CGPU_MAX_GPUS) {
                visit(look, &sharings[i], gpu);
            }
        }
    }
}

void
cgpu_sharing_survey(int fd, uint32_t gpu, const uint8_t *living,
                    void (*found)(void *to, const struct cgpu_share *share), void *to)
{
    struct look look = {.fd = fd, .gpu = gpu, .living = living, .found = found, .to = to};
    off_t bound = offsetof(struct cgpu_ledger_file, work_bound);

    if (pread(fd, &look.bound, sizeof look.bound, bound) != sizeof look.bound) {
        return;
    }
    look.bound = look.bound < CGPU_LEDGER_WORKS ? look.bound : CGPU_LEDGER_WORKS;
    each_sharing(&look, add_exported);
    each_sharing(&look, add_due);
}
