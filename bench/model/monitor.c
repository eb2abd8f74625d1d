/* The process's helper thread: see shim/cuda/monitor.c. */
#include "model.h"

#define LOOK_SOONEST_NS (20 * US)
#define LOOK_LATEST_NS  (1 * MS)

static uint64_t
clip(uint64_t value, uint64_t least, uint64_t most)
{
    return value < least ? least : value > most ? most : value;
}

/* The gate is closed: wait for the end of all that was launched. */
static void
drain(struct world *world, struct process *process)
{
    uint64_t end = process->pace.end_ns, now = world->now;

    thread_mark(world, process);
    thread_harvest(world, process, true);
    if (process->active != 0 && process->flight_count == 0 && process->batch.launches == 0) {
        process->active = 0;
        process->idle = false;
        server_ring(world);
    }
    if (process->active == 0) {
        process->at_monitor = NEVER;
        return;
    }
    end = process->pace.end_ns;
    process->at_monitor = world_timer(
        world, now + clip(end > now ? end - now : (now - end) / 4, LOOK_SOONEST_NS, LOOK_LATEST_NS));
}

/* Others wait: tell them soon when there is nothing to do. */
static void
watch(struct world *world, struct process *process)
{
    bool still = process->submitted == process->monitored;

    if (still) {
        thread_mark(world, process);
    }
    thread_harvest(world, process, false);
    if (!still || process->flight_count > 0 || process->batch.launches > 0) {
        process->busy_at = world->now;
        process->idle = false;
    } else if (!process->idle && process->active != 0 &&
               world->now - process->busy_at >= CGPU_PACE_IDLE_NS) {
        process->idle = true;
        server_ring(world);
    }
    process->monitored = process->submitted;
    process->at_monitor = world_timer(world, world->now + CGPU_PACE_IDLE_NS);
}

void
monitor_run(struct world *world, struct process *process)
{
    switch (cgpu_gate_state(world_gate(world, process))) {
    case CGPU_GATE_CLOSED:
        drain(world, process);
        break;
    case CGPU_GATE_PRESSED:
        watch(world, process);
        break;
    case CGPU_GATE_OPEN:
    case CGPU_GATE_FREE:
        process->idle = false;
        process->at_monitor = NEVER;
        break;
    }
}
