/* The gate in the launch path: see launch.h. */
#include "launch.h"

#include "shim.h"

CUresult
cgpu_launch_begin(CUstream stream, bool per_thread, uint64_t key, uint64_t guess_ns)
{
    (void)stream, (void)per_thread, (void)key, (void)guess_ns;
    return CUDA_SUCCESS;
}

void
cgpu_launch_end(void)
{
}
