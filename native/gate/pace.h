/*
 * Pace: how much GPU work a process has in flight on one GPU, in time, and how much it may add.
 *
 * Pure bookkeeping with time as a parameter: the proxy runs it against the driver, the model
 * against a modelled GPU. Work is launched in batches. Each batch ends with a marker in its stream;
 * when the marker has passed, the work has ended. What a kernel takes is learnt from the time
 * between markers, by function and size. The estimates limit what is in flight and predict when a
 * drain will be over. They are not used for charging.
 *
 * All functions except cgpu_pace_estimate are called under one lock of the process.
 */
#ifndef CGPU_PACE_H
#define CGPU_PACE_H

#include <stdbool.h>
#include <stdint.h>

#include "gate/gate_times.h"
#include "gate/guess.h"

enum { CGPU_PACE_SETS = 512, CGPU_PACE_WAYS = 4, CGPU_PACE_BATCHES = 256 };

/* The time that one launch of KEY takes; 0: not known yet. Four share a cache line. */
struct cgpu_pace_estimate {
    uint64_t key;
    uint64_t ns;
};

/* A batch whose marker has not been passed yet. */
struct cgpu_pace_batch {
    uint64_t key;      /* of all its launches; 0: they differ */
    uint64_t launches; /* 0: a probe, see lag_ns */
    uint64_t work_ns;  /* as estimated */
    uint64_t start_ns; /* it did not begin before this: its first launch, as far as that is known */
    uint32_t certain;  /* every launch in it was of a known key, or guessed */
    uint32_t guessed;  /* how many of them were not measured yet */
    uint64_t guess_ns; /* the part of work_ns that is assumed for those */
    uint32_t stream;   /* any number, the same for what runs one after the other */

    /* Set when it is marked, left alone by everybody else. */
    uint32_t queued;      /* something was in flight: it begins when that ends */
    uint32_t begun;       /* it may have run beside a batch of another stream, which has passed */
    uint64_t expected_ns; /* what it will take */
    uint64_t marked_ns;
    uint32_t counted; /* as use, when it no longer counted as in flight */
};

/* How the end of a batch was seen. */
enum cgpu_pace_seen {
    CGPU_SEEN_LATE,   /* some time after it */
    CGPU_SEEN_MARKED, /* when it came; the batch was marked when the program waited for that */
    CGPU_SEEN_AT_ONCE /* when it came: a thread was watching */
};

/* What was seen to pass at one time, from which something may be learnt. */
struct cgpu_pace_lesson {
    uint64_t key; /* of all its launches; 0: they differ */
    uint64_t launches;
    uint64_t span_ns;
    uint64_t blur_ns; /* the span may be too short by this */
    uint64_t at_ns;
    enum cgpu_pace_seen seen;
    bool there;
    bool exact;  /* false: the span is an upper bound */
    bool beside; /* others ran beside it: part of it may have run before the span */
    bool cut;    /* the span may be too short for that or another reason */
};

/* Nothing is known yet: all zeros. */
struct cgpu_pace {
    uint64_t end_ns;    /* when all that is marked is expected to have ended */
    uint64_t passed_ns; /* when a marker was last seen passed */
    uint64_t polled_ns; /* when markers were last looked at */
    uint32_t sharp;     /* it was seen when it came: passed_ns is exact but for blur_ns */
    uint64_t blur_ns;   /* the marker may have passed this much earlier */
    uint32_t stream;    /* the stream of that marker */
    uint64_t marked_ns; /* when that marker was put */
    uint64_t busy_ns;   /* GPU time of all batches that have ended: for shares that are shown */
    uint64_t done_ns;   /* GPU time of the same batches, as estimated at their launch */
    bool spans;         /* busy_ns counts all the time that they took: CGPU_METERED_SPANS */
    uint64_t in_flight; /* batches */
    uint64_t uncertain; /* of these, batches with launches of unknown duration */
    uint64_t guessed;   /* and with launches whose duration is guessed */
    struct cgpu_guess guess;
    uint32_t victim; /* which way of a full set is given to a new key next */

    /*
     * The time from marking a probe, a batch that is empty and has nothing to wait for, until it is
     * seen passed: a launch takes a while to reach the GPU, and its end to be seen.
     */
    uint64_t lag_ns;
    uint64_t probed_ns; /* since when a probe is in flight; 0: none is */

    uint64_t left_ns;    /* what all that is in flight takes together */
    uint64_t longest_ns; /* and no batch of it more than this */
    uint64_t since_ns;   /* when the first of it began, or a marker was last passed */
    struct cgpu_pace_lesson lesson;
    uint64_t chain_key; /* batches of one key that ended one after the other, without a gap */
    uint64_t chain_launches, chain_ns;
    struct cgpu_pace_estimate estimates[CGPU_PACE_SETS][CGPU_PACE_WAYS]
        __attribute__((aligned(64)));
};

/* The key for launches of FUNCTION (any handle) with UNITS of size (threads, bytes): never 0. */
static inline uint64_t
cgpu_pace_key(const void *function, uint64_t units)
{
    uint64_t mixed = ((uint64_t)(uintptr_t)function ^ units * UINT64_C(0x9e3779b97f4a7c15)) *
                     UINT64_C(0xff51afd7ed558ccd);

    return mixed | 1;
}

/*
 * The time that a launch of KEY takes, in ns; 0: not known. No lock: a torn or old value does no
 * harm, because what is in flight is measured anyway.
 */
static inline uint64_t
cgpu_pace_estimate(const struct cgpu_pace *pace, uint64_t key)
{
    const struct cgpu_pace_estimate *set = pace->estimates[key >> 55];

    for (int way = 0; way < CGPU_PACE_WAYS; way++) {
        /* relaxed: the two belong together only most of the time, see above */
        if (__atomic_load_n(&set[way].key, __ATOMIC_RELAXED) == key) {
            return __atomic_load_n(&set[way].ns, __ATOMIC_RELAXED);
        }
    }
    return 0;
}

/* Note that BATCH was marked at NOW: it is in flight. */
void cgpu_pace_mark(struct cgpu_pace *pace, struct cgpu_pace_batch *batch, uint64_t now);

/*
 * Note that BATCH's marker was seen passed at NOW. Unless it was seen late, kernels are learnt from
 * it.
 */
void cgpu_pace_pass(struct cgpu_pace *pace, const struct cgpu_pace_batch *batch, uint64_t now,
                    enum cgpu_pace_seen seen);

/*
 * Note that BATCH no longer counts as in flight, although it may not have ended: nothing is learnt
 * from it.
 */
void cgpu_pace_leave(struct cgpu_pace *pace, const struct cgpu_pace_batch *batch, uint64_t now);

/*
 * Note that BATCH counts as in flight again. It may have begun some time ago, so its length shows
 * nothing.
 */
void cgpu_pace_return(struct cgpu_pace *pace, struct cgpu_pace_batch *batch, uint64_t now);

/* Note that all markers were checked at NOW: those that had not passed then pass later. */
void cgpu_pace_note_poll(struct cgpu_pace *pace, uint64_t now);

/*
 * Whether another launch may go at NOW, if FLIGHT_NS of work may be in flight. Returns 0 if so,
 * otherwise the time at which to check again. Time alone makes no more room than one batch takes,
 * so that wrong estimates do not pile up work: after that a marker must pass.
 */
uint64_t cgpu_pace_room(const struct cgpu_pace *pace, uint64_t flight_ns, uint64_t now);

/*
 * The gate has been closed since CLOSED_NS: when to check the markers again. This begins some time
 * before the expected end: a check only at that time would confirm an estimate that is too long.
 */
uint64_t cgpu_pace_drain_poll_at(const struct cgpu_pace *pace, uint64_t closed_ns, uint64_t now);

#endif
