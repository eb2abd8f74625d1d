/*
 * Where memory is to be. Memory on a device is charged; a locality domain (CUDA 13.4) is part of a
 * device. Memory on the host is free. Memory at any other location is refused.
 */
#ifndef CGPU_CUDA_LOCATION_H
#define CGPU_CUDA_LOCATION_H

#include <stdbool.h>

#include "entry/driver.h"

bool cgpu_location_is_host(const struct cgpu_mem_location *location);

/* Find the device of LOCATION. False: it is not on a device. */
bool cgpu_location_device(const struct cgpu_mem_location *location, CUdevice *device);

/*
 * Whether the entry point NAME may make memory of this type at LOCATION. NOT_SUPPORTED and a log
 * line: it is managed, or unknown to us. INVALID_VALUE: no driver knows it.
 */
CUresult cgpu_location_check(int allocation_type, const struct cgpu_mem_location *location,
                             const char *name);

/*
 * Find the GPU that has the imported memory behind HANDLE. CGPU_NO_GPU: none of ours, or HANDLE has
 * no properties; multicast objects may have none.
 */
CUresult cgpu_location_of_imported(CUmemGenericAllocationHandle handle, int32_t *gpu);

#endif
