/* SCH-6: programs that rest give the GPU away before it is idle, and pay for it. */
#include "arbiter/arbiter_state.h"
#include "arbiter_rests.h"

enum { OF_WEIGHT_1 = CGPU_VIRTUAL_UNIT / CGPU_WEIGHT_PARTS }; /* virtual time of a ns */

/* Its last work ends in 0.1 ms, and then it will rest. */
static void
rests_soon(int tenant)
{
    works(tenant, now + MS / 10);
    demands[tenant].idle = demands[tenant].soon = true;
}

TEST(who_rests_soon_gives_way_before_its_work_ends)
{
    uint64_t before;

    start(CGPU_POLICY_WEIGHTED_FAIR);
    contend(&rests, &busy);
    works(rests, now + MS);
    step(MS);
    CHECK(gates[rests] != CGPU_GATE_CLOSED);
    rests_soon(rests);
    step(0);
    CHECK(gates[rests] == CGPU_GATE_CLOSED && gates[busy] != CGPU_GATE_CLOSED);
    before = charged(busy);
    step(MS / 10);
    CHECK(charged(busy) == before); /* the work of the other one goes on */
    is_quiet(rests);
    works(busy, now + MS);
    step(0);
    demands[rests].waiting = true;
    step(MS);
    CHECK(charged(busy) > before);
}

/* Bursts alone, of each of which only the end is seen. */
TEST(what_one_had_while_the_other_rested_for_long_is_no_debt)
{
    uint64_t opened = 0;

    start(CGPU_POLICY_WEIGHTED_FAIR);
    contend(&rests, &busy);
    is_quiet(busy);
    demands[busy].waiting = false;
    for (int i = 0; i < 50; i++) {
        now += 2 * MS;
        works(rests, now);
        demands[rests].idle = true;
        demands[rests].busy_ns += MS;
        step(MS / 10);
    }
    demands[busy].waiting = true;
    for (int i = 0; i < 1000; i++) {
        demands[rests].waiting = gates[rests] == CGPU_GATE_CLOSED;
        demands[busy].waiting = gates[busy] == CGPU_GATE_CLOSED;
        for (int each = 0; each < 2; each++) {
            if (gates[each == 0 ? rests : busy] != CGPU_GATE_CLOSED) {
                demands[each == 0 ? rests : busy].idle = false;
                works(each == 0 ? rests : busy, now + MS);
            } else {
                is_quiet(each == 0 ? rests : busy);
            }
        }
        opened += gates[rests] != CGPU_GATE_CLOSED;
        step(MS / 10);
    }
    CHECK(opened > 350); /* half of 0.1 s */
}

TEST(a_rest_begins_when_the_work_has_ended)
{
    start(CGPU_POLICY_WEIGHTED_FAIR);
    contend(&rests, &busy);
    works(rests, now + MS);
    step(MS);
    rests_soon(rests);
    step(0);
    step(MS / 10);
    is_quiet(rests);
    step(MS / 2);
    demands[rests].waiting = true;
    step(0);
    CHECK(arbiter->tenants[rests].rest.usual_ns <= MS / 2);
}

/* So many turns of one that returned from a rest, if that PAYS. */
static uint64_t
virtual_of(int bursts, bool pays)
{
    uint64_t before;

    memset(demands, 0, sizeof demands);
    begin();
    demands[busy].lag_ns = MS; /* as that one says; it is not the lag of who pays */
    step(0);
    before = arbiter->tenants[rests].virtual_ns;
    for (int i = 0; i < bursts; i++) {
        arbiter->tenants[rests].yielded = pays;
        cgpu_turn_open(arbiter, rests, now);
    }
    return arbiter->tenants[rests].virtual_ns - before;
}

TEST(who_returns_from_a_rest_owes_two_switches_and_they_are_not_shown)
{
    CHECK(virtual_of(3, false) == 0);
    CHECK(virtual_of(3, true) == UINT64_C(3) * 2 * CGPU_START_NS * OF_WEIGHT_1);
    CHECK(charged(rests) < 3 * BURST_NS);
}

/* When its turn ends if its bursts usually take NS, and it works on. */
static uint64_t
turn_of(uint64_t ns)
{
    struct cgpu_tenant *tenant;
    uint64_t since;

    memset(demands, 0, sizeof demands);
    start(CGPU_POLICY_WEIGHTED_FAIR);
    contend(&rests, &busy);
    tenant = &arbiter->tenants[rests];
    tenant->usual_ns = ns;
    tenant->virtual_ns += 100 * MS * OF_WEIGHT_1; /* it has had its share */
    since = tenant->opened_ns;
    while (gates[rests] != CGPU_GATE_CLOSED) {
        works(rests, now + MS);
        step(MS / 10);
    }
    return now - since;
}

TEST(a_burst_is_not_cut_shortly_before_its_usual_end)
{
    CHECK(turn_of(MS) <= 3 * MS);
    CHECK(turn_of(5 * MS) >= 6 * MS && turn_of(5 * MS) <= 7 * MS);
    CHECK(turn_of(20 * MS) <= 3 * MS); /* that is no burst */
}

TEST(who_rests_no_more_has_turns_like_others)
{
    turn_of(5 * MS);
    for (int i = 0; i < 3000; i++) {
        for (int each = 0; each < 2; each++) {
            int tenant = each == 0 ? rests : busy;

            if (gates[tenant] != CGPU_GATE_CLOSED) {
                works(tenant, now + MS);
            } else {
                is_quiet(tenant);
                demands[tenant].waiting = true;
            }
        }
        step(MS / 10);
    }
    CHECK(arbiter->tenants[rests].usual_ns * 5 / 4 > 8 * MS);
}

/* Not what another one is owed: else one of two alike would have next to nothing. */
TEST(a_short_rest_adds_nothing_to_what_one_owes)
{
    uint64_t before, owes;

    start(CGPU_POLICY_WEIGHTED_FAIR);
    contend(&rests, &busy);
    arbiter->floor_ns[false] = arbiter->tenants[busy].virtual_ns + MS * OF_WEIGHT_1;
    arbiter->tenants[rests].virtual_ns = arbiter->floor_ns[false];
    before = arbiter->tenants[rests].virtual_ns;
    for (int i = 0; i < 10; i++) {
        is_quiet(rests);
        step(0);
        demands[rests].waiting = true;
        step(0);
    }
    owes = arbiter->tenants[rests].virtual_ns - before;
    CHECK(owes == 0);
}
