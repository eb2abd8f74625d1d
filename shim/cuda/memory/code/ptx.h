/* The most that PTX can need. */
#ifndef CGPU_CUDA_PTX_H
#define CGPU_CUDA_PTX_H

#include "entry/shim.h"
#include "memory/code/image.h"

enum { CGPU_PTX_GROWTH = 16 }; /* bytes of code for each letter of PTX, at most */

/* Add what PTX of at most LIMIT bytes may take. Stops at the first byte that is not text. */
void cgpu_ptx_scan(const char *text, uint64_t limit, struct cgpu_image *image);

#endif
