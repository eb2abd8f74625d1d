/* What look-ups of entry points find. */
#ifndef CGPU_CUDA_LOOKUP_H
#define CGPU_CUDA_LOOKUP_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "entry/driver.h"

/* Whether the host allows entry points and limits of the driver that this release does not know. */
bool cgpu_may_pass_unknown(void);

#endif
