/*
 * Loading modules and libraries.
 *
 * A module is loaded in the current context, which pays for it and for its functions that are
 * loaded later (function.c). A library is loaded in each context when it is first used there
 * (library.c, kernel.c). If an image shows managed variables, it is refused before anything is
 * loaded; otherwise such a variable is refused when a program asks for its address.
 */
#include "memory/code/module.h"
#include "entry/shim.h"
#include "memory/account.h"
#include "memory/charge.h"
#include "memory/code/code.h"
#include "memory/code/image.h"
#include "memory/code/library.h"

/* One load, which can be repeated. */
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

CUresult
cgpu_module_refuse_managed(const char *name)
{
    cgpu_log_text(CGPU_LOG_MANAGED,
                  "managed memory is not available here: __managed__ variable refused in ", name);
    return CUDA_ERROR_NOT_SUPPORTED;
}

static uint64_t
bound_of(const struct cgpu_image *image)
{
    return image->bytes + CGPU_CODE_SLACK;
}

/*
 * The least that the image's variables take. Small ones count as 0: they may fit into a block that
 * exists.
 */
static uint64_t
least_of(const struct cgpu_image *image)
{
    return image->variables > CGPU_BLOCK_SMALL ? image->variables : 0;
}

/* Run LOAD. If what it took does not fit, undo it. */
static CUresult
load_charged(const struct load *load, struct cgpu_code *code)
{
    cgpu_code_calls(&load->scan);
    CUresult status = cgpu_code_begin(code, bound_of(&load->scan));
    if (status != CUDA_SUCCESS) {
        return status;
    }
    code->least = least_of(&load->scan);
    status = load->run(load);
    if (status != CUDA_SUCCESS) {
        cgpu_code_cancel(code);
        return status;
    }
    status = cgpu_code_end(code);
    if (status != CUDA_SUCCESS) {
        cgpu_real.cuModuleUnload((CUmodule)*load->out);
        cgpu_code_refused(code);
    }
    return status;
}

/*
 * More memory is missing than the image's bound, and parts of the image cannot be read. Either they
 * hold variables, or another container has allocated. Load again: what is missing both times is
 * charged. What the driver adds is missing the first time only.
 */
static CUresult
load_again(const struct load *load, struct cgpu_code *code)
{
    uint64_t charged;
    uint64_t first = code->taken + code->beyond;
    uint64_t library = code->library;
    cgpu_real.cuModuleUnload((CUmodule)*load->out);
    cgpu_account_release(code->gpu, code->taken);
    CUresult status = load_charged(load, code);
    if (status != CUDA_SUCCESS) {
        code->rest = first < library ? first : library;
        cgpu_code_refused(code);
        return status;
    }
    uint64_t second = code->taken + code->beyond;
    uint64_t both = first < second ? first : second;
    uint64_t added = first - both < library ? first - both : library;
    uint64_t more = both + added > code->taken ? both + added - code->taken : 0;
    code->rest = added;
    status = cgpu_charge(code->gpu, more, &charged);
    if (status != CUDA_SUCCESS) {
        cgpu_real.cuModuleUnload((CUmodule)*load->out);
        cgpu_account_release(code->gpu, code->taken);
        cgpu_code_refused(code);
    }
    code->taken += more;
    return status;
}

static CUresult
load_module(const struct load *load)
{
    struct cgpu_code code;
    if (load->scan.managed) {
        return cgpu_module_refuse_managed(load->name);
    }
    CUresult status = load_charged(load, &code);
    if (status == CUDA_SUCCESS && load->scan.hidden && code.beyond > CGPU_CODE_PLAUSIBLE) {
        status = load_again(load, &code);
    }
    if (status != CUDA_SUCCESS) {
        return status;
    }
    struct cgpu_holding holding = {
        .handle = (uint64_t)(uintptr_t)*load->out,
        .owner = code.owner,
        .bytes = code.taken - code.rest,
        .extra = cgpu_module_remember(bound_of(&load->scan)),
        .kind = CGPU_KIND_MODULE,
        .gpu = (uint32_t)code.gpu,
    };
    status = cgpu_account_hold(&holding);
    if (status != CUDA_SUCCESS) {
        cgpu_real.cuModuleUnload((CUmodule)*load->out);
    }
    CUresult kept = cgpu_code_keep_rest(&code); /* also if the module was unloaded */
    return status != CUDA_SUCCESS ? status : kept;
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
    return module != NULL ? load_module(&load) : load.run(&load);
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
    return module != NULL ? load_module(&load) : load.run(&load);
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
    return module != NULL ? load_module(&load) : load.run(&load);
}

static CUresult
note_image(const struct load *load)
{
    struct cgpu_holding holding = {
        .handle = (uint64_t)(uintptr_t)*load->out,
        .extra = cgpu_module_remember(bound_of(&load->scan)),
        .kind = CGPU_KIND_LIBRARY_IMAGE,
    };
    CUresult status = cgpu_account_hold(&holding);
    return status == CUDA_SUCCESS ? cgpu_library_note_variables(*load->out, least_of(&load->scan))
                                  : status;
}

/*
 * Run LOAD, and charge what the library takes in the current context, if there is one. It takes
 * most of its memory later.
 */
static CUresult
load_library_here(const struct load *load)
{
    struct cgpu_code code;
    cgpu_code_calls(&load->scan);
    CUresult status = cgpu_code_begin(&code, bound_of(&load->scan));
    if (status != CUDA_SUCCESS) {
        return status == CUDA_ERROR_INVALID_CONTEXT ? load->run(load) : status;
    }
    status = load->run(load);
    if (status != CUDA_SUCCESS) {
        cgpu_code_cancel(&code);
        return status;
    }
    status = cgpu_code_end(&code);
    if (status == CUDA_SUCCESS) {
        status = cgpu_code_keep(&code, CGPU_KIND_LIBRARY, cgpu_kinds_mix(*load->out, code.owner));
    }
    if (status != CUDA_SUCCESS) {
        cgpu_real.cuLibraryUnload((CUlibrary)*load->out);
        cgpu_code_refused(&code);
    }
    return status;
}

static CUresult
load_library(const struct load *load)
{
    if (load->scan.managed) {
        return cgpu_module_refuse_managed(load->name);
    }
    CUresult status = load_library_here(load);
    if (status == CUDA_SUCCESS && cgpu_state_is_attached() && note_image(load) != CUDA_SUCCESS) {
        cgpu_module_unload_library(cgpu_real.cuLibraryUnload, (CUlibrary)*load->out);
        return CUDA_ERROR_OUT_OF_MEMORY;
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
    return library != NULL ? load_library(&load) : load.run(&load);
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
    return library != NULL ? load_library(&load) : load.run(&load);
}
