/* What look-ups of entry points find. */
#ifndef CGPU_CUDA_LOOKUP_H
#define CGPU_CUDA_LOOKUP_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "entry/driver.h"

/* Whether the host lets pass what this release does not know of the driver. */
bool cgpu_may_pass_unknown(void);

#endif
