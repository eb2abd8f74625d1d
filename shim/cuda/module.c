/*
 * Loading modules and libraries.
 *
 * A module is loaded in the current context and charged to it. A library is loaded in each context
 * that uses it, when it is first used there, so what is charged for it is held by library and GPU.
 * Managed variables are refused before anything is loaded where the image shows them, else when
 * their address is asked for.
 */
#include "shim.h"

enum { SLACK = 32 << 20 };

/* One load, so that it can be done again. */
struct load {
    const char *name;
    CUresult (*run)(const struct load *load);
    union {
        CUresult (*module)(CUmodule *, const void *);
        CUresult (*module_ex)(CUmodule *, const void *, unsigned int, int *, void **);
        CUresult (*library)(CUlibrary *, const void *, int *, void **, unsigned int, int *, void **,
                            unsigned int);
    } real;
    void **out;        /* CUmodule or CUlibrary */
    const void *image; /* or path */
    int *options, *library_options;
    void **values, **library_values;
    unsigned int count, library_count;
    struct cgpu_image scan;
};

static CUresult
run_module(const struct load *load)
{
    return load->real.module((CUmodule *)load->out, load->image);
}

static CUresult
run_module_ex(const struct load *load)
{
    return load->real.module_ex((CUmodule *)load->out, load->image, load->count, load->options,
                                load->values);
}

static CUresult
run_library(const struct load *load)
{
    return load->real.library((CUlibrary *)load->out, load->image, load->options, load->values,
                              load->count, load->library_options, load->library_values,
                              load->library_count);
}

static uint64_t
bound_of(const struct cgpu_image *image)
{
    return image->bounded ? image->bytes * 2 + SLACK : UINT64_MAX;
}

static bool
is_plausible(const struct cgpu_image *image, uint64_t taken)
{
    return image->bounded || taken <= CGPU_CODE_PLAUSIBLE + image->bytes * 8;
}

static CUresult
refuse_managed(const char *name)
{
    cgpu_log_text(CGPU_LOG_MANAGED,
                  "managed memory is not available here: __managed__ variable refused in ", name);
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* Run LOAD and say what it took. */
static CUresult
run_measured(const struct load *load, struct cgpu_code *code, uint64_t *taken)
{
    CUresult status = cgpu_code_begin(code);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    status = load->run(load);
    *taken = cgpu_code_end(code, bound_of(&load->scan));
    return status;
}

/* Another container may have allocated meanwhile: an implausible figure must come out twice. */
static CUresult
load_module(const struct load *load)
{
    struct cgpu_code code;
    uint64_t taken;
    uint64_t again;
    if (load->scan.managed) {
        return refuse_managed(load->name);
    }
    CUresult status = run_measured(load, &code, &taken);
    if (status == CUDA_SUCCESS && !is_plausible(&load->scan, taken)) {
        cgpu_real.cuModuleUnload((CUmodule)*load->out);
        status = run_measured(load, &code, &again);
        taken = again < taken ? again : taken;
    }
    if (status != CUDA_SUCCESS) {
        return status;
    }
    status = cgpu_code_charge(&code, CGPU_KIND_MODULE, (uint64_t)(uintptr_t)*load->out, taken);
    if (status != CUDA_SUCCESS) {
        cgpu_real.cuModuleUnload((CUmodule)*load->out);
    }
    return status;
}

CUresult
cgpu_module_load_file(CUresult (*real)(CUmodule *, const char *), CUmodule *module,
                      const char *path)
{
    struct load load = {
        .name = "cuModuleLoad",
        .run = run_module,
        .real.module = (CUresult(*)(CUmodule *, const void *))real,
        .out = (void **)module,
        .image = path,
    };
    cgpu_image_scan_file(path, &load.scan);
    return module != NULL ? load_module(&load) : CUDA_ERROR_INVALID_VALUE;
}

CUresult
cgpu_module_load(CUresult (*real)(CUmodule *, const void *), CUmodule *module, const void *image)
{
    struct load load = {
        .name = "cuModuleLoadData",
        .run = run_module,
        .real.module = real,
        .out = (void **)module,
        .image = image,
    };
    cgpu_image_scan(image, &load.scan);
    return module != NULL ? load_module(&load) : CUDA_ERROR_INVALID_VALUE;
}

CUresult
cgpu_module_load_ex(CUresult (*real)(CUmodule *, const void *, unsigned int, int *, void **),
                    CUmodule *module, const void *image, unsigned int count, int *options,
                    void **values)
{
    struct load load = {
        .name = "cuModuleLoadDataEx",
        .run = run_module_ex,
        .real.module_ex = real,
        .out = (void **)module,
        .image = image,
        .options = options,
        .values = values,
        .count = count,
    };
    cgpu_image_scan(image, &load.scan);
    return module != NULL ? load_module(&load) : CUDA_ERROR_INVALID_VALUE;
}

/* Handles are addresses, of 48 bits at most: six bits say which GPU. */
uint64_t
cgpu_module_library_key(const void *library, int32_t gpu)
{
    return (uint64_t)(uintptr_t)library << 6 | (uint64_t)gpu;
}

uint64_t
cgpu_module_library_bound(const void *library)
{
    struct cgpu_holding holding;
    uint64_t handle = (uint64_t)(uintptr_t)library;
    return cgpu_charge_find(CGPU_KIND_LIBRARY_BOUND, handle, &holding) ? holding.extra
                                                                       : CGPU_CODE_PLAUSIBLE;
}

/* A library cannot be loaded again to see whether the figure comes out twice. */
static uint64_t
bound_of_library(const struct cgpu_image *image)
{
    return image->bounded ? bound_of(image) : CGPU_CODE_PLAUSIBLE + image->bytes * 8;
}

static void
note_bound(const struct load *load)
{
    uint64_t handle = (uint64_t)(uintptr_t)*load->out;
    struct cgpu_holding holding = {
        .handle = handle,
        .owner = handle,
        .extra = bound_of_library(&load->scan),
        .kind = CGPU_KIND_LIBRARY_BOUND,
    };
    if (cgpu_state_is_attached()) {
        (void)cgpu_charge_hold(&holding); /* without it the usual bound applies */
    }
}

/* Run LOAD without a current context, where nothing is loaded yet. */
static CUresult
load_nowhere(const struct load *load)
{
    CUresult status = load->run(load);
    if (status == CUDA_SUCCESS) {
        note_bound(load);
    }
    return status;
}

static CUresult
load_library(const struct load *load)
{
    struct cgpu_code code;
    if (load->scan.managed) {
        return refuse_managed(load->name);
    }
    CUresult status = cgpu_code_begin(&code);
    if (status != CUDA_SUCCESS) {
        return status == CUDA_ERROR_INVALID_CONTEXT ? load_nowhere(load) : status;
    }
    status = load->run(load);
    uint64_t taken = cgpu_code_end(&code, bound_of_library(&load->scan));
    if (status != CUDA_SUCCESS) {
        return status;
    }
    note_bound(load);
    status = cgpu_code_charge(&code, CGPU_KIND_LIBRARY,
                              cgpu_module_library_key(*load->out, code.gpu), taken);
    if (status != CUDA_SUCCESS) {
        cgpu_real.cuLibraryUnload((CUlibrary)*load->out);
    }
    return status;
}

CUresult
cgpu_module_load_library(CUresult (*real)(CUlibrary *, const void *, int *, void **, unsigned int,
                                          int *, void **, unsigned int),
                         CUlibrary *library, const void *image, int *options, void **values,
                         unsigned int count, int *library_options, void **library_values,
                         unsigned int library_count)
{
    struct load load = {
        .name = "cuLibraryLoadData",
        .run = run_library,
        .real.library = real,
        .out = (void **)library,
        .image = image,
        .options = options,
        .values = values,
        .count = count,
        .library_options = library_options,
        .library_values = library_values,
        .library_count = library_count,
    };
    cgpu_image_scan(image, &load.scan);
    return library != NULL ? load_library(&load) : CUDA_ERROR_INVALID_VALUE;
}

CUresult
cgpu_module_load_library_file(CUresult (*real)(CUlibrary *, const char *, int *, void **,
                                               unsigned int, int *, void **, unsigned int),
                              CUlibrary *library, const char *path, int *options, void **values,
                              unsigned int count, int *library_options, void **library_values,
                              unsigned int library_count)
{
    struct load load = {
        .name = "cuLibraryLoadFromFile",
        .run = run_library,
        .out = (void **)library,
        .image = path,
        .options = options,
        .values = values,
        .count = count,
        .library_options = library_options,
        .library_values = library_values,
        .library_count = library_count,
    };
    load.real.library = (CUresult(*)(CUlibrary *, const void *, int *, void **, unsigned int, int *,
                                     void **, unsigned int))real;
    cgpu_image_scan_file(path, &load.scan);
    return library != NULL ? load_library(&load) : CUDA_ERROR_INVALID_VALUE;
}

CUresult
cgpu_module_unload(CUresult (*real)(CUmodule), CUmodule module)
{
    struct cgpu_holding holding;
    bool held = cgpu_charge_take(CGPU_KIND_MODULE, (uint64_t)(uintptr_t)module, &holding);
    return cgpu_charge_settle(held ? &holding : NULL, real(module));
}

CUresult
cgpu_module_unload_library(CUresult (*real)(CUlibrary), CUlibrary library)
{
    struct cgpu_holding taken[CGPU_MAX_GPUS];
    unsigned int count = 0;
    for (int32_t gpu = 0; gpu < CGPU_MAX_GPUS; gpu++) {
        count += cgpu_charge_take(CGPU_KIND_LIBRARY, cgpu_module_library_key(library, gpu),
                                  &taken[count]);
    }
    CUresult status = real(library);
    for (unsigned int i = 0; i < count; i++) {
        (void)cgpu_charge_settle(&taken[i], status);
    }
    if (status == CUDA_SUCCESS) {
        cgpu_charge_give_back_owned(
            (uint64_t)(uintptr_t)library); /* its kernels, which cost nothing */
    }
    return status;
}

/* The library's code may be loaded by this use of it. */
CUresult
cgpu_module_of_library(CUresult (*real)(CUmodule *, CUlibrary), CUmodule *module, CUlibrary library)
{
    struct cgpu_code code;
    CUresult status = cgpu_code_begin(&code);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    status = real(module, library);
    uint64_t taken = cgpu_code_end(&code, cgpu_module_library_bound(library));
    if (status != CUDA_SUCCESS) {
        return status;
    }
    return cgpu_code_charge_loaded(&code, CGPU_KIND_LIBRARY,
                                   cgpu_module_library_key(library, code.gpu), taken);
}

static bool
is_managed(CUdeviceptr address)
{
    unsigned int managed = 0;
    return cgpu_real.cuPointerGetAttribute(&managed, CU_POINTER_IS_MANAGED, address) ==
               CUDA_SUCCESS &&
           managed != 0;
}

/* The driver gave out ADDRESS; DPTR is where the program wants it, or NULL. */
static CUresult
hand_out(CUdeviceptr address, CUdeviceptr *dptr, const char *name)
{
    if (address != 0 && is_managed(address)) {
        return refuse_managed(name);
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
    CUresult status = cgpu_code_begin(&code);
    if (status != CUDA_SUCCESS) {
        return status;
    }
    status = real(dptr == NULL && bytes == NULL ? NULL : &address, bytes, library, name);
    uint64_t taken = cgpu_code_end(&code, cgpu_module_library_bound(library));
    CUresult kept = cgpu_code_charge_loaded(&code, CGPU_KIND_LIBRARY,
                                            cgpu_module_library_key(library, code.gpu), taken);
    if (status != CUDA_SUCCESS || kept != CUDA_SUCCESS) {
        return status != CUDA_SUCCESS ? status : kept;
    }
    return hand_out(address, dptr, "cuLibraryGetGlobal");
}
