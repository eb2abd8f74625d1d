#include "creation.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lowlevel.h"

enum { FAILED = 1 }; /* as runc */

/*
 * Whether there is a file at PATH; OUT gets its inode and birth time, by which a new file differs
 * from one that was removed.
 */
static bool
stat_path(const char *path, struct statx *out)
{
    memset(out, 0, sizeof *out);
    return statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_INO | STATX_BTIME, out) == 0 ||
           errno != ENOENT;
}

int
cgpu_creation_edit(struct cgpu_creation *creation, const struct cgpu_arguments *arguments,
                   const struct cgpu_report *report, const char *runtime, const char *bundle,
                   const char *config)
{
    creation->arguments = arguments;
    creation->report = report;
    creation->runtime = runtime;
    if (arguments->positionals != 1) {
        cgpu_report_error(report, "cannot tell the container's id from the command line");
        return -1;
    }
    const char *why = cgpu_python_find(&creation->python);
    if (why != NULL) {
        cgpu_report_error(report, "%s", why);
        return -1;
    }
    cgpu_lowlevel_state(runtime, arguments->root, arguments->id, creation->runtime_dir,
                        sizeof creation->runtime_dir);
    snprintf(creation->pid, sizeof creation->pid, "%d", getpid());
    const char *command[CGPU_PYTHON_ARGUMENTS + 1] = {"edit",
                                                      "--config",
                                                      config,
                                                      "--bundle",
                                                      bundle,
                                                      "--id",
                                                      arguments->id,
                                                      "--pid",
                                                      creation->pid,
                                                      "--runtime-dir",
                                                      creation->runtime_dir};
    size_t count = 11;
    if (arguments->state_dir != NULL) {
        command[count++] = "--state-dir";
        command[count++] = arguments->state_dir;
    }
    if (arguments->driver_dir != NULL) {
        command[count++] = "--driver-dir";
        command[count++] = arguments->driver_dir;
    }
    char *output = creation->share;
    if (cgpu_python_run(&creation->python, command, output, sizeof creation->share) != 0) {
        cgpu_report_error(report, "%s", strncmp(output, "cgpu: ", 6) == 0 ? output + 6 : output);
        return -1;
    }
    stat_path(creation->runtime_dir, &creation->before);
    return 0;
}

bool
cgpu_creation_is_taken(const struct cgpu_creation *creation)
{
    return creation->before.stx_ino != 0;
}

static bool
is_same(const struct statx *a, const struct statx *b)
{
    return a->stx_ino == b->stx_ino && a->stx_dev_major == b->stx_dev_major &&
           a->stx_dev_minor == b->stx_dev_minor && a->stx_btime.tv_sec == b->stx_btime.tv_sec &&
           a->stx_btime.tv_nsec == b->stx_btime.tv_nsec;
}

/*
 * The low-level runtime ended with STATUS: whether it created this container, not another one with
 * the same id.
 */
static bool
is_known(const struct cgpu_creation *creation, int status)
{
    struct statx now;
    bool there = stat_path(creation->runtime_dir, &now);
    bool another = cgpu_creation_is_taken(creation) && is_same(&creation->before, &now);
    return there && !(another && status != 0);
}

/*
 * Give the share back, or to PROCESS if that process lives. Returns whether Python answers that
 * this is done.
 */
static bool
give_back(struct cgpu_creation *creation, pid_t process, char *message, size_t size)
{
    const struct cgpu_arguments *arguments = creation->arguments;
    char heir[24];
    snprintf(heir, sizeof heir, "%d", process);
    const char *command[] = {
        "give-back",
        "--id",
        arguments->id,
        "--pid",
        creation->pid,
        "--heir",
        heir,
        arguments->state_dir != NULL ? "--state-dir" : NULL,
        arguments->state_dir,
        NULL,
    };
    return cgpu_python_run(&creation->python, command, message, size) == 0;
}

int
cgpu_creation_end(struct cgpu_creation *creation, int status)
{
    const struct cgpu_arguments *arguments = creation->arguments;
    char message[256];
    struct statx share;
    cgpu_python_wait(&creation->python);
    if (is_known(creation, status) || !stat_path(creation->share, &share)) {
        return status;
    }
    pid_t process = status == 0 ? cgpu_lowlevel_process(creation->runtime, arguments) : 0;
    bool done = give_back(creation, process, message, sizeof message);
    if (process != 0 && !done) {
        cgpu_lowlevel_delete(creation->runtime, arguments);
        cgpu_report_error(creation->report, "%s", message);
        return FAILED << 8;
    }
    return status; /* if a share is not given back, the next admission finds its owner dead */
}
