/* Contexts and streams that work was put into, by their handles. All under the lock. */
#include "compute/stream.h"
#include "compute/flow.h"
#include "compute/lane.h"
#include "compute/marker.h"
#include "compute/outside.h"
#include "gate/flight.h"

static uint16_t *
bucket(CUstream handle)
{
    uint64_t mixed = (uint64_t)(uintptr_t)handle * UINT64_C(0x9e3779b97f4a7c15);
    return &cgpu_flow->buckets[mixed >> 56];
}

struct cgpu_flow_context *
cgpu_stream_context(CUcontext context)
{
    for (uint32_t i = 0; i < cgpu_flow->context_bound; i++) {
        if (cgpu_flow->contexts[i].handle == context) {
            return context != NULL ? &cgpu_flow->contexts[i] : NULL;
        }
    }
    return NULL;
}

static bool
is_default(CUstream stream)
{
    return stream == CU_STREAM_LEGACY_DEFAULT || stream == CU_STREAM_PER_THREAD_DEFAULT;
}

/* Default streams have the same handle in every context, and one of them in every thread. */
static bool
is_meant(const struct cgpu_stream *stream, CUstream handle, CUcontext context, uint32_t lane)
{
    if (stream->handle != handle) {
        return false;
    }
    if (!is_default(handle)) {
        return true;
    }
    return cgpu_stream_owner(stream)->handle == context && stream->lane == lane;
}

static uint32_t
number_of(CUstream handle, struct cgpu_lane *lane)
{
    if (handle != CU_STREAM_PER_THREAD_DEFAULT) {
        return 0;
    }
    return lane->tid != 0 ? (uint32_t)(cgpu_lane_first(lane) - cgpu_flow->lanes) + 1 : UINT32_MAX;
}

struct cgpu_stream *
cgpu_stream_find(CUstream handle, CUcontext context, struct cgpu_lane *lane)
{
    uint32_t number = number_of(handle, lane);
    for (uint32_t i = *bucket(handle); i != 0; i = cgpu_flow->streams[i - 1].next) {
        if (is_meant(&cgpu_flow->streams[i - 1], handle, context, number)) {
            return &cgpu_flow->streams[i - 1];
        }
    }
    return NULL;
}

/*
 * `marks`, `issued` and `stale` go on: lanes may still look at the entry, markers be on their way.
 * `gpu` stays: who passes a destroyed stream's last marker still has the entry in hand.
 * Events go with their context, if not before.
 */
static void
reset(struct cgpu_stream *stream)
{
    for (int i = 0; i < CGPU_STREAM_EVENTS; i++) {
        if (stream->events[i] != NULL && cgpu_stream_owner(stream)->handle != NULL) {
            cgpu_real.cuEventDestroy_v2(stream->events[i]);
        }
    }
    cgpu_lane_cut(stream);
    *stream = (struct cgpu_stream){
        .marks = stream->marks,
        .issued = stream->issued,
        .stale = stream->stale,
        .born = stream->born + 1,
        .gpu = stream->gpu,
    };
}

static void
unlink_handle(struct cgpu_stream *stream)
{
    if (stream->handle == NULL) {
        return;
    }
    uint16_t *link = bucket(stream->handle);
    while (*link != stream->index + 1) {
        link = &cgpu_flow->streams[*link - 1].next;
    }
    *link = stream->next;
    stream->handle = NULL;
    stream->lane = 0;
    cgpu_lane_cut(stream); /* the handle may come again as another stream's */
}

void
cgpu_stream_detach(struct cgpu_stream *stream)
{
    unlink_handle(stream);
    cgpu_stream_release(stream);
}

/* With all its streams: nothing of it is in flight any more. */
void
cgpu_stream_drop_context(struct cgpu_flow_context *context)
{
    uint32_t index = (uint32_t)(context - cgpu_flow->contexts);
    context->handle = NULL;
    for (uint32_t i = 0; i < cgpu_flow->stream_bound; i++) {
        struct cgpu_stream *stream = &cgpu_flow->streams[i];
        if (stream->used && stream->context == index) {
            cgpu_flight_pass(stream, UINT64_MAX, cgpu_flow_now(), false);
            unlink_handle(stream);
            reset(stream);
        }
    }
}

static struct cgpu_stream *
free_entry(void)
{
    for (uint32_t i = 0; i < CGPU_MAX_STREAMS; i++) {
        if (!cgpu_flow->streams[i].used) {
            cgpu_flow->stream_bound = i < cgpu_flow->stream_bound ? cgpu_flow->stream_bound : i + 1;
            cgpu_flow->streams[i].index = (uint16_t)i;
            return &cgpu_flow->streams[i];
        }
    }
    return NULL;
}

struct cgpu_stream *
cgpu_stream_add(CUstream handle, struct cgpu_flow_context *context, struct cgpu_lane *lane)
{
    struct cgpu_stream *stream = free_entry();
    if (stream == NULL) { /* some may be those of threads that have ended */
        uint64_t now = cgpu_flow_now();
        cgpu_lane_sweep_now(now);
        cgpu_flight_harvest(&cgpu_flow->gpus[context->gpu], now);
        stream = free_entry();
    }
    if (stream == NULL) {
        cgpu_flow->more = 1;
        return NULL;
    }
    uint16_t index = stream->index;
    reset(stream);
    stream->used = 1;
    stream->handle = handle;
    stream->context = (uint32_t)(context - cgpu_flow->contexts);
    stream->gpu = &cgpu_flow->gpus[context->gpu];
    stream->lane = number_of(handle, lane);
    stream->index = index;
    stream->next = *bucket(handle);
    *bucket(handle) = (uint16_t)(index + 1);
    return stream;
}

void
cgpu_stream_release(struct cgpu_stream *stream)
{
    if (stream->handle == NULL && stream->in_flight == 0 && !cgpu_flight_wants_marker(stream)) {
        reset(stream);
    }
}

/* ---- which context a stream is of ---- */

static CUcontext
context_of(CUstream stream, CUcontext current)
{
    CUcontext context = NULL;
    if (is_default(stream)) {
        return current;
    }
    return cgpu_real.cuStreamGetCtx(stream, &context) == CUDA_SUCCESS ? context : NULL;
}

/* The driver is asked in CONTEXT, whichever is current. */
static int32_t
gpu_of(CUcontext context, CUcontext current)
{
    CUdevice device;
    CUcontext popped;
    bool push = context != current;
    if (push && cgpu_real.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS) {
        return CGPU_NO_GPU;
    }
    CUresult status = cgpu_real.cuCtxGetDevice(&device);
    if (push) {
        cgpu_real.cuCtxPopCurrent_v2(&popped);
    }
    return status == CUDA_SUCCESS ? cgpu_device_gpu(device) : CGPU_NO_GPU;
}

/* NULL: table full. */
static struct cgpu_flow_context *
add_context(CUcontext context, int32_t gpu)
{
    for (uint32_t i = 0; i < CGPU_MAX_CONTEXTS; i++) {
        struct cgpu_flow_context *entry = &cgpu_flow->contexts[i];
        if (entry->handle == NULL) {
            cgpu_flow->context_bound =
                i < cgpu_flow->context_bound ? cgpu_flow->context_bound : i + 1;
            *entry = (struct cgpu_flow_context){.handle = context, .gpu = gpu};
            cgpu_outside_begin(&cgpu_flow->gpus[gpu]);
            return entry;
        }
    }
    return NULL;
}

enum cgpu_stream_of
cgpu_stream_of(CUstream stream, CUcontext current, struct cgpu_flow_context **out)
{
    CUcontext handle = context_of(stream, current);
    *out = cgpu_stream_context(handle);
    if (*out != NULL) {
        return CGPU_STREAM_OF_OURS;
    }
    int32_t gpu = handle != NULL ? gpu_of(handle, current) : CGPU_NO_GPU;
    if (gpu < 0) {
        return CGPU_STREAM_OF_NONE;
    }
    cgpu_lane_unfree(); /* it may be the first on its GPU */
    *out = add_context(handle, gpu);
    if (*out == NULL) {
        cgpu_flow->more = 1;
        return CGPU_STREAM_OF_MORE;
    }
    /* what is launched under a free gate can be marked through it */
    if (cgpu_stream_add(CU_STREAM_LEGACY_DEFAULT, *out, NULL) == NULL) {
        (*out)->handle = NULL;
        return CGPU_STREAM_OF_MORE;
    }
    return CGPU_STREAM_OF_OURS;
}

enum cgpu_stream_of
cgpu_stream_meet(CUstream handle, CUcontext current, struct cgpu_lane *lane,
                 struct cgpu_stream **out)
{
    struct cgpu_flow_context *context;
    if (handle == CU_STREAM_PER_THREAD_DEFAULT && lane->tid == 0) {
        return CGPU_STREAM_OF_NONE; /* the thread has launched nothing */
    }
    *out = cgpu_stream_find(handle, current, lane);
    if (*out != NULL) {
        return CGPU_STREAM_OF_OURS;
    }
    enum cgpu_stream_of of = cgpu_stream_of(handle, current, &context);
    if (of != CGPU_STREAM_OF_OURS) {
        return of;
    }
    *out = cgpu_stream_find(handle, current, lane);
    if (*out == NULL) {
        *out = cgpu_stream_add(handle, context, lane);
    }
    return *out != NULL ? CGPU_STREAM_OF_OURS : CGPU_STREAM_OF_MORE;
}

struct cgpu_stream *
cgpu_stream_own(CUstream handle)
{
    struct cgpu_stream *found = NULL;
    cgpu_stream_meet(handle, cgpu_context_current(), cgpu_lane, &found);
    return found;
}

bool
cgpu_stream_all_on(const struct cgpu_gate_gpu *gpu)
{
    bool all = !cgpu_flow->more;
    for (uint32_t i = 0; i < cgpu_flow->context_bound; i++) {
        const struct cgpu_flow_context *context = &cgpu_flow->contexts[i];
        all = all && (context->handle == NULL || &cgpu_flow->gpus[context->gpu] == gpu);
    }
    return all;
}
