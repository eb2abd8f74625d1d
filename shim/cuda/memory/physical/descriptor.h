/* Descriptors of physical memory that this process has exported; under that memory's lock. */
#ifndef CGPU_CUDA_DESCRIPTOR_H
#define CGPU_CUDA_DESCRIPTOR_H

#include <stdbool.h>
#include <stdint.h>

/* Whether some descriptor of ALLOCATION is still open here. */
bool cgpu_descriptor_is_open(uint64_t allocation);

/*
 * Record that FD keeps ALLOCATION alive. If the table is full, the charge is given back with the
 * last handle.
 */
void cgpu_descriptor_remember(int fd, uint64_t allocation);

/*
 * FD was just made, so an older descriptor with this number is closed: forget that one. Returns its
 * allocation; 0: there is none.
 */
uint64_t cgpu_descriptor_forget(int fd);

/* The allocation from which this process made the descriptor FD; 0: none. */
uint64_t cgpu_descriptor_allocation(int fd);

#endif
