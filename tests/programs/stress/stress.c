/*
 * Threads that start the driver, make contexts, allocate, are refused and free, all at once. Linked
 * with the proxy's own sources, so that sanitizers see into them. Ends with 0 if nothing is left on
 * the books.
 */
#include <pthread.h>
#include <stdlib.h>

#include "entry/shim.h"

enum { THREADS = 4, ROUNDS = 400, HELD = 16 };

static void
expect(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void
exchange(CUdeviceptr *slot, unsigned int *seed)
{
    if (*slot != 0) {
        expect(cuMemFree_v2(*slot) == 0);
        *slot = 0;
    } else {
        expect(cuMemAlloc_v2(slot, 1 + (size_t)rand_r(seed) % (1 << 20)) == 0);
    }
}

static void
one_round(CUdeviceptr *held, int device, unsigned int *seed)
{
    size_t available;
    size_t total;
    CUdeviceptr refused;
    CUarray array;
    CUcontext primary;
    struct cgpu_array3d_descriptor asked = {
        .width = 64, .height = 64, .format = 0x20, .channels = 4};
    for (int i = 0; i < 8; i++) {
        exchange(&held[(size_t)rand_r(seed) % HELD], seed);
    }
    expect(cuMemAlloc_v2(&refused, (size_t)1 << 40) == CUDA_ERROR_OUT_OF_MEMORY);
    expect(cuMemGetInfo_v2(&available, &total) == 0 && available <= total);
    expect(cuArray3DCreate_v2(&array, &asked) == 0);
    expect(cuArrayDestroy(array) == 0);
    expect(cuDevicePrimaryCtxRetain(&primary, device) == 0);
    expect(cuDevicePrimaryCtxRelease_v2(device) == 0);
}

static void *
work(void *argument)
{
    unsigned int seed = (unsigned int)(uintptr_t)argument;
    int device = (int)seed % 2;
    expect(cuInit(0) == 0);
    for (int life = 0; life < 4; life++) {
        CUcontext context;
        CUdeviceptr held[HELD] = {0};
        expect(cuCtxCreate_v2(&context, 0, device) == 0);
        for (int i = 0; i < ROUNDS / 4; i++) {
            one_round(held, device, &seed);
        }
        expect(cuCtxDestroy_v2(context) == 0); /* takes along what is still held */
    }
    return NULL;
}

int
main(void)
{
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) {
        expect(pthread_create(&threads[i], NULL, work, (void *)(i + 1)) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    return cgpu_ledger_own(cgpu_state->ledger, 0) == 0 &&
                   cgpu_ledger_own(cgpu_state->ledger, 1) == 0 &&
                   cgpu_holdings_count(cgpu_state->holdings) == 0
               ? 0
               : 1;
}
