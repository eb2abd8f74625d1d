/* Batches and their markers: see flight.h. */
#include "gate/flight.h"

#include "gate/apart.h"
#include "gate/pace_time.h"
#include "gate/permits.h"

enum { KNOWN_PART = 32 };

void
cgpu_flight_add(struct cgpu_stream *stream, const struct cgpu_unmarked *batch)
{
    struct cgpu_unmarked *pending = &stream->pending;

    pending->mixed |= batch->mixed;
    pending->mixed |= pending->launches != 0 ? pending->key ^ batch->key : 0;
    pending->key = batch->key;
    pending->work_ns += batch->work_ns;
    pending->launches += batch->launches;
}

void
cgpu_flight_open(struct cgpu_stream *stream, uint64_t ns)
{
    struct cgpu_gate_gpu *gpu = stream->gpu;

    gpu->open_ns += ns - stream->open_ns;
    gpu->permit_used_ns += since(ns, stream->open_ns);
    stream->open_ns = ns;
}

void
cgpu_flight_suspect(struct cgpu_stream *stream)
{
    cgpu_flight_add(stream, &(struct cgpu_unmarked){.launches = 1, .mixed = UINT64_MAX});
    stream->unsure = 1;
}

struct cgpu_unmarked
cgpu_flight_unmarked(const struct cgpu_stream *stream)
{
    struct cgpu_unmarked sum = stream->pending;

    stream->gpu->outside->sum(stream, &sum);
    return sum;
}

bool
cgpu_flight_wants_marker(const struct cgpu_stream *stream)
{
    return stream->stale != 0 || cgpu_flight_unmarked(stream).launches != 0;
}

void
cgpu_flight_publish(struct cgpu_gate_gpu *gpu)
{
    bool certain =
        gpu->pace.uncertain == 0 && gpu->pace.guessed == 0 && gpu->phase != CGPU_PHASE_DEFERRED;

    /* relaxed: each is a hint that stands alone */
    __atomic_store_n(&gpu->work->certain, certain, __ATOMIC_RELAXED);
    __atomic_store_n(&gpu->work->end_ns, gpu->pace.end_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&gpu->work->busy_ns, gpu->pace.busy_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&gpu->work->done_us, (uint32_t)(gpu->pace.done_ns / 1000), __ATOMIC_RELAXED);
    __atomic_store_n(&gpu->work->lag_ns, (uint32_t)gpu->pace.lag_ns, __ATOMIC_RELAXED);
}

static void
pass(struct cgpu_gate_gpu *gpu, const struct cgpu_pace_batch *batch, uint64_t now,
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
take_out(struct cgpu_gate_gpu *gpu, struct cgpu_flight *flight, uint64_t now,
         enum cgpu_pace_seen seen)
{
    struct cgpu_stream *stream = flight->stream;
    /* long work is checked for less often, and need not be seen so promptly */
    uint64_t lately = CGPU_FLIGHT_KNOWN_NS + (now - flight->marked_ns) / KNOWN_PART;

    gpu->left -= cgpu_apart_is_left(stream);
    if (stream->apart == CGPU_APART_NOT) {
        if (flight->ended_ns != 0) {
            pass(gpu, &flight->batch, flight->ended_ns, CGPU_SEEN_MARKED);
        } else if (now - gpu->pace.looked_ns < lately) {
            pass(gpu, &flight->batch, now, CGPU_SEEN_AT_ONCE);
        } else {
            pass(gpu, &flight->batch, now, seen);
        }
    }
    cgpu_apart_moves(stream, now);
    stream->in_flight--;
    gpu->outside->release(stream);
}

/*
 * Remove what has passed from GPU's table, oldest first. STREAM (NULL: any): what was marked in it
 * until UNTIL has passed, as was SEEN.
 */
static void
take_all(struct cgpu_gate_gpu *gpu, const struct cgpu_stream *stream, uint64_t until, uint64_t now,
         enum cgpu_pace_seen seen)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < gpu->flights; i++) {
        struct cgpu_flight *flight = &gpu->flight[i];

        if (stream != NULL ? flight->stream == stream && flight->marked_ns <= until
                           : gpu->outside->is_passed(flight)) {
            take_out(gpu, flight, now, seen);
        } else {
            gpu->flight[kept++] = *flight;
        }
    }
    if (kept != gpu->flights) {
        gpu->flights = kept;
        cgpu_flight_publish(gpu);
    }
}

void
cgpu_flight_pass(struct cgpu_stream *stream, uint64_t until, uint64_t now, enum cgpu_pace_seen seen)
{
    if (stream->in_flight != 0) {
        take_all(stream->gpu, stream, until, now, seen);
    }
}

void
cgpu_flight_harvest(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    take_all(gpu, NULL, 0, now, CGPU_SEEN_LATE);
    cgpu_pace_look(&gpu->pace, now);
    cgpu_apart_look(gpu, now);
}

/* The batch of STREAM, which begins anew. */
static struct cgpu_pace_batch
close_batch(struct cgpu_stream *stream)
{
    struct cgpu_unmarked sum = cgpu_flight_unmarked(stream);
    struct cgpu_pace_batch batch = {
        .key = sum.mixed == 0 ? sum.key : 0,
        .launches = sum.launches == 0 ? stream->stale : sum.launches,
        .work_ns = sum.work_ns,
        .start_ns = stream->begun_ns,
        .certain = !stream->unsure,
        .guessed = stream->guessed,
        .guess_ns = stream->guess_ns,
        .stream = stream->index,
    };

    stream->gpu->outside->cut(stream);
    cgpu_flight_open(stream, 0);
    stream->pending = (struct cgpu_unmarked){0};
    stream->unsure = 0;
    stream->guessed = 0;
    stream->guess_ns = 0;
    stream->begun_ns = 0;
    return batch;
}

/* Captured work does not run, and nothing runs in a broken context: then there is no marker. */
static void
put(struct cgpu_stream *stream, const struct cgpu_pace_batch *batch, uint64_t now)
{
    struct cgpu_gate_gpu *gpu = stream->gpu;
    struct cgpu_flight *flight = &gpu->flight[gpu->flights];
    uint32_t means;

    if (!gpu->outside->put_marker(stream, stream->issued + 1, &means)) {
        return;
    }
    stream->issued++;
    stream->in_flight++;
    gpu->flights++;
    *flight = (struct cgpu_flight){*batch, stream, now, stream->issued, means, 0};
    gpu->left += cgpu_apart_is_left(stream);
    if (stream->apart == CGPU_APART_NOT) {
        cgpu_pace_mark(&gpu->pace, &flight->batch, now);
    }
    __atomic_store_n(&gpu->work->markers, gpu->work->markers + 1, __ATOMIC_RELAXED);
    cgpu_flight_publish(gpu);
}

/*
 * Streams that nobody waits for keep only their newest marker: nothing is learnt from the others.
 */
static void
thin_out(struct cgpu_gate_gpu *gpu)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < gpu->flights; i++) {
        struct cgpu_stream *stream = gpu->flight[i].stream;

        if (cgpu_apart_is_left(stream) && gpu->flight[i].seq != stream->issued) {
            stream->in_flight--;
            gpu->left--;
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
    if (!has_slot(stream->gpu, now)) {
        return false;
    }
    struct cgpu_pace_batch batch = close_batch(stream);
    put(stream, &batch, now);
    return true;
}

void
cgpu_flight_probe(struct cgpu_stream *stream, uint32_t word, uint64_t now)
{
    struct cgpu_pace_batch nothing = {.start_ns = now, .certain = 1, .stream = stream->index};
    struct cgpu_gate_gpu *gpu = stream->gpu;

    if (cgpu_gate_is_metered(word) && stream->apart == CGPU_APART_NOT &&
        !cgpu_apart_is_called(stream, now) && !cgpu_flight_is_enough(stream) &&
        __atomic_load_n(&gpu->limits->quiet_gate, __ATOMIC_RELAXED) == word && has_slot(gpu, now)) {
        put(stream, &nothing, now);
    }
}

/*
 * What is in flight in STREAM has ended, though its markers have not been seen to pass. Not what
 * another thread began to launch after BEGUN.
 */
static void
note_end(struct cgpu_stream *stream, uint64_t begun, uint64_t now)
{
    for (uint32_t i = 0; i < stream->gpu->flights && stream->in_flight > 0; i++) {
        struct cgpu_flight *flight = &stream->gpu->flight[i];

        if (flight->stream == stream && flight->batch.start_ns <= begun) {
            flight->ended_ns = now;
        }
    }
}

/*
 * Its marker may be younger than BEGUN: a stream that stood apart pays before it is let in again.
 */
void
cgpu_flight_synchronised(struct cgpu_stream *stream, uint64_t begun, uint64_t now)
{
    struct cgpu_gate_gpu *gpu = stream->gpu;

    cgpu_flight_pass(stream, begun, now, CGPU_SEEN_AT_ONCE);
    if (stream->handed_ns <= begun) {
        note_end(stream, begun, now);
    }
    if (stream->handed_ns <= begun) {
        struct cgpu_pace_batch batch = close_batch(stream);

        if (batch.launches != 0) {
            cgpu_pace_mark(&gpu->pace, &batch, now);
            pass(gpu, &batch, now, CGPU_SEEN_AT_ONCE);
            cgpu_flight_publish(gpu);
        }
    }
    if (gpu->aside) {
        cgpu_flight_harvest(gpu, now);
    }
    cgpu_permits_look(gpu, now);
}
