/* Shares over any second where kernels are short, and over any 20 s where they are long. */
#include <stdio.h>

#include "cases.h"

enum { MOST_LENGTHS = 7, MOST_TENANTS = 5 };

struct row {
    const char *name;
    uint32_t policy;
    uint32_t weights[MOST_TENANTS]; /* up to the first 0 */
    uint64_t lengths[MOST_LENGTHS]; /* each in each index, the same */
    uint32_t step;                  /* only every so-many-th combination */
    uint64_t window_ns, length_ns;
    double bar;
};

/* The share aimed at, in percent: under ceilings of 1/20 by weight, else by weight. */
static double
aim(const struct row *row, const struct scenario *s, uint32_t tenant)
{
    uint32_t sum = 0;

    for (uint32_t t = 0; t < s->tenant_count; t++) {
        sum += s->tenants[t].weight;
    }
    return 100.0 * s->tenants[tenant].weight /
           (row->policy == CGPU_POLICY_FIXED ? s->rules.max_inst : sum);
}

static int
combination(const char *group, const struct row *row, struct scenario *s, uint32_t number)
{
    struct world *world = world_run(s);
    double worst = 0;
    char name[64];
    int missed;

    for (uint32_t t = 0; t < s->tenant_count; t++) {
        double off = window_worst(world, t, row->window_ns, aim(row, s, t),
                                  row->policy == CGPU_POLICY_FIXED);

        worst = off > worst ? off : worst;
    }
    snprintf(name, sizeof name, "%s-%u", row->name, number);
    missed = cases_note(group, name, worst, row->bar, world);
    world_free(world);
    return missed;
}

static int
all_of(const char *group, const struct row *row)
{
    uint32_t lengths = 0, tenants = 0, count = 1;
    int missed = 0;

    while (lengths < MOST_LENGTHS && row->lengths[lengths] > 0) {
        lengths += 1;
    }
    for (; tenants < MOST_TENANTS && row->weights[tenants] > 0; tenants++) {
        count *= lengths;
    }
    for (uint32_t i = 0; i < count; i += row->step) {
        struct scenario s;

        scenario_defaults(&s, row->policy, row->length_ns);
        s.rules.max_inst = 20;
        for (uint32_t t = 0, rest = i; t < tenants; t++, rest /= lengths) {
            scenario_tenant(&s, row->weights[t], row->lengths[rest % lengths]);
        }
        missed += combination(group, row, &s, i);
    }
    return missed;
}

#define FAIR  CGPU_POLICY_WEIGHTED_FAIR
#define FIXED CGPU_POLICY_FIXED

#define UP_TO_10MS {5 * US, 500 * US, 2 * MS, 3 * MS, 5 * MS, 7 * MS, 10 * MS}
#define UP_TO_1MS  {5 * US, 50 * US, 500 * US, 1 * MS}
#define SECONDS    SECOND, 8 * SECOND

static const struct row a_second[] = {
    {"50-50", FAIR, {1, 1}, UP_TO_10MS, 1, SECONDS, 1},
    {"75-25", FAIR, {3, 1}, UP_TO_10MS, 1, SECONDS, 1},
    {"90-10", FAIR, {9, 1}, UP_TO_10MS, 1, SECONDS, 1},
    {"60-30-10", FAIR, {6, 3, 1}, UP_TO_1MS, 1, SECONDS, 1},
    /* more containers, ceilings: what truly holds */
    {"60-30-10-long", FAIR, {6, 3, 1}, UP_TO_10MS, 10, SECONDS, 2},
    {"five", FAIR, {8, 6, 3, 2, 1}, UP_TO_1MS, 23, SECONDS, 1.25},
    {"five-long", FAIR, {8, 6, 3, 2, 1}, {50 * US, 5 * MS, 10 * MS}, 8, SECONDS, 2.5},
    {"alone-30", FIXED, {6}, UP_TO_10MS, 1, SECONDS, 1.25},
    {"two-30", FIXED, {6, 6}, UP_TO_1MS, 1, SECONDS, 1.25},
    {"two-30-long", FIXED, {6, 6}, UP_TO_10MS, 2, SECONDS, 1.75},
    {"three-30", FIXED, {6, 6, 6}, UP_TO_1MS, 3, SECONDS, 1.25},
    {"three-30-long", FIXED, {6, 6, 6}, UP_TO_10MS, 10, SECONDS, 1.75},
};

static int
second(const char *group)
{
    int missed = 0;

    for (size_t i = 0; i < sizeof a_second / sizeof *a_second; i++) {
        missed += all_of(group, &a_second[i]);
    }
    return missed;
}

#define UP_TO_200MS {5 * US, 500 * US, 10 * MS, 50 * MS, 200 * MS}

#define MINUTE 20 * SECOND, 60 * SECOND

static const struct row long_ones[] = {
    {"50-50", FAIR, {1, 1}, UP_TO_200MS, 4, MINUTE, 1},
    {"75-25", FAIR, {3, 1}, UP_TO_200MS, 4, MINUTE, 1},
    {"90-10", FAIR, {9, 1}, UP_TO_200MS, 4, MINUTE, 1},
    {"60-30-10", FAIR, {6, 3, 1}, UP_TO_200MS, 17, MINUTE, 1.1},
    {"alone-30", FIXED, {6}, UP_TO_200MS, 1, MINUTE, 1},
    {"three-30", FIXED, {6, 6, 6}, UP_TO_200MS, 17, MINUTE, 1.1},
};

static int
twenty_seconds(const char *group)
{
    int missed = 0;

    for (size_t i = 0; i < sizeof long_ones / sizeof *long_ones; i++) {
        missed += all_of(group, &long_ones[i]);
    }
    return missed;
}

const struct cases_group cases_windows[] = {
    {"window-1s", second},
    {"window-20s", twenty_seconds},
    {NULL, NULL},
};
