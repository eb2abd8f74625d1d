/*
 * The gate in the launch path. Everything that puts work for the GPU into a stream goes through
 * here.
 *
 *     CUresult status = cgpu_launch_begin(stream, real == cgpu_real.cuX_ptsz, key, guess, NULL);
 *     if (status != CUDA_SUCCESS) {
 *         return status;
 *     }
 *     status = real(...);
 *     cgpu_launch_end();
 *     return status;
 *
 * begin waits while the gate is closed or too much is in flight, and counts the launch. Between
 * begin and end the thread must not wait for the GPU or for another thread, because the gate counts
 * as closed only when every thread has left. Both take a few nanoseconds as long as nothing
 * changes. The kernel entry points in launch.c do the same in one piece.
 */
#ifndef CGPU_CUDA_LAUNCH_H
#define CGPU_CUDA_LAUNCH_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "entry/driver.h"
#include "gate/pace.h"

/*
 * Begin one launch into STREAM, as the program passed it.
 *
 * PER_THREAD: a STREAM of NULL means the thread's own default stream.
 *
 * KEY (cgpu_pace_key): identifies work that takes the same time at every launch.
 *
 * GUESS_NS: the time assumed until KEY has been measured; 0: measure it alone.
 *
 * HELD: a lock of the caller's, or NULL. It is released while the thread waits at a gate, so that
 * it does not block threads that use another GPU.
 *
 * NOT_PERMITTED: there is no room for this process's work; do not launch.
 *
 * NOT_READY: HELD was released meanwhile; check again what it protects, and retry.
 */
CUresult cgpu_launch_begin(CUstream stream, bool per_thread, uint64_t key, uint64_t guess_ns,
                           pthread_mutex_t *held);

/* Call this after every begin that returned CUDA_SUCCESS, whatever the driver returned. */
void cgpu_launch_end(void);

#endif
