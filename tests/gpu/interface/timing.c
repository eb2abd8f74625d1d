/*
 * What sharing by turns rests on, measured on a driver. One JSON object on standard output.
 *
 *   timing costs      CPU time of a launch, a marker, an event
 *   timing marks      when a marker is seen, here and by another process
 *   timing handover   how long the GPU stands still between two processes' kernels
 *   timing slices     when two processes with endless kernels run
 */
#include "kernel.h"

#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    BURSTS = 41,
    BURST = 200,
    ROUNDS = 100,
    GAPS = 4000,
    PIECE = 1 << 16,
    EARLY_NS = 100000,
    SECONDS = 60
};

/* Of two processes; each has a piece that its GPU code writes to. */
struct shared {
    uint32_t ready, turn, word, done;
    uint64_t seen_ns;
    uint64_t pieces[2][PIECE / sizeof(uint64_t)] __attribute__((aligned(4096)));
};

static struct shared *shared;
static void *stream;

/* Waiting in the kernel until WORD is not OLD any more. */
static void
futex_wait(uint32_t *word, uint32_t old)
{
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == old) {
        syscall(SYS_futex, word, FUTEX_WAIT, old, NULL, NULL, 0);
    }
}

static void
futex_set(uint32_t *word, uint32_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static int
ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double
median(double *samples, size_t count)
{
    qsort(samples, count, sizeof samples[0], ascending);
    return samples[count / 2];
}

/* This process, and one more that shares memory with it: 0 in the first, 1 in the second. */
static int
split(void)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(shared == MAP_FAILED, "mmap");
    pid_t child = fork();
    must(child < 0, "fork");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    }
    prctl(PR_SET_TIMERSLACK, 1);
    alarm(SECONDS); /* should the other one fail */
    return child == 0;
}

static void
begin(void)
{
    cuda_start();
    must(cuStreamCreate(&stream, STREAM_NON_BLOCKING), "cuStreamCreate");
}

static double
cost(int which, struct kernel *kernel, void *event, uint64_t word)
{
    void *arguments[] = {&kernel->out, &kernel->rounds};
    double samples[BURSTS];

    for (int k = 0; k < BURSTS; k++) {
        int status = 0;
        must(cuStreamSynchronize(stream), "cuStreamSynchronize");
        uint64_t from = clock_ns();
        for (int i = 0; i < BURST; i++) {
            status |= which == 0   ? cuda_launch(kernel->function, stream, arguments)
                      : which == 1 ? cuStreamWriteValue32_v2(stream, word, (uint32_t)i, 0)
                      : which == 2 ? cuEventRecord(event, stream)
                                   : cuEventQuery(event);
        }
        samples[k] = (double)(clock_ns() - from) / BURST;
        must(status, "a call");
    }
    return median(samples, BURSTS);
}

static int
costs(void)
{
    static uint32_t page[1024] __attribute__((aligned(4096)));
    static const char *const names[] = {"launch", "write_value", "event_record", "event_query"};
    struct kernel kernel;
    uint64_t out;
    void *event;

    begin();
    must(cuMemAlloc_v2(&out, 4096), "cuMemAlloc");
    must(cuEventCreate(&event, EVENT_UNTIMED), "cuEventCreate");
    kernel = kernel_make(5, out, stream);
    kernel.rounds = 1;
    uint64_t word = cuda_map(page, sizeof page);
    printf("{\"cgpu\": {");
    for (int i = 0; i < 4; i++) {
        printf("%s\"%s_ns\": %.0f", i == 0 ? "" : ", ", names[i], cost(i, &kernel, event, word));
    }
    printf("}}\n");
    return 0;
}

static uint64_t
watch(uint32_t value)
{
    while (__atomic_load_n(&shared->word, __ATOMIC_ACQUIRE) < value) {
    }
    return clock_ns();
}

/* The process that did not place the marker looks at the same word. */
static int
watch_marks(void)
{
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        futex_wait(&shared->turn, i - 1);
        shared->seen_ns = watch(i);
        futex_set(&shared->done, i);
    }
    return 0;
}

static int
marks(void)
{
    double own[ROUNDS], other[ROUNDS], whole[ROUNDS], behind[ROUNDS];

    if (split() == 1) {
        return watch_marks();
    }
    begin();
    uint64_t page = cuda_map(shared, 4096), out = cuda_map(shared->pieces, PIECE);
    uint64_t word = page + offsetof(struct shared, word);
    struct kernel kernel = kernel_make(500, out, stream);
    void *arguments[] = {&kernel.out, &kernel.rounds};
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        futex_set(&shared->turn, i);
        usleep(1000); /* the other one is looking by now */
        uint64_t from = clock_ns();
        must(cuStreamWriteValue32_v2(stream, word, i, 0), "cuStreamWriteValue32");
        uint64_t seen = watch(i);
        futex_wait(&shared->done, i - 1);
        own[i - 1] = (double)(seen - from);
        other[i - 1] = (double)shared->seen_ns - (double)seen;
    }
    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint32_t value = ROUNDS + 1 + 2 * i;
        must(cuStreamWriteValue32_v2(stream, word, value, 0), "cuStreamWriteValue32");
        must(cuda_launch(kernel.function, stream, arguments), "cuLaunchKernel");
        must(cuStreamWriteValue32_v2(stream, word, value + 1, 0), "cuStreamWriteValue32");
        uint64_t first = watch(value);
        whole[i] = (double)(watch(value + 1) - first) - (double)kernel.period_ns;
    }
    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint64_t from = clock_ns();
        must(cuda_launch(kernel.function, stream, arguments), "cuLaunchKernel");
        must(cuStreamWriteValue32_v2(stream, word, 3 * ROUNDS + 1 + i, 0), "cuStreamWriteValue32");
        behind[i] = (double)(watch(3 * ROUNDS + 1 + i) - from) - (double)kernel.period_ns;
    }
    printf("{\"cgpu\": {\"seen_after_ns\": %.0f, \"by_the_other_ns\": %.0f, "
           "\"around_a_kernel_ns\": %.0f, \"behind_a_kernel_ns\": %.0f, \"kernel_ns\": %lu}}\n",
           median(own, ROUNDS), median(other, ROUNDS), median(whole, ROUNDS),
           median(behind, ROUNDS), (unsigned long)kernel.period_ns);
    return 0;
}

/* The next holder: launches when it is let in. */
static int
follow(void)
{
    begin();
    struct kernel kernel = kernel_make(100, cuda_map(shared->pieces[1], PIECE), stream);
    void *arguments[] = {&kernel.out, &kernel.rounds};

    futex_set(&shared->ready, 1);
    for (uint32_t i = 1; i <= 2 * ROUNDS; i++) {
        futex_wait(&shared->turn, i - 1);
        must(cuda_launch(kernel.function, stream, arguments), "cuLaunchKernel");
        must(cuStreamSynchronize(stream), "cuStreamSynchronize");
        futex_set(&shared->done, i);
    }
    return 0;
}

/* The GPU's idle time when the next is let in at the end of a kernel, or EARLY ns before it. */
static double
hand_over(struct kernel *kernel, uint64_t word, uint32_t first, uint64_t early)
{
    void *arguments[] = {&kernel->out, &kernel->rounds};
    double idle[ROUNDS];

    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint64_t end = clock_ns() + kernel->period_ns - early;
        struct timespec t = {(time_t)(end / 1000000000U), (long)(end % 1000000000U)};
        must(cuda_launch(kernel->function, stream, arguments), "cuLaunchKernel");
        must(cuStreamWriteValue32_v2(stream, word, first + i, 0), "cuStreamWriteValue32");
        if (early == 0) {
            watch(first + i);
        } else {
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
        }
        futex_set(&shared->turn, first + i);
        futex_wait(&shared->done, first + i - 1);
        must(cuStreamSynchronize(stream), "cuStreamSynchronize");
        idle[i] = (double)shared->pieces[1][0] - (double)shared->pieces[0][1];
    }
    return median(idle, ROUNDS);
}

static int
handover(void)
{
    if (split() == 1) {
        return follow();
    }
    futex_wait(&shared->ready, 0);
    begin();
    uint64_t page = cuda_map(shared, 4096);
    struct kernel kernel = kernel_make(2000, cuda_map(shared->pieces[0], PIECE), stream);
    uint64_t word = page + offsetof(struct shared, word);
    double late = hand_over(&kernel, word, 1, 0);
    double early = hand_over(&kernel, word, 1 + ROUNDS, EARLY_NS);

    printf("{\"cgpu\": {\"idle_ns\": %.0f, \"idle_early_ns\": %.0f}}\n", late, early);
    return 0;
}

/* Notes every moment at which the clock jumped: then somebody else had the GPU. */
static const char gaps_ptx[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry gaps(.param .u64 out, .param .u64 length)\n{\n"
    "    .reg .pred %p<4>;\n    .reg .b64 %d<12>;\n"
    "    ld.param.u64 %d1, [out];\n    ld.param.u64 %d2, [length];\n"
    "    cvta.to.global.u64 %d1, %d1;\n"
    "    mov.u64 %d3, %globaltimer;\n    mov.u64 %d4, %d3;\n"
    "    mov.u64 %d5, 0;\nagain:\n"
    "    mov.u64 %d6, %globaltimer;\n    sub.s64 %d7, %d6, %d4;\n"
    "    setp.lt.s64 %p1, %d7, 50000;\n    @%p1 bra next;\n"
    "    setp.ge.s64 %p2, %d5, 4000;\n    @%p2 bra next;\n"
    "    shl.b64 %d8, %d5, 4;\n    add.s64 %d9, %d1, %d8;\n"
    "    st.global.u64 [%d9+16], %d4;\n    st.global.u64 [%d9+24], %d6;\n"
    "    add.s64 %d5, %d5, 1;\nnext:\n    mov.u64 %d4, %d6;\n"
    "    sub.s64 %d10, %d6, %d3;\n    setp.lt.s64 %p3, %d10, %d2;\n"
    "    @%p3 bra again;\n    st.global.u64 [%d1], %d5;\n    ret;\n}\n";

static void
note_gaps(int side)
{
    uint64_t length = 500000000, out;
    void *module, *function, *arguments[] = {&out, &length};

    begin();
    out = cuda_map(shared->pieces[side], PIECE);
    must(cuModuleLoadData(&module, gaps_ptx), "cuModuleLoadData");
    must(cuModuleGetFunction(&function, module, "gaps"), "cuModuleGetFunction");
    __atomic_add_fetch(&shared->ready, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&shared->ready, __ATOMIC_ACQUIRE) < 2) {
        usleep(100);
    }
    must(cuda_launch(function, stream, arguments), "cuLaunchKernel");
    must(cuStreamSynchronize(stream), "cuStreamSynchronize");
}

static int
slices(void)
{
    int side = split();

    note_gaps(side);
    if (side == 1) {
        futex_set(&shared->done, 1);
        return 0;
    }
    futex_wait(&shared->done, 0);
    printf("{\"cgpu\": {\"gaps\": [");
    for (side = 0; side < 2; side++) {
        uint64_t *piece = shared->pieces[side], count = piece[0] > GAPS ? GAPS : piece[0];
        printf("%s[", side == 0 ? "" : ", ");
        for (uint64_t i = 0; i < count; i++) {
            printf("%s[%lu, %lu]", i == 0 ? "" : ", ", (unsigned long)piece[2 + 2 * i],
                   (unsigned long)piece[3 + 2 * i]);
        }
        printf("]");
    }
    printf("]}}\n");
    return 0;
}

int
main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(void);
    } all[] = {{"costs", costs}, {"marks", marks}, {"handover", handover}, {"slices", slices}};

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (argc == 2 && strcmp(argv[1], all[i].name) == 0) {
            return all[i].run();
        }
    }
    must(1, "usage: timing costs|marks|handover|slices: ");
    return 1;
}
