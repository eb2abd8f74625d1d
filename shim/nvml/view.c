/*
 * The container's part of a GPU: its cap from the limits, its use from the ledger.
 *
 * The only shared state is found once and never changes: the limits page, the ledger, and which place in the
 * limits a handle stands for. All of it is published by single atomic stores, so no lock is held over a fork.
 */
#include <stdbool.h>
#include <sys/mman.h>

#include "base.h"
#include "mapped_limits.h"
#include "shim.h"

enum {
    HANDLES = 64,
    PLACE_UNKNOWN = 0, /* `place` holds place + 1, or: */
    PLACE_NONE = -1
};

static const struct cgpu_limits *limits;
static struct cgpu_ledger *ledger;

static struct {
    struct nvml_device *device;
    int32_t place;
} handles[HANDLES];

static const struct cgpu_limits *
open_limits(void)
{
    /* Acquire and release: who sees the pointer sees what it was checked for. */
    const struct cgpu_limits *known = __atomic_load_n(&limits, __ATOMIC_ACQUIRE);
    if (known == NULL) {
        known = cgpu_mapped_limits_open();
        __atomic_store_n(&limits, known, __ATOMIC_RELEASE); /* a race maps it twice, which is harmless */
    }
    return known;
}

static struct cgpu_ledger *
open_ledger(void)
{
    char path[CGPU_BASE_PATH_SIZE];
    struct cgpu_ledger *known = __atomic_load_n(&ledger, __ATOMIC_ACQUIRE);
    struct cgpu_ledger *mine;
    if (known != NULL) {
        return known;
    }
    if (cgpu_base_path(path, sizeof path, "ledger") != CGPU_OK ||
        cgpu_ledger_observe(path, &mine) != CGPU_OK) {
        return NULL;
    }
    /* Acquire on failure: another thread's ledger is used. */
    if (!__atomic_compare_exchange_n(&ledger, &known, mine, false, __ATOMIC_RELEASE, __ATOMIC_ACQUIRE)) {
        cgpu_ledger_detach(mine);
        return known;
    }
    return mine;
}

static int
hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The bytes behind "GPU-xxxxxxxx-xxxx-...". Not so: a MIG device ("MIG-..."), which has no cap. */
static bool
parse_uuid(const char *text, uint8_t uuid[16])
{
    int digits = 0;
    if (text[0] != 'G' || text[1] != 'P' || text[2] != 'U') {
        return false;
    }
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
find_place(const struct cgpu_limits *page, struct nvml_device *device, int32_t *place)
{
    char text[NVML_UUID_SIZE];
    uint8_t uuid[16];
    enum nvml_return status = cgpu_nvml_real.nvmlDeviceGetUUID(device, text, sizeof text);
    if (status != NVML_SUCCESS) {
        return status;
    }
    int found = parse_uuid(text, uuid) ? cgpu_mapped_limits_place(page, uuid) : CGPU_ENOTFOUND;
    *place = found >= 0 ? found + 1 : PLACE_NONE;
    return NVML_SUCCESS;
}

/* Where DEVICE is remembered: its entry, or an empty one that it takes; NULL if all are taken. */
static int32_t *
remembered(struct nvml_device *device)
{
    for (int i = 0; i < HANDLES; i++) {
        struct nvml_device *taken = __atomic_load_n(&handles[i].device, __ATOMIC_RELAXED);
        if (taken == NULL) {
            /* Relaxed: the entry means nothing until its place is stored. */
            (void)__atomic_compare_exchange_n(&handles[i].device, &taken, device, false,
                                              __ATOMIC_RELAXED, __ATOMIC_RELAXED);
            taken = taken == NULL ? device : taken;
        }
        if (taken == device) {
            return &handles[i].place;
        }
    }
    return NULL;
}

static enum nvml_return
place_of(const struct cgpu_limits *page, struct nvml_device *device, int32_t *place)
{
    int32_t *known = remembered(device);
    *place = known != NULL ? __atomic_load_n(known, __ATOMIC_RELAXED) : PLACE_UNKNOWN;
    if (*place != PLACE_UNKNOWN) {
        return NVML_SUCCESS;
    }
    enum nvml_return status = find_place(page, device, place);
    if (status == NVML_SUCCESS && known != NULL) {
        __atomic_store_n(known, *place, __ATOMIC_RELAXED);
    }
    return status;
}

/* Limits, ledger and place; not yet how much is used. */
static enum nvml_return
open_view(struct nvml_device *device, struct cgpu_nvml_view *view)
{
    int32_t place;
    const struct cgpu_limits *page = open_limits();
    view->ledger = open_ledger();
    if (page == NULL || view->ledger == NULL) {
        return NVML_ERROR_UNKNOWN;
    }
    enum nvml_return status = place_of(page, device, &place);
    if (status != NVML_SUCCESS) {
        return status;
    }
    if (place == PLACE_NONE) {
        return NVML_ERROR_NO_PERMISSION;
    }
    view->place = (uint32_t)place - 1;
    view->cap_bytes = cgpu_mapped_limits_cap(page, view->place);
    return NVML_SUCCESS;
}

enum nvml_return
cgpu_nvml_view(struct nvml_device *device, struct cgpu_nvml_view *view)
{
    size_t count;
    enum nvml_return status = open_view(device, view);
    if (status != NVML_SUCCESS) {
        return status;
    }
    /* Of the two, only this one tells an unreadable ledger from an unused one. */
    if (cgpu_ledger_processes(view->ledger, view->place, NULL, 0, &count) != CGPU_OK) {
        return NVML_ERROR_UNKNOWN;
    }
    view->used_bytes = count > 0 ? cgpu_ledger_used(view->ledger, view->place) : 0;
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
    struct cgpu_nvml_view view;
    if (scratch == NULL) {
        return NVML_ERROR_UNKNOWN;
    }
    enum nvml_return status = open_view(device, &view);
    if (status != NVML_SUCCESS) {
        return status;
    }
    if (cgpu_ledger_processes(view.ledger, view.place, scratch->processes, CGPU_NVML_PROCESSES,
                              &scratch->process_count) != CGPU_OK) {
        return NVML_ERROR_UNKNOWN;
    }
    if (scratch->process_count > CGPU_NVML_PROCESSES) {
        scratch->process_count = CGPU_NVML_PROCESSES;
    }
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
