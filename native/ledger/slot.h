/*
 * Process slots of the ledger: taking one, finding out whether its process lives, giving it back.
 */
#ifndef CGPU_SLOT_H
#define CGPU_SLOT_H

#include <stdbool.h>
#include <stdint.h>

#include "ledger/ledger.h"
#include "ledger/ledger_file.h"

/*
 * Take a slot for PID, which FD's open file description keeps, and set LEDGER's slot and word.
 * CGPU_EFULL: none is free.
 */
int cgpu_slot_claim(struct cgpu_ledger *ledger, int fd, uint32_t pid);

/* Whether SLOT's process is certainly dead; false if that cannot be found out. */
bool cgpu_slot_dead(int fd, uint32_t slot);

/* The sum of USED over the taken slots. The caller holds the GPU's lock. */
uint64_t cgpu_slot_sum(const struct cgpu_ledger_file *file, uint32_t gpu);

/* Give back the charges of slot INDEX, whose process is dead or the caller's own, and free it. */
int cgpu_slot_clear(struct cgpu_ledger *ledger, uint32_t index);

/* Clear the slots of dead processes. PATIENT: wait for another process that is doing so. */
void cgpu_slot_reap(struct cgpu_ledger *ledger, bool patient);

/* An upper bound of the slots in use; at most the number of slots, whatever the file contains. */
uint32_t cgpu_slot_bound(const struct cgpu_ledger_file *file);

#endif
