/*
 * cgpu-python: the Python of a folder that has its own C library (k8s/cgpu_k8s/dra/programs.py).
 *
 * It is bin/python3 there, and starts lib/python by the loader lib/cgpu-loader. So nothing of the
 * folder depends on what the node has, or on where the folder is. What this Python starts inherits
 * no variable, and sys.executable is this program.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "report.h"

enum { MOST_ARGUMENTS = 64, FIRST = 6 };

static const struct cgpu_report report = {NULL, false};

/* Find the folder from this program's own path, which ends with /bin/python3. */
static int
find_folder(char *self, char *folder)
{
    ssize_t length = readlink("/proc/self/exe", self, PATH_MAX - 1);
    if (length <= 0) {
        return -1;
    }
    self[length] = '\0';
    strcpy(folder, self);
    for (int parts = 0; parts < 2; parts++) {
        char *slash = strrchr(folder, '/');
        if (slash == NULL) {
            return -1;
        }
        *slash = '\0';
    }
    return 0;
}

int
main(int argc, char **argv)
{
    char self[PATH_MAX], folder[PATH_MAX], loader[PATH_MAX + 16], python[PATH_MAX + 16];
    char libraries[3 * PATH_MAX];
    if (find_folder(self, folder) != 0 || argc > MOST_ARGUMENTS) {
        cgpu_report_error(&report, "cgpu-python: expected /proc and at most %d arguments",
                          MOST_ARGUMENTS);
        return 127;
    }
    /* Ours come first: a driver's folder, which the variable may name, often has a libc.so.6. */
    const char *given = getenv("LD_LIBRARY_PATH");
    const char *more = given != NULL ? given : "";
    snprintf(libraries, sizeof libraries, "%s/lib%s%s", folder, more[0] != '\0' ? ":" : "", more);
    snprintf(loader, sizeof loader, "%s/lib/cgpu-loader", folder);
    snprintf(python, sizeof python, "%s/lib/python", folder);
    const char *words[MOST_ARGUMENTS + FIRST + 1] = {
        loader, "--argv0", self, "--library-path", libraries, python,
    };
    for (int i = 1; i < argc; i++) {
        words[FIRST - 1 + i] = argv[i];
    }
    execv(loader, (char *const *)words);
    cgpu_report_error(&report, "%s cannot be started: %s", loader, strerror(errno));
    return 127;
}
