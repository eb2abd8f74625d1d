/* What native/gate needs of the driver and of a process's threads, in virtual time. */
#include "model.h"

#include "gate/drain.h"

static struct process *
process_of(const struct cgpu_gate_gpu *gate)
{
    return (struct process *)(uintptr_t)((uintptr_t)gate - offsetof(struct process, gate));
}

static struct marker *
marker_of(struct process *process, const struct cgpu_stream *stream, uint32_t seq)
{
    return &process->markers[stream->index][seq % MAX_MARKERS];
}

/* A marker is dispatched like any work. */
static void
pass_marker(const struct process *process, struct marker *marker, uint64_t now)
{
    const struct scenario *s = process->world->scenario;
    uint64_t ready = marker->marked_ns + s->dispatch_ns;

    if (marker->visible_ns == NEVER && marker->seq <= process->finished) {
        marker->visible_ns = (now > ready ? now : ready) + s->completion_ns;
    }
}

void
process_pass_markers(struct process *process, uint64_t now)
{
    for (uint32_t i = 0; i < process->gate.flights; i++) {
        const struct cgpu_flight *flight = &process->gate.flight[i];

        pass_marker(process, marker_of(process, flight->stream, flight->seq), now);
    }
}

/* A GPU that runs all in order passes a marker after what came before it in any stream. */
static uint64_t
passes_after(const struct process *process, const struct cgpu_stream *stream)
{
    return process->world->scenario->in_order != 0 ? process->submitted
                                                   : process->last[stream->index];
}

static bool
put_marker(struct cgpu_stream *stream, uint32_t seq, uint32_t *kind)
{
    struct process *process = process_of(stream->gpu);
    struct marker *marker = marker_of(process, stream, seq);
    uint64_t now = process->world->now;

    if (process->probes) { /* others may have the GPU */
        gpu_submit(process->world, process, 0, 0);
    }
    *marker = (struct marker){passes_after(process, stream), now, NEVER};
    pass_marker(process, marker, now);
    *kind = 0;
    return true;
}

static bool
is_passed(const struct cgpu_flight *flight)
{
    struct process *process = process_of(flight->stream->gpu);

    return marker_of(process, flight->stream, flight->seq)->visible_ns <= process->world->now;
}

static void
cut(struct cgpu_stream *stream)
{
    struct process *process = process_of(stream->gpu);

    process->hot_word = 0;
    process->hot_ns = 0;
}

static bool
stop(struct cgpu_gate_gpu *gate, uint64_t now)
{
    struct process *process = process_of(gate);

    (void)now;
    process->hot_word = 0;
    return true;
}

static void
ring(struct cgpu_gate_gpu *gate)
{
    server_ring(process_of(gate)->world);
}

/* As Linux does: who has waited longest for the futex is woken first. */
static bool
wake(struct cgpu_gate_gpu *gate)
{
    struct process *self = process_of(gate), *first = NULL;
    struct world *world = self->world;

    for (uint32_t i = 0; i < world->process_count; i++) {
        struct process *process = &world->processes[i];

        if (process->tenant == self->tenant && process->gpu == self->gpu && process->alive &&
            process->queued_at < (first != NULL ? first->queued_at : NEVER)) {
            first = process;
        }
    }
    if (first == NULL) {
        return false;
    }
    first->queued_at = NEVER;
    first->at_thread = world_wake(world);
    return true;
}

/* No marker is lost, no stream is destroyed, nobody waits for the program; threads hold nothing. */

static bool
is_lost(const struct cgpu_flight *flight, uint64_t now)
{
    (void)flight, (void)now;
    return false;
}

static void
release(struct cgpu_stream *stream)
{
    (void)stream;
}

static void
sum(const struct cgpu_stream *stream, struct cgpu_unmarked *to)
{
    (void)stream, (void)to;
}

static uint64_t
held(const struct cgpu_gate_gpu *gate)
{
    (void)gate;
    return 0;
}

static bool
awaits(struct cgpu_gate_gpu *gate, uint64_t now)
{
    (void)gate, (void)now;
    return false;
}

static bool
is_behind_call(const struct cgpu_stream *stream)
{
    (void)stream;
    return false;
}

void
process_init(struct world *world, struct process *process)
{
    static const struct cgpu_gate_ops ops = {
        .put_marker = put_marker,
        .is_passed = is_passed,
        .is_lost = is_lost,
        .release = release,
        .sum = sum,
        .count_held = held,
        .cut = cut,
        .stop = stop,
        .poll_host_calls = awaits,
        .is_behind_call = is_behind_call,
        .ring = ring,
        .wake = wake,
    };
    struct tenant *tenant = &world->tenants[process->tenant];
    struct cgpu_gate_gpu *gate = &process->gate;

    process->world = world;
    process->queued_at = NEVER;
    gate->ops = &ops;
    gate->streams = process->streams;
    gate->stream_bound = &process->load.streams;
    gate->work = &process->work;
    gate->sums = &tenant->sums[process->gpu];
    gate->gate = &tenant->words[process->gpu];
    gate->limits = &tenant->limits[process->gpu];
    for (uint16_t i = 0; i < process->load.streams; i++) {
        struct CUstream_st *handle = (void *)process; /* any but NULL */

        process->streams[i] =
            (struct cgpu_stream){.gpu = gate, .handle = handle, .used = 1, .index = i};
    }
}

/* As shim/cuda/compute/monitor.c does it, but for the fallback. */
void
process_monitor(struct world *world, struct process *process)
{
    uint64_t next;

    process->gate.syncs = process->state == THREAD_SYNCS;
    next = cgpu_drain_poll(&process->gate, world->now);
    process->at_monitor = next == UINT64_MAX ? NEVER : world_timer(world, next);
}
