/*
 * The lock of one GPU's accounts, in the shared file.
 *
 * The word: bits 0-10 are the holder's slot + 1, bits 11-30 the low bits of the slot's generation,
 * and bit 31 says that somebody may be asleep. All threads of a process write the same word;
 * compare-and-swap from 0 excludes them from each other just as it does processes. The byte lock of
 * its slot shows that a holder is dead. A process that sees this takes over the lock and adds up
 * the GPU's total again. Design: docs/design/ledger.md.
 */
#ifndef CGPU_LOCK_H
#define CGPU_LOCK_H

#include <stdint.h>

#include "ledger/ledger.h"

/*
 * If one living holder keeps a lock for this long, CGPU_EIO is returned. A holder needs some 20 ns.
 */
#ifndef CGPU_LOCK_PATIENCE_MS
#define CGPU_LOCK_PATIENCE_MS 10000
#endif

uint32_t cgpu_lock_word(uint32_t slot, uint32_t generation);

/* The slot that WORD names; CGPU_LEDGER_SLOTS or more if it names none. */
uint32_t cgpu_lock_holder(uint32_t word);

int cgpu_lock_take(struct cgpu_ledger *ledger, uint32_t gpu);
void cgpu_lock_give(struct cgpu_ledger *ledger, uint32_t gpu);

#endif
