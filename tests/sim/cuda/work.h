/* Streams and what is put on them, captured from them and launched into them. Part of sim.h. */
#ifndef CGPU_SIM_WORK_H
#define CGPU_SIM_WORK_H

#include "sim.h"

/* ---- streams and events (stream.c, event.c, progress.c) ---- */

struct sim_capture; /* capture.c */

struct sim_stream {
    struct sim_object object;
    uint64_t id;
    uint32_t flags;
    int priority;
    uint64_t last_item;
    uint64_t last_action; /* number of its newest deferred action */
    int is_legacy;
    unsigned long thread; /* owner of a per-thread stream */
    struct sim_capture *capture;
    struct sim_node **heads; /* of the capture in this stream */
    size_t head_count;
};

struct sim_event {
    struct sim_object object;
    uint32_t flags;
    int recorded;
    struct sim_device *device;
    uint64_t item, action;
    uint64_t time_ns;    /* 0: not known yet */
    uint64_t capture_id; /* 0: last recorded in no capture */
    struct sim_node **heads;
    size_t head_count;
};

int sim_stream_find(void *handle, struct sim_stream **out); /* in the current context; NULL too */
void sim_stream_free(struct sim_stream *stream);
void sim_stream_wait(struct sim_stream *stream);
int sim_stream_done(struct sim_stream *stream);
void sim_stream_submit(struct sim_stream *stream, uint64_t duration_ns, int is_copy);
void sim_item_wait(struct sim_device *device, uint64_t item);
void sim_event_free(struct sim_event *event);
void sim_event_harvest(struct sim_device *device);
void sim_event_record(struct sim_event *event, struct sim_stream *stream);
void sim_event_depend(struct sim_stream *stream, struct sim_event *event);

/* Values written into memory when the timeline gets there (marker.c). */
int sim_marker_allowed(void);
void sim_marker_add(struct sim_stream *stream, uint64_t address, uint64_t value, uint32_t size);
void sim_markers_write(struct sim_device *device); /* those that are due */
void sim_markers_forget(uint64_t base, uint64_t bytes);

/* A wait in a stream: until the value in memory compares so with VALUE (wait.c). */
enum sim_wait_until { /* values of CUstreamWaitValue_flags, and one that kernels use */
                      SIM_WAIT_GEQ = 0,
                      SIM_WAIT_EQ,
                      SIM_WAIT_AND,
                      SIM_WAIT_NOR,
                      SIM_WAIT_NEQ
};

struct sim_wait {
    uint64_t address, value;
    uint32_t size;
    enum sim_wait_until until;
};

int sim_wait_is_over(const struct sim_wait *wait);

/* What waits for the program, and what is behind that in its stream (stream_work.c). */
void sim_action_add(struct sim_stream *stream, void (*run)(void *argument, uint64_t value),
                    void *argument, uint64_t value);
void sim_action_write(struct sim_stream *stream, void (*run)(void *argument, uint64_t value),
                      void *argument, uint64_t value);
void sim_action_kernel(struct sim_stream *stream, uint64_t duration_ns);
void sim_action_await(struct sim_stream *stream, const struct sim_wait *wait);
/* What comes next in STREAM comes after action NUMBER too. */
void sim_action_join(struct sim_stream *stream, uint64_t number);
void sim_action_wait(uint64_t number);
int sim_action_done(uint64_t number);

/* ---- operations: what can be put on a stream or into a graph (operation.c, copy.c) ---- */

struct sim_copy { /* layout of CUDA_MEMCPY3D_v2 */
    size_t src_x, src_y, src_z, src_lod;
    uint32_t src_type;
    const void *src_host;
    uint64_t src_device;
    struct sim_array *src_array;
    void *src_reserved;
    size_t src_pitch, src_height;
    size_t dst_x, dst_y, dst_z, dst_lod;
    uint32_t dst_type;
    void *dst_host;
    uint64_t dst_device;
    struct sim_array *dst_array;
    void *dst_reserved;
    size_t dst_pitch, dst_height;
    size_t width, height, depth;
};

struct sim_fill { /* layout of CUDA_MEMSET_NODE_PARAMS_v1 */
    uint64_t dst;
    size_t pitch;
    uint32_t value, element_size;
    size_t width, height;
};

struct sim_kernel_call { /* layout of CUDA_KERNEL_NODE_PARAMS_v1 */
    void *function;
    uint32_t grid[3], block[3], shared_bytes;
    void **parameters, **extra;
};

struct sim_host_call { /* layout of CUDA_HOST_NODE_PARAMS_v1 */
    void (*function)(void *data);
    void *data;
};

struct sim_wait_node { /* layout of CUDA_EXT_SEM_WAIT_NODE_PARAMS_v1 */
    struct sim_semaphore *const *list;
    const struct sim_semaphore_value *values;
    unsigned count;
};

enum sim_operation_type { /* values of CUgraphNodeType */
                          SIM_OP_KERNEL = 0,
                          SIM_OP_COPY,
                          SIM_OP_FILL,
                          SIM_OP_HOST,
                          SIM_OP_GRAPH,
                          SIM_OP_EMPTY,
                          SIM_OP_WAIT_EVENT,
                          SIM_OP_RECORD_EVENT,
                          SIM_OP_AWAIT_SEMAPHORE = 9,
                          SIM_OP_ALLOC,
                          SIM_OP_FREE,
                          SIM_OP_MEMORY = 12, /* write value */
                          SIM_OP_NEWER =
                              14, /* of a CUDA to come: allocates, and says so to nobody */
                          SIM_OP_AWAIT = 64, /* none of a graph's: value, or a kernel that polls */
};

struct sim_operation {
    enum sim_operation_type type;
    union {
        struct sim_kernel_call kernel;
        struct sim_copy copy;
        struct sim_fill fill;
        struct sim_host_call host;
        struct sim_event *event;
        struct sim_graph *child;
        struct {
            uint64_t address, bytes;
            uint8_t pool_properties[88];
        } memory; /* alloc and free */
        struct {
            uint64_t address, value;
            uint32_t size;
        } write;
        struct sim_wait wait;
    };
};

int sim_operation_check(const struct sim_operation *operation);
int sim_operation_run(const struct sim_operation *operation, struct sim_stream *stream);
/* Run it on the stream, or, while that captures, add it to the graph. */
int sim_stream_do(void *stream_handle, const struct sim_operation *operation);
/* The same for a call that returns when the work is done; STREAM is the null stream. */
int sim_stream_do_and_wait(const struct sim_operation *operation);

int sim_copy_check(const struct sim_copy *copy);
void sim_copy_run(const struct sim_copy *copy);
uint64_t sim_copy_duration(const struct sim_copy *copy);
int sim_fill_check(const struct sim_fill *fill);
void sim_fill_run(const struct sim_fill *fill);

/* ---- capture and graphs (capture.c, graph.c, exec.c) ---- */

struct sim_node {
    struct sim_object object;
    struct sim_graph *graph;
    struct sim_operation operation;
    struct sim_node **dependencies;
    size_t dependency_count;
    struct sim_node *next, *original; /* in the graph; in the graph it was cloned from */
    uint64_t mark;
    int enabled, is_newer;
};

struct sim_graph {
    struct sim_object object;
    struct sim_node *first, *last;
    size_t node_count;
    int is_child; /* owned by a node */
    int has_memory_nodes, instantiated;
};

int
sim_capture_forbids(void); /* a call that is unsafe during capture: 0 or 900, capture invalidated */
/* May work be put on the stream? *CAPTURING: it goes into the graph. */
int sim_capture_enqueue(struct sim_stream *stream, int *capturing);
int sim_capture_add(struct sim_stream *stream, const struct sim_operation *operation);
int sim_capture_touch(
    struct sim_stream *stream); /* synchronise, query: 900 and invalid if it captures */
int sim_capture_touch_context(struct sim_context *context);
int sim_capture_record(struct sim_stream *stream, struct sim_event *event);
int sim_capture_join(struct sim_stream *stream, struct sim_event *event, int *handled);
void sim_capture_forget(struct sim_stream *stream);
struct sim_graph *sim_capture_graph(struct sim_stream *stream);
int sim_capture_is_live(uint64_t capture_id);

struct sim_graph *sim_graph_new(void);
void sim_graph_free(struct sim_graph *graph);
int sim_graph_add(struct sim_graph *graph, struct sim_node *const *dependencies, size_t count,
                  const struct sim_operation *operation, struct sim_node **out);
int sim_graph_add_wait(struct sim_node **out, struct sim_graph *graph,
                       struct sim_node *const *dependencies, size_t count,
                       const struct sim_wait_node *node);
int sim_graph_clone(struct sim_graph *graph, struct sim_graph **out);
size_t sim_graph_order(struct sim_graph *graph, struct sim_node **out); /* topological */
int sim_graph_memory_node(struct sim_context *context, uint64_t bytes,
                          struct sim_operation *operation);
int sim_graph_memory_reserve(struct sim_device *device, uint64_t bytes);
int sim_graph_memory_activate(struct sim_region *region);
void sim_graph_memory_retain(uint64_t address);
void sim_graph_memory_release(uint64_t address);
void sim_graph_memory_free(struct sim_region *region);
void sim_graph_memory_trim(struct sim_device *device);

#endif
