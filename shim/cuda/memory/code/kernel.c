/*
 * Kernels of libraries. A kernel's handle can be launched in every context of the process, and
 * nobody has to ask for a function: the runtime library does this since CUDA 12, and asks for a
 * handle just before it launches it.
 *
 * The launch takes the kernel's code, its local memory and the library's variables, but a launch
 * must not be slowed down by a check. So when the handle is given out, the local memory is charged
 * in every context, and in those that come later (growth.c), and the variables in the current
 * context (library.c). Code is measured when a program asks for a function. If none does, the code
 * is small, and is left to the audit.
 *
 * Assumed of the driver: cuKernelGetAttribute takes no device memory, and a kernel needs as much
 * local memory on the process's other GPUs as on the current one.
 */
#include "entry/shim.h"
#include "memory/code/code.h"
#include "memory/code/function.h"
#include "memory/code/library.h"
#include "memory/growth.h"

static uint64_t
local_bytes(CUkernel kernel, CUdevice device)
{
    int local = 0;
    cgpu_real.cuKernelGetAttribute(&local, CU_FUNCTION_LOCAL_BYTES, kernel, device);
    return local > 0 ? (uint64_t)local : 0;
}

/*
 * The local memory of KERNEL on the current device. If no device is current, the most that it needs
 * on any device of the container.
 */
static uint64_t
most_local_bytes(CUkernel kernel)
{
    CUdevice device;
    int count = 0;
    uint64_t most = 0;
    if (cgpu_real.cuCtxGetDevice(&device) == CUDA_SUCCESS) {
        return local_bytes(kernel, device);
    }
    cgpu_real.cuDeviceGetCount(&count);
    for (device = 0; device < count; device++) {
        uint64_t bytes = cgpu_device_gpu(device) >= 0 ? local_bytes(kernel, device) : 0;
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Get a kernel's function in the current context. This loads the library there. */
static CUresult
load_here(CUresult (*real)(CUfunction *, CUkernel), CUfunction *function, CUkernel kernel,
          uint64_t key)
{
    struct cgpu_code code;
    const void *library = cgpu_library_of(kernel);
    CUresult status = cgpu_library_begin(&code, library);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    status = real(function, kernel);
    if (status != CUDA_SUCCESS || function == NULL) {
        cgpu_code_cancel(&code);
        return status;
    }
    struct cgpu_function_origin origin = {
        .serial = cgpu_module_loaded(CGPU_KIND_LIBRARY_IMAGE, library).serial,
        .payer = cgpu_kinds_mix(library, code.owner),
        .kind = library != NULL ? CGPU_KIND_LIBRARY : CGPU_KIND_FUNCTION,
        .gpu = code.gpu,
        .owner = code.owner,
    };
    status = cgpu_function_look(*function, &origin, &code, key);
    if (status != CUDA_SUCCESS) {
        *function = NULL;
    }
    return status;
}

/*
 * Load KERNEL when its handle is given out, if the driver's library for printf, assert and malloc
 * is not there yet. A launch would take that library without a charge, and it is not small.
 */
static CUresult
load_at_once(CUkernel kernel)
{
    CUfunction function = NULL;
    int mode = cgpu_capture_mode_relax();
    CUresult status = cgpu_kernel_function(cgpu_real.cuKernelGetFunction, &function, kernel);
    cgpu_capture_mode_restore(mode);
    return status == CUDA_ERROR_OUT_OF_MEMORY ? status : CUDA_SUCCESS;
}

static CUresult
handed_out(CUkernel kernel, CUlibrary library)
{
    CUresult status = cgpu_library_load_variables(library);
    if (status != CUDA_SUCCESS || cgpu_library_of(kernel) == library) {
        return status;
    }
    status = cgpu_growth_local_memory_everywhere(most_local_bytes(kernel));
    return status == CUDA_SUCCESS ? cgpu_library_note_part(kernel, library) : status;
}

CUresult
cgpu_kernel_get(CUresult (*real)(CUkernel *, CUlibrary, const char *), CUkernel *kernel,
                CUlibrary library, const char *name)
{
    CUresult status = real(kernel, library, name);
    if (status != CUDA_SUCCESS || kernel == NULL || !cgpu_state_is_attached()) {
        return status;
    }
    status = handed_out(*kernel, library);
    if (status == CUDA_SUCCESS && cgpu_code_lacks_library()) {
        status = load_at_once(*kernel);
    }
    if (status != CUDA_SUCCESS) { /* a program that ignores it has nothing to launch */
        *kernel = NULL;
    }
    return status;
}

CUresult
cgpu_kernel_enumerate(CUresult (*real)(CUkernel *, unsigned int, CUlibrary), CUkernel *kernels,
                      unsigned int count, CUlibrary library)
{
    unsigned int present = 0;
    CUresult status = real(kernels, count, library);
    if (status != CUDA_SUCCESS || kernels == NULL || !cgpu_state_is_attached()) {
        return status;
    }
    status = cgpu_real.cuLibraryGetKernelCount(&present, library);
    for (unsigned int i = 0; i < count && i < present && status == CUDA_SUCCESS; i++) {
        status = handed_out(kernels[i], library);
    }
    if (status == CUDA_SUCCESS && count > 0 && present > 0 && cgpu_code_lacks_library()) {
        status = load_at_once(kernels[0]); /* one brings it for all */
    }
    for (unsigned int i = 0; i < count && status != CUDA_SUCCESS; i++) {
        kernels[i] = NULL;
    }
    return status;
}

CUresult
cgpu_kernel_function(CUresult (*real)(CUfunction *, CUkernel), CUfunction *function,
                     CUkernel kernel)
{
    struct cgpu_holding known;
    CUcontext context = NULL;
    cgpu_real.cuCtxGetCurrent(&context);
    uint64_t key = cgpu_kinds_mix(kernel, (uint64_t)(uintptr_t)context);
    return cgpu_function_is_ready(key, &known) ? real(function, kernel)
                                               : load_here(real, function, kernel, key);
}
