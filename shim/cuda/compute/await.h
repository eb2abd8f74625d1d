/* What may wait for the program. */
#ifndef CGPU_CUDA_AWAIT_H
#define CGPU_CUDA_AWAIT_H

#include "compute/flow.h"

/* Streams may wait for the program from now on, unseen; or if such a node runs. */
void cgpu_await_note(void);
void cgpu_await_note_node(const int *parameters);

/*
 * FUNCTION is to be called with DATA when STREAM gets there: put ours in its place, if possible.
 * What the driver was given then, and what it said.
 */
void cgpu_await_function(CUstream stream, bool per_thread, void **function, void **data);
void cgpu_await_callback(CUstream stream, bool per_thread, void **function, void **data);
void cgpu_await_given(CUresult status, void *data);

/* Under the lock: set streams of GPU in a host function apart. May others wait, unseen? */
bool cgpu_await_look(struct cgpu_gate_gpu *gpu, uint64_t now);

/* Under the lock: whether STREAM was given a host function that has not returned. */
bool cgpu_await_is_behind(const struct cgpu_stream *stream);

#endif
