/*
 * What flows to the GPUs: threads' lanes, streams, work in flight, gates.
 *
 * One block of memory that a forked child sees as zeros. One lock for all of it, taken about once
 * per batch and never by a launch on the hot path. What the hot path reads and writes are the
 * thread's own lane and `marks` of its stream.
 *
 *   lane.c     threads: who is inside a launch
 *   stray.c    threads for which there is no lane
 *   stream.c   contexts and streams, by their handles
 *   beyond.c   streams for which the table has no room
 *   marker.c   batches: placing markers, seeing them passed
 *   enter.c    the slow path of a launch: gate, batch, room
 *   flight.c   when a batch ends, how much may be in flight
 *   drain.c    seeing all work of a GPU to its end, telling idleness
 *   monitor.c  the helper thread that does it, and drives the fallback
 *   await.c    what may wait for the program
 *   late.c     what does not end when it should
 *   capture.c  streams that begin to capture
 *   settle.c   what the program's own synchronisation and destruction tell
 */
#ifndef CGPU_CUDA_FLOW_H
#define CGPU_CUDA_FLOW_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "compute/launch.h"
#include "entry/driver.h"
#include "entry/shim.h"
#include "gate/gate.h"
#include "ledger/work.h"
#include "mutex.h"

#include "gate/pace.h"

enum {
    CGPU_THREAD_LANES = 4, /* of one thread, side by side: one batch each, for streams by turns */
    CGPU_MAX_LANES = 2048 * CGPU_THREAD_LANES,
    CGPU_MAX_TIDS = 1 << 22, /* the kernel gives threads no greater numbers */
    CGPU_MAX_STREAMS = 1024,
    CGPU_MAX_CONTEXTS = 512,
    CGPU_STREAM_PLACES = CGPU_MAX_STREAMS + CGPU_MAX_CONTEXTS, /* always one for a legacy stream */
    CGPU_MAX_BEYOND = 8192, /* streams beyond these, by their handles alone */
    /* one of each stream that nobody waits for, and those of the others */
    CGPU_MAX_FLIGHTS = CGPU_STREAM_PLACES + CGPU_PACE_BATCHES,
    CGPU_STREAM_BUCKETS = 256,
    CGPU_STREAM_EVENTS = 4,
    CGPU_STREAM_MARKERS = 2, /* of one stream that have not been passed; a closing gate adds one */
    CGPU_MAX_CALLS = 1024,
    CGPU_DRIVER_QUEUE = 1024, /* pieces of work that the driver takes before a thread must wait */
    CGPU_MARKER_PAGE = 8192,  /* bytes: a word for each stream state */
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
    uint16_t next;   /* among the lanes of the batch: place + 1 */
    uint16_t before;
    uint32_t marks; /* of the stream when the batch began */
    uint32_t tid;   /* 0: free */
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

/* A stream that makes no progress stands apart, and its work takes no room: late.c */
enum cgpu_apart {
    CGPU_APART_NOT,
    CGPU_APART_LATE,   /* nothing of it ends; the GPU may be running it, so drains wait for it */
    CGPU_APART_CALLED, /* it is in a host function: nobody waits for it */
    CGPU_APART_STAYS   /* nothing of it has ended for a second: nobody waits for it any more */
};

struct cgpu_stream {
    uint32_t marks; /* one more when batches in it are cut: what lanes have summed up is void */
    uint16_t used;
    uint16_t lanes;  /* place + 1 of the first that takes part in the batch */
    CUstream handle; /* NULL: destroyed, or its thread has gone; kept until all has ended */
    uint32_t context;
    uint32_t lane; /* whose per-thread default stream it is, plus 1 */
    uint16_t next; /* in its bucket */
    uint16_t place;
    uint32_t unsure; /* the batch holds a launch of unknown duration */
    uint32_t issued; /* sequence number of the last marker */
    uint32_t in_flight;
    uint32_t stale;               /* lanes with launches that they summed up before the last cut */
    uint32_t again;               /* strays were inside at the last cut: mark once more */
    struct cgpu_unmarked pending; /* what lanes have handed over */
    uint64_t begun_ns;            /* first launch of the batch */
    uint64_t handed_ns;           /* when something was last handed over */
    uint32_t born;                /* differs between the streams that use this entry in turn */
    uint32_t apart;               /* enum cgpu_apart */
    uint64_t apart_ns;            /* since when */
    uint64_t moved_ns;            /* when it was last seen to make progress */
    uint64_t call_ns;             /* when it was last given a host function */
    uint64_t called_ns;           /* when it was last seen in a host function */
    uint64_t stays_ns;            /* since when it takes time that is not charged; 0: it does not */
    uint64_t asked_ns;            /* when the driver was last asked whether it has ended */
    CUevent events[CGPU_STREAM_EVENTS];
};

/* A stream that is not in the table. */
struct cgpu_beyond {
    CUstream handle;
    uint32_t context;
    uint32_t suspect; /* it may have work, from under a free gate */
};

enum cgpu_marker_means { CGPU_MARKER_UNTRIED, CGPU_MARKER_WORDS, CGPU_MARKER_EVENTS };

struct cgpu_flow_context {
    CUcontext handle; /* NULL: free */
    int32_t gpu;
    uint32_t going; /* being destroyed: not for us any more */
    uint32_t means;
    uint32_t crowded; /* it has streams of which not even the handles are known */
    uint32_t lost;    /* markers that were never written */
    CUdeviceptr words;
};

struct cgpu_flight {
    struct cgpu_pace_batch batch;
    uint32_t seq;
    uint16_t stream;
    uint16_t means; /* enum cgpu_marker_means */
    uint64_t marked_ns;
};

struct cgpu_flow_gpu {
    struct cgpu_ledger_work *work; /* NULL: never launched on */
    const uint32_t *gate;          /* in force: the container's or `own` */
    uint32_t own;                  /* gate word while nobody arbitrates */
    uint32_t settled;   /* closed gate word since which all work is marked, or CGPU_UNSETTLED */
    uint32_t unmetered; /* there were launches under a free gate */
    uint32_t flights;
    uint32_t apart;       /* of these, in streams that nobody waits for */
    uint32_t aside;       /* some streams stand apart */
    uint32_t crowded;     /* threads that sleep until there is room */
    uint32_t deferred;    /* some stream has work that gets a marker when another is passed */
    uint32_t beyond;      /* suspect streams beyond the table */
    uint32_t beyond_more; /* not all of them are known */
    uint32_t beyond_busy; /* 1: they count as work in flight */
    uint64_t beyond_ns;   /* since when */
    uint64_t stayed_ns;   /* up to then the arbiter was told of time that was not charged */
    uint32_t strays;      /* threads without a lane that are inside a launch */
    uint64_t strayed_ns;  /* when one last left */
    uint64_t harvested_ns;
    uint64_t drained_ns; /* since when the monitor waits for the end of all work */
    uint64_t activity, active_ns;
    struct cgpu_flight flight[CGPU_MAX_FLIGHTS];
    struct cgpu_pace pace;
};

/* A host function in a stream: the driver gets a function of ours in its place. */
struct cgpu_call {
    uint64_t since_ns; /* when it began to run; 0: not yet */
    void *function;
    void *data;
    uint32_t number; /* odd: in use; never the same twice */
    uint32_t stream; /* place */
    uint32_t born;
    uint32_t gpu;
    uint32_t held; /* its stream stands apart: wake the monitor when it returns */
    uint32_t reserved;
};

struct cgpu_flow {
    struct cgpu_mutex lock;
    int cancel;          /* the lock holder's cancel state, restored when it unlocks */
    uint32_t lane_bound; /* no lane from here on was ever taken */
    uint32_t lanes_taken;
    uint32_t stray_bound; /* no mark of a stray from here on was ever set */
    uint32_t monitor;     /* enum cgpu_monitor_state */
    uint32_t barrier;     /* 1: membarrier works; else no launch takes the hot path */
    uint32_t stream_bound;
    uint32_t context_bound;
    uint32_t counted;     /* some launch was metered: synchronisation is worth a look */
    uint32_t awaits_host; /* streams may wait for the program unseen: await.c */
    uint32_t captures;    /* captures that have begun and not ended: capture.c */
    uint32_t calling;     /* host functions that run */
    uint32_t call_bound;  /* entries from here on were never used */
    uint32_t more;        /* there were more contexts or streams than the tables hold */
    uint32_t busy;        /* the monitor is at work */
    uint32_t closing;     /* the process exits: no more driver calls */
    uint32_t beyond_count;
    uint32_t beyond_at; /* where asking them goes on */
    uint64_t swept_ns;
    uint64_t tried_ns;                     /* when creating a helper thread was last tried */
    uint16_t buckets[CGPU_STREAM_BUCKETS]; /* place + 1 */
    struct cgpu_flow_context contexts[CGPU_MAX_CONTEXTS];
    struct cgpu_call calls[CGPU_MAX_CALLS];
    struct cgpu_stream streams[CGPU_STREAM_PLACES];
    struct cgpu_beyond beyond[CGPU_MAX_BEYOND];
    struct cgpu_flow_gpu gpus[CGPU_MAX_GPUS];
    struct cgpu_lane lanes[CGPU_MAX_LANES] __attribute__((aligned(128)));
    uint32_t words[CGPU_MAX_CONTEXTS][CGPU_MARKER_PAGE / sizeof(uint32_t)]
        __attribute__((aligned(CGPU_MARKER_PAGE)));
    uint8_t strays[CGPU_MAX_TIDS]; /* by a thread's number: GPU + 1, while it is inside a launch */
};

_Static_assert(CGPU_STREAM_PLACES * sizeof(uint32_t) <= CGPU_MARKER_PAGE, "a word for each stream");
_Static_assert(CGPU_MAX_LANES < UINT16_MAX, "places of lanes are linked by 16 bits");

/* No gate word: those of the page have no flag, and own ones are never free. */
#define CGPU_UNSETTLED UINT32_MAX

extern struct cgpu_flow *cgpu_flow; /* NULL: could not be made */
extern const char *cgpu_gate_base;  /* the limits page; never NULL, and its first word is not 0 */
extern struct cgpu_lane cgpu_no_lane[CGPU_THREAD_LANES];
extern __thread struct cgpu_lane *cgpu_lane __attribute__((tls_model("initial-exec")));

/* When the library is loaded, after the limits were mapped. */
void cgpu_flow_setup(void);

uint64_t cgpu_flow_now(void); /* CLOCK_MONOTONIC in ns */

/*
 * A thread must not be cancelled while it holds the lock or is counted as waiting: sleeps and
 * driver calls are cancellation points, and nobody would undo what such a thread leaves behind.
 */
static inline int
cgpu_flow_hold_on(void)
{
    int before;
    return pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before) == 0 ? before
                                                                        : PTHREAD_CANCEL_ENABLE;
}

static inline void
cgpu_flow_let_be(int before)
{
    pthread_setcancelstate(before, NULL);
}

static inline void
cgpu_flow_lock(void)
{
    int before = cgpu_flow_hold_on();
    cgpu_mutex_lock(&cgpu_flow->lock);
    cgpu_flow->cancel = before;
}

static inline void
cgpu_flow_unlock(void)
{
    int before = cgpu_flow->cancel;
    cgpu_mutex_unlock(&cgpu_flow->lock);
    cgpu_flow_let_be(before);
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

/* The calling thread's first lane; NULL: all are taken. */
struct cgpu_lane *cgpu_lane_take(void);

/* Of the thread whose first lane is FIRST: that for STREAM, or the one that is given up for it. */
struct cgpu_lane *cgpu_lane_for(struct cgpu_lane *first, CUstream stream);

/* The first lane of the thread that has LANE. */
struct cgpu_lane *cgpu_lane_first(struct cgpu_lane *lane);

/* The calling thread's context changes: the next launch takes the slow path. */
void cgpu_lane_forget(void);

/* From now on LANE, which has summed up nothing, takes part in the batch of STREAM. */
void cgpu_lane_join(struct cgpu_lane *lane, struct cgpu_stream *stream);

/* Hand over what LANE has summed up to its stream, or forget it. */
void cgpu_lane_hand_over(struct cgpu_lane *lane, uint64_t now);
void cgpu_lane_clear(struct cgpu_lane *lane);

/* The batch of STREAM is cut: no lane takes part in the next one as yet. */
void cgpu_lane_cut(struct cgpu_stream *stream);

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

/* ---- stray.c ---- */

/* The calling thread, which has no lane, goes inside a launch on GPU. Under the lock. */
void cgpu_stray_enter(struct cgpu_flow_gpu *gpu);

/* The calling thread leaves, if it is a stray inside a launch. */
void cgpu_stray_leave(void);

/* The same for the thread TID, which is the caller or has ended. */
void cgpu_stray_forget(uint32_t tid);

/* Forget strays that have ended. Under the lock. */
void cgpu_stray_sweep(void);

/* Is any stray inside? acquire: if not, the driver has all that they have launched. */
static inline bool
cgpu_stray_some_inside(const struct cgpu_flow_gpu *gpu)
{
    return __atomic_load_n(&gpu->strays, __ATOMIC_ACQUIRE) != 0;
}

/* May a stray have given the driver something after BEGUN? */
static inline bool
cgpu_stray_since(const struct cgpu_flow_gpu *gpu, uint64_t begun)
{
    return cgpu_stray_some_inside(gpu) ||
           __atomic_load_n(&gpu->strayed_ns, __ATOMIC_RELAXED) > begun;
}

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
/* STREAM may have work that was not counted. */
void cgpu_stream_suspect(struct cgpu_stream *stream);
/* HANDLE's entry, created if need be; the legacy stream's entry if there are too many. */
enum cgpu_stream_of cgpu_stream_meet(CUstream handle, CUcontext context, struct cgpu_lane *lane,
                                     struct cgpu_stream **out);
/*
 * Whether all known contexts are on GPU. A launch may go into a stream of any context, whichever is
 * current, so only then does GPU's free gate let launches into every stream.
 */
bool cgpu_stream_all_on(const struct cgpu_flow_gpu *gpu);
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

/* ---- beyond.c: under the lock ---- */

/* Keep HANDLE, which has no entry in the table or has just lost it. */
void cgpu_beyond_keep(CUstream handle, struct cgpu_flow_context *context);
/* The same for a stream that is about to be given work. */
void cgpu_beyond_keep_used(CUstream handle, struct cgpu_flow_context *context, uint64_t now);
/* HANDLE gets an entry in the table. True: it may have work that was not counted. */
bool cgpu_beyond_forget(CUstream handle);
/* HANDLE is about to be destroyed: nobody can ask it any more. */
void cgpu_beyond_destroy(CUstream handle, uint64_t now);
void cgpu_beyond_drop_context(const struct cgpu_flow_context *context);

/* There may have been uncounted work in any stream on GPU. */
void cgpu_beyond_suspect(struct cgpu_flow_gpu *gpu, uint64_t now);

/* Ask some of those that may have work. */
void cgpu_beyond_look(struct cgpu_flow_gpu *gpu, uint64_t now);

/* ---- marker.c: under the lock ---- */

/* Does STREAM have work that no marker covers? */
bool cgpu_marker_wanted(const struct cgpu_stream *stream);

/* The launches in STREAM that no marker covers, those that lanes have summed up included. */
void cgpu_marker_sum(const struct cgpu_stream *stream, struct cgpu_unmarked *sum);

/* Does it capture? Also if the driver does not say, as then nothing can be put into it. */
bool cgpu_marker_captures(const struct cgpu_stream *stream);
bool cgpu_marker_captures_into(CUstream handle);

/* Are its markers put into the legacy stream? */
bool cgpu_marker_is_by_legacy(const struct cgpu_stream *stream);

/* Whether one more marker may be put in flight. */
bool cgpu_marker_has_room(struct cgpu_flow_gpu *gpu, uint64_t now);

/* Whether STREAM gets no more markers before one is passed: see CGPU_STREAM_MARKERS. */
static inline bool
cgpu_marker_is_enough(const struct cgpu_stream *stream)
{
    return stream->in_flight >= CGPU_STREAM_MARKERS;
}

/* End STREAM's batch by a marker. False: too many are in flight, nothing was done. */
bool cgpu_marker_cut(struct cgpu_stream *stream, uint64_t now);
/* Measure the lag by a marker alone, if nobody has work on the GPU as WORD's turn begins. */
void cgpu_marker_probe(struct cgpu_stream *stream, uint32_t word, uint64_t now);

/* The same, the batch having ended already. */
void cgpu_marker_ended(struct cgpu_stream *stream, uint64_t now);
/* The batch was captured: it is no work. */
void cgpu_marker_forget(struct cgpu_stream *stream);

bool cgpu_marker_was_passed(const struct cgpu_flight *flight);

/* Find markers of GPU that have been passed, and streams that make no progress. */
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

/* The slow path of a launch, see launch.h. HELD: a lock that must not be held while waiting. */
CUresult cgpu_enter(CUstream stream, uint64_t key, uint64_t guess_ns, pthread_mutex_t *held);

/* ---- flight.c: under the lock ---- */

/* Whether BATCH of STREAM ends before a launch of NS; 0: nobody knows how long that takes. */
bool cgpu_flight_is_full(const struct cgpu_stream *stream, const struct cgpu_unmarked *batch,
                         uint64_t ns);

/*
 * May a launch of NS go into STREAM under the gate WORD? Ends the batch by a marker if it is FULL
 * (NULL: it is not) and the stream may have one more. 0: yes, else when to look again.
 */
uint64_t cgpu_flight_room(struct cgpu_stream *stream, uint32_t word,
                          const struct cgpu_unmarked *full, uint64_t ns, uint64_t now);

/* ---- await.c: under the lock ---- */

/* The next host function that runs, from place *AT on; advances *AT. NULL: no more. */
struct cgpu_call *cgpu_await_next(uint32_t *at);

/* Whether STREAM was given a host function that has not returned. */
bool cgpu_await_is_behind(const struct cgpu_stream *stream);

/* ---- late.c: under the lock ---- */

#define CGPU_LATE_STAYS_NS UINT64_C(1000000000) /* no work has ended for this long */

/* Whether the driver says that all in HANDLE has ended. A stream that captures is not asked. */
bool cgpu_late_has_ended(const struct cgpu_flow_context *context, CUstream handle);

/* After a look at all markers of GPU: find streams that go apart or make progress again. */
void cgpu_late_look(struct cgpu_flow_gpu *gpu, uint64_t now);

/* Streams that nobody waits for keep their newest markers only: nothing is learnt from others. */
void cgpu_late_thin_out(struct cgpu_flow_gpu *gpu);

/* Whether STREAM, which has no markers, is in a host function or is about to be. */
bool cgpu_late_called(const struct cgpu_stream *stream, uint64_t now);

/* Whether all work of STREAM is behind a host function that runs or is the next to run. */
bool cgpu_late_at_call(const struct cgpu_stream *stream, uint64_t now);

/* Work of STREAM has ended. */
void cgpu_late_moves(struct cgpu_stream *stream, uint64_t now);

/* Whether nobody waits for the work of STREAM. */
static inline bool
cgpu_late_is_left(const struct cgpu_stream *stream)
{
    return stream->apart == CGPU_APART_CALLED || stream->apart == CGPU_APART_STAYS;
}

/* How many markers belong to work that drains wait for. */
static inline uint32_t
cgpu_late_counted(const struct cgpu_flow_gpu *gpu)
{
    return gpu->flights - gpu->apart;
}

/* ---- monitor.c ---- */

enum cgpu_monitor_state { CGPU_MONITOR_NONE, CGPU_MONITOR_RUNS, CGPU_MONITOR_FAILED };

/* When the library is loaded. */
void cgpu_monitor_setup(void);

/*
 * Under the lock, at a launch or synchronisation: create the helper thread if need be. True: there
 * is one. False: the calling thread has done the helper's work for closed gates.
 */
bool cgpu_monitor_attend(uint64_t now);

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

/* Without a helper: if all counted work on GPU PLACE has ended, tell the arbiter at once. */
void cgpu_drain_finish(uint32_t place, uint64_t now);

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
