/*
 * The driver's own functions.
 *
 * The constructor (setup.c) finds them all before any hook can be called, because dlopen and dlsym
 * may allocate, and hooks may not. The real library is already loaded (DT_NEEDED); RTLD_NOLOAD just
 * finds it.
 */
#include <dlfcn.h>

#include "base.h"
#include "entry/shim.h"
#include "own_names.h"

struct cgpu_real cgpu_real;

/*
 * Replaces a missing function, whatever its parameters: in every ABI that CUDA runs on, the caller
 * cleans up arguments.
 */
CUresult
cgpu_real_missing(void)
{
    return CUDA_ERROR_NOT_FOUND;
}

void *
cgpu_real_open(void)
{
    char path[CGPU_BASE_PATH_SIZE];
    if (cgpu_base_path(path, sizeof(path), "real/libcuda.so.1") != 0) {
        return NULL;
    }
    return dlopen(path, RTLD_NOLOAD | RTLD_LAZY);
}

static void
resolve(void *library, const char *name, void **slot)
{
    void *address = library != NULL ? dlsym(library, name) : NULL;
    *slot = address != NULL ? address : (void *)cgpu_real_missing;
}

/*
 * Hide the exports that the driver lacks. Some programs do without a name that does not exist, but
 * give up if a call to it fails.
 */
void
cgpu_real_hide_missing(const void *library)
{
    struct cgpu_own_names own;
    if (library == NULL || !cgpu_own_names_open(&own)) {
        return;
    }
    for (unsigned int i = 0; i < cgpu_hook_count; i++) {
        if (*cgpu_hooks[i].real == (void *)cgpu_real_missing) {
            cgpu_own_names_hide(&own, cgpu_hooks[i].export);
        }
    }
    cgpu_own_names_close(&own);
}

void
cgpu_real_setup(void *library)
{
#define EXPORT(name, parameters) resolve(library, #name, (void **)&cgpu_real.name);
#define REAL                     EXPORT
#include "entry/hooks.def"
}
