/*
 * What the program's own calls tell about its work: a stream that it has synchronised is done, and
 * needs no marker; a stream or context that it destroys takes its handle along. The entry points of
 * which only such things are to be known are generated here, from hooks.def.
 */
#include "compute/follow.h"
#include "compute/await.h"
#include "compute/capture.h"
#include "compute/flow.h"
#include "compute/lane.h"
#include "compute/marker.h"
#include "compute/monitor.h"
#include "compute/stream.h"
#include "entry/thread.h"
#include "gate/drain.h"
#include "gate/flight.h"

uint64_t
cgpu_follow_begin(void)
{
    /* relaxed: it only says that looking is worth while; this thread's own launches it knows */
    return cgpu_flow != NULL && __atomic_load_n(&cgpu_flow->counted, __ATOMIC_RELAXED) != 0
               ? cgpu_flow_now()
               : 0;
}

/* All that was put into STREAM by this thread, or before BEGUN, has ended. */
static void
has_ended(struct cgpu_stream *stream, uint64_t begun, uint64_t now)
{
    cgpu_flight_synchronised(stream, begun, stream->handed_ns <= begun, now);
}

/* Something on GPU has ended. If that was everything, the arbiter should know soon. */
static void
tell(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    if (!cgpu_monitor_attend(now)) {
        cgpu_drain_finish(gpu, now);
    }
    cgpu_drain_is_quiet(gpu);
}

void
cgpu_follow_stream(CUstream stream, uint64_t begun)
{
    if (begun == 0) {
        return;
    }
    uint64_t now = cgpu_flow_now();
    cgpu_flow_lock();
    struct cgpu_stream *found = cgpu_stream_find(stream, cgpu_context_current(), cgpu_lane);
    if (found != NULL && found->gpu->work != NULL) {
        has_ended(found, begun, now);
        tell(found->gpu, now);
    }
    cgpu_flow_unlock();
}

void
cgpu_follow_context(CUcontext context, uint64_t begun)
{
    if (begun == 0) {
        return;
    }
    uint64_t now = cgpu_flow_now();
    cgpu_flow_lock();
    const struct cgpu_flow_context *found = cgpu_stream_context(context);
    if (found != NULL && cgpu_flow->gpus[found->gpu].work != NULL) {
        for (uint32_t i = 0; i < cgpu_flow->stream_bound; i++) {
            struct cgpu_stream *stream = &cgpu_flow->streams[i];
            if (stream->used && cgpu_stream_owner(stream) == found) {
                has_ended(stream, begun, now);
            }
        }
        tell(&cgpu_flow->gpus[found->gpu], now);
    }
    cgpu_flow_unlock();
}

static bool
is_followed(void)
{
    return cgpu_flow != NULL && cgpu_state_is_attached();
}

/* Work may be put into it uncounted, so that it must be known when the gate closes. */
static CUresult
made(CUresult status, const CUstream *out)
{
    if (status != CUDA_SUCCESS) {
        return status;
    }
    CUstream stream = *out;
    CUcontext current = cgpu_context_current();
    cgpu_flow_lock();
    struct cgpu_stream *before = cgpu_stream_find(stream, current, NULL);
    if (before != NULL) { /* destroyed behind our back */
        cgpu_stream_detach(before);
    }
    struct cgpu_flow_context *context;
    bool full = cgpu_stream_of(stream, current, &context) == CGPU_STREAM_OF_OURS &&
                cgpu_stream_add(stream, context, NULL) == NULL;
    cgpu_flow_unlock();
    if (!full) {
        return CUDA_SUCCESS;
    }
    cgpu_log_text(CGPU_LOG_COMPUTE, "stream refused: ", "the process has 8,192; destroy some");
    cgpu_real.cuStreamDestroy_v2(stream);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

void
cgpu_follow_stream_going(CUstream stream)
{
    if (!is_followed()) {
        return;
    }
    cgpu_flow_lock();
    struct cgpu_stream *found = cgpu_stream_find(stream, cgpu_context_current(), cgpu_lane);
    if (found != NULL && found->lane == 0 && stream != CU_STREAM_LEGACY_DEFAULT) {
        if (cgpu_flight_wants_marker(found) && found->apart == CGPU_APART_NOT) {
            cgpu_flight_cut(found, cgpu_flow_now());
        }
        cgpu_stream_detach(found);
    }
    cgpu_flow_unlock();
}

void
cgpu_follow_context_going(CUcontext context, bool going)
{
    if (!is_followed()) {
        return;
    }
    cgpu_flow_lock();
    struct cgpu_flow_context *found = cgpu_stream_context(context);
    if (found != NULL) {
        found->going = going;
    }
    cgpu_flow_unlock();
}

void
cgpu_follow_context_gone(CUcontext context)
{
    if (!is_followed()) {
        return;
    }
    cgpu_lane_forget();
    cgpu_flow_lock();
    struct cgpu_flow_context *found = cgpu_stream_context(context);
    if (found != NULL) {
        struct cgpu_gate_gpu *gpu = &cgpu_flow->gpus[found->gpu];
        cgpu_stream_drop_context(found);
        if (gpu->work != NULL) {
            cgpu_drain_is_quiet(gpu);
        }
    }
    cgpu_flow_unlock();
}

/* The calling thread changes its current context. */
static void
change_to(CUcontext context)
{
    /* relaxed: this thread wrote it */
    if (context != cgpu_lane->context) {
        cgpu_lane_forget();
    }
}

#define FOLLOW(name, before, after, parameters, arguments)                                         \
    CGPU_GUARDED(name, parameters, arguments, {                                                    \
        bool followed = is_followed();                                                             \
        if (followed) {                                                                            \
            before;                                                                                \
        }                                                                                          \
        status = cgpu_real.name arguments;                                                         \
        if (followed) {                                                                            \
            after;                                                                                 \
        }                                                                                          \
    })
#include "entry/hooks.def"
