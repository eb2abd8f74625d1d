/* The kinds of memory, in the order in which they give memory back. */
#include "memory/kinds_table.h"
#include "memory/async_free.h"
#include "memory/graph_memory.h"
#include "memory/physical/physical.h"
#include "memory/pools/pool.h"

const struct cgpu_memory_kind cgpu_memory_kinds[] = {
    {.name = "freed in streams", .finish = cgpu_async_free_finish},
    {.name = "physical", .collect = cgpu_physical_collect},
    {
        .name = "pools",
        .collect = cgpu_pool_collect,
        .context_gone = cgpu_pool_context_gone,
        .trim = cgpu_pool_trim,
    },
    {.name = "graphs", .collect = cgpu_graph_memory_collect, .trim = cgpu_graph_memory_trim},
    {.name = NULL},
};
