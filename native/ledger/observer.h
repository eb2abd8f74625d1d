/* Reading a ledger without changing it, as the host does. It trusts nothing in the file. */
#ifndef CGPU_OBSERVER_H
#define CGPU_OBSERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "ledger/ledger.h"

/* Whether LEDGER is an observer, and its program has not closed its descriptor; false for NULL. */
bool cgpu_observer_is_open(const struct cgpu_ledger *ledger);

/* Each returns 0 if LEDGER is no observer, or if the file cannot be read. */
uint64_t cgpu_observer_used(struct cgpu_ledger *ledger, uint32_t gpu);
uint64_t cgpu_observer_total(const struct cgpu_ledger *ledger, uint32_t gpu);
uint64_t cgpu_observer_refused(const struct cgpu_ledger *ledger, uint32_t gpu);

#endif
