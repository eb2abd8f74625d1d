/*
 * Executable graphs are made: what they take, and which of them allocate memory.
 *
 * The driver takes memory for the nodes when a graph is instantiated. That is measured as a load of
 * code is (code.c). The driver keeps it for further graphs when this one is destroyed, so it is
 * charged until the context goes. All that is charged is at most what the nodes can take that there
 * were at a time: what others allocate meanwhile does not add up.
 *
 * Graphs that allocate memory are recognised by their nodes; how graphs are built is not tracked.
 * What becomes of them is in graph.c.
 */
#include <sys/mman.h>

#include "entry/shim.h"
#include "memory/charge.h"
#include "memory/code/code.h"
#include "memory/graph_memory.h"
#include "memory/growth.h"
#include "memory/target.h"

/*
 * What an executable graph takes at most, by `make gpu-check`: on an H200 115 KiB for each node
 * that waits for no other, and 3 KiB for each node of a chain.
 */
enum { NODE_BYTES = 128 << 10, NODES_UNSEEN = 1024 };
enum { MAX_DEPTH = 16 };

static struct cgpu_kinds *
kinds(void)
{
    return &cgpu_state->kinds;
}

/*
 * What is known of a graph and the graphs in it.
 *
 * Conditional nodes do not show their graphs. So they are assumed to allocate, and to have many
 * nodes.
 */
struct content {
    uint64_t nodes;
    bool allocates;
};

static void count(CUgraph graph, unsigned int depth, struct content *content);

static void
count_node(CUgraphNode node, unsigned int depth, struct content *content)
{
    int type = -1;
    CUgraph child = NULL;
    content->nodes += 1;
    if (cgpu_real.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS) {
        return;
    }
    if (type == CU_NODE_GRAPH &&
        cgpu_real.cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS) {
        count(child, depth + 1, content);
    }
    content->nodes += type == CU_NODE_CONDITIONAL ? NODES_UNSEEN : 0;
    content->allocates |= type == CU_NODE_MEM_ALLOC || type == CU_NODE_CONDITIONAL;
}

/* What cannot be found out is assumed to be more. */
static void
count(CUgraph graph, unsigned int depth, struct content *content)
{
    size_t nodes = 0;
    if (cgpu_real.cuGraphGetNodes(graph, NULL, &nodes) != CUDA_SUCCESS || nodes == 0) {
        return;
    }
    size_t bytes = nodes * sizeof(CUgraphNode);
    CUgraphNode *list = MAP_FAILED;
    if (depth <= MAX_DEPTH) {
        list = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    if (list == MAP_FAILED) {
        content->nodes += nodes + NODES_UNSEEN;
        content->allocates = true;
        return;
    }
    if (cgpu_real.cuGraphGetNodes(graph, list, &nodes) == CUDA_SUCCESS) {
        for (size_t i = 0; i < nodes; i++) {
            count_node(list[i], depth, content);
        }
    }
    munmap(list, bytes);
}

/* Charge what graphs took before this process was known to have any with memory. */
static CUresult
begin_to_follow(void)
{
    struct cgpu_graph_lack lack;
    pthread_mutex_lock(&kinds()->graph_turns);
    pthread_mutex_lock(&kinds()->graphs);
    cgpu_graph_memory_follow();
    CUresult status = cgpu_graph_memory_charge(&lack);
    pthread_mutex_unlock(&kinds()->graphs);
    pthread_mutex_unlock(&kinds()->graph_turns);
    if (status != CUDA_SUCCESS) {
        cgpu_log_memory(lack.gpu, lack.bytes);
    }
    return status;
}

/* EXEC allocates memory when it is launched. */
static CUresult
follow(CUgraphExec exec)
{
    struct cgpu_holding holding = {
        .handle = (uint64_t)(uintptr_t)exec,
        .extra = UINT64_MAX, /* it is uploaded for no stream yet */
        .kind = CGPU_KIND_EXEC,
    };
    CUresult status = begin_to_follow();
    if (status == CUDA_SUCCESS) {
        status = cgpu_charge_hold(&holding);
    }
    if (status == CUDA_SUCCESS) {
        /* release: pairs with the load of whoever launches EXEC, which it got from this thread. */
        __atomic_add_fetch(&kinds()->memory_execs, 1, __ATOMIC_RELEASE);
    }
    return status;
}

/* An instantiation: the driver takes memory for the nodes, and keeps it for further graphs. */
struct instantiation {
    struct content content;
    struct cgpu_target target; /* the current context, which pays */
    struct cgpu_code code;
    bool counted;  /* there is one */
    bool measured; /* the nodes may take something */
};

static void
begin(struct instantiation *made, CUgraph graph)
{
    *made = (struct instantiation){.content.nodes = 0};
    if (!cgpu_state_is_attached()) {
        return;
    }
    count(graph, 0, &made->content);
    if (cgpu_target_current(&made->target) == CUDA_SUCCESS && made->target.gpu >= 0) {
        made->counted = true;
        uint64_t bound =
            cgpu_growth_graphs(&made->target, (int64_t)made->content.nodes, NODE_BYTES);
        bound -= bound % CGPU_BLOCK_BYTES; /* the first few lie in what the context took */
        made->measured = bound != 0 && cgpu_code_begin(&made->code, bound) == CUDA_SUCCESS;
    }
}

/* Record how many nodes EXEC has, or forget them if there is no room for that. */
static void
note_nodes(const struct instantiation *made, CUgraphExec exec)
{
    struct cgpu_holding holding = {
        .handle = (uint64_t)(uintptr_t)exec,
        .owner = made->target.owner,
        .extra = made->content.nodes,
        .kind = CGPU_KIND_EXEC_NODES,
        .gpu = (uint32_t)made->target.gpu,
    };
    (void)cgpu_charge_hold(&holding);
}

/* STATUS is the driver's answer. */
static CUresult
end(struct instantiation *made, CUresult status, const CUgraphExec *exec)
{
    if (status != CUDA_SUCCESS) {
        if (made->measured) {
            cgpu_code_cancel(&made->code);
        }
        if (made->counted) {
            cgpu_growth_graphs(&made->target, -(int64_t)made->content.nodes, NODE_BYTES);
        }
        return status;
    }
    if (made->counted) {
        note_nodes(made, *exec);
    }
    if (made->measured) {
        uint64_t account = cgpu_growth_handle(made->code.owner, CGPU_GROWTH_GRAPHS);
        status = cgpu_code_end_loaded(&made->code, CGPU_KIND_GROWTH, account);
    }
    if (status == CUDA_SUCCESS && made->content.allocates) {
        status = follow(*exec);
    }
    if (status != CUDA_SUCCESS) {
        cgpu_graph_destroy_exec(cgpu_real.cuGraphExecDestroy, *exec);
    }
    return status;
}

void
cgpu_graph_forget_nodes(CUgraphExec exec)
{
    struct cgpu_holding nodes;
    if (cgpu_charge_take(CGPU_KIND_EXEC_NODES, (uint64_t)(uintptr_t)exec, &nodes)) {
        struct cgpu_target target = {.gpu = (int32_t)nodes.gpu, .owner = nodes.owner};
        cgpu_growth_graphs(&target, -(int64_t)nodes.extra, NODE_BYTES);
    }
}

CUresult
cgpu_graph_instantiate_v1(CUresult (*real)(CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t),
                          CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log,
                          size_t size)
{
    struct instantiation made;
    begin(&made, graph);
    return end(&made, real(exec, graph, error, log, size), exec);
}

CUresult
cgpu_graph_instantiate(CUresult (*real)(CUgraphExec *, CUgraph, uint64_t), CUgraphExec *exec,
                       CUgraph graph, uint64_t flags)
{
    struct instantiation made;
    begin(&made, graph);
    return end(&made, real(exec, graph, flags), exec);
}

CUresult
cgpu_graph_instantiate_with(CUresult (*real)(CUgraphExec *, CUgraph, void *), CUgraphExec *exec,
                            CUgraph graph, void *parameters)
{
    struct instantiation made;
    begin(&made, graph);
    return end(&made, real(exec, graph, parameters), exec);
}
