/*
 * Memory that several processes of a container have: one made and exported it, others imported it.
 *
 * The process that makes memory pays for it; importers pay nothing meanwhile. When it releases the
 * memory or dies, the memory remains for the importers, and one of them pays. The driver does not
 * show two processes whether they have the same memory: each knows only how much it has exported
 * and imported. So a process is charged for the part of its imports that exceeds what the
 * container's other processes pay for, by their exports or as charged importers. It pays for that
 * part until it releases it. The charge is too low if other processes export much that this one has
 * not imported.
 */
#ifndef CGPU_SHARING_H
#define CGPU_SHARING_H

#include <stdbool.h>
#include <stdint.h>

#include "ledger/ledger.h"
#include "ledger/ledger_file.h"

/*
 * Record that this process has exported BYTES of GPU, which it pays for. CGPU_EFULL: no entry is
 * free. cgpu_sharing_end_export: it has released them; this also lowers its account by CHARGED, in
 * the same step.
 */
int cgpu_sharing_export(struct cgpu_ledger *ledger, uint32_t gpu, uint64_t bytes);
void cgpu_sharing_end_export(struct cgpu_ledger *ledger, uint32_t gpu, uint64_t bytes,
                             uint64_t charged);

/*
 * One import: how many bytes were mapped, and how many of them count. OPENED: by an IPC handle, so
 * that the process cannot have imported it before.
 */
struct cgpu_import {
    uint64_t bytes, counted;
    bool opened;
};

/*
 * Record that this process has imported BYTES more of GPU by *IMPORT. It may import the same memory
 * several times, so all its imports count at most as much as the others export now. CGPU_EOVERCAP:
 * it would be charged for more than fits under CAP. Nothing has changed then; the caller clears
 * dead processes and tries again. cgpu_sharing_end_import: the process has released BYTES of an
 * import.
 */
int cgpu_sharing_import(struct cgpu_ledger *ledger, uint32_t gpu, uint64_t cap, uint64_t bytes,
                        struct cgpu_import *import);
void cgpu_sharing_end_import(struct cgpu_ledger *ledger, uint32_t gpu, uint64_t bytes);

/*
 * For slot.c. cgpu_sharing_has: whether slot INDEX has exported or imported anything.
 * cgpu_sharing_drop: remove its sharings, under GPU's lock, before the total is added up.
 */
bool cgpu_sharing_has(struct cgpu_ledger_file *file, uint32_t gpu, uint32_t index);
void cgpu_sharing_drop(struct cgpu_ledger_file *file, uint32_t gpu, uint32_t index);

/*
 * For lock.c, before it adds up the total: finish a change that a killed holder of GPU's lock
 * began.
 */
void cgpu_sharing_finish(struct cgpu_ledger_file *file, uint32_t gpu);

/* How much more a process owes than the ledger shows, and its imports that others pay for. */
struct cgpu_share {
    uint32_t slot, gpu;
    uint64_t owes, covered;
};

/*
 * For observers: report the shares of living processes in the ledger FD. When a process has died,
 * others owe more than the ledger shows until somebody clears its slot. LIVING has a byte for each
 * slot; GPU may be CGPU_MAX_GPUS, which means any. SUMS, unless NULL, gets the bytes that are paid
 * for, and the number of importers.
 */
void cgpu_sharing_survey(int fd, uint32_t gpu, const uint8_t *living,
                         void (*found)(void *to, const struct cgpu_share *share), void *to,
                         struct cgpu_survey *sums);

#endif
