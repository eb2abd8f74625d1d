/* Where physical memory is mapped. Under the lock of physical memory. */
#ifndef CGPU_CUDA_MAPPING_H
#define CGPU_CUDA_MAPPING_H

#include "entry/shim.h"

bool cgpu_mapping_add(uint64_t base, uint64_t bytes, uint64_t allocation);
const struct cgpu_mapping *cgpu_mapping_at(uint64_t address);
/* Remove the mapping that begins at BASE and copy it to OUT. */
bool cgpu_mapping_take(uint64_t base, struct cgpu_mapping *out);

#endif
