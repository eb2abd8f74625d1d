/*
 * Synchronisation, where the driver lets go of what pools do not keep and of what was freed in
 * streams.
 *
 * The driver documents stream, event and context synchronisation as these points; queries are none.
 * A process without such memory pays one load.
 */
#include "compute/flow.h"
#include "compute/follow.h"
#include "entry/shim.h"
#include "memory/async_free.h"
#include "memory/pool.h"

/* Called after a successful synchronisation; STREAM or CONTEXT is what was synchronised. */
static void
collect(CUstream stream, CUcontext context)
{
    struct cgpu_kinds *kinds = cgpu_state != NULL ? &cgpu_state->kinds : NULL;
    /* relaxed: it only says that looking is worth while. */
    if (kinds == NULL || __atomic_load_n(&kinds->may_shrink, __ATOMIC_RELAXED) == 0 ||
        !cgpu_state_is_attached()) {
        return;
    }
    __atomic_store_n(&kinds->may_shrink, 0, __ATOMIC_RELAXED);
    cgpu_async_free_collect(stream, context);
    pthread_mutex_lock(&kinds->pools);
    cgpu_pool_measure_all();
    pthread_mutex_unlock(&kinds->pools);
}

CUresult
cgpu_sync_stream(CUresult (*real)(CUstream), CUstream stream)
{
    uint64_t begun = cgpu_follow_begin();
    CUresult status = real(stream);
    if (status == CUDA_SUCCESS) {
        CUstream meant = cgpu_stream_meant(stream, real == cgpu_real.cuStreamSynchronize_ptsz);
        cgpu_follow_stream(meant, begun);
        collect(meant, NULL);
    }
    return status;
}

/* The handle of a stream that is gone may come again: what was freed in it goes with it. */
CUresult
cgpu_sync_destroy_stream(CUresult (*real)(CUstream), CUstream stream)
{
    cgpu_follow_stream_going(stream);
    if (!cgpu_state_is_attached() || cgpu_kinds_look(&cgpu_state->kinds.may_shrink) == 0) {
        return real(stream);
    }
    CUresult status = cgpu_async_free_destroy(real, stream);
    if (status == CUDA_SUCCESS) {
        collect(NULL, NULL);
    }
    return status;
}

CUresult
cgpu_sync_event(CUresult (*real)(CUevent), CUevent event)
{
    CUresult status = real(event);
    if (status == CUDA_SUCCESS) {
        collect(NULL, NULL);
    }
    return status;
}

CUresult
cgpu_sync_context(CUresult (*real)(void *), void *unused)
{
    CUcontext context = NULL;
    uint64_t begun = cgpu_follow_begin();
    CUresult status = real(unused);
    if (status == CUDA_SUCCESS) {
        cgpu_real.cuCtxGetCurrent(&context);
        cgpu_follow_context(context, begun);
        collect(NULL, context);
    }
    return status;
}

CUresult
cgpu_sync_context_v2(CUresult (*real)(CUcontext), CUcontext context)
{
    uint64_t begun = cgpu_follow_begin();
    CUresult status = real(context);
    if (status == CUDA_SUCCESS) {
        cgpu_follow_context(context, begun);
        collect(NULL, context);
    }
    return status;
}
