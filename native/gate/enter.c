/*
 * Whether a launch may go: the gate, the batch, the room in flight.
 *
 * A stream has at most two markers that have not passed, and a third when its gate closes. It may
 * be waiting for something that the program does only later, and each marker behind that takes an
 * entry of the driver's queue. While a stream has two, further launches are added to its batch,
 * which gets no marker yet.
 */
#include "gate/enter.h"

#include "gate/apart.h"
#include "gate/drain.h"
#include "gate/flight.h"
#include "gate/pace_time.h"
#include "ledger/work.h"

bool
cgpu_enter_begin(struct cgpu_stream *stream, uint32_t word, uint64_t now)
{
    struct cgpu_gate_gpu *gpu = stream->gpu;
    uint32_t before = __atomic_load_n(&gpu->work->active, __ATOMIC_RELAXED);

    cgpu_drain_change(gpu, cgpu_gate_is_metered(word) ? CGPU_PHASE_COUNTED : CGPU_PHASE_UNCOUNTED,
                      now);
    if (before == word) {
        return true;
    }
    cgpu_work_begin(gpu->work, word, now);
    /*
     * seq_cst, like the store of `active`: if the arbiter does not see that, we see the gate close
     */
    bool same = __atomic_load_n(gpu->gate, __ATOMIC_SEQ_CST) == word;
    if (same && before == 0) {
        cgpu_flight_probe(stream, word, now);
    }
    return same;
}

/*
 * The size of a batch: a stream's markers and the batch after them fill FLIGHT and the GPU's lag.
 */
static uint64_t
batch_of(const struct cgpu_stream *stream, uint64_t flight)
{
    uint64_t ns = (flight + stream->gpu->pace.lag_ns) / (CGPU_STREAM_MARKERS + 1);

    return larger(ns, CGPU_PACE_BATCH_NS);
}

/* Whether BATCH of STREAM ends before a launch of NS. */
static bool
ends_batch(const struct cgpu_stream *stream, const struct cgpu_unmarked *batch, uint64_t ns)
{
    uint64_t most = batch_of(stream, CGPU_PACE_FLIGHT_NS);

    return batch->launches != 0 && (ns == 0 || stream->unsure || stream->guessed >= CGPU_GUESSES ||
                                    batch->work_ns + ns >= most);
}

/* Work on GPU that is behind its stream's two markers and has none yet. */
static uint64_t
unmarked_on(const struct cgpu_gate_gpu *gpu)
{
    uint64_t ns = 0;

    for (uint32_t i = 0; i < gpu->flights; i++) {
        const struct cgpu_stream *stream = gpu->flight[i].stream;
        bool newest = gpu->flight[i].seq == stream->issued; /* count each stream once */

        if (newest && stream->apart == CGPU_APART_NOT && cgpu_flight_is_enough(stream)) {
            ns += cgpu_flight_unmarked(stream).work_ns;
        }
    }
    return ns;
}

/*
 * STREAM has its two markers, and BATCH has none yet. A launch is added to BATCH as long as all
 * such batches take at most a third of what may be in flight.
 */
static uint64_t
room_unmarked(const struct cgpu_stream *stream, const struct cgpu_unmarked *batch, uint64_t ns,
              uint64_t flight, uint64_t now)
{
    const struct cgpu_pace *pace = &stream->gpu->pace;
    uint64_t unmarked = unmarked_on(stream->gpu);

    if (ns != 0 && !stream->unsure && batch->launches < CGPU_DRIVER_QUEUE &&
        unmarked + ns <= batch_of(stream, flight)) {
        return cgpu_pace_room(pace, flight - unmarked, now);
    }
    uint64_t until = cgpu_pace_room(pace, 0, now);
    return until != 0 ? until : now + CGPU_PACE_IDLE_NS / 4;
}

/*
 * A launch into a stream that stands apart needs no room, because its work does not run now. It
 * gets no marker: markers would fill the driver's queue, and a thread may wait for ever at a full
 * queue.
 */
uint64_t
cgpu_enter_room(struct cgpu_stream *stream, uint32_t word, uint64_t ns, uint64_t now)
{
    struct cgpu_gate_gpu *gpu = stream->gpu;
    uint64_t flight = cgpu_gate_is_unhurried(word) ? CGPU_PACE_AHEAD_NS : CGPU_PACE_FLIGHT_NS;

    cgpu_flight_harvest(gpu, now);
    struct cgpu_unmarked batch = cgpu_flight_unmarked(stream);
    bool full = ends_batch(stream, &batch, ns);
    if (stream->apart != CGPU_APART_NOT) {
        return batch.launches >= CGPU_DRIVER_QUEUE ? now + CGPU_PACE_FLIGHT_NS : 0;
    }
    if (full && cgpu_apart_is_called(stream, now)) { /* it may be about to go apart */
        return now + CGPU_PACE_IDLE_NS / 4;
    }
    if (full && cgpu_flight_is_enough(stream)) {
        return room_unmarked(stream, &batch, ns, flight, now);
    }
    if (full && !cgpu_flight_cut(stream, now)) {
        return now + CGPU_PACE_FLIGHT_NS;
    }
    uint64_t until = cgpu_pace_room(&gpu->pace, flight, now);
    if (until != 0 && full) { /* an idle GPU may have passed the marker by now */
        cgpu_flight_harvest(gpu, now);
        until = cgpu_pace_room(&gpu->pace, flight, now);
    }
    return until;
}

void
cgpu_enter_count(struct cgpu_stream *stream, uint64_t ns, bool guessed, uint64_t now)
{
    if (stream->begun_ns == 0) {
        stream->begun_ns = now;
    }
    stream->unsure |= ns == 0;
    stream->guessed += guessed && ns != 0;
    stream->guess_ns += guessed ? ns : 0;
    stream->gpu->active_ns = now;
    /* relaxed: it may be seen late, but then the gate closes and waits for the batch */
    __atomic_store_n(&stream->gpu->work->idle, 0, __ATOMIC_RELAXED);
}
