/*
 * Steps on two GPUs that meet at their ends: launch some kernels on each, wait for all of them.
 *
 *     meet us=200 kernels=2 how=thread|processes
 *
 * how: one thread for both GPUs, or a process for each, with a barrier at the end of each step.
 * A line on standard input is answered with the steps so far and the longest of them in us since
 * the last line; the program ends with it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { GPUS = 2 };

/* One list declares and resolves. */
#define DRIVER(X)                                                                                  \
    X(cuInit, (unsigned))                                                                          \
    X(cuDevicePrimaryCtxRetain, (void **, int))                                                    \
    X(cuCtxSetCurrent, (void *))                                                                   \
    X(cuModuleLoadData, (void **, const void *))                                                   \
    X(cuModuleGetFunction, (void **, void *, const char *))                                        \
    X(cuStreamCreate, (void **, unsigned))                                                         \
    X(cuStreamSynchronize, (void *))                                                               \
    X(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,         \
                       unsigned, void *, void **, void **))
#define DECLARE(name, parameters) static int(*name) parameters;
DRIVER(DECLARE)

struct gpu {
    void *context, *function, *stream;
};

/* Of all processes. */
static struct shared {
    pthread_barrier_t barrier;
    uint64_t steps, longest_us, begun_ns;
} *shared;

static long us = 200, kernels = 2;

static uint64_t
now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void
check(int result, const char *what)
{
    if (result != 0) {
        fprintf(stderr, "%s: error %d\n", what, result);
        _exit(1);
    }
}

static void
start_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        _exit(1);
    }
#define RESOLVE(name, parameters) *(void **)&name = dlsym(library, #name);
    DRIVER(RESOLVE)
    check(cuInit(0), "cuInit");
}

static void
start_gpu(struct gpu *gpu, int index)
{
    char image[256], name[64];
    void *module;
    snprintf(name, sizeof name, "spin_%ldus", us);
    snprintf(image, sizeof image,
             ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry %s() { ret; }\n",
             name);
    check(cuDevicePrimaryCtxRetain(&gpu->context, index), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(gpu->context), "cuCtxSetCurrent");
    check(cuModuleLoadData(&module, image), "cuModuleLoadData");
    check(cuModuleGetFunction(&gpu->function, module, name), "cuModuleGetFunction");
    check(cuStreamCreate(&gpu->stream, 1), "cuStreamCreate");
}

static void
launch(const struct gpu *gpu)
{
    check(cuCtxSetCurrent(gpu->context), "cuCtxSetCurrent");
    for (long i = 0; i < kernels; i++) {
        check(cuLaunchKernel(gpu->function, 1, 1, 1, 32, 1, 1, 0, gpu->stream, NULL, NULL),
              "cuLaunchKernel");
    }
}

static void
await(const struct gpu *gpu)
{
    check(cuCtxSetCurrent(gpu->context), "cuCtxSetCurrent");
    check(cuStreamSynchronize(gpu->stream), "cuStreamSynchronize");
}

/* By one of those that met. */
static void
note_step(void)
{
    uint64_t now = now_ns(), took = (now - shared->begun_ns) / 1000;
    shared->begun_ns = now;
    /* relaxed: figures of their own, read for a report only */
    if (took > __atomic_load_n(&shared->longest_us, __ATOMIC_RELAXED)) {
        __atomic_store_n(&shared->longest_us, took, __ATOMIC_RELAXED);
    }
    __atomic_add_fetch(&shared->steps, 1, __ATOMIC_RELAXED);
}

static void *
by_one_thread(void *unused)
{
    struct gpu gpus[GPUS];
    (void)unused;
    start_driver();
    for (int i = 0; i < GPUS; i++) {
        start_gpu(&gpus[i], i);
    }
    for (shared->begun_ns = now_ns();; note_step()) {
        for (int i = 0; i < GPUS; i++) {
            launch(&gpus[i]);
        }
        for (int i = 0; i < GPUS; i++) {
            await(&gpus[i]);
        }
    }
    return NULL;
}

static void
by_process(int index)
{
    struct gpu gpu;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    start_driver();
    start_gpu(&gpu, index);
    pthread_barrier_wait(&shared->barrier);
    shared->begun_ns = index == 0 ? now_ns() : shared->begun_ns;
    for (;;) {
        launch(&gpu);
        await(&gpu);
        pthread_barrier_wait(&shared->barrier);
        if (index == 0) {
            note_step();
        }
    }
}

static void
start(const char *how)
{
    pthread_barrierattr_t attributes;
    pthread_t thread;
    if (strcmp(how, "thread") == 0) {
        pthread_create(&thread, NULL, by_one_thread, NULL);
        return;
    }
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &attributes, GPUS);
    for (int i = 0; i < GPUS; i++) {
        if (fork() == 0) {
            by_process(i);
        }
    }
}

int
main(int count, char **words)
{
    char how[16] = "thread", line[64];
    for (int i = 1; i < count; i++) {
        if (sscanf(words[i], "us=%ld", &us) != 1 &&
            sscanf(words[i], "kernels=%ld", &kernels) != 1 &&
            sscanf(words[i], "how=%15s", how) != 1) {
            fprintf(stderr, "meet: %s?\n", words[i]);
            return 2;
        }
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        return 1;
    }
    start(how);
    while (fgets(line, sizeof line, stdin) != NULL) {
        /* relaxed: figures of their own */
        printf("%llu %llu\n", (unsigned long long)__atomic_load_n(&shared->steps, __ATOMIC_RELAXED),
               (unsigned long long)__atomic_exchange_n(&shared->longest_us, 0, __ATOMIC_RELAXED));
        fflush(stdout);
    }
    return 0;
}
