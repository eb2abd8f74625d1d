/* What may wait for the program. Under the lock. */
#ifndef CGPU_CUDA_AWAIT_H
#define CGPU_CUDA_AWAIT_H

#include "compute/flow.h"

/* Set streams of GPU in a host function apart. May others wait for the program unseen? */
bool cgpu_await_look(struct cgpu_gate_gpu *gpu, uint64_t now);

/* Whether STREAM was given a host function that has not returned. */
bool cgpu_await_is_behind(const struct cgpu_stream *stream);

#endif
