/*
 * A process's side of the timeline: putting work in, asking whether it is done, waiting for it.
 * Launching and looking take no lock of the machine but where there may be something to see.
 */
#define _GNU_SOURCE
#include <sys/prctl.h>
#include <time.h>

#include "state.h"

static struct state_queue *
own_queue(struct cgpu_machine *machine, uint32_t gpu)
{
    return &machine->state->processes[machine->slot].queues[gpu];
}

static uint64_t
completed(const struct state_queue *queue)
{
    /* acquire: the end of what is done, and no item is reused before it was read */
    return __atomic_load_n(&queue->completed, __ATOMIC_ACQUIRE);
}

/* Before this time the item cannot have ended, whatever the others do; 0: it may have. */
static uint64_t
earliest_end(const struct state_queue *queue, uint64_t item)
{
    for (;;) {
        uint64_t done = completed(queue);
        if (done >= item) {
            return 0;
        }
        const struct state_item *next = &queue->ring[(done + 1) % STATE_RING];
        uint64_t begin = next->arrival_ns;
        uint64_t before = next->work_ns - next->duration_ns;
        uint64_t work = queue->ring[item % STATE_RING].work_ns - before;
        uint64_t free = done == 0 ? 0 : queue->ring[done % STATE_RING].end_ns;
        if (completed(queue) == done) {
            return (begin > free ? begin : free) + work;
        }
    }
}

/* When the end of ITEM, which is done, is seen. */
static uint64_t
seen_at(const struct cgpu_machine *machine, const struct state_queue *queue, uint64_t item)
{
    int kept = item != 0 && queue->submitted - item < STATE_RING;
    return kept ? queue->ring[item % STATE_RING].end_ns + machine->state->completion_ns : 0;
}

static int
is_seen(const struct cgpu_machine *machine, const struct state_queue *queue, uint64_t item)
{
    return machine->state->completion_ns == 0 ||
           cgpu_machine_now() >= seen_at(machine, queue, item);
}

int
cgpu_machine_is_late(const struct cgpu_machine *machine)
{
    return machine->state->dispatch_ns != 0 || machine->state->completion_ns != 0;
}

int
cgpu_machine_done(struct cgpu_machine *machine, uint32_t index, uint64_t item)
{
    uint32_t gpu = machine->visible[index];
    struct state_queue *queue = own_queue(machine, gpu);
    uint64_t earliest = earliest_end(queue, item);
    if (earliest != 0 && cgpu_machine_now() >= earliest) {
        cgpu_machine_lock(machine);
        cgpu_machine_advance(machine, gpu);
        cgpu_machine_unlock(machine);
    }
    return completed(queue) >= item && is_seen(machine, queue, item);
}

int
cgpu_machine_has_room(struct cgpu_machine *machine, uint32_t index)
{
    struct state_queue *queue = own_queue(machine, machine->visible[index]);
    /* One item stays unused: the newest that is done keeps its own. */
    return queue->submitted - completed(queue) < STATE_RING - 1;
}

void
cgpu_machine_await_room(struct cgpu_machine *machine, uint32_t index)
{
    struct state_queue *queue = own_queue(machine, machine->visible[index]);
    /* For a good part of it at once: waking up for each item would cost more than the work. */
    uint64_t item = completed(queue) + STATE_RING / 4;
    /* acquire: its item is there */
    uint64_t newest = __atomic_load_n(&queue->submitted, __ATOMIC_ACQUIRE);
    cgpu_machine_wait(machine, index, item < newest ? item : newest);
}

uint64_t
cgpu_machine_submit(struct cgpu_machine *machine, uint32_t index, uint64_t duration_ns, int is_copy)
{
    uint32_t gpu = machine->visible[index];
    struct state_queue *queue = own_queue(machine, gpu);
    uint64_t number = queue->submitted + 1;
    uint64_t now = cgpu_machine_now();
    queue->work_ns += duration_ns;
    queue->ring[number % STATE_RING] =
        (struct state_item){now + machine->state->dispatch_ns, duration_ns, queue->work_ns, 0};
    /* release: who sees the number sees the item */
    __atomic_store_n(&queue->submitted, number, __ATOMIC_RELEASE);
    if (is_copy) {
        cgpu_machine_lock(machine);
        cgpu_machine_history_add(&machine->state->timelines[gpu].copies, now, now + duration_ns);
        cgpu_machine_unlock(machine);
    }
    return number;
}

uint64_t
cgpu_machine_end_time(struct cgpu_machine *machine, uint32_t index, uint64_t item)
{
    struct state_queue *queue = own_queue(machine, machine->visible[index]);
    int kept = item != 0 && completed(queue) >= item && queue->submitted - item < STATE_RING;
    return kept ? queue->ring[item % STATE_RING].end_ns : 0;
}

uint64_t
cgpu_machine_next_look(struct cgpu_machine *machine, uint32_t index, uint64_t item,
                       uint64_t most_ns)
{
    uint32_t gpu = machine->visible[index];
    const struct state_queue *queue = own_queue(machine, gpu);
    uint64_t now = cgpu_machine_now(), end = UINT64_MAX;
    if (item != 0) {
        cgpu_machine_lock(machine);
        now = cgpu_machine_now();
        cgpu_machine_reap_sometimes(machine, now);
        cgpu_machine_advance(machine, gpu);
        end = cgpu_machine_forecast(machine, gpu, (uint32_t)machine->slot, item);
        cgpu_machine_unlock(machine);
    }
    if (item != 0 && completed(queue) >= item) {
        end = seen_at(machine, queue, item);
    }
    return end < now + most_ns ? end : now + most_ns;
}

/* The GPU's interrupt comes when it comes: not some 50 us later, as timers of a thread may. */
void
cgpu_machine_nap(struct cgpu_machine *machine, uint32_t index, uint64_t item, uint64_t most_ns)
{
    uint64_t at = cgpu_machine_next_look(machine, index, item, most_ns);
    struct timespec time = {(time_t)(at / 1000000000ull), (long)(at % 1000000000ull)};
    int slack = prctl(PR_GET_TIMERSLACK);
    prctl(PR_SET_TIMERSLACK, 1ul);
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL);
    prctl(PR_SET_TIMERSLACK, (unsigned long)slack);
}

void
cgpu_machine_wait(struct cgpu_machine *machine, uint32_t index, uint64_t item)
{
    while (!cgpu_machine_done(machine, index, item)) {
        cgpu_machine_nap(machine, index, item, STATE_REAP_NS);
    }
}
