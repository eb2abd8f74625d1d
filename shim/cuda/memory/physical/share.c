/*
 * Exported and imported memory.
 *
 * The process that made physical memory pays for it once, as long as it refers to it in any way. An
 * open descriptor, made by exporting, is such a reference, and nothing shows when it is closed. So
 * once the other references are gone, descriptors are checked at later calls and before a refusal:
 * the same number must still lead to the same file. A process that imports its own descriptor gets
 * one more reference. Any other import is another process's memory.
 *
 * Linear memory is exported by its IPC handle. The driver keeps it while anybody has opened it,
 * even after its maker has freed it or ended; sharing.h says who pays then. The same holds for
 * memory of pools, which pool_share.c exports and imports.
 */
#include "memory/physical/share.h"
#include "entry/copies.h"
#include "entry/shim.h"
#include "ledger/sharing.h"
#include "memory/account.h"
#include "memory/charge.h"
#include "memory/physical/descriptor.h"
#include "memory/physical/physical.h"
#include "memory/target.h"

static struct cgpu_kinds *
kinds(void)
{
    return &cgpu_state->kinds;
}

static bool
is_held(uint64_t allocation)
{
    struct cgpu_holding holding;
    return cgpu_account_find(CGPU_KIND_PHYSICAL, allocation, &holding);
}

/*
 * Record that FD keeps ALLOCATION alive. An older descriptor with the same number is closed by now.
 */
static void
remember(int fd, uint64_t allocation)
{
    uint64_t older;
    while ((older = cgpu_descriptor_forget(fd)) != 0) {
        cgpu_physical_collect_one(older);
    }
    cgpu_descriptor_remember(fd, allocation);
}

CUresult
cgpu_share_export(CUresult (*real)(void *, CUmemGenericAllocationHandle, int, uint64_t), void *out,
                  CUmemGenericAllocationHandle handle, int type, uint64_t flags)
{
    if (!cgpu_state_is_attached()) {
        return real(out, handle, type, flags);
    }
    pthread_mutex_lock(&kinds()->physical);
    CUresult status = real(out, handle, type, flags);
    uint64_t allocation = cgpu_physical_of(handle);
    if (status == CUDA_SUCCESS && out != NULL && is_held(allocation)) {
        cgpu_physical_export(allocation);
        if (type == CU_HANDLE_POSIX_FD) {
            remember(*(const int *)out, allocation);
        }
    }
    pthread_mutex_unlock(&kinds()->physical);
    return status;
}

/*
 * Record HANDLE, which was imported through a descriptor of ALLOCATION; 0: it is another process's
 * memory.
 */
static CUresult
imported(CUmemGenericAllocationHandle handle, uint64_t allocation)
{
    if (allocation == 0) {
        return cgpu_physical_import(handle);
    }
    return cgpu_physical_alias(handle, allocation) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult
cgpu_share_import(CUresult (*real)(CUmemGenericAllocationHandle *, void *, int),
                  CUmemGenericAllocationHandle *handle, void *shared, int type)
{
    if (!cgpu_state_is_attached()) {
        return real(handle, shared, type);
    }
    if (type > CU_HANDLE_FABRIC) {
        return cgpu_reject(CGPU_REJECT_UNKNOWN, "cuMemImportFromShareableHandle");
    }
    pthread_mutex_lock(&kinds()->physical);
    CUresult status = real(handle, shared, type);
    /* handles of other types may come from other machines */
    if (status == CUDA_SUCCESS && handle != NULL && type == CU_HANDLE_POSIX_FD) {
        status = imported(*handle, cgpu_descriptor_allocation((int)(intptr_t)shared));
        if (status != CUDA_SUCCESS) {
            cgpu_real.cuMemRelease(*handle);
        }
    }
    pthread_mutex_unlock(&kinds()->physical);
    return status;
}

/* ---- linear memory by its IPC handle ---- */

/* Record that others may open the memory at ADDRESS from now on. Repeated exports count once. */
static void
note_export(CUdeviceptr address)
{
    struct cgpu_holding holding;
    CUdeviceptr base = 0;
    if (cgpu_real.cuMemGetAddressRange_v2(&base, NULL, address) != CUDA_SUCCESS ||
        !cgpu_account_find(CGPU_KIND_LINEAR, base, &holding) ||
        (holding.extra & CGPU_EXPORTED) != 0) {
        return;
    }
    uint64_t bytes = holding.bytes + cgpu_small_bytes(&holding);
    holding.extra |= CGPU_EXPORTED;
    if (cgpu_sharing_export(cgpu_state->ledger, holding.gpu, bytes) == CGPU_OK &&
        cgpu_holdings_update(cgpu_state->holdings, &holding) != CGPU_OK) {
        cgpu_sharing_end_export(cgpu_state->ledger, holding.gpu, bytes, 0); /* freed meanwhile */
    }
}

CUresult
cgpu_share_get_handle(CUresult (*real)(struct cgpu_ipc_handle *, CUdeviceptr),
                      struct cgpu_ipc_handle *handle, CUdeviceptr address)
{
    if (!cgpu_state_is_attached()) {
        return real(handle, address);
    }
    CUresult status = real(handle, address);
    if (status == CUDA_SUCCESS) {
        pthread_mutex_lock(&kinds()->ipc);
        note_export(address);
        pthread_mutex_unlock(&kinds()->ipc);
    }
    return status;
}

/* Under the lock: if ADDRESS is open already, count one more opening. */
static bool
open_again(CUdeviceptr address)
{
    struct cgpu_holding opened;
    if (!cgpu_account_find(CGPU_KIND_OPENED, address, &opened)) {
        return false;
    }
    opened.extra++;
    cgpu_holdings_update(cgpu_state->holdings, &opened);
    return true;
}

/*
 * Record what was charged. Another thread may have opened the memory meanwhile, and paid as well.
 */
static CUresult
keep_opened(const struct cgpu_holding *opened)
{
    pthread_mutex_lock(&kinds()->ipc);
    bool again = open_again(opened->handle);
    bool kept = !again && cgpu_holdings_insert(cgpu_state->holdings, opened) == CGPU_OK;
    pthread_mutex_unlock(&kinds()->ipc);
    if (!kept) {
        cgpu_account_give_back(opened);
    }
    return kept || again ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/*
 * Charge opened memory. Small memory counts with its own size, not with the block that it lies in.
 */
static CUresult
import_opened(struct cgpu_holding *opened, bool once, struct cgpu_lack *lack)
{
    size_t bytes = 0;
    struct cgpu_import import = {.opened = once};
    int32_t gpu = (int32_t)opened->gpu;
    if (cgpu_real.cuMemGetAddressRange_v2(NULL, &bytes, opened->handle) != CUDA_SUCCESS) {
        return CUDA_SUCCESS;
    }
    uint64_t whole = bytes > CGPU_BLOCK_SMALL ? cgpu_account_whole(gpu, bytes) : bytes;
    if (cgpu_sharing_import(cgpu_state->ledger, opened->gpu, cgpu_device_room(gpu), whole,
                            &import) != CGPU_OK) {
        *lack = (struct cgpu_lack){.gpu = gpu, .bytes = whole};
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    opened->bytes = import.bytes;
    return keep_opened(opened);
}

/*
 * Whether ADDRESS is on the host. For memory of a pool on the host, the driver may also name a
 * device.
 */
static bool
is_on_host(CUdeviceptr address)
{
    int type = 0;
    return cgpu_real.cuPointerGetAttribute(&type, CU_POINTER_MEMORY_TYPE, address) ==
               CUDA_SUCCESS &&
           type == CU_MEMORY_HOST;
}

/*
 * Record and charge that ADDRESS was opened. If the driver does not report its device, it is on
 * none of our GPUs.
 */
CUresult
cgpu_share_note_opened(CUdeviceptr address, uint64_t owner, bool once, struct cgpu_lack *lack)
{
    CUdevice device = -1;
    pthread_mutex_lock(&kinds()->ipc);
    bool again = open_again(address);
    pthread_mutex_unlock(&kinds()->ipc);
    if (again ||
        cgpu_real.cuPointerGetAttribute(&device, CU_POINTER_DEVICE_ORDINAL, address) !=
            CUDA_SUCCESS ||
        is_on_host(address)) {
        return CUDA_SUCCESS;
    }
    int32_t gpu = cgpu_device_gpu(device);
    struct cgpu_holding opened = {
        .handle = address,
        .owner = owner,
        .extra = 1,
        .kind = CGPU_KIND_OPENED,
        .gpu = (uint32_t)gpu,
    };
    return gpu < 0 ? CUDA_SUCCESS : import_opened(&opened, once, lack);
}

static CUresult
open_handle(CUresult (*real)(CUdeviceptr *, struct cgpu_ipc_handle, unsigned int),
            CUdeviceptr *address, const struct cgpu_ipc_handle *handle, unsigned int flags,
            struct cgpu_lack *lack)
{
    struct cgpu_target target;
    *lack = (struct cgpu_lack){.bytes = 0};
    CUresult status = cgpu_target_current(&target);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    status = real(address, *handle, flags);
    if (status == CUDA_SUCCESS) {
        status = cgpu_share_note_opened(*address, target.owner, true, lack);
        if (status != CUDA_SUCCESS) {
            cgpu_real.cuIpcCloseMemHandle(*address);
        }
    }
    return status;
}

CUresult
cgpu_share_open(CUresult (*real)(CUdeviceptr *, struct cgpu_ipc_handle, unsigned int),
                CUdeviceptr *address, struct cgpu_ipc_handle handle, unsigned int flags)
{
    struct cgpu_lack lack;
    if (address == NULL) {
        return real(NULL, handle, flags);
    }
    CUresult status = open_handle(real, address, &handle, flags, &lack);
    if (lack.bytes != 0) {
        cgpu_reclaim_shared(&lack);
        status = open_handle(real, address, &handle, flags, &lack);
    }
    if (lack.bytes != 0) {
        cgpu_log_memory(lack.gpu, lack.bytes);
    }
    return status;
}

/* Count one closing of ADDRESS. OPENED's extra is how often ADDRESS is still open. */
bool
cgpu_share_leave(CUdeviceptr address, struct cgpu_holding *opened)
{
    pthread_mutex_lock(&kinds()->ipc);
    bool known = cgpu_account_find(CGPU_KIND_OPENED, address, opened) &&
                 (opened->extra > 1 || cgpu_account_take(CGPU_KIND_OPENED, address, opened));
    if (known && --opened->extra != 0) {
        cgpu_holdings_update(cgpu_state->holdings, opened);
    }
    pthread_mutex_unlock(&kinds()->ipc);
    return known;
}

/* Undo cgpu_share_leave for OPENED, which was not closed after all. */
static void
stay_opened(struct cgpu_holding *opened)
{
    if (opened->extra == 0) {
        opened->extra = 1;
        (void)keep_opened(opened);
        return;
    }
    pthread_mutex_lock(&kinds()->ipc);
    (void)open_again(opened->handle);
    pthread_mutex_unlock(&kinds()->ipc);
}

void
cgpu_share_left(struct cgpu_holding *opened, CUresult status)
{
    if (status != CUDA_SUCCESS) {
        stay_opened(opened);
    } else if (opened->extra == 0) {
        cgpu_account_give_back(opened);
    }
}

/*
 * Close ADDRESS. As with a free, its record is removed first: other memory may be opened at the
 * address as soon as it is closed.
 */
CUresult
cgpu_share_close(CUresult (*real)(CUdeviceptr), CUdeviceptr address)
{
    struct cgpu_holding opened;
    if (!cgpu_state_is_attached()) {
        return real(address);
    }
    bool known = cgpu_share_leave(address, &opened);
    CUresult status = real(address);
    if (known) {
        cgpu_share_left(&opened, status);
    }
    return status;
}
