/* A program's thread: launches as the proxy lets it, see shim/cuda/compute/enter.c. */
#include "model.h"

#define KNOWN_NS (60 * US)

void
thread_publish(struct process *process)
{
    process->end_ns = process->pace.end_ns;
    process->busy_ns = process->pace.busy_ns;
    process->certain = process->pace.uncertain == 0;
}

/* Markers that the GPU has reached at NOW: a marker is dispatched like any work. */
static void
end_flights(const struct world *world, struct process *process, uint64_t now)
{
    while (process->flight_ended < process->flight_count) {
        uint32_t index = (process->flight_head + process->flight_ended) % CGPU_PACE_BATCHES;
        struct flight *flight = &process->flights[index];
        uint64_t ready = flight->marked_ns + world->scenario->dispatch_ns;

        if (flight->seq > process->finished) {
            break;
        }
        flight->visible_ns = (now > ready ? now : ready) + world->scenario->completion_ns;
        process->flight_ended += 1;
    }
}

static void
put_marker(struct world *world, struct process *process)
{
    uint32_t tail = (process->flight_head + process->flight_count) % CGPU_PACE_BATCHES;

    cgpu_pace_mark(&process->pace, &process->batch, world->now);
    process->flights[tail] = (struct flight){.batch = process->batch,
                                             .seq = process->submitted,
                                             .marked_ns = world->now,
                                             .visible_ns = NEVER};
    process->flight_count += 1;
    end_flights(world, process, world->now);
    process->batch = (struct cgpu_pace_batch){.certain = 1};
    thread_publish(process);
}

/* End the batch by a marker. */
void
thread_mark(struct world *world, struct process *process)
{
    if (process->batch.launches > 0 && process->flight_count < CGPU_PACE_BATCHES &&
        process->apart_ns == 0) {
        put_marker(world, process);
    }
}

/* See which markers were passed: just now, if somebody looked just before. */
void
thread_harvest(struct world *world, struct process *process)
{
    uint64_t pause = world->now - process->harvested_ns;

    process->harvested_ns = world->now;
    while (process->flight_count > 0 &&
           process->flights[process->flight_head].visible_ns <= world->now) {
        const struct flight *flight = &process->flights[process->flight_head];

        stay_passed(process, flight, world->now,
                    pause < KNOWN_NS + (world->now - flight->marked_ns) / 32);
        process->flight_head = (process->flight_head + 1) % CGPU_PACE_BATCHES;
        process->flight_count -= 1;
        process->flight_ended -= 1;
    }
    cgpu_pace_look(&process->pace, world->now);
    stay_look(world, process);
    thread_publish(process);
}

/* True: let in. */
static bool
enter(struct world *world, struct process *process)
{
    uint32_t word = world_gate(world, process);

    if (!cgpu_gate_is_open(word)) {
        if (!process->waiting) {
            process->waiting = true;
            process->gate_ns = world->now;
            server_ring(world);
        }
        process->state = THREAD_AT_GATE;
        process->at_thread = NEVER;
        return false;
    }
    if (process->waiting) {
        struct tenant *tenant = &world->tenants[process->tenant];
        uint64_t waited = world->now - process->gate_ns;

        tenant->longest_wait = waited > tenant->longest_wait ? waited : tenant->longest_wait;
        process->waiting = false;
    }
    if (process->active == 0 && cgpu_gate_is_metered(word) &&
        word == world->tenants[process->tenant].quiet_words[process->gpu]) {
        process->batch = (struct cgpu_pace_batch){.start_ns = world->now, .certain = 1};
        gpu_submit(world, process, 0, 0);
        put_marker(world, process);
    }
    process->begun_ns = process->active == 0 ? world->now : process->begun_ns;
    process->word = word;
    process->active = word;
    process->idle = false;
    return true;
}

static uint64_t
kernel_ns(struct world *world, const struct process *process)
{
    uint64_t ns = process->load.lengths[process->kernel];
    uint64_t by = ns * world->scenario->jitter / 100;

    return by > 0 ? world_random(world, ns - by, ns + by) : ns;
}

static uint64_t
key_of(const struct process *process)
{
    return cgpu_pace_key(process, process->load.lengths[process->kernel]);
}

/* How many kernels go out in one event: equal ones, short ones, as far as the batch lasts. */
static uint64_t
chunk(const struct process *process, uint64_t estimate, uint64_t ns)
{
    uint64_t count = ns < CHUNK_NS ? CHUNK_NS / ns : 1;
    uint64_t left = process->load.sync_every - process->since_sync;

    if (cgpu_gate_is_metered(process->word)) {
        uint64_t room = process->batch.work_ns < CGPU_PACE_BATCH_NS
                            ? CGPU_PACE_BATCH_NS - process->batch.work_ns
                            : 0;
        uint64_t fits = estimate > 0 ? room / estimate + 1 : 1;

        count = count < fits ? count : fits;
    }
    if (process->load.length_count > 1 || process->load.meet_every > 0 ||
        process->pace.probed_ns != 0) {
        count = 1;
    }
    return process->load.sync_every > 0 && left < count ? left : count;
}

static void
add_to_batch(struct process *process, uint64_t count, uint64_t estimate, uint64_t now)
{
    struct cgpu_pace_batch *batch = &process->batch;
    uint64_t key = key_of(process);

    if (batch->launches == 0) {
        *batch = (struct cgpu_pace_batch){.key = key, .start_ns = now, .certain = 1};
    }
    batch->key = batch->key == key ? key : 0;
    batch->launches += count;
    batch->work_ns += count * estimate;
    batch->certain = batch->certain && estimate > 0;
}

/* The meeting of the last launched kernel; 0: none. */
static uint64_t
meeting_of(const struct process *process)
{
    uint32_t every = process->load.meet_every;

    return every > 0 && process->launched % every == 0 ? process->launched / every : 0;
}

static void
launch(struct world *world, struct process *process)
{
    uint64_t ns = kernel_ns(world, process);
    uint64_t estimate = cgpu_pace_estimate(&process->pace, key_of(process));
    uint64_t count = chunk(process, estimate, ns);

    process->launched += count;
    gpu_submit(world, process, count * ns, meeting_of(process));
    add_to_batch(process, count, estimate, world->now);
    process->since_sync += count;
    process->ready_ns += count * ns;
    process->kernel = (process->kernel + 1) % process->load.length_count;
    process->at_thread = world->now + count * LAUNCH_NS;
}

/* Does the batch end before the next launch? Unknown kernels are measured alone. */
static bool
batch_is_full(const struct process *process)
{
    bool unknown = cgpu_pace_estimate(&process->pace, key_of(process)) == 0;

    return process->batch.launches > 0 &&
           (process->batch.work_ns >= CGPU_PACE_BATCH_NS || !process->batch.certain || unknown);
}

/* True: another launch may go out. */
static bool
has_room(struct world *world, struct process *process)
{
    uint64_t again;

    if (!cgpu_gate_is_metered(process->word)) {
        process->at_thread = world->now + UNMETERED_NS / 4;
        return process->queued_ns < UNMETERED_NS && process->queue_count < MAX_QUEUE / 2;
    }
    if (process->pace.probed_ns != 0) {
        thread_harvest(world, process);
    }
    if (!batch_is_full(process) && process->state != THREAD_WAITS_ROOM) {
        return true;
    }
    thread_harvest(world, process);
    if (process->apart_ns != 0) { /* it needs no room */
        process->at_thread = world->now + MS;
        return process->queue_count < MAX_QUEUE / 2;
    }
    thread_mark(world, process);
    again = cgpu_pace_room(&process->pace,
                           cgpu_gate_is_unhurried(process->word) ? CGPU_PACE_AHEAD_NS
                                                                 : CGPU_PACE_FLIGHT_NS,
                           world->now);
    if (again == 0) {
        return true;
    }
    process->at_thread = world_timer(world, again);
    return false;
}

static void
rest(struct world *world, struct process *process, uint64_t ns)
{
    process->state = THREAD_RESTS;
    process->at_thread = world->now + ns;
    process->asked_ns = process->at_thread;
}

void
thread_finished(struct world *world, struct process *process, uint64_t now)
{
    end_flights(world, process, now);
    if (process->queue_count == 0) {
        process->idle_from = now + world->scenario->completion_ns;
        if (process->state == THREAD_SYNCS) {
            process->at_thread = process->idle_from;
        }
    }
}

/* Whether all launched work has ended, whatever the markers say. */
static void
settle(struct world *world, struct process *process)
{
    if (process->apart_ns != 0) {
        thread_harvest(world, process);
    }
    thread_mark(world, process);
    for (uint32_t i = 0; i < process->flight_count; i++) {
        uint32_t index = (process->flight_head + i) % CGPU_PACE_BATCHES;

        process->flights[index].visible_ns = world->now;
    }
    thread_harvest(world, process);
}

/* The program's own synchronisation has returned. */
static void
synchronised(struct world *world, struct process *process)
{
    uint64_t took = world->now - process->asked_ns;
    uint64_t think = process->load.think_ns;

    if (world->now >= world->scenario->from_ns) {
        world_sample(&world->tenants[process->tenant].latency,
                     took > process->ready_ns ? took - process->ready_ns : 0);
    }
    process->since_sync = 0;
    process->ready_ns = 0;
    settle(world, process);
    world_step(world, process, world->now);
    cgpu_pace_drain(&process->pace, world->now);
    thread_publish(process);
    rest(world, process, think > 0 ? world_random(world, think / 2, think * 3 / 2) : US);
}

static bool
waits_for_mates(const struct process *process)
{
    return process->load.barrier != 0 || process->load.one_thread != 0;
}

/* Whether everything that PROCESS synchronises with has ended. */
static bool
all_done(const struct world *world, const struct process *process)
{
    for (uint32_t i = 0; waits_for_mates(process) && i < process->mates; i++) {
        const struct process *mate = &world->processes[process->team + i];

        if (mate->alive && (mate->state != THREAD_SYNCS || mate->queue_count > 0 ||
                            mate->idle_from > world->now)) {
            return false;
        }
    }
    return process->queue_count == 0;
}

static void
end_wait(struct world *world, struct process *process)
{
    if (!all_done(world, process)) {
        process->at_thread = NEVER; /* the last one ends the barrier for all */
        return;
    }
    for (uint32_t i = 0; waits_for_mates(process) && i < process->mates; i++) {
        struct process *mate = &world->processes[process->team + i];

        if (mate != process && mate->alive) {
            synchronised(world, mate);
        }
    }
    synchronised(world, process);
}

/* One thread launches for all mates, one after the other. */
static bool
is_elsewhere(const struct world *world, const struct process *process)
{
    return process->load.one_thread != 0 && process != &world->processes[process->team] &&
           process[-1].rounds <= process->rounds;
}

static void
begin_wait(struct world *world, struct process *process)
{
    bool last = process == &world->processes[process->team + process->mates - 1];

    process->state = THREAD_SYNCS;
    process->rounds += 1;
    process->at_thread = process->queue_count > 0 ? NEVER : process->idle_from;
    if (process->load.one_thread != 0 && !last) {
        process[1].at_thread = world->now;
    }
}

static bool
pauses(struct world *world, struct process *process)
{
    if (process->load.pause_ns == 0 || world->now < process->burst_end || process->waiting) {
        return false;
    }
    rest(world, process,
         world_random(world, process->load.pause_ns / 2, process->load.pause_ns * 3 / 2));
    process->burst_end = process->at_thread + process->load.burst_ns;
    return true;
}

void
thread_run(struct world *world, struct process *process)
{
    if (process->state == THREAD_SYNCS) {
        end_wait(world, process);
        return;
    }
    if (is_elsewhere(world, process)) {
        process->at_thread = NEVER;
        return;
    }
    if (process->load.sync_every > 0 && process->since_sync >= process->load.sync_every) {
        begin_wait(world, process);
        return;
    }
    if ((process->since_sync == 0 || process->load.sync_every == 0) && pauses(world, process)) {
        return;
    }
    if (process->word != world_gate(world, process) && !enter(world, process)) {
        return;
    }
    if (!has_room(world, process)) {
        process->state = THREAD_WAITS_ROOM;
        return;
    }
    process->state = THREAD_RUNS;
    launch(world, process);
}
