/* Descriptors that keep physical memory alive. Under the lock of physical memory. */
#ifndef CGPU_CUDA_SHARE_H
#define CGPU_CUDA_SHARE_H

#include "entry/shim.h"

/* Is some descriptor of ALLOCATION still open here? */
bool cgpu_share_is_open(uint64_t allocation);

#endif
