/*
 * The proxy of libcuda.so.1: what every hook may use.
 *
 * A hook is three steps under a recursion guard: account, call the real function, undo on failure.
 * To add one:
 *
 * 1. hooks.def: a row HOOK(name, body, (parameters), (arguments)). It declares, exports and
 *    resolves the entry point, and look-ups find it. Parameters are those of the driver; types it
 *    needs go into driver.h. The guard is in the generated export.
 *
 * 2. <kind>.c: the body. It is given the driver's own function and the parameters:
 *
 *        struct cgpu_pending pending;
 *        CUresult status = cgpu_charge_begin(&pending, bytes);
 *        if (status != CUDA_SUCCESS) {
 *            return status;
 *        }
 *        status = real(...);
 *        if (status != CUDA_SUCCESS) {
 *            cgpu_charge_cancel(&pending);
 *            return status;
 *        }
 *        return cgpu_charge_commit(&pending, CGPU_KIND_..., handle, 0);
 *
 *    and frees what the driver gave out if the commit fails. The entry point that frees is
 *    cgpu_charge_take, real, cgpu_charge_settle, in this order.
 *
 *    What puts work for the GPU into a stream goes through the gate as well: launch.h.
 *
 * 3. ../driver_entry_points.csv: treatment `hook` in its row; then the tests.
 *
 * Without a working ledger nothing is allocated: every charge is refused with NOT_INITIALIZED,
 * which is also what the driver says before cuInit and in a forked child.
 */
#ifndef CGPU_CUDA_SHIM_H
#define CGPU_CUDA_SHIM_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "entry/driver.h"
#include "entry/kinds.h"
#include "holdings/blocks.h"
#include "holdings/holdings.h"
#include "ledger/ledger.h"
#include "limits.h"

/* What a holding is; part of its key together with the handle. */
enum cgpu_kind {
    CGPU_KIND_LINEAR = 1, /* extra: size of a small one, which its blocks are charged for */
    CGPU_KIND_ARRAY,
    CGPU_KIND_MIPMAPPED,
    CGPU_KIND_CONTEXT,       /* extra: cuCtxAttach count */
    CGPU_KIND_GREEN,         /* handle: CUgreenCtx, extra: device */
    CGPU_KIND_GREEN_CONTEXT, /* handle: CUcontext made from a green context, which is its owner */
    CGPU_KIND_GROWTH,   /* handle: context + enum cgpu_growth, extra: the default it grows from */
    CGPU_KIND_PHYSICAL, /* handle: serial, extra: references by handles and mappings */
    CGPU_KIND_HANDLE,   /* handle: of physical memory, extra: count << 40 | serial */
    CGPU_KIND_ARRAY_MAPPING,     /* handle: mix of array and serial, owner: array, extra: serial */
    CGPU_KIND_EXEC,              /* handle: executable graph that allocates, extra: see graph.c */
    CGPU_KIND_MODULE,            /* extra: see module.c */
    CGPU_KIND_LIBRARY,           /* in one context; handle: mix of library and context */
    CGPU_KIND_LIBRARY_IMAGE,     /* handle: library, extra: see module.c */
    CGPU_KIND_LIBRARY_PART,      /* handle: kernel or module, owner, extra: its library */
    CGPU_KIND_LIBRARY_VARIABLES, /* handle and owner: library, extra: bytes in each context */
    CGPU_KIND_FUNCTION,          /* handle: function seen, extra: serial of its module or library */
    CGPU_KIND_READY,             /* see kernel.c */
    CGPU_KIND_FREED /* small linear memory freed in a stream, bytes: the next one, extra: size */
};

/* hooks.h generates: struct cgpu_real and the exports from hooks.def. */
#include "entry/hooks.h"

/* ---- state.c: this process's part in the container ---- */

enum {
    CGPU_MAX_DEVICES = 64,
    CGPU_NO_GPU = -1,
    CGPU_MAX_LISTED = 128 /* contexts of one process: each costs 100 MiB and more */
};

/* Pages that read as zeros in a forked child: there nothing is attached. */
struct cgpu_state {
    pthread_mutex_t lock;     /* attaching, and filling `devices` */
    pthread_mutex_t contexts; /* making and destroying contexts */
    uint32_t attached;        /* set last; 0: refuse */
    uint32_t generation;      /* of contexts; a change voids what threads remember of theirs */
    int64_t clock_ahead;      /* of the host: cgpu_host_clock_ahead, in force when attached */
    struct cgpu_ledger *ledger;
    struct cgpu_holdings *holdings;
    struct cgpu_blocks *blocks;
    uint64_t granularity[CGPU_MAX_GPUS]; /* of memory, a block or more; by place in the limits */
    CUcontext primary[CGPU_MAX_GPUS];    /* active primary context, by place in the limits */
    int8_t devices[CGPU_MAX_DEVICES]; /* 0: not asked yet, -1: not in the limits, else place + 1 */
    uint64_t
        local_bytes; /* of local memory that the hungriest kernel of a library needs a thread */
    struct cgpu_kinds kinds;
};

extern struct cgpu_state *cgpu_state;         /* NULL: could not be set up */
extern const struct cgpu_limits *cgpu_limits; /* NULL: missing or broken */

/* Map the limits and make the state page. Once, when the library is loaded. */
void cgpu_state_setup(void);

/* Take part: ledger slot and holdings. For cuInit, also after fork. NOT_PERMITTED if that fails. */
CUresult cgpu_state_attach(void);

/* Is this process attached? One load. */
bool cgpu_state_is_attached(void);

/* ---- target.c: who pays ---- */

struct cgpu_target {
    int32_t gpu;    /* place in the limits, or CGPU_NO_GPU */
    uint64_t owner; /* context that takes the memory along when it goes */
};

/* GPU and owner for what the current context allocates. Charges a context seen the first time. */
CUresult cgpu_target_current(struct cgpu_target *target);

/* GPU of the current context, whether it can be charged or not. */
CUresult cgpu_target_current_gpu(int32_t *gpu);

/* Place of DEVICE in the limits, or CGPU_NO_GPU. */
int32_t cgpu_target_gpu(CUdevice device);

/* A device whose place is GPU; it was asked for before. */
CUdevice cgpu_target_device(int32_t gpu);

/* The cap on GPU now; 0 for CGPU_NO_GPU. */
uint64_t cgpu_target_cap(int32_t gpu);

/* What threads remember about contexts is void from now on. */
void cgpu_target_forget(void);

/* What of the cap is the ledger's: without what is held around it, which is the other. */
uint64_t cgpu_target_room(int32_t gpu);
uint64_t cgpu_target_outside(int32_t gpu);

/* ---- charge.c: accounts ---- */

struct cgpu_pending {
    struct cgpu_target target;
    uint64_t charged;
};

/* Charge BYTES. OUT_OF_MEMORY and a log line if they do not fit. */
CUresult cgpu_charge(int32_t gpu, uint64_t bytes, uint64_t *charged);
void cgpu_charge_release(int32_t gpu, uint64_t bytes);

/* The same for a program's request of ASKED bytes, which a refusal names. */
CUresult cgpu_charge_for(int32_t gpu, uint64_t bytes, uint64_t asked, uint64_t *charged);

/* The same, but a refusal is neither logged nor answered by reclaiming: for use under a lock of
 * kinds.h. */
CUresult cgpu_charge_try(int32_t gpu, uint64_t bytes, uint64_t *charged);

/* Charge what the driver took already and cannot be made to give back: over the cap if need be. */
void cgpu_charge_force(int32_t gpu, uint64_t bytes);

/* BYTES in whole pieces of what the driver takes memory of GPU in. */
uint64_t cgpu_charge_whole(int32_t gpu, uint64_t bytes);

/* begin: charge the current context's GPU; _whole: for BYTES in whole pieces; resize: so that they
 * are BYTES in all. */
CUresult cgpu_charge_begin(struct cgpu_pending *pending, uint64_t bytes);
CUresult cgpu_charge_begin_whole(struct cgpu_pending *pending, uint64_t bytes);
CUresult cgpu_charge_resize(struct cgpu_pending *pending, uint64_t bytes);
void cgpu_charge_cancel(struct cgpu_pending *pending);

/* Keep the charge under KIND and HANDLE. If that fails it is cancelled: the caller frees HANDLE. */
CUresult cgpu_charge_commit(const struct cgpu_pending *pending, enum cgpu_kind kind,
                            uint64_t handle, uint64_t extra);

/* The same for a holding that is charged already. A stale one under its key is given back. */
CUresult cgpu_charge_hold(const struct cgpu_holding *holding);

bool cgpu_charge_find(enum cgpu_kind kind, uint64_t handle, struct cgpu_holding *out);
bool cgpu_charge_take(enum cgpu_kind kind, uint64_t handle, struct cgpu_holding *out);
void cgpu_charge_give_back(const struct cgpu_holding *holding);
void cgpu_charge_restore(const struct cgpu_holding *holding);

/*
 * Freeing: the holding is taken before the real call, as the driver may give the handle to another
 * thread the moment it is free; the charge goes after it, as the memory must be there before anyone
 * is told so. TAKEN (NULL: nothing was held) is given back or restored by what the driver said,
 * STATUS, which is returned.
 */
CUresult cgpu_charge_settle(const struct cgpu_holding *taken, CUresult status);

/* Give back everything that OWNER takes along. */
void cgpu_charge_give_back_owned(uint64_t owner);

/* ---- small.c: linear memory up to CGPU_BLOCK_SMALL ---- */

struct cgpu_small {
    struct cgpu_arena_key key;
    bool expected; /* to be served from a hole: nothing is charged */
};

/* Before the driver is asked for BYTES; LOW: by an entry point with pointers of 32 bits. */
CUresult cgpu_small_begin(struct cgpu_small *small, const struct cgpu_target *target,
                          uint64_t bytes, bool low);
void cgpu_small_cancel(const struct cgpu_small *small);

/* It put BYTES at ADDRESS: charge what that takes. If that does not fit they are freed again. */
CUresult cgpu_small_keep(const struct cgpu_small *small, CUdeviceptr address, uint64_t bytes);

/* What HOLDING says is about to be freed; it was not; it was. */
void cgpu_small_leave(const struct cgpu_holding *holding);
void cgpu_small_stay(const struct cgpu_holding *holding);
void cgpu_small_gone(const struct cgpu_holding *holding);

/* HOLDING, of any kind, is gone: bytes to release for blocks that went with it. */
uint64_t cgpu_small_forget(const struct cgpu_holding *holding);

/* ---- context.c, growth.c ---- */

/* For a DEVICE whose GPU is not in the limits: the driver's word where there is no such device. */
CUresult cgpu_context_check(CUdevice device, int32_t gpu);

/* Charge what a context costs on GPU. */
CUresult cgpu_context_charge(int32_t gpu, uint64_t *charged);

/* Keep CONTEXT with its charge; on failure the charge is released. */
CUresult cgpu_context_hold(CUcontext context, int32_t gpu, uint64_t charged);

/* CONTEXT is gone: give back all it owned. */
void cgpu_context_gone(CUcontext context);

/* By the limit that asks for it, or LOCAL: local memory that loaded functions need beyond the stack
 * limit's default. */
enum cgpu_growth { CGPU_GROWTH_STACK = CU_LIMIT_STACK_SIZE, CGPU_GROWTH_LOCAL = 15 };

/*
 * A function that needs BYTES of local memory per thread can be launched in TARGET from now on:
 * charge what the context's local memory buffer will grow by. Does nothing if it is charged
 * already.
 */
CUresult cgpu_growth_local_memory(const struct cgpu_target *target, uint64_t bytes);

/* The same for a kernel that can be launched in every context, those included that come later. */
CUresult cgpu_growth_local_memory_everywhere(uint64_t bytes);

/* CONTEXT on GPU is new: charge it for such kernels. _locked: under the lock of contexts. */
CUresult cgpu_growth_of_context(uint64_t context, int32_t gpu);
CUresult cgpu_growth_of_context_locked(uint64_t context, int32_t gpu);

/* ---- log.c: one line to the container's log, rarely ---- */

enum cgpu_log {
    CGPU_LOG_MEMORY,
    CGPU_LOG_MANAGED,
    CGPU_LOG_CHECKPOINT,
    CGPU_LOG_UNKNOWN,
    CGPU_LOG_STATE,
    CGPU_LOG_COMPUTE,
    CGPU_LOG_KINDS
};

void cgpu_log_setup(void);

/* "cgpu: out of memory on GPU <index>: cap ..., used ..., asked ..." */
void cgpu_log_memory(int32_t gpu, uint64_t asked);

/* "cgpu: <text><detail>" */
void cgpu_log_text(enum cgpu_log kind, const char *text, const char *detail);

/* ---- lookup.c ---- */

/* Whether the host lets pass what this release does not know of the driver. */
bool cgpu_may_pass_unknown(void);

#endif
