/*
 * Streams beyond the table: only their handles are kept.
 *
 * When the table is full, a stream of which nothing is known to be under way makes room for the
 * next one. The thread that launches into it gets it back into the table, so that nothing is
 * launched into it metered while it is here. Under a free gate launches are not counted: when it
 * closes, any stream may have work. Each stream here is then asked whether it is idle, some at each
 * look, and one that is not is put into the table and gets a marker. While the table has no room
 * for it, or the handles of some streams are not known either, the process counts as busy for as
 * long as for a stream that makes no progress: a second (native/gate/apart.c). Under the lock.
 *
 * Assumed of the driver: cuStreamQuery does not wait for the stream.
 */
#include "compute/beyond.h"
#include "compute/flow.h"
#include "compute/marker.h"
#include "compute/stream.h"
#include "gate/flight.h"

enum { ASK_MOST = 64 }; /* at each look: it takes some 100 us */

static int32_t
gpu_of(const struct cgpu_beyond *entry)
{
    return cgpu_flow->contexts[entry->context].gpu;
}

static void
remove_at(uint32_t i)
{
    struct cgpu_beyond *entry = &cgpu_flow->beyond[i];
    cgpu_flow->gpus[gpu_of(entry)].beyond -= entry->suspect;
    *entry = cgpu_flow->beyond[--cgpu_flow->beyond_count];
}

/* There may be work on GPU in a stream that nobody can ask, or not at once. */
static void
doubt(struct cgpu_gate_gpu *gpu, bool unknown, uint64_t now)
{
    cgpu_flow_more(gpu)->beyond_more |= unknown;
    gpu->beyond_busy = 1;
    cgpu_flow_more(gpu)->beyond_ns = now;
}

void
cgpu_beyond_keep(CUstream handle, struct cgpu_flow_context *context)
{
    if (cgpu_flow->beyond_count == CGPU_MAX_BEYOND) {
        context->unknown = 1;
        return;
    }
    cgpu_flow->beyond[cgpu_flow->beyond_count++] = (struct cgpu_beyond){
        .handle = handle,
        .context = (uint32_t)(context - cgpu_flow->contexts),
    };
}

void
cgpu_beyond_keep_used(CUstream handle, struct cgpu_flow_context *context, uint64_t now)
{
    struct cgpu_gate_gpu *gpu = &cgpu_flow->gpus[context->gpu];
    bool known = cgpu_flow->beyond_count < CGPU_MAX_BEYOND;
    cgpu_beyond_keep(handle, context);
    if (known) {
        cgpu_flow->beyond[cgpu_flow->beyond_count - 1].suspect = 1;
        gpu->beyond += 1;
    }
    doubt(gpu, !known, now);
}

static uint32_t
find(CUstream handle)
{
    uint32_t i = cgpu_flow->beyond_count;
    while (i > 0 && cgpu_flow->beyond[i - 1].handle != handle) {
        i--;
    }
    return i;
}

bool
cgpu_beyond_forget(CUstream handle)
{
    uint32_t i = find(handle);
    bool suspect = i != 0 && cgpu_flow->beyond[i - 1].suspect;
    if (i != 0) {
        remove_at(i - 1);
    }
    return suspect;
}

void
cgpu_beyond_destroy(CUstream handle, uint64_t now)
{
    uint32_t i = find(handle);
    if (i == 0) {
        return;
    }
    struct cgpu_gate_gpu *gpu = &cgpu_flow->gpus[gpu_of(&cgpu_flow->beyond[i - 1])];
    if (cgpu_flow->beyond[i - 1].suspect && gpu->beyond_busy) {
        doubt(gpu, true, now);
    }
    remove_at(i - 1);
}

void
cgpu_beyond_drop_context(const struct cgpu_flow_context *context)
{
    uint32_t index = (uint32_t)(context - cgpu_flow->contexts);
    for (uint32_t i = cgpu_flow->beyond_count; i > 0; i--) {
        if (cgpu_flow->beyond[i - 1].context == index) {
            remove_at(i - 1);
        }
    }
}

void
cgpu_beyond_suspect(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    int32_t index = (int32_t)(gpu - cgpu_flow->gpus);
    gpu->beyond = 0;
    for (uint32_t i = 0; i < cgpu_flow->beyond_count; i++) {
        if (gpu_of(&cgpu_flow->beyond[i]) == index) {
            cgpu_flow->beyond[i].suspect = 1;
            gpu->beyond += 1;
        }
    }
    cgpu_flow_more(gpu)->beyond_ns = now;
    gpu->beyond_busy = gpu->beyond != 0;
    for (uint32_t i = 0; i < CGPU_MAX_CONTEXTS; i++) {
        const struct cgpu_flow_context *context = &cgpu_flow->contexts[i];
        if (context->handle != NULL && context->gpu == index && context->unknown) {
            doubt(gpu, true, now);
        }
    }
}

/* What the entry at I may have under way gets a marker. False: there is no room for it now. */
static bool
promote(struct cgpu_gate_gpu *gpu, uint32_t i, uint64_t now)
{
    struct cgpu_beyond entry = cgpu_flow->beyond[i];
    if (!cgpu_flight_has_slot(gpu, now)) {
        return false;
    }
    struct cgpu_stream *stream =
        cgpu_stream_add(entry.handle, &cgpu_flow->contexts[entry.context], NULL);
    if (stream == NULL) {
        return false;
    }
    remove_at(i);
    cgpu_flight_suspect(stream);
    cgpu_flight_cut(stream, now);
    return true;
}

static void
ask_some(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    int32_t index = (int32_t)(gpu - cgpu_flow->gpus);
    uint32_t asked = 0;
    for (uint32_t seen = 0; seen < cgpu_flow->beyond_count && asked < ASK_MOST; seen++) {
        uint32_t i = cgpu_flow->beyond_at++ % cgpu_flow->beyond_count;
        struct cgpu_beyond *entry = &cgpu_flow->beyond[i];
        if (!entry->suspect || gpu_of(entry) != index) {
            continue;
        }
        asked++;
        if (cgpu_marker_has_ended(&cgpu_flow->contexts[entry->context], entry->handle)) {
            entry->suspect = 0;
            gpu->beyond -= 1;
        } else {
            promote(gpu, i, now);
        }
    }
}

void
cgpu_beyond_look(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    if (gpu->beyond != 0) {
        ask_some(gpu, now);
    }
    if (now > cgpu_flow_more(gpu)->beyond_ns &&
        now - cgpu_flow_more(gpu)->beyond_ns >= CGPU_APART_STAYS_NS) {
        cgpu_flow_more(gpu)->beyond_more = 0;
        gpu->beyond_busy = 0;
    } else if (gpu->beyond == 0 && !cgpu_flow_more(gpu)->beyond_more) {
        gpu->beyond_busy = 0;
    }
}
