/*
 * The slow path of a launch: taken about once per batch, when something has changed, or when there
 * is to be waited.
 *
 * Under the lock it is decided whether the thread may go (admit); what it must wait for it waits
 * for without the lock, and then everything is looked at anew.
 */
#include <linux/futex.h>
#include <time.h>

#include "flow.h"
#include "futex.h"
#include "thread.h"

#define SLICE_NS UINT64_C(100000000) /* a waiting thread looks at the gate at least so often */
#define ALONE_NS UINT64_C(1000000)   /* where there is no monitor to look whether it is deserted */

enum verdict {
    GO,     /* launch, it is counted */
    PASS,   /* launch, it is none of our business */
    REFUSE, /* there is no room in our tables */
    SHUT,   /* the gate is closed */
    AGAIN,  /* something changed meanwhile */
    CROWDED /* too much is in flight */
};

struct launch {
    struct cgpu_lane *lane;
    struct cgpu_flow_gpu *gpu;
    struct cgpu_stream *stream;
    CUstream handle;
    CUcontext context; /* current */
    uint64_t key, guess_ns;
    uint64_t begun;      /* when it came */
    uint64_t now, until; /* until: CROWDED, when to look again */
    uint32_t word;       /* of the gate */
};

static void
sleep_ns(uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    nanosleep(&t, NULL);
}

/* ---- where to: context, stream, GPU ---- */

/* PASS: the driver has no such stream or context, or its GPU is none of the container's. */
static enum verdict
locate(struct launch *launch)
{
    launch->stream = cgpu_stream_find(launch->handle, launch->context, launch->lane);
    if (launch->stream == NULL) {
        struct cgpu_flow_context *context;
        enum cgpu_stream_of of = cgpu_stream_of(launch->handle, launch->context, &context);
        if (of != CGPU_STREAM_OF_OURS) {
            return of == CGPU_STREAM_OF_MORE ? REFUSE : PASS;
        }
        launch->stream = cgpu_stream_find(launch->handle, launch->context, launch->lane);
        if (launch->stream == NULL) {
            launch->stream = cgpu_stream_add(launch->handle, context, launch->lane);
        }
        if (launch->stream == NULL) { /* too many at once: counted with the legacy stream */
            launch->stream =
                cgpu_stream_find(CU_STREAM_LEGACY_DEFAULT, context->handle, launch->lane);
        }
    }
    if (launch->stream == NULL) {
        return REFUSE;
    }
    launch->gpu = cgpu_stream_gpu(launch->stream);
    return GO;
}

/* ---- who: this process's work on the GPU ---- */

static enum verdict
claim(struct launch *launch)
{
    struct cgpu_flow_gpu *gpu = launch->gpu;
    uint32_t place = (uint32_t)(gpu - cgpu_flow->gpus);
    struct cgpu_ledger_work *work;
    if (gpu->work != NULL) {
        return GO;
    }
    if (cgpu_work_claim(cgpu_state->ledger, place, &work) != 0) {
        return REFUSE;
    }
    cgpu_monitor_wake();
    cgpu_pace_init(&gpu->pace);
    gpu->work = work;
    cgpu_monitor_arbitrated(place, launch->now);
    return GO;
}

/*
 * Say that there may be work under the gate word, then look whether it is still that: the arbiter
 * does it the other way round, so one of the two sees the other.
 */
static bool
publish(struct launch *launch)
{
    struct cgpu_ledger_work *work = launch->gpu->work;
    if (__atomic_load_n(&work->active, __ATOMIC_RELAXED) == launch->word) {
        return true;
    }
    __atomic_store_n(&work->active, launch->word, __ATOMIC_SEQ_CST);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return cgpu_flow_gate(launch->gpu) == launch->word;
}

/* ---- may it go ---- */

static void
move_to(struct cgpu_lane *lane, const struct launch *launch)
{
    int32_t gpu = (int32_t)(launch->gpu - cgpu_flow->gpus);
    if (lane->gpu != gpu && lane->gpu >= 0 && lane->state != launch->stream) {
        cgpu_lane_hand_over(lane, launch->now);
    }
    lane->gpu = gpu;
    __atomic_store_n(&lane->gate, cgpu_lane_distance(launch->gpu->gate), __ATOMIC_RELAXED);
}

/*
 * Streams of every context may be launched into, whichever is current: the free gate of one GPU is
 * a permit for all of them only if they are all on it, and known, so that they can be marked.
 */
static bool
is_all_here(const struct launch *launch)
{
    int32_t gpu = (int32_t)(launch->gpu - cgpu_flow->gpus);
    bool here = !cgpu_flow->more;
    for (uint32_t i = 0; i < CGPU_MAX_CONTEXTS; i++) {
        const struct cgpu_flow_context *context = &cgpu_flow->contexts[i];
        here = here && (context->handle == NULL || context->gpu == gpu);
    }
    return here;
}

/* Until it leaves, the monitor waits for this thread. */
static enum verdict
let_in(struct launch *launch)
{
    struct cgpu_lane *lane = launch->lane;
    struct cgpu_lane *first = cgpu_lane_first(lane);
    bool hot = cgpu_flow->barrier != 0 && !lane->alone;
    bool metered = cgpu_gate_is_metered(launch->word);
    bool free = hot && !metered && is_all_here(launch);
    launch->gpu->settled = CGPU_UNSETTLED; /* the same word may be back in force after a fallback */
    move_to(lane, launch);
    first->context = launch->context;
    lane->pace = &launch->gpu->pace;
    first->streams[lane - first] = launch->handle;
    first->last = (uint32_t)(lane - first);
    if (free) {
        move_to(first, launch);
    }
    __atomic_store_n(&first->free, free ? launch->word : 0, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->word, hot && (!metered || !launch->stream->unsure) ? launch->word : 0,
                     __ATOMIC_RELAXED);
    __atomic_store_n(&lane->inside, 1, __ATOMIC_SEQ_CST);
    return GO;
}

/* From now on the lane is that of the stream. */
static void
join(struct launch *launch)
{
    struct cgpu_lane *lane = launch->lane;
    if (lane->state != launch->stream || lane->marks != launch->stream->marks) {
        cgpu_lane_hand_over(lane, launch->now);
        lane->state = launch->stream;
        lane->marks = launch->stream->marks;
        lane->key = launch->key;
    }
}

/* Join the batch of the stream, or begin it. */
static void
count(struct launch *launch, uint64_t ns)
{
    struct cgpu_lane *lane = launch->lane;
    struct cgpu_stream *stream = launch->stream;
    join(launch);
    if (stream->begun_ns == 0) {
        stream->begun_ns = launch->now;
    }
    lane->mixed |= lane->key ^ launch->key;
    __atomic_store_n(&lane->work_ns, lane->work_ns + ns, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->launches, lane->launches + 1, __ATOMIC_RELAXED);
    stream->unsure |= ns == 0;
    __atomic_store_n(&cgpu_flow->counted, 1, __ATOMIC_RELAXED);
    /* relaxed: it may be seen late, but then the gate closes on a batch that it waits for */
    __atomic_store_n(&launch->gpu->work->idle, 0, __ATOMIC_RELAXED);
}

/* What a capturing stream was given does not run: it neither waits nor counts. */
static bool
drop_captured(struct launch *launch)
{
    if (!cgpu_marker_captures(launch->stream)) {
        return false;
    }
    if (launch->lane->state == launch->stream) {
        cgpu_lane_hand_over(launch->lane, launch->now);
    }
    launch->stream->pending = (struct cgpu_unmarked){0};
    launch->stream->unsure = 0;
    launch->stream->begun_ns = 0;
    return true;
}

static enum verdict
admit_metered(struct launch *launch)
{
    struct cgpu_flow_gpu *gpu = launch->gpu;
    struct cgpu_unmarked batch;
    uint64_t ns = cgpu_pace_estimate(&gpu->pace, launch->key);
    ns = ns != 0 ? ns : launch->guess_ns;
    cgpu_marker_sum(launch->stream, &batch);
    bool full = batch.launches != 0 &&
                (ns == 0 || launch->stream->unsure || batch.work_ns + ns >= CGPU_PACE_BATCH_NS);
    if ((full || ns == 0) && drop_captured(launch)) {
        return PASS;
    }
    bool cut = !full || cgpu_marker_cut(launch->stream, launch->now);
    cgpu_marker_harvest(gpu, launch->now);
    launch->until =
        cut ? cgpu_pace_room(&gpu->pace, launch->now) : launch->now + CGPU_PACE_FLIGHT_NS;
    if (launch->until != 0 && !cgpu_await_too_long(gpu, launch->begun, launch->now)) {
        return drop_captured(launch) ? PASS : CROWDED;
    }
    count(launch, ns);
    return let_in(launch);
}

static enum verdict
admit(struct launch *launch)
{
    launch->word = cgpu_flow_gate(launch->gpu);
    if (!cgpu_gate_is_open(launch->word)) {
        return drop_captured(launch) ? PASS : SHUT;
    }
    if (!publish(launch)) {
        return AGAIN;
    }
    if (!cgpu_gate_is_metered(launch->word)) {
        launch->gpu->unmetered = 1;
        join(launch);
        return let_in(launch);
    }
    return admit_metered(launch);
}

/* ---- waiting, without the lock ---- */

static void
wait_for_gate(struct launch *launch)
{
    struct cgpu_ledger_work *work = launch->gpu->work;
    uint32_t place = (uint32_t)(launch->gpu - cgpu_flow->gpus);
    /* seq_cst: the arbiter that does not see it is seen to have opened the gate */
    __atomic_add_fetch(&work->waiting, 1, __ATOMIC_SEQ_CST);
    cgpu_work_ring(cgpu_state->ledger, place);
    for (;;) {
        uint64_t begun = cgpu_flow_now();
        const uint32_t *gate = __atomic_load_n(&launch->gpu->gate, __ATOMIC_ACQUIRE);
        uint32_t word = __atomic_load_n(gate, __ATOMIC_ACQUIRE);
        if (cgpu_gate_is_open(word)) {
            break;
        }
        struct timespec slice = {0, launch->lane->alone ? (long)ALONE_NS : (long)SLICE_NS};
        cgpu_futex_wait((uint32_t *)(uintptr_t)gate, FUTEX_WAIT, word, &slice);
        __atomic_add_fetch(&work->waited_ns, cgpu_flow_now() - begun, __ATOMIC_RELAXED);
        if (launch->lane->alone) { /* what the monitor left behind when the process began to exit */
            cgpu_flow_lock();
            cgpu_monitor_serve(place, cgpu_flow_now());
            cgpu_flow_unlock();
        }
    }
    __atomic_sub_fetch(&work->waiting, 1, __ATOMIC_RELAXED);
}

static void
wait_for(struct launch *launch, enum verdict verdict)
{
    if (verdict == SHUT) {
        wait_for_gate(launch);
    } else if (verdict == CROWDED) {
        uint64_t now = cgpu_flow_now();
        /* relaxed: the monitor must only not take a thread that is woken late for an idle one */
        __atomic_add_fetch(&launch->gpu->crowded, 1, __ATOMIC_RELAXED);
        sleep_ns(launch->until > now ? launch->until - now : 0);
        __atomic_sub_fetch(&launch->gpu->crowded, 1, __ATOMIC_RELAXED);
    }
}

/* One look, under the lock. */
static enum verdict
look(struct launch *launch)
{
    launch->now = cgpu_flow_now();
    enum verdict verdict = locate(launch);
    if (verdict == GO) {
        verdict = claim(launch);
    }
    if (verdict == GO) {
        launch->lane->alone = !cgpu_monitor_start();
        if (launch->lane->alone) {
            cgpu_monitor_arbitrated((uint32_t)(launch->gpu - cgpu_flow->gpus), launch->now);
        }
        verdict = admit(launch);
    }
    return verdict;
}

static CUresult
enter(struct launch *launch)
{
    for (;;) {
        cgpu_flow_lock();
        enum verdict verdict = look(launch);
        cgpu_flow_unlock();
        switch (verdict) {
        case GO:
        case PASS:
            return CUDA_SUCCESS;
        case REFUSE:
            cgpu_log_text(CGPU_LOG_COMPUTE,
                          "launches refused: ", "too many processes, contexts or streams at once");
            return CUDA_ERROR_NOT_PERMITTED;
        default:
            wait_for(launch, verdict);
        }
    }
}

CUresult
cgpu_enter(CUstream stream, uint64_t key, uint64_t guess_ns)
{
    struct launch launch = {.handle = stream, .key = key, .guess_ns = guess_ns};
    uint32_t depth = cgpu_thread.depth;
    struct cgpu_lane *before = cgpu_lane_of(cgpu_lane, stream);
    if (before != NULL) {
        __atomic_store_n(&before->inside, 0, __ATOMIC_RELEASE);
    }
    if (!cgpu_state_is_attached()) {
        return CUDA_SUCCESS; /* the driver says that it is not initialised */
    }
    cgpu_thread.depth = 1;
    CUresult status = CUDA_ERROR_NOT_PERMITTED;
    struct cgpu_lane *first = cgpu_flow != NULL ? cgpu_lane_take() : NULL;
    if (first == NULL) {
        cgpu_log_text(CGPU_LOG_COMPUTE, "launches refused: ", "too many threads launch");
    } else {
        launch.lane = cgpu_lane_for(first, stream);
        launch.begun = cgpu_flow_now();
        cgpu_real.cuCtxGetCurrent(&launch.context);
        status = enter(&launch);
    }
    cgpu_thread.depth = depth;
    return status;
}

/* ---- leaving, where it is not a plain store ---- */

/* Nobody marks what this thread leaves behind: wait for its end here. */
void
cgpu_enter_leave(struct cgpu_lane *lane)
{
    uint32_t depth = cgpu_thread.depth;
    __atomic_store_n(&lane->inside, 0, __ATOMIC_RELEASE);
    if (lane->gpu < 0) {
        return;
    }
    cgpu_thread.depth = 1;
    for (bool ended = false; !ended;) {
        cgpu_flow_lock();
        ended = cgpu_flow_is_closing() || cgpu_drain_finish((uint32_t)lane->gpu, cgpu_flow_now());
        cgpu_flow_unlock();
        if (!ended) {
            sleep_ns(CGPU_PACE_IDLE_NS / 4);
        }
    }
    cgpu_thread.depth = depth;
}
