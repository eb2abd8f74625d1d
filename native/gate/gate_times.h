/*
 * Every time of the gate: what it is, who waits for it, what it costs.
 *
 * "Halved" and "without" name the scenario of docs/model.md, or the test, that becomes worse. The
 * times of turns are in native/arbiter. The model has none of those without an arbiter, nor those
 * of the proxy's threads.
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
 * The same while nobody waits, or with CGPU_METERED_SLICED: a newcomer waits for it. Halved:
 * threads wake twice as often.
 */
#define CGPU_PACE_AHEAD_NS UINT64_C(10000000)

/*
 * A permit is free this long, and twice what its process had in flight, after the last sign of life
 * of that process: the others wait for it. Who gave one back to another takes none for this long,
 * unless it queues.
 */
#define CGPU_PERMIT_LEASE_NS UINT64_C(2000000)
/*
 * A process that others queue behind launches this much, and then lets it end. They wait for it. As
 * little as FLIGHT: processes-equal, the GPU is less busy.
 */
#define CGPU_PERMIT_WORK_NS UINT64_C(1250000)
/* A process that queues looks again after this at the latest: it may have missed a wake-up. */
#define CGPU_PERMIT_LOOK_NS UINT64_C(10000000)
/*
 * If nobody gives one back for this long, a process that queues launches one batch without: the
 * others' work may wait for it.
 */
#define CGPU_PERMIT_WAIT_NS UINT64_C(100000000)

/* ---- estimates of kernels and of the lag: nobody waits for these ---- */
/* An end that no check saw was this much before the expected one. Without: edge-ceiling. */
#define CGPU_PACE_LEAN_NS UINT64_C(25000)
/* A kernel this long is mostly alone in its turn; EDGES_NS of what is seen of it is not its own. */
#define CGPU_PACE_LONE_NS  UINT64_C(12000000)
#define CGPU_PACE_EDGES_NS UINT64_C(500000)
/*
 * A chain of batches this long shows that estimates are wrong, as 100 us sooner or later do not
 * matter in it; a short turn shows that they are too long. Halved: window-1s. Without:
 * edge-ceiling.
 */
#define CGPU_PACE_CHAIN_NS       UINT64_C(8000000)
#define CGPU_PACE_SHORT_CHAIN_NS UINT64_C(1000000)
/* No GPU is believed to answer more slowly than this. Halved: edge-pairs with 300 us each. */
#define CGPU_PACE_LAG_NS UINT64_C(1000000)
/* This much of each sample of the lag is not counted. Without: high-policies. */
#define CGPU_PACE_USUAL_LAG_NS UINT64_C(100000)
/* After a longer sleep a sample shows nothing: one of 20 us may take 100 and more (pace_lag.c). */
#define CGPU_PACE_SOON_NS UINT64_C(200000)
/* If the last check was this recent, a marker passed about now. Without: edge-ceiling. */
#define CGPU_FLIGHT_KNOWN_NS UINT64_C(60000)

/* ---- when to check again: each costs a check ---- */
/* The soonest and the latest. A thread waits that could launch. Without: edge-ceiling, rules. */
#define CGPU_PACE_SOONEST_NS UINT64_C(20000)
#define CGPU_PACE_LATEST_NS  UINT64_C(1000000)
/* The latest while others wait for an end, and near that of a lone kernel. Without: edge-pairs. */
#define CGPU_PACE_SLOWEST_NS UINT64_C(500000)
#define CGPU_PACE_WATCH_NS   UINT64_C(50000)
/*
 * The soonest if a thread is inside a launch that does not return, and the others wait for it. The
 * latest is SLOWEST_NS.
 */
#define CGPU_DRAIN_BLOCKED_NS UINT64_C(100000)
/*
 * Without work for this long, a process is idle. The others on the GPU wait for it. Halved: rules,
 * idle-pauses. WATCH_NS: how often to check for that, and how rarely at most.
 */
#define CGPU_PACE_IDLE_NS        UINT64_C(200000)
#define CGPU_DRAIN_WATCH_NS      (CGPU_PACE_IDLE_NS / 2)
#define CGPU_DRAIN_WATCH_MOST_NS UINT64_C(1000000)
/*
 * A program that usually rests says so this long before its work ends: the next one needs it to
 * begin. Without: bursts, the GPU is idle for 0.1 ms at the end of each burst.
 */
#define CGPU_REST_EARLY_NS UINT64_C(120000)

/* ---- streams that stall ---- */
/* After this long in a host function: short ones do not count. The process's own work waits. */
#define CGPU_STALL_CALL_NS CGPU_PACE_IDLE_NS
/*
 * After no work of a stream has ended for this long, nobody waits for it; until then the next
 * container does. Halved: long-shares, kernels of 0.5 s would not be charged as they run.
 */
#define CGPU_STALL_PERSISTENT_NS UINT64_C(1000000000)
/*
 * The least time of the same kind if a stream may be waiting for the program without our knowing:
 * AWAITS_NS, or UNKNOWN_NS if its work includes kernels of unknown length. The program's own
 * launches wait for it. AWAITS_NS is also how often to check whether a stalled stream makes
 * progress.
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
/* How often to look for a new one. Containers launch by the clock until then. */
#define CGPU_FALLBACK_UNHEARD_NS UINT64_C(10000000)

/* ---- threads of the proxy (shim/cuda/compute) ---- */
/* How often a thread that waits looks at the gate itself; ALONE_NS: it does the monitor's work. */
#define CGPU_ENTER_SLICE_NS UINT64_C(100000000)
#define CGPU_ENTER_ALONE_NS UINT64_C(1000000)
/* Between two checks that no thread is inside a launch. The next container waits for that. */
#define CGPU_SLOT_PAUSE_NS UINT64_C(5000)
/* How often the monitor looks for threads that have ended; until then their slots are taken. */
#define CGPU_SLOT_SWEEP_NS UINT64_C(1000000000)
/* Before Linux 5.16 only one of several gates wakes the monitor: it checks the others so often. */
#define CGPU_MONITOR_UNWATCHED_NS UINT64_C(1000000)
/* How often to try to create a monitor again. Others get the GPU back late until then. */
#define CGPU_MONITOR_AGAIN_NS UINT64_C(1000000000)
/* The exit of a process waits for the monitor: how often it checks, and how long at most. */
#define CGPU_MONITOR_POLL_NS    UINT64_C(20000)
#define CGPU_MONITOR_GIVE_UP_NS UINT64_C(200000000)

#endif
