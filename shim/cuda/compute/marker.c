/*
 * Markers show that a batch has ended.
 *
 * A marker is a number that the GPU writes to a page of ours when it reaches that point of the
 * stream. Each context has a page of its own, registered with it. Memory of the driver or of
 * another context could be gone before the GPU writes to it. If the driver cannot write values,
 * events take the place of markers. A stream that captures gets neither. Everything here is under
 * the lock.
 */
#include "compute/marker.h"
#include "compute/launch_state.h"
#include "compute/stream.h"

enum { REGISTER_DEVICEMAP = 2, EVENT_DISABLE_TIMING = 2, LOST_MOST = 3 };

/* A visit to CONTEXT for driver calls of our own. CONTEXT is made current if it is not. */
struct visit {
    bool pushed;
    int mode;
};

static bool
begin_visit(const struct cgpu_context_entry *context, struct visit *visit)
{
    CUcontext current = NULL;
    visit->pushed = false;
    visit->mode = -1;
    if (cgpu_launch_is_closing() || context->going) {
        return false;
    }
    cgpu_real.cuCtxGetCurrent(&current);
    if (current != context->handle) {
        visit->pushed = cgpu_real.cuCtxPushCurrent_v2(context->handle) == CUDA_SUCCESS;
        if (!visit->pushed) {
            return false;
        }
    }
    visit->mode = cgpu_capture_mode_relax();
    return true;
}

static void
end_visit(const struct visit *visit)
{
    CUcontext popped;
    cgpu_capture_mode_restore(visit->mode);
    if (visit->pushed) {
        cgpu_real.cuCtxPopCurrent_v2(&popped);
    }
}

/*
 * The stream into which STREAM's markers are put. Only a thread itself can name its default stream,
 * and nobody can name a destroyed stream; for these it is the legacy stream, which waits for both.
 */
static CUstream
handle_for(const struct cgpu_stream *stream)
{
    bool foreign =
        stream->slot != 0 && cgpu_batch_slots != &cgpu_launch_state->slots[stream->slot - 1];
    return stream->handle == NULL || foreign ? CU_STREAM_LEGACY_DEFAULT : stream->handle;
}

bool
cgpu_marker_captures(const struct cgpu_stream *stream)
{
    struct visit visit;
    if (!begin_visit(cgpu_stream_owner(stream), &visit)) {
        return true;
    }
    bool captures = cgpu_captures(handle_for(stream));
    end_visit(&visit);
    return captures;
}

bool
cgpu_marker_is_by_legacy(const struct cgpu_stream *stream)
{
    return handle_for(stream) == CU_STREAM_LEGACY_DEFAULT;
}

/*
 * Register the words of CONTEXT, which is current, with the driver, and note their address on the
 * GPU.
 */
static bool
register_words(struct cgpu_context_entry *context)
{
    uint32_t *page = cgpu_launch_state->words[context - cgpu_launch_state->contexts];
    if (CGPU_REAL_HAS(cuMemHostRegister_v2)) {
        cgpu_real.cuMemHostRegister_v2(page, CGPU_MARKER_BYTES, REGISTER_DEVICEMAP);
    }
    return cgpu_real.cuMemHostGetDevicePointer_v2(&context->words, page, 0) == CUDA_SUCCESS;
}

static bool
write_word(const struct cgpu_context_entry *context, const struct cgpu_stream *stream, uint32_t seq)
{
    CUdeviceptr address = context->words + stream->index * sizeof(uint32_t);
    CUresult (*write)(CUstream, CUdeviceptr, uint32_t, unsigned int) =
        CGPU_REAL_HAS(cuStreamWriteValue32_v2) ? cgpu_real.cuStreamWriteValue32_v2
                                               : cgpu_real.cuStreamWriteValue32;
    return write(handle_for(stream), address, seq, 0) == CUDA_SUCCESS;
}

static bool
record_event(struct cgpu_stream *stream, uint32_t seq)
{
    CUevent *event = &stream->events[seq % CGPU_STREAM_EVENTS];
    if (*event == NULL && cgpu_real.cuEventCreate(event, EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
        *event = NULL;
        return false;
    }
    return cgpu_real.cuEventRecord(*event, handle_for(stream)) == CUDA_SUCCESS;
}

/*
 * Put marker SEQ into STREAM. Returns how. The first marker in a context shows what this driver and
 * device can do.
 */
static enum cgpu_marker_kind
put_in_context(struct cgpu_context_entry *context, struct cgpu_stream *stream, uint32_t seq)
{
    bool words = context->kind == CGPU_MARKER_WORDS ||
                 (context->kind == CGPU_MARKER_NONE && register_words(context));
    if (words && write_word(context, stream, seq)) {
        return CGPU_MARKER_WORDS;
    }
    return record_event(stream, seq) ? CGPU_MARKER_EVENTS : CGPU_MARKER_NONE;
}

bool
cgpu_marker_put(struct cgpu_stream *stream, uint32_t seq, uint32_t *kind)
{
    struct cgpu_context_entry *context = cgpu_stream_owner(stream);
    struct visit visit;
    if (!begin_visit(context, &visit)) {
        return false;
    }
    *kind =
        cgpu_captures(handle_for(stream)) ? CGPU_MARKER_NONE : put_in_context(context, stream, seq);
    end_visit(&visit);
    if (*kind == CGPU_MARKER_NONE) {
        return false;
    }
    context->kind = *kind;
    return true;
}

static bool
is_written(const struct cgpu_flight *flight)
{
    const uint32_t *word =
        &cgpu_launch_state->words[flight->stream->context][flight->stream->index];
    /* acquire: the work before it has ended. Numbers may wrap around. */
    return (int32_t)(__atomic_load_n(word, __ATOMIC_ACQUIRE) - flight->seq) >= 0;
}

bool
cgpu_marker_is_passed(const struct cgpu_flight *flight)
{
    const struct cgpu_stream *stream = flight->stream;
    struct cgpu_context_entry *context = cgpu_stream_owner(stream);
    bool passed;
    if (flight->kind == CGPU_MARKER_WORDS) {
        passed = is_written(flight);
    } else if (cgpu_launch_is_closing() || context->going) {
        passed = cgpu_launch_is_closing(); /* nobody will ask again */
    } else {
        int mode = cgpu_capture_mode_relax();
        CUevent event = stream->events[flight->seq % CGPU_STREAM_EVENTS];
        passed = cgpu_real.cuEventQuery(event) != CUDA_ERROR_NOT_READY;
        cgpu_capture_mode_restore(mode);
    }
    context->lost = passed ? 0 : context->lost;
    return passed;
}

bool
cgpu_marker_has_ended(const struct cgpu_context_entry *context, CUstream handle)
{
    struct visit visit;
    if (!begin_visit(context, &visit)) {
        return false;
    }
    /*
     * to query a stream that captures, or must wait for one that does, would invalidate the capture
     */
    bool ended = !cgpu_captures(handle) && cgpu_real.cuStreamQuery(handle) != CUDA_ERROR_NOT_READY;
    end_visit(&visit);
    return ended;
}

/* Whether FLIGHT's marker was lost. After several lost markers, its context uses events instead. */
bool
cgpu_marker_is_lost(const struct cgpu_flight *flight, uint64_t now)
{
    struct cgpu_stream *stream = flight->stream;
    struct cgpu_context_entry *context = cgpu_stream_owner(stream);
    if (stream->slot != 0 || stream->handle == NULL) {
        return false;
    }
    stream->queried_ns = now;
    if (!cgpu_marker_has_ended(context, stream->handle) || cgpu_marker_is_passed(flight)) {
        return false;
    }
    if (++context->lost >= LOST_MOST && context->kind == CGPU_MARKER_WORDS) {
        context->kind = CGPU_MARKER_EVENTS;
    }
    return true;
}
