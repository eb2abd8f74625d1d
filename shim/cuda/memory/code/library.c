/*
 * Records of loaded modules and libraries, until they are unloaded.
 *
 * Any use of a library in a context may load it there. What that takes is recorded by library and
 * context. The charge is at most what the image can need.
 */
#include "memory/code/library.h"
#include "entry/shim.h"
#include "memory/account.h"
#include "memory/code/code.h"
#include "memory/code/module.h"
#include "memory/target.h"

enum { BOUND_BITS = 24 };
static const uint64_t BOUND_MASK = (1 << BOUND_BITS) - 1; /* of bounds in MiB */

uint64_t
cgpu_module_remember(uint64_t bound)
{
    /* relaxed: the number only has to be unique */
    uint64_t serial = __atomic_add_fetch(&cgpu_state->kinds.last_load, 1, __ATOMIC_RELAXED);
    uint64_t mib = (bound + (1 << 20) - 1) >> 20;
    return serial << BOUND_BITS | (mib < BOUND_MASK ? mib : BOUND_MASK);
}

struct cgpu_loaded
cgpu_module_loaded(uint32_t kind, const void *handle)
{
    struct cgpu_holding holding;
    if (!cgpu_account_find(kind, (uint64_t)(uintptr_t)handle, &holding)) {
        return (struct cgpu_loaded){.serial = 0, .bound = CGPU_CODE_SLACK};
    }
    return (struct cgpu_loaded){holding.extra >> BOUND_BITS, (holding.extra & BOUND_MASK) << 20};
}

CUresult
cgpu_library_note_variables(const void *library, uint64_t bytes)
{
    struct cgpu_holding holding = {
        .handle = (uint64_t)(uintptr_t)library,
        .owner = (uint64_t)(uintptr_t)library,
        .extra = bytes,
        .kind = CGPU_KIND_LIBRARY_VARIABLES,
    };
    return bytes != 0 ? cgpu_account_hold(&holding) : CUDA_SUCCESS;
}

static uint64_t
variables_of(const void *library)
{
    struct cgpu_holding holding;
    uint64_t handle = (uint64_t)(uintptr_t)library;
    return cgpu_account_find(CGPU_KIND_LIBRARY_VARIABLES, handle, &holding) ? holding.extra : 0;
}

CUresult
cgpu_library_begin(struct cgpu_code *code, const void *library)
{
    struct cgpu_target target;
    CUresult status = cgpu_target_current(&target);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    struct cgpu_loaded loaded = cgpu_module_loaded(CGPU_KIND_LIBRARY_IMAGE, library);
    uint64_t key = cgpu_kinds_mix(library, target.owner);
    status = cgpu_code_begin(code, cgpu_account_left(loaded.bound, CGPU_KIND_LIBRARY, key));
    code->least = variables_of(library);
    code->payer_kind = CGPU_KIND_LIBRARY;
    code->payer = key;
    return status;
}

/* Bytes of LIBRARY's variables that the current context is not charged for yet. */
static uint64_t
uncharged_variables(const void *library)
{
    struct cgpu_target target;
    uint64_t bytes = variables_of(library);
    if (bytes == 0 || cgpu_target_current(&target) != CUDA_SUCCESS) {
        return 0;
    }
    return cgpu_account_left(bytes, CGPU_KIND_LIBRARY, cgpu_kinds_mix(library, target.owner));
}

CUresult
cgpu_library_load_variables(CUlibrary library)
{
    struct cgpu_code code;
    CUmodule module;
    if (uncharged_variables(library) == 0 || cgpu_library_begin(&code, library) != CUDA_SUCCESS) {
        return CUDA_SUCCESS;
    }
    int mode = cgpu_capture_mode_relax(); /* whatever streams capture */
    CUresult status = cgpu_real.cuLibraryGetModule(&module, library);
    cgpu_capture_mode_restore(mode);
    if (status != CUDA_SUCCESS) { /* no launch will load it either */
        cgpu_code_cancel(&code);
        return CUDA_SUCCESS;
    }
    return cgpu_code_end_loaded(&code, CGPU_KIND_LIBRARY, cgpu_kinds_mix(library, code.owner));
}

CUresult
cgpu_library_note_part(const void *part, const void *library)
{
    struct cgpu_holding holding = {
        .handle = (uint64_t)(uintptr_t)part,
        .owner = (uint64_t)(uintptr_t)library,
        .extra = (uint64_t)(uintptr_t)library,
        .kind = CGPU_KIND_LIBRARY_PART,
    };
    return cgpu_account_hold(&holding);
}

const void *
cgpu_library_of(const void *part)
{
    struct cgpu_holding holding;
    bool known = cgpu_account_find(CGPU_KIND_LIBRARY_PART, (uint64_t)(uintptr_t)part, &holding);
    return known ? (const void *)(uintptr_t)holding.extra : NULL;
}

/*
 * Note that code was unloaded. The driver may reuse its handles, so what was known of them is void.
 */
static CUresult
unloaded(CUresult status)
{
    if (cgpu_state_is_attached()) {
        /* release: pairs with cgpu_function_is_ready */
        __atomic_add_fetch(&cgpu_state->kinds.unloads, 1, __ATOMIC_RELEASE);
    }
    return status;
}

CUresult
cgpu_module_unload(CUresult (*real)(CUmodule), CUmodule module)
{
    struct cgpu_holding holding;
    bool held = cgpu_account_take(CGPU_KIND_MODULE, (uint64_t)(uintptr_t)module, &holding);
    return cgpu_account_end_free(held ? &holding : NULL, unloaded(real(module)));
}

/* Remove LIBRARY's holdings in all contexts, and copy them to TAKEN. Returns their number. */
static size_t
take_all(CUlibrary library, struct cgpu_holding taken[CGPU_MAX_LISTED])
{
    size_t count = 0;
    size_t contexts =
        cgpu_holdings_list(cgpu_state->holdings, CGPU_KIND_CONTEXT, taken, CGPU_MAX_LISTED);
    for (size_t i = 0; i < contexts && i < CGPU_MAX_LISTED; i++) {
        uint64_t key = cgpu_kinds_mix(library, taken[i].handle);
        count += cgpu_account_take(CGPU_KIND_LIBRARY, key, &taken[count]);
    }
    return count;
}

CUresult
cgpu_module_unload_library(CUresult (*real)(CUlibrary), CUlibrary library)
{
    struct cgpu_holding taken[CGPU_MAX_LISTED];
    struct cgpu_holding image;
    if (!cgpu_state_is_attached()) {
        return real(library);
    }
    size_t count = take_all(library, taken);
    bool noted = cgpu_account_take(CGPU_KIND_LIBRARY_IMAGE, (uint64_t)(uintptr_t)library, &image);
    CUresult status = unloaded(real(library));
    for (size_t i = 0; i < count; i++) {
        (void)cgpu_account_end_free(&taken[i], status);
    }
    (void)cgpu_account_end_free(noted ? &image : NULL, status);
    if (status == CUDA_SUCCESS) { /* remove its records, which cost nothing */
        cgpu_account_give_back_owned((uint64_t)(uintptr_t)library);
    }
    return status;
}

/* Get the library's module. This may load its code. */
CUresult
cgpu_module_of_library(CUresult (*real)(CUmodule *, CUlibrary), CUmodule *module, CUlibrary library)
{
    struct cgpu_code code;
    CUresult status = cgpu_library_begin(&code, library);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    status = real(module, library);
    if (status != CUDA_SUCCESS) {
        cgpu_code_cancel(&code);
        return status;
    }
    status = cgpu_code_end_loaded(&code, CGPU_KIND_LIBRARY, cgpu_kinds_mix(library, code.owner));
    return status == CUDA_SUCCESS && module != NULL ? cgpu_library_note_part(*module, library)
                                                    : status;
}
