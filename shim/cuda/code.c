/*
 * What loading code takes.
 *
 * The driver does not say, and takes it in pieces of its own choice. So the whole GPU's free memory
 * is compared before and after, under a lock of this process, less what this container was charged
 * for meanwhile. Other containers allocate and free at the same time: so the difference counts at
 * most as much as the image can need (image.c), and never less than nothing. Where an image does
 * not tell what it needs and the difference is large, it is loaded a second time and the smaller
 * difference counts (module.c).
 */
#include "shim.h"

/* What the whole GPU has free; UNKNOWN if the driver does not say. */
static size_t
free_memory(size_t unknown)
{
    size_t available;
    size_t total;
    int mode = cgpu_reclaim_relax();
    CUresult status = cgpu_real.cuMemGetInfo_v2(&available, &total);
    cgpu_reclaim_restore(mode);
    return status == CUDA_SUCCESS ? available : unknown;
}

CUresult
cgpu_code_begin(struct cgpu_code *code)
{
    struct cgpu_target target;
    *code = (struct cgpu_code){.gpu = CGPU_NO_GPU};
    CUresult status = cgpu_target_current(&target);
    if (status != CUDA_SUCCESS || target.gpu < 0) {
        return status != CUDA_SUCCESS ? status : CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&cgpu_state->kinds.code);
    code->gpu = target.gpu;
    code->owner = target.owner;
    code->used_before = cgpu_ledger_used(cgpu_state->ledger, (uint32_t)target.gpu);
    code->free_before = free_memory(0); /* so that nothing seems to be taken if it is not known */
    return CUDA_SUCCESS;
}

static uint64_t
less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

uint64_t
cgpu_code_end(const struct cgpu_code *code, uint64_t bound)
{
    if (code->gpu < 0) {
        return 0;
    }
    uint64_t available = free_memory(SIZE_MAX);
    uint64_t used = cgpu_ledger_used(cgpu_state->ledger, (uint32_t)code->gpu);
    pthread_mutex_unlock(&cgpu_state->kinds.code);
    uint64_t taken = less(less(code->free_before, available), less(used, code->used_before));
    return taken < bound ? taken : bound;
}

/* Write down what was CHARGED. A holding that another thread makes or frees meanwhile is the
 * program's own race. */
static CUresult
hold(const struct cgpu_code *code, uint32_t kind, uint64_t handle, uint64_t charged)
{
    struct cgpu_holding holding;
    if (charged == 0) {
        return CUDA_SUCCESS;
    }
    if (cgpu_charge_find(kind, handle, &holding)) {
        holding.bytes += charged;
        if (cgpu_holdings_update(cgpu_state->holdings, &holding) == CGPU_OK) {
            return CUDA_SUCCESS;
        }
    }
    holding = (struct cgpu_holding){
        .handle = handle,
        .owner = code->owner,
        .bytes = charged,
        .kind = kind,
        .gpu = (uint32_t)code->gpu,
    };
    return cgpu_charge_hold(&holding);
}

CUresult
cgpu_code_charge(const struct cgpu_code *code, uint32_t kind, uint64_t handle, uint64_t bytes)
{
    uint64_t charged = 0;
    CUresult status = bytes != 0 ? cgpu_charge(code->gpu, bytes, &charged) : CUDA_SUCCESS;
    return status == CUDA_SUCCESS ? hold(code, kind, handle, charged) : status;
}

CUresult
cgpu_code_charge_loaded(const struct cgpu_code *code, uint32_t kind, uint64_t handle,
                        uint64_t bytes)
{
    CUresult status = cgpu_code_charge(code, kind, handle, bytes);
    if (status != CUDA_SUCCESS) {
        cgpu_charge_force(code->gpu, bytes);
        (void)hold(code, kind, handle, bytes);
    }
    return status;
}
