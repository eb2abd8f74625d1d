/*
 * Memory of graph nodes. What each device has reserved for this process's graphs is charged.
 *
 * The driver takes it when an executable graph is first uploaded or launched, keeps it for the next
 * graph, and gives it back only when the device is trimmed. The account follows the driver's
 * figure. All changes, and every trim, happen under the lock of graphs.
 */
#include "memory/graph_memory.h"
#include "entry/shim.h"
#include "memory/account.h"

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
    for (CUdevice device = 0; device < count; device++) {
        int32_t gpu = cgpu_device_gpu(device);
        if (gpu >= 0) {
            kinds()->graph_device[gpu] = device + 1;
        }
    }
    __atomic_store_n(&kinds()->graph_memory, 1, __ATOMIC_RELAXED);
}

/* Bytes reserved on GPU. If the driver does not answer, the bytes that are charged. */
static uint64_t
ask(int32_t gpu)
{
    uint64_t reserved = 0;
    CUdevice device = kinds()->graph_device[gpu] - 1;
    CUresult status =
        cgpu_real.cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEMORY_RESERVED_CURRENT, &reserved);
    return status == CUDA_SUCCESS ? reserved : kinds()->graph_charged[gpu];
}

/*
 * Under the lock of graphs: lower the account to RESERVED if that is less. In this case some thread
 * has trimmed the device, and graphs may have lost their uploads.
 */
static void
shrink(int32_t gpu, uint64_t reserved)
{
    if (reserved < kinds()->graph_charged[gpu]) {
        cgpu_account_release(gpu, kinds()->graph_charged[gpu] - reserved);
        kinds()->graph_charged[gpu] = reserved;
        cgpu_kinds_count(&kinds()->trims, 1);
    }
}

/* Under the lock of graphs: give back what GPU's account has in excess. Returns what it lacks. */
static uint64_t
lacks(int32_t gpu)
{
    uint64_t reserved = ask(gpu);
    shrink(gpu, reserved);
    return reserved - kinds()->graph_charged[gpu];
}

static void
force(int32_t gpu)
{
    uint64_t bytes = lacks(gpu);
    if (bytes != 0) {
        cgpu_account_force(gpu, bytes);
        kinds()->graph_charged[gpu] += bytes;
    }
}

void
cgpu_graph_memory_force(void)
{
    for (int32_t gpu = 0; gpu < CGPU_MAX_GPUS; gpu++) {
        if (kinds()->graph_device[gpu] != 0) {
            force(gpu);
        }
    }
}

/* Under the lock of graphs: make the driver release what no running graph uses. */
static void
trim(int32_t gpu)
{
    cgpu_real.cuDeviceGraphMemTrim(kinds()->graph_device[gpu] - 1);
    cgpu_kinds_count(&kinds()->trims, 1);
    shrink(gpu, ask(gpu));
}

/*
 * Charge what GPU has reserved. If it does not fit, release what no graph uses at once, even before
 * room is made.
 */
static CUresult
charge(int32_t gpu, struct cgpu_graph_lack *lack)
{
    uint64_t charged;
    uint64_t bytes = lacks(gpu);
    if (bytes == 0) {
        return CUDA_SUCCESS;
    }
    CUresult status = cgpu_account_charge(gpu, bytes, &charged);
    if (status == CUDA_SUCCESS) {
        kinds()->graph_charged[gpu] += bytes;
        return status;
    }
    int mode = cgpu_capture_mode_relax();
    trim(gpu);
    cgpu_capture_mode_restore(mode);
    force(gpu); /* what a running graph keeps nevertheless */
    *lack = (struct cgpu_graph_lack){.gpu = gpu, .bytes = bytes};
    return status;
}

CUresult
cgpu_graph_memory_charge(struct cgpu_graph_lack *lack)
{
    CUresult status = CUDA_SUCCESS;
    for (int32_t gpu = 0; gpu < CGPU_MAX_GPUS; gpu++) {
        if (kinds()->graph_device[gpu] != 0 && charge(gpu, lack) != CUDA_SUCCESS) {
            status = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    return status;
}

/* Under the lock of graphs: give back what is not reserved any more. */
static void
collect(void)
{
    for (int32_t gpu = 0; gpu < CGPU_MAX_GPUS; gpu++) {
        if (kinds()->graph_charged[gpu] != 0) {
            shrink(gpu, ask(gpu));
        }
    }
}

void
cgpu_graph_memory_collect(void)
{
    pthread_mutex_lock(&kinds()->graphs);
    collect();
    pthread_mutex_unlock(&kinds()->graphs);
}

void
cgpu_graph_memory_trim(int32_t gpu)
{
    if (cgpu_kinds_look(&kinds()->graph_memory) == 0) {
        return;
    }
    pthread_mutex_lock(&kinds()->graphs);
    if (kinds()->graph_device[gpu] != 0) {
        trim(gpu);
    }
    pthread_mutex_unlock(&kinds()->graphs);
}

CUresult
cgpu_graph_trim(CUresult (*real)(CUdevice), CUdevice device)
{
    if (!cgpu_state_is_attached()) {
        return real(device);
    }
    pthread_mutex_lock(&kinds()->graphs);
    CUresult status = real(device);
    if (status == CUDA_SUCCESS) {
        cgpu_kinds_count(&kinds()->trims, 1);
        collect();
    }
    pthread_mutex_unlock(&kinds()->graphs);
    return status;
}
