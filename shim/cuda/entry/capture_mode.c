/* How calls of our own get past a stream capture of the program's. */
#include "entry/shim.h"

int
cgpu_capture_mode_relax(void)
{
    int mode = CU_CAPTURE_RELAXED;
    return cgpu_real.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS ? mode : -1;
}

void
cgpu_capture_mode_restore(int mode)
{
    if (mode >= 0) {
        cgpu_real.cuThreadExchangeStreamCaptureMode(&mode);
    }
}
