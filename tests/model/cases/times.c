/* How soon: high priority, live changes, containers that stop, die or go while they hold. */
#include <math.h>
#include <stdio.h>

#include "cases.h"

static double
in_ms(uint64_t ns)
{
    return (double)ns / 1e6;
}

/* Short kernels now and then, waited for, against a backlog of LOW_NS. */
static int
latency(const char *group, uint64_t low_ns, uint32_t policy, uint32_t lows)
{
    struct scenario s;
    struct world *world;
    struct tenant_spec *high;
    char name[32];
    int missed;

    scenario_defaults(&s, policy, 20 * SECOND);
    s.from_ns = SECOND;
    high = scenario_tenant(&s, 1, 100 * US);
    high->high = true;
    high->load.sync_every = 1;
    high->load.think_ns = 7 * MS;
    for (uint32_t i = 0; i < lows; i++) {
        scenario_tenant(&s, 6, low_ns);
    }
    world = world_run(&s);
    snprintf(name, sizeof name, "%u-%s-%u", policy, cases_length_name(low_ns), lows);
    missed = cases_note(group, name, in_ms(world_percentile(&world->tenants[0].latency, 0.99)),
                        in_ms(low_ns) + 1, world);
    world_free(world);
    return missed;
}

static int
high_latency(const char *group)
{
    int missed = 0;

    for (uint32_t policy = 0; policy < CGPU_POLICIES; policy++) {
        if (policy != CGPU_POLICY_NATIVE) {
            missed += latency(group, 5 * MS, policy, 1) + latency(group, 500 * US, policy, 1) +
                      latency(group, 50 * US, policy, 1) + latency(group, 5 * MS, policy, 3);
        }
    }
    return missed;
}

/* Both backlogged: high priority has prio_ratio, and the others the rest. */
static int
high_ratio(const char *group)
{
    int missed = 0;

    for (int i = 0; i < CASES_LENGTHS * CASES_LENGTHS; i++) {
        struct scenario s;
        struct world *world;
        char name[32];
        uint64_t a = cases_lengths[i / CASES_LENGTHS], b = cases_lengths[i % CASES_LENGTHS];

        scenario_defaults(&s, CGPU_POLICY_WEIGHTED_FAIR, 30 * SECOND);
        scenario_tenant(&s, 1, a)->high = true;
        scenario_tenant(&s, 6, b);
        world = world_run(&s);
        snprintf(name, sizeof name, "%s-%s", cases_length_name(a), cases_length_name(b));
        missed += cases_note(group, name, fabs(print_share(world, 0) - 80), 1, world);
        world_free(world);
    }
    return missed;
}

static struct change *
add_change(struct scenario *s, uint64_t at_ns, enum change_kind kind, int tenant, uint32_t value)
{
    struct change *change = &s->changes[s->change_count];

    *change = (struct change){.at_ns = at_ns, .kind = kind, .tenant = tenant, .value = value};
    change->rules = s->rules;
    s->change_count += 1;
    return change;
}

/* Shares are those of the new rules from 100 ms after the change on. */
static int
changed(const char *group, const char *name, struct scenario *s, double expected, bool of_time)
{
    struct world *world;
    double got;
    int missed;

    s->from_ns = s->changes[0].at_ns + 100 * MS;
    s->length_ns = s->from_ns + 2 * SECOND;
    world = world_run(s);
    got = of_time ? print_part(world, 0) : print_share(world, 0);
    missed = cases_note(group, name, fabs(got - expected), 1, world);
    world_free(world);
    return missed;
}

static void
two(struct scenario *s, uint32_t policy)
{
    scenario_defaults(s, policy, 0);
    s->rules.max_inst = 20;
    scenario_tenant(s, 1, 500 * US);
    scenario_tenant(s, 1, 5 * MS);
}

static int
live_change(const char *group)
{
    static const struct {
        const char *name;
        uint32_t before, after;
        double expected;
        bool of_time;
    } policies[] = {
        {"policy-6-to-3", CGPU_POLICY_WEIGHTED_FAIR, CGPU_POLICY_FIXED, 5, true},
        {"policy-3-to-1", CGPU_POLICY_FIXED, CGPU_POLICY_PREEMPTIVE, 50, false},
        {"policy-5-to-6", CGPU_POLICY_NATIVE, CGPU_POLICY_WEIGHTED_FAIR, 50, false},
        {"policy-4-to-0", CGPU_POLICY_SOFT, CGPU_POLICY_FAIR_SHARE, 5, true},
    };
    struct scenario s;
    int missed = 0;

    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        two(&s, policies[i].before);
        add_change(&s, 2 * SECOND, CHANGE_RULES, 0, 0)->rules.policy = policies[i].after;
        missed += changed(group, policies[i].name, &s, policies[i].expected, policies[i].of_time);
    }
    two(&s, CGPU_POLICY_WEIGHTED_FAIR);
    add_change(&s, 2 * SECOND, CHANGE_WEIGHT, 0, 3);
    missed += changed(group, "weight-1-to-3", &s, 75, false);
    two(&s, CGPU_POLICY_FIXED);
    add_change(&s, 2 * SECOND, CHANGE_RULES, 0, 0)->rules.max_inst = 4;
    missed += changed(group, "max-inst-20-to-4", &s, 25, true);
    two(&s, CGPU_POLICY_WEIGHTED_FAIR);
    s.tenants[0].high = true;
    add_change(&s, 2 * SECOND, CHANGE_RULES, 0, 0)->rules.prio_ratio = 50;
    missed += changed(group, "prio-ratio-80-to-50", &s, 50, false);
    two(&s, CGPU_POLICY_WEIGHTED_FAIR);
    add_change(&s, 2 * SECOND, CHANGE_HIGH, 0, 1);
    return missed + changed(group, "high-priority", &s, 80, false);
}

/* What happens to the first of two while it may hold: how long does the other wait then? */
static uint64_t
longest_wait(enum change_kind kind, uint64_t at_ns, uint64_t start_ns, uint64_t kernel_ns,
             bool quiet)
{
    struct scenario s;
    struct world *world;
    uint64_t wait;

    two(&s, CGPU_POLICY_WEIGHTED_FAIR);
    s.tenants[0].load.lengths[0] = kernel_ns;
    s.tenants[0].processes = 2;
    s.tenants[0].start_ns = start_ns;
    s.length_ns = at_ns + SECOND;
    if (!quiet) {
        add_change(&s, at_ns, kind, 0, 0);
    }
    world = world_run(&s);
    wait = world->tenants[1].longest_wait;
    for (uint32_t i = 0; i < world->process_count; i++) {
        const struct process *process = &world->processes[i];

        if (process->tenant == 1 && process->work.waiting && world->now - process->gate_ns > wait) {
            wait = world->now - process->gate_ns;
        }
    }
    world_free(world);
    return wait;
}

/* A hundred moments each, half a turn apart and a bit. */
static int
fault(const char *group)
{
    static const struct {
        const char *name;
        enum change_kind kind;
    } faults[] = {{"stop", CHANGE_STOP}, {"kill", CHANGE_KILL}, {"delete", CHANGE_REMOVE}};
    static const uint64_t kernels[] = {50 * US, 5 * MS};
    int missed = 0;

    for (int f = 0; f < 6; f++) {
        uint64_t kernel = kernels[f % 2], most = 0;
        uint64_t usual = longest_wait(CHANGE_GO, 2 * SECOND, 0, kernel, true);
        struct scenario s = {.length_ns = SECOND};
        static struct world world; /* too large for the stack */
        char name[32];

        world.scenario = &s;
        for (uint64_t i = 0; i < 100; i++) {
            uint64_t at = SECOND + i * 5170 * US;
            /* every other one has hardly begun: nobody knows yet how long its kernels are */
            uint64_t start = i % 2 == 0 ? 0 : at - i * 70 * US;
            uint64_t wait = longest_wait(faults[f / 2].kind, at, start, kernel, false);

            most = wait > most ? wait : most;
        }
        snprintf(name, sizeof name, "%s-%s", faults[f / 2].name, cases_length_name(kernel));
        missed += cases_note(group, name, in_ms(most > usual ? most - usual : 0), 250, &world);
    }
    return missed;
}

const struct cases_group cases_times[] = {
    {"high-latency", high_latency},
    {"high-ratio", high_ratio},
    {"live-change", live_change},
    {"fault", fault},
    {NULL, NULL},
};
