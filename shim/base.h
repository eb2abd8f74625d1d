/*
 * The directory through which a proxy finds its real library, limits and ledger: /dev/cgpu in a
 * container. It is compiled in with spare room. In a copy of the proxy, cgpu-run writes its
 * session's directory over it (cgpu_shim.relocation).
 */
#ifndef CGPU_BASE_H
#define CGPU_BASE_H

#include <stddef.h>

enum {
    CGPU_BASE_PATH_SIZE = 512 /* room for any path below the base directory */
};

/*
 * Write "<base directory>/NAME" to PATH of SIZE bytes. For "real/<soname>" the result is byte for
 * byte the name in DT_NEEDED, so that dlopen(path, RTLD_NOLOAD) finds the library that is already
 * loaded. CGPU_EINVAL: it does not fit.
 */
int cgpu_base_path(char *path, size_t size, const char *name);

#endif
