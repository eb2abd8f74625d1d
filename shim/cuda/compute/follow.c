/*
 * What the program's own calls show about its work. A stream that the program has synchronised has
 * ended and needs no marker. A stream or context that it destroys takes its handle with it. Entry
 * points that are hooked only for this are generated here, from hooks.def.
 */
#include "compute/follow.h"
#include "compute/await.h"
#include "compute/batch_slot.h"
#include "compute/capture.h"
#include "compute/launch_state.h"
#include "compute/marker.h"
#include "compute/monitor.h"
#include "compute/stream.h"
#include "entry/thread.h"
#include "gate/drain.h"
#include "gate/flight.h"
#include "gate/sync.h"

uint64_t
cgpu_follow_begin(void)
{
    /* relaxed: it only shows whether a check is worth it; this thread sees its own launches */
    if (!cgpu_state_is_attached() ||
        __atomic_load_n(&cgpu_launch_state->counted, __ATOMIC_RELAXED) == 0) {
        return 0;
    }
    /* relaxed: a hint for the monitor */
    __atomic_store_n(&cgpu_launch_state->syncing, 1, __ATOMIC_RELAXED);
    return cgpu_host_clock_now();
}

void
cgpu_follow_end(uint64_t begun)
{
    if (begun != 0) {
        __atomic_store_n(&cgpu_launch_state->syncing, 0, __ATOMIC_RELAXED);
    }
}

/* Work on GPU has ended. If that was all, inform the arbiter soon. */
static void
report_ended(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    if (!cgpu_monitor_attend(now)) {
        cgpu_drain_finish(gpu, now);
    }
    cgpu_sync_begin_rest(gpu, now);
}

void
cgpu_follow_synchronised(CUstream handle, CUcontext context, uint64_t begun)
{
    if (begun == 0) {
        return;
    }
    uint64_t now = cgpu_host_clock_now();
    cgpu_launch_lock();
    struct cgpu_stream *only =
        handle != NULL ? cgpu_stream_find(handle, cgpu_context_current()) : NULL;
    const struct cgpu_context_entry *found =
        cgpu_stream_context(only != NULL ? cgpu_stream_owner(only)->handle : context);
    if (found != NULL && found->gpu->work != NULL) {
        uint32_t first = only != NULL ? only->index : 0;
        uint32_t end = only != NULL ? first + 1 : cgpu_launch_state->stream_bound;
        for (uint32_t i = first; i < end; i++) {
            struct cgpu_stream *stream = &cgpu_launch_state->streams[i];
            if (stream->used && cgpu_stream_owner(stream) == found) {
                cgpu_sync_stream(stream, begun, now);
            }
        }
        report_ended(found->gpu, now);
    }
    cgpu_launch_unlock();
}

/* Whether all work in STREAM has ended. If so, it needs no marker. */
static bool
has_ended(struct cgpu_stream *stream)
{
    uint64_t launches = cgpu_batch_sum(stream).launches;
    uint64_t asked = cgpu_host_clock_now();
    bool foreign =
        stream->slot != 0 && cgpu_batch_slots != &cgpu_launch_state->slots[stream->slot - 1];
    if (stream->handle == NULL || foreign || /* only its own thread can ask */
        !cgpu_marker_has_ended(cgpu_stream_owner(stream), stream->handle) ||
        cgpu_batch_sum(stream).launches != launches) {
        return false;
    }
    cgpu_sync_stream(stream, asked, cgpu_host_clock_now());
    return true;
}

/*
 * Whether all work on GPU has ended. Asks the driver about each stream that may have work, until
 * one is still at work.
 */
static bool
all_have_ended(const struct cgpu_gate_gpu *gpu)
{
    for (uint32_t i = 0; i < cgpu_launch_state->stream_bound; i++) {
        struct cgpu_stream *stream = &cgpu_launch_state->streams[i];
        if (stream->used && stream->gpu == gpu &&
            (stream->in_flight != 0 || cgpu_batch_sum(stream).launches != 0) &&
            !has_ended(stream)) {
            return false;
        }
    }
    return true;
}

void
cgpu_follow_event(uint64_t begun)
{
    if (begun == 0) {
        return;
    }
    cgpu_launch_lock();
    const struct cgpu_context_entry *found = cgpu_stream_context(cgpu_context_current());
    struct cgpu_gate_gpu *gpu = found != NULL ? found->gpu : NULL;
    if (gpu != NULL && gpu->work != NULL &&
        __atomic_load_n(&cgpu_launch_state->beginning, __ATOMIC_SEQ_CST) == 0 &&
        cgpu_gate_state(cgpu_gate_word(gpu)) == CGPU_GATE_PRESSED) {
        cgpu_flight_harvest(gpu, cgpu_host_clock_now());
        if (all_have_ended(gpu)) {
            report_ended(gpu, cgpu_host_clock_now());
        }
    }
    cgpu_launch_unlock();
}

/*
 * Note a stream that the driver has made. Uncounted work may come into it, so it must be known when
 * the gate closes.
 */
static CUresult
note_created(CUresult status, const CUstream *out)
{
    if (status != CUDA_SUCCESS || out == NULL) {
        return status;
    }
    CUstream stream = *out;
    CUcontext current = cgpu_context_current();
    cgpu_launch_lock();
    struct cgpu_stream *found = cgpu_stream_find(stream, current);
    if (found != NULL) { /* destroyed behind our back */
        cgpu_stream_detach(found);
    }
    bool fits = cgpu_stream_ensure(stream, current, &found);
    cgpu_launch_unlock();
    if (fits) {
        return CUDA_SUCCESS;
    }
    cgpu_log_text(CGPU_LOG_COMPUTE, "stream refused: ", CGPU_STREAM_TOO_MANY);
    cgpu_real.cuStreamDestroy_v2(stream);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

void
cgpu_follow_stream_going(CUstream stream)
{
    if (!cgpu_state_is_attached()) {
        return;
    }
    cgpu_launch_lock();
    struct cgpu_stream *found = cgpu_stream_find(stream, cgpu_context_current());
    if (found != NULL && found->slot == 0 && stream != CU_STREAM_LEGACY_DEFAULT) {
        if (cgpu_batch_wants_marker(found) && found->stall == CGPU_STALL_NONE) {
            cgpu_flight_cut(found, cgpu_host_clock_now());
        }
        cgpu_stream_detach(found);
    }
    cgpu_launch_unlock();
}

void
cgpu_follow_context_going(CUcontext context, bool going)
{
    if (!cgpu_state_is_attached()) {
        return;
    }
    cgpu_launch_lock();
    struct cgpu_context_entry *found = cgpu_stream_context(context);
    if (found != NULL) {
        found->going = going;
    }
    cgpu_launch_unlock();
}

void
cgpu_follow_context_gone(CUcontext context)
{
    if (!cgpu_state_is_attached()) {
        return;
    }
    cgpu_batch_slot_forget();
    cgpu_launch_lock();
    struct cgpu_context_entry *found = cgpu_stream_context(context);
    if (found != NULL) {
        struct cgpu_gate_gpu *gpu = found->gpu;
        cgpu_stream_drop_context(found);
        if (gpu->work != NULL) {
            cgpu_drain_is_quiet(gpu);
        }
    }
    cgpu_launch_unlock();
}

/*
 * The calling thread makes CONTEXT current. If that is a change, its next launch takes the slow
 * path.
 */
static void
change_context(CUcontext context)
{
    /* relaxed: this thread wrote it */
    if (context != cgpu_batch_slots->context) {
        cgpu_batch_slot_forget();
    }
}

#define FOLLOW(name, before, after, parameters, arguments)                                         \
    CGPU_GUARDED(name, parameters, arguments, {                                                    \
        bool followed = cgpu_state_is_attached();                                                  \
        if (followed) {                                                                            \
            before;                                                                                \
        }                                                                                          \
        status = cgpu_real.name arguments;                                                         \
        if (followed) {                                                                            \
            after;                                                                                 \
        }                                                                                          \
    })
#include "entry/hooks.def"
