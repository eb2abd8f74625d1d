/* Adding nodes to graphs, and their parameters. */
#include <string.h>

#include "sim.h"

struct alloc_parameters { /* layout of CUDA_MEM_ALLOC_NODE_PARAMS */
    uint8_t pool_properties[88];
    const void *access;
    size_t access_count, bytes;
    uint64_t address;
};

struct copy_parameters { /* layout of CUDA_MEMCPY_NODE_PARAMS */
    int flags, reserved;
    void *context;
    struct sim_copy copy;
};

struct node_parameters { /* layout of CUgraphNodeParams */
    uint32_t type;
    int reserved[3];
    union {
        struct sim_kernel_call kernel;
        struct copy_parameters copy;
        struct sim_fill fill;
        struct sim_host_call host;
        struct sim_graph *graph;
        struct sim_event *event;
        struct sim_wait_node wait;
        struct alloc_parameters alloc;
        uint64_t address;
        long long words[29];
    };
    long long reserved2;
};

static int
add(struct sim_node **out, struct sim_graph *handle, struct sim_node *const *dependencies,
    size_t count, const struct sim_operation *operation)
{
    struct sim_graph *graph = sim_object_find(SIM_GRAPH, handle);
    if (out == NULL || graph == NULL || (count > 0 && dependencies == NULL)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (graph->is_child && (operation->type == SIM_OP_ALLOC || operation->type == SIM_OP_FREE)) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    int result = sim_operation_check(operation);
    return result == CUDA_SUCCESS ? sim_graph_add(graph, dependencies, count, operation, out)
                                  : result;
}

#define WHERE                                                                                      \
    struct sim_node **out, struct sim_graph *graph, struct sim_node *const *dependencies,          \
        size_t count
#define PLACED out, graph, dependencies, count

static int
add_kernel(WHERE, const struct sim_kernel_call *call)
{
    if (call == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_operation operation = {.type = SIM_OP_KERNEL, .kernel = *call};
    return add(PLACED, &operation);
}

static int
add_child(WHERE, struct sim_graph *handle)
{
    struct sim_graph *child = sim_object_find(SIM_GRAPH, handle);
    struct sim_operation operation = {.type = SIM_OP_GRAPH};
    if (child == NULL || child == graph) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (child->has_memory_nodes) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    sim_graph_clone(child, &operation.child);
    operation.child->is_child = 1;
    int result = add(PLACED, &operation);
    if (result != CUDA_SUCCESS) {
        sim_graph_free(operation.child);
    }
    return result;
}

static int
add_event(WHERE, enum sim_operation_type type, struct sim_event *event)
{
    struct sim_operation operation = {.type = type, .event = event};
    if (sim_object_find(SIM_EVENT, event) == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    return add(PLACED, &operation);
}

static int
add_alloc(WHERE, struct alloc_parameters *parameters)
{
    uint32_t location[4]; /* type, handle types, location type, location id */
    struct sim_context *context;
    struct sim_operation operation = {.type = SIM_OP_ALLOC};
    int result = parameters == NULL ? CUDA_ERROR_INVALID_VALUE : sim_context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    memcpy(location, parameters->pool_properties, sizeof location);
    struct sim_device *device = sim_device((int)location[3]);
    if (location[0] != 1 || location[2] != 1 || device == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_context holder = {.device = device};
    result = sim_graph_memory_node(&holder, parameters->bytes, &operation);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    memcpy(operation.memory.pool_properties, parameters->pool_properties, 88);
    parameters->address = operation.memory.address;
    result = add(PLACED, &operation);
    if (result != CUDA_SUCCESS) {
        sim_graph_memory_release(operation.memory.address);
    }
    return result;
}

static int
add_free(WHERE, uint64_t address)
{
    struct sim_operation operation = {.type = SIM_OP_FREE, .memory = {.address = address}};
    struct sim_region *region = sim_region_find(address);
    if (region == NULL || region->base != address || region->kind != SIM_GRAPH_MEMORY) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return add(PLACED, &operation);
}

SIM_API(cuGraphAddKernelNode, (WHERE, const struct sim_kernel_call *call), (PLACED, call))
{
    return add_kernel(PLACED, call);
}

/* The second version names a kernel where the function is NULL, behind the first version's fields.
 */
static int
add_kernel_v2(WHERE, const struct sim_kernel_call *call)
{
    struct sim_kernel_call copy;
    if (call == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    copy = *call;
    if (copy.function == NULL) {
        memcpy(&copy.function, (const char *)call + sizeof copy, sizeof copy.function);
    }
    return add_kernel(PLACED, &copy);
}

SIM_API(cuGraphAddKernelNode_v2, (WHERE, const struct sim_kernel_call *call), (PLACED, call))
{
    return add_kernel_v2(PLACED, call);
}

SIM_API(cuGraphAddMemcpyNode, (WHERE, const struct sim_copy *copy, void *context),
        (PLACED, copy, context))
{
    (void)context;
    if (copy == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_operation operation = {.type = SIM_OP_COPY, .copy = *copy};
    return add(PLACED, &operation);
}

SIM_API(cuGraphAddMemsetNode, (WHERE, const struct sim_fill *fill, void *context),
        (PLACED, fill, context))
{
    (void)context;
    if (fill == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_operation operation = {.type = SIM_OP_FILL, .fill = *fill};
    return add(PLACED, &operation);
}

SIM_API(cuGraphAddHostNode, (WHERE, const struct sim_host_call *call), (PLACED, call))
{
    if (call == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_operation operation = {.type = SIM_OP_HOST, .host = *call};
    return add(PLACED, &operation);
}

SIM_API(cuGraphAddEmptyNode, (WHERE), (PLACED))
{
    struct sim_operation operation = {.type = SIM_OP_EMPTY};
    return add(PLACED, &operation);
}

SIM_API(cuGraphAddChildGraphNode, (WHERE, struct sim_graph *child), (PLACED, child))
{
    return add_child(PLACED, child);
}

SIM_API(cuGraphAddEventRecordNode, (WHERE, struct sim_event *event), (PLACED, event))
{
    return add_event(PLACED, SIM_OP_RECORD_EVENT, event);
}

SIM_API(cuGraphAddEventWaitNode, (WHERE, struct sim_event *event), (PLACED, event))
{
    return add_event(PLACED, SIM_OP_WAIT_EVENT, event);
}

SIM_API(cuGraphAddMemAllocNode, (WHERE, struct alloc_parameters *parameters), (PLACED, parameters))
{
    return add_alloc(PLACED, parameters);
}

SIM_API(cuGraphAddMemFreeNode, (WHERE, uint64_t address), (PLACED, address))
{
    return add_free(PLACED, address);
}

static int
add_newer(WHERE, struct alloc_parameters *parameters)
{
    int result = add_alloc(PLACED, parameters);
    if (result == CUDA_SUCCESS) {
        (*out)->is_newer = 1;
    }
    return result;
}

static int
add_any(WHERE, struct node_parameters *parameters)
{
    struct sim_operation operation = {.type = SIM_OP_EMPTY};
    if (parameters == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    operation.type = (enum sim_operation_type)parameters->type;
    switch (parameters->type) {
    case SIM_OP_KERNEL:
        return add_kernel_v2(PLACED, &parameters->kernel);
    case SIM_OP_COPY:
        operation.copy = parameters->copy.copy;
        break;
    case SIM_OP_FILL:
        operation.fill = parameters->fill;
        break;
    case SIM_OP_HOST:
        operation.host = parameters->host;
        break;
    case SIM_OP_GRAPH:
        return add_child(PLACED, parameters->graph);
    case SIM_OP_EMPTY:
        break;
    case SIM_OP_WAIT_EVENT:
    case SIM_OP_RECORD_EVENT:
        return add_event(PLACED, operation.type, parameters->event);
    case SIM_OP_AWAIT_SEMAPHORE:
        return sim_graph_add_wait(PLACED, &parameters->wait);
    case SIM_OP_ALLOC:
        return add_alloc(PLACED, &parameters->alloc);
    case SIM_OP_FREE:
        return add_free(PLACED, parameters->address);
    case SIM_OP_NEWER:
        return add_newer(PLACED, &parameters->alloc);
    default:
        sim_log("graph nodes of type %u are not simulated", parameters->type);
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return add(PLACED, &operation);
}

SIM_API(cuGraphAddNode, (WHERE, struct node_parameters *parameters), (PLACED, parameters))
{
    return add_any(PLACED, parameters);
}

static int
add_any_v2(WHERE, const void *edges, struct node_parameters *parameters)
{
    if (edges != NULL) {
        sim_log("data on the edges of graphs is not simulated");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return add_any(PLACED, parameters);
}

SIM_API(cuGraphAddNode_v2,
        (struct sim_node * *out, struct sim_graph *graph, struct sim_node *const *dependencies,
         const void *edges, size_t count, struct node_parameters *parameters),
        (out, graph, dependencies, edges, count, parameters))
{
    return add_any_v2(PLACED, edges, parameters);
}

/* Of CUDA 13.4: as the second, but for a kernel's context. */
SIM_API(cuGraphAddNode_v3,
        (struct sim_node * *out, struct sim_graph *graph, struct sim_node *const *dependencies,
         const void *edges, size_t count, struct node_parameters *parameters),
        (out, graph, dependencies, edges, count, parameters))
{
    return add_any_v2(PLACED, edges, parameters);
}

static struct sim_operation *
parameters_of(struct sim_node *handle, enum sim_operation_type type)
{
    struct sim_node *node = sim_object_find(SIM_NODE, handle);
    return node != NULL && node->operation.type == type ? &node->operation : NULL;
}

SIM_API(cuGraphKernelNodeGetParams, (struct sim_node * node, struct sim_kernel_call *out),
        (node, out))
{
    struct sim_operation *operation = parameters_of(node, SIM_OP_KERNEL);
    if (operation == NULL || out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = operation->kernel;
    return CUDA_SUCCESS;
}

SIM_API(cuGraphKernelNodeSetParams, (struct sim_node * node, const struct sim_kernel_call *call),
        (node, call))
{
    struct sim_operation *operation = parameters_of(node, SIM_OP_KERNEL);
    if (operation == NULL || call == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    operation->kernel = *call;
    return CUDA_SUCCESS;
}

SIM_API(cuGraphMemcpyNodeGetParams, (struct sim_node * node, struct sim_copy *out), (node, out))
{
    struct sim_operation *operation = parameters_of(node, SIM_OP_COPY);
    if (operation == NULL || out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = operation->copy;
    return CUDA_SUCCESS;
}

SIM_API(cuGraphMemsetNodeGetParams, (struct sim_node * node, struct sim_fill *out), (node, out))
{
    struct sim_operation *operation = parameters_of(node, SIM_OP_FILL);
    if (operation == NULL || out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = operation->fill;
    return CUDA_SUCCESS;
}

SIM_API(cuGraphMemAllocNodeGetParams, (struct sim_node * node, struct alloc_parameters *out),
        (node, out))
{
    struct sim_operation *operation = parameters_of(node, SIM_OP_ALLOC);
    if (operation == NULL || out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memset(out, 0, sizeof *out);
    memcpy(out->pool_properties, operation->memory.pool_properties, 88);
    out->bytes = operation->memory.bytes;
    out->address = operation->memory.address;
    return CUDA_SUCCESS;
}

SIM_API(cuGraphMemFreeNodeGetParams, (struct sim_node * node, uint64_t *out), (node, out))
{
    struct sim_operation *operation = parameters_of(node, SIM_OP_FREE);
    if (operation == NULL || out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = operation->memory.address;
    return CUDA_SUCCESS;
}
