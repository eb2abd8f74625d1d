/*
 * Work that does not end when it should. Under the lock.
 *
 * A stream stands apart while it makes no progress: it is in a host function, or none of its work
 * has ended for some time. Its work then takes no room. No drain waits for a stream in a host
 * function, which uses none of the GPU, or for one of which nothing has ended for a second (a
 * persistent kernel). These are not charged while they go on: such a kernel cannot be stopped, and
 * paying for it would leave nothing to the other streams of the container. What a kernel took that
 * ends after all is charged then. Before that second is over the GPU
 * may be running a long kernel, which is drained and charged like any other. When the stream makes
 * progress again, its work is ordinary work; if the gate has closed by then, the arbiter is told.
 *
 * A marker may also be late because nothing will ever write it: then the driver is asked.
 */
#include <linux/futex.h>

#include "compute/await.h"
#include "compute/flow.h"
#include "compute/late.h"
#include "compute/marker.h"
#include "compute/stream.h"

#define CALL_NS CGPU_PACE_IDLE_NS   /* a host function runs for this long */
#define LOST_NS UINT64_C(100000000) /* a marker has not been written for this long */
#define BEGINS_NS                                                                                  \
    UINT64_C(100000000) /* its thread begins within this time, on a busy machine too */
/* The least patience where a stream may wait for the program unseen: AWAITS_NS, or UNKNOWN_NS if
 * its work includes kernels of unknown length. */
#define AWAITS_NS  UINT64_C(20000000)
#define UNKNOWN_NS UINT64_C(100000000)

enum { AWAITS_TIMES = 4, LOST_MOST = 3 };

/* HELD: some stream is in a host function. Others may wait for it, or for its thread. */
static bool
may_await(bool held)
{
    /* relaxed: it is set before the wait is submitted */
    return held || __atomic_load_n(&cgpu_flow->awaits_host, __ATOMIC_RELAXED) != 0;
}

static uint64_t
patience(const struct cgpu_flow_gpu *gpu, bool held)
{
    uint64_t ns = AWAITS_TIMES * gpu->pace.longest_ns;
    uint64_t least = gpu->pace.uncertain != 0 ? UNKNOWN_NS : AWAITS_NS;
    if (!may_await(held) || ns > CGPU_LATE_STAYS_NS) {
        return CGPU_LATE_STAYS_NS;
    }
    return ns < least ? least : ns;
}

/* Among the flights of STREAM, this becomes true for the oldest first. */
static bool
gets_nowhere(const struct cgpu_stream *stream, const struct cgpu_flight *flight, uint64_t patience,
             uint64_t now)
{
    uint64_t since = stream->moved_ns > flight->marked_ns ? stream->moved_ns : flight->marked_ns;
    return now > since && now - since >= patience;
}

/*
 * STREAM takes time of the GPU that is not charged while it goes on. The arbiter charges it when it
 * has ended. A stream that may wait for the program takes none that we know of.
 */
static void
stay(struct cgpu_flow_gpu *gpu, struct cgpu_stream *stream, bool held, uint64_t now)
{
    if (!may_await(held)) {
        stream->stays_ns = now;
        cgpu_work_stays(cgpu_state->ledger, (uint32_t)(gpu - cgpu_flow->gpus));
    }
}

/* Time that several streams stay together is told once. */
void
cgpu_late_moves(struct cgpu_stream *stream, uint64_t now)
{
    struct cgpu_flow_gpu *gpu = cgpu_stream_gpu(stream);
    uint64_t since = stream->stays_ns > gpu->stayed_ns ? stream->stays_ns : gpu->stayed_ns;
    stream->moved_ns = now;
    if (stream->stays_ns != 0 && now > since) {
        gpu->stayed_ns = now;
        cgpu_work_stayed(cgpu_state->ledger, (uint32_t)(gpu - cgpu_flow->gpus), now - since);
    }
    stream->stays_ns = 0;
}

static void
go_apart(struct cgpu_flow_gpu *gpu, struct cgpu_stream *stream, enum cgpu_apart why, uint64_t now)
{
    bool was_left = cgpu_late_is_left(stream);
    enum cgpu_apart before = (enum cgpu_apart)stream->apart;
    stream->apart = why;
    stream->apart_ns = now;
    for (uint32_t i = 0; i < gpu->flights; i++) {
        if (gpu->flight[i].stream != stream->place) {
            continue;
        }
        if (before == CGPU_APART_NOT) {
            cgpu_pace_leave(&gpu->pace, &gpu->flight[i].batch, now);
        }
        gpu->apart += (uint32_t)cgpu_late_is_left(stream) - was_left;
    }
    gpu->aside = 1;
    cgpu_marker_publish(gpu);
}

static void
count_again(struct cgpu_flow_gpu *gpu, struct cgpu_stream *stream, uint64_t now)
{
    for (uint32_t i = 0; i < gpu->flights; i++) {
        if (gpu->flight[i].stream == stream->place) {
            cgpu_pace_return(&gpu->pace, &gpu->flight[i].batch, now);
            gpu->apart -= cgpu_late_is_left(stream);
        }
    }
    stream->apart = CGPU_APART_NOT;
    stream->moved_ns = now;
    cgpu_marker_publish(gpu);
}

/* The stream's work counts again. */
static void
come_back(struct cgpu_flow_gpu *gpu, struct cgpu_stream *stream, uint64_t now)
{
    uint32_t word = cgpu_flow_gate(gpu);
    count_again(gpu, stream, now);
    if (gpu->work == NULL ||
        !(stream->in_flight != 0 || stream->pending.launches != 0 || stream->again)) {
        return;
    }
    __atomic_store_n(&gpu->work->idle, 0, __ATOMIC_RELAXED);
    if (cgpu_gate_is_open(word)) {
        return;
    }
    gpu->settled = CGPU_UNSETTLED; /* mark now what was not marked */
    if (__atomic_load_n(&gpu->work->active, __ATOMIC_RELAXED) == 0) {
        __atomic_store_n(&gpu->work->active, word, __ATOMIC_RELEASE);
        cgpu_work_ring(cgpu_state->ledger, (uint32_t)(gpu - cgpu_flow->gpus));
    }
}

/* Set streams apart that are in a host function: none of their work is on the GPU meanwhile. */
static bool
look_at_calls(struct cgpu_flow_gpu *gpu, uint64_t now)
{
    bool held = false;
    uint32_t at = 0;
    struct cgpu_call *call;
    while ((call = cgpu_await_next(&at)) != NULL) {
        struct cgpu_stream *stream = &cgpu_flow->streams[call->stream];
        uint64_t since = __atomic_load_n(&call->since_ns, __ATOMIC_RELAXED);
        bool long_ago = since != 0 && now > since && now - since >= CALL_NS;
        held = held || long_ago;
        if (!stream->used || stream->born != call->born || cgpu_stream_gpu(stream) != gpu) {
            continue;
        }
        stream->moved_ns = now;
        stream->called_ns = now;
        if (long_ago) {
            __atomic_store_n(&call->held, 1, __ATOMIC_SEQ_CST);
            go_apart(gpu, stream, CGPU_APART_CALLED, now);
        }
    }
    return held;
}

bool
cgpu_late_at_call(const struct cgpu_stream *stream, uint64_t now)
{
    return stream->in_flight == 0 && stream->begun_ns > stream->call_ns &&
           now < stream->call_ns + BEGINS_NS && cgpu_await_is_behind(stream);
}

bool
cgpu_late_called(const struct cgpu_stream *stream, uint64_t now)
{
    return cgpu_late_at_call(stream, now) ||
           (stream->in_flight == 0 &&
            (stream->called_ns == now || now < stream->call_ns + CALL_NS));
}

static void
look_at_flights(struct cgpu_flow_gpu *gpu, bool held, uint64_t now)
{
    for (uint32_t i = 0; i < gpu->flights; i++) {
        const struct cgpu_flight *flight = &gpu->flight[i];
        struct cgpu_stream *stream = &cgpu_flow->streams[flight->stream];
        if (cgpu_late_is_left(stream)) {
            continue;
        }
        if (gets_nowhere(stream, flight, CGPU_LATE_STAYS_NS, now)) {
            go_apart(gpu, stream, CGPU_APART_STAYS, now);
            stay(gpu, stream, held, now);
        } else if (stream->apart == CGPU_APART_NOT &&
                   gets_nowhere(stream, flight, patience(gpu, held), now)) {
            go_apart(gpu, stream, CGPU_APART_LATE, now);
        }
    }
}

static void
look_aside(struct cgpu_flow_gpu *gpu, uint64_t now)
{
    bool aside = false;
    for (uint32_t i = 0; i < cgpu_flow->stream_bound; i++) {
        struct cgpu_stream *stream = &cgpu_flow->streams[i];
        if (!stream->used || !stream->apart || cgpu_stream_gpu(stream) != gpu) {
            continue;
        }
        if (stream->apart == CGPU_APART_CALLED ? stream->called_ns == now
                                               : stream->moved_ns < stream->apart_ns) {
            aside = true;
        } else {
            come_back(gpu, stream, now);
        }
    }
    gpu->aside = aside;
}

bool
cgpu_late_has_ended(const struct cgpu_flow_context *context, CUstream handle)
{
    struct cgpu_visit visit;
    int capture = CU_CAPTURE_NONE;
    if (!cgpu_marker_visit(context, &visit)) {
        return false;
    }
    /* querying a stream that captures, or that must wait for one, would invalidate the capture */
    bool ended = cgpu_real.cuStreamIsCapturing(handle, &capture) == CUDA_SUCCESS &&
                 capture == CU_CAPTURE_NONE &&
                 cgpu_real.cuStreamQuery(handle) != CUDA_ERROR_NOT_READY;
    cgpu_marker_leave(&visit);
    return ended;
}

/* Ask the driver whether STREAM has ended although its marker was not written. */
static bool
ask(struct cgpu_stream *stream, uint64_t now)
{
    if (stream->lane != 0 || stream->handle == NULL) {
        return false;
    }
    stream->asked_ns = now;
    return cgpu_late_has_ended(cgpu_stream_owner(stream), stream->handle);
}

/* After several lost markers in a context, use events there. */
static void
lose(struct cgpu_stream *stream, uint64_t now)
{
    struct cgpu_flow_context *context = cgpu_stream_owner(stream);
    if (++context->lost >= LOST_MOST && context->means == CGPU_MARKER_WORDS) {
        context->means = CGPU_MARKER_EVENTS;
    }
    cgpu_marker_pass(stream, context, now, now, false);
}

static void
look_for_lost(struct cgpu_flow_gpu *gpu, uint64_t now)
{
    for (uint32_t i = 0; i < gpu->flights; i++) {
        const struct cgpu_flight *flight = &gpu->flight[i];
        struct cgpu_stream *stream = &cgpu_flow->streams[flight->stream];
        bool late = now > flight->marked_ns && now - flight->marked_ns >= LOST_NS &&
                    now - stream->asked_ns >= LOST_NS;
        if (late && ask(stream, now) && !cgpu_marker_was_passed(flight)) {
            lose(stream, now);
            return; /* the table has changed */
        }
    }
}

void
cgpu_late_thin_out(struct cgpu_flow_gpu *gpu)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < gpu->flights; i++) {
        const struct cgpu_flight *flight = &gpu->flight[i];
        struct cgpu_stream *stream = &cgpu_flow->streams[flight->stream];
        if (cgpu_late_is_left(stream) && flight->seq != stream->issued) {
            stream->in_flight--;
            gpu->apart--;
        } else {
            gpu->flight[kept++] = *flight;
        }
    }
    gpu->flights = kept;
}

void
cgpu_late_look(struct cgpu_flow_gpu *gpu, uint64_t now)
{
    look_for_lost(gpu, now);
    look_at_flights(gpu, look_at_calls(gpu, now), now);
    if (gpu->aside) {
        look_aside(gpu, now);
    }
}
