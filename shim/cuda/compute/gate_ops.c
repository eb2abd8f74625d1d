/* The functions of the driver and of the process's threads that native/gate calls. */
#include <linux/futex.h>

#include "compute/await.h"
#include "compute/batch_slot.h"
#include "compute/launch_state.h"
#include "compute/marker.h"
#include "compute/stream.h"
#include "futex.h"

static void
ring_arbiter(struct cgpu_gate_gpu *gpu)
{
    cgpu_work_ring(cgpu_state->ledger, (uint32_t)(gpu - cgpu_launch_state->gpus));
}

static bool
wake_process(struct cgpu_gate_gpu *gpu)
{
    return cgpu_futex_wake(&gpu->sums->freed, FUTEX_WAKE, 1) > 0;
}

const struct cgpu_gate_ops cgpu_gate_ops = {
    .put_marker = cgpu_marker_put,
    .is_passed = cgpu_marker_is_passed,
    .is_lost = cgpu_marker_is_lost,
    .release = cgpu_stream_release,
    .sum = cgpu_batch_slot_sum,
    .count_held = cgpu_batch_slot_count_launches,
    .cut = cgpu_batch_slot_end_batch,
    .stop = cgpu_batch_slot_stop,
    .poll_host_calls = cgpu_await_poll,
    .is_behind_call = cgpu_await_is_behind,
    .ring = ring_arbiter,
    .wake = wake_process,
};
