/* What containers are charged for their turns, and what an arbiter reports of them. */
#include "arbiter_contest.h"

TEST(waiting_at_a_closed_gate_is_counted_and_nothing_else)
{
    struct cgpu_tenant_report held;
    struct cgpu_tenant_report waited;
    int holder;
    int waiter;

    start(CGPU_POLICY_WEIGHTED_FAIR);
    contend(&holder, &waiter);
    works(holder, now + 100 * MS);
    step(5 * MS);
    step(2 * MS);
    cgpu_arbiter_report(arbiter, holder, &held);
    cgpu_arbiter_report(arbiter, waiter, &waited);
    CHECK(gates[waiter] == CGPU_GATE_CLOSED);
    CHECK(waited.throttled_ns == 7 * MS);
    CHECK(waited.waits == 1);
    CHECK(held.throttled_ns == 0);
    CHECK(held.waits == 1);
}

/* What one of two is charged for 6 ms at the beginning of its turn, who say so of the lag. */
static uint64_t
charged_at_first(uint64_t lag_ns, uint64_t others_ns)
{
    struct cgpu_tenant_report report;
    int holder, waiter;

    memset(demands, 0, sizeof demands);
    start(CGPU_POLICY_WEIGHTED_FAIR);
    holder = add(1, false);
    waiter = add(1, false);
    demands[holder] = (struct cgpu_demand){.waiting = true, .lag_ns = lag_ns};
    demands[waiter] = (struct cgpu_demand){.waiting = true, .lag_ns = others_ns};
    step(0);
    CHECK(gates[holder] != CGPU_GATE_CLOSED);
    works(holder, now + 30 * MS);
    for (int i = 0; i < 6; i++) {
        step(MS);
    }
    cgpu_arbiter_report(arbiter, holder, &report);
    memset(demands, 0, sizeof demands);
    return report.charged_ns;
}

TEST(the_lag_at_the_beginning_of_a_turn_is_nobodys_where_nobody_says_less_of_it)
{
    uint64_t usual = charged_at_first(1, 1);

    CHECK(usual > 5 * MS && usual < 6 * MS);
    CHECK(charged_at_first(MS / 2, MS / 2) < usual - MS / 4);
    CHECK(charged_at_first(MS, 1) == usual);
}

TEST(an_overrun_is_charged_and_repaid)
{
    struct cgpu_tenant_report report;
    int holder, waiter;

    start(CGPU_POLICY_WEIGHTED_FAIR);
    contend(&holder, &waiter);
    works(holder, now + 200 * MS);
    step(20 * MS);
    demands[holder].waiting = true;
    now += 180 * MS;
    is_quiet(holder);
    step(0);
    cgpu_arbiter_report(arbiter, holder, &report);
    CHECK(report.charged_ns > 195 * MS);
    works(waiter, now + MS);
    for (int i = 0; i < 18; i++) { /* it has much to catch up on */
        step(10 * MS);
        works(waiter, now + MS);
        CHECK(gates[waiter] == CGPU_GATE_PRESSED);
    }
    step(30 * MS);
    CHECK(gates[waiter] == CGPU_GATE_CLOSED);
}

TEST(what_native_let_in_is_not_paid_for_under_the_next_policy_sch9)
{
    struct cgpu_rules rules = {CGPU_POLICY_FIXED, 20, 80};
    struct cgpu_tenant_report report;

    start(CGPU_POLICY_NATIVE);
    int one = add(1, false), two = add(3, false);

    step(0);
    works(one, now + 90 * MS);
    works(two, now + 90 * MS);
    cgpu_arbiter_set_rules(arbiter, &rules);
    step(0);
    step(90 * MS);
    is_quiet(one);
    is_quiet(two);
    demands[one].waiting = demands[two].waiting = true;
    step(0);
    for (int tenant = 0; tenant < 2; tenant++) {
        CHECK(gates[tenant] == CGPU_GATE_PRESSED);
        works(tenant, now + MS);
        step(MS);
        is_quiet(tenant);
        step(0);
        step(MS);
        cgpu_arbiter_report(arbiter, tenant, &report);
        CHECK(report.charged_ns > 0 && report.charged_ns < 3 * MS);
    }
}

TEST(nobody_pays_for_a_time_in_which_nobody_decided_rel2)
{
    struct cgpu_tenant_report before, after;
    int holder, waiter;

    start(CGPU_POLICY_WEIGHTED_FAIR);
    contend(&holder, &waiter);
    works(holder, now + 10000 * MS);
    step(MS);
    cgpu_arbiter_report(arbiter, holder, &before);
    now += 3000 * MS;
    cgpu_arbiter_skip(arbiter, now);
    step(MS);
    cgpu_arbiter_report(arbiter, holder, &after);
    CHECK(after.charged_ns - before.charged_ns <= MS);
}

TEST(fallback_parts_lie_side_by_side)
{
    struct cgpu_tenant_report one, two;

    start(CGPU_POLICY_WEIGHTED_FAIR);
    add(1, false);
    add(3, false);
    cgpu_arbiter_report(arbiter, 0, &one);
    cgpu_arbiter_report(arbiter, 1, &two);
    CHECK(one.fallback_ppm == 250000 && one.offset_ppm == 0);
    CHECK(two.fallback_ppm == 750000 && two.offset_ppm == 250000);
    CHECK(one.limit_ppm == 1000000 && two.limit_ppm == 1000000); /* as long as nobody wants */
}

/* As docs/metrics.md and cgpu-smi say it. */
TEST(limits_of_those_beside_a_high_priority_one_are_parts_of_what_it_leaves)
{
    struct cgpu_tenant_report report;

    start(CGPU_POLICY_WEIGHTED_FAIR);
    int one = add(1, false), three = add(3, false), high = add(5, true);
    for (int tenant = 0; tenant < 3; tenant++) {
        demands[tenant].waiting = true;
    }
    step(MS);
    cgpu_arbiter_report(arbiter, high, &report);
    CHECK(report.limit_ppm == 800000); /* prio_ratio */
    cgpu_arbiter_report(arbiter, one, &report);
    CHECK(report.limit_ppm == 250000);
    cgpu_arbiter_report(arbiter, three, &report);
    CHECK(report.limit_ppm == 750000);
}

/* Programs run at once: whose time it was is a guess, and whoever shows it has to know. */
TEST(charges_under_the_soft_policy_are_marked_as_rough_sch4)
{
    const struct {
        uint32_t policy, metered;
    } cases[] = {{CGPU_POLICY_WEIGHTED_FAIR, CGPU_METERED},
                 {CGPU_POLICY_PREEMPTIVE, CGPU_METERED},
                 {CGPU_POLICY_SOFT, CGPU_METERED | CGPU_METERED_ROUGHLY | CGPU_METERED_SPANS},
                 {CGPU_POLICY_NATIVE, 0}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cgpu_tenant_report report;

        start(cases[i].policy);
        int tenant = add(1, false);
        demands[tenant].waiting = demands[add(1, false)].waiting = true;
        step(MS);
        cgpu_arbiter_report(arbiter, tenant, &report);
        CHECK((report.metered & ~(uint32_t)CGPU_METERED_SLICED) == cases[i].metered);
    }
}

/* Not on several GPUs, nor beside high priority, nor with several processes. */
TEST(who_shares_time_slices_under_the_soft_policy_may_fill_them)
{
    const struct {
        uint64_t container;
        uint32_t processes;
        bool high, sliced;
    } cases[] = {
        {0, 1, false, true}, {0, 2, false, false}, {0, 1, true, false}, {7, 1, false, false}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        start(CGPU_POLICY_SOFT);
        int tenant = add(1, false);
        int other = add(1, cases[i].high);
        cgpu_arbiter_set_container(arbiter, tenant, cases[i].container);
        demands[other].waiting = true;
        demands[tenant].active = true;
        demands[tenant].processes = cases[i].processes;
        step(MS);
        uint32_t metered = cgpu_arbiter_metered(arbiter, tenant);
        CHECK(((metered & CGPU_METERED_SLICED) != 0) == cases[i].sliced);
    }
}

/* It had been stalled, as a host function held it up; the gate is closed by then. */
TEST(work_that_comes_up_behind_a_closed_gate_is_paid_for)
{
    struct cgpu_tenant_report before, after;
    int risen, other;

    start(CGPU_POLICY_WEIGHTED_FAIR);
    contend(&risen, &other);
    step(20 * MS);
    is_quiet(risen);
    step(MS);
    CHECK(gates[other] != CGPU_GATE_CLOSED && gates[risen] == CGPU_GATE_CLOSED);
    works(other, now + 100 * MS);
    demands[risen].active = true;
    demands[risen].certain = false;
    step(0);
    cgpu_arbiter_report(arbiter, risen, &before);
    step(10 * MS);
    cgpu_arbiter_report(arbiter, risen, &after);
    CHECK(after.charged_ns - before.charged_ns > 4900000);
    CHECK(after.charged_ns - before.charged_ns <= 5 * MS);
    is_quiet(risen);
    step(0);
    step(10 * MS);
    cgpu_arbiter_report(arbiter, risen, &before);
    CHECK(after.charged_ns == before.charged_ns);
}

TEST(who_never_launched_is_charged_nothing_when_another_comes)
{
    memset(demands, 0, sizeof demands);
    start(CGPU_POLICY_WEIGHTED_FAIR);
    int idle = add(1, false);
    step(0);
    step(1000 * MS);
    CHECK(gates[idle] == CGPU_GATE_FREE);
    int newcomer = add(1, false);
    step(0);
    CHECK(gates[idle] == CGPU_GATE_PRESSED);
    for (int i = 0; i < 30; i++) {
        step(10 * MS);
    }
    CHECK(charged(idle) == 0);
    demands[newcomer].waiting = true;
    step(0);
    while (gates[newcomer] == CGPU_GATE_CLOSED) {
        step(MS / 10);
    }
    CHECK(charged(idle) < MS); /* its gate was open while somebody waited */
}

/* docker pause in the middle of a turn: work that has long ended, and nobody to say so. */
TEST(who_has_a_ceiling_pays_all_it_uses_beside_one_that_is_stopped_sch3)
{
    uint64_t open_ns = 0;
    int stopped, other;

    memset(demands, 0, sizeof demands);
    start(CGPU_POLICY_FIXED);
    stopped = add(10, false);
    other = add(6, false);
    demands[stopped].waiting = true;
    step(0);
    CHECK(gates[stopped] != CGPU_GATE_CLOSED);
    works(stopped, now + MS);
    for (int i = 0; i < 30000; i++) {
        if (gates[other] == CGPU_GATE_CLOSED) {
            demands[other] = (struct cgpu_demand){.waiting = true};
        } else {
            works(other, now + 10 * MS);
        }
        step(MS);
        open_ns += i >= 10000 && gates[other] != CGPU_GATE_CLOSED ? MS : 0;
    }
    CHECK(open_ns > 5000 * MS && open_ns < 6200 * MS); /* of 20 s, 30 % */
}

TEST(who_is_left_alone_is_charged_what_it_says_that_it_used)
{
    memset(demands, 0, sizeof demands);
    start(CGPU_POLICY_WEIGHTED_FAIR);
    int lone = add(1, false);
    add(1, false);
    demands[lone].waiting = true;
    step(0);
    works(lone, now);
    step(200 * MS);
    CHECK(gates[lone] == CGPU_GATE_OPEN);
    uint64_t before = charged(lone);
    for (int i = 0; i < 10; i++) {
        demands[lone].busy_ns += 10 * MS;
        step(100 * MS);
    }
    CHECK(charged(lone) - before <= 100 * MS && charged(lone) - before >= 90 * MS);
}

/* Bursts of 2 ms and rests of GAP beside one that is always busy: the part of the time, percent. */
static uint64_t
part_of_bursts(uint64_t gap)
{
    uint64_t left = 2 * MS, rests_until = 0, begun;

    memset(demands, 0, sizeof demands);
    start(CGPU_POLICY_WEIGHTED_FAIR);
    int bursts = add(1, false), busy = add(1, false);
    begun = now;
    while (now < begun + 4000 * MS) {
        demands[busy].waiting = gates[busy] == CGPU_GATE_CLOSED;
        demands[busy].active = !demands[busy].waiting;
        demands[busy].certain = demands[busy].active;
        demands[busy].end_ns = now + MS / 2;
        if (rests_until > now) {
            demands[bursts].idle = demands[bursts].active;
            demands[bursts].active = gates[bursts] != CGPU_GATE_CLOSED;
        } else if (gates[bursts] == CGPU_GATE_CLOSED) {
            demands[bursts] = (struct cgpu_demand){.waiting = true};
        } else {
            demands[bursts] = (struct cgpu_demand){.active = true, .certain = true};
            left -= MS / 8;
        }
        if (left == 0) {
            left = 2 * MS;
            rests_until = now + gap;
        }
        step(MS / 8);
    }
    return charged(bursts) * 100 / (now - begun);
}

TEST(who_rests_between_bursts_gets_its_part_neither_more_nor_less_for_it)
{
    uint64_t short_gap = part_of_bursts(MS / 2), long_gap = part_of_bursts(2 * MS);

    CHECK(short_gap >= 40 && short_gap <= 47);
    CHECK(long_gap >= 30 && long_gap <= 36);
}

/* Its turn would be over before it is seen to be absent. */
TEST(one_that_is_stopped_keeps_no_short_turns)
{
    uint64_t held = 0;

    start(CGPU_POLICY_WEIGHTED_FAIR);
    int stopped = add(1, false), other = add(3, false);
    for (int i = 0; i < 20000; i++) {
        demands[stopped].waiting = true;
        if (gates[other] == CGPU_GATE_CLOSED) {
            is_quiet(other);
            demands[other].waiting = true;
        } else {
            works(other, now + MS / 10);
        }
        held += gates[stopped] != CGPU_GATE_CLOSED ? MS / 10 : 0;
        step(MS / 10);
    }
    CHECK(held < 100 * MS);
}

TEST(a_share_is_shown_of_the_time_in_which_it_was_charged_cli3)
{
    struct cgpu_tenant_report report;
    int tenant;

    memset(demands, 0, sizeof demands);
    start(CGPU_POLICY_WEIGHTED_FAIR);
    tenant = add(1, false);
    add(1, false);
    demands[tenant].waiting = true;
    step(0);
    works(tenant, now + 1000000 * MS);
    for (int i = 0; i < 600; i++) {
        demands[tenant].busy_ns += 7 * MS;
        step(7 * MS);
        cgpu_arbiter_report(arbiter, tenant, &report);
        CHECK(i < 150 || (report.measured_ppm > 998000 && report.measured_ppm <= CGPU_WHOLE_PPM));
    }
    /* nobody looked for a minute */
    demands[tenant].busy_ns += 6000 * MS;
    step(60000 * MS);
    cgpu_arbiter_report(arbiter, tenant, &report);
    CHECK(report.measured_ppm > 98000 && report.measured_ppm < 102000);
}
