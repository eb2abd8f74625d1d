/*
 * The monitor: a helper thread of each process that launches.
 *
 * It sleeps until a gate word changes. When a gate closes, it marks the work that nobody has marked
 * yet, and informs the arbiter when all of it has ended. While others wait, it reports when the
 * process has nothing to do. If the arbiter gives no heartbeat, the monitor opens and closes a gate
 * of the process's own, by the clock.
 *
 * If no thread can be created (a limit on processes, or the process exits), other threads do this
 * work when they launch or synchronise. They do not wait for the end of a launch, which may depend
 * on what the program does next. If no thread launches or synchronises after the gate has closed,
 * the arbiter ends the turn after a while. The next thread that launches then waits and finishes
 * that work.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <linux/membarrier.h>

#include "clock.h"
#include "compute/batch_slot.h"
#include "compute/launch_state.h"
#include "compute/monitor.h"
#include "compute/stream.h"
#include "entry/thread.h"
#include "futex.h"
#include "gate/drain.h"
#include "gate/fallback.h"
#include "helper_thread.h"
#include "policy/policy.h"
#include "watch.h"

static cpu_set_t cpus_at_load;

/* ---- who arbitrates ---- */

static void
wake_waiters(const uint32_t *gate)
{
    cgpu_futex_wake((uint32_t *)(uintptr_t)gate, FUTEX_WAKE, INT32_MAX);
}

/*
 * Make GATE the gate of GPU from now on. Threads that wait at the old gate are woken, so that they
 * see this.
 */
static void
put_in_force(struct cgpu_gate_gpu *gpu, const uint32_t *gate)
{
    const uint32_t *before = gpu->gate;
    if (before != gate) {
        __atomic_store_n(&gpu->gate, gate, __ATOMIC_RELEASE);
        cgpu_batch_slot_recall(gpu);
    }
    if (before != gate && before != NULL) {
        wake_waiters(before);
    }
}

static void
drive_gate(uint32_t *own, enum cgpu_gate state)
{
    if (*own == 0 || cgpu_gate_state(*own) != state) {
        __atomic_store_n(own, cgpu_gate_next(*own, state) | CGPU_GATE_FALLBACK, __ATOMIC_RELEASE);
        wake_waiters(own);
    }
}

/*
 * The container's share while nobody arbitrates. If no share was ever written, only memory is
 * limited.
 */
static uint32_t
share_of(const struct cgpu_limits_gpu *limits, uint64_t heartbeat)
{
    uint32_t share = __atomic_load_n(&limits->share_ppm, __ATOMIC_RELAXED);
    return share == 0 && heartbeat == 0 ? CGPU_WHOLE_PPM : share;
}

/*
 * If nobody arbitrates GPU NUMBER, use the process's own gate, else the arbiter's. Returns when to
 * check again.
 */
static uint64_t
select_gate(uint32_t number, uint64_t now)
{
    struct cgpu_gate_gpu *gpu = &cgpu_launch_state->gpus[number];
    const struct cgpu_limits_gpu *limits = &cgpu_limits->gpus[number];
    uint64_t heartbeat = __atomic_load_n(&limits->heartbeat_ns, __ATOMIC_ACQUIRE);
    bool native = __atomic_load_n(&cgpu_limits->policy, __ATOMIC_RELAXED) == CGPU_POLICY_NATIVE &&
                  !cgpu_gate_is_metered(__atomic_load_n(&limits->gate, __ATOMIC_RELAXED));
    uint32_t *own = &cgpu_launch_state->own_gates[number];
    uint64_t until;
    if (native || !cgpu_fallback_needed(heartbeat, now)) {
        put_in_force(gpu, &limits->gate);
        until = native ? UINT64_MAX : heartbeat + CGPU_FALLBACK_AFTER_NS + 1;
    } else {
        uint32_t offset = __atomic_load_n(&limits->offset_ppm, __ATOMIC_RELAXED);
        drive_gate(own, cgpu_fallback_gate(now, share_of(limits, heartbeat), offset, &until));
        put_in_force(gpu, own);
        until = cgpu_lesser(until, now + CGPU_FALLBACK_UNHEARD_NS);
    }
    return until;
}

/* ---- the thread ---- */

/*
 * Serve each GPU. *WATCH gets the gates in force. If a gate changes meanwhile, check it once more.
 */
static uint64_t
serve_all(struct cgpu_watch *watch, uint64_t now)
{
    uint64_t next = now + CGPU_SLOT_SWEEP_NS;
    watch->count = 0;
    for (uint32_t number = 0; number < CGPU_MAX_GPUS; number++) {
        struct cgpu_gate_gpu *gpu = &cgpu_launch_state->gpus[number];
        if (gpu->work == NULL) {
            continue;
        }
        uint32_t before = cgpu_gate_word(gpu);
        next = cgpu_lesser(next, select_gate(number, now));
        /* relaxed: a hint */
        gpu->syncs = __atomic_load_n(&cgpu_launch_state->syncing, __ATOMIC_RELAXED) != 0;
        next = cgpu_lesser(next, cgpu_drain_poll(gpu, now));
        cgpu_watch_add(watch, (uint32_t *)(uintptr_t)gpu->gate, before, false);
    }
    if (now - cgpu_launch_state->swept_ns >= CGPU_SLOT_SWEEP_NS) {
        cgpu_stream_sweep(now);
    }
    return next;
}

/* Sleep until a gate of WATCH changes, or it is UNTIL by the host's clock. */
static void
wait_until(struct cgpu_watch *watch, uint64_t until)
{
    uint64_t ahead = (uint64_t)cgpu_state->clock_ahead;
    if (!cgpu_watch_sleep(watch, until + ahead)) {
        watch->count = 1; /* and check the others now and then */
        cgpu_watch_sleep(
            watch, cgpu_lesser(until, cgpu_host_clock_now() + CGPU_MONITOR_UNWATCHED_NS) + ahead);
    }
}

static void *
run_monitor(void *unused)
{
    struct cgpu_watch watch;
    cgpu_thread.depth = 1; /* driver calls made for us are not launches of the program */
    prctl(PR_SET_NAME, "cgpu-monitor");
    prctl(PR_SET_TIMERSLACK, 1);
    for (;;) {
        /* seq_cst, both: the exit sees the thread busy, or the thread sees the exit */
        __atomic_store_n(&cgpu_launch_state->busy, 1, __ATOMIC_SEQ_CST);
        cgpu_launch_lock(); /* the creating thread holds it while it still needs this one */
        bool closing = __atomic_load_n(&cgpu_launch_state->closing, __ATOMIC_SEQ_CST) != 0;
        uint64_t next = closing ? 0 : serve_all(&watch, cgpu_host_clock_now());
        cgpu_launch_unlock();
        __atomic_store_n(&cgpu_launch_state->busy, 0, __ATOMIC_RELEASE);
        if (closing) {
            return unused;
        }
        wait_until(&watch, next);
    }
}

/*
 * Make the monitor stop at exit. This is registered after the driver's handlers, so it runs before
 * them.
 */
static void
stop_monitor(void)
{
    uint64_t begun = cgpu_host_clock_now();
    __atomic_store_n(&cgpu_launch_state->closing, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&cgpu_launch_state->busy, __ATOMIC_SEQ_CST) != 0 &&
           cgpu_host_clock_now() - begun < CGPU_MONITOR_GIVE_UP_NS) {
        nanosleep(&(struct timespec){.tv_nsec = CGPU_MONITOR_POLL_NS}, NULL);
    }
}

void
cgpu_monitor_setup(void)
{
    sched_getaffinity(0, sizeof(cpus_at_load), &cpus_at_load);
}

/*
 * Let THREAD run on all processors of the process, and in no real-time class, whatever the creating
 * thread has. If the kernel or a filter refuses, it stays as it is.
 */
static void
use_all_processors(pthread_t thread)
{
    cpu_set_t cpus;
    pthread_setschedparam(thread, SCHED_OTHER, &(struct sched_param){.sched_priority = 0});
    if (sched_getaffinity(getpid(), sizeof(cpus), &cpus) == 0) {
        CPU_OR(&cpus, &cpus, &cpus_at_load);
        pthread_setaffinity_np(thread, sizeof(cpus), &cpus);
    }
}

static bool
start_monitor(void)
{
    static bool stops; /* as inherited by children */
    pthread_t thread;
    stops = stops || atexit(stop_monitor) == 0;
    cgpu_launch_state->barrier =
        syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
    bool begun = stops && cgpu_helper_thread_start(run_monitor, NULL, &thread) == 0;
    if (begun) {
        use_all_processors(thread);
        pthread_detach(thread);
    }
    return begun;
}

static bool
ensure_monitor(uint64_t now)
{
    bool first = cgpu_launch_state->tried_ns == 0, closing = cgpu_launch_is_closing();
    bool due = first || now - cgpu_launch_state->tried_ns >= CGPU_MONITOR_AGAIN_NS;
    if (!closing && !cgpu_launch_state->monitor && due) {
        cgpu_launch_state->tried_ns = now;
        cgpu_launch_state->monitor = start_monitor();
        if (!cgpu_launch_state->monitor && first) {
            /* let every synchronisation do the monitor's work */
            __atomic_store_n(&cgpu_launch_state->counted, 1, __ATOMIC_RELAXED);
            cgpu_log_text(CGPU_LOG_COMPUTE, "no helper thread can be made: ",
                          "the GPU is given back late; is there a limit of processes?");
        }
    }
    return !closing && cgpu_launch_state->monitor;
}

bool
cgpu_monitor_attend(uint64_t now)
{
    struct cgpu_watch watch;
    bool there = ensure_monitor(now);
    if (!there) {
        serve_all(&watch, now);
    }
    return there;
}

/* Begin to serve GPU NUMBER. Wake the monitor, because it waits only at the gates that it knows. */
void
cgpu_monitor_add(uint32_t number, uint64_t now)
{
    for (uint32_t known = 0; known < CGPU_MAX_GPUS; known++) {
        if (cgpu_launch_state->gpus[known].gate != NULL) {
            wake_waiters(cgpu_launch_state->gpus[known].gate);
        }
    }
    select_gate(number, now);
}
