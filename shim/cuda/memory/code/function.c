/*
 * Functions. The driver may load their code only when a program asks for them, or even at their
 * first launch.
 *
 * At a launch it is too late to refuse, and a check would take too long. So when a program first
 * asks for a function, the function is loaded at once (cuFuncLoad, if the driver has it), and
 * charged together with the local memory that its launches need. The runtime library asks for a
 * function just before it launches it, so little is loaded in vain. The result is remembered until
 * code is unloaded or a context comes or goes, because the function's address may then belong to
 * another one.
 *
 * Assumed of the driver: with lazy loading, code is taken when its function is asked for, loaded or
 * launched, and a function's need of local memory is known without a launch.
 */
#include "memory/code/function.h"
#include "entry/shim.h"
#include "memory/account.h"
#include "memory/code/code.h"
#include "memory/code/library.h"
#include "memory/code/module.h"
#include "memory/growth.h"
#include "memory/target.h"

#define FNV_BASIS UINT64_C(0xcbf29ce484222325)
#define FNV_PRIME UINT64_C(0x100000001b3)

/*
 * The time stamp of a function's record; the record's other half identifies the function. A record
 * with an older stamp is void, because the address may belong to something else.
 */
static uint64_t
mark(void)
{
    /* acquire: what was removed before the count rose is gone */
    uint32_t unloads = __atomic_load_n(&cgpu_state->kinds.unloads, __ATOMIC_ACQUIRE);
    uint32_t contexts = __atomic_load_n(&cgpu_state->generation, __ATOMIC_ACQUIRE);
    return (uint64_t)(unloads + contexts * UINT32_C(0x9e3779b1)) << 32;
}

static uint32_t
tag(CUfunction function)
{
    return (uint32_t)((uintptr_t)function >> 4);
}

bool
cgpu_function_is_ready(uint64_t key, struct cgpu_holding *ready)
{
    return cgpu_account_find(CGPU_KIND_READY, key, ready) &&
           (ready->extra & ~(uint64_t)UINT32_MAX) == mark();
}

bool
cgpu_function_is_same(const struct cgpu_holding *ready, CUfunction function)
{
    return (uint32_t)ready->extra == tag(function);
}

static bool
is_seen(CUfunction function, const struct cgpu_function_origin *origin)
{
    struct cgpu_holding holding;
    return origin->serial != 0 &&
           cgpu_account_find(CGPU_KIND_FUNCTION, (uint64_t)(uintptr_t)function, &holding) &&
           holding.extra == origin->serial;
}

/* Note that a function was checked. If that fails, the function is checked again the next time. */
static void
note(uint32_t kind, uint64_t handle, uint64_t extra, const struct cgpu_code *code)
{
    struct cgpu_holding holding = {
        .handle = handle,
        .owner = code->owner,
        .extra = extra,
        .kind = kind,
        .gpu = (uint32_t)code->gpu,
    };
    (void)cgpu_account_hold(&holding);
}

/* Load FUNCTION even while streams capture: the program did not ask for this call. */
static void
load(CUfunction function)
{
    int mode = cgpu_capture_mode_relax();
    cgpu_real.cuFuncLoad(function);
    cgpu_capture_mode_restore(mode);
}

static uint64_t
local_bytes(CUfunction function)
{
    int local = 0;
    cgpu_real.cuFuncGetAttribute(&local, CU_FUNCTION_LOCAL_BYTES, function);
    return local > 0 ? (uint64_t)local : 0;
}

static CUresult
charge_local(const struct cgpu_function_origin *origin, uint64_t bytes)
{
    struct cgpu_target target = {.gpu = origin->gpu, .owner = origin->owner};
    return bytes != 0 ? cgpu_growth_local_memory(&target, bytes) : CUDA_SUCCESS;
}

CUresult
cgpu_function_look(CUfunction function, const struct cgpu_function_origin *origin,
                   struct cgpu_code *code, uint64_t key)
{
    uint64_t now = mark();
    uint64_t handle = (uint64_t)(uintptr_t)function;
    bool seen = is_seen(function, origin);
    if (!seen) {
        load(function);
    }
    uint64_t local = seen ? 0 : local_bytes(function);
    CUresult status = cgpu_code_end_loaded(
        code, origin->kind, origin->kind != CGPU_KIND_FUNCTION ? origin->payer : handle);
    if (status == CUDA_SUCCESS) {
        status = charge_local(origin, local);
    }
    if (status == CUDA_SUCCESS && !seen && origin->kind != CGPU_KIND_FUNCTION) {
        note(CGPU_KIND_FUNCTION, handle, origin->serial, code);
    }
    if (status == CUDA_SUCCESS) {
        note(CGPU_KIND_READY, key, now | tag(function), code);
    }
    return status;
}

/*
 * Find where MODULE's functions run and who pays for them: the module's own context, even if
 * another one is current.
 */
static uint64_t
find_origin(CUmodule module, struct cgpu_function_origin *origin)
{
    struct cgpu_holding holding;
    struct cgpu_target target = {.gpu = CGPU_NO_GPU};
    struct cgpu_loaded loaded;
    const void *library = cgpu_library_of(module);
    uint64_t handle = (uint64_t)(uintptr_t)module;
    (void)cgpu_target_current(&target);
    *origin = (struct cgpu_function_origin){
        .payer = handle,
        .kind = CGPU_KIND_MODULE,
        .gpu = target.gpu,
        .owner = target.owner,
    };
    if (library != NULL) {
        loaded = cgpu_module_loaded(CGPU_KIND_LIBRARY_IMAGE, library);
        origin->kind = CGPU_KIND_LIBRARY;
        origin->payer = cgpu_kinds_mix(library, target.owner);
    } else {
        loaded = cgpu_module_loaded(CGPU_KIND_MODULE, module);
        if (cgpu_account_find(CGPU_KIND_MODULE, handle, &holding)) {
            origin->gpu = (int32_t)holding.gpu;
            origin->owner = holding.owner;
        }
    }
    origin->serial = loaded.serial;
    return cgpu_account_left(loaded.bound, origin->kind, origin->payer);
}

static uint64_t
hash(const char *name)
{
    uint64_t value = FNV_BASIS;
    for (; *name != '\0'; name++) {
        value = (value ^ (unsigned char)*name) * FNV_PRIME;
    }
    return value;
}

/*
 * Unless STATUS is success, clear *FUNCTION, so that a program that ignores STATUS cannot launch
 * it.
 */
static CUresult
hand_out(CUresult status, CUfunction *function)
{
    if (status != CUDA_SUCCESS) {
        *function = NULL;
    }
    return status;
}

CUresult
cgpu_function_get(CUresult (*real)(CUfunction *, CUmodule, const char *), CUfunction *function,
                  CUmodule module, const char *name)
{
    struct cgpu_code code;
    struct cgpu_holding known;
    struct cgpu_function_origin origin;
    if (name == NULL || function == NULL) {
        return real(function, module, name);
    }
    uint64_t key = cgpu_kinds_mix(module, hash(name));
    bool ready = cgpu_function_is_ready(key, &known);
    uint64_t bound = ready ? 0 : find_origin(module, &origin);
    bool measured = !ready && cgpu_code_begin_function(&code, bound) == CUDA_SUCCESS;
    CUresult status = real(function, module, name);
    if (status != CUDA_SUCCESS && measured) {
        cgpu_code_cancel(&code);
    }
    if (status != CUDA_SUCCESS || (ready && cgpu_function_is_same(&known, *function))) {
        return status;
    }
    if (!measured) { /* it cannot be charged, or two names share a key */
        bound = find_origin(module, &origin);
        if (is_seen(*function, &origin) || cgpu_code_begin_function(&code, bound) != CUDA_SUCCESS) {
            return status;
        }
    }
    return hand_out(cgpu_function_look(*function, &origin, &code, key), function);
}

/* List a module's functions. None is loaded, because few of them may be launched. */
CUresult
cgpu_function_enumerate(CUresult (*real)(CUfunction *, unsigned int, CUmodule),
                        CUfunction *functions, unsigned int count, CUmodule module)
{
    struct cgpu_code code;
    struct cgpu_function_origin origin;
    unsigned int present = 0;
    uint64_t local = 0;
    uint64_t bound = find_origin(module, &origin);
    CUresult status = real(functions, count, module);
    if (status != CUDA_SUCCESS || functions == NULL ||
        cgpu_real.cuModuleGetFunctionCount(&present, module) != CUDA_SUCCESS ||
        cgpu_code_begin_function(&code, bound) != CUDA_SUCCESS) {
        return status;
    }
    for (unsigned int i = 0; i < count && i < present; i++) {
        uint64_t bytes = local_bytes(functions[i]);
        local = bytes > local ? bytes : local;
    }
    status = cgpu_code_end_loaded(&code, origin.kind, origin.payer);
    status = status == CUDA_SUCCESS ? charge_local(&origin, local) : status;
    for (unsigned int i = 0; i < count && status != CUDA_SUCCESS; i++) {
        functions[i] = NULL;
    }
    return status;
}

CUresult
cgpu_function_load(CUresult (*real)(CUfunction), CUfunction function)
{
    struct cgpu_code code;
    struct cgpu_function_origin origin = {.serial = 0};
    CUmodule module = NULL;
    uint64_t bound = CGPU_CODE_SLACK;
    if (cgpu_real.cuFuncGetModule(&module, function) == CUDA_SUCCESS) {
        bound = find_origin(module, &origin);
    }
    if (is_seen(function, &origin) || cgpu_code_begin_function(&code, bound) != CUDA_SUCCESS) {
        return real(function);
    }
    CUresult status = real(function);
    if (status != CUDA_SUCCESS) {
        cgpu_code_cancel(&code);
        return status;
    }
    return cgpu_function_look(function, &origin, &code, cgpu_kinds_mix(function, 0));
}
