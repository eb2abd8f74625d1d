/* What native/gate needs of the driver and of the process's threads: see gate/state.h. */
#include "compute/outside.h"
#include "compute/await.h"
#include "compute/lane.h"
#include "compute/marker.h"
#include "compute/stream.h"

static bool
stop(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    return cgpu_lane_stop((int32_t)(gpu - cgpu_flow->gpus), now);
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
