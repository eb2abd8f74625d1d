#include "runtime_child.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FAILED = 1 }; /* as runc */

/*
 * Called in the child: become the low-level runtime. CHILD_ACTION: the handling of SIGCHLD that
 * this program inherited.
 */
static _Noreturn void
exec_runtime(const struct cgpu_runtime_child *runtime, pid_t parent, void (*child_action)(int),
             const struct cgpu_report *report, const char *program, char **argv)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(FAILED);
    }
    signal(SIGCHLD, child_action);
    sigprocmask(SIG_SETMASK, &runtime->before, NULL);
    execv(program, argv);
    cgpu_report_error(report, "%s: %s", program, strerror(errno));
    _exit(FAILED);
}

int
cgpu_runtime_child_start(struct cgpu_runtime_child *out, const struct cgpu_report *report,
                         const char *program, char **argv)
{
    sigset_t all;
    pid_t own = getpid();
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &out->before);
    /* With SIGCHLD ignored, the exit status would be lost. */
    void (*child_action)(int) = signal(SIGCHLD, SIG_DFL);
    out->child = fork();
    if (out->child == 0) {
        exec_runtime(out, own, child_action, report, program, argv);
    }
    if (out->child < 0) {
        signal(SIGCHLD, child_action);
        sigprocmask(SIG_SETMASK, &out->before, NULL);
        return -1;
    }
    return 0;
}

/*
 * Forward a signal that a process sent. Signals from the kernel come from the terminal and reach
 * the whole process group, which includes the runtime.
 */
static void
forward_signal(pid_t child, const siginfo_t *info)
{
    if (info->si_code <= 0) {
        kill(child, info->si_signo);
    }
}

/*
 * Close our copies of the descriptors. Somebody who reads a pipe to its end should wait for the
 * runtime, not for us.
 */
static void
release_descriptors(void)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; null >= 0 && fd <= STDERR_FILENO; fd++) {
        dup2(null, fd);
    }
    syscall(SYS_close_range, 3U, ~0U, 0U);
}

/*
 * Whether a terminal has stopped the job. If so, this process stops too: the shell then sees it,
 * and later continues the whole group.
 */
static bool
is_job_stopped(int status)
{
    return WIFSTOPPED(status) && WSTOPSIG(status) != SIGSTOP;
}

int
cgpu_runtime_child_wait(const struct cgpu_runtime_child *runtime)
{
    sigset_t all;
    siginfo_t info;
    int status;
    sigfillset(&all);
    release_descriptors();
    for (;;) {
        pid_t changed = waitpid(-1, &status, WNOHANG | WUNTRACED);
        if (changed < 0 && errno != EINTR) {
            return FAILED << 8;
        }
        if (changed > 0 && changed != runtime->child) {
            continue; /* the editor, which has informed the server meanwhile */
        }
        if (changed > 0 && !WIFSTOPPED(status)) {
            return status;
        }
        if (changed > 0 && is_job_stopped(status)) {
            raise(SIGSTOP);
        }
        if (changed == 0 && sigwaitinfo(&all, &info) > 0 && info.si_signo != SIGCHLD) {
            forward_signal(runtime->child, &info);
        }
    }
}

_Noreturn void
cgpu_runtime_child_end(int status)
{
    if (WIFSIGNALED(status)) {
        const struct rlimit none = {0, 0};
        sigset_t all;
        setrlimit(RLIMIT_CORE, &none); /* the runtime has dumped its own core */
        signal(WTERMSIG(status), SIG_DFL);
        sigfillset(&all);
        raise(WTERMSIG(status));
        sigprocmask(SIG_UNBLOCK, &all, NULL);
    }
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}
