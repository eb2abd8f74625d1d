/* The low-level runtime that does the work: runc, crun or another. */
#ifndef CGPU_LOWLEVEL_H
#define CGPU_LOWLEVEL_H

#include <limits.h>
#include <stddef.h>

/* Its absolute path, from GIVEN (or NULL), /etc/cgpu/runtime or the usual directories. */
const char *cgpu_lowlevel_find(const char *given, char out[PATH_MAX]);

/* The directory that it keeps while container ID exists. */
void cgpu_lowlevel_state(const char *runtime, const char *root, const char *id, char *out,
                         size_t size);

#endif
