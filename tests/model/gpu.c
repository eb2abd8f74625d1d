/*
 * The GPU: work of processes in their own order; round robin between the processes, or all work in
 * the order in which it came.
 */
#include "model.h"

void
gpu_submit(struct world *world, struct process *process, uint64_t ns, uint64_t meeting)
{
    uint32_t tail = (process->queue_head + process->queue_count) % MAX_QUEUE;

    process->submitted += 1;
    process->last[process->current] = process->submitted;
    process->queue[tail] = (struct work_item){.ready_ns = world->now + world->scenario->dispatch_ns,
                                              .left_ns = ns,
                                              .seq = process->submitted,
                                              .meeting = meeting,
                                              .order = ++world->gpus[process->gpu].came};
    process->queue_count += 1;
    process->queued_ns += ns;
}

static bool
is_ready(const struct process *process, uint64_t now)
{
    return process->queue_count > 0 && process->queue[process->queue_head].ready_ns <= now;
}

static int
next_with_work(const struct world *world, int gpu, uint64_t now)
{
    for (uint32_t i = 1; i <= world->process_count; i++) {
        int p = (int)(((uint32_t)(world->gpus[gpu].last + 1) + i - 1) % world->process_count);

        if (world->processes[p].gpu == gpu && is_ready(&world->processes[p], now)) {
            return p;
        }
    }
    return -1;
}

static int
first_come(const struct world *world, int gpu, uint64_t now)
{
    int first = -1;

    for (uint32_t i = 0; i < world->process_count; i++) {
        const struct process *process = &world->processes[i];

        if (process->gpu == gpu && is_ready(process, now) &&
            (first < 0 ||
             process->queue[process->queue_head].order <
                 world->processes[first].queue[world->processes[first].queue_head].order)) {
            first = (int)i;
        }
    }
    return first;
}

/* Choose who runs from now on: after a pause, at the end of a slice or of its work. */
static void
choose(struct world *world, int g, uint64_t now)
{
    struct gpu *gpu = &world->gpus[g];
    bool in_order = world->scenario->in_order != 0;
    int p = in_order ? first_come(world, g, now) : next_with_work(world, g, now);

    gpu->running = p;
    if (p < 0) {
        return;
    }
    gpu->switch_end = now + (p != gpu->last ? world->scenario->switch_ns : 0);
    gpu->slice_end = in_order ? NEVER : gpu->switch_end + world->scenario->slice_ns;
    gpu->last = p;
}

/* When the first launched item may start. */
static uint64_t
next_ready(const struct world *world, int gpu)
{
    uint64_t at = NEVER;

    for (uint32_t i = 0; i < world->process_count; i++) {
        const struct process *process = &world->processes[i];

        if (process->gpu == gpu && process->queue_count > 0 &&
            process->queue[process->queue_head].ready_ns < at) {
            at = process->queue[process->queue_head].ready_ns;
        }
    }
    return at == NEVER || at > world->now ? at : world->now;
}

static struct work_item *
first_of(struct process *process)
{
    return &process->queue[process->queue_head];
}

/* Whether it runs but makes no progress before its mates' kernels run too. */
static bool
waits_for_mates(const struct world *world, const struct process *process)
{
    uint64_t meeting = process->queue[process->queue_head].meeting;

    for (uint32_t i = 0; meeting > 0 && i < process->mates; i++) {
        const struct process *mate = &world->processes[process->team + i];

        if (mate->alive && mate->met < meeting) {
            return true;
        }
    }
    return false;
}

uint64_t
gpu_next(const struct world *world, int g)
{
    const struct gpu *gpu = &world->gpus[g];
    const struct process *process;
    uint64_t begin, end;

    if (gpu->running < 0) {
        return next_ready(world, g);
    }
    process = &world->processes[gpu->running];
    begin = world->now > gpu->switch_end ? world->now : gpu->switch_end;
    if (process->queue[process->queue_head].meeting > process->met) {
        return begin; /* it comes to the meeting */
    }
    if (waits_for_mates(world, process)) {
        return gpu->slice_end;
    }
    end = begin + process->queue[process->queue_head].left_ns;
    return end < gpu->slice_end ? end : gpu->slice_end;
}

static void
use(struct world *world, struct process *process, uint64_t from, uint64_t ns)
{
    if (!waits_for_mates(world, process)) {
        first_of(process)->left_ns -= ns;
        process->queued_ns -= ns;
    }
    process->gpu_ns += ns;
    world->tenants[process->tenant].used_on[process->gpu] += ns;
    if (from >= world->scenario->from_ns) {
        world->tenants[process->tenant].used_ns += ns;
        world->busy_ns += ns;
    }
    world->tenants[process->tenant].series_used += ns;
    world->tenants[process->tenant].span_used += ns;
}

static void
finish_item(struct world *world, struct process *process, uint64_t now)
{
    process->finished = first_of(process)->seq;
    if (first_of(process)->meeting > 0 && process->load.sync_every == 0) {
        world_step(world, process, now);
    }
    process->queue_head = (process->queue_head + 1) % MAX_QUEUE;
    process->queue_count -= 1;
    thread_finished(world, process, now);
}

static bool
others_have_work(const struct world *world, int gpu, uint64_t now)
{
    for (uint32_t i = 0; i < world->process_count; i++) {
        if (world->processes[i].gpu == gpu && (int)i != world->gpus[gpu].running &&
            is_ready(&world->processes[i], now)) {
            return true;
        }
    }
    return false;
}

/* True: its first item has ended. */
static bool
work_until(struct world *world, struct process *process, const struct gpu *gpu, uint64_t to)
{
    uint64_t begin = world->now > gpu->switch_end ? world->now : gpu->switch_end;

    if (to > begin) {
        use(world, process, begin, to - begin);
    }
    if (to < gpu->switch_end || first_of(process)->left_ns != 0) {
        return false;
    }
    finish_item(world, process, to);
    return true;
}

/* TO is not later than gpu_next. */
void
gpu_advance(struct world *world, int g, uint64_t to)
{
    struct gpu *gpu = &world->gpus[g];

    if (gpu->running >= 0) {
        struct process *process = &world->processes[gpu->running];

        bool ended = work_until(world, process, gpu, to);
        if (!is_ready(process, to) || (ended && world->scenario->in_order != 0)) {
            choose(world, g, to);
        } else if (to >= gpu->slice_end) {
            if (others_have_work(world, g, to)) {
                choose(world, g, to);
            } else {
                gpu->slice_end = to + world->scenario->slice_ns;
            }
        }
    } else {
        choose(world, g, to);
    }
}

/* After all GPUs have advanced to TO: find out who has come to a meeting. */
void
gpu_meet(struct world *world, int g, uint64_t to)
{
    struct gpu *gpu = &world->gpus[g];

    if (gpu->running >= 0 && to >= gpu->switch_end) {
        struct process *process = &world->processes[gpu->running];

        if (first_of(process)->meeting > process->met) {
            process->met = first_of(process)->meeting;
        }
    }
}

/* The process is dead: so is its context, and what it had queued. */
void
gpu_forget(struct world *world, struct process *process)
{
    process->queue_count = 0;
    process->queued_ns = 0;
    if (world->gpus[process->gpu].running == process - world->processes) {
        choose(world, process->gpu, world->now);
    }
}
