/*
 * Arbitration of one GPU by a thread of the server: the arbiter run against real containers. GPUs
 * that take turns together (group/group.h) have one thread.
 *
 * The thread maps the containers' limits to write gates, heartbeat and figures. It reads their
 * ledgers with pread, because a container may truncate its ledger. It sleeps until the arbiter's
 * next time, or until a container rings a bell: a futex word in its ledger. It waits for all bells
 * at once; without futex_waitv, before Linux 5.16, it polls every millisecond while two containers
 * run. No call holds the Python interpreter's lock for long.
 */
#ifndef CGPU_ARBITRATION_H
#define CGPU_ARBITRATION_H

#include <stdint.h>

#include "policy/policy.h"

/* cffi: begin */
struct cgpu_arbitration;

struct cgpu_arbitration_figures {
    uint64_t steps;  /* steps of the arbiter */
    uint64_t turns;  /* gates opened */
    uint64_t cpu_ns; /* of the thread; if it serves several GPUs, this one's part */
    uint32_t tenants;
    uint32_t expired; /* turns that were taken from containers that gave no sign */
};

/* CGPU_EINVAL for rules out of range, CGPU_EIO if no thread can be created. */
int cgpu_arbitration_start(uint32_t policy, uint32_t max_inst, uint32_t prio_ratio,
                           struct cgpu_arbitration **out);
/*
 * Stop the thread. Gates stay as they are; after a while, processes fall back to their own share
 * until another server arbitrates.
 */
void cgpu_arbitration_stop(struct cgpu_arbitration *arbitration);

/*
 * Let these GPUs take turns together from now on, and with no other GPU. CGPU_EIO if no thread can
 * be created: then nothing has changed. No other call for one of them may run at the same time.
 */
int cgpu_arbitration_join(struct cgpu_arbitration **arbitrations, uint32_t count);

int cgpu_arbitration_set_rules(struct cgpu_arbitration *arbitration, uint32_t policy,
                               uint32_t max_inst, uint32_t prio_ratio);

/*
 * Take on the container with the files LIMITS and LEDGER, in which this GPU has NUMBER. *KEY
 * identifies it from now on. WEIGHT 0: it was promised no time, and shares what is left by the cap
 * in its limits. CGPU_EFORMAT for files of another release.
 */
int cgpu_arbitration_add(struct cgpu_arbitration *arbitration, const char *limits,
                         const char *ledger, uint32_t number, uint32_t weight,
                         uint32_t high_priority, uint32_t *key);
/*
 * Decide from now on; the caller has added all running containers. Before this call no gate opens,
 * and gates close as their containers are added, because an earlier arbiter may have opened them.
 */
void cgpu_arbitration_begin(struct cgpu_arbitration *arbitration);
int cgpu_arbitration_set_tenant(struct cgpu_arbitration *arbitration, uint32_t key, uint32_t weight,
                                uint32_t high_priority);
int cgpu_arbitration_remove(struct cgpu_arbitration *arbitration, uint32_t key);

void cgpu_arbitration_read(struct cgpu_arbitration *arbitration,
                           struct cgpu_arbitration_figures *out);
/* cffi: end */

#endif
