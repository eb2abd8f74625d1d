/* Stream captures of the program, and how our own driver calls avoid interfering with them. */
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

bool
cgpu_captures(CUstream stream)
{
    int capture = CU_CAPTURE_NONE;
    return cgpu_real.cuStreamIsCapturing(stream, &capture) != CUDA_SUCCESS ||
           capture != CU_CAPTURE_NONE;
}
