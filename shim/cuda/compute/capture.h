/* Streams that begin to capture or join a capture, for the rows of hooks.def. */
#ifndef CGPU_CUDA_CAPTURE_H
#define CGPU_CUDA_CAPTURE_H

#include "compute/launch_state.h"

/*
 * A driver call may make STREAM capture: call prepare before it, and note after it. JOINS: the call
 * waits for an event, which may belong to a capture.
 */
void cgpu_capture_prepare(CUstream stream, bool per_thread, bool joins);
void cgpu_capture_note(CUstream stream, bool per_thread, bool joins);

#endif
