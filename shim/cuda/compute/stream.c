/* Contexts and streams that work was put into, by their handles. All under the lock. */
#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "compute/batch_slot.h"
#include "compute/launch_state.h"
#include "compute/stream.h"
#include "gate/drain.h"
#include "gate/flight.h"

static uint16_t *
bucket_of(CUstream handle)
{
    uint64_t mixed = (uint64_t)(uintptr_t)handle * UINT64_C(0x9e3779b97f4a7c15);
    return &cgpu_launch_state->buckets[mixed >> 56];
}

/* The context entry of HANDLE; for NULL, a free one. */
static struct cgpu_context_entry *
entry_of(CUcontext handle)
{
    struct cgpu_context_entry *found = NULL;
    for (uint32_t i = 0; i < CGPU_MAX_CONTEXTS && found == NULL; i++) {
        found = cgpu_launch_state->contexts[i].handle == handle ? &cgpu_launch_state->contexts[i]
                                                                : NULL;
    }
    return found;
}

struct cgpu_context_entry *
cgpu_stream_context(CUcontext context)
{
    return context != NULL ? entry_of(context) : NULL;
}

/* Whether STREAM is a default stream. Its handle means another stream in each context or thread. */
static bool
is_default(CUstream stream)
{
    return stream == CU_STREAM_LEGACY_DEFAULT || stream == CU_STREAM_PER_THREAD_DEFAULT;
}

static uint32_t
number_of(CUstream handle)
{
    bool has_lane = cgpu_batch_slots->tid != 0;
    uint32_t own =
        has_lane ? (uint32_t)(cgpu_batch_slots - cgpu_launch_state->slots) + 1 : UINT32_MAX;
    return handle == CU_STREAM_PER_THREAD_DEFAULT ? own : 0;
}

struct cgpu_stream *
cgpu_stream_find(CUstream handle, CUcontext context)
{
    uint32_t number = number_of(handle);
    struct cgpu_stream *found = NULL;
    for (uint32_t i = *bucket_of(handle); i != 0 && found == NULL;) {
        struct cgpu_stream *stream = &cgpu_launch_state->streams[i - 1];
        bool same = stream->handle == handle && stream->slot == number &&
                    (!is_default(handle) || cgpu_stream_owner(stream)->handle == context);
        found = same ? stream : NULL;
        i = stream->next;
    }
    return found;
}

/*
 * Clear STREAM for its next use. `marks`, `issued` and `stale` are kept: slots may still read the
 * entry, and markers may be on their way. `gpu` is kept for code that handles the last marker of a
 * destroyed stream. Events go with their context at the latest.
 */
static void
reset_entry(struct cgpu_stream *stream)
{
    for (int i = 0; i < CGPU_STREAM_EVENTS; i++) {
        if (stream->events[i] != NULL && cgpu_stream_owner(stream)->handle != NULL) {
            cgpu_real.cuEventDestroy_v2(stream->events[i]);
        }
    }
    cgpu_batch_set_unmarked(stream, 0);
    *stream = (struct cgpu_stream){
        .marks = stream->marks,
        .issued = stream->issued,
        .stale = stream->stale,
        .generation = stream->generation + 1,
        .gpu = stream->gpu,
    };
}

static void
unlink_handle(struct cgpu_stream *stream)
{
    if (stream->handle != NULL) {
        uint16_t *link = bucket_of(stream->handle);
        while (*link != stream->index + 1) {
            link = &cgpu_launch_state->streams[*link - 1].next;
        }
        *link = stream->next;
        stream->handle = NULL;
        stream->slot = 0;
        cgpu_batch_slot_cut(stream); /* the handle may be given to another stream */
    }
}

void
cgpu_stream_detach(struct cgpu_stream *stream)
{
    unlink_handle(stream);
    cgpu_stream_release(stream);
}

void
cgpu_stream_drop_context(struct cgpu_context_entry *context)
{
    uint32_t index = (uint32_t)(context - cgpu_launch_state->contexts);
    context->handle = NULL;
    for (uint32_t i = 0; i < cgpu_launch_state->stream_bound; i++) {
        struct cgpu_stream *stream = &cgpu_launch_state->streams[i];
        if (stream->used && stream->context == index) {
            cgpu_flight_pass(stream, UINT64_MAX, cgpu_host_clock_now(), CGPU_SEEN_LATE);
            unlink_handle(stream);
            reset_entry(stream);
        }
    }
}

static struct cgpu_stream *
free_entry(void)
{
    uint32_t i = 0;
    while (i < CGPU_MAX_STREAMS && cgpu_launch_state->streams[i].used) {
        i++;
    }
    if (i < CGPU_MAX_STREAMS) {
        cgpu_launch_state->stream_bound =
            i < cgpu_launch_state->stream_bound ? cgpu_launch_state->stream_bound : i + 1;
        cgpu_launch_state->streams[i].index = (uint16_t)i;
    }
    return i < CGPU_MAX_STREAMS ? &cgpu_launch_state->streams[i] : NULL;
}

/* Add a stream. NULL: the table is full. */
static struct cgpu_stream *
add_stream(CUstream handle, const struct cgpu_context_entry *context)
{
    struct cgpu_stream *stream = free_entry();
    if (stream == NULL) { /* some entries may belong to threads that have ended */
        uint64_t now = cgpu_host_clock_now();
        cgpu_stream_sweep(now);
        cgpu_flight_harvest(context->gpu, now);
        stream = free_entry();
    }
    if (stream != NULL) {
        stream->used = 1;
        stream->handle = handle;
        stream->context = (uint32_t)(context - cgpu_launch_state->contexts);
        stream->gpu = context->gpu;
        stream->slot = number_of(handle);
        stream->next = *bucket_of(handle);
        *bucket_of(handle) = (uint16_t)(stream->index + 1);
    }
    return stream;
}

void
cgpu_stream_release(struct cgpu_stream *stream)
{
    if (stream->handle == NULL && stream->in_flight == 0 && !cgpu_batch_wants_marker(stream)) {
        reset_entry(stream);
    }
}

/* ---- threads that have ended ---- */

void
cgpu_stream_drop_thread(struct cgpu_batch_slot *slot, uint32_t tid, uint64_t now)
{
    uint32_t number = (uint32_t)(slot - cgpu_launch_state->slots) + 1;
    cgpu_batch_slot_reset(slot, tid, now);
    for (uint32_t i = 0; i < cgpu_launch_state->stream_bound; i++) {
        if (cgpu_launch_state->streams[i].used && cgpu_launch_state->streams[i].slot == number) {
            cgpu_stream_detach(&cgpu_launch_state->streams[i]);
        }
    }
}

void
cgpu_stream_sweep(uint64_t now)
{
    int pid = getpid();
    cgpu_launch_state->swept_ns = now;
    for (uint32_t i = 0; i < cgpu_launch_state->slot_bound; i += CGPU_THREAD_SLOTS) {
        struct cgpu_batch_slot *slot = &cgpu_launch_state->slots[i];
        /* a filter may forbid the call; that shows nothing about the thread */
        if (slot->tid != 0 && syscall(SYS_tgkill, pid, slot->tid, 0) != 0 && errno == ESRCH) {
            cgpu_stream_drop_thread(slot, 0, now);
        }
    }
    for (int32_t i = 0; i < CGPU_MAX_GPUS; i++) {
        if (cgpu_launch_state->gpus[i].work != NULL) {
            cgpu_drain_release(&cgpu_launch_state->gpus[i], now);
        }
    }
}

/* ---- which context a stream is of ---- */

static CUcontext
context_of(CUstream stream, CUcontext current)
{
    CUcontext context = current;
    bool known = is_default(stream) || cgpu_real.cuStreamGetCtx(stream, &context) == CUDA_SUCCESS;
    return known ? context : NULL;
}

/* The GPU of CONTEXT, which is made current for the question if it is not. */
static int32_t
gpu_of(CUcontext context, CUcontext current)
{
    CUdevice device;
    CUcontext popped;
    bool push = context != current;
    bool entered = !push || cgpu_real.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
    bool known = entered && cgpu_real.cuCtxGetDevice(&device) == CUDA_SUCCESS;
    if (push && entered) {
        cgpu_real.cuCtxPopCurrent_v2(&popped);
    }
    return known ? cgpu_device_gpu(device) : CGPU_NO_GPU;
}

/* Add CONTEXT. From now on native/gate may read streams of GPU. NULL: the table is full. */
static struct cgpu_context_entry *
add_context(CUcontext context, struct cgpu_gate_gpu *gpu)
{
    struct cgpu_context_entry *entry = entry_of(NULL);
    if (entry != NULL) {
        *entry = (struct cgpu_context_entry){.handle = context, .gpu = gpu};
        cgpu_batch_slot_recall(NULL); /* it may be the first on its GPU */
        /* Only once: threads that wait at the gate read it without the lock. */
        if (gpu->ops == NULL) {
            gpu->ops = &cgpu_gate_ops;
            gpu->streams = cgpu_launch_state->streams;
            gpu->stream_bound = &cgpu_launch_state->stream_bound;
        }
        /* work that is launched under a free gate can be marked through the legacy stream */
        if (add_stream(CU_STREAM_LEGACY_DEFAULT, entry) == NULL) {
            entry->handle = NULL;
            entry = NULL;
        }
    }
    return entry;
}

/* HANDLE has no entry: create it in OUT (see cgpu_stream_ensure). */
static bool
create_entry(CUstream handle, CUcontext current, struct cgpu_stream **out)
{
    CUcontext context = context_of(handle, current);
    struct cgpu_context_entry *entry = cgpu_stream_context(context);
    int32_t gpu = entry == NULL && context != NULL ? gpu_of(context, current) : CGPU_NO_GPU;
    bool ours = entry != NULL || gpu >= 0;
    if (entry == NULL && ours) {
        entry = add_context(context, &cgpu_launch_state->gpus[gpu]);
        *out = entry != NULL ? cgpu_stream_find(handle, current) : NULL;
    }
    if (entry != NULL && *out == NULL) {
        *out = add_stream(handle, entry);
    }
    return *out != NULL || !ours;
}

bool
cgpu_stream_ensure(CUstream handle, CUcontext current, struct cgpu_stream **out)
{
    *out = cgpu_stream_find(handle, current);
    /* known, or of a thread that has launched nothing */
    return *out != NULL || (handle == CU_STREAM_PER_THREAD_DEFAULT && cgpu_batch_slots->tid == 0) ||
           create_entry(handle, current, out);
}

struct cgpu_stream *
cgpu_stream_ensure_current(CUstream handle)
{
    struct cgpu_stream *found;
    cgpu_stream_ensure(handle, cgpu_context_current(), &found);
    return found;
}

bool
cgpu_stream_is_capturing(struct cgpu_stream *stream)
{
    stream->captures = stream->captures && cgpu_captures(stream->handle);
    return stream->captures;
}

bool
cgpu_stream_all_on(const struct cgpu_gate_gpu *gpu)
{
    bool all = true;
    for (uint32_t i = 0; i < CGPU_MAX_CONTEXTS && all; i++) {
        const struct cgpu_context_entry *context = &cgpu_launch_state->contexts[i];
        all = context->handle == NULL || context->gpu == gpu;
    }
    return all;
}
