/* Libraries: code in no context; each context that uses it gets a module when it first does. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "sim.h"

struct sim_kernel {
    struct sim_object object;
    struct sim_library *library;
    const char *name;
};

struct sim_library {
    struct sim_object object;
    struct sim_image image;
    void *data;
    struct sim_kernel **kernels;
};

/* A module that belongs to a library is found by the pair of library and context. */
struct use {
    struct use *next;
    struct sim_library *library;
    struct sim_context *context;
    uint64_t context_id; /* a new context has lost its modules */
    struct sim_module *module;
};

static struct use *uses;

static int
module_of(struct sim_library *library, struct sim_module **out)
{
    struct sim_context *context;
    int result = sim_context_current(&context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct use *use = uses;
    while (use != NULL && (use->library != library || use->context != context)) {
        use = use->next;
    }
    if (use != NULL && use->context_id == context->id) {
        *out = use->module;
        return CUDA_SUCCESS;
    }
    result = sim_module_load(context, library->data, out);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (use == NULL) {
        use = calloc(1, sizeof *use);
        use->next = uses;
        uses = use;
    }
    use->library = library;
    use->context = context;
    use->context_id = context->id;
    use->module = *out;
    return CUDA_SUCCESS;
}

const char *
sim_kernel_name(void *handle)
{
    const struct sim_kernel *kernel = sim_object_find(SIM_KERNEL, handle);
    return kernel != NULL ? kernel->name : NULL;
}

struct sim_function *
sim_function_of(void *handle)
{
    struct sim_function *function = sim_object_find(SIM_FUNCTION, handle);
    struct sim_kernel *kernel = sim_object_find(SIM_KERNEL, handle);
    struct sim_module *module;
    if (kernel != NULL && module_of(kernel->library, &module) == CUDA_SUCCESS) {
        sim_module_function(module, kernel->name, &function);
    }
    return function;
}

static int
load(struct sim_library **out, const void *data)
{
    struct sim_image image;
    if (out == NULL || data == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    /* Its kernels are those that the first GPU finds; a module is made of it for each. */
    int result = sim_image_parse(data, sim_device(0), &image);
    if (result != CUDA_SUCCESS) {
        sim_image_free(&image);
        return result;
    }
    struct sim_library *library = sim_object_new(SIM_LIBRARY, sizeof *library, NULL);
    library->image = image;
    library->data = malloc(image.bytes);
    memcpy(library->data, data, image.bytes);
    library->kernels = calloc(image.kernel_count + 1, sizeof(*library->kernels));
    for (size_t i = 0; i < image.kernel_count; i++) {
        library->kernels[i] = sim_object_new(SIM_KERNEL, sizeof(struct sim_kernel), NULL);
        library->kernels[i]->library = library;
        library->kernels[i]->name = image.kernels[i];
    }
    *out = library;
    return CUDA_SUCCESS;
}

SIM_API(cuLibraryLoadData,
        (struct sim_library * *out, const void *data, void *jit, void *jit_values, unsigned jits,
         void *options, void *values, unsigned count),
        (out, data, jit, jit_values, jits, options, values, count))
{
    (void)jit, (void)jit_values, (void)jits, (void)options, (void)values, (void)count;
    return load(out, data);
}

SIM_API(cuLibraryLoadFromFile,
        (struct sim_library * *out, const char *path, void *jit, void *jit_values, unsigned jits,
         void *options, void *values, unsigned count),
        (out, path, jit, jit_values, jits, options, values, count))
{
    void *data;
    (void)jit, (void)jit_values, (void)jits, (void)options, (void)values, (void)count;
    int result = sim_image_read_file(path, &data);
    if (result == CUDA_SUCCESS) {
        result = load(out, data);
        free(data);
    }
    return result;
}

static void
unload_module(struct use *use)
{
    if (use->context->alive && use->context->id == use->context_id) {
        sim_module_unload(use->module);
    }
}

SIM_API(cuLibraryUnload, (struct sim_library * handle), (handle))
{
    struct sim_library *library = sim_object_find(SIM_LIBRARY, handle);
    if (library == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    for (struct use **at = &uses; *at != NULL;) {
        struct use *use = *at;
        if (use->library == library) {
            *at = use->next;
            unload_module(use);
            free(use);
        } else {
            at = &use->next;
        }
    }
    for (size_t i = 0; i < library->image.kernel_count; i++) {
        sim_object_delete(library->kernels[i]);
    }
    free(library->kernels);
    free(library->data);
    sim_image_free(&library->image);
    sim_object_delete(library);
    return CUDA_SUCCESS;
}

SIM_API(cuLibraryGetKernel,
        (struct sim_kernel * *out, struct sim_library *handle, const char *name),
        (out, handle, name))
{
    struct sim_library *library = sim_object_find(SIM_LIBRARY, handle);
    if (library == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (out == NULL || name == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < library->image.kernel_count; i++) {
        if (strcmp(library->kernels[i]->name, name) == 0) {
            *out = library->kernels[i];
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_NOT_FOUND;
}

SIM_API(cuLibraryGetKernelCount, (unsigned *out, struct sim_library *handle), (out, handle))
{
    struct sim_library *library = sim_object_find(SIM_LIBRARY, handle);
    if (out == NULL || library == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = (unsigned)library->image.kernel_count;
    return CUDA_SUCCESS;
}

SIM_API(cuLibraryEnumerateKernels,
        (struct sim_kernel * *out, unsigned count, struct sim_library *handle),
        (out, count, handle))
{
    struct sim_library *library = sim_object_find(SIM_LIBRARY, handle);
    if (out == NULL || library == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (unsigned i = 0; i < count && i < library->image.kernel_count; i++) {
        out[i] = library->kernels[i];
    }
    return CUDA_SUCCESS;
}

SIM_API(cuLibraryGetModule, (struct sim_module * *out, struct sim_library *handle), (out, handle))
{
    struct sim_library *library = sim_object_find(SIM_LIBRARY, handle);
    if (library == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    return out == NULL ? CUDA_ERROR_INVALID_VALUE : module_of(library, out);
}

SIM_API(cuLibraryGetGlobal,
        (uint64_t *address, size_t *bytes, struct sim_library *handle, const char *name),
        (address, bytes, handle, name))
{
    struct sim_library *library = sim_object_find(SIM_LIBRARY, handle);
    struct sim_module *module;
    if (library == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    int result = name == NULL ? CUDA_ERROR_INVALID_VALUE : module_of(library, &module);
    return result == CUDA_SUCCESS ? sim_module_global(module, name, address, bytes) : result;
}

SIM_API(cuLibraryGetManaged,
        (uint64_t *address, size_t *bytes, struct sim_library *handle, const char *name),
        (address, bytes, handle, name))
{
    struct sim_library *library = sim_object_find(SIM_LIBRARY, handle);
    struct sim_module *module;
    if (library == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    int result = name == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_FOUND;
    for (size_t i = 0; name != NULL && i < library->image.global_count; i++) {
        const struct sim_global *global = &library->image.globals[i];
        if (global->managed && strcmp(global->name, name) == 0) {
            result = module_of(library, &module);
        }
    }
    return result == CUDA_SUCCESS ? sim_module_global(module, name, address, bytes) : result;
}

SIM_API(cuKernelGetFunction, (struct sim_function * *out, struct sim_kernel *handle), (out, handle))
{
    struct sim_kernel *kernel = sim_object_find(SIM_KERNEL, handle);
    struct sim_module *module;
    if (kernel == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    int result = out == NULL ? CUDA_ERROR_INVALID_VALUE : module_of(kernel->library, &module);
    result = result == CUDA_SUCCESS ? sim_module_function(module, kernel->name, out) : result;
    return result == CUDA_SUCCESS ? sim_module_use(module) : result;
}

SIM_API(cuKernelGetName, (const char **out, struct sim_kernel *handle), (out, handle))
{
    struct sim_kernel *kernel = sim_object_find(SIM_KERNEL, handle);
    if (out == NULL || kernel == NULL) {
        return kernel == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    *out = kernel->name;
    return CUDA_SUCCESS;
}
