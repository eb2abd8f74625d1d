/*
 * The limits page: what one container may take. Written by the host, mapped read-only by the
 * container's processes, changed in place while they run (aligned 8-byte stores).
 */
#ifndef CGPU_LIMITS_H
#define CGPU_LIMITS_H

#include <stdint.h>

/* cffi: begin */
enum {
    CGPU_MAX_GPUS = 32,
    CGPU_ID_SIZE = 80,
    CGPU_LIMITS_MAGIC = 0x4d494c43, /* the bytes "CLIM" */
    CGPU_LIMITS_VERSION = 1,
    CGPU_LIMITS_PASS_UNKNOWN = 1 /* flags: hand out driver entry points unknown to this release */
};

struct cgpu_limits_gpu {
    uint8_t uuid[16];       /* the bytes behind GPU-xxxxxxxx-xxxx-... */
    uint64_t cap_bytes;     /* what the container may hold on this GPU */
    uint64_t total_bytes;   /* the GPU's memory as NVML reports it */
    uint64_t context_bytes; /* what one CUDA context costs, measured by the host; 0: unknown */
    uint32_t index;         /* the GPU's index on the host */
    uint32_t reserved0;
    uint64_t reserved[2];
};

struct cgpu_limits {
    uint32_t magic;
    uint32_t version;
    uint32_t size; /* sizeof(struct cgpu_limits) of the writer */
    uint32_t gpu_count;
    uint32_t weight; /* 1..max_inst */
    uint32_t high_priority;
    uint32_t policy;
    uint32_t flags;
    char id[CGPU_ID_SIZE];                      /* container or session id, NUL-terminated */
    struct cgpu_limits_gpu gpus[CGPU_MAX_GPUS]; /* in the order of the visible list */
};
/* cffi: end */

#endif
