/*
 * Reads PTX before it is loaded: how large it can get, and whether it declares managed variables.
 *
 * Variables are declared with their sizes. Code grows when it is compiled: an instruction of the
 * GPU has 16 bytes; one of PTX has about as many letters, and often becomes several of the GPU's.
 */
#include <string.h>

#include "entry/shim.h"
#include "memory/code/image.h"
#include "memory/code/ptx.h"

enum {
    MAX_ATTRIBUTE = 256,
    MAX_DECLARATION = 4096,
    DELETE = 0x7f /* not in any PTX; other code begins with this byte */
};

static bool
is_text(char c)
{
    return ((unsigned char)c >= ' ' && c != DELETE) || (c >= '\t' && c <= '\r');
}

static bool
is_word(char c)
{
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '_' || c == '$' ||
           c == '.' || c == '%';
}

/* The number at *TEXT, or 0 if there is none. *TEXT moves to its end. */
static uint64_t
number(const char **text, const char *end)
{
    const char *at = *text;
    uint64_t base = 10;
    uint64_t value = 0;
    if (end - at > 2 && at[0] == '0' && (at[1] | 32) == 'x') {
        base = 16;
        at += 2;
    }
    for (; at < end; at++) {
        uint64_t digit = (uint64_t)(*at - '0');
        digit = digit > 9 && base == 16 ? (uint64_t)((*at | 32) - 'a') + 10 : digit;
        if (digit >= base) {
            break;
        }
        value = cgpu_image_product(value, base) + digit;
    }
    *text = at;
    return value;
}

static const char *
skip_blanks(const char *text, const char *end)
{
    while (text < end && (*text == ' ' || (*text >= '\t' && *text <= '\r'))) {
        text++;
    }
    return text;
}

/*
 * By how much one part of a type, such as ".b8" or ".v4", multiplies an element's size; 1: not at
 * all.
 */
static uint64_t
type_factor(const char *text, const char *end)
{
    const char *at = text + 1;
    if (at >= end || memchr("busfv", *at, 5) == NULL) {
        return 1;
    }
    const char *digits = ++at;
    uint64_t value = number(&at, end);
    if (at == digits || (at < end && is_word(*at) && *at != '.')) {
        return 1;
    }
    return text[1] == 'v' || value < 8 ? value : value / 8;
}

/* Read "[N]" at TEXT: multiply *BYTES by N. If N is not a plain number, the size is unknown. */
static const char *
multiply(const char *text, const char *end, uint64_t *bytes, struct cgpu_image *image)
{
    const char *at = skip_blanks(text + 1, end);
    const char *digits = at;
    uint64_t value = number(&at, end);
    at += at < end && *at == 'U';
    at = skip_blanks(at, end);
    if (at < end && *at == ']') {
        /* [] has as many elements as the text gives values */
        *bytes = cgpu_image_product(*bytes, at == digits ? 1 : value);
        return at + 1;
    }
    image->hidden = true;
    return end;
}

/*
 * Whether the comma at TEXT is followed by another name of the same declaration, not by a
 * parameter.
 */
static bool
goes_on(const char *text, const char *end)
{
    text = skip_blanks(text + 1, end);
    return text < end && *text != '.';
}

/* Skip an attribute's "(...)" at TEXT, which may contain brackets. */
static const char *
skip_arguments(const char *text, const char *end)
{
    int depth = 0;
    do {
        depth += (*text == '(') - (*text == ')');
        text++;
    } while (text < end && depth > 0);
    return text;
}

/* Read one token at TEXT that is not a word. */
static const char *
skip_sign(const char *text, const char *end, uint64_t *bytes, struct cgpu_image *image)
{
    if (*text == '[' && *bytes != 0) {
        return multiply(text, end, bytes, image);
    }
    if (*text == '(') {
        return skip_arguments(text, end);
    }
    if (*text == ',') {
        cgpu_image_add(image, *bytes);
        *bytes = 0;
    }
    image->hidden |= *text == '/'; /* a comment may hold anything */
    return text + 1;
}

/*
 * Read a declaration at TEXT, behind ".global" or ".const", up to its values or the end of the
 * statement. Operands of instructions and parameters are read like declarations; each adds a few
 * bytes.
 */
static void
scan_declaration(const char *text, const char *end, struct cgpu_image *image)
{
    uint64_t element = 1;
    uint64_t bytes = 0; /* of the name that was read last */
    end = end - text > MAX_DECLARATION ? text + MAX_DECLARATION : end;
    while (text < end && memchr(";={", *text, 3) == NULL && (*text != ',' || goes_on(text, end))) {
        const char *begin = text;
        while (text < end && is_word(*text) && (text == begin || *text != '.')) {
            text++;
        }
        if (text == begin) {
            text = skip_sign(text, end, &bytes, image);
        } else if (*begin == '.') {
            element = cgpu_image_product(element, type_factor(begin, text));
        } else if (*begin < '0' || *begin > '9') { /* else an alignment */
            cgpu_image_add(image, bytes);
            bytes = element;
        }
    }
    cgpu_image_add(image, bytes);
    image->hidden |= text == end;
}

/*
 * Whether ".managed" occurs between TEXT and the closing bracket at or after it. END is not read.
 */
static bool
declares_managed(const char *text, const char *end)
{
    static const char word[] = ".managed";
    const size_t length = sizeof(word) - 1;
    end = end - text > MAX_ATTRIBUTE ? text + MAX_ATTRIBUTE : end;
    for (; text < end && *text != ')' && *text != ';'; text++) {
        if ((size_t)(end - text) >= length && memcmp(text, word, length) == 0) {
            return true;
        }
    }
    return false;
}

/* Whether WORD is at TEXT and more text follows. */
static bool
begins(const char *text, const char *end, const char *word, size_t length)
{
    return (size_t)(end - text) > length && memcmp(text, word, length) == 0;
}

/*
 * Add the variable that is declared at TEXT. Not IS_VARIABLE: the word is part of an instruction
 * (ld.global), which declares none.
 */
static void
scan_global(const char *text, const char *end, bool is_variable, struct cgpu_image *image)
{
    struct cgpu_image own = {.bytes = 0};
    scan_declaration(text, end, &own);
    cgpu_image_add(image, own.bytes);
    image->hidden |= own.hidden;
    if (is_variable) {
        cgpu_image_add_variables(image, own.bytes);
    }
}

/*
 * Whether a function is declared at TEXT. Other declarations, such as the launch's shared memory,
 * do not count.
 */
static bool
is_function(const char *text, const char *end)
{
    static const char *const spaces[] = {".shared", ".global", ".const", ".local"};
    text = skip_blanks(text, end);
    for (unsigned int i = 0; i < sizeof(spaces) / sizeof(*spaces); i++) {
        if (begins(text, end, spaces[i], strlen(spaces[i]))) {
            return false;
        }
    }
    return true;
}

/*
 * Whether malloc is declared at TEXT: the result is before its name, the parameters are after it.
 */
static bool
declares_malloc(const char *text, const char *end)
{
    static const char word[] = "malloc";
    const size_t length = sizeof(word) - 1;
    end = end - text > MAX_DECLARATION ? text + MAX_DECLARATION : end;
    for (; text < end && *text != ';'; text++) {
        if (!is_word(text[-1]) && begins(text, end, word, length) && !is_word(text[length])) {
            return true;
        }
    }
    return false;
}

static void
scan_directive(const char *at, const char *end, bool is_variable, struct cgpu_image *image)
{
    static const char attribute[] = ".attribute", global[] = ".global", constant[] = ".const";
    static const char outside[] = ".extern";
    if (begins(at, end, attribute, sizeof(attribute) - 1)) {
        image->managed |= declares_managed(at + sizeof(attribute) - 1, end);
    } else if (begins(at, end, global, sizeof(global) - 1)) {
        scan_global(at + sizeof(global) - 1, end, is_variable, image);
    } else if (begins(at, end, constant, sizeof(constant) - 1)) {
        scan_declaration(at + sizeof(constant) - 1, end, image);
    } else if (begins(at, end, outside, sizeof(outside) - 1)) {
        image->calls |= is_function(at + sizeof(outside) - 1, end);
        image->heap |= declares_malloc(at + sizeof(outside) - 1, end);
    }
}

/* Read PTX of at most LIMIT bytes, up to the first byte that is not text. */
void
cgpu_ptx_scan(const char *text, uint64_t limit, struct cgpu_image *image)
{
    uint64_t size = 0;
    while (size < limit && is_text(text[size])) {
        size++;
    }
    const char *end = text + size;
    for (const char *at = text; at != NULL && at < end; at++) {
        at = memchr(at, '.', (size_t)(end - at));
        if (at == NULL) {
            break;
        }
        scan_directive(at, end, at == text || !is_word(at[-1]), image);
    }
    image->hidden |= size < limit && text[size] != '\0';
    cgpu_image_add(image, cgpu_image_product(size, CGPU_PTX_GROWTH));
}
