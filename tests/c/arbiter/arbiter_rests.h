/* A container that rests between bursts, beside one whose kernels are long. */
#ifndef CGPU_ARBITER_RESTS_H
#define CGPU_ARBITER_RESTS_H

#include "arbiter_contest.h"

#define BURST_NS  (2 * MS)
#define KERNEL_NS (20 * MS)

static int rests, busy;

/* Its burst ends, and the other one is let in, with a kernel of 20 ms. */
static inline void
rest(void)
{
    is_quiet(rests);
    step(0);
    CHECK(gates[rests] == CGPU_GATE_CLOSED && gates[busy] == CGPU_GATE_PRESSED);
    works(busy, now + KERNEL_NS);
    step(MS / 2);
}

/* It comes back: the other one's gate closes. How long it waits until it is let in. */
static inline uint64_t
come_back(void)
{
    uint64_t since = now;

    demands[rests].waiting = true;
    step(0);
    demands[busy].waiting = gates[busy] == CGPU_GATE_CLOSED;
    while (gates[rests] == CGPU_GATE_CLOSED && now < since + 2 * KERNEL_NS) {
        step(MS / 10);
        if (now >= demands[busy].end_ns) {
            is_quiet(busy);
        }
        demands[busy].waiting = gates[busy] == CGPU_GATE_CLOSED;
    }
    works(rests, now + BURST_NS);
    step(0);
    return now - since;
}

/* It works for so long. Kernels of the other one that end meanwhile are seen to. */
static inline void
work(uint64_t ns)
{
    for (uint64_t until = now + ns; now < until;) {
        step(MS / 10);
        if (demands[busy].active && now >= demands[busy].end_ns) {
            is_quiet(busy);
            demands[busy].waiting = true;
        }
        works(rests, now + BURST_NS);
    }
}

/* The first has had a burst alone. */
static inline void
begin(void)
{
    start(CGPU_POLICY_WEIGHTED_FAIR);
    contend(&rests, &busy);
    demands[busy].waiting = true;
    work(BURST_NS);
    rest();
}

/* Let in beside a kernel, it gets nothing until that has ended: the GPU runs kernels in order. */
static inline void
is_let_in_in_vain(void)
{
    come_back();
    while (demands[busy].active) {
        work(MS);
    }
    work(BURST_NS);
}

#endif
