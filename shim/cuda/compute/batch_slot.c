/*
 * Batch slots: one per thread that launches, in a table that the monitor can read.
 *
 * A thread sets `inside` before it checks the gate, and clears it after the launch, with plain
 * stores only. The monitor's side has the barrier that makes this exact (membarrier). The monitor
 * reads the slots only about as often as gates close.
 */
#include <linux/membarrier.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "compute/batch_slot.h"
#include "compute/launch_state.h"
#include "gate/flight.h"

enum { OUT_TRIES = 20 };

static const uint32_t no_limits = UINT32_MAX;

struct cgpu_launch_state *cgpu_launch_state;
const char *cgpu_gate_base = (const char *)&no_limits;
struct cgpu_batch_slot cgpu_no_batch_slots[CGPU_THREAD_SLOTS];
__thread struct cgpu_batch_slot *cgpu_batch_slots __attribute__((tls_model("initial-exec"))) =
    cgpu_no_batch_slots;

void
cgpu_launch_state_setup(void)
{
    if (cgpu_limits != NULL) {
        cgpu_gate_base = (const char *)cgpu_limits;
    }
    void *pages = mmap(NULL, sizeof(struct cgpu_launch_state), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) {
        return;
    }
    /* Most pages are never touched. */
    madvise(pages, sizeof(struct cgpu_launch_state), MADV_NOHUGEPAGE);
    /* This also keeps a fork from copying the pages that the GPU writes to. */
    if (madvise(pages, sizeof(struct cgpu_launch_state), MADV_WIPEONFORK) == 0) {
        cgpu_launch_state = pages;
    }
}

uint64_t
cgpu_host_clock_now(void)
{
    return cgpu_clock_now() - (uint64_t)__atomic_load_n(&cgpu_state->clock_ahead, __ATOMIC_RELAXED);
}

/* The slot's index in the table, plus 1, as links and streams store it. */
static uint16_t
index_of(const struct cgpu_batch_slot *slot)
{
    return (uint16_t)(slot - cgpu_launch_state->slots + 1);
}

struct cgpu_batch_slot *
cgpu_batch_slot_find(uint32_t tid)
{
    struct cgpu_batch_slot *own = NULL, *unused = NULL;
    for (uint32_t i = 0; i < cgpu_launch_state->slot_bound && own == NULL; i += CGPU_THREAD_SLOTS) {
        struct cgpu_batch_slot *slot = &cgpu_launch_state->slots[i];
        if (slot->tid == tid) {
            own = slot;
        } else if (slot->tid == 0 && unused == NULL) {
            unused = slot;
        }
    }
    if (own == NULL && unused == NULL && cgpu_launch_state->slot_bound < CGPU_MAX_BATCH_SLOTS) {
        unused = &cgpu_launch_state->slots[cgpu_launch_state->slot_bound];
        cgpu_launch_state->slot_bound += CGPU_THREAD_SLOTS;
    }
    return own != NULL ? own : unused;
}

static void
recall_slot(struct cgpu_batch_slot *slot)
{
    /* relaxed: the thread's own order holds, or that of the barrier in cgpu_batch_slot_stop */
    __atomic_store_n(&slot->free, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->word, 0, __ATOMIC_RELAXED);
}

void
cgpu_batch_slot_forget(void)
{
    for (int i = 0; i < CGPU_THREAD_SLOTS; i++) {
        recall_slot(&cgpu_batch_slots[i]);
    }
}

void
cgpu_batch_slot_recall(const struct cgpu_gate_gpu *gpu)
{
    for (uint32_t i = 0; i < cgpu_launch_state->slot_bound; i++) {
        if (gpu == NULL || cgpu_launch_state->slots[i].gpu == gpu) {
            recall_slot(&cgpu_launch_state->slots[i]);
        }
    }
}

static void
unlink_slot(const struct cgpu_batch_slot *slot, struct cgpu_stream *stream)
{
    uint16_t *link = &stream->slots;
    while (*link != index_of(slot)) {
        link = &cgpu_launch_state->slots[*link - 1].next;
    }
    *link = slot->next;
    stream->gpu->unmarked_slots--;
}

static void
clear_slot(struct cgpu_batch_slot *slot)
{
    struct cgpu_stream *stream = slot->stream;
    if (stream != NULL && slot->marks == stream->marks) {
        unlink_slot(slot, stream);
    } else if (stream != NULL) {
        stream->stale -= slot->launches != 0;
    }
    __atomic_store_n(&slot->word, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->launches, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->work_ns, 0, __ATOMIC_RELAXED);
    slot->mixed = 0;
    slot->stream = NULL;
}

void
cgpu_batch_slot_cut(struct cgpu_stream *stream)
{
    for (uint32_t index = stream->slots; index != 0;) {
        const struct cgpu_batch_slot *slot = &cgpu_launch_state->slots[index - 1];
        /*
         * relaxed: its thread takes part in the batch, so a launch at this moment is not its first
         */
        stream->stale += __atomic_load_n(&slot->launches, __ATOMIC_RELAXED) != 0;
        stream->gpu->unmarked_slots--;
        index = slot->next;
    }
    stream->slots = 0;
    /* relaxed: a thread may miss it; the monitor finds its launch once all threads are out */
    __atomic_store_n(&stream->marks, stream->marks + 1, __ATOMIC_RELAXED);
}

void
cgpu_batch_slot_hand_over(struct cgpu_batch_slot *slot, uint64_t now)
{
    struct cgpu_stream *stream = slot->stream;
    if (stream != NULL && slot->launches != 0) {
        /*
         * Launches that were summed up before a cut may be before the marker or behind it: mark
         * them once more.
         */
        bool current = slot->marks == stream->marks;
        cgpu_batch_add(stream, &(struct cgpu_unmarked){
                                   .work_ns = current ? slot->work_ns : 0,
                                   .launches = slot->launches,
                                   .key = slot->key,
                                   .mixed = current ? slot->mixed : UINT64_MAX,
                               });
        stream->handed_ns = now;
    }
    clear_slot(slot);
}

void
cgpu_batch_slot_reset(struct cgpu_batch_slot *slot, uint32_t tid, uint64_t now)
{
    for (int i = 0; i < CGPU_THREAD_SLOTS; i++) {
        cgpu_batch_slot_hand_over(&slot[i], now);
        slot[i] = (struct cgpu_batch_slot){0};
    }
    slot->tid = tid;
}

void
cgpu_batch_slot_join(struct cgpu_batch_slot *slot, struct cgpu_stream *stream, uint64_t key,
                     uint64_t now)
{
    if (slot->stream != stream || slot->marks != stream->marks) {
        cgpu_batch_slot_hand_over(slot, now);
        slot->stream = stream;
        slot->marks = stream->marks;
        slot->key = key;
        slot->next = stream->slots;
        stream->slots = index_of(slot);
        stream->gpu->unmarked_slots++;
    }
}

void
cgpu_batch_slot_sum(const struct cgpu_stream *stream, struct cgpu_unmarked *sum)
{
    for (uint32_t index = stream->slots; index != 0;) {
        const struct cgpu_batch_slot *slot = &cgpu_launch_state->slots[index - 1];
        /* relaxed: if the thread is launching at this moment, the sum lacks one launch */
        uint64_t launches = __atomic_load_n(&slot->launches, __ATOMIC_RELAXED);
        if (launches != 0) {
            sum->mixed |= __atomic_load_n(&slot->mixed, __ATOMIC_RELAXED);
            sum->mixed |= sum->launches != 0 ? sum->key ^ slot->key : 0;
            sum->key = slot->key;
            sum->launches += launches;
            sum->work_ns += __atomic_load_n(&slot->work_ns, __ATOMIC_RELAXED);
        }
        index = slot->next;
    }
}

void
cgpu_batch_slot_end_batch(struct cgpu_stream *stream)
{
    for (int i = 0; i < CGPU_THREAD_SLOTS; i++) {
        if (cgpu_batch_slots[i].stream ==
            stream) { /* the slot is the caller's own, and the caller is not launching meanwhile */
            clear_slot(&cgpu_batch_slots[i]);
        }
    }
    cgpu_batch_slot_cut(stream);
}

static bool
is_any_inside(const struct cgpu_gate_gpu *gpu)
{
    bool inside = false;
    for (uint32_t i = 0; i < cgpu_launch_state->slot_bound && !inside; i++) {
        const struct cgpu_batch_slot *slot = &cgpu_launch_state->slots[i];
        /* acquire: the driver has everything that the thread launched before it left */
        inside = slot->gpu == gpu && __atomic_load_n(&slot->inside, __ATOMIC_ACQUIRE) != 0;
    }
    return inside;
}

bool
cgpu_batch_slot_stop(struct cgpu_gate_gpu *gpu, uint64_t now)
{
    cgpu_batch_slot_recall(gpu);
    /*
     * A thread that reads its slot after this sees that its word is 0. One that read it before is
     * seen inside.
     */
    if (cgpu_launch_state->barrier) {
        syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
    }
    bool inside = is_any_inside(gpu);
    int tries = gpu->blocked_ns != 0 ? 1 : OUT_TRIES; /* it will not return in a moment */
    for (int i = 1; i < tries && inside; i++) {
        nanosleep(&(struct timespec){.tv_nsec = CGPU_SLOT_PAUSE_NS}, NULL);
        inside = is_any_inside(gpu);
    }
    /* from the last to the first, as in the list of a batch */
    for (uint32_t i = cgpu_launch_state->slot_bound; i-- > 0 && !inside;) {
        if (cgpu_launch_state->slots[i].gpu == gpu) {
            cgpu_batch_slot_hand_over(&cgpu_launch_state->slots[i], now);
        }
    }
    return !inside;
}

uint64_t
cgpu_batch_slot_count_launches(const struct cgpu_gate_gpu *gpu)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < cgpu_launch_state->slot_bound; i++) {
        const struct cgpu_batch_slot *slot = &cgpu_launch_state->slots[i];
        sum += slot->gpu == gpu ? __atomic_load_n(&slot->launches, __ATOMIC_RELAXED) : 0;
    }
    return sum;
}
