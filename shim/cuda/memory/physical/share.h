/* Memory that processes share. */
#ifndef CGPU_CUDA_SHARE_H
#define CGPU_CUDA_SHARE_H

#include "entry/shim.h"
#include "memory/charge.h"

/*
 * The driver has opened another process's memory at ADDRESS, for the context OWNER (0: for none):
 * record it and charge it. ONCE: memory that is opened again has the same address. If it does not
 * fit, LACK shows by how much, and the caller closes it.
 */
CUresult cgpu_share_note_opened(CUdeviceptr address, uint64_t owner, bool once,
                                struct cgpu_lack *lack);

/*
 * Called before and after ADDRESS is closed. leave returns whether it is opened memory, and fills
 * OPENED for left.
 */
bool cgpu_share_leave(CUdeviceptr address, struct cgpu_holding *opened);
void cgpu_share_left(struct cgpu_holding *opened, CUresult status);

#endif
