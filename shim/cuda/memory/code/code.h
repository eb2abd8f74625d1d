/* What a load of code takes. */
#ifndef CGPU_CUDA_CODE_H
#define CGPU_CUDA_CODE_H

#include "entry/shim.h"
#include "memory/code/image.h"

/* One load of code. It costs the free memory that the GPU has lost by its end. */
struct cgpu_code {
    int32_t gpu;
    uint64_t owner;
    uint64_t image; /* the most that its image can take */
    uint64_t
        library;    /* the most that what the driver adds for printf and such can take; mostly 0 */
    uint64_t least; /* what its variables take, which the caller sets, less what PAYER has */
    uint32_t payer_kind;
    uint64_t payer;  /* of a library in a context; kind 0: none */
    uint64_t taken;  /* what it took and was charged for */
    uint64_t rest;   /* part of that: what the driver added, which the context keeps */
    uint64_t beyond; /* missing beyond `taken`, and taken by no other load */
};

/*
 * Note that IMAGE is about to be loaded. It may call printf, assert or malloc, for which the driver
 * has code and memory of its own. The driver takes them when the first such code is loaded in a
 * context, and a heap for malloc at the first launch.
 */
void cgpu_code_calls(const struct cgpu_image *image);

/* Whether such code was loaded, and the current context has not been charged for that yet. */
bool cgpu_code_lacks_library(void);

/*
 * Begin to measure, before a call that loads an image or may load a library. Errors: there is no
 * current context, or it cannot be charged.
 */
CUresult cgpu_code_begin(struct cgpu_code *code, uint64_t bound);

/*
 * Begin before a function of code that was loaded here is loaded. No room for a heap is no error.
 */
CUresult cgpu_code_begin_function(struct cgpu_code *code, uint64_t bound);

/* Begin before something else than code is made, which is measured in the same way. */
CUresult cgpu_code_begin_plain(struct cgpu_code *code, uint64_t bound);

/* End a load by which the driver loaded nothing. */
void cgpu_code_cancel(const struct cgpu_code *code);

/* End a load, and charge what it took. OUT_OF_MEMORY: it does not fit; unload it. */
CUresult cgpu_code_end(struct cgpu_code *code);

/* Record what the driver added, for the context. */
CUresult cgpu_code_keep_rest(const struct cgpu_code *code);

/* Charge what the driver added and keeps, although the load was refused and undone. */
void cgpu_code_refused(struct cgpu_code *code);

/*
 * Record what the load took: what the driver added for the context, the image's own part under KIND
 * and HANDLE. The holding is created if need be.
 */
CUresult cgpu_code_keep(const struct cgpu_code *code, uint32_t kind, uint64_t handle);

/*
 * End a load, and keep its charge, for code that cannot be unloaded alone. If it does not fit, it
 * is refused but stays charged. If several threads load a library at once, only one is charged for
 * its variables.
 */
CUresult cgpu_code_end_loaded(struct cgpu_code *code, uint32_t kind, uint64_t handle);

#endif
