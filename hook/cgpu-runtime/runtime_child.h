/*
 * The low-level runtime as a child of this process. This process forwards signals to it, stops when
 * it stops, and ends as it ends.
 */
#ifndef CGPU_RUNTIME_CHILD_H
#define CGPU_RUNTIME_CHILD_H

#include <signal.h>
#include <sys/types.h>

#include "report.h"

struct cgpu_runtime_child {
    pid_t child;
    sigset_t before; /* the signals that were blocked when we were started */
};

/*
 * Start PROGRAM with all that this process was given: descriptors, group, terminal, signals. It
 * dies with this process. Returns 0, or -1 if no process can be created. If PROGRAM cannot be run,
 * REPORT gets an error message.
 */
int cgpu_runtime_child_start(struct cgpu_runtime_child *out, const struct cgpu_report *report,
                             const char *program, char **argv);

/* Forward signals until the runtime ends. Returns its wait status. */
int cgpu_runtime_child_wait(const struct cgpu_runtime_child *runtime);

/* End this process in the way that STATUS describes, the wait status of the runtime. */
_Noreturn void cgpu_runtime_child_end(int status);

#endif
