/* What hooks.def declares: the exports, the bodies behind them and the driver's own functions. */
#ifndef CGPU_CUDA_HOOKS_H
#define CGPU_CUDA_HOOKS_H

#include "entry/copies.h"
#include "entry/driver.h"

/*
 * `protected`: the look-up table gets our function, even if another library exports the same name.
 */
#define CGPU_EXPORT      __attribute__((visibility("protected")))
#define CGPU_EXPAND(...) __VA_ARGS__

/* The driver's own functions. A function that the driver lacks returns CUDA_ERROR_NOT_FOUND. */
struct cgpu_real {
#define EXPORT(name, parameters) CUresult(*name) parameters;
#define REAL                     EXPORT
#include "entry/hooks.def"
};

extern struct cgpu_real cgpu_real;

/* Whether this driver has ENTRY, a member of cgpu_real. */
#define CGPU_REAL_HAS(entry) ((void *)cgpu_real.entry != (void *)cgpu_real_missing)
CUresult cgpu_real_missing(void);

/* The exports, and the bodies behind those of HOOK rows. */
#define EXPORT(name, parameters) CGPU_EXPORT CUresult name parameters;
#define HOOK(name, body, parameters, arguments)                                                    \
    EXPORT(name, parameters) CUresult body(CUresult(*real) parameters, CGPU_EXPAND parameters);
#include "entry/hooks.def"

/*
 * Defines an export. A call that comes from inside a hook on the same thread, by the driver or by
 * our own helpers, is part of what that hook charges. So it goes straight to the driver. For any
 * other call, the statements in `...` set `status`.
 */
#define CGPU_GUARDED(name, parameters, arguments, ...)                                             \
    CUresult name parameters                                                                       \
    {                                                                                              \
        CUresult status;                                                                           \
        if (cgpu_thread.depth != 0) {                                                              \
            return cgpu_real.name arguments;                                                       \
        }                                                                                          \
        cgpu_thread.depth = 1;                                                                     \
        __VA_ARGS__;                                                                               \
        cgpu_thread.depth = 0;                                                                     \
        return status;                                                                             \
    }

/* Why an entry point is refused altogether. */
enum cgpu_reject {
    CGPU_REJECT_MANAGED,
    CGPU_REJECT_CHECKPOINT,
    CGPU_REJECT_UNKNOWN,
    CGPU_REJECT_POOLS
};
CUresult cgpu_reject(enum cgpu_reject reason, const char *name);

/* One row per export, in the order of hooks.def. */
struct cgpu_hook {
    const char *name;
    void *export;
    void **real; /* member of cgpu_real */
};

extern const struct cgpu_hook cgpu_hooks[];
extern const unsigned int cgpu_hook_count;

/*
 * When the library is loaded: find the real library and its functions, make look-ups find the
 * exports, and hide those that an old driver lacks.
 */
void *cgpu_real_open(void);
void cgpu_real_setup(void *library);
void cgpu_lookup_setup(void *library);
void cgpu_real_hide_missing(const void *library);

#endif
