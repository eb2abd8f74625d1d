/*
 * All times of the gate in a process: what each is, who waits for it, what it costs.
 *
 * "Halved" names the scenario of docs/model.md, or the test, that becomes worse with half of it.
 * Times inside the estimates of kernels stand in pace.c; those of turns in native/arbiter.
 */
#ifndef CGPU_GATE_TIMES_H
#define CGPU_GATE_TIMES_H

#include <stdint.h>

/*
 * A batch ends when it holds so much work. The next container waits for what is in flight, the
 * thread pays a marker for each. Halved: twice the markers (test_gate_cost.py).
 */
#define CGPU_PACE_BATCH_NS UINT64_C(250000)

/*
 * A thread launches on when so much or less is left to do, and sleeps so long where no marker can
 * be had. Others wait for it when the gate closes. Halved: share-flight, the GPU is less busy.
 */
#define CGPU_PACE_FLIGHT_NS UINT64_C(500000)

/* The same while nobody waits: a newcomer waits for it. Halved: threads wake twice as often. */
#define CGPU_PACE_AHEAD_NS UINT64_C(10000000)

/* No GPU is taken for slower to answer than this. Halved: edge-pairs with 300 us each. */
#define CGPU_PACE_LAG_NS UINT64_C(1000000)

/* Without work for so long: idle. The others of the GPU wait for it. Halved: rules, idle-pauses. */
#define CGPU_PACE_IDLE_NS UINT64_C(200000)

/* A kernel so long is mostly alone in its turn; so much of what is seen of it is not its own. */
#define CGPU_PACE_LONE_NS  UINT64_C(12000000)
#define CGPU_PACE_EDGES_NS UINT64_C(500000)

/* Looked so lately, a marker was passed about now. Halved: fewer kernels are learnt (share-late).
 */
#define CGPU_FLIGHT_KNOWN_NS UINT64_C(60000)

/*
 * A stream stands apart after so long in a host function. Its other streams wait for it; without
 * it short host functions would count (test_gate_apart.py).
 */
#define CGPU_APART_CALL_NS CGPU_PACE_IDLE_NS

/*
 * No work of a stream has ended for so long: nobody waits for it any more. The next container
 * waits for it. Halved: kernels of 0.5 s would no longer be charged as they run (long-shares).
 */
#define CGPU_APART_STAYS_NS UINT64_C(1000000000)

/*
 * The least of the same where a stream may wait for the program unseen: AWAITS_NS, or UNKNOWN_NS if
 * its work includes kernels of unknown length. The program's own launches wait for it.
 */
#define CGPU_APART_AWAITS_NS  UINT64_C(20000000)
#define CGPU_APART_UNKNOWN_NS UINT64_C(100000000)

/* A host function's thread begins within this time, on a busy machine too (test_gate_apart.py). */
#define CGPU_APART_BEGINS_NS UINT64_C(100000000)

/* A marker has not been written for so long: ask the driver. The process's own work waits. */
#define CGPU_APART_LOST_NS UINT64_C(100000000)

/* How often to look whether a stream that stands apart makes progress. Costs a look. */
#define CGPU_DRAIN_APART_NS UINT64_C(10000000)

/* A thread is inside a launch that does not return: how often to look. The others wait for it. */
#define CGPU_DRAIN_BLOCKED_NS UINT64_C(100000)

/* How often to look for idleness while others wait, and how rarely at most. Costs a look. */
#define CGPU_DRAIN_WATCH_NS      (CGPU_PACE_IDLE_NS / 2)
#define CGPU_DRAIN_WATCH_MOST_NS UINT64_C(1000000)

#endif
