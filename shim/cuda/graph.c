/*
 * Executable graphs that allocate memory.
 *
 * Which those are is found out when a graph is instantiated, from its nodes; building graphs is not
 * followed. Such a graph takes its memory when it is uploaded or launched. A launch cannot be taken
 * back, so before the first one in a stream, and the first one after the device was trimmed, the
 * graph is uploaded, which takes the memory without running anything; only if that fits under the
 * cap is it launched. Should the driver reserve more at the launch itself, that is charged
 * afterwards, over the cap if need be. The launch of any other graph costs one load, or one look-up
 * if the process has graphs that allocate.
 *
 * Threads take turns (graph_turns), from the driver's taking of memory to its charge or refusal:
 * what another thread is about to give back would else be charged, or be the reason to refuse.
 */
#include <sys/mman.h>

#include "launch.h"
#include "shim.h"

enum { MAX_DEPTH = 16, TRIMS_SHIFT = 48 };
#define NOT_READY UINT64_MAX

static struct cgpu_kinds *
kinds(void)
{
    return &cgpu_state->kinds;
}

static bool allocates(CUgraph graph, unsigned int depth);

/* Conditional nodes do not show their graphs: they are taken to allocate. */
static bool
node_allocates(CUgraphNode node, unsigned int depth)
{
    int type = -1;
    CUgraph child = NULL;
    if (cgpu_real.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS) {
        return false;
    }
    if (type == CU_NODE_GRAPH &&
        cgpu_real.cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS) {
        return allocates(child, depth + 1);
    }
    return type == CU_NODE_MEM_ALLOC || type == CU_NODE_CONDITIONAL;
}

/* Does GRAPH, or a graph in it, have a node that allocates? If it cannot be looked through: yes. */
static bool
allocates(CUgraph graph, unsigned int depth)
{
    size_t count = 0;
    if (cgpu_real.cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || count == 0) {
        return false;
    }
    if (depth > MAX_DEPTH) {
        return true;
    }
    size_t bytes = count * sizeof(CUgraphNode);
    CUgraphNode *nodes =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (nodes == MAP_FAILED) {
        return true;
    }
    bool found = false;
    if (cgpu_real.cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS) {
        for (size_t i = 0; i < count && !found; i++) {
            found = node_allocates(nodes[i], depth);
        }
    }
    munmap(nodes, bytes);
    return found;
}

/* What was reserved does not fit: let it go again. */
static CUresult
refuse(const struct cgpu_graph_lack *lack)
{
    struct cgpu_graph_lack rest;
    int mode = cgpu_reclaim_relax();
    cgpu_graph_memory_trim(lack->gpu);
    cgpu_graph_memory_measure(true, &rest); /* what a graph that runs keeps all the same */
    cgpu_reclaim_restore(mode);
    cgpu_log_memory(lack->gpu, lack->bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Charge what graphs took before this process was known to have any with memory. */
static CUresult
begin_to_follow(void)
{
    struct cgpu_graph_lack lack;
    pthread_mutex_lock(&kinds()->graph_turns);
    cgpu_graph_memory_follow();
    CUresult status = cgpu_graph_memory_measure(false, &lack);
    if (status != CUDA_SUCCESS) {
        status = refuse(&lack);
    }
    pthread_mutex_unlock(&kinds()->graph_turns);
    return status;
}

/* The driver made EXEC of GRAPH. */
static CUresult
keep(CUgraphExec exec, CUgraph graph)
{
    struct cgpu_holding holding = {
        .handle = (uint64_t)(uintptr_t)exec,
        .extra = NOT_READY,
        .kind = CGPU_KIND_EXEC,
    };
    if (!cgpu_state_is_attached() || !allocates(graph, 0)) {
        return CUDA_SUCCESS;
    }
    CUresult status = begin_to_follow();
    if (status == CUDA_SUCCESS) {
        status = cgpu_charge_hold(&holding);
    }
    if (status != CUDA_SUCCESS) {
        cgpu_real.cuGraphExecDestroy(exec);
        return status;
    }
    /* release: pairs with the load of whoever launches EXEC, which it got from this thread. */
    __atomic_add_fetch(&kinds()->memory_execs, 1, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

CUresult
cgpu_graph_instantiate_v1(CUresult (*real)(CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t),
                          CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log,
                          size_t size)
{
    CUresult status = real(exec, graph, error, log, size);
    return status == CUDA_SUCCESS ? keep(*exec, graph) : status;
}

CUresult
cgpu_graph_instantiate(CUresult (*real)(CUgraphExec *, CUgraph, uint64_t), CUgraphExec *exec,
                       CUgraph graph, uint64_t flags)
{
    CUresult status = real(exec, graph, flags);
    return status == CUDA_SUCCESS ? keep(*exec, graph) : status;
}

CUresult
cgpu_graph_instantiate_with(CUresult (*real)(CUgraphExec *, CUgraph, void *), CUgraphExec *exec,
                            CUgraph graph, void *parameters)
{
    CUresult status = real(exec, graph, parameters);
    return status == CUDA_SUCCESS ? keep(*exec, graph) : status;
}

CUresult
cgpu_graph_destroy_exec(CUresult (*real)(CUgraphExec), CUgraphExec exec)
{
    struct cgpu_holding holding;
    if (!cgpu_charge_take(CGPU_KIND_EXEC, (uint64_t)(uintptr_t)exec, &holding)) {
        return real(exec);
    }
    CUresult status = real(exec);
    if (status != CUDA_SUCCESS) {
        cgpu_charge_restore(&holding);
        return status;
    }
    __atomic_sub_fetch(&kinds()->memory_execs, 1, __ATOMIC_RELAXED);
    cgpu_graph_memory_settle();
    return status;
}

/* Is EXEC one that allocates? */
static bool
find(CUgraphExec exec, struct cgpu_holding *holding)
{
    /* acquire: pairs with the release in keep(). */
    return cgpu_state != NULL && __atomic_load_n(&kinds()->memory_execs, __ATOMIC_ACQUIRE) != 0 &&
           cgpu_charge_find(CGPU_KIND_EXEC, (uint64_t)(uintptr_t)exec, holding);
}

static bool
is_captured(CUstream stream)
{
    int capture = CU_CAPTURE_NONE;
    return cgpu_real.cuStreamIsCapturing(stream, &capture) != CUDA_SUCCESS ||
           capture != CU_CAPTURE_NONE;
}

/* Upload, and charge what that took. The driver's own refusal is left to the launch. */
static CUresult
take(CUgraphExec exec, CUstream stream, struct cgpu_graph_lack *lack)
{
    cgpu_real.cuGraphUpload(exec, stream);
    return cgpu_graph_memory_measure(false, lack);
}

/* EXEC's memory is charged, or refused. */
static CUresult
prepare(CUgraphExec exec, CUstream stream)
{
    struct cgpu_graph_lack lack;
    CUresult status = take(exec, stream, &lack);
    if (status == CUDA_SUCCESS) {
        return status;
    }
    if (cgpu_reclaim(lack.gpu, lack.bytes) && take(exec, stream, &lack) == CUDA_SUCCESS) {
        return CUDA_SUCCESS;
    }
    return refuse(&lack);
}

static uint64_t
readiness(CUstream stream)
{
    uint64_t trims = __atomic_load_n(&kinds()->trims, __ATOMIC_RELAXED);
    return trims << TRIMS_SHIFT |
           ((uint64_t)(uintptr_t)stream & ((UINT64_C(1) << TRIMS_SHIFT) - 1));
}

/* Through the gate. One exec takes the same time whenever it is launched. */
static CUresult
run(CUresult (*real)(CUgraphExec, CUstream), CUgraphExec exec, CUstream stream)
{
    CUresult status =
        cgpu_launch_begin(stream, real == cgpu_real.cuGraphLaunch_ptsz, cgpu_pace_key(exec, 0), 0);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    status = real(exec, stream);
    cgpu_launch_end();
    return status;
}

/* EXEC's memory is charged for the next launch in STREAM. */
static CUresult
make_ready(CUgraphExec exec, CUstream stream, struct cgpu_holding *holding)
{
    if (holding->extra == readiness(stream)) {
        return CUDA_SUCCESS;
    }
    CUresult status = prepare(exec, stream);
    if (status == CUDA_SUCCESS) {
        holding->extra = readiness(stream);
        cgpu_holdings_update(cgpu_state->holdings, holding);
    }
    return status;
}

/* Through the gate with its memory, which is to be had anew if it was trimmed during the wait. */
static CUresult
enter(CUgraphExec exec, CUstream stream, struct cgpu_holding *holding)
{
    for (;;) {
        CUresult status = make_ready(exec, stream, holding);
        if (status == CUDA_SUCCESS) {
            status = cgpu_launch_begin(stream, false, cgpu_pace_key(exec, 0), 0);
        }
        if (status != CUDA_SUCCESS || holding->extra == readiness(stream)) {
            return status;
        }
        cgpu_launch_end();
    }
}

/* In a turn. */
static CUresult
launch(CUresult (*real)(CUgraphExec, CUstream), CUgraphExec exec, CUstream given, CUstream stream,
       struct cgpu_holding *holding)
{
    struct cgpu_graph_lack lack;
    CUresult status = enter(exec, stream, holding);
    if (status == CUDA_SUCCESS) {
        status = real(exec, given);
        cgpu_launch_end();
        cgpu_graph_memory_measure(true, &lack);
    }
    return status;
}

/* In a _ptsz entry point NULL means the thread's own stream. */
static CUstream
of(CUstream stream, bool per_thread)
{
    return stream == NULL && per_thread ? CU_STREAM_PER_THREAD_DEFAULT : stream;
}

CUresult
cgpu_graph_launch(CUresult (*real)(CUgraphExec, CUstream), CUgraphExec exec, CUstream stream)
{
    struct cgpu_holding holding;
    if (!find(exec, &holding)) {
        return run(real, exec, stream);
    }
    CUstream asked = of(stream, real == cgpu_real.cuGraphLaunch_ptsz);
    if (is_captured(asked)) {
        return run(real, exec, stream);
    }
    pthread_mutex_lock(&kinds()->graph_turns);
    CUresult status = launch(real, exec, stream, asked, &holding);
    pthread_mutex_unlock(&kinds()->graph_turns);
    return status;
}

CUresult
cgpu_graph_upload(CUresult (*real)(CUgraphExec, CUstream), CUgraphExec exec, CUstream stream)
{
    struct cgpu_holding holding;
    struct cgpu_graph_lack lack;
    if (!find(exec, &holding)) {
        return real(exec, stream);
    }
    pthread_mutex_lock(&kinds()->graph_turns);
    CUresult status = real(exec, stream);
    if (cgpu_graph_memory_measure(false, &lack) != CUDA_SUCCESS) {
        status = prepare(exec, of(stream, real == cgpu_real.cuGraphUpload_ptsz));
    }
    pthread_mutex_unlock(&kinds()->graph_turns);
    return status;
}
