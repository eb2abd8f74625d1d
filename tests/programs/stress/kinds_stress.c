/*
 * Threads that use pools, physical memory, graphs that allocate and modules on one small cap, all
 * at once. Linked with the proxy's own sources, so that sanitizers see into them. Ends with 0 if
 * nothing is left on the books.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "entry/shim.h"

enum { THREADS = 4, ROUNDS = 150 };
#define MIB ((size_t)1 << 20)

extern CUresult cuMemAddressReserve(CUdeviceptr *, size_t, size_t, CUdeviceptr, uint64_t);
extern CUresult cuGraphCreate(CUgraph *, unsigned int);
extern CUresult cuGraphDestroy(CUgraph);
extern CUresult cuGraphAddMemAllocNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t,
                                       struct cgpu_node_alloc *);
extern CUresult cuGraphAddMemFreeNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t,
                                      CUdeviceptr);
extern CUresult cuStreamCreate(CUstream *, unsigned int);
extern CUresult cuCtxSetCurrent(CUcontext);

static CUcontext context;
static const char code[] =
    ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry plain() { ret; }\n";

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d\n", __LINE__);                                                \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* Whether the call took memory; refused or not, it must be one of the two. */
static bool
took(CUresult status)
{
    EXPECT(status == CUDA_SUCCESS || status == CUDA_ERROR_OUT_OF_MEMORY);
    return status == CUDA_SUCCESS;
}

static size_t
some_size(unsigned int *seed)
{
    static const size_t sizes[] = {2, 4, 30, 100, 300};
    return sizes[(size_t)rand_r(seed) % 5] * MIB;
}

static void
use_pool(CUmemoryPool pool, CUstream stream, unsigned int *seed)
{
    CUdeviceptr one;
    CUdeviceptr two;
    bool first = took(cuMemAllocFromPoolAsync(&one, some_size(seed), pool, stream));
    bool second = took(cuMemAllocAsync(&two, some_size(seed), stream));
    EXPECT(!first || cuMemFreeAsync(one, stream) == 0);
    EXPECT(!second || cuMemFreeAsync(two, stream) == 0);
    EXPECT(rand_r(seed) % 2 == 0 || cuStreamSynchronize(stream) == 0);
}

static void
use_physical(CUdeviceptr address, unsigned int *seed)
{
    CUmemGenericAllocationHandle handle;
    struct cgpu_mem_properties properties = {
        .type = CU_ALLOCATION_PINNED,
        .handle_types = CU_HANDLE_POSIX_FD,
        .location = {CU_LOCATION_DEVICE, 0},
    };
    size_t size = some_size(seed);
    int fd;
    if (!took(cuMemCreate(&handle, size, &properties, 0))) {
        return;
    }
    EXPECT(cuMemMap(address, size, 0, handle, 0) == 0);
    EXPECT(cuMemExportToShareableHandle(&fd, handle, CU_HANDLE_POSIX_FD, 0) == 0);
    EXPECT(cuMemRelease(handle) == 0);
    EXPECT(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)(address + MIB)) == 0);
    EXPECT(cuMemUnmap(address, size) == 0);
    EXPECT(cuMemRelease(handle) == 0);
    /* The proxy looks at the number while it may be closed; ThreadSanitizer calls that a race. */
    syscall(SYS_close, fd);
}

static void
use_graph(CUstream stream, unsigned int *seed)
{
    struct cgpu_node_alloc parameters = {
        .pool = {.type = CU_ALLOCATION_PINNED, .location = {CU_LOCATION_DEVICE, 0}},
        .bytes = some_size(seed),
    };
    CUgraph graph;
    CUgraphNode node;
    CUgraphNode last;
    CUgraphExec exec;
    EXPECT(cuGraphCreate(&graph, 0) == 0);
    EXPECT(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &parameters) == 0);
    EXPECT(cuGraphAddMemFreeNode(&last, graph, &node, 1, parameters.address) == 0);
    if (took(cuGraphInstantiateWithFlags(&exec, graph, 0))) {
        took(cuGraphLaunch(exec, stream));
        EXPECT(cuGraphExecDestroy(exec) == 0);
    }
    EXPECT(cuGraphDestroy(graph) == 0);
    EXPECT(rand_r(seed) % 2 == 0 || cuDeviceGraphMemTrim(0) == 0);
}

static void
use_rest(unsigned int *seed)
{
    CUdeviceptr linear;
    CUmodule module;
    CUfunction function;
    if (took(cuMemAlloc_v2(&linear, some_size(seed)))) {
        EXPECT(cuMemFree_v2(linear) == 0);
    }
    if (took(cuModuleLoadData(&module, code))) {
        took(cuModuleGetFunction(&function, module, "plain"));
        EXPECT(cuModuleUnload(module) == 0);
    }
}

static void *
work(void *argument)
{
    unsigned int seed = (unsigned int)(uintptr_t)argument;
    struct cgpu_pool_properties properties = {
        .type = CU_ALLOCATION_PINNED,
        .location = {CU_LOCATION_DEVICE, 0},
    };
    uint64_t keep = seed % 2 == 0 ? UINT64_MAX : 0;
    CUmemoryPool pool;
    CUstream stream;
    CUdeviceptr address;
    EXPECT(cuCtxSetCurrent(context) == 0 && cuStreamCreate(&stream, 0) == 0);
    EXPECT(cuMemAddressReserve(&address, 512 * MIB, 0, 0, 0) == 0);
    EXPECT(cuMemPoolCreate(&pool, &properties) == 0);
    EXPECT(cuMemPoolSetAttribute(pool, CU_POOL_RELEASE_THRESHOLD, &keep) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        use_pool(pool, stream, &seed);
        use_physical(address, &seed);
        use_graph(stream, &seed);
        use_rest(&seed);
    }
    EXPECT(cuMemPoolDestroy(pool) == 0 && cuStreamDestroy_v2(stream) == 0);
    return NULL;
}

int
main(void)
{
    pthread_t threads[THREADS];
    CUmemoryPool pool;
    size_t available;
    size_t total;
    EXPECT(cuInit(0) == 0 && cuCtxCreate_v2(&context, 0, 0) == 0);
    EXPECT(cuMemGetInfo_v2(&available, &total) == 0);
    size_t before = available;
    for (uintptr_t i = 0; i < THREADS; i++) {
        EXPECT(pthread_create(&threads[i], NULL, work, (void *)(i + 1)) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    EXPECT(cgpu_real.cuDeviceGetDefaultMemPool(&pool, 0) == 0 && cuMemPoolTrimTo(pool, 0) == 0);
    EXPECT(cuCtxSynchronize(NULL) == 0 && cuDeviceGraphMemTrim(0) == 0);
    EXPECT(cuMemGetInfo_v2(&available, &total) == 0);
    if (available != before) {
        fprintf(stderr, "%zu bytes left on the books\n", before - available);
    }
    return available != before;
}
