/* The exported functions, generated from hooks.def. */
#include "entry/shim.h"
#include "entry/thread.h"

/*
 * A call that comes from inside a hook on the same thread (from the driver, or from our own
 * helpers) is part of what that hook accounts for, so it passes straight through.
 */
#define HOOK(name, body, parameters, arguments)                                                    \
    CUresult name parameters                                                                       \
    {                                                                                              \
        if (cgpu_thread.depth != 0) {                                                              \
            return cgpu_real.name arguments;                                                       \
        }                                                                                          \
        cgpu_thread.depth = 1;                                                                     \
        CUresult status = body(cgpu_real.name, CGPU_EXPAND arguments);                             \
        cgpu_thread.depth = 0;                                                                     \
        return status;                                                                             \
    }
#define UNGUARDED(name, body, parameters, arguments)                                               \
    CUresult name parameters                                                                       \
    {                                                                                              \
        return body(cgpu_real.name, CGPU_EXPAND arguments);                                        \
    }
#define LAUNCH(name, stream, per_thread, key, parameters, arguments)           /* in launch.c */
#define TRANSFER(name, kind, bytes, stream, per_thread, parameters, arguments) /* transfer.c */
#define REJECT(name, reason)                                                                       \
    CUresult name(void)                                                                            \
    {                                                                                              \
        return cgpu_reject(reason, #name);                                                         \
    }
#define REAL(name, parameters)
#include "entry/hooks.def"
#undef HOOK
#undef UNGUARDED
#undef LAUNCH
#undef TRANSFER
#undef REJECT
#undef REAL

const struct cgpu_hook cgpu_hooks[] = {
#define HOOK(name, body, parameters, arguments) {#name, (void *)name, (void **)&cgpu_real.name},
#define UNGUARDED                               HOOK
#define LAUNCH(name, stream, per_thread, key, parameters, arguments)                               \
    {#name, (void *)name, (void **)&cgpu_real.name},
#define TRANSFER(name, kind, bytes, stream, per_thread, parameters, arguments)                     \
    {#name, (void *)name, (void **)&cgpu_real.name},
#define REJECT(name, reason) {#name, (void *)name, (void **)&cgpu_real.name},
#define REAL(name, parameters)
#include "entry/hooks.def"
#undef HOOK
#undef UNGUARDED
#undef LAUNCH
#undef TRANSFER
#undef REJECT
#undef REAL
};

const unsigned int cgpu_hook_count = sizeof(cgpu_hooks) / sizeof(cgpu_hooks[0]);
