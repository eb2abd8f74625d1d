/*
 * The low-level runtime as a child. This process stands in for it: the caller sends its signals
 * here, and sees here how the runtime stopped and ended.
 */
#ifndef CGPU_STAND_IN_H
#define CGPU_STAND_IN_H

#include <signal.h>
#include <sys/types.h>

#include "report.h"

struct cgpu_stand_in {
    pid_t child;
    sigset_t before; /* the signals that were blocked when we were started */
};

/*
 * Start PROGRAM with everything that this process was given: descriptors, group, terminal, signals.
 * It dies with this process. 0, or -1 if no process can be created. If PROGRAM cannot be
 * run, the sentence goes to REPORT.
 */
int cgpu_stand_in_start(struct cgpu_stand_in *out, const struct cgpu_report *report,
                        const char *program, char **argv);

/* Forward signals until it ends. Returns its wait status. */
int cgpu_stand_in_wait(const struct cgpu_stand_in *stand_in);

/* End as it did. */
_Noreturn void cgpu_stand_in_end(int status);

#endif
