/*
 * Before this process is refused: give back what is charged but no longer held, or held only for
 * reuse.
 *
 * Each step takes one kind's lock and drops it again. Nothing that is in use is given back: the
 * driver itself releases only idle reserves.
 */
#include "memory/reclaim.h"
#include "entry/shim.h"
#include "ledger/slot.h"
#include "memory/async_free.h"
#include "memory/graph_memory.h"
#include "memory/physical.h"
#include "memory/pool.h"

static void
measure_pools(void)
{
    pthread_mutex_lock(&cgpu_state->kinds.pools);
    cgpu_pool_measure_all();
    pthread_mutex_unlock(&cgpu_state->kinds.pools);
}

void
cgpu_reclaim_collect(void)
{
    struct cgpu_kinds *kinds = &cgpu_state->kinds;
    if (cgpu_kinds_look(&kinds->lingering) != 0) {
        cgpu_physical_collect();
    }
    if (cgpu_kinds_look(&kinds->may_shrink) != 0) {
        measure_pools();
    }
    if (cgpu_kinds_look(&kinds->graph_memory) != 0) {
        cgpu_graph_memory_collect();
    }
}

void
cgpu_reclaim_context_gone(void)
{
    if (cgpu_state_is_attached() && cgpu_kinds_look(&cgpu_state->kinds.pool_bound) != 0) {
        measure_pools();
    }
    cgpu_reclaim_collect();
}

bool
cgpu_reclaim(int32_t gpu, uint64_t bytes)
{
    uint64_t room = cgpu_device_room(gpu);
    if (gpu < 0 || bytes > room || !cgpu_state_is_attached()) {
        return false;
    }
    int mode = cgpu_capture_mode_relax();
    cgpu_async_free_finish(gpu);
    cgpu_reclaim_collect();
    cgpu_pool_trim(gpu);
    cgpu_graph_memory_trim(gpu);
    cgpu_capture_mode_restore(mode);
    uint64_t used = cgpu_ledger_used(cgpu_state->ledger, (uint32_t)gpu);
    return used <= room && bytes <= room - used;
}

void
cgpu_reclaim_shared(const struct cgpu_lack *lack)
{
    cgpu_slot_reap(cgpu_state->ledger, true);
    (void)cgpu_reclaim(lack->gpu, lack->bytes);
}
