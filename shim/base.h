/*
 * The one directory through which a proxy finds its real library, limits and ledger: /dev/cgpu in a
 * container. It is compiled in with spare room, and cgpu-run writes its session's directory over it
 * in a copy of the proxy (cgpu_shim.relocate).
 */
#ifndef CGPU_BASE_H
#define CGPU_BASE_H

#include <stddef.h>

enum {
    CGPU_BASE_PATH_SIZE = 512 /* room for any path below the base directory */
};

/*
 * Write "<base directory>/NAME" to PATH of SIZE bytes. The result for "real/<soname>" is byte for
 * byte the name in DT_NEEDED, so that dlopen(path, RTLD_NOLOAD) finds the library that is already
 * loaded. CGPU_EINVAL if it does not fit.
 */
int cgpu_base_path(char *path, size_t size, const char *name);

#endif
