/*
 * Every time of the gate: what it is, who waits for it, what it costs.
 *
 * "Halved: NAME" and "Without: NAME" name the scenario of docs/model.md, or the test, that becomes
 * worse if the time is half as long or is not there. The times of turns are in native/arbiter. The
 * model has neither the times without an arbiter nor those of the proxy's threads.
 */
#ifndef CGPU_GATE_TIMES_H
#define CGPU_GATE_TIMES_H

#include <stdint.h>

/* ---- how much may be in flight ---- */
/*
 * A batch ends when it holds this much work. The next container waits for what is in flight; the
 * thread pays for a marker per batch. Halved: twice the markers (test_gate_cost.py).
 */
#define CGPU_PACE_BATCH_NS UINT64_C(250000)
/*
 * A thread goes on launching when at most this much is left to do, and sleeps this long if it
 * cannot get a marker. Others wait for it when the gate closes. Halved: share-flight, the GPU is
 * less busy.
 */
#define CGPU_PACE_FLIGHT_NS UINT64_C(500000)
/*
 * FLIGHT_NS while nobody waits, or with CGPU_METERED_SLICED: a newcomer waits for that work.
 * Halved: threads wake twice as often.
 */
#define CGPU_PACE_AHEAD_NS UINT64_C(10000000)

/*
 * A permit becomes free when its process has given no sign of life for this long plus twice the
 * time of what it had in flight: the others wait for it. A process that gave a permit back to
 * another takes none for this long, unless it queues.
 */
#define CGPU_PERMIT_LEASE_NS UINT64_C(2000000)
/*
 * While others queue, a process that has a permit launches this much, and then lets its work end.
 * The others wait for it. If as little as FLIGHT: processes-equal, the GPU is less busy.
 */
#define CGPU_PERMIT_WORK_NS UINT64_C(1250000)
/* A process that queues checks again after this at the latest: it may have missed a wake-up. */
#define CGPU_PERMIT_LOOK_NS UINT64_C(10000000)
/*
 * If nobody gives a permit back for this long, a process that queues launches one batch without
 * one: the others' work may wait for it.
 */
#define CGPU_PERMIT_WAIT_NS UINT64_C(100000000)

/* ---- estimates of kernels and of the lag: nobody waits for these ---- */
/* An end that no check saw is assumed this much before the expected one. Without: edge-ceiling. */
#define CGPU_PACE_LEAN_NS UINT64_C(25000)
/* A kernel this long is mostly alone in its turn. Of a span of it, EDGES_NS are not its own. */
#define CGPU_PACE_LONE_NS  UINT64_C(12000000)
#define CGPU_PACE_EDGES_NS UINT64_C(500000)
/*
 * How long a chain of batches must be to show that an estimate is too short (in so long a chain,
 * 100 us sooner or later do not matter), and to show that it is too long. Halved: window-1s.
 * Without: edge-ceiling.
 */
#define CGPU_PACE_CHAIN_NS       UINT64_C(8000000)
#define CGPU_PACE_SHORT_CHAIN_NS UINT64_C(1000000)
/* The longest lag that is believed of a GPU. Halved: edge-pairs with 300 us each. */
#define CGPU_PACE_LAG_NS UINT64_C(1000000)
/* This much of each sample of the lag is not counted. Without: high-policies. */
#define CGPU_PACE_USUAL_LAG_NS UINT64_C(100000)
/*
 * A sample after a longer sleep than this shows nothing: a sleep of 20 us may take 100 and more
 * (pace.c).
 */
#define CGPU_PACE_SOON_NS UINT64_C(200000)
/* If the check before was this recent, a marker passed about now. Without: edge-ceiling. */
#define CGPU_FLIGHT_KNOWN_NS UINT64_C(60000)

/* ---- when to check again: each costs a check ---- */
/*
 * The soonest and the latest next check, for which a thread waits that could launch. Without:
 * edge-ceiling, rules.
 */
#define CGPU_PACE_SOONEST_NS UINT64_C(20000)
#define CGPU_PACE_LATEST_NS  UINT64_C(1000000)
/*
 * The latest while others wait for an end, and near the end of a lone kernel. Without: edge-pairs.
 */
#define CGPU_PACE_SLOWEST_NS UINT64_C(500000)
#define CGPU_PACE_WATCH_NS   UINT64_C(50000)
/*
 * The soonest while a thread is inside a launch that does not return, and the others wait for it.
 * The latest is SLOWEST_NS.
 */
#define CGPU_DRAIN_BLOCKED_NS UINT64_C(100000)
/*
 * A process that is without work for this long is idle. The others on the GPU wait for that.
 * Halved: rules, idle-pauses. WATCH_NS: how often to check for that, and how rarely at most.
 */
#define CGPU_PACE_IDLE_NS        UINT64_C(200000)
#define CGPU_DRAIN_WATCH_NS      (CGPU_PACE_IDLE_NS / 2)
#define CGPU_DRAIN_WATCH_MOST_NS UINT64_C(1000000)
/*
 * A program that usually rests reports its rest this long before its work ends: the next container
 * needs as long to begin. Without (bursts): the GPU is idle for 0.1 ms at the end of each burst.
 */
#define CGPU_REST_EARLY_NS UINT64_C(120000)

/* ---- streams that stall ---- */
/*
 * A stream stalls after this long in a host function: short ones do not count. The process's own
 * work waits.
 */
#define CGPU_STALL_CALL_NS CGPU_PACE_IDLE_NS
/*
 * After no work of a stream has ended for this long, nobody waits for it; until then the next
 * container does. Halved: long-shares, kernels of 0.5 s would not be charged as they run.
 */
#define CGPU_STALL_PERSISTENT_NS UINT64_C(1000000000)
/*
 * The least time without an end after which a stream stalls, if it may be waiting for the program
 * without our knowing: AWAITS_NS, or UNKNOWN_NS if its work includes kernels of unknown length. The
 * program's own launches wait for it. AWAITS_NS is also how often to check whether a stalled stream
 * makes progress.
 */
#define CGPU_STALL_AWAITS_NS  UINT64_C(20000000)
#define CGPU_STALL_UNKNOWN_NS UINT64_C(100000000)
/* A host function's thread begins within this time, even on a busy machine (test_gate_apart.py). */
#define CGPU_STALL_BEGINS_NS UINT64_C(100000000)
/* If a marker has not been written for this long, ask the driver. The process's own work waits. */
#define CGPU_STALL_LOST_NS UINT64_C(100000000)

/* ---- without an arbiter (fallback.h) ---- */
/* Each container launches in its own part of this period, and waits for the rest of it. */
#define CGPU_FALLBACK_PERIOD_NS UINT64_C(100000000)
/*
 * An arbiter without a heartbeat for this long is gone; it gives one every 50 ms. Launches wait for
 * this and for their part of the period: at most 250 ms (REL-2).
 */
#define CGPU_FALLBACK_AFTER_NS UINT64_C(150000000)
/* How often to check for a new arbiter. Containers launch by the clock until then. */
#define CGPU_FALLBACK_UNHEARD_NS UINT64_C(10000000)

/* ---- threads of the proxy (shim/cuda/compute) ---- */
/* How often a thread that waits checks the gate itself; ALONE_NS: if it does the monitor's work. */
#define CGPU_ENTER_SLICE_NS UINT64_C(100000000)
#define CGPU_ENTER_ALONE_NS UINT64_C(1000000)
/*
 * The pause between two checks that no thread is inside a launch. The next container waits for it.
 */
#define CGPU_SLOT_PAUSE_NS UINT64_C(5000)
/* How often the monitor checks for threads that have ended; until then their slots are taken. */
#define CGPU_SLOT_SWEEP_NS UINT64_C(1000000000)
/*
 * How often the monitor checks gates that cannot wake it: before Linux 5.16 only one of several
 * can.
 */
#define CGPU_MONITOR_UNWATCHED_NS UINT64_C(1000000)
/* How often to try again to create a monitor. Until then others get the GPU back late. */
#define CGPU_MONITOR_AGAIN_NS UINT64_C(1000000000)
/*
 * How often the exit of a process, which waits for the monitor, checks whether it has ended, and
 * how long it waits at most.
 */
#define CGPU_MONITOR_POLL_NS    UINT64_C(20000)
#define CGPU_MONITOR_GIVE_UP_NS UINT64_C(200000000)

#endif
