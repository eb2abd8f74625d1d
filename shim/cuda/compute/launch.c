/*
 * The entry points that launch kernels, generated from hooks.def, and the hot path of all launches.
 *
 * Under a free gate, on one GPU, a launch is one load of the gate word, one comparison and a jump
 * into the driver. Metered, the thread says that it is inside, looks at the gate and adds what the
 * kernel takes to its batch: plain loads and stores, the gate word and the stream's `marks` being
 * the only ones that others write.
 */
#include "compute/launch.h"
#include "compute/enter.h"

#include "compute/flow.h"
#include "entry/thread.h"

enum { STEPS_PER_OCTAVE_BITS = 3 };

/* Sizes that differ by less than an eighth are one size. */
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
config_key(const struct cgpu_launch_config *config, const void *function)
{
    if (config == NULL) {
        return 1;
    }
    const unsigned int *grid = config->grid;
    const unsigned int *block = config->block;
    return kernel_key(function, grid[0], grid[1], grid[2],
                      (uint64_t)block[0] * block[1] * block[2]);
}

static inline CUstream
config_stream(const struct cgpu_launch_config *config)
{
    return config != NULL ? config->stream : NULL;
}

/* May the thread launch into any stream, under the same free gate as last time? */
static inline bool
is_free(const struct cgpu_lane *first)
{
    return cgpu_lane_gate(first) == __atomic_load_n(&first->free, __ATOMIC_RELAXED);
}

/* The thread's own fields, which the monitor reads: relaxed, its barrier orders them. */
static inline void
add(struct cgpu_lane *lane, uint64_t key, uint64_t work_ns)
{
    __atomic_store_n(&lane->work_ns, work_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->launches, lane->launches + 1, __ATOMIC_RELAXED);
    __atomic_store_n(&lane->mixed, lane->mixed | (lane->key ^ key), __ATOMIC_RELAXED);
}

static inline CUresult
pass(struct cgpu_lane *first, CUstream stream, uint64_t key, uint64_t guess_ns,
     pthread_mutex_t *held)
{
    struct cgpu_lane *lane = cgpu_lane_of(first, stream);
    if (__builtin_expect(lane == NULL, 0)) {
        return is_free(first) ? CUDA_SUCCESS : cgpu_enter(stream, key, guess_ns, held);
    }
    __atomic_store_n(&lane->inside, 1, __ATOMIC_RELAXED);
    __atomic_signal_fence(__ATOMIC_SEQ_CST); /* the monitor's membarrier makes it a real one */
    uint32_t word = cgpu_lane_gate(lane);
    if (__builtin_expect(word == __atomic_load_n(&lane->word, __ATOMIC_RELAXED) &&
                             __atomic_load_n(&lane->state->marks, __ATOMIC_RELAXED) == lane->marks,
                         1)) {
        if (__builtin_expect(!cgpu_gate_is_metered(word), 0)) {
            return CUDA_SUCCESS;
        }
        uint64_t ns = cgpu_pace_estimate(lane->pace, key);
        ns = ns != 0 ? ns : guess_ns;
        uint64_t work_ns = lane->work_ns + ns;
        if (__builtin_expect(ns != 0 && work_ns < CGPU_PACE_BATCH_NS, 1)) {
            add(lane, key, work_ns);
            return CUDA_SUCCESS;
        }
    } else if (is_free(first)) {
        return CUDA_SUCCESS;
    }
    return cgpu_enter(stream, key, guess_ns, held);
}

static inline void
leave(struct cgpu_lane *lane)
{
    if (__builtin_expect(lane != NULL, 1)) {
        /* release: the driver has the launch before anyone sees that this thread is out */
        __atomic_store_n(&lane->inside, 0, __ATOMIC_RELEASE);
    }
}

CUresult
cgpu_launch_begin(CUstream stream, bool per_thread, uint64_t key, uint64_t guess_ns,
                  pthread_mutex_t *held)
{
    return pass(cgpu_lane, cgpu_stream_meant(stream, per_thread), key, guess_ns, held);
}

void
cgpu_launch_end(void)
{
    int lanes = cgpu_lane->tid != 0 ? CGPU_THREAD_LANES : 0;
    for (int i = 0; i < lanes; i++) {
        leave(&cgpu_lane[i]); /* whichever it was */
    }
}

/* One launch into each of several GPUs, which are entered one after the other. */
CUresult
cgpu_launch_many(CUresult (*real)(struct cgpu_launch_parameters *, unsigned int, unsigned int),
                 struct cgpu_launch_parameters *list, unsigned int count, unsigned int flags)
{
    for (unsigned int i = 0; list != NULL && i < count; i++) {
        const unsigned int *grid = list[i].grid;
        const unsigned int *block = list[i].block;
        uint64_t key = kernel_key(list[i].function, grid[0], grid[1], grid[2],
                                  (uint64_t)block[0] * block[1] * block[2]);
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

/* In two functions, so that the way through a free gate needs no stack frame: a jump, not a call.
 */
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
        CUresult status = pass(cgpu_lane, meant, key, 0, NULL);                                    \
        if (status != CUDA_SUCCESS) {                                                              \
            return status;                                                                         \
        }                                                                                          \
        status = cgpu_real.name arguments;                                                         \
        leave(cgpu_lane_of(cgpu_lane, meant));                                                     \
        return status;                                                                             \
    }                                                                                              \
    CUresult name parameters                                                                       \
    {                                                                                              \
        if (__builtin_expect(is_free(cgpu_lane), 1)) {                                             \
            JUMP cgpu_real.name arguments;                                                         \
        }                                                                                          \
        JUMP metered_##name arguments;                                                             \
    }
#include "entry/hooks.def"
