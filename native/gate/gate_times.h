/*
 * Every time of the gate: what it is, who waits for it, what it costs.
 *
 * "Halved" and "Without" name what becomes worse if the time is half as long or missing: a scenario
 * of docs/model.md, or a test. The times of turns are in native/arbiter. The model has neither the
 * times without an arbiter nor those of the proxy's threads.
 */
#ifndef CGPU_GATE_TIMES_H
#define CGPU_GATE_TIMES_H

#include <stdint.h>

/* ---- how much may be in flight ---- */
/*
 * A batch ends when it holds this much work. The next container waits for what is in flight; a
 * thread pays for one marker per batch. Halved: twice the markers (test_gate_cost.py).
 */
#define CGPU_PACE_BATCH_NS UINT64_C(250000)
/*
 * A thread may launch more when at most this much work is in flight, and sleeps this long if it
 * cannot get a marker. Others wait for that work when the gate closes. Halved: share-flight, the
 * GPU is less busy.
 */
#define CGPU_PACE_FLIGHT_NS UINT64_C(500000)
/*
 * How much may be in flight while nobody waits, or with CGPU_METERED_SLICED. A newcomer waits for
 * that work. Halved: threads wake up twice as often.
 */
#define CGPU_PACE_AHEAD_NS UINT64_C(10000000)

/*
 * A permit expires when its process has given no sign of life for this long plus twice the time of
 * its work in flight. The others wait for that. A process that gave its permit back to others takes
 * none for this long, unless it queues.
 */
#define CGPU_PERMIT_LEASE_NS UINT64_C(2000000)
/*
 * While others queue, a process with a permit launches this much and then lets its work end. The
 * others wait for that. As short as FLIGHT: processes-equal, the GPU is less busy.
 */
#define CGPU_PERMIT_WORK_NS UINT64_C(1250000)
/* A process that queues checks again after this at most, because it may have missed a wake-up. */
#define CGPU_PERMIT_LOOK_NS UINT64_C(10000000)
/*
 * If nobody gives a permit back for this long, a process that queues launches one batch without a
 * permit, because the others' work may wait for it.
 */
#define CGPU_PERMIT_WAIT_NS UINT64_C(100000000)

/* ---- estimates of kernels and of the lag: nobody waits for these ---- */
/*
 * If no check saw an end, it is assumed this much before the expected time. Without: edge-ceiling.
 */
#define CGPU_PACE_LEAN_NS UINT64_C(25000)
/* A kernel of LONE_NS or more is mostly alone in its turn; EDGES_NS of its span are not its own. */
#define CGPU_PACE_LONE_NS  UINT64_C(12000000)
#define CGPU_PACE_EDGES_NS UINT64_C(500000)
/*
 * How long a chain of batches must be to show that an estimate is too short (100 us more or less do
 * not matter then), and to show that it is too long. Halved: window-1s. Without: edge-ceiling.
 */
#define CGPU_PACE_CHAIN_NS       UINT64_C(8000000)
#define CGPU_PACE_SHORT_CHAIN_NS UINT64_C(1000000)
/* The lag of a GPU counts as at most this. Halved: edge-pairs with 300 us each. */
#define CGPU_PACE_LAG_NS UINT64_C(1000000)
/* This much of each sample of the lag does not count. Without: high-policies. */
#define CGPU_PACE_USUAL_LAG_NS UINT64_C(100000)
/*
 * After a sleep longer than this, a sample of the lag shows nothing: even a sleep of 20 us may take
 * 100 and more (pace.c).
 */
#define CGPU_PACE_SOON_NS UINT64_C(200000)
/*
 * If the last check was this recent, a marker that has passed did so about now. Without:
 * edge-ceiling.
 */
#define CGPU_FLIGHT_KNOWN_NS UINT64_C(60000)

/* ---- when to check again: each costs a check ---- */
/*
 * The shortest and the longest time to the next check while a thread waits that could launch.
 * Without: edge-ceiling, rules.
 */
#define CGPU_PACE_SOONEST_NS UINT64_C(20000)
#define CGPU_PACE_LATEST_NS  UINT64_C(1000000)
/*
 * The longest time to the next check while others wait for an end: usually, and near the end of a
 * lone kernel. Without: edge-pairs.
 */
#define CGPU_PACE_SLOWEST_NS UINT64_C(500000)
#define CGPU_PACE_WATCH_NS   UINT64_C(50000)
/*
 * The shortest time to the next check while a thread is inside a launch that does not return, and
 * the others wait for it. The longest is SLOWEST_NS.
 */
#define CGPU_DRAIN_BLOCKED_NS UINT64_C(100000)
/*
 * A process without work for IDLE_NS is idle. The others on the GPU wait for that. Halved: rules,
 * idle-pauses. The next two: how often to check for that, and how rarely at most.
 */
#define CGPU_PACE_IDLE_NS        UINT64_C(200000)
#define CGPU_DRAIN_WATCH_NS      (CGPU_PACE_IDLE_NS / 2)
#define CGPU_DRAIN_WATCH_MOST_NS UINT64_C(1000000)
/*
 * A program that usually rests reports its rest this long before its work ends, because the next
 * container needs as long to begin. Without (bursts): the GPU is idle for 0.1 ms after each burst.
 */
#define CGPU_REST_EARLY_NS UINT64_C(120000)

/* ---- streams that stall ---- */
/*
 * A stream that is in a host function for this long stalls. Short host functions do not count. The
 * process's own work waits for this.
 */
#define CGPU_STALL_CALL_NS CGPU_PACE_IDLE_NS
/*
 * If no work of a stream has ended for this long, nobody waits for it any more; until then the next
 * container does. Halved: long-shares, kernels of 0.5 s would not be charged as they run.
 */
#define CGPU_STALL_PERSISTENT_NS UINT64_C(1000000000)
/*
 * A stream that may be waiting for the program stalls after no less than AWAITS_NS without an end,
 * or UNKNOWN_NS if its work includes kernels of unknown length. The program's own launches wait for
 * this. AWAITS_NS is also how often to check whether a stalled stream makes progress.
 */
#define CGPU_STALL_AWAITS_NS  UINT64_C(20000000)
#define CGPU_STALL_UNKNOWN_NS UINT64_C(100000000)
/*
 * The thread of a host function begins within this time, even on a busy machine
 * (test_gate_apart.py).
 */
#define CGPU_STALL_BEGINS_NS UINT64_C(100000000)
/*
 * If a marker was not written for this long, ask the driver. The process's own work waits for that.
 */
#define CGPU_STALL_LOST_NS UINT64_C(100000000)

/* ---- without an arbiter (fallback.h) ---- */
/* Each container launches in its own part of this period, and waits for the rest of it. */
#define CGPU_FALLBACK_PERIOD_NS UINT64_C(100000000)
/*
 * An arbiter that has given no heartbeat for this long is gone; it gives one every 50 ms. Launches
 * wait for this and for their part of the period, together at most 250 ms (REL-2).
 */
#define CGPU_FALLBACK_AFTER_NS UINT64_C(150000000)
/* How often to check for a new arbiter. Containers launch by the clock until then. */
#define CGPU_FALLBACK_UNHEARD_NS UINT64_C(10000000)

/* ---- threads of the proxy (shim/cuda/compute) ---- */
/* How often a thread that waits checks the gate itself; ALONE_NS: if there is no monitor. */
#define CGPU_ENTER_SLICE_NS UINT64_C(100000000)
#define CGPU_ENTER_ALONE_NS UINT64_C(1000000)
/*
 * The pause between two checks whether a thread is inside a launch. The next container waits for
 * it.
 */
#define CGPU_SLOT_PAUSE_NS UINT64_C(5000)
/* How often the monitor looks for threads that have ended. Until then their slots are taken. */
#define CGPU_SLOT_SWEEP_NS UINT64_C(1000000000)
/* How often the monitor checks gates that cannot wake it. Before Linux 5.16 only one gate can. */
#define CGPU_MONITOR_UNWATCHED_NS UINT64_C(1000000)
/* How often to try again to create a monitor. Until then, others get the GPU back late. */
#define CGPU_MONITOR_AGAIN_NS UINT64_C(1000000000)
/*
 * When a process exits, it waits for its monitor: how often it checks whether the monitor has
 * ended, and how long it waits at most.
 */
#define CGPU_MONITOR_POLL_NS    UINT64_C(20000)
#define CGPU_MONITOR_GIVE_UP_NS UINT64_C(200000000)

#endif
