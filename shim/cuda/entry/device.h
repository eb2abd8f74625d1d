/* The GPUs of the limits, as the driver numbers its devices. */
#ifndef CGPU_CUDA_DEVICE_H
#define CGPU_CUDA_DEVICE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "entry/driver.h"

/* Place of DEVICE in the limits, or CGPU_NO_GPU. */
int32_t cgpu_device_gpu(CUdevice device);

/* A device whose place is GPU; it was asked for before. */
CUdevice cgpu_device_of(int32_t gpu);

/* The cap on GPU now; 0 for CGPU_NO_GPU. */
uint64_t cgpu_device_cap(int32_t gpu);

/* What of the cap is the ledger's: without what is held around it, which is the other. */
uint64_t cgpu_device_room(int32_t gpu);
uint64_t cgpu_device_outside(int32_t gpu);

#endif
