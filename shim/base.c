#include "base.h"

#include <string.h>

#include "status.h"

/*
 * The base directory. This string must not be merged with another one, because cgpu-run overwrites
 * its bytes in the file.
 */
static const char base_directory[] = CGPU_BASE;

int
cgpu_base_path(char *path, size_t size, const char *name)
{
    /* The compiler must not use the bytes' values: in the file they may differ. */
    const char *base = base_directory;
    __asm__("" : "+r"(base) : : "memory");

    size_t base_length = strlen(base);
    size_t name_size = strlen(name) + 1;
    if (base_length + 1 + name_size > size) {
        return CGPU_EINVAL;
    }
    memcpy(path, base, base_length);
    path[base_length] = '/';
    memcpy(path + base_length + 1, name, name_size);
    return CGPU_OK;
}
