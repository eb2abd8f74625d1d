/*
 * Ask for more memory than the cap allows through every way to reach cuMemAlloc. Prints "<way>
 * <status>": 2 where the cap was found, 0 where the driver was reached around it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int cuInit(unsigned int flags);
int cuCtxCreate_v2(void **context, unsigned int flags, int device);
int cuMemAlloc_v2(uint64_t *address, size_t bytes);
int cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags);
int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags,
                        int *status);

typedef int allocate(uint64_t *address, size_t bytes);

static void
try(const char *way, void *function)
{
    uint64_t address;
    printf("%s %d\n", way,
           function == NULL ? -1 : ((allocate *)function)(&address, (size_t)1 << 40));
}

static void
try_library(const char *way, void *library)
{
    try(way, library == NULL ? NULL : dlsym(library, "cuMemAlloc_v2"));
}

/* Another namespace has its own copy of the library, to be started on its own. */
static void
try_namespace(const char *path)
{
    void *library = dlmopen(LM_ID_NEWLM, path, RTLD_NOW);
    void *context;
    if (library == NULL) {
        printf("dlmopen: %s\n", dlerror());
        return;
    }
    ((int (*)(unsigned int))dlsym(library, "cuInit"))(0);
    ((int (*)(void **, unsigned int, int))dlsym(library, "cuCtxCreate_v2"))(&context, 0, 0);
    try_library("dlmopen", library);
}

static void
try_lookups(void)
{
    void *function = NULL;
    int found;
    cuGetProcAddress("cuMemAlloc", &function, 11030, 0);
    try("lookup", function);
    cuGetProcAddress("cuMemAlloc", &function, 11030, 2);
    try("lookup per-thread", function);
    cuGetProcAddress_v2("cuMemAlloc", &function, 12000, 0, &found);
    try("lookup v2", function);
    cuGetProcAddress_v2("cuMemAlloc", &function, 12000, 2, &found);
    try("lookup v2 per-thread", function);

    int (*lookup)(const char *, void **, int, uint64_t, int *) = NULL;
    cuGetProcAddress("cuGetProcAddress", (void **)&lookup, 12000, 0);
    lookup("cuMemAlloc", &function, 12000, 0, &found);
    try("lookup of the lookup", function);
}

int
main(int count, char **arguments)
{
    void *context;
    if (count != 2 || cuInit(0) != 0 || cuCtxCreate_v2(&context, 0, 0) != 0) {
        return 1;
    }
    try("linked", (void *)cuMemAlloc_v2);
    try("dlsym default", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
    try_library("dlopen soname", dlopen("libcuda.so.1", RTLD_NOW));
    try_library("dlopen absolute", dlopen(arguments[1], RTLD_NOW));
    try_library("dlopen deep-bound", dlopen(arguments[1], RTLD_NOW | RTLD_DEEPBIND));
    try_library("dlopen local lazy", dlopen(arguments[1], RTLD_LAZY | RTLD_LOCAL));
    try_namespace(arguments[1]);
    try_lookups();
    return 0;
}
