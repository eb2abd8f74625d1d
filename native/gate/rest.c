/* Programs that rest: see rest.h. */
#include "gate/rest.h"

#include "gate/drain.h"
#include "gate/flight.h"
#include "gate/pace_time.h"

enum { FALL = 2, RISE = 8 };

/* A thread waits for its gate, or for room. relaxed, both: hints */
static bool
wants_to_launch(const struct cgpu_gate_gpu *gpu)
{
    return __atomic_load_n(&gpu->work->waiting, __ATOMIC_RELAXED) != 0 ||
           __atomic_load_n(&gpu->threads_waiting, __ATOMIC_RELAXED) != 0;
}

static bool
has_work(const struct cgpu_gate_gpu *gpu)
{
    if (cgpu_flight_is_busy(gpu) || gpu->phase == CGPU_PHASE_UNCOUNTED ||
        gpu->outside->held(gpu) != 0) {
        return true;
    }
    for (uint32_t i = 0; i < *gpu->stream_bound; i++) {
        const struct cgpu_stream *stream = &gpu->streams[i];

        if (stream->gpu == gpu && stream->used && stream->pending.launches != 0) {
            return true;
        }
    }
    return false;
}

void
cgpu_rest_begins(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    bool quiet = cgpu_drain_is_quiet(gpu);

    gpu->burst_ns = 0;
    /* only while others wait: has_work looks at every stream and thread */
    if (wants_to_launch(gpu) ||
        (!quiet && (cgpu_gate_state(cgpu_gate_word(gpu)) != CGPU_GATE_PRESSED || has_work(gpu)))) {
        return;
    }
    gpu->rested_ns = now;
    if (!quiet && gpu->usual_rest_ns >= CGPU_PACE_IDLE_NS) {
        cgpu_drain_say_idle(gpu, CGPU_IDLE_NOW);
    }
}

void
cgpu_rest_ends(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    uint64_t usual = gpu->usual_rest_ns, rest = since(now, gpu->rested_ns);

    gpu->burst_ns = gpu->burst_ns != 0 ? gpu->burst_ns : now;
    if (gpu->rested_ns == 0) {
        return;
    }
    /* one long rest among many short ones says little */
    rest = lesser(rest, usual + 2 * CGPU_PACE_IDLE_NS);
    gpu->usual_rest_ns =
        rest < usual ? usual - (usual - rest) / FALL : usual + (rest - usual) / RISE;
    gpu->rested_ns = 0;
}
