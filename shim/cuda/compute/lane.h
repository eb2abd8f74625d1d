/* Threads: who is inside a launch. All but `take` and `forget` under the lock. */
#ifndef CGPU_CUDA_LANE_H
#define CGPU_CUDA_LANE_H

#include "compute/flow.h"

/* The calling thread's first lane; NULL: CGPU_MAX_THREADS have theirs. */
struct cgpu_lane *cgpu_lane_take(void);

/* Of the thread whose first lane is FIRST: that for STREAM, or the one that is given up for it. */
struct cgpu_lane *cgpu_lane_for(struct cgpu_lane *first, CUstream stream);

/* The first lane of the thread that has LANE. */
struct cgpu_lane *cgpu_lane_first(struct cgpu_lane *lane);

/* The calling thread's context changes: the next launch takes the slow path. */
void cgpu_lane_forget(void);

/* From now on LANE, which has summed up nothing, takes part in the batch of STREAM. */
void cgpu_lane_join(struct cgpu_lane *lane, struct cgpu_stream *stream);

/* Hand over what LANE has summed up to its stream, or forget it. */
void cgpu_lane_hand_over(struct cgpu_lane *lane, uint64_t now);
void cgpu_lane_clear(struct cgpu_lane *lane);

/* The batch of STREAM is cut: no lane takes part in the next one as yet. */
void cgpu_lane_cut(struct cgpu_stream *stream);

/* Give back what threads that have ended had, tell how many there are: once a second, or now. */
void cgpu_lane_sweep(uint64_t now);
void cgpu_lane_sweep_now(uint64_t now);

/*
 * From now on every launch on GPU takes the slow path, and what its lanes have summed up is handed
 * over. False: some thread is still inside a launch.
 */
bool cgpu_lane_stop(int32_t gpu, uint64_t now);

/* From now on no thread launches under a free gate without a look at the stream. */
void cgpu_lane_unfree(void);

/* All threads on GPU look at the gate word at GATE from now on. */
void cgpu_lane_redirect(int32_t gpu, const uint32_t *gate);

uint64_t cgpu_lane_distance(const uint32_t *gate);

/* See sum, cut and held of struct cgpu_gate_outside. */
void cgpu_lane_sum(const struct cgpu_stream *stream, struct cgpu_unmarked *sum);
void cgpu_lane_end_batch(struct cgpu_stream *stream);
uint64_t cgpu_lane_launches(const struct cgpu_gate_gpu *gpu);

#endif
