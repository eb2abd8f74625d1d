/* Programs with thousands of different kernels, which the gate cannot measure one by one. */
#include <math.h>
#include <stdio.h>

#include "cases.h"

enum { MIXES = 5, MOST_LENGTHS = 6 };

static const struct {
    const char *name;
    uint64_t lengths[MOST_LENGTHS];
} mixes[MIXES] = {
    {"20us", {20 * US}},
    {"100us", {100 * US}},
    {"5us-500us", {5 * US, 100 * US, 500 * US, 20 * US}},
    {"20us-1ms", {20 * US, 20 * US, 20 * US, 20 * US, 20 * US, MS}},
    {"20us-20ms", {20 * US, 20 * US, 20 * US, 20 * US, 20 * US, 20 * MS}},
};
static const uint32_t counts[] = {300, 1000, 2500, 10000};

static void
begin(struct scenario *s, int mix, uint32_t kinds)
{
    struct load *load;

    scenario_defaults(s, CGPU_POLICY_WEIGHTED_FAIR, 8 * SECOND);
    s->from_ns = SECOND;
    load = &scenario_tenant(s, 1, mixes[mix].lengths[0])->load;
    load->kinds = kinds;
    while (load->length_count < MOST_LENGTHS && mixes[mix].lengths[load->length_count] > 0) {
        load->lengths[load->length_count] = mixes[mix].lengths[load->length_count];
        load->length_count += 1;
    }
}

/* Beside a neighbour that launches once in three seconds: percent of the GPU that it lacks. */
static int
alone(const char *group, int mix, uint32_t kinds)
{
    struct scenario s;
    struct world *world;
    struct tenant_spec *other;
    char name[48];
    int missed;

    begin(&s, mix, kinds);
    other = scenario_tenant(&s, 1, 300 * US);
    other->load.sync_every = 1;
    other->load.think_ns = 3 * SECOND;
    world = world_run(&s);
    snprintf(name, sizeof name, "%s-%u-idle", mixes[mix].name, kinds);
    missed = cases_note(group, name, 100 - print_part(world, 0), 5, world);
    world_free(world);
    return missed;
}

static int
kinds(const char *group)
{
    static const struct cases_aim half = {.percent = 50, .bar = 2};
    int missed = 0;

    for (int mix = 0; mix < MIXES; mix++) {
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            struct scenario s;

            missed += alone(group, mix, counts[c]);
            begin(&s, mix, counts[c]);
            scenario_tenant(&s, 1, MS);
            missed += cases_aim_at(group, &s, &half, "%s-%u-busy", mixes[mix].name, counts[c]);
        }
    }
    return missed;
}

const struct cases_group cases_kinds[] = {
    {"kinds", kinds},
    {NULL, NULL},
};
