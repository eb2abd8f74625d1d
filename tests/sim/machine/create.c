/*
 * Making a machine from a text, and telling it to fail or to lose a GPU. These are exported by the
 * simulated libcuda for the Python package: the layout of the file is known in C only.
 *
 *     cuda_version 12040
 *     driver_version 550.163.01
 *     switch_us 50              (what turning to another process costs a GPU)
 *     dispatch_us 0             (from a launch to its earliest begin)
 *     completion_us 0           (from an end to its being seen)
 *     in_order 0                (1: kernels of all processes run in order of arrival, whole)
 *     gpu                       (starts the next GPU; the lines after it describe it)
 *     name Tesla T4
 *     mib 15109
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "state.h"

#define EXPORTED __attribute__((visibility("default")))

EXPORTED int cgpu_sim_create(const char *path, const char *text);
EXPORTED int cgpu_sim_inject(const char *path, const char *call, int nth, int result,
                             unsigned delay_us, int kill_it, int repeat);
EXPORTED int cgpu_sim_lose(const char *path, unsigned gpu, int result, int has_handle);

#define MIB(n) ((uint64_t)(n) << 20)

static const struct cgpu_machine_gpu tesla_t4 = {
    .name = "Tesla T4",
    .total_bytes = MIB(15109),
    .context_bytes = MIB(105),
    .capability_major = 7,
    .capability_minor = 5,
    .sm_count = 40,
    .threads_per_sm = 1024,
    .sm_clock_khz = 1590000,
    .memory_clock_khz = 5001000,
    .memory_bus_bits = 256,
    .l2_bytes = 4u << 20,
};

static int
parse_uuid(const char *text, uint8_t *uuid)
{
    int digits = 0;
    for (text += strncmp(text, "GPU-", 4) == 0 ? 4 : 0; *text != '\0' && digits < 32; text++) {
        unsigned value;
        char digit[2] = {*text, '\0'};
        if (*text != '-' && sscanf(digit, "%1x", &value) == 1) {
            uuid[digits / 2] = (uint8_t)(uuid[digits / 2] << 4 | value);
            digits++;
        }
    }
    return digits == 32;
}

struct field {
    const char *key;
    size_t offset;
    size_t size;
    int mib;
};

#define FIELD(key, member, mib)                                                                    \
    {key, offsetof(struct cgpu_machine_gpu, member),                                               \
     sizeof(((struct cgpu_machine_gpu *)0)->member), mib}

static const struct field fields[] = {
    FIELD("mib", total_bytes, 1),
    FIELD("reserved_mib", reserved_bytes, 1),
    FIELD("context_mib", context_bytes, 1),
    FIELD("minor", minor, 0),
    FIELD("pci_domain", pci_domain, 0),
    FIELD("pci_bus", pci_bus, 0),
    FIELD("pci_device", pci_device, 0),
    FIELD("capability_major", capability_major, 0),
    FIELD("capability_minor", capability_minor, 0),
    FIELD("sm_count", sm_count, 0),
    FIELD("island", island, 0),
    FIELD("nvlinks", nvlinks, 0),
    FIELD("switched", switched, 0),
    FIELD("mig", mig, 0),
};

static int
set_number(struct cgpu_machine_gpu *gpu, const char *key, uint64_t value)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (strcmp(fields[i].key, key) == 0) {
            value = fields[i].mib ? MIB(value) : value;
            memcpy((char *)gpu + fields[i].offset, &value, fields[i].size); /* little-endian */
            return 1;
        }
    }
    return 0;
}

static void
add_gpu(struct state *state)
{
    struct cgpu_machine_gpu *gpu = &state->gpus[state->gpu_count];
    *gpu = tesla_t4;
    gpu->minor = state->gpu_count;
    gpu->pci_bus = 4 + state->gpu_count;
    state->gpu_count++;
}

static int
apply(struct state *state, const char *key, const char *value)
{
    struct cgpu_machine_gpu *gpu = state->gpu_count ? &state->gpus[state->gpu_count - 1] : NULL;
    if (strcmp(key, "cuda_version") == 0) {
        state->cuda_version = (uint32_t)strtoul(value, NULL, 10);
    } else if (strcmp(key, "driver_version") == 0) {
        snprintf(state->driver_version, sizeof state->driver_version, "%s", value);
    } else if (strcmp(key, "switch_us") == 0) {
        state->switch_ns = strtoull(value, NULL, 10) * 1000;
    } else if (strcmp(key, "dispatch_us") == 0) {
        state->dispatch_ns = strtoull(value, NULL, 10) * 1000;
    } else if (strcmp(key, "completion_us") == 0) {
        state->completion_ns = strtoull(value, NULL, 10) * 1000;
    } else if (strcmp(key, "in_order") == 0) {
        state->in_order = (uint32_t)strtoul(value, NULL, 10);
    } else if (strcmp(key, "gpu") == 0) {
        if (state->gpu_count == CGPU_MACHINE_MAX_GPUS) {
            return 0;
        }
        add_gpu(state);
    } else if (gpu != NULL && strcmp(key, "name") == 0) {
        snprintf(gpu->name, sizeof gpu->name, "%s", value);
    } else if (gpu != NULL && strcmp(key, "uuid") == 0) {
        return parse_uuid(value, gpu->uuid);
    } else {
        return gpu != NULL && set_number(gpu, key, strtoull(value, NULL, 10));
    }
    return 1;
}

static int
fill(struct state *state, const char *text)
{
    char *copy = strdup(text), *rest = copy, *line;
    int good = copy != NULL;
    state->cuda_version = 12040;
    state->switch_ns = STATE_SWITCH_NS;
    snprintf(state->driver_version, sizeof state->driver_version, "550.163.01");
    while (good && (line = strsep(&rest, "\n")) != NULL) {
        char *key = strsep(&line, " ");
        good = key[0] == '\0' || apply(state, key, line == NULL ? "" : line);
    }
    free(copy);
    return good;
}

/* Make the machine file at PATH, writable by everybody. 0, or a negative cgpu_machine_status. */
int
cgpu_sim_create(const char *path, const char *text)
{
    unlink(path); /* who uses a machine of that name keeps it */
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        return CGPU_MACHINE_ENOMACHINE;
    }
    int status = CGPU_MACHINE_ENOMACHINE;
    struct state *state = MAP_FAILED;
    if (fchmod(fd, 0666) == 0 && ftruncate(fd, sizeof *state) == 0) {
        state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (state != MAP_FAILED) {
        status = fill(state, text) ? CGPU_MACHINE_OK : CGPU_MACHINE_EINVAL;
        state->version = STATE_VERSION;
        state->size = sizeof *state;
        state->magic = status == CGPU_MACHINE_OK ? STATE_MAGIC : 0;
        munmap(state, sizeof *state);
    }
    close(fd);
    return status;
}

/* From now on, let the NTH call of an entry point whose name starts with CALL be late, fail, or
 * die. */
int
cgpu_sim_inject(const char *path, const char *call, int nth, int result, unsigned delay_us,
                int kill_it, int repeat)
{
    struct state *state;
    int fd, status = cgpu_machine_map(path, &state, &fd);
    if (status != CGPU_MACHINE_OK) {
        return status;
    }
    status = CGPU_MACHINE_EFULL;
    for (int i = 0; i < STATE_FAULTS && status != CGPU_MACHINE_OK; i++) {
        struct state_fault *fault = &state->faults[i];
        if (__atomic_load_n(&fault->in_use, __ATOMIC_ACQUIRE)) {
            continue;
        }
        *fault = (struct state_fault){.countdown = nth,
                                      .result = result,
                                      .delay_us = delay_us,
                                      .kill = kill_it != 0,
                                      .repeat = repeat != 0};
        snprintf(fault->call, sizeof fault->call, "%s", call);
        /* Release: who sees the fault sees all of it. */
        __atomic_store_n(&fault->in_use, 1, __ATOMIC_RELEASE);
        status = CGPU_MACHINE_OK;
    }
    munmap(state, sizeof *state);
    close(fd);
    return status;
}

/* From now on, let every query of GPU give RESULT; 0: it answers again. */
int
cgpu_sim_lose(const char *path, unsigned gpu, int result, int has_handle)
{
    struct state *state;
    int fd, status = cgpu_machine_map(path, &state, &fd);
    if (status != CGPU_MACHINE_OK) {
        return status;
    }
    if (gpu < state->gpu_count) {
        __atomic_store_n(&state->losses[gpu].has_handle, has_handle != 0, __ATOMIC_RELAXED);
        /* Release: who sees the error sees whether the handle is given. */
        __atomic_store_n(&state->losses[gpu].result, result, __ATOMIC_RELEASE);
    } else {
        status = CGPU_MACHINE_EINVAL;
    }
    munmap(state, sizeof *state);
    close(fd);
    return status;
}

int
cgpu_machine_loss(struct cgpu_machine *machine, uint32_t index, int *has_handle)
{
    struct state_loss *loss = &machine->state->losses[machine->visible[index]];
    int result = __atomic_load_n(&loss->result, __ATOMIC_ACQUIRE);
    *has_handle = (int)__atomic_load_n(&loss->has_handle, __ATOMIC_RELAXED);
    return result;
}

int
cgpu_machine_fault(struct cgpu_machine *machine, const char *call)
{
    for (int i = 0; i < STATE_FAULTS; i++) {
        struct state_fault *fault = &machine->state->faults[i];
        if (!__atomic_load_n(&fault->in_use, __ATOMIC_ACQUIRE) ||
            strncmp(call, fault->call, strlen(fault->call)) != 0) {
            continue;
        }
        int left = __atomic_sub_fetch(&fault->countdown, 1, __ATOMIC_RELAXED);
        if (left > 0 || (left < 0 && !fault->repeat)) {
            continue;
        }
        int kill_it = (int)fault->kill, result = fault->result;
        uint32_t delay_us = fault->delay_us;
        if (!fault->repeat) {
            __atomic_store_n(&fault->in_use, 0, __ATOMIC_RELEASE);
        }
        if (kill_it) {
            raise(SIGKILL);
        }
        usleep(delay_us);
        return result;
    }
    return 0;
}
