/*
 * The monitor: a helper thread of each process that launches.
 *
 * It sleeps until a gate word changes. When a gate closes it marks what nobody has marked yet, and
 * tells the arbiter when all of it has ended. While others wait it tells when there is nothing to
 * do. When the arbiter gives no sign it opens and closes a gate of the process's own, by the clock.
 *
 * Where there is no thread to be had (a limit of processes, the process exits), threads do it that
 * launch or synchronise, as they come by. Nothing waits for the end of a launch: it may come after
 * what the program does next. Should the gate close while no thread comes by, the arbiter's
 * patience ends the turn, and the first that launches again waits and sees to what was left behind.
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <linux/membarrier.h>

#include "compute/flow.h"
#include "compute/lane.h"
#include "compute/monitor.h"
#include "entry/thread.h"
#include "futex.h"
#include "gate/drain.h"
#include "gate/fallback.h"
#include "policy/policy.h"
#include "watch.h"

#define LONGEST_NS UINT64_C(1000000000)
#define POLL_NS    UINT64_C(20000)
#define UNHEARD_NS UINT64_C(10000000) /* without an arbiter: how often to look for a new one */
#define GIVE_UP_NS UINT64_C(200000000)
#define AGAIN_NS   UINT64_C(1000000000) /* how often to try to create a thread again */

/* The stack also holds all thread-local storage, which may be large; nothing says how large. */
#define STACK_BYTES ((size_t)1 << 20)
#define STACK_MOST  ((size_t)1 << 30)

static cpu_set_t cpus_at_load;
static bool cpus_known;

static uint64_t
sooner(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ---- who arbitrates ---- */

static void
wake(const uint32_t *gate)
{
    cgpu_futex_wake((uint32_t *)(uintptr_t)gate, FUTEX_WAKE, INT32_MAX);
}

/* Threads that wait at the other word find out. */
static void
put_in_force(struct cgpu_gate_gpu *gpu, const uint32_t *gate)
{
    const uint32_t *before = gpu->gate;
    if (before == gate) {
        return;
    }
    __atomic_store_n(&gpu->gate, gate, __ATOMIC_RELEASE);
    cgpu_lane_redirect((int32_t)(gpu - cgpu_flow->gpus), gate);
    if (before != NULL) {
        wake(before);
    }
}

static void
drive(uint32_t *own, enum cgpu_gate state)
{
    if (*own == 0 || cgpu_gate_state(*own) != state) {
        __atomic_store_n(own, cgpu_gate_next(*own, state) | CGPU_GATE_FALLBACK, __ATOMIC_RELEASE);
        wake(own);
    }
}

/* A page on which no share was ever written limits memory only. */
static uint32_t
share_of(const struct cgpu_limits_gpu *limits, uint64_t heartbeat)
{
    uint32_t share = __atomic_load_n(&limits->share_ppm, __ATOMIC_RELAXED);
    return share == 0 && heartbeat == 0 ? CGPU_WHOLE_PPM : share;
}

uint64_t
cgpu_monitor_arbitrated(uint32_t number, uint64_t now)
{
    struct cgpu_gate_gpu *gpu = &cgpu_flow->gpus[number];
    const struct cgpu_limits_gpu *limits = &cgpu_limits->gpus[number];
    uint64_t heartbeat = __atomic_load_n(&limits->heartbeat_ns, __ATOMIC_ACQUIRE);
    bool native = __atomic_load_n(&cgpu_limits->policy, __ATOMIC_RELAXED) == CGPU_POLICY_NATIVE &&
                  !cgpu_gate_is_metered(__atomic_load_n(&limits->gate, __ATOMIC_RELAXED));
    uint32_t *own = &cgpu_flow->own_gates[number];
    uint64_t until;
    if (native || !cgpu_fallback_needed(heartbeat, now)) {
        put_in_force(gpu, &limits->gate);
        return native ? UINT64_MAX : heartbeat + CGPU_FALLBACK_AFTER_NS + 1;
    }
    uint32_t offset = __atomic_load_n(&limits->offset_ppm, __ATOMIC_RELAXED);
    drive(own, cgpu_fallback_gate(now, share_of(limits, heartbeat), offset, &until));
    put_in_force(gpu, own);
    return sooner(until, now + UNHEARD_NS);
}

static uint64_t
serve(uint32_t number, uint64_t now)
{
    struct cgpu_gate_gpu *gpu = &cgpu_flow->gpus[number];
    uint64_t next = cgpu_monitor_arbitrated(number, now);
    return sooner(next, cgpu_drain_look(gpu, now));
}

/* ---- the thread ---- */

/* *WATCH: the gates in force, and the words that were served. */
static uint64_t
serve_all(struct cgpu_watch *watch, uint64_t now)
{
    uint64_t next = now + LONGEST_NS;
    watch->count = 0;
    for (uint32_t number = 0; number < CGPU_MAX_GPUS; number++) {
        struct cgpu_gate_gpu *gpu = &cgpu_flow->gpus[number];
        if (gpu->work == NULL) {
            continue;
        }
        const uint32_t *own = &cgpu_flow->own_gates[number];
        uint32_t before = cgpu_gate_word(gpu);
        next = sooner(next, serve(number, now));
        cgpu_watch_add(watch, (uint32_t *)(uintptr_t)gpu->gate, gpu->gate == own ? *own : before,
                       false);
    }
    cgpu_lane_sweep(now);
    return next;
}

static void
wait_until(const struct cgpu_watch *watch, uint64_t until)
{
    uint64_t now = cgpu_flow_now(), ahead = (uint64_t)cgpu_state->clock_ahead;
    uint64_t ns = until > now ? until - now : 0;
    const struct cgpu_watch_word *word = &watch->words[0];
    struct timespec left = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    if (ns == 0) {
        return;
    }
    if (watch->count == 1) { /* by a call that every filter knows: some end who makes others */
        cgpu_futex_wait((uint32_t *)(uintptr_t)word->address, FUTEX_WAIT, (uint32_t)word->expected,
                        &left);
    } else if (!cgpu_watch_sleep(watch, until + ahead)) { /* by the kernel's clock */
        nanosleep(&(struct timespec){.tv_nsec = (long)sooner(ns, UINT64_C(1000000))}, NULL);
    }
}

static void *
run(void *unused)
{
    struct cgpu_watch watch;
    cgpu_thread.depth = 1; /* whatever the driver calls for us is no launch of the program */
    prctl(PR_SET_NAME, "cgpu-monitor");
    prctl(PR_SET_TIMERSLACK, 1);
    for (;;) {
        /* seq_cst, both: either the exit sees the thread busy or the thread sees the exit */
        __atomic_store_n(&cgpu_flow->busy, 1, __ATOMIC_SEQ_CST);
        bool closing = __atomic_load_n(&cgpu_flow->closing, __ATOMIC_SEQ_CST) != 0;
        uint64_t next = 0;
        if (!closing) {
            cgpu_flow_lock();
            next = serve_all(&watch, cgpu_flow_now());
            cgpu_flow_unlock();
        }
        __atomic_store_n(&cgpu_flow->busy, 0, __ATOMIC_RELEASE);
        if (closing) {
            return unused;
        }
        wait_until(&watch, next);
    }
}

/* Registered after the driver's own, so it is called before them. */
static void
stop(void)
{
    if (cgpu_flow == NULL) {
        return;
    }
    uint64_t begun = cgpu_flow_now();
    __atomic_store_n(&cgpu_flow->closing, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&cgpu_flow->busy, __ATOMIC_SEQ_CST) != 0 &&
           cgpu_flow_now() - begun < GIVE_UP_NS) {
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
}

/* The processors of the process, even if the program has bound the calling thread to fewer. */
static bool
cpus_of_process(cpu_set_t *out)
{
    cpu_set_t leader;
    if (!cpus_known || sched_getaffinity(getpid(), sizeof(leader), &leader) != 0) {
        return false;
    }
    CPU_OR(out, &cpus_at_load, &leader);
    return true;
}

/* 0 or an error number. FREELY: on all processors of the process, and without real-time class. */
static int
create_with(size_t stack, bool freely)
{
    pthread_t thread;
    pthread_attr_t attributes;
    cpu_set_t cpus;
    int error = pthread_attr_init(&attributes);
    if (error != 0) {
        return error;
    }
    pthread_attr_setstacksize(&attributes, stack);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (freely) {
        pthread_attr_setinheritsched(&attributes, PTHREAD_EXPLICIT_SCHED);
        pthread_attr_setschedpolicy(&attributes, SCHED_OTHER);
        pthread_attr_setschedparam(&attributes, &(struct sched_param){.sched_priority = 0});
        if (cpus_of_process(&cpus)) {
            pthread_attr_setaffinity_np(&attributes, sizeof(cpus), &cpus);
        }
    }
    error = pthread_create(&thread, &attributes, run, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}

/* Attributes that the kernel or a filter does not grant stay as those of the creating thread. */
static int
create_somehow(bool freely)
{
    int error = EINVAL;
    for (size_t stack = STACK_BYTES; stack <= STACK_MOST && error == EINVAL; stack *= 2) {
        error = create_with(stack, freely);
    }
    return error;
}

static bool
create(void)
{
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = create_somehow(true);
    if (error == EPERM || error == EINVAL) {
        error = create_somehow(false);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error == 0;
}

void
cgpu_monitor_setup(void)
{
    cpus_known = sched_getaffinity(0, sizeof(cpus_at_load), &cpus_at_load) == 0;
}

static void
begin(uint64_t now)
{
    static bool stops; /* as inherited by children */
    bool first = cgpu_flow->monitor == CGPU_MONITOR_NONE;
    stops = stops || atexit(stop) == 0;
    cgpu_flow->barrier =
        syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
    cgpu_flow->monitor = stops && create() ? CGPU_MONITOR_RUNS : CGPU_MONITOR_FAILED;
    cgpu_flow->tried_ns = now;
    if (cgpu_flow->monitor == CGPU_MONITOR_FAILED) {
        /* every synchronisation should look */
        __atomic_store_n(&cgpu_flow->counted, 1, __ATOMIC_RELAXED);
        if (first) {
            cgpu_log_text(CGPU_LOG_COMPUTE, "no helper thread can be made: ",
                          "the GPU is given back late; is there a limit of processes?");
        }
    }
}

static bool
is_there(uint64_t now)
{
    if (cgpu_flow_is_closing()) {
        return false;
    }
    if (cgpu_flow->monitor == CGPU_MONITOR_NONE ||
        (cgpu_flow->monitor == CGPU_MONITOR_FAILED && now - cgpu_flow->tried_ns >= AGAIN_NS)) {
        begin(now);
    }
    return cgpu_flow->monitor == CGPU_MONITOR_RUNS;
}

bool
cgpu_monitor_attend(uint64_t now)
{
    if (is_there(now)) {
        return true;
    }
    for (uint32_t number = 0; number < CGPU_MAX_GPUS; number++) {
        if (cgpu_flow->gpus[number].work != NULL) {
            cgpu_monitor_arbitrated(number, now);
            if (!cgpu_gate_is_open(cgpu_gate_word(&cgpu_flow->gpus[number]))) {
                cgpu_drain_look(&cgpu_flow->gpus[number], now);
            }
        }
    }
    cgpu_lane_sweep(now);
    return false;
}

/* It waits for the gates that it knows: make it look for more. */
void
cgpu_monitor_wake(void)
{
    for (uint32_t number = 0; number < CGPU_MAX_GPUS; number++) {
        if (cgpu_flow->gpus[number].work != NULL) {
            wake(cgpu_flow->gpus[number].gate);
        }
    }
}
