/*
 * Compute as a timeline. Each process has an in-order queue per GPU; the GPU gives a process with
 * work a turn of 1 ms, interrupts the kernel that runs at the end of it if another has work, and
 * turns to that one, which takes it a while. If the machine says so, kernels of all processes run
 * whole instead, in order of arrival. The state is moved up to the present by whoever looks at it.
 */
#include "state.h"

enum { FORECAST_STEPS = 8192 };

/* A way along the timeline: the real one, up to the present, or a look ahead. */
struct walk {
    struct state *state;
    uint32_t gpu;
    uint32_t running; /* slot whose turn it is */
    uint64_t at, slice_end;
    uint64_t done[CGPU_MACHINE_MAX_PROCESSES]; /* number of the last item behind us, by slot */
    uint64_t had[CGPU_MACHINE_MAX_PROCESSES];  /* of the next one, before it was interrupted */
};

static void
begin(struct walk *walk, struct cgpu_machine *machine, uint32_t gpu)
{
    const struct state_timeline *timeline = &machine->state->timelines[gpu];
    walk->state = machine->state;
    walk->gpu = gpu;
    walk->running = timeline->running;
    walk->at = timeline->now_ns;
    walk->slice_end = timeline->slice_end;
    for (uint32_t slot = 0; slot < walk->state->process_high; slot++) {
        walk->done[slot] = walk->state->processes[slot].queues[gpu].completed;
        walk->had[slot] = walk->state->processes[slot].queues[gpu].had_ns;
    }
}

static struct state_item *
next_item(const struct walk *walk, uint32_t slot)
{
    struct state_process *process = &walk->state->processes[slot];
    struct state_queue *queue = &process->queues[walk->gpu];
    /* acquire: a number that is there has its item */
    if (!process->in_use ||
        walk->done[slot] == __atomic_load_n(&queue->submitted, __ATOMIC_ACQUIRE)) {
        return NULL;
    }
    return &queue->ring[(walk->done[slot] + 1) % STATE_RING];
}

/* SLOT's next item begins; turning to it takes a while. */
static int
turn_to(struct walk *walk, uint32_t slot)
{
    walk->at += slot == walk->running ? 0 : walk->state->switch_ns;
    walk->running = slot;
    return (int)slot;
}

static int
pick_first_come(struct walk *walk)
{
    uint64_t earliest = UINT64_MAX;
    uint32_t first = 0;
    for (uint32_t slot = 0; slot < walk->state->process_high; slot++) {
        const struct state_item *item = next_item(walk, slot);
        if (item != NULL && item->arrival_ns < earliest) {
            earliest = item->arrival_ns;
            first = slot;
        }
    }
    if (earliest > walk->at) {
        walk->at = earliest;
        return -1;
    }
    return turn_to(walk, first);
}

/* The slot whose next item begins now, at walk->at; if none has work by then, -1, and walk->at
 * moves to when one has. */
static int
pick(struct walk *walk)
{
    if (walk->state->in_order) {
        return pick_first_come(walk);
    }
    uint32_t high = walk->state->process_high;
    uint64_t earliest = UINT64_MAX;
    /* The running process stays until its slice is over. */
    uint32_t first = walk->at < walk->slice_end ? 0 : 1;
    for (uint32_t i = first; i < high + first; i++) {
        uint32_t slot = (walk->running + i) % high;
        const struct state_item *item = next_item(walk, slot);
        if (item != NULL && item->arrival_ns <= walk->at) {
            int next = turn_to(walk, slot);
            walk->slice_end = i == 0 ? walk->slice_end : walk->at + STATE_SLICE_NS;
            return next;
        }
        if (item != NULL && item->arrival_ns < earliest) {
            earliest = item->arrival_ns;
        }
    }
    walk->at = earliest;
    return -1;
}

/* The first end of a turn of the running process at which another has work; later than AT. */
static uint64_t
end_of_turns(const struct walk *walk)
{
    uint64_t earliest = UINT64_MAX;
    for (uint32_t slot = 0; slot < walk->state->process_high; slot++) {
        const struct state_item *item = slot == walk->running ? NULL : next_item(walk, slot);
        if (item != NULL && item->arrival_ns < earliest) {
            earliest = item->arrival_ns;
        }
    }
    if (earliest <= walk->slice_end || earliest == UINT64_MAX) {
        return earliest == UINT64_MAX ? earliest : walk->slice_end;
    }
    uint64_t turns = (earliest - walk->slice_end + STATE_SLICE_NS - 1) / STATE_SLICE_NS;
    return walk->slice_end + turns * STATE_SLICE_NS;
}

/* Until when SLOT, picked at walk->at, runs without a pause: to the end of its item at most. */
static uint64_t
runs_until(const struct walk *walk, uint32_t slot)
{
    uint64_t end = walk->at + next_item(walk, slot)->duration_ns - walk->had[slot];
    int whole = walk->state->in_order != 0 || end <= walk->slice_end;
    uint64_t turn = whole ? end : end_of_turns(walk);
    return end < turn ? end : turn;
}

/* SLOT has run up to TO; true: its item has ended. */
static int
run(struct walk *walk, uint32_t slot, uint64_t to)
{
    walk->had[slot] += to - walk->at;
    walk->at = to;
    if (to > walk->slice_end) {
        uint64_t turns = (to - walk->slice_end + STATE_SLICE_NS - 1) / STATE_SLICE_NS;
        walk->slice_end += turns * STATE_SLICE_NS;
    }
    if (walk->had[slot] < next_item(walk, slot)->duration_ns) {
        return 0;
    }
    walk->had[slot] = 0;
    return 1;
}

static void
account(struct walk *walk, uint32_t slot, uint64_t to)
{
    struct state_queue *queue = &walk->state->processes[slot].queues[walk->gpu];
    struct state_item *item = next_item(walk, slot);
    cgpu_machine_history_add(&queue->history, walk->at, to);
    cgpu_machine_history_add(&walk->state->timelines[walk->gpu].busy, walk->at, to);
    if (run(walk, slot, to)) {
        item->end_ns = to;
        /* release: a process that sees the number sees when it ended, and may reuse the item before
         * it */
        __atomic_store_n(&queue->completed, ++walk->done[slot], __ATOMIC_RELEASE);
    }
    queue->had_ns = walk->had[slot];
}

void
cgpu_machine_advance(struct cgpu_machine *machine, uint32_t gpu)
{
    struct state_timeline *timeline = &machine->state->timelines[gpu];
    uint64_t now = cgpu_machine_now();
    struct walk walk;
    begin(&walk, machine, gpu);
    while (walk.at <= now) {
        int slot = pick(&walk);
        if (slot < 0) {
            continue; /* walk.at is when work arrives, or never */
        }
        uint64_t to = runs_until(&walk, (uint32_t)slot);
        if (to > now) {
            break; /* it is running at this moment */
        }
        account(&walk, (uint32_t)slot, to);
    }
    timeline->now_ns = walk.at == UINT64_MAX ? now : walk.at;
    timeline->running = walk.running;
    timeline->slice_end = walk.slice_end;
}

uint64_t
cgpu_machine_forecast(struct cgpu_machine *machine, uint32_t gpu, uint32_t slot, uint64_t item)
{
    struct walk walk;
    begin(&walk, machine, gpu);
    for (int steps = 0; steps < FORECAST_STEPS && walk.done[slot] < item; steps++) {
        int next = pick(&walk);
        if (walk.at == UINT64_MAX) {
            return 0; /* the process has been declared dead */
        }
        if (next >= 0 && run(&walk, (uint32_t)next, runs_until(&walk, (uint32_t)next))) {
            walk.done[next]++;
        }
    }
    return walk.at;
}

uint64_t
cgpu_machine_time_of(struct cgpu_machine *machine, uint32_t gpu, uint32_t slot, uint64_t now)
{
    const struct state_timeline *timeline = &machine->state->timelines[gpu];
    struct walk walk;
    begin(&walk, machine, gpu);
    const struct state_item *item = next_item(&walk, slot);
    int runs = timeline->running == slot && timeline->now_ns < now && item != NULL &&
               item->arrival_ns <= timeline->now_ns;
    return machine->state->processes[slot].queues[gpu].history.busy_ns +
           (runs ? now - timeline->now_ns : 0);
}
