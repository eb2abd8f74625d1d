/*
 * Memory of graph nodes: what each device has reserved for this process's graphs is charged.
 *
 * It is taken when an executable graph is first uploaded or launched, is kept for the next graph,
 * and goes back only when the device is trimmed. The account follows the driver's figure; all
 * changes happen under the lock of graphs.
 */
#include "shim.h"

static struct cgpu_kinds *
kinds(void)
{
    return &cgpu_state->kinds;
}

void
cgpu_graph_memory_follow(void)
{
    int count = 0;
    cgpu_real.cuDeviceGetCount(&count);
    pthread_mutex_lock(&kinds()->graphs);
    for (CUdevice device = 0; device < count; device++) {
        int32_t gpu = cgpu_target_gpu(device);
        if (gpu >= 0) {
            kinds()->graph_device[gpu] = device + 1;
        }
    }
    __atomic_store_n(&kinds()->graph_memory, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&kinds()->graphs);
}

/* What is reserved on GPU, or what is charged if the driver does not say. */
static uint64_t
ask(int32_t gpu)
{
    uint64_t reserved = 0;
    CUdevice device = kinds()->graph_device[gpu] - 1;
    CUresult status =
        cgpu_real.cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEMORY_RESERVED_CURRENT, &reserved);
    return status == CUDA_SUCCESS ? reserved : kinds()->graph_charged[gpu];
}

/* Under the lock of graphs: the account shrinks to RESERVED, or stays. */
static void
shrink(int32_t gpu, uint64_t reserved)
{
    if (reserved < kinds()->graph_charged[gpu]) {
        cgpu_charge_release(gpu, kinds()->graph_charged[gpu] - reserved);
        kinds()->graph_charged[gpu] = reserved;
    }
}

/* Under the lock of graphs. Bytes that GPU's account lacks and that do not fit; 0: it is right now.
 */
static uint64_t
measure(int32_t gpu, bool force)
{
    uint64_t charged;
    uint64_t reserved = ask(gpu);
    shrink(gpu, reserved);
    uint64_t growth = reserved - kinds()->graph_charged[gpu];
    if (growth == 0) {
        return 0;
    }
    if (force) {
        cgpu_charge_force(gpu, growth);
    } else if (cgpu_charge_try(gpu, growth, 0, &charged) != CUDA_SUCCESS) {
        return growth;
    }
    kinds()->graph_charged[gpu] = reserved;
    return 0;
}

CUresult
cgpu_graph_memory_measure(bool force, struct cgpu_graph_lack *lack)
{
    CUresult status = CUDA_SUCCESS;
    pthread_mutex_lock(&kinds()->graphs);
    for (int32_t gpu = 0; gpu < CGPU_MAX_GPUS; gpu++) {
        uint64_t bytes = kinds()->graph_device[gpu] != 0 ? measure(gpu, force) : 0;
        if (bytes != 0) {
            *lack = (struct cgpu_graph_lack){.gpu = gpu, .bytes = bytes};
            status = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    pthread_mutex_unlock(&kinds()->graphs);
    return status;
}

void
cgpu_graph_memory_settle(void)
{
    pthread_mutex_lock(&kinds()->graphs);
    for (int32_t gpu = 0; gpu < CGPU_MAX_GPUS; gpu++) {
        if (kinds()->graph_charged[gpu] != 0) {
            shrink(gpu, ask(gpu));
        }
    }
    pthread_mutex_unlock(&kinds()->graphs);
}

/* A reserve that is charged for nothing yet (a refused upload) is released as well. */
void
cgpu_graph_memory_trim(int32_t gpu)
{
    if (cgpu_kinds_look(&kinds()->graph_memory) == 0) {
        return;
    }
    pthread_mutex_lock(&kinds()->graphs);
    if (kinds()->graph_device[gpu] != 0) {
        cgpu_real.cuDeviceGraphMemTrim(kinds()->graph_device[gpu] - 1);
        cgpu_kinds_count(&kinds()->trims, 1);
        shrink(gpu, ask(gpu));
    }
    pthread_mutex_unlock(&kinds()->graphs);
}

CUresult
cgpu_graph_trim(CUresult (*real)(CUdevice), CUdevice device)
{
    CUresult status = real(device);
    if (status == CUDA_SUCCESS && cgpu_state_is_attached()) {
        pthread_mutex_lock(&kinds()->graphs);
        cgpu_kinds_count(&kinds()->trims, 1);
        pthread_mutex_unlock(&kinds()->graphs);
        cgpu_graph_memory_settle();
    }
    return status;
}
