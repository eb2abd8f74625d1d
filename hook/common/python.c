#include "python.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Relative to the directory of this program: in a source tree, then in an installation. */
static const char *const interpreters[] = {
    "%s/../../../.venv/bin/python3",
    "%s/../../../../../bin/python3",
    "/usr/bin/python3",
};

/* Read the interpreter's path from a file beside this program, if an installer has written one. */
static int
read_interpreter(const char *folder, char *out, size_t size)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/interpreter", folder) >= (int)sizeof path) {
        return -1;
    }
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return -1;
    }
    char *line = fgets(out, (int)size, file);
    fclose(file);
    if (line == NULL) {
        return -1;
    }
    out[strcspn(out, "\n")] = '\0';
    return out[0] == '/' ? 0 : -1;
}

/*
 * Find bootstrap.py: beside this program's package if cgpu is installed, otherwise in the source
 * tree.
 */
static int
find_bootstrap(const char *folder, char *out, size_t size)
{
    static const char *const patterns[] = {"%s/../../cgpu_node/bootstrap.py",
                                           "%s/../../../node/cgpu_node/bootstrap.py"};
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        /* The pattern is one of the table above. */
        int needed = snprintf(out, size, patterns[i], folder);
        if (needed < (int)size && access(out, R_OK) == 0) {
            return 0;
        }
    }
    return -1;
}

const char *
cgpu_python_find(struct cgpu_python *out)
{
    char folder[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 1);
    if (length <= 0) {
        return "cannot read /proc/self/exe";
    }
    folder[length] = '\0';
    *strrchr(folder, '/') = '\0';
    if (find_bootstrap(folder, out->bootstrap, sizeof out->bootstrap) != 0) {
        return "cgpu is not complete: no cgpu_node/bootstrap.py beside its programs";
    }
    if (read_interpreter(folder, out->interpreter, sizeof out->interpreter) == 0) {
        return access(out->interpreter, X_OK) == 0 ? NULL : "the file interpreter names no program";
    }
    for (size_t i = 0; i < sizeof interpreters / sizeof *interpreters; i++) {
        /* The pattern is one of the table above. */
        int needed = snprintf(out->interpreter, sizeof out->interpreter, interpreters[i], folder);
        if (needed < (int)sizeof out->interpreter && access(out->interpreter, X_OK) == 0) {
            return NULL;
        }
    }
    return "no Python found: name it in the file interpreter beside cgpu-runtime";
}

void
cgpu_python_exec(const struct cgpu_python *python, const char *const *arguments)
{
    enum { FIRST = 8 };
    const char *argv[CGPU_PYTHON_ARGUMENTS + FIRST + 1] = {
        python->interpreter, "-I", "-S", "-E", "-X", "utf8", python->bootstrap,
        "cgpu_hook.command"};
    for (size_t i = 0; i < CGPU_PYTHON_ARGUMENTS && arguments[i] != NULL; i++) {
        argv[FIRST + i] = arguments[i];
    }
    /*
     * The directory in which a user other than root keeps state. The engine sets it, or our hook
     * entry has it.
     */
    char runtime_dir[PATH_MAX + 32];
    const char *given = secure_getenv("XDG_RUNTIME_DIR");
    snprintf(runtime_dir, sizeof runtime_dir, "XDG_RUNTIME_DIR=%s", given != NULL ? given : "");
    const char *environment[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C",
                                 geteuid() != 0 && given != NULL ? runtime_dir : NULL, NULL};
    syscall(SYS_close_range, 3U, ~0U, 0U);
    if (chdir("/") == 0) {
        execve(python->interpreter, (char *const *)argv, (char *const *)environment);
    }
}

static void
become_python(const struct cgpu_python *python, const char *const *arguments, int output)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing is decided for a creator that is gone */
    /*
     * If these were closed, it may be 1 or 2 itself; dup2 onto itself would leave it closed at
     * exec.
     */
    output = fcntl(output, F_DUPFD, STDERR_FILENO + 1);
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null < 0 || dup2(null, STDIN_FILENO) < 0) {
        close(STDIN_FILENO);
    }
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    cgpu_python_exec(python, arguments);
    dprintf(STDERR_FILENO, "%s cannot be started: %s\n", python->interpreter, strerror(errno));
    _exit(127);
}

/*
 * Read lines from FD until one is an answer; warnings of the interpreter are not. OUT gets the rest
 * of that line after its first word. If there is no answer, OUT gets as much of the last line as
 * fits.
 */
static bool
read_answer(int fd, char *out, size_t size)
{
    static const char answer[] = "ready ";
    FILE *stream = fdopen(fd, "r");
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    bool answered = false;
    out[0] = '\0';
    while (stream != NULL && !answered && (length = getline(&line, &room, stream)) > 0) {
        bool whole = line[length - 1] == '\n';
        line[length - whole] = '\0';
        answered = whole && strncmp(line, answer, sizeof answer - 1) == 0;
        snprintf(out, size, "%s", line + (answered ? sizeof answer - 1 : 0));
    }
    free(line);
    if (stream != NULL) {
        fclose(stream);
    }
    return answered;
}

int
cgpu_python_wait(struct cgpu_python *python)
{
    int status = 0;
    while (python->child > 0 && waitpid(python->child, &status, 0) < 0) {
        if (errno != EINTR) {
            status = -1;
            break;
        }
    }
    python->child = 0;
    return status;
}

int
cgpu_python_run(struct cgpu_python *python, const char *const *arguments, char *message,
                size_t size)
{
    int ends[2];
    snprintf(message, size, "cannot start Python: out of processes or descriptors");
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return -1;
    }
    /*
     * If SIGCHLD were ignored, the exit status would be lost. The caller's setting is restored
     * later.
     */
    void (*before)(int) = signal(SIGCHLD, SIG_DFL);
    python->child = fork();
    if (python->child == 0) {
        become_python(python, arguments, ends[1]);
    }
    close(ends[1]);
    if (python->child < 0) {
        close(ends[0]);
        signal(SIGCHLD, before);
        return -1;
    }
    bool answered = read_answer(ends[0], message, size);
    int status = answered ? 0 : cgpu_python_wait(python);
    signal(SIGCHLD, before);
    if (!answered && message[0] == '\0') {
        snprintf(message, size, "the editor ended without an answer, with wait status %d", status);
    }
    return answered ? 0 : -1;
}
