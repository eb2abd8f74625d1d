/* What native/gate needs of the driver and of the process's threads. */
#include <linux/futex.h>

#include "compute/await.h"
#include "compute/flow.h"
#include "compute/lane.h"
#include "compute/marker.h"
#include "compute/stream.h"
#include "futex.h"

static void
ring(struct cgpu_gate_gpu *gpu)
{
    cgpu_work_ring(cgpu_state->ledger, (uint32_t)(gpu - cgpu_flow->gpus));
}

static bool
wake(struct cgpu_gate_gpu *gpu)
{
    return cgpu_futex_wake(&gpu->sums->freed, FUTEX_WAKE, 1) > 0;
}

const struct cgpu_gate_outside cgpu_gate_outside = {
    .put_marker = cgpu_marker_put,
    .is_passed = cgpu_marker_is_passed,
    .is_lost = cgpu_marker_is_lost,
    .release = cgpu_stream_release,
    .sum = cgpu_lane_sum,
    .held = cgpu_lane_launches,
    .cut = cgpu_lane_end_batch,
    .stop = cgpu_lane_stop,
    .awaits = cgpu_await_look,
    .is_behind_call = cgpu_await_is_behind,
    .ring = ring,
    .wake = wake,
};
