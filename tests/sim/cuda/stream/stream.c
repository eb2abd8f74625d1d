/* Streams. The work of a process on a GPU is one queue, so a stream is a position in that queue. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>

#include "sim.h"

enum { NON_BLOCKING = 1 };

static uint64_t
newest(uint64_t left, uint64_t right)
{
    return left > right ? left : right;
}

static struct sim_stream *
per_thread(struct sim_context *context)
{
    unsigned long self = (unsigned long)pthread_self();
    struct sim_stream *stream = NULL;
    while ((stream = sim_object_next(SIM_STREAM, stream)) != NULL) {
        if (stream->object.owner == context && stream->thread == self) {
            return stream;
        }
    }
    stream = sim_object_new(SIM_STREAM, sizeof *stream, context);
    stream->thread = self;
    stream->id = 2;
    return stream;
}

int
sim_stream_find(void *handle, struct sim_stream **out)
{
    struct sim_context *context;
    if (handle == NULL) {
        handle = sim_null_stream == NULL ? SIM_STREAM_LEGACY : sim_null_stream;
    }
    if (handle == SIM_STREAM_LEGACY || handle == SIM_STREAM_PER_THREAD) {
        int result = sim_context_current(&context);
        if (result == CUDA_SUCCESS) {
            *out = handle == SIM_STREAM_LEGACY ? context->legacy : per_thread(context);
        }
        return result;
    }
    *out = sim_object_find(SIM_STREAM, handle);
    return *out == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

void
sim_stream_free(struct sim_stream *stream)
{
    sim_capture_forget(stream);
    sim_pool_stream_gone(stream);
    sim_object_delete(stream);
}

/* The legacy stream follows, and is followed by, every blocking stream of its context. */
static void
join_blocking(struct sim_stream *stream)
{
    struct sim_stream *other = NULL;
    while ((other = sim_object_next(SIM_STREAM, other)) != NULL) {
        if (other->object.owner == stream->object.owner && (other->flags & NON_BLOCKING) == 0 &&
            (stream->is_legacy || other->is_legacy)) {
            stream->last_item = newest(stream->last_item, other->last_item);
            sim_action_join(stream, other->last_action);
        }
    }
}

static void
join_others(struct sim_stream *stream)
{
    if ((stream->flags & NON_BLOCKING) == 0) {
        join_blocking(stream);
    }
}

void
sim_item_wait(struct sim_device *device, uint64_t item)
{
    if (item == 0 || cgpu_machine_done(sim_machine(), device->machine_index, item)) {
        return;
    }
    sim_unlock_for_wait();
    cgpu_machine_wait(sim_machine(), device->machine_index, item);
    sim_lock_after_wait();
}

/* With all that the stream wrote up to there. */
static void
finish_item(struct sim_device *device, uint64_t item)
{
    sim_item_wait(device, item);
    sim_markers_write(device);
}

void
sim_stream_wait(struct sim_stream *stream)
{
    join_others(stream);
    uint64_t item = stream->last_item, action = stream->last_action;
    finish_item(stream->object.owner->device, item);
    sim_action_wait(action);
}

int
sim_stream_done(struct sim_stream *stream)
{
    struct sim_device *device = stream->object.owner->device;
    join_others(stream);
    if (stream->last_item != 0 &&
        !cgpu_machine_done(sim_machine(), device->machine_index, stream->last_item)) {
        return 0;
    }
    sim_markers_write(device);
    return sim_action_done(stream->last_action);
}

void
sim_stream_submit(struct sim_stream *stream, uint64_t duration_ns, int is_copy)
{
    struct sim_device *device = stream->object.owner->device;
    join_others(stream);
    if (duration_ns == 0) {
        return;
    }
    if (!sim_action_done(stream->last_action)) {
        sim_action_kernel(stream, duration_ns);
        return;
    }
    while (!cgpu_machine_has_room(sim_machine(), device->machine_index)) {
        sim_unlock_for_wait(); /* other threads' calls that launch nothing go on meanwhile */
        cgpu_machine_await_room(sim_machine(), device->machine_index);
        sim_lock_after_wait();
    }
    stream->last_item =
        cgpu_machine_submit(sim_machine(), device->machine_index, duration_ns, is_copy);
    device->last_item = stream->last_item;
    if (device->last_item % 256 == 0) {
        sim_event_harvest(device); /* before the machine forgets when items ended */
    }
}

/* An action of CONTEXT that has not ended; 0: there is none. */
static uint64_t
open_action(struct sim_context *context)
{
    struct sim_stream *stream = NULL;
    while ((stream = sim_object_next(SIM_STREAM, stream)) != NULL) {
        if (stream->object.owner == context && !sim_action_done(stream->last_action)) {
            return stream->last_action;
        }
    }
    return 0;
}

void
sim_context_wait(struct sim_context *context)
{
    uint64_t action;
    while ((action = open_action(context)) != 0) {
        sim_action_wait(action);
    }
    finish_item(context->device, context->device->last_item);
}

static int
create(struct sim_stream **out, unsigned flags, int priority)
{
    static uint64_t next_id = 16;
    struct sim_context *context;
    int result = sim_context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (out == NULL || (flags & ~(unsigned)NON_BLOCKING) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_stream *stream = sim_object_new(SIM_STREAM, sizeof *stream, context);
    if (stream == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    stream->flags = flags;
    stream->priority = priority < -5 ? -5 : (priority > 0 ? 0 : priority);
    stream->id = ++next_id;
    *out = stream;
    return CUDA_SUCCESS;
}

SIM_API(cuStreamCreate, (struct sim_stream * *out, unsigned flags), (out, flags))
{
    return create(out, flags, 0);
}

SIM_API(cuStreamCreateWithPriority, (struct sim_stream * *out, unsigned flags, int priority),
        (out, flags, priority))
{
    return create(out, flags, priority);
}

/* Work in it goes on; the handle is gone. */
static int
destroy(struct sim_stream *handle)
{
    struct sim_stream *stream = sim_object_find(SIM_STREAM, handle);
    if (stream == NULL || stream->is_legacy || stream->thread != 0) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    sim_stream_free(stream);
    return CUDA_SUCCESS;
}

SIM_API(cuStreamDestroy, (struct sim_stream * handle), (handle))
{
    return destroy(handle);
}

SIM_API(cuStreamDestroy_v2, (struct sim_stream * handle), (handle))
{
    return destroy(handle);
}

SIM_API_PER_THREAD(cuStreamSynchronize, _ptsz, (void *handle), (handle))
{
    struct sim_stream *stream;
    int result = sim_stream_find(handle, &stream);
    if (result == CUDA_SUCCESS) {
        result = sim_capture_touch(stream);
    }
    if (result == CUDA_SUCCESS) {
        result = sim_capture_forbids();
    }
    if (result == CUDA_SUCCESS) {
        struct sim_device *device = stream->object.owner->device;
        sim_stream_wait(stream);
        sim_pools_trim(device);
    }
    return result;
}

SIM_API_PER_THREAD(cuStreamQuery, _ptsz, (void *handle), (handle))
{
    struct sim_stream *stream;
    int result = sim_stream_find(handle, &stream);
    if (result == CUDA_SUCCESS) {
        result = sim_capture_touch(stream);
    }
    if (result == CUDA_SUCCESS) {
        result = sim_capture_forbids();
    }
    if (result == CUDA_SUCCESS && !sim_stream_done(stream)) {
        result = CUDA_ERROR_NOT_READY;
    }
    return result;
}

SIM_API_PER_THREAD(cuStreamGetPriority, _ptsz, (void *handle, int *out), (handle, out))
{
    struct sim_stream *stream;
    int result = out == NULL ? CUDA_ERROR_INVALID_VALUE : sim_stream_find(handle, &stream);
    if (result == CUDA_SUCCESS) {
        *out = stream->priority;
    }
    return result;
}

SIM_API_PER_THREAD(cuStreamGetFlags, _ptsz, (void *handle, unsigned *out), (handle, out))
{
    struct sim_stream *stream;
    int result = out == NULL ? CUDA_ERROR_INVALID_VALUE : sim_stream_find(handle, &stream);
    if (result == CUDA_SUCCESS) {
        *out = stream->flags;
    }
    return result;
}

SIM_API_PER_THREAD(cuStreamGetId, _ptsz, (void *handle, unsigned long long *out), (handle, out))
{
    struct sim_stream *stream;
    int result = out == NULL ? CUDA_ERROR_INVALID_VALUE : sim_stream_find(handle, &stream);
    if (result == CUDA_SUCCESS) {
        *out = stream->id;
    }
    return result;
}

SIM_API_PER_THREAD(cuStreamGetCtx, _ptsz, (void *handle, struct sim_context **out), (handle, out))
{
    struct sim_stream *stream;
    int result = out == NULL ? CUDA_ERROR_INVALID_VALUE : sim_stream_find(handle, &stream);
    if (result == CUDA_SUCCESS) {
        *out = stream->object.owner;
    }
    return result;
}
