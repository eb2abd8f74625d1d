/*
 * cgpu-runtime: an OCI runtime that passes everything to runc or crun. If it creates a container
 * whose configuration names our variables, it first runs Python, which changes the configuration.
 * Then it waits until it is known whether the container was created. Design:
 * docs/design/container-start.md.
 */
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "arguments.h"
#include "creation.h"
#include "document.h"
#include "lowlevel.h"
#include "report.h"
#include "runtime_child.h"

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
 * Find the absolute paths of bundle and configuration. False: there is no such bundle; the
 * low-level runtime will report that.
 */
static bool
find_config(const struct cgpu_arguments *arguments, char bundle[PATH_MAX], char config[PATH_MAX])
{
    char folder[PATH_MAX];
    bool named = arguments->bundle != NULL && arguments->bundle[0] != '\0';
    if (realpath(named ? arguments->bundle : ".", bundle) == NULL) {
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

/*
 * Whether cgpu manages the container that ARGUMENTS create: 0 or 1; -1 if that cannot be found out.
 */
static int
is_managed(const struct cgpu_arguments *arguments, const struct cgpu_report *report,
           char bundle[PATH_MAX], char config[PATH_MAX])
{
    struct cgpu_document document;
    if (!find_config(arguments, bundle, config)) {
        return 0;
    }
    const char *why = cgpu_document_read(config, &document);
    if (why != NULL && (errno == ENOENT || errno == ENOTDIR || errno == EISDIR)) {
        return 0; /* the low-level runtime reports that itself */
    }
    if (why != NULL) {
        cgpu_report_error(report, "%s: %s", config, why);
        return -1;
    }
    bool managed = cgpu_document_needs_python(&document, arguments->state_dir);
    free(document.bytes);
    return managed;
}

/*
 * Change the configuration if cgpu manages the container. Returns 0 if the container may be
 * created.
 */
static int
edit_if_managed(const struct cgpu_arguments *arguments, const struct cgpu_report *report,
                const char *runtime, struct cgpu_creation *creation)
{
    char bundle[PATH_MAX], config[PATH_MAX];
    int managed = is_managed(arguments, report, bundle, config);
    return managed == 1 ? cgpu_creation_edit(creation, arguments, report, runtime, bundle, config)
                        : managed;
}

/*
 * Refuse to create a container of ours after an unknown option. What we take for the subcommand may
 * be that option's value. The real subcommand may follow it, and create the container.
 */
static int
refuse_hidden(const struct cgpu_arguments *arguments, const struct cgpu_report *report)
{
    char bundle[PATH_MAX], config[PATH_MAX];
    struct cgpu_arguments hidden;
    int left = 0;
    while (arguments->forwarded[left + 1] != NULL) {
        left++;
    }
    for (char **word = arguments->forwarded + 1; *word != NULL; word++, left--) {
        if (!is_one_of(creating, *word)) {
            continue;
        }
        if (cgpu_arguments_parse(left + 1, word - 1, &hidden) != NULL) {
            return -1;
        }
        hidden.state_dir = arguments->state_dir;
        int managed = is_managed(&hidden, report, bundle, config);
        free(hidden.forwarded);
        if (managed == 1) {
            cgpu_report_error(report, "an option before %s is not known: write it as OPTION=VALUE",
                              arguments->subcommand);
        }
        if (managed != 0) {
            return -1;
        }
    }
    return 0;
}

/*
 * Check the command line. Returns 0 if the low-level runtime may run with it, -1 after an error
 * message.
 */
static int
check_command(const struct cgpu_arguments *arguments, const struct cgpu_report *report,
              const char *runtime, struct cgpu_creation *creation)
{
    if (arguments->is_informational) {
        return 0;
    }
    if (is_one_of(creating, arguments->subcommand)) {
        return edit_if_managed(arguments, report, runtime, creation);
    }
    bool plain = !arguments->has_unknown_options || is_one_of(others, arguments->subcommand);
    return plain ? 0 : refuse_hidden(arguments, report);
}

/*
 * Whether a service manager passed sockets: only the process with this process id may accept them.
 */
static bool
has_sockets(void)
{
    const char *listener = getenv("LISTEN_PID");
    return listener != NULL && strtol(listener, NULL, 10) == getpid();
}

/*
 * Whether this process itself has to become the runtime: a service manager accepts messages about a
 * container in the foreground only from the process that it started.
 */
static bool
is_supervised(const struct cgpu_arguments *arguments)
{
    return has_sockets() || (getenv("NOTIFY_SOCKET") != NULL && arguments->subcommand != NULL &&
                             strcmp(arguments->subcommand, "create") != 0);
}

/* Start the low-level runtime. If it creates a container of ours, wait for the outcome. */
static int
start_runtime(const struct cgpu_arguments *arguments, const struct cgpu_report *report,
              const char *runtime, struct cgpu_creation *creation)
{
    struct cgpu_runtime_child child;
    bool as_child = !is_supervised(arguments) || cgpu_creation_is_taken(creation);
    if (creation->share[0] != '\0' && as_child &&
        cgpu_runtime_child_start(&child, report, runtime, arguments->forwarded) == 0) {
        cgpu_runtime_child_end(cgpu_creation_end(creation, cgpu_runtime_child_wait(&child)));
    }
    cgpu_python_wait(&creation->python); /* else the editor would become a child of the runtime */
    execv(runtime, arguments->forwarded);
    cgpu_report_error(report, "%s: %s", runtime, strerror(errno));
    return FAILED;
}

int
main(int argc, char **argv)
{
    struct cgpu_arguments arguments;
    struct cgpu_creation creation = {0};
    char runtime[PATH_MAX];
    const char *why = cgpu_arguments_parse(argc, argv, &arguments);
    struct cgpu_report report = {arguments.log, arguments.log_format != NULL &&
                                                    strcmp(arguments.log_format, "json") == 0};
    why = why != NULL ? why : cgpu_lowlevel_find(arguments.runtime, runtime);
    if (why != NULL) {
        cgpu_report_error(&report, "%s", why);
        return FAILED;
    }
    if (check_command(&arguments, &report, runtime, &creation) != 0) {
        return FAILED;
    }
    arguments.forwarded[0] = runtime;
    return start_runtime(&arguments, &report, runtime, &creation);
}
