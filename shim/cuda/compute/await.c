/*
 * What may make the GPU wait for the program: host functions, values, semaphores.
 *
 * Work behind it may not end before the program has done something more: this launch, what the
 * thread does afterwards, letting go of a lock that a host function wants. So native/gate/apart.c
 * is to know of it. In place of a host function the driver gets one of ours, which says that it
 * runs, calls it, and says that it has returned: while it runs the GPU is at nothing of that
 * stream. What a graph waits for, and what the GPU itself waits for, is seen by nobody: there the
 * process is marked as one in which streams may wait.
 */
#include <linux/futex.h>

#include "compute/await.h"
#include "compute/flow.h"
#include "compute/marker.h"
#include "compute/stream.h"
#include "futex.h"
#include "gate/apart.h"

enum node_type { NODE_HOST = 3, NODE_SEMAPHORE_WAIT = 9, NODE_BATCH_MEM_OP = 12 };

/* The argument that the driver passes to our function: the number of the call, and its index. */
enum { INDEX_BITS = 10 };

_Static_assert(1 << INDEX_BITS == CGPU_MAX_CALLS, "an entry for each call");

void
cgpu_await_note(void)
{
    /* relaxed: it is set before what waits can have made anybody wait */
    __atomic_store_n(&cgpu_flow->awaits_host, 1, __ATOMIC_RELAXED);
}

/* The first field of a node's parameters is its type. */
void
cgpu_await_note_node(const int *parameters)
{
    if (parameters != NULL && (*parameters == NODE_HOST || *parameters == NODE_SEMAPHORE_WAIT ||
                               *parameters == NODE_BATCH_MEM_OP)) {
        cgpu_await_note();
    }
}

/* ---- running host functions: without the lock, which may be held while waiting for them ---- */

static void
begin(struct cgpu_call *call)
{
    __atomic_store_n(&call->since_ns, cgpu_flow_now(), __ATOMIC_RELAXED);
    /* seq_cst, all three: a thread that sees the call run sees all of it */
    __atomic_add_fetch(&cgpu_flow->calling, 1, __ATOMIC_SEQ_CST);
}

/* Work behind the call runs from now on. */
static void
end(struct cgpu_call *call)
{
    const struct cgpu_gate_gpu *gpu = &cgpu_flow->gpus[call->gpu];
    __atomic_store_n(&call->since_ns, 0, __ATOMIC_SEQ_CST);
    __atomic_sub_fetch(&cgpu_flow->calling, 1, __ATOMIC_SEQ_CST);
    bool held = __atomic_load_n(&call->held, __ATOMIC_SEQ_CST) != 0;
    /* release: the next user of the entry finds nothing of this call */
    __atomic_store_n(&call->number, call->number + 1, __ATOMIC_RELEASE);
    const uint32_t *gate = __atomic_load_n(&gpu->gate, __ATOMIC_ACQUIRE);
    if (held && gate != NULL) { /* the monitor sleeps there */
        cgpu_futex_wake((uint32_t *)(uintptr_t)gate, FUTEX_WAKE, INT32_MAX);
    }
}

/* NULL: it has run before. Only a graph could repeat it, and graphs get no function of ours. */
static struct cgpu_call *
call_of(const void *data)
{
    uint64_t value = (uint64_t)(uintptr_t)data;
    struct cgpu_call *call = &cgpu_flow->calls[value % CGPU_MAX_CALLS];
    return call->number == value >> INDEX_BITS ? call : NULL;
}

static void
run_function(void *data)
{
    struct cgpu_call *call = call_of(data);
    if (call != NULL) {
        void (*function)(void *) = (void (*)(void *))call->function;
        begin(call);
        function(call->data);
        end(call);
    }
}

static void
run_callback(CUstream stream, CUresult status, void *data)
{
    struct cgpu_call *call = call_of(data);
    if (call != NULL) {
        void (*callback)(CUstream, CUresult, void *) =
            (void (*)(CUstream, CUresult, void *))call->function;
        begin(call);
        callback(stream, status, call->data);
        end(call);
    }
}

/* A stream in a host function uses none of the GPU meanwhile. */
bool
cgpu_await_look(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    /* relaxed: it is set before the wait is submitted */
    bool awaits = __atomic_load_n(&cgpu_flow->awaits_host, __ATOMIC_RELAXED) != 0;
    bool some = __atomic_load_n(&cgpu_flow->calling, __ATOMIC_SEQ_CST) != 0;
    for (uint32_t i = 0; some && i < cgpu_flow->call_bound; i++) {
        struct cgpu_call *call = &cgpu_flow->calls[i];
        uint64_t since = __atomic_load_n(&call->since_ns, __ATOMIC_SEQ_CST);
        bool long_ago = since != 0 && now > since && now - since >= CGPU_APART_CALL_NS;
        struct cgpu_stream *stream = &cgpu_flow->streams[call->stream];
        awaits = awaits || long_ago; /* others may wait for this one, or for its thread */
        if (since == 0 || !stream->used || stream->born != call->born || stream->gpu != gpu) {
            continue;
        }
        stream->moved_ns = now;
        stream->called_ns = now;
        if (long_ago) {
            __atomic_store_n(&call->held, 1, __ATOMIC_SEQ_CST);
            cgpu_apart_go(stream, CGPU_APART_CALLED, now);
        }
    }
    return awaits;
}

bool
cgpu_await_is_behind(const struct cgpu_stream *stream)
{
    for (uint32_t i = 0; i < cgpu_flow->call_bound; i++) {
        const struct cgpu_call *call = &cgpu_flow->calls[i];
        /* relaxed: a call that has just returned is seen at the next look */
        if (__atomic_load_n(&call->number, __ATOMIC_RELAXED) % 2 != 0 &&
            call->stream == stream->index && call->born == stream->born) {
            return true;
        }
    }
    return false;
}

/* ---- host functions that are put into streams ---- */

/* Under the lock. */
static struct cgpu_call *
free_call(void)
{
    for (uint32_t i = 0; i < CGPU_MAX_CALLS; i++) {
        struct cgpu_call *call = &cgpu_flow->calls[i];
        /* acquire: its last user is done with it */
        if (__atomic_load_n(&call->number, __ATOMIC_ACQUIRE) % 2 == 0) {
            cgpu_flow->call_bound = i < cgpu_flow->call_bound ? cgpu_flow->call_bound : i + 1;
            return call;
        }
    }
    return NULL;
}

/* Under the lock: the entry of STREAM. NULL: there is none, or it captures. */
static struct cgpu_stream *
stream_for(CUstream stream)
{
    struct cgpu_stream *found = NULL;
    if (stream == CU_STREAM_PER_THREAD_DEFAULT && cgpu_lane->tid == 0) {
        return NULL; /* the thread has launched nothing */
    }
    if (cgpu_stream_meet(stream, cgpu_context_current(), cgpu_lane, &found) !=
            CGPU_STREAM_OF_OURS ||
        found->handle != stream || cgpu_marker_captures(found)) {
        return NULL;
    }
    return found;
}

/* What to give the driver as data of our function, for FUNCTION and DATA; NULL: use these as is. */
static void *
take(CUstream stream, void *function, void *data)
{
    struct cgpu_call *call = NULL;
    uint64_t value = 0;
    if (cgpu_flow == NULL || function == NULL || !cgpu_state_is_attached()) {
        return NULL;
    }
    cgpu_flow_lock();
    struct cgpu_stream *found = stream_for(stream);
    call = found != NULL ? free_call() : NULL;
    if (call != NULL) {
        call->function = function;
        call->data = data;
        call->stream = found->index;
        call->born = found->born;
        call->gpu = (uint32_t)(found->gpu - cgpu_flow->gpus);
        call->held = 0;
        call->number += 1;
        found->call_ns = cgpu_flow_now();
        value = (uint64_t)call->number << INDEX_BITS | (uint64_t)(call - cgpu_flow->calls);
    } else {
        cgpu_await_note();
    }
    cgpu_flow_unlock();
    return (void *)(uintptr_t)value;
}

/* Give the call back if the driver refused it. */
static CUresult
undo(CUresult status, void *taken)
{
    if (status != CUDA_SUCCESS && taken != NULL) {
        struct cgpu_call *call = call_of(taken);
        __atomic_store_n(&call->number, call->number + 1, __ATOMIC_RELEASE);
    }
    return status;
}

CUresult
cgpu_await_function(CUresult (*real)(CUstream, void *, void *), CUstream stream, void *function,
                    void *data)
{
    void *taken =
        take(cgpu_stream_meant(stream, real == cgpu_real.cuLaunchHostFunc_ptsz), function, data);
    return taken == NULL ? real(stream, function, data)
                         : undo(real(stream, (void *)run_function, taken), taken);
}

CUresult
cgpu_await_callback(CUresult (*real)(CUstream, void *, void *, unsigned int), CUstream stream,
                    void *function, void *data, unsigned int flags)
{
    void *ours =
        real == cgpu_real.cuLaunchHostFunc_v2 ? (void *)run_function : (void *)run_callback;
    bool per_thread = real == cgpu_real.cuStreamAddCallback_ptsz;
    void *taken = take(cgpu_stream_meant(stream, per_thread), function, data);
    return taken == NULL ? real(stream, function, data, flags)
                         : undo(real(stream, ours, taken, flags), taken);
}
