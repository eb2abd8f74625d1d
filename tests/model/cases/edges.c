/*
 * The edges of turns: GPUs that begin late what is launched and tell late what has ended, and those
 * who lie about it.
 */
#include <math.h>
#include <stdio.h>

#include "cases.h"

#define BUSY 98.0

static const uint64_t latencies[] = {0, 20 * US, 100 * US, 300 * US};
static const uint64_t lengths[] = {5 * US, 100 * US, 500 * US, 1 * MS, 5 * MS, 20 * MS};

enum { LATENCIES = 4, LENGTHS = 6 };

static void
set_latency(struct scenario *s, uint64_t ns)
{
    s->dispatch_ns = ns;
    s->completion_ns = ns;
}

static int
pair(const char *group, uint32_t a, uint32_t b, const uint64_t *kernels, uint64_t latency)
{
    struct scenario s;
    struct world *world;
    char name[64];
    double off;
    int missed;

    scenario_defaults(&s, CGPU_POLICY_WEIGHTED_FAIR, 10 * SECOND);
    set_latency(&s, latency);
    scenario_tenant(&s, a, kernels[0]);
    scenario_tenant(&s, b, kernels[1]);
    world = world_run(&s);
    off = fabs(print_share(world, 0) - 100.0 * a / (a + b));
    snprintf(name, sizeof name, "%u:%u-%dus-%dus-%dus", a, b, (int)(kernels[0] / US),
             (int)(kernels[1] / US), (int)(latency / US));
    missed = cases_note_busy(group, name, off, 1, BUSY, world);
    world_free(world);
    return missed;
}

static int
pairs(const char *group)
{
    static const uint32_t weights[][2] = {{1, 9}, {1, 3}, {1, 1}};
    int missed = 0;

    for (int i = 0; i < 3 * LATENCIES * LENGTHS * LENGTHS; i++) {
        const uint32_t *w = weights[i / LENGTHS / LENGTHS / LATENCIES];
        uint64_t kernels[] = {lengths[i / LENGTHS % LENGTHS], lengths[i % LENGTHS]};

        missed += pair(group, w[0], w[1], kernels, latencies[i / LENGTHS / LENGTHS % LATENCIES]);
    }
    return missed;
}

/*
 * Threads that wake up late, as on a machine with few processors: 100 us beside 20 ms, which are
 * mostly alone in their turns.
 */
static int
slow(const char *group)
{
    int missed = 0;

    for (int i = 0; i < LATENCIES; i++) {
        struct scenario s;
        struct world *world;
        char name[32];

        scenario_defaults(&s, CGPU_POLICY_WEIGHTED_FAIR, 20 * SECOND);
        s.timer_most = 100 * US;
        s.wake_most = 150 * US;
        set_latency(&s, latencies[i]);
        scenario_tenant(&s, 1, 100 * US);
        scenario_tenant(&s, 9, 20 * MS);
        world = world_run(&s);
        snprintf(name, sizeof name, "%dus", (int)(latencies[i] / US));
        missed += cases_note_busy(group, name, fabs(print_share(world, 0) - 10), 0.3, 98.8, world);
        world_free(world);
    }
    return missed;
}

/* 5 percent of the time for one that is alone. */
static int
ceiling(const char *group)
{
    int missed = 0;

    for (int i = 0; i < LATENCIES * LENGTHS; i++) {
        struct scenario s;
        struct world *world;
        char name[32];

        scenario_defaults(&s, CGPU_POLICY_FIXED, 10 * SECOND);
        s.rules.max_inst = 20;
        set_latency(&s, latencies[i / LENGTHS]);
        scenario_tenant(&s, 1, lengths[i % LENGTHS]);
        world = world_run(&s);
        snprintf(name, sizeof name, "%dus-%dus", (int)(lengths[i % LENGTHS] / US),
                 (int)(latencies[i / LENGTHS] / US));
        missed += cases_note(group, name, fabs(print_part(world, 0) - 5), 0.3, world);
        world_free(world);
    }
    return missed;
}

/*
 * The same where threads wake up late, with kernels of 500 us: what nobody used is not charged. On
 * a loaded machine more of it is charged than not, for only so much is believed.
 */
static int
slow_ceiling(const char *group)
{
    static const struct {
        uint64_t wake, timer;
        double bar;
    } late[] = {{200 * US, 100 * US, 0.12}, {1 * MS, 300 * US, 0.3}};
    int missed = 0;

    for (int i = 0; i < 2 * LATENCIES; i++) {
        struct scenario s;
        struct world *world;
        char name[32];

        scenario_defaults(&s, CGPU_POLICY_FIXED, 20 * SECOND);
        s.rules.max_inst = 20;
        s.wake_most = late[i / LATENCIES].wake;
        s.timer_most = late[i / LATENCIES].timer;
        set_latency(&s, latencies[i % LATENCIES]);
        scenario_tenant(&s, 1, 500 * US);
        world = world_run(&s);
        snprintf(name, sizeof name, "%dus-%dus", (int)(s.wake_most / US),
                 (int)(s.dispatch_ns / US));
        missed +=
            cases_note(group, name, fabs(print_part(world, 0) - 5), late[i / LATENCIES].bar, world);
        world_free(world);
    }
    return missed;
}

/* What one with a ceiling gains that says it has not used anything. */
static int
liar_ceiling(const char *group)
{
    static const uint32_t weights[] = {1, 2, 6, 10, 18};
    int missed = 0;

    for (int i = 0; i < 5 * LATENCIES * LENGTHS; i++) {
        uint32_t weight = weights[i / LENGTHS / LATENCIES];
        struct scenario s;
        struct world *world;
        char name[64];

        scenario_defaults(&s, CGPU_POLICY_FIXED, 10 * SECOND);
        s.rules.max_inst = 20;
        set_latency(&s, latencies[i / LENGTHS % LATENCIES]);
        scenario_tenant(&s, weight, lengths[i % LENGTHS])->late = 1;
        world = world_run(&s);
        snprintf(name, sizeof name, "%u-%dus-%dus", 5 * weight, (int)(lengths[i % LENGTHS] / US),
                 (int)(s.dispatch_ns / US));
        missed += cases_note(group, name, print_part(world, 0) - 5 * weight, 1, world);
        world_free(world);
    }
    return missed;
}

/* What one gains that says its work begins at once, or late. */
static int
liar(const char *group)
{
    static const uint32_t weights[] = {1, 9};
    int missed = 0;

    for (int i = 0; i < 2 * 2 * LATENCIES * LENGTHS; i++) {
        uint32_t weight = weights[i / LENGTHS / LATENCIES % 2];
        uint64_t reported = i / LENGTHS / LATENCIES / 2 == 0 ? 1 : SECOND;
        struct scenario s;
        struct world *world;
        char name[64];

        scenario_defaults(&s, CGPU_POLICY_WEIGHTED_FAIR, 10 * SECOND);
        set_latency(&s, latencies[i / LENGTHS % LATENCIES]);
        scenario_tenant(&s, weight, lengths[i % LENGTHS])->lag_ns = reported;
        scenario_tenant(&s, 10 - weight, 100 * US);
        world = world_run(&s);
        snprintf(name, sizeof name, "%u-%s-%dus-%dus", weight, reported == 1 ? "none" : "much",
                 (int)(lengths[i % LENGTHS] / US), (int)(s.dispatch_ns / US));
        missed += cases_note(group, name, print_share(world, 0) - 10 * weight, 1, world);
        world_free(world);
    }
    return missed;
}

const struct cases_group cases_edges[] = {
    {"edge-pairs", pairs},
    {"edge-slow", slow},
    {"edge-ceiling", ceiling},
    {"edge-liar", liar},
    {"slow-ceiling", slow_ceiling},
    {"liar-ceiling", liar_ceiling},
    {NULL, NULL},
};
