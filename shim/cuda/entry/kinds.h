/*
 * Device memory that outlives or exceeds what one call asked for: pools, physical memory, graph
 * memory, code.
 *
 * Each kind has its own lock in struct cgpu_kinds. Locks are never nested, with one exception:
 * whoever holds the lock of contexts, of code or of graph_turns may be refused, and then
 * cgpu_reclaim takes the others, one after the other (and the lock of graphs is taken in a turn).
 * So under a kind's own lock memory is charged with cgpu_charge_try, which reclaims nothing, and
 * nobody waits at the gate.
 */
#ifndef CGPU_CUDA_KINDS_H
#define CGPU_CUDA_KINDS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "entry/driver.h"
#include "holdings/holdings.h"
#include "limits.h"

enum { CGPU_MAX_POOLS = 1024, CGPU_MAX_EXPORTS = 4096, CGPU_MAX_ASYNC_FREED = 64 };

enum cgpu_pool_flag {
    CGPU_POOL_FREE =
        1, /* costs no device memory of ours: in host memory, or another process pays */
    CGPU_POOL_CREATED = 2, /* by cuMemPoolCreate: can be destroyed */
    CGPU_POOL_DOOMED = 4   /* destroyed, but not empty yet */
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

/* Linear memory freed in a stream: the driver has it until that stream is synchronised. */
struct cgpu_async_freed {
    CUstream stream;
    CUcontext context; /* current at that time */
    uint64_t owner;    /* context that the memory is of */
    uint64_t bytes;    /* of whole blocks */
    uint64_t small;    /* address of the last small one, the first of a chain; 0: none */
    int32_t gpu;
};

/* A descriptor that keeps physical memory alive while it is open here. */
struct cgpu_export {
    uint64_t allocation; /* serial; 0: free entry */
    uint64_t device, inode, special;
    int fd;
};

/* Where physical memory is mapped; sorted by base, none overlap. */
struct cgpu_mapping {
    uint64_t base;
    uint64_t bytes;
    uint64_t allocation; /* serial; 0: imported, another process pays */
};

/* The GPU's memory when the first of the loads in progress began. */
struct cgpu_code_watch {
    uint32_t loads;
    bool known;
    uint64_t bounds; /* of all these loads */
    uint64_t available, used;
};

struct cgpu_kinds {
    pthread_mutex_t pools;
    pthread_mutex_t physical;
    pthread_mutex_t graphs;
    pthread_mutex_t graph_turns; /* outermost: one graph at a time takes memory and is charged */
    pthread_mutex_t code;        /* not while the driver loads or compiles */

    uint32_t may_shrink; /* some pool, or asynchronously freed memory: look at synchronisation */
    uint32_t pool_bound; /* entries in use lie below */
    struct cgpu_async_freed freed[CGPU_MAX_ASYNC_FREED];

    uint32_t lingering; /* allocations that only open descriptors keep alive */
    uint32_t array_mappings;
    uint32_t export_bound;
    uint64_t last_serial;
    struct cgpu_mapping *mappings;
    uint64_t mapping_count, mapping_capacity;

    uint32_t memory_execs;  /* executable graphs with nodes that allocate */
    uint32_t graph_memory;  /* there was one: some device may reserve memory for graphs */
    uint32_t trims;         /* uploads were made void so often, by giving memory back mostly */
    CUgraphExec ready_exec; /* the only one whose upload may be good; NULL: perhaps several are */
    uint64_t graph_charged[CGPU_MAX_GPUS];
    int32_t graph_device[CGPU_MAX_GPUS]; /* CUdevice + 1 */

    uint64_t last_load; /* serial of a module or library */
    uint32_t unloads;   /* of them, so often */
    struct cgpu_code_watch code_watch[CGPU_MAX_GPUS];

    struct cgpu_pool pool[CGPU_MAX_POOLS];
    struct cgpu_export exports[CGPU_MAX_EXPORTS];
};

/*
 * Counters that are changed under their kind's lock and looked at without it. relaxed: they only
 * say whether looking is worth while.
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

/* ---- capture_mode.c ---- */

/* Until restored, calls of this thread do not spoil a stream capture. */
int cgpu_capture_mode_relax(void);
void cgpu_capture_mode_restore(int mode);

/* ---- reclaim.c ---- */

/*
 * A request on GPU was refused: give back what is charged and no longer held, and let go of what is
 * only kept for reuse. True if there is room for BYTES now (another thread may have made it).
 * Called with no kind's lock held.
 */
bool cgpu_reclaim(int32_t gpu, uint64_t bytes);

/* Give back what is charged and no longer held. One load each when there is nothing of the kind. */
void cgpu_reclaim_settle(void);

/* The same when a context is gone: with the last one of a GPU go the reserves of its pools and
 * graphs. */
void cgpu_reclaim_context_gone(void);

/* Trim POOL to what is used, whatever streams capture. */
void cgpu_pool_trim_idle(CUmemoryPool pool);

/* ---- pool.c ---- */

/* Under the lock of pools. NULL: not seen before; no free entry. */
struct cgpu_pool *cgpu_pool_find(CUmemoryPool handle);
struct cgpu_pool *cgpu_pool_add(CUmemoryPool handle, CUdevice device, uint32_t flags);

/* Under the lock of pools: what the driver says of POOL (0 if it does not say). */
uint64_t cgpu_pool_ask(CUmemoryPool pool, int attribute);

/* Under the lock of pools: give back what POOL has released since. */
void cgpu_pool_measure(struct cgpu_pool *pool);
void cgpu_pool_measure_all(void);

/* Release what pools on GPU only keep for reuse, then measure. */
void cgpu_pool_trim(int32_t gpu);

/* Does managed memory hide behind this allocation type? If so, NOT_SUPPORTED and a log line. */
CUresult cgpu_pool_refuse_managed(int allocation_type, const char *name);

/* ---- async_free.c ---- */

/*
 * Give back what was freed in STREAM (unless NULL), or in any stream of CONTEXT, which was
 * synchronised or is gone.
 */
void cgpu_async_free_settle(CUstream stream, CUcontext context);

/*
 * Before a refusal on GPU: streams of the current context whose work is done are synchronised, so
 * that what was freed in them goes back, whatever the program waits with (an event, its own flag).
 */
void cgpu_async_free_finish(int32_t gpu);

/* Destroy STREAM with DESTROY while nobody asks about it; what was freed in it goes with it. */
CUresult cgpu_async_free_destroy(CUresult (*destroy)(CUstream), CUstream stream);

/* ---- mapping.c: under the lock of physical memory ---- */

bool cgpu_mapping_add(uint64_t base, uint64_t bytes, uint64_t allocation);
const struct cgpu_mapping *cgpu_mapping_at(uint64_t address);
/* Forget the mapping that begins at BASE and copy it out. */
bool cgpu_mapping_take(uint64_t base, struct cgpu_mapping *out);

/* ---- physical.c ---- */

/* Under the lock of physical memory. Serial behind HANDLE; 0: not ours. */
uint64_t cgpu_physical_of(uint64_t handle);
void cgpu_physical_keep(uint64_t allocation); /* one more reference */
void cgpu_physical_drop(uint64_t allocation); /* one less; the last one gives the charge back */
bool cgpu_physical_alias(uint64_t handle, uint64_t allocation); /* HANDLE is one more reference */

/* Take the lock of physical memory and give back what no descriptor keeps alive any more. */
void cgpu_physical_settle(void);

/* Under the lock: the same for one allocation. */
void cgpu_physical_settle_one(uint64_t allocation);

/* An array is gone, and with it what was mapped into it. */
void cgpu_physical_array_gone(uint64_t array);

/* ---- share.c: under the lock of physical memory ---- */

/* Is some descriptor of ALLOCATION still open here? */
bool cgpu_share_is_open(uint64_t allocation);

/* ---- graph_memory.c ---- */

/* The next three: under the lock of graphs. */

/* An executable graph allocates memory: from now on follow what the devices reserve for graphs. */
void cgpu_graph_memory_follow(void);

/*
 * Charge what is reserved for graphs now. On a GPU where that does not fit, what no running graph
 * uses is let go at once: OUT_OF_MEMORY, with the GPU and what it lacked.
 */
struct cgpu_graph_lack {
    int32_t gpu;
    uint64_t bytes;
};
CUresult cgpu_graph_memory_charge(struct cgpu_graph_lack *lack);

/* Charge what is reserved for graphs now, over the cap if need be. */
void cgpu_graph_memory_force(void);

/* Release the graph memory of GPU that no running graph uses, then measure. */
void cgpu_graph_memory_trim(int32_t gpu);

/* Give back what is not reserved any more. */
void cgpu_graph_memory_settle(void);

/* ---- code.c ---- */

/* One load of code. It costs what the GPU's free memory has lost when it ends. */
struct cgpu_code {
    int32_t gpu;
    uint64_t owner;
    uint64_t bound; /* the most that it can take */
    uint64_t least; /* what its variables take, which the caller sets, less what PAYER has */
    uint32_t payer_kind;
    uint64_t payer;  /* of a library in a context; kind 0: none */
    uint64_t taken;  /* what it took and was charged for */
    uint64_t beyond; /* what is missing beyond that and belongs to no other load */
};

/* Look before a load. Errors: there is no current context, or it cannot be charged. */
CUresult cgpu_code_begin(struct cgpu_code *code, uint64_t bound);

/* The driver loaded nothing. */
void cgpu_code_cancel(const struct cgpu_code *code);

/* Look after a load, and charge what it took. OUT_OF_MEMORY: it does not fit; unload it. */
CUresult cgpu_code_end(struct cgpu_code *code);

/* Record the charge under KIND and HANDLE; creates the holding if need be. */
CUresult cgpu_code_keep(const struct cgpu_code *code, uint32_t kind, uint64_t handle);

/*
 * Both, for code that cannot be unloaded alone: if it does not fit it is refused, but stays
 * charged. Of threads that load a library at once, one is charged its variables.
 */
CUresult cgpu_code_end_loaded(struct cgpu_code *code, uint32_t kind, uint64_t handle);

/* ---- module.c ---- */

/*
 * The driver takes memory for code and for variables in blocks of 2 MiB. An image may begin one of
 * each beyond what it needs. `make gpu-check` compares this with what a driver takes.
 */
enum { CGPU_CODE_SLACK = 4 << 20 };

/* NOT_SUPPORTED and a log line. */
CUresult cgpu_module_refuse_managed(const char *name);

/* ---- library.c ---- */

/* What is recorded of an image that was loaded. */
struct cgpu_loaded {
    uint64_t serial; /* no other module or library of this process ever has it */
    uint64_t bound;  /* the most bytes that it can take in a context */
};

/* For a holding's `extra`: BOUND, and the next serial. */
uint64_t cgpu_module_remember(uint64_t bound);

/* Read such a holding; if there is none: no serial, and a small bound. */
struct cgpu_loaded cgpu_module_loaded(uint32_t kind, const void *handle);

/* What is left of BOUND after the charges under KIND and HANDLE. */
uint64_t cgpu_module_left(uint64_t bound, uint32_t kind, uint64_t handle);

/* Record what the variables of LIBRARY take in each context. */
CUresult cgpu_library_note_variables(const void *library, uint64_t bytes);

/*
 * A kernel's handle is given out, and any launch of it may load LIBRARY into the current context.
 * If it has variables it is loaded at once, so that they are charged. OUT_OF_MEMORY: they do not
 * fit, and stay charged.
 */
CUresult cgpu_library_load_variables(CUlibrary library);

/* Look before a use of LIBRARY that may load it into the current context. It is charged as
 * CGPU_KIND_LIBRARY under the mix of LIBRARY and owner. */
CUresult cgpu_library_begin(struct cgpu_code *code, const void *library);

/* PART is a kernel or module of LIBRARY. */
CUresult cgpu_library_note_part(const void *part, const void *library);

/* The library of PART; NULL: none. */
const void *cgpu_library_of(const void *part);

/* ---- function.c ---- */

/* Whether KEY was looked at, and no code unloaded and no context destroyed since. */
bool cgpu_function_is_ready(uint64_t key, struct cgpu_holding *ready);

/* Whether that look was at FUNCTION. */
bool cgpu_function_is_same(const struct cgpu_holding *ready, CUfunction function);

/* Which holding pays for a function's code, and where it runs. */
struct cgpu_function_origin {
    uint64_t serial; /* of its module or library; 0: not known */
    uint64_t payer;
    uint32_t kind; /* of the payer */
    int32_t gpu;
    uint64_t owner;
};

/*
 * FUNCTION was handed out between cgpu_code_begin and this, which loads it, ends the load, and
 * charges its code and local memory. Then KEY is ready.
 */
CUresult cgpu_function_look(CUfunction function, const struct cgpu_function_origin *origin,
                            struct cgpu_code *code, uint64_t key);

/* ---- image.c ---- */

/* More than any GPU has: the limit of sums. */
#define CGPU_IMAGE_MOST (UINT64_C(1) << 43)

/* The bound of an image that cannot be read. */
enum { CGPU_CODE_PLAUSIBLE = 64 << 20 };

struct cgpu_image {
    uint64_t bytes;     /* the most that loading may take */
    uint64_t variables; /* in global memory, whose sizes it states; 0: it states none */
    bool hidden;        /* it has parts that cannot be read, where variables may add to this */
    bool read;          /* of a fat binary: one that could be read was among its members */
    bool managed;       /* a managed variable is declared */
};

/* Sums and products stop at CGPU_IMAGE_MOST. */
static inline uint64_t
cgpu_image_product(uint64_t a, uint64_t b)
{
    uint64_t result;
    return __builtin_mul_overflow(a, b, &result) || result > CGPU_IMAGE_MOST ? CGPU_IMAGE_MOST
                                                                             : result;
}

static inline void
cgpu_image_add(struct cgpu_image *image, uint64_t bytes)
{
    bytes = bytes < CGPU_IMAGE_MOST ? bytes : CGPU_IMAGE_MOST;
    image->bytes = image->bytes < CGPU_IMAGE_MOST - bytes ? image->bytes + bytes : CGPU_IMAGE_MOST;
}

static inline void
cgpu_image_add_variables(struct cgpu_image *image, uint64_t bytes)
{
    struct cgpu_image sum = {.bytes = image->variables};
    cgpu_image_add(&sum, bytes);
    image->variables = sum.bytes;
}

/* Look through the code at DATA, whose bounds only its own headers tell. */
void cgpu_image_scan(const void *data, struct cgpu_image *image);

/* The same for the file at PATH. */
void cgpu_image_scan_file(const char *path, struct cgpu_image *image);

/* ---- ptx.c ---- */

enum { CGPU_PTX_GROWTH = 16 }; /* bytes of code for each letter of PTX, at most */

/* Add what PTX of at most LIMIT bytes may take. Stops at the first byte that is not text. */
void cgpu_ptx_scan(const char *text, uint64_t limit, struct cgpu_image *image);

#endif
