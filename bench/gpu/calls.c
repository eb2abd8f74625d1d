/*
 * Nanoseconds a call on the driver that "libcuda.so.1" is here: plain, or behind the proxy. Prints
 * one JSON object of medians. The GPU under test is number CGPU_CHECK_GPU.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* A burst fits the driver's queue of launches: a full one would time the GPU. */
enum { ROUNDS = 41, BURST = 400, PAIRS = 400, QUERIES = 400 };

static const char kernel[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                             ".visible .entry nothing() { ret; }\n";

static int (*init)(unsigned int);
static int (*device_get)(int *, int);
static int (*retain)(void **, int);
static int (*set_current)(void *);
static int (*load)(void **, const void *);
static int (*get_function)(void **, void *, const char *);
static int (*launch)(void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
                     unsigned int, unsigned int, void *, void **, void **);
static int (*synchronize)(void);
static int (*alloc)(uint64_t *, size_t);
static int (*release)(uint64_t);
static int (*info)(size_t *, size_t *);
static void *function;

static double
now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void
must(int status, const char *what)
{
    if (status != 0) {
        fprintf(stderr, "calls: %s gave error %d\n", what, status);
        exit(1);
    }
}

static void
resolve(void)
{
    const struct {
        void *pointer;
        const char *name;
    } wanted[] = {
        {&init, "cuInit"},
        {&device_get, "cuDeviceGet"},
        {&retain, "cuDevicePrimaryCtxRetain"},
        {&set_current, "cuCtxSetCurrent"},
        {&load, "cuModuleLoadData"},
        {&get_function, "cuModuleGetFunction"},
        {&launch, "cuLaunchKernel"},
        {&synchronize, "cuCtxSynchronize"},
        {&alloc, "cuMemAlloc_v2"},
        {&release, "cuMemFree_v2"},
        {&info, "cuMemGetInfo_v2"},
    };
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    must(library == NULL, "dlopen");
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        void *address = dlsym(library, wanted[i].name);
        must(address == NULL, wanted[i].name);
        *(void **)wanted[i].pointer = address;
    }
}

static void
start(void)
{
    const char *number = getenv("CGPU_CHECK_GPU");
    int device;
    void *context, *module;
    must(init(0), "cuInit");
    must(device_get(&device, number == NULL ? 0 : atoi(number)), "cuDeviceGet");
    must(retain(&context, device), "cuDevicePrimaryCtxRetain");
    must(set_current(context), "cuCtxSetCurrent");
    must(load(&module, kernel), "cuModuleLoadData");
    must(get_function(&function, module, "nothing"), "cuModuleGetFunction");
}

static double
time_launch(void)
{
    int status = 0;
    must(synchronize(), "cuCtxSynchronize");
    double begin = now_ns();
    for (int i = 0; i < BURST; i++) {
        status |= launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    }
    double elapsed = (now_ns() - begin) / BURST;
    must(status, "cuLaunchKernel");
    must(synchronize(), "cuCtxSynchronize");
    return elapsed;
}

static double
pairs(size_t bytes)
{
    uint64_t address;
    int status = 0;
    double begin = now_ns();
    for (int i = 0; i < PAIRS; i++) {
        status |= alloc(&address, bytes);
        status |= release(address);
    }
    double elapsed = (now_ns() - begin) / PAIRS;
    must(status, "cuMemAlloc or cuMemFree");
    return elapsed;
}

static double
time_small_pair(void)
{
    return pairs(4096);
}

static double
time_large_pair(void)
{
    return pairs((size_t)4 << 20);
}

static double
time_info(void)
{
    size_t available, total;
    int status = 0;
    double begin = now_ns();
    for (int i = 0; i < QUERIES; i++) {
        status |= info(&available, &total);
    }
    double elapsed = (now_ns() - begin) / QUERIES;
    must(status, "cuMemGetInfo");
    return elapsed;
}

static int
ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double
median(double (*measure)(void))
{
    double samples[ROUNDS];
    measure(); /* warms up */
    for (int i = 0; i < ROUNDS; i++) {
        samples[i] = measure();
    }
    qsort(samples, ROUNDS, sizeof samples[0], ascending);
    return samples[ROUNDS / 2];
}

int
main(void)
{
    resolve();
    start();
    printf(
        "{\"launch\": %.1f, \"pair_4_kib\": %.1f, \"pair_4_mib\": %.1f, \"mem_get_info\": %.1f}\n",
        median(time_launch), median(time_small_pair), median(time_large_pair), median(time_info));
    return 0;
}
