/* Containers that contend for the GPU of an arbiter. */
#ifndef CGPU_ARBITER_CONTEST_H
#define CGPU_ARBITER_CONTEST_H

#include <string.h>

#include "arbiter_world.h"
#include "limits.h"
#include "status.h"

static inline int
add(uint32_t weight, bool high)
{
    int tenant = cgpu_arbiter_add(arbiter, weight, high, now);

    CHECK(tenant >= 0);
    return tenant;
}

/* TENANT launches, with work until END. */
static inline void
works(int tenant, uint64_t end)
{
    demands[tenant].waiting = false;
    demands[tenant].active = true;
    demands[tenant].certain = true;
    demands[tenant].end_ns = end;
}

static inline void
is_quiet(int tenant)
{
    demands[tenant].active = false;
    demands[tenant].end_ns = now;
}

static inline int
open_gates(void)
{
    int count = 0;

    for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
        count += gates[i] != CGPU_GATE_CLOSED;
    }
    return count;
}

/* Two containers that always want; the first holds. */
static inline void
contend(int *holder, int *waiter)
{
    *holder = add(1, false);
    *waiter = add(1, false);
    demands[*holder].waiting = true;
    step(0);
    CHECK(gates[*holder] != CGPU_GATE_CLOSED);
    works(*holder, now + MS);
    step(MS);
    demands[*waiter].waiting = true;
    step(MS);
}

static inline uint64_t
charged(int tenant)
{
    struct cgpu_tenant_report report;

    cgpu_arbiter_report(arbiter, tenant, &report);
    return report.charged_ns;
}

#endif
