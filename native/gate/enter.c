/*
 * Whether a launch may go: the gate, the batch, the room in flight.
 *
 * A stream has at most two markers that have not passed, and a third when its gate closes. The
 * reason is that the stream may be waiting for something that the program does later: then each
 * marker takes an entry of the driver's queue. While both have not passed, further launches join
 * the stream's batch, which gets no marker yet.
 */
#include "gate/enter.h"

#include "clock.h"
#include "gate/flight.h"
#include "gate/permits.h"
#include "ledger/work.h"

enum { FALL = 2, RISE = 8 };

void
cgpu_enter_end_rest(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    uint64_t usual = gpu->usual_rest_ns, rest = cgpu_since(now, gpu->rested_ns);

    gpu->burst_ns = gpu->burst_ns != 0 ? gpu->burst_ns : now;
    if (gpu->rested_ns != 0) {
        /* one long rest among many short ones counts for little */
        rest = cgpu_lesser(rest, usual + 2 * CGPU_PACE_IDLE_NS);
        gpu->usual_rest_ns =
            rest < usual ? usual - (usual - rest) / FALL : usual + (rest - usual) / RISE;
        gpu->rested_ns = 0;
    }
}

bool
cgpu_enter_begin(struct cgpu_stream *stream, uint32_t word, uint64_t now)
{
    struct cgpu_gate_gpu *gpu = stream->gpu;
    uint32_t before = __atomic_load_n(&gpu->work->active, __ATOMIC_RELAXED);

    cgpu_gate_set_phase(gpu, cgpu_gate_is_metered(word) ? CGPU_PHASE_COUNTED : CGPU_PHASE_UNCOUNTED,
                        now);
    bool same = before == word;
    if (!same) {
        cgpu_work_begin(gpu->work, word, now);
        /*
         * seq_cst, like the store of `active`: if the arbiter does not see `active`, this thread
         * sees the gate close
         */
        same = __atomic_load_n(gpu->gate, __ATOMIC_SEQ_CST) == word;
        if (same) { /* not idle: under a free gate nothing else clears that */
            __atomic_store_n(&gpu->work->idle, 0, __ATOMIC_RELAXED);
        }
        if (same && before == 0) {
            cgpu_flight_probe(stream, word, now);
        }
    }
    return same;
}

/*
 * The most work that STREAM's batch may hold. Its marked batches and this one together fill FLIGHT
 * and the GPU's lag.
 */
static uint64_t
batch_size(const struct cgpu_stream *stream, uint64_t flight)
{
    uint64_t ns = (flight + stream->gpu->pace.lag_ns) / (CGPU_STREAM_MARKERS + 1);

    return cgpu_larger(ns, CGPU_PACE_BATCH_NS);
}

/* Whether BATCH of STREAM must end before a launch of NS is added. */
static bool
ends_batch(const struct cgpu_stream *stream, const struct cgpu_unmarked *batch, uint64_t ns)
{
    uint64_t most = batch_size(stream, CGPU_PACE_FLIGHT_NS);

    return batch->launches != 0 && (ns == 0 || stream->unsure || stream->guessed >= CGPU_GUESSES ||
                                    batch->work_ns + ns >= most);
}

/*
 * End the batches of streams other than STREAM if these have more unmarked work than half of
 * FLIGHT. The batches of streams that have two markers or run a host function go on, and so do
 * those of threads' own default streams.
 */
static void
end_others(const struct cgpu_stream *stream, uint64_t flight, uint64_t now)
{
    struct cgpu_gate_gpu *gpu = stream->gpu;

    bool much = gpu->unmarked_ns - stream->unmarked_ns > flight / 2;

    for (uint32_t i = 0; i < *gpu->stream_bound && much; i++) {
        struct cgpu_stream *other = &gpu->streams[i];

        /*
         * a thread's own default stream would be marked in the legacy stream, which waits for all
         * others
         */
        if (other != stream && other->gpu == gpu && other->unmarked_ns != 0 && other->slot == 0 &&
            !cgpu_batch_is_deferred(other) && !cgpu_stall_is_in_call(other, now)) {
            cgpu_flight_cut(other, now);
        }
    }
}

/*
 * When there will be room for a launch into STREAM beside the marked work and the unmarked work of
 * other streams; 0: now.
 */
static uint64_t
room_in(const struct cgpu_stream *stream, uint64_t flight, uint64_t now)
{
    const struct cgpu_gate_gpu *gpu = stream->gpu;

    return cgpu_pace_room(&gpu->pace, cgpu_since(flight, gpu->unmarked_ns - stream->unmarked_ns),
                          now);
}

/*
 * BATCH of STREAM can get no marker now. Returns when a launch of NS may still be added to it. 0:
 * now, which holds while all unmarked work fits into one batch.
 */
static uint64_t
room_unmarked(const struct cgpu_stream *stream, const struct cgpu_unmarked *batch, uint64_t ns,
              uint64_t flight, uint64_t now)
{
    const struct cgpu_gate_gpu *gpu = stream->gpu;

    bool fits = ns != 0 && !stream->unsure && batch->launches < CGPU_DRIVER_QUEUE &&
                gpu->unmarked_ns + ns <= batch_size(stream, flight);
    uint64_t until =
        cgpu_pace_room(&gpu->pace, fits ? cgpu_since(flight, gpu->unmarked_ns) : 0, now);

    return fits || until != 0 ? until : now + CGPU_PACE_IDLE_NS / 4;
}

/* BATCH of STREAM is full: end it with a marker if it may have one. Returns when there is room. */
static uint64_t
room_behind(struct cgpu_stream *stream, const struct cgpu_unmarked *batch, uint64_t ns,
            uint64_t flight, uint64_t now)
{
    uint64_t until;

    if (cgpu_stall_is_in_call(stream, now)) { /* it may be about to stall */
        until = now + CGPU_PACE_IDLE_NS / 4;
    } else if (cgpu_batch_is_deferred(stream)) {
        until = room_unmarked(stream, batch, ns, flight, now);
    } else if (!cgpu_flight_cut(stream, now)) {
        until = now + CGPU_PACE_FLIGHT_NS;
    } else {
        until = room_in(stream, flight, now);
        if (until != 0) { /* an idle GPU may have passed the marker by now */
            cgpu_flight_harvest(stream->gpu, now);
            until = room_in(stream, flight, now);
        }
    }
    return until;
}

/*
 * When a launch into STREAM may go. If STREAM is stalled, it needs no room, because its work does
 * not run now. It gets no marker either: markers would fill the driver's queue, and a thread may
 * wait for ever at a full queue.
 */
uint64_t
cgpu_enter_room(struct cgpu_stream *stream, uint32_t word, uint64_t ns, uint64_t now)
{
    struct cgpu_gate_gpu *gpu = stream->gpu;
    bool ahead = cgpu_gate_is_unhurried(word) || cgpu_gate_is(gpu, CGPU_METERED_SLICED);
    uint64_t flight = ahead ? CGPU_PACE_AHEAD_NS : CGPU_PACE_FLIGHT_NS;

    cgpu_flight_harvest(gpu, now);
    struct cgpu_unmarked batch = cgpu_batch_sum(stream);
    bool full = ends_batch(stream, &batch, ns);
    if (stream->stall != CGPU_STALL_NONE) {
        return batch.launches >= CGPU_DRIVER_QUEUE ? now + CGPU_PACE_FLIGHT_NS : 0;
    }
    if (!stream->unsure) {
        cgpu_batch_set_unmarked(stream, batch.launches != 0 ? cgpu_larger(batch.work_ns, 1) : 0);
    }
    end_others(stream, flight, now);
    uint64_t until = cgpu_permits_take(gpu, word, now);
    if (until == 0) {
        until = full ? room_behind(stream, &batch, ns, flight, now) : room_in(stream, flight, now);
    }
    return until;
}

uint64_t
cgpu_enter_batch_limit(const struct cgpu_stream *stream, uint32_t word)
{
    uint64_t slots = cgpu_larger(stream->gpu->unmarked_slots, 1);

    return cgpu_gate_is_unhurried(word) ? CGPU_PACE_BATCH_NS : CGPU_PACE_BATCH_NS / slots;
}

void
cgpu_enter_count(struct cgpu_stream *stream, uint64_t ns, bool guessed, uint64_t now)
{
    stream->gpu->queued_ns = 0;
    if (stream->begun_ns == 0) {
        stream->begun_ns = now;
    }
    stream->unsure |= ns == 0;
    stream->guessed += guessed && ns != 0;
    stream->guess_ns += guessed ? ns : 0;
    if (stream->stall == CGPU_STALL_NONE) { /* one of unknown length takes the room of a batch */
        cgpu_batch_set_unmarked(stream, stream->unmarked_ns + (ns != 0 ? ns : CGPU_PACE_BATCH_NS));
    }
    stream->gpu->active_ns = now;
    /* relaxed: the arbiter may see it late; then it closes the gate and waits for the batch */
    __atomic_store_n(&stream->gpu->work->idle, 0, __ATOMIC_RELAXED);
}
