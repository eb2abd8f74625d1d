/*
 * The driver's functions that the programs of this folder call, on the driver that "libcuda.so.1"
 * is here: plain, or behind the proxy. The GPU under test is number CGPU_CHECK_GPU.
 */
#ifndef BENCH_GPU_CUDA_H
#define BENCH_GPU_CUDA_H

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define CUDA_CALLS(CALL)                                                                           \
    CALL(cuInit, (unsigned int))                                                                   \
    CALL(cuDeviceGet, (int *, int))                                                                \
    CALL(cuDevicePrimaryCtxRetain, (void **, int))                                                 \
    CALL(cuCtxSetCurrent, (void *))                                                                \
    CALL(cuCtxSynchronize, (void))                                                                 \
    CALL(cuModuleLoadData, (void **, const void *))                                                \
    CALL(cuModuleGetFunction, (void **, void *, const char *))                                     \
    CALL(cuStreamCreate, (void **, unsigned int))                                                  \
    CALL(cuStreamSynchronize, (void *))                                                            \
    CALL(cuEventCreate, (void **, unsigned int))                                                   \
    CALL(cuEventRecord, (void *, void *))                                                          \
    CALL(cuEventQuery, (void *))                                                                   \
    CALL(cuEventSynchronize, (void *))                                                             \
    CALL(cuMemAlloc_v2, (uint64_t *, size_t))                                                      \
    CALL(cuMemFree_v2, (uint64_t))                                                                 \
    CALL(cuMemGetInfo_v2, (size_t *, size_t *))                                                    \
    CALL(cuMemHostRegister_v2, (void *, size_t, unsigned int))                                     \
    CALL(cuMemHostGetDevicePointer_v2, (uint64_t *, void *, unsigned int))                         \
    CALL(cuStreamWriteValue32_v2, (void *, uint64_t, uint32_t, unsigned int))                      \
    CALL(cuLaunchKernel, (void *, unsigned int, unsigned int, unsigned int, unsigned int,          \
                          unsigned int, unsigned int, unsigned int, void *, void **, void **))

#define POINTER(name, parameters) static int(*name) parameters __attribute__((unused));
CUDA_CALLS(POINTER)
#undef POINTER

enum { STREAM_NON_BLOCKING = 1, EVENT_BLOCKING_SYNC = 1, EVENT_UNTIMED = 2, HOST_MAPPED = 2 };

static inline uint64_t
clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

static inline void
must(int status, const char *what)
{
    if (status != 0) {
        fprintf(stderr, "%s gave error %d\n", what, status);
        exit(1);
    }
}

/* The primary context of the GPU under test, current in this thread. */
static inline void
cuda_start(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;
    const char *number = getenv("CGPU_CHECK_GPU");
    int device;

    must(library == NULL, "dlopen");
#define RESOLVE(name, parameters)                                                                  \
    *(void **)&name = dlsym(library, #name);                                                       \
    must((name) == NULL, "dlsym of " #name);
    CUDA_CALLS(RESOLVE)
#undef RESOLVE
    must(cuInit(0), "cuInit");
    must(cuDeviceGet(&device, number == NULL ? 0 : atoi(number)), "cuDeviceGet");
    must(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

/* So many blocks of one thread of FUNCTION in STREAM. */
static inline int
cuda_launch_blocks(void *function, unsigned int blocks, void *stream, void **arguments)
{
    return cuLaunchKernel(function, blocks, 1, 1, 1, 1, 1, 0, stream, arguments, NULL);
}

static inline int
cuda_launch(void *function, void *stream, void **arguments)
{
    return cuda_launch_blocks(function, 1, stream, arguments);
}

/* SIZE bytes at ADDRESS, which may be shared with other processes, as the GPU sees them. */
static inline uint64_t
cuda_map(void *address, size_t size)
{
    uint64_t device;

    must(cuMemHostRegister_v2(address, size, HOST_MAPPED), "cuMemHostRegister");
    must(cuMemHostGetDevicePointer_v2(&device, address, 0), "cuMemHostGetDevicePointer");
    return device;
}

#endif
