/* The exported functions and the real ones behind them, generated from hooks.def. */
#include <dlfcn.h>

#include "base.h"
#include "own_names.h"
#include "shim.h"
#include "status.h"

struct cgpu_nvml_real cgpu_nvml_real;

/*
 * How many hooks this thread is in. NVML calls some of its own exports by name; these calls come
 * here.
 */
static __thread uint32_t depth __attribute__((tls_model("initial-exec")));

/* Replaces any function: in every ABI that NVML runs on, the caller cleans up arguments. */
static enum nvml_return
missing(void)
{
    return NVML_ERROR_FUNCTION_NOT_FOUND;
}

static void
resolve(void *library, const char *name, void *slot)
{
    void *address = library != NULL ? dlsym(library, name) : NULL;
    *(void **)slot = address != NULL ? address : (void *)missing;
}

/*
 * Hide the exports that the driver lacks: pynvml and others then use an older version of a
 * function.
 */
static void
hide_missing(void *library)
{
    struct cgpu_own_names own;
    if (!cgpu_own_names_open(&own)) {
        return;
    }
#define HOOK(name, body, parameters, arguments) REJECT(name)
#define REJECT(name)                                                                               \
    if (dlsym(library, #name) == NULL) {                                                           \
        cgpu_own_names_hide(&own, (void *)name);                                                   \
    }
#define REAL(name, parameters)
#include "hooks.def"
#undef HOOK
#undef REJECT
#undef REAL
    cgpu_own_names_close(&own);
}

/*
 * Find the functions now, not at the first call: dlopen and dlsym may allocate, hooks may not. The
 * real library is already loaded (DT_NEEDED); RTLD_NOLOAD just finds it.
 */
__attribute__((constructor)) static void
setup(void)
{
    char path[CGPU_BASE_PATH_SIZE];
    void *library = NULL;
    if (cgpu_base_path(path, sizeof path, "real/libnvidia-ml.so.1") == CGPU_OK) {
        library = dlopen(path, RTLD_NOLOAD | RTLD_LAZY);
    }
#define HOOK(name, body, parameters, arguments) resolve(library, #name, &cgpu_nvml_real.name);
#define REJECT(name)
#define REAL(name, parameters) resolve(library, #name, &cgpu_nvml_real.name);
#include "hooks.def"
#undef HOOK
#undef REJECT
#undef REAL
    cgpu_nvml_export_table_setup();
    cgpu_nvml_view_setup();
    if (library != NULL) {
        hide_missing(library);
    }
}

#define HOOK(name, body, parameters, arguments)                                                    \
    enum nvml_return name parameters                                                               \
    {                                                                                              \
        if (depth != 0) {                                                                          \
            return cgpu_nvml_real.name arguments;                                                  \
        }                                                                                          \
        depth = 1;                                                                                 \
        enum nvml_return status = body(cgpu_nvml_real.name, CGPU_EXPAND arguments);                \
        depth = 0;                                                                                 \
        return status;                                                                             \
    }
#define REJECT(name)                                                                               \
    enum nvml_return name(void)                                                                    \
    {                                                                                              \
        return NVML_ERROR_NOT_SUPPORTED;                                                           \
    }
#define REAL(name, parameters)
#include "hooks.def"
