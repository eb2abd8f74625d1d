/* Small allocations share pieces of 2 MiB; an empty piece goes back to the GPU. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

enum { BLOCK = 512, BLOCKS = SIM_GRANULE / BLOCK };

struct sim_chunk {
    uint64_t base, taken;
    uint32_t free_blocks;
    int low;
    struct sim_chunk *next, *previous;
    uint8_t used[BLOCKS]; /* a byte per block: small, and plain to search */
};

static void
unlink_chunk(struct sim_context *context, struct sim_chunk *chunk)
{
    if (chunk->previous != NULL) {
        chunk->previous->next = chunk->next;
    } else if (context->chunks == chunk) {
        context->chunks = chunk->next;
    }
    if (chunk->next != NULL) {
        chunk->next->previous = chunk->previous;
    }
    chunk->next = chunk->previous = NULL;
}

static void
link_chunk(struct sim_context *context, struct sim_chunk *chunk)
{
    chunk->next = context->chunks;
    chunk->previous = NULL;
    if (chunk->next != NULL) {
        chunk->next->previous = chunk;
    }
    context->chunks = chunk;
}

/* First run of COUNT free blocks, or -1. */
static int
find_run(const struct sim_chunk *chunk, uint32_t count)
{
    if (chunk->free_blocks < count) {
        return -1;
    }
    uint32_t start = 0;
    while (start + count <= BLOCKS) {
        const uint8_t *used = memchr(chunk->used + start, 1, count);
        if (used == NULL) {
            return (int)start;
        }
        start = (uint32_t)(used - chunk->used) + 1;
        const uint8_t *next_free =
            start < BLOCKS ? memchr(chunk->used + start, 0, BLOCKS - start) : NULL;
        if (next_free == NULL) {
            return -1;
        }
        start = (uint32_t)(next_free - chunk->used);
    }
    return -1;
}

static struct sim_chunk *
new_chunk(struct sim_context *context, int low)
{
    if (sim_take(context->device, SIM_GRANULE) != CUDA_SUCCESS) {
        return NULL;
    }
    struct sim_chunk *chunk = calloc(1, sizeof *chunk);
    uint64_t base = chunk == NULL ? 0 : sim_pages_map(SIM_GRANULE, SIM_GRANULE, low);
    if (base == 0) {
        free(chunk);
        sim_give(context->device, SIM_GRANULE);
        return NULL;
    }
    chunk->base = base;
    chunk->taken = SIM_GRANULE;
    chunk->low = low;
    chunk->free_blocks = BLOCKS;
    link_chunk(context, chunk);
    return chunk;
}

int
sim_small_alloc(struct sim_context *context, uint64_t bytes, int low, struct sim_chunk **out,
                uint64_t *address)
{
    uint32_t count = (uint32_t)((bytes + BLOCK - 1) / BLOCK);
    struct sim_chunk *chunk = context->chunks;
    int start = -1;
    for (; chunk != NULL; chunk = chunk->next) {
        if (chunk->low == low && (start = find_run(chunk, count)) >= 0) {
            break;
        }
    }
    if (chunk == NULL) {
        chunk = new_chunk(context, low);
        if (chunk == NULL) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        start = 0;
    }
    memset(chunk->used + start, 1, count);
    chunk->free_blocks -= count;
    if (chunk->free_blocks == 0) {
        unlink_chunk(context, chunk);
    }
    *out = chunk;
    *address = chunk->base + (uint64_t)start * BLOCK;
    return CUDA_SUCCESS;
}

void
sim_small_free(struct sim_context *context, struct sim_chunk *chunk, uint64_t address,
               uint64_t bytes)
{
    uint32_t count = (uint32_t)((bytes + BLOCK - 1) / BLOCK);
    memset(chunk->used + (address - chunk->base) / BLOCK, 0, count);
    if (chunk->free_blocks == 0) {
        link_chunk(context, chunk);
    }
    chunk->free_blocks += count;
    if (chunk->free_blocks == BLOCKS) {
        unlink_chunk(context, chunk);
        sim_pages_unmap(chunk->base, SIM_GRANULE);
        sim_pages_return(context->device, chunk->taken);
        free(chunk);
    }
}

uint64_t *
sim_chunk_pages(struct sim_chunk *chunk, uint64_t *base)
{
    *base = chunk->base;
    return &chunk->taken;
}
