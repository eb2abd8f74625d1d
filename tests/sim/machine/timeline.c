/*
 * Compute as a timeline. Each process has an in-order queue per GPU; the GPU gives a process with
 * work a turn of about 1 ms, lets the kernel that runs at the end of it finish, and turns to the
 * next. The state is moved up to the present by whoever looks at it.
 */
#define _GNU_SOURCE
#include <time.h>

#include "state.h"

void
cgpu_machine_history_add(struct state_history *history, uint64_t from, uint64_t to)
{
    history->busy_ns += to - from;
    while (from < to) {
        uint64_t number = from / STATE_BUCKET_NS;
        uint64_t end = (number + 1) * STATE_BUCKET_NS;
        uint64_t bucket = number % STATE_BUCKETS;
        if (history->bucket_number[bucket] != number) {
            history->bucket_number[bucket] = number;
            history->bucket_ns[bucket] = 0;
        }
        history->bucket_ns[bucket] += (to < end ? to : end) - from;
        from = end;
    }
}

/* Of the last ten whole buckets: one second. */
uint32_t
cgpu_machine_history_percent(const struct state_history *history, uint64_t now)
{
    uint64_t last = now / STATE_BUCKET_NS;
    uint64_t busy = 0;
    for (int i = 0; i < STATE_BUCKETS; i++) {
        uint64_t number = history->bucket_number[i];
        if (number < last && number + 10 >= last) {
            busy += history->bucket_ns[i];
        }
    }
    uint64_t percent = (busy * 100 + 5 * STATE_BUCKET_NS) / (10 * STATE_BUCKET_NS);
    return percent > 100 ? 100 : (uint32_t)percent;
}

static struct state_queue *
queue_of(struct cgpu_machine *machine, uint32_t gpu, uint32_t slot)
{
    struct state_process *process = &machine->state->processes[slot];
    return process->in_use ? &process->queues[gpu] : NULL;
}

static struct state_item *
next_item(struct state_queue *queue)
{
    if (queue == NULL || queue->completed == queue->submitted) {
        return NULL;
    }
    return &queue->ring[(queue->completed + 1) % STATE_RING];
}

/* The next process in turn with work that has arrived by *AT; if none has, *AT moves to when one
 * does. */
static struct state_queue *
pick(struct cgpu_machine *machine, uint32_t gpu, uint64_t *at)
{
    struct state_timeline *timeline = &machine->state->timelines[gpu];
    uint32_t high = machine->state->process_high;
    uint64_t earliest = UINT64_MAX;
    /* The running process stays until its slice is over. */
    uint32_t first = *at < timeline->slice_end ? 0 : 1;
    for (uint32_t i = first; i < high + first; i++) {
        uint32_t slot = (timeline->running + i) % high;
        struct state_queue *queue = queue_of(machine, gpu, slot);
        struct state_item *item = next_item(queue);
        if (item != NULL && item->arrival_ns <= *at) {
            if (i != 0) {
                timeline->running = slot;
                timeline->slice_end = *at + STATE_SLICE_NS;
            }
            return queue;
        }
        if (item != NULL && item->arrival_ns < earliest) {
            earliest = item->arrival_ns;
        }
    }
    *at = earliest;
    return NULL;
}

void
cgpu_machine_advance(struct cgpu_machine *machine, uint32_t gpu)
{
    struct state_timeline *timeline = &machine->state->timelines[gpu];
    uint64_t now = cgpu_machine_now();
    uint64_t at = timeline->now_ns;
    while (at <= now) {
        struct state_queue *queue = pick(machine, gpu, &at);
        if (queue == NULL) {
            continue; /* AT is when work arrives, or never */
        }
        struct state_item *item = next_item(queue);
        if (at + item->duration_ns > now) {
            break; /* it is running at this moment */
        }
        item->end_ns = at + item->duration_ns;
        queue->completed++;
        cgpu_machine_history_add(&queue->history, at, item->end_ns);
        cgpu_machine_history_add(&timeline->busy, at, item->end_ns);
        at = item->end_ns;
    }
    timeline->now_ns = at < now ? at : (at == UINT64_MAX ? now : at);
}

uint64_t
cgpu_machine_submit(struct cgpu_machine *machine, uint32_t index, uint64_t duration_ns, int is_copy)
{
    uint32_t gpu = machine->visible[index];
    struct state_queue *queue = &machine->state->processes[machine->slot].queues[gpu];
    cgpu_machine_lock(machine);
    cgpu_machine_advance(machine, gpu);
    while (queue->submitted - queue->completed >= STATE_RING) {
        uint64_t oldest = queue->completed + 1;
        cgpu_machine_unlock(machine);
        cgpu_machine_wait(machine, index, oldest);
        cgpu_machine_lock(machine);
        cgpu_machine_advance(machine, gpu);
    }
    uint64_t now = cgpu_machine_now();
    uint64_t number = ++queue->submitted;
    queue->ring[number % STATE_RING] = (struct state_item){now, duration_ns, 0};
    if (is_copy) {
        cgpu_machine_history_add(&machine->state->timelines[gpu].copies, now, now + duration_ns);
    }
    cgpu_machine_unlock(machine);
    return number;
}

int
cgpu_machine_done(struct cgpu_machine *machine, uint32_t index, uint64_t item)
{
    uint32_t gpu = machine->visible[index];
    struct state_queue *queue = &machine->state->processes[machine->slot].queues[gpu];
    cgpu_machine_lock(machine);
    cgpu_machine_advance(machine, gpu);
    int done = queue->completed >= item;
    cgpu_machine_unlock(machine);
    return done;
}

uint64_t
cgpu_machine_end_time(struct cgpu_machine *machine, uint32_t index, uint64_t item)
{
    uint32_t gpu = machine->visible[index];
    struct state_queue *queue = &machine->state->processes[machine->slot].queues[gpu];
    uint64_t end = 0;
    cgpu_machine_lock(machine);
    cgpu_machine_advance(machine, gpu);
    if (item != 0 && queue->completed >= item && queue->submitted - item < STATE_RING) {
        end = queue->ring[item % STATE_RING].end_ns;
    }
    cgpu_machine_unlock(machine);
    return end;
}

/* Own work that is left, as if no one else had any: the earliest time worth looking again. */
static uint64_t
left_ns(struct state_queue *queue, uint64_t start, uint64_t item)
{
    uint64_t end = start;
    for (uint64_t i = queue->completed + 1; i <= item; i++) {
        end += queue->ring[i % STATE_RING].duration_ns;
    }
    uint64_t now = cgpu_machine_now();
    return end > now ? end - now : 0;
}

void
cgpu_machine_wait(struct cgpu_machine *machine, uint32_t index, uint64_t item)
{
    uint32_t gpu = machine->visible[index];
    struct state_queue *queue = &machine->state->processes[machine->slot].queues[gpu];
    while (!cgpu_machine_done(machine, index, item)) {
        cgpu_machine_lock(machine);
        uint64_t left = left_ns(queue, machine->state->timelines[gpu].now_ns, item);
        cgpu_machine_unlock(machine);
        /* Others' turns are 1 ms or one kernel: do not look more often than 20 times in that. */
        left = left < STATE_SLICE_NS / 20 ? STATE_SLICE_NS / 20 : left;
        struct timespec pause = {(time_t)(left / 1000000000ull), (long)(left % 1000000000ull)};
        nanosleep(&pause, NULL);
        cgpu_machine_lock(machine);
        cgpu_machine_reap(machine);
        cgpu_machine_unlock(machine);
    }
}

static uint32_t
percent(struct cgpu_machine *machine, uint32_t index, int copies)
{
    if (index >= machine->visible_count) {
        return 0;
    }
    uint32_t gpu = machine->visible[index];
    struct state_timeline *timeline = &machine->state->timelines[gpu];
    cgpu_machine_lock(machine);
    cgpu_machine_reap(machine);
    cgpu_machine_advance(machine, gpu);
    uint32_t result = cgpu_machine_history_percent(copies ? &timeline->copies : &timeline->busy,
                                                   cgpu_machine_now());
    cgpu_machine_unlock(machine);
    return result;
}

uint32_t
cgpu_machine_utilization(struct cgpu_machine *machine, uint32_t index)
{
    return percent(machine, index, 0);
}

uint32_t
cgpu_machine_memory_utilization(struct cgpu_machine *machine, uint32_t index)
{
    return percent(machine, index, 1);
}

uint64_t
cgpu_machine_busy_ns(struct cgpu_machine *machine, uint32_t index)
{
    if (index >= machine->visible_count) {
        return 0;
    }
    uint32_t gpu = machine->visible[index];
    cgpu_machine_lock(machine);
    cgpu_machine_advance(machine, gpu);
    uint64_t busy = machine->state->timelines[gpu].busy.busy_ns;
    cgpu_machine_unlock(machine);
    return busy;
}
