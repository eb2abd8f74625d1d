/*
 * A program that keeps the GPU busy with kernels of a given length, told what to do on its standard
 * input. Answers on its standard output, one line each. Times are CLOCK_MONOTONIC, in ns.
 *
 *   make US                        measure what the kernel takes; nobody else may use the GPU
 *   use US ROUNDS PERIOD           the same, as another process measured it
 *   run US START END PARTS [STREAMS [KINDS [BURST GAP_US]]]
 *                                  launch without a pause; GPU time had in each part of START..END.
 *                                  Into STREAMS streams in turn, with KINDS kernels in turn. After
 *                                  each BURST kernels it synchronises, and pauses for GAP_US
 *   probe US START END EVERY_NS    one launch every so often; how long each took until seen ended
 */
#include "kernel.h"

#include <string.h>

enum {
    MAX_KERNELS = 16,
    MAX_PARTS = 4096,
    MAX_PROBES = 4096,
    MAX_STREAMS = 512,
    COPIES = 64, /* of a kernel, each with a handle of its own */
    BATCHES = 2,
    BATCH_NS = 2000000,
    EARLY_NS = 1000000000
};

static struct kernel kernels[MAX_KERNELS];
static unsigned int lengths[MAX_KERNELS];
static void *stream, *streams[MAX_STREAMS], *events[BATCHES]; /* stream: the first */

struct how {
    unsigned long streams, kinds, burst, gap_us;
};
static uint64_t stamps;

/* The kernel of that length, loaded; nothing is known of what it takes yet. */
static struct kernel *
kernel_of(unsigned int length_us)
{
    int i = 0;

    while (i < MAX_KERNELS - 1 && lengths[i] != 0 && lengths[i] != length_us) {
        i++;
    }
    if (lengths[i] != length_us) {
        lengths[i] = length_us;
        kernels[i] = kernel_load(length_us, stamps);
    }
    return &kernels[i];
}

static void
tell_kernel(const struct kernel *kernel)
{
    printf("{\"cgpu\": {\"rounds\": %lu, \"period_ns\": %lu}}\n", (unsigned long)kernel->rounds,
           (unsigned long)kernel->period_ns);
}

static void
sleep_until(uint64_t when)
{
    struct timespec t = {(time_t)(when / 1000000000U), (long)(when % 1000000000U)};

    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

/* The batch of WORK ns that was seen ended at END ran just before that. */
static void
credit(double *parts, long count, uint64_t start, uint64_t step, uint64_t end, uint64_t work)
{
    for (long i = 0; i < count; i++) {
        uint64_t from = start + (uint64_t)i * step, to = from + step;
        uint64_t low = end - work > from ? end - work : from, high = end < to ? end : to;

        parts[i] += high > low ? (double)(high - low) : 0;
    }
}

static void
make_streams(unsigned long count)
{
    static unsigned long made;

    for (; made < count && made < MAX_STREAMS; made++) {
        must(cuStreamCreate(&streams[made], STREAM_NON_BLOCKING), "cuStreamCreate");
    }
    stream = streams[0];
}

/* The next of so many kinds: a copy of the kernel, on up to 120 blocks of one thread each. */
static void
launch(struct kernel *kernel, const struct how *how, void *const *copies)
{
    static uint64_t launched;
    uint64_t number = launched++, kind = number % how->kinds, size = kind / COPIES;
    void *function = how->kinds == 1 ? kernel->function : copies[kind % COPIES];
    unsigned int blocks = size == 0 ? 1 : (unsigned int)(8 + size % 8) << size / 8;
    void *arguments[] = {&kernel->out, &kernel->rounds};

    must(cuda_launch_blocks(function, blocks, streams[number % how->streams], arguments),
         "cuLaunchKernel");
}

static void
run(unsigned int length_us, uint64_t start, uint64_t end, long count, const struct how *how)
{
    static double parts[MAX_PARTS];
    struct kernel *kernel = kernel_of(length_us);
    uint64_t fits = BATCH_NS / (kernel->period_ns + 1) + 1, seen = 0;
    uint64_t batch = how->burst == 0 ? fits : how->burst, ahead = how->burst == 0 ? BATCHES : 1;
    uint64_t step;
    void *copies[COPIES];

    make_streams(how->streams);
    for (int i = 0; i < COPIES && how->kinds > 1; i++) {
        copies[i] = kernel_load(length_us, stamps).function;
    }
    count = count < 1 ? 1 : count > MAX_PARTS ? MAX_PARTS : count;
    step = (end - start) / (uint64_t)count;
    memset(parts, 0, sizeof parts);
    sleep_until(start - EARLY_NS); /* so that all have begun, and what they do is known */
    for (uint64_t turn = 0; seen < end; turn++) {
        for (uint64_t i = 0; i < batch; i++) {
            launch(kernel, how, copies);
        }
        must(cuEventRecord(events[turn % BATCHES], streams[0]), "cuEventRecord");
        if (turn + 1 >= ahead) {
            must(cuEventSynchronize(events[(turn + 1 - ahead) % BATCHES]), "cuEventSynchronize");
            seen = clock_ns();
            credit(parts, count, start, step, seen, batch * kernel->period_ns);
        }
        if (how->gap_us > 0) {
            sleep_until(seen + how->gap_us * 1000);
        }
    }
    must(cuCtxSynchronize(), "cuCtxSynchronize");
    printf("{\"cgpu\": {\"period_ns\": %lu, \"parts_ns\": [", (unsigned long)kernel->period_ns);
    for (long i = 0; i < count; i++) {
        printf("%s%.0f", i == 0 ? "" : ", ", parts[i]);
    }
    printf("]}}\n");
}

static void
probe(unsigned int length_us, uint64_t start, uint64_t end, uint64_t every)
{
    struct kernel *kernel = kernel_of(length_us);
    void *arguments[] = {&kernel->out, &kernel->rounds};
    long count = 0;

    printf("{\"cgpu\": {\"period_ns\": %lu, \"latencies_ns\": [", (unsigned long)kernel->period_ns);
    for (uint64_t next = start; next < end && count < MAX_PROBES; count++) {
        uint64_t began, ended;

        sleep_until(next);
        began = clock_ns();
        must(cuda_launch(kernel->function, stream, arguments), "cuLaunchKernel");
        must(cuStreamSynchronize(stream), "cuStreamSynchronize");
        ended = clock_ns();
        printf("%s%lu", count == 0 ? "" : ", ", (unsigned long)(ended - began));
        next = (next + every > ended ? next : ended) + every;
    }
    printf("]}}\n");
}

int
main(void)
{
    unsigned long start, end, last;
    unsigned int length_us;
    char line[256];

    cuda_start();
    must(cuMemAlloc_v2(&stamps, 4096), "cuMemAlloc");
    make_streams(1);
    for (int i = 0; i < BATCHES; i++) {
        must(cuEventCreate(&events[i], EVENT_BLOCKING_SYNC | EVENT_UNTIMED), "cuEventCreate");
    }
    while (fgets(line, sizeof line, stdin) != NULL) {
        struct how how = {.streams = 1, .kinds = 1};

        if (sscanf(line, "make %u", &length_us) == 1) {
            kernel_measure(kernel_of(length_us), length_us, stream);
            tell_kernel(kernel_of(length_us));
        } else if (sscanf(line, "use %u %lu %lu", &length_us, &start, &end) == 3) {
            kernel_of(length_us)->rounds = start;
            kernel_of(length_us)->period_ns = end;
            tell_kernel(kernel_of(length_us));
        } else if (sscanf(line, "run %u %lu %lu %lu %lu %lu %lu %lu", &length_us, &start, &end,
                          &last, &how.streams, &how.kinds, &how.burst, &how.gap_us) >= 4) {
            run(length_us, start, end, (long)last, &how);
        } else if (sscanf(line, "probe %u %lu %lu %lu", &length_us, &start, &end, &last) == 4) {
            probe(length_us, start, end, last);
        } else {
            must(1, line);
        }
        fflush(stdout);
    }
    return 0;
}
