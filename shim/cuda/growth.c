/*
 * What a context grows by after it was made: stack and local memory, printf buffer, device heap.
 *
 * The driver takes these lazily, at some launch, where refusing would be too late. So they are
 * charged when they are asked for, by a formula: what exceeds the defaults, which the measured cost
 * of a context contains.
 */
#include "shim.h"

/* Local memory is one buffer for all threads that fit: bytes x threads per SM x SMs. */
static uint64_t
resident_threads(void)
{
    CUdevice device;
    int threads = 0;
    int processors = 0;
    if (cgpu_real.cuCtxGetDevice(&device) != CUDA_SUCCESS ||
        cgpu_real.cuDeviceGetAttribute(&threads, CU_ATTRIBUTE_THREADS_PER_MULTIPROCESSOR, device) !=
            0 ||
        cgpu_real.cuDeviceGetAttribute(&processors, CU_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) !=
            0) {
        return 0;
    }
    return (uint64_t)threads * (uint64_t)processors;
}

/* The account of one growth of one context. Handles are aligned: a small number can be added. */
static void
load(struct cgpu_holding *growth, const struct cgpu_target *target, enum cgpu_growth what,
     int limit)
{
    uint64_t handle = target->owner + (uint64_t)what;
    size_t preset = 0;
    if (cgpu_charge_find(CGPU_KIND_GROWTH, handle, growth)) {
        return;
    }
    cgpu_real.cuCtxGetLimit(&preset, limit);
    *growth = (struct cgpu_holding){
        .handle = handle,
        .owner = target->owner,
        .extra = preset,
        .kind = CGPU_KIND_GROWTH,
        .gpu = (uint32_t)target->gpu,
    };
}

static uint64_t
bytes_beyond(const struct cgpu_holding *growth, enum cgpu_growth what, uint64_t value)
{
    uint64_t bytes = value > growth->extra ? value - growth->extra : 0;
    if (what == CGPU_GROWTH_STACK || what == CGPU_GROWTH_LOCAL) {
        return __builtin_mul_overflow(bytes, resident_threads(), &bytes) ? UINT64_MAX : bytes;
    }
    return bytes;
}

/* Write the account down with BYTES; it was charged for them. */
static CUresult
store(struct cgpu_holding *growth, uint64_t bytes)
{
    growth->bytes = bytes;
    if (cgpu_holdings_update(cgpu_state->holdings, growth) == CGPU_OK) {
        return CUDA_SUCCESS;
    }
    return cgpu_charge_hold(growth);
}

/* Under the lock of contexts: two threads may set limits of one context. */
static CUresult
set_limit(CUresult (*real)(int, size_t), int limit, size_t value, const struct cgpu_target *target)
{
    struct cgpu_holding growth;
    uint64_t charged = 0;
    load(&growth, target, (enum cgpu_growth)limit, limit);
    uint64_t before = growth.bytes;
    uint64_t after = bytes_beyond(&growth, (enum cgpu_growth)limit, value);
    CUresult status = CUDA_SUCCESS;
    if (after > before) {
        status = cgpu_charge(target->gpu, after - before, &charged);
    }
    if (status != CUDA_SUCCESS) {
        return status;
    }
    status = real(limit, value);
    if (status != CUDA_SUCCESS) {
        cgpu_charge_release(target->gpu, charged);
        return status;
    }
    status = store(&growth, after);
    if (status == CUDA_SUCCESS && after < before) {
        cgpu_charge_release(target->gpu, before - after);
    }
    return status;
}

CUresult
cgpu_growth_set_limit(CUresult (*real)(int, size_t), int limit, size_t value)
{
    struct cgpu_target target;
    if (limit < CU_LIMIT_STACK_SIZE || limit > CU_LIMIT_MALLOC_HEAP_SIZE) {
        return real(limit, value);
    }
    CUresult status = cgpu_target_current(&target);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    pthread_mutex_lock(&cgpu_state->contexts);
    status = set_limit(real, limit, value, &target);
    pthread_mutex_unlock(&cgpu_state->contexts);
    return status;
}

CUresult
cgpu_growth_local_memory(uint64_t bytes)
{
    struct cgpu_target target;
    struct cgpu_holding growth;
    uint64_t charged = 0;
    CUresult status = cgpu_target_current(&target);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    pthread_mutex_lock(&cgpu_state->contexts);
    load(&growth, &target, CGPU_GROWTH_LOCAL, CU_LIMIT_STACK_SIZE);
    uint64_t after = bytes_beyond(&growth, CGPU_GROWTH_LOCAL, bytes);
    if (after > growth.bytes) {
        status = cgpu_charge(target.gpu, after - growth.bytes, &charged);
        status = status == CUDA_SUCCESS ? store(&growth, after) : status;
    }
    pthread_mutex_unlock(&cgpu_state->contexts);
    return status;
}
