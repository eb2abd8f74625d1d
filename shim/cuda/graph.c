/*
 * Launches and uploads of executable graphs that allocate memory (memory/code/instantiate.c finds
 * them).
 *
 * Such a graph takes its memory when it is uploaded or launched. A launch cannot be taken back. So
 * the graph is uploaded before its first launch in a stream, and before the first one after the
 * device was trimmed: that takes the memory without running anything. Only if the memory fits under
 * the cap is the graph launched. If the driver reserves more at the launch itself, that is charged
 * afterwards, over the cap if it does not fit. The launch of any other graph costs one load, or one
 * look-up if the process has graphs that allocate.
 *
 * Graphs share the reserved memory, and one may keep what it allocated. So a launch makes the
 * uploads of all other graphs void.
 *
 * Threads take turns (graph_turns): a turn lasts from the moment when the driver takes memory until
 * that is charged or refused. Otherwise memory that another thread is about to give back would be
 * charged, or cause a refusal. A thread that has to wait, at the gate or for room, gives up its
 * turn and checks everything again afterwards, because no thread waits for a GPU's gate while it
 * holds a lock of the process. In a turn, the lock of graphs is held wherever memory must not be
 * trimmed: from an upload to its charge, and from the last check that the memory is there to the
 * launch.
 */
#include "compute/launch.h"
#include "entry/shim.h"
#include "memory/account.h"
#include "memory/charge.h"
#include "memory/graph_memory.h"

static struct cgpu_kinds *
kinds(void)
{
    return &cgpu_state->kinds;
}

/*
 * Destroy EXEC. Its records are removed first, because the driver may give its handle to another.
 */
CUresult
cgpu_graph_destroy_exec(CUresult (*real)(CUgraphExec), CUgraphExec exec)
{
    struct cgpu_holding holding;
    struct cgpu_holding nodes;
    uint64_t handle = (uint64_t)(uintptr_t)exec;
    bool counted = cgpu_account_take(CGPU_KIND_EXEC_NODES, handle, &nodes);
    bool allocates = cgpu_account_take(CGPU_KIND_EXEC, handle, &holding);
    CUresult status = real(exec);
    if (counted && status == CUDA_SUCCESS) {
        cgpu_graph_forget_nodes(&nodes);
    } else if (counted) {
        cgpu_account_restore(&nodes);
    }
    if (allocates && status != CUDA_SUCCESS) {
        cgpu_account_restore(&holding);
    } else if (allocates) {
        __atomic_sub_fetch(&kinds()->memory_execs, 1, __ATOMIC_RELAXED);
        cgpu_graph_memory_collect();
    }
    return status;
}

/* Whether EXEC is known to allocate. */
static bool
find(CUgraphExec exec, struct cgpu_holding *holding)
{
    /* acquire: pairs with the release in memory/code/instantiate.c. */
    return cgpu_state != NULL && __atomic_load_n(&kinds()->memory_execs, __ATOMIC_ACQUIRE) != 0 &&
           cgpu_account_find(CGPU_KIND_EXEC, (uint64_t)(uintptr_t)exec, holding);
}

/* Identifies what an upload for STREAM is valid for. It differs by stream, and after each trim. */
static uint64_t
readiness(CUstream stream)
{
    uint64_t spread = (uint64_t)(uintptr_t)stream * UINT64_C(0x9e3779b97f4a7c15);
    return spread ^ cgpu_kinds_look(&kinds()->trims);
}

/* An upload, which takes the memory for the launches in STREAM. */
struct upload {
    CUgraphExec exec;
    CUstream stream;
    CUresult result; /* the driver's */
    uint64_t ready;  /* the readiness that it brings */
    struct cgpu_graph_lack lack;
};

/*
 * Upload the graph, and charge the memory that this took. If it does not fit, release it at once.
 */
static CUresult
take(struct upload *upload)
{
    pthread_mutex_lock(&kinds()->graphs);
    upload->result = cgpu_real.cuGraphUpload(upload->exec, upload->stream);
    CUresult status = cgpu_graph_memory_charge(&upload->lack);
    upload->ready = readiness(upload->stream);
    if (kinds()->ready_exec != upload->exec) {
        kinds()->ready_exec = NULL;
    }
    pthread_mutex_unlock(&kinds()->graphs);
    return status;
}

/* In a turn: upload the graph and charge its memory, or fail. */
static CUresult
prepare(struct upload *upload)
{
    CUresult status = take(upload);
    if (status != CUDA_SUCCESS && cgpu_reclaim(upload->lack.gpu, upload->lack.bytes)) {
        status = take(upload);
    }
    if (status != CUDA_SUCCESS) {
        cgpu_log_memory(upload->lack.gpu, upload->lack.bytes);
    }
    return status;
}

/* Pass the gate and launch. One exec is assumed to take the same time at every launch. */
static CUresult
run(CUresult (*real)(CUgraphExec, CUstream), CUgraphExec exec, CUstream stream)
{
    CUresult status = cgpu_launch_begin(stream, real == cgpu_real.cuGraphLaunch_ptsz,
                                        cgpu_pace_key(exec, 0), 0, NULL);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    status = real(exec, stream);
    cgpu_launch_end();
    return status;
}

/* In a turn, in which nobody else changes the record of EXEC: note what its upload is valid for. */
static void
remember(struct cgpu_holding *holding, uint64_t ready)
{
    holding->extra = ready;
    cgpu_holdings_update(cgpu_state->holdings, holding);
}

/*
 * Charge EXEC's memory for the next launch in STREAM. If the driver has none, fail here: at the
 * launch it might have some, which nobody would charge.
 */
static CUresult
make_ready(CUgraphExec exec, CUstream stream, struct cgpu_holding *holding)
{
    struct upload upload = {.exec = exec, .stream = stream};
    if (holding->extra == readiness(stream)) {
        return CUDA_SUCCESS;
    }
    CUresult status = prepare(&upload);
    if (status == CUDA_SUCCESS && upload.result == CUDA_ERROR_OUT_OF_MEMORY) {
        return upload.result;
    }
    if (status == CUDA_SUCCESS) {
        remember(holding, upload.ready);
    }
    return status;
}

/*
 * Pass the gate with EXEC's memory; if that was trimmed meanwhile, it is taken again. The thread
 * gives up its turn while it waits, so that threads that launch on other GPUs can go on. On success
 * the lock of graphs is held, so that the memory is not trimmed before the launch.
 */
static CUresult
enter(CUgraphExec exec, CUstream stream, struct cgpu_holding *holding)
{
    pthread_mutex_t *turn = &kinds()->graph_turns;
    for (;;) {
        if (!find(exec, holding)) {
            return CUDA_ERROR_INVALID_VALUE; /* destroyed by another thread */
        }
        CUresult status = make_ready(exec, stream, holding);
        if (status != CUDA_SUCCESS) {
            return status;
        }
        status = cgpu_launch_begin(stream, false, cgpu_pace_key(exec, 0), 0, turn);
        if (status == CUDA_ERROR_NOT_READY) {
            continue;
        }
        if (status != CUDA_SUCCESS) {
            return status;
        }
        pthread_mutex_lock(&kinds()->graphs);
        if (holding->extra == readiness(stream)) {
            return status;
        }
        pthread_mutex_unlock(&kinds()->graphs);
        cgpu_launch_end();
    }
}

/*
 * Under the lock of graphs: make all other uploads void, because EXEC may have taken their memory.
 */
static void
void_others(CUgraphExec exec, CUstream stream, struct cgpu_holding *holding)
{
    if (kinds()->ready_exec != exec) {
        kinds()->ready_exec = exec;
        cgpu_kinds_count(&kinds()->trims, 1);
        remember(holding, readiness(stream));
    }
}

/* In a turn: launch EXEC, with its memory charged. */
static CUresult
launch(CUresult (*real)(CUgraphExec, CUstream), CUgraphExec exec, CUstream given, CUstream stream)
{
    struct cgpu_holding holding;
    CUresult status = enter(exec, stream, &holding);
    if (status == CUDA_SUCCESS) {
        status = real(exec, given);
        cgpu_graph_memory_force();
        void_others(exec, stream, &holding);
        pthread_mutex_unlock(&kinds()->graphs);
        cgpu_launch_end();
    }
    return status;
}

/* The stream that a program means by STREAM: in a _ptsz entry point, NULL is the thread's own. */
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
    if (cgpu_captures(asked)) {
        return run(real, exec, stream);
    }
    pthread_mutex_lock(&kinds()->graph_turns);
    CUresult status = launch(real, exec, stream, asked);
    pthread_mutex_unlock(&kinds()->graph_turns);
    return status;
}

CUresult
cgpu_graph_upload(CUresult (*real)(CUgraphExec, CUstream), CUgraphExec exec, CUstream stream)
{
    struct cgpu_holding holding;
    if (!find(exec, &holding)) {
        return real(exec, stream);
    }
    struct upload upload = {
        .exec = exec,
        .stream = of(stream, real == cgpu_real.cuGraphUpload_ptsz),
    };
    pthread_mutex_lock(&kinds()->graph_turns);
    CUresult status = prepare(&upload);
    pthread_mutex_unlock(&kinds()->graph_turns);
    return status == CUDA_SUCCESS ? upload.result : status;
}
