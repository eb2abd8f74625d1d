/* Ceilings: a bucket that fills with time and empties as its owner is charged. */
#include "arbiter/arbiter_state.h"

#define LONGEST_NS (3600000 * CGPU_MS) /* products of it fit into 64 bits */

static int64_t
part(uint64_t ns, uint64_t rate_ppm)
{
    return (int64_t)(ns * rate_ppm / CGPU_WHOLE_PPM);
}

/* The credit at which a run begins: what the rest of a cycle earns, or more for a useful run. */
static int64_t
enough(const struct cgpu_bucket *bucket)
{
    uint64_t rest = CGPU_CYCLE_NS / CGPU_WHOLE_PPM * (CGPU_WHOLE_PPM - bucket->rate_ppm);
    uint64_t run = cgpu_larger(CGPU_RUN_NS, CGPU_RUN_LAGS * bucket->lag_ns);

    return (int64_t)cgpu_larger((uint64_t)part(rest, bucket->rate_ppm), run);
}

/*
 * Add the credit for NS. A container that wants the GPU and may not have it saves up. One that does
 * not want it gains only what it needs to run again.
 */
void
cgpu_bucket_refill(struct cgpu_bucket *bucket, uint64_t ns, bool wanted)
{
    int64_t full = wanted ? (int64_t)CGPU_DEPTH_NS : enough(bucket);
    int64_t credit = bucket->credit_ns + part(cgpu_lesser(ns, LONGEST_NS), bucket->rate_ppm);

    if (bucket->credit_ns < full) {
        bucket->credit_ns = credit < full ? credit : full;
    }
    bucket->idle_credit_ns =
        cgpu_lesser(bucket->idle_credit_ns + ns / CGPU_IDLE_CREDIT_PART, CGPU_IDLE_CREDIT_NS);
}

/* Drop what was saved up: idleness brings no credit. */
void
cgpu_bucket_forget(struct cgpu_bucket *bucket)
{
    int64_t most = enough(bucket);

    bucket->credit_ns = bucket->credit_ns < most ? bucket->credit_ns : most;
}

void
cgpu_bucket_take(struct cgpu_bucket *bucket, uint64_t ns)
{
    int64_t credit = bucket->credit_ns - (int64_t)cgpu_lesser(ns, LONGEST_NS);
    int64_t least = -(int64_t)CGPU_DEBT_NS;

    bucket->credit_ns = credit > least ? credit : least;
}

/* The credit that work in flight will use up after the gate has closed. */
static int64_t
promised(const struct cgpu_bucket *bucket)
{
    return part(CGPU_FLIGHT_NS + bucket->lag_ns, CGPU_WHOLE_PPM - bucket->rate_ppm);
}

/*
 * Change the rate. What was saved up at another rate would exceed this one, so it is dropped; debt
 * stays.
 */
static void
change_rate(struct cgpu_bucket *bucket, uint32_t rate_ppm)
{
    bool limited = bucket->rate_ppm != 0;

    bucket->rate_ppm = rate_ppm;
    if (limited) {
        cgpu_bucket_forget(bucket);
    } else {
        bucket->credit_ns = enough(bucket);
    }
}

void
cgpu_bucket_update(struct cgpu_bucket *bucket, uint32_t rate_ppm)
{
    if (bucket->rate_ppm != rate_ppm) {
        change_rate(bucket, rate_ppm);
    }
    if (rate_ppm == 0 || bucket->credit_ns >= enough(bucket)) {
        bucket->dry = false;
    } else if (bucket->credit_ns <= promised(bucket)) {
        bucket->dry = true;
    }
}

uint64_t
cgpu_bucket_rest(const struct cgpu_bucket *bucket)
{
    int64_t missing = enough(bucket) - bucket->credit_ns;

    return missing <= 0 ? 0 : (uint64_t)missing * CGPU_WHOLE_PPM / bucket->rate_ppm + 1;
}

uint64_t
cgpu_bucket_lasts(const struct cgpu_bucket *bucket)
{
    uint64_t emptied_ppm = CGPU_WHOLE_PPM - bucket->rate_ppm;
    int64_t left = bucket->credit_ns - promised(bucket);

    return left <= 0 ? 0 : (uint64_t)left * CGPU_WHOLE_PPM / emptied_ppm;
}
