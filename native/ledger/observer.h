/* Reading a ledger without changing it, as the host does, which trusts nothing in it. */
#ifndef CGPU_OBSERVER_H
#define CGPU_OBSERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "ledger/ledger.h"

/* Whether LEDGER is an observer whose descriptor its program has not closed; false for NULL. */
bool cgpu_observer_is_open(const struct cgpu_ledger *ledger);

/* Each returns 0 if LEDGER is no observer or the file cannot be read. */
uint64_t cgpu_observer_used(struct cgpu_ledger *ledger, uint32_t gpu);
uint64_t cgpu_observer_total(const struct cgpu_ledger *ledger, uint32_t gpu);
uint64_t cgpu_observer_refused(const struct cgpu_ledger *ledger, uint32_t gpu);

#endif
