/*
 * Charges. Before this process is refused, it gives back what is charged but no longer held, or
 * kept only for reuse.
 *
 * Each step takes one kind's lock and releases it again. Nothing in use is given back: the driver
 * releases only idle reserves.
 */
#include "memory/charge.h"
#include "entry/shim.h"
#include "ledger/slot.h"
#include "memory/account.h"
#include "memory/kinds_table.h"

void
cgpu_reclaim_collect(void)
{
    for (const struct cgpu_memory_kind *kind = cgpu_memory_kinds; kind->name != NULL; kind++) {
        if (kind->collect != NULL) {
            kind->collect();
        }
    }
}

void
cgpu_reclaim_context_gone(void)
{
    if (!cgpu_state_is_attached()) {
        return;
    }
    for (const struct cgpu_memory_kind *kind = cgpu_memory_kinds; kind->name != NULL; kind++) {
        if (kind->context_gone != NULL) {
            kind->context_gone();
        }
    }
    cgpu_reclaim_collect();
}

bool
cgpu_reclaim(int32_t gpu, uint64_t bytes)
{
    uint64_t room = cgpu_device_room(gpu);
    if (gpu < 0 || bytes > room || !cgpu_state_is_attached()) {
        return false;
    }
    int mode = cgpu_capture_mode_relax();
    for (const struct cgpu_memory_kind *kind = cgpu_memory_kinds; kind->name != NULL; kind++) {
        if (kind->finish != NULL) {
            kind->finish(gpu);
        }
    }
    cgpu_reclaim_collect();
    for (const struct cgpu_memory_kind *kind = cgpu_memory_kinds; kind->name != NULL; kind++) {
        if (kind->trim != NULL) {
            kind->trim(gpu);
        }
    }
    cgpu_capture_mode_restore(mode);
    uint64_t used = cgpu_ledger_used(cgpu_state->ledger, (uint32_t)gpu);
    return used <= room && bytes <= room - used;
}

void
cgpu_reclaim_shared(const struct cgpu_lack *lack)
{
    cgpu_slot_reap(cgpu_state->ledger, true);
    (void)cgpu_reclaim(lack->gpu, lack->bytes);
}

CUresult
cgpu_charge_for(int32_t gpu, uint64_t bytes, uint64_t asked, uint64_t *charged)
{
    CUresult status = cgpu_account_charge(gpu, bytes, charged);
    if (status == CUDA_ERROR_OUT_OF_MEMORY && cgpu_reclaim(gpu, bytes)) {
        status = cgpu_account_charge(gpu, bytes, charged);
    }
    if (status == CUDA_ERROR_OUT_OF_MEMORY) {
        cgpu_log_memory(gpu, asked);
    }
    return status;
}

CUresult
cgpu_charge(int32_t gpu, uint64_t bytes, uint64_t *charged)
{
    return cgpu_charge_for(gpu, bytes, bytes, charged);
}
