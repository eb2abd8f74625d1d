/*
 * The state of launches: threads' batch slots, streams, work in flight, gates.
 *
 * It is one block of memory, which a forked child sees as zeros. One lock covers all of it. It is
 * taken about once per batch, and never by a launch on the hot path, which reads and writes only
 * the thread's own slot and `marks` of its stream. Design: docs/design/gate.md.
 */
#ifndef CGPU_CUDA_LAUNCH_STATE_H
#define CGPU_CUDA_LAUNCH_STATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "compute/launch.h"
#include "entry/driver.h"
#include "entry/shim.h"
#include "gate/state.h"
#include "ledger/work.h"
#include "mutex.h"

enum {
    CGPU_THREAD_SLOTS = 4,   /* batches of one thread at a time, one for each stream */
    CGPU_MAX_THREADS = 8192, /* that launch */
    CGPU_MAX_BATCH_SLOTS = CGPU_MAX_THREADS * CGPU_THREAD_SLOTS,
    CGPU_MAX_CONTEXTS = 512,
    CGPU_STREAM_BUCKETS = 256,
    CGPU_MAX_CALLS = 1024,
    CGPU_MARKER_BYTES = CGPU_MAX_STREAMS * sizeof(uint32_t), /* in whole pages */
    CGPU_PAGE = 4096
};

/*
 * A thread's batch in one stream. Each thread has four (see cgpu_batch_slot_of). The thread writes
 * its slots, with or without the lock. The monitor revokes `free` and `word`, and takes the sums
 * when the thread is known not to be inside. Only the first of the four has free, tid, streams,
 * context and turn.
 */
struct cgpu_batch_slot {
    uint64_t gate;   /* the gate word in force, as a distance from cgpu_gate_base; 0: none */
    uint32_t free;   /* word of a free gate, to launch into any stream; 0: none */
    uint32_t word;   /* gate word under which it was let in for this stream; 0: none */
    uint32_t inside; /* 1: from the check of the gate to the end of the launch */
    uint16_t next;   /* among the slots of the batch: place + 1 */
    uint32_t marks;  /* of the stream when the batch began */
    uint32_t tid;    /* 0: free */
    struct cgpu_gate_gpu *gpu;              /* NULL: none as yet */
    struct cgpu_stream *stream;             /* that of the batch; NULL: none */
    uint64_t work_ns, launches, key, mixed; /* the batch; mixed: bits in which keys differ */
    CUstream streams[CGPU_THREAD_SLOTS];    /* of each slot; default ones by their fixed handles */
    CUcontext context;                      /* current when the thread was let in */
    uint32_t turn;    /* which slot is given up next: the one after that of the last slow launch */
    uint32_t most_ns; /* how much the batch may hold before the next slow launch */
};

_Static_assert(sizeof(struct cgpu_batch_slot) == 128, "two cache lines: neighbours do not disturb");

enum cgpu_marker_kind { CGPU_MARKER_NONE, CGPU_MARKER_WORDS, CGPU_MARKER_EVENTS };

struct cgpu_context_entry {
    CUcontext handle; /* NULL: free */
    struct cgpu_gate_gpu *gpu;
    uint32_t going; /* being destroyed: not for us any more */
    uint32_t kind;
    uint32_t lost; /* markers that were never written */
    CUdeviceptr words;
};

/*
 * A host function in a stream. The driver gets a function of ours in its place, with this as data.
 */
struct cgpu_call {
    uint64_t since_ns; /* when it began to run; 0: not yet */
    void *function;
    void *data;
    struct cgpu_stream *stream;
    struct cgpu_gate_gpu *gpu;
    uint32_t generation; /* the stream's */
    uint32_t used;
};

struct cgpu_launch_state {
    struct cgpu_mutex lock;
    int cancel;          /* the lock holder's cancel state, restored when it unlocks */
    uint32_t slot_bound; /* no slot from here on was ever taken */
    uint32_t monitor;    /* 1: there is a helper thread */
    uint32_t barrier;    /* 1: membarrier works; else no launch takes the hot path */
    uint32_t stream_bound;
    uint32_t counted;     /* 1: some launch was metered, so synchronisation is worth a check */
    uint32_t syncing;     /* a thread synchronises; if several do, as the last one left it */
    uint32_t awaits_host; /* streams may wait for the program unseen: await.c */
    uint32_t captures;    /* some stream may capture: capture.c */
    uint32_t beginning;   /* threads that may be about to begin or join a capture */
    uint32_t call_bound;  /* entries from here on were never used */
    uint32_t busy;        /* the monitor is at work */
    uint32_t closing;     /* the process exits: no more driver calls */
    uint64_t swept_ns;
    uint64_t tried_ns;                     /* when creating a helper thread was last tried; or 0 */
    uint16_t buckets[CGPU_STREAM_BUCKETS]; /* index + 1 */
    struct cgpu_context_entry contexts[CGPU_MAX_CONTEXTS];
    struct cgpu_call calls[CGPU_MAX_CALLS];
    struct cgpu_stream streams[CGPU_MAX_STREAMS];
    struct cgpu_gate_gpu gpus[CGPU_MAX_GPUS];
    uint32_t own_gates[CGPU_MAX_GPUS]; /* gate words while nobody arbitrates */
    struct cgpu_batch_slot slots[CGPU_MAX_BATCH_SLOTS] __attribute__((aligned(128)));
    uint32_t words[CGPU_MAX_CONTEXTS][CGPU_MAX_STREAMS] __attribute__((aligned(CGPU_PAGE)));
};

_Static_assert(CGPU_MARKER_BYTES % CGPU_PAGE == 0, "pages belong to one context");
_Static_assert(CGPU_MAX_STREAMS < UINT16_MAX, "streams are linked by 16 bits");
_Static_assert(CGPU_MAX_BATCH_SLOTS < UINT16_MAX, "slots are linked by 16 bits");

extern struct cgpu_launch_state
    *cgpu_launch_state; /* NULL: it could not be made, and the process cannot attach */
extern const struct cgpu_gate_ops cgpu_gate_ops; /* for native/gate: gate_ops.c */
extern const char *cgpu_gate_base; /* the limits page; never NULL, and its first word is not 0 */
extern struct cgpu_batch_slot cgpu_no_batch_slots[CGPU_THREAD_SLOTS];
extern __thread struct cgpu_batch_slot *cgpu_batch_slots __attribute__((tls_model("initial-exec")));

/* Set up the state of launches when the library is loaded, after the limits were mapped. */
void cgpu_launch_state_setup(void);

uint64_t cgpu_host_clock_now(void); /* CLOCK_MONOTONIC of the host, in ns */

/*
 * A thread must not be cancelled while it holds the lock or counts as waiting: sleeps and driver
 * calls are cancellation points, and nobody would clean up after the thread.
 */
static inline int
cgpu_cancel_disable(void)
{
    int before;
    return pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before) == 0 ? before
                                                                        : PTHREAD_CANCEL_ENABLE;
}

static inline void
cgpu_cancel_restore(int before)
{
    pthread_setcancelstate(before, NULL);
}

static inline void
cgpu_launch_lock(void)
{
    int before = cgpu_cancel_disable();
    cgpu_mutex_lock(&cgpu_launch_state->lock);
    cgpu_launch_state->cancel = before;
}

static inline void
cgpu_launch_unlock(void)
{
    int before = cgpu_launch_state->cancel;
    cgpu_mutex_unlock(&cgpu_launch_state->lock);
    cgpu_cancel_restore(before);
}

static inline bool
cgpu_launch_is_closing(void)
{
    return __atomic_load_n(&cgpu_launch_state->closing, __ATOMIC_RELAXED) != 0;
}

/* The slot for STREAM among those of the thread whose first slot is FIRST; NULL: none yet. */
static inline struct cgpu_batch_slot *
cgpu_batch_slot_of(struct cgpu_batch_slot *first, CUstream stream)
{
    for (int i = 0; i < CGPU_THREAD_SLOTS; i++) {
        if (first->streams[i] == stream) {
            return &first[i];
        }
    }
    return NULL;
}

/*
 * Count one more launch, of KEY, and set the sum of work to WORK_NS. relaxed: the monitor has a
 * barrier before it reads them.
 */
static inline void
cgpu_batch_slot_add(struct cgpu_batch_slot *slot, uint64_t key, uint64_t work_ns)
{
    __atomic_store_n(&slot->work_ns, work_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->launches, slot->launches + 1, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->mixed, slot->mixed | (slot->key ^ key), __ATOMIC_RELAXED);
}

/*
 * The gate word in force for a slot. acquire: a thread that is let in sees all that came before it.
 */
static inline uint32_t
cgpu_batch_slot_gate(const struct cgpu_batch_slot *slot)
{
    const void *word = cgpu_gate_base + slot->gate;
    return __atomic_load_n((const uint32_t *)word, __ATOMIC_ACQUIRE);
}

#endif
