/*
 * How far a stream is launched ahead: when a batch ends, and how much may be in flight.
 *
 * A stream has two markers at most that have not been passed, and a third when its gate closes. It
 * may wait for something that the program does only later, and each marker behind that takes a
 * place of the driver's queue. While a stream has two, further launches are added to its batch,
 * which gets no marker yet.
 */
#include "compute/flight.h"
#include "compute/flow.h"
#include "compute/marker.h"
#include "compute/stream.h"

/* A stream has few events, too few to run far ahead. */
static uint64_t
flight_of(const struct cgpu_stream *stream, uint32_t word)
{
    bool ahead =
        cgpu_gate_is_unhurried(word) && cgpu_stream_owner(stream)->means != CGPU_MARKER_EVENTS;
    return ahead ? CGPU_PACE_AHEAD_NS : CGPU_PACE_FLIGHT_NS;
}

/* The markers that a stream may have, and the batch after them, fill FLIGHT and the GPU's lag. */
static uint64_t
batch_of(const struct cgpu_stream *stream, uint64_t flight)
{
    return (flight + cgpu_stream_gpu(stream)->pace.lag_ns) / (CGPU_STREAM_MARKERS + 1);
}

bool
cgpu_flight_is_full(const struct cgpu_stream *stream, const struct cgpu_unmarked *batch,
                    uint64_t ns)
{
    uint64_t most = batch_of(stream, CGPU_PACE_FLIGHT_NS);
    most = most < CGPU_PACE_BATCH_NS ? CGPU_PACE_BATCH_NS : most;
    return batch->launches != 0 && (ns == 0 || stream->unsure || batch->work_ns + ns >= most);
}

/* Work on GPU behind streams' two markers, which has none yet. */
static uint64_t
unmarked_on(const struct cgpu_flow_gpu *gpu)
{
    uint64_t ns = 0;
    for (uint32_t i = 0; i < gpu->flights; i++) {
        const struct cgpu_stream *stream = &cgpu_flow->streams[gpu->flight[i].stream];
        bool newest = gpu->flight[i].seq == stream->issued; /* count each stream once */
        if (newest && !stream->apart && cgpu_marker_is_enough(stream)) {
            struct cgpu_unmarked sum;
            cgpu_marker_sum(stream, &sum);
            ns += sum.work_ns;
        }
    }
    return ns;
}

/*
 * STREAM has its two markers, and BATCH has none yet. A launch is added to BATCH as long as all
 * such batches take no more than a third of what may be in flight.
 */
static uint64_t
room_unmarked(const struct cgpu_stream *stream, const struct cgpu_unmarked *batch, uint64_t ns,
              uint64_t flight, uint64_t now)
{
    const struct cgpu_flow_gpu *gpu = cgpu_stream_gpu(stream);
    const struct cgpu_pace *pace = &gpu->pace;
    uint64_t unmarked = unmarked_on(gpu);
    if (ns != 0 && !stream->unsure && batch->launches < CGPU_DRIVER_QUEUE &&
        unmarked + ns <= batch_of(stream, flight)) {
        return cgpu_pace_room(pace, flight - unmarked, now);
    }
    uint64_t until = cgpu_pace_room(pace, 0, now);
    return until != 0 ? until : now + CGPU_PACE_IDLE_NS / 4;
}

uint64_t
cgpu_flight_room(struct cgpu_stream *stream, uint32_t word, const struct cgpu_unmarked *full,
                 uint64_t ns, uint64_t now)
{
    struct cgpu_flow_gpu *gpu = cgpu_stream_gpu(stream);
    uint64_t flight = flight_of(stream, word);
    if (full != NULL && cgpu_marker_is_enough(stream)) {
        return room_unmarked(stream, full, ns, flight, now);
    }
    if (full != NULL && !cgpu_marker_cut(stream, now)) {
        return now + CGPU_PACE_FLIGHT_NS;
    }
    uint64_t until = cgpu_pace_room(&gpu->pace, flight, now);
    if (until != 0 && full != NULL) { /* an idle GPU may have passed the marker by now */
        cgpu_marker_harvest(gpu, now);
        until = cgpu_pace_room(&gpu->pace, flight, now);
    }
    return until;
}
