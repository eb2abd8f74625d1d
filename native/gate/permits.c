/* Permits: see permits.h. */
#include "gate/permits.h"

#include "clock.h"
#include "gate/flight.h"

#define LONGEST_NS (UINT64_C(1) << 32) /* 4 s: a permit is not taken for longer */

static bool
has_work(const struct cgpu_gate_gpu *gpu)
{
    return gpu->pace.in_flight != 0 || gpu->unmarked_ns != 0;
}

/* relaxed: a hint */
static bool
others_queue(const struct cgpu_gate_gpu *gpu, uint64_t now)
{
    uint64_t queued = __atomic_load_n(&gpu->sums->queued_ns, __ATOMIC_RELAXED);

    return queued != 0 && cgpu_since(now, queued) / 2 < CGPU_PERMIT_WAIT_NS;
}

/*
 * When a permit that is taken or renewed at NOW expires. After the lease, the process also has the
 * time of its work in flight once for each permit: the work of another process with a permit may
 * run first.
 */
static uint64_t
lease_end(const struct cgpu_gate_gpu *gpu, uint64_t now)
{
    uint64_t left = cgpu_lesser(gpu->pace.left_ns + gpu->unmarked_ns, LONGEST_NS / 4);

    return now + CGPU_PERMIT_LEASE_NS + CGPU_LEDGER_PERMITS * left;
}

/*
 * Change PERMIT from FROM to TO. False: another process has changed it meanwhile. acq_rel: a permit
 * protects no data, so only the order of two changes matters.
 */
static bool
change_permit(struct cgpu_gate_gpu *gpu, uint32_t permit, uint64_t from, uint64_t to)
{
    bool done = __atomic_compare_exchange_n(&gpu->sums->permits[permit], &from, to, false,
                                            __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);

    if (done) {
        gpu->permit = permit;
        gpu->permit_ns = to;
    }
    return done;
}

/* Renew the process's permit. False: it has none, or lost it. */
static bool
keep_permit(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    bool kept =
        gpu->permit_ns != 0 && change_permit(gpu, gpu->permit, gpu->permit_ns, lease_end(gpu, now));

    gpu->permit_ns = kept ? gpu->permit_ns : 0;
    return kept;
}

static bool
take_permit(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    bool taken = false;

    for (uint32_t i = 0; i < CGPU_LEDGER_PERMITS && !taken; i++) {
        uint64_t end = __atomic_load_n(&gpu->sums->permits[i], __ATOMIC_RELAXED);

        taken = (end <= now || end - now > LONGEST_NS) &&
                change_permit(gpu, i, end, lease_end(gpu, now));
    }
    if (taken) {
        gpu->permit_used_ns = 0;
        gpu->queued_ns = gpu->finish_ns = 0;
    }
    return taken;
}

/* Give the permit back, and wake the process that has queued longest. */
static void
give_back(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    gpu->finish_ns = 0;
    bool given = change_permit(gpu, gpu->permit, gpu->permit_ns, 0);
    uint64_t queued = __atomic_load_n(&gpu->sums->queued_ns, __ATOMIC_RELAXED);

    gpu->permit_ns = 0;
    if (given) {
        __atomic_add_fetch(&gpu->sums->freed, 1, __ATOMIC_RELEASE);
        if (gpu->ops->wake(gpu)) {
            gpu->gave_ns = now;
        } else { /* nobody queues, unless somebody has just begun */
            __atomic_compare_exchange_n(&gpu->sums->queued_ns, &queued, 0, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED);
        }
    }
}

/*
 * When the first permit expires. Its process may have ended, or the gate of its process may have
 * changed.
 */
static uint64_t
first_expiry(const struct cgpu_gate_gpu *gpu)
{
    uint64_t first = UINT64_MAX;

    for (uint32_t i = 0; i < CGPU_LEDGER_PERMITS; i++) {
        first = cgpu_lesser(first, __atomic_load_n(&gpu->sums->permits[i], __ATOMIC_RELAXED));
    }
    return first;
}

static uint64_t
join_queue(struct cgpu_gate_gpu *gpu, uint32_t freed, uint64_t now)
{
    gpu->queued_ns = gpu->queued_ns != 0 && freed == gpu->freed ? gpu->queued_ns : now;
    gpu->freed = freed;
    __atomic_store_n(&gpu->sums->queued_ns, now, __ATOMIC_RELAXED);
    return cgpu_clip(first_expiry(gpu), now + CGPU_PERMIT_LEASE_NS, now + CGPU_PERMIT_LOOK_NS);
}

/* End all batches by markers, which show when the work has ended. Returns when to check them. */
static uint64_t
finish_work(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    for (uint32_t i = 0; i < *gpu->stream_bound && gpu->unmarked_ns != 0; i++) {
        struct cgpu_stream *stream = &gpu->streams[i];

        if (stream->gpu == gpu && stream->unmarked_ns != 0 && !cgpu_batch_is_deferred(stream) &&
            !cgpu_stall_is_in_call(stream, now)) {
            cgpu_flight_cut(stream, now);
        }
    }
    return cgpu_larger(cgpu_pace_room(&gpu->pace, 0, now), now + CGPU_PACE_SOONEST_NS);
}

/*
 * The process has no permit: take one, or queue for one. Returns 0 if the process may launch, else
 * when to ask again.
 */
static uint64_t
take_or_queue(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    /*
     * acquire: read before the permits; if one is given back meanwhile, the process does not sleep
     */
    uint32_t freed = __atomic_load_n(&gpu->sums->freed, __ATOMIC_ACQUIRE);
    bool queues = gpu->queued_ns != 0;
    /* a process that has just given one back queues behind the others */
    bool lately = gpu->gave_ns != 0 && cgpu_since(now, gpu->gave_ns) < CGPU_PERMIT_LEASE_NS;
    /* then it launches without one, because another process's work may wait for this launch */
    bool waited =
        queues && freed == gpu->freed && cgpu_since(now, gpu->queued_ns) >= CGPU_PERMIT_WAIT_NS;
    bool goes = ((queues || !lately) && take_permit(gpu, now)) || waited;

    return goes ? 0 : join_queue(gpu, freed, now);
}

uint64_t
cgpu_permits_take(struct cgpu_gate_gpu *gpu, uint32_t word, uint64_t now)
{
    /* under the soft policy all programs run at once, so nobody waits for what is in flight */
    bool needs =
        cgpu_gate_state(word) == CGPU_GATE_PRESSED && !cgpu_gate_is(gpu, CGPU_METERED_ROUGHLY);
    bool has = needs && keep_permit(gpu, now);
    bool ends = has && gpu->permit_used_ns >= CGPU_PERMIT_WORK_NS && others_queue(gpu, now);
    uint64_t again = 0;

    gpu->queued_ns = needs ? gpu->queued_ns : 0;
    gpu->finish_ns = ends && gpu->finish_ns == 0 ? now : gpu->finish_ns;
    if (ends && has_work(gpu)) { /* it may wait for this launch */
        again = cgpu_since(now, gpu->finish_ns) < CGPU_PERMIT_WAIT_NS ? finish_work(gpu, now) : 0;
    } else if (needs && (!has || ends)) {
        if (ends) {
            give_back(gpu, now);
        }
        again = take_or_queue(gpu, now);
    }
    return again;
}

void
cgpu_permits_renew(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    bool has = gpu->permit_ns != 0, works = has_work(gpu);

    if (has && works) {
        keep_permit(gpu, now);
    } else if (has && others_queue(gpu, now)) {
        give_back(gpu, now);
    }
}
