/* The container's state, as a runtime writes it for hooks and users (OCI runtime specification). */
#ifndef CGPU_STATE_H
#define CGPU_STATE_H

#include <stdbool.h>
#include <stddef.h>

#include "document.h"

/* Read FD to its end. False: it is longer than any state, or cannot be read. */
bool cgpu_state_read(int fd, struct cgpu_document *out);

/*
 * Copy the string under KEY in the outermost object. False: KEY does not occur exactly once, or the
 * string contains escapes or does not fit. Only annotations may contain such strings.
 */
bool cgpu_state_string(const struct cgpu_document *state, const char *key, char *out, size_t size);

/* The whole number under KEY in the outermost object; 0: KEY does not occur exactly once. */
int cgpu_state_number(const struct cgpu_document *state, const char *key);

#endif
