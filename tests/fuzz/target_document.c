/*
 * A container's config.json as the launcher looks at it: where it says that a document does not
 * concern us, none of our variables can be in it, however its letters are escaped (REL-4).
 */
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "hook/common/document.h"

static int
digit_of(unsigned char c)
{
    static const char digits[] = "0123456789abcdef";
    const char *at = c != 0 ? strchr(digits, c >= 'A' && c <= 'F' ? c + 32 : c) : NULL;

    return at != NULL ? (int)(at - digits) : -1;
}

/* The character of an escape at AT; -1 if there is none. */
static int
escaped(const unsigned char *at, size_t size)
{
    int value = 0;

    if (size < 6 || at[0] != '\\' || at[1] != 'u') {
        return -1;
    }
    for (int i = 2; i < 6; i++) {
        if (digit_of(at[i]) < 0) {
            return -1;
        }
        value = value * 16 + digit_of(at[i]);
    }
    return value;
}

/* Whether the text names a variable of ours once every escape in it is read. */
static int
names_ours(const unsigned char *data, size_t size)
{
    static const char prefix[] = "ALIYUN_COM_GPU_";
    char *plain = malloc(size + 1);
    size_t length = 0;
    int is_there;

    for (size_t i = 0; i < size; i++) {
        int value = escaped(data + i, size - i);

        plain[length++] = (char)(value < 0 ? data[i] : value < 128 ? value : '?');
        i += value < 0 ? 0 : 5;
    }
    is_there = memmem(plain, length, prefix, sizeof prefix - 1) != NULL;
    free(plain);
    return is_there;
}

void
fuzz_begin(void)
{
}

void
fuzz_one(const unsigned char *data, size_t size)
{
    struct cgpu_document document = {.bytes = (char *)(size_t)data, .size = size};

    FUZZ_CHECK(cgpu_document_names_variables(&document) || !names_ours(data, size));
}
