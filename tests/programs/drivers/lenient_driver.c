/*
 * A driver whose entry points succeed and write nothing, whatever pointers they are given: what a
 * hook makes of such an answer must not end the program. It has one context, on one GPU.
 */
#include <string.h>

#define EXPORT(name, parameters)                                                                   \
    int name(void);                                                                                \
    int name(void)                                                                                 \
    {                                                                                              \
        return 0;                                                                                  \
    }
#include "entry/hooks.def"

int cuCtxGetCurrent(const void **context);
int cuCtxGetDevice(int *device);
int cuDeviceGetUuid(void *uuid, int device);

int
cuCtxGetCurrent(const void **context)
{
    static const char only;
    *context = &only;
    return 0;
}

int
cuCtxGetDevice(int *device)
{
    *device = 0;
    return 0;
}

int
cuDeviceGetUuid(void *uuid, int device)
{
    memset(uuid, device + 1, 16);
    return 0;
}
