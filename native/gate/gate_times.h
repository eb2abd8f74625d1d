/*
 * The time constants of the gate's rules: what each is, who waits for it, what it costs.
 *
 * "Halved" names the scenario of docs/model.md, or the test, that becomes worse with half of it.
 * Times inside the estimates of kernels are in pace.c and pace_room.c, those without an arbiter in
 * fallback.h, those of turns in native/arbiter, and those of the proxy's threads, which the model
 * does not have, in shim/cuda/compute.
 */
#ifndef CGPU_GATE_TIMES_H
#define CGPU_GATE_TIMES_H

#include <stdint.h>

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

/* The same while nobody waits: a newcomer waits for it. Halved: threads wake twice as often. */
#define CGPU_PACE_AHEAD_NS UINT64_C(10000000)

/* No GPU is believed to answer more slowly than this. Halved: edge-pairs with 300 us each. */
#define CGPU_PACE_LAG_NS UINT64_C(1000000)

/*
 * Without work for this long, a process is idle. The others on the GPU wait for it. Halved: rules,
 * idle-pauses.
 */
#define CGPU_PACE_IDLE_NS UINT64_C(200000)

/*
 * A kernel this long is mostly alone in its turn; this much of what is seen of it is not its own.
 */
#define CGPU_PACE_LONE_NS  UINT64_C(12000000)
#define CGPU_PACE_EDGES_NS UINT64_C(500000)

/*
 * If the last check was this recent, a marker passed about now. Halved: fewer kernels are learnt
 * (share-late).
 */
#define CGPU_FLIGHT_KNOWN_NS UINT64_C(60000)

/*
 * A stream stands apart after this long in a host function. Other streams of the process wait for
 * it; without it short host functions would count (test_gate_apart.py).
 */
#define CGPU_APART_CALL_NS CGPU_PACE_IDLE_NS

/*
 * After no work of a stream has ended for this long, nobody waits for it any more. The next
 * container waits until then. Halved: kernels of 0.5 s would no longer be charged as they run
 * (long-shares).
 */
#define CGPU_APART_STAYS_NS UINT64_C(1000000000)

/*
 * The least time of the same kind if a stream may be waiting for the program without our knowing:
 * AWAITS_NS, or UNKNOWN_NS if its work includes kernels of unknown length. The program's own
 * launches wait for it. AWAITS_NS is also how often to check whether a stream that stands apart
 * makes progress.
 */
#define CGPU_APART_AWAITS_NS  UINT64_C(20000000)
#define CGPU_APART_UNKNOWN_NS UINT64_C(100000000)

/* A host function's thread begins within this time, even on a busy machine (test_gate_apart.py). */
#define CGPU_APART_BEGINS_NS UINT64_C(100000000)

/* If a marker has not been written for this long, ask the driver. The process's own work waits. */
#define CGPU_APART_LOST_NS UINT64_C(100000000)

/*
 * How often to check a thread that is inside a launch that does not return. The others wait for it.
 */
#define CGPU_DRAIN_BLOCKED_NS UINT64_C(100000)

/* How often to check for idleness while others wait, and how rarely at most. Costs a check. */
#define CGPU_DRAIN_WATCH_NS      (CGPU_PACE_IDLE_NS / 2)
#define CGPU_DRAIN_WATCH_MOST_NS UINT64_C(1000000)

#endif
