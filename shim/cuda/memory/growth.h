/* What a context grows by after it was made. */
#ifndef CGPU_CUDA_GROWTH_H
#define CGPU_CUDA_GROWTH_H

#include "entry/shim.h"
#include "memory/target.h"

/* The growths of a context: a limit that the program sets, or one of those below. */
enum cgpu_growth {
    CGPU_GROWTH_STACK = CU_LIMIT_STACK_SIZE,
    CGPU_GROWTH_NODES = 11,   /* takes nothing by itself; extra: nodes of executable graphs */
    CGPU_GROWTH_LIBRARY = 12, /* the driver's own code for printf, assert and malloc */
    CGPU_GROWTH_GRAPHS = 13,  /* what executable graphs took; the driver keeps it for others */
    CGPU_GROWTH_GREEN = 14,   /* what green contexts took; the driver keeps it for others */
    CGPU_GROWTH_LOCAL = 15,   /* local memory of functions beyond the stack limit's default */
    CGPU_GROWTH_HEAP = 16     /* the default heap, from the first launch that may call malloc */
};

/* The handle of the account of one growth of CONTEXT. Contexts are aligned, so handles differ. */
static inline uint64_t
cgpu_growth_handle(uint64_t context, int what)
{
    return context + (uint64_t)what;
}

/*
 * A function that needs BYTES of local memory per thread may be launched in TARGET from now on:
 * charge what TARGET's local memory buffer will grow by, unless it is charged already.
 */
CUresult cgpu_growth_local_memory(const struct cgpu_target *target, uint64_t bytes);

/*
 * Do the same in every context, also in those that come later, for a kernel that can be launched in
 * all.
 */
CUresult cgpu_growth_local_memory_everywhere(uint64_t bytes);

/*
 * Code that calls malloc may be launched in TARGET: charge its heap, unless it is charged already.
 */
CUresult cgpu_growth_heap(const struct cgpu_target *target, uint64_t *charged);
bool cgpu_growth_has_heap(uint64_t context);

/* Record BYTES, which were charged for WHAT of TARGET, until the context goes. */
CUresult cgpu_growth_keep(const struct cgpu_target *target, enum cgpu_growth what, uint64_t bytes);

/*
 * Add NODES to the nodes of TARGET's executable graphs; negative: remove them; 0: confirm those
 * that were added last. Returns how many bytes may still be charged: NODE_BYTES times the most
 * nodes that ever existed at once, less what was charged.
 */
uint64_t cgpu_growth_graphs(const struct cgpu_target *target, int64_t nodes, uint64_t node_bytes);

/*
 * Charge what LIMIT takes at VALUE, and set it. Call this under the lock of contexts, because two
 * threads may set limits of one context.
 */
CUresult cgpu_growth_limit(CUresult (*real)(int, size_t), int limit, size_t value,
                           const struct cgpu_target *target);

/*
 * Charge CONTEXT, which is new on GPU, for kernels that can be launched in every context. _locked:
 * the caller holds the lock of contexts.
 */
CUresult cgpu_growth_of_context(uint64_t context, int32_t gpu);
CUresult cgpu_growth_of_context_locked(uint64_t context, int32_t gpu);

#endif
