/* Accounts: charges in the container's ledger, and what this process holds for them. */
#include "memory/charge.h"
#include "entry/shim.h"
#include "ledger/sharing.h"
#include "memory/reclaim.h"
#include "memory/small.h"
#include "memory/target.h"

CUresult
cgpu_charge_try(int32_t gpu, uint64_t bytes, uint64_t *charged)
{
    *charged = 0;
    if (!cgpu_state_is_attached()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (gpu >= 0 && cgpu_ledger_charge(cgpu_state->ledger, (uint32_t)gpu, cgpu_device_room(gpu),
                                       bytes, charged) == CGPU_OK) {
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult
cgpu_charge_for(int32_t gpu, uint64_t bytes, uint64_t asked, uint64_t *charged)
{
    CUresult status = cgpu_charge_try(gpu, bytes, charged);
    if (status == CUDA_ERROR_OUT_OF_MEMORY && cgpu_reclaim(gpu, bytes)) {
        status = cgpu_charge_try(gpu, bytes, charged);
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

void
cgpu_charge_force(int32_t gpu, uint64_t bytes)
{
    uint64_t charged;
    if (gpu >= 0 && cgpu_state_is_attached()) {
        (void)cgpu_ledger_charge(cgpu_state->ledger, (uint32_t)gpu, UINT64_MAX, bytes, &charged);
    }
}

void
cgpu_charge_release(int32_t gpu, uint64_t bytes)
{
    if (gpu >= 0 && bytes != 0 && cgpu_state_is_attached()) {
        cgpu_ledger_release(cgpu_state->ledger, (uint32_t)gpu, bytes);
    }
}

uint64_t
cgpu_charge_whole(int32_t gpu, uint64_t bytes)
{
    uint64_t unit = gpu >= 0 ? cgpu_state->granularity[gpu] : CGPU_BLOCK_BYTES;
    uint64_t over = bytes % unit;
    if (over != 0 && __builtin_add_overflow(bytes, unit - over, &bytes)) {
        return UINT64_MAX; /* more than any cap */
    }
    return bytes;
}

CUresult
cgpu_charge_begin(struct cgpu_pending *pending, uint64_t bytes)
{
    CUresult status = cgpu_target_current(&pending->target);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    return cgpu_charge(pending->target.gpu, bytes, &pending->charged);
}

CUresult
cgpu_charge_begin_whole(struct cgpu_pending *pending, uint64_t bytes)
{
    CUresult status = cgpu_target_current(&pending->target);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    int32_t gpu = pending->target.gpu;
    return cgpu_charge_for(gpu, cgpu_charge_whole(gpu, bytes), bytes, &pending->charged);
}

CUresult
cgpu_charge_resize(struct cgpu_pending *pending, uint64_t bytes)
{
    uint64_t more = 0;
    int32_t gpu = pending->target.gpu;
    uint64_t whole = cgpu_charge_whole(gpu, bytes);
    CUresult status = CUDA_SUCCESS;
    if (whole > pending->charged) {
        status = cgpu_charge_for(gpu, whole - pending->charged, bytes, &more);
        pending->charged += more;
    } else {
        cgpu_charge_release(gpu, pending->charged - whole);
        pending->charged = whole;
    }
    return status;
}

void
cgpu_charge_cancel(struct cgpu_pending *pending)
{
    cgpu_charge_release(pending->target.gpu, pending->charged);
    pending->charged = 0;
}

CUresult
cgpu_charge_commit(const struct cgpu_pending *pending, enum cgpu_kind kind, uint64_t handle,
                   uint64_t extra)
{
    struct cgpu_holding holding = {
        .handle = handle,
        .owner = pending->target.owner,
        .bytes = pending->charged,
        .extra = extra,
        .kind = kind,
        .gpu = (uint32_t)pending->target.gpu,
    };
    return cgpu_charge_hold(&holding);
}

/*
 * The driver gave out HANDLE, so nothing else can have it. If there is an entry for it already,
 * that memory was freed in a way that we did not see (or its context is just being destroyed), and
 * its charge is given back.
 */
CUresult
cgpu_charge_hold(const struct cgpu_holding *holding)
{
    struct cgpu_holding stale;
    int status = cgpu_holdings_insert(cgpu_state->holdings, holding);
    while (status == CGPU_EINVAL) {
        if (cgpu_charge_take(holding->kind, holding->handle, &stale)) {
            cgpu_charge_give_back(&stale);
            cgpu_charge_release((int32_t)stale.gpu, cgpu_small_forget(&stale));
        }
        status = cgpu_holdings_insert(cgpu_state->holdings, holding);
    }
    if (status == CGPU_OK) {
        return CUDA_SUCCESS;
    }
    cgpu_charge_give_back(holding);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

bool
cgpu_charge_find(enum cgpu_kind kind, uint64_t handle, struct cgpu_holding *out)
{
    return cgpu_state_is_attached() &&
           cgpu_holdings_find(cgpu_state->holdings, kind, handle, out) == CGPU_OK;
}

uint64_t
cgpu_charge_left(uint64_t bound, enum cgpu_kind kind, uint64_t handle)
{
    struct cgpu_holding holding;
    uint64_t charged = cgpu_charge_find(kind, handle, &holding) ? holding.bytes : 0;

    return bound > charged ? bound - charged : 0;
}

bool
cgpu_charge_take(enum cgpu_kind kind, uint64_t handle, struct cgpu_holding *out)
{
    return cgpu_state_is_attached() &&
           cgpu_holdings_take(cgpu_state->holdings, kind, handle, out) == CGPU_OK;
}

/* What others may have opened of HOLDING. */
static uint64_t
exported_of(const struct cgpu_holding *holding)
{
    bool exported = holding->kind == CGPU_KIND_LINEAR && (holding->extra & CGPU_EXPORTED) != 0;
    return exported ? holding->bytes + cgpu_small_bytes(holding) : 0;
}

bool
cgpu_charge_end_export(const struct cgpu_holding *holding, uint64_t charged)
{
    uint64_t bytes = exported_of(holding);
    if (bytes != 0) {
        cgpu_sharing_end_export(cgpu_state->ledger, holding->gpu, bytes, charged);
    }
    return bytes != 0;
}

void
cgpu_charge_give_back(const struct cgpu_holding *holding)
{
    if (holding->kind == CGPU_KIND_OPENED) {
        cgpu_sharing_end_import(cgpu_state->ledger, holding->gpu, holding->bytes);
    } else if (!cgpu_charge_end_export(holding, holding->bytes)) {
        cgpu_charge_release((int32_t)holding->gpu, holding->bytes);
    }
}

void
cgpu_charge_restore(const struct cgpu_holding *holding)
{
    /*
     * There was room for it a moment ago. If there is none now, the charge stays, which is the safe
     * side.
     */
    (void)cgpu_holdings_insert(cgpu_state->holdings, holding);
}

CUresult
cgpu_charge_end_free(const struct cgpu_holding *taken, CUresult status)
{
    if (taken != NULL && status == CUDA_SUCCESS) {
        cgpu_charge_give_back(taken);
    } else if (taken != NULL) {
        cgpu_charge_restore(taken);
    }
    return status;
}

struct owned {
    uint64_t charged, exported, opened;
};

/* Add what goes with HOLDING to the sums by GPU in ARGUMENT. */
static void
add_up(const struct cgpu_holding *holding, void *argument)
{
    struct owned *sums = argument;
    if (holding->gpu >= CGPU_MAX_GPUS) {
        return;
    }
    if (holding->kind == CGPU_KIND_OPENED) {
        sums[holding->gpu].opened += holding->bytes;
    } else {
        sums[holding->gpu].charged += holding->bytes + cgpu_small_forget(holding);
        sums[holding->gpu].exported += exported_of(holding);
    }
}

/* Thousands of holdings are one charge in the ledger. */
void
cgpu_charge_give_back_owned(uint64_t owner)
{
    struct owned sums[CGPU_MAX_GPUS] = {{0}};
    if (!cgpu_state_is_attached()) {
        return;
    }
    cgpu_holdings_drop_owned(cgpu_state->holdings, owner, add_up, sums);
    for (uint32_t gpu = 0; gpu < CGPU_MAX_GPUS; gpu++) {
        if (sums[gpu].exported != 0) {
            cgpu_sharing_end_export(cgpu_state->ledger, gpu, sums[gpu].exported, sums[gpu].charged);
        } else {
            cgpu_charge_release((int32_t)gpu, sums[gpu].charged);
        }
        if (sums[gpu].opened != 0) {
            cgpu_sharing_end_import(cgpu_state->ledger, gpu, sums[gpu].opened);
        }
    }
}
