/* Stream capture: which streams are in which capture, and what is illegal meanwhile. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "capture.h"

enum { NON_BLOCKING = 1 };

__thread int sim_capture_thread_mode = MODE_GLOBAL;

static struct sim_capture *captures;

int
sim_capture_is_live(uint64_t capture_id)
{
    struct sim_capture *i = captures;
    while (i != NULL && i->id != capture_id) {
        i = i->next;
    }
    return capture_id != 0 && i != NULL;
}

/* Is CAPTURE among those that forbid this thread an unsafe call? */
static int
is_in_the_way(const struct sim_capture *capture)
{
    int ours = pthread_equal(capture->thread, pthread_self());
    if (sim_capture_thread_mode == MODE_RELAXED || capture->mode == MODE_RELAXED) {
        return 0;
    }
    if (sim_capture_thread_mode == MODE_THREAD_LOCAL) {
        return ours;
    }
    return ours || capture->mode == MODE_GLOBAL;
}

int
sim_capture_forbids(void)
{
    int result = CUDA_SUCCESS;
    for (struct sim_capture *i = captures; i != NULL; i = i->next) {
        if (i->status == STATUS_ACTIVE && is_in_the_way(i)) {
            i->status = STATUS_INVALID;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return result;
}

/* A capture that the legacy stream would have to wait for. */
struct sim_capture *
sim_capture_blocking(const struct sim_context *context)
{
    struct sim_stream *stream = NULL;
    while ((stream = sim_object_next(SIM_STREAM, stream)) != NULL) {
        if (stream->object.owner == context && stream->capture != NULL &&
            (stream->flags & NON_BLOCKING) == 0) {
            return stream->capture;
        }
    }
    return NULL;
}

static int
check_legacy(struct sim_stream *stream)
{
    struct sim_capture *capture =
        stream->is_legacy ? sim_capture_blocking(stream->object.owner) : NULL;
    if (capture == NULL) {
        return CUDA_SUCCESS;
    }
    capture->status = STATUS_INVALID;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

int
sim_capture_enqueue(struct sim_stream *stream, int *capturing)
{
    *capturing = stream->capture != NULL;
    if (stream->capture != NULL) {
        return stream->capture->status == STATUS_ACTIVE ? CUDA_SUCCESS
                                                        : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    return check_legacy(stream);
}

int
sim_capture_touch(struct sim_stream *stream)
{
    if (stream->capture == NULL) {
        return check_legacy(stream);
    }
    int was_active = stream->capture->status == STATUS_ACTIVE;
    stream->capture->status = STATUS_INVALID;
    return was_active ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                      : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

int
sim_capture_touch_context(struct sim_context *context)
{
    int result = CUDA_SUCCESS;
    struct sim_stream *stream = NULL;
    while ((stream = sim_object_next(SIM_STREAM, stream)) != NULL) {
        if (stream->object.owner == context && stream->capture != NULL) {
            result = sim_capture_touch(stream);
        }
    }
    return result;
}

void
sim_capture_set_heads(struct sim_node ***heads, size_t *count, struct sim_node *const *nodes,
                      size_t node_count)
{
    struct sim_node **copy = NULL;
    if (node_count > 0) {
        copy = malloc(node_count * sizeof *copy);
        memcpy(copy, nodes, node_count * sizeof *copy);
    }
    free(*heads);
    *heads = copy;
    *count = node_count;
}

void
sim_capture_add_heads(struct sim_stream *stream, struct sim_node *const *nodes, size_t count)
{
    size_t total = stream->head_count;
    struct sim_node **heads = malloc((total + count + 1) * sizeof *heads);
    memcpy(heads, stream->heads, total * sizeof *heads);
    for (size_t i = 0; i < count; i++) {
        size_t at = 0;
        while (at < total && heads[at] != nodes[i]) {
            at++;
        }
        heads[at] = nodes[i];
        total = at == total ? total + 1 : total;
    }
    free(stream->heads);
    stream->heads = heads;
    stream->head_count = total;
}

int
sim_capture_add(struct sim_stream *stream, const struct sim_operation *operation)
{
    struct sim_node *node;
    int result =
        sim_graph_add(stream->capture->graph, stream->heads, stream->head_count, operation, &node);
    if (result == CUDA_SUCCESS) {
        sim_capture_set_heads(&stream->heads, &stream->head_count, &node, 1);
    }
    return result;
}

struct sim_graph *
sim_capture_graph(struct sim_stream *stream)
{
    return stream->capture->graph;
}

int
sim_capture_record(struct sim_stream *stream, struct sim_event *event)
{
    event->capture_id = stream->capture->id;
    sim_capture_set_heads(&event->heads, &event->head_count, stream->heads, stream->head_count);
    return CUDA_SUCCESS;
}

int
sim_capture_join(struct sim_stream *stream, struct sim_event *event, int *handled)
{
    struct sim_capture *theirs = captures;
    while (theirs != NULL && theirs->id != event->capture_id) {
        theirs = theirs->next;
    }
    *handled = 0;
    if (event->capture_id == 0 || theirs == NULL) {
        if (stream->capture == NULL || !event->recorded) {
            return CUDA_SUCCESS;
        }
        stream->capture->status = STATUS_INVALID; /* work outside of the capture */
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    *handled = 1;
    if (theirs->status != STATUS_ACTIVE) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (stream->is_legacy) {
        theirs->status = STATUS_INVALID;
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (stream->capture != NULL && stream->capture != theirs) {
        stream->capture->status = theirs->status = STATUS_INVALID;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    stream->capture = theirs;
    sim_capture_add_heads(stream, event->heads, event->head_count);
    return CUDA_SUCCESS;
}

/* The stream is destroyed while it captures. */
void
sim_capture_forget(struct sim_stream *stream)
{
    if (stream->capture != NULL) {
        stream->capture->status = STATUS_INVALID;
        if (stream->capture->origin == stream) {
            stream->capture->origin = NULL;
        }
    }
    free(stream->heads);
}

int
sim_capture_begin(void *handle, int mode, struct sim_graph *graph, struct sim_node *const *heads,
                  size_t count)
{
    static uint64_t next_id;
    struct sim_stream *stream;
    int result = sim_stream_find(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (mode < MODE_GLOBAL || mode > MODE_RELAXED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (stream->is_legacy) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (stream->capture != NULL) {
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    struct sim_capture *capture = calloc(1, sizeof *capture);
    capture->id = ++next_id;
    capture->mode = mode;
    capture->status = STATUS_ACTIVE;
    capture->origin = stream;
    capture->thread = pthread_self();
    capture->graph_is_callers = graph != NULL;
    capture->graph = graph != NULL ? graph : sim_graph_new();
    capture->next = captures;
    captures = capture;
    stream->capture = capture;
    sim_capture_set_heads(&stream->heads, &stream->head_count, heads, count);
    return CUDA_SUCCESS;
}

/* Every end of the graph must be what the origin would depend on next. */
static int
is_joined(struct sim_capture *capture)
{
    for (struct sim_node *node = capture->graph->first; node != NULL; node = node->next) {
        int is_end = 1;
        for (struct sim_node *i = capture->graph->first; i != NULL && is_end; i = i->next) {
            for (size_t d = 0; d < i->dependency_count; d++) {
                is_end = is_end && i->dependencies[d] != node;
            }
        }
        for (size_t h = 0; h < capture->origin->head_count && is_end; h++) {
            is_end = capture->origin->heads[h] != node;
        }
        if (is_end) {
            return 0;
        }
    }
    return 1;
}

static void
leave(struct sim_capture *capture)
{
    struct sim_stream *stream = NULL;
    while ((stream = sim_object_next(SIM_STREAM, stream)) != NULL) {
        if (stream->capture == capture) {
            stream->capture = NULL;
            sim_capture_set_heads(&stream->heads, &stream->head_count, NULL, 0);
        }
    }
    struct sim_capture **at = &captures;
    while (*at != capture) {
        at = &(*at)->next;
    }
    *at = capture->next;
    free(capture);
}

int
sim_capture_end(void *handle, struct sim_graph **out)
{
    struct sim_stream *stream;
    int result = sim_stream_find(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct sim_capture *capture = stream->capture;
    *out = NULL;
    if (capture == NULL) {
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    if (capture->origin != stream) {
        capture->status = STATUS_INVALID;
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (capture->mode != MODE_RELAXED && !pthread_equal(capture->thread, pthread_self())) {
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    if (capture->status != STATUS_ACTIVE) {
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    } else if (!is_joined(capture)) {
        result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    }
    if (result == CUDA_SUCCESS) {
        *out = capture->graph;
    } else if (!capture->graph_is_callers) {
        sim_graph_free(capture->graph);
    }
    leave(capture);
    return result;
}
