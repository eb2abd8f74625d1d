/* Turns: exclusive, preempted, and taken from a container that gives no sign. */
#include "arbiter_contest.h"

TEST(a_lone_container_is_free_and_the_arbiter_sleeps)
{
    start(CGPU_POLICY_WEIGHTED_FAIR);
    int lone = add(3, false);

    CHECK(step(0) == UINT64_MAX);
    CHECK(gates[lone] == CGPU_GATE_FREE);
}

TEST(a_lone_container_with_a_ceiling_is_not_free_sch3)
{
    start(CGPU_POLICY_FIXED);
    int lone = add(6, false);

    demands[lone].waiting = true;
    CHECK(step(0) != UINT64_MAX);
    CHECK(gates[lone] == CGPU_GATE_PRESSED);
}

TEST(native_leaves_all_gates_free_sch5)
{
    start(CGPU_POLICY_NATIVE);
    int one = add(1, false), two = add(1, true);

    demands[one].waiting = demands[two].waiting = true;
    CHECK(step(0) == UINT64_MAX);
    CHECK(gates[one] == CGPU_GATE_FREE && gates[two] == CGPU_GATE_FREE);
}

TEST(one_holds_at_a_time_and_the_next_waits_for_its_end)
{
    int holder, waiter;

    start(CGPU_POLICY_WEIGHTED_FAIR);
    contend(&holder, &waiter);
    CHECK(gates[holder] == CGPU_GATE_PRESSED && open_gates() == 1);
    works(holder, now + 30 * MS); /* a long kernel */
    step(20 * MS);
    CHECK(open_gates() == 0);
    demands[holder].waiting = true;
    step(5 * MS);
    CHECK(open_gates() == 0);
    now += 5 * MS;
    is_quiet(holder);
    step(0);
    CHECK(gates[waiter] == CGPU_GATE_PRESSED && open_gates() == 1);
}

TEST(the_next_is_let_in_shortly_before_a_certain_end)
{
    int holder, waiter;
    uint64_t end, at;

    start(CGPU_POLICY_WEIGHTED_FAIR);
    contend(&holder, &waiter);
    end = now + 30 * MS;
    works(holder, end);
    at = step(20 * MS);
    demands[holder].waiting = true;
    at = step(at - now); /* it has answered */
    CHECK(at < end && end - at < MS);
    step(at - now);
    CHECK(gates[waiter] == CGPU_GATE_PRESSED && gates[holder] == CGPU_GATE_CLOSED);
}

/* When the waiter of two is let in before the holder's certain end, which is 30 ms away. */
static uint64_t
let_in_before_end(uint64_t lag_ns)
{
    int holder, waiter;
    uint64_t end, at;

    memset(demands, 0, sizeof demands);
    start(CGPU_POLICY_WEIGHTED_FAIR);
    contend(&holder, &waiter);
    demands[waiter].lag_ns = lag_ns;
    end = now + 30 * MS;
    works(holder, end);
    at = step(20 * MS);
    demands[holder].waiting = true;
    at = step(at - now);
    step(at - now);
    CHECK(gates[waiter] == CGPU_GATE_PRESSED && at < end);
    demands[waiter].lag_ns = 0;
    return end - at;
}

TEST(whose_launches_take_long_to_begin_is_let_in_so_much_sooner_up_to_a_millisecond)
{
    uint64_t usual = let_in_before_end(0);

    CHECK(let_in_before_end(MS / 2) == usual + MS / 2);
    CHECK(let_in_before_end(5 * MS) == usual + MS);
}

TEST(a_turn_is_quiet_that_begins_when_the_others_have_ended)
{
    int holder, waiter;

    start(CGPU_POLICY_WEIGHTED_FAIR);
    contend(&holder, &waiter);
    CHECK(cgpu_arbiter_is_quiet(arbiter, holder) && !cgpu_arbiter_is_quiet(arbiter, waiter));
    works(holder, now + 30 * MS);
    step(20 * MS);
    CHECK(!cgpu_arbiter_is_quiet(arbiter, holder));
    is_quiet(holder);
    step(MS);
    CHECK(gates[waiter] != CGPU_GATE_CLOSED && cgpu_arbiter_is_quiet(arbiter, waiter));
}

TEST(nobody_is_let_in_early_where_the_end_is_not_certain)
{
    int holder, waiter;

    start(CGPU_POLICY_WEIGHTED_FAIR);
    contend(&holder, &waiter);
    works(holder, now + 25 * MS);
    demands[holder].certain = false;
    step(20 * MS);
    step(MS);
    step(4 * MS);
    CHECK(gates[waiter] == CGPU_GATE_CLOSED);
}

TEST(an_idle_holder_gives_way_at_once)
{
    int holder, waiter;

    start(CGPU_POLICY_WEIGHTED_FAIR);
    contend(&holder, &waiter);
    demands[holder].idle = true;
    step(100);
    CHECK(gates[holder] == CGPU_GATE_CLOSED);
    is_quiet(holder);
    demands[holder].idle = false;
    step(100);
    CHECK(gates[waiter] == CGPU_GATE_PRESSED);
}

TEST(idleness_brings_no_credit)
{
    int holder, waiter;

    start(CGPU_POLICY_WEIGHTED_FAIR);
    contend(&holder, &waiter);
    demands[waiter].waiting = false; /* it goes away for long, the other works on */
    for (int i = 0; i < 50; i++) {
        step(100 * MS);
        works(holder, now + MS);
    }
    demands[waiter].waiting = true;
    step(0);
    is_quiet(holder);
    demands[holder].waiting = true;
    step(MS);
    CHECK(gates[waiter] == CGPU_GATE_PRESSED);
    works(waiter, now + MS);
    step(11 * MS);
    CHECK(gates[waiter] == CGPU_GATE_CLOSED); /* one turn, not five seconds */
}

TEST(high_priority_closes_the_gate_of_a_lower_one_at_once_sch7)
{
    start(CGPU_POLICY_WEIGHTED_FAIR);
    int low = add(20, false), high = add(1, true);

    demands[low].waiting = true;
    step(0);
    works(low, now + MS);
    step(MS);
    demands[high].waiting = true;
    step(1000);
    CHECK(gates[low] == CGPU_GATE_CLOSED);
    is_quiet(low);
    demands[low].waiting = true;
    step(1000);
    CHECK(gates[high] == CGPU_GATE_PRESSED && gates[low] == CGPU_GATE_CLOSED);
}

TEST(who_gives_no_sign_loses_the_turn_after_200_ms_rel2)
{
    int holder, waiter;
    uint64_t closed;

    start(CGPU_POLICY_WEIGHTED_FAIR);
    contend(&holder, &waiter);
    demands[holder].certain = false;
    step(20 * MS);
    closed = now;
    while (gates[waiter] == CGPU_GATE_CLOSED && now < closed + 300 * MS) {
        step(5 * MS);
    }
    CHECK(now - closed <= 210 * MS && cgpu_arbiter_expired(arbiter) == 1);
    is_quiet(holder); /* it goes on: nothing is left of it but a debt */
    demands[holder].waiting = true;
    step(MS);
    CHECK(open_gates() == 1);
}

TEST(what_a_removed_holder_held_is_free_at_once_rel2)
{
    int holder, waiter;

    start(CGPU_POLICY_WEIGHTED_FAIR);
    contend(&holder, &waiter);
    cgpu_arbiter_remove(arbiter, holder, now);
    memset(&demands[holder], 0, sizeof demands[holder]);
    step(0);
    CHECK(gates[waiter] == CGPU_GATE_FREE || gates[waiter] == CGPU_GATE_OPEN);
    CHECK(gates[holder] == CGPU_GATE_CLOSED);
}

TEST(who_does_not_come_when_let_in_gives_way_for_a_while)
{
    start(CGPU_POLICY_WEIGHTED_FAIR);
    int stopped = add(1, false), other = add(1, false);

    demands[stopped].waiting = demands[other].waiting = true;
    step(0);
    CHECK(gates[stopped] == CGPU_GATE_PRESSED);
    step(6 * MS);
    CHECK(gates[other] == CGPU_GATE_PRESSED && gates[stopped] == CGPU_GATE_CLOSED);
}

TEST(gates_left_open_by_another_policy_are_closed_sch9)
{
    struct cgpu_rules rules = {CGPU_POLICY_WEIGHTED_FAIR, 20, 80};

    start(CGPU_POLICY_NATIVE);
    int one = add(1, false), two = add(1, false);

    step(0);
    works(one, now + MS);
    works(two, now + MS);
    cgpu_arbiter_set_rules(arbiter, &rules);
    step(MS);
    CHECK(open_gates() == 0);
    is_quiet(one);
    is_quiet(two);
    demands[one].waiting = demands[two].waiting = true;
    step(MS);
    CHECK(open_gates() == 1);
}

TEST(there_is_room_for_a_limited_number)
{
    start(CGPU_POLICY_WEIGHTED_FAIR);
    for (int i = 0; i < CGPU_MAX_TENANTS; i++) {
        CHECK(add(1, false) == i);
    }
    CHECK(cgpu_arbiter_add(arbiter, 1, false, now) == CGPU_EFULL);
    cgpu_arbiter_remove(arbiter, 7, now);
    CHECK(add(1, false) == 7);
}

/* Who dies does not ring, and what a container says of its end may be anything. */
TEST(a_closing_container_is_looked_at_often_whatever_end_it_tells_rel2)
{
    int holder, waiter;

    start(CGPU_POLICY_WEIGHTED_FAIR);
    contend(&holder, &waiter);
    works(holder, UINT64_MAX);
    step(20 * MS);
    CHECK(step(MS) <= now + 20 * MS);
    is_quiet(holder);
    step(20 * MS);
    CHECK(gates[waiter] == CGPU_GATE_PRESSED);
}

/* What it has in flight may wait for what waits at the gate. */
TEST(who_was_given_up_and_waits_is_let_in_again)
{
    int stuck, other;

    start(CGPU_POLICY_WEIGHTED_FAIR);
    contend(&stuck, &other);
    works(stuck, now);
    demands[stuck].certain = false;
    demands[stuck].waiting = true;
    while (cgpu_arbiter_expired(arbiter) == 0) {
        step(MS);
    }
    works(other, now + MS);
    step(MS);
    is_quiet(other);
    step(MS);
    CHECK(gates[stuck] == CGPU_GATE_CLOSED);
    step(3000 * MS);
    step(MS);
    CHECK(gates[stuck] != CGPU_GATE_CLOSED);
}

/* It rests at its ceiling: nobody may have the GPU, and priority is not used up by idleness. */
TEST(a_high_priority_holder_that_is_idle_gives_way_to_who_rests_sch7)
{
    memset(demands, 0, sizeof demands);
    start(CGPU_POLICY_FIXED);
    int low = add(1, false), high = add(1, true);

    demands[low].waiting = true;
    step(0);
    works(low, now + 200 * MS);
    step(100 * MS);
    is_quiet(low);
    demands[low].waiting = true; /* and may not, for long */
    step(0);
    demands[high].waiting = true;
    step(MS);
    CHECK(gates[low] == CGPU_GATE_CLOSED && gates[high] == CGPU_GATE_PRESSED);
    works(high, now + MS);
    step(MS);
    is_quiet(high);
    step(0);
    CHECK(gates[high] == CGPU_GATE_CLOSED);
    step(100 * MS);
    CHECK(charged(high) < 2 * MS);
}

/* TENANT always has work for a millisecond more. */
static void
goes_on(int tenant)
{
    if (gates[tenant] == CGPU_GATE_CLOSED) {
        demands[tenant] = (struct cgpu_demand){.waiting = true};
    } else {
        works(tenant, now + MS);
    }
}

/* For five seconds nothing is seen of a container that LAUNCHED, or did not, in its first turn. */
static void
comes_beside_a_stopped_one(bool launched)
{
    memset(demands, 0, sizeof demands);
    start(CGPU_POLICY_WEIGHTED_FAIR);
    int stopped = add(1, false);
    int other = add(1, false);
    demands[stopped].waiting = true;
    step(0);
    CHECK(gates[stopped] != CGPU_GATE_CLOSED);
    if (launched) {
        works(stopped, now + MS);
    }
    for (int i = 0; i < 5000; i++) {
        goes_on(other);
        step(MS);
    }
    int newcomer = add(1, false);
    uint64_t before = charged(other);
    for (int i = 0; i < 1000; i++) {
        goes_on(other);
        goes_on(newcomer);
        step(MS);
    }
    CHECK(charged(other) - before > 300 * MS);
    CHECK(charged(newcomer) > 300 * MS);
}

TEST(a_newcomer_does_not_have_the_gpu_alone_because_somebody_is_stopped_rel2)
{
    comes_beside_a_stopped_one(false);
    comes_beside_a_stopped_one(true);
}

TEST(who_was_stopped_tries_again_soon_after_it_goes_on_and_has_saved_nothing_up)
{
    start(CGPU_POLICY_WEIGHTED_FAIR);
    int stopped = add(1, false), other = add(1, false);
    demands[stopped].waiting = true;
    for (int i = 0; i < 5000; i++) {
        goes_on(other);
        step(MS);
    }
    demands[stopped].missed = 1; /* its thread runs again, and waits */
    uint64_t before = charged(stopped), others = charged(other);
    for (int i = 0; i < 300; i++) {
        goes_on(other);
        goes_on(stopped);
        demands[stopped].missed = 1;
        step(MS);
        CHECK(i != 80 || charged(stopped) > before);
    }
    CHECK(charged(stopped) - before <= charged(other) - others + 10 * MS);
}
