/* Events in their order, figures. */
#include <stdlib.h>
#include <string.h>

#include "model.h"

uint64_t
world_random(struct world *world, uint64_t least, uint64_t most)
{
    uint64_t x = world->chance;

    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    world->chance = x;
    return most > least ? least + x % (most - least + 1) : least;
}

uint64_t
world_wake(struct world *world)
{
    const struct scenario *s = world->scenario;

    return world->now + world_random(world, s->wake_least, s->wake_most);
}

uint64_t
world_timer(struct world *world, uint64_t at)
{
    const struct scenario *s = world->scenario;

    return (at > world->now ? at : world->now) + world_random(world, s->timer_least, s->timer_most);
}

void
world_sample(struct samples *samples, uint64_t value)
{
    if (samples->count == samples->room) {
        samples->room = samples->room > 0 ? 2 * samples->room : 1024;
        samples->values = realloc(samples->values, samples->room * sizeof *samples->values);
        if (samples->values == NULL) {
            abort();
        }
    }
    samples->values[samples->count] = value;
    samples->count += 1;
}

static int
compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

uint64_t
world_percentile(struct samples *samples, double part)
{
    if (samples->count == 0) {
        return 0;
    }
    qsort(samples->values, samples->count, sizeof *samples->values, compare);
    return samples->values[(uint32_t)(part * (samples->count - 1))];
}

uint32_t
world_gate(const struct world *world, const struct process *process)
{
    return world->tenants[process->tenant].words[process->gpu];
}

/* For a team, as for its first process: the others meet that one. */
void
world_step(struct world *world, struct process *process, uint64_t now)
{
    struct tenant *tenant = &world->tenants[process->tenant];

    if (process != &world->processes[process->team]) {
        return;
    }
    if (now >= world->scenario->from_ns) {
        uint64_t took = now - process->stepped_ns;

        tenant->steps += 1;
        tenant->longest_step = took > tenant->longest_step ? took : tenant->longest_step;
    }
    process->stepped_ns = now;
}

static void
start_tenant(struct world *world, int tenant)
{
    const struct tenant_spec *spec = &world->scenario->tenants[tenant];

    for (int g = 0; g < world->gpu_count; g++) {
        if ((spec->gpus & 1U << g) != 0) {
            world->tenants[tenant].indices[g] =
                cgpu_arbiter_add(world->gpus[g].arbiter, spec->weight, spec->high, world->now);
            cgpu_arbiter_set_container(world->gpus[g].arbiter, world->tenants[tenant].indices[g],
                                       (uint64_t)tenant + 1);
            cgpu_arbiter_set_memory(world->gpus[g].arbiter, world->tenants[tenant].indices[g],
                                    spec->memory_mib);
        }
    }
    for (uint32_t i = 0; i < world->process_count; i++) {
        if (world->processes[i].tenant == tenant) {
            world->processes[i].alive = true;
            world->processes[i].at_thread = world->now + i * 7 * US;
            world->processes[i].asked_ns = world->processes[i].at_thread;
            world->processes[i].stepped_ns = world->processes[i].at_thread;
            world->processes[i].burst_end = world->now + world->processes[i].load.burst_ns;
        }
    }
    server_ring(world);
}

static void
make_process(struct world *world, int tenant, int gpu, uint32_t team)
{
    struct process *process = &world->processes[world->process_count];

    process->tenant = tenant;
    process->gpu = gpu;
    process->team = team;
    process->mates = (uint32_t)__builtin_popcount(world->scenario->tenants[tenant].gpus);
    process->load = world->scenario->tenants[tenant].load;
    process->at_thread = process->at_monitor = NEVER;
    process_init(world, process);
    world->process_count += 1;
}

static void
make_processes(struct world *world)
{
    for (uint32_t t = 0; t < world->scenario->tenant_count; t++) {
        const struct tenant_spec *spec = &world->scenario->tenants[t];

        for (int g = 0; g < MAX_GPUS; g++) {
            world->tenants[t].indices[g] = -1;
            world->tenants[t].words[g] = CGPU_GATE_TURN | CGPU_GATE_CLOSED;
        }
        for (uint32_t p = 0; p < spec->processes; p++) {
            uint32_t team = world->process_count;

            for (int g = 0; g < MAX_GPUS && world->process_count < MAX_PROCESSES; g++) {
                if ((spec->gpus & 1U << g) != 0) {
                    make_process(world, (int)t, g, team);
                }
            }
        }
    }
}

static void
make_gpus(struct world *world)
{
    const struct scenario *s = world->scenario;

    for (uint32_t t = 0; t < s->tenant_count; t++) {
        while (s->tenants[t].gpus >> world->gpu_count != 0) {
            world->gpu_count += 1;
        }
    }
    for (int g = 0; g < world->gpu_count; g++) {
        world->gpus[g] = (struct gpu){.arbiter = malloc(cgpu_arbiter_size()), -1, -1, 0, 0};
        if (world->gpus[g].arbiter == NULL) {
            abort();
        }
        cgpu_arbiter_init(world->gpus[g].arbiter, &s->rules, 0);
        world->group.gpus[g] = world->gpus[g].arbiter;
        world->group.count += 1;
    }
}

static bool
is_there(const struct tenant *tenant)
{
    bool there = false;

    for (int g = 0; g < MAX_GPUS; g++) {
        there |= tenant->indices[g] >= 0;
    }
    return there;
}

static void
apply_due(struct world *world)
{
    const struct scenario *s = world->scenario;

    for (uint32_t t = 0; t < s->tenant_count; t++) {
        if (s->tenants[t].start_ns == world->now && !is_there(&world->tenants[t])) {
            start_tenant(world, (int)t);
        }
    }
    while (world->next_change < s->change_count &&
           s->changes[world->next_change].at_ns <= world->now) {
        apply_change(world, &s->changes[world->next_change]);
        world->next_change += 1;
    }
}

static uint64_t
least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The next event that is not a thread's. */
static uint64_t
next_outside(const struct world *world)
{
    const struct scenario *s = world->scenario;
    uint64_t at = least(world->at_server, s->length_ns);

    for (int g = 0; g < world->gpu_count; g++) {
        at = least(at, gpu_next(world, g));
    }
    at = least(at, world->next_series);
    at = least(at, world->next_span);
    if (world->next_change < s->change_count) {
        at = least(at, s->changes[world->next_change].at_ns);
    }
    for (uint32_t t = 0; t < s->tenant_count; t++) {
        if (s->tenants[t].start_ns > world->now) {
            at = least(at, s->tenants[t].start_ns);
        }
    }
    return at;
}

static uint64_t
next_of(const struct process *process)
{
    return process->alive && !process->stopped ? least(process->at_thread, process->at_monitor)
                                               : NEVER;
}

/* Somebody has work for the GPU: queued, or not let out yet. */
static bool
wanted(const struct world *world, int gpu)
{
    for (uint32_t i = 0; i < world->process_count; i++) {
        const struct process *process = &world->processes[i];

        if (process->gpu == gpu && process->alive && !process->stopped &&
            (process->queue_count > 0 || process->work.waiting || process->state == THREAD_RUNS)) {
            return true;
        }
    }
    return false;
}

static void
pass_time(struct world *world, uint64_t to)
{
    for (int g = 0; g < world->gpu_count; g++) {
        if (world->now >= world->scenario->from_ns && wanted(world, g)) {
            world->wanted_ns += to - world->now;
        }
        gpu_advance(world, g, to);
    }
    for (int g = 0; g < world->gpu_count; g++) {
        gpu_meet(world, g, to);
    }
    world->now = to;
}

static void
end_span(struct world *world)
{
    for (uint32_t t = 0; t < world->scenario->tenant_count; t++) {
        world_sample(&world->tenants[t].spans, world->tenants[t].span_used);
        world->tenants[t].span_used = 0;
    }
    world->next_span += SPAN_NS;
}

static void
run_due(struct world *world)
{
    apply_due(world);
    if (world->now >= world->next_span) {
        end_span(world);
    }
    if (world->now >= world->next_series) {
        print_series(world);
        world->next_series += world->scenario->series_ns;
    }
    if (world->at_server <= world->now) {
        server_run(world);
    }
    for (uint32_t i = 0; i < world->process_count; i++) {
        struct process *process = &world->processes[i];

        if (!process->alive || process->stopped) {
            continue;
        }
        if (process->at_monitor <= world->now) {
            process_monitor(world, process);
        }
        if (process->at_thread <= world->now) {
            thread_run(world, process);
        }
    }
}

static uint32_t run_every = 1, made;

void
world_run_every(uint32_t every)
{
    run_every = every;
}

struct world *
world_run(const struct scenario *scenario)
{
    struct world *world = calloc(1, sizeof *world);
    uint64_t end;

    if (world == NULL) {
        abort();
    }
    world->scenario = scenario;
    world->skipped = made++ % run_every != 0;
    end = world->skipped ? 1 : scenario->length_ns;
    world->chance = scenario->seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    world->at_server = NEVER;
    world->next_span = SPAN_NS;
    world->next_series = scenario->series_ns > 0 ? scenario->series_ns : NEVER;
    make_gpus(world);
    make_processes(world);
    while (world->now < end) {
        uint64_t at;

        run_due(world);
        at = next_outside(world);
        for (uint32_t i = 0; i < world->process_count; i++) {
            at = least(at, next_of(&world->processes[i]));
        }
        pass_time(world, at > world->now ? at : world->now);
    }
    return world;
}

void
world_free(struct world *world)
{
    for (uint32_t t = 0; t < MAX_TENANTS; t++) {
        free(world->tenants[t].latency.values);
        free(world->tenants[t].spans.values);
    }
    for (int g = 0; g < world->gpu_count; g++) {
        free(world->gpus[g].arbiter);
    }
    free(world);
}
