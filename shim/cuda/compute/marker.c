/*
 * Markers: how anyone knows that a batch has ended.
 *
 * A marker is a number that the GPU writes to a page of ours when it gets there in the stream. The
 * page is registered with the context, each has its own: memory of the driver's, or of another
 * context, could be gone before the GPU writes to it. Where the driver cannot write values, events
 * take their place. Nothing of ours is put into a stream that captures. All under the lock.
 */
#include "compute/marker.h"
#include "compute/flow.h"
#include "compute/lane.h"
#include "compute/late.h"
#include "compute/stray.h"
#include "compute/stream.h"

#define KNOWN_NS   UINT64_C(60000) /* looked so lately: the marker was passed about now */
#define KNOWN_PART 32
enum { REGISTER_DEVICEMAP = 2, EVENT_DISABLE_TIMING = 2 };

enum placing { PLACED, CAPTURES, BROKEN };

bool
cgpu_marker_visit(const struct cgpu_flow_context *context, struct cgpu_visit *visit)
{
    CUcontext current = NULL;
    visit->pushed = false;
    visit->mode = -1;
    if (cgpu_flow_is_closing() || context->going) {
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

void
cgpu_marker_leave(const struct cgpu_visit *visit)
{
    CUcontext popped;
    cgpu_capture_mode_restore(visit->mode);
    if (visit->pushed) {
        cgpu_real.cuCtxPopCurrent_v2(&popped);
    }
}

/*
 * The stream to put STREAM's markers into. Only a thread itself can name its default stream, and
 * nobody one that is destroyed: the legacy stream waits for what is in them.
 */
static CUstream
handle_for(const struct cgpu_stream *stream)
{
    bool foreign = stream->lane != 0 && cgpu_lane != &cgpu_flow->lanes[stream->lane - 1];
    return stream->handle == NULL || foreign ? CU_STREAM_LEGACY_DEFAULT : stream->handle;
}

bool
cgpu_marker_captures_into(CUstream handle)
{
    int capture = CU_CAPTURE_NONE;
    return cgpu_real.cuStreamIsCapturing(handle, &capture) != CUDA_SUCCESS ||
           capture != CU_CAPTURE_NONE;
}

bool
cgpu_marker_captures(const struct cgpu_stream *stream)
{
    return cgpu_marker_captures_into(handle_for(stream));
}

bool
cgpu_marker_is_by_legacy(const struct cgpu_stream *stream)
{
    return handle_for(stream) == CU_STREAM_LEGACY_DEFAULT;
}

static void
add_lane(struct cgpu_unmarked *sum, const struct cgpu_lane *lane)
{
    /* relaxed: the thread may be launching at this moment, then the sum is one launch short */
    uint64_t launches = __atomic_load_n(&lane->launches, __ATOMIC_RELAXED);
    if (launches == 0) {
        return;
    }
    sum->mixed |= __atomic_load_n(&lane->mixed, __ATOMIC_RELAXED);
    sum->mixed |= sum->launches != 0 ? sum->key ^ lane->key : 0;
    sum->key = lane->key;
    sum->launches += launches;
    sum->work_ns += __atomic_load_n(&lane->work_ns, __ATOMIC_RELAXED);
}

void
cgpu_marker_sum(const struct cgpu_stream *stream, struct cgpu_unmarked *sum)
{
    *sum = stream->pending;
    for (uint32_t place = stream->lanes; place != 0; place = cgpu_flow->lanes[place - 1].next) {
        add_lane(sum, &cgpu_flow->lanes[place - 1]);
    }
}

bool
cgpu_marker_wanted(const struct cgpu_stream *stream)
{
    bool wanted = stream->pending.launches != 0 || stream->stale != 0 || stream->again;
    for (uint32_t place = stream->lanes; place != 0 && !wanted;) {
        const struct cgpu_lane *lane = &cgpu_flow->lanes[place - 1];
        wanted = __atomic_load_n(&lane->launches, __ATOMIC_RELAXED) != 0;
        place = lane->next;
    }
    return wanted;
}

/* The words of CONTEXT, which is current, as the GPU sees them. */
static bool
register_words(struct cgpu_flow_context *context)
{
    uint32_t *page = cgpu_flow->words[context - cgpu_flow->contexts];
    if (CGPU_REAL_HAS(cuMemHostRegister_v2)) {
        cgpu_real.cuMemHostRegister_v2(page, CGPU_MARKER_PAGE, REGISTER_DEVICEMAP);
    }
    return cgpu_real.cuMemHostGetDevicePointer_v2(&context->words, page, 0) == CUDA_SUCCESS;
}

static CUresult
write_word(const struct cgpu_flow_context *context, const struct cgpu_stream *stream, uint32_t seq)
{
    CUdeviceptr address = context->words + stream->place * sizeof(uint32_t);
    return CGPU_REAL_HAS(cuStreamWriteValue32_v2)
               ? cgpu_real.cuStreamWriteValue32_v2(handle_for(stream), address, seq, 0)
               : cgpu_real.cuStreamWriteValue32(handle_for(stream), address, seq, 0);
}

static CUresult
record_event(struct cgpu_stream *stream, uint32_t seq)
{
    CUevent *event = &stream->events[seq % CGPU_STREAM_EVENTS];
    if (*event == NULL) {
        CUresult status = cgpu_real.cuEventCreate(event, EVENT_DISABLE_TIMING);
        if (status != CUDA_SUCCESS) {
            *event = NULL;
            return status;
        }
    }
    return cgpu_real.cuEventRecord(*event, handle_for(stream));
}

/* The first marker in a context finds out what this driver and device can do. */
static CUresult
write_first(struct cgpu_flow_context *context, struct cgpu_stream *stream, uint32_t seq)
{
    if (register_words(context) && write_word(context, stream, seq) == CUDA_SUCCESS) {
        context->means = CGPU_MARKER_WORDS;
        return CUDA_SUCCESS;
    }
    CUresult status = record_event(stream, seq);
    if (status == CUDA_SUCCESS) {
        context->means = CGPU_MARKER_EVENTS;
    }
    return status;
}

static enum placing
place(struct cgpu_stream *stream, uint32_t seq)
{
    struct cgpu_flow_context *context = cgpu_stream_owner(stream);
    struct cgpu_visit visit;
    if (!cgpu_marker_visit(context, &visit)) {
        return BROKEN;
    }
    CUresult status;
    bool captures = cgpu_marker_captures(stream);
    if (captures) {
        status = CUDA_SUCCESS;
    } else if (context->means == CGPU_MARKER_UNTRIED) {
        status = write_first(context, stream, seq);
    } else if (context->means == CGPU_MARKER_WORDS) {
        status = write_word(context, stream, seq);
    } else {
        status = record_event(stream, seq);
    }
    cgpu_marker_leave(&visit);
    return captures ? CAPTURES : status == CUDA_SUCCESS ? PLACED : BROKEN;
}

bool
cgpu_marker_was_passed(const struct cgpu_flight *flight)
{
    const struct cgpu_stream *stream = &cgpu_flow->streams[flight->stream];
    const struct cgpu_flow_context *context = cgpu_stream_owner(stream);
    if (flight->means == CGPU_MARKER_WORDS) {
        const uint32_t *word = &cgpu_flow->words[stream->context][stream->place];
        /* acquire: the work before it has ended. Numbers may wrap around. */
        return (int32_t)(__atomic_load_n(word, __ATOMIC_ACQUIRE) - flight->seq) >= 0;
    }
    if (cgpu_flow_is_closing() || context->going) {
        return cgpu_flow_is_closing(); /* nobody will ask any more */
    }
    int mode = cgpu_capture_mode_relax();
    CUresult status = cgpu_real.cuEventQuery(stream->events[flight->seq % CGPU_STREAM_EVENTS]);
    cgpu_capture_mode_restore(mode);
    return status != CUDA_ERROR_NOT_READY;
}

void
cgpu_marker_publish(struct cgpu_flow_gpu *gpu)
{
    bool certain = gpu->pace.uncertain == 0 && !gpu->deferred;
    /* relaxed: each is a hint that stands alone */
    __atomic_store_n(&gpu->work->certain, certain, __ATOMIC_RELAXED);
    __atomic_store_n(&gpu->work->end_ns, gpu->pace.end_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&gpu->work->busy_ns, gpu->pace.busy_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&gpu->work->lag_ns, (uint32_t)gpu->pace.lag_ns, __ATOMIC_RELAXED);
}

/* Take what `is` says has passed out of GPU's table, oldest first. */
static void
take_out(struct cgpu_flow_gpu *gpu, bool (*is)(const struct cgpu_flight *, const void *),
         const void *argument, uint64_t now, bool known)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < gpu->flights; i++) {
        struct cgpu_flight *flight = &gpu->flight[i];
        if (!is(flight, argument)) {
            gpu->flight[kept++] = *flight;
            continue;
        }
        struct cgpu_stream *stream = &cgpu_flow->streams[flight->stream];
        /* long work is looked for more rarely, and need not be seen so promptly */
        bool soon = now - gpu->harvested_ns < (now - flight->marked_ns) / KNOWN_PART;
        gpu->apart -= cgpu_late_is_left(stream);
        if (!stream->apart) {
            cgpu_pace_pass(&gpu->pace, &flight->batch, now, known || soon);
        }
        cgpu_late_moves(stream, now);
        stream->in_flight--;
        cgpu_stream_release(stream);
    }
    if (kept != gpu->flights) {
        gpu->flights = kept;
        gpu->settled = gpu->deferred ? CGPU_UNSETTLED : gpu->settled;
        cgpu_marker_publish(gpu);
    }
}

static bool
is_passed(const struct cgpu_flight *flight, const void *unused)
{
    (void)unused;
    if (!cgpu_marker_was_passed(flight)) {
        return false;
    }
    cgpu_stream_owner(&cgpu_flow->streams[flight->stream])->lost = 0; /* they are written */
    return true;
}

void
cgpu_marker_harvest(struct cgpu_flow_gpu *gpu, uint64_t now)
{
    take_out(gpu, is_passed, NULL, now, now - gpu->harvested_ns < KNOWN_NS);
    cgpu_pace_look(&gpu->pace, now);
    gpu->harvested_ns = now;
    cgpu_late_look(gpu, now);
}

struct covered {
    const struct cgpu_stream *stream;
    uint32_t context;
    uint64_t until;
};

static bool
is_covered(const struct cgpu_flight *flight, const void *argument)
{
    const struct covered *covered = argument;
    const struct cgpu_stream *stream = &cgpu_flow->streams[flight->stream];
    return flight->marked_ns <= covered->until &&
           (covered->stream != NULL ? stream == covered->stream
                                    : stream->context == covered->context);
}

void
cgpu_marker_pass(const struct cgpu_stream *stream, const struct cgpu_flow_context *context,
                 uint64_t until, uint64_t now, bool known)
{
    struct covered covered = {stream, (uint32_t)(context - cgpu_flow->contexts), until};
    take_out(&cgpu_flow->gpus[context->gpu], is_covered, &covered, now, known);
}

/* The batch of STREAM, which begins anew. What lanes have summed up before is void. */
static struct cgpu_pace_batch
close_batch(struct cgpu_stream *stream)
{
    struct cgpu_unmarked sum;
    cgpu_marker_sum(stream, &sum);
    struct cgpu_pace_batch batch = {
        .key = sum.mixed == 0 ? sum.key : 0,
        .launches = sum.launches == 0 ? stream->again : sum.launches,
        .work_ns = sum.work_ns,
        .start_ns = stream->begun_ns,
        .certain = !stream->unsure,
        .stream = stream->place,
    };
    for (int i = 0; i < CGPU_THREAD_LANES; i++) {
        if (cgpu_lane[i].state == stream) { /* the caller is not launching meanwhile */
            cgpu_lane_clear(&cgpu_lane[i]);
        }
    }
    cgpu_lane_cut(stream);
    stream->pending = (struct cgpu_unmarked){0};
    /* what it launches, counted by now, may or may not lie before the marker */
    stream->again = cgpu_stray_some_inside(cgpu_stream_gpu(stream));
    stream->unsure = 0;
    stream->begun_ns = 0;
    return batch;
}

/* Captured work does not run, in a broken context nothing does: then there is no marker. */
static void
put(struct cgpu_stream *stream, const struct cgpu_pace_batch *batch, uint64_t now)
{
    struct cgpu_flow_gpu *gpu = cgpu_stream_gpu(stream);
    uint32_t seq = stream->issued + 1;
    if (place(stream, seq) != PLACED) {
        return;
    }
    stream->issued = seq;
    stream->in_flight++;
    struct cgpu_flight *flight = &gpu->flight[gpu->flights++];
    *flight = (struct cgpu_flight){
        .batch = *batch,
        .seq = seq,
        .stream = stream->place,
        .means = (uint16_t)cgpu_stream_owner(stream)->means,
        .marked_ns = now,
    };
    gpu->apart += cgpu_late_is_left(stream);
    if (!stream->apart) {
        cgpu_pace_mark(&gpu->pace, &flight->batch, now);
    }
    __atomic_store_n(&gpu->work->markers, gpu->work->markers + 1, __ATOMIC_RELAXED);
    cgpu_marker_publish(gpu);
}

bool
cgpu_marker_has_room(struct cgpu_flow_gpu *gpu, uint64_t now)
{
    if (gpu->flights == CGPU_MAX_FLIGHTS) {
        cgpu_marker_harvest(gpu, now);
    }
    if (gpu->flights == CGPU_MAX_FLIGHTS) {
        cgpu_late_thin_out(gpu);
    }
    return gpu->flights < CGPU_MAX_FLIGHTS;
}

bool
cgpu_marker_cut(struct cgpu_stream *stream, uint64_t now)
{
    if (!cgpu_marker_has_room(cgpu_stream_gpu(stream), now)) {
        return false;
    }
    struct cgpu_pace_batch batch = close_batch(stream);
    put(stream, &batch, now);
    return true;
}

void
cgpu_marker_probe(struct cgpu_stream *stream, uint32_t word, uint64_t now)
{
    struct cgpu_pace_batch nothing = {.start_ns = now, .certain = 1, .stream = stream->place};
    const struct cgpu_limits_gpu *limits = &cgpu_limits->gpus[cgpu_stream_owner(stream)->gpu];
    if (cgpu_gate_is_metered(word) && !stream->apart && !cgpu_late_called(stream, now) &&
        !cgpu_marker_is_enough(stream) &&
        __atomic_load_n(&limits->quiet_gate, __ATOMIC_RELAXED) == word &&
        cgpu_marker_has_room(cgpu_stream_gpu(stream), now)) {
        put(stream, &nothing, now);
    }
}

void
cgpu_marker_ended(struct cgpu_stream *stream, uint64_t now)
{
    struct cgpu_flow_gpu *gpu = cgpu_stream_gpu(stream);
    struct cgpu_pace_batch batch = close_batch(stream);
    if (batch.launches != 0 && gpu->work != NULL) {
        cgpu_pace_mark(&gpu->pace, &batch, now);
        cgpu_pace_pass(&gpu->pace, &batch, now, true);
        cgpu_marker_publish(gpu);
    }
}

void
cgpu_marker_forget(struct cgpu_stream *stream)
{
    close_batch(stream);
}
