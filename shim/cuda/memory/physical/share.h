/* Memory that processes share. */
#ifndef CGPU_CUDA_SHARE_H
#define CGPU_CUDA_SHARE_H

#include "entry/shim.h"
#include "memory/charge.h"

/*
 * The driver has opened another process's memory at ADDRESS, for the context OWNER (0: for none).
 * ONCE: memory that is opened again has the same address. If it does not fit, LACK shows it, and
 * the caller closes it.
 */
CUresult cgpu_share_note_opened(CUdeviceptr address, uint64_t owner, bool once,
                                struct cgpu_lack *lack);

/* ADDRESS is about to be closed. Is it opened memory? OPENED is for the second call, after it. */
bool cgpu_share_leave(CUdeviceptr address, struct cgpu_holding *opened);
void cgpu_share_left(struct cgpu_holding *opened, CUresult status);

#endif
