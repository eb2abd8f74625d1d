/*
 * One of two is stopped for a while (SIGSTOP, a debugger, a frozen control group). What the other
 * loses meanwhile, and whether both have their parts from 100 ms after it goes on.
 */
#include <math.h>
#include <stdio.h>

#include "cases.h"

#define STOPPED_NS (5 * SECOND)
#define AFTER_NS   (100 * MS)
/* It is let in for 5 ms in vain, more rarely each time. */
#define LOST_MS   25
#define LOST_PART 0.02
/* Whatever bins follow one another: a turn of two, and a kernel. */
#define OFF_MS 11
/* Under the soft policy each may be ahead by 60 ms, and a little until that is seen. */
#define SOFT_MS 130

enum { MOMENTS = 8, BINS = 40 };

static const uint64_t lengths[] = {100 * MS, SECOND, 4 * SECOND, 12 * SECOND, 60 * SECOND};
/* Two equals have half each under all policies, if there are no more than two instances. */
static const struct {
    const char *name;
    uint32_t policy, weight, other; /* weight: of the one that is stopped */
} rows[] = {{"0", CGPU_POLICY_FAIR_SHARE, 1, 1},
            {"1", CGPU_POLICY_PREEMPTIVE, 1, 1},
            {"2", CGPU_POLICY_WEIGHTED_PREEMPTIVE, 1, 1},
            {"3", CGPU_POLICY_FIXED, 1, 1},
            {"4", CGPU_POLICY_SOFT, 1, 1},
            {"6", CGPU_POLICY_WEIGHTED_FAIR, 1, 1},
            {"6-3:1", CGPU_POLICY_WEIGHTED_FAIR, 3, 1},
            {"6-1:3", CGPU_POLICY_WEIGHTED_FAIR, 1, 3}};

static double
used_ms(const struct world *world, uint32_t tenant, uint64_t from, uint64_t to)
{
    uint64_t used = 0;

    for (uint32_t i = (uint32_t)(from / SPAN_NS); i < to / SPAN_NS; i++) {
        used += world->tenants[tenant].spans.values[i];
    }
    return (double)used / 1e6;
}

/* By how many ms the first is off its part, in the worst run of bins from FROM on. */
static double
worst_run(const struct world *world, uint64_t from)
{
    const struct tenant_spec *tenants = world->scenario->tenants;
    double part = (double)tenants[0].weight / (tenants[0].weight + tenants[1].weight);
    double sum = 0, least = 0, most = 0;

    for (int i = 0; i < BINS; i++) {
        uint64_t at = from + (uint64_t)i * SPAN_NS;
        double first = used_ms(world, 0, at, at + SPAN_NS);
        double second = used_ms(world, 1, at, at + SPAN_NS);

        sum += first - part * (first + second);
        least = fmin(least, sum);
        most = fmax(most, sum);
    }
    return most - least;
}

/* A whole number of spans, so that the bins fit. */
static struct world *
run(struct scenario *s, size_t row, uint64_t length, uint64_t kernel, uint32_t moment)
{
    uint64_t stop = STOPPED_NS + moment * (uint64_t)2130 * US;
    uint64_t go = STOPPED_NS + length;

    scenario_defaults(s, rows[row].policy, go + 2 * AFTER_NS + BINS * SPAN_NS);
    s->rules.max_inst = 2;
    scenario_tenant(s, rows[row].weight, kernel);
    scenario_tenant(s, rows[row].other, kernel);
    s->changes[0] = (struct change){.at_ns = stop, .kind = CHANGE_STOP, .tenant = 0};
    s->changes[1] = (struct change){.at_ns = go, .kind = CHANGE_GO, .tenant = 0};
    s->change_count = 2;
    return world_run(s);
}

static bool
has_ceilings(uint32_t policy)
{
    struct cgpu_claim claims[2] = {{.weight = 1}, {.weight = 1}};

    (void)cgpu_policy_entitle(policy, claims, 2, 2);
    return claims[0].ceiling_ppm < CGPU_WHOLE_PPM;
}

static int
stops(const char *group)
{
    int missed = 0;

    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
            for (uint32_t m = 0; m < MOMENTS; m++) {
                uint64_t go = STOPPED_NS + lengths[l];
                struct scenario s;
                struct world *world = run(&s, r, lengths[l], m % 2 ? MS : 100 * US, m);
                double ms = (double)lengths[l] / 1e6;
                char name[48];

                snprintf(name, sizeof name, "%s-%ums-%u-loss", rows[r].name, (unsigned)ms, m);
                missed +=
                    has_ceilings(rows[r].policy)
                        ? 0
                        : cases_note(group, name,
                                     world->skipped ? 0 : ms - used_ms(world, 1, STOPPED_NS, go),
                                     LOST_MS + LOST_PART * ms, world);
                snprintf(name, sizeof name, "%s-%ums-%u-after", rows[r].name, (unsigned)ms, m);
                missed +=
                    cases_note(group, name, world->skipped ? 0 : worst_run(world, go + AFTER_NS),
                               rows[r].policy == CGPU_POLICY_SOFT ? SOFT_MS : OFF_MS, world);
                world_free(world);
            }
        }
    }
    return missed;
}

const struct cases_group cases_stops[] = {
    {"stops", stops},
    {NULL, NULL},
};
