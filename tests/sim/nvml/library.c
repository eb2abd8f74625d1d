/* Initialisation, errors, and what NVML says about the system. */
#include "sim.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t init_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct cgpu_machine *machine;
static uint32_t init_count;

struct cgpu_machine *
sim_machine(void)
{
    return __atomic_load_n(&init_count, __ATOMIC_ACQUIRE) > 0 ? machine : NULL;
}

enum nvml_return
sim_enter(const char *call)
{
    struct cgpu_machine *attached = sim_machine();
    return attached ? (enum nvml_return)cgpu_machine_fault(attached, call)
                    : NVML_ERROR_UNINITIALIZED;
}

NVML_DEFINE(nvmlInitWithFlags, uint32_t flags)
{
    (void)flags;
    pthread_mutex_lock(&init_mutex);
    enum nvml_return result = NVML_SUCCESS;
    if (init_count == 0 && cgpu_machine_open(&machine) != CGPU_MACHINE_OK) {
        result = NVML_ERROR_DRIVER_NOT_LOADED;
    } else {
        result = (enum nvml_return)cgpu_machine_fault(machine, "nvmlInit");
    }
    if (result == NVML_SUCCESS) {
        /* Release: a thread that sees the count sees the machine. */
        __atomic_add_fetch(&init_count, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&init_mutex);
    return result;
}

NVML_DEFINE(nvmlInit_v2, void)
{
    return nvmlInitWithFlags(0);
}

NVML_DEFINE(nvmlInit, void)
{
    return nvmlInitWithFlags(0);
}

NVML_DEFINE(nvmlShutdown, void)
{
    pthread_mutex_lock(&init_mutex);
    enum nvml_return result = init_count > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (result == NVML_SUCCESS) {
        __atomic_sub_fetch(&init_count, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&init_mutex);
    return result;
}

SIM_EXPORT const char *nvmlErrorString(enum nvml_return result);

const char *
nvmlErrorString(enum nvml_return result)
{
    switch (result) {
    case NVML_SUCCESS:
        return "Success";
    case NVML_ERROR_UNINITIALIZED:
        return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
        return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
        return "Not Supported";
    case NVML_ERROR_NO_PERMISSION:
        return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND:
        return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
        return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    case NVML_ERROR_FUNCTION_NOT_FOUND:
        return "Function Not Found";
    case NVML_ERROR_GPU_IS_LOST:
        return "GPU is lost";
    case NVML_ERROR_RESET_REQUIRED:
        return "GPU requires reset";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return "Driver/library version mismatch";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
        return "Argument version mismatch";
    case NVML_ERROR_UNKNOWN:
        break;
    }
    return "Unknown Error";
}

enum nvml_return
sim_copy_text(char *out, uint32_t size, const char *text)
{
    size_t needed = strlen(text) + 1;
    if (out == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (needed > size) {
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    memcpy(out, text, needed);
    return NVML_SUCCESS;
}

NVML_DEFINE(nvmlSystemGetDriverVersion, char *out, uint32_t size)
{
    enum nvml_return result = sim_enter(__func__);
    return result ? result : sim_copy_text(out, size, cgpu_machine_driver_version(machine));
}

NVML_DEFINE(nvmlSystemGetNVMLVersion, char *out, uint32_t size)
{
    char version[64];
    enum nvml_return result = sim_enter(__func__);
    if (result) {
        return result;
    }
    snprintf(version, sizeof version, "12.%s", cgpu_machine_driver_version(machine));
    return sim_copy_text(out, size, version);
}

NVML_DEFINE(nvmlSystemGetCudaDriverVersion_v2, int *out)
{
    enum nvml_return result = sim_enter(__func__);
    if (!result) {
        *out = (int)cgpu_machine_cuda_version(machine);
    }
    return result;
}

NVML_DEFINE(nvmlSystemGetCudaDriverVersion, int *out)
{
    return nvmlSystemGetCudaDriverVersion_v2(out);
}

/* The first word of the command line, as the driver's library has it. */
NVML_DEFINE(nvmlSystemGetProcessName, uint32_t pid, char *out, uint32_t size)
{
    char text[4096];
    enum nvml_return result = sim_enter(__func__);
    if (result) {
        return result;
    }
    snprintf(text, sizeof text, "/proc/%u/cmdline", pid);
    int fd = open(text, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) {
        close(fd);
    }
    if (length <= 0) {
        return NVML_ERROR_NOT_FOUND;
    }
    text[length] = '\0';
    return sim_copy_text(out, size, text);
}

static enum nvml_return
answer_zero(const char *call, uint32_t *out)
{
    enum nvml_return result = sim_enter(call);
    if (!result) {
        *out = 0;
    }
    return result;
}

NVML_DEFINE(nvmlUnitGetCount, uint32_t *out)
{
    return answer_zero(__func__, out);
}

NVML_DEFINE(nvmlGetExcludedDeviceCount, uint32_t *out)
{
    return answer_zero(__func__, out);
}

NVML_DEFINE(nvmlGetBlacklistDeviceCount, uint32_t *out)
{
    return answer_zero(__func__, out);
}

/* Event sets can be made, and stay empty: registering for events is not supported. */
NVML_DEFINE(nvmlEventSetCreate, void **out)
{
    static char set;
    enum nvml_return result = sim_enter(__func__);
    if (!result) {
        *out = &set;
    }
    return result;
}

NVML_DEFINE(nvmlEventSetFree, void *set)
{
    (void)set;
    return sim_enter(__func__);
}
