/*
 * Follows the work on a GPU to its end: marks what has no marker, and informs the arbiter when all
 * of it has ended, or when there is none although it is the container's turn.
 */
#include "gate/drain.h"

#include "clock.h"
#include "gate/flight.h"
#include "gate/permits.h"

enum { BLOCKED_PART = 4 };

static bool
is_unmarked(const struct cgpu_stream *stream, const struct cgpu_gate_gpu *gpu)
{
    return stream->gpu == gpu && stream->used && stream->stall == CGPU_STALL_NONE &&
           stream->pending.launches != 0;
}

/*
 * Whether STREAM has as many markers as it may have. Its later launches get a marker when one has
 * passed; until then, the existing markers show that the GPU is busy.
 */
static bool
has_most_markers(const struct cgpu_stream *stream)
{
    return stream->in_flight > CGPU_STREAM_MARKERS;
}

/*
 * Record that any stream of GPU may have uncounted work. Threads' own default streams are left out,
 * because the legacy stream waits for them.
 */
static void
suspect_all(struct cgpu_gate_gpu *gpu)
{
    for (uint32_t i = 0; i < *gpu->stream_bound; i++) {
        struct cgpu_stream *stream = &gpu->streams[i];

        if (stream->gpu == gpu && stream->handle != NULL && stream->slot == 0) {
            cgpu_batch_suspect(stream);
        }
    }
}

/*
 * Mark the unmarked work of each stream of GPU, if the stream may have a marker now. Returns the
 * phase that follows. No marker is written behind a host function: it would take an entry of the
 * driver's queue (see enter.c).
 */
static enum cgpu_gate_phase
mark_each(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    enum cgpu_gate_phase phase = CGPU_PHASE_MARKED;
    bool fits = true;

    for (uint32_t i = 0; i < *gpu->stream_bound && fits; i++) {
        struct cgpu_stream *stream = &gpu->streams[i];

        if (!is_unmarked(stream, gpu)) {
            continue;
        }
        if (cgpu_stall_is_behind_call(stream, now)) {
            phase = CGPU_PHASE_COUNTED;
        } else if (has_most_markers(stream)) {
            phase = phase == CGPU_PHASE_MARKED ? CGPU_PHASE_DEFERRED : phase;
        } else {
            fits = cgpu_flight_cut(stream, now);
        }
    }
    return fits ? phase : CGPU_PHASE_COUNTED;
}

/* Make all threads launch under the lock only. False: not yet. */
static bool
stop_threads(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    bool stopped = gpu->ops->stop(gpu, now);

    if (!stopped) {
        gpu->blocked_ns = gpu->blocked_ns != 0 ? gpu->blocked_ns : now;
    } else {
        gpu->blocked_ns = 0;
        if (gpu->phase == CGPU_PHASE_UNCOUNTED) {
            suspect_all(gpu);
        }
        cgpu_gate_set_phase(gpu, CGPU_PHASE_DEFERRED, now); /* each new marker publishes it */
    }
    return stopped;
}

/* Stop the threads, and mark what may have a marker. False: not all of that was possible. */
static bool
mark_all(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    bool stopped = gpu->phase >= CGPU_PHASE_DEFERRED || stop_threads(gpu, now);

    if (stopped) {
        cgpu_gate_set_phase(gpu, mark_each(gpu, now), now);
        cgpu_gate_publish(gpu);
    }
    return stopped && gpu->phase != CGPU_PHASE_COUNTED;
}

static bool
is_active(const struct cgpu_gate_gpu *gpu)
{
    return __atomic_load_n(&gpu->work->active, __ATOMIC_RELAXED) != 0;
}

static void
report_quiet(struct cgpu_gate_gpu *gpu)
{
    /* release: what this thread wrote before is visible */
    __atomic_store_n(&gpu->work->active, 0, __ATOMIC_RELEASE);
    gpu->ops->ring(gpu);
}

void
cgpu_drain_report_idle(struct cgpu_gate_gpu *gpu, uint32_t when)
{
    uint32_t idle = __atomic_load_n(&gpu->work->idle, __ATOMIC_RELAXED);

    if (is_active(gpu) && idle != when && idle != CGPU_IDLE_NOW) {
        __atomic_store_n(&gpu->work->idle, when, __ATOMIC_RELEASE);
        gpu->ops->ring(gpu);
    }
}

bool
cgpu_drain_is_quiet(struct cgpu_gate_gpu *gpu)
{
    bool quiet = !cgpu_gate_is_open(cgpu_gate_word(gpu)) && gpu->phase == CGPU_PHASE_MARKED &&
                 !cgpu_gate_is_busy(gpu);

    if (quiet && is_active(gpu)) {
        report_quiet(gpu);
    }
    return quiet;
}

/*
 * When to check again whether a launch has returned. It may take as long as the driver likes; the
 * longer it takes, the rarer the checks.
 */
static uint64_t
poll_blocked_at(const struct cgpu_gate_gpu *gpu, uint64_t now)
{
    uint64_t wait = gpu->blocked_ns != 0 ? cgpu_since(now, gpu->blocked_ns) / BLOCKED_PART : 0;

    return now + cgpu_clip(wait, CGPU_DRAIN_BLOCKED_NS, CGPU_PACE_SLOWEST_NS);
}

static uint64_t
poll_closed(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    uint64_t next;

    if (gpu->phase != CGPU_PHASE_MARKED && !mark_all(gpu, now)) {
        next = poll_blocked_at(gpu, now);
    } else if (!cgpu_drain_is_quiet(gpu)) {
        next = cgpu_pace_drain_poll_at(&gpu->pace, gpu->phase_ns, now);
    } else {
        next = gpu->has_stalled ? now + CGPU_STALL_AWAITS_NS : UINT64_MAX;
    }
    return next;
}

/*
 * The number of launches that may get a marker now, plus HELD, those that threads have not handed
 * over.
 */
static uint64_t
count_unmarked(const struct cgpu_gate_gpu *gpu, uint64_t held)
{
    uint64_t sum = held;

    for (uint32_t i = 0; i < *gpu->stream_bound; i++) {
        const struct cgpu_stream *stream = &gpu->streams[i];

        if (is_unmarked(stream, gpu) && !has_most_markers(stream)) {
            sum += stream->pending.launches;
        }
    }
    return sum;
}

/*
 * Update and return the time when GPU last had something to do. Counted launches update it
 * themselves; all other work is noticed here.
 */
static uint64_t
update_active(struct cgpu_gate_gpu *gpu, uint64_t held, uint64_t now)
{
    bool more = held != gpu->held || __atomic_load_n(&gpu->threads_waiting, __ATOMIC_RELAXED) != 0;
    uint64_t ended = cgpu_lesser(gpu->pace.passed_ns, now);

    gpu->held = held;
    gpu->active_ns = more ? now : cgpu_larger(gpu->active_ns, ended);
    return gpu->active_ns;
}

/*
 * When to check whether GPU is idle: not before it can count as idle, nor while it certainly has
 * work.
 */
static uint64_t
poll_idle_at(const struct cgpu_gate_gpu *gpu, uint64_t unmarked, uint64_t now)
{
    uint64_t soon = now + CGPU_DRAIN_WATCH_NS, idle = gpu->active_ns + CGPU_PACE_IDLE_NS;

    uint64_t next;

    if (cgpu_gate_is_busy(gpu)) {
        next = cgpu_clip(gpu->pace.end_ns, soon, now + CGPU_DRAIN_WATCH_MOST_NS);
    } else if (gpu->queued_ns != 0) { /* its threads are woken when it may launch */
        next = now + CGPU_PERMIT_LOOK_NS;
    } else {
        next = unmarked == 0 && idle > now ? idle : soon;
    }
    return next;
}

/*
 * When all work on GPU will have ended and the program will rest; 0: not known. It is not known if
 * no work of this burst was seen to end yet, because others' work may run first, nor if the
 * estimate includes the guess for a kernel that was never measured.
 */
static uint64_t
predict_rest(const struct cgpu_gate_gpu *gpu)
{
    uint64_t end = gpu->pace.end_ns, more = 0;
    bool known = gpu->syncs && gpu->usual_rest_ns >= CGPU_PACE_IDLE_NS &&
                 gpu->pace.uncertain == 0 && gpu->pace.guessed == 0 && gpu->burst_ns != 0 &&
                 gpu->pace.passed_ns > gpu->burst_ns && gpu->phase != CGPU_PHASE_UNCOUNTED;

    for (uint32_t i = 0; i < *gpu->stream_bound && known; i++) {
        const struct cgpu_stream *stream = &gpu->streams[i];

        if (stream->gpu == gpu && stream->used && stream->stall == CGPU_STALL_NONE) {
            struct cgpu_unmarked sum = cgpu_batch_sum(stream); /* also what threads hold */

            known = sum.launches == 0 || (!stream->unsure && stream->guessed == 0);
            end = sum.launches != 0 ? cgpu_larger(end, stream->begun_ns) : end;
            more += sum.work_ns;
        }
    }
    return known ? end + more : 0;
}

/*
 * Report that the program is about to rest, or return when to report it. The next container's gate
 * opens before the end of the work, because that container needs a while to begin.
 */
static uint64_t
poll_rest_at(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    uint64_t end = predict_rest(gpu);
    bool early = end > now + CGPU_REST_EARLY_NS;

    if (end != 0 && !early) {
        cgpu_drain_report_idle(gpu, CGPU_IDLE_SOON);
    }
    return early ? end - CGPU_REST_EARLY_NS : UINT64_MAX;
}

/*
 * While others wait for the end of this turn: report it if the container does not use the turn.
 * Returns when to check again.
 */
static uint64_t
poll_pressed(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    uint64_t held = gpu->ops->count_held(gpu), unmarked = count_unmarked(gpu, held);
    bool blocked = false;

    if (now - update_active(gpu, held, now) < CGPU_PACE_IDLE_NS) {
        gpu->blocked_ns = 0;
    } else if (unmarked != 0 || gpu->phase == CGPU_PHASE_UNCOUNTED) {
        blocked = !mark_all(gpu, now);
    } else if (!cgpu_gate_is_busy(gpu)) {
        cgpu_drain_report_idle(gpu, CGPU_IDLE_NOW);
    }
    return blocked ? poll_blocked_at(gpu, now)
                   : cgpu_lesser(poll_idle_at(gpu, unmarked, now), poll_rest_at(gpu, now));
}

uint64_t
cgpu_drain_poll(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    uint32_t word = cgpu_gate_word(gpu);

    cgpu_flight_harvest(gpu, now);
    cgpu_permits_renew(gpu, now);
    uint64_t next = UINT64_MAX;
    if (!cgpu_gate_is_open(word)) {
        next = poll_closed(gpu, now);
    } else if (cgpu_gate_state(word) == CGPU_GATE_PRESSED) {
        next = poll_pressed(gpu, now);
    } else {
        gpu->blocked_ns = 0;
    }
    if (cgpu_gate_is_open(word)) { /* threads may launch */
        cgpu_gate_set_phase(gpu, CGPU_PHASE_COUNTED, now);
    }
    return next;
}

void
cgpu_drain_finish(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    /* under a free gate, work may be uncounted; to wait for it is not worth the markers */
    if (gpu->phase != CGPU_PHASE_UNCOUNTED && is_active(gpu) && mark_all(gpu, now)) {
        cgpu_flight_harvest(gpu, now);
        if (!cgpu_gate_is_busy(gpu) && gpu->phase == CGPU_PHASE_MARKED) {
            report_quiet(gpu);
        }
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
            gpu->ops->release(stream);
        }
    }
}
