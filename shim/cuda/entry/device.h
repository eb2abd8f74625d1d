/* The GPUs of the limits, as the driver numbers its devices. */
#ifndef CGPU_CUDA_DEVICE_H
#define CGPU_CUDA_DEVICE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "entry/driver.h"

/* The GPU's number in the limits, or CGPU_NO_GPU. */
int32_t cgpu_device_gpu(CUdevice device);

/* A device of the driver that is GPU; cgpu_device_gpu must have been asked for it before. */
CUdevice cgpu_device_of(int32_t gpu);

/* The cap on GPU at this moment; 0 for CGPU_NO_GPU. */
uint64_t cgpu_device_cap(int32_t gpu);

/* The most that the ledger may add up to on GPU: the cap less what is held outside. */
uint64_t cgpu_device_room(int32_t gpu);

#endif
