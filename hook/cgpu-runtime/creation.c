#include "creation.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lowlevel.h"

int
cgpu_creation_edit(struct cgpu_creation *creation, const struct cgpu_arguments *arguments,
                   const struct cgpu_report *report, const char *runtime, const char *bundle,
                   const char *config)
{
    creation->arguments = arguments;
    if (arguments->positionals != 1) {
        cgpu_report_error(report, "cannot tell the container's id from the command line");
        return -1;
    }
    const char *why = cgpu_python_find(&creation->python);
    if (why != NULL) {
        cgpu_report_error(report, "%s", why);
        return -1;
    }
    cgpu_lowlevel_state(runtime, arguments->root, arguments->id, creation->kept,
                        sizeof creation->kept);
    snprintf(creation->pid, sizeof creation->pid, "%d", getpid());
    const char *command[CGPU_PYTHON_ARGUMENTS + 1] = {
        "edit",        "--config", config,        "--bundle",      bundle,        "--id",
        arguments->id, "--pid",    creation->pid, "--runtime-dir", creation->kept};
    size_t count = 11;
    if (arguments->state_dir != NULL) {
        command[count++] = "--state-dir";
        command[count++] = arguments->state_dir;
    }
    if (arguments->driver_dir != NULL) {
        command[count++] = "--driver-dir";
        command[count++] = arguments->driver_dir;
    }
    char *said = creation->share;
    if (cgpu_python_run(&creation->python, command, said, sizeof creation->share) != 0) {
        cgpu_report_error(report, "%s", strncmp(said, "cgpu: ", 6) == 0 ? said + 6 : said);
        return -1;
    }
    return 0;
}

static bool
is_there(const char *path)
{
    struct stat facts;
    return lstat(path, &facts) == 0 || errno != ENOENT;
}

void
cgpu_creation_settle(struct cgpu_creation *creation)
{
    char message[256];
    const char *state_dir = creation->arguments->state_dir;
    const char *command[] = {"give-back", "--id",        creation->arguments->id,
                             "--pid",     creation->pid, state_dir != NULL ? "--state-dir" : NULL,
                             state_dir,   NULL};
    cgpu_python_wait(&creation->python);
    if (!is_there(creation->kept) && is_there(creation->share)) {
        /* If this fails too, the next admission finds the share's owner dead. */
        cgpu_python_run(&creation->python, command, message, sizeof message);
    }
}
