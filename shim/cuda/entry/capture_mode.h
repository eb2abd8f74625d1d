/* Stream captures of the program, and how our own driver calls avoid interfering with them. */
#ifndef CGPU_CUDA_CAPTURE_MODE_H
#define CGPU_CUDA_CAPTURE_MODE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "entry/driver.h"

/* Keep driver calls of this thread from invalidating a stream capture, until restored. */
int cgpu_capture_mode_relax(void);
void cgpu_capture_mode_restore(int mode);

/*
 * Whether STREAM captures. True also if the driver does not answer, because then nothing can be put
 * into STREAM.
 */
bool cgpu_captures(CUstream stream);

#endif
