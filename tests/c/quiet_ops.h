/* An environment for the gate's own code, in which nothing happens. */
#ifndef CGPU_QUIET_OPS_H
#define CGPU_QUIET_OPS_H

#include "gate/state.h"

static inline bool
quiet_put_marker(struct cgpu_stream *stream, uint32_t seq, uint32_t *kind)
{
    (void)stream, (void)seq;
    *kind = 0;
    return true;
}

static inline bool
quiet_is_flight(const struct cgpu_flight *flight)
{
    (void)flight;
    return false;
}

static inline bool
quiet_is_lost(const struct cgpu_flight *flight, uint64_t now)
{
    (void)flight, (void)now;
    return false;
}

static inline void
quiet_stream(struct cgpu_stream *stream)
{
    (void)stream;
}

static inline void
quiet_sum(const struct cgpu_stream *stream, struct cgpu_unmarked *sum)
{
    (void)stream, (void)sum;
}

static inline uint64_t
quiet_held(const struct cgpu_gate_gpu *gpu)
{
    (void)gpu;
    return 0;
}

static inline bool
quiet_stop(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    (void)gpu, (void)now;
    return true;
}

static inline bool
quiet_awaits(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    (void)gpu, (void)now;
    return false;
}

static inline bool
quiet_is_behind_call(const struct cgpu_stream *stream)
{
    (void)stream;
    return false;
}

static inline void
quiet_ring(struct cgpu_gate_gpu *gpu)
{
    (void)gpu;
}

static inline bool
quiet_wake(struct cgpu_gate_gpu *gpu)
{
    (void)gpu;
    return false;
}

static const struct cgpu_gate_ops quiet_ops = {
    .put_marker = quiet_put_marker,
    .is_passed = quiet_is_flight,
    .is_lost = quiet_is_lost,
    .release = quiet_stream,
    .sum = quiet_sum,
    .count_held = quiet_held,
    .cut = quiet_stream,
    .stop = quiet_stop,
    .poll_host_calls = quiet_awaits,
    .is_behind_call = quiet_is_behind_call,
    .ring = quiet_ring,
    .wake = quiet_wake,
};

#endif
