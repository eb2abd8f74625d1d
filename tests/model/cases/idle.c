/* Programs that pause beside an idle neighbour, and a program that comes later. */
#include <stdio.h>

#include "cases.h"

static const uint64_t lengths[] = {5 * US, 100 * US, 500 * US, 1 * MS, 5 * MS, 20 * MS};

enum { LENGTHS = 6 };

/* A program that computes on the processor for some 5 ms of each 20, beside one that is idle. */
static struct world *
beside_idle(struct scenario *s, uint64_t kernel, uint64_t length, uint64_t newcomer)
{
    struct tenant_spec *program;

    scenario_defaults(s, CGPU_POLICY_WEIGHTED_FAIR, length);
    s->from_ns = SECOND;
    program = scenario_tenant(s, 1, kernel);
    program->load.burst_ns = 15 * MS;
    program->load.pause_ns = 5 * MS;
    scenario_tenant(s, 1, 100 * US)->processes = 0;
    if (newcomer > 0) {
        scenario_tenant(s, 1, 100 * US)->start_ns = newcomer;
    }
    return world_run(s);
}

/* Percent of the GPU that is lost to its pauses. */
static int
pauses(const char *group)
{
    int missed = 0;

    for (int i = 0; i < LENGTHS; i++) {
        struct scenario s;
        struct world *world = beside_idle(&s, lengths[i], 9 * SECOND, 0);
        char name[32];

        snprintf(name, sizeof name, "%dus", (int)(lengths[i] / US));
        missed += cases_note(group, name, 100 - print_part(world, 0), 3, world);
        world_free(world);
    }
    return missed;
}

/* How long the first launch of a program that comes at any moment waits, in ms. */
static int
newcomer(const char *group)
{
    int missed = 0;

    for (int i = 0; i < 4 * 20; i++) { /* with kernels of up to 1 ms */
        uint64_t at = 3 * SECOND + (uint64_t)(i / 4) * 1170 * US;
        struct scenario s;
        struct world *world = beside_idle(&s, lengths[i % 4], at + 50 * MS, at);
        char name[32];

        snprintf(name, sizeof name, "%dus-%d", (int)(lengths[i % 4] / US), i / 4);
        missed += cases_note(group, name, (double)world->tenants[2].longest_wait / 1e6, 20, world);
        world_free(world);
    }
    return missed;
}

const struct cases_group cases_idle[] = {
    {"idle-pauses", pauses},
    {"idle-newcomer", newcomer},
    {NULL, NULL},
};
