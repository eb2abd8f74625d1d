/* When a container gives its GPUs back: see group.h. */
#include "arbiter/group/parts.h"

/* How often a turn is extended. After that, others are let in beside its work. */
enum { GO_ON_TIMES = 8 };

static bool
waits(const struct cgpu_group *group, const struct cgpu_member *member)
{
    for (uint32_t g = 0; g < group->count; g++) {
        const struct cgpu_tenant *tenant = cgpu_member_on(group, member, g);

        if (tenant != NULL && tenant->demand.waiting) {
            return true;
        }
    }
    return false;
}

int
cgpu_group_rival(const struct cgpu_group *group, const struct cgpu_member *member, uint32_t gpu,
                 uint64_t now)
{
    int next = cgpu_turn_next(group->gpus[gpu], now, member->indices[gpu]);

    for (uint32_t m = 0; next < 0 && m < group->member_count; m++) {
        const struct cgpu_member *other = &group->members[m];

        if (other != member && cgpu_member_needs(group, other, gpu) && waits(group, other) &&
            cgpu_turn_allowed(group->gpus[gpu], cgpu_member_on(group, other, gpu), now)) {
            next = other->indices[gpu];
        }
    }
    return next;
}

/* Whether MEMBER must give GPU back: another one waits, or the time counts against its ceiling. */
static bool
is_pressed(const struct cgpu_group *group, const struct cgpu_member *member, uint32_t gpu,
           uint64_t now)
{
    return cgpu_group_rival(group, member, gpu, now) >= 0 ||
           cgpu_tenant_is_capped(cgpu_member_on(group, member, gpu));
}

static bool
works_elsewhere(const struct cgpu_group *group, const struct cgpu_member *member, uint32_t gpu)
{
    for (uint32_t g = 0; g < group->count; g++) {
        if (g != gpu && cgpu_member_holds(group, member, g) &&
            cgpu_tenant_works(cgpu_member_on(group, member, g))) {
            return true;
        }
    }
    return false;
}

/* Whether MEMBER keeps GPU during a short pause, because it works on another GPU. */
static bool
comes_back(const struct cgpu_group *group, const struct cgpu_member *member, uint32_t gpu,
           uint64_t now)
{
    struct cgpu_tenant *tenant = cgpu_member_on(group, member, gpu);

    if (!works_elsewhere(group, member, gpu)) {
        return false;
    }
    if (tenant->idle_ns == 0) {
        tenant->idle_ns = now;
    }
    return now < tenant->idle_ns + CGPU_LEAVE_NS;
}

static void
close_together(struct cgpu_group *group, const struct cgpu_member *member, uint32_t gpu,
               uint64_t now)
{
    for (uint32_t g = 0; g < group->count; g++) {
        if (cgpu_member_holds(group, member, g) &&
            (g == gpu || is_pressed(group, member, g, now))) {
            cgpu_turn_finish(group->gpus[g], CGPU_TURN_IS_OVER, now);
        }
    }
}

static void
end_turn(struct cgpu_group *group, uint32_t gpu, uint64_t now)
{
    struct cgpu_arbiter *arbiter = group->gpus[gpu];
    const struct cgpu_member *member = cgpu_group_member(group, gpu, arbiter->holder);
    struct cgpu_tenant *holder = &arbiter->tenants[arbiter->holder];
    int next = cgpu_group_rival(group, member, gpu, now);

    if (cgpu_tenant_works(holder)) {
        holder->idle_ns = 0;
    }
    if (holder->until_ns > now) {
        return;
    }
    switch (cgpu_turn_end(arbiter, next, now)) {
    case CGPU_TURN_GOES_ON:
        break;
    case CGPU_TURN_IS_LEFT:
        if (!comes_back(group, member, gpu, now)) {
            cgpu_turn_finish(arbiter, CGPU_TURN_IS_LEFT, now);
        }
        break;
    case CGPU_TURN_IS_OVER:
        close_together(group, member, gpu, now);
        break;
    }
}

uint64_t
cgpu_group_overdue_at(const struct cgpu_group *group, const struct cgpu_member *member,
                      uint32_t gpu)
{
    const struct cgpu_tenant *tenant = cgpu_member_on(group, member, gpu);
    uint64_t left;

    if (tenant == NULL || member->gpus < 2 || !cgpu_tenant_is_draining(tenant) ||
        !tenant->demand.active || tenant->unscheduled) {
        return UINT64_MAX;
    }
    left = cgpu_since(tenant->demand.end_ns, tenant->closed_ns);
    return tenant->closed_ns + left + left / 2 + CGPU_OVERLAP_NS;
}

/* Whether a thread of MEMBER waits for another GPU than GPU. *FREE: such a GPU has no holder. */
static bool
waits_elsewhere(const struct cgpu_group *group, const struct cgpu_member *member, uint32_t gpu,
                bool *free)
{
    bool waits = false;

    for (uint32_t g = 0; g < group->count; g++) {
        const struct cgpu_tenant *tenant = cgpu_member_on(group, member, g);

        if (g != gpu && tenant != NULL && tenant->demand.waiting &&
            tenant->gate == CGPU_GATE_CLOSED) {
            waits = true;
            *free |= group->gpus[g]->holder < 0;
        }
    }
    return waits;
}

static void
note_meeting(const struct cgpu_group *group, const struct cgpu_member *member, uint64_t now)
{
    for (uint32_t g = 0; g < group->count; g++) {
        struct cgpu_tenant *tenant = cgpu_member_on(group, member, g);

        if (tenant != NULL) {
            tenant->meets_until = now + CGPU_ALONE_NS;
        }
    }
}

/*
 * Extend MEMBER's turn on its GPUs, by TIMES the usual time. It grows each time, so that gates do
 * not keep closing between the same kernels.
 */
static void
go_on(struct cgpu_group *group, const struct cgpu_member *member, uint32_t times, uint64_t now)
{
    for (uint32_t g = 0; g < group->count; g++) {
        struct cgpu_tenant *tenant = cgpu_member_on(group, member, g);

        if (tenant != NULL && group->gpus[g]->holder < 0 &&
            (tenant->demand.waiting || cgpu_tenant_is_draining(tenant))) {
            cgpu_turn_reopen(group->gpus[g], member->indices[g], now);
            tenant->times = times;
            tenant->until_ns = now + times * CGPU_FLIGHT_NS;
        }
    }
}

/*
 * Help MEMBER if its gates closed between a launch on GPU and its peer on another one: extend its
 * turn on both. If that was tried often enough, or others hold the other GPU, stop waiting for its
 * work.
 */
static void
help(struct cgpu_group *group, const struct cgpu_member *member, uint32_t gpu, uint64_t now)
{
    struct cgpu_tenant *tenant = cgpu_member_on(group, member, gpu);
    bool free = false;

    if (now < cgpu_group_overdue_at(group, member, gpu) ||
        !waits_elsewhere(group, member, gpu, &free)) {
        return;
    }
    note_meeting(group, member, now);
    if (free && tenant->times < GO_ON_TIMES) {
        go_on(group, member, tenant->times + 1, now);
    } else {
        cgpu_state_change(group->gpus[gpu], tenant, CGPU_STATE_EXPIRED, now);
    }
}

void
cgpu_group_end(struct cgpu_group *group, uint64_t now)
{
    for (uint32_t g = 0; g < group->count; g++) {
        if (group->gpus[g]->holder >= 0) {
            end_turn(group, g, now);
        }
    }
    for (uint32_t m = 0; m < group->member_count; m++) {
        for (uint32_t g = 0; g < group->count; g++) {
            help(group, &group->members[m], g, now);
        }
    }
}
