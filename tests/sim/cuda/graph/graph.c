/* Graphs: nodes, their dependencies, and how to make, walk and copy them. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

struct sim_graph *
sim_graph_new(void)
{
    return sim_object_new(SIM_GRAPH, sizeof(struct sim_graph), NULL);
}

static void
free_node(struct sim_node *node)
{
    if (node->operation.type == SIM_OP_ALLOC) {
        sim_graph_memory_release(node->operation.memory.address);
    }
    if (node->operation.type == SIM_OP_GRAPH) {
        sim_graph_free(node->operation.child);
    }
    free(node->dependencies);
    sim_object_delete(node);
}

void
sim_graph_free(struct sim_graph *graph)
{
    for (struct sim_node *node = graph->first, *next; node != NULL; node = next) {
        next = node->next;
        free_node(node);
    }
    sim_object_delete(graph);
}

int
sim_graph_add(struct sim_graph *graph, struct sim_node *const *dependencies, size_t count,
              const struct sim_operation *operation, struct sim_node **out)
{
    for (size_t i = 0; i < count; i++) {
        struct sim_node *node = sim_object_find(SIM_NODE, dependencies[i]);
        if (node == NULL || node->graph != graph) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    struct sim_node *node = sim_object_new(SIM_NODE, sizeof *node, NULL);
    node->graph = graph;
    node->operation = *operation;
    node->enabled = 1;
    node->dependency_count = count;
    node->dependencies = malloc((count + 1) * sizeof(*node->dependencies));
    memcpy(node->dependencies, dependencies, count * sizeof(*node->dependencies));
    if (graph->last == NULL) {
        graph->first = node;
    } else {
        graph->last->next = node;
    }
    graph->last = node;
    graph->node_count++;
    graph->has_memory_nodes |= operation->type == SIM_OP_ALLOC || operation->type == SIM_OP_FREE;
    *out = node;
    return CUDA_SUCCESS;
}

static struct sim_node *
copy_of(struct sim_graph *clone, const struct sim_node *original)
{
    struct sim_node *node = clone->first;
    while (node != NULL && node->original != original) {
        node = node->next;
    }
    return node;
}

/* The copy's nodes remember what they were copied from. */
int
sim_graph_clone(struct sim_graph *graph, struct sim_graph **out)
{
    struct sim_graph *clone = sim_graph_new();
    struct sim_node *copy;
    for (struct sim_node *node = graph->first; node != NULL; node = node->next) {
        struct sim_operation operation = node->operation;
        if (operation.type == SIM_OP_GRAPH) {
            sim_graph_clone(node->operation.child, &operation.child);
            operation.child->is_child = 1;
        }
        if (operation.type == SIM_OP_ALLOC) {
            sim_graph_memory_retain(operation.memory.address);
        }
        sim_graph_add(clone, NULL, 0, &operation, &copy);
        copy->original = node;
        copy->is_newer = node->is_newer;
        copy->enabled = node->enabled;
    }
    for (struct sim_node *node = graph->first; node != NULL; node = node->next) {
        copy = copy_of(clone, node);
        free(copy->dependencies);
        copy->dependency_count = node->dependency_count;
        copy->dependencies = malloc((node->dependency_count + 1) * sizeof(*copy->dependencies));
        for (size_t i = 0; i < node->dependency_count; i++) {
            copy->dependencies[i] = copy_of(clone, node->dependencies[i]);
        }
    }
    *out = clone;
    return CUDA_SUCCESS;
}

static int
is_ready(const struct sim_node *node, uint64_t mark)
{
    for (size_t i = 0; i < node->dependency_count; i++) {
        if (node->dependencies[i]->mark != mark) {
            return 0;
        }
    }
    return node->mark != mark;
}

/* Nodes such that each follows its dependencies; fewer than all of them if there is a cycle. */
size_t
sim_graph_order(struct sim_graph *graph, struct sim_node **out)
{
    static uint64_t mark;
    size_t count = 0, before;
    mark++;
    do {
        before = count;
        for (struct sim_node *node = graph->first; node != NULL; node = node->next) {
            if (is_ready(node, mark)) {
                node->mark = mark;
                out[count++] = node;
            }
        }
    } while (count > before);
    return count;
}

SIM_API(cuGraphCreate, (struct sim_graph * *out, unsigned flags), (out, flags))
{
    if (out == NULL || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = sim_graph_new();
    return CUDA_SUCCESS;
}

SIM_API(cuGraphDestroy, (struct sim_graph * handle), (handle))
{
    struct sim_graph *graph = sim_object_find(SIM_GRAPH, handle);
    if (graph == NULL || graph->is_child) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    sim_graph_free(graph);
    return CUDA_SUCCESS;
}

SIM_API(cuGraphClone, (struct sim_graph * *out, struct sim_graph *handle), (out, handle))
{
    struct sim_graph *graph = sim_object_find(SIM_GRAPH, handle);
    if (out == NULL || graph == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return graph->has_memory_nodes ? CUDA_ERROR_NOT_SUPPORTED : sim_graph_clone(graph, out);
}

SIM_API(cuGraphNodeFindInClone,
        (struct sim_node * *out, struct sim_node *original, struct sim_graph *clone),
        (out, original, clone))
{
    if (out == NULL || sim_object_find(SIM_GRAPH, clone) == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = copy_of(clone, original);
    return *out == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

SIM_API(cuGraphDestroyNode, (struct sim_node * handle), (handle))
{
    struct sim_node *node = sim_object_find(SIM_NODE, handle);
    if (node == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (node->graph->has_memory_nodes) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    struct sim_graph *graph = node->graph;
    struct sim_node *previous = NULL;
    for (struct sim_node *i = graph->first; i != NULL; i = i->next) {
        previous = i->next == node ? i : previous;
        size_t kept = 0;
        for (size_t d = 0; d < i->dependency_count; d++) {
            if (i->dependencies[d] != node) {
                i->dependencies[kept++] = i->dependencies[d];
            }
        }
        i->dependency_count = kept;
    }
    if (previous == NULL) {
        graph->first = node->next;
    } else {
        previous->next = node->next;
    }
    graph->last = graph->last == node ? previous : graph->last;
    graph->node_count--;
    free_node(node);
    return CUDA_SUCCESS;
}

/* Arrays are filled up to the count given; without an array, the count is the answer. */
struct list {
    struct sim_node **nodes, **others;
    size_t capacity, count;
};

static void
list_add(struct list *list, struct sim_node *node, struct sim_node *other)
{
    if (list->nodes != NULL && list->count < list->capacity) {
        list->nodes[list->count] = node;
        if (list->others != NULL) {
            list->others[list->count] = other;
        }
    }
    list->count++;
}

static int
list_end(struct list *list, size_t *count)
{
    if (list->nodes != NULL) {
        for (size_t i = list->count; i < list->capacity; i++) {
            list->nodes[i] = NULL;
        }
    }
    *count = list->nodes != NULL && list->count > list->capacity ? list->capacity : list->count;
    return CUDA_SUCCESS;
}

static int
list_nodes(struct sim_graph *handle, struct sim_node **nodes, size_t *count, int roots_only)
{
    struct sim_graph *graph = sim_object_find(SIM_GRAPH, handle);
    if (graph == NULL || count == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct list list = {nodes, NULL, *count, 0};
    for (struct sim_node *node = graph->first; node != NULL; node = node->next) {
        if (!roots_only || node->dependency_count == 0) {
            list_add(&list, node, NULL);
        }
    }
    return list_end(&list, count);
}

SIM_API(cuGraphGetNodes, (struct sim_graph * graph, struct sim_node **nodes, size_t *count),
        (graph, nodes, count))
{
    return list_nodes(graph, nodes, count, 0);
}

SIM_API(cuGraphGetRootNodes, (struct sim_graph * graph, struct sim_node **nodes, size_t *count),
        (graph, nodes, count))
{
    return list_nodes(graph, nodes, count, 1);
}

SIM_API(cuGraphGetEdges,
        (struct sim_graph * handle, struct sim_node **from, struct sim_node **to, size_t *count),
        (handle, from, to, count))
{
    struct sim_graph *graph = sim_object_find(SIM_GRAPH, handle);
    if (graph == NULL || count == NULL || (from == NULL) != (to == NULL)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct list list = {from, to, *count, 0};
    for (struct sim_node *node = graph->first; node != NULL; node = node->next) {
        for (size_t i = 0; i < node->dependency_count; i++) {
            list_add(&list, node->dependencies[i], node);
        }
    }
    return list_end(&list, count);
}

SIM_API(cuGraphNodeGetDependencies,
        (struct sim_node * handle, struct sim_node **out, size_t *count), (handle, out, count))
{
    struct sim_node *node = sim_object_find(SIM_NODE, handle);
    if (node == NULL || count == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct list list = {out, NULL, *count, 0};
    for (size_t i = 0; i < node->dependency_count; i++) {
        list_add(&list, node->dependencies[i], NULL);
    }
    return list_end(&list, count);
}

SIM_API(cuGraphNodeGetDependentNodes,
        (struct sim_node * handle, struct sim_node **out, size_t *count), (handle, out, count))
{
    struct sim_node *node = sim_object_find(SIM_NODE, handle);
    if (node == NULL || count == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct list list = {out, NULL, *count, 0};
    for (struct sim_node *i = node->graph->first; i != NULL; i = i->next) {
        for (size_t d = 0; d < i->dependency_count; d++) {
            if (i->dependencies[d] == node) {
                list_add(&list, i, NULL);
            }
        }
    }
    return list_end(&list, count);
}

SIM_API(cuGraphNodeGetType, (struct sim_node * handle, unsigned *out), (handle, out))
{
    struct sim_node *node = sim_object_find(SIM_NODE, handle);
    if (node == NULL || out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = node->is_newer ? SIM_OP_NEWER : node->operation.type;
    return CUDA_SUCCESS;
}

SIM_API(cuGraphAddDependencies,
        (struct sim_graph * graph, struct sim_node *const *from, struct sim_node *const *to,
         size_t count),
        (graph, from, to, count))
{
    for (size_t i = 0; i < count; i++) {
        struct sim_node *node = sim_object_find(SIM_NODE, to[i]);
        if (node == NULL || node->graph != graph || sim_object_find(SIM_NODE, from[i]) == NULL) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        size_t size = (node->dependency_count + 1) * sizeof(*node->dependencies);
        node->dependencies = realloc(node->dependencies, size);
        node->dependencies[node->dependency_count++] = from[i];
    }
    return CUDA_SUCCESS;
}
