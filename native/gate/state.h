/*
 * A process's work on a GPU: streams, markers in flight, and what the gate needs from its
 * environment.
 *
 * This code has no clock, driver or thread: the proxy runs it with the driver, the model of
 * docs/model.md runs it in virtual time. Everything but `marks`, `threads_waiting` and the gate is
 * under one lock of the process. Design: docs/design/gate.md.
 */
#ifndef CGPU_GATE_STATE_H
#define CGPU_GATE_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gate/gate.h"
#include "gate/gate_times.h"
#include "gate/pace.h"
#include "ledger/ledger_file.h"
#include "limits.h"

enum {
    CGPU_MAX_STREAMS = 8192,
    /* markers in flight: the last one of each stream that nobody waits for, all of the others */
    CGPU_MAX_FLIGHTS = CGPU_MAX_STREAMS + CGPU_PACE_BATCHES,
    CGPU_STREAM_EVENTS = 4,
    CGPU_GUESSES = 16,       /* launches of unknown kernels in a batch */
    CGPU_STREAM_MARKERS = 2, /* that a stream has not passed; a drain may add one */
    CGPU_DRIVER_QUEUE = 1024 /* pieces of work that the driver takes before a thread must wait */
};

/* How much is known of the work on a GPU. Only cgpu_gate_set_phase changes it. */
enum cgpu_gate_phase {
    CGPU_PHASE_COUNTED,   /* threads may launch, and what has no marker is counted */
    CGPU_PHASE_UNCOUNTED, /* any stream may have work: there were launches under a free gate */
    CGPU_PHASE_DEFERRED,  /* no launch since all was marked that may have a marker */
    CGPU_PHASE_MARKED     /* nor is there any work without a marker */
};

/* Work that no marker covers yet. */
struct cgpu_unmarked {
    uint64_t work_ns, launches, key, mixed; /* mixed: bits in which keys differ */
};

/* A stream that makes no progress is stalled, and its work takes no room: state.c */
enum cgpu_stall {
    CGPU_STALL_NONE,
    CGPU_STALL_LATE,      /* nothing of it ends, but the GPU may be running it, so drains wait */
    CGPU_STALL_IN_CALL,   /* it is in a host function: nobody waits for it */
    CGPU_STALL_PERSISTENT /* nothing of it has ended for a second: nobody waits for it any more */
};

struct cgpu_stream {
    uint32_t marks; /* incremented when its batch ends: what slots have summed up is void */
    uint16_t used;
    uint16_t slots; /* index + 1 of the first that takes part in the batch */
    struct cgpu_gate_gpu *gpu;
    struct CUstream_st *handle; /* NULL: destroyed or its thread ended; kept until all work ended */
    uint32_t context;
    uint32_t slot; /* whose per-thread default stream it is, plus 1 */
    uint16_t next; /* in its bucket */
    uint16_t index;
    uint32_t unsure;  /* the batch holds a launch of unknown duration */
    uint32_t guessed; /* launches in it whose duration is guessed */
    uint64_t guess_ns;
    uint32_t issued; /* sequence number of the last marker */
    uint32_t in_flight;
    uint32_t stale;               /* slots with launches from before the last end of a batch */
    struct cgpu_unmarked pending; /* what slots have handed over */
    uint64_t unmarked_ns;         /* its part of the GPU's unmarked_ns */
    uint64_t begun_ns;            /* first launch of the batch */
    uint64_t handed_ns;           /* when something was last handed over */
    uint32_t generation;          /* differs between the streams that use this entry in turn */
    uint32_t captures;            /* it may capture: asked at each launch (the proxy's capture.c) */
    enum cgpu_stall stall;
    uint64_t stalled_ns;   /* since when */
    uint64_t progress_ns;  /* when it was last seen to make progress */
    uint64_t call_ns;      /* when it was last given a host function; 0: never */
    uint64_t in_call_ns;   /* when it was last seen in a host function */
    uint64_t uncharged_ns; /* since when it takes uncharged time; 0: it does not */
    uint64_t queried_ns;   /* when the driver was last asked whether it has ended */
    struct CUevent_st *events[CGPU_STREAM_EVENTS];
};

/* A marker in flight, and the batch that it ends. */
struct cgpu_flight {
    struct cgpu_pace_batch batch;
    struct cgpu_stream *stream;
    uint64_t marked_ns;
    uint32_t seq;
    uint32_t kind;     /* how the proxy put it there */
    uint64_t ended_ns; /* when a call that waited for its work returned; 0: none did */
};

struct cgpu_gate_gpu {
    const struct cgpu_gate_ops *ops;
    struct cgpu_stream *streams; /* of all GPUs, *stream_bound of them */
    const uint32_t *stream_bound;
    struct cgpu_ledger_work *work; /* NULL: never launched on */
    struct cgpu_ledger_gpu *sums;  /* of all processes of the container */
    const uint32_t *gate;          /* in force: the container's, or the process's own */
    const struct cgpu_limits_gpu *limits;
    enum cgpu_gate_phase phase;
    uint32_t flights;
    uint32_t ignored;         /* of these, in streams that nobody waits for */
    uint32_t has_stalled;     /* some streams are stalled */
    uint32_t threads_waiting; /* that sleep until there is room */
    uint32_t unmarked_slots;  /* threads' parts in batches that have no marker yet */
    uint64_t unmarked_ns;     /* work without a marker, as of each stream's last slow launch */
    uint64_t reported_ns;     /* up to then time that was not charged is reported */
    uint64_t phase_ns;        /* since when */
    uint64_t blocked_ns;      /* since when a drain waits for a launch to return; 0: no */
    uint64_t held;            /* launches that threads held at the last look */
    uint64_t active_ns;       /* when there was last something to do */
    uint32_t permit;          /* its permit in the ledger, see permits.h */
    uint64_t permit_ns;       /* until when; 0: it has none */
    uint64_t permit_used_ns;  /* work launched since it took it */
    uint64_t finish_ns;       /* since when it lets its work end; 0: it does not */
    uint64_t gave_ns;         /* when it last gave one back to another; 0: never */
    uint32_t freed;           /* the ledger's, when it last looked for one */
    uint64_t queued_ns;       /* since when it waits for one; 0: it does not */
    uint64_t rested_ns;       /* since when the program rests; 0: it does not (sync.h) */
    uint64_t usual_rest_ns;
    uint64_t burst_ns; /* first launch since the program last synchronised; 0: none yet */
    bool syncs;        /* at the last check, a thread waited for work to end */
    struct cgpu_flight flight[CGPU_MAX_FLIGHTS];
    struct cgpu_pace pace;
};

/* What only the driver and the process's threads can do for the gate. */
struct cgpu_gate_ops {
    /* Put marker SEQ into STREAM. False: STREAM captures or is broken, so its work does not run. */
    bool (*put_marker)(struct cgpu_stream *stream, uint32_t seq, uint32_t *kind);
    bool (*is_passed)(const struct cgpu_flight *flight);
    /*
     * Whether the flight's stream has ended although its marker has not passed: the marker was
     * lost.
     */
    bool (*is_lost)(const struct cgpu_flight *flight, uint64_t now);
    /*
     * Called when a marker of STREAM is removed: forget STREAM if it is destroyed and has no more.
     */
    void (*release)(struct cgpu_stream *stream);
    /* Add to SUM what threads have launched into STREAM and not handed over yet. */
    void (*sum)(const struct cgpu_stream *stream, struct cgpu_unmarked *sum);
    /* The number of launches on GPU that threads have not handed over. */
    uint64_t (*count_held)(const struct cgpu_gate_gpu *gpu);
    void (*cut)(struct cgpu_stream *stream); /* its batch ends */
    /* Make all threads launch under the lock only, and hand over their launches. False: not yet. */
    bool (*stop)(struct cgpu_gate_gpu *gpu, uint64_t now);
    /*
     * Stall the streams that are in a host function. Returns whether other streams may be waiting
     * for the program.
     */
    bool (*poll_host_calls)(struct cgpu_gate_gpu *gpu, uint64_t now);
    bool (*is_behind_call)(const struct cgpu_stream *stream);
    void (*ring)(struct cgpu_gate_gpu *gpu); /* wake the arbiter */
    /* Wake the process of the container that has waited longest for a permit. False: none waits. */
    bool (*wake)(struct cgpu_gate_gpu *gpu);
};

/* Whether FLAG of enum cgpu_metered is set. relaxed: a hint. */
static inline bool
cgpu_gate_is(const struct cgpu_gate_gpu *gpu, uint32_t flag)
{
    return (__atomic_load_n(&gpu->limits->metered, __ATOMIC_RELAXED) & flag) != 0;
}

/* The gate word in force. acquire: a thread that is let in sees all that was written before. */
static inline uint32_t
cgpu_gate_word(const struct cgpu_gate_gpu *gpu)
{
    const uint32_t *gate = __atomic_load_n(&gpu->gate, __ATOMIC_ACQUIRE);

    return __atomic_load_n(gate, __ATOMIC_ACQUIRE);
}

/* ---- a stream's batch: its launches since its last marker ---- */

/* Add one or more launches of BATCH's kind to STREAM's batch. */
void cgpu_batch_add(struct cgpu_stream *stream, const struct cgpu_unmarked *batch);

/* Set the unmarked work of STREAM to NS (0: no batch), and change the GPU's sum accordingly. */
void cgpu_batch_set_unmarked(struct cgpu_stream *stream, uint64_t ns);

/* Note that STREAM may have work that was not counted. */
void cgpu_batch_suspect(struct cgpu_stream *stream);

/* The launches in STREAM that no marker covers, including those that threads hold. */
struct cgpu_unmarked cgpu_batch_sum(const struct cgpu_stream *stream);

/* Whether STREAM has work that no marker covers. */
bool cgpu_batch_wants_marker(const struct cgpu_stream *stream);

/* Begin a new batch of STREAM, and return the one that ends. */
struct cgpu_pace_batch cgpu_batch_close(struct cgpu_stream *stream);

/* Whether STREAM has CGPU_STREAM_MARKERS, and gets no more before one of them has passed. */
static inline bool
cgpu_batch_is_deferred(const struct cgpu_stream *stream)
{
    return stream->in_flight >= CGPU_STREAM_MARKERS;
}

/* ---- a GPU ---- */

/* Change GPU's phase to TO. UNCOUNTED lasts until threads are stopped. */
void cgpu_gate_set_phase(struct cgpu_gate_gpu *gpu, enum cgpu_gate_phase to, uint64_t now);

/* Show the arbiter what is in flight. */
void cgpu_gate_publish(struct cgpu_gate_gpu *gpu);

/* Whether work is in flight that the arbiter should wait for. */
static inline bool
cgpu_gate_is_busy(const struct cgpu_gate_gpu *gpu)
{
    return gpu->flights != gpu->ignored;
}

/* ---- streams that stall ---- */

/* Stall STREAM from NOW on for the reason WHY, even if it is stalled for another reason. */
void cgpu_stall_begin(struct cgpu_stream *stream, enum cgpu_stall why, uint64_t now);

/* Note that STREAM takes GPU time that is charged only when its work has ended. */
void cgpu_stall_leave_uncharged(struct cgpu_stream *stream, uint64_t now);

/* Note that work of STREAM has ended. */
void cgpu_stall_note_progress(struct cgpu_stream *stream, uint64_t now);

/* Count STREAM's work again. */
void cgpu_stall_end(struct cgpu_stream *stream, uint64_t now);

/* Whether STREAM, which has no markers, is in a host function or will be next. */
bool cgpu_stall_is_in_call(const struct cgpu_stream *stream, uint64_t now);

/* Whether all work of STREAM is behind a host function that runs now or runs next. */
bool cgpu_stall_is_behind_call(const struct cgpu_stream *stream, uint64_t now);

/* Whether nobody waits for the work of STREAM. */
static inline bool
cgpu_stall_is_ignored(const struct cgpu_stream *stream)
{
    return stream->stall == CGPU_STALL_IN_CALL || stream->stall == CGPU_STALL_PERSISTENT;
}

#endif
