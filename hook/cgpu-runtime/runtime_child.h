/*
 * The low-level runtime as a child of this process: the caller sends its signals to this one, which
 * forwards them, stops as the runtime stops and ends as it ends.
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
 * Start PROGRAM with everything that this process was given: descriptors, group, terminal, signals.
 * It dies with this process. Returns 0, or -1 if no process can be created. If PROGRAM cannot be
 * run, REPORT gets the sentence.
 */
int cgpu_runtime_child_start(struct cgpu_runtime_child *out, const struct cgpu_report *report,
                             const char *program, char **argv);

/* Forward signals until the runtime ends. Returns its wait status. */
int cgpu_runtime_child_wait(const struct cgpu_runtime_child *runtime);

/* End this process as the runtime ended, which had this wait STATUS. */
_Noreturn void cgpu_runtime_child_end(int status);

#endif
