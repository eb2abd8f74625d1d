/* SCH-6: what follows when turns return after a time in which gates were open together. */
#include "arbiter_corun.h"

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
    CHECK(run(190 * MS, 2, heavy, heavy) == 0);           /* it is no part of what is compared */
    CHECK(charged(tenants[1]) - before > 180 * MS);       /* who waited catches up */
    CHECK(run(1200 * MS, 2, alone, together) > 100 * MS); /* nor long work of a turn */
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
    CHECK(run(1000 * MS, 2, alone, together) > 300 * MS);
    demands[tenants[2]].waiting = true;
    run(110 * MS, 3, alone, together);
    CHECK(open_gates() <= 1);
    before = charged(tenants[2]);
    run(100 * MS, 3, alone, together);
    CHECK(charged(tenants[2]) - before < 10 * MS);
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

/* They leave their turns after bursts of 1 ms until both gates are open. */
static void
leave_turns(void)
{
    uint64_t burst_ns[2] = {0};

    for (uint64_t until = now + 2000 * MS; open_gates() < 2 && now < until;) {
        for (int i = 0; i < 2; i++) {
            int tenant = tenants[i];

            if (gates[tenant] == CGPU_GATE_CLOSED || burst_ns[i] == MS) {
                is_quiet(tenant);
                demands[tenant].waiting = gates[tenant] == CGPU_GATE_CLOSED;
                burst_ns[i] = 0;
            } else {
                works(tenant, now + PART_NS);
                demands[tenant].done_ns += PART_NS * 2 / 5;
                burst_ns[i] += PART_NS;
            }
        }
        step(PART_NS);
    }
    CHECK(open_gates() == 2);
}

TEST(turns_left_before_it_do_not_shorten_those_afterwards)
{
    uint64_t held = 0;

    begin(CGPU_POLICY_WEIGHTED_FAIR, 2, 1);
    leave_turns();
    cgpu_arbiter_set_tenant(arbiter, tenants[1], 1, false);
    for (int i = 0; i < 2; i++) {
        is_quiet(tenants[i]);
        demands[tenants[i]].waiting = true;
    }
    step(PART_NS);
    CHECK(open_gates() == 1);
    for (int holder = gates[tenants[0]] != CGPU_GATE_CLOSED ? tenants[0] : tenants[1];
         gates[holder] != CGPU_GATE_CLOSED; held += PART_NS) {
        works(holder, now + PART_NS);
        step(PART_NS);
    }
    CHECK(held > 6 * MS); /* at least a usual turn; the pair of one that rests and the other: 3 */
}
