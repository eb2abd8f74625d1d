/* Physical memory: who refers to it. */
#ifndef CGPU_CUDA_PHYSICAL_H
#define CGPU_CUDA_PHYSICAL_H

#include "entry/shim.h"

/*
 * The serial of the allocation behind HANDLE; 0: it is not ours. Under the lock of physical memory.
 */
uint64_t cgpu_physical_of(uint64_t handle);
void cgpu_physical_keep(uint64_t allocation); /* one more reference */
void cgpu_physical_drop(uint64_t allocation); /* one less; the last one gives the charge back */
bool cgpu_physical_alias(uint64_t handle, uint64_t allocation); /* HANDLE is another reference */

/* Under the lock: record that HANDLE was imported; record that ALLOCATION was exported. */
CUresult cgpu_physical_import(uint64_t handle);
void cgpu_physical_export(uint64_t allocation);

/* Take the lock of physical memory, and give back what no descriptor keeps alive any more. */
void cgpu_physical_collect(void);

/* Under the lock: give ALLOCATION back if no descriptor keeps it alive any more. */
void cgpu_physical_collect_one(uint64_t allocation);

/* ARRAY is gone: drop the references of what was mapped into it. */
void cgpu_physical_array_gone(uint64_t array);

#endif
