/* The slow path of a launch: gate, batch, room. */
#ifndef CGPU_CUDA_ENTER_H
#define CGPU_CUDA_ENTER_H

#include "compute/launch_state.h"

/* The slow path of a launch: see launch.h. HELD: a lock to release while the thread waits. */
CUresult cgpu_enter(CUstream stream, uint64_t key, uint64_t guess_ns, pthread_mutex_t *held);

#endif
