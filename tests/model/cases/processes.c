/* Many processes or streams: the next container waits for what all of them have in flight. */
#include <stdio.h>

#include "cases.h"

static const uint32_t counts[] = {1, 2, 3, 4, 8, 32};
static const uint64_t lengths[] = {20 * US, 100 * US, 300 * US, 3 * MS};

static const uint32_t streams[] = {1, 8, 16, 64, 512}, stream_processes[] = {1, 8};
static const uint64_t stream_lengths[] = {20 * US, 300 * US, 3 * MS};

enum { COUNTS = sizeof counts / sizeof *counts, LENGTHS = sizeof lengths / sizeof *lengths };
enum {
    STREAMS = sizeof streams / sizeof *streams,
    STREAM_PROCESSES = sizeof stream_processes / sizeof *stream_processes,
    STREAM_LENGTHS = sizeof stream_lengths / sizeof *stream_lengths
};

typedef int run_case(const char *group, const char *name, const struct tenant_spec *program,
                     uint32_t in_order);

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

/* What a request of high priority waits for beside OTHERS with kernels of NS, in ms: its median. */
static int
waits(const char *group, const char *name, const struct tenant_spec *others, uint32_t in_order)
{
    struct scenario s;
    struct world *world;
    struct tenant_spec *high;
    double bar = (2.0 * (double)others->load.lengths[0] + (in_order ? 2.3 : 1.0) * MS) / MS;
    int missed;

    scenario_defaults(&s, CGPU_POLICY_WEIGHTED_FAIR, 6 * SECOND);
    s.from_ns = SECOND;
    s.in_order = in_order;
    *scenario_tenant(&s, 1, 0) = *others;
    high = scenario_tenant(&s, 1, 100 * US);
    high->high = true;
    high->load.sync_every = 1;
    high->load.think_ns = 20 * MS;
    world = world_run(&s);
    missed = cases_note(group, name, (double)world_percentile(&world->tenants[1].latency, 0.5) / MS,
                        bar, world);
    world_free(world);
    return missed;
}

static struct tenant_spec
program_with(uint32_t processes, uint32_t count, uint64_t ns)
{
    struct scenario s = {0};
    struct tenant_spec *program = scenario_tenant(&s, 1, ns);

    program->processes = processes;
    program->load.streams = count;
    return *program;
}

static int
high(const char *group)
{
    int missed = 0;

    for (uint32_t in_order = 0; in_order < 2; in_order++) {
        for (int c = 0; c < COUNTS; c++) {
            for (int l = 0; l < LENGTHS; l++) {
                struct tenant_spec others = program_with(counts[c], 1, lengths[l]);
                char name[48];

                snprintf(name, sizeof name, "%s-%u-%lluus", in_order ? "in-order" : "slices",
                         counts[c], (unsigned long long)(lengths[l] / US));
                missed += waits(group, name, &others, in_order);
            }
        }
    }
    return missed;
}

/* Beside a neighbour that launches once in three seconds: percent of the GPU that they lack. */
static int
lacks(const char *group, const char *name, const struct tenant_spec *program, uint32_t in_order)
{
    struct scenario s;
    struct world *world;
    struct tenant_spec *other;
    int missed;

    scenario_defaults(&s, CGPU_POLICY_WEIGHTED_FAIR, 4 * SECOND);
    s.from_ns = SECOND;
    s.in_order = in_order;
    *scenario_tenant(&s, 1, 0) = *program;
    other = scenario_tenant(&s, 1, 300 * US);
    other->load.sync_every = 1;
    other->load.think_ns = 3 * SECOND;
    world = world_run(&s);
    missed = cases_note(group, name, 100 - print_part(world, 0), 0.1, world);
    world_free(world);
    return missed;
}

/* Streams by processes. */
static int
by_streams(const char *group, int processes_counts, run_case *run_one)
{
    int missed = 0;

    for (uint32_t in_order = 0; in_order < 2; in_order++) {
        for (int i = 0; i < STREAMS * processes_counts * STREAM_LENGTHS; i++) {
            uint32_t count = streams[i / (processes_counts * STREAM_LENGTHS)];
            uint32_t processes = stream_processes[i / STREAM_LENGTHS % processes_counts];
            uint64_t ns = stream_lengths[i % STREAM_LENGTHS];
            struct tenant_spec spec = program_with(processes, count, ns);
            char name[48];

            snprintf(name, sizeof name, "%s-%ux%u-%lluus", in_order ? "in-order" : "slices", count,
                     processes, (unsigned long long)(ns / US));
            missed += run_one(group, name, &spec, in_order);
        }
    }
    return missed;
}

static int
high_by_streams(const char *group)
{
    return by_streams(group, STREAM_PROCESSES, waits);
}

static int
idle_by_streams(const char *group)
{
    return by_streams(group, 1, lacks);
}

const struct cases_group cases_processes[] = {
    {"processes-equal", equals},
    {"processes-high", high},
    {"streams-high", high_by_streams},
    {"streams-idle", idle_by_streams},
    {NULL, NULL},
};
