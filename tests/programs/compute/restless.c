/*
 * A container's programs that never rest: what the fault tests keep at work.
 *
 *     restless keep SEED      the first process: starts one of each of the others, again and again
 *     restless steady         launches kernels without a pause
 *     restless wild SEED      takes and gives back memory up to the cap and over it, launches,
 *                             forks, becomes itself anew by exec, and dies of signals in the middle
 *
 * The wild one loads no code, so that all of its memory is known to the byte: what code takes the
 * driver does not say, and its charge is an estimate.
 *
 * While the first byte of the file $RESTLESS_HOLD is not '0' the wild one neither takes nor gives
 * back nor dies, so that accounts can be compared. A result that no program should see is shown on
 * standard error and ends the process.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* UNIT: whole pieces, of which the GPU takes what is asked for, to the byte. */
enum { UNIT = 2 << 20, BLOCKS = 24, OUT_OF_MEMORY = 2, LIFE = 4000, KERNEL_US = 500 };

/* One list declares and resolves. */
#define DRIVER(X)                                                                                  \
    X(cuInit, (unsigned))                                                                          \
    X(cuDevicePrimaryCtxRetain, (void **, int))                                                    \
    X(cuCtxSetCurrent, (void *))                                                                   \
    X(cuCtxSynchronize, (void))                                                                    \
    X(cuModuleLoadData, (void **, const void *))                                                   \
    X(cuModuleGetFunction, (void **, void *, const char *))                                        \
    X(cuStreamCreate, (void **, unsigned))                                                         \
    X(cuStreamSynchronize, (void *))                                                               \
    X(cuMemAlloc_v2, (uint64_t *, size_t))                                                         \
    X(cuMemAllocPitch_v2, (uint64_t *, size_t *, size_t, size_t, unsigned))                        \
    X(cuMemAllocAsync, (uint64_t *, size_t, void *))                                               \
    X(cuMemFreeAsync, (uint64_t, void *))                                                          \
    X(cuMemsetD8Async, (uint64_t, unsigned char, size_t, void *))                                  \
    X(cuMemFree_v2, (uint64_t))                                                                    \
    X(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,         \
                       unsigned, void *, void **, void **))
#define DECLARE(name, parameters) static int(*name) parameters;
DRIVER(DECLARE)

static struct block {
    uint64_t address;
    int ordered; /* by the stream */
} blocks[BLOCKS];
static void *function, *stream;
static const volatile char *hold;
static unsigned seed;

static int
may_lack(int result, const char *what)
{
    if (result != 0 && result != OUT_OF_MEMORY) {
        fprintf(stderr, "restless: %s: error %d\n", what, result);
        _exit(1);
    }
    return result;
}

static void
load_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "restless: %s\n", dlerror());
        _exit(1);
    }
#define RESOLVE(name, parameters) *(void **)&name = dlsym(library, #name);
    DRIVER(RESOLVE)
}

/* False if there is no room for it now. */
static int
start(void)
{
    void *context;
    load_driver();
    return may_lack(cuInit(0), "cuInit") == 0 &&
           may_lack(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain") == 0 &&
           may_lack(cuCtxSetCurrent(context), "cuCtxSetCurrent") == 0 &&
           may_lack(cuStreamCreate(&stream, 1), "cuStreamCreate") == 0;
}

static int
load_code(void)
{
    char image[256], name[32];
    void *module;
    snprintf(name, sizeof name, "spin_%dus", KERNEL_US);
    snprintf(image, sizeof image,
             ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry %s() { ret; }\n",
             name);
    return may_lack(cuModuleLoadData(&module, image), "cuModuleLoadData") == 0 &&
           may_lack(cuModuleGetFunction(&function, module, name), "cuModuleGetFunction") == 0;
}

static void
launch(void)
{
    may_lack(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL), "cuLaunchKernel");
}

static unsigned
below(unsigned most)
{
    return (unsigned)rand_r(&seed) % most;
}

static void
give(struct block *block)
{
    if (block->address != 0) {
        int result =
            block->ordered ? cuMemFreeAsync(block->address, stream) : cuMemFree_v2(block->address);
        may_lack(result, "free");
        if (block->ordered) {
            may_lack(cuStreamSynchronize(stream), "cuStreamSynchronize");
        }
    }
    block->address = 0;
}

static void
take(struct block *block)
{
    size_t pitch, size = (size_t)UNIT << below(9);
    int way = (int)below(4);
    give(block);
    block->ordered = way == 0;
    int result = way == 0   ? cuMemAllocAsync(&block->address, size, stream)
                 : way == 1 ? cuMemAllocPitch_v2(&block->address, &pitch, 512, size / 512, 4)
                            : cuMemAlloc_v2(&block->address, size);
    if (may_lack(result, "allocation") != 0) {
        block->address = 0;
    }
}

static void
take_too_much(void)
{
    uint64_t address;
    if (cuMemAlloc_v2(&address, (size_t)1 << 40) != OUT_OF_MEMORY) {
        fprintf(stderr, "restless: a terabyte was not refused\n");
        _exit(1);
    }
}

/* Work for the GPU that needs no code. */
static void
fill(struct block *block)
{
    if (block->address != 0) {
        may_lack(cuMemsetD8Async(block->address, 1, UNIT, stream), "cuMemsetD8Async");
    }
}

static void *
kill_soon(void *unused)
{
    (void)unused;
    usleep(rand() % 3000);
    raise(SIGKILL);
    return NULL;
}

/* Of SIGKILL, in whatever it does then; a child that it forked may live on for a while. */
static void
die(void)
{
    pthread_t killer;
    if (below(2) && fork() == 0) {
        usleep(300000);
        _exit(0);
    }
    pthread_create(&killer, NULL, kill_soon, NULL);
    for (;;) {
        take(&blocks[below(BLOCKS)]);
    }
}

/* A child has no GPU until it is another program. */
static void
fork_child(char **words)
{
    uint64_t address;
    pid_t child = fork();
    if (child == 0) {
        if (below(2)) {
            execv("/proc/self/exe", words);
        }
        _exit(cuMemAlloc_v2(&address, 1 << 20) == 0);
    }
    int status = 0;
    if (child > 0 && waitpid(child, &status, 0) == child && status != 0 && WIFEXITED(status)) {
        fprintf(stderr, "restless: a forked child ended with %d\n", WEXITSTATUS(status));
        _exit(1);
    }
}

static void
be_wild(unsigned life)
{
    char next[16];
    snprintf(next, sizeof next, "%u", seed + 1);
    char *wild[] = {"restless", "wild", next, NULL};
    char *brief[] = {"restless", "brief", next, NULL};
    while (!start()) {
        usleep(20000);
        execv("/proc/self/exe", wild);
    }
    for (unsigned i = 0; i < life; i++) {
        while (*hold != '0') {
            usleep(5000);
        }
        switch (below(12)) {
        case 0:
            take_too_much();
            break;
        case 1:
        case 2:
            fill(&blocks[below(BLOCKS)]);
            break;
        case 3:
        case 4:
            give(&blocks[below(BLOCKS)]);
            break;
        case 5:
            usleep(below(20000));
            break;
        case 6:
            if (life == LIFE && below(20) == 0) {
                fork_child(brief);
            }
            break;
        case 7:
            if (life == LIFE && below(40) == 0) {
                execv("/proc/self/exe", wild);
            }
            break;
        case 8:
            if (life == LIFE && below(30) == 0) {
                die();
            }
            break;
        default:
            take(&blocks[below(BLOCKS)]);
        }
        usleep(5000 + below(10000));
    }
}

static void
be_steady(void)
{
    while (!start() || !load_code()) {
        usleep(20000);
        execl("/proc/self/exe", "restless", "steady", NULL);
    }
    for (;;) {
        launch();
    }
}

static pid_t
start_child(const char *what, unsigned number)
{
    char digits[16];
    pid_t child = fork();
    if (child == 0) {
        snprintf(digits, sizeof digits, "%u", number);
        execl("/proc/self/exe", "restless", what, digits, NULL);
        _exit(1);
    }
    return child;
}

static void
keep(void)
{
    pid_t steady = 0, wild = 0;
    for (;;) {
        steady = steady > 0 ? steady : start_child("steady", 0);
        wild = wild > 0 ? wild : start_child("wild", seed += 1000);
        pid_t ended = wait(NULL);
        steady = ended == steady ? 0 : steady;
        wild = ended == wild ? 0 : wild;
        usleep(50000);
    }
}

int
main(int count, char **words)
{
    const char *path = getenv("RESTLESS_HOLD");
    int file = open(path != NULL ? path : "", O_RDONLY);
    hold = file < 0 ? MAP_FAILED : mmap(NULL, 1, PROT_READ, MAP_SHARED, file, 0);
    if (count < 2 || hold == MAP_FAILED) {
        fprintf(stderr, "restless: expected keep, steady or wild, and RESTLESS_HOLD\n");
        return 2;
    }
    seed = count > 2 ? (unsigned)strtoul(words[2], NULL, 10) : 0;
    srand(seed);
    if (strcmp(words[1], "keep") == 0) {
        keep();
    } else if (strcmp(words[1], "steady") == 0) {
        be_steady();
    } else {
        be_wild(strcmp(words[1], "brief") == 0 ? 50 : LIFE);
    }
    return 0;
}
