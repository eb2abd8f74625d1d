/* How much may be in flight, and when to check again: see pace.h. */
#include "gate/pace.h"
#include "gate/pace_time.h"

enum { LATE_PART = 6, DRAIN_PART = 16 };

/* How long to leave the markers alone, ELAPSED after the last one passed. */
static uint64_t
wait_ns(const struct cgpu_pace *pace, uint64_t elapsed, uint64_t left, uint64_t flight)
{
    if (pace->probed_ns != 0) {
        return 0; /* as soon as may be */
    }
    if (pace->uncertain > 0) {
        return elapsed / LATE_PART; /* nobody knows how long: look rarer as it takes longer */
    }
    if (elapsed >= pace->longest_ns) { /* overdue: soon, to see the end when it comes */
        return lesser(elapsed - pace->longest_ns, elapsed / LATE_PART);
    }
    if (left <= flight) {
        return pace->longest_ns - elapsed;
    }
    /* not beyond the end of the batch that runs, whatever the others take */
    return lesser(pace->longest_ns - elapsed, left - flight);
}

uint64_t
cgpu_pace_room(const struct cgpu_pace *pace, uint64_t flight_ns, uint64_t now)
{
    uint64_t elapsed = since(now, pace->since_ns);
    uint64_t left = since(pace->left_ns, lesser(elapsed, pace->longest_ns));
    /* what is seen to have ended has ended a while ago, and what is launched begins later */
    uint64_t flight = flight_ns + pace->lag_ns;
    bool full = pace->in_flight >= CGPU_PACE_BATCHES;

    if (pace->in_flight == 0 || (left <= flight && pace->uncertain == 0 && !full)) {
        return 0;
    }
    return later(
        now, clip(wait_ns(pace, elapsed, left, flight), CGPU_PACE_SOONEST_NS, CGPU_PACE_LATEST_NS));
}

uint64_t
cgpu_pace_drain_look(const struct cgpu_pace *pace, uint64_t closed_ns, uint64_t now)
{
    bool lone = pace->longest_ns >= CGPU_PACE_LONE_NS;
    uint64_t before = lone ? CGPU_PACE_EDGES_NS : CGPU_PACE_SOONEST_NS;
    uint64_t left = since(pace->end_ns, now);
    uint64_t wait = since(now, closed_ns) / DRAIN_PART;

    if (pace->uncertain == 0 && left > before) {
        wait = left - before;
    } else if (pace->uncertain == 0 && lone) {
        wait = left > 0 ? CGPU_PACE_WATCH_NS : since(now, pace->end_ns) / LATE_PART;
    }
    return later(now, clip(wait, CGPU_PACE_SOONEST_NS, CGPU_PACE_SLOWEST_NS));
}
