/* What native/gate needs of the driver and of the process's threads: see gate/state.h. */
#include "compute/outside.h"
#include "compute/await.h"
#include "compute/lane.h"
#include "compute/marker.h"
#include "compute/stream.h"
#include "gate/flight.h"

/* Work under a free gate was not counted: any stream may have some. */
static void
suspect_all(struct cgpu_gate_gpu *gpu)
{
    for (uint32_t i = 0; i < cgpu_flow->stream_bound; i++) {
        struct cgpu_stream *stream = &cgpu_flow->streams[i];
        /* Other threads' default streams are waited for by the legacy stream. */
        if (stream->handle != NULL && stream->lane == 0 && stream->gpu == gpu) {
            cgpu_flight_suspect(stream);
        }
    }
}

static bool
stop(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    if (!cgpu_lane_stop((int32_t)(gpu - cgpu_flow->gpus), now)) {
        return false;
    }
    if (gpu->unmetered) {
        gpu->unmetered = 0;
        suspect_all(gpu);
    }
    return true;
}

static void
ring(struct cgpu_gate_gpu *gpu)
{
    cgpu_work_ring(cgpu_state->ledger, (uint32_t)(gpu - cgpu_flow->gpus));
}

void
cgpu_outside_begin(struct cgpu_gate_gpu *gpu)
{
    static const struct cgpu_gate_outside outside = {
        .put_marker = cgpu_marker_put,
        .is_passed = cgpu_marker_is_passed,
        .is_lost = cgpu_marker_is_lost,
        .release = cgpu_stream_release,
        .sum = cgpu_lane_sum,
        .held = cgpu_lane_launches,
        .cut = cgpu_lane_end_batch,
        .stop = stop,
        .awaits = cgpu_await_look,
        .is_behind_call = cgpu_await_is_behind,
        .ring = ring,
    };
    gpu->outside = &outside;
    gpu->streams = cgpu_flow->streams;
    gpu->stream_bound = &cgpu_flow->stream_bound;
}
