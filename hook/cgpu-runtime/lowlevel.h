/* The low-level runtime that does the work: runc, crun or another. */
#ifndef CGPU_LOWLEVEL_H
#define CGPU_LOWLEVEL_H

#include <limits.h>
#include <stddef.h>
#include <sys/types.h>

#include "arguments.h"

/*
 * Find the runtime: GIVEN, else the one in /etc/cgpu/runtime, else in the usual directories. Sets
 * OUT to its absolute path and returns NULL, or returns what is wrong.
 */
const char *cgpu_lowlevel_find(const char *given, char out[PATH_MAX]);

/*
 * Set OUT to the directory that RUNTIME probably keeps as long as container ID exists. RUNTIME may
 * be runc or crun under another name.
 */
void cgpu_lowlevel_state(const char *runtime, const char *root, const char *id, char *out,
                         size_t size);

/*
 * The first process of the container that ARGUMENTS created, as RUNTIME reports it; 0: it reports
 * none, perhaps because that process has ended.
 */
pid_t cgpu_lowlevel_process(const char *runtime, const struct cgpu_arguments *arguments);

/* Make RUNTIME kill and delete that container. */
void cgpu_lowlevel_delete(const char *runtime, const struct cgpu_arguments *arguments);

#endif
