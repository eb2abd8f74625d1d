/*
 * Seeing the work of a GPU to its end: marking what nobody has marked, telling the arbiter when all
 * of it has ended, or when there is none though it might be the container's turn.
 */
#include "gate/drain.h"

#include "gate/apart.h"
#include "gate/flight.h"
#include "gate/pace_time.h"

static bool
is_unmarked(const struct cgpu_stream *stream, const struct cgpu_gate_gpu *gpu)
{
    return stream->gpu == gpu && stream->used && stream->apart == CGPU_APART_NOT &&
           stream->pending.launches != 0;
}

/*
 * STREAM has as many markers as it may have. What was launched behind them gets one when another
 * is passed; until then these say that the GPU is busy.
 */
static bool
has_most(const struct cgpu_stream *stream)
{
    return stream->in_flight > CGPU_STREAM_MARKERS;
}

static bool
is_deferred(const struct cgpu_gate_gpu *gpu)
{
    for (uint32_t i = 0; i < *gpu->stream_bound; i++) {
        if (is_unmarked(&gpu->streams[i], gpu) && has_most(&gpu->streams[i])) {
            return true;
        }
    }
    return false;
}

/* A marker behind a host function would take a place in the driver's queue: see enter.c. */
static bool
mark_each(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    bool all = true;

    for (uint32_t i = 0; i < *gpu->stream_bound; i++) {
        struct cgpu_stream *stream = &gpu->streams[i];

        if (!is_unmarked(stream, gpu)) {
            continue;
        }
        if (cgpu_apart_is_behind_call(stream, now)) {
            all = false;
        } else if (!has_most(stream) && !cgpu_flight_cut(stream, now)) {
            return false;
        }
    }
    return all;
}

/* No work on GPU is without a marker, and none is launched without the lock. False: not yet. */
static bool
mark_all(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    if (!gpu->outside->stop(gpu, now)) {
        return false;
    }
    bool deferred = is_deferred(gpu);
    gpu->deferred |= deferred; /* each new marker publishes it */
    bool all = mark_each(gpu, now);
    gpu->deferred = deferred;
    cgpu_flight_publish(gpu);
    return all;
}

/* Is there work that the arbiter should wait for? */
static bool
is_busy(const struct cgpu_gate_gpu *gpu)
{
    return cgpu_flight_counted(gpu) != 0;
}

static bool
is_active(const struct cgpu_gate_gpu *gpu)
{
    return __atomic_load_n(&gpu->work->active, __ATOMIC_RELAXED) != 0;
}

static void
say_quiet(struct cgpu_gate_gpu *gpu)
{
    /* release: what this thread wrote before is visible */
    __atomic_store_n(&gpu->work->active, 0, __ATOMIC_RELEASE);
    gpu->outside->ring(gpu);
}

bool
cgpu_drain_is_quiet(struct cgpu_gate_gpu *gpu)
{
    uint32_t word = cgpu_gate_word(gpu);

    if (cgpu_gate_is_open(word) || gpu->marked_word != word || is_busy(gpu)) {
        return false;
    }
    if (is_active(gpu)) {
        say_quiet(gpu);
    }
    return true;
}

static uint64_t
look_closed(struct cgpu_gate_gpu *gpu, uint32_t word, uint64_t now)
{
    if (gpu->marked_word != word) {
        if (!mark_all(gpu, now)) {
            return now + CGPU_DRAIN_BLOCKED_NS;
        }
        gpu->marked_word = word;
        gpu->drained_ns = now;
    }
    if (cgpu_drain_is_quiet(gpu)) {
        return gpu->aside ? now + CGPU_DRAIN_APART_NS : UINT64_MAX;
    }
    return cgpu_pace_drain_look(&gpu->pace, gpu->drained_ns, now);
}

/* Launches that may get a marker now, but for HELD, which threads have. */
static uint64_t
unmarked_on(const struct cgpu_gate_gpu *gpu, uint64_t held)
{
    uint64_t sum = held;

    for (uint32_t i = 0; i < *gpu->stream_bound; i++) {
        const struct cgpu_stream *stream = &gpu->streams[i];

        if (is_unmarked(stream, gpu) && !has_most(stream)) {
            sum += stream->pending.launches;
        }
    }
    return sum;
}

/* When GPU last had something to do: launches that are counted say so, others are seen here. */
static uint64_t
last_active(struct cgpu_gate_gpu *gpu, uint64_t held, uint64_t now)
{
    bool more = held != gpu->held || __atomic_load_n(&gpu->threads_waiting, __ATOMIC_RELAXED) != 0;
    uint64_t ended = lesser(gpu->pace.passed_ns, now);

    gpu->held = held;
    gpu->active_ns = more ? now : gpu->active_ns > ended ? gpu->active_ns : ended;
    return gpu->active_ns;
}

/* Not while there is surely something to do, nor before GPU may be idle. */
static uint64_t
look_at(const struct cgpu_gate_gpu *gpu, uint64_t unmarked, uint64_t now)
{
    uint64_t soon = now + CGPU_DRAIN_WATCH_NS, idle = gpu->active_ns + CGPU_PACE_IDLE_NS;

    if (!is_busy(gpu)) {
        return unmarked == 0 && idle > now ? idle : soon;
    }
    return clip(gpu->pace.end_ns, soon, now + CGPU_DRAIN_WATCH_MOST_NS);
}

/* Others wait for this container's turn to end: tell when it is not used. */
static uint64_t
look_pressed(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    uint64_t held = gpu->outside->held(gpu), unmarked = unmarked_on(gpu, held);

    if (now - last_active(gpu, held, now) >= CGPU_PACE_IDLE_NS) {
        if (unmarked != 0 || gpu->unmetered) {
            mark_all(gpu, now);
        } else if (!is_busy(gpu) && is_active(gpu) &&
                   __atomic_load_n(&gpu->work->idle, __ATOMIC_RELAXED) == 0) {
            __atomic_store_n(&gpu->work->idle, 1, __ATOMIC_RELEASE);
            gpu->outside->ring(gpu);
        }
    }
    return look_at(gpu, unmarked, now);
}

uint64_t
cgpu_drain_look(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    uint32_t word = cgpu_gate_word(gpu);

    cgpu_flight_harvest(gpu, now);
    switch (cgpu_gate_state(word)) {
    case CGPU_GATE_CLOSED:
        return look_closed(gpu, word, now);
    case CGPU_GATE_PRESSED:
        return look_pressed(gpu, now);
    default:
        return UINT64_MAX;
    }
}

void
cgpu_drain_finish(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    /* under a free gate there may be uncounted work; waiting for it is not worth the markers */
    if (gpu->unmetered || !is_active(gpu) || !mark_all(gpu, now)) {
        return;
    }
    cgpu_flight_harvest(gpu, now);
    if (!is_busy(gpu) && !gpu->deferred) {
        say_quiet(gpu);
    }
}

void
cgpu_drain_release(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    bool marked = !cgpu_gate_is_metered(cgpu_gate_word(gpu));

    for (uint32_t i = 0; i < *gpu->stream_bound; i++) {
        struct cgpu_stream *stream = &gpu->streams[i];

        if (stream->gpu == gpu && stream->used && stream->handle == NULL &&
            stream->in_flight == 0) {
            marked = marked || mark_all(gpu, now);
            gpu->outside->release(stream);
        }
    }
}
