/* Containers with many processes: the next one waits for what all of them have in flight. */
#include <stdio.h>

#include "cases.h"

static const uint32_t counts[] = {1, 2, 3, 4, 8, 32};
static const uint64_t lengths[] = {20 * US, 100 * US, 300 * US, 3 * MS};

enum { COUNTS = sizeof counts / sizeof *counts, LENGTHS = sizeof lengths / sizeof *lengths };

/* Beside a busy equal, which has one process. */
static int
equals(const char *group)
{
    static const struct cases_aim half = {.percent = 50, .bar = 2.8, .least_busy = 93};
    int missed = 0;

    for (int c = 0; c < COUNTS; c++) {
        for (int l = 0; l < LENGTHS; l++) {
            struct scenario s;

            scenario_defaults(&s, CGPU_POLICY_WEIGHTED_FAIR, 6 * SECOND);
            s.from_ns = SECOND;
            scenario_tenant(&s, 1, lengths[l])->processes = counts[c];
            scenario_tenant(&s, 1, MS);
            missed += cases_aim_at(group, &s, &half, "%u-%lluus", counts[c],
                                   (unsigned long long)(lengths[l] / US));
        }
    }
    return missed;
}

/* What a request of high priority waits for beside them, in ms: its median. */
static int
waits(const char *group, uint32_t count, uint64_t ns, uint32_t in_order)
{
    struct scenario s;
    struct world *world;
    struct tenant_spec *high;
    double bar = (2.0 * (double)ns + (in_order ? 1.7 : 1.0) * MS) / MS;
    char name[48];
    int missed;

    scenario_defaults(&s, CGPU_POLICY_WEIGHTED_FAIR, 6 * SECOND);
    s.from_ns = SECOND;
    s.in_order = in_order;
    scenario_tenant(&s, 1, ns)->processes = count;
    high = scenario_tenant(&s, 1, 100 * US);
    high->high = true;
    high->load.sync_every = 1;
    high->load.think_ns = 20 * MS;
    world = world_run(&s);
    snprintf(name, sizeof name, "%s-%u-%lluus", in_order ? "in-order" : "slices", count,
             (unsigned long long)(ns / US));
    missed = cases_note(group, name, (double)world_percentile(&world->tenants[1].latency, 0.5) / MS,
                        bar, world);
    world_free(world);
    return missed;
}

static int
high(const char *group)
{
    int missed = 0;

    for (uint32_t in_order = 0; in_order < 2; in_order++) {
        for (int c = 0; c < COUNTS; c++) {
            for (int l = 0; l < LENGTHS; l++) {
                missed += waits(group, counts[c], lengths[l], in_order);
            }
        }
    }
    return missed;
}

const struct cases_group cases_processes[] = {
    {"processes-equal", equals},
    {"processes-high", high},
    {NULL, NULL},
};
