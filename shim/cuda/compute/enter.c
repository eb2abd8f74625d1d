/*
 * The slow path of a launch. It is taken about once per batch, when something has changed, or when
 * the thread has to wait.
 *
 * `admit` decides under the lock whether the thread may launch. If the thread has to wait, it waits
 * without the lock, and then checks everything again.
 */
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "compute/batch_slot.h"
#include "compute/enter.h"
#include "compute/launch_state.h"
#include "compute/monitor.h"
#include "compute/stream.h"
#include "entry/thread.h"
#include "futex.h"
#include "gate/enter.h"
#include "gate/flight.h"

enum verdict {
    GO,     /* launch: it is counted, or need not be */
    REFUSE, /* there is no room in our tables */
    SHUT,   /* the gate is closed, or has just changed */
    FULL    /* too much is in flight */
};

struct launch {
    struct cgpu_batch_slot *slot;
    struct cgpu_gate_gpu *gpu;
    struct cgpu_stream *stream;
    CUstream handle;
    CUcontext context; /* current */
    uint64_t key, guess_ns;
    uint64_t now, until; /* until: if FULL, when to check again */
    uint32_t word;       /* of the gate */
    uint32_t freed;      /* FULL: see gate/permits.h */
    bool queues;
    bool helped;     /* there is a helper thread */
    const char *why; /* REFUSE */
};

_Static_assert((int)CGPU_LEDGER_WORKS == 512 && (int)CGPU_MAX_THREADS == 8192,
               "what the sentences say");
#define TOO_MANY_THREADS "8,192 threads of the process launch already; end some"
#define TOO_MANY_PROCESSES                                                                         \
    "512 processes of the container launch already, counted for each GPU; end some"

/* Point cgpu_batch_slots at slots of the calling thread's own, if some are free. */
static void
take_slots(void)
{
    uint32_t tid = (uint32_t)syscall(SYS_gettid);
    uint64_t now = cgpu_host_clock_now();
    cgpu_launch_lock();
    struct cgpu_batch_slot *slot = cgpu_batch_slot_find(tid);
    if (slot == NULL) {
        cgpu_stream_sweep(now);
        slot = cgpu_batch_slot_find(tid);
    }
    if (slot != NULL) {
        cgpu_stream_drop_thread(slot, tid, now);
        cgpu_batch_slots = slot;
    }
    cgpu_launch_unlock();
}

/*
 * The calling thread's slot for STREAM. If there is none, the slot that is next to be given up.
 * NULL: CGPU_MAX_THREADS threads have slots.
 */
static struct cgpu_batch_slot *
slot_for(CUstream stream)
{
    if (cgpu_batch_slots->tid == 0) {
        take_slots();
    }
    struct cgpu_batch_slot *slot = cgpu_batch_slot_of(cgpu_batch_slots, stream);
    slot = slot != NULL ? slot : &cgpu_batch_slots[cgpu_batch_slots->turn % CGPU_THREAD_SLOTS];
    return cgpu_batch_slots->tid != 0 ? slot : NULL;
}

/* Claim this process's work on the GPU in the ledger. False: there is no room for it. */
static bool
claim_work(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    uint32_t number = (uint32_t)(gpu - cgpu_launch_state->gpus);
    struct cgpu_ledger_work *work;
    if (gpu->work == NULL && cgpu_work_claim(cgpu_state->ledger, number, &work) == 0) {
        gpu->work = work;
        gpu->sums = cgpu_work_sums(cgpu_state->ledger, number);
        gpu->limits = &cgpu_limits->gpus[number];
        cgpu_monitor_add(number, now);
    }
    return gpu->work != NULL;
}

/* ---- may it go ---- */

static void
set_gpu(struct cgpu_batch_slot *slot, struct cgpu_gate_gpu *gpu)
{
    slot->gpu = gpu;
    slot->gate = (uintptr_t)gpu->gate - (uintptr_t)cgpu_gate_base;
}

/* Let the thread launch. The monitor waits for it until it has left the launch. */
static void
let_in(struct launch *launch)
{
    struct cgpu_batch_slot *slot = launch->slot;
    struct cgpu_batch_slot *first = cgpu_batch_slots;
    bool hot = cgpu_launch_state->barrier != 0, metered = cgpu_gate_is_metered(launch->word);
    bool looks = launch->stream->unsure || launch->gpu->pace.probed_ns != 0;
    bool free = hot && !metered && cgpu_stream_all_on(launch->gpu);
    set_gpu(slot, launch->gpu);
    first->context = launch->context;
    first->streams[slot - first] = launch->handle;
    first->turn = (uint32_t)(slot - first) + 1;
    if (free) {
        set_gpu(first, launch->gpu);
    }
    __atomic_store_n(&first->free, free ? launch->word : 0, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->word, hot && (!metered || !looks) ? launch->word : 0, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->inside, 1, __ATOMIC_SEQ_CST);
}

/* Under a metered gate: count the launch, if there is room for it. */
static bool
count_launch(struct launch *launch)
{
    struct cgpu_stream *stream = launch->stream;
    struct cgpu_batch_slot *slot = launch->slot;
    uint64_t ns = cgpu_pace_estimate(&launch->gpu->pace, launch->key);
    ns = ns != 0 ? ns : launch->guess_ns;
    bool guessed = ns == 0;
    ns = guessed ? cgpu_guess_next(&launch->gpu->pace.guess) : ns;
    launch->until = cgpu_enter_room(stream, launch->word, ns, launch->now);
    launch->queues = launch->gpu->queued_ns != 0;
    launch->freed = launch->gpu->freed;
    if (launch->until != 0) {
        return false;
    }
    uint64_t learnt = cgpu_pace_estimate(&launch->gpu->pace, launch->key);
    if (learnt != 0) { /* by checking the markers that found room */
        ns = learnt;
        guessed = false;
    }
    bool stalled = stream->stall != CGPU_STALL_NONE;
    slot->most_ns = (uint32_t)cgpu_enter_batch_limit(stream, launch->word);
    if (slot->stream == stream && (stalled || slot->work_ns + ns >= slot->most_ns)) {
        cgpu_batch_slot_hand_over(slot, launch->now); /* for the hot path to go on */
    }
    cgpu_batch_slot_join(slot, stream, launch->key, launch->now);
    cgpu_batch_slot_add(slot, launch->key, slot->work_ns + ns);
    cgpu_enter_count(stream, ns, guessed, launch->now);
    __atomic_store_n(&cgpu_launch_state->counted, 1, __ATOMIC_RELAXED);
    return true;
}

static enum verdict
admit(struct launch *launch)
{
    enum verdict verdict = GO;
    if (cgpu_stream_is_capturing(launch->stream)) {
        return verdict; /* what it captures does not run: it neither waits nor counts */
    }
    launch->word = cgpu_gate_word(launch->gpu);
    if (!cgpu_gate_is_open(launch->word) ||
        !cgpu_enter_begin(launch->stream, launch->word, launch->now)) {
        verdict = SHUT;
    } else if (!cgpu_gate_is_metered(launch->word)) {
        cgpu_batch_slot_join(launch->slot, launch->stream, launch->key, launch->now);
    } else if (!count_launch(launch)) {
        verdict = FULL;
    }
    if (verdict == GO) {
        let_in(launch);
    }
    return verdict;
}

/* ---- waiting, without the lock ---- */

static void
wait_for_gate(struct launch *launch)
{
    struct cgpu_ledger_work *work = launch->gpu->work;
    uint32_t slept = 0; /* the word under which it last slept */
    /* seq_cst: if the arbiter does not see it, this thread sees that the gate has opened */
    __atomic_add_fetch(&work->waiting, 1, __ATOMIC_SEQ_CST);
    launch->gpu->ops->ring(launch->gpu);
    for (;;) {
        uint64_t begun = cgpu_host_clock_now();
        cgpu_launch_lock();
        bool helped = cgpu_monitor_attend(begun);
        cgpu_launch_unlock();
        const uint32_t *gate = __atomic_load_n(&launch->gpu->gate, __ATOMIC_ACQUIRE);
        uint32_t word = __atomic_load_n(gate, __ATOMIC_ACQUIRE);
        if (cgpu_gate_is_open(word)) {
            break;
        }
        if (slept != 0 && word != slept) { /* it was stopped, or had no processor */
            __atomic_add_fetch(&work->missed, 1, __ATOMIC_RELAXED);
            launch->gpu->ops->ring(launch->gpu);
        }
        slept = word;
        struct timespec slice = {0, helped ? (long)CGPU_ENTER_SLICE_NS : (long)CGPU_ENTER_ALONE_NS};
        cgpu_futex_wait((uint32_t *)(uintptr_t)gate, FUTEX_WAIT, word, &slice);
    }
    __atomic_sub_fetch(&work->waiting, 1, __ATOMIC_RELAXED);
}

static void
wait_for_room(struct launch *launch)
{
    uint64_t now = cgpu_host_clock_now();
    uint64_t ns = launch->until > now ? launch->until - now : 0;
    ns = launch->helped ? ns : cgpu_lesser(ns, CGPU_ENTER_ALONE_NS);
    struct timespec left = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    /* relaxed: it only keeps the monitor from taking a thread that wakes up late for idle */
    __atomic_add_fetch(&launch->gpu->threads_waiting, 1, __ATOMIC_RELAXED);
    if (launch->queues) {
        cgpu_futex_wait(&launch->gpu->sums->freed, FUTEX_WAIT, launch->freed, &left);
    } else {
        nanosleep(&left, NULL);
    }
    __atomic_sub_fetch(&launch->gpu->threads_waiting, 1, __ATOMIC_RELAXED);
}

/* Check once, under the lock, whether the thread may launch. */
static enum verdict
try_enter(struct launch *launch)
{
    enum verdict verdict = REFUSE;
    launch->now = cgpu_host_clock_now();
    if (launch->slot == NULL) {
        launch->why = TOO_MANY_THREADS;
    } else if (!cgpu_stream_ensure(launch->handle, launch->context, &launch->stream)) {
        launch->why = CGPU_STREAM_TOO_MANY;
    } else if (launch->stream == NULL) {
        verdict = GO;
    } else if (!claim_work(launch->stream->gpu, launch->now)) {
        launch->why = TOO_MANY_PROCESSES;
    } else {
        launch->gpu = launch->stream->gpu;
        launch->helped = cgpu_monitor_attend(launch->now);
        cgpu_enter_end_rest(launch->gpu, launch->now);
        verdict = admit(launch);
    }
    return verdict;
}

/* Wait without the lock, and without HELD. Afterwards, what HELD protects must be checked again. */
static void
wait_unlocked(struct launch *launch, enum verdict verdict, pthread_mutex_t *held)
{
    if (held != NULL) {
        pthread_mutex_unlock(held);
    }
    int cancel = cgpu_cancel_disable();
    if (verdict == SHUT) {
        wait_for_gate(launch);
    } else {
        wait_for_room(launch);
    }
    cgpu_cancel_restore(cancel);
    if (held != NULL) {
        pthread_mutex_lock(held);
    }
}

static CUresult
enter_or_wait(struct launch *launch, pthread_mutex_t *held)
{
    static const CUresult results[] = {
        [GO] = CUDA_SUCCESS,
        [REFUSE] = CUDA_ERROR_NOT_PERMITTED,
        [SHUT] = CUDA_ERROR_NOT_READY,
        [FULL] = CUDA_ERROR_NOT_READY,
    };
    enum verdict verdict;
    bool waits;
    do {
        cgpu_launch_lock();
        verdict = try_enter(launch);
        cgpu_launch_unlock();
        waits = verdict == SHUT || verdict == FULL;
        if (waits) {
            wait_unlocked(launch, verdict, held);
        }
    } while (waits && held == NULL);
    if (verdict == REFUSE) {
        cgpu_log_text(CGPU_LOG_COMPUTE, "launches refused: ", launch->why);
    }
    return results[verdict];
}

CUresult
cgpu_enter(CUstream stream, uint64_t key, uint64_t guess_ns, pthread_mutex_t *held)
{
    struct cgpu_batch_slot *before = cgpu_batch_slot_of(cgpu_batch_slots, stream);
    if (before != NULL) {
        __atomic_store_n(&before->inside, 0, __ATOMIC_RELEASE);
    }
    if (!cgpu_state_is_attached()) {
        return CUDA_SUCCESS; /* the driver says that it is not initialised */
    }
    uint32_t depth = cgpu_thread.depth;
    cgpu_thread.depth = 1;
    struct launch launch = {
        .slot = slot_for(stream),
        .handle = stream,
        .context = cgpu_context_current(),
        .key = key,
        .guess_ns = guess_ns,
    };
    CUresult status = enter_or_wait(&launch, held);
    cgpu_thread.depth = depth;
    return status;
}
