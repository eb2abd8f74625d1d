/*
 * calls LIBCUDA_PLAIN LIBCUDA_PROXIED LIMITS: nanoseconds a call, the same driver with and without
 * a proxy in front, measured in turns within one process. Prints one JSON object of medians. LIMITS
 * is the proxy's limits page, in which the gate is opened for what is measured.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "gate/gate.h"
#include "limits.h"

enum {
    ROUNDS = 41,
    CALLS = 100000,
    MARKERS = 2000,
    PAIRS = 20000,
    MAX_LIVE = 10000,
    THREAD_PAIRS = 400000,
    MAX_THREADS = 2
};

enum { NATIVE = 5, WEIGHTED_FAIR = 6 }; /* policies */

struct driver {
    int (*init)(unsigned int);
    int (*ctx_create)(void **, unsigned int, int);
    int (*alloc)(uint64_t *, size_t);
    int (*release)(uint64_t);
    int (*info)(size_t *, size_t *);
    int (*launch)(void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
                  unsigned int, unsigned int, void *, void **, void **);
};

typedef double measure(const struct driver *driver);

static double
now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void
fail(const char *what)
{
    fprintf(stderr, "calls: %s\n", what);
    exit(1);
}

static void *
symbol(void *library, const char *name)
{
    void *address = dlsym(library, name);
    if (address == NULL) {
        fail(name);
    }
    return address;
}

static struct driver
open_driver(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fail(dlerror());
    }
    struct driver driver;
    *(void **)&driver.init = symbol(library, "cuInit");
    *(void **)&driver.ctx_create = symbol(library, "cuCtxCreate_v2");
    *(void **)&driver.alloc = symbol(library, "cuMemAlloc_v2");
    *(void **)&driver.release = symbol(library, "cuMemFree_v2");
    *(void **)&driver.info = symbol(library, "cuMemGetInfo_v2");
    *(void **)&driver.launch = symbol(library, "cuLaunchKernel");
    void *ctx;
    if (driver.init(0) != 0 || driver.ctx_create(&ctx, 0, 0) != 0) {
        fail("the driver does not start");
    }
    return driver;
}

static double
launch(const struct driver *driver)
{
    double start = now_ns();
    for (int i = 0; i < CALLS; i++) {
        driver->launch(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    }
    return (now_ns() - start) / CALLS;
}

static struct cgpu_limits *limits;

/* As the arbiter would; it gives a sign so that the gate in the page is the one in force. */
static void
set_gate(enum cgpu_gate state)
{
    uint32_t *gate = &limits->gpus[0].gate;
    __atomic_store_n(&limits->gpus[0].heartbeat_ns, (uint64_t)now_ns(), __ATOMIC_RELEASE);
    if (cgpu_gate_state(*gate) != state) {
        __atomic_store_n(gate, cgpu_gate_next(*gate, state), __ATOMIC_RELEASE);
    }
}

static double
launch_free(const struct driver *driver)
{
    set_gate(CGPU_GATE_FREE);
    driver->launch(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL); /* lets the thread in */
    return launch(driver);
}

static double
launch_contended(const struct driver *driver)
{
    set_gate(CGPU_GATE_PRESSED);
    return launch(driver);
}

/* A kernel that was never seen is a batch of its own, so every launch places a marker. */
static double
launch_and_mark(const struct driver *driver)
{
    static uintptr_t kernel = 1 << 20;
    set_gate(CGPU_GATE_PRESSED);
    double start = now_ns();
    for (int i = 0; i < MARKERS; i++) {
        kernel += 4096;
        driver->launch((void *)kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    }
    return (now_ns() - start) / MARKERS;
}

static void
open_limits(const char *path)
{
    int fd = open(path, O_RDWR);
    limits = mmap(NULL, sizeof *limits, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd < 0 || limits == MAP_FAILED) {
        fail(path);
    }
    limits->gpus[0].share_ppm = 1000000; /* a busy machine may keep set_gate from its next sign */
    close(fd);
}

static double
info(const struct driver *driver)
{
    size_t free_bytes, total_bytes;
    double start = now_ns();
    for (int i = 0; i < CALLS; i++) {
        driver->info(&free_bytes, &total_bytes);
    }
    return (now_ns() - start) / CALLS;
}

enum { LARGE = 4 << 20, SMALL = 4000 };

static void
pairs(const struct driver *driver, int count, size_t bytes)
{
    for (int i = 0; i < count; i++) {
        uint64_t address;
        if (driver->alloc(&address, bytes) != 0 || driver->release(address) != 0) {
            fail("allocation refused");
        }
    }
}

static double
pairs_with_live(const struct driver *driver, int live, size_t bytes)
{
    static uint64_t addresses[MAX_LIVE];
    for (int i = 0; i < live; i++) {
        if (driver->alloc(&addresses[i], bytes) != 0) {
            fail("allocation refused");
        }
    }
    double start = now_ns();
    pairs(driver, PAIRS, bytes);
    double elapsed = (now_ns() - start) / PAIRS;
    for (int i = 0; i < live; i++) {
        driver->release(addresses[i]);
    }
    return elapsed;
}

static double
pair_0(const struct driver *driver)
{
    return pairs_with_live(driver, 0, LARGE);
}

static double
small_pair_0(const struct driver *driver)
{
    return pairs_with_live(driver, 0, SMALL);
}

static double
pair_1000(const struct driver *driver)
{
    return pairs_with_live(driver, 1000, LARGE);
}

static double
small_pair_1000(const struct driver *driver)
{
    return pairs_with_live(driver, 1000, SMALL);
}

static double
pair_10000(const struct driver *driver)
{
    return pairs_with_live(driver, MAX_LIVE, LARGE);
}

static double
small_pair_10000(const struct driver *driver)
{
    return pairs_with_live(driver, MAX_LIVE, SMALL);
}

static void *
pair_thread(void *driver)
{
    pairs(driver, THREAD_PAIRS, LARGE);
    return NULL;
}

/* Nanoseconds of wall time per pair over all threads: smaller is more pairs a second. */
static double
pairs_in_threads(const struct driver *driver, int count)
{
    pthread_t threads[MAX_THREADS];
    double start = now_ns();
    for (int i = 0; i < count; i++) {
        pthread_create(&threads[i], NULL, pair_thread, (void *)driver);
    }
    for (int i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
    }
    return (now_ns() - start) / ((double)THREAD_PAIRS * count);
}

static double
pair_1_thread(const struct driver *driver)
{
    return pairs_in_threads(driver, 1);
}

static double
pair_2_threads(const struct driver *driver)
{
    return pairs_in_threads(driver, MAX_THREADS);
}

static int
ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void
compare(const char *name, measure *run, const struct driver *plain, const struct driver *proxied)
{
    double without[ROUNDS], with[ROUNDS], added[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        without[i] = run(plain);
        with[i] = run(proxied);
        added[i] = with[i] - without[i];
    }
    qsort(without, ROUNDS, sizeof without[0], ascending);
    qsort(with, ROUNDS, sizeof with[0], ascending);
    qsort(added, ROUNDS, sizeof added[0], ascending);
    printf("\"%s\": {\"plain_ns\": %.1f, \"proxied_ns\": %.1f, \"added_ns\": %.1f}", name,
           without[ROUNDS / 2], with[ROUNDS / 2], added[ROUNDS / 2]);
}

int
main(int argc, char **argv)
{
    static const struct {
        const char *name;
        measure *run;
    } measures[] = {
        {"launch_native", launch_free},
        {"launch_lone", launch_free},
        {"launch_contended", launch_contended},
        {"launch_and_mark", launch_and_mark},
        {"mem_get_info", info},
        {"pair_live_0", pair_0},
        {"pair_live_1000", pair_1000},
        {"pair_live_10000", pair_10000},
        {"small_pair_live_0", small_pair_0},
        {"small_pair_live_1000", small_pair_1000},
        {"small_pair_live_10000", small_pair_10000},
        {"pair_1_thread", pair_1_thread},
        {"pair_2_threads", pair_2_threads},
    };
    if (argc != 4) {
        fail("usage: calls LIBCUDA_PLAIN LIBCUDA_PROXIED LIMITS");
    }
    open_limits(argv[3]);
    struct driver plain = open_driver(argv[1]);
    struct driver proxied = open_driver(argv[2]);
    printf("{");
    for (size_t i = 0; i < sizeof measures / sizeof measures[0]; i++) {
        printf("%s", i == 0 ? "" : ", ");
        limits->policy = i == 0 ? NATIVE : WEIGHTED_FAIR;
        compare(measures[i].name, measures[i].run, &plain, &proxied);
    }
    printf("}\n");
    return 0;
}
