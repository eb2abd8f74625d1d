/* The GPU: work of processes in their own order; round robin between the processes. */
#include "model.h"

void
gpu_submit(struct world *world, struct process *process, uint64_t ns)
{
    uint32_t tail = (process->queue_head + process->queue_count) % MAX_QUEUE;

    process->submitted += 1;
    process->queue[tail] = (struct work_item){.left_ns = ns, .seq = process->submitted};
    process->queue_count += 1;
    process->queued_ns += ns;
    (void)world;
}

static int
next_with_work(const struct world *world)
{
    for (uint32_t i = 1; i <= world->process_count; i++) {
        int p = (int)(((uint32_t)(world->last_on_gpu + 1) + i - 1) % world->process_count);

        if (world->processes[p].queue_count > 0) {
            return p;
        }
    }
    return -1;
}

/* Choose who runs from now on: after a pause, at the end of a slice or of its work. */
static void
choose(struct world *world, uint64_t now)
{
    int p = next_with_work(world);

    world->on_gpu = p;
    if (p < 0) {
        return;
    }
    world->switch_end = now + (p != world->last_on_gpu ? world->scenario->switch_ns : 0);
    world->slice_end = world->switch_end + SLICE_NS;
    world->last_on_gpu = p;
}

uint64_t
gpu_next(const struct world *world)
{
    const struct process *process;
    uint64_t begin, end;

    if (world->on_gpu < 0) {
        return next_with_work(world) >= 0 ? world->now : NEVER;
    }
    process = &world->processes[world->on_gpu];
    begin = world->now > world->switch_end ? world->now : world->switch_end;
    end = begin + process->queue[process->queue_head].left_ns;
    return end < world->slice_end ? end : world->slice_end;
}

static void
use(struct world *world, struct process *process, uint64_t from, uint64_t ns)
{
    process->queue[process->queue_head].left_ns -= ns;
    process->queued_ns -= ns;
    process->gpu_ns += ns;
    if (from >= world->scenario->from_ns) {
        world->tenants[process->tenant].used_ns += ns;
        world->busy_ns += ns;
    }
    world->tenants[process->tenant].series_used += ns;
    world->tenants[process->tenant].span_used += ns;
}

static void
finish_item(struct world *world, struct process *process)
{
    process->finished = process->queue[process->queue_head].seq;
    process->queue_head = (process->queue_head + 1) % MAX_QUEUE;
    process->queue_count -= 1;
    if (process->queue_count == 0) {
        thread_finished(world, process);
    }
}

static bool
others_have_work(const struct world *world)
{
    for (uint32_t i = 0; i < world->process_count; i++) {
        if ((int)i != world->on_gpu && world->processes[i].queue_count > 0) {
            return true;
        }
    }
    return false;
}

/* TO is not later than gpu_next. */
void
gpu_advance(struct world *world, uint64_t to)
{
    if (world->on_gpu >= 0) {
        struct process *process = &world->processes[world->on_gpu];
        uint64_t begin = world->now > world->switch_end ? world->now : world->switch_end;

        if (to > begin) {
            use(world, process, begin, to - begin);
        }
        if (to >= world->switch_end && process->queue[process->queue_head].left_ns == 0) {
            finish_item(world, process);
        }
        if (process->queue_count == 0) {
            choose(world, to);
        } else if (to >= world->slice_end) {
            if (others_have_work(world)) {
                choose(world, to);
            } else {
                world->slice_end = to + SLICE_NS;
            }
        }
    } else {
        choose(world, to);
    }
}

/* The process is dead: so is its context, and what it had queued. */
void
gpu_forget(struct world *world, struct process *process)
{
    process->queue_count = 0;
    process->queued_ns = 0;
    if (world->on_gpu == process - world->processes) {
        choose(world, world->now);
    }
}
