/*
 * Programs that run bursts beside others: each point of the grid against generalised processor
 * sharing (gps.c). A burst consists of kernels of 100 us. Not all points can meet their bars:
 * tests/c/test_model.py says which do.
 */
#include <math.h>
#include <stdio.h>

#include "cases.h"

#define KERNEL_NS      (100 * US)
#define OTHER_BURST_NS (2 * MS) /* and as long a gap */
#define NEIGHBOUR      0.95     /* of what is due: the other one's bar */
#define FROM_NS        (500 * MS)
#define LENGTH         4e9  /* ns, from then on */
#define GPS_LENGTH     40e9 /* of the reference: chance matters less */

struct point {
    uint64_t burst, gap;
    uint64_t other; /* kernels of the other one, which is always busy; 0: it runs bursts too */
    uint32_t weights[2];
    bool each;     /* every kernel is synchronised */
    bool in_order; /* what the GPU does with kernels of several processes */
};

static struct tenant_spec *
add_bursts(struct scenario *s, uint32_t weight, uint64_t burst, uint64_t gap, bool each)
{
    struct tenant_spec *tenant = scenario_tenant(s, weight, KERNEL_NS);
    uint32_t kernels = (uint32_t)(burst / KERNEL_NS);

    tenant->load.sync_every = each ? 1 : kernels;
    tenant->load.burst_syncs = each ? kernels : 0;
    tenant->load.think_ns = gap;
    return tenant;
}

/* Of what is due: of the neighbour's length depends how close a program can come to it. */
static double
bar_of(const struct point *point)
{
    return point->other <= MS ? 0.9 : point->other <= 5 * MS ? 0.75 : 0.5;
}

static void
print_point(const char *group, const char *name, const struct point *point, struct world *world,
            const struct gps_load *due)
{
    double a = (double)world->tenants[0].used_ns / LENGTH * GPS_LENGTH / due[0].had;
    double b = (double)world->tenants[1].used_ns / LENGTH * GPS_LENGTH / due[1].had;
    double bar = bar_of(point);
    double lacks = fmax(bar - a, NEIGHBOUR - b);

    printf("{\"group\": \"%s\", \"name\": \"%s\", \"value\": %.3f, \"bar\": 0, \"least_busy\": 0, "
           "\"due\": %.2f, \"first\": %.3f, \"least\": %.2f, \"second\": %.3f, \"busy\": %.1f, "
           "\"added_ms\": [%.2f, %.2f], \"shown\": %.2f, \"steps_per_s\": %.0f, \"met\": %s}\n",
           group, name, lacks, 100 * due[0].had / GPS_LENGTH, a, bar, b, print_busy(world),
           (double)world_percentile(&world->tenants[0].latency, 0.5) / 1e6,
           (double)world_percentile(&world->tenants[0].latency, 0.99) / 1e6,
           print_charge_error(world, 0),
           (double)world->steps * 1e9 / (double)world->scenario->length_ns,
           lacks <= 0 ? "true" : "false");
}

static void
run(const char *group, const struct point *point)
{
    struct gps_load due[2] = {
        {.weight = point->weights[0], .work = (double)point->burst, .gap = (double)point->gap},
        {.weight = point->weights[1], .work = 1e6},
    };
    struct scenario s;
    struct world *world;
    char name[64];

    scenario_defaults(&s, CGPU_POLICY_WEIGHTED_FAIR, FROM_NS + (uint64_t)LENGTH);
    s.from_ns = FROM_NS;
    s.in_order = point->in_order;
    add_bursts(&s, point->weights[0], point->burst, point->gap, point->each);
    if (point->other > 0) {
        scenario_tenant(&s, point->weights[1], point->other);
    } else {
        add_bursts(&s, point->weights[1], OTHER_BURST_NS, OTHER_BURST_NS, false);
        due[1].work = due[1].gap = (double)OTHER_BURST_NS;
    }
    gps_share(due, 2, GPS_LENGTH);
    world = world_run(&s);
    snprintf(name, sizeof name, "%s-%s-%gms-%gms-%gms-%u:%u", point->in_order ? "order" : "slices",
             point->each ? "each" : "queued", (double)point->burst / 1e6, (double)point->gap / 1e6,
             (double)point->other / 1e6, point->weights[0], point->weights[1]);
    if (!world->skipped) {
        print_point(group, name, point, world, due);
    }
    world_free(world);
}

static int
bursts(const char *group)
{
    static const uint64_t lengths[] = {500 * US, 2 * MS, 10 * MS, 50 * MS};
    static const uint64_t others[] = {100 * US, MS, 5 * MS, 20 * MS, 0};
    static const uint32_t weights[][2] = {{1, 3}, {1, 1}, {3, 1}};
    for (uint32_t i = 0; i < 4 * 2 * 5 * 3 * 2 * 2; i++) {
        uint32_t at = i;
        struct point point = {0};

        point.burst = lengths[at % 4];
        at /= 4;
        point.gap = point.burst / (at % 2 ? 1 : 4);
        at /= 2;
        point.other = others[at % 5];
        at /= 5;
        point.weights[0] = weights[at % 3][0];
        point.weights[1] = weights[at % 3][1];
        at /= 3;
        point.each = at % 2;
        point.in_order = at / 2 % 2;
        run(group, &point);
    }
    return 0;
}

const struct cases_group cases_bursts[] = {
    {"bursts", bursts},
    {NULL, NULL},
};
