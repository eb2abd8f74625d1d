/* Kernels of more than a second stand apart: see shim/cuda/compute/late.c. */
#include "model.h"

#define STAYS_NS SECOND

void
stay_passed(struct process *process, const struct flight *flight, uint64_t now, bool known)
{
    if (process->apart_ns == 0) {
        cgpu_pace_pass(&process->pace, &flight->batch, now, known);
    }
    process->moved_ns = now;
}

static struct flight *
flight_at(struct process *process, uint32_t i)
{
    return &process->flights[(process->flight_head + i) % CGPU_PACE_BATCHES];
}

static bool
gets_nowhere(struct process *process, uint64_t now)
{
    uint64_t since;

    if (process->flight_count == 0 || process->apart_ns != 0) {
        return false;
    }
    since = flight_at(process, 0)->marked_ns;
    since = process->moved_ns > since ? process->moved_ns : since;
    return now >= since + STAYS_NS;
}

static void
go_apart(struct world *world, struct process *process)
{
    for (uint32_t i = 0; i < process->flight_count; i++) {
        cgpu_pace_leave(&process->pace, &flight_at(process, i)->batch, world->now);
    }
    process->apart_ns = world->now;
    process->stays += 1;
    if (process->state == THREAD_WAITS_ROOM) {
        process->at_thread = world->now;
    }
}

static void
come_back(struct world *world, struct process *process)
{
    uint32_t word = world_gate(world, process);

    for (uint32_t i = 0; i < process->flight_count; i++) {
        cgpu_pace_return(&process->pace, &flight_at(process, i)->batch, world->now);
    }
    process->stayed_ns += world->now - process->apart_ns;
    process->apart_ns = 0;
    process->settled = 0;
    if (process->queue_count == 0) {
        return;
    }
    process->idle = false;
    if (!cgpu_gate_is_open(word) && process->active == 0) {
        process->active = word;
        process->at_monitor = world->now;
        server_ring(world);
    }
}

void
stay_look(struct world *world, struct process *process)
{
    if (process->apart_ns != 0 && process->moved_ns >= process->apart_ns) {
        come_back(world, process);
    } else if (gets_nowhere(process, world->now)) {
        go_apart(world, process);
    }
}
