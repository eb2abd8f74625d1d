/*
 * cgpu-runtime: an OCI runtime that hands everything to runc or crun. Only when a container is made
 * whose configuration names our variables does Python run first, to change that configuration.
 */
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "arguments.h"
#include "document.h"
#include "lowlevel.h"
#include "python.h"
#include "report.h"

enum { FAILED = 1 }; /* as runc */

static const char *const creating[] = {"create", "run", "restore", NULL};
static const char *const others[] = {
    "checkpoint", "delete", "events", "exec",    "features", "help",   "init",
    "kill",       "list",   "mounts", "pause",   "ps",       "resume", "spec",
    "start",      "state",  "update", "version", NULL,
};

static bool
is_one_of(const char *const *names, const char *word)
{
    for (; word != NULL && *names != NULL; names++) {
        if (strcmp(word, *names) == 0) {
            return true;
        }
    }
    return false;
}

/*
 * Is a container made behind an option that we do not know? Its value was then taken for the
 * subcommand, and a subcommand that makes a container stands behind it.
 */
static bool
hides_creation(const struct cgpu_arguments *arguments)
{
    if (is_one_of(creating, arguments->subcommand) || is_one_of(others, arguments->subcommand)) {
        return false;
    }
    for (char **word = arguments->forwarded + 1; *word != NULL; word++) {
        if (is_one_of(creating, *word)) {
            return true;
        }
    }
    return false;
}

/*
 * The absolute paths of bundle and configuration. A bundle that is not there is the low-level
 * runtime's to complain about.
 */
static bool
locate(const struct cgpu_arguments *arguments, char bundle[PATH_MAX], char config[PATH_MAX])
{
    char folder[PATH_MAX];
    if (realpath(arguments->bundle != NULL ? arguments->bundle : ".", bundle) == NULL) {
        return false;
    }
    if (arguments->config == NULL) {
        return snprintf(config, PATH_MAX, "%s/config.json", bundle) < PATH_MAX;
    }
    if (arguments->config[0] == '/' || strcmp(arguments->config, "config.json") == 0) {
        const char *parent = arguments->config[0] == '/' ? "" : bundle;
        const char *slash = arguments->config[0] == '/' ? "" : "/";
        return snprintf(config, PATH_MAX, "%s%s%s", parent, slash, arguments->config) < PATH_MAX;
    }
    return getcwd(folder, sizeof folder) != NULL &&
           snprintf(config, PATH_MAX, "%s/%s", folder, arguments->config) < PATH_MAX;
}

static int
edit(const struct cgpu_arguments *arguments, const struct cgpu_report *report, const char *runtime,
     const char *bundle, const char *config)
{
    char state[PATH_MAX * 2], pid[24], message[2048];
    struct cgpu_python python;
    if (arguments->positionals != 1) {
        cgpu_report_error(report, "cannot tell the container's id from the command line");
        return -1;
    }
    const char *why = cgpu_python_find(&python);
    if (why != NULL) {
        cgpu_report_error(report, "%s", why);
        return -1;
    }
    cgpu_lowlevel_state(runtime, arguments->root, arguments->id, state, sizeof state);
    snprintf(pid, sizeof pid, "%d", getpid());
    const char *command[CGPU_PYTHON_ARGUMENTS + 1] = {
        "edit",        "--config", config, "--bundle",      bundle, "--id",
        arguments->id, "--pid",    pid,    "--runtime-dir", state};
    size_t count = 11;
    if (arguments->state_dir != NULL) {
        command[count++] = "--state-dir";
        command[count++] = arguments->state_dir;
    }
    if (arguments->driver_dir != NULL) {
        command[count++] = "--driver-dir";
        command[count++] = arguments->driver_dir;
    }
    if (cgpu_python_run(&python, command, message, sizeof message) != 0) {
        const char *text = strncmp(message, "cgpu: ", 6) == 0 ? message + 6 : message;
        cgpu_report_error(report, "%s", text);
        return -1;
    }
    return 0;
}

/* 0 if the container may be made, its configuration changed where that was asked for. */
static int
prepare(const struct cgpu_arguments *arguments, const struct cgpu_report *report,
        const char *runtime)
{
    char bundle[PATH_MAX], config[PATH_MAX];
    struct cgpu_document document;
    if (!locate(arguments, bundle, config)) {
        return 0;
    }
    const char *why = cgpu_document_read(config, &document);
    if (why != NULL && errno == ENOENT) {
        return 0; /* the runtime's own words for it are known to everyone */
    }
    if (why != NULL) {
        cgpu_report_error(report, "%s: %s", config, why);
        return -1;
    }
    bool concerned = cgpu_document_concerns_us(&document) ||
                     cgpu_document_node_has_default(arguments->state_dir);
    free(document.bytes);
    return concerned ? edit(arguments, report, runtime, bundle, config) : 0;
}

int
main(int argc, char **argv)
{
    struct cgpu_arguments arguments;
    char runtime[PATH_MAX];
    const char *why = cgpu_arguments_parse(argc, argv, &arguments);
    struct cgpu_report report = {arguments.log, arguments.log_format != NULL &&
                                                    strcmp(arguments.log_format, "json") == 0};
    why = why != NULL ? why : cgpu_lowlevel_find(arguments.runtime, runtime);
    if (why != NULL) {
        cgpu_report_error(&report, "%s", why);
        return FAILED;
    }
    if (hides_creation(&arguments)) {
        cgpu_report_error(&report, "an option before %s is not known: write it as OPTION=VALUE",
                          arguments.subcommand);
        return FAILED;
    }
    bool creates = is_one_of(creating, arguments.subcommand);
    if (creates && prepare(&arguments, &report, runtime) != 0) {
        return FAILED;
    }
    arguments.forwarded[0] = runtime;
    execv(runtime, arguments.forwarded);
    cgpu_report_error(&report, "%s: %s", runtime, strerror(errno));
    return FAILED;
}
