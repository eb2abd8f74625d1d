/* What may wait for the program. Under the lock. */
#ifndef CGPU_CUDA_AWAIT_H
#define CGPU_CUDA_AWAIT_H

#include "compute/flow.h"

/* The next host function that runs, from place *AT on; advances *AT. NULL: no more. */
struct cgpu_call *cgpu_await_next(uint32_t *at);

/* Whether STREAM was given a host function that has not returned. */
bool cgpu_await_is_behind(const struct cgpu_stream *stream);

#endif
