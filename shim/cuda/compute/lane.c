/*
 * Lanes: one per thread that launches, in a table that the monitor can look through.
 *
 * A thread sets `inside` before it checks the gate and clears it after the launch, with plain
 * stores only. The barrier that makes this exact is on the monitor's side (membarrier), which looks
 * about as often as gates close.
 */
#include <linux/membarrier.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "compute/flow.h"
#include "compute/lane.h"
#include "gate/flight.h"

enum { OUT_TRIES = 20 };

static const uint32_t no_limits = UINT32_MAX;

struct cgpu_flow *cgpu_flow;
const char *cgpu_gate_base = (const char *)&no_limits;
struct cgpu_lane cgpu_no_lane[CGPU_THREAD_LANES];
__thread struct cgpu_lane *cgpu_lane __attribute__((tls_model("initial-exec"))) = cgpu_no_lane;

void
cgpu_flow_setup(void)
{
    if (cgpu_limits != NULL) {
        cgpu_gate_base = (const char *)cgpu_limits;
    }
    void *pages = mmap(NULL, sizeof(struct cgpu_flow), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) {
        return;
    }
    /* Most of it is never touched. */
    madvise(pages, sizeof(struct cgpu_flow), MADV_NOHUGEPAGE);
    /* Also keeps a fork from copying the pages that the GPU writes to. */
    if (madvise(pages, sizeof(struct cgpu_flow), MADV_WIPEONFORK) == 0) {
        cgpu_flow = pages;
    }
}

uint64_t
cgpu_flow_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec -
           (uint64_t)__atomic_load_n(&cgpu_state->clock_ahead, __ATOMIC_RELAXED);
}

/* In links and streams: the index in the table, plus 1. */
static uint16_t
index_of(const struct cgpu_lane *lane)
{
    return (uint16_t)(lane - cgpu_flow->lanes + 1);
}

struct cgpu_lane *
cgpu_lane_find(uint32_t tid)
{
    struct cgpu_lane *own = NULL, *free_one = NULL;
    for (uint32_t i = 0; i < cgpu_flow->lane_bound && own == NULL; i += CGPU_THREAD_LANES) {
        struct cgpu_lane *lane = &cgpu_flow->lanes[i];
        if (lane->tid == tid) {
            own = lane;
        } else if (lane->tid == 0 && free_one == NULL) {
            free_one = lane;
        }
    }
    if (own == NULL && free_one == NULL && cgpu_flow->lane_bound < CGPU_MAX_LANES) {
        free_one = &cgpu_flow->lanes[cgpu_flow->lane_bound];
        cgpu_flow->lane_bound += CGPU_THREAD_LANES;
    }
    return own != NULL ? own : free_one;
}

static void
recall(struct cgpu_lane *lane)
{
    /* relaxed: ordered by the thread itself, or by the barrier in stop */
    __atomic_store_n(&lane->free, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->word, 0, __ATOMIC_RELAXED);
}

void
cgpu_lane_forget(void)
{
    for (int i = 0; i < CGPU_THREAD_LANES; i++) {
        recall(&cgpu_lane[i]);
    }
}

void
cgpu_lane_recall(const struct cgpu_gate_gpu *gpu)
{
    for (uint32_t i = 0; i < cgpu_flow->lane_bound; i++) {
        if (gpu == NULL || cgpu_flow->lanes[i].gpu == gpu) {
            recall(&cgpu_flow->lanes[i]);
        }
    }
}

static void
unlink_lane(const struct cgpu_lane *lane, struct cgpu_stream *stream)
{
    uint16_t *link = &stream->lanes;
    while (*link != index_of(lane)) {
        link = &cgpu_flow->lanes[*link - 1].next;
    }
    *link = lane->next;
    stream->gpu->open_lanes--;
}

static void
clear(struct cgpu_lane *lane)
{
    struct cgpu_stream *stream = lane->stream;
    if (stream != NULL && lane->marks == stream->marks) {
        unlink_lane(lane, stream);
    } else if (stream != NULL) {
        stream->stale -= lane->launches != 0;
    }
    __atomic_store_n(&lane->word, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->launches, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->work_ns, 0, __ATOMIC_RELAXED);
    lane->mixed = 0;
    lane->stream = NULL;
}

void
cgpu_lane_cut(struct cgpu_stream *stream)
{
    for (uint32_t index = stream->lanes; index != 0;) {
        const struct cgpu_lane *lane = &cgpu_flow->lanes[index - 1];
        /*
         * relaxed: a thread that launches at this moment has launched before, because it takes part
         */
        stream->stale += __atomic_load_n(&lane->launches, __ATOMIC_RELAXED) != 0;
        stream->gpu->open_lanes--;
        index = lane->next;
    }
    stream->lanes = 0;
    /* relaxed: the monitor finds a thread that misses it, when it knows that all are out */
    __atomic_store_n(&stream->marks, stream->marks + 1, __ATOMIC_RELAXED);
}

void
cgpu_lane_hand_over(struct cgpu_lane *lane, uint64_t now)
{
    struct cgpu_stream *stream = lane->stream;
    if (stream != NULL && lane->launches != 0) {
        /* What was summed up before a cut may be before or behind the marker: mark once more. */
        bool current = lane->marks == stream->marks;
        cgpu_flight_add(stream, &(struct cgpu_unmarked){
                                    .work_ns = current ? lane->work_ns : 0,
                                    .launches = lane->launches,
                                    .key = lane->key,
                                    .mixed = current ? lane->mixed : UINT64_MAX,
                                });
        stream->handed_ns = now;
    }
    clear(lane);
}

void
cgpu_lane_reset(struct cgpu_lane *lane, uint32_t tid, uint64_t now)
{
    for (int i = 0; i < CGPU_THREAD_LANES; i++) {
        cgpu_lane_hand_over(&lane[i], now);
        lane[i] = (struct cgpu_lane){0};
    }
    lane->tid = tid;
}

void
cgpu_lane_join(struct cgpu_lane *lane, struct cgpu_stream *stream, uint64_t key, uint64_t now)
{
    if (lane->stream != stream || lane->marks != stream->marks) {
        cgpu_lane_hand_over(lane, now);
        lane->stream = stream;
        lane->marks = stream->marks;
        lane->key = key;
        lane->next = stream->lanes;
        stream->lanes = index_of(lane);
        stream->gpu->open_lanes++;
    }
}

void
cgpu_lane_sum(const struct cgpu_stream *stream, struct cgpu_unmarked *sum)
{
    for (uint32_t index = stream->lanes; index != 0;) {
        const struct cgpu_lane *lane = &cgpu_flow->lanes[index - 1];
        /* relaxed: the thread may be launching at this moment; then the sum lacks one launch */
        uint64_t launches = __atomic_load_n(&lane->launches, __ATOMIC_RELAXED);
        if (launches != 0) {
            sum->mixed |= __atomic_load_n(&lane->mixed, __ATOMIC_RELAXED);
            sum->mixed |= sum->launches != 0 ? sum->key ^ lane->key : 0;
            sum->key = lane->key;
            sum->launches += launches;
            sum->work_ns += __atomic_load_n(&lane->work_ns, __ATOMIC_RELAXED);
        }
        index = lane->next;
    }
}

void
cgpu_lane_end_batch(struct cgpu_stream *stream)
{
    for (int i = 0; i < CGPU_THREAD_LANES; i++) {
        if (cgpu_lane[i].stream == stream) { /* the caller is not launching meanwhile */
            clear(&cgpu_lane[i]);
        }
    }
    cgpu_lane_cut(stream);
}

static bool
some_inside(const struct cgpu_gate_gpu *gpu)
{
    bool inside = false;
    for (uint32_t i = 0; i < cgpu_flow->lane_bound && !inside; i++) {
        const struct cgpu_lane *lane = &cgpu_flow->lanes[i];
        /* acquire: the driver has everything that was launched before it left */
        inside = lane->gpu == gpu && __atomic_load_n(&lane->inside, __ATOMIC_ACQUIRE) != 0;
    }
    return inside;
}

bool
cgpu_lane_stop(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    cgpu_lane_recall(gpu);
    /*
     * A thread that reads its lane after this sees the zero; one that read it before is seen
     * inside.
     */
    if (cgpu_flow->barrier) {
        syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
    }
    bool inside = some_inside(gpu);
    int tries = gpu->blocked_ns != 0 ? 1 : OUT_TRIES; /* it will not return in a moment */
    for (int i = 1; i < tries && inside; i++) {
        nanosleep(&(struct timespec){.tv_nsec = CGPU_LANE_PAUSE_NS}, NULL);
        inside = some_inside(gpu);
    }
    /* the last first, as in the list of a batch */
    for (uint32_t i = cgpu_flow->lane_bound; i-- > 0 && !inside;) {
        if (cgpu_flow->lanes[i].gpu == gpu) {
            cgpu_lane_hand_over(&cgpu_flow->lanes[i], now);
        }
    }
    return !inside;
}

uint64_t
cgpu_lane_launches(const struct cgpu_gate_gpu *gpu)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < cgpu_flow->lane_bound; i++) {
        const struct cgpu_lane *lane = &cgpu_flow->lanes[i];
        sum += lane->gpu == gpu ? __atomic_load_n(&lane->launches, __ATOMIC_RELAXED) : 0;
    }
    return sum;
}
