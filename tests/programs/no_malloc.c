/* Asks NVML about memory and accounting while the program's allocator is out of bounds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

extern void *__libc_malloc(size_t size);

static int out_of_bounds;

void *
malloc(size_t size)
{
    if (out_of_bounds) {
        abort();
    }
    return __libc_malloc(size);
}

int
main(int argc, char **argv)
{
    void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (library == NULL) {
        return 1;
    }
    int (*memory)(void *, uint64_t *) = dlsym(library, "nvmlDeviceGetMemoryInfo");
    int (*pids)(void *, uint32_t *, uint32_t *) = dlsym(library, "nvmlDeviceGetAccountingPids");
    uint64_t figures[3];
    uint32_t found[8], count = 8;
    out_of_bounds = 1;
    int status = memory((void *)1, figures) || pids((void *)1, &count, found);
    out_of_bounds = 0;
    if (status != 0) {
        return 1;
    }
    printf("%llu %llu %u\n", (unsigned long long)figures[0], (unsigned long long)figures[2], count);
    return 0;
}
