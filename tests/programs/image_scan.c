/*
 * Look through files as the proxy looks through code, under AddressSanitizer: each lies in a block
 * of exactly its size. With a number first: also that many damaged copies of each.
 */
#include "memory/code/image.c"
#include "memory/code/ptx.c"

#include <stdio.h>
#include <stdlib.h>

static uint64_t
next(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

static void
scan_damaged(const unsigned char *image, size_t size, long copies)
{
    uint64_t state = size;
    for (long i = 0; i < copies; i++) {
        size_t length = next(&state) % 4 == 0 ? next(&state) % (size + 1) : size;
        unsigned char *copy = malloc(length);
        struct cgpu_image scan = {.bytes = 0};
        memcpy(copy, image, length);
        for (uint64_t j = next(&state) % 8; length != 0 && j > 0; j--) {
            copy[next(&state) % length] =
                next(&state) % 3 == 0 ? 0xff : (unsigned char)next(&state);
        }
        scan_any(copy, length, &scan);
        free(copy);
    }
}

int
main(int count, char **arguments)
{
    for (int i = 2; i < count; i++) {
        FILE *file = fopen(arguments[i], "rb");
        unsigned char *bytes = calloc(1, 1 << 20);
        size_t size = fread(bytes, 1, 1 << 20, file);
        unsigned char *image = malloc(size);
        struct cgpu_image scan = {.bytes = 0};
        memcpy(image, bytes, size);
        scan_any(image, size, &scan);
        printf("%s %s %llu\n", scan.managed ? "managed" : "plain", scan.hidden ? "hiding" : "told",
               (unsigned long long)scan.bytes);
        scan_damaged(image, size, strtol(arguments[1], NULL, 10));
        free(image);
        free(bytes);
        fclose(file);
    }
    return 0;
}
