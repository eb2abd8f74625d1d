/* Exported and imported memory: see sharing.h. */
#include "ledger/sharing.h"

#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

#include "clock.h"
#include "ledger/attachment.h"
#include "ledger/lock.h"
#include "ledger/slot.h"
#include "ledger/work.h"

enum {
    CHUNK = 32, /* 2 KiB of a stack that may be small */
    BLOCK = 2 << 20
};

/*
 * The entry at INDEX of the table of works if it is a sharing on GPU, else NULL. *SLOT: its slot. A
 * sharing has a number that no GPU has. It is freed with its slot, under the GPU's lock.
 */
static struct cgpu_ledger_sharing *
sharing_at(struct cgpu_ledger_file *file, uint32_t index, uint32_t gpu, uint32_t *slot)
{
    struct cgpu_ledger_sharing *sharing = (struct cgpu_ledger_sharing *)&file->works[index];
    struct cgpu_work_key key = cgpu_work_key_of(sharing);

    *slot = cgpu_lock_holder(key.owner);
    return *slot < CGPU_LEDGER_SLOTS && key.gpu == CGPU_LEDGER_SHARINGS + gpu ? sharing : NULL;
}

static uint64_t
get(const uint64_t *amount)
{
    return __atomic_load_n(amount, __ATOMIC_RELAXED);
}

/*
 * Store VALUE. release: if this process is killed, the next owner of its lock sees the stores in
 * order.
 */
static void
set(uint64_t *amount, uint64_t value)
{
    __atomic_store_n(amount, value, __ATOMIC_RELEASE);
}

static uint64_t
less(uint64_t amount, uint64_t by)
{
    return amount > by ? amount - by : 0;
}

static void
move(uint64_t *account, uint64_t from, uint64_t to)
{
    set(account, less(get(account), from) + to);
}

/*
 * Sums over the sharings of a GPU: bytes that are exported; bytes that exporters and importers pay
 * for.
 */
struct sums {
    uint64_t exported, paid;
};

static struct sums
add_up(struct cgpu_ledger_file *file, uint32_t gpu)
{
    uint32_t bound = cgpu_work_bound(file), slot;
    struct sums sums = {0};

    for (uint32_t i = 0; i < bound; i++) {
        const struct cgpu_ledger_sharing *sharing = sharing_at(file, i, gpu, &slot);

        if (sharing != NULL) {
            sums.exported += sharing->exported;
            sums.paid += sharing->exported + sharing->due;
        }
    }
    return sums;
}

/*
 * Write the slot's sum: the last step of a change of due. It may be repeated, as the sum is known.
 */
static void
finish(uint64_t *used, struct cgpu_ledger_sharing *sharing)
{
    uint64_t beside = get(&sharing->beside);

    if (beside != 0) {
        set(used, beside - 1 + sharing->due);
        set(&sharing->beside, 0);
    }
}

/* Under GPU's lock: from now on SLOT pays for DUE bytes of what it has imported. */
static void
charge(struct cgpu_ledger_file *file, uint32_t gpu, uint32_t slot,
       struct cgpu_ledger_sharing *sharing, uint64_t due)
{
    uint64_t *used = &file->slots[slot].used[gpu];

    move(&file->gpus[gpu].used, sharing->due, due);
    set(&sharing->beside, less(get(used), sharing->due) + 1);
    set(&sharing->due, due);
    finish(used, sharing);
}

void
cgpu_sharing_finish(struct cgpu_ledger_file *file, uint32_t gpu)
{
    uint32_t bound = cgpu_work_bound(file), slot;

    for (uint32_t i = 0; i < bound; i++) {
        struct cgpu_ledger_sharing *sharing = sharing_at(file, i, gpu, &slot);

        if (sharing != NULL) {
            finish(&file->slots[slot].used[gpu], sharing);
        }
    }
}

/*
 * Under GPU's lock: charge each process for imports that nobody else pays for. The process that
 * made them is gone and nobody exports them now, so the importer pays until it releases them.
 */
static void
level(struct cgpu_ledger_file *file, uint32_t gpu)
{
    uint32_t bound = cgpu_work_bound(file), slot;
    uint64_t paid = add_up(file, gpu).paid;

    for (uint32_t i = 0; i < bound; i++) {
        struct cgpu_ledger_sharing *sharing = sharing_at(file, i, gpu, &slot);

        if (sharing != NULL) {
            uint64_t others = less(paid, sharing->due);
            uint64_t due = less(sharing->imported, others);

            if (due > sharing->due) {
                charge(file, gpu, slot, sharing, due);
            }
            paid = others + sharing->due;
        }
    }
}

/* Lock GPU, and return the calling process's sharing on it. NULL: there is none, nor a lock. */
static struct cgpu_ledger_sharing *
enter(struct cgpu_ledger *ledger, uint32_t gpu)
{
    struct cgpu_ledger_work *work;

    if (gpu >= CGPU_MAX_GPUS ||
        cgpu_work_claim(ledger, CGPU_LEDGER_SHARINGS + gpu, &work) != CGPU_OK ||
        cgpu_lock_take(ledger, gpu) != CGPU_OK) {
        return NULL;
    }
    /* two threads may each have claimed one: both use the first */
    work = cgpu_work_find(ledger, CGPU_LEDGER_SHARINGS + gpu);
    if (work == NULL) {
        cgpu_lock_give(ledger, gpu);
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

/* IMPORT gains BYTES: returns how much of them counts while EXPORTED bytes are exported. */
static uint64_t
count(const struct cgpu_ledger_sharing *sharing, uint64_t exported, uint64_t bytes,
      const struct cgpu_import *import)
{
    if (import->opened) { /* a block of small memory may be opened of which less is exported */
        return bytes <= BLOCK && exported != 0 ? cgpu_lesser(bytes, exported) : bytes;
    }
    if (import->bytes + bytes > exported) { /* none of it can be what others export now */
        return less(import->bytes + bytes, import->counted);
    }
    return cgpu_lesser(bytes, less(exported, less(sharing->imported, sharing->due)));
}

int
cgpu_sharing_import(struct cgpu_ledger *ledger, uint32_t gpu, uint64_t cap, uint64_t bytes,
                    struct cgpu_import *import)
{
    struct cgpu_ledger_sharing *sharing = enter(ledger, gpu);
    int status = CGPU_OK;
    uint64_t counted, more;
    struct sums sums;

    if (sharing == NULL) {
        return CGPU_EFULL;
    }
    sums = add_up(ledger->file, gpu);
    counted = count(sharing, sums.exported, bytes, import);
    more = less(less(sharing->imported + counted, less(sums.paid, sharing->due)), sharing->due);
    if (more != 0 && more > less(cap, get(&ledger->file->gpus[gpu].used))) {
        status = CGPU_EOVERCAP;
    } else {
        import->bytes += import->opened ? counted : bytes;
        sharing->mapped += import->opened ? counted : bytes;
        sharing->imported += counted;
        import->counted += counted;
    }
    leave(ledger, gpu);
    return status;
}

void
cgpu_sharing_end_import(struct cgpu_ledger *ledger, uint32_t gpu, uint64_t bytes)
{
    struct cgpu_ledger_sharing *sharing = enter(ledger, gpu);
    uint64_t before, due, others;

    if (sharing == NULL) {
        return;
    }
    before = sharing->imported;
    others = less(add_up(ledger->file, gpu).paid, sharing->due);
    sharing->mapped = less(sharing->mapped, bytes);
    sharing->imported = cgpu_lesser(before, sharing->mapped);
    due = cgpu_larger(less(sharing->due, before - sharing->imported),
                      less(sharing->imported, others));
    if (due != sharing->due) {
        charge(ledger->file, gpu, ledger->slot, sharing, due);
    }
    leave(ledger, gpu);
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

/*
 * Remove the sharings of slot INDEX. Their entries are freed last, so that the next process that
 * clears the slot finds them if this one is killed.
 */
void
cgpu_sharing_drop(struct cgpu_ledger_file *file, uint32_t gpu, uint32_t index)
{
    uint32_t bound = cgpu_work_bound(file), slot;
    bool found = false;

    for (uint32_t i = 0; i < bound; i++) {
        struct cgpu_ledger_sharing *sharing = sharing_at(file, i, gpu, &slot);

        if (sharing != NULL && slot == index) {
            sharing->exported = sharing->imported = sharing->due = sharing->mapped = 0;
            found = true;
        }
    }
    if (found) {
        level(file, gpu);
    }
    for (uint32_t i = 0; found && i < bound; i++) {
        struct cgpu_ledger_sharing *sharing = sharing_at(file, i, gpu, &slot);

        if (sharing != NULL && slot == index) {
            cgpu_work_clear(sharing);
        }
    }
}

/* One read, through a copy of the table. */
struct look {
    int fd;
    uint32_t gpu;
    const uint8_t *living;
    void (*found)(void *to, const struct cgpu_share *share);
    void *to;
    uint32_t bound; /* the container wrote it: what it hides like this, the audit charges */
    uint64_t paid[CGPU_MAX_GPUS];
    uint32_t importers[CGPU_MAX_GPUS];
};

/*
 * The number of SHARING's GPU if SHARING counts, else CGPU_MAX_GPUS. The container wrote SHARING.
 */
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
add_paid(struct look *look, const struct cgpu_ledger_sharing *sharing, uint32_t gpu)
{
    look->paid[gpu] += sharing->exported + sharing->due;
}

static void
add_due(struct look *look, const struct cgpu_ledger_sharing *sharing, uint32_t gpu)
{
    uint64_t others = less(look->paid[gpu], sharing->due);
    uint64_t pays = cgpu_larger(sharing->due, less(sharing->imported, others));
    struct cgpu_share share = {
        .slot = cgpu_lock_holder(sharing->owner),
        .gpu = gpu,
        .owes = pays - sharing->due,
        .covered = less(sharing->imported, pays),
    };

    if (share.owes != 0 || share.covered != 0) {
        look->found(look->to, &share);
    }
    look->paid[gpu] = others + pays;
    look->importers[gpu] += sharing->imported != 0;
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
                    void (*found)(void *to, const struct cgpu_share *share), void *to,
                    struct cgpu_survey *sums)
{
    struct look look = {.fd = fd, .gpu = gpu, .living = living, .found = found, .to = to};
    off_t bound = offsetof(struct cgpu_ledger_file, work_bound);

    if (pread(fd, &look.bound, sizeof look.bound, bound) == sizeof look.bound) {
        look.bound = look.bound < CGPU_LEDGER_WORKS ? look.bound : CGPU_LEDGER_WORKS;
        each_sharing(&look, add_paid);
        each_sharing(&look, add_due);
    }
    for (int i = 0; sums != NULL && i < CGPU_MAX_GPUS; i++) {
        sums->paid_bytes[i] = look.paid[i];
        sums->importers[i] = look.importers[i];
    }
}
