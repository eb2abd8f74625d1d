/* What a function takes when it is first handed out. */
#ifndef CGPU_CUDA_FUNCTION_H
#define CGPU_CUDA_FUNCTION_H

#include "entry/shim.h"
#include "memory/code/code.h"

/* Whether KEY was checked, and since then no code was unloaded and no context came or went. */
bool cgpu_function_is_ready(uint64_t key, struct cgpu_holding *ready);

/* Whether READY was found for FUNCTION. */
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
 * FUNCTION was handed out since cgpu_code_begin: load it, end the load, and charge the function's
 * code and local memory. Then KEY is ready.
 */
CUresult cgpu_function_look(CUfunction function, const struct cgpu_function_origin *origin,
                            struct cgpu_code *code, uint64_t key);

#endif
