/* Threads: who is inside a launch. All but `forget` under the lock. */
#ifndef CGPU_CUDA_BATCH_SLOT_H
#define CGPU_CUDA_BATCH_SLOT_H

#include "compute/launch_state.h"

/*
 * The first slot of the thread TID, which has ended; or else a free one. NULL: CGPU_MAX_THREADS
 * threads have slots.
 */
struct cgpu_batch_slot *cgpu_batch_slot_find(uint32_t tid);

/* Hand over what SLOT and its thread's other slots have summed up; from now on they are TID's. */
void cgpu_batch_slot_reset(struct cgpu_batch_slot *slot, uint32_t tid, uint64_t now);

/* The calling thread's context changes: the next launch takes the slow path. */
void cgpu_batch_slot_forget(void);

/* From now on SLOT takes part in the batch of STREAM, for a launch of KEY. */
void cgpu_batch_slot_join(struct cgpu_batch_slot *slot, struct cgpu_stream *stream, uint64_t key,
                          uint64_t now);

/* Hand over what SLOT has summed up to its stream. */
void cgpu_batch_slot_hand_over(struct cgpu_batch_slot *slot, uint64_t now);

/* The batch of STREAM is cut: no slot takes part in the next one yet. */
void cgpu_batch_slot_cut(struct cgpu_stream *stream);

/* The next launch of each thread on GPU (NULL: on any) takes the slow path. */
void cgpu_batch_slot_recall(const struct cgpu_gate_gpu *gpu);

/*
 * The same; also hand over what the slots of GPU have summed up. False: some thread is still inside
 * a launch.
 */
bool cgpu_batch_slot_stop(struct cgpu_gate_gpu *gpu, uint64_t now);

/* See sum, cut and held of struct cgpu_gate_ops. */
void cgpu_batch_slot_sum(const struct cgpu_stream *stream, struct cgpu_unmarked *sum);
void cgpu_batch_slot_end_batch(struct cgpu_stream *stream);
uint64_t cgpu_batch_slot_count_launches(const struct cgpu_gate_gpu *gpu);

#endif
