/* Memory that processes share. */
#ifndef CGPU_CUDA_SHARE_H
#define CGPU_CUDA_SHARE_H

#include "entry/shim.h"
#include "memory/charge.h"

/*
 * Record and charge that the driver has opened another process's memory at ADDRESS, for the context
 * OWNER (0: for none). ONCE: memory that is opened again has the same address. If it does not fit,
 * LACK shows it, and the caller closes it.
 */
CUresult cgpu_share_note_opened(CUdeviceptr address, uint64_t owner, bool once,
                                struct cgpu_lack *lack);

/*
 * Before and after ADDRESS is closed. leave returns whether it is opened memory; OPENED is for
 * left.
 */
bool cgpu_share_leave(CUdeviceptr address, struct cgpu_holding *opened);
void cgpu_share_left(struct cgpu_holding *opened, CUresult status);

#endif
