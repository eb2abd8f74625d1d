/* Rules that change while containers compute: what they owe and what they have saved up (SCH-9). */
#include <string.h>

#include "arbiter/arbiter_state.h"
#include "arbiter_world.h"

static void
set_policy(uint32_t policy)
{
    struct cgpu_rules rules = {.policy = policy, .max_inst = 20, .prio_ratio = 80};

    cgpu_arbiter_set_rules(arbiter, &rules);
}

/* A container with a ceiling of 50 %, which it has exceeded by a kernel of 400 ms. */
static int
overruns(void)
{
    int index;

    start(CGPU_POLICY_FIXED);
    index = cgpu_arbiter_add(arbiter, 10, false, now);
    demands[index] = (struct cgpu_demand){.waiting = true};
    step(0);
    demands[index] =
        (struct cgpu_demand){.active = true, .certain = true, .end_ns = now + 400 * MS};
    step(400 * MS);
    demands[index] = (struct cgpu_demand){.waiting = true};
    step(0);
    CHECK(gates[index] == CGPU_GATE_CLOSED);
    return index;
}

/* How long INDEX, which waits, is kept out. */
static uint64_t
kept_out(int index)
{
    uint64_t since = now;

    while (gates[index] == CGPU_GATE_CLOSED) {
        step(MS);
    }
    return now - since;
}

TEST(what_a_container_owes_it_repays_at_its_new_ceiling)
{
    int index = overruns();
    uint64_t usual = kept_out(index), lowered, raised;

    index = overruns();
    cgpu_arbiter_set_tenant(arbiter, index, 5, false);
    lowered = kept_out(index);
    index = overruns();
    cgpu_arbiter_set_tenant(arbiter, index, 19, false);
    raised = kept_out(index);
    CHECK(usual > 380 * MS && usual < 420 * MS);
    CHECK(lowered > 2 * usual - 20 * MS && lowered < 2 * usual + 20 * MS);
    CHECK(raised > usual / 2 && raised < usual);
}

TEST(without_a_ceiling_nothing_is_owed_to_one)
{
    int index = overruns();

    set_policy(CGPU_POLICY_WEIGHTED_FAIR);
    step(MS);
    CHECK(gates[index] != CGPU_GATE_CLOSED);
    set_policy(CGPU_POLICY_FIXED);
    step(MS);
    CHECK(gates[index] != CGPU_GATE_CLOSED);
}

/* For seconds nobody had to look. */
TEST(time_before_a_ceiling_neither_fills_nor_empties_it)
{
    int index = overruns();

    set_policy(CGPU_POLICY_WEIGHTED_FAIR);
    demands[index] = (struct cgpu_demand){.active = true};
    step(MS);
    step(5000 * MS);
    set_policy(CGPU_POLICY_FIXED);
    step(5000 * MS);
    demands[index] = (struct cgpu_demand){.waiting = true};
    step(0);
    CHECK(gates[index] == CGPU_GATE_PRESSED);
    demands[index] = (struct cgpu_demand){.active = true};
    step(20 * MS);
    CHECK(gates[index] == CGPU_GATE_CLOSED);
}

/* INDEX, alone, has so much in its queue that it takes NS to end when POLICY gets a ceiling. */
static void
empties_its_queue(uint32_t policy, uint64_t ns)
{
    int index;

    start(policy);
    index = cgpu_arbiter_add(arbiter, 2, false, now);
    demands[index] = (struct cgpu_demand){.active = true};
    step(MS);
    step(5000 * MS);
    CHECK(gates[index] == CGPU_GATE_FREE);
    set_policy(CGPU_POLICY_FIXED);
    demands[index].waiting = true;
    for (uint64_t left = ns; left > 0; left -= MS) {
        step(MS);
        CHECK(gates[index] == CGPU_GATE_CLOSED);
    }
    demands[index].active = false;
    CHECK(kept_out(index) < 20 * MS);
    demands[index] = (struct cgpu_demand){.active = true};
    step(15 * MS); /* it has saved up no more than a run needs */
    CHECK(gates[index] == CGPU_GATE_CLOSED);
}

TEST(what_one_alone_had_queued_when_it_got_a_ceiling_is_nobodys_debt)
{
    empties_its_queue(CGPU_POLICY_WEIGHTED_FAIR, 150 * MS);
    empties_its_queue(CGPU_POLICY_NATIVE, 150 * MS);
}

/* After a second nobody waits for it, and the arbiter learns how long it went on. */
TEST(nor_is_it_where_it_stands_apart)
{
    struct cgpu_tenant_report report;
    int index;

    start(CGPU_POLICY_WEIGHTED_FAIR);
    index = cgpu_arbiter_add(arbiter, 2, false, now);
    demands[index] = (struct cgpu_demand){.active = true};
    step(MS);
    step(5000 * MS);
    CHECK(gates[index] == CGPU_GATE_FREE);
    set_policy(CGPU_POLICY_FIXED);
    for (int i = 0; i < 100; i++) {
        step(10 * MS);
    }
    demands[index] = (struct cgpu_demand){.stalls = 1};
    step(0);
    step(1300 * MS);
    demands[index].stalled_ns = 1300 * MS;
    step(0);
    cgpu_arbiter_report(arbiter, index, &report);
    CHECK(report.charged_ns == 0);
    demands[index] = (struct cgpu_demand){0};
}

/* Under policy 2 one that is alone has no ceiling until another comes. */
TEST(what_one_had_queued_when_another_came_is_charged)
{
    struct cgpu_tenant_report report;
    int first, second;

    start(CGPU_POLICY_WEIGHTED_PREEMPTIVE);
    first = cgpu_arbiter_add(arbiter, 10, false, now);
    demands[first] = (struct cgpu_demand){.active = true};
    step(MS);
    step(20000 * MS);
    CHECK(gates[first] == CGPU_GATE_FREE);
    second = cgpu_arbiter_add(arbiter, 10, false, now);
    demands[second] = (struct cgpu_demand){.waiting = true};
    for (int i = 0; i < 99; i++) {
        step(10 * MS);
    }
    demands[first] = (struct cgpu_demand){0};
    step(MS);
    cgpu_arbiter_report(arbiter, first, &report);
    CHECK(report.charged_ns > 400 * MS);
    demands[second] = (struct cgpu_demand){0};
}

TEST(nor_is_it_where_it_takes_longer_than_anybody_waits)
{
    empties_its_queue(CGPU_POLICY_WEIGHTED_FAIR, 500 * MS);
    empties_its_queue(CGPU_POLICY_NATIVE, 500 * MS);
}

/* What it launched before it was taken on runs for two seconds. */
TEST(a_newcomers_work_does_not_make_a_turn_longer_or_free)
{
    struct cgpu_tenant *holder;
    uint64_t charged, since;

    start(CGPU_POLICY_WEIGHTED_FAIR);
    for (int i = 0; i < 2; i++) {
        CHECK(cgpu_arbiter_add(arbiter, 1, false, now) == i);
        demands[i] = (struct cgpu_demand){.waiting = true};
    }
    step(0);
    holder = &arbiter->tenants[arbiter->holder];
    demands[arbiter->holder] = (struct cgpu_demand){.active = true};
    step(MS);
    CHECK(cgpu_arbiter_add(arbiter, 1, false, now) == 2);
    demands[2] = (struct cgpu_demand){.active = true, .certain = true, .end_ns = now + 2000 * MS};
    charged = holder->charged_ns;
    since = now;
    while (holder->state == CGPU_STATE_RUNNING && now < since + 1000 * MS) {
        step(MS);
    }
    CHECK(now - since < 20 * MS);
    CHECK(holder->charged_ns - charged > 2 * MS);
}

/* DRA-2: virtual time of weight 0 beside a full GPU is a hundred times that of weight 1. */
TEST(virtual_times_keep_their_distance_when_they_get_too_large)
{
    uint64_t large = UINT64_C(1) << 62, lead = 5 * MS * CGPU_VIRTUAL_UNIT;
    int first, second;

    start(CGPU_POLICY_WEIGHTED_FAIR);
    memset(demands, 0, sizeof demands);
    first = cgpu_arbiter_add(arbiter, 1, false, now);
    second = cgpu_arbiter_add(arbiter, 1, false, now);
    demands[first].waiting = demands[second].waiting = true;
    step(0);
    arbiter->tenants[first].virtual_ns = large;
    arbiter->tenants[second].virtual_ns = large + lead;
    arbiter->round_end_ns[false] = large + 2 * lead;
    step(0);
    CHECK(arbiter->floor_ns[false] == large / 2);
    CHECK(arbiter->tenants[first].virtual_ns == large / 2);
    CHECK(arbiter->tenants[second].virtual_ns == large / 2 + lead);
    CHECK(arbiter->round_end_ns[false] < large);
}
