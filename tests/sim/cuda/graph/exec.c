/* Instantiated graphs: what is launched. */
#include <stdlib.h>

#include "sim.h"

enum { AUTO_FREE_ON_LAUNCH = 1, UPLOAD = 2, DEVICE_LAUNCH = 4, NODE_PRIORITY = 8 };
enum { UPDATE_ERROR = 1, UPDATE_TOPOLOGY_CHANGED = 2, UPDATE_TYPE_CHANGED = 3 };

/*
 * As measured on an H200, driver 580: what kernels take in a chain, and beside each other. The
 * first of it lies in what the context took when it was made.
 */
enum { NODE_BYTES = 3 << 10, BESIDE_BYTES = 112 << 10, IN_CONTEXT = 2 << 20 };

struct sim_exec {
    struct sim_object object;
    struct sim_context *context; /* in which its nodes take memory; NULL: none was current */
    uint64_t bytes;
    struct sim_graph *graph;  /* own copy */
    struct sim_graph *source; /* of memory nodes: it can have one instance at a time */
    struct sim_node **order;
    size_t count;
    uint64_t flags;
};

static uint64_t
bytes_of(const struct sim_graph *graph)
{
    uint64_t kernels = 0, beside = 0;
    for (const struct sim_node *node = graph->first; node != NULL; node = node->next) {
        kernels += node->operation.type == SIM_OP_KERNEL;
        beside += node->operation.type == SIM_OP_KERNEL && node->dependency_count == 0;
    }
    return kernels * NODE_BYTES + (beside > 1 ? beside - 1 : 0) * BESIDE_BYTES;
}

/* The context keeps what executable graphs took for further ones. */
static int
take_nodes(struct sim_exec *exec)
{
    struct sim_context *context = exec->context;
    if (context == NULL) {
        return CUDA_SUCCESS;
    }
    uint64_t live = context->graph_bytes + exec->bytes;
    uint64_t need = live > IN_CONTEXT ? sim_round(live - IN_CONTEXT) : 0;
    uint64_t more = need > context->graph_taken ? need - context->graph_taken : 0;
    int result = more != 0 ? sim_take(context->device, more) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) {
        context->graph_bytes += exec->bytes;
        context->graph_taken += more;
        context->bytes += more;
    }
    return result;
}

static int
instantiate(struct sim_exec **out, struct sim_graph *handle, uint64_t flags)
{
    struct sim_graph *graph = sim_object_find(SIM_GRAPH, handle);
    const uint64_t known = AUTO_FREE_ON_LAUNCH | UPLOAD | DEVICE_LAUNCH | NODE_PRIORITY;
    if (out == NULL || graph == NULL || (flags & ~known) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if ((flags & DEVICE_LAUNCH) != 0) {
        sim_log("graphs launched by the device are not simulated");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (graph->has_memory_nodes && graph->instantiated) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    struct sim_exec *exec = sim_object_new(SIM_EXEC, sizeof *exec, NULL);
    sim_graph_clone(graph, &exec->graph);
    exec->graph->is_child = 1;
    exec->flags = flags;
    exec->order = malloc((graph->node_count + 1) * sizeof(*exec->order));
    exec->count = sim_graph_order(exec->graph, exec->order);
    exec->bytes = bytes_of(graph);
    if (sim_context_current(&exec->context) != CUDA_SUCCESS) {
        exec->context = NULL;
    }
    int result = exec->count != graph->node_count ? CUDA_ERROR_INVALID_VALUE /* a cycle */
                                                  : take_nodes(exec);
    if (result != CUDA_SUCCESS) {
        sim_graph_free(exec->graph);
        free(exec->order);
        sim_object_delete(exec);
        return result;
    }
    if (graph->has_memory_nodes) {
        graph->instantiated = 1;
        exec->source = graph;
    }
    *out = exec;
    return CUDA_SUCCESS;
}

SIM_API(cuGraphInstantiate,
        (struct sim_exec * *out, struct sim_graph *graph, void **error, char *log, size_t size),
        (out, graph, error, log, size))
{
    (void)error, (void)log, (void)size;
    return instantiate(out, graph, 0);
}

SIM_API(cuGraphInstantiate_v2,
        (struct sim_exec * *out, struct sim_graph *graph, void **error, char *log, size_t size),
        (out, graph, error, log, size))
{
    (void)error, (void)log, (void)size;
    return instantiate(out, graph, 0);
}

SIM_API(cuGraphInstantiateWithFlags,
        (struct sim_exec * *out, struct sim_graph *graph, unsigned long long flags),
        (out, graph, flags))
{
    return instantiate(out, graph, flags);
}

struct instantiate_parameters { /* layout of CUDA_GRAPH_INSTANTIATE_PARAMS */
    uint64_t flags;
    void *stream;
    struct sim_node *error;
    int result;
};

SIM_API_PER_THREAD(cuGraphInstantiateWithParams, _ptsz,
                   (struct sim_exec * *out, struct sim_graph *graph,
                    struct instantiate_parameters *parameters),
                   (out, graph, parameters))
{
    if (parameters == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int result = instantiate(out, graph, parameters->flags);
    parameters->error = NULL;
    parameters->result = result != CUDA_SUCCESS;
    return result;
}

SIM_API(cuGraphExecDestroy, (struct sim_exec * handle), (handle))
{
    struct sim_exec *exec = sim_object_find(SIM_EXEC, handle);
    if (exec == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (sim_object_find(SIM_GRAPH, exec->source) != NULL) {
        exec->source->instantiated = 0;
    }
    struct sim_context *context = exec->context;
    if (context != NULL && context->graph_bytes >= exec->bytes) { /* else it was made again */
        context->graph_bytes -= exec->bytes;
    }
    sim_graph_free(exec->graph);
    free(exec->order);
    sim_object_delete(exec);
    return CUDA_SUCCESS;
}

SIM_API(cuGraphExecGetFlags, (struct sim_exec * handle, uint64_t *out), (handle, out))
{
    struct sim_exec *exec = sim_object_find(SIM_EXEC, handle);
    if (exec == NULL || out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = exec->flags;
    return CUDA_SUCCESS;
}

/* What an earlier launch left allocated is freed, or the launch is refused. */
static int
prepare_memory(struct sim_exec *exec)
{
    for (size_t i = 0; i < exec->count; i++) {
        if (exec->order[i]->operation.type != SIM_OP_ALLOC) {
            continue;
        }
        struct sim_region *region = sim_region_find(exec->order[i]->operation.memory.address);
        if (region->taken == 0) {
            continue;
        }
        if ((exec->flags & AUTO_FREE_ON_LAUNCH) == 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        sim_graph_memory_free(region);
    }
    return CUDA_SUCCESS;
}

static int
run(struct sim_graph *graph, struct sim_stream *stream)
{
    struct sim_node **order = malloc((graph->node_count + 1) * sizeof(*order));
    size_t count = sim_graph_order(graph, order);
    int result = CUDA_SUCCESS;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        const struct sim_operation *operation = &order[i]->operation;
        if (!order[i]->enabled) {
            continue;
        }
        result = operation->type == SIM_OP_GRAPH ? run(operation->child, stream)
                                                 : sim_operation_run(operation, stream);
    }
    free(order);
    return result;
}

SIM_API_PER_THREAD(cuGraphLaunch, _ptsz, (struct sim_exec * handle, void *stream_handle),
                   (handle, stream_handle))
{
    struct sim_exec *exec = sim_object_find(SIM_EXEC, handle);
    struct sim_stream *stream;
    int capturing;
    if (exec == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int result = sim_stream_find(stream_handle, &stream);
    if (result == CUDA_SUCCESS) {
        result = sim_capture_enqueue(stream, &capturing);
    }
    if (result == CUDA_SUCCESS && capturing) {
        struct sim_operation operation = {.type = SIM_OP_GRAPH};
        sim_graph_clone(exec->graph, &operation.child);
        operation.child->is_child = 1;
        return sim_capture_add(stream, &operation);
    }
    if (result == CUDA_SUCCESS) {
        result = prepare_memory(exec);
    }
    return result == CUDA_SUCCESS ? run(exec->graph, stream) : result;
}

/* The most memory that is allocated at once while the graph runs. */
static uint64_t
peak(struct sim_exec *exec)
{
    uint64_t now = 0, most = 0;
    for (size_t i = 0; i < exec->count; i++) {
        const struct sim_operation *operation = &exec->order[i]->operation;
        struct sim_region *region = NULL;
        if (operation->type == SIM_OP_ALLOC || operation->type == SIM_OP_FREE) {
            region = sim_region_find(operation->memory.address);
        }
        if (region != NULL && operation->type == SIM_OP_ALLOC) {
            now += region->taken == 0 ? sim_round(region->bytes) : 0;
        } else if (region != NULL) {
            now -= now < sim_round(region->bytes) ? now : sim_round(region->bytes);
        }
        most = now > most ? now : most;
    }
    return most;
}

/* Takes the memory that a launch in this stream will need. */
SIM_API_PER_THREAD(cuGraphUpload, _ptsz, (struct sim_exec * handle, void *stream_handle),
                   (handle, stream_handle))
{
    struct sim_exec *exec = sim_object_find(SIM_EXEC, handle);
    struct sim_stream *stream;
    if (exec == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int result = sim_stream_find(stream_handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return sim_graph_memory_reserve(stream->object.owner->device, peak(exec));
}

static struct sim_operation *
instance_of(struct sim_exec *handle, struct sim_node *node, enum sim_operation_type type)
{
    struct sim_exec *exec = sim_object_find(SIM_EXEC, handle);
    for (size_t i = 0; exec != NULL && i < exec->count; i++) {
        if (exec->order[i]->original == node && exec->order[i]->operation.type == type) {
            return &exec->order[i]->operation;
        }
    }
    return NULL;
}

SIM_API(cuGraphExecKernelNodeSetParams,
        (struct sim_exec * exec, struct sim_node *node, const struct sim_kernel_call *call),
        (exec, node, call))
{
    struct sim_operation *operation = instance_of(exec, node, SIM_OP_KERNEL);
    if (operation == NULL || call == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    operation->kernel = *call;
    return CUDA_SUCCESS;
}

SIM_API(cuGraphExecMemcpyNodeSetParams,
        (struct sim_exec * exec, struct sim_node *node, const struct sim_copy *copy, void *context),
        (exec, node, copy, context))
{
    struct sim_operation *operation = instance_of(exec, node, SIM_OP_COPY);
    (void)context;
    if (operation == NULL || copy == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    operation->copy = *copy;
    return CUDA_SUCCESS;
}

/* The same nodes in the same order, with other parameters; anything else is refused. */
static int
update(struct sim_exec *handle, struct sim_graph *graph, int *why)
{
    struct sim_exec *exec = sim_object_find(SIM_EXEC, handle);
    if (exec == NULL || sim_object_find(SIM_GRAPH, graph) == NULL) {
        *why = UPDATE_ERROR;
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_node *theirs = graph->first;
    *why = graph->node_count == exec->graph->node_count ? 0 : UPDATE_TOPOLOGY_CHANGED;
    for (struct sim_node *ours = exec->graph->first; ours != NULL && *why == 0; ours = ours->next) {
        if (ours->operation.type != theirs->operation.type) {
            *why = UPDATE_TYPE_CHANGED;
        } else if (ours->dependency_count != theirs->dependency_count) {
            *why = UPDATE_TOPOLOGY_CHANGED;
        }
        theirs = theirs->next;
    }
    if (*why != 0 || graph->has_memory_nodes) {
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
    theirs = graph->first;
    for (struct sim_node *ours = exec->graph->first; ours != NULL; ours = ours->next) {
        if (ours->operation.type != SIM_OP_GRAPH) {
            ours->operation = theirs->operation;
        }
        ours->original = theirs;
        theirs = theirs->next;
    }
    return CUDA_SUCCESS;
}

SIM_API(cuGraphExecUpdate,
        (struct sim_exec * exec, struct sim_graph *graph, struct sim_node **error, int *why),
        (exec, graph, error, why))
{
    int reason;
    int result = update(exec, graph, &reason);
    if (error != NULL) {
        *error = NULL;
    }
    if (why != NULL) {
        *why = reason;
    }
    return result;
}

struct update_result { /* layout of CUgraphExecUpdateResultInfo */
    int result;
    struct sim_node *error, *error_from;
};

SIM_API(cuGraphExecUpdate_v2,
        (struct sim_exec * exec, struct sim_graph *graph, struct update_result *out),
        (exec, graph, out))
{
    if (out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    out->error = out->error_from = NULL;
    return update(exec, graph, &out->result);
}
