/* What a context costs: what the host measured for its GPU. */
#include "memory/context_cost.h"
#include "entry/shim.h"
#include "memory/account.h"
#include "memory/charge.h"

CUresult
cgpu_context_check(CUdevice device, int32_t gpu)
{
    int count;
    return gpu >= 0
               ? CUDA_SUCCESS
               : cgpu_real.cuDeviceGetAttribute(&count, CU_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
}

CUresult
cgpu_context_charge(int32_t gpu, uint64_t *charged)
{
    uint64_t bytes = gpu < 0 ? 0 : cgpu_limits->gpus[gpu].context_bytes;
    return cgpu_charge(gpu, bytes, charged);
}

CUresult
cgpu_context_hold(CUcontext context, int32_t gpu, uint64_t charged)
{
    struct cgpu_holding holding = {
        .handle = (uint64_t)(uintptr_t)context,
        .owner = (uint64_t)(uintptr_t)context,
        .bytes = charged,
        .extra = 1,
        .kind = CGPU_KIND_CONTEXT,
        .gpu = (uint32_t)gpu,
    };
    return cgpu_account_hold(&holding);
}
