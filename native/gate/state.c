/*
 * The state of streams and GPUs. Each change of it is one function here, called by the file that
 * sees the event: enter.c a launch, flight.c a marker, sync.c a synchronisation, drain.c a gate
 * that closes.
 *
 * A stream is stalled while it makes no progress: it is in a host function, or none of its work has
 * ended for some time. Its work then takes no room. A drain does not wait for a stream in a host
 * function, which uses none of the GPU. Nor does it wait for a stream in which nothing has ended
 * for a second (a persistent kernel). Such a stream is not charged while its kernel runs: nobody
 * can stop that kernel, and to pay for it would leave nothing to the other streams of the
 * container. If the kernel ends after all, its time is charged then. Before that second is over,
 * the GPU may be running a long kernel, which is drained and charged like any other. When a stalled
 * stream makes progress, its work counts again; if the gate has closed by then, the process rings.
 */
#include "gate/state.h"

#include "clock.h"
#include "ledger/work.h"

/* ---- a stream's batch ---- */

void
cgpu_batch_add(struct cgpu_stream *stream, const struct cgpu_unmarked *batch)
{
    struct cgpu_unmarked *pending = &stream->pending;

    pending->mixed |= batch->mixed;
    pending->mixed |= pending->launches != 0 ? pending->key ^ batch->key : 0;
    pending->key = batch->key;
    pending->work_ns += batch->work_ns;
    pending->launches += batch->launches;
}

void
cgpu_batch_set_unmarked(struct cgpu_stream *stream, uint64_t ns)
{
    struct cgpu_gate_gpu *gpu = stream->gpu;

    gpu->unmarked_ns += ns - stream->unmarked_ns;
    gpu->permit_used_ns += cgpu_since(ns, stream->unmarked_ns);
    stream->unmarked_ns = ns;
}

void
cgpu_batch_suspect(struct cgpu_stream *stream)
{
    cgpu_batch_add(stream, &(struct cgpu_unmarked){.launches = 1, .mixed = UINT64_MAX});
    stream->unsure = 1;
}

struct cgpu_unmarked
cgpu_batch_sum(const struct cgpu_stream *stream)
{
    struct cgpu_unmarked sum = stream->pending;

    stream->gpu->ops->sum(stream, &sum);
    return sum;
}

bool
cgpu_batch_wants_marker(const struct cgpu_stream *stream)
{
    return stream->stale != 0 || cgpu_batch_sum(stream).launches != 0;
}

struct cgpu_pace_batch
cgpu_batch_close(struct cgpu_stream *stream)
{
    struct cgpu_unmarked sum = cgpu_batch_sum(stream);
    struct cgpu_pace_batch batch = {
        .key = sum.mixed == 0 ? sum.key : 0,
        .launches = sum.launches == 0 ? stream->stale : sum.launches,
        .work_ns = sum.work_ns,
        .start_ns = stream->begun_ns,
        .certain = !stream->unsure,
        .guessed = stream->guessed,
        .guess_ns = stream->guess_ns,
        .stream = stream->index,
    };

    stream->gpu->ops->cut(stream);
    cgpu_batch_set_unmarked(stream, 0);
    stream->pending = (struct cgpu_unmarked){0};
    stream->unsure = 0;
    stream->guessed = 0;
    stream->guess_ns = 0;
    stream->begun_ns = 0;
    return batch;
}

/* ---- a GPU ---- */

void
cgpu_gate_publish(struct cgpu_gate_gpu *gpu)
{
    bool certain =
        gpu->pace.uncertain == 0 && gpu->pace.guessed == 0 && gpu->phase != CGPU_PHASE_DEFERRED;

    /* relaxed: each is a hint by itself */
    __atomic_store_n(&gpu->work->certain, certain, __ATOMIC_RELAXED);
    __atomic_store_n(&gpu->work->end_ns, gpu->pace.end_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&gpu->work->busy_ns, gpu->pace.busy_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&gpu->work->done_us, (uint32_t)(gpu->pace.done_ns / 1000), __ATOMIC_RELAXED);
    __atomic_store_n(&gpu->work->lag_ns, (uint32_t)gpu->pace.lag_ns, __ATOMIC_RELAXED);
}

void
cgpu_gate_set_phase(struct cgpu_gate_gpu *gpu, enum cgpu_gate_phase to, uint64_t now)
{
    if (gpu->phase != to && !(gpu->phase == CGPU_PHASE_UNCOUNTED && to == CGPU_PHASE_COUNTED)) {
        gpu->phase = to;
        gpu->phase_ns = now;
    }
}

/* ---- streams that stall ---- */

bool
cgpu_stall_is_behind_call(const struct cgpu_stream *stream, uint64_t now)
{
    return stream->in_flight == 0 && stream->begun_ns > stream->call_ns &&
           now < stream->call_ns + CGPU_STALL_BEGINS_NS && stream->gpu->ops->is_behind_call(stream);
}

bool
cgpu_stall_is_in_call(const struct cgpu_stream *stream, uint64_t now)
{
    return cgpu_stall_is_behind_call(stream, now) ||
           (stream->in_flight == 0 && stream->call_ns != 0 &&
            (stream->in_call_ns == now || now < stream->call_ns + CGPU_STALL_CALL_NS));
}

/* Note that from NOW on STREAM takes GPU time that is charged only when its work has ended. */
void
cgpu_stall_leave_uncharged(struct cgpu_stream *stream, uint64_t now)
{
    stream->uncharged_ns = now;
    cgpu_work_add_stall(stream->gpu->sums);
}

/*
 * Report the time for which STREAM was not charged. If several such streams overlap, report their
 * common time once.
 */
void
cgpu_stall_note_progress(struct cgpu_stream *stream, uint64_t now)
{
    struct cgpu_gate_gpu *gpu = stream->gpu;
    uint64_t ns = cgpu_since(now, cgpu_larger(stream->uncharged_ns, gpu->reported_ns));

    stream->progress_ns = now;
    if (stream->uncharged_ns != 0 && ns > 0) {
        gpu->reported_ns = now;
        cgpu_work_add_stalled_ns(gpu->sums, ns);
    }
    stream->uncharged_ns = 0;
}

static void
set_stall(struct cgpu_stream *stream, enum cgpu_stall to, uint64_t now)
{
    struct cgpu_gate_gpu *gpu = stream->gpu;
    enum cgpu_stall before = stream->stall;
    bool was_left = cgpu_stall_is_ignored(stream);

    stream->stall = to;
    if (to == CGPU_STALL_NONE && stream->pending.launches != 0) {
        cgpu_batch_set_unmarked(stream, cgpu_larger(stream->pending.work_ns, 1));
    } else { /* what is stalled takes no room */
        cgpu_batch_set_unmarked(stream, 0);
    }
    for (uint32_t i = 0; i < gpu->flights; i++) {
        struct cgpu_flight *flight = &gpu->flight[i];

        if (flight->stream != stream) {
            continue;
        }
        if (before == CGPU_STALL_NONE && to != CGPU_STALL_NONE) {
            cgpu_pace_leave(&gpu->pace, &flight->batch, now);
        } else if (before != CGPU_STALL_NONE && to == CGPU_STALL_NONE) {
            cgpu_pace_return(&gpu->pace, &flight->batch, now);
        }
        gpu->ignored += (uint32_t)cgpu_stall_is_ignored(stream) - was_left;
    }
    cgpu_gate_publish(gpu);
}

void
cgpu_stall_begin(struct cgpu_stream *stream, enum cgpu_stall why, uint64_t now)
{
    set_stall(stream, why, now);
    stream->stalled_ns = now;
    stream->gpu->has_stalled = 1;
}

void
cgpu_stall_end(struct cgpu_stream *stream, uint64_t now)
{
    struct cgpu_gate_gpu *gpu = stream->gpu;
    uint32_t word = cgpu_gate_word(gpu);

    set_stall(stream, CGPU_STALL_NONE, now);
    stream->progress_ns = now;
    bool works = stream->in_flight != 0 || stream->pending.launches != 0;
    if (works) {
        __atomic_store_n(&gpu->work->idle, 0, __ATOMIC_RELAXED);
    }
    if (works && !cgpu_gate_is_open(word)) {
        cgpu_gate_set_phase(gpu, CGPU_PHASE_COUNTED, now); /* mark now what was not marked */
        if (__atomic_load_n(&gpu->work->active, __ATOMIC_RELAXED) == 0) {
            __atomic_store_n(&gpu->work->active, word, __ATOMIC_RELEASE);
            gpu->ops->ring(gpu);
        }
    }
}
