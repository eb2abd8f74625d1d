/* The Python side: how it is found, and run isolated, with an environment of our own. */
#ifndef CGPU_PYTHON_H
#define CGPU_PYTHON_H

#include <limits.h>
#include <stddef.h>
#include <sys/types.h>

struct cgpu_python {
    char interpreter[PATH_MAX];
    char bootstrap[PATH_MAX];
    pid_t child; /* that has answered and goes on; 0: none */
};

enum { CGPU_PYTHON_ARGUMENTS = 24 }; /* room for what a command is given */

/* Find interpreter and bootstrap.py from this program's folder. Returns NULL, or why it failed. */
const char *cgpu_python_find(struct cgpu_python *out);

/*
 * Called in a child: become the interpreter. Only descriptors 0 to 2 remain, the working directory
 * is /, and the environment is fixed. ARGUMENTS ends with NULL. Returns only if it fails.
 */
void cgpu_python_exec(const struct cgpu_python *python, const char *const *arguments);

/*
 * Run the interpreter until it answers, with an empty stdin and without our stdout. An answer is a
 * line "ready TEXT": then this returns 0, with TEXT in MESSAGE. The child may go on with work that
 * nobody has to wait for. Returns -1 if the child ended without an answer; MESSAGE is then the last
 * line that it wrote.
 */
int cgpu_python_run(struct cgpu_python *python, const char *const *arguments, char *message,
                    size_t size);

/* Wait for the end of a child that still runs. Returns its wait status. */
int cgpu_python_wait(struct cgpu_python *python);

#endif
