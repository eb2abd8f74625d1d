/* Threads for which there is no lane. */
#ifndef CGPU_CUDA_STRAY_H
#define CGPU_CUDA_STRAY_H

#include "compute/flow.h"

/* The calling thread, which has no lane, goes inside a launch on GPU. Under the lock. */
void cgpu_stray_enter(struct cgpu_gate_gpu *gpu);

/* The calling thread leaves, if it is a stray inside a launch. */
void cgpu_stray_leave(void);

/* The same for the thread TID, which is the caller or has ended. */
void cgpu_stray_forget(uint32_t tid);

/* Forget strays that have ended. Under the lock. */
void cgpu_stray_sweep(void);

/* Is any stray inside? acquire: if not, the driver has all that they have launched. */
static inline bool
cgpu_stray_some_inside(const struct cgpu_gate_gpu *gpu)
{
    return __atomic_load_n(&cgpu_flow_more(gpu)->strays, __ATOMIC_ACQUIRE) != 0;
}

/* May a stray have given the driver something after BEGUN? */
static inline bool
cgpu_stray_since(const struct cgpu_gate_gpu *gpu, uint64_t begun)
{
    return cgpu_stray_some_inside(gpu) ||
           __atomic_load_n(&cgpu_flow_more(gpu)->strayed_ns, __ATOMIC_RELAXED) > begun;
}

#endif
