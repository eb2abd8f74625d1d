/* The low-level runtime that does the work: runc, crun or another. */
#ifndef CGPU_LOWLEVEL_H
#define CGPU_LOWLEVEL_H

#include <limits.h>
#include <stddef.h>
#include <sys/types.h>

#include "arguments.h"

/* Its absolute path, from GIVEN (or NULL), /etc/cgpu/runtime or the usual directories. */
const char *cgpu_lowlevel_find(const char *given, char out[PATH_MAX]);

/* The directory that it probably keeps while container ID exists; its name need not tell. */
void cgpu_lowlevel_state(const char *runtime, const char *root, const char *id, char *out,
                         size_t size);

/*
 * The first process of the container that ARGUMENTS have created, as RUNTIME itself reports it; 0
 * if it reports none, as of one that has ended.
 */
pid_t cgpu_lowlevel_process(const char *runtime, const struct cgpu_arguments *arguments);

/* Let RUNTIME kill and delete that container. */
void cgpu_lowlevel_delete(const char *runtime, const struct cgpu_arguments *arguments);

#endif
