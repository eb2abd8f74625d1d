/* Entering the library: initialisation, the lock, faults, versions, names of results. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

SIM_EXPORT int cuInit(unsigned flags);
SIM_EXPORT int cuDriverGetVersion(int *version);
SIM_EXPORT int cuGetErrorName(int result, const char **out);
SIM_EXPORT int cuGetErrorString(int result, const char **out);
SIM_EXPORT int cuGetExportTable(const void **out, const void *id);

__thread struct sim_stream *sim_null_stream;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cgpu_machine *machine;
static int initialized; /* 0, 1, or -1 in a child of a process that was */

static const struct {
    int value;
    const char *name, *text;
} results[] = {
#define RESULT(value, name, text) {value, #name, text},
#include "results.def"
#undef RESULT
};

void
sim_log(const char *format, ...)
{
    if (getenv("CGPU_SIM_LOG") == NULL) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    fputs("cgpu-sim: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
}

int
sim_unsupported(const char *name)
{
    static const char *logged[1024];
    for (size_t i = 0; i < sizeof logged / sizeof *logged && logged[i] != name; i++) {
        if (logged[i] == NULL) {
            logged[i] = name;
            sim_log("%s is not simulated", name);
            break;
        }
    }
    return CUDA_ERROR_NOT_SUPPORTED;
}

struct cgpu_machine *
sim_machine(void)
{
    return machine;
}

int
sim_enter(const char *name)
{
    if (__atomic_load_n(&initialized, __ATOMIC_ACQUIRE) != 1) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    int fault = cgpu_machine_fault(machine, name);
    if (fault != CUDA_SUCCESS) {
        return fault;
    }
    pthread_mutex_lock(&lock);
    return CUDA_SUCCESS;
}

void
sim_leave(void)
{
    pthread_mutex_unlock(&lock);
}

void
sim_unlock_for_wait(void)
{
    pthread_mutex_unlock(&lock);
}

void
sim_lock_after_wait(void)
{
    pthread_mutex_lock(&lock);
}

/* A thread of the driver's own: the program's signals are not for it. */
int
sim_thread_start(void *(*run)(void *argument), void *argument)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error != 0 ? error : pthread_detach(thread);
}

/* As with the real driver, a child cannot use what its parent set up. */
static void
disable_in_child(void)
{
    if (initialized == 1) {
        initialized = -1;
    }
    pthread_mutex_init(&lock, NULL);
}

static int
initialize(void)
{
    if (cgpu_machine_open(&machine) != CGPU_MACHINE_OK) {
        return CUDA_ERROR_NO_DEVICE;
    }
    int fault = cgpu_machine_fault(machine, "cuInit");
    if (fault != CUDA_SUCCESS) {
        return fault;
    }
    if (sim_devices_find() != CUDA_SUCCESS) {
        return CUDA_ERROR_NO_DEVICE;
    }
    if (cgpu_machine_attach(machine) != CGPU_MACHINE_OK) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    static int follows_fork;
    if (!follows_fork) {
        follows_fork = pthread_atfork(NULL, NULL, disable_in_child) == 0;
    }
    return CUDA_SUCCESS;
}

int
cuInit(unsigned flags)
{
    if (flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&lock);
    int result = initialized < 0 ? CUDA_ERROR_NOT_INITIALIZED : CUDA_SUCCESS;
    if (initialized == 0) {
        result = initialize();
        /* Release: who sees it initialised sees the devices. */
        __atomic_store_n(&initialized, result == CUDA_SUCCESS, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* Works before cuInit, as in the real library. */
int
cuDriverGetVersion(int *version)
{
    struct cgpu_machine *any;
    if (version == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int found = cgpu_machine_open(&any) == CGPU_MACHINE_OK;
    int fault = found ? cgpu_machine_fault(any, "cuDriverGetVersion") : CUDA_SUCCESS;
    if (fault != CUDA_SUCCESS) {
        return fault;
    }
    *version = found ? (int)cgpu_machine_cuda_version(any) : 12040;
    return CUDA_SUCCESS;
}

static int
describe(int result, const char **out, int as_name)
{
    if (out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = NULL;
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
        if (results[i].value == result) {
            *out = as_name ? results[i].name : results[i].text;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

int
cuGetErrorName(int result, const char **out)
{
    return describe(result, out, 1);
}

int
cuGetErrorString(int result, const char **out)
{
    return describe(result, out, 0);
}

/* There are no private tables here: programs on libcudart need the real driver. */
int
cuGetExportTable(const void **out, const void *id)
{
    (void)id;
    if (out != NULL) {
        *out = NULL;
    }
    return CUDA_ERROR_NOT_FOUND;
}
