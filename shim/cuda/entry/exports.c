/* The exported functions, generated from hooks.def. Those of FOLLOW, LAUNCH and TRANSFER rows are
 * in compute/, those of SYNC rows in sync.c. */
#include "entry/shim.h"
#include "entry/thread.h"

#define HOOK(name, body, parameters, arguments)                                                    \
    CGPU_GUARDED(name, parameters, arguments, status = body(cgpu_real.name, CGPU_EXPAND arguments))
#define UNGUARDED(name, body, parameters, arguments)                                               \
    CUresult name parameters                                                                       \
    {                                                                                              \
        return body(cgpu_real.name, CGPU_EXPAND arguments);                                        \
    }
#define REJECT(name, reason)                                                                       \
    CUresult name(void)                                                                            \
    {                                                                                              \
        return cgpu_reject(reason, #name);                                                         \
    }
#include "entry/hooks.def"

const struct cgpu_hook cgpu_hooks[] = {
#define EXPORT(name, parameters) {#name, (void *)name, (void **)&cgpu_real.name},
#include "entry/hooks.def"
};

const unsigned int cgpu_hook_count = sizeof(cgpu_hooks) / sizeof(cgpu_hooks[0]);
