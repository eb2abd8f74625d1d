/* Where memory lies. */
#include "memory/location.h"
#include "entry/shim.h"

bool
cgpu_location_is_host(const struct cgpu_mem_location *location)
{
    return location->type >= CU_LOCATION_HOST && location->type <= CU_LOCATION_HOST_NUMA_CURRENT;
}

bool
cgpu_location_device(const struct cgpu_mem_location *location, CUdevice *device)
{
    bool domain = location->type == CU_LOCATION_LOCALITY_DOMAIN;
    *device = domain ? location->id & 0xff : location->id;
    return domain || location->type == CU_LOCATION_DEVICE;
}

CUresult
cgpu_location_check(int allocation_type, const struct cgpu_mem_location *location, const char *name)
{
    CUdevice device;
    if (allocation_type == CU_ALLOCATION_MANAGED) {
        return cgpu_reject(CGPU_REJECT_MANAGED, name);
    }
    if (allocation_type < CU_ALLOCATION_PINNED || location->type < CU_LOCATION_DEVICE) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (allocation_type > CU_ALLOCATION_MANAGED ||
        (!cgpu_location_is_host(location) && !cgpu_location_device(location, &device))) {
        return cgpu_reject(CGPU_REJECT_UNKNOWN, name);
    }
    return CUDA_SUCCESS;
}

CUresult
cgpu_location_of_imported(CUmemGenericAllocationHandle handle, int32_t *gpu)
{
    struct cgpu_mem_properties properties = {0};
    CUdevice device;
    *gpu = CGPU_NO_GPU;
    if (cgpu_real.cuMemGetAllocationPropertiesFromHandle(&properties, handle) != CUDA_SUCCESS ||
        properties.location.type < CU_LOCATION_DEVICE ||
        properties.location.type == CU_LOCATION_INVISIBLE) {
        return CUDA_SUCCESS;
    }
    CUresult status = cgpu_location_check(properties.type, &properties.location,
                                          "cuMemImportFromShareableHandle");
    if (status == CUDA_SUCCESS && cgpu_location_device(&properties.location, &device)) {
        *gpu = cgpu_device_gpu(device);
    }
    return status;
}
