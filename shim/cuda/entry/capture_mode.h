/* How calls of our own get past a stream capture of the program's. */
#ifndef CGPU_CUDA_CAPTURE_MODE_H
#define CGPU_CUDA_CAPTURE_MODE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "entry/driver.h"

/* Until restored, calls of this thread do not spoil a stream capture. */
int cgpu_capture_mode_relax(void);
void cgpu_capture_mode_restore(int mode);

#endif
