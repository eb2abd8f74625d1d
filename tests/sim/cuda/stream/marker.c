/*
 * Values that streams write (cuStreamWriteValue): the GPU's way to say how far it is.
 *
 * The work of a process on a GPU is one queue, and values become due in the order of the work that
 * they follow: one may be put behind older work than the one before it, in another stream. A thread
 * per GPU sleeps until the timeline says that the next one is due; whoever learns earlier that work
 * is done (a query, a synchronisation) writes what is due first.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#include "sim.h"

enum { MARKERS = 4096 };
#define LOOK_NS UINT64_C(10000000)

struct marker {
    uint64_t item, address, value;
    uint32_t size; /* 0: forgotten */
};

static struct queue {
    uint64_t added, written;
    struct sim_device *device;
    struct marker ring[MARKERS]; /* by item */
} queues[CGPU_MACHINE_MAX_GPUS];

/* Their own lock: the threads must not hold the library's. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void
begin(void)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

/* Drivers before CUDA 8, and some after it by default, cannot. */
int
sim_marker_allowed(void)
{
    static int allowed = -1;
    int known = __atomic_load_n(&allowed, __ATOMIC_RELAXED); /* all find out the same */
    if (known < 0) {
        known = getenv("CGPU_SIM_NO_WRITE_VALUE") == NULL;
        __atomic_store_n(&allowed, known, __ATOMIC_RELAXED);
    }
    return known;
}

/* CGPU_SIM_LOSE_VALUES: the first so many values are accepted and never written. */
static int
is_lost(void)
{
    static uint64_t seen;
    const char *lost = getenv("CGPU_SIM_LOSE_VALUES");
    return lost != NULL &&
           __atomic_fetch_add(&seen, 1, __ATOMIC_RELAXED) < strtoull(lost, NULL, 10);
}

static void
write_value(uint64_t address, uint64_t value, uint32_t size)
{
    /* release: who sees the value sees what the stream did before it */
    if (size == sizeof(uint64_t)) {
        __atomic_store_n((uint64_t *)(uintptr_t)address, value, __ATOMIC_RELEASE);
    } else if (size == sizeof(uint32_t)) {
        __atomic_store_n((uint32_t *)(uintptr_t)address, (uint32_t)value, __ATOMIC_RELEASE);
    }
}

/* Under the lock. */
static void
write_due(struct queue *queue)
{
    uint32_t index = queue->device->machine_index;
    while (queue->written != queue->added) {
        struct marker *marker = &queue->ring[queue->written % MARKERS];
        if (!cgpu_machine_done(sim_machine(), index, marker->item)) {
            break;
        }
        write_value(marker->address, marker->value, marker->size);
        /* release: who sees the number sees the value */
        __atomic_store_n(&queue->written, queue->written + 1, __ATOMIC_RELEASE);
    }
}

/* The work that the next value follows; 0: there is none. */
static uint64_t
next_item(const struct queue *queue)
{
    return queue->written == queue->added ? 0 : queue->ring[queue->written % MARKERS].item;
}

/* Under the lock, which is released meanwhile: until ITEM may be done, or is not the next. */
static void
wait_for(struct queue *queue, uint64_t item)
{
    pthread_mutex_unlock(&lock);
    uint64_t at =
        cgpu_machine_next_look(sim_machine(), queue->device->machine_index, item, LOOK_NS);
    struct timespec until = {(time_t)(at / 1000000000), (long)(at % 1000000000)};
    pthread_mutex_lock(&lock);
    if (next_item(queue) == item) {
        pthread_cond_timedwait(&changed, &lock, &until);
    }
}

static void *
work(void *argument)
{
    struct queue *queue = argument;
    prctl(PR_SET_TIMERSLACK, 1ul); /* the GPU writes when it writes */
    pthread_mutex_lock(&lock);
    for (;;) {
        uint64_t item = next_item(queue);
        if (item == 0) {
            pthread_cond_wait(&changed, &lock);
        } else {
            wait_for(queue, item);
            write_due(queue);
        }
    }
    return NULL;
}

void
sim_markers_write(struct sim_device *device)
{
    struct queue *queue = &queues[device->ordinal];
    /* acquire: all is written, and its values are there to see */
    if (__atomic_load_n(&queue->written, __ATOMIC_ACQUIRE) !=
        __atomic_load_n(&queue->added, __ATOMIC_RELAXED)) {
        pthread_mutex_lock(&lock);
        write_due(queue);
        pthread_mutex_unlock(&lock);
    }
}

/* The thread sleeps for the first value anyway: only another first one has to wake it. */
static int
insert(struct queue *queue, struct marker marker)
{
    pthread_mutex_lock(&lock);
    int room = queue->added - queue->written < MARKERS;
    if (room) {
        uint64_t at = queue->added;
        while (at != queue->written && queue->ring[(at - 1) % MARKERS].item > marker.item) {
            queue->ring[at % MARKERS] = queue->ring[(at - 1) % MARKERS];
            at--;
        }
        queue->ring[at % MARKERS] = marker;
        /* relaxed: read without the lock only as a hint to its writer's own later calls */
        __atomic_store_n(&queue->added, queue->added + 1, __ATOMIC_RELAXED);
        if (at == queue->written) {
            pthread_cond_broadcast(&changed);
        }
    }
    pthread_mutex_unlock(&lock);
    return room;
}

static void
act32(void *address, uint64_t value)
{
    write_value((uint64_t)(uintptr_t)address, value, sizeof(uint32_t));
}

static void
act64(void *address, uint64_t value)
{
    write_value((uint64_t)(uintptr_t)address, value, sizeof(uint64_t));
}

/* Behind work that waits for the program, the value is written when that work has ended. */
void
sim_marker_add(struct sim_stream *stream, uint64_t address, uint64_t value, uint32_t size)
{
    struct sim_device *device = stream->object.owner->device;
    struct queue *queue = &queues[device->ordinal];
    struct marker marker = {0, address, value, is_lost() ? 0 : size};
    size = marker.size;
    /* takes the legacy stream's order into account */
    sim_stream_submit(stream, (uint64_t)cgpu_machine_is_late(sim_machine()), 0);
    if (!sim_action_done(stream->last_action)) {
        sim_action_write(stream, size == 8 ? act64 : act32, (void *)(uintptr_t)address, value);
        return;
    }
    marker.item = stream->last_item;
    if (queue->device == NULL) {
        pthread_once(&once, begin);
        queue->device = device;
        queue->device = sim_thread_start(work, queue) == 0 ? device : NULL;
    }
    int due =
        marker.item == 0 || cgpu_machine_done(sim_machine(), device->machine_index, marker.item);
    if (due || queue->device == NULL) {
        sim_item_wait(device, marker.item);
        sim_markers_write(device);
        write_value(address, value, size);
        return;
    }
    while (!insert(queue, marker)) {
        sim_item_wait(device, queue->ring[queue->written % MARKERS].item);
        sim_markers_write(device);
    }
}

void
sim_markers_forget(uint64_t base, uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < CGPU_MACHINE_MAX_GPUS; i++) {
        for (uint64_t n = queues[i].written; n != queues[i].added; n++) {
            struct marker *marker = &queues[i].ring[n % MARKERS];
            marker->size = marker->address - base < bytes ? 0 : marker->size;
        }
    }
    pthread_mutex_unlock(&lock);
}

static int
write_call(void *stream, uint64_t address, uint64_t value, uint32_t size, const char *name)
{
    struct sim_operation operation = {.type = SIM_OP_MEMORY, .write = {address, value, size}};
    if (!sim_marker_allowed()) {
        return sim_unsupported(name);
    }
    if (address % size != 0 || sim_region_find(address) == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return sim_stream_do(stream, &operation);
}

#define WRITE_VALUE(name, type)                                                                    \
    SIM_API_PER_THREAD(name, _ptsz, (void *stream, uint64_t address, type value, unsigned flags),  \
                       (stream, address, value, flags))                                            \
    {                                                                                              \
        return flags > 1 ? CUDA_ERROR_INVALID_VALUE                                                \
                         : write_call(stream, address, value, sizeof value, #name);                \
    }

WRITE_VALUE(cuStreamWriteValue32, uint32_t)
WRITE_VALUE(cuStreamWriteValue64, uint64_t)
WRITE_VALUE(cuStreamWriteValue32_v2, uint32_t)
WRITE_VALUE(cuStreamWriteValue64_v2, uint64_t)
