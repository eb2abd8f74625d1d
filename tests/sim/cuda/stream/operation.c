/* One thing that a stream or a graph does, in the same form for both. */
#include <stdlib.h>

#include "sim.h"

enum { LOCAL_BYTES = 3 };

static int
check_kernel(const struct sim_kernel_call *call)
{
    if (sim_function_of(call->function) == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    uint64_t threads = 1;
    for (int i = 0; i < 3; i++) {
        if (call->grid[i] == 0 || call->block[i] == 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        threads *= call->block[i];
    }
    return threads > 1024 || call->block[2] > 64 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

int
sim_operation_check(const struct sim_operation *operation)
{
    switch (operation->type) {
    case SIM_OP_KERNEL:
        return check_kernel(&operation->kernel);
    case SIM_OP_COPY:
        return sim_copy_check(&operation->copy);
    case SIM_OP_FILL:
        return sim_fill_check(&operation->fill);
    case SIM_OP_HOST:
        return operation->host.function == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    default:
        return CUDA_SUCCESS;
    }
}

/* The call is a copy on the heap: what the operation lies in may be gone by then. */
static void
call_host(void *argument, uint64_t unused)
{
    struct sim_host_call call = *(struct sim_host_call *)argument;
    (void)unused;
    free(argument);
    call.function(call.data);
}

static void
add_host_call(const struct sim_host_call *call, struct sim_stream *stream)
{
    struct sim_host_call *copy = malloc(sizeof *copy);
    *copy = *call;
    sim_action_add(stream, call_host, copy, 0);
}

static int
run_memory(const struct sim_operation *operation)
{
    struct sim_region *region = sim_region_find(operation->memory.address);
    if (region == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (operation->type == SIM_OP_ALLOC) {
        return sim_graph_memory_activate(region);
    }
    return sim_region_free(region);
}

/* Bytes move at once, except behind something that the CPU has yet to do in this stream. */
static void
move_bytes(const struct sim_operation *operation, struct sim_stream *stream)
{
    sim_action_wait(stream->last_action);
    if (operation->type == SIM_OP_COPY) {
        sim_copy_run(&operation->copy);
        sim_stream_submit(stream, sim_copy_duration(&operation->copy), 1);
    } else {
        const struct sim_fill *fill = &operation->fill;
        sim_fill_run(fill);
        sim_stream_submit(stream, fill->width * fill->element_size * fill->height / 250, 1);
    }
}

/* Its code is loaded by now, and its context's local memory large enough. */
static int
run_kernel(const struct sim_kernel_call *call, struct sim_stream *stream)
{
    struct sim_function *function = sim_function_of(call->function);
    int result = sim_module_use(function->module);
    if (result == CUDA_SUCCESS) {
        size_t local = (size_t)function->attributes[LOCAL_BYTES];
        result = sim_context_grow_local(function->module->object.owner, local);
    }
    if (result == CUDA_SUCCESS) {
        sim_stream_submit(stream, function->duration_ns, 0);
    }
    return result;
}

int
sim_operation_run(const struct sim_operation *operation, struct sim_stream *stream)
{
    switch (operation->type) {
    case SIM_OP_KERNEL:
        return run_kernel(&operation->kernel, stream);
    case SIM_OP_COPY:
    case SIM_OP_FILL:
        move_bytes(operation, stream);
        break;
    case SIM_OP_HOST:
        add_host_call(&operation->host, stream);
        break;
    case SIM_OP_WAIT_EVENT:
        sim_event_depend(stream, operation->event);
        break;
    case SIM_OP_RECORD_EVENT:
        sim_event_record(operation->event, stream);
        break;
    case SIM_OP_ALLOC:
    case SIM_OP_FREE:
        return run_memory(operation);
    case SIM_OP_AWAIT:
    case SIM_OP_AWAIT_SEMAPHORE:
        sim_stream_submit(stream, 0, 0); /* takes the legacy stream's order into account */
        sim_action_await(stream, &operation->wait);
        break;
    case SIM_OP_MEMORY:
        sim_marker_add(stream, operation->write.address, operation->write.value,
                       operation->write.size);
        break;
    default:
        break;
    }
    return CUDA_SUCCESS;
}

int
sim_stream_do(void *stream_handle, const struct sim_operation *operation)
{
    struct sim_stream *stream;
    int capturing = 0;
    int result = sim_stream_find(stream_handle, &stream);
    if (result == CUDA_SUCCESS) {
        result = sim_operation_check(operation);
    }
    if (result == CUDA_SUCCESS) {
        result = sim_capture_enqueue(stream, &capturing);
    }
    if (result == CUDA_SUCCESS) {
        result =
            capturing ? sim_capture_add(stream, operation) : sim_operation_run(operation, stream);
    }
    return result;
}

int
sim_stream_do_and_wait(const struct sim_operation *operation)
{
    struct sim_stream *stream;
    int capturing = 0;
    int result = sim_stream_find(NULL, &stream);
    if (result == CUDA_SUCCESS) {
        result = sim_capture_enqueue(stream, &capturing);
    }
    if (result == CUDA_SUCCESS) {
        result = capturing ? sim_capture_touch(stream) : sim_capture_forbids();
    }
    if (result == CUDA_SUCCESS) {
        result = sim_operation_check(operation);
    }
    if (result == CUDA_SUCCESS) {
        sim_stream_wait(stream); /* what was before it, before its bytes */
        result = sim_operation_run(operation, stream);
        sim_stream_wait(stream);
    }
    return result;
}
