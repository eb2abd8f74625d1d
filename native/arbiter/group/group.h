/*
 * GPUs whose containers overlap: they take turns together.
 *
 * Processes of one container on several GPUs often wait for each other: a kernel runs until its
 * peer on another GPU runs too. If each GPU took turns by itself, such a container would wait for
 * one GPU while it holds the other, and nobody would make progress. So a container gets all GPUs
 * that it needs at once, and gives them back at once. What it pays, its rounds and its ceiling
 * remain per GPU.
 *
 * A group is a state machine like arbiter.h. The server's thread and the model run it.
 */
#ifndef CGPU_GROUP_H
#define CGPU_GROUP_H

#include "arbiter/arbiter.h"
#include "limits.h"

enum { CGPU_GROUP_MEMBERS = CGPU_MAX_GPUS * CGPU_MAX_TENANTS };

/* A container and its indices in the arbiters of the group; -1: not on that GPU. */
struct cgpu_member {
    uint64_t container;
    int8_t indices[CGPU_MAX_GPUS];
    uint32_t gpus; /* how many */
};

/* To begin, all zeros except the number of GPUs and their arbiters. */
struct cgpu_group {
    uint32_t count;
    struct cgpu_arbiter *gpus[CGPU_MAX_GPUS];

    /* of the step */
    uint32_t taken[CGPU_MAX_GPUS]; /* index of the member that gets it, plus one; 0: none */
    uint32_t member_count;
    struct cgpu_member members[CGPU_GROUP_MEMBERS];
};

/*
 * The step of all GPUs, as cgpu_arbiter_step: DEMANDS and GATES are by GPU, then by index there.
 * For one GPU it is the same as the step of its arbiter.
 */
uint64_t cgpu_group_step(struct cgpu_group *group, uint64_t now,
                         const struct cgpu_demand (*demands)[CGPU_MAX_TENANTS],
                         enum cgpu_gate (*gates)[CGPU_MAX_TENANTS]);

#endif
