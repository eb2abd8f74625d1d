/* Modules: code in a context. It costs device memory; its kernels only take time. */
#define _GNU_SOURCE
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

enum { DEFAULT_KERNEL_US = 10, LOCAL_BYTES = 3 };

/* The number in NAME between WORD and UNIT ("spin_250us"), else OTHERWISE. */
static uint64_t
number_in(const char *name, const char *word, const char *unit, uint64_t otherwise)
{
    size_t length = strlen(word);
    for (const char *at = strstr(name, word); at != NULL; at = strstr(at + 1, word)) {
        char *end;
        unsigned long long value = strtoull(at + length, &end, 10);
        if (isdigit((unsigned char)at[length]) && strncmp(end, unit, strlen(unit)) == 0) {
            return value;
        }
    }
    return otherwise;
}

/* A kernel lasts as long as its name says, else $CGPU_SIM_KERNEL_US, else 10 us. */
static uint64_t
duration_ns(const char *name)
{
    const char *set = getenv("CGPU_SIM_KERNEL_US");
    uint64_t otherwise = set != NULL ? strtoull(set, NULL, 10) : DEFAULT_KERNEL_US;
    return number_in(name, "spin_", "us", otherwise) * 1000;
}

/* As many as its name says ("local_9216b"). */
int
sim_local_bytes(const char *name)
{
    return (int)number_in(name, "local_", "b", 0);
}

static void
add_function(struct sim_module *module, const char *name)
{
    static const int attributes[16] = {1024, 0, 0, 0, 32, 75, 75, 0, 48 << 10, -1};
    struct sim_function *function =
        sim_object_new(SIM_FUNCTION, sizeof *function, module->object.owner);
    function->module = module;
    function->name = strdup(name);
    function->duration_ns = duration_ns(name);
    function->polls = strstr(name, "spin_until") != NULL;
    memcpy(function->attributes, attributes, sizeof attributes);
    function->attributes[LOCAL_BYTES] = sim_local_bytes(name);
    function->next = module->functions;
    module->functions = function;
}

static void
lay_out_globals(struct sim_module *module)
{
    module->addresses = calloc(module->image.global_count + 1, sizeof(*module->addresses));
    for (size_t i = 0; i < module->image.global_count; i++) {
        const struct sim_global *global = &module->image.globals[i];
        uint64_t address = sim_pages_map(global->bytes, 4096, 0);
        struct sim_region *region =
            address == 0 ? NULL : sim_region_add(address, global->bytes, SIM_GLOBAL);
        if (region != NULL) {
            region->device = module->object.owner->device;
            region->flags = (uint32_t)global->managed;
            module->addresses[i] = address;
        }
    }
}

/* As measured on an H200, driver 580, for assert: with the first code that calls it. */
static int
take_library(struct sim_context *context, const struct sim_image *image)
{
    const uint64_t bytes = UINT64_C(92) << 20;
    if (!image->calls || context->has_library) {
        return CUDA_SUCCESS;
    }
    int result = sim_take(context->device, bytes);
    if (result == CUDA_SUCCESS) {
        context->has_library = 1;
        context->bytes += bytes;
    }
    return result;
}

int
sim_module_load(struct sim_context *context, const void *data, struct sim_module **out)
{
    struct sim_image image;
    uint64_t bytes = 0;
    if (data == NULL || out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int result = sim_image_parse(data, context->device, &image);
    if (result == CUDA_SUCCESS) {
        bytes = image.bytes;
        for (size_t i = 0; i < image.global_count; i++) {
            bytes += image.globals[i].bytes;
        }
        bytes = sim_round(bytes);
        result = sim_module_is_lazy() ? CUDA_SUCCESS : sim_take(context->device, bytes);
        if (result == CUDA_SUCCESS && !sim_module_is_lazy()) {
            result = take_library(context, &image);
        }
    }
    if (result != CUDA_SUCCESS) {
        sim_image_free(&image);
        return result;
    }
    struct sim_module *module = sim_object_new(SIM_MODULE, sizeof *module, context);
    module->image = image;
    *(sim_module_is_lazy() ? &module->pending : &module->taken) = bytes;
    for (size_t i = 0; i < image.kernel_count; i++) {
        add_function(module, image.kernels[i]);
    }
    lay_out_globals(module);
    *out = module;
    return CUDA_SUCCESS;
}

int
sim_module_is_lazy(void)
{
    return getenv("CGPU_SIM_LAZY") != NULL;
}

int
sim_module_use(struct sim_module *module)
{
    if (module->pending == 0) {
        return CUDA_SUCCESS;
    }
    int result = sim_take(module->object.owner->device, module->pending);
    if (result == CUDA_SUCCESS) {
        result = take_library(module->object.owner, &module->image);
    }
    if (result == CUDA_SUCCESS) {
        module->taken += module->pending;
        module->pending = 0;
    }
    return result;
}

void
sim_module_unload(struct sim_module *module)
{
    for (struct sim_function *i = module->functions, *next; i != NULL; i = next) {
        next = i->next;
        free(i->name);
        sim_object_delete(i);
    }
    for (size_t i = 0; i < module->image.global_count; i++) {
        struct sim_region *region = sim_region_find(module->addresses[i]);
        if (module->addresses[i] != 0 && region != NULL) {
            sim_pages_unmap(region->base, region->bytes);
            sim_region_remove(region);
        }
    }
    sim_give(module->object.owner->device, module->taken);
    sim_image_free(&module->image);
    free(module->addresses);
    sim_object_delete(module);
}

int
sim_module_function(struct sim_module *module, const char *name, struct sim_function **out)
{
    struct sim_function *function = module->functions;
    while (function != NULL && strcmp(function->name, name) != 0) {
        function = function->next;
    }
    *out = function;
    return function == NULL ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

int
sim_module_global(struct sim_module *module, const char *name, uint64_t *address, size_t *bytes)
{
    for (size_t i = 0; i < module->image.global_count; i++) {
        if (strcmp(module->image.globals[i].name, name) == 0) {
            if (address != NULL) {
                *address = module->addresses[i];
            }
            if (bytes != NULL) {
                *bytes = module->image.globals[i].bytes;
            }
            return sim_module_use(module);
        }
    }
    return CUDA_ERROR_NOT_FOUND;
}

static int
load(struct sim_module **out, const void *data)
{
    struct sim_context *context;
    int result = sim_context_current(&context);
    if (result == CUDA_SUCCESS) {
        result = sim_capture_forbids();
    }
    return result == CUDA_SUCCESS ? sim_module_load(context, data, out) : result;
}

SIM_API(cuModuleLoadData, (struct sim_module * *out, const void *data), (out, data))
{
    return load(out, data);
}

SIM_API(cuModuleLoadFatBinary, (struct sim_module * *out, const void *data), (out, data))
{
    return load(out, data);
}

/* There is no compiler that could report something: the logs are empty. */
static void
empty_logs(unsigned count, const int *options, void **values)
{
    for (unsigned i = 0; options != NULL && values != NULL && i < count; i++) {
        if ((options[i] == 3 || options[i] == 5) && values[i] != NULL) {
            *(char *)values[i] = '\0';
        } else if (options[i] == 4 || options[i] == 6) {
            values[i] = NULL; /* bytes written */
        }
    }
}

SIM_API(cuModuleLoadDataEx,
        (struct sim_module * *out, const void *data, unsigned count, int *options, void **values),
        (out, data, count, options, values))
{
    empty_logs(count, options, values);
    return load(out, data);
}

SIM_API(cuModuleLoad, (struct sim_module * *out, const char *path), (out, path))
{
    void *data;
    int result = sim_image_read_file(path, &data);
    if (result == CUDA_SUCCESS) {
        result = load(out, data);
        free(data);
    }
    return result;
}

SIM_API(cuModuleUnload, (struct sim_module * handle), (handle))
{
    struct sim_module *module = sim_object_find(SIM_MODULE, handle);
    if (module == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    sim_item_wait(module->object.owner->device, module->object.owner->device->last_item);
    sim_module_unload(module);
    return CUDA_SUCCESS;
}

SIM_API(cuModuleGetFunction,
        (struct sim_function * *out, struct sim_module *handle, const char *name),
        (out, handle, name))
{
    struct sim_module *module = sim_object_find(SIM_MODULE, handle);
    if (module == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (out == NULL || name == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int result = sim_module_function(module, name, out);
    return result == CUDA_SUCCESS ? sim_module_use(module) : result;
}

SIM_API(cuModuleGetFunctionCount, (unsigned *out, struct sim_module *handle), (out, handle))
{
    struct sim_module *module = sim_object_find(SIM_MODULE, handle);
    if (out == NULL || module == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = (unsigned)module->image.kernel_count;
    return CUDA_SUCCESS;
}

SIM_API(cuModuleEnumerateFunctions,
        (struct sim_function * *out, unsigned count, struct sim_module *handle),
        (out, count, handle))
{
    struct sim_module *module = sim_object_find(SIM_MODULE, handle);
    if (out == NULL || module == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct sim_function *function = module->functions;
    for (unsigned i = 0; i < count && function != NULL; i++, function = function->next) {
        out[i] = function;
    }
    return CUDA_SUCCESS;
}

SIM_API(cuModuleGetGlobal_v2,
        (uint64_t *address, size_t *bytes, struct sim_module *handle, const char *name),
        (address, bytes, handle, name))
{
    struct sim_module *module = sim_object_find(SIM_MODULE, handle);
    if (module == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    return name == NULL ? CUDA_ERROR_INVALID_VALUE
                        : sim_module_global(module, name, address, bytes);
}

SIM_API(cuModuleGetLoadingMode, (int *out), (out))
{
    if (out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = sim_module_is_lazy() ? 2 : 1; /* eager: the memory is taken at load */
    return CUDA_SUCCESS;
}
