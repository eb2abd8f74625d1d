/* What the rules of capture (capture.c) and its entry points (capture_api.c) share. */
#ifndef CGPU_SIM_CAPTURE_H
#define CGPU_SIM_CAPTURE_H

#include <pthread.h>

#include "sim.h"

enum { MODE_GLOBAL = 0, MODE_THREAD_LOCAL = 1, MODE_RELAXED = 2 };
enum { STATUS_NONE = 0, STATUS_ACTIVE = 1, STATUS_INVALID = 2 };

struct sim_capture {
    struct sim_capture *next;
    uint64_t id;
    int mode, status;
    struct sim_stream *origin; /* NULL when that stream is gone */
    pthread_t thread;
    struct sim_graph *graph;
    int graph_is_callers;
};

extern __thread int sim_capture_thread_mode;

int sim_capture_begin(void *handle, int mode, struct sim_graph *graph,
                      struct sim_node *const *heads, size_t count);
int sim_capture_end(void *handle, struct sim_graph **out);
struct sim_capture *sim_capture_blocking(const struct sim_context *context); /* the legacy stream */
void sim_capture_set_heads(struct sim_node ***heads, size_t *count, struct sim_node *const *nodes,
                           size_t node_count);
void sim_capture_add_heads(struct sim_stream *stream, struct sim_node *const *nodes, size_t count);

#endif
