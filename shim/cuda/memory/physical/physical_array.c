/*
 * Physical memory mapped into sparse arrays.
 *
 * Which tiles the memory is mapped to is not recorded. Memory that was ever mapped into an array
 * stays charged at least as long as the array exists.
 */
#include "entry/shim.h"
#include "memory/physical/physical.h"

static struct cgpu_kinds *
kinds(void)
{
    return &cgpu_state->kinds;
}

/*
 * Record that ALLOCATION was mapped into ARRAY, under the lock of physical memory. Each pair counts
 * once.
 */
static void
pair(uint64_t array, uint64_t allocation)
{
    struct cgpu_holding holding = {
        .handle = array * UINT64_C(0x9e3779b97f4a7c15) + allocation,
        .owner = array,
        .extra = allocation,
        .kind = CGPU_KIND_ARRAY_MAPPING,
    };
    if (allocation != 0 && cgpu_holdings_insert(cgpu_state->holdings, &holding) == CGPU_OK) {
        cgpu_kinds_count(&kinds()->array_mappings, 1);
        cgpu_physical_keep(allocation);
    }
}

CUresult
cgpu_physical_map_arrays(CUresult (*real)(struct cgpu_array_map *, unsigned int, CUstream),
                         struct cgpu_array_map *maps, unsigned int count, CUstream stream)
{
    if (!cgpu_state_is_attached()) {
        return real(maps, count, stream);
    }
    pthread_mutex_lock(&kinds()->physical);
    CUresult status = real(maps, count, stream);
    for (unsigned int i = 0; status == CUDA_SUCCESS && maps != NULL && i < count; i++) {
        if (maps[i].operation != CU_MAP_OPERATION_UNMAP) {
            pair(maps[i].resource, cgpu_physical_of(maps[i].handle));
        }
    }
    pthread_mutex_unlock(&kinds()->physical);
    return status;
}

void
cgpu_physical_array_gone(uint64_t array)
{
    struct cgpu_holding holding;
    /* relaxed: the program itself makes sure that an array is mapped before it is destroyed. */
    if (!cgpu_state_is_attached() ||
        __atomic_load_n(&kinds()->array_mappings, __ATOMIC_RELAXED) == 0) {
        return;
    }
    pthread_mutex_lock(&kinds()->physical);
    while (cgpu_holdings_take_owned(cgpu_state->holdings, array, &holding) == CGPU_OK) {
        cgpu_kinds_count(&kinds()->array_mappings, -1);
        cgpu_physical_drop(holding.extra);
    }
    pthread_mutex_unlock(&kinds()->physical);
}
