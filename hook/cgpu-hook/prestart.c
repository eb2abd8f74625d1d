#include "stages.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "python.h"
#include "report.h"
#include "state.h"

static const struct cgpu_report report = {NULL, false};

/*
 * Let the next program read BYTES from stdin: from a memory file, because a pipe might be too
 * small.
 */
static bool
write_to_stdin(const struct cgpu_document *document)
{
    int fd = memfd_create("cgpu", MFD_CLOEXEC);
    size_t done = 0;
    while (fd >= 0 && done < document->size) {
        ssize_t n = write(fd, document->bytes + done, document->size - done);
        if (n < 0) {
            return false;
        }
        done += (size_t)n;
    }
    return fd >= 0 && lseek(fd, 0, SEEK_SET) == 0 && dup2(fd, STDIN_FILENO) >= 0;
}

/*
 * Run COMMAND in Python, with the options of the hook's own ARGV: --state-dir and --driver-dir,
 * from the hook's file.
 */
static int
become_python(const char *command, int argc, char **argv, const struct cgpu_document *input)
{
    struct cgpu_python python;
    const char *why = cgpu_python_find(&python);
    const char *arguments[CGPU_PYTHON_ARGUMENTS + 1] = {command};
    if (argc > CGPU_PYTHON_ARGUMENTS) {
        why = "too many arguments";
    }
    if (why == NULL && !write_to_stdin(input)) {
        why = strerror(errno);
    }
    for (int i = 2; why == NULL && i < argc; i++) {
        arguments[i - 1] = argv[i];
    }
    if (why == NULL) {
        cgpu_python_exec(&python, arguments);
        why = strerror(errno);
    }
    cgpu_report_error(&report, "%s", why);
    return 1;
}

/*
 * The state directory among the options in the hook's file, which are pairs of --name value; NULL:
 * none.
 */
static const char *
find_state_dir(int argc, char **argv)
{
    for (int i = 2; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--state-dir") == 0) {
            return argv[i + 1];
        }
    }
    return NULL;
}

/*
 * Whether the container's configuration may name our variables. True if that cannot be found out.
 */
static bool
is_managed(const struct cgpu_document *state, const char *state_dir)
{
    char path[PATH_MAX];
    struct cgpu_document config;
    if (!cgpu_state_string(state, "bundle", path, sizeof path - sizeof "/config.json")) {
        return true;
    }
    strcat(path, "/config.json");
    return path[0] != '/' || cgpu_document_read(path, &config) != NULL ||
           cgpu_document_needs_python(&config, state_dir);
}

/*
 * Run COMMAND for the container whose state is on stdin: always, or only if it may be managed.
 */
static int
prepare_container(const char *command, bool always, int argc, char **argv)
{
    struct cgpu_document state;
    if (!cgpu_state_read(STDIN_FILENO, &state)) {
        cgpu_report_error(&report, "cannot read the container's state");
        return 1;
    }
    if (!always && !is_managed(&state, find_state_dir(argc, argv))) {
        return 0;
    }
    return become_python(command, argc, argv, &state);
}

int
cgpu_stage_prestart(int argc, char **argv)
{
    return prepare_container("prestart", false, argc, argv);
}

/* Prepare a container that has a claim: whoever starts it, it gets that or does not start. */
int
cgpu_stage_claim(int argc, char **argv)
{
    return prepare_container("claim", true, argc, argv);
}

int
cgpu_stage_precreate(int argc, char **argv)
{
    struct cgpu_document config;
    if (!cgpu_state_read(STDIN_FILENO, &config)) {
        cgpu_report_error(&report, "cannot read the container's configuration");
        return 1;
    }
    if (cgpu_document_needs_python(&config, find_state_dir(argc, argv))) {
        return become_python("precreate", argc, argv, &config);
    }
    return fwrite(config.bytes, 1, config.size, stdout) == config.size && fflush(stdout) == 0 ? 0
                                                                                              : 1;
}
