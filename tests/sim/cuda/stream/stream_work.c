/*
 * Work that a stream cannot do yet, because something before it waits for the program: host
 * functions, waits, and all work behind them.
 *
 * Each piece names what it is to come after. One thread of the driver runs host functions, one
 * after the other; another does the rest: hands kernels to the GPU, writes values, looks whether
 * what is waited for has come. So one stream that waits holds up no other.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "sim.h"

/* The size of the driver's queue: a thread that submits more waits, whatever the entries are. */
enum { ENTRIES = 1023 };
#define LOOK_NS UINT64_C(50000)

enum action_kind {
    RUN,    /* by the thread of host functions */
    WRITE,  /* at once, when its turn has come */
    KERNEL, /* ends when the GPU is done with it */
    WAIT,   /* until memory has a value */
    JOIN    /* nothing: comes after two others */
};

struct action {
    struct action *next;
    enum action_kind kind;
    struct sim_device *device;
    uint64_t number, after[2]; /* other actions; 0: none */
    uint64_t item;             /* of the GPU: the item that it follows, then a kernel's own */
    int handed;                /* a kernel: whether the GPU has it */
    uint64_t value;            /* a kernel: how long it takes */
    void (*run)(void *argument, uint64_t value);
    void *argument;
    struct sim_wait wait;
};

/* A lock of its own: the threads that run these actions must not hold the library's. */
static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct action *first, *last;
static uint64_t added, waiting;
static int running;

/* ---- under the lock of the queue ---- */

static int
is_done(uint64_t number)
{
    for (const struct action *action = first; action != NULL && action->number <= number;
         action = action->next) {
        if (action->number == number) {
            return 0;
        }
    }
    return 1;
}

static int
item_is_done(const struct action *action)
{
    return action->item == 0 ||
           cgpu_machine_done(sim_machine(), action->device->machine_index, action->item);
}

static int
is_due(const struct action *action)
{
    return is_done(action->after[0]) && is_done(action->after[1]) && item_is_done(action);
}

static void
finish(struct action *done)
{
    struct action **link = &first;
    struct action *before = NULL;
    while (*link != done) {
        before = *link;
        link = &(*link)->next;
    }
    *link = done->next;
    last = last == done ? before : last;
    waiting--;
    free(done);
    pthread_cond_broadcast(&changed);
}

/* ---- the two threads ---- */

static void *
run_functions(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&queue_lock);
    for (;;) {
        struct action *action = first;
        while (action != NULL && (action->kind != RUN || !is_due(action))) {
            action = action->next;
        }
        if (action == NULL) {
            pthread_cond_wait(&changed, &queue_lock);
            continue;
        }
        pthread_mutex_unlock(&queue_lock);
        action->run(action->argument, action->value);
        pthread_mutex_lock(&queue_lock);
        finish(action);
    }
    return NULL;
}

/* Only the thread that calls it finishes kernels, so ACTION stays. */
static void
hand_over(struct action *action)
{
    struct sim_device *device = action->device;
    pthread_mutex_unlock(&queue_lock);
    sim_lock_after_wait();
    if (cgpu_machine_has_room(sim_machine(), device->machine_index)) {
        action->item = cgpu_machine_submit(sim_machine(), device->machine_index, action->value, 0);
        device->last_item = action->item;
        action->handed = 1;
    }
    sim_unlock_for_wait();
    pthread_mutex_lock(&queue_lock);
}

/* Do what can be done for ACTION, which is due. Returns whether it has ended. */
static int
has_ended(struct action *action)
{
    switch (action->kind) {
    case RUN:
        return 0;
    case KERNEL:
        if (action->handed) {
            return 1;
        }
        hand_over(action);
        return 0;
    case WAIT:
        return sim_wait_is_over(&action->wait);
    case WRITE:
        sim_markers_write(action->device); /* those before it, which the GPU wrote */
        action->run(action->argument, action->value);
        return 1;
    default:
        return 1;
    }
}

/* Run all actions that are due. Returns whether any has ended. */
static int
work_off(void)
{
    int ended = 0;
    for (struct action *action = first, *next; action != NULL; action = next) {
        int over = is_due(action) && has_ended(action);
        next = action->next;
        if (over) {
            finish(action);
            ended = 1;
        }
    }
    return ended;
}

/* Until the GPU is done with the oldest item that something waits for, but not for long. */
static void
nap(void)
{
    const struct action *action = first;
    while (action != NULL && (action->item == 0 || item_is_done(action))) {
        action = action->next;
    }
    uint32_t index = action != NULL ? action->device->machine_index : 0;
    uint64_t item = action != NULL ? action->item : 0;
    pthread_cond_broadcast(&changed); /* host functions may be due by now */
    pthread_mutex_unlock(&queue_lock);
    cgpu_machine_nap(sim_machine(), index, item, LOOK_NS);
    pthread_mutex_lock(&queue_lock);
}

static void *
run_rest(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&queue_lock);
    for (;;) {
        if (first == NULL) {
            pthread_cond_wait(&changed, &queue_lock);
        } else if (!work_off()) {
            nap();
        }
    }
    return NULL;
}

/* ---- submitting, called by streams ---- */

/* As the driver does with a full queue: the thread waits, and others' calls go on. */
static void
await_entry(void)
{
    while (waiting >= ENTRIES) {
        pthread_mutex_unlock(&queue_lock);
        sim_unlock_for_wait();
        pthread_mutex_lock(&queue_lock);
        while (waiting >= ENTRIES) {
            pthread_cond_wait(&changed, &queue_lock);
        }
        pthread_mutex_unlock(&queue_lock);
        sim_lock_after_wait();
        pthread_mutex_lock(&queue_lock);
    }
}

static void
append(struct sim_stream *stream, const struct action *what)
{
    struct action *action = malloc(sizeof *action);
    pthread_mutex_lock(&queue_lock);
    await_entry();
    *action = *what;
    action->device = stream->object.owner->device;
    action->item = stream->last_item;
    action->after[0] = stream->last_action;
    action->number = ++added;
    stream->last_action = action->number;
    if (first == NULL) {
        first = action;
    } else {
        last->next = action;
    }
    last = action;
    waiting++;
    if (!running) {
        running =
            sim_thread_start(run_functions, NULL) == 0 && sim_thread_start(run_rest, NULL) == 0;
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&queue_lock);
}

void
sim_action_add(struct sim_stream *stream, void (*run)(void *argument, uint64_t value),
               void *argument, uint64_t value)
{
    append(stream, &(struct action){.kind = RUN, .run = run, .argument = argument, .value = value});
}

void
sim_action_write(struct sim_stream *stream, void (*run)(void *argument, uint64_t value),
                 void *argument, uint64_t value)
{
    append(stream,
           &(struct action){.kind = WRITE, .run = run, .argument = argument, .value = value});
}

void
sim_action_kernel(struct sim_stream *stream, uint64_t duration_ns)
{
    append(stream, &(struct action){.kind = KERNEL, .value = duration_ns});
}

void
sim_action_await(struct sim_stream *stream, const struct sim_wait *wait)
{
    append(stream, &(struct action){.kind = WAIT, .wait = *wait});
}

void
sim_action_join(struct sim_stream *stream, uint64_t number)
{
    if (number == stream->last_action || sim_action_done(number)) {
        return;
    }
    if (sim_action_done(stream->last_action)) {
        stream->last_action = number;
        return;
    }
    append(stream, &(struct action){.kind = JOIN, .after = {0, number}});
}

int
sim_action_done(uint64_t number)
{
    pthread_mutex_lock(&queue_lock);
    int result = is_done(number);
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
    while (!is_done(number)) {
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
