/*
 * Seeing the work of a GPU to its end: marking what nobody has marked, telling the arbiter when all
 * of it has ended, or when there is none though it might be the container's turn. Under the lock.
 */
#include "flow.h"

#define POLL_NS       UINT64_C(20000)
#define BLOCKED_NS    UINT64_C(100000) /* a thread is inside a launch that does not return */
#define SLOWEST_NS    UINT64_C(500000)
#define WATCH_NS      (CGPU_PACE_IDLE_NS / 2)
#define WATCH_MOST_NS UINT64_C(1000000)
#define LATE_NS       UINT64_C(100000000)

enum { LATER_BY = 16 };

static uint64_t
sooner(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Work under a free gate was not counted: any stream may have some. */
static void
suspect_all(int32_t gpu)
{
    for (uint32_t i = 0; i < cgpu_flow->stream_bound; i++) {
        struct cgpu_stream *stream = &cgpu_flow->streams[i];
        /* Other threads' default streams are waited for by the legacy stream. */
        if (stream->handle != NULL && stream->lane == 0 && cgpu_stream_owner(stream)->gpu == gpu) {
            stream->pending.launches += 1;
            stream->pending.mixed = UINT64_MAX;
            stream->unsure = 1;
        }
    }
}

static void
wait_for_crowd(int32_t gpu)
{
    for (uint32_t i = 0; i < CGPU_MAX_CONTEXTS; i++) {
        struct cgpu_flow_context *context = &cgpu_flow->contexts[i];
        struct cgpu_visit visit;
        if (context->handle != NULL && context->gpu == gpu && context->crowded &&
            cgpu_marker_visit(context, &visit)) {
            cgpu_real.cuCtxSynchronize(NULL);
            cgpu_marker_leave(&visit);
        }
    }
}

/* No work on GPU is without a marker, and none is launched without the lock. False: not yet. */
static bool
mark_all(int32_t gpu, uint64_t now)
{
    if (!cgpu_lane_stop(gpu)) {
        return false;
    }
    for (uint32_t i = 0; i < cgpu_flow->lane_bound; i++) {
        if (cgpu_flow->lanes[i].gpu == gpu) {
            cgpu_lane_hand_over(&cgpu_flow->lanes[i], now);
        }
    }
    if (cgpu_flow->gpus[gpu].unmetered) {
        cgpu_flow->gpus[gpu].unmetered = 0;
        suspect_all(gpu);
        wait_for_crowd(gpu);
    }
    for (uint32_t i = 0; i < cgpu_flow->stream_bound; i++) {
        struct cgpu_stream *stream = &cgpu_flow->streams[i];
        if (stream->used && cgpu_stream_owner(stream)->gpu == gpu &&
            stream->pending.launches != 0 && !cgpu_marker_cut(stream, now)) {
            return false;
        }
    }
    return true;
}

/* Markers that are long overdue: is there something that will never write them? */
static void
look_after_late(struct cgpu_flow_gpu *gpu, uint64_t now)
{
    const struct cgpu_flight *flight = &gpu->flight[0];
    if (gpu->flights == 0 || now - flight->marked_ns < LATE_NS || now < gpu->pace.end_ns) {
        return;
    }
    struct cgpu_stream *stream = &cgpu_flow->streams[flight->stream];
    struct cgpu_flow_context *context = cgpu_stream_owner(stream);
    struct cgpu_visit visit;
    if (now - context->looked_ns < LATE_NS || stream->lane != 0 || stream->handle == NULL ||
        !cgpu_marker_visit(context, &visit)) {
        return;
    }
    context->looked_ns = now;
    /* to query a stream that captures, or that must wait for one, would spoil the capture */
    CUresult status = cgpu_marker_captures(stream) ? CUDA_ERROR_NOT_READY
                                                   : cgpu_real.cuStreamQuery(stream->handle);
    cgpu_marker_leave(&visit);
    if (status != CUDA_ERROR_NOT_READY) {
        cgpu_marker_pass(stream, context, now, now, false);
    }
}

static bool
is_active(const struct cgpu_ledger_work *work)
{
    return __atomic_load_n(&work->active, __ATOMIC_RELAXED) != 0;
}

bool
cgpu_drain_quiet(uint32_t place)
{
    struct cgpu_flow_gpu *gpu = &cgpu_flow->gpus[place];
    uint32_t word = cgpu_flow_gate(gpu);
    if (cgpu_gate_is_open(word) || gpu->settled != word || gpu->flights != 0) {
        return false;
    }
    if (is_active(gpu->work)) {
        /* release: all that it has told before is there */
        __atomic_store_n(&gpu->work->active, 0, __ATOMIC_RELEASE);
        cgpu_work_ring(cgpu_state->ledger, place);
    }
    return true;
}

/* How long to leave the markers alone. */
static uint64_t
pause_for(const struct cgpu_flow_gpu *gpu, uint64_t now)
{
    uint64_t pause = (now - gpu->drained_ns) / LATER_BY;
    if (gpu->pace.uncertain == 0 && gpu->pace.end_ns > now + POLL_NS) {
        pause = gpu->pace.end_ns - now - POLL_NS;
    }
    return pause < POLL_NS ? POLL_NS : sooner(pause, SLOWEST_NS);
}

uint64_t
cgpu_drain_closed(uint32_t place, uint32_t word, uint64_t now)
{
    struct cgpu_flow_gpu *gpu = &cgpu_flow->gpus[place];
    if (gpu->settled != word) {
        if (!mark_all((int32_t)place, now)) {
            return now + BLOCKED_NS;
        }
        gpu->settled = word;
        gpu->drained_ns = now;
    }
    cgpu_marker_harvest(gpu, now);
    if (cgpu_drain_quiet(place)) {
        return UINT64_MAX;
    }
    look_after_late(gpu, now);
    return now + pause_for(gpu, now);
}

static uint64_t
unmarked_on(uint32_t place)
{
    uint64_t sum = cgpu_lane_launches((int32_t)place);
    for (uint32_t i = 0; i < cgpu_flow->stream_bound; i++) {
        const struct cgpu_stream *stream = &cgpu_flow->streams[i];
        if (stream->used && cgpu_stream_owner(stream)->gpu == (int32_t)place) {
            sum += stream->pending.launches;
        }
    }
    return sum;
}

/* Not while there is surely something to do. */
static uint64_t
look_in(const struct cgpu_flow_gpu *gpu, uint64_t now)
{
    if (gpu->flights == 0 || gpu->pace.end_ns < now + WATCH_NS) {
        return WATCH_NS;
    }
    return sooner(gpu->pace.end_ns - now, WATCH_MOST_NS);
}

/* Others wait for this container's turn to end: tell when it is not used. */
uint64_t
cgpu_drain_pressed(uint32_t place, uint64_t now)
{
    struct cgpu_flow_gpu *gpu = &cgpu_flow->gpus[place];
    struct cgpu_ledger_work *work = gpu->work;
    cgpu_marker_harvest(gpu, now);
    uint64_t unmarked = unmarked_on(place);
    uint64_t activity = (work->markers << 32) + unmarked + gpu->pace.busy_ns;
    if (activity != gpu->activity || __atomic_load_n(&gpu->crowded, __ATOMIC_RELAXED) != 0) {
        gpu->activity = activity;
        gpu->active_ns = now;
    }
    if (now - gpu->active_ns >= CGPU_PACE_IDLE_NS) {
        if (unmarked != 0 || gpu->unmetered) {
            mark_all((int32_t)place, now);
        } else if (gpu->flights == 0 && is_active(work) &&
                   __atomic_load_n(&work->idle, __ATOMIC_RELAXED) == 0) {
            __atomic_store_n(&work->idle, 1, __ATOMIC_RELEASE);
            cgpu_work_ring(cgpu_state->ledger, place);
        }
    }
    look_after_late(gpu, now);
    return now + look_in(gpu, now);
}

bool
cgpu_drain_finish(uint32_t place, uint64_t now)
{
    struct cgpu_flow_gpu *gpu = &cgpu_flow->gpus[place];
    bool marked = mark_all((int32_t)place, now);
    cgpu_marker_harvest(gpu, now);
    if (!marked || gpu->flights != 0) {
        return false;
    }
    __atomic_store_n(&gpu->work->active, 0, __ATOMIC_RELEASE);
    cgpu_work_ring(cgpu_state->ledger, place);
    return true;
}
