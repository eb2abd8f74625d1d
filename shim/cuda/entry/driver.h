/*
 * The few types and values of the CUDA driver interface that the hooks use, in our own words.
 *
 * Handles are opaque pointers. Only what the binary interface fixes is here: sizes, order of fields
 * and numbers; `_v1` structures are those of the 32-bit entry points, which 64-bit drivers still
 * export.
 */
#ifndef CGPU_CUDA_DRIVER_H
#define CGPU_CUDA_DRIVER_H

#include <stdbool.h>
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
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUlib_st *CUlibrary;
typedef struct CUfunc_st *CUfunction;
typedef struct CUkern_st *CUkernel;
typedef unsigned long long CUmemGenericAllocationHandle;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_UNSUPPORTED_LIMIT = 215,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
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
    CU_ATTRIBUTE_DIRECT_MANAGED_ACCESS_FROM_HOST = 101,
    CU_ATTRIBUTE_BLOCKS_PER_MULTIPROCESSOR = 106,
    CU_ATTRIBUTE_MEMORY_POOLS = 115
};

/* CUlimit */
enum {
    CU_LIMIT_STACK_SIZE = 0,
    CU_LIMIT_PRINTF_FIFO_SIZE = 1,
    CU_LIMIT_MALLOC_HEAP_SIZE = 2,
    CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH = 3,
    CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT = 4,
    CU_LIMIT_MAX_L2_FETCH_GRANULARITY = 5,
    CU_LIMIT_PERSISTING_L2_CACHE_SIZE = 6,
    CU_LIMIT_SHMEM_SIZE = 7,
    CU_LIMIT_CIG_ENABLED = 8,
    CU_LIMIT_CIG_SHMEM_FALLBACK_ENABLED = 9,
    CU_LIMIT_PER_BLOCK_MEMORY_SIZE = 10
};

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
enum { CU_ALLOCATION_PINNED = 1, CU_ALLOCATION_MANAGED = 2 };
enum {
    CU_LOCATION_DEVICE = 1,
    CU_LOCATION_HOST = 2,
    CU_LOCATION_HOST_NUMA = 3,
    CU_LOCATION_HOST_NUMA_CURRENT = 4,
    CU_LOCATION_INVISIBLE = 5, /* of imported memory: on a device that the process cannot see */
    CU_LOCATION_LOCALITY_DOMAIN = 6 /* the id's first byte is the device */
};

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

struct cgpu_pool_properties {
    int type;
    int handle_types;
    struct cgpu_mem_location location;
    void *win32_security;
    size_t maximum;
    unsigned short usage;
    unsigned char reserved[54];
};

/* CUmemPool_attribute, CUgraphMem_attribute */
enum {
    CU_POOL_RELEASE_THRESHOLD = 4,
    CU_POOL_RESERVED_CURRENT = 5,
    CU_POOL_USED_CURRENT = 7,
    CU_POOL_LOCATION_ID = 11,
    CU_POOL_LOCATION_TYPE = 12,
    CU_POOL_MAXIMUM = 13
};
enum { CU_GRAPH_MEMORY_RESERVED_CURRENT = 2 };

/* Streams with a fixed handle; CUstreamCaptureStatus and CUstreamCaptureMode values. */
#define CU_STREAM_LEGACY_DEFAULT     ((CUstream)1)
#define CU_STREAM_PER_THREAD_DEFAULT ((CUstream)2)
enum { CU_CAPTURE_NONE = 0, CU_CAPTURE_RELAXED = 2 };

/*
 * The stream that a program means by STREAM. PER_THREAD: NULL means the thread's own default
 * stream.
 */
static inline CUstream
cgpu_stream_meant(CUstream stream, bool per_thread)
{
    if (stream != NULL) {
        return stream;
    }
    return per_thread ? CU_STREAM_PER_THREAD_DEFAULT : CU_STREAM_LEGACY_DEFAULT;
}

/* CUlaunchConfig, CUDA_LAUNCH_PARAMS */
struct cgpu_launch_config {
    unsigned int grid[3], block[3], shared_bytes;
    CUstream stream;
    void *attributes;
    unsigned int attribute_count;
};

struct cgpu_launch_parameters {
    CUfunction function;
    unsigned int grid[3], block[3], shared_bytes;
    CUstream stream;
    void **parameters;
};

/* CUmemAllocationHandleType, CUarrayMapInfo */
enum { CU_HANDLE_POSIX_FD = 1, CU_HANDLE_FABRIC = 8 };
enum { CU_MAP_OPERATION_UNMAP = 2 };

struct cgpu_ipc_handle {
    unsigned char bytes[64];
};

struct cgpu_array_map {
    int resource_type;
    uint64_t resource; /* array or mipmapped array */
    int subresource_type;
    uint64_t subresource[4];
    int operation;
    int handle_type;
    uint64_t handle;
    uint64_t offset;
    unsigned int device_mask, flags, reserved[2];
};

/* CUgraphNodeType, CUgraphNodeParams, CUDA_MEM_ALLOC_NODE_PARAMS */
enum { CU_NODE_GRAPH = 4, CU_NODE_MEM_ALLOC = 10, CU_NODE_CONDITIONAL = 13 };

struct cgpu_node_alloc {
    struct cgpu_pool_properties pool;
    const void *access;
    size_t access_count, bytes;
    CUdeviceptr address;
};

struct cgpu_node_parameters {
    int type;
    int reserved[3];
    struct cgpu_node_alloc alloc; /* if the type says so; there are other types */
};

/* CUpointer_attribute, CUfunction_attribute */
enum { CU_POINTER_IS_MANAGED = 8, CU_POINTER_DEVICE_ORDINAL = 9 };
enum { CU_FUNCTION_LOCAL_BYTES = 3 };

_Static_assert(sizeof(struct cgpu_pool_properties) == 88, "CUmemPoolProps is 88 bytes");
_Static_assert(sizeof(struct cgpu_array_map) == 96, "CUarrayMapInfo is 96 bytes");
_Static_assert(offsetof(struct cgpu_array_map, operation) == 56, "its operation is at 56");
_Static_assert(sizeof(struct cgpu_node_alloc) == 120, "CUDA_MEM_ALLOC_NODE_PARAMS is 120 bytes");
_Static_assert(offsetof(struct cgpu_node_parameters, alloc) == 16, "node parameters begin at 16");
_Static_assert(sizeof(struct cgpu_array3d_descriptor) == 40, "CUDA_ARRAY3D_DESCRIPTOR is 40 bytes");
_Static_assert(sizeof(struct cgpu_mem_properties) == 32, "CUmemAllocationProp is 32 bytes");

_Static_assert(offsetof(struct cgpu_launch_config, stream) == 32, "CUlaunchConfig.hStream");
_Static_assert(offsetof(struct cgpu_launch_parameters, stream) == 40, "CUDA_LAUNCH_PARAMS.hStream");
_Static_assert(sizeof(struct cgpu_launch_parameters) == 56, "CUDA_LAUNCH_PARAMS is 56 bytes");

#endif
