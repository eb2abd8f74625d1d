/*
 * What a container had of the GPU and did not use: with a ceiling, as its threads were late, and in
 * the figures for people (CLI-3).
 */
#include "arbiter/arbiter_state.h"
#include "arbiter_world.h"

#define START_NS CGPU_START_NS /* of each turn, nobody's */

/* Alone under a ceiling of 5 %; idle for long enough to be believed what it says. */
static int
lone(void)
{
    int index;

    start(CGPU_POLICY_FIXED);
    index = cgpu_arbiter_add(arbiter, 1, false, now);
    CHECK(index >= 0);
    step(0);
    for (int i = 0; i < 20; i++) {
        step(100 * MS);
    }
    return index;
}

static uint64_t
charged(int index)
{
    struct cgpu_tenant_report report;

    cgpu_arbiter_report(arbiter, index, &report);
    return report.charged_ns;
}

static void
is_let_in(int index)
{
    demands[index] = (struct cgpu_demand){.waiting = true};
    for (int i = 0; i < 1000 && gates[index] == CGPU_GATE_CLOSED; i++) {
        step(MS);
    }
    CHECK(gates[index] != CGPU_GATE_CLOSED);
}

/* It has launched since BEGUN; nobody looked before. */
static void
has_worked(int index, uint64_t begun, uint64_t ns)
{
    uint64_t end = now + ns;

    demands[index] = (struct cgpu_demand){
        .active = true, .certain = true, .begun_ns = begun, .end_ns = end + MS};
    step(ns);
}

/* Its gate is closed; END is when its last work ended, NS before that is seen. */
static void
is_seen_to_end(int index, uint64_t end, uint64_t ns)
{
    step(0);
    CHECK(gates[index] == CGPU_GATE_CLOSED);
    demands[index] = (struct cgpu_demand){.waiting = true, .end_ns = end};
    step(ns);
}

TEST(what_passes_before_the_first_launch_under_a_ceiling_is_not_charged)
{
    int index = lone();

    is_let_in(index);
    has_worked(index, now + 3 * MS, 4 * MS);
    CHECK(charged(index) == MS);
    has_worked(index, now + 3 * MS, MS); /* only the first launch of a turn counts */
    CHECK(charged(index) == 2 * MS);
}

TEST(what_passes_after_the_last_kernel_under_a_ceiling_is_not_charged)
{
    int index = lone();
    uint64_t before;

    is_let_in(index);
    has_worked(index, now, 20 * MS);
    before = charged(index);
    is_seen_to_end(index, now + MS, 3 * MS);
    CHECK(charged(index) == before + MS + START_NS);
}

TEST(a_container_that_does_not_say_when_it_began_pays_for_all_of_its_turn)
{
    int index = lone();

    is_let_in(index);
    has_worked(index, 0, 4 * MS);
    CHECK(charged(index) == 4 * MS - START_NS);
    has_worked(index, 0, 16 * MS);
    is_seen_to_end(index, now, 2 * MS);
    CHECK(charged(index) == 22 * MS - START_NS);
}

TEST(an_end_in_the_distant_future_is_no_time_that_was_not_used)
{
    int index = lone();
    uint64_t before;

    is_let_in(index);
    has_worked(index, now, 20 * MS);
    before = charged(index);
    is_seen_to_end(index, UINT64_MAX, MS);
    CHECK(charged(index) == before + MS);
}

/* In each turn it says that it has just begun, and that its work ended when its gate closed. */
TEST(whoever_always_says_that_it_was_late_has_half_a_percent_of_the_time_more)
{
    int index = lone();
    uint64_t begun = now, had = 0;

    for (int turn = 0; turn < 200; turn++) {
        uint64_t opened;

        is_let_in(index);
        opened = now;
        has_worked(index, now + 6 * MS, 6 * MS);
        while (gates[index] != CGPU_GATE_CLOSED) {
            has_worked(index, now + MS, MS);
        }
        is_seen_to_end(index, 0, MS);
        had += now - opened;
    }
    CHECK(had <= (now - begun) * 56 / 1000 + 5 * MS);
    CHECK(had >= (now - begun) * 54 / 1000);
}

TEST(beside_others_that_want_the_gpu_a_container_pays_for_all_of_its_turn)
{
    int index = lone();
    int other = cgpu_arbiter_add(arbiter, 1, false, now);
    uint64_t before;

    CHECK(other >= 0);
    is_let_in(other);
    has_worked(other, now, 20 * MS);
    demands[index].waiting = true;
    step(0);
    step(MS);
    CHECK(gates[index] != CGPU_GATE_CLOSED); /* let in before the other's end was seen */
    demands[other] = (struct cgpu_demand){.end_ns = now};
    step(MS);
    before = charged(index);
    has_worked(index, now + 2 * MS, 3 * MS);
    CHECK(charged(index) > before + 2 * MS);
}

TEST(without_a_ceiling_nothing_is_taken_off)
{
    int one, two;

    start(CGPU_POLICY_WEIGHTED_FAIR);
    one = cgpu_arbiter_add(arbiter, 1, false, now);
    two = cgpu_arbiter_add(arbiter, 1, false, now);
    CHECK(one >= 0 && two >= 0);
    step(0);
    step(1000 * MS);
    is_let_in(one);
    demands[two].waiting = true;
    step(0);
    has_worked(one, now + 3 * MS, 4 * MS);
    CHECK(charged(one) == 4 * MS - START_NS);
}

TEST(the_free_beginning_of_a_turn_is_shown_with_who_used_it_cli3)
{
    int one, two;

    start(CGPU_POLICY_WEIGHTED_FAIR);
    one = cgpu_arbiter_add(arbiter, 1, false, now);
    two = cgpu_arbiter_add(arbiter, 1, false, now);
    step(1000 * MS);
    is_let_in(one);
    demands[two].waiting = true;
    step(0);
    has_worked(one, now, 4 * MS);
    demands[one] = (struct cgpu_demand){.certain = true, .busy_ns = 4 * MS};
    step(0);
    CHECK(charged(one) == 4 * MS);
}

/* Two that have turns, with work in flight. */
static struct cgpu_tenant *
two_at_work(void)
{
    start(CGPU_POLICY_WEIGHTED_FAIR);
    for (int i = 0; i < 2; i++) {
        CHECK(cgpu_arbiter_add(arbiter, 1, false, now) == i);
        arbiter->tenants[i].demand = (struct cgpu_demand){.active = true, .certain = true};
    }
    return arbiter->tenants;
}

/* TENANT has no work left, and says that it had the GPU for BUSY in all. */
static void
has_rested(struct cgpu_tenant *tenant, uint64_t busy)
{
    cgpu_used_observe(arbiter, tenant, &(struct cgpu_demand){.busy_ns = busy});
}

TEST(idle_time_of_a_turn_is_charged_but_not_shown_cli3)
{
    struct cgpu_tenant *tenants = two_at_work();
    uint64_t before = tenants->virtual_ns;

    cgpu_pay(arbiter, &tenants[0], 10 * MS);
    has_rested(&tenants[0], 6 * MS);
    cgpu_pay(arbiter, &tenants[0], 10 * MS);
    CHECK(charged(0) == 16 * MS);
    CHECK(tenants->charged_ns == 20 * MS);
    CHECK(tenants->virtual_ns - before == 20 * MS * CGPU_VIRTUAL_UNIT / tenants->claim.competes);
}

TEST(who_used_what_another_was_charged_for_is_shown_with_it_cli3)
{
    struct cgpu_tenant *tenants = two_at_work();

    cgpu_pay(arbiter, &tenants[0], 10 * MS);
    cgpu_pay(arbiter, &tenants[1], 10 * MS);
    has_rested(&tenants[0], 6 * MS);
    has_rested(&tenants[1], 13 * MS);
    CHECK(charged(1) == 13 * MS);
    tenants[1].demand.active = true;
    cgpu_pay(arbiter, &tenants[1], 10 * MS);
    has_rested(&tenants[1], 100 * MS); /* one of the four is left */
    CHECK(charged(1) == 24 * MS);
}

TEST(what_one_that_has_gone_was_shown_with_is_not_shown_for_another_cli3)
{
    struct cgpu_tenant *tenants = two_at_work();

    cgpu_pay(arbiter, &tenants[0], 10 * MS);
    cgpu_pay(arbiter, &tenants[1], 10 * MS);
    has_rested(&tenants[0], 6 * MS);
    cgpu_arbiter_remove(arbiter, 0, now);
    has_rested(&tenants[1], 13 * MS);
    CHECK(charged(1) == 10 * MS);
}

TEST(who_reports_no_use_is_shown_with_what_it_is_charged_cli3)
{
    struct cgpu_tenant *tenants = two_at_work();

    cgpu_pay(arbiter, &tenants[0], 10 * MS);
    has_rested(&tenants[0], 0);
    cgpu_pay(arbiter, &tenants[0], 10 * MS);
    CHECK(charged(0) == 20 * MS);
}

static void
look(struct cgpu_tenant *tenant, const struct cgpu_demand *says)
{
    cgpu_used_observe(arbiter, tenant, says);
    tenant->demand.stalls = says->stalls;
    tenant->demand.stalled_ns = says->stalled_ns;
}

/* It is charged for what was apart, but has no span of it. */
TEST(nothing_is_corrected_while_work_stands_apart_cli3)
{
    struct cgpu_tenant *tenants = two_at_work();
    struct cgpu_demand says = {.busy_ns = MS, .stalls = 1};

    cgpu_pay(arbiter, &tenants[0], 1000 * MS);
    look(&tenants[0], &says);
    cgpu_pay(arbiter, &tenants[0], 10 * MS);
    CHECK(charged(0) == 1010 * MS);
    says.busy_ns += MS;
    says.stalled_ns = 500 * MS;
    look(&tenants[0], &says);
    cgpu_pay(arbiter, &tenants[0], 10 * MS);
    CHECK(charged(0) == 1020 * MS);
    says.busy_ns += 6 * MS;
    look(&tenants[0], &says);
    cgpu_pay(arbiter, &tenants[0], 10 * MS);
    CHECK(charged(0) == 1026 * MS);
}

TEST(a_report_of_little_use_hides_no_more_than_a_turn_or_two_cli3)
{
    struct cgpu_tenant *tenants = two_at_work();

    cgpu_pay(arbiter, &tenants[0], 1000 * MS);
    has_rested(&tenants[0], 1 * MS);
    cgpu_pay(arbiter, &tenants[0], 1000 * MS);
    CHECK(charged(0) == 1960 * MS);
}

TEST(what_is_not_measured_yet_is_shown_with_what_is_charged_cli3)
{
    struct cgpu_tenant *tenants = two_at_work();

    tenants[0].demand.certain = false;
    cgpu_pay(arbiter, &tenants[0], 10 * MS);
    has_rested(&tenants[0], MS);
    tenants[0].demand.certain = true;
    cgpu_pay(arbiter, &tenants[0], 10 * MS);
    has_rested(&tenants[0], 7 * MS);
    cgpu_pay(arbiter, &tenants[0], 10 * MS);
    CHECK(charged(0) == 26 * MS);
}

static uint32_t
shown_ppm(int index)
{
    struct cgpu_tenant_report report;

    cgpu_arbiter_report(arbiter, index, &report);
    return report.measured_ppm;
}

/* For a minute FIRST had the GPU alone, uncharged, and no step was due. */
TEST(one_that_comes_is_not_shown_with_an_average_over_the_time_before_cli3)
{
    int first, second;

    start(CGPU_POLICY_PREEMPTIVE);
    first = cgpu_arbiter_add(arbiter, 1, false, now);
    step(20000 * MS);
    demands[first].active = true;
    step(0);
    CHECK(gates[first] == CGPU_GATE_FREE);
    now += 60000 * MS;
    second = cgpu_arbiter_add(arbiter, 1, false, now);
    demands[second].waiting = true;
    step(0);
    demands[first].active = false;
    step(MS);
    CHECK(gates[second] != CGPU_GATE_CLOSED);
    demands[second] = (struct cgpu_demand){.active = true, .end_ns = UINT64_MAX};
    for (int i = 0; i < 7; i++) {
        step(MS);
    }
    CHECK(shown_ppm(second) > 5000 && shown_ppm(second) < 9000); /* 7 ms of a second */
}
