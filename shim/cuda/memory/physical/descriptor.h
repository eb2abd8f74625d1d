/* Descriptors of physical memory that this process has exported; under that memory's lock. */
#ifndef CGPU_CUDA_DESCRIPTOR_H
#define CGPU_CUDA_DESCRIPTOR_H

#include <stdbool.h>
#include <stdint.h>

/* Whether some descriptor of ALLOCATION is still open here. */
bool cgpu_descriptor_is_open(uint64_t allocation);

/*
 * Record that FD keeps ALLOCATION alive. If there is no room for that, the charge is given back
 * with the last handle.
 */
void cgpu_descriptor_remember(int fd, uint64_t allocation);

/*
 * Forget an older descriptor with the number FD, which was just made, so that one is closed.
 * Returns its allocation; 0: there is none.
 */
uint64_t cgpu_descriptor_forget(int fd);

/* The allocation that descriptor FD was made from in this process; 0: none. */
uint64_t cgpu_descriptor_allocation(int fd);

#endif
