/* Shares of backlogged containers, for kernels of any length. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cases.h"

#define BUSY 98.5

static int
pairs(const char *group, uint32_t a, uint32_t b, uint64_t length_ns, uint64_t late_ns, double bar,
      double least)
{
    struct cases_aim aim = {.percent = 100.0 * a / (a + b), .bar = bar, .least_busy = least};
    int missed = 0;

    for (int i = 0; i < CASES_LENGTHS * CASES_LENGTHS; i++) {
        uint64_t one = cases_lengths[i / CASES_LENGTHS], other = cases_lengths[i % CASES_LENGTHS];
        struct scenario s;

        scenario_defaults(&s, CGPU_POLICY_WEIGHTED_FAIR, length_ns);
        if (late_ns > 0) {
            s.timer_most = late_ns;
            s.wake_least = s.wake_most;
        }
        scenario_tenant(&s, a, one);
        scenario_tenant(&s, b, other);
        missed += cases_aim_at(group, &s, &aim, "%s-%s", cases_length_name(one),
                               cases_length_name(other));
    }
    return missed;
}

static int
three_to_one(const char *group)
{
    return pairs(group, 3, 1, 30 * SECOND, 0, 0.5, BUSY);
}

static int
nine_to_one(const char *group)
{
    return pairs(group, 9, 1, 10 * SECOND, 0, 0.5, BUSY);
}

static int
one_to_one(const char *group)
{
    return pairs(group, 1, 1, 10 * SECOND, 0, 0.5, BUSY);
}

/* Wake-ups always take 60 us, and polls come up to 220 us late. */
static int
late(const char *group)
{
    return pairs(group, 3, 1, 30 * SECOND, 220 * US, 0.7, 97);
}

/* Kernels that take about what may be in flight, beside short and long ones; all looks are late. */
static int
flight(const char *group)
{
    static const struct cases_aim aim = {.percent = 50, .bar = 0.5, .least_busy = 98};
    static const uint64_t others[] = {50 * US, 5 * MS};
    int missed = 0;

    for (uint64_t ns = 450 * US; ns <= 550 * US; ns += 25 * US) {
        for (int i = 0; i < 2; i++) {
            struct scenario s;

            scenario_defaults(&s, CGPU_POLICY_WEIGHTED_FAIR, 10 * SECOND);
            s.timer_most = 220 * US;
            s.wake_least = s.wake_most;
            scenario_tenant(&s, 1, ns);
            scenario_tenant(&s, 1, others[i]);
            missed += cases_aim_at(group, &s, &aim, "%dus-%s", (int)(ns / US),
                                   cases_length_name(others[i]));
        }
    }
    return missed;
}

/* On GPUs that slice time and on those that run kernels as they came; also how far charges are off.
 */
static int
orders(const char *group)
{
    static const uint64_t lengths[] = {100 * US, 1 * MS, 5 * MS, 20 * MS};
    static const uint32_t weights[][2] = {{1, 9}, {1, 2}, {1, 1}};
    int missed = 0;

    for (int i = 0; i < 2 * 3 * 4 * 4; i++) {
        const uint32_t *w = weights[i / 16 % 3];
        struct scenario s;
        struct world *world;
        char name[64];
        double off;

        scenario_defaults(&s, CGPU_POLICY_WEIGHTED_FAIR, 8 * SECOND);
        s.in_order = i / 48 != 0;
        scenario_tenant(&s, w[0], lengths[i / 4 % 4]);
        scenario_tenant(&s, w[1], lengths[i % 4]);
        world = world_run(&s);
        off = fabs(print_share(world, 0) - 100.0 * w[0] / (w[0] + w[1]));
        snprintf(name, sizeof name, "%s-%u:%u-%dus-%dus", s.in_order ? "order" : "slices", w[0],
                 w[1], (int)(lengths[i / 4 % 4] / US), (int)(lengths[i % 4] / US));
        missed += cases_note_busy(group, name, off, 0.5, BUSY, world);
        strcat(name, "-shown");
        missed += cases_note(group, name, print_charge_error(world, 0), 1, world);
        world_free(world);
    }
    return missed;
}

static int
five(const char *group)
{
    static const uint32_t weights[] = {8, 6, 3, 2, 1};
    int missed = 0;

    for (uint32_t i = 0; i < 625; i += 6) { /* a sixth of all combinations */
        struct scenario s;
        struct world *world;
        char name[16];
        double worst = 0;

        scenario_defaults(&s, CGPU_POLICY_WEIGHTED_FAIR, 30 * SECOND);
        for (uint32_t t = 0, rest = i; t < 5; t++, rest /= 5) {
            scenario_tenant(&s, weights[t], cases_lengths[rest % 5]); /* not the 200 ms */
        }
        world = world_run(&s);
        for (uint32_t t = 0; t < 5; t++) {
            worst = fmax(worst, fabs(print_share(world, t) - 5.0 * weights[t]));
        }
        snprintf(name, sizeof name, "%u", i);
        missed += cases_note_busy(group, name, worst, 0.3, BUSY, world);
        world_free(world);
    }
    return missed;
}

static double
worst_part(const struct world *world, double part)
{
    double worst = 0;

    for (uint32_t t = 0; t < world->scenario->tenant_count; t++) {
        worst = fmax(worst, fabs(print_part(world, t) - part));
    }
    return worst;
}

/* A ceiling of PART for one that is alone, for each length; long enough for 200 ms to be short. */
static int
alone(const char *group, uint32_t policy, uint32_t max_inst, uint32_t weight, double part)
{
    struct cases_aim aim = {.percent = part, .bar = 0.5, .of_time = true};
    int missed = 0;

    for (int i = 0; i < CASES_LENGTHS; i++) {
        struct scenario s;

        scenario_defaults(&s, policy, cases_lengths[i] > 50 * MS ? 60 * SECOND : 10 * SECOND);
        s.rules.max_inst = max_inst;
        scenario_tenant(&s, weight, cases_lengths[i]);
        missed += cases_aim_at(group, &s, &aim, "%s", cases_length_name(cases_lengths[i]));
    }
    return missed;
}

static int
fixed_alone(const char *group)
{
    return alone(group, CGPU_POLICY_FIXED, 20, 6, 30);
}

static int
fair_share_alone(const char *group)
{
    return alone(group, CGPU_POLICY_FAIR_SHARE, 4, 1, 25);
}

static int
fixed_three(const char *group)
{
    int missed = 0;

    for (int i = 0; i < 216; i++) {
        struct scenario s;
        struct world *world;
        char name[64];
        int a = i / 36, b = i / 6 % 6, c = i % 6;

        if (a > b || b > c) {
            continue;
        }
        scenario_defaults(&s, CGPU_POLICY_FIXED, 20 * SECOND);
        s.rules.max_inst = 20;
        scenario_tenant(&s, 6, cases_lengths[a]);
        scenario_tenant(&s, 6, cases_lengths[b]);
        scenario_tenant(&s, 6, cases_lengths[c]);
        world = world_run(&s);
        snprintf(name, sizeof name, "%s-%s-%s", cases_length_name(cases_lengths[a]),
                 cases_length_name(cases_lengths[b]), cases_length_name(cases_lengths[c]));
        missed += cases_note(group, name, worst_part(world, 30), 0.5, world);
        world_free(world);
    }
    return missed;
}

const struct cases_group cases_shares[] = {
    {"share-75-25", three_to_one},
    {"share-90-10", nine_to_one},
    {"share-50-50", one_to_one},
    {"share-orders", orders},
    {"share-five", five},
    {"share-late", late},
    {"share-flight", flight},
    {"fixed-alone", fixed_alone},
    {"fixed-three", fixed_three},
    {"fair-share-alone", fair_share_alone},
    {NULL, NULL},
};
