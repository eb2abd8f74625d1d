/* The server's thread: reads demands, runs the arbiter, stores gates. */
#include "model.h"

#include <string.h>

static void
add_demand(struct cgpu_demand *sum, const struct process *process)
{
    if (process->active != 0) {
        sum->idle = (sum->idle || !sum->active) && process->idle;
        sum->certain = (sum->certain || !sum->active) && process->certain;
        sum->active = true;
        sum->end_ns = sum->end_ns > process->end_ns ? sum->end_ns : process->end_ns;
    } else if (!sum->active && sum->end_ns < process->end_ns) {
        sum->end_ns = process->end_ns;
    }
    sum->waiting |= process->waiting;
    sum->busy_ns += process->busy_ns;
}

static void
read_demands(const struct world *world, struct cgpu_demand *demands)
{
    memset(demands, 0, MAX_TENANTS * sizeof *demands);
    for (uint32_t i = 0; i < world->process_count; i++) {
        const struct process *process = &world->processes[i];
        int place = world->tenants[process->tenant].place;

        if (process->alive && place >= 0) {
            add_demand(&demands[place], process);
        }
    }
}

static void
wake(struct world *world, int tenant, bool open)
{
    for (uint32_t i = 0; i < world->process_count; i++) {
        struct process *process = &world->processes[i];
        uint64_t at;

        if (process->tenant != tenant || !process->alive) {
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
store_gates(struct world *world, const enum cgpu_gate *gates)
{
    for (uint32_t i = 0; i < world->scenario->tenant_count; i++) {
        struct tenant *tenant = &world->tenants[i];
        enum cgpu_gate gate = tenant->place >= 0 ? gates[tenant->place] : CGPU_GATE_CLOSED;

        if (tenant->place >= 0 && gate != cgpu_gate_state(tenant->word)) {
            tenant->word = cgpu_gate_next(tenant->word, gate);
            wake(world, (int)i, gate != CGPU_GATE_CLOSED);
        }
    }
}

void
server_run(struct world *world)
{
    struct cgpu_demand demands[MAX_TENANTS];
    enum cgpu_gate gates[MAX_TENANTS];
    uint64_t at = world->now;

    for (int tries = 0; at <= world->now && tries < 4; tries++) {
        read_demands(world, demands);
        at = cgpu_arbiter_step(world->arbiter, world->now, demands, gates);
        store_gates(world, gates);
        world->steps += 1;
        world->allowed_ns = cgpu_budget_spend(&world->budget, world->now);
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
