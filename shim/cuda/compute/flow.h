/*
 * What flows to the GPUs: threads' lanes, streams, work in flight, gates.
 *
 * One block of memory that a forked child sees as zeros. One lock for all of it, taken about once
 * per batch and never by a launch on the hot path. What the hot path reads and writes are the
 * thread's own lane and `marks` of its stream.
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

#endif
