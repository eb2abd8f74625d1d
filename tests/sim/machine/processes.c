/* Process slots: who is alive, what each holds, and the sums. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "state.h"

/* A lock on this byte that belongs to the process: the kernel tells others its pid in their
 * namespace. */
static void
show_pid(struct cgpu_machine *machine, int slot)
{
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = STATE_PID_BYTE + slot, .l_len = 1};
    fcntl(machine->fd, F_SETLK, &lock);
}

static uint32_t
visible_pid(struct cgpu_machine *machine, uint32_t slot)
{
    if ((int)slot == machine->slot) {
        return (uint32_t)getpid();
    }
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = STATE_PID_BYTE + slot, .l_len = 1};
    if (fcntl(machine->fd, F_GETLK, &lock) != 0) {
        return 0;
    }
    /* No conflict: another library of this very process holds it. */
    if (lock.l_type == F_UNLCK) {
        return machine->state->processes[slot].pid;
    }
    return lock.l_pid > 0 ? (uint32_t)lock.l_pid : 0;
}

static void
describe(struct state_process *process, uint64_t tenancy)
{
    struct stat status;
    /* All but the rings, in which nothing is read that was not put in before. */
    memset(process, 0, offsetof(struct state_process, queues));
    for (int i = 0; i < CGPU_MACHINE_MAX_GPUS; i++) {
        memset(&process->queues[i], 0, offsetof(struct state_queue, ring));
    }
    process->pid = (uint32_t)getpid();
    process->tenancy = tenancy;
    if (stat("/proc/self/ns/pid", &status) == 0) {
        process->pid_namespace = status.st_ino;
    }
    ssize_t length = readlink("/proc/self/exe", process->command, sizeof process->command - 1);
    process->command[length < 0 ? 0 : length] = '\0';
    const char *tag = secure_getenv("CGPU_SIM_TAG");
    snprintf(process->tag, sizeof process->tag, "%s", tag == NULL ? "" : tag);
    process->in_use = 1;
}

int
cgpu_machine_attach(struct cgpu_machine *machine)
{
    struct state *state = machine->state;
    cgpu_machine_lock(machine);
    for (int slot = 0; machine->slot < 0 && slot < CGPU_MACHINE_MAX_PROCESSES; slot++) {
        /* Whoever gets the lock has the slot: a former tenant is gone or has left. */
        if (cgpu_machine_file_lock(machine->fd, STATE_SLOT_BYTE + slot, F_WRLCK, 0) != 0) {
            continue;
        }
        describe(&state->processes[slot], ++state->next_tag);
        show_pid(machine, slot);
        machine->slot = slot;
        if (state->process_high <= (uint32_t)slot) {
            state->process_high = (uint32_t)slot + 1;
        }
    }
    cgpu_machine_unlock(machine);
    return machine->slot < 0 ? CGPU_MACHINE_EFULL : CGPU_MACHINE_OK;
}

void
cgpu_machine_reap(struct cgpu_machine *machine)
{
    struct state *state = machine->state;
    for (uint32_t slot = 0; slot < state->process_high; slot++) {
        if (state->processes[slot].in_use && (int)slot != machine->slot &&
            !cgpu_machine_byte_is_locked(machine->fd, STATE_SLOT_BYTE + slot)) {
            state->processes[slot].in_use = 0;
        }
    }
    cgpu_machine_reap_objects(machine);
}

void
cgpu_machine_reap_sometimes(struct cgpu_machine *machine, uint64_t now)
{
    if (now >= machine->state->reaped_ns + STATE_REAP_NS) {
        machine->state->reaped_ns = now;
        cgpu_machine_reap(machine);
    }
}

uint64_t
cgpu_machine_sum(struct cgpu_machine *machine, uint32_t gpu)
{
    struct state *state = machine->state;
    uint64_t sum = 0;
    for (uint32_t slot = 0; slot < state->process_high; slot++) {
        if (state->processes[slot].in_use) {
            sum += state->processes[slot].used_bytes[gpu];
        }
    }
    for (uint32_t i = 0; i < state->object_high; i++) {
        if (state->objects[i].in_use && state->objects[i].gpu == gpu) {
            sum += state->objects[i].bytes;
        }
    }
    return sum;
}

/* Is there room for BYTES more? The dead are asked to leave first, only if it matters. */
int
cgpu_machine_reserve(struct cgpu_machine *machine, uint32_t gpu, uint64_t bytes)
{
    const struct cgpu_machine_gpu *facts = &machine->state->gpus[gpu];
    uint64_t usable = facts->total_bytes - facts->reserved_bytes;
    for (int attempt = 0; attempt < 2; attempt++) {
        uint64_t used = cgpu_machine_sum(machine, gpu);
        if (used <= usable && bytes <= usable - used) {
            return CGPU_MACHINE_OK;
        }
        cgpu_machine_reap(machine);
    }
    return CGPU_MACHINE_ENOMEMORY;
}

int
cgpu_machine_take(struct cgpu_machine *machine, uint32_t index, uint64_t bytes)
{
    if (index >= machine->visible_count || machine->slot < 0) {
        return CGPU_MACHINE_EINVAL;
    }
    uint32_t gpu = machine->visible[index];
    cgpu_machine_lock(machine);
    /* Again each time: closing any descriptor of the machine file (an exported handle) drops this
     * lock. */
    show_pid(machine, machine->slot);
    int status = cgpu_machine_reserve(machine, gpu, bytes);
    if (status == CGPU_MACHINE_OK) {
        machine->state->processes[machine->slot].used_bytes[gpu] += bytes;
    }
    cgpu_machine_unlock(machine);
    return status;
}

void
cgpu_machine_give(struct cgpu_machine *machine, uint32_t index, uint64_t bytes)
{
    if (index >= machine->visible_count || machine->slot < 0) {
        return;
    }
    cgpu_machine_lock(machine);
    machine->state->processes[machine->slot].used_bytes[machine->visible[index]] -= bytes;
    cgpu_machine_unlock(machine);
}

void
cgpu_machine_count_context(struct cgpu_machine *machine, uint32_t index, int32_t change)
{
    if (index < machine->visible_count && machine->slot >= 0) {
        cgpu_machine_lock(machine);
        machine->state->processes[machine->slot].contexts[machine->visible[index]] +=
            (uint32_t)change;
        cgpu_machine_unlock(machine);
    }
}

uint64_t
cgpu_machine_used(struct cgpu_machine *machine, uint32_t index)
{
    if (index >= machine->visible_count) {
        return 0;
    }
    cgpu_machine_lock(machine);
    cgpu_machine_reap(machine);
    uint64_t used = cgpu_machine_sum(machine, machine->visible[index]);
    cgpu_machine_unlock(machine);
    return used;
}

static void
report(struct cgpu_machine *machine, uint32_t gpu, uint32_t slot, struct cgpu_machine_process *out)
{
    struct state_process *process = &machine->state->processes[slot];
    memset(out, 0, sizeof *out);
    out->slot = slot;
    out->pid = process->pid;
    out->visible_pid = visible_pid(machine, slot);
    out->pid_namespace = process->pid_namespace;
    out->contexts = process->contexts[gpu];
    out->used_bytes = process->used_bytes[gpu] + cgpu_machine_paid_by(machine, gpu, slot);
    uint64_t now = cgpu_machine_now();
    out->busy_ns = cgpu_machine_time_of(machine, gpu, slot, now);
    out->utilization = cgpu_machine_history_percent(&process->queues[gpu].history, now);
    memcpy(out->command, process->command, sizeof out->command);
    memcpy(out->tag, process->tag, sizeof out->tag);
}

int
cgpu_machine_processes(struct cgpu_machine *machine, uint32_t index,
                       struct cgpu_machine_process *out, size_t capacity, size_t *count)
{
    *count = 0;
    if (index >= machine->visible_count) {
        return CGPU_MACHINE_EINVAL;
    }
    uint32_t gpu = machine->visible[index];
    cgpu_machine_lock(machine);
    cgpu_machine_reap(machine);
    cgpu_machine_advance(machine, gpu);
    for (uint32_t slot = 0; slot < machine->state->process_high; slot++) {
        struct state_process *process = &machine->state->processes[slot];
        if (!process->in_use || (process->contexts[gpu] == 0 && process->used_bytes[gpu] == 0)) {
            continue;
        }
        if (*count < capacity) {
            report(machine, gpu, slot, &out[*count]);
        }
        ++*count;
    }
    cgpu_machine_unlock(machine);
    return CGPU_MACHINE_OK;
}
