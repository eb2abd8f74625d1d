/*
 * What is changed while containers compute is in force within 100 ms (SCH-9): from then on,
 * whatever bins of 50 ms follow one another, each has its new part of them. A bin alone says
 * little, for one may end in the middle of a turn, and under a ceiling of 5 % a container runs
 * every 120 ms.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cases.h"

#define CHANGED_NS (20 * SECOND) /* time to save up */
#define FORCE_NS   (100 * MS)
#define OFF_MS     10 /* a turn of two or three, or a run under a ceiling; and two kernels */
#define SOFT_MS    30 /* gates are not closed at the end of a turn */

enum { BINS = 20, MOST_WORDS = 4, MOST_TENANTS = 3 };

struct crowd {
    const char *name;
    const char *words[MOST_WORDS]; /* as on the command line */
};

static const struct crowd crowds[] = {
    {"alone", {"tenant=kernel:500us"}},
    {"two", {"tenant=kernel:500us", "tenant=weight:3,kernel:500us"}},
    {"three",
     {"tenant=kernel:500us", "tenant=weight:3,kernel:500us", "tenant=weight:6,kernel:50us"}},
    {"long", {"tenant=kernel:20ms", "tenant=weight:3,kernel:500us"}},
    {"high", {"prio_ratio=40", "tenant=kernel:500us,high:1", "tenant=weight:3,kernel:500us"}},
    {"gpus", {"tenant=kernel:500us,gpus:3", "tenant=weight:3,kernel:500us,gpus:3"}},
};

enum { CROWDS = sizeof crowds / sizeof *crowds };

/* CROWD under POLICY, and a change of its rules for the caller to fill in. */
static struct change *
make(struct scenario *s, const struct crowd *crowd, uint32_t policy, uint32_t max_inst)
{
    scenario_defaults(s, policy, CHANGED_NS + FORCE_NS + BINS * SPAN_NS);
    s->from_ns = CHANGED_NS + FORCE_NS;
    s->rules.max_inst = max_inst;
    for (int w = 0; w < MOST_WORDS && crowd->words[w] != NULL; w++) {
        if (!scenario_parse(s, crowd->words[w])) {
            abort();
        }
    }
    s->changes[0] = (struct change){.at_ns = CHANGED_NS, .rules = s->rules};
    s->change_count = 1;
    return &s->changes[0];
}

/* LEFT goes by weight to those of this priority; who has its ceiling leaves the rest to others. */
static void
share_out(const struct cgpu_claim *claims, uint32_t count, bool high, double left, double *parts)
{
    bool full[MOST_TENANTS] = {false};

    for (uint32_t round = 0; round < count; round++) {
        double weights = 0, rest = left;

        for (uint32_t t = 0; t < count; t++) {
            if ((claims[t].high_priority != 0) == high) {
                weights += full[t] ? 0 : claims[t].competes;
                rest -= full[t] ? parts[t] : 0;
            }
        }
        for (uint32_t t = 0; t < count; t++) {
            if ((claims[t].high_priority != 0) == high && !full[t]) {
                double ceiling = high ? 1 : claims[t].ceiling_ppm / 1e6;

                parts[t] = fmin(ceiling, rest * claims[t].competes / weights);
                full[t] = parts[t] == ceiling;
            }
        }
    }
}

/* The part of the time of each after the change, when all are always busy; their sum. */
static double
expect(const struct scenario *s, double *parts)
{
    const struct change *change = &s->changes[0];
    const struct cgpu_rules *rules = &change->rules;
    struct cgpu_claim claims[MOST_TENANTS];
    double ratio, sum = 0;
    uint32_t high = 0;

    for (uint32_t t = 0; t < s->tenant_count; t++) {
        bool changed = change->kind == CHANGE_WEIGHT && change->tenant == (int)t;

        claims[t] = (struct cgpu_claim){
            .weight = changed ? change->value : s->tenants[t].weight,
            .high_priority = s->tenants[t].high && rules->policy != CGPU_POLICY_NATIVE,
        };
        high += claims[t].high_priority;
    }
    (void)cgpu_policy_entitle(rules->policy, claims, s->tenant_count, rules->max_inst);
    ratio = high == 0 ? 0 : rules->prio_ratio / 100.0;
    share_out(claims, s->tenant_count, true, ratio, parts);
    share_out(claims, s->tenant_count, false, 1 - ratio, parts);
    for (uint32_t t = 0; t < s->tenant_count; t++) {
        sum += parts[t];
    }
    return sum;
}

/*
 * By how many ms of GPU time TENANT is off PART in the worst run of bins: of what was delivered, or
 * OF_TIME.
 */
static double
worst_run(const struct world *world, uint32_t tenant, double part, bool of_time)
{
    uint32_t first = (uint32_t)((CHANGED_NS + FORCE_NS) / SPAN_NS);
    double sum = 0, least = 0, most = 0;

    for (uint32_t i = first; i < world->tenants[tenant].spans.count; i++) {
        double of = of_time ? (double)SPAN_NS * world->gpu_count : 0;

        for (uint32_t t = 0; !of_time && t < world->scenario->tenant_count; t++) {
            of += (double)world->tenants[t].spans.values[i];
        }
        sum += (double)world->tenants[tenant].spans.values[i] - part * of;
        least = fmin(least, sum);
        most = fmax(most, sum);
    }
    return (most - least) / 1e6;
}

static int
run(const char *group, const char *name, const struct scenario *s)
{
    struct world *world = world_run(s);
    double parts[MOST_TENANTS], worst = 0, longest = 0;
    bool all = expect(s, parts) > 0.999;
    bool soft = s->changes[0].rules.policy == CGPU_POLICY_SOFT;
    int missed;

    for (uint32_t t = 0; t < s->tenant_count; t++) {
        worst = fmax(worst, worst_run(world, t, parts[t], !all));
        longest = fmax(longest, (double)s->tenants[t].load.lengths[0] / 1e6);
    }
    missed = cases_note_busy(group, name, worst,
                             world->gpu_count * ((soft ? SOFT_MS : OFF_MS) + 2 * longest),
                             all ? 95 : 0, world);
    world_free(world);
    return missed;
}

static int
policies(const char *group)
{
    int missed = 0;

    for (uint32_t i = 0; i < CROWDS * CGPU_POLICIES * CGPU_POLICIES; i++) {
        const struct crowd *crowd = &crowds[i / CGPU_POLICIES / CGPU_POLICIES];
        uint32_t before = i / CGPU_POLICIES % CGPU_POLICIES, after = i % CGPU_POLICIES;
        struct scenario s;
        char name[32];

        make(&s, crowd, before, 20)->rules.policy = after;
        snprintf(name, sizeof name, "%u-to-%u-%s", before, after, crowd->name);
        missed += run(group, name, &s);
    }
    return missed;
}

/* Three processes beside one get ahead under the soft policy, where their weights do not count. */
static int
from_soft(const char *group)
{
    static const struct crowd ahead = {
        "ahead", {"tenant=kernel:500us,processes:3", "tenant=weight:12,kernel:500us"}};
    static const uint32_t policies[] = {0, 2, 3, 6};
    int missed = 0;

    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        struct scenario s;
        char name[32];

        make(&s, &ahead, CGPU_POLICY_SOFT, 20)->rules.policy = policies[i];
        snprintf(name, sizeof name, "4-to-%u-%s", policies[i], ahead.name);
        missed += run(group, name, &s);
    }
    return missed;
}

static int
weights(const char *group)
{
    static const uint32_t pairs[][2] = {{3, 1}, {1, 3}, {3, 12}, {12, 3}};
    int missed = 0;

    for (uint32_t i = 0; i < (CROWDS - 1) * 4 * CGPU_POLICIES; i++) {
        const struct crowd *crowd = &crowds[1 + i / 4 / CGPU_POLICIES];
        const uint32_t *pair = pairs[i / CGPU_POLICIES % 4];
        uint32_t policy = i % CGPU_POLICIES;
        struct scenario s;
        struct change *change = make(&s, crowd, policy, 20);
        char name[32];

        s.tenants[1].weight = pair[0];
        change->kind = CHANGE_WEIGHT;
        change->tenant = 1;
        change->value = pair[1];
        snprintf(name, sizeof name, "%u-%u-to-%u-%s", policy, pair[0], pair[1], crowd->name);
        missed += run(group, name, &s);
    }
    return missed;
}

static int
max_inst(const char *group)
{
    /* 4: less than some weights add up to */
    static const uint32_t pairs[][2] = {{20, 10}, {10, 20}, {20, 4}, {4, 20}};
    int missed = 0;

    for (uint32_t i = 0; i < CROWDS * 4 * CGPU_POLICIES; i++) {
        const struct crowd *crowd = &crowds[i / 4 / CGPU_POLICIES];
        const uint32_t *pair = pairs[i / CGPU_POLICIES % 4];
        uint32_t policy = i % CGPU_POLICIES;
        struct scenario s;
        char name[32];

        make(&s, crowd, policy, pair[0])->rules.max_inst = pair[1];
        snprintf(name, sizeof name, "%u-%u-to-%u-%s", policy, pair[0], pair[1], crowd->name);
        missed += run(group, name, &s);
    }
    return missed;
}

static int
ratio(const char *group)
{
    static const uint32_t pairs[][2] = {{80, 20}, {20, 80}};
    static const struct crowd high = {
        "high", {"tenant=kernel:500us,high:1", "tenant=kernel:500us", "tenant=kernel:500us"}};
    int missed = 0;

    for (uint32_t i = 0; i < 2 * CGPU_POLICIES; i++) {
        const uint32_t *pair = pairs[i / CGPU_POLICIES];
        uint32_t policy = i % CGPU_POLICIES;
        struct scenario s;
        char name[32];

        make(&s, &high, policy, 20)->rules.prio_ratio = pair[1];
        s.rules.prio_ratio = pair[0];
        snprintf(name, sizeof name, "%u-%u-to-%u", policy, pair[0], pair[1]);
        missed += run(group, name, &s);
    }
    return missed;
}

const struct cases_group cases_changes[] = {
    {"change-policy", policies},   {"change-from-soft", from_soft}, {"change-weight", weights},
    {"change-max-inst", max_inst}, {"change-ratio", ratio},         {NULL, NULL},
};
