/*
 * The entry points that launch kernels, generated from hooks.def, and the hot path of all launches.
 *
 * Under a free gate, on one GPU, a launch is one load of the gate word, one comparison and a jump
 * into the driver. Under a metered gate, the thread sets `inside`, checks the gate, and adds the
 * kernel's time to its batch. These are plain loads and stores; of what the thread reads, others
 * write only the gate word and the stream's `marks`.
 */
#include "compute/launch.h"
#include "compute/enter.h"

#include "compute/launch_state.h"
#include "entry/thread.h"

enum { STEPS_PER_OCTAVE_BITS = 3 };

/* A class of sizes that differ by less than an eighth. */
static inline uint64_t
size_class(uint64_t units)
{
    int drop = 63 - __builtin_clzll(units | 1) - STEPS_PER_OCTAVE_BITS;
    return drop <= 0 ? units : units >> drop << drop;
}

static inline uint64_t
kernel_key(const void *function, uint64_t x, uint64_t y, uint64_t z, uint64_t threads)
{
    return cgpu_pace_key(function, size_class(x * y * (z * threads)));
}

static inline uint64_t
grid_key(const void *function, const unsigned int *grid, const unsigned int *block)
{
    return kernel_key(function, grid[0], grid[1], grid[2],
                      (uint64_t)block[0] * block[1] * block[2]);
}

static inline uint64_t
config_key(const struct cgpu_launch_config *config, const void *function)
{
    return config != NULL ? grid_key(function, config->grid, config->block) : 1;
}

static inline CUstream
config_stream(const struct cgpu_launch_config *config)
{
    return config != NULL ? config->stream : NULL;
}

/* Whether the thread may launch into any stream: its gate was free at its last launch, and is. */
static inline bool
is_free(const struct cgpu_batch_slot *first)
{
    return cgpu_batch_slot_gate(first) == __atomic_load_n(&first->free, __ATOMIC_RELAXED);
}

/*
 * Whether all that the last slow launch found still holds. If so, SLOT is now inside, and counts
 * this launch.
 */
static inline bool
may_continue(struct cgpu_batch_slot *slot, uint64_t key, uint64_t guess_ns)
{
    __atomic_store_n(&slot->inside, 1, __ATOMIC_RELAXED);
    __atomic_signal_fence(__ATOMIC_SEQ_CST); /* the monitor's membarrier makes it a real one */
    uint32_t word = cgpu_batch_slot_gate(slot);
    if (word != __atomic_load_n(&slot->word, __ATOMIC_RELAXED) ||
        __atomic_load_n(&slot->stream->marks, __ATOMIC_RELAXED) != slot->marks) {
        return false;
    }
    if (__builtin_expect(!cgpu_gate_is_metered(word), 0)) {
        return true;
    }
    uint64_t ns = cgpu_pace_estimate(&slot->gpu->pace, key);
    ns = ns != 0 ? ns : guess_ns;
    uint64_t work_ns = slot->work_ns + ns;
    if (ns == 0 || work_ns >= slot->most_ns) {
        return false;
    }
    cgpu_batch_slot_add(slot, key, work_ns);
    return true;
}

static inline CUresult
pass_gate(CUstream stream, uint64_t key, uint64_t guess_ns, pthread_mutex_t *held)
{
    struct cgpu_batch_slot *slot = cgpu_batch_slot_of(cgpu_batch_slots, stream);
    bool goes = slot != NULL && may_continue(slot, key, guess_ns);
    return __builtin_expect(goes, 1) ? CUDA_SUCCESS : cgpu_enter(stream, key, guess_ns, held);
}

static inline void
leave_gate(struct cgpu_batch_slot *slot)
{
    if (__builtin_expect(slot != NULL, 1)) {
        /* release: the driver has the launch before anyone sees that this thread is out */
        __atomic_store_n(&slot->inside, 0, __ATOMIC_RELEASE);
    }
}

CUresult
cgpu_launch_begin(CUstream stream, bool per_thread, uint64_t key, uint64_t guess_ns,
                  pthread_mutex_t *held)
{
    return is_free(cgpu_batch_slots)
               ? CUDA_SUCCESS
               : pass_gate(cgpu_stream_meant(stream, per_thread), key, guess_ns, held);
}

void
cgpu_launch_end(void)
{
    for (int i = 0; i < CGPU_THREAD_SLOTS; i++) {
        leave_gate(&cgpu_batch_slots[i]); /* whichever it was inside */
    }
}

/* One launch into each of several GPUs. The thread enters their gates one after the other. */
CUresult
cgpu_launch_many(CUresult (*real)(struct cgpu_launch_parameters *, unsigned int, unsigned int),
                 struct cgpu_launch_parameters *list, unsigned int count, unsigned int flags)
{
    for (unsigned int i = 0; list != NULL && i < count; i++) {
        uint64_t key = grid_key(list[i].function, list[i].grid, list[i].block);
        CUresult status = cgpu_launch_begin(list[i].stream, false, key, 0, NULL);
        if (status != CUDA_SUCCESS) {
            return status;
        }
        if (i + 1 < count) {
            cgpu_launch_end();
        }
    }
    CUresult status = real(list, count, flags);
    cgpu_launch_end();
    return status;
}

/* Two functions, so that the path through a free gate needs no stack frame: a jump, not a call. */
#if defined(__has_attribute) && __has_attribute(musttail) && __OPTIMIZE__
#define JUMP __attribute__((musttail)) return
#else
#define JUMP return
#endif

#define LAUNCH(name, stream, per_thread, key, parameters, arguments)                               \
    static __attribute__((noinline)) CUresult metered_##name parameters                            \
    {                                                                                              \
        if (cgpu_thread.depth != 0) {                                                              \
            return cgpu_real.name arguments;                                                       \
        }                                                                                          \
        CUstream meant = cgpu_stream_meant(stream, per_thread);                                    \
        CUresult status = pass_gate(meant, key, 0, NULL);                                          \
        if (status != CUDA_SUCCESS) {                                                              \
            return status;                                                                         \
        }                                                                                          \
        status = cgpu_real.name arguments;                                                         \
        leave_gate(cgpu_batch_slot_of(cgpu_batch_slots, meant));                                   \
        return status;                                                                             \
    }                                                                                              \
    CUresult name parameters                                                                       \
    {                                                                                              \
        if (__builtin_expect(is_free(cgpu_batch_slots), 1)) {                                      \
            JUMP cgpu_real.name arguments;                                                         \
        }                                                                                          \
        JUMP metered_##name arguments;                                                             \
    }
#include "entry/hooks.def"
