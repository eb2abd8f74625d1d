/* The next container on each GPU: see group.h. */
#include <string.h>

#include "arbiter/group/parts.h"

/* A GPU stays free for at most this long for a container that waits for another GPU as well. */
#define KEEP_FREE_NS CGPU_MS

/* Whether MEMBER's work on GPU goes on and will not end soon. */
static bool
is_draining(const struct cgpu_group *group, const struct cgpu_member *member, uint32_t gpu,
            uint64_t now)
{
    const struct cgpu_tenant *tenant = cgpu_member_on(group, member, gpu);

    return tenant != NULL && cgpu_tenant_is_draining(tenant) &&
           !cgpu_turn_ends_soon(tenant, CGPU_EARLY_NS, now);
}

/*
 * Whether NEXT may have GPU. It may not while another container waits for GPU, and that container's
 * work on another GPU is overdue or due within KEEP_FREE_NS: the work may wait for that launch.
 */
static bool
is_clear(struct cgpu_group *group, uint32_t gpu, const struct cgpu_member *next, uint64_t now)
{
    int index = next == NULL ? -1 : next->indices[gpu];

    for (uint32_t m = 0; m < group->member_count; m++) {
        const struct cgpu_member *member = &group->members[m];
        const struct cgpu_tenant *tenant = cgpu_member_on(group, member, gpu);

        if (member == next || member->gpus < 2 || tenant == NULL || !tenant->demand.waiting) {
            continue;
        }
        for (uint32_t g = 0; g < group->count; g++) {
            if (g != gpu && is_draining(group, member, g, now) &&
                cgpu_member_on(group, member, g)->demand.end_ns <= now + KEEP_FREE_NS) {
                return false;
            }
        }
    }
    return cgpu_overlap_may(group->gpus[gpu], index, now);
}

/* Whether GPU is free or will be soon. */
static bool
is_free(const struct cgpu_group *group, uint32_t gpu, uint64_t now)
{
    const struct cgpu_arbiter *arbiter = group->gpus[gpu];

    cgpu_each_tenant(tenant, arbiter) {
        if (cgpu_tenant_is_draining(tenant) && tenant->demand.end_ns > now + KEEP_FREE_NS) {
            return false;
        }
    }
    return group->taken[gpu] == 0 && arbiter->holder < 0;
}

static bool
may_have(const struct cgpu_arbiter *arbiter, const struct cgpu_tenant *tenant, bool due,
         uint64_t now)
{
    if (tenant->state == CGPU_STATE_EXPIRED) {
        return true; /* its work there may wait for its peer, and is charged */
    }
    if (due) {
        return cgpu_turn_is_due(arbiter, cgpu_tenant_index(arbiter, tenant), now);
    }
    return !cgpu_tenant_is_draining(tenant) && cgpu_turn_allowed(arbiter, tenant, now);
}

/* Whether all GPUs that MEMBER needs are free. DUE: and its turn has come on each of them. */
static bool
is_complete(const struct cgpu_group *group, const struct cgpu_member *member, bool due,
            uint64_t now)
{
    bool waits = false;

    for (uint32_t g = 0; g < group->count; g++) {
        const struct cgpu_arbiter *arbiter = group->gpus[g];
        const struct cgpu_tenant *tenant = cgpu_member_on(group, member, g);

        if (!cgpu_member_needs(group, member, g)) {
            continue;
        }
        if (!is_free(group, g, now) || !may_have(arbiter, tenant, due, now)) {
            return false;
        }
        waits |= tenant->demand.waiting;
    }
    return waits;
}

/* What decides the order of members that can have all they need. */
struct rank {
    bool high;
    uint64_t since_ns;
};

static struct rank
rank_of(const struct cgpu_group *group, const struct cgpu_member *member)
{
    struct rank rank = {.since_ns = UINT64_MAX};

    for (uint32_t g = 0; g < group->count; g++) {
        const struct cgpu_tenant *tenant = cgpu_member_on(group, member, g);

        if (tenant == NULL) {
            continue;
        }
        rank.high |= tenant->high;
        if (tenant->demand.waiting) {
            rank.since_ns = cgpu_lesser(rank.since_ns, tenant->closed_ns);
        }
    }
    return rank;
}

static bool
is_before(struct rank a, struct rank b)
{
    return a.high != b.high ? a.high : a.since_ns < b.since_ns;
}

/* The next member among those that can have all they need at once; NULL: none. */
static const struct cgpu_member *
best_complete(const struct cgpu_group *group, bool due, uint64_t now)
{
    const struct cgpu_member *best = NULL;
    struct rank best_rank = {0};

    for (uint32_t m = 0; m < group->member_count; m++) {
        const struct cgpu_member *member = &group->members[m];
        struct rank rank;

        if (!is_complete(group, member, due, now)) {
            continue;
        }
        rank = rank_of(group, member);
        if (best == NULL || is_before(rank, best_rank)) {
            best = member;
            best_rank = rank;
        }
    }
    return best;
}

/* The GPUs that MEMBER wants, a bit for each. */
static uint32_t
wanted_by(const struct cgpu_group *group, const struct cgpu_member *member)
{
    uint32_t gpus = 0;

    for (uint32_t g = 0; g < group->count; g++) {
        const struct cgpu_tenant *tenant = cgpu_member_on(group, member, g);

        gpus |= (uint32_t)(tenant != NULL && cgpu_tenant_wants(tenant)) << g;
    }
    return gpus;
}

/* On each of GPUS, put MEMBER equally far ahead of the container that was charged least. */
static void
share_lead(struct cgpu_group *group, const struct cgpu_member *member, uint32_t gpus)
{
    int64_t sum = 0, count = __builtin_popcount(gpus);

    for (uint32_t g = 0; g < group->count; g++) {
        const struct cgpu_tenant *tenant = cgpu_member_on(group, member, g);

        if ((gpus & 1U << g) != 0) {
            sum += (int64_t)(tenant->virtual_ns - group->gpus[g]->floor_ns[tenant->high]);
        }
    }
    for (uint32_t g = 0; g < group->count; g++) {
        struct cgpu_tenant *tenant = cgpu_member_on(group, member, g);

        if ((gpus & 1U << g) != 0) {
            int64_t lead = (int64_t)group->gpus[g]->floor_ns[tenant->high] + sum / count;

            tenant->virtual_ns = lead > 0 ? (uint64_t)lead : 0;
        }
    }
}

/*
 * Before MEMBER is let in on several GPUs: for each container, set off what it owes on one of them
 * against what it is owed on another. This needs that all containers that want one of these GPUs
 * want all of them. Otherwise a container that repays on one GPU would run into debt on another,
 * and turns would last until their containers are behind nowhere.
 */
static void
set_off(struct cgpu_group *group, const struct cgpu_member *member)
{
    uint32_t gpus = wanted_by(group, member);

    for (uint32_t m = 0; m < group->member_count; m++) {
        uint32_t others = wanted_by(group, &group->members[m]);

        if (others != gpus && (others & gpus) != 0) {
            return;
        }
    }
    for (uint32_t m = 0; m < group->member_count && gpus != 0; m++) {
        if (wanted_by(group, &group->members[m]) == gpus) {
            share_lead(group, &group->members[m], gpus);
        }
    }
}

/* Open all of MEMBER's gates, or none. Returns whether they are open. */
static bool
open_together(struct cgpu_group *group, const struct cgpu_member *member, uint64_t now)
{
    uint32_t number = (uint32_t)(member - group->members) + 1;
    bool clear = true;

    for (uint32_t g = 0; g < group->count; g++) {
        if (cgpu_member_needs(group, member, g)) {
            group->taken[g] = number;
            clear &= group->gpus[g]->holder < 0 && is_clear(group, g, member, now);
        }
    }
    if (clear) {
        set_off(group, member);
    }
    for (uint32_t g = 0; clear && g < group->count; g++) {
        if (group->taken[g] == number) {
            cgpu_turn_open(group->gpus[g], member->indices[g], now);
        }
    }
    return clear;
}

/*
 * Open NEXT's gate (-1: nobody's) on GPU only, if the work there allows it. GPU counts as taken
 * even if the gate stays closed. The caller has checked that GPU is left over. Returns whether the
 * gate was opened.
 */
static bool
open_alone(struct cgpu_group *group, uint32_t gpu, int next, uint64_t now)
{
    struct cgpu_arbiter *arbiter = group->gpus[gpu];
    const struct cgpu_member *member = next < 0 ? NULL : cgpu_group_member(group, gpu, next);

    if (member == NULL) {
        return false;
    }
    group->taken[gpu] = (uint32_t)(member - group->members) + 1;
    if (!is_clear(group, gpu, member, now)) {
        return false;
    }
    cgpu_turn_open(arbiter, next, now);
    return true;
}

static bool
is_left_over(const struct cgpu_group *group, uint32_t gpu)
{
    return group->gpus[gpu]->holder < 0 && group->taken[gpu] == 0;
}

static int
next_alone(const struct cgpu_arbiter *arbiter, uint64_t now)
{
    int next = cgpu_turn_next(arbiter, now, -1);

    if (next < 0) {
        return cgpu_turn_only_one(arbiter);
    }
    return cgpu_tenant_meets(&arbiter->tenants[next], now) ? -1 : next;
}

/*
 * Let in the containers whose turn has come. Then let in those that can have all their GPUs, while
 * others cannot. Returns whether any was let in.
 */
static bool
begin_some(struct cgpu_group *group, uint64_t now)
{
    const struct cgpu_member *next;
    bool opened = false;

    memset(group->taken, 0, sizeof group->taken);
    while ((next = best_complete(group, true, now)) != NULL) {
        opened |= open_together(group, next, now);
    }
    for (uint32_t g = 0; g < group->count; g++) {
        if (is_left_over(group, g)) {
            opened |= open_alone(group, g, next_alone(group->gpus[g], now), now);
        }
    }
    while ((next = best_complete(group, false, now)) != NULL) {
        opened |= open_together(group, next, now);
    }
    return opened;
}

/* Let containers in, repeatedly, because letting one in may make another GPU clear. */
void
cgpu_group_begin(struct cgpu_group *group, uint64_t now)
{
    for (uint32_t times = 0; times < group->count && begin_some(group, now); times++) {
    }
}
