/*
 * How executable graphs are made: what they take, and which of them allocate memory.
 *
 * The driver takes memory for the nodes when a graph is instantiated. That is measured like a load
 * of code (code.c). When the graph is destroyed, the driver keeps this memory for further graphs,
 * so it stays charged until the context goes. The charge is at most NODE_BYTES times the most nodes
 * that existed at once, so what others allocate during many instantiations does not add up.
 *
 * Graphs that allocate memory are recognised by their nodes; how graphs are built is not followed.
 * graph.c launches them.
 */
#include <sys/mman.h>

#include "entry/shim.h"
#include "memory/account.h"
#include "memory/charge.h"
#include "memory/code/code.h"
#include "memory/graph_memory.h"
#include "memory/growth.h"
#include "memory/target.h"

/*
 * The most that an executable graph takes, by `make gpu-check`: on an H200 115 KiB for each node
 * that waits for no other, and 3 KiB for each node of a chain.
 */
enum { NODE_BYTES = 128 << 10, CHAINED_BYTES = 4 << 10, NODES_UNSEEN = 1024 };
enum { MAX_DEPTH = 16, LAST_OF_WORK = 2 /* node types: kernels, copies, fills */ };

static struct cgpu_kinds *
kinds(void)
{
    return &cgpu_state->kinds;
}

/*
 * What is known of a graph and the graphs in it. BRANCHES: the nodes outside chains. They do not
 * follow exactly one node, or several nodes follow them.
 *
 * Nothing can be read of nodes that are newer than cgpu, nor of the graphs in conditional nodes. So
 * both are assumed to allocate, and to have many nodes. There may be many newer ones, and each
 * takes little, so their nodes do not count as branches.
 */
struct content {
    uint64_t nodes, branches; /* kernels, copies and fills */
    bool allocates;
};

static void count(CUgraph graph, unsigned int depth, struct content *content);

static bool
is_in_a_chain(CUgraphNode node)
{
    size_t before = 2;
    size_t after = 2;
    return cgpu_real.cuGraphNodeGetDependencies(node, NULL, &before) == CUDA_SUCCESS &&
           cgpu_real.cuGraphNodeGetDependentNodes(node, NULL, &after) == CUDA_SUCCESS &&
           before == 1 && after <= 1;
}

/* Count a node whose content cannot be read: rather too much than too little. */
static void
count_unseen(uint64_t nodes, uint64_t branches, struct content *content)
{
    content->nodes += nodes;
    content->branches += branches;
    content->allocates = true;
}

static void
count_child(CUgraphNode node, unsigned int depth, struct content *content)
{
    CUgraph child;
    if (cgpu_real.cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS) {
        count(child, depth + 1, content);
    } else {
        count_unseen(NODES_UNSEEN, NODES_UNSEEN, content);
    }
}

static void
count_node(CUgraphNode node, unsigned int depth, struct content *content)
{
    int type;
    if (cgpu_real.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS || type < 0 ||
        type > CU_NODE_CONDITIONAL) {
        count_unseen(NODES_UNSEEN, 1, content);
    } else if (type == CU_NODE_CONDITIONAL) {
        count_unseen(NODES_UNSEEN, NODES_UNSEEN, content);
    } else if (type <= LAST_OF_WORK) {
        content->nodes += 1;
        content->branches += !is_in_a_chain(node);
    } else if (type == CU_NODE_GRAPH) {
        count_child(node, depth, content);
    } else {
        content->allocates |= type == CU_NODE_MEM_ALLOC;
    }
}

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
        count_unseen(nodes + NODES_UNSEEN, nodes + NODES_UNSEEN, content);
        return;
    }
    if (cgpu_real.cuGraphGetNodes(graph, list, &nodes) == CUDA_SUCCESS) {
        for (size_t i = 0; i < nodes; i++) {
            count_node(list[i], depth, content);
        }
    }
    munmap(list, bytes);
}

/*
 * Begin to charge graph memory. This includes what graphs took before the first graph that
 * allocates was known.
 */
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

/* Record that EXEC allocates memory when it is launched. */
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
        status = cgpu_account_hold(&holding);
    }
    if (status == CUDA_SUCCESS) {
        /*
         * release: pairs with the acquire of a thread that launches EXEC, which this thread gave to
         * it
         */
        __atomic_add_fetch(&kinds()->memory_execs, 1, __ATOMIC_RELEASE);
    }
    return status;
}

/* One instantiation. The driver takes memory for the nodes, and keeps it for further graphs. */
struct instantiation {
    struct content content;
    struct cgpu_target target; /* the current context, which pays */
    struct cgpu_code code;
    bool counted;  /* there is one */
    bool measured; /* the nodes may take something */
};

static void
forget(const struct instantiation *made)
{
    cgpu_growth_graphs(&made->target, -(int64_t)made->content.nodes, NODE_BYTES);
}

/* Refuse a graph that would not fit before it is made: the driver would keep what it took. */
static CUresult
see_room(const struct instantiation *made, uint64_t bound)
{
    uint64_t charged;
    uint64_t needs = made->content.branches * NODE_BYTES + made->content.nodes * CHAINED_BYTES;
    CUresult status = cgpu_charge(made->target.gpu, needs < bound ? needs : bound, &charged);
    if (status == CUDA_SUCCESS) {
        cgpu_account_release(made->target.gpu, charged);
    }
    return status;
}

static CUresult
begin(struct instantiation *made, CUgraph graph)
{
    *made = (struct instantiation){.content.nodes = 0};
    if (!cgpu_state_is_attached()) {
        return CUDA_SUCCESS;
    }
    count(graph, 0, &made->content);
    if (cgpu_target_current(&made->target) != CUDA_SUCCESS || made->target.gpu < 0) {
        return CUDA_SUCCESS;
    }
    uint64_t bound = cgpu_growth_graphs(&made->target, (int64_t)made->content.nodes, NODE_BYTES);
    bound -= bound % CGPU_BLOCK_BYTES; /* the first few lie in what the context took */
    CUresult status = bound != 0 ? see_room(made, bound) : CUDA_SUCCESS;
    made->counted = status == CUDA_SUCCESS;
    if (status != CUDA_SUCCESS) {
        forget(made);
    } else if (bound != 0) {
        made->measured = cgpu_code_begin_plain(&made->code, bound) == CUDA_SUCCESS;
    }
    return status;
}

/* Record how many nodes EXEC has. If that cannot be recorded, they count until the context goes. */
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
    (void)cgpu_account_hold(&holding);
    cgpu_growth_graphs(&made->target, 0, NODE_BYTES);
}

/* Charge and record the graph, or forget it. STATUS is the driver's answer. */
static CUresult
end(struct instantiation *made, CUresult status, const CUgraphExec *exec)
{
    if (status != CUDA_SUCCESS) {
        if (made->measured) {
            cgpu_code_cancel(&made->code);
        }
        if (made->counted) {
            forget(made);
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
cgpu_graph_forget_nodes(const struct cgpu_holding *nodes)
{
    struct cgpu_target target = {.gpu = (int32_t)nodes->gpu, .owner = nodes->owner};
    cgpu_growth_graphs(&target, -(int64_t)nodes->extra, NODE_BYTES);
}

CUresult
cgpu_graph_instantiate_v1(CUresult (*real)(CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t),
                          CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log,
                          size_t size)
{
    struct instantiation made;
    if (exec == NULL) {
        return real(NULL, graph, error, log, size);
    }
    CUresult status = begin(&made, graph);
    return status != CUDA_SUCCESS ? status : end(&made, real(exec, graph, error, log, size), exec);
}

CUresult
cgpu_graph_instantiate(CUresult (*real)(CUgraphExec *, CUgraph, uint64_t), CUgraphExec *exec,
                       CUgraph graph, uint64_t flags)
{
    struct instantiation made;
    if (exec == NULL) {
        return real(NULL, graph, flags);
    }
    CUresult status = begin(&made, graph);
    return status != CUDA_SUCCESS ? status : end(&made, real(exec, graph, flags), exec);
}

CUresult
cgpu_graph_instantiate_with(CUresult (*real)(CUgraphExec *, CUgraph, void *), CUgraphExec *exec,
                            CUgraph graph, void *parameters)
{
    struct instantiation made;
    if (exec == NULL) {
        return real(NULL, graph, parameters);
    }
    CUresult status = begin(&made, graph);
    return status != CUDA_SUCCESS ? status : end(&made, real(exec, graph, parameters), exec);
}
