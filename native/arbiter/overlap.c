/*
 * A container that comes back from a rest while a long kernel of another one runs.
 *
 * Nobody can stop the kernel, but GPUs divide their time between programs: the container is let in
 * beside it, and the two share the charge. That is of no use if the GPU runs kernels in order of
 * arrival. Nor is it if the container synchronises each kernel, and so gets one kernel for each
 * time slice of the other's. So its time beside the kernel is compared with what it usually needs.
 * If it was not worth it, the container waits for the ends of kernels in its next turns, in twice
 * as many each time.
 */
#include "arbiter/arbiter_state.h"

/*
 * How much longer a request may take because the other container's kernel has a time slice. Without
 * this allowance short requests would never be let in.
 */
#define SLACK_NS UINT64_C(500000)

enum { LEFT_TIMES = 2, FAILURES = 7, USUAL_PART = 4, TURNS_APART = 32 };

static bool
returns(const struct cgpu_tenant *tenant)
{
    return tenant->yielded && tenant->usual_ns != 0 && tenant->apart_turns == 0 && !tenant->several;
}

/*
 * From when on NEXT need not wait for DRAINING. UINT64_MAX: it waits for the end, for instance
 * because DRAINING reports that its end is near.
 */
uint64_t
cgpu_overlap_from(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *draining, int next,
                  uint64_t now)
{
    const struct cgpu_demand *demand = &draining->demand;
    uint64_t from = draining->closed_ns + CGPU_OVERLAP_AFTER_NS;
    uint64_t near = cgpu_larger(from, now) + LEFT_TIMES * CGPU_OVERLAP_AFTER_NS;

    if (next < 0 || !returns(&arbiter->tenants[next]) || draining->several || draining->yielded ||
        draining->unscheduled) {
        return UINT64_MAX;
    }
    if (draining->state == CGPU_STATE_OVERLAPPED) { /* it takes longer than it expects to */
        return from;
    }
    return demand->certain && demand->end_ns < near ? UINT64_MAX : from;
}

bool
cgpu_overlap_may(const struct cgpu_arbiter *arbiter, int next, uint64_t now)
{
    uint64_t early = cgpu_turn_early(arbiter, next);

    cgpu_each_tenant(other, arbiter) {
        if (cgpu_tenant_index(arbiter, other) != next && cgpu_tenant_goes_on(other) &&
            !cgpu_turn_ends_soon(other, early, now) &&
            now < cgpu_overlap_from(arbiter, other, next, now)) {
            return false;
        }
    }
    return true;
}

void
cgpu_overlap_begin(struct cgpu_arbiter *arbiter, int next, uint64_t now)
{
    struct cgpu_tenant *tenant = &arbiter->tenants[next];
    uint64_t early = cgpu_turn_early(arbiter, next);
    bool beside = false;

    cgpu_each_tenant(other, arbiter) {
        if (cgpu_tenant_index(arbiter, other) != next && cgpu_tenant_goes_on(other) &&
            !cgpu_turn_ends_soon(other, early, now)) {
            cgpu_state_change(arbiter, other, CGPU_STATE_OVERLAPPED, now);
            beside = true;
        }
    }
    tenant->apart_turns -= !beside && tenant->apart_turns > 0;
    tenant->in_overlap = beside;
    tenant->evaluated = false;
    tenant->alone_ns = 0;
}

bool
cgpu_overlap_any(const struct cgpu_arbiter *arbiter)
{
    cgpu_each_tenant(tenant, arbiter) {
        if (tenant->state == CGPU_STATE_OVERLAPPED) {
            return true;
        }
    }
    return false;
}

/*
 * Decide whether it was worth it to let TENANT in beside a kernel. It was if TENANT has nothing
 * more to do (LEFT), and had at least three eighths of the time beside the kernel.
 */
static void
evaluate(struct cgpu_tenant *tenant, bool left, uint64_t now)
{
    uint64_t alone = tenant->alone_ns != 0 ? now - tenant->alone_ns : 0;
    uint64_t took = now - tenant->opened_ns, beside = took - alone;

    if (left && took <= tenant->usual_ns + SLACK_NS + beside * 5 / 8) {
        tenant->failures = 0;
        tenant->apart_turns = tenant->turns % TURNS_APART == 0;
    } else {
        tenant->failures += tenant->failures < FAILURES;
        tenant->apart_turns = 1U << tenant->failures;
    }
}

/* Note that a burst TOOK so long, or at least so long if it goes on in another turn (not ENDED). */
static void
note_burst(struct cgpu_tenant *tenant, bool ended, uint64_t took)
{
    uint64_t usual = tenant->usual_ns;

    if (ended && usual == 0) {
        tenant->usual_ns = took;
    } else if (ended || (usual != 0 && took > usual)) {
        tenant->usual_ns = usual - usual / USUAL_PART + took / USUAL_PART;
    }
}

void
cgpu_overlap_end(struct cgpu_arbiter *arbiter, bool left, uint64_t now)
{
    struct cgpu_tenant *tenant = &arbiter->tenants[arbiter->holder];

    if (tenant->evaluated) {
        return;
    }
    if (tenant->in_overlap) {
        evaluate(tenant, left, now);
    } else {
        note_burst(tenant, left, now - tenant->opened_ns);
    }
    tenant->in_overlap = false;
    tenant->evaluated = true;
}

void
cgpu_overlap_observe(struct cgpu_arbiter *arbiter, uint64_t now)
{
    struct cgpu_tenant *holder = arbiter->holder >= 0 ? &arbiter->tenants[arbiter->holder] : NULL;

    if (holder != NULL && holder->in_overlap && holder->alone_ns == 0 &&
        !cgpu_overlap_any(arbiter)) {
        holder->alone_ns = now;
    }
}
