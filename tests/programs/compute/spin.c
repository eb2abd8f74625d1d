/*
 * Launch kernels of a given length in a loop, in one of the ways in which programs do it.
 *
 *     spin us=50 seconds=10 stream=legacy sync=0 threads=1 processes=1 graph=0 idle_us=0 kinds=1
 *
 * us: how long the kernel takes (on the simulated GPU: its name says so). seconds=0: until standard
 * input ends; a line on it is answered at once with the launches so far and the longest time
 * between two of them, in us, since the last line. stream: legacy, per_thread, blocking or
 * nonblocking, each thread its own. sync: synchronise after so many launches, and then do nothing
 * for idle_us. graph: launch graphs of so many kernels. kinds: so many different kernels, in turn,
 * up to 2,880. At the end the same line is printed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_THREADS = 64, FUNCTIONS = 20, SIZES = 144 };

/* One list declares and resolves. */
#define DRIVER(X)                                                                                  \
    X(cuInit, (unsigned))                                                                          \
    X(cuDevicePrimaryCtxRetain, (void **, int))                                                    \
    X(cuCtxSetCurrent, (void *))                                                                   \
    X(cuModuleLoadData, (void **, const void *))                                                   \
    X(cuModuleGetFunction, (void **, void *, const char *))                                        \
    X(cuStreamCreate, (void **, unsigned))                                                         \
    X(cuStreamSynchronize, (void *))                                                               \
    X(cuStreamBeginCapture_v2, (void *, int))                                                      \
    X(cuStreamEndCapture, (void *, void **))                                                       \
    X(cuGraphInstantiateWithFlags, (void **, void *, unsigned long long))                          \
    X(cuGraphLaunch, (void *, void *))                                                             \
    X(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,         \
                       unsigned, void *, void **, void **))
#define DECLARE(name, parameters) static int(*name) parameters;
DRIVER(DECLARE)

static struct {
    long us, seconds, sync, threads, processes, graph, idle_us, kinds;
    char stream[16];
} options = {50, 10, 0, 1, 1, 0, 0, 1, "legacy"};

static void *context, *functions[FUNCTIONS];
static int stopping;
static uint64_t launches, longest, newest;

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
load_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
#define RESOLVE(name, parameters) *(void **)&name = dlsym(library, #name);
    DRIVER(RESOLVE)
}

static void
start_driver(void)
{
    char image[256], name[64];
    void *module;
    snprintf(name, sizeof name, "spin_%ldus", options.us);
    snprintf(image, sizeof image,
             ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry %s() { ret; }\n",
             name);
    load_driver();
    check(cuInit(0), "cuInit");
    check(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    for (long i = 0; i < FUNCTIONS && i < options.kinds; i++) {
        check(cuModuleLoadData(&module, image), "cuModuleLoadData");
        check(cuModuleGetFunction(&functions[i], module, name), "cuModuleGetFunction");
    }
}

static int
launch_kernel(void *stream)
{
    static __thread long launched;
    long kind = launched++ % options.kinds, size = kind / FUNCTIONS % SIZES;
    unsigned blocks = size == 0 ? 1 : (8 + (unsigned)size % 8) << size / 8;
    return cuLaunchKernel(functions[kind % FUNCTIONS], blocks, 1, 1, 32, 1, 1, 0, stream, NULL,
                          NULL);
}

static void *
own_stream(void)
{
    void *stream = NULL;
    if (strcmp(options.stream, "per_thread") == 0) {
        stream = (void *)2;
    } else if (strcmp(options.stream, "legacy") != 0) {
        unsigned flags = strcmp(options.stream, "nonblocking") == 0;
        check(cuStreamCreate(&stream, flags), "cuStreamCreate");
    }
    return stream;
}

static void *
own_graph(void)
{
    void *stream, *graph, *exec = NULL;
    if (options.graph > 0) {
        check(cuStreamCreate(&stream, 1), "cuStreamCreate");
        check(cuStreamBeginCapture_v2(stream, 2), "cuStreamBeginCapture");
        for (long i = 0; i < options.graph; i++) {
            check(launch_kernel(stream), "cuLaunchKernel");
        }
        check(cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
        check(cuGraphInstantiateWithFlags(&exec, graph, 0), "cuGraphInstantiate");
    }
    return exec;
}

static void
note_launch(void)
{
    uint64_t now = now_ns();
    /* relaxed: figures of their own, read for a report only */
    uint64_t before = __atomic_exchange_n(&newest, now, __ATOMIC_RELAXED);
    uint64_t gap = now > before ? now - before : 0;
    if (gap > __atomic_load_n(&longest, __ATOMIC_RELAXED)) {
        __atomic_store_n(&longest, gap, __ATOMIC_RELAXED);
    }
    __atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED);
}

static void *
loop(void *unused)
{
    (void)unused;
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    void *stream = own_stream(), *exec = own_graph();
    for (long count = 1; !__atomic_load_n(&stopping, __ATOMIC_RELAXED); count++) {
        check(exec == NULL ? launch_kernel(stream) : cuGraphLaunch(exec, stream), "launch");
        note_launch();
        if (options.sync > 0 && count % options.sync == 0) {
            check(cuStreamSynchronize(stream), "cuStreamSynchronize");
            usleep((useconds_t)options.idle_us);
        }
    }
    return NULL;
}

/* The gap that has not ended yet counts. */
static void
report(void)
{
    uint64_t now = now_ns(), last = __atomic_load_n(&newest, __ATOMIC_RELAXED);
    uint64_t gap = __atomic_exchange_n(&longest, 0, __ATOMIC_RELAXED);
    uint64_t open = now > last ? now - last : 0;
    printf("%llu %llu\n", (unsigned long long)__atomic_load_n(&launches, __ATOMIC_RELAXED),
           (unsigned long long)(gap > open ? gap : open) / 1000);
    fflush(stdout);
}

static void
answer_until_end(void)
{
    struct pollfd input = {.fd = 0, .events = POLLIN};
    uint64_t end =
        options.seconds == 0 ? UINT64_MAX : now_ns() + (uint64_t)options.seconds * 1000000000u;
    char line[64];
    while (now_ns() < end) {
        int left = options.seconds == 0 ? -1 : (int)((end - now_ns()) / 1000000) + 1;
        if (poll(&input, 1, left) <= 0) {
            continue;
        }
        if (read(0, line, sizeof line) <= 0) {
            if (options.seconds == 0) {
                return;
            }
            input.fd = -1;
            continue;
        }
        report();
    }
}

static void
run(void)
{
    pthread_t threads[MAX_THREADS];
    start_driver();
    newest = now_ns();
    for (long i = 0; i < options.threads; i++) {
        pthread_create(&threads[i], NULL, loop, NULL);
    }
    answer_until_end();
    __atomic_store_n(&stopping, 1, __ATOMIC_RELAXED);
    for (long i = 0; i < options.threads; i++) {
        pthread_join(threads[i], NULL);
    }
    report();
}

static void
parse(const char *word)
{
    static const struct {
        const char *name;
        long *value;
    } numbers[] = {
        {"us=", &options.us},           {"seconds=", &options.seconds},
        {"sync=", &options.sync},       {"threads=", &options.threads},
        {"graph=", &options.graph},     {"processes=", &options.processes},
        {"idle_us=", &options.idle_us}, {"kinds=", &options.kinds},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (strncmp(word, numbers[i].name, strlen(numbers[i].name)) == 0) {
            *numbers[i].value = strtol(word + strlen(numbers[i].name), NULL, 10);
            return;
        }
    }
    if (sscanf(word, "stream=%15s", options.stream) != 1) {
        fprintf(stderr, "spin: %s?\n", word);
        exit(2);
    }
}

int
main(int count, char **words)
{
    for (int i = 1; i < count; i++) {
        parse(words[i]);
    }
    options.threads = options.threads < MAX_THREADS ? options.threads : MAX_THREADS;
    for (long i = 1; i < options.processes; i++) {
        if (fork() == 0) {
            options.processes = 1;
        }
        if (options.processes == 1) {
            break;
        }
    }
    run();
    while (wait(NULL) > 0) {
    }
    return 0;
}
