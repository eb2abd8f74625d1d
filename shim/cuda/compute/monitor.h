/* The helper thread that drains, and drives the fallback. */
#ifndef CGPU_CUDA_MONITOR_H
#define CGPU_CUDA_MONITOR_H

#include "compute/launch_state.h"

/* Call this when the library is loaded. */
void cgpu_monitor_setup(void);

/*
 * Under the lock, at a launch or synchronisation: create the helper thread if there is none. True:
 * there is one. False: there is none, and the calling thread has done its work.
 */
bool cgpu_monitor_attend(uint64_t now);

/* Under the lock: note that the process has work on GPU NUMBER from now on. */
void cgpu_monitor_add(uint32_t number, uint64_t now);

#endif
