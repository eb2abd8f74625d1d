/* Streams that may wait for the program. */
#ifndef CGPU_CUDA_AWAIT_H
#define CGPU_CUDA_AWAIT_H

#include "compute/launch_state.h"

/*
 * Note that from now on streams may wait for the program unseen. _node: note it if the graph node
 * with these PARAMETERS may make them wait.
 */
void cgpu_await_note(void);
void cgpu_await_note_node(const int *parameters);

/*
 * The driver calls these in place of the program's host function or callback. They call the
 * program's in turn.
 */
void cgpu_await_run(void *data);
void cgpu_await_run_callback(CUstream stream, CUresult status, void *data);

/*
 * Before the driver is asked to call FUNCTION with DATA when STREAM gets there: put OURS and its
 * data in their place, if possible. Afterwards, pass cgpu_await_given the data that the driver got,
 * and its answer.
 */
void cgpu_await_replace(CUstream stream, bool per_thread, void *ours, void **function, void **data);
void cgpu_await_given(CUresult status, void *data);

/*
 * Under the lock: stall the streams of GPU that are in a host function. Returns whether other
 * streams may be waiting for the program unseen.
 */
bool cgpu_await_poll(struct cgpu_gate_gpu *gpu, uint64_t now);

/* Under the lock: whether STREAM was given a host function that has not returned. */
bool cgpu_await_is_behind(const struct cgpu_stream *stream);

#endif
