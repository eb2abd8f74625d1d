/* Random crowds: whatever containers do, some things hold. */
#include <math.h>
#include <stdio.h>

#include "cases.h"

enum { CROWDS = 120 };

static uint64_t
draw(uint64_t *chance, uint64_t count)
{
    *chance = *chance * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*chance >> 33) % count;
}

/* The first is always backlogged; others come later, synchronise, burst, have processes, go. */
static void
make(struct scenario *s, uint64_t seed)
{
    static const uint32_t policies[] = {0, 1, 2, 3, 6};
    uint64_t chance = seed * 7919 + 1;
    uint64_t count = 2 + draw(&chance, 6);

    scenario_defaults(s, policies[draw(&chance, 5)], 10 * SECOND);
    s->seed = seed + 1;
    s->jitter = 2 * (uint32_t)draw(&chance, 2);
    s->rules.max_inst = 20;
    for (uint64_t t = 0; t < count; t++) {
        uint64_t ns = cases_lengths[draw(&chance, 4)];
        struct tenant_spec *tenant = scenario_tenant(s, 1 + (uint32_t)draw(&chance, 2), ns);

        tenant->processes = 1 + (uint32_t)draw(&chance, 3);
        if (t == 0) {
            continue;
        }
        tenant->start_ns = draw(&chance, 5) * SECOND;
        tenant->load.sync_every = (uint32_t)draw(&chance, 40) % 21;
        tenant->load.think_ns = draw(&chance, 10) * 100 * US;
        tenant->load.burst_ns = 50 * MS;
        tenant->load.pause_ns = draw(&chance, 20) / 2 * (20 * MS);
    }
    for (uint64_t t = 1; t < count; t++) {
        if (draw(&chance, 3) == 0) {
            s->changes[s->change_count++] = (struct change){
                .at_ns = (6 + t) * SECOND + t * 777 * US, .kind = CHANGE_REMOVE, .tenant = (int)t};
        }
    }
}

/* Percent by which the backlogged one falls short of what it is entitled to at least. */
static double
shortfall(const struct world *world)
{
    const struct scenario *s = world->scenario;
    struct cgpu_claim claims[MAX_TENANTS] = {{0}};
    struct cgpu_tenant_report report;
    double weights = 0, due, held;

    for (uint32_t t = 0; t < s->tenant_count; t++) {
        claims[t] = (struct cgpu_claim){.weight = s->tenants[t].weight};
    }
    (void)cgpu_policy_entitle(s->rules.policy, claims, s->tenant_count, s->rules.max_inst);
    for (uint32_t t = 0; t < s->tenant_count; t++) {
        weights += claims[t].competes;
    }
    due = fmin(100 * claims[0].competes / weights, claims[0].ceiling_ppm / 1e4);
    /* several processes of one container lose time to switches between them, and pay for it */
    cgpu_arbiter_report(world->gpus[0].arbiter, world->tenants[0].indices[0], &report);
    held = (double)report.charged_ns / (double)world->now * 100;
    return due - fmax(print_part(world, 0), held);
}

/* By how many points somebody exceeds its ceiling. */
static double
excess(const struct world *world)
{
    const struct scenario *s = world->scenario;
    double worst = -100;

    for (uint32_t t = 0; t < s->tenant_count; t++) {
        double ceiling = 100;

        if (s->rules.policy == CGPU_POLICY_FAIR_SHARE) {
            ceiling = 100.0 / s->rules.max_inst;
        } else if (s->rules.policy == CGPU_POLICY_FIXED) {
            ceiling = 100.0 * s->tenants[t].weight / s->rules.max_inst;
        }
        worst = fmax(worst, print_part(world, t) - ceiling);
    }
    return worst;
}

/* Percent of the time that was charged twice, or of use under ceilings that nobody paid for. */
static double
unbalanced(struct world *world)
{
    uint32_t policy = world->scenario->rules.policy;
    uint64_t charged = 0, used = 0;

    for (uint32_t t = 0; t < world->scenario->tenant_count; t++) {
        struct cgpu_tenant_report report;

        if (world->tenants[t].indices[0] < 0) {
            continue; /* gone, and its account with it */
        }
        cgpu_arbiter_report(world->gpus[0].arbiter, world->tenants[t].indices[0], &report);
        charged += report.charged_ns;
        used += world->tenants[t].used_ns;
    }
    if (policy != CGPU_POLICY_FAIR_SHARE && policy != CGPU_POLICY_FIXED) {
        used = 0; /* whoever is alone is not charged there */
    }
    return fmax((double)charged / (double)world->now * 100 - 100,
                ((double)used - (double)charged) / (double)world->now * 100);
}

static double
longest_wait(const struct world *world)
{
    uint64_t longest = 0;

    for (uint32_t t = 0; t < world->scenario->tenant_count; t++) {
        longest =
            world->tenants[t].longest_wait > longest ? world->tenants[t].longest_wait : longest;
    }
    return (double)longest / 1e6;
}

static int
crowds(const char *group)
{
    int missed = 0;

    for (uint64_t seed = 0; seed < CROWDS; seed++) {
        struct scenario s;
        struct world *world;
        char name[32];

        make(&s, seed);
        world = world_run(&s);
        snprintf(name, sizeof name, "%llu-shortfall", (unsigned long long)seed);
        missed += cases_note(group, name, shortfall(world), 0.5, world);
        snprintf(name, sizeof name, "%llu-excess", (unsigned long long)seed);
        missed += cases_note(group, name, excess(world), 0.7, world);
        snprintf(name, sizeof name, "%llu-unbalanced", (unsigned long long)seed);
        missed += cases_note(group, name, unbalanced(world), 1, world);
        snprintf(name, sizeof name, "%llu-wait-ms", (unsigned long long)seed);
        missed += cases_note(group, name, longest_wait(world), 500, world);
        world_free(world);
    }
    return missed;
}

const struct cases_group cases_crowd[] = {{"crowd", crowds}, {NULL, NULL}};
