#include "lowlevel.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "state.h"

#define CHOSEN "/etc/cgpu/runtime"

enum { MAX_OPTIONS = 64 }; /* before a subcommand */

static const char *const names[] = {"runc", "crun"};
static const char *const folders[] = {"/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"};

/* Whether PATH is another program than this one, which would otherwise start itself for ever. */
static bool
is_usable(const char *path)
{
    struct stat facts, own;
    return stat(path, &facts) == 0 && S_ISREG(facts.st_mode) && access(path, X_OK) == 0 &&
           stat("/proc/self/exe", &own) == 0 &&
           !(facts.st_dev == own.st_dev && facts.st_ino == own.st_ino);
}

const char *
cgpu_lowlevel_find(const char *given, char out[PATH_MAX])
{
    if (given != NULL) {
        bool fits = given[0] == '/' && realpath(given, out) != NULL && is_usable(out);
        return fits ? NULL : "--cgpu-runtime: expected the absolute path of runc, crun or the like";
    }
    if (access(CHOSEN, F_OK) == 0) {
        bool fits = realpath(CHOSEN, out) != NULL && is_usable(out);
        return fits ? NULL : CHOSEN " does not lead to a runtime";
    }
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        for (size_t f = 0; f < sizeof folders / sizeof *folders; f++) {
            snprintf(out, PATH_MAX, "%s/%s", folders[f], names[n]);
            if (is_usable(out)) {
                return NULL;
            }
        }
    }
    return "no low-level runtime found: expected runc or crun, or a link " CHOSEN;
}

/* Find out whether the program FILE is runc or crun; it may be called crun-1.14-linux-amd64. */
static const char *
find_name(const char *file)
{
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        if (strstr(file, names[n]) != NULL) {
            return names[n];
        }
    }
    return file;
}

void
cgpu_lowlevel_state(const char *runtime, const char *root, const char *id, char *out, size_t size)
{
    char absolute[PATH_MAX];
    if (root != NULL) {
        /* The runtime makes it for the first container, so it may not exist yet. */
        bool there = realpath(root, absolute) != NULL;
        bool below = !there && root[0] != '/' && getcwd(absolute, sizeof absolute) != NULL;
        snprintf(out, size, "%s%s%s/%s", there || below ? absolute : "", below ? "/" : "",
                 there ? "" : root, id);
        return;
    }
    const char *name = find_name(strrchr(runtime, '/') + 1);
    const char *user = getenv("XDG_RUNTIME_DIR");
    bool honoured =
        user != NULL && user[0] != '\0' && (geteuid() != 0 || strcmp(name, "crun") == 0);
    snprintf(out, size, "%s/%s/%s", honoured ? user : "/run", name, id);
}

/*
 * Run RUNTIME with the global options of the container's creation and with the words COMMAND, of
 * which the last is the container's id. Its output goes to OUTPUT. Returns its wait status.
 */
static int
run_command(const char *runtime, const struct cgpu_arguments *arguments, const char *const *command,
            int output)
{
    const char *argv[MAX_OPTIONS + 4] = {runtime};
    size_t count = 1;
    sigset_t none;
    int status = -1;
    for (char **word = arguments->forwarded + 1; *word != arguments->subcommand; word++) {
        if (count == MAX_OPTIONS) {
            return -1;
        }
        argv[count++] = *word;
    }
    for (; *command != NULL; command++) {
        argv[count++] = *command;
    }
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        dup2(output, STDOUT_FILENO);
        execv(runtime, (char *const *)argv);
        _exit(127);
    }
    while (child > 0 && waitpid(child, &status, 0) < 0) {
        if (errno != EINTR) {
            return -1;
        }
    }
    return status;
}

pid_t
cgpu_lowlevel_process(const char *runtime, const struct cgpu_arguments *arguments)
{
    const char *command[] = {"state", arguments->id, NULL};
    struct cgpu_document state;
    pid_t process = 0;
    int output = memfd_create("cgpu", MFD_CLOEXEC);
    if (output >= 0 && run_command(runtime, arguments, command, output) == 0 &&
        lseek(output, 0, SEEK_SET) == 0 && cgpu_state_read(output, &state)) {
        process = cgpu_state_number(&state, "pid");
    }
    close(output);
    return process;
}

void
cgpu_lowlevel_delete(const char *runtime, const struct cgpu_arguments *arguments)
{
    const char *command[] = {"delete", "--force", arguments->id, NULL};
    run_command(runtime, arguments, command, STDOUT_FILENO);
}
