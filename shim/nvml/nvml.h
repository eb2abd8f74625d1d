/*
 * The part of NVML's binary interface that the proxy (and the simulated library) uses: return
 * codes, and the layouts that the hooked functions fill in. Layouts are those of NVIDIA's own
 * Python binding (nvidia-ml-py), through which the tests read them.
 */
#ifndef CGPU_NVML_H
#define CGPU_NVML_H

#include <stdint.h>

enum nvml_return {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_RESET_REQUIRED = 16,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999
};

enum {
    NVML_UUID_SIZE = 96,          /* buffer for "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" */
    NVML_NO_INSTANCE = 0xffffffff /* GPU or compute instance id of a process outside MIG */
};

/* The version field of a versioned struct: its size and revision. */
#define NVML_STRUCT_VERSION(type, revision)                                                        \
    ((uint32_t)(sizeof(type) | ((uint32_t)(revision) << 24)))

struct nvml_device; /* the library's own; nvmlDevice_t is a pointer to it */

struct nvml_memory {
    uint64_t total;
    uint64_t free;
    uint64_t used; /* with what the driver reserves for itself */
};

struct nvml_memory_v2 {
    uint32_t version;
    uint64_t total;
    uint64_t reserved;
    uint64_t free;
    uint64_t used; /* without the reserved part */
};

struct nvml_bar1_memory {
    uint64_t total;
    uint64_t free;
    uint64_t used;
};

struct nvml_process_v1 {
    uint32_t pid;
    uint64_t used_bytes;
};

/* An entry of the _v2 and the _v3 list functions. */
struct nvml_process_v2 {
    uint32_t pid;
    uint64_t used_bytes;
    uint32_t gpu_instance;
    uint32_t compute_instance;
};

struct nvml_process_detail {
    uint32_t pid;
    uint64_t used_bytes;
    uint32_t gpu_instance;
    uint32_t compute_instance;
    uint64_t protected_bytes;
};

struct nvml_process_detail_list {
    uint32_t version;
    uint32_t mode; /* 0 compute, 1 graphics, 2 MPS */
    uint32_t count;
    struct nvml_process_detail *processes;
};

/* An entry of nvidia-smi's private list functions. Its name is the process's executable. */
struct nvml_named_process {
    struct nvml_process_detail detail;
    char name[4096];
};

/*
 * The private table of functions that nvidia-smi gets by TABLE_ID. Slot 0 holds its size in bytes,
 * the others hold functions. This was found with tables whose slots report their calls, which
 * nvidia-smi 535 and 550 were given. The slots used here are the same in both; the table of 550 is
 * longer (251 slots instead of 245).
 */
#define NVML_PRIVATE_TABLE_ID                                                                      \
    {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4}

enum {
    NVML_SLOT_SIZE = 0,
    NVML_SLOT_TOPOLOGY = 23,   /* f(one, other, uint32_t *level): for nvidia-smi topo */
    NVML_SLOT_MONITORING = 72, /* f(device, uint32_t *supported): for nvidia-smi pmon, dmon */
    NVML_SLOT_COMPUTE = 213,   /* f(device, uint32_t *count, struct nvml_named_process *) */
    NVML_SLOT_MPS = 214,       /* likewise */
    NVML_SLOT_GRAPHICS = 215,  /* likewise */
    NVML_PRIVATE_SLOTS_550 = 251
};

struct nvml_utilization {
    uint32_t gpu;
    uint32_t memory;
};

struct nvml_process_sample {
    uint32_t pid;
    uint64_t timestamp_us;
    uint32_t sm;
    uint32_t memory;
    uint32_t encoder;
    uint32_t decoder;
};

struct nvml_process_utilization {
    uint64_t timestamp_us;
    uint32_t pid;
    uint32_t sm;
    uint32_t memory;
    uint32_t encoder;
    uint32_t decoder;
    uint32_t jpeg;
    uint32_t optical_flow;
};

struct nvml_processes_utilization {
    uint32_t version;
    uint32_t count;
    uint64_t last_seen_us;
    struct nvml_process_utilization *processes;
};

struct nvml_accounting_stats {
    uint32_t gpu_utilization;
    uint32_t memory_utilization;
    uint64_t max_memory_bytes;
    uint64_t time_ms;
    uint64_t start_time_us;
    uint32_t is_running;
    uint32_t reserved[5];
};

struct nvml_field_value {
    uint32_t field;
    uint32_t scope;
    int64_t timestamp_us;
    int64_t latency_us;
    uint32_t value_type;
    int32_t result;
    union {
        double as_double;
        uint32_t as_uint32;
        uint64_t as_uint64;
        int64_t as_int64;
    } value;
};

#endif
