/*
 * calls LIBCUDA_PLAIN LIBCUDA_PROXIED: nanoseconds a call, the same driver with and without a proxy
 * in front, measured in turns within one process. Prints one JSON object of medians.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
    ROUNDS = 41,
    CALLS = 100000,
    PAIRS = 20000,
    MAX_LIVE = 10000,
    THREAD_PAIRS = 400000,
    MAX_THREADS = 2
};

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

static void
pairs(const struct driver *driver, int count)
{
    for (int i = 0; i < count; i++) {
        uint64_t address;
        if (driver->alloc(&address, 4 << 20) != 0 || driver->release(address) != 0) {
            fail("allocation refused");
        }
    }
}

static double
pairs_with_live(const struct driver *driver, int live)
{
    static uint64_t addresses[MAX_LIVE];
    for (int i = 0; i < live; i++) {
        if (driver->alloc(&addresses[i], 4 << 20) != 0) {
            fail("allocation refused");
        }
    }
    double start = now_ns();
    pairs(driver, PAIRS);
    double elapsed = (now_ns() - start) / PAIRS;
    for (int i = 0; i < live; i++) {
        driver->release(addresses[i]);
    }
    return elapsed;
}

static double
pair_0(const struct driver *driver)
{
    return pairs_with_live(driver, 0);
}

static double
pair_1000(const struct driver *driver)
{
    return pairs_with_live(driver, 1000);
}

static double
pair_10000(const struct driver *driver)
{
    return pairs_with_live(driver, MAX_LIVE);
}

static void *
pair_thread(void *driver)
{
    pairs(driver, THREAD_PAIRS);
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
        {"launch", launch},
        {"mem_get_info", info},
        {"pair_live_0", pair_0},
        {"pair_live_1000", pair_1000},
        {"pair_live_10000", pair_10000},
        {"pair_1_thread", pair_1_thread},
        {"pair_2_threads", pair_2_threads},
    };
    if (argc != 3) {
        fail("usage: calls LIBCUDA_PLAIN LIBCUDA_PROXIED");
    }
    struct driver plain = open_driver(argv[1]);
    struct driver proxied = open_driver(argv[2]);
    printf("{");
    for (size_t i = 0; i < sizeof measures / sizeof measures[0]; i++) {
        printf("%s", i == 0 ? "" : ", ");
        compare(measures[i].name, measures[i].run, &plain, &proxied);
    }
    printf("}\n");
    return 0;
}
