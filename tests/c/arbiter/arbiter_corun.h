/* Containers whose gates an arbiter may open together. */
#ifndef CGPU_ARBITER_CORUN_H
#define CGPU_ARBITER_CORUN_H

#include "arbiter_contest.h"

#define PART_NS (MS / 10)

static int tenants[3];
static uint64_t drain_ns, open_until[CGPU_MAX_TENANTS];

/*
 * For NS, each does so much in a millisecond in which its gate is open: in turns, and together.
 * Its work goes on for DRAIN_NS after its gate has closed.
 */
static inline uint64_t
run(uint64_t ns, int count, const uint64_t *alone_us, const uint64_t *together_us)
{
    uint64_t together_ns = 0;

    for (uint64_t until = now + ns; now < until;) {
        bool together = open_gates() > 1;

        together_ns += together ? PART_NS : 0;
        for (int i = 0; i < count; i++) {
            int tenant = tenants[i];

            if (gates[tenant] == CGPU_GATE_CLOSED && now < open_until[tenant] + drain_ns) {
                continue;
            }
            if (gates[tenant] == CGPU_GATE_CLOSED) {
                is_quiet(tenant);
                demands[tenant].waiting = true;
            } else {
                works(tenant, now + PART_NS);
                open_until[tenant] = now + PART_NS;
                demands[tenant].done_ns += (together ? together_us : alone_us)[i] * 1000 / 10;
            }
        }
        step(PART_NS);
    }
    return together_ns;
}

static inline void
begin(uint32_t policy, int count, uint32_t weight)
{
    start(policy);
    for (int i = 0; i < count; i++) {
        tenants[i] = add(i == 0 ? weight : 1, false);
        demands[tenants[i]] = (struct cgpu_demand){.waiting = true};
    }
    step(0);
}

/* Two that leave the GPU idle, and whose gates are open together. */
static inline void
meet(void)
{
    const uint64_t alone[] = {400, 400}, together[] = {350, 350};

    begin(CGPU_POLICY_WEIGHTED_FAIR, 2, 1);
    run(700 * MS, 2, alone, together);
    CHECK(open_gates() == 2);
}

#endif
