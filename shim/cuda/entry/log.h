/* One line to the container's log, rarely. */
#ifndef CGPU_CUDA_LOG_H
#define CGPU_CUDA_LOG_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "entry/driver.h"

enum cgpu_log {
    CGPU_LOG_MEMORY,
    CGPU_LOG_MANAGED,
    CGPU_LOG_CHECKPOINT,
    CGPU_LOG_LOCATION,
    CGPU_LOG_UNKNOWN,
    CGPU_LOG_STATE,
    CGPU_LOG_COMPUTE,
    CGPU_LOG_WHOLE,
    CGPU_LOG_KINDS
};

void cgpu_log_setup(void);

/* "cgpu: out of memory on GPU <index>: cap ..., used ..., asked ..." */
void cgpu_log_memory(int32_t gpu, uint64_t asked);

/*
 * If the host has found a wrong size: "cgpu: the size stated for a GPU ... is not its own: of ...
 * the cap is ...".
 */
void cgpu_log_misstated(void);

/* "cgpu: <text><detail>" */
void cgpu_log_text(enum cgpu_log kind, const char *text, const char *detail);

#endif
