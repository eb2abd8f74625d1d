/*
 * A container's config.json as the C part reads it: its bytes, and whether it may name our
 * variables.
 */
#ifndef CGPU_DOCUMENT_H
#define CGPU_DOCUMENT_H

#include <stdbool.h>
#include <stddef.h>

struct cgpu_document {
    char *bytes;
    size_t size;
};

/*
 * Read the regular file at PATH. It follows links, as the low-level runtime does, but never waits
 * for a FIFO or a lease. Returns NULL, or why it failed: a static text, or the text of errno
 * (ENOENT: there is no such file; EISDIR: it is a directory).
 */
const char *cgpu_document_read(const char *path, struct cgpu_document *out);

/*
 * Whether the document may name one of our variables. JSON can write letters as \uXXXX, so an
 * escaped capital letter or underscore counts as well. Engines escape only < > &, which do not
 * count.
 */
bool cgpu_document_names_variables(const struct cgpu_document *document);

#define CGPU_STATE_DIR "/run/cgpu" /* root's; paths.py */

/*
 * Whether Python has to read the document, for one of these reasons:
 *
 * - It may name one of our variables.
 * - Pods on this node follow allocations, and the document is of a pod. It may name a share, or
 *   something that would give it a GPU without one; or the pod is known to ask for a share (pods in
 *   STATE_DIR; NULL: the default).
 * - The node caps containers that name no size, by its configuration or by a later change
 *   (rules.json in STATE_DIR).
 */
bool cgpu_document_needs_python(const struct cgpu_document *document, const char *state_dir);

#endif
