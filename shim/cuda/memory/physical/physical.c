/*
 * Physical memory (cuMemCreate). It is charged when it is made, and given back with the last of its
 * handles, mappings, array mappings and open exported descriptors.
 *
 * Each allocation has a serial of our own, because the driver may reuse its handle's number while a
 * mapping keeps the memory alive. The lock of physical memory is held around every driver call that
 * adds or removes a reference, so our records change in the driver's order. cuMemCreate itself may
 * take long, and runs without the lock: nobody else knows its handle yet. Memory on the host costs
 * nothing. The process that made imported memory pays for it; sharing.h says who pays after that
 * process has released it. The size of imported memory is unknown before it is mapped.
 */
#include "memory/physical/physical.h"
#include "entry/shim.h"
#include "ledger/sharing.h"
#include "memory/account.h"
#include "memory/charge.h"
#include "memory/context_cost.h"
#include "memory/location.h"
#include "memory/physical/descriptor.h"
#include "memory/physical/mapping.h"
#include "memory/physical/share.h"

enum { COUNT_SHIFT = 40 };

static struct cgpu_kinds *
kinds(void)
{
    return &cgpu_state->kinds;
}

static void
lock(void)
{
    pthread_mutex_lock(&kinds()->physical);
}

static void
unlock(void)
{
    pthread_mutex_unlock(&kinds()->physical);
}

static uint64_t
serial_in(const struct cgpu_holding *alias)
{
    return alias->extra & ((UINT64_C(1) << COUNT_SHIFT) - 1);
}

uint64_t
cgpu_physical_of(uint64_t handle)
{
    struct cgpu_holding alias;
    return cgpu_account_find(CGPU_KIND_HANDLE, handle, &alias) ? serial_in(&alias) : 0;
}

/* Find an allocation that was made here or imported. */
static bool
find(uint64_t allocation, struct cgpu_holding *out)
{
    return allocation != 0 && (cgpu_account_find(CGPU_KIND_PHYSICAL, allocation, out) ||
                               cgpu_account_find(CGPU_KIND_IMPORTED, allocation, out));
}

static void
let_go(const struct cgpu_holding *found)
{
    struct cgpu_holding holding;
    struct cgpu_holding shared;
    if (!cgpu_account_take(found->kind, found->handle, &holding)) {
        return;
    }
    bool counts = cgpu_account_take(CGPU_KIND_SHARED, holding.handle, &shared);
    if (counts && holding.kind == CGPU_KIND_IMPORTED) {
        cgpu_sharing_end_import(cgpu_state->ledger, holding.gpu, holding.bytes);
    } else if (counts) {
        cgpu_sharing_end_export(cgpu_state->ledger, holding.gpu, shared.bytes, shared.bytes);
    } else if (holding.kind == CGPU_KIND_PHYSICAL) {
        cgpu_account_give_back(&holding);
    }
}

void
cgpu_physical_keep(uint64_t allocation)
{
    struct cgpu_holding holding;
    if (find(allocation, &holding)) {
        if (holding.extra == 0) {
            cgpu_kinds_count(&kinds()->lingering,
                             -1); /* imported again through the descriptor that kept it */
        }
        holding.extra++;
        cgpu_holdings_update(cgpu_state->holdings, &holding);
    }
}

void
cgpu_physical_drop(uint64_t allocation)
{
    struct cgpu_holding holding;
    if (!find(allocation, &holding)) {
        return;
    }
    holding.extra--;
    if (holding.extra == 0 && !cgpu_descriptor_is_open(allocation)) {
        let_go(&holding);
        return;
    }
    if (holding.extra == 0) {
        cgpu_kinds_count(&kinds()->lingering, 1);
    }
    cgpu_holdings_update(cgpu_state->holdings, &holding);
}

bool
cgpu_physical_alias(uint64_t handle, uint64_t allocation)
{
    struct cgpu_holding alias;
    if (cgpu_account_find(CGPU_KIND_HANDLE, handle, &alias) && serial_in(&alias) == allocation) {
        alias.extra += UINT64_C(1) << COUNT_SHIFT;
        cgpu_holdings_update(cgpu_state->holdings, &alias);
    } else {
        alias = (struct cgpu_holding){
            .handle = handle,
            .extra = UINT64_C(1) << COUNT_SHIFT | allocation,
            .kind = CGPU_KIND_HANDLE,
        };
        if (cgpu_account_hold(&alias) != CUDA_SUCCESS) {
            return false;
        }
    }
    cgpu_physical_keep(allocation);
    return true;
}

/* Record an allocation with its first handle. On failure the charge is given back. */
static CUresult
keep(enum cgpu_kind kind, uint64_t handle, int32_t gpu, uint64_t charged)
{
    struct cgpu_holding holding = {
        .handle = ++kinds()->last_serial,
        .bytes = charged,
        .kind = kind,
        .gpu = (uint32_t)gpu,
        .extra = 1, /* one reference of ours, until the handle is recorded */
    };
    CUresult status = cgpu_account_hold(&holding);
    if (status == CUDA_SUCCESS) {
        status =
            cgpu_physical_alias(handle, holding.handle) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        cgpu_physical_drop(holding.handle);
    }
    return status;
}

CUresult
cgpu_physical_import(uint64_t handle)
{
    struct cgpu_holding shared = {.kind = CGPU_KIND_SHARED};
    int32_t gpu;
    CUresult status = cgpu_location_of_imported(handle, &gpu);
    if (status != CUDA_SUCCESS || gpu < 0) {
        return status;
    }
    status = keep(CGPU_KIND_IMPORTED, handle, gpu, 0);
    shared.handle = kinds()->last_serial;
    shared.gpu = (uint32_t)gpu;
    return status == CUDA_SUCCESS ? cgpu_account_hold(&shared) : status;
}

void
cgpu_physical_export(uint64_t allocation)
{
    struct cgpu_holding holding;
    struct cgpu_holding shared = {.handle = allocation, .kind = CGPU_KIND_SHARED};
    if (!cgpu_account_find(CGPU_KIND_PHYSICAL, allocation, &holding)) {
        return;
    }
    shared.bytes = holding.bytes;
    if (cgpu_holdings_insert(cgpu_state->holdings, &shared) == CGPU_OK &&
        cgpu_sharing_export(cgpu_state->ledger, holding.gpu, holding.bytes) != CGPU_OK) {
        cgpu_account_take(CGPU_KIND_SHARED, allocation, &shared);
    }
}

CUresult
cgpu_physical_create(CUresult (*real)(CUmemGenericAllocationHandle *, size_t,
                                      const struct cgpu_mem_properties *, uint64_t),
                     CUmemGenericAllocationHandle *handle, size_t size,
                     const struct cgpu_mem_properties *properties, uint64_t flags)
{
    uint64_t charged;
    CUdevice device;
    if (handle == NULL || properties == NULL) {
        return real(handle, size, properties, flags);
    }
    CUresult status = cgpu_location_check(properties->type, &properties->location, "cuMemCreate");
    if (status != CUDA_SUCCESS) {
        return status;
    }
    if (!cgpu_location_device(&properties->location, &device)) {
        return real(handle, size, properties, flags);
    }
    int32_t gpu = cgpu_device_gpu(device);
    status = cgpu_context_check(device, gpu);
    if (status == CUDA_SUCCESS) {
        status = cgpu_charge(gpu, size, &charged);
    }
    if (status != CUDA_SUCCESS) {
        return status;
    }
    status = real(handle, size, properties, flags);
    if (status != CUDA_SUCCESS) {
        cgpu_account_release(gpu, charged);
        return status;
    }
    lock();
    status = keep(CGPU_KIND_PHYSICAL, *handle, gpu, charged);
    unlock();
    if (status != CUDA_SUCCESS) {
        cgpu_real.cuMemRelease(*handle);
    }
    return status;
}

/* Count one release of HANDLE. */
static void
release_alias(uint64_t handle)
{
    struct cgpu_holding alias;
    if (!cgpu_account_find(CGPU_KIND_HANDLE, handle, &alias)) {
        return;
    }
    alias.extra -= UINT64_C(1) << COUNT_SHIFT;
    if (alias.extra >> COUNT_SHIFT == 0) {
        struct cgpu_holding taken;
        cgpu_account_take(CGPU_KIND_HANDLE, handle, &taken);
    } else {
        cgpu_holdings_update(cgpu_state->holdings, &alias);
    }
    cgpu_physical_drop(serial_in(&alias));
}

CUresult
cgpu_physical_release(CUresult (*real)(CUmemGenericAllocationHandle),
                      CUmemGenericAllocationHandle handle)
{
    if (!cgpu_state_is_attached()) {
        return real(handle);
    }
    lock();
    CUresult status = real(handle);
    if (status == CUDA_SUCCESS) {
        release_alias(handle);
    }
    unlock();
    cgpu_reclaim_collect();
    return status;
}

CUresult
cgpu_physical_retain(CUresult (*real)(CUmemGenericAllocationHandle *, void *),
                     CUmemGenericAllocationHandle *handle, void *address)
{
    if (!cgpu_state_is_attached()) {
        return real(handle, address);
    }
    lock();
    CUresult status = real(handle, address);
    const struct cgpu_mapping *mapping = cgpu_mapping_at((uint64_t)(uintptr_t)address);
    if (status == CUDA_SUCCESS && handle != NULL && mapping != NULL && mapping->allocation != 0 &&
        !cgpu_physical_alias(*handle, mapping->allocation)) {
        cgpu_real.cuMemRelease(*handle);
        status = CUDA_ERROR_OUT_OF_MEMORY;
    }
    unlock();
    return status;
}

/* Imported memory is mapped up to END: charge the part that was not mapped before. */
static bool
import_up_to(uint64_t allocation, uint64_t end, struct cgpu_lack *lack)
{
    struct cgpu_holding holding;
    struct cgpu_holding shared;
    if (!cgpu_account_find(CGPU_KIND_IMPORTED, allocation, &holding) || end <= holding.bytes ||
        !cgpu_account_find(CGPU_KIND_SHARED, allocation, &shared)) {
        return true;
    }
    struct cgpu_import import = {.bytes = holding.bytes, .counted = shared.bytes};
    uint64_t more = end - holding.bytes;
    if (cgpu_sharing_import(cgpu_state->ledger, holding.gpu, cgpu_device_room((int32_t)holding.gpu),
                            more, &import) != CGPU_OK) {
        *lack = (struct cgpu_lack){.gpu = (int32_t)holding.gpu, .bytes = more};
        return false;
    }
    holding.bytes = import.bytes;
    shared.bytes = import.counted;
    cgpu_holdings_update(cgpu_state->holdings, &holding);
    cgpu_holdings_update(cgpu_state->holdings, &shared);
    return true;
}

static CUresult
map(CUresult (*real)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, uint64_t),
    CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
    uint64_t flags, struct cgpu_lack *lack)
{
    *lack = (struct cgpu_lack){.bytes = 0};
    lock();
    CUresult status = real(address, size, offset, handle, flags);
    uint64_t allocation = cgpu_physical_of(handle);
    if (status == CUDA_SUCCESS && import_up_to(allocation, offset + size, lack) &&
        cgpu_mapping_add(address, size, allocation)) {
        cgpu_physical_keep(allocation);
    } else if (status == CUDA_SUCCESS) {
        cgpu_real.cuMemUnmap(address, size);
        status = CUDA_ERROR_OUT_OF_MEMORY;
    }
    unlock();
    return status;
}

CUresult
cgpu_physical_map(CUresult (*real)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,
                                   uint64_t),
                  CUdeviceptr address, size_t size, size_t offset,
                  CUmemGenericAllocationHandle handle, uint64_t flags)
{
    struct cgpu_lack lack;
    if (!cgpu_state_is_attached()) {
        return real(address, size, offset, handle, flags);
    }
    CUresult status = map(real, address, size, offset, handle, flags, &lack);
    if (lack.bytes != 0) {
        cgpu_reclaim_shared(&lack);
        status = map(real, address, size, offset, handle, flags, &lack);
    }
    if (lack.bytes != 0) {
        cgpu_log_memory(lack.gpu, lack.bytes);
    }
    return status;
}

/* Unmap. One call may unmap several neighbouring mappings. */
CUresult
cgpu_physical_unmap(CUresult (*real)(CUdeviceptr, size_t), CUdeviceptr address, size_t size)
{
    struct cgpu_mapping mapping;
    if (!cgpu_state_is_attached()) {
        return real(address, size);
    }
    lock();
    CUresult status = real(address, size);
    for (uint64_t done = 0; status == CUDA_SUCCESS && done < size; done += mapping.bytes) {
        if (!cgpu_mapping_take(address + done, &mapping) || mapping.bytes == 0) {
            break;
        }
        cgpu_physical_drop(mapping.allocation);
    }
    unlock();
    cgpu_reclaim_collect();
    return status;
}

void
cgpu_physical_collect_one(uint64_t allocation)
{
    struct cgpu_holding holding;
    if (cgpu_account_find(CGPU_KIND_PHYSICAL, allocation, &holding) && holding.extra == 0 &&
        !cgpu_descriptor_is_open(allocation)) {
        let_go(&holding);
        cgpu_kinds_count(&kinds()->lingering, -1);
    }
}

void
cgpu_physical_collect(void)
{
    if (cgpu_kinds_look(&kinds()->lingering) == 0) {
        return;
    }
    lock();
    for (uint32_t i = 0; kinds()->lingering != 0 && i < kinds()->export_bound; i++) {
        if (kinds()->exports[i].allocation != 0) {
            cgpu_physical_collect_one(kinds()->exports[i].allocation);
        }
    }
    unlock();
}
