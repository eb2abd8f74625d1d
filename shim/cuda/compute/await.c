/*
 * Work that may make the GPU wait for the program: host functions, values, semaphores.
 *
 * What is behind such work in a stream may not end before the program does something more: makes
 * another launch, continues a thread, or releases a lock that a host function wants. So
 * native/gate/flight.c has to know of it. In place of the program's host function the driver gets
 * one of ours, which records that it runs, calls the program's, and records that it has returned.
 * Meanwhile the GPU executes nothing of that stream. What a graph waits for, or the GPU itself,
 * cannot be seen: then the process is marked as one in which streams may wait.
 */
#include <linux/futex.h>

#include "compute/await.h"
#include "compute/launch_state.h"
#include "compute/stream.h"
#include "futex.h"

enum node_type {
    NODE_HOST = 3,
    NODE_SEMAPHORE_WAIT = 9,
    NODE_BATCH_MEM_OP = 12,
    LAST_KNOWN = 13 /* a newer one may wait for anything */
};

void
cgpu_await_note(void)
{
    /* relaxed: it is set before the wait can delay anybody */
    __atomic_store_n(&cgpu_launch_state->awaits_host, 1, __ATOMIC_RELAXED);
}

void
cgpu_await_note_node(const int *parameters)
{
    if (parameters != NULL && (*parameters == NODE_HOST || *parameters == NODE_SEMAPHORE_WAIT ||
                               *parameters == NODE_BATCH_MEM_OP || *parameters > LAST_KNOWN)) {
        cgpu_await_note();
    }
}

/* ---- running host functions: without the lock, whose holder may be waiting for them ---- */

static bool
is_long(uint64_t since, uint64_t now)
{
    return since != 0 && now > since && now - since >= CGPU_STALL_CALL_NS;
}

static void
begin_call(struct cgpu_call *call)
{
    /* relaxed: all else of the call was written under the lock */
    __atomic_store_n(&call->since_ns, cgpu_host_clock_now(), __ATOMIC_RELAXED);
}

/* Mark CALL as returned: work behind it may run from now on. */
static void
end_call(struct cgpu_call *call)
{
    const struct cgpu_gate_gpu *gpu = call->gpu;
    uint64_t since = call->since_ns;
    /* seq_cst: a thread that still sees the call running has read the clock before this store */
    __atomic_store_n(&call->since_ns, 0, __ATOMIC_SEQ_CST);
    bool was_long = is_long(since, cgpu_host_clock_now());
    /* release: the next user of the entry finds nothing of this call */
    __atomic_store_n(&call->used, 0, __ATOMIC_RELEASE);
    const uint32_t *gate = __atomic_load_n(&gpu->gate, __ATOMIC_ACQUIRE);
    if (was_long && gate != NULL) { /* its stream is stalled, and the monitor sleeps there */
        cgpu_futex_wake((uint32_t *)(uintptr_t)gate, FUTEX_WAKE, INT32_MAX);
    }
}

void
cgpu_await_run(void *data)
{
    struct cgpu_call *call = data;
    begin_call(call);
    ((void (*)(void *))call->function)(call->data);
    end_call(call);
}

void
cgpu_await_run_callback(CUstream stream, CUresult status, void *data)
{
    struct cgpu_call *call = data;
    begin_call(call);
    ((void (*)(CUstream, CUresult, void *))call->function)(stream, status, call->data);
    end_call(call);
}

/*
 * Stall the streams whose host function runs for long. A stream in a host function uses none of the
 * GPU meanwhile, so this does not count as a lack of progress.
 */
bool
cgpu_await_poll(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    /* relaxed: it is set before the wait is submitted */
    bool awaits = __atomic_load_n(&cgpu_launch_state->awaits_host, __ATOMIC_RELAXED) != 0;
    for (uint32_t i = 0; i < cgpu_launch_state->call_bound; i++) {
        const struct cgpu_call *call = &cgpu_launch_state->calls[i];
        uint64_t since = __atomic_load_n(&call->since_ns, __ATOMIC_SEQ_CST);
        struct cgpu_stream *stream = call->stream;
        awaits = awaits || is_long(since, now); /* others may wait for it, or for its thread */
        if (since == 0 || stream->generation != call->generation || stream->gpu != gpu) {
            continue;
        }
        stream->progress_ns = now;
        stream->in_call_ns = now;
        if (is_long(since, now)) {
            cgpu_stall_begin(stream, CGPU_STALL_IN_CALL, now);
        }
    }
    return awaits;
}

bool
cgpu_await_is_behind(const struct cgpu_stream *stream)
{
    for (uint32_t i = 0; i < cgpu_launch_state->call_bound; i++) {
        const struct cgpu_call *call = &cgpu_launch_state->calls[i];
        /* relaxed: a call that has just returned is seen at the next check */
        if (__atomic_load_n(&call->used, __ATOMIC_RELAXED) && call->stream == stream &&
            call->generation == stream->generation) {
            return true;
        }
    }
    return false;
}

/* ---- host functions that are put into streams ---- */

/* Under the lock: a free entry for a host function, or NULL. */
static struct cgpu_call *
free_call(void)
{
    for (uint32_t i = 0; i < CGPU_MAX_CALLS; i++) {
        /* acquire: its last user no longer uses it */
        if (__atomic_load_n(&cgpu_launch_state->calls[i].used, __ATOMIC_ACQUIRE) == 0) {
            cgpu_launch_state->call_bound =
                i < cgpu_launch_state->call_bound ? cgpu_launch_state->call_bound : i + 1;
            return &cgpu_launch_state->calls[i];
        }
    }
    return NULL;
}

/*
 * Give the driver OURS in place of the program's function, with an entry of ours as its data.
 * Graphs keep the program's function, because the program may ask for it. So each entry runs once.
 */
void
cgpu_await_replace(CUstream stream, bool per_thread, void *ours, void **function, void **data)
{
    cgpu_launch_lock();
    struct cgpu_stream *found = cgpu_stream_ensure_current(cgpu_stream_meant(stream, per_thread));
    bool runs = found != NULL && !cgpu_stream_is_capturing(found);
    struct cgpu_call *call = runs && *function != NULL ? free_call() : NULL;
    if (call != NULL) {
        *call = (struct cgpu_call){
            .function = *function,
            .data = *data,
            .stream = found,
            .gpu = found->gpu,
            .generation = found->generation,
            .used = 1,
        };
        found->call_ns = cgpu_host_clock_now();
        *function = ours;
        *data = call;
    } else {
        cgpu_await_note();
    }
    cgpu_launch_unlock();
}

void
cgpu_await_given(CUresult status, void *data)
{
    struct cgpu_call *call = data;
    bool ours =
        call >= cgpu_launch_state->calls && call < cgpu_launch_state->calls + CGPU_MAX_CALLS;
    if (status != CUDA_SUCCESS && ours) {
        __atomic_store_n(&call->used, 0, __ATOMIC_RELEASE);
    }
}
