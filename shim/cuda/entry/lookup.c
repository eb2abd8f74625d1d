/*
 * cuGetProcAddress and its versions: they return what the driver returns, but our export in place
 * of a hooked function.
 *
 * Every address that the driver returns is that of an exported symbol. So a comparison of addresses
 * finds the right version, also for per-thread default streams, and nothing needs to know which
 * name and version mean which symbol. An address that belongs to no name in driver_entry_points.csv
 * is an entry point of a newer driver. If its family allocates or launches, it is not handed out,
 * because nothing would charge for it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

#include "entry/shim.h"

enum { TABLE_SIZE = 2048 }; /* a power of two, at least twice the number of names */

/*
 * A hash table by the driver's address, with open addressing. The constructor fills it; after that
 * it is only read.
 */
static struct {
    void *real;
    void *use;
} table[TABLE_SIZE];

/* Every name of driver_entry_points.csv, each followed by a NUL. */
static const char known_names[] =
#include "entry/known_names.inc"
    ;

/* An entry point whose name begins with one of these words may take device memory or GPU time. */
static const char *const families[] = {
    "cuArray",
    "cuCheckpoint",
    "cuCtxAttach",
    "cuCtxCreate",
    "cuCtxFromGreenCtx",
    "cuCtxSetLimit",
    "cuDevicePrimaryCtx",
    "cuDeviceSetGraphMem",
    "cuEGLStream",
    "cuExternal",
    "cuFabric",
    "cuFuncLoad",
    "cuGLCtx",
    "cuGraph",
    "cuGreenCtx",
    "cuImport",
    "cuIpc",
    "cuKernelGetFunction",
    "cuLaunch",
    "cuLibrary",
    "cuLogicalEndpoint",
    "cuMem",
    "cuMipmapped",
    "cuModule",
    "cuMulticast",
    "cuStreamAttachMem",
    "cuStreamBatch",
    "cuSubgrid",
    "cuVDPAUCtx",
};

/* An entry point of any family may do the same if its name contains one of these words. */
static const char *const verbs[] = {"Alloc", "Import", "Launch"};

static size_t
row_of(const void *real)
{
    uint64_t hash = (uint64_t)(uintptr_t)real * 0x9e3779b97f4a7c15u;
    size_t row = hash >> 53; /* 11 bits: TABLE_SIZE places */
    while (table[row].real != NULL && table[row].real != real) {
        row = (row + 1) % TABLE_SIZE;
    }
    return row;
}

/*
 * Add an entry. The first one for an address stays, so hooks are added before names that just pass.
 */
static void
add(void *real, void *use)
{
    size_t row = row_of(real);
    if (real != NULL && table[row].real == NULL) {
        table[row].real = real;
        table[row].use = use;
    }
}

void
cgpu_lookup_setup(void *library)
{
    for (unsigned int i = 0; i < cgpu_hook_count; i++) {
        if (*cgpu_hooks[i].real != (void *)cgpu_real_missing) {
            add(*cgpu_hooks[i].real, cgpu_hooks[i].export);
        }
    }
    const char *end = known_names + sizeof known_names - 1;
    for (const char *name = known_names; library != NULL && name < end; name += strlen(name) + 1) {
        void *real = dlsym(library, name);
        add(real, real);
    }
}

static bool
takes_memory_or_time(const char *name)
{
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        if (strncmp(name, families[i], strlen(families[i])) == 0) {
            return true;
        }
    }
    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        if (strstr(name, verbs[i]) != NULL) {
            return true;
        }
    }
    return false;
}

bool
cgpu_may_pass_unknown(void)
{
    return cgpu_limits != NULL && (cgpu_limits->flags & CGPU_LIMITS_PASS_UNKNOWN) != 0;
}

/* The address to return in place of ADDRESS, the driver's answer to SYMBOL; NULL: none. */
static void *
use_for(void *address, const char *symbol)
{
    size_t row = row_of(address);
    if (table[row].real == address) {
        return table[row].use;
    }
    Dl_info info;
    const char *name = symbol;
    if (dladdr(address, &info) != 0 && info.dli_sname != NULL && info.dli_saddr == address) {
        name = info.dli_sname;
    }
    if (cgpu_may_pass_unknown() || (!takes_memory_or_time(name) && !takes_memory_or_time(symbol))) {
        return address;
    }
    cgpu_log_text(CGPU_LOG_UNKNOWN,
                  "an entry point that this release does not know is not handed out: ", name);
    return NULL;
}

CUresult
cgpu_lookup(CUresult (*real)(const char *, void **, int, uint64_t), const char *symbol,
            void **function, int version, uint64_t flags)
{
    CUresult status = real(symbol, function, version, flags);
    if (status != CUDA_SUCCESS || symbol == NULL || function == NULL || *function == NULL) {
        return status;
    }
    *function = use_for(*function, symbol);
    return *function != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult
cgpu_lookup_v2(CUresult (*real)(const char *, void **, int, uint64_t, int *), const char *symbol,
               void **function, int version, uint64_t flags, int *found)
{
    CUresult status = real(symbol, function, version, flags, found);
    if (status != CUDA_SUCCESS || symbol == NULL || function == NULL || *function == NULL) {
        return status;
    }
    *function = use_for(*function, symbol);
    if (*function == NULL && found == NULL) {
        return CUDA_ERROR_NOT_FOUND;
    }
    if (*function == NULL) {
        *found = CU_PROC_ADDRESS_NOT_FOUND; /* if the program asked for it, it carries the result */
    }
    return CUDA_SUCCESS;
}
