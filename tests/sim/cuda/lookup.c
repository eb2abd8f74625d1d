/* cuGetProcAddress: base names only, by CUDA version, with the per-thread flag. */
#include <string.h>

#include "entries.h"
#include "sim.h"

enum { FOUND = 0, SYMBOL_NOT_FOUND = 1, VERSION_NOT_SUFFICIENT = 2 };
enum { FLAG_LEGACY = 1, FLAG_PER_THREAD = 2, PER_THREAD_SINCE = 7000 };

SIM_EXPORT int cuGetProcAddress(const char *symbol, void **out, int version, uint64_t flags);
SIM_EXPORT int cuGetProcAddress_v2(const char *symbol, void **out, int version, uint64_t flags,
                                   int *status);

static const struct sim_entry *
first_of(const char *base)
{
    for (size_t i = 0; i < sim_entry_count; i++) {
        if (strcmp(sim_entries[i].base, base) == 0) {
            return &sim_entries[i];
        }
    }
    return NULL;
}

/* A base with per-thread variants has, under the flag, only those: they came with 7.0. */
static int
has_per_thread(const struct sim_entry *first)
{
    const struct sim_entry *end = sim_entries + sim_entry_count;
    for (const struct sim_entry *i = first; i < end && strcmp(i->base, first->base) == 0; i++) {
        if (i->per_thread != NULL) {
            return 1;
        }
    }
    return 0;
}

static int
look_up(const char *base, int version, int per_thread, void **out)
{
    *out = NULL;
    const struct sim_entry *first = first_of(base);
    if (first == NULL) {
        return SYMBOL_NOT_FOUND;
    }
    per_thread = per_thread && has_per_thread(first);
    const struct sim_entry *end = sim_entries + sim_entry_count;
    for (const struct sim_entry *i = first; i < end && strcmp(i->base, base) == 0; i++) {
        int since = per_thread && i->since < PER_THREAD_SINCE ? PER_THREAD_SINCE : i->since;
        int (*symbol)(void) = per_thread ? i->per_thread : i->symbol;
        if (version >= since && symbol != NULL) {
            memcpy(out, &symbol, sizeof *out);
        }
    }
    return *out == NULL ? VERSION_NOT_SUFFICIENT : FOUND;
}

int
cuGetProcAddress_v2(const char *symbol, void **out, int version, uint64_t flags, int *status)
{
    if (symbol == NULL || out == NULL ||
        (flags & ~(uint64_t)(FLAG_LEGACY | FLAG_PER_THREAD)) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int found = look_up(symbol, version, (flags & FLAG_PER_THREAD) != 0, out);
    if (status != NULL) {
        *status = found;
        return CUDA_SUCCESS;
    }
    return found == FOUND ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* The version of CUDA 11 has no status, and says "not found" itself. */
int
cuGetProcAddress(const char *symbol, void **out, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(symbol, out, version, flags, NULL);
}
