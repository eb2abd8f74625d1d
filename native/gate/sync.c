/* What a program's synchronisation shows: see sync.h. */
#include "gate/sync.h"

#include "clock.h"
#include "gate/drain.h"
#include "gate/flight.h"
#include "gate/permits.h"

/*
 * Note that the work in flight in STREAM has ended, although its markers were not seen to pass.
 * This does not hold for what another thread began to launch after BEGUN.
 */
static void
note_end(struct cgpu_stream *stream, uint64_t begun, uint64_t now)
{
    for (uint32_t i = 0; i < stream->gpu->flights && stream->in_flight > 0; i++) {
        struct cgpu_flight *flight = &stream->gpu->flight[i];

        if (flight->stream == stream && flight->batch.start_ns <= begun) {
            flight->ended_ns = now;
        }
    }
}

/*
 * Note what has ended in STREAM. Some of its markers may be younger than BEGUN: when a stalled
 * stream counts again, its work is charged first.
 */
void
cgpu_sync_stream(struct cgpu_stream *stream, uint64_t begun, uint64_t now)
{
    struct cgpu_gate_gpu *gpu = stream->gpu;

    cgpu_flight_pass(stream, begun, now, CGPU_SEEN_AT_ONCE);
    if (stream->handed_ns <= begun) {
        note_end(stream, begun, now);
        struct cgpu_pace_batch batch = cgpu_batch_close(stream);

        if (batch.launches != 0) {
            cgpu_pace_mark(&gpu->pace, &batch, now);
            cgpu_flight_end(gpu, &batch, now, CGPU_SEEN_AT_ONCE);
            cgpu_gate_publish(gpu);
        }
    }
    if (gpu->has_stalled) {
        cgpu_flight_harvest(gpu, now);
    }
    cgpu_permits_renew(gpu, now);
}

/* Whether a thread waits at its gate, or for room. Both relaxed: they are hints. */
static bool
wants_to_launch(const struct cgpu_gate_gpu *gpu)
{
    return __atomic_load_n(&gpu->work->waiting, __ATOMIC_RELAXED) != 0 ||
           __atomic_load_n(&gpu->threads_waiting, __ATOMIC_RELAXED) != 0;
}

static bool
has_work(const struct cgpu_gate_gpu *gpu)
{
    bool works = cgpu_gate_is_busy(gpu) || gpu->phase == CGPU_PHASE_UNCOUNTED ||
                 gpu->ops->count_held(gpu) != 0;

    for (uint32_t i = 0; i < *gpu->stream_bound && !works; i++) {
        const struct cgpu_stream *stream = &gpu->streams[i];

        works = stream->gpu == gpu && stream->used && stream->pending.launches != 0;
    }
    return works;
}

void
cgpu_sync_begin_rest(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    bool quiet = cgpu_drain_is_quiet(gpu);

    gpu->burst_ns = 0;
    /* only while others wait, because has_work goes through all streams and threads */
    bool rests =
        !wants_to_launch(gpu) &&
        (quiet || (cgpu_gate_state(cgpu_gate_word(gpu)) == CGPU_GATE_PRESSED && !has_work(gpu)));
    gpu->rested_ns = rests ? now : gpu->rested_ns;
    if (rests && !quiet && gpu->usual_rest_ns >= CGPU_PACE_IDLE_NS) {
        cgpu_drain_report_idle(gpu, CGPU_IDLE_NOW);
    }
}
