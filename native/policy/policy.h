/*
 * Policies: what the containers of one GPU are entitled to. One file each, one table.
 *
 * A policy is pure: it computes for each running container a weight among those that compete, and a
 * ceiling. Before it, cgpu_policy_entitle gives a weight to those that were promised no time.
 *
 * The arbiter does the rest. It knows who has work, and its discipline (arbiter_state.h) gives
 * turns by weight, leaves gates open together, or does nothing.
 */
#ifndef CGPU_POLICY_H
#define CGPU_POLICY_H

#include <stddef.h>
#include <stdint.h>

/* cffi: begin */
enum {
    CGPU_POLICY_FAIR_SHARE = 0,
    CGPU_POLICY_PREEMPTIVE = 1,
    CGPU_POLICY_WEIGHTED_PREEMPTIVE = 2,
    CGPU_POLICY_FIXED = 3,
    CGPU_POLICY_SOFT = 4,
    CGPU_POLICY_NATIVE = 5,
    CGPU_POLICY_WEIGHTED_FAIR = 6,
    CGPU_POLICIES = 7
};

enum { CGPU_WHOLE_PPM = 1000000, CGPU_MAX_TENANTS = 32 };

enum { CGPU_WEIGHT_PARTS = 100 }; /* of a unit of weight */

/* One running container, as a policy sees it, and what the policy gives it. */
struct cgpu_claim {
    uint32_t weight; /* 1..max_inst; 0: it was promised no time, and shares what is left */
    uint32_t high_priority;
    uint32_t memory_mib;   /* its cap; by this, those of weight 0 share */
    uint32_t competes;     /* out: its weight among those that compete for turns, in
                              CGPU_WEIGHT_PARTS of a unit, at least 1 */
    uint32_t ceiling_ppm;  /* out: the most that it gets of the GPU's time; 1000000: all */
    uint32_t fallback_ppm; /* out: its share while nobody arbitrates. The sum is at most 1000000,
                              but under native each has all */
};
/* cffi: end */

struct cgpu_policy {
    const char *name; /* for people: "weighted fair" */
    /* Set what is out. Before the call, COMPETES is the weight of each, in parts. */
    void (*entitle)(struct cgpu_claim *claims, size_t count, uint32_t max_inst);
};

extern const struct cgpu_policy cgpu_policy_fair_share;
extern const struct cgpu_policy cgpu_policy_preemptive;
extern const struct cgpu_policy cgpu_policy_weighted_preemptive;
extern const struct cgpu_policy cgpu_policy_fixed;
extern const struct cgpu_policy cgpu_policy_soft;
extern const struct cgpu_policy cgpu_policy_native;
extern const struct cgpu_policy cgpu_policy_weighted_fair;

/* The CGPU_POLICIES policies, by number. */
extern const struct cgpu_policy *const cgpu_policies[];

/* cffi: begin */
/*
 * Set what COUNT containers are entitled to under POLICY. Those of weight 0 share, by their memory,
 * what the others leave of MAX_INST; together they have 1/200 of it at least. CGPU_EINVAL: a
 * policy that is unknown, or a MAX_INST of 0.
 */
int cgpu_policy_entitle(uint32_t policy, struct cgpu_claim *claims, size_t count,
                        uint32_t max_inst);

const char *cgpu_policy_name(uint32_t policy); /* NULL: unknown */
/* cffi: end */

#endif
