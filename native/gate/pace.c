/* Pace: see pace.h. */
#include "gate/pace.h"

#include "clock.h"
#include "gate/estimate.h"

#define LONGEST_NS (UINT64_C(1) << 50) /* 13 days: sums of a few thousand do not overflow */

enum { LAG_RISE = 32, LAG_PART = 4, LEAN_PART = 16, LATE_PART = 6, DRAIN_PART = 16 };

void
cgpu_pace_mark(struct cgpu_pace *pace, struct cgpu_pace_batch *batch, uint64_t now)
{
    cgpu_estimate_finish(pace);
    batch->queued = pace->in_flight > 0;
    batch->begun = batch->start_ns < pace->passed_ns && batch->stream != pace->stream;
    batch->expected_ns = cgpu_lesser(batch->work_ns, LONGEST_NS);
    batch->marked_ns = now;
    if (pace->in_flight == 0) {
        uint64_t begun = batch->start_ns != 0 ? cgpu_lesser(batch->start_ns, now) : now;

        pace->since_ns = cgpu_larger(begun, pace->passed_ns);
    }
    if (batch->launches == 0) {
        pace->probed_ns = now;
    }
    pace->in_flight += 1;
    pace->uncertain += !batch->certain;
    pace->guessed += batch->guessed > 0;
    pace->left_ns = cgpu_lesser(cgpu_later(pace->left_ns, batch->expected_ns), LONGEST_NS);
    pace->longest_ns = cgpu_larger(pace->longest_ns, batch->expected_ns);
    pace->end_ns = cgpu_later(cgpu_larger(pace->end_ns, now), batch->expected_ns);
}

/*
 * When BATCH reaches the GPU, some time after its launch. None of it runs before, even if the GPU
 * is idle.
 */
static uint64_t
arrival_of(const struct cgpu_pace *pace, const struct cgpu_pace_batch *batch)
{
    return cgpu_later(batch->start_ns, pace->lag_ns);
}

/*
 * How long BATCH took at most; 0: not known. The lag is not fully subtracted from a short span: an
 * estimate that is too short would pile up work.
 */
static uint64_t
span_of(const struct cgpu_pace *pace, const struct cgpu_pace_batch *batch, uint64_t now)
{
    uint64_t least = cgpu_larger(batch->start_ns, pace->passed_ns);
    uint64_t begin = cgpu_larger(arrival_of(pace, batch), pace->passed_ns);
    uint64_t whole = cgpu_lesser(cgpu_since(now, least), LONGEST_NS);
    bool known = least != 0 && (batch->start_ns != 0 || batch->queued);

    return known ? cgpu_clip(cgpu_since(now, begin), whole / LAG_PART, whole) : 0;
}

/*
 * The GPU time of BATCH, which ended at END (0: its end or its beginning is unknown). If BATCH took
 * much longer than expected, others had the GPU meanwhile.
 */
static uint64_t
used_by(const struct cgpu_pace *pace, const struct cgpu_pace_batch *batch, uint64_t end)
{
    uint64_t took = cgpu_since(end, cgpu_larger(batch->start_ns, pace->passed_ns));
    uint64_t expected = cgpu_later(batch->expected_ns, pace->lag_ns);
    uint64_t most = cgpu_later(expected, cgpu_lesser(expected / 2, CGPU_PACE_EDGES_NS));

    return end != 0 && (took <= most || !batch->certain) ? took : expected;
}

/*
 * The assumed end of BATCH, which ended between the last check and this one: a little before the
 * expected end, so that the next check comes early. Only a check before the real end can find that
 * end; later checks would confirm an estimate that is too long.
 */
static uint64_t
end_of(const struct cgpu_pace *pace, const struct cgpu_pace_batch *batch, uint64_t now)
{
    uint64_t lean = cgpu_lesser(CGPU_PACE_LEAN_NS, batch->expected_ns / LEAN_PART);
    uint64_t expected_end = cgpu_later(pace->since_ns, batch->expected_ns - lean);

    return cgpu_lesser(cgpu_larger(expected_end, pace->polled_ns), now);
}

static void
remove_batch(struct cgpu_pace *pace, const struct cgpu_pace_batch *batch, uint64_t end, bool known)
{
    pace->in_flight -= pace->in_flight > 0;
    pace->probed_ns = batch->launches == 0 ? 0 : pace->probed_ns;
    pace->uncertain -= !batch->certain && pace->uncertain > 0;
    pace->guessed -= batch->guessed > 0 && pace->guessed > 0;
    pace->left_ns = pace->in_flight > 0 ? cgpu_since(pace->left_ns, batch->expected_ns) : 0;
    pace->longest_ns = cgpu_lesser(pace->longest_ns, pace->left_ns);
    pace->passed_ns = cgpu_larger(pace->passed_ns, end);
    pace->sharp = known;
    pace->blur_ns = cgpu_lesser(cgpu_since(end, pace->polled_ns), CGPU_PACE_USUAL_LAG_NS);
    pace->stream = batch->stream;
    pace->marked_ns = batch->marked_ns;
    pace->since_ns = pace->passed_ns;
    pace->end_ns = cgpu_later(pace->passed_ns, pace->left_ns);
}

/*
 * Learn the lag from the probe that passed at NOW. A sample is never too short. It is too long if a
 * thread had no processor, or if others had the GPU.
 */
static void
learn_lag(struct cgpu_pace *pace, uint64_t now)
{
    uint64_t looked = cgpu_larger(pace->polled_ns, pace->probed_ns);
    uint64_t lag = cgpu_since(cgpu_since(now, pace->probed_ns), CGPU_PACE_USUAL_LAG_NS);
    bool shows = pace->probed_ns != 0 && cgpu_since(now, looked) <= CGPU_PACE_SOON_NS;

    lag = cgpu_clip(lag, 1, CGPU_PACE_LAG_NS);
    if (shows && (pace->lag_ns == 0 || lag < pace->lag_ns)) {
        pace->lag_ns = lag;
    } else if (shows) {
        pace->lag_ns += (lag - pace->lag_ns) / LAG_RISE;
    }
}

void
cgpu_pace_pass(struct cgpu_pace *pace, const struct cgpu_pace_batch *batch, uint64_t now,
               enum cgpu_pace_seen seen)
{
    bool known = seen != CGPU_SEEN_LATE;
    uint64_t end = known || !batch->certain ? now : end_of(pace, batch, now);
    uint64_t span = span_of(pace, batch, end);
    bool beside =
        batch->begun != 0 || (batch->stream != pace->stream && batch->start_ns < pace->marked_ns);
    struct cgpu_pace_lesson lesson = {
        .key = batch->key,
        .launches = cgpu_lesser(batch->launches, LONGEST_NS),
        .span_ns = span,
        .blur_ns = arrival_of(pace, batch) < pace->passed_ns ? pace->blur_ns : 0,
        .at_ns = now,
        .there = true,
        .exact = batch->queued != 0 && arrival_of(pace, batch) <= pace->passed_ns,
        .seen = seen,
        .beside = beside,
        .cut = beside || (arrival_of(pace, batch) < pace->passed_ns && pace->sharp == 0),
    };

    if (batch->launches == 0) {
        learn_lag(pace, now);
    }
    if (pace->spans) {
        pace->busy_ns += known ? span : cgpu_lesser(span, batch->expected_ns);
    } else if (batch->counted == 0) {
        pace->busy_ns += used_by(pace, batch, span > 0 && (known || batch->certain) ? end : 0);
    }
    if (!beside || pace->chain_launches > 0) { /* else it ran before the chain began */
        cgpu_estimate_chain(pace, &lesson);
    }
    if (batch->guessed > 0 && span > 0) {
        uint64_t known_ns = batch->work_ns - cgpu_lesser(batch->guess_ns, batch->work_ns);

        cgpu_guess_learn(&pace->guess, cgpu_since(span, known_ns) / batch->guessed, batch->guessed);
    }
    remove_batch(pace, batch, end, known);
    cgpu_estimate_take(pace, &lesson);
}

void
cgpu_pace_leave(struct cgpu_pace *pace, const struct cgpu_pace_batch *batch, uint64_t now)
{
    cgpu_estimate_finish(pace);
    pace->busy_ns += pace->spans || batch->counted != 0 ? 0 : batch->expected_ns;
    remove_batch(pace, batch, now, false);
    pace->chain_key = 0;
    pace->chain_launches = 0;
    pace->chain_ns = 0;
}

void
cgpu_pace_return(struct cgpu_pace *pace, struct cgpu_pace_batch *batch, uint64_t now)
{
    cgpu_pace_mark(pace, batch, now);
    batch->start_ns = 0;
    batch->queued = 0;
    batch->counted = 1;
    pace->probed_ns = batch->launches == 0 ? 0 : pace->probed_ns;
}

void
cgpu_pace_note_poll(struct cgpu_pace *pace, uint64_t now)
{
    pace->polled_ns = now;
}

/* ---- room ---- */

/* How long to wait before markers are checked again, ELAPSED after the last one passed. */
static uint64_t
poll_delay(const struct cgpu_pace *pace, uint64_t elapsed, uint64_t left, uint64_t flight)
{
    uint64_t wait;

    if (pace->probed_ns != 0) {
        wait = 0; /* as soon as may be */
    } else if (pace->uncertain > 0) {
        wait = elapsed / LATE_PART; /* nobody knows how long: check rarer as it takes longer */
    } else if (elapsed >= pace->longest_ns) { /* overdue: soon, to see the end when it comes */
        wait = cgpu_lesser(elapsed - pace->longest_ns, elapsed / LATE_PART);
    } else { /* at most until the batch that runs ends, however much work is left */
        wait = cgpu_lesser(pace->longest_ns - elapsed, left > flight ? left - flight : UINT64_MAX);
    }
    return wait;
}

uint64_t
cgpu_pace_room(const struct cgpu_pace *pace, uint64_t flight_ns, uint64_t now)
{
    uint64_t elapsed = cgpu_since(now, pace->since_ns);
    uint64_t left = cgpu_since(pace->left_ns, cgpu_lesser(elapsed, pace->longest_ns));
    /* ends are seen late by a part of the lag, and launches begin late by the rest */
    uint64_t flight = flight_ns + pace->lag_ns;
    bool full = pace->in_flight >= CGPU_PACE_BATCHES || pace->uncertain != 0 || left > flight;
    uint64_t wait = cgpu_clip(poll_delay(pace, elapsed, left, flight), CGPU_PACE_SOONEST_NS,
                              CGPU_PACE_LATEST_NS);

    return pace->in_flight != 0 && full ? cgpu_later(now, wait) : 0;
}

uint64_t
cgpu_pace_drain_poll_at(const struct cgpu_pace *pace, uint64_t closed_ns, uint64_t now)
{
    bool lone = pace->longest_ns >= CGPU_PACE_LONE_NS;
    uint64_t before = lone ? CGPU_PACE_EDGES_NS : CGPU_PACE_SOONEST_NS;
    uint64_t left = cgpu_since(pace->end_ns, now);
    uint64_t wait = cgpu_since(now, closed_ns) / DRAIN_PART;

    if (pace->uncertain == 0 && left > before) {
        wait = left - before;
    } else if (pace->uncertain == 0 && lone) {
        wait = left > 0 ? CGPU_PACE_WATCH_NS : cgpu_since(now, pace->end_ns) / LATE_PART;
    }
    return cgpu_later(now, cgpu_clip(wait, CGPU_PACE_SOONEST_NS, CGPU_PACE_SLOWEST_NS));
}
