/*
 * Synchronisation. At it, the driver releases memory that pools do not keep, and memory that was
 * freed in streams.
 *
 * The driver documents that stream, event and context synchronisation do this, and queries do not.
 * In a process without such memory this costs one load.
 */
#include "compute/follow.h"
#include "compute/launch_state.h"
#include "compute/stream.h"
#include "entry/shim.h"
#include "entry/thread.h"
#include "memory/async_free.h"
#include "memory/pools/pool.h"

/*
 * Give back what the driver released when STREAM or CONTEXT (both NULL: an event) was synchronised.
 */
static void
collect(CUstream stream, CUcontext context)
{
    struct cgpu_kinds *kinds = cgpu_state != NULL ? &cgpu_state->kinds : NULL;
    /* relaxed: it only shows whether a check is worth it */
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

static void
synchronised(CUstream stream, CUcontext context, uint64_t begun)
{
    if (stream != NULL || context != NULL) {
        cgpu_follow_synchronised(stream, context, begun);
    } else {
        cgpu_follow_event(begun);
    }
    collect(stream, context);
}

/*
 * Destroy STREAM. The driver may give its handle to another stream, so nothing may be recorded
 * under it any more.
 */
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

/*
 * For an event, STREAM and CONTEXT are NULL, because it is not known which stream it was recorded
 * in.
 */
#define SYNC(name, stream, context, parameters, arguments)                                         \
    CGPU_GUARDED(name, parameters, arguments, {                                                    \
        uint64_t begun = cgpu_follow_begin();                                                      \
        status = cgpu_real.name arguments;                                                         \
        cgpu_follow_end(begun);                                                                    \
        if (status == CUDA_SUCCESS) {                                                              \
            synchronised(stream, context, begun);                                                  \
        }                                                                                          \
    })
#include "entry/hooks.def"
