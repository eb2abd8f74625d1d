/* Turns on two GPUs together: what is owed on one of them only (SCH-4). */
#include "arbiter/arbiter_state.h"
#include "arbiter/group/group.h"
#include "arbiter_world.h"

enum { GPUS = 2, BOTH = 2 };

#define STEP_NS (MS / 4)
#define OWED_NS (400 * MS)
#define ENDLESS UINT64_MAX /* and nobody knows */
#define TIMES   12000
#define LONGEST (16 * MS) /* both turns together */

static struct cgpu_group group;
static struct cgpu_demand all_demands[CGPU_MAX_GPUS][CGPU_MAX_TENANTS];
static enum cgpu_gate all_gates[CGPU_MAX_GPUS][CGPU_MAX_TENANTS];
static uint64_t held_ns[BOTH], longest_ns;

static void
begin(void)
{
    group = (struct cgpu_group){.count = GPUS};
    for (int g = 0; g < GPUS; g++) {
        struct cgpu_rules rules = {.policy = CGPU_POLICY_WEIGHTED_FAIR, .max_inst = 20, 80};

        group.gpus[g] = malloc(cgpu_arbiter_size());
        CHECK(group.gpus[g] != NULL);
        cgpu_arbiter_init(group.gpus[g], &rules, now);
        for (uint64_t container = 1; container <= BOTH; container++) {
            int index = cgpu_arbiter_add(group.gpus[g], 1, false, now);

            cgpu_arbiter_set_container(group.gpus[g], index, container);
        }
    }
}

static void
end(void)
{
    for (int g = 0; g < GPUS; g++) {
        free(group.gpus[g]);
    }
}

/* Both always have work, which ends as their gates close; but a kernel of the first on GPU 0. */
static void
pass(uint64_t long_until)
{
    now += STEP_NS;
    for (int g = 0; g < GPUS; g++) {
        for (int i = 0; i < BOTH; i++) {
            bool open = all_gates[g][i] != CGPU_GATE_CLOSED;
            bool goes_on = g == 0 && i == 0 && now < long_until;

            all_demands[g][i] = (struct cgpu_demand){
                .waiting = !open,
                .active = open || goes_on,
                .certain = true,
                .end_ns = !goes_on                ? now
                          : long_until == ENDLESS ? 0
                                                  : long_until,
            };
        }
    }
    for (int i = 0; i < 4; i++) {
        cgpu_group_step(&group, now, all_demands, all_gates);
    }
}

static void
measure(void)
{
    for (int i = 0; i < BOTH; i++) {
        held_ns[i] = all_gates[1][i] != CGPU_GATE_CLOSED ? held_ns[i] + STEP_NS : 0;
        longest_ns = held_ns[i] > longest_ns ? held_ns[i] : longest_ns;
    }
}

/* Each held both GPUs until it was behind on neither, and so was ahead on one again, for ever. */
TEST(a_debt_on_one_of_two_gpus_does_not_make_every_turn_long)
{
    uint64_t long_until;

    begin();
    for (int i = 0; i < 400; i++) {
        pass(0);
    }
    long_until = now + OWED_NS;
    for (int i = 0; i < TIMES; i++) {
        pass(long_until);
        if (i > TIMES / 2) {
            measure();
        }
    }
    CHECK(longest_ns > 0 && longest_ns < LONGEST);
    end();
}

/* Its thread at the other gate is a sign, and the others wait for 0.2 ms, not for 200. */
TEST(no_turn_expires_as_work_on_one_gpu_waits_for_its_peer_on_another)
{
    const struct cgpu_tenant *meets;

    begin();
    meets = &group.gpus[0]->tenants[0];
    pass(0); /* it has come without work */
    for (int i = 0; i < TIMES && meets->state != CGPU_STATE_EXPIRED; i++) {
        pass(ENDLESS);
    }
    CHECK(meets->state == CGPU_STATE_EXPIRED);
    CHECK(cgpu_arbiter_expired(group.gpus[0]) == 0);
    end();
}

/* It waits for the other GPU only, but its turns are on both. */
TEST(a_rest_is_not_too_long_for_one_that_waits_for_another_gpu)
{
    struct cgpu_tenant *rests, *waits;
    uint64_t at = 0;

    begin();
    cgpu_arbiter_set_container(group.gpus[0], 0, 3); /* on one GPU only */
    cgpu_arbiter_set_container(group.gpus[1], 0, 4);
    rests = &group.gpus[0]->tenants[0];
    waits = &group.gpus[0]->tenants[1];
    pass(0);
    pass(0);
    all_demands[0][0].active = all_demands[0][1].waiting = false;
    CHECK(rests->state == CGPU_STATE_RUNNING && rests->shown);
    rests->failures = 7;
    rests->rest.usual_ns = MS / 2;
    waits->shown = true;
    waits->drain_ns = 20 * MS;
    group.gpus[0]->anticipation_ns = (int64_t)MS;
    for (int i = 0; i < 4 && at <= now; i++) {
        at = cgpu_group_step(&group, now, all_demands, all_gates);
    }
    CHECK(rests->state == CGPU_STATE_RUNNING && all_gates[1][1] == CGPU_GATE_CLOSED);
    CHECK(at <= now + MS);
    end();
}
