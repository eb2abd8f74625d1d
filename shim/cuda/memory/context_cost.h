/* What a context costs. */
#ifndef CGPU_CUDA_CONTEXT_COST_H
#define CGPU_CUDA_CONTEXT_COST_H

#include "entry/shim.h"

/*
 * Whether a context on DEVICE can be charged. If DEVICE is not a GPU of the limits, returns the
 * driver's error for a device that does not exist.
 */
CUresult cgpu_context_check(CUdevice device, int32_t gpu);

/* Charge what a context costs on GPU. */
CUresult cgpu_context_charge(int32_t gpu, uint64_t *charged);

/* Keep CONTEXT with its charge. On failure the charge is released. */
CUresult cgpu_context_hold(CUcontext context, int32_t gpu, uint64_t charged);

#endif
