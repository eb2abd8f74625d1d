/*
 * Internals of group.h. Parts: group.c (the members, the step), begin.c (which container gets which
 * GPUs next), end.c (when they are given back).
 */
#ifndef CGPU_GROUP_PARTS_H
#define CGPU_GROUP_PARTS_H

#include "arbiter/arbiter_state.h"
#include "arbiter/group/group.h"

/* How long a container that works on another GPU may pause on this one. */
#define CGPU_LEAVE_NS CGPU_TURN_MIN_NS

/* MEMBER's tenant on GPU; NULL: not there. */
static inline struct cgpu_tenant *
cgpu_member_on(const struct cgpu_group *group, const struct cgpu_member *member, uint32_t gpu)
{
    int index = member->indices[gpu];

    return index < 0 ? NULL : &group->gpus[gpu]->tenants[index];
}

static inline bool
cgpu_member_holds(const struct cgpu_group *group, const struct cgpu_member *member, uint32_t gpu)
{
    return member->indices[gpu] >= 0 && group->gpus[gpu]->holder == member->indices[gpu];
}

/* Whether MEMBER wants GPU, or used it in its last turn and so will want it. */
static inline bool
cgpu_member_needs(const struct cgpu_group *group, const struct cgpu_member *member, uint32_t gpu)
{
    const struct cgpu_tenant *tenant = cgpu_member_on(group, member, gpu);

    return tenant != NULL && !cgpu_member_holds(group, member, gpu) &&
           (tenant->demand.waiting || (tenant->shown && member->gpus > 1));
}

/*
 * Whether TENANT's processes were lately seen to wait for each other, so that one GPU alone is of
 * no use.
 */
static inline bool
cgpu_tenant_meets(const struct cgpu_tenant *tenant, uint64_t now)
{
    return tenant->several && tenant->meets_until > now;
}

/* The member at INDEX on GPU; NULL: none. */
static inline const struct cgpu_member *
cgpu_group_member(const struct cgpu_group *group, uint32_t gpu, int index)
{
    for (uint32_t m = 0; m < group->member_count; m++) {
        if (group->members[m].indices[gpu] == index) {
            return &group->members[m];
        }
    }
    return NULL;
}

/* begin.c */
void cgpu_group_begin(struct cgpu_group *group, uint64_t now);

/* end.c */
void cgpu_group_end(struct cgpu_group *group, uint64_t now);
/*
 * The index of the container that would have GPU next if MEMBER gave it back; -1: nobody. That
 * container may only be waiting for another GPU.
 */
int cgpu_group_rival(const struct cgpu_group *group, const struct cgpu_member *member, uint32_t gpu,
                     uint64_t now);
/*
 * When MEMBER's work on GPU is overdue: half of its expected time and a little more have passed
 * since its expected end. If a thread of MEMBER then waits at another gate, the work is assumed to
 * wait for that thread's launch. UINT64_MAX: MEMBER does not drain there.
 */
uint64_t cgpu_group_overdue_at(const struct cgpu_group *group, const struct cgpu_member *member,
                               uint32_t gpu);

#endif
