/* Work that the CPU does for a stream: host functions, callbacks. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>

#include "sim.h"

struct action {
    struct action *next;
    struct sim_device *device;
    uint64_t item, number, value;
    void (*run)(void *argument, uint64_t value);
    void *argument;
};

/* Its own lock: the thread that works these off must not hold the library's. */
static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct action *first, *last;
static uint64_t added, done;
static int running;

static void *
work(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&queue_lock);
    for (;;) {
        while (first == NULL) {
            pthread_cond_wait(&changed, &queue_lock);
        }
        struct action *action = first;
        pthread_mutex_unlock(&queue_lock);
        if (action->item != 0) {
            cgpu_machine_wait(sim_machine(), action->device->machine_index, action->item);
        }
        action->run(action->argument, action->value);
        pthread_mutex_lock(&queue_lock);
        first = action->next;
        last = first == NULL ? NULL : last;
        done = action->number;
        pthread_cond_broadcast(&changed);
        free(action);
    }
    return NULL;
}

void
sim_action_add(struct sim_stream *stream, void (*run)(void *argument, uint64_t value),
               void *argument, uint64_t value)
{
    struct action *action = calloc(1, sizeof *action);
    action->device = stream->object.owner->device;
    action->item = stream->last_item;
    action->run = run;
    action->value = value;
    action->argument = argument;
    pthread_mutex_lock(&queue_lock);
    action->number = ++added;
    stream->last_action = action->number;
    if (first == NULL) {
        first = action;
    } else {
        last->next = action;
    }
    last = action;
    if (!running) {
        running = sim_thread_start(work, NULL) == 0;
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&queue_lock);
}

int
sim_action_done(uint64_t number)
{
    pthread_mutex_lock(&queue_lock);
    int result = done >= number;
    pthread_mutex_unlock(&queue_lock);
    return result;
}

void
sim_action_wait(uint64_t number)
{
    if (sim_action_done(number)) {
        return;
    }
    sim_unlock_for_wait();
    pthread_mutex_lock(&queue_lock);
    while (done < number) {
        pthread_cond_wait(&changed, &queue_lock);
    }
    pthread_mutex_unlock(&queue_lock);
    sim_lock_after_wait();
}

struct callback {
    void (*function)(void *stream, int result, void *data);
    void *stream, *data;
};

static void
call_back(void *argument, uint64_t unused)
{
    struct callback *callback = argument;
    (void)unused;
    callback->function(callback->stream, CUDA_SUCCESS, callback->data);
    free(callback);
}

SIM_API_PER_THREAD(cuStreamAddCallback, _ptsz,
                   (void *handle, void (*function)(void *, int, void *), void *data,
                    unsigned flags),
                   (handle, function, data, flags))
{
    struct sim_stream *stream;
    int capturing = 0;
    int result = sim_stream_find(handle, &stream);
    if (result == CUDA_SUCCESS && (function == NULL || flags != 0)) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        result = sim_capture_enqueue(stream, &capturing);
    }
    if (result == CUDA_SUCCESS && capturing) {
        return sim_capture_touch(stream); /* callbacks, unlike host functions, cannot be captured */
    }
    if (result == CUDA_SUCCESS) {
        struct callback *callback = calloc(1, sizeof *callback);
        *callback = (struct callback){function, handle, data};
        sim_action_add(stream, call_back, callback, 0);
    }
    return result;
}

SIM_API_PER_THREAD(cuLaunchHostFunc, _ptsz, (void *stream, void (*function)(void *), void *data),
                   (stream, function, data))
{
    struct sim_operation operation = {.type = SIM_OP_HOST, .host = {function, data}};
    return sim_stream_do(stream, &operation);
}
