/* Which addresses the driver knows, and the pages behind them. */
#define _GNU_SOURCE
#include <search.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "sim.h"

static void *tree;

static int
compare(const void *left, const void *right)
{
    const struct sim_region *a = left, *b = right;
    if (a->base + a->bytes <= b->base) {
        return -1;
    }
    return b->base + b->bytes <= a->base ? 1 : 0;
}

struct sim_region *
sim_region_add(uint64_t base, uint64_t bytes, enum sim_region_kind kind)
{
    static uint64_t next_id;
    struct sim_region *region = calloc(1, sizeof *region);
    if (region == NULL) {
        return NULL;
    }
    region->base = base;
    region->bytes = bytes;
    region->kind = kind;
    struct sim_region **node = tsearch(region, &tree, compare);
    if (node == NULL || *node != region) { /* it overlaps one that is there */
        free(region);
        return NULL;
    }
    region->id = ++next_id;
    return region;
}

struct sim_region *
sim_region_find(uint64_t address)
{
    struct sim_region key = {.base = address, .bytes = 1};
    struct sim_region **node = tfind(&key, &tree, compare);
    return node == NULL ? NULL : *node;
}

void
sim_region_remove(struct sim_region *region)
{
    tdelete(region, &tree, compare);
    free(region);
}

/* What a walk over the tree looks for; the library's lock is held throughout. */
static struct {
    struct sim_context *context;
    uint32_t shared;
    struct sim_region *found;
} wanted;

static void
match(const void *node, VISIT visit, int level)
{
    (void)level;
    struct sim_region *region = *(struct sim_region *const *)node;
    if (visit != leaf && visit != postorder) {
        return;
    }
    int same = wanted.shared != 0 ? region->kind == SIM_IMPORTED && region->shared == wanted.shared
                                  : region->context == wanted.context;
    wanted.found = same ? region : wanted.found;
}

struct sim_region *
sim_region_of(struct sim_context *context)
{
    wanted.context = context;
    wanted.shared = 0;
    wanted.found = NULL;
    twalk(tree, match);
    return wanted.found;
}

struct sim_region *
sim_imported_find(uint32_t shared)
{
    wanted.shared = shared;
    wanted.found = NULL;
    twalk(tree, match);
    return wanted.found;
}

int
sim_region_is_known(uint64_t address, uint64_t bytes)
{
    do {
        struct sim_region *region = sim_region_find(address);
        if (region == NULL || (region->kind == SIM_MAPPED && region->access == 0)) {
            return 0;
        }
        uint64_t here = region->base + region->bytes - address;
        bytes = here < bytes ? bytes - here : 0;
        address += here;
    } while (bytes > 0);
    return 1;
}

uint64_t
sim_round(uint64_t bytes)
{
    return (bytes + SIM_GRANULE - 1) & ~(uint64_t)(SIM_GRANULE - 1);
}

uint64_t
sim_pages_map(uint64_t bytes, uint64_t alignment, int low)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
#ifdef MAP_32BIT
    flags |= low ? MAP_32BIT : 0;
#else
    if (low) {
        return 0; /* this machine cannot give addresses of 32 bits */
    }
#endif
    if (bytes > UINT64_MAX - alignment - 4096) {
        return 0;
    }
    bytes = (bytes + 4095) & ~(uint64_t)4095;
    char *pages = mmap(NULL, bytes + alignment, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (pages == MAP_FAILED) {
        return 0;
    }
    uint64_t start = (uint64_t)(uintptr_t)pages;
    uint64_t base = (start + alignment - 1) & ~(alignment - 1);
    if (base > start) {
        munmap(pages, base - start);
    }
    uint64_t rest = start + bytes + alignment - (base + bytes);
    if (rest > 0) {
        munmap((void *)(uintptr_t)(base + bytes), rest);
    }
    return base;
}

void
sim_pages_unmap(uint64_t base, uint64_t bytes)
{
    munmap((void *)(uintptr_t)base, (bytes + 4095) & ~(uint64_t)4095);
}
