/*
 * The few types and values of the CUDA driver interface that the hooks use, declared in our own words.
 *
 * Handles are opaque pointers. Only what the binary interface fixes is here: sizes, order of fields and
 * numbers; `_v1` structures are those of the 32-bit entry points, which 64-bit drivers still export.
 */
#ifndef CGPU_CUDA_DRIVER_H
#define CGPU_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned int CUdeviceptr_v1;
typedef struct CUctx_st *CUcontext;
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUstream_st *CUstream;
typedef struct CUarray_st *CUarray;
typedef struct CUmipmappedArray_st *CUmipmappedArray;
typedef struct CUdevResourceDesc_st *CUdevResourceDesc;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801
};

/* CUdevice_attribute */
enum {
    CU_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_ATTRIBUTE_THREADS_PER_MULTIPROCESSOR = 39,
    CU_ATTRIBUTE_MANAGED_MEMORY = 83,
    CU_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS = 88,
    CU_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS = 89,
    CU_ATTRIBUTE_PAGEABLE_USES_HOST_PAGE_TABLES = 100,
    CU_ATTRIBUTE_DIRECT_MANAGED_ACCESS_FROM_HOST = 101
};

/* CUlimit */
enum { CU_LIMIT_STACK_SIZE = 0, CU_LIMIT_PRINTF_FIFO_SIZE = 1, CU_LIMIT_MALLOC_HEAP_SIZE = 2 };

/* CUdriverProcAddressQueryResult */
enum { CU_PROC_ADDRESS_NOT_FOUND = 1 };

/* Flags of a three-dimensional array descriptor. */
enum {
    CU_ARRAY3D_LAYERED = 0x01,
    CU_ARRAY3D_CUBEMAP = 0x04,
    CU_ARRAY3D_SPARSE = 0x40,
    CU_ARRAY3D_DEFERRED_MAPPING = 0x80
};

struct cgpu_cuda_uuid {
    uint8_t bytes[16];
};

struct cgpu_array_descriptor_v1 {
    unsigned int width, height;
    int format;
    unsigned int channels;
};

struct cgpu_array_descriptor {
    size_t width, height;
    int format;
    unsigned int channels;
};

struct cgpu_array3d_descriptor_v1 {
    unsigned int width, height, depth;
    int format;
    unsigned int channels, flags;
};

struct cgpu_array3d_descriptor {
    size_t width, height, depth;
    int format;
    unsigned int channels, flags;
};

struct cgpu_array_requirements {
    size_t size, alignment;
    unsigned int reserved[4];
};

/* CUmemLocationType and CUmemAllocationType values, and the properties of physical memory. */
enum { CU_LOCATION_DEVICE = 1, CU_ALLOCATION_PINNED = 1 };

struct cgpu_mem_location {
    int type;
    int id;
};

struct cgpu_mem_properties {
    int type;
    int handle_types;
    struct cgpu_mem_location location;
    void *win32_metadata;
    struct {
        unsigned char compression, rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
};

_Static_assert(sizeof(struct cgpu_array3d_descriptor) == 40, "CUDA_ARRAY3D_DESCRIPTOR is 40 bytes");
_Static_assert(sizeof(struct cgpu_mem_properties) == 32, "CUmemAllocationProp is 32 bytes");

#endif
