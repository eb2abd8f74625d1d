/*
 * The container's part of a GPU: its cap from the limits, its use from the ledger.
 *
 * Limits and ledger are found when the library is loaded: later the program may have changed its
 * root, or have no free descriptor. Limits that are not there yet are looked for again. The GPU
 * behind a handle is found once and published by single atomic stores, so no lock is held over a
 * fork. A program may close the ledger's descriptor and use its number for another file; then the
 * ledger is opened for every query.
 */
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

#include "base.h"
#include "ledger/observer.h"
#include "mapped_limits.h"
#include "shim.h"

enum {
    HANDLES = 64,
    NUMBER_UNKNOWN = 0, /* `number` is 1 + the GPU's number in the limits; or: */
    NUMBER_NONE = -1
};

static const struct cgpu_limits *limits;
static struct cgpu_ledger *kept;

static struct {
    struct nvml_device *device;
    int32_t number;
} handles[HANDLES];

/* The open ledger; NULL if it is missing or broken. */
static struct cgpu_ledger *
open_ledger(void)
{
    char path[CGPU_BASE_PATH_SIZE];
    struct cgpu_ledger *ledger;
    if (cgpu_base_path(path, sizeof path, "ledger") != CGPU_OK ||
        cgpu_ledger_observe(path, &ledger) != CGPU_OK) {
        return NULL;
    }
    return ledger;
}

void
cgpu_nvml_view_setup(void)
{
    limits = cgpu_mapped_limits_open();
    kept = open_ledger();
}

static struct cgpu_ledger *
borrow_ledger(void)
{
    if (!cgpu_observer_is_open(kept)) {
        return open_ledger();
    }
    cgpu_ledger_rest(kept, 0); /* each query asks who lives, as if it had opened the ledger */
    return kept;
}

/* The limits; NULL if they are missing or broken. */
static const struct cgpu_limits *
find_limits(void)
{
    const struct cgpu_limits *known = __atomic_load_n(&limits, __ATOMIC_ACQUIRE);
    if (known != NULL) {
        return known;
    }
    const struct cgpu_limits *mapped = cgpu_mapped_limits_open();
    if (mapped == NULL || __atomic_compare_exchange_n(&limits, &known, mapped, false,
                                                      __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        return mapped;
    }
    munmap((void *)(uintptr_t)mapped, sizeof *mapped); /* another thread was faster */
    return known;
}

static bool
has_no_gpu(void)
{
    const struct cgpu_limits *known = find_limits();
    return known != NULL && known->gpu_count == 0;
}

enum nvml_return
cgpu_nvml_count(enum nvml_return (*real)(uint32_t *), uint32_t *out)
{
    enum nvml_return status = real(out);
    if (status == NVML_SUCCESS && has_no_gpu()) {
        *out = 0;
    }
    return status;
}

enum nvml_return
cgpu_nvml_by_index(enum nvml_return (*real)(uint32_t, struct nvml_device **), uint32_t index,
                   struct nvml_device **out)
{
    enum nvml_return status = real(index, out);
    return status == NVML_SUCCESS && has_no_gpu() ? NVML_ERROR_INVALID_ARGUMENT : status;
}

static void
give_back_ledger(struct cgpu_ledger **ledger)
{
    if (*ledger != kept) {
        cgpu_ledger_detach(*ledger);
    }
}

#define LEDGER __attribute__((cleanup(give_back_ledger))) struct cgpu_ledger *

static int
hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/*
 * Parse the bytes of "GPU-xxxxxxxx-xxxx-...". False for a MIG device ("MIG-..."), which has no cap.
 */
static bool
parse_uuid(const char *text, uint8_t uuid[16])
{
    int digits = 0;
    if (text[0] != 'G' || text[1] != 'P' || text[2] != 'U') {
        return false;
    }
    memset(uuid, 0, 16);
    for (text += 3; *text != '\0'; text++) {
        int digit = hex_digit(*text);
        if (*text == '-') {
            continue;
        }
        if (digit < 0 || digits == 32) {
            return false;
        }
        uuid[digits / 2] = (uint8_t)(uuid[digits / 2] << 4 | digit);
        digits++;
    }
    return digits == 32;
}

static enum nvml_return
find_number(struct nvml_device *device, int32_t *number)
{
    char text[NVML_UUID_SIZE];
    uint8_t uuid[16];
    enum nvml_return status = cgpu_nvml_real.nvmlDeviceGetUUID(device, text, sizeof text);
    if (status != NVML_SUCCESS) {
        return status;
    }
    int found = parse_uuid(text, uuid) ? cgpu_mapped_limits_find(limits, uuid) : CGPU_ENOTFOUND;
    *number = found >= 0 ? found + 1 : NUMBER_NONE;
    return NVML_SUCCESS;
}

/*
 * Where the number of DEVICE is remembered. A new DEVICE takes a free entry; NULL: there is none.
 */
static int32_t *
remembered(struct nvml_device *device)
{
    for (int i = 0; i < HANDLES; i++) {
        struct nvml_device *taken = __atomic_load_n(&handles[i].device, __ATOMIC_RELAXED);
        if (taken == NULL) {
            /* Relaxed: the entry means nothing until its number is stored. */
            (void)__atomic_compare_exchange_n(&handles[i].device, &taken, device, false,
                                              __ATOMIC_RELAXED, __ATOMIC_RELAXED);
            taken = taken == NULL ? device : taken;
        }
        if (taken == device) {
            return &handles[i].number;
        }
    }
    return NULL;
}

static enum nvml_return
number_of(struct nvml_device *device, int32_t *number)
{
    int32_t *known = remembered(device);
    *number = known != NULL ? __atomic_load_n(known, __ATOMIC_RELAXED) : NUMBER_UNKNOWN;
    if (*number != NUMBER_UNKNOWN) {
        return NVML_SUCCESS;
    }
    enum nvml_return status = find_number(device, number);
    if (status == NVML_SUCCESS && known != NULL) {
        __atomic_store_n(known, *number, __ATOMIC_RELAXED);
    }
    return status;
}

/* Find DEVICE in the limits. *GPU: its number there. */
static enum nvml_return
find(struct nvml_device *device, uint32_t *gpu)
{
    int32_t number;
    if (find_limits() == NULL) {
        return NVML_ERROR_UNKNOWN;
    }
    enum nvml_return status = number_of(device, &number);
    if (status != NVML_SUCCESS) {
        return status;
    }
    if (number == NUMBER_NONE) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *gpu = (uint32_t)number - 1;
    return NVML_SUCCESS;
}

enum nvml_return
cgpu_nvml_view(struct nvml_device *device, struct cgpu_nvml_view *view)
{
    uint32_t gpu;
    size_t count;
    enum nvml_return status = find(device, &gpu);
    if (status != NVML_SUCCESS) {
        return status;
    }
    view->cap_bytes = cgpu_mapped_limits_cap(limits, gpu);
    uint64_t outside_bytes = cgpu_mapped_limits_outside(limits, gpu);
    LEDGER ledger = borrow_ledger();
    /* Only the first of the two calls distinguishes an unreadable ledger from an unused one. */
    if (ledger == NULL || cgpu_ledger_processes(ledger, gpu, NULL, 0, &count) != CGPU_OK) {
        return NVML_ERROR_UNKNOWN;
    }
    view->used_bytes = (count > 0 ? cgpu_ledger_used(ledger, gpu) : 0) + outside_bytes;
    return NVML_SUCCESS;
}

struct cgpu_nvml_scratch *
cgpu_nvml_scratch_make(void)
{
    void *memory = mmap(NULL, sizeof(struct cgpu_nvml_scratch), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory != MAP_FAILED ? memory : NULL;
}

void
cgpu_nvml_scratch_free(struct cgpu_nvml_scratch **scratch)
{
    if (*scratch != NULL) {
        munmap(*scratch, sizeof **scratch);
    }
}

enum nvml_return
cgpu_nvml_own_processes(struct nvml_device *device, struct cgpu_nvml_scratch *scratch)
{
    uint32_t gpu;
    size_t count;
    if (scratch == NULL) {
        return NVML_ERROR_UNKNOWN;
    }
    enum nvml_return status = find(device, &gpu);
    if (status != NVML_SUCCESS) {
        return status;
    }
    LEDGER ledger = borrow_ledger();
    if (ledger == NULL || cgpu_ledger_processes(ledger, gpu, scratch->processes,
                                                CGPU_NVML_PROCESSES, &count) != CGPU_OK) {
        return NVML_ERROR_UNKNOWN;
    }
    scratch->process_count = count < CGPU_NVML_PROCESSES ? count : CGPU_NVML_PROCESSES;
    return NVML_SUCCESS;
}

int
cgpu_nvml_is_own(const struct cgpu_nvml_scratch *scratch, uint32_t pid)
{
    for (size_t i = 0; i < scratch->process_count; i++) {
        if (scratch->processes[i].pid == pid) {
            return 1;
        }
    }
    return 0;
}

enum nvml_return
cgpu_nvml_fit(uint32_t *count, const void *out, size_t found)
{
    uint32_t room = *count;
    *count = (uint32_t)found;
    if (found > room) {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    return found > 0 && out == NULL ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}
