/* Streams that begin to capture or join a capture, for the rows of hooks.def. */
#ifndef CGPU_CUDA_CAPTURE_H
#define CGPU_CUDA_CAPTURE_H

#include "compute/launch_state.h"

/*
 * Call prepare before, and note after, a driver call by which STREAM may begin a capture. JOINS: it
 * waits for an event, which may belong to a capture.
 */
void cgpu_capture_prepare(CUstream stream, bool per_thread, bool joins);
void cgpu_capture_note(CUstream stream, bool per_thread, bool joins);

#endif
