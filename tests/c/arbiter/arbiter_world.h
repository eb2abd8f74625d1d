/* An arbiter of one GPU whose time the test lets pass. */
#ifndef CGPU_ARBITER_WORLD_H
#define CGPU_ARBITER_WORLD_H

#include <stdlib.h>

#include "arbiter/arbiter.h"
#include "check.h"

#define MS UINT64_C(1000000)

static struct cgpu_arbiter *arbiter;
static struct cgpu_demand demands[CGPU_MAX_TENANTS];
static enum cgpu_gate gates[CGPU_MAX_TENANTS];
static uint64_t now = 1000 * MS;

static inline void
start(uint32_t policy)
{
    struct cgpu_rules rules = {.policy = policy, .max_inst = 20, .prio_ratio = 80};

    free(arbiter);
    arbiter = malloc(cgpu_arbiter_size());
    CHECK(arbiter != NULL);
    cgpu_arbiter_init(arbiter, &rules, now);
}

/* The caller looks again at once as long as it is asked to. When it is to look next. */
static inline uint64_t
step(uint64_t by)
{
    uint64_t at = 0;

    now += by;
    for (int i = 0; i < 4 && at <= now; i++) {
        at = cgpu_arbiter_step(arbiter, now, demands, gates);
    }
    CHECK(at > now);
    return at;
}

#endif
