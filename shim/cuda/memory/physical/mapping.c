/*
 * Where physical memory is mapped: a sorted array, in which any address and any span can be found.
 *
 * Its memory comes from mmap, not from the program's heap. In a forked child the array is empty,
 * like all state.
 */
#define _GNU_SOURCE /* mremap */
#include <string.h>
#include <sys/mman.h>

#include "entry/shim.h"
#include "memory/physical/mapping.h"

enum { FIRST_CAPACITY = 4096 };

static struct cgpu_kinds *
kinds(void)
{
    return &cgpu_state->kinds;
}

static bool
make_room(void)
{
    uint64_t size = kinds()->mapping_capacity * sizeof(struct cgpu_mapping);
    uint64_t entries = size != 0 ? kinds()->mapping_capacity * 2 : FIRST_CAPACITY;
    uint64_t bytes = entries * sizeof(struct cgpu_mapping);
    void *memory;
    if (kinds()->mapping_count < kinds()->mapping_capacity) {
        return true;
    }
    if (size == 0) {
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    } else {
        memory = mremap(kinds()->mappings, size, bytes, MREMAP_MAYMOVE);
    }
    if (memory == MAP_FAILED) {
        return false;
    }
    kinds()->mappings = memory;
    kinds()->mapping_capacity = entries;
    return true;
}

/* Index of the first mapping whose base is above ADDRESS. */
static uint64_t
above(uint64_t address)
{
    uint64_t low = 0;
    uint64_t high = kinds()->mapping_count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (kinds()->mappings[middle].base <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

bool
cgpu_mapping_add(uint64_t base, uint64_t bytes, uint64_t allocation)
{
    if (!make_room()) {
        return false;
    }
    uint64_t row = above(base);
    struct cgpu_mapping *at = kinds()->mappings + row;
    memmove(at + 1, at, (kinds()->mapping_count - row) * sizeof(*at));
    *at = (struct cgpu_mapping){.base = base, .bytes = bytes, .allocation = allocation};
    kinds()->mapping_count++;
    return true;
}

const struct cgpu_mapping *
cgpu_mapping_at(uint64_t address)
{
    uint64_t row = above(address);
    const struct cgpu_mapping *mapping = row != 0 ? kinds()->mappings + row - 1 : NULL;
    return mapping != NULL && address - mapping->base < mapping->bytes ? mapping : NULL;
}

bool
cgpu_mapping_take(uint64_t base, struct cgpu_mapping *out)
{
    uint64_t row = above(base);
    if (row == 0 || kinds()->mappings[row - 1].base != base) {
        return false;
    }
    struct cgpu_mapping *at = kinds()->mappings + row - 1;
    *out = *at;
    memmove(at, at + 1, (kinds()->mapping_count - row) * sizeof(*at));
    kinds()->mapping_count--;
    return true;
}
