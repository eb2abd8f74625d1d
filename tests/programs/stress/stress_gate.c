/*
 * Threads that launch, synchronise, make and destroy streams and contexts while the gate opens,
 * closes and is deserted. Linked with the proxy's own sources, so that sanitizers see into them.
 * Ends with 0 if everybody got through and the process says in the end that it is quiet.
 */
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "compute/launch_state.h"
#include "entry/shim.h"

enum { THREADS = 6, ROUNDS = 150, LAUNCHES = 200 };

static struct cgpu_limits *limits;
static struct cgpu_ledger_file *ledger;
static int running;

static void
expect(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void
pause_us(long us)
{
    nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}

static void *
map(const char *path, size_t size)
{
    int fd = open(path, O_RDWR);
    void *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    expect(fd >= 0 && pages != MAP_FAILED);
    close(fd);
    return pages;
}

static void
set_gate(uint32_t gpu, enum cgpu_gate state)
{
    uint32_t *gate = &limits->gpus[gpu].gate;
    __atomic_store_n(gate, cgpu_gate_next(*gate, state), __ATOMIC_SEQ_CST);
    syscall(SYS_futex, gate, FUTEX_WAKE, 1 << 30, NULL, NULL, 0);
}

static void
beat(void)
{
    for (uint32_t gpu = 0; gpu < 2; gpu++) {
        __atomic_store_n(&limits->gpus[gpu].heartbeat_ns, cgpu_host_clock_now(), __ATOMIC_RELEASE);
    }
}

static void *
arbitrate(void *unused)
{
    unsigned int seed = 7;
    for (int turn = 0; __atomic_load_n(&running, __ATOMIC_ACQUIRE) != 0; turn++) {
        if (turn % 200 < 190) {
            beat();
        } else {
            pause_us(25000); /* deserted, for long enough in a row */
        }
        set_gate((uint32_t)rand_r(&seed) % 2, (enum cgpu_gate)(rand_r(&seed) % 4));
        pause_us(rand_r(&seed) % 2000);
    }
    return unused;
}

static void
launch_some(CUstream stream, unsigned int *seed)
{
    for (int i = 0; i < LAUNCHES; i++) {
        CUfunction function = (CUfunction)(uintptr_t)(4096 + (rand_r(seed) % 40 == 0 ? i : 0));
        expect(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL) == 0);
    }
}

static void *
work(void *argument)
{
    unsigned int seed = (unsigned int)(uintptr_t)argument;
    CUcontext context;
    CUstream own;
    expect(cuInit(0) == 0 && cuCtxCreate_v2(&context, 0, (int)seed % 2) == 0);
    expect(cuStreamCreate(&own, 1) == 0);
    for (int i = 0; i < ROUNDS; i++) {
        launch_some(rand_r(&seed) % 2 == 0 ? own : NULL, &seed);
        if (rand_r(&seed) % 3 == 0) {
            expect(cuStreamSynchronize(own) == 0);
        }
        if (rand_r(&seed) % 7 == 0) {
            expect(cuStreamDestroy_v2(own) == 0 && cuStreamCreate(&own, 0) == 0);
        }
        if (rand_r(&seed) % 11 == 0) {
            expect(cuCtxSynchronize(NULL) == 0);
        }
    }
    expect(cuStreamDestroy_v2(own) == 0);
    expect(cuCtxDestroy_v2(context) == 0);
    return NULL;
}

/* All gates closed: every work says that it is quiet, soon. */
static void
expect_quiet(void)
{
    bool quiet = false;
    beat();
    set_gate(0, CGPU_GATE_CLOSED);
    set_gate(1, CGPU_GATE_CLOSED);
    for (int i = 0; i < 2000 && !quiet; i++) {
        beat();
        pause_us(5000);
        quiet = true;
        for (int j = 0; j < CGPU_LEDGER_WORKS; j++) {
            quiet = quiet && __atomic_load_n(&ledger->works[j].active, __ATOMIC_ACQUIRE) == 0;
        }
    }
    expect(quiet);
}

int
main(void)
{
    pthread_t arbiter;
    pthread_t threads[THREADS];
    limits = map(CGPU_BASE "/limits", sizeof(*limits));
    ledger = map(CGPU_BASE "/ledger", sizeof(*ledger));
    limits->gpus[0].share_ppm = limits->gpus[1].share_ppm = 500000;
    running = 1;
    expect(pthread_create(&arbiter, NULL, arbitrate, NULL) == 0);
    for (uintptr_t i = 0; i < THREADS; i++) {
        expect(pthread_create(&threads[i], NULL, work, (void *)(i + 1)) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    __atomic_store_n(&running, 0, __ATOMIC_RELEASE);
    pthread_join(arbiter, NULL);
    expect_quiet();
    return 0;
}
