/*
 * Seeing the work of a GPU to its end: marking what nobody has marked, telling the arbiter when all
 * of it has ended, or when there is none though it might be the container's turn. Under the lock.
 */
#include "compute/drain.h"
#include "compute/beyond.h"
#include "compute/flow.h"
#include "compute/lane.h"
#include "compute/late.h"
#include "compute/marker.h"
#include "compute/stream.h"

#define BLOCKED_NS    UINT64_C(100000) /* a thread is inside a launch that does not return */
#define WATCH_NS      (CGPU_PACE_IDLE_NS / 2)
#define WATCH_MOST_NS UINT64_C(1000000)
#define ASIDE_NS      UINT64_C(10000000) /* a stream that stands apart may make progress */

static uint64_t
sooner(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Work under a free gate was not counted: any stream may have some. */
static void
suspect_all(int32_t gpu, uint64_t now)
{
    for (uint32_t i = 0; i < cgpu_flow->stream_bound; i++) {
        struct cgpu_stream *stream = &cgpu_flow->streams[i];
        /* Other threads' default streams are waited for by the legacy stream. */
        if (stream->handle != NULL && stream->lane == 0 && cgpu_stream_owner(stream)->gpu == gpu) {
            cgpu_stream_suspect(stream);
        }
    }
    cgpu_beyond_suspect(&cgpu_flow->gpus[gpu], now);
}

static bool
is_unmarked(const struct cgpu_stream *stream, int32_t gpu)
{
    return stream->used && cgpu_stream_owner(stream)->gpu == gpu && !stream->apart &&
           (stream->pending.launches != 0 || stream->again != 0);
}

/*
 * STREAM has as many markers as it may have. What was launched behind them gets one when another
 * is passed; until then these say that the GPU is busy.
 */
static bool
has_most(const struct cgpu_stream *stream)
{
    return stream->in_flight > CGPU_STREAM_MARKERS;
}

static bool
is_deferred(int32_t gpu)
{
    for (uint32_t i = 0; i < cgpu_flow->stream_bound; i++) {
        const struct cgpu_stream *stream = &cgpu_flow->streams[i];
        if (is_unmarked(stream, gpu) && has_most(stream)) {
            return true;
        }
    }
    return false;
}

/* A marker behind a host function would take a place in the driver's queue: see admit_apart. */
static bool
mark_each(int32_t gpu, uint64_t now)
{
    bool all = true;
    for (uint32_t i = 0; i < cgpu_flow->stream_bound; i++) {
        struct cgpu_stream *stream = &cgpu_flow->streams[i];
        if (!is_unmarked(stream, gpu)) {
            continue;
        }
        if (cgpu_late_at_call(stream, now)) {
            all = false;
        } else if (!has_most(stream) && !cgpu_marker_cut(stream, now)) {
            return false;
        }
    }
    return all;
}

static bool
mark_streams(int32_t place, uint64_t now)
{
    struct cgpu_flow_gpu *gpu = &cgpu_flow->gpus[place];
    bool deferred = is_deferred(place);
    gpu->deferred |= deferred; /* each new marker publishes it */
    bool all = mark_each(place, now);
    gpu->deferred = deferred;
    cgpu_marker_publish(gpu);
    return all;
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
        suspect_all(gpu, now);
    }
    return mark_streams(gpu, now);
}

/* Is there work that the arbiter should wait for? */
static bool
is_busy(const struct cgpu_flow_gpu *gpu)
{
    return cgpu_late_counted(gpu) != 0 || gpu->beyond_busy;
}

static bool
is_active(const struct cgpu_ledger_work *work)
{
    return __atomic_load_n(&work->active, __ATOMIC_RELAXED) != 0;
}

static void
say_quiet(uint32_t place)
{
    /* release: what this thread wrote before is visible */
    __atomic_store_n(&cgpu_flow->gpus[place].work->active, 0, __ATOMIC_RELEASE);
    cgpu_work_ring(cgpu_state->ledger, place);
}

bool
cgpu_drain_quiet(uint32_t place)
{
    struct cgpu_flow_gpu *gpu = &cgpu_flow->gpus[place];
    uint32_t word = cgpu_flow_gate(gpu);
    if (cgpu_gate_is_open(word) || gpu->settled != word || is_busy(gpu)) {
        return false;
    }
    if (is_active(gpu->work)) {
        say_quiet(place);
    }
    return true;
}

uint64_t
cgpu_drain_closed(uint32_t place, uint32_t word, uint64_t now)
{
    struct cgpu_flow_gpu *gpu = &cgpu_flow->gpus[place];
    cgpu_marker_harvest(gpu, now);
    if (gpu->settled != word) {
        if (!mark_all((int32_t)place, now)) {
            return now + BLOCKED_NS;
        }
        gpu->settled = word;
        gpu->drained_ns = now;
    }
    cgpu_beyond_look(gpu, now);
    if (cgpu_drain_quiet(place)) {
        return gpu->aside || gpu->beyond != 0 ? now + ASIDE_NS : UINT64_MAX;
    }
    return cgpu_pace_drain_look(&gpu->pace, gpu->drained_ns, now);
}

/* Launches that may get a marker now. */
static uint64_t
unmarked_on(uint32_t place)
{
    uint64_t sum = cgpu_lane_launches((int32_t)place);
    for (uint32_t i = 0; i < cgpu_flow->stream_bound; i++) {
        const struct cgpu_stream *stream = &cgpu_flow->streams[i];
        if (is_unmarked(stream, (int32_t)place) && !has_most(stream)) {
            sum += stream->pending.launches + stream->again;
        }
    }
    return sum;
}

/* Not while there is surely something to do. */
static uint64_t
look_in(const struct cgpu_flow_gpu *gpu, uint64_t now)
{
    if (!is_busy(gpu) || gpu->pace.end_ns < now + WATCH_NS) {
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
    cgpu_beyond_look(gpu, now);
    uint64_t unmarked = unmarked_on(place);
    uint64_t activity = (work->markers << 32) + unmarked + gpu->pace.busy_ns;
    if (activity != gpu->activity || __atomic_load_n(&gpu->crowded, __ATOMIC_RELAXED) != 0) {
        gpu->activity = activity;
        gpu->active_ns = now;
    }
    if (now - gpu->active_ns >= CGPU_PACE_IDLE_NS) {
        if (unmarked != 0 || gpu->unmetered) {
            mark_all((int32_t)place, now);
        } else if (!is_busy(gpu) && is_active(work) &&
                   __atomic_load_n(&work->idle, __ATOMIC_RELAXED) == 0) {
            __atomic_store_n(&work->idle, 1, __ATOMIC_RELEASE);
            cgpu_work_ring(cgpu_state->ledger, place);
        }
    }
    return now + look_in(gpu, now);
}

void
cgpu_drain_finish(uint32_t place, uint64_t now)
{
    struct cgpu_flow_gpu *gpu = &cgpu_flow->gpus[place];
    /* under a free gate there may be uncounted work; waiting for it is not worth the markers */
    if (gpu->unmetered || !is_active(gpu->work) || !mark_all((int32_t)place, now)) {
        return;
    }
    cgpu_marker_harvest(gpu, now);
    if (!is_busy(gpu) && !gpu->deferred) {
        say_quiet(place);
    }
}
