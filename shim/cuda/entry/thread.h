/*
 * What one thread remembers. It has 32 bytes of initial-exec storage, which is scarce for libraries
 * that are loaded with dlopen.
 */
#ifndef CGPU_CUDA_THREAD_H
#define CGPU_CUDA_THREAD_H

#include <stdint.h>

#include "entry/driver.h"

struct cgpu_thread {
    CUcontext context; /* the current context when the rest was found out */
    uint64_t owner;
    uint32_t generation; /* cgpu_state.generation at that time */
    int32_t gpu;
    uint32_t charged; /* 0: the context could not be charged, try again */
    uint32_t depth;   /* 1: in a hook */
};

extern __thread struct cgpu_thread cgpu_thread __attribute__((tls_model("initial-exec")));

#endif
