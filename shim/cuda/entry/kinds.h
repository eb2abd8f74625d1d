/*
 * Device memory that outlives or exceeds what one call asked for: pools, physical memory, graph
 * memory, code.
 *
 * Each kind has its own lock in struct cgpu_kinds. No thread takes a second lock, with one
 * exception: a thread that holds the lock of contexts, of code or of graph_turns may be refused.
 * Then cgpu_reclaim takes the other locks, one after the other. The lock of graphs is also taken in
 * a turn of graph_turns. So code under a kind's own lock charges with cgpu_account_charge, which
 * reclaims nothing, and does not wait at the gate.
 */
#ifndef CGPU_CUDA_KINDS_H
#define CGPU_CUDA_KINDS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "entry/driver.h"
#include "holdings/holdings.h"
#include "limits.h"

enum { CGPU_MAX_POOLS = 1024, CGPU_MAX_EXPORTS = 4096, CGPU_MAX_ASYNC_FREED = 4096 };

enum cgpu_pool_flag {
    CGPU_POOL_FREE =
        1, /* costs this process nothing: it is in host memory, or another process pays */
    CGPU_POOL_CREATED = 2,  /* by cuMemPoolCreate: can be destroyed */
    CGPU_POOL_DOOMED = 4,   /* destroyed, but not empty yet */
    CGPU_POOL_EXPORTED = 8, /* what is charged for it is exported as well (ledger/sharing.h) */
    CGPU_POOL_FABRIC = 16,  /* imported by a fabric handle, perhaps from another machine */
    CGPU_POOL_SHARED = 32   /* can be exported: the driver may keep all of it */
};

/* A memory pool, charged by what it has reserved. */
struct cgpu_pool {
    CUmemoryPool handle; /* NULL: free entry */
    uint64_t charged;
    uint64_t threshold; /* what the driver keeps reserved at synchronisation */
    int32_t gpu;
    uint32_t flags;
    CUdevice device;
};

#define CGPU_SEVERAL_STREAMS ((CUstream)UINTPTR_MAX)

/*
 * Linear memory that was freed in a stream. The driver keeps it until the stream is synchronised.
 */
struct cgpu_async_freed {
    CUstream stream;   /* CGPU_SEVERAL_STREAMS: given back when its context is synchronised */
    CUcontext context; /* of the stream */
    uint64_t owner;    /* context of the memory */
    uint64_t bytes;    /* of whole blocks */
    uint64_t small;    /* the last small allocation, as the first of a chain; 0: none */
    int32_t gpu;
    uint32_t thread; /* if the stream is a thread's own default stream, that thread; else 0 */
};

/* A descriptor that keeps physical memory alive while this process has it open. */
struct cgpu_export {
    uint64_t allocation; /* serial; 0: free entry */
    uint64_t device, inode, special;
    int fd;
};

/* Where physical memory is mapped. Mappings are sorted by base, and none overlap. */
struct cgpu_mapping {
    uint64_t base;
    uint64_t bytes;
    uint64_t allocation; /* serial; 0: of a handle that is not charged here */
};

/* The GPU's free memory when the first of the loads in progress began. */
struct cgpu_code_watch {
    uint32_t loads;
    bool known;
    bool adds_library; /* one of them may make the driver add its library (code.c) */
    uint64_t bounds;   /* of all these loads */
    uint64_t available, used;
};

struct cgpu_kinds {
    pthread_mutex_t pools;
    pthread_mutex_t physical;
    pthread_mutex_t ipc; /* not while the driver opens or closes, which may synchronise */
    pthread_mutex_t graphs;
    pthread_mutex_t graph_turns; /* outermost: one graph at a time takes memory and is charged */
    pthread_mutex_t code;        /* not while the driver loads or compiles */

    uint32_t may_shrink;   /* there are pools or memory freed in streams: check when synchronised */
    uint32_t pool_bound;   /* entries in use lie below */
    uint32_t pool_imports; /* how often memory was imported from other processes' pools */
    uint32_t freed_bound;  /* entries in use lie below */
    struct cgpu_async_freed freed[CGPU_MAX_ASYNC_FREED];

    uint32_t lingering; /* allocations that only open descriptors keep alive */
    uint32_t array_mappings;
    uint32_t export_bound;
    uint64_t last_serial;
    struct cgpu_mapping *mappings;
    uint64_t mapping_count, mapping_capacity;

    uint32_t memory_execs;  /* executable graphs with nodes that allocate */
    uint32_t graph_memory;  /* 1: some device may reserve memory for graphs */
    uint32_t trims;         /* how often uploads became void, mostly as memory was given back */
    CUgraphExec ready_exec; /* the only one whose upload may be valid; NULL: several may be */
    uint64_t graph_charged[CGPU_MAX_GPUS];
    int32_t graph_device[CGPU_MAX_GPUS]; /* CUdevice + 1 */

    uint64_t last_load; /* serial of a module or library */
    uint32_t unloads;   /* how many modules and libraries were unloaded */
    uint32_t calls;     /* which parts of the driver's library loaded code may call (code.c) */
    struct cgpu_code_watch code_watch[CGPU_MAX_GPUS];

    struct cgpu_pool pool[CGPU_MAX_POOLS];
    struct cgpu_export exports[CGPU_MAX_EXPORTS];
};

/*
 * Counters that are changed under their kind's lock and read without it. relaxed: they only show
 * whether a check under the lock is worth it.
 */
static inline void
cgpu_kinds_count(uint32_t *counter, int step)
{
    __atomic_add_fetch(counter, (uint32_t)step, __ATOMIC_RELAXED);
}

static inline uint32_t
cgpu_kinds_look(const uint32_t *counter)
{
    return __atomic_load_n(counter, __ATOMIC_RELAXED);
}

/* A key for HANDLE in the context OWNER: addresses, of 48 bits at most. */
static inline uint64_t
cgpu_kinds_mix(const void *handle, uint64_t owner)
{
    uint64_t key = (uint64_t)(uintptr_t)handle;
    return (key << 32 | key >> 32) * 0x9e3779b97f4a7c15u ^ owner;
}

#endif
