/*
 * The slots of threads: what each thread has launched without the lock, and whether it is inside a
 * launch. All functions but `forget` are called under the lock.
 */
#ifndef CGPU_CUDA_BATCH_SLOT_H
#define CGPU_CUDA_BATCH_SLOT_H

#include "compute/launch_state.h"

/*
 * The first slot of the ended thread TID; if there is none, a free slot. NULL: CGPU_MAX_THREADS
 * threads have slots.
 */
struct cgpu_batch_slot *cgpu_batch_slot_find(uint32_t tid);

/*
 * Add what SLOT and the other slots of its thread have summed up to their streams. Then give the
 * slots to TID.
 */
void cgpu_batch_slot_reset(struct cgpu_batch_slot *slot, uint32_t tid, uint64_t now);

/* The calling thread's context changes: make its next launch take the slow path. */
void cgpu_batch_slot_forget(void);

/* Let SLOT take part in the batch of STREAM from now on, beginning with a launch of KEY. */
void cgpu_batch_slot_join(struct cgpu_batch_slot *slot, struct cgpu_stream *stream, uint64_t key,
                          uint64_t now);

/* Add what SLOT has summed up to its stream. */
void cgpu_batch_slot_hand_over(struct cgpu_batch_slot *slot, uint64_t now);

/* End the batch of STREAM. No slot takes part in the next one yet. */
void cgpu_batch_slot_cut(struct cgpu_stream *stream);

/* Make the next launch of each thread on GPU (NULL: on any) take the slow path. */
void cgpu_batch_slot_recall(const struct cgpu_gate_gpu *gpu);

/*
 * Recall the slots of GPU, and add what they have summed up to their streams. False: some thread is
 * still inside a launch.
 */
bool cgpu_batch_slot_stop(struct cgpu_gate_gpu *gpu, uint64_t now);

/* Three functions of struct cgpu_gate_ops: sum, cut and count_held. */
void cgpu_batch_slot_sum(const struct cgpu_stream *stream, struct cgpu_unmarked *sum);
void cgpu_batch_slot_end_batch(struct cgpu_stream *stream);
uint64_t cgpu_batch_slot_count_launches(const struct cgpu_gate_gpu *gpu);

#endif
