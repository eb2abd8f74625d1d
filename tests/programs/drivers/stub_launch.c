/*
 * The other half of stub_driver.c: launches that end at once, streams, and what markers need. Each
 * thread's calls are counted.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

struct context;

int cuCtxGetCurrent(struct context **context);
int cuCtxSetCurrent(struct context *context);

static __thread uint64_t calls; /* but for launches */
static __thread uint64_t launches;
static __thread struct context *below;

uint64_t
stub_calls(void)
{
    return calls;
}

uint64_t
stub_launches(void)
{
    return launches;
}

enum { LAUNCHES, SYNCHRONISES, WAYS };

static void *held[WAYS];
static int inside;

/* From now on who launches the function WHAT (WAY 0), or synchronises the stream WHAT (1), stays in
 * the driver, until another is named or NULL. */
void
stub_hold(int way, void *what)
{
    __atomic_store_n(&held[way], what, __ATOMIC_SEQ_CST);
}

/* How many threads are held. */
int
stub_inside(void)
{
    return __atomic_load_n(&inside, __ATOMIC_SEQ_CST);
}

static void
wait_while_held(int way, const void *what)
{
    if (what == NULL || __atomic_load_n(&held[way], __ATOMIC_RELAXED) != what) {
        return;
    }
    __atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&held[way], __ATOMIC_SEQ_CST) == what) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
}

int
cuLaunchKernel(void *function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
               unsigned int by, unsigned int bz, unsigned int shared, void *stream, void **params,
               void **extra)
{
    (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz;
    (void)shared, (void)stream, (void)params, (void)extra;
    launches++;
    wait_while_held(LAUNCHES, function);
    return 0;
}

int
cuStreamCreate(struct context ***stream, unsigned int flags)
{
    (void)flags;
    calls++;
    *stream = malloc(sizeof(**stream));
    return cuCtxGetCurrent(*stream);
}

int
cuStreamDestroy_v2(struct context **stream)
{
    calls++;
    free(stream);
    return 0;
}

int
cuStreamGetCtx(struct context **stream, struct context **context)
{
    calls++;
    *context = *stream;
    return 0;
}

int
cuStreamIsCapturing(void *stream, int *status)
{
    (void)stream;
    calls++;
    *status = 0;
    return 0;
}

int
cuStreamQuery(void *stream)
{
    (void)stream;
    calls++;
    return 0;
}

int
cuStreamSynchronize(void *stream)
{
    calls++;
    wait_while_held(SYNCHRONISES, stream);
    return 0;
}

int
cuCtxSynchronize(void)
{
    calls++;
    return 0;
}

int
cuCtxPushCurrent_v2(struct context *context)
{
    calls++;
    cuCtxGetCurrent(&below);
    return cuCtxSetCurrent(context);
}

int
cuCtxPopCurrent_v2(struct context **context)
{
    calls++;
    cuCtxGetCurrent(context);
    return cuCtxSetCurrent(below);
}

int
cuThreadExchangeStreamCaptureMode(int *mode)
{
    calls++;
    *mode = 0;
    return 0;
}

int
cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned int flags)
{
    (void)pointer, (void)bytes, (void)flags;
    calls++;
    return 0;
}

int
cuMemHostGetDevicePointer_v2(uint64_t *address, void *pointer, unsigned int flags)
{
    (void)flags;
    calls++;
    *address = (uint64_t)(uintptr_t)pointer;
    return getenv("STUB_NO_WORDS") != NULL ? 801 : 0;
}

int
cuStreamWriteValue32_v2(void *stream, uint64_t address, uint32_t value, unsigned int flags)
{
    (void)stream, (void)flags;
    calls++;
    __atomic_store_n((uint32_t *)(uintptr_t)address, value, __ATOMIC_RELEASE);
    return 0;
}

int
cuEventCreate(void **event, unsigned int flags)
{
    (void)flags;
    calls++;
    *event = malloc(1);
    return 0;
}

int
cuEventDestroy_v2(void *event)
{
    calls++;
    free(event);
    return 0;
}

int
cuEventRecord(void *event, void *stream)
{
    (void)event, (void)stream;
    calls++;
    return 0;
}

int
cuEventQuery(void *event)
{
    (void)event;
    calls++;
    return 0;
}
