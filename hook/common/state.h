/* The container's state, as a runtime writes it for hooks and users (OCI runtime specification). */
#ifndef CGPU_STATE_H
#define CGPU_STATE_H

#include <stdbool.h>
#include <stddef.h>

#include "document.h"

/* Read FD to its end. False: that is longer than any state, or cannot be read. */
bool cgpu_state_read(int fd, struct cgpu_document *out);

/*
 * Copy the string under KEY in the outermost object. False if it is not there exactly once,
 * contains escapes, or does not fit: annotations may contain anything, the state itself does not.
 */
bool cgpu_state_string(const struct cgpu_document *state, const char *key, char *out, size_t size);

/* The whole number under KEY in the outermost object; 0 if it is not there exactly once. */
int cgpu_state_number(const struct cgpu_document *state, const char *key);

#endif
