/*
 * Variables of modules and libraries. Their addresses are given out unless they are managed. When a
 * program asks for a variable of a library, the driver may load the library.
 */
#include "entry/shim.h"
#include "memory/code/code.h"
#include "memory/code/library.h"
#include "memory/code/module.h"

static bool
is_managed(CUdeviceptr address)
{
    unsigned int managed = 0;
    return cgpu_real.cuPointerGetAttribute(&managed, CU_POINTER_IS_MANAGED, address) ==
               CUDA_SUCCESS &&
           managed != 0;
}

/*
 * Give ADDRESS, which the driver returned, to the program at DPTR (or NULL), unless it is managed.
 */
static CUresult
hand_out(CUdeviceptr address, CUdeviceptr *dptr, const char *name)
{
    if (address != 0 && is_managed(address)) {
        return cgpu_module_refuse_managed(name);
    }
    if (dptr != NULL) {
        *dptr = address;
    }
    return CUDA_SUCCESS;
}

CUresult
cgpu_module_get_global(CUresult (*real)(CUdeviceptr *, size_t *, CUmodule, const char *),
                       CUdeviceptr *dptr, size_t *bytes, CUmodule module, const char *name)
{
    CUdeviceptr address = 0;
    CUresult status = real(dptr == NULL && bytes == NULL ? NULL : &address, bytes, module, name);
    return status == CUDA_SUCCESS ? hand_out(address, dptr, "cuModuleGetGlobal") : status;
}

CUresult
cgpu_module_get_global_v1(CUresult (*real)(CUdeviceptr_v1 *, unsigned int *, CUmodule,
                                           const char *),
                          CUdeviceptr_v1 *dptr, unsigned int *bytes, CUmodule module,
                          const char *name)
{
    CUresult status = real(dptr, bytes, module, name);
    CUdeviceptr address = 0;
    return status == CUDA_SUCCESS && dptr != NULL ? hand_out(*dptr, &address, "cuModuleGetGlobal")
                                                  : status;
}

CUresult
cgpu_module_get_library_global(CUresult (*real)(CUdeviceptr *, size_t *, CUlibrary, const char *),
                               CUdeviceptr *dptr, size_t *bytes, CUlibrary library,
                               const char *name)
{
    struct cgpu_code code;
    CUdeviceptr address = 0;
    CUresult status = cgpu_library_begin(&code, library);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    status = real(dptr == NULL && bytes == NULL ? NULL : &address, bytes, library, name);
    CUresult kept =
        cgpu_code_end_loaded(&code, CGPU_KIND_LIBRARY, cgpu_kinds_mix(library, code.owner));
    if (status != CUDA_SUCCESS || kept != CUDA_SUCCESS) {
        return status != CUDA_SUCCESS ? status : kept;
    }
    return hand_out(address, dptr, "cuLibraryGetGlobal");
}
