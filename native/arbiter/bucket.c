/* Ceilings: a bucket that fills with time and empties as its owner is charged. */
#include "arbiter_state.h"

#define LONGEST_NS (3600000 * CGPU_MS) /* products of it fit into 64 bits */

static int64_t
part(uint64_t ns, uint64_t rate_ppm)
{
    return (int64_t)(ns * rate_ppm / CGPU_WHOLE_PPM);
}

/* Credit at which running again is worth it: then it runs and rests within a cycle. */
int64_t
cgpu_bucket_enough(const struct cgpu_bucket *bucket, uint32_t rate_ppm)
{
    uint64_t rest = CGPU_CYCLE_NS / CGPU_WHOLE_PPM * (CGPU_WHOLE_PPM - rate_ppm);
    uint64_t run = cgpu_larger(CGPU_RUN_NS, CGPU_RUN_LAGS * bucket->lag_ns);

    return (int64_t)cgpu_larger((uint64_t)part(rest, rate_ppm), run);
}

void
cgpu_bucket_reset(struct cgpu_bucket *bucket, uint32_t rate_ppm)
{
    bucket->credit_ns = cgpu_bucket_enough(bucket, rate_ppm);
    bucket->dry = false;
}

/* Whoever wants and may not saves up; whoever does not want gains no more than it needs. */
void
cgpu_bucket_fill(struct cgpu_bucket *bucket, uint32_t rate_ppm, uint64_t ns, bool wanted)
{
    int64_t full = wanted ? (int64_t)CGPU_DEPTH_NS : cgpu_bucket_enough(bucket, rate_ppm);
    int64_t credit = bucket->credit_ns + part(cgpu_lesser(ns, LONGEST_NS), rate_ppm);

    if (bucket->credit_ns < full) {
        bucket->credit_ns = credit < full ? credit : full;
    }
}

/* Idleness brings no credit. */
void
cgpu_bucket_forget(struct cgpu_bucket *bucket, uint32_t rate_ppm)
{
    int64_t enough = cgpu_bucket_enough(bucket, rate_ppm);

    bucket->credit_ns = bucket->credit_ns < enough ? bucket->credit_ns : enough;
}

void
cgpu_bucket_take(struct cgpu_bucket *bucket, uint64_t ns)
{
    int64_t credit = bucket->credit_ns - (int64_t)cgpu_lesser(ns, LONGEST_NS);
    int64_t least = -(int64_t)CGPU_DEBT_NS;

    bucket->credit_ns = credit > least ? credit : least;
}

/* What is used up by work in flight once the gate closes. */
static int64_t
promised(const struct cgpu_bucket *bucket, uint32_t rate_ppm)
{
    uint64_t flight = CGPU_FLIGHT_NS + bucket->lag_ns;

    return part(flight, CGPU_WHOLE_PPM - cgpu_lesser(rate_ppm, CGPU_WHOLE_PPM));
}

void
cgpu_bucket_judge(struct cgpu_bucket *bucket, uint32_t rate_ppm)
{
    if (bucket->credit_ns <= promised(bucket, rate_ppm)) {
        bucket->dry = true;
    } else if (bucket->credit_ns >= cgpu_bucket_enough(bucket, rate_ppm)) {
        bucket->dry = false;
    }
}

uint64_t
cgpu_bucket_rest(const struct cgpu_bucket *bucket, uint32_t rate_ppm)
{
    int64_t missing = cgpu_bucket_enough(bucket, rate_ppm) - bucket->credit_ns;

    if (missing <= 0 || rate_ppm == 0) {
        return 0;
    }
    return (uint64_t)missing * CGPU_WHOLE_PPM / rate_ppm + 1;
}

uint64_t
cgpu_bucket_lasts(const struct cgpu_bucket *bucket, uint32_t rate_ppm)
{
    uint64_t emptied_ppm = cgpu_larger(CGPU_WHOLE_PPM - cgpu_lesser(rate_ppm, CGPU_WHOLE_PPM), 1);
    int64_t left = bucket->credit_ns - promised(bucket, rate_ppm);

    return left <= 0 ? 0 : (uint64_t)left * CGPU_WHOLE_PPM / emptied_ppm;
}
