/* Turns on several GPUs together: see group.h. */
#include "arbiter/group/group.h"

#include <string.h>

#include "arbiter/group/parts.h"

/*
 * The member for CONTAINER on GPU, a new one if there is none. If a container is on a GPU twice,
 * which should not happen, each has a member of its own.
 */
static struct cgpu_member *
member_for(struct cgpu_group *group, uint64_t container, uint32_t gpu)
{
    struct cgpu_member *member;

    for (uint32_t m = 0; container != 0 && m < group->member_count; m++) {
        if (group->members[m].container == container && group->members[m].indices[gpu] < 0) {
            return &group->members[m];
        }
    }
    member = &group->members[group->member_count];
    group->member_count += 1;
    member->container = container;
    member->gpus = 0;
    memset(member->indices, -1, sizeof member->indices);
    return member;
}

static void
add_members(struct cgpu_group *group, uint32_t gpu)
{
    cgpu_each_tenant(tenant, group->gpus[gpu]) {
        struct cgpu_member *member = member_for(group, tenant->container, gpu);

        member->indices[gpu] = (int8_t)cgpu_tenant_index(group->gpus[gpu], tenant);
        member->gpus += 1;
    }
}

/*
 * Find the members. A GPU without turns decides for itself: it has no members, and its holder does
 * not count here.
 */
static void
begin_step(struct cgpu_group *group, uint64_t now)
{
    group->member_count = 0;
    for (uint32_t g = 0; g < group->count; g++) {
        if (cgpu_arbiter_takes_turns(group->gpus[g])) {
            cgpu_turn_review(group->gpus[g], now);
            add_members(group, g);
        } else {
            group->gpus[g]->discipline->step(group->gpus[g], now);
        }
    }
    for (uint32_t m = 0; m < group->member_count; m++) {
        for (uint32_t g = 0; g < group->count; g++) {
            struct cgpu_tenant *tenant = cgpu_member_on(group, &group->members[m], g);

            if (tenant != NULL) {
                tenant->several = group->members[m].gpus > 1;
            }
        }
    }
}

/* When the holder of GPU gives way to a container that also waits for another GPU. */
static uint64_t
holder_poll_at(const struct cgpu_group *group, uint32_t gpu, uint64_t now)
{
    const struct cgpu_arbiter *arbiter = group->gpus[gpu];
    const struct cgpu_tenant *holder = &arbiter->tenants[arbiter->holder];
    int rival = cgpu_group_rival(group, cgpu_group_member(group, gpu, arbiter->holder), gpu, now);
    uint64_t left;

    if (rival < 0 || holder->high != arbiter->tenants[rival].high) {
        return UINT64_MAX;
    }
    left = cgpu_turn_left(arbiter, holder, &arbiter->tenants[rival]);
    return cgpu_larger(now + left, now + 1);
}

/* When the next step is due if nobody rings. */
static uint64_t
poll_at(const struct cgpu_group *group, uint64_t now)
{
    uint64_t at = UINT64_MAX;

    for (uint32_t g = 0; g < group->count; g++) {
        at = cgpu_lesser(at, group->gpus[g]->discipline->poll_at(group->gpus[g], now));
        if (group->gpus[g]->holder >= 0) {
            at = cgpu_lesser(at, holder_poll_at(group, g, now));
        }
    }
    for (uint32_t m = 0; m < group->member_count; m++) {
        for (uint32_t g = 0; g < group->count; g++) {
            const struct cgpu_tenant *tenant = cgpu_member_on(group, &group->members[m], g);
            uint64_t overdue = cgpu_group_overdue_at(group, &group->members[m], g);

            at = overdue > now ? cgpu_lesser(at, overdue) : at;
            if (tenant != NULL && tenant->idle_ns + CGPU_LEAVE_NS > now) {
                at = cgpu_lesser(at, tenant->idle_ns + CGPU_LEAVE_NS);
            }
        }
    }
    return at;
}

uint64_t
cgpu_group_step(struct cgpu_group *group, uint64_t now,
                const struct cgpu_demand (*demands)[CGPU_MAX_TENANTS],
                enum cgpu_gate (*gates)[CGPU_MAX_TENANTS])
{
    if (group->count == 1) {
        return cgpu_arbiter_step(group->gpus[0], now, demands[0], gates[0]);
    }
    for (uint32_t g = 0; g < group->count; g++) {
        now = cgpu_larger(now, group->gpus[g]->now);
    }
    for (uint32_t g = 0; g < group->count; g++) {
        cgpu_charge_time(group->gpus[g], now, demands[g]);
        cgpu_corun_end(group->gpus[g], now); /* they take turns together instead */
    }
    begin_step(group, now);
    cgpu_group_end(group, now);
    cgpu_group_begin(group, now);
    for (uint32_t g = 0; g < group->count; g++) {
        cgpu_turn_refresh_gate(group->gpus[g], now);
        group->gpus[g]->now = now;
        for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
            gates[g][i] = group->gpus[g]->tenants[i].gate;
        }
    }
    return poll_at(group, now);
}
