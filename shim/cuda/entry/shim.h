/*
 * The proxy of libcuda.so.1: what every hook may use. Design: docs/design/proxies.md.
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
 *        CUresult status = cgpu_pending_begin(&pending, bytes);
 *        if (status != CUDA_SUCCESS) {
 *            return status;
 *        }
 *        status = real(...);
 *        if (status != CUDA_SUCCESS) {
 *            cgpu_pending_cancel(&pending);
 *            return status;
 *        }
 *        return cgpu_pending_commit(&pending, CGPU_KIND_..., handle, 0);
 *
 *    and frees what the driver gave out if the commit fails. The entry point that frees is
 *    cgpu_account_take, real, cgpu_account_end_free, in this order.
 *
 *    A program may leave out any pointer. If it leaves out where the handle goes, pass the call
 *    on before anything is charged: the driver refuses it. Use no pointer that may be NULL,
 *    whatever the driver answers.
 *
 * A call that puts work for the GPU into a stream also passes the gate: launch.h.
 *
 * 3. ../driver_entry_points.csv: treatment `hook` in its row; then the tests.
 *
 * Without a working ledger nothing is allocated: every charge is refused with NOT_INITIALIZED,
 * which the driver also returns before cuInit and in a forked child.
 */
#ifndef CGPU_CUDA_SHIM_H
#define CGPU_CUDA_SHIM_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "entry/capture_mode.h"
#include "entry/device.h"
#include "entry/driver.h"
#include "entry/kinds.h"
#include "entry/log.h"
#include "entry/lookup.h"
#include "entry/state.h"
#include "holdings/blocks.h"
#include "holdings/holdings.h"
#include "ledger/ledger.h"
#include "limits.h"

/* The kinds of holdings. Kind and handle together are a holding's key. */
enum cgpu_kind {
    CGPU_KIND_LINEAR = 1, /* extra: size of a small one, which its blocks are charged for; and:
                             CGPU_EXPORTED */
    CGPU_KIND_ARRAY,
    CGPU_KIND_MIPMAPPED,
    CGPU_KIND_CONTEXT,       /* extra: cuCtxAttach count */
    CGPU_KIND_GREEN,         /* handle: CUgreenCtx, extra: device */
    CGPU_KIND_GREEN_CONTEXT, /* handle: CUcontext made from a green context, which is its owner */
    CGPU_KIND_GROWTH,   /* handle: context + enum cgpu_growth, extra: the default it grows from */
    CGPU_KIND_PHYSICAL, /* handle: serial, extra: references by handles and mappings */
    CGPU_KIND_IMPORTED, /* the same; bytes: as much as was mapped, not charged by itself */
    CGPU_KIND_SHARED,   /* handle: serial of either, bytes: as sharing.h counts them */
    CGPU_KIND_OPENED,   /* handle: address by IPC or of a pool, bytes: as sharing.h counts them,
                           extra: opens */
    CGPU_KIND_HANDLE,   /* handle: of physical memory, extra: count << 40 | serial */
    CGPU_KIND_ARRAY_MAPPING,     /* handle: mix of array and serial, owner: array, extra: serial */
    CGPU_KIND_EXEC,              /* handle: executable graph that allocates, extra: see graph.c */
    CGPU_KIND_EXEC_NODES,        /* handle: executable graph, extra: its nodes */
    CGPU_KIND_MODULE,            /* extra: see module.c */
    CGPU_KIND_LIBRARY,           /* in one context; handle: mix of library and context */
    CGPU_KIND_LIBRARY_IMAGE,     /* handle: library, extra: see module.c */
    CGPU_KIND_LIBRARY_PART,      /* handle: kernel or module, owner, extra: its library */
    CGPU_KIND_LIBRARY_VARIABLES, /* handle and owner: library, extra: bytes in each context */
    CGPU_KIND_FUNCTION,          /* handle: function seen, extra: serial of its module or library */
    CGPU_KIND_READY,             /* see kernel.c */
    CGPU_KIND_FREED /* small linear memory freed in a stream, bytes: the next one, extra: size */
};

/* In `extra` of LINEAR: other processes may have opened the memory. */
#define CGPU_EXPORTED (UINT64_C(1) << 63)

/* The bytes of a small allocation; 0: LINEAR is not small, and is charged by itself. */
static inline uint64_t
cgpu_small_bytes(const struct cgpu_holding *linear)
{
    return linear->extra & ~CGPU_EXPORTED;
}

/* hooks.h generates: struct cgpu_real and the exports from hooks.def. */
#include "entry/hooks.h"

#endif
