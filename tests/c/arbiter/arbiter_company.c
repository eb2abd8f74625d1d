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
    CHECK(run(390 * MS, 2, alone, together) == 0);
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
    run(700 * MS, 2, alone, together);
    CHECK(open_gates() == 2);
    run(210 * MS, 2, alone, worse);
    CHECK(open_gates() <= 1);
    CHECK(run(700 * MS, 2, alone, worse) == 0);
}

TEST(a_newcomer_ends_it_until_all_are_compared)
{
    const uint64_t alone[] = {400, 400, 400}, together[] = {350, 350, 350};

    begin(CGPU_POLICY_WEIGHTED_FAIR, 2, 1);
    run(700 * MS, 2, alone, together);
    CHECK(open_gates() == 2);
    tenants[2] = add(1, false);
    demands[tenants[2]] = (struct cgpu_demand){.waiting = true};
    step(MS);
    CHECK(open_gates() <= 1);
    CHECK(run(380 * MS, 3, alone, together) == 0);
    run(200 * MS, 3, alone, together);
    CHECK(open_gates() == 3);
}

TEST(another_weight_ends_it_until_turns_are_compared)
{
    const uint64_t alone[] = {400, 400}, together[] = {350, 350};

    begin(CGPU_POLICY_WEIGHTED_FAIR, 2, 1);
    run(700 * MS, 2, alone, together);
    CHECK(open_gates() == 2);
    cgpu_arbiter_set_tenant(arbiter, tenants[0], 19, false); /* it has 380 in turns */
    step(MS);
    CHECK(open_gates() <= 1);
    CHECK(run(380 * MS, 2, alone, together) == 0);
    CHECK(run(5000 * MS, 2, alone, together) < 600 * MS);
}

/* Two that leave the GPU idle, and whose gates are open together. */
static void
meet(void)
{
    const uint64_t alone[] = {400, 400}, together[] = {350, 350};

    begin(CGPU_POLICY_WEIGHTED_FAIR, 2, 1);
    run(700 * MS, 2, alone, together);
    CHECK(open_gates() == 2);
}

TEST(what_goes_on_afterwards_is_paid_for)
{
    const uint64_t heavy[] = {1000, 1000}, alone[] = {400, 400}, together[] = {350, 350};
    uint64_t before, late;

    meet();
    works(tenants[0], now + 300 * MS);
    cgpu_arbiter_set_tenant(arbiter, tenants[1], 1, false);
    before = charged(tenants[0]);
    for (int i = 0; i < 300; i++) {
        is_quiet(tenants[1]);
        demands[tenants[1]].waiting = true;
        step(MS);
    }
    late = charged(tenants[0]) - before;
    CHECK(late > 290 * MS && late < 310 * MS);
    is_quiet(tenants[0]);
    demands[tenants[0]].waiting = demands[tenants[1]].waiting = true;
    before = charged(tenants[1]);
    CHECK(run(190 * MS, 2, heavy, heavy) == 0);          /* it is no part of what is compared */
    CHECK(charged(tenants[1]) - before > 180 * MS);      /* who waited catches up */
    CHECK(run(700 * MS, 2, alone, together) > 100 * MS); /* nor long work of a turn */
}

TEST(both_pay_for_what_goes_on_afterwards)
{
    uint64_t before[2], paid[2];

    meet();
    cgpu_arbiter_set_tenant(arbiter, tenants[1], 1, false);
    for (int i = 0; i < 2; i++) {
        works(tenants[i], now + 20 * MS);
        before[i] = charged(tenants[i]);
    }
    for (int i = 0; i < 200; i++) {
        step(MS / 10);
    }
    for (int i = 0; i < 2; i++) {
        paid[i] = charged(tenants[i]) - before[i];
    }
    CHECK(paid[0] > 9 * MS && paid[0] < 11 * MS && paid[1] > 9 * MS && paid[1] < 11 * MS);
}

TEST(what_goes_on_afterwards_is_not_compared)
{
    const uint64_t alone[] = {400, 400}, together[] = {350, 350};

    meet();
    while (open_gates() == 2) {
        run(PART_NS, 2, alone, together);
    }
    for (int i = 0; i < 100; i++) {
        works(tenants[0], now + MS);
        works(tenants[1], now + MS);
        step(MS);
    }
    is_quiet(tenants[0]);
    is_quiet(tenants[1]);
    CHECK(run(190 * MS, 2, alone, together) == 0);
    CHECK(run(100 * MS, 2, alone, together) > 50 * MS);
}

/* Two that are together do not forgive a third one what it owes. */
TEST(debts_outlast_it)
{
    const uint64_t alone[] = {400, 400, 1000}, together[] = {350, 350, 1000};
    uint64_t before;

    begin(CGPU_POLICY_WEIGHTED_FAIR, 2, 1);
    tenants[2] = add(1, false);
    demands[tenants[2]] = (struct cgpu_demand){.waiting = true};
    while (gates[tenants[2]] == CGPU_GATE_CLOSED) {
        run(MS, 2, alone, together);
    }
    works(tenants[2], now + 800 * MS);
    for (int i = 0; i < 8000; i++) {
        is_quiet(tenants[0]);
        is_quiet(tenants[1]);
        demands[tenants[0]].waiting = demands[tenants[1]].waiting = true;
        step(PART_NS);
    }
    is_quiet(tenants[2]);
    CHECK(run(600 * MS, 2, alone, together) > 300 * MS);
    demands[tenants[2]].waiting = true;
    run(110 * MS, 3, alone, together);
    CHECK(open_gates() <= 1);
    before = charged(tenants[2]);
    run(100 * MS, 3, alone, together);
    CHECK(charged(tenants[2]) - before < 10 * MS);
}

TEST(who_does_more_than_before_ends_it)
{
    const uint64_t alone[] = {400, 400}, more[] = {480, 480};
    uint64_t ns;

    meet();
    ns = run(300 * MS, 2, alone, more);
    CHECK(ns < 210 * MS);
    CHECK(run(300 * MS, 2, alone, more) > 50 * MS); /* no attempt has failed */
}

TEST(who_begins_ends_it)
{
    const uint64_t alone[] = {400, 400, 300}, together[] = {350, 350, 300};

    begin(CGPU_POLICY_WEIGHTED_FAIR, 2, 1);
    tenants[2] = add(1, false);
    run(700 * MS, 2, alone, together);
    CHECK(open_gates() == 3);
    run(110 * MS, 3, alone, together);
    CHECK(open_gates() <= 1);
}

/* It has too little to do to be compared. */
TEST(who_launches_now_and_then_forbids_nothing)
{
    const uint64_t alone[] = {400, 400, 30}, together[] = {350, 350, 30};
    uint64_t ns = 0;

    begin(CGPU_POLICY_WEIGHTED_FAIR, 2, 1);
    tenants[2] = add(1, false);
    for (int i = 0; i < 50; i++) {
        ns += run(60 * MS, 2, alone, together);
        ns += run(20 * MS, 3, alone, together);
        is_quiet(tenants[2]);
        demands[tenants[2]].waiting = false;
    }
    CHECK(ns > 3000 * MS);
}

TEST(who_has_several_processes_does_not_launch_far_ahead)
{
    meet();
    demands[tenants[0]].processes = 1;
    demands[tenants[1]].processes = 2;
    step(PART_NS);
    CHECK((cgpu_arbiter_metered(arbiter, tenants[0]) & CGPU_METERED_SLICED) != 0);
    CHECK((cgpu_arbiter_metered(arbiter, tenants[1]) & CGPU_METERED_SLICED) == 0);
    CHECK((cgpu_arbiter_metered(arbiter, tenants[1]) & CGPU_METERED_TOGETHER) != 0);
}

/* What is in flight then ran between the time slices of others. */
TEST(nothing_is_learnt_from_what_goes_on_afterwards)
{
    meet();
    works(tenants[0], now + 5 * MS);
    cgpu_arbiter_set_tenant(arbiter, tenants[1], 1, false);
    step(PART_NS);
    CHECK(open_gates() == 0);
    CHECK((cgpu_arbiter_metered(arbiter, tenants[0]) & CGPU_METERED_TOGETHER) != 0);
    is_quiet(tenants[0]);
    step(PART_NS);
    CHECK((cgpu_arbiter_metered(arbiter, tenants[0]) & CGPU_METERED_TOGETHER) == 0);
}

TEST(a_time_without_arbiter_is_not_compared)
{
    const uint64_t alone[] = {400, 400}, together[] = {350, 350};

    meet();
    now += 300 * MS;
    cgpu_arbiter_skip(arbiter, now);
    step(PART_NS);
    CHECK(open_gates() <= 1);
    CHECK(run(180 * MS, 2, alone, together) == 0);
    CHECK(run(500 * MS, 2, alone, together) > 400 * MS); /* no attempt has failed */
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
