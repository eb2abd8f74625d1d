/*
 * Nanoseconds a call, medians, as one JSON object: see cuda.h for which driver.
 */
#include "cuda.h"

/* A burst fits the driver's queue of launches: a full one would time the GPU. */
enum { ROUNDS = 41, BURST = 400, PAIRS = 400, QUERIES = 400 };

static const char kernel[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                             ".visible .entry nothing() { ret; }\n";

static void *function;

static void
start(void)
{
    void *module;

    cuda_start();
    must(cuModuleLoadData(&module, kernel), "cuModuleLoadData");
    must(cuModuleGetFunction(&function, module, "nothing"), "cuModuleGetFunction");
}

static double
time_launch(void)
{
    int status = 0;
    must(cuCtxSynchronize(), "cuCtxSynchronize");
    double begin = (double)clock_ns();
    for (int i = 0; i < BURST; i++) {
        status |= cuda_launch(function, NULL, NULL);
    }
    double elapsed = ((double)clock_ns() - begin) / BURST;
    must(status, "cuLaunchKernel");
    must(cuCtxSynchronize(), "cuCtxSynchronize");
    return elapsed;
}

static double
pairs(size_t bytes)
{
    uint64_t address;
    int status = 0;
    double begin = (double)clock_ns();
    for (int i = 0; i < PAIRS; i++) {
        status |= cuMemAlloc_v2(&address, bytes);
        status |= cuMemFree_v2(address);
    }
    double elapsed = ((double)clock_ns() - begin) / PAIRS;
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
    double begin = (double)clock_ns();
    for (int i = 0; i < QUERIES; i++) {
        status |= cuMemGetInfo_v2(&available, &total);
    }
    double elapsed = ((double)clock_ns() - begin) / QUERIES;
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
    start();
    printf(
        "{\"launch\": %.1f, \"pair_4_kib\": %.1f, \"pair_4_mib\": %.1f, \"mem_get_info\": %.1f}\n",
        median(time_launch), median(time_small_pair), median(time_large_pair), median(time_info));
    return 0;
}
