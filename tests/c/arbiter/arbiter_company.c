/* SCH-6: containers that leave the GPU idle in their turns run together, if nobody loses. */
#include "arbiter_contest.h"

#define PART_NS (MS / 10)

static int tenants[3];
static uint64_t drain_ns, open_until[CGPU_MAX_TENANTS];

/*
 * For NS, each does so much in a millisecond in which its gate is open: in turns, and together.
 * Its work goes on for DRAIN_NS after its gate has closed.
 */
static uint64_t
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

static void
begin(uint32_t policy, int count, uint32_t weight)
{
    start(policy);
    for (int i = 0; i < count; i++) {
        tenants[i] = add(i == 0 ? weight : 1, false);
        demands[tenants[i]] = (struct cgpu_demand){.waiting = true};
    }
    step(0);
}

TEST(who_leaves_the_gpu_idle_runs_beside_others)
{
    const uint64_t alone[] = {400, 400}, together[] = {350, 350};
    uint64_t before;

    begin(CGPU_POLICY_WEIGHTED_FAIR, 2, 1);
    CHECK(run(90 * MS, 2, alone, together) == 0);
    CHECK(run(1000 * MS, 2, alone, together) > 900 * MS);
    CHECK((cgpu_arbiter_metered(arbiter, tenants[0]) & CGPU_METERED_TOGETHER) != 0);
    before = charged(tenants[0]) - charged(tenants[1]);
    run(1000 * MS, 2, alone, together);
    before = charged(tenants[0]) - charged(tenants[1]) - before;
    CHECK(before + 10 * MS < 20 * MS); /* they pay alike */
}

TEST(turns_return_to_compare)
{
    const uint64_t alone[] = {400, 400}, together[] = {350, 350};
    uint64_t ns;

    begin(CGPU_POLICY_WEIGHTED_FAIR, 2, 1);
    ns = run(10000 * MS, 2, alone, together);
    CHECK(ns > 9000 * MS && ns < 9800 * MS);
}

TEST(who_would_lose_keeps_its_turns)
{
    const uint64_t alone[] = {400, 400}, together[] = {350, 350};

    begin(CGPU_POLICY_WEIGHTED_FAIR, 2, 9); /* has nine tenths of 400 us in turns */
    CHECK(run(10000 * MS, 2, alone, together) > 9000 * MS);
    begin(CGPU_POLICY_WEIGHTED_FAIR, 2, 19);
    CHECK(run(10000 * MS, 2, alone, together) < 600 * MS); /* attempts, which seem worth it */
}

TEST(who_fills_the_gpu_has_turns)
{
    const uint64_t alone[] = {1000, 1000}, together[] = {480, 480};

    begin(CGPU_POLICY_WEIGHTED_FAIR, 2, 1);
    CHECK(run(60000 * MS, 2, alone, together) < 200 * MS); /* six attempts of 20 ms */
}

TEST(who_gains_less_than_it_seemed_has_turns_again)
{
    const uint64_t alone[] = {400, 400}, together[] = {350, 350}, worse[] = {350, 180};

    begin(CGPU_POLICY_WEIGHTED_FAIR, 2, 1);
    run(500 * MS, 2, alone, together);
    CHECK(open_gates() == 2);
    run(210 * MS, 2, alone, worse);
    CHECK(open_gates() <= 1);
    CHECK(run(700 * MS, 2, alone, worse) == 0);
}

TEST(a_newcomer_ends_it_until_all_are_compared)
{
    const uint64_t alone[] = {400, 400, 400}, together[] = {350, 350, 350};

    begin(CGPU_POLICY_WEIGHTED_FAIR, 2, 1);
    run(500 * MS, 2, alone, together);
    CHECK(open_gates() == 2);
    tenants[2] = add(1, false);
    demands[tenants[2]] = (struct cgpu_demand){.waiting = true};
    step(MS);
    CHECK(open_gates() <= 1);
    CHECK(run(80 * MS, 3, alone, together) == 0);
    run(200 * MS, 3, alone, together);
    CHECK(open_gates() == 3);
}

TEST(another_weight_ends_it_until_turns_are_compared)
{
    const uint64_t alone[] = {400, 400}, together[] = {350, 350};

    begin(CGPU_POLICY_WEIGHTED_FAIR, 2, 1);
    run(500 * MS, 2, alone, together);
    CHECK(open_gates() == 2);
    cgpu_arbiter_set_tenant(arbiter, tenants[0], 19, false); /* it has 380 in turns */
    step(MS);
    CHECK(open_gates() <= 1);
    CHECK(run(80 * MS, 2, alone, together) == 0);
    CHECK(run(5000 * MS, 2, alone, together) < 600 * MS);
}

TEST(ceilings_and_high_priority_forbid_it)
{
    const uint64_t alone[] = {400, 400}, together[] = {350, 350};

    begin(CGPU_POLICY_FIXED, 2, 1);
    CHECK(run(3000 * MS, 2, alone, together) == 0);
    begin(CGPU_POLICY_WEIGHTED_FAIR, 2, 1);
    add(1, true);
    CHECK(run(3000 * MS, 2, alone, together) == 0);
}

TEST(long_kernels_forbid_it)
{
    const uint64_t alone[] = {400, 400}, together[] = {350, 350};

    begin(CGPU_POLICY_WEIGHTED_FAIR, 2, 1);
    drain_ns = 3 * MS;
    CHECK(run(3000 * MS, 2, alone, together) == 0);
    drain_ns = 0;
}
