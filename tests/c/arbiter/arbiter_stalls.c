/* Work that was stalled: charged when it ends, if ever. */
#include "arbiter_world.h"

static void
works(int index)
{
    demands[index] = (struct cgpu_demand){.active = true,
                                          .certain = true,
                                          .end_ns = now + MS,
                                          .busy_ns = demands[index].busy_ns,
                                          .stalls = demands[index].stalls,
                                          .stalled_ns = demands[index].stalled_ns};
}

/* It has been let in for 20 ms; now nobody waits for its kernel any more. */
static int
begins_to_stay(uint32_t weight)
{
    int index = cgpu_arbiter_add(arbiter, weight, false, now);

    CHECK(index >= 0);
    demands[index].waiting = true;
    step(0);
    works(index);
    step(20 * MS);
    demands[index].active = false;
    demands[index].stalls = 1;
    return index;
}

/* OTHER works for NS and gives way when it must; how long it went on. */
static uint64_t
goes_on(int other, uint64_t ns)
{
    uint64_t done = 0;

    while (done < ns && gates[other] != CGPU_GATE_CLOSED) {
        works(other);
        demands[other].busy_ns += 5 * MS;
        step(5 * MS);
        done += 5 * MS;
    }
    return done;
}

static int
other_comes(uint32_t weight)
{
    int other = cgpu_arbiter_add(arbiter, weight, false, now);

    CHECK(other >= 0);
    demands[other].waiting = true;
    step(0);
    step(MS);
    CHECK(gates[other] != CGPU_GATE_CLOSED);
    return other;
}

static void
ends(int index, uint64_t ns)
{
    demands[index].stalled_ns = ns;
    demands[index].waiting = true;
    step(0);
}

TEST(work_that_stood_apart_beside_another_container_is_charged_half_when_it_ends)
{
    int index, other;

    start(CGPU_POLICY_WEIGHTED_FAIR);
    index = begins_to_stay(1);
    other = other_comes(3);
    CHECK(goes_on(other, 1000 * MS) == 1000 * MS);
    ends(index, 1000 * MS);
    /* 500 ms at weight 1 on the one side and at weight 3 on the other: 1 s to catch up */
    uint64_t ns = goes_on(other, 3000 * MS);
    CHECK(ns > 900 * MS);
    CHECK(ns < 1100 * MS);
}

TEST(work_that_stands_apart_without_end_is_never_charged)
{
    int index, other;

    start(CGPU_POLICY_WEIGHTED_FAIR);
    index = begins_to_stay(1);
    other = other_comes(3);
    CHECK(goes_on(other, 1000 * MS) == 1000 * MS);
    demands[index].waiting = true; /* another of its streams */
    step(0);
    CHECK(goes_on(other, 3000 * MS) <= 50 * MS);
}

TEST(debt_for_work_that_stood_apart_is_two_seconds_at_most)
{
    int index, other;

    start(CGPU_POLICY_WEIGHTED_FAIR);
    index = begins_to_stay(1);
    other = other_comes(9);
    CHECK(goes_on(other, 9000 * MS) == 9000 * MS);
    ends(index, UINT64_MAX);
    uint64_t ns = goes_on(other, 30000 * MS);
    CHECK(ns > 17500 * MS);
    CHECK(ns < 18500 * MS);
}

TEST(work_that_stood_apart_while_nobody_else_wanted_the_gpu_is_no_debt)
{
    int index, other;

    start(CGPU_POLICY_WEIGHTED_FAIR);
    index = begins_to_stay(1);
    for (int i = 0; i < 50; i++) {
        step(100 * MS);
    }
    other = other_comes(1);
    ends(index, 5000 * MS);
    CHECK(goes_on(other, 1000 * MS) <= 50 * MS);
}

TEST(work_that_stood_apart_is_charged_to_a_ceiling_in_full_where_nobody_else_ran)
{
    int index;

    start(CGPU_POLICY_FIXED);
    index = begins_to_stay(1);
    for (int i = 0; i < 101; i++) { /* quiet is seen in the first */
        step(10 * MS);
    }
    ends(index, 1000 * MS);
    CHECK(gates[index] == CGPU_GATE_CLOSED);
    for (int i = 0; i < 18; i++) {
        step(1000 * MS);
        CHECK(gates[index] == CGPU_GATE_CLOSED);
    }
    step(5000 * MS);
    CHECK(gates[index] != CGPU_GATE_CLOSED);
}

static void
change_policy(uint32_t policy)
{
    struct cgpu_rules rules = {.policy = policy, .max_inst = 20, .prio_ratio = 80};

    cgpu_arbiter_set_rules(arbiter, &rules);
    step(MS);
}

/* What it had queued as turns began was nobody's debt, but they ended before that did. */
TEST(who_drained_once_pays_for_what_stands_apart_later)
{
    struct cgpu_tenant_report report;

    start(CGPU_POLICY_NATIVE);
    int index = cgpu_arbiter_add(arbiter, 1, false, now);
    cgpu_arbiter_add(arbiter, 1, false, now);
    works(index);
    step(MS);
    change_policy(CGPU_POLICY_WEIGHTED_FAIR);
    CHECK(gates[index] == CGPU_GATE_CLOSED);
    change_policy(CGPU_POLICY_NATIVE);
    CHECK(gates[index] == CGPU_GATE_FREE);
    demands[index].active = false;
    demands[index].stalls = 1;
    step(MS);
    change_policy(CGPU_POLICY_WEIGHTED_FAIR);
    int other = other_comes(1);
    CHECK(goes_on(other, 1000 * MS) == 1000 * MS);
    ends(index, 1000 * MS);
    cgpu_arbiter_report(arbiter, index, &report);
    CHECK(report.charged_ns > 400 * MS);
}

/* Its gate closed long ago, or never opened. It says that its work should have ended by now. */
TEST(work_that_counts_again_and_is_long_overdue_earns_no_credit)
{
    uint64_t held = 0;
    int index, other;

    start(CGPU_POLICY_WEIGHTED_FAIR);
    other = other_comes(1);
    index = cgpu_arbiter_add(arbiter, 1, false, now);
    for (uint64_t passed = 0; passed < 10000 * MS; passed += 5 * MS) {
        demands[index] =
            (struct cgpu_demand){.active = true, .certain = true, .end_ns = now - 1500 * MS};
        CHECK(goes_on(other, 5 * MS) == 5 * MS);
    }
    demands[index].waiting = demands[other].waiting = true;
    while (gates[index] == CGPU_GATE_CLOSED) {
        demands[other].active = false;
        step(MS);
    }
    for (; gates[index] != CGPU_GATE_CLOSED && held < 1000 * MS; held += MS) {
        works(index);
        step(MS);
    }
    CHECK(held < 300 * MS);
}
