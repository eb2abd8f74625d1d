/* The account of this process: charges in the ledger, and the holdings that they are for. */
#include "memory/account.h"
#include "entry/shim.h"
#include "ledger/sharing.h"

/*
 * If HOLDING is a small allocation, remove it from its blocks. Returns the bytes to release for
 * blocks that are empty now.
 */
static uint64_t
forget_small(const struct cgpu_holding *holding)
{
    if (holding->kind != CGPU_KIND_LINEAR || cgpu_small_bytes(holding) == 0) {
        return 0;
    }
    cgpu_blocks_leave(cgpu_state->blocks, holding->handle, cgpu_small_bytes(holding));
    return cgpu_blocks_gone(cgpu_state->blocks, holding->handle, cgpu_small_bytes(holding));
}

CUresult
cgpu_account_charge(int32_t gpu, uint64_t bytes, uint64_t *charged)
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

void
cgpu_account_force(int32_t gpu, uint64_t bytes)
{
    uint64_t charged;
    if (gpu >= 0 && cgpu_state_is_attached()) {
        (void)cgpu_ledger_charge(cgpu_state->ledger, (uint32_t)gpu, UINT64_MAX, bytes, &charged);
    }
}

void
cgpu_account_release(int32_t gpu, uint64_t bytes)
{
    if (gpu >= 0 && bytes != 0 && cgpu_state_is_attached()) {
        cgpu_ledger_release(cgpu_state->ledger, (uint32_t)gpu, bytes);
    }
}

uint64_t
cgpu_account_whole(int32_t gpu, uint64_t bytes)
{
    uint64_t unit = gpu >= 0 ? cgpu_state->granularity[gpu] : CGPU_BLOCK_BYTES;
    uint64_t over = bytes % unit;
    if (over != 0 && __builtin_add_overflow(bytes, unit - over, &bytes)) {
        return UINT64_MAX; /* more than any cap */
    }
    return bytes;
}

/* The bytes of HOLDING that other processes may have opened. */
static uint64_t
exported_of(const struct cgpu_holding *holding)
{
    bool exported = holding->kind == CGPU_KIND_LINEAR && (holding->extra & CGPU_EXPORTED) != 0;
    return exported ? holding->bytes + cgpu_small_bytes(holding) : 0;
}

bool
cgpu_account_end_export(const struct cgpu_holding *holding, uint64_t charged)
{
    uint64_t bytes = exported_of(holding);
    if (bytes != 0) {
        cgpu_sharing_end_export(cgpu_state->ledger, holding->gpu, bytes, charged);
    }
    return bytes != 0;
}

void
cgpu_account_give_back(const struct cgpu_holding *holding)
{
    if (holding->kind == CGPU_KIND_OPENED) {
        cgpu_sharing_end_import(cgpu_state->ledger, holding->gpu, holding->bytes);
    } else if (!cgpu_account_end_export(holding, holding->bytes)) {
        cgpu_account_release((int32_t)holding->gpu, holding->bytes);
    }
}

bool
cgpu_account_take(enum cgpu_kind kind, uint64_t handle, struct cgpu_holding *out)
{
    return cgpu_state_is_attached() &&
           cgpu_holdings_take(cgpu_state->holdings, kind, handle, out) == CGPU_OK;
}

/*
 * Record HANDLE, which the driver has just given out, so that nothing else can have it. If there is
 * an entry for it already, that memory was freed in a way that the hooks did not see, or its
 * context is just being destroyed. Then the old charge is given back.
 */
CUresult
cgpu_account_hold(const struct cgpu_holding *holding)
{
    struct cgpu_holding stale;
    int status = cgpu_holdings_insert(cgpu_state->holdings, holding);
    while (status == CGPU_EINVAL) {
        if (cgpu_account_take(holding->kind, holding->handle, &stale)) {
            cgpu_account_give_back(&stale);
            cgpu_account_release((int32_t)stale.gpu, forget_small(&stale));
        }
        status = cgpu_holdings_insert(cgpu_state->holdings, holding);
    }
    if (status == CGPU_OK) {
        return CUDA_SUCCESS;
    }
    cgpu_account_give_back(holding);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

bool
cgpu_account_find(enum cgpu_kind kind, uint64_t handle, struct cgpu_holding *out)
{
    return cgpu_state_is_attached() &&
           cgpu_holdings_find(cgpu_state->holdings, kind, handle, out) == CGPU_OK;
}

uint64_t
cgpu_account_left(uint64_t bound, enum cgpu_kind kind, uint64_t handle)
{
    struct cgpu_holding holding;
    uint64_t charged = cgpu_account_find(kind, handle, &holding) ? holding.bytes : 0;

    return bound > charged ? bound - charged : 0;
}

void
cgpu_account_restore(const struct cgpu_holding *holding)
{
    /*
     * There was room for it a moment ago. If there is none now, the charge remains: too high rather
     * than too low.
     */
    (void)cgpu_holdings_insert(cgpu_state->holdings, holding);
}

CUresult
cgpu_account_end_free(const struct cgpu_holding *taken, CUresult status)
{
    if (taken != NULL && status == CUDA_SUCCESS) {
        cgpu_account_give_back(taken);
    } else if (taken != NULL) {
        cgpu_account_restore(taken);
    }
    return status;
}

struct owned {
    uint64_t charged, exported, opened;
};

/* Add what is released together with HOLDING to the sums by GPU in ARGUMENT. */
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
        sums[holding->gpu].charged += holding->bytes + forget_small(holding);
        sums[holding->gpu].exported += exported_of(holding);
    }
}

/* Give back all that OWNER has. For thousands of holdings, the ledger is changed once. */
void
cgpu_account_give_back_owned(uint64_t owner)
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
            cgpu_account_release((int32_t)gpu, sums[gpu].charged);
        }
        if (sums[gpu].opened != 0) {
            cgpu_sharing_end_import(cgpu_state->ledger, gpu, sums[gpu].opened);
        }
    }
}
