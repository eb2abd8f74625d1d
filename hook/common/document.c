#include "document.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_BYTES ((size_t)16 << 20) /* as document.py */

#define NODE_CONFIG  "/etc/cgpu/config.toml"
#define NODE_DECIDES "/etc/cgpu/kubernetes.json" /* node/cgpu_node/settings/kubernetes.py */

static const char prefix[] = "ALIYUN_COM_GPU_";

static const char *
read_whole(int fd, struct cgpu_document *out)
{
    struct stat facts;
    if (fstat(fd, &facts) != 0) {
        return strerror(errno);
    }
    if (!S_ISREG(facts.st_mode)) {
        errno = S_ISDIR(facts.st_mode) ? EISDIR : EINVAL;
        return "not a regular file";
    }
    if (facts.st_size < 0 || (size_t)facts.st_size > MAX_BYTES) {
        errno = EFBIG;
        return "larger than 16 MiB";
    }
    size_t capacity = (size_t)facts.st_size;
    out->bytes = malloc(capacity + 1);
    if (out->bytes == NULL) {
        return strerror(errno);
    }
    while (out->size < capacity) {
        ssize_t n = read(fd, out->bytes + out->size, capacity - out->size);
        if (n < 0 && errno != EINTR) {
            return strerror(errno);
        }
        if (n == 0) {
            break;
        }
        out->size += n > 0 ? (size_t)n : 0;
    }
    return NULL;
}

const char *
cgpu_document_read(const char *path, struct cgpu_document *out)
{
    out->bytes = NULL;
    out->size = 0;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) {
        return strerror(errno);
    }
    const char *why = read_whole(fd, out);
    int saved = errno;
    close(fd);
    errno = saved;
    return why;
}

static int
hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Whether the six bytes at ESCAPE encode a letter that occurs in our variables' names. */
static bool
is_hidden_letter(const char *escape)
{
    int value = 0;
    for (int i = 2; i < 6; i++) {
        int digit = hex_digit(escape[i]);
        if (digit < 0) {
            return false;
        }
        value = value * 16 + digit;
    }
    return (value >= 'A' && value <= 'Z') || value == '_';
}

bool
cgpu_document_names_variables(const struct cgpu_document *document)
{
    const char *at = document->bytes;
    const char *end = document->bytes + document->size;
    if (memmem(at, document->size, prefix, sizeof prefix - 1) != NULL) {
        return true;
    }
    while ((at = memmem(at, (size_t)(end - at), "\\u", 2)) != NULL) {
        if (end - at >= 6 && is_hidden_letter(at)) {
            return true;
        }
        at += 2;
    }
    return false;
}

static bool
has_word(const struct cgpu_document *document, const char *word)
{
    return memmem(document->bytes, document->size, word, strlen(word)) != NULL;
}

/*
 * Whether the file at PATH names a default size. True also if the file is wrong, so that Python
 * reports it.
 */
static bool
has_default_size(const char *path)
{
    struct cgpu_document file;
    const char *why = cgpu_document_read(path, &file);
    if (why != NULL) {
        return errno != ENOENT;
    }
    bool found = file.size > 0 && memmem(file.bytes, file.size, "default_memsize", 15) != NULL;
    free(file.bytes);
    return found;
}

/* Set OUT to the default state directory of this user, as in paths.py. Returns whether it fits. */
static bool
find_default_state(char out[PATH_MAX])
{
    const char *own = secure_getenv("XDG_RUNTIME_DIR");
    if (geteuid() == 0) {
        return snprintf(out, PATH_MAX, "%s", CGPU_STATE_DIR) < PATH_MAX;
    }
    if (own != NULL && own[0] == '/') {
        return snprintf(out, PATH_MAX, "%s/cgpu", own) < PATH_MAX;
    }
    return snprintf(out, PATH_MAX, "/tmp/cgpu-%u", geteuid()) < PATH_MAX;
}

static bool
find_state(const char *given, char out[PATH_MAX])
{
    return given != NULL ? snprintf(out, PATH_MAX, "%s", given) < PATH_MAX
                         : find_default_state(out);
}

/*
 * Whether a pod that the document names asks for a GPU. The node's agent leaves a file for each
 * such pod (podspecs.py). True if that cannot be found out.
 */
static bool
asks_for_gpu(const struct cgpu_document *document, const char *state_dir)
{
    char folder[PATH_MAX], pods[PATH_MAX + 8];
    if (!find_state(state_dir, folder)) {
        return true;
    }
    snprintf(pods, sizeof pods, "%s/pods", folder);
    DIR *listing = opendir(pods);
    if (listing == NULL) {
        return errno != ENOENT;
    }
    bool found = false;
    for (struct dirent *entry; !found && (entry = readdir(listing)) != NULL;) {
        found = entry->d_name[0] != '.' && has_word(document, entry->d_name);
    }
    closedir(listing);
    return found;
}

static bool
follows_annotation(const struct cgpu_document *document, const char *state_dir)
{
    /*
     * Engines write these words themselves, without escapes. They are in names of annotations and
     * devices. They may also be in what a pod or an image sets; there, an escaped letter makes
     * Python read the document anyway.
     */
    return has_word(document, "\"io.kubernetes.cri") &&
           (access(NODE_DECIDES, F_OK) == 0 || errno != ENOENT) &&
           (has_word(document, "cgpu/") || has_word(document, "nvidia") ||
            has_word(document, "NVIDIA") || asks_for_gpu(document, state_dir));
}

static bool
node_has_default_size(const char *state_dir)
{
    char folder[PATH_MAX], changed[PATH_MAX + 16];
    struct stat facts;
    bool fits = find_state(state_dir, folder);
    if (has_default_size(NODE_CONFIG) || !fits) {
        return true;
    }
    /* In /tmp anybody may have created it: then this user has changed no rules. */
    if (state_dir == NULL && lstat(folder, &facts) == 0 && facts.st_uid != geteuid()) {
        return false;
    }
    snprintf(changed, sizeof changed, "%s/rules.json", folder);
    /* Root's changes do not apply to other users, whose containers have accounts of their own. */
    return (access(changed, R_OK) == 0 || errno != EACCES) && has_default_size(changed);
}

bool
cgpu_document_needs_python(const struct cgpu_document *document, const char *state_dir)
{
    return cgpu_document_names_variables(document) || follows_annotation(document, state_dir) ||
           node_has_default_size(state_dir);
}
