/* Where the Python side is, and how to run it: isolated, and with an environment of our own. */
#ifndef CGPU_PYTHON_H
#define CGPU_PYTHON_H

#include <limits.h>
#include <stddef.h>

struct cgpu_python {
    char interpreter[PATH_MAX];
    char bootstrap[PATH_MAX];
};

enum { CGPU_PYTHON_ARGUMENTS = 24 }; /* room for what a command is given */

/* Find both, beside this very program; NULL or why not. */
const char *cgpu_python_find(struct cgpu_python *out);

/*
 * In a child that is about to become the interpreter: only descriptors 0 to 2 remain, the working
 * directory is /, the environment is pinned. ARGUMENTS ends with NULL. Returns only if it fails.
 */
void cgpu_python_exec(const struct cgpu_python *python, const char *const *arguments);

/*
 * Run it and wait, with nothing on its stdin and without our stdout. What it prints last comes back
 * in MESSAGE. 0, or another number where it failed; MESSAGE then says why.
 */
int cgpu_python_run(const struct cgpu_python *python, const char *const *arguments, char *message,
                    size_t size);

#endif
