/* Markers in the driver: putting them, seeing whether they have passed. All under the lock. */
#ifndef CGPU_CUDA_MARKER_H
#define CGPU_CUDA_MARKER_H

#include "compute/launch_state.h"

/* Whether STREAM captures, see cgpu_captures. */
bool cgpu_marker_captures(const struct cgpu_stream *stream);

/* Whether STREAM's markers are put into the legacy stream. */
bool cgpu_marker_is_by_legacy(const struct cgpu_stream *stream);

/*
 * Whether the driver reports that all work in HANDLE has ended. A capturing stream is not queried.
 */
bool cgpu_marker_has_ended(const struct cgpu_context_entry *context, CUstream handle);

/* Three functions of struct cgpu_gate_ops: put_marker, is_passed and is_lost. */
bool cgpu_marker_put(struct cgpu_stream *stream, uint32_t seq, uint32_t *kind);
bool cgpu_marker_is_passed(const struct cgpu_flight *flight);
bool cgpu_marker_is_lost(const struct cgpu_flight *flight, uint64_t now);

#endif
