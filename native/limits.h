/*
 * The limits: what one container may take. The host writes them; the container's processes map them
 * read-only. The host changes them in place while those processes run, with aligned 8-byte stores.
 */
#ifndef CGPU_LIMITS_H
#define CGPU_LIMITS_H

#include <stdint.h>

/* cffi: begin */
enum {
    CGPU_MAX_GPUS = 32,
    CGPU_ID_SIZE = 80,
    CGPU_LIMITS_MAGIC = 0x4d494c43, /* the bytes "CLIM" */
    CGPU_LIMITS_VERSION = 2,
    CGPU_RELEASE_SIZE = 16,
    CGPU_METERED = 1,             /* metered: measured_ppm and charged_ns are being kept */
    CGPU_METERED_ROUGHLY = 2,     /* metered: programs run at once, so use is estimated */
    CGPU_METERED_SLICED = 4,      /* metered: it launches far ahead, to fill its time slices */
    CGPU_METERED_TOGETHER = 8,    /* metered: how long its work takes now shows nothing */
    CGPU_METERED_SPANS = 16,      /* metered: all the time that its work takes counts as use */
    CGPU_LIMITS_PASS_UNKNOWN = 1, /* flags: hand out driver entry points unknown to this release */
    CGPU_LIMITS_MISSTATED = 2     /* flags: a cap is part of a whole that the GPU has not */
};

struct cgpu_limits_gpu {
    uint8_t uuid[16];       /* the bytes behind GPU-xxxxxxxx-xxxx-... */
    uint64_t cap_bytes;     /* what the container may hold on this GPU */
    uint64_t total_bytes;   /* the GPU's memory as NVML reports it */
    uint64_t context_bytes; /* what one CUDA context costs, measured by the host; 0: unknown */
    uint32_t index;         /* the GPU's index on the host */
    uint32_t reserved0;
    uint64_t outside_bytes; /* held outside the ledger, by the host's audit; part of use */
    uint64_t reserved;

    /* Compute: a cache line of its own, written at every turn. */
    uint32_t gate;         /* futex word: may the container launch? see gate.h */
    uint32_t share_ppm;    /* of the GPU's time when nobody arbitrates, in millionths */
    uint32_t offset_ppm;   /* where that part of the fallback period begins */
    uint32_t measured_ppm; /* of the GPU's time, charged in the last second; see metered */
    uint64_t heartbeat_ns; /* host's CLOCK_MONOTONIC when the arbiter last lived; 0: never */
    uint64_t charged_ns;   /* GPU time charged since the arbiter took the container on */
    uint32_t metered;      /* CGPU_METERED, and how well; 0 while FREE */
    uint32_t limit_ppm;    /* the most that it may have while others compete, as computed last */
    uint64_t throttled_ns; /* time in which its threads were seen to wait at its closed gate */
    uint64_t waits;        /* how often such waiting began */
    uint32_t quiet_gate;   /* gate word of a turn that began while others had nothing in flight */
    uint32_t compute_reserved;
};

/* In every version, magic, version, size, id and release have the same offset. */
struct cgpu_limits {
    uint32_t magic;
    uint32_t version;
    uint32_t size; /* sizeof(struct cgpu_limits) of the writer */
    uint32_t gpu_count;
    uint32_t weight; /* 1..max_inst; 0: it was promised no time */
    uint32_t high_priority;
    uint32_t policy;
    uint32_t flags;
    char id[CGPU_ID_SIZE];                      /* container or session id, NUL-terminated */
    char release[CGPU_RELEASE_SIZE];            /* that made the container; empty: 0.1.0 */
    struct cgpu_limits_gpu gpus[CGPU_MAX_GPUS]; /* in the order of the visible list */
};
/* cffi: end */

#endif
