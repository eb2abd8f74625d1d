/* High priority under every policy that meters (SCH-7): first, up to its ratio, and no part. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cases.h"

enum { MOST_WORDS = 8, MOST_TENANTS = 3 };

#define IDLE ",burst:1us,pause:1000s" /* runs, and has nothing to do */

struct row {
    const char *name;
    const char *words[MOST_WORDS]; /* as on the command line */
    /* of the time, in percent: without ceilings; under policy 2; with ceilings of 25 % (0 and 3) */
    double open[MOST_TENANTS], parts[MOST_TENANTS], ceilings[MOST_TENANTS];
};

static const struct row rows[] = {
    {"both-20",
     {"prio_ratio=20", "tenant=high:1,weight:2", "tenant=kernel:5ms"},
     {20, 80},
     {20, 80},
     {20, 25}},
    {"both-80",
     {"prio_ratio=80", "tenant=high:1,weight:2", "tenant=kernel:5ms"},
     {80, 20},
     {80, 20},
     {80, 20}},
    {"both-99",
     {"prio_ratio=99", "tenant=high:1,weight:2", "tenant=kernel:500us"},
     {99, 1},
     {99, 1},
     {99, 1}},
    {"it-is-idle",
     {"tenant=high:1,weight:2" IDLE, "tenant=kernel:5ms"},
     {0, 100},
     {0, 100},
     {0, 25}},
    {"others-idle",
     {"tenant=high:1,weight:2", "tenant=kernel:5ms" IDLE},
     {100, 0},
     {100, 0},
     {100, 0}},
    {"two-others",
     {"prio_ratio=50", "tenant=high:1,weight:2", "tenant=kernel:5ms", "tenant="},
     {50, 25, 25},
     {50, 25, 25},
     {50, 25, 25}},
    {"one-other-idle",
     {"prio_ratio=20", "tenant=high:1,weight:2", "tenant=kernel:5ms", "tenant=weight:1" IDLE},
     {20, 80, 0},
     {20, 50, 0},
     {20, 25, 0}},
    {"two-high",
     {"tenant=high:1", "tenant=high:1,kernel:5ms", "tenant=kernel:500us"},
     {40, 40, 20},
     {40, 40, 20},
     {40, 40, 20}},
};

static const double *
expected(const struct row *row, uint32_t policy)
{
    switch (policy) {
    case CGPU_POLICY_FAIR_SHARE:
    case CGPU_POLICY_FIXED:
        return row->ceilings;
    case CGPU_POLICY_WEIGHTED_PREEMPTIVE:
        return row->parts;
    default:
        return row->open;
    }
}

static int
run(const char *group, const struct row *row, uint32_t policy)
{
    const double *percent = expected(row, policy);
    struct scenario s;
    struct world *world;
    char name[32];
    double worst = 0;
    int missed;

    scenario_defaults(&s, policy, 11 * SECOND);
    s.from_ns = SECOND;
    s.rules.max_inst = 4;
    for (int w = 0; w < MOST_WORDS && row->words[w] != NULL; w++) {
        if (!scenario_parse(&s, row->words[w])) {
            abort();
        }
    }
    world = world_run(&s);
    for (uint32_t t = 0; t < s.tenant_count; t++) {
        worst = fmax(worst, fabs(print_part(world, t) - percent[t]));
    }
    snprintf(name, sizeof name, "%u-%s", policy, row->name);
    missed = cases_note(group, name, worst, policy == CGPU_POLICY_SOFT ? 5 : 1, world);
    world_free(world);
    return missed;
}

static int
every_policy(const char *group)
{
    int missed = 0;

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (uint32_t policy = 0; policy < CGPU_POLICIES; policy++) {
            if (policy != CGPU_POLICY_NATIVE) {
                missed += run(group, &rows[i], policy);
            }
        }
    }
    return missed;
}

const struct cases_group cases_priority[] = {{"high-policies", every_policy}, {NULL, NULL}};
