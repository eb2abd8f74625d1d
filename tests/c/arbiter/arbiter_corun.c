/* SCH-6: containers that leave the GPU idle in their turns run together, if nobody loses. */
#include "arbiter_corun.h"

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
    const uint64_t alone[] = {400, 400}, together[] = {350, 350};
    uint64_t ns = 0;

    begin(CGPU_POLICY_WEIGHTED_FAIR, 2, 1);
    tenants[2] = add(1, false);
    for (int i = 0; i < 20; i++) {
        ns += run(150 * MS, 2, alone, together);
        demands[tenants[2]].waiting = true;
        while (gates[tenants[2]] == CGPU_GATE_CLOSED) {
            ns += run(PART_NS, 2, alone, together);
        }
        works(tenants[2], now + MS / 2);
        demands[tenants[2]].done_ns += MS / 2;
        step(MS / 2);
        is_quiet(tenants[2]);
    }
    CHECK(ns > 2000 * MS);
}

/* Until it is no longer worth it, and it has been tried again. */
static uint64_t
lose(void)
{
    const uint64_t alone[] = {400, 400}, together[] = {350, 350}, worse[] = {350, 180};
    uint64_t since;

    while (open_gates() == 2) {
        run(PART_NS, 2, alone, worse);
    }
    since = now;
    while (open_gates() < 2) {
        run(PART_NS, 2, alone, together);
    }
    since = now - since;
    run(150 * MS, 2, alone, together);
    return since;
}

TEST(who_makes_others_lose_again_waits_longer)
{
    meet();
    CHECK(lose() < 1300 * MS);
    CHECK(lose() > 1900 * MS);
    CHECK(lose() > 3900 * MS);
}

TEST(who_comes_makes_nobody_try_sooner)
{
    const uint64_t alone[] = {400, 400}, together[] = {350, 350}, worse[] = {350, 180};

    meet();
    while (open_gates() == 2) {
        run(PART_NS, 2, alone, worse);
    }
    add(1, false);
    CHECK(run(900 * MS, 2, alone, together) == 0);
}

/* What it did in the time in which it began is less than what its turns give it. */
TEST(who_has_just_begun_is_compared_later)
{
    const uint64_t alone[] = {400, 1000}, together[] = {350, 500};

    for (uint64_t late = 0; late < 200; late += 20) {
        begin(CGPU_POLICY_WEIGHTED_FAIR, 2, 1);
        cgpu_arbiter_set_tenant(arbiter, tenants[1], 9, false);
        demands[tenants[1]].waiting = false;
        run((1000 + late) * MS, 1, alone, together);
        demands[tenants[1]].waiting = true;
        CHECK(run(4000 * MS, 2, alone, together) < 100 * MS); /* attempts */
    }
}

/* Its kernels are long, or unknown. */
TEST(who_has_nothing_to_show_for_its_turns_forbids_it)
{
    const uint64_t alone[] = {400, 400, 0}, together[] = {350, 350, 0};

    begin(CGPU_POLICY_WEIGHTED_FAIR, 2, 1);
    tenants[2] = add(1, false);
    demands[tenants[2]].waiting = true;
    CHECK(run(3000 * MS, 3, alone, together) == 0);
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
