/* The process's helper thread: see shim/cuda/compute/monitor.c. */
#include "model.h"

#define ASIDE_NS (10 * MS)
#define WATCH_NS (CGPU_PACE_IDLE_NS / 2)

/* The gate is closed: wait for the end of all that was launched. */
static void
drain(struct world *world, struct process *process)
{
    if (process->settled != world_gate(world, process)) {
        process->settled = world_gate(world, process);
        process->drained_ns = world->now;
        thread_mark(world, process);
    }
    thread_harvest(world, process);
    if (process->active != 0 &&
        (process->apart_ns != 0 || (process->flight_count == 0 && process->batch.launches == 0))) {
        process->active = 0;
        process->idle = false;
        server_ring(world);
    }
    if (process->active != 0) {
        process->at_monitor = world_timer(
            world, cgpu_pace_drain_look(&process->pace, process->drained_ns, world->now));
    } else {
        process->at_monitor =
            process->apart_ns != 0 ? world_timer(world, world->now + ASIDE_NS) : NEVER;
    }
}

/* Others wait: tell them soon when there is nothing to do. */
static void
watch(struct world *world, struct process *process)
{
    bool still = process->submitted == process->monitored;
    uint64_t busy_before = process->busy_ns;

    if (still && world->now - process->busy_at >= CGPU_PACE_IDLE_NS) {
        thread_mark(world, process);
    }
    thread_harvest(world, process);
    if (!still || process->busy_ns != busy_before || process->state == THREAD_WAITS_ROOM) {
        process->busy_at = world->now;
        process->idle = false;
    } else if ((process->apart_ns != 0 ||
                (process->flight_count == 0 && process->batch.launches == 0)) &&
               !process->idle && process->active != 0 &&
               world->now - process->busy_at >= CGPU_PACE_IDLE_NS) {
        process->idle = true;
        server_ring(world);
    }
    process->monitored = process->submitted;
    process->at_monitor = world_timer(world, world->now + WATCH_NS);
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
