/* A program that has nothing to do with GPUs: it takes memory, uses it and says so. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int
main(void)
{
    size_t size = 1 << 20;
    char *memory = malloc(size);

    if (!memory) {
        return 1;
    }
    memset(memory, 'x', size);
    printf("plain %c\n", memory[size - 1]);
    free(memory);
    return 0;
}
