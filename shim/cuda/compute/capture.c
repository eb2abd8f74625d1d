/*
 * Streams that begin to capture.
 *
 * Earlier work of a stream continues while the stream captures, but no marker can be put into it
 * then. So that work gets a marker before the capture begins. The same holds for a stream that
 * joins a capture, by waiting for an event that was recorded in one. The driver cannot be asked
 * whether an event belongs to a capture: that would invalidate the capture. So while some stream
 * captures, every stream that waits for an event gets a marker first. Streams that are marked
 * through the legacy stream get theirs too, because a blocking stream that captures makes the
 * legacy stream unusable.
 *
 * What a stream captures is not work. So a stream that may capture is asked about at each launch
 * until it no longer does: nothing shows the end of a capture that it has joined.
 *
 * Assumed of the driver: cuStreamIsCapturing shows when a capture has ended. If it did not, nobody
 * would ever wait for the stream again, and waits for events would always cost a marker.
 */
#include <time.h>

#include "compute/batch_slot.h"
#include "compute/capture.h"
#include "compute/marker.h"
#include "compute/stream.h"
#include "gate/flight.h"

/* Whether some stream may capture. relaxed: a thread that joins a capture has seen it begin. */
static bool
may_join(void)
{
    return __atomic_load_n(&cgpu_launch_state->captures, __ATOMIC_RELAXED) != 0;
}

static bool
update_captures(void)
{
    bool some = false;
    for (uint32_t i = 0; i < cgpu_launch_state->stream_bound; i++) {
        struct cgpu_stream *stream = &cgpu_launch_state->streams[i];
        stream->captures = stream->captures && cgpu_marker_captures(stream);
        some = some || stream->captures;
    }
    __atomic_store_n(&cgpu_launch_state->captures, some, __ATOMIC_RELAXED);
    return some;
}

/*
 * Mark the unmarked work of the streams that a capture in HANDLE affects, even of a stalled stream:
 * that adds at most one marker per capture. False: there is no room yet.
 */
static bool
mark_streams(CUstream handle, uint64_t now)
{
    struct cgpu_stream *found = cgpu_stream_ensure_current(handle);
    if (found == NULL || found->gpu->work == NULL) {
        return true;
    }
    if (found->gpu->phase == CGPU_PHASE_UNCOUNTED && !cgpu_batch_wants_marker(found) &&
        !cgpu_marker_captures(found)) {
        cgpu_batch_suspect(found);
    }
    bool all = true;
    for (uint32_t i = 0; i < cgpu_launch_state->stream_bound; i++) {
        struct cgpu_stream *stream = &cgpu_launch_state->streams[i];
        if (stream->used && stream->context == found->context && cgpu_batch_wants_marker(stream) &&
            (stream == found || cgpu_marker_is_by_legacy(stream)) &&
            !cgpu_marker_captures(stream)) {
            all = cgpu_flight_cut(stream, now) && all;
        }
    }
    return all;
}

void
cgpu_capture_prepare(CUstream stream, bool per_thread, bool joins)
{
    CUstream meant = cgpu_stream_meant(stream, per_thread);
    bool done = joins && !may_join();
    /*
     * before the lock is taken: a thread that asks about streams under the lock either has asked
     * already, or sees this
     */
    __atomic_add_fetch(&cgpu_launch_state->beginning, 1, __ATOMIC_SEQ_CST);
    while (!done) {
        cgpu_launch_lock();
        done = cgpu_launch_is_closing() || (joins && !update_captures()) ||
               mark_streams(meant, cgpu_host_clock_now());
        cgpu_launch_unlock();
        if (!done) {
            nanosleep(&(struct timespec){.tv_nsec = (long)CGPU_PACE_FLIGHT_NS}, NULL);
        }
    }
}

/* After the driver's call: if the stream captures, make each launch into it take the slow path. */
void
cgpu_capture_note(CUstream stream, bool per_thread, bool joins)
{
    CUstream meant = cgpu_stream_meant(stream, per_thread);
    __atomic_sub_fetch(&cgpu_launch_state->beginning, 1, __ATOMIC_SEQ_CST);
    if (joins && !may_join()) {
        return;
    }
    cgpu_launch_lock();
    struct cgpu_stream *found = cgpu_stream_ensure_current(meant);
    if (found != NULL && cgpu_captures(meant)) {
        found->captures = 1;
        cgpu_batch_slot_cut(found);
        __atomic_store_n(&cgpu_launch_state->captures, 1, __ATOMIC_RELAXED);
    }
    cgpu_launch_unlock();
}
