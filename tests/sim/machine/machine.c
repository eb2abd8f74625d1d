/* Finding and mapping the machine; which GPUs this process sees; the lock. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "state.h"

#ifndef F_OFD_GETLK
#define F_OFD_GETLK  36
#define F_OFD_SETLK  37
#define F_OFD_SETLKW 38
#endif

static struct cgpu_machine attachment = {
    .map_fd = -1, .fd = -1, .slot = -1, .mutex = PTHREAD_MUTEX_INITIALIZER};
static pthread_mutex_t open_mutex = PTHREAD_MUTEX_INITIALIZER;

uint64_t
cgpu_machine_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

int
cgpu_machine_file_lock(int fd, long long byte, short type, int wait)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int result;
    do {
        result = fcntl(fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &lock);
    } while (result != 0 && errno == EINTR);
    return result;
}

int
cgpu_machine_byte_is_locked(int fd, long long byte)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

void
cgpu_machine_lock(struct cgpu_machine *machine)
{
    pthread_mutex_lock(&machine->mutex);
    cgpu_machine_file_lock(machine->fd, STATE_LOCK_BYTE, F_WRLCK, 1);
}

void
cgpu_machine_unlock(struct cgpu_machine *machine)
{
    cgpu_machine_file_lock(machine->fd, STATE_LOCK_BYTE, F_UNLCK, 0);
    pthread_mutex_unlock(&machine->mutex);
}

/* Never use descriptors 0 to 2: a program that closed its output would print into the machine. */
int
cgpu_machine_file_open(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fd > STDERR_FILENO) {
        return fd;
    }
    int high = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    close(fd);
    return high;
}

int
cgpu_machine_map(const char *path, struct state **out, int *fd)
{
    *fd = cgpu_machine_file_open(path);
    if (*fd < 0) {
        return CGPU_MACHINE_ENOMACHINE;
    }
    struct stat status;
    struct state *state = MAP_FAILED;
    if (fstat(*fd, &status) == 0 && (uint64_t)status.st_size >= sizeof *state) {
        state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    }
    if (state == MAP_FAILED) {
        close(*fd);
        return CGPU_MACHINE_ENOMACHINE;
    }
    if (state->magic != STATE_MAGIC || state->version != STATE_VERSION ||
        state->size != sizeof *state) {
        munmap(state, sizeof *state);
        close(*fd);
        return CGPU_MACHINE_ENOMACHINE;
    }
    *out = state;
    return CGPU_MACHINE_OK;
}

static void
find_path(char *path, size_t size)
{
    const char *named = secure_getenv("CGPU_SIM_MACHINE");
    if (named != NULL && named[0] != '\0') {
        snprintf(path, size, "%s", named);
        return;
    }
    snprintf(path, size, "/dev/cgpu-sim/machine");
    if (access(path, F_OK) == 0) {
        return;
    }
    Dl_info info;
    if (dladdr((void *)(uintptr_t)find_path, &info) == 0 || info.dli_fname == NULL) {
        return;
    }
    const char *slash = strrchr(info.dli_fname, '/');
    int length = slash == NULL ? 0 : (int)(slash - info.dli_fname) + 1;
    snprintf(path, size, "%.*smachine", length, info.dli_fname);
}

/*
 * A GPU is there for this process if it may open the device node: that is how containers select
 * GPUs, and control groups.
 */
static void
find_visible(struct cgpu_machine *machine)
{
    char node[sizeof machine->path + 16];
    const char *slash = strrchr(machine->path, '/');
    int length = slash == NULL ? 0 : (int)(slash - machine->path) + 1;
    machine->visible_count = 0;
    for (uint32_t i = 0; i < machine->state->gpu_count; i++) {
        snprintf(node, sizeof node, "%.*sgpu%u", length, machine->path,
                 machine->state->gpus[i].minor);
        if (access(node, R_OK) == 0) {
            machine->visible[machine->visible_count++] = i;
        }
    }
}

/* The child shares the parent's file description, and so its locks: it needs one of its own. */
static void
reopen_in_child(void)
{
    if (attachment.state == NULL) {
        return;
    }
    close(attachment.fd);
    attachment.fd = cgpu_machine_file_open(attachment.path);
    attachment.slot = -1;
    memset(attachment.references, 0, sizeof attachment.references);
    pthread_mutex_init(&attachment.mutex, NULL);
    pthread_mutex_init(&open_mutex, NULL);
}

int
cgpu_machine_open(struct cgpu_machine **out)
{
    static int follows_fork;
    int status = CGPU_MACHINE_OK;
    pthread_mutex_lock(&open_mutex);
    if (attachment.state == NULL) {
        find_path(attachment.path, sizeof attachment.path);
        status = cgpu_machine_map(attachment.path, &attachment.state, &attachment.map_fd);
        if (status == CGPU_MACHINE_OK) {
            attachment.fd = cgpu_machine_file_open(attachment.path);
            find_visible(&attachment);
        }
    }
    if (status == CGPU_MACHINE_OK && !follows_fork) {
        follows_fork = pthread_atfork(NULL, NULL, reopen_in_child) == 0;
    }
    pthread_mutex_unlock(&open_mutex);
    *out = status == CGPU_MACHINE_OK ? &attachment : NULL;
    return status;
}

uint32_t
cgpu_machine_gpu_count(struct cgpu_machine *machine)
{
    return machine->visible_count;
}

const struct cgpu_machine_gpu *
cgpu_machine_gpu(struct cgpu_machine *machine, uint32_t index)
{
    return index < machine->visible_count ? &machine->state->gpus[machine->visible[index]] : NULL;
}

uint32_t
cgpu_machine_cuda_version(struct cgpu_machine *machine)
{
    return machine->state->cuda_version;
}

const char *
cgpu_machine_driver_version(struct cgpu_machine *machine)
{
    return machine->state->driver_version;
}
