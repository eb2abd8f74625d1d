/* The helper thread that drains, and drives the fallback. */
#ifndef CGPU_CUDA_MONITOR_H
#define CGPU_CUDA_MONITOR_H

#include "compute/flow.h"

enum cgpu_monitor_state { CGPU_MONITOR_NONE, CGPU_MONITOR_RUNS, CGPU_MONITOR_FAILED };

/* When the library is loaded. */
void cgpu_monitor_setup(void);

/*
 * Under the lock, at a launch or synchronisation: create the helper thread if need be. True: there
 * is one. False: the calling thread has done the helper's work for closed gates.
 */
bool cgpu_monitor_attend(uint64_t now);

/* Under the lock: there is one more GPU to look after. */
void cgpu_monitor_wake(void);

/* Under the lock: use the process's own gate if nobody arbitrates GPU NUMBER; when to look again.
 */
uint64_t cgpu_monitor_arbitrated(uint32_t number, uint64_t now);

#endif
