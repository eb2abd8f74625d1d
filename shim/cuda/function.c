/*
 * Functions, whose code the driver may load only when they are asked for, or later still, at their
 * first launch.
 *
 * A launch is too late to refuse and too hot to look at, so a function that is seen for the first
 * time is loaded at once (cuFuncLoad, where the driver has it) and what that took is charged,
 * together with the local memory that its launches need. The runtime library asks for a function
 * just before it launches it, so little is loaded in vain.
 */
#include "shim.h"

/* Who is asked for a function, and which holding pays for its code. */
struct origin {
    uint64_t handle; /* module or kernel */
    uint64_t payer;
    uint32_t kind;  /* of the payer: module, library, or the function itself */
    uint64_t bound; /* that loading the code can take at most */
};

static bool
is_seen(CUfunction function, const struct origin *origin)
{
    struct cgpu_holding holding;
    return cgpu_charge_find(CGPU_KIND_FUNCTION, (uint64_t)(uintptr_t)function, &holding) &&
           holding.extra == origin->handle;
}

static CUresult
note_seen(CUfunction function, const struct origin *origin, const struct cgpu_code *code)
{
    struct cgpu_holding holding = {
        .handle = (uint64_t)(uintptr_t)function,
        .owner = code->owner,
        .extra = origin->handle,
        .kind = CGPU_KIND_FUNCTION,
        .gpu = (uint32_t)code->gpu,
    };
    return cgpu_charge_hold(&holding);
}

static CUresult
charge(CUfunction function, const struct origin *origin, const struct cgpu_code *code,
       uint64_t taken, int local)
{
    CUresult status = note_seen(function, origin, code);
    uint64_t payer =
        origin->kind != CGPU_KIND_FUNCTION ? origin->payer : (uint64_t)(uintptr_t)function;
    if (status == CUDA_SUCCESS) {
        status = cgpu_code_charge_loaded(code, origin->kind, payer, taken);
    }
    if (status == CUDA_SUCCESS && local > 0) {
        status = cgpu_growth_local_memory((uint64_t)local);
    }
    if (status != CUDA_SUCCESS) { /* the next time it is looked at again */
        struct cgpu_holding holding;
        (void)(cgpu_charge_find(CGPU_KIND_FUNCTION, (uint64_t)(uintptr_t)function, &holding) &&
               holding.bytes == 0 &&
               cgpu_charge_take(CGPU_KIND_FUNCTION, (uint64_t)(uintptr_t)function, &holding));
    }
    return status;
}

/* Whatever streams capture: the program did not ask for this call. */
static void
load(CUfunction function)
{
    int mode = cgpu_reclaim_relax();
    cgpu_real.cuFuncLoad(function);
    cgpu_reclaim_restore(mode);
}

/* FUNCTION was handed out. MEASURING: since before that; else this begins here. */
static CUresult
settle(CUfunction function, const struct origin *origin, struct cgpu_code *code, bool measuring)
{
    int local = 0;
    if (!measuring) {
        if (is_seen(function, origin) || cgpu_code_begin(code) != CUDA_SUCCESS) {
            return CUDA_SUCCESS;
        }
        load(function);
    }
    cgpu_real.cuFuncGetAttribute(&local, CU_FUNCTION_LOCAL_BYTES, function);
    uint64_t taken = cgpu_code_end(code, origin->bound);
    return is_seen(function, origin) ? CUDA_SUCCESS : charge(function, origin, code, taken, local);
}

/* Does handing out a function load its code, so that it must be measured? */
static bool
must_measure(struct cgpu_code *code)
{
    return !CGPU_REAL_HAS(cuFuncLoad) && cgpu_code_begin(code) == CUDA_SUCCESS;
}

CUresult
cgpu_function_get(CUresult (*real)(CUfunction *, CUmodule, const char *), CUfunction *function,
                  CUmodule module, const char *name)
{
    struct cgpu_code code;
    uint64_t handle = (uint64_t)(uintptr_t)module;
    struct origin origin = {
        .handle = handle,
        .payer = handle,
        .kind = CGPU_KIND_MODULE,
        .bound = CGPU_CODE_PLAUSIBLE,
    };
    bool measuring = must_measure(&code);
    CUresult status = real(function, module, name);
    if (status == CUDA_SUCCESS) {
        return settle(*function, &origin, &code, measuring);
    }
    if (measuring) {
        (void)cgpu_code_end(&code, 0);
    }
    return status;
}

CUresult
cgpu_function_get_kernel(CUresult (*real)(CUkernel *, CUlibrary, const char *), CUkernel *kernel,
                         CUlibrary library, const char *name)
{
    CUresult status = real(kernel, library, name);
    if (status != CUDA_SUCCESS || !cgpu_state_is_attached()) {
        return status;
    }
    struct cgpu_holding holding = {
        .handle = (uint64_t)(uintptr_t)*kernel,
        .owner = (uint64_t)(uintptr_t)library,
        .extra = (uint64_t)(uintptr_t)library,
        .kind = CGPU_KIND_KERNEL,
    };
    return cgpu_charge_hold(&holding);
}

/* A library's kernel: getting its function in a context loads the library there. */
static CUresult
of_kernel(CUresult (*real)(CUfunction *, CUkernel), CUfunction *function, CUkernel kernel,
          struct cgpu_code *code)
{
    struct cgpu_holding known;
    struct origin origin = {
        .handle = (uint64_t)(uintptr_t)kernel,
        .kind = CGPU_KIND_FUNCTION,
        .bound = CGPU_CODE_PLAUSIBLE,
    };
    CUresult status = real(function, kernel);
    if (status != CUDA_SUCCESS) {
        (void)cgpu_code_end(code, 0);
        return status;
    }
    if (cgpu_charge_find(CGPU_KIND_KERNEL, origin.handle, &known)) {
        origin.kind = CGPU_KIND_LIBRARY;
        const void *library = (const void *)(uintptr_t)known.extra;
        origin.payer = cgpu_module_library_key(library, code->gpu);
        origin.bound = cgpu_module_library_bound(library);
    }
    if (!is_seen(*function, &origin)) {
        load(*function);
    }
    return settle(*function, &origin, code, true);
}

CUresult
cgpu_function_of_kernel(CUresult (*real)(CUfunction *, CUkernel), CUfunction *function,
                        CUkernel kernel)
{
    struct cgpu_code code;
    CUresult status = cgpu_code_begin(&code);
    return status == CUDA_SUCCESS ? of_kernel(real, function, kernel, &code) : status;
}

CUresult
cgpu_function_load(CUresult (*real)(CUfunction), CUfunction function)
{
    struct cgpu_code code;
    struct cgpu_holding holding;
    struct origin origin = {.kind = CGPU_KIND_FUNCTION, .bound = CGPU_CODE_PLAUSIBLE};
    if (cgpu_charge_find(CGPU_KIND_FUNCTION, (uint64_t)(uintptr_t)function, &holding) ||
        cgpu_code_begin(&code) != CUDA_SUCCESS) {
        return real(function);
    }
    CUresult status = real(function);
    if (status == CUDA_SUCCESS) {
        return settle(function, &origin, &code, true);
    }
    (void)cgpu_code_end(&code, 0);
    return status;
}
