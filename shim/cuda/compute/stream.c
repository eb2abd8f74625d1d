/* Contexts and streams that work was put into, by their handles. All under the lock. */
#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "compute/flow.h"
#include "compute/lane.h"
#include "compute/stream.h"
#include "gate/drain.h"
#include "gate/flight.h"

static uint16_t *
bucket(CUstream handle)
{
    uint64_t mixed = (uint64_t)(uintptr_t)handle * UINT64_C(0x9e3779b97f4a7c15);
    return &cgpu_flow->buckets[mixed >> 56];
}

/* Of NULL: a free one. */
static struct cgpu_flow_context *
entry_of(CUcontext handle)
{
    struct cgpu_flow_context *found = NULL;
    for (uint32_t i = 0; i < CGPU_MAX_CONTEXTS && found == NULL; i++) {
        found = cgpu_flow->contexts[i].handle == handle ? &cgpu_flow->contexts[i] : NULL;
    }
    return found;
}

struct cgpu_flow_context *
cgpu_stream_context(CUcontext context)
{
    return context != NULL ? entry_of(context) : NULL;
}

/* Default streams have the same handle in every context, and one of them in every thread. */
static bool
is_default(CUstream stream)
{
    return stream == CU_STREAM_LEGACY_DEFAULT || stream == CU_STREAM_PER_THREAD_DEFAULT;
}

static uint32_t
number_of(CUstream handle)
{
    bool has_lane = cgpu_lane->tid != 0;
    uint32_t own = has_lane ? (uint32_t)(cgpu_lane - cgpu_flow->lanes) + 1 : UINT32_MAX;
    return handle == CU_STREAM_PER_THREAD_DEFAULT ? own : 0;
}

struct cgpu_stream *
cgpu_stream_find(CUstream handle, CUcontext context)
{
    uint32_t number = number_of(handle);
    struct cgpu_stream *found = NULL;
    for (uint32_t i = *bucket(handle); i != 0 && found == NULL;) {
        struct cgpu_stream *stream = &cgpu_flow->streams[i - 1];
        bool same = stream->handle == handle && stream->lane == number &&
                    (!is_default(handle) || cgpu_stream_owner(stream)->handle == context);
        found = same ? stream : NULL;
        i = stream->next;
    }
    return found;
}

/*
 * `marks`, `issued` and `stale` are kept: lanes may still read the entry, and markers may be on
 * their way. `gpu` is kept: code that handles a destroyed stream's last marker still uses the
 * entry. Events go with their context, if not before.
 */
static void
reset(struct cgpu_stream *stream)
{
    for (int i = 0; i < CGPU_STREAM_EVENTS; i++) {
        if (stream->events[i] != NULL && cgpu_stream_owner(stream)->handle != NULL) {
            cgpu_real.cuEventDestroy_v2(stream->events[i]);
        }
    }
    cgpu_flight_open(stream, 0);
    *stream = (struct cgpu_stream){
        .marks = stream->marks,
        .issued = stream->issued,
        .stale = stream->stale,
        .born = stream->born + 1,
        .gpu = stream->gpu,
    };
}

static void
unlink_handle(struct cgpu_stream *stream)
{
    if (stream->handle != NULL) {
        uint16_t *link = bucket(stream->handle);
        while (*link != stream->index + 1) {
            link = &cgpu_flow->streams[*link - 1].next;
        }
        *link = stream->next;
        stream->handle = NULL;
        stream->lane = 0;
        cgpu_lane_cut(stream); /* the handle may come again as another stream's */
    }
}

void
cgpu_stream_detach(struct cgpu_stream *stream)
{
    unlink_handle(stream);
    cgpu_stream_release(stream);
}

void
cgpu_stream_drop_context(struct cgpu_flow_context *context)
{
    uint32_t index = (uint32_t)(context - cgpu_flow->contexts);
    context->handle = NULL;
    for (uint32_t i = 0; i < cgpu_flow->stream_bound; i++) {
        struct cgpu_stream *stream = &cgpu_flow->streams[i];
        if (stream->used && stream->context == index) {
            cgpu_flight_pass(stream, UINT64_MAX, cgpu_flow_now(), CGPU_SEEN_LATE);
            unlink_handle(stream);
            reset(stream);
        }
    }
}

static struct cgpu_stream *
free_entry(void)
{
    uint32_t i = 0;
    while (i < CGPU_MAX_STREAMS && cgpu_flow->streams[i].used) {
        i++;
    }
    if (i < CGPU_MAX_STREAMS) {
        cgpu_flow->stream_bound = i < cgpu_flow->stream_bound ? cgpu_flow->stream_bound : i + 1;
        cgpu_flow->streams[i].index = (uint16_t)i;
    }
    return i < CGPU_MAX_STREAMS ? &cgpu_flow->streams[i] : NULL;
}

/* NULL: the table is full. */
static struct cgpu_stream *
add(CUstream handle, const struct cgpu_flow_context *context)
{
    struct cgpu_stream *stream = free_entry();
    if (stream == NULL) { /* some may be those of threads that have ended */
        uint64_t now = cgpu_flow_now();
        cgpu_stream_sweep(now);
        cgpu_flight_harvest(context->gpu, now);
        stream = free_entry();
    }
    if (stream != NULL) {
        stream->used = 1;
        stream->handle = handle;
        stream->context = (uint32_t)(context - cgpu_flow->contexts);
        stream->gpu = context->gpu;
        stream->lane = number_of(handle);
        stream->next = *bucket(handle);
        *bucket(handle) = (uint16_t)(stream->index + 1);
    }
    return stream;
}

void
cgpu_stream_release(struct cgpu_stream *stream)
{
    if (stream->handle == NULL && stream->in_flight == 0 && !cgpu_flight_wants_marker(stream)) {
        reset(stream);
    }
}

/* ---- threads that have ended ---- */

void
cgpu_stream_drop_lane(struct cgpu_lane *lane, uint32_t tid, uint64_t now)
{
    uint32_t number = (uint32_t)(lane - cgpu_flow->lanes) + 1;
    cgpu_lane_reset(lane, tid, now);
    for (uint32_t i = 0; i < cgpu_flow->stream_bound; i++) {
        if (cgpu_flow->streams[i].used && cgpu_flow->streams[i].lane == number) {
            cgpu_stream_detach(&cgpu_flow->streams[i]);
        }
    }
}

void
cgpu_stream_sweep(uint64_t now)
{
    int pid = getpid();
    cgpu_flow->swept_ns = now;
    for (uint32_t i = 0; i < cgpu_flow->lane_bound; i += CGPU_THREAD_LANES) {
        struct cgpu_lane *lane = &cgpu_flow->lanes[i];
        /* a filter may forbid the call; that shows nothing about the thread */
        if (lane->tid != 0 && syscall(SYS_tgkill, pid, lane->tid, 0) != 0 && errno == ESRCH) {
            cgpu_stream_drop_lane(lane, 0, now);
        }
    }
    for (int32_t i = 0; i < CGPU_MAX_GPUS; i++) {
        if (cgpu_flow->gpus[i].work != NULL) {
            cgpu_drain_release(&cgpu_flow->gpus[i], now);
        }
    }
}

/* ---- which context a stream is of ---- */

static CUcontext
context_of(CUstream stream, CUcontext current)
{
    CUcontext context = current;
    bool known = is_default(stream) || cgpu_real.cuStreamGetCtx(stream, &context) == CUDA_SUCCESS;
    return known ? context : NULL;
}

/* The driver is asked in CONTEXT, whichever is current. */
static int32_t
gpu_of(CUcontext context, CUcontext current)
{
    CUdevice device;
    CUcontext popped;
    bool push = context != current;
    bool entered = !push || cgpu_real.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
    bool known = entered && cgpu_real.cuCtxGetDevice(&device) == CUDA_SUCCESS;
    if (push && entered) {
        cgpu_real.cuCtxPopCurrent_v2(&popped);
    }
    return known ? cgpu_device_gpu(device) : CGPU_NO_GPU;
}

/* From now on native/gate may look at streams of GPU. NULL: the table is full. */
static struct cgpu_flow_context *
add_context(CUcontext context, struct cgpu_gate_gpu *gpu)
{
    struct cgpu_flow_context *entry = entry_of(NULL);
    if (entry != NULL) {
        *entry = (struct cgpu_flow_context){.handle = context, .gpu = gpu};
        cgpu_lane_recall(NULL); /* it may be the first on its GPU */
        /* Once: threads that wait at the gate read it without the lock. */
        if (gpu->outside == NULL) {
            gpu->outside = &cgpu_gate_outside;
            gpu->streams = cgpu_flow->streams;
            gpu->stream_bound = &cgpu_flow->stream_bound;
        }
        /* what is launched under a free gate can be marked through it */
        if (add(CU_STREAM_LEGACY_DEFAULT, entry) == NULL) {
            entry->handle = NULL;
            entry = NULL;
        }
    }
    return entry;
}

/* The entry of HANDLE, which has none, in OUT; see cgpu_stream_meet. */
static bool
create(CUstream handle, CUcontext current, struct cgpu_stream **out)
{
    CUcontext context = context_of(handle, current);
    struct cgpu_flow_context *entry = cgpu_stream_context(context);
    int32_t gpu = entry == NULL && context != NULL ? gpu_of(context, current) : CGPU_NO_GPU;
    bool ours = entry != NULL || gpu >= 0;
    if (entry == NULL && ours) {
        entry = add_context(context, &cgpu_flow->gpus[gpu]);
        *out = entry != NULL ? cgpu_stream_find(handle, current) : NULL;
    }
    if (entry != NULL && *out == NULL) {
        *out = add(handle, entry);
    }
    return *out != NULL || !ours;
}

bool
cgpu_stream_meet(CUstream handle, CUcontext current, struct cgpu_stream **out)
{
    *out = cgpu_stream_find(handle, current);
    /* there, or of a thread that has launched nothing */
    return *out != NULL || (handle == CU_STREAM_PER_THREAD_DEFAULT && cgpu_lane->tid == 0) ||
           create(handle, current, out);
}

struct cgpu_stream *
cgpu_stream_own(CUstream handle)
{
    struct cgpu_stream *found;
    cgpu_stream_meet(handle, cgpu_context_current(), &found);
    return found;
}

bool
cgpu_stream_is_capturing(struct cgpu_stream *stream)
{
    stream->captures = stream->captures && cgpu_captures(stream->handle);
    return stream->captures;
}

bool
cgpu_stream_all_on(const struct cgpu_gate_gpu *gpu)
{
    bool all = true;
    for (uint32_t i = 0; i < CGPU_MAX_CONTEXTS && all; i++) {
        const struct cgpu_flow_context *context = &cgpu_flow->contexts[i];
        all = context->handle == NULL || context->gpu == gpu;
    }
    return all;
}
