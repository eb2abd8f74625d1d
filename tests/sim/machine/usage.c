/* How busy the GPUs were, and with whom. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "state.h"

void
cgpu_machine_history_add(struct state_history *history, uint64_t from, uint64_t to)
{
    history->busy_ns += to - from;
    while (from < to) {
        uint64_t number = from / STATE_BUCKET_NS;
        uint64_t end = (number + 1) * STATE_BUCKET_NS;
        uint64_t bucket = number % STATE_BUCKETS;
        if (history->bucket_number[bucket] != number) {
            history->bucket_number[bucket] = number;
            history->bucket_ns[bucket] = 0;
        }
        history->bucket_ns[bucket] += (to < end ? to : end) - from;
        from = end;
    }
}

/* Of the last ten whole buckets: one second. */
uint32_t
cgpu_machine_history_percent(const struct state_history *history, uint64_t now)
{
    uint64_t last = now / STATE_BUCKET_NS;
    uint64_t busy = 0;
    for (int i = 0; i < STATE_BUCKETS; i++) {
        uint64_t number = history->bucket_number[i];
        if (number < last && number + 10 >= last) {
            busy += history->bucket_ns[i];
        }
    }
    uint64_t percent = (busy * 100 + 5 * STATE_BUCKET_NS) / (10 * STATE_BUCKET_NS);
    return percent > 100 ? 100 : (uint32_t)percent;
}

static uint32_t
percent_of(struct cgpu_machine *machine, uint32_t index, int copies)
{
    if (index >= machine->visible_count) {
        return 0;
    }
    uint32_t gpu = machine->visible[index];
    struct state_timeline *timeline = &machine->state->timelines[gpu];
    cgpu_machine_lock(machine);
    cgpu_machine_reap(machine);
    cgpu_machine_advance(machine, gpu);
    uint32_t result = cgpu_machine_history_percent(copies ? &timeline->copies : &timeline->busy,
                                                   cgpu_machine_now());
    cgpu_machine_unlock(machine);
    return result;
}

uint32_t
cgpu_machine_utilization(struct cgpu_machine *machine, uint32_t index)
{
    return percent_of(machine, index, 0);
}

uint32_t
cgpu_machine_memory_utilization(struct cgpu_machine *machine, uint32_t index)
{
    return percent_of(machine, index, 1);
}

uint64_t
cgpu_machine_busy_ns(struct cgpu_machine *machine, uint32_t index)
{
    if (index >= machine->visible_count) {
        return 0;
    }
    uint32_t gpu = machine->visible[index];
    cgpu_machine_lock(machine);
    cgpu_machine_advance(machine, gpu);
    uint64_t busy = machine->state->timelines[gpu].busy.busy_ns;
    cgpu_machine_unlock(machine);
    return busy;
}

/* For the Python package: any machine, by path, whatever GPUs are visible here. */
__attribute__((visibility("default"))) int cgpu_sim_usage(const char *path, uint32_t gpu, char *out,
                                                          size_t size);

static int
print_usage(struct cgpu_machine *reader, uint32_t gpu, char *out, size_t size)
{
    struct cgpu_machine_process *list = calloc(CGPU_MACHINE_MAX_PROCESSES, sizeof *list);
    size_t count = 0, length = 0;
    int status = list == NULL ? CGPU_MACHINE_EFULL
                              : cgpu_machine_processes(reader, gpu, list,
                                                       CGPU_MACHINE_MAX_PROCESSES, &count);
    for (size_t i = 0; status == CGPU_MACHINE_OK && i < count && length < size; i++) {
        length +=
            (size_t)snprintf(out + length, size - length, "%u\t%llu\t%llu\t%s\t%s\n",
                             list[i].visible_pid, (unsigned long long)list[i].busy_ns,
                             (unsigned long long)list[i].used_bytes, list[i].tag, list[i].command);
    }
    free(list);
    return length < size ? status : CGPU_MACHINE_EFULL;
}

/* A line for each process on the GPU: pid as seen here, GPU time in ns, bytes held, tag, path; by
 * tabs. */
int
cgpu_sim_usage(const char *path, uint32_t gpu, char *out, size_t size)
{
    struct cgpu_machine *reader = calloc(1, sizeof *reader);
    int status = reader == NULL ? CGPU_MACHINE_EFULL
                                : cgpu_machine_map(path, &reader->state, &reader->map_fd);
    if (status == CGPU_MACHINE_OK) {
        reader->slot = -1;
        reader->fd = cgpu_machine_file_open(path);
        reader->visible_count = reader->state->gpu_count;
        for (uint32_t i = 0; i < reader->visible_count; i++) {
            reader->visible[i] = i;
        }
        pthread_mutex_init(&reader->mutex, NULL);
        out[0] = '\0';
        status = reader->fd < 0 ? CGPU_MACHINE_ENOMACHINE : print_usage(reader, gpu, out, size);
        close(reader->fd);
        close(reader->map_fd);
        munmap(reader->state, sizeof *reader->state);
    }
    free(reader);
    return status;
}
