/* Permits: see permits.h. */
#include "gate/permits.h"

#include "gate/apart.h"
#include "gate/flight.h"
#include "gate/pace_time.h"

#define LONGEST_NS (UINT64_C(1) << 32) /* 4 s: a permit is not taken for longer */

static bool
has_work(const struct cgpu_gate_gpu *gpu)
{
    return gpu->pace.in_flight != 0 || gpu->open_ns != 0;
}

/* relaxed: a hint */
static bool
others_queue(const struct cgpu_gate_gpu *gpu, uint64_t now)
{
    uint64_t queued = __atomic_load_n(&gpu->sums->queued_ns, __ATOMIC_RELAXED);

    return queued != 0 && since(now, queued) / 2 < CGPU_PERMIT_WAIT_NS;
}

/* Until when a permit is taken at NOW: what is in flight may run behind another's work. */
static uint64_t
until(const struct cgpu_gate_gpu *gpu, uint64_t now)
{
    uint64_t left = lesser(gpu->pace.left_ns + gpu->open_ns, LONGEST_NS / 4);

    return now + CGPU_PERMIT_LEASE_NS + CGPU_LEDGER_PERMITS * left;
}

/* acq_rel: a permit protects no data; only the order of two changes matters. */
static bool
change(struct cgpu_gate_gpu *gpu, uint32_t permit, uint64_t from, uint64_t to)
{
    if (!__atomic_compare_exchange_n(&gpu->sums->permits[permit], &from, to, false,
                                     __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
        return false;
    }
    gpu->permit = permit;
    gpu->permit_ns = to;
    return true;
}

/* Whether this process still has its permit. */
static bool
keep(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    if (gpu->permit_ns == 0 || !change(gpu, gpu->permit, gpu->permit_ns, until(gpu, now))) {
        gpu->permit_ns = 0;
        return false;
    }
    return true;
}

static bool
take(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    for (uint32_t i = 0; i < CGPU_LEDGER_PERMITS; i++) {
        uint64_t taken = __atomic_load_n(&gpu->sums->permits[i], __ATOMIC_RELAXED);
        bool is_free = taken <= now || taken - now > LONGEST_NS;

        if (is_free && change(gpu, i, taken, until(gpu, now))) {
            gpu->permit_used_ns = 0;
            gpu->queued_ns = gpu->finish_ns = 0;
            return true;
        }
    }
    return false;
}

/* Give the permit back, and wake who has queued longest. */
static void
give_back(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    gpu->finish_ns = 0;
    if (!change(gpu, gpu->permit, gpu->permit_ns, 0)) {
        gpu->permit_ns = 0;
        return;
    }
    uint64_t queued = __atomic_load_n(&gpu->sums->queued_ns, __ATOMIC_RELAXED);

    __atomic_add_fetch(&gpu->sums->freed, 1, __ATOMIC_RELEASE);
    if (gpu->outside->wake(gpu)) {
        gpu->gave_ns = now;
    } else { /* nobody queues, unless somebody has just begun */
        __atomic_compare_exchange_n(&gpu->sums->queued_ns, &queued, 0, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED);
    }
}

/* When the next permit expires: its process may have ended, or the gate have changed. */
static uint64_t
first_free(const struct cgpu_gate_gpu *gpu)
{
    uint64_t first = UINT64_MAX;

    for (uint32_t i = 0; i < CGPU_LEDGER_PERMITS; i++) {
        first = lesser(first, __atomic_load_n(&gpu->sums->permits[i], __ATOMIC_RELAXED));
    }
    return first;
}

static uint64_t
queue(struct cgpu_gate_gpu *gpu, uint32_t freed, uint64_t now)
{
    gpu->queued_ns = gpu->queued_ns != 0 && freed == gpu->freed ? gpu->queued_ns : now;
    gpu->freed = freed;
    __atomic_store_n(&gpu->sums->queued_ns, now, __ATOMIC_RELAXED);
    return clip(first_free(gpu), now + CGPU_PERMIT_LEASE_NS, now + CGPU_PERMIT_LOOK_NS);
}

/* End all batches, so that it is seen when the work has ended. Returns when to check. */
static uint64_t
finish(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    for (uint32_t i = 0; i < *gpu->stream_bound && gpu->open_ns != 0; i++) {
        struct cgpu_stream *stream = &gpu->streams[i];

        if (stream->gpu == gpu && stream->open_ns != 0 && !cgpu_flight_is_enough(stream) &&
            !cgpu_apart_is_called(stream, now)) {
            cgpu_flight_cut(stream, now);
        }
    }
    return larger(cgpu_pace_room(&gpu->pace, 0, now), now + CGPU_PACE_SOONEST_NS);
}

uint64_t
cgpu_permits_take(struct cgpu_gate_gpu *gpu, uint32_t word, uint64_t now)
{
    /* programs run at once under the soft policy: nobody waits for what is in flight */
    if (cgpu_gate_state(word) != CGPU_GATE_PRESSED || cgpu_gate_is(gpu, CGPU_METERED_ROUGHLY)) {
        gpu->queued_ns = 0;
        return 0;
    }
    if (keep(gpu, now)) {
        if (gpu->permit_used_ns < CGPU_PERMIT_WORK_NS || !others_queue(gpu, now)) {
            return 0;
        }
        gpu->finish_ns = gpu->finish_ns != 0 ? gpu->finish_ns : now;
        if (has_work(gpu)) { /* it may wait for this launch */
            return since(now, gpu->finish_ns) < CGPU_PERMIT_WAIT_NS ? finish(gpu, now) : 0;
        }
        give_back(gpu, now);
    }
    /* acquire: before the permits, so that one that is given back meanwhile ends the wait at once
     */
    uint32_t freed = __atomic_load_n(&gpu->sums->freed, __ATOMIC_ACQUIRE);
    /* who has just given one back goes behind those who queue */
    bool lately = gpu->gave_ns != 0 && since(now, gpu->gave_ns) < CGPU_PERMIT_LEASE_NS;
    if ((gpu->queued_ns != 0 || !lately) && take(gpu, now)) {
        return 0;
    }
    if (gpu->queued_ns != 0 && freed == gpu->freed &&
        since(now, gpu->queued_ns) >= CGPU_PERMIT_WAIT_NS) {
        return 0; /* without one: somebody's work may wait for this launch */
    }
    return queue(gpu, freed, now);
}

void
cgpu_permits_look(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    if (gpu->permit_ns == 0 || (has_work(gpu) && keep(gpu, now))) {
        return;
    }
    if (!has_work(gpu) && others_queue(gpu, now)) {
        give_back(gpu, now);
    }
}
