/*
 * Memory of pools that was freed in a stream. That stream may have it again at once, others when
 * the GPU has passed the free. The pool can give it back to the GPU when a synchronisation has
 * shown that. CUDA promises no more.
 */
#include <stdlib.h>

#include "sim.h"

enum { OPPORTUNISTIC = 1 /* of a pool's policies of reuse: what the GPU has passed */ };

struct freed {
    struct freed *next;
    struct sim_pool *pool;
    struct sim_stream *stream; /* NULL: destroyed */
    struct sim_device *device; /* the stream's */
    uint64_t item, action;     /* what the free comes after */
    uint64_t base, bytes;
    uint64_t unused; /* not allocated again yet */
    uint32_t shared; /* number + 1 of its object */
};

static struct freed *oldest, *newest;

static int
is_passed(const struct freed *freed)
{
    int done = freed->item == 0 ||
               cgpu_machine_done(sim_machine(), freed->device->machine_index, freed->item);
    return done && sim_action_done(freed->action);
}

/* The driver sees at once whether something has to come first. */
int
sim_pool_free_in(uint64_t address, struct sim_stream *stream)
{
    int done = sim_stream_done(stream); /* may wait for room in a queue */
    struct sim_region *region = sim_region_find(address);
    if (region == NULL || done) {
        return region == NULL ? CUDA_ERROR_INVALID_VALUE : sim_region_free(region);
    }
    struct sim_pool *pool = region->pool;
    struct freed *freed = malloc(sizeof *freed);
    *freed = (struct freed){
        .pool = pool,
        .stream = stream,
        .device = stream->object.owner->device,
        .item = stream->last_item,
        .action = stream->last_action,
        .base = region->base,
        .bytes = region->bytes,
        .unused = region->shared == 0 ? sim_pool_used(region->bytes) : 0,
        .shared = region->shared,
    };
    if (oldest == NULL) {
        oldest = freed;
    } else {
        newest->next = freed;
    }
    newest = freed;
    pool->frees++;
    pool->freed += freed->unused;
    sim_pool_count(pool, -(int64_t)sim_pool_used(region->bytes), 0);
    sim_region_remove(region);
    return CUDA_SUCCESS;
}

/* Nothing uses it any more. Returns the next. */
static struct freed *
finish(struct freed *done, struct freed *before)
{
    struct freed *next = done->next;
    if (before == NULL) {
        oldest = next;
    } else {
        before->next = next;
    }
    newest = newest == done ? before : newest;
    sim_markers_forget(done->base, done->bytes);
    sim_pool_pages_return(done->pool, done->base, done->bytes, done->shared);
    done->pool->frees--;
    done->pool->freed -= done->unused;
    sim_pool_drop_if_unused(done->pool);
    free(done);
    return next;
}

void
sim_pool_frees_finish(void)
{
    struct freed *before = NULL, *freed = oldest;
    while (freed != NULL) {
        if (is_passed(freed)) {
            freed = finish(freed, before);
        } else {
            before = freed;
            freed = freed->next;
        }
    }
}

static int
is_ready(const struct freed *freed, const struct sim_stream *stream)
{
    return freed->stream == stream || (freed->pool->reuse[OPPORTUNISTIC] && is_passed(freed));
}

uint64_t
sim_pool_reusable(const struct sim_pool *pool, const struct sim_stream *stream)
{
    uint64_t bytes = 0;
    for (const struct freed *freed = oldest; freed != NULL; freed = freed->next) {
        bytes += freed->pool == pool && is_ready(freed, stream) ? freed->unused : 0;
    }
    return bytes;
}

/* What is wholly in use again, and passed, is forgotten: a program may never synchronise. */
void
sim_pool_reuse(struct sim_pool *pool, const struct sim_stream *stream, uint64_t bytes)
{
    struct freed *before = NULL, *freed = oldest;
    while (freed != NULL) {
        if (freed->pool == pool && is_ready(freed, stream)) {
            uint64_t part = freed->unused < bytes ? freed->unused : bytes;
            freed->unused -= part;
            pool->freed -= part;
            bytes -= part;
        }
        if (freed->unused == 0 && freed->shared == 0 && is_passed(freed)) {
            freed = finish(freed, before);
        } else {
            before = freed;
            freed = freed->next;
        }
    }
}

void
sim_pool_stream_gone(const struct sim_stream *stream)
{
    for (struct freed *freed = oldest; freed != NULL; freed = freed->next) {
        freed->stream = freed->stream == stream ? NULL : freed->stream;
    }
}
