/*
 * The arbiter of one GPU: whose turn is it? Turns with debt.
 *
 * One container at a time may launch. It is charged the time for which it really held the GPU, to
 * the end of its last kernel. Each round of turns brings all containers to a common charge by
 * weight, so an overrun is repaid before the next turn. A ceiling is a bucket that fills with time
 * and empties as the container is charged. After a short rest, a container is as far behind or
 * ahead of the others as before. After a long rest it has no credit, but still its debt.
 *
 * The arbiter is a pure state machine: time and observations come in; gates and the time of the
 * next step come out. The server's thread (arbitration.h) runs it against processes, the model
 * against a modelled GPU.
 */
#ifndef CGPU_ARBITER_H
#define CGPU_ARBITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gate/gate.h"
#include "policy/policy.h"

/* What a container's living processes report, together, about one GPU. */
struct cgpu_demand {
    bool waiting;       /* a thread waits at the closed gate */
    bool active;        /* something may be in flight, or launched any moment if the gate is open */
    bool idle;          /* active, but every active process says that it has nothing to do */
    bool soon;          /* idle: not yet, but its work is about to end */
    bool certain;       /* end_ns rests on measured kernels only */
    uint32_t processes; /* that are active */
    uint64_t begun_ns;  /* earliest time of its first launch since it was quiet; 0: unknown */
    uint64_t end_ns;    /* when what is in flight is expected to end; 0: unknown */
    uint64_t lag_ns;    /* from a launch on an idle GPU until its end is seen, less the work */
    uint64_t busy_ns;   /* GPU time of ended work; counts under the soft policy, or alone */
    uint64_t done_ns;   /* the same as estimated at launch: work beside it adds nothing */
    uint64_t missed;    /* turns that ended before the thread that waited for them ran */
    uint64_t stalls;    /* how often work began to stall: it had not ended for a second */
    uint64_t stalled_ns; /* total time of such work from the stall to its end */
};

struct cgpu_rules {
    uint32_t policy;
    uint32_t max_inst;   /* 1..25 */
    uint32_t prio_ratio; /* percent, 20..99 */
};

struct cgpu_arbiter; /* see arbiter_state.h for what the model and the tests may look at */

/* The arbiter is in the caller's memory, cgpu_arbiter_size() bytes. */
size_t cgpu_arbiter_size(void);
void cgpu_arbiter_init(struct cgpu_arbiter *arbiter, const struct cgpu_rules *rules, uint64_t now);

/* Rules and weights may change at any time; they hold from the next step on. */
void cgpu_arbiter_set_rules(struct cgpu_arbiter *arbiter, const struct cgpu_rules *rules);

/*
 * Add a container; WEIGHT is 0 if it was promised no time (policy.h). Returns its index
 * (0..CGPU_MAX_TENANTS - 1), or CGPU_EFULL.
 */
int cgpu_arbiter_add(struct cgpu_arbiter *arbiter, uint32_t weight, bool high_priority,
                     uint64_t now);
/* CONTAINER identifies the same container on several GPUs (group/group.h). */
void cgpu_arbiter_set_container(struct cgpu_arbiter *arbiter, int index, uint64_t container);
/* The container's cap is MIB: by this, those of weight 0 share the time that is left. */
void cgpu_arbiter_set_memory(struct cgpu_arbiter *arbiter, int index, uint32_t mib);
void cgpu_arbiter_set_tenant(struct cgpu_arbiter *arbiter, int index, uint32_t weight,
                             bool high_priority);
/* Remove the container; whatever it held is free at once. */
void cgpu_arbiter_remove(struct cgpu_arbiter *arbiter, int index, uint64_t now);

/*
 * Read DEMANDS (by index), charge, and decide. GATES (by index): the state of each gate from now
 * on. Returns the time by which to call again if no demand changes before (UINT64_MAX: never). The
 * caller stores the gates and reads the demands again before it sleeps.
 */
uint64_t cgpu_arbiter_step(struct cgpu_arbiter *arbiter, uint64_t now,
                           const struct cgpu_demand *demands, enum cgpu_gate *gates);

/*
 * Skip the time from the last step to NOW. No arbiter ran in it, and containers kept to their own
 * parts of the time (fallback.h). Nobody pays for it, and no bucket of a ceiling fills.
 */
void cgpu_arbiter_skip(struct cgpu_arbiter *arbiter, uint64_t now);

/* What has been charged to INDEX, and what the policy gives it, for display. */
struct cgpu_tenant_report {
    uint64_t charged_ns;
    uint64_t throttled_ns; /* time in which threads were seen to wait at its closed gate */
    uint64_t waits;        /* how often that began */
    uint32_t measured_ppm; /* charged in the last second */
    uint32_t limit_ppm;    /* prio_ratio, ceiling, or part by weight of what priority leaves */
    uint32_t fallback_ppm;
    uint32_t offset_ppm; /* where its part of the fallback period begins */
    uint32_t metered;    /* as in the limits page */
};
void cgpu_arbiter_report(const struct cgpu_arbiter *arbiter, int index,
                         struct cgpu_tenant_report *out);

/* The flags (limits.h) for the field `metered` in the limits of INDEX. */
uint32_t cgpu_arbiter_metered(const struct cgpu_arbiter *arbiter, int index);

/* Whether INDEX may launch, in a turn that began while the others had nothing in flight. */
bool cgpu_arbiter_is_quiet(const struct cgpu_arbiter *arbiter, int index);

/* The number of turns that the arbiter took from containers that gave no sign. */
uint64_t cgpu_arbiter_expired(const struct cgpu_arbiter *arbiter);

#endif
