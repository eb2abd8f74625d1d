/* What devices reserve for graphs, and what executable graphs take. */
#ifndef CGPU_CUDA_GRAPH_MEMORY_H
#define CGPU_CUDA_GRAPH_MEMORY_H

#include "entry/shim.h"

/*
 * An executable graph is destroyed: forget its nodes, which the holding NODES records. The driver
 * keeps their memory for further graphs.
 */
void cgpu_graph_forget_nodes(const struct cgpu_holding *nodes);

/* The next three: under the lock of graphs. */

/* An executable graph allocates memory: from now on follow what the devices reserve for graphs. */
void cgpu_graph_memory_follow(void);

/*
 * Charge what is reserved for graphs now. If that does not fit on a GPU, release what no running
 * graph uses. OUT_OF_MEMORY: LACK has the GPU, and by how much it did not fit.
 */
struct cgpu_graph_lack {
    int32_t gpu;
    uint64_t bytes;
};
CUresult cgpu_graph_memory_charge(struct cgpu_graph_lack *lack);

/* Charge what is reserved for graphs now, over the cap if it does not fit. */
void cgpu_graph_memory_force(void);

/* Release the graph memory of GPU that no running graph uses, then measure. */
void cgpu_graph_memory_trim(int32_t gpu);

/* Give back what is not reserved any more. */
void cgpu_graph_memory_collect(void);

#endif
