/* Events: a position in the queue, and the time at which the GPU got there. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sim.h"

enum { DISABLE_TIMING = 2, ALL_FLAGS = 7 };

static uint64_t
now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

void
sim_event_free(struct sim_event *event)
{
    free(event->heads);
    sim_object_delete(event);
}

static int
is_done(struct sim_event *event)
{
    if (!event->recorded) {
        return 1;
    }
    uint32_t index = event->device->machine_index;
    if (event->time_ns == 0 && cgpu_machine_done(sim_machine(), index, event->item)) {
        event->time_ns = cgpu_machine_end_time(sim_machine(), index, event->item);
        if (event->time_ns == 0) { /* the machine remembers the last items only */
            event->time_ns = now_ns();
        }
    }
    if (event->time_ns == 0) {
        return 0;
    }
    sim_markers_write(event->device);
    return sim_action_done(event->action);
}

void
sim_event_harvest(struct sim_device *device)
{
    struct sim_event *event = NULL;
    while ((event = sim_object_next(SIM_EVENT, event)) != NULL) {
        if (event->recorded && event->device == device) {
            is_done(event);
        }
    }
}

void
sim_event_record(struct sim_event *event, struct sim_stream *stream)
{
    sim_stream_submit(stream, 0, 0); /* takes the legacy stream's order into account */
    event->recorded = 1;
    event->capture_id = 0;
    event->device = stream->object.owner->device;
    event->item = stream->last_item;
    event->action = stream->last_action;
    int reached = event->item == 0 ||
                  cgpu_machine_done(sim_machine(), event->device->machine_index, event->item);
    event->time_ns = reached ? now_ns() : 0;
}

/* Within one queue the order is there already; another GPU's event is waited for here and now. */
void
sim_event_depend(struct sim_stream *stream, struct sim_event *event)
{
    if (!event->recorded) {
        return;
    }
    if (event->device != stream->object.owner->device) {
        sim_item_wait(event->device, event->item);
    } else if (event->item > stream->last_item) {
        stream->last_item = event->item;
    }
    sim_action_join(stream, event->action);
}

SIM_API(cuEventCreate, (struct sim_event * *out, unsigned flags), (out, flags))
{
    struct sim_context *context;
    int result = sim_context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (out == NULL || (flags & ~(unsigned)ALL_FLAGS) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_event *event = sim_object_new(SIM_EVENT, sizeof *event, context);
    if (event == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    event->flags = flags;
    *out = event;
    return CUDA_SUCCESS;
}

static int
destroy(struct sim_event *handle)
{
    struct sim_event *event = sim_object_find(SIM_EVENT, handle);
    if (event == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    sim_event_free(event);
    return CUDA_SUCCESS;
}

SIM_API(cuEventDestroy, (struct sim_event * event), (event))
{
    return destroy(event);
}

SIM_API(cuEventDestroy_v2, (struct sim_event * event), (event))
{
    return destroy(event);
}

static int
record(struct sim_event *handle, void *stream_handle, unsigned flags)
{
    struct sim_stream *stream;
    struct sim_event *event = sim_object_find(SIM_EVENT, handle);
    int capturing = 0;
    if (event == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (flags > 1) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int result = sim_stream_find(stream_handle, &stream);
    if (result == CUDA_SUCCESS) {
        result = sim_capture_enqueue(stream, &capturing);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!capturing) {
        sim_event_record(event, stream);
        return CUDA_SUCCESS;
    }
    if (flags == 1) { /* external: a node of the graph, not a dependency of the capture */
        struct sim_operation operation = {.type = SIM_OP_RECORD_EVENT, .event = event};
        return sim_capture_add(stream, &operation);
    }
    return sim_capture_record(stream, event);
}

SIM_API_PER_THREAD(cuEventRecord, _ptsz, (struct sim_event * event, void *stream), (event, stream))
{
    return record(event, stream, 0);
}

SIM_API_PER_THREAD(cuEventRecordWithFlags, _ptsz,
                   (struct sim_event * event, void *stream, unsigned flags), (event, stream, flags))
{
    return record(event, stream, flags);
}

SIM_API(cuEventQuery, (struct sim_event * handle), (handle))
{
    struct sim_event *event = sim_object_find(SIM_EVENT, handle);
    if (event == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (sim_capture_is_live(event->capture_id)) {
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    int result = sim_capture_forbids();
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return is_done(event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

SIM_API(cuEventSynchronize, (struct sim_event * handle), (handle))
{
    struct sim_event *event = sim_object_find(SIM_EVENT, handle);
    if (event == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (sim_capture_is_live(event->capture_id)) {
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    int result = sim_capture_forbids();
    if (result != CUDA_SUCCESS || !event->recorded) {
        return result;
    }
    struct sim_device *device = event->device;
    if (!is_done(event)) {
        uint64_t item = event->item, action = event->action;
        sim_item_wait(device, item);
        sim_markers_write(device);
        sim_action_wait(action);
    }
    sim_pools_trim(device);
    return CUDA_SUCCESS;
}

SIM_API(cuEventElapsedTime, (float *out, struct sim_event *start, struct sim_event *end),
        (out, start, end))
{
    if (out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (sim_object_find(SIM_EVENT, start) == NULL || sim_object_find(SIM_EVENT, end) == NULL ||
        !start->recorded || !end->recorded || ((start->flags | end->flags) & DISABLE_TIMING) != 0) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!is_done(start) || !is_done(end)) {
        return CUDA_ERROR_NOT_READY;
    }
    *out = (float)((double)(int64_t)(end->time_ns - start->time_ns) / 1e6);
    return CUDA_SUCCESS;
}

SIM_API_PER_THREAD(cuStreamWaitEvent, _ptsz,
                   (void *stream_handle, struct sim_event *handle, unsigned flags),
                   (stream_handle, handle, flags))
{
    struct sim_stream *stream;
    struct sim_event *event = sim_object_find(SIM_EVENT, handle);
    int result = sim_stream_find(stream_handle, &stream);
    int capturing = 0, handled = 0;
    if (result == CUDA_SUCCESS && event == NULL) {
        result = CUDA_ERROR_INVALID_HANDLE;
    }
    if (result == CUDA_SUCCESS && flags == 0) {
        result = sim_capture_join(stream, event, &handled);
    }
    if (result == CUDA_SUCCESS && !handled) {
        struct sim_operation operation = {.type = SIM_OP_WAIT_EVENT, .event = event};
        result = sim_capture_enqueue(stream, &capturing);
        if (result == CUDA_SUCCESS && capturing) {
            result = sim_capture_add(stream, &operation);
        } else if (result == CUDA_SUCCESS) {
            sim_event_depend(stream, event);
        }
    }
    return result;
}
