/* SCH-6: a turn lasts through short rests, if it is of no use to be let in beside long kernels. */
#include "arbiter/arbiter_state.h"
#include "arbiter_rests.h"

#define REST_NS (MS / 2)

/* Its burst ends: does its turn go on? */
static bool
anticipates(void)
{
    is_quiet(rests);
    step(0);
    CHECK((gates[rests] == CGPU_GATE_CLOSED) == (gates[busy] != CGPU_GATE_CLOSED));
    return gates[rests] != CGPU_GATE_CLOSED;
}

/* It works again, after a rest that may have been short. */
static void
burst(uint64_t after)
{
    now += after;
    works(rests, now + BURST_NS);
    work(BURST_NS);
    demands[rests].busy_ns += BURST_NS;
}

/* It has rested for so long, and comes back while a kernel of 20 ms runs. */
static void
next_turn(void)
{
    works(busy, now + KERNEL_NS);
    step(REST_NS);
    is_let_in_in_vain();
}

/* The first has been let in beside kernels in vain, and waits for their ends since. */
static void
begin_in_vain(void)
{
    begin();
    is_let_in_in_vain();
    for (int i = 0; i < 4; i++) {
        if (anticipates()) {
            step(2 * REST_NS + MS / 5);
        }
        next_turn();
    }
    CHECK(anticipates());
}

TEST(a_turn_lasts_through_short_rests)
{
    begin_in_vain();
    burst(REST_NS);
    CHECK(anticipates());
    burst(REST_NS);
    CHECK(anticipates());
}

TEST(a_turn_that_lasts_through_rests_is_not_left_before_one_begins)
{
    begin_in_vain();
    burst(REST_NS);
    int64_t before = arbiter->anticipation_ns;

    works(rests, now + MS / 10);
    demands[rests].idle = demands[rests].soon = true;
    step(0);
    CHECK(gates[rests] != CGPU_GATE_CLOSED);
    demands[rests].busy_ns += MS / 10; /* its last work ends */
    demands[rests].soon = false;
    step(MS / 10);
    CHECK(gates[rests] != CGPU_GATE_CLOSED &&
          arbiter->anticipation_ns >= before); /* no rest as yet */
}

TEST(a_rest_of_more_than_twice_its_usual_length_ends_the_turn)
{
    begin_in_vain();
    step(2 * REST_NS + MS / 5);
    CHECK(gates[rests] == CGPU_GATE_CLOSED && gates[busy] != CGPU_GATE_CLOSED);
}

TEST(who_rests_pays_for_its_rests)
{
    uint64_t before;

    begin_in_vain();
    before = charged(rests);
    step(REST_NS);
    CHECK(charged(rests) - before >= REST_NS * 9 / 10);
}

TEST(who_rests_for_long_lets_others_in)
{
    begin_in_vain();
    for (int i = 0; i < 8; i++) { /* until that is usual: a quarter of the other's work */
        if (anticipates()) {
            step(2 * KERNEL_NS);
        }
        works(busy, now + KERNEL_NS);
        step(KERNEL_NS * 3 / 8);
        is_let_in_in_vain();
    }
    for (int i = 0; i < 40; i++) {
        CHECK(!anticipates());
        works(busy, now + KERNEL_NS);
        step(KERNEL_NS * 3 / 8);
        is_let_in_in_vain();
    }
}

TEST(high_priority_ends_a_rest)
{
    int high;

    begin_in_vain();
    high = add(1, true);
    arbiter->tenants[high].drain_ns = KERNEL_NS;
    demands[high].waiting = true;
    step(0);
    CHECK(gates[rests] == CGPU_GATE_CLOSED && gates[high] != CGPU_GATE_CLOSED);
}

/* However often it rests, and however much of its share is left. */
TEST(rests_that_are_given_up_count_too)
{
    uint64_t idle = 0, since;

    begin_in_vain();
    since = now;
    while (now < since + 3000 * MS) {
        if (anticipates()) {
            uint64_t from = now;

            while (gates[rests] != CGPU_GATE_CLOSED) {
                step(MS / 10);
            }
            idle += now - from;
        }
        next_turn();
    }
    CHECK(idle > 10 * MS && idle < (now - since) / 25 + 8 * MS);
}

TEST(the_gpu_is_idle_so_for_a_small_part_of_the_time)
{
    uint64_t idle = 0, since;

    begin_in_vain();
    since = now;
    while (now < since + 3000 * MS) {
        if (!anticipates()) {
            next_turn();
            continue;
        }
        idle += REST_NS;
        burst(REST_NS);
    }
    CHECK(idle > 10 * MS && idle < (now - since) / 25 + 5 * MS + REST_NS);
    is_quiet(rests);
    is_quiet(busy);
    step(10000 * MS);
    CHECK(arbiter->anticipation_ns <= (int64_t)(5 * MS));
}

/* The arbiter looks when the rest is due to end, and not all the time once it has ended. */
TEST(a_rest_that_has_ended_asks_for_no_more_looks)
{
    begin_in_vain();
    works(rests, now + BURST_NS);
    step(REST_NS);
    CHECK(step(2 * REST_NS) > now + MS / 2);
}

/* It says for ever that its rest is about to begin. */
TEST(a_rest_that_never_begins_asks_for_no_more_looks)
{
    uint64_t at;

    begin_in_vain();
    works(rests, now + MS);
    demands[rests].idle = demands[rests].soon = true;
    step(REST_NS);
    at = step(2 * REST_NS);
    CHECK(gates[rests] != CGPU_GATE_CLOSED && at > now + MS / 10);
}

/* It says that it has nothing to do, and that it has done something since it last said so. */
TEST(who_lies_about_its_rests_gets_no_more_than_its_turn)
{
    uint64_t since;

    begin_in_vain();
    arbiter->tenants[rests].rest.usual_ns = MS / 1000; /* it waited as soon as its turn was over */
    since = now;
    while (gates[rests] != CGPU_GATE_CLOSED && now < since + 1000 * MS) {
        demands[rests].busy_ns += 1;
        step(MS / 10);
    }
    CHECK(now < since + 50 * MS);
}

TEST(work_after_a_rest_is_no_rest)
{
    begin_in_vain();
    CHECK(arbiter->tenants[rests].rest.usual_ns < 2 * REST_NS);
    works(rests, now + BURST_NS);
    step(REST_NS);
    while (gates[rests] != CGPU_GATE_CLOSED) {
        works(rests, now + BURST_NS);
        step(MS / 10);
    }
    step(MS);
    demands[rests].waiting = true;
    step(0);
    CHECK(arbiter->tenants[rests].rest.usual_ns < 2 * REST_NS);
}

TEST(a_rest_of_an_hour_is_not_usual)
{
    begin_in_vain();
    step(2 * REST_NS + MS / 5);
    CHECK(gates[rests] == CGPU_GATE_CLOSED);
    step(3600 * 1000 * MS);
    demands[rests].waiting = true;
    step(0);
    CHECK(arbiter->tenants[rests].rest.usual_ns < 2 * REST_NS);
}

/* While gates are open to all, nobody's turn lasts. */
TEST(no_rest_lasts_while_there_are_no_turns)
{
    struct cgpu_rules rules = {.policy = CGPU_POLICY_NATIVE, .max_inst = 20, .prio_ratio = 80};

    begin_in_vain();
    cgpu_arbiter_set_rules(arbiter, &rules);
    step(MS);
    rules.policy = CGPU_POLICY_WEIGHTED_FAIR;
    cgpu_arbiter_set_rules(arbiter, &rules);
    step(MS);
    CHECK(!arbiter->tenants[rests].rest.anticipates);
}

TEST(time_without_an_arbiter_is_no_rest)
{
    begin_in_vain();
    cgpu_arbiter_skip(arbiter, now += 3600 * 1000 * MS);
    step(0);
    CHECK(arbiter->anticipation_ns > -(int64_t)(5 * MS));
}

/* It said so when nobody waited, and the turn ends before the work was expected to. */
TEST(a_rest_that_has_not_begun_costs_nothing)
{
    int64_t before;

    begin_in_vain();
    burst(REST_NS);
    is_quiet(busy);
    demands[busy].waiting = false;
    demands[rests].idle = demands[rests].soon = true;
    step(0);
    demands[busy].waiting = true;
    demands[rests].soon = false;
    step(MS / 100);
    CHECK(arbiter->tenants[rests].rest.anticipates);
    before = arbiter->anticipation_ns;
    demands[add(1, true)].waiting = true;
    step(0);
    CHECK(gates[rests] == CGPU_GATE_CLOSED && arbiter->anticipation_ns == before);
}
