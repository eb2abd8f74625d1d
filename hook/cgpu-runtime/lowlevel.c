#include "lowlevel.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHOSEN "/etc/cgpu/runtime"

static const char *const names[] = {"runc", "crun"};
static const char *const folders[] = {"/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"};

/* A program other than this one, which would otherwise start itself for ever. */
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

void
cgpu_lowlevel_state(const char *runtime, const char *root, const char *id, char *out, size_t size)
{
    char absolute[PATH_MAX];
    if (root != NULL) {
        /* The first container creates it, so it may not exist yet. */
        bool there = realpath(root, absolute) != NULL;
        bool below = !there && root[0] != '/' && getcwd(absolute, sizeof absolute) != NULL;
        snprintf(out, size, "%s%s%s/%s", there || below ? absolute : "", below ? "/" : "",
                 there ? "" : root, id);
        return;
    }
    const char *name = strrchr(runtime, '/') + 1;
    const char *user = getenv("XDG_RUNTIME_DIR");
    bool honoured =
        user != NULL && user[0] != '\0' && (geteuid() != 0 || strcmp(name, "crun") == 0);
    snprintf(out, size, "%s/%s/%s", honoured ? user : "/run", name, id);
}
