/*
 * What a context grows by after its creation: stack and local memory, printf buffer, device heap,
 * and what the device runtime and blocks keep.
 *
 * The driver takes some of it late, at some launch, when it would be too late to refuse. So it is
 * charged by a formula when the program asks for it. Only what exceeds the defaults is charged,
 * because the measured cost of a context includes those.
 *
 * Assumed, where no document gives a figure: a pending launch of the device runtime takes no more
 * than twice its largest parameters (4 KiB). A level of synchronisation takes for each thread no
 * more than the documented 150 MB divided by 30,720, the threads of the largest GPU of that time.
 * Memory of blocks is reserved for all blocks that fit at a time. `make gpu-check` compares this
 * with what is taken.
 */
#include "memory/growth.h"
#include "entry/shim.h"
#include "memory/account.h"
#include "memory/charge.h"
#include "memory/target.h"

enum {
    LAUNCH_BYTES = 8192,
    LEVEL_BYTES = 5120,    /* for each thread */
    HEAP_BYTES = 10 << 20, /* on an H200, by `make gpu-check` */
    MOST_KNOWN = CU_LIMIT_PER_BLOCK_MEMORY_SIZE
};

/*
 * How many threads, blocks or the like fit on GPU at a time: PER_PROCESSOR is the attribute that
 * counts them.
 */
static uint64_t
resident(int32_t gpu, int per_processor)
{
    CUdevice device = cgpu_device_of(gpu);
    int each = 0;
    int processors = 0;
    if (cgpu_real.cuDeviceGetAttribute(&each, per_processor, device) != 0 ||
        cgpu_real.cuDeviceGetAttribute(&processors, CU_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) !=
            0) {
        return UINT64_MAX; /* more than any cap */
    }
    return (uint64_t)each * (uint64_t)processors;
}

/* Bytes that one more unit of WHAT takes on GPU. */
static uint64_t
unit_bytes(int32_t gpu, int what)
{
    uint64_t bytes;
    switch (what) {
    case CGPU_GROWTH_STACK:
    case CGPU_GROWTH_LOCAL:
        return resident(gpu, CU_ATTRIBUTE_THREADS_PER_MULTIPROCESSOR);
    case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH:
        bytes = resident(gpu, CU_ATTRIBUTE_THREADS_PER_MULTIPROCESSOR);
        return bytes < UINT64_MAX / LEVEL_BYTES ? bytes * LEVEL_BYTES : UINT64_MAX;
    case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT:
        return LAUNCH_BYTES;
    case CU_LIMIT_PER_BLOCK_MEMORY_SIZE:
        return resident(gpu, CU_ATTRIBUTE_BLOCKS_PER_MULTIPROCESSOR);
    default:
        return 1;
    }
}

/*
 * Whether the charge may be lowered when the limit is. The driver refuses to make heap and printf
 * buffer smaller once they exist. What it does with the rest is not documented, so the rest stays
 * charged.
 */
static bool
goes_when_lowered(int what)
{
    return what == CU_LIMIT_PRINTF_FIFO_SIZE || what == CU_LIMIT_MALLOC_HEAP_SIZE;
}

/*
 * CONTEXT's LIMIT, even if another context is current. If the driver does not report it: 0, which
 * never charges too little.
 */
static size_t
ask_limit(uint64_t context, int limit)
{
    CUcontext popped;
    size_t value = 0;
    if (cgpu_real.cuCtxPushCurrent_v2((CUcontext)(uintptr_t)context) == CUDA_SUCCESS) {
        cgpu_real.cuCtxGetLimit(&value, limit);
        cgpu_real.cuCtxPopCurrent_v2(&popped);
    }
    return value;
}

/*
 * Load the account of one growth of one context. It grows from the default of LIMIT; if LIMIT is
 * negative, from 0.
 */
static void
load(struct cgpu_holding *growth, const struct cgpu_target *target, int what, int limit)
{
    uint64_t handle = cgpu_growth_handle(target->owner, what);
    if (cgpu_account_find(CGPU_KIND_GROWTH, handle, growth)) {
        return;
    }
    *growth = (struct cgpu_holding){
        .handle = handle,
        .owner = target->owner,
        .extra = limit < 0 ? 0 : ask_limit(target->owner, limit),
        .kind = CGPU_KIND_GROWTH,
        .gpu = (uint32_t)target->gpu,
    };
}

/* Bytes to charge if the limit is VALUE, in whole blocks. */
static uint64_t
bytes_beyond(const struct cgpu_holding *growth, int what, uint64_t value)
{
    int32_t gpu = (int32_t)growth->gpu;
    uint64_t bytes = value > growth->extra ? value - growth->extra : 0;
    return __builtin_mul_overflow(bytes, unit_bytes(gpu, what), &bytes)
               ? UINT64_MAX
               : cgpu_account_whole(gpu, bytes);
}

/* Store the account. BYTES were charged for it. */
static CUresult
store(struct cgpu_holding *growth, uint64_t bytes)
{
    growth->bytes = bytes;
    if (cgpu_holdings_update(cgpu_state->holdings, growth) == CGPU_OK) {
        return CUDA_SUCCESS;
    }
    return cgpu_account_hold(growth);
}

/*
 * `extra` of NODES is the number of nodes and, in the upper half, the most nodes that existed at
 * once. A graph that is being made may still be refused, so its nodes raise that maximum only when
 * a call with 0 confirms the graph.
 */
uint64_t
cgpu_growth_graphs(const struct cgpu_target *target, int64_t nodes, uint64_t node_bytes)
{
    struct cgpu_holding counts;
    struct cgpu_holding taken;
    pthread_mutex_lock(&cgpu_state->growth);
    load(&counts, target, CGPU_GROWTH_NODES, -1);
    load(&taken, target, CGPU_GROWTH_GRAPHS, -1);
    int64_t live = (int64_t)(counts.extra & UINT32_MAX) + nodes;
    uint64_t now = live > 0 ? (uint64_t)live & UINT32_MAX : 0;
    uint64_t most = counts.extra >> 32 > now ? counts.extra >> 32 : now;
    counts.extra = (nodes == 0 ? most : counts.extra >> 32) << 32 | now;
    (void)store(&counts, 0);
    pthread_mutex_unlock(&cgpu_state->growth);
    return most * node_bytes > taken.bytes ? most * node_bytes - taken.bytes : 0;
}

CUresult
cgpu_growth_keep(const struct cgpu_target *target, enum cgpu_growth what, uint64_t bytes)
{
    struct cgpu_holding growth;
    pthread_mutex_lock(&cgpu_state->growth);
    load(&growth, target, (int)what, -1);
    CUresult status = store(&growth, growth.bytes + bytes);
    pthread_mutex_unlock(&cgpu_state->growth);
    return status;
}

bool
cgpu_growth_has_heap(uint64_t context)
{
    struct cgpu_holding growth;
    return cgpu_account_find(CGPU_KIND_GROWTH, cgpu_growth_handle(context, CGPU_GROWTH_HEAP),
                             &growth);
}

CUresult
cgpu_growth_heap(const struct cgpu_target *target, uint64_t *charged)
{
    struct cgpu_holding growth;
    CUresult status = CUDA_SUCCESS;
    *charged = 0;
    pthread_mutex_lock(&cgpu_state->growth);
    load(&growth, target, CGPU_GROWTH_HEAP, -1);
    if (growth.bytes == 0) {
        status = cgpu_charge(target->gpu, HEAP_BYTES, charged);
        status = status == CUDA_SUCCESS ? store(&growth, *charged) : status;
    }
    pthread_mutex_unlock(&cgpu_state->growth);
    return status;
}

CUresult
cgpu_growth_limit(CUresult (*real)(int, size_t), int limit, size_t value,
                  const struct cgpu_target *target)
{
    struct cgpu_holding growth;
    uint64_t charged = 0;
    load(&growth, target, limit, limit);
    uint64_t before = growth.bytes;
    uint64_t after = bytes_beyond(&growth, limit, value);
    if (after < before && !goes_when_lowered(limit)) {
        after = before;
    }
    CUresult status = CUDA_SUCCESS;
    if (after > before) {
        status = cgpu_charge(target->gpu, after - before, &charged);
    }
    if (status != CUDA_SUCCESS) {
        return status;
    }
    status = real(limit, value);
    if (status != CUDA_SUCCESS) {
        cgpu_account_release(target->gpu, charged);
        return status;
    }
    status = store(&growth, after);
    if (status == CUDA_SUCCESS && after < before) {
        cgpu_account_release(target->gpu, before - after);
    }
    return status;
}

/* Under the lock of growth: charge TARGET for BYTES of local memory per thread. */
static CUresult
grow_local(const struct cgpu_target *target, uint64_t bytes)
{
    struct cgpu_holding growth;
    uint64_t charged = 0;
    load(&growth, target, CGPU_GROWTH_LOCAL, CU_LIMIT_STACK_SIZE);
    uint64_t after = bytes_beyond(&growth, CGPU_GROWTH_LOCAL, bytes);
    if (after <= growth.bytes) {
        return CUDA_SUCCESS;
    }
    CUresult status = cgpu_charge(target->gpu, after - growth.bytes, &charged);
    return status == CUDA_SUCCESS ? store(&growth, after) : status;
}

/*
 * This takes a lock of its own, not the lock of contexts. A thread that destroys a context holds
 * the latter, and a host function of that context may wait for the thread that calls this.
 */
CUresult
cgpu_growth_local_memory(const struct cgpu_target *target, uint64_t bytes)
{
    pthread_mutex_lock(&cgpu_state->growth);
    CUresult status = grow_local(target, bytes);
    pthread_mutex_unlock(&cgpu_state->growth);
    return status;
}

/* Under the lock of contexts: charge each context for BYTES of local memory per thread. */
static CUresult
grow_everywhere(uint64_t bytes)
{
    struct cgpu_holding contexts[CGPU_MAX_LISTED];
    size_t count =
        cgpu_holdings_list(cgpu_state->holdings, CGPU_KIND_CONTEXT, contexts, CGPU_MAX_LISTED);
    CUresult status = count <= CGPU_MAX_LISTED ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count && status == CUDA_SUCCESS; i++) {
        struct cgpu_target target = {(int32_t)contexts[i].gpu, contexts[i].owner};
        status = cgpu_growth_local_memory(&target, bytes);
    }
    return status;
}

CUresult
cgpu_growth_local_memory_everywhere(uint64_t bytes)
{
    /* relaxed: a thread that reads an old value checks again under the lock */
    if (bytes <= __atomic_load_n(&cgpu_state->local_bytes, __ATOMIC_RELAXED)) {
        return CUDA_SUCCESS;
    }
    pthread_mutex_lock(&cgpu_state->contexts);
    CUresult status = bytes > cgpu_state->local_bytes ? grow_everywhere(bytes) : CUDA_SUCCESS;
    if (status == CUDA_SUCCESS && bytes > cgpu_state->local_bytes) {
        __atomic_store_n(&cgpu_state->local_bytes, bytes, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&cgpu_state->contexts);
    return status;
}

CUresult
cgpu_growth_of_context_locked(uint64_t context, int32_t gpu)
{
    struct cgpu_target target = {gpu, context};
    return gpu >= 0 && cgpu_state->local_bytes != 0
               ? cgpu_growth_local_memory(&target, cgpu_state->local_bytes)
               : CUDA_SUCCESS;
}

CUresult
cgpu_growth_of_context(uint64_t context, int32_t gpu)
{
    if (__atomic_load_n(&cgpu_state->local_bytes, __ATOMIC_RELAXED) == 0) {
        return CUDA_SUCCESS;
    }
    pthread_mutex_lock(&cgpu_state->contexts);
    CUresult status = cgpu_growth_of_context_locked(context, gpu);
    pthread_mutex_unlock(&cgpu_state->contexts);
    return status;
}
