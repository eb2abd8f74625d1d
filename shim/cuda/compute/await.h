/* What may wait for the program. */
#ifndef CGPU_CUDA_AWAIT_H
#define CGPU_CUDA_AWAIT_H

#include "compute/launch_state.h"

/*
 * Note that streams may wait for the program without our knowing: from now on; if such a node runs.
 */
void cgpu_await_note(void);
void cgpu_await_note_node(const int *parameters);

/* Called by the driver in place of the program's host function or callback: call that. */
void cgpu_await_run(void *data);
void cgpu_await_run_callback(CUstream stream, CUresult status, void *data);

/*
 * Put OURS in place of FUNCTION and DATA, if possible, before the driver is asked to call them when
 * STREAM gets there. Then cgpu_await_given gets the data that the driver was given, and its answer.
 */
void cgpu_await_replace(CUstream stream, bool per_thread, void *ours, void **function, void **data);
void cgpu_await_given(CUresult status, void *data);

/*
 * Under the lock: stall the streams of GPU that are in a host function. Returns whether others may
 * wait without our knowing.
 */
bool cgpu_await_poll(struct cgpu_gate_gpu *gpu, uint64_t now);

/* Under the lock: whether STREAM was given a host function that has not returned. */
bool cgpu_await_is_behind(const struct cgpu_stream *stream);

#endif
