/* What may wait for the program. */
#ifndef CGPU_CUDA_AWAIT_H
#define CGPU_CUDA_AWAIT_H

#include "compute/launch_state.h"

/* From now on streams may wait for the program without our knowing; or if such a node runs. */
void cgpu_await_note(void);
void cgpu_await_note_node(const int *parameters);

/* In place of a host function and of a callback: call it. */
void cgpu_await_run(void *data);
void cgpu_await_run_callback(CUstream stream, CUresult status, void *data);

/*
 * The program wants FUNCTION called with DATA when STREAM gets there: put OURS in its place, if
 * possible. Afterwards: what the driver was given, and its answer.
 */
void cgpu_await_replace(CUstream stream, bool per_thread, void *ours, void **function, void **data);
void cgpu_await_given(CUresult status, void *data);

/*
 * Under the lock: streams of GPU in a host function are stalled. Returns whether others may wait
 * without our knowing.
 */
bool cgpu_await_poll(struct cgpu_gate_gpu *gpu, uint64_t now);

/* Under the lock: whether STREAM was given a host function that has not returned. */
bool cgpu_await_is_behind(const struct cgpu_stream *stream);

#endif
