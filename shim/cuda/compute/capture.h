/* Streams that begin to capture or join a capture, for the rows of hooks.def. */
#ifndef CGPU_CUDA_CAPTURE_H
#define CGPU_CUDA_CAPTURE_H

#include "compute/flow.h"

/* STREAM is to begin a capture in the call that follows; it was to. */
void cgpu_capture_begin(CUstream stream, bool per_thread);
void cgpu_capture_begun(CUstream stream, bool per_thread);

/* STREAM is to wait for an event in the call that follows, which may be one of a capture. */
void cgpu_capture_join(CUstream stream, bool per_thread);
void cgpu_capture_joined(CUstream stream, bool per_thread);

/* Does STREAM, by its HANDLE, capture? Under the lock. */
bool cgpu_capture_is_on(struct cgpu_stream *stream, CUstream handle);

#endif
