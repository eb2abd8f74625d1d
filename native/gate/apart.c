/*
 * Streams whose work does not end when it should.
 *
 * A stream stands apart while it makes no progress: it is in a host function, or none of its work
 * has ended for some time. Its work then takes no room. No drain waits for a stream in a host
 * function, which uses none of the GPU, or for one in which nothing has ended for a second (a
 * persistent kernel). Such streams are not charged while they go on: their kernel cannot be
 * stopped, and paying for it would leave nothing to the other streams of the container. If the
 * kernel ends after all, its time is charged then. Before that second is over the GPU may be
 * running a long kernel, which is drained and charged like any other. When the stream makes
 * progress again, its work is ordinary work; if the gate has closed by then, the process rings.
 */
#include "gate/apart.h"

#include "gate/drain.h"
#include "gate/flight.h"
#include "gate/pace_time.h"
#include "ledger/work.h"

enum { AWAITS_TIMES = 4 };

/*
 * How long nothing in a stream ends before it goes apart. AWAITS: streams may wait for the program.
 */
static uint64_t
patience(const struct cgpu_gate_gpu *gpu, bool awaits)
{
    uint64_t least = gpu->pace.uncertain != 0 ? CGPU_APART_UNKNOWN_NS : CGPU_APART_AWAITS_NS;

    return awaits ? clip(AWAITS_TIMES * gpu->pace.longest_ns, least, CGPU_APART_STAYS_NS)
                  : CGPU_APART_STAYS_NS;
}

/* Among the flights of a stream, this becomes true for the oldest first. */
static bool
gets_nowhere(const struct cgpu_flight *flight, uint64_t after, uint64_t now)
{
    return since(now, larger(flight->stream->moved_ns, flight->marked_ns)) >= after;
}

/* STREAM takes time of the GPU that is charged only when it has ended. */
static void
stay(struct cgpu_stream *stream, uint64_t now)
{
    stream->stays_ns = now;
    cgpu_work_stays(stream->gpu->sums);
}

/* Time that several streams stay together is reported once. */
void
cgpu_apart_moves(struct cgpu_stream *stream, uint64_t now)
{
    struct cgpu_gate_gpu *gpu = stream->gpu;
    uint64_t ns = since(now, larger(stream->stays_ns, gpu->stayed_ns));

    stream->moved_ns = now;
    if (stream->stays_ns != 0 && ns > 0) {
        gpu->stayed_ns = now;
        cgpu_work_stayed(gpu->sums, ns);
    }
    stream->stays_ns = 0;
}

/* The only place where a stream changes its state. */
static void
change(struct cgpu_stream *stream, enum cgpu_apart to, uint64_t now)
{
    struct cgpu_gate_gpu *gpu = stream->gpu;
    enum cgpu_apart before = stream->apart;
    bool was_left = cgpu_apart_is_left(stream);

    stream->apart = to;
    if (to == CGPU_APART_NOT && stream->pending.launches != 0) {
        cgpu_flight_open(stream, larger(stream->pending.work_ns, 1));
    } else { /* what is apart takes no room */
        cgpu_flight_open(stream, 0);
    }
    for (uint32_t i = 0; i < gpu->flights; i++) {
        struct cgpu_flight *flight = &gpu->flight[i];

        if (flight->stream != stream) {
            continue;
        }
        if (before == CGPU_APART_NOT && to != CGPU_APART_NOT) {
            cgpu_pace_leave(&gpu->pace, &flight->batch, now);
        } else if (before != CGPU_APART_NOT && to == CGPU_APART_NOT) {
            cgpu_pace_return(&gpu->pace, &flight->batch, now);
        }
        gpu->left += (uint32_t)cgpu_apart_is_left(stream) - was_left;
    }
    cgpu_flight_publish(gpu);
}

void
cgpu_apart_go(struct cgpu_stream *stream, enum cgpu_apart why, uint64_t now)
{
    change(stream, why, now);
    stream->apart_ns = now;
    stream->gpu->aside = 1;
}

/* The stream's work counts again. */
static void
come_back(struct cgpu_stream *stream, uint64_t now)
{
    struct cgpu_gate_gpu *gpu = stream->gpu;
    uint32_t word = cgpu_gate_word(gpu);

    change(stream, CGPU_APART_NOT, now);
    stream->moved_ns = now;
    if (stream->in_flight == 0 && stream->pending.launches == 0) {
        return;
    }
    __atomic_store_n(&gpu->work->idle, 0, __ATOMIC_RELAXED);
    if (cgpu_gate_is_open(word)) {
        return;
    }
    cgpu_drain_change(gpu, CGPU_PHASE_COUNTED, now); /* mark now what was not marked */
    if (__atomic_load_n(&gpu->work->active, __ATOMIC_RELAXED) == 0) {
        __atomic_store_n(&gpu->work->active, word, __ATOMIC_RELEASE);
        gpu->outside->ring(gpu);
    }
}

bool
cgpu_apart_is_behind_call(const struct cgpu_stream *stream, uint64_t now)
{
    return stream->in_flight == 0 && stream->begun_ns > stream->call_ns &&
           now < stream->call_ns + CGPU_APART_BEGINS_NS &&
           stream->gpu->outside->is_behind_call(stream);
}

bool
cgpu_apart_is_called(const struct cgpu_stream *stream, uint64_t now)
{
    return cgpu_apart_is_behind_call(stream, now) ||
           (stream->in_flight == 0 && stream->call_ns != 0 &&
            (stream->called_ns == now || now < stream->call_ns + CGPU_APART_CALL_NS));
}

static void
look_for_lost(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    for (uint32_t i = 0; i < gpu->flights; i++) {
        const struct cgpu_flight *flight = &gpu->flight[i];
        uint64_t asked = larger(flight->marked_ns, flight->stream->asked_ns);

        if (since(now, asked) >= CGPU_APART_LOST_NS && gpu->outside->is_lost(flight, now)) {
            cgpu_flight_pass(flight->stream, now, now, CGPU_SEEN_LATE);
            return; /* the table has changed */
        }
    }
}

static void
look_at_flights(struct cgpu_gate_gpu *gpu, bool awaits, uint64_t now)
{
    for (uint32_t i = 0; i < gpu->flights; i++) {
        const struct cgpu_flight *flight = &gpu->flight[i];
        struct cgpu_stream *stream = flight->stream;

        if (cgpu_apart_is_left(stream)) {
            continue;
        }
        if (gets_nowhere(flight, CGPU_APART_STAYS_NS, now)) {
            cgpu_apart_go(stream, CGPU_APART_STAYS, now);
            if (!awaits) { /* otherwise it may be waiting for the program, and use no GPU time */
                stay(stream, now);
            }
        } else if (stream->apart == CGPU_APART_NOT &&
                   gets_nowhere(flight, patience(gpu, awaits), now)) {
            cgpu_apart_go(stream, CGPU_APART_LATE, now);
        }
    }
}

static void
look_aside(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    bool aside = false;

    for (uint32_t i = 0; i < *gpu->stream_bound; i++) {
        struct cgpu_stream *stream = &gpu->streams[i];

        if (stream->gpu != gpu || !stream->used || stream->apart == CGPU_APART_NOT) {
            continue;
        }
        if (stream->apart == CGPU_APART_CALLED ? stream->called_ns == now
                                               : stream->moved_ns < stream->apart_ns) {
            aside = true;
        } else {
            come_back(stream, now);
        }
    }
    gpu->aside = aside;
}

void
cgpu_apart_look(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    look_for_lost(gpu, now);
    look_at_flights(gpu, gpu->outside->awaits(gpu, now), now);
    if (gpu->aside) {
        look_aside(gpu, now);
    }
}
