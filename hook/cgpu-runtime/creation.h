/*
 * A container of ours that is being created. Its configuration is changed before the low-level
 * runtime reads it. If the runtime then fails to create it, its share is given back at once.
 */
#ifndef CGPU_CREATION_H
#define CGPU_CREATION_H

#include <limits.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "arguments.h"
#include "python.h"
#include "report.h"

struct cgpu_creation {
    const struct cgpu_arguments *arguments;
    const struct cgpu_report *report;
    const char *runtime;
    struct cgpu_python python;
    char pid[24]; /* the share's owner: this process */
    char runtime_dir[PATH_MAX *
                     2];  /* where the low-level runtime should keep the container's state */
    struct statx before;  /* what was at RUNTIME_DIR before the runtime began; inode 0: nothing */
    char share[PATH_MAX]; /* the directory of its share; empty: cgpu is off for it */
};

/*
 * Change CONFIG. Returns 0, or -1 after an error message. The editor may still run then: it informs
 * the server of the container, and the low-level runtime need not wait for that.
 */
int cgpu_creation_edit(struct cgpu_creation *creation, const struct cgpu_arguments *arguments,
                       const struct cgpu_report *report, const char *runtime, const char *bundle,
                       const char *config);

/* Whether the low-level runtime has another container with this id already, and so will fail. */
bool cgpu_creation_is_taken(const struct cgpu_creation *creation);

/*
 * End the creation; the low-level runtime has ended with STATUS. If it has no such container, give
 * the share back. If it keeps the container's state elsewhere than expected, the share goes to the
 * container's process. Returns the wait status to end with.
 */
int cgpu_creation_end(struct cgpu_creation *creation, int status);

#endif
