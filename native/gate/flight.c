/* Markers: see flight.h. */
#include "gate/flight.h"

#include "clock.h"

enum { KNOWN_PART = 32, AWAITS_TIMES = 4 };

void
cgpu_flight_end(struct cgpu_gate_gpu *gpu, const struct cgpu_pace_batch *batch, uint64_t now,
                enum cgpu_pace_seen seen)
{
    gpu->pace.done_ns += batch->expected_ns;
    gpu->pace.spans = cgpu_gate_is(gpu, CGPU_METERED_SPANS);
    if (cgpu_gate_is(gpu, CGPU_METERED_TOGETHER)) {
        cgpu_pace_leave(&gpu->pace, batch, now);
    } else {
        cgpu_pace_pass(&gpu->pace, batch, now, seen);
    }
}

static void
remove_passed(struct cgpu_gate_gpu *gpu, struct cgpu_flight *flight, uint64_t now,
              enum cgpu_pace_seen seen)
{
    struct cgpu_stream *stream = flight->stream;
    /* long work is checked less often, so its end may be seen a little later */
    uint64_t lately = CGPU_FLIGHT_KNOWN_NS + (now - flight->marked_ns) / KNOWN_PART;

    gpu->ignored -= cgpu_stall_is_ignored(stream);
    if (stream->stall == CGPU_STALL_NONE) {
        if (flight->ended_ns != 0) {
            cgpu_flight_end(gpu, &flight->batch, flight->ended_ns, CGPU_SEEN_MARKED);
        } else if (now - gpu->pace.polled_ns < lately) {
            cgpu_flight_end(gpu, &flight->batch, now, CGPU_SEEN_AT_ONCE);
        } else {
            cgpu_flight_end(gpu, &flight->batch, now, seen);
        }
    }
    cgpu_stall_note_progress(stream, now);
    stream->in_flight--;
    gpu->ops->release(stream);
}

/*
 * Remove markers from GPU's table, oldest first: those that have passed, or all that were put into
 * STREAM (not NULL) until UNTIL, whose end was SEEN.
 */
static void
remove_all_passed(struct cgpu_gate_gpu *gpu, const struct cgpu_stream *stream, uint64_t until,
                  uint64_t now, enum cgpu_pace_seen seen)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < gpu->flights; i++) {
        struct cgpu_flight *flight = &gpu->flight[i];

        if (stream != NULL ? flight->stream == stream && flight->marked_ns <= until
                           : gpu->ops->is_passed(flight)) {
            remove_passed(gpu, flight, now, seen);
        } else {
            gpu->flight[kept++] = *flight;
        }
    }
    if (kept != gpu->flights) {
        gpu->flights = kept;
        cgpu_gate_publish(gpu);
    }
}

void
cgpu_flight_pass(struct cgpu_stream *stream, uint64_t until, uint64_t now, enum cgpu_pace_seen seen)
{
    if (stream->in_flight != 0) {
        remove_all_passed(stream->gpu, stream, until, now, seen);
    }
}

/* ---- streams whose work does not end when it should ---- */

/*
 * The time after which a stream stalls if none of its work ends. AWAITS: streams may be waiting for
 * the program.
 */
static uint64_t
stall_after(const struct cgpu_gate_gpu *gpu, bool awaits)
{
    uint64_t least = gpu->pace.uncertain != 0 ? CGPU_STALL_UNKNOWN_NS : CGPU_STALL_AWAITS_NS;

    return awaits ? cgpu_clip(AWAITS_TIMES * gpu->pace.longest_ns, least, CGPU_STALL_PERSISTENT_NS)
                  : CGPU_STALL_PERSISTENT_NS;
}

/*
 * Whether the stream of FLIGHT has made no progress for AFTER. The oldest of a stream's flights is
 * the first for which this holds.
 */
static bool
makes_no_progress(const struct cgpu_flight *flight, uint64_t after, uint64_t now)
{
    return cgpu_since(now, cgpu_larger(flight->stream->progress_ns, flight->marked_ns)) >= after;
}

static void
poll_lost(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    bool lost = false;

    for (uint32_t i = 0; i < gpu->flights && !lost; i++) {
        const struct cgpu_flight *flight = &gpu->flight[i];
        uint64_t asked = cgpu_larger(flight->marked_ns, flight->stream->queried_ns);

        lost = cgpu_since(now, asked) >= CGPU_STALL_LOST_NS && gpu->ops->is_lost(flight, now);
        if (lost) { /* this changes the table */
            cgpu_flight_pass(flight->stream, now, now, CGPU_SEEN_LATE);
        }
    }
}

static void
poll_flights(struct cgpu_gate_gpu *gpu, bool awaits, uint64_t now)
{
    for (uint32_t i = 0; i < gpu->flights; i++) {
        const struct cgpu_flight *flight = &gpu->flight[i];
        struct cgpu_stream *stream = flight->stream;

        if (cgpu_stall_is_ignored(stream)) {
            continue;
        }
        if (makes_no_progress(flight, CGPU_STALL_PERSISTENT_NS, now)) {
            cgpu_stall_begin(stream, CGPU_STALL_PERSISTENT, now);
            if (!awaits) { /* otherwise it may be waiting for the program, and use no GPU time */
                cgpu_stall_leave_uncharged(stream, now);
            }
        } else if (stream->stall == CGPU_STALL_NONE &&
                   makes_no_progress(flight, stall_after(gpu, awaits), now)) {
            cgpu_stall_begin(stream, CGPU_STALL_LATE, now);
        }
    }
}

static void
poll_stalled(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    bool has_stalled = false;

    for (uint32_t i = 0; i < *gpu->stream_bound; i++) {
        struct cgpu_stream *stream = &gpu->streams[i];

        if (stream->gpu != gpu || !stream->used || stream->stall == CGPU_STALL_NONE) {
            continue;
        }
        if (stream->stall == CGPU_STALL_IN_CALL ? stream->in_call_ns == now
                                                : stream->progress_ns < stream->stalled_ns) {
            has_stalled = true;
        } else {
            cgpu_stall_end(stream, now);
        }
    }
    gpu->has_stalled = has_stalled;
}

void
cgpu_flight_harvest(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    remove_all_passed(gpu, NULL, 0, now, CGPU_SEEN_LATE);
    cgpu_pace_note_poll(&gpu->pace, now);
    poll_lost(gpu, now);
    poll_flights(gpu, gpu->ops->poll_host_calls(gpu, now), now);
    if (gpu->has_stalled) {
        poll_stalled(gpu, now);
    }
}

/* ---- putting markers ---- */

/*
 * Put a marker for BATCH into STREAM. If STREAM captures or its context is broken, put none: its
 * work does not run.
 */
static void
add_flight(struct cgpu_stream *stream, const struct cgpu_pace_batch *batch, uint64_t now)
{
    struct cgpu_gate_gpu *gpu = stream->gpu;
    struct cgpu_flight *flight = &gpu->flight[gpu->flights];
    uint32_t kind;

    if (gpu->ops->put_marker(stream, stream->issued + 1, &kind)) {
        stream->issued++;
        stream->in_flight++;
        gpu->flights++;
        *flight = (struct cgpu_flight){*batch, stream, now, stream->issued, kind, 0};
        gpu->ignored += cgpu_stall_is_ignored(stream);
        if (stream->stall == CGPU_STALL_NONE) {
            cgpu_pace_mark(&gpu->pace, &flight->batch, now);
        }
        __atomic_store_n(&gpu->work->markers, gpu->work->markers + 1, __ATOMIC_RELAXED);
        cgpu_gate_publish(gpu);
    }
}

/* Of each stream that nobody waits for, keep only the newest marker: the others teach nothing. */
static void
thin_out(struct cgpu_gate_gpu *gpu)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < gpu->flights; i++) {
        struct cgpu_stream *stream = gpu->flight[i].stream;

        if (cgpu_stall_is_ignored(stream) && gpu->flight[i].seq != stream->issued) {
            stream->in_flight--;
            gpu->ignored--;
        } else {
            gpu->flight[kept++] = gpu->flight[i];
        }
    }
    gpu->flights = kept;
}

/* Whether one more marker may be put in flight. */
static bool
has_slot(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    if (gpu->flights == CGPU_MAX_FLIGHTS) {
        cgpu_flight_harvest(gpu, now);
    }
    if (gpu->flights == CGPU_MAX_FLIGHTS) {
        thin_out(gpu);
    }
    return gpu->flights < CGPU_MAX_FLIGHTS;
}

bool
cgpu_flight_cut(struct cgpu_stream *stream, uint64_t now)
{
    bool fits = has_slot(stream->gpu, now);

    if (fits) {
        struct cgpu_pace_batch batch = cgpu_batch_close(stream);

        add_flight(stream, &batch, now);
    }
    return fits;
}

void
cgpu_flight_probe(struct cgpu_stream *stream, uint32_t word, uint64_t now)
{
    struct cgpu_pace_batch nothing = {.start_ns = now, .certain = 1, .stream = stream->index};
    struct cgpu_gate_gpu *gpu = stream->gpu;

    if (cgpu_gate_is_metered(word) && stream->stall == CGPU_STALL_NONE &&
        !cgpu_stall_is_in_call(stream, now) && !cgpu_batch_is_deferred(stream) &&
        __atomic_load_n(&gpu->limits->quiet_gate, __ATOMIC_RELAXED) == word && has_slot(gpu, now)) {
        add_flight(stream, &nothing, now);
    }
}
