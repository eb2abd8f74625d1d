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

/* A batch whose marker has not passed yet. */
struct cgpu_pace_batch {
    uint64_t key;      /* of all its launches; 0: they differ */
    uint64_t launches; /* 0: a probe, see lag_ns */
    uint64_t work_ns;  /* as estimated */
    uint64_t start_ns; /* when its first launch was, as far as known: it did not begin before */
    uint32_t certain;  /* every launch in it was of a known key, or guessed */
    uint32_t guessed;  /* how many of them were not measured yet */
    uint64_t guess_ns; /* the part of work_ns that is assumed for those */
    uint32_t stream;   /* a number that batches which run one after the other have in common */

    /* Set when the batch is marked, and left alone by everybody else. */
    uint32_t queued;      /* other work was in flight: it begins when that ends */
    uint32_t begun;       /* a batch of another stream has passed, which may have run beside it */
    uint64_t expected_ns; /* what it will take */
    uint64_t marked_ns;
    uint32_t counted; /* when it no longer counted as in flight, its time was counted as use */
};

/* How the end of a batch was seen. */
enum cgpu_pace_seen {
    CGPU_SEEN_LATE,   /* some time after the end */
    CGPU_SEEN_MARKED, /* at the end, for which the program waited when the batch was marked */
    CGPU_SEEN_AT_ONCE /* at the end, because a thread was watching */
};

/* Batches that were seen to pass in one check, from which something may be learnt. */
struct cgpu_pace_lesson {
    uint64_t key; /* of all its launches; 0: they differ */
    uint64_t launches;
    uint64_t span_ns;
    uint64_t blur_ns; /* the span may be too short by this */
    uint64_t at_ns;
    enum cgpu_pace_seen seen;
    bool there;
    bool exact;  /* false: the span is an upper bound */
    bool beside; /* others ran beside it, so part of it may have run before the span */
    bool cut;    /* the span may be too short, for this or another reason */
};

/* At the beginning nothing is known: all zeros. */
struct cgpu_pace {
    uint64_t end_ns;    /* when all that is marked is expected to have ended */
    uint64_t passed_ns; /* when a marker was last seen passed */
    uint64_t polled_ns; /* when markers were last looked at */
    uint32_t sharp;     /* that was seen at once: passed_ns is exact but for blur_ns */
    uint64_t blur_ns;   /* the marker may have passed this much earlier */
    uint32_t stream;    /* the stream of that marker */
    uint64_t marked_ns; /* when that marker was put */
    uint64_t busy_ns;   /* GPU time of all batches that have ended: for shares that are shown */
    uint64_t done_ns;   /* GPU time of the same batches, as estimated at their launch */
    bool spans;         /* busy_ns counts all the time that batches took: CGPU_METERED_SPANS */
    uint64_t in_flight; /* batches */
    uint64_t uncertain; /* of these, batches with launches of unknown duration */
    uint64_t guessed;   /* and with launches whose duration is guessed */
    struct cgpu_guess guess;
    uint32_t victim; /* which way of a full set is given to a new key next */

    /*
     * How long a launch takes to reach the GPU and its end to be seen. A probe measures it, a batch
     * that is empty and has nothing to wait for: the time from marking it until it is seen passed.
     */
    uint64_t lag_ns;
    uint64_t probed_ns; /* since when a probe is in flight; 0: none is */

    uint64_t left_ns;    /* what all that is in flight will take together */
    uint64_t longest_ns; /* what its longest batch will take at most */
    uint64_t since_ns;   /* when the first of it began, or a marker was last passed */
    struct cgpu_pace_lesson lesson;
    uint64_t chain_key; /* the key of batches that ended one after the other, without a gap */
    uint64_t chain_launches, chain_ns;
    struct cgpu_pace_estimate estimates[CGPU_PACE_SETS][CGPU_PACE_WAYS]
        __attribute__((aligned(64)));
};

/* The key for launches of FUNCTION (any handle) with a size of UNITS (threads, bytes). Never 0. */
static inline uint64_t
cgpu_pace_key(const void *function, uint64_t units)
{
    uint64_t mixed = ((uint64_t)(uintptr_t)function ^ units * UINT64_C(0x9e3779b97f4a7c15)) *
                     UINT64_C(0xff51afd7ed558ccd);

    return mixed | 1;
}

/*
 * The time that a launch of KEY takes, in ns; 0: not known. It takes no lock: a torn or old value
 * does no harm, because what is in flight is measured anyway.
 */
static inline uint64_t
cgpu_pace_estimate(const struct cgpu_pace *pace, uint64_t key)
{
    const struct cgpu_pace_estimate *set = pace->estimates[key >> 55];

    for (int way = 0; way < CGPU_PACE_WAYS; way++) {
        /* relaxed: key and time may be of two moments, which does no harm (see above) */
        if (__atomic_load_n(&set[way].key, __ATOMIC_RELAXED) == key) {
            return __atomic_load_n(&set[way].ns, __ATOMIC_RELAXED);
        }
    }
    return 0;
}

/* Note that BATCH got its marker at NOW, and so is in flight. */
void cgpu_pace_mark(struct cgpu_pace *pace, struct cgpu_pace_batch *batch, uint64_t now);

/*
 * Note that BATCH's marker was seen passed at NOW. If that was seen in time, learn how long its
 * kernels take.
 */
void cgpu_pace_pass(struct cgpu_pace *pace, const struct cgpu_pace_batch *batch, uint64_t now,
                    enum cgpu_pace_seen seen);

/*
 * Note that BATCH no longer counts as in flight, although it may not have ended. Nothing is learnt
 * from it.
 */
void cgpu_pace_leave(struct cgpu_pace *pace, const struct cgpu_pace_batch *batch, uint64_t now);

/*
 * Note that BATCH counts as in flight again. It may have begun earlier, so nothing is learnt from
 * its length.
 */
void cgpu_pace_return(struct cgpu_pace *pace, struct cgpu_pace_batch *batch, uint64_t now);

/* Note that all markers were checked at NOW. A marker that had not passed by then passes later. */
void cgpu_pace_note_poll(struct cgpu_pace *pace, uint64_t now);

/*
 * Whether another launch may go at NOW if FLIGHT_NS of work may be in flight. Returns 0 if so,
 * otherwise the time at which to check again. Elapsed time makes room for one batch at most; after
 * that a marker must pass, so that wrong estimates do not pile up work.
 */
uint64_t cgpu_pace_room(const struct cgpu_pace *pace, uint64_t flight_ns, uint64_t now);

/*
 * When to check the markers again, after the gate closed at CLOSED_NS. The first check comes some
 * time before the expected end: a check only at that time would confirm an estimate that is too
 * long.
 */
uint64_t cgpu_pace_drain_poll_at(const struct cgpu_pace *pace, uint64_t closed_ns, uint64_t now);

#endif
