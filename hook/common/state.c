#include "state.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_BYTES ((size_t)16 << 20)

bool
cgpu_state_read(int fd, struct cgpu_document *out)
{
    size_t capacity = 65536;
    out->size = 0;
    out->bytes = malloc(capacity);
    while (out->bytes != NULL) {
        ssize_t n = read(fd, out->bytes + out->size, capacity - out->size);
        if (n == 0) {
            return true;
        }
        if (n < 0 && errno != EINTR) {
            return false;
        }
        out->size += n > 0 ? (size_t)n : 0;
        if (out->size == capacity) {
            capacity *= 2;
            out->bytes = capacity > MAX_BYTES ? NULL : realloc(out->bytes, capacity);
        }
    }
    return false;
}

/* The closing quote of a string, or NULL. AT is the first character after its opening quote. */
static const char *
find_string_end(const char *at, const char *end)
{
    for (; at < end && *at != '"'; at++) {
        if (*at == '\\') {
            at++;
        }
    }
    return at < end ? at : NULL;
}

static const char *
skip_blanks(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r')) {
        at++;
    }
    return at;
}

/* The value behind a name whose closing quote is at NAME_END; NULL if the string is no name. */
static const char *
skip_colon(const char *name_end, const char *end)
{
    const char *at = skip_blanks(name_end + 1, end);
    return at < end && *at == ':' ? skip_blanks(at + 1, end) : NULL;
}

static bool
copy_plain_string(const char *at, const char *end, char *out, size_t size)
{
    const char *close = at < end && *at == '"' ? find_string_end(at + 1, end) : NULL;
    size_t length = close == NULL ? size : (size_t)(close - at - 1);
    if (length >= size || memchr(at + 1, '\\', length) != NULL ||
        memchr(at + 1, '\0', length) != NULL) {
        return false;
    }
    memcpy(out, at + 1, length);
    out[length] = '\0';
    return true;
}

/*
 * Find where the value of KEY in the outermost object begins. NULL: KEY does not occur exactly
 * once.
 */
static const char *
find_value(const struct cgpu_document *state, const char *key)
{
    const char *end = state->bytes + state->size, *found = NULL;
    int depth = 0;
    for (const char *at = state->bytes; at < end; at++) {
        depth += (*at == '{' || *at == '[') - (*at == '}' || *at == ']');
        if (*at != '"') {
            continue;
        }
        const char *name = at + 1;
        at = find_string_end(name, end);
        if (at == NULL) {
            return NULL;
        }
        const char *value = skip_colon(at, end);
        if (depth != 1 || value == NULL || strlen(key) != (size_t)(at - name) ||
            memcmp(name, key, strlen(key)) != 0) {
            continue;
        }
        if (found != NULL) {
            return NULL;
        }
        found = value;
    }
    return found;
}

bool
cgpu_state_string(const struct cgpu_document *state, const char *key, char *out, size_t size)
{
    const char *value = find_value(state, key);
    return value != NULL && copy_plain_string(value, state->bytes + state->size, out, size);
}

int
cgpu_state_number(const struct cgpu_document *state, const char *key)
{
    const char *at = find_value(state, key), *end = state->bytes + state->size;
    int number = 0;
    for (; at != NULL && at < end && *at >= '0' && *at <= '9'; at++) {
        if (number > (INT_MAX - 9) / 10) {
            return 0;
        }
        number = number * 10 + (*at - '0');
    }
    return number;
}
