/*
 * Memory that several processes of a container have: one has made and exported it, others have
 * imported it.
 *
 * Who makes memory pays for it. Importers pay nothing as long as it does. When it lets go or dies,
 * the memory lives on for them, and one of them pays. The driver gives no sign by which two
 * processes could know that they have the same memory, only how much each has exported and
 * imported. So a process is charged for as much of its imports as exceeds all that the container's
 * processes have exported and pay for, and what others are charged for in this way, and goes on
 * paying for that until it lets go. It is less than what is due if somebody else's exports are
 * large.
 */
#ifndef CGPU_SHARING_H
#define CGPU_SHARING_H

#include <stdbool.h>
#include <stdint.h>

#include "ledger/ledger.h"
#include "ledger/ledger_file.h"

/*
 * This process has exported BYTES of GPU that it pays for. CGPU_EFULL: nobody can know it. Or it
 * lets go of them, and in the same step of CHARGED bytes of its account.
 */
int cgpu_sharing_export(struct cgpu_ledger *ledger, uint32_t gpu, uint64_t bytes);
void cgpu_sharing_end_export(struct cgpu_ledger *ledger, uint32_t gpu, uint64_t bytes,
                             uint64_t charged);

/*
 * One import: how much of it was mapped, and how much of that counts. OPENED: by an IPC handle, so
 * that it is known not to be imported already.
 */
struct cgpu_import {
    uint64_t bytes, counted;
    bool opened;
};

/*
 * This process has imported BYTES more of GPU by *IMPORT. It may import the same memory several
 * times, so of what could be what others export now, no more counts than that. CGPU_EOVERCAP, if it
 * is charged for them and they do not fit under CAP, changes nothing: the caller clears dead
 * processes away, and tries again. Or it lets go of BYTES that are in an import.
 */
int cgpu_sharing_import(struct cgpu_ledger *ledger, uint32_t gpu, uint64_t cap, uint64_t bytes,
                        struct cgpu_import *import);
void cgpu_sharing_end_import(struct cgpu_ledger *ledger, uint32_t gpu, uint64_t bytes);

/*
 * For slot.c: whether slot INDEX has exported or imported anything. And under GPU's lock, before
 * the total is added up: that is gone with it.
 */
bool cgpu_sharing_has(struct cgpu_ledger_file *file, uint32_t gpu, uint32_t index);
void cgpu_sharing_drop(struct cgpu_ledger_file *file, uint32_t gpu, uint32_t index);

/* For lock.c, before the total is added up: finish what a process killed under GPU's lock began. */
void cgpu_sharing_finish(struct cgpu_ledger_file *file, uint32_t gpu);

/* What a process owes beyond what the ledger shows; and what it has imported and others pay for. */
struct cgpu_share {
    uint32_t slot, gpu;
    uint64_t owes, covered;
};

/*
 * For observers: shares of living processes in the ledger FD. They owe what it does not show when
 * others have died and nobody has cleared them away yet. LIVING has a byte for each slot; GPU may
 * be CGPU_MAX_GPUS, which is any. SUMS, unless NULL, gets what is paid for and by how many
 * imported.
 */
void cgpu_sharing_survey(int fd, uint32_t gpu, const uint8_t *living,
                         void (*found)(void *to, const struct cgpu_share *share), void *to,
                         struct cgpu_survey *sums);

#endif
