/* Threads: who is inside a launch. All but `forget` under the lock. */
#ifndef CGPU_CUDA_LANE_H
#define CGPU_CUDA_LANE_H

#include "compute/flow.h"

/*
 * The first lane of the thread TID, which has ended; or else a free one. NULL: CGPU_MAX_THREADS
 * threads have lanes.
 */
struct cgpu_lane *cgpu_lane_find(uint32_t tid);

/* Hand over what LANE and its thread's other lanes have summed up; from now on they are TID's. */
void cgpu_lane_reset(struct cgpu_lane *lane, uint32_t tid, uint64_t now);

/* The calling thread's context changes: the next launch takes the slow path. */
void cgpu_lane_forget(void);

/* From now on LANE takes part in the batch of STREAM, for a launch of KEY. */
void cgpu_lane_join(struct cgpu_lane *lane, struct cgpu_stream *stream, uint64_t key, uint64_t now);

/* Hand over what LANE has summed up to its stream. */
void cgpu_lane_hand_over(struct cgpu_lane *lane, uint64_t now);

/* The batch of STREAM is cut: no lane takes part in the next one yet. */
void cgpu_lane_cut(struct cgpu_stream *stream);

/* The next launch of each thread on GPU (NULL: on any) takes the slow path. */
void cgpu_lane_recall(const struct cgpu_gate_gpu *gpu);

/*
 * The same; also hand over what the lanes of GPU have summed up. False: some thread is still inside
 * a launch.
 */
bool cgpu_lane_stop(struct cgpu_gate_gpu *gpu, uint64_t now);

/* See sum, cut and held of struct cgpu_gate_outside. */
void cgpu_lane_sum(const struct cgpu_stream *stream, struct cgpu_unmarked *sum);
void cgpu_lane_end_batch(struct cgpu_stream *stream);
uint64_t cgpu_lane_launches(const struct cgpu_gate_gpu *gpu);

#endif
