/* The server's thread: reads demands, runs the arbiter, stores gates. */
#include "model.h"

#include <string.h>

static void
add_demand(struct cgpu_demand *sum, const struct process *process, uint64_t lag_ns)
{
    const struct cgpu_ledger_work *work = &process->work;

    if (work->active != 0) {
        if (!sum->active || work->begun_ns < sum->begun_ns) {
            sum->begun_ns = work->begun_ns;
        }
        sum->idle = (sum->idle || !sum->active) && work->idle;
        sum->soon |= work->idle == CGPU_IDLE_SOON;
        sum->certain = (sum->certain || !sum->active) && work->certain;
        sum->active = true;
        sum->processes += 1;
        sum->end_ns = sum->end_ns > work->end_ns ? sum->end_ns : work->end_ns;
    } else if (!sum->active && sum->end_ns < work->end_ns) {
        sum->end_ns = work->end_ns;
    }
    if (lag_ns != 0 && (sum->lag_ns == 0 || lag_ns < sum->lag_ns)) {
        sum->lag_ns = lag_ns;
    }
    sum->waiting |= work->waiting != 0;
    sum->missed += work->missed;
    sum->busy_ns += work->busy_ns;
    sum->done_ns += work->done_us * US;
}

static void
read_demands(const struct world *world, int gpu, struct cgpu_demand *demands)
{
    memset(demands, 0, MAX_TENANTS * sizeof *demands);
    for (uint32_t i = 0; i < world->process_count; i++) {
        const struct process *process = &world->processes[i];
        int index = world->tenants[process->tenant].indices[gpu];

        if (process->gpu == gpu && process->alive && index >= 0) {
            const struct cgpu_ledger_gpu *sums = &world->tenants[process->tenant].sums[gpu];
            uint64_t reported = world->scenario->tenants[process->tenant].lag_ns;

            add_demand(&demands[index], process, reported != 0 ? reported : process->work.lag_ns);
            demands[index].stalls = sums->stalls;
            demands[index].stalled_ns = sums->stalled_ns;
            if (world->scenario->tenants[process->tenant].late != 0) {
                demands[index].begun_ns = world->now;
                demands[index].end_ns = process->work.active != 0 ? demands[index].end_ns : 0;
            }
        }
    }
}

static void
wake(struct world *world, int gpu, int tenant, bool open)
{
    for (uint32_t i = 0; i < world->process_count; i++) {
        struct process *process = &world->processes[i];
        uint64_t at;

        if (process->tenant != tenant || process->gpu != gpu || !process->alive) {
            continue;
        }
        at = world_wake(world);
        process->at_monitor = at < process->at_monitor ? at : process->at_monitor;
        if (open && process->state == THREAD_AT_GATE && process->at_thread == NEVER) {
            process->at_thread = world_wake(world);
        }
    }
}

static void
store_gates(struct world *world, int gpu, const enum cgpu_gate *gates)
{
    for (uint32_t i = 0; i < world->scenario->tenant_count; i++) {
        struct tenant *tenant = &world->tenants[i];
        int index = tenant->indices[gpu];

        if (index >= 0) {
            tenant->limits[gpu].metered = cgpu_arbiter_metered(world->gpus[gpu].arbiter, index);
        }
        if (index >= 0 && gates[index] != cgpu_gate_state(tenant->words[gpu])) {
            tenant->words[gpu] = cgpu_gate_next(tenant->words[gpu], gates[index]);
            if (cgpu_arbiter_is_quiet(world->gpus[gpu].arbiter, index)) {
                tenant->limits[gpu].quiet_gate = tenant->words[gpu];
            }
            wake(world, gpu, (int)i, gates[index] != CGPU_GATE_CLOSED);
        }
    }
}

/* Each GPU by itself. */
static uint64_t
step_apart(struct world *world, const struct cgpu_demand (*demands)[MAX_TENANTS],
           enum cgpu_gate (*gates)[MAX_TENANTS])
{
    uint64_t at = NEVER;

    for (int g = 0; g < world->gpu_count; g++) {
        uint64_t next = cgpu_arbiter_step(world->gpus[g].arbiter, world->now, demands[g], gates[g]);

        at = next < at ? next : at;
    }
    return at;
}

void
server_run(struct world *world)
{
    struct cgpu_demand demands[MAX_GPUS][MAX_TENANTS];
    enum cgpu_gate gates[MAX_GPUS][MAX_TENANTS];
    uint64_t at = world->now;

    for (int tries = 0; at <= world->now && tries < 4; tries++) {
        for (int g = 0; g < world->gpu_count; g++) {
            read_demands(world, g, demands[g]);
        }
        at = world->scenario->apart != 0
                 ? step_apart(world, demands, gates)
                 : cgpu_group_step(&world->group, world->now, demands, gates);
        for (int g = 0; g < world->gpu_count; g++) {
            store_gates(world, g, gates[g]);
        }
        world->steps += 1;
        world->allowed_ns =
            cgpu_budget_spend(&world->budget, (uint32_t)world->gpu_count, world->now);
    }
    world->at_server =
        at == NEVER ? NEVER : world_timer(world, at > world->allowed_ns ? at : world->allowed_ns);
}

/* A bell that rings before the next look is allowed is seen then. */
void
server_ring(struct world *world)
{
    uint64_t at =
        world->allowed_ns > world->now ? world_timer(world, world->allowed_ns) : world_wake(world);

    world->at_server = at < world->at_server ? at : world->at_server;
}
