/* What a kernel is taken for that was never measured: see guess.h. */
#include "gate/guess.h"

#include "gate/gate_times.h"
#include "gate/pace_time.h"

enum { ENOUGH_TIMES = 8, MEASURED_PART = 64, FAR_TIMES = 4, FALL = 12, RISE = 5 };

uint64_t
cgpu_guess_next(struct cgpu_guess *guess)
{
    if (guess->fitted < ENOUGH_TIMES) {
        return 0;
    }
    guess->turn += 1;
    return guess->turn % MEASURED_PART != 0 ? guess->ns : 0;
}

/* Whether launches that take NS, not what they are taken for, keep others waiting or the GPU idle.
 */
static bool
is_far(const struct cgpu_guess *guess, uint64_t ns, uint64_t count)
{
    uint64_t less = lesser(ns, guess->ns), more = larger(ns, guess->ns);

    return more > FAR_TIMES * less && (more - less) * count > CGPU_PACE_FLIGHT_NS;
}

void
cgpu_guess_judge(struct cgpu_guess *guess, uint64_t ns, uint64_t count)
{
    bool far = guess->ns != 0 && is_far(guess, ns, count);

    if (guess->ns == 0) {
        guess->ns = larger(ns, 1);
    }
    guess->fitted = far ? 0 : (uint32_t)lesser(guess->fitted + 1, ENOUGH_TIMES);
    if (ns <= guess->ns) {
        guess->ns = larger(guess->ns - (guess->ns - ns) / FALL, 1);
    } else if (!far) {
        guess->ns += (lesser(ns, FAR_TIMES * guess->ns) - guess->ns + RISE - 1) / RISE;
    }
}
