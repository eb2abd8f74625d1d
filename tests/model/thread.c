/* A program's thread: launches as the proxy lets it, see shim/cuda/compute/enter.c. */
#include "model.h"

#include "gate/drain.h"
#include "gate/enter.h"
#include "gate/flight.h"
#include "gate/sync.h"

static struct cgpu_stream *
current(struct process *process)
{
    return &process->streams[process->current];
}

/* True: let in. */
static bool
enter(struct world *world, struct process *process)
{
    uint32_t word = world_gate(world, process);

    cgpu_enter_end_rest(&process->gate, world->now);
    if (!cgpu_gate_is_open(word)) {
        if (!process->work.waiting) {
            process->work.waiting = 1;
            process->gate_ns = world->now;
            server_ring(world);
        } else {
            process->work.missed += 1;
            server_ring(world);
        }
        process->state = THREAD_AT_GATE;
        process->at_thread = NEVER;
        return false;
    }
    if (process->work.waiting) {
        struct tenant *tenant = &world->tenants[process->tenant];
        uint64_t waited = world->now - process->gate_ns;

        tenant->longest_wait = waited > tenant->longest_wait ? waited : tenant->longest_wait;
        process->work.waiting = 0;
    }
    process->probes = true;
    cgpu_enter_begin(current(process), word, world->now);
    process->probes = false;
    process->word = word;
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
    uint64_t kind = process->load.kinds > 0 ? process->launched % process->load.kinds : 0;

    /* any address, the same in each run */
    uintptr_t function = ((uintptr_t)(process - process->world->processes) + 1) << 20 | kind;

    return cgpu_pace_key((const void *)function, process->load.lengths[process->kernel]);
}

/* Whether every launch takes the slow path: to look at markers, or since the stream is another. */
static bool
looks(const struct process *process)
{
    bool awaited = process->streams[0].unsure || process->gate.pace.probed_ns != 0;

    return awaited || process->load.streams > 1;
}

/* How many kernels go out in one event: equal ones, short ones, as far as the batch lasts. */
static uint64_t
chunk(const struct process *process, uint64_t estimate, uint64_t ns)
{
    uint64_t count = ns < CHUNK_NS ? CHUNK_NS / ns : 1;
    uint64_t left = process->load.sync_every - process->since_sync;

    if (cgpu_gate_is_metered(process->word)) {
        uint64_t fits = estimate > 0 ? (CGPU_PACE_BATCH_NS - 1 - process->hot_ns) / estimate : 0;

        fits = fits > 0 ? fits : 1;
        count = count < fits ? count : fits;
    }
    if (process->load.length_count > 1 || process->load.kinds > 0 || process->load.meet_every > 0 ||
        process->load.launch_ns > LAUNCH_NS || looks(process)) {
        count = 1;
    }
    return process->load.sync_every > 0 && left < count ? left : count;
}

/* Under a free gate nothing is counted. */
static void
add_to_batch(struct process *process, uint64_t key, uint64_t count, uint64_t now)
{
    uint64_t estimate = process->estimate_ns;
    struct cgpu_unmarked batch = {.work_ns = count * estimate, .launches = count, .key = key};

    if (cgpu_gate_is_metered(process->word)) {
        cgpu_batch_add(current(process), &batch);
        cgpu_enter_count(current(process), estimate, process->guessed, now);
        process->hot_ns += batch.work_ns;
        process->hot_word = looks(process) ? 0 : process->word;
    }
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
    uint64_t learnt = cgpu_pace_estimate(&process->gate.pace, key_of(process));
    uint64_t key = key_of(process), count;

    if (learnt != 0) { /* by the look at the markers that found room */
        process->estimate_ns = learnt;
        process->guessed = false;
    }
    count = chunk(process, process->estimate_ns, ns);

    process->launched += count;
    gpu_submit(world, process, count * ns, meeting_of(process));
    add_to_batch(process, key, count, world->now);
    process->since_sync += count;
    process->ready_ns += count * ns;
    process->kernel = (process->kernel + 1) % process->load.length_count;
    process->current = (process->current + 1) % process->load.streams;
    process->at_thread = world->now + count * process->load.launch_ns;
}

/* May a kernel go that is taken for NS? 0: yes, else when to look again. */
static uint64_t
room_at(struct process *process, uint64_t ns, uint64_t now)
{
    uint64_t until;

    if (process->hot_word == process->word && ns != 0 && !process->guessed &&
        process->hot_ns + ns < CGPU_PACE_BATCH_NS) {
        return 0; /* the hot path, see launch.c */
    }
    until = cgpu_enter_room(current(process), process->word, ns, now);
    if (until == 0 && process->hot_ns + ns >= CGPU_PACE_BATCH_NS) {
        process->hot_ns = 0; /* what it launched is handed over: it may go on */
    }
    return current(process)->stall && process->queue_count >= MAX_QUEUE / 2 ? now + MS : until;
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
    cgpu_enter_end_rest(&process->gate, world->now);
    process->estimate_ns = cgpu_pace_estimate(&process->gate.pace, key_of(process));
    process->guessed = process->estimate_ns == 0;
    if (process->guessed) {
        process->estimate_ns = cgpu_guess_next(&process->gate.pace.guess);
    }
    again = room_at(process, process->estimate_ns, world->now);
    process->gate.threads_waiting = again != 0;
    if (again != 0) {
        process->at_thread = world_timer(world, again);
    }
    process->queued_at = again != 0 && process->gate.queued_ns != 0 ? world->now : NEVER;
    return again == 0;
}

static void
rest(struct world *world, struct process *process, uint64_t ns)
{
    process->state = THREAD_RESTS;
    process->at_thread = world->now + ns;
    process->asked_ns = process->synced == 0 ? process->at_thread : process->asked_ns;
}

void
thread_finished(struct world *world, struct process *process, uint64_t now)
{
    process_pass_markers(process, now);
    if (process->queue_count == 0) {
        process->idle_from = now + world->scenario->completion_ns;
        if (process->state == THREAD_SYNCS) {
            process->at_thread = process->idle_from;
        }
    }
}

/* The program's own synchronisation has returned. */
static void
synchronised(struct world *world, struct process *process)
{
    uint64_t took = world->now - process->asked_ns;
    uint64_t think = process->load.think_ns;
    bool ends_burst = ++process->synced >= process->load.burst_syncs;

    if (ends_burst && world->now >= world->scenario->from_ns) {
        world_sample(&world->tenants[process->tenant].latency,
                     took > process->ready_ns ? took - process->ready_ns : 0);
    }
    process->since_sync = 0;
    process->ready_ns = ends_burst ? 0 : process->ready_ns;
    process->synced = ends_burst ? 0 : process->synced;
    for (uint32_t i = 0; i < process->load.streams; i++) {
        cgpu_sync_stream(&process->streams[i], process->synced_ns, world->now);
    }
    cgpu_sync_begin_rest(&process->gate, world->now);
    world_step(world, process, world->now);
    rest(world, process,
         think > 0 && ends_burst ? world_random(world, think / 2, think * 3 / 2) : US);
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
    process->synced_ns = world->now;
    process->rounds += 1;
    process->at_thread = process->queue_count > 0 ? NEVER : process->idle_from;
    if (process->load.one_thread != 0 && !last) {
        process[1].at_thread = world->now;
    }
}

static bool
pauses(struct world *world, struct process *process)
{
    if (process->load.pause_ns == 0 || world->now < process->burst_end || process->work.waiting) {
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
        process->gate.threads_waiting = 0;
        return;
    }
    if (!has_room(world, process)) {
        process->state = THREAD_WAITS_ROOM;
        return;
    }
    process->state = THREAD_RUNS;
    process->gate.threads_waiting = 0;
    launch(world, process);
}
