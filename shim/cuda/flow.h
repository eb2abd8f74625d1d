/*
 * What flows to the GPUs: threads' lanes, streams, work in flight, gates.
 *
 * One block of memory that a forked child sees as zeros. One lock for all of it, taken about once
 * per batch and never by a launch on the hot path. What the hot path reads and writes are the
 * thread's own lane and `marks` of its stream.
 *
 *   lane.c     threads: who is inside a launch
 *   stream.c   contexts and streams, by their handles
 *   marker.c   batches: placing markers, seeing them passed
 *   enter.c    the slow path of a launch: gate, batch, room
 *   drain.c    seeing all work of a GPU to its end, telling idleness
 *   monitor.c  the helper thread that does it, and drives the fallback
 *   await.c    what may wait for the program
 *   settle.c   what the program's own synchronisation and destruction tell
 */
#ifndef CGPU_CUDA_FLOW_H
#define CGPU_CUDA_FLOW_H

#include <stdbool.h>
#include <stdint.h>

#include "driver.h"
#include "gate.h"
#include "mutex.h"
#include "shim.h"
#include "work.h"

#include "pace.h"

enum {
    CGPU_THREAD_LANES = 4, /* of one thread, side by side: one batch each, for streams by turns */
    CGPU_MAX_LANES = 2048 * CGPU_THREAD_LANES,
    CGPU_MAX_STREAMS = 1024,
    CGPU_MAX_CONTEXTS = 64,
    CGPU_STREAM_BUCKETS = 256,
    CGPU_STREAM_EVENTS = 4,
    CGPU_MARKER_PAGE = 4096, /* bytes: a word for each stream state */
    CGPU_NO_PLACE = UINT16_MAX
};

/*
 * A thread's batch in one stream; the thread has four, see cgpu_lane_of. Written by the thread,
 * also under the lock; the monitor writes `gate`, and sums when the thread is known not to be
 * inside. Of the first only: free, streams, context, last.
 */
struct cgpu_lane {
    uint64_t gate;   /* the gate word in force, as a distance from cgpu_gate_base; 0: none */
    uint32_t free;   /* free gate word under which it may launch into any stream; 0: none */
    uint32_t word;   /* gate word under which it was let in for this stream; 0: none */
    uint32_t inside; /* 1: between looking at the gate and the end of the launch */
    uint32_t alone;  /* 1: no monitor, so leaving waits for the launch to end */
    uint32_t marks;  /* of the stream when the batch began */
    uint32_t tid;    /* 0: free */
    const struct cgpu_stream *state;
    const struct cgpu_pace *pace;
    uint64_t work_ns, launches, key, mixed; /* the batch; mixed: bits in which keys differ */
    CUstream streams[CGPU_THREAD_LANES];    /* of each lane; default ones by their fixed handles */
    CUcontext context;                      /* current when the thread was let in */
    int32_t gpu;
    uint32_t last; /* the lane of the launch that was begun last */
};

_Static_assert(sizeof(struct cgpu_lane) == 128, "two cache lines: neighbours do not disturb");

/* Work that no marker covers yet. */
struct cgpu_unmarked {
    uint64_t work_ns, launches, key, mixed;
};

struct cgpu_stream {
    uint32_t marks; /* one more when batches in it are cut: what lanes have summed up is void */
    uint32_t used;
    CUstream handle; /* NULL: destroyed, or its thread has gone; kept until all has ended */
    uint32_t context;
    uint32_t lane; /* whose per-thread default stream it is, plus 1 */
    uint16_t next; /* in its bucket */
    uint16_t place;
    uint32_t unsure; /* the batch holds a launch of unknown duration */
    uint32_t issued; /* sequence number of the last marker */
    uint32_t in_flight;
    struct cgpu_unmarked pending; /* what lanes have handed over */
    uint64_t begun_ns;            /* first launch of the batch */
    uint64_t handed_ns;           /* when something was last handed over */
    CUevent events[CGPU_STREAM_EVENTS];
};

enum cgpu_marker_means { CGPU_MARKER_UNTRIED, CGPU_MARKER_WORDS, CGPU_MARKER_EVENTS };

struct cgpu_flow_context {
    CUcontext handle; /* NULL: free */
    int32_t gpu;
    uint32_t going; /* being destroyed: not for us any more */
    uint32_t means;
    uint32_t crowded; /* it has streams that are not in the table */
    CUdeviceptr words;
    uint64_t looked_ns; /* at streams whose markers are late */
};

struct cgpu_flight {
    struct cgpu_pace_batch batch;
    uint32_t seq;
    uint16_t stream;
    uint16_t reserved;
    uint64_t marked_ns;
};

struct cgpu_flow_gpu {
    struct cgpu_ledger_work *work; /* NULL: never launched on */
    const uint32_t *gate;          /* in force: the container's or `own` */
    uint32_t own;                  /* gate word while nobody arbitrates */
    uint32_t settled;   /* closed gate word since which all work is marked, or CGPU_UNSETTLED */
    uint32_t unmetered; /* there were launches under a free gate */
    uint32_t flights;
    uint32_t crowded; /* threads that sleep until there is room */
    uint64_t harvested_ns;
    uint64_t stuck_ns;   /* since when no marker has passed, when some launch was last let go */
    uint64_t beyond;     /* launches that were let go since then, though there was no room */
    uint64_t drained_ns; /* since when the monitor waits for the end of all work */
    uint64_t activity, active_ns;
    struct cgpu_flight flight[CGPU_PACE_BATCHES];
    struct cgpu_pace pace;
};

struct cgpu_flow {
    struct cgpu_mutex lock;
    uint32_t lane_bound; /* no lane from here on was ever taken */
    uint32_t monitor;    /* enum cgpu_monitor_state */
    uint32_t barrier;    /* 1: membarrier works; else no launch takes the hot path */
    uint32_t stream_bound;
    uint32_t counted;     /* some launch was metered: synchronisation is worth a look */
    uint32_t awaits_host; /* there may be work that waits for what the program does: await.c */
    uint32_t more;        /* there were more contexts or streams than the tables hold */
    uint32_t busy;        /* the monitor is at work */
    uint32_t closing;     /* the process exits: no more driver calls */
    uint64_t swept_ns;
    uint16_t buckets[CGPU_STREAM_BUCKETS]; /* place + 1 */
    struct cgpu_flow_context contexts[CGPU_MAX_CONTEXTS];
    struct cgpu_stream streams[CGPU_MAX_STREAMS];
    struct cgpu_flow_gpu gpus[CGPU_MAX_GPUS];
    struct cgpu_lane lanes[CGPU_MAX_LANES] __attribute__((aligned(128)));
    uint32_t words[CGPU_MAX_CONTEXTS][CGPU_MARKER_PAGE / sizeof(uint32_t)]
        __attribute__((aligned(CGPU_MARKER_PAGE)));
};

_Static_assert(CGPU_MAX_STREAMS * sizeof(uint32_t) == CGPU_MARKER_PAGE, "a word for each stream");

/* No gate word: those of the page have no flag, and own ones are never free. */
#define CGPU_UNSETTLED UINT32_MAX

extern struct cgpu_flow *cgpu_flow; /* NULL: could not be made */
extern const char *cgpu_gate_base;  /* the limits page; never NULL, and its first word is not 0 */
extern struct cgpu_lane cgpu_no_lane[CGPU_THREAD_LANES];
extern __thread struct cgpu_lane *cgpu_lane __attribute__((tls_model("initial-exec")));

/* When the library is loaded, after the limits were mapped. */
void cgpu_flow_setup(void);

uint64_t cgpu_flow_now(void); /* CLOCK_MONOTONIC in ns */

static inline void
cgpu_flow_lock(void)
{
    cgpu_mutex_lock(&cgpu_flow->lock);
}

static inline void
cgpu_flow_unlock(void)
{
    cgpu_mutex_unlock(&cgpu_flow->lock);
}

static inline bool
cgpu_flow_is_closing(void)
{
    return __atomic_load_n(&cgpu_flow->closing, __ATOMIC_RELAXED) != 0;
}

/* Among the lanes of the thread whose first is FIRST, that for STREAM; NULL: none as yet. */
static inline struct cgpu_lane *
cgpu_lane_of(struct cgpu_lane *first, CUstream stream)
{
    for (int i = 0; i < CGPU_THREAD_LANES; i++) {
        if (first->streams[i] == stream) {
            return &first[i];
        }
    }
    return NULL;
}

/* The gate word in force for a lane or GPU. acquire: who is let in sees all that came before. */
static inline uint32_t
cgpu_lane_gate(const struct cgpu_lane *lane)
{
    uint64_t distance = __atomic_load_n(&lane->gate, __ATOMIC_RELAXED);
    return __atomic_load_n((const uint32_t *)(const void *)(cgpu_gate_base + distance),
                           __ATOMIC_ACQUIRE);
}

static inline uint32_t
cgpu_flow_gate(const struct cgpu_flow_gpu *gpu)
{
    const uint32_t *gate = __atomic_load_n(&gpu->gate, __ATOMIC_ACQUIRE);
    return __atomic_load_n(gate, __ATOMIC_ACQUIRE);
}

/* ---- lane.c: all but `take` and `forget` under the lock ---- */

/* The calling thread's first lane; NULL: too many threads. */
struct cgpu_lane *cgpu_lane_take(void);

/* Of the thread whose first lane is FIRST: that for STREAM, or the one that is given up for it. */
struct cgpu_lane *cgpu_lane_for(struct cgpu_lane *first, CUstream stream);

/* The first lane of the thread that has LANE. */
struct cgpu_lane *cgpu_lane_first(struct cgpu_lane *lane);

/* The calling thread's context changes: the next launch takes the slow path. */
void cgpu_lane_forget(void);

/* Hand over what LANE has summed up to its stream. */
void cgpu_lane_hand_over(struct cgpu_lane *lane, uint64_t now);

/* Give back lanes of threads that have ended; tell how many there are. */
void cgpu_lane_sweep(uint64_t now);

/* From now on every launch on GPU takes the slow path. False: some thread is still inside one. */
bool cgpu_lane_stop(int32_t gpu);

/* From now on no thread launches under a free gate without a look at the stream. */
void cgpu_lane_unfree(void);

/* All threads on GPU look at the gate word at GATE from now on. */
void cgpu_lane_redirect(int32_t gpu, const uint32_t *gate);

uint64_t cgpu_lane_distance(const uint32_t *gate);

/* Launches that lanes on GPU have summed up. */
uint64_t cgpu_lane_launches(int32_t gpu);

/* ---- stream.c: under the lock ---- */

/* CONTEXT's entry; NULL: not there. */
struct cgpu_flow_context *cgpu_stream_context(CUcontext context);

enum cgpu_stream_of {
    CGPU_STREAM_OF_OURS,
    CGPU_STREAM_OF_NONE, /* the driver knows none, or its GPU is none of the container's */
    CGPU_STREAM_OF_MORE  /* there are more than the table holds */
};

/* The entry of the context that STREAM is of, made if need be. */
enum cgpu_stream_of cgpu_stream_of(CUstream stream, CUcontext current,
                                   struct cgpu_flow_context **out);
void cgpu_stream_drop_context(struct cgpu_flow_context *context);

/* HANDLE's entry; for the default streams that of CONTEXT, and of LANE. NULL: not there, full. */
struct cgpu_stream *cgpu_stream_find(CUstream handle, CUcontext context, struct cgpu_lane *lane);
struct cgpu_stream *cgpu_stream_add(CUstream handle, struct cgpu_flow_context *context,
                                    struct cgpu_lane *lane);
/* The handle is gone; the entry goes when nothing of it is in flight. */
void cgpu_stream_detach(struct cgpu_stream *stream);
void cgpu_stream_release(struct cgpu_stream *stream);

static inline struct cgpu_flow_context *
cgpu_stream_owner(const struct cgpu_stream *stream)
{
    return &cgpu_flow->contexts[stream->context];
}

static inline struct cgpu_flow_gpu *
cgpu_stream_gpu(const struct cgpu_stream *stream)
{
    return &cgpu_flow->gpus[cgpu_stream_owner(stream)->gpu];
}

/* ---- marker.c: under the lock ---- */

/* Does STREAM have work that no marker covers? */
bool cgpu_marker_wanted(const struct cgpu_stream *stream);

/* The launches in STREAM that no marker covers, those that lanes have summed up included. */
void cgpu_marker_sum(const struct cgpu_stream *stream, struct cgpu_unmarked *sum);

bool cgpu_marker_captures(const struct cgpu_stream *stream);

/* End STREAM's batch by a marker. False: too many are in flight, nothing was done. */
bool cgpu_marker_cut(struct cgpu_stream *stream, uint64_t now);

/* The same, the batch having ended already. */
void cgpu_marker_ended(struct cgpu_stream *stream, uint64_t now);

/* See which markers of GPU were passed. */
void cgpu_marker_harvest(struct cgpu_flow_gpu *gpu, uint64_t now);

/* What was marked in STREAM (NULL: in all streams of CONTEXT) until UNTIL has ended; KNOWN: now. */
void cgpu_marker_pass(const struct cgpu_stream *stream, const struct cgpu_flow_context *context,
                      uint64_t until, uint64_t now, bool known);

/* Tell the arbiter what is in flight. */
void cgpu_marker_publish(struct cgpu_flow_gpu *gpu);

/* Our own driver calls in CONTEXT, which is made current if need be. */
struct cgpu_visit {
    bool pushed;
    int mode;
};
bool cgpu_marker_visit(const struct cgpu_flow_context *context, struct cgpu_visit *visit);
void cgpu_marker_leave(const struct cgpu_visit *visit);

/* ---- enter.c ---- */

/* The slow path of a launch, see launch.h. */
CUresult cgpu_enter(CUstream stream, uint64_t key, uint64_t guess_ns);
void cgpu_enter_leave(struct cgpu_lane *lane);

/* ---- await.c ---- */

/*
 * Under the lock: may a launch that came at BEGUN go though there is no room, because what is in
 * flight may wait for the program? Up to 1,024 may until a marker passes.
 */
bool cgpu_await_too_long(struct cgpu_flow_gpu *gpu, uint64_t begun, uint64_t now);

/* ---- monitor.c ---- */

enum cgpu_monitor_state { CGPU_MONITOR_NONE, CGPU_MONITOR_RUNS, CGPU_MONITOR_FAILED };

/* Under the lock: make the thread if there is none. False: there is none. */
bool cgpu_monitor_start(void);

/* Under the lock: do what is due for the GPU at PLACE; when to look again. */
uint64_t cgpu_monitor_serve(uint32_t place, uint64_t now);

/* Under the lock: there is one more GPU to look after. */
void cgpu_monitor_wake(void);

/* Under the lock: use the process's own gate if nobody arbitrates GPU PLACE; when to look again. */
uint64_t cgpu_monitor_arbitrated(uint32_t place, uint64_t now);

/* ---- drain.c: under the lock ---- */

/* The gate of GPU PLACE is closed by WORD; or it is PRESSED. Do what is due; when to look again. */
uint64_t cgpu_drain_closed(uint32_t place, uint32_t word, uint64_t now);
uint64_t cgpu_drain_pressed(uint32_t place, uint64_t now);

/* Has all work ended since the gate closed? Then say so. */
bool cgpu_drain_quiet(uint32_t place);

/* Mark all work on GPU PLACE. True: it has ended, and the arbiter knows. */
bool cgpu_drain_finish(uint32_t place, uint64_t now);

/* ---- settle.c: called by the hooks of synchronisation, streams and contexts ---- */

/* 0: nothing is metered, no need to call the others. */
uint64_t cgpu_settle_begin(void);
void cgpu_settle_stream(CUstream stream, uint64_t begun);
void cgpu_settle_context(CUcontext context, uint64_t begun);

/* STREAM is about to go. */
void cgpu_settle_stream_going(CUstream stream);

/* CONTEXT may go in the call that follows; it is still there; it is gone. */
void cgpu_settle_context_going(CUcontext context);
void cgpu_settle_context_stays(CUcontext context);
void cgpu_settle_context_gone(CUcontext context);

#endif
