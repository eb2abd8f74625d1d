/* How much may be in flight, and when to look at it again: see pace.h. */
#include "pace.h"
#include "pace_time.h"

#define SOONEST_NS UINT64_C(20000)
#define LATEST_NS  UINT64_C(1000000)

enum { LATE_PART = 4 };

/* How long to leave the markers alone, ELAPSED after the last was passed. */
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
    return later(now, clip(wait_ns(pace, elapsed, left, flight), SOONEST_NS, LATEST_NS));
}
