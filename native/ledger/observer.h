/* Reading a ledger without changing it, as the host does, which trusts nothing in it. */
#ifndef CGPU_OBSERVER_H
#define CGPU_OBSERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "ledger/ledger.h"

/* Whether an observer can read on: not if its program has closed the descriptor, or it is NULL. */
bool cgpu_observer_is_open(const struct cgpu_ledger *ledger);

/* All are 0 for what is not an observer, and when the file cannot be read. */
uint64_t cgpu_observer_used(struct cgpu_ledger *ledger, uint32_t gpu);
uint64_t cgpu_observer_total(const struct cgpu_ledger *ledger, uint32_t gpu);
uint64_t cgpu_observer_refused(const struct cgpu_ledger *ledger, uint32_t gpu);

#endif
