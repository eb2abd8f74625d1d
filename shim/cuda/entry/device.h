/* The GPUs of the limits, as the driver numbers its devices. */
#ifndef CGPU_CUDA_DEVICE_H
#define CGPU_CUDA_DEVICE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "entry/driver.h"

/* The GPU's number in the limits, or CGPU_NO_GPU. */
int32_t cgpu_device_gpu(CUdevice device);

/* A device that is GPU; cgpu_device_gpu was asked for it before. */
CUdevice cgpu_device_of(int32_t gpu);

/* The cap on GPU now; 0 for CGPU_NO_GPU. */
uint64_t cgpu_device_cap(int32_t gpu);

/* The part of the cap that is left for the ledger. */
uint64_t cgpu_device_room(int32_t gpu);

#endif
