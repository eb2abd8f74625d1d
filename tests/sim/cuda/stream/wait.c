/* Waits in streams: for values in memory, for semaphores of others (timelines in shared memory). */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim.h"

enum { TIMELINE_FD = 9, FLAGS_FLUSH = 1 << 30 };

int
sim_wait_is_over(const struct sim_wait *wait)
{
    if (wait->address == 0) {
        return 0;
    }
    const void *at = (const void *)(uintptr_t)wait->address;
    int wide = wait->size == sizeof(uint64_t);
    /* acquire: what was written before the value is there */
    uint64_t value = wide ? __atomic_load_n((const uint64_t *)at, __ATOMIC_ACQUIRE)
                          : __atomic_load_n((const uint32_t *)at, __ATOMIC_ACQUIRE);
    switch (wait->until) {
    case SIM_WAIT_GEQ: /* numbers may wrap around */
        return wide ? (int64_t)(value - wait->value) >= 0
                    : (int32_t)((uint32_t)value - (uint32_t)wait->value) >= 0;
    case SIM_WAIT_EQ:
        return value == wait->value;
    case SIM_WAIT_AND:
        return (value & wait->value) != 0;
    case SIM_WAIT_NOR:
        return (~(value | wait->value) & (wide ? UINT64_MAX : UINT32_MAX)) != 0;
    default:
        return value != wait->value;
    }
}

static int
wait_call(void *stream, uint64_t address, uint64_t value, uint32_t size, unsigned flags)
{
    struct sim_operation operation = {
        .type = SIM_OP_AWAIT,
        .wait = {address, value, size, (enum sim_wait_until)(flags & ~(unsigned)FLAGS_FLUSH)},
    };
    if (address % size != 0 || sim_region_find(address) == NULL ||
        operation.wait.until > SIM_WAIT_NOR) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return sim_stream_do(stream, &operation);
}

#define WAIT_VALUE(name, type)                                                                     \
    SIM_API_PER_THREAD(name, _ptsz, (void *stream, uint64_t address, type value, unsigned flags),  \
                       (stream, address, value, flags))                                            \
    {                                                                                              \
        return sim_marker_allowed() ? wait_call(stream, address, value, sizeof value, flags)       \
                                    : sim_unsupported(#name);                                      \
    }

WAIT_VALUE(cuStreamWaitValue32, uint32_t)
WAIT_VALUE(cuStreamWaitValue64, uint64_t)
WAIT_VALUE(cuStreamWaitValue32_v2, uint32_t)
WAIT_VALUE(cuStreamWaitValue64_v2, uint64_t)

/* ---- semaphores ---- */

struct sim_semaphore {
    uint64_t *timeline;
};

struct import_parameters { /* layout of CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC */
    int type;
    union {
        int fd;
        void *pointers[2];
    } handle;
    unsigned flags, reserved[16];
};

struct sim_semaphore_value { /* layout of CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS and _SIGNAL_PARAMS */
    uint64_t value;
    unsigned rest[34];
};

SIM_API(cuImportExternalSemaphore,
        (struct sim_semaphore * *out, const struct import_parameters *parameters),
        (out, parameters))
{
    if (out == NULL || parameters == NULL || parameters->type != TIMELINE_FD) {
        return parameters == NULL || out == NULL ? CUDA_ERROR_INVALID_VALUE
                                                 : CUDA_ERROR_NOT_SUPPORTED;
    }
    void *page =
        mmap(NULL, sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED, parameters->handle.fd, 0);
    if (page == MAP_FAILED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    close(parameters->handle.fd); /* it is the driver's from now on */
    struct sim_semaphore *semaphore = malloc(sizeof *semaphore);
    semaphore->timeline = page;
    *out = semaphore;
    return CUDA_SUCCESS;
}

/* Streams may still wait for it: its page stays. */
SIM_API(cuDestroyExternalSemaphore, (struct sim_semaphore * semaphore), (semaphore))
{
    free(semaphore);
    return CUDA_SUCCESS;
}

static struct sim_operation
semaphore_wait(const struct sim_semaphore *semaphore, const struct sim_semaphore_value *parameters)
{
    return (struct sim_operation){
        .type = SIM_OP_AWAIT_SEMAPHORE,
        .wait = {(uint64_t)(uintptr_t)semaphore->timeline, parameters->value, sizeof(uint64_t),
                 SIM_WAIT_GEQ},
    };
}

SIM_API_PER_THREAD(cuWaitExternalSemaphoresAsync, _ptsz,
                   (struct sim_semaphore *const *list, const struct sim_semaphore_value *parameters,
                    unsigned count, void *stream),
                   (list, parameters, count, stream))
{
    int result = CUDA_SUCCESS;
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        struct sim_operation operation = semaphore_wait(list[i], &parameters[i]);
        result = sim_stream_do(stream, &operation);
    }
    return result;
}

SIM_API_PER_THREAD(cuSignalExternalSemaphoresAsync, _ptsz,
                   (struct sim_semaphore *const *list, const struct sim_semaphore_value *parameters,
                    unsigned count, void *stream),
                   (list, parameters, count, stream))
{
    int result = CUDA_SUCCESS;
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        struct sim_operation operation = {
            .type = SIM_OP_MEMORY,
            .write = {(uint64_t)(uintptr_t)list[i]->timeline, parameters[i].value,
                      sizeof(uint64_t)},
        };
        result = sim_stream_do(stream, &operation);
    }
    return result;
}

int
sim_graph_add_wait(struct sim_node **out, struct sim_graph *graph,
                   struct sim_node *const *dependencies, size_t count,
                   const struct sim_wait_node *node)
{
    if (out == NULL || sim_object_find(SIM_GRAPH, graph) == NULL || node == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (node->count != 1) {
        return sim_unsupported("a graph's node that waits for several semaphores");
    }
    struct sim_operation operation = semaphore_wait(node->list[0], node->values);
    return sim_graph_add(graph, dependencies, count, &operation, out);
}

SIM_API(cuGraphAddExternalSemaphoresWaitNode,
        (struct sim_node * *out, struct sim_graph *graph, struct sim_node *const *dependencies,
         size_t count, const struct sim_wait_node *node),
        (out, graph, dependencies, count, node))
{
    return sim_graph_add_wait(out, graph, dependencies, count, node);
}
