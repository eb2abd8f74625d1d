/*
 * Streams that begin to capture.
 *
 * What a stream was given before runs on while it captures, but no marker can be put into it then,
 * and what it was given before is no longer told from what it captures. So its work gets a marker
 * before the capture begins. The same holds for a stream that joins a capture, by waiting for an
 * event that was recorded in one. Nobody may ask an event whether it was: that would spoil the
 * capture. So every wait for an event marks, while some stream captures. What is marked through the
 * legacy stream is marked too, as a blocking stream that captures makes that one unusable.
 *
 * What was captured is forgotten when the capture ends: it is no work.
 *
 * Assumed of the driver: cuStreamIsCapturing says when a capture has ended. If it does not, waits
 * for events go on to mark.
 */
#include <time.h>

#include "compute/flow.h"
#include "compute/marker.h"
#include "compute/stream.h"
#include "gate/flight.h"

static bool
is_followed(void)
{
    return cgpu_flow != NULL && cgpu_state_is_attached();
}

/* Also if nobody can tell. */
static bool
captures(const struct cgpu_stream *stream)
{
    struct cgpu_visit visit;
    if (!cgpu_marker_visit(cgpu_stream_owner(stream), &visit)) {
        return true;
    }
    bool is = cgpu_marker_captures(stream);
    cgpu_marker_leave(&visit);
    return is;
}

/*
 * Mark what the streams that a capture in STREAM concerns have without a marker. Also where a
 * stream stands apart: there is one marker at most for each capture. False: no room as yet.
 */
static bool
mark(CUstream handle, uint64_t now)
{
    struct cgpu_stream *found = NULL;
    CUcontext current = cgpu_context_current();
    if (cgpu_stream_meet(handle, current, cgpu_lane, &found) != CGPU_STREAM_OF_OURS) {
        return true;
    }
    const struct cgpu_gate_gpu *gpu = found->gpu;
    if (gpu->work == NULL) {
        return true;
    }
    if (gpu->unmetered && found->handle == handle && !cgpu_flight_wants_marker(found) &&
        !captures(found)) {
        cgpu_flight_suspect(found);
    }
    bool all = true;
    for (uint32_t i = 0; i < cgpu_flow->stream_bound; i++) {
        struct cgpu_stream *stream = &cgpu_flow->streams[i];
        if (stream->used && stream->context == found->context && cgpu_flight_wants_marker(stream) &&
            (stream == found || cgpu_marker_is_by_legacy(stream)) && !captures(stream)) {
            all = cgpu_flight_cut(stream, now) && all;
        }
    }
    return all;
}

/* STREAM may capture from the next call on. */
static void
prepare(CUstream stream)
{
    bool done = !is_followed();
    while (!done) {
        cgpu_flow_lock();
        done = cgpu_flow_is_closing() || mark(stream, cgpu_flow_now());
        cgpu_flow_unlock();
        if (!done) {
            nanosleep(&(struct timespec){.tv_nsec = (long)CGPU_PACE_FLIGHT_NS}, NULL);
        }
    }
}

static CUresult
begun(CUresult status)
{
    if (status == CUDA_SUCCESS && cgpu_flow != NULL) {
        /* relaxed: nobody joins the capture who does not know that it has begun */
        __atomic_add_fetch(&cgpu_flow->captures, 1, __ATOMIC_RELAXED);
    }
    return status;
}

CUresult
cgpu_capture_begin(CUresult (*real)(CUstream), CUstream stream)
{
    prepare(cgpu_stream_meant(stream, real == cgpu_real.cuStreamBeginCapture_ptsz));
    return begun(real(stream));
}

CUresult
cgpu_capture_begin_v2(CUresult (*real)(CUstream, int), CUstream stream, int mode)
{
    prepare(cgpu_stream_meant(stream, real == cgpu_real.cuStreamBeginCapture_v2_ptsz));
    return begun(real(stream, mode));
}

CUresult
cgpu_capture_begin_to_graph(CUresult (*real)(CUstream, CUgraph, const CUgraphNode *, const void *,
                                             size_t, int),
                            CUstream stream, CUgraph graph, const CUgraphNode *after,
                            const void *edges, size_t count, int mode)
{
    prepare(cgpu_stream_meant(stream, real == cgpu_real.cuStreamBeginCaptureToGraph_ptsz));
    return begun(real(stream, graph, after, edges, count, mode));
}

CUresult
cgpu_capture_begin_again(CUresult (*real)(CUstream, int, CUgraph, void *, void *), CUstream stream,
                         int mode, CUgraph graph, void *differs, void *data)
{
    prepare(cgpu_stream_meant(stream, false));
    return begun(real(stream, mode, graph, differs, data));
}

CUresult
cgpu_capture_wait(CUresult (*real)(CUstream, CUevent, unsigned int), CUstream stream, CUevent event,
                  unsigned int flags)
{
    if (cgpu_flow != NULL && __atomic_load_n(&cgpu_flow->captures, __ATOMIC_RELAXED) != 0) {
        prepare(cgpu_stream_meant(stream, real == cgpu_real.cuStreamWaitEvent_ptsz));
    }
    return real(stream, event, flags);
}

/* What streams capture is no work. A stream that is marked by another is not asked itself. */
static void
forget_captured(void)
{
    cgpu_flow_lock();
    for (uint32_t i = 0; i < cgpu_flow->stream_bound; i++) {
        struct cgpu_stream *stream = &cgpu_flow->streams[i];
        if (stream->used && cgpu_flight_wants_marker(stream) && !cgpu_marker_is_by_legacy(stream) &&
            captures(stream)) {
            cgpu_flight_forget(stream);
        }
    }
    cgpu_flow_unlock();
}

CUresult
cgpu_capture_end(CUresult (*real)(CUstream, CUgraph *), CUstream stream, CUgraph *graph)
{
    CUstream meant = cgpu_stream_meant(stream, real == cgpu_real.cuStreamEndCapture_ptsz);
    bool before = is_followed() && cgpu_marker_captures_into(meant);
    if (before) {
        forget_captured();
    }
    CUresult status = real(stream, graph);
    if (before && !cgpu_marker_captures_into(meant)) {
        __atomic_sub_fetch(&cgpu_flow->captures, 1, __ATOMIC_RELAXED);
    }
    return status;
}
