/* When a batch ends, how much may be in flight. Under the lock. */
#ifndef CGPU_CUDA_FLIGHT_H
#define CGPU_CUDA_FLIGHT_H

#include "compute/flow.h"

/* Whether BATCH of STREAM ends before a launch of NS; 0: nobody knows how long that takes. */
bool cgpu_flight_is_full(const struct cgpu_stream *stream, const struct cgpu_unmarked *batch,
                         uint64_t ns);

/*
 * May a launch of NS go into STREAM under the gate WORD? Ends the batch by a marker if it is FULL
 * (NULL: it is not) and the stream may have one more. 0: yes, else when to look again.
 */
uint64_t cgpu_flight_room(struct cgpu_stream *stream, uint32_t word,
                          const struct cgpu_unmarked *full, uint64_t ns, uint64_t now);

#endif
