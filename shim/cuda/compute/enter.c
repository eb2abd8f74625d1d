/*
 * The slow path of a launch: taken about once per batch, when something has changed, or when there
 * is to be waited.
 *
 * Under the lock it is decided whether the thread may go (admit); what it must wait for it waits
 * for without the lock, and then everything is looked at anew.
 */
#include <linux/futex.h>
#include <time.h>

#include "compute/capture.h"
#include "compute/enter.h"
#include "compute/flow.h"
#include "compute/lane.h"
#include "compute/monitor.h"
#include "compute/stream.h"
#include "entry/thread.h"
#include "futex.h"
#include "gate/enter.h"
#include "gate/flight.h"

#define SLICE_NS UINT64_C(100000000) /* a waiting thread looks at the gate at least so often */
#define ALONE_NS UINT64_C(1000000)   /* the same without a monitor */

enum verdict {
    GO,     /* launch, it is counted */
    PASS,   /* launch, it is none of our business */
    REFUSE, /* there is no room in our tables */
    SHUT,   /* the gate is closed */
    AGAIN,  /* something changed meanwhile */
    FULL    /* too much is in flight */
};

struct launch {
    struct cgpu_lane *lane;
    struct cgpu_gate_gpu *gpu;
    struct cgpu_stream *stream;
    CUstream handle;
    CUcontext context; /* current */
    uint64_t key, guess_ns;
    uint64_t now, until; /* until: FULL, when to look again */
    uint32_t word;       /* of the gate */
    const char *why;     /* REFUSE */
};

_Static_assert((int)CGPU_MAX_CONTEXTS == 512 && (int)CGPU_LEDGER_WORKS == 512 &&
                   (int)CGPU_MAX_THREADS == 8192 && (int)CGPU_MAX_STREAMS == 8192,
               "what the sentences say");
#define TOO_MANY_STREAMS "the process has 512 contexts or 8,192 streams already; destroy some"
#define TOO_MANY_THREADS "8,192 threads of the process launch already; end some"
#define TOO_MANY_PROCESSES                                                                         \
    "512 processes of the container launch already, counted for each GPU; end some"

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
    enum cgpu_stream_of of =
        cgpu_stream_meet(launch->handle, launch->context, launch->lane, &launch->stream);
    if (of != CGPU_STREAM_OF_OURS) {
        launch->why = TOO_MANY_STREAMS;
        return of == CGPU_STREAM_OF_MORE ? REFUSE : PASS;
    }
    launch->gpu = launch->stream->gpu;
    return GO;
}

/* ---- who: this process's work on the GPU ---- */

static enum verdict
claim(struct launch *launch)
{
    struct cgpu_gate_gpu *gpu = launch->gpu;
    uint32_t number = (uint32_t)(gpu - cgpu_flow->gpus);
    struct cgpu_ledger_work *work;
    if (gpu->work != NULL) {
        return GO;
    }
    if (cgpu_work_claim(cgpu_state->ledger, number, &work) != 0) {
        launch->why = TOO_MANY_PROCESSES;
        return REFUSE;
    }
    cgpu_monitor_wake();
    cgpu_pace_init(&gpu->pace);
    gpu->work = work;
    gpu->sums = cgpu_work_sums(cgpu_state->ledger, number);
    gpu->quiet_gate = &cgpu_limits->gpus[number].quiet_gate;
    cgpu_monitor_arbitrated(number, launch->now);
    return GO;
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

/* Until it leaves, the monitor waits for this thread. */
static enum verdict
let_in(struct launch *launch)
{
    struct cgpu_lane *lane = launch->lane;
    struct cgpu_lane *first = cgpu_lane_first(lane);
    bool hot = cgpu_flow->barrier != 0, metered = cgpu_gate_is_metered(launch->word);
    bool looks = launch->stream->unsure || launch->gpu->pace.probed_ns != 0;
    bool free = hot && !metered && cgpu_stream_all_on(launch->gpu);
    move_to(lane, launch);
    first->context = launch->context;
    lane->pace = &launch->gpu->pace;
    first->streams[lane - first] = launch->handle;
    first->last = (uint32_t)(lane - first);
    if (free) {
        move_to(first, launch);
    }
    __atomic_store_n(&first->free, free ? launch->word : 0, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->word, hot && (!metered || !looks) ? launch->word : 0, __ATOMIC_RELAXED);
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
        cgpu_lane_join(lane, launch->stream);
        lane->key = launch->key;
    }
}

static void
count(struct launch *launch, uint64_t ns)
{
    struct cgpu_lane *lane = launch->lane;
    join(launch);
    lane->mixed |= lane->key ^ launch->key;
    __atomic_store_n(&lane->work_ns, lane->work_ns + ns, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->launches, lane->launches + 1, __ATOMIC_RELAXED);
    cgpu_enter_count(launch->stream, ns, launch->now);
    __atomic_store_n(&cgpu_flow->counted, 1, __ATOMIC_RELAXED);
}

static enum verdict
admit_metered(struct launch *launch)
{
    struct cgpu_stream *stream = launch->stream;
    const struct cgpu_lane *lane = launch->lane;
    uint64_t ns = cgpu_pace_estimate(&launch->gpu->pace, launch->key);
    ns = ns != 0 ? ns : launch->guess_ns;
    cgpu_flight_harvest(launch->gpu, launch->now);
    struct cgpu_unmarked batch = cgpu_flight_unmarked(stream);
    bool full = cgpu_enter_ends_batch(stream, &batch, ns);
    bool apart = stream->apart != CGPU_APART_NOT;
    launch->until = cgpu_enter_room(stream, launch->word, &batch, full, ns, launch->now);
    if (launch->until != 0) {
        return FULL;
    }
    if (lane->state == stream && (apart || lane->work_ns + ns >= CGPU_PACE_BATCH_NS)) {
        cgpu_lane_hand_over(launch->lane, launch->now); /* for the hot path to go on */
    }
    count(launch, ns);
    return let_in(launch);
}

static enum verdict
admit(struct launch *launch)
{
    if (cgpu_capture_is_on(launch->stream, launch->handle)) {
        return PASS; /* what it was given does not run: it neither waits nor counts */
    }
    launch->word = cgpu_gate_word(launch->gpu);
    if (!cgpu_gate_is_open(launch->word)) {
        return SHUT;
    }
    if (!cgpu_enter_begin(launch->stream, launch->word, launch->now)) {
        return AGAIN;
    }
    if (!cgpu_gate_is_metered(launch->word)) {
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
    uint32_t number = (uint32_t)(launch->gpu - cgpu_flow->gpus);
    /* seq_cst: the arbiter that does not see it is seen to have opened the gate */
    __atomic_add_fetch(&work->waiting, 1, __ATOMIC_SEQ_CST);
    cgpu_work_ring(cgpu_state->ledger, number);
    for (;;) {
        uint64_t begun = cgpu_flow_now();
        cgpu_flow_lock();
        bool helped = cgpu_monitor_attend(begun);
        cgpu_flow_unlock();
        const uint32_t *gate = __atomic_load_n(&launch->gpu->gate, __ATOMIC_ACQUIRE);
        uint32_t word = __atomic_load_n(gate, __ATOMIC_ACQUIRE);
        if (cgpu_gate_is_open(word)) {
            break;
        }
        struct timespec slice = {0, helped ? (long)SLICE_NS : (long)ALONE_NS};
        cgpu_futex_wait((uint32_t *)(uintptr_t)gate, FUTEX_WAIT, word, &slice);
    }
    __atomic_sub_fetch(&work->waiting, 1, __ATOMIC_RELAXED);
}

static void
wait_for(struct launch *launch, enum verdict verdict)
{
    int cancel = cgpu_flow_hold_on();
    if (verdict == SHUT) {
        wait_for_gate(launch);
    } else if (verdict == FULL) {
        uint64_t now = cgpu_flow_now();
        /* relaxed: the monitor must only not take a thread that is woken late for an idle one */
        __atomic_add_fetch(&launch->gpu->threads_waiting, 1, __ATOMIC_RELAXED);
        sleep_ns(launch->until > now ? launch->until - now : 0);
        __atomic_sub_fetch(&launch->gpu->threads_waiting, 1, __ATOMIC_RELAXED);
    }
    cgpu_flow_let_be(cancel);
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
        cgpu_monitor_attend(launch->now);
        verdict = admit(launch);
    }
    return verdict;
}

static CUresult
wait_without(pthread_mutex_t *held, struct launch *launch, enum verdict verdict)
{
    pthread_mutex_unlock(held);
    wait_for(launch, verdict);
    pthread_mutex_lock(held);
    return CUDA_ERROR_NOT_READY;
}

static CUresult
enter(struct launch *launch, pthread_mutex_t *held)
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
            cgpu_log_text(CGPU_LOG_COMPUTE, "launches refused: ", launch->why);
            return CUDA_ERROR_NOT_PERMITTED;
        default:
            if (held != NULL) {
                return wait_without(held, launch, verdict);
            }
            wait_for(launch, verdict);
        }
    }
}

CUresult
cgpu_enter(CUstream stream, uint64_t key, uint64_t guess_ns, pthread_mutex_t *held)
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
        cgpu_log_text(CGPU_LOG_COMPUTE, "launches refused: ",
                      cgpu_flow != NULL ? TOO_MANY_THREADS : "there was no memory at the start");
    } else {
        launch.lane = cgpu_lane_for(first, stream);
        cgpu_real.cuCtxGetCurrent(&launch.context);
        status = enter(&launch, held);
    }
    cgpu_thread.depth = depth;
    return status;
}
