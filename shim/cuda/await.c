/*
 * What may make the GPU wait for the program: host functions, values that it is to write.
 *
 * Work behind it may not end before the program has done something more: this launch, what the
 * thread does afterwards, letting go of a lock that a host function wants. The driver holds a
 * thread back only when its queue is full, so a launch that finds no room does not wait for ever.
 */
#include "flow.h"

/* No marker has passed for so long, or for a few times what the longest batch takes. */
#define HOST_NS         UINT64_C(20000000)
#define HOST_UNKNOWN_NS UINT64_C(1000000000)
/* Where the program has asked for nothing of the kind, but a kernel may poll: twice as long with
 * each batch in flight, for each launch anew. */
#define STUCK_NS UINT64_C(500000000)

enum { STUCK_DOUBLINGS = 5, STUCK_TIMES = 4, BEYOND = 1024 };

/* The first field of a node's parameters. */
enum node_type { NODE_HOST = 3, NODE_BATCH_MEM_OP = 12 };

static void
note(void)
{
    if (cgpu_flow != NULL) {
        /* relaxed: it is set before what waits can have made anybody wait */
        __atomic_store_n(&cgpu_flow->awaits_host, 1, __ATOMIC_RELAXED);
    }
}

static void
note_node(const int *parameters)
{
    if (parameters != NULL && (*parameters == NODE_HOST || *parameters == NODE_BATCH_MEM_OP)) {
        note();
    }
}

static uint64_t
longer(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t
patience(const struct cgpu_pace *pace, bool told)
{
    uint64_t doublings = pace->in_flight < STUCK_DOUBLINGS ? pace->in_flight : STUCK_DOUBLINGS;
    uint64_t least = STUCK_NS << doublings;
    if (told) {
        least = pace->uncertain != 0 ? HOST_UNKNOWN_NS : HOST_NS;
    }
    return longer(least, STUCK_TIMES * pace->longest_ns);
}

bool
cgpu_await_too_long(struct cgpu_flow_gpu *gpu, uint64_t begun, uint64_t now)
{
    const struct cgpu_pace *pace = &gpu->pace;
    bool told = __atomic_load_n(&cgpu_flow->awaits_host, __ATOMIC_RELAXED) != 0;
    uint64_t since = told ? pace->since_ns : longer(pace->since_ns, begun);
    if (now < since || now - since < patience(pace, told)) {
        return false;
    }
    if (gpu->stuck_ns != pace->since_ns) {
        gpu->stuck_ns = pace->since_ns;
        gpu->beyond = 0;
    }
    return !told || gpu->beyond++ < BEYOND;
}

CUresult
cgpu_await_function(CUresult (*real)(CUstream, void *, void *), CUstream stream, void *function,
                    void *data)
{
    note();
    return real(stream, function, data);
}

CUresult
cgpu_await_callback(CUresult (*real)(CUstream, void *, void *, unsigned int), CUstream stream,
                    void *function, void *data, unsigned int flags)
{
    note();
    return real(stream, function, data, flags);
}

CUresult
cgpu_await_value_32(CUresult (*real)(CUstream, CUdeviceptr, uint32_t, unsigned int),
                    CUstream stream, CUdeviceptr address, uint32_t value, unsigned int flags)
{
    note();
    return real(stream, address, value, flags);
}

CUresult
cgpu_await_value_64(CUresult (*real)(CUstream, CUdeviceptr, uint64_t, unsigned int),
                    CUstream stream, CUdeviceptr address, uint64_t value, unsigned int flags)
{
    note();
    return real(stream, address, value, flags);
}

CUresult
cgpu_await_batch(CUresult (*real)(CUstream, unsigned int, void *, unsigned int), CUstream stream,
                 unsigned int count, void *operations, unsigned int flags)
{
    note();
    return real(stream, count, operations, flags);
}

CUresult
cgpu_await_node(CUresult (*real)(CUgraphNode *, CUgraph, CUgraphNode *, size_t, void *),
                CUgraphNode *node, CUgraph graph, CUgraphNode *after, size_t count,
                void *parameters)
{
    note();
    return real(node, graph, after, count, parameters);
}

CUresult
cgpu_await_any_node(CUresult (*real)(CUgraphNode *, CUgraph, CUgraphNode *, size_t, int *),
                    CUgraphNode *node, CUgraph graph, CUgraphNode *after, size_t count,
                    int *parameters)
{
    note_node(parameters);
    return real(node, graph, after, count, parameters);
}

CUresult
cgpu_await_any_node_v2(CUresult (*real)(CUgraphNode *, CUgraph, CUgraphNode *, void *, size_t,
                                        int *),
                       CUgraphNode *node, CUgraph graph, CUgraphNode *after, void *edges,
                       size_t count, int *parameters)
{
    note_node(parameters);
    return real(node, graph, after, edges, count, parameters);
}
