/*
 * The host's clock. A container's processes and the arbiter exchange times by CLOCK_MONOTONIC of
 * the host. In a time namespace the process's own CLOCK_MONOTONIC has an offset.
 */
#ifndef CGPU_CUDA_HOST_CLOCK_H
#define CGPU_CUDA_HOST_CLOCK_H

#include <stdint.h>

/*
 * By how many ns this process's CLOCK_MONOTONIC is ahead of the host's; 0 if the kernel does not
 * report it (no /proc, or no time namespaces).
 */
int64_t cgpu_host_clock_ahead(void);

#endif
