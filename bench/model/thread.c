/* A program's thread: launches as the proxy lets it, see shim/cuda/enter.c. */
#include "model.h"

#define KNOWN_NS (60 * US)

void
thread_publish(struct process *process)
{
    process->end_ns = process->pace.end_ns;
    process->busy_ns = process->pace.busy_ns;
    process->certain = process->pace.uncertain == 0;
}

/* End the batch by a marker. */
void
thread_mark(struct world *world, struct process *process)
{
    uint32_t tail = (process->flight_head + process->flight_count) % CGPU_PACE_BATCHES;

    if (process->batch.launches == 0 || process->flight_count == CGPU_PACE_BATCHES) {
        return;
    }
    cgpu_pace_mark(&process->pace, &process->batch, world->now);
    process->flights[tail] = (struct flight){
        .batch = process->batch, .seq = process->submitted, .marked_ns = world->now};
    process->flight_count += 1;
    process->batch = (struct cgpu_pace_batch){.certain = 1};
    thread_publish(process);
}

/* See which markers were passed: just now, if somebody looked just before. */
void
thread_harvest(struct world *world, struct process *process)
{
    uint64_t pause = world->now - process->harvested_ns;

    process->harvested_ns = world->now;
    while (process->flight_count > 0 &&
           process->flights[process->flight_head].seq <= process->finished) {
        const struct flight *flight = &process->flights[process->flight_head];

        cgpu_pace_pass(&process->pace, &flight->batch, world->now,
                       pause < KNOWN_NS + (world->now - flight->marked_ns) / 32);
        process->flight_head = (process->flight_head + 1) % CGPU_PACE_BATCHES;
        process->flight_count -= 1;
    }
    cgpu_pace_look(&process->pace, world->now);
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
    if (process->load.length_count > 1) {
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

static void
launch(struct world *world, struct process *process)
{
    uint64_t ns = kernel_ns(world, process);
    uint64_t estimate = cgpu_pace_estimate(&process->pace, key_of(process));
    uint64_t count = chunk(process, estimate, ns);

    gpu_submit(world, process, count * ns);
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
    if (!batch_is_full(process) && process->state != THREAD_WAITS_ROOM) {
        return true;
    }
    thread_harvest(world, process);
    thread_mark(world, process);
    again = cgpu_pace_room(&process->pace, world->now);
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
thread_finished(struct world *world, struct process *process)
{
    if (process->state == THREAD_SYNCS) {
        process->at_thread = world->now;
    }
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
    thread_mark(world, process);
    thread_harvest(world, process);
    cgpu_pace_drain(&process->pace, world->now);
    thread_publish(process);
    rest(world, process, think > 0 ? world_random(world, think / 2, think * 3 / 2) : US);
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
        if (process->queue_count > 0) {
            process->at_thread = NEVER;
            return;
        }
        synchronised(world, process);
        return;
    }
    if (process->load.sync_every > 0 && process->since_sync >= process->load.sync_every) {
        process->state = THREAD_SYNCS;
        process->at_thread = process->queue_count > 0 ? NEVER : world->now;
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
