/* A container's config.json, as far as C looks at it: its bytes, and whether they may concern us.
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
 * Read the regular file at PATH; never waits for a FIFO, never follows a link at the end of PATH.
 * NULL, or why not: a static text, or that of errno, which is ENOENT where there is no such file
 * and EISDIR where there is a folder.
 */
const char *cgpu_document_read(const char *path, struct cgpu_document *out);

/*
 * Whether one of our variables can be named in the document. JSON may write letters as \uXXXX, so
 * an escaped capital or underscore counts as well; engines escape < > & only, for which this is
 * false.
 */
bool cgpu_document_concerns_us(const struct cgpu_document *document);

#define CGPU_STATE_DIR "/run/cgpu" /* root's; paths.py */

/*
 * Whether the node caps containers that name no size, as configured or as changed since (rules.json
 * in STATE_DIR; NULL: the default): then every configuration concerns us.
 */
bool cgpu_document_node_has_default(const char *state_dir);

#endif
