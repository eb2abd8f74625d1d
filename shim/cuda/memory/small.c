/*
 * Small linear memory, charged by the blocks of 2 MiB that it lies in (native/holdings/blocks.h).
 *
 * A call that will find a hole is charged nothing. Any other call is charged a block beforehand,
 * which is given back if the driver took none. At the cap, all blocks are searched for a hole
 * before anything is refused, because a smaller GPU would serve the request from a hole.
 */
#include "memory/small.h"
#include "entry/shim.h"
#include "memory/account.h"
#include "memory/charge.h"
#include "memory/target.h"

/*
 * At most two blocks: all blocks that the addresses touch count, although no driver is known to use
 * two.
 */
_Static_assert((int)CGPU_BLOCK_SMALL <= (int)CGPU_BLOCK_BYTES, "at most two blocks");

static CUresult
prepay(const struct cgpu_small *small)
{
    if (cgpu_blocks_prepay(cgpu_state->blocks, &small->key) == CGPU_OK) {
        return CUDA_SUCCESS;
    }
    cgpu_account_release((int32_t)small->key.gpu, CGPU_BLOCK_BYTES);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult
cgpu_small_begin(struct cgpu_small *small, const struct cgpu_target *target, uint64_t bytes,
                 bool low)
{
    uint64_t charged;
    small->key =
        (struct cgpu_arena_key){.owner = target->owner, .gpu = (uint32_t)target->gpu, .low = low};
    small->expected = cgpu_blocks_expect(cgpu_state->blocks, &small->key, bytes, false);
    if (small->expected) {
        return CUDA_SUCCESS;
    }
    if (cgpu_account_charge(target->gpu, CGPU_BLOCK_BYTES, &charged) == CUDA_SUCCESS) {
        return prepay(small);
    }
    small->expected = cgpu_blocks_expect(cgpu_state->blocks, &small->key, bytes, true);
    if (small->expected) {
        return CUDA_SUCCESS;
    }
    CUresult status = cgpu_charge_for(target->gpu, CGPU_BLOCK_BYTES, bytes, &charged);
    return status == CUDA_SUCCESS ? prepay(small) : status;
}

void
cgpu_small_cancel(const struct cgpu_small *small)
{
    cgpu_account_release((int32_t)small->key.gpu,
                         cgpu_blocks_done(cgpu_state->blocks, &small->key, small->expected));
}

/* Charge NEED, which the driver took beyond what was charged. */
static CUresult
pay(const struct cgpu_small *small, uint64_t need, uint64_t asked)
{
    int32_t gpu = (int32_t)small->key.gpu;
    uint64_t charged;
    CUresult status = cgpu_account_charge(gpu, need, &charged);
    if (status != CUDA_SUCCESS) {
        need = cgpu_blocks_await(cgpu_state->blocks, &small->key, need);
        status = need != 0 ? cgpu_charge_for(gpu, need, asked, &charged) : CUDA_SUCCESS;
    }
    return status;
}

/*
 * Free an allocation that does not fit. If another allocation has come into the new block
 * meanwhile, the block remains, and is charged over the cap.
 */
static void
undo(const struct cgpu_small *small, CUdeviceptr address, uint64_t bytes, uint64_t need)
{
    int32_t gpu = (int32_t)small->key.gpu;
    cgpu_blocks_leave(cgpu_state->blocks, address, bytes);
    cgpu_real.cuMemFree_v2(address);
    uint64_t gone = cgpu_blocks_gone(cgpu_state->blocks, address, bytes);
    if (gone < need) {
        cgpu_account_force(gpu, need - gone);
    } else {
        cgpu_account_release(gpu, gone - need);
    }
}

CUresult
cgpu_small_keep(const struct cgpu_small *small, CUdeviceptr address, uint64_t bytes)
{
    struct cgpu_blocks_change change;
    if (cgpu_blocks_enter(cgpu_state->blocks, &small->key, small->expected, address, bytes,
                          &change) != CGPU_OK) {
        cgpu_real.cuMemFree_v2(address);
        cgpu_small_cancel(small);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    cgpu_account_release((int32_t)small->key.gpu, change.surplus);
    if (change.need == 0) {
        return CUDA_SUCCESS;
    }
    CUresult status = pay(small, change.need, bytes);
    if (status != CUDA_SUCCESS) {
        undo(small, address, bytes, change.need);
    }
    cgpu_small_cancel(small);
    return status;
}

void
cgpu_small_leave(const struct cgpu_holding *holding)
{
    cgpu_blocks_leave(cgpu_state->blocks, holding->handle, cgpu_small_bytes(holding));
}

void
cgpu_small_stay(const struct cgpu_holding *holding)
{
    cgpu_blocks_stay(cgpu_state->blocks, holding->handle, cgpu_small_bytes(holding));
}

void
cgpu_small_gone(const struct cgpu_holding *holding)
{
    cgpu_account_release(
        (int32_t)holding->gpu,
        cgpu_blocks_gone(cgpu_state->blocks, holding->handle, cgpu_small_bytes(holding)));
}
