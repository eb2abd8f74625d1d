/*
 * Strays: threads for which there is no lane.
 *
 * They launch by the slow path only, which counts each launch into its stream at once. While such a
 * thread is in the driver its number is marked, so that a gate closes only when all have left, and
 * a thread that ended inside is found and forgotten. A page of marks is only there if a thread
 * with such a number ever strayed.
 */
#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "compute/flow.h"
#include "compute/stray.h"

_Static_assert(CGPU_MAX_GPUS < UINT8_MAX, "a mark tells the GPU");

static uint8_t *
mark_of(uint32_t tid)
{
    return &cgpu_flow->strays[tid % CGPU_MAX_TIDS];
}

static void
note_leaving(struct cgpu_flow_gpu *gpu)
{
    uint64_t now = cgpu_flow_now();
    uint64_t before = __atomic_load_n(&gpu->strayed_ns, __ATOMIC_RELAXED);
    while (before < now && !__atomic_compare_exchange_n(&gpu->strayed_ns, &before, now, false,
                                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

void
cgpu_stray_enter(struct cgpu_gate_gpu *gpu)
{
    uint32_t tid = (uint32_t)syscall(SYS_gettid);
    uint32_t bound = tid % CGPU_MAX_TIDS + 1;
    cgpu_flow->stray_bound = bound > cgpu_flow->stray_bound ? bound : cgpu_flow->stray_bound;
    /* relaxed: whoever looks for strays has the lock */
    __atomic_add_fetch(&cgpu_flow_more(gpu)->strays, 1, __ATOMIC_RELAXED);
    __atomic_store_n(mark_of(tid), (uint8_t)(gpu - cgpu_flow->gpus + 1), __ATOMIC_RELAXED);
}

void
cgpu_stray_forget(uint32_t tid)
{
    /* relaxed: the thread's own, or nobody's */
    uint8_t mark = __atomic_load_n(mark_of(tid), __ATOMIC_RELAXED);
    if (mark == 0) {
        return;
    }
    struct cgpu_flow_gpu *gpu = &cgpu_flow->more_of[mark - 1];
    note_leaving(gpu);
    __atomic_store_n(mark_of(tid), 0, __ATOMIC_RELAXED);
    /* release: the driver has the launch before anyone sees that this thread is out */
    __atomic_sub_fetch(&gpu->strays, 1, __ATOMIC_RELEASE);
}

void
cgpu_stray_leave(void)
{
    if (cgpu_flow != NULL && cgpu_lane->tid == 0) {
        cgpu_stray_forget((uint32_t)syscall(SYS_gettid));
    }
}

static bool
some_anywhere(void)
{
    bool found = false;
    for (uint32_t number = 0; number < CGPU_MAX_GPUS; number++) {
        found = found || cgpu_stray_some_inside(&cgpu_flow->gpus[number]);
    }
    return found;
}

void
cgpu_stray_sweep(void)
{
    int pid = getpid();
    uint32_t bound = some_anywhere() ? cgpu_flow->stray_bound : 0;
    for (uint32_t tid = 0; tid < bound; tid++) {
        if (__atomic_load_n(mark_of(tid), __ATOMIC_RELAXED) != 0 &&
            syscall(SYS_tgkill, pid, tid, 0) != 0 && errno == ESRCH) {
            cgpu_stray_forget(tid);
        }
    }
}
