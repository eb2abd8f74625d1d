/* What may wait for the program. */
#ifndef CGPU_CUDA_AWAIT_H
#define CGPU_CUDA_AWAIT_H

#include "compute/flow.h"

/* Streams may wait for the program from now on, unseen; or if such a node runs. */
void cgpu_await_note(void);
void cgpu_await_note_node(const int *parameters);

/* Under the lock: set streams of GPU in a host function apart. May others wait for the program
 * unseen? */
bool cgpu_await_look(struct cgpu_gate_gpu *gpu, uint64_t now);

/* Under the lock: whether STREAM was given a host function that has not returned. */
bool cgpu_await_is_behind(const struct cgpu_stream *stream);

#endif
