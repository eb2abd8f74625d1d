/* Turns by the clock alone: see fallback.h. */
#include "gate/fallback.h"

#include "clock.h"
#include "policy/policy.h"

#define PPM_NS (CGPU_FALLBACK_PERIOD_NS / CGPU_WHOLE_PPM)

_Static_assert(CGPU_FALLBACK_PERIOD_NS % CGPU_WHOLE_PPM == 0, "parts are exact");

enum cgpu_gate
cgpu_fallback_gate(uint64_t now, uint32_t share_ppm, uint32_t offset_ppm, uint64_t *until)
{
    uint64_t begin = offset_ppm % CGPU_WHOLE_PPM * PPM_NS;
    /* time since the part last began; it may have begun in the period before */
    uint64_t since =
        (now % CGPU_FALLBACK_PERIOD_NS + CGPU_FALLBACK_PERIOD_NS - begin) % CGPU_FALLBACK_PERIOD_NS;
    uint64_t length = share_ppm * PPM_NS;

    if (share_ppm == 0 || share_ppm >= CGPU_WHOLE_PPM) {
        *until = UINT64_MAX;
        return share_ppm == 0 ? CGPU_GATE_CLOSED : CGPU_GATE_OPEN;
    }
    if (since < length) {
        *until = cgpu_later(now, length - since);
        return CGPU_GATE_OPEN;
    }
    *until = cgpu_later(now, CGPU_FALLBACK_PERIOD_NS - since);
    return CGPU_GATE_CLOSED;
}

int
cgpu_fallback_needed(uint64_t heartbeat_ns, uint64_t now)
{
    /* a heartbeat in the future is from another clock, unless it came just after NOW was read */
    uint64_t age = now > heartbeat_ns ? now - heartbeat_ns : heartbeat_ns - now;

    return heartbeat_ns == 0 || age > CGPU_FALLBACK_AFTER_NS;
}
