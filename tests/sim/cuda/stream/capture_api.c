/* The entry points of stream capture. */
#include "capture.h"

SIM_API_PER_THREAD(cuStreamBeginCapture, _ptsz, (void *stream), (stream))
{
    return sim_capture_begin(stream, MODE_GLOBAL, NULL, NULL, 0);
}

SIM_API_PER_THREAD(cuStreamBeginCapture_v2, _ptsz, (void *stream, int mode), (stream, mode))
{
    return sim_capture_begin(stream, mode, NULL, NULL, 0);
}

SIM_API_PER_THREAD(cuStreamBeginCaptureToGraph, _ptsz,
                   (void *stream, struct sim_graph *graph, struct sim_node *const *dependencies,
                    const void *edges, size_t count, int mode),
                   (stream, graph, dependencies, edges, count, mode))
{
    (void)edges;
    if (sim_object_find(SIM_GRAPH, graph) == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return sim_capture_begin(stream, mode, graph, dependencies, count);
}

SIM_API_PER_THREAD(cuStreamEndCapture, _ptsz, (void *stream, struct sim_graph **out), (stream, out))
{
    return out == NULL ? CUDA_ERROR_INVALID_VALUE : sim_capture_end(stream, out);
}

SIM_API(cuThreadExchangeStreamCaptureMode, (int *mode), (mode))
{
    if (mode == NULL || *mode < MODE_GLOBAL || *mode > MODE_RELAXED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int previous = sim_capture_thread_mode;
    sim_capture_thread_mode = *mode;
    *mode = previous;
    return CUDA_SUCCESS;
}

/* The status is asked of the legacy stream too, where it may not be answerable. */
static int
status_of(void *handle, struct sim_stream **stream, int *status)
{
    int result = sim_stream_find(handle, stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if ((*stream)->is_legacy && sim_capture_blocking((*stream)->object.owner) != NULL) {
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    *status = (*stream)->capture == NULL ? STATUS_NONE : (*stream)->capture->status;
    return CUDA_SUCCESS;
}

SIM_API_PER_THREAD(cuStreamIsCapturing, _ptsz, (void *handle, int *status), (handle, status))
{
    struct sim_stream *stream;
    return status == NULL ? CUDA_ERROR_INVALID_VALUE : status_of(handle, &stream, status);
}

static int
capture_info(void *handle, int *status, uint64_t *id, struct sim_graph **graph,
             struct sim_node *const **heads, size_t *count)
{
    struct sim_stream *stream;
    if (status == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int result = status_of(handle, &stream, status);
    if (result != CUDA_SUCCESS || *status != STATUS_ACTIVE) {
        return result;
    }
    if (id != NULL) {
        *id = stream->capture->id;
    }
    if (graph != NULL) {
        *graph = stream->capture->graph;
    }
    if (heads != NULL) {
        *heads = stream->heads;
    }
    if (count != NULL) {
        *count = stream->head_count;
    }
    return result;
}

SIM_API_PER_THREAD(cuStreamGetCaptureInfo, _ptsz, (void *stream, int *status, uint64_t *id),
                   (stream, status, id))
{
    return capture_info(stream, status, id, NULL, NULL, NULL);
}

SIM_API_PER_THREAD(cuStreamGetCaptureInfo_v2, _ptsz,
                   (void *stream, int *status, uint64_t *id, struct sim_graph **graph,
                    struct sim_node *const **heads, size_t *count),
                   (stream, status, id, graph, heads, count))
{
    return capture_info(stream, status, id, graph, heads, count);
}

SIM_API_PER_THREAD(cuStreamGetCaptureInfo_v3, _ptsz,
                   (void *stream, int *status, uint64_t *id, struct sim_graph **graph,
                    struct sim_node *const **heads, const void **edges, size_t *count),
                   (stream, status, id, graph, heads, edges, count))
{
    if (edges != NULL) {
        *edges = NULL; /* none of the edges here carries data */
    }
    return capture_info(stream, status, id, graph, heads, count);
}

static int
update_dependencies(void *handle, struct sim_node *const *nodes, size_t count, unsigned flags)
{
    struct sim_stream *stream;
    int capturing;
    int result = sim_stream_find(handle, &stream);
    if (result == CUDA_SUCCESS) {
        result = sim_capture_enqueue(stream, &capturing);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!capturing) {
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    if (flags == 0) {
        sim_capture_add_heads(stream, nodes, count);
    } else {
        sim_capture_set_heads(&stream->heads, &stream->head_count, nodes, count);
    }
    return CUDA_SUCCESS;
}

SIM_API_PER_THREAD(cuStreamUpdateCaptureDependencies, _ptsz,
                   (void *stream, struct sim_node *const *nodes, size_t count, unsigned flags),
                   (stream, nodes, count, flags))
{
    return update_dependencies(stream, nodes, count, flags);
}

SIM_API_PER_THREAD(cuStreamUpdateCaptureDependencies_v2, _ptsz,
                   (void *stream, struct sim_node *const *nodes, const void *edges, size_t count,
                    unsigned flags),
                   (stream, nodes, edges, count, flags))
{
    (void)edges;
    return update_dependencies(stream, nodes, count, flags);
}
