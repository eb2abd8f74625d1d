/* What a load of code takes. */
#ifndef CGPU_CUDA_CODE_H
#define CGPU_CUDA_CODE_H

#include "entry/shim.h"
#include "memory/code/image.h"

/* One load of code. It is charged the free memory that the GPU has lost by its end. */
struct cgpu_code {
    int32_t gpu;
    uint64_t owner;
    uint64_t image; /* the most that its image can take */
    uint64_t
        library;    /* the most that the driver's library for printf and such can take; mostly 0 */
    uint64_t least; /* what its variables take (set by the caller), less what PAYER has */
    uint32_t payer_kind;
    uint64_t payer;  /* of a library in a context; kind 0: none */
    uint64_t taken;  /* what it took and was charged for */
    uint64_t rest;   /* the part of it that the driver added, which the context keeps */
    uint64_t beyond; /* missing beyond `taken`, and taken by no other load */
};

/*
 * Note that IMAGE is about to be loaded, if it may call printf, assert or malloc. For these the
 * driver has code and memory of its own, its library. It adds that when the first such code is
 * loaded in a context, and a heap for malloc at the first launch.
 */
void cgpu_code_calls(const struct cgpu_image *image);

/*
 * Whether code that needs the driver's library was loaded, and the current context has not been
 * charged for the library or its heap.
 */
bool cgpu_code_lacks_library(void);

/*
 * Begin to measure, before a call that loads an image or may load a library. Fails if there is no
 * current context, or if it cannot be charged.
 */
CUresult cgpu_code_begin(struct cgpu_code *code, uint64_t bound);

/*
 * Begin before a function is loaded whose code was loaded here. If there is no room for a heap,
 * this does not fail.
 */
CUresult cgpu_code_begin_function(struct cgpu_code *code, uint64_t bound);

/* Begin before something other than code is made, which is measured in the same way. */
CUresult cgpu_code_begin_plain(struct cgpu_code *code, uint64_t bound);

/* End a load that failed: the driver loaded nothing. */
void cgpu_code_cancel(const struct cgpu_code *code);

/* End a load, and charge what it took. OUT_OF_MEMORY: that does not fit; the caller unloads it. */
CUresult cgpu_code_end(struct cgpu_code *code);

/* Record for the context what the driver added. */
CUresult cgpu_code_keep_rest(const struct cgpu_code *code);

/* The load was refused and undone: charge what the driver added, because it keeps that. */
void cgpu_code_refused(struct cgpu_code *code);

/*
 * Record what the load took: for the context what the driver added, and under KIND and HANDLE the
 * image's own part. The holding is created if there is none.
 */
CUresult cgpu_code_keep(const struct cgpu_code *code, uint32_t kind, uint64_t handle);

/*
 * End a load of code that cannot be unloaded alone, and keep its charge. If it does not fit, it is
 * refused but stays charged. If several threads load a library at once, one of them is charged for
 * its variables.
 */
CUresult cgpu_code_end_loaded(struct cgpu_code *code, uint32_t kind, uint64_t handle);

#endif
