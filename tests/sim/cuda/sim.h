/*
 * The simulated libcuda.so.1: what its files share.
 *
 * One process-wide lock is held inside every entry point (SIM_API takes it); what blocks drops it
 * meanwhile. Device memory is host memory, so a device pointer is an address of this process.
 */
#ifndef CGPU_SIM_CUDA_H
#define CGPU_SIM_CUDA_H

#include <stddef.h>
#include <stdint.h>

#include "machine.h"

enum sim_result {
#define RESULT(value, name, text) name = value,
#include "results.def"
#undef RESULT
};

enum {
    SIM_GRANULE = 2 << 20, /* physical memory comes in pieces of 2 MiB */
    SIM_SMALL = 1 << 20,   /* requests up to this share such a piece */
    SIM_MAX_LIMITS = 11,
    SIM_CONTEXT_STACK = 64,
};

#define SIM_STREAM_LEGACY     ((struct sim_stream *)1)
#define SIM_STREAM_PER_THREAD ((struct sim_stream *)2)

/* ---- entry points (api.c) ---- */

int sim_enter(const char *name); /* 0 with the lock held, or the result to return without it */
void sim_leave(void);
void sim_unlock_for_wait(void); /* around what blocks */
void sim_lock_after_wait(void);
int sim_thread_start(void *(*run)(void *argument), void *argument); /* 0, or an error */
void sim_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
int sim_unsupported(const char *name); /* logs; CUDA_ERROR_NOT_SUPPORTED */
struct cgpu_machine *sim_machine(void);

#define SIM_EXPORT __attribute__((visibility("default")))

/* Defines the exported NAME around the body that follows. */
#define SIM_API(name, parameters, arguments)                                                       \
    static int do_##name parameters;                                                               \
    SIM_WRAPPER(name, name, parameters, arguments, NULL)                                           \
    static int do_##name parameters

/* Likewise, and its per-thread variant, in which the stream NULL is the thread's own. */
#define SIM_API_PER_THREAD(name, suffix, parameters, arguments)                                    \
    static int do_##name parameters;                                                               \
    SIM_WRAPPER(name, name, parameters, arguments, SIM_STREAM_LEGACY)                              \
    SIM_WRAPPER(name##suffix, name, parameters, arguments, SIM_STREAM_PER_THREAD)                  \
    static int do_##name parameters

#define SIM_WRAPPER(name, target, parameters, arguments, stream_for_null)                          \
    SIM_EXPORT int name parameters;                                                                \
    int name parameters                                                                            \
    {                                                                                              \
        int result = sim_enter(#name);                                                             \
        if (result == CUDA_SUCCESS) {                                                              \
            sim_null_stream = (stream_for_null);                                                   \
            result = do_##target arguments;                                                        \
            sim_leave();                                                                           \
        }                                                                                          \
        return result;                                                                             \
    }

extern __thread struct sim_stream *sim_null_stream; /* what stream NULL means in this call */

/* ---- objects: everything with a handle (object.c) ---- */

enum sim_kind {
    SIM_CONTEXT = 1,
    SIM_STREAM,
    SIM_EVENT,
    SIM_MODULE,
    SIM_FUNCTION,
    SIM_LIBRARY,
    SIM_KERNEL,
    SIM_ARRAY,
    SIM_MIPMAP,
    SIM_POOL,
    SIM_PHYSICAL,
    SIM_GRAPH,
    SIM_NODE,
    SIM_EXEC,
    SIM_LINK,
};

struct sim_object {
    uint32_t kind;
    struct sim_context *owner; /* context that takes it along; NULL: none */
    struct sim_object *hash_next, *previous, *next;
};

void *sim_object_new(enum sim_kind kind, size_t size, struct sim_context *owner);
void *sim_object_find(enum sim_kind kind, const void *handle); /* NULL: not one */
void sim_object_delete(void *object);
void *sim_object_next(enum sim_kind kind,
                      const void *after); /* over all of a kind; NULL starts and ends */

/* ---- devices (device.c, visible.c) ---- */

struct sim_device {
    uint32_t ordinal;       /* as CUDA counts */
    uint32_t machine_index; /* as the machine counts */
    const struct cgpu_machine_gpu *facts;
    struct sim_context *primary;
    uint32_t primary_references;
    uint32_t primary_flags;
    struct sim_pool *default_pool, *pool;
    uint64_t graph_used, graph_used_high, graph_reserved, graph_reserved_high;
    uint64_t last_item; /* of this process's queue on the GPU */
};

int sim_devices_find(void); /* at cuInit; CUDA_ERROR_NO_DEVICE */
struct sim_device *sim_device(int ordinal);
uint32_t sim_device_count(void);
int sim_take(struct sim_device *device, uint64_t bytes); /* CUDA_ERROR_OUT_OF_MEMORY */
void sim_give(struct sim_device *device, uint64_t bytes);

/* ---- contexts (context.c, primary.c) ---- */

struct sim_context {
    struct sim_object object;
    struct sim_device *device;
    uint64_t id;
    uint32_t flags;
    int alive, is_primary;
    uint32_t attached; /* cuCtxAttach */
    uint64_t bytes;    /* of device memory, local memory included */
    uint64_t local_bytes;
    uint64_t graph_bytes, graph_taken; /* of executable graphs that exist; part of bytes */
    int has_library, has_heap;         /* for printf, assert and malloc; part of bytes */
    size_t limits[SIM_MAX_LIMITS];
    uint64_t limit_bytes[SIM_MAX_LIMITS]; /* taken for a limit, and part of bytes */
    int cache_config, shared_config;
    uint32_t peers; /* bit per device */
    struct sim_stream *legacy;
    struct sim_chunk *chunks; /* shared by small allocations, those with room first */
};

int sim_context_current(struct sim_context **out); /* CUDA_ERROR_INVALID_CONTEXT, .._IS_DESTROYED */
int sim_context_create(struct sim_device *device, uint32_t flags, struct sim_context **out);
void sim_context_destroy(struct sim_context *context);
void sim_context_push(struct sim_context *context);
void sim_context_wait(struct sim_context *context);
int sim_context_grow_local(struct sim_context *context, size_t bytes); /* per thread */
int sim_device_of_context(struct sim_device **device);
void sim_limits_reset(struct sim_context *context); /* limit.c */

/* ---- memory (region.c, heap.c) ---- */

enum sim_region_kind {
    SIM_LINEAR = 1,
    SIM_POOLED,
    SIM_GRAPH_MEMORY,
    SIM_MAPPED, /* part of an address reservation */
    SIM_MANAGED,
    SIM_HOST,
    SIM_REGISTERED,
    SIM_IMPORTED,
    SIM_GLOBAL, /* a module's variable */
};

/* A range of addresses that the driver knows. */
struct sim_region {
    uint64_t base, bytes;
    uint32_t kind;
    uint32_t flags; /* host allocations */
    uint64_t id;
    uint64_t taken; /* device bytes to give back with it */
    struct sim_context *context;
    struct sim_device *device;
    struct sim_chunk *chunk;       /* small linear */
    struct sim_pool *pool;         /* pooled */
    struct sim_physical *physical; /* mapped */
    uint64_t physical_offset;
    uint32_t access; /* mapped: 0 none, 1 read, 3 read and write */
    uint32_t shared; /* imported: object number + 1 */
};

struct sim_region *sim_region_add(uint64_t base, uint64_t bytes, enum sim_region_kind kind);
struct sim_region *sim_region_find(uint64_t address);
void sim_region_remove(struct sim_region *region);             /* forget; memory is the caller's */
struct sim_region *sim_region_of(struct sim_context *context); /* any that belongs to it */
struct sim_region *sim_imported_find(uint32_t shared);         /* import of object number + 1 */
struct sim_device *sim_device_of_object(uint32_t object);      /* NULL: this process has it not */
/* Wholly the driver's, on the device or (pinned, registered) with a device address on the host. */
int sim_region_is_known(uint64_t address, uint64_t bytes);
uint64_t sim_round(uint64_t bytes);                                  /* up to SIM_GRANULE */
uint64_t sim_pages_map(uint64_t bytes, uint64_t alignment, int low); /* 0: none */
void sim_pages_unmap(uint64_t base, uint64_t bytes);

/* Taken bytes, or with this bit the number of the machine's object that the pages have become. */
#define SIM_SHARED_PAGES (1ull << 63)
void sim_pages_return(struct sim_device *device, uint64_t taken);
/* The whole pages that an allocation lies in, and what was taken for them. */
uint64_t *sim_pages_of(struct sim_region *region, uint64_t *base, uint64_t *bytes);
uint64_t *sim_chunk_pages(struct sim_chunk *chunk, uint64_t *base);

int sim_linear_alloc(struct sim_context *context, uint64_t bytes, int low, struct sim_region **out);
void sim_linear_free(struct sim_region *region);
int sim_region_free(struct sim_region *region); /* any kind, as cuMemFree */
int sim_small_alloc(struct sim_context *context, uint64_t bytes, int low, struct sim_chunk **chunk,
                    uint64_t *address);
void sim_small_free(struct sim_context *context, struct sim_chunk *chunk, uint64_t address,
                    uint64_t bytes);

/* ---- arrays (array.c) ---- */

struct sim_array {
    struct sim_object object;
    size_t width, height, depth;
    uint32_t format, channels, flags, element_bytes;
    uint64_t base, bytes, taken;
    struct sim_mipmap *mipmap; /* level of one: owns nothing */
};

void sim_array_free(struct sim_array *array);
void sim_mipmap_free(struct sim_mipmap *mipmap);

/* ---- pools (pool.c, pool_free.c, pool_share.c) ---- */

struct sim_pool {
    struct sim_object object;
    struct sim_device *device;
    uint64_t used, used_high, reserved, reserved_high, threshold, maximum;
    uint64_t freed; /* in streams that have not got there, and not allocated again */
    uint32_t frees; /* in such streams */
    int reuse[3];
    int is_default, is_import, destroyed;
    uint32_t handle_types;
    uint32_t mark; /* number + 1 of the object that stands for the pool in its descriptors */
};

int sim_pool_alloc(struct sim_pool *pool, struct sim_stream *stream, uint64_t bytes, uint64_t *out);
void sim_pool_free(struct sim_region *region); /* at once */
int sim_pool_free_in(uint64_t address, struct sim_stream *stream);
void sim_pool_frees_finish(void); /* those that streams have passed, after a synchronisation */
/* Bytes freed in streams that STREAM may have again; it has so many of them. */
uint64_t sim_pool_reusable(const struct sim_pool *pool, const struct sim_stream *stream);
void sim_pool_reuse(struct sim_pool *pool, const struct sim_stream *stream, uint64_t bytes);
void sim_pool_stream_gone(const struct sim_stream *stream);
int sim_pool_alloc_shared(struct sim_pool *pool, struct sim_context *context, uint64_t bytes,
                          uint64_t *out);
void sim_pool_pages_return(struct sim_pool *pool, uint64_t base, uint64_t bytes, uint32_t shared);
uint64_t sim_pool_used(uint64_t bytes); /* what an allocation counts as used */
void sim_pool_count(struct sim_pool *pool, int64_t used, int64_t reserved);
void sim_pools_trim(struct sim_device *device);    /* at synchronisation */
void sim_pools_release(struct sim_device *device); /* with the last context */
struct sim_pool *sim_pool_default(struct sim_device *device);
struct sim_pool *sim_pool_current(struct sim_device *device);
struct sim_pool *sim_pool_new(struct sim_device *device);
void sim_pool_trim(struct sim_pool *pool, uint64_t keep);
void sim_pool_drop_if_unused(struct sim_pool *pool);

/* ---- virtual memory (vmm.c) ---- */

struct sim_physical {
    struct sim_object object;
    struct sim_device *device; /* NULL: host memory */
    uint64_t bytes;
    uint32_t handles;  /* references by handle */
    uint32_t mappings; /* and by mapping */
    uint32_t shared;   /* object number + 1; 0: this process only */
    uint32_t handle_types;
    uint32_t location_type, location_id;
    uint64_t backing; /* of host or private memory: pages kept while mapped nowhere */
    int fd;           /* memfd of private memory */
};

/* ---- code (image.c, module.c, library.c) ---- */

struct sim_global {
    char *name;
    uint64_t bytes;
    int managed;
};

struct sim_image {
    char **kernels;
    uint32_t *kernel_flags;
    size_t kernel_count;
    struct sim_global *globals;
    size_t global_count;
    uint64_t bytes;
    int calls; /* printf, assert or malloc, which the driver adds */
    int heap;  /* malloc */
};

int sim_image_parse(const void *data, const struct sim_device *device, struct sim_image *image);
int sim_image_read_file(const char *path, void **data);
void sim_image_free(struct sim_image *image);

struct sim_function {
    struct sim_object object;
    struct sim_module *module;
    char *name;
    uint64_t duration_ns;
    int polls; /* stays until the word that its parameter names is not 0 */
    int attributes[16];
    uint32_t block[3], shared_bytes; /* legacy launches */
    struct sim_function *next;
};

struct sim_module {
    struct sim_object object;
    struct sim_image image;
    struct sim_function *functions;
    uint64_t taken, pending; /* pending: taken at the first use of it, as it is loaded lazily */
    uint64_t *addresses;     /* of the image's globals */
};

int sim_module_load(struct sim_context *context, const void *data, struct sim_module **out);
int sim_module_use(struct sim_module *module); /* loads what is loaded lazily */
int sim_module_is_lazy(void);
void sim_module_unload(struct sim_module *module);
int sim_module_function(struct sim_module *module, const char *name, struct sim_function **out);
int sim_module_global(struct sim_module *module, const char *name, uint64_t *address,
                      size_t *bytes);
int sim_local_bytes(const char *name);     /* that a kernel of this name needs for each thread */
const char *sim_kernel_name(void *handle); /* NULL: no CUkernel */
struct sim_function *sim_function_of(void *handle); /* CUfunction, or CUkernel in this context */

#include "work.h" /* streams, events, operations, graphs */

#endif
