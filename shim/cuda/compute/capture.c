/*
 * Streams that begin to capture.
 *
 * What a stream was given before runs on while it captures, but no marker can be put into it then.
 * So its work gets a marker before the capture begins. The same holds for a stream that joins a
 * capture, by waiting for an event that was recorded in one. Nobody may ask an event whether it
 * was: that would spoil the capture. So every wait for an event marks, while some stream captures.
 * What is marked through the legacy stream is marked too, as a blocking stream that captures makes
 * that one unusable.
 *
 * What a stream captures is no work. So a stream that may capture is asked at each launch, until it
 * does not: nobody says when a capture that it has joined has ended.
 *
 * Assumed of the driver: cuStreamIsCapturing says when a capture has ended. If it does not, the
 * stream is never waited for again, and waits for events go on to mark.
 */
#include <time.h>

#include "compute/capture.h"
#include "compute/lane.h"
#include "compute/marker.h"
#include "compute/stream.h"
#include "gate/flight.h"

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

bool
cgpu_capture_is_on(struct cgpu_stream *stream, CUstream handle)
{
    stream->captures = stream->captures && cgpu_marker_captures_into(handle);
    return stream->captures;
}

/* relaxed: nobody joins a capture who does not know that it has begun */
static bool
may_join(void)
{
    return __atomic_load_n(&cgpu_flow->captures, __ATOMIC_RELAXED) != 0;
}

static bool
some_capture(void)
{
    bool some = false;
    for (uint32_t i = 0; i < cgpu_flow->stream_bound; i++) {
        struct cgpu_stream *stream = &cgpu_flow->streams[i];
        stream->captures = stream->captures && captures(stream);
        some = some || stream->captures;
    }
    __atomic_store_n(&cgpu_flow->captures, some, __ATOMIC_RELAXED);
    return some;
}

/*
 * Mark what the streams that a capture in HANDLE concerns have without a marker. Also where a
 * stream stands apart: there is one marker at most for each capture. False: no room as yet.
 */
static bool
mark(CUstream handle, uint64_t now)
{
    struct cgpu_stream *found = cgpu_stream_own(handle);
    if (found == NULL || found->gpu->work == NULL) {
        return true;
    }
    if (found->gpu->phase == CGPU_PHASE_UNCOUNTED && !cgpu_flight_wants_marker(found) &&
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

static void
prepare(CUstream stream, bool joins)
{
    bool done = false;
    while (!done) {
        cgpu_flow_lock();
        done =
            cgpu_flow_is_closing() || (joins && !some_capture()) || mark(stream, cgpu_flow_now());
        cgpu_flow_unlock();
        if (!done) {
            nanosleep(&(struct timespec){.tv_nsec = (long)CGPU_PACE_FLIGHT_NS}, NULL);
        }
    }
}

/* If STREAM captures, each launch into it takes the slow path from now on. */
static void
note(CUstream stream)
{
    cgpu_flow_lock();
    struct cgpu_stream *found = cgpu_stream_own(stream);
    if (found != NULL && cgpu_marker_captures_into(stream)) {
        found->captures = 1;
        cgpu_lane_cut(found);
        __atomic_store_n(&cgpu_flow->captures, 1, __ATOMIC_RELAXED);
    }
    cgpu_flow_unlock();
}

void
cgpu_capture_begin(CUstream stream, bool per_thread)
{
    prepare(cgpu_stream_meant(stream, per_thread), false);
}

void
cgpu_capture_begun(CUstream stream, bool per_thread)
{
    note(cgpu_stream_meant(stream, per_thread));
}

void
cgpu_capture_join(CUstream stream, bool per_thread)
{
    if (may_join()) {
        prepare(cgpu_stream_meant(stream, per_thread), true);
    }
}

void
cgpu_capture_joined(CUstream stream, bool per_thread)
{
    if (may_join()) {
        note(cgpu_stream_meant(stream, per_thread));
    }
}
