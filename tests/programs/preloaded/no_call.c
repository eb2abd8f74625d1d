/* Preloaded: a filter refuses the system call FORBIDDEN, or ends who makes it (with ENDS). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

long
syscall(long number, ...)
{
    static long (*real)(long, ...);
    __builtin_va_list list;
    long argument[6];
    if (number == FORBIDDEN) {
#ifdef ENDS
        abort();
#endif
        errno = EPERM;
        return -1;
    }
    if (real == NULL) {
        *(void **)&real = dlsym(RTLD_NEXT, "syscall");
    }
    __builtin_va_start(list, number);
    for (int i = 0; i < 6; i++) {
        argument[i] = __builtin_va_arg(list, long);
    }
    __builtin_va_end(list);
    return real(number, argument[0], argument[1], argument[2], argument[3], argument[4],
                argument[5]);
}
